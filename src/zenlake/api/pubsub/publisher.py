"""Publisher: puts and deletes on one key, on the shortest way to whoever wants them.

Knows what a message looks like but for its payload, and prepares that once. Does not know who
wants it: routing says, and says when that has changed.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from zenlake.api.arguments import (
    IntoKeyExpr,
    attachment_of,
    encoding_of,
    instance,
    key_of,
    member,
    qos_of,
)
from zenlake.api.discovery.matching import MatchingListener, MatchingStatus
from zenlake.api.entity import Entity
from zenlake.api.gc_finalize import finalize_safely
from zenlake.api.values.encoding import Encoding, IntoEncoding
from zenlake.api.values.enums import (
    QOS_CONGESTION_CONTROL,
    QOS_PRIORITY,
    CongestionControl,
    InterceptionPoint,
    Locality,
    Priority,
    Reliability,
)
from zenlake.api.values.ids import EntityGlobalId, SourceInfo
from zenlake.api.values.instrumentation import TimestampInstrumentation
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.zbytes import IntoZBytes, ZBytes, payload_bytes
from zenlake.errors import SessionEnded, ZError
from zenlake.keyexpr import KeyExpr
from zenlake.runtime.transport_session import FastPath
from zenlake.transport.drop_reason import DropReason
from zenlake.wire import encoding as wire_encoding
from zenlake.wire import entity
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.delete import Del
from zenlake.wire.plain_push import write_plain_head
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import DEFAULT as DEFAULT_QOS
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    import pyarrow as pa

    from zenlake.api.session_core import SessionCore

log = logging.getLogger("zenlake.api")

NEVER = -1  # the version of a way that was not found yet, or is no more


ALONE = (None,) * 5
SMALL = 4096  # bytes of a received payload that is put again
PutCall = Callable[..., None]


class OutboundRoute:
    """How puts on one key leave this session: found once, and again when routes have changed."""

    __slots__ = (
        "core",
        "destination",
        "encoding",
        "exchange",
        "key",
        "local",
        "on_short",
        "plain",
        "ports",
        "qos",
        "reliable",
        "short",
        "version",
    )

    def __init__(
        self,
        core: "SessionCore",
        key: KeyExpr,
        qos: QoS,
        reliable: bool = True,
        encoding: wire_encoding.WireEncoding = wire_encoding.DEFAULT,
        destination: Locality = Locality.ANY,
    ) -> None:
        self.core = core
        self.exchange = core.exchange
        self.key = key
        self.qos = qos
        self.reliable = reliable
        self.encoding = encoding
        self.destination = destination
        self.version = NEVER
        self.ports: tuple[tuple[Any, WireExpr], ...] = ()
        self.local: tuple[Any, ...] = ()
        self.short: PutCall | None = None
        "The same as `put`, where there is just one session that wants it: much faster."
        self.on_short: Callable[[PutCall | None], None] | None = None
        "Called when that is another."
        self.plain: tuple[tuple[Any, bytes], ...] | None = None
        "For puts of a payload alone: each session, and the put up to the length of its payload."

    def find(self) -> None:
        """Look again where puts leave.

        Another thread may put meanwhile: it finds what was known before, or all that is new.
        """
        exchange = self.core.exchange
        with exchange.lock:
            self._set_short(None)
            remote = self.destination is not Locality.SESSION_LOCAL
            ports = exchange.way_out(self.key) if remote else ()
            local: tuple[Any, ...] = ()
            if self.destination is not Locality.REMOTE:
                local = self.core.subscribers.of(self.key, local=True)
            plain: tuple[tuple[Any, bytes], ...] | None = None
            if not local and not exchange.stamps:
                plain = tuple(
                    (port.session, write_plain_head(wire, self.encoding, self.qos))
                    for port, wire in ports
                )
            self.ports, self.local, self.plain = ports, local, plain
            self.version = exchange.version
            if plain is not None and len(plain) == 1:
                session, head = plain[0]
                short = session.short_way(head, self.qos, self.reliable)
                self._set_short(None if short is None else _short_put(self, short))

    def _set_short(self, short: PutCall | None) -> None:
        self.short = short
        if self.on_short is not None:
            self.on_short(short)

    def end(self) -> None:
        """It is not to be used any more."""
        self._set_short(None)
        self.on_short = None

    def current(self) -> tuple[tuple[Any, WireExpr], ...]:
        """Those who want it now, each with the key as it knows it."""
        if self.version != self.exchange.version:
            self.find()
        return self.ports

    def put(
        self,
        payload: IntoZBytes,
        *,
        encoding: IntoEncoding | None = None,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
        source_info: SourceInfo | None = None,
    ) -> None:
        if self.exchange.closed:
            raise ZError("session closed")
        if self.version != self.exchange.version:
            self.find()
        beside = (encoding, attachment, timestamp, timestamp_instrumentation, source_info)
        if type(payload) is ZBytes:
            payload = payload.buffer
            if type(payload) is memoryview and len(payload) <= SMALL:
                payload = bytes(payload)  # cheaper than a longer way
        if beside == ALONE and type(payload) is bytes and self.plain is not None:
            (self.short or self.put_plain)(payload)
            return
        kind = self.encoding if encoding is None else encoding_of(encoding)
        body = put_body(payload, kind, attachment, timestamp, source_info)
        self.send(body, timestamp_instrumentation)

    def put_plain(self, payload: bytes) -> None:
        """Put `payload` and nothing else, on the way for such where there is one."""
        plain = self.plain
        if plain is None:  # since the caller looked, another thread has found another way
            self.send(put_body(payload, self.encoding, None, None, None), None)
            return
        for session, head in plain:
            w = ByteWriter(bytearray(head))
            w.block("payload", payload)
            try:
                session.send_encoded(bytes(w.out), self.qos, self.reliable)
            except SessionEnded as end:
                self._ended(end)

    def _ended(self, end: SessionEnded) -> None:
        self.exchange.dropped[DropReason.SESSION_CLOSED] += 1
        log.debug("%s: %s", self.key, end)

    def send(self, body: Put | Del, instrumentation: TimestampInstrumentation | None) -> None:
        """To everybody who wants it; waits for room as the congestion control says."""
        core = self.core
        if core.exchange.closed:
            raise ZError("session closed")
        if self.version != self.exchange.version:
            self.find()
        if core.exchange.stamps and body.timestamp is None:
            body.timestamp = core.exchange.stamp()
        stack = None
        if instrumentation is not None:
            stack = core.record(instrumentation.stack(), InterceptionPoint.SEND)
        leaving = stack and core.routed(stack)
        for port, wire in self.ports:
            try:
                port.session.send(Push(wire, body, self.qos, ts_stack=leaving), self.reliable)
            except SessionEnded as end:
                self._ended(end)
        if self.local:
            core.deliver_local(
                self.local, self.key, Push(WireExpr(), body, self.qos, ts_stack=stack)
            )


def _short_put(way: OutboundRoute, short: FastPath) -> PutCall:
    """`way.put` while the way is what it is now: a message is added to an open lane."""
    lane, heads, overhead, most, settle = short
    added = lane.added
    add = added.append
    exchange, version = way.exchange, way.version

    def put(
        payload: IntoZBytes,
        *,
        encoding: IntoEncoding | None = None,
        attachment: IntoZBytes | None = None,
        timestamp: Timestamp | None = None,
        timestamp_instrumentation: TimestampInstrumentation | None = None,
        source_info: SourceInfo | None = None,
    ) -> None:
        if (
            type(payload) is bytes
            and encoding is None
            and attachment is None
            and timestamp is None
            and timestamp_instrumentation is None
            and source_info is None
            and exchange.version == version
        ):
            size = len(payload)
            if lane.open and (len(added) + 1) * (size + overhead) < most:
                add(heads[size] + payload)
                if not lane.open:
                    # Somebody has just taken what was added, maybe without this.
                    settle()  # type: ignore[unreachable]
                return
            way.put_plain(payload)
            return
        way.put(
            payload,
            encoding=encoding,
            attachment=attachment,
            timestamp=timestamp,
            timestamp_instrumentation=timestamp_instrumentation,
            source_info=source_info,
        )

    return put


def put_body(
    payload: IntoZBytes,
    encoding: wire_encoding.WireEncoding,
    attachment: IntoZBytes | None,
    timestamp: Timestamp | None,
    source_info: SourceInfo | None,
) -> Put:
    return Put(
        payload_bytes(payload),  # type: ignore[arg-type]  # a view is written as bytes are
        None if timestamp is None else instance("timestamp", timestamp, Timestamp).wire,
        encoding,
        None if source_info is None else instance("source_info", source_info, SourceInfo).wire,
        attachment_of(attachment),
    )


def del_body(
    attachment: IntoZBytes | None, timestamp: Timestamp | None, source_info: SourceInfo | None
) -> Del:
    return Del(
        timestamp=None if timestamp is None else instance("timestamp", timestamp, Timestamp).wire,
        source_info=None
        if source_info is None
        else instance("source_info", source_info, SourceInfo).wire,
        attachment=attachment_of(attachment),
    )


def _take_over(publisher: "ref[Publisher]", short: PutCall | None) -> None:
    """An instance's own `put` goes before its class's: no call in between."""
    found = publisher()
    if found is not None:
        found.__dict__.pop("put", None)
        if short is not None:
            found.__dict__["put"] = short


class Publisher(Entity):
    """Publishes on one key expression; made by `Session.declare_publisher`."""

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
        self._number = core.exchange.next_id()
        self._way = OutboundRoute(core, key, qos, reliable, encoding_of(encoding), destination)
        self._watch = core.interests.watch(
            "subscribers",
            key,
            local=lambda: bool(core.subscribers.of(key, local=True)),
            destination=destination,
        )
        self._undeclared = False
        core.publishers[self._number] = None
        self._way.on_short = partial(_take_over, ref(self))
        self._way.find()

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
        self._way.put(
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
        """Say that the value of the key is no more."""
        self._check()
        self._way.send(del_body(attachment, timestamp, source_info), timestamp_instrumentation)

    def has_room(self) -> bool:
        """Whether a put would leave at once: neither wait nor be dropped."""
        self._check()
        way = self._way
        return all(port.session.has_room(way.qos) for port, _ in way.current())

    def put_batch(self, batch: "pa.RecordBatch") -> int:
        """Publish every row of `batch` on this key, at once; gives how many.

        Columns as in `zenlake.columnar.schema`, all but `payload` may be missing. Waits while
        there is no room; nothing is dropped.
        """
        from zenlake.api.pubsub.arrow import put_batch

        self._check()
        way = self._way
        return put_batch(self._core, batch, way)

    @property
    def id(self) -> EntityGlobalId:
        """Its id in the whole system."""
        self._check()
        return EntityGlobalId.of(entity.WireEntityId(self._core.exchange.zid, self._number))

    @property
    def key_expr(self) -> KeyExpr:
        """What it publishes on."""
        self._check()
        return self._way.key

    @property
    def encoding(self) -> Encoding:
        """How payloads are to be read, unless a put says otherwise."""
        self._check()
        return Encoding.of(self._way.encoding)

    @property
    def congestion_control(self) -> CongestionControl:
        """What happens where there is no room."""
        self._check()
        return QOS_CONGESTION_CONTROL[self._way.qos]

    @property
    def priority(self) -> Priority:
        """Which goes first where there is not room for all."""
        self._check()
        return QOS_PRIORITY[self._way.qos]

    @property
    def reliability(self) -> Reliability:
        """Whether links that lose messages are to be avoided."""
        self._check()
        return Reliability.RELIABLE if self._way.reliable else Reliability.BEST_EFFORT

    @property
    def matching_status(self) -> MatchingStatus:
        """Whether anybody subscribed to what it publishes."""
        self._check()
        return self._watch.status()

    def declare_matching_listener(self, /, handler: Any = None) -> MatchingListener[Any]:
        """Be told when that changes."""
        self._check()
        return self._watch.declare_listener(handler)

    def undeclare(self, /) -> None:
        """Publish no more."""
        self._check()
        self._end()

    def _end(self) -> None:
        self._undeclared = True
        self._core.publishers.pop(self._number, None)
        self._way.end()
        self._watch.close()

    def __del__(self) -> None:
        if not self._undeclared:
            self._undeclared = True
            watch = self._watch
            self._way.end()
            self._core.publishers.pop(self._number, None)
            finalize_safely(self._core.exchange, watch.close)

    def __repr__(self) -> str:
        self._check()
        return f"Publisher({self._way.key!r})"
