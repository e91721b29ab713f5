"""PUSH: data for the subscribers of its key. Knows key, QoS and body; does not route."""

from dataclasses import dataclass, field

from zenlake.wire import delete, put, qos
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.delete import Del
from zenlake.wire.dispatch import MessageRow, MessageTable
from zenlake.wire.extensions import (
    FLAG_EXTENSIONS,
    NODE_ID,
    QOS,
    TIMESTAMP,
    TS_STACK,
    ExtensionTable,
    Unknown,
)
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.tsstack import WireTimestampStack
from zenlake.wire.wireexpr import WireExpr, flags_of, read_wireexpr, write_wireexpr

ID = 0x1D

EXTENSIONS = ExtensionTable("PUSH", QOS, TIMESTAMP, NODE_ID, TS_STACK)
PUSH_BODIES = MessageTable(
    "body",
    MessageRow(put.ID, "PUT", Put, put.read_put, put.write_put),
    MessageRow(delete.ID, "DEL", Del, delete.read_del, delete.write_del),
)


@dataclass(slots=True)
class Push:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|M|N|   0x1d  |   N, M: see WireExpr   Z: extensions
    +-+-+-+---------+
    ~      key      ~   WireExpr
    ~ [extensions]  ~   if Z: QoS, Timestamp, NodeId, TsStack
    ~     body      ~   PUT or DEL
    +---------------+
    """

    key: WireExpr
    body: Put | Del = field(default_factory=Put)
    qos: QoS = qos.DEFAULT
    timestamp: WireTimestamp | None = None
    node_id: int = 0
    ts_stack: WireTimestampStack | None = None
    extensions: tuple[Unknown, ...] = ()


def read_push(r: ByteReader, header: int) -> Push:
    key = read_wireexpr(r, header)
    if not header & FLAG_EXTENSIONS:
        return Push(key, PUSH_BODIES.read(r))
    push = Push(key)
    EXTENSIONS.read(r, header, push)
    push.body = PUSH_BODIES.read(r)
    return push


def write_push(w: ByteWriter, push: Push) -> None:
    start = len(w.out)
    w.out.append(ID | flags_of(push.key))
    write_wireexpr(w, push.key)
    EXTENSIONS.write(w, push, start)
    PUSH_BODIES.write(w, push.body)
