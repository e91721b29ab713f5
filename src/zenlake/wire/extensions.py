"""Extensions: the optional tail of every message, read and written from one table per message.

Knows the chain (header, encodings, limits) and the kinds of value. Does not know which message
has which extension: each message's file holds its own `ExtensionTable`.

      7 6 5 4 3 2 1 0
     +-+-+-+-+-+-+-+-+
     |Z|ENC|M|  ID   |   Z: another follows   M: refuse the message if this is not known
     +-+---+-+-------+   ENC: 00 nothing, 01 z64, 10 <u32> bytes, 11 invalid
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

from zenlake.errors import DecodeError, EncodeError, Reason
from zenlake.wire import qos
from zenlake.wire.cursor import U16, U32, ByteReader, ByteWriter, encode_text
from zenlake.wire.entity import read_entity, read_source_info, write_entity, write_source_info
from zenlake.wire.enums import PRIORITIES, WirePriority, WireQueryTarget
from zenlake.wire.qos import QoS
from zenlake.wire.querybody import read_query_body, read_shared_query_body, write_query_body
from zenlake.wire.timestamp import read_timestamp, write_timestamp
from zenlake.wire.tsstack import read_ts_stack, write_ts_stack
from zenlake.wire.wireexpr import read_wireexpr_ext, write_wireexpr_ext

FLAG_MORE = 0x80
FLAG_EXTENSIONS = 0x80  # The Z bit of a message's own header.
MANDATORY = 0x10
ENC_MASK, ENC_UNIT, ENC_Z64, ENC_ZBUF = 0x60, 0x00, 0x20, 0x40
IDENTITY_MASK = 0x7F  # ID, M and ENC together identify an extension.
MAX_EXTENSIONS = 32  # Limit per message; the longest table has nine.


@dataclass(frozen=True, slots=True)
class Unknown:
    """An extension that no table names, kept unchanged so that it can be passed on."""

    header: int
    value: int | bytes | None

    def __str__(self) -> str:
        value = self.value.hex() if isinstance(self.value, bytes) else self.value
        return f"ext 0x{self.header & IDENTITY_MASK:02x}" + ("" if value is None else f"={value}")


class ExtensionKind(IntEnum):
    """Kind of an extension's value, and of the field of a row that the kernel writes it to.

    The kernel knows extensions by these numbers alone.
    """

    UNKNOWN = 0
    UNIT = 1
    SHM_MARK = 2
    Z64 = 3
    QOS = 4
    LANE = 5
    NODE_ID = 6
    TARGET = 7
    BUDGET = 8
    QUERYABLE_INFO = 9
    BYTES = 10
    TIMESTAMP = 11
    ENTITY = 12
    SOURCE_INFO = 13
    TS_STACK = 14
    WIRE_EXPR = 15
    QUERY_BODY = 16
    LANE_SNS = 17
    REGION_NAME = 18
    ATTACHMENT = 19
    TIMEOUT = 20
    FIRST = 21
    DROP = 22


class ExtensionCodec(NamedTuple):
    """Reader and writer of one kind of value. The body of a ZBuf gets a reader of its own."""

    read: Callable[[ByteReader, str], Any]
    write: Callable[[ByteWriter, str, Any], None]


class Extension(NamedTuple):
    """One row of a message's table."""

    header: int
    "ENC, M and ID; Z clear."
    field: str
    "The message's attribute that holds the value."
    kind: ExtensionKind
    default: Any = None
    "Value of the attribute when the extension is absent."


class ExtensionTable:
    """All extensions of one message, in the order in which they are written."""

    __slots__ = ("_defaults", "_values_of", "by_header", "message", "rows")

    def __init__(self, message: str, *rows: Extension) -> None:
        self.message = message
        self.rows = rows
        self.by_header = {row.header: row for row in rows}
        self._defaults = (*(row.default for row in rows), ())
        fields = [*(row.field for row in rows), "extensions"]
        self._values_of: Callable[[Any], tuple[Any, ...]] = (
            attrgetter(*fields) if rows else lambda message: (message.extensions,)
        )

    def __repr__(self) -> str:
        return f"ExtensionTable({self.message}: {', '.join(row.field for row in self.rows)})"

    def read(self, r: ByteReader, header: int, message: Any) -> None:
        """Read the chain, if the message's header announces one, into attributes of `message`;
        unknown extensions go to its `extensions`."""
        if not header & FLAG_EXTENSIONS:
            return
        unknown: list[Unknown] = []
        for _ in range(MAX_EXTENSIONS):
            start = r.pos
            header = r.u8("extension")
            row = self.by_header.get(header & IDENTITY_MASK)
            if row is None:
                unknown.append(_read_unknown(r, header, start))
            elif row.kind is ExtensionKind.QUERY_BODY and message.shm:
                setattr(message, row.field, read_shared_query_body(r, row.field))
            else:
                setattr(message, row.field, _read_value(r, row))
            if not header & FLAG_MORE:
                break
        else:
            raise DecodeError(Reason.TOO_MANY_EXTENSIONS, "extension", r.pos)
        if unknown:
            message.extensions = tuple(unknown)

    def write(self, w: ByteWriter, message: Any, start: int) -> None:
        """Write the chain of `message`, if it carries extensions, and announce it in the header,
        which was written at `start`."""
        values = self._values_of(message)
        if values == self._defaults:  # nearly always
            return
        w.out[start] |= FLAG_EXTENSIONS
        known = [
            (row, value)
            for row, value, default in zip(self.rows, values, self._defaults, strict=False)
            if value is not default and value != default
        ]
        write_extensions(w, known, values[-1])


