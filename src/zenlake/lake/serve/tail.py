"""Tail of the log: rows that are durable in the log and not yet in a table.

Knows the log and the next offsets of a table. Caches the rows it has read, up to a limit, so that
the next query reads only new ones.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from zenlake.errors import ZError
from zenlake.lake.tables import reduce
from zenlake.lake.tables.schema import HLC, SAMPLE
from zenlake.log.read.log import Log, OffsetOutOfRange
from zenlake.log.read.reader import Reader

MAX_ROWS = 200_000  # Upper bound on cached rows; a longer tail is read for each query.
MAX_BYTES = 128 << 20  # Upper bound on cached bytes.
FOLD_ROWS = 65_536  # Rows read between two folds of the cache.
TRIES = 3  # Attempts per range when retention removes segments meanwhile.

COLUMNS = (
    *("key", "kind", "payload", "encoding", "schema", "timestamp", "source", "attachment"),
    *("received_at", "partition", "offset"),
)
ROW = pa.schema(
    [
        pa.field("key", pa.dictionary(pa.int32(), pa.string())),
        *(SAMPLE.field(name) for name in COLUMNS[1:]),
    ]
)
"Columns of a row of the tail besides its `hlc`: those of a sample without its QoS."

Offsets = Mapping[int, int]


def rows_from_log(batch: pa.RecordBatch) -> pa.Table:
    """Return a record batch of a log reader, with COLUMNS, as rows of the tail."""
    return reduce.conform(batch, ROW).append_column(HLC, reduce.compute_hlc(batch))


class OffsetRange(NamedTuple):
    """Offsets of a partition from `start` to before `end`."""

    partition: int
    start: int
    end: int


class Tail:
    """Rows of the log after a table, for any number of threads.

    With `fold` only the newest row of each key is cached, be it a put or a delete.
    """

    def __init__(self, log: Path, *, fold: bool, counters: "Counter[str]") -> None:
        self.path = log
        self._fold = fold
        self._counters = counters
        self._lock = threading.Lock()
        self._log: Log | None = None
        self._cached: list[pa.Table] = []
        self._read_up_to: dict[int, int] = {}
        "Next offset of each partition that is not in the cache."
        self._base: Offsets = {}
        "First offset of each partition that the cache covers."

    def rows(self, base: Offsets, key_expr: str) -> Iterator[pa.Table]:
        """Yield all rows from the offsets `base` on; rows that do not match may be left out."""
        with self._lock:
            log = self._open_log()
            if log is None:
                return
            cached = self._update_cache(log, base)
            ranges = [] if cached is not None else self._tail_ranges(log, base)
        if cached is not None:
            yield from cached
            return
        self._counters["tails read for one question"] += 1
        yield from self._read(ranges, key_expr)

    def _open_log(self) -> Log | None:
        """Return the log; None if nothing was recorded yet."""
        if self._log is None:
            with suppress(ZError):
                self._log = Log(self.path)
        return self._log

    def _tail_ranges(self, log: Log, base: Offsets) -> list[OffsetRange]:
        return [
            OffsetRange(
                number, max(base.get(number, 0), log.first(number)), log.mark(number).offset
            )
            for number in log.partitions()
        ]

    # ---- the cache

    def _update_cache(self, log: Log, base: Offsets) -> list[pa.Table] | None:
        """Bring the cache up to date and return its rows; None if the tail exceeds the limits."""
        self._move_base(base)
        ranges = [
            OffsetRange(number, max(start, self._read_up_to.get(number, 0)), end)
            for number, start, end in self._tail_ranges(log, base)
        ]
        if self._would_overflow(ranges) or not self._append_ranges(ranges):
            self._clear()
            return None
        self._read_up_to = {part.partition: max(part.start, part.end) for part in ranges}
        return list(self._cached)

    def _move_base(self, base: Offsets) -> None:
        """Drop cached rows before `base`; drop all if the table was replaced by an older one."""
        if any(base.get(number, 0) < start for number, start in self._base.items()):
            self._clear()
        self._base = dict(base)
        remaining = (_drop_before(rows, base) for rows in self._cached)
        self._cached = [rows for rows in remaining if rows.num_rows]

    def _would_overflow(self, ranges: list[OffsetRange]) -> bool:
        """Tell whether unread rows exceed MAX_ROWS; folding may reduce any number of rows."""
        unread = sum(max(0, part.end - part.start) for part in ranges)
        return not self._fold and self._count() + unread > MAX_ROWS

    def _append_ranges(self, ranges: list[OffsetRange]) -> bool:
        """Read ranges into the cache, folding it as needed; return False beyond the limits."""
        count = self._count()
        for rows in self._read([part for part in ranges if part.end > part.start], None):
            self._cached.append(rows)
            count += rows.num_rows
            if self._fold and count > FOLD_ROWS + self._cached[0].num_rows:
                self._fold_cache()
                count = self._count()
            if count > MAX_ROWS or sum(rows.nbytes for rows in self._cached) > MAX_BYTES:
                return False
        if self._fold and len(self._cached) > 1:
            self._fold_cache()
        return True

    def _fold_cache(self) -> None:
        self._cached = [reduce.keep_newest(pa.concat_tables(self._cached).unify_dictionaries())]

    def _count(self) -> int:
        return sum(rows.num_rows for rows in self._cached)

    def _clear(self) -> None:
        self._cached, self._read_up_to = [], {}

    # ---- the log

    def _read(self, ranges: list[OffsetRange], key_expr: str | None) -> Iterator[pa.Table]:
        log = Log(self.path)
        for part in ranges:
            start = part.start
            for attempt in range(TRIES):
                reader = Reader(log, part.partition)
                try:
                    for batch in reader.batches(
                        start, part.end, key_expr=key_expr, columns=COLUMNS, on_damage="skip"
                    ):
                        start = batch.column("offset")[-1].as_py() + 1
                        yield rows_from_log(batch)
                except OffsetOutOfRange:  # Retention has removed the first rows of the range.
                    if attempt + 1 == TRIES:
                        raise
                    start = max(start, min(log.first(part.partition), part.end))
                    continue
                finally:
                    if reader.skipped:
                        self._counters["damaged places passed over"] += len(reader.skipped)
                break


def _drop_before(rows: pa.Table, base: Offsets) -> pa.Table:
    """Return the rows that are not before the offsets `base`."""
    keep = None
    for partition, start in base.items():
        below = pc.and_(
            pc.equal(rows.column("partition"), pa.scalar(partition, pa.int32())),
            pc.less(rows.column("offset"), start),
        )
        keep = pc.invert(below) if keep is None else pc.and_not(keep, below)
    if keep is None or pc.all(keep).as_py() is not False:
        return rows
    return rows.filter(keep)
