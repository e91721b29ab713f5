"""Sessions that share memory: bad pointers are dropped and counted, and drops cost no memory."""

import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import zenlake
from tests.support.processes import python_environment
from tests.support.session_pairs import listening, pair, publisher_for
from tests.support.waiting import until
from zenlake import CongestionControl, ZBytes, shm
from zenlake.runtime import kernel_loader
from zenlake.runtime.inbound import InboundFrames
from zenlake.runtime.sending import SendingSession
from zenlake.shm.arena import Arena, SharedBuffer
from zenlake.shm.pointers import HeldPayload, SharedPut
from zenlake.shm.views import OwnLease, lease_of

pytestmark = pytest.mark.slow

KEY = "shm/session"
SIZE = 5000
BLOCK: dict[str, Any] = {"congestion_control": CongestionControl.BLOCK}


def describe(**fields: int) -> Callable[[SharedBuffer], None]:
    def change(buffer: SharedBuffer) -> None:
        true = {
            "segment": buffer.arena.segment.number,
            "offset": buffer.offset,
            "capacity": buffer.capacity,
        }
        buffer.header.describe(**(true | fields))

    return change


def reuse(buffer: SharedBuffer) -> None:
    buffer.header.next_generation()


BAD: dict[str, Callable[[SharedBuffer], None]] = {
    "an unknown segment": describe(segment=1),
    "an offset outside": describe(offset=0xFFFF_FFFF),
    "an end outside": describe(offset=(1 << 20) - 100),
    "a capacity that is too small": describe(capacity=10),
    "taken back": lambda buffer: buffer.header.invalidate(),
    "used again": reuse,
}


def buffer_of(payload: Any) -> SharedBuffer:
    lease = lease_of(payload.buffer)
    assert isinstance(lease, OwnLease)
    return lease.buffer


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_pointer_is_dropped_and_counted(name: str, count: int) -> None:
    """One alone, and many that are read together."""
    heard: list[bytes] = []
    with (
        pair(transport__shared_memory__enabled=True) as (a, b),
        b.declare_subscriber(KEY, lambda sample: heard.append(bytes(sample.payload))),
        a.declare_publisher(KEY, **BLOCK) as publisher,
    ):
        assert a.info.transports()[0].is_shm
        until(lambda: publisher.matching_status.matching)
        provider = shm.ShmProvider.default_backend(1 << 20)
        made = provider.alloc(SIZE)
        made[:] = b"x" * SIZE
        payload = ZBytes(made)
        BAD[name](buffer_of(payload))
        for _ in range(count):
            publisher.put(payload)
        until(lambda: b.stats().dropped.get("shm_unreadable", 0) == count)
        publisher.put(b"y" * SIZE)
        until(lambda: heard)
        assert heard == [b"y" * SIZE]
        assert len(a.info.transports()) == len(b.info.transports()) == 1


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that are loaded before the first put."""
    kernel_loader.load()
    make = InboundFrames.__init__

    def make_loaded(self: InboundFrames, *arguments: Any) -> None:
        make(self, *arguments)
        assert self._load_kernels()

    monkeypatch.setattr(InboundFrames, "__init__", make_loaded)


@pytest.mark.parametrize("name", BAD)
def test_a_put_that_comes_alone_is_read_by_the_kernel(
    name: str, kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first put makes the receiver know its route; a bad pointer is dropped and counted."""
    heard: list[tuple[bytes, bool, Any]] = []
    given: list[HeldPayload | None] = []
    hold = SharedPut.hold

    def note(put: SharedPut) -> HeldPayload | None:
        given.append(hold(put))
        return given[-1]

    monkeypatch.setattr(SharedPut, "hold", note)

    def hear(sample: zenlake.Sample) -> None:
        shared = sample.payload.as_shm() is not None
        heard.append((bytes(sample.payload), shared, sample.congestion_control))

    with (
        pair(transport__shared_memory__enabled=True) as (a, b),
        b.declare_subscriber(KEY, hear),
        a.declare_publisher(KEY, **BLOCK) as publisher,
    ):
        until(lambda: publisher.matching_status.matching)
        for number in range(3):
            publisher.put(bytes([number]) * SIZE)
            until(lambda: len(heard), lambda count: count == number + 1)  # noqa: B023
        assert len(given) == 2
        provider = shm.ShmProvider.default_backend(1 << 20)
        made = provider.alloc(SIZE)
        made[:] = b"x" * SIZE
        payload = ZBytes(made)
        BAD[name](buffer_of(payload))
        publisher.put(payload)
        until(lambda: b.stats().dropped.get("shm_unreadable", 0) == 1)
        publisher.put(b"y" * SIZE)
        until(lambda: len(heard), lambda count: count == 4)
        expected = [*(bytes([number]) * SIZE for number in range(3)), b"y" * SIZE]
        assert heard == [(data, True, CongestionControl.BLOCK) for data in expected]
        given.clear()
        node = a._core.exchange.node.shm
        assert node is not None
        assert node.pool is not None
        until(lambda: not any(buffer.header.references for buffer in node.pool._busy))  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [3072, 300_000])
