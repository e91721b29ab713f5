"""Outbound route: where the puts of this session on one key go, and the fastest way there.

Knows what a message looks like but for its payload, and prepares that once. Does not know who
wants it: the routing says, and says when that has changed.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from zenlake.api.arguments import attachment_of, encoding_of, instance, wire_of
from zenlake.api.values.encoding import IntoEncoding
from zenlake.api.values.enums import InterceptionPoint, Locality
from zenlake.api.values.ids import SourceInfo
from zenlake.api.values.instrumentation import TimestampInstrumentation
from zenlake.api.values.timestamps import Timestamp
from zenlake.api.values.zbytes import IntoZBytes, ZBytes, payload_bytes
from zenlake.errors import MessageTooLarge, SessionEnded, ZError
from zenlake.keyexpr import KeyExpr
from zenlake.runtime.session_face import SessionFace
from zenlake.runtime.transport_session import TransportSession
from zenlake.shm.session import POINTER_BYTES, Loan, SharedPutEncoder
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.fast_path import FastPath
from zenlake.wire import encoding as wire_encoding
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.delete import Del
from zenlake.wire.plain_push import write_plain_head
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    from zenlake.api.pubsub.subscriber import SubscriberEntry
    from zenlake.api.session_core import SessionCore
    from zenlake.runtime.exchange import Exchange

log = logging.getLogger("zenlake.api")

NEVER = -1  # Version of a route that was never computed.
NOT_SHARED = (1 << 30) - 1
"""Size of payloads that go through shared memory, where there is none: larger than any message. It
has one digit of an int, as CPython compares such numbers faster."""
NO_OPTIONS = (None,) * 5  # Options of a put that has none.
SMALL = 4096  # Bytes up to which a received payload is copied when it is put again.

PutCall = Callable[..., None]
"""A function with the signature of `OutboundRoute.put`."""


@dataclass(slots=True, eq=False)
class OutboundRoute:
    """Cached routing decision for puts on one key: computed once, and again when routes change."""

    core: "SessionCore"
    key: KeyExpr
    qos: QoS
    reliable: bool = True
    encoding: wire_encoding.WireEncoding = wire_encoding.DEFAULT
    destination: Locality = Locality.ANY
    declares: bool = False
    "Whether sessions are told an id for the key: for one that was declared, as many puts follow."
    exchange: "Exchange" = field(init=False)
    version: int = NEVER
    "Version of the exchange that the fields below were computed from."
    ports: tuple[tuple[SessionFace, WireExpr], ...] = ()
    "Sessions that want the puts, each with the key as it knows it."
    local: tuple["SubscriberEntry", ...] = ()
    "Matching subscribers of this very session."
    plain: tuple[tuple[TransportSession, bytes], ...] | None = None
    """For puts of a payload alone: each session, and the message up to the payload's length. None:
    such puts need more than encoded bytes.
    """
    shared_from: int = NOT_SHARED
    "Bytes from which on a payload goes through shared memory, to the sessions that have it."
    encode_shared: SharedPutEncoder | None = None
    "Encoder of such a put of a payload alone, while exactly one session wants the puts."
    fast_put: PutCall | None = None
    "`put` on the fast path, while exactly one session wants the puts."
    on_fast_path_changed: Callable[[PutCall | None], None] | None = None
    "Called whenever `fast_put` changes."

    def __post_init__(self) -> None:
        self.exchange = self.core.exchange

    def refresh(self) -> None:
        """Compute the route again.

        Another thread may put meanwhile: it uses the old route or the new one.
        """
        exchange = self.core.exchange
        with exchange.lock:
            self._set_fast_put(None)
            remote = self.destination is not Locality.SESSION_LOCAL
            ports = exchange.outbound_faces(self.key, self.declares) if remote else ()
            local: tuple[SubscriberEntry, ...] = ()
            if self.destination is not Locality.REMOTE:
                local = self.core.subscribers.matching(self.key, local=True)
            plain: tuple[tuple[TransportSession, bytes], ...] | None = None
            if not local and not exchange.stamps:
                plain = tuple(
                    (port.session, write_plain_head(wire, self.encoding, self.qos))
                    for port, wire in ports
                )
            self.ports, self.local, self.plain = ports, local, plain
            self._refresh_shared()
            self.version = exchange.version
            if plain is not None and len(plain) == 1:
                session, head = plain[0]
                path = session.fast_path(head, self.qos, self.reliable)
                self._set_fast_put(None if path is None else make_fast_put(self, path))

    def _refresh_shared(self) -> None:
        """Find out which payloads go through shared memory."""
        shared = [
            (shm, wire)
            for port, wire in self.ports
            if (shm := port.session.shm) is not None and shm.shares_puts
        ]
        self.shared_from = min((shm.threshold for shm, _ in shared), default=NOT_SHARED)
        self.encode_shared = None
        if shared and len(self.ports) == 1:
            shm, wire = shared[0]
            self.encode_shared = shm.put_encoder(Push(wire, Put(encoding=self.encoding), self.qos))

    def _set_fast_put(self, put: PutCall | None) -> None:
        self.fast_put = put
        if self.on_fast_path_changed is not None:
            self.on_fast_path_changed(put)

    def end(self) -> None:
        """Leave the fast path for good."""
        self._set_fast_put(None)
        self.on_fast_path_changed = None

    def current_ports(self) -> tuple[tuple[SessionFace, WireExpr], ...]:
        """Return the sessions that want the puts now, each with the key as it knows it."""
        if self.version != self.exchange.version:
            self.refresh()
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
        """Put `payload` by the first way that applies: the fast path, encoded bytes, an object."""
        if self.exchange.closed:
            raise ZError("session closed")
        if self.version != self.exchange.version:
            self.refresh()
        options = (encoding, attachment, timestamp, timestamp_instrumentation, source_info)
        if type(payload) is ZBytes:
            payload = payload.buffer
            if type(payload) is memoryview and len(payload) <= SMALL and type(payload.obj) is bytes:
                payload = bytes(payload)  # Cheaper than a put that is not plain.
        if options == NO_OPTIONS and type(payload) is bytes and self.plain is not None:
            (self.fast_put or self.put_plain)(payload)
            return
        kind = self.encoding if encoding is None else encoding_of(encoding)
        body = put_body(payload, kind, attachment, timestamp, source_info)
        self.send(body, timestamp_instrumentation)

    def put_plain(self, payload: bytes) -> None:
        """Put `payload` without options: encode it for each session, and send it under its lock."""
        plain = self.plain
        if plain is None:  # Another thread has refreshed the route since the caller looked.
            self.send(put_body(payload, self.encoding, None, None, None), None)
            return
        if len(payload) >= self.shared_from and self._put_shared(payload):
            return
        refused: MessageTooLarge | None = None
        for session, head in plain:
            w = ByteWriter(bytearray(head))
            w.block("payload", payload)
            try:
                session.send_encoded(bytes(w.out), self.qos, self.reliable)
            except SessionEnded as end:
                self._ended(end)
            except MessageTooLarge as error:
                refused = refused or error.within(str(session))
        if refused is not None:
            raise refused

    def _put_shared(self, payload: bytes) -> bool:
        """Put `payload` through shared memory; False: there is no room."""
        plain, encode_shared = self.plain, self.encode_shared
        if encode_shared is None or not plain:
            shm = self.exchange.node.shm
            view = None if shm is None else shm.view(payload)
            if view is None:
                return False
            self.send(put_body(view, self.encoding, None, None, None), None)
            return True
        session = plain[0][0]
        encode = partial(encode_shared, payload)
        made = encode() or session.await_shared_memory(encode)
        if made is None:
            return False
        message, counter, header = made
        try:
            loan = Loan(counter, header)
            loan.settle(lambda: session.send_encoded(message, self.qos, self.reliable))
        except SessionEnded as end:
            self._ended(end)
        return True

    def _ended(self, end: SessionEnded) -> None:
        self.exchange.dropped[DropReason.SESSION_CLOSED] += 1
        log.debug("%s: %s", self.key, end)

    def send(self, body: Put | Del, instrumentation: TimestampInstrumentation | None) -> None:
        """Send to every session and local subscriber that wants it; waits for room as the
        congestion control says.

        MessageTooLarge: it is too large for a session; all others have been sent it.
        """
        core = self.core
        if core.exchange.closed:
            raise ZError("session closed")
        if self.version != self.exchange.version:
            self.refresh()
        if core.exchange.stamps and body.timestamp is None:
            body.timestamp = core.exchange.stamp()
        stack = None
        if instrumentation is not None:
            name = "timestamp_instrumentation"
            asked = instance(name, instrumentation, TimestampInstrumentation)
            stack = core.record(asked.stack(), InterceptionPoint.SEND)
        leaving = stack and core.routed(stack)
        refused: MessageTooLarge | None = None
        for port, wire in self.ports:
            try:
                port.session.send(Push(wire, body, self.qos, ts_stack=leaving), self.reliable)
            except SessionEnded as end:
                self._ended(end)
            except MessageTooLarge as error:
                refused = refused or error.within(str(port.session))
        if self.local:
            core.deliver_local(
                self.local, self.key, Push(WireExpr(), body, self.qos, ts_stack=stack)
            )
        if refused is not None:
            raise refused


def make_fast_put(route: OutboundRoute, path: FastPath) -> PutCall:
    """Build a `put` specialised for the current route version: it appends to the lane's open batch
    without taking a lock. `transport/fast_path.py` has the rules.

    It is one function on purpose: a further call would make each put a fifth slower.
    """
    lane, headers, overhead, limit, absorb = path
    encode_shared, shared_from = route.encode_shared, route.shared_from
    appended = lane.appended
    append = appended.append
    exchange, version = route.exchange, route.version
    shared_bytes = overhead + POINTER_BYTES

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
            if size >= shared_from and encode_shared is not None:
                if not lane.open or (len(appended) + 1) * shared_bytes >= limit:
                    route.put_plain(payload)
                    return
                made = encode_shared(payload)
                if made is None:
                    route.put_plain(payload)
                    return
                append(made[0])
                if not lane.open:  # Rule 3.
                    absorb()  # type: ignore[unreachable]
                return
            if lane.open and (len(appended) + 1) * (size + overhead) < limit:  # Rule 2.
                append(headers[size] + payload)
                if not lane.open:  # Rule 3: the list may have been taken without this message.
                    absorb()  # type: ignore[unreachable]
                return
            route.put_plain(payload)
            return
        route.put(
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
    """Return the body of a put; TypeError: an option has another type."""
    return Put(
        payload_bytes(payload),  # type: ignore[arg-type]  # A view is written as bytes are.
        wire_of("timestamp", timestamp, Timestamp),
        encoding,
        wire_of("source_info", source_info, SourceInfo),
        attachment_of(attachment),
    )


def del_body(
    attachment: IntoZBytes | None, timestamp: Timestamp | None, source_info: SourceInfo | None
) -> Del:
    """Return the body of a delete; TypeError: an option has another type."""
    return Del(
        wire_of("timestamp", timestamp, Timestamp),
        wire_of("source_info", source_info, SourceInfo),
        attachment_of(attachment),
    )
