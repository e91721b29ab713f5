"""A multicast group on the loopback interface: who hears whom."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tests.support.namespaces import need_tools
from tests.support.waiting import until_found
from zenlake.errors import InvalidLocator, LinkError
from zenlake.link import sockets
from zenlake.link.multicast import MulticastLink, join
from zenlake.link.options import LinkOptions
from zenlake.link.udp import RECEIVE_BYTES
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint

DEADLINE = 60.0
GROUP, OTHER_GROUP = "224.0.0.224", "224.0.0.225"
OPTIONS = LinkOptions()


@pytest.fixture
def port() -> int:
    """Return a port that no process on this machine has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("0.0.0.0", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def joined(stack: ExitStack, port: int) -> Callable[..., MulticastLink]:
    def make(config: str = "iface=lo", group: str = GROUP) -> MulticastLink:
        endpoint = EndPoint(f"udp/{group}:{port}#{config}")
        return stack.enter_context(closing(join(endpoint, OPTIONS)))

    return make


def own_address(link: MulticastLink) -> tuple[str, int]:
    host, _, port = link.local.address.rpartition(":")
    return host, int(port)


def test_a_multicast_link_has_its_framing_mtu_and_addresses(
    joined: Callable[..., MulticastLink], port: int
) -> None:
    link = joined()
    assert link.framing is Framing.DATAGRAM
    assert not link.reliable
    assert link.mtu == 65_487
    assert link.local.startswith("udp/127.0.0.1:")
    assert link.remote == f"udp/{GROUP}:{port}"
    assert str(link.remote) in repr(link)
    assert link.fileno() >= 0
    assert link.unicast.fileno() >= 0
    assert link.fileno() != link.unicast.fileno()


def test_a_group_hears_what_one_says_and_the_one_does_not(
    joined: Callable[..., MulticastLink],
) -> None:
    speaker, *hearers = (joined() for _ in range(3))
    assert speaker.send(b"to all") == 6
    for hearer in hearers:
        assert until_found(hearer.receive) == (b"to all", own_address(speaker))
    hearers[0].send(b"another")
    assert until_found(speaker.receive) == (
        b"another",
        own_address(hearers[0]),
    )  # its own came before
    assert speaker.receive() is None


def test_answers_come_to_the_one_who_asked(joined: Callable[..., MulticastLink]) -> None:
    asker, answerer, third = (joined() for _ in range(3))
    asker.send(b"who is there?")
    _, sender = until_found(answerer.receive)
    assert answerer.send_to(b"it is me", sender) == 8
    assert until_found(asker.receive_unicast) == (b"it is me", own_address(answerer))
    assert until_found(third.receive)[0] == b"who is there?"
    assert third.receive() is None
    assert third.receive_unicast() is None


@pytest.mark.parametrize(
    "shared",
    [[socket.SO_REUSEADDR], [socket.SO_REUSEPORT], [socket.SO_REUSEADDR, socket.SO_REUSEPORT]],
    ids=["address", "port", "both"],
)
def test_a_plain_socket_takes_part(
    joined: Callable[..., MulticastLink], stack: ExitStack, port: int, shared: list[int]
) -> None:
    """In whichever way it shares the port; the Rust implementation does it in both."""
    plain = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    plain.settimeout(DEADLINE)
    for option in shared:
        plain.setsockopt(socket.SOL_SOCKET, option, 1)
    plain.bind(("0.0.0.0", port))
    lo = socket.inet_aton("127.0.0.1")
    plain.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + lo)
    link = joined()
    link.send(b"hello, socket")
    assert plain.recvfrom(100) == (b"hello, socket", own_address(link))

    sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sender.bind(("127.0.0.1", 0))
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, lo)
    sender.sendto(b"", (GROUP, port))  # says nothing
    sender.sendto(b"hello, link", (GROUP, port))
    assert until_found(link.receive) == (b"hello, link", sender.getsockname())


def test_more_groups_are_joined_and_no_others_heard(
    joined: Callable[..., MulticastLink],
) -> None:
    both = joined(f"iface=lo;join={OTHER_GROUP}")
    one = joined()
    other = joined(group=OTHER_GROUP)
    other.send(b"in the other")
    one.send(b"in the one")
    heard = {until_found(both.receive)[0], until_found(both.receive)[0]}
    assert heard == {b"in the other", b"in the one"}
    speaker = joined()
    speaker.send(b"last")
    assert until_found(one.receive)[0] == b"last"
    assert one.receive() is None  # and nothing of the other group before it


