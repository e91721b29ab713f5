"""The range of time that `_time` of a selector means."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zenlake.api.values.selector import Selector, TimeRange, accepts_any_key, time_range
from zenlake.errors import ZError

NOW = datetime(2024, 7, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[..]", (None, None, True, True)),
        ("]..[", (None, None, False, False)),
        ("[now(-1h)..]", (NOW - HOUR, None, True, True)),
        ("[now(-1h)..now(1h)]", (NOW - HOUR, NOW + HOUR, True, True)),
        ("]now(-1h)..now(1h)[", (NOW - HOUR, NOW + HOUR, False, False)),
        ("[now();1h]", (NOW, NOW + HOUR, True, True)),
        ("[now(-1h);1h[", (NOW - HOUR, NOW, True, False)),
        ("[1970-01-01T00:00:00Z..]", (EPOCH, None, True, True)),
        ("[..1970-01-01 00:00:00]", (None, EPOCH, True, True)),
        ("[1970-01-01T00:00:00.5Z;0.5]", (EPOCH + HOUR / 7200, EPOCH + HOUR / 3600, True, True)),
        ("[1970-01-01T00:00:00.123456789Z..]", (EPOCH + timedelta(microseconds=123456), None)),
        ("[now(1e300)..]", (None, None)),
        ("[now(-1e300w);1]", (None, None)),
        ("[..now(-9999999w)]", (None, None)),
    ],
)
def test_text(text: str, expected: tuple[datetime | bool | None, ...]) -> None:
    assert tuple(time_range(text, NOW))[: len(expected)] == expected


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        *[("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400), ("1w", 604800)],
        *[("20ms", 0.02), ("5u", 0.000005), ("1e3s", 1000), (".5s", 0.5), ("+1s", 1)],
    ],
)
def test_durations(duration: str, seconds: float) -> None:
    assert time_range(f"[now({duration})..]", NOW).start == NOW + timedelta(seconds=seconds)
    assert time_range(f"[now(-{duration})..]", NOW).start == NOW - timedelta(seconds=seconds)
    assert time_range(f"[now();{duration}]", NOW).end == NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        *["", "[]", "[.]", "..", "(..)", "[..)", "[now()]", "[;1h]", "[now();]", "[now();x]"],
        *["[now(..]", "[now(-)..]", "[now(1y)..]", "[tomorrow..]", "[2024-13-01T00:00:00Z..]"],
        *["[2024-07-01..]", "[s;1]", "[now(s)..]", "[now();ms]"],
    ],
)
def test_no_range(text: str) -> None:
    with pytest.raises(ZError, match="is not a range of time"):
        time_range(text, NOW)


@given(st.text(alphabet="[].;now()-1hms2024:TZ ", max_size=30))
def test_any_text_is_a_range_or_a_zerror(text: str) -> None:
    try:
        found = time_range(text, NOW)
    except ZError:
        return
    assert isinstance(found, TimeRange)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("[now()..now(1h)]", "110"),
        ("]now()..now(1h)]", "010"),
        ("[..now()[", "000"),
        ("[..]", "111"),
    ],
)
def test_holds(text: str, held: str) -> None:
    times = [NOW, NOW + HOUR, NOW + 2 * HOUR]
    found = time_range(text, NOW)
    assert "".join(str(int(found.holds(time))) for time in times) == held


def test_range_of_a_selector() -> None:
    parameters = Selector("a?x=1;_time=[now(-1h)..];_anyke").parameters
    assert time_range(parameters["_time"] or "", NOW).start == NOW - HOUR
    assert accepts_any_key(parameters)
    assert accepts_any_key("_anyke=false")
    assert not accepts_any_key("x=_anyke;_anykey")
