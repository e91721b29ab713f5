"""Failures slowed by address: who fails often waits, longer each time, and is forgotten when quiet.

Knows addresses and times that it is given. Does not wait, and does not know what failed.
"""

from collections import OrderedDict, deque

FREE_FAILURES = 5  # within WINDOW_S, without any delay
WINDOW_S = 1.0
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
QUIET_S = 60.0  # without a failure, and an address is as good as new
MAX_ADDRESSES = 4096  # remembered; then who has not failed for longest is forgotten


class _Record:
    """The last failures of one address."""

    __slots__ = ("delay", "times")

    def __init__(self) -> None:
        self.times: deque[float] = deque(maxlen=FREE_FAILURES)
        self.delay = 0.0


class Throttle:
    """`now` is in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()  # who failed last is last

    def failed(self, address: str, now: float) -> float:
        """Count a failure; how many seconds to wait before it is answered.

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
        """How many addresses are remembered."""
        return len(self._records)
