"""Reading one by one and the compiled scan agree on equal bytes: deliveries, forwards."""

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from zenlake.api.values.sample import Sample, samples
from zenlake.errors import DecodeError, NeighbourLimit, Reason
from zenlake.keyexpr import intersects
from zenlake.runtime import kernel_loader
from zenlake.runtime.exchange import Exchange
from zenlake.runtime.local_delivery import Delivery
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.declare import (
    Declare,
    DeclareKeyExpr,
    DeclareQueryable,
    DeclareSubscriber,
    UndeclareKeyExpr,
    UndeclareSubscriber,
)
from zenlake.wire.delete import Del
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.enums import Mapping, WireCongestionControl, WirePriority, WireWhatAmI
from zenlake.wire.err import Err
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import PRIORITY_BITS, QoS
from zenlake.wire.query import WireQuery
from zenlake.wire.reply import WireReply
from zenlake.wire.reply_run import ReplyRun
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.tsstack import WireTimestampStack
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.slow

FRAMES = 120  # Random frames per kind of node.
WALL = 1_700_000_000 * 10**9
OWN = WireZenohId.parse("e0")
KEYS = ["a", "a/b", "a/b/c", "b", "a/*", "**", "@v/a", "x/y/z", "a/$*c/d"]


class Reactor:
    inside = True

    def now(self) -> float:
        return 1.0

    def call_at(self, when: float, call: Any) -> Any:
        return self

    def cancel(self) -> None: ...


class Node:
    reactor = Reactor()

    def log_limited(self, kind: str, text: str, *values: object, lines: int = 1) -> None:
        """Log nothing: the counters say what was refused."""


class Link:
    """A session that keeps what it is given to send, lane by lane."""

    lag = (0, None)
    in_order = True
    group = None
    shm = None

    def __init__(self, name: str, whatami: WireWhatAmI = WireWhatAmI.CLIENT) -> None:
        self.agreement = Agreed(WireZenohId.parse(name), whatami)
        self.face: Any = None
        self.sent: defaultdict[tuple[int, bool], list[bytes]] = defaultdict(list)
        self.said: list[Any] = []

    def check_size(self, size: int) -> None:
        """Accept every message."""

    def post(self, message: Any, reliable: bool = True) -> bool:
        if type(message) in (Push, Response):
            return self.send_encoded(encoded(message), message.qos, reliable)
        self.said.append(message)
        return True

    def send_encoded(self, data: bytes, qos: int, reliable: bool = True) -> bool:
        self.sent[qos & PRIORITY_BITS, reliable].append(bytes(data))
        return True

    def send_run(self, data: Any, ends: Any, qos: Any, reliable: bool, lane: int) -> int:
        start = 0
        assert len(ends) == len(qos)
        for end in ends:
            self.sent[lane, reliable].append(bytes(data[start:end]))
            start = end
        return 0

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def link_states(self, body: Any) -> None: ...


class Agreed:
    def __init__(self, zid: WireZenohId, whatami: WireWhatAmI) -> None:
        self.zid = zid
        self.whatami = whatami


class Here:
    """The session above: subscribers by key, and what each got."""

    def __init__(self, wanted: list[str]) -> None:
        self.wanted = wanted
        self.got: dict[str, list[Any]] = {key: [] for key in wanted}
        self._sets: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.replies: list[Any] = []

    def matching_subscribers(self, key: str) -> tuple[str, ...]:
        found = tuple(wanted for wanted in self.wanted if intersects(wanted, key))
        return self._sets.setdefault(found, found)

    def takes_bytes(self, subscribers: tuple[str, ...]) -> bool:
        return True

    def deliver(self, subscribers: tuple[str, ...], delivery: Delivery) -> tuple[()]:
        data, count, rests = delivery.data, delivery.count, delivery.rests
        starts, ends = delivery.starts, delivery.ends
        if delivery.message is not None:  # the message as received holds what is delivered
            assert count == 1
            _, _, _, whole, start, end, _ = delivery.message
            r = ByteReader(whole, start, end)
            push = NETWORK.read(r)
            assert (type(push), r.pos) == (Push, end)
            assert getattr(push.body, "payload", b"") == data[starts[0] : ends[0]]
        if delivery.part is not None:
            rests = delivery.part.run.message_starts(delivery.part.rows) or [None] * count
        made = [_seen(s) for s in samples(delivery.keys, [data] * count, starts, ends, rests)]
        assert len(made) == count
        for subscriber in subscribers:
            self.got[subscriber] += made
        return ()

    def routed(self, stack: WireTimestampStack) -> WireTimestampStack:
        return stack

    def on_message(self, message: Any) -> None:
        if isinstance(message, Response | ResponseFinal):
            self.replies.append(message)

    def on_replies(self, replies: ReplyRun) -> None:
        self.replies += replies.responses()

    def opened(self, session: Any) -> None: ...
    def declared(self, session: Any) -> None: ...
    def closed(self, session: Any, why: Any) -> None: ...
    def lost(
        self, session: Any, priority: Any, reliable: bool, first: int, missing: int
    ) -> None: ...


