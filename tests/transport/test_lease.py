"""Time in a session: keep-alive, expiry, stalled output, and deadlines that never lie behind."""

import random
from math import inf, nextafter

import pytest

from tests.support.transport_pair import DIALLER, START, Hand, Pair, offer, put
from zenlake.errors import SessionClosed
from zenlake.transport.outbox import BLOCK_SECONDS, PushResult
from zenlake.wire.close import Close
from zenlake.wire.enums import CloseReason
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing
from zenlake.wire.keepalive import KeepAlive

KEEP_ALIVE_AFTER = 2.5  # A quarter of our lease of 10 s.


def stalled(hand: Hand, now: float) -> None:
    """A lane that is full, and a message beyond it."""
    message = put(bytes(60_000))
    while hand.side.outbox.push(message, now=now) is PushResult.DONE:
        pass
    assert hand.side.outbox.push_beyond(message, message.qos, True, now)


def test_keep_alive_is_said_after_a_quarter_of_our_own_lease() -> None:
    hand = Hand(offer(lease_ms=2000), lease_ms=600_000)
    assert hand.core.deadline() == START + 0.5
    hand.now = START + 0.49
    hand.core.on_time(hand.now)
    assert hand.hear() == []
    hand.now = START + 0.5
    hand.core.on_time(hand.now)
    assert hand.hear() == [KeepAlive()]
    hand.core.on_time(hand.now)
    assert hand.hear() == []
    assert hand.core.deadline() == hand.now + 0.5


def test_the_opener_keeps_alive_too() -> None:
    pair = Pair(offer(DIALLER, lease_ms=1000), offer(lease_ms=1000))
    for _ in range(100):
        pair.now = min(pair.a.core.deadline(), pair.b.core.deadline())
        for side in (pair.a, pair.b):
            side.core.on_time(pair.now)
        pair.carry()
    assert pair.now > START + 5
    assert pair.a.end is None
    assert pair.b.end is None


def test_keep_alive_is_never_said_while_data_flows() -> None:
    hand = Hand(lease_ms=600_000)
    said = []
    for step in range(1000):
        hand.now = START + step * 0.1
        if step % 20 == 0:  # every 2 s
            hand.side.outbox.push(put(b"x"))
        said += hand.hear()
        hand.core.on_time(hand.now)
        assert hand.core.deadline() > hand.now
    assert len(said) == 50
    assert all(isinstance(message, Frame) for message in said)


def test_keep_alive_counts_from_the_last_batch() -> None:
    hand = Hand(lease_ms=600_000)
    hand.now = START + 2
    hand.side.outbox.push(put(b"x"))
    hand.hear()
    hand.now = hand.core.deadline()
    assert hand.now == START + KEEP_ALIVE_AFTER
    hand.core.on_time(hand.now)
    assert hand.hear() == []
    assert hand.core.deadline() == START + 2 + KEEP_ALIVE_AFTER
    hand.now = hand.core.deadline()
    hand.core.on_time(hand.now)
    assert hand.hear() == [KeepAlive()]


def test_keep_alive_does_not_pile_up_where_nothing_is_taken() -> None:
    hand = Hand(lease_ms=600_000)
    for i in range(1, 50):
        hand.core.on_time(START + i * KEEP_ALIVE_AFTER)
    assert hand.hear() == [KeepAlive()]


def test_what_waits_to_be_sent_is_sign_of_life_enough() -> None:
    hand = Hand(lease_ms=600_000)
    hand.side.outbox.push(put(b"waits"))
    hand.now = START + KEEP_ALIVE_AFTER
    hand.core.on_time(hand.now)
    (frame,) = hand.hear()
    assert isinstance(frame, Frame)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(10_000, 1000), (1000, 10_000), (100, 600_000), (600_000, 100)]
)
def test_the_peer_expires_by_the_lease_that_it_announced(ours: int, theirs: int) -> None:
    hand = Hand(offer(lease_ms=ours), lease_ms=theirs)
    expiry = START + theirs / 1000
    hand.core.on_time(nextafter(expiry, 0))
    assert not hand.core.ended
    hand.hear()
    with pytest.raises(SessionClosed, match="nothing came for") as caught:
        hand.core.on_time(expiry)
    assert (caught.value.reason, caught.value.by_peer) == (CloseReason.EXPIRED, False)
    assert hand.hear() == [Close(CloseReason.EXPIRED)]
    assert hand.core.deadline() == inf


