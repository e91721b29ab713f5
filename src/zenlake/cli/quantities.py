"""Sizes, durations, ages and moments as people write them, and as they are shown.

Knows the texts. Does not know what they are for: whoever asks names the option.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import typer

from zenlake.wire.timestamp import NANOS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_BYTES = 1 << 60
MAX_SECONDS = 100 * 365 * 86_400.0
MAX_OFFSET = (1 << 63) - 1

SIZES: dict[str, int] = {"": 1, "B": 1} | {
    prefix + unit: int(base**power)
    for unit, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate("KMGT", 1)
}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SIZE_NAMES = {name.lower(): factor for name, factor in SIZES.items()}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
_TERMS = re.compile(r"(?:\d+(?:\.\d+)?[a-z]+)+", re.ASCII)
_TERM = re.compile(r"(\d+(?:\.\d+)?)([a-z]+)", re.ASCII)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?(Z|[+-]\d\d:\d\d)?",
    re.ASCII,
)


class Position(NamedTuple):
    """A place in a log: an offset, or a time in nanoseconds since 1970. One of them is None."""

    offset: int | None
    time: int | None


class Limit(NamedTuple):
    """How much is kept: bytes, or seconds. One of them is None."""

    bytes: int | None
    seconds: float | None


# ---- read


def size(text: str, option: str) -> int:
    """Bytes.

    >>> size("256MiB", "--rotate"), size("1.5 GB", "--rotate"), size("4096", "--rotate")
    (268435456, 1500000000, 4096)
    """
    found = _AMOUNT.fullmatch(text.strip())
    factor = _SIZE_NAMES.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise _wrong(option, text, "a size", "256MiB, 50GB or 4096")
    value = round(float(found[1]) * factor)
    if not 0 < value <= MAX_BYTES:
        raise typer.BadParameter(f"{option} {text}: a size is 1 byte to 1 EiB")
    return value


def seconds(text: str, option: str) -> float:
    """A duration.

    >>> seconds("5ms", "--sync"), seconds("7d", "--retain"), seconds("1h30m", "--duration")
    (0.005, 604800.0, 5400.0)
    """
    value = _seconds(text.strip())
    if value is None:
        raise _wrong(option, text, "a duration", "5ms, 30s, 1h30m or 7d")
    if value > MAX_SECONDS:
        raise typer.BadParameter(f"{option} {text}: a duration is at most 100 years")
    return value


def _seconds(text: str) -> float | None:
    if not _TERMS.fullmatch(text):
        return None
    terms = _TERM.findall(text)
    if any(unit not in SECONDS for _, unit in terms):
        return None
    return sum(float(number) * SECONDS[unit] for number, unit in terms)


def limit(text: str, option: str) -> Limit:
    """An age or a size.

    >>> limit("7d", "--retain"), limit("50GiB", "--retain")
    (Limit(bytes=None, seconds=604800.0), Limit(bytes=53687091200, seconds=None))
    """
    if _seconds(text.strip()) is not None:
        value = seconds(text, option)
        if value == 0.0:
            raise typer.BadParameter(f"{option} {text}: nothing would be kept")
        return Limit(None, value)
    if not _AMOUNT.fullmatch(text.strip()):
        raise _wrong(option, text, "an age or a size", "7d or 50GiB")
    return Limit(size(text, option), None)


def moment(text: str, option: str, now: int | None = None) -> int:
    """Nanoseconds since 1970: a date and time (UTC if it names no zone), `now`, or before now.

    >>> moment("2026-11-15T10:00:00.25Z", "--from"), moment("2026-11-15", "--from")
    (1794736800250000000, 1794700800000000000)
    >>> moment("-1h", "--from", now=3_600_000_000_001), moment("now", "--to", now=7)
    (1, 7)
    """
    text = text.strip()
    now = time.time_ns() if now is None else now
    if text == "now":
        return now
    if text.startswith("-"):
        return now - round(seconds(text[1:], option) * NANOS)
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        day, minute, second, fraction, zone = found.groups(default="")
        offset = zone.replace("Z", "") or "+00:00"
        when = datetime.fromisoformat(f"{day}T{minute or '00:00'}:{second or '00'}{offset}")
    except ValueError:
        raise _wrong(option, text, "a time", "2026-11-15T10:00:00Z, -1h or now") from None
    return (when - EPOCH) // timedelta(seconds=1) * NANOS + int(fraction.ljust(9, "0"))


def position(text: str, option: str, now: int | None = None) -> Position:
    """An offset if it is a number alone, else a moment.

    >>> position("1500", "--from"), position("now", "--to", now=7)
    (Position(offset=1500, time=None), Position(offset=None, time=7))
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        if int(text[:20]) > MAX_OFFSET:
            raise typer.BadParameter(f"{option} {text[:24]}: an offset is at most {MAX_OFFSET}")
        return Position(int(text), None)
    return Position(None, moment(text, option, now))


def _wrong(option: str, text: str, what: str, example: str) -> typer.BadParameter:
    return typer.BadParameter(f"{option} {text}: this is not {what}, such as {example}")


# ---- shown


def counted(count: int, noun: str) -> str:
    """So many of them.

    >>> counted(1, "gap"), counted(1200, "sample"), counted(0, "loss")
    ('1 gap', '1,200 samples', '0 losses')
    """
    plural = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def size_shown(count: float) -> str:
    """Three digits and a unit.

    >>> size_shown(999), size_shown(268435456), size_shown(1.5 * 2**40)
    ('999 B', '256 MiB', '1.5 TiB')
    """
    unit = "B"
    for name in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(count) < 1000:
            break
        count, unit = count / 1024, name
    return f"{count:.3g} {unit}"


def time_shown(nanos: int) -> str:
    """UTC, to the microsecond.

    >>> time_shown(1794736800250000000)
    '2026-11-15T10:00:00.250000Z'
    """
    when = EPOCH + timedelta(microseconds=nanos // 1000)
    return f"{when:%Y-%m-%dT%H:%M:%S.%f}Z"


def duration_shown(value: float) -> str:
    """Two units at most.

    >>> duration_shown(0.25), duration_shown(75), duration_shown(90061)
    ('0.25 s', '1 m 15 s', '1 d 1 h')
    """
    if value < 60:
        return f"{value:.3g} s"
    whole, parts = round(value), []
    for unit in ("d", "h", "m", "s"):
        amount, whole = divmod(whole, round(SECONDS[unit]))
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])
