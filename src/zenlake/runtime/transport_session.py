"""A session at work: one link, one unicast core, and the threads that meet at it.

Knows who may touch what: the I/O thread receives and keeps time; whoever sends encodes under the
lock and, if nothing waits, writes to the link itself. Does not know what messages mean.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from zenlake.errors import EncodeError, LinkError, SessionClosed, SessionEnded, SessionRefused
from zenlake.link.base import READ_BYTES, Progress, TransportLink
from zenlake.runtime.reactor import Timer
from zenlake.transport.counters import Counters
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.establishment import Acceptor, Opener
from zenlake.transport.offer import Agreement
from zenlake.transport.outbox import (
    BLOCK_SECONDS,
    DROP_SECONDS,
    FLUSH_SECONDS,
    FRAGMENT_DROP_SECONDS,
    EmitLane,
    IntegerSequence,
    OutboundLane,
    Outbox,
    PushResult,
    may_drop,
)
from zenlake.transport.sequence import SequenceIn
from zenlake.transport.unicast import Unicast
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import CloseReason, WireCongestionControl, WirePriority
from zenlake.wire.framing import Framing
from zenlake.wire.network import NetworkMessage
from zenlake.wire.qos import EXPRESS, PRIORITY_BITS, QoS
from zenlake.wire.zenohid import WireZenohId

if TYPE_CHECKING:
    from zenlake.runtime.node import Node
    from zenlake.wire.kernels.emit import PushColumns

log = logging.getLogger("zenlake.runtime")

MAX_BLOCK_SECONDS = 60.0  # of waiting for room, though the link moves: others have it all
READS_PER_TURN = 4  # then the other links have their turn,
TURN_SECONDS = 0.02  # or after this time: small messages take long to read
AGAIN_SECONDS = 0.1
"""Between two attempts to write to a link that takes nothing. A kernel calls a socket writable
only when a third of its buffer is free, which on a thin pipe may take longer than BLOCK_SECONDS."""
FLUSH_SLACK = 0.25e-3  # seconds in which a caller may still write its batch itself
LINGER_SECONDS = 1.0  # without progress, when a session is closed and its last words are sent
MAX_LINGER_SECONDS = 4.0
COLUMNS_BYTES = 256 << 10  # of rows that are written at once
MAX_HEADS = 1024  # lengths that one publisher remembers
MAX_SHORT_LENGTH = 3  # bytes of a length that fits a batch


class HeaderCache(dict[int, bytes]):
    """A message up to its payload, by the payload's length."""

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self._head = head

    def __missing__(self, size: int) -> bytes:
        if len(self) >= MAX_HEADS:
            self.clear()
        w = ByteWriter(bytearray(self._head))
        w.zint("payload length", size)
        self[size] = bytes(w.out)
        return self[size]


class FastPath(NamedTuple):
    """What it takes to add a message to a lane without a lock and almost without a call.

    While `lane.open`, and (n + 1) * (length + overhead) < most for n messages in `lane.added`:
    append heads[length] + payload to that, and look again: if the lane is not open any more, call
    `settle`. Otherwise `send_encoded` is the way, which opens the lane when more may come.
    """

    lane: OutboundLane
    heads: HeaderCache
    overhead: int
    most: int
    settle: Callable[[], None]


class BatchEmitter(Protocol):
    """Something that writes whole batches for one lane."""

    @property
    def done(self) -> bool: ...
    def next(self, sn: int, chunk_bytes: int) -> tuple[memoryview, int, int]:
        """Some of them from the sequence number `sn` on: the bytes, how many messages they hold,
        and the number that follows."""


