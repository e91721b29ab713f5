"""Inbound frames: the bytes of a FRAME become puts, objects or runs, and each finds its route.

Knows three ways to read a FRAME: a plain PUSH by hand, any message by the object codec, and many
messages by the compiled scan. Delivering and forwarding are in local_delivery.py, forwarding.py.
"""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from zenlake.errors import ClockDrift, Reason, SessionEnded
from zenlake.keyexpr import KeyExpr
from zenlake.runtime import kernel_loader
from zenlake.runtime.backpressure import Backpressure
from zenlake.runtime.forwarding import Forwarder
from zenlake.runtime.local_delivery import (
    Backpressured,
    Delivery,
    LocalDelivery,
    LocalSession,
    RawPush,
    Routes,
)
from zenlake.runtime.session_face import InboundRoute, ReceivedKey, SessionFace
from zenlake.runtime.transport_session import TransportSession
from zenlake.shm.segment import ShmError
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.lanes import skip_messages
from zenlake.wire.cursor import ByteReader, encode
from zenlake.wire.declare import ID as DECLARE
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.enums import Mapping, WirePriority
from zenlake.wire.network import NETWORK, NetworkMessage, is_network
from zenlake.wire.oam import LINK_STATE, NetworkOam
from zenlake.wire.plain_push import PlainPutFields, read_plain_push
from zenlake.wire.push import ID as PUSH
from zenlake.wire.push import Push
from zenlake.wire.put import FLAG_TIMESTAMP, Put
from zenlake.wire.put import ID as PUT
from zenlake.wire.request import Request
from zenlake.wire.response import ID as RESPONSE
from zenlake.wire.response import Response
from zenlake.wire.timestamp import WireTimestamp, write_timestamp
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    from zenlake.runtime.exchange import Exchange
    from zenlake.shm.pointers import SharedPuts
    from zenlake.shm.session import ShmSession
    from zenlake.wire.push_run import PushRun

log = logging.getLogger("zenlake.runtime")

SCAN_FROM = 512  # Bytes behind the first message of a FRAME from which on the scan is faster.
SHARED_FROM = 400  # Bytes of messages with pointers from which on reading them together is faster.
IN_RUNS = (PUSH, RESPONSE)  # Messages that are handled many at a time.
STACKED = (Push, Request, Response)  # Messages that may carry a timestamp stack.


