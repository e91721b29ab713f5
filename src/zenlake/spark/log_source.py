"""A log as a Spark table and as a Spark stream: the driver plans ranges of offsets, tasks decode.

Knows options, offsets and Spark's calls. Planning reads block headers only, unless it looks for
duplicates. The scan and Arrow load in `read`, on executors; the network only for a recorder.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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

    from zenlake.spark.duplicates import DuplicateFinder
    from zenlake.spark.embedded_recorder import EmbeddedRecorder

MAX_ROWS = 50_000  # Rows per record batch: the fastest size measured.
MAX_BYTES = 8 << 20  # Bytes per record batch.
NEVER = 1 << 62  # Nanoseconds: later than the reception of any sample.
LOSSES: dict[str, Literal[False, True, "only"]] = {"false": False, "true": True, "only": "only"}

START_OPTIONS = (
    *("startName", "path", "keyExpr", "columns", "includeLoss", "duplicates"),
    *("startingOffsets", "startingTimestamp", "connect", "key", "recorderPartition"),
)
"The options that identify a query whose start is remembered."

_log = logging.getLogger(__name__)


@dataclass
class LogRange(InputPartition):
    """The samples that one task reads: offsets `start` to `end` (exclusive) of a partition."""

    log: str
    partition: int
    start: int
    end: int
    repeats: bytes = field(default=b"", repr=False)
    "Which of them are repeats (see duplicates.pack_offsets)."


class _LogRows:
    """Common part of the batch reader and the stream reader: a task's rows."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require("path")
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one task as record batches in Spark's form."""
        if not isinstance(partition, LogRange):
            return  # Spark's own placeholder for a plan without tasks.
        from zenlake.log.read.reader import Reader
        from zenlake.spark import schema as spark_schema
        from zenlake.spark.duplicates import DuplicateMarker

        options, log = self._options, Log(self._options["path"])
        if log.id != partition.log:
            raise plan.AnotherLog(
                f"{log.path} holds log {log.id}, and log {partition.log} was planned: it was "
                "recreated meanwhile, or an executor sees another folder there than the driver"
            )
        start, end = _time_range(options) or (None, None)
        fail = options["failOnDataLoss"]
        reader = Reader(log, partition.partition)
        marker = DuplicateMarker(
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
            columns=marker.columns_to_read(self._schema.names),
            max_rows=MAX_ROWS,
            max_bytes=MAX_BYTES,
            losses=LOSSES[options["includeLoss"]],
            on_damage="raise" if fail else "skip",
        ):
            yield from spark_schema.to_spark_batches(marker.apply(batch), self._schema)
        for damage in reader.skipped:
            _log.warning("%s: skipped: %s", log.path, damage)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options!r})"


class LogReader(_LogRows, DataSourceReader):
    """Reader of `spark.read.format("zenoh")` on a log: the samples durable when it is planned."""

    def partitions(self) -> list[InputPartition]:
        options = self._options
        log = Log(options["path"])
        start = plan.resolve_offsets(log, options["startingOffsets"], "earliest")
        end = plan.resolve_offsets(log, options["endingOffsets"], "latest")
        ranges = {partition: (start[partition], end[partition]) for partition in start}
        finder = _duplicate_finder(options)
        return _plan_tasks(log, ranges, options, finder, options["minPartitions"] or 1)


