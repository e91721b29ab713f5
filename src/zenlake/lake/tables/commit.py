"""Batches into tables, exactly once: rows appended, or folded into the leaves that they touch.

Knows which batch a table has, leaves, and the order of commits that a crash cannot hurt. Does not
know Spark, nor where a batch comes from.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from zenlake.lake.tables import schema
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import OFFSET_APP, Added, Conflict, DeltaStore, File, StoreError
from zenlake.lake.tables.reduce import (
    conform,
    merged_health,
    newest,
    newest_row_indices,
    sorted_by,
    take_rows,
)

LEAF_ROWS = 32 << 10
LEAF_BYTES = 64 << 20  # of a leaf in memory
MAX_REPEATS = 10  # of one fold, while others change its leaves

_VERSION = ["key", "hlc", "timestamp", "partition", "offset"]  # what decides who is newer


class OffsetsPresent(StoreError):
    """A batch brings what a table already has from another query; the message says what to do."""


@dataclass(frozen=True)
class TableBatch:
    """One batch of one query; `offsets` has the first and the last of each partition of the log.

    >>> Batch("samples", "6f1c", 4, {0: (100, 199)}).transactions
    {'zenlake/samples/6f1c': 4, 'zenlake/offset/0': 200}
    """

    flow: str
    query: str
    number: int
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def app(self) -> str:
        return f"zenlake/{self.flow}/{self.query}"

    @property
    def transactions(self) -> dict[str, int]:
        """What a commit that holds this batch says of it."""
        following = {f"{OFFSET_APP}{one}": last + 1 for one, (_, last) in self.offsets.items()}
        return {self.app: self.number} | following


class TableChange(NamedTuple):
    """What a batch did to a table: the version that has it, files that came and went."""

    version: int
    added: int
    removed: int


# ---- what others call


def append(store: DeltaStore, added: Sequence[Added], batch: TableBatch) -> TableChange | None:
    """The files of a batch into a table; None if they are in it already."""
    for _ in range(MAX_REPEATS):
        if has(store, batch):
            return None
        try:
            version = store.commit(added, (), batch.transactions)
        except Conflict:
            continue
        return TableChange(version, len(added), 0)
    raise _too_busy(store)


def fold_health(
    store: DeltaStore, reduced: pa.Table, batch: TableBatch, leaf_rows: int = LEAF_ROWS
) -> TableChange | None:
    """Health of a batch (`health_of`, put together) into the table; None if it is in already."""
    for _ in range(MAX_REPEATS):
        if has(store, batch):
            return None
        folding = _Folding(store, merged_health(reduced), _add_up, leaf_rows).make()
        try:
            return folding.commit(batch.transactions)
        except Conflict:
            continue
    raise _too_busy(store)


def fold(
    latest: DeltaStore,
    tombstones: DeltaStore,
    reduced: pa.Table,
    batch: TableBatch,
    leaf_rows: int = LEAF_ROWS,
) -> TableChange | None:
    """The newest rows of a batch (`newest`) into `latest`; what it did there, None for nothing.

    Three commits at most, and after each of them the two tables say what they said before or what
    they say after: deletes that win are buried first, then `latest` changes, then tombstones
    that a later put beat are dropped. So who reads both reads `latest` first.
    """
    for _ in range(MAX_REPEATS):
        try:
            return _fold(
                latest, tombstones, newest(conform(reduced, schema.LATEST)), batch, leaf_rows
            )
        except Conflict:
            continue
    raise _too_busy(latest)


def has(store: DeltaStore, batch: TableBatch) -> bool:
    """Whether a table has a batch. Refuses one whose rows it has from another query."""
    store.snapshot()
    done = store.transaction(batch.app)
    if done is not None:
        if done >= batch.number and store.table.name in TABLES:
            _check_that_it_has_all(store, batch)
        return done >= batch.number
    present = store.offsets()
    for partition, (first, last) in batch.offsets.items():
        if first < present.get(partition, 0):
            raise OffsetsPresent(
                f"{store.path}: offsets {first} to {last} of partition {partition} are there up "
                f"to {present[partition] - 1}, from another query than {batch.app!r} (its "
                "checkpoint was lost or changed?): start the query at offset "
                f"{present[partition]}, or move the table away to fill it anew"
            )
    return False


def _check_that_it_has_all(store: DeltaStore, batch: TableBatch) -> None:
    """What is passed over since a batch of its number is there has to be in the table."""
    present = store.offsets() if batch.offsets else {}
    for partition, (_, last) in batch.offsets.items():
        there = present.get(partition, 0)
        if last >= there:
            raise OffsetsPresent(
                f"{store.path}: batch {batch.number} of {batch.app!r} is there, up to offset "
                f"{there - 1} of partition {partition}, and now it goes to {last} (a part of its "
                f"checkpoint was removed?): start with a new checkpoint at offset {there}, or move "
                "the table away to fill it anew"
            )


# ---- latest


def _fold(
    latest: DeltaStore, tombstones: DeltaStore, rows: pa.Table, batch: TableBatch, leaf_rows: int
) -> TableChange | None:
    buried = _rows_of(tombstones, rows["key"])
    change = None
    if not has(latest, batch):
        living = _rows_of(latest, rows["key"], _VERSION)
        new = _winning(newest(pa.concat_tables([rows, _as_deletes(buried)])), living)
        put = pc.equal(new["kind"], "put")
        deletes = new.filter(pc.invert(put))
        changed = pc.or_(put, pc.is_in(new["key"], value_set=living["key"].combine_chunks()))
        folding = _Folding(latest, new.filter(changed), _alive, leaf_rows).make()
        _bury(tombstones, conform(deletes, schema.TOMBSTONES), buried, leaf_rows)
        change = folding.commit(batch.transactions)
    if buried.num_rows:
        _unbury(latest, tombstones, buried["key"], leaf_rows)
    return change


def _bury(tombstones: DeltaStore, deletes: pa.Table, buried: pa.Table, leaf_rows: int) -> None:
    fresh = _winning(deletes, buried)
    if fresh.num_rows:
        _Folding(tombstones, fresh, _replaced, leaf_rows).make().commit({})


def _unbury(
    latest: DeltaStore, tombstones: DeltaStore, keys: pa.ChunkedArray, leaf_rows: int
) -> None:
    """Drops the tombstones of keys that live again."""
    living = _rows_of(latest, keys, _VERSION)
    dead = _rows_of(tombstones, living["key"])
    alive = _winning(living, dead)["key"].combine_chunks()
    beaten = dead.filter(pc.is_in(dead["key"], value_set=alive))
    if beaten.num_rows:
        _Folding(tombstones, beaten, _without, leaf_rows).make().commit({})


def _as_deletes(buried: pa.Table) -> pa.Table:
    """Tombstones as the rows that they were."""
    place = schema.LATEST.get_field_index("kind")
    kinds = pa.repeat(pa.scalar("delete"), buried.num_rows)
    return conform(buried, schema.LATEST).set_column(place, schema.LATEST.field(place), kinds)


def _winning(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Those of `rows`, one a key, that are newer than `others`; an equal one is not."""
    both = pa.concat_tables([rows.select(_VERSION), others.select(_VERSION)])
    chosen = newest_row_indices(both)
    return take_rows(rows, chosen[chosen < rows.num_rows])