def _read_unknown(r: ByteReader, header: int, start: int) -> Unknown:
    encoding = header & ENC_MASK
    if encoding == ENC_MASK:
        raise DecodeError(Reason.EXTENSION_ENCODING, "extension", start)
    if header & MANDATORY:
        raise DecodeError(Reason.MANDATORY_EXTENSION, "extension", start)
    value: int | bytes | None = None
    if encoding == ENC_Z64:
        value = r.zint("extension")
    elif encoding == ENC_ZBUF:
        value = r.block("extension")
    return Unknown(header & IDENTITY_MASK, value)


def _read_value(r: ByteReader, row: Extension) -> Any:
    codec = CODECS[row.kind]
    if row.header & ENC_MASK != ENC_ZBUF:
        return codec.read(r, row.field)
    body = r.part(row.field)
    value = codec.read(body, row.field)
    body.finish(row.field)
    return value


def write_extensions(
    w: ByteWriter, known: list[tuple[Extension, Any]], unknown: tuple[Unknown, ...]
) -> None:
    """Write the known extensions in table order, then the unknown ones; at least one in all."""
    left = len(known) + len(unknown)
    if left > MAX_EXTENSIONS:
        raise EncodeError(f"are {left}, more than {MAX_EXTENSIONS}", "extensions")
    for row, value in known:
        left -= 1
        w.out.append(row.header | (FLAG_MORE if left else 0))
        _write_value(w, row, value)
    for extension in unknown:
        left -= 1
        _write_unknown(w, extension, FLAG_MORE if left else 0)


_ENCODING_OF = {int: ENC_Z64, bytes: ENC_ZBUF, type(None): ENC_UNIT}


def _write_unknown(w: ByteWriter, extension: Unknown, more: int) -> None:
    header, value = extension.header & IDENTITY_MASK, extension.value
    if header & MANDATORY or header & ENC_MASK != _ENCODING_OF.get(type(value)):
        raise EncodeError(f"0x{header:02x} cannot carry {value!r}, or is mandatory", "extension")
    w.out.append(header | more)
    if isinstance(value, int):
        w.zint("extension", value)
    elif value is not None:
        w.block("extension", value)


def _write_value(w: ByteWriter, row: Extension, value: Any) -> None:
    codec = CODECS[row.kind]
    if row.header & ENC_MASK != ENC_ZBUF:
        codec.write(w, row.field, value)
        return
    body = ByteWriter()
    codec.write(body, row.field, value)
    w.block(row.field, body.out)


@dataclass(frozen=True, slots=True, order=True)
class QueryableInfo:
    """Info of a queryable on the wire: bit 0 = complete, bits 8 to 23 = distance."""

    complete: bool = False
    distance: int = 0


REGION_NAME_BYTES = range(1, 33)
LANE_COUNT = len(PRIORITIES)


def _read_unit(r: ByteReader, field: str) -> bool:
    return True


def _write_unit(w: ByteWriter, field: str, value: bool) -> None:
    pass


def _read_shm_mark(r: ByteReader, field: str) -> bool:
    if not r.shm:
        raise DecodeError(Reason.SHARED_MEMORY, field, r.pos - 1)
    return True


def _read_qos(r: ByteReader, field: str) -> QoS:
    return QoS.from_byte(r.zint(field))


def _read_lane(r: ByteReader, field: str) -> WirePriority:
    return PRIORITIES[r.zint(field) & 0x07]


def _write_lane(w: ByteWriter, field: str, value: int) -> None:
    w.zint(field, _within(value, WirePriority.BACKGROUND, field))


def _write_target(w: ByteWriter, field: str, value: int) -> None:
    w.zint(field, _within(value, WireQueryTarget.ALL_COMPLETE, field))


def _within(value: int, greatest: int, field: str) -> int:
    if not 0 <= value <= greatest:
        raise EncodeError(f"is {value}, outside 0 to {greatest}", field)
    return value


def _read_node_id(r: ByteReader, field: str) -> int:
    return r.zint(field, U16)


def _write_node_id(w: ByteWriter, field: str, value: int) -> None:
    w.zint(field, value, U16)


def _read_target(r: ByteReader, field: str) -> WireQueryTarget:
    start = r.pos
    value = r.zint(field)
    if value > WireQueryTarget.ALL_COMPLETE:
        raise DecodeError(Reason.BAD_VALUE, field, start)
    return WireQueryTarget(value)


def _read_budget(r: ByteReader, field: str) -> int | None:
    return r.zint(field, U32) or None


