"""Exactly-once commits of batches: appends files, or folds rows into the leaves they touch.

Knows how a table tells which batches it has, leaves, and a crash-safe order of commits. Does not
know Spark or where a batch comes from.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from zenlake.lake.tables import schema
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import (
    OFFSET_APP,
    AddedFile,
    CommitConflict,
    DataFile,
    DeltaStore,
    StoreError,
    uncompressed_bytes,
)
from zenlake.lake.tables.reduce import (
    conform,
    keep_newest,
    merge_health,
    newest_row_indices,
    sort_rows,
    take_rows,
)

LEAF_ROWS = 32 << 10
LEAF_BYTES = 64 << 20  # Upper bound on the bytes of a leaf in memory.
MAX_REPEATS = 10  # Attempts per fold while other writers change its leaves.

_VERSION = ["key", "hlc", "timestamp", "partition", "offset"]
"Columns that order the versions of a key."
Merge = Callable[[pa.Table, pa.Table], pa.Table]
"Returns the rows of a leaf after new rows came to its old ones."
P = ParamSpec("P")


LOG_APP = "zenlake/log"
"Transaction whose version identifies the log that the offsets of a table belong to."


def log_number(log_id: str) -> int:
    """Return the number by which a table remembers a log."""
    return zlib.crc32(log_id.encode())


def check_log(store: DeltaStore, log_id: str) -> None:
    """Raise StoreError if the offsets of a table belong to another log."""
    if store.transaction(LOG_APP) not in (None, log_number(log_id)):
        raise StoreError(
            f"{store.path} was filled from another log than log {log_id}: put the other log back, "
            f"or fill the table again from this one: zenlake lake reset LAKE {store.path.name}"
        )


class OffsetsPresent(StoreError):
    """Batch with offsets that a table already has from another query."""


class Batch(Protocol):
    """Batch as a commit sees it: its transactions, and whether a table has it."""

    @property
    def transactions(self) -> dict[str, int]:
        """Transactions that a commit of this batch records."""

    def is_in(self, store: DeltaStore) -> bool:
        """Tell whether a table has the batch. OffsetsPresent: it has rows that it should not."""

    def as_part(self) -> Self:
        """Return the batch for a part that is folded before the rest and records nothing."""


@dataclass(frozen=True)
class TableBatch:
    """One numbered batch of one query; `offsets` maps log partitions to first and last offset.

    >>> TableBatch("own", "6f1c", 4, {0: (100, 199)}).transactions
    {'zenlake/own/6f1c': 4, 'zenlake/query/own': 2864248995, 'zenlake/offset/0': 200}
    """

    flow: str
    query: str
    number: int
    offsets: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    is_whole: bool = True
    "False for a part that is folded before the rest; its commit does not record the batch."

    @property
    def app(self) -> str:
        return f"zenlake/{self.flow}/{self.query}"

    @property
    def transactions(self) -> dict[str, int]:
        if not self.is_whole:
            return {}
        next_offsets = {
            f"{OFFSET_APP}{number}": end + 1 for number, (_, end) in self.offsets.items()
        }
        return {self.app: self.number, self._query_app: self._query_number} | next_offsets

    @property
    def _query_app(self) -> str:
        """Transaction of the last query of a flow, whatever its id is."""
        return f"zenlake/query/{self.flow}"

    @property
    def _query_number(self) -> int:
        return zlib.crc32(self.query.encode())

    def as_part(self) -> "TableBatch":
        return replace(self, is_whole=False)

    def is_in(self, store: DeltaStore) -> bool:
        store.snapshot()
        done = store.transaction(self.app)
        if done is not None:
            if done >= self.number and store.table.name in TABLES:
                self._check_offsets_committed(store)
            return done >= self.number
        present = store.offsets()
        for partition, (first, last) in self.offsets.items():
            if first < present.get(partition, 0):
                raise OffsetsPresent(
                    f"{store.path}: offsets {first} to {last} of partition {partition} are there "
                    f"up to {present[partition] - 1}, from another query than {self.app!r} (its "
                    "checkpoint was lost or changed?): start the query at offset "
                    f"{present[partition]}, or fill the table again: zenlake lake reset"
                )
        known = (None, self._query_number)
        if not present and store.transaction(self._query_app) not in known:
            raise OffsetsPresent(
                f"{store.path}: another query of flow {self.flow!r} has filled it (its checkpoint "
                "was lost or is elsewhere?): put the checkpoint back, or fill the table again: "
                "zenlake lake reset"
            )
        return False

    def _check_offsets_committed(self, store: DeltaStore) -> None:
        """Raise OffsetsPresent if the table has the batch number, but not all of its offsets."""
        present = store.offsets() if self.offsets else {}
        for partition, (_, last) in self.offsets.items():
            following = present.get(partition, 0)
            if last >= following:
                raise OffsetsPresent(
                    f"{store.path}: batch {self.number} of {self.app!r} is there, up to offset "
                    f"{following - 1} of partition {partition}, and now it goes to {last} (a part "
                    "of its checkpoint was removed?): start with a new checkpoint at offset "
                    f"{following}, or fill the table again: zenlake lake reset"
                )


@dataclass(frozen=True)
class RangeBatch:
    """Ranges of the log, of which a table takes the offsets that it does not have yet.

    The offsets that the table records are the only account of what it has: any query may go on
    where another one ended.

    >>> RangeBatch({0: (100, 200)}, {0: 150}, "5f").transactions
    {'zenlake/offset/0': 200, 'zenlake/log': 1194923044}
    """

    ranges: Mapping[int, tuple[int, int]]
    "First and next offset of each log partition."
    present: Mapping[int, int]
    "Offsets that the table recorded when the rows were chosen, at the latest before the commit."
    log: str | None = None
    "Id of the log; None if it is not known."
    is_whole: bool = True

    @property
    def transactions(self) -> dict[str, int]:
        if not self.is_whole:
            return {}
        ends = {f"{OFFSET_APP}{number}": end for number, (_, end) in self.ranges.items()}
        return ends if self.log is None else {**ends, LOG_APP: log_number(self.log)}

    def as_part(self) -> "RangeBatch":
        return replace(self, is_whole=False)

    def is_in(self, store: DeltaStore) -> bool:
        store.snapshot()
        if self.log is not None:
            check_log(store, self.log)
        present = store.offsets()
        if all(present.get(number, 0) >= end for number, (_, end) in self.ranges.items()):
            return True
        for number in self.ranges:
            if present.get(number) != self.present.get(number):
                raise OffsetsPresent(
                    f"{store.path}: another process took offsets of partition {number} meanwhile "
                    f"(up to {present.get(number)}): nothing was committed, the batch runs again"
                )
        return False


# ---- committing a batch


def _repeated(
    commit: Callable[Concatenate[DeltaStore, P], bool],
) -> Callable[Concatenate[DeltaStore, P], bool]:
    """Repeat a commit to a table while other writers change what it is based on."""

    @wraps(commit)
    def repeat(store: DeltaStore, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        for _ in range(MAX_REPEATS):
            with suppress(CommitConflict):
                return commit(store, *args, **kwargs)
        raise StoreError(
            f"{store.path}: other writers changed the folded files {MAX_REPEATS} times in a row: "
            "let only one query write this table, then start it again"
        )

    return repeat


@_repeated
def append_files(store: DeltaStore, added: Sequence[AddedFile], batch: Batch) -> bool:
    """Commit the files of a batch to a table; return False if the table has the batch already."""
    if batch.is_in(store):
        return False
    store.commit(added, (), batch.transactions)
    return True


@_repeated
def fold_health(store: DeltaStore, reduced: pa.Table, batch: Batch) -> bool:
    """Fold health rows of a batch into the table; return False if it has the batch already."""
    if batch.is_in(store):
        return False
    files = _write_leaves(store, merge_health(reduced), _add_health)
    store.commit(*files, batch.transactions)
    return True


@_repeated
def fold_latest(
    latest: DeltaStore, tombstones: DeltaStore, reduced: pa.Table, batch: Batch
) -> bool:
    """Fold the newest rows of a batch into `latest`; return False if it has the batch already.

    Makes at most three commits: adds tombstones for winning deletes, changes `latest`, and drops
    tombstones that a later put beats. After each commit the two tables together show the state
    before or after the batch to a reader that reads `latest` first.
    """
    rows = keep_newest(conform(reduced, schema.LATEST))
    buried = _read_keys(tombstones, rows["key"])
    is_new = not batch.is_in(latest)
    if is_new:
        living = _read_keys(latest, rows["key"], _VERSION)
        new = _select_newer(
            keep_newest(pa.concat_tables([rows, _tombstones_to_deletes(buried)])), living
        )
        put = pc.equal(new["kind"], "put")
        changed = pc.or_(put, pc.is_in(new["key"], value_set=living["key"].combine_chunks()))
        files = _write_leaves(latest, new.filter(changed), _replace_and_drop_deletes)
        deletes = conform(new.filter(pc.invert(put)), schema.TOMBSTONES)
        _change_tombstones(tombstones, _select_newer(deletes, buried), _replace_rows)
        latest.commit(*files, batch.transactions)
    if buried.num_rows:
        _drop_beaten_tombstones(latest, tombstones, buried["key"])
    return is_new


# ---- latest


def _change_tombstones(tombstones: DeltaStore, rows: pa.Table, merge: Merge) -> None:
    if rows.num_rows:
        tombstones.commit(*_write_leaves(tombstones, rows, merge))


def _drop_beaten_tombstones(
    latest: DeltaStore, tombstones: DeltaStore, keys: pa.ChunkedArray
) -> None:
    """Drop tombstones of keys that have a newer value in `latest`."""
    living = _read_keys(latest, keys, _VERSION)
    dead = _read_keys(tombstones, living["key"])
    alive = _select_newer(living, dead)["key"].combine_chunks()
    beaten = dead.filter(pc.is_in(dead["key"], value_set=alive))
    _change_tombstones(tombstones, beaten, _remove_keys)


def _tombstones_to_deletes(buried: pa.Table) -> pa.Table:
    """Return tombstones as the delete rows they came from."""
    place = schema.LATEST.get_field_index("kind")
    kinds = pa.repeat(pa.scalar("delete"), buried.num_rows)
    return conform(buried, schema.LATEST).set_column(place, schema.LATEST.field(place), kinds)


def _select_newer(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Return the rows, one per key, that are newer than `others`; an equal row is not newer."""
    both = pa.concat_tables([rows.select(_VERSION), others.select(_VERSION)])
    chosen = newest_row_indices(both)
    return take_rows(rows, chosen[chosen < rows.num_rows])


