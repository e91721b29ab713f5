"""The processes of the API benchmark: `python -m bench.api_peer ROLE ARGUMENTS`, as JSON.

`session` is the measured one; zenlake and eclipse-zenoh run the same lines, as their API is equal.
`feed` and `sink` are zenlake clients below the API, too fast to be the limit.
"""

import importlib
import os
import secrets
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from bench.peer import (
    PATIENCE,
    Commands,
    open_listening,
    open_session,
    report,
    resident_bytes,
    run_role,
    serve,
    wait_for_subscriber,
    wait_until,
)
from bench.session_peer import offer
from zenlake.errors import SessionEnded
from zenlake.runtime.node import Node, NodeConfig
from zenlake.runtime.reactor import Reactor
from zenlake.runtime.transport_session import TransportSession
from zenlake.shm.node import COPY_VARIABLE
from zenlake.transport.offer import Offer
from zenlake.wire.cursor import ByteReader
from zenlake.wire.declare import Declare, DeclareKeyExpr, DeclareSubscriber
from zenlake.wire.enums import Mapping, WirePriority, WireWhatAmI
from zenlake.wire.network import NETWORK, is_network
from zenlake.wire.push import Push
from zenlake.wire.qos import DECLARE
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

FLOW, PING, ASK = "bench/flow", "bench/ping", "bench/ask"
FEED_BYTES, FEED_ROWS = 1 << 20, 8192  # Upper bounds on a batch that the feed sends at once.
HEAD_BYTES = 24  # First bytes of a message, up to and with the length of its payload.
MAX_AGE = 0.02  # Seconds that the last Arrow batch of a flow waits.
BURST = 32  # Puts between two looks at the clock.
POLL = 0.001
PAYLOAD = bytes(64)


def client() -> Offer:
    return Offer(zid=WireZenohId(secrets.token_bytes(16)), whatami=WireWhatAmI.CLIENT)


# ---- feed and sink


class Sink:
    """Subscriber that counts. It decodes one message of a flow, as all of a flow are alike."""

    def __init__(self) -> None:
        self.count = 0
        self._head = b""
        self._length = 0

    def opened(self, session: TransportSession) -> None:
        session.send(Declare(DeclareSubscriber(1, WireExpr(0, FLOW)), qos=DECLARE))

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
        while pos < end and is_network(data[pos]):
            head = data[pos : pos + HEAD_BYTES]
            if head != self._head:
                r = ByteReader(data, pos, end)
                if type(NETWORK.read(r)) is not Push:
                    pos = r.pos
                    continue
                self._head, self._length = head, r.pos - pos
            number, rest = divmod(end - pos, self._length)
            if rest or data[end - self._length] != data[pos]:
                number = 1
            self.count += number
            pos += number * self._length
        return pos


def sink(endpoint: str, sessions: int = 1) -> None:
    handler = Sink()
    reactor = Reactor("bench sink")
    nodes = [Node(NodeConfig(offer=client()), handler, reactor=reactor) for _ in range(sessions)]
    reactor.start()
    try:
        opened = [node.connect(endpoint) for node in nodes]
        report(ok=True)
        serve(counting(lambda: handler.count))
        for session in opened:
            session.close()
        end = time.monotonic() + PATIENCE
        while any(session.over is None for session in opened) and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        reactor.stop()


def open_sink() -> None:
    """Run a sink that listens, to measure the feed alone."""
    handler = Sink()
    with Node(NodeConfig(offer=offer()), handler) as node:
        (locator,) = node.listen("tcp/127.0.0.1:0")
        report(endpoint=locator)
        serve(counting(lambda: handler.count))


def counting(count: Callable[[], int]) -> Commands:
    """Return the commands of a receiving process."""

    def arrived(expected: int, stall: float) -> None:
        """Report when `expected` messages have arrived, or none has for `stall` seconds."""
        last, quiet_since = count(), time.perf_counter()
        while last < expected and time.perf_counter() < quiet_since + stall:
            time.sleep(POLL)
            now = count()
            if now != last:
                last, quiet_since = now, time.perf_counter()
        report(count=last, time=time.perf_counter())

    return {"arrived": arrived, "counted": lambda: report(count=count())}


class Silent:
    """Handler of a session that only sends."""

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
        return end


