"""SessionCore: the parts of a session, and the dispatch of inbound messages to them.

Knows the parts: a node, an exchange, and the tables of subscribers, queries, queryables and
interests. Lives as long as the session is open; `Session` is the user's handle.
"""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from zenlake.api import gc_finalize
from zenlake.api.config.config import Config
from zenlake.api.config.opening import StartConditions, open_node, read_settings
from zenlake.api.discovery.info import SessionInfo
from zenlake.api.discovery.matching import SessionInterests
from zenlake.api.discovery.stats import EndedTransports
from zenlake.api.pubsub.subscriber import SubscriberEntry, Subscribers
from zenlake.api.query.get import SessionQueries
from zenlake.api.query.queryable import Queryables
from zenlake.api.sinks import Sink
from zenlake.api.values.enums import WHATAMI_OF, InterceptionPoint
from zenlake.api.values.instrumentation import TimestampContext, record_stamp
from zenlake.api.values.wrapped import make
from zenlake.api.values.zbytes import kept_bytes
from zenlake.errors import SessionEnded, ZError
from zenlake.keyexpr import KeyExpr
from zenlake.runtime.exchange import Exchange
from zenlake.runtime.local_delivery import Delivery
from zenlake.runtime.node import Node
from zenlake.runtime.transport_session import TransportSession as Transport
from zenlake.wire.declare import Declare
from zenlake.wire.enums import WirePriority
from zenlake.wire.network import NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.tsstack import WireTimestampStack

if TYPE_CHECKING:
    from zenlake.api.pubsub.publisher import Publisher
    from zenlake.api.session import Session
    from zenlake.wire.reply_run import ReplyRun

log = logging.getLogger("zenlake.api")

CLOSE_SECONDS = 20.0  # Upper bound on waiting for another thread that is closing the session.
CALLBACK_SECONDS = 2.0  # Time for callbacks to work off their queues when a session closes.

TimestampCallback = Callable[[TimestampContext], bytes]


class LossObserver(Protocol):
    """Observer of lost data; called on the I/O thread."""

    def lost(
        self, session: Transport, priority: WirePriority, reliable: bool, first: int, missing: int
    ) -> None: ...
    def closed(self, session: Transport, why: SessionEnded) -> None: ...


