"""Ten thousand strangers: every kind of message in every state, whole and damaged, fast and slow.

Each is answered by CLOSE, ignored, or served; when the last has gone, nothing of them is left.
"""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.support.sim_peers import (
    Heard,
    Step,
    Stranger,
    assert_nothing_left,
    batch,
    damage,
    heard,
    numbered,
    tally,
)
from zenlake.errors import SessionRefused, ZError
from zenlake.runtime.node import GRACE_SECONDS, Node
from zenlake.runtime.transport_session import TransportSession
from zenlake.sim import Faults, World
from zenlake.sim.memory_link import MemoryLink
from zenlake.transport.admission import AdmissionLimits
from zenlake.transport.fragments import PROCESS
from zenlake.transport.offer import MAX_LEASE
from zenlake.transport.usrpwd import UserPassword
from zenlake.wire.batch import TransportMessage, write_scouting
from zenlake.wire.close import Close
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import CloseReason, WirePriority, WireWhatAmI
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.init import DEFAULT_RESOLUTION, Init
from zenlake.wire.join import Join
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.network import NETWORK
from zenlake.wire.oam import TransportOam
from zenlake.wire.open import Open
from zenlake.wire.scout import WireScout
from zenlake.wire.zenohid import WireZenohId

STRANGERS = 10_000
PER_SECOND = 10.0
GONE_AFTER = 20.0 + MAX_LEASE  # Virtual seconds: longer than handshake and lease together.
INVALID, GENERIC, SELF = (
    CloseReason.INVALID,
    CloseReason.GENERIC,
    CloseReason.CONNECTION_TO_SELF,
)

Steps = list[tuple[float, Step]]


