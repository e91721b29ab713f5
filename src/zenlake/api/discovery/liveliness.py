"""Liveliness: tokens that live as long as their session, and subscribers and queries of them.

Knows tokens as key expressions. Does not know how the end of a session is noticed: routing is told.
"""

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar, final, overload

from zenlake.api.arguments import IntoKeyExpr, check_timeout, instance, key_of, member
from zenlake.api.discovery.matching import SessionInterests, TokenWatch
from zenlake.api.entity import Entity
from zenlake.api.exchange_protocol import ExchangeLike
from zenlake.api.handlers import CallbackAnd, Handler, IntoCallback, IntoChannel, make_sink
from zenlake.api.pubsub.subscriber import Subscriber, SubscriberEntry
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.query.get import PendingGet, SessionQueries
from zenlake.api.values.enums import Locality
from zenlake.api.values.reply import Reply
from zenlake.api.values.sample import Sample
from zenlake.api.values.wrapped import Unconstructed, make
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.wire import qos
from zenlake.wire.declare import Declare, DeclareToken, UndeclareToken
from zenlake.wire.enums import Mapping
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    from zenlake.api.pubsub.arrow import ArrowBatches
    from zenlake.columnar.record_batch import RecordBatch

H = TypeVar("H")


@final
class LivelinessToken(Entity):
    """Liveliness token: other sessions see its key as alive until it is undeclared or its session
    ends.
    """

    _what = "LivelinessToken"
    _given_by = "session.liveliness().declare_token"

    def __init__(self, exchange: ExchangeLike, key: KeyExpr) -> None:
        self._key_expr = key
        number = exchange.next_id()
        body = DeclareToken(number, WireExpr(0, key, Mapping.SENDER))
        exchange.send(Declare(body, qos=qos.DECLARE))
        super().__init__(exchange, partial(_undeclare, exchange, number))

    def __repr__(self) -> str:
        self._check()
        return f"LivelinessToken({self._key_expr!r})"


def _undeclare(exchange: ExchangeLike, number: int) -> None:
    with suppress(ZError):  # The tokens of a closed session are gone already.
        exchange.send(Declare(UndeclareToken(number), qos=qos.DECLARE))


@final
class Liveliness(metaclass=Unconstructed):
    """API for liveliness tokens; made by `Session.liveliness`."""

    _given_by = "session.liveliness()"

    def __init__(self, interests: SessionInterests, queries: SessionQueries) -> None:
        self._exchange = interests.exchange
        self._interests = interests
        self._queries = queries

    def declare_token(self, /, key_expr: IntoKeyExpr) -> LivelinessToken:
        """Declare a token on `key_expr`; matching liveliness subscribers see it appear and end."""
        return make(LivelinessToken, self._exchange, key_of(key_expr))

    @overload
    def get(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: IntoChannel[Reply] = None,
        *,
        timeout: float | None = None,
        cancellation_token: CancellationToken | None = None,
    ) -> Handler[Reply]: ...
    @overload
    def get(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: CallbackAnd[Reply, H],
        *,
        timeout: float | None = None,
        cancellation_token: CancellationToken | None = None,
    ) -> H: ...
    @overload
    def get(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: IntoCallback[Reply],
        *,
        timeout: float | None = None,
        cancellation_token: CancellationToken | None = None,
    ) -> None: ...
    def get(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: object = None,
        *,
        timeout: float | None = None,
        cancellation_token: CancellationToken | None = None,
    ) -> object:
        """Query the tokens that are alive now: one reply with an empty sample per key."""
        key = key_of(key_expr)
        limit = check_timeout(timeout, self._exchange.query_timeout)
        if cancellation_token is not None:
            instance("cancellation_token", cancellation_token, CancellationToken)
        if self._exchange.closed:
            raise ZError("session closed")

        def send(get: PendingGet) -> None:
            self._interests.ask_tokens(get.id, key, get)

        return self._queries.ask_tokens(
            key, handler, limit, cancellation_token, send, self._interests.forget_question
        )

    @overload
    def declare_subscriber(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: "ArrowBatches",
        *,
        history: bool | None = None,
    ) -> "Subscriber[Handler[RecordBatch]]": ...
    @overload
    def declare_subscriber(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: IntoChannel[Sample] = None,
        *,
        history: bool | None = None,
    ) -> Subscriber[Handler[Sample]]: ...
    @overload
    def declare_subscriber(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: CallbackAnd[Sample, H],
        *,
        history: bool | None = None,
    ) -> Subscriber[H]: ...
    @overload
    def declare_subscriber(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: IntoCallback[Sample],
        *,
        history: bool | None = None,
    ) -> Subscriber[None]: ...
    def declare_subscriber(
        self, /, key_expr: IntoKeyExpr, handler: object = None, *, history: bool | None = None
    ) -> Subscriber[H]:
        """Receive a PUT for each token that appears and a DELETE for each that ends.

        With `history`, also a PUT for each token that is alive already.
        """
        key = key_of(key_expr)
        if self._exchange.closed:
            raise ZError("session closed")
        sink, reader, background = make_sink(handler, f"zenlake liveliness {key}", of_samples=True)
        number = self._interests.watch_tokens(
            TokenWatch(key, member("history", history, False), sink)
        )
        declared = SubscriberEntry({number: key}, Locality.ANY, sink)
        return make(
            Subscriber, self._exchange, declared, self._undeclare_subscriber, reader, background
        )

    def _undeclare_subscriber(self, declared: SubscriberEntry) -> None:
        self._interests.unwatch_tokens(declared.id)
        declared.sink.close()

    def __repr__(self) -> str:
        return f"Liveliness({self._exchange.zid})"
