"""Links: bytes to peers over the protocols that locators name; base.py says what a link is.

Knows which module speaks which protocol, and loads it when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from zenlake.errors import LinkError
from zenlake.link.base import Listener, TransportLink
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address
from zenlake.wire.locator import EndPoint

PROTOCOLS: dict[str, str] = {
    "tcp": "zenlake.link.tcp",
    "tls": "zenlake.link.tls",
    "udp": "zenlake.link.udp",
    "unixsock-stream": "zenlake.link.unix",
    "ws": "zenlake.link.ws",
}


class _Module(Protocol):
    def resolve(self, endpoint: EndPoint) -> list[Address]: ...
    def connect(
        self, endpoint: EndPoint, address: Address, options: LinkOptions
    ) -> TransportLink: ...
    def listen(self, endpoint: EndPoint, options: LinkOptions) -> Listener: ...


def _module(endpoint: EndPoint) -> _Module:
    name = PROTOCOLS.get(endpoint.protocol)
    if name is None:
        known = ", ".join(PROTOCOLS)
        raise LinkError(
            f"{endpoint.locator}: {endpoint.protocol!r} is not a protocol here: use {known}"
        )
    return cast(_Module, import_module(name))


def resolve(endpoint: EndPoint) -> list[Address]:
    """Where the endpoint may be reached, best first. May wait for DNS."""
    return _module(endpoint).resolve(endpoint)


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> TransportLink:
    """A link to one of the addresses; its handshake() says when it is there. Does not wait."""
    return _module(endpoint).connect(endpoint, address, options)


def listen(endpoint: EndPoint, options: LinkOptions) -> Listener:
    """A listener at the endpoint. May wait for DNS."""
    return _module(endpoint).listen(endpoint, options)