class Author:
    """Writes what strangers say."""

    def __init__(self, random: Random, own: WireZenohId) -> None:
        self.random = random
        self.own = own
        "Of the node that is spoken to."

    def pause(self) -> float:
        return self.random.choice((0.0, 0.0, 0.001, self.random.random()))

    def zid(self) -> WireZenohId:
        return WireZenohId(self.random.randbytes(15) + b"\1")

    def whatami(self) -> WireWhatAmI:
        return self.random.choice(list(WireWhatAmI))

    # ---- messages

    def init(self, **fields: object) -> Init:
        random = self.random
        known: dict[str, object] = {
            "batch_size": random.choice((65_535, 8192, 100)),
            "resolution": random.choice((DEFAULT_RESOLUTION, 0, 5, 15)),
            "qos": random.random() < 0.5,
            "patch": random.randrange(2),
        }
        return Init(self.zid(), self.whatami(), **{**known, **fields})  # type: ignore[arg-type]

    def frame(self) -> Frame:
        frame = Frame(self.random.randrange(100), reliable=self.random.random() < 0.5)
        frame.messages.append(numbered(self.random.randrange(1000)))
        return frame

    def fragment(self) -> Fragment:
        random = self.random
        return Fragment(
            random.randrange(100),
            random.randbytes(random.randrange(1, 50)),
            reliable=True,
            more=random.random() < 0.8,
            first=random.random() < 0.5,
            priority=random.choice(list(WirePriority)),
        )

    def anything(self) -> bytes:
        """A message of any kind, one time in three damaged."""
        random = self.random
        kinds: list[Callable[[], TransportMessage]] = [
            lambda: self.init(),
            lambda: self.init(cookie=random.randbytes(random.randrange(40))),
            lambda: Open(random.choice((0, 1, 500, 10_000, 1 << 60)), random.getrandbits(32)),
            lambda: Open(10_000, random.getrandbits(28), random.randbytes(32)),
            lambda: Close(random.randrange(10), session=random.random() < 0.5),
            KeepAlive,
            self.frame,
            self.fragment,
            lambda: Join(self.zid(), self.whatami(), lease_ms=1000),
            lambda: TransportOam(random.getrandbits(16), random.randbytes(8)),
        ]
        which = random.randrange(len(kinds) + 2)
        if which < len(kinds):
            data = batch(kinds[which]())
        elif which == len(kinds):
            data = write_scouting(WireScout(WireWhatAmI.ROUTER))
        else:
            w = ByteWriter()
            NETWORK.write(w, numbered(1))
            data = bytes(w.out)
        return damage(data, random) if random.random() < 1 / 3 else data

    def open_syn(self, lease_ms: int | None = None) -> Step:
        lease = lease_ms or self.random.choice((1, 500, 1000, 10_000, 1 << 62))
        sn = self.random.randrange(100)

        def write(stranger: Stranger) -> bytes:
            cookie = stranger.init_ack.cookie if stranger.init_ack else b"none"
            return stranger.framed(batch(Open(lease, sn, cookie)))

        return write

    # ---- plays: what a stranger does

    def said(self, *batches: bytes) -> Steps:
        return [(self.pause(), self.framed(data)) for data in batches]

    @staticmethod
    def framed(data: bytes) -> Step:
        return lambda stranger: stranger.framed(data)

    def opening(self, lease_ms: int | None = None) -> Steps:
        """A session: INIT, and OPEN when its ack is there."""
        return [*self.said(batch(self.init())), (0.5, self.open_syn(lease_ms))]

    def honest(self) -> Steps:
        return [*self.opening(), *self.said(batch(KeepAlive()), batch(self.frame()))]

    def says_goodbye(self) -> Steps:
        return [*self.opening(10_000), (0.5, self.framed(batch(Close(GENERIC))))]

    def nonsense(self) -> Steps:
        return self.said(*(self.anything() for _ in range(self.random.randint(1, 6))))

    def nonsense_in_session(self) -> Steps:
        return [*self.opening(), (0.3, self.framed(batch(KeepAlive()))), *self.nonsense()]

    def nonsense_after_init(self) -> Steps:
        return [*self.said(batch(self.init())), *self.nonsense()]

    def data_at_once(self) -> Steps:
        """Data in the same breath as OPEN syn, before its ack has come."""
        steps = self.opening()
        open_syn, data = steps[-1][1], batch(self.frame())
        assert callable(open_syn)
        steps[-1] = (0.5, lambda stranger: open_syn(stranger) + stranger.framed(data))
        return steps

    def init_twice(self) -> Steps:
        return self.said(batch(self.init()), batch(self.init()))

    def open_first(self) -> Steps:
        return self.said(batch(Open(10_000, 0, b"cookie")))

    def data_first(self) -> Steps:
        return self.said(batch(self.frame()))

    def acks_only(self) -> Steps:
        return self.said(batch(self.init(cookie=b"cookie")))

    def wrong_cookie(self) -> Steps:
        return self.said(batch(self.init()), batch(Open(10_000, 0, self.random.randbytes(32))))

    def wrong_version(self) -> Steps:
        return self.said(batch(self.init(version=self.random.choice((0, 8, 10, 255)))))

    def tiny_batches(self) -> Steps:
        return self.said(batch(self.init(batch_size=self.random.choice((0, 1, 2, 31)))))

    def reserved_bits(self) -> Steps:
        """Bits 7:4 of the resolution mean nothing, and are ignored."""
        data = bytearray(batch(self.init(resolution=5, batch_size=1000)))
        data[3 + 16] |= self.random.randrange(1, 16) << 4
        return [*self.said(bytes(data)), (0.5, self.open_syn(1000))]

    def zero_zid(self) -> Steps:
        data = bytearray(batch(self.init()))
        data[3 : 3 + 16] = bytes(16)
        return self.said(bytes(data))

    def short_zid(self) -> Steps:
        data = bytearray(batch(self.init()))
        return self.said(bytes(data[:2]) + b"\x02" + bytes(data[3 + 16 :]))

    def same_zid(self) -> Steps:
        init = self.init()
        init.zid = self.own
        return [*self.said(batch(init)), (0.5, self.open_syn())]

    def silent(self) -> Steps:
        return []

    def dribbling(self) -> Steps:
        """Byte by byte, more slowly than a handshake may be."""
        data = len(batch(self.init())).to_bytes(2, "little") + batch(self.init())
        return [(1.0, data[i : i + 1]) for i in range(20)]

    def cut_length(self) -> Steps:
        """Half of a batch, then nothing."""
        return [(0.0, b"\xff\xff" + self.random.randbytes(self.random.randrange(1, 100)))]

    def endless_fragments(self) -> Steps:
        steps = self.opening()
        sn = 0

        def start(stranger: Stranger) -> bytes:
            nonlocal sn
            sn = self.random.randrange(100)
            cookie = stranger.init_ack.cookie if stranger.init_ack else b""
            return stranger.framed(batch(Open(1000, sn, cookie)))

        def piece(first: bool, i: int) -> Step:
            return lambda stranger: stranger.framed(
                batch(Fragment(sn + i, bytes(90), reliable=True, more=True, first=first))
            )

        return [steps[0], (0.5, start), *((0.2, piece(i == 0, i)) for i in range(20))]


