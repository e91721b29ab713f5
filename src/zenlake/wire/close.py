"""CLOSE: the link or the whole session ends, and why. Knows the bytes."""

from dataclasses import dataclass

from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.enums import CloseReason
from zenlake.wire.extensions import ExtensionTable, Unknown

ID = 0x03
FLAG_SESSION = 0x20

EXTENSIONS = ExtensionTable("CLOSE")  # none is defined


@dataclass(slots=True)
class Close:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|X|S|   0x03  |   S: the session, else this link   Z: extensions
    +-+-+-+---------+
    |    reason     |   see CloseReason; others are kept as they are
    ~ [extensions]  ~   if Z
    +---------------+
    """

    reason: int = CloseReason.GENERIC
    session: bool = False
    extensions: tuple[Unknown, ...] = ()


def read_close(r: ByteReader, header: int) -> Close:
    close = Close(r.u8("reason"), bool(header & FLAG_SESSION))
    EXTENSIONS.read(r, header, close)
    return close


def write_close(w: ByteWriter, close: Close) -> None:
    start = len(w.out)
    w.out.append(ID | (FLAG_SESSION if close.session else 0))
    w.u8("reason", close.reason)
    EXTENSIONS.write(w, close, start)
