"""The scan held to the object codec: same messages and fields, same refusal at the same offset."""

from typing import Any

from zenlake.errors import DecodeError
from zenlake.wire.batch import LocatedMessage, walk
from zenlake.wire.cursor import ByteReader
from zenlake.wire.declare import DECLARATIONS, Declare
from zenlake.wire.delete import Del
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.err import Err
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing, split
from zenlake.wire.kernels.row import (
    DEFAULT_LANE,
    FLAG_DROP,
    FLAG_FIRST,
    FLAG_MORE,
    FLAG_NODE_ID,
    FLAG_STACK,
    FLAG_TIMEOUT,
    LANE_RELIABLE,
    ROW,
)
from zenlake.wire.network import is_network
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.query import WireQuery
from zenlake.wire.reply import WireReply
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.scan import Scanner

NAMES = ROW.names or ()
FOUND = [name.removesuffix("_len") for name in NAMES if name.endswith("_len")]
# A row that says nothing, apart from where its message stands.
ABSENT: dict[str, Any] = {f"@{name}": None for name in FOUND} | {
    name: 0
    for name in NAMES
    if name not in {*FOUND, *(f"{name}_len" for name in FOUND), "kind", "start", "end", "batch"}
}
IDS = ("clock", "source", "responder")
Found = tuple[list[tuple[int, LocatedMessage]], DecodeError | None]


def by_objects(data: bytes, framing: Framing, low_latency: bool) -> Found:
    """(batch number, message) for every message that gets a row, and how it ended."""
    found: list[tuple[int, LocatedMessage]] = []
    try:
        for number, (start, end) in enumerate(split(data, framing)):
            for located in walk(ByteReader(data, start, end), low_latency=low_latency):
                if not isinstance(located.message, Frame):
                    found.append((number, located))
    except DecodeError as error:
        return found, error
    return found, None


def assert_scan_equals_objects(
    data: bytes,
    framing: Framing = Framing.STREAM,
    *,
    low_latency: bool = False,
    scanner: Scanner | None = None,
) -> DecodeError | None:
    low_latency = low_latency or framing is Framing.LOW_LATENCY
    want, want_error = by_objects(data, framing, low_latency)
    rows: list[Any] = []
    error = None
    scanner = scanner or Scanner(capacity=7)  # small, so that it stops and goes on within batches
    for part in scanner.chunks(data, framing, low_latency=low_latency):
        rows.extend(dict(zip(NAMES, row, strict=True)) for row in part.rows.tolist())
        error = part.error
        if error is not None:
            # What the kernel itself saw, before the object codec was asked for words.
            kernel_saw = scanner.last_refusal()
            assert want_error is not None, f"refused only by the scan: {error}"
            assert kernel_saw == (want_error.reason, want_error.offset), f"{want_error}"
            assert (error.reason, error.offset, error.field, error.message) == (
                want_error.reason,
                want_error.offset,
                want_error.field,
                want_error.message,
            )
    assert error is not None or want_error is None, f"refused only by the codec: {want_error}"
    assert len(rows) == len(want)
    for row, (number, located) in zip(rows, want, strict=True):
        assert_row(data, row, number, located)
    return error


def assert_row(data: bytes, row: dict[str, int], number: int, located: LocatedMessage) -> None:
    want = expected(located, data)
    got: dict[str, Any] = {name: row[name] for name in want if not name.startswith("@")}
    for name in want:
        if name.startswith("@"):  # bytes, found through an offset and a length
            at, length = row[name[1:]], row[f"{name[1:]}_len"]
            got[name] = data[at : at + length] if at else None
            assert at or not length
            if name == "@parameters":
                got[name] = got[name] or None  # said to be there, and empty
            if name[1:] in IDS and at:
                got[name] = got[name].rstrip(b"\0")  # superfluous zeros are tolerated
    assert got == want
    assert (row["start"], row["end"], row["batch"]) == (located.start, located.end, number)


