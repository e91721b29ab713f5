"""Projections of a flow's rows into tables: tasks write files and staged rows, the driver commits.

Knows what each table stores of the rows, and the bounds of a task. Does not know Spark, Parquet or
Delta's log.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.errors import ZError
from zenlake.lake.tables import schema
from zenlake.lake.tables.commit import (
    Batch,
    RangeBatch,
    TableBatch,
    append_files,
    check_log,
    fold_health,
    fold_latest,
)
from zenlake.lake.tables.definitions import (
    HEALTH,
    LATEST,
    TABLES,
    TOMBSTONES,
    TableDefinition,
)
from zenlake.lake.tables.delta import STAGED, AddedFile, DeltaStore, StoreError
from zenlake.lake.tables.dictionary import dictionary_encode
from zenlake.lake.tables.reduce import (
    as_ints,
    compute_day,
    compute_health,
    compute_hlc,
    conform,
    keep_newest,
)

MAX_BUFFER_ROWS = 1 << 19  # Upper bound on buffered rows, which become one file per table.
MAX_BUFFER_BYTES = (
    128 << 20
)  # Upper bound on buffered bytes; sorting and writing take about as much again.
MAX_REDUCED_ROWS = 1 << 18  # Upper bound on reduced rows in memory before they are staged.
MAX_FOLD_BYTES = 512 << 20  # Upper bound on staged bytes folded by one commit.
MAX_PARTITION_VALUES = 1000  # Upper bound on partitions per buffer, each of which gets a file.

OffsetRanges = dict[int, tuple[int, int]]
"Lowest and highest offset of each log partition."
Decode = Callable[[pa.Table], pa.Table]
"Turns samples into the rows of `messages`, with `payload` and `reason` of failures."


# ---- projections


class RowChunk:
    """Rows that become files together, and the selections of them that projections use."""

    def __init__(self, rows: pa.Table, decode: Decode | None = None) -> None:
        self.rows = dictionary_encode(rows)
        self._decode = decode
        self._ranges: dict[str, OffsetRanges] = {}

    def since(self, offsets: Mapping[int, int]) -> "RowChunk":
        """Return a chunk without the rows below the offset of their log partition."""
        partition = as_ints(self.rows["partition"])
        first = np.zeros(len(partition), np.int64)
        for number, offset in offsets.items():
            first[partition == number] = offset
        wanted = as_ints(self.rows["offset"]) >= first
        if wanted.all():
            return self
        return RowChunk(self.rows.filter(pa.array(wanted)), self._decode)

    def offset_ranges(self, source: str) -> OffsetRanges:
        """Return the offsets of `source`: "rows", "received_samples" or "loss_rows"."""
        if source not in self._ranges:
            self._ranges[source] = find_offset_ranges(getattr(self, source))
        return self._ranges[source]

    @cached_property
    def received_samples(self) -> pa.Table:
        """Samples as they were received, with repeats."""
        if "loss" not in self.rows.column_names:
            return self.rows
        return self.rows.filter(pc.is_null(self.rows["loss"])).drop_columns("loss")

    @cached_property
    def loss_rows(self) -> pa.Table:
        return self.rows.filter(pc.is_valid(self.rows["loss"]))

    @cached_property
    def unique_samples(self) -> pa.Table:
        """Each sample once, with newly computed `hlc` and `day`."""
        rows = self.received_samples
        if rows["key"].null_count:  # A loss record from which `loss` was dropped.
            rows = rows.filter(pc.is_valid(rows["key"]))
        if "duplicate" in rows.column_names:
            rows = rows.filter(pc.invert(rows["duplicate"].fill_null(False)))
        present = [name for name in ("hlc", "day") if name in rows.column_names]
        return _add_time_columns(rows.drop_columns(present) if present else rows)

    @cached_property
    def decoded_rows(self) -> pa.Table:
        """Rows of `messages` and `messages_failed` together; `reason` tells them apart."""
        if self._decode is None:  # The flow has decoded them.
            return _add_time_columns(self.rows)
        samples = self.unique_samples
        return self._decode(samples.filter(pc.equal(samples["kind"], "put")))


def _add_time_columns(rows: pa.Table) -> pa.Table:
    if "hlc" not in rows.column_names:
        rows = rows.append_column(schema.HLC, compute_hlc(rows))
    if "day" not in rows.column_names:
        rows = rows.append_column(schema.DAY, compute_day(rows))
    return rows


class Projection(NamedTuple):
    """Rule by which a table takes rows from a chunk."""

    source: str
    "RowChunk attribute with the rows that count as taken, also if none is stored."
    project: Callable[[RowChunk], pa.Table]
    "Returns the rows that the table stores."
    required: pa.Schema
    "Columns that the rows of the flow must have."


def _project_losses(chunk: RowChunk) -> pa.Table:
    rows = chunk.loss_rows
    loss = rows["loss"].combine_chunks()
    parts = dict(zip(loss.type.names, loss.flatten(), strict=True))
    at = rows["received_at"]
    place = {"partition": rows["partition"], "offset": rows["offset"]}
    return pa.table({"at": at, **parts, **place, "day": compute_day(rows)})


def _project_messages(failed: bool) -> Callable[[RowChunk], pa.Table]:
    def project(chunk: RowChunk) -> pa.Table:
        rows = chunk.decoded_rows
        return rows.filter((pc.is_valid if failed else pc.is_null)(rows["reason"]))

    return project


def _without_columns(columns: pa.Schema, *computed: str) -> pa.Schema:
    return pa.schema([column for column in columns if column.name not in computed])


_PLACED = (schema.RECEIVED_AT, *schema.PLACE)
LOSS_COLUMN = pa.field(
    "loss",
    pa.struct(
        [
            column
            for column in schema.LOSS
            if column.name not in ("at", "partition", "offset", "day")
        ]
    ),
)
"Column of a row that is a loss record; null for a sample."
_MESSAGES = _without_columns(TABLES["messages"].schema, "hlc", "day")
_REASON = pa.field("reason", pa.string())
PROJECTIONS = {
    "samples": Projection("received_samples", lambda c: c.unique_samples, schema.SAMPLE),
    "latest": Projection(
        "received_samples",
        lambda c: conform(keep_newest(c.unique_samples), schema.LATEST),
        schema.SAMPLE,
    ),
    "health": Projection(
        "received_samples", lambda c: compute_health(c.received_samples), schema.SAMPLE
    ),
    "loss": Projection("loss_rows", _project_losses, pa.schema([*_PLACED, LOSS_COLUMN])),
    "messages": Projection("rows", _project_messages(False), pa.schema([*_MESSAGES, _REASON])),
    "messages_failed": Projection(
        "rows",
        _project_messages(True),
        _without_columns(TABLES["messages_failed"].schema, "hlc", "day"),
    ),
}
_USER_TABLE = Projection("rows", lambda c: c.rows, pa.schema([]))
"Projection of a user-defined table, which stores the rows unchanged."


def define_table(name: str, rows: pa.Schema, partition_by: str | None) -> TableDefinition:
    """Return the built-in table `name`, or a user-defined one with the columns of `rows`."""
    return TABLES.get(name) or TableDefinition(name, rows, partition_by)


def check_columns(rows: pa.Schema, into: Sequence[str], partition_by: str | None) -> None:
    """Raise ZError if rows with these columns cannot go into the tables `into`."""
    for name in into:
        for column in PROJECTIONS.get(name, _USER_TABLE).required:
            index = rows.get_field_index(column.name)
            if index < 0:
                raise ZError(
                    f"table {name!r} needs a column {column.name!r}, and the rows have "
                    f"{', '.join(rows.names)}: select it, or take {name!r} out of 'into'"
                )
            if not equal_types(rows.field(index).type, column.type):
                raise ZError(
                    f"table {name!r} needs column {column.name!r} as {column.type}, and it is "
                    f"{rows.field(index).type}: cast it"
                )
    own = [name for name in into if name not in TABLES]
    if partition_by is not None and (not own or partition_by not in rows.names):
        raise ZError(
            f"option 'partitionBy': {partition_by!r} "
            + (f"is none of {', '.join(rows.names)}" if own else "is for a table of your own only")
        )


def equal_types(first: pa.DataType, other: pa.DataType) -> bool:
    """Tell whether two types are equal, ignoring which fields are nullable.

    >>> nullable, required = pa.field("a", pa.int8()), pa.field("a", pa.int8(), False)
    >>> equal_types(pa.struct([nullable]), pa.struct([required]))
    True
    """
    if pa.types.is_struct(first) and pa.types.is_struct(other):
        return first.names == other.names and all(
            equal_types(a.type, b.type) for a, b in zip(first.fields, other.fields, strict=True)
        )
    return bool(first == other)


# ---- rows


def split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the batch in parts within the buffer bounds, halved as often as needed."""
    waiting = [batch]
    while waiting:
        part = waiting.pop()
        if part.num_rows > 1 and (
            part.num_rows > MAX_BUFFER_ROWS or part.nbytes > MAX_BUFFER_BYTES
        ):
            half = part.num_rows // 2
            waiting += [part.slice(half), part.slice(0, half)]
        else:
            yield part


