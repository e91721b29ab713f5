"""The range of time in a selector's `_time`, as the HLC times that lie in it.

Knows the text form and NTP64, exactly: instants are compared by the nanosecond, as Zenoh does.
Reads no clock.
"""

import math
import re
from datetime import UTC, datetime
from typing import NamedTuple

from zenlake.errors import ZError
from zenlake.wire.timestamp import NANOS

FRACTION = (1 << 32) - 1
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1  # of a column that holds NTP64 in a signed number
MAX_SHOWN = 80  # characters of a refused text

_UNITS = {"u": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_UNITS["w"] = 7 * _UNITS["d"]
_DURATION = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)(u|ms|s|m|h|d|w|)")
_NOW = re.compile(r"now\((-?)(.*)\)")
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{0,30}))?Z?", re.ASCII)
_PARAMETER = re.compile(r"(?:^|;)_time=([\[\]][^\[\]]*[\[\]])(?=;|$)")


class HlcRange(NamedTuple):
    """The times from `low` to `high`, both included; nothing if `low` is above `high`."""

    low: int = LOWEST
    high: int = HIGHEST


EVERYTHING = HlcRange()


def of_parameters(text: str, value: str) -> str:
    """The text of `_time` among parameters; `value` is what stands before the next `;`.

    A duration has a `;` of its own, which is also what separates parameters.

    >>> of_parameters("_max=1;_time=[now(-1h);10m]", "[now(-1h)")
    '[now(-1h);10m]'
    """
    found = _PARAMETER.search(text)
    return value if found is None else found[1]


def hlc_range(text: str, now: int) -> HlcRange:
    """What `_time=text` means when it is read at `now`, in nanoseconds since 1970.

    `[start..end]` or `[start;duration]`; a bracket that points away leaves the bound out, and a
    missing bound is open. A bound is an instant of RFC 3339 in UTC, or `now(-1h)`. Units of a
    duration: u (microseconds), ms, s, m, h, d, w; seconds without.

    >>> noon = 1_719_835_200 * NANOS
    >>> found = hlc_range("[now(-1h)..2024-07-01T12:00:00Z[", noon)
    >>> found.low >> 32, found.high >> 32, found.high & FRACTION == FRACTION
    (1719831600, 1719835199, True)
    >>> hlc_range("[..]", noon) == EVERYTHING
    True
    """
    if len(text) < 4 or text[0] not in "[]" or text[-1] not in "[]":
        raise _no_range(text, "it begins and ends with [ or ]")
    inner, with_start, with_end = text[1:-1], text[0] == "[", text[-1] == "]"
    first, dots, last = inner.partition("..")
    if dots:
        start, end = _instant(first, now, text), _instant(last, now, text)
    else:
        first, semicolon, length = inner.partition(";")
        start = _instant(first, now, text)
        if not semicolon or start is None:
            raise _no_range(text, "write start..end or start;duration between the brackets")
        end = start + _nanos(length, text)
    low = LOWEST if start is None else _at_or_after(start if with_start else start + 1)
    high = HIGHEST if end is None else _at_or_before(end if with_end else end - 1)
    return HlcRange(low, high)


def _instant(text: str, now: int, whole: str) -> int | None:
    """In nanoseconds since 1970; None: no bound."""
    if not text:
        return None
    if offset := _NOW.fullmatch(text):
        sign, duration = offset.groups()
        nanos = _nanos(duration, whole) if duration or sign else 0
        return now - nanos if sign else now + nanos
    found = _INSTANT.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        when = datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC)
    except ValueError:
        raise _no_range(
            whole, f"{text[:MAX_SHOWN]!r} is neither 2024-07-01T12:00:00Z nor now(-1h)"
        ) from None
    return int(when.timestamp()) * NANOS + int((found[3] or "0")[:9].ljust(9, "0"))


def _nanos(text: str, whole: str) -> int:
    found = _DURATION.fullmatch(text)
    seconds = math.inf if found is None else float(found[1]) * _UNITS[found[2]]
    if not math.isfinite(seconds):
        raise _no_range(whole, f"{text[:MAX_SHOWN]!r} is no duration such as 90, 1.5h or 20ms")
    return round(seconds * NANOS)


def _at_or_after(nanos: int) -> int:
    """The first NTP64 that shows as `nanos` or later: fractions are shown rounded up."""
    seconds, rest = divmod(nanos, NANOS)
    fraction = ((rest - 1) << 32) // NANOS + 1 if rest else 0
    return min(max(seconds << 32 | fraction, LOWEST), HIGHEST)


def _at_or_before(nanos: int) -> int:
    """The last NTP64 that shows as `nanos` or earlier."""
    seconds, rest = divmod(nanos, NANOS)
    fraction = FRACTION if rest == NANOS - 1 else (rest << 32) // NANOS
    return min(max(seconds << 32 | fraction, LOWEST), HIGHEST)


def _no_range(text: str, problem: str) -> ZError:
    return ZError(f"_time={text[:MAX_SHOWN]!r} is not a range of time: {problem}")