def _seen(sample: Sample) -> tuple[Any, ...]:
    """All of it, but for the time that the node itself has given it."""
    key, stamp, *rest = sample._key()
    if stamp and stamp[0].id == OWN:
        stamp = "stamped"
    return (key, stamp, *rest, repr(sample.timestamp_stack))


class World:
    """A node with a session that sends and two that want some of it."""

    def __init__(self, whatami: WireWhatAmI, stamps: bool) -> None:
        self.here = Here(["a/**", "a/b", "b"])
        self.exchange = Exchange(
            OWN,
            whatami,
            self.here,
            timestamping=stamps,
            wall=lambda: WALL,
        )
        self.exchange.attach(Node())  # type: ignore[arg-type]
        self.sender, self.one, self.two = Link("a1"), Link("b1"), Link("b2")
        for link in (self.sender, self.one, self.two):
            self.exchange.open_face(link)  # type: ignore[arg-type]
        for number, key in enumerate(self.here.wanted, 1):
            self.exchange.send(Declare(DeclareSubscriber(number, WireExpr(0, key))))
        for link, keys in ((self.one, ["a/*", "**"]), (self.two, ["x/**", "a/b", "@v/*"])):
            for number, key in enumerate(keys, 1):
                self.feed(link, encoded(Declare(DeclareSubscriber(number, WireExpr(0, key)))))

    def feed(
        self,
        link: Link,
        data: bytes,
        priority: WirePriority = WirePriority.DATA,
        reliable: bool = True,
    ) -> Any:
        try:
            return self.exchange.handler.on_frame(link, priority, reliable, data, 0, len(data))  # type: ignore[arg-type]
        except DecodeError as error:
            return error.reason, error.offset

    def feed_damaged(self, link: Link, data: bytes, priority: WirePriority, reliable: bool) -> Any:
        """Feed a frame that may exceed a limit by its damage, and go on where a session ends."""
        try:
            return self.feed(link, data, priority, reliable)
        except NeighbourLimit as end:
            link.face.face.exceeded = None
            return end.reason, str(end)

    def counted(self) -> dict[str, int]:
        dropped, ignored = self.exchange.dropped, self.exchange.routing.counters
        return {str(reason): count for reason, count in {**dropped, **ignored}.items()}


def encoded(message: Any) -> bytes:
    w = ByteWriter()
    NETWORK.write(w, message)
    return bytes(w.out)


