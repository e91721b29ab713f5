"""udp/GROUP:PORT: datagrams to and from all members of a multicast group.

Knows the socket that receives from the group and the socket that sends, which receives the answers.
Not a link of base.py: there is no single peer, and every datagram comes with its sender's address.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import threading
from typing import Any

from zenlake.errors import InvalidLocator, LinkError
from zenlake.link import sockets
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address, failed, host_of, sockaddr_locator
from zenlake.link.udp import (
    MTU,
    READ_DATAGRAM,
    SEND_LATER,
    SKIPPED_AT_ONCE,
    enlarge_receive_buffer,
)
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint, Locator

MAX_TTL = 255
MAX_GROUPS = 20  # Groups that Linux lets one socket join (igmp_max_memberships).

# Options of Linux, without which a bound socket receives every group that any process of this
# machine joined.
IP_MULTICAST_ALL, IPV6_MULTICAST_ALL = 49, 29
MULTICAST_ALL: dict[int, tuple[int, int]] = {
    socket.AF_INET: (socket.IPPROTO_IP, IP_MULTICAST_ALL),
    socket.AF_INET6: (socket.IPPROTO_IPV6, IPV6_MULTICAST_ALL),
}
TTL: dict[int, tuple[int, int]] = {
    socket.AF_INET: (socket.IPPROTO_IP, socket.IP_MULTICAST_TTL),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS),
}
WILDCARD: dict[int, str] = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}

Received = tuple[bytes, tuple[str, int]]


class NoMulticast(LinkError):
    """Refusal of a group for want of an interface that does multicast; none was named."""


class MulticastLink:
    """Membership of a group. Watch the link for the group, and `unicast` for answers."""

    framing = Framing.DATAGRAM
    reliable = False
    unsent = False
    "Whether part of a datagram waits inside the link: it leaves whole, or not at all."
    mtu = MTU
    "Largest datagram; the multicast transport uses 8192 bytes of it."

    def __init__(
        self,
        endpoint: EndPoint,
        group: Any,
        index: int,
        hearing: socket.socket,
        sending: socket.socket,
    ) -> None:
        self.protocol = endpoint.protocol
        self.name: str = endpoint
        self.local = sockaddr_locator(self.protocol, sending.getsockname())
        self.remote = sockaddr_locator(self.protocol, group)
        self._group, self._index, self._hearing = group, index, hearing
        self.unicast = sending
        "Socket that sends, and receives the datagrams to this node alone."
        host, self._port = sending.getsockname()[:2]
        self._source = host
        self._hosts = {host}
        if sockets.is_wildcard(host):
            self._hosts = {i.host for i in sockets.interfaces()}
        self._send_lock, self._receive_lock = threading.Lock(), threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor of the group's socket; -1 once closed."""
        return self._hearing.fileno()

    def receive(self) -> Received | None:
        """Return the next datagram of another node to the group, and its sender; None: none."""
        return self._receive(self._hearing)

    def receive_unicast(self) -> Received | None:
        """Return the next datagram to this node alone, and its sender; None: none now."""
        return self._receive(self.unicast)

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send a datagram to the group; return its size, or 0: retry when writable."""
        return self._send(data, self._group)

    def send_to(self, data: bytes | bytearray | memoryview, address: tuple[str, int]) -> int:
        """Send a datagram to the sender of a received one; return its size, or 0."""
        return self._send(data, address)

    @property
    def is_usable(self) -> bool:
        """Whether the interface exists on which the group was joined, and has the address to send
        from unless it is down. Another interface of its name does not replace it."""
        if not self._index:
            return True
        try:
            name = socket.if_indextoname(self._index)
        except OSError:
            return False
        host, family = self._source.partition("%")[0], sockets.family_of(self._source)
        here = {i.host for i in sockets.interfaces(name) if sockets.family_of(i.host) == family}
        return not here or host in here

    def locator_of(self, address: tuple[str, int]) -> Locator:
        """Return the locator of the sender of a received datagram."""
        return sockaddr_locator(self.protocol, address)

    def close(self) -> None:
        """Leave the group and close both sockets. May be called again, from any thread."""
        with self._send_lock, self._receive_lock:
            self._hearing.close()
            self.unicast.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.local} -> {self.remote}>"

    def _receive(self, sock: socket.socket) -> Received | None:
        with self._receive_lock:
            try:
                for _ in range(SKIPPED_AT_ONCE):
                    data, sender = sock.recvfrom(READ_DATAGRAM)
                    own = sender[1] == self._port and sender[0] in self._hosts
                    if data and not own:
                        return data, (host_of(sender), sender[1])
            except (BlockingIOError, ConnectionRefusedError):
                return None  # Refused: a peer that got an answer is gone; the group works.
            except OSError as error:
                raise failed(self.name, "receive", error) from None
        return None

    def _send(self, data: bytes | bytearray | memoryview, to: Any) -> int:
        if len(data) > self.mtu:
            raise LinkError(f"{self.name}: a datagram of {len(data)} bytes is above {self.mtu}")
        with self._send_lock:
            try:
                return self.unicast.sendto(data, to)
            except OSError as error:
                if error.errno in SEND_LATER:
                    return 0
                raise failed(self.name, "send", error) from None


def is_group(endpoint: EndPoint) -> bool:
    """Return whether the endpoint names a multicast group. May wait for DNS."""
    if endpoint.protocol != "udp":
        return False
    found = sockets.look_up(endpoint, endpoint.address, socket.SOCK_DGRAM)
    return any(sockets.is_multicast(address) for address in found)


def join(endpoint: EndPoint, options: LinkOptions) -> MulticastLink:
    """Join the endpoint's group, and the groups of `join`, on the interface that `iface` names.

    `iface` is a name or an address; without it, the first interface that does multicast.
    NoMulticast: there is none.
    """
    found = sockets.look_up(endpoint, endpoint.address, socket.SOCK_DGRAM)
    groups = [address for address in found if sockets.is_multicast(address)]
    if not groups:
        raise LinkError(f"{endpoint}: is not a multicast group: use such as udp/224.0.0.224:7446")
    group = groups[0]
    source = _source(endpoint, group)
    index = _index_of(source.sockaddr)
    hearing = _hearing_socket(endpoint, group, source, index)
    try:
        sending = _sending_socket(endpoint, source, index)
    except BaseException:
        hearing.close()
        raise
    port = hearing.getsockname()[1]
    return MulticastLink(endpoint, (group.sockaddr[0], port), index, hearing, sending)


def _source(endpoint: EndPoint, group: Address) -> Address:
    """Return the address to send from: of `bind`, else of `iface` or the group's own zone, else of
    any interface."""
    config, family = endpoint.config, group.family
    port = 0
    if "bind" in config:
        bound = _numeric(endpoint, config["bind"], "bind")
        if bound.family != family:
            raise LinkError(f"{endpoint}: bind={config['bind']} is not of the group's IP version")
        if not sockets.is_wildcard(bound.sockaddr[0]):
            return bound
        port = bound.sockaddr[1]
    iface = config.get("iface", _zone_of(group))
    host = _interface_host(endpoint, iface, family) or WILDCARD[family]
    return _numeric(endpoint, f"[{host}]:{port}", "iface")


def _numeric(endpoint: EndPoint, text: str, key: str) -> Address:
    flags = socket.AI_NUMERICHOST
    return sockets.look_up(endpoint, text, socket.SOCK_DGRAM, flags=flags, key=key)[0]


def _zone_of(group: Address) -> str | None:
    """Return the interface that the group's address names, as ff02::224%eth0 does."""
    index = group.sockaddr[3] if group.family == socket.AF_INET6 else 0
    return socket.if_indextoname(index) if index else None


def _interface_host(endpoint: EndPoint, iface: str | None, family: int) -> str | None:
    usable = [i for i in sockets.interfaces() if sockets.family_of(i.host) == family]
    if iface is None:
        # Loopback last: for a host without a network, if it was told to do multicast.
        capable = sorted((i for i in usable if i.multicast), key=lambda i: i.is_loopback)
        chosen = next(iter(capable), None)
    else:
        chosen = next((i for i in usable if iface in (i.name, i.host)), None)
        if chosen is None:
            why = "no interface has this name or address"
            if not sockets.HAS_INTERFACE_CALLS:
                why = "interfaces have names on Linux only: give an address of this host"
            elif iface in {i.name for i in sockets.interfaces()}:
                why = "this interface has no address of the group's IP version"
            raise LinkError(f"{endpoint}: iface={iface}: {why}")
    if chosen is None:
        return None
    return f"{chosen.host}%{chosen.name}" if sockets.is_zoned(chosen.host) else chosen.host


def _index_of(sockaddr: Any) -> int:
    host = sockaddr[0].partition("%")[0]
    name = next((i.name for i in sockets.interfaces() if i.host == host), None)
    return socket.if_nametoindex(name) if name else 0


def _hearing_socket(
    endpoint: EndPoint, group: Address, source: Address, index: int
) -> socket.socket:
    sock = sockets.new_socket(endpoint, group.family, socket.SOCK_DGRAM)
    try:
        # Both options, as Rust sets them: else a second node of this machine cannot bind the port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if sockets.IS_LINUX:
            sock.setsockopt(*MULTICAST_ALL[group.family], 0)
        if group.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        enlarge_receive_buffer(sock, endpoint)
        sock.bind((WILDCARD[group.family], group.sockaddr[1]))
        for host in [group.sockaddr[0], *_more_groups(endpoint, group.family)]:
            _join_group(sock, host, source.sockaddr[0], index)
    except OSError as error:
        sock.close()
        if error.errno == errno.ENODEV and not {"iface", "bind"} & endpoint.config.keys():
            raise NoMulticast(
                f"{endpoint}: join the group: no interface of this host does multicast: bring one "
                "up, or name the interface to use"
            ) from None
        raise failed(endpoint, "join the group", error) from None
    except InvalidLocator:
        sock.close()
        raise
    return sock


def _more_groups(endpoint: EndPoint, family: int) -> list[str]:
    text = endpoint.config.get("join")
    if text is None:
        return []
    hosts = text.split("|")
    if len(hosts) >= MAX_GROUPS:
        raise InvalidLocator(f"{endpoint}: join={text} has more than {MAX_GROUPS - 1} groups")
    for host in hosts:
        try:
            good = ipaddress.ip_address(host).is_multicast and sockets.family_of(host) == family
        except ValueError:
            good = False
        if not good:
            raise InvalidLocator(
                f"{endpoint}: join={text}: {host!r} is not a group of its IP version"
            )
    return hosts


def _join_group(sock: socket.socket, group: str, source: str, index: int) -> None:
    packed = socket.inet_pton(sock.family, group.partition("%")[0])
    if sock.family == socket.AF_INET:
        membership = packed + socket.inet_aton(source)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    else:
        membership = packed + struct.pack("i", index)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, membership)


def _sending_socket(endpoint: EndPoint, source: Address, index: int) -> socket.socket:
    ttl = endpoint.config.get("ttl")
    hops = None if ttl is None else sockets.parse_size(endpoint, "ttl", ttl, MAX_TTL)
    sock = sockets.new_socket(endpoint, source.family, socket.SOCK_DGRAM)
    try:
        if source.family == socket.AF_INET:
            interface = socket.inet_aton(source.sockaddr[0])
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        if hops is not None:
            sock.setsockopt(*TTL[source.family], hops)
        sock.bind(source.sockaddr)
    except OSError as error:
        sock.close()
        raise failed(endpoint, f"send from {source.sockaddr[0]}", error) from None
    return sock
