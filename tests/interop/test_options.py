"""Parameters that INIT negotiates, offered by us, by eclipse-zenoh or by both, on either side."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.golden.nodes import COMPRESSION, LOW_LATENCY, QOS_OFF
from tests.support.interop_conversation import (
    BEST_EFFORTS,
    BLOCK,
    COMMON_PAIRS,
    EXPRESS,
    THEY_SAID_CLOSE,
    TO_THEM,
    BestEffortLost,
    Offered,
    Ours,
    Pair,
    both_send,
    conversation,
    they_send,
    they_send_best_effort,
    we_send,
)
from tests.support.reference_peer import (
    ReferencePeer,
    ReferenceProcess,
    Settings,
    fingerprint,
    payload,
)
from tests.support.waiting import until
from zenlake.errors import EncodeError
from zenlake.runtime.transport_session import TransportSession
from zenlake.wire.enums import CloseReason, WireCongestionControl, WirePriority
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

SMALL_BATCH = 2048
SIZES = [0, 1, 127, 128, 1000, 2000] * 20
FRAGMENTED = [*SIZES, 2047, 2048, 2049, 5000, 70_000, 0, 1]
USER_PRIORITIES = [priority for priority in WirePriority if priority]
BATCH_SIZE = "transport/link/tx/batch_size"


@dataclass(frozen=True)
class Option:
    name: str
    ours: Offered = field(default_factory=dict)
    theirs: Settings = field(default_factory=dict)
    agreed: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[int, ...] = tuple(FRAGMENTED)

    def __str__(self) -> str:
        return self.name


NO_QOS: Offered = {"qos": False}
FAST: Offered = {"qos": False, "low_latency": True}
FAST_AGREED = {"qos": False, "low_latency": True, "compression": False}
SLOW_AGREED = {"qos": False, "low_latency": False}
SQUEEZED: Offered = {"compression": True}
SMALL: Offered = {"batch_size": SMALL_BATCH}

OPTIONS = [
    Option("qos-off", NO_QOS, QOS_OFF, NO_QOS),
    Option("qos-off-ours", NO_QOS, {}, NO_QOS),
    Option("qos-off-theirs", {}, QOS_OFF, NO_QOS),
    Option("low-latency", FAST, LOW_LATENCY, FAST_AGREED, tuple(SIZES)),
    Option("low-latency-ours", FAST, QOS_OFF, SLOW_AGREED),
    Option("low-latency-theirs", NO_QOS, LOW_LATENCY, SLOW_AGREED),
    Option("compression", SQUEEZED, COMPRESSION, SQUEEZED),
    Option("compression-ours", SQUEEZED, {}, {"compression": False}),
    Option("compression-theirs", {}, COMPRESSION, {"compression": False}),
    Option("compression-qos-off", SQUEEZED | NO_QOS, COMPRESSION | QOS_OFF, SQUEEZED | NO_QOS),
    Option("batch-2048", SMALL, {BATCH_SIZE: SMALL_BATCH}, SMALL),
    Option("batch-2048-ours", SMALL, {}, SMALL),
    Option("batch-2048-theirs", {}, {BATCH_SIZE: SMALL_BATCH}, SMALL),
    Option(
        "batch-2048-compression",
        SMALL | SQUEEZED,
        {BATCH_SIZE: SMALL_BATCH} | COMPRESSION,
        SMALL | SQUEEZED,
    ),
    Option("patch-0", {"patch": 0}, {}, {"patch": 0}),
]


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_both_agree_on_each_option_and_exchange_messages(
    reference: ReferenceProcess, pair: Pair, option: Option
) -> None:
    ours = Ours(pair.ours, **option.ours)
    with conversation(reference, pair, ours, option.theirs) as (session, them):
        agreed = {name: getattr(session.agreement, name) for name in option.agreed}
        assert agreed == option.agreed
        if not session.agreement.low_latency:
            assert them.transports()[str(ours.zid)]["qos"] == session.agreement.qos
        both_send(ours, session, them, list(option.sizes))
        both_send(ours, session, them, list(option.sizes), noise=True)
        we_send(session, them, [100] * 20, qos=EXPRESS)
        they_send(ours, them, [100] * 20, express=True)
        assert not session.counters.receive_dropped
        assert not session.counters.send_dropped
        assert not any(lane.missing or lane.stale for lane in session.sequences.values())
        session.close()
        until(lambda: them.closed(str(ours.zid)), lambda times: times == 1)


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_batches_do_shrink(reference: ReferenceProcess, pair: Pair) -> None:
    """Text of 200 kB takes less than a tenth on the link, each way; noise takes what it has."""
    sizes, total = [20_000] * 10, 200_000
    with conversation(reference, pair, ours := Ours(pair.ours, compression=True), COMPRESSION) as (
        session,
        them,
    ):
        they_send(ours, them, sizes)
        assert session.counters.received_bytes < total // 10
        we_send(session, them, sizes)
        assert session.counters.sent_bytes < total // 10
        both_send(ours, session, them, sizes, noise=True)
        assert total < session.counters.received_bytes < total * 12 // 10
        assert total < session.counters.sent_bytes < total * 12 // 10


def send_at(
    priority: WirePriority,
    ours: Ours,
    session: TransportSession,
    them: ReferencePeer,
    tries: int = BEST_EFFORTS,
) -> None:
    """Send at this priority, reliable and best effort, small and in fragments, both ways."""
    qos = QoS(priority, WireCongestionControl.BLOCK)
    for reliable in (True, False):
        we_send(session, them, [10, 200_000, 10], qos=qos, reliable=reliable)
    they_send(ours, them, [10, 200_000, 10], priority=priority.name)
    for size in (10, 200_000):
        they_send_best_effort(ours, them, size, tries=tries, priority=priority.name)


def check_lanes(session: TransportSession, priorities: Sequence[WirePriority]) -> None:
    """Check that a session used these lanes, and that its reliable ones missed nothing."""
    used = set(session.sequences)
    assert used >= {(priority, reliable) for priority in priorities for reliable in (True, False)}
    for (_, reliable), lane in session.sequences.items():
        assert not (reliable and lane.missing)
        assert not lane.stale


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_every_priority_uses_the_lane_that_it_names(
    reference: ReferenceProcess, pair: Pair
) -> None:
    with conversation(reference, pair, ours := Ours(pair.ours, qos=True)) as (session, them):
        for priority in USER_PRIORITIES:
            send_at(priority, ours, session, them)
        check_lanes(session, USER_PRIORITIES)


@pytest.mark.parametrize("priority", USER_PRIORITIES, ids=lambda priority: priority.name)
@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_every_priority_shares_the_one_lane(
    reference: ReferenceProcess, pair: Pair, priority: WirePriority
) -> None:
    """A session without QoS has one lane.

    A Rust session without lanes that dropped one message on a full queue drops every later one
    that it may drop: it marks the queue as congested under DATA and clears the mark under CONTROL
    (io/zenoh-transport/src/common/pipeline.rs). So what a busy machine lost is tried again in
    another session.
    """
    for left in reversed(range(BEST_EFFORTS)):
        with conversation(reference, pair, ours := Ours(pair.ours, qos=False)) as (session, them):
            try:
                send_at(priority, ours, session, them, tries=1)
            except BestEffortLost:
                if not left:
                    raise
                continue
            check_lanes(session, [WirePriority.DATA])
            return


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_priorities_at_once(reference: ReferenceProcess, pair: Pair) -> None:
    """Within a priority nothing is lost or out of order, although lanes overtake each other."""
    rounds = 50
    with conversation(reference, pair, ours := Ours(pair.ours)) as (session, them):
        for index in range(rounds):
            for priority in USER_PRIORITIES:
                push = Push(
                    WireExpr(0, TO_THEM),
                    Put(payload(index, 700)),
                    QoS(priority, WireCongestionControl.BLOCK),
                )
                assert session.send(push)
        until(them.count, lambda found: found >= rounds * len(USER_PRIORITIES))
        samples = them.samples()
        expected = [fingerprint(payload(index, 700)) for index in range(rounds)]
        for priority in USER_PRIORITIES:
            got = [s["payload"] for s in samples if s["priority"] == priority.name]
            assert got == expected
        assert ours.pushes == []


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_too_large_for_low_latency(reference: ReferenceProcess, pair: Pair) -> None:
    """A message that does not fit one batch is refused here, and the session lives on."""
    with conversation(reference, pair, ours := Ours(pair.ours, **FAST), LOW_LATENCY) as (
        session,
        them,
    ):
        room = session.agreement.batch_size
        with pytest.raises(EncodeError, match="low-latency"):
            session.send(Push(WireExpr(0, TO_THEM), Put(bytes(room)), BLOCK))
        both_send(ours, session, them, [room - 100, 1])
        them.close()
        end = ours.end_of(session)
        assert (end.reason, end.by_peer) == (CloseReason.GENERIC, True)
        assert THEY_SAID_CLOSE in end.why
