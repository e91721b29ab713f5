"""Session: the handle of one participant in a Zenoh system.

Knows the signatures, and hands on to `session_core.py`. Dropping the handle closes the session.
"""

from typing import TYPE_CHECKING, Self, TypeVar, Unpack, final, overload
from weakref import finalize

from zenlake.api.arguments import IntoKeyExpr, instance, key_of, member, qos_of
from zenlake.api.config.config import Config
from zenlake.api.discovery.info import SessionInfo
from zenlake.api.discovery.liveliness import Liveliness
from zenlake.api.discovery.stats import Stats, collect_stats
from zenlake.api.entity import Entity
from zenlake.api.handlers import CallbackAnd, Handler, IntoCallback, IntoChannel
from zenlake.api.pubsub.outbound_route import OutboundRoute, del_body
from zenlake.api.pubsub.publisher import Publisher
from zenlake.api.pubsub.subscriber import Subscriber
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.query.get import split_selector
from zenlake.api.query.options import GetOptions, IntoConsolidation
from zenlake.api.query.querier import Querier
from zenlake.api.query.query import Query
from zenlake.api.query.queryable import Queryable
from zenlake.api.session_core import SessionCore, TimestampCallback
from zenlake.api.values.encoding import IntoEncoding
from zenlake.api.values.enums import (
    CongestionControl,
    Locality,
    Priority,
    QueryTarget,
    Reliability,
    ReplyKeyExpr,
)
from zenlake.api.values.ids import EntityGlobalId, SourceInfo, ZenohId
from zenlake.api.values.instrumentation import TimestampInstrumentation
from zenlake.api.values.reply import Reply
from zenlake.api.values.sample import Sample
from zenlake.api.values.selector import IntoSelector
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.wrapped import Unconstructed, make
from zenlake.api.values.zbytes import IntoZBytes
from zenlake.caching import BoundedCache
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.wire import entity
from zenlake.wire.qos import DEFAULT as DEFAULT_QOS

if TYPE_CHECKING:
    from zenlake.api.pubsub.arrow import ArrowBatches
    from zenlake.columnar.record_batch import IntoRecordBatch, RecordBatch

MAX_ROUTES = 4096  # Routes of puts without a publisher that are remembered.

H = TypeVar("H")


class DeclaredKeyExpr(KeyExpr):
    """Key expression that one session declared."""

    owner: SessionCore

    def __reduce__(self) -> tuple[type[KeyExpr], tuple[str]]:
        return KeyExpr, (str(self),)


