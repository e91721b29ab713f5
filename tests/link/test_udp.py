"""UDP links: many peers at one port, early datagrams, dropped datagrams, refusals."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.link_contract import KINDS, Stage
from zenlake import link as links
from zenlake.errors import LinkError
from zenlake.link.base import Listener, TransportLink
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import split_host
from zenlake.link.udp import EARLY_DATAGRAMS, MTU, RECEIVE_BYTES, UdpLink, UdpListener, _Arrival
from zenlake.wire.locator import EndPoint

PEERS = 200


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(KINDS["udp"], tmp_path)
    yield stage
    stage.close()


@pytest.fixture
def outside() -> Iterator[ExitStack]:
    """Plain sockets of peers."""
    with ExitStack() as stack:
        yield stack


def peer_of(listener: Listener, outside: ExitStack, host: str = "") -> socket.socket:
    at, port = split_host(EndPoint(listener.locators[0]), listener.locators[0].address)
    sock = outside.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sock.settimeout(60)
    sock.connect((host or at, port))
    return sock


def listen(stage: Stage, endpoint: str = "udp/127.0.0.1:0") -> UdpListener:
    listener = stage.listen(EndPoint(endpoint))
    assert isinstance(listener, UdpListener)
    return listener


def accept(stage: Stage, listener: UdpListener) -> UdpLink:
    link = stage.accept(listener)
    assert isinstance(link, UdpLink)
    return link


def all_of(stage: Stage, link: TransportLink, count: int) -> list[bytes]:
    return [stage.until(link.receive) for _ in range(count)]


def test_the_mtu_is_what_other_nodes_propose() -> None:
    assert MTU == 65_487


def test_what_came_before_accept_comes_first_and_in_order(stage: Stage, outside: ExitStack) -> None:
    listener = listen(stage)
    one, other = peer_of(listener, outside), peer_of(listener, outside)
    for number in range(5):
        one.send(b"one %d" % number)
        other.send(b"other %d" % number)
    first = accept(stage, listener)
    second = accept(stage, listener)
    one.send(b"one 5")
    other.send(b"other 5")
    assert [first.more, second.more] == [True, True]
    assert all_of(stage, first, 6) == [b"one %d" % n for n in range(6)]
    assert all_of(stage, second, 6) == [b"other %d" % n for n in range(6)]
    assert [first.more, second.more] == [False, False]
    assert listener.accept() is None


def test_each_peer_has_its_own_link(stage: Stage, outside: ExitStack) -> None:
    listener = listen(stage)
    peers = [peer_of(listener, outside) for _ in range(PEERS)]
    ports = {peer.getsockname()[1]: peer for peer in peers}
    accepted = []
    for peer in peers:
        peer.send(b"hello")
        accepted.append(accept(stage, listener))
    assert len({link.remote for link in accepted}) == PEERS
    for link in accepted:
        assert stage.until(link.receive) == b"hello"
        port = int(link.remote.rpartition(":")[2])
        link.send(b"%d" % port)
        assert ports[port].recv(100) == b"%d" % port
        ports[port].send(b"again")
        assert stage.until(link.receive) == b"again"


def test_a_flood_of_sources_leaves_nothing_behind(stage: Stage, outside: ExitStack) -> None:
    listener = listen(stage)
    for _ in range(PEERS):
        peer_of(listener, outside).send(b"hello")
        listener_link = stage.until(listener.accept)
        listener_link.close()
    assert len(listener._links) == 0
    assert len(listener._pending) == 0
    assert listener.accept() is None


def test_a_link_that_nobody_keeps_is_not_kept_by_the_listener(
    stage: Stage, outside: ExitStack
) -> None:
    listener = listen(stage)
    peer_of(listener, outside).send(b"hello")
    link = stage.until(listener.accept)
    assert isinstance(link, UdpLink)
    link._socket.close()  # without a word to the listener
    del link
    assert len(listener._links) == 0


def test_after_close_the_same_peer_is_new_again(stage: Stage, outside: ExitStack) -> None:
    listener = listen(stage)
    peer = peer_of(listener, outside)
    for number in range(3):
        peer.send(b"%d" % number)
        link = accept(stage, listener)
        assert stage.until(link.receive) == b"%d" % number
        link.close()


def test_too_much_before_accept_is_dropped_and_counted(stage: Stage, outside: ExitStack) -> None:
    listener = listen(stage)
    peer = peer_of(listener, outside)
    for number in range(EARLY_DATAGRAMS + 36):
        peer.send(b"%d" % number)
    link = accept(stage, listener)
    assert link.dropped == 36
    assert all_of(stage, link, EARLY_DATAGRAMS) == [b"%d" % n for n in range(EARLY_DATAGRAMS)]
    assert link.receive() is None


def test_what_the_listener_still_gets_goes_to_the_link(stage: Stage, outside: ExitStack) -> None:
    listener = listen(stage)
    peer = peer_of(listener, outside)
    peer.send(b"first")
    link = accept(stage, listener)
    assert stage.until(link.receive) == b"first"
    listener._pending.append(_Arrival((0, 0), b"late", peer.getsockname(), listener._bound))
    assert listener.accept() is None
    assert link.more
    assert link.receive() == b"late"


def test_datagrams_keep_their_order_while_another_peer_gets_its_socket(
    stage: Stage, outside: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket gets datagrams of all peers between bind() and connect()."""
    listener = listen(stage)
    newcomer, other = peer_of(listener, outside), peer_of(listener, outside)

    class Watched(socket.socket):
        """Socket of the newcomer, with a datagram of the other peer at every step."""

        def bind(self, address: Any, /) -> None:
            other.send(b"1")
            super().bind(address)
            other.send(b"2")

        def connect(self, address: Any, /) -> None:
            super().connect(address)
            other.send(b"3")

    newcomer.send(b"hello")
    other.send(b"0")
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", Watched)
        assert stage.until(accept(stage, listener).receive) == b"hello"
    assert all_of(stage, accept(stage, listener), 4) == [b"0", b"1", b"2", b"3"]


