"""OPEN: starts the session; carries lease and first sequence number. Knows the bytes."""

from dataclasses import dataclass

from zenlake.errors import EncodeError
from zenlake.wire.cursor import U32, ByteReader, ByteWriter
from zenlake.wire.extensions import Extension, ExtensionKind, ExtensionTable, Unknown

ID = 0x02
FLAG_ACK = 0x20
FLAG_SECONDS = 0x40

EXTENSIONS = ExtensionTable(
    "OPEN",
    Extension(0x01, "qos", ExtensionKind.UNIT, False),
    Extension(0x22, "shm", ExtensionKind.Z64),
    Extension(0x42, "shm_counters", ExtensionKind.BYTES),
    Extension(0x43, "auth", ExtensionKind.BYTES),
    Extension(0x44, "multilink", ExtensionKind.BYTES),
    Extension(0x04, "multilink_ack", ExtensionKind.UNIT, False),
    Extension(0x05, "low_latency", ExtensionKind.UNIT, False),
    Extension(0x06, "compression", ExtensionKind.UNIT, False),
    Extension(0x27, "remote_bound", ExtensionKind.Z64),
)


@dataclass(slots=True)
class Open:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|T|A|   0x02  |   A: ack   T: the lease is in seconds, else milliseconds   Z: extensions
    +-+-+-+---------+
    %  lease : z64  %
    % first sn: z32 %
    ~ cookie <u32>  ~   if not A: the one of the INIT ack
    ~ [extensions]  ~   if Z: Shm (a number up to Zenoh 1.9, bytes from 1.10), Auth, MultiLink,
    +---------------+         RemoteBound; QoS, LowLatency and Compression are never sent
    """

    lease_ms: int
    initial_sn: int
    cookie: bytes | None = None
    "Cookie of the INIT ack; None in an ack."
    qos: bool = False
    shm: int | None = None
    shm_counters: bytes | None = None
    auth: bytes | None = None
    multilink: bytes | None = None
    multilink_ack: bool = False
    low_latency: bool = False
    compression: bool = False
    remote_bound: int | None = None
    extensions: tuple[Unknown, ...] = ()

    @property
    def ack(self) -> bool:
        return self.cookie is None


def read_open(r: ByteReader, header: int) -> Open:
    opening = Open(read_lease(r, bool(header & FLAG_SECONDS)), r.zint("initial sn", U32))
    if not header & FLAG_ACK:
        opening.cookie = r.block("cookie")
    EXTENSIONS.read(r, header, opening)
    return opening


def write_open(w: ByteWriter, opening: Open) -> None:
    start = len(w.out)
    w.out.append(ID | (FLAG_SECONDS if is_whole_seconds(opening.lease_ms) else 0))
    write_lease(w, opening.lease_ms)
    w.zint("initial sn", opening.initial_sn, U32)
    if opening.cookie is None:
        w.out[start] |= FLAG_ACK
    else:
        w.block("cookie", opening.cookie)
    EXTENSIONS.write(w, opening, start)


def read_lease(r: ByteReader, seconds: bool) -> int:
    """Read a lease, in milliseconds or as the flag T says seconds; return milliseconds."""
    value = r.zint("lease")
    return value * 1000 if seconds else value


def is_whole_seconds(lease_ms: int) -> bool:
    """Return whether T is set: whole seconds are written as seconds."""
    return lease_ms % 1000 == 0


def write_lease(w: ByteWriter, lease_ms: int) -> None:
    if lease_ms < 0:
        raise EncodeError(f"is {lease_ms} ms", "lease")
    w.zint("lease", lease_ms // 1000 if is_whole_seconds(lease_ms) else lease_ms)
