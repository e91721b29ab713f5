"""Sessions that meet, expire, live on and come back, to the exact virtual second."""

from itertools import pairwise
from random import Random

import pytest

from tests.support.sim_peers import Heard, assert_nothing_left, heard, numbered, pair
from zenlake.errors import SessionRefused, ZError
from zenlake.runtime.node import Node
from zenlake.runtime.transport_session import LINGER_SECONDS, TransportSession
from zenlake.sim import Faults, World
from zenlake.sim.memory_link import MemoryLink
from zenlake.transport.offer import KEEP_ALIVES
from zenlake.transport.retry import RetryPolicy
from zenlake.wire.enums import CloseReason
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.slow

Found = list[TransportSession | ZError]
LEASE = 10.0


def refusal(found: Found) -> SessionRefused:
    (only,) = found
    assert isinstance(only, SessionRefused)
    return only


# ---- who may meet


@pytest.mark.parametrize("spread", [0.0, 0.004, 0.05], ids=["at once", "within a trip", "apart"])
def test_two_peers_that_dial_each_other_have_one_session(spread: float) -> None:
    world = World(11, Faults(delay=(0.0005, 0.02)))
    random = Random(11)
    pairs: list[tuple[Node, Node]] = []
    found: dict[Node, Found] = {}

    def dialling(node: Node, other: str) -> None:
        found[node] = []
        at = random.random() * spread
        world.reactor.call_at(at, lambda: node.connect_soon(f"memory/{other}", found[node].append))

    for i in range(200):
        a, b = world.node(f"a{i}", Heard()), world.node(f"b{i}", Heard())
        dialling(a, f"b{i}")
        dialling(b, f"a{i}")
        pairs.append((a, b))
    world.run(5)
    for a, b in pairs:
        assert set(a.sessions) == {b.zid}
        assert set(b.sessions) == {a.zid}
        assert a.pending == b.pending == 0
        assert len(heard(a).opened_sessions) == len(heard(b).opened_sessions) == 1
        assert not heard(a).ends
        results = [*found[a], *found[b]]
        assert len(results) == 2
        kept = {a.sessions[b.zid], b.sessions[a.zid]}
        for result in results:  # the session that there is, unless it was not open yet
            refused = isinstance(result, SessionRefused) and result.reason == CloseReason.MAX_LINKS
            assert refused or result in kept
        assert any(result in kept for result in results)
        assert a.refused["MAX_LINKS"] + b.refused["MAX_LINKS"] == 1
        ends = {a.sessions[b.zid].link.local.address, b.sessions[a.zid].link.remote.address}
        assert len(ends) == 1, "the two sides kept different links"
    world.close()
    assert_nothing_left(world, *(node for pair_ in pairs for node in pair_))


def test_when_both_dial_at_once_the_link_of_the_greater_id_stays() -> None:
    world = World(2, Faults(delay=(0.001, 0.001)))
    a, b = world.node("a", Heard()), world.node("b", Heard())
    a.connect_soon("memory/b", lambda found: None)
    b.connect_soon("memory/a", lambda found: None)
    world.run(1)
    greater, lesser = (a, b) if a.zid > b.zid else (b, a)
    name = "a" if greater is a else "b"
    assert greater.sessions[lesser.zid].link.local.address.startswith(f"{name}:")


def test_a_second_node_with_the_same_id_is_refused_with_close_4() -> None:
    world = World(3)
    twin = WireZenohId(b"twin")
    server = world.node("server", Heard())
    first, second = world.node("one", Heard(), zid=twin), world.node("two", Heard(), zid=twin)
    found: Found = []
    first.connect_soon("memory/server", lambda found: None)
    world.run(1)
    second.connect_soon("memory/server", found.append)
    world.run(1)
    assert refusal(found).reason == CloseReason.MAX_LINKS
    assert refusal(found).by_peer
    assert server.refused["MAX_LINKS"] == 1
    assert set(first.sessions) == {server.zid}
    assert set(server.sessions) == {twin}
    world.close("one")
    second.connect_soon("memory/server", found.append)
    world.run(1)
    assert set(second.sessions) == {server.zid}, "the place was given back"


def test_a_second_session_with_the_same_node_is_refused_with_close_4() -> None:
    world = World(4)
    session, _ = pair(world)
    found: Found = []
    a, b = world.nodes["a"], world.nodes["b"]
    a.connect_soon("memory/b", found.append)
    b.connect_soon("memory/a", found.append)
    world.run(1)
    assert len(found) == 2
    assert set(found) == {a.sessions[b.zid], b.sessions[a.zid]}, "they get the one that there is"
    assert a.refused["MAX_LINKS"] == b.refused["MAX_LINKS"] == 1
    assert a.sessions == {b.zid: session}


