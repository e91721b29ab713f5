"""Columns in the types of another schema: Spark's, that of a table, or one without dictionaries.

Knows the form of SAMPLE, in which a timestamp has only NTP64. Does not know schemas by name.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def conform_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column as `kind`: dictionaries decoded, numbers cast, structs field by field.

    Where a struct of `kind` has `ntp64`, columnar's `time` is that, and its `time` a timestamp.
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
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == kind else column.cast(kind)


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
