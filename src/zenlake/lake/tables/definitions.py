"""Definitions of the tables of a lake: columns, sort order, partitions, folding, retention.

Knows every built-in table by name. Does not know files or Spark.
"""

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from zenlake.lake.tables import reduce, schema

SCHEMA_VERSION = 1
SCHEMA_PROPERTY = "zenlake.schema"  # Table property that holds the version of the columns.


class TableDefinition(NamedTuple):
    """Columns of a table, and how rows get into its files.

    Rows are appended, or, if `fold` is given, folded into leaves: files with disjoint ranges of
    `leaf_column`.
    """

    name: str
    schema: pa.Schema
    partition_by: str | None = None
    order: tuple[str, ...] = ()
    "Columns by which the rows of a file are sorted."
    leaf_column: str | None = None
    "Column whose range a leaf of a folded table covers."
    fold: Callable[[pa.Table], pa.Table] | None = None
    "Reduces rows to one per key. Folding results again gives the fold of all their rows."
    time_column: str | None = None
    "Column that retention compares with the age limit."


SAMPLES = TableDefinition(
    "samples", schema.SAMPLES, "day", ("key", "hlc"), time_column="received_at"
)
LATEST = TableDefinition(
    "latest", schema.LATEST, None, ("key",), "key", reduce.keep_newest, "received_at"
)
TOMBSTONES = TableDefinition(
    "tombstones", schema.TOMBSTONES, None, ("key",), "key", reduce.keep_newest, "received_at"
)
LOSS = TableDefinition("loss", schema.LOSS, "day", ("partition", "offset"), time_column="at")
MESSAGES = TableDefinition(
    "messages", schema.MESSAGES, "day", ("key", "hlc"), time_column="received_at"
)
MESSAGES_FAILED = TableDefinition(
    "messages_failed", schema.MESSAGES_FAILED, "day", ("key", "hlc"), time_column="received_at"
)
HEALTH = TableDefinition(
    "health",
    schema.HEALTH,
    None,
    ("minute", "key", "source_id", "entity"),
    "minute",
    reduce.merge_health,
    "minute",
)

TABLES = {
    table.name: table
    for table in (SAMPLES, LATEST, TOMBSTONES, LOSS, MESSAGES, MESSAGES_FAILED, HEALTH)
}
DECODED = (MESSAGES.name, MESSAGES_FAILED.name)
"Tables that belong together: the decoders decide into which of them each sample goes."
