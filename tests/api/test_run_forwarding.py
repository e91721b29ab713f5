"""Runs of samples on their way through a node: to sessions of every kind, in order, none lost."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

import zenlake
from tests.support.session_pairs import dialling, listening
from tests.support.waiting import until
from zenlake.runtime import kernel_loader

pytestmark = pytest.mark.slow

LOW_LATENCY = {"transport__unicast__qos__enabled": False, "transport__unicast__lowlatency": True}
NO_LANES = {"transport__unicast__qos__enabled": False}
COMPRESSED = {"transport__unicast__compression__enabled": True}
SMALL_BATCHES = {"transport__link__tx__batch_size": 4096}


class Way:
    """A client that puts, a router, and a client that subscribes."""

    def __init__(self, stack: ExitStack, sender: Any, router: Any, receiver: Any) -> None:
        self.router, self.port = listening(mode="router", **router)
        port = self.port
        stack.enter_context(self.router)
        self.sender = stack.enter_context(dialling(port, mode="client", **sender))
        self.receiver = stack.enter_context(dialling(port, mode="client", **receiver))
        self.subscriber = self.receiver.declare_subscriber(
            "way/**", zenlake.handlers.FifoChannel(100_000)
        )
        self.publisher = stack.enter_context(self.sender.declare_publisher("way/a"))
        until(lambda: self.publisher.matching_status.matching)

    def received(self, count: int) -> list[zenlake.Sample]:
        got: list[zenlake.Sample] = []

        def enough() -> bool:
            while (sample := self.subscriber.try_recv()) is not None:
                got.append(sample)
            return len(got) >= count

        until(enough)
        return got


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    kernel_loader.load()  # runs are what the compiled readers find
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("sender", "router", "receiver"),
    [
        ({}, {}, {}),
        ({}, NO_LANES, {}),
        (LOW_LATENCY, LOW_LATENCY, NO_LANES),
        (NO_LANES, LOW_LATENCY, LOW_LATENCY),
        (LOW_LATENCY, LOW_LATENCY, LOW_LATENCY),
        (COMPRESSED, COMPRESSED, COMPRESSED),
        ({}, {}, SMALL_BATCHES),
        (SMALL_BATCHES, {}, {}),
    ],
    ids=[
        "plain",
        "no lanes",
        "from low latency",
        "to low latency",
        "low latency",
        "compressed",
        "to small batches",
        "from small batches",
    ],
)
def test_a_run_arrives_whole_and_in_order(
    stack: ExitStack, sender: Any, router: Any, receiver: Any
) -> None:
    way = Way(stack, sender, router, receiver)
    sizes = [10, 10, 3000, 10, 9000, 10, 10, 20_000, 10] * 3
    payloads = [n.to_bytes(4, "big") + bytes(size) for n, size in enumerate(sizes)]
    way.publisher.put(b"first")
    way.publisher.put_batch(pa.RecordBatch.from_pydict({"payload": payloads}))
    way.publisher.put(b"last")
    got = [sample.payload.to_bytes() for sample in way.received(len(payloads) + 2)]
    assert got == [b"first", *payloads, b"last"]


def test_messages_keep_their_priority_where_the_sender_had_no_lanes(stack: ExitStack) -> None:
    way = Way(stack, NO_LANES, {}, {})
    urgent = stack.enter_context(
        way.sender.declare_publisher("way/u", priority=zenlake.Priority.REAL_TIME)
    )
    until(lambda: urgent.matching_status.matching)
    urgent.put_batch(pa.RecordBatch.from_pydict({"payload": [bytes(100)] * 50}))
    mixed = {"key": ["way/m"] * 50, "payload": [bytes(100)] * 50, "priority": [1, 5] * 25}
    way.sender.put_batch(pa.RecordBatch.from_pydict(mixed))
    got = way.received(100)
    assert {sample.priority for sample in got if str(sample.key_expr) == "way/u"} == {
        zenlake.Priority.REAL_TIME
    }
    (transport,) = way.receiver.stats().transports
    assert {"REAL_TIME RELIABLE", "DATA RELIABLE"} <= {gap.lane for gap in transport.gaps}


def test_a_sample_has_one_timestamp_whoever_gets_it(stack: ExitStack) -> None:
    """The router stamps what has no timestamp: once, however many want it, and here as well."""
    way = Way(stack, {}, {"timestamping__enabled": True}, {})
    second = stack.enter_context(way.router.declare_subscriber("way/**"))
    third_session = stack.enter_context(dialling(way.port, mode="client"))
    third = third_session.declare_subscriber("way/a")
    until(lambda: len(way.router._core.exchange.outbound_faces("way/a")) == 2)
    rows = [n.to_bytes(2, "big") + bytes(100) for n in range(50)]
    way.publisher.put_batch(pa.RecordBatch.from_pydict({"payload": rows}))
    stamps = [str(sample.timestamp) for sample in way.received(50)]
    assert len(set(stamps)) == 50
    assert "None" not in stamps
    assert [str(second.recv().timestamp) for _ in rows] == stamps
    assert [str(third.recv().timestamp) for _ in rows] == stamps


def test_a_row_that_is_put_has_one_timestamp_whoever_gets_it(stack: ExitStack) -> None:
    session, port = listening(timestamping__enabled=True)
    stack.enter_context(session)
    others = [stack.enter_context(dialling(port)) for _ in range(2)]
    subscribers = [session.declare_subscriber("a/**")]
    subscribers += [
        other.declare_subscriber(key) for other, key in zip(others, ("a/**", "a/1"), strict=True)
    ]
    until(lambda: len(session._core.exchange.outbound_faces("a/1")) == 2)
    keys = [f"a/{n % 3}" for n in range(60)]
    rows = {"key": keys, "payload": [n.to_bytes(2, "big") for n in range(60)]}
    session.put_batch(pa.RecordBatch.from_pydict(rows))
    stamps: dict[bytes, set[str]] = {}
    for subscriber, count in zip(subscribers, (60, 60, 20), strict=True):
        for _ in range(count):
            sample = subscriber.recv()
            stamps.setdefault(sample.payload.to_bytes(), set()).add(str(sample.timestamp))
    assert all(len(found) == 1 for found in stamps.values())
    assert len({stamp for found in stamps.values() for stamp in found}) == 60


def test_a_row_too_large_to_be_sent_is_refused_and_the_others_leave(stack: ExitStack) -> None:
    way = Way(stack, {"transport__link__rx__max_message_size": 1 << 20}, {}, {})
    before = way.sender.stats().sent_messages
    rows = {"payload": [b"small", bytes(70 << 20)]}
    with pytest.raises(zenlake.ZError, match="can be sent"):
        way.publisher.put_batch(pa.RecordBatch.from_pydict(rows))
    assert way.sender.stats().sent_messages == before + 1
