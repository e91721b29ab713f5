"""Arrow: a handler that yields record batches, and `put_batch` for record batches.

Knows the schema of `columnar/` and its limits. Runs no Python per sample. Arrow, NumPy and Numba
are loaded on first use.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from zenlake.api.pubsub.subscriber import RunSink
from zenlake.api.sinks import BoundedSink, Channel, call_each
from zenlake.api.values.encoding import Encoding
from zenlake.api.values.enums import Locality
from zenlake.api.values.sample import PLAIN, Sample, push_of
from zenlake.errors import EncodeError, MessageTooLarge, SessionEnded, ZError
from zenlake.keyexpr import validate
from zenlake.keytable import KeyTable
from zenlake.runtime import kernel_loader
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import Mapping, WirePriority
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from zenlake.api.pubsub.outbound_route import OutboundRoute
    from zenlake.api.session_core import SessionCore
    from zenlake.columnar.read import SampleBatcher
    from zenlake.columnar.record_batch import IntoRecordBatch, RecordBatch
    from zenlake.runtime.exchange import Exchange
    from zenlake.runtime.local_delivery import RawPush
    from zenlake.runtime.session_face import SessionFace
    from zenlake.wire.kernels.emit import PushColumns
    from zenlake.wire.push_run import PushRun
    from zenlake.wire.scan import Scanner

BATCHES = 4  # Full batches that may wait to be read.
LARGE_BYTES = 16 << 10  # Least size of a sample that is scanned alone, as its encoded message.
# Bytes of single samples that are collected before they are scanned together.
SINGLES_BYTES = 64 << 10
MAX_ROWS = 65_536
MAX_BYTES = 16 << 20
MAX_AGE = 0.1


class ArrowBatches(RunSink, BoundedSink[Any], Channel["RecordBatch"]):
    """Handler for `declare_subscriber` that yields samples as Arrow record batches.

    A batch is complete when it has `max_rows` samples or `max_bytes` of payloads, or when its first
    sample has waited `max_age` seconds. While `batches` full ones wait, the network is not read, or
    with `overflow="drop"` samples are dropped and counted (`dropped`). One handler serves one
    subscriber. Making the first one loads the kernels, which are compiled once per installation.

    >>> ArrowBatches(max_rows=1000, max_age=0.5)
    ArrowBatches(max_rows=1000, max_bytes=16777216, max_age=0.5, batches=4, overflow='block')
    """

    messages_from = LARGE_BYTES

    def __init__(
        self,
        *,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        max_age: float = MAX_AGE,
        batches: int = BATCHES,
        overflow: Literal["block", "drop"] = "block",
    ) -> None:
        super().__init__(batches)
        if max_rows < 1 or max_bytes < 1 or batches < 1 or max_age < 0:
            raise ValueError("max_rows, max_bytes and batches are at least 1, max_age at least 0")
        if overflow not in ("block", "drop"):
            raise ValueError(f"overflow is 'block' or 'drop', not {overflow!r}")
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.max_age = max_age
        self.batches = batches
        self.overflow = overflow
        self._ready = threading.Condition(self._lock)
        self._open: SampleBatcher | None = None
        self._since = 0.0
        "Time at which the open batch got its first sample."
        self._spare: SampleBatcher | None = None
        "Batcher that was read out: it knows how much room a batch needs."
        self._full: deque[SampleBatcher] = deque()
        self._singles = bytearray()
        self._single_count = 0
        self._scanner: Scanner | None = None
        _load_kernels()

    def __repr__(self) -> str:
        names = ("max_rows", "max_bytes", "max_age", "batches", "overflow")
        return f"ArrowBatches({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    # ---- in, on the I/O thread or that of a local put

    def push_run(
        self,
        run: "PushRun",
        rows: "npt.NDArray[np.int64] | None",
        keys: "KeyTable",
        port: "SessionFace | None",
    ) -> bool:
        chosen = run.rows[run.first : run.stop]
        with self._lock:
            if self._closed:
                self.dropped += len(chosen)
                return True
            self._take_singles()
            self._append(chosen if rows is None else chosen[rows], run.data, keys)
            return self._has_room()

    def push_message(self, one: "RawPush") -> bool:
        port, reliable, _, whole, start, end, _ = one
        data = memoryview(whole)[start:end]
        with self._lock:
            if self._closed:
                self.dropped += 1
                return True
            self._take_singles()
            self._scan(data, port.face.keys, reliable)
            return self._has_room()

    def push_one(self, sample: Sample) -> bool:
        push = push_of(sample)
        body = Put(bytes(sample.payload)) if push is PLAIN else push.body
        w = ByteWriter()
        NETWORK.write(w, Push(WireExpr(0, str(sample.key_expr)), body, push.qos))
        with self._lock:
            if self._closed:
                self.dropped += 1
                return True
            if not self._single_count and self._open is None:
                self._note_start()
            self._singles += w.out
            self._single_count += 1
            if len(self._singles) >= SINGLES_BYTES or self._single_count >= self.max_rows:
                self._take_singles()
            return self._has_room()

    def _take_singles(self) -> None:
        """Move the collected single samples into the open batch."""
        if not self._single_count:
            return
        data, self._singles, self._single_count = bytes(self._singles), bytearray(), 0
        self._scan(memoryview(data), KeyTable(), True)

    def _scan(self, data: memoryview, keys: "KeyTable", reliable: bool) -> None:
        from zenlake.wire.scan import Scanner

        self._scanner = self._scanner or Scanner()
        for rows, _, error in self._scanner.bare(data, reliable=reliable):
            self._append(rows, data, keys)
            if error is not None:
                raise error

    def _append(self, rows: Any, data: memoryview, keys: "KeyTable") -> None:
        at, now = 0, time.time_ns()
        while at < len(rows):
            if self.overflow == "drop" and len(self._full) >= self.batches:
                self.dropped += len(rows) - at
                return
            batcher = self._open
            if batcher is None:
                batcher = self._open = self._spare or self._new_batcher()
                self._spare = None
                self._note_start()
            at = batcher.append(rows, data, keys, now, at, checked=True)
            if at < len(rows) or len(batcher) >= self.max_rows:
                self._full.append(batcher)
                self._open = None
                self._ready.notify()

    def _new_batcher(self) -> "SampleBatcher":
        from zenlake.columnar.read import SampleBatcher

        return SampleBatcher(self.max_rows, self.max_bytes)

    def _note_start(self) -> None:
        """Note the time of a batch's first sample, and wake a reader, which now has a deadline."""
        self._since = time.monotonic()
        self._ready.notify()

    def _has_room(self) -> bool:
        return len(self._full) < self.batches or self.overflow == "drop"

    def _is_half_empty(self) -> bool:
        return 2 * len(self._full) <= self.batches or self.overflow == "drop"

    # ---- out

    def recv(self) -> "RecordBatch":
        while True:
            with self._lock:
                batch, wait = self._next()
                if batch is None:
                    self._check_open()
                    self._ready.wait(wait)
                    continue
                calls = self._notify_room()
            return self._finish_batch(batch, calls)

    def try_recv(self) -> "RecordBatch | None":
        with self._lock:
            batch, _ = self._next()
            if batch is None:
                self._check_open()
                return None
            calls = self._notify_room()
        return self._finish_batch(batch, calls)

    def _next(self) -> "tuple[SampleBatcher | None, float | None]":
        """Return the next batch, or how long to wait for one (None: until a sample is received)."""
        if self._full:
            return self._full.popleft(), None
        if self._open is None and not self._single_count:
            return None, None
        left = self._since + self.max_age - time.monotonic()
        if left > 0 and not self._closed:
            return None, left
        self._take_singles()
        if self._full:
            return self._full.popleft(), None
        batcher, self._open = self._open, None
        return batcher, None

    def _finish_batch(
        self, batcher: "SampleBatcher", calls: Iterable[Callable[[], None]]
    ) -> "RecordBatch":
        call_each(calls)
        batch: RecordBatch = batcher.finish()
        self._spare = batcher
        return batch

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._ready.notify_all()
            calls = self._notify_room()
        call_each(calls)

    def abandon(self) -> None:
        with self._lock:
            waiting = [*self._full, *([self._open] if self._open is not None else [])]
            self.dropped += sum(map(len, waiting)) + self._single_count
            self._full.clear()
            self._open, self._singles, self._single_count = None, bytearray(), 0
        self.close()

    def _after_fork(self) -> None:
        super()._after_fork()
        self._ready = threading.Condition(self._lock)


