"""A session at the level of bytes: any cut of the stream, every broken rule, and the two ends."""

import random
from collections.abc import Iterator
from typing import Any

import lz4.block
import pytest

from tests.support.transport_pair import (
    DIALLER,
    START,
    Cut,
    Hand,
    Pair,
    Side,
    chance,
    offer,
    put,
    read_sent,
)
from zenlake.errors import SessionClosed
from zenlake.transport.establishment import Opener
from zenlake.transport.offer import SN_MASKS
from zenlake.transport.outbox import PushResult
from zenlake.wire.batch import TransportMessage, write_batch
from zenlake.wire.close import Close
from zenlake.wire.enums import PRIORITIES, CloseReason, WirePriority, WireWhatAmI
from zenlake.wire.extensions import Unknown
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing, compress, to_stream
from zenlake.wire.init import Init
from zenlake.wire.join import Join
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.oam import TransportOam
from zenlake.wire.open import Open

INVALID = CloseReason.INVALID


def assert_closed(hand: Hand, match: str, reason: CloseReason = INVALID) -> None:
    """Our core has ended the session, said CLOSE, and says nothing more."""
    end = hand.side.end
    assert isinstance(end, SessionClosed)
    assert match in str(end)
    assert (end.reason, end.by_peer) == (reason, False)
    assert hand.hear() == [Close(reason)]
    assert_silent(hand)


def assert_silent(hand: Hand) -> None:
    """Over is over: nothing is heard, said or held any more."""
    count = len(hand.received)
    hand.say(Frame(70, messages=[put(b"late")]))
    assert len(hand.received) == count
    assert hand.core.ended
    hand.core.on_time(hand.now + 10_000)
    hand.core.close()
    hand.core.end(0)
    assert hand.hear() == []
    assert hand.side.memory.held == 0


# Any cut of the stream


def one_by_one(data: bytes) -> Iterator[bytes]:
    return (data[i : i + 1] for i in range(len(data)))


def cut_by(rng: random.Random) -> Cut:
    def cut(data: bytes) -> Iterator[bytes]:
        pos = 0
        while pos < len(data):
            size = rng.choice((1, 2, 3, 7, 100, 5000))
            yield data[pos : pos + size]
            pos += size

    return cut


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "compressed": {"compression": True},
    "low latency": {"low_latency": True},
    "small": {"batch_size": 100},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut", [one_by_one, *(cut_by(random.Random(i)) for i in range(3))])
def test_any_cut_gives_the_same_messages(shape: str, cut: Cut) -> None:
    options = SHAPES[shape]
    pair = Pair(offer(DIALLER, **options), offer(**options))
    rng = random.Random(shape)
    pushed = []
    for _ in range(50):
        message = put(rng.randbytes(rng.choice((0, 10, 500, 3000))))
        while pair.a.outbox.push(message, now=START) is PushResult.FULL:
            pair.carry(cut)
        pushed.append(message)
        if rng.random() < 0.3:
            pair.carry(cut)
    pair.carry(cut)
    assert pair.b.heard.messages == pushed
    assert pair.b.core._rest == b""


@pytest.mark.parametrize("shape", SHAPES)
def test_a_handshake_and_its_data_in_one_piece(shape: str) -> None:
    """Also where the prefix changes its length behind OPEN."""
    options = SHAPES[shape]
    for cut in (None, one_by_one):
        pair = Pair(offer(DIALLER, **options), offer(**options))
        for i in range(3):
            pair.push(pair.b, put(bytes((i,))))
        pair.carry()
        stream = b"".join(pair.sent[pair.b])
        again = Side(Opener(offer(DIALLER, **options), chance(), mtu=0xFFFF))
        for piece in cut(stream) if cut else (stream,):
            again.take(piece)
        assert again.heard.messages == [put(bytes((i,))) for i in range(3)]


