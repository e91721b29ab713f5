"""The sending half of a transport session: messages from any thread into the outbox and the link.

Knows who writes (the caller if the link is idle, else the I/O thread) and how long each congestion
control waits for room. Does not know what messages mean; receiving is in transport_session.py.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from zenlake.errors import LinkError, MessageTooLarge, SessionClosed, SessionEnded
from zenlake.runtime.reactor import EventLoop
from zenlake.transport.counters import Counters
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.fast_path import MAX_LENGTH_BYTES, FastPath, HeaderCache
from zenlake.transport.lane import OutboundLane
from zenlake.transport.outbox import (
    BLOCK_SECONDS,
    DROP_SECONDS,
    FLUSH_SECONDS,
    FRAGMENT_DROP_SECONDS,
    IntegerSequence,
    Outbox,
    PushResult,
    may_drop,
)
from zenlake.wire.cursor import ByteReader
from zenlake.wire.enums import CloseReason, WireCongestionControl, WirePriority
from zenlake.wire.frame import LaneSettings
from zenlake.wire.locator import Locator
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.qos import EXPRESS, PRIORITY_BITS, QoS

if TYPE_CHECKING:
    from zenlake.runtime.node import Node
    from zenlake.shm.session import ShmSession
    from zenlake.wire.emit import Emitter
    from zenlake.wire.kernels.emit import Envelope, PushColumns

log = logging.getLogger("zenlake.runtime")

MAX_BLOCK_SECONDS = 60.0
"""Upper bound on a BLOCK wait even while the link makes progress: other senders may take all the
room. The time in which a message in fragments has the lane does not count."""
AGAIN_SECONDS = 0.1
"""Interval between attempts to write to a link that takes nothing. A kernel calls a socket writable
only when a third of its buffer is free, which on a thin pipe may take longer than BLOCK_SECONDS."""
FLUSH_SLACK = 0.25e-3  # Seconds after the flush time in which a caller may still write its batch.
COLUMNS_BYTES = 256 << 10  # Bytes of rows that are encoded at once.
SHM_SECONDS = 1e-3  # Upper bound on a put's wait for free shared memory.
SHM_STEP = 50e-6  # Interval between two looks for it.
SHM_PAUSE = 20e-3  # Time after a wait in vain in which puts do not wait for it.

T = TypeVar("T")
PushAttempt = Callable[[float], PushResult]
"A push that is tried again while there is no room: takes the time."


class BatchEmitter(Protocol):
    """A writer of whole batches for one lane."""

    @property
    def done(self) -> bool: ...
    def next(self, sn: int, chunk_bytes: int) -> tuple[memoryview, int, int]:
        """Write batches from the sequence number `sn` on; return their bytes, the number of
        messages in them, and the sequence number that follows."""


class BatchSource(Protocol):
    """The core of a session or of a multicast group, as its sending half needs it."""

    counters: Counters

    @property
    def outbox(self) -> Outbox | None: ...
    def pull(
        self, now: float, full_only: bool = False, /
    ) -> bytes | bytearray | memoryview | None: ...


class OutboundLink(Protocol):
    """The link of a session or of a multicast group, as its sending half needs it."""

    remote: Locator

    @property
    def unsent(self) -> bool: ...
    def send(self, data: bytes | bytearray | memoryview, /) -> int: ...


class SendingSession(ABC):
    """The sending half of a `TransportSession`. Public methods may be called on any thread."""

    shm: "ShmSession | None" = None
    "Shared memory with the peer; None: there is none."

    _hides = False
    "Whether bytes may wait inside the link, where the reactor cannot see them."

    def __init__(self, node: "Node", link: OutboundLink) -> None:
        self.link = link
        self.over: SessionEnded | None = None
        "Why the session ended, once it has."
        self._node = node
        self._reactor: EventLoop = node.reactor
        self._core: BatchSource | None = None
        "The protocol's state machine, once the link's own handshake is over."
        self._outbox: Outbox | None = None
        "The core's outbox while the session is open and not being closed."
        self._closing: SessionEnded | None = None
        "Why the session is being closed, once close() was called."
        self._lock = threading.RLock()
        "Guards the outbox and writing."
        self._room = threading.Condition(self._lock)
        "Notified when lanes may have room again."
        self._waiters = 0
        self._first_waiting: set[int] = set()
        "Priorities in which a BLOCK_FIRST message waits: the next such message is dropped."
        self._rest: memoryview | None = None
        "The rest of a batch that the link took in part."
        self._reading = False
        "Whether the I/O thread is handling received messages: answers leave at the end of that."
        self._flush_armed = False
        self._again_armed = False
        self._shm_tried_until = 0.0
        "Time before which no caller waits for shared memory again."
        self._moved_at = 0.0
        "When the link last took bytes."

    @property
    def counters(self) -> Counters:
        """Messages and bytes sent, received and dropped."""
        return self._core.counters if self._core is not None else Counters()

    def drop_sent(self, reason: DropReason) -> None:
        """Count a message that was dropped before it was sent."""
        if self._core is not None:
            self._core.counters.drop_sent(reason)

    def drop_received(self, reason: DropReason, count: int = 1) -> None:
        """Count messages that were received and dropped."""
        if self._core is not None and count:
            self._core.counters.drop_received(reason, count)

    # ---- one message

    def send(self, message: NetworkMessage, reliable: bool = True) -> bool:
        """Send `message`; False: it was dropped and counted.

        A message that must not be dropped waits for room. A link that takes nothing at all for
        BLOCK_SECONDS is closed. SessionClosed: the session has ended.
        """
        if self.shm is not None:
            message, loan = self.shm.share(message)
            if loan is not None:
                return loan.settle(lambda: self._send(message, reliable))
        return self._send(message, reliable)

    def _send(self, message: NetworkMessage, reliable: bool) -> bool:
        with self._lock:
            outbox = self._outbox or self._open_outbox()
            now = self._reactor.now()
            if outbox.push(message, reliable, now=now) is PushResult.DONE:
                self._write_or_schedule(outbox, message.qos, now)
                return True
            qos = QoS.from_byte(message.qos)
            return self._wait(
                qos, reliable, lambda now: outbox.push(message, reliable, now=now), message
            )

    def send_encoded(self, data: bytes | memoryview, qos: int, reliable: bool = True) -> bool:
        """Send one message that is encoded already; waits and returns as `send` does."""
        with self._lock:
            outbox = self._outbox or self._open_outbox()
            if outbox.blocked and may_drop(qos) and outbox.congested(qos):
                outbox.counters.drop_sent(DropReason.CONGESTION_PERSISTS)
                return False
            now = self._reactor.now()
            if outbox.push_encoded(data, qos, reliable, now=now) is PushResult.DONE:
                self._write_or_schedule(outbox, qos, now)
                return True
            return self._wait(
                QoS.from_byte(qos),
                reliable,
                lambda now: outbox.push_encoded(data, qos, reliable, now=now),
                bytes(data),
            )

    def await_shared_memory(self, attempt: Callable[[], T | None]) -> T | None:
        """Repeat `attempt`, which found no free shared memory, while the peer may give some back;
        None: it gives none back for a moment, or the caller must not wait."""
        now = self._reactor.now()
        if self._reactor.inside or now < self._shm_tried_until:
            return None
        self.flush()
        while self._reactor.now() < now + SHM_SECONDS:
            time.sleep(SHM_STEP)
            if (found := attempt()) is not None:
                return found
        self._shm_tried_until = self._reactor.now() + SHM_PAUSE
        return None

    def post(self, message: NetworkMessage, reliable: bool = True) -> bool:
        """Send `message` without ever waiting: one that must not be dropped is kept, to a limit."""
        if self.shm is not None:
            message, loan = self.shm.share(message)
            if loan is not None:
                return loan.settle(lambda: self._post(message, reliable))
        return self._post(message, reliable)

    def _post(self, message: NetworkMessage, reliable: bool) -> bool:
        with self._lock:
            outbox = self._outbox or self._open_outbox()
            now = self._reactor.now()
            if outbox.push(message, reliable, now=now) is PushResult.FULL:
                if self._rest is None:  # The lane is full only because no thread has written yet.
                    self._flush(now)
                if outbox.push(message, reliable, now=now) is PushResult.FULL:
                    qos = QoS.from_byte(message.qos)
                    return self._keep_or_drop(outbox, message, qos, reliable, now)
            self._write_or_schedule(outbox, message.qos, now)
            return True

    def post_shared(self, message: bytes, reliable: bool) -> bool:
        """Post an encoded message that is too large for the link, with its payload in shared
        memory; False: there is none, or no room."""
        if self.shm is None:
            return False
        shared, loan = self.shm.share(NETWORK.read(ByteReader(message)))
        if loan is None:
            return False
        loan.settle(lambda: self._post(shared, reliable))
        return True

    def has_room(self, qos: int) -> bool:
        """Whether `send` would not wait now; True if there is no session."""
        with self._lock:
            return self._outbox is None or self._outbox.has_room(qos)

    def check_size(self, size: int) -> None:
        """Raise MessageTooLarge if a message of `size` bytes can never be sent."""
        if self._outbox is not None:
            self._outbox.check_size(size)

    def wait_for_room(self, qos: int, seconds: float) -> None:
        """Return as soon as `send` would not wait, and after `seconds` at the latest."""
        with self._lock:
            self._waiters += 1
            try:
                self._room.wait_for(lambda: self.has_room(qos), seconds)
            finally:
                self._waiters -= 1

    @property
    def lag(self) -> tuple[int, float | None]:
        """Bytes that wait beyond full lanes, and when the link last took some of them."""
        outbox = self._outbox
        return (0, None) if outbox is None else (outbox.backlog_bytes, outbox.stalled_at)

    # ---- many messages

    def send_run(
        self,
        data: memoryview,
        ends: IntegerSequence,
        qos: IntegerSequence,
        reliable: bool,
        lane: int,
    ) -> int:
        """Send encoded messages on the lane of the priority `lane`, from the I/O thread.

        Message i ends at ends[i], and qos[i] says whether it may be dropped. Return the number of
        dropped ones.
        """
        dropped = 0
        with self._lock:
            outbox = self._outbox or self._open_outbox()
            now = self._reactor.now()
            done = outbox.push_run(data, ends, lane, reliable, 0, now)
            if done < len(ends) and self._rest is None:  # No thread has written yet.
                self._flush(now)
                done = outbox.push_run(data, ends, lane, reliable, done, now)
            for i in range(done, len(ends)):
                message = bytes(data[ends[i - 1] if i else 0 : ends[i]])
                level = QoS.from_byte(int(qos[i]) & ~PRIORITY_BITS | lane)
                dropped += not self._push_one(outbox, message, level, reliable, now)
            self._write_or_schedule(outbox, 0, now)
        return dropped

    def _push_one(
        self, outbox: Outbox, message: bytes, qos: QoS, reliable: bool, now: float
    ) -> bool:
        """Push one message of a run without waiting; one that can never be sent is dropped, and the
        others follow."""
        try:
            if outbox.push_encoded(message, qos, reliable, now=now) is PushResult.DONE:
                return True
            if self._rest is None:
                self._flush(now)
                if outbox.push_encoded(message, qos, reliable, now=now) is PushResult.DONE:
                    return True
            return self._keep_or_drop(outbox, message, qos, reliable, now)
        except MessageTooLarge as error:
            if self.post_shared(message, reliable):
                return True
            outbox.counters.drop_sent(DropReason.MESSAGE_TOO_LARGE)
            self.warn_too_large(error)
            return False

    def warn_too_large(self, error: MessageTooLarge) -> None:
        """Log that a message was not sent; not for each of many."""
        self._node.log_limited("message", "%s: %s", self, error)

    def send_columns(self, columns: "PushColumns", priority: WirePriority, reliable: bool) -> int:
        """Send every row of `columns`, in order; return how many. Waits for room; drops nothing.

        MessageTooLarge: some rows were too large, and the others have been sent.
        """
        from zenlake.wire.emit import Emitter

        self._refuse_on_io_thread()
        outbox = self._outbox or self._open_outbox()
        place = outbox.emit_lane(priority, reliable)
        emitter = Emitter(columns, place)
        try:
            outbox.check_size(emitter.largest)
        except MessageTooLarge:  # One message at a time: the others can be sent.
            emitter = Emitter(columns, None)
        else:
            if place is not None:
                self.send_batches(emitter, priority, reliable)
        return self._send_rows(emitter, QoS(priority, WireCongestionControl.BLOCK), reliable)

    def _send_rows(self, rows: "Emitter", qos: QoS, reliable: bool) -> int:
        """Send rows one at a time; return how many. MessageTooLarge: some were too large, and the
        others have been sent."""
        refused: list[MessageTooLarge] = []
        for message in rows.messages():
            try:
                self.send_encoded(message, qos, reliable)
            except MessageTooLarge as error:
                refused.append(error)
        if refused:
            problem = f"{refused[0].problem} ({len(refused):,} of {rows.row:,} rows are too large)"
            raise MessageTooLarge(problem, refused[0].field)
        return rows.row

    def emit_lane(self, priority: WirePriority, reliable: bool) -> LaneSettings | None:
        """Return the lane for which `send_batches` takes batches; None: this link takes none."""
        return (self._outbox or self._open_outbox()).emit_lane(priority, reliable)

    def send_batches(self, source: BatchEmitter, priority: WirePriority, reliable: bool) -> None:
        """Send whole batches until `source` is done. Waits for room; drops nothing."""
        self._refuse_on_io_thread()
        outbox = self._outbox or self._open_outbox()
        qos = QoS(priority, WireCongestionControl.BLOCK)
        write = partial(source.next, chunk_bytes=COLUMNS_BYTES)

        def push(now: float) -> PushResult:
            return outbox.push_batches(write, priority, reliable)

        while not source.done:
            with self._lock:
                outbox = self._outbox or self._open_outbox()
                now = self._reactor.now()
                if push(now) is PushResult.DONE:
                    self._write_or_schedule(outbox, qos, now)
                else:
                    self._wait(qos, reliable, push, b"")

    def reply_emitter(
        self, columns: "PushColumns", envelope: "Envelope", priority: WirePriority
    ) -> "Emitter":
        """Return an encoder of `columns` as messages for `offer_rows`. The first one is compiled
        here, on the caller's thread."""
        from zenlake.wire.emit import Emitter

        outbox = self._outbox or self._open_outbox()
        emitter = Emitter(columns, outbox.emit_lane(priority, True), envelope)
        try:
            outbox.check_size(emitter.largest + emitter.overhead)
        except MessageTooLarge:  # One message at a time: the others can be sent.
            return Emitter(columns, None, envelope)
        return emitter

    def offer_rows(self, rows: "Emitter", qos: QoS, most: int | None = None) -> bool:
        """Send some of the rows, reliably and without waiting, with `most` not more than that many;
        False: there is no room now. MessageTooLarge: the next row can never be sent."""
        first = rows.row
        with self._lock:
            outbox = self._outbox or self._open_outbox()
            now = self._reactor.now()
            if rows.lane is not None:
                write = partial(rows.next, chunk_bytes=COLUMNS_BYTES, most=most)
                outbox.push_batches(write, qos.priority, True)
            else:
                try:
                    self._offer_messages(outbox, rows, qos, most, now)
                except MessageTooLarge:
                    if rows.row == first:
                        raise
            if rows.row > first:
                self._write_or_schedule(outbox, qos, now)
        return rows.row > first

    def _offer_messages(
        self, outbox: Outbox, rows: "Emitter", qos: QoS, most: int | None, now: float
    ) -> None:
        """Push rows one at a time while there is room."""
        stop = None if most is None else rows.row + most
        while not rows.done and rows.row != stop:
            if outbox.push_encoded(rows.message(), qos, now=now) is PushResult.FULL:
                return
            rows.row += 1

    def _refuse_on_io_thread(self) -> None:
        if self._reactor.inside:
            raise RuntimeError("many rows at once may have to wait: not on the I/O thread")

    # ---- the fast path: its rules are in transport/fast_path.py

    def fast_path(self, head: bytes, qos: int, reliable: bool) -> FastPath | None:
        """Return the fast path for messages that are `head`, a length and a payload; None: there
        is none for them."""
        outbox = self._outbox
        if outbox is None or qos & EXPRESS or not reliable:
            return None
        lane = outbox.fast_path(qos)
        if lane is None:
            return None
        overhead = len(head) + MAX_LENGTH_BYTES
        absorb = partial(self._absorb_appended, lane)
        return FastPath(lane, HeaderCache(head), overhead, outbox.top, absorb)

    def _absorb_appended(self, lane: OutboundLane) -> None:
        """Send a message that was appended while its lane was being closed (rule 3)."""
        with self._lock:
            if self._outbox is None:
                self.counters.drop_sent(DropReason.SESSION_CLOSED)
                return
            self._outbox.absorb_appended(lane)
            self._write_or_schedule(self._outbox, 0, self._reactor.now())

    # ---- waiting for room

    def _open_outbox(self) -> Outbox:
        """Return the outbox, or raise the reason why there is none."""
        end = self.over or self._closing
        if end is not None:
            # Raise a fresh instance: the stored one would accumulate traceback frames.
            raise type(end)(end.why, end.reason, end.by_peer)
        if self._core is None or self._core.outbox is None:
            raise SessionClosed("the session is not open yet", CloseReason.GENERIC)
        return self._core.outbox

    def _wait(
        self, qos: QoS, reliable: bool, push: PushAttempt, message: NetworkMessage | bytes
    ) -> bool:
        """Push a message whose lane is full, waiting as its congestion control allows.

        The I/O thread never waits. DROP waits a moment; so does BLOCK_FIRST behind another such
        message of its priority. BLOCK, and the first BLOCK_FIRST, wait while the link moves.
        """
        if self._reactor.inside:
            return self._push_at_once(qos, reliable, push, message)
        priority = int(qos.priority)
        if qos.congestion_control is WireCongestionControl.BLOCK:
            return self._wait_or_close(qos, push)
        if qos.congestion_control is WireCongestionControl.DROP or priority in self._first_waiting:
            return self._wait_or_drop(qos, push)
        self._first_waiting.add(priority)
        try:
            return self._wait_or_close(qos, push)
        finally:
            self._first_waiting.discard(priority)

    def _push_at_once(
        self, qos: QoS, reliable: bool, push: PushAttempt, message: NetworkMessage | bytes
    ) -> bool:
        """Push, keep or drop a message on the I/O thread."""
        outbox, now = self._open_outbox(), self._reactor.now()
        if self._rest is None:  # The lane is full only because no thread has written yet.
            self._flush(now)
            if push(now) is PushResult.DONE:
                self._write_or_schedule(outbox, qos, now)
                return True
        return self._keep_or_drop(outbox, message, qos, reliable, now)

    def _wait_or_drop(self, qos: QoS, push: PushAttempt) -> bool:
        """Wait a moment for room, then drop the message and count it."""
        outbox = self._open_outbox()
        if outbox.congested(qos):
            outbox.counters.drop_sent(DropReason.CONGESTION_PERSISTS)
            return False
        patience = FRAGMENT_DROP_SECONDS if outbox.in_fragments(qos) else DROP_SECONDS
        end = self._reactor.now() + patience
        if self._push_until(lambda: end, qos, push):
            return True
        outbox.counters.drop_sent(DropReason.CONGESTION_TIMEOUT)
        outbox.congested(qos, dropped=True)
        return False

    def _wait_or_close(self, qos: QoS, push: PushAttempt) -> bool:
        """Wait for room while the link takes bytes; close a session whose link takes none for
        BLOCK_SECONDS."""
        began = fair = self._reactor.now()

        def deadline() -> float:
            nonlocal fair
            outbox = self._outbox
            if outbox is not None and outbox.in_fragments(qos):
                fair = self._reactor.now()  # No other sender has the room, however slow the link.
            return min(max(began, self._moved_at) + BLOCK_SECONDS, fair + MAX_BLOCK_SECONDS)

        if self._push_until(deadline, qos, push):
            return True
        self._close_stuck()
        raise self._unresponsive()

    def _push_until(self, deadline: Callable[[], float], qos: QoS, push: PushAttempt) -> bool:
        """Push whenever there may be room; False: the deadline has passed."""
        self._waiters += 1
        try:
            while True:
                outbox, now = self._open_outbox(), self._reactor.now()
                outbox.give_up_stale(now)
                if push(now) is PushResult.DONE:
                    self._write_or_schedule(outbox, qos, now)
                    return True
                left = deadline() - now
                if left <= 0:
                    return False
                self._room.wait(left)
        finally:
            self._waiters -= 1

    def _keep_or_drop(
        self,
        outbox: Outbox,
        message: NetworkMessage | bytes,
        qos: QoS,
        reliable: bool,
        now: float,
    ) -> bool:
        """Keep a message that must not be lost in the backlog, for a caller that cannot wait; drop
        any other."""
        first = qos.congestion_control is WireCongestionControl.BLOCK_FIRST
        waits = first and int(qos.priority) in self._first_waiting
        if qos.congestion_control is WireCongestionControl.DROP or waits:
            outbox.counters.drop_sent(DropReason.CONGESTION_NO_WAIT)
            return False
        for flushed in (False, True):
            stalls = outbox.stalled_at is None
            if outbox.push_beyond(message, qos, reliable, now):
                self._reactor.call_soon(self.flush)
                if stalls and self._core is not None:  # The core's deadline depends on it.
                    self._reactor.call_soon(self._rearm)
                return True
            if not flushed:  # The link may take more: this thread has not written for a while.
                self._flush(now)
        outbox.counters.drop_sent(DropReason.CONGESTION_BACKLOG)
        self._close_stuck()
        return False

    def _close_stuck(self) -> None:
        """Close the session on the I/O thread, where no lock is held."""
        end = self._unresponsive()
        self._reactor.call_soon(lambda: self._end(end))

    def _unresponsive(self) -> SessionClosed:
        why = "takes nothing, or too little: too much waits that must not be dropped, or too long"
        return SessionClosed(f"{self.link.remote} {why}", CloseReason.UNRESPONSIVE)

    # ---- writing, under the lock

    def _write_or_schedule(self, outbox: Outbox, qos: int, now: float) -> None:
        """Write queued messages at once, or see to it that they are written soon."""
        if self._rest is not None:
            return  # The I/O thread continues when the link takes more.
        if self._reactor.inside:
            if not self._reading:  # Otherwise they leave at the end of its turn.
                self._node.flush_later(self)
        elif outbox.due(now, bool(qos & EXPRESS)):
            self._flush(now)
        else:
            if outbox.full:  # The open batch may fill, too.
                self._flush(now, full_only=True)
            if not self._flush_armed:
                self._flush_armed = True
                self._reactor.call_at(now + FLUSH_SECONDS + FLUSH_SLACK, self._flush_due)
            outbox.enable_fast_path(qos)  # Rule 1: the timer is armed.

    def _flush_due(self) -> None:
        """Write a batch that has waited long enough, unless its caller has written it meanwhile."""
        with self._lock:
            self._flush_armed = False
            if self.over is not None or self._rest is not None or self._closing is not None:
                return
            flush_at = self._open_outbox().flush_at
            now = self._reactor.now()
            if flush_at is None or now >= flush_at:
                self._flush(now)
            else:  # Another batch waits now.
                self._flush_armed = True
                self._reactor.call_at(flush_at + FLUSH_SLACK, self._flush_due)

    def flush(self) -> None:
        """Write queued messages, as far as the link takes them."""
        with self._lock:
            if self.over is None and self._rest is None:
                self._flush(self._reactor.now())

    def _flush(self, now: float, full_only: bool = False) -> None:
        """Write batches, and wake callers that wait for room.

        A link that breaks here is closed later, on the I/O thread.
        """
        core = self._core
        assert core is not None
        try:
            self._write_batches(core, now, full_only)
            if self._rest is not None or (self._hides and self.link.unsent):
                self._write_when_ready(now)
        except LinkError as error:
            self._rest = None
            broken = error
            self._reactor.call_soon(lambda: self._cannot_write(broken))
        if core.outbox is not None:
            if self._rest is None and not full_only:
                core.outbox.on_all_written()
            if self._waiters:
                self._room.notify_all()

    def _write_batches(self, core: BatchSource, now: float, full_only: bool) -> None:
        """Write batches until none is left, or the link takes one only in part."""
        data = core.pull(now, full_only) if self._rest is None else self._rest
        while data is not None:
            taken = self.link.send(data)
            if taken:
                self._moved_at = now
            if taken < len(data):
                self._rest = memoryview(data)[taken:]
                return
            self._rest = None
            data = core.pull(now, full_only)

    def _write_when_ready(self, now: float) -> None:
        """Have the I/O thread write the rest when the link takes more."""
        self._watch(write=True)
        if not self._again_armed:
            self._again_armed = True
            self._reactor.call_at(now + AGAIN_SECONDS, self._write_again)

    def _write_again(self) -> None:
        self._again_armed = False
        if self.over is None and (self._rest is not None or self.link.unsent):
            self._on_writable()

    def _refuse_sends(self) -> None:
        """Take no more messages: the session is being closed, or has ended."""
        if self._outbox is not None:
            self._outbox.disable_fast_paths()
            self._outbox = None

    # ---- provided by the receiving half, TransportSession

    @abstractmethod
    def _watch(self, *, read: bool | None = None, write: bool | None = None) -> None:
        """Tell the reactor which events of the link matter; None leaves one as it is."""

    @abstractmethod
    def _on_writable(self) -> None:
        """Write on, now that the link may take bytes."""

    @abstractmethod
    def _cannot_write(self, error: LinkError) -> None:
        """Handle a link that failed while it was written to."""

    @abstractmethod
    def _rearm(self) -> None:
        """Set the timer to the core's next deadline."""

    @abstractmethod
    def _end(self, end: SessionEnded) -> None:
        """End the session for the given reason."""
