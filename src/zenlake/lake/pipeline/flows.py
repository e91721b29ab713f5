"""What `transformations/*.py` of a lake use: where rows come from, and into which tables they go.

Knows the project that the working folder lies in and Spark's declarative pipelines. How a table is
written is the business of the sink `zenoh-lake`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from zenlake.errors import ZError
from zenlake.lake.project import Project, find

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINK = "zenoh-lake"
MAX_TABLES = 32  # of one flow

Query = Callable[[], "DataFrame"]


class Flow(NamedTuple):
    """A flow as it was declared."""

    name: str
    into: tuple[str, ...]
    partition_by: str | None = None


declared_flows: dict[str, Flow] = {}
"What was declared since somebody emptied it, by name."


def stream(spark: "SparkSession", **options: Any) -> "DataFrame":
    """What is recorded, as a stream of rows: `readStream.format("zenoh")` of this lake's log.

    `options` are those of that format, such as keyExpr="robot/**", duplicates="mark" (also "drop",
    "keep") and includeLoss=True; what lake.toml says stands unless they say something else.
    """
    given = {**_default_options(find(), options), **options}
    return spark.readStream.format("zenoh").options(**_to_strings(given)).load()


def flow(
    into: str | Sequence[str], *, name: str | None = None, partition_by: str | None = None
) -> Callable[[Query], Query]:
    """Declares that the rows of the decorated function go into tables, each exactly once.

    `into` names one or several: those that a lake knows take their rows as they need them
    (`samples`, `latest` and `health` from one stream), and any other is a table of yours with the
    columns of the rows, in a folder for each value of `partition_by` if that is given.
    """
    tables = (into,) if isinstance(into, str) else tuple(into)

    def declare(query: Query) -> Query:
        project = find()
        one = _check_flow(Flow(name or query.__name__, tables, partition_by))
        _declare_sink(project, one, query)
        declared_flows[one.name] = one
        return query

    return declare


def read(spark: "SparkSession", name: str) -> "DataFrame":
    """A table of this lake as it is now."""
    from zenlake.lake.pipeline.views import read as read_table

    return read_table(spark, find(), name)


def decoded(df: "DataFrame") -> "DataFrame":
    """Rows of samples with their payloads as values: the columns of `messages`, and, where there
    is no value, `payload` and the `reason`. See [[decoders]] in lake.toml."""
    from zenlake.lake.pipeline.messages import decode_samples as decode

    return decode(df, find())


# ---- parts


def _default_options(project: Project, options: dict[str, Any]) -> dict[str, Any]:
    """What lake.toml says; a log's time of looking back only where duplicates are looked for."""
    usual: dict[str, Any] = {"path": project.log, "maxRowsPerTrigger": project.max_rows}
    if options.get("duplicates", "keep") != "keep":
        usual["duplicatesWithin"] = f"{project.duplicates_within:f}s"
    return usual


def _to_strings(options: dict[str, Any]) -> dict[str, str]:
    """
    >>> _to_strings({"includeLoss": True, "keyExpr": "a/**"})
    {'includeLoss': 'true', 'keyExpr': 'a/**'}
    """
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def _check_flow(one: Flow) -> Flow:
    where = f"flow {one.name!r}"
    if not 0 < len(one.into) <= MAX_TABLES:
        raise ZError(f"{where} goes into {len(one.into)} tables: name 1 to {MAX_TABLES}")
    for table in one.into:
        if not table.isidentifier():
            raise ZError(f"{where}: {table!r} is no name of a table: letters, digits and '_'")
    if "tombstones" in one.into:
        raise ZError(f"{where}: tombstones are kept with `latest`: leave the name out")
    return one


def _declare_sink(project: Project, one: Flow, query: Query) -> None:
    from pyspark import pipelines

    options = {"path": project.tables, "into": ",".join(one.into), "flow": one.name}
    if one.partition_by is not None:
        options["partitionBy"] = one.partition_by
    rows = query()  # here, and not where Spark asks: it allows no analysis there, as maps need
    pipelines.create_sink(one.name, SINK, _to_strings(options))
    pipelines.append_flow(target=one.name, name=one.name)(lambda: rows)
