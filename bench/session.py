"""Sessions between two processes, beside a raw socket and eclipse-zenoh in the same run.

Our side is the transport alone, without routing and subscribers; eclipse-zenoh has both.
"""

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.certificate import HOST, tls_options
from bench.figures import Figure, Figures, median_seconds, medians
from bench.peer import open_session, wait_for_subscriber
from bench.process import Process, process
from bench.session_peer import DONE, FLOW, PING, Counting, link_options, offer
from zenlake.errors import SessionEnded, ZError
from zenlake.runtime.node import Node, NodeConfig
from zenlake.runtime.reactor import Reactor
from zenlake.runtime.transport_session import TransportSession
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import WireCongestionControl, WirePriority
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr

PAYLOAD = bytes(64)
TURNS, PINGS = 15, 200
BLOCK = QoS(congestion_control=WireCongestionControl.BLOCK)
FLOWS = {64: 40_000, 1024: 30_000, 65_536: 2_000}
FLOW_ROUNDS = 5
LINK_KINDS = ("tcp", "tls", "quic")
LINK_FLOWS = {64: 20_000, 65_536: 500}
OPENINGS = 30
IDLE_SESSIONS = 1000
IDLE_SECONDS = 10.0
AT_ONCE = 8
PATIENCE = 60.0


def peer(role: str, **arguments: Any) -> AbstractContextManager[Process]:
    """Start the other process."""
    return process(role, "bench.session_peer", **arguments)


def figures() -> Figures:
    yield from round_trips()
    yield from flows()
    yield from links()
    yield from openings()
    yield from idle()


# ---- round trips


def round_trips() -> Figures:
    with ExitStack() as stack:
        jobs = {
            "raw socket": stack.enter_context(raw_pings()),
            "zenlake": stack.enter_context(our_pings()),
            "eclipse-zenoh": stack.enter_context(their_pings()),
        }
        took = medians({name: partial(job, PINGS) for name, job in jobs.items()}, TURNS)
    for name, value in took.items():
        yield Figure(f"round trip of 64 B, {name}", value / PINGS * 1e6, "us")
    ours = took["zenlake"]
    yield Figure("round trip, beside the raw socket", ours / took["raw socket"], "x", None, 1.6)
    yield Figure("round trip, beside eclipse-zenoh", ours / took["eclipse-zenoh"], "x", None, 1)


@contextmanager
def raw_pings() -> Iterator[Callable[[int], float]]:
    with (
        peer("raw") as other,
        socket.create_connection(("127.0.0.1", other.facts["port"])) as sock,
    ):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def pings(count: int) -> float:
            before = time.perf_counter()
            for _ in range(count):
                sock.sendall(PAYLOAD)
                sock.recv(65536)
            return time.perf_counter() - before

        yield pings
        sock.shutdown(socket.SHUT_RDWR)


