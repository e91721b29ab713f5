"""Attempts become rarer, never stop or stop in time, and no peer can make us storm it."""

import math

import pytest

from zenlake.errors import InvalidLocator
from zenlake.transport.retry import MAX_PERIOD, Retry, RetryPolicy
from zenlake.wire.locator import EndPoint


def waits(retry: Retry, count: int, now: float = 100.0) -> list[float | None]:
    """How long after each failure the next attempt is; every attempt fails at once."""
    out: list[float | None] = []
    for _ in range(count):
        again = retry.failed(now)
        out.append(None if again is None else again - now)
        if again is None:
            break
        now = again
    return out


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RetryPolicy(), [1, 2, 4, 4, 4]),
        (RetryPolicy(first=0.5, factor=3, longest=10), [0.5, 1.5, 4.5, 10, 10]),
        (RetryPolicy(factor=1), [1, 1, 1, 1, 1]),
        (RetryPolicy(first=9, longest=4), [4, 4, 4, 4, 4]),
        (RetryPolicy(timeout=0), [None]),
        (RetryPolicy(timeout=0.5), [None]),
        (RetryPolicy(timeout=7), [1, 2, 4, None]),
        (RetryPolicy(timeout=6.9), [1, 2, None]),
        (RetryPolicy(first=0), [None]),
    ],
)
def test_periods_grow_to_the_longest_until_the_timeout(
    policy: RetryPolicy, expected: list[float | None]
) -> None:
    assert waits(Retry(policy, 100.0), 5) == expected


def test_the_default_never_gives_up() -> None:
    assert waits(Retry(RetryPolicy(), 100.0), 10_000)[-1] == 4


def test_time_spent_in_attempts_counts() -> None:
    retry = Retry(RetryPolicy(timeout=10), 0.0)
    assert retry.failed(8.0) == 9.0
    assert retry.failed(9.5) is None


def test_a_long_session_starts_the_periods_anew() -> None:
    retry = Retry(RetryPolicy(), 0.0)
    waits(retry, 5)
    retry.succeeded(200.0)
    assert retry.lost(204.0) == 205.0
    assert retry.failed(205.0) == 207.0


def test_a_short_session_does_not() -> None:
    retry = Retry(RetryPolicy(), 0.0)
    now, gaps = 0.0, []
    for _ in range(6):
        retry.succeeded(now)
        again = retry.lost(now + 0.01)
        assert again is not None
        gaps.append(round(again - now - 0.01, 6))
        now = again
    assert gaps == [1, 2, 4, 4, 4, 4]


def test_short_sessions_and_failures_share_the_periods() -> None:
    retry = Retry(RetryPolicy(), 0.0)
    assert retry.failed(0.0) == 1.0
    retry.succeeded(1.0)
    assert retry.lost(4.99) == pytest.approx(6.99)
    assert retry.failed(10.0) == 14.0


def test_what_was_open_once_is_sought_for_ever() -> None:
    retry = Retry(RetryPolicy(timeout=0), 0.0)
    retry.succeeded(1.0)
    assert retry.lost(100.0) == 101.0
    assert waits(retry, 4, 101.0) == [2, 4, 4, 4]


def test_without_a_first_period_a_lost_session_stays_lost() -> None:
    retry = Retry(RetryPolicy(first=0), 0.0)
    retry.succeeded(1.0)
    assert retry.lost(100.0) is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, RetryPolicy()),
        ({"iface": "lo"}, RetryPolicy()),
        ({"retry_period_init_ms": "500"}, RetryPolicy(first=0.5)),
        ({"retry_period_init_ms": "0"}, RetryPolicy(first=0)),
        ({"retry_period_init_ms": "-1"}, RetryPolicy(first=0)),
        ({"retry_period_max_ms": "8000"}, RetryPolicy(longest=8)),
        ({"retry_period_max_ms": "0"}, RetryPolicy(longest=MAX_PERIOD)),
        ({"retry_period_max_ms": "-1"}, RetryPolicy(longest=MAX_PERIOD)),
        ({"retry_period_max_ms": "99999999999"}, RetryPolicy(longest=MAX_PERIOD)),
        ({"retry_period_increase_factor": "1.5"}, RetryPolicy(factor=1.5)),
    ],
)
def test_an_endpoint_says_how(config: dict[str, str], expected: RetryPolicy) -> None:
    assert RetryPolicy.from_config(config) == expected


def test_an_endpoint_changes_only_what_it_says() -> None:
    base = RetryPolicy(first=2, factor=3, longest=20, timeout=5)
    endpoint = EndPoint("tcp/192.0.2.1:7447#retry_period_max_ms=9000;retry_period_init_ms=100")
    expected = RetryPolicy(first=0.1, factor=3, longest=9, timeout=5)
    assert RetryPolicy.from_config(endpoint.config, base) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retry_period_init_ms", "soon"),
        ("retry_period_init_ms", ""),
        ("retry_period_init_ms", "inf"),
        ("retry_period_max_ms", "nan"),
        ("retry_period_increase_factor", "two"),
        ("retry_period_increase_factor", "0.5"),
        ("retry_period_increase_factor", "-1"),
    ],
)
def test_what_cannot_be_meant_is_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidLocator, match=r"write a number|must be 1 or more"):
        RetryPolicy.from_config({key: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"factor": 0.9},
        {"factor": math.nan},
        {"factor": math.inf},
        {"first": -1.0},
        {"first": math.inf},
        {"longest": 0.0},
        {"longest": MAX_PERIOD + 1},
        {"timeout": -1.0},
        {"timeout": math.nan},
    ],
)
def test_a_policy_has_sense(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="retry"):
        RetryPolicy(**fields)
