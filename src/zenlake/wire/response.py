"""RESPONSE: one answer to a REQUEST. Knows its bytes; does not know whether more will follow."""

from dataclasses import dataclass, field

from zenlake.wire import err, qos, reply
from zenlake.wire.cursor import U32, ByteReader, ByteWriter
from zenlake.wire.dispatch import MessageRow, MessageTable
from zenlake.wire.entity import WireEntityId
from zenlake.wire.err import Err
from zenlake.wire.extensions import (
    QOS,
    TIMESTAMP,
    TS_STACK,
    Extension,
    ExtensionKind,
    ExtensionTable,
    Unknown,
)
from zenlake.wire.qos import QoS
from zenlake.wire.reply import WireReply
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.tsstack import WireTimestampStack
from zenlake.wire.wireexpr import WireExpr, flags_of, read_wireexpr, write_wireexpr

ID = 0x1B

EXTENSIONS = ExtensionTable(
    "RESPONSE", QOS, TIMESTAMP, Extension(0x43, "responder", ExtensionKind.ENTITY), TS_STACK
)
RESPONSE_BODIES = MessageTable(
    "body",
    MessageRow(reply.ID, "REPLY", WireReply, reply.read_reply, reply.write_reply),
    MessageRow(err.ID, "ERR", Err, err.read_err, err.write_err),
)


@dataclass(slots=True)
class Response:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|M|N|   0x1b  |   N, M: see WireExpr   Z: extensions
    +-+-+-+---------+
    % request : z32 %   the REQUEST's id on this link
    ~      key      ~   WireExpr of the value, not of the query
    ~ [extensions]  ~   if Z: QoS, Timestamp, ResponderId, TsStack
    ~     body      ~   REPLY or ERR
    +---------------+
    """

    request_id: int
    key: WireExpr
    body: WireReply | Err = field(default_factory=WireReply)
    qos: QoS = qos.DEFAULT
    timestamp: WireTimestamp | None = None
    responder: WireEntityId | None = None
    ts_stack: WireTimestampStack | None = None
    extensions: tuple[Unknown, ...] = ()


def read_response(r: ByteReader, header: int) -> Response:
    response = Response(r.zint("request id", U32), read_wireexpr(r, header))
    EXTENSIONS.read(r, header, response)
    response.body = RESPONSE_BODIES.read(r)
    return response


def write_response(w: ByteWriter, response: Response) -> None:
    start = len(w.out)
    w.out.append(ID | flags_of(response.key))
    w.zint("request id", response.request_id, U32)
    write_wireexpr(w, response.key)
    EXTENSIONS.write(w, response, start)
    RESPONSE_BODIES.write(w, response.body)
