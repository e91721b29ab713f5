"""Query: a query that reached a queryable, and the methods to answer it.

Knows when a query is answered to the end: when its last Query object is gone. Does not know who
asked, nor how replies travel.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Self, final

from zenlake.api.arguments import IntoKeyExpr, attachment_of, encoding_of, key_of, wire_of
from zenlake.api.exchange_protocol import ExchangeLike, Stamp
from zenlake.api.gc_finalize import finalize_safely
from zenlake.api.values.encoding import Encoding, IntoEncoding
from zenlake.api.values.enums import CongestionControl, InterceptionPoint, Priority, ReplyKeyExpr
from zenlake.api.values.ids import SourceInfo
from zenlake.api.values.instrumentation import TimestampStack
from zenlake.api.values.selector import Parameters, Selector, accepts_any_key
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.zbytes import IntoZBytes, ZBytes, kept_bytes
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.keyexpr.match import intersects
from zenlake.wire import reply as wire
from zenlake.wire.delete import Del
from zenlake.wire.entity import WireEntityId
from zenlake.wire.enums import Mapping
from zenlake.wire.err import Err
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.wireexpr import WireExpr

IGNORED = "{} in Query.{} is deprecated, it will be ignored"


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One REQUEST while `shares` queryables answer it; each of their Query objects refers to it."""

    exchange: ExchangeLike
    request: Request
    shares: int
    _answer: Callable[[Response], None]
    _finish: Callable[["PendingRequest"], None]
    stamp: Stamp
    _given_back: Iterator[int] = field(default_factory=partial(count, 1))
    ended: bool = False

    @property
    def is_remote(self) -> bool:
        """Whether replies leave this session."""
        return self._answer == self.exchange.send

    def give_back(self) -> None:
        """End one share; the last one ends the request. Each share calls this once."""
        if next(self._given_back) == self.shares:  # Atomic: no two threads get the same number.
            self.finish()

    def finish(self) -> None:
        """End the request, whether shares are left or not."""
        self._finish(self)

    def answer(
        self, key: str, body: wire.WireReply | Err, qos: QoS, responder: WireEntityId
    ) -> None:
        """Send one reply of a queryable."""
        if self.is_remote:
            self.exchange.await_reply_room(self.request.id)
        if self.ended:  # The session was closed.
            raise ZError("Dropped query")
        self._answer(self.response(key, body, qos, responder))

    def response(
        self, key: str, body: wire.WireReply | Err, qos: QoS, responder: WireEntityId
    ) -> Response:
        """Return the message for one reply of a queryable."""
        stack = self.request.ts_stack
        return Response(
            self.request.id,
            WireExpr(0, key, Mapping.SENDER),
            body,
            qos,
            None,
            responder,
            None if stack is None else self.stamp(stack, InterceptionPoint.SEND),
        )


