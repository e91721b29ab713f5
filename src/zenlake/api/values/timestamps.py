"""NTP64, TimestampId and Timestamp: the API objects.

Knows their texts and the conversions to Python's own types; `wire/timestamp.py` knows their bytes.
Reads no clock.
"""

import builtins
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from operator import index
from typing import Self, final

from zenlake.api.values.wrapped import Wrapped
from zenlake.errors import ZError
from zenlake.quantities import (
    EPOCH,
    NANOS,
    from_rfc3339,
    nanos_from_ntp64,
    ntp64_from_nanos,
    subsec_nanos,
    to_rfc3339,
)
from zenlake.wire import timestamp, zenohid
from zenlake.wire.cursor import U32, U64

_HEX = re.compile(r"[1-9a-fA-F][0-9a-fA-F]{0,31}")


@final
class NTP64(Wrapped[int]):
    """Time since the UNIX epoch in 64 bits: 32 of seconds, 32 of binary fraction.

    The range ends in 2106; a time outside of it is an OverflowError.

    >>> time = NTP64(1719841872, 129693000)
    >>> time.as_nanos(), time.to_string_rfc3339_lossy()
    (1719841872129693000, '2024-07-01T13:51:12.129693000Z')
    """

    __slots__ = ()

    def __new__(cls, seconds: int, nanoseconds: int) -> Self:
        if not 0 <= index(seconds) <= U64 or not 0 <= index(nanoseconds) <= U32:
            raise OverflowError(
                f"{seconds} s, {nanoseconds} ns: seconds are a u64, nanoseconds u32"
            )
        return cls._at(seconds * NANOS + nanoseconds)

    @classmethod
    def _at(cls, nanos: int) -> Self:
        try:
            return cls.of(ntp64_from_nanos(nanos))
        except ValueError as error:
            raise OverflowError(str(error)) from None

    @classmethod
    def parse_rfc3339(cls, s: str) -> Self:
        """Parse RFC 3339, such as `2024-07-01T13:51:12.129693000Z`.

        >>> NTP64.parse_rfc3339("2024-07-01T13:51:12.5Z").subsec_nanos()
        500000000
        """
        try:
            return cls._at(from_rfc3339(s))
        except (ValueError, OverflowError):
            raise ZError(
                f"Failed to parse '{s[:80]}': write RFC 3339 between 1970 and 2106, "
                "as 2024-07-01T12:00:00.5Z"
            ) from None

    def as_secs_f64(self, /) -> float:
        """Return seconds; a float does not distinguish times less than a microsecond apart."""
        return (self.wire >> 32) + (self.wire & U32) / 2**32

    def as_secs(self, /) -> int:
        """Return the whole seconds."""
        return self.wire >> 32

    def as_nanos(self, /) -> int:
        """Return nanoseconds."""
        return nanos_from_ntp64(self.wire)

    def subsec_nanos(self, /) -> int:
        """Return the fraction of a second in nanoseconds, rounded up, so that the given value is
        returned.
        """
        return subsec_nanos(self.wire)

    def to_datetime(self, /) -> datetime:
        """Return the time in UTC, cut to microseconds."""
        return EPOCH + timedelta(microseconds=self.as_nanos() // 1000)

    def to_string_rfc3339_lossy(self, /) -> str:
        """Return RFC 3339 with nanoseconds; a quarter of one is lost."""
        return to_rfc3339(self.as_nanos())


@final
class TimestampId(Wrapped[zenohid.WireZenohId]):
    """Identity of a clock: 1 to 16 little-endian bytes, printed in hexadecimal.

    >>> TimestampId(b"\\x01\\x02"), bytes(TimestampId([1, 2, 0]))
    (201, b'\\x01\\x02')
    """

    __slots__ = ()

    def __new__(cls, bytes: builtins.bytes | bytearray | Iterable[int]) -> Self:  # noqa: A002
        if isinstance(bytes, str | int):
            raise TypeError(f"an id is bytes, not {type(bytes).__name__}")
        try:
            raw = builtins.bytes(bytes)
        except ValueError as error:
            raise OverflowError(f"an id is bytes: {error}") from None
        try:
            return cls.of(zenohid.WireZenohId(raw))
        except ValueError:
            size = len(raw) if len(raw) > zenohid.MAX_BYTES else 0
            raise ZError(f"an id is 1 to 16 bytes and not zero: {size} bytes given") from None

    def __bytes__(self) -> builtins.bytes:
        return self.wire.raw

    def _key(self) -> builtins.bytes:
        return self.wire.raw


IntoTimestampId = TimestampId | bytes | bytearray | Iterable[int]


@final
class Timestamp(Wrapped[timestamp.WireTimestamp]):
    """Time with the clock that gave it: no two are equal, and all are ordered.

    >>> stamp = Timestamp.parse_rfc3339("2024-07-01T13:51:12.129693000Z/33")
    >>> stamp, stamp.get_id(), stamp.get_time().year
    (7386664595088445305/33, 33, 2024)
    """

    __slots__ = ()

    def __new__(cls, time: datetime | NTP64, id: IntoTimestampId) -> Self:  # noqa: A002
        if isinstance(time, datetime):
            if (micros := (time - EPOCH) // timedelta(microseconds=1)) < 0:
                raise ValueError(f"{time} is before 1970, which a timestamp cannot hold")
            time = NTP64._at(micros * 1000)
        elif not isinstance(time, NTP64):
            raise TypeError(f"expected a `datetime` or a `NTP64`, found {type(time).__name__}")
        owner = id if isinstance(id, TimestampId) else TimestampId(id)
        return cls.of(timestamp.WireTimestamp(time.wire, owner.wire))

    @classmethod
    def parse_rfc3339(cls, s: str) -> Self:
        """Parse `<RFC 3339>/<id in hexadecimal>`."""
        time, slash, owner = s.partition("/")
        if not slash:
            raise ZError(f"No '/' found in '{s[:80]}': write <time>/<id>")
        ntp64 = NTP64.parse_rfc3339(time)
        if not _HEX.fullmatch(owner):
            raise ZError(
                f"'{owner[:80]}' is not an id: write 1 to 32 hexadecimal digits, the first not 0"
            )
        return cls.of(timestamp.WireTimestamp(ntp64.wire, zenohid.WireZenohId.parse(owner.lower())))

    def get_time(self, /) -> datetime:
        """Return the time in UTC, cut to microseconds."""
        return self.get_time_as_ntp64().to_datetime()

    def get_time_as_ntp64(self, /) -> NTP64:
        """Return the exact time."""
        return NTP64.of(self.wire.time)

    def get_id(self, /) -> TimestampId:
        """Return the id of the clock that gave it."""
        return TimestampId.of(self.wire.id)

    def get_diff_duration(self, /, other: "Timestamp") -> timedelta:
        """Return by how much this is later than `other`, cut to microseconds; negative when
        earlier.

        >>> early, late = (Timestamp(NTP64(second, 0), b"a") for second in (1, 3))
        >>> late.get_diff_duration(early).total_seconds()
        2.0
        >>> early.get_diff_duration(late).total_seconds()
        -2.0
        """
        if not isinstance(other, Timestamp):
            raise TypeError(f"expected a Timestamp, found {type(other).__name__}")
        ticks = self.wire.time - other.wire.time
        nanos = -(-abs(ticks) * NANOS >> 32)  # Rounded up, as in Rust: to the next second too.
        distance = timedelta(microseconds=nanos // 1000)
        return distance if ticks >= 0 else -distance

    def to_string_rfc3339_lossy(self, /) -> str:
        """Return `<RFC 3339 with nanoseconds>/<id>`."""
        return f"{self.get_time_as_ntp64().to_string_rfc3339_lossy()}/{self.wire.id}"
