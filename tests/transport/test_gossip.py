"""Gossip says what Rust says, reaches whom it should, ends, and survives any bytes."""

import random
from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.vectors import load
from zenlake.errors import DecodeError, Reason
from zenlake.transport import gossip
from zenlake.transport.gossip import MAX_BODY_BYTES, MAX_STATES, DiscoveredNode, Gossip
from zenlake.transport.scouting import MAX_LOCATORS
from zenlake.wire.batch import read_batch
from zenlake.wire.cursor import U64, ByteWriter
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.frame import Frame
from zenlake.wire.linkstate import LinkState, read_link_states, write_link_states
from zenlake.wire.locator import Locator
from zenlake.wire.oam import LINK_STATE, NetworkOam
from zenlake.wire.zenohid import WireZenohId

ROUTER, PEER, CLIENT = WireWhatAmI.ROUTER, WireWhatAmI.PEER, WireWhatAmI.CLIENT
ME, A, B, C, D = (WireZenohId(bytes([byte])) for byte in (0xEE, 0xA1, 0xB1, 0xC1, 0xD1))
FAR, FURTHER = Locator("tcp/192.0.2.1:7447"), Locator("tcp/192.0.2.2:7447")
NEAR = Locator("tcp/127.0.0.1:7447")

RECORDED_A = WireZenohId.parse("a1a2a3a4")
RECORDED_B = WireZenohId.parse("b1b2b3b4b5b6b7b8b9babbbcbdbebfb0")


def node(
    *locators: Locator, zid: WireZenohId = ME, multihop: bool = False, role: WireWhatAmI = PEER
) -> Gossip:
    return Gossip(zid, role, lambda: locators or (FAR,), multihop=multihop)


def states(sent: list[tuple[int, bytes]]) -> dict[int, list[LinkState]]:
    assert len({link for link, _ in sent}) == len(sent)
    return {link: read_link_states(body) for link, body in sent}


def body(*entries: LinkState) -> bytes:
    return write_link_states(list(entries))


def says(zid: WireZenohId, sn: int = 2, *locators: Locator, psid: int = 0) -> bytes:
    return body(LinkState(psid, sn, zid, PEER, locators))


# --- as recorded ---


def bodies_of(name: str, sender: str) -> list[bytes]:
    """The link-state lists that one side of a recorded conversation sent."""
    return [
        message.body
        for batch in load(name).of(sender)
        for transport in read_batch(batch)
        if isinstance(transport, Frame)
        for message in transport.messages
        if isinstance(message, NetworkOam) and message.id == LINK_STATE
        if isinstance(message.body, bytes)
    ]


def listening(recorded: bytes) -> tuple[Locator, ...]:
    """Where the sender of its first list listens."""
    locators = read_link_states(recorded)[0].locators
    assert locators
    return locators


@pytest.mark.parametrize("name", ["peer_peer", "peer_peer_declared", "peer_gossip"])
def test_peers_introduce_themselves_as_recorded(name: str) -> None:
    first_a, first_b = bodies_of(name, "A")[0], bodies_of(name, "B")[0]
    a = Gossip(RECORDED_A, PEER, lambda: listening(first_a))
    b = Gossip(RECORDED_B, PEER, lambda: listening(first_b))
    assert a.opened(7, RECORDED_B, PEER) == [(7, first_a)]
    assert b.opened(7, RECORDED_A, PEER) == [(7, first_b)]
    assert a.received(7, first_b) == ([], [])
    assert b.received(7, first_a) == ([], [])
    assert a.nodes() == [DiscoveredNode(RECORDED_B, PEER, listening(first_b))]