def test_a_node_that_dials_itself_is_refused_with_close_7() -> None:
    world = World(5)
    node = world.node("me", Heard())
    found: Found = []
    node.connect_soon("memory/me", found.append)
    world.run(1)
    assert refusal(found).reason == CloseReason.CONNECTION_TO_SELF
    assert dict(node.refused) == {"CONNECTION_TO_SELF": 1}
    assert_nothing_left(world, node)


def test_another_node_than_expected_is_refused() -> None:
    world = World(6)
    a, b = world.node("a", Heard()), world.node("b", Heard())
    found: Found = []
    a.connect_soon("memory/b", found.append, expect=WireZenohId(b"other"))
    world.run(1)
    assert refusal(found).reason == CloseReason.INVALID
    assert_nothing_left(world, a, b)


# ---- coming back


def attempts(world: World, name: str) -> list[float]:
    """Note the times at which `name` connects, from now on."""
    times: list[float] = []
    dial = world.network.connect

    def noting(target: str, **how: object) -> MemoryLink:
        if how["source"] == name:
            times.append(world.now)
        return dial(target, **how)  # type: ignore[arg-type]

    world.network.connect = noting  # type: ignore[method-assign, assignment]
    return times


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def test_an_endpoint_where_nobody_listens_is_dialled_after_1_2_4_4_seconds() -> None:
    world = World(7, Faults(delay=(0.0, 0.0)))
    a = world.node("a", Heard())
    times = attempts(world, "a")
    connector = a.keep_connected("memory/b")
    world.run(40)
    assert times == [0.0, 1.0, 3.0, 7.0, 11.0, 15.0, 19.0, 23.0, 27.0, 31.0, 35.0, 39.0]
    assert connector.attempts == len(times)
    b = world.node("b", Heard())
    assert world.run_until(lambda: b.zid in a.sessions, within=10) == 3.0
    assert times[-1] == 43.0
    assert connector.session is a.sessions[b.zid]


def test_every_endpoint_is_tried_before_each_wait() -> None:
    world = World(7, Faults(delay=(0.0, 0.0)))
    a = world.node("a", Heard())
    times = attempts(world, "a")
    connector = a.keep_connected("memory/b", "memory/c")
    world.run(5)
    assert times == [0.0, 0.0, 1.0, 1.0, 3.0, 3.0]
    c = world.node("c", Heard())
    assert world.run_until(lambda: c.zid in a.sessions, within=10) == 2.0
    assert times[-2:] == [7.0, 7.0]
    assert connector.session is a.sessions[c.zid]


def test_a_partition_of_a_minute_is_survived() -> None:
    """The session expires, attempts time out, waits grow from 1 to 4 s; healed, one succeeds."""
    world = World(8, Faults(delay=(0.001, 0.001)))
    a, b = world.node("a", Heard()), world.node("b", Heard())
    a.keep_connected("memory/b")
    world.run(1)
    times = attempts(world, "a")
    world.partition("a", "b")
    begin = world.now
    ended = world.run_until(lambda: not a.sessions, within=LEASE + 1)
    assert LEASE * (1 - 1 / KEEP_ALIVES) <= ended <= LEASE
    lost = world.now
    world.run(begin + 60 - world.now)
    patience = a.config.limits.seconds
    assert times[0] == lost + 1.0
    assert gaps(times) == pytest.approx(
        [patience + 2, patience + 4, patience + 4][: len(times) - 1]
    )
    assert len(times) == 4
    world.heal()
    assert world.run_until(lambda: b.zid in a.sessions, within=patience + 4 + 0.1) > 0
    world.run(120)
    assert set(a.sessions) == {b.zid}
    assert set(b.sessions) == {a.zid}
    assert len(heard(a).ends) == len(heard(b).ends) == 1, "one session lost, none since"


@pytest.mark.parametrize("seed", range(8))
def test_peers_that_all_dial_each_other_are_one_mesh_again_after_any_faults(seed: int) -> None:
    random, world = Random(seed), World(seed, Faults(delay=(0.0005, 0.1), chunk=5000))
    names = [f"n{i}" for i in range(4)]
    nodes = [world.node(name, Heard()) for name in names]
    for node, name in zip(nodes, names, strict=True):
        for other in names:
            if other != name:
                node.keep_connected(f"memory/{other}")
    faults = (
        lambda name, other: world.cut(name, reset=False),
        lambda name, other: world.cut(name, other, after=random.randint(1, 100)),
        lambda name, other: world.half_open(name, other),
        lambda name, other: world.partition(name, other),
        lambda name, other: world.heal(),
    )
    for _ in range(40):
        world.run(random.random() * 5)
        random.choice(faults)(*random.sample(names, 2))
        for node in nodes:
            for session in node.sessions.values():
                session.send(numbered(1, random.choice((10, 100_000))))
    assert sum(len(heard(node).ends) for node in nodes) > 10
    world.heal()
    world.run(60)
    zids = {node.zid for node in nodes}
    for node in nodes:
        assert set(node.sessions) == zids - {node.zid}
        assert node._admission._sessions == set(node.sessions)
    world.close()
    world.run(30)
    assert_nothing_left(world, *nodes)


