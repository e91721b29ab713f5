"""DECLARE: a node says what it has: key expressions, subscribers, queryables, tokens.

Knows the envelope and its nine bodies, which are rows of one table. Does not keep what was
declared.

A declaration's body:                          An undeclaration's body:
      7 6 5 4 3 2 1 0                                7 6 5 4 3 2 1 0
     +-+-+-+-+-+-+-+-+                              +-+-+-+-+-+-+-+-+
     |Z|M|N|   id    |   N, M: see WireExpr         |Z|X|X|   id    |
     +-+-+-+---------+                              +-+-+-+---------+
     %   id : z32    %   z16 of a key expression    %   id : z32    %   z16 of a key expression
     ~      key      ~   WireExpr                   ~ [extensions]  ~   if Z: WireExpr
     ~ [extensions]  ~   if Z: QueryableInfo        +---------------+
     +---------------+
"""

from dataclasses import dataclass
from typing import Any

from zenlake.wire import qos
from zenlake.wire.cursor import U16, U32, ByteReader, ByteWriter
from zenlake.wire.dispatch import MessageRow, MessageTable
from zenlake.wire.extensions import (
    NODE_ID,
    QOS,
    TIMESTAMP,
    Extension,
    ExtensionKind,
    ExtensionTable,
    QueryableInfo,
    Unknown,
)
from zenlake.wire.qos import QoS
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import (
    FLAG_NAMED,
    WireExpr,
    flags_of,
    read_wireexpr,
    write_wireexpr,
)

ID = 0x1E
FLAG_INTEREST = 0x20

EXTENSIONS = ExtensionTable("DECLARE", QOS, TIMESTAMP, NODE_ID)
NO_EXTENSIONS = ExtensionTable("declaration")
INCOMPLETE = QueryableInfo()
QUERYABLE_EXTENSIONS = ExtensionTable(
    "D_QUERYABLE", Extension(0x21, "info", ExtensionKind.QUERYABLE_INFO, INCOMPLETE)
)
UNDECLARE_EXTENSIONS = ExtensionTable(
    "undeclaration", Extension(0x5F, "key", ExtensionKind.WIRE_EXPR)
)

D_KEYEXPR, U_KEYEXPR = 0x00, 0x01
D_SUBSCRIBER, U_SUBSCRIBER = 0x02, 0x03
D_QUERYABLE, U_QUERYABLE = 0x04, 0x05
D_TOKEN, U_TOKEN = 0x06, 0x07
D_FINAL = 0x1A


@dataclass(slots=True)
class DeclareKeyExpr:
    """From now on, on this link, `id` stands for `key`. It has no M flag: scope 0 and full text."""

    id: int
    key: WireExpr
    extensions: tuple[Unknown, ...] = ()


@dataclass(slots=True)
class UndeclareKeyExpr:
    id: int
    extensions: tuple[Unknown, ...] = ()


@dataclass(slots=True)
class DeclareSubscriber:
    id: int
    key: WireExpr
    extensions: tuple[Unknown, ...] = ()


@dataclass(slots=True)
class UndeclareSubscriber:
    id: int
    key: WireExpr | None = None
    extensions: tuple[Unknown, ...] = ()


@dataclass(slots=True)
class DeclareQueryable:
    id: int
    key: WireExpr
    info: QueryableInfo = INCOMPLETE
    extensions: tuple[Unknown, ...] = ()


@dataclass(slots=True)
class UndeclareQueryable:
    id: int
    key: WireExpr | None = None
    extensions: tuple[Unknown, ...] = ()


@dataclass(slots=True)
class DeclareToken:
    id: int
    key: WireExpr
    extensions: tuple[Unknown, ...] = ()


@dataclass(slots=True)
class UndeclareToken:
    id: int
    key: WireExpr | None = None
    extensions: tuple[Unknown, ...] = ()


@dataclass(slots=True)
class DeclareFinal:
    """Everything that an interest asked about has been declared."""

    extensions: tuple[Unknown, ...] = ()


