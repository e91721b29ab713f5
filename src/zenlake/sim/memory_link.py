"""Memory links: links inside one process, with a clock that is an argument and seeded faults.

Equal seeds and equal calls give equal events: no socket, thread or wall clock is used. For one
thread only. Instead of a descriptor each link and listener has `on_ready`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any

from zenlake.errors import LinkError
from zenlake.link.base import MAX_STREAM_BATCH, READ_BYTES, Listener, Progress, TransportLink
from zenlake.wire.framing import Framing
from zenlake.wire.locator import Locator

PROTOCOL = "memory"
BACKLOG = 1024  # Links of one listener that may wait for accept().
BUFFER_BYTES = 1 << 20  # Bytes sent and not read yet, per direction.
DATAGRAM_MTU = 65_487  # Largest datagram, as of UDP links.
EVENTS_AT_ONE_TIME = 1_000_000  # Above this two ends must be answering each other endlessly.

END = object()  # In a stream: the sender closed its end.
RESET = object()  # In a stream: the receiver had closed its end.


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of one direction of a link. Probabilities are per datagram."""

    delay: tuple[float, float] = (0.0, 0.0)
    "Shortest and longest delay, in seconds."
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    held_back: float = 0.01
    "Largest additional delay of a reordered datagram, in seconds."
    chunk: int = 0
    "Streams arrive in pieces of 1 to `chunk` bytes; 0: as they were sent."
    bandwidth: float = inf
    "Bytes per second."
    buffer: int = BUFFER_BYTES
    "Bytes sent and not read yet above which send() takes nothing."


NONE = Faults()


class _Pipe:
    """One direction of a connection, from link `source` to link `sink`."""

    __slots__ = (
        "dead",
        "faults",
        "free_at",
        "in_flight",
        "last",
        "left",
        "names",
        "queue",
        "reset",
        "sink",
        "source",
        "stalled",
        "vanishing",
        "waiting",
    )

    def __init__(self, faults: Faults, names: tuple[str, str]) -> None:
        self.faults = faults
        self.names = names
        self.source: MemoryLink | None = None
        self.sink: MemoryLink | None = None
        self.queue: deque[Any] = deque()  # Items of a stream in flight, in order.
        self.in_flight = 0
        self.free_at = 0.0  # When the last byte will have left, as the bandwidth allows.
        self.last = 0.0  # When the last item of the stream arrives.
        self.left: int | None = None  # Bytes until a planned cut.
        self.reset = True  # Whether that cut is a reset.
        self.stalled = 0  # Arrivals that a partition delays.
        self.waiting = False  # Whether the source found no room.
        self.vanishing = False
        self.dead = False


class MemoryLink(TransportLink):
    """One end of a connection. Its address is the name of the other end."""

    protocol = PROTOCOL

    def __init__(
        self, network: Network, local: str, remote: str, datagram: bool, out: _Pipe, back: _Pipe
    ) -> None:
        self.local, self.remote = Locator(f"{PROTOCOL}/{local}"), Locator(f"{PROTOCOL}/{remote}")
        self.address = back.names[0]
        self.route = f"{local} {remote}"
        self.framing = Framing.DATAGRAM if datagram else Framing.STREAM
        self.reliable = not datagram
        self.mtu = DATAGRAM_MTU if datagram else MAX_STREAM_BATCH
        self.on_ready: Callable[[], None] | None = None
        self._network, self._out, self._back = network, out, back
        self._inbox: deque[bytes] = deque()
        self._connected = False
        self._ended = False
        self._broken: str | None = None
        out.source = back.sink = self

    def fileno(self) -> int:
        return -1

    def handshake(self) -> Progress:
        self._check()
        return Progress.DONE if self._connected else Progress.WANT_WRITE

    @property
    def more(self) -> bool:
        return bool(self._inbox)

    @property
    def readable(self) -> bool:
        """Whether epoll would report the link as readable."""
        return bool(self._inbox) or self._ended or self._broken is not None

    @property
    def writable(self) -> bool:
        """Whether epoll would report the link as writable."""
        return (self._connected and not self._out.waiting) or self._broken is not None

    def receive(self) -> bytes | None:
        if self._inbox:  # Also of a link that broke afterwards, as with TCP.
            data = self._inbox.popleft()
            self._network._on_read(self._back, len(data))
            return data
        self._check()
        return b"" if self._ended else None

    def send(self, data: bytes | bytearray | memoryview) -> int:
        self._check()
        if self._out.dead:
            raise LinkError(f"{self.remote}: send: the peer has gone")
        if len(data) > self.mtu and self.framing is Framing.DATAGRAM:
            raise LinkError(f"{self.remote}: a batch of {len(data)} bytes is above {self.mtu}")
        if not self._connected or not data:
            return 0
        if self.framing is Framing.DATAGRAM:
            return self._network._send_datagram(self._out, bytes(data))
        return self._network._send_stream(self._out, data)

    def close(self) -> None:
        self._inbox.clear()
        if self._broken is None:
            self._broken = "it is closed on this side"
            if self._connected and self.framing is Framing.STREAM and not self._out.dead:
                self._network._put(self._out, END)

    def _check(self) -> None:
        if self._broken is not None:
            raise LinkError(f"{self.remote}: {self._broken}")

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = why
            _wake(self)

    def _end(self) -> None:
        if self._broken is None:
            self._ended = True
            _wake(self)


