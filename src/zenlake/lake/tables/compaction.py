"""Compaction: merges many small sorted files of a table into few large ones in bounded memory.

Knows which files are worth merging and how sorted files are merged. Skips folded tables, because
folding keeps their leaves at a good size.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from zenlake.lake.tables.delta import (
    ROW_GROUP_ROWS,
    AddedFile,
    CommitConflict,
    DataFile,
    DeltaStore,
    StoreError,
    uncompressed_bytes,
)
from zenlake.lake.tables.reduce import conform, sort_rows

SMALL_SHARE = 0.5  # Files of at least this share of the target size stay as they are.
WORTH_SHARE = 0.25  # A file is rewritten if the smaller files sum up to this share of it.
MAX_INPUTS = 256  # Upper bound on files per merge, all of which are open.
MAX_TARGETS = 8  # Upper bound on the input of one merge, in target sizes.
MERGE_BYTES = 32 << 20  # Encoded bytes read at once from all inputs; decoded they take more.
GROUP_BYTES = 64 << 20  # Upper bound on the decoded bytes of a row group.


class CompactionResult(NamedTuple):
    """Files and rows that compaction of a table merged."""

    files: int = 0
    into: int = 0
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    conflicts: int = 0
    "Merges given up because a concurrent commit removed an input; the next run tries again."


def compact(store: DeltaStore, target: int) -> CompactionResult:
    """Merge the small files of each partition, with one commit per merge; rows do not change.

    Safe beside writers: a merge leaves appended files alone and gives up if an input was removed.
    """
    if store.table.fold is not None:
        return CompactionResult()
    merges = [
        _merge_files(store, group, target) for group in plan_merges(store.snapshot().files, target)
    ]
    return CompactionResult(*map(sum, zip(*merges, strict=True)))


def plan_merges(files: Iterable[DataFile], target: int) -> Iterator[list[DataFile]]:
    """Yield groups of small files of one partition that are worth merging."""
    places: dict[tuple[tuple[str, Any], ...], list[DataFile]] = {}
    for file in files:
        if file.size < target * SMALL_SHARE:
            places.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    for place in sorted(places, key=repr):
        group: list[DataFile] = []
        size = 0
        for file in _drop_costly(places[place]):
            if len(group) == MAX_INPUTS or size + file.size > MAX_TARGETS * target:
                yield from [group] * (len(group) > 1)
                group, size = [], 0
            group.append(file)
            size += file.size
        yield from [group] * (len(group) > 1)


def _drop_costly(files: list[DataFile]) -> list[DataFile]:
    """Sort files by size and drop the largest while the smaller ones add too little to them.

    So each row is rewritten only a few times, however often compaction runs.
    """
    files = sorted(files, key=lambda file: (file.size, file.path))
    smaller = sum(file.size for file in files)
    while files:
        smaller -= files[-1].size
        if smaller >= WORTH_SHARE * files[-1].size:
            break
        files.pop()
    return files


def _merge_files(store: DeltaStore, group: list[DataFile], target: int) -> CompactionResult:
    """Replace the files of a group by merged ones in one commit."""
    size, rows = sum(file.size for file in group), sum(file.rows for file in group)
    added: list[AddedFile] = []
    try:
        with ExitStack() as opened:
            share = MERGE_BYTES // len(group)
            inputs = [
                opened.enter_context(closing(read_pieces(store, file, share))) for file in group
            ]
            pieces = _gather_row_groups(merge_sorted(inputs, store.table.order))
            for piece in pieces:
                added.append(_write_merged(store, group[0], piece, pieces, target))
        found = sum(file.rows for file in added)
        if found != rows:
            raise StoreError(
                f"{store.path}: files have {found} rows, and Delta's log says {rows}: nothing was "
                "changed; check whether another tool wrote to this table"
            )
        store.commit(added, group, data_change=False)
    except CommitConflict:
        discard_files(store, added)
        return CompactionResult(conflicts=1)
    except BaseException:
        discard_files(store, added)
        raise
    return CompactionResult(len(group), len(added), rows, size, sum(file.size for file in added))


def _write_merged(
    store: DeltaStore, like: DataFile, piece: pa.Table, pieces: Iterator[pa.Table], target: int
) -> AddedFile:
    """Write one file from `piece` and from further pieces until it reaches the target size."""
    with store.writer(next(iter(like.partition.values()), None)) as file:
        file.write(piece)
        while file.size < target and (more := next(pieces, None)) is not None:
            file.write(more)
    return file.added


def discard_files(store: DeltaStore, added: Iterable[AddedFile]) -> None:
    """Delete the files of a failed commit, unless the table names them because it succeeded."""
    named = {file.path for file in store.snapshot().files}
    for file in added:
        if file.path not in named:
            (store.path / file.path).unlink(missing_ok=True)


def read_pieces(
    store: DeltaStore, file: DataFile, share: int, columns: Iterable[str] | None = None
) -> Generator[pa.Table, None, None]:
    """Yield the rows of a file in pieces of about `share` bytes; missing columns are null.

    Without `columns` the pieces have all columns but that of the partition.
    """
    wanted = set(store.table.schema.names if columns is None else columns) - file.partition.keys()
    schema = pa.schema([field for field in store.table.schema if field.name in wanted])
    with parquet.ParquetFile(store.path / file.path, memory_map=True) as source:
        footer = source.metadata
        rows = share * footer.num_rows // max(1, uncompressed_bytes(footer))
        names = [name for name in source.schema_arrow.names if name in wanted]
        for batch in source.iter_batches(min(max(1, rows), ROW_GROUP_ROWS), columns=names):
            yield conform(batch, schema)


def _gather_row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Regroup rows into tables of one row group each."""
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


