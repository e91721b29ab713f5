"""Keys are declared as publishers use them, on links that dawdle: no receiver has to guess one.

A caller's thread puts in every way that there is, while batches wait in all lanes; a node in the
middle forwards, as runs and one by one. Virtual time passes while the caller waits for room.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.sim.test_mesh import Peer
from tests.support.row_sender import RowSender, batches
from zenlake.api.pubsub.arrow import put_batch
from zenlake.api.pubsub.outbound_route import OutboundRoute
from zenlake.keyexpr import KeyExpr
from zenlake.keytable import KeyTable
from zenlake.log.replay.encoded_sender import EncodedSender
from zenlake.runtime import kernel_loader
from zenlake.runtime.transport_session import TransportSession
from zenlake.sim import Faults, World
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.declare import Declare
from zenlake.wire.enums import PRIORITIES, Mapping, WireCongestionControl, WirePriority, WireWhatAmI
from zenlake.wire.network import NETWORK, is_network
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr

pytestmark = pytest.mark.slow

SEEDS = 12
STEPS = 60
UNKNOWN = DropReason.UNKNOWN_KEY
BLOCK = WireCongestionControl.BLOCK
LEVELS = [priority for priority in PRIORITIES if priority is not WirePriority.CONTROL]
FAST = Faults(delay=(0.0005, 0.002))
PAUSES = (0.0, 10e-6, 100e-6, 0.002, 0.02)  # Seconds: within a burst, after it, and after a flush.
SETTLED = 60.0  # Virtual seconds in which everything arrives, however slow the links are.


class Room:
    """The condition of a session whose caller waits in virtual time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._notified = False

    def notify_all(self) -> None:
        self._notified = True

    def wait(self, timeout: float) -> None:
        self._notified = False
        reactor = self._world.reactor
        reactor.inside = True
        try:
            reactor.run(self._world.now + timeout, lambda: self._notified)
        finally:
            reactor.inside = False


class Caller:
    """A thread of the session `peer`, and what its puts need of an API session."""

    def __init__(self, world: World, peer: Peer, random: Random) -> None:
        self.exchange = peer.exchange
        self.subscribers = self
        self.numbers = count()
        self.sure: set[bytes] = set()
        "Payloads that have to arrive."
        self._world = world
        self._peer = peer
        self._random = random
        self._keys = count()
        self._ways: list[OutboundRoute] = []
        self._messages = EncodedSender(self)  # type: ignore[arg-type]
        self._rows = RowSender(self)  # type: ignore[arg-type]

    def matching(self, key: str, *, local: bool = False) -> tuple[Any, ...]:
        """Return no subscriber: this node has none."""
        return ()

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """Act on a thread that may wait: not the I/O thread."""
        session: TransportSession
        for session in self._peer.node.sessions.values():
            session._room = Room(self._world)  # type: ignore[assignment]
        self._world.reactor.inside = False
        try:
            yield
        finally:
            self._world.reactor.inside = True

    def _new_key(self) -> str:
        long = self._random.random() < 0.1  # its declaration leaves in fragments, maybe
        return f"k/{next(self._keys)}/{'x' * self._random.randrange(900) if long else 'y'}"

    def _payloads(self, most: int, size: int = 0) -> list[bytes]:
        made = [
            b"%d." % next(self.numbers) + bytes(size)
            for _ in range(1 + self._random.randrange(most))
        ]
        self.sure.update(made)
        return made

    def act(self, way: str) -> None:
        with self._outside():
            getattr(self, f"put_{way}")()

    def put_rows(self) -> None:
        """`put_batch`, whose rows leave as whole batches, lane by lane."""
        random, payloads = self._random, self._payloads(600)
        keys = [self._new_key() for _ in range(1 + random.randrange(4))]
        several = random.random() < 0.3
        level = random.choice(LEVELS)
        rows = {
            "key": [random.choice(keys) for _ in payloads],
            "payload": pa.array(payloads, pa.binary()),
            "congestion_control": ["block"] * len(payloads),
            "priority": [int(random.choice(LEVELS) if several else level) for _ in payloads],
            "reliable": [random.random() < 0.5] * len(payloads),
        }
        put_batch(self, pa.RecordBatch.from_pydict(rows), None)  # type: ignore[arg-type]

    def put_recording(self) -> None:
        """`EncodedSender`, as a replay uses it: by whole batches, by runs and one by one."""
        random, table, w = self._random, KeyTable(), ByteWriter()
        scopes = [*range(1, 2 + random.randrange(3))]
        for scope in scopes:
            table.declare(Mapping.SENDER, scope, self._new_key())
        level = random.choice(LEVELS)
        payloads = self._payloads(400, 2000 if random.random() < 0.1 else 0)
        for payload in payloads:
            wire = WireExpr(random.choice(scopes), "", Mapping.SENDER)
            NETWORK.write(w, Push(wire, Put(payload), QoS(level, BLOCK)))
        sender = self._messages if random.random() < 0.7 else self._rows
        sender.put(memoryview(bytes(w.out)), table, batches([len(payloads)]))
        if random.random() < 0.5:
            sender.flush()

    def put_new(self) -> None:
        """A new publisher: the declaration of its key waits when its first puts are added."""
        qos = QoS(self._random.choice(LEVELS), BLOCK, express=self._random.random() < 0.1)
        reliable = self._random.random() < 0.8
        key = KeyExpr(self._new_key())
        self._ways.append(OutboundRoute(self, key, qos, reliable, declares=True))  # type: ignore[arg-type]
        self._put(self._ways[-1])

    def put_old(self) -> None:
        """A publisher that was there before, perhaps since before the last reconnect."""
        if self._ways:
            self._put(self._random.choice(self._ways))

    def put_large(self) -> None:
        """A message in fragments, and others behind it."""
        qos = QoS(self._random.choice(LEVELS), BLOCK)
        way = OutboundRoute(self, KeyExpr(self._new_key()), qos, declares=True)  # type: ignore[arg-type]
        for payload in self._payloads(2, self._random.randrange(20_000)):
            way.put(payload)
        self._put(way)

    def _put(self, way: OutboundRoute) -> None:
        beside = self._random.random() < 0.2
        for payload in self._payloads(150):
            if beside:
                way.put(payload, attachment=b"beside it")
            else:
                way.put(payload)


