"""A multicast group: messages leave through the group as a whole, and come from its members.

Knows which thread may do what, and how fast datagrams may leave. Does not know what messages mean:
each member is a session of its own for the node's handler.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from zenlake.errors import LinkError, NeighbourLimit, SessionClosed, SessionEnded
from zenlake.link.multicast import MulticastLink, Received
from zenlake.runtime.reactor import Timer, guard
from zenlake.runtime.sending import BatchSource, SendingSession
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.counters import Counters
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.multicast import GroupOffer, Member, Multicast
from zenlake.transport.offer import Agreement
from zenlake.transport.sequence import SequenceIn
from zenlake.wire.enums import CloseReason, WirePriority
from zenlake.wire.locator import Locator
from zenlake.wire.zenohid import WireZenohId

if TYPE_CHECKING:
    from zenlake.runtime.node import Node, NodeHandler

log = logging.getLogger("zenlake.runtime")

READS_PER_TURN = 32  # Datagrams read before the other links have their turn.
BURST_DATAGRAMS = 8  # Datagrams sent in one go: receivers have room for a few dozen.
BURST_PAUSE = 0.001  # Seconds between two bursts.
WELCOME_SECONDS = 0.1  # Time for more nodes to join before JOIN answers them together.
WELCOME_PAUSE = 1.0  # Least pause between such answers: declarations are repeated with them.
WELCOME_SHARE = 10  # Least pause, as a multiple of the time that the last repetition took.
LAST_LOOK_READS = 1024  # Datagrams read of each socket before a silent member is given up.
CLOSE_SECONDS = 1.0  # Time for the last messages to leave when the group is left.
DONE = object()  # Marks the end of a repetition.


class GroupMember(TransportSession):
    """Session with one member of a group, which only receives: the group sends."""

    group: "Group"

    def __init__(self, group: "Group", member: Member) -> None:
        offer = group.core.offer
        self.member = member
        self.group = group
        self.link = group.link  # type: ignore[assignment]  # All members share it.
        self.face = None
        self.on_end = []
        self.is_open = True
        self.over = None
        self.on_open = None
        self.began_at = self.linked_at = self.opened_at = member.last_received
        self._whole = None
        self._core = None
        self._outbox = None
        self._closing = None
        self._agreement = Agreement(
            zid=member.zid,
            whatami=member.whatami,
            resolution=offer.resolution,
            batch_size=offer.batch_size,
            qos=offer.qos,
            low_latency=False,
            compression=offer.compression,
            patch=offer.patch,
            lease=offer.lease_ms / 1000,
            peer_lease=member.lease,
            initial_sn=0,
            peer_initial_sn=0,
        )

    @property
    def agreement(self) -> Agreement:
        """The parameters of the group, with the member's id and role."""
        return self._agreement

    @property
    def peer(self) -> WireZenohId:
        return self.member.zid

    @property
    def shm_declined(self) -> str:
        return "members of multicast groups share none"

    @property
    def remote(self) -> Locator:
        return self.group.link.locator_of(self.member.address)

    @property
    def counters(self) -> Counters:
        """Messages and bytes received from the member."""
        return self.member.counters

    @property
    def sequences(self) -> dict[tuple[WirePriority, bool], SequenceIn]:
        return self.member.lanes.gaps()

    def __repr__(self) -> str:
        return f"<Member {self.member} of {self.link.remote}>"

    def drop_received(self, reason: DropReason, count: int = 1) -> None:
        if count:
            self.counters.drop_received(reason, count)

    def link_states(self, body: int | bytes | None) -> None:
        """Ignore link states: members do not connect to each other because of them."""

    def close(self, reason: CloseReason = CloseReason.GENERIC) -> None:
        """Do nothing: a node cannot end the membership of another."""

    def pause(self) -> None:
        """Stop reading from the group, and so from all its members. On the I/O thread."""
        self.group.pause(self)

    def resume(self) -> None:
        self.group.resume(self)