class Pinging:
    """Handler that sends the next ping when the last one is back, on the I/O thread."""

    def __init__(self) -> None:
        self.left = 0
        self.over = threading.Event()

    def opened(self, session: TransportSession) -> None: ...

    def closed(self, session: TransportSession, why: SessionEnded) -> None: ...

    def on_frame(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        self.left -= 1
        if self.left > 0:
            session.send_encoded(data[pos:end], priority, reliable)
        else:
            self.over.set()
        return end


@contextmanager
def our_pings() -> Iterator[Callable[[int], float]]:
    handler = Pinging()
    w = ByteWriter()
    NETWORK.write(w, Push(WireExpr(0, PING), Put(PAYLOAD)))
    message = bytes(w.out)
    with peer("ours") as other, Node(NodeConfig(offer=offer()), handler) as node:
        other.ask("mode", echo=True)
        session = node.connect(other.facts["endpoint"])

        def pings(count: int) -> float:
            handler.left = count
            handler.over.clear()
            before = time.perf_counter()
            session.send_encoded(message, WirePriority.DATA)
            assert handler.over.wait(PATIENCE)
            return time.perf_counter() - before

        yield pings


@contextmanager
def their_pings() -> Iterator[Callable[[int], float]]:
    import zenoh

    with peer("theirs") as other, open_session(zenoh, "peer", other.facts["endpoint"]) as session:
        block = zenoh.CongestionControl.BLOCK
        ping = session.declare_publisher(PING, express=True, congestion_control=block)
        left = [0]
        over = threading.Event()

        def pong(sample: object) -> None:
            left[0] -= 1
            if left[0] > 0:
                ping.put(PAYLOAD)
            else:
                over.set()

        subscriber = session.declare_subscriber(PING + "/back", pong)

        def pings(count: int) -> float:
            left[0] = count
            over.clear()
            before = time.perf_counter()
            ping.put(PAYLOAD)
            assert over.wait(PATIENCE)
            return time.perf_counter() - before

        try_until_answered(lambda: pings(1))
        yield pings
        subscriber.undeclare()


def try_until_answered(attempt: Callable[[], object]) -> None:
    """Repeat `attempt`: the first messages may precede the other side's declarations."""
    for _ in range(10):
        try:
            attempt()
            return
        except AssertionError:
            continue
    raise TimeoutError("eclipse-zenoh does not answer")


# ---- one way


class Awaiting(Counting):
    """Handler that waits for the other side's message that all have arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def on_frame(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        self.over.set()
        return end


def flows() -> Figures:
    with ExitStack() as stack:
        objects, encoded = stack.enter_context(our_flow())
        jobs = {
            "objects": objects,
            "encoded": encoded,
            "eclipse-zenoh": stack.enter_context(their_flow()),
        }
        for size, count in FLOWS.items():
            took = medians(
                {name: partial(job, size, count) for name, job in jobs.items()}, FLOW_ROUNDS
            )
            rates = {name: count / seconds for name, seconds in took.items()}
            for name, rate in rates.items():
                yield Figure(f"one way, {size} B, {name}", rate, "messages/s")
                yield Figure(f"one way, {size} B, {name}", rate * size / 1e9, "GB/s")
            for name in ("objects", "encoded"):
                ratio = rates[name] / rates["eclipse-zenoh"]
                yield Figure(f"one way, {size} B, {name}, beside eclipse-zenoh", ratio, "x")


def links() -> Figures:
    """Measure messages that are already encoded, over links that encrypt and over TCP."""
    with ExitStack() as stack:
        tls = tls_options(Path(stack.enter_context(TemporaryDirectory())))
        jobs = {
            kind: stack.enter_context(our_flow(f"{kind}/{HOST}:0", tls))[1] for kind in LINK_KINDS
        }
        for size, count in LINK_FLOWS.items():
            took = medians(
                {kind: partial(job, size, count) for kind, job in jobs.items()}, FLOW_ROUNDS
            )
            for kind, seconds in took.items():
                yield Figure(f"one way, {size} B, {kind} link", count / seconds, "messages/s")
                yield Figure(
                    f"one way, {size} B, {kind} link", count * size / seconds / 1e9, "GB/s"
                )


@contextmanager
def our_flow(
    endpoint: str = f"tcp/{HOST}:0", tls: dict[str, str] | None = None
) -> Iterator[tuple[Callable[[int, int], float], Callable[[int, int], float]]]:
    """Send PUSH objects, and PUSH messages that are already encoded, as a router has them."""
    handler = Awaiting()
    config = NodeConfig(offer=offer(), options=link_options(tls))
    with (
        peer("ours", endpoint=endpoint, tls=tls) as other,
        Node(config, handler) as node,
    ):
        session = node.connect(other.facts["endpoint"])

        def objects(size: int, count: int) -> float:
            other.ask("mode", expected=count)
            handler.over.clear()
            message = Push(WireExpr(0, FLOW), Put(bytes(size)), BLOCK)
            before = time.perf_counter()
            for _ in range(count):
                session.send(message)
            assert handler.over.wait(PATIENCE)
            return time.perf_counter() - before

        def encoded(size: int, count: int) -> float:
            other.ask("mode", expected=count)
            handler.over.clear()
            w = ByteWriter()
            NETWORK.write(w, Push(WireExpr(0, FLOW), Put(bytes(size)), BLOCK))
            message = bytes(w.out)
            before = time.perf_counter()
            for _ in range(count):
                session.send_encoded(message, BLOCK)
            assert handler.over.wait(PATIENCE)
            return time.perf_counter() - before

        yield objects, encoded


@contextmanager
def their_flow() -> Iterator[Callable[[int, int], float]]:
    import zenoh

    with peer("theirs") as other, open_session(zenoh, "peer", other.facts["endpoint"]) as session:
        block = zenoh.CongestionControl.BLOCK
        publisher = session.declare_publisher(FLOW, congestion_control=block)
        over = threading.Event()
        subscriber = session.declare_subscriber(DONE, lambda sample: over.set())

        def flow(size: int, count: int) -> float:
            other.ask("mode", expected=count)
            over.clear()
            payload = bytes(size)
            before = time.perf_counter()
            for _ in range(count):
                publisher.put(payload)
            assert over.wait(PATIENCE)
            return time.perf_counter() - before

        wait_for_subscriber(publisher)
        yield flow
        subscriber.undeclare()


# ---- opening


def openings() -> Figures:
    import zenoh

    with peer("theirs") as other:
        endpoint = other.facts["endpoint"]

        def ours() -> None:
            with Node(NodeConfig(offer=offer()), Counting()) as node:
                node.connect(endpoint)

        def theirs() -> None:
            with open_session(zenoh, "peer", endpoint):
                pass

        took = median_seconds({"zenlake": ours, "eclipse-zenoh": theirs}, OPENINGS)
    for name, seconds in took.items():
        yield Figure(f"open and close a session, {name}", seconds * 1000, "ms")


# ---- idle sessions


def idle() -> Figures:
    """Measure a node with IDLE_SESSIONS sessions; their other ends share one I/O thread here."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(IDLE_SESSIONS, hard - 100)
    reactor = Reactor("bench")
    with peer("ours") as other:
        before = other.ask("status")
        reactor.start()
        opened: list[TransportSession | ZError] = []
        progress = threading.Condition()

        def done(found: TransportSession | ZError) -> None:
            with progress:
                opened.append(found)
                progress.notify()

        nodes = [Node(NodeConfig(offer=offer()), Counting(), reactor=reactor) for _ in range(count)]
        for number, node in enumerate(nodes):
            node.connect_soon(other.facts["endpoint"], done)
            with progress:  # A few at a time: the acceptor limits pending handshakes.
                while len(opened) < number - AT_ONCE:
                    assert progress.wait(PATIENCE)
        with progress:
            assert progress.wait_for(lambda: len(opened) == count, PATIENCE)
        sessions = [session for session in opened if isinstance(session, TransportSession)]
        after = other.ask("status")
        time.sleep(IDLE_SECONDS)
        later = other.ask("status")
        for session in sessions:
            session.close()
        while any(session.over is None for session in sessions):
            time.sleep(0.05)
        reactor.stop()
    assert later["sessions"] == count, f"{later['sessions']} of {count} sessions stayed"
    yield Figure(
        f"memory of an idle session, of {count}",
        (after["rss"] - before["rss"]) / count / 1024,
        "KiB",
    )
    used = (later["cpu"] - after["cpu"]) / IDLE_SECONDS
    yield Figure(f"CPU of {count} idle sessions", used * 100, "% of a core")
