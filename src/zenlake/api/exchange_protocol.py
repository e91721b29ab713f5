"""ExchangeLike: the part of the exchange that queries, interests and tokens use.

Knows signatures only. `runtime.exchange.Exchange` implements it, and so do exchanges of tests.
"""

from collections.abc import Callable
from typing import Protocol

from zenlake.api.values.enums import InterceptionPoint
from zenlake.wire.network import NetworkMessage
from zenlake.wire.tsstack import WireTimestampStack
from zenlake.wire.zenohid import WireZenohId

Stamp = Callable[[WireTimestampStack, InterceptionPoint], WireTimestampStack]
"""Function that records the session's time at a point, if the stack asks for it."""


class TimerLike(Protocol):
    """Timer that can be cancelled."""

    def cancel(self) -> None: ...


class ExchangeLike(Protocol):
    """Entry into routing from the session's own face. Only `await_reply_room` waits."""

    @property
    def zid(self) -> WireZenohId: ...
    @property
    def query_timeout(self) -> float: ...
    @property
    def closed(self) -> bool: ...
    def now(self) -> float: ...
    def send(self, message: NetworkMessage) -> None: ...
    def has_reply_room(self, request_id: int) -> bool: ...
    def await_reply_room(self, request_id: int) -> None: ...
    def forget_query(self, request_id: int) -> None: ...
    def call_later(self, seconds: float, call: Callable[[], None]) -> TimerLike: ...
    def next_id(self) -> int: ...


def unstamped(stack: WireTimestampStack, point: InterceptionPoint) -> WireTimestampStack:
    """Return `stack` as it is: the Stamp of a session without a clock."""
    return stack
