"""Multicast transport: members of a group send JOIN periodically, and each gets all messages.

Admits members with exactly this node's parameters; keeps their lanes and leases. Does not know the
link (datagrams go through `receive` and `pull`) or the clock (the time is an argument).
Rust: `io/zenoh-transport/src/multicast`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from zenlake.errors import DecodeError, SessionClosed, SessionEnded
from zenlake.transport.auth import Entropy
from zenlake.transport.counters import Counters
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.establishment import reason_text
from zenlake.transport.fragments import (
    MAX_IDLE_TICKS,
    MAX_MESSAGE_BYTES,
    MAX_SESSION_BYTES,
    PROCESS,
    ByteBudget,
)
from zenlake.transport.lanes import Deliver, InboundLanes, discard_frame
from zenlake.transport.offer import (
    MAX_LEASE,
    MIN_BATCH_SIZE,
    MIN_LEASE,
    PATCH,
    SN_MASKS,
    clamp_lease,
)
from zenlake.transport.outbox import Outbox
from zenlake.wire import fragment, frame
from zenlake.wire.batch import TRANSPORT, TransportMessage
from zenlake.wire.close import Close
from zenlake.wire.cursor import ByteReader
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.enums import PRIORITIES, CloseReason, WirePriority, WireWhatAmI
from zenlake.wire.framing import Framing, uncompress
from zenlake.wire.init import DEFAULT_RESOLUTION, VERSION
from zenlake.wire.join import DEFAULT_BATCH_SIZE, Join
from zenlake.wire.zenohid import WireZenohId

JOIN_SECONDS = 2.5  # Interval between two JOINs (zenoh-config transport.multicast.join_interval).
MIN_JOIN_SECONDS = 0.01  # Shortest interval: a shorter one would keep the I/O thread busy.
MAX_MEMBERS = 1000  # Members of one group (zenoh-config transport.multicast.max_sessions).
MAX_DATAGRAM = 0xFFFF  # Largest datagram accepted: Rust sends more than it announces.

Address = tuple[str, int]

MEMBER_ROLES = {
    WireWhatAmI.PEER: WireWhatAmI.PEER | WireWhatAmI.ROUTER,
    WireWhatAmI.ROUTER: WireWhatAmI.PEER,
}
"""Roles of the members with which a node of each role exchanges messages. In Rust (region.rs) two
routers in one group end the membership of the one that hears the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffer:
    """Parameters of one membership. Most are announced, and every other member must announce the
    same ones."""

    zid: WireZenohId
    whatami: WireWhatAmI
    resolution: int = DEFAULT_RESOLUTION
    batch_size: int = DEFAULT_BATCH_SIZE
    lease_ms: int = 10_000
    qos: bool = False
    compression: bool = False
    patch: int = PATCH
    join_seconds: float = JOIN_SECONDS
    max_members: int = MAX_MEMBERS
    "Other members that this node keeps; a JOIN beyond is dropped."

    def __post_init__(self) -> None:
        if self.whatami not in MEMBER_ROLES:
            raise ValueError("a client does not join groups: be a peer or a router")
        if not MIN_BATCH_SIZE <= self.batch_size <= MAX_DATAGRAM:
            raise ValueError(f"batch_size is {self.batch_size}, outside 32 to {MAX_DATAGRAM}")
        if not MIN_LEASE <= self.lease_ms / 1000 <= MAX_LEASE:
            raise ValueError(f"lease_ms is {self.lease_ms}, outside 100 to 600000")
        if not MIN_JOIN_SECONDS <= self.join_seconds <= MAX_LEASE:
            raise ValueError(
                f"join_seconds is {self.join_seconds}, outside {MIN_JOIN_SECONDS} to {MAX_LEASE}"
            )


@dataclass(slots=True, eq=False)
class Member:
    """Another node of the group, as admitted by its JOIN."""

    address: Address
    zid: WireZenohId
    whatami: WireWhatAmI
    lease: float
    last_received: float
    lanes: InboundLanes
    join: tuple[object, ...]
    "Parameters that its later JOINs must repeat."
    counters: Counters = field(default_factory=Counters)
    deliver: Deliver = discard_frame
    "Delivers its messages to the group's handler."

    def __str__(self) -> str:
        return f"{self.whatami.name} {self.zid} at {self.address[0]}:{self.address[1]}"


