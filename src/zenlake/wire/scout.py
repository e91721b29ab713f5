"""SCOUT: asks nodes to answer with HELLO. Knows the bytes."""

from dataclasses import dataclass

from zenlake.errors import EncodeError
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.extensions import ExtensionTable, Unknown
from zenlake.wire.init import VERSION
from zenlake.wire.zenohid import WireZenohId, read_zid_of, write_packed

ID = 0x01
FLAG_ID = 0x08  # Bit of the byte after the version.
WHAT_BITS = 0x07

EXTENSIONS = ExtensionTable("SCOUT")  # none is defined


@dataclass(slots=True)
class WireScout:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|X|X|   0x01  |   Z: extensions
    +-+-+-+---------+
    |    version    |
    |zid_len|I| what|   I: an id follows   what: 1 router, 2 peer, 4 client
    ~      zid      ~   if I
    ~ [extensions]  ~   if Z
    +---------------+
    """

    what: WireWhatAmI
    zid: WireZenohId | None = None
    version: int = VERSION
    extensions: tuple[Unknown, ...] = ()


def read_scout(r: ByteReader, header: int) -> WireScout:
    version = r.u8("version")
    start = r.pos
    packed = r.u8("what")
    scout = WireScout(WireWhatAmI(packed & WHAT_BITS), version=version)
    if packed & FLAG_ID:
        scout.zid = read_zid_of(r, "zid", packed, start)
    EXTENSIONS.read(r, header, scout)
    return scout


def write_scout(w: ByteWriter, scout: WireScout) -> None:
    if not 0 <= scout.what <= WHAT_BITS:
        raise EncodeError(f"is {scout.what!r}, not routers, peers and clients", "what")
    start = len(w.out)
    w.out.append(ID)
    w.u8("version", scout.version)
    if scout.zid is None:
        w.out.append(scout.what)
    else:
        write_packed(w, scout.zid, FLAG_ID | scout.what)
    EXTENSIONS.write(w, scout, start)
