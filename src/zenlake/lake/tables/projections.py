"""Rows of a flow on their way into tables: files and reduced rows by tasks, commits by the driver.

Knows what each table takes of the rows it is given, and bounds. Does not know Spark; how a file or
a commit is made is storage/'s.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from zenlake.errors import ZError
from zenlake.lake.tables import schema
from zenlake.lake.tables.commit import TableBatch, append, fold, fold_health
from zenlake.lake.tables.definitions import TABLES, TOMBSTONES, TableDefinition
from zenlake.lake.tables.delta import STAGED, Added, DeltaStore
from zenlake.lake.tables.dictionary import dictionary_encode
from zenlake.lake.tables.reduce import conform, day_of, health_of, hlc_of, newest

MAX_BUFFER_ROWS = 1 << 19  # that wait to become one file of each table
MAX_BUFFER_BYTES = 128 << 20  # of them, as they came; sorting and writing take about as much again
MAX_REDUCED_ROWS = 1 << 18  # that wait to be staged
MAX_FOLD_BYTES = 512 << 20  # of reduced rows that are folded by one commit
MAX_VALUES = 1000  # of the partition column among the rows that wait

Ranges = dict[int, tuple[int, int]]
"The lowest and the highest offset by the partition of the log."


# ---- what tables take


class RowChunk:
    """Rows that become files together, and the parts of them that tables look at."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self.rows = dictionary_encode(pa.Table.from_batches(batches))
        self._ranges: dict[str, Ranges] = {}

    def ranges(self, part: str) -> Ranges:
        """Of `rows`, `given` or `losses`."""
        if part not in self._ranges:
            self._ranges[part] = ranges_of(getattr(self, part))
        return self._ranges[part]

    @cached_property
    def given(self) -> pa.Table:
        """The samples as they were given, repeated ones too."""
        if "loss" not in self.rows.column_names:
            return self.rows
        return self.rows.filter(pc.is_null(self.rows["loss"])).drop_columns("loss")

    @cached_property
    def losses(self) -> pa.Table:
        return self.rows.filter(pc.is_valid(self.rows["loss"]))

    @cached_property
    def samples(self) -> pa.Table:
        """Each sample once, with `hlc` and `day` by the rule, whatever the rows say of them."""
        rows = self.given
        if rows["key"].null_count:  # a loss, of which only the other columns are left
            rows = rows.filter(pc.is_valid(rows["key"]))
        if "duplicate" in rows.column_names:
            rows = rows.filter(pc.invert(rows["duplicate"].fill_null(False)))
        said = [name for name in ("hlc", "day") if name in rows.column_names]
        return _timed(rows.drop_columns(said) if said else rows)

    @cached_property
    def timed(self) -> pa.Table:
        """The rows, with `hlc` and `day`."""
        return _timed(self.rows)


def _timed(rows: pa.Table) -> pa.Table:
    if "hlc" not in rows.column_names:
        rows = rows.append_column(schema.HLC, hlc_of(rows))
    if "day" not in rows.column_names:
        rows = rows.append_column(schema.DAY, day_of(rows))
    return rows


class Projection(NamedTuple):
    """What a table takes: `part` of the rows it looks at, `form` what it makes of them."""

    part: str
    form: Callable[[RowChunk], pa.Table]
    needs: pa.Schema


def _losses(chunk: RowChunk) -> pa.Table:
    rows = chunk.losses
    loss = rows["loss"].combine_chunks()
    parts = dict(zip(loss.type.names, loss.flatten(), strict=True))
    at = rows["received_at"]
    place = {"partition": rows["partition"], "offset": rows["offset"]}
    return pa.table({"at": at, **parts, **place, "day": day_of(rows)})


def _decoded(failed: bool) -> Callable[[RowChunk], pa.Table]:
    def form(chunk: RowChunk) -> pa.Table:
        return chunk.timed.filter((pc.is_valid if failed else pc.is_null)(chunk.timed["reason"]))

    return form


def _but(columns: pa.Schema, *computed: str) -> pa.Schema:
    return pa.schema([one for one in columns if one.name not in computed])


_PLACED = (schema.RECEIVED_AT, *schema.PLACE)
_LOSS = pa.struct(
    [one for one in schema.LOSS if one.name not in ("at", "partition", "offset", "day")]
)
_MESSAGES = _but(TABLES["messages"].schema, "hlc", "day")
_REASON = pa.field("reason", pa.string())
PROJECTIONS = {
    "samples": Projection("given", lambda c: c.samples, schema.SAMPLE),
    "latest": Projection(
        "given", lambda c: conform(newest(c.samples), schema.LATEST), schema.SAMPLE
    ),
    "health": Projection("given", lambda c: health_of(c.given), schema.SAMPLE),
    "loss": Projection("losses", _losses, pa.schema([*_PLACED, pa.field("loss", _LOSS)])),
    "messages": Projection("rows", _decoded(False), pa.schema([*_MESSAGES, _REASON])),
    "messages_failed": Projection(
        "rows",
        _decoded(True),
        _but(TABLES["messages_failed"].schema, "hlc", "day"),
    ),
}
_OWN = Projection("rows", lambda c: c.rows, pa.schema([]))
"A table of the user's: the rows as they are."


def table_of(name: str, rows: pa.Schema, partition_by: str | None) -> TableDefinition:
    """The table of that name; one that is not known has the columns of `rows`."""
    return TABLES.get(name) or TableDefinition(name, rows, partition_by)


def check(rows: pa.Schema, into: Sequence[str], partition_by: str | None) -> None:
    """ZError: rows of this schema cannot go into these tables, and what to do about it."""
    for name in into:
        for wanted in PROJECTIONS.get(name, _OWN).needs:
            place = rows.get_field_index(wanted.name)
            if place < 0:
                raise ZError(
                    f"table {name!r} needs a column {wanted.name!r}, and the rows have "
                    f"{', '.join(rows.names)}: select it, or take {name!r} out of 'into'"
                )
            if not same(rows.field(place).type, wanted.type):
                raise ZError(
                    f"table {name!r} needs column {wanted.name!r} as {wanted.type}, and it is "
                    f"{rows.field(place).type}: cast it"
                )
    own = [name for name in into if name not in TABLES]
    if partition_by is not None and (not own or partition_by not in rows.names):
        raise ZError(
            f"option 'partitionBy': {partition_by!r} "
            + (f"is none of {', '.join(rows.names)}" if own else "is for a table of your own only")
        )


def same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether the types are equal, whatever may be null in them.

    >>> same(pa.struct([pa.field("a", pa.int8())]), pa.struct([pa.field("a", pa.int8(), False)]))
    True
    """
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return one.names == other.names and all(
            same(a.type, b.type) for a, b in zip(one.fields, other.fields, strict=True)
        )
    return bool(one == other)


# ---- rows


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, in halves of halves until each is within the bounds, or one row."""
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


def ranges_of(rows: pa.Table) -> Ranges:
    """
    >>> place = {"partition": pa.array([0, 0, 3], pa.int32()), "offset": [7, 5, 9]}
    >>> ranges_of(pa.table(place))
    {0: (5, 7), 3: (9, 9)}
    """
    columns = zip(rows.schema.names, rows.schema.types, strict=True)
    if not {(one.name, one.type) for one in schema.PLACE} <= set(columns):
        return {}  # of a user's table: it has none, or means something else by it
    low_high = rows.select(["partition", "offset"]).drop_null().group_by("partition")
    found = low_high.aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    return {one["partition"]: (one["offset_min"], one["offset_max"]) for one in found}


def joined(ranges: Sequence[Ranges]) -> Ranges:
    """
    >>> joined([{0: (5, 7)}, {0: (2, 6), 1: (0, 0)}])
    {0: (2, 7), 1: (0, 0)}
    """
    found: Ranges = {}
    for one in ranges:
        for partition, (low, high) in one.items():
            before = found.get(partition, (low, high))
            found[partition] = min(low, before[0]), max(high, before[1])
    return found


# ---- a task


@dataclass
class TaskOutput:
    """What a task leaves for the commit."""

    rows: int = 0
    added: dict[str, list[Added]] = field(default_factory=dict)
    staged: dict[str, list[str]] = field(default_factory=dict)
    ranges: dict[str, Ranges] = field(default_factory=dict)


class TableWriter:
    """Takes record batches, and holds no more of them than the bounds above."""

    def __init__(self, stores: Mapping[str, DeltaStore], place: str) -> None:
        """`place` tells what is staged apart from what other batches stage."""
        self._stores = stores
        self._place = place
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._reduced: dict[str, list[pa.Table]] = {}
        self._taken = TaskOutput()

    def add(self, batch: pa.RecordBatch) -> None:
        for part in pieces(batch):
            rows, size = self._rows + part.num_rows, self._bytes + part.nbytes
            if self._waiting and (rows > MAX_BUFFER_ROWS or size > MAX_BUFFER_BYTES):
                self._flush()
            self._waiting.append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes

    def finish(self) -> TaskOutput:
        """Everything is in files then."""
        self._flush()
        for name in [*self._reduced]:
            self._stage(name)
        return self._taken

    def _flush(self) -> None:
        if self._rows:
            chunk = RowChunk(self._waiting)
            self._taken.rows += self._rows
            for name in self._stores:
                self._give(name, chunk)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def _give(self, name: str, chunk: RowChunk) -> None:
        take, store, taken = PROJECTIONS.get(name, _OWN), self._stores[name], self._taken
        taken.ranges[name] = joined([taken.ranges.get(name, {}), chunk.ranges(take.part)])
        rows = take.form(chunk)
        if not rows.num_rows:
            return
        if store.table.fold is None:
            taken.added.setdefault(name, []).extend(_files(store, rows))
        else:
            self._reduced.setdefault(name, []).append(rows)
            self._settle(name)

    def _settle(self, name: str) -> None:
        """What waits to be staged is reduced once more, and staged if that was not enough."""
        waiting = self._reduced[name]
        if not _is_much(waiting):
            return
        fold = self._stores[name].table.fold
        assert fold is not None
        self._reduced[name] = [fold(pa.concat_tables(waiting))]
        if _is_much(self._reduced[name], 2):
            self._stage(name)

    def _stage(self, name: str) -> None:
        rows = pa.concat_tables(self._reduced.pop(name))
        folder = self._stores[name].path / STAGED / self._place
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{uuid.uuid4().hex}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        self._taken.staged.setdefault(name, []).append(str(path))


def _is_much(tables: Sequence[pa.Table], part: int = 1) -> bool:
    """Whether that is more than the `part`th part of what may wait."""
    rows: int = sum(one.num_rows for one in tables)
    size: int = sum(one.nbytes for one in tables)
    return rows > MAX_REDUCED_ROWS // part or size > MAX_BUFFER_BYTES // part


def _files(store: DeltaStore, rows: pa.Table) -> list[Added]:
    """A file for each value of the partition column."""
    by = store.table.partition_by
    count = 1 if by is None else len(pc.unique(rows[by]))
    if count > MAX_VALUES:
        raise ZError(
            f"table {store.table.name!r}: column {by!r} has {count} values among {len(rows)} "
            f"rows, more than {MAX_VALUES}: partition by one that has few, such as a day"
        )
    return store.write(rows)


# ---- the commit


def commit_table(store: DeltaStore, tasks: Sequence[TaskOutput], batch: TableBatch) -> None:
    """What tasks took for one table, into it, unless it has this batch already."""
    name = store.table.name
    added = [one for task in tasks for one in task.added.get(name, ())]
    staged = [Path(one) for task in tasks for one in task.staged.get(name, ())]
    offsets = joined([task.ranges.get(name, {}) for task in tasks])
    if added or staged or offsets:
        _COMMITTERS.get(name, _append)(store, added, staged, replace(batch, offsets=offsets))


class _FoldPart(TableBatch):
    """One of several folds of a batch: the last of them says that the batch is there."""

    @property
    def transactions(self) -> dict[str, int]:
        return {}


def _append(store: DeltaStore, added: list[Added], staged: list[Path], batch: TableBatch) -> None:
    append(store, added, batch)


def _latest(store: DeltaStore, added: list[Added], staged: list[Path], batch: TableBatch) -> None:
    """Again and again the same rows fold to the same table, so parts of a batch may go first."""
    tombstones = DeltaStore(store.path.parent / TOMBSTONES.name, TOMBSTONES)
    *parts, last = _groups(staged) or [[]]
    for part in parts:
        fold(store, tombstones, _read(part, store), _FoldPart(*astuple(batch)))
    fold(store, tombstones, _read(last, store), batch)


def _health(store: DeltaStore, added: list[Added], staged: list[Path], batch: TableBatch) -> None:
    fold_health(store, _read(staged, store), batch)


_COMMITTERS = {"latest": _latest, "health": _health}
"How a table takes what it does not simply append."


def _groups(staged: Sequence[Path]) -> list[list[Path]]:
    """Files together up to MAX_FOLD_BYTES, or one that is larger."""
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


def _read(staged: Sequence[Path], store: DeltaStore) -> pa.Table:
    found = []
    for path in staged:
        with pa.OSFile(str(path)) as file:
            found.append(pa.ipc.open_file(file).read_all())
    return pa.concat_tables(found) if found else store.table.schema.empty_table()
