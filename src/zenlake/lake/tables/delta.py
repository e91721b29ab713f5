"""One Delta table: reads its files, writes new files and commits changes.

Knows Parquet, Delta's log and Delta's transactions. Does not know Spark or what the rows mean.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
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
from zenlake.lake.tables.dictionary import dictionary_encode, dictionary_schema, distinct_values
from zenlake.lake.tables.reduce import sort_rows

ROW_GROUP_ROWS = 32 << 10
MAX_ATTEMPTS = 10  # Attempts per commit while other writers commit.
ZSTD_LEVEL = 1
LOG = "_delta_log"
STAGED = "_staged"  # Folder of rows that are written and not folded yet.
OFFSET_APP = "zenlake/offset/"
"Prefix of the transaction id for a log partition; its version is the next offset not in the table."
PARTITION_APP = "zenlake/partition/"
"Prefix of transaction ids 0, 1, 2, ... whose versions list the log partitions with an offset."
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class StoreError(ZError):
    """Table that cannot be read or written; the message says which, why and what to do."""


class CommitConflict(StoreError):
    """Concurrent commit changed the data this commit is based on: read again and retry."""


class AddedFile(NamedTuple):
    """Written file that no commit names yet. Can be sent between processes."""

    path: str
    "Path relative to the folder of the table, not URL-encoded."
    size: int
    rows: int
    stats: str
    "Statistics in Delta's JSON form."
    partition: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class DataFile:
    """File of a snapshot."""

    path: str
    rows: int
    size: int
    partition: dict[str, str | None]
    low: dict[str, Any]
    "Lowest value of each column that has statistics."
    high: dict[str, Any]
    "Highest value of each column that has statistics."


class Snapshot:
    """Files of one version of a table; version -1 stands for a table that does not exist yet."""

    def __init__(self, version: int, actions: pa.Table | None, table: TableDefinition) -> None:
        self.version = version
        self._actions = actions
        self._table = table

    @cached_property
    def files(self) -> tuple[DataFile, ...]:
        if self._actions is None:
            return ()
        names = stats_columns(self._table)
        present = self._actions.column_names
        low, high = ({f"{side}.{name}": name for name in names} for side in ("min", "max"))
        parts = {
            name: name.removeprefix("partition.")
            for name in present
            if name.startswith("partition.")
        }
        wanted = {"path", "size_bytes", "num_records", *low, *high, *parts}
        rows = self._actions.select([name for name in present if name in wanted]).to_pylist()

        def bounds(row: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
            return {name: row[at] for at, name in columns.items() if row.get(at) is not None}

        return tuple(
            DataFile(
                unquote(row["path"]),
                row["num_records"] or 0,
                row["size_bytes"],
                {name: _partition_text(row[column]) for column, name in parts.items()},
                bounds(row, low),
                bounds(row, high),
            )
            for row in rows
        )

    @property
    def rows(self) -> int:
        """Number of rows of all files, without building `files`."""
        if self._actions is None:
            return 0
        return pc.sum(self._actions["num_records"]).as_py() or 0


class DeltaStore:
    """One table in a folder, used by one thread; the first commit creates the folder.

    A commit is based on the last `snapshot()`. If another commit has since changed a file it
    removes or one of its transactions, it raises CommitConflict and changes nothing.
    """

    def __init__(self, path: str | os.PathLike[str], table: TableDefinition) -> None:
        self.path = Path(path)
        self.table = table
        self.conflicts = 0  # Commits that had to be tried again.
        self._delta: deltalake.DeltaTable | None = None
        self._snapshot: Snapshot | None = None
        self._seen = (0, 0)  # Identity of the folder of Delta's log at the last refresh.
        self._prepared = False  # Whether the table was created or migrated for writing.
        self._transactions: dict[str, int | None] = {}
        "Transactions of `current` that were asked for or committed, by app."

    # ---- reading

    def exists(self) -> bool:
        return (self.path / LOG).is_dir()

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot. Costs two `stat` calls while nothing changes."""
        if self._snapshot is not None and self._has_changed():
            self._refresh()
        return self.current

    @property
    def current(self) -> Snapshot:
        """Last snapshot, without looking for a newer one."""
        if self._snapshot is None:
            self._refresh()
        assert self._snapshot is not None
        return self._snapshot

    def transaction(self, app: str) -> int | None:
        """Return the version that `app` committed last, as of `current`; None if it never did."""
        if self.current.version < 0 or self._delta is None:
            return None
        if app not in self._transactions:  # delta-rs reads its log again for each call.
            self._transactions[app] = self._delta.transaction_version(app)
        return self._transactions[app]

    def offsets(self) -> dict[int, int]:
        """Return for each log partition the next offset that is not in the table."""
        found = {}
        for partition in self._known_partitions():
            offset = self.transaction(f"{OFFSET_APP}{partition}")
            if offset is not None:
                found[partition] = offset
        return found

    def dataset(self, files: Iterable[DataFile | AddedFile]) -> ds.FileSystemDataset:
        """Return files as one Arrow dataset with the partition column.

        Raises FileNotFoundError, here or while it is read, if a file was vacuumed meanwhile.
        """
        form = ds.ParquetFileFormat()
        local = pa.fs.LocalFileSystem()
        fragments = [
            form.make_fragment(
                str(self.path / file.path), local, self._partition_filter(file.partition)
            )
            for file in files
        ]
        return ds.FileSystemDataset(fragments, self.table.schema, form, local)

    def read(
        self,
        files: Iterable[DataFile | AddedFile] | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's name
    ) -> pa.Table:
        """Read rows of files, by default all; skips row groups that statistics rule out."""
        wanted = list(self.table.schema.names if columns is None else columns)
        chosen = list(self.snapshot().files if files is None else files)
        if not chosen:
            return self.table.schema.empty_table().select(wanted)
        return self.dataset(chosen).to_table(columns=wanted, filter=filter)

    # ---- writing files

    def write(self, rows: pa.Table) -> list[AddedFile]:
        """Write rows as files, one per value of the partition column; no file without rows."""
        by = self.table.partition_by
        if by is None:
            return [self.write_file(rows)] if rows.num_rows else []
        values = pc.unique(rows[by])
        if len(values) == 1:
            return [self.write_file(rows)]
        return [
            self.write_file(
                rows.filter(pc.equal(rows[by], value) if value.is_valid else rows[by].is_null())
            )
            for value in values
        ]

    def write_file(self, rows: pa.Table) -> AddedFile:
        """Write one durable Parquet file sorted by the table's order; it is not committed yet."""
        by = self.table.partition_by
        partition = None
        if by is not None:
            values = pc.unique(rows[by])
            if len(values) != 1:
                raise StoreError(
                    f"{self.path}: a file holds one {by}, not {len(values)}: use write()"
                )
            partition = _partition_text(values[0].as_py())
        with self.writer(partition) as file:
            file.write(sort_rows(dictionary_encode(rows.select(file.names)), self.table.order))
        return file.added

    @contextmanager
    def writer(self, partition: str | None = None) -> Iterator["FileWriter"]:
        """Open a file for writing sorted pieces one after another; an error deletes the file."""
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
        added: Iterable[AddedFile] = (),
        removed: Iterable[DataFile] = (),
        transactions: Mapping[str, int] | None = None,
        data_change: bool = True,
    ) -> int:
        """Add files, remove files and record transactions atomically; return the new version.

        `data_change` is False if the rows only move to other files.
        """
        added, removed = list(added), list(removed)
        seen = {app: self.transaction(app) for app in transactions or {}}
        delta = self._open_for_writing()  # May refresh, and so see more than the caller has.
        named = self._add_partition_index(dict(transactions or {}))
        before = {app: self.transaction(app) for app in named} | seen
        self._check_conflicts(removed, before, None)
        self._check_files(added)
        for _ in range(MAX_ATTEMPTS):
            base = self.current.version
            try:
                self._commit_once(delta, added, removed, named, data_change)
            except CommitFailedError as error:
                self.conflicts += 1
                self._refresh()
                self._check_conflicts(removed, before, error)
            except DeltaError as error:
                raise StoreError(f"{self.path}: the commit failed: {_first_line(error)}") from error
            else:
                known = {**self._transactions, **named}
                version = self._sync_log()
                if version == base + 1:  # No other writer has changed them meanwhile.
                    self._transactions = known
                return version
        raise StoreError(
            f"{self.path}: {MAX_ATTEMPTS} attempts lost against other commits: let only one "
            "process write and compact this table, then try again"
        )

    def _commit_once(
        self,
        delta: deltalake.DeltaTable,
        added: list[AddedFile],
        removed: list[DataFile],
        transactions: dict[str, int],
        data_change: bool,
    ) -> None:
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, file.partition, now, data_change, file.stats)
            for file in added
        ]
        actions += [
            RemoveAction(file.path, data_change, now, file.size, file.partition) for file in removed
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
                max_commit_retries=0,  # Otherwise a lost race against compaction is not seen.
            ),
        )

    def _check_conflicts(
        self, removed: list[DataFile], before: dict[str, int | None], error: Exception | None
    ) -> None:
        """Raise CommitConflict unless a commit that lost a race may be tried again."""
        present = {file.path for file in self.current.files} if removed else set()
        if any(file.path not in present for file in removed):
            raise CommitConflict(f"{self.path}: files to be replaced are gone already") from error
        if any(self.transaction(app) != version for app, version in before.items()):
            raise CommitConflict(f"{self.path}: another writer committed its batch") from error

    def _check_files(self, added: list[AddedFile]) -> None:
        """Raise StoreError if a file was deleted meanwhile, as vacuum does with orphans."""
        for file in added:
            path = self.path / file.path
            if not path.is_file() or path.stat().st_size != file.size:
                raise StoreError(
                    f"{path} is gone or cut, and nothing was committed (vacuumed, by a clock that "
                    "jumped?): run the batch again, which writes it again"
                )

    def _add_partition_index(self, transactions: dict[str, int]) -> dict[str, int]:
        """Add the transactions by which `offsets` finds partitions; never decrease an offset."""
        known = self._known_partitions()
        for app, version in list(transactions.items()):
            if not app.startswith(OFFSET_APP):
                continue
            transactions[app] = max(version, self.transaction(app) or 0)
            partition = int(app.removeprefix(OFFSET_APP))
            if partition not in known:
                transactions[f"{PARTITION_APP}{len(known)}"] = partition
                known.append(partition)
        return transactions

    def _known_partitions(self) -> list[int]:
        found: list[int] = []
        while (number := self.transaction(f"{PARTITION_APP}{len(found)}")) is not None:
            found.append(number)
        return found

    def _sync_log(self) -> int:
        before = self.current.version
        self._refresh()
        for version in range(before + 1, self.current.version + 1):
            sync(self.path / LOG / f"{version:020}.json")
        sync(self.path / LOG)
        return self.current.version

    # ---- Delta's log

    def _open_for_writing(self) -> deltalake.DeltaTable:
        if self.current.version < 0:
            self.path.mkdir(parents=True, exist_ok=True)
            with _wrap_delta_errors(self.path):
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
        elif not self._prepared and migrate.prepare(self):
            self._refresh()
        self._prepared = True
        assert self._delta is not None
        return self._delta

    def _has_changed(self) -> bool:
        log = self.path / LOG
        following = log / f"{self.current.version + 1:020}.json"
        return following.exists() or _folder_identity(log) != self._seen

    def _refresh(self) -> None:
        seen = _folder_identity(self.path / LOG)
        if seen[0] != self._seen[0]:  # The folder was moved away or created again.
            self._delta = self._snapshot = None
            self._transactions = {}
        with _wrap_delta_errors(self.path):
            if self._delta is not None:
                self._delta.update_incremental()
            elif self.exists() and deltalake.DeltaTable.is_deltatable(str(self.path)):
                self._delta = deltalake.DeltaTable(self.path)
            if self._delta is None:
                self._snapshot = Snapshot(-1, None, self.table)
            elif self._snapshot is None or self._delta.version() != self._snapshot.version:
                actions = pa.table(self._delta.get_add_actions(flatten=True))
                self._snapshot = Snapshot(self._delta.version(), actions, self.table)
                self._transactions = {}
        self._seen = seen

    def _partition_filter(self, partition: Mapping[str, str | None]) -> pc.Expression | None:
        for name, text in partition.items():
            kind = self.table.schema.field(name).type
            value = pa.scalar(text).cast(kind) if text is not None else pa.scalar(None, kind)
            return pc.field(name).is_null() if text is None else pc.field(name) == value
        return None