@pytest.mark.parametrize("what", [b"\x01\x00\x04", b"\x00\x00", b"\x01"], ids=["batch", "0", "bit"])
def test_whatever_comes_renews_the_lease(what: bytes) -> None:
    hand = Hand(lease_ms=1000)
    hand.side.take(what, START + 0.9)
    hand.core.on_time(START + 1.8)
    with pytest.raises(SessionClosed):
        hand.core.on_time(START + 1.9)


@pytest.mark.parametrize(("said", "after"), [(0, 0.1), (1, 0.1), (1 << 63, 600.0)])
def test_leases_without_sense_are_clamped(said: int, after: float) -> None:
    hand = Hand(lease_ms=said)
    hand.core.on_time(nextafter(START + after, 0))
    with pytest.raises(SessionClosed, match="nothing came"):
        hand.core.on_time(START + after)


def test_output_that_is_stuck_ends_the_session() -> None:
    hand = Hand(lease_ms=600_000)
    stalled(hand, START + 1)
    assert hand.core.deadline() <= START + 1 + BLOCK_SECONDS
    hand.core.on_time(nextafter(START + 1 + BLOCK_SECONDS, 0))
    with pytest.raises(SessionClosed, match="takes nothing") as caught:
        hand.core.on_time(START + 1 + BLOCK_SECONDS)
    assert caught.value.reason == CloseReason.UNRESPONSIVE
    assert hand.hear() == [Close(CloseReason.UNRESPONSIVE)]


def test_output_that_moves_again_goes_on() -> None:
    hand = Hand(lease_ms=600_000)
    stalled(hand, START)
    hand.now = START + BLOCK_SECONDS - 1
    assert len(hand.hear()) > 4
    hand.core.on_time(START + BLOCK_SECONDS)
    assert not hand.core.ended


@pytest.mark.parametrize("framing", [Framing.STREAM, Framing.DATAGRAM])
@pytest.mark.parametrize("low_latency", [False, True])
def test_keep_alive_in_every_form(framing: Framing, low_latency: bool) -> None:
    hand = Hand(offer(low_latency=low_latency), framing=framing, lease_ms=600_000)
    hand.now = hand.core.deadline()
    hand.core.on_time(hand.now)
    assert hand.hear() == [KeepAlive()]


@pytest.mark.parametrize("seed", range(20))
def test_the_deadline_never_lies_behind(seed: int) -> None:
    """Whatever happens, at any time: who sleeps until the deadline never spins."""
    rng = random.Random(seed)
    hand = Hand(
        offer(lease_ms=rng.choice((100, 333, 1000, 10_000))),
        lease_ms=rng.choice((100, 700, 10_000, 600_000)),
    )
    message = put(bytes(30_000))
    for _ in range(500):
        what = rng.randrange(6)
        if what == 0:
            hand.side.outbox.push(put(b"x"), now=hand.now)
        elif what == 1:
            hand.side.pull_all(hand.now)
        elif what == 2:
            hand.say(KeepAlive())
        elif what == 3 and rng.random() < 0.2:
            if hand.side.outbox.push(message, now=hand.now) is PushResult.FULL:
                hand.side.outbox.push_beyond(message, message.qos, True, hand.now)
        elif what == 4:
            hand.now = max(hand.now, hand.core.deadline() if rng.random() < 0.7 else hand.now)
        else:
            hand.now += rng.random() * 0.05
        try:
            hand.core.on_time(hand.now)
        except SessionClosed:
            assert hand.core.deadline() == inf
            return
        assert hand.core.deadline() > hand.now


def test_a_closed_session_wakes_nobody() -> None:
    for end in ("close", "end"):
        hand = Hand()
        getattr(hand.core, end)(CloseReason.GENERIC)
        assert hand.core.deadline() == inf
        hand.core.on_time(START + 10_000)
        assert hand.hear() == [Close()]
