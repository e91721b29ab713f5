"""Codec, scan, Arrow and the emitter, on the same messages."""

from collections.abc import Callable, Iterable

import pyarrow as pa

from bench.figures import Figure, Figures, median_seconds
from zenlake.columnar.read import SampleBatcher, record_batches
from zenlake.columnar.write import push_columns
from zenlake.keytable import KeyTable
from zenlake.wire.batch import TransportMessage, read_batch, write_batch
from zenlake.wire.emit import emit
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.enums import Mapping, WirePriority
from zenlake.wire.frame import Frame, LaneSettings
from zenlake.wire.framing import Framing, split, to_stream
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.scan import Scanner
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

BATCH_BYTES = 60_000
MESSAGES = 500_000
KEYS = 10
ZID = WireZenohId(bytes(range(1, 17)))
OBJECT_BATCHES = 20


def declared(number: int) -> WireExpr:
    """Return a key by the id that its publisher declared before."""
    return WireExpr(1 + number % KEYS, "", Mapping.SENDER)


def spelled(number: int) -> WireExpr:
    """Return a key in full, as an undeclared put sends it."""
    return WireExpr(0, f"robot/{number % KEYS}/pose", Mapping.SENDER)


def key_table() -> KeyTable:
    table = KeyTable()
    for number in range(KEYS):
        table.declare(Mapping.SENDER, declared(number).scope, f"robot/{number}/pose")
    return table


def traffic(
    key: Callable[[int], WireExpr], sizes: range, count: int
) -> tuple[bytes, list[list[TransportMessage]], int]:
    """Return a stream of about `count` PUSHes, its messages as objects, and their exact count."""
    batches: list[list[TransportMessage]] = []
    frame, room, total = Frame(0), BATCH_BYTES, 0
    for number in range(count):
        size = sizes[number % len(sizes)]
        if room < size + 40:
            batches.append([frame])
            frame, room = Frame(len(batches)), BATCH_BYTES
        frame.messages.append(Push(key(number), Put(bytes(size))))
        room -= size + 20
        total += 1
    batches.append([frame])
    return to_stream([write_batch(batch) for batch in batches], Framing.STREAM), batches, total


def scan_all(data: bytes, scanner: Scanner) -> int:
    return sum(len(part.rows) for part in scanner.chunks(data))


def decode_all(data: bytes) -> int:
    return sum(len(read_batch(data[start:end])) for start, end in split(data, Framing.STREAM))


def figures() -> Figures:
    yield from small_messages("declared keys", declared)
    yield from small_messages("keys in full", spelled)
    yield from loaded()
    yield from one_size()


def small_messages(name: str, key: Callable[[int], WireExpr]) -> Figures:
    """Measure every stage on PUSHes of 8 to 64 bytes."""
    scanner, batcher, keys, lane = Scanner(), SampleBatcher(), key_table(), LaneSettings()
    data, batches, count = traffic(key, range(8, 65), MESSAGES)
    few = batches[:OBJECT_BATCHES]  # The object codec is slow: it gets fewer messages.
    del batches  # A million live objects would slow down every garbage collection.
    few_data = to_stream([write_batch(batch) for batch in few], Framing.STREAM)
    few_count = sum(len(m.messages) for batch in few for m in batch if isinstance(m, Frame))
    (rows,) = record_batches(few_data, keys, batcher=SampleBatcher(few_count))
    columns = push_columns(rows)
    took = median_seconds(
        {
            "scan": lambda: scan_all(data, scanner),
            "arrow": lambda: rows_of(record_batches(data, keys, batcher=batcher, scanner=scanner)),
            "decode": lambda: decode_all(few_data),
            "encode": lambda: [write_batch(batch) for batch in few],
            "emit": lambda: [len(part.data) for part in emit(columns, lane)],
            "convert": lambda: push_columns(rows),
        }
    )
    million = 1e6
    scanned, decoded = count / took["scan"], few_count / took["decode"]
    yield Figure(f"scan, PUSH 8-64 B, {name}", scanned / million, "M messages/s", 20)
    yield Figure(f"scan beside the object codec, {name}", scanned / decoded, "x", 100)
    arrow = count / took["arrow"] / million
    yield Figure(f"scan to RecordBatch, 8-64 B, {name}", arrow, "M rows/s", 8)
    emitted = few_count / took["emit"] / million
    yield Figure(f"columns to wire, 8-64 B, {name}", emitted, "M messages/s", 8)
    converted = few_count / took["convert"] / million
    yield Figure(f"RecordBatch to columns, 8-64 B, {name}", converted, "M rows/s")
    yield Figure(f"object codec, decode PUSH, {name}", decoded, "messages/s", 250_000)
    encoded = few_count / took["encode"]
    yield Figure(f"object codec, encode PUSH, {name}", encoded, "messages/s", 250_000)


def rows_of(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def stamped(number: int) -> Push:
    """Return a PUSH as a router forwards a JSON value."""
    stamp = WireTimestamp((1_700_000_000 << 32) + number * 1000, ZID)
    return Push(declared(number), Put(bytes(36), stamp, WireEncoding.parse("application/json")))


def everything(number: int) -> Push:
    push = stamped(number)
    push.qos = QoS(WirePriority.REAL_TIME)
    push.body.source_info = WireSourceInfo(WireEntityId(ZID, 3), number)
    push.body.attachment = bytes(8)
    return push


def loaded() -> Figures:
    """Measure the scan of PUSHes that carry more than a payload."""
    yield _scan_figure("timestamp, encoding", stamped)
    yield _scan_figure("all that a sample can have", everything)


def _scan_figure(name: str, message: Callable[[int], Push]) -> Figure:
    per_batch, batches = 400, max(1, MESSAGES // 2_000)
    frames = (
        Frame(b, messages=[message(b * per_batch + n) for n in range(per_batch)])
        for b in range(batches)
    )
    data = to_stream([write_batch([frame]) for frame in frames], Framing.STREAM)
    scanner = Scanner()
    took = median_seconds({"scan": lambda: scan_all(data, scanner)})
    rate = per_batch * batches / took["scan"] / 1e6
    return Figure(f"scan, PUSH with {name}", rate, "M messages/s")


def one_size() -> Figures:
    """Measure the emitter with payloads of 64 bytes, and the scan with payloads of 1 KiB."""
    data, _, count = traffic(declared, range(64, 65), MESSAGES)
    (rows,) = record_batches(data, key_table(), batcher=SampleBatcher(count, 1 << 28))
    columns, scanner = push_columns(rows), Scanner()
    large, _, _ = traffic(declared, range(1024, 1025), MESSAGES // 10)
    took = median_seconds(
        {
            "emit": lambda: [len(part.data) for part in emit(columns, LaneSettings())],
            "scan": lambda: scan_all(large, scanner),
        }
    )
    yield Figure("columns to wire, 64 B", count / took["emit"] / 1e6, "M messages/s", 8)
    yield Figure("scan, 1 KiB payloads", len(large) / took["scan"] / 1e9, "GB/s", 1.5)
