"""Shared memory when a process is killed, stopped or has another /dev/shm: the others go on."""

import gc
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import zenlake
from tests.golden.proxy import free_port
from tests.support.interop_pair import OURS, THEIRS, open_session
from tests.support.namespaces import need_tools
from tests.support.processes import python_environment
from tests.support.shared_memory import mapped_segments, remaining
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.process]

MIB = 1 << 20
SHM = "transport/shared_memory"
SETTINGS = {
    f"{SHM}/enabled": True,
    f"{SHM}/mode": "init",
    f"{SHM}/transport_optimization/pool_size": 4 * MIB,
}
KEY = "kill"
SECONDS = 60.0
PAYLOAD = bytes(range(256)) * 4096

PEER = """
import importlib, sys, time
from tests.interop.test_shm_kills import KEY, PAYLOAD, SETTINGS
from tests.support.interop_pair import open_session
api = importlib.import_module(sys.argv[1])
session = open_session(api, "peer", connect=(sys.argv[2],), settings=SETTINGS)
def say(*words):
    print(*words, flush=True)
"""
READER = """
kept = []
def keep(sample):
    assert bytes(sample.payload) == PAYLOAD
    kept.append(sample)
    say("shared" if sample.payload.as_shm() is not None else "copied")
sub = session.declare_subscriber(KEY, keep)
say("ready", [transport.is_shm for transport in session.info.transports()])
sys.stdin.read()
"""
WRITER = """
pub = session.declare_publisher(KEY, congestion_control=api.CongestionControl.BLOCK)
say("ready", [transport.is_shm for transport in session.info.transports()])
while True:
    pub.put(PAYLOAD)
    time.sleep(0.02)
"""


class Child:
    """A session of either implementation in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.ready = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)


@contextmanager
def child(api: Any, at: str, code: str, *before: str) -> Iterator[Child]:
    with subprocess.Popen(
        [*before, sys.executable, "-c", PEER + code, api.__name__, at],
        env=python_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Child(process)
        finally:
            process.kill()


@contextmanager
def listening(api: Any) -> Iterator[tuple[Any, str]]:
    at = f"tcp/127.0.0.1:{free_port()}"
    with open_session(api, "peer", listen=at, settings=SETTINGS) as session:
        yield session, at


def put_shared(publisher: Any, reader: Child) -> bool:
    publisher.put(PAYLOAD)
    return reader.line() == "shared"


PAIRS = {"ours to theirs": (OURS, THEIRS), "theirs to ours": (THEIRS, OURS), "ours": (OURS, OURS)}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_killed_reader_costs_its_buffers_for_a_moment(pair: str) -> None:
    sends, reads = PAIRS[pair]
    with listening(sends) as (session, at):
        publisher = session.declare_publisher(KEY, congestion_control=sends.CongestionControl.BLOCK)
        for _ in range(3):
            with child(reads, at, READER) as reader:
                assert reader.ready == "ready [True]"
                until(lambda: publisher.matching_status.matching)
                until(lambda: put_shared(publisher, reader))
                for _ in range(5):  # It keeps them all, and so the pool is full.
                    put_shared(publisher, reader)
                reader.kill()
            until(lambda: not publisher.matching_status.matching)


def test_a_stopped_reader_loses_buffers_and_goes_on() -> None:
    with listening(OURS) as (session, at), child(THEIRS, at, READER) as reader:
        publisher = session.declare_publisher(KEY)
        until(lambda: publisher.matching_status.matching)
        assert put_shared(publisher, reader)
        reader.process.send_signal(signal.SIGSTOP)
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            publisher.put(PAYLOAD)
            time.sleep(0.05)
        reader.process.send_signal(signal.SIGCONT)
        until(lambda: put_shared(publisher, reader))
        assert len(session.info.transports()) == 1


@pytest.mark.parametrize("api", [OURS, THEIRS])
def test_a_killed_writer_leaves_readers_that_go_on(api: Any) -> None:
    heard: list[Any] = []
    with listening(OURS) as (session, at), session.declare_subscriber(KEY, heard.append):
        for _ in range(3):
            heard.clear()
            with child(api, at, WRITER) as writer:
                assert writer.ready == "ready [True]"
                until(lambda: any(sample.payload.as_shm() is not None for sample in heard))
                of_writer = mapped_segments(writer.process.pid) & mapped_segments()
                assert of_writer
                writer.kill()
            until(lambda: not session.info.transports())
            for sample in heard:
                assert len(bytes(sample.payload)) == len(PAYLOAD)
            del sample
            heard.clear()
            gc.collect()
        with child(OURS, at, WRITER):  # Its start removes what killed processes have left.
            until(lambda: heard)
        heard.clear()
    until(lambda: (gc.collect(), remaining(of_writer))[1], lambda left: not left)


ELSEWHERE = ("unshare", "-m", "--propagation", "private", "sh", "-c",
             'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_another_dev_shm_means_the_network(pair: str) -> None:
    need_tools("mounts of a test's own", "unshare")
    sends, reads = PAIRS[pair]
    with listening(sends) as (session, at), child(reads, at, READER, *ELSEWHERE) as reader:
        assert reader.ready == "ready [False]"
        publisher = session.declare_publisher(KEY)
        until(lambda: publisher.matching_status.matching)
        for _ in range(3):
            assert not put_shared(publisher, reader)
        (transport,) = session.info.transports()
        assert not transport.is_shm
        if sends is OURS:
            assert (
                "No such file" in transport.shm_declined or "cannot read" in transport.shm_declined
            )


def test_without_llvmlite_payloads_take_the_network() -> None:
    without = "import sys; sys.modules['llvmlite'] = None\n" + PEER + READER
    with (
        listening(THEIRS) as (session, at),
        subprocess.Popen(
            [sys.executable, "-c", without, "zenlake", at],
            env=python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            reader = Child(process)
            assert reader.ready == "ready [False]"
            publisher = session.declare_publisher(KEY)
            until(lambda: publisher.matching_status.matching)
            for _ in range(3):
                assert not put_shared(publisher, reader)
        finally:
            process.kill()


BROKEN = """
import sys
class Broken:
    def find_spec(self, name, *_):
        if name == "llvmlite.binding":
            raise OSError("libllvmlite.so: cannot open shared object file")
