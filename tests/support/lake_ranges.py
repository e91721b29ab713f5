"""The built-in tables filled range by range, as Spark has it done, in this process."""

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from zenlake.lake.decoders.messages import encode_rules
from zenlake.lake.pipeline.flows import BUILT_IN, batch_ends
from zenlake.lake.pipeline.range_task import TableJob, write_range
from zenlake.lake.project import Project
from zenlake.lake.tables.record import TableRecord
from zenlake.lake.tables.table_set import RangeOutput, TableSet
from zenlake.log.read.log import Log
from zenlake.spark.log_ranges import RangeStreamReader
from zenlake.spark.log_source import LogRange
from zenlake.spark.options import Options, Purpose

Batch = tuple[int, list[LogRange]]
"Number of a batch, and its tasks."


def planned(
    log: Path,
    rows: int,
    start: dict[int, int] | None = None,
    stops: Iterable[dict[int, int]] = (),
) -> Generator[Batch, None, None]:
    """Yield the batches of at most `rows` samples that Spark would plan from `start` on.

    `stops` are the positions of the tables.
    """
    raw = {
        "path": str(log),
        "duplicates": "mark",
        "includeloss": "true",
        "maxrowspertrigger": str(rows),
    }
    if start:
        raw["startingoffsets"] = str({str(n): at for n, at in start.items()}).replace("'", '"')
    raw["batchends"] = batch_ends(stops)
    options: Any = Options.parse(raw, Purpose.LOG_STREAM)
    schema: Any = None  # The reader of ranges does not use it.
    reader = RangeStreamReader(options, schema)
    at, number = reader.initialOffset(), 0
    try:
        while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
            parts = [part for part in reader.partitions(at, end) if isinstance(part, LogRange)]
            yield number, [half for part in parts for half in halves(part)]
            at, number = end, number + 1
    finally:
        reader.stop()


def halves(part: LogRange) -> list[LogRange]:
    """Cut a task in two, so that a batch has several; not one with repeats, whose marks fit it."""
    middle = (part.start + part.end) // 2
    if part.repeats or middle == part.start:
        return [part]
    return [
        LogRange(part.log, part.partition, part.start, middle),
        LogRange(part.log, part.partition, middle, part.end),
    ]


def open_tables(project: Project, names: tuple[str, ...] = BUILT_IN, **options: Any) -> TableSet:
    return TableSet(project.tables, names, Log(project.log), TableRecord(project.state), **options)


def write_batch(
    project: Project, tables: TableSet, batch: Batch, rules: str | None = None
) -> list[RangeOutput]:
    """Write the files of a batch, as its tasks do; by the `rules` of the lake unless given."""
    number, parts = batch
    job = TableJob(
        log=str(project.log),
        tables=str(project.tables),
        positions=tables.positions(),
        staging=f"test/{number}",
        rules=encode_rules(project.decoders) if rules is None else rules,
        home=str(project.home),
    )
    return [write_range(part, job) for part in parts]


def fill(
    project: Project, rows: int = 1_000_000, names: tuple[str, ...] = BUILT_IN, batches: int = -1
) -> TableSet:
    """Fill the tables from where they are, by at most `batches` batches, and close them."""
    tables = open_tables(project, names)
    try:
        for batch in planned(project.log, rows, tables.start(), tables.positions().values()):
            if batches == 0:
                break
            batches -= 1
            tables.commit(write_batch(project, tables, batch))
    finally:
        tables.close()
    return tables
