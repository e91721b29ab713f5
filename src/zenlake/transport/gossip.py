"""Gossip: nodes tell their neighbours whom they know and where those listen (network OAM id 1).

Knows link states and how far each one travels. Does not know sessions, and does not connect: it
returns the nodes that were discovered. Rust: `zenoh/src/net/protocol/gossip.rs`.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zenlake.errors import DecodeError, Reason
from zenlake.transport.scouting import MAX_LOCATORS, remote_only
from zenlake.wire.cursor import U64, ByteReader
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.linkstate import LinkState, read_link_states, write_link_states
from zenlake.wire.locator import Locator
from zenlake.wire.zenohid import WireZenohId

MAX_BODY_BYTES = 4 << 20  # Bytes of one list of link states.
MAX_STATES = 10_000  # Link states in one list.
MAX_NODES = 10_000  # Known nodes; neighbours are added beyond it, since sessions have a limit.
MAX_PSIDS = 10_000  # Node numbers kept for one link.
MAX_NODE_LINKS = 1000  # Links kept of one node.
MAX_EDGES = 200_000  # Links kept of all nodes together.

# Own role -> the roles that link states are sent to (zenoh-config scouting.gossip.target).
TARGETS = {
    WireWhatAmI.ROUTER: WireWhatAmI.ROUTER | WireWhatAmI.PEER,
    WireWhatAmI.PEER: WireWhatAmI.ROUTER | WireWhatAmI.PEER,
    WireWhatAmI.CLIENT: WireWhatAmI(0),
}

Bodies = list[tuple[Any, bytes]]
"OAM bodies to send, each with its link: any object that stands for an open session."


@dataclass(frozen=True)
class DiscoveredNode:
    """A node that a neighbour's link state names, and where it listens."""

    zid: WireZenohId
    whatami: WireWhatAmI
    locators: tuple[Locator, ...]


@dataclass(slots=True)
class _GossipNode:
    """A known node, this one included."""

    zid: WireZenohId
    whatami: WireWhatAmI | None
    "None: so far the node was only listed in the links of another."
    psid: int
    "Number for the node in this node's own link states."
    sn: int = 0
    "Sequence number of the newest link state; 0: none was received."
    locators: tuple[Locator, ...] | None = None
    links: frozenset[WireZenohId] = frozenset()
    gateway: bool = False


@dataclass(slots=True)
class _GossipLink:
    """An open session to a neighbour."""

    zid: WireZenohId
    whatami: WireWhatAmI
    gateway: bool
    psids: dict[int, WireZenohId] = field(default_factory=dict)
    "Nodes by the numbers in the neighbour's link states."


@dataclass(slots=True)
class _News:
    """Nodes to send after a list of link states was applied, by zid."""

    new: dict[WireZenohId, _GossipNode] = field(default_factory=dict)
    "Nodes that were unknown, or known by zid only."
    changed: dict[WireZenohId, _GossipNode] = field(default_factory=dict)
    "Nodes with a newer state."
    owed: dict[WireZenohId, _GossipNode] = field(default_factory=dict)
    "Nodes that the sender listed without their state."


class _ResolvedLinkState(NamedTuple):
    """A link state with zids instead of the sender's node numbers."""

    zid: WireZenohId
    whatami: WireWhatAmI
    sn: int
    locators: tuple[Locator, ...] | None
    links: frozenset[WireZenohId]
    gateway: bool