class GroupHandler(Protocol):
    """Receiver of a group's members and messages."""

    def joined(self, member: Member) -> None: ...

    def on_frame(
        self,
        member: Member,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        """Handle network messages as `UnicastHandler.frame` does."""

    def announced(self) -> None:
        """Note that a JOIN leaves next. Called by `pull`."""

    def left(self, member: Member, why: SessionEnded) -> None: ...


class Multicast:
    """One node's view of one group."""

    def __init__(
        self,
        offer: GroupOffer,
        handler: GroupHandler,
        entropy: Entropy,
        now: float,
        *,
        process: ByteBudget = PROCESS,
        max_message: int = MAX_MESSAGE_BYTES,
        on_gap: Callable[[Member, WirePriority, bool, int, int], None] | None = None,
    ) -> None:
        self.offer = offer
        self.members: dict[Address, Member] = {}
        self.counters = Counters()
        self.mask = SN_MASKS[offer.resolution & 0x03]
        lanes = len(PRIORITIES) if offer.qos else 1

        def random_sn() -> int:
            return int.from_bytes(entropy(4), "little") & self.mask

        self.outbox = Outbox(
            batch_size=offer.batch_size,
            framing=Framing.DATAGRAM,
            sn_mask=self.mask,
            first_sns=[(random_sn(), random_sn()) for _ in range(lanes)],
            qos=offer.qos,
            compression=offer.compression,
            max_message=max_message,
            counters=self.counters,
        )
        self._handler = handler
        self._on_gap = on_gap
        self._max_message = max_message
        self._memory = ByteBudget(MAX_SESSION_BYTES, process)
        self._join_at = now + offer.join_seconds
        self._join_due: float | None = None
        "Since when a JOIN has been due; None: it is not."
        self._tick_seconds = offer.lease_ms / 1000 / MAX_IDLE_TICKS
        self._tick_at = now + self._tick_seconds
        self._ended = False
        self.outbox.push_control(self._join())

    # ---- out

    @property
    def waiting(self) -> bool:
        """Whether `pull` has a datagram to send."""
        return not self._ended and (self._join_due is not None or self.outbox.waiting)

    def pull(self, now: float, full_only: bool = False) -> bytes | bytearray | memoryview | None:
        """Return the next datagram to send; None: nothing waits, or with `full_only` no whole
        batch."""
        if self._ended:
            batch = self.outbox.pull_control()
        else:
            overdue = self._join_due is not None and now >= self._join_due + self.offer.join_seconds
            batch = None if overdue else self.outbox.pull(now, full_only)
            # JOIN comes last: it carries the sequence numbers that follow the waiting messages.
            # Where messages always wait it comes before them, and a newcomer hears what follows.
            if overdue or (batch is None and self._join_due is not None and not full_only):
                self._join_due = None
                self.outbox.push_control(self._join())
                self._handler.announced()
                batch = self.outbox.pull_control()
        if batch is not None:
            self.counters.sent_bytes += len(batch)
        return batch

    def close(self, reason: CloseReason = CloseReason.GENERIC) -> None:
        """Leave the group: queue a CLOSE for `pull`, and remove all members."""
        self._ended = True
        self.outbox.push_control(Close(reason))
        for member in list(self.members.values()):
            self._leave(member, SessionClosed("this node left the group", reason))

    def _join(self) -> Join:
        offer = self.offer
        sns = self.outbox.next_sns()
        reliable, best_effort = sns[0] if not offer.qos else (0, 0)
        return Join(
            offer.zid,
            offer.whatami,
            offer.lease_ms,
            reliable,
            best_effort,
            resolution=offer.resolution,
            batch_size=offer.batch_size,
            lane_sns=tuple(sns) if offer.qos else None,
            patch=offer.patch,
        )

    # ---- time

    def deadline(self) -> float:
        """Return when `on_time` is due."""
        leases = (member.last_received + member.lease for member in self.members.values())
        return min(self._join_at, min(leases, default=self._join_at))

    def renew_leases(self, now: float) -> None:
        """Treat all members as heard at this time: this node could not read."""
        self._tick_at = now + self._tick_seconds
        for member in self.members.values():
            member.last_received = now

    def join_by(self, when: float) -> None:
        """See to it that the next JOIN is due at that time at the latest."""
        self._join_at = min(self._join_at, when)

    def silent_members(self, now: float) -> list[Member]:
        """Return the members whose lease has expired."""
        return [m for m in self.members.values() if now >= m.last_received + m.lease]

    def on_time(self, now: float) -> None:
        """See to it that a JOIN leaves if it is due, give up unfinished messages that are, and
        remove members whose lease has expired."""
        if self._ended:
            return
        if now >= self._join_at:
            self._join_at = now + self.offer.join_seconds
            if self._join_due is None:
                self._join_due = now
        if now >= self._tick_at:
            self._tick_at = now + self._tick_seconds
            for member in self.members.values():
                member.lanes.tick(reliable=True)
        for member in self.silent_members(now):
            why = SessionClosed(f"nothing came for {member.lease:g} s", CloseReason.EXPIRED)
            self._leave(member, why)

    # ---- in

    def receive(self, data: bytes, sender: Address, now: float) -> None:
        """Handle one datagram. An invalid one is counted and affects its sender alone."""
        if self._ended:
            return
        member = self.members.get(sender)
        counters = self.counters if member is None else member.counters
        counters.received_bytes += len(data)
        counters.received_batches += 1
        try:
            if self.offer.compression:
                data = uncompress(data, limit=MAX_DATAGRAM)
            self._batch(data, sender, now)
        except DecodeError:
            self.counters.drop_received(DropReason.DATAGRAM_INVALID)
        except SessionClosed as broken:
            member = self.members.get(sender)
            if member is not None:
                self._leave(member, broken)

    def _batch(self, data: bytes, sender: Address, now: float) -> None:
        pos, end = 0, len(data)
        while pos < end:
            member = self.members.get(sender)
            header = data[pos]
            if header & ID_MASK == frame.ID and member is not None:
                member.last_received = now
                pos = member.lanes.on_frame(member.deliver, data, pos, end, header)
                continue
            if header & ID_MASK == frame.ID:
                self.counters.drop_received(DropReason.FRAME_NOT_JOINED)
                return
            r = ByteReader(data, pos, end)
            self._message(TRANSPORT.read(r), sender, member, pos, now)
            pos = r.pos

    def _message(
        self,
        message: TransportMessage,
        sender: Address,
        member: Member | None,
        pos: int,
        now: float,
    ) -> None:
        if type(message) is Join:
            self._on_join(message, sender, member, now)
        elif member is None:
            self.counters.drop_received(DropReason.MESSAGE_NOT_JOINED)
        elif type(message) is fragment.Fragment:
            member.last_received = now
            member.lanes.on_fragment(member.deliver, message, pos)
        elif type(message) is Close:
            why = f"left with reason {reason_text(message.reason)}"
            self._leave(member, SessionClosed(why, message.reason, by_peer=True))
        else:
            member.last_received = now

    def _on_join(self, join: Join, sender: Address, member: Member | None, now: float) -> None:
        if join.zid == self.offer.zid:
            self.counters.drop_received(DropReason.JOIN_OWN_ID)
            return
        static = (join.zid, join.whatami, join.lane_sns is None, join.patch)
        mismatch = self._mismatch(join)
        if member is not None and (mismatch or member.join != static):
            self.counters.drop_received(DropReason.JOIN_CHANGED)
            self._leave(member, SessionClosed("its JOIN has changed", CloseReason.INVALID))
            return
        if mismatch:
            self.counters.drop_received(mismatch)
            return
        if member is not None and member.lanes.have_restarted(_sns_by_reliability(join)):
            # It forgot what it declared, and what this node did. Messages that still come from
            # before are stale, or the next JOIN is behind them.
            self._leave(member, SessionClosed("it has restarted", CloseReason.GENERIC))
            member = None
        if member is None:
            if len(self.members) >= self.offer.max_members:
                self.counters.drop_received(DropReason.JOIN_MEMBER_LIMIT)
                return
            self._admit(join, sender, static, now)
        else:
            member.last_received = now
            member.lease = clamp_lease(join.lease_ms)

    def _mismatch(self, join: Join) -> DropReason | None:
        """Return which parameter differs from this node's; None if all are equal."""
        offer = self.offer
        parameters = {
            DropReason.JOIN_MISMATCH_VERSION: (join.version, VERSION),
            DropReason.JOIN_MISMATCH_RESOLUTION: (join.resolution, offer.resolution),
            DropReason.JOIN_MISMATCH_BATCH_SIZE: (join.batch_size, offer.batch_size),
            DropReason.JOIN_MISMATCH_LANES: (join.lane_sns is not None, offer.qos),
        }
        for reason, (theirs, ours) in parameters.items():
            if theirs != ours:
                return reason
        if not join.whatami & MEMBER_ROLES[offer.whatami]:
            return DropReason.JOIN_MISMATCH_ROLE
        sns = join.lane_sns or ((join.reliable_sn, join.best_effort_sn),)
        if any(sn > self.mask for pair in sns for sn in pair):
            return DropReason.JOIN_MISMATCH_SN
        return None

    def _admit(self, join: Join, sender: Address, static: tuple[object, ...], now: float) -> None:
        def report_gap(*gap: Any) -> None:
            assert self._on_gap is not None
            self._on_gap(member, *gap)

        counters = Counters()
        member = Member(
            sender,
            join.zid,
            join.whatami,
            clamp_lease(join.lease_ms),
            now,
            InboundLanes(
                first_sns=_sns_by_reliability(join),
                mask=self.mask,
                patch=min(join.patch, self.offer.patch),
                counters=counters,
                memory=self._memory,
                max_message=self._max_message,
                on_gap=None if self._on_gap is None else report_gap,
            ),
            static,
            counters,
        )
        member.deliver = partial(self._handler.on_frame, member)
        self.members[sender] = member
        self._handler.joined(member)

    def _leave(self, member: Member, why: SessionEnded) -> None:
        del self.members[member.address]
        member.lanes.release()
        self._handler.left(member, why)


def _sns_by_reliability(join: Join) -> list[tuple[int, int]]:
    """Return the next (best effort, reliable) number of each lane of the sender."""
    sns = join.lane_sns or ((join.reliable_sn, join.best_effort_sn),)
    return [(best_effort, reliable) for reliable, best_effort in sns]
