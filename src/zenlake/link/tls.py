"""TLS links: a TCP link with encryption and certificates.

Knows certificates and their options. Python's `ssl` does the protocol in memory; its bytes go
through a stream link, whose sockets this module does not know.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from zenlake.errors import LinkError
from zenlake.link import tcp
from zenlake.link.base import READ_BYTES, TransportLink
from zenlake.link.layered import UNSENT_BYTES, LayeredLink
from zenlake.link.options import MATERIAL, SWITCHES, LinkOptions, TlsOptions
from zenlake.link.sockets import (
    Address,
    StreamListener,
    listener_locators,
    listening_socket,
    locator,
    split_host,
)
from zenlake.link.tcp import TcpLink
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint, Locator

RECORD_BYTES = 16 * 1024  # Most plain bytes in one TLS record.
MAX_PEM_BYTES = 4 * 1024 * 1024  # A bundle of all public authorities has a quarter of a MiB.
MAX_NAME_CHARACTERS = 64  # Longest common name of a certificate (X.520).

TRUTH = {"true": True, "false": False}

CAUSES = {
    "HTTP_REQUEST": "it sent an HTTP request, not TLS",
    "HTTPS_PROXY_REQUEST": "it sent a request for an HTTP proxy, not TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "UNKNOWN_PROTOCOL": "it does not speak TLS",
    "BAD_RECORD_TYPE": "it does not speak TLS",
    "PACKET_LENGTH_TOO_LONG": "it does not speak TLS",
    "LENGTH_TOO_SHORT": "it does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "its versions of TLS are too old",
    "VERSION_TOO_LOW": "its versions of TLS are too old",
    "NO_SHARED_CIPHER": "no cipher is known to both sides",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate, which mutual TLS needs",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "what it sent was altered on the way",
}
ALERT = "_ALERT_"  # Part of OpenSSL's reason if the peer sent it as an alert.
CERTIFICATE_ALERTS = frozenset(  # RFC 8446, 6.2: what the peer says of this side's certificate.
    {
        "bad certificate",
        "certificate expired",
        "certificate required",
        "certificate revoked",
        "certificate unknown",
        "unknown ca",
        "unsupported certificate",
    }
)
NO_AUTHORITY = frozenset(
    {
        18,  # X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT
        19,  # X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN
        20,  # X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY
        21,  # X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE
    }
)
KEYS = "transport/link/tls"
ROOTS = "root_ca_certificate"
NO_AUTHORITY_ADVICE = f" (set {KEYS}/{ROOTS} to the authority of that node's listen_certificate)"
OTHER_NAME = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
OTHER_NAME_ADVICE = (
    f" (connect to a name of its certificate, or set {KEYS}/verify_name_on_connect to false)"
)
SERVER_ADVICE = f"{KEYS}/listen_certificate has to name this server as that node connects to it"
# What a listener is told of its own certificate, by alert; of any other alert, AUTHORITY_ADVICE.
LISTENER_ADVICE = {
    "bad certificate": SERVER_ADVICE,
    "unsupported certificate": SERVER_ADVICE,
    "certificate expired": f"renew {KEYS}/listen_certificate, or correct the clock of either node",
}
AUTHORITY_ADVICE = f"it needs the authority of {KEYS}/listen_certificate in its own {ROOTS}"


# --- options


@dataclass(frozen=True)
class Pem:
    """Certificate or key, and the option that it came from."""

    source: str
    content: bytes = field(repr=False)


class TlsSettings:
    """Settings after '#' in an endpoint, with the node's options as defaults."""

    def __init__(self, endpoint: EndPoint, options: LinkOptions) -> None:
        self._kind = endpoint.protocol.upper()
        self._where = endpoint.locator  # Without '#', which a private key may follow.
        self._config = endpoint.config
        self._tls = options.tls or TlsOptions()
        self.mutual = self._switch("enable_mtls")
        self.verify_name = self._switch("verify_name_on_connect")
        self.close_on_expiration = self._switch("close_link_on_expiration")

    def fail(self, problem: str) -> NoReturn:
        raise LinkError(f"{self._where}: {problem}") from None

    def _switch(self, name: str) -> bool:
        if name not in self._config:
            return bool(getattr(self._tls, name))
        text = self._config[name]
        if text not in TRUTH:
            self.fail(f"{name} is {text!r}: write true or false")
        return TRUTH[text]

    def pem(self, item: str) -> Pem | None:
        """Return an item of MATERIAL from the endpoint or the options; None: not configured."""
        forms = {"raw": self._from_text, "base64": self._from_base64, "file": self._from_file}
        for form, read in forms.items():
            if (name := f"{item}_{form}") in self._config:
                return read(name, self._config[name])
        path: str | None = getattr(self._tls, item)
        inline: str | None = getattr(self._tls, f"{item}_base64")
        if path is not None and inline is not None:
            self.fail(f"{item} and {item}_base64 are both given: leave out one")
        if inline is not None:
            return self._from_base64(f"{item}_base64", inline)
        return None if path is None else self._from_file(item, path)

    def require(self, item: str, why: str) -> Pem:
        """Return an item of MATERIAL, or raise LinkError."""
        found = self.pem(item)
        if found is None:
            self.fail(f"{why} needs {item}: set {KEYS}/{item} to the path of a PEM file")
        return found

    def _from_text(self, name: str, text: str) -> Pem:
        return Pem(name, text.encode())

    def _from_base64(self, name: str, text: str) -> Pem:
        try:
            return Pem(name, base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            self.fail(f"{name} is not base64: encode the whole PEM text")

    def _from_file(self, name: str, path: str) -> Pem:
        source = f"{name} (file {path!r})"
        try:
            with Path(path).open("rb") as file:
                content = file.read(MAX_PEM_BYTES + 1)
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or "not a path"
            self.fail(f"{source} cannot be read: {cause}; give a PEM file this process may read")
        if not content or len(content) > MAX_PEM_BYTES:
            size = f"more than {MAX_PEM_BYTES} bytes" if content else "no content"
            self.fail(f"{source} has {size}; give a PEM file")
        return Pem(source, content)

    def server_context(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # A peer that connects again has to prove its identity again.
        self._present(context, "listen")
        if self.mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            self._trust(context, self.require("root_ca_certificate", "enable_mtls on a listener"))
        return context

    def client_context(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.verify_name
        roots = self.pem("root_ca_certificate")
        if roots is None:
            context.load_default_certs()
        else:
            self._trust(context, roots)
        if self.mutual:
            self._present(context, "connect")
        return context

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        # Before TLS 1.3 a client's certificate is sent in the clear.
        oldest = ssl.TLSVersion.TLSv1_3 if self.mutual else ssl.TLSVersion.TLSv1_2
        context.minimum_version = oldest
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
        context.hostname_checks_common_name = False  # Names are in subjectAltName.
        return context

    def _trust(self, context: ssl.SSLContext, roots: Pem) -> None:
        """Trust only these authorities, intermediate ones included."""
        try:
            context.load_verify_locations(cadata=roots.content.decode("ascii", "ignore"))
        except ssl.SSLError:
            self.fail(f"{roots.source} has no certificate: give a PEM file with CERTIFICATE")
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

    def own_pair(self, side: str) -> tuple[Pem, Pem]:
        """Return the certificate and the private key of this side, or raise LinkError."""
        why = {
            "listen": f"listening on {self._kind}",
            "connect": f"connecting over {self._kind} with enable_mtls",
        }[side]
        return (
            self.require(f"{side}_certificate", why),
            self.require(f"{side}_private_key", why),
        )

    def _present(self, context: ssl.SSLContext, side: str) -> None:
        certificate, key = self.own_pair(side)

        def password() -> NoReturn:  # Without it OpenSSL would prompt on the terminal.
            self.fail(f"{key.source} is encrypted: give a private key without a password")

        try:
            with _path_of(certificate) as certificates, _path_of(key) as private_key:
                context.load_cert_chain(certificates, private_key, password)
        except ssl.SSLError as error:
            pair = f"{certificate.source} and {key.source}"
            if error.reason == "KEY_VALUES_MISMATCH":
                self.fail(f"{pair} do not belong together: give the key of this certificate")
            self.fail(f"{pair} are not a PEM certificate and a PEM private key")


@contextmanager
def _path_of(pem: Pem) -> Iterator[str]:
    """Yield a path that `ssl` can open: to a file in memory, or where the system has none, to one
    that only this user can read.
    """
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("pem"), "wb") as file:
            file.write(pem.content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem.content)
        yield path
    finally:
        Path(path).unlink()


def without_certificates(endpoint: EndPoint) -> EndPoint:
    """Return the endpoint without the settings of TLS: for TCP or UDP, and safe to show."""
    own = {f"{item}_{form}" for item in MATERIAL for form in ("raw", "base64", "file")}
    own |= {*SWITCHES, "tls_handshake_timeout_ms"}
    rest = ";".join(f"{k}={v}" for k, v in endpoint.config.items() if k not in own)
    return EndPoint(f"{endpoint.locator}#{rest}" if rest else endpoint.locator)


# --- the link


class TlsLink(LayeredLink):
    """TLS on top of a stream link."""

    protocol = "tls"
    framing = Framing.STREAM
    reliable = True
    certificate_name: str | None = None
    "Common name of the peer's certificate, set by the handshake if there is one."
    expires: float | None = None
    "UNIX seconds at which the peer's certificate ends, if the link is to be closed then."

    def __init__(
        self,
        stream: TransportLink,
        context: ssl.SSLContext,
        close_on_expiration: bool,
        server_name: str | None = None,
    ) -> None:
        """`server_name`: host that this side connects to; None on the accepting side."""
        super().__init__(stream)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._secured = False
        self._readable = False  # Whether OpenSSL may have plain bytes left.
        self._broken: LinkError | None = None
        self._close_on_expiration = close_on_expiration
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )

    def _step(self) -> bool:
        if not self._secured:
            self._negotiate()
        return self._secured

    def _negotiate(self) -> None:
        """Continue the TLS handshake with received bytes."""
        data = self._stream.receive()
        if data:
            self._incoming.write(data)
        elif data == b"":
            raise LinkError(f"{self.remote}: it closed the link during the TLS handshake")
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            with suppress(LinkError):
                self._carry()  # The alert that tells the peer the reason.
            raise LinkError(
                f"{self.remote}: TLS handshake failed: {self._explain(error)}"
            ) from None
        self._identify()
        self._readable = self._incoming.pending > 0
        self._secured = True

    def _identify(self) -> None:
        certificate = self._tls.getpeercert()
        if not certificate:
            return
        self.certificate_name = _common_name(certificate)
        check_name(self.remote, self.certificate_name)
        if self._close_on_expiration:
            self.expires = float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))

    def receive(self) -> bytes | None:
        with self._lock:
            if self._broken is not None:
                raise self._broken
            if not self._readable:
                data = self._stream.receive()
                if not data:
                    return data  # An end without close_notify is valid: Zenoh nodes send none.
                self._incoming.write(data)
                self._readable = True
            plain: list[bytes] = []
            try:
                self._decrypt(plain)
                self._carry()  # Answers that OpenSSL writes itself.
            except LinkError as error:
                self._broken = error
                if not plain:  # Otherwise the bytes before the error are returned first.
                    raise
            if plain or self._readable:
                return b"".join(plain)
            return None

    def _decrypt(self, plain: list[bytes]) -> None:
        """Append up to READ_BYTES of plain bytes. None appended while `_readable`: close_notify."""
        room = READ_BYTES
        try:
            while room > 0:
                part = self._tls.read(min(room, RECORD_BYTES))
                if not part:
                    return
                plain.append(part)
                room -= len(part)
        except ssl.SSLWantReadError:
            self._readable = False
        except ssl.SSLError as error:
            raise LinkError(f"{self.remote}: {self._explain(error)}") from None

    @property
    def more(self) -> bool:
        return self._readable or self._broken is not None

    def send(self, data: bytes | bytearray | memoryview) -> int:
        with self._lock:
            self._carry()
            if self._unsent:
                return 0
            try:
                taken = self._tls.write(memoryview(data)[:UNSENT_BYTES])
            except ssl.SSLError as error:
                raise LinkError(f"{self.remote}: {self._explain(error)}") from None
            self._carry()
            return taken

    def _explain(self, error: ssl.SSLError) -> str:
        return _explain(error, connects=not self._tls.server_side)

    def _take_written(self) -> bytes:
        return self._outgoing.read()

    def close(self) -> None:
        with self._lock:
            if self._secured and self._stream.fileno() >= 0:
                with suppress(OSError):
                    self._tls.unwrap()  # Writes close_notify, then wants to read the peer's.
                with suppress(LinkError):
                    self._carry()
            self._stream.close()


