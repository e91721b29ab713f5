"""udp/HOST:PORT: unreliable datagrams, each of which is one batch.

One bound port serves many peers: each has its own socket on the same local address, connected to
the peer, and the kernel assigns the datagrams. Does not know multicast.
"""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from zenlake.errors import LinkError
from zenlake.link import sockets
from zenlake.link.base import Listener, Progress
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address, SocketLink, failed, host_of, sockaddr_locator
from zenlake.transport.link_qos import LinkQos
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint, Locator

MTU = 0xFFFF - 8 - 40  # Datagram less the headers of UDP and IPv6, as Rust proposes.
READ_DATAGRAM = 0xFFFF  # Upper bound on the size of a datagram.
EARLY_DATAGRAMS = 64  # Datagrams per link that reached the listener before its own socket.
PENDING_DATAGRAMS = 256  # Datagrams of all peers that wait in the listener to be assigned.
SKIPPED_AT_ONCE = 64  # Empty or foreign datagrams that one receive() skips.

IP_PKTINFO = 8
PKTINFO = struct.Struct("i 4s 4s")  # Interface, local address to answer from, destination.
PKTINFO6 = struct.Struct("16s i")
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@ll")  # Seconds and nanoseconds at which the kernel got a datagram.
RECEIVE_BYTES = 4 << 20
"""Receive buffer without `so_rcvbuf`, as far as the system allows it. That of Linux holds the first
datagrams of 250 peers, or three fragments of a message; no lost datagram is sent again."""
ANCILLARY_BYTES = 256  # Room for PKTINFO, PKTINFO6 and TIMESPEC with their headers: 104 bytes.
SEND_LATER = {errno.EAGAIN, errno.ENOBUFS}


class UdpLink(SocketLink):
    """UDP link to one peer. It has no end: only silence, or an error once the port is closed."""

    framing = Framing.DATAGRAM
    reliable = False
    mtu = MTU

    def __init__(
        self,
        sock: socket.socket,
        protocol: str,
        peer: Any,
        name: str = "",
        on_close: Callable[[], None] | None = None,
    ) -> None:
        local, remote = (sockaddr_locator(protocol, end) for end in (sock.getsockname(), peer))
        super().__init__(sock, name or f"{remote} at {local}", local, remote, host_of(peer))
        self.dropped = 0
        "Early datagrams that were dropped because EARLY_DATAGRAMS were waiting."
        self._peer = sock.getpeername()[:2]
        self._early: deque[bytes] = deque()
        self._on_close = on_close

    def handshake(self) -> Progress:
        return Progress.DONE

    @property
    def more(self) -> bool:
        return bool(self._early)

    def keep_up_to(self, size: int) -> None:
        """Let the kernel keep this many bytes that wait to be read, as far as it permits."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def add_early(self, data: bytes) -> None:
        """Queue a datagram of this peer that the listener's socket received."""
        if not data:
            return
        if len(self._early) < EARLY_DATAGRAMS:
            self._early.append(data)
        else:
            self.dropped += 1

    def receive(self) -> bytes | None:
        with self._receiving:
            if self._early and self._socket.fileno() >= 0:
                return self._early.popleft()
            try:
                for _ in range(SKIPPED_AT_ONCE):
                    data, sender = self._socket.recvfrom(READ_DATAGRAM)
                    if data and sender[:2] == self._peer:
                        return data
            except BlockingIOError:
                return None
            except OSError as error:
                raise failed(self.name, "receive", error) from None
        return None

    def send(self, data: bytes | bytearray | memoryview) -> int:
        if len(data) > self.mtu:
            raise LinkError(f"{self.name}: a batch of {len(data)} bytes is above {self.mtu}")
        with self._sending:
            try:
                return self._socket.send(data)
            except OSError as error:
                if error.errno in SEND_LATER:
                    return 0
                raise failed(self.name, "send", error) from None

    def close(self) -> None:
        with self._sending, self._receiving:
            self._socket.close()
            forget, self._on_close = self._on_close, None
        if forget is not None:
            forget()


class _Arrival(NamedTuple):
    """Datagram that the listener's socket received, or the socket of another peer."""

    time: tuple[int, int]
    "Seconds and nanoseconds at which the kernel received it."
    data: bytes
    peer: Any
    local: Any
    "Address that the peer sent it to, from which answers must come."


