"""Throttle: delays for addresses that fail often, doubled with each failure until they are quiet.

Knows addresses and times that are passed in. Does not wait, and does not know what failed.
"""

from collections import OrderedDict, deque

FREE_FAILURES = 5  # Failures within WINDOW_S that cause no delay.
WINDOW_S = 1.0
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
QUIET_S = 60.0  # Seconds without a failure after which an address is forgotten.
MAX_ADDRESSES = 4096  # Addresses remembered; the least recent failure is forgotten first.


class _Record:
    """Last failures of one address, and its current delay."""

    __slots__ = ("delay", "times")

    def __init__(self) -> None:
        self.times: deque[float] = deque(maxlen=FREE_FAILURES)
        self.delay = 0.0


class Throttle:
    """Failures by address. `now` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()  # Oldest failure first.

    def failed(self, address: str, now: float) -> float:
        """Count a failure; return the seconds to wait before answering it.

        Once an address is slowed, each failure doubles its delay, however far apart they are.
        """
        record = self._records.pop(address, None)
        if record is None or now - record.times[-1] >= QUIET_S:
            record = _Record()
        times = record.times
        too_many = len(times) == FREE_FAILURES and now - times[0] < WINDOW_S
        if record.delay or too_many:
            record.delay = min(max(2 * record.delay, FIRST_DELAY_S), MAX_DELAY_S)
        times.append(now)
        if len(self._records) >= MAX_ADDRESSES:
            self._records.popitem(last=False)
        self._records[address] = record
        return record.delay

    def __len__(self) -> int:
        """Return the number of remembered addresses."""
        return len(self._records)
