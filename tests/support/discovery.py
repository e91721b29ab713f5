"""Nodes that find each other on the loopback interface: ours, and the settings of theirs."""

import itertools
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tests.golden.proxy import free_port
from tests.support.interop_conversation import POLL_SECONDS, Ours
from tests.support.reference_peer import ReferencePeer, ReferenceProcess, Settings
from zenlake import link as links
from zenlake.link.base import Listener, TransportLink
from zenlake.link.multicast import MulticastLink
from zenlake.link.options import LinkOptions
from zenlake.runtime.discovery import DiscoveryConfig
from zenlake.runtime.node import Node
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.autoconnect import Autoconnect
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.locator import EndPoint
from zenlake.wire.zenohid import WireZenohId

LOOPBACK = "tcp/127.0.0.1:0"
DIALS_NOBODY = Autoconnect({})
THEY_DIAL_NOBODY: Settings = {
    "scouting/multicast/autoconnect": [],
    "scouting/gossip/autoconnect": [],
}
_DROP = "transport/link/tx/queue/congestion_control/drop"
THEY_WAIT_FOR_ROOM: Settings = {
    f"{_DROP}/wait_before_drop": 5_000_000,
    f"{_DROP}/max_wait_before_drop_fragments": 5_000_000,
}
"""Settings of a Rust node that drops nothing on a busy machine: in a session without lanes it sends
no message with DROP any more once its full queue has dropped one (pipeline.rs)."""
STAYS_SECONDS = 1.0  # Longer than a SCOUT, its HELLO and a handshake take on loopback.

_hosts = itertools.count(1)


def new_group() -> str:
    """Return `address:port` of a group without other members."""
    return f"224.0.1.{200 + next(_hosts) % 50}:{free_port(socket.SOCK_DGRAM)}"


def on_lo(group: str) -> str:
    return f"udp/{group}#iface=lo"


def scouting(group: str, **settings: Any) -> Settings:
    """A node of theirs that scouts and answers in `group`, and listens."""
    return {
        "scouting/multicast/enabled": True,
        "scouting/multicast/address": group,
        "scouting/multicast/interface": "lo",
        "listen/endpoints": [LOOPBACK],
        **settings,
    }


@contextmanager
def reference_session(
    reference: ReferenceProcess, mode: str, settings: Settings
) -> Iterator[ReferencePeer]:
    them = reference.open(mode, settings)
    try:
        yield them
    finally:
        them.close()


class CountedLinks:
    """The real links, and the endpoints that were connected to."""

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self.resolve = links.resolve
        self.listen: Callable[[EndPoint, LinkOptions], Listener | MulticastLink] = links.listen

    def connect(self, endpoint: EndPoint, address: Any, options: LinkOptions) -> TransportLink:
        self.dialled.append(str(endpoint))
        return links.connect(endpoint, address, options)


@dataclass(frozen=True)
class AskedRule(Autoconnect):
    """A rule that connects to no node and keeps the ids of the nodes that it was asked about."""

    roles: Mapping[WireWhatAmI, WireWhatAmI] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def wants(
        self, own: WireZenohId, own_role: WireWhatAmI, peer: WireZenohId, peer_role: WireWhatAmI
    ) -> bool:
        self.asked.append(str(peer))
        return super().wants(own, own_role, peer, peer_role)


class Finder(Ours):
    """A node of ours that looks for others."""

    def __init__(self, whatami: WireWhatAmI, discovery: DiscoveryConfig, **given: Any) -> None:
        super().__init__(whatami, **given)
        unused, self.links = self.node, CountedLinks()
        unused.reactor.stop()
        config = replace(unused.config, discovery=discovery)
        self.node = Node(config, unused.handler, network=self.links)

    def found(self) -> set[str]:
        """Return the ids of the nodes that it has a session with."""
        return {str(zid) for zid in self.node.sessions}

    def session_with(self, zid: str) -> TransportSession:
        """Return the session with the node `zid`."""
        return next(s for s in self.node.sessions.values() if str(s.zid) == zid)


def stays(look: Callable[[], object], expected: object) -> None:
    """Look for STAYS_SECONDS whether `look` keeps its result.

    Only for what no later event proves: a node that does not connect sends nothing that could be
    waited for.
    """
    end = time.monotonic() + STAYS_SECONDS
    while time.monotonic() < end:
        assert look() == expected
        time.sleep(POLL_SECONDS)
