"""Flows into tables of the session's own catalog: `format = "catalog"` in lake.toml.

Knows Spark's streaming tables, Auto CDC and materialized views, and the columns that a lake's
tables have. What a table is on disk, Delta or Iceberg, is the catalog's business.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from zenlake.errors import ZError
from zenlake.lake.pipeline.flows import Flow, Query, declared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PROVIDER = "spark.sql.sources.default"
APPEND_ONLY = ("parquet", "orc", "json", "csv", "avro", "text")  # formats that cannot merge
HLC = (
    "coalesce(timestamp.ntp64, shiftleft(unix_seconds(received_at), 32) + "
    "(shiftleft(pmod(unix_micros(received_at), 1000000L), 32) + 999999) div 1000000) as hlc"
)
DAY = "to_date(received_at) as day"
LOSS = ("received_at as at", "loss.*", "partition", "offset", DAY)
VERSION = "struct(hlc, coalesce(timestamp.id, ''), partition, offset)"
HEALTH = """
    select date_trunc('minute', received_at) as minute, key, source.id as source_id,
        source.entity as entity, count(*) as count, sum(length(payload)) as bytes,
        min(length(payload)) as min_bytes, max(length(payload)) as max_bytes,
        count(*) / 60 as rate,
        max(source.sn) - min(source.sn) + 1 - count(distinct source.sn) as gaps,
        min(source.sn) as first_sn, max(source.sn) as last_sn,
        median(latency) as latency_median, percentile_approx(latency, 0.99) as latency_p99,
        min(received_at) as first_seen, max(received_at) as last_seen
    from (select *, (unix_micros(received_at) - unix_micros(timestamp.time)) / 1e6 as latency
        from samples)
    group by all
"""


def declare_tables(one: Flow, query: Query) -> None:
    """The same tables, each with a flow of its own name."""
    rows = query()
    for table in one.into:
        _KINDS.get(table, _own)(table, rows, one)


def _appended(table: str, rows: "DataFrame", partition_by: str | None) -> None:
    from pyspark import pipelines

    pipelines.create_streaming_table(
        table, partition_cols=None if partition_by is None else [partition_by]
    )
    pipelines.append_flow(target=table, name=table)(lambda: rows)
    declared[table] = Flow(table, (table,), partition_by)


def _own(table: str, rows: "DataFrame", one: Flow) -> None:
    _appended(table, rows, one.partition_by)


def _samples(table: str, rows: "DataFrame", one: Flow) -> None:
    _appended(table, _once(rows).selectExpr("*", HLC, DAY), "day")


def _loss(table: str, rows: "DataFrame", one: Flow) -> None:
    _appended(table, rows.where("loss is not null").selectExpr(*LOSS), "day")


def _messages(table: str, rows: "DataFrame", one: Flow) -> None:
    _appended(table, rows.where("reason is null").drop("payload", "reason"), "day")


def _messages_failed(table: str, rows: "DataFrame", one: Flow) -> None:
    _appended(table, rows.where("reason is not null").drop("value"), "day")


def _latest(table: str, rows: "DataFrame", one: Flow) -> None:
    """One row a key: the highest version wins, and a delete takes it away."""
    from pyspark import pipelines
    from pyspark.sql import functions

    provider = rows.sparkSession.conf.get(PROVIDER) or ""
    if provider.lower() in APPEND_ONLY:
        raise ZError(
            f"flow {one.name!r}: `latest` needs a table format that merges, such as delta or "
            f"iceberg, and {PROVIDER} is {provider}: set it, take `latest` out of the flow, or "
            'write format = "delta" in lake.toml'
        )
    changes = f"{one.name}_changes"
    versions = _once(rows).selectExpr("*", HLC)
    pipelines.temporary_view(name=changes)(lambda: versions)
    pipelines.create_streaming_table(table)
    pipelines.create_auto_cdc_flow(
        target=table,
        source=changes,
        keys=["key"],
        sequence_by=functions.expr(VERSION),
        apply_as_deletes=functions.expr("kind = 'delete'"),
    )
    declared[table] = Flow(table, (table,))


def _health(table: str, rows: "DataFrame", one: Flow) -> None:
    """Computed from `samples`, so it has no duplicates to count and no histogram to merge."""
    from pyspark import pipelines

    if "samples" not in one.into:
        raise ZError(f"flow {one.name!r}: `health` is made of `samples` here: name both")
    session = rows.sparkSession
    pipelines.materialized_view(name=table)(lambda: session.sql(HEALTH))


def _once(rows: "DataFrame") -> "DataFrame":
    if "duplicate" not in rows.columns:
        return rows
    return rows.where("not coalesce(duplicate, false)").drop("duplicate")


_KINDS: dict[str, Callable[[str, "DataFrame", Flow], None]] = {
    "samples": _samples,
    "latest": _latest,
    "health": _health,
    "loss": _loss,
    "messages": _messages,
    "messages_failed": _messages_failed,
}
