"""KEEP_ALIVE: renews the lease of a link without other traffic. Knows the bytes."""

from dataclasses import dataclass

from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.extensions import (
    FLAG_EXTENSIONS,
    ExtensionTable,
    Unknown,
    read_extensions,
    write_extensions,
)

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
    if header & FLAG_EXTENSIONS:
        read_extensions(r, EXTENSIONS, alive)
    return alive


def write_keepalive(w: ByteWriter, alive: KeepAlive) -> None:
    w.out.append(ID | (FLAG_EXTENSIONS if alive.extensions else 0))
    if alive.extensions:
        write_extensions(w, [], alive.extensions)
