"""A session over several links (MultiLink), each of which is a TransportSession.

Knows which link each lane takes, and when a lane may move to another one. Does not know the
handshake (transport/multilink.py), nor whether a link may join: the node decides.
Rust: `io/zenoh-transport/src/unicast/universal/tx.rs`, `transport.rs`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from zenlake.errors import NeighbourLimit, SessionClosed, SessionEnded
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.counters import Counters
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.establishment import Acceptor
from zenlake.transport.link_qos import LinkQos, choose_link
from zenlake.transport.outbox import IntegerSequence, Outbox
from zenlake.wire.enums import PRIORITIES, CloseReason, WireCongestionControl, WirePriority
from zenlake.wire.frame import LaneSettings
from zenlake.wire.network import NetworkMessage
from zenlake.wire.qos import PRIORITY_BITS, QoS

if TYPE_CHECKING:
    from zenlake.wire.emit import Emitter
    from zenlake.wire.kernels.emit import Envelope, PushColumns

SETTLE_SECONDS = 0.1
"""Time without a FRAME after which a lane may move to another link that works as well: the peer has
read the last one. A FRAME that another link overtakes is stale, and the peer drops it."""
HOLD_SECONDS = 1.0
"""Upper bound on the time in which a lane that does not pause by itself is held for a move."""
FIRST_LANE = 1  # Index of the reliable lane of the highest priority: 0 << 1 | reliable.
MAX_ATTEMPTS = 8  # Links tried for one message: each attempt finds one that has just ended.

R = TypeVar("R")


@dataclass
class _Hold:
    """A lane that was moved to a link while it was busy, and is held there."""

    until: float
    "When it is released at the latest."
    before: list[TransportSession] = field(default_factory=list)
    "The links that it took until then."
    sent_at: float | None = None
    "Since when these have nothing left to send on the lane."


class MultiLinkSession(TransportSession):
    """A session with one peer over one link or more. Its lanes are shared by the links.

    It has no link of its own: messages go to the session of the link that their lane takes. There
    they go one by one; there is no fast path, and rows are not sent in whole batches.
    """

    def __init__(self, first: TransportSession) -> None:
        assert first._core is not None
        self.link = first.link
        self.handshake = first.handshake
        self.on_open = None
        self.on_end = []
        self.face = None
        self.is_open = False
        self.over = None
        self.began_at, self.linked_at = first.began_at, first.linked_at
        self.opened_at = first.opened_at
        self._node, self._reactor = first._node, first._reactor
        self._core = first._core
        "Core of the first link: it has the inbound lanes, also after that link has ended."
        self._outbox = None
        self._closing = None
        self._whole = None
        self._paused = False
        self._handle_frame = first._handle_frame
        self._lock = threading.RLock()
        "Guards the choice of links. It is taken before the lock of a link, never after."
        self.on_loss: list[Callable[[SessionEnded], None]] = []
        "Calls to make, once, when a link has ended: of connectors whose link had no place."
        self._links: tuple[TransportSession, ...] = (first,)
        lanes = len(PRIORITIES) if self.agreement.qos else 1
        self._priority_bits = PRIORITY_BITS if self.agreement.qos else 0
        self._link_of: list[TransportSession] = [first] * (lanes * 2)
        "The link of each lane, by priority << 1 | reliable. Changed under the lock of that link."
        self._last_sns: dict[int, tuple[int, float]] = {}
        "Next number of a lane that is to move, and since when."
        self._holds: dict[tuple[TransportSession, int], _Hold] = {}
        "Lanes that are held, by their link and their number."
        self._settling = False
        self._own(first)

    # ---- links, on the I/O thread

    @property
    def links(self) -> tuple[TransportSession, ...]:
        return self._links

    @property
    def in_order(self) -> bool:
        return False  # Lanes take different links, of which one may be slower, or lossy.

    @property
    def accepted(self) -> int:
        """Number of links that the peer opened."""
        return sum(isinstance(link.handshake, Acceptor) for link in self._links)

    def link_for(self, priority: WirePriority, reliable: bool) -> TransportSession:
        """Return the link that messages of a priority and a reliability take now."""
        return self._link_of[self._index(priority, reliable)]

    def add(self, link: TransportSession) -> None:
        """Use a further link, whose handshake is over."""
        assert link._core is not None
        assert self._core is not None
        link._core.join(self._core)
        self._own(link)
        if self._paused:
            link.pause()
        self._links = (*self._links, link)
        self._choose()

    def _own(self, link: TransportSession) -> None:
        assert link._core is not None
        assert link._core.outbox is not None
        link._core.outbox.keep_first_lane()
        link._core.deliver_to(self.on_frame)
        link._whole = self

    def lose(self, link: TransportSession, end: SessionEnded) -> bool:
        """Remove a link that ended; return whether there are others. The last one stays named."""
        assert link._core is not None
        assert self._core is not None
        unresponsive = end.reason == CloseReason.UNRESPONSIVE and not end.by_peer
        ends_all = unresponsive or link._core.session_left or isinstance(end, NeighbourLimit)
        if ends_all and self._closing is None:
            self._closing = end
        others = tuple(other for other in self._links if other is not link)
        waiting, self.on_loss = self.on_loss, []
        for call in waiting:
            call(end)
        if not others:
            self.over = self._closing or end
            return False
        self._links = others
        self.link = others[0].link
        if self._closing is None:
            self._choose()
        else:
            for other in others:
                other._close(CloseReason(self._closing.reason))
        if link._core.outbox is not None:
            self._core.counters.drop_sent(DropReason.LINK_LOST, link._core.outbox.count_unsent())
        if link._core is not self._core:
            self._core.counters.add(link.counters)
        return True

    def _choose(self, *, hold: bool = False) -> None:
        """Move each lane to the link that suits it best; with `hold` also a busy one. On any
        thread."""
        with self._lock:
            live = [link for link in self._links if link.over is None]
            if not live:
                return
            qos = [_qos_of(link) for link in live]
            later = False
            for index, link in enumerate(self._link_of):
                best = live[choose_link(qos, bool(index & 1), index >> 1)]
                if best is not link and not self._move(index, link, best, hold=hold):
                    later = True
            if (later or self._holds) and not self._settling:
                self._settling = True
                self._reactor.call_at(self._reactor.now() + SETTLE_SECONDS, self._settle)

    def _settle(self) -> None:
        self._settling = False
        if self.over is None:
            self._release()
            self._choose(hold=True)

    def _move(
        self, index: int, link: TransportSession, best: TransportSession, *, hold: bool
    ) -> bool:
        """Move a lane to `best`, unless FRAMEs may still be under way on its living link."""
        with link._lock:
            outbox = link._outbox
            if outbox is None:
                if index == FIRST_LANE:
                    self._send_again(link, best)
            elif not (
                self._is_settled(index, link, outbox)
                or (hold and self._hold(index >> 1, link, outbox, best))
            ):
                return False
            self._last_sns.pop(index, None)
            self._link_of[index] = best
        return True

    def _is_settled(self, index: int, link: TransportSession, outbox: Outbox) -> bool:
        lane, now = index >> 1, self._reactor.now()
        sn = outbox.next_sn(lane, bool(index & 1))
        seen = self._last_sns.get(index)
        if seen is None or seen[0] != sn:
            seen = self._last_sns[index] = sn, now
        settled = sn == self.agreement.initial_sn or now >= seen[1] + SETTLE_SECONDS
        return settled and not link._waiters and _has_sent(link, lane)

    def _hold(
        self, lane: int, link: TransportSession, outbox: Outbox, best: TransportSession
    ) -> bool:
        """Hold a busy lane on `best`; False: it has messages without a number on its link."""
        if link._waiters or not outbox.is_numbered(lane):
            return False
        with best._lock:
            if best._outbox is None:
                return False
            best._outbox.hold(lane)
        until = self._reactor.now() + HOLD_SECONDS
        self._holds.setdefault((best, lane), _Hold(until)).before.append(link)
        return True

    def _release(self) -> None:
        """Release the lanes whose FRAMEs the peer has read from the links that they took before."""
        now = self._reactor.now()
        with self._lock:
            for (link, lane), hold in list(self._holds.items()):
                if hold.sent_at is None and all(_has_sent(old, lane) for old in hold.before):
                    hold.sent_at = now
                settled = hold.sent_at is not None and now >= hold.sent_at + SETTLE_SECONDS
                if settled or now >= hold.until or link.over is not None:
                    del self._holds[link, lane]
                    with link._lock:
                        if link._outbox is not None:
                            link._outbox.release(lane)
                    link.flush()

    def _send_again(self, link: TransportSession, best: TransportSession) -> None:
        """Send the first lane's last batches, which have the declarations, over another link: what
        was sent just before a link ended may be lost, and declarations are never repeated."""
        assert link._core is not None
        with best._lock:
            if link._core.outbox is not None and best._outbox is not None:
                best._outbox.send_again(link._core.outbox.take_first_lane(self._reactor.now()))
        best.flush()

    # ---- messages

    def _index(self, qos: int, reliable: bool) -> int:
        return (qos & self._priority_bits) << 1 | reliable

    def _over_link(self, qos: int, reliable: bool, call: Callable[[TransportSession], R]) -> R:
        """Call with the link that the lane takes; with another one if that link has just ended."""
        index = self._index(qos, reliable)
        for _ in range(MAX_ATTEMPTS):
            link = self._link_of[index]
            with link._lock:
                if self._link_of[index] is link:
                    try:
                        return call(link)
                    except SessionClosed as end:
                        ended = self.over is not None or self._closing is not None
                        if ended or link.over is None or end.reason == CloseReason.UNRESPONSIVE:
                            raise
            self._choose()
        raise SessionClosed("every link of the session has ended", CloseReason.GENERIC)

    def send(self, message: NetworkMessage, reliable: bool = True) -> bool:
        return self._over_link(message.qos, reliable, lambda link: link.send(message, reliable))

    def send_encoded(self, data: bytes | memoryview, qos: int, reliable: bool = True) -> bool:
        return self._over_link(qos, reliable, lambda link: link.send_encoded(data, qos, reliable))

    def post(self, message: NetworkMessage, reliable: bool = True) -> bool:
        return self._over_link(message.qos, reliable, lambda link: link.post(message, reliable))

    def send_run(
        self,
        data: memoryview,
        ends: IntegerSequence,
        qos: IntegerSequence,
        reliable: bool,
        lane: int,
    ) -> int:
        return self._over_link(
            lane, reliable, lambda link: link.send_run(data, ends, qos, reliable, lane)
        )

    def send_columns(self, columns: "PushColumns", priority: WirePriority, reliable: bool) -> int:
        from zenlake.wire.emit import Emitter

        self._refuse_on_io_thread()
        qos = QoS(priority, WireCongestionControl.BLOCK)
        return self._send_rows(Emitter(columns, None), qos, reliable)

    def emit_lane(self, priority: WirePriority, reliable: bool) -> LaneSettings | None:
        return None

    def reply_emitter(
        self, columns: "PushColumns", envelope: "Envelope", priority: WirePriority
    ) -> "Emitter":
        from zenlake.wire.emit import Emitter

        return Emitter(columns, None, envelope)

    def offer_rows(self, rows: "Emitter", qos: QoS, most: int | None = None) -> bool:
        return self._over_link(qos, True, lambda link: link.offer_rows(rows, qos, most))

    def has_room(self, qos: int) -> bool:
        return self._link_of[self._index(qos, True)].has_room(qos)

    def check_size(self, size: int) -> None:
        for link in self._links:
            link.check_size(size)

    def wait_for_room(self, qos: int, seconds: float) -> None:
        self._link_of[self._index(qos, True)].wait_for_room(qos, seconds)

    def flush(self) -> None:
        for link in self._links:
            link.flush()

    # ---- facts

    @property
    def counters(self) -> Counters:
        """Sums over all links since the session opened."""
        assert self._core is not None
        total = Counters()
        total.add(self._core.counters)
        for link in self._links:
            if link._core is not self._core:
                total.add(link.counters)
        return total

    @property
    def lag(self) -> tuple[int, float | None]:
        lags = [link.lag for link in self._links]
        since = [moved for _, moved in lags if moved is not None]
        return sum(waiting for waiting, _ in lags), min(since, default=None)

    # ---- back-pressure and the end

    def pause(self) -> None:
        self._paused = True
        for link in self._links:
            link.pause()

    def _resume(self) -> None:
        self._paused = False
        for link in self._links:
            link._resume()

    def _close(self, reason: CloseReason) -> None:
        if self.over is None and self._closing is None:
            self._closing = SessionClosed("closed by this node", reason)
            for link in self._links:
                link._close(reason)


def _has_sent(link: TransportSession, lane: int) -> bool:
    """Whether nothing of a lane waits in a link, which may have ended."""
    with link._lock:
        outbox = link._outbox
        if outbox is None:
            return True
        return outbox.is_idle(lane) and link._rest is None and not link.link.unsent


def _qos_of(link: TransportSession) -> LinkQos:
    qos = link.agreement.link_qos
    return qos if qos.reliable is not None else replace(qos, reliable=link.link.reliable)