def test_three_peers_as_recorded() -> None:
    """C connects to B, B tells A of it, A and C connect, and A tells B what C says by then."""
    (first_a, second_a), (first_b, second_b) = (bodies_of("peer_gossip", who) for who in "AB")
    (told,) = read_link_states(second_b)
    assert told.locators is not None
    c = DiscoveredNode(C, PEER, told.locators)

    b = Gossip(RECORDED_B, PEER, lambda: listening(first_b))
    b.opened(1, RECORDED_A, PEER)
    b.received(1, first_a)
    b.opened(2, C, PEER)
    assert b.received(2, says(C, 2, *c.locators)) == ([(1, second_b)], [])

    a = Gossip(RECORDED_A, PEER, lambda: listening(first_a))
    a.opened(1, RECORDED_B, PEER)
    assert a.received(1, first_b) == ([], [])
    assert a.received(1, second_b) == ([], [c])
    (to_c,) = a.opened(2, C, PEER)
    assert to_c[0] == 2
    assert a.received(2, says(C, 3, *c.locators)) == ([(1, second_a)], [])
    assert b.received(1, second_a) == ([], [])


@pytest.mark.parametrize(
    ("name", "peer", "router"), [("peer_router", "A", "B"), ("router_dials_peer", "B", "A")]
)
def test_peer_and_router_as_recorded(name: str, peer: str, router: str) -> None:
    zids = {"A": RECORDED_A, "B": RECORDED_B}
    (of_peer,), (of_router,) = bodies_of(name, peer), bodies_of(name, router)
    ours = Gossip(zids[peer], PEER, lambda: listening(of_peer))
    theirs = Gossip(zids[router], ROUTER, lambda: (FAR,))
    assert ours.opened(1, zids[router], ROUTER) == [(1, of_peer)]
    assert theirs.opened(1, zids[peer], PEER) == [(1, of_router)]
    assert ours.received(1, of_router) == ([], [])
    assert theirs.received(1, of_peer) == ([], [])


RECORDINGS = [
    "init_gateway",
    "peer_gossip",
    "peer_peer",
    "peer_peer_declared",
    "peer_router",
    "router_dials_peer",
    "router_line",
    "router_router",
    "router_weights",
]


@pytest.mark.parametrize("multihop", [False, True])
@pytest.mark.parametrize("name", RECORDINGS)
def test_every_recorded_body_is_taken(name: str, multihop: bool) -> None:
    for sender, zid in (("A", RECORDED_A), ("B", RECORDED_B)):
        ours = node(multihop=multihop)
        ours.opened(1, zid, PEER)
        recorded = bodies_of(name, sender)
        assert recorded
        for data in recorded:
            ours.received(1, data)
        assert zid in {found.zid for found in ours.nodes()}
        assert ours.ignored.total() == 0


# --- what is said, to whom ---


@pytest.mark.parametrize(
    ("listens", "said"),
    [
        ((FAR,), (FAR,)),
        ((NEAR, FAR, FURTHER), (FAR, FURTHER)),
        ((NEAR,), (NEAR,)),
        ((Locator("unixsock-stream//tmp/z"), FAR), (FAR,)),
        ((Locator("unixsock-stream//tmp/z"), NEAR), ("unixsock-stream//tmp/z", NEAR)),
    ],
)
def test_local_locators_are_said_only_if_there_are_no_others(
    listens: tuple[Locator, ...], said: tuple[str, ...]
) -> None:
    sent = states(node(*listens).opened(1, A, PEER))
    assert sent[1][0].locators == said


@pytest.mark.parametrize(
    ("own", "other", "told"),
    [
        (PEER, PEER, True),
        (PEER, ROUTER, True),
        (PEER, CLIENT, False),
        (ROUTER, PEER, True),
        (ROUTER, ROUTER, True),
        (ROUTER, CLIENT, False),
        (CLIENT, ROUTER, False),
        (CLIENT, PEER, False),
    ],
)
def test_gossip_is_exchanged_between_routers_and_peers_only(
    own: WireWhatAmI, other: WireWhatAmI, told: bool
) -> None:
    assert bool(node(role=own).opened(1, A, other)) is told


def test_a_client_listens_all_the_same() -> None:
    ours = node(role=CLIENT)
    ours.opened(1, A, ROUTER)
    assert ours.received(1, says(B, 2, FAR)) == ([], [DiscoveredNode(B, PEER, (FAR,))])


