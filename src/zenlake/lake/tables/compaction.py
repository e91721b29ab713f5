"""Many small files of a table become few large ones, sorted: merged in bounded memory.

Knows which files are worth it and how sorted files are merged. What a table is, delta.py knows;
leaves of folded tables are left alone, as folding keeps them in shape.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from zenlake.lake.tables.delta import ROW_GROUP_ROWS, Added, Conflict, DeltaStore, File, StoreError
from zenlake.lake.tables.reduce import conform, sorted_by

SMALL_SHARE = 0.5  # of the target: a file of that size is large enough
WORTH_SHARE = 0.25  # a file is rewritten if the smaller ones together have that share of it
MAX_INPUTS = 256  # files of one merge, each of them open
MAX_TARGETS = 8  # times the target: what one merge and its commit rewrites
MERGE_BYTES = 32 << 20  # of all inputs together, packed as pages are; some times that as columns
GROUP_BYTES = 64 << 20  # in memory, of the row group that is being made


class Compacted(NamedTuple):
    """What compaction of a table did."""

    files: int = 0
    into: int = 0
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    conflicts: int = 0
    "Merges given up since somebody else had taken one of their files away; the next run tries."

    def plus(self, other: "Compacted") -> "Compacted":
        return Compacted(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def compact(store: DeltaStore, target: int) -> Compacted:
    """Merges small files of each day, one commit a merge. Rows and their values stay the same.

    It may run beside writers: what they append is not touched, and what they remove is not merged.
    """
    done = Compacted()
    if store.table.fold is not None:
        return done
    for group in groups(store.snapshot().files, target):
        done = done.plus(_merge(store, group, target))
    return done


def groups(files: Iterable[File], target: int) -> Iterator[list[File]]:
    """Files to merge into one another: of the same partition, small, and worth it."""
    places: dict[tuple[tuple[str, Any], ...], list[File]] = {}
    for file in files:
        if file.size < target * SMALL_SHARE:
            places.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    for place in sorted(places, key=repr):
        group: list[File] = []
        size = 0
        for file in _worth(places[place]):
            if len(group) == MAX_INPUTS or size + file.size > MAX_TARGETS * target:
                yield from [group] * (len(group) > 1)
                group, size = [], 0
            group.append(file)
            size += file.size
        yield from [group] * (len(group) > 1)


def _worth(files: list[File]) -> list[File]:
    """By size, without the largest ones that would be rewritten for little.

    So a row is rewritten a few times in all, however often compaction runs.
    """
    files = sorted(files, key=lambda file: (file.size, file.path))
    smaller = sum(file.size for file in files)
    while files:
        smaller -= files[-1].size
        if smaller >= WORTH_SHARE * files[-1].size:
            break
        files.pop()
    return files


def _merge(store: DeltaStore, group: list[File], target: int) -> Compacted:
    """One commit: the files of a group go, merged ones come."""
    size, rows = sum(file.size for file in group), sum(file.rows for file in group)
    added: list[Added] = []
    try:
        with ExitStack() as opened:
            share = MERGE_BYTES // len(group)
            inputs = [_rows_of(store, file, share, opened) for file in group]
            pieces = _row_groups(merged(inputs, store.table.order))
            for piece in pieces:
                added.append(_write(store, group[0], piece, pieces, target))
        found = sum(one.rows for one in added)
        if found != rows:
            raise StoreError(
                f"{store.path}: files have {found} rows, and Delta's log says {rows}: "
                "nothing was changed; was one of them written by others?"
            )
        store.commit(added, group, data_change=False)
    except Conflict:
        discard(store, added)
        return Compacted(conflicts=1)
    except BaseException:
        discard(store, added)
        raise
    return Compacted(len(group), len(added), rows, size, sum(one.size for one in added))


def _write(
    store: DeltaStore, like: File, piece: pa.Table, pieces: Iterator[pa.Table], target: int
) -> Added:
    """One file, of `piece` and as many more as make it large enough."""
    with store.writer(next(iter(like.partition.values()), None)) as file:
        file.write(piece)
        while file.size < target and (more := next(pieces, None)) is not None:
            file.write(more)
    assert file.added is not None
    return file.added


def discard(store: DeltaStore, added: Iterable[Added]) -> None:
    """Files of a commit that failed; if it did happen, the table names them, and they stay."""
    named = {file.path for file in store.snapshot().files}
    for one in added:
        if one.path not in named:
            (store.path / one.path).unlink(missing_ok=True)


def _rows_of(store: DeltaStore, file: File, share: int, opened: ExitStack) -> Iterator[pa.Table]:
    """The rows of a file, so many at once as fit into `share` bytes; what it lacks is null."""
    source = opened.enter_context(parquet.ParquetFile(store.path / file.path, memory_map=True))
    whole = source.metadata
    size = sum(whole.row_group(number).total_byte_size for number in range(whole.num_row_groups))
    rows = share * whole.num_rows // max(1, size)
    schema = pa.schema([one for one in store.table.schema if one.name not in file.partition])
    names = [name for name in source.schema_arrow.names if name in schema.names]
    for batch in source.iter_batches(min(max(1, rows), ROW_GROUP_ROWS), columns=names):
        yield conform(batch, schema)


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, as many at once as a row group has."""
    waiting: list[pa.Table] = []
    count = size = 0
    for table in tables:
        while table.num_rows:
            part = table.slice(0, ROW_GROUP_ROWS - count)
            table = table.slice(part.num_rows)
            waiting.append(part)
            count, size = count + part.num_rows, size + part.nbytes
            if count == ROW_GROUP_ROWS or size >= GROUP_BYTES:
                yield pa.concat_tables(waiting)
                waiting, count, size = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)


# ---- merging what is sorted


class _Head:
    """The next rows of one input."""

    def __init__(self, tables: Iterator[pa.Table], order: tuple[str, ...]) -> None:
        self._tables = tables
        self._order = order
        self._rows = pa.table({})
        self.more = True
        self.fill()

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def fill(self) -> None:
        """Rows, if there are none and the input has more."""
        while self.more and not len(self):
            rows = next(self._tables, None)
            if rows is None:
                self.more = False
            else:
                self._rows = rows
                self._columns = [rows.column(name) for name in self._order]

    def rank(self, row: int) -> tuple[tuple[bool, Any], ...]:
        """Where a row belongs; null before all else."""
        values = (column[row].as_py() for column in self._columns)
        return tuple((value is not None, value) for value in values)

    def take(self, count: int) -> pa.Table:
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        self._columns = [column.slice(count) for column in self._columns]
        return taken


def merged(inputs: Iterable[Iterator[pa.Table]], order: tuple[str, ...]) -> Iterator[pa.Table]:
    """The rows of all inputs; in order if each of them is. One table of each is in memory.

    >>> odd, even = ({"n": [1, 3]}, {"n": [5]}), ({"n": [2, 4, 6]},)
    >>> tables = merged([map(pa.table, odd), map(pa.table, even)], ("n",))
    >>> [table.column("n").to_pylist() for table in tables]
    [[1, 2, 3], [4, 5], [6]]
    """
    heads = [head for head in (_Head(tables, order) for tables in inputs) if len(head)]
    while heads:
        # Nothing that is still to come belongs before the least of the last rows in memory.
        least = min(heads, key=lambda head: head.rank(len(head) - 1))
        limit = least.rank(len(least) - 1)
        parts = [
            head.take(
                len(head) if head is least else bisect_right(range(len(head)), limit, key=head.rank)
            )
            for head in heads
        ]
        yield sorted_by(pa.concat_tables(parts), order)
        for head in heads:
            head.fill()
        heads = [head for head in heads if len(head)]
