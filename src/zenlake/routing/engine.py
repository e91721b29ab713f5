"""Routing: messages of all faces go in, and what to send to which face comes out.

Pure: the time is an argument. What it knows stands in the modules beside it; here they meet.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zenlake.errors import ClockDrift
from zenlake.hlc import HybridLogicalClock
from zenlake.routing.declarations import SUBSCRIBERS, DeclarationTables
from zenlake.routing.face import Face, Out
from zenlake.routing.queries import QueryRouter
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

QUERY_SECONDS = 10.0  # a hop's time to answer, where the query says none


class Routing:
    """One node's routing. The local session is a face like any other, `local`.

    Nothing goes back to the face it came from, with one exception: a client and the local session
    hear of their own tokens, each once, when their interests ask for tokens. So the session
    delivers its own data and queries to itself, and its own tokens not.

    With `hlc` (and `wall`, the NTP64 time) a PUT that passes without a timestamp is given one.

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
        """Another number whenever `destinations` may answer differently."""
        return self._topology.version

    @version.setter
    def version(self, version: int) -> None:
        """The owner has reasons of its own to find routes anew."""
        self._topology.version = version

    @property
    def counters(self) -> Counter[DropReason]:
        """What was ignored, refused or given up, by reason."""
        return self._topology.counters

    @property
    def query_timeout(self) -> float:
        return self._queries.query_timeout

    # ---- faces

    def open(self, zid: WireZenohId, whatami: WireWhatAmI, now: float) -> tuple[Face, Out]:
        """A session opened: its face, and what to say first. ZError: such two do not talk."""
        out: Out = []
        face, changed = self._topology.add(zid, whatami)
        self._declarations.open(face, out)
        self._declarations.passing_changed(changed, out)
        return face, out

    def close(self, face: Face, now: float) -> Out:
        """A session ended, or the local one: nothing of it stays; what to say to the others."""
        out: Out = []
        if face.is_open:
            changed = self._topology.remove(face)
            self._queries.close(face, out)
            self._declarations.close(face, out)
            self._declarations.passing_changed(changed, out)
        return out

    # ---- messages and time

    def on_message(self, face: Face, message: NetworkMessage, now: float) -> Out:
        """A message came from a face. What makes no sense is counted, and raises nothing."""
        out: Out = []
        on = self._on.get(type(message))
        if not face.is_open:
            self.counters[DropReason.FACE_CLOSED] += 1
        elif on is None:
            self.counters[DropReason.UNEXPECTED_MESSAGE] += 1
        else:
            on(face, message, now, out)
        return out

    @property
    def deadline(self) -> float | None:
        """When `on_time` is due; None: nothing waits."""
        deadlines = (self._queries.timers.deadline, self._declarations.timers.deadline)
        return min((when for when in deadlines if when is not None), default=None)

    def on_time(self, now: float) -> Out:
        """Give up what has waited too long."""
        out: Out = []
        self._queries.on_time(now, out)
        self._declarations.on_time(now, out)
        return out

    def forget_query(self, face: Face, request_id: int) -> None:
        """A query of `face` was cancelled: no answer goes there any more, nor a final one."""
        self._queries.forget(face, request_id)

    # ---- data

    def destinations(self, face: Face, key: str) -> tuple[Face, ...]:
        """Where a PUSH on `key` from `face` goes, each face once; valid for one `version`."""
        passes = self._topology.passes
        found = {
            other: None
            for other in self._declarations.resources[SUBSCRIBERS].faces(key)
            if passes(face, other)
        }
        for other in self._topology.eager_for(face, SUBSCRIBERS, key):
            found[other] = None
        return tuple(found)

    def wire_key(
        self, face: Face, key: str, declare: bool = False
    ) -> tuple[WireExpr, Declare | None]:
        """The shortest way to write `key` to `face`, valid for one `face.keys.version`.

        With `declare` a new id may be made for it; then the Declare is to be sent before.
        """
        if not declare:
            return face.write(key)
        return face.write(key, lambda prefix: self._declarations.names_keys(face, prefix))

    def received_key(self, face: Face, key: WireExpr) -> str | None:
        """A key of a message from `face` in full; None, and counted, if it is not one."""
        text = face.text(key)
        if text is None:
            self.count_unknown(1)
        return text

    def count_unknown(self, messages: int) -> None:
        """That many came with a key that is not known."""
        self.counters[DropReason.UNKNOWN_KEY] += messages

    @property
    def needs_stamp(self) -> bool:
        """Whether a PUT that passes without a timestamp is to be given one."""
        return self._hlc is not None

    def stamp(self) -> WireTimestamp | None:
        """A new timestamp of this node's clock; None: it has none."""
        if self._hlc is None or self._wall is None:
            return None
        return self._hlc.stamp(self._wall())

    def stamped(self, timestamp: WireTimestamp | None) -> WireTimestamp | None:
        """The timestamp that a PUT passes on with: its own, or a new one if it has none.

        One that is too far ahead of the clock is replaced, or ClockDrift, as configured.
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
                timestamp = self.stamped(body.timestamp)
            except ClockDrift:
                self.counters[DropReason.TIMESTAMP_FUTURE] += 1
                return
            if timestamp is not body.timestamp:
                body = replace(body, timestamp=timestamp)
        outer = push.timestamp if len(found) == 1 else None
        for other in found:
            written, _ = other.write(key)
            out.append(
                (other, Push(written, body, push.qos, outer, 0, push.ts_stack, push.extensions))
            )

    def _on_oam(self, face: Face, oam: NetworkOam, now: float, out: Out) -> None:
        self._declarations.passing_changed(self._topology.on_oam(face, oam), out)

    def size(self) -> dict[str, int]:
        """How much is held of everything, for diagnostics: after close, what it was before open."""
        faces = self._topology.faces
        return {
            **self._declarations.size(),
            "faces": len(faces),
            "declared": sum(len(face.declared) for face in faces),
            "told": sum(len(face.told) for face in faces),
            "wishes": sum(len(face.wishes) + len(face.pending) for face in faces),
            "asked": sum(len(face.asked) for face in faces),
            "settled": sum(len(face.settled) for face in faces),
            "queries": sum(len(face.queries) for face in faces),
            "requests": sum(len(face.requests) for face in faces),
        }
