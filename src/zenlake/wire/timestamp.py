"""Timestamp: a time and the clock that gave it, totally ordered.

Knows NTP64, its RFC 3339 text, and the bytes. Does not read a clock (hlc.py is handed the time).
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from zenlake.errors import DecodeError, Reason
from zenlake.wire.cursor import U64, ByteReader, ByteWriter
from zenlake.wire.zenohid import MAX_BYTES, WireZenohId, write_zid, zenoh_id

NANOS = 1_000_000_000
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


def ntp64_from_nanos(nanos: int) -> int:
    """Convert nanoseconds since the UNIX epoch to NTP64: 32 bits of seconds, 32 of fraction.

    Rounds up, so that `nanos_from_ntp64` returns the same nanosecond.
    """
    seconds, rest = divmod(nanos, NANOS)
    time = (seconds << 32) + -(-(rest << 32) // NANOS)
    if not 0 <= time <= U64:
        raise ValueError(f"{nanos} ns is outside what NTP64 holds (1970 to 2106)")
    return time


def nanos_from_ntp64(time: int) -> int:
    return (time >> 32) * NANOS + (((time & 0xFFFF_FFFF) * NANOS) >> 32)


@dataclass(frozen=True, slots=True, order=True)
class WireTimestamp:
    """
     % time : z64    %   NTP64; the low 4 bits also count within one tick of the clock
     ~ id <1..16>    ~   the ZenohId of the clock's owner

    Ordered by time, then id.

    >>> WireTimestamp.parse("2024-07-01T12:00:00.5Z/a1").time >> 32
    1719835200
    """

    time: int
    id: WireZenohId

    def __post_init__(self) -> None:
        if not 0 <= self.time <= U64:
            raise ValueError(f"{self.time} is not an NTP64 time (64 bits)")

    @classmethod
    def parse(cls, text: str) -> "WireTimestamp":
        """Parse `<ntp64 in decimal>/<id>` or `<RFC 3339>/<id>`."""
        time, slash, zid = text.rpartition("/")
        if not slash:
            raise ValueError(f"{text!r} is not a timestamp: <time>/<id>")
        return cls(
            int(time) if _is_decimal(time) else ntp64_from_rfc3339(time), WireZenohId.parse(zid)
        )

    @property
    def nanos(self) -> int:
        """Nanoseconds since the UNIX epoch, rounded down."""
        return nanos_from_ntp64(self.time)

    def rfc3339(self) -> str:
        """Return time and id as text, in nanoseconds: finer steps (0.23 ns) are lost."""
        return f"{rfc3339_from_ntp64(self.time)}/{self.id}"

    def __str__(self) -> str:
        return f"{self.time}/{self.id}"

    def __repr__(self) -> str:
        return f"Timestamp({self.rfc3339()})"


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdigit()


def rfc3339_from_ntp64(time: int) -> str:
    seconds, nanos = divmod(nanos_from_ntp64(time), NANOS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"


def ntp64_from_rfc3339(text: str) -> int:
    found = _RFC3339.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        when = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(
            f"{text!r} is not an RFC 3339 time such as 2024-07-01T12:00:00.5Z"
        ) from None
    seconds = round(when.timestamp())  # whole: the pattern split the fraction off
    return ntp64_from_nanos(seconds * NANOS + int((found[2] or "0").ljust(9, "0")))


def read_timestamp(r: ByteReader, field: str) -> WireTimestamp:
    time = r.zint(field)
    start = r.pos
    length = r.zint(field)
    if not 1 <= length <= MAX_BYTES:
        raise DecodeError(Reason.BAD_ZENOH_ID, field, start)
    return WireTimestamp(time, zenoh_id(r.take(field, length), field, start))


def write_timestamp(w: ByteWriter, field: str, timestamp: WireTimestamp) -> None:
    w.zint(field, timestamp.time)
    write_zid(w, field, timestamp.id)
