"""Sessions between two nodes: which thread writes, batching, waiting, and how they end."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import pytest

from tests.support import delivery as delivery_module
from tests.support.delivery import Delivery
from tests.support.fault_proxy import FaultProxy
from tests.support.hostile import FIRST_SN, HostilePeer, batch
from tests.support.runtime_nodes import (
    ANYWHERE,
    BLOCK,
    DROP,
    PATIENCE,
    Record,
    in_threads,
    make_node,
    new_zid,
    number_of,
    numbered,
    payload_of,
    port_of,
    put,
)
from tests.support.waiting import until
from zenlake.errors import SessionClosed, SessionEnded
from zenlake.link.tcp import TcpLink
from zenlake.runtime import sending
from zenlake.runtime.node import Node
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport import outbox as outbox_module
from zenlake.transport.outbox import LANE_BATCHES
from zenlake.transport.retry import RetryPolicy
from zenlake.wire.close import Close
from zenlake.wire.enums import CloseReason, WireCongestionControl, WirePriority
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.network import NetworkMessage
from zenlake.wire.qos import QoS

pytestmark = pytest.mark.slow

Log = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch
CHUNK = bytes(60_000)
LARGE = 8 << 20  # Bytes of a message in some 130 fragments.


@contextmanager
def pair(
    server_handler: Any = None, client_handler: Any = None, **settings: Any
) -> Iterator[tuple[Node, Node, TransportSession]]:
    """A node that listens, one that connected to it, and the latter's session."""
    with (
        make_node(server_handler, **settings) as server,
        make_node(client_handler, **settings) as client,
    ):
        session = client.connect(server.listen(ANYWHERE)[0])
        until(lambda: server.sessions)
        yield server, client, session


@contextmanager
def stuck_peer(handler: Any = None) -> Iterator[tuple[Node, TransportSession, HostilePeer]]:
    """A node and its session with a peer that reads nothing until the test does."""
    with make_node(handler) as node:
        port = port_of(node.listen(ANYWHERE))
        with HostilePeer(port, new_zid(), receive_bytes=4096) as peer:
            peer.establish(lease_ms=600_000)
            until(lambda: node.sessions)
            yield node, node.sessions[peer.zid], peer


def fill(session: TransportSession, qos: QoS = DROP) -> int:
    """Send until there is no room; how many were taken."""
    count = 0
    while session.send(put(CHUNK, qos)):
        count += 1
        assert count < 10_000
    return count


def frames_of(peer: HostilePeer, count: int) -> list[Frame]:
    found: list[Frame] = []
    while sum(len(frame.messages) for frame in found) < count:
        message = peer.hear()
        assert message is not None, "the link ended"
        if isinstance(message, Frame):
            found.append(message)
    return found


# --- writing --------------------------------------------------------------------------------


def test_the_calling_thread_writes_when_nothing_is_queued(monkeypatch: Patch) -> None:
    """With nothing queued, the bytes leave on the thread that called send()."""
    writers: list[int] = []
    real = TcpLink.send

    def spy(link: TcpLink, data: bytes | bytearray | memoryview) -> int:
        writers.append(threading.get_ident())
        return real(link, data)

    handler = Record()
    with pair(handler) as (_, _, session):
        monkeypatch.setattr(TcpLink, "send", spy)
        assert session.send(put(b"mine", QoS(express=True)))
        until(lambda: handler.messages)
        assert threading.get_ident() in writers


def test_a_burst_shares_batches_and_its_end_leaves_by_itself(monkeypatch: Patch) -> None:
    monkeypatch.setattr(outbox_module, "BURST_SECONDS", 10.0)  # however slow this machine is
    handler = Record()
    with pair(handler) as (_, _, session):
        before = session.counters.sent_batches
        for number in range(2000):
            assert session.send(numbered(number))
        until(lambda: len(handler.messages) == 2000)
        assert handler.numbers == list(range(2000))
        assert session.counters.sent_batches - before < 1000


def test_express_does_not_wait(monkeypatch: Patch) -> None:
    monkeypatch.setattr(outbox_module, "BURST_SECONDS", 10.0)
    express = QoS(congestion_control=WireCongestionControl.BLOCK, express=True)
    handler = Record()
    with pair(handler) as (_, _, session):
        before = session.counters.sent_batches
        for number in range(100):
            assert session.send(numbered(number, qos=express))
        assert session.counters.sent_batches - before == 100
        until(lambda: handler.numbers == list(range(100)))