def find_offset_ranges(rows: pa.Table) -> OffsetRanges:
    """Return the lowest and highest offset of each log partition in `rows`.

    >>> place = {"partition": pa.array([0, 0, 3], pa.int32()), "offset": [7, 5, 9]}
    >>> find_offset_ranges(pa.table(place))
    {0: (5, 7), 3: (9, 9)}
    """
    columns = zip(rows.schema.names, rows.schema.types, strict=True)
    if not {(column.name, column.type) for column in schema.PLACE} <= set(columns):
        return {}  # A user-defined table without these columns, or with other meanings of them.
    low_high = rows.select(["partition", "offset"]).drop_null().group_by("partition")
    found = low_high.aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    return {row["partition"]: (row["offset_min"], row["offset_max"]) for row in found}


def merge_offset_ranges(ranges: Sequence[OffsetRanges]) -> OffsetRanges:
    """Return ranges that cover all the given ones, by partition.

    >>> merge_offset_ranges([{0: (5, 7)}, {0: (2, 6), 1: (0, 0)}])
    {0: (2, 7), 1: (0, 0)}
    """
    found: OffsetRanges = {}
    for offsets in ranges:
        for partition, (low, high) in offsets.items():
            before = found.get(partition, (low, high))
            found[partition] = min(low, before[0]), max(high, before[1])
    return found


