"""AdvancedPublisher: sequence numbers, a cache, heartbeats and a token around a plain publisher.

Knows what a sample carries so that a subscriber can tell whether it is the next. Does not know what
subscribers do about a gap.
"""

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, final

from zenlake.api.arguments import encoding_of
from zenlake.api.entity import KeyedEntity
from zenlake.api.forwarding import Attribute, forward_property
from zenlake.api.handlers import Callback
from zenlake.api.pubsub.outbound_route import del_body, put_body
from zenlake.api.pubsub.publisher import Publisher
from zenlake.api.session_core import core_of
from zenlake.api.values.encoding import Encoding, IntoEncoding
from zenlake.api.values.enums import CongestionControl, Locality, Priority, Reliability
from zenlake.api.values.instrumentation import TimestampInstrumentation
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.wrapped import make
from zenlake.api.values.zbytes import IntoZBytes, kept_bytes
from zenlake.errors import MessageTooLarge, ZError
from zenlake.ext.advanced_cache import Cache
from zenlake.ext.advanced_config import CacheConfig, MissDetectionConfig, RepliesConfig, seconds
from zenlake.ext.advanced_keys import UHLC, own_key
from zenlake.ext.advanced_order import U32
from zenlake.ext.periodic import SCHEDULER
from zenlake.keyexpr import KeyExpr
from zenlake.wire.delete import Del
from zenlake.wire.entity import WireSourceInfo
from zenlake.wire.put import Put

if TYPE_CHECKING:
    from zenlake.api.session import Session


class Heartbeat:
    """Publisher of the last sequence number on the advanced publisher's own key, until the session
    ends.
    """

    def __init__(
        self, session: "Session", key: str, count: "SequenceCounter", period: float, sporadic: bool
    ) -> None:
        self._count = count
        self._sporadic = sporadic
        self._told = 0
        self._publisher = session.declare_publisher(
            key, congestion_control=CongestionControl.BLOCK if sporadic else None
        )
        self._periodic = SCHEDULER.every(period, self._beat)

    def _beat(self) -> bool:
        if core_of(self._publisher).exchange.closed:
            return False
        published = self._count.published
        if published > (self._told if self._sporadic else 0):
            self._publisher.put(((published - 1) & U32).to_bytes(4, "little"))
            self._told = published
        return True

    def undeclare(self) -> None:
        self._periodic.cancel()
        self._publisher.undeclare()


class SequenceCounter:
    """Number of published samples; its low 32 bits are the next sequence number."""

    def __init__(self) -> None:
        self.published = 0


