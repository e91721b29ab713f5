"""Sessions over a link that is cut, silent, slow or late, at every byte of the handshake."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import pytest

from tests.support.fault_proxy import FaultProxy, Way
from tests.support.runtime_nodes import (
    ANYWHERE,
    PATIENCE,
    Record,
    make_node,
    number_of,
    numbered,
    port_of,
)
from tests.support.waiting import until
from zenlake.errors import SessionClosed, ZError
from zenlake.runtime.connector import Connector
from zenlake.runtime.node import Node
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.admission import AdmissionLimits
from zenlake.transport.retry import RetryPolicy
from zenlake.wire.enums import CloseReason

pytestmark = pytest.mark.slow

QUICK = RetryPolicy(first=0.01, factor=1.5, longest=0.05)
MARGIN = 5.0  # Seconds beyond a lease, for a busy machine.
LEASE = 1.0


def same_bytes(size: int) -> bytes:
    """Handshakes of the same length each time."""
    return b"\x55" * size


@contextmanager
def pair(**settings: object) -> Iterator[tuple[Node, Node, FaultProxy]]:
    """A node that listens, one that connects, and the proxy between them."""
    with (
        make_node(**settings) as server,
        make_node(**settings) as client,
        FaultProxy(port_of(server.listen(ANYWHERE))) as proxy,
    ):
        yield server, client, proxy


def record(node: Node) -> Record:
    assert isinstance(node.handler, Record)
    return node.handler


def session_of(connector: Connector) -> TransportSession:
    until(lambda: connector.session is not None and connector.session.is_open)
    session = connector.session
    assert session is not None
    return session


def nothing_left(*nodes: Node) -> None:
    until(lambda: not any(node.pending or node.sessions for node in nodes))


# --- cuts -----------------------------------------------------------------------------------


def handshake_length(proxy: FaultProxy, server: Node, client: Node) -> tuple[int, int]:
    proxy.restore()
    session = client.connect(proxy.locator)
    until(lambda: server.sessions)
    lengths = proxy.up.passed, proxy.down.passed
    session.close()
    nothing_left(server, client)
    return lengths


@pytest.mark.parametrize("direction", ["up", "down"])
def test_handshake_cut_at_every_byte(direction: str) -> None:
    with pair(entropy=same_bytes) as (server, client, proxy):
        lengths = handshake_length(proxy, server, client)
        length = lengths[direction == "down"]
        assert length > 30
        for cut_at in range(length):
            proxy.set(**{direction: Way(cut_at=cut_at)})
            connector = client.keep_connected(proxy.locator, policy=QUICK)
            until(partial(getattr, connector, "last_error"))
            assert connector.session is None, f"a session in spite of the cut at {cut_at}"
            assert "127.0.0.1" in str(connector.last_error)
            proxy.restore()
            session = session_of(connector)
            until(lambda: server.sessions)
            connector.stop()
            session.close()
            nothing_left(server, client)
        assert sum(server.refused.values()) >= (length if direction == "up" else 0)


def test_cut_in_mid_stream_gives_a_prefix_and_then_a_new_session() -> None:
    total = 1000
    with pair(entropy=same_bytes) as (server, client, proxy):
        proxy.set(up=Way(cut_at=100_003))
        connector = client.keep_connected(proxy.locator, policy=QUICK)
        first = session_of(connector)
        sent: list[int] = []

        def send_for_ever() -> None:
            for number in range(100 * total):
                assert first.send(numbered(number, 200))
                sent.append(number)

        with pytest.raises(SessionClosed) as caught:
            send_for_ever()
        assert "127.0.0.1" in caught.value.why
        until(lambda: record(server).ends)
        got = record(server).numbers
        assert got == list(range(len(got)))
        assert 0 < len(got) < len(sent)
        for message in record(server).messages:
            assert isinstance(message.body.payload, bytes)  # type: ignore[union-attr]
            assert len(message.body.payload) == 208  # type: ignore[union-attr]

        record(server).messages.clear()
        proxy.restore()
        until(lambda: connector.session not in (None, first))
        second = session_of(connector)
        for number in range(total):
            assert second.send(numbered(number, 200))
        until(lambda: len(record(server).messages) == total)
        assert record(server).numbers == list(range(total))
        assert connector.attempts >= 2
        connector.stop()


def test_reset_ends_both_sides_and_the_connector_backs_off() -> None:
    with pair() as (server, client, proxy):
        connector = client.keep_connected(proxy.locator, policy=QUICK)
        for _ in range(5):
            session = session_of(connector)
            until(lambda: server.sessions)
            proxy.reset()
            until(partial(getattr, session, "over"))
            assert session.over is not None
            assert session.over.by_peer
            with pytest.raises(SessionClosed):
                session.send(numbered(0))
        connector.stop()
        assert proxy.accepted <= connector.attempts


# --- silence --------------------------------------------------------------------------------


def test_half_open_link_expires_on_both_sides_and_nothing_spins() -> None:
    with pair(lease_ms=int(LEASE * 1000)) as (server, client, proxy):
        session = client.connect(proxy.locator)
        until(lambda: server.sessions)
        began, busy = time.monotonic(), time.process_time()
        proxy.half_open()
        until(lambda: record(server).ends and record(client).ends, within=LEASE + MARGIN)
        took, busy = time.monotonic() - began, time.process_time() - busy
        assert took > LEASE / 2
        assert busy / took < 0.2
        for node in (server, client):
            (_, end), *others = record(node).ends
            assert not others
            assert end.reason == CloseReason.EXPIRED
            assert not end.by_peer
            assert "nothing came for 1 s" in end.why
        with pytest.raises(SessionClosed) as caught:
            session.send(numbered(0))
        assert caught.value.reason == CloseReason.EXPIRED
        nothing_left(server, client)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_one_way_silence_ends_the_side_that_hears_nothing(direction: str) -> None:
    with pair(lease_ms=int(LEASE * 1000)) as (server, client, proxy):
        client.connect(proxy.locator)
        until(lambda: server.sessions)
        proxy.set(**{direction: Way(swallow=True)})
        deaf, other = (server, client) if direction == "up" else (client, server)
        until(lambda: record(deaf).ends, within=LEASE + MARGIN)
        assert record(deaf).ends[0][1].reason == CloseReason.EXPIRED
        until(
            lambda: record(other).ends, within=LEASE + MARGIN
        )  # it is told, by CLOSE or by the end
        assert record(other).ends[0][1].by_peer
        nothing_left(server, client)


def test_half_open_connector_comes_back() -> None:
    with pair(lease_ms=2000) as (server, client, proxy):
        connector = client.keep_connected(proxy.locator, policy=QUICK)
        first = session_of(connector)
        until(lambda: server.sessions)
        proxy.half_open()
        until(lambda: first.over is not None)
        proxy.restore()
        until(lambda: connector.session not in (None, first))
        second = session_of(connector)
        assert second.send(numbered(7))
        until(lambda: record(server).numbers == [7])
        connector.stop()


def test_pause_within_the_lease_loses_nothing() -> None:
    with pair(lease_ms=30_000) as (server, client, proxy):
        session = client.connect(proxy.locator)
        total = 0
        for _ in range(3):
            proxy.pause()
            for _ in range(100):
                assert session.send(numbered(total, 100))
                total += 1
            time.sleep(0.1)  # silence, not synchronisation: whatever its length, nothing is lost
            proxy.restore()
            until(lambda: len(record(server).messages) == total)  # noqa: B023
        assert record(server).numbers == list(range(total))
        assert session.over is None
        assert not record(server).ends


# --- slowness -------------------------------------------------------------------------------


def test_thin_pipe_carries_everything_and_no_lease_expires() -> None:
    """256 KiB x 20 at 1 Mbit/s would take 42 s: the pipe is four times as wide, the lease short."""
    count, size = 20, 256 * 1024
    with pair(lease_ms=2000) as (server, client, proxy):
        session = client.connect(proxy.locator)
        until(lambda: server.sessions)
        rate = 500_000.0
        proxy.set(up=Way(bytes_per_second=rate))
        began = time.monotonic()
        for number in range(count):
            assert session.send(numbered(number, size))
        until(lambda: len(record(server).messages) == count, within=PATIENCE * 2)
        took = time.monotonic() - began
        assert record(server).numbers == list(range(count))
        assert took > count * size / rate / 2, "the pipe was not thin"
        assert not record(server).ends
        assert not record(client).ends
        (incoming,) = server.sessions.values()
        assert [s.gaps for s in incoming.sequences.values()] == [0]


def test_delay_keeps_order_and_session() -> None:
    with pair(lease_ms=1000) as (server, client, proxy):
        proxy.set(up=Way(delay=0.05), down=Way(delay=0.05))
        session = client.connect(proxy.locator)
        arrivals: list[float] = []
        for number in range(200):
            session.send(numbered(number))
            arrivals.append(time.monotonic())
        until(lambda: len(record(server).messages) == 200)
        assert record(server).numbers == list(range(200))
        assert all(a <= b for a, b in pairwise(arrivals))
        assert session.over is None


def test_delay_longer_than_the_handshake_allows_is_refused() -> None:
    with pair(limits=AdmissionLimits(seconds=0.3)) as (server, client, proxy):
        proxy.set(down=Way(swallow=True))
        with pytest.raises(ZError, match="too long"):
            client.connect(proxy.locator)
        nothing_left(server, client)
        proxy.restore()
        session = client.connect(proxy.locator)
        assert session.send(numbered(1))
        until(lambda: [number_of(m) for m in record(server).messages] == [1])