# ---- a task


@dataclass
class TaskOutput:
    """Files that a task wrote for the commit, by table."""

    rows: int = 0
    added: dict[str, list[AddedFile]] = field(default_factory=dict)
    "Data files to append."
    staged: dict[str, list[str]] = field(default_factory=dict)
    "Paths of Arrow files with reduced rows to fold."
    ranges: dict[str, OffsetRanges] = field(default_factory=dict)
    "Offsets of the rows that the table has taken."


class TableWriter:
    """Writer of record batches to the files of several tables, within the bounds above."""

    def __init__(
        self,
        stores: Mapping[str, DeltaStore],
        staging_folder: str,
        *,
        decode: Decode | None = None,
        present: Mapping[str, Mapping[int, int]] | None = None,
        finds_ranges: bool = True,
    ) -> None:
        """`staging_folder` is a relative path that no other batch uses.

        `decode` makes messages of samples. `present` has by table the next offset of each log
        partition that the table does not have: rows below are left out. `finds_ranges` is False
        if the caller knows the offsets of the rows.
        """
        self._stores = stores
        self._staging_folder = staging_folder
        self._decode = decode
        self._present = present or {}
        self._finds_ranges = finds_ranges
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._reduced: dict[str, list[pa.Table]] = {}
        self.output = TaskOutput()
        "Files written so far."

    def add(self, batch: pa.RecordBatch) -> None:
        for part in split_batch(batch):
            rows, size = self._rows + part.num_rows, self._bytes + part.nbytes
            if self._waiting and (rows > MAX_BUFFER_ROWS or size > MAX_BUFFER_BYTES):
                self._flush()
            self._waiting.append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes

    def finish(self) -> TaskOutput:
        """Write everything that is buffered; return the files of this task."""
        self._flush()
        for name in [*self._reduced]:
            self._stage(name)
        return self.output

    def _flush(self) -> None:
        if self._rows:
            chunk = RowChunk(pa.Table.from_batches(self._waiting), self._decode)
            self.output.rows += self._rows
            for name in self._stores:
                present = self._present.get(name)
                wanted = chunk.since(present) if present else chunk
                if wanted.rows.num_rows:
                    self._project(name, wanted)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def _project(self, name: str, chunk: RowChunk) -> None:
        projection, store = PROJECTIONS.get(name, _USER_TABLE), self._stores[name]
        output = self.output
        if self._finds_ranges:
            output.ranges[name] = merge_offset_ranges(
                [output.ranges.get(name, {}), chunk.offset_ranges(projection.source)]
            )
        rows = projection.project(chunk)
        if not rows.num_rows:
            return
        if store.table.fold is None:
            output.added.setdefault(name, []).extend(_write_files(store, rows))
        else:
            self._reduced.setdefault(name, []).append(rows)
            self._reduce_waiting(name)

    def _reduce_waiting(self, name: str) -> None:
        """Fold the reduced rows once more if there are many; stage them if many remain."""
        waiting = self._reduced[name]
        if not _exceeds_buffer(waiting):
            return
        fold = self._stores[name].table.fold
        assert fold is not None
        self._reduced[name] = [fold(pa.concat_tables(waiting))]
        if _exceeds_buffer(self._reduced[name], 2):
            self._stage(name)

    def _stage(self, name: str) -> None:
        rows = pa.concat_tables(self._reduced.pop(name))
        folder = self._stores[name].path / STAGED / self._staging_folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{uuid.uuid4().hex}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        self.output.staged.setdefault(name, []).append(str(path))


