"""Conversion of values and text columns to JSON within limits; rows fail one by one.

Knows JSON and what a VARIANT can hold. Does not know encodings or decoders.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.errors import ZError

MAX_PAYLOAD_BYTES = 16 << 20  # Upper bound on a payload to be decoded.
MAX_JSON_BYTES = 32 << 20  # Upper bound on a value as JSON.
MAX_GROWTH = 64  # Upper bound on JSON bytes per payload byte, beyond GROWTH_FREE.
GROWTH_FREE = 64 << 10  # JSON bytes that any payload may take: it may not contain field names.
MAX_VALUES = 1 << 20  # Upper bound on the numbers, texts, lists and objects in one value.
MAX_DEPTH = 100  # Upper bound on the nesting of lists and objects.
MAX_REASON = 300  # Upper bound on the characters of a reason.
FIRST_TEXT_INTEGER = 10**38  # Integers from here on do not fit into a VARIANT and become texts.
MAX_BITS = 12_000  # Upper bound on the bits of an integer that is written as text.
MIN_COLUMN_ROWS = 16  # Fewer rows than this are decoded one by one.

Decoded = tuple[pa.Array, pa.Array]
"JSON texts and reasons; in every row exactly one of them is null."
Decode = Callable[[pa.Array, pa.RecordBatch], Decoded]
"""Function from payloads and the other columns of their rows to the outcome of each row.

All rows of one call have the same encoding and schema.
"""
Other = Callable[[Any], Any]
"Function that converts a value without a JSON form to one that has it."


class Undecodable(ZError):
    """Payload that does not match its encoding; the message becomes the reason of the row."""


# ---- rows


def decode_rows(
    payloads: pa.Array, read: Callable[[bytes], Any], other: Other | None = None
) -> Decoded:
    """Decode each payload by `read`; a payload that makes it raise fails alone."""
    texts: list[str | None] = []
    reasons: list[str | None] = []
    for data in payloads.to_pylist():
        try:
            max_bytes = min(MAX_JSON_BYTES, GROWTH_FREE + MAX_GROWTH * len(data))
            text, reason = to_json(read(data), other, max_bytes), None
        except Exception as error:  # noqa: BLE001  # Hostile bytes fail their row, not the flow.
            text, reason = None, describe_error(error)
        texts.append(text)
        reasons.append(reason)
    return pa.array(texts, pa.string()), pa.array(reasons, pa.string())


def fail_all(rows: int, reason: str) -> Decoded:
    """Return the outcome of rows that all fail for one reason."""
    return pa.nulls(rows, pa.string()), pa.repeat(pa.scalar(reason, pa.string()), rows)


def without_reasons(texts: pa.Array) -> Decoded:
    """Return the outcome of rows none of which failed."""
    return texts, pa.nulls(len(texts), pa.string())


def describe_error(error: BaseException) -> str:
    """Return an error as one short line of valid UTF-8.

    >>> describe_error(ValueError("of two\\nlines"))
    'of two lines'
    >>> describe_error(RecursionError())
    'RecursionError'
    """
    known = isinstance(error, (ZError, ValueError)) and str(error)
    text = str(error) if known else f"{type(error).__name__}: {error}".removesuffix(": ")
    shown = " ".join(text[: 2 * MAX_REASON].split())[:MAX_REASON]
    return shown.encode(errors="backslashreplace").decode()


def spread(values: pa.Array, where: npt.NDArray[np.bool_]) -> pa.Array:
    """Return `values` at the rows that are True in `where`, null at the others.

    >>> spread(pa.array(["a", "b"]), np.array([False, True, True])).to_pylist()
    [None, 'a', 'b']
    """
    return values.take(pa.array(np.cumsum(where) - 1, pa.int64(), mask=~where))


def decode_where(
    where: npt.NDArray[np.bool_], decode: Callable[[], Decoded], reason: str
) -> Decoded:
    """Decode the rows that are True in `where`; the others fail for `reason`."""
    if where.all():
        return decode()
    texts, reasons = decode() if where.any() else without_reasons(pa.nulls(0, pa.string()))
    others = pc.if_else(pa.array(where), pa.scalar(None, pa.string()), reason)
    return spread(texts, where), pc.coalesce(spread(reasons, where), others)


# ---- columns of texts


def decode_utf8(payloads: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return payloads as texts, null if not UTF-8, and which of them are UTF-8.

    >>> texts, good = decode_utf8(pa.array([b"a", b"\\xff"]))
    >>> texts.to_pylist(), good.tolist()
    (['a', None], [True, False])
    """
    try:
        return payloads.cast(pa.string()), np.ones(len(payloads), np.bool_)
    except pa.ArrowInvalid:
        parts = list(_cast_by_halves(payloads))
    return pa.concat_arrays([p for p, _ in parts]), np.concatenate([good for _, good in parts])


