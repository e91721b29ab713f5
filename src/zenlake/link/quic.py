"""quic/HOST:PORT: one stream over QUIC, which is encrypted and runs on UDP.

The library `aioquic` does the protocol in memory. Its datagrams go through a UDP link: each peer of
a listener has a socket of its own. Several streams and QUIC datagrams are not offered.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections import deque
from typing import Any

from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StreamDataReceived,
    StreamReset,
)
from aioquic.quic.packet import QuicFrameType, QuicPacketType, pull_quic_header
from aioquic.tls import (
    Alert,
    AlertDescription,
    load_pem_private_key,
    load_pem_x509_certificates,
)
from cryptography.x509.oid import NameOID
from OpenSSL import crypto

from zenlake.errors import InvalidLocator, LinkError
from zenlake.link import sockets, udp
from zenlake.link.base import READ_BYTES, Listener, Progress, TransportLink
from zenlake.link.layered import clean
from zenlake.link.options import LinkOptions
from zenlake.link.quic_trust import Trust, Untrusted
from zenlake.link.sockets import Address, parse_size, split_host
from zenlake.link.tls import (
    CERTIFICATE_ALERTS,
    NO_AUTHORITY_ADVICE,
    TlsSettings,
    check_name,
    explain_alert,
    named_locators,
    without_certificates,
)
from zenlake.link.udp import UdpLink, UdpListener
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint

# zenoh-link-commons/src/quic/unicast.rs: of the names for one stream, the second is the older.
PROTOCOL_NAMES = ["zenoh", "hq-29"]
STREAM = 0  # Id of the first bidirectional stream that a client opens.
WINDOW_BYTES = 1 << 20  # Received bytes that may wait here; the peer sends no more than these.
SEND_BYTES = 1 << 20  # Bytes that wait to be sent or acknowledged, above which send() takes none.
# Bytes that were never sent, above which send() takes none: a session counts what send() takes as
# progress, so on a slow path these must not take seconds. No message overtakes them, either.
UNSENT_BYTES = 64 << 10
WINDOW_STEP = WINDOW_BYTES // 8  # As in Rust: bytes consumed after which the peer may send more.
IDLE_SECONDS = (
    60.0  # Silence after which the connection is lost; the smaller of both sides' counts.
)
# For datagrams that the kernel keeps until they are read: a window in datagrams of 1200 bytes takes
# twice its bytes there. A datagram that finds no room is lost, and the peer slows down.
SOCKET_BYTES = 4 * WINDOW_BYTES
DATAGRAMS_AT_ONCE = 64  # Datagrams read before the other links have their turn.
FULL_SOCKET_SECONDS = 0.001  # Pause before the next attempt to write to a full socket.
SMALLEST_DATAGRAM = 1200  # RFC 9000, 14: what every path carries, and the size of a first datagram.
LARGEST_DATAGRAM = 0xFFFF - 8
CRYPTO_ERROR = 0x100  # RFC 9000, 20.1: TLS alerts are errors from here on.
PEER = ("peer", 0)  # For aioquic: the UDP socket is connected, so there is only one address.
# Loggers of aioquic: errors of a link reach the link's owner, who logs them.
SILENT = logging.LoggerAdapter(logging.getLogger(f"{__name__}.aioquic"))
SILENT.logger.disabled = True
NO_COMMON_NAME = "no application protocol", "No common ALPN protocols"  # Alert; text of aioquic.
ONE_STREAM_ADVICE = (
    " (zenlake has one stream per connection: leave multistream=1 and mixed_rel=1 out of the "
    "endpoint of the other node)"
)
# Settings of Rust endpoints that ask for what is not offered here, and their valid values.
ONE_STREAM = {"multistream": ("auto", "0"), "mixed_rel": ("auto", "0"), "rel": ("1",)}


class _Connection(QuicConnection):
    """Connection whose peer may send WINDOW_BYTES more than this side has consumed.

    aioquic alone doubles its limits as bytes arrive, whether they are consumed or not. It admits
    certificates by rules of its own; here `trust` decides.
    """

    consumed = 0
    refusal: str | None = None
    "Why this side refused the peer's certificate."

    def __init__(self, trust: Trust | None, **arguments: Any) -> None:
        """`trust`: None for a listener that does not ask for certificates."""
        super().__init__(**arguments)
        self._trust = trust
        self._logger: Any = SILENT
        self._local_max_streams_bidi.value = 0 if self._is_client else 1
        self._local_max_streams_uni.value = 0
        for limit in (self._local_max_streams_bidi, self._local_max_streams_uni):
            limit.sent = limit.value

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        context: Any = self.tls
        context._request_client_certificate = not self._is_client and self._trust is not None
        check_signature = context._check_certificate_verify_signature

        def check(verify: Any) -> None:
            check_signature(verify)
            if self._trust is not None:
                try:
                    self._trust.check(self.peer_certificates)
                except Untrusted as error:
                    self.refusal, alert = str(error), Alert()
                    if self.connects and error.alert is AlertDescription.unknown_ca:
                        self.refusal += NO_AUTHORITY_ADVICE
                    alert.description = error.alert
                    raise alert from None

        context._check_certificate_verify_signature = check

    def get_timer(self) -> float | None:
        """Return when handle_timer() has work to do: also when half of the idle time is over."""
        due: float | None = super().get_timer()
        ping_at = self._ping_at
        return due if due is None or ping_at is None else min(due, ping_at)

    def handle_timer(self, now: float) -> None:
        """Do what is due. A session may be silent for longer than a connection: a PING keeps it."""
        ping_at = self._ping_at
        if ping_at is not None and ping_at <= now:
            self.send_ping(0)
        super().handle_timer(now)

    @property
    def _ping_at(self) -> float | None:
        """When to send a PING; None: the peer has something to acknowledge already."""
        lasts = self._handshake_confirmed and self.closed_by is None
        if self._close_at is None or not lasts:
            return None
        if any(space.ack_eliciting_in_flight for space in self._loss.spaces):
            return None
        return self._close_at - self._idle_timeout() / 2

    def check_certificate(self) -> bool:
        """Return whether the peer showed a certificate, or need not; end the connection if not."""
        if self.peer_certificates or self._trust is None:
            return True
        self.refusal = "it has no certificate, which mutual TLS needs"
        alert = CRYPTO_ERROR + AlertDescription.certificate_required
        self.close(error_code=alert, frame_type=QuicFrameType.CRYPTO)
        return False

    @property
    def window_is_due(self) -> bool:
        """Whether so much was consumed that the peer should be told."""
        return self.consumed + WINDOW_BYTES - self._local_max_data.value >= WINDOW_STEP

    @property
    def closed_by(self) -> ConnectionTerminated | None:
        """How the connection was closed, by either side, once it is."""
        return self._close_event

    @property
    def connects(self) -> bool:
        """Whether this side opened the connection."""
        return bool(self._is_client)

    @property
    def has_stream(self) -> bool:
        return self._is_client or STREAM in self._streams

    @property
    def unsent(self) -> bool:
        """Whether bytes of the stream have never been sent, or are lost."""
        stream = self._streams.get(STREAM)
        return stream is not None and not stream.sender.buffer_is_empty

    @property
    def room(self) -> int:
        """Number of bytes that the stream may take now."""
        stream = self._streams.get(STREAM)
        if stream is None:
            return UNSENT_BYTES
        kept = stream.sender
        never_sent = kept._buffer_stop - kept.highest_offset
        return min(UNSENT_BYTES - never_sent, SEND_BYTES - len(kept._buffer))

    @property
    def peer_certificates(self) -> list[Any]:
        first = self.tls._peer_certificate
        return [] if first is None else [first, *self.tls._peer_certificate_chain]

    def _write_connection_limits(self, builder: Any, space: Any) -> None:
        limit = self._local_max_data
        if self.window_is_due:
            limit.value = self.consumed + WINDOW_BYTES
        used, limit.used = limit.used, 0  # Keeps aioquic from doubling the limit.
        try:
            super()._write_connection_limits(builder=builder, space=space)
        finally:
            limit.used = used

    def _write_stream_limits(self, builder: Any, space: Any, stream: Any) -> None:
        stream.max_stream_data_local = self._local_max_data.value
        received, stream.receiver.highest_offset = stream.receiver.highest_offset, 0
        try:
            super()._write_stream_limits(builder=builder, space=space, stream=stream)
        finally:
            stream.receiver.highest_offset = received


class QuicLink(TransportLink):
    """QUIC connection with one stream. A lock admits one thread at a time to aioquic."""

    framing = Framing.STREAM
    reliable = True
    driven = True
    certificate_name: str | None = None
    "Common name of the peer's certificate, set by the handshake if there is one."

    def __init__(
        self, datagrams: UdpLink, connection: _Connection, name: str, close_on_expiration: bool
    ) -> None:
        """`name`: the endpoint in errors of the connecting side; the peer's locator otherwise."""
        self.protocol = datagrams.protocol
        self.local, self.remote = datagrams.local, datagrams.remote
        self.address, self.name = datagrams.address, name
        self._datagrams, self._connection = datagrams, connection
        datagrams.keep_up_to(SOCKET_BYTES)
        self._close_on_expiration = close_on_expiration
        self._lock = threading.Lock()
        self._secured = self._ended = False
        self._broken: LinkError | None = None
        self._received = bytearray()
        self._outgoing: deque[bytes] = deque()  # Datagrams that the socket did not take yet.
        self._scheduled: float | None = None

    def fileno(self) -> int:
        return self._datagrams.fileno()

    def handshake(self) -> Progress:
        with self._lock:
            self._pump()
            if self._broken is not None:
                raise self._broken
            if self._ended and not self._secured:
                raise LinkError(f"{self.name}: it closed the link during the QUIC handshake")
            return Progress.DONE if self._secured else Progress.WANT_READ

    def drive(self) -> None:
        with self._lock:
            self._scheduled = None
            self._pump()

    def receive(self) -> bytes | None:
        with self._lock:
            if not self._received:
                self._pump()
            if self._received:
                data = bytes(self._received[:READ_BYTES])
                del self._received[:READ_BYTES]
                self._connection.consumed += len(data)
                if self._connection.window_is_due:
                    self._transmit(time.monotonic())
                return data
            if self._broken is not None:
                raise self._broken
            return b"" if self._ended else None

    @property
    def more(self) -> bool:
        return bool(self._received) or self._ended or self._broken is not None

    def send(self, data: bytes | bytearray | memoryview) -> int:
        with self._lock:
            if not self._secured or not self._connection.has_stream or self._connection.room <= 0:
                self._pump()
            if self._broken is not None:
                raise self._broken
            if self._ended:
                raise LinkError(f"{self.name}: send: the peer closed the link")
            room = self._connection.room
            if not self._secured or not self._connection.has_stream or room <= 0:
                return 0
            part = bytes(data[:room])
            self._connection.send_stream_data(STREAM, part)
            self._transmit(time.monotonic())
            return len(part)

    @property
    def unsent(self) -> bool:
        return self._connection.unsent or bool(self._outgoing)

    def flush(self) -> None:
        with self._lock:
            self._pump()

    def close(self) -> None:
        with self._lock:
            if self._datagrams.fileno() >= 0:
                self._connection.close(error_code=0, reason_phrase="\0")
                self._transmit(time.monotonic())
            self._datagrams.close()
            self._received.clear()
            self._broken = LinkError(f"{self.name}: it is closed on this side")

    # ---- under the lock

    def start(self, first: bytes | None = None) -> None:
        """Begin the handshake: as a client, or as a server with a client's first datagram."""
        now = time.monotonic()
        if first is None:
            self._connection.connect(PEER, now)
            self._transmit(now)
        else:
            self._take(first, now)

    def _pump(self) -> None:
        """Take datagrams and their events, do what is due by now, and send."""
        if self._datagrams.fileno() < 0:
            return
        now = time.monotonic()
        refused: LinkError | None = None
        for _ in range(DATAGRAMS_AT_ONCE):
            try:
                data = self._datagrams.receive()
            except LinkError as error:  # An error of the socket precedes datagrams that wait there.
                if refused is not None:
                    break
                refused = error
                continue
            if data is None:
                break
            self._take(data, now)
        due = self._connection.get_timer()
        if due is not None and due <= now:
            self._connection.handle_timer(now)
            self._take_events()
        if refused is not None:
            self._fail(str(refused))
        self._transmit(now)

    def _take(self, data: bytes, now: float) -> None:
        try:
            self._connection.receive_datagram(data, PEER, now)
        except Exception as error:  # noqa: BLE001 - A peer's bytes must break only its own link.
            self._fail(f"{self.name}: its datagram was not understood: {clean(repr(error))}")
        self._take_events()

    def _take_events(self) -> None:
        while (event := self._connection.next_event()) is not None:
            self._take_event(event)
        closed = self._connection.closed_by
        if closed is None or self._ended:
            return
        if self._secured and not closed.error_code:
            self._ended = True
        else:
            self._fail(f"{self.name}: {self._explain(closed)}")

    def _take_event(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            self._received += event.data
            self._ended |= event.end_stream
        elif isinstance(event, HandshakeCompleted):
            self._secured = self._connection.check_certificate()
            self._identify()
        elif isinstance(event, StreamReset):
            self._ended = True

    def _identify(self) -> None:
        certificates = self._connection.peer_certificates
        if not certificates:
            return
        names = certificates[0].subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        self.certificate_name = str(names[0].value) if names else None
        try:
            check_name(self.remote, self.certificate_name)
        except LinkError as error:
            self._fail(str(error))
        if self._close_on_expiration:
            ends = (certificate.not_valid_after_utc for certificate in certificates)
            self.expires = min(ends).timestamp()

    def _explain(self, closed: ConnectionTerminated) -> str:
        """Return why the connection was closed, in words."""
        stage = "QUIC connection lost" if self._secured else "QUIC handshake failed"
        if self._connection.refusal is not None:
            return f"{stage}: {self._connection.refusal}"
        code, reason = closed.error_code, clean(closed.reason_phrase.strip("\0"))
        alert = ""
        if code - CRYPTO_ERROR in set(map(int, AlertDescription)):
            alert = AlertDescription(code - CRYPTO_ERROR).name.replace("_", " ")
            if not reason or alert in CERTIFICATE_ALERTS:
                reason = explain_alert(alert, self._connection.connects, reason)
        if alert in NO_COMMON_NAME or reason in NO_COMMON_NAME:
            reason += ONE_STREAM_ADVICE
        return f"{stage}: {reason or f'error {code:#x}'}"

    def _fail(self, why: str) -> None:
        if self._broken is None and not self._ended:
            self._broken = LinkError(why)

    def _transmit(self, now: float) -> None:
        """Send what aioquic has for the peer, and have the owner come back when it is time."""
        try:
            while self._send_waiting():
                datagrams = self._connection.datagrams_to_send(now)
                if not datagrams:
                    break
                self._outgoing.extend(data for data, _ in datagrams)
        except LinkError as error:
            self._outgoing.clear()
            self._fail(str(error))
        due = self._connection.get_timer()
        if self._outgoing:
            due = now + FULL_SOCKET_SECONDS
        if due is None or self.schedule is None:
            return
        if self._scheduled is None or due < self._scheduled or self._scheduled <= now:
            self._scheduled = due
            self.schedule(due)

    def _send_waiting(self) -> bool:
        """Send datagrams that wait for the socket; return whether it took all of them."""
        while self._outgoing:
            if not self._datagrams.send(self._outgoing[0]):
                return False
            self._outgoing.popleft()
        return True


class QuicListener(Listener):
    """Listener on one UDP port. Only the first datagram of a handshake opens a link."""

    def __init__(
        self,
        datagrams: UdpListener,
        configuration: QuicConfiguration,
        trust: Trust | None,
        close_on_expiration: bool,
    ) -> None:
        self.locators = datagrams.locators
        self._datagrams, self._configuration, self._trust = datagrams, configuration, trust
        self._close_on_expiration = close_on_expiration

    def fileno(self) -> int:
        return self._datagrams.fileno()

    def accept(self) -> TransportLink | None:
        datagrams = self._datagrams.accept()
        if datagrams is None:
            return None
        first = datagrams.receive()
        assert first is not None  # The datagram that was admitted.
        connection = _Connection(
            self._trust,
            configuration=self._configuration,
            original_destination_connection_id=_first_id(first),
        )
        link = QuicLink(datagrams, connection, datagrams.name, self._close_on_expiration)
        link.start(first)
        return link

    def close(self) -> None:
        self._datagrams.close()


def _first_id(data: bytes) -> bytes | None:
    """Return the connection id that a client chose, if this datagram begins its handshake."""
    if len(data) < SMALLEST_DATAGRAM:
        return None
    try:
        header = pull_quic_header(Buffer(data=data), host_cid_length=8)
    except ValueError:
        return None
    known = header.version in QuicConfiguration().supported_versions
    return (
        header.destination_cid if known and header.packet_type is QuicPacketType.INITIAL else None
    )


# --- connecting and listening


def resolve(endpoint: EndPoint) -> list[Address]:
    return sockets.resolve(_below(endpoint), socket.SOCK_DGRAM)


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> QuicLink:
    settings, below = TlsSettings(endpoint, options), _below(endpoint)
    configuration = _configuration(below, is_client=True)
    settings.client_context()  # Checks every file, and says which one is wrong.
    host = split_host(below, below.address)[0].partition("%")[0]
    try:
        trust = Trust(
            settings.pem("root_ca_certificate"),
            of_servers=True,
            name=host if settings.verify_name else None,
        )
    except crypto.Error:
        settings.fail(
            "this system has no readable bundle of certificates of authorities: "
            "give one as root_ca_certificate"
        )
    configuration.server_name = host
    if settings.mutual:
        _present(settings, configuration, "connect")
    link = QuicLink(
        udp.open_link(below, address),
        _Connection(trust, configuration=configuration),
        below,
        settings.close_on_expiration,
    )
    link.start()
    return link


def listen(endpoint: EndPoint, options: LinkOptions) -> QuicListener:
    settings, below = TlsSettings(endpoint, options), _below(endpoint)
    configuration = _configuration(below, is_client=False)
    settings.server_context()
    trust = None
    if settings.mutual:
        trust = Trust(settings.pem("root_ca_certificate"), of_servers=False)
    _present(settings, configuration, "listen")
    datagrams = udp.open_listener(below, lambda data: _first_id(data) is not None, named_locators)
    return QuicListener(datagrams, configuration, trust, settings.close_on_expiration)


def _below(endpoint: EndPoint) -> EndPoint:
    """Return the endpoint of the UDP link, without certificates; refuse what is not offered."""
    for key, valid in ONE_STREAM.items():
        value = endpoint.metadata.get(key, valid[0])
        if value not in valid:
            raise InvalidLocator(
                f"{endpoint.locator}: {key}={value} is not supported: this side has one reliable "
                f"stream per connection; leave out {key}"
            )
    return without_certificates(endpoint)


def _configuration(endpoint: EndPoint, is_client: bool) -> QuicConfiguration:
    largest = SMALLEST_DATAGRAM
    if (text := endpoint.config.get("initial_mtu")) is not None:
        largest = parse_size(endpoint, "initial_mtu", text, LARGEST_DATAGRAM)
        if largest < SMALLEST_DATAGRAM:
            raise InvalidLocator(f"{endpoint}: initial_mtu={text} is below {SMALLEST_DATAGRAM}")
    return QuicConfiguration(
        alpn_protocols=PROTOCOL_NAMES,
        idle_timeout=IDLE_SECONDS,
        is_client=is_client,
        max_data=WINDOW_BYTES,
        max_stream_data=WINDOW_BYTES,
        max_datagram_size=largest,
        verify_mode=ssl.CERT_NONE,  # Trust decides.
    )


def _present(settings: TlsSettings, configuration: QuicConfiguration, side: str) -> None:
    certificates, key = settings.own_pair(side)
    first, *others = load_pem_x509_certificates(certificates.content)
    configuration.certificate, configuration.certificate_chain = first, others
    configuration.private_key = load_pem_private_key(key.content)
