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

from zenlake.wire import qos
from zenlake.wire.cursor import U16, U32, ByteReader, ByteWriter
from zenlake.wire.dispatch import MessageRow, MessageTable
from zenlake.wire.extensions import (
    FLAG_EXTENSIONS,
    NODE_ID,
    QOS,
    TIMESTAMP,
    Extension,
    ExtensionKind,
    ExtensionTable,
    QueryableInfo,
    Unknown,
    present,
    read_extensions,
    write_extensions,
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


_ID_BOUND = {D_KEYEXPR: U16, U_KEYEXPR: U16}
_FIELD = {D_KEYEXPR: "expr id", U_KEYEXPR: "expr id"}


def _declaration(number: int, name: str, kind: type, table: ExtensionTable) -> MessageRow:
    """A row for `id, key, extensions`."""
    field, bound = _FIELD.get(number, "id"), _ID_BOUND.get(number, U32)
    flags_known = FLAG_NAMED if number == D_KEYEXPR else 0xFF

    def read(r: ByteReader, header: int) -> Declaration:
        body: Declaration = kind(r.zint(field, bound), read_wireexpr(r, header & flags_known))
        if header & FLAG_EXTENSIONS:
            read_extensions(r, table, body)
        return body

    def write(w: ByteWriter, body: DeclareSubscriber) -> None:
        known = present(table, body)
        more = FLAG_EXTENSIONS if known or body.extensions else 0
        w.out.append(number | flags_of(body.key) & flags_known | more)
        w.zint(field, body.id, bound)
        write_wireexpr(w, body.key)
        if more:
            write_extensions(w, known, body.extensions)

    return MessageRow(number, name, kind, read, write)


def _undeclaration(number: int, name: str, kind: type, table: ExtensionTable) -> MessageRow:
    """A row for `id, extensions`."""
    field, bound = _FIELD.get(number, "id"), _ID_BOUND.get(number, U32)

    def read(r: ByteReader, header: int) -> Declaration:
        body: Declaration = kind(r.zint(field, bound))
        if header & FLAG_EXTENSIONS:
            read_extensions(r, table, body)
        return body

    def write(w: ByteWriter, body: UndeclareSubscriber) -> None:
        known = present(table, body)
        more = FLAG_EXTENSIONS if known or body.extensions else 0
        w.out.append(number | more)
        w.zint(field, body.id, bound)
        if more:
            write_extensions(w, known, body.extensions)

    return MessageRow(number, name, kind, read, write)


def _read_final(r: ByteReader, header: int) -> DeclareFinal:
    final = DeclareFinal()
    if header & FLAG_EXTENSIONS:
        read_extensions(r, NO_EXTENSIONS, final)
    return final


def _write_final(w: ByteWriter, final: DeclareFinal) -> None:
    w.out.append(D_FINAL | (FLAG_EXTENSIONS if final.extensions else 0))
    if final.extensions:
        write_extensions(w, [], final.extensions)


DECLARATIONS = MessageTable(
    "body",
    _declaration(D_KEYEXPR, "D_KEYEXPR", DeclareKeyExpr, NO_EXTENSIONS),
    _undeclaration(U_KEYEXPR, "U_KEYEXPR", UndeclareKeyExpr, NO_EXTENSIONS),
    _declaration(D_SUBSCRIBER, "D_SUBSCRIBER", DeclareSubscriber, NO_EXTENSIONS),
    _undeclaration(U_SUBSCRIBER, "U_SUBSCRIBER", UndeclareSubscriber, UNDECLARE_EXTENSIONS),
    _declaration(D_QUERYABLE, "D_QUERYABLE", DeclareQueryable, QUERYABLE_EXTENSIONS),
    _undeclaration(U_QUERYABLE, "U_QUERYABLE", UndeclareQueryable, UNDECLARE_EXTENSIONS),
    _declaration(D_TOKEN, "D_TOKEN", DeclareToken, NO_EXTENSIONS),
    _undeclaration(U_TOKEN, "U_TOKEN", UndeclareToken, UNDECLARE_EXTENSIONS),
    MessageRow(D_FINAL, "D_FINAL", DeclareFinal, _read_final, _write_final),
)


def read_declare(r: ByteReader, header: int) -> Declare:
    declare = Declare(
        DeclareFinal(), r.zint("interest id", U32) if header & FLAG_INTEREST else None
    )
    if header & FLAG_EXTENSIONS:
        read_extensions(r, EXTENSIONS, declare)
    declare.body = DECLARATIONS.read(r)
    return declare


def write_declare(w: ByteWriter, declare: Declare) -> None:
    known = present(EXTENSIONS, declare)
    more = FLAG_EXTENSIONS if known or declare.extensions else 0
    answers = declare.interest_id is not None
    w.out.append(ID | more | (FLAG_INTEREST if answers else 0))
    if declare.interest_id is not None:
        w.zint("interest id", declare.interest_id, U32)
    if more:
        write_extensions(w, known, declare.extensions)
    DECLARATIONS.write(w, declare.body)