class MemoryListener(Listener):
    """Listener of a network, by name."""

    def __init__(self, network: Network, name: str) -> None:
        self.locators = (Locator(f"{PROTOCOL}/{name}"),)
        self.name = self.route = name
        self.on_ready: Callable[[], None] | None = None
        self._network = network
        self._waiting: deque[MemoryLink] = deque()
        self._closed = False

    def fileno(self) -> int:
        return -1

    @property
    def readable(self) -> bool:
        """Whether accept() would return a link."""
        return bool(self._waiting)

    writable = False

    def accept(self) -> TransportLink | None:
        if self._closed:
            raise LinkError(f"{self.locators[0]}: accept: it is closed on this side")
        return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._network._listeners.pop(self.name, None)
            while self._waiting:
                self._waiting.popleft().close()


def _wake(end: MemoryLink | MemoryListener) -> None:
    if end.on_ready is not None:
        end.on_ready()


class Network:
    """Any number of listeners and links. Events happen only in advance()."""

    def __init__(self, seed: int = 0, faults: Faults = NONE) -> None:
        self.now = 0.0
        self.faults = faults
        "Default faults of links that connect() opens from now on."
        self.lost = self.duplicated = self.reordered = 0
        self.tap: Callable[[MemoryLink, bytes], None] | None = None
        "Called with each link and the bytes that arrive there."
        self._random = random.Random(seed).random
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0
        self._ports = 0
        self._listeners: dict[str, MemoryListener] = {}
        self._partitions: list[tuple[frozenset[str], frozenset[str]]] = []
        self._stalled: list[_Pipe] = []

    # --- time

    def next_event(self) -> float | None:
        """Return the time of the next event; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def advance(self, now: float) -> int:
        """Run the events up to and at `now`; return how many there were."""
        if now < self.now:
            raise ValueError(f"the time is {self.now} already: it cannot go back to {now}")
        heap, total, together = self._heap, 0, 0
        while heap and heap[0][0] <= now:
            time, _, act, argument = heappop(heap)
            together += 1
            if time > self.now:
                self.now, together = time, 0
            elif together > EVENTS_AT_ONE_TIME:
                raise RuntimeError(
                    f"more than {EVENTS_AT_ONE_TIME} events at {time}: give the links a delay"
                )
            act(argument)
            total += 1
        self.now = now
        return total

    # --- ends

    def listen(self, name: str) -> MemoryListener:
        """Return a new listener called `name`."""
        if name in self._listeners:
            raise LinkError(f"{PROTOCOL}/{name}: listen: another listener has this name")
        listener = self._listeners[name] = MemoryListener(self, name)
        return listener

    def connect(
        self,
        name: str,
        *,
        datagram: bool = False,
        source: str = "connector",
        faults: Faults | None = None,
        back: Faults | None = None,
    ) -> MemoryLink:
        """Begin to connect to listener `name`; `faults` apply there, `back` on the way back."""
        there = faults or self.faults
        out = _Pipe(there, (source, name))
        inward = _Pipe(back or there, (name, source))
        self._ports += 1
        link = MemoryLink(self, f"{source}:{self._ports}", name, datagram, out, inward)
        self._at(self.now + self._delay(out), self._on_connect, link)
        return link

    def _on_connect(self, link: MemoryLink) -> None:
        """Accept or refuse a connection whose request has reached the listener's side."""
        out, back = link._out, link._back
        if link._broken is not None or self._is_partitioned(out):
            return
        listener = self._listeners.get(out.names[1])
        back.last = self.now + self._delay(back)
        if listener is None or len(listener._waiting) >= BACKLOG:
            self._at(back.last, self._on_refused, link)
            return
        local, remote = link.remote.address, link.local.address
        accepted = MemoryLink(self, local, remote, not link.reliable, back, out)
        accepted._connected = True
        self._at(back.last, self._on_accepted, link)
        listener._waiting.append(accepted)
        _wake(listener)

    def _on_accepted(self, link: MemoryLink) -> None:
        if not self._is_partitioned(link._back) and link._broken is None:
            link._connected = True
            _wake(link)

    def _on_refused(self, link: MemoryLink) -> None:
        if not self._is_partitioned(link._back):
            link._break("connect: no node listens there")

    # --- faults

    def set_faults(self, link: TransportLink, faults: Faults) -> None:
        """Set the faults for the bytes that `link` sends from now on."""
        _memory(link)._out.faults = faults

    def cut(self, link: TransportLink, *, after: int = 0, reset: bool = True) -> None:
        """Break the link now, or when `after` more bytes that `link` sends have arrived.

        Both ends get LinkError, or b"" if `reset` is false.
        """
        end = _memory(link)
        if after:
            end._out.left, end._out.reset = after, reset
        else:
            self._at(self.now, self._cut, (end, reset))

    def _cut(self, what: tuple[MemoryLink, bool]) -> None:
        end, reset = what
        for pipe in (end._out, end._back):
            pipe.dead = True
            pipe.queue.clear()
        for side in (end, end._out.sink):
            if side is None:
                continue  # Not accepted yet.
            if reset:
                side._break("the link was cut")
            else:
                side._end()

    def half_open(self, link: TransportLink) -> None:
        """Lose everything that `link` sends from now on, without an error at either end."""
        _memory(link)._out.vanishing = True

    def partition(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Let nothing pass between two sets of names until heal().

        Datagrams and connection requests are lost. Streams are delayed, as TCP sends again.
        """
        self._partitions.append((frozenset(some), frozenset(others)))

    def heal(self) -> None:
        """End every partition."""
        self._partitions.clear()
        stalled, self._stalled = self._stalled, []
        for pipe in stalled:
            arrivals, pipe.stalled = pipe.stalled, 0
            for _ in range(arrivals):
                self._at(self._arrival(pipe, 0), self._on_stream_item, pipe)

    def _is_partitioned(self, pipe: _Pipe) -> bool:
        if not self._partitions:
            return False
        source, sink = pipe.names
        return any(
            (source in some and sink in others) or (sink in some and source in others)
            for some, others in self._partitions
        )

    # --- bytes in flight

    def _at(self, time: float, act: Callable[[Any], None], argument: object) -> None:
        self._count += 1
        heappush(self._heap, (time, self._count, act, argument))

    def _delay(self, pipe: _Pipe) -> float:
        low, high = pipe.faults.delay
        return low if low == high else low + self._random() * (high - low)

    def _arrival(self, pipe: _Pipe, size: int) -> float:
        """Return when `size` bytes that are sent now arrive: never before earlier bytes."""
        faults, now = pipe.faults, self.now
        leaves = (now if pipe.free_at < now else pipe.free_at) + size / faults.bandwidth
        low, high = faults.delay
        arrives = leaves + low if low == high else leaves + low + self._random() * (high - low)
        pipe.free_at = leaves
        if arrives > pipe.last:
            pipe.last = arrives
        return pipe.last

    def _send_stream(self, pipe: _Pipe, data: bytes | bytearray | memoryview) -> int:
        room, size = pipe.faults.buffer - pipe.in_flight, len(data)
        if size > room:
            pipe.waiting = True
            size = max(room, 0)
            data = memoryview(data)[:size]
        pipe.in_flight += size
        if size <= READ_BYTES and not pipe.faults.chunk:
            if size:
                self._put(pipe, bytes(data), size)
        else:
            for piece in self._pieces(bytes(data), pipe.faults.chunk):
                self._put(pipe, piece, len(piece))
        return size

    def _pieces(self, data: bytes, chunk: int) -> Iterator[bytes]:
        start = 0
        while start < len(data):
            size = 1 + int(self._random() * chunk) if chunk else READ_BYTES
            yield data[start : start + size]
            start += size

    def _put(self, pipe: _Pipe, item: object, size: int = 0) -> None:
        pipe.queue.append(item)
        self._at(self._arrival(pipe, size), self._on_stream_item, pipe)

    def _on_stream_item(self, pipe: _Pipe) -> None:
        """Deliver the next item of a stream."""
        if pipe.dead:
            return
        if self._is_partitioned(pipe):
            if not pipe.stalled:
                self._stalled.append(pipe)
            pipe.stalled += 1
            return
        item, sink = pipe.queue.popleft(), pipe.sink
        if pipe.vanishing or sink is None:
            return
        if item is END:
            sink._end()
        elif item is RESET:
            sink._break("the peer has closed the link")
        elif sink._broken is None:
            self._hand_over(pipe, sink, item)
        elif not sink._out.dead:
            self._put(sink._out, RESET)

    def _send_datagram(self, pipe: _Pipe, data: bytes) -> int:
        size, faults, chance = len(data), pipe.faults, self._random
        if pipe.in_flight and pipe.in_flight + size > faults.buffer:
            pipe.waiting = True
            return 0
        arrival = self._arrival(pipe, size)
        if faults.loss and chance() < faults.loss:
            self.lost += 1
            return size
        copies = 1
        if faults.duplication and chance() < faults.duplication:
            self.duplicated += 1
            copies = 2
        for _ in range(copies):
            at = arrival
            if faults.reordering and chance() < faults.reordering:
                self.reordered += 1
                at += chance() * faults.held_back
            pipe.in_flight += size
            self._at(at, self._on_datagram, (pipe, data))
        return size

    def _on_datagram(self, what: tuple[_Pipe, bytes]) -> None:
        pipe, data = what
        sink = pipe.sink
        if pipe.dead:
            return
        if sink is None or sink._broken is not None or pipe.vanishing or self._is_partitioned(pipe):
            self.lost += 1
            self._on_read(pipe, len(data))
        else:
            self._hand_over(pipe, sink, data)

    def _hand_over(self, pipe: _Pipe, sink: MemoryLink, data: bytes) -> None:
        if pipe.left is not None:
            data = data[: pipe.left]
            pipe.left -= len(data)
        if self.tap is not None:
            self.tap(sink, data)
        sink._inbox.append(data)
        _wake(sink)
        if pipe.left == 0:
            self._cut((sink, pipe.reset))

    def _on_read(self, pipe: _Pipe, size: int) -> None:
        pipe.in_flight -= size
        if pipe.waiting and not pipe.dead:
            pipe.waiting = False
            self._at(self.now + pipe.faults.delay[0], self._on_room, pipe)

    def _on_room(self, pipe: _Pipe) -> None:
        if pipe.source is not None and pipe.source._broken is None:
            _wake(pipe.source)


def _memory(link: TransportLink) -> MemoryLink:
    assert isinstance(link, MemoryLink), f"{link} is not a link of this network"
    return link
