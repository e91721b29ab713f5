"""Processes that end or fork: they print nothing, give all back, and leave no segment behind."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.processes import python_environment
from tests.support.session_pairs import listening, publisher_for
from tests.support.shared_memory import remaining
from tests.support.waiting import until
from zenlake import CongestionControl
from zenlake.shm.arena import Arena

pytestmark = pytest.mark.process

SECONDS = 60.0
KEY = "shm/ends"
SIZE = 5000


def output_of(code: str, *arguments: object) -> list[str]:
    """Run a program that must print no error; return its lines."""
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout.splitlines()


# ---- children of a fork

CHILDREN = """
import multiprocessing, os, sys
from tests.support.shared_memory import mapped_segments, remaining
from zenlake.shm import ShmProvider

context = multiprocessing.get_context(sys.argv[1])

def work(ended, numbers):
    if ended:
        print("before", len(remaining(ended)))
    provider = ShmProvider.default_backend(65536)
    buffer = provider.alloc(1000)
    print("during", len(remaining(ended)))
    numbers.send(mapped_segments() - inherited)

inherited = set()
if __name__ == "__main__":
    if sys.argv[2] == "used":
        provider = ShmProvider.default_backend(65536)
        inherited = mapped_segments()
    ended = set()
    for _ in range(3):
        here, there = context.Pipe()
        child = context.Process(target=work, args=(ended, there))
        child.start()
        ended |= here.recv()
        child.join()
        assert child.exitcode == 0
    assert len(ended) == 6, ended
    print("after", len(remaining(ended)))
"""


@pytest.mark.parametrize("parent", ["used", "unused"])
def test_children_of_multiprocessing_leave_no_segments(parent: str) -> None:
    lines = output_of(CHILDREN, "fork", parent)
    assert lines == ["during 0", *["before 0", "during 0"] * 2, "after 0"]


FORKS = """
import os
from tests.support.shared_memory import mapped_segments, remaining
from zenlake.shm import ShmProvider

provider = ShmProvider.default_backend(65536)
first = provider.alloc(1000)
inherited, ended = mapped_segments(), set()
here, there = os.pipe()
for _ in range(4):
    child = os.fork()
    if not child:
        own = ShmProvider.default_backend(65536)
        buffer = own.alloc(1000)
        os.write(there, " ".join(map(str, mapped_segments() - inherited)).encode())
        os._exit(0)
    ended |= set(map(int, os.read(here, 1000).split()))
    os.waitpid(child, 0)
    print(len(ended), len(remaining(ended)), len(remaining(inherited)))
"""


def test_a_child_of_a_fork_removes_the_segments_of_children_that_ended_abruptly() -> None:
    """Its parent, which lives on, keeps its own."""
    assert output_of(FORKS) == ["2 2 2", "4 2 2", "6 2 2", "8 2 2"]


MADE_BEFORE = """
import gc, os, sys
import zenlake, zenlake.shm
from tests.support.session_pairs import dialling, publisher_for
from tests.support.waiting import until
from zenlake.shm.views import lease_of

provider = zenlake.shm.ShmProvider.default_backend(65536)
made = provider.alloc(5000)
made[:] = b"parent" * 833 + b"xx"
payload = zenlake.ZBytes(made)
header = lease_of(payload.buffer).buffer.header
del made
here, there = os.pipe()
child = os.fork()
if not child:
    try:
        os.read(here, 1)
        session = dialling(int(sys.argv[1]), transport__shared_memory__enabled=True)
        block = zenlake.CongestionControl.BLOCK
        publisher = publisher_for(session, "shm/ends", congestion_control=block)
        found = payload.as_shm()
        if sys.argv[2] == "reused":
            assert not found.is_valid()
            def put(what):
                session.put("shm/ends", what)
            calls = [
                (zenlake.ZBytes.to_bytes, payload), (zenlake.ZBytes.to_string, payload),
                (bytes, payload), (bytes, found), (str, found), (publisher.put, payload),
                (publisher.put, found), (put, payload), (put, found), (zenlake.ZBytes, found),
            ]
            for call, argument in calls:
                try:
                    call(argument)
                except zenlake.ZError as error:
                    assert "has deallocated its shared memory" in str(error), error
                else:
                    raise AssertionError(f"{call} read what was used again")
        else:
            assert found.is_valid()
            assert payload == b"parent" * 833 + b"xx"
            for _ in range(2):
                publisher.put(payload)
                publisher.put(found)
        publisher.put(b"end")
        session.close()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
if sys.argv[2] == "reused":
    del payload
    gc.collect()
    assert provider.garbage_collect()
    other = provider.alloc(5000)
    other[:] = b"secret" * 833 + b"yy"