def feed(endpoint: str) -> None:
    from zenlake.columnar.write import push_columns

    short = WireExpr(1, mapping=Mapping.SENDER)
    with Node(NodeConfig(offer=client()), Silent()) as node:
        session = node.connect(endpoint)
        session.send(Declare(DeclareKeyExpr(1, WireExpr(0, FLOW)), qos=DECLARE))
        report(ok=True)

        def send(size: int, seconds: float = 0.0, rows: int = 0) -> None:
            columns = push_columns(record_batch(size, rows), lambda key: short)
            sent, start = 0, time.perf_counter()
            while not sent or time.perf_counter() < start + seconds:
                sent += session.send_columns(columns, WirePriority.DATA, reliable=True)
            report(sent=sent, time=start)

        serve({"feed": send})


def record_batch(size: int, rows: int = 0) -> Any:
    import pyarrow as pa

    rows = rows or max(1, min(FEED_ROWS, FEED_BYTES // size))
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.repeat(FLOW, rows).dictionary_encode(),
            "payload": pa.repeat(pa.scalar(bytes(size), pa.binary()), rows),
            "congestion_control": pa.repeat("block", rows),
        }
    )


# ---- the measured session


def session(
    library: str,
    mode: str = "peer",
    connect: str | None = None,
    *,
    shm: bool = False,
    copies: bool = False,
) -> None:
    """Run a measured session; with `copies`, payloads leave shared memory when they arrive."""
    os.environ[COPY_VARIABLE] = str(int(copies))
    zenoh = importlib.import_module(library)
    if connect is None:
        endpoint, own = open_listening(zenoh, mode, shm=shm)
    else:
        endpoint, own = connect, open_session(zenoh, mode, connect, shm=shm)
    with own:
        measured = Measured(zenoh, own)
        report(endpoint=endpoint)
        serve(measured.commands())
        measured.close()