SERVED = None
PLAYS: dict[str, set[int | None] | None] = {
    "honest": None,
    "says_goodbye": {SERVED},
    "nonsense": None,
    "nonsense_in_session": None,
    "nonsense_after_init": None,
    "data_at_once": None,
    "init_twice": {INVALID},
    "open_first": {INVALID},
    "data_first": {INVALID},
    "acks_only": {INVALID},
    "wrong_cookie": {INVALID},
    "wrong_version": {INVALID},
    "tiny_batches": {INVALID},
    "reserved_bits": {CloseReason.EXPIRED},
    "zero_zid": {INVALID},
    "short_zid": None,
    "same_zid": {SELF},
    "silent": {GENERIC},
    "dribbling": {GENERIC},
    "cut_length": {GENERIC},
    "endless_fragments": {CloseReason.EXPIRED},
}
"Close reasons that strangers hear, where they are always the same; None in a set: no CLOSE."

STREAMS_ONLY = {"dribbling", "cut_length"}


class Siege:
    """One node and all its strangers, one after another and at the same time."""

    def __init__(self, seed: int, count: int, per_second: float = PER_SECOND) -> None:
        self.world = World(seed, Faults(delay=(0.001, 0.01)))
        self.random = Random(seed)
        self.open_door = self.world.node("open_door", Heard())
        self.locked = self.world.node(
            "locked", Heard(), authenticators=[UserPassword(dictionary={"u": b"p"})]
        )
        self.met: list[tuple[str, Stranger]] = []
        self.peak_memory = self.peak_pending = 0
        self.overdue: list[str] = []
        "Plays of the strangers that the node forgot to close."
        self._count = count
        self._per_second = per_second

    @property
    def nodes(self) -> tuple[Node, Node]:
        return self.open_door, self.locked

    def run(self) -> "Siege":
        for number, (name, play) in enumerate(self._plays()):
            self._send_in(number, name, play)
            self.world.run(self.random.random() * 2 / self._per_second)
            self.peak_memory = max(self.peak_memory, PROCESS.held)
            self.peak_pending = max(self.peak_pending, *(node.pending for node in self.nodes))
        self.world.run(2 * GONE_AFTER)
        return self

    def _plays(self) -> Iterator[tuple[str, str]]:
        names = list(PLAYS)
        for _ in range(self._count):
            door = "locked" if self.random.random() < 0.15 else "open_door"
            yield door, self.random.choice(names)

    def _send_in(self, number: int, door: str, play: str) -> None:
        random, world = self.random, self.world
        author = Author(random, world.nodes[door].zid)
        datagram = play not in STREAMS_ONLY and random.random() < 0.2
        hang_up = PLAYS[play] is None and random.random() < 0.3
        steps = getattr(author, play)()
        link = world.network.connect(door, source=f"s{number % 997}", datagram=datagram)
        stranger = Stranger(world, link, steps, hang_up=hang_up)
        self.met.append((play if door == "open_door" else "locked out", stranger))
        world.reactor.call_at(world.now + GONE_AFTER, lambda: self._must_have_gone(play, stranger))

    def _must_have_gone(self, play: str, stranger: Stranger) -> None:
        if stranger.link.reliable and not stranger.ended:
            self.overdue.append(play)
        stranger.leave()


@pytest.mark.slow
def test_nothing_is_left_of_ten_thousand_strangers() -> None:
    siege = Siege(21, STRANGERS).run()
    heard_reasons = tally(siege.met)
    answers = {
        play: {reason for name, reason in heard_reasons if name == play}
        for play, expected in PLAYS.items()
        if expected is not None
    }
    assert answers == {play: expected for play, expected in PLAYS.items() if expected is not None}
    assert {name for name, _ in heard_reasons} == {*PLAYS, "locked out"}
    assert siege.overdue == []
    assert len(heard(siege.open_door).opened_sessions) > STRANGERS / 10
    assert heard(siege.locked).opened_sessions == []
    assert siege.peak_memory > 0
    assert siege.peak_pending > 5
    assert siege.peak_pending < siege.open_door.config.limits.pending, "nobody had to make room"
    assert_nothing_left(siege.world, *siege.nodes)


@pytest.mark.slow
def test_the_same_strangers_come_again() -> None:
    one, again, other = (Siege(seed, 200).run() for seed in (3, 3, 4))
    assert one.world.trace == again.world.trace
    assert tally(one.met) == tally(again.met)
    assert one.world.trace != other.world.trace


