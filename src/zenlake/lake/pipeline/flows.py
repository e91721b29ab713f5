"""Functions for `transformations/*.py` of a lake: streams of rows, and flows into tables.

Knows the project of the working folder and Spark's declarative pipelines. Does not know how a
table is written; the sink `zenoh-lake` does.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from zenlake.errors import ZError
from zenlake.lake.project import Project, find

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINK = "zenoh-lake"
MAX_TABLES = 32  # Upper bound on the tables of a flow.

Query = Callable[[], "DataFrame"]


class Flow(NamedTuple):
    """Declared flow: its name and its tables."""

    name: str
    into: tuple[str, ...]
    partition_by: str | None = None


_collected: ContextVar[dict[str, Flow] | None] = ContextVar("collected flows", default=None)


@contextmanager
def collect_flows() -> Iterator[dict[str, Flow]]:
    """Collect the flows that this thread declares inside the block, by name."""
    found: dict[str, Flow] = {}
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def stream(spark: "SparkSession", **options: Any) -> "DataFrame":
    """Return the recorded samples as a stream: `readStream.format("zenoh")` of this lake's log.

    `options` are options of that format, such as keyExpr="robot/**", duplicates="mark" (also
    "drop", "keep") and includeLoss=True; their defaults come from lake.toml.
    """
    given = {**_default_options(find(), options), **options}
    return spark.readStream.format("zenoh").options(**_to_strings(given)).load()


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
        project = find()
        declared = _check_flow(Flow(name or query.__name__, tables, partition_by))
        _declare_sink(project, declared, query)
        collected = _collected.get()
        if collected is not None:
            collected[declared.name] = declared
        return query

    return declare


def read(spark: "SparkSession", name: str) -> "DataFrame":
    """Return a table of this lake as it is now."""
    from zenlake.lake.pipeline.views import read as read_table

    return read_table(spark, find(), name)


def decoded(df: "DataFrame") -> "DataFrame":
    """Decode the payloads of samples by [[decoders]] in lake.toml.

    The result has the columns of `messages`, and `payload` and `reason` where decoding failed.
    """
    from zenlake.lake.pipeline.messages import decode_samples

    return decode_samples(df, find())


# ---- options and checks


def _default_options(project: Project, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that lake.toml sets; `duplicatesWithin` only if duplicates are sought."""
    defaults: dict[str, Any] = {"path": project.log, "maxRowsPerTrigger": project.max_rows}
    if options.get("duplicates", "keep") != "keep":
        defaults["duplicatesWithin"] = f"{project.duplicates_within:f}s"
    return defaults


def _to_strings(options: dict[str, Any]) -> dict[str, str]:
    """Return options as the texts that Spark takes.

    >>> _to_strings({"includeLoss": True, "keyExpr": "a/**"})
    {'includeLoss': 'true', 'keyExpr': 'a/**'}
    """
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def _check_flow(flow: Flow) -> Flow:
    where = f"flow {flow.name!r}"
    if not 0 < len(flow.into) <= MAX_TABLES:
        raise ZError(f"{where} goes into {len(flow.into)} tables: name 1 to {MAX_TABLES}")
    for table in flow.into:
        if not table.isidentifier():
            raise ZError(
                f"{where}: {table!r} is not a valid table name: use letters, digits and '_'"
            )
    if "tombstones" in flow.into:
        raise ZError(f"{where}: tombstones are kept with `latest`: leave the name out")
    return flow


def _declare_sink(project: Project, flow: Flow, query: Query) -> None:
    from pyspark import pipelines

    options = {"path": project.tables, "into": ",".join(flow.into), "flow": flow.name}
    if flow.partition_by is not None:
        options["partitionBy"] = flow.partition_by
    rows = query()  # Called now: inside a flow function Spark allows no analysis, as maps need.
    pipelines.create_sink(flow.name, SINK, _to_strings(options))
    pipelines.append_flow(target=flow.name, name=flow.name)(lambda: rows)
