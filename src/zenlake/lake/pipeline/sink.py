"""`format("zenoh-lake")`: stream sink that writes the rows of one flow to several tables.

Knows options and Spark's calls: `write` on executors, `commit` and `abort` on the driver. Only
these load Arrow and delta-rs, because Spark imports this file also in processes that only plan.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from zenlake.checked import unknown_option
from zenlake.errors import ZError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from zenlake.lake.tables.delta import DeltaStore
    from zenlake.lake.tables.projections import TaskOutput

OPTIONS = {
    "path": "the folder of the tables",
    "into": "names of tables, with commas between them",
    "flow": "the name of the flow, if it shall not be that of its tables",
    "partitionBy": "the column by which a table of your own is partitioned",
    "resume": "true: leave out rows at offsets that a built-in table has, from whatever query",
    "log": "the folder of the log that the offsets belong to; with `resume`",
    "state": "the folder of the query's own records, if not that of its checkpoint",
}
OF_SPARK = frozenset({"checkpointlocation", "queryname"})  # Options that Spark itself adds.
_FILE = re.compile(r"file:(?://)?(/(?!/).*)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")


class SinkOptions(NamedTuple):
    """Options of the sink, checked."""

    path: Path
    into: tuple[str, ...]
    flow: str
    partition_by: str | None = None
    resume: bool = False
    log: Path | None = None
    state: Path | None = None
    "Folder of the record of tables that the query has filled; None if it is not on this disk."

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> "SinkOptions":
        """ZError: names the option, and what to write instead.

        >>> SinkOptions.parse({"path": "/lake/tables", "into": "samples, latest"}).into
        ('samples', 'latest')
        >>> SinkOptions.parse({"path": "/lake/tables", "int": "samples"})
        Traceback (most recent call last):
        zenlake.errors.ZError: there is no option 'int'; did you mean 'into'?
        """
        given = _known(raw)
        for name in ("path", "into"):
            if not given.get(name, "").strip():
                raise ZError(f"option {name!r} is missing: {OPTIONS[name]}")
        into = tuple(name.strip() for name in given["into"].split(","))
        for name in into:
            if not _NAME.fullmatch(name):
                raise ZError(f"option 'into': {name!r} is not a valid table name: [A-Za-z0-9_]")
        if len(set(into)) < len(into):
            raise ZError(f"option 'into': tables are named more than once: {', '.join(into)}")
        if "tombstones" in into:
            raise ZError("option 'into': `tombstones` is written with `latest`: name that instead")
        return cls(
            _folder(given["path"]),
            into,
            given.get("flow") or "+".join(into),
            given.get("partitionBy"),
            _resume(given.get("resume", "false")),
            _folder(given["log"]) if "log" in given else None,
            _state(given.get("state"), raw),
        )


def _resume(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ZError(f"option 'resume': {text!r} is neither true nor false")
    return text.lower() == "true"


def _state(given: str | None, raw: Mapping[str, str]) -> Path | None:
    """Return the folder that is given, or that of the checkpoint if it is a local one."""
    if given is not None:
        return _folder(given)
    checkpoint = next((raw[name] for name in raw if name.lower() == "checkpointlocation"), None)
    if checkpoint is None or (_SCHEME.match(checkpoint) and not _FILE.fullmatch(checkpoint)):
        return None
    return _folder(checkpoint)


def _folder(text: str) -> Path:
    """As it is, or as a URI of a file in any form."""
    found = _FILE.fullmatch(text)
    if found is None and _SCHEME.match(text):
        raise ZError(f"option 'path': {text!r} is not a folder that can be written here: name one")
    return Path(found[1] if found else text).absolute()


def _known(raw: Mapping[str, str]) -> dict[str, str]:
    """The options by the names of the table; Spark hands names over in lower case."""
    names = {name.lower(): name for name in OPTIONS}
    given = {}
    for name in raw:
        if name.lower() in OF_SPARK:
            continue
        if name.lower() not in names:
            raise unknown_option(name, names)
        given[names[name.lower()]] = raw[name]
    return given


class LakeDataSource(DataSource):
    """Data source whose stream writer fills the tables of a lake."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._target = SinkOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        return "zenoh-lake"

    def schema(self) -> "StructType":
        raise ZError("format 'zenoh-lake' only writes: read tables with zenlake.lake.read")

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        raise ZError(
            "format 'zenoh-lake' takes streams only, because numbered batches can be committed "
            "exactly once: use writeStream, with trigger(availableNow=True) if it shall end"
        )

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:
        return LakeWriter(self._target, schema)


