"""The built-in tables that one query fills together, range by range of the log.

Knows how far each table has come and what it must not skip. Does not know Spark; a table's own
offsets, not a checkpoint, say which rows it has.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from zenlake.errors import ZError
from zenlake.lake.tables.commit import LOG_APP, OffsetsPresent, RangeBatch, check_log
from zenlake.lake.tables.definitions import DECODED, LATEST, SAMPLES, TABLES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.projections import TaskOutput, commit_table, unstage
from zenlake.lake.tables.record import TableRecord, TableRemoved
from zenlake.log.read.log import Log

SETTLE_SECONDS = 60.0  # Longest time for which a table without new rows records no offsets.
COMMIT_THREADS = 4  # Tables that are committed at the same time.
PROMPT = frozenset({SAMPLES.name, LATEST.name})
"Tables that record offsets with every batch: `serve` reads the log from there on."

Offsets = Mapping[int, int]
"Next offset of each log partition."


class MissingRange(ZError):
    """Batch that starts behind the offset that a table needs next."""


@dataclass
class RangeOutput:
    """Files that one task wrote for offsets `start` to `end` (exclusive) of a log partition."""

    partition: int
    start: int
    end: int
    outputs: list[TaskOutput] = field(default_factory=list)


def check_log_end(store: DeltaStore, log: Log) -> None:
    """Raise ZError if a table has offsets that the log has not reached: it is an older copy."""
    known = log.partitions()
    for number, at in store.offsets().items():
        if number in known and at > max(log.first(number), log.mark(number).offset):
            raise ZError(
                f"{store.path} has partition {number} of the log up to offset {at - 1}, and the "
                f"log {log.path} ends at {log.mark(number).offset - 1}: it is an older copy. Put "
                f"the newer log back, or fill the table again from what this log has: zenlake "
                f"lake reset LAKE {store.path.name}"
            )


class TableSet:
    """Built-in tables in a folder, with their progress.

    `commit` is called by the thread of the query; any thread may call `positions`, `recorded` and
    `close`.

    TableRemoved: a table that `record` names is gone.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        log: Log,
        record: TableRecord,
        *,
        taken: Mapping[str, Offsets] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`taken` has by table the offsets that flows on the disk have taken, if it is known."""
        self.stores = {name: DeltaStore(folder / name, TABLES[name]) for name in names}
        self._log = log
        self._record = record
        self._clock = clock
        known = record.names()
        for name, store in self.stores.items():
            if name in known and not store.offsets():
                raise TableRemoved(store.path)
            check_log(store, log.id)
        self._positions: dict[str, dict[int, int]] = {
            name: store.offsets() for name, store in self.stores.items()
        }
        for name, offsets in self._positions.items():
            if self.stores[name].transaction(LOG_APP) is None:  # Filled by another flow so far.
                offsets |= self._trimmed_offsets(offsets, taken.get(name, {}))
        self._recorded = self.positions()
        self._versions = {name: store.snapshot().version for name, store in self.stores.items()}
        self._committed_at = dict.fromkeys(names, -SETTLE_SECONDS)
        self._failed = False
        self._closed = False
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(COMMIT_THREADS, "zenlake commit")

    def close(self, *, records: bool = True) -> None:
        """Record how far all tables have come, unless a commit has failed; end the threads.

        Without `records` nothing is written.
        """
        with self._lock:
            self._closed = True
        try:
            if records and not self._failed:
                behind = [
                    name
                    for name, store in self.stores.items()
                    if self._positions[name] != store.offsets()
                ]
                self._run(behind, self.positions())
        finally:
            self._threads.shutdown()

    # ---- progress

    def positions(self) -> dict[str, dict[int, int]]:
        """Return by table the next offset of each log partition that it does not have."""
        return {name: dict(offsets) for name, offsets in self._positions.items()}

    def recorded(self) -> dict[str, dict[int, int]]:
        """Return by table the offsets that it has recorded: a new process starts there."""
        return dict(self._recorded)

    def start(self) -> dict[int, int]:
        """Return the offsets at which a query has to start so that no table misses a row.

        ZError: the log no longer has rows that a table needs, or ends before rows that it has.
        A partition that the log lacks counts for nothing: if it comes back, the tables go on there.
        """
        for store in self.stores.values():
            check_log_end(store, self._log)
        return {number: self._first_needed(number) for number in self._log.partitions()}

    def _trimmed_offsets(self, offsets: Offsets, taken: Offsets) -> dict[int, int]:
        """Return where the log starts, where a flow has taken all rows before and there were none.

        A flow that is not the query of this set records the offset of the last row of a table; the
        log may have been trimmed behind it.
        """
        firsts = {n: self._log.first(n) for n in self._log.partitions() if n in offsets}
        return {n: at for n, at in firsts.items() if offsets[n] < at <= taken.get(n, 0)}

    def _first_needed(self, number: int) -> int:
        first = self._log.first(number)
        needed = []
        for name, offsets in self._positions.items():
            at = offsets.get(number, first)
            if at < first:
                raise ZError(
                    f"{self.stores[name].path} has partition {number} of the log up to offset "
                    f"{at - 1}, and the log {self._log.path} starts at {first}: rows between "
                    f"them are gone (an older copy of the table? log trimmed by hand?). Put the "
                    f"newer table or the older log back, or fill the table again from what the "
                    f"log has: zenlake lake reset LAKE {name}"
                )
            needed.append(at)
        return min(needed, default=first)

    # ---- a batch

    def commit(self, tasks: Sequence[RangeOutput]) -> None:
        """Commit the output of all tasks of a batch to each table that does not have it yet.

        A table whose commit fails stops no other one. The error is raised at the end: the batch
        runs again.
        """
        with self._lock:
            if self._closed:
                raise ZError("the query has ended: the batch runs again")
            self._failed = True  # Until all is well.
        ranges = _join_ranges(tasks)
        self._check_continuity(ranges)
        outputs = [output for task in tasks for output in task.outputs]
        reached = self.positions()
        for held in reached.values():
            for number, (_, end) in ranges.items():
                held[number] = max(end, held.get(number, 0))
        self._run(self._to_commit(outputs), reached, outputs)
        self._positions = reached
        self._failed = False
        unstage(outputs)
        self._record.replace(self.stores)

    def _to_commit(self, outputs: Sequence[TaskOutput]) -> list[str]:
        """Return the tables that have new rows or whose offsets have to be recorded now."""
        now = self._clock()
        due = {
            name
            for name in self.stores
            if name in PROMPT
            or now - self._committed_at[name] >= SETTLE_SECONDS
            or any(name in output.added or name in output.staged for output in outputs)
        }
        if due.intersection(DECODED):  # One that lags would be decoded by other rules one day.
            due.update(DECODED)
        return [name for name in self.stores if name in due]

    def _run(
        self,
        names: Iterable[str],
        reached: Mapping[str, Offsets],
        outputs: Sequence[TaskOutput] = (),
    ) -> None:
        """Commit to several tables at once; raise the first error when all have ended."""
        running = [
            self._threads.submit(self._commit_one, name, reached[name], outputs) for name in names
        ]
        errors = [error for future in running if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _commit_one(self, name: str, reached: Offsets, outputs: Sequence[TaskOutput]) -> None:
        store = self.stores[name]
        present = store.offsets()
        ranges = {number: (present.get(number, 0), end) for number, end in reached.items()}
        if ranges:
            commit_table(store, outputs, RangeBatch(ranges, present, self._log.id))
            self._versions[name] = store.current.version
            self._recorded[name] = store.offsets()
            self._committed_at[name] = self._clock()

    def _check_continuity(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Raise unless every table can take these ranges, each offset once and none left out."""
        for name, store in self.stores.items():
            if store.snapshot().version < self._versions[name]:
                raise TableRemoved(store.path)
            if any(at > self._positions[name].get(n, 0) for n, at in store.offsets().items()):
                raise OffsetsPresent(
                    f"{store.path}: another process writes this table: stop it. Nothing was "
                    "committed, the batch runs again"
                )
            for number, (begin, _) in ranges.items():
                held = self._positions[name].get(number)
                if begin > (self._log.first(number) if held is None else held):
                    raise MissingRange(
                        f"{store.path}: the batch starts at offset {begin} of partition {number}, "
                        f"and the table has it up to {(held or 0) - 1}: a checkpoint is newer than "
                        f"the table. Put the newer table back, or fill it again: "
                        f"zenlake lake reset LAKE {name}"
                    )


def _join_ranges(tasks: Iterable[RangeOutput]) -> dict[int, tuple[int, int]]:
    """Return the range of each partition that the tasks cover together.

    >>> _join_ranges([RangeOutput(0, 5, 9), RangeOutput(0, 0, 5), RangeOutput(1, 3, 4)])
    {0: (0, 9), 1: (3, 4)}
    """
    ranges: dict[int, tuple[int, int]] = {}
    for task in sorted(tasks, key=lambda task: (task.partition, task.start)):
        begin, _ = ranges.get(task.partition, (task.start, 0))
        ranges[task.partition] = begin, task.end
    return ranges