class Gossip:
    """The nodes that one node knows, and the exchange of link states with its neighbours.

    Without `multihop` a node sends its neighbours its own state and those of its other neighbours,
    so each discovers the neighbours of its neighbours. With it, which all nodes must agree on,
    every state travels to all nodes and lists links, and unreachable nodes are removed.

    A router sends peers the states of each other but not its own, and a peer sends routers its
    links. Links to clients take no part.
    """

    def __init__(
        self,
        zid: WireZenohId,
        whatami: WireWhatAmI,
        locators: Callable[[], Sequence[Locator]],
        *,
        multihop: bool = False,
        target: WireWhatAmI | None = None,
    ) -> None:
        self.ignored: Counter[str] = Counter()
        "Parts of link states that were not kept, by reason."
        self._locators = locators
        self._multihop = multihop
        self._target = TARGETS[whatami] if target is None else target
        self._links: dict[Hashable, _GossipLink] = {}
        self._own = _GossipNode(zid, whatami, psid=0, sn=1)
        self._nodes = {zid: self._own}
        self._free_psids: list[int] = []
        self._edges = 0

    def nodes(self) -> list[DiscoveredNode]:
        """Return the known nodes, neighbours included, with their locators as far as known."""
        return [
            DiscoveredNode(node.zid, node.whatami or WireWhatAmI.ROUTER, node.locators or ())
            for node in self._nodes.values()
            if node is not self._own
        ]

    def opened(self, link: Hashable, zid: WireZenohId, whatami: WireWhatAmI) -> Bodies:
        """Add the link of an open session; return the bodies to send."""
        if whatami == WireWhatAmI.CLIENT or zid == self._own.zid:
            return []
        gateway = (self._own.whatami, whatami) == (WireWhatAmI.PEER, WireWhatAmI.ROUTER)
        new = zid not in self._nodes
        if new:
            self._add(zid, whatami).gateway = gateway and not self._multihop
        self._links[link] = _GossipLink(zid, whatami, gateway)
        self._own_links_changed()
        others = [
            known
            for known, other in self._links.items()
            if other.zid != zid and (self._multihop or other.gateway)
        ]
        news = [self._nodes[zid], self._own] if new else [self._own]
        return self._send(others, news) + self._send([link], self._introduction())

    def closed(self, link: Hashable) -> Bodies:
        """Remove the link of a session that ended; return the bodies to send."""
        gone = self._links.pop(link, None)
        if gone is None:
            return []
        self._own_links_changed()
        if self._multihop:
            self._remove_detached()
            return self._send(self._links, [self._own])
        if gone.zid not in self._own.links:
            self._remove(gone.zid)
        return []

    def received(self, link: Hashable, body: bytes) -> tuple[Bodies, list[DiscoveredNode]]:
        """Apply a body; return the bodies to send and discovered nodes without a session here.

        DecodeError: `body` is not a list of link states, or is beyond the limits; nothing changed.
        """
        states = _read(body)
        source = self._links.get(link)
        if source is None:
            self.ignored["unknown link"] += len(states)
            return [], []
        told = self._resolve(source, states)
        return self._flood(link, told) if self._multihop else self._relay(source, told)

    def _introduction(self) -> list[_GossipNode]:
        """Return the nodes for a new neighbour; peers wait for a router's list, even if empty."""
        if self._multihop or self._own.whatami != WireWhatAmI.ROUTER:
            return list(self._nodes.values())
        return [node for node in self._nodes.values() if node.sn and node is not self._own]

    def _resolve(self, source: _GossipLink, states: list[LinkState]) -> list[_ResolvedLinkState]:
        """Replace node numbers by zids; a state or link with an unknown number is left out."""
        for state in states:
            if state.zid is not None:
                self._bind(source, state.psid, state.zid)
        told = []
        for state in states:
            zid = state.zid or source.psids.get(state.psid)
            if zid is None:
                self.ignored["unknown psid"] += 1
                continue
            locators = state.locators
            if locators is not None and len(locators) > MAX_LOCATORS:
                self.ignored["locators"] += len(locators) - MAX_LOCATORS
                locators = locators[:MAX_LOCATORS]
            links = frozenset(source.psids[p] for p in state.links if p in source.psids)
            role = WireWhatAmI.ROUTER if state.whatami is None else state.whatami
            told.append(_ResolvedLinkState(zid, role, state.sn, locators, links, state.gateway))
        return told

    def _bind(self, source: _GossipLink, psid: int, zid: WireZenohId) -> None:
        if psid in source.psids or len(source.psids) < MAX_PSIDS:
            source.psids[psid] = zid
        else:
            self.ignored["psids"] += 1

    def _relay(
        self, source: _GossipLink, told: list[_ResolvedLinkState]
    ) -> tuple[Bodies, list[DiscoveredNode]]:
        """One hop: pass on what a neighbour says of itself; states of other nodes end here."""
        news = False
        found: dict[WireZenohId, DiscoveredNode] = {}
        neighbour = self._nodes[source.zid]
        connected = self._own.links | {self._own.zid}
        for state in told:
            if state.zid == source.zid:
                news |= self._update_locators(neighbour, state)
            elif state.locators and state.zid not in connected:
                found[state.zid] = DiscoveredNode(state.zid, state.whatami, state.locators)
        if not news:
            return [], list(found.values())
        others = [known for known, link in self._links.items() if link.zid != source.zid]
        return self._send(others, [neighbour]), list(found.values())

    def _update_locators(self, neighbour: _GossipNode, state: _ResolvedLinkState) -> bool:
        """Apply a neighbour's own state; return whether its locators changed."""
        if state.sn <= neighbour.sn:
            return False
        neighbour.sn = state.sn
        if state.locators is None or state.locators == neighbour.locators:
            return False
        neighbour.locators = state.locators
        return True

    def _flood(
        self, link: Hashable, told: list[_ResolvedLinkState]
    ) -> tuple[Bodies, list[DiscoveredNode]]:
        """Many hops: new nodes go to all links (they bind numbers), changes to all others.

        A sender that lists a node without its state is sent that state.
        """
        news = _News()
        for state in told:
            self._apply(state, news)
        if news.new or news.changed:
            self._remove_detached()
        back = self._still_here(news.owed | news.new)
        onward = self._still_here(news.new | news.changed)
        others = [known for known in self._links if known != link]
        bodies = (self._send([link], back) if back else []) + (
            self._send(others, onward) if onward else []
        )
        return bodies, [
            DiscoveredNode(node.zid, node.whatami or WireWhatAmI.ROUTER, node.locators)
            for node in onward
            if node.locators and node.zid not in self._own.links
        ]

    def _apply(self, state: _ResolvedLinkState, news: _News) -> None:
        """Apply one link state, and note in `news` which nodes have to be sent."""
        node = self._nodes.get(state.zid)
        if node is self._own:
            if self._own.sn < state.sn < U64:  # other nodes hold a state from before a restart
                self._own.sn = state.sn + 1
                news.new[state.zid] = self._own
        elif node is None:
            node = self._add_within_limit(state.zid, state.whatami)
            if node is not None:
                news.new[state.zid] = node
                self._update(node, state, news)
        elif state.sn > node.sn:
            if node.sn:
                news.changed[state.zid] = node
            else:
                news.new[state.zid] = node
            self._update(node, state, news)
        elif state.sn == 0 and node.sn:
            news.owed[state.zid] = node

    def _update(self, node: _GossipNode, state: _ResolvedLinkState, news: _News) -> None:
        """Apply a newer state, and add the nodes that are known only from its links."""
        node.sn = state.sn
        node.gateway = state.gateway
        if node.zid not in self._own.links:
            node.whatami = state.whatami
        if state.locators is not None:
            node.locators = state.locators
        self._set_links(node, state.links)
        for zid in sorted(zid for zid in node.links if zid not in self._nodes):
            listed = self._add_within_limit(zid, None)
            if listed is not None:
                news.new[zid] = listed

    def _set_links(self, node: _GossipNode, links: frozenset[WireZenohId]) -> None:
        room = min(MAX_NODE_LINKS, MAX_EDGES - self._edges + len(node.links))
        if len(links) > room:
            self.ignored["links"] += len(links) - room
            links = frozenset(sorted(links)[:room])
        self._edges += len(links) - len(node.links)
        node.links = links

    def _own_links_changed(self) -> None:
        self._own.links = frozenset(link.zid for link in self._links.values())
        self._own.sn += 1

    def _add_within_limit(
        self, zid: WireZenohId, whatami: WireWhatAmI | None
    ) -> _GossipNode | None:
        if len(self._nodes) >= MAX_NODES:
            self.ignored["nodes"] += 1
            return None
        return self._add(zid, whatami)

    def _add(self, zid: WireZenohId, whatami: WireWhatAmI | None) -> _GossipNode:
        # The smallest free number: receivers in Rust keep arrays of that length.
        psid = heapq.heappop(self._free_psids) if self._free_psids else len(self._nodes)
        node = self._nodes[zid] = _GossipNode(zid, whatami, psid)
        return node

    def _remove(self, zid: WireZenohId) -> None:
        node = self._nodes.pop(zid)
        self._edges -= len(node.links)
        heapq.heappush(self._free_psids, node.psid)

    def _remove_detached(self) -> None:
        """Remove the nodes that no chain of links leads to."""
        reached = {self._own.zid}
        ahead = [self._own]
        while ahead:
            for zid in ahead.pop().links - reached:
                node = self._nodes.get(zid)
                if node is not None:
                    reached.add(zid)
                    ahead.append(node)
        for zid in self._nodes.keys() - reached:
            self._remove(zid)

    def _still_here(self, nodes: dict[WireZenohId, _GossipNode]) -> list[_GossipNode]:
        return [node for zid, node in nodes.items() if self._nodes.get(zid) is node]

    def _send(self, links: Iterable[Hashable], nodes: list[_GossipNode]) -> Bodies:
        """Return the nodes' states for each link, with links for routers and with multihop."""
        bodies: dict[bool, bytes] = {}
        out: Bodies = []
        for known in links:
            link = self._links[known]
            if not link.whatami & self._target:
                continue
            listed = self._multihop or link.gateway
            if listed not in bodies:
                bodies[listed] = write_link_states([self._state(node, listed) for node in nodes])
            out.append((known, bodies[listed]))
        return out

    def _state(self, node: _GossipNode, listed: bool) -> LinkState:
        links = [self._nodes[zid].psid for zid in node.links if zid in self._nodes]
        return LinkState(
            node.psid,
            node.sn,
            node.zid,
            node.whatami,
            self._own_locators() if node is self._own else node.locators,
            tuple(sorted(links)) if listed else (),
            gateway=node.gateway,
        )

    def _own_locators(self) -> tuple[Locator, ...]:
        """Return the locators that other machines reach; if there are none, the local ones."""
        locators = tuple(self._locators())
        return (remote_only(locators) or locators)[:MAX_LOCATORS]


def _read(body: bytes) -> list[LinkState]:
    if len(body) > MAX_BODY_BYTES or ByteReader(body).zint("link states") > MAX_STATES:
        raise DecodeError(Reason.TOO_LARGE, "link states", 0)
    return read_link_states(body)
