"""Routing engine: the routing tables of one node, and the dispatch of messages to them.

Pure: messages of faces and the time go in, messages for faces come out. Does not know links; the
tables are in the modules beside it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from zenlake.errors import ClockDrift
from zenlake.hlc import HybridLogicalClock
from zenlake.routing.declarations import SUBSCRIBERS, DeclarationTables
from zenlake.routing.face import DeclarationSlot, Face, Out
from zenlake.routing.queries import PendingQuery, QueryRouter
from zenlake.routing.topology import Topology
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.declare import Declare
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.interest import Interest
from zenlake.wire.network import NetworkMessage
from zenlake.wire.oam import NetworkOam
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

FROM_MEMBERS = (Push, Declare)
"Messages taken from members of a group. Rust sends no other kinds to one."
QUERY_SECONDS = 10.0  # Timeout of a query that has none (zenoh-config queries_default_timeout).


class Routing:
    """Routing tables of one node. The local session is a face like any other, `local`.

    No message returns to the face that sent it, except for tokens: a client and the local session
    get their own tokens, once each, if their interests cover tokens. So the session itself must
    deliver its own data and queries to itself, but not its own tokens.

    With `hlc` (and `wall`, the NTP64 time) a forwarded PUT without a timestamp is given one.

    >>> from zenlake.wire.declare import DeclareSubscriber
    >>> routing = Routing(WireZenohId.parse("a1"), WireWhatAmI.ROUTER)
    >>> face, out = routing.open(WireZenohId.parse("c1"), WireWhatAmI.CLIENT, now=0.0)
    >>> subscriber = Declare(DeclareSubscriber(1, WireExpr(0, "a/**")))
    >>> routing.on_message(face, subscriber, 0.0)
    []
    >>> routing.destinations(routing.local, "a/b")
    (Face(CLIENT c1),)
    """

    def __init__(
        self,
        zid: WireZenohId,
        whatami: WireWhatAmI,
        *,
        query_timeout: float = QUERY_SECONDS,
        hlc: HybridLogicalClock | None = None,
        wall: Callable[[], int] | None = None,
        drop_future_timestamp: bool = False,
    ) -> None:
        if hlc is not None and wall is None:
            raise ValueError("a clock that stamps needs the time: give wall=, NTP64 of now")
        self._topology = Topology(zid, whatami)
        self._declarations = DeclarationTables(self._topology)
        self._queries = QueryRouter(self._topology, self._declarations, query_timeout)
        self._hlc = hlc
        self._wall = wall
        self._drop_future = drop_future_timestamp
        self._on: dict[type, Callable[[Face, Any, float, Out], None]] = {
            Push: self._on_push,
            Request: self._queries.on_request,
            Response: self._queries.on_response,
            ResponseFinal: self._queries.on_final,
            Declare: self._declarations.on_declare,
            Interest: self._declarations.on_interest,
            NetworkOam: self._on_oam,
        }

    @property
    def local(self) -> Face:
        """The face of the local session."""
        return self._topology.local

    @property
    def faces(self) -> tuple[Face, ...]:
        """The open neighbours; the local session is not one of them."""
        return tuple(face for face in self._topology.faces if not face.is_local)

    @property
    def version(self) -> int:
        """Number that changes whenever `destinations` may answer differently."""
        return self._topology.version

    @property
    def counters(self) -> Counter[DropReason]:
        """Messages ignored, refused or given up, by reason."""
        return self._topology.counters

    # ---- faces

    def open(
        self, zid: WireZenohId, whatami: WireWhatAmI, now: float, *, keys_in_full: bool = False
    ) -> tuple[Face, Out]:
        """Open a face for a new session; return it and its first messages.

        `keys_in_full`: its link may lose or reorder messages, so no key ids are used.
        ZError: no session between nodes of these roles is supported.
        """
        out: Out = []
        face, changed = self._topology.add(zid, whatami, keys_in_full)
        self._declarations.open(face, out)
        self._declarations.on_passing_changed(changed, out)
        return face, out

    def open_group(self, now: float) -> tuple[Face, Out]:
        """Open a face for a multicast group; return it and its first messages."""
        out: Out = []
        face = self._topology.add_group()
        self._declarations.open(face, out)
        return face, out

    def open_member(self, zid: WireZenohId, whatami: WireWhatAmI, group: Face) -> Face:
        """Open a face for a member of a multicast group: it sends, and gets nothing itself."""
        return self._topology.add_member(zid, whatami, group)

    def declare_again(self, group: Face, slots: Iterable[DeclarationSlot]) -> Out:
        """Return declarations that a group was sent, for members that have joined since."""
        out: Out = []
        self._declarations.declare_again(group, slots, out)
        return out

    def close(self, face: Face, now: float) -> Out:
        """Remove everything of a face whose session ended; return the messages for other faces."""
        out: Out = []
        if face.is_open:
            changed = self._topology.remove(face)
            self._queries.close(face, out)
            self._declarations.close(face, out)
            self._declarations.on_passing_changed(changed, out)
        return out

    # ---- messages and time

    def on_message(self, face: Face, message: NetworkMessage, now: float) -> Out:
        """Handle a message of a face. An invalid message is counted and raises nothing.

        If it exceeds a limit, `face.exceeded` is set, and the caller has to close the session.
        """
        out: Out = []
        on = self._on.get(type(message))
        if not face.is_open:
            self.counters[DropReason.FACE_CLOSED] += 1
        elif on is None or (face.policy.multicast and not isinstance(message, FROM_MEMBERS)):
            self.counters[DropReason.UNEXPECTED_MESSAGE] += 1
        else:
            on(face, message, now, out)
        return out

    @property
    def deadline(self) -> float | None:
        """When `on_time` is due; None: no query or interest is pending."""
        deadlines = (self._queries.timers.deadline, self._declarations.timers.deadline)
        return min((when for when in deadlines if when is not None), default=None)

    def on_time(self, now: float) -> Out:
        """End the queries and interests whose deadline has passed."""
        out: Out = []
        self._queries.on_time(now, out)
        self._declarations.on_time(now, out)
        return out

    def refuse(self, face: Face, message: NetworkMessage) -> Out:
        """Return what follows when `message` is too large for `face`.

        The sender of a query is told by an ERR, in place of the reply, or of all replies of `face`.
        """
        out: Out = []
        if type(message) is Request:
            self._queries.refuse_request(face, message, out)
        elif type(message) is Response:
            self._queries.refuse_response(face, message, out)
        return out

    def forget_query(self, face: Face, request_id: int) -> None:
        """Remove a cancelled query of `face`: neither replies nor a RESPONSE_FINAL follow."""
        self._queries.forget(face, request_id)

    def unlimited_query(self, face: Face, request_id: int) -> PendingQuery | None:
        """Return the open query that replies of `face` belong to; None: there is none, or it may
        have only some more replies, and `on_message` has to handle each."""
        query = face.requests.get(request_id) if face.is_open else None
        return None if query is None or query.left is not None else query

    def count_replies(self, query: PendingQuery, count: int) -> Out:
        """Count replies to `query` that were sent without `on_message`; return what follows."""
        out: Out = []
        self._queries.count_replies(query, count, out)
        return out

    # ---- data

    def destinations(self, face: Face, key: str) -> tuple[Face, ...]:
        """Return the faces that a PUSH on `key` from `face` goes to; valid for one `version`."""
        passes = self._topology.passes
        found = {
            other: None
            for other in self._declarations.resources[SUBSCRIBERS].faces(key)
            if passes(face, other) and not other.policy.multicast
        }
        for other in self._topology.groups_for(face):
            found[other] = None
        for other in self._topology.eager_for(face, SUBSCRIBERS, key):
            found[other] = None
        return tuple(found)

    def wire_key(
        self, face: Face, key: str, declare: bool = False
    ) -> tuple[WireExpr, Declare | None]:
        """Return `key` in its shortest form for `face`; valid for one `face.keys.version`.

        With `declare` a new id may be made for it, whose Declare must be sent first.
        """
        if not declare:
            return face.write(key)
        return face.write(key, lambda prefix: self._declarations.may_declare_key(face, prefix))

    def received_key(self, face: Face, key: WireExpr) -> str | None:
        """Return the key of a message from `face` in full; None, and counted, if it is invalid."""
        text = face.text(key)
        if text is None:
            face.refuse("put", key)
            self.count_unknown(1)
        return text

    def count_unknown(self, messages: int) -> None:
        """Count messages with an unknown key."""
        self.counters[DropReason.UNKNOWN_KEY] += messages

    def stamp(self) -> WireTimestamp | None:
        """Return a new timestamp of this node's clock; None: it has none."""
        if self._hlc is None or self._wall is None:
            return None
        return self._hlc.stamp(self._wall())

    def stamp_forwarded(self, timestamp: WireTimestamp | None) -> WireTimestamp | None:
        """Return the timestamp of a forwarded PUT: its own, or a new one if it has none.

        A timestamp too far ahead of the clock is replaced, or raises ClockDrift, as configured.
        """
        if timestamp is None or self._hlc is None or self._wall is None:
            return timestamp or self.stamp()
        try:
            self._hlc.update(timestamp, self._wall())
        except ClockDrift:
            if self._drop_future:
                raise
            self.counters[DropReason.TIMESTAMP_REPLACED] += 1
            return self.stamp()
        return timestamp

    def _on_push(self, face: Face, push: Push, now: float, out: Out) -> None:
        key = self.received_key(face, push.key)
        if key is None:
            return
        found = self.destinations(face, key)
        if not found:
            return
        body = push.body
        if self._hlc is not None and isinstance(body, Put):
            try:
                timestamp = self.stamp_forwarded(body.timestamp)
            except ClockDrift:
                self.counters[DropReason.TIMESTAMP_FUTURE] += 1
                return
            if timestamp is not body.timestamp:
                body = replace(body, timestamp=timestamp)
        for other in found:
            written, _ = other.write(key)
            forwarded = replace(push, key=written, body=body, node_id=0)
            out.append((other, forwarded))

    def _on_oam(self, face: Face, oam: NetworkOam, now: float, out: Out) -> None:
        self._declarations.on_passing_changed(self._topology.on_oam(face, oam), out)

    def size(self) -> dict[str, int]:
        """Return the number of entries in each table, for diagnostics and tests of leaks."""
        faces = self._topology.faces
        return {
            **self._declarations.size(),
            "faces": len(faces),
            "declared": sum(len(face.declared) for face in faces),
            "sent declarations": sum(len(face.sent_declarations) for face in faces),
            "interests": sum(len(face.interests) + len(face.pending_interests) for face in faces),
            "sent interests": sum(len(face.sent_interests) for face in faces),
            "settled": sum(len(face.settled) for face in faces),
            "queries": sum(len(face.queries) for face in faces),
            "requests": sum(len(face.requests) for face in faces),
        }
