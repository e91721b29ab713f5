"""Sequence numbers against their rule, at every mask and around every edge."""

import random

import pytest

from zenlake.transport.offer import SN_MASKS
from zenlake.transport.sequence import SequenceIn, SequenceOut

masks = pytest.mark.parametrize("mask", SN_MASKS)


def is_new(last: int, sn: int, mask: int) -> bool:
    """The protocol's rule: up to half the range ahead is new, everything else is old."""
    return 0 < (sn - last) % (mask + 1) <= mask // 2


@masks
def test_numbers_are_given_in_order_and_wrap_at_the_mask(mask: int) -> None:
    out = SequenceOut(mask - 1, mask)
    assert [out.take() for _ in range(4)] == [mask - 1, mask, 0, 1]


@masks
def test_a_number_that_was_not_used_is_given_again(mask: int) -> None:
    out = SequenceOut(mask, mask)
    assert out.take() == mask
    out.give_back()
    assert out.take() == mask
    out.take()
    out.give_back()
    out.skip()
    assert out.take() == 1


def test_every_number_of_seven_bits_is_given_once_a_round() -> None:
    out = SequenceOut(77, 0x7F)
    for _ in range(3):
        assert sorted(out.take() for _ in range(128)) == list(range(128))


def test_every_pair_of_seven_bits() -> None:
    for last in range(128):
        for sn in range(128):
            sequence = SequenceIn(last + 1, 0x7F)
            assert sequence.last == last
            assert sequence.admit(sn) is is_new(last, sn, 0x7F), (last, sn)


@masks
@pytest.mark.parametrize("first", ["zero", "middle", "mask"])
def test_the_edges_of_what_is_new(mask: int, first: str) -> None:
    start = {"zero": 0, "middle": mask // 2, "mask": mask}[first]
    half = mask // 2
    cases = [  # step from the last number, new?, missing
        (0, False, 0),
        (-1, False, 0),
        (1, True, 0),
        (2, True, 1),
        (half, True, half - 1),
        (half + 1, False, 0),
        (mask, False, 0),
    ]
    for step, new, missing in cases:
        sequence = SequenceIn(start, mask)
        assert sequence.admit(start)
        assert sequence.admit(start + step & mask) is new, step
        assert sequence.missing == missing
        assert sequence.gaps == bool(missing)
        assert sequence.stale == (not new)


@masks
def test_the_first_number_may_be_the_announced_one_or_a_later_one(mask: int) -> None:
    for first in (0, 1, mask):
        exact, late, before = (SequenceIn(first, mask) for _ in range(3))
        assert exact.admit(first)
        assert exact.missing == 0
        assert late.admit(first + 3 & mask)
        assert (late.gaps, late.missing) == (1, 3)
        assert not before.admit(first - 1 & mask)
        assert before.stale == 1


@masks
def test_a_random_walk(mask: int) -> None:
    rng = random.Random(mask)
    last = rng.randrange(mask + 1)
    sequence = SequenceIn(last + 1 & mask, mask)
    gaps = missing = stale = 0
    steps = (0, -1, 1, 1, 1, 2, 3, mask // 2, mask // 2 + 1, mask)
    for _ in range(20_000):
        anywhere = rng.random() < 0.2
        sn = rng.randrange(mask + 1) if anywhere else last + rng.choice(steps) & mask
        new = is_new(last, sn, mask)
        assert sequence.admit(sn) is new
        if new:
            lost = (sn - last) % (mask + 1) - 1
            gaps += bool(lost)
            missing += lost
            last = sn
        else:
            stale += 1
        assert sequence.last == last
    assert (sequence.gaps, sequence.missing, sequence.stale) == (gaps, missing, stale)
    assert min(gaps, missing, stale) > 100


@masks
def test_what_is_given_is_always_new(mask: int) -> None:
    out, into = SequenceOut(mask - 500 & mask, mask), SequenceIn(mask - 500 & mask, mask)
    assert all(into.admit(out.take()) for _ in range(1000))
    assert (into.gaps, into.missing, into.stale) == (0, 0, 0)


@pytest.mark.parametrize(("step", "missing"), [(1, 0), (2, 0), (3, 1), (10, 8)])
def test_one_number_may_be_skipped_after_a_message_in_fragments(step: int, missing: int) -> None:
    sequence = SequenceIn(0, 0x7F)
    assert sequence.admit(0)
    sequence.end_fragments()
    assert sequence.admit(step)
    assert (sequence.gaps, sequence.missing) == (bool(missing), missing)
    assert sequence.admit(step + 2), "the licence is for one number"
    assert (sequence.gaps, sequence.missing) == (bool(missing) + 1, missing + 1)


def test_an_old_number_does_not_use_up_the_skipped_one() -> None:
    sequence = SequenceIn(0, 0x7F)
    assert sequence.admit(5)
    sequence.end_fragments()
    before = sequence.missing
    assert not sequence.admit(4)
    assert sequence.admit(7)
    assert sequence.missing == before