@final
class Session(metaclass=Unconstructed):
    """One participant in a Zenoh system; made by `zenlake.open`.

    Use it as a context manager, or `close()` it. It also closes when the last reference to it goes,
    even while its subscribers are alive, and when the program ends.

    >>> import zenlake
    >>> config = zenlake.Config()
    >>> for key in "listen/endpoints", "connect/endpoints":
    ...     config.insert_json5(key, "[]")
    >>> config.insert_json5("scouting/multicast/enabled", "false")
    >>> with zenlake.open(config) as session:
    ...     subscriber = session.declare_subscriber("robot/*")
    ...     session.put("robot/7", b"here")
    ...     sample = subscriber.recv()
    >>> sample.key_expr, str(sample.payload)
    (ke`robot/7`, 'here')
    """

    _given_by = "zenlake.open(config)"

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._routes = BoundedCache[object, OutboundRoute](MAX_ROUTES)
        self._liveliness: Liveliness | None = None
        self._finalizer = finalize(self, core.drop)
        # The exit handler of session_core.py closes open sessions, without a thread.
        self._finalizer.atexit = False

    # ---- identity and state

    def zid(self, /) -> ZenohId:
        """Return the session's Zenoh id."""
        return ZenohId.of(self._core.exchange.zid)

    @property
    def id(self) -> EntityGlobalId:
        """Global entity id of the session: its zid and its own entity number."""
        core = self._core
        return EntityGlobalId.of(entity.WireEntityId(core.exchange.zid, core.number))

    @property
    def info(self) -> SessionInfo:
        """Transports and links of this session, and the nodes they lead to."""
        return self._core.info

    def stats(self) -> Stats:
        """Return counts of what was sent, received and lost, with reasons."""
        return collect_stats(self._core)

    def new_timestamp(self, /) -> Timestamp:
        """Return a timestamp of this session's clock, greater than all earlier ones."""
        return Timestamp.of(self._core.exchange.stamp())

    def is_closed(self, /) -> bool:
        """Return True after `close()`."""
        return self._core.exchange.closed

    # ---- closing

    def close(self, /) -> None:
        """Undeclare all entities and close all transports. Further calls do nothing."""
        self._routes.clear()
        self._core.close()

    def __enter__(self, /) -> Self:
        return self

    def __exit__(self, /, *_args: object, **_kwargs: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Session({self.zid()})"

    def _check(self) -> None:
        if self._core.exchange.closed:
            raise ZError("session closed")

    def undeclare(self, /, obj: KeyExpr | Entity) -> None:
        """Undeclare a key expression of `declare_keyexpr`, or anything that has `undeclare()`."""
        self._check()
        if not isinstance(obj, str):
            obj.undeclare()
        elif not isinstance(obj, DeclaredKeyExpr) or obj.owner is not self._core:
            raise ZError(
                f"Failed to undeclare {obj}: give what this session's declare_keyexpr() gave"
            )

    # ---- data

    def put(
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
        timestamp_instrumentation: TimestampInstrumentation | None = None,
        allowed_destination: Locality | None = None,
        source_info: SourceInfo | None = None,
    ) -> None:
        """Publish `payload` on `key_expr`. For many puts on one key use `declare_publisher`."""
        route = self._route(key_expr, priority, congestion_control, express, allowed_destination)
        route.put(
            payload,
            encoding=encoding,
            attachment=attachment,
            timestamp=timestamp,
            timestamp_instrumentation=timestamp_instrumentation,
            source_info=source_info,
        )

    def delete(
        self,
        /,
        key_expr: IntoKeyExpr,
        *,
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
        allowed_destination: Locality | None = None,
        source_info: SourceInfo | None = None,
    ) -> None:
        """Publish that `key_expr` no longer has a value."""
        route = self._route(key_expr, priority, congestion_control, express, allowed_destination)
        route.send(del_body(attachment, timestamp, source_info), timestamp_instrumentation)

    def has_room(self, priority: Priority | None = None) -> bool:
        """Return whether a put of this priority would leave at once, without waiting or being
        dropped.
        """
        qos = qos_of(DEFAULT_QOS, priority, None, None)
        node = self._core.node
        return all(link.has_room(qos) for link in (*node.sessions.values(), *node.groups))

    def put_batch(self, batch: "IntoRecordBatch") -> int:
        """Publish every row of an Arrow record batch; return the number of rows.

        The columns are those of `zenlake.columnar.schema`; all but `key` are optional. Waits while
        there is no room; drops nothing.
        """
        from zenlake.api.pubsub.arrow import put_batch

        self._check()
        return put_batch(self._core, batch, None)

    def _route(
        self,
        key_expr: IntoKeyExpr,
        priority: Priority | None,
        congestion_control: CongestionControl | None,
        express: bool | None,
        allowed_destination: Locality | None,
    ) -> OutboundRoute:
        name = (key_expr, priority, congestion_control, express, allowed_destination)
        try:
            route = self._routes.get(name)
        except TypeError:
            route = None  # An unhashable argument; the checks below raise its error.
        if route is None:
            self._check()
            destination = member("allowed_destination", allowed_destination, Locality.DEFAULT)
            qos = qos_of(DEFAULT_QOS, priority, congestion_control, express)
            route = OutboundRoute(self._core, key_of(key_expr), qos, destination=destination)
            self._routes.keep(name, route)
        return route

    # ---- declarations

    def declare_keyexpr(self, /, key_expr: IntoKeyExpr) -> KeyExpr:
        """Declare a key expression that is used often; `undeclare` it after use."""
        self._check()
        declared = DeclaredKeyExpr.trusted(key_of(key_expr))
        assert isinstance(declared, DeclaredKeyExpr)
        declared.owner = self._core
        return declared

    def declare_publisher(
        self,
        /,
        key_expr: IntoKeyExpr,
        *,
        encoding: IntoEncoding | None = None,
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        reliability: Reliability | None = None,
        allowed_destination: Locality | None = None,
    ) -> Publisher:
        """Declare a publisher on `key_expr`."""
        self._check()
        return make(
            Publisher,
            self._core,
            key_expr,
            encoding,
            congestion_control,
            priority,
            express,
            reliability,
            allowed_destination,
        )

    @overload
    def declare_subscriber(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: "ArrowBatches",
        *,
        allowed_origin: Locality | None = None,
    ) -> "Subscriber[Handler[RecordBatch]]": ...
    @overload
    def declare_subscriber(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: IntoChannel[Sample] = None,
        *,
        allowed_origin: Locality | None = None,
    ) -> Subscriber[Handler[Sample]]: ...
    @overload
    def declare_subscriber(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: CallbackAnd[Sample, H],
        *,
        allowed_origin: Locality | None = None,
    ) -> Subscriber[H]: ...
    @overload
    def declare_subscriber(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: IntoCallback[Sample],
        *,
        allowed_origin: Locality | None = None,
    ) -> Subscriber[None]: ...
    def declare_subscriber(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: object = None,
        *,
        allowed_origin: Locality | None = None,
    ) -> Subscriber[H]:
        """Declare a subscriber of `key_expr`.

        `handler`: a function that gets each Sample, a channel of `zenlake.handlers`, or
        `zenlake.ArrowBatches(...)`, with which the subscriber yields record batches.
        """
        self._check()
        return self._core.subscribers.declare(key_expr, handler, allowed_origin)

    @overload
    def declare_queryable(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: IntoChannel[Query] = None,
        *,
        complete: bool | None = None,
        allowed_origin: Locality | None = None,
    ) -> Queryable[Handler[Query]]: ...
    @overload
    def declare_queryable(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: CallbackAnd[Query, H],
        *,
        complete: bool | None = None,
        allowed_origin: Locality | None = None,
    ) -> Queryable[H]: ...
    @overload
    def declare_queryable(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: IntoCallback[Query],
        *,
        complete: bool | None = None,
        allowed_origin: Locality | None = None,
    ) -> Queryable[None]: ...
    def declare_queryable(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: object = None,
        *,
        complete: bool | None = None,
        allowed_origin: Locality | None = None,
    ) -> Queryable[H]:
        """Declare a queryable on `key_expr`; `complete` says that it has all values for it."""
        self._check()
        return self._core.queryables.declare(
            key_expr, handler, complete=complete, allowed_origin=allowed_origin
        )

    def declare_querier(
        self,
        /,
        key_expr: IntoKeyExpr,
        *,
        target: QueryTarget | None = None,
        consolidation: IntoConsolidation | None = None,
        accept_replies: ReplyKeyExpr | None = None,
        timeout: float | None = None,
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        allowed_destination: Locality | None = None,
    ) -> Querier:
        """Declare a querier on `key_expr`."""
        self._check()
        options = self._core.queries.options(
            target,
            consolidation,
            accept_replies,
            timeout,
            congestion_control,
            priority,
            express,
            allowed_destination,
        )
        return make(Querier, self._core.interests, self._core.queries, key_expr, options)

    @overload
    def get(
        self,
        /,
        selector: IntoSelector,
        handler: IntoChannel[Reply] = None,
        **options: Unpack[GetOptions],
    ) -> Handler[Reply]: ...
    @overload
    def get(
        self,
        /,
        selector: IntoSelector,
        handler: CallbackAnd[Reply, H],
        **options: Unpack[GetOptions],
    ) -> H: ...
    @overload
    def get(
        self,
        /,
        selector: IntoSelector,
        handler: IntoCallback[Reply],
        **options: Unpack[GetOptions],
    ) -> None: ...
    def get(
        self,
        /,
        selector: IntoSelector,
        handler: object = None,
        *,
        target: QueryTarget | None = None,
        consolidation: IntoConsolidation | None = None,
        accept_replies: ReplyKeyExpr | None = None,
        timeout: float | None = None,
        congestion_control: CongestionControl | None = None,
        priority: Priority | None = None,
        express: bool | None = None,
        payload: IntoZBytes | None = None,
        encoding: IntoEncoding | None = None,
        attachment: IntoZBytes | None = None,
        allowed_destination: Locality | None = None,
        source_info: SourceInfo | None = None,
        cancellation_token: CancellationToken | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
    ) -> object:
        """Query the queryables that match `selector`; return a reader of the replies."""
        self._check()
        key, parameters = split_selector(selector)
        options = self._core.queries.options(
            target,
            consolidation,
            accept_replies,
            timeout,
            congestion_control,
            priority,
            express,
            allowed_destination,
        )
        return self._core.queries.ask(
            key,
            parameters,
            options,
            handler,
            payload=payload,
            encoding=encoding,
            attachment=attachment,
            source_info=source_info,
            cancellation_token=cancellation_token,
            timestamp_instrumentation=timestamp_instrumentation,
        )

    def liveliness(self, /) -> Liveliness:
        """Return the API for liveliness tokens."""
        if self._liveliness is None:
            self._liveliness = make(Liveliness, self._core.interests, self._core.queries)
        return self._liveliness


def open(  # noqa: A001  # the API's name
    config: Config, *, timestamp_callback: TimestampCallback | None = None
) -> Session:
    """Open a session. ZError: it cannot be opened; the text says why.

    `timestamp_callback` returns the bytes to record at instrumented points of a message's path.
    """
    core = SessionCore(instance("config", config, Config), timestamp_callback)
    core.open()
    return make(Session, core)
