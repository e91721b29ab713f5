"""The rows that Spark sees, and record batches in exactly the form that Spark takes.

Knows SAMPLE of columnar/ and Spark's rules for Arrow (plain strings, 32-bit offsets, microseconds,
names and order). Does not know where batches come from.
"""

from collections.abc import Callable, Iterator, Sequence

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

MAX_ROWS = 50_000  # of one batch for Spark: best measured, 20,000 to 250,000 are alike
MAX_TEXT_BYTES = 256 << 20  # of one column of texts, spelled out; Arrow's offsets end at 2 GiB

TIMESTAMP = StructType(
    [
        StructField("time", TimestampType()),  # cut to microseconds
        StructField("ntp64", LongType()),  # all 64 bits: order is kept until 2038-01-19
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


# ---- which columns


def with_loss(columns: StructType = SAMPLE_COLUMNS) -> StructType:
    """The columns, and `loss` as the last.

    >>> with_loss().names[-2:]
    ['offset', 'loss']
    """
    return StructType([*columns.fields, LOSS_COLUMN])


def with_duplicate(columns: StructType = SAMPLE_COLUMNS) -> StructType:
    """The columns, and `duplicate` as the last.

    >>> with_duplicate(with_loss()).names[-2:]
    ['loss', 'duplicate']
    """
    return StructType([*columns.fields, DUPLICATE_COLUMN])


def narrowed(columns: StructType, names: Sequence[str] | None) -> StructType:
    """Those of `columns` that `names` names, in its order; all of them for None.

    >>> narrowed(SAMPLE_COLUMNS, ["payload", "key"]).names
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


def checked(wanted: StructType, columns: StructType) -> StructType:
    """`wanted`, a schema that a user gave, if it is made of `columns` as they are."""
    expected = narrowed(columns, wanted.names)
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
    """What Spark demands of a record batch with these columns.

    >>> arrow_schema(StructType([StructField("payload", BinaryType())])).field("payload").type
    DataType(binary)
    """
    return to_arrow_schema(struct, timezone="UTC")


# ---- record batches


def to_spark(batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """The columns of `schema`, in its order, from a batch in columnar's schema.

    `partition`, `offset` and `loss` may stand in `batch` besides; what it lacks is null. Texts are
    spelled out, so a batch must be small enough for that: see `batches`.
    """
    target = arrow_schema(schema)
    return pa.RecordBatch.from_arrays([_column(batch, field) for field in target], schema=target)


def batches(batch: pa.RecordBatch, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The same for a batch of any size, cut so that Spark takes each piece.

    >>> keys = pa.record_batch({"key": pa.array(["a", "b"] * 50_000).dictionary_encode()})
    >>> [len(one) for one in batches(keys, narrowed(SAMPLE_COLUMNS, ["key"]))]
    [50000, 50000]
    """
    waiting = [batch.slice(at, MAX_ROWS) for at in range(0, batch.num_rows, MAX_ROWS)]
    waiting.reverse()
    while waiting:
        part = waiting.pop()
        if part.num_rows > 1 and _text_bytes(part, schema) > MAX_TEXT_BYTES:
            half = part.num_rows // 2
            waiting += [part.slice(half), part.slice(0, half)]
        else:
            yield to_spark(part, schema)


def _text_bytes(batch: pa.RecordBatch, schema: StructType) -> int:
    """Of the longest column of repeating texts, spelled out."""
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
    return _plain(batch.column(place), field.type)


def _plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if pa.types.is_struct(kind):
        return _struct(column, kind)
    if pa.types.is_uint64(column.type) and pa.types.is_int64(kind):
        return column.view(kind)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == kind else column.cast(kind)


def _struct(column: pa.Array, kind: pa.DataType) -> pa.Array:
    children = [_plain(*_MADE.get(field.name, _as_it_is)(column, field)) for field in kind.fields]
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=kind.fields, mask=mask)


def _as_it_is(column: pa.Array, field: pa.Field) -> tuple[pa.Array, pa.DataType]:
    return pc.struct_field(column, field.name), field.type


def _ntp64(column: pa.Array, field: pa.Field) -> tuple[pa.Array, pa.DataType]:
    return pc.struct_field(column, "time"), field.type


def _time(column: pa.Array, field: pa.Field) -> tuple[pa.Array, pa.DataType]:
    time = pc.struct_field(column, "time")
    return microseconds(time) if pa.types.is_uint64(time.type) else time, field.type


_MADE: dict[str, Callable[[pa.Array, pa.Field], tuple[pa.Array, pa.DataType]]] = {
    "time": _time,
    "ntp64": _ntp64,
}
"Fields of Spark's structs that columnar has not, or in another form."


def microseconds(ntp64: pa.Array) -> pa.Array:
    """Times in NTP64 as timestamps; what is below a microsecond is cut off.

    >>> microseconds(pa.array([3 << 31], pa.uint64()))[0].as_py().isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    bits = ntp64.fill_null(0).to_numpy(zero_copy_only=False)
    fraction = (bits & np.uint64(0xFFFF_FFFF)) * np.uint64(1_000_000) >> np.uint64(32)
    times = (bits >> np.uint64(32)) * np.uint64(1_000_000) + fraction
    mask = ntp64.is_null().to_numpy(zero_copy_only=False) if ntp64.null_count else None
    return pa.array(times.view(np.int64), pa.timestamp("us", "UTC"), mask=mask)
