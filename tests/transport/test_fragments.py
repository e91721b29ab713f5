"""Fragments: how pieces become messages, what is dropped and why, and that memory comes back."""

import random
import tracemalloc
from collections import Counter
from typing import Any

import pytest

from tests.support.transport_pair import DIALLER, Hand, Pair, offer, put
from zenlake.transport import fragments
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.fragments import (
    MAX_FRAGMENTS,
    MAX_IDLE_TICKS,
    PIECE_BYTES,
    ByteBudget,
    FragmentAssembly,
)
from zenlake.wire.close import Close
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import PRIORITIES, WirePriority
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.network import NETWORK

both_patches = pytest.mark.parametrize("patch", [0, 1])
MASK = 0x7F
UNLIMITED = 1 << 40


class Bench:
    """An assembly with its budgets."""

    def __init__(
        self,
        mask: int = MASK,
        limit: int = UNLIMITED,
        session: int = UNLIMITED,
        process: int = UNLIMITED,
    ) -> None:
        self.process = ByteBudget(process)
        self.session = ByteBudget(session, self.process)
        self.dropped: Counter[DropReason] = Counter()
        self.assembly = FragmentAssembly(mask, self.session, self.count, limit)

    def add(self, sn: int, payload: bytes = b"", patch: int = 1, **flags: Any) -> bytes | None:
        return self.assembly.add(Fragment(sn, payload, **flags), patch)

    def count(self, reason: DropReason) -> None:
        self.dropped[reason] += 1

    def assert_empty(self) -> None:
        assert (self.session.held, self.process.held) == (0, 0)
        assert self.assembly._pieces == []


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    places = sorted(rng.choices(range(len(data) + 1), k=rng.randrange(8)))
    return [data[i:j] for i, j in zip([0, *places], [*places, len(data)], strict=True)]


@both_patches
def test_any_cut_gives_the_message_back(patch: int) -> None:
    rng = random.Random(patch)
    bench, sn = Bench(), 100
    for _ in range(500):
        data = rng.randbytes(rng.randrange(200))
        pieces = cut(data, rng)
        results = []
        for i, piece in enumerate(pieces):
            more = i < len(pieces) - 1
            results.append(bench.add(sn, piece, patch, first=i == 0, more=more))
            sn = sn + 1 & MASK
        assert results == [None] * (len(pieces) - 1) + [data]
        bench.assert_empty()
        sn = sn + rng.randrange(3) & MASK
    assert bench.dropped == {}


def test_numbers_wrap_inside_a_message() -> None:
    bench = Bench()
    for i in range(300):
        assert bench.add(i & MASK, b"x", first=i == 0, more=True) is None
    assert bench.add(300 & MASK, b"y") == b"x" * 300 + b"y"


def test_a_single_piece_is_a_message() -> None:
    assert Bench().add(3, b"all", first=True) == b"all"


def test_without_first_nothing_starts_where_markers_were_agreed() -> None:
    bench = Bench()
    assert bench.add(0, b"a", more=True) is None
    assert bench.add(1, b"b") is None
    assert bench.dropped == {"fragment_first_missing": 2}
    bench.assert_empty()


def test_without_first_anything_starts_where_markers_are_unknown() -> None:
    bench = Bench()
    assert bench.add(0, b"a", patch=0, more=True) is None
    assert bench.add(1, b"b", patch=0) == b"ab"
    assert bench.dropped == {}


@both_patches
def test_a_missing_piece_loses_the_message(patch: int) -> None:
    bench = Bench()
    bench.add(0, b"a", patch, first=True, more=True)
    assert bench.add(2, b"c", patch, more=True) is None
    assert bench.dropped == {"fragment_missing": 1}
    bench.assert_empty()
    assert bench.add(3, b"whole", patch, first=True) == b"whole"


@both_patches
def test_a_first_fragment_abandons_the_unfinished_message(patch: int) -> None:
    bench = Bench()
    bench.add(0, b"old", patch, first=True, more=True)
    bench.add(1, b"new", patch, first=True, more=True)
    assert bench.add(2, b"er", patch) == b"newer"
    assert bench.dropped == {"fragment_restarted": 1}
    bench.assert_empty()


@both_patches
@pytest.mark.parametrize("more", [True, False])
def test_a_drop_fragment_frees_the_unfinished_message(patch: int, more: bool) -> None:
    bench = Bench()
    bench.add(0, b"a", patch, first=True, more=True)
    assert bench.add(1, b"ignored", patch, more=more, drop=True) is None
    assert bench.dropped == {"fragment_abandoned": 1}
    bench.assert_empty()
    assert bench.add(2, b"", patch, drop=True) is None
    assert bench.dropped == {"fragment_abandoned": 1}, "there was nothing any more"
    assert bench.add(4, b"next", patch, first=True) == b"next"


