"""ERR: a query that could not be answered. Knows its bytes; the payload says why."""

from dataclasses import dataclass

from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.encoding import DEFAULT, WireEncoding, read_encoding, write_encoding
from zenlake.wire.entity import WireSourceInfo
from zenlake.wire.extensions import SOURCE_INFO, ExtensionTable, Unknown
from zenlake.wire.put import SHM

ID = 0x05
FLAG_ENCODING = 0x40

EXTENSIONS = ExtensionTable("ERR", SOURCE_INFO, SHM)


@dataclass(slots=True)
class Err:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|E|X|   0x05  |   E: encoding   Z: extensions
    +-+-+-+---------+
    ~   encoding    ~   if E
    ~ [extensions]  ~   if Z: SourceInfo, Shm
    ~ payload <u32> ~
    +---------------+

    Rust nodes mark payloads that are in shared memory by Shm, yet send the bytes as of any other
    (zenoh-codec `src/zenoh/err.rs`), unlike those of a PUT.
    """

    payload: bytes = b""
    encoding: WireEncoding = DEFAULT
    source_info: WireSourceInfo | None = None
    shm: bool = False
    extensions: tuple[Unknown, ...] = ()


def read_err(r: ByteReader, header: int) -> Err:
    err = Err()
    if header & FLAG_ENCODING:
        err.encoding = read_encoding(r)
    EXTENSIONS.read(r, header, err)
    err.payload = r.block("payload")
    return err


def write_err(w: ByteWriter, err: Err) -> None:
    start = len(w.out)
    w.out.append(ID)
    if err.encoding != DEFAULT:
        w.out[start] |= FLAG_ENCODING
        write_encoding(w, err.encoding)
    EXTENSIONS.write(w, err, start)
    w.block("payload", err.payload)
