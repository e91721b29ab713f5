"""Failures slowed by address."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zenlake.transport.throttle import (
    FIRST_DELAY_S,
    FREE_FAILURES,
    MAX_ADDRESSES,
    MAX_DELAY_S,
    QUIET_S,
    WINDOW_S,
    Throttle,
)

HERE, THERE = "192.0.2.1", "192.0.2.2"


def slowed(throttle: Throttle, address: str, now: float) -> float:
    """Fail at once as often as it is free, and once more."""
    for _ in range(FREE_FAILURES):
        assert throttle.failed(address, now) == 0.0
    return throttle.failed(address, now)


def test_five_failures_a_second_are_free_and_then_the_delay_doubles() -> None:
    throttle = Throttle()
    delays = [throttle.failed(HERE, 0.001 * n) for n in range(13)]
    assert delays[:FREE_FAILURES] == [0.0] * FREE_FAILURES
    assert delays[FREE_FAILURES:] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_slow_failures_are_free_for_ever() -> None:
    throttle = Throttle()
    apart = 1.001 * WINDOW_S / FREE_FAILURES
    assert {throttle.failed(HERE, n * apart) for n in range(1000)} == {0.0}


def test_a_window_has_no_edge_to_hide_at() -> None:
    throttle = Throttle()
    times = [0.9, 0.92, 0.94, 0.96, 0.98, 1.01]  # six within a second, over a full second
    assert [throttle.failed(HERE, t) for t in times] == [0.0] * 5 + [FIRST_DELAY_S]


def test_who_waits_politely_stays_slowed_until_a_quiet_minute() -> None:
    throttle = Throttle()
    now, delay = 0.0, slowed(throttle, HERE, 0.0)
    for _ in range(20):
        now += delay
        delay = throttle.failed(HERE, now)
    assert delay == MAX_DELAY_S
    assert throttle.failed(HERE, now + QUIET_S - 0.1) == MAX_DELAY_S
    assert throttle.failed(HERE, now + 2 * QUIET_S) == 0.0
    assert slowed(throttle, THERE, now) == FIRST_DELAY_S


def test_addresses_do_not_pay_for_each_other() -> None:
    throttle = Throttle()
    assert slowed(throttle, HERE, 0.0) > 0
    assert throttle.failed(THERE, 0.0) == 0.0


def test_ten_thousand_failures_of_one_address() -> None:
    """A8: who waits as told needs hours for what took seconds."""
    throttle, now = Throttle(), 0.0
    for _ in range(10_000):
        now += throttle.failed(HERE, now)
    assert now > 13 * 3600
    assert len(throttle) == 1


def test_memory_is_limited_and_the_oldest_goes_first() -> None:
    throttle = Throttle()
    slowed(throttle, "old", 0.0)
    slowed(throttle, "busy", 0.0)
    for n in range(MAX_ADDRESSES - 2):
        throttle.failed(f"address {n}", 0.1)
    assert len(throttle) == MAX_ADDRESSES
    assert throttle.failed("busy", 0.1) == 2 * FIRST_DELAY_S
    assert len(throttle) == MAX_ADDRESSES
    throttle.failed("one more", 0.1)
    assert len(throttle) == MAX_ADDRESSES
    assert throttle.failed("busy", 0.1) == 4 * FIRST_DELAY_S
    assert throttle.failed("old", 0.1) == 0.0


@given(st.lists(st.tuples(st.sampled_from([HERE, THERE]), st.floats(0, 30)), max_size=60))
def test_no_delay_is_ever_negative_or_above_the_greatest(steps: list[tuple[str, float]]) -> None:
    throttle, now = Throttle(), 0.0
    for address, later in steps:
        now += later
        assert 0.0 <= throttle.failed(address, now) <= MAX_DELAY_S