before = header.references
os.write(there, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert header.references == before, (header.references, before)
"""


@pytest.mark.parametrize("fate", ["kept", "reused"])
def test_a_child_of_a_fork_copies_what_its_parent_made_and_reads_nothing_else(fate: str) -> None:
    heard: list[bytes] = []
    session, port = listening(transport__shared_memory__enabled=True)
    with session, session.declare_subscriber(KEY, lambda s: heard.append(bytes(s.payload))):
        output_of(MADE_BEFORE, port, fate)
        until(lambda: heard[-1:] == [b"end"])
        assert session.stats().dropped == {}
    content = b"parent" * 833 + b"xx"
    assert heard[:-1] == ([content] * 4 if fate == "kept" else [])


# ---- readers that keep samples

READER = """
import sys, threading, time
import zenlake
from tests.support.session_pairs import dialling
from zenlake.runtime import kernel_loader

kernel_loader.load()
kept = []
session = dialling(int(sys.argv[1]), transport__shared_memory__enabled=True)
subscriber = session.declare_subscriber("shm/ends", kept.append)
while len(kept) < 200:
    time.sleep(0.005)
match sys.argv[2]:
    case "first":
        payload = kept[0].payload
    case "all":
        payloads = [sample.payload for sample in kept]
    case "global":
        zenlake.kept = kept
    case "thread":
        def keep(samples):
            time.sleep(1000)
        threading.Thread(target=keep, args=(kept,), daemon=True).start()
        del kept
    case "closed":
        session.close()
"""


def references(pool: Arena) -> int:
    return sum(buffer.header.references for buffer in pool._busy)


@pytest.mark.parametrize("keeps", ["none", "first", "all", "global", "thread", "closed"])
def test_a_reader_that_ends_with_samples_prints_nothing_and_gives_them_back(keeps: str) -> None:
    session, port = listening(transport__shared_memory__enabled=True)
    with session, output_in_background(READER, port, keeps) as reader:
        publisher = publisher_for(session, KEY, congestion_control=CongestionControl.BLOCK)
        for number in range(200):
            publisher.put(bytes([number]) * SIZE)
        out, err = reader.communicate(timeout=SECONDS)
        assert (reader.returncode, out, err) == (0, "", "")
        node = session._core.exchange.node.shm
        assert node is not None
        assert node.pool is not None
        assert references(node.pool) == 0


@contextmanager
def output_in_background(code: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# ---- processes that have shared nothing yet

IDLE = """
import sys, time
from tests.support.session_pairs import dialling
from tests.support.waiting import until

with dialling(int(sys.argv[1]), transport__shared_memory__enabled=True) as session:
    until(lambda: [transport.is_shm for transport in session.info.transports()] == [True])
    print("open", flush=True)
    time.sleep(1000)
"""


def test_a_process_that_has_shared_nothing_ends_by_its_interruption() -> None:
    """It compiles nothing at its end: what an import runs makes Python forget the signal."""
    session, port = listening(transport__shared_memory__enabled=True)
    with session, output_in_background(IDLE, port) as idle:
        assert idle.stdout is not None
        assert idle.stdout.readline() == "open\n"
        idle.send_signal(signal.SIGINT)
        _, err = idle.communicate(timeout=SECONDS)
        assert idle.returncode == -signal.SIGINT
        assert err.endswith("KeyboardInterrupt\n")


# ---- writers that are killed

WRITER = """
import sys, time
import zenlake
from tests.support.session_pairs import dialling, publisher_for

session = dialling(int(sys.argv[1]), transport__shared_memory__enabled=True)
publisher = publisher_for(session, "shm/ends")
while True:
    publisher.put(bytes(5000))
    time.sleep(0.005)
"""
READER_OF_KILLED = """
import gc, subprocess, sys
from tests.support.session_pairs import listening
from tests.support.shared_memory import mapped_segments, remaining
from tests.support.waiting import until

WRITER, how = sys.argv[1:]
kept = []
session, port = listening(transport__shared_memory__enabled=True)
subscriber = session.declare_subscriber("shm/ends", kept.append)
writer = subprocess.Popen([sys.executable, "-c", WRITER, str(port)])
until(lambda: sum(sample.payload.as_shm() is not None for sample in kept) > 5)
of_writer = mapped_segments(writer.pid) & mapped_segments()
writer.kill()
writer.wait()
until(lambda: not session.info.transports())
print(*of_writer)
assert len(remaining(of_writer)) >= 2
if how == "clear, close":
    kept.clear()
    gc.collect()
    session.close()

    def left():  # Without samples that the callback was still about to get.
        kept.clear()
        gc.collect()
        return remaining(of_writer)

    until(left, lambda left: not left)
elif how == "close, clear":
    session.close()
    kept.clear()
    gc.collect()
elif how == "close":
    session.close()
"""


@pytest.mark.parametrize("how", ["clear, close", "close, clear", "close", "nothing"])
def test_a_reader_that_ends_removes_the_segments_of_a_killed_writer(how: str) -> None:
    (line,) = output_of(READER_OF_KILLED, WRITER, how)
    assert not remaining({int(word) for word in line.split()})
