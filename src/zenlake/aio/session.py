"""Session for asyncio: the names of the session API; calls that may wait are awaited.

Knows which calls wait, and runs those off the loop. Does not know the protocol.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from zenlake import api
from zenlake.aio.handler import Declaration, Handler, IntoHandler, Receiver, receive, wait_delivered
from zenlake.aio.pubsub import Publisher, Subscriber
from zenlake.aio.query import Liveliness, Querier, Query, Queryable, Replies, get
from zenlake.aio.sending import SendGate
from zenlake.api.arguments import IntoKeyExpr
from zenlake.api.config.config import Config
from zenlake.api.discovery.info import LinkEvent, TransportEvent
from zenlake.api.discovery.scouting import Hello
from zenlake.api.forwarding import (
    Attribute,
    forward_method,
    forward_property,
    shown_as,
    signature_of,
)
from zenlake.api.query.options import GetOptions
from zenlake.api.values.enums import (
    Locality,
    Priority,
    WhatAmI,
    WhatAmIMatcher,
)
from zenlake.api.values.ids import EntityGlobalId
from zenlake.api.values.instrumentation import TimestampContext
from zenlake.api.values.reply import Reply
from zenlake.api.values.sample import Sample
from zenlake.api.values.selector import IntoSelector
from zenlake.api.values.zbytes import IntoZBytes
from zenlake.keyexpr import KeyExpr

if TYPE_CHECKING:
    from zenlake.columnar.record_batch import IntoRecordBatch


class Session:
    """Session for any number of event loops. Leaving `async with` closes it."""

    def __init__(self, session: api.Session) -> None:
        self._entity = session
        self._kept: set[Handler[Any]] = set()
        self._gates: defaultdict[Priority, SendGate] = defaultdict(SendGate)

    # ---- itself

    id: Attribute[EntityGlobalId] = forward_property(api.Session.id)
    zid = forward_method(api.Session.zid)
    is_closed = forward_method(api.Session.is_closed)
    new_timestamp = forward_method(api.Session.new_timestamp)
    stats = forward_method(api.Session.stats)
    has_room = forward_method(api.Session.has_room)

    @property
    def info(self) -> "SessionInfo":
        """Transports and links of this session, and the nodes they lead to."""
        return SessionInfo(self._entity.info, self._kept)

    async def close(self) -> None:
        """Undeclare everything, close all transports, and wait for callbacks of received items."""
        await asyncio.to_thread(self._entity.close)
        await wait_delivered(self._kept)
        self._kept.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_args: object) -> None:
        await self.close()

    async def undeclare(self, obj: KeyExpr | Declaration) -> None:
        """Undeclare what this session declared: a key expression, a subscriber, a publisher…"""
        if isinstance(obj, KeyExpr):
            self._entity.undeclare(obj)
        else:
            await obj.undeclare()

    # ---- sending

    @signature_of(api.Session.put)
    async def put(self, key_expr: IntoKeyExpr, payload: IntoZBytes, **options: Any) -> None:
        """Publish `payload` on `key_expr`; wait while there is no room and it must not be dropped.

        A put that is cancelled while it waits may or may not be sent.
        """
        await self._send(
            partial(self._entity.put, key_expr, payload, **options), options.get("priority")
        )

    @signature_of(api.Session.delete)
    async def delete(self, key_expr: IntoKeyExpr, **options: Any) -> None:
        """Publish that `key_expr` no longer has a value; wait as `put` does."""
        await self._send(partial(self._entity.delete, key_expr, **options), options.get("priority"))

    async def _send(self, call: Callable[[], None], priority: Priority | None) -> None:
        await self._gate(priority).send(call, waits=not self._entity.has_room(priority))

    async def put_batch(self, batch: "IntoRecordBatch") -> int:
        """Publish every row of `batch`; return their number. Waits for room; drops nothing."""
        gate = self._gate(Priority.DEFAULT)
        return await gate.send(partial(self._entity.put_batch, batch), waits=True)

    def _gate(self, priority: Priority | None) -> SendGate:
        return self._gates[priority or Priority.DEFAULT]

    @shown_as(api.Session.get)
    async def get(
        self,
        selector: IntoSelector,
        handler: IntoHandler[Reply] = None,
        **options: Unpack[GetOptions],
    ) -> Replies:
        """Send a query; replies go to the returned Replies, or to the callback.

        Returns as soon as the query is sent: `async for reply in await session.get("a/**")`.
        """
        token = options.pop("cancellation_token", None)
        ask = partial(self._entity.get, selector, **options)
        return await get(ask, self._gate(options.get("priority")), handler, token, self._kept)

    # ---- declaring

    async def declare_keyexpr(self, key_expr: IntoKeyExpr) -> KeyExpr:
        """Declare a key expression that is used often."""
        return self._entity.declare_keyexpr(key_expr)

    @signature_of(api.Session.declare_publisher)
    async def declare_publisher(self, key_expr: IntoKeyExpr, **options: Any) -> Publisher:
        """Declare a publisher on `key_expr`."""
        return Publisher(self._entity.declare_publisher(key_expr, **options), self._kept)

    async def declare_subscriber(
        self,
        key_expr: IntoKeyExpr,
        handler: IntoHandler[Sample] = None,
        *,
        allowed_origin: Locality | None = None,
    ) -> Subscriber:
        """Declare a subscriber of `key_expr` that receives on the running loop."""
        declare = partial(self._entity.declare_subscriber, key_expr, allowed_origin=allowed_origin)
        return receive(Subscriber, handler, declare, self._kept)

    async def declare_queryable(
        self,
        key_expr: IntoKeyExpr,
        handler: IntoHandler[Query] = None,
        *,
        complete: bool | None = None,
        allowed_origin: Locality | None = None,
    ) -> Queryable:
        """Declare a queryable on `key_expr` that receives on the running loop."""
        declare = partial(
            self._entity.declare_queryable,
            key_expr,
            complete=complete,
            allowed_origin=allowed_origin,
        )
        wrap = partial(Query, SendGate())
        return receive(Queryable, handler, declare, self._kept, wrap)

    @signature_of(api.Session.declare_querier)
    async def declare_querier(self, key_expr: IntoKeyExpr, **options: Any) -> Querier:
        """Declare a querier on `key_expr`."""
        return Querier(self._entity.declare_querier(key_expr, **options), self._kept)

    def liveliness(self) -> Liveliness:
        """Return the API for liveliness tokens."""
        gate = self._gate(Priority.DEFAULT)
        return Liveliness(self._entity.liveliness(), gate, self._kept)


class TransportEventsListener(Receiver[TransportEvent]):
    """Receiver of transports that open (PUT) and close (DELETE)."""

    _what = "transport events listener"


class LinkEventsListener(Receiver[LinkEvent]):
    """Receiver of links that open (PUT) and close (DELETE)."""

    _what = "link events listener"


class SessionInfo:
    """Nodes, transports and links of a session. Only the listeners are awaited."""

    def __init__(self, info: api.SessionInfo, kept: set[Handler[Any]]) -> None:
        self._entity = info
        self._kept = kept

    zid = forward_method(api.SessionInfo.zid)
    routers_zid = forward_method(api.SessionInfo.routers_zid)
    peers_zid = forward_method(api.SessionInfo.peers_zid)
    transports = forward_method(api.SessionInfo.transports)
    links = forward_method(api.SessionInfo.links)

    async def declare_transport_events_listener(
        self, handler: IntoHandler[TransportEvent] = None, *, history: bool | None = None
    ) -> TransportEventsListener:
        """Receive an event when a transport opens or closes; with `history` also for open ones."""
        declare = partial(self._entity.declare_transport_events_listener, history=history)
        return receive(TransportEventsListener, handler, declare, self._kept)

    async def declare_link_events_listener(
        self, handler: IntoHandler[LinkEvent] = None, *, history: bool | None = None
    ) -> LinkEventsListener:
        """Receive an event when a link opens or closes; with `history` also for open ones."""
        declare = partial(self._entity.declare_link_events_listener, history=history)
        return receive(LinkEventsListener, handler, declare, self._kept)


class Scout(Receiver[Hello]):
    """Receiver of nodes that answer: `async for hello in scout`, until `stop`."""

    _what = "scout"

    async def _end(self) -> None:
        await asyncio.to_thread(self._entity.stop)

    async def stop(self) -> None:
        """Stop asking."""
        await self.undeclare()


_scouts: set[Handler[Any]] = set()
"Scouts with callbacks, until they are stopped."


async def scout(
    handler: IntoHandler[Hello] = None,
    what: WhatAmIMatcher | WhatAmI | str | None = None,
    config: Config | None = None,
) -> Scout:
    """Look for routers and peers, until the Scout is stopped or its last reference goes."""
    start = partial(api.scout, what=what, config=config)
    return receive(Scout, handler, start, _scouts)


async def open(  # noqa: A001 - as in the session API
    config: Config,
    *,
    timestamp_callback: Callable[[TimestampContext], bytes] | None = None,
) -> Session:
    """Open a session: `async with await zenlake.aio.open(config) as session`.

    A session that opens after this was cancelled is closed at once: nothing refers to it.
    """
    opened = await asyncio.to_thread(api.open, config, timestamp_callback=timestamp_callback)
    return Session(opened)
