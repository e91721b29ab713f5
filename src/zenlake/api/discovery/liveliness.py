"""Liveliness: tokens that are alive as long as their session, and who wants to know of them.

Knows tokens as key expressions. Does not know how their end is noticed: routing tells.
"""

from contextlib import suppress
from functools import partial
from typing import Any, cast

from zenlake.api.arguments import IntoKeyExpr, instance, key_of, seconds
from zenlake.api.discovery.matching import SessionInterests
from zenlake.api.entity import Entity
from zenlake.api.gc_finalize import ExchangeLike, finalize_safely
from zenlake.api.handlers import Sink, make_sink
from zenlake.api.pubsub.subscriber import Subscriber, SubscriberEntry
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.query.get import PendingGet, SessionQueries
from zenlake.api.values.enums import Locality
from zenlake.api.values.sample import Sample
from zenlake.api.values.wrapped import Unconstructed, make
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.wire import qos
from zenlake.wire.declare import Declare, DeclareToken, UndeclareToken
from zenlake.wire.delete import Del
from zenlake.wire.enums import Mapping
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

_ALIVE, _GONE = Put(), Del()


class LivelinessToken(Entity):
    """Others see its key as alive until it is undeclared, or its session ends."""

    _what = "LivelinessToken"
    _given_by = "session.liveliness().declare_token"

    def __init__(self, exchange: ExchangeLike, key: KeyExpr) -> None:
        self._key_expr = key
        self._exchange = exchange
        self._number = exchange.next_id()
        body = DeclareToken(self._number, WireExpr(0, key, Mapping.SENDER))
        exchange.send(Declare(body, qos=qos.DECLARE))
        self._undeclared = False

    def undeclare(self, /) -> None:
        """It is alive no more."""
        self._check()
        self._undeclared = True
        _undeclare(self._exchange, self._number)

    def __del__(self) -> None:
        if not self._undeclared:
            finalize_safely(self._exchange, partial(_undeclare, self._exchange, self._number))

    def __repr__(self) -> str:
        self._check()
        return f"LivelinessToken({self._key_expr!r})"


def _undeclare(exchange: ExchangeLike, number: int) -> None:
    with suppress(ZError):  # the tokens of a closed session are gone
        exchange.send(Declare(UndeclareToken(number), qos=qos.DECLARE))


class _TokenSubscription:
    """A liveliness subscriber, as Interests knows it."""

    def __init__(self, key: KeyExpr, history: bool, sink: Sink[Sample]) -> None:
        self.key = key
        self.history = history
        self._sink = sink

    def token(self, key: str, alive: bool) -> None:
        self._sink.push((Sample.of(key, _ALIVE if alive else _GONE, qos.DEFAULT),), 1)

    def end(self) -> None:
        self._sink.close()


class _TokenSubscriberHandle:
    """What a Subscriber needs to undeclare itself, for those of tokens."""

    def __init__(self, interests: SessionInterests) -> None:
        self.exchange = interests.exchange
        self._interests = interests

    def undeclare(self, declared: SubscriberEntry) -> None:
        self._interests.unwatch_tokens(declared.id)
        declared.sink.close()


class Liveliness(metaclass=Unconstructed):
    """Tokens, and how to find out about them; made by `Session.liveliness`."""

    _given_by = "session.liveliness()"

    def __init__(self, interests: SessionInterests, queries: SessionQueries) -> None:
        self._exchange = interests.exchange
        self._interests = interests
        self._queries = queries

    def declare_token(self, /, key_expr: IntoKeyExpr) -> LivelinessToken:
        """Be alive on `key_expr`: everybody who asks about it is told, also when that ends."""
        return make(LivelinessToken, self._exchange, key_of(key_expr))

    def get(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: Any = None,
        *,
        timeout: float | None = None,
        cancellation_token: CancellationToken | None = None,
    ) -> Any:
        """The tokens that are alive now, each key once, as replies with an empty sample."""
        key = key_of(key_expr)
        limit = seconds(timeout, self._exchange.query_timeout)
        if cancellation_token is not None:
            instance("cancellation_token", cancellation_token, CancellationToken)
        if self._exchange.closed:
            raise ZError("session closed")

        def send(get: PendingGet) -> None:
            self._interests.ask_tokens(get.id, key, get)

        return self._queries.ask_tokens(
            key, handler, limit, cancellation_token, send, self._interests.forget_question
        )

    def declare_subscriber(
        self, /, key_expr: IntoKeyExpr, handler: Any = None, *, history: bool | None = None
    ) -> Subscriber[Any]:
        """Receive a PUT for each token that appears, a DELETE for each that goes.

        With `history`, also a PUT for each that is there already.
        """
        key = key_of(key_expr)
        if self._exchange.closed:
            raise ZError("session closed")
        sink, reader, background = make_sink(handler, f"zenlake liveliness {key}")
        number = self._interests.watch_tokens(_TokenSubscription(key, bool(history), sink))
        declared = SubscriberEntry({number: key}, Locality.ANY, sink)
        return make(
            Subscriber,
            cast(Any, _TokenSubscriberHandle(self._interests)),
            declared,
            reader,
            background,
        )

    def __repr__(self) -> str:
        return f"Liveliness({self._exchange.zid})"
