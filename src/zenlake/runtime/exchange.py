"""The exchange: a node's sessions and the local session, each a face of one routing.

Knows the lock around the routing, bytes that go on as bytes, and who must wait for whom. What goes
where is decided in `routing/`; what the local session does with a message is its own business.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

from zenlake.errors import ClockDrift, SessionEnded, ZError
from zenlake.hlc import HybridLogicalClock
from zenlake.keyexpr import KeyExpr
from zenlake.keytable import KeyTable
from zenlake.quantities import ntp64_from_nanos
from zenlake.routing import Face, Out, Routing
from zenlake.runtime import kernel_loader
from zenlake.runtime.node import Node
from zenlake.runtime.reactor import Timer
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.lanes import skip_messages
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.declare import Declare, UndeclareKeyExpr
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.enums import CloseReason, Mapping, WirePriority, WireWhatAmI
from zenlake.wire.network import NETWORK, NetworkMessage, is_network
from zenlake.wire.oam import LINK_STATE, NetworkOam
from zenlake.wire.plain_push import PlainPutFields, read_plain_push
from zenlake.wire.push import ID as PUSH
from zenlake.wire.push import Push
from zenlake.wire.put import FLAG_TIMESTAMP, Put
from zenlake.wire.put import ID as PUT
from zenlake.wire.qos import PRIORITY_BITS
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.timestamp import WireTimestamp, write_timestamp
from zenlake.wire.tsstack import WireTimestampStack
from zenlake.wire.wireexpr import FLAG_MAPPING, FLAG_NAMED, WireExpr, flags_of, write_wireexpr
from zenlake.wire.zenohid import WireZenohId, write_zid

if TYPE_CHECKING:
    from zenlake.wire.kernels.emit import PushColumns
    from zenlake.wire.push_run import PushRun

log = logging.getLogger("zenlake.runtime")

SCAN_FROM = 512  # bytes of a frame with several messages: from here on the scan is faster
MAX_ROUTES = 8192  # remembered for each face; then they are found anew
LONG_KEY = 1024  # routes of longer ones are always found anew
PACE_BYTES = 8 << 20  # may wait for one session; then those who send more to it are not read,
MOVES_SECONDS = 0.5  # as long as it takes something: for one that is stuck nobody waits
PACE_SECONDS = 0.01  # between two looks at it
_KEY_FLAGS = FLAG_NAMED | FLAG_MAPPING
STACKED = (Push, Request, Response)  # may carry a timestamp stack


RawPush = tuple["SessionFace", bool, Any, bytes, int, int, Push | None]
"""A PUSH as it came: from whom, on a reliable lane or not, its key's name in `SessionFace.routes`,
data[start:end], and what it says if that is more than a payload."""


class Backpressured(Protocol):
    """Something that has taken enough for now."""

    def when_room(self, call: Callable[[], None]) -> None: ...


class LocalSession(Protocol):
    """The session above. Nothing here may wait: it is mostly the I/O thread that calls."""

    def on_message(self, message: NetworkMessage) -> None:
        """Anything but a PUSH that came for it, keys in full."""

    def who_hears(self, key: str) -> tuple[Any, ...]:
        """Who of it wants what others put on `key`; for the same ones the same tuple."""

    def deliver(
        self,
        subscribers: tuple[Any, ...],
        keys: Iterable[KeyExpr],
        data: bytes,
        starts: Any,
        ends: Any,
        rests: Iterable[Any],
        count: int,
        run: "tuple[PushRun, Any, KeyTable, SessionFace | None] | None",
        one: "RawPush | None",
    ) -> Iterable[Backpressured]:
        """Samples, each a key, a payload data[start:end] and what stands beside it: None for
        nothing, a PUSH, or where the PUSH starts in data. `run`: where they come from (which says
        what stands beside them, too), which of its rows they are (None: all), what the ids in
        their keys mean, and from whom. `one`: the message, if there is one alone as it came. Gives
        those that have enough. `starts` and `ends` are arrays where there is a `run`, else
        tuples."""

    def routed(self, stack: WireTimestampStack) -> WireTimestampStack:
        """`stack` with the time now at ROUTE, if that was asked for."""

    def opened(self, session: TransportSession) -> None: ...
    def declared(self, session: TransportSession) -> None:
        """What it declares at first is known."""

    def closed(self, session: TransportSession, why: SessionEnded) -> None: ...
    def lost(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        first: int,
        missing: int,
    ) -> None:
        """Sequence numbers of a lane that never came."""


class SessionFace:
    """A session as a face of the routing."""

    __slots__ = ("face", "held", "paced", "routes", "session", "version")

    def __init__(self, session: TransportSession, face: Face) -> None:
        self.session = session
        self.face = face
        self.held = 0
        "How many have enough of it for now."
        self.paced: set[SessionFace] = set()
        "The sessions among them."
        self.routes: dict[Any, InboundRoute] = {}
        "By the key as it came: mapping and scope as one number, with the suffix if there is one."
        self.version = -1


class InboundRoute:
    """Where what came on one key goes."""

    __slots__ = ("key", "local", "out")

    def __init__(
        self,
        key: KeyExpr,
        local: tuple[Any, ...],
        out: "tuple[tuple[SessionFace, WireExpr, int, bytes], ...]",
    ) -> None:
        self.key = key
        self.local = local
        "The subscribers here,"
        self.out = out
        "and the other sessions, with the key as they know it: its flags and its bytes."


class ExchangeHandler:
    """The exchange as its node's Handler."""

    __slots__ = ("closed", "frame", "opened")

    def __init__(self, exchange: "Exchange") -> None:
        self.opened = exchange.open_port
        self.frame = exchange.frame
        self.closed = exchange.close_port


