"""`_time`, judged by eclipse-zenoh: the cache of an advanced publisher leaves out what is outside.

A cache gives everything out when `_time` cannot be read, so a range that does not hold the sample
tells whether its text is one.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zenoh
import zenoh.ext

from zenlake.errors import ZError
from zenlake.quantities import time_range

DEADLINE = 30.0
BOUNDS = [
    *["now()", "now(1h)", "now(-1h)", "now(90)", "now(1.5d)", "now(2w)", "now(5u)", "now(20ms)"],
    *["now(.5s)", "now(1.)", "now(+1)", "now(--1)", "now(1e3s)", "now(1E3)", "now(inf)"],
    *["now(-Infinity)", "now(nan)", "now(infd)", "now(1e999)", "now(1e30)", "now(-1e30)"],
    *["now(1h30m)", "now(5min)", "now(5us)", "now(5ns)", "now(1M)", "now(1y)", "now(-)", "now( 1)"],
    *["now(1_0)", "now", "NOW()", "5m", "2020-01-01T00:00:00Z", "2020-01-01 00:00:00"],
    *["2020-01-01T00:00:00", "2020-01-01T00:00:00.5Z", "2020-01-01T00:00:00.12345678999Z"],
    *[
        "2020-01-01T00:00:00.Z",
        "2020-01-01T00:00:60Z",
        "2020-01-01T00:00:61Z",
        "2020-02-30T00:00:00Z",
    ],
    *["2020-01-01T00:00:00+00:00", "2020-01-01T00:00:00+01:00", "2020-01-01T00:00Z", "2020-01-01"],
    *[
        "1969-12-31T23:59:59Z",
        "2020-01-01t00:00:00z",
        "2020-13-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
    ],
]
RANGES = [
    *["[..]", "]..[", "[..", "..]", "(..)", "[.]", "[]", "[now()]", "[...]"],
    *["[now(-1h)..now(1h)]", "]now(-1h)..now(1h)[", "[now(1h)..]", "[..now(-1h)]"],
    *[
        "[now(1e30)..]",
        "[..now(-1e30)]",
        "[..now(-9999999w)]",
        "[now(-9999999w)..]",
        "[now(inf)..]",
    ],
]


@pytest.fixture(scope="module")
def held() -> Iterator[Any]:
    """Return a function that asks a cache of eclipse-zenoh whether a range holds its sample."""
    config = zenoh.Config()
    settings: dict[str, Any] = {
        "mode": "peer",
        "listen/endpoints": [],
        "scouting/multicast/enabled": False,
        "timestamping/enabled": {"peer": True},
    }
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    with zenoh.open(config) as session:
        publisher: Any = zenoh.ext.declare_advanced_publisher(
            session, "cached", cache=zenoh.ext.CacheConfig(1)
        )
        publisher.put("x")

        def ask(text: str) -> bool:
            found = session.get(f"cached/@adv/**?_anyke;_time={text}", timeout=DEADLINE)
            return bool(list(found))

        end = time.monotonic() + DEADLINE
        while not ask("[..]"):
            assert time.monotonic() < end
        yield ask
        publisher.undeclare()


def ours(text: str) -> bool:
    now = time.time_ns()
    try:
        return time_range(text, now).holds(now // 1_000_000_000 << 32)
    except ZError:
        return True


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_bound_is_one_where_zenoh_says_so(held: Any, bound: str) -> None:
    """The other bound leaves the sample out, unless this text makes the range unreadable."""
    for text in (f"[{bound}..now(-1d)]", f"[now(1d)..{bound}]"):
        assert ours(text) is held(text), text


@pytest.mark.parametrize("text", RANGES)
def test_a_range_holds_what_it_holds_for_zenoh(held: Any, text: str) -> None:
    assert ours(text) is held(text)
