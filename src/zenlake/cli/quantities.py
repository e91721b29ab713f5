"""Sizes, durations and times of options: how they are read, and how they are printed.

Knows the name of an option in its error. The grammar is in zenlake.quantities.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, TypeVar

import typer

from zenlake import quantities
from zenlake.cli.failure import wrong_usage
from zenlake.quantities import EPOCH

T = TypeVar("T")

MAX_OFFSET = (1 << 63) - 1
_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


class Position(NamedTuple):
    """Place in a log: an offset, or a time in nanoseconds since 1970. The other one is None."""

    offset: int | None
    time: int | None


NOWHERE = Position(None, None)


# ---- read


def parse(read: Callable[[str], T], text: str, option: str) -> T:
    """Return the quantity that the text of an option means.

    >>> parse(quantities.size, "256MiB", "--rotate"), parse(quantities.seconds, "1h30m", "--sync")
    (268435456, 5400.0)
    """
    with wrong_usage(option):
        return read(text)


def moment(text: str, option: str, now: int | None = None) -> int:
    """Return nanoseconds since 1970: a date and time, `now`, or a duration before now.

    >>> moment("-1h", "--from", now=3_600_000_000_001)
    1
    """
    now = time.time_ns() if now is None else now
    return parse(lambda text: quantities.instant(text, now), text, option)


def position(text: str | None, option: str, now: int | None = None) -> Position:
    """Return an offset if `text` is a bare number, else a time; NOWHERE without `text`.

    >>> position("1500", "--from"), position("now", "--to", now=7)
    (Position(offset=1500, time=None), Position(offset=None, time=7))
    """
    if text is None:
        return NOWHERE
    text = text.strip()
    if text.isascii() and text.isdigit():
        if int(text[:20]) > MAX_OFFSET:
            raise typer.BadParameter(f"{option} {text[:24]}: an offset is at most {MAX_OFFSET}")
        return Position(int(text), None)
    return Position(None, moment(text, option, now))


# ---- print


def format_size(count: float) -> str:
    """Return a size in three digits and a unit.

    >>> format_size(999), format_size(268435456), format_size(1.5 * 2**40)
    ('999 B', '256 MiB', '1.5 TiB')
    """
    unit = "B"
    for name in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(count) < 1000:
            break
        count, unit = count / 1024, name
    return f"{count:.3g} {unit}"


def format_time(nanos: int) -> str:
    """Return a time in UTC, to the microsecond.

    >>> format_time(1794736800250000000)
    '2026-11-15T10:00:00.250000Z'
    """
    when = EPOCH + timedelta(microseconds=nanos // 1000)
    return f"{when:%Y-%m-%dT%H:%M:%S.%f}Z"


def format_duration(value: float) -> str:
    """Return a duration in at most two units.

    >>> format_duration(0.25), format_duration(75), format_duration(90061)
    ('0.25 s', '1 m 15 s', '1 d 1 h')
    """
    if value < 60:
        return f"{value:.3g} s"
    whole, parts = round(value), []
    for unit, length in _SECONDS.items():
        amount, whole = divmod(whole, length)
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])