class Exchange:
    """One per session of the API, and per router."""

    def __init__(
        self,
        zid: WireZenohId,
        whatami: WireWhatAmI,
        local: LocalSession,
        *,
        query_timeout: float = 10.0,
        timestamping: bool = False,
        drop_future_timestamp: bool = False,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self.zid = zid
        self.whatami = whatami
        self.query_timeout = query_timeout
        self.lock = threading.RLock()
        self.local = local
        self.dropped: Counter[DropReason] = Counter()
        "What came in and went nowhere, by reason."
        self.clock = HybridLogicalClock(zid)
        self.wants_messages = False
        "Whether somebody here takes messages as they are (see `RawPush`)."
        self.stamps = timestamping
        "Whether what has no timestamp gets one."
        self._wall = wall
        self.routing = Routing(
            zid,
            whatami,
            query_timeout=query_timeout,
            hlc=self.clock if timestamping else None,
            wall=self._ntp64,
            drop_future_timestamp=drop_future_timestamp,
        )
        self.closed = False
        "Whether the local session has."
        self.handler = ExchangeHandler(self)
        self._node: Node | None = None
        self.version = 0
        "Another number whenever something may go another way than before."
        self._routing_version = self.routing.version
        self._ids = 0
        self._inbox: deque[NetworkMessage] = deque()
        self._draining = False
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._kernels: kernel_loader.Kernels | None = None
        self._second: kernel_loader.Kernels | None = None
        "For what is read while the first are in use."
        w = ByteWriter()
        write_zid(w, "zid", zid)
        self._clock_bytes = bytes(w.out)

    # ---- for the session above, on any thread

    @property
    def node(self) -> Node:
        if self._node is None:
            raise ZError("session closed")
        return self._node

    def attach(self, node: Node) -> None:
        """The node whose handler is `self.handler`."""
        self._node = node
        node.on_gap = self.local.lost

    def now(self) -> float:
        return self.node.reactor.now()

    def _ntp64(self) -> int:
        return ntp64_from_nanos(self._wall())

    def next_id(self) -> int:
        """For entities, declarations, interests and requests: never the same twice."""
        with self.lock:
            self._ids += 1
            return self._ids

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        reactor = self.node.reactor
        return reactor.call_at(reactor.now() + seconds, call)

    def send(self, message: NetworkMessage) -> None:
        """From the local session into the routing; never waits. Keys are full text."""
        if self.closed:
            raise ZError("session closed")
        message = self._routed(message)
        with self.lock:
            self._post(self.routing.on_message(self.routing.local, message, self.now()))
        self._drain()

    def forget_query(self, request_id: int) -> None:
        """No reply to it is wanted any more."""
        with self.lock:
            self.routing.forget_query(self.routing.local, request_id)

    def changed(self) -> None:
        """The subscribers of the local session are others now."""
        with self.lock:
            self.version += 1

    def way_out(self, key: str) -> "tuple[tuple[SessionFace, WireExpr], ...]":
        """The sessions that want what the local session puts on `key`, each with the key as it
        knows it. Holds while `version` is the same."""
        with self.lock:
            return tuple(
                (face.link, self._wire_key(face, key))
                for face in self.routing.destinations(self.routing.local, key)
                if not face.is_local and face.link is not None
            )

    def close(self) -> None:
        """The node is closed, or will be at once."""
        self.closed = True

    def abandon(self) -> None:
        """In the child of a fork: whoever held the lock is not here to give it back."""
        self.lock = threading.RLock()
        self.closed = True
        self.version += 1  # whoever knows a way looks for it again, and finds none

    def _routed(self, message: NetworkMessage) -> NetworkMessage:
        """With the time it passed here, if it asks for that."""
        if isinstance(message, STACKED) and message.ts_stack is not None:
            return replace(message, ts_stack=self.local.routed(message.ts_stack))
        return message

    # ---- the routing, under the lock

    def _wire_key(self, face: Face, key: str) -> WireExpr:
        wire, declare = self.routing.wire_key(face, key, True)
        if declare is not None:
            self._say(face.link, declare)
        return wire

    def _post(self, out: Out) -> None:
        for face, message in out:
            if face.is_local:
                self._inbox.append(message)
            elif face.link is not None:
                self._say(face.link, message)
        if self._routing_version != self.routing.version:
            self._routing_version = self.routing.version
            self.version += 1
        deadline = self.routing.deadline
        if deadline is not None and (self._timer is None or deadline < self._timer_at):
            self._arm(deadline)

    def _say(self, port: SessionFace, message: NetworkMessage) -> None:
        try:
            port.session.post(message)
        except SessionEnded:
            self.dropped[DropReason.SESSION_CLOSED] += 1  # which is told by closed()
        except ZError as error:
            self.dropped[DropReason.ENCODE_FAILED] += 1
            log.warning("%s: %s", port.session, error)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.node.reactor.call_at(deadline, self._on_time)

    def _on_time(self) -> None:
        with self.lock:
            self._timer = None
            self._post(self.routing.on_time(self.now()))
        self._drain()

    def _drain(self) -> None:
        """Give the local session what waits for it, in order, one thread at a time."""
        while self._inbox:
            with self.lock:
                if self._draining or not self._inbox:
                    return
                self._draining = True
                messages = list(self._inbox)
                self._inbox.clear()
            try:
                for message in messages:
                    try:
                        self._deliver_message(message)
                    except Exception:
                        log.exception("a message was not taken: %r", message)
            finally:
                self._draining = False

    def _deliver_message(self, message: NetworkMessage) -> None:
        if type(message) is not Push:
            self.local.on_message(message)
            return
        key = KeyExpr.trusted(message.key.suffix)
        subscribers = self.local.who_hears(key)
        if subscribers:
            self._give_push(None, subscribers, key, message, None)

    # ---- what comes, on the I/O thread

    def open_port(self, session: TransportSession) -> None:
        agreed = session.agreement
        with self.lock:
            try:
                face, out = self.routing.open(agreed.zid, agreed.whatami, self.now())
            except ZError as error:
                log.warning("%s: %s", session, error)
                session.close(CloseReason.GENERIC)
                return
            port = SessionFace(session, face)
            face.link = port
            session.face = port
            self._post(out)
        self._drain()
        self.local.opened(session)
        if face.initial_done:
            self.local.declared(session)

    def close_port(self, session: TransportSession, why: SessionEnded) -> None:
        port: SessionFace | None = session.face
        if port is not None:
            with self.lock:
                self._post(self.routing.close(port.face, self.now()))
                port.face.link = None
                port.routes.clear()
            self._drain()
            self.local.closed(session, why)

    def frame(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        port: SessionFace | None = session.face
        if port is None:  # refused, and being closed
            return skip_messages(data, pos, end)
        if port.version != self.version:
            port.version = self.version
            port.routes.clear()
        while pos < end and is_network(data[pos]):
            put = read_plain_push(data, pos, end)
            more = end - (put[-1] if put is not None else pos)
            if more >= SCAN_FROM and (self._kernels or self._load()):
                return self._scan(port, reliable, data, pos, end)
            if put is not None:
                self._one_put(port, reliable, data, pos, put)
                pos = put[-1]
            elif data[pos] & ID_MASK == PUSH:
                pos = self._push_object(port, reliable, data, pos, end)
            else:
                pos = self._one_message(port, data, pos, end)
        return pos

    def _load(self) -> bool:
        self._kernels = kernel_loader.make()
        return self._kernels is not None

    def _one_message(self, port: SessionFace, data: bytes, pos: int, end: int) -> int:
        """Anything, by the object codec."""
        r = ByteReader(data, pos, end)
        self._on_object(port, NETWORK.read(r))
        return r.pos

    def _on_object(self, port: SessionFace, message: NetworkMessage) -> None:
        if type(message) is NetworkOam and message.id == LINK_STATE:
            port.session.link_states(message.body)
        message = self._routed(message)
        before = port.face.initial_done
        with self.lock:
            if type(message) is Declare and type(message.body) is UndeclareKeyExpr:
                self.version += 1  # routes may use the id
            out = self.routing.on_message(port.face, message, self.now())
            self._post(out)
            if port.version != self.version:
                port.version = self.version
                port.routes.clear()
        for face, _ in out:
            if face.link is not None:
                self._pace(port, face.link)
        self._drain()
        if port.face.initial_done and not before:
            self.local.declared(port.session)

    # ---- PUSH, one at a time

    def _one_put(
        self, port: SessionFace, reliable: bool, data: bytes, pos: int, put: PlainPutFields
    ) -> None:
        name, after_key, body, qos, start, stop = put
        try:
            route = port.routes.get(name) or self._find_route(port, name)
        except UnicodeDecodeError:  # which the codec refuses in its own words
            self._push_object(port, reliable, data, pos, stop)
            raise
        if route is None:
            return
        if route.local and self.stamps:  # who hears it hears the timestamp, too
            self._push_object(port, reliable, data, pos, stop)
            return
        if route.local:
            rest = None if after_key == body else pos
            full = self.local.deliver(
                route.local,
                (route.key,),
                data,
                (start,),
                (stop,),
                (rest,),
                1,
                None,
                (port, reliable, name, data, pos, stop, None),
            )
            for one in full:
                self._hold(port, one)
        if route.out:
            stamped = bytes((PUT | FLAG_TIMESTAMP,)) + self._stamp() if self.stamps else b"\x01"
            tail = data[after_key:body] + stamped + data[body + 1 : stop]
            for other, _, flags, key in route.out:
                head = bytes((data[pos] & ~_KEY_FLAGS | flags,))
                self._pass(port, other, head + key + tail, qos, reliable)

    def _push_object(
        self, port: SessionFace, reliable: bool, data: bytes, pos: int, end: int
    ) -> int:
        r = ByteReader(data, pos, end)
        push: Push = NETWORK.read(r)
        key = push.key
        name: Any = key.mapping << 16 | key.scope
        if key.suffix:
            name = (name, key.suffix.encode())
        route = port.routes.get(name) or self._find_route(port, name)
        if route is None:
            return r.pos
        changed = self.stamps or push.ts_stack is not None
        if push.ts_stack is not None:
            push.ts_stack = self.local.routed(push.ts_stack)
        if self.stamps and type(push.body) is Put:
            try:
                with self.lock:
                    push.body.timestamp = self.routing.stamp_forwarded(push.body.timestamp)
            except ClockDrift:
                self.dropped[DropReason.TIMESTAMP_FUTURE] += 1
                return r.pos
        for other, wire, _, _ in route.out:
            push.key = wire
            w = ByteWriter()
            NETWORK.write(w, push)
            self._pass(port, other, bytes(w.out), push.qos, reliable)
        if route.local:
            one: RawPush | None = (port, reliable, name, data, pos, r.pos, push)
            if changed:
                one = self._changed_one(port, reliable, route.key, push)
            self._give_push(port, route.local, route.key, push, one)
        return r.pos

    def _changed_one(
        self, port: SessionFace, reliable: bool, key: KeyExpr, push: Push
    ) -> RawPush | None:
        """What became of a message here; only for those who want messages."""
        if not self.wants_messages:
            return None
        push.key = WireExpr(0, key)
        w = ByteWriter()
        NETWORK.write(w, push)
        name = (push.key.mapping << 16, key.encode())
        return (port, reliable, name, bytes(w.out), 0, len(w.out), push)

    def _give_push(
        self,
        port: SessionFace | None,
        subscribers: tuple[Any, ...],
        key: KeyExpr,
        push: Push,
        one: RawPush | None,
    ) -> None:
        payload = push.body.payload if type(push.body) is Put else b""
        assert isinstance(payload, bytes)
        full = self.local.deliver(
            subscribers, (key,), payload, (0,), (len(payload),), (push,), 1, None, one
        )
        if port is not None:
            for sink in full:
                self._hold(port, sink)

    def _pass(
        self, port: SessionFace, other: SessionFace, message: bytes, qos: int, reliable: bool
    ) -> None:
        try:
            other.session.send_encoded(message, qos, reliable)
            self._pace(port, other)
        except SessionEnded:
            self.dropped[DropReason.SESSION_CLOSED] += 1
        except ZError as error:  # too large for that session
            self.dropped[DropReason.MESSAGE_TOO_LARGE] += 1
            log.warning("%s: %s", other.session, error)

    def stamp(self) -> WireTimestamp:
        """A timestamp greater than all before, by the clock of this node."""
        with self.lock:
            return self.clock.stamp(self._ntp64())

    def reserve_stamps(self, count: int) -> int:
        """The time of the first of so many timestamps that nobody else gets."""
        with self.lock:
            return self.clock.reserve(count, self._ntp64()) + 1

    def stamp_columns(self, columns: "PushColumns", times: Any) -> "PushColumns":
        """With a timestamp for every row that has none: times[row]."""
        import numpy as np

        from zenlake.wire.kernels.emit import EncodedTable

        bare = columns.clock < 0
        if not bare.any():
            return columns
        clocks, own = columns.clocks, self._clock_bytes
        data = np.concatenate([clocks.data, np.frombuffer(own, np.uint8)])
        offsets = np.append(clocks.offsets, len(data))
        time, clock = columns.time.copy(), columns.clock.copy()
        time[bare] = times[bare]
        clock[bare] = len(clocks.offsets) - 1
        return columns._replace(time=time, clock=clock, clocks=EncodedTable(offsets, data))

    def _stamp(self) -> bytes:
        w = ByteWriter()
        write_timestamp(w, "timestamp", self.stamp())
        return bytes(w.out)

    def _find_route(self, port: SessionFace, name: Any) -> InboundRoute | None:
        number, suffix = name if type(name) is tuple else (name, b"")
        wire = WireExpr(number & 0xFFFF, suffix.decode(), Mapping(number >> 16))
        with self.lock:
            text = self.routing.received_key(port.face, wire)
            if text is None:  # which the routing has counted
                return None
            local: tuple[Any, ...] = ()
            out = []
            for face in self.routing.destinations(port.face, text):
                if face.is_local:
                    local = self.local.who_hears(text)
                elif face.link is not None:
                    key = self._wire_key(face, text)
                    w = ByteWriter()
                    write_wireexpr(w, key)
                    out.append((face.link, key, flags_of(key), bytes(w.out)))
        route = InboundRoute(KeyExpr.trusted(text), local, tuple(out))
        if len(port.routes) >= MAX_ROUTES:
            port.routes.clear()
        if len(text) <= LONG_KEY:
            port.routes[name] = route
        return route

    # ---- PUSH, many at a time

    def _scan(self, port: SessionFace, reliable: bool, data: bytes, pos: int, end: int) -> int:
        assert self._kernels is not None
        scanner, grouper = self._kernels
        view = memoryview(data)[pos:end]
        done = pos
        for rows, consumed, error in scanner.bare(view, reliable=reliable):
            at = 0
            while at < len(rows):
                run = grouper.run(view, pos, rows, at)
                if run.stop > at:
                    self._on_run(port, reliable, data, run)
                    at = run.stop
                else:
                    start = pos + int(rows[at]["start"])
                    if rows[at]["kind"] == PUSH:
                        self._push_object(port, reliable, data, start, end)
                    else:
                        self._one_message(port, data, start, end)
                    at += 1
            done = pos + consumed
            if error is not None:
                error.offset += pos
                raise error
        return done

    def deliver_own(
        self,
        data: bytes,
        who: Callable[[str], tuple[Any, ...]],
        found: kernel_loader.Kernels | None = None,
        *,
        reliable: bool = True,
        port: SessionFace | None = None,
    ) -> list[Backpressured]:
        """PUSH messages with keys in full to subscribers here; gives those that have enough."""
        if found is None:
            kernel_loader.load()
            found = kernel_loader.make()
        assert found is not None
        full: list[Backpressured] = []
        view = memoryview(data)
        for rows, _, error in found.scanner.bare(view, reliable=reliable):
            if error is not None:
                raise error
            run = found.grouper.run(view, 0, rows, 0)
            routes: list[InboundRoute | None] = []
            for _, suffix in run.keys:
                key = KeyExpr.trusted(suffix.decode())
                routes.append(InboundRoute(key, who(key), ()))
            full += self._deliver_run(data, run, routes, KeyTable(), port)
        return full

    def _on_run(self, port: SessionFace, reliable: bool, data: bytes, run: "PushRun") -> None:
        if self.stamps and not self._in_time(run):
            for row in run.rows[run.first : run.stop]:  # some come from the future
                start, end = run.base + int(row["start"]), run.base + int(row["end"])
                self._push_object(port, reliable, data, start, end)
            return
        routes: list[InboundRoute | None] = []
        for number, suffix in run.keys:
            name: Any = (number, suffix) if suffix else number
            routes.append(port.routes.get(name) or self._find_route(port, name))
        unknown = routes.count(None)
        if unknown:
            lost = [code for code, route in enumerate(routes) if route is None]
            count = sum(int((run.codes == code).sum()) for code in lost)
            self.routing.count_unknown(count - unknown)  # each key was counted once
        stamps = (0, b"")
        if self.stamps and run.stampless:
            with self.lock:
                stamps = (self.clock.reserve(len(run), self._ntp64()), self._clock_bytes)
        if stamps[1] and any(route and route.local for route in routes):
            filled = self._deliver_stamped(port, reliable, run, routes, stamps)
        else:
            filled = self._deliver_run(data, run, routes, port.face.keys, port)
        for full in filled:
            self._hold(port, full)
        self._forward_run(port, reliable, run, routes, stamps)

    def _in_time(self, run: "PushRun") -> bool:
        """Whether no timestamp is too far ahead; takes note of the latest."""
        latest = int(run.rows["time"][run.first : run.stop].max())
        try:
            with self.lock:
                self.clock.update(WireTimestamp(latest, self.zid), self._ntp64())
        except ClockDrift:
            return False
        return True

    def _deliver_run(
        self,
        data: bytes,
        run: "PushRun",
        routes: "Sequence[InboundRoute | None]",
        keys_of: KeyTable,
        port: SessionFace | None,
    ) -> list[Backpressured]:
        """Once for those that want the same of it, in order; gives those that have enough."""
        full: list[Backpressured] = []
        for subscribers, wanted in _shares(routes):
            starts, ends, rows, codes = run.starts, run.ends, None, run.codes
            if len(wanted) < run.groups:
                rows = run.chosen([code in wanted for code in range(run.groups)])
                starts, ends, codes = starts[rows], ends[rows], codes[rows]
            keys: Iterable[KeyExpr]
            first = routes[int(codes[0])]
            if run.groups == 1 and first is not None:
                keys = repeat(first.key)
            else:
                names = [route.key if route else None for route in routes]
                keys = map(names.__getitem__, codes.tolist())  # type: ignore[arg-type]
            full += self.local.deliver(
                subscribers,
                keys,
                data,
                starts,
                ends,
                (),
                len(starts),
                (run, rows, keys_of, port),
                None,
            )
        return full

    def _deliver_stamped(
        self,
        port: SessionFace,
        reliable: bool,
        run: "PushRun",
        routes: "Sequence[InboundRoute | None]",
        stamps: tuple[int, bytes],
    ) -> list[Backpressured]:
        """The same, with timestamps: written anew, and read again."""
        from zenlake.wire.push_run import rewrite

        keys = [
            WireExpr(0, route.key) if route is not None and route.local else None
            for route in routes
        ]
        data = bytes(rewrite(run, keys, *stamps).data)
        self._second = self._second or kernel_loader.make()
        who = self.local.who_hears
        return self.deliver_own(data, who, self._second, reliable=reliable, port=port)

    def _forward_run(
        self,
        port: SessionFace,
        reliable: bool,
        run: "PushRun",
        routes: "Sequence[InboundRoute | None]",
        stamps: tuple[int, bytes],
    ) -> None:
        """To each session that wants some of it, with keys as it knows them; written once for all
        that know them alike."""
        keys: dict[SessionFace, list[WireExpr | None]] = {}
        for code, route in enumerate(routes):
            for other, wire, _, _ in route.out if route is not None else ():
                keys.setdefault(other, [None] * len(routes))[code] = wire
        if not keys:
            return
        from zenlake.wire.push_run import rewrite

        written = {}
        for other, wires in keys.items():
            name = tuple(wires)
            if name not in written:
                qos = run.rows["qos"][run.first : run.stop]
                if None in wires:
                    qos = qos[run.chosen([wire is not None for wire in wires])]
                written[name] = (*rewrite(run, wires, *stamps), qos)
            self._pass_run(port, other, *written[name], reliable)

    def _pass_run(
        self,
        port: SessionFace,
        other: SessionFace,
        data: memoryview,
        ends: Any,
        qos: Any,
        reliable: bool,
    ) -> None:
        """Each message takes the lane that it names itself: where it came from may have none."""
        lanes = qos & PRIORITY_BITS
        if not len(ends):
            return
        if (lanes == lanes[0]).all():
            try:
                other.session.send_run(data, ends, qos, reliable, int(lanes[0]))
            except SessionEnded:
                self.dropped[DropReason.SESSION_CLOSED] += len(ends)
            self._pace(port, other)
            return
        start = 0
        for end, level in zip(ends.tolist(), qos.tolist(), strict=True):
            self._pass(port, other, bytes(data[start:end]), level, reliable)
            start = end

    # ---- back-pressure

    def _hold(self, port: SessionFace, full: Backpressured) -> None:
        """Read no more from a session until the one it filled has room."""
        with self.lock:
            port.held += 1
        port.session.pause()
        full.when_room(lambda: self._let_go(port))

    def _pace(self, port: SessionFace, other: SessionFace) -> None:
        """Read no more from a session while one that it sends to follows, but slowly."""
        if other not in port.paced and _lags(other.session, self.now):
            port.paced.add(other)
            with self.lock:
                port.held += 1
            port.session.pause()
            self._look_again(port, other)

    def _look_again(self, port: SessionFace, other: SessionFace) -> None:
        if _lags(other.session, self.now):
            self.call_later(PACE_SECONDS, lambda: self._look_again(port, other))
        else:
            port.paced.discard(other)
            self._let_go(port)

    def _let_go(self, port: SessionFace) -> None:
        with self.lock:
            port.held -= 1
            if port.held:
                return
        port.session.resume()


def _shares(routes: "Sequence[InboundRoute | None]") -> "list[tuple[tuple[Any, ...], set[int]]]":
    """The subscribers, together if they want the same keys, and the numbers of those keys.

    One that hears of several keys gets them all at once: what comes is not sorted by key.
    """
    sets: dict[int, tuple[tuple[Any, ...], set[int]]] = {}
    for code, route in enumerate(routes):
        if route is not None and route.local:
            sets.setdefault(id(route.local), (route.local, set()))[1].add(code)
    if len(sets) < 2:
        return [*sets.values()]
    codes_of: dict[Any, set[int]] = {}
    for subscribers, codes in sets.values():
        for one in subscribers:
            codes_of.setdefault(one, set()).update(codes)
    together: dict[frozenset[int], list[Any]] = {}
    for one, codes in codes_of.items():
        together.setdefault(frozenset(codes), []).append(one)
    return [(tuple(some), {*codes}) for codes, some in together.items()]


def _lags(session: TransportSession, now: Callable[[], float]) -> bool:
    """Whether much waits for it that must not be dropped, and it takes some of that."""
    waiting, since = session.lag
    return since is not None and waiting > PACE_BYTES and now() - since < MOVES_SECONDS
