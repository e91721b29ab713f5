"""A TCP proxy on loopback that breaks what passes through it, at an exact byte or moment.

Knows bytes and directions: `up` is from the connecting side to the target, `down` the other way.
Knows nothing of what the bytes mean. One thread, gone when the `with` ends.
"""

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

BUFFER_BYTES = 64 * 1024  # Buffer per socket, and most bytes that one direction holds back.
CHUNK_BYTES = 16 * 1024
TICK_SECONDS = 0.005  # Pause between two looks at delayed or throttled bytes.
JOIN_SECONDS = 10.0
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST


@dataclass
class Way:
    """Faults for the bytes of one direction, of every connection."""

    cut_at: int | None = None
    "Close both ends after this many bytes of a connection."
    swallow: bool = False
    "Take the bytes and pass none on: the peer is gone without a CLOSE."
    paused: bool = False
    "Take nothing: the bytes wait in the sender."
    bytes_per_second: float | None = None
    delay: float = 0.0
    passed: int = 0
    "Bytes that were passed on, of all connections."


@dataclass(eq=False)
class _Pipe:
    """One direction of one connection."""

    way: Way
    source: socket.socket
    sink: socket.socket
    held: deque[tuple[float, bytes]] = field(default_factory=deque)
    held_bytes: int = 0
    passed: int = 0
    finished: bool = False
    "Its source has ended; a way that swallows does not pass that on either."
    ended: bool = False
    allowance: float = 0.0
    counted_at: float = 0.0


class FaultProxy:
    """Passes connections on to `target`, a port of this machine."""

    def __init__(self, target: int) -> None:
        self.up, self.down = Way(), Way()
        self.accepted = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.locator = f"tcp/127.0.0.1:{self.port}"
        self._pipes: list[_Pipe] = []
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping = True
        self._wake()
        self._thread.join(JOIN_SECONDS)
        assert not self._thread.is_alive()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # ---- faults, from any thread

    def set(self, *, up: Way | None = None, down: Way | None = None) -> None:
        """Have other faults from now on; what is not given stays."""
        with self._lock:
            for pipe in self._pipes:
                if up is not None and pipe.way is self.up:
                    pipe.way = up
                elif down is not None and pipe.way is self.down:
                    pipe.way = down
            self.up, self.down = up or self.up, down or self.down
        self._wake()

    def restore(self) -> None:
        """No faults any more, for the connections that are there too."""
        self.set(up=Way(), down=Way())

    def half_open(self) -> None:
        self.set(up=Way(swallow=True), down=Way(swallow=True))

    def pause(self) -> None:
        self.set(up=Way(paused=True), down=Way(paused=True))

    def reset(self, *, restore: bool = False) -> None:
        """Break every connection that is there now, with RST; with `restore`, further ones have no
        faults, however soon they come."""
        with self._lock:
            if restore:
                self.up, self.down = Way(), Way()
            for pipe in self._pipes:
                pipe.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                pipe.ended = True
                pipe.held.clear()
        self._wake()

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._pipes) // 2

    def _wake(self) -> None:
        os.write(self._wake_write, b"x")

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wait()
                with self._lock:
                    self._accept()
                    for pipe in list(self._pipes):
                        self._carry(pipe)
                    self._close_ended()
        finally:
            for pipe in self._pipes:
                pipe.source.close()
            self._listener.close()

    def _wait(self) -> None:
        with self._lock, selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            interest: dict[socket.socket, int] = {}
            timed = False
            for pipe in self._pipes:
                if self._wants(pipe):
                    interest[pipe.source] = interest.get(pipe.source, 0) | selectors.EVENT_READ
                if pipe.held and (pipe.way.delay or pipe.way.bytes_per_second):
                    timed = True
                elif pipe.held:
                    interest[pipe.sink] = interest.get(pipe.sink, 0) | selectors.EVENT_WRITE
            for sock, events in interest.items():
                selector.register(sock, events)
            self._lock.release()
            try:
                ready = selector.select(TICK_SECONDS if timed else None)
            finally:
                self._lock.acquire()
            if any(key.fileobj == self._wake_read for key, _ in ready):
                os.read(self._wake_read, 4096)

    def _wants(self, pipe: _Pipe) -> bool:
        over = pipe.finished or pipe.ended
        return not pipe.way.paused and not over and pipe.held_bytes < BUFFER_BYTES

    def _accept(self) -> None:
        try:
            source, _ = self._listener.accept()
        except BlockingIOError:
            return
        sink = socket.socket()
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        try:
            sink.connect(("127.0.0.1", self._target))
        except OSError:  # no listener: as a refused connection would end
            source.close()
            sink.close()
            return
        self.accepted += 1
        for sock in (source, sink):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        now = time.monotonic()
        self._pipes.append(_Pipe(self.up, source, sink, counted_at=now))
        self._pipes.append(_Pipe(self.down, sink, source, counted_at=now))

    def _carry(self, pipe: _Pipe) -> None:
        now = time.monotonic()
        if self._wants(pipe):
            try:
                data = pipe.source.recv(CHUNK_BYTES)
                if not data:
                    pipe.finished = True
                elif not pipe.way.swallow:
                    pipe.held.append((now + pipe.way.delay, data))
                    pipe.held_bytes += len(data)
            except BlockingIOError:
                pass
            except OSError:
                pipe.finished = True
        if pipe.finished and not pipe.way.swallow:
            pipe.ended = True
        self._pass_on(pipe, now)

    def _pass_on(self, pipe: _Pipe, now: float) -> None:
        way = pipe.way
        rate = way.bytes_per_second
        if rate is not None:
            more = (now - pipe.counted_at) * rate
            pipe.allowance = min(pipe.allowance + more, max(rate / 10, 1.0))
        pipe.counted_at = now
        if way.swallow:
            pipe.held.clear()
            pipe.held_bytes = 0
        if way.cut_at is not None and pipe.passed >= way.cut_at:
            self._cut(pipe)
        while pipe.held and pipe.held[0][0] <= now and not way.paused:
            due, data = pipe.held.popleft()
            size = len(data)
            if rate is not None:
                size = min(size, int(pipe.allowance))
            if way.cut_at is not None:
                size = min(size, way.cut_at - pipe.passed)
            sent = self._send(pipe, data[:size]) if size else 0
            pipe.allowance -= sent
            pipe.passed += sent
            way.passed += sent
            pipe.held_bytes -= sent
            if sent < len(data):
                pipe.held.appendleft((due, data[sent:]))
            if way.cut_at is not None and pipe.passed >= way.cut_at:
                self._cut(pipe)
            if sent < len(data):
                return

    def _send(self, pipe: _Pipe, data: bytes) -> int:
        try:
            return pipe.sink.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._cut(pipe)
            return 0

    def _cut(self, pipe: _Pipe) -> None:
        pipe.ended = True
        pipe.held.clear()
        pipe.held_bytes = 0

    def _close_ended(self) -> None:
        """Close both ends of a connection when either way is at its end and empty."""
        over = {
            frozenset((pipe.source, pipe.sink))
            for pipe in self._pipes
            if pipe.ended and not pipe.held
        }
        for pipe in list(self._pipes):
            if frozenset((pipe.source, pipe.sink)) in over:
                self._pipes.remove(pipe)
                with contextlib.suppress(OSError):
                    pipe.source.close()