def _rows_of(
    store: DeltaStore, keys: pa.ChunkedArray, columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows of those keys, which are sorted; only leaves that may have them are read."""
    store.snapshot()
    files = [file for leaf in _touched(store, keys, 0) for file in leaf.files]
    wanted = pc.field("key").isin(keys.combine_chunks())
    return store.read(files, columns, wanted)


# ---- how a leaf and new rows become one


def _replaced(old: pa.Table, new: pa.Table) -> pa.Table:
    """A new row stands where the old one of its key stood; what had none follows."""
    where = pc.index_in(new["key"], value_set=old["key"].combine_chunks())
    there = where.is_valid().to_numpy()
    rows, fresh = np.arange(old.num_rows), np.arange(old.num_rows, old.num_rows + new.num_rows)
    rows[where.drop_null().to_numpy()] = fresh[there]
    return take_rows(pa.concat_tables([old, new]), np.append(rows, fresh[~there]))


def _alive(old: pa.Table, new: pa.Table) -> pa.Table:
    both = _replaced(old, new)
    return both.filter(pc.equal(both["kind"], "put"))


def _without(old: pa.Table, new: pa.Table) -> pa.Table:
    return old.filter(pc.invert(pc.is_in(old["key"], value_set=new["key"].combine_chunks())))


def _add_up(old: pa.Table, new: pa.Table) -> pa.Table:
    return merged_health(pa.concat_tables([old, new]))


# ---- leaves


class _Leaf(NamedTuple):
    """Neighbouring files that are rewritten together, and the rows from `start` to `stop`."""

    files: list[File]
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files) + self.stop - self.start


class _Folding:
    """New rows into the leaves of a table that they touch, and the commit of that."""

    def __init__(
        self,
        store: DeltaStore,
        rows: pa.Table,
        merge: Callable[[pa.Table, pa.Table], pa.Table],
        leaf_rows: int,
    ) -> None:
        self._store = store
        self._rows = rows
        self._merge = merge
        self._leaf_rows = leaf_rows
        self._added: list[Added] = []
        self._removed: list[File] = []

    def make(self) -> "_Folding":
        """Writes new leaves, one after the other; nobody sees them yet."""
        for leaf in _touched(self._store, self._rows[self._place], self._leaf_rows):
            new = self._rows.slice(leaf.start, leaf.stop - leaf.start)
            old = self._store.read(leaf.files).cast(new.schema)
            pieces = self._cut(sorted_by(self._merge(old, new), self._store.table.order))
            self._removed += leaf.files
            self._added += [self._store.write_file(piece) for piece in pieces]
        return self

    def commit(self, transactions: Mapping[str, int]) -> TableChange:
        version = self._store.commit(self._added, self._removed, transactions)
        return TableChange(version, len(self._added), len(self._removed))

    @property
    def _place(self) -> str:
        place = self._store.table.place
        assert place is not None, "only a folded table has leaves"
        return place

    def _cut(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Equal pieces of at most a leaf's rows and bytes; rows of one place stay together."""
        count, place, ends = rows.num_rows, _Values(rows[self._place]), _ends(rows)
        most = -(-count // max(1, -(-count // self._leaf_rows)))
        size = rows.nbytes / max(1, -(-rows.nbytes // LEAF_BYTES)) + 1  # sums are rounded
        start = 0
        while start < count:
            large = int(np.searchsorted(ends, (ends[start - 1] if start else 0) + size, "right"))
            stop = max(min(start + most, large), start + 1)
            if stop < count:
                stop = bisect_left(place, place[stop])
            if stop <= start:
                stop = bisect_right(place, place[start])
            yield rows.slice(start, stop - start)
            start = stop


def _ends(rows: pa.Table) -> npt.NDArray[np.float64]:
    """How many bytes there are up to each row, and with it."""
    sizes = np.zeros(rows.num_rows)
    for column in rows.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            sizes += pc.binary_length(column).fill_null(0).to_numpy()
    rest = rows.nbytes - sizes.sum()
    return np.cumsum(sizes + rest / max(1, rows.num_rows))


def _touched(store: DeltaStore, place: pa.ChunkedArray, leaf_rows: int) -> list[_Leaf]:
    """The leaves in which rows of these places belong; `place` is sorted.

    Leaves that are small together, and of which one is touched, are taken as one.
    """
    values = _Values(place)
    groups = _groups(store)
    if not groups:
        return [_Leaf([], 0, len(values))] if len(values) else []
    name = store.table.place or ""
    starts = [0, *(bisect_left(values, group[0].low[name]) for group in groups[1:]), len(values)]
    leaves: list[_Leaf] = []
    size = cache(lambda path: _unpacked(store.path / path))
    for group, start, stop in zip(groups, starts, starts[1:], strict=False):
        leaf = _Leaf(group, start, stop)
        last = leaves[-1] if leaves else None
        if (
            last
            and stop > last.start
            and last.rows + leaf.rows <= leaf_rows // 2
            and sum(size(file.path) for file in last.files + group) <= LEAF_BYTES // 2
        ):
            leaves[-1] = _Leaf(last.files + group, last.start, stop)
        else:
            leaves.append(leaf)
    return [leaf for leaf in leaves if leaf.stop > leaf.start]


def _unpacked(path: Path) -> int:
    """About the bytes of a file in memory: on the disk it may be far smaller."""
    footer = parquet.read_metadata(path)
    return sum(footer.row_group(one).total_byte_size for one in range(footer.num_row_groups))


def _groups(store: DeltaStore) -> list[list[File]]:
    """Files by place; such as overlap, which no fold writes, are one."""
    name = store.table.place or ""
    files = store.current.files
    for file in files:
        if name not in file.low or name not in file.high:
            raise StoreError(
                f"{store.path / file.path}: the table does not say between which {name} it lies "
                "(written by another tool?): move the table away to fill it anew"
            )
    groups: list[list[File]] = []
    high: Any = None
    for file in sorted(files, key=lambda file: file.low[name]):
        if groups and file.low[name] <= high:
            groups[-1].append(file)
            high = max(high, file.high[name])
        else:
            groups.append([file])
            high = file.high[name]
    return groups


class _Values(Sequence[Any]):
    """A sorted column for `bisect`: only those values that are looked at become objects."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: Any) -> Any:
        return self._column[row].as_py()


def _too_busy(store: DeltaStore) -> StoreError:
    return StoreError(
        f"{store.path}: others change what is being folded, {MAX_REPEATS} times in a row: "
        "see that one query only writes this table, then start it again"
    )
