"""vsock/CID:PORT: a stream between a virtual machine and its host.

Knows the addresses of vsock(7), which Linux alone has. Everything else about sockets is in
sockets.py.
"""

from __future__ import annotations

import errno
import os
import socket

from zenlake.errors import InvalidLocator, LinkError
from zenlake.link import sockets
from zenlake.link.base import Progress
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address, StreamLink, StreamListener, failed
from zenlake.wire.locator import EndPoint, Locator

PROTOCOL = "vsock"
ANY = 0xFFFFFFFF  # Of a CID: every one of this machine. Of a port: a free one.
# Names of vsock(7) that Rust's endpoints take, in any case of letters.
CIDS = {
    "-1": ANY,
    "VMADDR_CID_ANY": ANY,
    "VMADDR_CID_HYPERVISOR": 0,
    "VMADDR_CID_LOCAL": 1,
    "VMADDR_CID_HOST": 2,
}
PORTS = {"-1": ANY, "VMADDR_PORT_ANY": ANY}
# Errors that mean something else than those of other sockets.
ADVICE = {
    errno.ECONNRESET: "no node listens there: start the other node, or correct the port",
    errno.ENODEV: "no way to that CID: one of this machine needs the kernel's vsock_loopback",
    errno.EADDRNOTAVAIL: "it is not a CID of this machine: listen at -1, which is any",
}


class VsockLink(StreamLink):
    """Connection between two CIDs: accepted, or opened to the endpoint `name`."""

    def __init__(
        self, sock: socket.socket, local: tuple[int, int], peer: tuple[int, int], name: str = ""
    ) -> None:
        ends = _locator(local), _locator(peer)
        super().__init__(sock, name or f"{ends[1]} at {ends[0]}", *ends, PROTOCOL)
        self._connected = not name

    def handshake(self) -> Progress:
        try:
            return super().handshake()
        except LinkError as error:
            raise _explained(self.name, "connect", error) from None


def _explained(name: str, what: str, error: OSError) -> LinkError:
    """Return an error of a vsock socket with the advice that is right for it."""
    code = error.errno or 0
    if code in ADVICE:
        return LinkError(f"{name}: {what}: {os.strerror(code)} ({ADVICE[code]})")
    return error if isinstance(error, LinkError) else failed(name, what, error)


def _locator(address: tuple[int, int], metadata: str = "") -> Locator:
    return Locator(f"{PROTOCOL}/{address[0]}:{address[1]}{metadata}")


def resolve(endpoint: EndPoint) -> list[Address]:
    """Return the address of the endpoint. LinkError: this system has no vsock."""
    family = getattr(socket, "AF_VSOCK", None)
    if family is None:
        raise LinkError(f"{endpoint}: this system has no vsock sockets, only Linux has: use tcp")
    cid, colon, port = endpoint.address.partition(":")
    if not colon:
        raise InvalidLocator(f"{endpoint}: write vsock/CID:PORT, such as vsock/2:7447")
    return [Address(family, (_number(endpoint, cid, CIDS), _number(endpoint, port, PORTS)))]


def _number(endpoint: EndPoint, text: str, names: dict[str, int]) -> int:
    known = names.get(text.upper())
    if known is not None:
        return known
    if not (text.isascii() and text.isdecimal()) or int(text) > ANY:
        choices = ", ".join(names)
        raise InvalidLocator(f"{endpoint}: {text!r} is not a number up to {ANY}, nor {choices}")
    return int(text)


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> VsockLink:
    try:
        sock = sockets.connect(endpoint, address)
    except LinkError as error:
        raise _explained(endpoint, "connect", error) from None
    return VsockLink(sock, sock.getsockname(), address.sockaddr, endpoint)


def listen(endpoint: EndPoint, options: LinkOptions) -> StreamListener:
    (address,) = resolve(endpoint)
    sock = sockets.new_socket(endpoint, address.family, socket.SOCK_STREAM)
    try:
        sock.bind(address.sockaddr)
        sock.listen(sockets.BACKLOG)
        bound = sock.getsockname()
    except OSError as error:
        sock.close()
        raise _explained(endpoint, "listen", error) from None
    metadata = "".join(endpoint.locator.partition("?")[1:])
    return StreamListener(
        sock,
        endpoint,
        (_locator(bound, metadata),),
        lambda accepted, peer: VsockLink(accepted, accepted.getsockname(), peer),
    )
