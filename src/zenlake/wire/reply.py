"""REPLY: a value that answers a query. Knows its bytes; the value itself is a PUT or a DEL."""

from dataclasses import dataclass, field

from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.delete import Del
from zenlake.wire.enums import Consolidation
from zenlake.wire.extensions import ExtensionTable, Unknown
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
    EXTENSIONS.read(r, header, reply)
    reply.body = PUSH_BODIES.read(r)
    return reply


def write_reply(w: ByteWriter, reply: WireReply) -> None:
    start = len(w.out)
    w.out.append(ID)
    if reply.consolidation:
        w.out[start] |= FLAG_CONSOLIDATION
        w.zint("consolidation", reply.consolidation)
    EXTENSIONS.write(w, reply, start)
    PUSH_BODIES.write(w, reply.body)
