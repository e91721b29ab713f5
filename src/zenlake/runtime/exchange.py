"""The exchange: a node's sessions and the local session, each a face of one routing.

Knows the lock around the routing, ids, timers and the clock: all that the session above calls.
Frames are read in inbound.py, passed on in forwarding.py; backpressure.py pauses their senders.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from zenlake.errors import MessageTooLarge, SessionEnded, ZError
from zenlake.hlc import HybridLogicalClock
from zenlake.keyexpr import KeyExpr
from zenlake.quantities import ntp64_from_nanos
from zenlake.routing import Face, Out, Routing
from zenlake.runtime.backpressure import Backpressure
from zenlake.runtime.forwarding import Forwarder
from zenlake.runtime.group import Group
from zenlake.runtime.inbound import InboundFrames, stamp_route
from zenlake.runtime.local_delivery import LocalDelivery, LocalSession
from zenlake.runtime.node import Node
from zenlake.runtime.reactor import Timer
from zenlake.runtime.reply_path import ReplyPath
from zenlake.runtime.sending import MAX_BLOCK_SECONDS
from zenlake.runtime.session_face import (
    ForwardingFace,
    InboundRoute,
    LocalSubscribers,
    ReceivedKey,
    RepeatedDeclarations,
    SessionFace,
)
from zenlake.runtime.transport_session import TransportSession
from zenlake.serial import SerialExecutor
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.outbox import may_drop
from zenlake.wire.cursor import encode
from zenlake.wire.declare import Declare, DeclareKeyExpr, UndeclareKeyExpr
from zenlake.wire.enums import CloseReason, Mapping, WireWhatAmI
from zenlake.wire.network import NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.response import Response
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr, flags_of, write_wireexpr
from zenlake.wire.zenohid import WireZenohId, write_zid

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from zenlake.wire.emit import Emitter
    from zenlake.wire.kernels.emit import PushColumns
    from zenlake.wire.push_run import PushRun

log = logging.getLogger("zenlake.runtime")

REPLY_SECONDS = 1e-3  # Interval between two looks of a queryable that waits to reply.
REFUSED_LINES = 10  # Lines about refused declarations, per second.
DECLARED_AT_ONCE = 1000  # Declarations repeated before other work has its turn: about 20 ms.


class Exchange:
    """Joins the sessions of a node and its local session; one per session of the API."""

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
        "Guards the routing and everything that is computed from it."
        self.local = local
        self.dropped: Counter[DropReason] = Counter()
        "Received messages that were dropped, by reason."
        self.clock = HybridLogicalClock(zid)
        self.clock_id = encode(write_zid, "zid", zid)
        "The clock's id as timestamps carry it."
        self.wants_messages = False
        "Whether a local sink takes messages as bytes (see `RawPush`)."
        self.stamps = timestamping
        "Whether messages without a timestamp get one here."
        self._wall = wall
        self.routing = Routing(
            zid,
            whatami,
            query_timeout=query_timeout,
            hlc=self.clock if timestamping else None,
            wall=self.ntp64,
            drop_future_timestamp=drop_future_timestamp,
        )
        self.closed = False
        "Whether the local session is closed."
        self.version = 0
        "Changes whenever a cached route may be outdated."
        self._routing_version = self.routing.version
        self._node: Node | None = None
        self._ids = 0
        self._local_messages = SerialExecutor("exchange")
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self.backpressure = Backpressure(self)
        self.delivery = LocalDelivery(local)
        self.forwarder = Forwarder(self)
        self.handler = InboundFrames(self, local)
        "The node's handler."

    # ---- for the session above, on any thread

    @property
    def node(self) -> Node:
        """The node below. ZError: the session has none."""
        if self._node is None:
            raise ZError("session closed")
        return self._node

    def attach(self, node: Node) -> None:
        """Use `node`, whose handler is `self.handler`."""
        self._node = node
        node.on_gap = self.local.lost
        node.on_group = self._group_changed
        node.on_newcomers = self._declare_again

    def now(self) -> float:
        """Return the time of the node's event loop."""
        return self.node.reactor.now()

    def ntp64(self) -> int:
        """Return the wall clock's time as NTP64."""
        return ntp64_from_nanos(self._wall())

    def next_id(self) -> int:
        """Return an id for an entity, declaration, interest or request: never the same twice."""
        with self.lock:
            self._ids += 1
            return self._ids

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call `call` on the I/O thread after `seconds`."""
        reactor = self.node.reactor
        return reactor.call_at(reactor.now() + seconds, call)

    def send(self, message: NetworkMessage) -> None:
        """Route a message of the local session; never waits. Keys are full text.

        MessageTooLarge: it is a reply that is too large for the session that asked.
        """
        if self.closed:
            raise ZError("session closed")
        message = stamp_route(message, self.local)
        with self.lock:
            out = self.routing.on_message(self.routing.local, message, self.now())
            refused = self._dispatch(out)
        self._deliver_local()
        if refused is not None and type(message) is Response:
            raise refused

    def has_reply_room(self, request_id: int) -> bool:
        """Return whether the session that sent a request follows its replies: only then is another
        one sent without a wait."""
        query = self.routing.local.requests.get(request_id)
        if query is None or query.face.link is None or may_drop(query.qos):
            return True
        return not self.backpressure.holds_senders(query.face.link)

    def await_reply_room(self, request_id: int) -> None:
        """Wait for `has_reply_room` while the link makes progress, for MAX_BLOCK_SECONDS at most;
        the I/O thread does not wait."""
        if self.node.reactor.inside:
            return
        until = self.now() + MAX_BLOCK_SECONDS
        while not self.has_reply_room(request_id) and self.now() < until:
            time.sleep(REPLY_SECONDS)

    def reply_path(self, request_id: int) -> ReplyPath | None:
        """Return the way back of replies to a request of another session; None: its query has
        ended."""
        with self.lock:
            query = self.routing.local.requests.get(request_id)
            if query is None or query.face.link is None:
                return None
            return ReplyPath(self.routing.local.requests, request_id, query)

    def send_replies(self, path: ReplyPath, rows: "Emitter") -> bool:
        """Send some of the replies that are `rows`; never waits. False: there is no room now, or
        the query has ended. An ERR is sent in place of a reply that is too large."""
        first = rows.row
        with self.lock:
            if not path.is_open:
                return False
            try:
                path.session.offer_rows(rows, path.query.qos, path.query.left)
            except SessionEnded:
                path.broken = True  # `close_face` follows.
            except MessageTooLarge as error:
                rows.row += 1
                path.refused += 1
                self._refuse(path.query.face.link, path.like, error)
            self._dispatch(self.routing.count_replies(path.query, rows.row - first))
        self._deliver_local()
        return rows.row > first

    def forget_query(self, request_id: int) -> None:
        """Drop later replies to a query of the local session."""
        with self.lock:
            self.routing.forget_query(self.routing.local, request_id)

    def changed(self) -> None:
        """Invalidate cached routes: the local subscriber set changed."""
        with self.lock:
            self.version += 1

    def outbound_faces(
        self, key: str, declare: bool = False
    ) -> tuple[tuple[SessionFace, WireExpr], ...]:
        """Return the sessions that want puts of the local session on `key`, each with the key as it
        knows it; `declare`: more puts on it follow, which pays for an id. The result holds while
        `version` stays the same."""
        with self.lock:
            return tuple(
                (face.link, self._wire_key(face, key, declare))
                for face in self.routing.destinations(self.routing.local, key)
                if not face.is_local and face.link is not None
            )

    def close(self) -> None:
        """Refuse further messages of the local session; its node is closed by the caller."""
        self.closed = True

    def abandon(self) -> None:
        """Close the exchange in the child of a fork, where the holder of the lock is gone."""
        self.lock = threading.RLock()
        self.closed = True
        self.version += 1  # Publishers refresh their routes, and find none.

    # ---- timestamps

    def stamp(self) -> WireTimestamp:
        """Return a timestamp of this node's clock, greater than all before."""
        with self.lock:
            return self.clock.stamp(self.ntp64())

    def reserve_stamps(self, count: int) -> int:
        """Reserve `count` consecutive HLC timestamps; return the time of the first."""
        with self.lock:
            return self.clock.reserve(count, self.ntp64()) + 1

    def stamp_columns(
        self, columns: "PushColumns", times: "npt.NDArray[np.uint64]"
    ) -> "PushColumns":
        """Return `columns` with the timestamp times[row] for every row that has none."""
        import numpy as np

        from zenlake.wire.kernels.emit import EncodedTable

        bare = columns.clock < 0
        if not bare.any():
            return columns
        clocks, own = columns.clocks, self.clock_id
        data = np.concatenate([clocks.data, np.frombuffer(own, np.uint8)])
        offsets = np.append(clocks.offsets, len(data))
        time, clock = columns.time.copy(), columns.clock.copy()
        time[bare] = times[bare]
        clock[bare] = len(clocks.offsets) - 1
        return columns._replace(time=time, clock=clock, clocks=EncodedTable(offsets, data))

    # ---- the routing, under the lock

    def on_message(self, session_face: SessionFace, message: NetworkMessage) -> None:
        """Route a message that `session_face` received. On the I/O thread, without the lock.

        NeighbourLimit: the peer exceeded a limit with it, and the session has to end.
        """
        before = session_face.face.initial_done
        with self.lock:
            if type(message) is Declare and type(message.body) is UndeclareKeyExpr:
                self.version += 1  # Routes may use the id.
            out = self.routing.on_message(session_face.face, message, self.now())
            self._dispatch(out)
            session_face.routes.renew(self.version)
        for face, _ in out:
            if face.link is not None:
                self.backpressure.throttle(session_face, face.link)
        self._deliver_local()
        if session_face.face.initial_done and not before:
            self.local.declared(session_face.session)
        if session_face.face.exceeded is not None:
            raise session_face.face.exceeded
        if session_face.face.refused is not None:
            self._report_refused(session_face, REFUSED_LINES)

    def _report_refused(self, session_face: SessionFace, lines: int) -> None:
        """Log a declaration or put that was refused: what its sender expects will not happen."""
        what, session_face.face.refused = session_face.face.refused, None
        who = session_face.session
        self.node.log_limited("refused", "%s: refused %s", who, what, lines=lines)

    def on_replies(self, session_face: SessionFace, data: bytes, run: "PushRun") -> bool:
        """Route a run of replies that `session_face` received. On the I/O thread, without the lock.
        False: something is unusual, and each has to be routed by `on_message`."""
        from zenlake.wire.reply_run import ReplyRun

        with self.lock:
            number = int(run.rows[run.first]["request_id"])
            query = self.routing.unlimited_query(session_face.face, number)
            if query is None:
                return False
            keys = self._reply_keys(session_face.face, run)
            if keys is None:
                return False
            if not query.face.is_local:
                return self.forwarder.forward_replies(session_face, run, query, keys)
            rows = run.rows[run.first : run.stop]
            # Copies: the next scan overwrites the rows and the codes.
            replies = ReplyRun(
                query.id, query.qos, keys, run.codes.copy(), data, run.base, rows.copy()
            )
            self._local_messages.submit(partial(self.local.on_replies, replies))
        self._deliver_local()
        return True

    def _reply_keys(self, face: Face, run: "PushRun") -> list[str] | None:
        """Return the keys of a run in full; None: one of them is unknown, or not valid."""
        keys = []
        for number, suffix in run.keys:
            wire = WireExpr(number & 0xFFFF, suffix.decode(), Mapping(number >> 16))
            text = face.text(wire)
            if text is None:
                return None
            keys.append(text)
        return keys

    def find_route(self, session_face: SessionFace, name: ReceivedKey) -> InboundRoute | None:
        """Compute and cache the route of a received key; None: its id is unknown."""
        number, suffix = (name, b"") if isinstance(name, int) else name
        wire = WireExpr(number & 0xFFFF, suffix.decode(), Mapping(number >> 16))
        with self.lock:
            text = self.routing.received_key(session_face.face, wire)
            if text is None:  # The routing has counted it.
                self._report_refused(session_face, 1)
                return None
            local: LocalSubscribers = ()
            out: list[ForwardingFace] = []
            for face in self.routing.destinations(session_face.face, text):
                if face.is_local:
                    local = self.local.matching_subscribers(text)
                elif face.link is not None:
                    # What the sender declared has an id here; a key in full is used once.
                    key = self._wire_key(face, text, isinstance(name, int))
                    encoded = encode(write_wireexpr, key)
                    out.append(ForwardingFace(face.link, key, flags_of(key), encoded))
        route = InboundRoute(KeyExpr.trusted(text), local, tuple(out))
        return session_face.routes.keep(name, route, len(text))

    def _wire_key(self, face: Face, key: str, declare: bool) -> WireExpr:
        """Return `key` as `face` knows it; with `declare` it is told a new id first."""
        wire, first = self.routing.wire_key(face, key, declare)
        if first is None:
            return wire
        self._send_control(face.link, first)
        return self.routing.wire_key(face, key)[0]  # In full, if the declaration does not fit.

    def _dispatch(self, out: Out) -> MessageTooLarge | None:
        """Hand the messages that the routing gave to their faces, and set the timer it asks for.
        Return the error of the first message that was too large."""
        refused: MessageTooLarge | None = None
        for face, message in out:
            if face.is_local:
                self._local_messages.submit(partial(self._deliver_message, message))
            elif face.link is not None:
                refused = self._send_control(face.link, message) or refused
        if self._routing_version != self.routing.version:
            self._routing_version = self.routing.version
            self.version += 1
        deadline = self.routing.deadline
        if deadline is not None and (self._timer is None or deadline < self._timer_at):
            self._arm(deadline)
        return refused

    def _send_control(
        self, session_face: SessionFace, message: NetworkMessage
    ) -> MessageTooLarge | None:
        """Send `message`, and what the routing sends instead if it is too large."""
        try:
            session_face.session.post(message)
        except SessionEnded:
            self.dropped[DropReason.SESSION_CLOSED] += 1  # `close_face` follows.
        except MessageTooLarge as error:
            if type(message) is Declare and type(message.body) is DeclareKeyExpr:
                session_face.face.keys_in_full = True  # Its peer does not know the id.
            self._refuse(session_face, message, error)
            return error.within(str(session_face.session))
        except ZError as error:
            self.dropped[DropReason.ENCODE_FAILED] += 1
            log.warning("%s: %s", session_face.session, error)
        return None

    def _refuse(
        self, session_face: SessionFace, message: NetworkMessage, error: MessageTooLarge
    ) -> None:
        """Count a message that is too large, and send what the routing sends instead."""
        self.dropped[DropReason.MESSAGE_TOO_LARGE] += 1
        session_face.session.warn_too_large(error)
        self._dispatch(self.routing.refuse(session_face.face, message))

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.node.reactor.call_at(deadline, self._on_time)

    def _on_time(self) -> None:
        with self.lock:
            self._timer = None
            self._dispatch(self.routing.on_time(self.now()))
        self._deliver_local()

    # ---- for the local session, without the lock

    def _deliver_local(self) -> None:
        """Deliver queued messages to the local session, in order, on one thread at a time."""
        self._local_messages.run()

    def _deliver_message(self, message: NetworkMessage) -> None:
        if type(message) is not Push:
            self.local.on_message(message)
            return
        key = KeyExpr.trusted(message.key.suffix)
        subscribers = self.local.matching_subscribers(key)
        if subscribers:
            self.delivery.deliver_push(subscribers, key, message, None)

    # ---- sessions, on the I/O thread

    def open_face(self, session: TransportSession) -> None:
        """Make `session` a face of the routing; close it if the routing refuses it."""
        agreed = session.agreement
        with self.lock:
            try:
                if session.group is None:
                    face, out = self.routing.open(
                        agreed.zid, agreed.whatami, self.now(), keys_in_full=not session.in_order
                    )
                else:
                    group = session.group.face.face
                    face, out = self.routing.open_member(agreed.zid, agreed.whatami, group), []
            except ZError as error:
                log.warning("%s: %s", session, error)
                session.close(CloseReason.GENERIC)
                return
            session_face = SessionFace(session, face)
            if session.group is not None:
                session_face.repeated = RepeatedDeclarations()
            face.link = session_face
            session.face = session_face
            self._dispatch(out)
        self._deliver_local()
        self.local.opened(session)
        if face.initial_done:
            self.local.declared(session)

    def _group_changed(self, group: Group, joined: bool) -> None:
        """Make a multicast group a face of the routing, or remove it. On any thread."""
        with self.lock:
            if joined:
                face, out = self.routing.open_group(self.now())
                # Nothing is received from this face: the members have faces of their own.
                face.link = group.face = SessionFace(group, face)  # type: ignore[arg-type]
            else:
                out = self.routing.close(group.face.face, self.now())
                group.face.face.link = None
            self._dispatch(out)
        self._deliver_local()

    def _declare_again(self, group: Group) -> Iterator[None]:
        """Repeat the declarations to a group, for its newest members, some at each step."""
        face = group.face.face
        with self.lock:
            slots = list(face.sent_declarations)
        for first in range(0, len(slots), DECLARED_AT_ONCE):
            with self.lock:
                again = slots[first : first + DECLARED_AT_ONCE]
                self._dispatch(self.routing.declare_again(face, again))
            yield

    def close_face(self, session: TransportSession, why: SessionEnded) -> None:
        """Remove the face of a session that ended."""
        session_face: SessionFace | None = session.face
        if session_face is not None:
            with self.lock:
                self._dispatch(self.routing.close(session_face.face, self.now()))
                session_face.face.link = None
                session_face.routes.clear()
            self._deliver_local()
            self.local.closed(session, why)
