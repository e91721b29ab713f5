"""Functions for `transformations/*.py` of a lake: built-in tables, streams of rows, and flows.

Knows what a file declares, for the resident queries of `zenlake lake run` and for Spark's
declarative pipelines. Does not know how a table is written.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from zenlake.checked import suggest
from zenlake.errors import ZError
from zenlake.lake.pipeline.progress import CHECKPOINTS, TABLES_FLOW, PerPartition
from zenlake.lake.project import Project, find
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.table_set import check_log_end
from zenlake.log.read.log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINK = "zenoh-lake"
MAX_TABLES = 32  # Upper bound on the tables of a flow.
BUILT_IN = ("samples", "latest", "health", "loss", "messages", "messages_failed")
"Tables that `table` declares."

Query = Callable[[], "DataFrame"]


class Flow(NamedTuple):
    """Declared flow: its name, its tables and its rows."""

    name: str
    into: tuple[str, ...]
    partition_by: str | None = None
    rows: Query | None = None
    "Returns the stream of rows; None for the flow of the built-in tables."


@dataclass
class Declarations:
    """Tables and flows that transformations have declared."""

    project: Project
    in_pipeline: bool = False
    "Whether they are declared in Spark's pipelines, too."
    tables: list[str] = field(default_factory=list)
    flows: dict[str, Flow] = field(default_factory=dict)
    reads: set[str] = field(default_factory=set)
    "Tables that `read` was called for."


_declarations: ContextVar[Declarations | None] = ContextVar("declarations", default=None)


@contextmanager
def collect(project: Project, *, in_pipeline: bool = False) -> Iterator[Declarations]:
    """Collect what this thread declares inside the block.

    Without `in_pipeline` Spark's declarative pipelines are not told.
    """
    found = Declarations(project, in_pipeline)
    token = _declarations.set(found)
    try:
        yield found
    finally:
        _declarations.reset(token)


def _project() -> Project:
    collected = _declarations.get()
    return find() if collected is None else collected.project


# ---- declarations


def table(name: str) -> None:
    """Declare a built-in table: samples, latest, health, loss, messages or messages_failed.

    `zenlake lake run` fills all declared ones in one pass over the log.
    """
    if name not in BUILT_IN:
        raise ZError(
            f"there is no built-in table {name!r}; {suggest(name, BUILT_IN)}. For a table of your "
            "own write a function with @lake.flow"
        )
    collected = _declarations.get()
    if collected is not None and not collected.in_pipeline:
        if name not in collected.tables:
            collected.tables.append(name)
        return
    declared = Flow(name, (name,))
    _declare_sink(_project(), declared, _built_in_rows(name), resumes=True)
    if collected is not None:
        collected.flows[name] = declared


def flow(
    into: str | Sequence[str], *, name: str | None = None, partition_by: str | None = None
) -> Callable[[Query], Query]:
    """Declare that the rows of the decorated function go into tables, each exactly once.

    `into` names one or several tables. Built-in tables take what they need of the rows (`samples`,
    `latest` and `health` from one stream). Any other name is a table of yours with the columns of
    the rows, partitioned by `partition_by` if given.
    """
    tables = (into,) if isinstance(into, str) else tuple(into)

    def declare(query: Query) -> Query:
        declared = _check_flow(Flow(name or query.__name__, tables, partition_by, query))
        collected = _declarations.get()
        if collected is None or collected.in_pipeline:
            # Called now: inside a flow function Spark allows no analysis, as maps need.
            _declare_sink(_project(), declared, query())
        if collected is not None:
            collected.flows[declared.name] = declared
        return query

    return declare


# ---- rows


def stream(spark: "SparkSession", **options: Any) -> "DataFrame":
    """Return the recorded samples as a stream: `readStream.format("zenoh")` of this lake's log.

    `options` are options of that format, such as keyExpr="robot/**", duplicates="mark" (also
    "drop", "keep") and includeLoss=True; their defaults come from lake.toml.
    """
    given = {**_default_options(_project(), options), **options}
    return spark.readStream.format("zenoh").options(**to_strings(given)).load()


def read(spark: "SparkSession", name: str) -> "DataFrame":
    """Return a table of this lake as it is now.

    `zenlake lake run` renews it in a flow, at most once per minute, when the table has changed.
    """
    from zenlake.lake.pipeline.views import read as read_table

    collected = _declarations.get()
    if collected is not None:
        collected.reads.add(name)
    return read_table(spark, _project(), name)


def decoded(df: "DataFrame") -> "DataFrame":
    """Decode the payloads of samples by [[decoders]] in lake.toml.

    The result has the columns of `messages`, and `payload` and `reason` where decoding failed.
    """
    from zenlake.lake.pipeline.messages import decode_samples

    return decode_samples(df, _project())


def _built_in_rows(name: str) -> "DataFrame":
    """Return the rows that a built-in table takes as a stream."""
    from pyspark.sql import SparkSession

    spark = SparkSession.active()
    if name == "loss":
        return stream(spark, includeLoss="only")
    project = _project()
    store = DeltaStore(project.table(name), TABLES[name])
    if store.offsets():
        check_log_end(store, Log(project.log))
    ends = {"batchEnds": batch_ends([store.offsets()])}
    if name.startswith("messages"):
        return decoded(stream(spark, duplicates="drop", **ends))
    return stream(spark, duplicates="mark", **ends)


# ---- options and checks


def _default_options(project: Project, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that lake.toml sets; `duplicatesWithin` only if duplicates are sought."""
    defaults: dict[str, Any] = {
        "path": project.log,
        "maxRowsPerTrigger": project.max_rows,
        "maxBytesPerTrigger": project.max_bytes,
    }
    if options.get("duplicates", "keep") != "keep":
        defaults["duplicatesWithin"] = f"{project.duplicates_within:f}s"
    return defaults