# ---- out, many rows at once


def _load_kernels() -> None:
    """Load what an I/O thread needs for a batch, which must not wait for a compiler."""
    from zenlake.columnar import read

    kernel_loader.load()
    read.load()


def put_batch(core: "SessionCore", rows: "IntoRecordBatch", way: "OutboundRoute | None") -> int:
    """Publish every row, with the options of `way` if it is given; return the number of rows.

    MessageTooLarge: rows were too large for a session; all others have been sent.
    """
    from zenlake.columnar.write import split_lanes

    if core.exchange.closed:
        raise ZError("session closed")
    batch: pa.RecordBatch = rows
    if way is not None:
        batch = _with_publisher_columns(batch, way)
    elif "key" not in batch.schema.names:
        raise EncodeError("is missing: a sample needs a key", "column 'key'")
    refused: list[MessageTooLarge] = []
    for priority, reliable, lane in split_lanes(batch):
        refused += _put_lane(core, lane, priority, reliable, way)
    if refused:
        raise refused[0]
    return batch.num_rows  # type: ignore[no-any-return]


def _with_publisher_columns(batch: "pa.RecordBatch", way: "OutboundRoute") -> "pa.RecordBatch":
    """Return `batch` with the publisher's key, and its encoding and QoS if the batch has none."""
    import pyarrow as pa

    from zenlake.columnar.schema import CONGESTION_CONTROLS

    encoding, qos = Encoding.of(way.encoding), way.qos
    kind, _, schema = str(encoding).partition(";")
    given = {
        "key": str(way.key),
        "encoding": kind,
        "schema": schema or None,
        "priority": int(qos.priority),
        "congestion_control": CONGESTION_CONTROLS[int(qos.congestion_control)],
        "express": qos.express,
        "reliable": way.reliable,
    }
    names = set(batch.schema.names)
    if "encoding" in names:
        del given["encoding"], given["schema"]
    columns = {name: batch.column(name) for name in batch.schema.names if name != "key"}
    for name, value in given.items():
        if name not in columns and value is not None:
            columns[name] = pa.repeat(value, batch.num_rows)
    return pa.RecordBatch.from_pydict(columns)