class TransportSession:
    """With one peer, over one link. `send`, `close` and the properties: from any thread."""

    def __init__(
        self,
        node: "Node",
        link: TransportLink,
        handshake: Opener | Acceptor,
        patience: float,
        ended: Callable[["TransportSession", SessionEnded], None],
        on_open: Callable[["TransportSession"], None] | None = None,
    ) -> None:
        self.link = link
        self.handshake = handshake
        self.on_open = on_open
        self.on_end: list[Callable[[SessionEnded], None]] = []
        self.over: SessionEnded | None = None
        "Why it ended, once it has."
        self.face: Any = None
        "The handler's own."
        self.is_open = False
        self._node = node
        self._reactor = node.reactor
        self._ended = ended
        self._patience = patience
        self._core: Unicast | None = None
        self._outbox: Outbox | None = None
        "The core's, while the session is open and nobody has closed it."
        self.frame = partial(node.handler.frame, self)
        "Network messages, from the core to the node's handler."
        self._hides = (
            type(link).more is not TransportLink.more
            or type(link).unsent is not TransportLink.unsent
        )
        "Whether bytes may wait inside the link."
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._waiters = 0
        self._first_waiting: set[int] = set()
        self._rest: memoryview | None = None
        self._watching = (True, False)
        self._paused = False
        self._turn_end = 0.0
        self._reading = False
        "Whether the I/O thread is handling what came: answers leave at the end of that."
        self._closing: SessionEnded | None = None
        self._flush_armed = False
        self._again_armed = False
        self._moved_at = 0.0
        "When the link last took something."
        self._began = self._reactor.now()
        self._timer = self._reactor.call_at(self._began + patience, self._on_time)
        self._expiry: Timer | None = None
        self._reactor.watch(link, self._on_ready, read=True, write=True)
        self._watching = (True, True)

    # ---- who it is with

    @property
    def agreement(self) -> Agreement:
        agreed = self.handshake.agreement
        if agreed is None:
            raise SessionClosed("the session is not open yet", CloseReason.GENERIC)
        return agreed

    @property
    def zid(self) -> WireZenohId:
        """The peer's."""
        return self.agreement.zid

    @property
    def peer(self) -> WireZenohId | None:
        """The peer's id as it says itself, which nothing has proved before the session opens."""
        return self.handshake.peer.zid if self.handshake.peer is not None else None

    @property
    def linked(self) -> bool:
        """Whether the link's own handshake is over."""
        return self._core is not None

    @property
    def counters(self) -> Counters:
        return self._core.counters if self._core is not None else Counters()

    @property
    def sequences(self) -> dict[tuple[WirePriority, bool], SequenceIn]:
        """Gaps, missing and stale numbers of every lane that was used."""
        return self._core.sequences() if self._core is not None else {}

    def __repr__(self) -> str:
        agreed = self.handshake.agreement
        who = "handshake" if agreed is None else f"{agreed.whatami.name} {agreed.zid}"
        return f"<Session {who} {self.link.protocol} {self.link.remote}>"

    # ---- sending

    def send(self, message: NetworkMessage, reliable: bool = True) -> bool:
        """Whether `message` was taken; False: it was dropped and counted.

        A message that must not be dropped waits for room. A link that takes nothing at all for
        BLOCK_SECONDS is closed. SessionClosed: there is no session any more.
        """
        with self._lock:
            outbox = self._outbox or self._open_outbox()
            now = self._reactor.now()
            if outbox.push(message, reliable, now=now) is PushResult.DONE:
                self._pushed(outbox, message.qos, now)
                return True
            qos = QoS.from_byte(message.qos)
            return self._wait(
                qos, reliable, lambda now: outbox.push(message, reliable, now=now), message
            )

    @property
    def lag(self) -> tuple[int, float | None]:
        """Bytes that wait beyond full lanes, and since when the link has taken none of them."""
        outbox = self._outbox
        return (0, None) if outbox is None else (outbox.backlog_bytes, outbox.stalled_at)

    def has_room(self, qos: int) -> bool:
        """Whether `send` would not wait now; where there is no session it does not either."""
        with self._lock:
            return self._outbox is None or self._outbox.has_room(qos)

    def send_encoded(self, data: bytes | memoryview, qos: int, reliable: bool = True) -> bool:
        """The same for one message that is encoded already."""
        with self._lock:
            outbox = self._outbox or self._open_outbox()
            if outbox.blocked and may_drop(qos) and outbox.congested(qos):
                outbox.counters.drop_sent(DropReason.CONGESTION_PERSISTS)
                return False
            now = self._reactor.now()
            if outbox.push_encoded(data, qos, reliable, now=now) is PushResult.DONE:
                self._pushed(outbox, qos, now)
                return True
            return self._wait(
                QoS.from_byte(qos),
                reliable,
                lambda now: outbox.push_encoded(data, qos, reliable, now=now),
                bytes(data),
            )

    def post(self, message: NetworkMessage, reliable: bool = True) -> bool:
        """The same as `send` without ever waiting: what must not be dropped is kept, to a limit."""
        with self._lock:
            outbox = self._outbox or self._open_outbox()
            now = self._reactor.now()
            if outbox.push(message, reliable, now=now) is PushResult.FULL:
                if self._rest is None:  # nothing holds it up but that nobody wrote yet
                    self._flush(now)
                if outbox.push(message, reliable, now=now) is PushResult.FULL:
                    qos = QoS.from_byte(message.qos)
                    return self._keep_or_drop(outbox, message, qos, reliable, now)
            self._pushed(outbox, message.qos, now)
            return True

    def send_run(
        self,
        data: memoryview,
        ends: IntegerSequence,
        qos: IntegerSequence,
        reliable: bool,
        lane: int,
    ) -> int:
        """Many encoded messages that go to the lane of the priority `lane`, from the I/O thread.

        qos[i] says whether message i may be dropped. Gives how many were.
        """
        dropped = 0
        with self._lock:
            outbox = self._outbox or self._open_outbox()
            now = self._reactor.now()
            done = outbox.push_run(data, ends, lane, reliable, 0, now)
            if done < len(ends) and self._rest is None:  # nobody wrote yet, that is all
                self._flush(now)
                done = outbox.push_run(data, ends, lane, reliable, done, now)
            for i in range(done, len(ends)):
                message = bytes(data[ends[i - 1] if i else 0 : ends[i]])
                level = QoS.from_byte(int(qos[i]) & ~PRIORITY_BITS | lane)
                dropped += not self._push_one(outbox, message, level, reliable, now)
            self._pushed(outbox, 0, now)
        return dropped

    def _push_one(
        self, outbox: Outbox, message: bytes, qos: QoS, reliable: bool, now: float
    ) -> bool:
        """One of many that cannot wait; that it can never be sent holds up none of the others."""
        try:
            if outbox.push_encoded(message, qos, reliable, now=now) is PushResult.DONE:
                return True
            if self._rest is None:
                self._flush(now)
                if outbox.push_encoded(message, qos, reliable, now=now) is PushResult.DONE:
                    return True
            return self._keep_or_drop(outbox, message, qos, reliable, now)
        except EncodeError as error:
            outbox.counters.drop_sent(DropReason.MESSAGE_TOO_LARGE)
            log.warning("%s: %s", self, error)
            return False

    def send_columns(self, columns: "PushColumns", priority: WirePriority, reliable: bool) -> int:
        """Every row of `columns`, in order; gives how many. Waits for room; drops nothing."""
        from zenlake.wire.emit import Emitter, LaneSettings

        if self._reactor.inside:
            raise RuntimeError("many rows at once may have to wait: not on the I/O thread")
        outbox = self._outbox or self._open_outbox()
        place = outbox.emit_lane(priority, reliable)
        emitter = Emitter(columns, LaneSettings(*place) if place is not None else None)
        outbox._check_size(emitter.largest)  # before any row has left
        if place is not None:
            self.send_batches(emitter, priority, reliable)
        qos = QoS(priority, WireCongestionControl.BLOCK)
        for message in emitter.messages():
            self.send_encoded(message, qos, reliable)
        return emitter.row

    def emit_lane(self, priority: WirePriority, reliable: bool) -> EmitLane | None:
        """What `send_batches` is to be given batches for; None: this link takes none."""
        return (self._outbox or self._open_outbox()).emit_lane(priority, reliable)

    def send_batches(self, source: BatchEmitter, priority: WirePriority, reliable: bool) -> None:
        """Whole batches until `source` is done. Waits for room; drops nothing."""
        if self._reactor.inside:
            raise RuntimeError("many rows at once may have to wait: not on the I/O thread")
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
                    self._pushed(outbox, qos, now)
                else:
                    self._wait(qos, reliable, push, b"")

    def short_way(self, head: bytes, qos: int, reliable: bool) -> FastPath | None:
        """For messages that are `head`, a length and a payload, one after another; None: there is
        no short way for them."""
        outbox = self._outbox
        if outbox is None or qos & EXPRESS or not reliable:
            return None
        lane = outbox.short_way(qos)
        if lane is None:
            return None
        overhead = len(head) + MAX_SHORT_LENGTH
        return FastPath(lane, HeaderCache(head), overhead, outbox.top, partial(self._settle, lane))

    def _settle(self, lane: OutboundLane) -> None:
        """A message was added to a lane that was just being closed: see that it is sent."""
        with self._lock:
            if self._outbox is None:
                self.counters.drop_sent(DropReason.SESSION_CLOSED)
                return
            self._outbox.settle(lane)
            self._pushed(self._outbox, 0, self._reactor.now())

    def _open_outbox(self) -> Outbox:
        end = self.over or self._closing
        if end is not None:  # a new one each time: a raised error grows by where it was raised
            raise type(end)(end.why, end.reason, end.by_peer)
        if self._core is None or self._core.outbox is None:
            raise SessionClosed("the session is not open yet", CloseReason.GENERIC)
        return self._core.outbox

    def _pushed(self, outbox: Outbox, qos: int, now: float) -> None:
        """Write at once, or see to it that somebody does soon."""
        if self._rest is not None:
            return  # the I/O thread goes on when the link takes more
        if self._reactor.inside:
            if not self._reading:  # else at the end of its turn
                self._node.flush_later(self)
        elif outbox.due(now, bool(qos & EXPRESS)):
            self._flush(now)
        else:
            if outbox.full:  # the batch that is open may fill, too
                self._flush(now, full_only=True)
            if not self._flush_armed:
                self._flush_armed = True
                self._reactor.call_at(now + FLUSH_SECONDS + FLUSH_SLACK, self._flush_due)
            outbox.open_short_way(qos)

    def _flush_due(self) -> None:
        """A batch has waited long enough, unless its caller has written it meanwhile."""
        with self._lock:
            self._flush_armed = False
            if self.over is not None or self._rest is not None or self._closing is not None:
                return
            flush_at = self._open_outbox().flush_at
            now = self._reactor.now()
            if flush_at is None or now >= flush_at:
                self._flush(now)
            else:  # another batch waits now
                self._flush_armed = True
                self._reactor.call_at(flush_at + FLUSH_SLACK, self._flush_due)

    def _wait(
        self,
        qos: QoS,
        reliable: bool,
        push: Callable[[float], PushResult],
        message: NetworkMessage | bytes,
    ) -> bool:
        """For room in a full lane, as long as the congestion control allows."""
        outbox = self._open_outbox()
        now = self._reactor.now()
        priority = int(qos.priority)
        blocks = qos.congestion_control is not WireCongestionControl.DROP
        first = qos.congestion_control is WireCongestionControl.BLOCK_FIRST
        if first and priority in self._first_waiting:
            blocks = False
        if self._reactor.inside:
            if self._rest is None:  # nothing holds it up but that nobody wrote yet
                self._flush(now)
                if push(now) is PushResult.DONE:
                    self._pushed(outbox, qos, now)
                    return True
            return self._keep_or_drop(outbox, message, qos, reliable, now)
        if not blocks and outbox.congested(qos):
            outbox.counters.drop_sent(DropReason.CONGESTION_PERSISTS)
            return False
        patience = BLOCK_SECONDS if blocks else DROP_SECONDS
        if not blocks and outbox.in_fragments(qos):
            patience = FRAGMENT_DROP_SECONDS
        end, limit = now + patience, now + MAX_BLOCK_SECONDS
        self._waiters += 1
        if first and blocks:
            self._first_waiting.add(priority)
        try:
            while True:
                outbox.give_up_stale(now)
                if push(now) is PushResult.DONE:
                    self._pushed(outbox, qos, now)
                    return True
                if blocks:
                    end = min(max(end, self._moved_at + patience), limit)
                if now >= end:
                    break
                self._room.wait(end - now)
                outbox = self._open_outbox()
                now = self._reactor.now()
        finally:
            self._waiters -= 1
            if first and blocks:
                self._first_waiting.discard(priority)
        if not blocks:
            outbox.counters.drop_sent(DropReason.CONGESTION_TIMEOUT)
            outbox.congested(qos, dropped=True)
            return False
        self._stuck()
        raise self._unresponsive()

    def _keep_or_drop(
        self,
        outbox: Outbox,
        message: NetworkMessage | bytes,
        qos: QoS,
        reliable: bool,
        now: float,
    ) -> bool:
        """For a caller that cannot wait: keep what must not be lost, to a limit; drop the rest."""
        first = qos.congestion_control is WireCongestionControl.BLOCK_FIRST
        waits = first and int(qos.priority) in self._first_waiting
        if qos.congestion_control is WireCongestionControl.DROP or waits:
            outbox.counters.drop_sent(DropReason.CONGESTION_NO_WAIT)
            return False
        stalls = outbox.stalled_at is None
        if outbox.push_beyond(message, qos, reliable, now):
            self._reactor.call_soon(self.flush)
            if stalls and self._core is not None:  # from now on the time is counted
                self._reactor.call_soon(self._count_time)
            return True
        outbox.counters.drop_sent(DropReason.CONGESTION_BACKLOG)
        self._stuck()
        return False

    def _count_time(self) -> None:
        if self._core is not None and self.over is None and self._closing is None:
            self._timer.cancel()
            self._arm(self._core)

    def _stuck(self) -> None:
        """Close outside of every lock, on the I/O thread."""
        end = self._unresponsive()
        self._reactor.call_soon(lambda: self._end(end))

    def _unresponsive(self) -> SessionClosed:
        why = "takes nothing, or too little: too much waits that must not be dropped, or too long"
        return SessionClosed(f"{self.link.remote} {why}", CloseReason.UNRESPONSIVE)

    # ---- writing

    def flush(self) -> None:
        """Write what waits, as far as the link takes it."""
        with self._lock:
            if self.over is None and self._rest is None:
                self._flush(self._reactor.now())

    def _flush(self, now: float, full_only: bool = False) -> None:
        """Under the lock. A link that breaks here is closed by the I/O thread."""
        core = self._core
        assert core is not None
        try:
            while (
                data := core.pull(now, full_only) if self._rest is None else self._rest
            ) is not None:
                taken = self.link.send(data)
                if taken:
                    self._moved_at = now
                if taken < len(data):
                    self._rest = memoryview(data)[taken:]
                    break
                self._rest = None
            if self._rest is not None or (self._hides and self.link.unsent):
                self._watch(write=True)
                if not self._again_armed:
                    self._again_armed = True
                    self._reactor.call_at(now + AGAIN_SECONDS, self._write_again)
        except LinkError as error:
            self._rest = None
            broken = error
            self._reactor.call_soon(lambda: self._takes_no_more(broken))
        if core.outbox is not None:
            if self._rest is None and not full_only:
                core.outbox.written()
            if self._waiters:
                self._room.notify_all()

    def _write_again(self) -> None:
        self._again_armed = False
        if self.over is None and (self._rest is not None or self.link.unsent):
            self._on_writable()

    # ---- the I/O thread

    def _on_ready(self, readable: bool, writable: bool) -> None:
        if self.over is not None:
            return
        if self._core is None:
            self._advance()
            if self._core is None:
                return
        if writable:
            self._on_writable()
        if (readable or (self._hides and self.link.more)) and not self._paused:
            self._read()

    def read_more(self) -> None:
        """Read what waits inside the link, where the reactor cannot see it."""
        self._reactor.call_soon(lambda: self._on_ready(True, False))

    def _advance(self) -> None:
        """The link's own handshake, then ours."""
        try:
            progress = self.link.handshake()
        except LinkError as error:
            self._broke(error)
            return
        if progress is not Progress.DONE:
            self._watch(read=progress is Progress.WANT_READ, write=progress is Progress.WANT_WRITE)
            return
        now = self._reactor.now()
        self._core = Unicast(
            self.handshake,
            self,
            self.link.framing,
            now,
            until=self._began + self._patience,
            max_message=self._node.config.max_message,
            process=self._node.config.memory,
        )
        self._core.enough = self._enough
        if self._node.on_gap is not None:
            self._core.on_gap = partial(self._node.on_gap, self)
        if self.link.expires is not None:
            left = self.link.expires - time.time()
            self._expiry = self._reactor.call_at(now + left, self._expired)
        with self._lock:
            self._watch(read=True, write=False)
            self._flush(now)

    def _enough(self) -> bool:
        """Whether the other links should have their turn before the next batch."""
        return self._paused or self._reactor.now() >= self._turn_end

    def _expired(self) -> None:
        why = f"the certificate of {self.link.remote} has expired"
        kind = SessionClosed if self.is_open else SessionRefused
        self._end(kind(why, CloseReason.EXPIRED))

    def _on_writable(self) -> None:
        try:
            with self._lock:
                if self.link.unsent:
                    self.link.flush()
                if self.link.unsent:
                    return
                self._watch(write=False)
                self._flush(self._reactor.now())
        except LinkError as error:  # without the lock: handlers are called
            self._takes_no_more(error)
            return
        self._end_if_said()

    def _read(self) -> None:
        core, link = self._core, self.link
        assert core is not None
        if not self.is_open and self._node.must_wait(self):
            self.pause()
            return
        stream = link.framing is Framing.STREAM
        self._reading = True
        self._turn_end = self._reactor.now() + TURN_SECONDS
        try:
            if core.pending:
                core.receive(b"", self._reactor.now())
            for _ in range(READS_PER_TURN):
                if core.pending or self._paused:
                    break
                data = link.receive()
                if data is None:
                    break
                if not data:
                    raise LinkError(f"{link.remote}: the peer closed the link")
                core.receive(data, self._reactor.now())
                if stream and len(data) < READ_BYTES and not self._hides:
                    break
            if not self._paused and (core.pending or (self._hides and link.more)):
                self.read_more()
        except SessionEnded as end:
            self._end_later(end, self._node.penalty(self, end))
            return
        except LinkError as error:
            self._broke(error)
            return
        except (Exception, SystemExit):  # what was read is lost: there is no way on
            log.exception("%s: the handler failed", link.remote)
            self._end(SessionClosed("the handler failed", CloseReason.GENERIC))
            return
        finally:
            self._reading = False
        if core.outbox is None or core.outbox.waiting or self._hides:
            self.flush()

    def opened(self) -> None:
        """The handshake is over (called by the core)."""
        core = self._core
        assert core is not None
        assert core.agreement is not None
        self._outbox = core.outbox
        self._timer.cancel()
        self._arm(core)
        self.flush()  # the OPEN ack leaves before anything else
        self._node.session_opened(self)

    def link_states(self, body: int | bytes | None) -> None:
        """The peer says whom it knows (called by the handler)."""
        if isinstance(body, bytes):
            self._node.link_states(self, body)

    def _arm(self, core: Unicast) -> None:
        self._timer = self._reactor.call_at(core.deadline(), self._on_time)

    def _on_time(self) -> None:
        if self.over is not None:
            return
        core, now = self._core, self._reactor.now()
        if core is None:
            why = f"{self.link.remote}: no link within {self._patience:g} s"
            self._end(SessionRefused(why, CloseReason.GENERIC))
            return
        if self._paused:
            core.last_received = now  # it is we who do not listen
        try:
            with self._lock:
                core.on_time(now)
        except SessionEnded as end:
            self._end(end)
            return
        if not core.ended:
            self.flush()
            self._arm(core)

    # ---- back-pressure from those who read

    def pause(self) -> None:
        """Read no more from the link: the peer feels it. On the I/O thread."""
        if not self._paused and self._closing is None and self.over is None:
            self._paused = True
            self._watch(read=False)

    def resume(self) -> None:
        """From any thread."""
        self._reactor.call_soon(self._resume)

    def _resume(self) -> None:
        if self._paused and self.over is None:
            self._paused = False
            assert self._core is not None
            self._core.last_received = self._reactor.now()
            self._watch(read=True)
            if self._core.pending or self.link.more:
                self._on_ready(True, False)

    def _watch(self, *, read: bool | None = None, write: bool | None = None) -> None:
        """Tell the reactor what to wait for; None: as before. From any thread.

        With nothing to wait for it must not look at all: a broken link would wake it for ever.
        """
        with self._lock:
            before = self._watching
            wanted = (before[0] if read is None else read, before[1] if write is None else write)
            if self.over is not None or wanted == before:
                return
            if not any(before):
                self._reactor.watch(self.link, self._on_ready, read=wanted[0], write=wanted[1])
            elif any(wanted):
                self._reactor.change(self.link, read=wanted[0], write=wanted[1])
            else:
                self._reactor.forget(self.link)
            self._watching = wanted

    # ---- the end

    def close(self, reason: CloseReason = CloseReason.GENERIC) -> None:
        """Send what waits and CLOSE, then end. Returns at once; `closed` of the handler follows.

        A link that loses nothing is kept until the peer has closed it: closed with bytes unread,
        it would take back what is on its way.
        """
        self._reactor.call_soon(lambda: self._close(reason))

    def _close(self, reason: CloseReason) -> None:
        if self.over is not None or self._closing is not None:
            return
        end: SessionEnded
        if self.is_open:
            end = SessionClosed("closed by this node", reason)
        else:
            end = SessionRefused("given up by this node", reason)
        core = self._core
        if core is None:
            self._end(end)
            return
        now = self._reactor.now()
        with self._lock:
            core.close(reason)
            self._closing = end
            self._no_more_sends()
            self._paused = False
            self._room.notify_all()
            if self._rest is None:
                self._flush(now)
            self._watch(read=True)
        self._timer.cancel()
        self._linger(core, now)
        self._end_if_said()

    def _end_if_said(self) -> None:
        """A session that is being closed: whether the last word is out, and no answer comes."""
        said = self._rest is None and not self.link.unsent
        if said and self._closing is not None and not (self.is_open and self.link.reliable):
            self._end(self._closing)

    def _linger(self, core: Unicast, since: float) -> None:
        """Give up on a peer that neither takes the last words nor closes the link."""
        moved = max(core.last_sent, since)
        again = min(moved + LINGER_SECONDS, since + MAX_LINGER_SECONDS)
        if self._closing is None or self.over is not None:
            return
        if self._reactor.now() >= again:
            self._end(self._closing)
        else:
            self._timer = self._reactor.call_at(again, lambda: self._linger(core, since))

    def _no_more_sends(self) -> None:
        if self._outbox is not None:
            self._outbox.close_short_ways()
            self._outbox = None

    def _takes_no_more(self, error: LinkError) -> None:
        """Nothing can be sent. A peer that closed the link may have said why: that is read first.
        On the I/O thread."""
        if self.over is None and self._core is not None:
            self._read()
        self._broke(error)

    def _broke(self, error: LinkError) -> None:
        """The link is no more. On the I/O thread."""
        kind = SessionClosed if self.is_open else SessionRefused
        end = kind(str(error), CloseReason.GENERIC, by_peer=True)
        end.__cause__ = error
        self._end(end)

    def _end_later(self, end: SessionEnded, delay: float) -> None:
        if delay:
            self._watch(read=False, write=False)
            self._reactor.call_at(self._reactor.now() + delay, lambda: self._end(end))
        else:
            self._end(end)

    def _end(self, end: SessionEnded) -> None:
        """The link goes; whoever waits is told. On the I/O thread."""
        if self.over is not None:
            return
        end = self._closing or end
        core = self._core
        with self._lock:
            if core is not None:
                core.end(end.reason)  # it lets go of what it holds
                if self._rest is None and not end.by_peer:
                    self._flush(self._reactor.now())  # a CLOSE that the core left
            if any(self._watching):
                self._reactor.forget(self.link)
            self.over = end
            self._no_more_sends()
            self._timer.cancel()
            if self._expiry is not None:
                self._expiry.cancel()
            self._rest = None
            self._room.notify_all()
        self.link.close()
        self._ended(self, end)
        for call in self.on_end:
            call(end)
