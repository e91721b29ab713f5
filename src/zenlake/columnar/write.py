"""Record batches to the columns that wire/emit.py sends.

Knows the schema SAMPLE and how much of it may be missing: all but `key`. Without `kind` a row is a
put, without `payload` an empty one. Python runs for each distinct key, encoding and id, never for
each sample.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.columnar.schema import CONGESTION_CONTROLS, KINDS
from zenlake.errors import EncodeError
from zenlake.keyexpr import validate
from zenlake.wire import qos
from zenlake.wire.emit import clock_table, encoding_table, key_table, source_table
from zenlake.wire.encoding import CUSTOM_ID, IDS, SCHEMA_SEPARATOR, WireEncoding
from zenlake.wire.enums import Mapping, WirePriority
from zenlake.wire.kernels.emit import PushColumns
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

_CONGESTION_BITS = dict(zip(CONGESTION_CONTROLS, (0, qos.BLOCK, qos.BLOCK_FIRST), strict=True))
_UNNAMED = re.compile(r"unknown\((\d{1,5})\)")  # The text of an encoding id without a name.
_KIND_IDS = dict(zip(KINDS, (1, 2), strict=True))


def full_text(key: str) -> WireExpr:
    """Return the key without a declared id, which every peer can read."""
    return WireExpr(0, key, Mapping.SENDER)


def split_lanes(batch: pa.RecordBatch) -> Iterator[tuple[WirePriority, bool, pa.RecordBatch]]:
    """Yield (priority, reliable, rows) for each lane that the batch has rows for."""
    priority = _numbers(batch, "priority", np.uint8, int(WirePriority.DATA))
    reliable = _numbers(batch, "reliable", np.bool_, True)
    lanes = priority.astype(np.int64) << 1 | reliable
    distinct = np.unique(lanes).tolist()
    for lane in distinct:
        rows = batch if len(distinct) == 1 else batch.filter(pa.array(lanes == lane))
        yield _priority(lane >> 1), bool(lane & 1), rows


def _priority(number: int) -> WirePriority:
    try:
        return WirePriority(number)
    except ValueError:
        raise EncodeError(f"is {number}, outside 0 to 7", "column 'priority'") from None


def push_columns(
    batch: pa.RecordBatch, key_of: Callable[[str], WireExpr] = full_text
) -> PushColumns:
    """Return the columns to send for `batch`; `key_of` may shorten keys to declared ids."""
    if "key" not in batch.schema.names:
        raise EncodeError("is missing: a sample needs a key", "column 'key'")
    key_codes, key_texts = _repeating(batch, "key")
    if (key_codes < 0).any():
        raise EncodeError("has a null: a sample needs a key", "column 'key'")
    used = np.zeros(len(key_texts), np.bool_)
    used[key_codes] = True  # a dictionary may have values that no row uses
    for number in np.flatnonzero(used).tolist():
        validate(key_texts[number])
    keys, key_flags = key_table(
        [key_of(text) if use else WireExpr() for text, use in zip(key_texts, used, strict=True)]
    )
    encoding_codes, encodings = _encodings(batch)
    clock_codes, clock_ids, (time,) = _identified(batch, "timestamp", time=np.uint64)
    source_codes, source_ids, (eid, sn) = _identified(
        batch, "source", entity=np.uint32, sn=np.uint32
    )
    payload_offsets, payload, _ = _bytes(batch, "payload")
    attachment_offsets, attachment, attached = _bytes(batch, "attachment")
    return PushColumns(
        kind=_few(batch, "kind", _KIND_IDS, 1),
        key=key_codes,
        keys=keys,
        key_flags=key_flags,
        payload_offsets=payload_offsets,
        payload=payload,
        encoding=encoding_codes,
        encodings=encoding_table(encodings),
        time=time,
        clock=clock_codes,
        clocks=clock_table(clock_ids),
        source=source_codes,
        sources=source_table(source_ids),
        source_eid=eid,
        source_sn=sn,
        attached=attached,
        attachment_offsets=attachment_offsets,
        attachment=attachment,
        qos=_qos(batch),
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return the column, or None if it is missing or null throughout."""
    places = batch.schema.get_all_field_indices(name)
    if not places:
        return None
    if len(places) > 1:
        raise EncodeError("is there more than once", f"column {name!r}")
    column = batch.column(places[0])
    return None if column.null_count == len(column) and len(column) else column


