"""The hybrid logical clock, under times that the test chooses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zenlake.errors import ClockDrift
from zenlake.hlc import COUNTER_BITS, HybridLogicalClock
from zenlake.quantities import ntp64_from_nanos
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.zenohid import WireZenohId

A, B = WireZenohId.parse("a"), WireZenohId.parse("b")
SECOND = 1 << 32
NOW = 1_700_000_000 * SECOND


def test_a_stamp_is_the_time_with_a_clear_counter() -> None:
    stamp = HybridLogicalClock(A).stamp(NOW + 0x123F)
    assert stamp == WireTimestamp(NOW + 0x1230, A)


def test_stamps_within_one_tick_count() -> None:
    clock = HybridLogicalClock(A)
    times = [clock.stamp(NOW + n % 16).time for n in range(40)]
    assert times == list(range(NOW, NOW + 40))


def test_the_clock_does_not_go_back_with_the_wall_clock() -> None:
    clock = HybridLogicalClock(A)
    first = clock.stamp(NOW)
    assert clock.stamp(NOW - 10 * SECOND).time == first.time + 1
    assert clock.stamp(NOW + SECOND).time == NOW + SECOND


def test_what_was_seen_is_before_what_is_stamped() -> None:
    clock = HybridLogicalClock(A)
    seen = WireTimestamp(NOW + SECOND // 4, B)
    clock.update(seen, NOW)
    assert clock.stamp(NOW) > seen
    assert clock.last == seen.time + 1


def test_an_old_timestamp_changes_nothing() -> None:
    clock = HybridLogicalClock(A)
    stamp = clock.stamp(NOW)
    clock.update(WireTimestamp(NOW - SECOND, B), NOW)
    assert clock.last == stamp.time


def test_the_drift_limit() -> None:
    clock = HybridLogicalClock(A)
    limit = ntp64_from_nanos(500_000_000)
    clock.update(WireTimestamp(NOW + limit, B), NOW)
    before = clock.last
    with pytest.raises(ClockDrift, match=r"0\.500 s ahead .* limit is 0\.500 s"):
        clock.update(WireTimestamp(NOW + limit + 1, B), NOW)
    assert clock.last == before
    HybridLogicalClock(A, max_drift_nanos=10**9).update(WireTimestamp(NOW + limit + 1, B), NOW)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**34))))
def test_stamps_always_grow(steps: list[tuple[bool, int]]) -> None:
    clock = HybridLogicalClock(A)
    last = WireTimestamp(0, A)
    for stamp, offset in steps:
        if stamp:
            given_out = clock.stamp(NOW + offset)
            assert given_out > last
            assert given_out.time >= (NOW + offset) & ~COUNTER_BITS or given_out.time > last.time
            last = given_out
        else:
            seen = WireTimestamp(NOW + offset, B)
            clock.update(seen, NOW + offset)
            last = max(last, WireTimestamp(seen.time, A))
