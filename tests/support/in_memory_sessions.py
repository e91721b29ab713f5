"""Sessions without a network: what one sends is encoded, decoded and handed to the other.

The clock stands still until a test moves it.
"""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

from zenlake.api.discovery.liveliness import Liveliness
from zenlake.api.discovery.matching import SessionInterests
from zenlake.api.exchange_protocol import Stamp, unstamped
from zenlake.api.query.get import SessionQueries, split_selector
from zenlake.api.query.options import QueryData, QueryOptions
from zenlake.api.query.queryable import Queryables
from zenlake.api.values.selector import IntoSelector
from zenlake.api.values.wrapped import make
from zenlake.errors import ZError
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.zenohid import WireZenohId

CONTENT = {*QueryData.__annotations__, "cancellation_token", "timestamp_instrumentation"}


class FakeTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class FakeExchange:
    """Records what is sent; a test hands it on, or `linked` does."""

    def __init__(self, zid: str) -> None:
        self.zid = WireZenohId.parse(zid)
        self.query_timeout = 10.0
        self.closed = False
        self.sent: list[Any] = []
        self.forgotten: list[int] = []
        self.timers: list[tuple[float, int, FakeTimer]] = []
        self.deliver: Callable[[Any], None] = lambda message: None
        self._now = 100.0
        self._ids = count(1)

    def now(self) -> float:
        return self._now

    def send(self, message: NetworkMessage) -> None:
        if self.closed:
            raise ZError("session closed")
        self.sent.append(message)
        self.deliver(again(message))

    def has_reply_room(self, request_id: int) -> bool:
        return True

    def await_reply_room(self, request_id: int) -> None:
        pass

    def forget_query(self, request_id: int) -> None:
        self.forgotten.append(request_id)

    def call_later(self, seconds: float, call: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(call)
        heapq.heappush(self.timers, (self._now + seconds, next(self._ids), timer))
        return timer

    def next_id(self) -> int:
        return next(self._ids)

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self.timers and self.timers[0][0] <= end:
            self._now, _, timer = heapq.heappop(self.timers)
            if timer.call is not None:
                timer.call()
        self._now = end

    def sent_of(self, kind: type) -> list[Any]:
        return [message for message in self.sent if type(message) is kind]


class Side:
    """The parts of a session for queries and liveliness, over a fake exchange."""

    def __init__(self, zid: str = "a1", stamp: Stamp = unstamped) -> None:
        self.exchange = FakeExchange(zid)
        self.interests = SessionInterests(self.exchange)
        self.queryables = Queryables(self.exchange, self.interests, stamp=stamp)
        self.queries = SessionQueries(self.exchange, self.queryables, stamp=stamp)
        self.liveliness = make(Liveliness, self.interests, self.queries)
        self.declare_queryable = self.queryables.declare

    def get(self, selector: IntoSelector, handler: Any = None, **given: Any) -> Any:
        """Ask as `Session.get` does."""
        content = {name: given.pop(name) for name in CONTENT if name in given}
        options = QueryOptions(self.exchange.query_timeout, **given)
        return self.queries.ask(*split_selector(selector), options, handler, **content)

    def receive(self, message: Any) -> None:
        if type(message) is Request:
            self.queryables.on_request(message)
        elif type(message) is Response:
            self.queries.on_response(message)
        elif type(message) is ResponseFinal:
            self.queries.on_final(message.request_id)

    def close(self) -> None:
        self.queries.close()
        self.queryables.close()
        self.interests.close()
        self.exchange.closed = True


def linked(stamp: Stamp = unstamped) -> tuple[Side, Side]:
    """Two sides; each gets the queries and answers of the other at once."""
    one, other = Side("a1", stamp), Side("b2", stamp)
    one.exchange.deliver, other.exchange.deliver = other.receive, one.receive
    return one, other


def again(message: NetworkMessage) -> Any:
    """Return an equal message, written and read by the codec."""
    w = ByteWriter()
    NETWORK.write(w, message)
    r = ByteReader(bytes(w.out))
    return NETWORK.read(r)