sys.meta_path.insert(0, Broken())
"""
TWO_WAYS = """
sub = session.declare_subscriber(KEY, lambda sample: session.put(KEY + "/back", b"got"))
say("ready")
for line in sys.stdin:
    session.put(KEY + "/back", PAYLOAD)
    try:
        api.shm.ShmProvider.default_backend(4096)
    except api.ZError as error:
        say(error)
    say([transport.shm_declined for transport in session.info.transports()])
"""


def test_with_a_broken_llvmlite_payloads_take_the_network() -> None:
    with (
        listening(THEIRS) as (session, at),
        subprocess.Popen(
            [sys.executable, "-c", BROKEN + PEER + TWO_WAYS, "zenlake", at],
            env=python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            peer = Child(process)
            assert peer.ready == "ready"
            assert process.stdin is not None
            back: list[bytes] = []
            sub = session.declare_subscriber(
                f"{KEY}/back", lambda sample: back.append(sample.payload.to_bytes())
            )
            publisher = session.declare_publisher(KEY)
            until(lambda: publisher.matching_status.matching)

            def is_received() -> bool:
                publisher.put(PAYLOAD)
                return b"got" in back

            # The session ends by the first pointer, and opens again without shared memory.
            until(is_received, pause=lambda: time.sleep(0.2))
            process.stdin.write("put\n")
            process.stdin.flush()
            until(lambda: PAYLOAD in back)
            assert "llvmlite does not load" in peer.line()
            assert "llvmlite does not load" in peer.line()
            sub.undeclare()
        finally:
            process.kill()


LAST_WORDS = """
pub = session.declare_publisher(KEY, congestion_control=api.CongestionControl.BLOCK)
while not pub.matching_status.matching:
    time.sleep(0.01)
pub.put(PAYLOAD)
session.close()
say("closed")
"""


@pytest.mark.parametrize("reads", [OURS, THEIRS])
def test_the_last_put_before_closing_arrives(reads: Any) -> None:
    """Though the sender removes its memory at once."""
    heard: list[bytes] = []
    with (
        listening(reads) as (session, at),
        session.declare_subscriber(KEY, lambda sample: heard.append(bytes(sample.payload))),
    ):
        for number in range(1, 6):
            with child(OURS, at, LAST_WORDS) as writer:
                assert writer.ready == "closed"
                until(lambda: len(heard) == number)  # noqa: B023
    assert heard == [PAYLOAD] * 5


def test_many_puts_and_sessions_leave_counters_maps_and_buffers_flat() -> None:
    heard = [0]

    def count(_: Any) -> None:
        heard[0] += 1

    with listening(OURS) as (session, at), session.declare_subscriber(KEY, count):

        def talk(puts: int) -> None:
            before = heard[0]
            with open_session(OURS, "peer", connect=(at,), settings=SETTINGS) as other:
                publisher = other.declare_publisher(
                    KEY, congestion_control=OURS.CongestionControl.BLOCK
                )
                until(lambda: publisher.matching_status.matching)
                for _ in range(puts):
                    publisher.put(PAYLOAD[:5000])
                until(lambda: heard[0] == before + puts)
            until(lambda: not session.info.transports())

        talk(10)
        gc.collect()
        before = mapped_segments()
        talk(10_000)
        for _ in range(100):
            talk(3)
        gc.collect()
        until(lambda: len(mapped_segments()), lambda found: found <= len(before) + 2)
        assert not session.stats().dropped
    assert zenlake.shm is not None
