"""A message that is too large for one session: all others get it, and its sender is told.

A low-latency session has no fragments, so what is larger than a batch cannot be sent there.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import zenoh.ext

import zenlake
import zenlake.aio
import zenlake.ext
from tests.golden.proxy import LOOPBACK, free_port
from tests.support.interop_pair import OURS, THEIRS, open_session, replies
from tests.support.routed_sessions import routed
from tests.support.waiting import until
from zenlake.api.query.reply_batch import reply_batch
from zenlake.runtime import kernel_loader
from zenlake.transport.drop_reason import DropReason

pytestmark = [pytest.mark.interop]

SMALL, LARGE = b"s" * 1000, b"l" * 100_000  # LARGE is above the largest batch.
LOW_LATENCY = {"transport/unicast/lowlatency": True, "transport/unicast/qos/enabled": False}
ORDERS = [
    pytest.param(("low", "full"), id="low-latency-first"),
    pytest.param(("full", "low"), id="low-latency-last"),
]
REFUSED = "low-latency session sends at most .* send less at once, or open the session without"


class Receiver:
    """A session of eclipse-zenoh with a subscriber of everything."""

    def __init__(self, stack: ExitStack, settings: dict[str, Any]) -> None:
        self.port = free_port()
        self.session = open_session(
            THEIRS, "peer", listen=f"tcp/{LOOPBACK}:{self.port}", settings=settings
        )
        stack.callback(self.session.close)
        self.heard: list[tuple[str, int]] = []
        self.session.declare_subscriber("size/**", self._hear)

    def _hear(self, sample: Any) -> None:
        size = len(sample.payload.to_bytes()) + len((sample.attachment or b"") and LARGE)
        self.heard.append((str(sample.key_expr), size))

    def wait(self, *sizes: int) -> None:
        """Return when exactly these were heard on `size/a`."""
        until(lambda: [size for key, size in self.heard if key == "size/a"], list(sizes).__eq__)


class Sizes:
    """A session of ours that has a low-latency session with one receiver, and a usual one with the
    other."""

    def __init__(self, stack: ExitStack, order: tuple[str, str]) -> None:
        kernel_loader.load()
        self.low = Receiver(stack, LOW_LATENCY)
        self.full = Receiver(stack, {})
        self.session = open_session(OURS, "peer", settings=LOW_LATENCY)
        stack.callback(self.session.close)
        node = self.session._core.node
        for name in order:
            receiver = self.low if name == "low" else self.full
            node.connect(f"tcp/{LOOPBACK}:{receiver.port}")
        self.here: list[int] = []
        agreed = [session.agreement for session in node.sessions.values()]
        assert sorted(found.low_latency for found in agreed) == [False, True]
        self.settle("size/probe")

    def settle(self, key: str) -> None:
        """Return when a put on `key` reaches both."""

        def put() -> list[bool]:
            self.session.put(key, b"")
            return [any(k == key for k, _ in side.heard) for side in (self.low, self.full)]

        until(put, all)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def put(session: Any, publisher: Any) -> None:
    session.put("size/a", LARGE)


def put_of_a_publisher(session: Any, publisher: Any) -> None:
    publisher.put(LARGE)


def put_with_an_option(session: Any, publisher: Any) -> None:
    publisher.put(LARGE, encoding="text/plain")


def delete(session: Any, publisher: Any) -> None:
    session.delete("size/a", attachment=LARGE)


def put_from_asyncio(session: Any, publisher: Any) -> None:
    async def run() -> None:
        await zenlake.aio.Publisher(publisher, set()).put(LARGE)

    asyncio.run(run())


PUTS = [put, put_of_a_publisher, put_with_an_option, delete, put_from_asyncio]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("send", PUTS)
def test_the_others_get_what_one_session_cannot_carry(
    stack: ExitStack, order: tuple[str, str], send: Callable[[Any, Any], None]
) -> None:
    sizes = Sizes(stack, order)
    here: list[int] = []
    sizes.session.declare_subscriber("size/a", lambda sample: here.append(1))
    publisher = sizes.session.declare_publisher("size/a")
    with pytest.raises(zenlake.ZError, match=f"{sizes.low.port}.*{REFUSED}"):
        send(sizes.session, publisher)
    sizes.session.put("size/a", SMALL)
    sizes.full.wait(len(LARGE), len(SMALL))
    sizes.low.wait(len(SMALL))
    until(lambda: here, [1, 1].__eq__)


def test_an_advanced_publisher_gives_the_number_of_a_sample_that_others_have_to_no_other(
    stack: ExitStack,
) -> None:
    """A subscriber drops a number that it has seen; a cache skips what is too large."""
    sizes = Sizes(stack, ("low", "full"))
    heard: list[int] = []
    subscriber = zenoh.ext.declare_advanced_subscriber(
        sizes.full.session, "size/a", lambda sample: heard.append(len(sample.payload.to_bytes()))
    )
    publisher = zenlake.ext.declare_advanced_publisher(
        sizes.session,
        "size/a",
        cache=zenlake.ext.CacheConfig(10),
        sample_miss_detection=zenlake.ext.MissDetectionConfig(),
    )
    publisher.put(SMALL)
    with pytest.raises(zenlake.ZError, match=REFUSED):
        publisher.put(LARGE)
    publisher.put(SMALL)
    until(lambda: heard, [len(SMALL), len(LARGE), len(SMALL)].__eq__)
    subscriber.undeclare()  # type: ignore[no-untyped-call]
    late: list[int] = []
    zenoh.ext.declare_advanced_subscriber(
        sizes.low.session,
        "size/a",
        lambda sample: late.append(len(sample.payload.to_bytes())),
        history=zenoh.ext.HistoryConfig(),
    )
    until(lambda: late, [len(SMALL), len(SMALL)].__eq__)


@pytest.mark.parametrize("order", ORDERS)
def test_a_batch_reaches_each_session_with_the_rows_that_fit(
    stack: ExitStack, order: tuple[str, str]
) -> None:
    sizes = Sizes(stack, order)
    rows = {"key": ["size/a"] * 3, "payload": [SMALL, LARGE, SMALL], "priority": [5, 5, 6]}
    with pytest.raises(zenlake.ZError, match=f"{sizes.low.port}.*1 of 2 rows"):
        sizes.session.put_batch(pa.RecordBatch.from_pydict(rows))
    sizes.full.wait(len(SMALL), len(LARGE), len(SMALL))
    sizes.low.wait(len(SMALL), len(SMALL))


ANSWERS: dict[str, Callable[[Any], None]] = {
    "reply": lambda query: query.reply("size/q", LARGE),
    "reply_err": lambda query: query.reply_err(LARGE),
    "reply_del": lambda query: query.reply_del("size/q", attachment=LARGE),
}


def _is_matching(querier: Any) -> bool:
    return bool(querier.matching_status.matching)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_reply_that_is_too_large_becomes_an_error_on_both_sides(
    stack: ExitStack, order: tuple[str, str], answer: str
) -> None:
    sizes = Sizes(stack, order)
    raised: list[str] = []

    def on_query(query: Any) -> None:
        with query:
            try:
                ANSWERS[answer](query)
            except zenlake.ZError as error:
                raised.append(str(error))
            query.reply("size/q", SMALL)

    sizes.session.declare_queryable("size/q", on_query)
    for side in (sizes.full, sizes.low):
        every = THEIRS.ConsolidationMode.NONE
        querier = side.session.declare_querier("size/q", consolidation=every)
        until(partial(_is_matching, querier))
        found = list(querier.get())  # Ends: the RESPONSE_FINAL comes long before the timeout.
        if side is sizes.full:
            assert len(found) == 2
            assert not raised
        else:
            errors = [reply.err.payload.to_string() for reply in found if reply.err]
            assert errors == ["The message is too large for a link on the way"]
            assert [len(r.ok.payload.to_bytes()) for r in found if r.ok] == [len(SMALL)]
            (text,) = raised
            assert "low-latency session sends at most" in text


@pytest.mark.parametrize("order", ORDERS)
def test_a_row_of_many_replies_that_is_too_large_becomes_an_error(
    stack: ExitStack, order: tuple[str, str]
) -> None:
    """As `zenlake serve` answers."""
    sizes = Sizes(stack, order)
    rows = pa.RecordBatch.from_pydict({"key": ["size/q"] * 3, "payload": [SMALL, LARGE, SMALL]})
    answers: list[tuple[int, int]] = []

    def on_query(query: Any) -> None:
        with query:
            answers.append(reply_batch(query, rows, lambda: True))

    sizes.session.declare_queryable("size/q", on_query)
    for side, found in ((sizes.full, [SMALL, LARGE, SMALL]), (sizes.low, [SMALL, SMALL])):
        every = THEIRS.ConsolidationMode.NONE
        querier = side.session.declare_querier("size/q", consolidation=every)
        until(partial(_is_matching, querier))
        got = list(querier.get())
        assert [reply.ok.payload.to_bytes() for reply in got if reply.ok] == found
        errors = [reply.err.payload.to_string() for reply in got if reply.err]
        assert errors == ["The message is too large for a link on the way"] * (3 - len(found))
    until(lambda: answers, [(3, 0), (3, 1)].__eq__)


@pytest.mark.parametrize("order", ORDERS)
def test_a_query_that_is_too_large_is_answered_by_the_others(
    stack: ExitStack, order: tuple[str, str]
) -> None:
    sizes = Sizes(stack, order)
    for side in (sizes.full, sizes.low):
        side.session.declare_queryable("size/q", lambda query: query.reply("size/q", SMALL))
    ask = partial(
        sizes.session.get,
        "size/q",
        target=OURS.QueryTarget.ALL,
        consolidation=OURS.ConsolidationMode.NONE,
    )
    until(lambda: len(replies(ask())) == 2)
    found = list(ask(payload=LARGE))
    errors = [reply.err.payload.to_string() for reply in found if reply.err]
    assert errors == ["The message is too large for a link on the way"]
    assert [len(r.ok.payload.to_bytes()) for r in found if r.ok] == [len(SMALL)]


def test_a_router_forwards_to_the_others_and_counts(stack: ExitStack) -> None:
    settings: dict[str, Any] = {key.replace("/", "__"): on for key, on in LOW_LATENCY.items()}
    net = stack.enter_context(routed(**{key: json.dumps(on) for key, on in settings.items()}))
    low = net.open(THEIRS, **settings)
    full = net.open(THEIRS)
    sender = net.open(THEIRS)
    heard: dict[str, list[int]] = {"low": [], "full": []}
    for name, side in (("low", low), ("full", full)):
        side.session.declare_subscriber(
            "size/a", lambda sample, name=name: heard[name].append(len(sample.payload.to_bytes()))
        )
        side.session.declare_queryable("size/q", lambda query: query.reply("size/q", SMALL))
    net.wanted("size/a", 2)
    sender.session.put("size/a", LARGE)
    sender.session.put("size/a", SMALL)
    until(lambda: heard, {"low": [len(SMALL)], "full": [len(LARGE), len(SMALL)]}.__eq__)
    assert net.router._core.exchange.dropped[DropReason.MESSAGE_TOO_LARGE] == 1
    full.session.declare_queryable("size/large", lambda query: query.reply("size/large", LARGE))
    querier = low.session.declare_querier("size/large")
    until(lambda: querier.matching_status.matching)
    (reply,) = querier.get()
    assert reply.err.payload.to_string() == "The message is too large for a link on the way"
    found = list(sender.session.get("size/q", payload=LARGE, target=THEIRS.QueryTarget.ALL))
    assert sorted(bool(reply.ok) for reply in found) == [False, True]
