"""tcp/HOST:PORT: a stream over TCP.

Knows the socket options of TCP. Everything else about sockets is in sockets.py.
"""

from __future__ import annotations

import socket
from typing import Any

from zenlake.link import sockets
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address, StreamLink, StreamListener, host_of, sockaddr_locator
from zenlake.wire.locator import EndPoint

resolve = sockets.resolve


class TcpLink(StreamLink):
    """TCP connection: accepted, or opened to the endpoint `name`.

    TCP_NODELAY sends a batch of any size at once.
    """

    def __init__(self, protocol: str, sock: socket.socket, peer: Any, name: str = "") -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        local, remote = (sockaddr_locator(protocol, end) for end in (sock.getsockname(), peer))
        super().__init__(sock, name or f"{remote} at {local}", local, remote, host_of(peer))
        self._connected = not name


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> TcpLink:
    sock = sockets.connect(endpoint, address)
    return TcpLink(endpoint.protocol, sock, address.sockaddr, endpoint)


def listen(endpoint: EndPoint, options: LinkOptions) -> StreamListener:
    sock = sockets.listening_socket(endpoint)
    return StreamListener(
        sock,
        endpoint,
        sockets.listener_locators(endpoint, sock),
        lambda accepted, peer: TcpLink(endpoint.protocol, accepted, peer),
    )
