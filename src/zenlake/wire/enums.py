"""The protocol's small numbers, with their names.

Knows the number each name has on the wire. Does not know which message carries it.
"""

from enum import IntEnum, IntFlag


class WireWhatAmI(IntFlag):
    """Role of a node, as a bit of SCOUT's mask and of link states."""

    ROUTER = 1
    PEER = 2
    CLIENT = 4


# Roles by their two-bit code in INIT, JOIN and HELLO.
WHATAMI_CODES = (WireWhatAmI.ROUTER, WireWhatAmI.PEER, WireWhatAmI.CLIENT)


class WirePriority(IntEnum):
    CONTROL = 0
    REAL_TIME = 1
    INTERACTIVE_HIGH = 2
    INTERACTIVE_LOW = 3
    DATA_HIGH = 4
    DATA = 5
    DATA_LOW = 6
    BACKGROUND = 7


PRIORITIES = tuple(WirePriority)


class WireCongestionControl(IntEnum):
    DROP = 0
    BLOCK = 1
    BLOCK_FIRST = 2


class Mapping(IntEnum):
    """Side of the link that declared the id in a key: the message's receiver or its sender."""

    RECEIVER = 0
    SENDER = 1


class WireQueryTarget(IntEnum):
    BEST_MATCHING = 0
    ALL = 1
    ALL_COMPLETE = 2


class Consolidation(IntEnum):
    AUTO = 0
    NONE = 1
    MONOTONIC = 2
    LATEST = 3


class CloseReason(IntEnum):
    GENERIC = 0
    UNSUPPORTED = 1
    INVALID = 2
    MAX_SESSIONS = 3
    MAX_LINKS = 4
    EXPIRED = 5
    UNRESPONSIVE = 6
    CONNECTION_TO_SELF = 7


class InterestMode(IntEnum):
    FINAL = 0
    CURRENT = 1
    FUTURE = 2
    CURRENT_FUTURE = 3


class InterestOptions(IntFlag):
    """Declarations that an INTEREST asks for; restriction and mapping follow from its key."""

    NOTHING = 0
    KEYEXPRS = 0x01
    SUBSCRIBERS = 0x02
    QUERYABLES = 0x04
    TOKENS = 0x08
    AGGREGATE = 0x80