def test_the_longest_message_passes_and_one_byte_more_does_not() -> None:
    bench = Bench(limit=100)
    bench.add(0, b"x" * 60, first=True, more=True)
    assert bench.add(1, b"y" * 40) == b"x" * 60 + b"y" * 40
    bench.add(2, b"x" * 60, first=True, more=True)
    assert bench.add(3, b"y" * 41) is None
    assert bench.dropped == {"fragment_too_large": 1}
    bench.assert_empty()
    assert bench.add(4, b"z" * 101, first=True) is None
    assert bench.dropped == {"fragment_too_large": 2}
    bench.assert_empty()


@pytest.mark.parametrize("which", ["session", "process"])
def test_memory_that_is_used_up_loses_the_message_and_comes_back(which: str) -> None:
    bench = Bench(**{which: 2 * (10 + PIECE_BYTES)})
    bench.add(0, b"x" * 10, first=True, more=True)
    bench.add(1, b"x" * 10, more=True)
    assert bench.process.held == bench.session.held == 2 * (10 + PIECE_BYTES)
    assert bench.add(2, b"x") is None
    assert bench.dropped == {"fragment_no_memory": 1}
    bench.assert_empty()
    assert bench.add(3, b"fits", first=True) == b"fits"


def test_one_session_can_use_up_what_another_needs_but_not_for_ever() -> None:
    process = ByteBudget(100 + PIECE_BYTES)
    dropped: list[DropReason] = []
    one, two = (FragmentAssembly(MASK, ByteBudget(1000, process), dropped.append) for _ in range(2))
    assert one.add(Fragment(0, b"x" * 100, first=True, more=True), 1) is None
    assert two.add(Fragment(0, b"y", first=True), 1) is None
    assert two.memory.held == 0, "what the process refuses is not held by the session"
    one.abandon(DropReason.FRAGMENT_SESSION_ENDED)
    assert process.held == 0
    assert two.add(Fragment(1, b"y", first=True), 1) == b"y"


def test_the_number_of_pieces_is_limited() -> None:
    mask = 0x0FFF_FFFF
    bench = Bench(mask)
    for sn in range(MAX_FRAGMENTS - 1):
        bench.add(sn, b"x", first=sn == 0, more=True)
    assert bench.add(MAX_FRAGMENTS - 1, b"x") == b"x" * MAX_FRAGMENTS
    for sn in range(MAX_FRAGMENTS):
        bench.add(sn, b"x", first=sn == 0, more=True)
    assert bench.dropped == {}
    assert bench.add(MAX_FRAGMENTS, b"x") is None
    assert bench.dropped == {"fragment_too_large": 1}
    bench.assert_empty()


def test_pieces_are_kept_as_they_came_and_joined_once() -> None:
    """No piece is copied before the last: 100,000 of them cost 100,000 steps."""
    bench = Bench(0x0FFF_FFFF)
    pieces = [bytes((i & 0xFF, i >> 8)) for i in range(1000)]
    for sn, piece in enumerate(pieces):
        bench.add(sn, piece, first=sn == 0, more=True)
        assert bench.assembly._pieces[sn] is piece
    assert bench.add(1000, b"") == b"".join(pieces)


def test_many_small_pieces_are_charged_for_what_they_really_take() -> None:
    bench = Bench(0x0FFF_FFFF)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for sn in range(20_000):
            bench.add(sn, sn.to_bytes(2, "little"), first=sn == 0, more=True)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= bench.session.held


@both_patches
def test_whatever_comes_memory_is_what_the_pieces_take(patch: int) -> None:
    rng = random.Random(patch)
    bench = Bench(limit=60, session=3 * PIECE_BYTES + 50)
    sn = 0
    held: list[bytes] = []
    expected = None
    for _ in range(20_000):
        sn = sn + rng.choice((1, 1, 1, 1, 2, 0)) & MASK
        piece = Fragment(
            sn,
            rng.randbytes(rng.randrange(25)),
            first=rng.random() < 0.2,
            drop=rng.random() < 0.05,
            more=rng.random() < 0.8,
        )
        starts = piece.first or (patch == 0 and not held)
        goes_on = bool(held) and sn == expected
        candidate = ([] if starts else held) + [piece.payload]
        size = sum(map(len, candidate))
        fits = size <= 60 and size + PIECE_BYTES * len(candidate) <= bench.session.limit
        whole = bench.assembly.add(piece, patch)
        if piece.drop or not (starts or goes_on) or not fits:
            held = []
            assert whole is None
        elif piece.more:
            held = candidate
            assert whole is None
        else:
            held = []
            assert whole == b"".join(candidate)
        expected = sn + 1 & MASK
        assert bench.session.held == sum(map(len, held)) + PIECE_BYTES * len(held)
        assert bench.process.held == bench.session.held
    assert len(bench.dropped) >= 4


