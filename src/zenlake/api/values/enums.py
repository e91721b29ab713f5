"""Enumerations of the API, and their conversion to the numbers of the wire and back.

Knows names and numbers only. To the wire: `member.wire`. From it: a table such as `PRIORITY_OF[5]`.
"""

from enum import Enum, EnumType, nonmember
from typing import TYPE_CHECKING, Self, final

from zenlake.api.values.wrapped import Value
from zenlake.errors import ZError
from zenlake.wire import enums as codec
from zenlake.wire.qos import QoS


class _Listed(EnumType):
    """Metaclass that lists DEFAULT and other aliases in `dir`, so that editors offer them."""

    def __dir__(cls) -> list[str]:
        return sorted({*super().__dir__(), *cls.__members__, *vars(cls)})


if TYPE_CHECKING:

    class _Ordered:
        """`Value` without `__eq__`, beside which checkers do not tell members apart by `==`."""

        def __lt__(self, other: Self) -> bool: ...
        def __le__(self, other: Self) -> bool: ...
        def __gt__(self, other: Self) -> bool: ...
        def __ge__(self, other: Self) -> bool: ...
else:
    _Ordered = Value


class OrderedEnum(_Ordered, Enum, metaclass=_Listed):
    """Base of enumerations that sort by number, print as `Class.NAME`, and equal no number."""

    if TYPE_CHECKING:

        @property
        def value(self) -> int: ...  # Type checkers take it for Any, because of the metaclass.
    else:
        # Members are unique: faster than comparing their keys.
        __eq__ = object.__eq__
        __hash__ = object.__hash__

    def _key(self) -> int:
        return int(self._value_)

    def __int__(self) -> int:
        return int(self._value_)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class CongestionControl(OrderedEnum):
    """Treatment of a message when the queue it should enter is full.

    >>> CongestionControl.DEFAULT
    CongestionControl.DROP
    """

    DROP = 0
    "The message may be dropped."
    BLOCK = 1
    "The sender waits until there is room."
    BLOCK_FIRST = 2
    "The sender waits with one message; messages sent meanwhile are dropped."
    DEFAULT = DROP

    wire: codec.WireCongestionControl


class ConsolidationMode(OrderedEnum):
    """Selection among several replies for one key."""

    AUTO = 0
    "LATEST, or NONE when the selector asks for a range of time."
    NONE = 1
    "Every reply is delivered."
    MONOTONIC = 2
    "Replies are delivered at once, except those older than one already delivered."
    LATEST = 3
    "The newest reply of each key is delivered, after the last reply."
    DEFAULT = AUTO

    wire: codec.Consolidation


class InterceptionPoint(OrderedEnum):
    """Point of a message's path at which a time is recorded."""

    SEND = 0
    ROUTE = 1
    RECEIVE = 2

    wire: int
    "Bit of this point in a timestamp stack."


class Locality(OrderedEnum):
    """Sessions that data may be received from, or sent to."""

    SESSION_LOCAL = 0
    "Within this session only."
    REMOTE = 1
    "Other sessions only."
    ANY = 2
    DEFAULT = ANY


class Priority(OrderedEnum):
    """Lane of a message: the smaller the number, the sooner it is sent.

    >>> int(Priority.DATA), Priority.MAX, Priority.REAL_TIME < Priority.DATA
    (5, Priority.REAL_TIME, True)
    """

    REAL_TIME = 1
    INTERACTIVE_HIGH = 2
    INTERACTIVE_LOW = 3
    DATA_HIGH = 4
    DATA = 5
    DATA_LOW = 6
    BACKGROUND = 7
    DEFAULT = DATA
    MIN = BACKGROUND
    MAX = REAL_TIME
    NUM = nonmember(7)

    wire: codec.WirePriority


class QueryTarget(OrderedEnum):
    """Selection among the matching queryables of a query."""

    BEST_MATCHING = 0
    "The nearest complete queryable, or all when there is none."
    ALL = 1
    ALL_COMPLETE = 2
    DEFAULT = BEST_MATCHING

    wire: codec.WireQueryTarget


class Reliability(OrderedEnum):
    """Whether the transport resends what a link loses."""

    BEST_EFFORT = 0
    RELIABLE = 1
    if not TYPE_CHECKING:  # The stubs of eclipse-zenoh lack it: a `match` without it is complete.
        DEFAULT = BEST_EFFORT


class ReplyKeyExpr(OrderedEnum):
    """Keys that a query accepts in its replies."""

    ANY = 0
    MATCHING_QUERY = 1
    DEFAULT = MATCHING_QUERY


class SampleKind(OrderedEnum):
    """Whether a sample sets or deletes a value."""

    PUT = 0
    DELETE = 1


