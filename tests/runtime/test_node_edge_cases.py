"""A node whose peers fail, leave or arrive in the middle of another step."""

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from tests.support import delivery
from tests.support.delivery import Delivery
from tests.support.discovery import new_group, on_lo
from tests.support.hostile import FIRST_SN, HostilePeer
from tests.support.runtime_nodes import (
    ANYWHERE,
    PATIENCE,
    Record,
    make_node,
    new_zid,
    numbered,
    port_of,
    put,
)
from tests.support.waiting import until
from zenlake.errors import InvalidLocator, LinkError, SessionEnded
from zenlake.link import multicast
from zenlake.link.base import READ_BYTES
from zenlake.link.options import LinkOptions
from zenlake.runtime import reactor
from zenlake.runtime import transport_session as session
from zenlake.runtime.discovery import DiscoveryConfig
from zenlake.runtime.group import Group
from zenlake.runtime.node import Node
from zenlake.runtime.reactor import Reactor
from zenlake.runtime.transport_session import TransportSession
from zenlake.sim import World
from zenlake.transport.multicast import GroupOffer
from zenlake.transport.retry import RetryPolicy
from zenlake.wire.batch import write_batch
from zenlake.wire.enums import WirePriority, WireWhatAmI
from zenlake.wire.frame import Frame
from zenlake.wire.framing import compress
from zenlake.wire.init import Init
from zenlake.wire.locator import EndPoint

pytestmark = pytest.mark.slow

GOSSIP = DiscoveryConfig(group=None)
MULTIHOP = DiscoveryConfig(group=None, multihop=True)
NOBODY = "tcp/127.0.0.1:1"
GROUP = on_lo(new_group())
CANNOT_BE_DIALLED = ["#so_sndbuf=many", "#bind=127.0.0.1:0;iface=lo"]


# ---- gossip


@pytest.mark.parametrize("discovery", [GOSSIP, MULTIHOP])
def test_news_reach_the_others_while_one_session_is_closing(discovery: DiscoveryConfig) -> None:
    handler = Record()
    with make_node(handler, discovery=discovery) as hub:
        (locator,) = hub.listen(ANYWHERE)
        with HostilePeer(port_of((locator,)), new_zid()) as stuck:
            stuck.send(stuck.open_syn(stuck.init(WireWhatAmI.PEER)))
            until(lambda: stuck.zid in hub.sessions)
            closing = hub.sessions[stuck.zid]
            closing.close()  # the peer does not answer: the session lingers
            until(lambda: closing._closing)
            with make_node(discovery=discovery) as newcomer:
                newcomer.listen(ANYWHERE)
                connector = newcomer.keep_connected(locator)
                until(lambda: newcomer.zid in hub.sessions)
                until(lambda: handler.ends)
                assert [ended for ended, _ in handler.ends] == [closing]
                assert connector.attempts == 1
                assert newcomer.zid in hub.sessions


def test_a_hub_with_multihop_gossip_tells_of_every_end_when_it_closes() -> None:
    world, handler = World(seed=1), Record()
    hub = world.node("hub", handler, discovery=MULTIHOP)
    for name in "abc":
        world.node(name, discovery=MULTIHOP).keep_connected("memory/hub")
    world.run_until(lambda: len(hub.sessions) == 3, within=10)
    world.close("hub")
    assert len(handler.ends) == 3
    world.close()


def test_whom_others_tell_of_is_dialled_from_the_first_moment_on() -> None:
    world = World(seed=3)
    world.node("hub", discovery=GOSSIP)
    a, b = world.node("a", discovery=GOSSIP), world.node("b", discovery=GOSSIP)
    for node in (a, b):
        node.keep_connected("memory/hub")
    world.run_until(lambda: b.zid in a.sessions, within=30)
    world.close()


# ---- connecting


@pytest.mark.parametrize("config", CANNOT_BE_DIALLED)
def test_an_endpoint_that_cannot_be_dialled_says_why(config: str) -> None:
    with make_node() as node:
        with pytest.raises(InvalidLocator):
            node.connect(NOBODY + config)
        policy = RetryPolicy(first=0.01, longest=0.01)
        connector = node.keep_connected(NOBODY + config, policy=policy)
        until(lambda: connector.attempts > 2)
        assert isinstance(connector.last_error, InvalidLocator)


