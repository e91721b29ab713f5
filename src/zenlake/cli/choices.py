"""Enumerations of the command line: the protocol's and the API's names, in lower case.

Knows words. Does not know any command.
"""

from enum import StrEnum
from typing import Any

import zenlake


class ModeChoice(StrEnum):
    CLIENT = "client"
    PEER = "peer"
    ROUTER = "router"


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


_API_NAMES = {
    PriorityChoice: "Priority",
    CongestionControlChoice: "CongestionControl",
    ReliabilityChoice: "Reliability",
    QueryTargetChoice: "QueryTarget",
    ConsolidationChoice: "ConsolidationMode",
}


def to_api(choice: StrEnum | None) -> Any:
    """Return the API's member of the same name; None stays None."""
    if choice is None:
        return None
    return getattr(getattr(zenlake, _API_NAMES[type(choice)]), choice.name)