def _cast_by_halves(payloads: pa.Array) -> Iterable[tuple[pa.Array, npt.NDArray[np.bool_]]]:
    """Cast halves recursively, so that rows far from invalid ones are cast in bulk."""
    if len(payloads) <= MIN_COLUMN_ROWS:
        texts = [_text_or_none(data) for data in payloads.to_pylist()]
        yield pa.array(texts, pa.string()), np.array([t is not None for t in texts], np.bool_)
        return
    middle = len(payloads) // 2
    for half in (payloads.slice(0, middle), payloads.slice(middle)):
        try:
            yield half.cast(pa.string()), np.ones(len(half), np.bool_)
        except pa.ArrowInvalid:
            yield from _cast_by_halves(half)


def _text_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


_ESCAPES = {
    **{code: f"\\u{code:04x}" for code in range(0x20)},
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0C: "\\f",
    0x0D: "\\r",
    0x22: '\\"',
    0x5C: "\\\\",
}


def quote_json(texts: pa.Array) -> pa.Array:
    """Return each text as a JSON string, with one pass per kind of escaped character.

    >>> quote_json(pa.array(['say "hi"', "a\\\\b"])).to_pylist()
    ['"say \\\\"hi\\\\""', '"a\\\\\\\\b"']
    """
    present = np.bincount(bytes_of(texts), minlength=256)
    for code in (0x5C, *(code for code in _ESCAPES if code != 0x5C)):  # The backslash comes first.
        if present[code]:
            texts = pc.replace_substring(texts, chr(code), _ESCAPES[code])
    return pc.binary_join_element_wise('"', texts, '"', "")