def _write_budget(w: ByteWriter, field: str, value: int) -> None:
    if value == 0:
        raise EncodeError("is 0, which no reader can tell from none", field)
    w.zint(field, value, U32)


def _read_queryable_info(r: ByteReader, field: str) -> QueryableInfo:
    value = r.zint(field)
    return QueryableInfo(bool(value & 1), value >> 8 & U16)


def _write_queryable_info(w: ByteWriter, field: str, info: QueryableInfo) -> None:
    if not 0 <= info.distance <= U16:
        raise EncodeError(f"has distance {info.distance}, outside 0 to {U16}", field)
    w.zint(field, info.complete | info.distance << 8)


def _read_bytes(r: ByteReader, field: str) -> bytes:
    return r.rest()


def _write_bytes(w: ByteWriter, field: str, value: bytes) -> None:
    w.out += value


def _read_lane_sns(r: ByteReader, field: str) -> tuple[tuple[int, int], ...]:
    return tuple((r.zint(field, U32), r.zint(field, U32)) for _ in range(LANE_COUNT))


def _write_lane_sns(w: ByteWriter, field: str, sns: tuple[tuple[int, int], ...]) -> None:
    if len(sns) != LANE_COUNT:
        raise EncodeError(f"has {len(sns)} pairs, not one for each of {LANE_COUNT}", field)
    for reliable, best_effort in sns:
        w.zint(field, reliable, U32)
        w.zint(field, best_effort, U32)


def _read_region_name(r: ByteReader, field: str) -> str:
    if r.remaining() not in REGION_NAME_BYTES:
        raise DecodeError(Reason.BAD_VALUE, field, r.pos)
    return r.rest_text(field)


def _write_region_name(w: ByteWriter, field: str, name: str) -> None:
    raw = encode_text(name, field)
    if len(raw) not in REGION_NAME_BYTES:
        raise EncodeError(f"has {len(raw)} bytes, not 1 to 32", field)
    w.out += raw


CODECS: dict[ExtensionKind, ExtensionCodec] = {
    ExtensionKind.UNIT: ExtensionCodec(_read_unit, _write_unit),
    ExtensionKind.SHM_MARK: ExtensionCodec(_read_shm_mark, _write_unit),
    ExtensionKind.Z64: ExtensionCodec(ByteReader.zint, ByteWriter.zint),
    ExtensionKind.QOS: ExtensionCodec(_read_qos, ByteWriter.zint),
    ExtensionKind.LANE: ExtensionCodec(_read_lane, _write_lane),
    ExtensionKind.NODE_ID: ExtensionCodec(_read_node_id, _write_node_id),
    ExtensionKind.TARGET: ExtensionCodec(_read_target, _write_target),
    ExtensionKind.BUDGET: ExtensionCodec(_read_budget, _write_budget),
    ExtensionKind.QUERYABLE_INFO: ExtensionCodec(_read_queryable_info, _write_queryable_info),
    ExtensionKind.BYTES: ExtensionCodec(_read_bytes, _write_bytes),
    ExtensionKind.TIMESTAMP: ExtensionCodec(read_timestamp, write_timestamp),
    ExtensionKind.ENTITY: ExtensionCodec(read_entity, write_entity),
    ExtensionKind.SOURCE_INFO: ExtensionCodec(read_source_info, write_source_info),
    ExtensionKind.TS_STACK: ExtensionCodec(read_ts_stack, write_ts_stack),
    ExtensionKind.WIRE_EXPR: ExtensionCodec(read_wireexpr_ext, write_wireexpr_ext),
    ExtensionKind.QUERY_BODY: ExtensionCodec(read_query_body, write_query_body),
    ExtensionKind.LANE_SNS: ExtensionCodec(_read_lane_sns, _write_lane_sns),
    ExtensionKind.REGION_NAME: ExtensionCodec(_read_region_name, _write_region_name),
    ExtensionKind.ATTACHMENT: ExtensionCodec(_read_bytes, _write_bytes),
    ExtensionKind.TIMEOUT: ExtensionCodec(ByteReader.zint, ByteWriter.zint),
    ExtensionKind.FIRST: ExtensionCodec(_read_unit, _write_unit),
    ExtensionKind.DROP: ExtensionCodec(_read_unit, _write_unit),
}

# Rows that several messages have with the same ids.
QOS = Extension(0x21, "qos", ExtensionKind.QOS, qos.DEFAULT)
TIMESTAMP = Extension(0x42, "timestamp", ExtensionKind.TIMESTAMP)
NODE_ID = Extension(0x33, "node_id", ExtensionKind.NODE_ID, 0)
TS_STACK = Extension(0x47, "ts_stack", ExtensionKind.TS_STACK)
LANE = Extension(0x31, "priority", ExtensionKind.LANE, WirePriority.DATA)
SOURCE_INFO = Extension(0x41, "source_info", ExtensionKind.SOURCE_INFO)
PATCH = Extension(0x27, "patch", ExtensionKind.Z64, 0)