def test_a_stranger_is_not_heard_on_a_link(outside: ExitStack) -> None:
    """A socket gets anybody's datagrams until it is connected."""
    local, peer, stranger = (
        outside.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(3)
    )
    for sock in (local, peer, stranger):
        sock.bind(("127.0.0.1", 0))
    stranger.sendto(b"not for you", local.getsockname())
    local.connect(peer.getsockname())
    local.setblocking(False)
    peer.sendto(b"for you", local.getsockname())
    link = UdpLink(local, "udp", peer.getsockname())
    got = None
    while got is None:
        got = link.receive()
    assert got == b"for you"
    assert link.receive() is None
    link.close()


def test_empty_datagrams_are_nobody_and_nothing(stage: Stage, outside: ExitStack) -> None:
    listener = listen(stage)
    peer = peer_of(listener, outside)
    peer.send(b"")
    peer.send(b"hello")
    link = accept(stage, listener)
    assert stage.until(link.receive) == b"hello"
    peer.send(b"")
    peer.send(b"on")
    assert stage.until(link.receive) == b"on"
    peer_of(listener, outside).send(b"")
    for _ in range(5):
        assert listener.accept() is None
        stage.tick()


@pytest.mark.parametrize("endpoint", ["udp/0.0.0.0:0", "udp/[::]:0"])
def test_a_wildcard_answers_from_the_address_it_was_called_at(
    stage: Stage, outside: ExitStack, endpoint: str
) -> None:
    listener = listen(stage, endpoint)
    assert any(locator.startswith("udp/127.0.0.1:") for locator in listener.locators)
    peer = peer_of(listener, outside, "127.0.0.2")
    peer.send(b"hello")
    link = accept(stage, listener)
    assert link.local.startswith("udp/127.0.0.2:")
    assert link.address == peer.getsockname()[0]
    link.send(b"welcome")  # a connected socket takes it from no other address
    assert peer.recv(100) == b"welcome"


def test_a_dual_stack_wildcard_hears_ipv6(stage: Stage) -> None:
    listener = listen(stage, "udp/[::]:0")
    (locator,) = (each for each in listener.locators if each.startswith("udp/[::1]:"))
    connected = stage.connect(locator)
    connected.send(b"hello")
    link = accept(stage, listener)
    assert link.local == connected.remote == locator
    assert link.address == "::1"
    assert stage.carry(link, connected, b"welcome") == b"welcome"


