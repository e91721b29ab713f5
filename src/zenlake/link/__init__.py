"""Links: byte transport to peers over the protocols that locators name; base.py is the contract.

Knows which module implements which protocol, and imports it when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from zenlake.errors import LinkError
from zenlake.link.base import Listener, TransportLink
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address
from zenlake.wire.locator import EndPoint

if TYPE_CHECKING:
    from zenlake.link.multicast import MulticastLink

PROTOCOLS: dict[str, str] = {
    "quic": "zenlake.link.quic",
    "serial": "zenlake.link.serial",
    "tcp": "zenlake.link.tcp",
    "tls": "zenlake.link.tls",
    "udp": "zenlake.link.udp",
    "unixpipe": "zenlake.link.pipe",
    "unixsock-stream": "zenlake.link.unix",
    "vsock": "zenlake.link.vsock",
    "ws": "zenlake.link.ws",
}
EXTRAS = {"quic": "quic", "serial": "serial"}
"Protocols whose library a plain installation does not have, and the extra that installs it."


class LinkProvider(Protocol):
    """Source of links: this package, the module of one protocol, or a simulated network."""

    def resolve(self, endpoint: EndPoint) -> list[Any]: ...
    def connect(self, endpoint: EndPoint, address: Any, options: LinkOptions) -> TransportLink: ...
    def listen(self, endpoint: EndPoint, options: LinkOptions) -> Listener | MulticastLink: ...


def _module(endpoint: EndPoint) -> LinkProvider:
    name = PROTOCOLS.get(endpoint.protocol)
    if name is None:
        known = ", ".join(PROTOCOLS)
        raise LinkError(
            f"{endpoint.locator}: {endpoint.protocol!r} is not a protocol here: use {known}"
        )
    try:
        return cast(LinkProvider, import_module(name))
    except ModuleNotFoundError as missing:
        extra = EXTRAS.get(endpoint.protocol)
        if extra is None:
            raise
        raise LinkError(
            f"{endpoint.locator}: needs {missing.name}, which is not installed: "
            f"pip install 'zenlake[{extra}]'"
        ) from None


def resolve(endpoint: EndPoint) -> list[Address]:
    """Return the addresses of the endpoint, best first. May wait for DNS."""
    return _module(endpoint).resolve(endpoint)


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> TransportLink:
    """Begin to connect to one of the addresses, without waiting; handshake() completes it."""
    return _module(endpoint).connect(endpoint, address, options)


def listen(endpoint: EndPoint, options: LinkOptions) -> Listener | MulticastLink:
    """Return a listener at the endpoint, or the membership of the group that it names. May wait
    for DNS."""
    if endpoint.protocol == "udp":
        from zenlake.link import multicast

        if multicast.is_group(endpoint):
            return multicast.join(endpoint, options)
    return _module(endpoint).listen(endpoint, options)
