"""A recorder whose process is killed at any moment loses nothing that it said was durable.

ZENLAKE_FULL=1: 1,000 kills instead of 100. Run as a process it forks the recorders: all is loaded
once, and each opens the log after the fork.
"""

import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.golden.proxy import free_port
from tests.support.log_recording import Lanes, put, rows
from tests.support.numbered_samples import FULL
from tests.support.processes import call_command, python_environment
from tests.support.session_pairs import configured
from zenlake.errors import LinkError
from zenlake.log.read.log import Log
from zenlake.log.write.recorder import Recorder
from zenlake.runtime import kernel_loader
from zenlake.wire.batch import read_batch
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing, split
from zenlake.wire.query import WireQuery
from zenlake.wire.reply import WireReply
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

pytestmark = [pytest.mark.process, pytest.mark.campaign]

KILLS = 1000 if FULL else 100
SEED = 20
EARLY = 0.15  # Share of recorders that die before they receive anything.
MAX_EARLY_SECONDS, MAX_SECONDS = 0.03, 0.08
ROTATE_BYTES = 256 << 10
WAIT_SECONDS = 30.0
COMPILE_SECONDS = 240.0  # Longest wait for kernels that are compiled, on a busy machine.
OPENS = 3  # Attempts: another process may take the port that was free.
_HEAD = struct.Struct("<II")


# ---- in the process that forks


def serve(path: str) -> None:
    """A recorder for each line that comes; says who it is, where it listens, and how it ended."""
    kernel_loader.load()
    say("loaded")
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            record(path)
        say(f"forked {pid}")
        _, status = os.waitpid(pid, 0)
        say(f"ended {status}")


def record(path: str) -> None:
    try:
        say(f"listens {listen(path)}")
        while True:
            signal.pause()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test has to hear of it
        say(f"failed {error!r}")
    os._exit(1)


def listen(path: str) -> int:
    """Opens the recorder; gives its port."""
    for _ in range(OPENS):
        port = free_port()
        config = configured(listen__endpoints=[f"tcp/127.0.0.1:{port}"])
        with suppress(LinkError):
            Recorder(path, "rec/**", config=config, rotate_bytes=ROTATE_BYTES, sync_seconds=0.001)
            return port
    raise AssertionError("no port is free")


def say(words: str) -> None:
    os.write(1, words.encode() + b"\n")


class Forker:
    """That process, seen from the test."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            call_command("tests.log.test_recorder_kill", "serve", str(path)),
            env=python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._unread = b""
        self._told: dict[str, str] = {}
        self._recorder: int | None = None

    def start(self) -> int:
        """The process id of a recorder that is being opened."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self._recorder = int(self.told("forked"))
        return self._recorder

    def told(self, what: str, within: float = WAIT_SECONDS) -> str:
        """Return the text after that word in the output, in whatever order lines arrive."""
        assert self._process.stdout is not None
        end = time.monotonic() + within
        while what not in self._told:
            ready, _, _ = select.select([self._process.stdout], [], [], end - time.monotonic())
            assert ready, f"not told within {within:g} s: {what}"
            data = os.read(self._process.stdout.fileno(), 4096)
            assert data, "the process that forks has ended"
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                word, _, rest = line.decode().partition(" ")
                assert word != "failed", rest
                self._told[word] = rest
        return self._told.pop(what)

    def ended(self) -> int:
        """The signal that ended the recorder."""
        status = int(self.told("ended"))
        self._told.clear()
        self._recorder = None
        return os.WTERMSIG(status)

    def close(self) -> None:
        if self._recorder is not None:
            os.kill(self._recorder, signal.SIGKILL)
        self._process.communicate(timeout=WAIT_SECONDS)
        assert self._process.returncode == 0


@contextmanager
def forking(path: Path) -> Iterator[Forker]:
    forker = Forker(path)
    try:
        forker.told("loaded", COMPILE_SECONDS)
        yield forker
    finally:
        forker.close()


# ---- who publishes, and keeps account