def test_a_peer_that_has_gone_refuses(stage: Stage, outside: ExitStack) -> None:
    listener = listen(stage)
    peer = peer_of(listener, outside)
    peer.send(b"hello")
    link = accept(stage, listener)
    assert stage.until(link.receive) == b"hello"
    peer.close()

    def talk() -> None:
        link.send(b"still there?")
        link.receive()

    error = stage.error_of(talk)
    assert error.errno == errno.ECONNREFUSED
    assert str(link.remote) in str(error)


def test_without_descriptors_a_peer_is_dropped_and_counted(
    stage: Stage, outside: ExitStack
) -> None:
    listener = listen(stage)
    peer = peer_of(listener, outside)
    peer.send(b"in vain")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert stage.until(lambda: listener.accept() or listener.dropped or None) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    peer.send(b"once more")
    assert stage.until(accept(stage, listener).receive) == b"once more"


def test_options_of_the_listener_are_those_of_its_links(stage: Stage, outside: ExitStack) -> None:
    listener = listen(stage, "udp/127.0.0.1:0#dscp=40;so_rcvbuf=50000;iface=lo")
    peer_of(listener, outside).send(b"hello")
    link = accept(stage, listener)
    with socket.socket(fileno=os.dup(link.fileno())) as sock:
        assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 40
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 100_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)[:2] == b"lo"


def receive_buffer(fileno: int) -> int:
    with socket.fromfd(fileno, socket.AF_INET, socket.SOCK_DGRAM) as same:
        return same.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


@pytest.mark.parametrize("own", ["", "#so_rcvbuf=10000"])
def test_both_ends_have_large_receive_buffers_unless_their_endpoints_say_otherwise(
    stage: Stage, own: str
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as largest:
        largest.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        expected = receive_buffer(largest.fileno())
    listener = listen(stage, f"udp/127.0.0.1:0{own}")
    link = stage.connect(EndPoint(f"{listener.locators[0]}{own}"))
    link.send(b"first")
    sizes = [receive_buffer(end.fileno()) for end in (listener, link, accept(stage, listener))]
    if own:
        assert max(sizes) <= 20_000
    else:
        assert sizes == [expected] * 3


@pytest.mark.parametrize("spelling", ["1", "01", "+1"])
def test_reliable_udp_is_refused(stage: Stage, spelling: str) -> None:
    where = EndPoint(f"udp/127.0.0.1:7447?rel={spelling}")
    for act in (
        lambda: links.resolve(where),
        lambda: links.listen(where, LinkOptions()),
    ):
        with pytest.raises(LinkError, match="QUIC"):
            act()
    assert links.resolve(EndPoint("udp/127.0.0.1:7447?rel=0"))


def test_the_port_of_a_listener_stays_its_own_while_it_has_links(
    stage: Stage, outside: ExitStack
) -> None:
    listener = listen(stage)
    peer_of(listener, outside).send(b"hello")
    accept(stage, listener)
    with pytest.raises(LinkError, match="Address already in use"):
        stage.listen(EndPoint(listener.locators[0]))


def test_nothing_is_lost_while_peers_come_in(stage: Stage, outside: ExitStack) -> None:
    """Datagrams arrive all the time while each new peer gets its socket."""
    listener = listen(stage)
    for _ in range(10):
        let_peers_in(stage, listener, [peer_of(listener, outside) for _ in range(20)])


def let_peers_in(stage: Stage, listener: UdpListener, peers: list[socket.socket]) -> None:
    batches = [b"%d" % number for number in range(5)]
    accepted: list[UdpLink] = []
    got: dict[str, list[bytes]] = {}

    def talk() -> None:
        for batch in batches:
            for peer in peers:
                peer.send(batch)

    def hear() -> bool | None:
        while (link := listener.accept()) is not None:
            accepted.append(stage.keep(link))
        for link in accepted:
            while data := link.receive():
                got.setdefault(link.remote, []).append(data)
        return True if sum(map(len, got.values())) >= len(peers) * len(batches) else None

    with ThreadPoolExecutor(1) as pool:
        talking = pool.submit(talk)
        stage.until(hear)
        talking.result()
    assert got == {f"udp/127.0.0.1:{peer.getsockname()[1]}": batches for peer in peers}
    for link in accepted:
        link.close()