class FileWriter:
    """One Parquet file of a table while it is written; `close` sets `added`."""

    added: AddedFile

    def __init__(self, store: DeltaStore, partition: str | None) -> None:
        table = store.table
        self.rows = 0
        self._store = store
        self._partition = {} if table.partition_by is None else {table.partition_by: partition}
        folder = "".join(
            f"{name}={_partition_folder(value)}/" for name, value in self._partition.items()
        )
        self._path = f"{folder}part-{uuid4().hex}.parquet"
        self._schema = pa.schema(
            [field for field in table.schema if field.name != table.partition_by]
        )
        self._stats = _Stats(stats_columns(table))
        self._full_path.parent.mkdir(parents=True, exist_ok=True)
        self._file = pq.ParquetWriter(
            self._full_path,
            dictionary_schema(self._schema),
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=_parquet_columns(self._schema, pa.types.is_string),
            column_encoding=dict.fromkeys(
                _parquet_columns(self._schema, _is_wide), "DELTA_BINARY_PACKED"
            ),
            write_page_index=True,
            store_schema=False,  # The stored schema would declare texts as dictionaries.
        )

    @property
    def names(self) -> list[str]:
        """Columns of the file."""
        return list(self._schema.names)

    @property
    def _full_path(self) -> Path:
        return self._store.path / self._path

    @property
    def size(self) -> int:
        """Bytes on disk so far."""
        return self._full_path.stat().st_size

    def write(self, rows: pa.Table) -> None:
        """Append rows that sort after all earlier ones; the partition column may be left out."""
        rows = dictionary_encode(rows.select(self.names)).cast(dictionary_schema(self._schema))
        self._file.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        self._stats.add(rows)
        self.rows += rows.num_rows

    def close(self) -> None:
        """Finish the file and make it durable."""
        self._file.close()
        sync(self._full_path)
        for folder in {self._full_path.parent, self._store.path}:
            sync(folder)
        self.added = AddedFile(
            self._path, self.size, self.rows, self._stats.json(self.rows), self._partition
        )

    def discard(self) -> None:
        with suppress(OSError, pa.ArrowException):
            self._file.close()
        self._full_path.unlink(missing_ok=True)


