"""Queries: selects the faces that a REQUEST goes to and returns their replies to its sender.

Knows the request ids of every face, targets, budgets and timeouts. Does not know the content of a
query. Rust: `zenoh/src/net/routing/dispatcher/queries.rs`.
"""

from dataclasses import dataclass, field, replace
from typing import TypeGuard

from zenlake.keyexpr import includes
from zenlake.routing.declarations import QUERYABLES, DeclarationTables
from zenlake.routing.face import Face, Out
from zenlake.routing.resources import merge
from zenlake.routing.timers import Timers
from zenlake.routing.topology import Topology
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.entity import WireEntityId
from zenlake.wire.enums import Mapping, WireQueryTarget
from zenlake.wire.err import Err
from zenlake.wire.extensions import QueryableInfo
from zenlake.wire.qos import QoS
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.wireexpr import WireExpr

MAX_QUERIES = 10_000  # Open queries kept for one neighbour.
MAX_QUERY_SECONDS = 3600.0  # Upper bound on the timeout that a query may ask for.
TIMEOUT = b"Timeout"  # Payload of the ERR for each hop that did not answer in time.
TOO_LARGE = b"The message is too large for a link on the way"
"Payload of the ERR in place of a reply, or of the replies to a query, that a link cannot carry."
TOO_MANY = b"Too many queries wait for replies: let some end first"
UNKNOWN_KEY = b"The key id of the query is not declared, or its key is not valid"
"Payload of the ERR in place of all replies to a query that is refused."
MILLIS = 1000.0

Candidates = dict[Face, QueryableInfo | None]
"Faces that may answer; None: the face has not declared its queryables."


@dataclass(slots=True, eq=False)
class PendingQuery:
    """An open query of a face, with the hops that still owe their RESPONSE_FINAL."""

    face: Face
    id: int
    qos: QoS
    when: float
    "Deadline, in seconds of the caller's clock."
    left: int | None
    "RESPONSE messages, errors included, that may still pass; None: any number."
    done: bool = False
    hops: dict[Face, int] = field(default_factory=dict)
    "Faces that the query was sent to, with its request id there."


