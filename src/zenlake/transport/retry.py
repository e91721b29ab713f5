"""Retry: when to connect to an endpoint again after a failed attempt or a lost session.

Knows periods and their growth. Does not connect, and does not read a clock.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from zenlake.errors import InvalidLocator

MAX_PERIOD = 3600.0  # Longest period in seconds, also where an endpoint sets no limit.


@dataclass(frozen=True)
class RetryPolicy:
    """Periods between attempts, in seconds."""

    first: float = 1.0
    "Period from the first failure to the next attempt; 0: no further attempt."
    factor: float = 2.0
    "Growth of the period after each failure."
    longest: float = 4.0
    "Upper bound on the period."
    timeout: float | None = None
    "Time until the first session must be open; None: no limit, 0: one attempt."

    def __post_init__(self) -> None:
        if not 1.0 <= self.factor < math.inf:
            raise ValueError(f"retry factor {self.factor}: it must be 1 or more, or waits shrink")
        if not (0.0 <= self.first < math.inf and 0.0 < self.longest <= MAX_PERIOD):
            raise ValueError(
                f"retry periods {self.first} to {self.longest} s: the first must be 0 or more, "
                f"the longest above 0 and at most {MAX_PERIOD:.0f}"
            )
        if self.timeout is not None and not self.timeout >= 0:
            raise ValueError(f"retry timeout {self.timeout}: 0 is one attempt, None is for ever")

    @classmethod
    def from_config(
        cls, endpoint_config: Mapping[str, str], base: "RetryPolicy | None" = None
    ) -> "RetryPolicy":
        """Return `base` with the retry settings after '#' in an endpoint.

        `retry_period_init_ms`: 0 or less means no further attempt. `retry_period_max_ms`: 0 or less
        means MAX_PERIOD. `retry_period_increase_factor`: as `factor`.
        """
        settings = {
            field: read(key, endpoint_config[key])
            for key, (field, read) in CONFIG.items()
            if key in endpoint_config
        }
        try:
            return replace(base or cls(), **settings)
        except ValueError as error:
            raise InvalidLocator(f"after '#' of the endpoint: {error}") from None


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidLocator(f"{key}={text}: write a number, such as {key}=1000")
    return value


def _first(key: str, text: str) -> float:
    return max(_number(key, text), 0.0) / 1000


def _longest(key: str, text: str) -> float:
    period = _number(key, text) / 1000
    return min(period, MAX_PERIOD) if period > 0 else MAX_PERIOD


CONFIG = {
    "retry_period_init_ms": ("first", _first),
    "retry_period_max_ms": ("longest", _longest),
    "retry_period_increase_factor": ("factor", _number),
}


class Retry:
    """Attempts to connect to one endpoint, the first of which begins `now`."""

    def __init__(self, policy: RetryPolicy, now: float) -> None:
        self._policy = policy
        self._period = policy.first
        self._opened: float | None = None
        self._give_up = math.inf if policy.timeout is None else now + policy.timeout

    def failed(self, now: float) -> float | None:
        """Note a failed attempt; return when to make the next one, None: give up."""
        again = now + min(self._period, self._policy.longest)
        if self._policy.first == 0 or again > self._give_up:
            return None
        self._period = min(self._period * self._policy.factor, self._policy.longest)
        return again

    def succeeded(self, now: float) -> None:
        """Note an open session. From now on the timeout no longer applies."""
        self._opened = now
        self._give_up = math.inf

    def lost(self, now: float) -> float | None:
        """Note the end of the session; return when to connect again.

        Only a session of `longest` seconds resets the period, so that attempts at a peer that
        accepts and closes at once become rarer too.
        """
        if self._opened is not None and now - self._opened >= self._policy.longest:
            self._period = self._policy.first
        self._opened = None
        return self.failed(now)