def test_a_connector_that_gave_up_is_replaced() -> None:
    once = RetryPolicy(first=0)
    with make_node() as node:
        first = node.keep_connected(NOBODY, policy=once)
        until(lambda: first.stopped)
        assert isinstance(first.last_error, LinkError)
        second = node.keep_connected(NOBODY, policy=once)
        until(lambda: second.attempts)
        assert first.attempts == 1


# ---- accepting


def test_every_peer_of_a_burst_of_datagrams_is_answered() -> None:
    """One accept takes all datagrams from the socket; their peers are more than one turn's."""
    count = 50
    with make_node() as node, ExitStack() as stack:
        port = port_of(node.listen("udp/127.0.0.1:0"))
        gate = threading.Event()
        stack.callback(gate.set)
        node.reactor.call_soon(partial(_wait, gate))
        peers = [stack.enter_context(_datagrams()) for _ in range(count)]
        for peer in peers:
            peer.sendto(write_batch([Init(new_zid(), WireWhatAmI.PEER)]), ("127.0.0.1", port))
        gate.set()
        assert all(peer.recv(0xFFFF) for peer in peers)
        assert node.pending == count


@contextmanager
def _datagrams() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE)
        sock.bind(("127.0.0.1", 0))
        yield sock


# ---- reading


@pytest.mark.parametrize("endpoint", [ANYWHERE, "ws/127.0.0.1:0"])
def test_a_turn_that_took_too_long_loses_nothing(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "TURN_SECONDS", -1.0)
    handler = Record()
    with make_node(handler) as server, make_node() as client:
        (locator,) = server.listen(endpoint)
        opened = client.connect(locator)
        for number in range(200):
            assert opened.send(numbered(number, 30_000))
        until(lambda: len(handler.messages) == 200)
        assert handler.numbers == list(range(200))


@pytest.mark.parametrize("endpoint", [ANYWHERE, "udp/127.0.0.1:0", "ws/127.0.0.1:0"])
def test_a_thread_that_was_busy_for_longer_than_a_lease_ends_no_session(endpoint: str) -> None:
    """What the peer sent meanwhile waits in the kernel, and is read before the lease is judged."""
    handler = Record()
    with make_node(handler) as server, make_node(lease_ms=400) as client:
        (locator,) = server.listen(endpoint)
        opened = client.connect(locator)
        until(lambda: len(handler.sessions) == 1)
        gate = threading.Event()

        def hold() -> None:
            gate.wait(PATIENCE)

        server.reactor.call_soon(hold)
        before = opened.counters.sent_batches
        try:  # Eight KEEP_ALIVEs: two leases.
            until(lambda: opened.counters.sent_batches >= before + 8)
        finally:
            gate.set()
        assert opened.send(numbered(1))
        until(lambda: handler.numbers == [1] or handler.ends)
        assert not handler.ends
        assert not server.refused


