"""What is chosen by a word on the command line: the protocol's enumerations, in small letters."""

from enum import StrEnum
from typing import Any

import zenlake


class PriorityChoice(StrEnum):
    REAL_TIME = "real-time"
    INTERACTIVE_HIGH = "interactive-high"
    INTERACTIVE_LOW = "interactive-low"
    DATA_HIGH = "data-high"
    DATA = "data"
    DATA_LOW = "data-low"
    BACKGROUND = "background"


class CongestionControlChoice(StrEnum):
    DROP = "drop"
    BLOCK = "block"
    BLOCK_FIRST = "block-first"


class ReliabilityChoice(StrEnum):
    BEST_EFFORT = "best-effort"
    RELIABLE = "reliable"


class QueryTargetChoice(StrEnum):
    BEST_MATCHING = "best-matching"
    ALL = "all"
    ALL_COMPLETE = "all-complete"


class ConsolidationChoice(StrEnum):
    AUTO = "auto"
    NONE = "none"
    MONOTONIC = "monotonic"
    LATEST = "latest"


def to_api(choice: StrEnum | None) -> Any:
    """The API's member of the same name."""
    if choice is None:
        return None
    return getattr(getattr(zenlake, type(choice).__name__), choice.name)