class InboundFrames:
    """The node's handler: takes the events of an exchange's sessions, on the I/O thread."""

    def __init__(self, exchange: "Exchange", local: LocalSession) -> None:
        self._exchange = exchange
        self._local = local
        self._delivery: LocalDelivery = exchange.delivery
        self._forwarder: Forwarder = exchange.forwarder
        self._backpressure: Backpressure = exchange.backpressure
        self._kernels: kernel_loader.Kernels | None = None
        self._stamped_kernels: kernel_loader.Kernels | None = None
        "Second pair of readers, for a run that is read again while the first pair is in use."

    def opened(self, session: TransportSession) -> None:
        """Make `session` a face of the routing."""
        self._exchange.open_face(session)

    def closed(self, session: TransportSession, why: SessionEnded) -> None:
        """Remove the face of `session`."""
        self._exchange.close_face(session, why)

    def on_frame(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        """Route the network messages of a FRAME; return where they end (see `NodeHandler`)."""
        session_face: SessionFace | None = session.face
        if session_face is None:  # The session was refused and is being closed.
            return skip_messages(data, pos, end)
        if session_face.routes.version != self._exchange.version:
            session_face.routes.renew(self._exchange.version)
        shm = session.shm
        while pos < end and is_network(data[pos]):
            put = read_plain_push(data, pos, end)
            more = end - (put[-1] if put is not None else pos)
            is_other_push = put is None and data[pos] & ID_MASK == PUSH
            if shm is not None and is_other_push:
                if more >= SHARED_FROM:
                    done = self._on_shared_puts(session_face, shm, reliable, data, pos, end)
                else:
                    done = self._on_shared_put(session_face, shm, data, pos, end)
                if done > pos:
                    pos = done
                    continue
            if more >= SCAN_FROM and (self._kernels or self._load_kernels()):
                done = self._scan(session_face, reliable, data, pos, end)
                if shm is None:
                    return done
                if done > pos:
                    pos = done
                    continue
            if put is not None:
                self._on_plain_put(session_face, reliable, data, pos, put)
                pos = put[-1]
            elif data[pos] & ID_MASK == PUSH:
                pos = self._on_push(session_face, reliable, data, pos, end)
            else:
                pos = self._on_message(session_face, data, pos, end)
        return pos

    def _load_kernels(self) -> bool:
        self._kernels = kernel_loader.make()
        return self._kernels is not None

    # ---- one message

    def _on_message(self, session_face: SessionFace, data: bytes, pos: int, end: int) -> int:
        """Decode any message but a PUSH and route it; return where it ends. Declarations that a
        member of a group repeats are skipped."""
        repeated = session_face.repeated
        if repeated is not None and (done := repeated.skip(data, pos, end)) > pos:
            return done
        shm = session_face.session.shm
        r = ByteReader(data, pos, end, shm=shm is not None)
        message = NETWORK.read(r)
        if repeated is not None:
            repeated.note(message, data[pos : r.pos])
        if shm is not None and not self._expand(session_face.session, shm, message):
            return r.pos
        if type(message) is NetworkOam and message.id == LINK_STATE:
            session_face.session.link_states(message.body)
        self._exchange.on_message(session_face, stamp_route(message, self._local))
        return r.pos

    def _on_plain_put(
        self, session_face: SessionFace, reliable: bool, data: bytes, pos: int, put: PlainPutFields
    ) -> None:
        """Deliver and forward a put that was read by hand; no object is made of it."""
        exchange = self._exchange
        name, after_key, body, qos, start, stop = put
        try:
            route = session_face.routes.get(name) or exchange.find_route(session_face, name)
        except UnicodeDecodeError:  # The codec raises the error with its position.
            self._on_push(session_face, reliable, data, pos, stop)
            raise
        if route is None:
            return
        if route.local and exchange.stamps:  # Subscribers get the timestamp, too.
            self._on_push(session_face, reliable, data, pos, stop)
            return
        if route.local:
            rest = None if after_key == body else pos
            message = (session_face, reliable, name, data, pos, stop, None)
            delivery = Delivery((route.key,), data, (start,), (stop,), 1, (rest,), None, message)
            for full in self._local.deliver(route.local, delivery):
                self._backpressure.pause_until_room(session_face, full)
        if route.out:
            head = bytes((PUT,))
            if exchange.stamps:
                stamp = encode(write_timestamp, "timestamp", exchange.stamp())
                head = bytes((PUT | FLAG_TIMESTAMP,)) + stamp
            tail = data[after_key:body] + head + data[body + 1 : stop]
            self._forwarder.forward_put(session_face, route.out, data[pos], tail, qos, reliable)

    def _on_shared_put(
        self, session_face: SessionFace, shm: "ShmSession", data: bytes, pos: int, end: int
    ) -> int:
        """Deliver a put with a pointer into shared memory, whose payload stays where it is; return
        where it ends, or `pos`: it has to be decoded, for it is not plain, or wanted otherwise."""
        if not (self._kernels and shm.views) or self._exchange.stamps:
            return pos  # Few puts do not have the kernels loaded.
        shared = shm.read_one(data, pos, end)
        put = None if shared is None else read_plain_push(shared.head, 0, len(shared.head))
        if shared is None or put is None:
            return pos
        name, after_key, body, *_ = put
        route = session_face.routes.get(name)
        if route is None or route.out or self._local.takes_bytes(route.local):
            return pos
        held = shared.hold()
        if held is None:
            session_face.session.drop_received(DropReason.SHM_UNREADABLE)
            return shared.end
        rests = (None if after_key == body else 0,)
        delivery = Delivery((route.key,), shared.head, (0,), (0,), 1, rests, payloads=held)
        for full in self._local.deliver(route.local, delivery):
            self._backpressure.pause_until_room(session_face, full)
        return shared.end

    def _on_push(
        self, session_face: SessionFace, reliable: bool, data: bytes, pos: int, end: int
    ) -> int:
        """Decode a PUSH by the object codec, deliver and forward it; return where it ends."""
        exchange = self._exchange
        shm = session_face.session.shm
        r = ByteReader(data, pos, end, shm=shm is not None)
        push: Push = NETWORK.read(r)
        shared = type(push.body) is Put and push.body.shm
        if shm is not None and not self._expand(session_face.session, shm, push):
            return r.pos
        key = push.key
        number = key.mapping << 16 | key.scope
        name: ReceivedKey = (number, key.suffix.encode()) if key.suffix else number
        route = session_face.routes.get(name) or exchange.find_route(session_face, name)
        if route is None:
            return r.pos
        changed = shared or exchange.stamps or push.ts_stack is not None
        if push.ts_stack is not None:
            push.ts_stack = self._local.routed(push.ts_stack)
        if exchange.stamps and type(push.body) is Put:
            try:
                with exchange.lock:
                    push.body.timestamp = exchange.routing.stamp_forwarded(push.body.timestamp)
            except ClockDrift:
                exchange.dropped[DropReason.TIMESTAMP_FUTURE] += 1
                return r.pos
        self._forwarder.forward_push(session_face, route.out, push, reliable)
        if route.local:
            message: RawPush | None = (session_face, reliable, name, data, pos, r.pos, push)
            if changed:
                message = self._reencode(session_face, reliable, route.key, push)
            for full in self._delivery.deliver_push(route.local, route.key, push, message):
                self._backpressure.pause_until_room(session_face, full)
        return r.pos

    def _expand(
        self, session: TransportSession, shm: "ShmSession", message: NetworkMessage
    ) -> bool:
        """Replace pointers into shared memory by what they point to; False: it is gone."""
        try:
            shm.expand(message)
        except ShmError as error:
            session.drop_received(DropReason.SHM_UNREADABLE)
            log.debug("%s: %s", session, error)
            return False
        return True

    def _reencode(
        self, session_face: SessionFace, reliable: bool, key: KeyExpr, push: Push
    ) -> RawPush | None:
        """Return a message that was changed here as bytes again; None if no sink takes messages."""
        if not self._exchange.wants_messages:
            return None
        push.key = WireExpr(0, key)
        data = encode(NETWORK.write, push)
        name = (push.key.mapping << 16, key.encode())
        return (session_face, reliable, name, data, 0, len(data), push)

    # ---- many messages

    def _scan(
        self, session_face: SessionFace, reliable: bool, data: bytes, pos: int, end: int
    ) -> int:
        """Scan the messages of a FRAME: PUSH messages and replies by the run, others one at a
        time. Return where they end: at a payload in shared memory, or behind the last one."""
        assert self._kernels is not None
        scanner, grouper = self._kernels
        view = memoryview(data)[pos:end]
        done = pos
        for rows, consumed, error in scanner.bare(view, reliable=reliable):
            at = 0
            while at < len(rows):
                kind, stop, handled = int(rows[at]["kind"]), at, False
                if kind in IN_RUNS:
                    run = grouper.run(view, pos, rows, at, kind)
                    stop = run.stop
                    handled = stop > at and self._on_run(session_face, reliable, data, run, kind)
                if not handled:
                    stop = max(stop, at + 1)
                    for start in rows["start"][at:stop].tolist():
                        if kind == PUSH:
                            self._on_push(session_face, reliable, data, pos + start, end)
                        else:
                            done = self._on_message(session_face, data, pos + start, end)
                    if session_face.repeated is not None and kind == DECLARE:
                        stop = max(stop, int(rows["start"].searchsorted(done - pos)))
                at = stop
            done = pos + consumed
            if error is not None:
                if error.reason is Reason.SHARED_MEMORY and session_face.session.shm is not None:
                    return done
                error.offset += pos
                raise error
        return done

    def _on_shared_puts(
        self,
        session_face: SessionFace,
        shm: "ShmSession",
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        """Handle many puts with pointers into shared memory; return where they end, or `pos`: they
        have to be handled one at a time."""
        if not (self._kernels or self._load_kernels()):
            return pos
        puts = shm.read_many(data, pos, end)
        if puts is None:
            return pos
        session = session_face.session
        session.drop_received(DropReason.SHM_UNREADABLE, puts.lost)
        if not shm.views or not self._deliver_shared(session_face, reliable, puts):
            for copied in puts.copy():
                session.drop_received(DropReason.SHM_UNREADABLE, copied.lost)
                self._scan(session_face, reliable, copied.data, 0, len(copied.data))
        return puts.end

    def _deliver_shared(
        self, session_face: SessionFace, reliable: bool, puts: "SharedPuts"
    ) -> bool:
        """Deliver puts whose payloads stay where they are; False: they are needed as bytes."""
        assert self._kernels is not None
        scanner, grouper = self._kernels
        heads = puts.heads()
        view = memoryview(heads)
        rows, _, error = next(scanner.bare(view, reliable=reliable))
        if error is not None:
            return False
        run = grouper.run(view, 0, rows, 0)
        routes = self._local_routes(session_face, run)
        if routes is None:
            return False
        keys, held = session_face.face.keys, puts.hold()
        for full in self._delivery.deliver_run(heads, run, routes, keys, session_face, held):
            self._backpressure.pause_until_room(session_face, full)
        return True

    def _local_routes(self, session_face: SessionFace, run: "PushRun") -> Routes | None:
        """Return the route of each key of a run if only subscribers of this session want it, and
        none as bytes; None: that is not so, or an id is unknown."""
        routes: list[InboundRoute] = []
        if self._exchange.stamps:
            return None
        for number, suffix in run.keys:
            name: ReceivedKey = (number, suffix) if suffix else number
            route = session_face.routes.get(name)
            if route is None:
                wire = WireExpr(number & 0xFFFF, suffix.decode(), Mapping(number >> 16))
                if session_face.face.text(wire) is not None:  # Otherwise it is counted later.
                    route = self._exchange.find_route(session_face, name)
            if route is None or route.out or self._local.takes_bytes(route.local):
                return None
            routes.append(route)
        return routes

    def _on_run(
        self, session_face: SessionFace, reliable: bool, data: bytes, run: "PushRun", kind: int
    ) -> bool:
        """Deliver and forward the messages of a run; False: they have to be handled one at a
        time."""
        if kind == RESPONSE:
            return self._exchange.on_replies(session_face, data, run)
        if self._exchange.stamps and not self._update_clock(run):
            return False  # Some timestamps are in the future.
        routes = self._find_routes(session_face, run)
        stamps = self._reserve_stamps(run)
        if stamps[1] and any(route and route.local for route in routes):
            filled = self._deliver_stamped(session_face, reliable, run, routes, stamps)
        else:
            filled = self._delivery.deliver_run(
                data, run, routes, session_face.face.keys, session_face
            )
        for full in filled:
            self._backpressure.pause_until_room(session_face, full)
        self._forwarder.forward_run(session_face, reliable, run, routes, stamps)
        return True

    def _find_routes(self, session_face: SessionFace, run: "PushRun") -> Routes:
        """Return the route of each key of a run; count the messages whose key id is unknown."""
        routes: list[InboundRoute | None] = []
        for number, suffix in run.keys:
            name: ReceivedKey = (number, suffix) if suffix else number
            routes.append(
                session_face.routes.get(name) or self._exchange.find_route(session_face, name)
            )
        unknown = routes.count(None)
        if unknown:
            lost = [code for code, route in enumerate(routes) if route is None]
            count = sum(int((run.codes == code).sum()) for code in lost)
            # The routing has counted one message of each key.
            self._exchange.routing.count_unknown(count - unknown)
        return routes

    def _update_clock(self, run: "PushRun") -> bool:
        """Update the clock by the latest timestamp of a run; False if that is too far ahead."""
        exchange = self._exchange
        latest = int(run.rows["time"][run.first : run.stop].max())
        try:
            with exchange.lock:
                exchange.clock.update(WireTimestamp(latest, exchange.zid), exchange.ntp64())
        except ClockDrift:
            return False
        return True

    def _reserve_stamps(self, run: "PushRun") -> tuple[int, bytes]:
        """Return the time before the first timestamp of a run, and the encoded clock id; an empty
        id if no message of the run gets a timestamp here."""
        if not self._exchange.stamps or not run.stampless:
            return 0, b""
        return self._exchange.reserve_stamps(len(run)) - 1, self._exchange.clock_id

    def _deliver_stamped(
        self,
        session_face: SessionFace,
        reliable: bool,
        run: "PushRun",
        routes: Routes,
        stamps: tuple[int, bytes],
    ) -> list[Backpressured]:
        """Deliver a run with timestamps: it is rewritten with them, and scanned again."""
        from zenlake.wire.push_run import rewrite

        keys = [
            WireExpr(0, route.key) if route is not None and route.local else None
            for route in routes
        ]
        data = bytes(rewrite(run, keys, *stamps).data)
        self._stamped_kernels = self._stamped_kernels or kernel_loader.make()
        return self._delivery.deliver_encoded(
            data,
            self._local.matching_subscribers,
            self._stamped_kernels,
            reliable=reliable,
            session_face=session_face,
        )


def stamp_route(message: NetworkMessage, local: LocalSession) -> NetworkMessage:
    """Return `message` with the time at which it passed this node, if it asks for that."""
    if isinstance(message, STACKED) and message.ts_stack is not None:
        return replace(message, ts_stack=local.routed(message.ts_stack))
    return message