@final
class AdvancedPublisher(KeyedEntity):
    """Publisher whose samples can be missed, recovered and asked for later.

    Made by `declare_advanced_publisher`.
    """

    _what = "publisher"
    _given_by = "declare_advanced_publisher"

    def __init__(self, publisher: Publisher, numbered: bool) -> None:
        self._entity = publisher
        self._route = publisher._route
        self._core = core_of(publisher)
        self._id = publisher.id.wire
        self._key_expr = publisher.key_expr
        self._numbered = numbered
        self._own_key = own_key(
            self._key_expr, "pub", self._id.zid, self._id.eid if numbered else UHLC
        )
        self._cache: Cache | None = None
        self._count = SequenceCounter()
        self._lock = threading.Lock()
        self._undeclares = ExitStack()
        self._undeclares.callback(publisher.undeclare)
        super().__init__(self._core.exchange, self._undeclares.close)

    def _add_cache(self, session: "Session", config: CacheConfig) -> None:
        if not self._numbered and not self._core.exchange.stamps:
            raise ZError(
                f"Cannot create AdvancedPublisher {self.key_expr}: a cache needs sequence numbers "
                "(give sample_miss_detection) or timestamps (set 'timestamping/enabled' in the "
                "session's configuration)"
            )
        most = 1 if config.max_samples is None else config.max_samples
        replies = config.replies_config or RepliesConfig()
        self._cache = Cache(self.key_expr, most, replies.express)
        queryable = session.declare_queryable(self._own_key, Callback(self._cache.answer))
        self._undeclares.callback(queryable.undeclare)

    def _declare_token(self, session: "Session") -> None:
        token = session.liveliness().declare_token(self._own_key)
        self._undeclares.callback(token.undeclare)

    def _start_heartbeat(self, session: "Session", config: MissDetectionConfig) -> None:
        sporadic = config.sporadic_heartbeat is not None
        period = seconds("heartbeat", config.sporadic_heartbeat if sporadic else config.heartbeat)
        if period is not None:
            beat = Heartbeat(session, self._own_key, self._count, period, sporadic)
            self._undeclares.callback(beat.undeclare)

    encoding: Attribute[Encoding] = forward_property(Publisher.encoding)
    congestion_control: Attribute[CongestionControl] = forward_property(
        Publisher.congestion_control
    )
    priority: Attribute[Priority] = forward_property(Publisher.priority)
    __repr__ = object.__repr__

    def put(
        self,
        /,
        payload: IntoZBytes,
        *,
        encoding: IntoEncoding | None = None,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
    ) -> None:
        """Publish a value; with a cache, keep it."""
        encoded = self._route.encoding if encoding is None else encoding_of(encoding)
        body = put_body(payload, encoded, attachment, timestamp, None)
        if self._cache is not None:
            body.payload = kept_bytes(body.payload)  # type: ignore[assignment]
        self._publish(body, timestamp_instrumentation)

    def delete(
        self,
        /,
        *,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
    ) -> None:
        """Publish that there is no value any more; with a cache, keep that."""
        self._publish(del_body(attachment, timestamp, None), timestamp_instrumentation)

    def _publish(self, body: Put | Del, instrumentation: TimestampInstrumentation | None) -> None:
        """Number, keep and send one sample at a time, so that numbers leave in their order.

        The sample is kept first, since a subscriber that misses it may ask at once. A sample that
        could not be sent is not kept, and leaves no gap in the numbers.
        """
        self._check()
        with self._lock:
            if body.timestamp is None and self._core.exchange.stamps:
                body.timestamp = self._core.exchange.stamp()
            if self._numbered:
                body.source_info = WireSourceInfo(self._id, self._count.published & U32)
            if self._cache is not None:
                self._cache.keep(body)
            try:
                self._route.send(body, instrumentation)
            except MessageTooLarge:  # Other subscribers may have it.
                self._count.published += 1
                raise
            except BaseException:
                if self._cache is not None:
                    self._cache.take_back()
                raise
            self._count.published += 1


def declare_advanced_publisher(
    session: "Session",
    key_expr: KeyExpr | str,
    *,
    encoding: IntoEncoding | None = None,
    congestion_control: CongestionControl | None = None,
    priority: Priority | None = None,
    express: bool | None = None,
    reliability: Reliability | None = None,
    allowed_destination: Locality | None = None,
    cache: CacheConfig | None = None,
    sample_miss_detection: MissDetectionConfig | None = None,
    publisher_detection: bool | None = None,
) -> AdvancedPublisher:
    """Declare a publisher with a cache, sequence numbers and a liveliness token as configured.

    A cache without `sample_miss_detection` needs timestamps: the session's configuration must have
    `timestamping/enabled`.
    """
    publisher = session.declare_publisher(
        key_expr,
        encoding=encoding,
        congestion_control=congestion_control,
        priority=priority,
        express=express,
        reliability=reliability,
        allowed_destination=allowed_destination,
    )
    advanced = make(AdvancedPublisher, publisher, sample_miss_detection is not None)
    try:
        if cache is not None:
            advanced._add_cache(session, cache)
        if publisher_detection:
            advanced._declare_token(session)
        if sample_miss_detection is not None:
            advanced._start_heartbeat(session, sample_miss_detection)
    except BaseException:
        advanced.undeclare()
        raise
    return advanced