def test_the_target_can_be_chosen() -> None:
    ours = Gossip(ME, PEER, lambda: (FAR,), target=ROUTER)
    assert ours.opened(1, A, PEER) == []
    assert [link for link, _ in ours.opened(2, B, ROUTER)] == [2]


def test_clients_are_not_gossiped() -> None:
    ours = node()
    ours.opened(1, A, CLIENT)
    assert [entry.zid for entry in states(ours.opened(2, B, PEER))[2]] == [ME, B]
    assert ours.received(1, says(C, 2, FAR)) == ([], [])
    assert ours.closed(1) == []


def test_news_of_a_neighbour_goes_to_the_others_once() -> None:
    ours = node()
    for link, zid in enumerate((A, B, C)):
        ours.opened(link, zid, PEER)
    sent, found = ours.received(0, says(A, 2, FURTHER))
    assert found == []
    assert set(states(sent)) == {1, 2}
    assert states(sent)[1] == [LinkState(1, 2, A, PEER, (FURTHER,))]
    assert ours.received(0, says(A, 2, FAR)) == ([], [])  # not newer
    assert ours.received(0, says(A, 1, FAR)) == ([], [])  # older
    assert ours.received(0, says(A, 3, FURTHER)) == ([], [])  # newer, and the same
    assert set(states(ours.received(0, says(A, 4, FAR))[0])) == {1, 2}
    assert set(states(ours.received(0, says(A, 5))[0])) == {1, 2}


def test_what_a_neighbour_says_of_others_ends_here() -> None:
    ours = node()
    ours.opened(1, A, PEER)
    ours.opened(2, B, PEER)
    assert ours.received(1, says(C, 9, FAR)) == ([], [DiscoveredNode(C, PEER, (FAR,))])
    assert ours.received(1, says(B, 9, FAR)) == ([], [])  # there is a session already
    assert ours.received(1, says(ME, 9, FAR)) == ([], [])  # ourselves
    assert ours.received(1, says(C, 9)) == ([], [])  # no locator to connect to
    assert {found.zid for found in ours.nodes()} == {A, B}


def test_a_later_neighbour_is_told_of_the_earlier() -> None:
    ours = node()
    ours.opened(1, A, PEER)
    ours.received(1, says(A, 2, FURTHER))
    told = {entry.zid: entry.locators for entry in states(ours.opened(2, B, PEER))[2]}
    assert told == {ME: (FAR,), A: (FURTHER,), B: None}
    ours.closed(1)
    told = {entry.zid: entry.locators for entry in states(ours.opened(3, C, PEER))[3]}
    assert told == {ME: (FAR,), B: None, C: None}


def test_a_router_tells_peers_of_each_other_and_not_of_itself() -> None:
    ours = node(role=ROUTER)
    assert states(ours.opened(1, A, PEER)) == {1: []}
    ours.received(1, says(A, 2, FURTHER))
    assert states(ours.opened(2, B, PEER)) == {2: [LinkState(1, 2, A, PEER, (FURTHER,))]}
    sent, _ = ours.received(2, says(B, 2, FAR))
    assert states(sent) == {1: [LinkState(2, 2, B, PEER, (FAR,))]}


def test_a_router_learns_of_the_links_of_a_peer() -> None:
    ours = node()
    ours.opened(1, A, ROUTER)
    sent = states(ours.opened(2, B, PEER))
    assert sent[1] == [
        LinkState(2, 0, B, PEER),
        LinkState(0, 3, ME, PEER, (FAR,), (1, 2)),
    ]
    assert sent[2][0].links == ()


def test_numbers_are_used_again_and_bound_again() -> None:
    ours = node()
    ours.opened(1, A, PEER)
    ours.opened(2, B, PEER)
    ours.closed(1)
    told = {entry.psid: entry.zid for entry in states(ours.opened(3, C, PEER))[3]}
    assert told == {0: ME, 1: C, 2: B}


