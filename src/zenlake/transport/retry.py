"""Retry: when to dial an endpoint again after an attempt failed or a session was lost.

Knows periods and their growth. Does not know what an attempt is, nor the time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from zenlake.errors import InvalidLocator

MAX_PERIOD = 3600.0  # seconds; where an endpoint sets no longest period


@dataclass(frozen=True)
class RetryPolicy:
    """Seconds throughout."""

    first: float = 1.0
    "From the first failure to the next attempt; 0: there is none."
    factor: float = 2.0
    longest: float = 4.0
    timeout: float | None = None
    "How long to try for the first session; None: for ever, 0: one attempt."

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
        """`base` with what the part of an endpoint after '#' says of retrying.

        retry_period_init_ms: 0 or less means never again. retry_period_max_ms: 0 or less means no
        limit but MAX_PERIOD. retry_period_increase_factor.
        """
        said = {
            field: read(key, endpoint_config[key])
            for key, (field, read) in CONFIG.items()
            if key in endpoint_config
        }
        try:
            return replace(base or cls(), **said)
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
    """One endpoint's attempts, the first of which begins `now`."""

    def __init__(self, policy: RetryPolicy, now: float) -> None:
        self._policy = policy
        self._period = policy.first
        self._opened: float | None = None
        self._give_up = math.inf if policy.timeout is None else now + policy.timeout

    def failed(self, now: float) -> float | None:
        """An attempt failed: when to make the next; None: give up."""
        again = now + min(self._period, self._policy.longest)
        if self._policy.first == 0 or again > self._give_up:
            return None
        self._period = min(self._period * self._policy.factor, self._policy.longest)
        return again

    def succeeded(self, now: float) -> None:
        """A session is open. From now on there is no timeout: what is lost is sought for ever."""
        self._opened = now
        self._give_up = math.inf

    def lost(self, now: float) -> float | None:
        """The session ended: when to dial again.

        Only a session that lived for `longest` seconds starts the periods anew, so that a peer
        which accepts and closes at once is not dialled ever faster than one that refuses.
        """
        if self._opened is not None and now - self._opened >= self._policy.longest:
            self._period = self._policy.first
        self._opened = None
        return self.failed(now)
