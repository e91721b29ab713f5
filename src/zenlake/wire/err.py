"""ERR: a query that could not be answered. Knows its bytes; the payload says why."""

from dataclasses import dataclass

from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.encoding import DEFAULT, WireEncoding, read_encoding, write_encoding
from zenlake.wire.entity import WireSourceInfo
from zenlake.wire.extensions import (
    FLAG_EXTENSIONS,
    SOURCE_INFO,
    ExtensionTable,
    Unknown,
    present,
    read_extensions,
    write_extensions,
)
from zenlake.wire.put import SHM, Slice, read_slices, write_payload

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
    ~ payload <u32> ~   with Shm: slices, as in PUT
    +---------------+
    """

    payload: bytes | tuple[Slice, ...] = b""
    encoding: WireEncoding = DEFAULT
    source_info: WireSourceInfo | None = None
    shm: bool = False
    extensions: tuple[Unknown, ...] = ()


def read_err(r: ByteReader, header: int) -> Err:
    err = Err()
    if header & FLAG_ENCODING:
        err.encoding = read_encoding(r)
    if header & FLAG_EXTENSIONS:
        read_extensions(r, EXTENSIONS, err)
    err.payload = read_slices(r) if err.shm else r.block("payload")
    return err


def write_err(w: ByteWriter, err: Err) -> None:
    known = present(EXTENSIONS, err)
    more = FLAG_EXTENSIONS if known or err.extensions else 0
    encoded = FLAG_ENCODING if err.encoding != DEFAULT else 0
    w.out.append(ID | more | encoded)
    if encoded:
        write_encoding(w, err.encoding)
    if more:
        write_extensions(w, known, err.extensions)
    write_payload(w, err.payload, err.shm)