Declaration = (
    DeclareKeyExpr
    | UndeclareKeyExpr
    | DeclareSubscriber
    | UndeclareSubscriber
    | DeclareQueryable
    | UndeclareQueryable
    | DeclareToken
    | UndeclareToken
    | DeclareFinal
)


@dataclass(slots=True)
class Declare:
    """
     7 6 5 4 3 2 1 0
    +-+-+-+-+-+-+-+-+
    |Z|X|I|   0x1e  |   I: answers an interest   Z: extensions
    +-+-+-+---------+
    % interest: z32 %   if I
    ~ [extensions]  ~   if Z: QoS, Timestamp, NodeId
    ~     body      ~   one of nine
    +---------------+
    """

    body: Declaration
    interest_id: int | None = None
    qos: QoS = qos.DEFAULT
    timestamp: WireTimestamp | None = None
    node_id: int = 0
    extensions: tuple[Unknown, ...] = ()


def _row(
    number: int, name: str, kind: type, table: ExtensionTable, *, keyed: bool = False
) -> MessageRow:
    """Return the row of a body: its id, its key if it is `keyed`, its extensions."""
    field, bound = ("expr id", U16) if number <= U_KEYEXPR else ("id", U32)
    flags_known = FLAG_NAMED if number == D_KEYEXPR else 0xFF

    def read(r: ByteReader, header: int) -> Declaration:
        fields: list[Any] = [] if number == D_FINAL else [r.zint(field, bound)]
        if keyed:
            fields.append(read_wireexpr(r, header & flags_known))
        body: Declaration = kind(*fields)
        table.read(r, header, body)
        return body

    def write(w: ByteWriter, body: Any) -> None:
        start = len(w.out)
        flags = flags_of(body.key) & flags_known if keyed else 0
        w.out.append(number | flags)
        if number != D_FINAL:
            w.zint(field, body.id, bound)
        if keyed:
            write_wireexpr(w, body.key)
        table.write(w, body, start)

    return MessageRow(number, name, kind, read, write)


DECLARATIONS = MessageTable(
    "body",
    _row(D_KEYEXPR, "D_KEYEXPR", DeclareKeyExpr, NO_EXTENSIONS, keyed=True),
    _row(U_KEYEXPR, "U_KEYEXPR", UndeclareKeyExpr, NO_EXTENSIONS),
    _row(D_SUBSCRIBER, "D_SUBSCRIBER", DeclareSubscriber, NO_EXTENSIONS, keyed=True),
    _row(U_SUBSCRIBER, "U_SUBSCRIBER", UndeclareSubscriber, UNDECLARE_EXTENSIONS),
    _row(D_QUERYABLE, "D_QUERYABLE", DeclareQueryable, QUERYABLE_EXTENSIONS, keyed=True),
    _row(U_QUERYABLE, "U_QUERYABLE", UndeclareQueryable, UNDECLARE_EXTENSIONS),
    _row(D_TOKEN, "D_TOKEN", DeclareToken, NO_EXTENSIONS, keyed=True),
    _row(U_TOKEN, "U_TOKEN", UndeclareToken, UNDECLARE_EXTENSIONS),
    _row(D_FINAL, "D_FINAL", DeclareFinal, NO_EXTENSIONS),
)


def read_declare(r: ByteReader, header: int) -> Declare:
    declare = Declare(
        DeclareFinal(), r.zint("interest id", U32) if header & FLAG_INTEREST else None
    )
    EXTENSIONS.read(r, header, declare)
    declare.body = DECLARATIONS.read(r)
    return declare


def write_declare(w: ByteWriter, declare: Declare) -> None:
    start = len(w.out)
    w.out.append(ID)
    if declare.interest_id is not None:
        w.out[start] |= FLAG_INTEREST
        w.zint("interest id", declare.interest_id, U32)
    EXTENSIONS.write(w, declare, start)
    DECLARATIONS.write(w, declare.body)