def check_name(remote: Locator, name: str | None) -> None:
    """Refuse a common name of a peer's certificate that could not be shown; None is valid."""
    if name is not None and not (name.isprintable() and len(name) <= MAX_NAME_CHARACTERS):
        raise LinkError(
            f"{remote}: the common name of its certificate is not printable text of at "
            f"most {MAX_NAME_CHARACTERS} characters"
        )


def _common_name(certificate: Mapping[str, Any]) -> str | None:
    for relative in certificate["subject"]:
        for kind, value in relative:
            if kind == "commonName":
                return str(value)
    return None


def _explain(error: ssl.SSLError, connects: bool) -> str:
    """Return the cause of an error without OpenSSL's codes, and the keys that help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = NO_AUTHORITY_ADVICE if connects and error.verify_code in NO_AUTHORITY else ""
        advice = OTHER_NAME_ADVICE if error.verify_code in OTHER_NAME else advice
        return f"its certificate is refused: {error.verify_message.rstrip('.')}{advice}"
    reason = error.reason or type(error).__name__
    alert = reason.partition(ALERT)[2]
    if alert:
        return explain_alert(_to_words(alert), connects)
    return CAUSES.get(reason) or _to_words(reason)


def explain_alert(alert: str, connects: bool, reason: str = "") -> str:
    """Return what the peer's alert says, or the `reason` beside it, and the keys that help."""
    text = f"it refused this side: {reason or alert}"
    if alert not in CERTIFICATE_ALERTS:
        return text
    if not connects:
        return f"{text} ({LISTENER_ADVICE.get(alert, AUTHORITY_ADVICE)})"
    return (
        f"{text} (set {KEYS}/enable_mtls to true, connect_certificate and connect_private_key to "
        f"those of a client, whose authority that node has in its {ROOTS})"
    )