@dataclass
class WrittenFiles(WriterCommitMessage):
    """Files that one task has written; no table names them yet."""

    query: str
    output: "TaskOutput"
    present: dict[str, dict[int, int]] = field(default_factory=dict)
    "Offsets that tables had when they were written, by table; for `resume` only."


class LakeWriter(DataSourceStreamArrowWriter):
    """Writer of micro-batches: tasks write files, the driver makes one commit per table."""

    def __init__(self, target: SinkOptions, schema: "StructType") -> None:
        from zenlake.lake.tables.projections import check_columns
        from zenlake.spark.schema import arrow_schema

        self._target = target
        self._schema = arrow_schema(schema)
        check_columns(self._schema, target.into, target.partition_by)

    def _stores(self) -> "dict[str, DeltaStore]":
        from zenlake.lake.tables.delta import DeltaStore
        from zenlake.lake.tables.projections import define_table

        target = self._target
        return {
            name: DeltaStore(
                target.path / name, define_table(name, self._schema, target.partition_by)
            )
            for name in target.into
        }

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WrittenFiles:
        """Write the rows of one task to files."""
        from pyspark import TaskContext

        from zenlake.lake.tables.projections import TableWriter

        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise ZError("this task belongs to no streaming query: 'zenoh-lake' takes streams only")
        stores = self._stores()
        resumes = self._target.resume
        present = {name: store.offsets() for name, store in stores.items()} if resumes else {}
        writer = TableWriter(stores, f"{query}/{batch}", present=present)
        for rows in iterator:
            writer.add(rows)
        return WrittenFiles(query, writer.finish(), present)

    def commit(self, messages: list[Any], batchId: int) -> None:  # Spark's name
        """Commit the batch to each table that does not have it yet."""
        from zenlake.lake.tables.projections import unstage
        from zenlake.lake.tables.record import TableRecord

        tasks = [task for task in messages if task is not None and task.output.rows]
        if not tasks:
            return
        stores = self._stores()
        record = None if self._target.state is None else TableRecord(self._target.state)
        known = frozenset() if record is None else record.names()
        if batchId > 0:
            _check_not_removed(stores, known)
        for store in stores.values():
            self._commit_table(store, tasks, batchId)
        if record is not None:
            record.replace(known | {name for name, store in stores.items() if store.exists()})
        unstage(task.output for task in tasks)

    def _commit_table(self, store: "DeltaStore", tasks: list[WrittenFiles], number: int) -> None:
        from zenlake.lake.tables.commit import TableBatch
        from zenlake.lake.tables.projections import commit_numbered, commit_resumed

        outputs = [task.output for task in tasks]
        if self._target.resume:
            present = [task.present[store.table.name] for task in tasks]
            commit_resumed(store, outputs, present, self._log_id())
        else:
            commit_numbered(store, outputs, TableBatch(self._target.flow, tasks[0].query, number))

    def _log_id(self) -> str | None:
        from zenlake.log.read.log import Log

        return None if self._target.log is None else Log(self._target.log).id

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Delete staged rows, but no data files: a table may have committed them already."""
        from zenlake.lake.tables.projections import unstage

        unstage(task.output for task in messages if task is not None)

    def __repr__(self) -> str:
        return f"LakeWriter({self._target!r})"


def _check_not_removed(stores: "Mapping[str, DeltaStore]", known: frozenset[str]) -> None:
    """Raise TableRemoved if a table that the query has filled is gone."""
    from zenlake.lake.tables.record import TableRemoved

    for name, store in stores.items():
        if name in known and not store.exists():
            raise TableRemoved(store.path)
