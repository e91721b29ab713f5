"""Sizes, durations, instants and ranges of time: one grammar for every place that reads them.

Knows the texts and NTP64. Reads no clock: the time is an argument. Does not know what a value is
used for: the caller names the option.
"""

import math
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import NamedTuple

from zenlake.errors import ZError

NANOS = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_BYTES = 1 << 60
MAX_SECONDS = 100 * 365 * 86_400.0
MAX_SHOWN = 80  # Characters of a refused text that an error repeats.

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
_PREFIXES = "KMGT"
_SIZES: dict[str, int] = {"": 1, "b": 1} | {
    (prefix + unit).lower(): int(base**power)
    for unit, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(_PREFIXES, 1)
}
_SECONDS = {
    "ns": Fraction(1, NANOS),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86_400),
    "w": Fraction(604_800),
}
_NUMBER = r"\d{1,18}(?:\.\d{1,18})?"
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)", re.ASCII)
_TERM = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*", re.ASCII)
_TERMS = re.compile(rf"(?:{_NUMBER}\s*[a-z]+\s*)+", re.ASCII)
_BARE = re.compile(_NUMBER, re.ASCII)
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?(Z|[+-]\d\d:\d\d)?",
    re.ASCII,
)
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):(\d\d)(?:\.(\d*))?(Z|[+-]\d\d:\d\d)", re.ASCII
)


class BadQuantity(ValueError):
    """A text that is not the quantity that was asked for; the message says what to write."""


class Ambiguous(BadQuantity):
    """A text with two meanings; the message shows the spelling of each."""


class Limit(NamedTuple):
    """How much is kept: an age in seconds, a size in bytes, or both; None: no limit."""

    seconds: float | None = None
    bytes: int | None = None


# ---- sizes and durations


def size(text: str) -> int:
    """Return a size in bytes; BadQuantity if `text` is not one.

    >>> size("256MiB"), size("1.5 GB"), size("4096")
    (268435456, 1500000000, 4096)
    >>> size("128m")
    Traceback (most recent call last):
    zenlake.quantities.Ambiguous: '128m' is ambiguous as a size: write 128MiB (134217728 bytes) \
or 128MB (128000000 bytes)
    """
    found = _SIZE.fullmatch(text.strip())
    unit = found[2] if found else ""
    if found and len(unit) == 1 and (prefix := unit.upper()) in _PREFIXES:
        spellings = (f"{found[1]}{prefix}{ending}" for ending in ("iB", "B"))
        shown = " or ".join(f"{spelling} ({_bytes(spelling)} bytes)" for spelling in spellings)
        raise Ambiguous(f"{_shown(text.strip())} is ambiguous as a size: write {shown}")
    if found is None or unit.lower() not in _SIZES:
        raise not_a(text, "a size, such as 256MiB, 50GB or 4096")
    value = _bytes(text)
    if not 0 < value <= MAX_BYTES:
        raise BadQuantity(f"{_shown(text)} is out of range: a size is 1 byte to 1 EiB")
    return value


def _is_size(text: str) -> bool:
    """Return whether `text` has the form of a size, an ambiguous one included."""
    found = _SIZE.fullmatch(text)
    return found is not None and (found[2].lower() in _SIZES or found[2].upper() in (*_PREFIXES,))


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    assert found is not None
    return round(Fraction(found[1]) * _SIZES[found[2].lower()])


def seconds(text: str, *, bare: bool = False) -> float:
    """Return a duration in seconds; BadQuantity if `text` is not one.

    A number without a unit is refused, unless `bare` says that seconds are meant.

    >>> seconds("5ms"), seconds("7d"), seconds("1h30m"), seconds("5min"), seconds("2", bare=True)
    (0.005, 604800.0, 5400.0, 300.0, 2.0)
    """
    return float(_duration(text, bare))


def _duration(text: str, bare: bool = False) -> Fraction:
    value = text.strip()
    if _BARE.fullmatch(value):
        if not bare:
            raise Ambiguous(
                f"{_shown(text)} is ambiguous as a duration: write {value}s, {value}ms or {value}m"
            )
        value += "s"
    if not _is_duration(value):
        raise not_a(text, "a duration, such as 5ms, 30s, 1h30m or 7d")
    total = sum(
        (Fraction(term[1]) * _SECONDS[term[2]] for term in _TERM.finditer(value)), Fraction()
    )
    if total > MAX_SECONDS:
        raise BadQuantity(f"{_shown(text)} is too long: a duration is at most 100 years")
    return total


def _is_duration(text: str) -> bool:
    found = _TERMS.fullmatch(text)
    return found is not None and all(unit in _SECONDS for _, unit in _TERM.findall(text))