# In a session


def encoded(size: int) -> bytes:
    w = ByteWriter()
    NETWORK.write(w, put(b"p" * size))
    return bytes(w.out)


def test_sixteen_lanes_are_assembled_side_by_side() -> None:
    hand = Hand()
    lanes = [(priority, reliable) for priority in PRIORITIES for reliable in (False, True)]
    data = encoded(10)
    for sn, byte in enumerate(data):
        for priority, reliable in lanes:
            piece = Fragment(sn, bytes((byte,)), reliable, priority=priority)
            piece.first, piece.more = sn == 0, sn < len(data) - 1
            hand.say(piece)
    assert hand.received == [(p, r, put(b"p" * 10)) for p, r in lanes]
    assert hand.side.memory.held == 0
    assert hand.core.counters.receive_dropped == {}


def test_a_skipped_number_after_fragments_is_no_gap() -> None:
    hand = Hand()
    data = encoded(10)
    hand.say(Fragment(0, data[:5], first=True, more=True))
    hand.say(Fragment(1, data[5:]))
    hand.say(Frame(3, messages=[put(b"a")]))
    hand.say(Frame(5, messages=[put(b"b")]))
    sequence = hand.core.sequences()[WirePriority.DATA, True]
    assert (sequence.gaps, sequence.missing) == (1, 1)
    assert len(hand.received) == 3


@pytest.mark.parametrize("more", [True, False])
def test_a_skipped_number_after_a_drop_is_no_gap_either(more: bool) -> None:
    hand = Hand()
    hand.say(Fragment(0, b"x", first=True, more=True))
    hand.say(Fragment(1, more=more, drop=True))
    hand.say(Frame(3, messages=[put(b"a")]))
    assert hand.side.heard.messages == [put(b"a")]
    assert hand.core.sequences()[WirePriority.DATA, True].missing == 0


def test_a_message_that_does_not_decode_is_lost_alone() -> None:
    hand = Hand()
    hand.say(Fragment(0, b"\x1d\xff\xff", first=True, more=True))
    hand.say(Fragment(1, b"\xff"))
    hand.say(Fragment(3, encoded(4) + b"\x07", first=True))
    hand.say(Frame(5, messages=[put(b"a")]))
    assert hand.side.end is None
    assert hand.core.counters.receive_dropped == {"fragment_invalid": 2}
    assert hand.side.heard.messages[-1] == put(b"a")


def test_an_old_piece_is_not_added() -> None:
    hand = Hand()
    data = encoded(10)
    hand.say(Fragment(0, data[:5], first=True, more=True))
    hand.say(Fragment(0, data[:5], first=True, more=True))
    hand.say(Fragment(1, data[5:]))
    assert hand.side.heard.messages == [put(b"p" * 10)]
    assert hand.core.sequences()[WirePriority.DATA, True].stale == 1


@pytest.mark.parametrize("how", ["peer", "close", "end", "garbage", "silence", "handler"])
def test_the_end_of_a_session_gives_its_memory_back(how: str) -> None:
    process = ByteBudget(1 << 20)
    hand = Hand(process=process)
    for priority in PRIORITIES:
        hand.say(Fragment(0, b"x" * 1000, first=True, more=True, priority=priority))
    assert process.held == 8 * (1000 + PIECE_BYTES)
    if how == "peer":
        hand.say(Close())
    elif how == "close":
        hand.core.close()
    elif how == "end":
        hand.core.end(0)
    elif how == "garbage":
        hand.say_bytes(b"\x0f")
    elif how == "silence":
        with pytest.raises(Exception, match="nothing came"):
            hand.core.on_time(hand.now + 3600)
    else:
        hand.side.heard.on_message = hand.core.close
        piece = Fragment(1, b"x", first=True, more=True)
        hand.side.take(hand.batch(Frame(0, False, messages=[put()])) + hand.batch(piece))
    assert process.held == 0
    hand.say(Fragment(9, b"x" * 1000, first=True, more=True))
    assert process.held == 0
    assert fragments.PROCESS.held == 0


