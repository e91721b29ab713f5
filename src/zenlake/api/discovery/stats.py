"""Stats: counts of what a session has sent and received, and of losses with place and reason.

Knows the counters of all layers. Does not count anything itself.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zenlake.api.values.enums import PRIORITY_OF, WHATAMI_OF, Reliability, WhatAmI
from zenlake.api.values.ids import ZenohId
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.counters import Counters
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.enums import WirePriority

if TYPE_CHECKING:
    from zenlake.api.session_core import SessionCore


@dataclass(frozen=True)
class Gap:
    """Sequence numbers that one lane of a link has missed."""

    lane: str
    "Name of the priority, and whether the lane is reliable."
    gaps: int
    "Number of interruptions of the sequence."
    missing: int
    "Total of missing sequence numbers."
    stale: int
    "Sequence numbers that were received late or twice."


@dataclass(frozen=True)
class TransportStats:
    """Counts of one open transport."""

    zid: ZenohId
    whatami: WhatAmI
    sent_messages: int
    sent_bytes: int
    received_frames: int
    received_bytes: int
    dropped: dict[str, int]
    "Messages dropped while sending or receiving, by the name of their `DropReason`."
    gaps: tuple[Gap, ...]


@dataclass(frozen=True)
class Stats:
    """Counts since the session opened; ended transports are included in the sums only."""

    sent_messages: int
    sent_bytes: int
    received_frames: int
    received_bytes: int
    dropped: dict[str, int]
    "Dropped messages by the name of their `DropReason`, over all layers."
    missing: int
    "Frames that were never received, by the sequence numbers of their lanes."
    transports: tuple[TransportStats, ...] = field(default=())


class EndedTransports:
    """Sums of the transports that have ended."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    def add(self, session: TransportSession) -> None:
        _add(_transport(session), self.sums, self.dropped)


QUERY_DROP_REASONS = {
    "late": DropReason.REPLY_LATE,
    "disjoint": DropReason.REPLY_DISJOINT,
    "dropped": DropReason.REPLY_LIMIT,
    "refused": DropReason.GET_LIMIT,
}
INTEREST_DROP_REASONS = {
    "subscribers": DropReason.REMOTE_SUBSCRIBER_LIMIT,
    "queryables": DropReason.REMOTE_QUERYABLE_LIMIT,
    "tokens": DropReason.REMOTE_TOKEN_LIMIT,
}
TRAFFIC_FIELDS = ("sent_messages", "sent_bytes", "received_frames", "received_bytes")


def _by_name(dropped: Mapping[DropReason, int]) -> dict[str, int]:
    """Return a copy with plain names: other threads go on counting in `dropped`."""
    return {str(reason): count for reason, count in dict(dropped).items()}


def _dropped(counters: Counters) -> Counter[str]:
    return Counter(_by_name(counters.send_dropped)) + Counter(_by_name(counters.receive_dropped))


def _lane(priority: WirePriority, reliable: bool) -> str:
    name = "CONTROL" if priority is WirePriority.CONTROL else PRIORITY_OF[priority].name
    return f"{name} {(Reliability.RELIABLE if reliable else Reliability.BEST_EFFORT).name}"


def _transport(session: TransportSession) -> TransportStats:
    counters, agreed = session.counters, session.agreement
    return TransportStats(
        ZenohId.of(agreed.zid),
        WHATAMI_OF[agreed.whatami],
        counters.sent_messages,
        counters.sent_bytes,
        counters.received_frames,
        counters.received_bytes,
        dict(_dropped(counters)),
        tuple(
            Gap(_lane(*lane), sequence.gaps, sequence.missing, sequence.stale)
            for lane, sequence in sorted(session.sequences.items())
        ),
    )


def _add(transport: TransportStats, sums: Counter[str], dropped: Counter[str]) -> None:
    for name in TRAFFIC_FIELDS:
        sums[name] += getattr(transport, name)
    sums["missing"] += sum(gap.missing for gap in transport.gaps)
    dropped.update(transport.dropped)


def collect_stats(core: "SessionCore") -> Stats:
    """Return the counts of a session."""
    node = core.node
    transports = tuple(map(_transport, node.transports))
    sums = Counter(core.ended.sums)
    dropped: Counter[str] = Counter(core.ended.dropped)
    for transport in transports:
        _add(transport, sums, dropped)
    for counters in (node.groups_left, *(group.counters for group in node.groups)):
        for name in TRAFFIC_FIELDS:
            sums[name] += getattr(counters, name)
        dropped.update(_dropped(counters))
    dropped.update(_by_name(core.exchange.dropped))
    dropped.update(_by_name(core.exchange.routing.counters))
    dropped[DropReason.HANDLER_FULL] += core.subscribers.dropped
    for name, reason in QUERY_DROP_REASONS.items():
        dropped[reason] += core.queries.counters[name]
    dropped[DropReason.QUERY_LIMIT] += core.queryables.counters["refused"]
    for name, count in dict(core.interests.counters).items():
        dropped[INTEREST_DROP_REASONS[name]] += count
    return Stats(
        sent_messages=sums["sent_messages"],
        sent_bytes=sums["sent_bytes"],
        received_frames=sums["received_frames"],
        received_bytes=sums["received_bytes"],
        dropped={str(reason): count for reason, count in dropped.items() if count},
        missing=sums["missing"],
        transports=transports,
    )