def _to_words(reason: str) -> str:
    return reason.replace("_", " ").lower()


# --- connecting and listening


def resolve(endpoint: EndPoint) -> list[Address]:
    return tcp.resolve(without_certificates(endpoint))


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> TlsLink:
    settings, below = TlsSettings(endpoint, options), without_certificates(endpoint)
    context = settings.client_context()
    host = split_host(below, below.address)[0].partition("%")[0]
    stream = tcp.connect(below, address, options)
    try:
        return TlsLink(stream, context, settings.close_on_expiration, host)
    except ValueError as error:
        stream.close()
        raise LinkError(f"{below}: {host!r} cannot be the name of a server: {error}") from None


def listen(endpoint: EndPoint, options: LinkOptions) -> StreamListener:
    settings, below = TlsSettings(endpoint, options), without_certificates(endpoint)
    context, close_on_expiration = settings.server_context(), settings.close_on_expiration

    def make_link(sock: socket.socket, peer: Any) -> TlsLink:  # Keeps no reference to the keys.
        return TlsLink(TcpLink(below.protocol, sock, peer), context, close_on_expiration)

    sock = listening_socket(below)
    return StreamListener(sock, below, named_locators(below, sock), make_link)


def named_locators(endpoint: EndPoint, sock: socket.socket) -> tuple[Locator, ...]:
    """Return the listener's locators; a host name stays, since the certificate has it."""
    host, _ = split_host(endpoint, endpoint.address)
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        metadata = "".join(endpoint.locator.partition("?")[1:])
        return (locator(endpoint.protocol, host, sock.getsockname()[1], metadata),)
    return listener_locators(endpoint, sock)
