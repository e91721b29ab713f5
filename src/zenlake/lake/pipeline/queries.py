"""The resident queries of a running lake: one for the built-in tables, one per flow of the user.

Knows how each is started, whether it runs, and how far it is. Does not decide when to start: the
runner does.
"""

import json
import pickle
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from zenlake.errors import ZError
from zenlake.lake.pipeline import flows, pyspark_internals
from zenlake.lake.pipeline.decoder_rules import DecoderRules
from zenlake.lake.pipeline.flows import Flow
from zenlake.lake.pipeline.progress import (
    CHECKPOINTS,
    PerPartition,
    log_id,
    read_checkpoint,
    table_offsets,
)
from zenlake.lake.pipeline.spark_session import extract_reason
from zenlake.lake.pipeline.transformations import describe_error
from zenlake.lake.project import Project
from zenlake.lake.tables.delta import LOG as DELTA_LOG
from zenlake.lake.tables.record import TableRecord
from zenlake.log.read.log import Log
from zenlake.spark import log_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from zenlake.lake.tables.table_set import TableSet

Trigger = Mapping[str, Any]
"Arguments of `DataStreamWriter.trigger`."


class ResidentQuery(ABC):
    """A streaming query that runs as long as the lake does."""

    def __init__(
        self, project: Project, spark: "SparkSession", flow: Flow, storage: str | None = None
    ) -> None:
        """`storage` is where checkpoints are kept, if not in the state folder of the lake."""
        self.flow = flow
        self._project = project
        self._spark = spark
        self._storage = storage
        self._query: Any = None

    def start(self, trigger: Trigger) -> None:
        """Start the query. ZError: it cannot start; the message has the file and the reason."""
        try:
            self._query = self._begin(trigger)
        except ZError:
            self._end()
            raise
        except (Exception, SystemExit) as error:
            self._end()
            raise ZError(describe_error(error, self._project.home)) from error

    @abstractmethod
    def _begin(self, trigger: Trigger) -> Any: ...

    def _end(self) -> None:  # noqa: B027 - most queries take nothing
        """Release what `_begin` took."""

    @abstractmethod
    def offsets(self) -> PerPartition:
        """Return the next offset of each log partition that the query has not taken."""

    def keep_warm(self) -> None:  # noqa: B027 - for most queries it does not pay
        """Prepare for the next micro-batch in a pause."""

    def is_stale(self) -> bool:
        """Tell whether a table has changed that the query has read at its start."""
        return False

    def needed(self) -> PerPartition:
        """Return the offsets from which on the query needs the log, also after a crash."""
        return self.offsets()

    @property
    def active(self) -> bool:
        return self._query is not None and bool(self._query.isActive)

    @property
    def has_run(self) -> bool:
        """Whether the first micro-batch is over, or there was none to run."""
        return not self.active or bool(self._query.recentProgress)

    @property
    def busy(self) -> bool:
        """Whether a micro-batch is under way."""
        return self.active and bool(self._query.status["isTriggerActive"])

    @property
    def batch_seconds(self) -> float:
        """Duration of the last micro-batch."""
        progress = None if self._query is None else self._query.lastProgress
        took = {} if progress is None else progress["durationMs"]
        return float(took.get("triggerExecution", 0)) / 1000

    def failure(self) -> str | None:
        """Return why the query has ended; None if it runs or has ended well."""
        error = None if self._query is None else self._query.exception()
        return None if error is None else extract_reason(str(error))

    def stop(self) -> None:
        """End the query, if it runs."""
        if self._query is not None:
            try:
                if self._query.isActive:
                    self._query.stop()
            finally:
                self._query = None
                self._end()


class FlowQuery(ResidentQuery):
    """Query of a user's flow: its rows go through Spark into the sink `zenoh-lake`."""

    _read: Mapping[str, int] = MappingProxyType({})
    "Tables that the rows are made with, and their state when the query was started."

    def _begin(self, trigger: Trigger) -> Any:
        assert self.flow.rows is not None
        with flows.collect(self._project) as declared:
            rows = self.flow.rows()
        self._read = {name: self._version(name) for name in declared.reads}
        return (
            rows.writeStream.format(flows.SINK)
            .options(**flows.sink_options(self._project, self.flow))
            .option("checkpointLocation", self._checkpoint())
            .queryName(self.flow.name)
            .trigger(**trigger)
            .start()
        )

    def is_stale(self) -> bool:
        return any(self._version(name) != seen for name, seen in self._read.items())

    def _version(self, name: str) -> int:
        """Return a number that changes with the commits of a table."""
        with suppress(OSError):
            return (self._project.table(name) / DELTA_LOG).stat().st_mtime_ns
        return 0

    def offsets(self) -> PerPartition:
        if self._storage is not None:
            return {}
        done = read_checkpoint(self._folder(), log_id(self._project))
        return {} if done is None else done.offsets

    def _checkpoint(self) -> str:
        if self._storage is not None:
            return f"{self._storage}/{CHECKPOINTS}/{self.flow.name}/{self.flow.name}/0"
        return str(self._folder())

    def _folder(self) -> Path:
        """Return the newest checkpoint of the flow, where Spark's own command has it, too."""
        folder = checkpoint_folder(self._project.state, self.flow.name)
        return folder / str(max(_versions(folder), default=0))


