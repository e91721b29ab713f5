"""Whole exchanges under a virtual clock: who is put something gets it, once."""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import pytest

from zenlake.errors import SessionEnded
from zenlake.keyexpr import KeyExpr
from zenlake.runtime.exchange import Exchange
from zenlake.runtime.local_delivery import Backpressured, Delivery
from zenlake.runtime.transport_session import TransportSession
from zenlake.sim import World
from zenlake.wire import qos
from zenlake.wire.declare import Declare, DeclareSubscriber
from zenlake.wire.enums import Mapping, WirePriority, WireWhatAmI
from zenlake.wire.network import NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.tsstack import WireTimestampStack
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId


class Peer:
    """A node with one subscriber, that notes what it hears."""

    def __init__(
        self,
        world: World,
        name: str,
        subscribes: str,
        whatami: WireWhatAmI = WireWhatAmI.PEER,
        **settings: Any,
    ) -> None:
        self.name = name
        self.heard: Counter[tuple[str, bytes]] = Counter()
        self.key = KeyExpr(subscribes)
        self.open: set[WireZenohId] = set()
        self.known: set[WireZenohId] = set()
        zid = WireZenohId(Random(name).randbytes(16))
        self.exchange = Exchange(zid, whatami, self)
        self.node = world.node(
            name,
            self.exchange.handler,
            whatami=whatami,
            zid=zid,
            **settings,
        )
        self.exchange.attach(self.node)
        self.declare(1)

    def declare(self, number: int) -> None:
        wire = WireExpr(0, self.key, Mapping.SENDER)
        self.exchange.send(Declare(DeclareSubscriber(number, wire), qos=qos.DECLARE))

    def put(self, key: str, payload: bytes) -> None:
        for port, wire in self.exchange.outbound_faces(key):
            port.session.send(Push(wire, Put(payload)))

    # ---- Local

    def on_message(self, message: NetworkMessage) -> None: ...
    def on_replies(self, replies: Any) -> None: ...
    def routed(self, stack: WireTimestampStack) -> WireTimestampStack:
        return stack

    def opened(self, session: TransportSession) -> None:
        self.open.add(session.zid)

    def declared(self, session: TransportSession) -> None:
        self.known.add(session.zid)

    def closed(self, session: TransportSession, why: SessionEnded) -> None:
        self.open.discard(session.zid)
        self.known.discard(session.zid)

    def lost(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        first: int,
        missing: int,
    ) -> None:
        raise AssertionError(f"{missing} frames are missing from {first} on")

    def matching_subscribers(self, key: str) -> tuple[Any, ...]:
        return (self,) if self.key.intersects(key) else ()

    def takes_bytes(self, subscribers: tuple[Any, ...]) -> bool:
        return True

    def deliver(self, subscribers: tuple[Any, ...], delivery: Delivery) -> Iterable[Backpressured]:
        for key, start, end in zip(delivery.keys, delivery.starts, delivery.ends, strict=False):
            self.heard[key, delivery.data[start:end]] += 1
        return ()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Forty thousand sessions are looked through at every collection, and none is garbage."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("no_collection")
def test_200_peers_in_a_full_mesh_hear_every_put_once() -> None:
    world = World(4)
    peers = [Peer(world, f"p{i}", "fleet/**" if i % 2 else f"fleet/p{i}") for i in range(200)]
    for i, peer in enumerate(peers):
        for j in range(i):
            peer.node.connect_soon(f"memory/p{j}", lambda done: None)
    world.run_until(lambda: all(len(peer.known) == 199 for peer in peers), within=60)
    for i, peer in enumerate(peers[:40]):
        peer.put(f"fleet/p{i}", b"%d" % i)
    world.run(2)
    for i, peer in enumerate(peers):
        expected = {
            (f"fleet/p{j}", b"%d" % j): 1
            for j in range(40)
            if j != i and (i % 2 or i == j)  # one's own put is the session's business
        }
        assert peer.heard == expected, peer.name
    world.close()


def line(world: World, *roles: WireWhatAmI) -> list[Peer]:
    """Nodes of which each connected to the one before; all subscribe to everything."""
    peers = [Peer(world, f"n{i}", "**", role) for i, role in enumerate(roles)]
    for i in range(1, len(peers)):
        peers[i].node.connect_soon(f"memory/n{i - 1}", lambda done: None)
    world.run(2)
    return peers


@pytest.mark.parametrize(
    "ends", [(WireWhatAmI.CLIENT, WireWhatAmI.CLIENT), (WireWhatAmI.PEER, WireWhatAmI.CLIENT)]
)
def test_a_router_passes_on_what_either_side_puts(ends: tuple[WireWhatAmI, WireWhatAmI]) -> None:
    world = World(1)
    router, one, other = (
        Peer(world, "n0", "**", WireWhatAmI.ROUTER),
        Peer(world, "n1", "**", ends[0]),
        Peer(world, "n2", "**", ends[1]),
    )
    for peer in (one, other):
        peer.node.connect_soon("memory/n0", lambda done: None)
    world.run(2)
    one.put("a", b"1")
    other.put("b", b"2")
    router.put("c", b"3")
    world.run(2)
    assert one.heard == {("b", b"2"): 1, ("c", b"3"): 1}
    assert other.heard == {("a", b"1"): 1, ("c", b"3"): 1}
    assert router.heard == {("a", b"1"): 1, ("b", b"2"): 1}
    world.close()


def test_what_was_declared_is_declared_again_after_a_cut() -> None:
    world = World(2)
    peers = line(world, WireWhatAmI.PEER, WireWhatAmI.PEER)
    one, other = peers
    other.node.keep_connected("memory/n0")
    world.run(1)
    one.put("a", b"1")
    world.run(1)
    assert other.heard == {("a", b"1"): 1}
    world.cut("n0", "n1")
    world.run_until(lambda: not one.open, within=30)
    world.run_until(lambda: len(one.known) == len(other.known) == 1, within=30)
    one.put("a", b"2")
    world.run(1)
    assert other.heard == {("a", b"1"): 1, ("a", b"2"): 1}
    world.close()
