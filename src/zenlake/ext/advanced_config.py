"""Configurations of advanced publishers and subscribers, and Miss.

Knows their values and refuses invalid ones. Does not know sessions or samples.
"""

import math
import operator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, SupportsIndex, final

from zenlake.api.arguments import instance
from zenlake.api.values.enums import CongestionControl, Priority
from zenlake.api.values.ids import EntityGlobalId
from zenlake.api.values.wrapped import Unconstructed

MIN_PERIOD = 0.001  # Least period in seconds; a shorter one would only heat a core.
MAX_COUNT = 2**64 - 1


@final
@dataclass(frozen=True, kw_only=True)
class RepliesConfig:
    """QoS of the replies of a cache.

    Replies travel with the priority and the congestion control of their query; these two fields are
    checked and stored, without effect.

    >>> RepliesConfig(express=True).express
    True
    """

    congestion_control: CongestionControl | None = None
    "None means BLOCK."
    priority: Priority | None = None
    "None means DATA."
    express: bool | None = None

    def __post_init__(self) -> None:
        _instance("congestion_control", self.congestion_control, CongestionControl)
        _instance("priority", self.priority, Priority)
        _instance("express", self.express, bool)


@final
@dataclass(frozen=True)
class CacheConfig:
    """Number of samples that a publisher keeps to answer history and recovery.

    >>> CacheConfig(100)
    CacheConfig(max_samples=100, replies_config=None)
    """

    max_samples: int | None = None
    "None means 1."
    replies_config: RepliesConfig | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _count("max_samples", self.max_samples)
        _instance("replies_config", self.replies_config, RepliesConfig)


@final
@dataclass(frozen=True, kw_only=True)
class HistoryConfig:
    """History that a subscriber asks for when it is declared.

    `detect_late_publishers` also asks publishers that appear later (with `publisher_detection`).
    `max_samples` is a count per key; `max_age` is in seconds.

    >>> HistoryConfig(max_samples=10, max_age=60).max_age
    60
    """

    detect_late_publishers: bool | None = None
    max_samples: int | None = None
    max_age: float | None = None

    def __post_init__(self) -> None:
        _instance("detect_late_publishers", self.detect_late_publishers, bool)
        _count("max_samples", self.max_samples)
        if self.max_age is not None:
            _number("max_age", self.max_age)


@final
@dataclass(frozen=True, kw_only=True)
class MissDetectionConfig:
    """Sequence numbers in samples, and heartbeats with the last number, periods in seconds.

    `heartbeat` is sent in every period; `sporadic_heartbeat` only when the number changed, and it
    is never dropped. If both are given the sporadic one counts.

    >>> MissDetectionConfig(heartbeat=0.5).heartbeat
    0.5
    """

    heartbeat: float | None = None
    sporadic_heartbeat: float | None = None

    def __post_init__(self) -> None:
        seconds("heartbeat", self.heartbeat)
        seconds("sporadic_heartbeat", self.sporadic_heartbeat)


@final
@dataclass(frozen=True, kw_only=True)
class RecoveryConfig:
    """Way in which a subscriber notices that the last samples of a publisher are missing.

    Either it asks periodically (seconds, or a timedelta), or it listens to heartbeats. Samples that
    are missing between others are asked for in both cases.

    >>> RecoveryConfig(heartbeat=True)
    RecoveryConfig(periodic_queries=None, heartbeat=True)
    >>> RecoveryConfig()
    Traceback (most recent call last):
    ValueError: invalid parameters: give either periodic_queries or heartbeat=True
    """

    periodic_queries: float | timedelta | None = None
    heartbeat: Literal[True] | None = None

    def __post_init__(self) -> None:
        heartbeat: object = self.heartbeat
        _instance("heartbeat", heartbeat, bool)
        seconds("periodic_queries", self.periodic_queries)
        if (self.periodic_queries is not None) == bool(heartbeat) or heartbeat is False:
            raise ValueError("invalid parameters: give either periodic_queries or heartbeat=True")


@final
@dataclass(frozen=True, order=True, slots=True)
class Miss(metaclass=Unconstructed):
    """Run of `nb` samples from `source` that were not received and could not be recovered."""

    source: EntityGlobalId
    nb: int


def seconds(name: str, period: float | timedelta | None) -> float | None:
    """Return a period in seconds, at least MIN_PERIOD."""
    if period is None:
        return None
    value = period.total_seconds() if isinstance(period, timedelta) else _number(name, period)
    if not 0 <= value < math.inf:
        raise ValueError(f"negative timeout: {name}={period!r} is not a period in seconds")
    return max(value, MIN_PERIOD)


def _number(name: str, value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"argument '{name}': must be real number, not {type(value).__name__}")
    return float(value)


def _count(name: str, value: SupportsIndex | None) -> None:
    if value is None:
        return
    try:
        count = operator.index(value)
    except TypeError as error:
        raise TypeError(f"argument '{name}': {error}") from None
    if not 0 <= count <= MAX_COUNT:
        raise OverflowError(f"{name}={count}: a count is 0 or more and below 2**64")


def _instance(name: str, value: object, wanted: type) -> None:
    if value is not None:
        instance(name, value, wanted)
