"""Queryables of one session, and the delivery of queries to them.

Knows which queryables match a REQUEST, and that each REQUEST gets one RESPONSE_FINAL. Does not know
where a REQUEST comes from: routing passes those of other sessions, `get.py` the session's own.
"""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, final

from zenlake.api.arguments import IntoKeyExpr, key_of, member
from zenlake.api.discovery.matching import SessionInterests
from zenlake.api.entity import KeyedEntity
from zenlake.api.exchange_protocol import ExchangeLike, Stamp, unstamped
from zenlake.api.handlers import Receiver, make_sink
from zenlake.api.query.query import PendingRequest, Query
from zenlake.api.sinks import Sink
from zenlake.api.values.enums import InterceptionPoint, Locality
from zenlake.api.values.wrapped import make
from zenlake.caching import BoundedCache
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.keyexpr.match import includes
from zenlake.keyexpr.tree import KeyExprTree
from zenlake.wire import entity, qos
from zenlake.wire.declare import Declare, DeclareQueryable, UndeclareQueryable
from zenlake.wire.enums import Mapping, WireQueryTarget
from zenlake.wire.err import Err
from zenlake.wire.extensions import QueryableInfo
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.wireexpr import WireExpr

MAX_OPEN_QUERIES = 65_536  # Upper bound on queries in progress at a session's queryables.
MAX_KNOWN_KEYS = 1_024  # Keys whose matching queryables are remembered.
TOO_MANY = Err(b"too many queries wait for this session's queryables: ask again later")

H = TypeVar("H")


class _QueryableEntry(NamedTuple):
    """Declared queryable: its id, key, options and sink."""

    entity: entity.WireEntityId
    key: KeyExpr
    complete: bool
    origin: Locality
    sink: Sink[Query]

    @property
    def id(self) -> int:
        return self.entity.eid

    def takes(self, target: WireQueryTarget, local: bool) -> bool:
        """Return whether a query with this `target`, from this session or another, is for it."""
        if target is WireQueryTarget.ALL_COMPLETE and not self.complete:
            return False
        return self.origin is Locality.ANY or local is (self.origin is Locality.SESSION_LOCAL)


@final
class Queryable(KeyedEntity, Receiver[H], Generic[H]):
    """Receiver of queries on a key expression; made by `Session.declare_queryable`."""

    _what = "queryable"
    _given_by = "session.declare_queryable"

    def __init__(
        self, queryables: "Queryables", declared: _QueryableEntry, handler: H, background: bool
    ) -> None:
        end = partial(queryables.undeclare, declared)
        super().__init__(queryables.exchange, end, declared.sink, handler, background)
        self._id = declared.entity
        self._key_expr = declared.key
        self._complete = declared.complete

    def __repr__(self) -> str:
        self._check()
        return f"Queryable({self._key_expr!r}, complete={self._complete})"


