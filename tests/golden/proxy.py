"""Taps that listen to two nodes on loopback and note each batch: TCP, UDP and multicast.

Knows sockets, threads and length prefixes; knows nothing of zenoh's messages.
"""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from tests.golden.vectors import HANDSHAKE_BATCHES

LOOPBACK = "127.0.0.1"
TICK = 0.1
"""Seconds a thread blocks before it looks whether it shall end."""
JOIN_WITHIN = 5.0
READ_SIZE = 65536


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port of 127.0.0.1 that nobody uses at this moment."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class Tape:
    """Bytes that were heard, in order; written by the taps' threads, read by the scenario."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: list[tuple[str, bytes]] = []
        self._remarks: list[str] = []
        self._last = time.monotonic()

    def add(self, sender: str, batch: bytes) -> None:
        with self._lock:
            self._batches.append((sender, batch))
            self._last = time.monotonic()

    def remark(self, text: str) -> None:
        with self._lock:
            self._remarks.append(text)

    def batches(self) -> list[tuple[str, bytes]]:
        with self._lock:
            return list(self._batches)

    def remarks(self) -> list[str]:
        with self._lock:
            return list(self._remarks)

    def settle(self, quiet: float = 0.06, within: float = 5.0) -> None:
        """Wait until nothing was heard for `quiet` seconds, at most `within`."""
        start = time.monotonic()
        while True:
            now = time.monotonic()
            with self._lock:
                idle = now - max(self._last, start)
            if idle >= quiet or now - start >= within:
                return
            time.sleep(min(0.01, quiet))

    def wait(self, heard: Callable[[list[tuple[str, bytes]]], bool], within: float = 5.0) -> None:
        """Wait until `heard(batches)`; TimeoutError after `within` seconds."""
        end = time.monotonic() + within
        while not heard(self.batches()):
            if time.monotonic() > end:
                raise TimeoutError(f"not heard within {within} s; last {self.batches()[-3:]}")
            time.sleep(0.01)


class Cutter:
    """Cuts one direction of a stream into batches."""

    def __init__(self, wide: bool) -> None:
        self._wide = wide
        self._seen = 0
        self.rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self.rest += data
        batches: list[bytes] = []
        while True:
            prefix = 4 if self._wide and self._seen >= HANDSHAKE_BATCHES else 2
            size = int.from_bytes(self.rest[:prefix], "little")
            if len(self.rest) < prefix + size:
                return batches
            batches.append(bytes(self.rest[prefix : prefix + size]))
            del self.rest[: prefix + size]
            self._seen += 1


class Tap:
    """A thread between sockets, ended by `close`."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="golden-tap")
        self._threads.append(thread)
        thread.start()

    def own(self, sock: socket.socket) -> socket.socket:
        self._sockets.append(sock)
        return sock

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_WITHIN)
        for sock in self._sockets:
            sock.close()
        if any(thread.is_alive() for thread in self._threads):
            raise TimeoutError("a tap's thread did not end")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class TcpTap(Tap):
    """A proxy for one connection: A dials `port`, B listens on the target port."""

    def __init__(self, tape: Tape, target: int, *, wide: bool = False, buffer: int = 0) -> None:
        super().__init__(tape)
        self._target = target
        self._wide = wide
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = self.own(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        if buffer:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._listener.bind((LOOPBACK, 0))
        self._listener.listen(1)
        self._listener.settimeout(TICK)
        self.port: int = self._listener.getsockname()[1]
        self.start(self._accept)

    def pause(self) -> None:
        """Leave A's bytes in its socket, as a slow reader does."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                front, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.own(front)
            self._listener.close()
            back = self.own(socket.create_connection((LOOPBACK, self._target), timeout=5))
            for sock in (front, back):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(TICK)
            self.start(partial(self._pump, "A", front, back))
            self.start(partial(self._pump, "B", back, front))
            return

    def _pump(self, sender: str, source: socket.socket, sink: socket.socket) -> None:
        cutter = Cutter(self._wide)
        while not self._stop.is_set():
            if sender == "A" and not self._flowing.wait(TICK):
                continue
            try:
                data = source.recv(READ_SIZE)
            except TimeoutError:
                continue
            except OSError:
                break
            for batch in cutter.feed(data):
                self.tape.add(sender, batch)
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    break
                sink.settimeout(5)
                sink.sendall(data)
                sink.settimeout(TICK)
            except OSError:
                break
        if cutter.rest:
            self.tape.remark(f"left over at the end of {sender}'s stream: {cutter.rest.hex()}")


class UdpTap(Tap):
    """A proxy for one UDP conversation: A sends to `port`, B listens on the target port.

    Datagrams for which `loses` is true are noted and not passed on.
    """

    def __init__(
        self, tape: Tape, target: int, loses: Callable[[bytes], bool] = lambda data: False
    ) -> None:
        super().__init__(tape)
        self._loses = loses
        self._front = self.own(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._back = self.own(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._front.bind((LOOPBACK, 0))
        self._back.connect((LOOPBACK, target))
        self.port: int = self._front.getsockname()[1]
        self.start(self._run)

    def _run(self) -> None:
        dialler: tuple[str, int] | None = None
        while not self._stop.is_set():
            ready, _, _ = select.select([self._front, self._back], [], [], TICK)
            with contextlib.suppress(OSError):
                if self._front in ready:
                    data, dialler = self._front.recvfrom(READ_SIZE)
                    self.tape.add("A", data)
                    if not self._loses(data):
                        self._back.send(data)
                if self._back in ready:
                    data = self._back.recv(READ_SIZE)
                    self.tape.add("B", data)
                    if dialler is not None and not self._loses(data):
                        self._front.sendto(data, dialler)


def group_socket(group: str, port: int) -> socket.socket:
    """A socket that hears a multicast group on the loopback interface alone."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((group, port))
    member = struct.pack("4s4s", socket.inet_aton(group), socket.inet_aton(LOOPBACK))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    sock.settimeout(TICK)
    return sock


def group_sender() -> socket.socket:
    """A socket whose multicast leaves through the loopback interface and goes no further."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((LOOPBACK, 0))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
    return sock


class GroupTap(Tap):
    """Hears a multicast group; `name(address, datagram)` says who sent it, "" for nobody."""

    def __init__(
        self, tape: Tape, group: str, port: int, name: Callable[[tuple[str, int], bytes], str]
    ) -> None:
        super().__init__(tape)
        self._name = name
        self._sock = self.own(group_socket(group, port))
        self.start(self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                data, address = self._sock.recvfrom(READ_SIZE)
            except TimeoutError:
                continue
            sender = self._name(address, data)
            if sender:
                self.tape.add(sender, data)