class Measured:
    """The commands of a measured session, by the API that both libraries have."""

    def __init__(self, zenoh: Any, own: Any) -> None:
        self._zenoh = zenoh
        self._session = own
        self._declared: list[Any] = []
        self._reader: threading.Thread | None = None
        self._count = [0]
        self._pings: dict[bool, Callable[[int], list[float]]] = {}

    def commands(self) -> Commands:
        return {
            "put": self.put,
            "put_batch": self.put_batch,
            "receive": self.receive,
            **counting(lambda: self._count[0]),
            "pong": self.pong,
            "ping": self.ping,
            "answer": self.answer,
            "get": self.get,
            "idle": self.idle,
        }

    def close(self) -> None:
        self._undeclare()

    def _undeclare(self) -> None:
        for entity in self._declared:
            entity.undeclare()
        self._declared.clear()
        if self._reader is not None:
            self._reader.join(PATIENCE)
            self._reader = None

    # ---- out

    def put(self, size: int, seconds: float, congestion_control: str) -> None:
        control = getattr(self._zenoh.CongestionControl, congestion_control)
        payload = bytes(size)
        with self._session.declare_publisher(FLOW, congestion_control=control) as publisher:
            wait_for_subscriber(publisher)
            put = publisher.put
            sent, start = 0, time.perf_counter()
            end = start + seconds
            while time.perf_counter() < end:
                for _ in range(BURST):
                    put(payload)
                sent += BURST
            report(sent=sent, start=start, rate=sent / (time.perf_counter() - start))

    def put_batch(self, size: int, seconds: float) -> None:
        batch = record_batch(size)
        sent, start = 0, time.perf_counter()
        end = start + seconds
        while time.perf_counter() < end:
            sent += self._session.put_batch(batch)
        report(sent=sent, rate=sent / (time.perf_counter() - start))

    # ---- in

    def receive(self, into: str) -> None:
        """Subscribe in the way `into` names, instead of the previous way."""
        self._undeclare()
        count = self._count = [0]

        def counted(sample: Any) -> None:
            count[0] += 1

        def read(sample: Any) -> None:
            if sample.key_expr is not None and bytes(sample.payload) is not None:
                count[0] += 1

        if into == "arrow":
            batches = self._zenoh.ArrowBatches(max_age=MAX_AGE)
            subscriber = self._session.declare_subscriber(FLOW, batches)

            def take() -> None:
                for batch in subscriber:
                    count[0] += batch.num_rows

            self._reader = threading.Thread(target=take, name="bench arrow")
            self._reader.start()
        else:
            callback = {"callback": counted, "reading": read}[into]
            subscriber = self._session.declare_subscriber(FLOW, callback)
        self._declared.append(subscriber)
        report(ok=True)

    # ---- round trips

    def pong(self) -> None:
        block = self._zenoh.CongestionControl.BLOCK
        for indirect in (True, False):
            there, back = ping_keys(indirect)
            publisher = self._session.declare_publisher(
                back, express=True, congestion_control=block
            )
            self._subscribe(there, indirect, lambda sample, put=publisher.put: put(sample.payload))
            self._declared.append(publisher)
        report(ok=True)

    def ping(self, rounds: int, indirect: bool) -> None:
        pings = self._pings.get(indirect)
        if pings is None:
            pings = self._pings[indirect] = self._make_pings(indirect)
        report(seconds=pings(rounds))

    def _make_pings(self, indirect: bool) -> Callable[[int], list[float]]:
        """Return a function that pings: the callback of each pong sends the next ping."""
        there, back = ping_keys(indirect)
        block = self._zenoh.CongestionControl.BLOCK
        publisher = self._session.declare_publisher(there, express=True, congestion_control=block)
        put, clock = publisher.put, time.perf_counter
        taken: list[float] = []
        over = threading.Event()
        wanted, sent = 0, 0.0

        def on_pong(sample: Any) -> None:
            nonlocal sent
            taken.append(clock() - sent)
            if len(taken) < wanted:
                sent = clock()
                put(PAYLOAD)
            else:
                over.set()

        def pings(rounds: int, patience: float = PATIENCE) -> list[float]:
            nonlocal wanted, sent
            taken.clear()
            over.clear()
            wanted, sent = rounds, clock()
            put(PAYLOAD)
            if not over.wait(patience):
                raise TimeoutError(f"{len(taken)} of {rounds} pings came back")
            return list(taken)

        self._subscribe(back, indirect, on_pong)
        self._declared.append(publisher)
        wait_for_subscriber(publisher)
        wait_until(lambda: succeeds(lambda: pings(1, 0.5)), "the first pong")
        return pings

    def _subscribe(self, key: str, indirect: bool, callback: Callable[..., None]) -> None:
        handler = self._zenoh.handlers.Callback(callback, indirect=indirect)
        self._declared.append(self._session.declare_subscriber(key, handler))

    # ---- queries

    def answer(self) -> None:
        self._declared.append(
            self._session.declare_queryable(ASK, lambda query: query.reply(ASK, PAYLOAD))
        )
        report(ok=True)

    def get(self, seconds: float) -> None:
        get = self._session.get

        def once() -> int:
            return sum(1 for reply in get(ASK) if reply.ok is not None)

        wait_until(lambda: once() == 1, "a reply")
        done, start = 0, time.perf_counter()
        end = start + seconds
        while time.perf_counter() < end:
            done += once()
        report(rate=done / (time.perf_counter() - start))

    # ---- idle sessions

    def idle(self, count: int, endpoint: str, traced: bool) -> None:
        """Report the bytes that `count` more sessions take, each connected to `endpoint`."""
        with open_session(self._zenoh, "client", endpoint):
            pass  # Allocates what all sessions share.
        if traced:
            tracemalloc.start()
        before, traced_before = resident_bytes(), tracemalloc.get_traced_memory()[0]
        sessions = [open_session(self._zenoh, "client", endpoint) for _ in range(count)]
        time.sleep(0.2)
        after, traced_after = resident_bytes(), tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        for session in sessions:
            session.close()
        report(resident=after - before, traced=traced_after - traced_before)


def ping_keys(indirect: bool) -> tuple[str, str]:
    kind = "indirect" if indirect else "direct"
    return f"{PING}/{kind}/there", f"{PING}/{kind}/back"


def succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except TimeoutError:
        return False
    return True


ROLES: dict[str, Callable[..., None]] = {
    "session": session,
    "feed": feed,
    "sink": sink,
    "open_sink": open_sink,
}


if __name__ == "__main__":
    run_role(ROLES)