def payload(trial: int, number: int) -> bytes:
    return _HEAD.pack(trial, number) + bytes((number * 7 + trial) % 251 for _ in range(number % 90))


class Publisher(Lanes):
    """Numbered samples, and queries for how far they are durable."""

    def __init__(self, port: int, trial: int) -> None:
        super().__init__(port, WireZenohId((trial + 1).to_bytes(4, "little")), qos=False)
        self.trial = trial
        self.put = 0
        self.acknowledged = 0
        self._asked: dict[int, int] = {}

    def publish(self, count: int) -> None:
        some = range(self.put, self.put + count)
        self.send(*(put(f"rec/{n % 5}", payload(self.trial, n)) for n in some))
        self.put += count

    def ask(self) -> None:
        number = len(self._asked) + 1
        self._asked[number] = self.put
        key = WireExpr(0, "@/*/*/recorder/**")
        self.send(Request(number, key, WireQuery(parameters="durable"), timeout_ms=10_000))

    def hear(self, wait: float) -> bool:
        """Answers that are here within `wait` seconds; False: no more come."""
        if not select.select([self._socket], [], [], wait)[0]:
            return True
        try:
            data = self._socket.recv(65536)
        except ConnectionError:
            return False
        self._buffer += data
        end = 0
        for start, end in split(self._buffer, Framing.STREAM):
            for message in read_batch(self._buffer[start:end]):
                for said in message.messages if isinstance(message, Frame) else ():
                    if isinstance(said, Response):
                        assert isinstance(said.body, WireReply), said
                        self.acknowledged = max(self.acknowledged, self._asked[said.request_id])
        self._buffer = self._buffer[end:]
        return bool(data)


def publish_until(link: Publisher, end: float, chance: random.Random) -> None:
    while (left := end - time.monotonic()) > 0:
        link.publish(chance.choice((1, 2, 10, 100)))
        if chance.random() < 0.5:
            link.ask()
        link.hear(min(left, chance.choice((0.0, 0.0, 0.005))))


def check(path: Path, base: int, trial: int, acknowledged: int) -> int:
    """All of a trial that was acknowledged is there, once and in order; gives where it ends."""
    found = rows(path, start=base)
    assert [row["offset"] for row in found] == list(range(base, base + len(found)))
    assert [row["payload"] for row in found] == [payload(trial, n) for n in range(len(found))]
    assert [row["key"] for row in found] == [f"rec/{n % 5}" for n in range(len(found))]
    assert len(found) >= acknowledged
    return base + len(found)


def test_a_recorder_that_is_killed(tmp_path: Path) -> None:
    path, chance = tmp_path / "log", random.Random(SEED)
    base = acknowledged = heard = 0
    with forking(path) as forker:
        for trial in range(KILLS):
            pid = forker.start()
            link = None
            if chance.random() < EARLY:
                time.sleep(chance.uniform(0, MAX_EARLY_SECONDS))  # not to wait for anything
                os.kill(pid, signal.SIGKILL)
            else:
                link = Publisher(int(forker.told("listens")), trial)
                publish_until(link, time.monotonic() + chance.uniform(0, MAX_SECONDS), chance)
                os.kill(pid, signal.SIGKILL)
                end = time.monotonic() + WAIT_SECONDS
                while link.hear(max(0.0, end - time.monotonic())):
                    assert time.monotonic() < end
                link.abandon()
            assert forker.ended() == signal.SIGKILL
            if link is None:
                continue
            base = check(path, base, trial, link.acknowledged)
            acknowledged += link.acknowledged
            heard += link.acknowledged > 0
    assert heard > KILLS / 5, "hardly any recorder acknowledged anything"
    assert Log(path).mark(0).offset == base
    assert Log(path).verify().ok
    assert base >= acknowledged > 0
    with Recorder(path, "rec/**", config=configured()) as recorder:
        recorder.session.put("rec/a", b"and on")
        assert recorder.durable(WAIT_SECONDS).offset == base + 1