class Trap:
    """A listener whose answers to INIT and OPEN are made up."""

    def __init__(self, world: World, random: Random) -> None:
        self.met: list[Stranger] = []
        self._world = world
        self._random = random
        self._listener = world.network.listen("trap")
        world.reactor.watch(self._listener, self._accept, read=True, write=False)

    def _accept(self, readable: bool, writable: bool) -> None:
        while (link := self._listener.accept()) is not None:
            assert isinstance(link, MemoryLink)
            hang_up = self._random.random() < 0.3
            self.met.append(Stranger(self._world, link, self._answers(), hang_up=hang_up))

    def _answers(self) -> Steps:
        random, author = self._random, Author(self._random, WireZenohId(b"trap"))
        ack = author.init(
            cookie=random.randbytes(random.choice((0, 16, 300))),
            resolution=random.choice((0, 5, 10, 10, 10, 15)),
            batch_size=random.choice((0, 31, 32, 1000, 65_535, 65_535)),
            patch=random.choice((0, 0, 1, 1, 9)),
        )
        opening = Open(random.choice((0, 500, 1000)), random.randrange(100))
        scripts: tuple[Steps, ...] = (
            author.said(batch(ack), batch(opening)),
            [*author.said(batch(ack), batch(opening)), *author.nonsense()],
            author.said(batch(ack), damage(batch(opening), random)),
            author.said(damage(batch(ack), random)),
            author.said(batch(ack), author.anything()),
            author.said(batch(ack)),
            author.said(batch(opening)),
            author.nonsense(),
            [],
        )
        return random.choice(scripts)


def test_nothing_is_left_of_a_thousand_answers_that_are_made_up() -> None:
    world, random = World(24, Faults(delay=(0.001, 0.01))), Random(24)
    node = world.node("node", Heard())
    trap = Trap(world, random)
    found: list[TransportSession | ZError] = []
    for _ in range(1000):
        node.connect_soon(f"memory/trap{random.choice(('', '', '', '#datagram=1'))}", found.append)
        world.run(random.random() * 0.5)
    world.run(GONE_AFTER)
    for stranger in trap.met:
        assert stranger.ended or not stranger.link.reliable
        stranger.leave()
    assert len(found) == len(trap.met) == 1000
    sessions = [result for result in found if isinstance(result, TransportSession)]
    assert len(sessions) == len(heard(node).opened_sessions) > 50
    assert {result.reason for result in found if isinstance(result, SessionRefused)} >= {
        GENERIC,
        INVALID,
    }
    assert_nothing_left(world, node)


@pytest.mark.parametrize("strangers", [300, 1000])
def test_a_crowd_that_says_nothing_is_held_to_the_limit(strangers: int) -> None:
    """A handshake that takes long gives its place to a link that waits, the oldest first."""
    world, limits = World(22), AdmissionLimits(pending=100)
    node = world.node("open_door", Heard(), limits=limits)
    dial = world.network.connect
    crowd = [Stranger(world, dial("open_door", source=f"s{i}")) for i in range(strangers)]
    world.run(1)
    assert node.pending == limits.pending
    assert sum(stranger.ended for stranger in crowd) == 0
    world.run(GRACE_SECONDS)
    assert node.pending == limits.pending
    assert sum(stranger.ended for stranger in crowd) == limits.pending
    world.run(strangers // 100 * GRACE_SECONDS + limits.seconds)
    assert node.pending == 0
    assert all(stranger.ended for stranger in crowd)
    assert node.refused == {"UNRESPONSIVE": strangers - 100, "GENERIC": 100}
    friend = world.node("friend", Heard())
    friend.connect_soon("memory/open_door", lambda found: None)
    world.run_until(lambda: node.zid in friend.sessions, within=1)
    world.close()
    assert_nothing_left(world, node, friend)


def test_a_crowd_that_says_nothing_keeps_no_place_from_a_friend() -> None:
    world = World(23)
    node = world.node("open_door", Heard(), limits=AdmissionLimits(pending=20))
    crowd = [Stranger(world, world.network.connect("open_door", source="same")) for _ in range(20)]
    world.run(1)
    assert node.pending == 20
    friend = world.node("friend", Heard())
    friend.connect_soon("memory/open_door", lambda found: None)
    world.run_until(lambda: node.zid in friend.sessions, within=GRACE_SECONDS)
    assert sum(stranger.ended for stranger in crowd) == 1
    world.close()
    world.run(1)
    assert all(stranger.ended for stranger in crowd)
