"""A transport session: one link, one unicast core, and the life of both.

With MultiLink, each link of a session is such an object, and multilink_session.py joins them.

Knows opening, reading, timers and closing, all on the I/O thread. Sending, on any thread, is in
sending.py. Does not know what messages mean: the node's handler gets them.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from zenlake.errors import LinkError, SessionClosed, SessionEnded, SessionRefused
from zenlake.link.base import READ_BYTES, Progress, TransportLink
from zenlake.runtime.reactor import Timer
from zenlake.runtime.sending import SendingSession
from zenlake.transport.establishment import Acceptor, Opener
from zenlake.transport.offer import Agreement
from zenlake.transport.sequence import SequenceIn
from zenlake.transport.unicast import Unicast
from zenlake.wire.enums import CloseReason, WirePriority
from zenlake.wire.framing import Framing
from zenlake.wire.locator import Locator
from zenlake.wire.zenohid import WireZenohId

if TYPE_CHECKING:
    from zenlake.runtime.group import Group
    from zenlake.runtime.node import Node

log = logging.getLogger("zenlake.runtime")

READS_PER_TURN = 4  # Reads from one link before the other links have their turn.
TURN_SECONDS = 0.02  # Time for one link before the others have theirs: small messages take long.
LINGER_SECONDS = 1.0  # Time without progress after which a session that is being closed is ended.
MAX_LINGER_SECONDS = 4.0  # Upper bound on the closing of a session, even with progress.
SHM_UNREAD_BYTES = 256 << 10
"""Received bytes that may wait in the system, with shared memory: memory that a pointer refers to
is not free again before the bytes in front of it were read. A sender without free memory sends
large payloads themselves, which makes the wait longer still."""


class TransportSession(SendingSession):
    """A session with one peer over one link.

    Methods without an underscore may be called on any thread, unless they say otherwise.
    """

    link: TransportLink
    group: "Group | None" = None
    "The multicast group that the peer is a member of; None: the link is to the peer alone."
    _core: Unicast | None

    def __init__(
        self,
        node: "Node",
        link: TransportLink,
        handshake: Opener | Acceptor,
        patience: float,
        ended: Callable[["TransportSession", SessionEnded], None],
        on_open: Callable[["TransportSession"], None] | None = None,
    ) -> None:
        super().__init__(node, link)
        self._hides = (
            type(link).more is not TransportLink.more
            or type(link).unsent is not TransportLink.unsent
        )
        self.handshake = handshake
        self.on_open = on_open
        self.on_end: list[Callable[[SessionEnded], None]] = []
        "Calls to make when the session has ended."
        self.face: Any = None
        "Belongs to the node's handler."
        self.is_open = False
        self._ended = ended
        self._patience = patience
        self._handle_frame = node.handler.on_frame
        "Cached: it is called for each FRAME."
        self._whole: TransportSession | None = None
        self._watching = (True, True)
        "The events that the reactor waits for: (readable, writable)."
        self._paused = False
        self._turn_end = 0.0
        "When the other links have their turn."
        self.began_at = self.moved_on_at = self._reactor.now()
        "When the handshake began, and when it became the peer's turn to go on with it."
        self.linked_at = self.opened_at = 0.0
        "When the link was established and the session open, on the reactor's clock; 0: not yet."
        self._timer = self._reactor.call_at(self.began_at + patience, self._on_time)
        self._expiry: Timer | None = None
        "Fires when the peer's certificate expires."
        try:
            link.schedule = self._drive_at
            if link.driven:
                self._reactor.watch(link, self._on_work, read=True, write=False)
                self._reactor.call_soon(lambda: self._on_work(True, False))
            else:
                self._reactor.watch(link, self._on_ready, read=True, write=True)
        except (OSError, KeyError, ValueError) as error:  # The poller's refusals.
            self._watching = (False, False)
            end = SessionRefused(f"{link.remote}: {error}", CloseReason.GENERIC)
            self._reactor.call_soon(lambda: self._end(end))

    # ---- the peer

    @property
    def agreement(self) -> Agreement:
        """The result of the handshake. SessionClosed: it is not over."""
        agreed = self.handshake.agreement
        if agreed is None:
            raise SessionClosed("the session is not open yet", CloseReason.GENERIC)
        return agreed

    @property
    def zid(self) -> WireZenohId:
        """The peer's id."""
        return self.agreement.zid

    @property
    def remote(self) -> Locator:
        """The peer's locator."""
        return self.link.remote

    @property
    def peer(self) -> WireZenohId | None:
        """The id that the peer claims, which nothing has proved before the session opens."""
        return self.handshake.peer.zid if self.handshake.peer is not None else None

    @property
    def whole(self) -> "TransportSession":
        """The session that this link belongs to, if it has several; else this session itself."""
        return self._whole or self

    @property
    def links(self) -> "tuple[TransportSession, ...]":
        """The session of each link."""
        return (self,)

    @property
    def in_order(self) -> bool:
        """Whether all messages arrive, and no message overtakes one of a higher priority."""
        return self.link.reliable

    @property
    def linked(self) -> bool:
        """Whether the link's own handshake is over."""
        return self._core is not None

    @property
    def sequences(self) -> dict[tuple[WirePriority, bool], SequenceIn]:
        """Gaps, missing and stale numbers of every lane that was used."""
        return self._core.sequences() if self._core is not None else {}

    def __repr__(self) -> str:
        agreed = self.handshake.agreement
        who = "handshake" if agreed is None else f"{agreed.whatami.name} {agreed.zid}"
        return f"<Session {who} {self.link.protocol} {self.link.remote}>"

    # ---- for the core

    def on_frame(
        self, priority: WirePriority, reliable: bool, data: bytes, pos: int, end: int
    ) -> int:
        """Pass the network messages of a FRAME to the node's handler (called by the core)."""
        return self._handle_frame(self, priority, reliable, data, pos, end)

    def opened(self) -> None:
        """Open the session: the handshake is over (called by the core)."""
        core = self._core
        assert core is not None
        assert core.agreement is not None
        self._outbox = core.outbox
        if self.handshake.shm is not None and core.agreement.shm:
            self.shm = self._node.share_memory(self.handshake.shm)
            self.link.limit_unread(SHM_UNREAD_BYTES)
        else:
            log.info("%s: no shared memory: %s", self, self.shm_declined)
        self.opened_at = self._reactor.now()
        self._timer.cancel()
        self._arm(core)
        self.flush()  # The OPEN ack leaves before anything else.
        self._node.session_opened(self)

    @property
    def shm_declined(self) -> str | None:
        """Why payloads do not travel through shared memory; None: they may."""
        steps = self.handshake.shm
        if steps is None:
            return self._node.shm_declined
        return None if steps.agreed or self.shm is not None else steps.declined

    def link_states(self, body: int | bytes | None) -> None:
        """Pass the peer's link states on to discovery (called by the handler)."""
        if isinstance(body, bytes):
            self._node.link_states(self, body)

    # ---- reading and writing, on the I/O thread

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

    def _on_work(self, readable: bool, writable: bool) -> None:
        """Drive a driven link, then read and write as the session wants to."""
        if self.over is None:
            self.link.drive()
            reads, writes = self._watching
            if reads or writes:
                self._on_ready(reads, writes)

    def _drive_at(self, when: float) -> None:
        """Drive the link at that time: it has a timer of its own. Called on any thread."""
        self._reactor.call_at(when, lambda: self._on_work(True, False))

    def read_now(self) -> None:
        """Read what has arrived. On the I/O thread."""
        (self._on_work if self.link.driven else self._on_ready)(True, False)

    def read_more(self) -> None:
        """Read what waits inside the link, where the reactor cannot see it."""
        self._reactor.call_soon(lambda: self._on_ready(True, False))

    def _advance(self) -> None:
        """Continue the link's own handshake; when it is over, start that of the session."""
        try:
            progress = self.link.handshake()
        except LinkError as error:
            self._on_broken_link(error)
            return
        if progress is not Progress.DONE:
            self._watch(read=progress is Progress.WANT_READ, write=progress is Progress.WANT_WRITE)
            return
        now = self.linked_at = self._reactor.now()
        self._move_on()
        self._core = Unicast(
            self.handshake,
            self,
            self.link.framing,
            now,
            until=self.began_at + self._patience,
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
        except LinkError as error:  # Without the lock: handlers are called.
            self._cannot_write(error)
            return
        self._end_if_all_sent()

    def _read(self) -> None:
        """Read one turn's worth of bytes, and write the answers to them."""
        core = self._core
        assert core is not None
        if not self.is_open and self._node.must_wait(self):
            self.pause()
            return
        step = self.handshake.state
        self._reading = True
        try:
            self._read_turn(core)
        except SessionEnded as end:
            self._end_later(end, self._node.penalty(self, end))
            return
        except LinkError as error:
            self._on_broken_link(error)
            return
        except (Exception, SystemExit):  # The bytes that were read are lost.
            log.exception("%s: the handler failed", self.link.remote)
            self._end(SessionClosed("the handler failed", CloseReason.GENERIC))
            return
        finally:
            self._reading = False
        if not self.is_open and self.handshake.state is not step:
            self._move_on()
        if core.outbox is None or core.outbox.waiting or self._hides:
            self.flush()

    def _move_on(self) -> None:
        """Note that it is the peer's turn to go on with the handshake."""
        self.moved_on_at = self._reactor.now()
        self._node.handshake_moved_on(self)

    def _read_turn(self, core: Unicast) -> None:
        """Read until the link is empty, the session is paused, or the turn is over."""
        link = self.link
        self._turn_end = self._reactor.now() + TURN_SECONDS
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
            if len(data) < READ_BYTES and link.framing is Framing.STREAM and not self._hides:
                break
        if not self._paused and (core.pending or (self._hides and link.more)):
            self.read_more()

    # ---- timers, on the I/O thread

    def _rearm(self) -> None:
        """Set the timer again: the core's deadline has changed."""
        if self._core is not None and self.over is None and self._closing is None:
            self._timer.cancel()
            self._arm(self._core)

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
            core.last_received = now  # This node does not read: the peer is not silent.
        if core.has_expired(now):
            # The thread may have been busy, and the poller returns some links only: what has
            # arrived on this one is read before it is judged.
            self.read_now()
        try:
            with self._lock:
                core.on_time(now)
        except SessionEnded as end:
            self._end(end)
            return
        if not core.ended:
            self.flush()
            self._rearm()

    # ---- back-pressure

    def pause(self) -> None:
        """Stop reading from the link, so that the peer has to wait. On the I/O thread."""
        if not self._paused and self._closing is None and self.over is None:
            self._paused = True
            self._watch(read=False)

    def resume(self) -> None:
        """Read again, from the I/O thread."""
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
        """Tell the reactor what to wait for; None: as before. Called on any thread.

        A link with nothing to wait for is not watched at all: if it broke, the reactor would be
        woken again and again.
        """
        with self._lock:
            before = self._watching
            wanted = (before[0] if read is None else read, before[1] if write is None else write)
            if self.over is not None or wanted == before:
                return
            if self.link.driven:  # It is watched until the session ends.
                pass
            elif not any(before):
                self._reactor.watch(self.link, self._on_ready, read=wanted[0], write=wanted[1])
            elif any(wanted):
                self._reactor.change(self.link, read=wanted[0], write=wanted[1])
            else:
                self._reactor.forget(self.link)
            self._watching = wanted

    # ---- the end

    def close(self, reason: CloseReason = CloseReason.GENERIC) -> None:
        """Send queued messages and CLOSE, then end. Returns at once; the handler's `closed`
        follows.

        A reliable link is kept until the peer has closed it: if it were closed with bytes unread,
        the kernel would discard bytes that are on their way.
        """
        self._reactor.call_soon(lambda: self._close(reason))

    def refuse(self, why: str, reason: CloseReason) -> None:
        """End a handshake at once, with a CLOSE if the link is established. On the I/O thread."""
        self._end(SessionRefused(why, reason))

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
            self._refuse_sends()
            self._paused = False
            self._room.notify_all()
            if self._rest is None:
                self._flush(now)
            self._watch(read=True)
        self._timer.cancel()
        self._linger(core, now)
        self._end_if_all_sent()

    def _end_if_all_sent(self) -> None:
        """End a session that is being closed once its last bytes have left, unless its peer is to
        close the link."""
        all_sent = self._rest is None and not self.link.unsent
        if all_sent and self._closing is not None and not (self.is_open and self.link.reliable):
            self._end(self._closing)

    def _linger(self, core: Unicast, since: float) -> None:
        """End a closing session whose peer neither takes the last bytes nor closes the link."""
        moved = max(core.last_sent, since)
        again = min(moved + LINGER_SECONDS, since + MAX_LINGER_SECONDS)
        if self._closing is None or self.over is not None:
            return
        if self._reactor.now() >= again:
            self._end(self._closing)
        else:
            self._timer = self._reactor.call_at(again, lambda: self._linger(core, since))

    def _cannot_write(self, error: LinkError) -> None:
        """End a session whose link cannot be written. A peer that closed the link may have sent its
        reason, which is read first. On the I/O thread."""
        if self.over is None and self._core is not None:
            self._read()
        self._on_broken_link(error)

    def _on_broken_link(self, error: LinkError) -> None:
        """End the session because its link broke. On the I/O thread."""
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
        """Close the link and wake all callers that wait. On the I/O thread."""
        if self.over is not None:
            return
        end = self._closing or end
        core = self._core
        with self._lock:
            if core is not None:
                core.end(end.reason)  # It frees its memory.
                if self._rest is None and not end.by_peer:
                    self._flush(self._reactor.now())  # A CLOSE that the core left.
            if any(self._watching) or self.link.driven:
                self._reactor.forget(self.link)
            self.over = end
            self._refuse_sends()
            self._timer.cancel()
            if self._expiry is not None:
                self._expiry.cancel()
            self._rest = None
            self._room.notify_all()
        self.link.close()
        if self.handshake.shm is not None:
            (self.shm or self.handshake.shm).close(lost=self._closing is None)
        self._ended(self, end)
        for call in self.on_end:
            call(end)