def test_a_zid_is_bound_once_and_may_be_left_out_later() -> None:
    ours = node()
    ours.opened(1, A, PEER)
    ours.received(1, says(C, 2, FAR, psid=5))
    later = body(LinkState(5, 3, None, PEER, (FURTHER,)), LinkState(6, 3, None, PEER, (FAR,)))
    assert ours.received(1, later) == ([], [DiscoveredNode(C, PEER, (FURTHER,))])
    assert ours.ignored == {"unknown psid": 1}


def test_an_absent_role_is_router() -> None:
    ours = node()
    ours.opened(1, A, PEER)
    _, found = ours.received(1, body(LinkState(1, 1, C, None, (FAR,))))
    assert found == [DiscoveredNode(C, ROUTER, (FAR,))]


@pytest.mark.parametrize("multihop", [False, True])
def test_links_that_are_not_there(multihop: bool) -> None:
    ours = node(multihop=multihop)
    assert ours.closed(9) == []
    assert ours.received(9, says(A, 2, FAR)) == ([], [])
    assert ours.ignored == {"unknown link": 1}
    assert ours.opened(1, ME, PEER) == []


# --- many hops ---


def test_multihop_passes_states_on_with_their_links() -> None:
    ours = node(multihop=True)
    ours.opened(1, A, PEER)
    ours.opened(2, B, PEER)
    told = body(
        LinkState(0, 2, A, PEER, (FAR,), (1, 2)),
        LinkState(1, 0, ME, PEER),
        LinkState(2, 7, C, PEER, (FURTHER,), (0,)),
    )
    sent, found = ours.received(1, told)
    assert found == [DiscoveredNode(C, PEER, (FURTHER,))]
    to_b = {entry.zid: entry for entry in states(sent)[2]}
    assert to_b[A] == LinkState(1, 2, A, PEER, (FAR,), (0, 3))
    assert to_b[C] == LinkState(3, 7, C, PEER, (FURTHER,), (1,))
    assert ours.received(1, told) == ([], [])


def test_multihop_forgets_whom_nobody_reaches() -> None:
    ours = node(multihop=True)
    ours.opened(1, A, PEER)
    ours.received(
        1, body(LinkState(0, 2, A, PEER, (FAR,), (2,)), LinkState(2, 7, C, PEER, (FAR,), (0,)))
    )
    assert {found.zid for found in ours.nodes()} == {A, C}
    ours.received(1, body(LinkState(0, 3, None, PEER)))
    assert {found.zid for found in ours.nodes()} == {A}
    assert ours.received(1, says(D, 1, FAR, psid=9)) == ([], [])  # no node has a link to it
    assert ours.closed(1) == []
    assert ours.nodes() == []


def test_multihop_outbids_its_own_past() -> None:
    ours = node(multihop=True)
    ours.opened(1, A, PEER)
    sent, found = ours.received(1, body(LinkState(1, 41, ME, PEER, (NEAR,))))
    assert found == []
    assert states(sent) == {1: [LinkState(0, 42, ME, PEER, (FAR,), (1,))]}
    assert ours.received(1, body(LinkState(1, 42, ME, PEER, (NEAR,)))) == ([], [])
    assert ours.received(1, body(LinkState(1, U64, ME, PEER, (NEAR,)))) == ([], [])


def test_multihop_gives_the_state_to_who_lacks_it() -> None:
    ours = node(multihop=True)
    ours.opened(1, A, PEER)
    ours.opened(2, B, PEER)
    ours.received(2, says(B, 5, FURTHER))
    sent, _ = ours.received(1, body(LinkState(3, 0, B, PEER)))
    assert states(sent) == {1: [LinkState(2, 5, B, PEER, (FURTHER,))]}


def test_multihop_keeps_the_role_of_the_handshake() -> None:
    ours = node(multihop=True)
    ours.opened(1, A, PEER)
    ours.received(1, body(LinkState(0, 2, A, ROUTER, (FAR,))))
    assert ours.nodes() == [DiscoveredNode(A, PEER, (FAR,))]


# --- convergence ---


class Net:
    """Nodes and links between them; messages of one direction stay in order, others do not."""

    def __init__(self, size: int, seed: int, *, multihop: bool) -> None:
        self.chance = random.Random(seed)
        self.zids = [WireZenohId(self.chance.randbytes(15) + b"\x01") for _ in range(size)]
        self.locators = [(Locator(f"tcp/192.0.2.1:{10_000 + i}"),) for i in range(size)]
        self.nodes = [
            node(*at, zid=zid, multihop=multihop)
            for zid, at in zip(self.zids, self.locators, strict=True)
        ]
        self.wires: dict[tuple[int, int], deque[bytes]] = {}
        self.found: dict[int, dict[WireZenohId, tuple[Locator, ...]]] = defaultdict(dict)
        self.messages = 0

    def open(self, a: int, b: int) -> None:
        self.wires[a, b], self.wires[b, a] = deque(), deque()
        for end, other in ((a, b), (b, a)):
            self.post(end, self.nodes[end].opened(other, self.zids[other], PEER))

    def close(self, a: int, b: int) -> None:
        del self.wires[a, b], self.wires[b, a]
        for end, other in ((a, b), (b, a)):
            self.post(end, self.nodes[end].closed(other))

    def post(self, sender: int, sent: list[tuple[int, bytes]]) -> None:
        for link, data in sent:
            self.wires[sender, link].append(data)

    def deliver(self) -> bool:
        busy = [wire for wire, queue in self.wires.items() if queue]
        if not busy:
            return False
        sender, receiver = self.chance.choice(busy)
        data = self.wires[sender, receiver].popleft()
        sent, found = self.nodes[receiver].received(sender, data)
        self.post(receiver, sent)
        self.found[receiver] |= {node.zid: node.locators for node in found}
        self.messages += 1
        return True

    def settle(self, limit: int) -> None:
        start = self.messages
        while self.deliver():
            assert self.messages - start <= limit, "gossip does not end"

    def edges(self, extra: int) -> list[tuple[int, int]]:
        """A random tree and some more: connected."""
        size = len(self.nodes)
        out = {(self.chance.randrange(i), i) for i in range(1, size)}
        while len(out) < size - 1 + extra:
            a, b = sorted(self.chance.sample(range(size), 2))
            out.add((a, b))
        order = sorted(out)
        self.chance.shuffle(order)
        return order

    def neighbours(self, i: int) -> set[int]:
        return {b for a, b in self.wires if a == i}

    def reach(self, i: int) -> set[int]:
        seen, ahead = {i}, [i]
        while ahead:
            more = self.neighbours(ahead.pop()) - seen
            seen |= more
            ahead.extend(more)
        return seen - {i}

    def where(self, those: set[int]) -> dict[WireZenohId, tuple[Locator, ...]]:
        return {self.zids[i]: self.locators[i] for i in those}

    def known(self, i: int) -> dict[WireZenohId, tuple[Locator, ...]]:
        return {node.zid: node.locators for node in self.nodes[i].nodes()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("at_once", [True, False])
def test_one_hop_finds_the_neighbours_of_neighbours(seed: int, at_once: bool) -> None:
    net = Net(50, seed, multihop=False)
    edges = net.edges(extra=30)
    # Each node is introduced once on each of its links, and relayed once to each other link.
    degree = [sum(i in edge for edge in edges) for i in range(50)]
    limit = sum(d + d * d for d in degree)
    for edge in edges:
        net.open(*edge)
        if not at_once:
            net.settle(limit)
    net.settle(limit)
    assert net.messages <= limit
    for i in range(50):
        near = net.neighbours(i)
        beyond = set().union(*(net.neighbours(j) for j in near)) - near - {i}
        assert net.known(i) == net.where(near)
        found = {zid: at for zid, at in net.found[i].items() if zid not in net.where(near)}
        assert found == net.where(beyond)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("at_once", [True, False])
def test_many_hops_find_everybody(seed: int, at_once: bool) -> None:
    net = Net(50, seed, multihop=True)
    edges = net.edges(extra=20)
    # A node has one state for each of its links; no state crosses a link twice in one direction,
    # but for the answers to who lacks one.
    limit = 2 * (2 * len(edges)) ** 2
    for edge in edges:
        net.open(*edge)
        if not at_once:
            net.settle(limit)
    net.settle(limit)
    assert net.messages <= limit
    everybody = set(range(50))
    for i in range(50):
        assert net.known(i) == net.where(everybody - {i})
        unlinked = everybody - net.neighbours(i) - {i}
        assert net.found[i].items() >= net.where(unlinked).items()


@pytest.mark.parametrize("seed", range(6))
def test_many_hops_follow_what_comes_and_goes(seed: int) -> None:
    net = Net(16, seed, multihop=True)
    for edge in net.edges(extra=8):
        net.open(*edge)
    for _ in range(60):
        a, b = sorted(net.chance.sample(range(16), 2))
        (net.close if (a, b) in net.wires else net.open)(a, b)
        for _ in range(net.chance.randrange(12)):
            net.deliver()
    net.settle(limit=100_000)
    for i in range(16):
        assert net.known(i) == net.where(net.reach(i)), i


# --- limits, and bytes that mean harm ---


@pytest.mark.parametrize("multihop", [False, True])
def test_a_body_has_limits(multihop: bool) -> None:
    ours = node(multihop=multihop)
    ours.opened(1, A, PEER)
    entry = body(LinkState(0, 2, A, PEER))[1:]
    w = ByteWriter()
    w.zint("count", MAX_STATES + 1)
    many = bytes(w.out) + entry * (MAX_STATES + 1)
    w = ByteWriter()
    w.zint("count", MAX_STATES)
    ours.received(1, bytes(w.out) + entry * MAX_STATES)
    for hostile in (many, body(LinkState(0, 2, A, PEER)) + bytes(MAX_BODY_BYTES)):
        with pytest.raises(DecodeError) as caught:
            ours.received(1, hostile)
        assert caught.value.reason is Reason.TOO_LARGE


@pytest.mark.parametrize("multihop", [False, True])
def test_locators_have_a_limit(multihop: bool) -> None:
    ours = node(multihop=multihop)
    ours.opened(1, A, PEER)
    many = tuple(Locator(f"tcp/192.0.2.1:{port}") for port in range(1, MAX_LOCATORS + 4))
    ours.received(1, says(A, 2, *many))
    assert ours.nodes() == [DiscoveredNode(A, PEER, many[:MAX_LOCATORS])]
    assert ours.ignored == {"locators": 3}
    own = node(*(Locator(f"tcp/192.0.2.1:{port}") for port in range(1, MAX_LOCATORS + 4)))
    assert states(own.opened(1, A, PEER))[1][0].locators == many[:MAX_LOCATORS]


def star(count: int) -> bytes:
    """A with links to `count` others."""
    others = [
        LinkState(i, 1, WireZenohId(bytes([i, 1, 1])), PEER, (FAR,)) for i in range(1, count + 1)
    ]
    return body(LinkState(0, 2, A, PEER, (FAR,), tuple(range(1, count + 1))), *others)


def test_nodes_have_a_limit_but_neighbours_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip, "MAX_NODES", 5)
    ours = node(multihop=True)
    ours.opened(1, A, PEER)
    ours.received(1, star(10))
    assert len(ours.nodes()) == 4
    assert ours.ignored["nodes"] > 0
    ours.opened(2, B, PEER)
    assert B in {found.zid for found in ours.nodes()}
    ours.received(1, body(LinkState(0, 3, A, PEER)))
    assert {found.zid for found in ours.nodes()} == {A, B}