@pytest.mark.parametrize("size", [0, 3000, 100_000])
def test_many_threads_on_one_session(size: int) -> None:
    threads, each = 8, 200 if size < 100_000 else 20
    handler = Record()
    with pair(handler) as (server, _, session):

        def work(thread: int) -> None:
            for number in range(each):
                assert session.send(numbered(thread * 10_000 + number, size))

        in_threads(threads, work)
        until(lambda: len(handler.messages) == threads * each)
        assert Counter(n // 10_000 for n in handler.numbers) == dict.fromkeys(range(threads), each)
        for thread in range(threads):
            mine = [n for n in handler.numbers if n // 10_000 == thread]
            assert mine == sorted(mine)
        (incoming,) = server.sessions.values()
        assert [(s.gaps, s.stale) for s in incoming.sequences.values()] == [(0, 0)]
        assert incoming.counters.receive_dropped == {}
        assert session.counters.sent_messages == threads * each


def test_both_reliabilities_and_all_lanes_at_once() -> None:
    handler = Record()
    with pair(handler) as (server, _, session):

        def work(lane: int) -> None:
            qos = QoS(WirePriority(lane % 8), WireCongestionControl.BLOCK)
            for number in range(100):
                session.send(numbered(lane * 1000 + number, 100, qos), reliable=lane < 8)

        in_threads(16, work)
        until(lambda: len(handler.messages) == 1600)
        for lane in range(16):
            mine = [n for n in handler.numbers if n // 1000 == lane]
            assert mine == [lane * 1000 + n for n in range(100)]
        (incoming,) = server.sessions.values()
        assert len(incoming.sequences) == 16
        assert all((s.gaps, s.stale) == (0, 0) for s in incoming.sequences.values())


def test_what_the_kernel_takes_from_the_io_thread_is_not_dropped_though_a_lane_holds_less() -> None:
    """A handler that answers a lot in one turn: nothing but its own turn holds the link up."""
    count = 10 * LANE_BATCHES

    def answer(session: TransportSession, *_: Any) -> None:
        for number in range(count):
            assert session.send(numbered(number, 60_000, DROP))

    got = Record()
    with pair(Record(answer), got) as (server, _, session):
        session.send(put(b"go"))
        (answering,) = server.sessions.values()
        until(lambda: len(got.messages) + sum(answering.counters.send_dropped.values()) == count)
        # The kernel may take less than all of it; no more is dropped than it refuses.
        assert len(got.messages) > LANE_BATCHES + 1
        assert got.numbers == sorted(set(got.numbers))
        assert got.numbers[:LANE_BATCHES] == list(range(LANE_BATCHES))


def test_blocking_messages_from_the_io_thread_are_kept_in_order() -> None:
    count = 200

    def answer(session: TransportSession, *_: Any) -> None:
        for number in range(count):
            assert session.send(numbered(number, 60_000))

    got = Record()
    with pair(Record(answer), got) as (_, _, session):
        session.send(put(b"go"))
        until(lambda: len(got.messages) == count)
        assert got.numbers == list(range(count))


def test_websocket_bytes_that_wait_in_the_process_leave_without_help() -> None:
    handler = Record()
    with make_node(handler, lease_ms=600_000) as server, make_node(lease_ms=600_000) as client:
        port = port_of(server.listen("ws/127.0.0.1:0"))
        with FaultProxy(port) as proxy:
            session = client.connect(f"ws/127.0.0.1:{proxy.port}")
            proxy.pause()
            count = 0
            while not session.link.unsent:
                assert session.send(put(CHUNK, BLOCK))
                count += 1
            proxy.restore()
            until(lambda: len(handler.messages) == count)
            assert session.over is None


# --- congestion -----------------------------------------------------------------------------


def test_priority_goes_first_when_congested() -> None:
    low = QoS(WirePriority.BACKGROUND, WireCongestionControl.DROP)
    high = QoS(WirePriority.REAL_TIME, WireCongestionControl.BLOCK, express=True)
    with stuck_peer() as (_, session, peer):
        waiting = fill(session, low)
        assert session.send(put(b"first", high))
        frames = frames_of(peer, waiting + 1)
        (place,) = [n for n, f in enumerate(frames) if f.priority is WirePriority.REAL_TIME]
        behind = len(frames) - 1 - place
        assert behind >= LANE_BATCHES, "it overtook the batches that waited"
        numbers = [f.sn for f in frames if f.priority is WirePriority.BACKGROUND]
        assert all(after == before + 1 for before, after in pairwise(numbers))


def test_block_first_lets_one_wait_and_drops_the_others() -> None:
    first = QoS(congestion_control=WireCongestionControl.BLOCK_FIRST)
    with stuck_peer() as (_, session, peer):
        waiting = fill(session)
        results: list[bool] = []
        waiter = threading.Thread(
            target=lambda: results.append(session.send(put(b"the one" + CHUNK, first)))
        )
        waiter.start()
        until(lambda: session._waiters == 1)
        before = sum(session.counters.send_dropped.values())
        assert not any(session.send(put(b"another" + CHUNK, first)) for _ in range(5))
        assert sum(session.counters.send_dropped.values()) == before + 5
        assert waiter.is_alive()
        frames = frames_of(peer, waiting + 1)
        waiter.join(PATIENCE)
        assert results == [True]
        payloads = [payload_of(m) for frame in frames for m in frame.messages]
        assert [p[:7] for p in payloads if p[:7] in (b"the one", b"another")] == [b"the one"]


def test_block_waits_for_a_peer_that_reads_again() -> None:
    with stuck_peer() as (_, session, peer):
        waiting = fill(session)
        results: list[bool] = []

        def send() -> None:
            results.extend(session.send(put(CHUNK, BLOCK)) for _ in range(20))

        sender = threading.Thread(target=send)
        sender.start()
        until(lambda: session._waiters == 1)
        frames_of(peer, waiting + 20)
        sender.join(PATIENCE)
        assert results == [True] * 20


# --- back-pressure from callbacks -----------------------------------------------------------


def test_block_waits_for_a_message_in_fragments_as_long_as_that_moves(monkeypatch: Patch) -> None:
    """However slow the link is: the message in front arrives, and so does the one that waits."""
    monkeypatch.setattr(sending, "MAX_BLOCK_SECONDS", 0.3)
    with stuck_peer() as (_, session, peer):
        assert session.send(put(bytes(LARGE)))
        errors: list[SessionEnded] = []

        def wait() -> None:
            try:
                session.send(numbered(7))
            except SessionEnded as error:
                errors.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        read = 0
        while True:
            message = peer.hear()
            if not isinstance(message, Fragment):
                break
            read += len(message.payload)
            time.sleep(0.01)
        waiting.join(PATIENCE)
        assert errors == []
        assert read > LARGE
        assert isinstance(message, Frame)
        assert [number_of(found) for found in message.messages] == [7]


class ByPeer:
    """A handler with another handler for each peer."""

    def __init__(self) -> None:
        self.handlers: dict[Any, Any] = {}

    def opened(self, session: TransportSession) -> None:
        self.handlers[session.zid].opened(session)

    def on_frame(self, session: TransportSession, *what: Any) -> int:
        position: int = self.handlers[session.zid].on_frame(session, *what)
        return position

    def closed(self, session: TransportSession, why: SessionEnded) -> None:
        self.handlers[session.zid].closed(session, why)


@pytest.mark.parametrize(("limit", "value"), [("MAX_CALLS", 8), ("MAX_BYTES", 100_000)])
def test_slow_callback_makes_only_its_own_session_wait(
    monkeypatch: Patch, limit: str, value: int
) -> None:
    monkeypatch.setattr(delivery_module, limit, value)
    go_on = threading.Event()
    slow_got: list[int] = []
    fast_got: list[int] = []

    def slowly(session: TransportSession, message: NetworkMessage, *_: Any) -> None:
        go_on.wait(PATIENCE)
        slow_got.append(number_of(message))

    def fast(session: TransportSession, message: NetworkMessage, *_: Any) -> None:
        fast_got.append(number_of(message))

    handler = ByPeer()
    with ExitStack() as stack:
        deliveries = [Delivery(slowly, name="slow"), Delivery(fast, name="fast")]
        for each in deliveries:
            stack.callback(each.stop)
        server = stack.enter_context(make_node(handler, lease_ms=1500))
        slow_node = stack.enter_context(make_node(lease_ms=1500))
        fast_node = stack.enter_context(make_node(lease_ms=1500))
        stack.callback(go_on.set)
        handler.handlers = {slow_node.zid: deliveries[0], fast_node.zid: deliveries[1]}
        locator = server.listen(ANYWHERE)[0]
        slow, quick = slow_node.connect(locator), fast_node.connect(locator)
        until(lambda: len(server.sessions) == 2)
        held = server.sessions[slow_node.zid]
        total = 200
        sender = threading.Thread(
            target=lambda: [slow.send(numbered(n, 60_000)) for n in range(total)]
        )
        sender.start()
        until(lambda: held._paused)
        end = time.monotonic() + 3.5  # more than two leases
        sent = 0
        while time.monotonic() < end:
            assert quick.send(numbered(sent))
            sent += 1
            until(lambda: len(fast_got) == sent)  # noqa: B023
        assert fast_got == list(range(sent))
        assert held._paused
        assert held.over is None, "it is we who do not listen"
        assert slow.over is None, "we say KEEP_ALIVE all the same"
        assert slow_got == []
        go_on.set()
        sender.join(PATIENCE)
        until(lambda: len(slow_got) == total)
        assert slow_got == list(range(total))


def test_delivery_tells_things_in_the_order_in_which_they_came() -> None:
    told: list[str] = []
    over = threading.Event()

    def on_close(session: TransportSession, why: SessionEnded) -> None:
        told.append("closed")
        over.set()

    delivery = Delivery(
        lambda session, message, *_: told.append(payload_of(message).decode()),
        lambda session: told.append("opened"),
        on_close,
    )
    with pair(delivery) as (_, _, session):
        for number in range(100):
            session.send(put(str(number).encode()))
        session.close()
        assert over.wait(PATIENCE)
    delivery.stop()
    assert told == ["opened", *map(str, range(100)), "closed"]


@pytest.mark.parametrize("kind", ["inline", "delivery"])
def test_callback_that_raises(kind: str, caplog: Log) -> None:
    """It is logged, and the messages of the same batch that follow it are delivered."""
    got: list[int] = []

    def callback(session: TransportSession, message: NetworkMessage, *_: Any) -> None:
        number = number_of(message)
        if number % 7 == 0:
            raise SessionClosed("of another session", CloseReason.GENERIC)
        got.append(number)

    with ExitStack() as stack:
        handler: Any = Record(callback)
        if kind == "delivery":
            handler = Delivery(callback)
            stack.callback(handler.stop)
        _, _, session = stack.enter_context(pair(handler))
        for number in range(500):
            session.send(numbered(number, 300))
        expected = [n for n in range(500) if n % 7]
        until(lambda: len(got) == len(expected))
        assert got == expected
        assert session.over is None
        failures = [r for r in caplog.records if "a callback failed" in r.getMessage()]
        until(lambda: len([r for r in caplog.records if r.exc_info]) == 500 - len(expected))
        assert failures


class Broken(Record):
    """Fails whenever it is told something."""

    def opened(self, session: TransportSession) -> None:
        super().opened(session)
        raise ValueError("opened")

    def closed(self, session: TransportSession, why: SessionEnded) -> None:
        super().closed(session, why)
        raise ValueError("closed")


def test_handler_that_raises_when_told_of_sessions(caplog: Log) -> None:
    handler = Broken()
    policy = RetryPolicy(first=0.01, longest=0.05)
    with make_node() as server, make_node(handler) as client:
        locator = server.listen(ANYWHERE)[0]
        connector = client.keep_connected(locator, policy=policy)
        for rounds in range(1, 4):
            until(lambda: len(handler.sessions) == rounds and server.sessions)  # noqa: B023
            for session in server.sessions.values():
                session.close()
            until(lambda: len(handler.ends) == rounds)  # noqa: B023
        connector.stop()
    assert any("a callback failed" in record.getMessage() for record in caplog.records)


def test_handler_whose_frame_raises_ends_that_session_and_no_other(caplog: Log) -> None:
    class Wrong(Record):
        def on_frame(self, session: TransportSession, *_: Any) -> int:
            raise KeyError("a defect")

    handler = Wrong()
    with make_node(handler) as server, make_node() as one, make_node() as other:
        locator = server.listen(ANYWHERE)[0]
        victim, witness = one.connect(locator), other.connect(locator)
        until(lambda: len(server.sessions) == 2)
        victim.send(put(b"x"))
        until(lambda: victim.over is not None)
        until(lambda: list(server.sessions), lambda left: left == [other.zid])
        assert witness.over is None
        assert "the handler failed" in caplog.text


# --- the end --------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "size"), [(5000, 100), (60, 200_000)])
def test_close_delivers_what_was_sent_before_it(count: int, size: int) -> None:
    handler = Record()
    with pair(handler) as (_, _, session):
        for number in range(count):
            assert session.send(numbered(number, size))
        session.close(CloseReason.UNSUPPORTED)
        until(lambda: handler.ends)
        assert handler.numbers == list(range(count))
        ((_, end),) = handler.ends
        assert end.by_peer
        assert end.reason == CloseReason.UNSUPPORTED
        until(lambda: session.over is not None)
        assert session.over is not None
        assert not session.over.by_peer
        assert session.over.reason == CloseReason.UNSUPPORTED


def test_close_delivers_also_while_the_peer_is_talking() -> None:
    """Bytes that come in while a link is closed must not take back what goes out."""
    for _ in range(5):
        server_got, client_got = Record(), Record()
        with pair(server_got, client_got) as (server, _, session):
            (incoming,) = server.sessions.values()
            stop = threading.Event()

            def chatter(
                incoming: TransportSession = incoming, stop: threading.Event = stop
            ) -> None:
                with_nobody = False
                while not stop.is_set() and not with_nobody:
                    try:
                        incoming.send(put(CHUNK, DROP))
                    except SessionClosed:
                        with_nobody = True

            talker = threading.Thread(target=chatter)
            talker.start()
            until(lambda got=client_got: got.messages)  # type: ignore[misc]
            for number in range(40):
                assert session.send(numbered(number, 100_000))
            session.close()
            until(lambda got=server_got: got.ends)  # type: ignore[misc]
            stop.set()
            talker.join(PATIENCE)
            assert server_got.numbers == list(range(40))
            assert server_got.ends[0][1].by_peer


def test_send_after_close_says_why_each_time_anew() -> None:
    with pair() as (_, _, session):
        session.close(CloseReason.EXPIRED)
        until(lambda: session.over is not None)
        caught: list[SessionClosed] = []
        for _ in range(3):
            with pytest.raises(SessionClosed) as info:
                session.send(put(b"too late"))
            caught.append(info.value)
        assert {error.reason for error in caught} == {CloseReason.EXPIRED}
        assert {error.why for error in caught} == {"closed by this node"}
        assert len({id(error) for error in caught}) == 3, "one that is raised again only grows"
        with pytest.raises(SessionClosed):
            session.send_encoded(b"", BLOCK)


def test_no_message_is_taken_and_then_lost_by_a_close() -> None:
    """send() gives True or raises: what was taken while close() ran is delivered."""
    for _ in range(10):
        handler = Record()
        with pair(handler) as (_, _, session):
            taken: list[int] = []

            def send(session: TransportSession = session, taken: list[int] = taken) -> None:
                try:
                    for number in range(1_000_000):
                        session.send(numbered(number))
                        taken.append(number)
                except SessionClosed:
                    pass

            sender = threading.Thread(target=send)
            sender.start()
            until(lambda taken=taken: len(taken) > 200)  # type: ignore[misc]
            session.close()
            sender.join(PATIENCE)
            until(lambda handler=handler: handler.ends)  # type: ignore[misc]
            assert handler.numbers == taken


def test_close_from_a_callback() -> None:
    handler = Record(lambda session, *_: session.close(CloseReason.GENERIC))
    with pair(handler) as (server, _, session):
        session.send(put(b"go away"))
        until(lambda: session.over is not None)
        assert session.over is not None
        assert session.over.by_peer
        until(lambda: not server.sessions)


def test_close_with_a_stuck_peer_ends_in_time() -> None:
    handler = Record()
    with stuck_peer(handler) as (node, session, _):
        fill(session)
        began = time.monotonic()
        node.close()
        assert time.monotonic() - began < PATIENCE
        assert session.over is not None
        assert [end.reason for _, end in handler.ends] == [CloseReason.GENERIC]


def test_whoever_waits_for_room_hears_of_the_close() -> None:
    with stuck_peer() as (_, session, _):
        fill(session)
        caught: list[SessionClosed] = []

        def wait() -> None:
            try:
                session.send(put(CHUNK, BLOCK))
            except SessionClosed as error:
                caught.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: session._waiters == 1)
        session.close()
        waiter.join(PATIENCE)
        assert [error.why for error in caught] == ["closed by this node"]


def test_peer_closes_with_a_reason_of_its_own() -> None:
    handler = Record()
    with make_node(handler) as node:
        port = port_of(node.listen(ANYWHERE))
        with HostilePeer(port, new_zid()) as peer:
            peer.establish()
            data = batch(Frame(FIRST_SN, messages=[put(b"last")])) + batch(Close(200))
            peer.say(data)
            until(lambda: handler.ends)
            assert peer.hear() is None
        assert [payload_of(m) for m in handler.messages] == [b"last"]
        assert handler.ends[0][1].reason == 200
        assert handler.ends[0][1].by_peer
