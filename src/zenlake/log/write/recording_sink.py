"""The recorder's sink: copies received messages into the open block; its thread commits blocks.

Knows blocks, losses, group commit and back-pressure. Does not know files (writer.py), and makes
no `Sample` of a message that was received from a link.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from zenlake.api.pubsub.subscriber import RunSink
from zenlake.api.sinks import BoundedSink, call_each
from zenlake.api.values.sample import PLAIN, Sample
from zenlake.errors import LinkError, SessionEnded, ZError
from zenlake.log import format as layout
from zenlake.log.block import Loss, OpenBlock, SourceLink
from zenlake.log.format import Mark
from zenlake.log.write.source_gaps import SourceGap, SourceTracker
from zenlake.log.write.writer import LogWriteError, Writer
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import CloseReason, Mapping, WirePriority, WireWhatAmI
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    from zenlake.keytable import KeyTable
    from zenlake.runtime.local_delivery import RawPush
    from zenlake.runtime.session_face import SessionFace
    from zenlake.runtime.transport_session import TransportSession
    from zenlake.wire.push_run import PushRun

log = logging.getLogger("zenlake.log")

SYNC_SECONDS = 0.005  # Longest time that a sample waits for a commit.
SYNC_BYTES = 1 << 20  # Size of the open block that starts a commit at once.
LINK_TRIES = 4  # A full block is sealed, and a link whose ids changed is renumbered: then again.
META_BYTES = 4 << 20  # Size of key entries at which a block is sealed.
BLOCK_BYTES = 4 << 20  # Size of data at which a block is sealed, even while writing fails.
KEPT_BUFFERS = 4  # Buffers of written blocks that are kept for new blocks.
WAITING_BYTES = 64 << 20  # Bytes not yet durable above which the network is not read.
RETRY_SECONDS = 0.5  # Seconds between two attempts to write after a failure.
LAST_RETRY_SECONDS = 0.05  # Seconds between two attempts while the sink is closing.
MAX_LOSSES = 65_536  # Upper bound on the loss records of a commit; more are only counted.
CLOSE_SECONDS = 10.0  # Seconds that `close` goes on trying while writing fails.
MAX_MESSAGE_BYTES = layout.MAX_BLOCK_BYTES - (8 << 20)  # Leaves room for keys and entries.
MAX_NAMES_BYTES = 64 << 20  # Upper bound on the key prefixes of one frame.

_LANE_RELIABLE = 0x08
_OWN_SESSION = SourceLink(0, 0, b"")
_SCOPE = 0xFFFF
_FULL_KEY = int(Mapping.SENDER) << 16


class WireKey(NamedTuple):
    """A key as a link's messages have it."""

    number: int
    "Mapping and scope as one number (see keytable.number_of)."
    suffix: bytes
    prefix: bytes
    "The text that the scope stands for."