class SessionCore:
    """Session without its handle; the `LocalSession` of its exchange."""

    def __init__(self, config: Config, timestamp_callback: TimestampCallback | None = None) -> None:
        self.settings = read_settings(config)
        self._timestamp_callback = timestamp_callback
        self.watchers: tuple[LossObserver, ...] = ()
        "Observers of lost data."
        get, offer = self.settings.get, self.settings.node.offer
        self.exchange = Exchange(
            offer.zid,
            offer.whatami,
            self,
            query_timeout=get("queries_default_timeout") / 1000,
            timestamping=get("timestamping/enabled"),
            drop_future_timestamp=get("timestamping/drop_future_timestamp"),
        )
        self.number = self.exchange.next_id()
        "Entity number of the session itself."
        self.node = Node(self.settings.node, self.exchange.handler, network=self.settings.network)
        self.exchange.attach(self.node)
        self.interests = SessionInterests(self.exchange)
        self.subscribers = Subscribers(self.exchange, self.interests)
        self.queryables = Queryables(self.exchange, self.interests, stamp=self.record)
        self.queries = SessionQueries(self.exchange, self.queryables, stamp=self.record)
        self.info = make(SessionInfo, self.node)
        self.ended = EndedTransports()
        self._conditions = StartConditions(get("open/return_conditions/declares"))
        self._on: dict[type, Callable[[Any], None]] = {
            Request: self.queryables.on_request,
            Response: self.queries.on_response,
            ResponseFinal: lambda final: self.queries.on_final(final.request_id),
            Declare: self.interests.on_declare,
        }
        self._pid = os.getpid()
        self._closing = threading.Lock()
        self._closer: int | None = None
        "Thread that closes the session; it holds no lock, because callbacks may call `close` too."
        self._over = threading.Event()

    def open(self) -> None:
        """Listen, connect, and wait as configured. ZError: it cannot."""
        open_node(self.node, self.settings, self._conditions)
        _open.add(self)

    # ---- called by the exchange

    def on_message(self, message: NetworkMessage) -> None:
        on = self._on.get(type(message))
        if on is not None:
            on(message)

    def on_replies(self, replies: "ReplyRun") -> None:
        self.queries.on_replies(replies)

    def opened(self, session: Transport) -> None:
        self.info.opened(session)

    def declared(self, session: Transport) -> None:
        self._conditions.declared(session.zid)

    def closed(self, session: Transport, why: SessionEnded) -> None:
        self.ended.add(session)
        self.info.closed(session)
        for watcher in self.watchers:
            watcher.closed(session, why)

    def lost(
        self, session: Transport, priority: WirePriority, reliable: bool, first: int, missing: int
    ) -> None:
        for watcher in self.watchers:
            watcher.lost(session, priority, reliable, first, missing)

    def matching_subscribers(self, key: str) -> tuple[SubscriberEntry, ...]:
        return self.subscribers.matching(key)

    def takes_bytes(self, subscribers: tuple[SubscriberEntry, ...]) -> bool:
        return self.subscribers.takes_bytes(subscribers)

    def deliver(
        self, subscribers: tuple[SubscriberEntry, ...], delivery: Delivery
    ) -> Iterable[Sink[Any]]:
        if delivery.part is None:
            delivery.rests = tuple(map(self._received, delivery.rests))
        return self.subscribers.deliver(subscribers, delivery)

    def routed(self, stack: WireTimestampStack) -> WireTimestampStack:
        return self.record(stack, InterceptionPoint.ROUTE)

    def _received(self, rest: int | Push | None) -> int | Push | None:
        if type(rest) is Push and rest.ts_stack is not None:
            rest.ts_stack = self.record(rest.ts_stack, InterceptionPoint.RECEIVE)
        return rest

    # ---- called by the parts

    def deliver_local(
        self, subscribers: tuple[SubscriberEntry, ...], key: KeyExpr, push: Push
    ) -> None:
        """Deliver a put of this session to its own subscribers; wait while a sink has no room."""
        payload = b""
        if type(push.body) is Put:
            # A copy, as the caller may change its buffer after the put; or a view of shared memory.
            payload = kept_bytes(push.body.payload)  # type: ignore[assignment]
            push.body.payload = payload
        size = len(payload)
        full = self.deliver(subscribers, Delivery((key,), payload, (0,), (size,), 1, (push,)))
        if full and not self.node.reactor.inside:
            for sink in full:
                sink.wait_room()

    def record(self, stack: WireTimestampStack, point: InterceptionPoint) -> WireTimestampStack:
        """Return `stack` with the present time recorded at `point`, if the stack asks for it."""
        if not stack.conf & point.wire:
            return stack
        if self._timestamp_callback is None:
            return record_stamp(stack, point, self.exchange.stamp())
        role = WHATAMI_OF[self.exchange.whatami]
        try:
            when = self._timestamp_callback(TimestampContext.of((self.exchange.zid, role)))
        except Exception:
            log.exception("the timestamp callback failed")
            return stack
        return record_stamp(stack, point, when)

    # ---- closing

    def close(self) -> None:
        """Undeclare everything and close all transports; wait until that is done.

        Further calls wait for the first one; a call in the child of a fork only abandons the
        session.
        """
        if os.getpid() != self._pid:
            self.abandon()
            return
        inside, here = self.node.reactor.inside, threading.get_ident()
        with self._closing:
            first = self._closer is None
            self._closer = self._closer or here
        if not first:
            if not inside and self._closer != here:
                self._over.wait(CLOSE_SECONDS)
            return
        sinks: list[Sink[Any]] = []
        try:
            self.queryables.close()  # First: the RESPONSE_FINAL of open queries still has to leave.
            self.exchange.close()
            _open.discard(self)
            self.queries.close()
            sinks = self.subscribers.close()
            self.interests.close()
        finally:
            if inside:
                self.node.shut(self._shut)
            else:
                self.node.close()
                self.info.close()
                self._over.set()
        end = time.monotonic() + (0.0 if inside else CALLBACK_SECONDS)
        for sink in sinks:
            sink.join(max(0.0, end - time.monotonic()))

    def _shut(self) -> None:
        """Finish a close that began on the I/O thread: everything is sent, and no thread waits for
        this one.
        """
        self.info.close()
        self.node.reactor.stop()
        self._over.set()

    def drop(self) -> None:
        """Close the session of a dropped handle, without waiting: any thread, holding any lock, may
        call this.
        """
        if os.getpid() != self._pid or self.exchange.closed:
            return
        # Not started from here: `Thread.start` waits, and this thread may hold a lock that the new
        # thread needs.
        self.node.reactor.call_soon(self._close_aside)

    def _close_aside(self) -> None:
        threading.Thread(target=self.close, name="zenlake close", daemon=True).start()

    def abandon(self) -> None:
        """Drop everything without sending, in the child of a fork: the parent owns the links."""
        gc_finalize.abandon(self.exchange)
        self.exchange.abandon()
        self.interests.lock = threading.RLock()
        self.node.reactor.abandon()


def core_of(entity: "Session | Publisher") -> SessionCore:
    """Return the core of a session or publisher, for extensions: recorders, sources, caches.

    It gives access to `exchange`, `node`, `subscribers` and the other parts, which may change
    between versions. It holds no reference to `entity`.
    """
    return entity._core


_open: "WeakSet[SessionCore]" = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the sessions that the program left open."""
    for core in list(_open):
        with suppress(ZError):
            core.close()


def _in_child() -> None:
    for core in list(_open):
        core.abandon()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
