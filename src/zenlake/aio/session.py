"""The session for asyncio: the names of the session API; what may wait is awaited.

Knows which calls wait, and waits for them off the loop. Does not know the protocol.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from zenlake.aio.handler import IntoHandler, Receiver, receive
from zenlake.aio.pubsub import Publisher, Subscriber
from zenlake.aio.query import Liveliness, Querier, Query, Queryable, Replies, get
from zenlake.aio.sending import SendGate
from zenlake.api import session as api
from zenlake.api.arguments import IntoKeyExpr
from zenlake.api.config.config import Config
from zenlake.api.discovery import scouting
from zenlake.api.discovery.info import Link, LinkEvent, Transport, TransportEvent
from zenlake.api.discovery.scouting import Hello
from zenlake.api.discovery.stats import Stats
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.query.get import IntoConsolidation
from zenlake.api.values.encoding import IntoEncoding
from zenlake.api.values.enums import (
    CongestionControl,
    Locality,
    Priority,
    QueryTarget,
    Reliability,
    ReplyKeyExpr,
    WhatAmI,
    WhatAmIMatcher,
)
from zenlake.api.values.ids import EntityGlobalId, SourceInfo, ZenohId
from zenlake.api.values.instrumentation import TimestampContext, TimestampInstrumentation
from zenlake.api.values.reply import Reply
from zenlake.api.values.sample import Sample
from zenlake.api.values.selector import IntoSelector
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.zbytes import IntoZBytes
from zenlake.keyexpr import KeyExpr

if TYPE_CHECKING:
    import pyarrow as pa


class Session:
    """A session, for any number of event loops. Leaving `async with` closes it."""

    def __init__(self, session: api.Session) -> None:
        self._session = session
        self._kept: set[Any] = set()
        self._gates: defaultdict[Priority, SendGate] = defaultdict(SendGate)

    # ---- itself

    @property
    def id(self) -> EntityGlobalId:
        """Its id in the whole network."""
        return self._session.id

    @property
    def info(self) -> "SessionInfo":
        """Whom it is connected with."""
        return SessionInfo(self._session.info, self._kept)

    def zid(self) -> ZenohId:
        """The node's id."""
        return self._session.zid()

    def is_closed(self) -> bool:
        """Whether it has been closed."""
        return self._session.is_closed()

    def new_timestamp(self) -> Timestamp:
        """Now, by the session's clock; later than every timestamp that it has seen."""
        return self._session.new_timestamp()

    def stats(self) -> Stats:
        """What was sent, received and lost, and why."""
        return self._session.stats()

    async def close(self) -> None:
        """Undeclare everything, say good-bye, and wait for the callbacks of what was received."""
        await asyncio.to_thread(self._session.close)
        for receiver in list(self._kept):
            await receiver._sink.delivered()
        self._kept.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.close()

    async def undeclare(self, obj: Any) -> None:
        """Undeclare what this session declared: a key expression, a subscriber, a publisher…"""
        if isinstance(obj, KeyExpr):
            self._session.undeclare(obj)
        else:
            await obj.undeclare()

    # ---- sending

    async def put(
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
        timestamp_instrumentation: TimestampInstrumentation | None = None,
        allowed_destination: Locality | None = None,
        source_info: SourceInfo | None = None,
    ) -> None:
        """Publish `payload` on `key_expr`; waits while there is no room and it must not be dropped.

        A put that is cancelled while it waits may be sent or not.
        """
        call = partial(
            self._session.put,
            key_expr,
            payload,
            encoding=encoding,
            congestion_control=congestion_control,
            priority=priority,
            express=express,
            attachment=attachment,
            timestamp=timestamp,
            timestamp_instrumentation=timestamp_instrumentation,
            allowed_destination=allowed_destination,
            source_info=source_info,
        )
        waits = not self._session.has_room(priority)
        await self._gate(priority).send(call, waits)

    async def delete(
        self,
        key_expr: IntoKeyExpr,
        *,
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
        allowed_destination: Locality | None = None,
        source_info: SourceInfo | None = None,
    ) -> None:
        """Say that the value of `key_expr` is no more; waits as `put` does."""
        call = partial(
            self._session.delete,
            key_expr,
            congestion_control=congestion_control,
            priority=priority,
            express=express,
            attachment=attachment,
            timestamp=timestamp,
            timestamp_instrumentation=timestamp_instrumentation,
            allowed_destination=allowed_destination,
            source_info=source_info,
        )
        waits = not self._session.has_room(priority)
        await self._gate(priority).send(call, waits)

    def has_room(self, priority: Priority | None = None) -> bool:
        """Whether a put of this priority would leave at once: neither wait nor be dropped."""
        return self._session.has_room(priority)

    async def put_batch(self, batch: "pa.RecordBatch") -> int:
        """Publish every row of `batch` at once; gives how many. Waits; nothing is dropped."""
        gate = self._gate(Priority.DEFAULT)
        return await gate.send(partial(self._session.put_batch, batch), waits=True)

    def _gate(self, priority: Priority | None) -> SendGate:
        return self._gates[priority or Priority.DEFAULT]

    async def get(
        self,
        selector: IntoSelector,
        handler: IntoHandler[Reply] = None,
        *,
        target: QueryTarget | None = None,
        consolidation: IntoConsolidation | None = None,
        accept_replies: ReplyKeyExpr | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the query's, as in the session API
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        payload: IntoZBytes | None = None,
        encoding: IntoEncoding | None = None,
        attachment: IntoZBytes | None = None,
        allowed_destination: Locality | None = None,
        source_info: SourceInfo | None = None,
        cancellation_token: CancellationToken | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
    ) -> Replies:
        """Ask; what is answered comes from the Replies, or to the callback.

        Returned as soon as the query is sent: `async for reply in await session.get("a/**")`.
        """
        ask = partial(
            self._session.get,
            selector,
            target=target,
            consolidation=consolidation,
            accept_replies=accept_replies,
            timeout=timeout,
            congestion_control=congestion_control,
            priority=priority,
            express=express,
            payload=payload,
            encoding=encoding,
            attachment=attachment,
            allowed_destination=allowed_destination,
            source_info=source_info,
            timestamp_instrumentation=timestamp_instrumentation,
        )
        return await get(ask, self._gate(priority), handler, cancellation_token, self._kept)

    # ---- declaring

    async def declare_keyexpr(self, key_expr: IntoKeyExpr) -> KeyExpr:
        """A key expression that is known by a number to those it is sent to."""
        return self._session.declare_keyexpr(key_expr)

    async def declare_publisher(
        self,
        key_expr: IntoKeyExpr,
        *,
        encoding: IntoEncoding | None = None,
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        reliability: Reliability | None = None,
        allowed_destination: Locality | None = None,
    ) -> Publisher:
        """What puts on `key_expr` again and again."""
        publisher = self._session.declare_publisher(
            key_expr,
            encoding=encoding,
            congestion_control=congestion_control,
            priority=priority,
            express=express,
            reliability=reliability,
            allowed_destination=allowed_destination,
        )
        return Publisher(publisher, self._kept)

    async def declare_subscriber(
        self,
        key_expr: IntoKeyExpr,
        handler: IntoHandler[Sample] = None,
        *,
        allowed_origin: Locality | None = None,
    ) -> Subscriber:
        """What receives the samples of all keys that match `key_expr`, in the running loop."""
        declare = partial(self._session.declare_subscriber, key_expr, allowed_origin=allowed_origin)
        return receive(Subscriber, handler, lambda sink: declare(handler=sink), self._kept)

    async def declare_queryable(
        self,
        key_expr: IntoKeyExpr,
        handler: IntoHandler[Query] = None,
        *,
        complete: bool | None = None,
        allowed_origin: Locality | None = None,
    ) -> Queryable:
        """What answers queries for the keys that match `key_expr`, in the running loop."""
        declare = partial(
            self._session.declare_queryable,
            key_expr,
            complete=complete,
            allowed_origin=allowed_origin,
        )
        wrap = partial(Query, SendGate())
        return receive(Queryable, handler, lambda sink: declare(handler=sink), self._kept, wrap)

    async def declare_querier(
        self,
        key_expr: IntoKeyExpr,
        *,
        target: QueryTarget | None = None,
        consolidation: IntoConsolidation | None = None,
        accept_replies: ReplyKeyExpr | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the queries', as in the session API
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        allowed_destination: Locality | None = None,
    ) -> Querier:
        """What asks for `key_expr` again and again."""
        querier = self._session.declare_querier(
            key_expr,
            target=target,
            consolidation=consolidation,
            accept_replies=accept_replies,
            timeout=timeout,
            congestion_control=congestion_control,
            priority=priority,
            express=express,
            allowed_destination=allowed_destination,
        )
        return Querier(querier, self._kept)

    def liveliness(self) -> Liveliness:
        """Who is alive."""
        gate = self._gate(Priority.DEFAULT)
        return Liveliness(self._session.liveliness(), gate, self._kept)


