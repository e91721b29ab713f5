"""ZenohId: the identity of a node.

Knows the three forms an id takes: little-endian bytes, the number, and its text. Does not know
which node has an id or how one is drawn.
"""

from dataclasses import dataclass

from zenlake.errors import DecodeError, EncodeError, Reason
from zenlake.wire.cursor import ByteReader, ByteWriter

MAX_BYTES = 16
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, order=True)
class WireZenohId:
    """1 to 16 little-endian bytes, never zero.

    Ids are ordered by their zero-padded little-endian bytes, not by number, as every "greater id"
    rule of the protocol orders them. The text is the number in hexadecimal, so the bytes reversed.

    >>> str(WireZenohId(bytes.fromhex("a4a3a2a1")))
    'a1a2a3a4'
    >>> WireZenohId.parse("a1a2a3a4").raw.hex()
    'a4a3a2a1'
    """

    raw: bytes
    "Little-endian, without the zero bytes that a writer drops at the end."

    def __post_init__(self) -> None:
        trimmed = self.raw.rstrip(b"\0")
        if not trimmed or len(self.raw) > MAX_BYTES:
            raise ValueError(f"a Zenoh id is 1 to 16 bytes and not zero, not {self.raw.hex()!r}")
        object.__setattr__(self, "raw", trimmed)

    @classmethod
    def parse(cls, text: str) -> "WireZenohId":
        """Parse lower-case hexadecimal without a leading zero."""
        if not text or not _HEX.issuperset(text) or text[0] == "0" or len(text) > 2 * MAX_BYTES:
            raise ValueError(
                f"{text!r} is not a Zenoh id: 1 to 32 lower-case hexadecimal digits, "
                "the first not 0"
            )
        return cls(int(text, 16).to_bytes(MAX_BYTES, "little"))

    def __int__(self) -> int:
        return int.from_bytes(self.raw, "little")

    def __str__(self) -> str:
        return f"{int(self):x}"

    def __repr__(self) -> str:
        return f"ZenohId({self})"


def zenoh_id(raw: bytes, field: str, offset: int) -> WireZenohId:
    """Return the id of bytes that were received; DecodeError if they are not a valid id."""
    try:
        return WireZenohId(raw)
    except ValueError:
        raise DecodeError(Reason.BAD_ZENOH_ID, field, offset) from None


def read_zid(r: ByteReader, field: str) -> WireZenohId:
    """Read an id with its length before it (Timestamp, link state)."""
    start = r.pos
    return zenoh_id(r.block(field), field, start)


def write_zid(w: ByteWriter, field: str, zid: WireZenohId) -> None:
    w.block(field, zid.raw)


def read_packed(r: ByteReader, field: str) -> tuple[WireZenohId, int]:
    """Read a byte with length - 1 in bits 7:4, and the id after it: (id, bits 3:0)."""
    start = r.pos
    packed = r.u8(field)
    return read_zid_of(r, field, packed, start), packed & 0x0F


def read_zid_of(r: ByteReader, field: str, packed: int, start: int) -> WireZenohId:
    return zenoh_id(r.take(field, (packed >> 4) + 1), field, start)


def write_packed(w: ByteWriter, zid: WireZenohId, low_bits: int) -> None:
    if not 0 <= low_bits <= 0x0F:
        raise EncodeError(f"is {low_bits}, which four bits cannot hold", "zid")
    w.out.append((len(zid.raw) - 1) << 4 | low_bits)
    w.out += zid.raw
