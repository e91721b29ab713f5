"""Dictionary encoding of text columns, which makes sorting, copying and writing them cheap.

Knows Arrow's types. Does not know what the columns mean.
"""

import pyarrow as pa
import pyarrow.compute as pc


def dictionary_encode(rows: pa.Table) -> pa.Table:
    """Return the rows with one chunk per column and all texts, also in structs, as dictionaries.

    >>> dictionary_encode(pa.table({"key": ["a", "b", "a"]})).schema.field("key").type
    DictionaryType(dictionary<values=string, indices=int32, ordered=0>)
    """
    columns = [_encode_column(column) for column in rows.columns]
    return pa.table(columns, schema=dictionary_schema(rows.schema))


def dictionary_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that `dictionary_encode` gives rows of `schema`."""
    return pa.schema([field.with_type(_dictionary_type(field.type)) for field in schema])


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a column type is text, plain or dictionary-encoded."""
    return bool(pa.types.is_string(kind) or kind == _TEXT)


def distinct_values(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return an array with the same set of values: each once for a dictionary, else the column.

    >>> texts = pa.chunked_array([["b", "a", "b"]]).dictionary_encode()
    >>> distinct_values(texts.slice(0, 1)).to_pylist()
    ['b']
    """
    if not pa.types.is_dictionary(column.type):
        return column
    array = column.combine_chunks()
    return array.dictionary.take(pc.unique(array.indices))


_TEXT = pa.dictionary(pa.int32(), pa.string())


def _dictionary_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return _TEXT
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_dictionary_type(field.type)) for field in kind.fields])
    return kind


def _encode_column(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_string(column.type):
        column = pc.dictionary_encode(column)
    array = column.combine_chunks()
    if _dictionary_type(array.type) == array.type:
        return array
    children = [_encode_column(pa.chunked_array([child])) for child in array.flatten()]
    fields = [f.with_type(child.type) for f, child in zip(array.type.fields, children, strict=True)]
    mask = pc.is_null(array) if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
