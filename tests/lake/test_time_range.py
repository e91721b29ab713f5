"""`_time`: the grammar of Zenoh, and which HLC times lie in a range, to the nanosecond."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zenlake.api.values.timestamps import NTP64
from zenlake.errors import ZError
from zenlake.lake.serve.time_range import (
    EVERYTHING,
    HIGHEST,
    LOWEST,
    HlcRange,
    hlc_range,
    of_parameters,
)
from zenlake.quantities import NANOS, time_range

NOON = datetime(2024, 7, 1, 12, tzinfo=UTC)
NOW = int(NOON.timestamp()) * NANOS


def nanos(hlc: int) -> int:
    """Return the nanoseconds that an HLC time shows as."""
    return NTP64.of(hlc).as_nanos()


def holds(text: str, hlc: int, now: int = NOW) -> bool:
    low, high = hlc_range(text, now)
    return low <= hlc <= high


def at(instant: int) -> int:
    return int(NTP64._at(instant).wire)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("[now()..now()]", NOW, NOW),
        ("]now(-1s)..now(1s)[", NOW - NANOS + 1, NOW + NANOS - 1),
        ("[now(-1.5h)..now(2d)]", NOW - 5400 * NANOS, NOW + 172_800 * NANOS),
        ("[now(-1w)..now(3ms)]", NOW - 7 * 86_400 * NANOS, NOW + 3_000_000),
        ("[now(-20u)..now(90)]", NOW - 20_000, NOW + 90 * NANOS),
        ("[2024-07-01T12:00:00Z;10m]", NOW, NOW + 600 * NANOS),
        ("[2024-07-01 12:00:00;.5s[", NOW, NOW + NANOS // 2 - 1),
        ("[now(-1h);1h]", NOW - 3600 * NANOS, NOW),
        (
            "[2024-07-01T12:00:00.123456789Z..2024-07-01T12:00:00.9999999999Z]",
            NOW + 123_456_789,
            NOW + NANOS - 1,
        ),
    ],
)
def test_a_range_holds_what_shows_as_a_time_in_it(text: str, low: int, high: int) -> None:
    found = hlc_range(text, NOW)
    assert nanos(found.low) == low
    assert nanos(found.low - 1) < low
    assert nanos(found.high) == high
    assert nanos(found.high + 1) > high


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[..]", EVERYTHING),
        ("]..[", EVERYTHING),
        ("[now(1e15)..]", HlcRange(HIGHEST, HIGHEST)),
        ("[..now(-1e15)]", HlcRange(LOWEST, LOWEST)),
        ("[now(1e30)..]", EVERYTHING),  # no bound, as in Zenoh: no SystemTime holds it
        ("[..now(-inf)]", EVERYTHING),
        ("[now(1e999)..]", EVERYTHING),
    ],
)
def test_open_and_unreachable_bounds(text: str, expected: HlcRange) -> None:
    assert hlc_range(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "begins and ends with"),
        ("[.]", "begins and ends with"),
        ("now()..now()", "begins and ends with"),
        ("[now()]", "start..end"),
        ("[;1h]", "start..end"),
        ("[now(-)..]", "not a duration"),
        ("[now(1y)..]", "not a duration"),
        ("[now(1h30m)..]", "not a duration"),
        ("[now(5min)..]", "not a duration"),
        ("[now(5us)..]", "not a duration"),
        ("[1969-12-31T23:59:59Z..]", "neither"),
        ("[now();]", "not a duration"),
        ("[yesterday..]", "neither"),
        ("[2024-13-01T00:00:00Z..]", "neither"),
        ("[2024-07-01T12:00:00+02:00..]", "neither"),
        ("[2024-07-01..]", "neither"),
        ("[" + "x" * 10_000 + "..]", "neither"),
    ],
)
def test_what_is_no_range_says_why(text: str, says: str) -> None:
    with pytest.raises(ZError, match="is not a range of time") as error:
        hlc_range(text, NOW)
    assert says in str(error.value)
    assert len(str(error.value)) < 400


bounds = st.one_of(
    st.just(""),
    st.just("now()"),
    st.sampled_from(["now(-1h)", "now(90)", "now(-2.5m)", "now(1d)", "now(-250ms)", "now(7u)"]),
    st.integers(-(10**12), 10**12).map(
        lambda micros: f"{(NOON + timedelta(microseconds=micros)).replace(tzinfo=None)}Z"
    ),
)


@given(bounds, bounds, st.sampled_from("[]"), st.sampled_from("[]"), st.integers(-(10**12), 10**12))
@example("now()", "now()", "[", "]", 0)
@example("now()", "now()", "]", "]", 0)
def test_a_column_and_a_cache_hold_the_same(
    start: str, end: str, left: str, right: str, micros: int
) -> None:
    text = f"{left}{start}..{end}{right}"
    hlc = at(NOW + micros * 1000)
    assert holds(text, hlc) is time_range(text, NOW).holds(hlc)


@given(st.integers(0, (1 << 62) - 1))
def test_every_time_is_in_the_range_of_what_it_shows_as(hlc: int) -> None:
    shown = NTP64.of(hlc).to_string_rfc3339_lossy()
    assert holds(f"[{shown}..{shown}]", hlc)
    assert not holds(f"]{shown}..]", hlc)
    assert not holds(f"[..{shown}[", hlc)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("_time=[a..b]", "[a..b]", "[a..b]"),
        ("_time=[now(-1h);30m];_max=1", "[now(-1h)", "[now(-1h);30m]"),
        ("x;_time=]now();1s[", "]now()", "]now();1s["),
        ("_time=[broken;_max=1", "[broken", "[broken"),
        ("_time=", "", ""),
    ],
)
def test_the_semicolon_of_a_duration_ends_no_parameter(
    text: str, value: str, expected: str
) -> None:
    assert of_parameters(text, value) == expected
