"""`format("zenoh-lake")`: stream sink that writes the rows of one flow to several tables.

Knows options and Spark's calls: `write` on executors, `commit` and `abort` on the driver. Only
these load Arrow and delta-rs, because Spark imports this file also in processes that only plan.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
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
        )


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
        writer = TableWriter(self._stores(), f"{query}/{batch}")
        for rows in iterator:
            writer.add(rows)
        return WrittenFiles(query, writer.finish())

    def commit(self, messages: list[Any], batchId: int) -> None:  # Spark's name
        """Commit the batch to each table that does not have it yet."""
        from zenlake.lake.tables.commit import TableBatch
        from zenlake.lake.tables.projections import commit_table

        tasks = [task for task in messages if task is not None and task.output.rows]
        if not tasks:
            return
        batch = TableBatch(self._target.flow, tasks[0].query, batchId)
        for store in self._stores().values():
            commit_table(store, [task.output for task in tasks], batch)
        self._unstage(tasks)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Delete staged rows, but no data files: a table may have committed them already."""
        self._unstage([task for task in messages if task is not None])

    def _unstage(self, tasks: list[WrittenFiles]) -> None:
        """Delete the staged files of these tasks only: another driver may run the same batch."""
        paths = [
            Path(path) for task in tasks for paths in task.output.staged.values() for path in paths
        ]
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            with suppress(OSError):  # The folder has files of another attempt or batch.
                folder.rmdir()
                folder.parent.rmdir()

    def __repr__(self) -> str:
        return f"LakeWriter({self._target!r})"
