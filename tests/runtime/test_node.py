"""A node that listens, connects, refuses, authenticates and closes; many sessions at once."""

import os
import resource
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.attacked_node import attacked
from tests.support.delivery import Delivery
from tests.support.hostile import FIRST_SN, HostilePeer, HostileServer
from tests.support.runtime_nodes import (
    ANYWHERE,
    PATIENCE,
    Record,
    make_node,
    new_zid,
    number_of,
    numbered,
    payload_of,
    port_of,
    put,
)
from tests.support.waiting import until
from zenlake.errors import LinkError, SessionEnded, SessionRefused
from zenlake.runtime.node import CLOSE_SECONDS, Node
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport import throttle
from zenlake.transport.admission import AdmissionLimits
from zenlake.transport.retry import RetryPolicy
from zenlake.transport.usrpwd import UserPassword
from zenlake.wire.close import Close
from zenlake.wire.enums import CloseReason
from zenlake.wire.frame import Frame

pytestmark = pytest.mark.slow

QUICK = RetryPolicy(first=0.01, factor=1.5, longest=0.05)


def free_port() -> int:
    with make_node() as node:
        return port_of(node.listen(ANYWHERE))


# --- connecting and listening -----------------------------------------------------------------


def test_connect_to_nobody_names_the_endpoint() -> None:
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    with make_node() as node:
        with pytest.raises(LinkError, match=endpoint) as caught:
            node.connect(endpoint)
        assert "no node listens there" in str(caught.value)
        assert node.pending == 0
        assert not node.sessions


def test_connect_to_what_is_no_host() -> None:
    with make_node() as node, pytest.raises(LinkError, match=r"tcp/no\.such\.host\.invalid:1"):
        node.connect("tcp/no.such.host.invalid:1")


def test_more_sessions_than_the_limit_are_refused_with_close_3() -> None:
    with make_node(limits=AdmissionLimits(sessions=3)) as server, ExitStack() as stack:
        locator = server.listen(ANYWHERE)[0]
        clients = [stack.enter_context(make_node()) for _ in range(5)]
        sessions = [client.connect(locator) for client in clients[:3]]
        for client in clients[3:]:
            with pytest.raises(SessionRefused, match=r"3 \(MAX_SESSIONS\)") as caught:
                client.connect(locator)
            assert caught.value.reason == CloseReason.MAX_SESSIONS
            assert caught.value.by_peer
        assert len(server.sessions) == 3
        sessions[0].close()
        until(lambda: len(server.sessions) == 2)
        assert clients[3].connect(locator).is_open
        assert server.refused == {"MAX_SESSIONS": 2}


def test_listen_on_a_used_port_names_it() -> None:
    with make_node() as one, make_node() as other:
        locator = one.listen(ANYWHERE)[0]
        with pytest.raises(LinkError, match=locator):
            other.listen(locator)
        assert other.locators == ()


def test_keep_listening_until_the_port_is_free() -> None:
    with make_node(retry=QUICK) as patient, make_node() as client:
        with make_node() as first:
            locator = first.listen(ANYWHERE)[0]
            patient.keep_listening(locator)
            assert client.connect(locator).zid == first.zid
            assert patient.locators == ()
        until(lambda: patient.locators == (locator,))
        assert client.connect(locator).zid == patient.zid


