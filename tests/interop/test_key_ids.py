"""Which keys get an id: those of publishers, where the link loses nothing. All others are sent in
full, so that no lost datagram silences a key."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.golden.proxy import LOOPBACK, Tape, TcpTap, UdpTap, free_port
from tests.support.interop_pair import OURS, THEIRS, open_session
from tests.support.routed_sessions import routed
from tests.support.session_pairs import pair
from tests.support.waiting import until
from zenlake.wire.batch import read_batch
from zenlake.wire.declare import Declare, DeclareKeyExpr
from zenlake.wire.frame import Frame
from zenlake.wire.network import NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

BOTH = [pytest.param(THEIRS, id="theirs"), pytest.param(OURS, id="ours")]
ONE_SHOT_KEYS = 10_000


def messages_in(batch: bytes) -> list[NetworkMessage]:
    return [m for frame in read_batch(batch) if isinstance(frame, Frame) for m in frame.messages]


def declares_an_id(batch: bytes) -> bool:
    return bool(declared_in([messages_in(batch)]))


def declared_in(batches: list[list[NetworkMessage]]) -> list[str]:
    """Keys that ids are declared for."""
    declares = [m for messages in batches for m in messages if isinstance(m, Declare)]
    return [m.body.key.suffix for m in declares if isinstance(m.body, DeclareKeyExpr)]


class Conversation:
    """A session of `sender` that connects, through a tap, to one of `receiver` that listens."""

    def __init__(self, stack: ExitStack, sender: Any, receiver: Any, protocol: str) -> None:
        self._stack = stack
        self.heard: list[tuple[str, bytes]] = []
        self.receiver, port = listener(stack, receiver, protocol)
        tap = tapped(stack, protocol, port)
        self.tape = tap.tape
        at = f"{protocol}/{LOOPBACK}:{tap.port}"
        self.sender = open_session(sender, "peer", connect=(at,))
        stack.callback(self.sender.close)
        until(lambda: list(self.receiver.info.peers_zid()) and list(self.sender.info.peers_zid()))

    def hear(self, pattern: str) -> None:
        """Subscribe, and return when a put reaches the subscriber."""
        self._stack.callback(self.receiver.declare_subscriber(pattern, self._hear).undeclare)
        reach(self.sender, self.heard)

    def _hear(self, sample: Any) -> None:
        self.heard.append((str(sample.key_expr), bytes(sample.payload)))

    def wait(self, key: str, *payloads: bytes) -> None:
        """Return when the subscriber has heard exactly these payloads on `key`, in order."""
        expected = [(key, payload) for payload in payloads]
        until(lambda: [pair for pair in self.heard if pair[0] == key], expected.__eq__)

    def sent(self) -> list[NetworkMessage]:
        """Messages of the sender, as the tap heard them."""
        found = []
        for name, batch in self.tape.batches():
            if name == "A":
                found += messages_in(batch)
        return found

    def declared(self) -> list[str]:
        """Keys that the sender declared an id for."""
        return declared_in([self.sent()])

    def pushed(self, payload: bytes) -> Push:
        """The message with `payload`."""
        pushed = [m for m in self.sent() if isinstance(m, Push)]
        (found,) = (m for m in pushed if isinstance(m.body, Put) and m.body.payload == payload)
        return found


def reach(sender: Any, heard: list[Any], key: str = "probe") -> None:
    """Put until the subscriber has heard it."""

    def put() -> list[Any]:
        sender.put(key, b"")
        return heard

    until(put)


def tapped(stack: ExitStack, protocol: str, port: int) -> TcpTap | UdpTap:
    """A tap before `port`; over UDP it loses every datagram with the declaration of an id."""
    if protocol == "tcp":
        return stack.enter_context(TcpTap(Tape(), port))
    return stack.enter_context(UdpTap(Tape(), port, declares_an_id))


def listener(stack: ExitStack, api: Any, protocol: str, mode: str = "peer") -> tuple[Any, int]:
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    port = free_port(kind)
    session = open_session(api, mode, listen=f"{protocol}/{LOOPBACK}:{port}")
    stack.callback(session.close)
    return session, port


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("receiver", BOTH)
def test_a_put_without_a_publisher_sends_its_key_in_full(stack: ExitStack, receiver: Any) -> None:
    way = Conversation(stack, OURS, receiver, "tcp")
    way.hear("**")
    way.sender.put("a/b", b"one")
    way.sender.put("a/b", b"two")
    way.sender.delete("a/b")
    way.wait("a/b", b"one", b"two", b"")
    assert way.declared() == []
    for payload in (b"one", b"two"):
        assert (way.pushed(payload).key.scope, way.pushed(payload).key.suffix) == (0, "a/b")


def test_keys_that_are_used_once_take_no_id() -> None:
    with pair() as (listener, dialler):
        heard: list[str] = []
        listener.declare_subscriber("once/**", lambda sample: heard.append(str(sample.key_expr)))
        reach(dialler, heard, "once/first")
        for number in range(ONE_SHOT_KEYS):
            dialler.put(f"once/{number}", b"", congestion_control=OURS.CongestionControl.BLOCK)
        until(lambda: heard[-1] == f"once/{ONE_SHOT_KEYS - 1}")
        (session,) = listener._core.node.sessions.values()
        assert session.face.face._their_scopes == {}


@pytest.mark.parametrize("receiver", BOTH)
def test_a_publisher_declares_its_key_once_and_then_sends_the_id(
    stack: ExitStack, receiver: Any
) -> None:
    way = Conversation(stack, OURS, receiver, "tcp")
    way.hear("**")
    publisher = way.sender.declare_publisher("a/b")
    publisher.put(b"one")
    publisher.put(b"two")
    way.wait("a/b", b"one", b"two")
    publisher.undeclare()
    way.sender.put("a/b", b"three")
    way.wait("a/b", b"one", b"two", b"three")
    assert way.declared() == ["a/b"]
    for payload in (b"one", b"two", b"three"):
        assert way.pushed(payload).key.scope
        assert way.pushed(payload).key.suffix == ""


def put_and_hear(way: Conversation) -> None:
    """Put with a publisher and with the session in turns; wait for each sample."""
    way.hear("**")
    publisher = way.sender.declare_publisher("a/publisher")
    for number in range(3):
        publisher.put(b"%d" % number)
        way.sender.put("a/session", b"%d" % number)
        way.wait("a/publisher", *(b"%d" % n for n in range(number + 1)))
        way.wait("a/session", *(b"%d" % n for n in range(number + 1)))


@pytest.mark.parametrize("receiver", BOTH)
def test_no_lost_datagram_silences_a_key(stack: ExitStack, receiver: Any) -> None:
    """The tap loses every datagram with the declaration of an id."""
    put_and_hear(Conversation(stack, OURS, receiver, "udp"))


def test_puts_of_eclipse_zenoh_arrive_over_udp(stack: ExitStack) -> None:
    put_and_hear(Conversation(stack, THEIRS, OURS, "udp"))


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_router_declares_what_was_declared_to_it_where_nothing_is_lost(
    stack: ExitStack, protocol: str
) -> None:
    """A client of the router puts over TCP; the next router has its link through the tap."""
    far, port = listener(stack, OURS, protocol, "router")
    tap = tapped(stack, protocol, port)
    net = stack.enter_context(routed([f"{protocol}/{LOOPBACK}:{tap.port}"]))
    put_through_a_router(stack, net.open(THEIRS).session, far)
    batches = [messages_in(batch) for name, batch in tap.tape.batches() if name == "A"]
    assert declared_in(batches) == (["a/publisher"] if protocol == "tcp" else [])


@pytest.mark.parametrize("receiver", BOTH)
def test_puts_reach_a_client_that_a_router_has_over_udp(stack: ExitStack, receiver: Any) -> None:
    net = stack.enter_context(routed())
    port = free_port(socket.SOCK_DGRAM)
    net.router._core.node.listen(f"udp/{LOOPBACK}:{port}")
    tap = tapped(stack, "udp", port)
    far = open_session(receiver, "client", connect=(f"udp/{LOOPBACK}:{tap.port}",))
    stack.callback(far.close)
    put_through_a_router(stack, net.open(THEIRS).session, far)


def put_through_a_router(stack: ExitStack, client: Any, far: Any) -> None:
    """Put with a publisher and without one; return when `far` has heard all."""
    heard: list[tuple[str, bytes]] = []

    def hear(sample: Any) -> None:
        heard.append((str(sample.key_expr), bytes(sample.payload)))

    stack.callback(far.declare_subscriber("**", hear).undeclare)
    reach(client, heard)
    publisher = client.declare_publisher("a/publisher")
    expected = []
    for number in range(3):
        publisher.put(b"%d" % number)
        client.put("a/session", b"%d" % number)
        expected += [("a/publisher", b"%d" % number), ("a/session", b"%d" % number)]
    until(lambda: sorted(put for put in heard if put[0] != "probe"), sorted(expected).__eq__)
