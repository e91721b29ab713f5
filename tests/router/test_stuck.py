"""Subscribers that take nothing any more, or little, among others that do: each for itself."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import zenlake
import zenlake.router
from tests.support.interop_pair import OURS, THEIRS, Side
from tests.support.reference_peer import ReferenceProcess
from tests.support.routed_sessions import PATIENCE, Net, unique
from tests.support.waiting import until
from zenlake.router import Event
from zenlake.runtime import kernel_loader
from zenlake.transport.outbox import BACKLOG_BYTES

pytestmark = pytest.mark.interop

OTHERS = 9
SIZE = 60_000
MESSAGES = 2 * BACKLOG_BYTES // SIZE
SLOW_SECONDS = 0.002  # Time that a slow subscriber takes per message.
NO_TIME = "congestion_no_wait"
LARGE = BACKLOG_BYTES + (8 << 20)  # Bytes of a message.
HALF = BACKLOG_BYTES // 2
LARGE_MESSAGES = 3


class Watched(Net):
    """With what happened to its sessions."""

    def __init__(self, stack: ExitStack) -> None:
        kernel_loader.load()
        self.events: list[Event] = []
        router = stack.enter_context(zenlake.router.run(watch=self.events.append))
        super().__init__(router, stack)

    def ends(self) -> list[Event]:
        return [event for event in list(self.events) if not event.opened]

    def backlog(self, zid: str) -> int:
        """The bytes that wait for one beyond its lanes."""
        sessions = self.router._core.node.sessions
        outboxes = [session._outbox for other, session in sessions.items() if str(other) == zid]
        return sum(outbox._backlog_bytes for outbox in outboxes if outbox is not None)


@pytest.fixture
def net() -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(stack)


class Counting:
    """A subscriber that only counts."""

    def __init__(self, side: Side, key: str, seconds: float = 0.0) -> None:
        self.count = 0
        self._seconds = seconds
        self._kept = side.session.declare_subscriber(key, self._hear)

    def _hear(self, sample: Any) -> None:
        self.count += 1
        if self._seconds:
            time.sleep(self._seconds)


def all_have(others: list[Counting], number: int) -> None:
    """Returns as soon as each has heard so many."""
    until(
        lambda: [subscriber.count for subscriber in others],
        lambda found: min(found) >= number,
        PATIENCE,
    )


def stuck_among_others(
    net: Watched, process: ReferenceProcess, key: str
) -> tuple[str, list[Counting]]:
    """One that is stopped, and those beside it."""
    stuck = process.open("client", {"connect/endpoints": net.router.locators})
    stuck.subscribe(key)
    others = [Counting(net.open(THEIRS if number % 2 else OURS), key) for number in range(OTHERS)]
    net.wanted(key, OTHERS + 1)
    process.stop()
    return stuck.zid, others


def test_one_that_is_stuck_is_closed_and_delays_nobody(net: Watched) -> None:
    key = unique("stuck")
    with ReferenceProcess() as process:
        zid, others = stuck_among_others(net, process, key)
        sender = net.open(THEIRS)
        sender.matching(key)
        publisher = sender.session.declare_publisher(
            key, congestion_control=THEIRS.CongestionControl.BLOCK
        )
        most = 0
        for number in range(1, MESSAGES + 1):
            publisher.put(bytes(SIZE))
            if number % 100 == 0:  # the others have it all, again and again
                all_have(others, number)
                most = max(most, net.backlog(zid))
        all_have(others, MESSAGES)
        assert {subscriber.count for subscriber in others} == {MESSAGES}
        (end,) = until(net.ends, bool, PATIENCE)
        assert (str(end.zid), end.reason, end.by_peer) == (zid, "UNRESPONSIVE", False)
        assert 0 < most <= BACKLOG_BYTES
        assert net.backlog(zid) == 0
        net.wanted(key, OTHERS)


def test_what_may_be_dropped_is_dropped_for_it_alone(net: Watched) -> None:
    key = unique("dropped")
    with ReferenceProcess() as process:
        _, others = stuck_among_others(net, process, key)
        sender = net.open(THEIRS)
        sender.matching(key)
        publisher = sender.session.declare_publisher(
            key, congestion_control=THEIRS.CongestionControl.DROP
        )
        sent = 0
        while not net.router.stats().dropped.get(NO_TIME):
            publisher.put(bytes(SIZE))
            sent += 1
            assert sent < MESSAGES, "nothing was dropped"
            all_have(others, sent)
        assert {subscriber.count for subscriber in others} == {sent}
        assert set(net.router.stats().dropped) == {NO_TIME}
        assert all(end.reason != "UNRESPONSIVE" for end in net.ends())


def test_one_that_is_slow_makes_its_sender_wait(net: Watched) -> None:
    """And loses nothing: more than may wait for it in all."""
    key = unique("slow")
    slow, sender = net.open(THEIRS), net.open(THEIRS)
    counting = Counting(slow, key, SLOW_SECONDS)
    sender.matching(key)
    publisher = sender.session.declare_publisher(
        key, congestion_control=THEIRS.CongestionControl.BLOCK
    )
    most = 0
    for _ in range(MESSAGES):
        publisher.put(bytes(SIZE))
        most = max(most, net.backlog(str(slow.session.zid())))
    until(lambda: counting.count, lambda found: found == MESSAGES, PATIENCE)
    assert most < BACKLOG_BYTES
    assert net.ends() == []
    assert net.router.stats().dropped == {}


@pytest.mark.parametrize("api", [THEIRS, OURS], ids=["theirs answers", "ours answers"])
def test_one_that_takes_its_replies_slowly_gets_them_all(net: Watched, api: Any) -> None:
    """And makes the queryable wait: more replies than may wait for it in all."""
    key = unique("replies")
    asking, other = net.open(THEIRS), net.open(api)
    count = 0

    def answer(query: Any) -> None:
        with query:
            for number in range(MESSAGES):
                query.reply(f"{key}/{number}", bytes(SIZE))

    def take(reply: Any) -> None:
        nonlocal count
        assert reply.ok is not None
        count += 1
        time.sleep(SLOW_SECONDS)

    with other.session.declare_queryable(f"{key}/*", answer):
        asking.answered(f"{key}/*")
        none = THEIRS.ConsolidationMode.NONE
        asking.session.get(f"{key}/*", take, consolidation=none, timeout=2 * PATIENCE)
        until(lambda: count, lambda found: found == MESSAGES, PATIENCE)
    assert net.ends() == []
    assert net.router.stats().dropped == {}


@pytest.mark.parametrize(("senders", "size"), [(1, LARGE), (6, HALF)])
def test_large_messages_wait_for_one_that_makes_progress(
    net: Watched, senders: int, size: int
) -> None:
    """However large they are together: the senders wait."""
    key = unique("large")
    counting = Counting(net.open(THEIRS), key)
    sides = [net.open(THEIRS) for _ in range(senders)]
    payload = bytes(size)

    def put(side: Side) -> None:
        for _ in range(LARGE_MESSAGES):
            side.session.put(key, payload, congestion_control=THEIRS.CongestionControl.BLOCK)

    for side in sides:
        side.matching(key)
    with ThreadPoolExecutor(senders) as pool:
        assert list(pool.map(put, sides)) == [None] * senders
    until(lambda: counting.count, lambda found: found == senders * LARGE_MESSAGES, PATIENCE)
    assert net.ends() == []
    assert net.router.stats().dropped == {}


def test_large_replies_wait_for_one_that_makes_progress(net: Watched) -> None:
    """Of a queryable of ours, and of the router that passes them on."""
    key = unique("large")
    asking, other = net.open(THEIRS), net.open(OURS)
    payload = bytes(LARGE)

    def answer(query: Any) -> None:
        with query:
            for number in range(LARGE_MESSAGES):
                query.reply(f"{key}/{number}", payload)

    with other.session.declare_queryable(f"{key}/*", answer):
        asking.answered(f"{key}/*")
        replies = asking.session.get(f"{key}/*", timeout=PATIENCE)
        assert [len(reply.ok.payload) for reply in replies] == [LARGE] * LARGE_MESSAGES
    assert net.ends() == []