def _cast(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return column if column.type == kind else column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise EncodeError(
            f"is {column.type}, which does not read as {kind}: {error}", f"column {name!r}"
        ) from None


def _numbers(batch: pa.RecordBatch, name: str, kind: type[Any], default: Any) -> npt.NDArray[Any]:
    column = _column(batch, name)
    if column is None:
        return np.full(batch.num_rows, default, kind)
    column = _cast(column, pa.from_numpy_dtype(kind), name)
    filled = column.fill_null(default) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _repeating(batch: pa.RecordBatch, name: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return codes (-1 = null) and distinct texts of a column of texts."""
    column = _column(batch, name)
    if column is None:
        return np.full(batch.num_rows, -1, np.int32), []
    return _coded(column, name)


def _coded(column: pa.Array, name: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    if not pa.types.is_dictionary(column.type) or column.dictionary.null_count:
        column = _cast(column, pa.string(), name).dictionary_encode()
    indices = column.indices.cast(pa.int32())
    codes = (indices.fill_null(-1) if indices.null_count else indices).to_numpy(
        zero_copy_only=False
    )
    return codes, _cast(column.dictionary, pa.string(), name).to_pylist()


def _few(
    batch: pa.RecordBatch, name: str, numbers: dict[str, int], default: int
) -> npt.NDArray[np.uint8]:
    """Return a column of a few known texts as numbers."""
    codes, texts = _repeating(batch, name)
    for text in texts:
        if text not in numbers:
            raise EncodeError(f"has {text!r}, not one of {list(numbers)}", f"column {name!r}")
    places = np.array([*(numbers[text] for text in texts), default], np.uint8)
    return places[codes]  # -1 (null) indexes the last entry


def _qos(batch: pa.RecordBatch) -> npt.NDArray[np.uint8]:
    bits = _few(batch, "congestion_control", _CONGESTION_BITS, 0)
    priority = _numbers(batch, "priority", np.uint8, int(WirePriority.DATA))
    if len(priority) and priority.max() > WirePriority.BACKGROUND:
        _priority(int(priority.max()))
    express = _numbers(batch, "express", np.bool_, False)
    express_bits = np.where(express, np.uint8(qos.EXPRESS), np.uint8(0))
    byte: npt.NDArray[np.uint8] = bits | priority | express_bits
    return byte


def _encodings(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int32], list[WireEncoding]]:
    """Return codes and distinct encodings, from the columns `encoding` and `schema`."""
    types, type_texts = _repeating(batch, "encoding")
    schemas, schema_texts = _repeating(batch, "schema")
    pairs = (types.astype(np.int64) + 1) * (len(schema_texts) + 1) + (schemas + 1)
    distinct, codes = (
        (np.unique(pairs[:1]), np.zeros(len(pairs), np.int64))
        if len(pairs) and (pairs == pairs[0]).all()
        else np.unique(pairs, return_inverse=True)
    )
    encodings = []
    for pair in distinct.tolist():
        kind, schema = divmod(pair, len(schema_texts) + 1)
        encodings.append(
            _encoding(
                type_texts[kind - 1] if kind else None,
                schema_texts[schema - 1] if schema else None,
            )
        )
    return codes.astype(np.int32), encodings


def _encoding(kind: str | None, schema: str | None) -> WireEncoding:
    try:
        if kind is None or kind in IDS:
            return WireEncoding(
                IDS[kind] if kind else 0, None if schema is None else schema.encode()
            )
        unnamed = _UNNAMED.fullmatch(kind)
        if unnamed and int(unnamed[1]) not in (CUSTOM_ID, *range(len(IDS))):
            return WireEncoding(int(unnamed[1]), None if schema is None else schema.encode())
        text = kind if schema is None else f"{kind}{SCHEMA_SEPARATOR}{schema}"
        return WireEncoding(CUSTOM_ID, text.encode() or None)
    except ValueError as error:
        raise EncodeError(
            f"has {kind!r} with schema {schema!r}: {error}", "column 'encoding'"
        ) from None


def _ids(
    column: pa.Array, valid: npt.NDArray[np.bool_], name: str
) -> tuple[npt.NDArray[np.int32], list[WireZenohId]]:
    codes, texts = _coded(column, name)
    wanted = set(np.unique(codes[valid]).tolist())
    ids: list[WireZenohId] = []
    places = np.full(len(texts) + 1, -1, np.int32)
    for code, text in enumerate(texts):
        if code in wanted:
            places[code] = len(ids)
            try:
                ids.append(WireZenohId.parse(text))
            except ValueError as error:
                raise EncodeError(f"has {error}", f"column {name!r}") from None
    if -1 in wanted:
        raise EncodeError("has a null id beside a value", f"column {name!r}")
    return np.where(valid, places[codes], np.int32(-1)), ids


def _part(column: pa.Array, field: str, name: str) -> pa.Array:
    if not pa.types.is_struct(column.type) or column.type.get_field_index(field) < 0:
        raise EncodeError(f"is {column.type}, not a struct with {field!r}", f"column {name!r}")
    return pc.struct_field(column, field)


def _identified(
    batch: pa.RecordBatch, name: str, **fields: type[Any]
) -> tuple[npt.NDArray[np.int32], list[WireZenohId], list[npt.NDArray[Any]]]:
    """Return the codes (-1 = null) and distinct ids of a struct with an id, and its `fields`."""
    column = _column(batch, name)
    n = batch.num_rows
    if column is None:
        return np.full(n, -1, np.int32), [], [np.zeros(n, kind) for kind in fields.values()]
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    codes, ids = _ids(_part(column, "id", name), valid, name)
    values = [
        _cast(_part(column, field, name), pa.from_numpy_dtype(kind), name)
        .fill_null(0)
        .to_numpy(zero_copy_only=False)
        for field, kind in fields.items()
    ]
    return codes, ids, values


def _bytes(
    batch: pa.RecordBatch, name: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return offsets, data and validity of a column of bytes or texts."""
    column = _column(batch, name)
    n = batch.num_rows
    if column is None:
        return np.zeros(n + 1, np.int64), np.zeros(0, np.uint8), np.zeros(n, np.uint8)
    valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    column = _cast(column, pa.large_binary(), name)
    if column.null_count:
        column = column.fill_null(b"")  # bytes under a null must not be sent
    _, offsets, data = column.buffers()
    return (
        np.frombuffer(offsets, np.int64)[column.offset : column.offset + n + 1].copy(),
        np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8),
        valid,
    )
