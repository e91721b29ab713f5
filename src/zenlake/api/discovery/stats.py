"""Stats: counts of what a session has sent and received, and of losses with place and reason.

Knows the counters of all layers. Does not count anything itself.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zenlake.api.values.enums import PRIORITY_OF, WHATAMI_OF, Reliability, WhatAmI
from zenlake.api.values.ids import ZenohId
from zenlake.runtime.transport_session import TransportSession
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
    "Messages dropped while sending or receiving, by reason."
    gaps: tuple[Gap, ...]


@dataclass(frozen=True)
class Stats:
    """Counts since the session opened; ended transports are included in the sums only."""

    sent_messages: int
    sent_bytes: int
    received_frames: int
    received_bytes: int
    dropped: dict[str, int]
    "Dropped messages by reason, over all layers."
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
    "late": "replies after the end of their query",
    "disjoint": "replies on a key that was not asked for",
    "dropped": "replies beyond the limit",
    "refused": "gets beyond the limit",
}
SUMMED_FIELDS = ("sent_messages", "sent_bytes", "received_frames", "received_bytes")


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
        dict(Counter(dict(counters.send_dropped)) + Counter(dict(counters.receive_dropped))),
        tuple(
            Gap(_lane(*lane), sequence.gaps, sequence.missing, sequence.stale)
            for lane, sequence in sorted(session.sequences.items())
        ),
    )


def _add(transport: TransportStats, sums: Counter[str], dropped: Counter[str]) -> None:
    for name in SUMMED_FIELDS:
        sums[name] += getattr(transport, name)
    sums["missing"] += sum(gap.missing for gap in transport.gaps)
    dropped.update(transport.dropped)


def collect_stats(core: "SessionCore") -> Stats:
    """Return the counts of a session."""
    transports = tuple(_transport(session) for session in core.node.sessions.values())
    sums = Counter(core.ended.sums)
    dropped = Counter(core.ended.dropped)
    for transport in transports:
        _add(transport, sums, dropped)
    dropped.update(dict(core.exchange.dropped))  # Copies: other threads keep counting.
    dropped.update(dict(core.exchange.routing.counters))
    dropped["let go by a handler"] += core.subscribers.dropped
    for name, reason in QUERY_DROP_REASONS.items():
        dropped[reason] += core.queries.counters[name]
    dropped["queries beyond the limit"] += core.queryables.counters["refused"]
    for name, count in dict(core.interests.counters).items():
        dropped[f"{name} of others beyond the limit"] += count
    return Stats(
        sent_messages=sums["sent_messages"],
        sent_bytes=sums["sent_bytes"],
        received_frames=sums["received_frames"],
        received_bytes=sums["received_bytes"],
        dropped=dict(+dropped),
        missing=sums["missing"],
        transports=transports,
    )