def test_a_short_partition_loses_nothing() -> None:
    world = World(9)
    session, other = pair(world)
    for _ in range(20):
        world.partition("a", "b")
        world.run(5)
        world.heal()
        world.run(5)
    assert session.is_open
    assert other.is_open
    assert session.over is other.over is None


def test_a_peer_that_accepts_and_closes_is_not_dialled_ever_faster() -> None:
    world = World(10, Faults(delay=(0.0, 0.0)))

    class Rude(Heard):
        def opened(self, session: TransportSession) -> None:
            super().opened(session)
            session.close()

    a = world.node("a", Heard())
    world.node("b", Rude())
    times = attempts(world, "a")
    a.keep_connected("memory/b", policy=RetryPolicy(first=1, factor=2, longest=8))
    world.run(30)
    assert gaps(times) == [1.0, 2.0, 4.0, 8.0, 8.0]


# ---- leases


@pytest.mark.parametrize("silent", ["one way", "both ways"])
@pytest.mark.parametrize("lease_ms", [400, 10_000, 600_000])
def test_a_half_open_link_is_found_out_after_exactly_one_lease(silent: str, lease_ms: int) -> None:
    world = World(12, Faults(delay=(0.001, 0.001)))
    session, other = pair(world, lease_ms=lease_ms)
    a, b = world.nodes["a"], world.nodes["b"]
    world.run(lease_ms / 1000 * 3.3)
    assert world.half_open("a", "b") == 1
    if silent == "both ways":
        assert world.half_open("b", "a") == 1
    assert other._core is not None
    world.run(0.002)  # what is on its way arrives or vanishes
    last = other._core.last_received
    assert last < world.now
    world.run_until(lambda: other.over is not None, within=lease_ms / 500)
    assert world.now == last + lease_ms / 1000
    assert heard(b).ends[0][1].reason == CloseReason.EXPIRED
    world.run_until(lambda: session.over is not None, within=lease_ms / 500)
    assert heard(a).ends[0][1].by_peer == (silent == "one way")
    assert heard(a).ends[0][1].reason == CloseReason.EXPIRED
    world.run(20)
    assert_nothing_left(world, a, b)


@pytest.mark.slow
def test_keep_alives_keep_a_hundred_idle_sessions_for_an_hour() -> None:
    world, lease = World(13), 30_000
    routers = [world.node(f"r{i}", Heard(), lease_ms=lease) for i in range(10)]
    clients = [world.node(f"c{i}", Heard(), listen=False, lease_ms=lease) for i in range(100)]
    for i, client in enumerate(clients):
        client.connect_soon(f"memory/r{i % 10}", lambda found: None)
    world.run(3600)
    assert sum(len(router.sessions) for router in routers) == 100
    assert all(len(client.sessions) == 1 for client in clients)
    assert all(not heard(node).ends for node in (*routers, *clients))
    expected = 3600 / (lease / 1000 / KEEP_ALIVES)
    for client in clients:
        (session,) = client.sessions.values()
        assert expected - 2 <= session.counters.sent_batches <= expected + 2
    world.close()
    assert_nothing_left(world, *routers, *clients)


def test_no_keep_alive_is_sent_where_data_flows() -> None:
    world = World(14)
    session, _ = pair(world)
    before = session.counters.sent_batches
    for number in range(100):
        session.send(numbered(number))
        world.run(1)
    assert session.counters.sent_batches - before == 100
    assert session.is_open


def test_two_nodes_that_close_at_once_do_not_wait_for_each_other() -> None:
    world = World(seed=5)
    a, b = world.node("a"), world.node("b")
    a.keep_connected("memory/b")
    world.run_until(lambda: a.sessions and b.sessions, within=1)
    sessions = [a.sessions[b.zid], b.sessions[a.zid]]
    for session in sessions:
        session.close()
    taken = world.run_until(lambda: all(session.over for session in sessions), within=1)
    assert taken < LINGER_SECONDS / 10, "each has heard the other's CLOSE"
