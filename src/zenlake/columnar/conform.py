"""Columns in the types of another schema: Spark's, that of a table, or one without dictionaries.

Knows the form of SAMPLE, in which a timestamp has only NTP64. Does not know schemas by name.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MAX_TEXT_BYTES = 256 << 20  # Bytes per decoded text column; Arrow's 32-bit offsets end at 2 GiB.


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema without dictionaries, and with nullable fields in structs.

    >>> plain_schema(pa.schema({"key": pa.dictionary(pa.int32(), pa.string())})).types
    [DataType(string)]
    """
    return pa.schema([field.with_type(_plain_type(field.type)) for field in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in kind.fields])
    return kind


def split_texts(batch: pa.RecordBatch, max_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of at most `max_rows`, each small enough that its texts can be decoded."""
    waiting = [batch.slice(at, max_rows) for at in range(0, batch.num_rows, max_rows)]
    waiting.reverse()
    while waiting:
        part = waiting.pop()
        if part.num_rows > 1 and max(map(_text_bytes, part.columns), default=0) > MAX_TEXT_BYTES:
            half = part.num_rows // 2
            waiting += [part.slice(half), part.slice(0, half)]
        else:
            yield part


def _text_bytes(column: pa.Array) -> int:
    """Return the bytes of a dictionary column once decoded; 0 if it is short."""
    if not pa.types.is_dictionary(column.type):
        return 0
    lengths = pc.binary_length(column.dictionary)
    if (pc.max(lengths).as_py() or 0) * len(column) <= MAX_TEXT_BYTES:
        return 0
    return int(pc.sum(lengths.take(column.indices).cast(pa.int64())).as_py() or 0)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`, in its order; columns that the batch lacks are null."""
    if not schema.names:
        return batch.select([])  # Keeps the number of rows.
    columns = [
        conform_column(batch.column(field.name), field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def conform_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column as `kind`: numbers cast, structs field by field, texts as `kind` has them.

    Where a struct of `kind` has `ntp64`, columnar's `time` is that, and its `time` a timestamp.
    A dictionary stays one if `kind` is one: only its indices are cast.
    """
    if column.type == kind:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if pa.types.is_struct(kind):
        children = [conform_column(_child(column, field.name), field.type) for field in kind.fields]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=kind.fields, mask=mask)
    if pa.types.is_uint64(column.type) and pa.types.is_int64(kind):
        return column.view(kind)
    if pa.types.is_uint64(column.type) and pa.types.is_timestamp(kind):
        micros = ntp64_to_micros(column.fill_null(0).to_numpy(zero_copy_only=False))
        mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        return pa.array(micros, kind, mask=mask)
    if pa.types.is_dictionary(kind):
        return _conform_dictionary(column, kind)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == kind else column.cast(kind)


def _conform_dictionary(column: pa.Array, kind: pa.DictionaryType) -> pa.Array:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    indices, values = column.indices.cast(kind.index_type), column.dictionary.cast(kind.value_type)
    return pa.DictionaryArray.from_arrays(indices, values)


def _child(column: pa.Array, name: str) -> pa.Array:
    is_columnar = name == "ntp64" and column.type.get_field_index(name) < 0
    return pc.struct_field(column, "time" if is_columnar else name)


def ntp64_to_micros(ntp64: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return microseconds since 1970, truncated.

    >>> ntp64_to_micros(np.array([3 << 31], np.uint64)).tolist()
    [1500000]
    """
    fraction = (ntp64 & np.uint64(0xFFFF_FFFF)) * np.uint64(1_000_000) >> np.uint64(32)
    return ((ntp64 >> np.uint64(32)) * np.uint64(1_000_000) + fraction).view(np.int64)
