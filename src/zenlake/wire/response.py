"""RESPONSE: one answer to a REQUEST. Knows its bytes; does not know whether more will come."""

from dataclasses import dataclass, field

from zenlake.wire import err, qos, reply
from zenlake.wire.cursor import U32, Reader, Writer
from zenlake.wire.dispatch import MessageTable, Row
from zenlake.wire.entity import EntityGlobalId
from zenlake.wire.err import Err
from zenlake.wire.extensions import (
    FLAG_EXTENSIONS,
    QOS,
    TIMESTAMP,
    TS_STACK,
    Extension,
    ExtensionTable,
    Kind,
    Unknown,
    present,
    read_extensions,
    write_extensions,
)
from zenlake.wire.qos import QoS
from zenlake.wire.reply import Reply
from zenlake.wire.timestamp import Timestamp
from zenlake.wire.tsstack import TimestampStack
from zenlake.wire.wireexpr import WireExpr, flags_of, read_wireexpr, write_wireexpr

ID = 0x1B

EXTENSIONS = ExtensionTable(
    "RESPONSE", QOS, TIMESTAMP, Extension(0x43, "responder", Kind.ENTITY), TS_STACK
)
RESPONSE_BODIES = MessageTable(
    "body",
    Row(reply.ID, "REPLY", Reply, reply.read_reply, reply.write_reply),
    Row(err.ID, "ERR", Err, err.read_err, err.write_err),
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
    body: Reply | Err = field(default_factory=Reply)
    qos: QoS = qos.DEFAULT
    timestamp: Timestamp | None = None
    responder: EntityGlobalId | None = None
    ts_stack: TimestampStack | None = None
    extensions: tuple[Unknown, ...] = ()


def read_response(r: Reader, header: int) -> Response:
    response = Response(r.zint("request id", U32), read_wireexpr(r, header))
    if header & FLAG_EXTENSIONS:
        read_extensions(r, EXTENSIONS, response)
    response.body = RESPONSE_BODIES.read(r)
    return response


def write_response(w: Writer, response: Response) -> None:
    known = present(EXTENSIONS, response)
    more = FLAG_EXTENSIONS if known or response.extensions else 0
    w.out.append(ID | flags_of(response.key) | more)
    w.zint("request id", response.request_id, U32)
    write_wireexpr(w, response.key)
    if more:
        write_extensions(w, known, response.extensions)
    RESPONSE_BODIES.write(w, response.body)
