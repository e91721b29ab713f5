"""Read and write cursors: the only object code that indexes wire bytes.

Knows integers, lengths and bounds. Does not know messages, time or sockets. A failed read raises
DecodeError naming the field and its first byte; a failed write raises EncodeError; nothing else.
"""

from collections.abc import Callable
from typing import Concatenate, ParamSpec

from zenlake.errors import DecodeError, EncodeError, Reason

ZINT_MAX_BYTES = 9  # For 64 bits: eight groups of 7, then a whole byte (zenoh-codec core/zint.rs).
U8 = 0xFF
U16 = 0xFFFF
U32 = 0xFFFF_FFFF
U64 = 0xFFFF_FFFF_FFFF_FFFF

P = ParamSpec("P")


class ByteReader:
    """A position over immutable bytes, from `pos` up to `end`.

    Offsets in errors are positions in `data`, so that a reader over a part of a buffer (`part`)
    reports the field's position in the whole buffer. `shm`: shared memory was negotiated; without
    it a payload in shared memory is refused.
    """

    __slots__ = ("data", "end", "pos", "shm")

    def __init__(
        self, data: bytes, pos: int = 0, end: int | None = None, *, shm: bool = False
    ) -> None:
        self.data = data
        self.pos = pos
        self.end = len(data) if end is None else end
        self.shm = shm

    def remaining(self) -> int:
        return self.end - self.pos

    def u8(self, field: str) -> int:
        pos = self.pos
        if pos >= self.end:
            raise DecodeError(Reason.CUT_SHORT, field, pos)
        self.pos = pos + 1
        return self.data[pos]

    def zint(self, field: str, bound: int = U64) -> int:
        """Read a little-endian base-128 integer; the ninth byte carries all 8 bits."""
        pos = self.pos
        if pos < self.end:
            byte = self.data[pos]
            if byte < 0x80:
                self.pos = pos + 1
                return byte
        return self._long_zint(field, bound)

    def _long_zint(self, field: str, bound: int) -> int:
        data, start, end, value = self.data, self.pos, self.end, 0
        for i in range(ZINT_MAX_BYTES):
            if start + i >= end:
                raise DecodeError(Reason.CUT_SHORT, field, start)
            byte = data[start + i]
            if i == ZINT_MAX_BYTES - 1:
                value |= byte << 56
                break
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                break
        if value > bound:
            raise DecodeError(Reason.TOO_LARGE, field, start)
        self.pos = start + i + 1
        return value

    def count(self, field: str) -> int:
        """Read a count of items of at least one byte each; DecodeError if fewer bytes remain, so
        that nothing is allocated for them."""
        start = self.pos
        count = self.zint(field)
        if count > self.remaining():
            raise DecodeError(Reason.CUT_SHORT, field, start)
        return count

    def take(self, field: str, length: int) -> bytes:
        """Read `length` bytes that have no length before them."""
        start = self.pos
        stop = start + length
        if stop > self.end:
            raise DecodeError(Reason.CUT_SHORT, field, start)
        self.pos = stop
        return self.data[start:stop]

    def rest(self) -> bytes:
        """Read everything up to the end."""
        start, self.pos = self.pos, self.end
        return self.data[start : self.end]

    def block(self, field: str, bound: int = U32) -> bytes:
        """Read a length, then as many bytes."""
        start = self.pos
        if start < self.end and self.data[start] < 0x80:  # as zint does, without the call
            length, pos = self.data[start], start + 1
        else:
            length, pos = self.zint(field, bound), self.pos
        stop = pos + length
        if stop > self.end:
            raise DecodeError(Reason.CUT_SHORT, field, start)
        self.pos = stop
        return self.data[pos:stop]

    def text(self, field: str, bound: int = U32) -> str:
        """Read a block of UTF-8."""
        start = self.pos
        return _decode_text(self.block(field, bound), field, start)

    def rest_text(self, field: str) -> str:
        """Read everything up to the end, which must be UTF-8."""
        start = self.pos
        return _decode_text(self.rest(), field, start)

    def part(self, field: str) -> "ByteReader":
        """Return a reader over a block of the same bytes; `self` moves past it."""
        start = self.pos
        length = self.zint(field, U32)
        pos = self.pos
        if pos + length > self.end:
            raise DecodeError(Reason.CUT_SHORT, field, start)
        self.pos = pos + length
        return ByteReader(self.data, pos, pos + length, shm=self.shm)

    def finish(self, field: str) -> None:
        """Raise DecodeError if bytes of this part are left."""
        if self.pos != self.end:
            raise DecodeError(Reason.TRAILING_BYTES, field, self.pos)


def _decode_text(raw: bytes, field: str, start: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise DecodeError(Reason.BAD_UTF8, field, start) from None


class ByteWriter:
    """An append-only buffer; `out` may be a batch that is being filled."""

    __slots__ = ("out",)

    def __init__(self, out: bytearray | None = None) -> None:
        self.out = bytearray() if out is None else out

    def u8(self, field: str, value: int) -> None:
        if not 0 <= value <= U8:
            raise EncodeError(f"is {value}, not one byte", field)
        self.out.append(value)

    def zint(self, field: str, value: int, bound: int = U64) -> None:
        if 0 <= value < 0x80:
            self.out.append(value)
        else:
            self._long_zint(field, value, bound)

    def _long_zint(self, field: str, value: int, bound: int) -> None:
        if not 0 <= value <= bound:
            raise EncodeError(f"is {value}, outside 0 to {bound}", field)
        out = self.out
        for _ in range(ZINT_MAX_BYTES - 1):
            if value < 0x80:
                break
            out.append((value & 0x7F) | 0x80)
            value >>= 7
        out.append(value)

    def block(self, field: str, data: bytes | bytearray, bound: int = U32) -> None:
        length = len(data)
        if length < 0x80:
            self.out.append(length)
        elif length > bound:
            raise EncodeError(f"has {length} bytes, more than {bound}", field)
        else:
            self._long_zint(field, length, bound)
        self.out += data

    def text(self, field: str, text: str, bound: int = U32) -> None:
        self.block(field, encode_text(text, field), bound)


def encode_text(text: str, field: str) -> bytes:
    """Return `text` as UTF-8; EncodeError if it has no UTF-8 form."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise EncodeError("has a lone surrogate, which UTF-8 cannot carry", field) from None


def encode(
    write: Callable[Concatenate[ByteWriter, P], None], *args: P.args, **kwargs: P.kwargs
) -> bytes:
    """Return the bytes that `write` appends to an empty writer.

    >>> encode(ByteWriter.text, "field", "abc").hex()
    '03616263'
    """
    w = ByteWriter()
    write(w, *args, **kwargs)
    return bytes(w.out)
