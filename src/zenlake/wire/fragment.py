"""FRAGMENT: a piece of a network message too long for a batch. Knows the bytes; does not join."""

from dataclasses import dataclass

from zenlake.wire.cursor import U32, ByteReader, ByteWriter
from zenlake.wire.enums import WirePriority
from zenlake.wire.extensions import (
    FLAG_EXTENSIONS,
    LANE,
    Extension,
    ExtensionKind,
    ExtensionTable,
    Unknown,
    present,
    read_extensions,
    write_extensions,
)

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
    if header & FLAG_EXTENSIONS:
        read_extensions(r, EXTENSIONS, fragment)
    fragment.payload = r.rest()
    return fragment


def write_fragment(w: ByteWriter, fragment: Fragment) -> None:
    known = present(EXTENSIONS, fragment)
    header = ID
    if fragment.reliable:
        header |= FLAG_RELIABLE
    if fragment.more:
        header |= FLAG_MORE
    if known or fragment.extensions:
        header |= FLAG_EXTENSIONS
    w.out.append(header)
    w.zint("sn", fragment.sn, U32)
    if header & FLAG_EXTENSIONS:
        write_extensions(w, known, fragment.extensions)
    w.out += fragment.payload