def _put_lane(
    core: "SessionCore",
    rows: "pa.RecordBatch",
    priority: WirePriority,
    reliable: bool,
    way: "OutboundRoute | None",
) -> list[MessageTooLarge]:
    """Publish rows of one lane; return the error of each session for which rows were too large."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    exchange = core.exchange
    destination = way.destination if way is not None else Locality.ANY
    keys = pc.unique(rows.column("key")).cast(pa.string()).to_pylist()
    wanted: dict[SessionFace, dict[str, WireExpr]] = {}
    heard = False
    for key in keys:
        if key is None:
            continue  # Refused below, with the reason.
        validate(key)
        if destination is not Locality.SESSION_LOCAL:
            for port, wire in exchange.outbound_faces(key, way is not None):
                wanted.setdefault(port, {})[key] = wire
        if destination is not Locality.REMOTE:
            heard = heard or bool(core.subscribers.matching(key, local=True))
    # Every receiver of a row gets the same timestamp.
    first = exchange.reserve_stamps(rows.num_rows) if exchange.stamps else 0
    times = np.arange(first, first + rows.num_rows, dtype=np.uint64)
    if not wanted and not heard:
        # Raises for invalid rows, even without a subscriber.
        push_columns_of(exchange, rows, _full_text, times)
    refused: list[MessageTooLarge] = []
    for port, wires in wanted.items():
        part, of_part = rows, times
        if len(wires) < len(keys):
            chosen = pc.is_in(rows.column("key"), pa.array(list(wires), pa.string()))
            part = rows.filter(chosen)
            of_part = times[chosen.to_numpy(zero_copy_only=False)]
        columns = push_columns_of(exchange, part, wires.__getitem__, of_part)
        try:
            port.session.send_columns(columns, priority, reliable)
        except SessionEnded:
            exchange.dropped[DropReason.SESSION_CLOSED] += part.num_rows
        except MessageTooLarge as error:
            refused.append(error.within(str(port.session)))
    if heard:
        _deliver_here(core, push_columns_of(exchange, rows, _full_text, times))
    return refused


def push_columns_of(
    exchange: "Exchange",
    rows: "pa.RecordBatch",
    key_of: Callable[[str], WireExpr],
    times: "np.ndarray[tuple[int], np.dtype[np.uint64]]",
) -> "PushColumns":
    """Return the columns to send for `rows`; `times` fills missing timestamps if the session
    stamps.
    """
    from zenlake.columnar.write import push_columns

    columns = push_columns(rows, key_of)
    return exchange.stamp_columns(columns, times) if exchange.stamps else columns


def _full_text(key: str) -> WireExpr:
    return WireExpr(0, key, Mapping.SENDER)


def _deliver_here(core: "SessionCore", columns: "PushColumns") -> None:
    """Deliver to the session's own subscribers; wait while a sink has no room."""
    from zenlake.wire.emit import Emitter

    emitter = Emitter(columns, None)
    while not emitter.done:
        data = bytes(emitter.next().data)
        for sink in core.exchange.delivery.deliver_encoded(
            data, partial(core.subscribers.matching, local=True)
        ):
            sink.wait_room()  # type: ignore[attr-defined]
