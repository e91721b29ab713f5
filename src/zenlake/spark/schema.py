"""The columns that Spark sees, and record batches in exactly the form that Spark accepts.

Knows SAMPLE of columnar/ and Spark's rules for Arrow (plain strings, 32-bit offsets, microseconds,
names and order). Does not know where batches are read from.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from zenlake.columnar.conform import conform, split_texts
from zenlake.columnar.schema import select_fields
from zenlake.errors import ZError

MAX_ROWS = 50_000  # Rows per batch for Spark: measured best; 20,000 to 250,000 differ little.

TIMESTAMP = StructType(
    [
        StructField("time", TimestampType()),  # truncated to microseconds
        StructField("ntp64", LongType()),  # all 64 bits; signed, so ordered until 2038-01-19
        StructField("id", StringType()),
    ]
)
SOURCE = StructType(
    [
        StructField("id", StringType()),
        StructField("entity", LongType()),
        StructField("sn", LongType()),
    ]
)
LOSS = StructType(
    [
        StructField("kind", StringType()),  # "lane", "source", "link" or "dropped"
        StructField("id", StringType()),
        StructField("entity", LongType()),
        StructField("priority", ByteType()),
        StructField("reliable", BooleanType()),
        StructField("first", LongType()),
        StructField("last", LongType()),
        StructField("count", LongType()),
    ]
)
SAMPLE_COLUMNS = StructType(
    [
        StructField("key", StringType()),
        StructField("kind", StringType()),
        StructField("payload", BinaryType()),
        StructField("encoding", StringType()),
        StructField("schema", StringType()),
        StructField("timestamp", TIMESTAMP),
        StructField("source", SOURCE),
        StructField("attachment", BinaryType()),
        StructField("priority", ByteType()),
        StructField("congestion_control", StringType()),
        StructField("express", BooleanType()),
        StructField("reliable", BooleanType()),
        StructField("received_at", TimestampType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
    ]
)
LOSS_COLUMN = StructField("loss", LOSS)
DUPLICATE_COLUMN = StructField("duplicate", BooleanType())


# ---- columns


def with_loss(columns: StructType = SAMPLE_COLUMNS) -> StructType:
    """Return `columns` with `loss` as the last.

    >>> with_loss().names[-2:]
    ['offset', 'loss']
    """
    return StructType([*columns.fields, LOSS_COLUMN])


def with_duplicate(columns: StructType = SAMPLE_COLUMNS) -> StructType:
    """Return `columns` with `duplicate` as the last.

    >>> with_duplicate(with_loss()).names[-2:]
    ['loss', 'duplicate']
    """
    return StructType([*columns.fields, DUPLICATE_COLUMN])


def select_columns(columns: StructType, names: Sequence[str] | None) -> StructType:
    """Return the columns called `names`, in that order; all columns for None.

    >>> select_columns(SAMPLE_COLUMNS, ["payload", "key"]).names
    ['payload', 'key']
    """
    if names is None:
        return columns
    given = " (option 'columns', or the schema given)"
    return StructType(select_fields(columns.fields, names, given))


def check_schema(wanted: StructType, columns: StructType) -> StructType:
    """Return `wanted`, a schema from the user. ZError: it differs from `columns` in a type."""
    expected = select_columns(columns, wanted.names)
    for mine, theirs in zip(expected.fields, wanted.fields, strict=True):
        if mine.dataType != theirs.dataType:
            raise ZError(
                f"column {mine.name!r} is {mine.dataType.simpleString()}, not "
                f"{theirs.dataType.simpleString()}: read it as it is and cast afterwards"
            )
        if not theirs.nullable:
            raise ZError(f"column {mine.name!r} may be null: leave NOT NULL out of the schema")
    return wanted


def arrow_schema(struct: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark demands of a record batch with these columns.

    >>> arrow_schema(StructType([StructField("payload", BinaryType())])).field("payload").type
    DataType(binary)
    """
    return to_arrow_schema(struct, timezone="UTC")


# ---- record batches


def to_spark(batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """Convert a batch in columnar's schema to the columns of `schema`, in its order.

    `batch` may also have `partition`, `offset` and `loss`; columns that it lacks become null.
    Dictionaries are decoded, so a batch must be small enough for that: see `to_spark_batches`.
    """
    return conform(batch, arrow_schema(schema))


def to_spark_batches(batch: pa.RecordBatch, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Convert a batch of any size like `to_spark`, split so that Spark accepts each piece.

    >>> keys = pa.record_batch({"key": pa.array(["a", "b"] * 50_000).dictionary_encode()})
    >>> [len(part) for part in to_spark_batches(keys, select_columns(SAMPLE_COLUMNS, ["key"]))]
    [50000, 50000]
    """
    for part in split_texts(batch, MAX_ROWS):
        yield to_spark(part, schema)
