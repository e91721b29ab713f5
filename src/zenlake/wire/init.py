"""INIT: a node offers its capabilities (syn), the other settles them (ack). Knows the bytes only.

The resolution byte and the batch size are shared with JOIN (join.py).
"""

from dataclasses import dataclass

from zenlake.errors import DecodeError, EncodeError, Reason
from zenlake.wire.cursor import U8, U16, ByteReader, ByteWriter
from zenlake.wire.enums import WHATAMI_CODES, WireWhatAmI
from zenlake.wire.extensions import PATCH, Extension, ExtensionKind, ExtensionTable, Unknown
from zenlake.wire.zenohid import WireZenohId, read_packed, write_packed

ID = 0x01
FLAG_ACK = 0x20
FLAG_SIZE = 0x40

VERSION = 0x09
DEFAULT_RESOLUTION = 0x0A
"Sequence numbers in bits 1:0, request ids in bits 3:2; 0, 1, 2, 3 = 8, 16, 32, 64 bits."
RESOLUTION_BITS = 0x0F
DEFAULT_BATCH_SIZE = 0xFFFF

EXTENSIONS = ExtensionTable(
    "INIT",
    Extension(0x01, "qos", ExtensionKind.UNIT, False),
    Extension(0x21, "qos_link", ExtensionKind.Z64),
    Extension(0x42, "shm", ExtensionKind.BYTES),
    Extension(0x43, "auth", ExtensionKind.BYTES),
    Extension(0x44, "multilink", ExtensionKind.BYTES),
    Extension(0x05, "low_latency", ExtensionKind.UNIT, False),
    Extension(0x06, "compression", ExtensionKind.UNIT, False),
    PATCH,
    Extension(0x48, "region_name", ExtensionKind.REGION_NAME),
)


@dataclass(slots=True)
class Init:
    """
      7 6 5 4 3 2 1 0
     +-+-+-+-+-+-+-+-+
     |Z|S|A|   0x01  |   A: ack   S: resolution and batch size follow   Z: extensions
     +-+-+-+---------+
     |    version    |   0x09
     |zid_len|X|X|WAI|   WAI: 0 router, 1 peer, 2 client
     ~      zid      ~   1 + zid_len bytes
     |X|X|X|X|RID|FSN|   if S; else 0x0a
     |  batch size   |   if S, u16 little-endian; else 65535. It counts the length prefix too
     ~ cookie <u16>  ~   if A
     ~ [extensions]  ~   if Z: QoS, QoSLink, Shm, Auth, MultiLink, LowLatency, Compression,
     +---------------+         Patch, RegionName

    QoSLink: 0 no lanes, 1 lanes; else lanes, and bit 1 priorities given (first in bits 3:10, last
    in 11:18), bit 2 reliability given (bit 19), with bit 0 clear. Auth holds a chain of extensions
    of its own.
    """

    zid: WireZenohId
    whatami: WireWhatAmI
    version: int = VERSION
    resolution: int = DEFAULT_RESOLUTION
    batch_size: int = DEFAULT_BATCH_SIZE
    cookie: bytes | None = None
    "Cookie of an ack; None in a syn."
    qos: bool = False
    qos_link: int | None = None
    shm: bytes | None = None
    auth: bytes | None = None
    multilink: bytes | None = None
    low_latency: bool = False
    compression: bool = False
    patch: int = 0
    region_name: str | None = None
    extensions: tuple[Unknown, ...] = ()

    @property
    def ack(self) -> bool:
        return self.cookie is not None


def read_init(r: ByteReader, header: int) -> Init:
    version = r.u8("version")
    zid, whatami = read_identity(r)
    init = Init(zid, whatami, version)
    if header & FLAG_SIZE:
        init.resolution, init.batch_size = read_size(r)
    if header & FLAG_ACK:
        init.cookie = r.block("cookie", U16)
    EXTENSIONS.read(r, header, init)
    return init


def write_init(w: ByteWriter, init: Init) -> None:
    start = len(w.out)
    w.out.append(ID)
    w.u8("version", init.version)
    write_identity(w, init.zid, init.whatami)
    if init.resolution != DEFAULT_RESOLUTION or init.batch_size != DEFAULT_BATCH_SIZE:
        w.out[start] |= FLAG_SIZE
        write_size(w, init.resolution, init.batch_size)
    if init.cookie is not None:
        w.out[start] |= FLAG_ACK
        w.block("cookie", init.cookie, U16)
    EXTENSIONS.write(w, init, start)


def read_identity(r: ByteReader) -> tuple[WireZenohId, WireWhatAmI]:
    """Read role and id, as INIT, JOIN and HELLO have them."""
    start = r.pos
    zid, low_bits = read_packed(r, "zid")
    code = low_bits & 0x03
    if code >= len(WHATAMI_CODES):
        raise DecodeError(Reason.BAD_VALUE, "whatami", start)
    return zid, WHATAMI_CODES[code]


def write_identity(w: ByteWriter, zid: WireZenohId, whatami: WireWhatAmI) -> None:
    if whatami not in WHATAMI_CODES:
        raise EncodeError(f"is {whatami!r}, not one role", "whatami")
    write_packed(w, zid, WHATAMI_CODES.index(whatami))


def read_size(r: ByteReader) -> tuple[int, int]:
    resolution = r.u8("resolution") & RESOLUTION_BITS
    return resolution, int.from_bytes(r.take("batch size", 2), "little")


def write_size(w: ByteWriter, resolution: int, batch_size: int) -> None:
    if not 0 <= resolution <= RESOLUTION_BITS:
        raise EncodeError(f"is {resolution}, more than four bits", "resolution")
    if not 0 <= batch_size <= U16:
        raise EncodeError(f"is {batch_size}, outside 0 to {U16}", "batch size")
    w.out += bytes((resolution, batch_size & U8, batch_size >> 8))