class TableQuery(ResidentQuery):
    """Query of the built-in tables: rows are ranges of the log, and tasks write the files.

    The tables' own offsets say where it starts; its checkpoint is as new as the query.
    """

    def __init__(
        self, project: Project, spark: "SparkSession", flow: Flow, storage: str | None = None
    ) -> None:
        super().__init__(project, spark, flow, storage)
        self._tables: TableSet | None = None
        self._left: PerPartition = {}
        "Offsets that the tables had recorded when the query ended."
        self._run = uuid.uuid4().hex
        self._rules = DecoderRules(project)

    def _begin(self, trigger: Trigger) -> Any:
        from zenlake.lake.tables.table_set import TableSet

        project = self._project
        log = Log(project.log)
        self._rules.current()  # Refuses rules that cannot work.
        self._tables = TableSet(
            project.tables,
            self.flow.into,
            log,
            TableRecord(project.state),
            taken=table_offsets(project),
        )
        start = {str(number): at for number, at in self._tables.start().items()}
        options = flows.to_strings(
            {
                "path": project.log,
                "maxRowsPerTrigger": project.max_rows,
                "maxBytesPerTrigger": project.max_bytes,
                "minPartitions": self._spark.sparkContext.defaultParallelism,
                "duplicates": "mark",
                "duplicatesWithin": f"{project.duplicates_within:f}s",
                "includeLoss": True,
            }
        )
        if start:
            options["startingOffsets"] = json.dumps(start)
        options["batchEnds"] = flows.batch_ends(self._tables.positions().values())
        rows = self._spark.readStream.format(log_ranges.NAME).options(**options).load()
        return (
            rows.writeStream.foreachBatch(self._write_batch)
            .option("checkpointLocation", str(_new_checkpoint(project.state, self.flow.name)))
            .queryName(self.flow.name)
            .trigger(**trigger)
            .start()
        )

    def _end(self) -> None:
        tables, self._tables = self._tables, None
        if tables is not None:
            try:
                tables.close()
            finally:
                self._left = lowest_offsets(tables.recorded().values())

    def offsets(self) -> PerPartition:
        tables = self._tables
        return {} if tables is None else lowest_offsets(tables.positions().values())

    def needed(self) -> PerPartition:
        tables = self._tables
        return self._left if tables is None else lowest_offsets(tables.recorded().values())

    def keep_warm(self) -> None:
        """Run a task per core that loads what tasks need, and does nothing else.

        A new worker loads Arrow and the kernels first, which takes seconds on busy cores: after the
        start, for the first large micro-batch, and after a minute in which Spark ends idle ones.
        A task has two workers, for the source of ranges and for what is made of them.
        """
        from zenlake.lake.pipeline import range_task

        count = min(self._spark.sparkContext.defaultParallelism, log_ranges.MAX_TASKS)
        tasks = self._spark.range(0, count, 1, count)
        warm_up = partial(range_task.warm_up, log=str(self._project.log))
        with pyspark_internals.no_pandas_warning():
            loaded = tasks.mapInArrow(warm_up, "id long")
            loaded.mapInArrow(warm_up, "id long").collect()

    def _write_batch(self, ranges: "DataFrame", number: int) -> None:
        """Let tasks write the files of a micro-batch, and commit them to all tables."""
        from zenlake.lake.pipeline import range_task

        tables = self._tables
        assert tables is not None
        job = range_task.TableJob(
            log=str(self._project.log),
            tables=str(self._project.tables),
            positions=tables.positions(),
            staging=f"{self._run}/{number}",
            rules=self._rules.for_batch(tables.positions()),
            home=str(self._project.home),
        )
        write = partial(range_task.write_ranges, job=job)
        with pyspark_internals.no_pandas_warning():
            mapped = ranges.mapInArrow(write, range_task.RESULT)
        written = mapped.collect()
        tasks = [pickle.loads(row[0]) for row in written]
        if tasks:
            tables.commit(tasks)


# ---- checkpoints


def checkpoint_folder(state: Path, flow: str) -> Path:
    """Return the folder with the checkpoints of a flow, one per version."""
    return state / CHECKPOINTS / flow / flow


def remote_storage(storage: str) -> str | None:
    """Return the place of checkpoints that a specification names; None for the lake's own folder.

    >>> remote_storage("s3a://bucket/state"), remote_storage("file:///lake/state")
    ('s3a://bucket/state', None)
    """
    return None if urlsplit(storage).scheme in ("", "file") else storage.rstrip("/")


def _versions(folder: Path) -> list[int]:
    with suppress(OSError):
        return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    return []


def _new_checkpoint(state: Path, flow: str) -> Path:
    """Return the folder of a new checkpoint; remove older ones."""
    folder = checkpoint_folder(state, flow)
    versions = _versions(folder)
    for version in versions:
        shutil.rmtree(folder / str(version), ignore_errors=True)
    return folder / str(max(versions, default=-1) + 1)


def lowest_offsets(positions: Iterable[PerPartition]) -> dict[int, int]:
    """Return the lowest offset of each partition.

    >>> lowest_offsets([{0: 7, 1: 2}, {0: 5}])
    {0: 5, 1: 0}
    """
    found = list(positions)
    partitions = sorted({number for offsets in found for number in offsets})
    return {number: min(offsets.get(number, 0) for offsets in found) for number in partitions}