class QueryRouter:
    """The open queries of one node."""

    def __init__(
        self, topology: Topology, declarations: DeclarationTables, query_timeout: float
    ) -> None:
        self.query_timeout = query_timeout
        self.timers: Timers[PendingQuery] = Timers()
        self._topology = topology
        self._queryables = declarations.resources[QUERYABLES]

    def on_request(self, face: Face, request: Request, now: float, out: Out) -> None:
        if request.id in face.queries:
            self._count(DropReason.REQUEST_ID_IN_USE)
            self._refuse(face, request, None, out)
            return
        key = face.text(request.key)
        if key is None:
            self._count(DropReason.REQUEST_UNKNOWN_KEY)
            self._refuse(face, request, UNKNOWN_KEY, out)
        elif len(face.queries) >= MAX_QUERIES and not face.is_local:
            self._count(DropReason.REQUEST_LIMIT)
            self._refuse(face, request, TOO_MANY, out)
        else:
            self._send(face, request, key, now, out)

    def _refuse(self, face: Face, request: Request, why: bytes | None, out: Out) -> None:
        """End a query without a reply, or with an ERR that says why there is none."""
        if why is not None:
            own = WireEntityId(self._topology.zid, 0)
            out.append(
                (face, Response(request.id, WireExpr(), Err(why), request.qos, responder=own))
            )
        out.append((face, ResponseFinal(request.id, request.qos)))

    def _send(self, face: Face, request: Request, key: str, now: float, out: Out) -> None:
        hops = select_faces(request.target, self._candidates(face, key))
        if not hops:
            self._refuse(face, request, None, out)
            return
        seconds = self.query_timeout
        if request.timeout_ms is not None:
            seconds = min(request.timeout_ms / MILLIS, MAX_QUERY_SECONDS)
        query = PendingQuery(face, request.id, request.qos, now + seconds, request.budget or None)
        face.queries[request.id] = query
        self.timers.add(query)
        for hop in hops:
            number = query.hops[hop] = _free_id(hop)
            hop.requests[number] = query
            written, _ = hop.write(key)
            out.append((hop, replace(request, id=number, key=written, node_id=0)))

    def _candidates(self, face: Face, key: str) -> Candidates:
        """Return the faces that may answer; complete only if the queryable's key includes `key`."""
        found: Candidates = {}
        for declared in self._queryables.intersecting(key):
            covers = includes(declared, key)
            for source, info in self._queryables.sources(declared):
                if self._topology.passes(face, source):
                    seen = QueryableInfo(info.complete and covers, info.distance)
                    found[source] = merge(found.get(source), seen)
        for other in self._topology.eager_for(face, QUERYABLES, key):
            found.setdefault(other, None)
        return found

    def on_response(self, face: Face, response: Response, now: float, out: Out) -> None:
        query = face.requests.get(response.request_id)
        if query is None:
            self._count(DropReason.REPLY_UNKNOWN_QUERY)
            return
        key = response.key
        if key.scope or key.suffix:  # An ERR may come without a key.
            text = face.text(key)
            if text is None:
                self._count(DropReason.REPLY_UNKNOWN_KEY)
                return
            key = WireExpr(0, text, Mapping.SENDER)
        out.append((query.face, replace(response, request_id=query.id, key=key, qos=query.qos)))
        self.count_replies(query, 1, out)

    def count_replies(self, query: PendingQuery, count: int, out: Out) -> None:
        """Count RESPONSE messages that passed; end a query that has had as many as it may."""
        if query.left is not None:
            query.left -= count
            if query.left <= 0:
                self._end(query, out)

    def refuse_request(self, face: Face, request: Request, out: Out) -> None:
        """Answer in place of `face`, which cannot be sent the query."""
        query = face.requests.get(request.id)
        if query is not None:
            out.append((query.face, _error(query, face, TOO_LARGE)))
            self.count_replies(query, 1, out)
            self._on_hop_done(face, request.id, out)

    def refuse_response(self, face: Face, response: Response, out: Out) -> None:
        """Send an ERR in place of a reply; nothing, if that has been tried."""
        if response.body != Err(TOO_LARGE):
            number, responder = response.request_id, response.responder
            error = Response(number, WireExpr(), Err(TOO_LARGE), response.qos, responder=responder)
            out.append((face, error))

    def on_final(self, face: Face, final: ResponseFinal, now: float, out: Out) -> None:
        if not self._on_hop_done(face, final.request_id, out):
            self._count(DropReason.REPLY_FINAL_UNKNOWN_QUERY)

    def _on_hop_done(self, face: Face, number: int, out: Out) -> bool:
        """Note that a hop has ended its answers, or is gone; return False if it owed none."""
        query = face.requests.pop(number, None)
        if query is None:
            return False
        del query.hops[face]
        if not query.hops:
            self._end(query, out)
        return True

    def forget(self, face: Face, request_id: int) -> None:
        """Remove a cancelled query: neither replies nor a RESPONSE_FINAL follow."""
        query = face.queries.get(request_id)
        if query is not None:
            self._remove(query)

    def close(self, face: Face, out: Out) -> None:
        for query in [*face.queries.values()]:
            self._remove(query)
        for number in [*face.requests]:
            self._on_hop_done(face, number, out)

    def on_time(self, now: float, out: Out) -> None:
        for query in self.timers.due(now):
            if query.done:
                continue
            silent = [*query.hops]
            self._topology.counters[DropReason.QUERY_TIMEOUT] += len(silent)
            for hop in silent[: query.left]:
                out.append((query.face, _error(query, hop, TIMEOUT)))
            self._end(query, out)

    def _end(self, query: PendingQuery, out: Out) -> None:
        self._remove(query)
        out.append((query.face, ResponseFinal(query.id, query.qos)))

    def _remove(self, query: PendingQuery) -> None:
        self.timers.finish(query)
        query.face.queries.pop(query.id, None)
        for face, number in query.hops.items():
            face.requests.pop(number, None)

    def _count(self, reason: DropReason) -> None:
        self._topology.counters[reason] += 1


def select_faces(target: WireQueryTarget, candidates: Candidates) -> list[Face]:
    """Select the faces a query is sent to, by target.

    BEST_MATCHING: the nearest complete one, else all. ALL_COMPLETE: also faces that have not
    declared their queryables, since those may be complete.
    """
    if target is WireQueryTarget.BEST_MATCHING:
        complete = {face: info.distance for face, info in candidates.items() if _is_complete(info)}
        if complete:
            return [min(complete, key=complete.__getitem__)]
    if target is WireQueryTarget.ALL_COMPLETE:
        return [face for face, info in candidates.items() if info is None or _is_complete(info)]
    return [*candidates]


def _is_complete(info: QueryableInfo | None) -> TypeGuard[QueryableInfo]:
    return info is not None and info.complete


def _free_id(hop: Face) -> int:
    number = hop.new_id()
    while number in hop.requests:
        number = hop.new_id()
    return number


def _error(query: PendingQuery, hop: Face, payload: bytes) -> Response:
    return Response(
        query.id,
        WireExpr(),
        Err(payload),
        query.qos,
        responder=WireEntityId(hop.zid, 0),
    )