class TransportEventsListener(Receiver[TransportEvent]):
    """Transports that open (PUT) and close (DELETE)."""

    _what = "transport events listener"


class LinkEventsListener(Receiver[LinkEvent]):
    """Links that open (PUT) and close (DELETE)."""

    _what = "link events listener"


class SessionInfo:
    """Whom a session is connected with. What is known already is told without waiting."""

    def __init__(self, info: Any, kept: set[Any]) -> None:
        self._info = info
        self._kept = kept

    def zid(self) -> ZenohId:
        """The session's own node."""
        found: ZenohId = self._info.zid()
        return found

    def routers_zid(self) -> list[ZenohId]:
        """The routers that it is connected with."""
        found: list[ZenohId] = self._info.routers_zid()
        return found

    def peers_zid(self) -> list[ZenohId]:
        """The peers that it is connected with."""
        found: list[ZenohId] = self._info.peers_zid()
        return found

    def transports(self) -> list[Transport]:
        """One for each node that it is connected with."""
        found: list[Transport] = self._info.transports()
        return found

    def links(self) -> list[Link]:
        """What the transports run over."""
        found: list[Link] = self._info.links()
        return found

    async def declare_transport_events_listener(
        self, handler: IntoHandler[TransportEvent] = None, *, history: bool | None = None
    ) -> TransportEventsListener:
        """Tell `handler` of transports that open and close; `history`: and of those open now."""
        declare = partial(self._info.declare_transport_events_listener, history=history)
        return receive(TransportEventsListener, handler, declare, self._kept)

    async def declare_link_events_listener(
        self, handler: IntoHandler[LinkEvent] = None, *, history: bool | None = None
    ) -> LinkEventsListener:
        """Tell `handler` of links that open and close; `history`: and of those open now."""
        declare = partial(self._info.declare_link_events_listener, history=history)
        return receive(LinkEventsListener, handler, declare, self._kept)


