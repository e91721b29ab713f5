"""DEL: a key has no value any more. Knows its bytes; does not know the key."""

from dataclasses import dataclass

from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.entity import WireSourceInfo
from zenlake.wire.extensions import SOURCE_INFO, Extension, ExtensionKind, ExtensionTable, Unknown
from zenlake.wire.timestamp import WireTimestamp, read_timestamp, write_timestamp

ID = 0x02
FLAG_TIMESTAMP = 0x20

EXTENSIONS = ExtensionTable(
    "DEL", SOURCE_INFO, Extension(0x42, "attachment", ExtensionKind.ATTACHMENT)
)


@dataclass(slots=True)
class Del:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|X|T|   0x02  |   T: timestamp   Z: extensions
    +-+-+-+---------+
    ~   timestamp   ~   if T
    ~ [extensions]  ~   if Z: SourceInfo, Attachment (0x2 here, 0x3 in PUT)
    +---------------+
    """

    timestamp: WireTimestamp | None = None
    source_info: WireSourceInfo | None = None
    attachment: bytes | None = None
    extensions: tuple[Unknown, ...] = ()


def read_del(r: ByteReader, header: int) -> Del:
    delete = Del()
    if header & FLAG_TIMESTAMP:
        delete.timestamp = read_timestamp(r, "timestamp")
    EXTENSIONS.read(r, header, delete)
    return delete


def write_del(w: ByteWriter, delete: Del) -> None:
    start = len(w.out)
    w.out.append(ID)
    if delete.timestamp is not None:
        w.out[start] |= FLAG_TIMESTAMP
        write_timestamp(w, "timestamp", delete.timestamp)
    EXTENSIONS.write(w, delete, start)