def bytes_of(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of all texts or payloads of a column, one after another."""
    starts, sizes, data = find_layout(column)
    return data[starts[0] : starts[-1] + sizes[-1]] if len(starts) else data


def find_layout(
    column: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the start and the length of each text or payload, and the buffer with all of them."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return (*np.zeros((2, len(column)), np.int64), np.zeros(0, np.uint8))
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return ends[:-1].astype(np.int64), np.diff(ends).astype(np.int64), np.frombuffer(data, np.uint8)


# ---- values


def to_json(value: Any, other: Other | None = None, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Return a value as JSON. Undecodable: it is too large, too deep, or has no JSON form.

    Bytes become base64. Times, decimals, integers of 39 digits or more, and "NaN", "Infinity" and
    "-Infinity" become texts, as do the keys of objects.

    >>> to_json({"a": [1, None, b"ab", float("nan")], 2: {True}})
    '{"a":[1,null,"YWI=","NaN"],"2":[true]}'
    """
    text = _encode(_JsonBuilder(other, max_bytes).convert(value, MAX_DEPTH))
    if len(text) > max_bytes:
        raise _size_error(max_bytes)
    return text


_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


class _JsonBuilder:
    """Builder of values of JSON types that counts values and bytes against the limits."""

    def __init__(self, other: Other | None, max_bytes: int) -> None:
        self.values = 0
        self.size = 0
        self.max_bytes = max_bytes
        self.other = other

    def convert(self, value: Any, depth: int) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            raise Undecodable(f"there are more than {MAX_VALUES} values in it")
        kind = type(value)
        form = _FORMS.get(kind) or _find_inherited(kind)
        if form is not None:
            return form(self, value, depth)
        if self.other is None:
            raise Undecodable(f"a {kind.__name__} has no form in JSON")
        return self.convert(self.other(value), _descend(depth))

    def _unchanged(self, value: Any, depth: int) -> Any:
        return value

    def _text(self, value: str, depth: int = 0) -> str:
        self.size += len(value)
        if self.size > self.max_bytes:
            raise _size_error(self.max_bytes)
        return value

    def _whole(self, value: int, depth: int) -> int | str:
        if -FIRST_TEXT_INTEGER < value < FIRST_TEXT_INTEGER:
            return int(value)
        if value.bit_length() > MAX_BITS:
            raise Undecodable(f"a whole number of {value.bit_length()} bits is too long")
        return self._text(str(int(value)))

    def _number(self, value: float, depth: int) -> float | str:
        return float(value) if math.isfinite(value) else _NOT_FINITE[str(float(value))]

    def _bytes(self, value: bytes, depth: int) -> str:
        return self._text(base64.b64encode(value).decode())

    def _list(self, value: Iterable[Any], depth: int) -> list[Any]:
        below = _descend(depth)
        return [self.convert(item, below) for item in value]

    def _set(self, value: Iterable[Any], depth: int) -> list[Any]:
        return sorted(self._list(value, depth), key=_encode)

    def _object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        below = _descend(depth)
        made: dict[str, Any] = {}
        for key, item in value.items():
            name = self._text(key) if type(key) is str else self._name(key, below)
            if name in made:
                raise Undecodable(f"two keys of one object are the text {name[:40]!r}")
            made[name] = self.convert(item, below)
        return made

    def _name(self, key: Any, depth: int) -> str:
        made = self.convert(key, depth)
        return made if type(made) is str else self._text(_encode(made))

    def _array(self, values: "npt.NDArray[Any]", depth: int) -> Any:
        if values.dtype == np.uint8:
            return self._bytes(values.tobytes(), depth)
        self.values += values.size
        if values.dtype.kind in "iub" or (values.dtype.kind == "f" and np.isfinite(values).all()):
            return values.tolist()
        return self._list(values.tolist(), depth)

    def _time(self, value: date, depth: int) -> str:
        return self._text(value.isoformat())

    def _as_text(self, value: Any, depth: int) -> str:
        return self._text(str(value))


_FORMS: dict[type, Callable[[_JsonBuilder, Any, int], Any]] = {
    type(None): _JsonBuilder._unchanged,
    bool: _JsonBuilder._unchanged,
    str: _JsonBuilder._text,
    int: _JsonBuilder._whole,
    float: _JsonBuilder._number,
    bytes: _JsonBuilder._bytes,
    bytearray: _JsonBuilder._bytes,
    list: _JsonBuilder._list,
    tuple: _JsonBuilder._list,
    set: _JsonBuilder._set,
    frozenset: _JsonBuilder._set,
    dict: _JsonBuilder._object,
    np.ndarray: _JsonBuilder._array,
    date: _JsonBuilder._time,  # Includes datetime.
    Decimal: _JsonBuilder._as_text,
    Fraction: _JsonBuilder._as_text,
    UUID: _JsonBuilder._as_text,
}
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _find_inherited(kind: type) -> Callable[[_JsonBuilder, Any, int], Any] | None:
    return next((_FORMS[base] for base in kind.__mro__ if base in _FORMS), None)


def _descend(depth: int) -> int:
    if depth == 0:
        raise Undecodable(f"lists and objects are nested deeper than {MAX_DEPTH}")
    return depth - 1


def _size_error(max_bytes: int) -> Undecodable:
    return Undecodable(f"as JSON the value is larger than {max_bytes} bytes")
