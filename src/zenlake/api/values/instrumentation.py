"""Timestamp stacks: the points of a message's path that record the time, and their records.

Knows the API objects for `wire/tsstack.py`, and how a record is added. Reads no clock.
"""

from typing import Self, final

from zenlake.api.values.enums import INTERCEPTION_POINT_OF, InterceptionPoint, WhatAmI
from zenlake.api.values.ids import ZenohId
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.wrapped import Wrapped
from zenlake.errors import DecodeError, ZError
from zenlake.wire import timestamp, tsstack, zenohid
from zenlake.wire.cursor import ByteReader, ByteWriter

_POINT_BITS = ~tsstack.CUSTOM_CONTENT & 0xFF


@final
class TimestampContext(Wrapped[tuple[zenohid.WireZenohId, WhatAmI]]):
    """Node that asks a timestamp callback for a time."""

    __slots__ = ()

    @property
    def zid(self) -> ZenohId:
        """Zenoh id of the node."""
        return ZenohId.of(self.wire[0])

    @property
    def whatami(self) -> WhatAmI:
        """Role of the node."""
        return self.wire[1]

    def __repr__(self) -> str:
        return f"TimestampContext(zid={self.zid}, whatami={self.whatami})"


@final
class TimestampInstrumentation(Wrapped[int]):
    """Points that are to record the time; made by TimestampInstrumentationBuilder.

    >>> TimestampInstrumentationBuilder().set_send(True).set_receive(True).build()
    TimestampInstrumentation(SEND, RECEIVE)
    """

    __slots__ = ()

    def is_instrumented(self, /, point: InterceptionPoint) -> bool:
        """Return whether `point` records."""
        if not isinstance(point, InterceptionPoint):
            raise TypeError(f"point is an InterceptionPoint, not {type(point).__name__}")
        return bool(self.wire & point.wire)

    def stack(self) -> tsstack.WireTimestampStack:
        """Return the stack that a new message carries, without records."""
        return tsstack.WireTimestampStack(self.wire)

    def __repr__(self) -> str:
        points = ", ".join(point.name for point in InterceptionPoint if self.is_instrumented(point))
        return f"TimestampInstrumentation({points})"


@final
class TimestampInstrumentationBuilder:
    """Builder that selects the points that are to record the time.

    >>> TimestampInstrumentationBuilder().build()
    Traceback (most recent call last):
    zenlake.errors.ZError: no interception point is enabled: call set_send, set_route or set_receive
    """

    __slots__ = ("_conf",)

    def __init__(self) -> None:
        self._conf = 0

    def set_send(self, /, enabled: bool) -> Self:
        """Select whether sending records the time."""
        return self._with(InterceptionPoint.SEND, enabled)

    def set_route(self, /, enabled: bool) -> Self:
        """Select whether each routing node records the time."""
        return self._with(InterceptionPoint.ROUTE, enabled)

    def set_receive(self, /, enabled: bool) -> Self:
        """Select whether receiving records the time."""
        return self._with(InterceptionPoint.RECEIVE, enabled)

    def build(self, /) -> TimestampInstrumentation:
        """Return the selection. ZError: it is empty."""
        if not self._conf:
            raise ZError(
                "no interception point is enabled: call set_send, set_route or set_receive"
            )
        return TimestampInstrumentation.of(self._conf)

    def _with(self, point: InterceptionPoint, enabled: bool) -> Self:
        if not isinstance(enabled, bool):
            raise TypeError(f"enabled is True or False, not {type(enabled).__name__}")
        other = type(self)()
        other._conf = self._conf | point.wire if enabled else self._conf & ~point.wire
        return other


@final
class TimestampStackRecord(Wrapped[tuple[int, bytes]]):
    """Time recorded at one point of a message's path."""

    __slots__ = ()

    @property
    def point(self) -> InterceptionPoint:
        """Point at which it was recorded."""
        return INTERCEPTION_POINT_OF[self.wire[0] & _POINT_BITS]

    @property
    def is_custom(self) -> bool:
        """Whether a node's own callback made the record."""
        return bool(self.wire[0] & tsstack.CUSTOM_CONTENT)

    def timestamp(self, /) -> Timestamp | bytes:
        """Return the Timestamp, or the bytes that a node's own callback returned."""
        content = self.wire[1]
        if self.is_custom:
            return content
        return Timestamp.of(timestamp.read_timestamp(ByteReader(content), "timestamp"))

    def __repr__(self) -> str:
        return f"TimestampStackRecord({self.point.name}, {self.timestamp()!r})"


@final
class TimestampStack(Wrapped[tsstack.WireTimestampStack]):
    """Times recorded along a message's path, in order."""

    __slots__ = ()

    @property
    def instrumentation(self) -> TimestampInstrumentation:
        """Points that were asked to record."""
        return TimestampInstrumentation.of(self.wire.conf)

    @property
    def records(self) -> list[TimestampStackRecord]:
        """Records that can be read; a node on the way may have written invalid ones."""
        records = map(TimestampStackRecord.of, self.wire.entries)
        return [record for record in records if _readable(record)]

    def __repr__(self) -> str:
        return f"TimestampStack({self.instrumentation}, {self.records})"


def _readable(record: TimestampStackRecord) -> bool:
    try:
        return record.point is not None and record.timestamp() is not None
    except (KeyError, DecodeError):
        return False


def record_stamp(
    stack: tsstack.WireTimestampStack,
    point: InterceptionPoint,
    when: timestamp.WireTimestamp | bytes,
) -> tsstack.WireTimestampStack:
    """Return `stack` with `when` recorded at `point`, if the stack asks for it and has room.

    `when` is a wire timestamp, or the bytes of a node's own callback (empty: no record).
    """
    if not stack.conf & point.wire or not when or len(stack.entries) >= tsstack.MAX_ENTRIES:
        return stack
    if isinstance(when, bytes):
        entry = (point.wire | tsstack.CUSTOM_CONTENT, when)
    else:
        writer = ByteWriter()
        timestamp.write_timestamp(writer, "timestamp", when)
        entry = (point.wire, bytes(writer.out))
    return tsstack.WireTimestampStack(stack.conf, (*stack.entries, entry))
