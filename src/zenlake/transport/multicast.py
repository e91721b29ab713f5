"""A multicast group: every member says JOIN again and again, and everybody hears everything.

Knows who is admitted (those with exactly our parameters), their lanes and leases. Does not know
the link: datagrams go through `receive` and `pull`, the time is an argument.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from zenlake.errors import DecodeError, SessionClosed, SessionEnded
from zenlake.transport.auth import Entropy
from zenlake.transport.counters import Counters
from zenlake.transport.establishment import reason_text
from zenlake.transport.fragments import MAX_SESSION_BYTES, PROCESS, ByteBudget
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

JOIN_SECONDS = 2.5  # between two JOINs (zenoh-config transport.multicast.join_interval)
MIN_JOIN_SECONDS = 0.01  # without a pause the I/O thread would do nothing else
MAX_MEMBERS = 1000
MAX_DATAGRAM = 0xFFFF  # others send more than the size they announce

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffer:
    """What a member announces, and what others must announce to be admitted."""

    zid: WireZenohId
    whatami: WireWhatAmI
    resolution: int = DEFAULT_RESOLUTION
    batch_size: int = DEFAULT_BATCH_SIZE
    lease_ms: int = 10_000
    qos: bool = False
    compression: bool = False
    patch: int = PATCH
    join_seconds: float = JOIN_SECONDS

    def __post_init__(self) -> None:
        if self.whatami is WireWhatAmI.CLIENT:
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
    """Another node of the group."""

    address: Address
    zid: WireZenohId
    whatami: WireWhatAmI
    lease: float
    last_received: float
    lanes: InboundLanes
    join: tuple[object, ...]
    "What its JOINs have to repeat."
    counters: Counters = field(default_factory=Counters)
    deliver: Deliver = discard_frame
    "Its messages, to the group's handler."

    def __str__(self) -> str:
        return f"{self.whatami.name} {self.zid} at {self.address[0]}:{self.address[1]}"


class GroupHandler(Protocol):
    """Who gets what a group says."""

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
        """As a session's handler."""

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
            counters=self.counters,
        )
        self._handler = handler
        self._memory = ByteBudget(MAX_SESSION_BYTES, process)
        self._join_at = now + offer.join_seconds
        self._join_due = False
        self._ended = False
        self.outbox.push_control(self._join())

    # ---- out

    @property
    def waiting(self) -> bool:
        """Whether `pull` has something to give."""
        return not self._ended and (self._join_due or self.outbox.waiting)

    def pull(self, now: float) -> bytes | bytearray | memoryview | None:
        """The next datagram; None: nothing waits."""
        batch = self.outbox.pull_control() if self._ended else self.outbox.pull(now)
        if batch is None and self._join_due and not self._ended:
            # After what waits: its numbers are taken, and JOIN says the next one on the wire.
            self._join_due = False
            self.outbox.push_control(self._join())
            batch = self.outbox.pull_control()
        if batch is not None:
            self.counters.sent_bytes += len(batch)
        return batch

    def close(self, reason: CloseReason = CloseReason.GENERIC) -> None:
        """Tell the group that we leave; `pull` gives it."""
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
        """When `on_time` has something to do."""
        leases = (member.last_received + member.lease for member in self.members.values())
        return min(self._join_at, min(leases, default=self._join_at))

    def on_time(self, now: float) -> None:
        """JOIN if it is due; members that were silent for too long are gone."""
        if self._ended:
            return
        if now >= self._join_at:
            self._join_at = now + self.offer.join_seconds
            self._join_due = True
            for member in self.members.values():
                member.lanes.tick()
        for member in list(self.members.values()):
            if now >= member.last_received + member.lease:
                why = SessionClosed(f"nothing came for {member.lease:g} s", CloseReason.EXPIRED)
                self._leave(member, why)

    # ---- in

    def receive(self, data: bytes, sender: Address, now: float) -> None:
        """One datagram. What is wrong with it is counted, and concerns its sender alone."""
        if self._ended:
            return
        self.counters.received_bytes += len(data)
        self.counters.received_batches += 1
        try:
            if self.offer.compression:
                data = uncompress(data, limit=MAX_DATAGRAM)
            self._batch(data, sender, now)
        except DecodeError:
            self.counters.drop_received("datagram does not decode")
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
                pos = member.lanes.frame(member.deliver, data, pos, end, header)
                continue
            if header & ID_MASK == frame.ID:
                self.counters.drop_received("frame of a node that has not joined")
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
            self.counters.drop_received("message of a node that has not joined")
        elif type(message) is fragment.Fragment:
            member.last_received = now
            member.lanes.fragment(member.deliver, message, pos)
        elif type(message) is Close:
            why = f"left with reason {reason_text(message.reason)}"
            self._leave(member, SessionClosed(why, message.reason, by_peer=True))
        else:
            member.last_received = now

    def _on_join(self, join: Join, sender: Address, member: Member | None, now: float) -> None:
        if join.zid == self.offer.zid:
            self.counters.drop_received("JOIN with this node's own id")
            return
        static = (join.zid, join.whatami, join.lane_sns is None, join.patch)
        mismatch = self._mismatch(join)
        if member is not None and (mismatch or member.join != static):
            self.counters.drop_received("JOIN that changes what a member said before")
            self._leave(member, SessionClosed("its JOIN has changed", CloseReason.INVALID))
            return
        if mismatch:
            self.counters.drop_received(f"JOIN with another {mismatch}")
            return
        if member is None:
            if len(self.members) >= MAX_MEMBERS:
                self.counters.drop_received("JOIN beyond the limit of members")
                return
            self._admit(join, sender, static, now)
        else:
            member.last_received = now
            member.lease = clamp_lease(join.lease_ms)

    def _mismatch(self, join: Join) -> str | None:
        """The parameter that differs from ours, by name."""
        offer = self.offer
        parameters = {
            "version": (join.version, VERSION),
            "resolution": (join.resolution, offer.resolution),
            "batch size": (join.batch_size, offer.batch_size),
            "use of lanes": (join.lane_sns is not None, offer.qos),
        }
        for name, (theirs, ours) in parameters.items():
            if theirs != ours:
                return name
        sns = join.lane_sns or ((join.reliable_sn, join.best_effort_sn),)
        if any(sn > self.mask for pair in sns for sn in pair):
            return "range of sequence numbers"
        return None

    def _admit(self, join: Join, sender: Address, static: tuple[object, ...], now: float) -> None:
        counters = Counters()
        sns = join.lane_sns or ((join.reliable_sn, join.best_effort_sn),)
        member = Member(
            sender,
            join.zid,
            join.whatami,
            clamp_lease(join.lease_ms),
            now,
            InboundLanes(
                first_sns=[(best_effort, reliable) for reliable, best_effort in sns],
                mask=self.mask,
                patch=min(join.patch, self.offer.patch),
                counters=counters,
                memory=self._memory,
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
