"""The way out: nothing lost, altered or out of order, no batch too large, and full is full."""

import random
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest

from tests.support.transport_pair import (
    DIALLER,
    KEY,
    START,
    Hand,
    Pair,
    Side,
    batches_of,
    offer,
    put,
    read_sent,
)
from zenlake.errors import EncodeError
from zenlake.transport import outbox as outbox_module
from zenlake.transport.counters import Counters
from zenlake.transport.lane import OutboundLane
from zenlake.transport.outbox import (
    BACKLOG_BYTES,
    BACKLOG_ENTRY_BYTES,
    BURST_SECONDS,
    CONTROL_MESSAGES,
    FLUSH_SECONDS,
    FRAGMENT_DROP_SECONDS,
    LANE_BATCHES,
    MAX_BACKLOG_BYTES,
    STUCK_SECONDS,
    Outbox,
    PushResult,
)
from zenlake.wire.batch import TransportMessage, read_batch
from zenlake.wire.close import Close
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.enums import PRIORITIES, WireCongestionControl, WirePriority
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr

BLOCK, DROP = WireCongestionControl.BLOCK, WireCongestionControl.DROP
BLOCK_FIRST = WireCongestionControl.BLOCK_FIRST
DATA = QoS()


def make(
    batch_size: int = 100,
    framing: Framing = Framing.STREAM,
    *,
    qos: bool = False,
    first: int = 0,
    mask: int = 0x0FFF_FFFF,
    low_latency: bool = False,
    compression: bool = False,
    max_message: int = 1 << 20,
) -> Outbox:
    return Outbox(
        batch_size=batch_size,
        framing=framing,
        sn_mask=mask,
        first_sns=[(first, first)] * (8 if qos else 1),
        qos=qos,
        low_latency=low_latency,
        compression=compression,
        max_message=max_message,
    )


def encoded(message: NetworkMessage) -> bytes:
    w = ByteWriter()
    NETWORK.write(w, message)
    return bytes(w.out)


def drain(outbox: Outbox, now: float = START) -> list[TransportMessage]:
    """Everything that waits, read by the wire's own reader."""
    found: list[TransportMessage] = []
    while (data := outbox.pull(now)) is not None:
        found += read_sent(bytes(data), Framing.STREAM)
    return found


def fill(outbox: Outbox, message: NetworkMessage, reliable: bool = True) -> int:
    """Push until the lane is full; how many were taken."""
    taken = 0
    while outbox.push(message, reliable, now=START) is PushResult.DONE:
        taken += 1
        assert taken < 100_000
    return taken


def numbers(messages: list[TransportMessage]) -> list[int]:
    return [m.sn for m in messages if isinstance(m, Frame | Fragment)]


def contents(messages: list[TransportMessage]) -> list[NetworkMessage]:
    return [inner for m in messages if isinstance(m, Frame) for inner in m.messages]


# What is pushed arrives


SHAPES: dict[str, dict[str, Any]] = {
    "lanes": {},
    "one lane": {"qos": False},
    "compressed": {"compression": True},
    "compressed, one lane": {"compression": True, "qos": False},
    "7 bits": {"resolution": 0},
    "14 bits": {"resolution": 1},
    "32 bits": {"resolution": 3},
    "low latency": {"low_latency": True},
}