def test_a_busy_thread_ends_no_session_of_more_links_than_it_takes_events_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each link is read before its lease is judged, whichever events the poller returned first."""
    monkeypatch.setattr(reactor, "EVENTS_AT_ONCE", 3)
    handler = Record()
    with make_node(handler) as server, ExitStack() as stack:
        (locator,) = server.listen(ANYWHERE)
        opened = [stack.enter_context(make_node(lease_ms=1000)).connect(locator) for _ in range(8)]
        until(lambda: len(handler.sessions) == len(opened))
        gate = threading.Event()

        def hold() -> None:
            gate.wait(PATIENCE)

        before = [link.counters.sent_batches for link in opened]
        server.reactor.call_soon(hold)
        try:  # Eight KEEP_ALIVEs of each: two leases.
            until(
                lambda: all(
                    link.counters.sent_batches >= count + 8
                    for link, count in zip(opened, before, strict=True)
                )
            )
        finally:
            gate.set()
        for number, link in enumerate(opened):
            assert link.send(numbered(number))
        until(lambda: len(handler.messages) == len(opened) or handler.ends)
        assert not handler.ends
        assert not server.refused


def test_many_small_messages_count_for_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes alone say little: a message of two bytes is an object like any other."""
    monkeypatch.setattr(delivery, "MAX_BYTES", 100 * delivery.MESSAGE_BYTES)
    gate, numbers = threading.Event(), list[int]()

    def slowly(
        _: TransportSession, message: object, priority: WirePriority, reliable: bool
    ) -> None:
        gate.wait(PATIENCE)
        numbers.append(0)

    handler = Delivery(slowly)
    try:
        with make_node(handler) as server, make_node() as client:
            (locator,) = server.listen(ANYWHERE)
            opened = client.connect(locator)
            until(lambda: server.sessions)
            (accepted,) = server.sessions.values()
            for _ in range(200):
                assert opened.send(put(b""))
            until(lambda: accepted._paused)
            gate.set()
            until(lambda: len(numbers) == 200)
    finally:
        gate.set()
        handler.stop()


# ---- handlers


class Jealous(Record):
    """A handler with a lock of its own, as an application has."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def closed(self, session: TransportSession, why: SessionEnded) -> None:
        with self.lock:
            super().closed(session, why)


def test_no_lock_of_a_session_is_held_when_its_end_is_told() -> None:
    handler = Jealous()
    with make_node(handler) as node, make_node() as other:
        (locator,) = other.listen("udp/127.0.0.1:0")
        opened = node.connect(locator)
        full, send = True, opened.link.send
        opened.link.send = lambda data: 0 if full else send(data)  # type: ignore[method-assign]
        with handler.lock:
            opened.send(put(b"last words"))
            opened.close()
            until(lambda: opened._closing)
            full = False
            until(lambda: opened.over)
            assert opened._lock.acquire(timeout=PATIENCE)
            opened._lock.release()
        until(lambda: handler.ends)


def test_a_callback_that_exits_does_not_end_the_node(caplog: pytest.LogCaptureFixture) -> None:
    handler = Record(lambda *_: sys.exit(1))
    with make_node(handler) as server, make_node() as client:
        (locator,) = server.listen(ANYWHERE)
        opened = client.connect(locator)
        for number in range(3):
            assert opened.send(numbered(number))
        until(lambda: len(handler.messages) == 3)
    assert "a callback failed" in caplog.text


# ---- groups


class Circle:
    """A group's handler that fails, under a lock of its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.came: list[TransportSession] = []
        self.gone: list[TransportSession] = []

    def opened(self, member: TransportSession) -> None:
        self.came.append(member)
        raise ValueError("on purpose")

    def on_frame(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        return end

    def closed(self, member: TransportSession, why: SessionEnded) -> None:
        with self.lock:
            self.gone.append(member)
        raise ValueError("on purpose")


def _silence(group: Group) -> None:
    """Say JOIN no more."""
    assert group._timer is not None
    group._timer.cancel()


def _join(node: Node, handler: Circle) -> Group:
    peer = WireWhatAmI.PEER
    offer = GroupOffer(zid=node.zid, whatami=peer, join_seconds=0.1, lease_ms=300)
    return node.join(multicast.join(EndPoint(GROUP), LinkOptions()), offer, handler)


def test_a_group_outlives_a_handler_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    circle = Circle()
    with make_node() as node, make_node() as other:
        group = _join(node, circle)
        lost = _join(other, Circle())
        until(lambda: circle.came and lost.members)  # A newcomer would have it say JOIN again.
        with circle.lock:
            other.reactor.call_soon(lambda: _silence(lost))
            until(lambda: not group.members)
            assert group.send(put(b"while closed() waits for the lock"))
        until(lambda: circle.gone)
        sent = group.core.counters.sent_batches
        until(lambda: group.core.counters.sent_batches > sent + 3)
        with make_node() as third:
            _join(third, Circle())
            until(lambda: third.zid in {member.zid for member in group.members})
            group.close()
            until(lambda: len(circle.gone) >= 2)
    assert "on purpose" in caplog.text


def test_a_node_that_is_closed_joins_no_group() -> None:
    node = make_node()
    with node:
        pass
    with pytest.raises(LinkError, match="closed"):
        _join(node, Circle())


def test_a_group_may_be_left_before_it_was_entered() -> None:
    left = threading.Event()
    with make_node() as node:

        def join_and_leave() -> None:
            group = _join(node, Circle())
            group.close()
            node.reactor.call_soon(left.set)

        node.reactor.call_soon(join_and_leave)
        assert left.wait(PATIENCE)


# ---- the reactor


def test_stop_waits_once_for_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float | None] = []
    join, gate = threading.Thread.join, threading.Event()

    def spy(thread: threading.Thread, timeout: float | None = None) -> None:
        if "resolver" in thread.name:
            waited.append(timeout)
        join(thread, timeout)

    loop = Reactor()
    loop.start()
    try:
        for _ in range(4):
            loop.off_thread(partial(_wait_for_name, gate))
        resolvers = list(loop._resolvers)
        with monkeypatch.context() as patch:
            patch.setattr(reactor, "RESOLVER_SECONDS", 0.05)
            patch.setattr(threading.Thread, "join", spy)
            loop.stop()
    finally:
        gate.set()
        for resolver in resolvers:
            resolver.join(PATIENCE)
    assert len(waited) == 4
    assert sum(seconds or 0.0 for seconds in waited) < 2 * 0.05


