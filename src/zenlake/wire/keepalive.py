"""KEEP_ALIVE: renews the lease of a link without other traffic. Knows the bytes."""

from dataclasses import dataclass

from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.extensions import ExtensionTable, Unknown

ID = 0x04

EXTENSIONS = ExtensionTable("KEEP_ALIVE")  # none is defined


@dataclass(slots=True)
class KeepAlive:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|X|X|   0x04  |   Z: extensions
    +-+-+-+---------+
    ~ [extensions]  ~   if Z
    +---------------+
    """

    extensions: tuple[Unknown, ...] = ()


def read_keepalive(r: ByteReader, header: int) -> KeepAlive:
    alive = KeepAlive()
    EXTENSIONS.read(r, header, alive)
    return alive


def write_keepalive(w: ByteWriter, alive: KeepAlive) -> None:
    start = len(w.out)
    w.out.append(ID)
    EXTENSIONS.write(w, alive, start)