class Frames:
    """Frames that a peer might send, and some that it should not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.keys: dict[int, str] = {}
        "Declared ids: one that stands for another key already would end the session."

    def declare_key(self) -> bytes:
        r = self.random
        number = r.randrange(1, 6)
        key = self.keys.setdefault(number, r.choice(["a", "a/b", "x/y", "a//", "b"]))
        return encoded(Declare(DeclareKeyExpr(number, WireExpr(0, key))))

    def key(self) -> WireExpr:
        r = self.random
        mapping = r.choice([Mapping.SENDER, Mapping.SENDER, Mapping.RECEIVER])
        match r.randrange(5):
            case 0:
                return WireExpr(r.randrange(1, 6), "", mapping)
            case 1:
                return WireExpr(r.randrange(1, 6), r.choice(["/b", "/c/d", "/*", "x"]), mapping)
            case 2:
                return WireExpr(0, r.choice(["a//b", "/a", "", "a/**/**", "k" * 200]))
            case _:
                return WireExpr(0, r.choice(KEYS))

    def push(self) -> Push:
        r = self.random
        qos = QoS()
        if r.random() < 0.3:
            qos = QoS(
                r.choice(
                    [
                        WirePriority.DATA,
                        WirePriority.DATA,
                        WirePriority.REAL_TIME,
                        WirePriority.BACKGROUND,
                    ]
                ),
                r.choice(list(WireCongestionControl)),
                express=r.random() < 0.5,
            )
        stamp = None
        if r.random() < 0.2:
            ahead = r.choice([0, 0, 3600])
            stamp = WireTimestamp((WALL // 10**9 + ahead) << 32, WireZenohId.parse("c7"))
        source = None
        if r.random() < 0.1:
            source = WireSourceInfo(WireEntityId(WireZenohId.parse("d4"), 3), r.randrange(1 << 20))
        attachment = r.randbytes(5) if r.random() < 0.1 else None
        body: Put | Del
        if r.random() < 0.15:
            body = Del(stamp, source, attachment)
        else:
            size = r.choice([0, 1, 20, 127, 128, 300, 1000])
            kind = WireEncoding.parse(r.choice(["zenoh/bytes", "zenoh/bytes", "text/plain;u"]))
            body = Put(r.randbytes(size), stamp, kind, source, attachment)
        stack = WireTimestampStack(7) if r.random() < 0.03 else None
        node_id = r.choice([0, 0, 0, 5, 300])
        return Push(self.key(), body, qos, node_id=node_id, ts_stack=stack)

    def message(self) -> bytes:
        r = self.random
        chance = r.random()
        if chance < 0.06:
            return self.declare_key()
        if chance < 0.09:
            number = r.randrange(1, 6)
            self.keys.pop(number, None)
            return encoded(Declare(UndeclareKeyExpr(number)))
        if chance < 0.11:
            return encoded(Declare(DeclareSubscriber(r.randrange(1, 9), self.key())))
        if chance < 0.13:
            return encoded(Declare(UndeclareSubscriber(r.randrange(1, 9))))
        return encoded(self.push())

    def frame(self) -> bytes:
        r = self.random
        data = b"".join(self.message() for _ in range(r.choice([1, 3, 30, 80])))
        if r.random() < 0.15:  # something in it is wrong
            at = r.randrange(len(data))
            change = r.choice([b"", bytes((r.randrange(256),)), r.randbytes(3), b"\xff\xfe"])
            data = data[:at] + change + data[at + 1 :]
        return data

    def __iter__(self) -> Iterator[tuple[bytes, WirePriority, bool]]:
        for _ in range(FRAMES):
            yield (
                self.frame(),
                self.random.choice([WirePriority.DATA, WirePriority.REAL_TIME]),
                True,
            )


@pytest.fixture
def scan(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whether the compiled scan is used, for every frame of several messages or for none."""
    kernel_loader.load()
    make = kernel_loader.make
    assert make() is not None
    return lambda on: monkeypatch.setattr(kernel_loader, "make", make if on else lambda: None)


def unstamped(data: bytes) -> Any:
    """Return a forwarded PUSH without the time that the node itself has given it."""
    push = NETWORK.read(ByteReader(data, 0, len(data)))
    assert push.node_id == 0  # The sender's number for a node means nothing to others.
    stamp = push.body.timestamp
    if stamp is not None and stamp.id == OWN:
        push.body.timestamp = "stamped"
    return push


@pytest.mark.parametrize("stamps", [False, True], ids=["bare", "stamping"])
@pytest.mark.parametrize("whatami", [WireWhatAmI.ROUTER, WireWhatAmI.PEER], ids=lambda w: w.name)
@pytest.mark.parametrize("seed", range(3))
def test_both_ways_deliver_and_forward_the_same(
    scan: Any, whatami: WireWhatAmI, stamps: bool, seed: int
) -> None:
    one_by_one, scanned = World(whatami, stamps), World(whatami, stamps)
    for number, (data, priority, reliable) in enumerate(Frames(seed)):
        scan(False)
        expected = one_by_one.feed_damaged(one_by_one.sender, data, priority, reliable)
        scan(True)
        found = scanned.feed_damaged(scanned.sender, data, priority, reliable)
        assert found == expected, number
        for key in one_by_one.here.wanted:
            assert scanned.here.got[key] == one_by_one.here.got[key], (number, key)
        for a, b in ((one_by_one.one, scanned.one), (one_by_one.two, scanned.two)):
            assert a.said == b.said, number
            assert a.sent.keys() == b.sent.keys(), number
            for lane, sent in a.sent.items():
                assert list(map(unstamped, b.sent[lane])) == list(map(unstamped, sent)), number
        assert scanned.counted() == one_by_one.counted(), number
        for world in (one_by_one, scanned):
            for link in (world.one, world.two):
                link.sent.clear()
            for got in world.here.got.values():
                got.clear()