def slow(random: Random) -> Faults:
    """A link that takes few bytes at a time, and slowly."""
    return Faults(
        delay=(0.0005, 0.002),
        chunk=random.choice((0, 0, 700)),
        bandwidth=random.choice((100e3, 1e6, 10e6)),
        buffer=random.choice((500, 5_000, 100_000)),
    )


def declared_first(
    frame: Any,
    session: TransportSession,
    priority: WirePriority,
    reliable: bool,
    data: bytes,
    pos: int,
    end: int,
) -> int:
    """Fail for a declaration outside of the lane that leaves before all others."""
    if priority is not WirePriority.CONTROL and session.agreement.qos:
        r = ByteReader(data, pos, end)
        while r.pos < end and is_network(data[r.pos]):
            assert not isinstance(NETWORK.read(r), Declare)
    return frame(session, priority, reliable, data, pos, end)  # type: ignore[no-any-return]


class Chain:
    """A client, the node that it connected to, and the node that this one connected to."""

    def __init__(self, seed: int, middle: WireWhatAmI, **settings: Any) -> None:
        kernel_loader.load()
        self.random = random = Random(seed)
        self.world = world = World(seed, FAST)
        settings["batch_size"] = random.choice((300, 1500, 20_000, 65_535))
        self.a = Peer(world, "a", "none", WireWhatAmI.CLIENT, **settings)
        self.b = Peer(world, "b", "**", middle, **settings)
        self.c = Peer(world, "c", "**", middle, **settings)
        for peer in (self.b, self.c):
            frame = peer.exchange.handler.on_frame
            peer.exchange.handler.on_frame = partial(declared_first, frame)  # type: ignore[method-assign]
        self.b.node.connect_soon("memory/c", lambda done: None)
        world.run_until(lambda: self.c.open and self.b.open, within=5)
        self.dial()
        self.caller = Caller(world, self.a, random)

    def dial(self) -> None:
        self.a.node.connect_soon("memory/b", lambda done: None)
        self.world.run_until(lambda: self.a.open and len(self.b.open) > 1, within=5)
        self.world.run(1)

    def dawdle(self) -> None:
        for sender, receiver in (("a", "b"), ("b", "c")):
            self.world.set_faults(sender, receiver, slow(self.random))

    def put_in_all_ways(self, steps: int) -> None:
        ways = ("rows", "recording", "new", "old", "large")
        for _ in range(steps):
            if self.random.random() < 0.3:
                self.dawdle()
            self.caller.act(self.random.choice(ways))
            if self.random.random() < 0.7:
                self.world.run(self.random.choice(PAUSES))

    def reconnect(self) -> None:
        """Break the client's link while much waits; later messages must arrive over the next."""
        self.world.cut("a", "b")
        self.world.run_until(lambda: not self.a.open and len(self.b.open) == 1, within=30)
        self.caller.sure.clear()
        for sender, receiver in (("a", "b"), ("b", "c")):
            self.world.set_faults(sender, receiver, FAST)
        self.dial()

    def check(self) -> None:
        """Every key was known, and all that must arrive has arrived once."""
        for sender, receiver in (("a", "b"), ("b", "c")):
            self.world.set_faults(sender, receiver, FAST)
        self.world.run(SETTLED)
        for peer in (self.b, self.c):
            assert peer.exchange.routing.counters[UNKNOWN] == 0, peer.name
            heard = {payload for _, payload in peer.heard}
            missing = self.caller.sure - heard
            assert not missing, (
                f"{len(missing)} of {len(self.caller.sure)} did not reach {peer.name}"
            )
            assert set(peer.heard.values()) <= {1}
        declared = [len(face._our_scopes) for face in self._faces()]
        assert min(declared) > 1, "ids were used on both links"

    def _faces(self) -> list[Any]:
        (to_b,) = self.a.node.sessions.values()
        to_c = self.b.node.sessions[self.c.node.zid]
        return [to_b.face.face, to_c.face.face]


@pytest.mark.parametrize("middle", [WireWhatAmI.ROUTER, WireWhatAmI.PEER])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_message_arrives_before_its_key_is_declared(seed: int, middle: WireWhatAmI) -> None:
    chain = Chain(seed, middle)
    chain.put_in_all_ways(STEPS)
    chain.check()
    chain.world.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nor_after_a_reconnect(seed: int) -> None:
    chain = Chain(seed, WireWhatAmI.ROUTER)
    for _ in range(3):
        chain.put_in_all_ways(STEPS // 4)
        chain.reconnect()
    chain.put_in_all_ways(STEPS // 2)
    chain.check()
    chain.world.close()


@pytest.mark.parametrize("settings", [{"qos": False}, {"compression": True}], ids=str)
@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_nor_on_links_that_take_no_whole_batches_or_have_no_lanes(
    seed: int, settings: dict[str, Any]
) -> None:
    chain = Chain(seed, WireWhatAmI.ROUTER, **settings)
    chain.put_in_all_ways(STEPS)
    chain.check()
    chain.world.close()
