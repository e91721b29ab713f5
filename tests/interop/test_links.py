"""Every kind of link with eclipse-zenoh, from both sides: TLS, mutual TLS, QUIC, UDP, unix,
WebSocket."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.golden.proxy import free_port
from tests.support.certificates import Authority, Identity
from tests.support.interop_conversation import (
    COMMON_PAIRS,
    THEY_SAID_CLOSE,
    Ours,
    Pair,
    both_send,
    conversation,
    dialling,
    listening,
)
from tests.support.interop_pair import OURS, THEIRS, open_session, unique
from tests.support.reference_peer import ReferenceFailed, ReferenceProcess, Settings
from tests.support.waiting import until
from zenlake.errors import LinkError, SessionRefused
from zenlake.link.options import LinkOptions, TlsOptions
from zenlake.wire.enums import CloseReason

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

SIZES = [0, 1, 1000, 65_535, 65_536, 300_000, 3_000_000, 1] + [100] * 50
TLS_AT = "tls/127.0.0.1:{}"
QUIC_AT = "quic/127.0.0.1:{}"
TLS = "transport/link/tls"
WE_DIAL = [pair for pair in COMMON_PAIRS if pair.we_dial]
THEY_DIAL = [pair for pair in COMMON_PAIRS if not pair.we_dial]


def endpoint_of(protocol: str, folder: Path) -> str:
    if protocol == "unixsock-stream":
        return f"{protocol}/{folder / secrets.token_hex(4)}"
    return protocol + "/127.0.0.1:{}"


@pytest.mark.parametrize("protocol", ["tcp", "unixsock-stream", "ws"])
@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_reliable_links(
    reference: ReferenceProcess, pair: Pair, protocol: str, tmp_path: Path
) -> None:
    endpoint = endpoint_of(protocol, tmp_path)
    with conversation(reference, pair, ours := Ours(pair.ours), endpoint=endpoint) as (
        session,
        them,
    ):
        assert session.link.protocol == protocol
        both_send(ours, session, them, SIZES, noise=True)
        session.close()
        until(lambda: them.closed(str(ours.zid)), lambda times: times == 1)


@pytest.mark.parametrize("protocol", ["unixsock-stream", "ws"])
@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_a_close_by_the_reference_ends_our_session_with_its_reason(
    reference: ReferenceProcess, pair: Pair, protocol: str, tmp_path: Path
) -> None:
    endpoint = endpoint_of(protocol, tmp_path)
    with conversation(reference, pair, ours := Ours(pair.ours), endpoint=endpoint) as (
        session,
        them,
    ):
        them.close()
        end = ours.end_of(session)
        assert (end.reason, end.by_peer) == (CloseReason.GENERIC, True)
        assert THEY_SAID_CLOSE in end.why


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_a_session_over_udp_carries_both_ways_and_closes(
    reference: ReferenceProcess, pair: Pair
) -> None:
    """One at a time: datagrams that come faster than they are read may be lost, and are."""
    with conversation(reference, pair, ours := Ours(pair.ours), endpoint="udp/127.0.0.1:{}") as (
        session,
        them,
    ):
        assert session.link.protocol == "udp"
        assert not session.link.reliable
        for size in (0, 1, 1000, 60_000, 65_000, 65_535, 100_000, 1):
            both_send(ours, session, them, [size])
        session.close()
        until(lambda: them.closed(str(ours.zid)), lambda times: times == 1)


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_udp_that_they_close(reference: ReferenceProcess, pair: Pair) -> None:
    """A listener of theirs goes without CLOSE: our next KEEP_ALIVE reaches no node."""
    with conversation(reference, pair, ours := Ours(pair.ours), endpoint="udp/127.0.0.1:{}") as (
        session,
        them,
    ):
        them.close()
        end = ours.end_of(session)
        assert (end.reason, end.by_peer) == (CloseReason.GENERIC, True)
        assert ("no node listens there" if pair.we_dial else THEY_SAID_CLOSE) in end.why


# ---- TLS


class World:
    """An authority and whom it vouches for."""

    def __init__(self, folder: Path, name: str) -> None:
        folder = folder / name
        folder.mkdir()
        authority = Authority(folder)
        self.root = authority.certificate
        self.server: Identity = authority.server()
        self.client: Identity = authority.client()

    def ours(self, *, mutual: bool = False, root: str | None = None) -> LinkOptions:
        return LinkOptions(
            tls=TlsOptions(
                root_ca_certificate=root or self.root,
                listen_private_key=self.server.key,
                listen_certificate=self.server.certificate,
                connect_private_key=self.client.key if mutual else None,
                connect_certificate=self.client.certificate if mutual else None,
                enable_mtls=mutual,
            )
        )

    def theirs(self, *, mutual: bool = False, root: str | None = None) -> Settings:
        return {
            f"{TLS}/root_ca_certificate": root or self.root,
            f"{TLS}/listen_private_key": self.server.key,
            f"{TLS}/listen_certificate": self.server.certificate,
            f"{TLS}/enable_mtls": mutual,
            **(
                {
                    f"{TLS}/connect_private_key": self.client.key,
                    f"{TLS}/connect_certificate": self.client.certificate,
                }
                if mutual
                else {}
            ),
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("tls"), "one")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("tls"), "other")


@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mutual tls"])
@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_a_session_over_tls_carries_both_ways_and_closes(
    reference: ReferenceProcess, pair: Pair, mutual: bool, world: World
) -> None:
    ours = Ours(pair.ours, options=world.ours(mutual=mutual))
    theirs = world.theirs(mutual=mutual)
    with conversation(reference, pair, ours, theirs, endpoint=TLS_AT) as (session, them):
        assert session.link.protocol == "tls"
        both_send(ours, session, them, SIZES, noise=True)
        (link,) = them.links()
        assert link["src"].startswith("tls/")
        if mutual and pair.we_dial:
            assert link["auth"] == "zenlake test client"
        them.close()
        end = ours.end_of(session)
        assert (end.reason, end.by_peer) == (CloseReason.GENERIC, True)
        assert THEY_SAID_CLOSE in end.why


@pytest.mark.parametrize("mutual", [False, True], ids=["quic", "mutual quic"])
@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_a_session_over_quic_carries_both_ways_and_closes(
    reference: ReferenceProcess, pair: Pair, mutual: bool, world: World
) -> None:
    ours = Ours(pair.ours, options=world.ours(mutual=mutual))
    theirs = world.theirs(mutual=mutual)
    with conversation(reference, pair, ours, theirs, endpoint=QUIC_AT) as (session, them):
        assert session.link.protocol == "quic"
        both_send(ours, session, them, SIZES, noise=True)
        (link,) = them.links()
        assert link["src"].startswith("quic/")
        if mutual and pair.we_dial:
            assert link["auth"] == "zenlake test client"
        them.close()
        end = ours.end_of(session)
        assert (end.reason, end.by_peer) == (CloseReason.GENERIC, True)


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_a_session_over_quic_that_we_close(
    reference: ReferenceProcess, pair: Pair, world: World
) -> None:
    ours = Ours(pair.ours, options=world.ours())
    with conversation(reference, pair, ours, world.theirs(), endpoint=QUIC_AT) as (session, them):
        both_send(ours, session, them, [1])
        session.close()
        until(lambda: them.closed(str(ours.zid)), lambda times: times == 1)


@pytest.mark.parametrize("at_port", [TLS_AT, QUIC_AT], ids=["tls", "quic"])
@pytest.mark.parametrize("pair", WE_DIAL, ids=str)
def test_a_server_of_theirs_that_we_do_not_trust(
    reference: ReferenceProcess, pair: Pair, at_port: str, world: World, stranger: World
) -> None:
    them, at = listening(reference, pair.theirs, world.theirs(), at_port)
    try:
        with Ours(pair.ours, options=world.ours(root=stranger.root)) as ours:
            with pytest.raises((SessionRefused, LinkError), match="certificate"):
                ours.node.connect(at)
            assert ours.opened == []
    finally:
        them.close()


@pytest.mark.parametrize("at_port", [TLS_AT, QUIC_AT], ids=["tls", "quic"])
@pytest.mark.parametrize("pair", THEY_DIAL, ids=str)
def test_a_server_of_ours_that_they_do_not_trust(
    reference: ReferenceProcess, pair: Pair, at_port: str, world: World, stranger: World
) -> None:
    with Ours(pair.ours, options=world.ours()) as ours:
        (at, *_) = ours.node.listen(at_port.format(0))
        theirs = world.theirs(root=stranger.root)
        with pytest.raises(ReferenceFailed):
            dialling(reference, pair.theirs, str(at), {**theirs, "connect/timeout_ms": 0})
        until(lambda: ours.node.refused.total(), lambda times: times >= 1)
        assert ours.opened == []


@pytest.mark.parametrize("at_port", [TLS_AT, QUIC_AT], ids=["tls", "quic"])
@pytest.mark.parametrize("shown", ["nothing", "a stranger's"])
@pytest.mark.parametrize("pair", WE_DIAL, ids=str)
def test_they_refuse_our_certificate(
    reference: ReferenceProcess,
    pair: Pair,
    shown: str,
    at_port: str,
    world: World,
    stranger: World,
) -> None:
    them, at = listening(reference, pair.theirs, world.theirs(mutual=True), at_port)
    options = world.ours() if shown == "nothing" else stranger.ours(mutual=True, root=world.root)
    try:
        with Ours(pair.ours, options=options) as ours:
            with pytest.raises((SessionRefused, LinkError)):
                ours.node.connect(at)
            assert ours.opened == []
            assert them.transports() == {}
    finally:
        them.close()


@pytest.mark.parametrize("at_port", [TLS_AT, QUIC_AT], ids=["tls", "quic"])
@pytest.mark.parametrize("shown", ["nothing", "a stranger's"])
@pytest.mark.parametrize("pair", THEY_DIAL, ids=str)
def test_we_refuse_their_certificate(
    reference: ReferenceProcess,
    pair: Pair,
    shown: str,
    at_port: str,
    world: World,
    stranger: World,
) -> None:
    with Ours(pair.ours, options=world.ours(mutual=True)) as ours:
        (at, *_) = ours.node.listen(at_port.format(0))
        theirs = (
            world.theirs() if shown == "nothing" else stranger.theirs(mutual=True, root=world.root)
        )
        with pytest.raises(ReferenceFailed):
            dialling(reference, pair.theirs, str(at), {**theirs, "connect/timeout_ms": 0})
        until(lambda: ours.node.refused.total(), lambda times: times >= 1)
        assert ours.opened == []


QOS_OF_LINKS = ["prio=1-7", "rel=1", "rel=0", "prio=2-6;rel=1", "prio=0-7;rel=0"]


@pytest.mark.parametrize("metadata", QOS_OF_LINKS)
@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_a_link_that_is_meant_for_some_priorities_or_one_reliability_has_lanes(
    reference: ReferenceProcess, pair: Pair, metadata: str
) -> None:
    """Both sides name it: the opener in its endpoint, the acceptor in its own."""
    endpoint = "tcp/127.0.0.1:{}?" + metadata
    with conversation(reference, pair, ours := Ours(pair.ours), endpoint=endpoint) as (
        session,
        them,
    ):
        assert session.agreement.qos
        assert session.agreement.link_qos.metadata() == f"?{metadata}"
        assert them.transports()[str(ours.zid)]["qos"]
        (link,) = [link for link in them.links() if link["zid"] == str(ours.zid)]
        assert link["src"].endswith(f"?{metadata}")
        both_send(ours, session, them, SIZES)
        assert not session.counters.receive_dropped


def qos_between(listens: Any, connects: Any, named: tuple[str, str]) -> list[tuple[bool, str, str]]:
    """Lanes, priorities and reliability of one link, as each end of it says them."""
    at = f"tcp/127.0.0.1:{free_port()}"
    on_listener, on_connector = named
    with (
        open_session(listens, "peer", listen=at + on_listener) as listener,
        open_session(connects, "client", connect=(at + on_connector,)) as connector,
    ):
        until(lambda: len(listener.info.links()), lambda found: found == 1)
        carried: list[int] = []
        key = unique("lanes")
        subscriber = listener.declare_subscriber(key, lambda sample: carried.append(1))
        publisher = connector.declare_publisher(
            key,
            congestion_control=connects.CongestionControl.BLOCK,
            priority=connects.Priority.BACKGROUND,
        )
        until(lambda: publisher.matching_status.matching)
        publisher.put(bytes(200_000))
        until(lambda: carried)
        subscriber.undeclare()
        return [
            (transport.is_qos, str(link.priorities), str(link.reliability))
            for session in (connector, listener)
            for transport, link in zip(session.info.transports(), session.info.links(), strict=True)
        ]


@pytest.mark.parametrize("connects_with", ["", "?prio=1-7", "?rel=1", "?rel=0", "?prio=1-7;rel=0"])
@pytest.mark.parametrize("listens_with", ["", "?prio=2-3", "?rel=1", "?prio=1-7;rel=0"])
def test_a_link_is_for_what_its_connector_names_whatever_the_listener_names(
    listens_with: str, connects_with: str
) -> None:
    """A listener of Rust forgets what its endpoint names, so that nothing contradicts it."""
    named = (listens_with, connects_with)
    expected = qos_between(THEIRS, THEIRS, named)
    assert all(lanes for lanes, _, _ in expected)
    for listens, connects in ((OURS, THEIRS), (THEIRS, OURS), (OURS, OURS)):
        assert qos_between(listens, connects, named) == expected