def test_a_stream_that_is_long_keeps_only_an_unfinished_batch() -> None:
    hand = Hand()
    batch = hand.batch(Frame(0, messages=[put(bytes(60_000))]))
    hand.side.take(batch * 3 + batch[:-1])
    assert len(hand.core._rest) == len(batch) - 1
    hand.side.take(batch[-1:])
    assert hand.core._rest == b""
    assert hand.core.sequences()[WirePriority.DATA, True].stale == 3


# What a batch may hold


def test_several_messages_in_a_batch() -> None:
    hand = Hand()
    hand.say(
        KeepAlive(),
        Frame(0, messages=[put(b"a"), put(b"b")]),
        KeepAlive(),
        Frame(0, False, messages=[put(b"c")]),
        Frame(0, True, WirePriority.REAL_TIME, [put(b"d")]),
        Frame(1),
        Fragment(2, b"", first=True, more=True),
    )
    assert hand.received == [
        (WirePriority.DATA, True, put(b"a")),
        (WirePriority.DATA, True, put(b"b")),
        (WirePriority.DATA, False, put(b"c")),
        (WirePriority.REAL_TIME, True, put(b"d")),
    ]
    assert hand.side.end is None
    assert hand.core.counters.received_frames == 4


@pytest.mark.parametrize("framing", [Framing.STREAM, Framing.DATAGRAM])
@pytest.mark.parametrize("compression", [False, True])
def test_a_batch_of_nothing_renews_the_lease(framing: Framing, compression: bool) -> None:
    hand = Hand(offer(compression=compression), framing=framing)
    hand.now = START + 9
    hand.say_bytes(b"")
    assert hand.core.last_received == START + 9
    hand.core.on_time(START + 18)
    assert hand.side.end is None
    assert not hand.core.ended


def test_what_means_nothing_any_more_is_ignored_and_counted() -> None:
    hand = Hand()
    hand.say(
        TransportOam(7, b"x"),
        Init(DIALLER, WireWhatAmI.CLIENT),
        Init(DIALLER, WireWhatAmI.PEER, cookie=b"c"),
        Open(1, 5, b"c"),
        Open(1, 5),
        Join(DIALLER, WireWhatAmI.PEER, 1000),
        Frame(0, messages=[put()]),
    )
    assert hand.core.counters.ignored == 6
    assert len(hand.received) == 1
    assert hand.side.agreed.peer_lease == 10.0
    assert hand.hear() == []


def test_extensions_that_nobody_knows_are_passed_over() -> None:
    hand = Hand()
    hand.say(Frame(0, messages=[put()], extensions=(Unknown(0x2E, 5),)))
    hand.say(KeepAlive((Unknown(0x0E, None),)))
    assert hand.side.end is None
    assert len(hand.received) == 1


# What ends a session


def test_bytes_behind_the_last_message_are_named() -> None:
    hand = Hand()
    good = write_batch([Frame(0, messages=[put()])])
    hand.side.take(hand.framed(b"") + hand.framed(good) + hand.framed(good + b"\x08"))
    assert_closed(hand, f"header at byte {len(good)}")
    assert hand.side.heard.messages == [put()]


def test_the_byte_is_counted_from_the_batch_however_the_stream_was_cut() -> None:
    reasons = set()
    for cut in (1, 2, 7, 1000):
        hand = Hand()
        stream = hand.batch(KeepAlive()) * 3 + hand.framed(b"\x04\x04\x25\x00\x1d\xff")
        for pos in range(0, len(stream), cut):
            hand.side.take(stream[pos : pos + cut])
        reasons.add(str(hand.side.end))
    assert len(reasons) == 1
    assert "at byte 5" in reasons.pop()


@pytest.mark.parametrize(
    "batch",
    [
        "1d000000",  # a network message without FRAME
        "08",
        "18",
        "03",  # CLOSE without a reason
        "25",  # FRAME without a number
        "2580",  # a number cut short
        "25007d",
        "a5001e",  # an extension that must be understood
        "a50071ff",  # an encoding that is none
    ],
)
def test_bytes_that_do_not_decode_end_the_session(batch: str) -> None:
    hand = Hand()
    hand.say_bytes(bytes.fromhex(batch))
    assert_closed(hand, "at byte")


