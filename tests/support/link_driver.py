"""Drives links over real sockets: opens, shakes hands, receives, closes; also eclipse-zenoh nodes.

Knows no kind of link: a test file brings its own listen and connect. Every wait has a deadline.
"""

import json
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Generic, Protocol, TypeVar

import pytest

from tests.support.waiting import until_found
from zenlake.errors import LinkError
from zenlake.link.base import Listener, Progress, TransportLink
from zenlake.wire.batch import write_batch
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.init import Init
from zenlake.wire.zenohid import WireZenohId

DEADLINE = 60.0
TICK = 0.02  # Time that one look at a socket waits; no result depends on it.
INIT_SYN = write_batch([Init(WireZenohId.parse("a1a2a3a4"), WireWhatAmI.CLIENT)])


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T")
C = TypeVar("C", bound=Closable)
L = TypeVar("L", bound=TransportLink)


# --- opening


class LinkStage(Generic[L]):
    """Links and listeners that a test opens, closed at its end."""

    def __init__(self, kind: type[L]) -> None:
        self._kind = kind
        self._stack = ExitStack()

    def close(self) -> None:
        self._stack.close()

    def keep(self, opened: C) -> C:
        self._stack.callback(opened.close)
        return opened

    def accept(self, listener: Listener) -> L:
        link = self.keep(attempt_until_ready(listener.accept, listener.fileno()))
        assert isinstance(link, self._kind)
        return link

    def raw(self, listener: Listener) -> socket.socket:
        """A plain connection to a listener."""
        host, _, port = listener.locators[0].address.rpartition(":")
        return self.keep(socket.create_connection((host, int(port)), timeout=DEADLINE))

    def refused(self, listener: Listener, data: bytes) -> tuple[socket.socket, str]:
        """A plain connection that sends `data` and no more, and why its handshake failed."""
        raw = self.raw(listener)
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        accepted = self.accept(listener)
        (error,) = shake_hands(accepted)
        assert str(error).startswith(f"{accepted.remote}: "), error
        return raw, str(error)


# --- driving


def attempt_until_ready(attempt: Callable[[], T | None], descriptor: int) -> T:
    """Return the first result of `attempt` that is not None; wait for `descriptor` in between."""
    return until_found(attempt, pause=lambda: select.select([descriptor], [], [], TICK))


def shake_hands(*links: TransportLink) -> list[LinkError | None]:
    """Drive the handshakes until each is done or failed; what each failed with."""
    end = time.monotonic() + DEADLINE
    failed: dict[TransportLink, LinkError | None] = {}
    while len(failed) < len(links):
        assert time.monotonic() < end, f"a handshake goes on and on: {failed}"
        for link in links:
            if link not in failed:
                try:
                    if link.handshake() is Progress.DONE:
                        failed[link] = None
                except LinkError as error:
                    failed[link] = error
                    link.close()
        select.select([link for link in links if link not in failed], [], [], TICK)
    return [failed[link] for link in links]


def receive(link: TransportLink) -> bytes:
    return attempt_until_ready(link.receive, link.fileno())


def run_at_once(*works: Callable[[], None]) -> None:
    """Run each in a thread of its own, until all have ended without an error."""
    wrong: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE * 2)
    assert not wrong, wrong
    assert not [thread for thread in threads if thread.is_alive()]


# --- ends


def reset(sock: socket.socket) -> None:
    """Close so that the peer gets a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def close_for_good(link: TransportLink) -> None:
    """Close twice, after which nothing can be done with the link."""
    link.close()
    link.close()
    assert link.fileno() == -1
    with pytest.raises(LinkError):
        link.send(b"x")
    with pytest.raises(LinkError):
        link.receive()


def close_while_read(link: TransportLink) -> None:
    """Close while another thread reads, which must end that thread's reading with an error."""
    ended = threading.Event()

    def read() -> None:
        try:
            while link.receive() != b"":
                pass
        except LinkError:
            ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    link.close()
    reader.join(DEADLINE)
    assert ended.is_set()


# --- eclipse-zenoh

ECLIPSE_NODE = """
import json, sys, zenoh
config = zenoh.Config()
for key, value in json.loads(sys.argv[1]).items():
    config.insert_json5(key, json.dumps(value))
try:
    with zenoh.open(config):
        print("open", flush=True)
        sys.stdin.read()
except zenoh.ZError as error:
    print(error, flush=True)
"""


class EclipseNode:
    """An eclipse-zenoh node in a process of its own; `a__b=1` sets a/b of its configuration."""

    def __init__(self, stage: LinkStage[L], **settings: Any) -> None:
        keys = {
            "listen/endpoints": [],
            "scouting/multicast/enabled": False,
            "transport/shared_memory/enabled": False,
            "connect/timeout_ms": 20_000,
            "connect/exit_on_failure": True,
            **{name.replace("__", "/"): value for name, value in settings.items()},
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", ECLIPSE_NODE, json.dumps(keys)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stage.keep(self)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
