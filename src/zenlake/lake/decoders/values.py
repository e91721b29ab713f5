"""Values and columns of texts as JSON, within limits, and rows that fail one by one.

Knows JSON and what a VARIANT can hold. Does not know encodings, and no decoder by name.
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

MAX_PAYLOAD_BYTES = 16 << 20  # of one payload that is decoded
MAX_JSON_BYTES = 32 << 20  # of one value as JSON, and
MAX_GROWTH = 64  # times its payload, and
GROWTH_FREE = 64 << 10  # that many bytes more: names of fields are not in every payload
MAX_VALUES = 1 << 20  # numbers, texts, lists and objects in one value
MAX_DEPTH = 100  # of lists and objects in each other
MAX_REASON = 300  # characters
FIRST_TEXT_INTEGER = 10**38  # from here on a VARIANT has no whole numbers
MAX_BITS = 12_000  # of a whole number that is spelled out
MIN_COLUMN_ROWS = 16  # rows: fewer are looked at one by one

Decoded = tuple[pa.Array, pa.Array]
"JSON texts, and reasons: one of both is null in every row."
Decode = Callable[[pa.Array, pa.RecordBatch], Decoded]
"""(payloads, the other columns of the same rows) -> the outcome of each.

All rows of one call have the same encoding and the same schema.
"""
Other = Callable[[Any], Any]
"A value of a type that JSON has no form for -> one that it has."


class Undecodable(ZError):
    """A payload that is not what its encoding says; the text is the reason that is kept."""


# ---- rows


def decode_rows(
    payloads: pa.Array, read: Callable[[bytes], Any], other: Other | None = None
) -> Decoded:
    """Each payload as `read` reads it; one that it refuses, for whatever reason, fails alone."""
    texts: list[str | None] = []
    reasons: list[str | None] = []
    for data in payloads.to_pylist():
        try:
            room = min(MAX_JSON_BYTES, GROWTH_FREE + MAX_GROWTH * len(data))
            text, reason = to_json(read(data), other, room), None
        except Exception as error:  # noqa: BLE001  # hostile bytes: the row fails, not the flow
            text, reason = None, describe_error(error)
        texts.append(text)
        reasons.append(reason)
    return pa.array(texts, pa.string()), pa.array(reasons, pa.string())


def fail_all(rows: int, reason: str) -> Decoded:
    """All of them, for one reason."""
    return pa.nulls(rows, pa.string()), pa.repeat(pa.scalar(reason, pa.string()), rows)


def without_reasons(texts: pa.Array) -> Decoded:
    """None of them failed."""
    return texts, pa.nulls(len(texts), pa.string())


def describe_error(error: BaseException) -> str:
    """What is kept of an error: one short line of good UTF-8.

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
    """`values` in the places where it is true, null in the others.

    >>> spread(pa.array(["a", "b"]), np.array([False, True, True])).to_pylist()
    [None, 'a', 'b']
    """
    return values.take(pa.array(np.cumsum(where) - 1, pa.int64(), mask=~where))


def decode_where(
    where: npt.NDArray[np.bool_], decode: Callable[[], Decoded], reason: str
) -> Decoded:
    """What `decode` makes of the rows where it is true; the others fail for `reason`."""
    if where.all():
        return decode()
    texts, reasons = decode() if where.any() else without_reasons(pa.nulls(0, pa.string()))
    others = pc.if_else(pa.array(where), pa.scalar(None, pa.string()), reason)
    return spread(texts, where), pc.coalesce(spread(reasons, where), others)


# ---- columns of texts


def decode_utf8(payloads: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """The payloads as texts, and which of them are: the others are null.

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
    """Cast in pieces, the smaller the nearer to what is no UTF-8."""
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
    """Each text as a JSON text. One pass for each kind of character that has to be escaped.

    >>> quote_json(pa.array(['say "hi"', "a\\\\b"])).to_pylist()
    ['"say \\\\"hi\\\\""', '"a\\\\\\\\b"']
    """
    present = np.bincount(_bytes_of(texts), minlength=256)
    for code in (0x5C, *(code for code in _ESCAPES if code != 0x5C)):  # the backslash first
        if present[code]:
            texts = pc.replace_substring(texts, chr(code), _ESCAPES[code])
    return pc.binary_join_element_wise('"', texts, '"', "")


def _bytes_of(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """Of all texts, one behind the other."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return np.zeros(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


# ---- values


def to_json(value: Any, other: Other | None = None, room: int = MAX_JSON_BYTES) -> str:
    """One value as JSON. Undecodable: it is too large, too deep, or of no form.

    Bytes are base64; a number that is none is "NaN", "Infinity" or "-Infinity"; a whole number of
    39 digits or more is a text, and so are times and decimals; keys of objects are texts.

    >>> to_json({"a": [1, None, b"ab", float("nan")], 2: {True}})
    '{"a":[1,null,"YWI=","NaN"],"2":[true]}'
    """
    text = _encode(_JsonBuilder(other, room).of(value, MAX_DEPTH))
    if len(text) > room:
        raise _size_error(room)
    return text


_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


class _JsonBuilder:
    """Values made of what JSON has, counted while they are made."""

    def __init__(self, other: Other | None, room: int) -> None:
        self.values = 0
        self.size = 0
        self.room = room
        self.other = other

    def of(self, value: Any, depth: int) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            raise Undecodable(f"there are more than {MAX_VALUES} values in it")
        kind = type(value)
        form = _FORMS.get(kind) or _find_inherited(kind)
        if form is not None:
            return form(self, value, depth)
        if self.other is None:
            raise Undecodable(f"a {kind.__name__} has no form in JSON")
        return self.of(self.other(value), _deeper(depth))

    def _same(self, value: Any, depth: int) -> Any:
        return value

    def _text(self, value: str, depth: int = 0) -> str:
        self.size += len(value)
        if self.size > self.room:
            raise _size_error(self.room)
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
        below = _deeper(depth)
        return [self.of(item, below) for item in value]

    def _set(self, value: Iterable[Any], depth: int) -> list[Any]:
        return sorted(self._list(value, depth), key=_encode)

    def _object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        below = _deeper(depth)
        made: dict[str, Any] = {}
        for key, item in value.items():
            name = self._text(key) if type(key) is str else self._name(key, below)
            if name in made:
                raise Undecodable(f"two keys of one object are the text {name[:40]!r}")
            made[name] = self.of(item, below)
        return made

    def _name(self, key: Any, depth: int) -> str:
        made = self.of(key, depth)
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

    def _shown(self, value: Any, depth: int) -> str:
        return self._text(str(value))


_FORMS: dict[type, Callable[[_JsonBuilder, Any, int], Any]] = {
    type(None): _JsonBuilder._same,
    bool: _JsonBuilder._same,
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
    date: _JsonBuilder._time,  # and datetime
    Decimal: _JsonBuilder._shown,
    Fraction: _JsonBuilder._shown,
    UUID: _JsonBuilder._shown,
}
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _find_inherited(kind: type) -> Callable[[_JsonBuilder, Any, int], Any] | None:
    return next((_FORMS[base] for base in kind.__mro__ if base in _FORMS), None)


def _deeper(depth: int) -> int:
    if depth == 0:
        raise Undecodable(f"lists and objects are nested deeper than {MAX_DEPTH}")
    return depth - 1


def _size_error(room: int) -> Undecodable:
    return Undecodable(f"as JSON it is larger than {room} bytes")
