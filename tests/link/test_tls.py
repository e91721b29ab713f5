"""TLS links on loopback: who is let in and who is not, with the reason; and bytes both ways.

The names of the tests of refusals follow the row A9 and A10 of the reliability tests.
"""

import hashlib
import random
import select
import socket
import ssl
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import (
    EXPIRED,
    NOT_YET_VALID,
    Authority,
    Identity,
    encrypted_copy,
    in_base64,
    self_signed_server,
)
from tests.support.link_driver import (
    DEADLINE,
    INIT_SYN,
    TICK,
    EclipseNode,
    LinkStage,
    attempt_until_ready,
    close_for_good,
    close_while_read,
    free_port,
    receive,
    reset,
    run_at_once,
    shake_hands,
)
from zenlake.errors import LinkError, ZError
from zenlake.link import tls
from zenlake.link.base import READ_BYTES, Listener, Progress, TransportLink
from zenlake.link.layered import MAX_UNSENT_BYTES
from zenlake.link.options import LinkOptions, TlsOptions
from zenlake.link.tls import TlsLink
from zenlake.wire.batch import read_batch
from zenlake.wire.framing import Framing, split, to_stream
from zenlake.wire.init import Init
from zenlake.wire.locator import EndPoint

ANY_PORT = EndPoint("tls/127.0.0.1:0")


# --- driving links