def _read_keys(
    store: DeltaStore, keys: pa.ChunkedArray, columns: Sequence[str] | None = None
) -> pa.Table:
    """Read the rows of sorted `keys` from the leaves that may contain them."""
    store.snapshot()
    files = [
        file for leaf in _list_leaves(store, keys) if leaf.stop > leaf.start for file in leaf.files
    ]
    wanted = pc.field("key").isin(keys.combine_chunks())
    return store.read(files, columns, wanted)


# ---- merging new rows into a leaf


def _replace_rows(old: pa.Table, new: pa.Table) -> pa.Table:
    """Replace the rows of keys that `new` has, in place; append rows of other keys."""
    where = pc.index_in(new["key"], value_set=old["key"].combine_chunks())
    there = where.is_valid().to_numpy()
    rows, fresh = np.arange(old.num_rows), np.arange(old.num_rows, old.num_rows + new.num_rows)
    rows[where.drop_null().to_numpy()] = fresh[there]
    return take_rows(pa.concat_tables([old, new]), np.append(rows, fresh[~there]))


def _replace_and_drop_deletes(old: pa.Table, new: pa.Table) -> pa.Table:
    both = _replace_rows(old, new)
    return both.filter(pc.equal(both["kind"], "put"))


def _remove_keys(old: pa.Table, new: pa.Table) -> pa.Table:
    return old.filter(pc.invert(pc.is_in(old["key"], value_set=new["key"].combine_chunks())))