class WhatAmI(OrderedEnum):
    """Role of a node.

    >>> WhatAmI("peer") is WhatAmI.PEER, str(WhatAmI.PEER | WhatAmI.ROUTER)
    (True, 'router|peer')
    """

    ROUTER = 1
    PEER = 2
    CLIENT = 4

    wire: codec.WireWhatAmI

    @classmethod
    def _missing_(cls, value: object) -> Self:
        if not isinstance(value, str):
            raise TypeError(f"a WhatAmI is named by text, not by {type(value).__name__}")
        for member in cls:
            if str(member) == value:
                return member
        raise ZError(
            f"{value} is not a valid WhatAmI value. Valid values are: router, peer, client."
        )

    def __str__(self) -> str:
        return self.name.lower()

    def __repr__(self) -> str:
        return self.name.capitalize()

    def __or__(self, other: "WhatAmI | str") -> "WhatAmIMatcher":
        try:
            return WhatAmIMatcher.of(self._value_ | _whatami(other).value)
        except (TypeError, ZError):
            return NotImplemented


def _whatami(value: WhatAmI | str) -> WhatAmI:
    if isinstance(value, WhatAmI | str):
        return WhatAmI(value)
    raise TypeError(f"a WhatAmI or its name, not {type(value).__name__}")


@final
class WhatAmIMatcher(Value):
    """Set of WhatAmI, written as `router|peer`; immutable.

    >>> matcher = WhatAmIMatcher("peer|router")
    >>> str(matcher), WhatAmI.PEER in matcher, "client" in matcher
    ('router|peer', True, False)
    """

    __slots__ = ("mask",)

    mask: int
    "Bits of the mask in SCOUT."

    def __init__(self, s: str | None) -> None:
        if not isinstance(s, str | None):
            raise TypeError(f"a matcher is written as text, not as {type(s).__name__}")
        self.mask = 0
        try:
            for name in (s or "").split("|"):
                if name := name.strip():
                    self.mask |= WhatAmI(name).value
        except ZError:
            raise ZError(
                f"invalid WhatAmI matcher {s!r}: write some of router, peer, client with | between"
            ) from None

    @classmethod
    def of(cls, mask: int) -> Self:
        """Make a matcher from the mask in SCOUT."""
        matcher = cls("")
        matcher.mask = mask & 0b111
        return matcher

    @classmethod
    def empty(cls) -> Self:
        """Make a matcher that matches nothing."""
        return cls.of(0)

    def router(self, /) -> Self:
        """Return this matcher with routers added."""
        return self.of(self.mask | WhatAmI.ROUTER.value)

    def peer(self, /) -> Self:
        """Return this matcher with peers added."""
        return self.of(self.mask | WhatAmI.PEER.value)

    def client(self, /) -> Self:
        """Return this matcher with clients added."""
        return self.of(self.mask | WhatAmI.CLIENT.value)

    def is_empty(self, /) -> bool:
        """Return whether it matches nothing."""
        return not self.mask

    def matches(self, /, whatami: WhatAmI | str) -> bool:
        """Return whether `whatami` is in the set."""
        return bool(self.mask & _whatami(whatami).value)

    __contains__ = matches

    def _key(self) -> int:
        return self.mask

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (str(self),)

    def __str__(self) -> str:
        return "|".join(str(member) for member in WhatAmI if member.value & self.mask)

    def __repr__(self) -> str:
        return f"WhatAmIMatcher({str(self)!r})"


# Plain attributes: they are read for every message.
for _congestion_control in CongestionControl:
    _congestion_control.wire = codec.WireCongestionControl(_congestion_control.value)
for _consolidation in ConsolidationMode:
    _consolidation.wire = codec.Consolidation(_consolidation.value)
for _point in InterceptionPoint:
    _point.wire = 1 << _point.value
for _priority in Priority:
    _priority.wire = codec.WirePriority(_priority.value)
for _target in QueryTarget:
    _target.wire = codec.WireQueryTarget(_target.value)
for _role in WhatAmI:
    _role.wire = codec.WireWhatAmI(_role.value)

CONGESTION_CONTROL_OF = tuple(CongestionControl)
PRIORITY_OF: tuple[Priority, ...] = (Priority.DEFAULT, *Priority)
"Priority by wire number; a sample that claims the CONTROL lane (0) shows the default, as in Zenoh."
WHATAMI_OF = {member.wire: member for member in WhatAmI}
INTERCEPTION_POINT_OF = {member.wire: member for member in InterceptionPoint}

_ALL_QOS = tuple(QoS.from_byte(byte) for byte in range(256))
QOS_PRIORITY = tuple(PRIORITY_OF[qos.priority] for qos in _ALL_QOS)
"Priority by QoS byte."
QOS_CONGESTION_CONTROL = tuple(CONGESTION_CONTROL_OF[qos.congestion_control] for qos in _ALL_QOS)
"Congestion control by QoS byte."
QOS_EXPRESS = tuple(qos.express for qos in _ALL_QOS)
"Express flag by QoS byte."
