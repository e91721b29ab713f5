"""Links over vsock: addresses, the bytes of a link, and what this system lets a listener do."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.waiting import until_found
from zenlake import link as links
from zenlake.errors import InvalidLocator, LinkError
from zenlake.link.base import Listener, Progress
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address
from zenlake.link.vsock import ANY, VsockLink, resolve
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint

ADDRESSES = [
    ("2:7447", (2, 7447)),
    ("-1:-1", (ANY, ANY)),
    ("VMADDR_CID_ANY:VMADDR_PORT_ANY", (ANY, ANY)),
    ("vmaddr_cid_hypervisor:1", (0, 1)),
    ("VMADDR_CID_LOCAL:0", (1, 0)),
    ("VMADDR_CID_HOST:4294967295", (2, ANY)),
]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(("text", "expected"), ADDRESSES)
def test_addresses_are_those_of_rust(text: str, expected: tuple[int, int]) -> None:
    assert resolve(EndPoint(f"vsock/{text}")) == [Address(socket.AF_VSOCK, expected)]


@pytest.mark.parametrize("text", ["2", "two:1", "2:seven", "2:-2", "4294967296:1", "1:2:3", ":1"])
def test_a_wrong_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidLocator, match="vsock/"):
        resolve(EndPoint(f"vsock/{text}"))


def test_a_system_without_vsock_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_VSOCK")
    endpoint = EndPoint("vsock/2:7447")
    for act in (links.resolve, lambda where: links.listen(where, LinkOptions())):
        with pytest.raises(LinkError, match="only Linux has"):
            act(endpoint)


def test_a_link_carries_bytes_and_names_both_ends(opened: ExitStack) -> None:
    """Over a pair of Unix sockets, which stream as vsock sockets do."""
    one, two = socket.socketpair()
    for sock in (one, two):
        sock.setblocking(False)
    links_ = [VsockLink(one, (3, 9), (2, 7447)), VsockLink(two, (2, 7447), (3, 9))]
    for link in links_:
        opened.callback(link.close)
        assert (link.protocol, link.address, link.mtu) == ("vsock", "vsock", 65_535)
        assert link.framing is Framing.STREAM
        assert link.handshake() is Progress.DONE
    assert links_[0].remote == links_[1].local == "vsock/2:7447"
    assert links_[0].local == links_[1].remote == "vsock/3:9"
    assert links_[0].send(b"to the host") == 11
    assert until_found(links_[1].receive) == b"to the host"
    links_[0].close()
    assert until_found(links_[1].receive) == b""


REFUSALS = [
    (errno.ECONNRESET, "no node listens there"),
    (errno.ENODEV, "no way to that CID"),
    (errno.ETIMEDOUT, "Connection timed out"),
]


@pytest.mark.parametrize(("code", "why"), REFUSALS)
def test_a_refused_connection_has_a_reason(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch, code: int, why: str
) -> None:
    """vsock(7) has numbers of its own for a port without a listener, and for a foreign CID."""
    endpoint = EndPoint("vsock/1:7447")
    address = Address(socket.AF_INET, ("127.0.0.1", 9))  # Stands for one of vsock.
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: code)
    with pytest.raises(LinkError, match=f"vsock/1:7447: connect: .*{why}"):
        links.connect(endpoint, address, LinkOptions())
    here, there = socket.socketpair()
    opened.callback(there.close)
    link = VsockLink(here, (1, 9), (1, 7447), endpoint)
    opened.callback(link.close)
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: code)
    with pytest.raises(LinkError, match=f"vsock/1:7447: connect: .*{why}"):
        link.handshake()


def test_a_listener_of_this_machine_links_or_says_why_not(opened: ExitStack) -> None:
    """Links to itself need the kernel's vsock_loopback; without it the refusal is clear."""
    endpoint = EndPoint("vsock/VMADDR_CID_LOCAL:-1")
    try:
        listener = links.listen(endpoint, LinkOptions())
    except LinkError as refused:
        assert str(refused).startswith(f"{endpoint}: ")
        return
    opened.callback(listener.close)
    assert isinstance(listener, Listener)
    where = listener.locators[0]
    connected = links.connect(where, links.resolve(where)[0], LinkOptions())
    opened.callback(connected.close)
    accepted = until_found(listener.accept)
    opened.callback(accepted.close)
    until_found(lambda: connected.handshake() is Progress.DONE or None)
    assert connected.send(b"looped") == 6
    assert until_found(accepted.receive) == b"looped"
