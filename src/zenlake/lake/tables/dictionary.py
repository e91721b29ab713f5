"""Texts as dictionaries: rows with repeating texts that are sorted, copied and written cheaply.

Knows Arrow's types. Does not know what the columns mean.
"""

import pyarrow as pa
import pyarrow.compute as pc


def dictionary_encode(rows: pa.Table) -> pa.Table:
    """One chunk a column, texts as dictionaries, also those in structs.

    >>> coded(pa.table({"key": ["a", "b", "a"]})).schema.field("key").type
    DictionaryType(dictionary<values=string, indices=int32, ordered=0>)
    """
    columns = [_coded(column) for column in rows.columns]
    return pa.table(columns, schema=dictionary_schema(rows.schema))


def dictionary_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of such rows."""
    return pa.schema([one.with_type(_coded_type(one.type)) for one in schema])


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds texts, as they are or as a dictionary."""
    return bool(pa.types.is_string(kind) or kind == _TEXT)


def values_of(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A column that has the same values, though not as often: texts as they are.

    >>> values_of(pa.chunked_array([["b", "a", "b"]]).dictionary_encode().slice(0, 1)).to_pylist()
    ['b']
    """
    if not pa.types.is_dictionary(column.type):
        return column
    one = column.combine_chunks()
    return one.dictionary.take(pc.unique(one.indices))


_TEXT = pa.dictionary(pa.int32(), pa.string())


def _coded_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return _TEXT
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_coded_type(one.type)) for one in kind.fields])
    return kind


def _coded(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_string(column.type):
        column = pc.dictionary_encode(column)
    one = column.combine_chunks()
    if _coded_type(one.type) == one.type:
        return one
    children = [_coded(pa.chunked_array([child])) for child in one.flatten()]
    fields = [f.with_type(child.type) for f, child in zip(one.type.fields, children, strict=True)]
    mask = pc.is_null(one) if one.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
