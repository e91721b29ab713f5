"""Queries for asyncio: asking, answering, liveliness.

Knows the names and arguments of the session API, and that a get that is given up ends its query.
Does not know how a query travels.
"""

import asyncio
from collections.abc import Callable, MutableSet
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from zenlake.aio.handler import Handler, HandlerPlan, IntoHandler, Receiver, plan_for, receive
from zenlake.aio.pubsub import Sender, Subscriber
from zenlake.aio.sending import SendGate
from zenlake.api.arguments import IntoKeyExpr
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.query.query import Query as SyncQuery
from zenlake.api.values.encoding import Encoding, IntoEncoding
from zenlake.api.values.enums import CongestionControl, Priority, ReplyKeyExpr
from zenlake.api.values.ids import EntityGlobalId, SourceInfo
from zenlake.api.values.instrumentation import TimestampInstrumentation, TimestampStack
from zenlake.api.values.reply import Reply
from zenlake.api.values.sample import Sample
from zenlake.api.values.selector import IntoParameters, Parameters, Selector
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.zbytes import IntoZBytes, ZBytes
from zenlake.keyexpr import KeyExpr


class Replies(Handler[Reply]):
    """The replies to one get, as they come: `async for reply in replies`.

    The query ends with its last reply. It is cancelled by `cancel`, by leaving `async with`, by
    letting go of this object, and when a task is cancelled in `async for`; not by a cancelled
    `recv`. A token of the caller's own is never cancelled here.
    """

    _what = "get"

    def __init__(self, plan: HandlerPlan, token: CancellationToken | None) -> None:
        super().__init__(plan)
        self._token = token

    def cancel(self) -> None:
        """End the query: no more replies come, and those that wait are dropped."""
        self._sink.abandon()
        token, self._token = self._token, None
        if token is not None:
            token.cancel()

    async def done(self) -> None:
        """Until the callback has had the last reply."""
        while not await self._sink.delivered():
            pass

    async def __anext__(self) -> Reply:
        try:
            return await super().__anext__()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        token = getattr(self, "_token", None)
        if token is None or self._callback is not None or self._sink.closed:
            return
        with suppress(RuntimeError):  # the loop is closed
            self._sink.loop.call_soon_threadsafe(token.cancel)  # not here: any lock may be held
        self._sink.abandon()


async def get(
    ask: Callable[..., object],
    gate: SendGate,
    handler: object,
    cancellation_token: CancellationToken | None,
    kept: MutableSet[Any],
) -> Replies:
    """Send a query with `ask(handler=…, cancellation_token=…)`."""
    plan = plan_for(handler)
    token = cancellation_token or CancellationToken()
    replies = Replies(plan, token if cancellation_token is None else None)
    try:
        await gate.send(partial(ask, handler=plan.sink, cancellation_token=token), waits=False)
    except asyncio.CancelledError:
        replies.cancel()
        raise
    plan.start()
    if plan.background:
        kept.add(replies)
        plan.sink.when_delivered(partial(kept.discard, replies))
    return replies


class Querier(Sender):
    """Gets on one key expression, with the same target, timeout and QoS every time."""

    _what = "querier"

    @property
    def accept_replies(self) -> ReplyKeyExpr:
        """Which keys a reply may have."""
        found: ReplyKeyExpr = self._entity.accept_replies
        return found

    async def get(
        self,
        handler: IntoHandler[Reply] = None,
        *,
        parameters: IntoParameters | None = None,
        payload: IntoZBytes | None = None,
        encoding: IntoEncoding | None = None,
        attachment: IntoZBytes | None = None,
        source_info: SourceInfo | None = None,
        cancellation_token: CancellationToken | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
    ) -> Replies:
        """Ask; what is answered comes from the Replies, or to the callback."""
        ask = partial(
            self._entity.get,
            parameters=parameters,
            payload=payload,
            encoding=encoding,
            attachment=attachment,
            source_info=source_info,
            timestamp_instrumentation=timestamp_instrumentation,
        )
        return await get(ask, self._gate, handler, cancellation_token, self._kept)