def limit(text: str) -> Limit:
    """Return an age or a size, or both with a comma between them; `5m` is five minutes.

    A number without a unit is refused: `7` could mean days, and would keep seven bytes.

    >>> limit("7d"), limit("1h, 50GiB")
    (Limit(seconds=604800.0, bytes=None), Limit(seconds=3600.0, bytes=53687091200))
    """
    ages: list[float] = []
    sizes: list[int] = []
    for part in map(str.strip, text.split(",")):
        if _BARE.fullmatch(part):
            raise Ambiguous(
                f"{_shown(part)} is ambiguous as an age or a size: "
                f"write {part}d (days), {part}h (hours) or {part}B (bytes)"
            )
        if _is_duration(part):
            ages.append(seconds(part))
        elif _is_size(part):
            sizes.append(size(part))
        else:
            raise not_a(part, "an age such as 7d, or a size such as 50GiB")
    if len(ages) > 1 or len(sizes) > 1:
        raise BadQuantity(f"{_shown(text)}: give one age and one size at most")
    if 0.0 in ages:
        raise BadQuantity(f"{_shown(text)} is too short: nothing would be kept")
    return Limit(ages[0] if ages else None, sizes[0] if sizes else None)


# ---- instants


def instant(text: str, now: int | None = None) -> int:
    """Return nanoseconds since 1970: a date and time (UTC if it names no zone).

    With `now`, in nanoseconds, `now` and a duration before now are instants as well.

    >>> instant("2026-11-15T10:00:00.25Z"), instant("2026-11-15")
    (1794736800250000000, 1794700800000000000)
    >>> instant("-1h", now=3_600_000_000_001), instant("now", now=7)
    (1, 7)
    """
    value = text.strip()
    if now is not None and value == "now":
        return now
    if now is not None and value.startswith("-"):
        return now - round(_duration(value[1:]) * NANOS)
    nanos = _nanos(_INSTANT.fullmatch(value))
    if nanos is None:
        examples = "2026-11-15T10:00:00Z" + ("" if now is None else ", -1h or now")
        raise not_a(text, f"a time, such as {examples}")
    return nanos


def from_rfc3339(text: str) -> int:
    """Return nanoseconds since 1970 of an RFC 3339 time; a leap second is the second before it.

    >>> from_rfc3339("2024-07-01T14:00:00.5+02:00"), from_rfc3339("2016-12-31T23:59:60Z")
    (1719835200500000000, 1483228799000000000)
    """
    nanos = _nanos(_RFC3339.fullmatch(text))
    if nanos is None:
        raise not_a(text, "an RFC 3339 time, such as 2024-07-01T12:00:00.5Z")
    return nanos


def to_rfc3339(nanos: int) -> str:
    """Return the RFC 3339 text, in UTC and with nanoseconds.

    >>> to_rfc3339(1719835200500000000)
    '2024-07-01T12:00:00.500000000Z'
    """
    whole, rest = divmod(nanos, NANOS)
    return f"{EPOCH + timedelta(seconds=whole):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _nanos(found: re.Match[str] | None) -> int | None:
    """Return nanoseconds since 1970; None if there is no match or no such date."""
    if found is None:
        return None
    day, minute, second, fraction, zone = found.groups(default="")
    second = "59" if second == "60" else second or "00"  # As humantime and chrono do.
    offset = zone.replace("Z", "") or "+00:00"
    try:
        when = datetime.fromisoformat(f"{day}T{minute or '00:00'}:{second}{offset}")
    except ValueError:
        return None
    return (when - EPOCH) // timedelta(seconds=1) * NANOS + int(fraction[:9].ljust(9, "0"))


# ---- NTP64: 32 bits of seconds since 1970, 32 bits of binary fraction


def ntp64_from_nanos(nanos: int) -> int:
    """Return NTP64, rounded down; `nanos_from_ntp64` gives the same nanosecond back.

    As `impl From<Duration> for NTP64` of uhlc/src/ntp64.rs.
    """
    whole, rest = divmod(nanos, NANOS)
    time = (whole << 32) + (rest << 32) // NANOS
    if not 0 <= time <= _U64:
        raise ValueError(f"{nanos} ns is outside what NTP64 holds (1970 to 2106)")
    return time


def nanos_from_ntp64(time: int) -> int:
    """Return nanoseconds since 1970, rounded up within the second, as Zenoh shows them."""
    return (time >> 32) * NANOS + subsec_nanos(time)


def subsec_nanos(time: int) -> int:
    """Return the nanoseconds within the second, rounded up; `NTP64::subsec_nanos` of uhlc."""
    return min(-(-((time & _U32) * NANOS) >> 32), NANOS - 1)