@dataclass
class _Stats:
    """Lowest and highest values and null counts of some columns over all pieces of a file."""

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
            both = pc.min_max(distinct_values(column))
            low, high = both["min"].as_py(), both["max"].as_py()
            if low is not None:
                self.low[name] = min(self.low.get(name, low), low)
                self.high[name] = max(self.high.get(name, high), high)

    def json(self, rows: int) -> str:
        stats = {
            "numRecords": rows,
            "minValues": {name: _json_value(value) for name, value in self.low.items()},
            "maxValues": {name: _json_value(value) for name, value in self.high.items()},
            "nullCount": self.nulls,
        }
        return json.dumps(stats, separators=(",", ":"))


def stats_columns(table: TableDefinition) -> list[str]:
    """Return the columns that have statistics in Delta's log.

    These are numbers, times, and the texts that the table is sorted by.
    """
    return [
        column.name
        for column in table.schema
        if column.name != table.partition_by
        and (
            pa.types.is_integer(column.type)
            or pa.types.is_timestamp(column.type)
            or (pa.types.is_string(column.type) and column.name in table.order)
        )
    ]


def uncompressed_bytes(footer: pq.FileMetaData) -> int:
    """Estimate the bytes of a file in memory; on disk it may be far smaller."""
    return sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))


def sync(path: Path) -> None:
    """Make the content of a file, or the entries of a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _wrap_delta_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        raise StoreError(
            f"{path}: not a Delta table that can be read here: {_first_line(error)}; "
            "check its _delta_log, or move the folder away to start with an empty table"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]  # A native stack trace follows.


def _parquet_columns(
    fields: Iterable[pa.Field], selects: Callable[[pa.DataType], bool]
) -> list[str]:
    """Return Parquet's names of the columns, also in structs, whose type `selects` accepts."""
    found: list[str] = []
    for column in fields:
        if pa.types.is_struct(column.type):
            inner = _parquet_columns(column.type.fields, selects)
            found += [f"{column.name}.{name}" for name in inner]
        elif selects(column.type):
            found.append(column.name)
    return found


def _is_wide(kind: pa.DataType) -> bool:
    """Tell whether a type is a 64-bit number or time: differences pack smaller and faster."""
    return bool(pa.types.is_int64(kind) or pa.types.is_timestamp(kind))


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


def _partition_text(value: Any) -> str | None:
    """Return a partition value as Delta writes it."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _partition_folder(value: str | None) -> str:
    return NULL_PARTITION if not value else quote(value, safe=" ")


def _folder_identity(path: Path) -> tuple[int, int]:
    """Return the inode and the change time of a folder; zeros if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns
