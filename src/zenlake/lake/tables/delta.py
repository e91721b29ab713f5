"""One Delta table: its files read, new files written, and the one commit that changes it.

Knows Parquet, Delta's log and Delta's transactions. Does not know what the rows mean, nor Spark.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from zenlake.errors import ZError
from zenlake.lake.tables import migrate
from zenlake.lake.tables.definitions import SCHEMA_PROPERTY, SCHEMA_VERSION, TableDefinition
from zenlake.lake.tables.dictionary import dictionary_encode, dictionary_schema, values_of
from zenlake.lake.tables.reduce import sorted_by

ROW_GROUP_ROWS = 32 << 10
MAX_ATTEMPTS = 10  # of one commit, while others commit, too
ZSTD_LEVEL = 1
LOG = "_delta_log"
STAGED = "_staged"  # the folder of what is written and not yet folded
OFFSET_APP = "zenlake/offset/"  # + partition: version = the next offset not in the table
PARTITION_APP = "zenlake/partition/"  # + 0, 1, 2 ...: version = a partition that has an offset
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class StoreError(ZError):
    """A table that cannot be read or written; the message says which, why and what to do."""


class Conflict(StoreError):
    """Another commit changed what this one was made from: read again, and make it again."""


class Added(NamedTuple):
    """A file that was written and that no commit names yet. Travels between processes."""

    path: str  # in the table's folder, as it is on the disk
    size: int
    rows: int
    stats: str  # JSON, as Delta wants it
    partition: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class File:
    """A file of a snapshot; `low` and `high` bound those columns that have statistics."""

    path: str
    rows: int
    size: int
    partition: dict[str, str | None]
    low: dict[str, Any]
    high: dict[str, Any]
    modified: int  # milliseconds


class Snapshot:
    """The files of one version of a table; -1 is the table that does not exist yet."""

    def __init__(self, version: int, actions: pa.Table | None, table: TableDefinition) -> None:
        self.version = version
        self._actions = actions
        self._table = table

    @cached_property
    def files(self) -> tuple[File, ...]:
        if self._actions is None:
            return ()
        names = stats_columns(self._table)
        columns = {name: self._actions[name].to_pylist() for name in self._wanted(names)}
        parts = [name for name in columns if name.startswith("partition.")]

        def bounds(side: str, row: int) -> dict[str, Any]:
            found = {name: columns.get(f"{side}.{name}") for name in names}
            return {
                name: values[row]
                for name, values in found.items()
                if values is not None and values[row] is not None
            }

        return tuple(
            File(
                unquote(path),
                columns["num_records"][row] or 0,
                columns["size_bytes"][row],
                {name.removeprefix("partition."): _text(columns[name][row]) for name in parts},
                bounds("min", row),
                bounds("max", row),
                columns["modification_time"][row],
            )
            for row, path in enumerate(columns["path"])
        )

    def _wanted(self, names: Iterable[str]) -> list[str]:
        wanted = {"path", "size_bytes", "num_records", "modification_time"}
        wanted |= {f"{side}.{name}" for side in ("min", "max") for name in names}
        assert self._actions is not None
        return [
            name
            for name in self._actions.column_names
            if name in wanted or name.startswith("partition.")
        ]

    @property
    def rows(self) -> int:
        """Of all files, without looking at each."""
        if self._actions is None:
            return 0
        return pc.sum(self._actions["num_records"]).as_py() or 0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        if self._actions is None:
            return 0
        return pc.sum(self._actions["size_bytes"]).as_py() or 0


class DeltaStore:
    """One table in a folder. Made for one thread; the folder is created by the first commit.

    A commit stands on the last `snapshot()`: if another one changed what it removes or one of its
    transactions since, it is refused by Conflict and nothing has happened.
    """

    def __init__(self, path: str | os.PathLike[str], table: TableDefinition) -> None:
        self.path = Path(path)
        self.table = table
        self.conflicts = 0  # commits that had to be tried again
        self._delta: deltalake.DeltaTable | None = None
        self._snapshot: Snapshot | None = None
        self._seen = (0, 0)  # the folder of Delta's log
        self._prepared = False  # for writing: an older table was brought to today's columns

    # ---- reading

    def exists(self) -> bool:
        return (self.path / LOG).is_dir()

    def snapshot(self) -> Snapshot:
        """The table as it is now. Costs two `stat` while nothing changes."""
        if self._snapshot is not None and self._is_newer():
            self._refresh()
        return self.current

    @property
    def current(self) -> Snapshot:
        """The last snapshot, without looking for a newer one."""
        if self._snapshot is None:
            self._refresh()
        assert self._snapshot is not None
        return self._snapshot

    def transaction(self, app: str) -> int | None:
        """The version that `app` last committed in the last snapshot; None: it never did."""
        if self.current.version < 0 or self._delta is None:
            return None
        return self._delta.transaction_version(app)

    def offsets(self) -> dict[int, int]:
        """For each partition of the log the next offset that is not in the table."""
        found = {}
        for partition in self._partitions():
            offset = self.transaction(f"{OFFSET_APP}{partition}")
            if offset is not None:
                found[partition] = offset
        return found

    def property(self, name: str) -> str | None:
        """A table property, such as the version of the schema."""
        self.snapshot()
        return None if self._delta is None else self._delta.metadata().configuration.get(name)

    def dataset(self, files: Iterable[File | Added] | None = None) -> ds.FileSystemDataset:
        """Files as one Arrow dataset, partition column included; all of the snapshot for None.

        Raises FileNotFoundError, here or while it is read, if a file was vacuumed meanwhile.
        """
        chosen = self.snapshot().files if files is None else files
        form = ds.ParquetFileFormat()
        local = pa.fs.LocalFileSystem()
        fragments = [
            form.make_fragment(str(self.path / one.path), local, self._expression(one.partition))
            for one in chosen
        ]
        return ds.FileSystemDataset(fragments, self.table.schema, form, local)

    def read(
        self,
        files: Iterable[File | Added] | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's name
    ) -> pa.Table:
        """Rows of files; row groups whose statistics exclude them are not read."""
        wanted = list(self.table.schema.names if columns is None else columns)
        chosen = list(self.snapshot().files if files is None else files)
        if not chosen:
            return self.table.schema.empty_table().select(wanted)
        return self.dataset(chosen).to_table(columns=wanted, filter=filter)

    # ---- writing files

    def write(self, rows: pa.Table) -> list[Added]:
        """Rows as files, one for each value of the partition column; none for no rows."""
        by = self.table.partition_by
        if by is None:
            return [self.write_file(rows)] if rows.num_rows else []
        values = pc.unique(rows[by])
        if len(values) == 1:
            return [self.write_file(rows)]
        return [
            self.write_file(
                rows.filter(pc.equal(rows[by], one) if one.is_valid else rows[by].is_null())
            )
            for one in values
        ]

    def write_file(self, rows: pa.Table, day: date | str | None = None) -> Added:
        """One Parquet file, sorted by the table's order and on the disk; not in the table yet.

        `day` is the value of the partition column, if `rows` lacks it.
        """
        by = self.table.partition_by
        if by is not None and day is None:
            values = pc.unique(rows[by])
            if len(values) != 1:
                raise StoreError(
                    f"{self.path}: a file holds one {by}, not {len(values)}: use write()"
                )
            day = _text(values[0].as_py())
        with self.writer(None if by is None else _text(day)) as file:
            file.write(sorted_by(dictionary_encode(rows.select(file.names)), self.table.order))
        assert file.added is not None
        return file.added

    @contextmanager
    def writer(self, partition: str | None = None) -> Iterator["FileWriter"]:
        """A file that is written piece by piece, in order; after an error it does not exist."""
        file = FileWriter(self, partition)
        try:
            yield file
            file.close()
        except BaseException:
            file.discard()
            raise

    # ---- the commit

    def commit(
        self,
        added: Iterable[Added] = (),
        removed: Iterable[File] = (),
        transactions: Mapping[str, int] | None = None,
        data_change: bool = True,
    ) -> int:
        """Files in, files out and transactions, all or nothing; a version that has them.

        `data_change` False says that the rows are the same in other files.
        """
        added, removed = list(added), list(removed)
        seen = {app: self.transaction(app) for app in transactions or {}}
        delta = self._create()  # which may look again, and see more than the caller has
        named = self._named(dict(transactions or {}))
        before = {app: self.transaction(app) for app in named} | seen
        self._still(removed, before, None)
        self._whole(added)
        for _ in range(MAX_ATTEMPTS):
            try:
                self._try(delta, added, removed, named, data_change)
            except CommitFailedError as error:
                self.conflicts += 1
                self._refresh()
                self._still(removed, before, error)
            except DeltaError as error:
                raise StoreError(f"{self.path}: the commit failed: {_first_line(error)}") from error
            else:
                return self._committed()
        raise StoreError(
            f"{self.path}: others commit all the time, {MAX_ATTEMPTS} attempts failed: "
            "see that one process only writes and compacts this table, then try again"
        )

    def _try(
        self,
        delta: deltalake.DeltaTable,
        added: list[Added],
        removed: list[File],
        transactions: dict[str, int],
        data_change: bool,
    ) -> None:
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(one.path, one.size, one.partition, now, data_change, one.stats)
            for one in added
        ]
        actions += [
            RemoveAction(one.path, data_change, now, one.size, one.partition) for one in removed
        ]
        delta.create_write_transaction(
            actions,
            "append",
            delta.schema(),
            self.table.partition_by,
            commit_properties=deltalake.CommitProperties(
                app_transactions=[
                    deltalake.Transaction(app, version, now)
                    for app, version in transactions.items()
                ],
                max_commit_retries=0,  # else a lost race against a compaction goes unnoticed
            ),
        )

    def _still(
        self, removed: list[File], before: dict[str, int | None], error: Exception | None
    ) -> None:
        """Whether a commit still makes sense, so that one that lost a race is tried again."""
        there = {file.path for file in self.current.files} if removed else set()
        if any(file.path not in there for file in removed):
            raise Conflict(f"{self.path}: files to be replaced are gone already") from error
        if any(self.transaction(app) != version for app, version in before.items()):
            raise Conflict(f"{self.path}: another writer committed its batch") from error

    def _whole(self, added: list[Added]) -> None:
        """Names no file that somebody has taken for a leftover meanwhile."""
        for one in added:
            path = self.path / one.path
            if not path.is_file() or path.stat().st_size != one.size:
                raise StoreError(
                    f"{path} is gone or cut, and nothing was committed (vacuumed, by a clock that "
                    "jumped?): run the batch again, which writes it again"
                )

    def _named(self, transactions: dict[str, int]) -> dict[str, int]:
        """With what `offsets` needs to find them; an offset never goes back."""
        known = self._partitions()
        for app, version in list(transactions.items()):
            if not app.startswith(OFFSET_APP):
                continue
            transactions[app] = max(version, self.transaction(app) or 0)
            partition = int(app.removeprefix(OFFSET_APP))
            if partition not in known:
                transactions[f"{PARTITION_APP}{len(known)}"] = partition
                known.append(partition)
        return transactions

    def _partitions(self) -> list[int]:
        found: list[int] = []
        while (one := self.transaction(f"{PARTITION_APP}{len(found)}")) is not None:
            found.append(one)
        return found

    def _committed(self) -> int:
        before = self.current.version
        self._refresh()
        for version in range(before + 1, self.current.version + 1):
            sync(self.path / LOG / f"{version:020}.json")
        sync(self.path / LOG)
        return self.current.version

    # ---- Delta's log

    def _create(self) -> deltalake.DeltaTable:
        if self.current.version < 0:
            self.path.mkdir(parents=True, exist_ok=True)
            with _named_errors(self.path):
                deltalake.DeltaTable.create(
                    self.path,
                    deltalake.Schema.from_arrow(self.table.schema),
                    mode="ignore",
                    partition_by=self.table.partition_by,
                    name=self.table.name,
                    configuration={SCHEMA_PROPERTY: str(SCHEMA_VERSION)},
                    raise_if_key_not_exists=False,
                )
            for made in (self.path / LOG / f"{0:020}.json", self.path / LOG, self.path):
                sync(made)
            sync(self.path.parent)
            self._refresh()
        elif not self._prepared and migrate.prepared(self):
            self._refresh()
        self._prepared = True
        assert self._delta is not None
        return self._delta

    def _is_newer(self) -> bool:
        log = self.path / LOG
        following = log / f"{self.current.version + 1:020}.json"
        return following.exists() or _identity(log) != self._seen

    def _refresh(self) -> None:
        seen = _identity(self.path / LOG)
        if seen[0] != self._seen[0]:  # the folder was moved away, or made anew
            self._delta = self._snapshot = None
        with _named_errors(self.path):
            if self._delta is not None:
                self._delta.update_incremental()
            elif self.exists() and deltalake.DeltaTable.is_deltatable(str(self.path)):
                self._delta = deltalake.DeltaTable(self.path)
            if self._delta is None:
                self._snapshot = Snapshot(-1, None, self.table)
            elif self._snapshot is None or self._delta.version() != self._snapshot.version:
                actions = pa.table(self._delta.get_add_actions(flatten=True))
                self._snapshot = Snapshot(self._delta.version(), actions, self.table)
        self._seen = seen

    def _expression(self, partition: Mapping[str, str | None]) -> pc.Expression | None:
        for name, text in partition.items():
            kind = self.table.schema.field(name).type
            value = pa.scalar(text).cast(kind) if text is not None else pa.scalar(None, kind)
            return pc.field(name).is_null() if text is None else pc.field(name) == value
        return None


class FileWriter:
    """One Parquet file of a table while it is written; `added` is set by `close`."""

    def __init__(self, store: DeltaStore, partition: str | None) -> None:
        table = store.table
        self.added: Added | None = None
        self.rows = 0
        self._store = store
        self._partition = {} if table.partition_by is None else {table.partition_by: partition}
        folder = "".join(f"{name}={_folder(value)}/" for name, value in self._partition.items())
        self._path = f"{folder}part-{uuid4().hex}.parquet"
        self._schema = pa.schema([one for one in table.schema if one.name != table.partition_by])
        self._stats = _Stats(stats_columns(table))
        self._whole.parent.mkdir(parents=True, exist_ok=True)
        self._file = pq.ParquetWriter(
            self._whole,
            dictionary_schema(self._schema),
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=_leaves(self._schema, pa.types.is_string),
            column_encoding=dict.fromkeys(_leaves(self._schema, _is_wide), "DELTA_BINARY_PACKED"),
            write_page_index=True,
            store_schema=False,  # it would say that texts are dictionaries
        )

    @property
    def names(self) -> list[str]:
        """The columns of the file."""
        return list(self._schema.names)

    @property
    def _whole(self) -> Path:
        return self._store.path / self._path

    @property
    def size(self) -> int:
        """Bytes on the disk so far."""
        return self._whole.stat().st_size

    def write(self, rows: pa.Table) -> None:
        """Rows that follow those before; the partition column may be left out."""
        rows = dictionary_encode(rows.select(self.names)).cast(dictionary_schema(self._schema))
        self._file.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        self._stats.add(rows)
        self.rows += rows.num_rows

    def close(self) -> Added:
        """The file is whole and on the disk."""
        self._file.close()
        sync(self._whole)
        for folder in {self._whole.parent, self._store.path}:
            sync(folder)
        self.added = Added(
            self._path, self.size, self.rows, self._stats.json(self.rows), self._partition
        )
        return self.added

    def discard(self) -> None:
        with suppress(OSError, pa.ArrowException):
            self._file.close()
        self._whole.unlink(missing_ok=True)


@dataclass
class _Stats:
    """The lowest and the highest of some columns, over all pieces of a file."""

    names: Sequence[str]
    low: dict[str, Any] = field(default_factory=dict)
    high: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        for name in self.names:
            if name not in rows.column_names:
                continue
            column = rows[name]
            self.nulls[name] = self.nulls.get(name, 0) + column.null_count
            both = pc.min_max(values_of(column))
            low, high = both["min"].as_py(), both["max"].as_py()
            if low is not None:
                self.low[name] = min(self.low.get(name, low), low)
                self.high[name] = max(self.high.get(name, high), high)

    def json(self, rows: int) -> str:
        stats = {
            "numRecords": rows,
            "minValues": {name: _json(value) for name, value in self.low.items()},
            "maxValues": {name: _json(value) for name, value in self.high.items()},
            "nullCount": self.nulls,
        }
        return json.dumps(stats, separators=(",", ":"))


def stats_columns(table: TableDefinition) -> list[str]:
    """Which columns of a table's files have statistics in Delta's log.

    Numbers and times, and those texts that the table is sorted by.
    """
    return [
        one.name
        for one in table.schema
        if one.name != table.partition_by
        and (
            pa.types.is_integer(one.type)
            or pa.types.is_timestamp(one.type)
            or (pa.types.is_string(one.type) and one.name in table.order)
        )
    ]


def sync(path: Path) -> None:
    """What a file holds, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        raise StoreError(
            f"{path}: not a Delta table that can be read here: {_first_line(error)}; "
            "see what stands in _delta_log, or move the folder away to begin anew"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]  # what follows is a stack of addresses


def _leaves(fields: Iterable[pa.Field], chosen: Callable[[pa.DataType], bool]) -> list[str]:
    """Parquet's names of the columns of a type, structs looked into."""
    found: list[str] = []
    for one in fields:
        if pa.types.is_struct(one.type):
            found += [f"{one.name}.{inner}" for inner in _leaves(one.type.fields, chosen)]
        elif chosen(one.type):
            found.append(one.name)
    return found


def _is_wide(kind: pa.DataType) -> bool:
    """Numbers and times of 64 bits: as differences they are smaller, and faster to write."""
    return bool(pa.types.is_int64(kind) or pa.types.is_timestamp(kind))


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


def _text(value: Any) -> str | None:
    """A partition value as Delta writes it."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _folder(value: str | None) -> str:
    return NULL_PARTITION if not value else quote(value, safe=" ")


def _identity(path: Path) -> tuple[int, int]:
    """Which folder it is, and when it changed; zeros if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns
