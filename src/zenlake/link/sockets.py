"""Sockets: the common part of all socket links, and the stream link itself.

Knows addresses, socket options, the keys after an endpoint's '#' and errors with advice. Does not
know batches.
"""

from __future__ import annotations

import array
import errno
import ipaddress
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

try:
    import fcntl
except ImportError:  # Not a POSIX system.
    HAS_IOCTL = False
else:
    HAS_IOCTL = True

from zenlake.errors import InvalidLocator, LinkError
from zenlake.link.base import READ_BYTES, Listener, Progress, TransportLink
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint, Locator

BACKLOG = 65_535  # Connections that may wait for accept(); the kernel lowers it to somaxconn.
MAX_INTERFACE_ADDRESSES = 1024
MAX_PORT = 0xFFFF
MAX_BUFFER_BYTES = 2**31 - 1  # The kernel keeps buffer sizes in an int.
MAX_DSCP = 0xFF  # The whole byte: TOS, or the traffic class of IPv6.

IS_LINUX: bool = sys.platform.startswith("linux")
IS_WINDOWS: bool = os.name == "nt"
AF_UNIX: int = getattr(socket, "AF_UNIX", -1)  # -1: a system without Unix sockets.

HAS_INTERFACE_CALLS = IS_LINUX and HAS_IOCTL  # The numbers and tables below are Linux's.
SIOCGIFCONF, SIOCGIFFLAGS = 0x8912, 0x8913
IFREQ = struct.Struct("16s H 2x 4s 16x")  # Name, then a sockaddr_in: family, port, address.
IFREQ_FLAGS = struct.Struct("16s H 22x")
IFF_UP, IFF_RUNNING, IFF_MULTICAST = 0x1, 0x40, 0x1000
MULTICAST_FLAGS = IFF_RUNNING | IFF_MULTICAST
FAR_AWAY = "192.0.2.1", "2001:db8::1"  # Addresses that no host has (RFC 5737, RFC 3849).
INET6_TABLE = Path("/proc/net/if_inet6")
IFA_F_UNUSABLE = 0x40 | 0x08  # Tentative or duplicate addresses, which cannot be bound.

# Errors that break a listening socket; any other concerns one peer, or is temporary.
LISTENER_IS_BROKEN = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP}
CONNECT_GOES_ON = {0, errno.EINPROGRESS, getattr(errno, "WSAEWOULDBLOCK", 0)}  # The last: Windows.
ADVICE = {
    errno.EADDRINUSE: "another node has it: stop that one, or listen elsewhere",
    errno.EADDRNOTAVAIL: "no interface of this machine has this address",
    errno.EAGAIN: "too many connections wait there: try again later",
    errno.EBADF: "it is closed on this side",
    errno.ECONNREFUSED: "no node listens there: start the other node, or correct the address",
    errno.EMSGSIZE: "the datagram is too large for the path to the peer: use smaller batches",
    errno.ENODEV: "no interface has this name",
}
NO_FILE_ADVICE = {
    True: "no node listens there: start the other node, or correct the path",
    False: "a folder of the path is missing: create it, or correct the path",
}
"Advice for a path that does not exist, by whether this node connects to it."


class Address(NamedTuple):
    """Address family and socket address, as resolve() returns them."""

    family: int
    sockaddr: Any


class Interface(NamedTuple):
    """One address of one network interface that is up."""

    name: str
    host: str
    multicast: bool
    "Whether it does multicast and has a carrier."

    @property
    def is_loopback(self) -> bool:
        return _ip(self.host).is_loopback


def failed(name: str, what: str, error: OSError) -> LinkError:
    """Return `error` as a LinkError with the endpoint, the operation and advice."""
    cause = error.strerror or str(error)
    advice = ADVICE.get(error.errno or 0)
    if error.errno == errno.ENOENT:
        advice = NO_FILE_ADVICE[what == "connect"]
    broken = LinkError(f"{name}: {what}: {cause}" + (f" ({advice})" if advice else ""))
    broken.errno = error.errno
    return broken


# --- addresses ------------------------------------------------------------------------------


def split_host(endpoint: EndPoint, text: str, key: str = "address") -> tuple[str, int]:
    """Return the host and the port of `host:port` or `[ipv6]:port`."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidLocator(f"{endpoint}: {key} {text!r}: write an IPv6 address as [address]:port")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > MAX_PORT:
        raise InvalidLocator(f"{endpoint}: {key} {text!r}: write host:port, port 0 to {MAX_PORT}")
    return host, int(port)


def look_up(
    endpoint: EndPoint, text: str, kind: int, *, flags: int = 0, key: str = "address"
) -> list[Address]:
    """Return every address of `text`; waits for DNS unless `flags` say it is numeric."""
    host, port = split_host(endpoint, text, key)
    try:
        found = socket.getaddrinfo(host, port, type=kind, flags=flags)
    except (OSError, UnicodeError) as error:
        raise LinkError(
            f"{endpoint}: {key} {text!r} is not the address of a host: {error}"
        ) from None
    return [Address(family, sockaddr) for family, _, _, _, sockaddr in found]


def resolve(endpoint: EndPoint, kind: int = socket.SOCK_STREAM) -> list[Address]:
    """Return the addresses of the endpoint's host without multicast groups; may wait for DNS."""
    found = [a for a in look_up(endpoint, endpoint.address, kind) if not is_multicast(a)]
    if not found:
        raise LinkError(
            f"{endpoint}: is a multicast group, and this needs one peer's address: "
            f"put udp/{endpoint.address} in listen/endpoints to join it"
        )
    return found


def is_multicast(address: Address) -> bool:
    return _ip(address.sockaddr[0]).is_multicast


def names_group(address: str) -> bool:
    """Return whether `HOST:PORT` is a multicast group by its number; a name is not looked up."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return _ip(host).is_multicast
    except ValueError:
        return False


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(host.partition("%")[0])


def plain_host(host: str) -> str:
    """Return the host; an IPv4 address mapped into IPv6 as IPv4."""
    return host.removeprefix("::ffff:") if "." in host else host


def host_of(sockaddr: Any) -> str:
    """Return the host of a socket address, with the zone that a link-local address needs."""
    host = plain_host(sockaddr[0])
    zoned = len(sockaddr) == 4 and sockaddr[3] and "%" not in host
    return f"{host}%{sockaddr[3]}" if zoned else host


def locator(protocol: str, host: str, port: int, metadata: str = "") -> Locator:
    """
    >>> locator("tcp", "::1", 7447)
    Locator('tcp/[::1]:7447')
    """
    plain = plain_host(host)
    bracketed = f"[{plain}]" if ":" in plain else plain
    return Locator(f"{protocol}/{bracketed}:{port}{metadata}")


def sockaddr_locator(protocol: str, sockaddr: Any) -> Locator:
    return locator(protocol, host_of(sockaddr), sockaddr[1])


def listener_locators(endpoint: EndPoint, sock: socket.socket) -> tuple[Locator, ...]:
    """Return the locators of a bound socket: for a wildcard, each address of its interfaces.

    Link-local addresses of IPv6 are left out: they need a zone, which differs on each machine.
    """
    name = sock.getsockname()
    host, port = host_of(name), name[1]
    hosts = [host]
    if is_wildcard(host):
        families = _families(sock)
        hosts = [
            i.host
            for i in interfaces(endpoint.config.get("iface"))
            if family_of(i.host) in families and not is_zoned(i.host)
        ]
    metadata = "".join(endpoint.locator.partition("?")[1:])
    return tuple(locator(endpoint.protocol, host, port, metadata) for host in hosts)


def _families(sock: socket.socket) -> set[int]:
    """Return the address families in which a bound socket is reached."""
    if sock.family == socket.AF_INET:
        return {socket.AF_INET}
    only_6 = sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    return {socket.AF_INET6} if only_6 else {socket.AF_INET6, socket.AF_INET}


def is_wildcard(host: str) -> bool:
    return _ip(host).is_unspecified


def is_zoned(host: str) -> bool:
    """Return whether an address needs a zone: it is link-local in IPv6."""
    return ":" in host and _ip(host).is_link_local


def family_of(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def interfaces(name: str | None = None) -> list[Interface]:
    """Return the addresses of every interface that is up, or of the interface `name`: those of
    IPv4 first, then by the interface's index, as the system lists interfaces.

    On systems other than Linux they are those on the way to other networks, of the host's name and
    of loopback, without names.
    """
    if not HAS_INTERFACE_CALLS:
        return [] if name else [*_named_addresses()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        flags = {n: _flags(sock, n) for _, n in sorted(socket.if_nameindex()) if name in (None, n)}
        order = [*flags]
        found = [
            Interface(n, host, flags[n] & MULTICAST_FLAGS == MULTICAST_FLAGS)
            for n, host in [*_v4_addresses(sock), *_v6_addresses()]
            if flags.get(n, 0) & IFF_UP
        ]
    return sorted(found, key=lambda i: (":" in i.host, order.index(i.name), is_zoned(i.host)))


def _named_addresses() -> Iterator[Interface]:
    """Yield the addresses on the way to other networks and of the host's name, then loopback."""
    hosts: dict[str, bool] = {}
    for far in FAR_AWAY:  # Some systems give the host's name the address of loopback alone.
        with suppress(OSError), socket.socket(family_of(far), socket.SOCK_DGRAM) as sock:
            sock.connect((far, 9))  # Chooses an address, and sends nothing.
            host = str(sock.getsockname()[0])
            if not is_zoned(host):
                hosts[host] = not _ip(host).is_loopback
    with suppress(OSError):  # The name has no address.
        for *_, sockaddr in socket.getaddrinfo(socket.gethostname(), None):
            host = str(sockaddr[0]).partition("%")[0]
            if not is_zoned(host):  # Its zone is an interface's name.
                hosts[host] = not _ip(host).is_loopback
    hosts |= dict.fromkeys(["127.0.0.1", *(["::1"] if socket.has_ipv6 else [])], False)
    for host, multicast in list(hosts.items())[:MAX_INTERFACE_ADDRESSES]:
        yield Interface("", host, multicast)


def _flags(sock: socket.socket, name: str) -> int:
    try:
        answer = fcntl.ioctl(sock, SIOCGIFFLAGS, IFREQ_FLAGS.pack(name.encode(), 0))
    except OSError:  # The interface was removed meanwhile.
        return 0
    flags: int = IFREQ_FLAGS.unpack(answer)[1]
    return flags


def _v4_addresses(sock: socket.socket) -> Iterator[tuple[str, str]]:
    table = array.array("B", bytes(IFREQ.size * MAX_INTERFACE_ADDRESSES))
    where, size = table.buffer_info()
    answer = fcntl.ioctl(sock, SIOCGIFCONF, struct.pack("iL", size, where))
    (used, _) = struct.unpack("iL", answer)
    for name, _, host in IFREQ.iter_unpack(table.tobytes()[:used]):
        yield name.partition(b"\0")[0].partition(b":")[0].decode(), socket.inet_ntoa(host)


def _v6_addresses() -> Iterator[tuple[str, str]]:
    if not INET6_TABLE.exists():
        return
    for line in INET6_TABLE.read_text().splitlines()[:MAX_INTERFACE_ADDRESSES]:
        digits, _, _, _, flags, name = line.split()
        if not int(flags, 16) & IFA_F_UNUSABLE:
            yield name, str(ipaddress.IPv6Address(bytes.fromhex(digits)))


# --- options --------------------------------------------------------------------------------


def parse_size(endpoint: EndPoint, key: str, text: str, largest: int) -> int:
    """Parse a decimal number from 0 to `largest`."""
    if not (text.isascii() and text.isdecimal()) or int(text) > largest:
        raise InvalidLocator(f"{endpoint}: {key}={text} is not a number from 0 to {largest}")
    return int(text)


def parse_bits(endpoint: EndPoint, key: str, text: str, largest: int) -> int:
    """Parse numbers (decimal, 0x.., 0b..) with '|' between them; return their bitwise OR."""
    value = 0
    try:
        for part in text.split("|"):
            value |= int(part, {"0x": 16, "0b": 2}.get(part[:2].lower(), 10))
    except ValueError:
        value = -1
    if not 0 <= value <= largest:
        raise InvalidLocator(f"{endpoint}: {key}={text} is not numbers up to {largest}, split by |")
    return value


SO_BUF_LOCK, RECEIVE_BUFFER_LOCKED = 72, 2  # linux/include/uapi/asm-generic/socket.h
_Parse = Callable[[EndPoint, str, str, int], int]
_Options = dict[int, tuple[int, int]]
_ANY: tuple[int, ...] = (socket.AF_INET, socket.AF_INET6, AF_UNIX)
_SEND_BUFFER: _Options = dict.fromkeys(_ANY, (socket.SOL_SOCKET, socket.SO_SNDBUF))
_RECEIVE_BUFFER: _Options = dict.fromkeys(_ANY, (socket.SOL_SOCKET, socket.SO_RCVBUF))
_DSCP: _Options = {
    socket.AF_INET: (socket.IPPROTO_IP, socket.IP_TOS),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_TCLASS),
}
# Key, parser of its value, largest value, and the socket option for each address family.
NUMBERS: list[tuple[str, _Parse, int, _Options]] = [
    ("so_sndbuf", parse_size, MAX_BUFFER_BYTES, _SEND_BUFFER),
    ("so_rcvbuf", parse_size, MAX_BUFFER_BYTES, _RECEIVE_BUFFER),
    ("dscp", parse_bits, MAX_DSCP, _DSCP),
]


def new_socket(endpoint: EndPoint, family: int, kind: int) -> socket.socket:
    """Return a non-blocking socket with the buffers and the DSCP that the endpoint asks for."""
    config = endpoint.config
    wanted = [
        (key, options[family], parse(endpoint, key, config[key], largest))
        for key, parse, largest, options in NUMBERS
        if key in config and family in options
    ]
    try:
        sock = socket.socket(family, kind)
    except OSError as error:
        raise failed(endpoint, "open a socket", error) from None
    sock.setblocking(False)
    for key, option, value in wanted:
        try:
            sock.setsockopt(*option, value)
        except OSError as error:
            sock.close()
            raise failed(endpoint, f"{key}={config[key]}", error) from None
    return sock


def bind_to_interface(endpoint: EndPoint, sock: socket.socket) -> None:
    """Bind the socket to the interface that the endpoint names, if any."""
    name = endpoint.config.get("iface")
    if name is not None:
        if not hasattr(socket, "SO_BINDTODEVICE"):
            raise LinkError(f"{endpoint}: iface={name} works on Linux only: use bind=ADDRESS:PORT")
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode() + b"\0")
        except OSError as error:
            raise failed(endpoint, f"iface={name}", error) from None


def bind_address(endpoint: EndPoint, family: int, kind: int) -> Address | None:
    """Return the local address that the endpoint's `bind` names for the connecting side."""
    text = endpoint.config.get("bind")
    if text is None:
        return None
    if "iface" in endpoint.config:
        raise InvalidLocator(f"{endpoint}: has both bind={text} and iface: keep one of them")
    address = look_up(endpoint, text, kind, flags=socket.AI_NUMERICHOST, key="bind")[0]
    if address.family != family:
        raise LinkError(f"{endpoint}: bind={text} is not of the IP version of the peer's address")
    return address


# --- sockets that connect and listen --------------------------------------------------------


def connect(endpoint: EndPoint, address: Address, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket that has begun to connect, and may be connected already."""
    source = bind_address(endpoint, address.family, kind)
    sock = new_socket(endpoint, address.family, kind)
    try:
        if address.family != AF_UNIX:
            bind_to_interface(endpoint, sock)
        if source is not None:
            sock.bind(source.sockaddr)
        code = sock.connect_ex(address.sockaddr)
        if code not in CONNECT_GOES_ON:
            raise OSError(code, os.strerror(code))
    except LinkError:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise failed(endpoint, "connect", error) from None
    return sock


def is_connected(name: str, sock: socket.socket) -> bool:
    """Return whether the connect of a socket is complete; LinkError if it failed."""
    try:
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        peer = sock.getpeername()
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            return False
        raise failed(name, "connect", error) from None
    if sock.family != AF_UNIX and peer == sock.getsockname():
        # TCP connects a socket to itself if it picks the free target port as its own.
        raise failed(name, "connect", OSError(errno.ECONNREFUSED, "connected to itself"))
    return True


def listening_socket(endpoint: EndPoint, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket bound to the first of the endpoint's addresses that can be bound."""
    first: LinkError | None = None
    for address in resolve(endpoint, kind):
        sock = new_socket(endpoint, address.family, kind)
        try:
            _bind(endpoint, sock, address, kind)
            return sock
        except LinkError as error:
            sock.close()
            first = first or error
        except OSError as error:
            sock.close()
            first = first or failed(endpoint, "listen", error)
    assert first is not None
    raise first


def _bind(endpoint: EndPoint, sock: socket.socket, address: Address, kind: int) -> None:
    bind_to_interface(endpoint, sock)
    if address.family == socket.AF_INET6:
        both = is_wildcard(address.sockaddr[0])
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
    if kind == socket.SOCK_STREAM and not IS_WINDOWS:  # There it takes a port from its listener.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address.sockaddr)
    if kind == socket.SOCK_STREAM:
        sock.listen(BACKLOG)


# --- links ----------------------------------------------------------------------------------


class _Scratch(threading.local):
    """Receive buffer, one per thread: a large one per link or call would cost too much."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_scratch = _Scratch()


class SocketLink(TransportLink):
    """Link over one socket.

    Two locks keep close() from freeing the descriptor, which another socket could then get, during
    a call. No call waits while it holds one.
    """

    def __init__(
        self, sock: socket.socket, name: str, local: Locator, remote: Locator, address: str
    ) -> None:
        self.protocol = remote.protocol
        self.local, self.remote, self.address = local, remote, address
        self.name = name
        "Endpoint in the text of errors."
        self._socket = sock
        self._sending, self._receiving = threading.Lock(), threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def limit_unread(self, size: int) -> None:
        with self._receiving, suppress(OSError):
            if not _is_receive_buffer_chosen(self._socket):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def close(self) -> None:
        with self._sending, self._receiving:
            self._socket.close()


def _is_receive_buffer_chosen(sock: socket.socket) -> bool:
    """Whether `so_rcvbuf` was set; False on systems that do not tell (Linux before 5.14)."""
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) & RECEIVE_BUFFER_LOCKED)
    except OSError:
        return False


class StreamLink(SocketLink):
    """Stream of bytes over a socket that is connected, or that `connect` has begun to connect."""

    framing = Framing.STREAM
    reliable = True
    _connected = False

    def handshake(self) -> Progress:
        if not self._connected:
            with self._sending:
                self._connected = is_connected(self.name, self._socket)
        return Progress.DONE if self._connected else Progress.WANT_WRITE

    def receive(self) -> bytes | None:
        view = _scratch.view
        with self._receiving:
            try:
                size = self._socket.recv_into(view)
            except BlockingIOError:
                return None
            except OSError as error:
                raise failed(self.name, "receive", error) from None
        return bytes(view[:size])

    def send(self, data: bytes | bytearray | memoryview) -> int:
        with self._sending:
            try:
                return self._socket.send(data)
            except BlockingIOError:
                return 0
            except OSError as error:
                raise failed(self.name, "send", error) from None


MakeLink = Callable[[socket.socket, Any], TransportLink]


class StreamListener(Listener):
    """Listener on a stream socket; `make_link` builds the link of a new socket and its address."""

    def __init__(
        self, sock: socket.socket, name: str, locators: tuple[Locator, ...], make_link: MakeLink
    ) -> None:
        self.locators = locators
        self.name = name
        self._socket, self._make_link = sock, make_link
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> TransportLink | None:
        with self._lock:
            try:
                sock, peer = self._socket.accept()
            except OSError as error:
                if error.errno in LISTENER_IS_BROKEN:
                    raise failed(self.name, "accept", error) from None
                return None
        try:
            sock.setblocking(False)
            return self._make_link(sock, peer)
        except OSError:  # The peer is gone already.
            sock.close()
            return None

    def close(self) -> None:
        with self._lock:
            self._socket.close()
