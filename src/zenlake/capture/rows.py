"""Rows of the scan, of many streams, to record batches of a capture.

Knows the order of rows, how scopes become keys as they are declared, and how each column is made.
Does not know packets or framing. The compiled part is kernels/rows.py.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zenlake.capture.conversation import (
    HELLO_KIND,
    IN_WORDS,
    NO_LANE,
    SCOUT_KIND,
    Bytes,
    Numbers,
    StreamSide,
)
from zenlake.capture.kernels import rows as kernel
from zenlake.capture.message_fields import describe
from zenlake.capture.report import Report
from zenlake.capture.schema import CAPTURE
from zenlake.columnar.conform import ntp64_to_micros
from zenlake.columnar.schema import CONGESTION_CONTROLS
from zenlake.errors import DecodeError
from zenlake.wire import (
    declare,
    delete,
    err,
    fragment,
    init,
    interest,
    keepalive,
    oam,
    push,
    put,
    qos,
    query,
    request,
    response,
    response_final,
)
from zenlake.wire import open as open_
from zenlake.wire.batch import SCOUTING, TRANSPORT
from zenlake.wire.cursor import ByteReader
from zenlake.wire.declare import Declare, DeclareKeyExpr, UndeclareKeyExpr
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.encoding import type_and_schema
from zenlake.wire.enums import Consolidation, WireQueryTarget
from zenlake.wire.kernels.row import (
    FLAG_DROP,
    FLAG_FIRST,
    FLAG_MORE,
    FLAG_TIMEOUT,
    LANE_RELIABLE,
    ROW,
)
from zenlake.wire.network import FIRST_ID, NETWORK
from zenlake.wire.scan import Rows

MAX_HELD_ROWS = 1 << 18  # Rows sorted at once.
MAX_HELD_BYTES = 64 << 20
MAX_BATCH_BYTES = 64 << 20  # Bytes of all columns of a record batch.
MAX_KEY_BYTES = 256 << 20  # Bytes of declared keys, of all streams together.
MAX_SAME = 32  # Texts whose whole column is cached.

_WORDS = ROW.itemsize // 4


def _place(field: str) -> int:
    """Return the index of a field among a row's words."""
    fields = ROW.fields
    assert fields is not None
    return fields[field][1] // 4


def _flags(*kinds: int) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(kinds)] = True
    return table


_KEYED = _flags(push.ID, request.ID, response.ID, declare.ID, interest.ID)
_WITH_QOS = _flags(push.ID, request.ID, response.ID, response_final.ID, declare.ID, interest.ID)
_WITH_REQUEST = _flags(request.ID, response.ID, response_final.ID)
_DATA = _flags(push.ID, request.ID, response.ID)
_TOLD = ~_flags(push.ID, request.ID, response.ID, response_final.ID, fragment.ID, keepalive.ID)

_ACK = 0x20
_NAMES = {row.id: row.name for row in TRANSPORT.by_id.values()}
_NAMES |= {row.id: row.name for row in NETWORK.by_id.values()}
_NAMES |= {SCOUT_KIND: "SCOUT", HELLO_KIND: "HELLO", oam.TRANSPORT_ID: "TRANSPORT_OAM"}
MESSAGES = [_NAMES.get(number & ID_MASK, "") for number in range(64)]
for _kind in (init.ID, open_.ID):
    MESSAGES[_kind] = f"{_NAMES[_kind]}_SYN"
    MESSAGES[_kind | _ACK] = f"{_NAMES[_kind]}_ACK"

BODIES = {
    (push.ID, put.ID): "put",
    (push.ID, delete.ID): "delete",
    (request.ID, query.ID): "query",
    (response.ID, put.ID): "reply",
    (response.ID, delete.ID): "reply_delete",
    (response.ID, err.ID): "err",
    **{(declare.ID, row.id): row.name.lower() for row in declare.DECLARATIONS.by_id.values()},
}
_BODY_NAMES = sorted(set(BODIES.values()))
_BODY_CODES = np.full(1 << 10, -1, np.int32)
for (_kind, _body), _name in BODIES.items():
    _BODY_CODES[_kind << 5 | _body] = _BODY_NAMES.index(_name)