@pytest.mark.parametrize("behind", [False, True])
def test_a_key_that_is_no_text_ends_the_session_whichever_way_it_is_read(
    scan: Any, behind: bool
) -> None:
    bad = bytes.fromhex("7d00 02fffe 0101 78")
    good = encoded(Push(WireExpr(0, "a/b"), Put(bytes(900))))
    data = good + bad if behind else bad + good
    found = []
    for on in (False, True):
        scan(on)
        world = World(WireWhatAmI.ROUTER, stamps=False)
        found.append(world.feed(world.sender, data))
    assert found[0] == found[1] == (Reason.BAD_UTF8, 2 + len(good) * behind)


class Answers(Frames):
    """Frames of replies to three requests, and of messages that end a run of them."""

    def __init__(self, seed: int, requests: list[Request], level: QoS) -> None:
        super().__init__(seed)
        self.requests, self.level = requests, level
        self.current = requests[0]

    def message(self) -> bytes:
        r = self.random
        chance = r.random()
        if chance < 0.02:
            return self.declare_key()
        if chance < 0.03:
            return encoded(self.push())
        if chance > 0.95:
            self.current = r.choice(self.requests)
        number = self.current.id
        if chance < 0.04:
            return encoded(Response(number, WireExpr(0, "a"), Err(b"no")))
        if chance < 0.05:
            number = 999
        responder = WireEntityId(WireZenohId.parse("b1"), 4) if r.random() < 0.8 else None
        stack = WireTimestampStack(7) if r.random() < 0.02 else None
        level = self.level if r.random() < 0.98 else QoS(WirePriority.REAL_TIME)
        key = self.key() if r.random() < 0.05 else WireExpr(0, r.choice(["a/b", "a/c"]))
        reply = WireReply(self.push().body)
        return encoded(Response(number, key, reply, level, responder=responder, ts_stack=stack))

    def frame(self) -> bytes:
        """A frame in which most replies to one request follow each other."""
        return b"".join(self.message() for _ in range(self.random.choice([1, 30, 80])))


def asked(world: World) -> list[Request]:
    """The requests that a queryable gets: of the session itself, of a neighbour, with a budget."""
    world.feed(world.one, encoded(Declare(DeclareQueryable(9, WireExpr(0, "a/**")))))
    level = QoS(WirePriority.DATA_LOW, WireCongestionControl.BLOCK)
    world.exchange.send(Request(3, WireExpr(0, "a/*"), WireQuery(), level))
    for request in (
        Request(4, WireExpr(0, "a/*"), WireQuery(), level),
        Request(5, WireExpr(0, "a/*"), WireQuery(), level, budget=40),
    ):
        world.feed(world.sender, encoded(request))
    return [message for message in world.one.said if isinstance(message, Request)]


def received(link: Link) -> tuple[Any, ...]:
    """The replies that `link` was given, in order within their lane, and the other messages."""
    lanes = {
        lane: [NETWORK.read(ByteReader(data)) for data in sent] for lane, sent in link.sent.items()
    }
    return lanes, link.said


@pytest.mark.parametrize("seed", range(6))
def test_both_ways_route_the_same_replies(scan: Any, seed: int) -> None:
    worlds = World(WireWhatAmI.ROUTER, False), World(WireWhatAmI.ROUTER, False)
    requests = asked(worlds[0])
    assert requests == asked(worlds[1])
    assert len(requests) == 3
    for world in worlds:
        world.sender.said.clear()
    found = [0, 0]
    for number, (data, _, _) in enumerate(Answers(seed, requests, requests[0].qos)):
        for on, world in zip((False, True), worlds, strict=True):
            scan(on)
            assert world.feed(world.one, data) == len(data)
        one_by_one, scanned = worlds
        assert scanned.here.replies == one_by_one.here.replies, number
        assert received(scanned.sender) == received(one_by_one.sender), number
        assert scanned.counted() == one_by_one.counted(), number
        found[0] += len(scanned.here.replies)
        found[1] += sum(map(len, scanned.sender.sent.values()))
        for world in worlds:
            world.here.replies.clear()
            world.sender.said.clear()
            world.sender.sent.clear()
    assert min(found) > 100
