"""PUT: a new value for a key. Knows its bytes; does not know the key (PUSH and RESPONSE do)."""

from dataclasses import dataclass
from typing import NamedTuple

from zenlake.errors import DecodeError, EncodeError, Reason
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.encoding import DEFAULT, WireEncoding, read_encoding, write_encoding
from zenlake.wire.entity import WireSourceInfo
from zenlake.wire.extensions import SOURCE_INFO, Extension, ExtensionKind, ExtensionTable, Unknown
from zenlake.wire.timestamp import WireTimestamp, read_timestamp, write_timestamp

ID = 0x01
FLAG_TIMESTAMP = 0x20
FLAG_ENCODING = 0x40

SHM = Extension(0x12, "shm", ExtensionKind.SHM_MARK, False)
EXTENSIONS = ExtensionTable(
    "PUT", SOURCE_INFO, SHM, Extension(0x43, "attachment", ExtensionKind.ATTACHMENT)
)

RAW_SLICE, SHM_SLICE = 0, 1


class Slice(NamedTuple):
    """One piece of a payload that lives partly in shared memory."""

    kind: int
    "RAW_SLICE: `data` is the bytes. SHM_SLICE: it tells where they are."
    data: bytes


@dataclass(slots=True)
class Put:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|E|T|   0x01  |   T: timestamp   E: encoding   Z: extensions
    +-+-+-+---------+
    ~   timestamp   ~   if T
    ~   encoding    ~   if E
    ~ [extensions]  ~   if Z: SourceInfo, Shm, Attachment
    ~ payload <u32> ~   with Shm: a count, then slices of kind u8 and <u32> bytes
    +---------------+
    """

    payload: bytes | tuple[Slice, ...] = b""
    "Slices if and only if `shm` is set."
    timestamp: WireTimestamp | None = None
    encoding: WireEncoding = DEFAULT
    source_info: WireSourceInfo | None = None
    attachment: bytes | None = None
    shm: bool = False
    extensions: tuple[Unknown, ...] = ()


def read_put(r: ByteReader, header: int) -> Put:
    if header == ID:  # no flags, as most traffic
        return Put(r.block("payload"))
    put = Put()
    if header & FLAG_TIMESTAMP:
        put.timestamp = read_timestamp(r, "timestamp")
    if header & FLAG_ENCODING:
        put.encoding = read_encoding(r)
    EXTENSIONS.read(r, header, put)
    put.payload = read_slices(r) if put.shm else r.block("payload")
    return put


def write_put(w: ByteWriter, put: Put) -> None:
    start = len(w.out)
    w.out.append(ID)
    if put.timestamp is not None:
        w.out[start] |= FLAG_TIMESTAMP
        write_timestamp(w, "timestamp", put.timestamp)
    if put.encoding is not DEFAULT and put.encoding != DEFAULT:
        w.out[start] |= FLAG_ENCODING
        write_encoding(w, put.encoding)
    EXTENSIONS.write(w, put, start)
    write_payload(w, put.payload, put.shm)


def read_slices(r: ByteReader) -> tuple[Slice, ...]:
    return tuple(_read_slice(r) for _ in range(r.count("payload")))


def _read_slice(r: ByteReader) -> Slice:
    start = r.pos
    kind = r.u8("slice kind")
    if kind > SHM_SLICE:
        raise DecodeError(Reason.BAD_VALUE, "slice kind", start)
    return Slice(kind, r.block("slice"))


def write_payload(w: ByteWriter, payload: bytes | tuple[Slice, ...], shm: bool) -> None:
    """Write a payload of PUT or ERR, in slices when marked as shared memory."""
    if isinstance(payload, tuple) != shm:
        raise EncodeError("is a list of slices exactly when marked shm", "payload")
    if not isinstance(payload, tuple):
        w.block("payload", payload)
    else:
        write_slices(w, payload)


def write_slices(w: ByteWriter, slices: tuple[Slice, ...]) -> None:
    """Write a payload in slices."""
    w.zint("payload", len(slices))
    for kind, data in slices:
        w.u8("slice kind", kind)
        w.block("slice", data)