def expected(located: LocatedMessage, data: bytes) -> dict[str, Any]:
    """Return the expected row of a message: for data, every column."""
    message, holder = located.message, located.frame
    row: dict[str, Any] = {"kind": data[located.start] & ID_MASK}
    if isinstance(message, Push | Request | Response | ResponseFinal):
        row |= ABSENT
    if holder is not None:
        row["lane"] = holder.priority | (LANE_RELIABLE if holder.reliable else 0)
        row["sn"] = holder.sn
    elif is_network(data[located.start]):
        row |= {"lane": DEFAULT_LANE, "sn": 0}
    if isinstance(message, Fragment):
        row["lane"] = message.priority | (LANE_RELIABLE if message.reliable else 0)
        row["sn"] = message.sn
        row["@payload"] = message.payload
        row["flags"] = (
            (FLAG_FIRST if message.first else 0)
            | (FLAG_MORE if message.more else 0)
            | (FLAG_DROP if message.drop else 0)
        )
    if isinstance(message, Push | Request | Response):
        row |= {
            "qos": message.qos,
            "scope": message.key.scope,
            "mapping": message.key.mapping,
            "flags": 0 if message.ts_stack is None else FLAG_STACK,
        }
        if not isinstance(message, Response) and message.node_id:
            row["flags"] |= FLAG_NODE_ID
        row["@suffix"] = message.key.suffix.encode() if has_suffix(located, data) else None
    if isinstance(message, ResponseFinal):
        row |= {"qos": message.qos, "request_id": message.request_id}
    if isinstance(message, Declare):
        row["body"] = DECLARATIONS.by_type[type(message.body)].id
    if isinstance(message, Push):
        row |= of_body(message.body)
    if isinstance(message, Request):
        row |= {
            "request_id": message.id,
            "target": message.target,
            "budget": message.budget or 0,
            "flags": row["flags"] | (0 if message.timeout_ms is None else FLAG_TIMEOUT),
            "timeout_ms": message.timeout_ms or 0,
        }
        row |= of_query(message.body)
    if isinstance(message, Response):
        row["request_id"] = message.request_id
        row |= of_entity("responder", message.responder)
        if isinstance(message.body, WireReply):
            row |= {"consolidation": message.body.consolidation} | of_body(message.body.body)
        else:
            row |= of_err(message.body)
    return row


def has_suffix(located: LocatedMessage, data: bytes) -> bool:
    return bool(data[located.start] & 0x20)


def of_body(body: Put | Del) -> dict[str, Any]:
    row: dict[str, Any] = {"body": 1 if isinstance(body, Put) else 2}
    row["time"] = body.timestamp.time if body.timestamp else 0
    row |= of_id("clock", body.timestamp.id.raw if body.timestamp else None)
    row |= of_source(body.source_info)
    row["@attachment"] = body.attachment
    if isinstance(body, Put):
        assert isinstance(body.payload, bytes)
        row["@payload"] = body.payload
        row["encoding"] = body.encoding.id
        row["@schema"] = body.encoding.schema
    else:
        row["@payload"] = None
    return row


def of_query(query: WireQuery) -> dict[str, Any]:
    row: dict[str, Any] = {"body": 3, "consolidation": query.consolidation}
    row |= of_source(query.source_info)
    row["@attachment"] = query.attachment
    if query.body is None:
        row["@payload"] = None
    else:
        row["@payload"] = query.body.payload
        row["encoding"] = query.body.encoding.id
        row["@schema"] = query.body.encoding.schema
    row["@parameters"] = query.parameters.encode() or None
    return row


def of_err(err: Err) -> dict[str, Any]:
    assert isinstance(err.payload, bytes)
    row: dict[str, Any] = {"body": 5, "encoding": err.encoding.id}
    row |= {"@schema": err.encoding.schema, "@payload": err.payload}
    return row | of_source(err.source_info)


def of_source(source: WireSourceInfo | None) -> dict[str, Any]:
    if source is None:
        return {"@source": None}
    return of_entity("source", source.id) | {"source_sn": source.sn}


def of_entity(name: str, entity: WireEntityId | None) -> dict[str, Any]:
    if entity is None:
        return {f"@{name}": None}
    return {f"{name}_eid": entity.eid} | of_id(name, entity.zid.raw)


def of_id(name: str, raw: bytes | None) -> dict[str, Any]:
    return {f"@{name}": raw}