def test_the_largest_datagram_and_one_more(joined: Callable[..., MulticastLink]) -> None:
    one, other = joined(), joined()
    data = bytes(range(256)) * 255
    assert one.send(data) == len(data)
    assert until_found(other.receive)[0] == data
    assert one.send(bytes(one.mtu)) == one.mtu
    assert until_found(other.receive)[0] == bytes(one.mtu)
    with pytest.raises(LinkError, match="65488 bytes is above 65487"):
        one.send(bytes(one.mtu + 1))


def test_ttl_and_source(joined: Callable[..., MulticastLink]) -> None:
    link = joined("iface=lo;ttl=7")
    assert link.unicast.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == 7
    named = joined("iface=127.0.0.1")
    assert named.local.startswith("udp/127.0.0.1:")
    bound = joined("bind=127.0.0.1:0")
    assert bound.local.startswith("udp/127.0.0.1:")
    bound.send(b"all the same")
    assert until_found(link.receive)[0] == b"all the same"


def receive_buffer(link: MulticastLink) -> int:
    with socket.fromfd(link.fileno(), socket.AF_INET, socket.SOCK_DGRAM) as same:
        return same.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def test_a_group_has_a_large_receive_buffer(joined: Callable[..., MulticastLink]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as largest:
        largest.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        assert receive_buffer(joined()) == largest.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    assert receive_buffer(joined("iface=lo;so_rcvbuf=10000")) <= 20_000


def test_a_peer_that_has_gone_does_not_break_the_group(
    joined: Callable[..., MulticastLink],
) -> None:
    one, other = joined(), joined()
    gone = joined()
    address = own_address(gone)
    gone.close()
    for _ in range(3):
        one.send_to(b"anybody?", address)
        assert one.receive_unicast() is None
    one.send(b"still here")
    assert until_found(other.receive)[0] == b"still here"


def test_a_closed_link_refuses_every_call(joined: Callable[..., MulticastLink]) -> None:
    link = joined()
    link.close()
    link.close()
    assert link.fileno() == link.unicast.fileno() == -1
    for act in (link.receive, link.receive_unicast, lambda: link.send(b"late")):
        with pytest.raises(LinkError, match=f"udp/{GROUP}"):
            act()


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("iface=no-such", LinkError),
        ("iface=lo;ttl=256", InvalidLocator),
        ("iface=lo;ttl=far", InvalidLocator),
        ("iface=lo;join=127.0.0.1", InvalidLocator),
        ("iface=lo;join=ff02::1", InvalidLocator),
        ("iface=lo;join=224.0.0.230|nowhere", InvalidLocator),
        ("iface=lo;join=" + "|".join(["224.0.0.230"] * 20), InvalidLocator),
        ("bind=[::1]:0", LinkError),
        ("bind=nowhere", InvalidLocator),
        ("dscp=high;iface=lo", InvalidLocator),
    ],
)
def test_a_bad_option_is_refused_by_key_and_value(
    joined: Callable[..., MulticastLink], config: str, error: type[Exception]
) -> None:
    with pytest.raises(error) as refused:
        joined(config)
    key = next(part for part in config.split(";") if part != "iface=lo").partition("=")[0]
    assert f"{key}=" in str(refused.value)


def test_one_host_is_no_group() -> None:
    with pytest.raises(LinkError, match="not a multicast group"):
        join(EndPoint("udp/127.0.0.1:7446"), OPTIONS)


SEVERAL_INTERFACES = """
set -e
ip link set lo up multicast on
ip link add unplugged type veth peer name other  # The other end stays down.
ip link set unplugged up
ip address add 10.1.0.1/24 dev unplugged
ip -6 address add fd01::1/64 dev unplugged nodad
for n in 1 2 3 4 5 6; do
    ip link add z$n type veth peer name p$n
    ip link set z$n addrgenmode none
    ip link set z$n up
    ip link set p$n up
    until ip link show z$n | grep -q 'state UP'; do sleep 0.01; done
    ip address add 10.2.$n.1/24 dev z$n
    ip -6 address add fe80::$n/64 dev z$n nodad
    ip -6 address add fd02:$n::1/64 dev z$n nodad
done
ip address del 10.2.6.1/24 dev z6
exec "$0" -c "$1"
"""
SOURCES = """
from zenlake.errors import LinkError
from zenlake.link.multicast import join
from zenlake.link.options import LinkOptions
from zenlake.wire.locator import EndPoint

groups = ("224.0.0.224:1", "[ff02::224]:1", "[ff02::224%z3]:1", "[ff02::224%z3]:1#iface=z5")
for group in groups:
    print(join(EndPoint("udp/" + group), LinkOptions()).local.rpartition(":")[0])
try:
    join(EndPoint("udp/224.0.0.224:1#iface=z6"), LinkOptions())
except LinkError as error:
    print("this interface has no address" in str(error))
"""


@pytest.mark.process
def test_which_interface_is_taken() -> None:
    """Without `iface` the first that does multicast and has a carrier, as in Rust; loopback
    last."""
    need_tools("interfaces", "unshare", "ip")
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", SEVERAL_INTERFACES, sys.executable, SOURCES],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    expected = ["udp/10.2.1.1", "udp/[fd02:1::1]", "udp/[fd02:3::1]", "udp/[fd02:5::1]", "True"]
    assert done.stdout.split() == expected, done


IN_A_NETWORK_OF_ITS_OWN = """
set -e
ip link set lo up
ip link add z0 type veth peer name z1
ip link set z0 addrgenmode none  # no other address may be ready, or not
ip link set z0 up
ip link set z1 up
ip -6 address add fd01::1/64 dev z0 nodad
exec "$0" -c "$1"
"""
TWO_MEMBERS = """
from select import select
from zenlake.link.multicast import join
from zenlake.link.options import LinkOptions
from zenlake.wire.locator import EndPoint

one, other = (join(EndPoint("udp/[ff02::224]:7446#iface=z0"), LinkOptions()) for _ in range(2))
one.send(b"six")
select([other.fileno()], [], [], 20)
data, (host, port) = other.receive()
other.send_to(b"seven", (host, port))
select([one.unicast], [], [], 20)
answer, _ = one.receive_unicast()
assert one.receive() is None
print(data, answer, one.local.partition(":")[0], other.remote)
one.close()
other.close()
"""


@pytest.mark.process
def test_ipv6() -> None:
    """In a network namespace: the loopback interface has no route for IPv6 groups."""
    need_tools("IPv6 groups", "unshare", "ip")
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", IN_A_NETWORK_OF_ITS_OWN, sys.executable, TWO_MEMBERS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["b'six'", "b'seven'", "udp/[fd01", "udp/[ff02::224]:7446"], done


def test_a_system_without_names_of_interfaces_takes_addresses(
    joined: Callable[..., MulticastLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "HAS_INTERFACE_CALLS", False)
    with pytest.raises(LinkError, match=r"iface=lo: .* names on Linux only: give an address"):
        joined()
    first, second = joined("iface=127.0.0.1"), joined("iface=127.0.0.1")
    first.send(b"hello")
    assert until_found(second.receive)[0] == b"hello"


def test_addresses_that_need_a_zone_are_not_taken_for_those_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = ("fe80::1%eth0", "2001:db8::1")
    found = [(socket.AF_INET6, 0, 0, "", (host, 0, 0, 0)) for host in hosts]
    monkeypatch.setattr(sockets, "HAS_INTERFACE_CALLS", False)
    monkeypatch.setattr(sockets, "FAR_AWAY", ())
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    named = [interface.host for interface in sockets.interfaces()]
    assert named == ["2001:db8::1", "127.0.0.1", *(["::1"] if socket.has_ipv6 else [])]


NAMELESS_HOST = """
import socket
from zenlake.link import sockets
sockets.HAS_INTERFACE_CALLS = False
socket.getaddrinfo = lambda *_: [(socket.AF_INET, 0, 0, "", ("127.0.0.1", 0))]
print(*[(i.host, i.multicast) for i in sockets.interfaces() if ":" not in i.host])
"""


@pytest.mark.process
def test_the_host_has_an_address_though_its_name_is_that_of_loopback() -> None:
    need_tools("network namespaces", "ip", "unshare")
    network = "ip link set lo up; ip addr add 10.77.0.1 dev lo; ip route add default dev lo src "
    command = f'{network} 10.77.0.1; exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", command, sys.executable, NAMELESS_HOST],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "('10.77.0.1', True) ('127.0.0.1', False)\n", done