def _exceeds_buffer(tables: Sequence[pa.Table], part: int = 1) -> bool:
    """Tell whether the tables exceed 1/`part` of the bounds."""
    rows: int = sum(table.num_rows for table in tables)
    size: int = sum(table.nbytes for table in tables)
    return rows > MAX_REDUCED_ROWS // part or size > MAX_BUFFER_BYTES // part


def _write_files(store: DeltaStore, rows: pa.Table) -> list[AddedFile]:
    """Write one file per value of the partition column. ZError: there are too many values."""
    by = store.table.partition_by
    count = 1 if by is None else len(pc.unique(rows[by]))
    if count > MAX_PARTITION_VALUES:
        raise ZError(
            f"table {store.table.name!r}: column {by!r} has {count} values among {len(rows)} "
            f"rows, more than {MAX_PARTITION_VALUES}: partition by one that has few, such as a day"
        )
    return store.write(rows)


# ---- the commit


def commit_numbered(store: DeltaStore, tasks: Sequence[TaskOutput], batch: TableBatch) -> None:
    """Commit a numbered batch with the offsets of its rows, if it has any rows for the table."""
    name = store.table.name
    offsets = merge_offset_ranges([task.ranges.get(name, {}) for task in tasks])
    if offsets or any(name in task.added or name in task.staged for task in tasks):
        commit_table(store, tasks, replace(batch, offsets=offsets))


def commit_resumed(
    store: DeltaStore,
    tasks: Sequence[TaskOutput],
    present: Sequence[Mapping[int, int]],
    log: str | None = None,
) -> None:
    """Commit rows that `present`, the table's offsets as each task saw them, did not have yet.

    `log` is the id of the log, if it is known. It is checked and not recorded: the offsets of such
    a table end at its last row, and do not tell how far its flow has come.
    """
    if log is not None:
        check_log(store, log)
    name = store.table.name
    if any(offsets != present[0] for offsets in present):
        raise StoreError(
            f"{store.path}: another process writes this table: stop it. Nothing was committed, "
            "the batch runs again"
        )
    offsets = merge_offset_ranges([task.ranges.get(name, {}) for task in tasks])
    if offsets:
        ranges = {number: (first, last + 1) for number, (first, last) in offsets.items()}
        commit_table(store, tasks, RangeBatch(ranges, present[0]))


def commit_table(store: DeltaStore, tasks: Sequence[TaskOutput], batch: Batch) -> None:
    """Commit the tasks' output for one table; no-op if the batch is already committed."""
    name = store.table.name
    added = [file for task in tasks for file in task.added.get(name, ())]
    staged = [Path(path) for task in tasks for path in task.staged.get(name, ())]
    if name == LATEST.name:
        _fold_latest(store, staged, batch)
    elif name == HEALTH.name:
        fold_health(store, _read_staged(staged, store), batch)
    else:
        append_files(store, added, batch)


def unstage(tasks: Iterable[TaskOutput]) -> None:
    """Delete the staged files of these tasks only: another driver may run the same batch."""
    paths = [Path(path) for task in tasks for paths in task.staged.values() for path in paths]
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths}:
        with suppress(OSError):  # The folder has files of another attempt or batch.
            folder.rmdir()
            folder.parent.rmdir()


def _fold_latest(store: DeltaStore, staged: list[Path], batch: Batch) -> None:
    """Fold the staged rows in parts. Folding rows twice changes nothing, so a crash is safe."""
    tombstones = DeltaStore(store.path.parent / TOMBSTONES.name, TOMBSTONES)
    *parts, last = _group_by_size(staged) or [[]]
    for part in parts:
        fold_latest(store, tombstones, _read_staged(part, store), batch.as_part())
    fold_latest(store, tombstones, _read_staged(last, store), batch)


def _group_by_size(staged: Sequence[Path]) -> list[list[Path]]:
    """Group files up to MAX_FOLD_BYTES; a larger file is alone in its group."""
    groups: list[list[Path]] = []
    total = 0
    for path in staged:
        size = path.stat().st_size
        if not groups or total + size > MAX_FOLD_BYTES:
            groups.append([])
            total = 0
        groups[-1].append(path)
        total += size
    return groups


def _read_staged(staged: Sequence[Path], store: DeltaStore) -> pa.Table:
    found = []
    for path in staged:
        with pa.OSFile(str(path)) as file:
            found.append(pa.ipc.open_file(file).read_all())
    return pa.concat_tables(found) if found else store.table.schema.empty_table()
