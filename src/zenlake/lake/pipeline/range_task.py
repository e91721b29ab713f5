"""One task of the built-in tables: reads a range of the log, writes its part of every table.

Runs in Spark's Python workers, which keep their modules and decoders from task to task. Does not
commit: the driver does, when all tasks of a batch have ended.
"""

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pyarrow as pa

from zenlake.columnar.conform import conform
from zenlake.errors import ZError
from zenlake.lake.decoders.messages import MessageDecoder
from zenlake.lake.tables import schema
from zenlake.lake.tables.definitions import LOSS, TABLES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.dictionary import dictionary_schema
from zenlake.lake.tables.projections import LOSS_COLUMN, PROJECTIONS, TableWriter, TaskOutput
from zenlake.lake.tables.table_set import RangeOutput
from zenlake.log.read.log import Log
from zenlake.log.read.reader import Reader
from zenlake.spark import offsets as plan
from zenlake.spark.duplicates import DUPLICATE, DuplicateMarker
from zenlake.spark.log_source import LogRange

BATCH_ROWS = 1 << 17  # Rows that are read at once.
BATCH_BYTES = 16 << 20  # Bytes that are read at once.
WARM_UP_SECONDS = 0.2  # Duration of a task that only loads what tasks need.
WARM_UP_ROWS = 100  # Samples that it makes tables of, at most.
WARM_UP_BYTES = 1 << 20  # Bytes of the log that they take, at most; one sample may be larger.
RESULT = "output binary"  # Columns of a task's result, as Spark writes them.

SAMPLES = dictionary_schema(pa.schema([*schema.SAMPLE, pa.field(DUPLICATE, pa.bool_())]))
"Columns of a sample; its texts stay the dictionaries that the log's reader makes."
SAMPLES_AND_LOSSES = dictionary_schema(pa.schema([*SAMPLES, LOSS_COLUMN]))


@dataclass(frozen=True)
class TableJob:
    """The work of all tasks of one batch."""

    log: str
    tables: str
    positions: Mapping[str, Mapping[int, int]]
    "By table the next offset of each log partition that it does not have."
    staging: str
    "Relative folder of staged rows, which no other batch uses."
    rules: str
    "Rules of [[decoders]] as JSON."
    home: str


def warm_up(batches: Iterable[pa.RecordBatch], log: str) -> Iterator[pa.RecordBatch]:
    """Pass rows on in a worker that has loaded what tasks need, and wait for the other workers.

    A task that ended at once would leave its worker to the next task of the same job.
    """
    _load_kernels(log)
    time.sleep(WARM_UP_SECONDS)
    yield from batches


_warmed: set[str] = set()
"Logs of which this worker has made tables."


def _load_kernels(path: str) -> None:
    """Load all kernels by making tables of a few samples in a folder that is removed again."""
    if path in _warmed:
        return
    with suppress(ZError, OSError), TemporaryDirectory(prefix="zenlake-") as folder:
        log = _open_log(path)
        for number in log.partitions()[:1]:
            first = log.first(number)
            waiting = {number: log.mark(number).offset}
            limits = WARM_UP_ROWS, WARM_UP_BYTES
            end = plan.batch_end(log, {number: first}, waiting, *limits)[number]
            if first < end:
                _warmed.add(path)  # Also if it fails: a task that matters says why.
                part = LogRange(log.id, number, first, end)
                nothing: dict[str, dict[int, int]] = {name: {} for name in PROJECTIONS}
                write_range(part, TableJob(path, folder, nothing, "warm-up", "[]", folder))


def write_ranges(batches: Iterable[pa.RecordBatch], job: TableJob) -> Iterator[pa.RecordBatch]:
    """Write the tables' part of every range; yield one pickled RangeOutput per range."""
    for batch in batches:
        for packed in batch.column(0).to_pylist():
            written = write_range(pickle.loads(packed), job)
            yield pa.record_batch({"output": pa.array([pickle.dumps(written)], pa.binary())})


def write_range(part: LogRange, job: TableJob) -> RangeOutput:
    """Write the part of a range that tables do not have yet."""
    log = _open_log(job.log)
    if log.id != part.log:
        raise plan.AnotherLog(
            f"{log.path} holds log {log.id}, and log {part.log} was planned: it was recreated "
            "meanwhile, or an executor sees another folder there than the driver"
        )
    plan.require_available(log, part.partition, part.start, part.end, True)
    outputs = [
        _write_tables(log, part, begin, names, job)
        for begin, names in _group_by_start(part, job.positions).items()
    ]
    return RangeOutput(part.partition, part.start, part.end, outputs)


def _group_by_start(
    part: LogRange, positions: Mapping[str, Mapping[int, int]]
) -> dict[int, list[str]]:
    """Return by first offset the tables that need the range from there on.

    That is one group, unless tables differ in how far they are: a new one, or after a crash.
    """
    groups: dict[int, list[str]] = {}
    for name, offsets in positions.items():
        begin = max(part.start, offsets.get(part.partition, 0))
        if begin < part.end:
            groups.setdefault(begin, []).append(name)
    return groups


def _write_tables(
    log: Log, part: LogRange, begin: int, names: list[str], job: TableJob
) -> TaskOutput:
    losses: Literal[False, True, "only"] = LOSS.name in names
    if names == [LOSS.name]:
        losses = "only"  # Blocks without losses are not read.
    columns = SAMPLES_AND_LOSSES if losses else SAMPLES
    marker = DuplicateMarker("mark", part.repeats, part.start, part.end, losses=losses is True)
    stores = {name: DeltaStore(Path(job.tables) / name, TABLES[name]) for name in names}
    decoder = MessageDecoder.load(job.rules, job.home)
    writer = TableWriter(stores, job.staging, decode=decoder.decode, finds_ranges=False)
    for batch in Reader(log, part.partition).batches(
        begin,
        part.end,
        columns=marker.columns_to_read(columns.names),
        max_rows=BATCH_ROWS,
        max_bytes=BATCH_BYTES,
        losses=losses,
    ):
        writer.add(conform(marker.apply(batch), columns))
    return writer.finish()


@lru_cache(maxsize=4)
def _open_log(path: str) -> Log:
    return Log(path)
