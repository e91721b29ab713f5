"""SessionInfo: the transports and links of a session, and listeners for their changes.

Knows how they are presented, and the listeners. Does not open or close any: SessionCore calls
`opened` and `closed`.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar, final, overload

from zenlake.api.handlers import (
    CallbackAnd,
    Handler,
    IntoCallback,
    IntoChannel,
    Receiver,
    make_sink,
)
from zenlake.api.sinks import Sink
from zenlake.api.values.enums import WHATAMI_OF, Reliability, SampleKind, WhatAmI
from zenlake.api.values.ids import ZenohId
from zenlake.api.values.wrapped import Unconstructed, make
from zenlake.errors import ZError
from zenlake.link import sockets
from zenlake.runtime.node import Node
from zenlake.runtime.transport_session import TransportSession
from zenlake.wire import enums as wire
from zenlake.wire import zenohid
from zenlake.wire.framing import Framing

CALLBACK_SECONDS = 5.0  # Time for a running callback to end when its listener is undeclared.
ALL_PRIORITIES = (wire.WirePriority.CONTROL.value, wire.WirePriority.BACKGROUND.value)

H = TypeVar("H")
E = TypeVar("E")


def _debug(value: Any) -> str:
    """Return `value` in the notation of the reference."""
    match value:
        case bool():
            return str(value).lower()
        case SampleKind() | Reliability():
            return value.name.title().replace("_", "")
        case (int(), int()):
            return str(value)
        case tuple():
            return "[" + ", ".join(f'"{item}"' for item in value) + "]"
        case _:
            return repr(value) if isinstance(value, WhatAmI) else str(value)


class _Described(metaclass=Unconstructed):
    __slots__ = ()

    def __repr__(self) -> str:
        names = [field.name for field in fields(self) if field.repr]  # type: ignore[arg-type]
        shown = (f"{name.removeprefix('_')}: {_debug(getattr(self, name))}" for name in names)
        return f"{type(self).__name__} {{ {', '.join(shown)} }}"

    __str__ = __repr__


@final
@dataclass(frozen=True, kw_only=True, repr=False, slots=True)
class Transport(_Described):
    """Session with one other node."""

    zid: ZenohId
    "Zenoh id of the other node."
    whatami: WhatAmI
    "Role of the other node."
    is_qos: bool
    "Whether messages of different priorities travel on lanes of their own."
    is_multicast: bool
    is_shm: bool
    "Whether payloads may travel through shared memory."
    shm_declined: str | None = field(default=None, compare=False, repr=False)
    "Reason for not sharing memory with the other node; None: memory is shared."


@final
@dataclass(frozen=True, kw_only=True, repr=False, slots=True)
class Link(_Described):
    """Connection that carries the bytes of a transport."""

    zid: ZenohId
    "Zenoh id of the other node."
    src: str
    dst: str
    group: str | None
    mtu: int
    is_streamed: bool
    _interfaces: tuple[str, ...]
    auth_identifier: str | None
    "Common name in the certificate of the other node."
    priorities: tuple[int, int] | None
    reliability: Reliability | None

    @property
    def interfaces(self) -> list[str]:
        """Network interfaces that the link uses."""
        return list(self._interfaces)


@final
@dataclass(frozen=True, kw_only=True, repr=False, slots=True)
class TransportEvent(_Described):
    """Opening (PUT) or closing (DELETE) of a transport."""

    kind: SampleKind
    transport: Transport


@final
@dataclass(frozen=True, kw_only=True, repr=False, slots=True)
class LinkEvent(_Described):
    """Opening (PUT) or closing (DELETE) of a link."""

    kind: SampleKind
    link: Link


def transport_of(session: TransportSession) -> Transport:
    agreed = session.agreement
    return make(
        Transport,
        zid=ZenohId.of(agreed.zid),
        whatami=WHATAMI_OF[agreed.whatami],
        is_qos=agreed.qos,
        is_multicast=session.group is not None,
        is_shm=agreed.shm,
        shm_declined=session.shm_declined,
    )


def link_of(session: TransportSession) -> Link:
    link, agreed = session.link, session.agreement
    qos = agreed.link_qos
    reliable = link.reliable if qos.reliable is None else qos.reliable
    reliability = Reliability.RELIABLE if reliable else Reliability.BEST_EFFORT
    return make(
        Link,
        zid=ZenohId.of(agreed.zid),
        src=f"{link.local}{qos.metadata()}",
        dst=f"{session.remote}{qos.metadata()}",
        group=None if session.group is None else str(link.remote),
        mtu=link.mtu,
        is_streamed=link.framing is Framing.STREAM,
        _interfaces=_interfaces_of(link.local.address),
        auth_identifier=getattr(link, "certificate_name", None),
        priorities=(qos.priorities or ALL_PRIORITIES) if agreed.qos else None,
        reliability=reliability if agreed.qos else None,
    )


def _interfaces_of(address: str) -> tuple[str, ...]:
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]").partition("%")[0]
    if not host:
        return ()
    return tuple(dict.fromkeys(i.name for i in sockets.interfaces() if i.host == host))


EventMaker = Callable[[SampleKind, TransportSession], list[Any]]


def _transport_events(kind: SampleKind, session: TransportSession) -> list[Any]:
    return [make(TransportEvent, kind=kind, transport=transport_of(session))]


def _link_events(kind: SampleKind, session: TransportSession) -> list[Any]:
    return [make(LinkEvent, kind=kind, link=link_of(link)) for link in session.links]


def _push(sink: Sink[Any], events: list[Any]) -> None:
    sink.push(events, len(events))


class EventsListener(Receiver[H]):
    """Receiver of events until it is undeclared, or dropped without a callback."""

    def __init__(self, info: "SessionInfo", handler: object) -> None:
        sink, shown, background = make_sink(handler, f"zenlake {self._what}")
        super().__init__(None, partial(info._remove, sink), sink, shown, background)
        self._call_soon = info._node.reactor.call_soon

    def undeclare(self, /) -> None:
        """Stop receiving."""
        super().undeclare()
        self._sink.join(CALLBACK_SECONDS)

    def __del__(self) -> None:
        if not (self._undeclared or self._background or sys.is_finalizing()):
            # The garbage collector may run while this thread, or one that waits for it, holds any
            # lock.
            self._call_soon(self._end)


L = TypeVar("L", bound=EventsListener[Any])


@final
class TransportEventsListener(EventsListener[H]):
    """Receiver of TransportEvents."""

    _what = "transport events listener"
    _given_by = "session.info.declare_transport_events_listener"


@final
class LinkEventsListener(EventsListener[H]):
    """Receiver of LinkEvents."""

    _what = "link events listener"
    _given_by = "session.info.declare_link_events_listener"


@final
class SessionInfo(metaclass=Unconstructed):
    """Zenoh ids of this session and of the nodes it is connected to; its transports and links.

    SessionCore calls `opened` and `closed` on the I/O thread, and `close` at the end.
    """

    _given_by = "session.info"

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.RLock()
        self._open: dict[TransportSession, None] = {}
        self._is_closed = False
        self._sinks: dict[Sink[Any], EventMaker] = {}
        "Function that makes the events of a listener, by its sink."
        node.on_link = self._link_changed

    # ---- for everybody

    def zid(self, /) -> ZenohId:
        """Return the Zenoh id of this session."""
        return ZenohId.of(self._node.zid)

    def routers_zid(self, /) -> list[ZenohId]:
        """Return the Zenoh ids of the connected routers."""
        return [ZenohId.of(zid) for zid in self._zids_of_role(wire.WireWhatAmI.ROUTER)]

    def peers_zid(self, /) -> list[ZenohId]:
        """Return the Zenoh ids of the connected peers; members of multicast groups are not."""
        return [ZenohId.of(zid) for zid in self._zids_of_role(wire.WireWhatAmI.PEER)]

    def _zids_of_role(self, whatami: wire.WireWhatAmI) -> Iterator[zenohid.WireZenohId]:
        for zid, session in self._node.sessions.items():
            if session.agreement.whatami is whatami:
                yield zid

    def transports(self, /) -> list[Transport]:
        """Return the open transports."""
        return [transport_of(session) for session in self._node.transports]

    def links(self, /) -> list[Link]:
        """Return the open links."""
        return [link_of(link) for session in self._node.transports for link in session.links]

    @overload
    def declare_transport_events_listener(
        self, /, handler: IntoChannel[TransportEvent] = None, *, history: bool | None = None
    ) -> TransportEventsListener[Handler[TransportEvent]]: ...
    @overload
    def declare_transport_events_listener(
        self, /, handler: CallbackAnd[TransportEvent, H], *, history: bool | None = None
    ) -> TransportEventsListener[H]: ...
    @overload
    def declare_transport_events_listener(
        self, /, handler: IntoCallback[TransportEvent], *, history: bool | None = None
    ) -> TransportEventsListener[None]: ...
    def declare_transport_events_listener(
        self, /, handler: object = None, *, history: bool | None = None
    ) -> TransportEventsListener[H]:
        """Receive an event when a transport opens or closes; with `history` also for open ones."""
        return self._declare(TransportEventsListener, _transport_events, handler, history)

    @overload
    def declare_link_events_listener(
        self, /, handler: IntoChannel[LinkEvent] = None, *, history: bool | None = None
    ) -> LinkEventsListener[Handler[LinkEvent]]: ...
    @overload
    def declare_link_events_listener(
        self, /, handler: CallbackAnd[LinkEvent, H], *, history: bool | None = None
    ) -> LinkEventsListener[H]: ...
    @overload
    def declare_link_events_listener(
        self, /, handler: IntoCallback[LinkEvent], *, history: bool | None = None
    ) -> LinkEventsListener[None]: ...
    def declare_link_events_listener(
        self, /, handler: object = None, *, history: bool | None = None
    ) -> LinkEventsListener[H]:
        """Receive an event when a link opens or closes; with `history` also for open ones."""
        return self._declare(LinkEventsListener, _link_events, handler, history)

    # ---- for the listeners

    def _declare(
        self, kind: type[L], event: EventMaker, handler: object, history: bool | None
    ) -> L:
        listener = make(kind, self, handler)
        with self._lock:
            if self._is_closed:
                raise ZError("session closed")
            self._sinks[listener._sink] = event
            for session in self._open if history else ():
                _push(listener._sink, event(SampleKind.PUT, session))
        return listener

    def _remove(self, sink: Sink[Any]) -> None:
        with self._lock:
            self._sinks.pop(sink, None)
            sink.close()

    # ---- for the owner

    def opened(self, session: TransportSession) -> None:
        with self._lock:
            self._open[session] = None
            self._tell(SampleKind.PUT, session)

    def closed(self, session: TransportSession) -> None:
        with self._lock:
            if session in self._open:
                del self._open[session]
                self._tell(SampleKind.DELETE, session)

    def _tell(self, kind: SampleKind, session: TransportSession) -> None:
        """Push an event to all sinks, without waiting: a listener that does not read keeps its
        events.
        """
        for sink, event in tuple(self._sinks.items()):  # A dropped listener may leave meanwhile.
            _push(sink, event(kind, session))

    def _link_changed(self, link: TransportSession, joined: bool) -> None:
        """Report a link that joined an open transport or left it (called by the node)."""
        events = _link_events(SampleKind.PUT if joined else SampleKind.DELETE, link)
        with self._lock:
            for sink, event in tuple(self._sinks.items()):
                if event is _link_events:
                    _push(sink, events)

    def close(self) -> None:
        """End all listeners; queued events are still received."""
        with self._lock:
            self._is_closed = True
            for sink in tuple(self._sinks):
                self._remove(sink)