def test_numbers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip, "MAX_PSIDS", 3)
    ours = node()
    ours.opened(1, A, PEER)
    _, found = ours.received(1, star(5))
    assert len(found) == 5
    assert ours.ignored == {"psids": 3}
    later = body(*(LinkState(i, 2, None, PEER, (FURTHER,)) for i in range(1, 6)))
    assert len(ours.received(1, later)[1]) == 2
    ours.received(1, says(B, 1, FAR, psid=2))  # a bound number can be bound again
    assert ours.ignored == {"psids": 3, "unknown psid": 3}


@pytest.mark.parametrize(("name", "limit"), [("MAX_NODE_LINKS", 3), ("MAX_EDGES", 3)])
def test_links_have_limits(monkeypatch: pytest.MonkeyPatch, name: str, limit: int) -> None:
    monkeypatch.setattr(gossip, name, limit)
    ours = node(multihop=True)
    ours.opened(1, A, PEER)
    ours.received(1, star(8))
    assert len(ours.nodes()) == 1 + limit
    assert ours.ignored == {"links": 5}
    ours.received(1, body(LinkState(0, 3, A, PEER, None, (1,))))  # and they are given back
    assert len(ours.nodes()) == 2
    ours.received(1, body(LinkState(0, 4, A, PEER, None, (1, 2, 3))))
    assert len(ours.nodes()) == 4


