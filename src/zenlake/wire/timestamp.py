"""Timestamp: a time and the clock that gave it, totally ordered.

Knows the text and the bytes; NTP64 and RFC 3339 are in quantities.py. Does not read a clock (hlc.py
is handed the time).
"""

from dataclasses import dataclass

from zenlake.errors import DecodeError, Reason
from zenlake.quantities import from_rfc3339, nanos_from_ntp64, ntp64_from_nanos, to_rfc3339
from zenlake.wire.cursor import U64, ByteReader, ByteWriter
from zenlake.wire.zenohid import MAX_BYTES, WireZenohId, write_zid, zenoh_id


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
        ntp64 = int(time) if _is_decimal(time) else ntp64_from_nanos(from_rfc3339(time))
        return cls(ntp64, WireZenohId.parse(zid))

    @property
    def nanos(self) -> int:
        """Return nanoseconds since the UNIX epoch, as Zenoh shows them."""
        return nanos_from_ntp64(self.time)

    def rfc3339(self) -> str:
        """Return time and id as text, in nanoseconds: finer steps (0.23 ns) are lost."""
        return f"{to_rfc3339(self.nanos)}/{self.id}"

    def __str__(self) -> str:
        return f"{self.time}/{self.id}"

    def __repr__(self) -> str:
        return f"Timestamp({self.rfc3339()})"


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdigit()


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
