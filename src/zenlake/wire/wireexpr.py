"""WireExpr: a key expression as it travels, a declared id plus what follows.

Knows the field and its extension form. Does not know the tables that turn an id into text.
"""

from dataclasses import dataclass

from zenlake.wire.cursor import U16, ByteReader, ByteWriter, encode_text
from zenlake.wire.enums import Mapping

FLAG_NAMED = 0x20
FLAG_MAPPING = 0x40
_EXT_NAMED = 0x01
_EXT_MAPPING = 0x02

RECEIVER = Mapping.RECEIVER
SENDER = Mapping.SENDER


@dataclass(slots=True, unsafe_hash=True)
class WireExpr:
    """
     % scope : z16   %   a declared id, 0 = none
     ~ suffix <u16>  ~   if N: text that follows, with its own "/"

    In a message the flags N (bit 5) and M (bit 6) stand in the header: N = suffix present, M = the
    scope was declared by the sender of the message (else by its receiver).
    """

    scope: int = 0
    suffix: str = ""
    mapping: Mapping = RECEIVER

    def __str__(self) -> str:
        if not self.scope:
            return self.suffix
        return f"{'sender' if self.mapping else 'receiver'}#{self.scope}{self.suffix}"


def read_wireexpr(r: ByteReader, header: int) -> WireExpr:
    """Read the parts of a key that the flags of `header` announce."""
    return WireExpr(
        r.zint("key scope", U16),
        r.text("key suffix", U16) if header & FLAG_NAMED else "",
        SENDER if header & FLAG_MAPPING else RECEIVER,
    )


def flags_of(key: WireExpr) -> int:
    """Return the header flags that announce `key`."""
    return (FLAG_NAMED if key.suffix else 0) | (FLAG_MAPPING if key.mapping else 0)


def write_wireexpr(w: ByteWriter, key: WireExpr) -> None:
    w.zint("key scope", key.scope, U16)
    if key.suffix:
        w.text("key suffix", key.suffix, U16)


def read_wireexpr_ext(r: ByteReader, field: str) -> WireExpr:
    """
    Read the body of an undeclaration's WireExpr extension, up to its end:

     |x|x|x|x|x|x|M|N|   flags
     % scope : z16   %
     ~    suffix     ~   if N: the rest, without a length
    """
    flags = r.u8(field)
    scope = r.zint(field, U16)
    suffix = r.rest_text(field) if flags & _EXT_NAMED else ""
    return WireExpr(scope, suffix, SENDER if flags & _EXT_MAPPING else RECEIVER)


def write_wireexpr_ext(w: ByteWriter, field: str, key: WireExpr) -> None:
    w.out.append((_EXT_NAMED if key.suffix else 0) | (_EXT_MAPPING if key.mapping else 0))
    w.zint(field, key.scope, U16)
    w.out += encode_text(key.suffix, field)