def test_links_of_a_forgotten_node_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip, "MAX_EDGES", 4)
    ours = node(multihop=True)
    ours.opened(1, A, PEER)
    ours.received(1, star(1))
    ours.received(1, body(LinkState(1, 2, None, PEER, None, (0, 1)), LinkState(2, 1, B, PEER)))
    ours.received(1, body(LinkState(0, 3, None, PEER)))
    assert [found.zid for found in ours.nodes()] == [A]
    ours.received(1, body(*read_link_states(star(4))[1:], LinkState(0, 4, A, links=(1, 2, 3, 4))))
    assert len(ours.nodes()) == 5
    assert ours.ignored.total() == 0


@pytest.mark.parametrize("multihop", [False, True])
def test_great_numbers_are_only_numbers(multihop: bool) -> None:
    ours = node(multihop=multihop)
    ours.opened(1, A, PEER)
    ours.opened(2, B, PEER)
    sent, _ = ours.received(1, body(LinkState(U64, U64, A, PEER, (FURTHER,), (U64, 5))))
    assert states(sent)[2][0].sn == U64
    assert ours.received(1, says(A, U64, FAR)) == ([], [])


@pytest.mark.parametrize("multihop", [False, True])
def test_damaged_bodies_raise_or_are_taken(multihop: bool) -> None:
    chance = random.Random(9)
    good = [
        b for name in ("peer_gossip", "router_line") for who in "AB" for b in bodies_of(name, who)
    ]
    good += [star(6), says(A, 2, FAR, FURTHER)]
    ours = node(multihop=multihop)
    for link, zid in enumerate((RECORDED_A, RECORDED_B, A)):
        ours.opened(link, zid, PEER)
    bad = 0
    for _ in range(4000):
        data = bytearray(chance.choice(good))
        for _ in range(chance.randint(0, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        try:
            sent, found = ours.received(chance.randrange(3), bytes(data))
        except DecodeError:
            bad += 1
            continue
        states(sent)
        assert all(node.locators and node.zid != ME for node in found)
    assert 500 < bad < 4000
    assert {RECORDED_A, RECORDED_B, A} <= {found.zid for found in ours.nodes()}
    assert states(ours.opened(9, D, PEER))[9][0].zid == ME


@pytest.mark.parametrize("multihop", [False, True])
@given(data=st.binary(max_size=80))
def test_any_bytes_raise_or_are_taken(multihop: bool, data: bytes) -> None:
    ours = node(multihop=multihop)
    ours.opened(1, A, PEER)
    try:
        sent, _ = ours.received(1, data)
    except DecodeError:
        assert ours.nodes() == [DiscoveredNode(A, PEER, ())]
    else:
        states(sent)
