"""What queries and interests need of the layers below, and how what nobody holds reaches them.

Knows that an object may end inside the cycle collector. Does not know what is sent.
"""

import gc
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from zenlake.api.values.enums import InterceptionPoint
from zenlake.errors import ZError
from zenlake.wire.network import NetworkMessage
from zenlake.wire.tsstack import WireTimestampStack
from zenlake.wire.zenohid import WireZenohId

Stamp = Callable[[WireTimestampStack, InterceptionPoint], WireTimestampStack]
"""Record the time at a point, if the stack asks for it: the session's clock does it."""


class TimerLike(Protocol):
    def cancel(self) -> None: ...


class ExchangeLike(Protocol):
    """The way into routing, from the session's own face. Nothing of it waits."""

    @property
    def zid(self) -> WireZenohId: ...
    @property
    def query_timeout(self) -> float: ...
    @property
    def closed(self) -> bool: ...
    def now(self) -> float: ...
    def send(self, message: NetworkMessage) -> None: ...
    def forget_query(self, request_id: int) -> None: ...
    def call_later(self, seconds: float, call: Callable[[], None]) -> TimerLike: ...
    def next_id(self) -> int: ...


def unstamped(stack: WireTimestampStack, point: InterceptionPoint) -> WireTimestampStack:
    """The Stamp of a session without a clock."""
    return stack


_phases = OrderedDict.fromkeys(("start", "stop"))
"""Of the cycle collector, the present one last. Noted without a line of Python: Ctrl-C that came
in one would be lost there."""
gc.callbacks.append(_phases.move_to_end)  # type: ignore[arg-type]  # a dict counts as True


_of_the_parent: "WeakSet[ExchangeLike]" = WeakSet()
"In the child of a fork: those whose threads and links it does not have."


def abandon(exchange: ExchangeLike) -> None:
    """From now on nothing is said through it: it is the parent's."""
    _of_the_parent.add(exchange)


def finalize_safely(exchange: ExchangeLike, call: Callable[[], None]) -> None:
    """Make the last `call` of an object that is going.

    The cycle collector comes in the middle of anything: this thread may hold any lock. What it
    takes away has its last call from the I/O thread, soon.
    """
    if exchange in _of_the_parent:
        return
    if next(reversed(_phases)) == "start":
        with suppress(ZError):  # a closed session has ended all
            exchange.call_later(0.0, call)
    else:
        call()