class Part(NamedTuple):
    side: int
    rows: Rows
    base: int
    numbers: Numbers
    times: Numbers
    fragments: int


class CaptureKeys:
    """Keys that each side of each stream has declared so far, by the side's number."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._declared: dict[tuple[int, int], bytes] = {}
        self._room = MAX_KEY_BYTES

    def learn(self, owner: int, body: DeclareKeyExpr | UndeclareKeyExpr) -> None:
        self._room += len(self._declared.pop((owner, body.id), b""))
        if isinstance(body, UndeclareKeyExpr) or not body.id:
            return
        prefix = body.key.suffix.encode()
        if body.key.scope or len(prefix) > self._room:
            # No node sends a scope here; keys that build on each other could grow without bound.
            self._report.count("declared keys that were not kept")
            return
        self._room -= len(prefix)
        self._declared[owner, body.id] = prefix

    def prefix(self, owner: int, scope: int) -> bytes | None:
        return self._declared.get((owner, scope))


class CaptureChunk:
    """Rows in order, with the data of their columns."""

    def __init__(self, parts: list[Part], data: Bytes, keys: CaptureKeys, *, details: bool) -> None:
        sizes = [len(part.rows) for part in parts]
        rows = _concatenated([part.rows for part in parts])
        numbers = _concatenated([part.numbers for part in parts])
        times = _concatenated([part.times for part in parts])
        base = np.repeat(np.array([part.base for part in parts], np.int64), sizes)
        side = np.repeat(np.array([part.side for part in parts], np.int32), sizes)
        fragments = np.repeat(np.array([part.fragments for part in parts], np.int32), sizes)
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
            rows, numbers, times = rows[order], numbers[order], times[order]
            base, side, fragments = base[order], side[order], fragments[order]
        self.data = data
        self.rows, self.numbers, self.times = rows, numbers, times
        self.base, self.side, self.fragments = base, side, fragments
        self.details: dict[int, str] = {}
        self.prefixes: list[bytes] = [b""]
        self.prefix_of = np.full(len(rows), NONE, np.int32)
        "Index in `prefixes` of the key's start; NONE: no key, or an unknown id."
        self._read_messages(keys, details)

    def message(self, number: int) -> object:
        """Return the message, read by the object codec; None if it does not decode."""
        row = self.rows[number]
        start = int(self.base[number]) + int(row["start"])
        raw = self.data[start : start + int(row["end"]) - int(row["start"])].tobytes()
        kind = int(row["kind"])
        table = NETWORK if kind >= FIRST_ID else SCOUTING if kind >= SCOUT_KIND else TRANSPORT
        try:
            message: object = table.read(ByteReader(raw, shm=True))
        except DecodeError:
            return None
        return message

    def _read_messages(self, keys: CaptureKeys, details: bool) -> None:
        """Read messages that are not data, in order; a declaration counts for the rows after it."""
        kinds = self.rows["kind"]
        declares = (kinds == declare.ID) & (self.rows["body"] <= declare.U_KEYEXPR)
        asked = declares
        if details:
            asked = declares | _TOLD[kinds] | (self.rows["flags"] & IN_WORDS != 0)
        start = 0
        for number in np.flatnonzero(asked).tolist():
            message = self.message(number)
            if message is None:
                continue
            if details:
                self.details[number] = describe(message)
            body = message.body if isinstance(message, Declare) else None
            if isinstance(body, DeclareKeyExpr | UndeclareKeyExpr):
                self._resolve(start, number, keys)
                keys.learn(int(self.side[number]), body)
                start = number
        self._resolve(start, len(self.rows), keys)

    def _resolve(self, start: int, stop: int, keys: CaptureKeys) -> None:
        """Find the prefixes of the keys of rows without a declaration among them."""
        if start == stop:
            return
        rows = self.rows[start:stop]
        scope = rows["scope"].astype(np.int64)
        found = self.prefix_of[start:stop]
        keyed = _KEYED[rows["kind"]]
        found[keyed & (scope == 0) & (rows["suffix_len"] > 0)] = 0
        scoped = np.flatnonzero(keyed & (scope > 0))
        if len(scoped):
            owner = self.side[start:stop][scoped] ^ (rows["mapping"][scoped] == 0)
            number = owner.astype(np.int64) << 16 | scope[scoped]
            distinct = _distinct(number)
            places = np.full(len(distinct), NONE, np.int32)
            for i, each in enumerate(distinct.tolist()):
                prefix = keys.prefix(each >> 16, each & 0xFFFF)
                if prefix is not None:
                    places[i] = len(self.prefixes)
                    self.prefixes.append(prefix)
            found[scoped] = places[np.searchsorted(distinct, number)]

    def cuts(self, max_rows: int) -> Iterator[tuple[int, int]]:
        """Yield (first, next) of each record batch, within the limits of rows and bytes."""
        lengths = np.array([len(prefix) for prefix in self.prefixes], np.int64)
        if len(self.data) * 2 + int(lengths.max()) * len(self.rows) <= MAX_BATCH_BYTES:
            for start in range(0, len(self.rows), max_rows):
                yield start, min(start + max_rows, len(self.rows))
            return
        size = 2 * (self.rows["end"].astype(np.int64) - self.rows["start"])
        size += np.append(lengths, 0)[self.prefix_of]
        total = np.cumsum(size)
        start = 0
        while start < len(size):
            before = int(total[start - 1]) if start else 0
            fits = int(np.searchsorted(total, before + MAX_BATCH_BYTES, "right"))
            stop = min(max(fits, start + 1), start + max_rows)
            yield start, min(stop, len(size))
            start = stop


class ChunkView:
    """Part of a chunk that becomes one record batch."""

    def __init__(self, table: "RowCollector", chunk: CaptureChunk, start: int, stop: int) -> None:
        span = slice(start, stop)
        self.table = table
        self.chunk = chunk
        self.start = start
        self.size = stop - start
        self.rows = chunk.rows[span]
        self.words = self.rows.view(np.int32).reshape(self.size, _WORDS)
        self.base = chunk.base[span]
        self.numbers, self.times = chunk.numbers[span], chunk.times[span]
        self.fragments, self.prefix_of = chunk.fragments[span], chunk.prefix_of[span]
        self.kind = np.ascontiguousarray(self.rows["kind"])
        side = chunk.side[span]
        self.sides, self.side = side[:1], np.zeros(0, np.int64)
        if side.min() != side.max():
            self.sides, self.side = np.unique(side, return_inverse=True)
        self.told = self.rows["flags"] & IN_WORDS == 0
        "True where the scan read the message, so that all columns are known."

    # ---- kinds of columns

    def numbered(self, kind: pa.DataType, values: npt.NDArray[Any], valid: Any = None) -> pa.Array:
        """Return a column of numbers; null where not valid."""
        if valid is not None and not valid.any():
            return self.table.nulls(kind, self.size)
        values = np.ascontiguousarray(values, kind.to_pandas_dtype() if kind != TIME else np.int64)
        bits = None if valid is None else _bitmap(valid)
        return pa.Array.from_buffers(kind, self.size, [bits, pa.py_buffer(values)])

    def booleans(self, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> pa.Array:
        if not valid.any():
            return self.table.nulls(pa.bool_(), self.size)
        bits = pa.py_buffer(np.packbits(values != 0, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), self.size, [_bitmap(valid), bits])

    def named(self, names: Sequence[str | None], codes: npt.NDArray[Any]) -> pa.Array:
        """Return a column of names[code]; null where the code is negative."""
        low, high = int(codes.min()), int(codes.max())
        if low == high:
            return self.table.same(names[low] if low >= 0 else None, self.size)
        valid = codes >= 0
        bits = _bitmap(valid)
        codes = np.ascontiguousarray(codes, np.int32)
        indices = pa.Array.from_buffers(pa.int32(), self.size, [bits, pa.py_buffer(codes)])
        return pa.array(names, pa.string()).take(indices)

    def of_side(self, value: Callable[[StreamSide], Any], kind: pa.DataType) -> pa.Array:
        """Return a column whose value depends on the side only."""
        values = [value(self.table.sides[number]) for number in self.sides.tolist()]
        if len(values) == 1 and kind == pa.string():
            return self.table.same(values[0], self.size)
        if len(values) == 1:
            return pa.repeat(pa.scalar(values[0], kind), self.size)
        return pa.array(values, kind).take(pa.array(self.side))

    def spelled(self, field: str, kind: pa.DataType, valid: npt.NDArray[np.bool_]) -> pa.Array:
        """Return a column of bytes copied from the wire."""
        if not valid.any():
            return self.table.nulls(kind, self.size)
        return self.prefixed(field, kind, np.where(valid, np.int32(0), np.int32(NONE)), [b""])

    def prefixed(
        self, field: str, kind: pa.DataType, which: npt.NDArray[np.int32], prefixes: list[bytes]
    ) -> pa.Array:
        """Return a column of bytes copied from the wire, each after prefixes[which].

        Null where that is NONE.
        """
        valid = which >= 0
        if not valid.any():
            return self.table.nulls(kind, self.size)
        ends = np.zeros(len(prefixes) + 1, np.int64)
        np.cumsum([len(prefix) for prefix in prefixes], out=ends[1:])
        joined = np.frombuffer(b"".join(prefixes), np.uint8)
        place, offsets = _place(field), np.zeros(self.size + 1, np.int32)
        out = np.empty(kernel.measure(self.words, place, which, ends, offsets), np.uint8)
        data = self.chunk.data
        if not kernel.gather(self.words, place, self.base, which, ends, joined, data, offsets, out):
            raise AssertionError(f"a row's {field} is outside of its buffer")
        buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(out)]
        return pa.Array.from_buffers(kind, self.size, buffers)

    def zid(self, field: str) -> pa.Array:
        valid = self.rows[field] != 0
        if not valid.any():
            return self.table.nulls(pa.string(), self.size)
        raw = self.spelled(field, pa.binary(), valid).dictionary_encode()
        texts = [f"{int.from_bytes(zid, 'little'):x}" for zid in raw.dictionary.to_pylist()]
        return self.named(texts, raw.indices.fill_null(NONE).to_numpy(zero_copy_only=False))

    # ---- single columns

    def messages(self) -> pa.Array:
        headers = self.chunk.data[self.base + self.rows["start"]]
        acks = np.where((self.kind == init.ID) | (self.kind == open_.ID), headers & _ACK, 0)
        return self.named(MESSAGES, self.kind | acks)

    def bodies(self) -> pa.Array:
        codes = _BODY_CODES[self.kind.astype(np.int32) << 5 | self.rows["body"]]
        return self.named(_BODY_NAMES, _where(self.told, codes))

    def in_lane(self) -> npt.NDArray[np.bool_]:
        framed = (self.kind >= FIRST_ID) | (self.kind == fragment.ID)
        valid: npt.NDArray[np.bool_] = framed & (self.rows["lane"] & NO_LANE == 0)
        return valid

    def has_key(self) -> npt.NDArray[np.bool_]:
        rows = self.rows
        found: npt.NDArray[np.bool_] = _KEYED[self.kind] & (
            (rows["scope"] != 0) | (rows["suffix_len"] != 0)
        )
        return found

    def mappings(self) -> pa.Array:
        scoped = self.has_key() & (self.rows["scope"] != 0)
        return self.named(("receiver", "sender"), _where(scoped, self.rows["mapping"]))

    @cached_property
    def encodings(self) -> tuple[pa.Array, pa.Array]:
        """Return type and schema; a custom encoding has both in its schema."""
        valid = _DATA[self.kind] & (self.rows["payload"] != 0)
        numbers = np.where(valid, self.rows["encoding"], 0).astype(np.int64)
        with_schema = valid & (self.rows["schema"] != 0)
        if with_schema.any():
            raw = self.spelled("schema", pa.binary(), with_schema).dictionary_encode()
            which = raw.indices.fill_null(NONE).to_numpy(zero_copy_only=False)
            numbers |= (which.astype(np.int64) + 1) << 16
        distinct = _distinct(numbers)
        codes = np.searchsorted(distinct, numbers)
        types: list[str | None] = []
        schemas: list[str | None] = []
        for number in distinct.tolist():
            schema = raw.dictionary[(number >> 16) - 1].as_py() if number >> 16 else None
            kind, rest = type_and_schema(number & 0xFFFF, schema)
            types.append(kind)
            schemas.append(rest)
        without = np.array([schema is None for schema in schemas])
        return (
            self.named(types, _where(valid, codes)),
            self.named(schemas, _where(valid & ~without[codes], codes)),
        )

    def sample_times(self) -> pa.Array:
        return self.numbered(TIME, ntp64_to_micros(self.rows["time"]), self.rows["clock"] != 0)

    def with_qos(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = _WITH_QOS[self.kind] & self.told
        return found

    def congestion(self) -> pa.Array:
        bits = self.rows["qos"]
        codes = np.where(bits & qos.BLOCK, 1, np.where(bits & qos.BLOCK_FIRST, 2, 0))
        return self.named(CONGESTION_CONTROLS, _where(self.with_qos(), codes))

    def consolidations(self) -> pa.Array:
        rows = self.rows
        asked = (self.kind == request.ID) | ((self.kind == response.ID) & (rows["body"] != err.ID))
        return self.named(_CONSOLIDATIONS, _where(asked & self.told, rows["consolidation"]))

    def targets(self) -> pa.Array:
        asked = (self.kind == request.ID) & self.told
        return self.named(_TARGETS, _where(asked, self.rows["target"]))

    def timeouts(self) -> pa.Array:
        values = self.rows["timeout_ms"]
        valid = (self.rows["flags"] & FLAG_TIMEOUT != 0) & (values < 1 << 63) & self.told
        return self.numbered(pa.int64(), values.view(np.int64), valid)

    def fragment_flag(self, flag: int) -> pa.Array:
        return self.booleans(self.rows["flags"] & flag, self.kind == fragment.ID)

    def requests(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = _WITH_REQUEST[self.kind] & self.told
        return found

    def details(self) -> pa.Array:
        known = self.chunk.details
        stop = self.start + self.size
        found = [number for number in known if self.start <= number < stop]
        if not found:
            return self.table.nulls(pa.string(), self.size)
        codes = np.full(self.size, NONE, np.int32)
        codes[np.array(found) - self.start] = np.arange(len(found))
        return self.named([known[number] for number in found], codes)


NONE = -1
TIME = pa.timestamp("us", "UTC")
_CONSOLIDATIONS = [mode.name.lower() for mode in Consolidation]
_TARGETS = [target.name.lower() for target in WireQueryTarget]
_DIRECTIONS = ("opener", "acceptor")


def _integer(field: str, valid: Callable[[ChunkView], Any]) -> Callable[[ChunkView], pa.Array]:
    return lambda v: v.numbered(pa.int64(), v.rows[field], valid(v))


def _present(field: str) -> Callable[[ChunkView], Any]:
    return lambda v: v.rows[field] != 0


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _direction(side: StreamSide) -> str | None:
    opener = side.conversation.opener
    return None if opener is None else _DIRECTIONS[opener != side.number]


def _of_side(
    value: Callable[[StreamSide], Any], kind: pa.DataType
) -> Callable[[ChunkView], pa.Array]:
    return lambda v: v.of_side(value, kind)


_MAKERS: dict[str, Callable[[ChunkView], pa.Array]] = {
    "packet_time": lambda v: v.numbered(TIME, v.times // 1000),
    "packet": lambda v: v.numbered(pa.int64(), v.numbers),
    "stream": _of_side(lambda side: side.conversation.number, pa.int32()),
    "src": _of_side(lambda side: side.end[0], pa.string()),
    "src_port": _of_side(lambda side: side.end[1], pa.int32()),
    "dst": _of_side(lambda side: side.other.end[0], pa.string()),
    "dst_port": _of_side(lambda side: side.other.end[1], pa.int32()),
    "protocol": _of_side(lambda side: side.conversation.protocol, pa.string()),
    "direction": _of_side(_direction, pa.string()),
    "src_zid": _of_side(lambda side: _text(side.zid), pa.string()),
    "dst_zid": _of_side(lambda side: _text(side.other.zid), pa.string()),
    "message": ChunkView.messages,
    "body": ChunkView.bodies,
    "lane": lambda v: v.numbered(pa.int8(), v.rows["lane"] & qos.PRIORITY_BITS, v.in_lane()),
    "reliable": lambda v: v.booleans(v.rows["lane"] & LANE_RELIABLE, v.in_lane()),
    "sn": _integer("sn", ChunkView.in_lane),
    "scope": lambda v: v.numbered(pa.int32(), v.rows["scope"], v.has_key()),
    "mapping": ChunkView.mappings,
    "suffix": lambda v: v.spelled("suffix", pa.string(), v.has_key()),
    "key": lambda v: v.prefixed("suffix", pa.string(), v.prefix_of, v.chunk.prefixes),
    "payload": lambda v: v.spelled("payload", pa.binary(), v.rows["payload"] != 0),
    "encoding": lambda v: v.encodings[0],
    "schema": lambda v: v.encodings[1],
    "timestamp": ChunkView.sample_times,
    "timestamp_ntp64": lambda v: v.numbered(
        pa.int64(), v.rows["time"].view(np.int64), v.rows["clock"] != 0
    ),
    "timestamp_id": lambda v: v.zid("clock"),
    "source_id": lambda v: v.zid("source"),
    "source_entity": _integer("source_eid", _present("source")),
    "source_sn": _integer("source_sn", _present("source")),
    "attachment": lambda v: v.spelled("attachment", pa.binary(), v.rows["attachment"] != 0),
    "priority": lambda v: v.numbered(pa.int8(), v.rows["qos"] & qos.PRIORITY_BITS, v.with_qos()),
    "congestion_control": ChunkView.congestion,
    "express": lambda v: v.booleans(v.rows["qos"] & qos.EXPRESS, v.with_qos()),
    "request_id": _integer("request_id", ChunkView.requests),
    "target": ChunkView.targets,
    "consolidation": ChunkView.consolidations,
    "parameters": lambda v: v.spelled("parameters", pa.string(), v.rows["parameters"] != 0),
    "budget": _integer("budget", _present("budget")),
    "timeout_ms": ChunkView.timeouts,
    "responder_id": lambda v: v.zid("responder"),
    "responder_entity": _integer("responder_eid", _present("responder")),
    "first": lambda v: v.fragment_flag(FLAG_FIRST),
    "more": lambda v: v.fragment_flag(FLAG_MORE),
    "drop": lambda v: v.fragment_flag(FLAG_DROP),
    "fragments": lambda v: v.numbered(pa.int32(), v.fragments, v.fragments > 0),
    "wire_bytes": lambda v: v.numbered(pa.int32(), v.rows["end"] - v.rows["start"]),
    "detail": ChunkView.details,
}


class RowCollector:
    """Builder of record batches: collects rows and sorts them."""

    def __init__(self, columns: Sequence[str] | None, max_rows: int, report: Report) -> None:
        unknown = set(columns or ()) - set(CAPTURE.names)
        if unknown or max_rows < 1:
            problem = (
                f"no column {', '.join(sorted(unknown))}; there are {', '.join(CAPTURE.names)}"
            )
            raise ValueError(
                problem if unknown else f"a batch has one row at least, not {max_rows}"
            )
        wanted = CAPTURE.names if columns is None else list(columns)
        self.schema = pa.schema([CAPTURE.field(name) for name in wanted])
        self.sides: dict[int, StreamSide] = {}
        self._makers = [_MAKERS[name] for name in wanted]
        self._max_rows = max_rows
        self._report = report
        self._keys = CaptureKeys(report)
        self._nulls: dict[pa.DataType, pa.Array] = {}
        self._same: dict[str, pa.Array] = {}
        self._start()

    def _start(self) -> None:
        self._parts: list[Part] = []
        self._buffers: list[Bytes] = []
        self._rows = self._bytes = self._base = 0

    def add(
        self,
        side: StreamSide,
        rows: Rows,
        data: Bytes,
        numbers: Numbers,
        times: Numbers,
        fragments: int = 0,
    ) -> None:
        """Add rows of `side`, whose arrays belong to the collector from then on."""
        if not self._buffers or self._buffers[-1] is not data:
            self._base = self._bytes
            self._buffers.append(data)
            self._bytes += len(data)
        self.sides[side.code] = side
        self._parts.append(Part(side.code, rows, self._base, numbers, times, fragments))
        self._rows += len(rows)

    @property
    def full(self) -> bool:
        return self._rows >= MAX_HELD_ROWS or self._bytes >= MAX_HELD_BYTES

    def flush(self) -> Iterator[pa.RecordBatch]:
        if not self._parts:
            return
        data = _concatenated(self._buffers)
        data.flags.writeable = False
        chunk = CaptureChunk(self._parts, data, self._keys, details="detail" in self.schema.names)
        self._start()
        for start, stop in chunk.cuts(self._max_rows):
            view = ChunkView(self, chunk, start, stop)
            self._report.rows += view.size
            arrays = [make(view) for make in self._makers]
            if not arrays:
                yield pa.RecordBatch.from_struct_array(pa.array([{}] * view.size, pa.struct([])))
            else:
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self.sides.clear()

    def nulls(self, kind: pa.DataType, size: int) -> pa.Array:
        """Return a column of nulls, which is cached: most columns of most batches are null."""
        if kind not in self._nulls:
            self._nulls[kind] = pa.nulls(self._max_rows, kind)
        return self._nulls[kind].slice(0, size)

    def same(self, text: str | None, size: int) -> pa.Array:
        """Return a column of one text for every row, cached while it is in use."""
        if text is None:
            return self.nulls(pa.string(), size)
        known = self._same.pop(text, None)
        if known is None or len(known) < size:
            known = pa.repeat(pa.scalar(text, pa.string()), size)
        self._same[text] = known
        while len(self._same) > MAX_SAME:
            del self._same[next(iter(self._same))]
        return known.slice(0, size)


def _concatenated(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _distinct(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the distinct numbers in order; fast if all are equal or sorted."""
    changes = np.flatnonzero(numbers[1:] != numbers[:-1])
    if len(changes) * 4 < len(numbers):
        numbers = numbers[np.append(0, changes + 1)]
    return np.unique(numbers)


def _where(valid: npt.NDArray[np.bool_], codes: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    return np.where(valid, codes.astype(np.int32), np.int32(NONE))


def _bitmap(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """Return Arrow's validity: one bit per value; None if all are true."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
