"""Payloads of processes that end: the last sample of each arrives, and is readable later, too."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.golden.proxy import free_port
from tests.support.interop_pair import OURS, THEIRS, open_session
from tests.support.processes import python_environment
from tests.support.waiting import until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.process,
    pytest.mark.usefixtures("nothing_logged_as_error"),
]

KEY = "shm/last"
SETTINGS = {"transport/shared_memory/enabled": True, "transport/shared_memory/mode": "init"}
SECONDS = 60.0
PUTS = 3

WRITER = """
import importlib, sys
from tests.interop.test_shm_ends import KEY, PUTS, SETTINGS, content, ready_key
from tests.support.interop_pair import open_session
from tests.support.waiting import until

api = importlib.import_module(sys.argv[1])

def main():
    with open_session(api, "peer", connect=sys.argv[3:], settings=SETTINGS) as session:
        provider = api.shm.ShmProvider.default_backend(1 << 20)
        publisher = session.declare_publisher(
            KEY, congestion_control=api.CongestionControl.BLOCK
        )
        for endpoint in sys.argv[3:]:
            ready = session.declare_publisher(ready_key(endpoint))
            until(lambda: ready.matching_status.matching)
        until(lambda: publisher.matching_status.matching)
        for number in range(PUTS):
            buffer = provider.alloc(10_000)
            buffer[:] = content(int(sys.argv[2]), number)
            publisher.put(buffer)
            del buffer
        sys.stdin.read()  # Until all were received.

main()
"""
READER = """
import sys
from tests.interop.test_shm_ends import KEY, SETTINGS, ready_key
from tests.support.interop_pair import OURS, open_session
from tests.support.waiting import until

kept = []
with open_session(OURS, "peer", listen=sys.argv[1], settings=SETTINGS) as session:
    subscriber = session.declare_subscriber(KEY, kept.append)
    ready = session.declare_subscriber(ready_key(sys.argv[1]))
    print("ready", flush=True)
    for expected in sys.stdin:
        until(lambda: len(kept) == int(expected))
        print("received", flush=True)
        sys.stdin.readline()  # Until the writer has ended.
        print(*(bytes(sample.payload)[:5].decode() for sample in kept), sep=",", flush=True)
"""


def ready_key(endpoint: str) -> str:
    """Return a key that the reader at an endpoint subscribes to after KEY."""
    return f"shm/ready/{endpoint.rpartition(':')[2]}"


def content(run: int, number: int) -> bytes:
    return b"%3d/%d " % (run, number) * 1666 + b"last"


@contextmanager
def writing(api: Any, run: int, *endpoints: str) -> Iterator[None]:
    """Put some payloads in a process of its own, which has ended after the block."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, api.__name__, str(run), *endpoints],
        env=python_environment(),
        stdin=subprocess.PIPE,
    ) as writer:
        assert writer.stdin is not None
        try:
            yield
            writer.stdin.close()
            assert writer.wait(SECONDS) == 0
        finally:
            writer.kill()


@contextmanager
def listening() -> Iterator[tuple[str, list[Any]]]:
    at, heard = f"tcp/127.0.0.1:{free_port()}", list[Any]()
    with (
        open_session(OURS, "peer", listen=at, settings=SETTINGS) as session,
        session.declare_subscriber(KEY, heard.append),
        session.declare_subscriber(ready_key(at)),
    ):
        yield at, heard
        until(lambda: not session.info.transports())
        assert session.stats().dropped == {}


@pytest.mark.parametrize("api", [OURS, THEIRS])
def test_samples_of_a_writer_that_has_ended_are_readable(api: Any) -> None:
    with listening() as (at, heard):
        for run in range(5):
            with writing(api, run, at):
                until(lambda: len(heard), lambda found: found == PUTS * (run + 1))  # noqa: B023
        assert [sample.payload.as_shm() is not None for sample in heard] == [True] * len(heard)
        assert [bytes(sample.payload) for sample in heard] == [
            content(run, number) for run in range(5) for number in range(PUTS)
        ]
        del heard[:]


@pytest.mark.parametrize("api", [OURS, THEIRS])
def test_samples_of_a_writer_that_has_ended_are_readable_in_each_reader(api: Any) -> None:
    """Though no reader is the last one to map the writer's memory."""
    there = f"tcp/127.0.0.1:{free_port()}"
    with (
        listening() as (here, heard),
        subprocess.Popen(
            [sys.executable, "-c", READER, there],
            env=python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as reader,
    ):
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        expected = []
        for run in range(3):
            expected += [f"{run:3}/{number}" for number in range(PUTS)]
            with writing(api, run, here, there):
                until(lambda: len(heard), lambda found: found == len(expected))  # noqa: B023
                reader.stdin.write(f"{len(expected)}\n")
                reader.stdin.flush()
                assert reader.stdout.readline() == "received\n"
            assert [bytes(sample.payload)[:5].decode() for sample in heard] == expected
            reader.stdin.write("\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == ",".join(expected) + "\n"
        del heard[:]
        reader.stdin.close()
        assert reader.wait(SECONDS) == 0


def test_the_last_puts_arrive_behind_a_router_that_passes_pointers_on() -> None:
    at, heard, expected = f"tcp/127.0.0.1:{free_port()}", list[bytes](), list[bytes]()
    with (
        open_session(THEIRS, "router", listen=at, settings=SETTINGS),
        open_session(OURS, "client", connect=(at,), settings=SETTINGS) as session,
        session.declare_subscriber(KEY, lambda sample: heard.append(bytes(sample.payload))),
        session.declare_subscriber(ready_key(at)),
    ):
        for run in range(10):
            with writing(OURS, run, at):
                expected += [content(run, number) for number in range(PUTS)]
            until(lambda: heard, lambda found: found == expected)  # noqa: B023
        assert session.stats().dropped == {}