def batch_ends(positions: Iterable[PerPartition]) -> str:
    """Return the option `batchEnds` that lets batches end where tables are.

    >>> batch_ends([{0: 40}, {}])
    '[{"0": 40}]'
    """
    return json.dumps([{str(n): at for n, at in held.items()} for held in positions if held])


def to_strings(options: dict[str, Any]) -> dict[str, str]:
    """Return options as the texts that Spark takes.

    >>> to_strings({"includeLoss": True, "keyExpr": "a/**"})
    {'includeLoss': 'true', 'keyExpr': 'a/**'}
    """
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def sink_options(project: Project, flow: Flow) -> dict[str, str]:
    """Return the options with which the sink writes the rows of a flow."""
    options = {
        "path": project.tables,
        "into": ",".join(flow.into),
        "flow": flow.name,
        "state": project.state / CHECKPOINTS / flow.name,
    }
    if flow.partition_by is not None:
        options["partitionBy"] = flow.partition_by
    return to_strings(options)


def _check_flow(flow: Flow) -> Flow:
    where = f"flow {flow.name!r}"
    if flow.name == TABLES_FLOW:
        raise ZError(f"{where}: the built-in tables have this name: choose another one")
    if not 0 < len(flow.into) <= MAX_TABLES:
        raise ZError(f"{where} goes into {len(flow.into)} tables: name 1 to {MAX_TABLES}")
    for name in flow.into:
        if not name.isidentifier():
            raise ZError(
                f"{where}: {name!r} is not a valid table name: use letters, digits and '_'"
            )
    if "tombstones" in flow.into:
        raise ZError(f"{where}: tombstones are kept with `latest`: leave the name out")
    return flow


def _declare_sink(
    project: Project, flow: Flow, rows: "DataFrame", *, resumes: bool = False
) -> None:
    """Declare a flow in Spark's pipelines; with `resumes` it leaves out rows that tables have."""
    from pyspark import pipelines

    options = sink_options(project, flow)
    if resumes:
        options |= to_strings({"resume": True, "log": project.log})
    pipelines.create_sink(flow.name, SINK, options)
    pipelines.append_flow(target=flow.name, name=flow.name)(lambda: rows)
