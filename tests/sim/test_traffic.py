"""Messages over links that lose, repeat, reorder and dawdle: every one arrives or is counted."""

from itertools import pairwise
from typing import Any

import pytest

from tests.support.sim_peers import assert_nothing_left, heard, numbered, pair
from zenlake.errors import SessionClosed
from zenlake.runtime.transport_session import TransportSession
from zenlake.sim import Faults, World
from zenlake.transport.fragments import PROCESS
from zenlake.transport.offer import KEEP_ALIVES
from zenlake.transport.outbox import BLOCK_SECONDS
from zenlake.wire.enums import CloseReason, WireCongestionControl, WirePriority
from zenlake.wire.qos import QoS

QUIET = {"lease_ms": 600_000}  # A lease without KEEP_ALIVE during a test: only data can be lost.
DATAGRAMS = "memory/b#datagram=1"
NEAR = Faults(delay=(0.001, 0.001))
TEN_MBIT = Faults(delay=(0.001, 0.001), bandwidth=10e6 / 8)
BLOCK = QoS(WirePriority.DATA, WireCongestionControl.BLOCK)
DROP = QoS(WirePriority.DATA, WireCongestionControl.DROP)
COUNT = 2000


def send_each(
    world: World, session: TransportSession, count: int, faults: Faults, reliable: bool
) -> None:
    """`count` messages, each in a datagram of its own; the last one is sure to arrive."""
    world.set_faults("a", "b", faults)
    for number in range(count - 1):
        session.send(numbered(number), reliable)
        world.run(0.002)
    world.run(1)
    world.set_faults("a", "b", NEAR)
    session.send(numbered(count - 1), reliable)
    world.run(1)


@pytest.mark.parametrize("reliable", [False, True], ids=["best effort", "reliable"])
@pytest.mark.parametrize("resolution", [0, 2], ids=["7 bits", "28 bits"])
@pytest.mark.parametrize("loss", [0.01, 0.2])
def test_what_a_lossy_link_loses_is_counted(loss: float, resolution: int, reliable: bool) -> None:
    world = World(31, NEAR)
    session, other = pair(world, DATAGRAMS, resolution=resolution, **QUIET)
    send_each(world, session, COUNT, Faults(delay=(0.001, 0.001), loss=loss), reliable)
    got = heard(world.nodes["b"]).numbers
    sequence = other.sequences[WirePriority.DATA, reliable]
    assert world.network.lost > COUNT * loss / 2
    assert sequence.missing == world.network.lost
    assert len(got) == COUNT - world.network.lost
    assert sequence.gaps == sum(later - earlier > 1 for earlier, later in pairwise([-1, *got]))
    assert sequence.stale == 0
    assert got == sorted(got)
    assert session.is_open
    assert other.is_open


@pytest.mark.parametrize("reliable", [False, True], ids=["best effort", "reliable"])
def test_what_comes_late_or_twice_is_counted_as_stale(reliable: bool) -> None:
    world = World(32, NEAR)
    session, other = pair(world, DATAGRAMS, **QUIET)
    faults = Faults(
        delay=(0.001, 0.001), loss=0.05, duplication=0.1, reordering=0.2, held_back=0.02
    )
    send_each(world, session, COUNT, faults, reliable)
    network, got = world.network, heard(world.nodes["b"]).numbers
    sequence = other.sequences[WirePriority.DATA, reliable]
    arrived = COUNT - network.lost + network.duplicated
    assert network.lost > 0
    assert network.duplicated > 0
    assert network.reordered > 0
    assert len(got) + sequence.stale == arrived
    assert len(got) + sequence.missing == COUNT
    assert sequence.stale > network.duplicated / 2
    assert got == sorted(set(got)), "nothing twice, nothing out of order"


def test_messages_in_fragments_arrive_whole_or_not_at_all() -> None:
    world = World(33, NEAR)
    session, other = pair(world, DATAGRAMS, **QUIET)
    world.set_faults("a", "b", Faults(delay=(0.001, 0.001), loss=0.1))
    for number in range(200):
        assert session.send(numbered(number, 200_000, BLOCK))
        world.run(0.1)
    world.run(1)
    got = heard(world.nodes["b"]).numbers
    assert 50 < len(got) < 200
    assert got == sorted(set(got))
    assert sum(other.counters.receive_dropped.values()) > 0
    assert session.is_open
    a, b = world.nodes["a"], world.nodes["b"]
    world.close()
    assert PROCESS.held == 0
    assert_nothing_left(world, a, b)


def test_a_handshake_whose_datagrams_are_lost_ends_and_is_tried_again() -> None:
    world = World(34, Faults(delay=(0.001, 0.001), loss=0.3))
    nodes = [world.node(f"n{i}") for i in range(20)]
    server = world.node("server")
    for node in nodes:
        node.keep_connected("memory/server#datagram=1")
    world.run(1)
    assert len(server.sessions) < 20
    world.network.faults = NEAR
    for i in range(20):
        world.set_faults(f"n{i}", "server", NEAR)
        world.set_faults("server", f"n{i}", NEAR)
    world.run(60)
    assert len(server.sessions) == 20
    assert all(server.zid in node.sessions for node in nodes)


