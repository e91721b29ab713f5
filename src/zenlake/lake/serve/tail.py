"""The tail: what is durable in the log and not yet in a table, as rows of the table.

Knows the log, and how far a table is. Keeps what it has read, to a limit, so that the next
question reads only what is new.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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

MAX_ROWS = 200_000  # that are kept,
MAX_BYTES = 128 << 20  # and their bytes; what is more is read for each question
FOLD_ROWS = 65_536  # read between two folds
TRIES = 3  # when segments are removed meanwhile

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
"What a row of the tail is, besides its `hlc`: a sample without its QoS."

Offsets = Mapping[int, int]


def rows_from_log(batch: pa.RecordBatch) -> pa.Table:
    """A record batch of a log's reader, with COLUMNS, as rows."""
    return reduce.conform(batch, ROW).append_column(HLC, reduce.compute_hlc(batch))


class OffsetRange(NamedTuple):
    """Offsets of a partition: the first, and the one behind the last."""

    partition: int
    start: int
    end: int


class Tail:
    """Rows of the log behind a table, for any number of threads.

    `fold`: only the newest row of each key is kept (a delete is one, too).
    """

    def __init__(self, log: Path, *, fold: bool, counters: "Counter[str]") -> None:
        self.path = log
        self._fold = fold
        self._counters = counters
        self._lock = threading.Lock()
        self._log: Log | None = None
        self._kept: list[pa.Table] = []
        self._upto: dict[int, int] = {}
        "How far each partition has been read into what is kept,"
        self._base: Offsets = {}
        "and where that begins."

    def rows(self, base: Offsets, key_expr: str) -> Iterator[pa.Table]:
        """All rows at or behind `base`, at least those that `key_expr` matches."""
        with self._lock:
            log = self._opened()
            if log is None:
                return
            kept = self._known(log, base)
            ranges = [] if kept is not None else self._ranges(log, base)
        if kept is not None:
            yield from kept
            return
        self._counters["tails read for one question"] += 1
        yield from self._read(ranges, key_expr)

    def _opened(self) -> Log | None:
        """None: nothing was recorded yet."""
        if self._log is None:
            with suppress(ZError):
                self._log = Log(self.path)
        return self._log

    def _ranges(self, log: Log, base: Offsets) -> list[OffsetRange]:
        return [
            OffsetRange(one, max(base.get(one, 0), log.first(one)), log.mark(one).offset)
            for one in log.partitions()
        ]

    def _known(self, log: Log, base: Offsets) -> list[pa.Table] | None:
        """What is kept, brought up to date; None: it is too much."""
        if any(base.get(one, 0) < start for one, start in self._base.items()):
            self._forget()  # the table is another
        self._base = dict(base)
        self._kept = [rows for rows in map(_drop_before(base), self._kept) if rows.num_rows]
        ranges = [
            OffsetRange(one, max(start, self._upto.get(one, 0)), end)
            for one, start, end in self._ranges(log, base)
        ]
        count = sum(rows.num_rows for rows in self._kept)
        if not self._fold and count + sum(max(0, r.end - r.start) for r in ranges) > MAX_ROWS:
            self._forget()
            return None
        for new in self._read([one for one in ranges if one.end > one.start], None):
            self._kept.append(new)
            count += new.num_rows
            if self._fold and count > FOLD_ROWS + self._kept[0].num_rows:
                count = self._folded()
            if count > MAX_ROWS or sum(rows.nbytes for rows in self._kept) > MAX_BYTES:
                self._forget()
                return None
        if self._fold and len(self._kept) > 1:
            self._folded()
        self._upto = {one.partition: max(one.start, one.end) for one in ranges}
        return list(self._kept)

    def _forget(self) -> None:
        self._kept, self._upto = [], {}

    def _folded(self) -> int:
        self._kept = [reduce.keep_newest(pa.concat_tables(self._kept).unify_dictionaries())]
        return int(self._kept[0].num_rows)

    def _read(self, ranges: list[OffsetRange], key_expr: str | None) -> Iterator[pa.Table]:
        log = Log(self.path)
        for one in ranges:
            start = one.start
            for attempt in range(TRIES):
                reader = Reader(log, one.partition)
                try:
                    for batch in reader.batches(
                        start, one.end, key_expr=key_expr, columns=COLUMNS, on_damage="skip"
                    ):
                        start = batch.column("offset")[-1].as_py() + 1
                        yield rows_from_log(batch)
                except OffsetOutOfRange:  # retention has removed the first of them
                    if attempt + 1 == TRIES:
                        raise
                    start = max(start, min(log.first(one.partition), one.end))
                    continue
                finally:
                    if reader.skipped:
                        self._counters["damaged places passed over"] += len(reader.skipped)
                break


def _drop_before(base: Offsets) -> Callable[[pa.Table], pa.Table]:
    """Of some rows those that are not below `base`."""

    def behind(rows: pa.Table) -> pa.Table:
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

    return behind