class UdpListener(Listener):
    """Listener with a link for each source address. Call accept() until it returns None.

    It references only links that are alive, so that a flood of source addresses leaves nothing
    behind once the links are closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        endpoint: EndPoint,
        locators: tuple[Locator, ...],
        admits: Callable[[bytes], bool],
    ) -> None:
        """`admits`: whether a new peer's datagram opens a link."""
        self.locators = locators
        self.name: str = endpoint
        self.dropped = 0
        "First datagrams of peers for which no socket could be opened."
        self._endpoint, self._socket, self._admits = endpoint, sock, admits
        self._bound = sock.getsockname()
        self._links: WeakValueDictionary[Any, UdpLink] = WeakValueDictionary()
        self._pending: deque[_Arrival] = deque()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> UdpLink | None:
        with self._lock:
            for _ in range(PENDING_DATAGRAMS):
                if not self._pending and not self._take():
                    return None
                arrival = self._pending.popleft()
                link = self._links.get(arrival.peer)
                if link is not None:
                    link.add_early(arrival.data)
                elif self._admits(arrival.data):
                    link = self._make_link(arrival)
                    if link is not None:
                        return link
        return None

    def close(self) -> None:
        with self._lock:
            self._pending.clear()
            self._socket.close()

    def _take(self) -> bool:
        """Read one datagram of the listening socket, if there is one and room; return whether."""
        if len(self._pending) >= PENDING_DATAGRAMS:
            return False
        try:
            self._pending.append(self._receive(self._socket, self._bound))
        except OSError as error:
            if error.errno in sockets.LISTENER_IS_BROKEN:
                raise failed(self.name, "accept", error) from None
            return False
        return True

    def _receive(self, sock: socket.socket, local: Any) -> _Arrival:
        """Read one datagram; `local` is where it was sent to unless the kernel says otherwise."""
        data, ancillary, _, peer = sock.recvmsg(READ_DATAGRAM, ANCILLARY_BYTES)
        port, time = self._bound[1], (0, 0)
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                time = TIMESPEC.unpack(value)
            elif (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
                local = socket.inet_ntoa(PKTINFO.unpack(value)[1]), port
            elif (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
                host, interface = PKTINFO6.unpack(value)
                text = socket.inet_ntop(socket.AF_INET6, host)
                local = text, port, 0, interface if text.startswith("fe80:") else 0
        return _Arrival(time, data, peer, local)

    def _make_link(self, arrival: _Arrival) -> UdpLink | None:
        """The link of a new peer, with all that the listener has already got from it."""
        try:
            sock = self._socket_for(arrival)
        except OSError:  # no descriptor left, or an address that cannot be answered
            self.dropped += 1
            return None
        peer = arrival.peer
        link = UdpLink(sock, self._endpoint.protocol, peer, on_close=lambda: self._forget(peer))
        link.add_early(arrival.data)
        self._links[peer] = link
        self._reassign(sock, link, arrival)
        return link

    def _socket_for(self, arrival: _Arrival) -> socket.socket:
        sock = sockets.new_socket(self._endpoint, self._socket.family, socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sock.family == socket.AF_INET6:
                only = self._socket.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            sockets.bind_to_interface(self._endpoint, sock)
            enlarge_receive_buffer(sock, self._endpoint)
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            sock.bind(arrival.local)
            sock.connect(arrival.peer)
        except OSError:
            sock.close()
            raise
        return sock

    def _reassign(self, sock: socket.socket, link: UdpLink, arrival: _Arrival) -> None:
        """Reassign datagrams that were received before the new socket was connected.

        The listener may have older datagrams of this peer, and the new socket datagrams of other
        peers. The kernel's times give them the order in which they were sent.
        """
        with suppress(OSError):  # None left, or an error that receive() will raise.
            for _ in range(PENDING_DATAGRAMS - len(self._pending)):
                self._pending.append(self._receive(sock, arrival.local))
        while self._take():
            pass
        others: deque[_Arrival] = deque()
        for early in sorted(self._pending, key=lambda early: early.time):
            if early.peer == arrival.peer:
                link.add_early(early.data)
            else:
                others.append(early)
        self._pending = others

    def _forget(self, peer: Any) -> None:
        with self._lock:
            self._links.pop(peer, None)


def resolve(endpoint: EndPoint) -> list[Address]:
    _refuse_reliable(endpoint)
    return sockets.resolve(endpoint, socket.SOCK_DGRAM)


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> UdpLink:
    _refuse_reliable(endpoint)
    return open_link(endpoint, address)


def listen(endpoint: EndPoint, options: LinkOptions) -> UdpListener:
    _refuse_reliable(endpoint)
    return open_listener(endpoint)


def open_link(endpoint: EndPoint, address: Address) -> UdpLink:
    """Return a link to the address, for any protocol that is made of datagrams."""
    sock = sockets.connect(endpoint, address, socket.SOCK_DGRAM)
    enlarge_receive_buffer(sock, endpoint)
    return UdpLink(sock, endpoint.protocol, address.sockaddr, endpoint)


def open_listener(
    endpoint: EndPoint,
    admits: Callable[[bytes], bool] = bool,
    locate: Callable[[EndPoint, socket.socket], tuple[Locator, ...]] = sockets.listener_locators,
) -> UdpListener:
    """Return a listener for any protocol that is made of datagrams."""
    if not sockets.IS_LINUX:  # A socket per peer on one port, and the options below.
        raise LinkError(
            f"{endpoint}: listening on {endpoint.protocol} works on Linux only: listen on tcp"
        )
    sock = sockets.listening_socket(endpoint, socket.SOCK_DGRAM)
    # Set after bind(), which thus fails if the port is in use; lets the peers' sockets share it.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    enlarge_receive_buffer(sock, endpoint)
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    return UdpListener(sock, endpoint, locate(endpoint, sock), admits)


def enlarge_receive_buffer(sock: socket.socket, endpoint: EndPoint) -> None:
    """Give a socket a large receive buffer, unless the endpoint says its size."""
    if "so_rcvbuf" not in endpoint.config:
        with suppress(OSError):  # Linux gives less instead, some systems refuse.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)


def _refuse_reliable(endpoint: EndPoint) -> None:
    if LinkQos.from_metadata(endpoint.metadata).reliable:
        raise LinkError(
            f"{endpoint}: reliable udp is QUIC without encryption, which is not supported: "
            "use tcp or quic, or rel=0"
        )
