"""z_serialize and z_deserialize: Python values in the byte format that all Zenoh bindings share.

Knows the layout: little-endian, no type tags, counts as LEB128. Does not know messages.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, Self, TypeVar, cast, get_args, get_origin

from zenlake.api.arguments import instance
from zenlake.api.values.zbytes import ZBytes
from zenlake.errors import ZError

MAX_DEPTH = 128  # Upper bound on nesting of collections, in a type or a value.
# Upper bound on items that take no byte; the length of the data does not bound their number.
MAX_EMPTY_ITEMS = 1 << 20
LEB128_BYTES = 10  # Bytes of a LEB128 number of 64 bits.

T = TypeVar("T")


class ZDeserializeError(ZError):
    """Bytes that are not a value of the requested type."""


class _FixedInt(int):
    """Integer of a fixed number of bits.

    >>> z_serialize(Int8(-1)).to_bytes(), z_serialize(UInt16(258)).to_bytes()
    (b'\\xff', b'\\x02\\x01')
    >>> z_serialize(Int32(2)) == z_serialize(2), len(z_serialize(Int128(2)))
    (True, 16)
    """

    _low: ClassVar[int]
    _end: ClassVar[int]

    def __init_subclass__(cls, bits: int, signed: bool = True) -> None:
        cls._low = -(1 << bits - 1) if signed else 0
        cls._end = cls._low + (1 << bits)

    def __new__(cls, i: int) -> Self:
        if not cls._low <= i < cls._end:
            raise AssertionError(f"{i} too big for {cls.__name__}")
        return super().__new__(cls, i)


class Int8(_FixedInt, bits=8):
    """Signed integer serialized as 1 byte."""


class Int16(_FixedInt, bits=16):
    """Signed integer serialized as 2 bytes."""


class Int32(_FixedInt, bits=32):
    """Signed integer serialized as 4 bytes, like a plain int."""


class Int64(_FixedInt, bits=64):
    """Signed integer serialized as 8 bytes."""


class Int128(_FixedInt, bits=128):
    """Signed integer serialized as 16 bytes."""


class UInt8(_FixedInt, bits=8, signed=False):
    """Unsigned integer serialized as 1 byte."""


class UInt16(_FixedInt, bits=16, signed=False):
    """Unsigned integer serialized as 2 bytes."""


class UInt32(_FixedInt, bits=32, signed=False):
    """Unsigned integer serialized as 4 bytes."""


class UInt64(_FixedInt, bits=64, signed=False):
    """Unsigned integer serialized as 8 bytes."""


class UInt128(_FixedInt, bits=128, signed=False):
    """Unsigned integer serialized as 16 bytes."""


class Float32(float):
    """Number serialized as 4 bytes."""


class Float64(float):
    """Number serialized as 8 bytes, like a plain float.

    >>> z_serialize(Float64(0.5)) == z_serialize(0.5), len(z_serialize(Float32(0.5)))
    (True, 4)
    """


# `struct` code of each type. Types are looked up exactly: a subclass may have another meaning.
CODES: dict[type, str] = {
    bool: "?",
    int: "i",
    float: "d",
    Int8: "b",
    Int16: "h",
    Int32: "i",
    Int64: "q",
    UInt8: "B",
    UInt16: "H",
    UInt32: "I",
    UInt64: "Q",
    Float32: "f",
    Float64: "d",
}
PLAIN = (bool, int, float)
WIDE: dict[type, bool] = {Int128: True, UInt128: False}  # Whether the type is signed.
WIDE_BYTES = 16
NUMBERS = {*CODES, *WIDE}
TEXTS: dict[type, Callable[[bytes], Any]] = {
    str: lambda data: str(data, "utf-8"),
    bytes: bytes,
    bytearray: bytearray,
    ZBytes: ZBytes,
}
COLLECTIONS: tuple[type, ...] = (list, set, frozenset)


# Out ---------------------------------------------------------------------------------------------


def z_serialize(obj: object) -> ZBytes:
    """The bytes of a value: a number, text, bytes, or a list, set, dict or tuple of such.

    A plain int takes 4 bytes and a plain float 8; Int8 to UInt128 and Float32 say otherwise.
    The items of a list, set or dict must be of one type.

    >>> z_serialize([1, 2]).to_bytes().hex(" ")
    '02 01 00 00 00 02 00 00 00'
    >>> z_serialize(("a", True)).to_bytes()
    b'\\x01a\\x01'
    """
    out = bytearray()
    _write(out, obj, MAX_DEPTH)
    return ZBytes(bytes(out))


def _write(out: bytearray, obj: Any, depth: int) -> None:
    kind = type(obj)
    if kind in NUMBERS:
        out += _pack(kind, (obj,))
    elif kind in TEXTS:
        data = obj.encode() if kind is str else bytes(obj)
        _write_count(out, len(data))
        out += data
    elif depth == 0:
        raise ValueError(f"collections are nested deeper than {MAX_DEPTH}, or one holds itself")
    elif kind in COLLECTIONS:
        _write_count(out, len(obj))
        _write_items(out, obj, _one_type(obj), depth - 1)
    elif kind is tuple:
        for item in obj:
            _write(out, item, depth - 1)
    elif kind is dict:
        _one_type(obj)
        _one_type(obj.values())
        _write_count(out, len(obj))
        for pair in obj.items():
            for item in pair:
                _write(out, item, depth - 1)
    else:
        raise TypeError(
            f"type {kind.__name__} is not supported: serialize numbers, str, bytes, or a list, "
            "set, dict or tuple of them"
        )


def _write_items(out: bytearray, items: Iterable[Any], kind: type, depth: int) -> None:
    if kind in NUMBERS:
        out += _pack(kind, tuple(items))
    else:
        for item in items:
            _write(out, item, depth)


def _one_type(items: Iterable[Any]) -> type:
    kinds = set(map(type, items))
    if len(kinds) > 1:
        raise ValueError("all items of serialized collections must have the same type")
    return kinds.pop() if kinds else tuple


def _pack(kind: type, numbers: Sequence[Any]) -> bytes:
    if kind in WIDE:
        return b"".join(n.to_bytes(WIDE_BYTES, "little", signed=WIDE[kind]) for n in numbers)
    try:
        return struct.pack(f"<{len(numbers)}{CODES[kind]}", *numbers)
    except OverflowError:
        return b"".join(map(_pack_float32, numbers))
    except struct.error:
        raise OverflowError(
            "out of range integral type conversion attempted: a plain int has 32 bits, "
            "use Int64, UInt64, Int128 or UInt128"
        ) from None


def _pack_float32(number: float) -> bytes:
    try:
        return struct.pack("<f", number)
    except OverflowError:
        return struct.pack("<f", float("inf") if number > 0 else float("-inf"))


def _write_count(out: bytearray, count: int) -> None:
    while count > 0x7F:
        out.append(count & 0x7F | 0x80)
        count >>= 7
    out.append(count)


# In ----------------------------------------------------------------------------------------------

Read = Callable[[bytes, int], tuple[Any, int]]
"(data, where) -> value, where it ends"


def z_deserialize(tp: type[T], zbytes: ZBytes) -> T:
    """The value of type `tp` that the bytes start with. ZDeserializeError if there is none.

    `tp` is a class or says what a collection holds: `list[int]`, `dict[str, Float32]`,
    `tuple[int, str]`.

    >>> z_deserialize(dict[str, int], z_serialize({"a": 1}))
    {'a': 1}
    """
    data = instance("zbytes", zbytes, ZBytes).to_bytes()
    try:
        read, _ = find_reader(cast(Any, tp), MAX_DEPTH)  # `list[int]` is a type to checkers alone.
    except TypeError as problem:
        if "unhashable" not in str(problem):
            raise
        raise TypeError(f"{tp!r} is not a type that can be deserialized") from None
    value: T
    value, _ = read(data, 0)
    return value


@lru_cache(maxsize=256)
def find_reader(tp: Any, depth: int) -> tuple[Read, int]:
    """Return the reader of a type, and the fewest bytes that a value takes."""
    if tp in NUMBERS:
        return _number_reader(tp), _size(tp)
    if tp in TEXTS:
        return _text_reader(tp), 1
    kind, arguments = get_origin(tp), get_args(tp)
    if depth == 0:
        raise TypeError(f"{tp}: collections are nested deeper than {MAX_DEPTH}")
    if kind in COLLECTIONS and len(arguments) == 1 and arguments[0] in NUMBERS:
        return _numbers_reader(kind, arguments[0]), 1
    if kind in COLLECTIONS and len(arguments) == 1:
        return _items_reader(kind, *find_reader(arguments[0], depth - 1)), 1
    if kind is dict and len(arguments) == 2:
        return _items_reader(
            dict, *_tuple_reader([find_reader(a, depth - 1) for a in arguments])
        ), 1
    if kind is tuple:
        if Ellipsis in arguments:
            raise TypeError("any size tuples are not supported: list[...] reads any number")
        return _tuple_reader([find_reader(a, depth - 1) for a in arguments])
    if tp in (*COLLECTIONS, dict, tuple):
        raise ValueError("collection types must be specialized with their generic parameter(s)")
    raise TypeError(f"type {tp!r} is not supported: see z_deserialize for the types that are")


def _size(tp: type) -> int:
    return WIDE_BYTES if tp in WIDE else struct.calcsize(f"<{CODES[tp]}")


def _unpack(tp: type, data: bytes, at: int, count: int) -> tuple[Iterable[Any], int]:
    """Read `count` consecutive numbers at once."""
    end = _check_end(data, at, count * _size(tp), tp)
    if tp is bool and max(data[at:end], default=0) > 1:
        raise _error(tp, at, "a bool is 0 or 1")
    values: Iterable[Any]
    if tp in WIDE:
        pieces = (data[start : start + WIDE_BYTES] for start in range(at, end, WIDE_BYTES))
        values = (int.from_bytes(piece, "little", signed=WIDE[tp]) for piece in pieces)
    else:
        values = struct.unpack_from(f"<{count}{CODES[tp]}", data, at)
    if tp in PLAIN:
        return values, end
    make = float.__new__ if issubclass(tp, float) else int.__new__
    return map(partial(make, tp), values), end


def _number_reader(tp: type) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        (value,), at = _unpack(tp, data, at, 1)
        return value, at

    return read


def _numbers_reader(kind: type, tp: type) -> Read:
    least = _size(tp)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        count, at = _check_count(data, at, least, kind)
        values, at = _unpack(tp, data, at, count)
        return kind(values), at

    return read


def _text_reader(tp: type) -> Read:
    make = TEXTS[tp]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        count, start = _read_count(data, at)
        end = _check_end(data, start, count, tp)
        try:
            return make(data[start:end]), end
        except UnicodeDecodeError as problem:
            raise _error(tp, start + problem.start, "the text is not UTF-8") from None

    return read


def _tuple_reader(parts: Sequence[tuple[Read, int]]) -> tuple[Read, int]:
    reads = [read for read, _ in parts]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = []
        for part in reads:
            value, at = part(data, at)
            values.append(value)
        return tuple(values), at

    return read, sum(least for _, least in parts)


def _items_reader(kind: type, item: Read, least: int) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        count, at = _check_count(data, at, least, kind)
        values = []
        for _ in range(count):
            value, at = item(data, at)
            values.append(value)
        return kind(values), at

    return read


def _check_count(data: bytes, at: int, least: int, kind: type) -> tuple[int, int]:
    """Read a count of items, each of at least `least` bytes."""
    count, at = _read_count(data, at)
    most = (len(data) - at) // least if least else MAX_EMPTY_ITEMS
    if count > most:
        raise _error(kind, at, f"{count} items do not fit in the {len(data) - at} bytes left")
    return count, at


def _read_count(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + LEB128_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + place + 1
    raise _error(int, at, "there is no whole LEB128 count of at most 64 bits")


def _check_end(data: bytes, at: int, count: int, tp: type) -> int:
    if count > len(data) - at:
        raise _error(tp, at, f"{count} bytes are needed and {len(data) - at} are left")
    return at + count


def _error(tp: type, at: int, why: str) -> ZDeserializeError:
    return ZDeserializeError(f"deserialization error: {tp.__name__} at byte {at}: {why}")
