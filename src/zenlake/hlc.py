"""The hybrid logical clock: timestamps that follow the wall clock and never go back.

Follows the crate uhlc. Does not read a clock: the time, as NTP64, is an argument of every call, so
that it runs under real and simulated time.
"""

from zenlake.errors import ClockDrift
from zenlake.quantities import ntp64_from_nanos
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.zenohid import WireZenohId

COUNTER_BITS = 0x0F  # Low bits of NTP64: they count stamps within one tick (crate uhlc, CSIZE 4).
MAX_DRIFT_NANOS = 500_000_000  # Lead allowed to another clock (crate uhlc, UHLC_MAX_DELTA_MS).


class HybridLogicalClock:
    """Hybrid logical clock of one node.

    >>> clock = HybridLogicalClock(WireZenohId.parse("a1"))
    >>> a, b = clock.stamp(now=1 << 32), clock.stamp(now=1 << 32)
    >>> b.time - a.time
    1
    """

    __slots__ = ("_last", "id", "max_drift")

    def __init__(self, zid: WireZenohId, *, max_drift_nanos: int = MAX_DRIFT_NANOS) -> None:
        self.id = zid
        self.max_drift = ntp64_from_nanos(max_drift_nanos)
        self._last = 0

    @property
    def last(self) -> int:
        """Latest time given or seen, as NTP64."""
        return self._last

    def stamp(self, now: int) -> WireTimestamp:
        """Return a timestamp greater than all given or seen before."""
        now &= ~COUNTER_BITS
        self._last = now if now > self._last & ~COUNTER_BITS else self._last + 1
        return WireTimestamp(self._last, self.id)

    def reserve(self, count: int, now: int) -> int:
        """Reserve the `count` times after the one returned."""
        before = max(self._last, now & ~COUNTER_BITS)
        self._last = before + count
        return before

    def update(self, seen: WireTimestamp, now: int) -> None:
        """Move past another clock's timestamp, so that later stamps are greater.

        Raises ClockDrift, and does not move, if it is too far ahead of `now`.
        """
        now &= ~COUNTER_BITS
        if seen.time - now > self.max_drift:
            raise ClockDrift(
                f"{seen!r} is {(seen.time - now) / 2**32:.3f} s ahead of the local clock; "
                f"the limit is {self.max_drift / 2**32:.3f} s"
            )
        self._last = max(self._last, seen.time, now)