# ---- merging sorted tables


class _MergeInput:
    """One sorted input of a merge, with its next rows in memory."""

    def __init__(self, tables: Iterator[pa.Table], order: tuple[str, ...]) -> None:
        self._tables = tables
        self._order = order
        self._rows = pa.table({})
        self.more = True
        self.fill()

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def fill(self) -> None:
        """Read the next rows if none are in memory."""
        while self.more and not len(self):
            rows = next(self._tables, None)
            if rows is None:
                self.more = False
            else:
                self._rows = rows
                self._columns = [rows.column(name) for name in self._order]

    def rank(self, row: int) -> tuple[tuple[bool, Any], ...]:
        """Return the sort key of a row; null sorts first."""
        values = (column[row].as_py() for column in self._columns)
        return tuple((value is not None, value) for value in values)

    def take(self, count: int) -> pa.Table:
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        self._columns = [column.slice(count) for column in self._columns]
        return taken


def merge_sorted(
    inputs: Iterable[Iterator[pa.Table]], order: tuple[str, ...]
) -> Iterator[pa.Table]:
    """Merge sorted inputs into one sorted sequence of tables.

    Holds one table of each input in memory.

    >>> odd, even = ({"n": [1, 3]}, {"n": [5]}), ({"n": [2, 4, 6]},)
    >>> tables = merge_sorted([map(pa.table, odd), map(pa.table, even)], ("n",))
    >>> [table.column("n").to_pylist() for table in tables]
    [[1, 2, 3], [4, 5], [6]]
    """
    heads = [head for head in (_MergeInput(tables, order) for tables in inputs) if len(head)]
    while heads:
        # Rows that are not read yet sort after the smallest of the last rows in memory.
        least = min(heads, key=lambda head: head.rank(len(head) - 1))
        limit = least.rank(len(least) - 1)
        parts = [
            head.take(
                len(head) if head is least else bisect_right(range(len(head)), limit, key=head.rank)
            )
            for head in heads
        ]
        yield sort_rows(pa.concat_tables(parts), order)
        for head in heads:
            head.fill()
        heads = [head for head in heads if len(head)]