@pytest.mark.parametrize(("size", "framing"), [(4096, Framing.STREAM), (4096, Framing.DATAGRAM)])
def test_a_batch_beyond_the_agreed_size_ends_the_session(size: int, framing: Framing) -> None:
    longest = size - framing
    fits = Hand(framing=framing, batch_size=size)
    empty = len(write_batch([Frame(0, messages=[put(bytes(1000))])])) - 1000
    fits.say(Frame(0, messages=[put(bytes(longest - empty))]))
    assert fits.side.end is None
    assert len(fits.received) == 1
    hand = Hand(framing=framing, batch_size=size)
    hand.say(Frame(0, messages=[put(bytes(longest - empty + 1))]))
    assert_closed(hand, f"a batch of {longest + 1} bytes came, {longest} were agreed")


def test_a_length_beyond_the_agreed_size_is_not_waited_for() -> None:
    for pieces in ([b"\xff\x0f"], [b"\xff", b"\x0f"]):
        hand = Hand(batch_size=4096)
        for piece in pieces:
            hand.side.take(piece)
        assert_closed(hand, "a batch of 4095 bytes")


@pytest.mark.parametrize("length", [0x10000, 0x7FFF_FFFF, 0xFFFF_FFFF])
def test_a_low_latency_length_is_limited_too(length: int) -> None:
    hand = Hand(offer(low_latency=True))
    hand.side.take(length.to_bytes(4, "little"))
    assert_closed(hand, f"a batch of {length} bytes")


@pytest.mark.parametrize(
    "message",
    [Frame(0, messages=[put()]), Fragment(0, b"x", first=True), Fragment(0, b"x", more=True)],
    ids=["FRAME", "FRAGMENT", "FRAGMENT more"],
)
@pytest.mark.parametrize("framing", [Framing.STREAM, Framing.DATAGRAM])
def test_low_latency_has_no_frames(message: Frame | Fragment, framing: Framing) -> None:
    hand = Hand(offer(low_latency=True), framing=framing)
    hand.say(message)
    assert_closed(hand, "header at byte 0")
    assert hand.received == []


def test_low_latency_takes_bare_messages_and_keeps_alive() -> None:
    hand = Hand(offer(low_latency=True))
    hand.side.take(bytes.fromhex("0100000004060000003d00016b01000100000004"))
    hand.say(TransportOam(1))
    assert hand.side.heard.messages == [put()]
    assert hand.core.counters.ignored == 1
    hand.side.take(bytes.fromhex("020000000300"))
    assert hand.side.end is not None
    assert hand.side.end.by_peer