def random_messages(rng: random.Random, batch: int, most: int) -> Iterator[tuple[Push, bool]]:
    around = (0, 1, batch - 30, batch - 10, batch, batch + 10, 2 * batch, 3 * batch)
    for i in range(most):
        size = rng.randrange(3 * batch) if rng.random() < 0.5 else rng.choice(around)
        if rng.random() < 0.5:
            size = rng.randrange(max(2, batch // 8))
        size = max(0, size + rng.randrange(-3, 4))
        body = rng.randbytes(size) if rng.random() < 0.5 else bytes(size)
        key = WireExpr(0, f"n/{i}")
        priority = rng.choice(PRIORITIES)
        yield Push(key, Put(body), QoS(priority, rng.choice((BLOCK, DROP)))), rng.random() < 0.5


def check_sizes(pair: Pair, side: Side, batch_size: int) -> None:
    agreed = side.agreed
    for data in pair.sent[side][2:]:
        if agreed.low_latency and pair.framing:
            parts = batches_of(data, Framing.LOW_LATENCY)
            assert all(0 < len(part) <= batch_size - 2 for part in parts)
            continue
        assert pair.framing < len(data) <= batch_size
        (batch,) = batches_of(data, pair.framing, agreed.compression)
        assert batch, "no batch of nothing"


@pytest.mark.parametrize("framing", [Framing.STREAM, Framing.DATAGRAM])
@pytest.mark.parametrize("batch_size", [32, 100, 2048, 65535])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_pushed_arrives_as_it_was_and_in_order(
    shape: str, batch_size: int, framing: Framing
) -> None:
    options = SHAPES[shape]
    rng = random.Random(f"{shape} {batch_size} {framing}")
    pair = Pair(offer(DIALLER, batch_size=batch_size, **options), offer(**options), framing=framing)
    count = {32: 400, 100: 400, 2048: 150, 65535: 40}[batch_size]
    pushed: list[tuple[Push, bool]] = []
    for message, reliable in random_messages(rng, batch_size, count):
        if shape == "low latency" and len(encoded(message)) > batch_size - 2:
            with pytest.raises(EncodeError, match="low-latency"):
                pair.push(pair.a, message, reliable)
            continue
        pair.push(pair.a, message, reliable)
        pushed.append((message, reliable))
        if rng.random() < 0.1:
            pair.carry()
    pair.carry()
    assert pair.a.end is None
    assert pair.b.end is None
    heard = pair.b.heard.received
    assert len(heard) == len(pushed)
    if shape == "low latency":
        assert pair.b.heard.messages == [message for message, _ in pushed]
    else:
        lanes = pair.b.agreed.qos
        for lane in PRIORITIES if lanes else (WirePriority.DATA,):
            assert [(m, r) for p, r, m in heard if p is lane] == [
                (m, r) for m, r in pushed if not lanes or m.qos.priority is lane
            ]
    for sequence in pair.b.core.sequences().values():
        assert (sequence.gaps, sequence.missing, sequence.stale) == (0, 0, 0)
    assert pair.b.core.counters.receive_dropped == {}
    assert pair.a.core.counters.send_dropped == {}
    assert pair.a.core.counters.sent_messages == len(pushed)
    check_sizes(pair, pair.a, batch_size)
    assert pair.b.memory.held == 0


@pytest.mark.parametrize("framing", [Framing.STREAM, Framing.DATAGRAM])
@pytest.mark.parametrize("compression", [False, True])
def test_every_size_around_the_batch_s(framing: Framing, compression: bool) -> None:
    options: dict[str, Any] = {"batch_size": 100, "compression": compression}
    pair = Pair(offer(DIALLER, **options), offer(**options), framing=framing)
    rng = random.Random(1)
    for size in range(301):
        pair.push(pair.a, put(rng.randbytes(size)))
        pair.carry()
        body = pair.b.heard.messages[-1].body  # type: ignore[union-attr]
        assert isinstance(body, Put)
        assert len(body.payload) == size
    assert len(pair.b.heard.received) == 301
    check_sizes(pair, pair.a, 100)


def test_encoded_messages_go_the_same_way() -> None:
    one, other = make(), make()
    rng = random.Random(2)
    for _ in range(300):
        message = put(rng.randbytes(rng.randrange(250)))
        reliable = rng.random() < 0.5
        states = {
            one.push(message, reliable, now=START),
            other.push_encoded(encoded(message), message.qos, reliable, now=START),
        }
        assert len(states) == 1
        if states == {PushResult.FULL}:
            assert one.pull(START) == other.pull(START)
    assert drain(one) == drain(other)


# Batches, FRAMEs and numbers


def test_messages_share_a_frame_and_frames_a_batch() -> None:
    outbox = make(2048, first=7)
    for i, reliable in enumerate([True, True, False, False, True]):
        assert outbox.push(put(bytes((i,))), reliable) is PushResult.DONE
    data = outbox.pull(START)
    assert data is not None
    (batch,) = batches_of(bytes(data), Framing.STREAM)
    frames = read_batch(batch)
    assert [(f.sn, f.reliable, len(f.messages)) for f in frames if isinstance(f, Frame)] == [
        (7, True, 2),
        (7, False, 2),
        (8, True, 1),
    ]
    assert outbox.pull(START) is None


def test_every_lane_has_two_numbers_of_its_own() -> None:
    outbox = make(65535, qos=True, first=0x7E, mask=0x7F)
    for _ in range(3):
        for priority in PRIORITIES:
            for reliable in (True, False):
                outbox.push(put(b"x", priority), reliable)
        messages = drain(outbox)
        assert len(messages) == 16
    found = {(m.priority, m.reliable): m.sn for m in messages if isinstance(m, Frame)}
    assert set(found.values()) == {0}
    assert len(found) == 16
    assert outbox.next_sns() == [(1, 1)] * 8


def test_data_is_the_lane_that_is_not_named() -> None:
    outbox = make(65535, qos=True)
    for priority in PRIORITIES:
        outbox.push(put(b"x", priority))
        data = outbox.pull(START)
        assert data is not None
        assert bool(data[2] & 0x80) is (priority is not WirePriority.DATA)


def test_without_lanes_none_is_ever_named() -> None:
    outbox = make(100)
    for priority in PRIORITIES:
        for size in (1, 1000):
            assert outbox.push(put(bytes(size), priority)) is PushResult.DONE
            while (data := outbox.pull(START)) is not None:
                header = data[2]
                first = header & 0x1F == 6 and data[2 + 1 + 1] == 0x02
                assert not header & 0x80 or first
                for message in read_sent(bytes(data), Framing.STREAM):
                    assert message.priority is WirePriority.DATA  # type: ignore[union-attr]


@pytest.mark.parametrize("mask", [0x7F, 0x3FFF])
def test_numbers_wrap_at_the_mask(mask: int) -> None:
    outbox = make(100, first=mask, mask=mask)
    seen = []
    for _ in range(300):
        outbox.push(put(b"x" * 50))
        seen += numbers(drain(outbox))
    assert seen == [(mask + i) & mask for i in range(300)]


def test_one_number_is_skipped_after_fragments() -> None:
    outbox = make(100, first=10)
    outbox.push(put(bytes(200)))
    pieces = drain(outbox)
    assert numbers(pieces) == [10, 11, 12]
    assert [(p.first, p.more) for p in pieces if isinstance(p, Fragment)] == [
        (True, True),
        (False, True),
        (False, False),
    ]
    outbox.push(put())
    assert numbers(drain(outbox)) == [14]


def test_lanes_go_out_by_priority_and_control_before_all() -> None:
    outbox = make(100, qos=True)
    for priority in reversed(PRIORITIES):
        outbox.push(put(bytes(200), priority))
        outbox.push(put(b"x", priority))
    outbox.push_control(KeepAlive())
    control, *rest = drain(outbox)
    assert control == KeepAlive()
    found = [m.priority for m in rest if isinstance(m, Frame | Fragment)]
    assert found == sorted(found)
    assert set(found) == set(PRIORITIES)


def test_a_higher_lane_goes_between_the_pieces_of_a_lower_one() -> None:
    outbox = make(100, qos=True)
    outbox.push(put(bytes(500), WirePriority.BACKGROUND))
    assert outbox.pull(START) is not None
    outbox.push(put(b"now", WirePriority.REAL_TIME))
    (frame,) = read_sent(bytes(outbox.pull(START) or b""), Framing.STREAM)
    assert isinstance(frame, Frame)
    assert frame.messages == [put(b"now", WirePriority.REAL_TIME)]


def test_control_messages_that_nobody_pulls_are_limited() -> None:
    outbox = make()
    for i in range(CONTROL_MESSAGES + 3):
        outbox.push_control(Close(i))
    assert outbox.counters.send_dropped == {"control_backlog": 3}
    assert drain(outbox) == [Close(i) for i in range(3, CONTROL_MESSAGES + 3)]


@pytest.mark.parametrize(
    ("framing", "low_latency", "compression", "expected"),
    [
        (Framing.STREAM, False, False, "010004"),
        (Framing.STREAM, False, True, "02000004"),
        (Framing.STREAM, True, False, "0100000004"),
        (Framing.DATAGRAM, False, False, "04"),
        (Framing.DATAGRAM, False, True, "0004"),
        (Framing.DATAGRAM, True, False, "04"),
    ],
)
def test_a_control_message_is_framed_like_the_rest(
    framing: Framing, low_latency: bool, compression: bool, expected: str
) -> None:
    outbox = make(100, framing, low_latency=low_latency, compression=compression)
    outbox.push_control(KeepAlive())
    assert bytes(outbox.pull(START) or b"").hex() == expected


# Full


def state(outbox: Outbox) -> tuple[object, ...]:
    (lane,) = outbox._lanes
    return (
        [s.next for s in lane.sequences],
        [bytes(b) for b in lane.sealed],
        bytes(lane.writer.out) if lane.writer else None,
        lane.large,
        len(lane.backlog),
        outbox.counters.sent_messages,
        outbox.waiting,
    )


@pytest.mark.parametrize("reliable", [True, False])
@pytest.mark.parametrize("size", [60, 90, 1000])
def test_full_changes_nothing(size: int, reliable: bool) -> None:
    outbox = make(100)
    taken = fill(outbox, put(b"x" * 60))
    assert taken == LANE_BATCHES + 1
    before = state(outbox)
    for _ in range(3):
        assert outbox.push(put(b"y" * size), reliable) is PushResult.FULL
        data = encoded(put(b"y" * size))
        assert outbox.push_encoded(data, DATA, reliable) is PushResult.FULL
        assert state(outbox) == before
    messages = drain(outbox)
    assert numbers(messages) == list(range(LANE_BATCHES + 1))
    outbox.push(put(b"z"))
    outbox.push(put(b"z"), False)
    assert numbers(drain(outbox)) == [LANE_BATCHES + 1, 0]


def test_a_large_message_fills_its_lane_and_no_other() -> None:
    outbox = make(100, qos=True)
    assert outbox.push(put(bytes(500))) is PushResult.DONE
    assert outbox.in_fragments(DATA)
    assert outbox.push(put()) is PushResult.FULL
    assert outbox.push_encoded(encoded(put()), DATA) is PushResult.FULL
    assert not outbox.in_fragments(QoS(WirePriority.DATA_LOW))
    assert outbox.push(put(b"", WirePriority.DATA_LOW)) is PushResult.DONE
    drain(outbox)
    assert outbox.push(put()) is PushResult.DONE


def test_a_message_that_cannot_be_written_leaves_nothing() -> None:
    outbox = make(100, first=5)
    bad = Push(KEY, Put(b"x"), node_id=1 << 20)
    with pytest.raises(EncodeError):
        outbox.push(bad)
    assert not outbox.waiting
    assert outbox.pull(START) is None
    outbox.push(put(b"a"))
    for reliable in (True, False):
        with pytest.raises(EncodeError):
            outbox.push(bad, reliable)
    outbox.push(put(b"b"))
    outbox.push(put(b"c"), False)
    messages = drain(outbox)
    assert contents(messages) == [put(b"a"), put(b"b"), put(b"c")]
    assert {(m.sn, m.reliable) for m in messages if isinstance(m, Frame)} <= {
        (5, True),
        (6, True),
        (5, False),
    }
    assert outbox.counters.sent_messages == 3


def test_one_encode_straight_into_the_open_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = make(2048)
    outbox.push(put(b"first"))
    (lane,) = outbox._lanes
    assert lane.writer is not None
    target, calls = lane.writer.out, 0
    write = NETWORK.write

    class Counting:
        @staticmethod
        def write(w: ByteWriter, message: NetworkMessage) -> None:
            nonlocal calls
            calls += 1
            assert w.out is target
            write(w, message)

    monkeypatch.setattr(outbox_module, "NETWORK", Counting)
    for i in range(10):
        outbox.push(put(bytes((i,))))
    assert calls == 10
    assert outbox.pull(START) is target


def test_what_can_never_be_sent_is_refused_also_when_full() -> None:
    outbox = make(100, max_message=1000)
    large = put(bytes(1001))
    for _ in range(2):
        with pytest.raises(EncodeError, match="1000"):
            outbox.push(large)
        with pytest.raises(EncodeError, match="1000"):
            outbox.push_encoded(encoded(large), DATA)
        with pytest.raises(EncodeError, match="1000"):
            outbox.push_beyond(large, DATA, True, START)
        fill(outbox, put(b"x" * 60))
    exact = put(bytes(1000 - len(encoded(put(bytes(1000)))) + 1000))
    assert len(encoded(exact)) == 1000
    drain(outbox)
    assert outbox.push(exact) is PushResult.DONE
    assert b"".join(p.payload for p in drain(outbox) if isinstance(p, Fragment)) == encoded(exact)


def test_more_pieces_than_a_receiver_takes_are_refused() -> None:
    outbox = make(32, max_message=64 << 20)
    with pytest.raises(EncodeError, match="fragments of 14"):
        outbox.push(put(bytes(65_535 * 14)))
    assert not outbox.waiting


# Low latency


@pytest.mark.parametrize("framing", [Framing.STREAM, Framing.DATAGRAM])
def test_low_latency_sends_bare_messages(framing: Framing) -> None:
    outbox = make(100, framing, low_latency=True)
    messages = [put(bytes((i,))) for i in range(3)]
    for message in messages:
        assert outbox.push(message) is PushResult.DONE
    sent = []
    while (data := outbox.pull(START)) is not None:
        sent += batches_of(bytes(data), Framing.LOW_LATENCY if framing else framing)
    assert sent == [encoded(message) for message in messages]


def test_low_latency_refuses_what_fits_no_batch() -> None:
    outbox = make(100, low_latency=True)
    longest = put(bytes(98 - len(encoded(put()))))
    assert len(encoded(longest)) == 98
    assert outbox.push(longest) is PushResult.DONE
    for refused in (put(bytes(93)), put(bytes(1000))):
        with pytest.raises(EncodeError, match="at most 98"):
            outbox.push(refused)
        with pytest.raises(EncodeError, match="at most 98"):
            outbox.push_beyond(refused, DATA, True, START)
    assert outbox.counters.sent_messages == 1


def test_low_latency_fills_up_too() -> None:
    outbox = make(100, low_latency=True)
    taken = fill(outbox, put(bytes(20)))
    before = state(outbox)
    assert outbox.push(put()) is PushResult.FULL
    assert state(outbox) == before
    sent = 0
    while (data := outbox.pull(START)) is not None:
        sent += len(batches_of(bytes(data), Framing.LOW_LATENCY))
    assert sent == taken


# Giving up


@pytest.mark.parametrize("patch", [0, 1])
def test_a_large_message_that_does_not_move_is_given_up(patch: int) -> None:
    pair = Pair(offer(DIALLER, batch_size=100, patch=patch), offer())
    outbox = pair.a.outbox
    assert outbox.push(put(bytes(1000)), now=START) is PushResult.DONE
    for _ in range(3):
        pair.b.take(bytes(pair.a.core.pull(START) or b""))
    assert pair.b.memory.held > 0
    assert not outbox.give_up_stale(START + FRAGMENT_DROP_SECONDS * 0.9)
    assert outbox.give_up_stale(START + FRAGMENT_DROP_SECONDS)
    assert outbox.counters.send_dropped == {"congestion_fragments": 1}
    for message in (put(b"next"), put(bytes(300))):
        assert outbox.push(message, now=START) is PushResult.DONE
    pair.carry()
    assert pair.b.memory.held == 0
    assert pair.b.heard.messages == [put(b"next"), put(bytes(300))]
    dropped = pair.b.core.counters.receive_dropped
    assert dropped == {"fragment_abandoned": 1}
    assert pair.b.core.sequences()[WirePriority.DATA, True].missing == 0


def test_the_drop_marker_also_ends_the_message_for_who_does_not_know_it() -> None:
    outbox = make(100)
    outbox.push(put(bytes(1000)), now=START)
    outbox.pull(START)
    outbox.give_up_stale(START + 1)
    (marker,) = drain(outbox)
    assert isinstance(marker, Fragment)
    assert (marker.drop, marker.more, marker.payload) == (True, False, b"")
    outbox.push(put())
    assert numbers(drain(outbox)) == [marker.sn + 1]


def test_a_large_message_of_which_nothing_left_is_given_up_without_a_trace() -> None:
    outbox = make(100, first=9)
    outbox.push(put(bytes(1000)), now=START)
    assert outbox.give_up_stale(START + 1)
    assert not outbox.waiting
    outbox.push(put())
    assert numbers(drain(outbox)) == [9]


@pytest.mark.parametrize("congestion", [BLOCK, BLOCK_FIRST])
def test_what_must_not_be_dropped_is_not(congestion: WireCongestionControl) -> None:
    outbox = make(100)
    outbox.push(put(bytes(1000), congestion=congestion), now=START)
    outbox.pull(START)
    assert not outbox.give_up_stale(START + 3600)
    outbox.pull(START)
    assert outbox.counters.send_dropped == {}


def test_only_what_does_not_move_is_given_up() -> None:
    outbox = make(100)
    outbox.push(put(bytes(10_000)), now=START)
    for i in range(20):
        outbox.pull(START + i)
        assert not outbox.give_up_stale(START + i + 0.01)


# Beyond full lanes


def test_the_backlog_is_sent_in_order() -> None:
    outbox = make(100, qos=True)
    rng = random.Random(3)
    pushed: list[Push] = []
    sent: list[TransportMessage] = []
    for i in range(500):
        message = put(i.to_bytes(4, "big") + bytes(rng.choice((0, 10, 70, 300))))
        if outbox.push(message, now=START) is PushResult.FULL:
            assert outbox.push_beyond(message, message.qos, True, START)
            assert outbox.stalled_at is not None
        pushed.append(message)
        if rng.random() < 0.3 and (data := outbox.pull(START)) is not None:
            sent += read_sent(bytes(data), Framing.STREAM)
    sent += drain(outbox)
    assert outbox.stalled_at is None
    assert not outbox.waiting
    assert joined(sent) == [encoded(message) for message in pushed]
    assert outbox.counters.sent_messages == len(pushed)


def joined(messages: list[TransportMessage]) -> list[bytes]:
    """Whole messages as bytes, fragments put together."""
    found: list[bytes] = []
    pieces = b""
    for message in messages:
        if isinstance(message, Frame):
            assert not pieces
            found += [encoded(inner) for inner in message.messages]
        elif isinstance(message, Fragment):
            pieces += message.payload
            if not message.more:
                found.append(pieces)
                pieces = b""
    return found


def test_nobody_overtakes_the_backlog() -> None:
    outbox = make(100)
    fill(outbox, put(b"x" * 60))
    assert outbox.push_beyond(put(b"kept"), DATA, True, START)
    assert outbox.push(put()) is PushResult.FULL
    assert outbox.push_encoded(encoded(put()), DATA) is PushResult.FULL
    assert contents(drain(outbox))[-1] == put(b"kept")


def test_the_backlog_of_a_stuck_link_is_limited_in_bytes_and_in_number() -> None:
    outbox = make(65535, max_message=64 << 20)
    outbox.push(put(bytes(200_000)))
    large = encoded(put(bytes(1 << 20)))
    taken, now = 0, START
    while outbox.push_beyond(large, DATA, True, now):
        taken, now = taken + 1, START + STUCK_SECONDS
    assert taken == BACKLOG_BYTES // (len(large) + BACKLOG_ENTRY_BYTES)
    assert outbox._backlog_bytes <= BACKLOG_BYTES
    drain(outbox)
    assert outbox._backlog_bytes == 0
    small = make(65535)
    small.push(put(bytes(200_000)))
    message = encoded(put())
    most = BACKLOG_BYTES // (len(message) + BACKLOG_ENTRY_BYTES)
    assert small.push_beyond(message, DATA, True, START)
    now = START + STUCK_SECONDS
    assert sum(small.push_beyond(message, DATA, True, now) for _ in range(most + 5)) == most - 1


def test_the_backlog_of_a_link_that_moves_is_larger() -> None:
    outbox = make(65535, max_message=64 << 20)
    outbox.push(put(bytes(200_000)))
    large = encoded(put(bytes(40 << 20)))
    assert outbox.push_beyond(large, DATA, True, START)
    assert outbox.push_beyond(large, DATA, True, START)
    now = START + STUCK_SECONDS
    assert not outbox.push_beyond(large, DATA, True, now)
    assert outbox.pull(now) is not None
    taken = 2
    while outbox.push_beyond(large, DATA, True, now):
        taken += 1
    assert taken == MAX_BACKLOG_BYTES // (len(large) + BACKLOG_ENTRY_BYTES)


@pytest.mark.parametrize("pulled", [0, 2])
def test_the_backlog_moves_when_what_was_before_it_is_given_up(pulled: int) -> None:
    outbox = make(100)
    outbox.push(put(bytes(1000)), now=START)
    for _ in range(pulled):
        outbox.pull(START)
    assert outbox.push_beyond(put(b"kept", congestion=BLOCK), QoS(), True, START)
    assert outbox.give_up_stale(START + 1)
    assert outbox.waiting
    assert contents(drain(outbox)) == [put(b"kept", congestion=BLOCK)]
    assert outbox.stalled_at is None


def test_the_backlog_says_since_when_it_has_not_moved() -> None:
    outbox = make(100)
    fill(outbox, put(b"x" * 60))
    outbox.push_beyond(put(b"x" * 60), DATA, True, START)
    outbox.push_beyond(put(b"x" * 60), DATA, True, START + 1)
    assert outbox.stalled_at == START
    while outbox._lanes[0].backlog:
        assert outbox.pull(START + 2) is not None
        assert outbox.stalled_at in (START + 2, None)
    assert outbox.stalled_at is None


def test_a_backlog_behind_a_large_message_that_moves_is_not_stalled() -> None:
    outbox = make(100)
    outbox.push(put(bytes(1000), congestion=BLOCK), now=START)
    outbox.push_beyond(put(b"behind it"), DATA, True, START)
    for later in range(1, 5):
        assert outbox.pull(START + later) is not None
        assert outbox.stalled_at == START + later


# When to write


SOON = BURST_SECONDS / 2


def test_an_answer_does_not_wait_and_a_burst_may() -> None:
    outbox = make(100)
    assert outbox.due(START, False), "nothing was written yet"
    outbox.on_all_written()
    assert not outbox.due(START + SOON, False), "a second message, right after the first"
    assert outbox.due(START + SOON, True), "express"
    assert outbox.due(START + 9 * SOON, False), "a caller that was away"
    outbox.on_all_written()
    outbox.answering = True
    assert outbox.due(START + 10 * SOON, False), "something came in"
    outbox.on_all_written()
    fill(outbox, put(b"x" * 60))
    assert not outbox.due(START + 11 * SOON, False), "the batch that is open may wait,"
    assert outbox.full, "a whole one does not"
    whole = list(iter(lambda: outbox.pull(START + 11 * SOON, full_only=True), None))
    assert len(whole) == LANE_BATCHES
    assert outbox.waiting


def test_a_burst_is_written_after_a_millisecond_at_the_latest() -> None:
    outbox = make(100)
    outbox.on_all_written()
    now = START
    assert outbox.due(now, False)
    outbox.on_all_written()
    for _ in range(int(FLUSH_SECONDS / SOON) - 1):
        now += SOON
        assert not outbox.due(now, False)
    assert outbox.flush_at == pytest.approx(START + SOON + FLUSH_SECONDS)
    assert outbox.due(now + SOON, False) or outbox.due(now + 2 * SOON, False)
    outbox.on_all_written()
    assert outbox.flush_at is None


def test_a_session_that_hears_something_answers_at_once() -> None:
    hand = Hand()
    outbox = hand.side.outbox
    outbox.on_all_written()
    assert outbox.due(START, False)
    outbox.on_all_written()
    assert not outbox.due(START, False)
    hand.say(KeepAlive())
    assert outbox.due(START, False)


def test_counters_are_the_session_s() -> None:
    counters = Counters()
    outbox = Outbox(
        batch_size=100,
        framing=Framing.STREAM,
        sn_mask=0x7F,
        first_sns=[(0, 0)],
        qos=False,
        counters=counters,
    )
    outbox.push(put())
    outbox.pull(START)
    assert outbox.counters is counters
    assert (counters.sent_messages, counters.sent_batches) == (1, 1)


# The fast path


def open_lane(outbox: Outbox) -> OutboundLane:
    """A lane with a message in its open batch, to which more may be appended."""
    outbox.push(put(b"first"), now=START)
    lane = outbox.fast_path(DATA)
    assert lane is not None
    before = lane.open
    outbox.enable_fast_path(DATA)
    assert (before, lane.open) == (False, True)
    return lane


def payloads(outbox: Outbox) -> list[bytes]:
    """Return the payloads of `drain`: whole messages in the order in which they end."""
    found: list[bytes] = []
    pieces = bytearray()
    for message in drain(outbox):
        if isinstance(message, Fragment):
            pieces += message.payload
            if not message.more:
                pushed = NETWORK.read(ByteReader(bytes(pieces)))
                found.append(payload_of(pushed))
                pieces.clear()
        else:
            found += map(payload_of, contents([message]))
    return found


def payload_of(message: NetworkMessage) -> bytes:
    assert isinstance(message, Push)
    assert isinstance(message.body, Put)
    assert isinstance(message.body.payload, bytes)
    return message.body.payload


def test_appended_messages_keep_their_place_between_pushes() -> None:
    outbox = make(1000)
    lane = open_lane(outbox)
    lane.appended += [encoded(put(b"second")), encoded(put(b"third"))]
    outbox.push(put(b"fourth"), now=START)
    assert not lane.open
    assert not lane.appended
    assert payloads(outbox) == [b"first", b"second", b"third", b"fourth"]
    assert outbox.counters.sent_messages == 4


def test_appended_messages_may_fill_several_batches() -> None:
    outbox = make(100)
    lane = open_lane(outbox)
    several = [b"%d" % i * 20 for i in range(10, 40)]
    lane.appended += [encoded(put(payload)) for payload in several]
    assert payloads(outbox) == [b"first", *several]


def test_a_pull_closes_the_lane_before_it_takes_the_messages() -> None:
    outbox = make(1000)
    lane = open_lane(outbox)
    assert payloads(outbox) == [b"first"]
    assert lane.open is False
    lane.appended.append(encoded(put(b"too late")))  # by a caller that saw the lane open before
    assert outbox.pull(START) is None
    outbox.absorb_appended(lane)
    assert payloads(outbox) == [b"too late"]


def test_an_appended_message_waits_behind_a_large_one() -> None:
    outbox = make(100)
    lane = open_lane(outbox)
    outbox.push(put(bytes(500)), now=START)
    lane.appended.append(encoded(put(b"behind")))
    outbox.absorb_appended(lane)
    assert payloads(outbox)[-1] == b"behind"


@pytest.mark.parametrize("reliable", [True, False])
def test_only_a_reliable_batch_opens_the_lane(reliable: bool) -> None:
    outbox = make(1000)
    outbox.push(put(b"x"), reliable, now=START)
    outbox.enable_fast_path(DATA)
    lane = outbox.fast_path(DATA)
    assert lane is not None
    assert lane.open is reliable


def test_a_session_that_ends_closes_every_lane_for_appending() -> None:
    outbox = make(1000)
    lane = open_lane(outbox)
    outbox.disable_fast_paths()
    assert not lane.open


def test_after_a_drop_others_need_not_wait_until_something_has_moved() -> None:
    outbox = make(1000)
    outbox.push(put(b"x"), now=START)
    assert not outbox.congested(DATA)
    assert outbox.congested(DATA, dropped=True)
    assert outbox.congested(DATA)
    assert outbox.pull(START) is not None
    assert not outbox.congested(DATA)


def test_a_run_of_messages_fills_batches_up_to_the_limit() -> None:
    outbox = make(100)
    several = [b"%d" % i * 10 for i in range(10, 60)]
    messages = [encoded(put(payload)) for payload in several]
    ends = list(accumulate(map(len, messages)))
    data = memoryview(b"".join(messages))
    done = outbox.push_run(data, ends, DATA, True, 0, START)
    assert 0 < done < len(ends), "the lane is full before all are in"
    assert not outbox.has_room(DATA)
    first = payloads(outbox)
    assert first == several[:done]
    assert outbox.push_run(data, ends, DATA, True, done, START) > done
    assert payloads(outbox) == several[done : done + len(first)]