def _nothing() -> None: ...


def _wait(gate: threading.Event) -> None:
    gate.wait(PATIENCE)


def _wait_for_name(gate: threading.Event) -> Callable[[], None]:
    _wait(gate)
    return _nothing


def test_cancelled_timers_are_let_go() -> None:
    loop = Reactor()
    kept = [loop.call_at(1e9 + number, _nothing) for number in range(10)]
    for number in range(10 * reactor.TIDY_FROM):
        loop.call_at(2e9 + number, _nothing).cancel()
    assert len(loop._timers) <= reactor.TIDY_FROM
    left = {id(timer) for _, _, timer in loop._timers}
    assert {id(timer) for timer in kept} <= left
    loop.stop()


RESPONSE_FINAL = bytes.fromhex("1a01")  # The smallest message of the protocol.
FLOOD_BATCHES = 8  # Of 20,000 messages each: several times the bytes that may wait.


def test_a_compressed_flood_stays_within_what_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes that become megabytes: reading stops between two batches of one receive."""
    monkeypatch.setattr(delivery, "MAX_BYTES", 1 << 20)
    go_on = threading.Event()
    handler = Delivery(lambda *_: _wait(go_on))
    batches = []
    for number in range(FLOOD_BATCHES):
        batch = write_batch([Frame(FIRST_SN + number)]) + RESPONSE_FINAL * 20_000
        packed = compress(batch)
        batches.append(len(packed).to_bytes(2, "little") + packed)
    flood = b"".join(batches)
    assert len(flood) < READ_BYTES / 4, "all of it comes with one receive"
    with make_node(handler, compression=True) as node, ExitStack() as stack:
        stack.callback(handler.stop)
        stack.callback(go_on.set)
        (locator,) = node.listen(ANYWHERE)
        peer = stack.enter_context(HostilePeer(port_of((locator,)), new_zid()))
        assert peer.send(Init(peer.zid, WireWhatAmI.CLIENT, qos=True, compression=True, patch=1))
        ack = peer.hear()
        assert isinstance(ack, Init)
        assert ack.compression
        assert peer.send(peer.open_syn(ack))
        assert peer.say(flood)
        until(lambda: node.sessions and next(iter(node.sessions.values()))._paused)
        held = next(iter(node.sessions.values()))
        one_batch = 20_000 * (len(RESPONSE_FINAL) + delivery.MESSAGE_BYTES)
        assert handler._waiting_bytes <= (1 << 20) + 2 * one_batch
        go_on.set()
        until(lambda: held.counters.received_frames == FLOOD_BATCHES)
        until(lambda: not handler._waiting_bytes)
    assert held.over is not None
