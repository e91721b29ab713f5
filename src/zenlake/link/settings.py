"""Settings of endpoints, after `?` and `#`: which ones a protocol has.

Knows their names only, to tell a user of the others; the links read the values.
"""

from __future__ import annotations

from collections.abc import Iterator

from zenlake.link.options import MATERIAL, SWITCHES
from zenlake.transport.retry import CONFIG
from zenlake.wire.locator import EndPoint

OF_ANY = frozenset({*CONFIG, "exit_on_failure"})
BUFFERS = frozenset({"so_sndbuf", "so_rcvbuf"})
IP = frozenset({"iface", "bind", "dscp", *BUFFERS})
TLS = frozenset(
    {*SWITCHES, *(f"{item}_{form}" for item in MATERIAL for form in ("raw", "base64", "file"))}
)
SETTINGS: dict[str, frozenset[str]] = {
    "quic": IP | TLS | {"initial_mtu"},
    "serial": frozenset({"baudrate", "exclusive", "tout", "release_on_close"}),
    "tcp": IP,
    "tls": IP | TLS,
    "udp": IP | {"ttl", "join"},
    "unixpipe": frozenset({"file_mask"}),
    "unixsock-stream": BUFFERS,
    "vsock": frozenset(),
    "ws": IP,
}
"Names after `#`, by protocol, besides OF_ANY."
METADATA = frozenset({"prio", "rel"})
MORE_METADATA = {"quic": frozenset({"multistream", "mixed_rel"})}


def without_effect(endpoint: EndPoint) -> Iterator[str]:
    """Yield the names in the endpoint that its protocol does not have."""
    settings = SETTINGS.get(endpoint.protocol)
    if settings is None:  # Opening refuses the protocol.
        return
    metadata = METADATA | MORE_METADATA.get(endpoint.protocol, frozenset())
    yield from (name for name in endpoint.metadata if name not in metadata)
    yield from (name for name in endpoint.config if name not in settings | OF_ANY)
