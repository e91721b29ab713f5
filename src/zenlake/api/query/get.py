"""Gets of one session: queries that wait for replies.

Knows which reply belongs to which get, how replies are consolidated, and when a get is over. Does
not know how queries travel, nor how the user reads replies.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Unpack

from zenlake.api.arguments import attachment_of, checked_key, encoding_of, instance, wire_of
from zenlake.api.exchange_protocol import ExchangeLike, Stamp, TimerLike, unstamped
from zenlake.api.handlers import make_sink
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.query.options import QueryData, QueryOptions
from zenlake.api.query.queryable import Queryables
from zenlake.api.sinks import Sink
from zenlake.api.values.encoding import IntoEncoding
from zenlake.api.values.enums import InterceptionPoint, Locality
from zenlake.api.values.ids import SourceInfo
from zenlake.api.values.instrumentation import TimestampInstrumentation
from zenlake.api.values.reply import Reply, join_slices
from zenlake.api.values.selector import (
    ANY_KEY,
    TIME_RANGE,
    IntoSelector,
    Parameters,
    Selector,
    accepts_any_key,
)
from zenlake.api.values.zbytes import IntoZBytes, kept_bytes
from zenlake.errors import InvalidKeyExpr, ZError
from zenlake.keyexpr import KeyExpr
from zenlake.keyexpr.match import intersects
from zenlake.routing.queries import TIMEOUT
from zenlake.wire import encoding
from zenlake.wire import reply as wire_reply
from zenlake.wire.cursor import U64
from zenlake.wire.enums import Consolidation, Mapping
from zenlake.wire.err import Err
from zenlake.wire.put import Put
from zenlake.wire.query import WireQuery
from zenlake.wire.querybody import QueryBody
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.tsstack import WireTimestampStack
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    from zenlake.wire.reply_run import ReplyRun

MAX_GETS = 65_536  # Upper bound on gets of one session in flight; a further one is refused.
MAX_KEPT_REPLIES = 262_144  # Upper bound on keys whose replies consolidation keeps for one get.
MAX_KEPT_BYTES = 268_435_456  # Upper bound on payload bytes that LATEST keeps for one get.
# Upper bound on replies of one get beyond the capacity of its handler.
MAX_WAITING_REPLIES = 1_048_576

LOCAL, REMOTE = 1, 2
"Sides whose end a get waits for."
WAITS_FOR = {Locality.ANY: LOCAL | REMOTE, Locality.REMOTE: REMOTE, Locality.SESSION_LOCAL: LOCAL}

_NOT_GIVEN = (None,) * 8
_ALIVE = wire_reply.WireReply(Put())
_TIMEOUT = Response(0, WireExpr(), Err(TIMEOUT, encoding.WireEncoding.parse("zenoh/string")))


@dataclass(slots=True, eq=False)
class PendingGet:
    """One get that waits for replies."""

    _queries: "SessionQueries"
    id: int
    key: str
    any_key: bool
    mode: Consolidation
    waits_for: int
    sink: Sink[Reply]
    forget: Callable[[int], None]
    "Function that tells routing, or the interests, that no more replies are wanted."
    owner: object = None
    ended: bool = False
    kept: dict[str, Response] = field(default_factory=dict)
    "Newest reply of each key."
    kept_bytes: int = 0
    timed_out: Response | None = None
    "Timeout reported by a node on the way or by this session; delivered last, once."
    timer: TimerLike | None = None
    over: int = 0
    "Replies pushed since the handler became full."

    def cancel(self) -> None:
        """End this get without its kept replies."""
        self._queries.cancel(self.id)

    def add_token(self, key: str) -> None:
        """Deliver a liveliness token as a reply; each key counts once."""
        if key not in self.kept:
            message = Response(self.id, WireExpr(0, key, Mapping.SENDER), _ALIVE)
            if len(self.kept) < MAX_KEPT_REPLIES:
                self.kept[key] = message
            self._queries.on_response(message)

    def finish(self) -> None:
        """End this get: all tokens were delivered."""
        self._queries.on_final(self.id)

    def on_room(self) -> None:
        """Reset the count: the handler has room."""
        self.over = 0


class SessionQueries:
    """The gets of one session."""

    def __init__(
        self, exchange: ExchangeLike, queryables: Queryables, *, stamp: Stamp = unstamped
    ) -> None:
        self.exchange = exchange
        self.counters: Counter[str] = Counter()
        """Counts by name. refused: gets beyond MAX_GETS. late: replies and ends for a get that is
        over. disjoint: replies on a key that was not asked for. older: replies that consolidation
        removed. early: kept replies delivered before the end, to stay below the limits. dropped:
        replies beyond MAX_WAITING_REPLIES. timeouts: gets that timed out.
        """
        self.queryables = queryables
        self._stamp = stamp
        self._lock = threading.RLock()
        self._defaults = QueryOptions(exchange.query_timeout)
        self._gets: dict[int, PendingGet] = {}
        "Gets by request id; the thread that removes one ends it."

    def options(self, *given: Any) -> QueryOptions:
        """Return checked options; `given` are the arguments of QueryOptions but the first."""
        if given == _NOT_GIVEN:
            return self._defaults
        return QueryOptions(self.exchange.query_timeout, *given)

    def ask(
        self,
        key: KeyExpr,
        parameters: str,
        options: QueryOptions,
        handler: Any,
        *,
        owner: object = None,
        cancellation_token: CancellationToken | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
        **data: Unpack[QueryData],
    ) -> Any:
        """Send a query with the given options and data; return the reader of its replies.

        `cancel_of(owner)` ends it.
        """
        if options.any_key:
            parameters = _with_any_key(parameters)
        query = _query(options.consolidation, parameters, **data)
        stack = None
        if timestamp_instrumentation is not None:
            stack = self._first_stamp(timestamp_instrumentation)
        if cancellation_token is not None:
            instance("cancellation_token", cancellation_token, CancellationToken)
        if self.exchange.closed:
            raise ZError("session closed")
        sink, reader, _ = make_sink(handler, f"zenlake get {key}")
        get = PendingGet(
            self,
            self.exchange.next_id(),
            key=key,
            any_key=accepts_any_key(parameters),
            mode=query.consolidation,
            waits_for=WAITS_FOR[options.destination],
            sink=sink,
            forget=self.exchange.forget_query,
            owner=owner,
        )
        request = Request(
            get.id,
            WireExpr(0, key, Mapping.SENDER),
            query,
            options.qos,
            target=options.target,
            timeout_ms=min(ceil(options.timeout * 1000), U64),
            ts_stack=stack,
        )
        send = partial(self._send, request, options.destination)
        self._start(get, options.timeout, cancellation_token, send)
        return reader

    def _first_stamp(self, instrumentation: TimestampInstrumentation) -> WireTimestampStack:
        name = "timestamp_instrumentation"
        stack = instance(name, instrumentation, TimestampInstrumentation).stack()
        return self._stamp(stack, InterceptionPoint.SEND)

    def ask_tokens(
        self,
        key: KeyExpr,
        handler: Any,
        timeout: float,
        cancellation_token: CancellationToken | None,
        send: Callable[[PendingGet], None],
        forget: Callable[[int], None],
    ) -> Any:
        """Start a get whose replies are tokens; `send` asks for them. Return the reader of its
        replies.
        """
        sink, reader, _ = make_sink(handler, f"zenlake liveliness get {key}")
        get = PendingGet(
            self,
            self.exchange.next_id(),
            key=key,
            any_key=True,
            mode=Consolidation.NONE,
            waits_for=REMOTE,
            sink=sink,
            forget=forget,
        )
        self._start(get, timeout, cancellation_token, partial(send, get))
        return reader

    # ---- from routing

    def on_response(self, message: Response) -> None:
        """Deliver or consolidate one reply, remote or local."""
        get = self._gets.get(message.request_id)
        if get is None:
            self.counters["late"] += 1
            return
        stack = message.ts_stack
        if stack is not None:
            message = replace(message, ts_stack=self._stamp(stack, InterceptionPoint.RECEIVE))
        if type(message.body) is Err:
            if message.body.payload == TIMEOUT and not message.key.suffix:
                get.timed_out = message
            else:
                self._push(get, (Reply.of(message),), 1)
        elif not get.any_key and not _belongs(get.key, message.key.suffix):
            self.counters["disjoint"] += 1
        elif get.mode is Consolidation.NONE:
            self._push(get, (Reply.of(message),), 1)
        else:
            self._consolidate(get, message)

    def on_replies(self, replies: "ReplyRun") -> None:
        """Deliver or consolidate remote replies that were received together."""
        get = self._gets.get(replies.request_id)
        if get is None:
            self.counters["late"] += len(replies)
            return
        if not get.any_key:
            count = len(replies)
            replies = replies.select([_belongs(get.key, key) for key in replies.keys])
            self.counters["disjoint"] += count - len(replies)
        if get.mode is Consolidation.NONE:
            self._push(get, map(Reply.of, replies.responses()), len(replies))
        else:
            for message in replies.responses():
                self._consolidate(get, message)

    def on_final(self, request_id: int) -> None:
        """Note that all remote replies were delivered."""
        self._final(request_id, REMOTE)

    # ---- ends

    def cancel(self, request_id: int) -> None:
        """End a get at once; its kept replies are dropped."""
        get = self._gets.pop(request_id, None)
        if get is not None:
            self._forget(get)
            self._end_empty(get)

    def cancel_of(self, owner: object) -> None:
        """End the gets of a querier."""
        for get in list(self._gets.values()):
            if get.owner is owner:
                self.cancel(get.id)

    def close(self) -> None:
        """End all gets."""
        for number in list(self._gets):
            get = self._gets.pop(number, None)
            if get is not None:
                self._end_empty(get)

    def _start(
        self,
        get: PendingGet,
        timeout: float,
        cancellation_token: CancellationToken | None,
        send: Callable[[], None],
    ) -> None:
        try:
            if len(self._gets) >= MAX_GETS:
                self.counters["refused"] += 1
                raise ZError(
                    f"{MAX_GETS} queries wait for replies: let some end, or give them a shorter "
                    "timeout"
                )
            if cancellation_token is not None:
                cancellation_token.add(get)
        except ZError:
            get.ended = True
            get.sink.close()
            raise
        self._gets[get.id] = get
        if cancellation_token is not None and cancellation_token.is_cancelled:
            get.cancel()
        get.timer = self.exchange.call_later(timeout, partial(self._time_out, get.id))
        try:
            send()
        except BaseException:
            self.cancel(get.id)
            raise

    def _send(self, request: Request, destination: Locality) -> None:
        if destination is not Locality.SESSION_LOCAL:
            self.exchange.send(request)
        if destination is not Locality.REMOTE and not self.queryables.ask(
            request, self.on_response, self._final_local
        ):
            self._final(request.id, LOCAL)

    def _final_local(self, request_id: int) -> None:
        self._final(request_id, LOCAL)

    def _final(self, request_id: int, side: int) -> None:
        get = self._gets.get(request_id)
        if get is None:
            self.counters["late"] += 1
            return
        with self._lock:
            get.waits_for &= ~side
            over = not get.waits_for
        if over and self._gets.pop(request_id, None) is not None:
            self._end(get)

    def _end(self, get: PendingGet) -> None:
        """Deliver the kept replies and close the sink; the caller has removed `get`."""
        if get.mode is Consolidation.LATEST and get.kept:
            self._deliver_kept(get)
        if get.timed_out is not None:
            self._push(get, (Reply.of(get.timed_out),), 1)
        if get.timer is not None:
            get.timer.cancel()
        get.ended = True
        get.sink.close()

    def _end_empty(self, get: PendingGet) -> None:
        get.kept, get.timed_out = {}, None
        self._end(get)

    def _deliver_kept(self, get: PendingGet) -> None:
        kept, get.kept, get.kept_bytes = get.kept, {}, 0
        self._push(get, [Reply.of(response) for response in kept.values()], len(kept))

    def _push(self, get: PendingGet, replies: Iterable[Reply], count: int) -> None:
        if get.over >= MAX_WAITING_REPLIES:
            self.counters["dropped"] += count
        elif not get.sink.push(replies, count):
            get.over += count
            if get.over == count:
                get.sink.when_room(get.on_room)

    def _consolidate(self, get: PendingGet, message: Response) -> None:
        """Keep the newest reply of each key until the end (LATEST), or pass on newer ones
        (MONOTONIC).
        """
        latest = get.mode is Consolidation.LATEST
        key = message.key.suffix
        full = False
        with self._lock:
            kept = get.kept
            before = kept.get(key)
            if before is not None and _is_older(message, before):
                self.counters["older"] += 1
                return
            kept[key] = message
            if latest:
                get.kept_bytes += _size(message) - (0 if before is None else _size(before))
                if before is not None:
                    self.counters["older"] += 1
            full = len(kept) > MAX_KEPT_REPLIES or get.kept_bytes > MAX_KEPT_BYTES
            if full:
                self.counters["early"] += len(kept)
        if not latest:
            self._push(get, (Reply.of(message),), 1)
            if full:
                get.kept = {}
        elif full:
            self._deliver_kept(get)

    def _time_out(self, number: int) -> None:
        get = self._gets.pop(number, None)
        if get is None:
            return
        self.counters["timeouts"] += 1
        self._forget(get)
        get.timed_out = _TIMEOUT
        self._end(get)

    def _forget(self, get: PendingGet) -> None:
        """Tell routing that no more replies are wanted."""
        if get.waits_for & REMOTE and not self.exchange.closed:
            get.forget(get.id)


def split_selector(selector: IntoSelector) -> tuple[KeyExpr, str]:
    """Return the key expression and the text of the parameters."""
    if type(selector) is KeyExpr:
        return selector, ""
    if isinstance(selector, str):
        key, mark, parameters = selector.partition("?")
        return checked_key(key), str(Parameters(parameters)) if mark else ""
    chosen = instance("selector", selector, Selector)
    return chosen.key_expr, str(chosen.parameters)


def _query(
    mode: Consolidation,
    parameters: str,
    *,
    payload: IntoZBytes | None = None,
    encoding: IntoEncoding | None = None,
    attachment: IntoZBytes | None = None,
    source_info: SourceInfo | None = None,
) -> WireQuery:
    """Check the content of a query, and resolve consolidation AUTO as `zenoh` does."""
    if mode is Consolidation.AUTO:
        has_time = TIME_RANGE in parameters and TIME_RANGE in Parameters(parameters)
        mode = Consolidation.NONE if has_time else Consolidation.LATEST
    body = None
    if payload is not None or encoding is not None:
        data = b"" if payload is None else kept_bytes(payload)
        body = QueryBody(data, encoding_of(encoding))
    source = wire_of("source_info", source_info, SourceInfo)
    return WireQuery(mode, parameters, source, body, attachment_of(attachment))


def _with_any_key(parameters: str) -> str:
    if not parameters:
        return ANY_KEY
    changed = Parameters(parameters)
    changed.insert(ANY_KEY, "")
    return str(changed)


def _belongs(asked: str, answered: str) -> bool:
    """Return whether a reply on `answered` matches a query on `asked`."""
    if asked == answered:
        return True
    try:
        return intersects(asked, KeyExpr(answered))
    except InvalidKeyExpr:
        return False


def _timestamp(message: Response) -> WireTimestamp | None:
    assert not isinstance(message.body, Err)
    return message.body.body.timestamp


def _is_older(message: Response, before: Response) -> bool:
    """Return whether `message` is older; without a timestamp it is older than any with one."""
    new, old = _timestamp(message), _timestamp(before)
    return old is not None and (new is None or new < old)


def _size(message: Response) -> int:
    body = message.body.body if not isinstance(message.body, Err) else None
    return len(join_slices(body.payload)) if isinstance(body, Put) else 0
