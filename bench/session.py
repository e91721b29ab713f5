"""Sessions between two processes, beside a raw socket and eclipse-zenoh in the same run.

The transport alone: no routing and no subscriber on our side, where eclipse-zenoh has both.
"""

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from bench.figures import Figure, Figures
from bench.session_peer import DONE, FLOW, PING, Counting, offer
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
OPENINGS = 30
IDLE_SESSIONS = 1000
IDLE_SECONDS = 10.0
AT_ONCE = 8
PATIENCE = 60.0


class Peer:
    """The other process."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.session_peer", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self.answer()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=30)


@contextmanager
def peer(kind: str) -> Iterator[Peer]:
    found = Peer(kind)
    try:
        yield found
    finally:
        found.close()


def figures() -> Figures:
    yield from round_trips()
    yield from flows()
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
        times: dict[str, list[float]] = {name: [] for name in jobs}
        for turn in range(TURNS + 1):
            for name, job in jobs.items():
                taken = job(PINGS)
                if turn:  # the first warms up
                    times[name].append(taken / PINGS * 1e6)
    middle = {name: median(taken) for name, taken in times.items()}
    for name, value in middle.items():
        yield Figure(f"round trip of 64 B, {name}", value, "us")
    ratio = middle["zenlake"]
    yield Figure("round trip, beside the raw socket", ratio / middle["raw socket"], "x", None, 1.6)
    yield Figure("round trip, beside eclipse-zenoh", ratio / middle["eclipse-zenoh"], "x", None, 1)


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
    """Sends the next ping when the last has come back, on the I/O thread."""

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
def their_session(endpoint: str) -> Iterator[Any]:
    import zenoh

    config = zenoh.Config()
    for key, value in {
        "mode": '"peer"',
        "listen/endpoints": "[]",
        "connect/endpoints": json.dumps([endpoint]),
        "scouting/multicast/enabled": "false",
        "transport/shared_memory/enabled": "false",
    }.items():
        config.insert_json5(key, value)
    with zenoh.open(config) as session:
        yield session


@contextmanager
def their_pings() -> Iterator[Callable[[int], float]]:
    import zenoh

    with peer("theirs") as other, their_session(other.facts["endpoint"]) as session:
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

        settle(lambda: pings(1))
        yield pings
        subscriber.undeclare()


def settle(attempt: Callable[[], object]) -> None:
    """The first messages may precede the other side's declarations."""
    for _ in range(10):
        try:
            attempt()
            return
        except AssertionError:
            continue
    raise TimeoutError("eclipse-zenoh does not answer")


# ---- one way


class Awaiting(Counting):
    """Waits for the word that all has come."""

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
            times: dict[str, list[float]] = {name: [] for name in jobs}
            for turn in range(FLOW_ROUNDS + 1):
                for name, job in jobs.items():
                    taken = job(size, count)
                    if turn:
                        times[name].append(taken)
            rates = {name: count / median(taken) for name, taken in times.items()}
            for name, rate in rates.items():
                yield Figure(f"one way, {size} B, {name}", rate, "messages/s")
                yield Figure(f"one way, {size} B, {name}", rate * size / 1e9, "GB/s")
            for name in ("objects", "encoded"):
                ratio = rates[name] / rates["eclipse-zenoh"]
                yield Figure(f"one way, {size} B, {name}, beside eclipse-zenoh", ratio, "x")


@contextmanager
def our_flow() -> Iterator[tuple[Callable[[int, int], float], Callable[[int, int], float]]]:
    """By PUSH objects, and by PUSH messages that are encoded already, as a router has them."""
    handler = Awaiting()
    with peer("ours") as other, Node(NodeConfig(offer=offer()), handler) as node:
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

    with peer("theirs") as other, their_session(other.facts["endpoint"]) as session:
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

        until_heard(publisher)
        yield flow
        subscriber.undeclare()


def until_heard(publisher: Any) -> None:
    """The other side's subscriber is known here."""
    end = time.monotonic() + PATIENCE
    while not publisher.matching_status.matching:
        assert time.monotonic() < end, "eclipse-zenoh does not subscribe"
        time.sleep(0.01)


# ---- opening


def openings() -> Figures:
    with peer("theirs") as other:
        endpoint = other.facts["endpoint"]

        def ours() -> None:
            with Node(NodeConfig(offer=offer()), Counting()) as node:
                node.connect(endpoint)

        def theirs() -> None:
            with their_session(endpoint):
                pass

        jobs = {"zenlake": ours, "eclipse-zenoh": theirs}
        times: dict[str, list[float]] = {name: [] for name in jobs}
        for turn in range(OPENINGS + 1):
            for name, job in jobs.items():
                before = time.perf_counter()
                job()
                if turn:
                    times[name].append(time.perf_counter() - before)
    for name, taken in times.items():
        yield Figure(f"open and close a session, {name}", median(taken) * 1000, "ms")


# ---- idle sessions


def idle() -> Figures:
    """IDLE_SESSIONS of one node with as many others, which share one I/O thread here."""
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
            with progress:  # a handful at a time: the acceptor limits those under way
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