# ---- a slow link


def test_with_block_a_slow_link_loses_nothing() -> None:
    world = World(35, TEN_MBIT)
    session, other = pair(world)
    begin, size, count = world.now, 8192, 1000
    assert all(session.send(numbered(number, size, BLOCK)) for number in range(count))
    got = heard(world.nodes["b"]).numbers
    world.run_until(lambda: len(got) == count, within=30)
    least = size * count / TEN_MBIT.bandwidth
    assert least < world.now - begin < least * 1.05
    assert got == list(range(count))
    assert session.counters.send_dropped == {}
    assert other.sequences[WirePriority.DATA, True].missing == 0
    world.run(30)
    assert session.is_open


def test_with_block_a_large_message_does_not_hold_up_an_urgent_one() -> None:
    world = World(36, TEN_MBIT)
    session, _ = pair(world)
    session.send(numbered(1, 8_000_000, BLOCK))
    world.run(0.5)
    session.send(numbered(2, 100, QoS(WirePriority.REAL_TIME, WireCongestionControl.BLOCK)))
    got = heard(world.nodes["b"]).numbers
    world.run_until(lambda: len(got) == 2, within=30)
    assert got == [2, 1]


SHORT: dict[str, Any] = {"lease_ms": 1000}
LARGE = 4_000_000
URGENT = QoS(WirePriority.REAL_TIME, WireCongestionControl.BLOCK)


def test_a_large_message_outlives_many_leases_of_higher_priorities() -> None:
    """The whole link is taken by another lane, between its fragments, for ten leases."""
    world = World(40, TEN_MBIT)
    session, other = pair(world, **SHORT)
    session.send(numbered(0, LARGE, BLOCK))
    world.run(0.5)
    got, urgent = heard(world.nodes["b"]).numbers, 0
    begin, size = world.now, 20_000
    while world.now < begin + 10:
        urgent += 1
        session.send(numbered(urgent, size, URGENT))
        world.run(size / TEN_MBIT.bandwidth)
        assert 0 not in got
    world.run_until(lambda: 0 in got, within=10)
    assert sorted(got) == list(range(urgent + 1))
    assert session.counters.send_dropped == other.counters.receive_dropped == {}
    assert session.is_open


def test_a_large_message_outlives_many_leases_without_reading() -> None:
    """The receiver does not read, as behind a full handler, in the middle of the message."""
    world = World(41, TEN_MBIT)
    session, other = pair(world, **SHORT)
    session.send(numbered(0, LARGE, BLOCK))
    world.run(0.5)
    assert PROCESS.held > 0
    other.pause()
    world.run(10)
    other.resume()
    got = heard(world.nodes["b"]).numbers
    world.run_until(lambda: got, within=10)
    assert session.counters.send_dropped == other.counters.receive_dropped == {}
    assert session.is_open


@pytest.mark.parametrize("size", [1000, 100_000], ids=["whole", "in fragments"])
def test_with_drop_all_that_was_sent_arrives_or_is_counted(size: int) -> None:
    world = World(37, TEN_MBIT)
    session, _ = pair(world)
    count = 20_000_000 // size
    taken = 0
    for number in range(count):  # twice what the link can carry
        taken += session.send(numbered(number, size, DROP))
        world.run(size / (2 * TEN_MBIT.bandwidth))
    world.run(30)
    got = heard(world.nodes["b"]).numbers
    dropped = sum(session.counters.send_dropped.values())
    assert dropped > count / 4
    assert len(got) + dropped == count
    assert taken >= len(got)
    assert got == sorted(set(got))
    assert session.is_open


def test_more_than_the_backlog_takes_closes_the_session() -> None:
    world = World(38, TEN_MBIT)
    session, _ = pair(world)
    taken = 0
    while session.send(numbered(taken, 1 << 20, BLOCK)):
        taken += 1
        assert taken < 1000
    assert taken >= 32
    assert session.counters.send_dropped == {"congestion_backlog": 1}
    world.run(1)
    (_, why) = heard(world.nodes["a"]).ends[0]
    assert why.reason == CloseReason.UNRESPONSIVE
    with pytest.raises(SessionClosed):
        session.send(numbered(0))


def test_a_peer_that_takes_nothing_is_given_up() -> None:
    world = World(39, Faults(delay=(0.001, 0.001), buffer=100_000))
    session, _ = pair(world)
    others = [world.node(f"n{i}") for i in range(9)]
    for node in others:
        node.connect_soon("memory/a", lambda found: None)
    world.run(1)
    a = world.nodes["a"]
    assert len(a.sessions) == 10
    world.half_open("a", "b")  # what it sends is never read: its buffer stays full
    begin = world.now
    for number in range(100):
        assert session.send(numbered(number, 10_000, BLOCK))
    world.run_until(lambda: session.over is not None, within=30)
    assert BLOCK_SECONDS <= world.now - begin <= BLOCK_SECONDS + 10.0 / KEEP_ALIVES
    assert session.over is not None
    assert session.over.reason == CloseReason.UNRESPONSIVE
    assert len(a.sessions) == 9, "no other session is harmed"
