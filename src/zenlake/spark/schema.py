"""The columns that Spark sees, and record batches in exactly the form that Spark accepts.

Knows SAMPLE of columnar/ and Spark's rules for Arrow (plain strings, 32-bit offsets, microseconds,
names and order). Does not know where batches are read from.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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

from zenlake.errors import ZError

MAX_ROWS = 50_000  # Rows per batch for Spark: measured best; 20,000 to 250,000 differ little.
MAX_TEXT_BYTES = 256 << 20  # Bytes per decoded text column; Arrow's 32-bit offsets end at 2 GiB.

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
    known = {field.name: field for field in columns.fields}
    for name in names:
        if name not in known:
            raise ZError(
                f"no column {name!r} (option 'columns', or the schema given): "
                f"there are {', '.join(known)}"
            )
    if len(set(names)) < len(names):
        raise ZError(f"columns are named more than once: {', '.join(names)}")
    return StructType([known[name] for name in names])


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
    target = arrow_schema(schema)
    return pa.RecordBatch.from_arrays([_column(batch, field) for field in target], schema=target)


def to_spark_batches(batch: pa.RecordBatch, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Convert a batch of any size like `to_spark`, split so that Spark accepts each piece.

    >>> keys = pa.record_batch({"key": pa.array(["a", "b"] * 50_000).dictionary_encode()})
    >>> [len(part) for part in to_spark_batches(keys, select_columns(SAMPLE_COLUMNS, ["key"]))]
    [50000, 50000]
    """
    waiting = [batch.slice(at, MAX_ROWS) for at in range(0, batch.num_rows, MAX_ROWS)]
    waiting.reverse()
    while waiting:
        part = waiting.pop()
        if part.num_rows > 1 and _longest_text_bytes(part, schema) > MAX_TEXT_BYTES:
            half = part.num_rows // 2
            waiting += [part.slice(half), part.slice(0, half)]
        else:
            yield to_spark(part, schema)


def _longest_text_bytes(batch: pa.RecordBatch, schema: StructType) -> int:
    """Return the bytes of the longest dictionary column once decoded; 0 if all are short."""
    longest = 0
    for name in schema.names:
        place = batch.schema.get_field_index(name)
        if place < 0 or not pa.types.is_dictionary(batch.schema.field(place).type):
            continue
        column = batch.column(place)
        lengths = pc.binary_length(column.dictionary)
        if len(lengths) and (pc.max(lengths).as_py() or 0) * len(column) > MAX_TEXT_BYTES:
            longest = max(longest, pc.sum(lengths.take(column.indices).cast(pa.int64())).as_py())
    return longest


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    place = batch.schema.get_field_index(field.name)
    if place < 0:
        return pa.nulls(batch.num_rows, field.type)
    return _convert(batch.column(place), field.type)


def _convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if pa.types.is_struct(kind):
        return _convert_struct(column, kind)
    if pa.types.is_uint64(column.type) and pa.types.is_int64(kind):
        return column.view(kind)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == kind else column.cast(kind)


def _convert_struct(column: pa.Array, kind: pa.DataType) -> pa.Array:
    children = [_convert(_struct_field(column, field.name), field.type) for field in kind.fields]
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=kind.fields, mask=mask)


def _struct_field(column: pa.Array, name: str) -> pa.Array:
    """Return a field of a struct by Spark's name: columnar's `time` is Spark's `ntp64`."""
    if name == "ntp64":
        return pc.struct_field(column, "time")
    values = pc.struct_field(column, name)
    return ntp64_to_timestamps(values) if name == "time" and _is_ntp64(values) else values


def _is_ntp64(values: pa.Array) -> bool:
    return bool(pa.types.is_uint64(values.type))


def ntp64_to_timestamps(ntp64: pa.Array) -> pa.Array:
    """Convert NTP64 times to timestamps, truncated to microseconds.

    >>> ntp64_to_timestamps(pa.array([3 << 31], pa.uint64()))[0].as_py().isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    bits = ntp64.fill_null(0).to_numpy(zero_copy_only=False)
    fraction = (bits & np.uint64(0xFFFF_FFFF)) * np.uint64(1_000_000) >> np.uint64(32)
    times = (bits >> np.uint64(32)) * np.uint64(1_000_000) + fraction
    mask = ntp64.is_null().to_numpy(zero_copy_only=False) if ntp64.null_count else None
    return pa.array(times.view(np.int64), pa.timestamp("us", "UTC"), mask=mask)
