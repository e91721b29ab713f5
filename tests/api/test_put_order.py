"""Puts of one thread on one key arrive in order, whichever path each put took."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import zenlake
from tests.support.session_pairs import dialling, listening, pair, publisher_for
from tests.support.waiting import until
from zenlake.handlers import Callback, FifoChannel

pytestmark = pytest.mark.slow

PUTS = 600
BLOCK = zenlake.CongestionControl.BLOCK
LOW_LATENCY = {"transport__unicast__qos__enabled": False, "transport__unicast__lowlatency": True}
NO_LANES = {"transport__unicast__qos__enabled": False}
COMPRESSED = {"transport__unicast__compression__enabled": True}
SMALL_BATCHES = {"transport__link__tx__batch_size": 2048}
DEADLINE = 20.0


def number(n: int, size: int) -> bytes:
    return n.to_bytes(4, "big") + bytes(size)


class Putting:
    """All the ways there are to put the next numbers."""

    def __init__(self, session: zenlake.Session, largest: int) -> None:
        self.session = session
        self.publisher = publisher_for(session, "a/b", congestion_control=BLOCK)
        self.largest = largest
        self.next = 0
        self.random = random.Random(1)
        self.ways: list[Callable[[], None]] = [
            self.short,
            self.short,
            self.long,
            self.buffer,
            self.large,
            self.by_session,
            self.batch,
        ]

    def take(self, size: int) -> bytes:
        self.next += 1
        return number(self.next - 1, size)

    def short(self) -> None:
        for _ in range(20):
            self.publisher.put(self.take(self.random.choice([0, 10, 200])))

    def long(self) -> None:
        self.publisher.put(self.take(10), encoding="text/plain", attachment=b"x")

    def buffer(self) -> None:
        self.publisher.put(bytearray(self.take(100)))

    def large(self) -> None:
        self.publisher.put(self.take(self.largest))

    def by_session(self) -> None:
        self.session.put("a/b", self.take(5), congestion_control=BLOCK)

    def batch(self) -> None:
        rows = [self.take(self.random.choice([3, 50, self.largest])) for _ in range(12)]
        self.publisher.put_batch(pa.RecordBatch.from_pydict({"payload": rows}))

    def all(self) -> None:
        while self.next < PUTS:
            self.random.choice(self.ways)()


@pytest.mark.parametrize(
    ("settings", "largest"),
    [
        ({}, 200_000),
        (NO_LANES, 200_000),
        (LOW_LATENCY, 30_000),
        (COMPRESSED, 200_000),
        (SMALL_BATCHES, 9_000),
    ],
    ids=["plain", "no lanes", "low latency", "compressed", "small batches"],
)
def test_every_way_to_put_keeps_the_order(settings: dict[str, Any], largest: int) -> None:
    listener, port = listening(**settings)
    with listener, dialling(port, **settings) as dialler:
        subscriber = listener.declare_subscriber("a/**", FifoChannel(10 * PUTS))
        putting = Putting(dialler, largest)
        putting.all()
        got = [subscriber.recv().payload.to_bytes() for _ in range(putting.next)]
        assert [int.from_bytes(payload[:4], "big") for payload in got] == list(range(putting.next))


def test_a_subscriber_of_several_keys_gets_them_in_order_though_another_wants_one() -> None:
    with pair() as (listener, dialler):
        everything = listener.declare_subscriber("a/**", FifoChannel(10_000))
        one = listener.declare_subscriber("a/1", FifoChannel(10_000))
        until(lambda: dialler._core.exchange.outbound_faces("a/1"))
        rows = {
            "key": [f"a/{n % 3}" for n in range(900)],
            "payload": [number(n, 10) for n in range(900)],
        }
        for _ in range(3):  # at first the compiled readers may not be there yet
            dialler.put_batch(pa.RecordBatch.from_pydict(rows))
            got = [everything.recv().payload.to_bytes() for _ in range(900)]
            assert got == rows["payload"]
            assert [one.recv().payload.to_bytes() for _ in range(300)] == rows["payload"][1::3]


Act = Callable[[zenlake.Session], object]


def _declare(session: zenlake.Session) -> None:
    session.declare_subscriber("x").undeclare()
    session.declare_queryable("x").undeclare()
    session.declare_querier("x").undeclare()
    with session.declare_publisher("x") as publisher:
        publisher.declare_matching_listener().undeclare()
    session.liveliness().declare_token("x").undeclare()
    session.liveliness().declare_subscriber("x").undeclare()


ACTS: dict[str, Act] = {
    "put": lambda session: session.put("x", b""),
    "get": lambda session: session.get("x", lambda _: None),
    "declare": _declare,
    "look": lambda session: (session.stats(), session.info.transports(), session.info.links()),
}


@pytest.mark.parametrize("indirect", [True, False], ids=["own thread", "direct"])
@pytest.mark.parametrize("act", ACTS)
def test_every_callback_may_use_its_session(act: str, indirect: bool) -> None:
    done: set[str] = set()
    wrong: list[BaseException] = []

    with pair() as (listener, dialler):

        def calling(kind: str) -> Callback[Any]:
            def call(item: Any) -> None:
                try:
                    if kind == "queryable":
                        item.reply("q", b"")
                    ACTS[act](listener)
                    done.add(kind)
                except BaseException as error:  # noqa: BLE001 - shown below
                    wrong.append(error)

            return Callback(call, indirect=indirect)

        listener.declare_subscriber("s", calling("subscriber"))
        listener.declare_queryable("q", calling("queryable"))
        listener.liveliness().declare_subscriber("t", calling("liveliness"))
        matched = listener.declare_publisher("m")
        matched.declare_matching_listener(calling("matching"))
        listener.info.declare_transport_events_listener(calling("transport"), history=True)
        listener.info.declare_link_events_listener(calling("link"), history=True)
        answering = dialler.declare_queryable("r", lambda query: query.reply("r", b""))
        until(lambda: listener.declare_querier("r").matching_status.matching)
        listener.get("r", calling("reply"))
        publisher_for(dialler, "s").put(b"")
        asking = dialler.declare_querier("q")
        until(lambda: asking.matching_status.matching)
        list(asking.get())
        with dialler.liveliness().declare_token("t"), dialler.declare_subscriber("m"):
            until(lambda: wrong or len(done) == 7)
        answering.undeclare()
        assert not wrong
    assert threading.active_count() < 100
