"""Sizes, durations, instants and `_time`: one spelling means one value wherever it is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from zenlake import quantities
from zenlake.api.values.selector import Selector, accepts_any_key
from zenlake.cli import quantities as cli
from zenlake.cli.commands.record import _parse_retention
from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.quantities import NANOS, BadQuantity, TimeRange, time_range
from zenlake.spark.options import Options, Purpose

NOW = 1_719_835_200 * NANOS
HOUR = 3600 * NANOS


def lake(section: str, name: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        project = Project.parse(f'[lake]\nname = "x"\n[{section}]\n{name} = "{text}"\n', Path("x"))
        return getattr(project.upkeep, name)

    return read


def spark(name: str) -> Callable[[str], Any]:
    return lambda text: Options.parse({name: text}, Purpose.LOG_STREAM)[name]


def selector(text: str) -> float:
    start = time_range(f"[now({text})..]", NOW).start
    assert start is not None
    return (start - NOW) / NANOS


REFUSED = (ZError, BadQuantity, typer.BadParameter)
DURATIONS: dict[str, Callable[[str], float]] = {
    "command line": lambda text: cli.parse(quantities.seconds, text, "--every"),
    "lake.toml": lake("upkeep", "every"),
    "spark": spark("sync"),
}
SIZES: dict[str, Callable[[str], int]] = {
    "command line": lambda text: cli.parse(quantities.size, text, "--rotate"),
    "lake.toml": lake("upkeep", "target"),
    "spark": spark("rotate"),
}


@pytest.mark.parametrize("where", DURATIONS)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("5m", 300.0), ("5min", 300.0), ("1m", 60.0), ("1h30m", 5400.0), ("90s", 90.0)],
        *[("250ms", 0.25), ("50us", 5e-5), ("500ns", 5e-7), ("1.5h", 5400.0), ("7d", 604_800.0)],
        *[("2w", 1_209_600.0), ("5 min", 300.0), ("1h 30m", 5400.0), (" 1s ", 1.0)],
    ],
)
def test_a_duration_is_the_same_everywhere(where: str, text: str, value: float) -> None:
    assert DURATIONS[where](text) == value


@pytest.mark.parametrize("text", ["5m", "90s", "250ms", "1.5h", "7d", "2w"])
def test_a_duration_of_zenoh_is_the_same_in_a_selector(text: str) -> None:
    assert selector(text) == quantities.seconds(text)


@pytest.mark.parametrize("text", ["5min", "1h30m", "50us", "500ns", "5 m", "5M"])
def test_a_selector_takes_only_what_zenoh_takes(text: str) -> None:
    with pytest.raises(ZError, match="is not a range of time"):
        selector(text)


@pytest.mark.parametrize("where", DURATIONS)
@pytest.mark.parametrize(
    "text", ["", "5x", "5M", "5MiB", "-5m", "1h30", "m", "1e3s", "999999w", "5H", "\u0665m", "5,5s"]
)
def test_what_is_not_a_duration_is_refused_everywhere(where: str, text: str) -> None:
    with pytest.raises(REFUSED):
        DURATIONS[where](text)


def test_a_bare_number_is_seconds_only_where_the_docs_say_so() -> None:
    assert DURATIONS["spark"]("10") == selector("10") == 10.0
    for where in ("command line", "lake.toml"):
        with pytest.raises(REFUSED, match="'10' is ambiguous as a duration: write 10s, 10ms or"):
            DURATIONS[where]("10")


@pytest.mark.parametrize("where", SIZES)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("5MiB", 5 << 20), ("5MB", 5_000_000), ("500KiB", 500 << 10), ("500KB", 500_000)],
        *[("5GB", 5 * 10**9), ("1.5GiB", 3 << 29), ("100000", 100_000), ("100000B", 100_000)],
        *[("256mib", 256 << 20), ("256 MiB", 256 << 20), ("1TiB", 1 << 40)],
    ],
)
def test_a_size_is_the_same_everywhere(where: str, text: str, value: int) -> None:
    assert SIZES[where](text) == value


@pytest.mark.parametrize("where", SIZES)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "128m",
            "'128m' is ambiguous as a size: write 128MiB (134217728 bytes) "
            "or 128MB (128000000 bytes)",
        ),
        ("64k", "'64k' is ambiguous as a size: write 64KiB (65536 bytes) or 64KB (64000 bytes)"),
        ("5M", "'5M' is ambiguous as a size: write 5MiB (5242880 bytes) or 5MB (5000000 bytes)"),
        ("1g", "or 1GB (1000000000 bytes)"),
        ("1.5 T", "write 1.5TiB (1649267441664 bytes) or 1.5TB (1500000000000 bytes)"),
    ],
)
def test_an_ambiguous_size_is_refused_with_both_spellings(where: str, text: str, said: str) -> None:
    with pytest.raises(REFUSED) as refused:
        SIZES[where](text)
    assert said in str(refused.value)


@pytest.mark.parametrize("where", SIZES)
@pytest.mark.parametrize(
    "text", ["", "5d", "1h", "MiB", "-1MiB", "5 zetta", "0", "9999999TiB", "1.MB"]
)
def test_what_is_not_a_size_is_refused_everywhere(where: str, text: str) -> None:
    with pytest.raises(REFUSED):
        SIZES[where](text)


def retained(text: str) -> tuple[Any, Any]:
    found = _parse_retention([text])
    return found["retain_seconds"], found["retain_bytes"]


@pytest.mark.parametrize("read", [retained, spark("retain")], ids=["command line", "spark"])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5m", (300.0, None)),
        ("5MiB", (None, 5 << 20)),
        ("7d", (604_800.0, None)),
        ("100GiB, 1h30m", (5400.0, 100 << 30)),
    ],
)
def test_five_minutes_are_retained_as_such_everywhere(
    read: Callable[[str], Any], text: str, value: tuple[Any, Any]
) -> None:
    assert tuple(read(text)) == value


@pytest.mark.parametrize("read", [retained, spark("retain")], ids=["command line", "spark"])
@pytest.mark.parametrize("text", ["5M", "100g", "forever", "0s", "7d, 8d", "1GB, 1MB", ""])
def test_what_cannot_be_retained_is_refused_everywhere(
    read: Callable[[str], Any], text: str
) -> None:
    with pytest.raises(REFUSED):
        read(text)


@pytest.mark.parametrize("read", [retained, spark("retain")], ids=["command line", "spark"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("7", "'7' is ambiguous as an age or a size: write 7d (days), 7h (hours) or 7B (bytes)"),
        ("7d, 50", "'50' is ambiguous as an age or a size"),
        ("5x", "'5x' is not an age such as 7d"),
        ("1h2y", "'1h2y' is not an age such as 7d"),
        ("5km", "'5km' is not an age such as 7d"),
    ],
)
def test_what_cannot_be_retained_is_refused_with_what_to_write(
    read: Callable[[str], Any], text: str, said: str
) -> None:
    with pytest.raises(REFUSED) as refused:
        read(text)
    assert said in str(refused.value)


# ---- instants


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("2024-07-01T12:00:00Z", NOW),
        ("2024-07-01T14:00:00+02:00", NOW),
        ("2024-07-01 12:00", NOW),
        ("2024-07-01T12:00:00.000001Z", NOW + 1000),
        ("2024-07-01", NOW - 12 * HOUR),
        ("2016-12-31T23:59:60Z", 1_483_228_799 * NANOS),
    ],
)
def test_an_instant_is_the_same_everywhere(text: str, nanos: int) -> None:
    assert cli.moment(text, "--from") == nanos
    assert spark("startingTimestamp")(text) == nanos // 1000


@pytest.mark.parametrize(
    "text", ["yesterday", "2024-13-01", "2024-07-01T25:00", "20240701", "12:00"]
)
def test_what_is_not_an_instant_is_refused_everywhere(text: str) -> None:
    if not text.isdigit():  # milliseconds in Spark
        with pytest.raises(REFUSED):
            spark("startingTimestamp")(text)
    with pytest.raises(REFUSED, match="is not a time, such as 2026-11-15T10:00:00Z, -1h or now"):
        cli.moment(text, "--from")


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_is_refused(text: str) -> None:
    for read in (quantities.size, quantities.seconds, quantities.limit, quantities.instant):
        try:
            read(text)
        except BadQuantity as error:
            assert str(error)


# ---- `_time`


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[..]", (None, None)),
        ("]..[", (None, None)),
        ("[now(-1h)..]", (NOW - HOUR, None)),
        ("[now(-1h)..now(1h)]", (NOW - HOUR, NOW + HOUR)),
        ("]now(-1h)..now(1h)[", (NOW - HOUR + 1, NOW + HOUR - 1)),
        ("[now();1h]", (NOW, NOW + HOUR)),
        ("[now(-1h);1h[", (NOW - HOUR, NOW - 1)),
        ("[1970-01-01T00:00:00Z..]", (0, None)),
        ("[..1970-01-01 00:00:00]", (None, 0)),
        ("[..1970-01-01T00:00:00+00:00]", (None, 0)),
        ("[1970-01-01T00:00:00.5Z;0.5]", (NANOS // 2, NANOS)),
        ("[1970-01-01T00:00:00.1234567899Z..]", (123_456_789, None)),
        ("[1970-01-01T00:00:60Z..]", (59 * NANOS, None)),
        ("[now(1e300)..]", (None, None)),
        ("[now(inf)..now(nan)]", (None, None)),
        ("[now(-1e300w);1]", (None, None)),
        ("[..now(-9999999w)]", (None, NOW - 9_999_999 * 604_800 * NANOS)),
    ],
)
def test_a_time_range_is_read_as_its_bounds(
    text: str, expected: tuple[int | None, int | None]
) -> None:
    assert time_range(text, NOW) == expected


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        *[("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400), ("1w", 604800)],
        *[("20ms", 0.02), ("5u", 0.000005), ("1e3s", 1000), (".5s", 0.5), ("+1s", 1)],
    ],
)
def test_durations_of_zenoh(duration: str, seconds: float) -> None:
    nanos = round(seconds * NANOS)
    assert time_range(f"[now({duration})..]", NOW).start == NOW + nanos
    assert time_range(f"[now(-{duration})..]", NOW).start == NOW - nanos
    assert time_range(f"[now();{duration}]", NOW).end == NOW + nanos


@pytest.mark.parametrize(
    "text",
    [
        *["", "[]", "[.]", "..", "(..)", "[..)", "[now()]", "[;1h]", "[now();]", "[now();x]"],
        *["[now(..]", "[now(-)..]", "[now(1y)..]", "[tomorrow..]", "[2024-13-01T00:00:00Z..]"],
        *["[2024-07-01..]", "[s;1]", "[now(s)..]", "[now();ms]", "[now(1M)..]"],
    ],
)
def test_what_is_not_a_range(text: str) -> None:
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
def test_a_range_holds_the_times_within_its_bounds(text: str, held: str) -> None:
    found = time_range(text, NOW)
    times = [(NOW + hours * HOUR) // NANOS << 32 for hours in range(3)]
    assert "".join(str(int(found.holds(time))) for time in times) == held


def test_range_of_a_selector() -> None:
    parameters = Selector("a?x=1;_time=[now(-1h)..];_anyke").parameters
    assert time_range(parameters["_time"] or "", NOW).start == NOW - HOUR
    assert accepts_any_key(parameters)
    assert accepts_any_key("_anyke=false")
    assert not accepts_any_key("x=_anyke;_anykey")
