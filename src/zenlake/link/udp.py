"""udp/HOST:PORT: one datagram is one batch, and some are lost.

Knows how one bound port serves many peers: each gets its own socket on the same local address,
connected to that peer, and the kernel sorts the datagrams. Does not know multicast.
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
from zenlake.link.base import Listener, Progress, TransportLink
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address, SocketLink, failed, host_of, sockaddr_locator
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint

MTU = 0xFFFF - 8 - 40  # what other nodes propose: less the headers of UDP and IPv6
READ_DATAGRAM = 0xFFFF  # none is larger
EARLY_DATAGRAMS = 64  # per link: those that reached the listener before the link's own socket
PENDING_DATAGRAMS = 256  # of all peers together, taken from the listener but not looked at yet
SKIPPED_AT_ONCE = 64  # datagrams without content or of strangers that one receive() passes over

IP_PKTINFO = 8
PKTINFO = struct.Struct("i 4s 4s")  # interface, local address to answer from, destination
PKTINFO6 = struct.Struct("16s i")
ANCILLARY_BYTES = socket.CMSG_SPACE(PKTINFO6.size) + socket.CMSG_SPACE(PKTINFO.size)
SEND_LATER = {errno.EAGAIN, errno.ENOBUFS}


class UdpLink(SocketLink):
    """One peer. There is no end of a datagram link: silence, or an error once the port is shut."""

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
        "Datagrams that came before the link's own socket was there, and found no room."
        self._peer = sock.getpeername()[:2]
        self._early: deque[bytes] = deque()
        self._on_close = on_close

    def handshake(self) -> Progress:
        return Progress.DONE

    @property
    def more(self) -> bool:
        return bool(self._early)

    def came_early(self, data: bytes) -> None:
        """A datagram of this peer that the listener got instead of this link."""
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
    data: bytes
    peer: Any
    local: Any
    "Where the peer sent it: the address that its answers must come from."


class UdpListener(Listener):
    """A new link for each new source address. Call accept() until it says None.

    Of its peers it remembers only the links that are alive, so that a flood of source addresses
    leaves nothing behind once the links are closed.
    """

    def __init__(self, sock: socket.socket, endpoint: EndPoint) -> None:
        self.locators = sockets.listener_locators(endpoint, sock)
        self.name: str = endpoint
        self.dropped = 0
        "First datagrams for which no socket could be had."
        self._endpoint, self._socket = endpoint, sock
        self._bound = sock.getsockname()
        self._links: WeakValueDictionary[Any, UdpLink] = WeakValueDictionary()
        self._pending: deque[_Arrival] = deque()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> TransportLink | None:
        with self._lock:
            for _ in range(PENDING_DATAGRAMS):
                if not self._pending and not self._take():
                    return None
                arrival = self._pending.popleft()
                link = self._links.get(arrival.peer)
                if link is not None:
                    link.came_early(arrival.data)
                elif arrival.data:
                    link = self._welcome(arrival)
                    if link is not None:
                        return link
        return None

    def close(self) -> None:
        with self._lock:
            self._pending.clear()
            self._socket.close()

    def _take(self) -> bool:
        """One more datagram from the listening socket, if there is one and room for it."""
        if len(self._pending) >= PENDING_DATAGRAMS:
            return False
        try:
            data, ancillary, _, peer = self._socket.recvmsg(READ_DATAGRAM, ANCILLARY_BYTES)
        except OSError as error:
            if error.errno in sockets.LISTENER_IS_BROKEN:
                raise failed(self.name, "accept", error) from None
            return False
        self._pending.append(_Arrival(data, peer, self._local(ancillary)))
        return True

    def _local(self, ancillary: list[tuple[int, int, bytes]]) -> Any:
        port = self._bound[1]
        for level, kind, data in ancillary:
            if (level, kind) == (socket.IPPROTO_IP, IP_PKTINFO):
                return socket.inet_ntoa(PKTINFO.unpack(data)[1]), port
            if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
                host, interface = PKTINFO6.unpack(data)
                text = socket.inet_ntop(socket.AF_INET6, host)
                return text, port, 0, interface if text.startswith("fe80:") else 0
        return self._bound

    def _welcome(self, arrival: _Arrival) -> UdpLink | None:
        """The link of a new peer, with all that the listener has already got from it."""
        try:
            sock = self._socket_for(arrival)
        except OSError:  # no descriptor left, or an address that cannot be answered
            self.dropped += 1
            return None
        peer = arrival.peer
        link = UdpLink(sock, self._endpoint.protocol, peer, on_close=lambda: self._forget(peer))
        link.came_early(arrival.data)
        self._links[peer] = link
        self._sort_strays(sock, link, arrival)
        return link

    def _socket_for(self, arrival: _Arrival) -> socket.socket:
        sock = sockets.new_socket(self._endpoint, self._socket.family, socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sock.family == socket.AF_INET6:
                only = self._socket.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            sockets.on_interface(self._endpoint, sock)
            sock.bind(arrival.local)
            sock.connect(arrival.peer)
        except OSError:
            sock.close()
            raise
        return sock

    def _sort_strays(self, sock: socket.socket, link: UdpLink, arrival: _Arrival) -> None:
        """Put right what came before the new socket was connected.

        The listener still has datagrams of this peer, which are older than those of the new
        socket, and that one may have datagrams of other peers.
        """
        while self._take():
            pass
        for early in self._pending:
            if early.peer == arrival.peer:
                link.came_early(early.data)
        self._pending = deque(a for a in self._pending if a.peer != arrival.peer)
        with suppress(OSError):  # none left, or an error that receive() meets again
            for _ in range(PENDING_DATAGRAMS - len(self._pending)):
                data, peer = sock.recvfrom(READ_DATAGRAM)
                if peer == arrival.peer:
                    link.came_early(data)
                else:
                    self._pending.append(_Arrival(data, peer, arrival.local))

    def _forget(self, peer: Any) -> None:
        with self._lock:
            self._links.pop(peer, None)


def resolve(endpoint: EndPoint) -> list[Address]:
    _refuse_reliable(endpoint)
    return sockets.resolve(endpoint, socket.SOCK_DGRAM)


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> UdpLink:
    _refuse_reliable(endpoint)
    sock = sockets.connect(endpoint, address, socket.SOCK_DGRAM)
    return UdpLink(sock, endpoint.protocol, address.sockaddr, endpoint)


def listen(endpoint: EndPoint, options: LinkOptions) -> UdpListener:
    _refuse_reliable(endpoint)
    sock = sockets.listening(endpoint, socket.SOCK_DGRAM)
    # Set only now: bind() has failed if the port was in use, and peers' sockets can share it.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    return UdpListener(sock, endpoint)


def _refuse_reliable(endpoint: EndPoint) -> None:
    if endpoint.metadata.get("rel") == "1":
        raise LinkError(f"{endpoint}: reliable udp is QUIC, not spoken here: use tcp, or rel=0")