def _add_health(old: pa.Table, new: pa.Table) -> pa.Table:
    return merge_health(pa.concat_tables([old, new]))


# ---- leaves


class _Leaf(NamedTuple):
    """Neighbouring files that are rewritten together with the new rows `start` to `stop`."""

    files: list[DataFile]
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files) + self.stop - self.start


def _write_leaves(
    store: DeltaStore, rows: pa.Table, merge: Merge
) -> tuple[list[AddedFile], list[DataFile]]:
    """Write the leaves that sorted rows touch again, merged with them.

    Returns the files that a commit adds, and the files that it removes.
    """
    added: list[AddedFile] = []
    removed: list[DataFile] = []
    for leaf in _join_small_leaves(store, _list_leaves(store, rows[_leaf_column(store)])):
        if leaf.stop > leaf.start:
            new = rows.slice(leaf.start, leaf.stop - leaf.start)
            old = store.read(leaf.files).cast(new.schema)
            merged = sort_rows(merge(old, new), store.table.order)
            removed += leaf.files
            added += [store.write_file(piece) for piece in _split_leaf(store, merged)]
    return added, removed


def _leaf_column(store: DeltaStore) -> str:
    column = store.table.leaf_column
    assert column is not None, "only a folded table has leaves"
    return column


def _split_leaf(store: DeltaStore, rows: pa.Table) -> Iterator[pa.Table]:
    """Split into equal pieces within a leaf's limits; equal leaf values stay together."""
    count, values = rows.num_rows, _LazyColumn(rows[_leaf_column(store)])
    ends = _cumulative_bytes(rows)
    most = -(-count // max(1, -(-count // LEAF_ROWS)))
    # Plus one, because the sums are rounded.
    size = rows.nbytes / max(1, -(-rows.nbytes // LEAF_BYTES)) + 1
    start = 0
    while start < count:
        large = int(np.searchsorted(ends, (ends[start - 1] if start else 0) + size, "right"))
        stop = max(min(start + most, large), start + 1)
        if stop < count:
            stop = bisect_left(values, values[stop])
        if stop <= start:
            stop = bisect_right(values, values[start])
        yield rows.slice(start, stop - start)
        start = stop


def _cumulative_bytes(rows: pa.Table) -> npt.NDArray[np.float64]:
    """Return the number of bytes up to and including each row."""
    sizes = np.zeros(rows.num_rows)
    for column in rows.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            sizes += pc.binary_length(column).fill_null(0).to_numpy()
    rest = rows.nbytes - sizes.sum()
    return np.cumsum(sizes + rest / max(1, rows.num_rows))


def _list_leaves(store: DeltaStore, leaf_values: pa.ChunkedArray) -> list[_Leaf]:
    """Return all leaves, each with the rows of these sorted leaf values that belong to it."""
    values = _LazyColumn(leaf_values)
    groups = _group_overlapping(store) or [[]]
    name = _leaf_column(store)
    starts = [0, *(bisect_left(values, group[0].low[name]) for group in groups[1:]), len(values)]
    return [_Leaf(*leaf) for leaf in zip(groups, starts, starts[1:], strict=False)]


def _join_small_leaves(store: DeltaStore, leaves: Iterable[_Leaf]) -> list[_Leaf]:
    """Join neighbouring leaves that are small together if new rows belong to one of them."""
    size = cache(lambda path: uncompressed_bytes(parquet.read_metadata(store.path / path)))
    joined: list[_Leaf] = []
    for leaf in leaves:
        last = joined[-1] if joined else None
        if (
            last
            and leaf.stop > last.start
            and last.rows + leaf.rows <= LEAF_ROWS // 2
            and sum(size(file.path) for file in last.files + leaf.files) <= LEAF_BYTES // 2
        ):
            joined[-1] = _Leaf(last.files + leaf.files, last.start, leaf.stop)
        else:
            joined.append(leaf)
    return joined


def _group_overlapping(store: DeltaStore) -> list[list[DataFile]]:
    """Group files sorted by leaf value; overlapping files, which no fold writes, share a group."""
    name = _leaf_column(store)
    files = store.current.files
    for file in files:
        if name not in file.low or name not in file.high:
            raise StoreError(
                f"{store.path / file.path}: the table has no statistics of {name} for this file "
                "(written by another tool?): move the table away to fill it again"
            )
    groups: list[list[DataFile]] = []
    high: Any = None
    for file in sorted(files, key=lambda file: file.low[name]):
        if groups and file.low[name] <= high:
            groups[-1].append(file)
            high = max(high, file.high[name])
        else:
            groups.append([file])
            high = file.high[name]
    return groups


class _LazyColumn(Sequence[Any]):
    """Sorted column for `bisect` that converts only the values it looks at."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: Any) -> Any:
        return self._column[row].as_py()