class Query:
    """What somebody asks. Answer it as often as you like, then drop it: with `async with` or
    `with`, by `drop()`, or by letting go of it. Only then is the query over for the other side.
    """

    __slots__ = ("_gate", "_query")

    def __init__(self, gate: SendGate, query: SyncQuery) -> None:
        self._gate = gate
        self._query = query

    @property
    def selector(self) -> Selector:
        """The key expression and the parameters."""
        return self._query.selector

    @property
    def key_expr(self) -> KeyExpr:
        """The keys that are asked for."""
        return self._query.key_expr

    @property
    def parameters(self) -> Parameters:
        """What stands behind the `?` of the selector."""
        return self._query.parameters

    @property
    def payload(self) -> ZBytes | None:
        """What was sent with the query."""
        return self._query.payload

    @property
    def encoding(self) -> Encoding | None:
        """Of the payload."""
        return self._query.encoding

    @property
    def attachment(self) -> ZBytes | None:
        """What was sent beside the payload."""
        return self._query.attachment

    @property
    def source_info(self) -> SourceInfo | None:
        """Who asks, if they said so."""
        return self._query.source_info

    @property
    def timestamp_stack(self) -> TimestampStack | None:
        """When it passed where, if that was asked for."""
        return self._query.timestamp_stack

    def accepts_replies(self) -> ReplyKeyExpr:
        """Which keys a reply may have."""
        return self._query.accepts_replies()

    async def reply(
        self,
        key_expr: IntoKeyExpr,
        payload: IntoZBytes,
        *,
        encoding: IntoEncoding | None = None,
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
    ) -> None:
        """Answer with a value."""
        call = partial(
            self._query.reply,
            key_expr,
            payload,
            encoding=encoding,
            congestion_control=congestion_control,
            priority=priority,
            express=express,
            attachment=attachment,
            timestamp=timestamp,
        )
        await self._gate.send(call, waits=False)

    async def reply_del(
        self,
        key_expr: IntoKeyExpr,
        *,
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
    ) -> None:
        """Answer that the key's value is no more."""
        call = partial(
            self._query.reply_del,
            key_expr,
            congestion_control=congestion_control,
            priority=priority,
            express=express,
            attachment=attachment,
            timestamp=timestamp,
        )
        await self._gate.send(call, waits=False)

    async def reply_err(self, payload: IntoZBytes, *, encoding: IntoEncoding | None = None) -> None:
        """Answer with an error."""
        await self._gate.send(
            partial(self._query.reply_err, payload, encoding=encoding), waits=False
        )

    def drop(self) -> None:
        """No more answers. May be repeated."""
        self._query.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, /, *_args: object, **_kwargs: object) -> None:
        self.drop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.drop()

    def __str__(self) -> str:
        return str(self._query)


class Queryable(Receiver[Query]):
    """Queries for keys that match its key expression: `async for query in queryable`."""

    _what = "queryable"

    @property
    def key_expr(self) -> KeyExpr:
        """What it answers for."""
        key: KeyExpr = self._entity.key_expr
        return key

    @property
    def id(self) -> EntityGlobalId:
        """Its id in the whole network."""
        found: EntityGlobalId = self._entity.id
        return found


class LivelinessToken:
    """Says that it is alive until it is undeclared, let go, or its session is gone."""

    def __init__(self, token: Any) -> None:
        self._token = token
        self._undeclared = False

    async def undeclare(self) -> None:
        """Say that it is gone."""
        self._undeclared = True
        self._token.undeclare()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if not self._undeclared:
            await self.undeclare()


class Liveliness:
    """Who is alive: tokens, and those who watch them."""

    def __init__(self, liveliness: Any, gate: SendGate, kept: MutableSet[Any]) -> None:
        self._liveliness = liveliness
        self._gate = gate
        self._kept = kept

    async def declare_token(self, key_expr: IntoKeyExpr) -> LivelinessToken:
        """A token on `key_expr`."""
        return LivelinessToken(self._liveliness.declare_token(key_expr))

    async def declare_subscriber(
        self,
        key_expr: IntoKeyExpr,
        handler: IntoHandler[Sample] = None,
        *,
        history: bool | None = None,
    ) -> Subscriber:
        """A PUT for every token that appears, a DELETE for every one that goes.

        `history`: also those that are alive already.
        """
        declare = partial(self._liveliness.declare_subscriber, key_expr, history=history)
        return receive(Subscriber, handler, lambda sink: declare(handler=sink), self._kept)

    async def get(
        self,
        key_expr: IntoKeyExpr,
        handler: IntoHandler[Reply] = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the query's, as in the session API
        cancellation_token: CancellationToken | None = None,
    ) -> Replies:
        """A reply for every token that is alive."""
        ask = partial(self._liveliness.get, key_expr, timeout=timeout)
        return await get(ask, self._gate, handler, cancellation_token, self._kept)
