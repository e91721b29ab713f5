"""Gossip: nodes tell their neighbours whom they know and where those listen (network OAM id 1).

Knows link states and how far each one travels. Does not know sessions, nor whom to dial: it says
who was found.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zenlake.errors import DecodeError, Reason
from zenlake.transport.scouting import MAX_LOCATORS, remote
from zenlake.wire.cursor import U64, ByteReader
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.linkstate import LinkState, read_link_states, write_link_states
from zenlake.wire.locator import Locator
from zenlake.wire.zenohid import WireZenohId

MAX_BODY_BYTES = 4 << 20
MAX_STATES = 10_000  # in one body
MAX_NODES = 10_000  # known; neighbours come in beyond it, sessions have their own limit
MAX_PSIDS = 10_000  # that one link may bind
MAX_NODE_LINKS = 1000  # that are kept of one node
MAX_EDGES = 200_000  # that are kept of all nodes

# Own role -> the roles that are told anything.
TARGETS = {
    WireWhatAmI.ROUTER: WireWhatAmI.ROUTER | WireWhatAmI.PEER,
    WireWhatAmI.PEER: WireWhatAmI.ROUTER | WireWhatAmI.PEER,
    WireWhatAmI.CLIENT: WireWhatAmI(0),
}

Bodies = list[tuple[int, bytes]]
"What to send: to which link, which OAM body."


@dataclass(frozen=True)
class DiscoveredNode:
    """A node that somebody told of, and where it listens."""

    zid: WireZenohId
    whatami: WireWhatAmI
    locators: tuple[Locator, ...]


@dataclass(slots=True)
class _GossipNode:
    zid: WireZenohId
    whatami: WireWhatAmI | None
    "None: only named as somebody's neighbour so far."
    psid: int
    sn: int = 0
    "0: nothing was told by the node itself yet."
    locators: tuple[Locator, ...] | None = None
    links: frozenset[WireZenohId] = frozenset()
    gateway: bool = False


@dataclass(slots=True)
class _GossipLink:
    zid: WireZenohId
    whatami: WireWhatAmI
    gateway: bool
    psids: dict[int, WireZenohId] = field(default_factory=dict)
    "The neighbour's numbers for nodes."


class _ResolvedLinkState(NamedTuple):
    """A link state whose numbers have been replaced by ids."""

    zid: WireZenohId
    whatami: WireWhatAmI
    sn: int
    locators: tuple[Locator, ...] | None
    links: frozenset[WireZenohId]
    gateway: bool


class Gossip:
    """What one node knows of the others.

    Without `multihop` a node tells its neighbours of itself and of its other neighbours, so each
    finds the neighbours of its neighbours. With it, which all nodes must agree on, every state
    goes to everybody, with the links, by which nodes that nobody reaches any more are forgotten.

    A router tells peers of each other but not of itself, and a peer tells routers its links. Links
    to clients take no part; links between routers belong to the mesh.
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
        "What was told and not kept, by reason."
        self._locators = locators
        self._multihop = multihop
        self._target = TARGETS[whatami] if target is None else target
        self._links: dict[int, _GossipLink] = {}
        self._own = _GossipNode(zid, whatami, psid=0, sn=1)
        self._nodes = {zid: self._own}
        self._free_psids: list[int] = []
        self._edges = 0

    def known(self) -> list[DiscoveredNode]:
        """The other nodes, neighbours or not, with what is known of their locators."""
        return [
            DiscoveredNode(node.zid, node.whatami or WireWhatAmI.ROUTER, node.locators or ())
            for node in self._nodes.values()
            if node is not self._own
        ]

    def opened(self, link: int, zid: WireZenohId, whatami: WireWhatAmI) -> Bodies:
        """A session is open: what to send."""
        if whatami == WireWhatAmI.CLIENT or zid == self._own.zid:
            return []
        gateway = (self._own.whatami, whatami) == (WireWhatAmI.PEER, WireWhatAmI.ROUTER)
        new = zid not in self._nodes
        if new:
            self._add(zid, whatami).gateway = gateway and not self._multihop
        self._links[link] = _GossipLink(zid, whatami, gateway)
        self._own_links_changed()
        others = [
            number
            for number, other in self._links.items()
            if other.zid != zid and (self._multihop or other.gateway)
        ]
        news = [self._nodes[zid], self._own] if new else [self._own]
        return self._send(others, news) + self._send([link], self._introduction())

    def closed(self, link: int) -> Bodies:
        """The session has ended: what to send to others."""
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

    def received(self, link: int, body: bytes) -> tuple[Bodies, list[DiscoveredNode]]:
        """What to pass on, and nodes without a session here that could be dialled.

        DecodeError: `body` is no list of link states, or is beyond the limits; nothing changed.
        """
        states = _read(body)
        source = self._links.get(link)
        if source is None:
            self.ignored["unknown link"] += len(states)
            return [], []
        told = self._resolve(source, states)
        return self._flood(link, told) if self._multihop else self._relay(source, told)

    def _introduction(self) -> list[_GossipNode]:
        """What a new neighbour is told; a router sends even an empty list: peers wait for it."""
        if self._multihop or self._own.whatami != WireWhatAmI.ROUTER:
            return list(self._nodes.values())
        return [node for node in self._nodes.values() if node.sn and node is not self._own]

    def _resolve(self, source: _GossipLink, states: list[LinkState]) -> list[_ResolvedLinkState]:
        """The states with ids for numbers; what names a number that is not bound is left out."""
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
        """One hop: what a neighbour says of itself goes to the others, the rest ends here."""
        news = False
        found: dict[WireZenohId, DiscoveredNode] = {}
        neighbour = self._nodes[source.zid]
        no_use = self._own.links | {self._own.zid}
        for state in told:
            if state.zid == source.zid:
                news |= self._take_news(neighbour, state)
            elif state.locators and state.zid not in no_use:
                found[state.zid] = DiscoveredNode(state.zid, state.whatami, state.locators)
        if not news:
            return [], list(found.values())
        others = [number for number, link in self._links.items() if link.zid != source.zid]
        return self._send(others, [neighbour]), list(found.values())

    def _take_news(self, neighbour: _GossipNode, state: _ResolvedLinkState) -> bool:
        """Whether the locators are others than before."""
        if state.sn <= neighbour.sn:
            return False
        neighbour.sn = state.sn
        if state.locators is None or state.locators == neighbour.locators:
            return False
        neighbour.locators = state.locators
        return True

    def _flood(
        self, link: int, told: list[_ResolvedLinkState]
    ) -> tuple[Bodies, list[DiscoveredNode]]:
        """Many hops: new nodes go to all links (they bind numbers), changes to all others.

        Who names a node without knowing its state is sent it.
        """
        new: dict[WireZenohId, _GossipNode] = {}
        changed: dict[WireZenohId, _GossipNode] = {}
        owed: dict[WireZenohId, _GossipNode] = {}
        for state in told:
            node = self._nodes.get(state.zid)
            if node is self._own:
                if self._outbid(state.sn):
                    new[state.zid] = self._own
            elif node is None:
                new |= self._learn(state)
            elif state.sn > node.sn:
                (changed if node.sn else new)[state.zid] = node
                new |= self._update(node, state)
            elif state.sn == 0 and node.sn:
                owed[state.zid] = node
        if new or changed:
            self._remove_detached()
        back = self._still_here(owed | new)
        onward = self._still_here(new | changed)
        others = [number for number in self._links if number != link]
        bodies = (self._send([link], back) if back else []) + (
            self._send(others, onward) if onward else []
        )
        return bodies, [
            DiscoveredNode(node.zid, node.whatami or WireWhatAmI.ROUTER, node.locators)
            for node in onward
            if node.locators and node.zid not in self._own.links
        ]

    def _outbid(self, sn: int) -> bool:
        """Whether others hold a state of ours from before a restart; the next sn is above it."""
        if not self._own.sn < sn < U64:
            return False
        self._own.sn = sn + 1
        return True

    def _learn(self, state: _ResolvedLinkState) -> dict[WireZenohId, _GossipNode]:
        """A node that was not known, and those that it brings along."""
        node = self._add_within_limit(state.zid, state.whatami)
        return {} if node is None else {node.zid: node} | self._update(node, state)

    def _update(
        self, node: _GossipNode, state: _ResolvedLinkState
    ) -> dict[WireZenohId, _GossipNode]:
        """Take over a newer state; the nodes that only its links name."""
        node.sn = state.sn
        node.gateway = state.gateway
        if node.zid not in self._own.links:
            node.whatami = state.whatami
        if state.locators is not None:
            node.locators = state.locators
        self._set_links(node, state.links)
        unknown = sorted(zid for zid in node.links if zid not in self._nodes)
        named = [self._add_within_limit(zid, None) for zid in unknown]
        return {other.zid: other for other in named if other is not None}

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
        # The smallest free number: the nodes of others keep arrays of that length.
        psid = heapq.heappop(self._free_psids) if self._free_psids else len(self._nodes)
        node = self._nodes[zid] = _GossipNode(zid, whatami, psid)
        return node

    def _remove(self, zid: WireZenohId) -> None:
        node = self._nodes.pop(zid)
        self._edges -= len(node.links)
        heapq.heappush(self._free_psids, node.psid)

    def _remove_detached(self) -> None:
        """Forget whom no chain of links leads to."""
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

    def _send(self, numbers: Iterable[int], nodes: list[_GossipNode]) -> Bodies:
        """The nodes' states for each of these links; links are listed where they are of use."""
        bodies: dict[bool, bytes] = {}
        out: Bodies = []
        for number in numbers:
            link = self._links[number]
            if not link.whatami & self._target:
                continue
            listed = self._multihop or link.gateway
            if listed not in bodies:
                bodies[listed] = write_link_states([self._state(node, listed) for node in nodes])
            out.append((number, bodies[listed]))
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
        """Those that other machines reach; the local ones if there are no others."""
        locators = tuple(self._locators())
        return (remote(locators) or locators)[:MAX_LOCATORS]


def _read(body: bytes) -> list[LinkState]:
    if len(body) > MAX_BODY_BYTES or ByteReader(body).zint("link states") > MAX_STATES:
        raise DecodeError(Reason.TOO_LARGE, "link states", 0)
    return read_link_states(body)