class Group(SendingSession):
    """Membership of one group. The methods that send, and `close`, may be called on any thread."""

    link: MulticastLink
    _core: Multicast

    def __init__(
        self, node: "Node", link: MulticastLink, offer: GroupOffer, handler: "NodeHandler"
    ) -> None:
        super().__init__(node, link)
        self.face: Any = None
        "Belongs to the node's handler."
        self.on_end: list[Callable[[SessionEnded], None]] = []
        "Calls to make when the group was left."
        self._handler = handler
        self._on_frame = handler.on_frame
        self._core = Multicast(
            offer,
            self,
            node.config.entropy,
            self._reactor.now(),
            process=node.config.memory,
            max_message=node.config.max_message,
            on_gap=None if node.on_gap is None else partial(self._report_gap, node.on_gap),
        )
        self._outbox = self._core.outbox
        self._members: dict[Member, GroupMember] = {}
        self._paused: set[GroupMember] = set()
        "Members whose receivers have no room; nothing is read while there is one."
        self._newcomers = False
        "Whether a member has joined that the declarations have not been repeated for."
        self._welcoming = False
        "Whether a repetition is due or under way."
        self._next_welcome = 0.0
        "When newcomers may be answered next."
        self._sources = (
            (link, link.receive),
            (link.unicast, link.receive_unicast),
        )
        "The group's socket and the one that sends, which gets the answers."
        self._reads = False
        self._timer: Timer | None = None
        self._leave_at = 0.0
        "When the group is left even if messages still wait."
        self._left = threading.Event()

    @property
    def core(self) -> Multicast:
        return self._core

    @property
    def members(self) -> tuple[GroupMember, ...]:
        """The sessions with the present members."""
        return tuple(dict(self._members).values())

    def __repr__(self) -> str:
        return f"<Group {self.link.remote} with {len(self._members)} members>"

    def start(self) -> None:
        """Announce this node, and read what the members send."""
        self._reactor.call_soon(self._start)

    def close(self) -> None:
        """Send queued messages and CLOSE, then leave. Waits for that, unless on the I/O thread."""
        self._reactor.call_soon(self._close)
        if not self._reactor.inside:
            self._left.wait(2 * CLOSE_SECONDS)

    # ---- for the core, on the I/O thread

    def joined(self, member: Member) -> None:
        session = self._members[member] = GroupMember(self, member)
        log.info("%s joined %s", member, self.link.remote)
        guard(self._handler.opened, session)
        # Rust leaves newcomers without this node's messages until its next regular JOIN.
        self._newcomers = True
        self._join_for_newcomers()
        self._arm()

    def announced(self) -> None:
        """Repeat the declarations behind this JOIN, if it is for newcomers. On any thread."""
        if self._newcomers and not self._welcoming and self._reactor.now() >= self._next_welcome:
            self._newcomers = False
            self._welcoming = True
            self._reactor.call_soon(self._welcome)

    def on_frame(
        self,
        member: Member,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        return self._on_frame(self._members[member], priority, reliable, data, pos, end)

    def left(self, member: Member, why: SessionEnded) -> None:
        session = self._members.pop(member)
        session.over = why
        if isinstance(why, NeighbourLimit):
            text = "%s is no longer a member of %s: %s"
            self._node.log_limited("neighbour", text, member, self.link.remote, why)
        else:
            log.info("%s left %s: %s", member, self.link.remote, why)
        self._resume(session)
        guard(self._handler.closed, session, why)

    def _report_gap(
        self,
        on_gap: Callable[[TransportSession, WirePriority, bool, int, int], None],
        member: Member,
        priority: WirePriority,
        reliable: bool,
        first: int,
        count: int,
    ) -> None:
        on_gap(self._members[member], priority, reliable, first, count)

    # ---- newcomers, on the I/O thread

    def _join_for_newcomers(self) -> None:
        self._core.join_by(max(self._reactor.now() + WELCOME_SECONDS, self._next_welcome))

    def _welcome(self) -> None:
        """Repeat the declarations, a step per turn; then pause."""
        began = self._reactor.now()
        repeat = self._node.on_newcomers
        steps = iter(()) if repeat is None else repeat(self)

        def step() -> None:
            if self._closing is None and next(steps, DONE) is not DONE:
                self._reactor.call_soon(step)
                return
            self._welcoming = False
            now = self._reactor.now()
            self._next_welcome = now + max(WELCOME_PAUSE, WELCOME_SHARE * (now - began))
            if self._newcomers and self._closing is None:
                self._join_for_newcomers()
                self._arm()

        step()

    # ---- reading, on the I/O thread

    def _start(self) -> None:
        if self._node.closing:
            self._close()
        elif self._closing is None:
            self._read_if(True)
            self._on_time()

    def _read_if(self, wanted: bool) -> None:
        """Read both sockets, or neither."""
        if wanted == self._reads:
            return
        self._reads = wanted
        for source, receive in self._sources:
            if wanted:
                self._reactor.watch(
                    source, partial(self._on_readable, receive), read=True, write=False
                )
            else:
                self._reactor.forget(source)

    def _on_readable(
        self, receive: Callable[[], Received | None], readable: bool, writable: bool
    ) -> None:
        self._read(receive, READS_PER_TURN)

    def _read(self, receive: Callable[[], Received | None], most: int) -> None:
        try:
            for _ in range(most):
                received = receive() if self._reads else None  # A handler may have paused reading.
                if received is None:
                    break
                data, sender = received
                guard(self._core.receive, data, sender, self._reactor.now())
        except LinkError as error:
            self._fail(error)

    def _fail(self, error: LinkError) -> None:
        """Leave the group because its link is of no use; the node joins it again."""
        if self.over is None:
            log.error("left a group: %s", error)
            end = SessionClosed(str(error), CloseReason.GENERIC)
            end.__cause__ = error
            self._end(end)

    def pause(self, member: GroupMember) -> None:
        """Stop reading until `resume` was called for each such member. On the I/O thread."""
        if member.over is None:
            self._paused.add(member)
            self._read_if(False)

    def resume(self, member: GroupMember) -> None:
        """Read again, unless receivers of other members have no room either. On any thread."""
        self._reactor.call_soon(lambda: self._resume(member))

    def _resume(self, member: GroupMember) -> None:
        self._paused.discard(member)
        if not (self._paused or self._reads) and self._closing is None:
            self._core.renew_leases(self._reactor.now())
            self._read_if(True)

    # ---- time, on the I/O thread

    def _on_time(self) -> None:
        now = self._reactor.now()
        if self._paused:  # This node does not read: the members are not silent.
            self._core.renew_leases(now)
        if self._core.silent_members(now):
            # The thread may have been busy: what has arrived meanwhile is read first.
            for _, receive in self._sources:
                self._read(receive, LAST_LOOK_READS)
        if self._closing is not None:
            return
        self._core.on_time(now)  # Without the lock: handlers are called.
        self.flush()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.call_at(self._core.deadline(), self._on_time)

    # ---- writing

    def _write_batches(self, core: BatchSource, now: float, full_only: bool) -> None:
        """Write a burst of datagrams; the others follow after a pause."""
        data = core.pull(now, full_only) if self._rest is None else self._rest
        self._rest = None
        for _ in range(BURST_DATAGRAMS):
            if data is None:
                return
            try:
                if not self.link.send(data):
                    break
            except LinkError as error:  # The network may come back.
                core.counters.drop_sent(DropReason.GROUP_LINK_FAILED)
                self._node.log_limited("group", "cannot send to a group: %s", error)
                if not self.link.is_usable:
                    self._reactor.call_soon(partial(self._fail, error))
            self._moved_at = now
            data = core.pull(now, full_only)
        if data is not None:
            self._rest = memoryview(data)

    def _write_when_ready(self, now: float) -> None:
        """Write the next burst after a pause."""
        if not self._again_armed:
            self._again_armed = True
            self._reactor.call_at(now + BURST_PAUSE, self._write_again)

    def _on_writable(self) -> None:
        with self._lock:
            self._flush(self._reactor.now())
        self._leave_if_all_sent()

    def _watch(self, *, read: bool | None = None, write: bool | None = None) -> None:
        """Do nothing: `_write_when_ready` waits by a timer."""

    def _cannot_write(self, error: LinkError) -> None:
        """Do nothing: datagrams that the link refuses are dropped and counted."""

    def _rearm(self) -> None:
        """Do nothing: no deadline depends on what waits."""

    def _close_stuck(self) -> None:
        """Do nothing: the message is dropped and counted, and the group stays."""

    # ---- leaving, on the I/O thread

    def _close(self) -> None:
        if self._closing is not None:
            return
        now = self._reactor.now()
        with self._lock:
            if self._rest is None:
                self._flush(now)
            self._closing = SessionClosed("this node left the group", CloseReason.GENERIC)
            self._refuse_sends()
            self._room.notify_all()
        self._leave_at = now + CLOSE_SECONDS
        self._leave_if_all_sent()

    def _leave_if_all_sent(self) -> None:
        """Leave a group that is being closed, once its messages were sent or had their time."""
        if self._closing is not None and (
            self._rest is None or self._reactor.now() >= self._leave_at
        ):
            self._end(self._closing)

    def _end(self, end: SessionEnded) -> None:
        """Send CLOSE and leave the group."""
        if self.over is not None:
            return
        with self._lock:
            self._closing = end
            self._refuse_sends()
            self._rest = None
        self._read_if(False)
        if self._timer is not None:
            self._timer.cancel()
        self._core.close()  # Without the lock: handlers are called.
        with self._lock:
            self._flush(self._reactor.now())
            self.over = end
            self._room.notify_all()
        self.link.close()
        self._left.set()
        for call in self.on_end:
            call(end)