class RecordingSink(RunSink, BoundedSink[Any]):
    """A recorder's subscriber sink: one open block, one writer, one committing thread."""

    messages_from = 0

    def __init__(
        self,
        writer: Writer,
        *,
        sync_seconds: float = SYNC_SECONDS,
        sync_bytes: int = SYNC_BYTES,
        sync_samples: int | None = None,
        overflow: str = "block",
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(WAITING_BYTES)
        if overflow not in ("block", "drop"):
            raise ZError(f"overflow is 'block' or 'drop', not {overflow!r}")
        if sync_seconds < 0 or sync_bytes < 1 or (sync_samples is not None and sync_samples < 1):
            raise ZError("sync_seconds is at least 0, sync_bytes and sync_samples at least 1")
        self.writer = writer
        self.mark: Mark = writer.mark
        self.failure: Exception | None = None
        self.received = writer.next
        "The offset of the next received sample."
        self.bytes = 0
        self.losses: Counter[str] = Counter()
        "Number of loss records by kind."
        self.missing: Counter[str] = Counter()
        "Number of missing samples by kind of loss."
        self.unrecorded = 0
        "Number of loss records that MAX_LOSSES kept out of the log."
        self.sources = SourceTracker()
        self.waiting = 0
        "Bytes that are not durable yet."
        self._sync_seconds = sync_seconds
        self._sync_bytes = sync_bytes
        self._sync_samples = sync_samples
        self._overflow = overflow
        self._clock = clock
        self._work = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        self._block = OpenBlock()
        self._since = 0.0
        "Time of the oldest sample that no commit has taken, on the monotonic clock."
        self._sealed: deque[OpenBlock] = deque()
        self._buffers: list[bytearray] = []
        "Buffers of written blocks, for new ones."
        self._links: dict[Any, SourceLink] = {None: _OWN_SESSION}
        self._serial = 0
        self._dropped_in_a_row = 0
        "Samples dropped since the last one that was taken."
        self._open_losses = 0
        self._gave_up = False
        "Nothing becomes durable any more."
        self._close_until = 0.0
        self._ending = threading.Event()
        if writer.next:  # Samples sent since the last recording are missing.
            with self._lock:
                self._record_loss(Loss(layout.LINK, clock(), b""))
        self._thread = threading.Thread(target=self._run_commits, name="zenlake log", daemon=True)
        self._thread.start()

    # ---- taking messages, on the I/O thread or the thread of a local put

    def push_run(
        self, run: "PushRun", rows: Any, keys: "KeyTable", port: "SessionFace | None"
    ) -> bool:
        chosen = run.rows[run.first : run.stop]
        if rows is None:
            data = run.data[int(chosen[0]["start"]) : int(chosen[-1]["end"])]
            names = run.keys
        else:
            import numpy as np

            from zenlake.wire.push_run import copy_messages

            data = copy_messages(run, rows)
            names = [run.keys[code] for code in np.unique(run.codes[rows]).tolist()]
            chosen = chosen[rows]
        named = [WireKey(number, suffix, keys.prefix(number) or b"") for number, suffix in names]
        reliable = bool(int(chosen[0]["lane"]) & _LANE_RELIABLE)
        numbered = () if run.plain else self.sources.gaps(chosen, run.data)
        return self._append(port, reliable, named, len(chosen), data, numbered)

    def push_message(self, message: "RawPush") -> bool:
        port, reliable, name, data, start, end, push = message
        number, suffix = (name, b"") if isinstance(name, int) else name
        prefix = (port.face.keys.prefix(number) or b"") if number & _SCOPE else b""
        gaps = self._gaps_of(push)
        view = memoryview(data)[start:end]
        return self._append(port, reliable, [WireKey(number, suffix, prefix)], 1, view, gaps)

    def push_one(self, sample: Sample) -> bool:
        push = sample._push()
        body = Put(bytes(sample.payload)) if push is PLAIN else push.body
        key = str(sample.key_expr)
        w = ByteWriter()
        NETWORK.write(w, replace(push, key=WireExpr(0, key, Mapping.SENDER), body=body))
        names = [WireKey(_FULL_KEY, key.encode(), b"")]
        return self._append(None, True, names, 1, memoryview(w.out), self._gaps_of(push))

    def _gaps_of(self, push: Push | None) -> Iterable[SourceGap]:
        source = None if push is None else push.body.source_info
        return () if source is None else self.sources.gap(source)

    def _append(
        self,
        port: "SessionFace | None",
        reliable: bool,
        names: list[WireKey],
        count: int,
        data: memoryview,
        gaps: Iterable[SourceGap],
    ) -> bool:
        """Append messages to the open block. Return False if the network should not be read now."""
        now = self._clock()
        with self._lock:
            named = sum(len(name.prefix) for name in names)
            if self._closed or not self._fits(len(data), named):
                self.dropped += count
                self._dropped_in_a_row += count
                # The dropped samples get a loss record of their own.
                for gap in gaps:
                    self._record_source_gap(gap._replace(row=0), now)
                return True
            self._record_dropped(now)
            link = self._link_index(port, names)
            for gap in gaps:
                self._record_source_gap(gap, now)
            if not self._block:
                self._start_sync_timer()
            self._block.add(link, reliable, now, count, data)
            self.received += count
            self.bytes += len(data)
            self.waiting += len(data)
            if self._is_full():
                self._work.notify()
            return self._has_room()

    def _fits(self, size: int, named: int) -> bool:
        """Return whether messages of `size` bytes, with `named` bytes of prefixes, may be taken."""
        if size > MAX_MESSAGE_BYTES or named > MAX_NAMES_BYTES:
            return False
        if self._block.size + size > BLOCK_BYTES:
            self._seal_block()
        return self._overflow == "block" or self.waiting < WAITING_BYTES

    def _link_index(self, port: "SessionFace | None", names: list[WireKey]) -> int:
        """Add the link and the keys to the open block, and return the link's number there."""
        for _ in range(LINK_TRIES):
            index = self._block.link(self._link(port))
            if index is None or self._block.meta >= META_BYTES:
                self._seal_block()
                continue
            if all(self._block.key(index, *name) for name in names):
                return index
            del self._links[port]  # An id has been declared again, for another key.
        raise AssertionError("a new link has no keys that contradict")

    def _link(self, port: "SessionFace | None") -> SourceLink:
        """Return the link of a face, with a new serial number if it is not known."""
        link = self._links.get(port)
        if link is None:
            self._serial += 1
            agreed = port.session.agreement if port is not None else None
            raw = agreed.zid.raw if agreed is not None else b""
            link = SourceLink(self._serial, int(agreed.whatami) if agreed is not None else 0, raw)
            self._links[port] = link
        return link

    def _is_full(self) -> bool:
        """Return whether the open block is large enough to be committed at once."""
        block = self._block
        return block.size >= self._sync_bytes or (
            self._sync_samples is not None and block.count >= self._sync_samples
        )

    def _start_sync_timer(self) -> None:
        """Let the committer wait SYNC_SECONDS from now: the first entry of a block was added."""
        if not self._sealed:
            self._since = time.monotonic()
            self._work.notify()

    def _seal_block(self) -> None:
        """Queue the open block for the next commit, and open another one."""
        if self._block:
            self._sealed.append(self._block)
            self._block = OpenBlock(self._buffers.pop() if self._buffers else None)
            self._work.notify()

    # ---- loss

    def _record_source_gap(self, gap: SourceGap, now: int) -> None:
        first, missing = gap.first, gap.missing
        loss = Loss(layout.SOURCE, now, gap.id, first, gap.last, missing, gap.entity)
        self._record_loss(loss, gap.row)

    def lost(
        self,
        session: "TransportSession",
        priority: WirePriority,
        reliable: bool,
        first: int,
        missing: int,
    ) -> None:
        """Record sequence numbers of a lane that were not received."""
        lane = int(priority) | (_LANE_RELIABLE if reliable else 0)
        zid, last = session.zid.raw, first + missing - 1 & session.agreement.sn_mask
        with self._lock:
            self._record_loss(
                Loss(layout.LANE, self._clock(), zid, first, last, missing, lane=lane)
            )

    def closed(self, session: "TransportSession", why: SessionEnded) -> None:
        """Record the end of a link: samples sent until the next link are missing.

        A client or peer that closed its session in order sends no more, so nothing is recorded.
        """
        broke = isinstance(why.__cause__, LinkError) or why.reason != CloseReason.GENERIC
        goodbye = why.by_peer and not broke and session.agreement.whatami is not WireWhatAmI.ROUTER
        with self._lock:
            self._links.pop(session.face, None)
            if not goodbye:
                self._record_loss(Loss(layout.LINK, self._clock(), session.zid.raw))

    def _record_dropped(self, now: int) -> None:
        if self._dropped_in_a_row:
            self._record_loss(Loss(layout.DROPPED, now, b"", missing=self._dropped_in_a_row))
            self._dropped_in_a_row = 0

    def _record_loss(self, loss: Loss, ahead: int = 0) -> None:
        """Count a loss, and add its record to the open block."""
        if self._closed:
            return
        kind = layout.LOSS_KINDS[loss.kind]
        self.losses[kind] += 1
        self.missing[kind] += max(loss.missing, 0)
        if self._open_losses == MAX_LOSSES:
            self.unrecorded += 1
            return
        if not self._block:
            self._start_sync_timer()
        self._open_losses += 1
        self._block.add_loss(loss, ahead)

    # ---- committing, on the sink's own thread

    def _run_commits(self) -> None:
        while True:
            with self._work:
                while (wait := self._seconds_until_due()) != 0.0:
                    self._work.wait(wait)
                blocks = self._take_blocks()
                if not blocks and self._closed:
                    return
            self._commit(blocks)

    def _seconds_until_due(self) -> float | None:
        """Return how long the next commit may wait; None: until something is to be written."""
        if self._closed or self._sealed or (self._block and self._is_full()):
            return 0.0
        if not self._block:
            return None
        return max(0.0, self._since + self._sync_seconds - time.monotonic())

    def _take_blocks(self) -> list[OpenBlock]:
        self._seal_block()
        blocks = list(self._sealed)
        self._sealed.clear()
        self._open_losses = 0
        return blocks

    def _commit(self, blocks: list[OpenBlock]) -> None:
        """Write blocks, again and again until it works or `close` runs out of time."""
        while True:
            try:
                mark = self.writer.write(blocks)
                break
            except Exception as error:
                if self.failure is None:
                    defect = not isinstance(error, LogWriteError)
                    log.error("nothing is acknowledged: %s", error, exc_info=defect)
                with self._lock:
                    self.failure = error
                    if self._closed and time.monotonic() >= self._close_until:
                        self._give_up()
                        return
                if self._ending.wait(RETRY_SECONDS):
                    time.sleep(LAST_RETRY_SECONDS)
        with self._lock:
            if self.failure is not None:
                log.warning("writing works again: offset %d is durable", mark.offset)
            self.failure = None
            self.mark = mark
            self.waiting -= sum(block.size for block in blocks)
            used = [block.buffer for block in blocks if len(block.buffer) <= 2 * BLOCK_BYTES]
            self._buffers += used[: KEPT_BUFFERS - len(self._buffers)]
            self._changed.notify_all()
            calls = self._notify_room()
        call_each(calls)

    def _give_up(self) -> None:
        self._sealed.clear()
        self._block = OpenBlock()
        self._gave_up = True
        self._changed.notify_all()
        self.dropped += self.received - self.mark.offset
        log.error("%d samples were not made durable", self.received - self.mark.offset)

    # ---- room

    def _has_room(self) -> bool:
        return self._overflow == "drop" or self.waiting < WAITING_BYTES

    def _is_half_empty(self) -> bool:
        return self._overflow == "drop" or 2 * self.waiting <= WAITING_BYTES

    # ---- waiting for durability, and closing

    def durable(self, timeout: float | None = None, target: int | None = None) -> Mark:
        """Wait until all samples before offset `target` are durable (default: all received)."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            target = self.received if target is None else target
            while self.mark.offset < target:
                left = None if until is None else until - time.monotonic()
                if (left is not None and left <= 0) or self._gave_up:
                    why = f": {self.failure}" if self.failure is not None else ""
                    raise ZError(f"offset {target} is not durable, only {self.mark.offset} is{why}")
                self._changed.wait(left)
            return self.mark

    def close(self) -> None:
        """Take no more samples; the thread makes those already taken durable and ends."""
        with self._lock:
            self._record_dropped(self._clock())
            self._closed = True
            self._close_until = time.monotonic() + CLOSE_SECONDS
            self._ending.set()
            self._work.notify_all()
            self._changed.notify_all()
            calls = self._notify_room()
        call_each(calls)

    def join(self, timeout: float | None) -> bool:
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _after_fork(self) -> None:
        super()._after_fork()
        self._work = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        self._gave_up = True
