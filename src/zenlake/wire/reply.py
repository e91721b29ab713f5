"""REPLY: a value that answers a query. Knows its bytes; the value itself is a PUT or a DEL."""

from dataclasses import dataclass, field

from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.delete import Del
from zenlake.wire.enums import Consolidation
from zenlake.wire.extensions import (
    FLAG_EXTENSIONS,
    ExtensionTable,
    Unknown,
    read_extensions,
    write_extensions,
)
from zenlake.wire.push import PUSH_BODIES
from zenlake.wire.put import Put
from zenlake.wire.query import read_consolidation

ID = 0x04
FLAG_CONSOLIDATION = 0x20

EXTENSIONS = ExtensionTable("REPLY")  # none is defined


@dataclass(slots=True)
class WireReply:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|X|C|   0x04  |   C: consolidation   Z: extensions
    +-+-+-+---------+
    % consolidation %   if C
    ~ [extensions]  ~   if Z
    ~     body      ~   PUT or DEL
    +---------------+
    """

    body: Put | Del = field(default_factory=Put)
    consolidation: Consolidation = Consolidation.AUTO
    extensions: tuple[Unknown, ...] = ()


def read_reply(r: ByteReader, header: int) -> WireReply:
    reply = WireReply(
        consolidation=read_consolidation(r) if header & FLAG_CONSOLIDATION else Consolidation.AUTO
    )
    if header & FLAG_EXTENSIONS:
        read_extensions(r, EXTENSIONS, reply)
    reply.body = PUSH_BODIES.read(r)
    return reply


def write_reply(w: ByteWriter, reply: WireReply) -> None:
    more = FLAG_EXTENSIONS if reply.extensions else 0
    w.out.append(ID | more | (FLAG_CONSOLIDATION if reply.consolidation else 0))
    if reply.consolidation:
        w.zint("consolidation", reply.consolidation)
    if more:
        write_extensions(w, [], reply.extensions)
    PUSH_BODIES.write(w, reply.body)
