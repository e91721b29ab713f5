"""A session at work: one link, one unicast core, and the threads that meet at it.

Knows who may touch what: the I/O thread receives and keeps time; whoever sends encodes under the
lock and, if nothing waits, writes to the link itself. Does not know what messages mean.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from zenlake.errors import LinkError, SessionClosed, SessionEnded, SessionRefused
from zenlake.link.base import READ_BYTES, Link, Progress
from zenlake.transport.counters import Counters
from zenlake.transport.establishment import Acceptor, Opener
from zenlake.transport.offer import Agreement
from zenlake.transport.outbox import (
    BLOCK_SECONDS,
    DROP_SECONDS,
    FLUSH_SECONDS,
    FRAGMENT_DROP_SECONDS,
    Outbox,
    Pushed,
)
from zenlake.transport.sequence import SequenceIn
from zenlake.transport.unicast import Unicast
from zenlake.wire.enums import CloseReason, CongestionControl, Priority
from zenlake.wire.framing import Framing
from zenlake.wire.network import NetworkMessage
from zenlake.wire.qos import EXPRESS, QoS
from zenlake.wire.zenohid import ZenohId

if TYPE_CHECKING:
    from zenlake.runtime.node import Node

READS_PER_TURN = 4  # then the other links have their turn
LINGER_SECONDS = 1.0  # for what waits to be sent when a session is closed

Buffer = bytes | bytearray | memoryview


class Session:
    """With one peer, over one link. `send`, `close` and the properties: from any thread."""

    def __init__(
        self,
        node: "Node",
        link: Link,
        handshake: Opener | Acceptor,
        patience: float,
        ended: Callable[["Session", SessionEnded], None],
        on_open: Callable[["Session"], None] | None = None,
    ) -> None:
        self.link = link
        self.handshake = handshake
        self.on_open = on_open
        self.on_end: Callable[[SessionEnded], None] | None = None
        self.over: SessionEnded | None = None
        "Why it ended, once it has."
        self.is_open = False
        self._node = node
        self._reactor = node.reactor
        self._ended = ended
        self._patience = patience
        self._core: Unicast | None = None
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._waiters = 0
        self._first_waiting: set[int] = set()
        self._rest: memoryview | None = None
        self._watching = (True, False)
        self._paused = False
        self._flush_armed = False
        self._began = self._reactor.now()
        self._timer = self._reactor.call_at(self._began + patience, self._on_time)
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
    def zid(self) -> ZenohId:
        """The peer's."""
        return self.agreement.zid

    @property
    def peer(self) -> ZenohId | None:
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
    def sequences(self) -> dict[tuple[Priority, bool], SequenceIn]:
        """Gaps, missing and stale numbers of every lane that was used."""
        return self._core.sequences() if self._core is not None else {}

    def __repr__(self) -> str:
        agreed = self.handshake.agreement
        who = "handshake" if agreed is None else f"{agreed.whatami.name} {agreed.zid}"
        return f"<Session {who} {self.link.protocol} {self.link.remote}>"

    # ---- sending

    def send(self, message: NetworkMessage, reliable: bool = True) -> bool:
        """Whether `message` was taken; False: it was dropped and counted.

        A message that must not be dropped waits for room, at most BLOCK_SECONDS; then the session
        is closed. SessionClosed: there is no session any more.
        """
        with self._lock:
            outbox = self._open_outbox()
            now = self._reactor.now()
            if outbox.push(message, reliable, now=now) is Pushed.DONE:
                self._pushed(outbox, message.qos, now)
                return True
            qos = QoS.from_byte(message.qos)
            return self._wait(
                qos, reliable, lambda now: outbox.push(message, reliable, now=now), message
            )

    def send_encoded(self, data: bytes | memoryview, qos: int, reliable: bool = True) -> bool:
        """The same for one message that is encoded already."""
        with self._lock:
            outbox = self._open_outbox()
            now = self._reactor.now()
            if outbox.push_encoded(data, qos, reliable, now=now) is Pushed.DONE:
                self._pushed(outbox, qos, now)
                return True
            return self._wait(
                QoS.from_byte(qos),
                reliable,
                lambda now: outbox.push_encoded(data, qos, reliable, now=now),
                bytes(data),
            )

    def _open_outbox(self) -> Outbox:
        if self.over is not None:
            raise self.over
        if self._core is None or self._core.outbox is None:
            raise SessionClosed("the session is not open yet", CloseReason.GENERIC)
        return self._core.outbox

    def _pushed(self, outbox: Outbox, qos: int, now: float) -> None:
        """Write at once, or see to it that somebody does soon."""
        if self._rest is not None:
            return  # the I/O thread goes on when the link takes more
        if self._reactor.inside:
            self._node.flush_later(self)
        elif qos & EXPRESS or outbox.urgent(now) or now >= (outbox.flush_at or now + 1):
            self._flush(now)
        elif outbox.flush_at is None:
            outbox.flush_at = now + FLUSH_SECONDS
            if not self._flush_armed:
                self._flush_armed = True
                self._reactor.call_at(outbox.flush_at, self._flush_due)

    def _flush_due(self) -> None:
        with self._lock:
            self._flush_armed = False
            if self.over is None and self._rest is None:
                self._flush(self._reactor.now())

    def _wait(
        self,
        qos: QoS,
        reliable: bool,
        push: Callable[[float], Pushed],
        message: NetworkMessage | bytes,
    ) -> bool:
        """For room in a full lane, as long as the congestion control allows."""
        outbox = self._open_outbox()
        now = self._reactor.now()
        priority = int(qos.priority)
        blocks = qos.congestion_control is not CongestionControl.DROP
        first = qos.congestion_control is CongestionControl.BLOCK_FIRST
        if first and priority in self._first_waiting:
            blocks = False
        if self._reactor.inside:
            return self._cannot_wait(outbox, message, qos, reliable, blocks, now)
        patience = BLOCK_SECONDS if blocks else DROP_SECONDS
        if not blocks and outbox.in_fragments(qos):
            patience = FRAGMENT_DROP_SECONDS
        end = now + patience
        self._waiters += 1
        if first and blocks:
            self._first_waiting.add(priority)
        try:
            while True:
                outbox.give_up_stale(now)
                if push(now) is Pushed.DONE:
                    self._pushed(outbox, qos, now)
                    return True
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
            outbox.counters.drop_sent(f"congestion: no room within {patience * 1000:g} ms")
            return False
        self._stuck()
        raise SessionClosed(
            f"{self.link.remote} takes nothing for {BLOCK_SECONDS:g} s", CloseReason.UNRESPONSIVE
        )

    def _cannot_wait(
        self,
        outbox: Outbox,
        message: NetworkMessage | bytes,
        qos: QoS,
        reliable: bool,
        blocks: bool,
        now: float,
    ) -> bool:
        """On the I/O thread: keep what must not be lost, up to a limit; drop the rest."""
        if not blocks:
            outbox.counters.drop_sent("congestion: no room on the I/O thread")
            return False
        if outbox.push_beyond(message, qos, reliable, now):
            return True
        outbox.counters.drop_sent("congestion: backlog full")
        self._stuck()
        return False

    def _stuck(self) -> None:
        """Close outside of every lock, on the I/O thread."""
        why = f"takes nothing for {BLOCK_SECONDS:g} s"
        end = SessionClosed(f"{self.link.remote} {why}", CloseReason.UNRESPONSIVE)
        self._reactor.call_soon(lambda: self._end(end))

    # ---- writing

    def flush(self) -> None:
        """Write what waits, as far as the link takes it."""
        with self._lock:
            if self.over is None and self._rest is None:
                self._flush(self._reactor.now())

    def _flush(self, now: float) -> None:
        """Under the lock. A link that breaks here is closed by the I/O thread."""
        core = self._core
        assert core is not None
        try:
            while True:
                data = self._rest if self._rest is not None else core.pull(now)
                if data is None:
                    break
                taken = self.link.send(data)
                if taken < len(data):
                    self._rest = memoryview(data)[taken:]
                    self._watch(self._watching[0], True)
                    break
                self._rest = None
        except LinkError as error:
            self._rest = None
            broken = SessionClosed(str(error), CloseReason.GENERIC, by_peer=True)
            self._reactor.call_soon(lambda: self._end(broken))
        if core.outbox is not None:
            if self._rest is None:
                core.outbox.written(self._reactor.now())
            if self._waiters:
                self._room.notify_all()

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
        if readable and not self._paused:
            self._read()

    def _advance(self) -> None:
        """The link's own handshake, then ours."""
        try:
            progress = self.link.handshake()
        except LinkError as error:
            self._end(SessionRefused(str(error), CloseReason.GENERIC, by_peer=True))
            return
        if progress is not Progress.DONE:
            self._watch(progress is Progress.WANT_READ, progress is Progress.WANT_WRITE)
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
        self._watch(True, False)
        with self._lock:
            self._flush(now)

    def _on_writable(self) -> None:
        with self._lock:
            if self.link.unsent:
                try:
                    self.link.flush()
                except LinkError as error:
                    self._end(SessionClosed(str(error), CloseReason.GENERIC, by_peer=True))
                    return
            if self.link.unsent:
                return
            self._watch(self._watching[0], False)
            self._flush(self._reactor.now())

    def _read(self) -> None:
        core, link = self._core, self.link
        assert core is not None
        stream = link.framing is Framing.STREAM
        try:
            for _ in range(READS_PER_TURN):
                data = link.receive()
                if data is None:
                    break
                if not data:
                    raise SessionClosed("the peer closed the link", CloseReason.GENERIC, True)
                core.receive(data, self._reactor.now())
                if self._paused or (stream and len(data) < READ_BYTES and not link.more):
                    break
            if link.more and not self._paused:
                self._reactor.call_soon(lambda: self._on_ready(True, False))
        except SessionEnded as end:
            self._end_later(end, self._node.penalty(self, end))
            return
        except LinkError as error:
            self._end(SessionClosed(str(error), CloseReason.GENERIC, by_peer=True))
            return
        if core.outbox is None:
            self.flush()
        if link.unsent:
            self._watch(self._watching[0], True)

    def opened(self) -> None:
        """The handshake is over (called by the core)."""
        core = self._core
        assert core is not None
        assert core.agreement is not None
        self._timer.cancel()
        self._arm(core)
        self.flush()  # the OPEN ack leaves before anything else
        self._node.session_opened(self)

    def frame(self, priority: Priority, reliable: bool, data: bytes, pos: int, end: int) -> int:
        """Network messages (called by the core)."""
        return self._node.handler.frame(self, priority, reliable, data, pos, end)

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
        if not self._paused and self.over is None:
            self._paused = True
            self._watch(False, self._watching[1])

    def resume(self) -> None:
        """From any thread."""
        self._reactor.call_soon(self._resume)

    def _resume(self) -> None:
        if self._paused and self.over is None:
            self._paused = False
            assert self._core is not None
            self._core.last_received = self._reactor.now()
            self._watch(True, self._watching[1])
            if self.link.more:
                self._on_ready(True, False)

    def _watch(self, read: bool, write: bool) -> None:
        """Tell the reactor what to wait for. With nothing to wait for it must not look at all:
        a broken link would wake it for ever."""
        if self.over is not None or self._watching == (read, write):
            return
        if not any(self._watching):
            self._reactor.watch(self.link, self._on_ready, read=read, write=write)
        elif read or write:
            self._reactor.change(self.link, read=read, write=write)
        else:
            self._reactor.forget(self.link)
        self._watching = (read, write)

    # ---- the end

    def close(self, reason: CloseReason = CloseReason.GENERIC) -> None:
        """Send what waits and CLOSE, then end. Returns at once; `closed` of the handler follows."""
        self._reactor.call_soon(lambda: self._close(reason))

    def _close(self, reason: CloseReason) -> None:
        if self.over is not None:
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
        with self._lock:
            core.close(reason)
            self._flush(self._reactor.now())
            drained = self._rest is None and not self.link.unsent
        if drained:
            self._end(end)
        else:
            self._linger(end, self._reactor.now() + LINGER_SECONDS)

    def _linger(self, end: SessionEnded, until: float) -> None:
        drained = self._rest is None and not self.link.unsent
        now = self._reactor.now()
        if drained or now >= until:
            self._end(end)
        else:
            self._reactor.call_at(min(until, now + 0.01), lambda: self._linger(end, until))

    def _end_later(self, end: SessionEnded, delay: float) -> None:
        if delay:
            self._watch(False, False)
            self._reactor.call_at(self._reactor.now() + delay, lambda: self._end(end))
        else:
            self._end(end)

    def _end(self, end: SessionEnded) -> None:
        """The link goes; whoever waits is told. On the I/O thread."""
        if self.over is not None:
            return
        core = self._core
        with self._lock:
            if core is not None:
                if not end.by_peer:
                    core.end(end.reason)
                if self._rest is None:
                    self._flush(self._reactor.now())  # a CLOSE that the core left
            if any(self._watching):
                self._reactor.forget(self.link)
            self.over = end
            self._timer.cancel()
            self._rest = None
            self._room.notify_all()
        self.link.close()
        self._ended(self, end)
        if self.on_end is not None:
            self.on_end(end)
