"""Session: one participant of a Zenoh system, as users hold it.

Knows the signatures and hands on to the parts (`core.py`). Dropping it closes the session.
"""

from typing import TYPE_CHECKING, Any, Self
from weakref import finalize

from zenlake.api.arguments import IntoKeyExpr, instance, key_of, member, qos_of
from zenlake.api.config.config import Config
from zenlake.api.discovery.info import SessionInfo
from zenlake.api.discovery.liveliness import Liveliness
from zenlake.api.discovery.stats import Stats, stats
from zenlake.api.pubsub.outbound_route import OutboundRoute, del_body
from zenlake.api.pubsub.publisher import Publisher
from zenlake.api.pubsub.subscriber import Subscriber
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.query.get import IntoConsolidation, QueryOptions
from zenlake.api.query.querier import Querier
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
from zenlake.api.values.selector import IntoSelector
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.wrapped import Unconstructed, make
from zenlake.api.values.zbytes import IntoZBytes
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.wire import entity
from zenlake.wire.qos import DEFAULT as DEFAULT_QOS

if TYPE_CHECKING:
    import pyarrow as pa

MAX_WAYS = 4096  # of puts without a publisher, remembered; then they are found anew


class DeclaredKeyExpr(KeyExpr):
    """A key expression that one session declared."""

    owner: SessionCore

    def __reduce__(self) -> tuple[type[KeyExpr], tuple[str]]:
        return KeyExpr, (str(self),)


class Session(metaclass=Unconstructed):
    """One participant; made by `zenlake.open`.

    Use it as a context manager, or `close()` it. When nothing holds it any more it closes, even
    while its subscribers are alive; and a program may end without closing it.

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

    @classmethod
    def of(cls, core: SessionCore) -> Self:
        self = object.__new__(cls)
        self._core = core
        self._ways = {}
        self._liveliness = None
        self._finalizer = finalize(self, core.drop)
        self._finalizer.atexit = False  # whatever is open is closed at exit, without a thread
        return self

    _core: SessionCore
    _ways: dict[Any, OutboundRoute]
    _liveliness: Liveliness | None
    _finalizer: "finalize[[], Self]"

    # ---- who it is

    def zid(self, /) -> ZenohId:
        """Its id in the whole system."""
        return ZenohId.of(self._core.exchange.zid)

    @property
    def id(self) -> EntityGlobalId:
        """The same, as that of an entity."""
        core = self._core
        return EntityGlobalId.of(entity.WireEntityId(core.exchange.zid, core.number))

    @property
    def info(self) -> SessionInfo:
        """With whom it is connected, and how."""
        return self._core.info

    def stats(self) -> Stats:
        """What was sent, received and lost, and why."""
        return stats(self._core)

    def new_timestamp(self, /) -> Timestamp:
        """A timestamp of this session's clock, greater than all before."""
        return Timestamp.of(self._core.exchange.stamp())

    def is_closed(self, /) -> bool:
        """Whether it was closed."""
        return self._core.exchange.closed

    # ---- the end

    def close(self, /) -> None:
        """Undeclare everything and leave. May be called again."""
        self._ways.clear()
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

    def undeclare(self, /, obj: Any) -> None:
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
        """Publish `payload` on `key_expr`. Many on one key: `declare_publisher` is faster."""
        way = self._way(key_expr, priority, congestion_control, express, allowed_destination)
        way.put(
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
        """Say that the value of `key_expr` is no more."""
        way = self._way(key_expr, priority, congestion_control, express, allowed_destination)
        way.send(del_body(attachment, timestamp, source_info), timestamp_instrumentation)

    def has_room(self, priority: Priority | None = None) -> bool:
        """Whether a put of this priority would leave at once: neither wait nor be dropped."""
        qos = qos_of(DEFAULT_QOS, priority, None, None)
        return all(one.has_room(qos) for one in self._core.node.sessions.values())

    def put_batch(self, batch: "pa.RecordBatch") -> int:
        """Publish every row of an Arrow record batch at once; gives how many.

        Columns as in `zenlake.columnar.schema`, all but `key` may be missing. Waits while there is
        no room; nothing is dropped.
        """
        from zenlake.api.pubsub.arrow import put_batch

        self._check()
        return put_batch(self._core, batch, None)

    def _way(
        self,
        key_expr: IntoKeyExpr,
        priority: Priority | None,
        congestion_control: CongestionControl | None,
        express: bool | None,
        allowed_destination: Locality | None,
    ) -> OutboundRoute:
        name = (key_expr, priority, congestion_control, express, allowed_destination)
        try:
            way = self._ways.get(name)
        except TypeError:
            way = None  # what is wrong with it is said below
        if way is None:
            self._check()
            destination = member("allowed_destination", allowed_destination, Locality.DEFAULT)
            qos = qos_of(DEFAULT_QOS, priority, congestion_control, express)
            way = OutboundRoute(self._core, key_of(key_expr), qos, destination=destination)
            if len(self._ways) >= MAX_WAYS:
                self._ways.clear()
            self._ways[name] = way
        return way

    # ---- declarations

    def declare_keyexpr(self, /, key_expr: IntoKeyExpr) -> KeyExpr:
        """A key expression that is used often; `undeclare` it when it is not any more."""
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
        """Publish on `key_expr` again and again."""
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

    def declare_subscriber(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: Any = None,
        *,
        allowed_origin: Locality | None = None,
    ) -> Subscriber[Any]:
        """Receive what is put on `key_expr`.

        `handler`: a function to be called with each Sample, a `zenlake.handlers` channel, or
        `zenlake.ArrowBatches(...)`, with which the subscriber yields record batches.
        """
        self._check()
        return self._core.subscribers.declare(key_expr, handler, allowed_origin)

    def declare_queryable(
        self,
        /,
        key_expr: IntoKeyExpr,
        handler: Any = None,
        *,
        complete: bool | None = None,
        allowed_origin: Locality | None = None,
    ) -> Queryable[Any]:
        """Answer queries on `key_expr`. `complete`: it knows everything about it."""
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
        """Ask about `key_expr` again and again."""
        self._check()
        asking = QueryOptions(
            self._core.exchange.query_timeout,
            target,
            consolidation,
            accept_replies,
            timeout,
            congestion_control,
            priority,
            express,
            allowed_destination,
        )
        return make(Querier, self._core.interests, self._core.queries, key_expr, asking)

    def get(
        self,
        /,
        selector: IntoSelector,
        handler: Any = None,
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
    ) -> Any:
        """Ask the queryables that match `selector`; gives the replies as they come."""
        self._check()
        return self._core.queries.get(
            selector,
            handler,
            target=target,
            consolidation=consolidation,
            accept_replies=accept_replies,
            timeout=timeout,
            congestion_control=congestion_control,
            priority=priority,
            express=express,
            payload=payload,
            encoding=encoding,
            attachment=attachment,
            allowed_destination=allowed_destination,
            source_info=source_info,
            cancellation_token=cancellation_token,
            timestamp_instrumentation=timestamp_instrumentation,
        )

    def liveliness(self, /) -> Liveliness:
        """Who is alive: tokens, and those who watch them."""
        if self._liveliness is None:
            self._liveliness = make(Liveliness, self._core.interests, self._core.queries)
        return self._liveliness


def open(  # noqa: A001  # the API's name
    config: Config, *, timestamp_callback: TimestampCallback | None = None
) -> Session:
    """Open a session. ZError: it cannot, and why.

    `timestamp_callback` gives the bytes to record where timestamps are asked for on the way.
    """
    core = SessionCore(instance("config", config, Config), timestamp_callback)
    core.open()
    return Session.of(core)