class Queryables:
    """Queryables of one session."""

    def __init__(
        self, exchange: ExchangeLike, interests: SessionInterests, *, stamp: Stamp = unstamped
    ) -> None:
        self.exchange = exchange
        self.counters: Counter[str] = Counter()
        """Counts by name. refused: queries beyond MAX_OPEN_QUERIES. unmatched: queries without a
        matching queryable."""
        self._interests = interests
        self._stamp = stamp
        self._lock = threading.RLock()
        self._declared: dict[int, _QueryableEntry] = {}
        self._by_key: KeyExprTree[int] = KeyExprTree()
        self._by_exact_key = BoundedCache[str, tuple[_QueryableEntry, ...]](MAX_KNOWN_KEYS)
        "Matching queryables by key."
        self._open: dict[int, PendingRequest] = {}
        "Requests in progress by `id()`; the thread that removes one sends its end."

    def declare(
        self,
        key_expr: IntoKeyExpr,
        handler: Any = None,
        *,
        complete: bool | None = None,
        allowed_origin: Locality | None = None,
    ) -> Queryable[Any]:
        """Check the arguments of `Session.declare_queryable` and declare."""
        key = key_of(key_expr)
        origin = member("allowed_origin", allowed_origin, Locality.DEFAULT)
        if self.exchange.closed:
            raise ZError("session closed")
        sink, reader, background = make_sink(handler, f"zenlake queryable {key}")
        name = entity.WireEntityId(self.exchange.zid, self.exchange.next_id())
        declared = _QueryableEntry(name, key, member("complete", complete, False), origin, sink)
        with self._lock:
            self._declared[declared.id] = declared
            self._by_key.insert(key, declared.id)
            self._by_exact_key.clear()
        try:
            if origin is not Locality.SESSION_LOCAL:
                info = QueryableInfo(complete=declared.complete)
                body = DeclareQueryable(declared.id, WireExpr(0, key, Mapping.SENDER), info)
                self.exchange.send(Declare(body, qos=qos.DECLARE))
        except ZError:
            self.undeclare(declared)
            raise
        self._interests.local_changed("queryables")
        return make(Queryable, self, declared, reader, background)

    def undeclare(self, declared: _QueryableEntry) -> None:
        """Undeclare a queryable; further calls do nothing."""
        with self._lock:
            if self._declared.pop(declared.id, None) is None:
                return
            self._by_key.remove(declared.key, declared.id)
            self._by_exact_key.clear()
        if declared.origin is not Locality.SESSION_LOCAL:
            with suppress(ZError):  # A closed session has undeclared everything.
                self.exchange.send(Declare(UndeclareQueryable(declared.id), qos=qos.DECLARE))
        declared.sink.close()
        self._interests.local_changed("queryables")

    def matches(self, key: str, complete: bool) -> bool:
        """Return whether a query of this session on `key` reaches a queryable of this session."""
        return any(
            declared.origin is not Locality.REMOTE
            and (not complete or (declared.complete and includes(declared.key, key)))
            for declared in self._matching(key)
        )

    def on_request(self, request: Request) -> None:
        """Deliver a query of another session."""
        request = self._received(request)
        with suppress(ZError):  # A session that is being closed answers no more.
            if not self._ask(request, False, self.exchange.send, self._finish_remote):
                self.exchange.send(ResponseFinal(request.id, request.qos))

    def ask(
        self, request: Request, answer: Callable[[Response], None], final: Callable[[int], None]
    ) -> bool:
        """Deliver a query of this session. Return whether a queryable got it; then `final` is
        called once.
        """

        def finish(asked: PendingRequest) -> None:
            if self._end(asked):
                final(asked.request.id)

        return self._ask(self._received(request), True, answer, finish)

    def close(self) -> None:
        """Close every queryable and end every query."""
        with self._lock:
            declared, self._declared = list(self._declared.values()), {}
            self._by_key = KeyExprTree()
            self._by_exact_key.clear()
        for entry in declared:
            entry.sink.close()
        for asked in list(self._open.values()):
            asked.finish()

    def _received(self, request: Request) -> Request:
        stack = request.ts_stack
        if stack is None:
            return request
        return replace(request, ts_stack=self._stamp(stack, InterceptionPoint.RECEIVE))

    def _ask(
        self,
        request: Request,
        local: bool,
        answer: Callable[[Response], None],
        finish: Callable[[PendingRequest], None],
    ) -> bool:
        key, target = request.key.suffix, request.target
        chosen = [entry for entry in self._matching(key) if entry.takes(target, local)]
        if not chosen:
            self.counters["unmatched"] += 1
            return False
        if len(self._open) >= MAX_OPEN_QUERIES:
            self.counters["refused"] += 1
            answer(Response(request.id, request.key, TOO_MANY, request.qos))
            return False
        asked = PendingRequest(self.exchange, request, len(chosen), answer, finish, self._stamp)
        self._open[id(asked)] = asked
        for entry in chosen:
            entry.sink.push((Query.of(asked, entry.entity),), 1)
        return True

    def _matching(self, key: str) -> tuple[_QueryableEntry, ...]:
        """Return the queryables whose key intersects `key`, in the order of declaration."""
        found = self._by_exact_key.get(key)
        if found is None:
            with self._lock:
                numbers = sorted(n for _, some in self._by_key.intersecting(key) for n in some)
                found = tuple(self._declared[number] for number in numbers)
                self._by_exact_key.keep(key, found)
        return found

    def _finish_remote(self, asked: PendingRequest) -> None:
        if self._end(asked):
            with suppress(ZError):  # A closed session has ended all queries.
                self.exchange.send(ResponseFinal(asked.request.id, asked.request.qos))

    def _end(self, asked: PendingRequest) -> bool:
        """Return whether this call ended `asked`."""
        asked.ended = True
        return self._open.pop(id(asked), None) is not None
