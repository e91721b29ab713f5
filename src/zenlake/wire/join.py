"""JOIN: a member of a multicast group announces itself. Knows the bytes."""

from dataclasses import dataclass

from zenlake.wire.cursor import U32, ByteReader, ByteWriter
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.extensions import PATCH, Extension, ExtensionKind, ExtensionTable, Unknown
from zenlake.wire.init import (
    DEFAULT_RESOLUTION,
    VERSION,
    read_identity,
    read_size,
    write_identity,
    write_size,
)
from zenlake.wire.open import is_whole_seconds, read_lease, write_lease
from zenlake.wire.zenohid import WireZenohId

ID = 0x07
FLAG_SECONDS = 0x20
FLAG_SIZE = 0x40

DEFAULT_BATCH_SIZE = 8192  # Bytes of a multicast datagram (zenoh-protocol transport/mod.rs).

EXTENSIONS = ExtensionTable(
    "JOIN",
    Extension(0x51, "lane_sns", ExtensionKind.LANE_SNS),
    Extension(0x52, "shm", ExtensionKind.BYTES),
    PATCH,
)


@dataclass(slots=True)
class Join:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|S|T|   0x07  |   T: the lease is in seconds   S: resolution and batch size   Z: extensions
    +-+-+-+---------+
    |    version    |
    |zid_len|X|X|WAI|
    ~      zid      ~
    |X|X|X|X|RID|FSN|   if S; else 0x0a
    |  batch size   |   if S; else 8192
    %  lease : z64  %
    %  reliable sn  %   the next, z32; 0 when the extension says them all
    % best effort sn%   the next, z32
    ~ [extensions]  ~   if Z: lanes' sequence numbers, Shm, Patch
    +---------------+
    """

    zid: WireZenohId
    whatami: WireWhatAmI
    lease_ms: int
    reliable_sn: int = 0
    best_effort_sn: int = 0
    version: int = VERSION
    resolution: int = DEFAULT_RESOLUTION
    batch_size: int = DEFAULT_BATCH_SIZE
    lane_sns: tuple[tuple[int, int], ...] | None = None
    "(reliable, best effort) for each of the eight priorities."
    shm: bytes | None = None
    patch: int = 0
    extensions: tuple[Unknown, ...] = ()


def read_join(r: ByteReader, header: int) -> Join:
    version = r.u8("version")
    zid, whatami = read_identity(r)
    resolution, batch_size = DEFAULT_RESOLUTION, DEFAULT_BATCH_SIZE
    if header & FLAG_SIZE:
        resolution, batch_size = read_size(r)
    join = Join(
        zid,
        whatami,
        read_lease(r, bool(header & FLAG_SECONDS)),
        r.zint("reliable sn", U32),
        r.zint("best effort sn", U32),
        version,
        resolution,
        batch_size,
    )
    EXTENSIONS.read(r, header, join)
    return join


def write_join(w: ByteWriter, join: Join) -> None:
    start = len(w.out)
    w.out.append(ID | (FLAG_SECONDS if is_whole_seconds(join.lease_ms) else 0))
    w.u8("version", join.version)
    write_identity(w, join.zid, join.whatami)
    if join.resolution != DEFAULT_RESOLUTION or join.batch_size != DEFAULT_BATCH_SIZE:
        w.out[start] |= FLAG_SIZE
        write_size(w, join.resolution, join.batch_size)
    write_lease(w, join.lease_ms)
    w.zint("reliable sn", join.reliable_sn, U32)
    w.zint("best effort sn", join.best_effort_sn, U32)
    EXTENSIONS.write(w, join, start)