def first_ntp64(nanos: int) -> int:
    """Return the first NTP64 that shows as `nanos` or later; it may be outside of 64 bits."""
    whole, rest = divmod(nanos, NANOS)
    return whole << 32 | (((rest - 1) << 32) // NANOS + 1 if rest else 0)


def last_ntp64(nanos: int) -> int:
    """Return the last NTP64 that shows as `nanos` or earlier; it may be outside of 64 bits."""
    whole, rest = divmod(nanos, NANOS)
    return whole << 32 | (_U32 if rest == NANOS - 1 else (rest << 32) // NANOS)


# ---- `_time` of a selector: Zenoh's grammar, commons/zenoh-util/src/time_range.rs

_ZENOH_UNITS = {"u": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_ZENOH_UNITS["w"] = 7 * _ZENOH_UNITS["d"]
_ZENOH_DURATION = re.compile(
    r"([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan))((?-i:u|ms|s|m|h|d|w|))",
    re.ASCII | re.IGNORECASE,
)
_ZENOH_NOW = re.compile(r"now\((-?)(.*)\)")
_ZENOH_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d):(\d\d)(?:\.(\d*))?(Z|\+00:00)?", re.ASCII
)
_MAX_INSTANT = 1 << 63  # Seconds from 1970 that Rust's SystemTime holds on Linux.


class TimeRange(NamedTuple):
    """Nanoseconds since 1970 from `start` to `end`, both included; None: no bound."""

    start: int | None
    end: int | None

    def holds(self, time: int) -> bool:
        """Return whether an NTP64 time, as Zenoh shows it, is in the range."""
        nanos = nanos_from_ntp64(time)
        return (self.start is None or self.start <= nanos) and (
            self.end is None or nanos <= self.end
        )


class _Bound(NamedTuple):
    """`base` nanoseconds and `offset` seconds; Rust adds offsets as f64 before they are used."""

    base: int
    offset: float

    def nanos(self) -> int | None:
        """Return the sum; None is a time that Rust's SystemTime cannot hold: no bound."""
        if not math.isfinite(self.offset):
            return None
        nanos = self.base + round(Fraction(self.offset) * NANOS)
        return nanos if -_MAX_INSTANT <= nanos // NANOS < _MAX_INSTANT else None


def time_range(text: str, now: int) -> TimeRange:
    """Return the range that `_time=text` means when it is read at `now`, in nanoseconds.

    `[start..end]` or `[start;duration]`; a bracket that points away leaves the bound out, and a
    missing bound is open. A bound is an instant of RFC 3339 in UTC, or `now(-1h)`. Units of a
    duration: u (microseconds), ms, s, m, h, d, w; seconds without. ZError: `text` is not a range.

    >>> noon = 1_719_835_200 * NANOS
    >>> found = time_range("[now(-1h)..2024-07-01T12:00:00Z[", noon)
    >>> (found.start - noon) // NANOS, noon - found.end
    (-3600, 1)
    """
    if len(text) < 4 or text[0] not in "[]" or text[-1] not in "[]":
        raise _not_a_range(text, "it begins and ends with [ or ]")
    first, dots, last = text[1:-1].partition("..")
    if dots:
        start, end = _bound(first, now, text), _bound(last, now, text)
    else:
        first, semicolon, length = text[1:-1].partition(";")
        start = _bound(first, now, text)
        if not semicolon or start is None:
            raise _not_a_range(text, "write start..end or start;duration between the brackets")
        end = start._replace(offset=start.offset + _zenoh_seconds(length, text))
    low, high = start and start.nanos(), end and end.nanos()
    return TimeRange(
        low if low is None or text[0] == "[" else low + 1,
        high if high is None or text[-1] == "]" else high - 1,
    )


def _bound(text: str, now: int, whole: str) -> _Bound | None:
    if not text:
        return None
    if found := _ZENOH_NOW.fullmatch(text):
        sign, duration = found.groups()
        offset = _zenoh_seconds(duration, whole) if duration or sign else 0.0
        return _Bound(now, -offset if sign else offset)
    nanos = _nanos(_ZENOH_INSTANT.fullmatch(text))
    if nanos is None or nanos < 0:  # Before 1970 humantime's parse_rfc3339_weak refuses.
        raise _not_a_range(whole, f"{_shown(text)} is neither 2024-07-01T12:00:00Z nor now(-1h)")
    return _Bound(nanos, 0.0)


def _zenoh_seconds(text: str, whole: str) -> float:
    found = _ZENOH_DURATION.fullmatch(text)
    if found is None:
        raise _not_a_range(whole, f"{_shown(text)} is not a duration such as 90, 1.5h or 20ms")
    return float(found[1]) * _ZENOH_UNITS[found[2]]


# ---- nouns


def counted(count: int, noun: str) -> str:
    """Return a number and its noun, in the plural where that is right.

    >>> counted(1, "gap"), counted(1200, "sample"), counted(0, "loss"), counted(2, "query")
    ('1 gap', '1,200 samples', '0 losses', '2 queries')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a regular noun.

    >>> plural("batch"), plural("reply"), plural("key")
    ('batches', 'replies', 'keys')
    """
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "ch")) else "s")


# ---- errors


def not_a(text: str, wanted: str) -> BadQuantity:
    """Return the error for a text that is not what is `wanted`."""
    return BadQuantity(f"{_shown(text)} is not {wanted}")


def _not_a_range(text: str, problem: str) -> ZError:
    return ZError(f"_time={_shown(text)} is not a range of time: {problem}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")
