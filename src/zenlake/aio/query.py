"""Queries for asyncio: asking, answering, liveliness.

Knows the names and arguments of the session API, and that a get that is given up ends its query.
Does not know how a query travels.
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
    forwarded,
    plan_for,
    receive,
)
from zenlake.aio.options import QuerierGetOptions, ReplyDelOptions, ReplyOptions, signature_of
from zenlake.aio.pubsub import Sender, Subscriber
from zenlake.aio.sending import SendGate
from zenlake.api.arguments import IntoKeyExpr
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.values.encoding import IntoEncoding
from zenlake.api.values.enums import ReplyKeyExpr
from zenlake.api.values.reply import Reply
from zenlake.api.values.sample import Sample
from zenlake.api.values.zbytes import IntoZBytes


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

    async def __aexit__(self, *_args: object) -> None:
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

    key_expr = forwarded(api.Querier.key_expr)
    id = forwarded(api.Querier.id)
    matching_status = forwarded(api.Querier.matching_status)
    accept_replies = forwarded(api.Querier.accept_replies)

    @signature_of(api.Querier.get)
    async def get(
        self, handler: IntoHandler[Reply] = None, **options: Unpack[QuerierGetOptions]
    ) -> Replies:
        """Ask; what is answered comes from the Replies, or to the callback."""
        token = options.pop("cancellation_token", None)
        ask = partial(self._entity.get, **options)
        return await get(ask, self._gate, handler, token, self._kept)


class Query:
    """What somebody asks. Answer it as often as you like, then drop it: with `async with` or
    `with`, by `drop()`, or by letting go of it. Only then is the query over for the other side.
    """

    __slots__ = ("_entity", "_gate")

    def __init__(self, gate: SendGate, query: api.Query) -> None:
        self._gate = gate
        self._entity = query

    selector = forwarded(api.Query.selector)
    key_expr = forwarded(api.Query.key_expr)
    parameters = forwarded(api.Query.parameters)
    payload = forwarded(api.Query.payload)
    encoding = forwarded(api.Query.encoding)
    attachment = forwarded(api.Query.attachment)
    source_info = forwarded(api.Query.source_info)
    timestamp_stack = forwarded(api.Query.timestamp_stack)

    def accepts_replies(self) -> ReplyKeyExpr:
        """Which keys a reply may have."""
        return self._entity.accepts_replies()

    @signature_of(api.Query.reply)
    async def reply(
        self, key_expr: IntoKeyExpr, payload: IntoZBytes, **options: Unpack[ReplyOptions]
    ) -> None:
        """Answer with a value."""
        call = partial(self._entity.reply, key_expr, payload, **options)
        await self._gate.send(call, waits=False)

    @signature_of(api.Query.reply_del)
    async def reply_del(self, key_expr: IntoKeyExpr, **options: Unpack[ReplyDelOptions]) -> None:
        """Answer that the key's value is no more."""
        call = partial(self._entity.reply_del, key_expr, **options)
        await self._gate.send(call, waits=False)

    async def reply_err(self, payload: IntoZBytes, *, encoding: IntoEncoding | None = None) -> None:
        """Answer with an error."""
        await self._gate.send(
            partial(self._entity.reply_err, payload, encoding=encoding), waits=False
        )

    def drop(self) -> None:
        """No more answers. May be repeated."""
        self._entity.drop()

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
    """Queries for keys that match its key expression: `async for query in queryable`."""

    _what = "queryable"

    key_expr = forwarded(api.Queryable.key_expr)
    id = forwarded(api.Queryable.id)


class LivelinessToken(Declaration):
    """Says that it is alive until it is undeclared, let go, or its session is gone."""

    def __init__(self, token: api.LivelinessToken) -> None:
        self._token = token

    async def undeclare(self) -> None:
        """Say that it is gone."""
        self._undeclared = True
        self._token.undeclare()


class Liveliness:
    """Who is alive: tokens, and those who watch them."""

    def __init__(self, liveliness: api.Liveliness, gate: SendGate, kept: MutableSet[Any]) -> None:
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