def test_without_file_descriptors_a_listener_waits_and_does_not_spin(
    caplog: pytest.LogCaptureFixture,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with make_node() as node, socket.socket() as late:
        port = port_of(node.listen(ANYWHERE))
        with HostilePeer(port, new_zid()) as peer:
            peer.establish()
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                late.connect(("127.0.0.1", port))
                until(lambda: "no file descriptors left" in caplog.text)
                began, busy = time.monotonic(), time.process_time()
                time.sleep(0.5)  # a time to be idle in
                took, busy = time.monotonic() - began, time.process_time() - busy
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert busy < 0.2 * took
            assert node.sessions[peer.zid].over is None
            until(lambda: node.pending == 1)


def test_listen_twice_at_any_port_is_two_listeners() -> None:
    with make_node() as server, make_node() as one, make_node() as other:
        first, second = server.listen(ANYWHERE)[0], server.listen(ANYWHERE)[0]
        assert first != second
        assert server.locators == (first, second)
        assert one.connect(first).is_open
        assert other.connect(second).is_open


def test_two_nodes_that_dial_each_other_have_one_session() -> None:
    for _ in range(10):
        got = Record(), Record()
        with make_node(got[0]) as one, make_node(got[1]) as other:
            locators = one.listen(ANYWHERE)[0], other.listen(ANYWHERE)[0]
            connectors = [
                one.keep_connected(locators[1], policy=QUICK),
                other.keep_connected(locators[0], policy=QUICK),
            ]
            until(lambda a=one, b=other: _joined(a, b))  # type: ignore[misc]
            for connector in connectors:
                connector.stop()
            until(lambda a=one, b=other: a.pending == 0 and b.pending == 0)  # type: ignore[misc]
            until(lambda a=one, b=other: _joined(a, b))  # type: ignore[misc]
            for node, there in ((one, got[1]), (other, got[0])):
                (session,) = node.sessions.values()
                assert session.send(put(b"hello"))
                until(lambda there=there: there.messages)  # type: ignore[misc]
            assert [len(g.messages) for g in got] == [1, 1]


def _joined(node: Node, other: Node) -> bool:
    return list(node.sessions) == [other.zid] and list(other.sessions) == [node.zid]


def test_a_stopped_connector_can_be_had_again() -> None:
    with make_node() as server, make_node() as client:
        locator = server.listen(ANYWHERE)[0]
        client.keep_connected(f"{locator}", policy=QUICK).stop()
        connector = client.keep_connected(locator, policy=QUICK)
        until(lambda: connector.session is not None or client.sessions)
        connector.stop()


def test_unknown_peer_under_a_known_address() -> None:
    with make_node() as server, make_node() as client:
        locator = server.listen(ANYWHERE)[0]
        with pytest.raises(SessionRefused, match="as expected"):
            client.connect(locator, expect=new_zid())
        assert client.connect(locator, expect=server.zid).is_open


# --- closing --------------------------------------------------------------------------------


def test_close_may_come_again_and_before_the_start() -> None:
    never = make_node()
    began = time.monotonic()
    never.close()
    assert time.monotonic() - began < CLOSE_SECONDS
    with make_node() as node:
        node.listen(ANYWHERE)
        node.close()
        node.close()
    node.close()


def test_a_closed_node_says_so() -> None:
    node = make_node()
    node.start()
    node.close()
    with pytest.raises(LinkError, match="closed"):
        node.connect("tcp/127.0.0.1:1")
    with pytest.raises(LinkError, match="closed"):
        node.listen(ANYWHERE)


def test_close_while_somebody_connects() -> None:
    """A caller that waits in connect() is told at once, not after all of its patience."""
    with HostileServer(new_zid()) as silent, make_node() as client:
        caught: list[Exception] = []

        def connect() -> None:
            try:
                client.connect(silent.locator)
            except (SessionEnded, LinkError) as error:
                caught.append(error)

        waiting = threading.Thread(target=connect)
        waiting.start()
        until(lambda: client.pending == 1)
        client.close()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
        assert len(caught) == 1


def test_close_ends_many_connectors_and_listeners() -> None:
    nobody = f"tcp/127.0.0.1:{free_port()}"
    with make_node() as node:
        for _ in range(5):
            node.listen(ANYWHERE)
        for number in range(20):
            node.keep_connected(f"{nobody}?n={number}", policy=QUICK)
        connectors = list(node._connectors.values())
        until(lambda: all(connector.attempts > 1 for connector in connectors))
        assert all("no node listens" in str(connector.last_error) for connector in connectors)


def test_waiting_calls_are_refused_on_the_io_thread() -> None:
    caught: list[RuntimeError] = []
    over = threading.Event()
    server: Node

    def on_message(session: TransportSession, *_: Any) -> None:
        for call in (server.close, lambda: server.connect("tcp/127.0.0.1:1")):
            try:
                call()
            except RuntimeError as error:
                caught.append(error)
        server.shut(over.set)

    with make_node(Record(on_message)) as server, make_node() as client:
        session = client.connect(server.listen(ANYWHERE)[0])
        session.send(put(b"close yourself"))
        assert over.wait(PATIENCE)
        assert len(caught) == 2
        until(lambda: session.over is not None)
        assert session.over is not None
        assert session.over.by_peer


def test_close_from_a_delivery_thread() -> None:
    closed = threading.Event()
    server: Node

    def on_message(session: TransportSession, *_: Any) -> None:
        server.close()
        closed.set()

    delivery = Delivery(on_message)
    with make_node(delivery) as server, make_node() as client:
        session = client.connect(server.listen(ANYWHERE)[0])
        session.send(put(b"close yourself"))
        assert closed.wait(PATIENCE)
    delivery.stop()


# --- passwords ------------------------------------------------------------------------------


def test_two_hundred_wrong_logins_are_slowed_and_harm_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = 0.02
    monkeypatch.setattr(throttle, "FIRST_DELAY_S", slow)
    monkeypatch.setattr(throttle, "MAX_DELAY_S", slow)
    server_auth = [UserPassword(dictionary={"user": b"right"})]
    honest = {"authenticators": [UserPassword("user", "right")]}
    with attacked(caplog, honest=honest, authenticators=server_auth) as target:
        locator = f"tcp/127.0.0.1:{target.port}"
        wrong = [("user", "wrong"), ("nobody", "right"), ("user", "righ")]
        began = time.monotonic()
        with ExitStack() as stack:
            thieves = [
                stack.enter_context(make_node(authenticators=[UserPassword(*pair)]))
                for pair in wrong
            ]
            thieves.append(stack.enter_context(make_node()))
            for number in range(200):
                with pytest.raises(SessionRefused) as caught:
                    thieves[number % len(thieves)].connect(locator)
                assert caught.value.reason == CloseReason.GENERIC, "one reason for all of them"
        took = time.monotonic() - began
        assert took >= (200 - throttle.FREE_FAILURES) * slow * 0.9
        until(lambda: target.node.refused == {"GENERIC": 200})  # it counts after its CLOSE has left
        lines = [r for r in caplog.records if "no session with" in r.getMessage()]
        assert 1 <= len(lines) <= took + 2
        assert all("127.0.0.1" in r.getMessage() for r in lines)
        assert "right" not in caplog.text.replace("has another password", "")
        assert not target.strange
        (session,) = target.node.sessions.values()
        assert session.agreement.identities == {"user-password": "user"}


# --- many -----------------------------------------------------------------------------------


def test_two_hundred_sessions_at_once() -> None:
    count, each = 200, 5
    handler = Record(lambda session, message, *_: session.send(message))
    with make_node(handler) as node, ExitStack() as stack:
        port = port_of(node.listen(ANYWHERE))
        peers: list[HostilePeer] = []
        for _ in range(count):
            peer = stack.enter_context(HostilePeer(port, new_zid()))
            peer.establish(lease_ms=600_000)
            peers.append(peer)
        until(lambda: len(node.sessions) == count)
        assert node.pending == 0
        for number in range(each):
            for peer in peers:
                peer.send(Frame(FIRST_SN + number, messages=[numbered(number)]))
        for peer in peers:
            got: list[int] = []
            while len(got) < each:
                message = peer.hear()
                assert isinstance(message, Frame)
                got += [number_of(m) for m in message.messages]
            assert got == list(range(each))
        counted = [session.counters for session in node.sessions.values()]
        assert sum(c.sent_messages for c in counted) == count * each
        assert sum(c.received_frames for c in counted) == count * each
        assert not any(c.receive_dropped or c.send_dropped for c in counted)
        assert all(s.gaps == 0 for x in node.sessions.values() for s in x.sequences.values())
        for peer in peers[: count // 2]:
            peer.send(Close())
        until(lambda: len(node.sessions) == count // 2)
        node.close()
        assert len(handler.ends) == count
        assert sum(end.by_peer for _, end in handler.ends) == count // 2
        assert [peer.hear_close() for peer in peers[count // 2 :]] == [0] * (count // 2)


def test_sessions_that_come_and_go() -> None:
    """Open, speak, close, three hundred times: nothing stays behind in the node."""
    handler = Record()
    with make_node(handler) as server, make_node() as client:
        locator = server.listen(ANYWHERE)[0]
        for number in range(300):
            session = client.connect(locator)
            assert session.send(numbered(number))
            session.close()
            until(lambda: not client.sessions)
        until(lambda: len(handler.ends) == 300)
        assert handler.numbers == list(range(300))
        assert server.pending == client.pending == 0
        assert not server.sessions
        assert server.refused == {}
        assert payload_of(handler.messages[0]) == b"00000000"
