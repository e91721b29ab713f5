"""Queries for asyncio: asking, answering, liveliness.

Knows the names and arguments of the session API, and that a cancelled get ends its query. Does not
know how a query travels.
"""

import asyncio
from collections.abc import Callable, MutableSet
from contextlib import suppress
from functools import partial
from typing import Any, Self, Unpack

from zenlake import api
from zenlake.aio.handler import (
    Declaration,
    Handler,
    HandlerPlan,
    IntoHandler,
    Receiver,
    plan_for,
    receive,
)
from zenlake.aio.pubsub import Sender, Subscriber
from zenlake.aio.sending import SendGate
from zenlake.api.arguments import IntoKeyExpr
from zenlake.api.discovery.matching import MatchingStatus
from zenlake.api.forwarding import (
    Attribute,
    forward_method,
    forward_property,
    shown_as,
    signature_of,
)
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.query.options import QuerierGetOptions
from zenlake.api.query.query import has_room
from zenlake.api.values.encoding import Encoding, IntoEncoding
from zenlake.api.values.enums import ReplyKeyExpr
from zenlake.api.values.ids import EntityGlobalId, SourceInfo
from zenlake.api.values.instrumentation import TimestampStack
from zenlake.api.values.reply import Reply
from zenlake.api.values.sample import Sample
from zenlake.api.values.selector import Parameters, Selector
from zenlake.api.values.zbytes import IntoZBytes, ZBytes
from zenlake.keyexpr import KeyExpr


class Replies(Handler[Reply]):
    """Replies to one get: `async for reply in replies`.

    The query ends with its last reply. It is cancelled by `cancel`, by leaving `async with`, when
    the last reference to this object goes, and when a task is cancelled in `async for`; not by a
    cancelled `recv`. A token of the caller's own is never cancelled here.
    """

    _what = "get"

    def __init__(self, plan: HandlerPlan, token: CancellationToken | None) -> None:
        super().__init__(plan)
        self._token = token

    def cancel(self) -> None:
        """End the query: waiting replies are dropped, and no more follow."""
        self._sink.abandon()
        token, self._token = self._token, None
        if token is not None:
            token.cancel()

    async def done(self) -> None:
        """Wait until the callback has had the last reply."""
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

    async def __aexit__(self, *_args: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        token = getattr(self, "_token", None)
        if token is None or self._callback is not None or self._sink.closed:
            return
        with suppress(RuntimeError):  # The loop is closed.
            # Not called here: any lock may be held.
            self._sink.loop.call_soon_threadsafe(token.cancel)
        self._sink.abandon()


async def get(
    ask: Callable[..., object],
    gate: SendGate,
    handler: object,
    cancellation_token: CancellationToken | None,
    kept: MutableSet[Handler[Any]],
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
    """Sends queries on one key expression with the same options."""

    _what = "querier"

    key_expr: Attribute[KeyExpr] = forward_property(api.Querier.key_expr)
    id: Attribute[EntityGlobalId] = forward_property(api.Querier.id)
    matching_status: Attribute[MatchingStatus] = forward_property(api.Querier.matching_status)
    accept_replies: Attribute[ReplyKeyExpr] = forward_property(api.Querier.accept_replies)

    @shown_as(api.Querier.get)
    async def get(
        self, handler: IntoHandler[Reply] = None, **options: Unpack[QuerierGetOptions]
    ) -> Replies:
        """Send a query; replies go to the returned Replies, or to the callback."""
        token = options.pop("cancellation_token", None)
        ask = partial(self._entity.get, **options)
        return await get(ask, self._gate, handler, token, self._kept)


class Query:
    """Query received by a queryable.

    Reply any number of times, then drop it: with `async with` or `with`, by `drop()`, or by
    deleting the last reference. Only then is the query over for the other side.
    """

    __slots__ = ("_entity", "_gate")

    def __init__(self, gate: SendGate, query: api.Query) -> None:
        self._gate = gate
        self._entity = query

    selector: Attribute[Selector] = forward_property(api.Query.selector)
    key_expr: Attribute[KeyExpr] = forward_property(api.Query.key_expr)
    parameters: Attribute[Parameters] = forward_property(api.Query.parameters)
    payload: Attribute[ZBytes | None] = forward_property(api.Query.payload)
    encoding: Attribute[Encoding | None] = forward_property(api.Query.encoding)
    attachment: Attribute[ZBytes | None] = forward_property(api.Query.attachment)
    source_info: Attribute[SourceInfo | None] = forward_property(api.Query.source_info)
    timestamp_stack: Attribute[TimestampStack | None] = forward_property(api.Query.timestamp_stack)
    accepts_replies = forward_method(api.Query.accepts_replies)
    drop = forward_method(api.Query.drop)

    @signature_of(api.Query.reply)
    async def reply(self, key_expr: IntoKeyExpr, payload: IntoZBytes, **options: Any) -> None:
        """Reply with a value for `key_expr`."""
        call = partial(self._entity.reply, key_expr, payload, **options)
        await self._gate.send(call, waits=not has_room(self._entity))

    @signature_of(api.Query.reply_del)
    async def reply_del(self, key_expr: IntoKeyExpr, **options: Any) -> None:
        """Reply that `key_expr` has no value."""
        call = partial(self._entity.reply_del, key_expr, **options)
        await self._gate.send(call, waits=not has_room(self._entity))

    async def reply_err(self, payload: IntoZBytes, *, encoding: IntoEncoding | None = None) -> None:
        """Reply with an error."""
        await self._gate.send(
            partial(self._entity.reply_err, payload, encoding=encoding),
            waits=not has_room(self._entity),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, /, *_args: object, **_kwargs: object) -> None:
        self.drop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_args: object) -> None:
        self.drop()

    def __str__(self) -> str:
        return str(self._entity)


class Queryable(Receiver[Query]):
    """Receiver of queries on its key expression: `async for query in queryable`."""

    _what = "queryable"

    key_expr: Attribute[KeyExpr] = forward_property(api.Queryable.key_expr)
    id: Attribute[EntityGlobalId] = forward_property(api.Queryable.id)


class LivelinessToken(Declaration):
    """Liveliness token: alive until undeclared, its last reference goes, or its session ends."""

    _what = "LivelinessToken"


class Liveliness:
    """API for liveliness tokens."""

    def __init__(
        self, liveliness: api.Liveliness, gate: SendGate, kept: MutableSet[Handler[Any]]
    ) -> None:
        self._liveliness = liveliness
        self._gate = gate
        self._kept = kept

    async def declare_token(self, key_expr: IntoKeyExpr) -> LivelinessToken:
        """Declare a token on `key_expr`."""
        return LivelinessToken(self._liveliness.declare_token(key_expr), self._kept)

    async def declare_subscriber(
        self,
        key_expr: IntoKeyExpr,
        handler: IntoHandler[Sample] = None,
        *,
        history: bool | None = None,
    ) -> Subscriber:
        """Receive a PUT for each token that appears and a DELETE for each that ends.

        With `history`, also a PUT for each token that is alive already.
        """
        declare = partial(self._liveliness.declare_subscriber, key_expr, history=history)
        return receive(Subscriber, handler, declare, self._kept)

    async def get(
        self,
        key_expr: IntoKeyExpr,
        handler: IntoHandler[Reply] = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the query's, as in the session API
        cancellation_token: CancellationToken | None = None,
    ) -> Replies:
        """Query the tokens that are alive now: one reply per token."""
        ask = partial(self._liveliness.get, key_expr, timeout=timeout)
        return await get(ask, self._gate, handler, cancellation_token, self._kept)