def test_messages_that_are_dropped_give_their_memory_back(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the link is congested."""
    heard: list[int] = []
    with (
        pair(transport__shared_memory__enabled=True) as (a, b),
        b.declare_subscriber(KEY, lambda sample: heard.append(len(sample.payload))),
        a.declare_publisher(KEY, **BLOCK) as publisher,
    ):
        until(lambda: publisher.matching_status.matching)
        with monkeypatch.context() as patch:
            patch.setattr(SendingSession, "_send", lambda *_: False)
            for _ in range(100):
                publisher.put(bytes(size), attachment=b"x")
        node = a._core.exchange.node.shm
        assert node is not None
        assert node.pool is not None
        assert node._own is not None
        assert node._own.is_delivered
        assert [buffer.header.references for buffer in node.pool._busy if buffer.sent] != []
        assert not any(buffer.header.references for buffer in node.pool._busy)
        publisher.put(bytes(size), attachment=b"x")
        until(lambda: heard == [size])


LEAVES = """
import sys, zenlake
from tests.support.session_pairs import dialling
session = dialling(int(sys.argv[1]), transport__shared_memory__enabled=True)
block = zenlake.CongestionControl.BLOCK
publisher = session.declare_publisher("shm/session", congestion_control=block)
while not publisher.matching_status.matching:
    pass
for number in range(20):
    publisher.put(bytes([number]) * 100_000)
"""


@pytest.mark.process
def test_a_program_that_ends_without_closing_delivers_what_it_put() -> None:
    heard: list[bytes] = []
    listener, port = listening(transport__shared_memory__enabled=True)
    with listener, listener.declare_subscriber(KEY, lambda s: heard.append(bytes(s.payload))):
        subprocess.run(
            [sys.executable, "-c", LEAVES, str(port)], check=True, env=python_environment()
        )
        until(lambda: len(heard) == 20)
        assert listener.stats().dropped == {}
    assert heard == [bytes([number]) * 100_000 for number in range(20)]


@pytest.mark.parametrize("size", [0, 1])
def test_with_a_threshold_of_nothing_empty_puts_arrive(size: int) -> None:
    settings = {
        "transport__shared_memory__enabled": True,
        "transport__shared_memory__transport_optimization__message_size_threshold": 0,
    }
    heard: list[bytes] = []
    with (
        pair(**settings) as (a, b),
        b.declare_subscriber(KEY, lambda s: heard.append(bytes(s.payload))),
        publisher_for(a, KEY) as publisher,
    ):
        for _ in range(10):
            publisher.put(bytes(size))
        until(lambda: len(heard) == 10)
    assert heard == [bytes(size)] * 10


def test_a_pool_that_a_reader_keeps_is_not_searched_with_every_put(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Any] = []
    searches: list[float] = []
    reclaim = Arena.reclaim

    def counted(self: Arena, now: float | None = None, limit: int | None = None) -> int:
        searches.append(time.monotonic())
        time.sleep(0.01)  # As with thousands of buffers on a slow machine.
        return reclaim(self, now, limit)

    monkeypatch.setattr(Arena, "reclaim", counted)
    settings = {
        "transport__shared_memory__enabled": True,
        "transport__shared_memory__transport_optimization__pool_size": 1 << 20,
    }
    with (
        pair(**settings) as (a, b),
        b.declare_subscriber(KEY, kept.append),
        publisher_for(a, KEY, **BLOCK) as publisher,
    ):
        for _ in range(2000):
            publisher.put(bytes(SIZE))
        until(lambda: len(kept) == 2000)
    assert searches
    assert all(after - before > 0.1 for before, after in pairwise(searches))


def test_a_query_ends_though_a_log_handler_keeps_why_there_is_no_pool(
    caplog: pytest.LogCaptureFixture,
) -> None:
    too_large = {"transport__shared_memory__transport_optimization__pool_size": 1 << 50}
    with (
        pair(transport__shared_memory__enabled=True, **too_large) as (a, b),
        a.declare_queryable(KEY, lambda query: query.reply(KEY, bytes(SIZE))),
        b.declare_querier(KEY) as querier,
    ):
        until(lambda: querier.matching_status.matching)
        assert [reply.ok is not None for reply in querier.get()] == [True]
        assert "large payloads go over the network" in caplog.text
