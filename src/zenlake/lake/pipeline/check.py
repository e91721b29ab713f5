"""Check of a lake without running it: settings, decoders, transformations, tables.

Loads everything that `zenlake lake run` loads, and analyses every flow. Writes nothing.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from zenlake.errors import ZError
from zenlake.lake.decoders import Decoders
from zenlake.lake.pipeline import flows
from zenlake.lake.pipeline.flows import Flow
from zenlake.lake.pipeline.progress import recorded_tables, table_offsets
from zenlake.lake.pipeline.transformations import Transformations, describe_error, load_spec
from zenlake.lake.project import FILE, Project
from zenlake.lake.tables.maintenance import open_stores
from zenlake.lake.tables.record import TableRecord, TableRemoved
from zenlake.lake.tables.table_set import TableSet
from zenlake.log.read.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Finding(NamedTuple):
    """One thing that was checked: what it is, and what is wrong with it."""

    what: str
    detail: str
    "Description for people."
    problem: str | None = None


def check_files(project: Project) -> Iterator[Finding]:
    """Check what needs no Spark: decoders, the specification, and tables that are there."""
    try:
        Decoders(project.decoders, project.home).check()
        yield Finding(FILE, f"{len(project.decoders)} rules for decoders")
    except ZError as error:
        yield Finding(FILE, "", str(error))
    try:
        yield Finding("spark-pipeline.yml", f"pipeline {load_spec(project).name}")
    except ZError as error:
        yield Finding("spark-pipeline.yml", "", str(error))
    try:
        present = open_stores(project) if project.tables.is_dir() else {}
        for store in present.values():
            store.snapshot()
        filled = frozenset[str]().union(*recorded_tables(project).values())
        for name in sorted(filled - present.keys()):
            raise TableRemoved(project.table(name))
        _check_positions(project)
        yield Finding("tables", ", ".join(present) or "none yet")
    except ZError as error:
        yield Finding("tables", "", str(error))


def _check_positions(project: Project) -> None:
    """Raise ZError if the log does not have what the built-in tables need next."""
    record = TableRecord(project.state)
    if not record.names() or not (project.log / "log.json").is_file():
        return
    tables = TableSet(
        project.tables,
        sorted(record.names()),
        Log(project.log),
        record,
        taken=table_offsets(project),
    )
    try:
        tables.start()
    finally:
        tables.close(records=False)


def check_flows(project: Project, spark: "SparkSession") -> Iterator[Finding]:
    """Load all transformations and analyse every flow that they declare."""
    loaded = Transformations(project, spark)
    try:
        loaded.reload()
        declared = loaded.flows()
    except ZError as error:
        yield Finding("transformations", "", str(error))
        return
    for name, reason in loaded.failures.items():
        yield Finding(name, "", reason)
    for flow in declared.values():
        problem = None if flow.rows is None else _analyse(project, flow)
        yield Finding(f"flow {flow.name}", f"into {', '.join(flow.into)}", problem)
    if not declared and not loaded.failures:
        yield Finding("transformations", "", "no table and no flow is declared")


def _analyse(project: Project, flow: Flow) -> str | None:
    """Return why the rows of a flow cannot go into its tables; None if they can."""
    from zenlake.lake.pipeline.sink import LakeWriter, SinkOptions

    assert flow.rows is not None
    try:
        with flows.collect(project):
            rows = flow.rows()
        if not rows.isStreaming:
            return "the rows are not a stream: begin with lake.stream"
        LakeWriter(SinkOptions.parse(flows.sink_options(project, flow)), rows.schema)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        return describe_error(error, project.home)
    return None