@final
class Query:
    """Query received by a queryable: reply any number of times, then drop it.

    The querying side waits until the query has ended: leave its `with` block, call `drop`, or
    delete the last reference.
    """

    __slots__ = ("__weakref__", "_held", "_responder")

    if not TYPE_CHECKING:

        def __new__(cls, *_args: object, **_kwargs: object) -> Self:
            raise TypeError(f"No constructor defined for {cls.__name__}: a Queryable receives them")

    @classmethod
    def of(cls, asked: PendingRequest, responder: WireEntityId) -> Self:
        """Return the share of one queryable in `asked`."""
        self = object.__new__(cls)
        self._held = [asked]  # Holds the request until dropped; `pop` is atomic.
        self._responder = responder
        return self

    _held: list[PendingRequest]
    _responder: WireEntityId

    @property
    def key_expr(self) -> KeyExpr:
        """Key expression of the query; with wildcards, replies are on keys that it matches."""
        return KeyExpr.trusted(self._asked.request.key.suffix)

    @property
    def parameters(self) -> Parameters:
        """Parameters behind the `?` of the selector."""
        return Parameters(self._asked.request.body.parameters)

    @property
    def selector(self) -> Selector:
        """Key expression with the parameters."""
        return Selector(self.key_expr, self.parameters)

    @property
    def payload(self) -> ZBytes | None:
        """Payload of the query, if any."""
        body = self._asked.request.body.body
        return None if body is None else ZBytes.of(body.payload)

    @property
    def encoding(self) -> Encoding | None:
        """Encoding of the payload, if any."""
        body = self._asked.request.body.body
        return None if body is None else Encoding.of(body.encoding)

    @property
    def attachment(self) -> ZBytes | None:
        """Attachment of the query, if any."""
        attachment = self._asked.request.body.attachment
        return None if attachment is None else ZBytes.of(attachment)

    @property
    def source_info(self) -> SourceInfo | None:
        """Source of the query, if it was given."""
        source = self._asked.request.body.source_info
        return None if source is None else SourceInfo.of(source)

    @property
    def timestamp_stack(self) -> TimestampStack | None:
        """Times recorded on the way here, if the querying side asked for them."""
        stack = self._asked.request.ts_stack
        return None if stack is None else TimestampStack.of(stack)

    def accepts_replies(self, /) -> ReplyKeyExpr:
        """Return whether replies may be on keys that the query does not match."""
        anything = accepts_any_key(self._asked.request.body.parameters)
        return ReplyKeyExpr.ANY if anything else ReplyKeyExpr.MATCHING_QUERY

    def reply(
        self,
        /,
        key_expr: IntoKeyExpr,
        payload: IntoZBytes,
        *,
        encoding: IntoEncoding | None = None,
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
    ) -> None:
        """Reply with a value for `key_expr`, with the QoS of the query."""
        if congestion_control is not None or priority is not None:
            _warn_ignored("reply", congestion_control, priority)
        body = Put(
            kept_bytes(payload),  # type: ignore[arg-type]  # A view is written as bytes are.
            wire_of("timestamp", timestamp, Timestamp),
            encoding_of(encoding),
            None,
            attachment_of(attachment),
        )
        self._reply(key_expr, body, express)

    def reply_del(
        self,
        /,
        key_expr: IntoKeyExpr,
        *,
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
    ) -> None:
        """Reply that `key_expr` has no value, with the QoS of the query."""
        if congestion_control is not None or priority is not None:
            _warn_ignored("reply_del", congestion_control, priority)
        stamp = wire_of("timestamp", timestamp, Timestamp)
        self._reply(key_expr, Del(stamp, None, attachment_of(attachment)), express)

    def reply_err(self, /, payload: IntoZBytes, *, encoding: IntoEncoding | None = None) -> None:
        """Reply with an error that `payload` describes."""
        asked = self._asked
        body = Err(bytes(kept_bytes(payload)), encoding_of(encoding))
        asked.answer(asked.request.key.suffix, body, asked.request.qos, self._responder)

    def drop(self, /) -> None:
        """End this share of the query. Further calls do nothing."""
        try:
            asked = self._held.pop()
        except IndexError:
            return
        asked.give_back()

    def _reply(self, key_expr: IntoKeyExpr, body: Put | Del, express: bool | None) -> None:
        asked = self._asked
        request = asked.request
        key, query_key = key_of(key_expr), request.key.suffix
        if not intersects(query_key, key) and not accepts_any_key(request.body.parameters):
            raise ZError(
                f"Attempted to reply on `{key}`, which does not intersect with query "
                f"`{query_key}`, despite query only allowing replies on matching key expressions"
            )
        qos = request.qos
        if express is not None:
            qos = QoS(qos.priority, qos.congestion_control, express=express)
        asked.answer(key, wire.WireReply(body), qos, self._responder)

    @property
    def _asked(self) -> PendingRequest:
        try:
            return self._held[0]
        except IndexError:
            raise ZError("Dropped query") from None

    def __enter__(self, /) -> Self:
        assert self._asked
        return self

    def __exit__(self, /, *_args: object, **_kwargs: object) -> None:
        self.drop()

    def __del__(self) -> None:
        if self._held:
            finalize_safely(self._held[0].exchange, self._held.pop().give_back)

    def __str__(self) -> str:
        return f"Query({str(self.selector)!r})"

    __repr__ = __str__


reply_with = Query._reply
"""Reply to a query with a Put or Del that exists already; arguments as `Query._reply`."""


def request_of(query: Query) -> PendingRequest:
    """Return the request that `query` is a share of. ZError: the query was dropped."""
    return query._asked


def has_room(query: Query) -> bool:
    """Return whether a reply would be sent without a wait. ZError: the query was dropped."""
    asked = query._asked
    return not asked.is_remote or asked.exchange.has_reply_room(asked.request.id)


def responder_of(query: Query) -> WireEntityId:
    """Return the queryable that `query` was given to."""
    return query._responder


def _warn_ignored(
    method: str, congestion_control: CongestionControl | None, priority: Priority | None
) -> None:
    for name, value in (("congestion_control", congestion_control), ("priority", priority)):
        if value is not None:
            warnings.warn(IGNORED.format(name, method), DeprecationWarning, stacklevel=3)