LIES = {
    "truncated": lz4.block.compress(bytes(1000), store_size=False)[:-3],
    "bomb": lz4.block.compress(bytes(1 << 19), store_size=False),
    "one byte too many": lz4.block.compress(bytes(4095), store_size=False),
    "empty": b"",
    "garbage": b"\xff" * 50,
    "offset before the start": b"\x10A\xff\xff",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_compressed_batch_that_lies_ends_the_session(lie: str) -> None:
    hand = Hand(offer(compression=True), batch_size=4096)
    hand.say_bytes(b"\x01" + LIES[lie])
    assert_closed(hand, "at byte 0")
    assert hand.received == []


@pytest.mark.parametrize("seed", range(5))
def test_compressed_batches_with_changed_bytes(seed: int) -> None:
    rng = random.Random(seed)
    plain = write_batch([Frame(0, messages=[put(b"abc" * 300), put(bytes(500))])])
    packed = compress(plain)
    assert packed[0] == 1
    for _ in range(100):
        hand = Hand(offer(compression=True), batch_size=4096)
        changed = bytearray(packed)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        hand.say_bytes(bytes(changed))
        if hand.side.end is not None:
            assert hand.side.end.by_peer or hand.side.end.reason == INVALID


# Lanes and numbers


@pytest.mark.parametrize("priority", [p for p in PRIORITIES if p is not WirePriority.DATA])
@pytest.mark.parametrize("kind", ["frame", "fragment"])
def test_a_lane_where_none_was_agreed_ends_the_session(priority: WirePriority, kind: str) -> None:
    hand = Hand(offer(qos=False))
    if kind == "frame":
        hand.say(Frame(0, priority=priority, messages=[put()]))
    else:
        hand.say(Fragment(0, b"x", first=True, more=True, priority=priority))
    assert_closed(hand, f"lane {priority.name}")
    assert hand.received == []


def test_data_may_be_named_where_no_lanes_were_agreed() -> None:
    hand = Hand(offer(qos=False))
    hand.say_bytes(bytes.fromhex("a50031053d00016b0100"))
    assert hand.side.heard.messages == [put()]


def test_sixteen_counters_start_at_the_first_number() -> None:
    hand = Hand()
    for round_ in range(3):
        for priority in PRIORITIES:
            for reliable in (True, False):
                hand.say(Frame(round_, reliable, priority, [put()]))
    assert len(hand.received) == 48
    sequences = hand.core.sequences()
    assert len(sequences) == 16
    for sequence in sequences.values():
        assert (sequence.last, sequence.missing, sequence.stale) == (2, 0, 0)


def test_two_counters_without_lanes() -> None:
    hand = Hand(offer(qos=False))
    for reliable in (True, False, True, False):
        hand.say(Frame(len(hand.received) // 2, reliable, messages=[put()]))
    assert set(hand.core.sequences()) == {(WirePriority.DATA, True), (WirePriority.DATA, False)}
    assert len(hand.received) == 4


@pytest.mark.parametrize("bits", range(4))
@pytest.mark.parametrize(
    "priority", [WirePriority.DATA, WirePriority.CONTROL, WirePriority.BACKGROUND]
)
@pytest.mark.parametrize("reliable", [True, False])
def test_numbers_around_the_edges(bits: int, priority: WirePriority, reliable: bool) -> None:
    """The peer's first number is 0: 0 and half the range from there on are new."""
    mask = SN_MASKS[bits]
    half = mask >> 1
    for sn, new in ((0, True), (half - 1, True), (half, False), (mask, False), (half + 1, False)):
        hand = Hand(offer(resolution=bits))
        hand.say(Frame(sn, reliable, priority, [put()]))
        assert len(hand.received) == new, sn
        sequence = hand.core.sequences()[priority, reliable]
        assert (sequence.stale, sequence.missing) == (not new, sn if new else 0)
        hand.say(Frame(sn, reliable, priority, [put()]))
        assert len(hand.received) == new
        assert hand.side.end is None


@pytest.mark.parametrize("bits", range(3))
@pytest.mark.parametrize("priority", [WirePriority.DATA, WirePriority.CONTROL])
@pytest.mark.parametrize("kind", ["frame", "fragment"])
def test_a_number_beyond_the_mask_ends_the_session(
    bits: int, priority: WirePriority, kind: str
) -> None:
    for sn in (SN_MASKS[bits] + 1, 0xFFFF_FFFF):
        hand = Hand(offer(resolution=bits))
        if kind == "frame":
            hand.say(Frame(sn, priority=priority, messages=[put()]))
        else:
            hand.say(Fragment(sn, b"x", first=True, more=True, priority=priority))
        assert_closed(hand, "sn at byte 1")
        assert hand.received == []


@pytest.mark.parametrize("bits", range(4))
def test_thousands_of_messages_wrap_both_ways(bits: int) -> None:
    """From 500 numbers before the end of the range; of seven bits that is five rounds."""
    mask = SN_MASKS[bits]
    first = mask - 500 & mask
    draws = [lambda size: first.to_bytes(4, "little") if size == 4 else bytes(size)] * 2
    options: dict[str, Any] = {"resolution": bits | 0x08, "qos": False}
    pair = Pair(offer(DIALLER, **options), offer(**options), entropies=draws)
    assert pair.a.agreed.initial_sn == pair.b.agreed.initial_sn == first
    for i in range(2000):
        for side in (pair.a, pair.b):
            pair.push(side, put(i.to_bytes(4, "big")), bool(i & 1))
        pair.carry()  # one FRAME each
    expected = [put(i.to_bytes(4, "big")) for i in range(2000)]
    for side in (pair.a, pair.b):
        assert side.heard.messages == expected
        assert side.end is None
        for sequence in side.core.sequences().values():
            assert (sequence.missing, sequence.stale) == (0, 0)
            assert sequence.last == first + 999 & mask


def test_old_frames_are_counted_and_what_follows_them_is_read() -> None:
    hand = Hand()
    hand.say(Frame(5, messages=[put(b"a")]))
    hand.say(Frame(5, messages=[put(b"b"), put(b"c")]), Frame(6, messages=[put(b"d")]))
    hand.say(Frame(3, messages=[put(b"e")]), Frame(9, messages=[put(b"f")]))
    assert hand.side.heard.messages == [put(b"a"), put(b"d"), put(b"f")]
    sequence = hand.core.sequences()[WirePriority.DATA, True]
    assert (sequence.stale, sequence.gaps, sequence.missing) == (2, 2, 5 + 2)


def test_an_old_frame_that_does_not_decode_ends_the_session_too() -> None:
    hand = Hand()
    hand.say(Frame(5, messages=[put()]))
    hand.say_bytes(bytes.fromhex("25057d00"))
    assert_closed(hand, "at byte")


# The two ends


@pytest.mark.parametrize("reason", [0, 2, 6, 99])
@pytest.mark.parametrize("session", [False, True])
def test_the_peer_s_close_is_seen_with_its_reason(reason: int, session: bool) -> None:
    hand = Hand()
    hand.side.outbox.push(put(b"never sent"))
    hand.say(Frame(0, messages=[put()]), Close(reason, session), Frame(1, messages=[put()]))
    end = hand.side.end
    assert isinstance(end, SessionClosed)
    assert (end.reason, end.by_peer) == (reason, True)
    assert str(reason) in str(end)
    assert len(hand.received) == 1
    assert_silent(hand)


def test_end_says_close_and_nothing_else() -> None:
    hand = Hand()
    outbox = hand.side.outbox
    outbox.push(put(b"waits"))
    outbox.push(put(bytes(200_000)))
    hand.core.end(CloseReason.MAX_LINKS)
    assert hand.hear() == [Close(CloseReason.MAX_LINKS)]
    assert_silent(hand)


def test_close_says_everything_first() -> None:
    options: dict[str, Any] = {"batch_size": 100}
    pair = Pair(offer(DIALLER, **options), offer(**options))
    outbox = pair.a.outbox
    messages = []
    for i in range(30):
        message = put(i.to_bytes(4, "big") + bytes(i * 10))
        if outbox.push(message, now=START) is PushResult.FULL:
            assert outbox.push_beyond(message, message.qos, True, START)
        messages.append(message)
    outbox.push(put(b"urgent", WirePriority.CONTROL))
    pair.a.core.close(CloseReason.UNSUPPORTED)
    pair.carry()
    assert pair.b.heard.messages == [put(b"urgent", WirePriority.CONTROL), *messages]
    assert pair.b.end is not None
    assert (pair.b.end.reason, pair.b.end.by_peer) == (CloseReason.UNSUPPORTED, True)
    last = read_sent(pair.sent[pair.a][-1], Framing.STREAM)
    assert last == [Close(CloseReason.UNSUPPORTED)]
    assert pair.a.pull_all() == []


def test_what_a_closing_session_hears_is_not_delivered() -> None:
    hand = Hand()
    hand.core.close()
    hand.say(Frame(0, messages=[put()]))
    hand.say(Fragment(1, b"x", first=True, more=True))
    assert hand.received == []
    assert not hand.core.ended
    assert hand.hear() == [Close()]
    hand.say(KeepAlive(), Close(CloseReason.EXPIRED))
    assert hand.side.end is not None
    assert (hand.side.end.reason, hand.side.end.by_peer) == (CloseReason.EXPIRED, True)
    assert hand.hear() == [], "it has said CLOSE"


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_a_handler_may_end_the_session(in_one_batch: bool) -> None:
    hand = Hand()
    hand.side.heard.on_message = lambda: hand.core.end(0)
    one, two = Frame(0, messages=[put(b"a")]), Frame(0, False, messages=[put(b"b")])
    pieces = hand.batch(one, two) if in_one_batch else hand.batch(one) + hand.batch(two)
    hand.side.take(pieces + b"\xff\xff")  # a length that is not looked at any more
    assert hand.side.end is None
    assert hand.side.heard.messages == [put(b"a")]
    assert hand.hear() == [Close()]
    assert_silent(hand)


def test_counters_tell_what_happened() -> None:
    pair = Pair(offer(DIALLER), offer())
    for i in range(10):
        pair.push(pair.a, put(bytes((i,))))
    pair.carry()
    sent, got = pair.a.core.counters, pair.b.core.counters
    assert sent.sent_messages == 10
    assert sent.sent_batches == got.received_batches == 3
    assert sent.sent_bytes == got.received_bytes == sum(map(len, pair.sent[pair.a]))
    assert got.received_frames == 1


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("shape", SHAPES)
def test_random_bytes_only_ever_end_the_session(shape: str, seed: int) -> None:
    rng = random.Random(f"{shape} {seed}")
    options = SHAPES[shape]
    good: list[TransportMessage] = [
        Frame(0, messages=[put(b"x" * 20), put(b"y")]),
        Frame(1, False, WirePriority.CONTROL, [put()]),
        Fragment(2, b"abc", first=True, more=True),
        Fragment(3, b"abc", drop=True),
        KeepAlive(),
        TransportOam(1, b"x"),
        Close(),
    ]
    for _ in range(100):
        hand = Hand(offer(**options))
        for _ in range(10):
            batch = bytearray(write_batch([rng.choice(good)]))
            for _ in range(rng.choice((0, 1, 1, 5))):
                batch[rng.randrange(len(batch))] = rng.randrange(256)
            hand.say_bytes(bytes(batch) if rng.random() < 0.9 else rng.randbytes(20))
        if hand.side.end is not None:
            assert isinstance(hand.side.end, SessionClosed)
            assert hand.side.memory.held == 0
        hand.core.end(0)
        assert hand.side.memory.held == 0


def test_a_datagram_is_one_batch() -> None:
    hand = Hand(framing=Framing.DATAGRAM)
    hand.say(Frame(0, messages=[put(b"a")]))
    hand.say(Frame(2, messages=[put(b"b")]))
    hand.say(Frame(1, messages=[put(b"late")]))
    assert hand.side.heard.messages == [put(b"a"), put(b"b")]
    hand.side.outbox.push(put(b"c"))
    (data,) = hand.side.pull_all()
    assert to_stream([data], Framing.STREAM)[2:] == data
    (frame,) = read_sent(data, Framing.DATAGRAM)
    assert isinstance(frame, Frame)
    assert frame.messages == [put(b"c")]


def test_a_core_that_was_told_enough_goes_on_where_it_stopped() -> None:
    hand = Hand()
    frames = [Frame(sn, messages=[put(bytes([sn]))]) for sn in range(6)]
    stream = b"".join(hand.batch(each) for each in frames)
    hand.core.enough = lambda: len(hand.received) % 2 == 0
    seen = []
    for piece in (stream[:-3], b"", b"", stream[-3:]):  # the last batch is cut
        hand.side.take(piece)
        seen.append((len(hand.received), hand.core.pending))
    assert seen == [(2, True), (4, True), (5, False), (6, True)]
    assert hand.side.heard.messages == [each.messages[0] for each in frames]
