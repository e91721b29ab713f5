"""Many clients of one host open at the same moment: all open, or are told why not."""

import selectors
import socket
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile import HostilePeer
from tests.support.runtime_nodes import (
    ANYWHERE,
    PATIENCE,
    Record,
    make_node,
    new_zid,
    port_of,
)
from tests.support.waiting import until
from zenlake.link.udp import READ_DATAGRAM
from zenlake.runtime import node as node_module
from zenlake.runtime.node import Node
from zenlake.transport.admission import AdmissionLimits
from zenlake.wire.batch import write_batch
from zenlake.wire.enums import CloseReason, WireWhatAmI
from zenlake.wire.init import Init
from zenlake.wire.open import Open

pytestmark = pytest.mark.slow

CLIENTS = 500
DATAGRAM_BYTES = 1400  # Upper bound on what a small datagram takes of a receive buffer.
BUSY_SECONDS = 1.0  # Time in which the I/O thread does something else.


def hold(gate: threading.Event) -> None:
    """Keep the I/O thread waiting until the gate opens."""
    gate.wait(PATIENCE)


def burst(node: Node, stack: ExitStack, count: int) -> list[HostilePeer]:
    """Connect `count` clients that all say INIT while the node's I/O thread is held up."""
    port = port_of(node.listen(ANYWHERE))
    gate = threading.Event()
    stack.callback(gate.set)
    node.reactor.call_soon(partial(hold, gate))
    peers = [stack.enter_context(HostilePeer(port, new_zid())) for _ in range(count)]
    for peer in peers:
        assert peer.send(Init(peer.zid, WireWhatAmI.CLIENT, qos=True, patch=1))
    gate.set()
    return peers


def open_all(peers: list[HostilePeer]) -> None:
    """End every handshake, in the order in which the node answers."""
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            selector.register(peer._socket, selectors.EVENT_READ, peer)
        left = 2 * len(peers)

        def step() -> bool:
            nonlocal left
            for key, _ in selector.select(0):
                peer: HostilePeer = key.data
                message = peer.hear()
                if isinstance(message, Init):
                    assert peer.send(peer.open_syn(message, lease_ms=600_000))
                else:
                    assert isinstance(message, Open), message
                    selector.unregister(peer._socket)
                left -= 1
            return left == 0

        until(step)


@pytest.mark.parametrize("pending", [AdmissionLimits().pending, 100, 7])
def test_500_clients_at_once_all_open(pending: int) -> None:
    handler = Record()
    limits = AdmissionLimits(pending=pending)
    with make_node(handler, limits=limits) as node, ExitStack() as stack:
        peers = burst(node, stack, CLIENTS)
        open_all(peers)
        until(lambda: len(node.sessions) == CLIENTS)
        assert {session.zid for session in handler.sessions} == {peer.zid for peer in peers}
        assert node.refused == {}
        assert node.pending == 0


def test_500_clients_at_once_are_heard_over_udp() -> None:
    """Their first datagrams wait in the kernel while the I/O thread does something else."""
    room = 2 * int(Path("/proc/sys/net/core/rmem_max").read_text())  # Linux doubles what is asked.
    count = min(CLIENTS, room // DATAGRAM_BYTES)
    with make_node() as node, ExitStack() as stack:
        port = port_of(node.listen("udp/127.0.0.1:0"))
        gate = threading.Event()
        stack.callback(gate.set)
        node.reactor.call_soon(partial(hold, gate))
        clients = []
        for _ in range(count):
            client = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            client.settimeout(PATIENCE)
            client.connect(("127.0.0.1", port))
            client.send(write_batch([Init(new_zid(), WireWhatAmI.CLIENT)]))
            clients.append(client)
        gate.set()
        assert all(client.recv(READ_DATAGRAM) for client in clients)


def test_no_more_handshakes_than_the_limit_are_under_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Links beyond it wait, and get the place of the oldest handshake once that takes long."""
    monkeypatch.setattr(node_module, "GRACE_SECONDS", PATIENCE)
    with make_node(limits=AdmissionLimits(pending=3)) as node, ExitStack() as stack:
        peers = burst(node, stack, 5)
        acks = [peer.hear() for peer in peers[:3]]
        assert all(isinstance(ack, Init) for ack in acks)
        assert node.pending == 3
        until(lambda: "3 handshakes are under way, further ones wait" in caplog.text)
        peers[3]._socket.settimeout(0.1)
        with pytest.raises(TimeoutError):  # Not a word, and no end either.
            peers[3].hear()
        peers[3]._socket.settimeout(PATIENCE)
        assert isinstance(acks[0], Init)
        assert peers[0].send(peers[0].open_syn(acks[0]))
        assert isinstance(peers[0].hear(), Open)
        assert isinstance(peers[3].hear(), Init), "it has the place of the session that opened"
        assert node.pending == 3
        assert node.refused == {}


def test_the_oldest_handshake_leaves_with_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "GRACE_SECONDS", 0.2)
    with make_node(limits=AdmissionLimits(pending=3)) as node, ExitStack() as stack:
        peers = burst(node, stack, 4)
        assert isinstance(peers[3].hear(), Init)
        assert peers[0].hear_close() == CloseReason.UNRESPONSIVE
        assert node.refused == {"UNRESPONSIVE": 1}
        assert node.pending == 3


def test_a_handshake_that_waited_for_this_node_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a peer has said is read before its silence is judged: the I/O thread may be busy."""
    monkeypatch.setattr(node_module, "GRACE_SECONDS", BUSY_SECONDS / 2)
    with make_node(limits=AdmissionLimits(pending=3)) as node, ExitStack() as stack:
        port = port_of(node.listen(ANYWHERE))
        gate = threading.Event()
        stack.callback(gate.set)
        peers = [stack.enter_context(HostilePeer(port, new_zid())) for _ in range(3)]
        until(lambda: node.pending == 3)
        held = threading.Event()
        node.reactor.call_soon(held.set)
        node.reactor.call_soon(partial(hold, gate))
        assert held.wait(PATIENCE)
        peers += [stack.enter_context(HostilePeer(port, new_zid())) for _ in range(9)]
        for peer in peers:
            assert peer.send(Init(peer.zid, WireWhatAmI.CLIENT, qos=True, patch=1))
        time.sleep(BUSY_SECONDS)
        wait = node._wait_for_room

        def judged(*link: Any) -> None:
            monkeypatch.setattr(node_module, "GRACE_SECONDS", PATIENCE)
            wait(*link)

        monkeypatch.setattr(node, "_wait_for_room", judged)
        gate.set()
        open_all(peers)
        assert node.refused == {}


def test_a_link_that_waits_for_room_is_closed_with_its_node() -> None:
    with make_node(limits=AdmissionLimits(pending=1)) as node, ExitStack() as stack:
        peers = burst(node, stack, 3)
        until(lambda: len(node._next_in_line) == 1)
        node.close()
        assert [peer.hear_close() for peer in peers[1:]] == [None, None]


def test_the_kernel_keeps_as_many_connections_as_it_can() -> None:
    """The backlog is not below the kernel's own limit."""
    with make_node() as node:
        port = port_of(node.listen(ANYWHERE))
        gate = threading.Event()
        node.reactor.call_soon(partial(hold, gate))
        try:
            most = int(Path("/proc/sys/net/core/somaxconn").read_text())
            with ExitStack() as stack:
                for _ in range(min(most, 1500)):
                    sock = stack.enter_context(socket.socket())
                    sock.settimeout(PATIENCE)
                    sock.connect(("127.0.0.1", port))
        finally:
            gate.set()
