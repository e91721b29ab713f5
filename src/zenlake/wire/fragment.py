"""FRAGMENT: a piece of a network message too long for a batch. Knows the bytes; does not join."""

from dataclasses import dataclass

from zenlake.wire.cursor import U32, ByteReader, ByteWriter
from zenlake.wire.enums import WirePriority
from zenlake.wire.extensions import LANE, Extension, ExtensionKind, ExtensionTable, Unknown

ID = 0x06
FLAG_RELIABLE = 0x20
FLAG_MORE = 0x40

EXTENSIONS = ExtensionTable(
    "FRAGMENT",
    LANE,
    Extension(0x02, "first", ExtensionKind.FIRST, False),
    Extension(0x03, "drop", ExtensionKind.DROP, False),
)


@dataclass(slots=True)
class Fragment:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|M|R|   0x06  |   R: reliable lane   M: more pieces follow   Z: extensions
    +-+-+-+---------+
    %   sn : z32    %   counted together with the lane's FRAMEs
    ~ [extensions]  ~   if Z: the lane's priority, First, Drop
    ~    payload    ~   the rest of the batch
    +---------------+
    """

    sn: int
    payload: bytes = b""
    reliable: bool = True
    more: bool = False
    priority: WirePriority = WirePriority.DATA
    first: bool = False
    "This piece starts a message."
    drop: bool = False
    "The sender gave this message up."
    extensions: tuple[Unknown, ...] = ()


def read_fragment(r: ByteReader, header: int) -> Fragment:
    fragment = Fragment(
        r.zint("sn", U32),
        reliable=bool(header & FLAG_RELIABLE),
        more=bool(header & FLAG_MORE),
    )
    EXTENSIONS.read(r, header, fragment)
    fragment.payload = r.rest()
    return fragment


def write_fragment(w: ByteWriter, fragment: Fragment) -> None:
    start = len(w.out)
    w.out.append(
        ID | (FLAG_RELIABLE if fragment.reliable else 0) | (FLAG_MORE if fragment.more else 0)
    )
    w.zint("sn", fragment.sn, U32)
    EXTENSIONS.write(w, fragment, start)
    w.out += fragment.payload
