"""Publisher: the handle that puts and deletes on one key.

Knows the publisher's options and its life. Where its messages go is in outbound_route.py.
"""

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, final
from weakref import ref

from zenlake.api.arguments import IntoKeyExpr, encoding_of, key_of, member, qos_of
from zenlake.api.discovery.matching import MatchWatch, WatchedEntity
from zenlake.api.pubsub.outbound_route import OutboundRoute, PutCall, del_body
from zenlake.api.values.encoding import Encoding, IntoEncoding
from zenlake.api.values.enums import (
    QOS_CONGESTION_CONTROL,
    QOS_PRIORITY,
    CongestionControl,
    Locality,
    Priority,
    Reliability,
)
from zenlake.api.values.ids import SourceInfo
from zenlake.api.values.instrumentation import TimestampInstrumentation
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.zbytes import IntoZBytes
from zenlake.wire import entity
from zenlake.wire.qos import DEFAULT as DEFAULT_QOS

if TYPE_CHECKING:
    from zenlake.api.session_core import SessionCore
    from zenlake.columnar.record_batch import IntoRecordBatch


@final
class Publisher(WatchedEntity):
    """Publishes on one key expression; made by `Session.declare_publisher`.

    While exactly one session wants the puts, `put` is not the method below but a function that the
    instance holds under the same name, with the same signature: it appends the message to the
    session's open batch without a lock (`transport/fast_path.py`). It replaces the method because a
    call in between would make each put a fifth slower. A breakpoint in `Publisher.put`, or a patch
    of the class, does not see such puts; patch the instance instead.
    """

    _what = "publisher"
    _given_by = "session.declare_publisher"

    def __init__(
        self,
        core: "SessionCore",
        key_expr: IntoKeyExpr,
        encoding: IntoEncoding | None,
        congestion_control: CongestionControl | None,
        priority: Priority | None,
        express: bool | None,
        reliability: Reliability | None,
        allowed_destination: Locality | None,
    ) -> None:
        key = key_of(key_expr)
        destination = member("allowed_destination", allowed_destination, Locality.DEFAULT)
        reliable = member("reliability", reliability, Reliability.RELIABLE) is Reliability.RELIABLE
        qos = qos_of(DEFAULT_QOS, priority, congestion_control, express)
        self._core = core
        self._id = entity.WireEntityId(core.exchange.zid, core.exchange.next_id())
        self._key_expr = key
        self._route = OutboundRoute(
            core, key, qos, reliable, encoding_of(encoding), destination, declares=True
        )
        self._watch = core.interests.watch(
            "subscribers",
            key,
            local=lambda: bool(core.subscribers.matching(key, local=True)),
            destination=destination,
        )
        super().__init__(core.exchange, partial(_end, self._route, self._watch))
        self._route.on_fast_path_changed = partial(_use_fast_put, ref(self))
        self._route.refresh()

    def put(
        self,
        /,
        payload: IntoZBytes,
        *,
        encoding: IntoEncoding | None = None,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
        source_info: SourceInfo | None = None,
    ) -> None:
        """Publish `payload`. A buffer other than bytes must not change until it has left."""
        self._check()
        self._route.put(
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
        *,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
        source_info: SourceInfo | None = None,
    ) -> None:
        """Publish that the value of the key was deleted."""
        self._check()
        self._route.send(del_body(attachment, timestamp, source_info), timestamp_instrumentation)

    def has_room(self) -> bool:
        """Whether a put would leave at once: neither wait nor be dropped."""
        self._check()
        route = self._route
        return all(port.session.has_room(route.qos) for port, _ in route.current_ports())

    def put_batch(self, batch: "IntoRecordBatch") -> int:
        """Publish every row of `batch` on this key, at once; return how many.

        Columns as in `zenlake.columnar.schema`, all but `payload` may be missing. Waits while
        there is no room; nothing is dropped.
        """
        from zenlake.api.pubsub.arrow import put_batch

        self._check()
        return put_batch(self._core, batch, self._route)

    @property
    def encoding(self) -> Encoding:
        """The encoding of payloads, unless a put names another."""
        self._check()
        return Encoding.of(self._route.encoding)

    @property
    def congestion_control(self) -> CongestionControl:
        """Whether a put waits or is dropped when there is no room."""
        self._check()
        return QOS_CONGESTION_CONTROL[self._route.qos]

    @property
    def priority(self) -> Priority:
        """The priority of its messages."""
        self._check()
        return QOS_PRIORITY[self._route.qos]

    @property
    def reliability(self) -> Reliability:
        """Whether messages are sent reliably, or with best effort."""
        self._check()
        return Reliability.RELIABLE if self._route.reliable else Reliability.BEST_EFFORT


def _end(route: OutboundRoute, watch: MatchWatch) -> None:
    route.end()
    watch.close()


def _use_fast_put(publisher: "ref[Publisher]", put: PutCall | None) -> None:
    """Let `put` be the instance's `put`, before that of its class; None: use the class's again."""
    found = publisher()
    if found is None:
        return
    if put is not None:
        found.put = put  # type: ignore[method-assign]
    else:
        with suppress(AttributeError):  # The instance has none.
            del found.put
