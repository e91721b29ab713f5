"""Certificates of QUIC links: whom each side admits, as TLS links do, and what the peer is told."""

import logging
import ssl
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.certificates import (
    EXPIRED,
    NOT_YET_VALID,
    Authority,
    Identity,
    self_signed_server,
)
from tests.support.link_contract import KINDS, Stage
from zenlake import link as links
from zenlake.errors import LinkError
from zenlake.link.base import Listener, Progress, TransportLink
from zenlake.link.options import LinkOptions, TlsOptions
from zenlake.wire.locator import EndPoint


class People:
    """Certificates by name: authorities, and the servers and clients that they signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = Authority(folder)
        self.between = Authority(folder, "between", above=self.ca)
        self.other = Authority(folder, "other")
        self.servers = {
            "good": self.ca.server(),
            "below another": self.between.server(file="below"),
            "of another authority": self.other.server(file="foreign"),
            "self-signed": self_signed_server(folder),
            "expired": self.ca.server(validity=EXPIRED, file="old"),
            "not yet valid": self.ca.server(validity=NOT_YET_VALID, file="young"),
            "of another name": self.ca.server(("elsewhere.example",), file="elsewhere"),
            "of another address": self.ca.server(("192.0.2.1",), file="address"),
            "a client": self.ca.client(file="not_a_server"),
        }
        self.clients = {
            "good": self.ca.client("robot 7", file="robot"),
            "below another": self.between.client("robot 8", file="robot_below"),
            "of another authority": self.other.client(file="foreign_client"),
            "expired": self.ca.client(validity=EXPIRED, file="old_client"),
            "not yet valid": self.ca.client(validity=NOT_YET_VALID, file="young_client"),
            "a server": self.servers["good"],
        }

    def options(
        self,
        server: str = "good",
        client: str | None = None,
        *,
        mutual: bool = False,
        root: str | None = None,
        verify_name: bool = True,
    ) -> LinkOptions:
        shown: Identity | None = self.clients[client] if client else None
        return LinkOptions(
            tls=TlsOptions(
                root_ca_certificate=root or self.ca.certificate,
                listen_private_key=self.servers[server].key,
                listen_certificate=self.servers[server].certificate,
                connect_private_key=shown.key if shown else None,
                connect_certificate=shown.certificate if shown else None,
                enable_mtls=mutual or shown is not None,
                verify_name_on_connect=verify_name,
                close_link_on_expiration=True,
            )
        )


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People(tmp_path)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(KINDS["quic"], tmp_path)
    yield stage
    stage.close()


def listen(stage: Stage, options: LinkOptions) -> Listener:
    stage.options = options
    return stage.listen(EndPoint("quic/localhost:0"))


def connect(stage: Stage, listener: Listener, options: LinkOptions) -> TransportLink:
    stage.options = options
    return stage.connect(listener.locators[0])


def outcome(link: TransportLink, stage: Stage) -> str:
    """Return why the handshake of a link failed; "" if it is done."""

    def step() -> str | None:
        try:
            return "" if link.handshake() is Progress.DONE else None
        except LinkError as error:
            return str(error)

    return stage.until(step)


@pytest.mark.parametrize(
    ("server", "root"), [("good", "ca"), ("below another", "ca"), ("below another", "between")]
)
def test_servers_that_a_client_trusts(stage: Stage, people: People, server: str, root: str) -> None:
    listener = listen(stage, people.options(server))
    trusted = getattr(people, root).certificate
    connected = connect(stage, listener, people.options(root=trusted))
    accepted = stage.accept(listener)
    assert outcome(connected, stage) == outcome(accepted, stage) == ""
    assert connected.expires == people.servers[server].not_after
    assert stage.carry(connected, accepted, b"there") == b"there"


@pytest.mark.parametrize(
    ("server", "verify_name", "why", "told"),
    [
        (
            "of another authority",
            False,
            "unable to get local issuer certificate (set transport/link/tls/root_ca_certificate ",
            "unknown ca (it needs the authority of transport/link/tls/listen_certificate ",
        ),
        ("self-signed", False, "self-signed certificate", "unknown ca"),
        (
            "expired",
            False,
            "certificate has expired",
            "certificate expired (renew transport/link/tls/listen_certificate, ",
        ),
        ("not yet valid", False, "certificate is not yet valid", "certificate expired"),
        *(
            (
                server,
                True,
                "the certificate is not valid for 'localhost' (connect to a name of its "
                "certificate, or set transport/link/tls/verify_name_on_connect to false)",
                "bad certificate (transport/link/tls/listen_certificate has to name this server ",
            )
            for server in ("of another name", "of another address")
        ),
        ("a client", False, "unsuitable certificate purpose", "unsupported certificate"),
    ],
)
def test_servers_that_a_client_refuses(
    stage: Stage, people: People, server: str, verify_name: bool, why: str, told: str
) -> None:
    listener = listen(stage, people.options(server))
    connected = connect(stage, listener, people.options(verify_name=verify_name))
    accepted = stage.accept(listener)
    assert f"its certificate is refused: {why}" in outcome(connected, stage)
    assert f"it refused this side: {told}" in outcome(accepted, stage)


def test_errors_of_certificates_name_the_keys_to_set(stage: Stage, people: People) -> None:
    listener = listen(stage, people.options("of another authority", mutual=True))
    connected = connect(stage, listener, people.options())
    stage.accept(listener)
    root = "(set transport/link/tls/root_ca_certificate to the authority of that node"
    assert root in outcome(connected, stage)
    for client in (None, "of another authority"):
        listener = listen(stage, people.options(mutual=True))
        connected = connect(stage, listener, people.options(client=client))
        accepted = stage.accept(listener)
        assert root not in outcome(accepted, stage)  # Strangers are not to be trusted.
        told = str(stage.error_of(connected.receive))
        assert (
            "(set transport/link/tls/enable_mtls to true, connect_certificate and connect" in told
        )


def test_a_listener_without_a_certificate_says_so_of_quic() -> None:
    why = "listening on QUIC needs listen_certificate: set transport/link/tls/listen_certificate to"
    with pytest.raises(LinkError, match=why):
        links.listen(EndPoint("quic/127.0.0.1:0"), LinkOptions())


def test_the_name_may_be_left_unchecked(stage: Stage, people: People) -> None:
    listener = listen(stage, people.options("of another name"))
    connected = connect(stage, listener, people.options(verify_name=False))
    accepted = stage.accept(listener)
    assert outcome(connected, stage) == outcome(accepted, stage) == ""


@pytest.mark.parametrize(("client", "name"), [("good", "robot 7"), ("below another", "robot 8")])
def test_clients_that_a_listener_admits(
    stage: Stage, people: People, client: str, name: str
) -> None:
    listener = listen(stage, people.options(mutual=True))
    connected = connect(stage, listener, people.options(client=client))
    accepted = stage.accept(listener)
    assert outcome(connected, stage) == outcome(accepted, stage) == ""
    assert getattr(accepted, "certificate_name", None) == name
    assert accepted.expires == people.clients[client].not_after
    assert stage.carry(connected, accepted, b"there") == b"there"


@pytest.mark.parametrize(
    ("client", "why", "told"),
    [
        (None, "it has no certificate, which mutual TLS needs", "certificate required"),
        ("of another authority", "unable to get local issuer certificate", "unknown ca"),
        ("expired", "certificate has expired", "certificate expired"),
        ("not yet valid", "certificate is not yet valid", "certificate expired"),
        ("a server", "unsuitable certificate purpose", "unsupported certificate"),
    ],
)
def test_clients_that_a_listener_refuses(
    stage: Stage, people: People, client: str | None, why: str, told: str
) -> None:
    listener = listen(stage, people.options(mutual=True))
    connected = connect(stage, listener, people.options(client=client))
    accepted = stage.accept(listener)
    assert why in outcome(accepted, stage)
    error = stage.error_of(connected.receive)
    assert f"it refused this side: {told}" in str(error)
    good = connect(stage, listener, people.options(client="good"))
    admitted = stage.accept(listener)
    assert outcome(good, stage) == outcome(admitted, stage) == ""


def test_a_listener_of_mutual_quic_needs_an_authority(stage: Stage, people: People) -> None:
    tls = people.options(mutual=True).tls
    assert tls is not None
    options = LinkOptions(tls=TlsOptions(**{**vars(tls), "root_ca_certificate": None}))
    with pytest.raises(LinkError, match="enable_mtls on a listener needs root_ca_certificate"):
        listen(stage, options)


@pytest.mark.parametrize("bundle", [None, "missing.pem"])
def test_without_a_bundle_of_the_system_a_client_is_told_which_option_names_its_authority(
    stage: Stage, people: People, monkeypatch: pytest.MonkeyPatch, bundle: str | None
) -> None:
    listener = listen(stage, people.options())
    paths = SimpleNamespace(cafile=bundle, capath=None)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    with pytest.raises(LinkError, match="root_ca_certificate"):
        connect(stage, listener, LinkOptions())


def test_a_refusal_is_not_logged_by_the_library(
    stage: Stage, people: People, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    listener = listen(stage, people.options("expired"))
    connected = connect(stage, listener, people.options())
    accepted = stage.accept(listener)
    assert "its certificate is refused" in outcome(connected, stage)
    assert "it refused this side" in outcome(accepted, stage)
    assert caplog.records == []