class Scout(Receiver[Hello]):
    """Nodes that answer: `async for hello in scout`, until `stop`."""

    _what = "scout"

    async def _end(self) -> None:
        await asyncio.to_thread(self._entity.stop)

    async def stop(self) -> None:
        """Ask no more."""
        await self.undeclare()


_scouts: set[Any] = set()
"Those with callbacks, until they are stopped."


async def scout(
    handler: IntoHandler[Hello] = None,
    what: WhatAmIMatcher | WhatAmI | str | None = None,
    config: Config | None = None,
) -> Scout:
    """Look for routers and peers, until the Scout is stopped or let go."""
    start = partial(scouting.scout, what=what, config=config)
    return receive(Scout, handler, start, _scouts)


class _Opening:
    """A session that is opened on another thread, and closed there if nobody wants it any more."""

    def __init__(self, how: Callable[[], api.Session]) -> None:
        self._how = how
        self._lock = threading.Lock()
        self._given_up = False
        self._session: api.Session | None = None

    def run(self) -> api.Session:
        session = self._how()
        with self._lock:
            unwanted = self._given_up
            self._session = None if unwanted else session
        if unwanted:
            session.close()
        return session

    def give_up(self) -> api.Session | None:
        """Gives the session that is open already and must be closed."""
        with self._lock:
            self._given_up = True
            session, self._session = self._session, None
        return session


async def open(  # noqa: A001 - as in the session API
    config: Config,
    *,
    timestamp_callback: Callable[[TimestampContext], bytes] | None = None,
) -> Session:
    """Open a session: `async with await zenlake.aio.open(config) as session`."""
    opening = _Opening(partial(api.open, config, timestamp_callback=timestamp_callback))
    try:
        return Session(await asyncio.to_thread(opening.run))
    except asyncio.CancelledError:
        session = opening.give_up()
        if session is not None:
            asyncio.get_running_loop().run_in_executor(None, session.close)
        raise
