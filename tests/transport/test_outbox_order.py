"""Nothing overtakes what it depends on: an id is declared before a message that uses it leaves."""

from collections import defaultdict
from functools import partial
from itertools import accumulate, chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.transport_pair import DIALLER, START, Pair, offer
from zenlake.transport.outbox import Outbox, PushResult
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.declare import Declare, DeclareKeyExpr
from zenlake.wire.enums import PRIORITIES, WireCongestionControl, WirePriority
from zenlake.wire.framing import Framing
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.packed import PackedMessages
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import DECLARE, QoS
from zenlake.wire.wireexpr import WireExpr

BATCH = 128
BLOCK = WireCongestionControl.BLOCK
DATA_LANES = [priority for priority in PRIORITIES if priority is not WirePriority.CONTROL]

SHAPES: dict[str, dict[str, Any]] = {
    "lanes": {},
    "one lane": {"qos": False},
    "compressed": {"compression": True},
    "7 bits": {"resolution": 0},
    "low latency": {"low_latency": True},
    "datagrams": {"framing": Framing.DATAGRAM},
}

WAYS = ["object", "encoded", "run", "batches", "short", "large", "beyond"]
lanes = st.sampled_from(DATA_LANES)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("declare"), st.sampled_from([1, 40, 3 * BATCH])),
        st.tuples(st.sampled_from(WAYS), lanes, st.booleans(), st.integers(1, 40)),
        st.tuples(st.just("pull"), st.booleans(), st.integers(1, 6)),
        st.tuples(st.just("open"), lanes),
    ),
    min_size=1,
    max_size=40,
)


def encoded(message: NetworkMessage) -> bytes:
    w = ByteWriter()
    NETWORK.write(w, message)
    return bytes(w.out)


class Sender:
    """Sends as a session does: what is refused for want of room waits while batches are pulled."""

    def __init__(self, pair: Pair, low_latency: bool) -> None:
        self.pair = pair
        self.outbox: Outbox = pair.a.outbox
        self.low_latency = low_latency
        self.scopes = 0
        self.sent: defaultdict[tuple[WirePriority, bool], list[int]] = defaultdict(list)
        self.count = 0

    def pull(self, full_only: bool, batches: int) -> bool:
        """Carry so many batches over; whether there was one."""
        for done in range(batches):
            data = self.pair.a.core.pull(START, full_only)
            if data is None:
                return done > 0
            self.pair.b.take(bytes(data))
        return True

    def declare(self, length: int) -> None:
        if self.low_latency:
            length = min(length, BATCH // 2)
        self.scopes += 1
        message = Declare(DeclareKeyExpr(self.scopes, WireExpr(0, "k" * length)), qos=DECLARE)
        if self.outbox.push(message, now=START) is PushResult.FULL:  # as `Session.post` does
            assert self.outbox.push_beyond(message, DECLARE, True, START)

    def message(self, priority: WirePriority, reliable: bool, size: int = 0) -> Push:
        """A message with the key that was declared last."""
        self.sent[priority, reliable].append(self.count)
        payload = self.count.to_bytes(4, "little") + bytes(size)
        self.count += 1
        return Push(WireExpr(self.scopes), Put(payload), QoS(priority, BLOCK))

    def until_taken(self, push: Any) -> None:
        while push() is PushResult.FULL:
            assert self.pull(False, 1), "a lane is full, and nothing can be pulled"

    def send(self, way: str, priority: WirePriority, reliable: bool, count: int) -> None:
        outbox, qos = self.outbox, QoS(priority, BLOCK)
        if not self.scopes:
            self.declare(1)
        if way == "object":
            message = self.message(priority, reliable, count)
            self.until_taken(lambda: outbox.push(message, reliable, now=START))
        elif way == "large" and not self.low_latency:
            message = self.message(priority, reliable, 10 * count)
            self.until_taken(lambda: outbox.push(message, reliable, now=START))
        elif way == "beyond":
            message = self.message(priority, reliable, count)
            if outbox.push(message, reliable, now=START) is PushResult.FULL:
                assert outbox.push_beyond(encoded(message), qos, reliable, START)
        elif way == "short" and (lane := outbox.fast_path(qos)) is not None:
            for _ in range(count):
                if lane.open and (len(lane.appended) + 1) * 32 < outbox.top:
                    lane.appended.append(encoded(self.message(priority, True)))
        elif way == "run":
            messages = [encoded(self.message(priority, reliable)) for _ in range(count)]
            self._run(messages, priority, reliable)
        elif way == "batches" and (place := outbox.emit_lane(priority, reliable)) is not None:
            messages = [encoded(self.message(priority, reliable)) for _ in range(count)]
            ends = list(accumulate(map(len, messages)))
            packed = PackedMessages(memoryview(b"".join(messages)), ends, 0, count, place)
            while not packed.done:
                self.until_taken(
                    lambda: outbox.push_batches(lambda sn: packed.next(sn, 200), priority, reliable)
                )
        else:
            for _ in range(count):
                data = encoded(self.message(priority, reliable))
                self.until_taken(partial(outbox.push_encoded, data, qos, reliable))

    def _run(self, messages: list[bytes], priority: WirePriority, reliable: bool) -> None:
        ends = list(accumulate(map(len, messages)))
        data, done, qos = memoryview(b"".join(messages)), 0, QoS(priority, BLOCK)
        while done < len(ends):
            done = self.outbox.push_run(data, ends, priority, reliable, done, START)
            if done < len(ends):
                push = partial(self.outbox.push_encoded, messages[done], qos, reliable, now=START)
                self.until_taken(push)
                done += 1


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=150)
@given(steps=steps)
def test_no_message_overtakes_the_declaration_of_its_key(shape: str, steps: list[Any]) -> None:
    options = dict(SHAPES[shape])
    framing = options.pop("framing", Framing.STREAM)
    pair = Pair(
        offer(DIALLER, batch_size=BATCH, **options),
        offer(batch_size=BATCH, **options),
        framing=framing,
    )
    sender = Sender(pair, "low_latency" in options)
    for kind, *arguments in steps:
        if kind == "declare":
            sender.declare(*arguments)
        elif kind == "pull":
            sender.pull(*arguments)
        elif kind == "open":
            sender.outbox.enable_fast_path(QoS(arguments[0], BLOCK))
        else:
            sender.send(kind, *arguments)
    while sender.pull(False, 1):
        pass
    assert pair.b.end is None
    got = received(pair)
    if sender.low_latency or "qos" in options:  # without lanes all messages share one order
        assert sorted(chain(*got.values())) == list(range(sender.count))
    else:
        assert got == sender.sent, "all of it arrives, each lane in its order"


