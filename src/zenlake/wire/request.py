"""REQUEST: a query on its way to queryables. Knows its bytes; does not route."""

from dataclasses import dataclass, field

from zenlake.wire import qos, query
from zenlake.wire.cursor import U32, ByteReader, ByteWriter
from zenlake.wire.dispatch import MessageRow, MessageTable
from zenlake.wire.enums import WireQueryTarget
from zenlake.wire.extensions import (
    NODE_ID,
    QOS,
    TIMESTAMP,
    TS_STACK,
    Extension,
    ExtensionKind,
    ExtensionTable,
    Unknown,
)
from zenlake.wire.qos import QoS
from zenlake.wire.query import WireQuery
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.tsstack import WireTimestampStack
from zenlake.wire.wireexpr import WireExpr, flags_of, read_wireexpr, write_wireexpr

ID = 0x1C

EXTENSIONS = ExtensionTable(
    "REQUEST",
    QOS,
    TIMESTAMP,
    Extension(0x34, "target", ExtensionKind.TARGET, WireQueryTarget.BEST_MATCHING),
    Extension(0x25, "budget", ExtensionKind.BUDGET),
    Extension(0x26, "timeout_ms", ExtensionKind.TIMEOUT),
    NODE_ID,  # after the others here, as the Rust implementation writes it
    TS_STACK,
)
REQUEST_BODIES = MessageTable(
    "body", MessageRow(query.ID, "QUERY", WireQuery, query.read_query, query.write_query)
)


@dataclass(slots=True)
class Request:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|M|N|   0x1c  |   N, M: see WireExpr   Z: extensions
    +-+-+-+---------+
    %   id : z32    %   chosen by the sender, for this link
    ~      key      ~   WireExpr
    ~ [extensions]  ~   if Z: QoS, Timestamp, Target, Budget, Timeout, NodeId, TsStack
    ~     body      ~   QUERY
    +---------------+
    """

    id: int
    key: WireExpr
    body: WireQuery = field(default_factory=WireQuery)
    qos: QoS = qos.DEFAULT
    timestamp: WireTimestamp | None = None
    target: WireQueryTarget = WireQueryTarget.BEST_MATCHING
    budget: int | None = None
    timeout_ms: int | None = None
    node_id: int = 0
    ts_stack: WireTimestampStack | None = None
    extensions: tuple[Unknown, ...] = ()


def read_request(r: ByteReader, header: int) -> Request:
    request = Request(r.zint("request id", U32), read_wireexpr(r, header))
    EXTENSIONS.read(r, header, request)
    request.body = REQUEST_BODIES.read(r)
    return request


def write_request(w: ByteWriter, request: Request) -> None:
    start = len(w.out)
    w.out.append(ID | flags_of(request.key))
    w.zint("request id", request.id, U32)
    write_wireexpr(w, request.key)
    EXTENSIONS.write(w, request, start)
    REQUEST_BODIES.write(w, request.body)