class LogStreamReader(_LogRows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of `spark.readStream.format("zenoh")` on a log, with or without its own recorder.

    Spark keeps one reader for the run of a query. Pickled copies of it plan and read, but start no
    recorder.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._log: Log | None = None
        self._recorder: EmbeddedRecorder | None = None
        self._final_end: PerPartition | None = None
        "Where the query ends (Trigger.AvailableNow); None if it has no end."
        self._finder: DuplicateFinder | None = None
        self._skipped: dict[int, int] = {}
        "Count of missing rows that were skipped, by partition."
        self._planner = _Aside()
        self._counted: dict[int, int] = {}
        "Offset up to which `_skipped` counts, by partition: Spark may plan a batch more than once."

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._options, self._schema)

    # ---- offsets

    def initialOffset(self) -> dict[str, Any]:
        log, options = self._open_log(), self._options
        time = _nanoseconds(options["startingTimestamp"])

        def resolve() -> dict[int, int]:
            if time is not None:
                return {partition: log.offset_at(partition, time) for partition in log.partitions()}
            return plan.resolve_offsets(log, options["startingOffsets"], "earliest")

        moves = time is not None or options["startingOffsets"] == "latest"
        start = plan.remembered_start(log, self._start_name(), resolve) if moves else resolve()
        return Offsets(log.id, start, start).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        log = self._open_log()
        at = Offsets.from_json(start, log)
        end = {**at.partitions, **(self._final_end or plan.durable_ends(log))}
        fail = self._options["failOnDataLoss"]
        begin = {
            partition: plan.require_available(
                log, partition, at.partitions.get(partition, 0), stop, fail
            )
            for partition, stop in end.items()
        }
        reached = self._batch_end(log, begin, end, limit)
        if reached == at.partitions:
            return start
        for partition, stop in reached.items():
            self._count_skipped(log, partition, at.partitions.get(partition, 0), stop)
        return at.advance_to(reached).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return for progress reports where the log ends, and how many rows were skipped so far."""
        log = self._open_log()
        report = Offsets(log.id, plan.durable_ends(log)).to_json()
        if self._skipped:
            counts = sorted(self._skipped.items())
            report["skipped"] = {str(partition): count for partition, count in counts}
        return report

    def prepareForTriggerAvailableNow(self) -> None:
        self._final_end = plan.durable_ends(self._open_log())

    # ---- limits of a batch

    def getDefaultReadLimit(self) -> ReadLimit:
        rows, size = self._options["maxRowsPerTrigger"], self._options["maxBytesPerTrigger"]
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def _batch_end(
        self, log: Log, begin: PerPartition, end: PerPartition, limit: ReadLimit
    ) -> PerPartition:
        """Return where a batch from `begin` on ends, at `end` at the latest.

        It does not go across one of `batchEnds`: which of two copies of a sample is the repeat
        depends on where batches end. A table that has offsets up to there took the rows of a batch
        that ended there.
        """
        reached = plan.batch_end(log, begin, end, *self._limits(limit))
        return plan.stop_before(begin, reached, self._options["batchEnds"])

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Return the limits of a batch in rows and bytes, from the options and Spark's `limit`."""
        if isinstance(limit, ReadAllAvailable):  # Trigger.Once reads everything.
            return None, None
        rows = [self._options["maxRowsPerTrigger"]]
        size = [self._options["maxBytesPerTrigger"]]
        if isinstance(limit, ReadMaxRows):
            rows.append(limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            size.append(limit.max_bytes)
        return _smallest(rows), _smallest(size)

    # ---- reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        log = self._open_log()
        ends = Offsets.from_json(end, log)
        begin = Offsets.from_json(start, log).batch_start(ends)
        ranges = {
            partition: (begin.get(partition, 0), stop)
            for partition, stop in ends.partitions.items()
        }
        for partition, (asked, stop) in ranges.items():
            self._count_skipped(log, partition, asked, stop)
        if self._finder is None:
            self._finder = _duplicate_finder(self._options)
        self._planner.wait()
        tasks = _plan_tasks(log, ranges, self._options, self._finder, self._wanted_tasks(ranges))
        if self._finder is not None:
            self._prepare_next(self._finder, log, ends.partitions)
        return tasks

    def _wanted_tasks(self, ranges: dict[int, tuple[int, int]]) -> int:
        """Return the least number of tasks that a batch is split into."""
        return self._options["minPartitions"] or 1

    def _prepare_next(self, finder: "DuplicateFinder", log: Log, begin: PerPartition) -> None:
        """Save the history of repeats, and find those of the next batch, while tasks run."""
        ranges = self._full_batch(log, begin)
        aside = Log(self._options["path"])  # Not the one that this thread goes on to use.

        def prepare() -> None:
            finder.save()
            if ranges is not None:
                finder.find(aside, ranges, self._options["failOnDataLoss"])
                finder.save()

        self._planner.submit(prepare)

    def _full_batch(self, log: Log, begin: PerPartition) -> dict[int, tuple[int, int]] | None:
        """Return the ranges of the next batch if it waits and is full.

        The end of any other one changes while more samples become durable.
        """
        end = {**begin, **(self._final_end or plan.durable_ends(log))}
        limit = self.getDefaultReadLimit()
        reached = self._batch_end(log, {**dict.fromkeys(end, 0), **begin}, end, limit)
        if reached == end or isinstance(limit, ReadAllAvailable):
            return None
        return {partition: (begin.get(partition, 0), stop) for partition, stop in reached.items()}

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the remembered start: after a batch Spark's checkpoint has it."""
        plan.forget_start(self._open_log(), self._start_name())

    def stop(self) -> None:
        self._planner.wait()
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()

    # ---- the log

    def _open_log(self) -> Log:
        """Return the log; start the recorder first if the options ask for one."""
        if self._recorder is None and (self._options["connect"] or self._options["config"]):
            from zenlake.spark.embedded_recorder import EmbeddedRecorder

            self._recorder = EmbeddedRecorder(self._options)
        if self._recorder is not None:
            self._recorder.check()
        if self._log is None:
            self._log = Log(self._options["path"])
        return self._log

    def _count_skipped(self, log: Log, partition: int, begin: int, end: int) -> None:
        """Add the missing rows of a range to `_skipped`, if the query may go on without them."""
        begin = max(begin, self._counted.get(partition, 0))
        if self._options["failOnDataLoss"] or begin >= end:
            return
        self._counted[partition] = end
        missing = plan.missing_rows(log, partition, begin, end)
        if missing:
            self._skipped[partition] = self._skipped.get(partition, 0) + missing

    def _start_name(self) -> str:
        """Return the name of the file that keeps the start; a restarted query has the same."""
        values = {name: str(self._options.values.get(name)) for name in START_OPTIONS}
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()[: plan.NAME_DIGITS]


class _Aside:
    """One call at a time on a thread of its own, whose failure is left to the next real call."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[[], object]) -> None:
        """Start `call`; the last one must have ended."""

        def run() -> None:
            try:
                call()
            except (ZError, OSError) as error:
                _log.debug("planning ahead failed, and is done again in its turn: %s", error)

        self._thread = threading.Thread(target=run, name="zenlake plan", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last call has ended."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()


def _smallest(limits: list[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _nanoseconds(microseconds: int | None) -> int | None:
    return None if microseconds is None else microseconds * 1000


# ---- planning


class _PlannedRange(NamedTuple):
    """Readable offsets of one partition, and the table of the blocks that hold them."""

    partition: int
    begin: int
    end: int
    blocks: Any


def _plan_tasks(
    log: Log,
    ranges: dict[int, tuple[int, int]],
    options: Options,
    finder: "DuplicateFinder | None",
    wanted: int,
) -> list[InputPartition]:
    """Plan at least `wanted` tasks that read `ranges` of partitions, each with its repeats."""
    fail, times = options["failOnDataLoss"], _time_range(options)
    planned: list[_PlannedRange] = []
    spans: dict[int, tuple[int, int]] = {}
    for partition, (asked, end) in sorted(ranges.items()):
        found = _readable_range(log, partition, asked, end, fail)
        if found is not None and times is not None:
            found = _limit_to_times(found, times)
        spans[partition] = (asked, asked) if found is None else (found.begin, found.end)
        if found is not None and options["includeLoss"] == "only":
            found = _limit_to_losses(found, log)
        if found is not None:
            planned.append(found)
    tasks = _split_into_tasks(log, planned, wanted)
    if finder is not None:
        _attach_repeats(tasks, finder.find(log, spans, fail))
    return list(tasks)


def _readable_range(
    log: Log, partition: int, asked: int, end: int, fail: bool
) -> _PlannedRange | None:
    """Return the part of a range that the log still has; None if that is empty.

    ZError: the range is reversed, or rows are missing and `fail` is True.
    """
    if asked > end:
        raise ZError(
            f"partition {partition} of the log {log.path}: the range starts at offset {asked} "
            f"and ends at {end}: see startingOffsets and endingOffsets"
        )
    if asked == end:
        return None
    begin = plan.require_available(log, partition, asked, end, fail)
    missing = 0 if fail else plan.missing_rows(log, partition, asked, end)
    if missing:
        _log.warning("%s: %d rows of partition %d are gone", log.path, missing, partition)
    if begin == end:
        return None
    return _PlannedRange(partition, begin, end, log.blocks(partition, begin, end))


def _limit_to_times(whole: _PlannedRange, times: tuple[int, int]) -> _PlannedRange | None:
    """Return the part of a range whose blocks may have samples received within `times`."""
    blocks = whole.blocks
    blocks = blocks[(blocks["last_time"] >= times[0]) & (blocks["first_time"] < times[1])]
    if not len(blocks):
        return None
    begin = max(whole.begin, int(blocks["base"][0]))
    end = min(whole.end, int(blocks["base"][-1]) + int(blocks["samples"][-1]))
    return _PlannedRange(whole.partition, begin, end, blocks)


def _limit_to_losses(whole: _PlannedRange, log: Log) -> _PlannedRange | None:
    """Return a range with only its blocks that record losses; None if it has no loss or damage."""
    blocks = whole.blocks[whole.blocks["losses"] > 0]
    if not len(blocks) and not log.damage(whole.partition, whole.begin, whole.end):
        return None
    return whole._replace(blocks=blocks)


def _split_into_tasks(log: Log, planned: list[_PlannedRange], wanted: int) -> list[LogRange]:
    """Split ranges into at least `wanted` tasks in all, in proportion to their rows."""
    rows = sum(part.end - part.begin for part in planned)
    return [
        LogRange(log.id, partition, *piece)
        for partition, begin, end, blocks in planned
        for piece in plan.split_range(blocks, begin, end, -(-wanted * (end - begin) // rows))
    ]


def _duplicate_finder(options: Options) -> "DuplicateFinder | None":
    """Return the duplicate finder, or None when `duplicates` is "keep" or only losses are read."""
    if options["duplicates"] == "keep" or options["includeLoss"] == "only":
        return None
    from zenlake.spark.duplicates import DuplicateFinder

    return DuplicateFinder(options["duplicatesWithin"])


def _attach_repeats(tasks: list[LogRange], repeats: "dict[int, npt.NDArray[np.int64]]") -> None:
    """Set in each task which of its samples are repeats."""
    from zenlake.spark.duplicates import pack_offsets

    for task in tasks:
        if task.partition in repeats:
            task.repeats = pack_offsets(repeats[task.partition], task.start, task.end)


def _time_range(options: Options) -> tuple[int, int] | None:
    """Return the reception times (ns) that a batch query is limited to; None: it has no limit.

    A stream has no such limit: it uses `startingTimestamp` to find its first offset only.
    """
    if "endingTimestamp" not in options.values:
        return None
    low = _nanoseconds(options["startingTimestamp"])
    high = _nanoseconds(options["endingTimestamp"])
    if low is None and high is None:
        return None
    return low or 0, NEVER if high is None else high
