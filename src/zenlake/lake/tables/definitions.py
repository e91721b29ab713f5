"""The tables of a lake, as data: columns, order, partitions, how rows fold, what ages.

Knows every table by name. Does not know files or Spark.
"""

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from zenlake.lake.tables import reduce, schema

SCHEMA_VERSION = 1
SCHEMA_PROPERTY = "zenlake.schema"  # the table property that holds it


class TableDefinition(NamedTuple):
    """One table: rows are appended, or folded by `fold` into leaves placed by `place`."""

    name: str
    schema: pa.Schema
    partition_by: str | None = None
    order: tuple[str, ...] = ()  # how rows are sorted in a file
    place: str | None = None  # the column whose range a leaf of a folded table covers
    fold: Callable[[pa.Table], pa.Table] | None = None  # many rows -> one a key, also of results
    time: str | None = None  # the column that retention looks at


SAMPLES = TableDefinition("samples", schema.SAMPLES, "day", ("key", "hlc"), time="received_at")
LATEST = TableDefinition(
    "latest", schema.LATEST, None, ("key",), "key", reduce.newest, "received_at"
)
TOMBSTONES = TableDefinition(
    "tombstones", schema.TOMBSTONES, None, ("key",), "key", reduce.newest, "received_at"
)
LOSS = TableDefinition("loss", schema.LOSS, "day", ("partition", "offset"), time="at")
MESSAGES = TableDefinition("messages", schema.MESSAGES, "day", ("key", "hlc"), time="received_at")
MESSAGES_FAILED = TableDefinition(
    "messages_failed", schema.MESSAGES_FAILED, "day", ("key", "hlc"), time="received_at"
)
HEALTH = TableDefinition(
    "health",
    schema.HEALTH,
    None,
    ("minute", "key", "source_id", "entity"),
    "minute",
    reduce.merged_health,
    "minute",
)

TABLES = {
    table.name: table
    for table in (SAMPLES, LATEST, TOMBSTONES, LOSS, MESSAGES, MESSAGES_FAILED, HEALTH)
}
