"""A log as a table and as a stream of Spark: ranges of offsets are planned, tasks decode them.

Knows options, offsets and Spark's calls. Planning reads block headers only, unless duplicates are
looked for; else the scan and Arrow load in `read`, on an executor, and the network for a recorder.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from zenlake.errors import ZError
from zenlake.log.read.log import Log
from zenlake.spark import offsets as plan
from zenlake.spark.offsets import Offsets, PerPartition
from zenlake.spark.options import Options

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from zenlake.spark.duplicates import Duplicates
    from zenlake.spark.embedded_recorder import EmbeddedRecorder

MAX_ROWS = 50_000  # of one record batch: the best measured
MAX_BYTES = 8 << 20
NEVER = 1 << 62  # nanoseconds: no sample is received later
LOSSES: dict[str, Literal[False, True, "only"]] = {"false": False, "true": True, "only": "only"}

QUERY = (
    *("startName", "path", "keyExpr", "columns", "includeLoss", "duplicates"),
    *("startingOffsets", "startingTimestamp", "connect", "key", "recorderPartition"),
)
"The options that tell one query from another, as far as its start is concerned."

_log = logging.getLogger(__name__)


@dataclass
class LogRange(InputPartition):
    """What one task reads: samples `start` to `end` (not included) of a partition."""

    log: str
    partition: int
    start: int
    end: int
    repeats: bytes = field(default=b"", repr=False)
    "Which of them came before (duplicates.packed)."


class LogReader(DataSourceReader):
    """`spark.read.format("zenoh")` of a log. What is there when it is planned is what is read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require("path")
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        log = Log(options["path"])
        start = plan.resolve_offsets(log, options["startingOffsets"], "earliest")
        end = plan.resolve_offsets(log, options["endingOffsets"], "latest")
        ranges = {partition: (start[partition], end[partition]) for partition in start}
        return _tasks(log, ranges, options, _duplicates(options, keeps=False))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _rows(self._options, self._schema, partition)

    def __repr__(self) -> str:
        return f"LogReader({self._options!r})"


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("zenoh")` of a log, which a recorder of its own may write.

    Spark keeps one of these for the run of a query; copies of it plan and read, and start nothing.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require("path")
        self._options = options
        self._schema = schema
        self._opened: Log | None = None
        self._embedded: EmbeddedRecorder | None = None
        self._until: PerPartition | None = None
        self._duplicates: Duplicates | None = None
        self._skipped: dict[int, int] = {}
        "Rows of each partition that are gone,"
        self._counted: dict[int, int] = {}
        "and up to which offset they were counted: batches may be planned more than once."

    def __reduce__(self) -> tuple[Any, ...]:
        return LogStreamReader, (self._options, self._schema)

    # ---- where

    def initialOffset(self) -> dict[str, Any]:
        log, options = self._here(), self._options
        time = _nanoseconds(options["startingTimestamp"])

        def resolve() -> dict[int, int]:
            if time is not None:
                return {one: log.offset_at(one, time) for one in log.partitions()}
            return plan.resolve_offsets(log, options["startingOffsets"], "earliest")

        moves = time is not None or options["startingOffsets"] == "latest"
        start = plan.remembered_start(log, self._name(), resolve) if moves else resolve()
        return Offsets(log.id, start, start).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        log = self._here()
        at = Offsets.from_json(start, log)
        end = {**at.partitions, **(self._until or plan.available(log))}
        begin = {
            partition: self._begin(log, partition, at.partitions.get(partition, 0), end[partition])
            for partition in end
        }
        reached = plan.batch_end(log, begin, end, *self._limits(limit))
        if reached == at.partitions:
            return start
        for partition, until in reached.items():
            self._pass_over(log, partition, at.partitions.get(partition, 0), until)
        return at.moved(reached).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        """For progress reports: where the log ends, and what was passed over so far."""
        log = self._here()
        found = Offsets(log.id, plan.available(log)).to_json()
        passed = {str(one): self._skipped[one] for one in sorted(self._skipped)}
        return {**found, "skipped": passed} if passed else found

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = plan.available(self._here())

    # ---- how much

    def getDefaultReadLimit(self) -> ReadLimit:
        rows, size = self._options["maxRowsPerTrigger"], self._options["maxBytesPerTrigger"]
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Rows and bytes of a batch: Spark has one limit at a time, and we may have two."""
        if isinstance(limit, ReadAllAvailable):  # Trigger.Once means it
            return None, None
        rows = [self._options["maxRowsPerTrigger"]]
        size = [self._options["maxBytesPerTrigger"]]
        if isinstance(limit, ReadMaxRows):
            rows.append(limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            size.append(limit.max_bytes)
        return _least(rows), _least(size)

    # ---- what

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        log = self._here()
        until = Offsets.from_json(end, log)
        begin = Offsets.from_json(start, log).until(until)
        ranges = {one: (begin.get(one, 0), until.partitions[one]) for one in until.partitions}
        for partition, (asked, stop) in ranges.items():
            self._pass_over(log, partition, asked, stop)
        if self._duplicates is None:
            self._duplicates = _duplicates(self._options, keeps=True)
        return _tasks(log, ranges, self._options, self._duplicates)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _rows(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has a batch behind it: it will not ask again where the first one started."""
        plan.forget(self._here(), self._name())

    def stop(self) -> None:
        embedded, self._embedded = self._embedded, None
        if embedded is not None:
            embedded.close()

    # ---- the log

    def _here(self) -> Log:
        if self._embedded is None and (self._options["connect"] or self._options["config"]):
            from zenlake.spark.embedded_recorder import EmbeddedRecorder

            self._embedded = EmbeddedRecorder(self._options)
        if self._embedded is not None:
            self._embedded.check()
        if self._opened is None:
            self._opened = Log(self._options["path"])
        return self._opened

    def _pass_over(self, log: Log, partition: int, begin: int, end: int) -> None:
        """Counts what a batch has to do without, if it may."""
        begin = max(begin, self._counted.get(partition, 0))
        if self._options["failOnDataLoss"] or begin >= end:
            return
        self._counted[partition] = end
        gone = plan.missing_rows(log, partition, begin, end)
        if gone:
            self._skipped[partition] = self._skipped.get(partition, 0) + gone

    def _begin(self, log: Log, partition: int, begin: int, end: int) -> int:
        fail = self._options["failOnDataLoss"]
        return plan.require_available(log, partition, begin, end, fail)

    def _name(self) -> str:
        """Of the file that keeps the start. The same after a restart of the same query."""
        told = {name: str(self._options.values.get(name)) for name in QUERY}
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[: plan.NAME_DIGITS]

    def __repr__(self) -> str:
        return f"LogStreamReader({self._options!r})"


def _least(limits: list[int | None]) -> int | None:
    return min((one for one in limits if one is not None), default=None)


def _nanoseconds(microseconds: int | None) -> int | None:
    return None if microseconds is None else microseconds * 1000


def _duplicates(options: Options, keeps: bool) -> "Duplicates | None":
    """Whoever finds them, if somebody wants to know."""
    if options["duplicates"] == "keep" or options["includeLoss"] == "only":
        return None
    from zenlake.spark.duplicates import Duplicates

    return Duplicates(options["duplicatesWithin"], keeps)


def _tasks(
    log: Log,
    ranges: dict[int, tuple[int, int]],
    options: Options,
    duplicates: "Duplicates | None",
) -> list[InputPartition]:
    """The ranges of partitions, cut into tasks."""
    fail = options["failOnDataLoss"]
    times = _times(options)
    spans = dict(ranges)
    found: list[tuple[int, int, int, Any]] = []
    for partition, (asked, end) in sorted(ranges.items()):
        if asked > end:
            raise ZError(
                f"partition {partition} of the log {log.path}: the range starts at offset {asked} "
                f"and ends at {end}: see startingOffsets and endingOffsets"
            )
        if asked == end:
            continue
        begin = plan.require_available(log, partition, asked, end, fail)
        blocks = log.blocks(partition, begin, end)
        gone = 0 if fail else plan.missing_rows(log, partition, asked, end)
        if gone:
            _log.warning("%s: %d rows of partition %d are gone", log.path, gone, partition)
        if times is not None:
            inside = (blocks["last_time"] >= times[0]) & (blocks["first_time"] < times[1])
            if not inside.any():
                spans[partition] = (asked, asked)
                continue
            blocks = blocks[inside]
            begin = max(begin, int(blocks["base"][0]))
            end = min(end, int(blocks["base"][-1]) + int(blocks["samples"][-1]))
        if options["includeLoss"] == "only":
            blocks = blocks[blocks["losses"] > 0]
            if not len(blocks) and not log.damage(partition, begin, end):
                continue
        spans[partition] = (begin, end)
        found.append((partition, begin, end, blocks))
    rows = sum(end - begin for _, begin, end, _ in found)
    wanted = options["minPartitions"] or 1
    tasks = [
        LogRange(log.id, partition, *piece)
        for partition, begin, end, blocks in found
        for piece in plan.split_range(blocks, begin, end, -(-wanted * (end - begin) // rows))
    ]
    if duplicates is not None:
        _mark(tasks, duplicates.repeats(log, spans, fail))
    return list(tasks)


def _mark(tasks: list[LogRange], repeats: "dict[int, npt.NDArray[np.int64]]") -> None:
    """Tell each task which of its samples came before."""
    from zenlake.spark.duplicates import packed

    for task in tasks:
        if task.partition in repeats:
            task.repeats = packed(repeats[task.partition], task.start, task.end)


def _times(options: Options) -> tuple[int, int] | None:
    """Of a batch: what was received when. A stream uses its time to find its first offset only."""
    if "endingTimestamp" not in options.values:
        return None
    low = _nanoseconds(options["startingTimestamp"])
    high = _nanoseconds(options["endingTimestamp"])
    if low is None and high is None:
        return None
    return low or 0, NEVER if high is None else high


def _rows(
    options: Options, schema: StructType, partition: InputPartition
) -> "Iterator[pa.RecordBatch]":
    if not isinstance(partition, LogRange):
        return  # what Spark makes of a plan without tasks
    from zenlake.log.read.reader import Reader
    from zenlake.spark import schema as spark_schema
    from zenlake.spark.duplicates import DuplicateMarker

    log = Log(options["path"])
    if log.id != partition.log:
        raise plan.AnotherLog(
            f"{log.path} holds log {log.id}, and log {partition.log} was planned: it was made anew "
            "meanwhile, or an executor sees another folder there than the driver"
        )
    start, end = _times(options) or (None, None)
    fail = options["failOnDataLoss"]
    reader = Reader(log, partition.partition)
    marks = DuplicateMarker(
        options["duplicates"],
        partition.repeats,
        partition.start,
        partition.end,
        losses=options["includeLoss"] == "true",
    )
    for batch in reader.batches(
        plan.require_available(log, partition.partition, partition.start, partition.end, fail),
        partition.end,
        start_time=start,
        end_time=end,
        key_expr=options["keyExpr"],
        columns=marks.needed(schema.names),
        max_rows=MAX_ROWS,
        max_bytes=MAX_BYTES,
        losses=LOSSES[options["includeLoss"]],
        on_damage="raise" if fail else "skip",
        plain=True,
    ):
        yield from spark_schema.batches(marks.on(batch), schema)
    for damage in reader.skipped:
        _log.warning("%s: passed over: %s", log.path, damage)