def test_endless_pieces_stay_within_the_limits_and_the_session_lives() -> None:
    process = ByteBudget(1 << 20)
    hand = Hand(process=process)
    batches = [hand.batch(Fragment(sn, b"x", first=sn == 0, more=True)) for sn in range(100_000)]
    hand.side.take(b"".join(batches))
    assert hand.side.end is None
    assert process.held <= process.limit
    assert hand.core.counters.receive_dropped[DropReason.FRAGMENT_NO_MEMORY] == 1
    hand.say(Frame(100_000, messages=[put(b"alive")]))
    assert hand.side.heard.messages == [put(b"alive")]


def test_a_sender_that_never_says_first_costs_nothing() -> None:
    hand = Hand()
    for sn in range(1000):
        hand.say(Fragment(sn, b"x" * 1000, more=True))
    assert hand.side.memory.held == 0
    dropped = hand.core.counters.receive_dropped
    assert dropped == {"fragment_first_missing": 1000}


@both_patches
def test_a_large_message_passes_under_either_patch(patch: int) -> None:
    pair = Pair(offer(DIALLER, batch_size=100, patch=patch), offer(batch_size=100))
    for size in (90, 1000, 5000):
        pair.push(pair.a, put(b"x" * size))
        pair.carry()
    assert [len(m.body.payload) for m in pair.b.heard.messages] == [90, 1000, 5000]  # type: ignore
    assert pair.b.core.sequences()[WirePriority.DATA, True].missing == 0


def test_a_message_that_does_not_go_on_is_let_go_and_gives_its_memory_back() -> None:
    memory, dropped = ByteBudget(1 << 20), list[DropReason]()
    assembly = FragmentAssembly(0x7F, memory, dropped.append)
    assert assembly.add(Fragment(1, b"a", more=True, first=True), 1) is None
    for _ in range(MAX_IDLE_TICKS):
        assembly.tick()
    assert assembly.add(Fragment(2, b"b", more=True), 1) is None, "it goes on"
    for _ in range(MAX_IDLE_TICKS):
        assembly.tick()
    assert memory.held > 0
    assembly.tick()
    assert memory.held == 0
    assert dropped == ["fragment_stalled"]
    assert assembly.add(Fragment(3, b"c"), 1) is None, "the rest of it is nothing"


def keep_alive(hand: Hand, intervals: int) -> None:
    """The peer says KEEP_ALIVE for as many keep-alive intervals, and nothing else."""
    for _ in range(intervals):
        hand.now += 2.5
        hand.say(KeepAlive())
        hand.core.on_time(hand.now)
        hand.hear()


def test_best_effort_does_not_keep_an_unfinished_message() -> None:
    process = ByteBudget(1 << 20)
    hand = Hand(process=process)
    hand.say(Fragment(0, b"first", False, more=True, first=True))
    assert process.held > 0
    keep_alive(hand, MAX_IDLE_TICKS + 2)
    assert process.held == 0
    assert hand.core.counters.receive_dropped == {"fragment_stalled": 1}


def test_a_reliable_message_that_pauses_for_many_leases_arrives_whole() -> None:
    """Its sender may have lanes of higher priorities to empty first, or this node does not read."""
    hand = Hand()
    data = encoded(1000)
    hand.say(Fragment(0, data[:500], more=True, first=True))
    keep_alive(hand, 20 * MAX_IDLE_TICKS)
    for sn in range(3):  # A higher lane moves meanwhile.
        hand.say(Frame(sn, priority=WirePriority.REAL_TIME, messages=[put()]))
    keep_alive(hand, 20 * MAX_IDLE_TICKS)
    hand.say(Fragment(1, data[500:]))
    assert hand.side.heard.messages[-1] == put(b"p" * 1000)
    assert hand.core.counters.receive_dropped == {}
    assert hand.side.memory.held == 0


@both_patches
def test_a_frame_behind_the_pieces_frees_the_unfinished_message(patch: int) -> None:
    """No sender writes a FRAME between the fragments of one lane: the others will not come."""
    hand = Hand(offer(patch=patch))
    hand.say(Fragment(0, b"lost", more=True, first=True))
    hand.say(Frame(0, False, messages=[put()]))
    assert hand.side.memory.held > 0, "best effort has numbers of its own"
    hand.say(Frame(4, messages=[put()]))
    assert hand.side.memory.held == 0
    assert hand.core.counters.receive_dropped == {"fragment_missing": 1}