class Stage(LinkStage[TlsLink]):
    def __init__(self, folder: Path) -> None:
        super().__init__(TlsLink)
        self.folder = folder
        self.ca = Authority(folder)
        self.server = self.ca.server()

    def options(self, server: Identity | None = None, **changes: Any) -> LinkOptions:
        """A server's, and a client's that trusts this stage's authority."""
        identity = server or self.server
        basic = TlsOptions(
            root_ca_certificate=self.ca.certificate,
            listen_certificate=identity.certificate,
            listen_private_key=identity.key,
        )
        return LinkOptions(tls=replace(basic, **changes))

    def listen(self, options: LinkOptions | None = None, endpoint: EndPoint = ANY_PORT) -> Listener:
        return self.keep(tls.listen(endpoint, options or self.options()))

    def connect(self, endpoint: str, options: LinkOptions | None = None) -> TlsLink:
        to = EndPoint(endpoint)
        return self.keep(tls.connect(to, tls.resolve(to)[0], options or self.options()))

    def pair(
        self, listening: LinkOptions | None = None, dialling: LinkOptions | None = None
    ) -> tuple[TlsLink, TlsLink]:
        """Return a connecting and an accepted link, their handshakes done."""
        listener = self.listen(listening)
        return self.join(listener, dialling)

    def join(
        self, listener: Listener, dialling: LinkOptions | None = None
    ) -> tuple[TlsLink, TlsLink]:
        dialled = self.connect(listener.locators[0], dialling)
        accepted = self.accept(listener)
        assert shake_hands(dialled, accepted) == [None, None]
        return dialled, accepted

    def raw_server(self) -> socket.socket:
        server = self.keep(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(DEADLINE)
        return server


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    opened = Stage(tmp_path)
    yield opened
    opened.close()


def receive_exactly(link: TransportLink, size: int) -> bytes:
    got = b""
    while len(got) < size:
        data = receive(link)
        assert data, f"the end after {len(got)} of {size} bytes"
        got += data
    assert len(got) == size
    return got


def send_all(link: TransportLink, data: bytes) -> None:
    end = time.monotonic() + DEADLINE
    view = memoryview(data)
    while view or link.unsent:
        assert time.monotonic() < end, f"{len(view)} bytes are not sent"
        taken = link.send(view) if view else 0
        view = view[taken:]
        if not taken:
            select.select([], [link], [], TICK)
            link.flush()


def still_serves(stage: Stage, listener: Listener, client: Identity | None = None) -> bool:
    """Whether a stranger that checks nothing gets a byte through."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    stranger = context.wrap_socket(stage.raw(listener), do_handshake_on_connect=False)
    stage.keep(stranger)
    stranger.setblocking(False)
    accepted = stage.accept(listener)
    end = time.monotonic() + DEADLINE
    while accepted.handshake() is not Progress.DONE:
        assert time.monotonic() < end
        with suppress(ssl.SSLWantReadError):
            stranger.do_handshake()
    stranger.send(b"x")
    return receive(accepted) == b"x"


# --- a link that is as it should be


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_bytes_go_both_ways(stage: Stage, host: str) -> None:
    listener = stage.listen(endpoint=EndPoint(f"tls/{host}:0"))
    assert listener.locators[0].address.rpartition(":")[0] == host
    dialled, accepted = stage.join(listener)
    for link in (dialled, accepted):
        assert (link.protocol, link.framing, link.reliable) == ("tls", Framing.STREAM, True)
        assert link.mtu == 65_535
        assert link.address in ("127.0.0.1", "::1")
        assert (link.more, link.unsent, link.receive()) == (False, False, None)
    assert (dialled.local, dialled.remote) == (accepted.remote, accepted.local)
    assert repr(dialled) == f"<TlsLink {dialled.local} -> {dialled.remote}>"
    send_all(dialled, b"to the one that accepted")
    assert receive(accepted) == b"to the one that accepted"
    send_all(accepted, b"and back")
    assert receive(dialled) == b"and back"


def test_the_dialled_side_knows_whom_it_has_and_the_other_does_not_ask(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    assert dialled.certificate_name == "zenlake test server"
    assert accepted.certificate_name is None
    assert (dialled.expires, accepted.expires) == (None, None)


def test_a_name_and_metadata_stay_in_the_locator(stage: Stage) -> None:
    listener = stage.listen(endpoint=EndPoint("tls/localhost:0?prio=1-3"))
    (locator,) = listener.locators
    assert locator.address.startswith("localhost:")
    assert int(locator.address.rpartition(":")[2]) > 0
    assert locator.metadata == {"prio": "1-3"}


def test_a_server_below_an_intermediate_authority_sends_what_is_between(stage: Stage) -> None:
    between = Authority(stage.folder, "between", above=stage.ca)
    dialled, _ = stage.pair(stage.options(between.server(file="below")))
    assert dialled.certificate_name == "zenlake test server"


def test_an_intermediate_authority_may_be_the_root(stage: Stage) -> None:
    between = Authority(stage.folder, "between", above=stage.ca)
    server = between.server(file="below")
    stage.pair(stage.options(server), stage.options(root_ca_certificate=between.certificate))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls(stage: Stage, version: ssl.TLSVersion) -> None:
    listener = stage.listen()
    context = ssl.create_default_context(cafile=stage.ca.certificate)
    context.maximum_version = version
    client = context.wrap_socket(
        stage.raw(listener), server_hostname="localhost", do_handshake_on_connect=False
    )
    stage.keep(client)
    client.setblocking(False)
    accepted = stage.accept(listener)
    while accepted.handshake() is not Progress.DONE:
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    client.settimeout(DEADLINE)
    assert client.version() == {771: "TLSv1.2", 772: "TLSv1.3"}[version]
    client.sendall(b"hello")
    assert receive(accepted) == b"hello"


@pytest.mark.parametrize(
    ("host", "named"), [("localhost", "localhost"), ("127.0.0.1", None), ("[::1]", None)]
)
def test_the_server_is_told_a_name_but_no_address(
    stage: Stage, host: str, named: str | None
) -> None:
    listener = stage.listen(endpoint=EndPoint(f"tls/{host}:0"))
    dialled, accepted = stage.connect(listener.locators[0]), stage.accept(listener)
    heard: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(stage.server.certificate, stage.server.key)
    context.sni_callback = lambda _, name, __: heard.append(name)
    incoming = ssl.MemoryBIO()
    other = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    stream = accepted._stream  # the bytes under TLS
    assert stream.handshake() is Progress.DONE
    while not heard:
        dialled.handshake()
        incoming.write(attempt_until_ready(stream.receive, stream.fileno()))
        with suppress(ssl.SSLWantReadError):
            other.do_handshake()
    assert heard == [named]


# --- A9: who is refused, and why


def refusal(stage: Stage, server: Identity, **client: Any) -> tuple[str, str]:
    """Return the errors of the connecting and the accepting side; the listener still serves."""
    listener = stage.listen(stage.options(server))
    dialled = stage.connect(listener.locators[0], stage.options(**client))
    accepted = stage.accept(listener)
    dialling, accepting = shake_hands(dialled, accepted)
    assert dialling is not None, "it was not refused"
    assert accepting is not None, "it was not told"
    assert dialled.remote in str(dialling)
    assert accepted.remote in str(accepting)
    assert still_serves(stage, listener)
    return str(dialling), str(accepting)


def test_a_self_signed_server_is_refused(stage: Stage) -> None:
    why, _ = refusal(stage, self_signed_server(stage.folder))
    assert "its certificate is refused: self-signed certificate" in why


def test_an_expired_server_is_refused(stage: Stage) -> None:
    why, told = refusal(stage, stage.ca.server(validity=EXPIRED, file="old"))
    assert "its certificate is refused: certificate has expired" in why
    assert "certificate expired (renew transport/link/tls/listen_certificate" in told


def test_a_server_that_is_not_yet_valid_is_refused(stage: Stage) -> None:
    why, _ = refusal(stage, stage.ca.server(validity=NOT_YET_VALID, file="young"))
    assert "its certificate is refused: certificate is not yet valid" in why


def test_a_server_of_another_authority_is_refused(stage: Stage) -> None:
    why, _ = refusal(stage, Authority(stage.folder, "other").server(file="foreign"))
    assert "its certificate is refused: unable to get local issuer certificate" in why
    assert "(set transport/link/tls/root_ca_certificate to the authority of that node" in why


def test_without_a_root_the_authorities_of_the_system_count(stage: Stage) -> None:
    why, _ = refusal(stage, stage.server, root_ca_certificate=None)
    assert "its certificate is refused: " in why


@pytest.mark.parametrize("names", [("elsewhere.example",), ("192.0.2.1",)])
def test_a_server_of_another_name_is_refused(stage: Stage, names: tuple[str, ...]) -> None:
    why, told = refusal(stage, stage.ca.server(names, file="elsewhere"))
    assert "IP address mismatch" in why
    assert "127.0.0.1" in why
    assert "or set transport/link/tls/verify_name_on_connect to false)" in why
    assert "(transport/link/tls/listen_certificate has to name this server" in told


def test_a_common_name_is_no_server_name(stage: Stage) -> None:
    server = stage.ca.server(("elsewhere.example",), common_name="localhost", file="by_cn")
    listener = stage.listen(stage.options(server), EndPoint("tls/localhost:0"))
    dialled = stage.connect(listener.locators[0])
    why, _ = shake_hands(dialled, stage.accept(listener))
    assert "Hostname mismatch" in str(why)


def test_the_name_may_be_left_unchecked_but_not_the_chain(stage: Stage) -> None:
    elsewhere = stage.options(stage.ca.server(("elsewhere.example",), file="elsewhere"))
    stage.pair(elsewhere, stage.options(verify_name_on_connect=False))
    foreign = Authority(stage.folder, "other").server(("elsewhere.example",), file="foreign")
    why, _ = refusal(stage, foreign, verify_name_on_connect=False)
    assert "unable to get local issuer certificate" in why


def test_a_client_cannot_stand_for_a_server(stage: Stage) -> None:
    why, _ = refusal(stage, stage.ca.client(file="not_a_server"), verify_name_on_connect=False)
    assert "its certificate is refused: unsuitable certificate purpose" in why


def test_a_listener_without_a_certificate_is_none(stage: Stage) -> None:
    why = "listening on TLS needs listen_certificate: set transport/link/tls/listen_certificate to"
    with pytest.raises(LinkError, match=why):
        tls.listen(ANY_PORT, LinkOptions())


@pytest.mark.parametrize("name", [None, "Zoë Größe", "x" * 64])
def test_common_names_that_are_taken(stage: Stage, name: str | None) -> None:
    dialled, _ = stage.pair(stage.options(stage.ca.server(common_name=name, file="named")))
    assert dialled.certificate_name == name


@pytest.mark.parametrize("name", ["admin\0.example", "a\nb", "x" * 65, "x" * 4096])
def test_common_names_that_are_refused(stage: Stage, name: str) -> None:
    client = stage.ca.client(name, file="named")
    listener = stage.listen(stage.options(enable_mtls=True))
    dialled = stage.connect(
        listener.locators[0],
        stage.options(
            enable_mtls=True, connect_certificate=client.certificate, connect_private_key=client.key
        ),
    )
    accepted = stage.accept(listener)
    _, why = shake_hands(dialled, accepted)
    assert f"{accepted.remote}: the common name of its certificate" in str(why)


@pytest.mark.parametrize("oldest", ["TLSv1", "TLSv1_1"])
def test_old_versions_of_tls_are_refused(stage: Stage, oldest: str) -> None:
    listener = stage.listen()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion[oldest]
        context.maximum_version = ssl.TLSVersion[oldest]
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    stage.raw(listener).sendall(outgoing.read())
    accepted = stage.accept(listener)
    (why,) = shake_hands(accepted)
    assert f"{accepted.remote}: TLS handshake failed: its versions of TLS are too old" in str(why)
    assert still_serves(stage, listener)


INIT_ON_STREAM = to_stream([INIT_SYN], Framing.STREAM)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it sent an HTTP request, not TLS"),
        (INIT_ON_STREAM * 4, "it does not speak TLS"),
        (bytes(64), "it does not speak TLS"),
        (b"\xff" * 64, "it does not speak TLS"),
        (random.Random(1).randbytes(4096), "it does not speak TLS"),
        (b"", "it closed the link during the TLS handshake"),
        (b"\x16\x03\x01", "it closed the link during the TLS handshake"),
    ],
    ids=["http", "zenoh", "zeros", "ones", "random", "nothing", "a beginning"],
)
def test_plaintext_to_a_tls_port(stage: Stage, data: bytes, why: str) -> None:
    listener = stage.listen()
    _, error = stage.refused(listener, data)
    assert why in error
    assert still_serves(stage, listener)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", INIT_ON_STREAM * 4, b""])
def test_tls_to_a_plaintext_port(stage: Stage, answer: bytes) -> None:
    server = stage.raw_server()
    dialled = stage.connect(f"tls/127.0.0.1:{server.getsockname()[1]}")
    peer, _ = server.accept()
    with peer:
        peer.sendall(answer)
        peer.shutdown(socket.SHUT_WR)
        (why,) = shake_hands(dialled)
    assert str(why).startswith(f"{dialled.remote}: ")
    assert ("it does not speak TLS" if answer else "it closed the link") in str(why)


def test_a_port_where_nobody_listens(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(LinkError, match=f"tls/127.0.0.1:{port}: connect: "):
        shake_hands_or_raise(stage.connect(f"tls/127.0.0.1:{port}"))


def shake_hands_or_raise(link: TransportLink) -> None:
    (error,) = shake_hands(link)
    if error is not None:
        raise error


def test_a_name_that_no_server_can_have(stage: Stage) -> None:
    listener = stage.listen()
    port = listener.locators[0].address.rpartition(":")[2]
    address = tls.resolve(EndPoint(listener.locators[0]))[0]
    with pytest.raises(LinkError, match=rf"^tls/\.x:{port}: '\.x' cannot be the name of a server"):
        tls.connect(EndPoint(f"tls/.x:{port}"), address, stage.options())


def test_peers_that_reset_in_the_middle_do_not_hurt_the_listener(stage: Stage) -> None:
    listener = stage.listen()
    hello = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    greeting = hello.read()
    for _ in range(30):
        raw = stage.raw(listener)
        raw.sendall(greeting)
        reset(raw)
        accepted = listener.accept()
        if accepted is not None:
            (error,) = shake_hands(accepted)
            assert str(error).startswith(accepted.remote)
    left = listener.accept()
    while left is not None:
        left.close()
        left = listener.accept()
    assert still_serves(stage, listener)


# --- A10: mutual TLS


def mutual(stage: Stage, client: Identity | None = None) -> LinkOptions:
    if client is None:
        return stage.options(enable_mtls=True)
    return stage.options(
        enable_mtls=True, connect_certificate=client.certificate, connect_private_key=client.key
    )


def test_mutual_tls_names_both_sides(stage: Stage) -> None:
    client = stage.ca.client("robot 7")
    dialled, accepted = stage.pair(mutual(stage), mutual(stage, client))
    assert dialled.certificate_name == "zenlake test server"
    assert accepted.certificate_name == "robot 7"
    send_all(dialled, b"hello")
    assert receive(accepted) == b"hello"


def kept_out(stage: Stage, client: Identity | None) -> tuple[str, str]:
    """Return the errors of a client that mutual TLS refuses, and of the listener."""
    listener = stage.listen(mutual(stage))
    options = stage.options() if client is None else mutual(stage, client)
    dialled = stage.connect(listener.locators[0], options)
    accepted = stage.accept(listener)
    dialling, accepting = shake_hands(dialled, accepted)
    assert dialling is None, "TLS 1.3: the client is done before it is judged"
    assert accepting is not None
    assert accepted.remote in str(accepting)
    with pytest.raises(LinkError) as heard:
        receive(dialled)
    good = stage.ca.client(file="good")
    assert still_serves(stage, listener, good)
    return str(heard.value), str(accepting)


def test_a_client_without_a_certificate_is_refused(stage: Stage) -> None:
    heard, why = kept_out(stage, None)
    assert "it has no certificate, which mutual TLS needs" in why
    assert "it refused this side: certificate required (set transport/link/tls/enable_mtls" in heard
    assert "connect_certificate and connect_private_key" in heard


def test_a_client_of_another_authority_is_refused(stage: Stage) -> None:
    heard, why = kept_out(stage, Authority(stage.folder, "other").client())
    assert "its certificate is refused: unable to get local issuer certificate" in why
    assert "it refused this side: unknown ca" in heard


def test_an_expired_client_is_refused(stage: Stage) -> None:
    heard, why = kept_out(stage, stage.ca.client(validity=EXPIRED))
    assert "its certificate is refused: certificate has expired" in why
    assert "it refused this side: certificate expired" in heard


def test_a_server_cannot_stand_for_a_client(stage: Stage) -> None:
    _, why = kept_out(stage, stage.server)
    assert "its certificate is refused: unsuitable certificate purpose" in why


def test_mutual_tls_needs_an_authority_and_a_certificate_of_its_own(stage: Stage) -> None:
    with pytest.raises(LinkError, match="enable_mtls on a listener needs root_ca_certificate"):
        stage.listen(stage.options(enable_mtls=True, root_ca_certificate=None))
    listener = stage.listen(mutual(stage))
    with pytest.raises(
        LinkError, match="connecting over TLS with enable_mtls needs connect_certificate"
    ):
        stage.connect(listener.locators[0], mutual(stage))


def test_when_the_peers_certificate_ends(stage: Stage) -> None:
    client = stage.ca.client()
    dialled, accepted = stage.pair(
        LinkOptions(tls=replace(mutual(stage).tls or TlsOptions(), close_link_on_expiration=True)),
        LinkOptions(
            tls=replace(mutual(stage, client).tls or TlsOptions(), close_link_on_expiration=True)
        ),
    )
    assert dialled.expires == stage.server.not_after
    assert accepted.expires == client.not_after


def test_without_a_certificate_nothing_ends(stage: Stage) -> None:
    _, accepted = stage.pair(stage.options(close_link_on_expiration=True))
    assert accepted.expires is None


# --- options


def test_certificates_and_keys_in_base64(stage: Stage) -> None:
    listening = TlsOptions(
        listen_certificate_base64=stage.server.certificate_base64,
        listen_private_key_base64=stage.server.key_base64,
    )
    dialling = TlsOptions(root_ca_certificate_base64=in_base64(stage.ca.certificate))
    stage.pair(LinkOptions(tls=listening), LinkOptions(tls=dialling))


@pytest.mark.parametrize("form", ["file", "base64", "raw"])
def test_what_the_endpoint_says_wins(stage: Stage, form: str) -> None:
    forms: dict[str, Callable[[str], str]] = {
        "file": str,
        "base64": in_base64,
        "raw": lambda path: Path(path).read_text(),
    }
    show = forms[form]
    foreign = Authority(stage.folder, "other").server(file="foreign")
    listener = stage.listen(
        stage.options(foreign),
        EndPoint(
            f"{ANY_PORT}#listen_certificate_{form}={show(stage.server.certificate)}"
            f";listen_private_key_{form}={show(stage.server.key)};enable_mtls=true"
            f";root_ca_certificate_{form}={show(stage.ca.certificate)}"
        ),
    )
    assert "#" not in listener.locators[0]
    client = stage.ca.client("by endpoint")
    dialled = stage.connect(
        f"{listener.locators[0]}#root_ca_certificate_{form}={show(stage.ca.certificate)}"
        f";connect_certificate_{form}={show(client.certificate)}"
        f";connect_private_key_{form}={show(client.key)};enable_mtls=true"
        ";verify_name_on_connect=true;close_link_on_expiration=true;so_rcvbuf=65536",
        LinkOptions(),
    )
    accepted = stage.accept(listener)
    assert shake_hands(dialled, accepted) == [None, None]
    assert accepted.certificate_name == "by endpoint"
    assert dialled.expires == stage.server.not_after


def test_no_file_stays_open(stage: Stage) -> None:
    stage.pair()
    targets = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.exists()]
    assert not [target for target in targets if "memfd:pem" in target]


def _garbage(stage: Stage) -> str:
    path = stage.folder / "garbage.pem"
    path.write_text("not a certificate")
    return str(path)


def _empty(stage: Stage) -> str:
    path = stage.folder / "empty.pem"
    path.touch()
    return str(path)


WRONG_OPTIONS: list[tuple[str, Callable[[Stage], dict[str, Any]], str]] = [
    (
        "missing file",
        lambda s: {"listen_certificate": f"{s.folder}/gone.pem"},
        r"listen_certificate \(file '.*gone.pem'\) cannot be read: No such file or directory; give",
    ),
    (
        "a folder",
        lambda s: {"listen_private_key": str(s.folder)},
        r"listen_private_key \(file '.*'\) cannot be read: Is a directory; give",
    ),
    (
        "not a path",
        lambda s: {"listen_private_key": "\0"},
        r"listen_private_key \(file '.*'\) cannot be read: not a path; give",
    ),
    (
        "empty file",
        lambda s: {"listen_certificate": _empty(s)},
        r"listen_certificate \(file '.*empty.pem'\) has no content; give a PEM file",
    ),
    (
        "garbage",
        lambda s: {"listen_certificate": _garbage(s)},
        r"listen_certificate .* and listen_private_key .* are not a PEM certificate and",
    ),
    (
        "garbage for a key",
        lambda s: {"listen_private_key": _garbage(s)},
        r"listen_certificate .* and listen_private_key .* are not a PEM certificate and",
    ),
    (
        "the key of another",
        lambda s: {"listen_private_key": s.ca.client().key},
        r"listen_certificate .* and listen_private_key .* do not belong together: give the key",
    ),
    (
        "encrypted key",
        lambda s: {"listen_private_key": encrypted_copy(s.server, b"secret")},
        r"listen_private_key .* is encrypted: give a private key without a password",
    ),
    (
        "both forms",
        lambda s: {"listen_private_key_base64": s.server.key_base64},
        r"listen_private_key and listen_private_key_base64 are both given: leave out one",
    ),
    (
        "not base64",
        lambda s: {"listen_private_key": None, "listen_private_key_base64": "%" + "A" * 40},
        r"listen_private_key_base64 is not base64: encode the whole PEM text",
    ),
    (
        "not ASCII",
        lambda s: {"listen_private_key": None, "listen_private_key_base64": "é" * 40},
        r"listen_private_key_base64 is not base64: encode the whole PEM text",
    ),
    (
        "no root in the file",
        lambda s: {"enable_mtls": True, "root_ca_certificate": _garbage(s)},
        r"root_ca_certificate .* has no certificate: give a PEM file with CERTIFICATE",
    ),
]


@pytest.mark.parametrize(
    ("changes", "message"),
    [each[1:] for each in WRONG_OPTIONS],
    ids=[each[0] for each in WRONG_OPTIONS],
)
def test_options_that_cannot_be_used(
    stage: Stage, changes: Callable[[Stage], dict[str, Any]], message: str
) -> None:
    with pytest.raises(LinkError, match=f"^tls/127.0.0.1:0: {message}"):
        stage.listen(stage.options(**changes(stage)))


def test_a_switch_is_true_or_false(stage: Stage) -> None:
    with pytest.raises(LinkError, match="enable_mtls is 'yes': write true or false"):
        stage.listen(endpoint=EndPoint(f"{ANY_PORT}#enable_mtls=yes"))


@pytest.mark.parametrize("form", ["raw", "base64"])
@pytest.mark.parametrize("wrong", ["host", "rcvbuf", "mtls", "key", "nothing"])
def test_no_error_and_no_name_shows_a_key(stage: Stage, form: str, wrong: str) -> None:
    key = Path(stage.server.key).read_text() if form == "raw" else stage.server.key_base64
    secret = key.splitlines()[1][:20] if form == "raw" else key[60:80]
    if wrong == "key":
        key = key[: len(key) // 2]
    host = "no such host" if wrong == "host" else "127.0.0.1"
    extra = {"mtls": ";enable_mtls=perhaps", "rcvbuf": ";so_rcvbuf=nonsense"}.get(wrong, "")
    endpoint = EndPoint(f"tls/{host}:0#listen_private_key_{form}={key}{extra}")
    assert secret in endpoint
    if wrong == "nothing":
        listener = stage.listen(stage.options(listen_private_key=None), endpoint)
        assert still_serves(stage, listener)
        shown = [repr(listener), str(vars(listener))]
    else:
        with pytest.raises(ZError) as caught:
            stage.listen(stage.options(), endpoint)
        error: BaseException | None = caught.value
        shown = []
        while error is not None:
            shown += [str(error), repr(error)]
            error = error.__cause__
    assert not [text for text in shown if secret in text]


# --- bytes


def test_large_transfers_both_ways_at_once(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    size = 24 * 1024 * 1024
    sent = {link: random.Random(i).randbytes(size) for i, link in enumerate((dialled, accepted))}
    got: dict[TransportLink, bytes] = {}

    def read(link: TransportLink) -> None:
        digest, left = hashlib.sha256(), size
        while left:
            data = receive(link)
            assert 0 < len(data) <= READ_BYTES
            digest.update(data)
            left -= len(data)
        got[link] = digest.digest()

    run_at_once(
        *(partial(send_all, link, sent[link]) for link in (dialled, accepted)),
        *(partial(read, link) for link in (dialled, accepted)),
    )
    assert got[dialled] == hashlib.sha256(sent[accepted]).digest()
    assert got[accepted] == hashlib.sha256(sent[dialled]).digest()


def test_a_peer_that_does_not_read_is_felt(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    block = random.Random(3).randbytes(100_000)
    sent = b""
    while len(sent) < 256 * len(block):
        taken = dialled.send(block)
        sent += block[:taken]
        if not taken:
            break
    assert not dialled.send(block), "what the kernel holds has an end"
    assert dialled.unsent
    assert len(dialled._unsent) < MAX_UNSENT_BYTES
    got = b""
    while len(got) < len(sent):
        got += receive(accepted)
        dialled.flush()
    assert got == sent
    assert len(dialled._unsent) == 0
    assert dialled.send(block) == len(block)


def test_what_waits_inside_is_announced(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    data = random.Random(4).randbytes(2 * READ_BYTES)
    sender = threading.Thread(target=send_all, args=(dialled, data))
    sender.start()
    got: list[bytes] = []
    while sum(map(len, got)) < len(data):
        if not accepted.more:
            select.select([accepted], [], [], TICK)
        part = accepted.receive()
        got.append(part or b"")
    sender.join(DEADLINE)
    assert b"".join(got) == data
    assert max(map(len, got)) <= READ_BYTES
    assert accepted.receive() is None
    assert not accepted.more


def test_bytes_that_came_with_the_end_of_the_handshake_are_announced(stage: Stage) -> None:
    listener = stage.listen()
    dialled, accepted = stage.connect(listener.locators[0]), stage.accept(listener)
    while dialled.handshake() is not Progress.DONE:
        assert accepted.handshake() is not Progress.DONE
    send_all(dialled, b"early")
    assert shake_hands(accepted) == [None]
    assert accepted.more or select.select([accepted], [], [], DEADLINE)[0]
    assert receive(accepted) == b"early"


def test_the_end_with_a_goodbye(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    send_all(dialled, b"last words")
    dialled.close()
    assert receive_exactly(accepted, 10) == b"last words"
    assert receive(accepted) == b""
    assert accepted.receive() == b""


def test_the_end_without_a_goodbye(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    send_all(dialled, b"last words")
    dialled._stream.close()
    assert receive_exactly(accepted, 10) == b"last words"
    assert receive(accepted) == b""
    assert accepted.receive() == b""


def test_a_reset_is_an_error(stage: Stage) -> None:
    listener = stage.listen()
    dialled, accepted = stage.join(listener)
    with socket.socket(fileno=dialled.fileno()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.detach()
    dialled._stream.close()
    with pytest.raises(LinkError, match=f"^{accepted.remote}.*reset"):
        receive(accepted)


def test_altered_bytes_are_an_error_after_what_came_before(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    send_all(dialled, b"true")
    dialled._stream.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert receive(accepted) == b"true"
    with pytest.raises(LinkError, match=f"^{accepted.remote}: what it sent was altered"):
        receive(accepted)
    with pytest.raises(LinkError):
        accepted.receive()


def test_a_closed_link_refuses_every_call(stage: Stage) -> None:
    dialled, _ = stage.pair()
    close_for_good(dialled)


def test_close_from_another_thread(stage: Stage) -> None:
    dialled, accepted = stage.pair()
    close_while_read(dialled)
    assert receive(accepted) == b""


# --- with eclipse-zenoh


def listening_router(stage: Stage, both: bool) -> str:
    """Where a router of eclipse-zenoh listens; with `both`, for clients with a certificate."""
    endpoint = f"tls/127.0.0.1:{free_port()}"
    router = EclipseNode(
        stage,
        mode="router",
        listen__endpoints=[endpoint],
        transport__link__tls__listen_certificate=stage.server.certificate,
        transport__link__tls__listen_private_key=stage.server.key,
        transport__link__tls__root_ca_certificate=stage.ca.certificate,
        transport__link__tls__enable_mtls=both,
    )
    assert router.said() == "open"
    return endpoint


def batches(link: TransportLink) -> Iterator[bytes]:
    buffer = b""
    while data := receive(link):
        buffer += data
        for start, end in split(buffer, link.framing):
            yield buffer[start:end]
        return


@pytest.mark.process
@pytest.mark.interop
@pytest.mark.parametrize("both", [False, True], ids=["one-sided", "mutual"])
def test_our_init_is_answered_by_a_router(stage: Stage, both: bool) -> None:
    client = stage.ca.client("zenlake client")
    dialled = stage.connect(
        listening_router(stage, both), mutual(stage, client) if both else stage.options()
    )
    assert shake_hands(dialled) == [None]
    assert dialled.certificate_name == "zenlake test server"
    send_all(dialled, INIT_ON_STREAM)
    (ack,) = read_batch(next(batches(dialled)))
    assert isinstance(ack, Init)
    assert ack.cookie


@pytest.mark.process
@pytest.mark.interop
def test_a_router_keeps_out_a_client_without_certificate(stage: Stage) -> None:
    dialled = stage.connect(listening_router(stage, True))
    assert shake_hands(dialled) == [None]
    with pytest.raises(LinkError, match="it refused this side: certificate required"):
        receive(dialled)


@pytest.mark.process
@pytest.mark.interop
@pytest.mark.parametrize("both", [False, True], ids=["one-sided", "mutual"])
def test_a_client_of_eclipse_zenoh_dials_our_listener(stage: Stage, both: bool) -> None:
    client = stage.ca.client("rust client")
    listener = stage.listen(mutual(stage) if both else None)
    EclipseNode(
        stage,
        mode="client",
        connect__endpoints=[str(listener.locators[0])],
        transport__link__tls__root_ca_certificate=stage.ca.certificate,
        transport__link__tls__connect_certificate=client.certificate,
        transport__link__tls__connect_private_key=client.key,
        transport__link__tls__enable_mtls=both,
    )
    accepted = stage.accept(listener)
    assert shake_hands(accepted) == [None]
    assert accepted.certificate_name == ("rust client" if both else None)
    (syn,) = read_batch(next(batches(accepted)))
    assert isinstance(syn, Init)
    assert syn.cookie is None