def received(pair: Pair) -> dict[tuple[WirePriority, bool], list[int]]:
    """The numbers that arrived, by lane. Fails for a key id that was not declared before."""
    known: set[int] = set()
    got: defaultdict[tuple[WirePriority, bool], list[int]] = defaultdict(list)
    for _, reliable, message in pair.b.heard.received:
        if isinstance(message, Declare):
            assert isinstance(message.body, DeclareKeyExpr)
            known.add(message.body.id)
        else:
            assert isinstance(message, Push)
            assert isinstance(message.body, Put)
            assert message.key.scope in known, "it was overtaken by what uses it"
            where = (message.qos.priority, reliable)
            assert isinstance(message.body.payload, bytes)
            got[where].append(int.from_bytes(message.body.payload[:4], "little"))
    return got


@pytest.mark.parametrize("length", [1, 3 * BATCH], ids=["small", "in fragments"])
@pytest.mark.parametrize("priority", [WirePriority.REAL_TIME, WirePriority.BACKGROUND])
@pytest.mark.parametrize("way", WAYS)
def test_whole_batches_that_leave_early_let_declarations_leave_first(
    way: str, priority: WirePriority, length: int
) -> None:
    pair = Pair(offer(DIALLER, batch_size=BATCH), offer(batch_size=BATCH))
    sender = Sender(pair, low_latency=False)
    sender.declare(length)
    sender.declare(1)  # behind a declaration in fragments it waits in the backlog
    control = sender.outbox.full
    if way == "short":
        sender.send("object", priority, True, 1)
        sender.outbox.enable_fast_path(QoS(priority, BLOCK))
        sender.send("short", priority, True, 3)
        way = "object"  # the message that does not fit behind the others seals their batch
    sender.send(way, priority, True, 5)
    while sender.outbox.full in (0, control):
        sender.send(way, priority, True, 5)
    while sender.pull(True, 1):
        pass
    assert received(pair), "a whole batch was not held back"
    assert not sender.outbox.full
