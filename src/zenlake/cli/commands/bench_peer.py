"""The far end of `zenlake bench`: counts samples, puts pings back, and answers queries.

In a process of its own it prints `ready` and runs until its standard input ends.
"""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import zenlake
from zenlake.cli import session_options
from zenlake.cli.choices import ModeChoice
from zenlake.errors import ZError

EXIT_SECONDS = 10.0  # Time the process gets to end before it is killed.
LOOPBACK = "127.0.0.1"


class SampleCounter:
    """Number of samples on KEY/data, and the times of the first and the last."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.samples = 0
        self.first = self.last = 0.0

    def on_sample(self, _: Any) -> None:
        self.last = time.perf_counter()
        if not self.samples:
            self.first = self.last
        self.samples += 1

    def on_query(self, query: "zenlake.Query") -> None:
        with query:
            if "reset" in query.parameters:
                self.reset()
            counts = {"samples": self.samples, "seconds": self.last - self.first}
            query.reply(query.key_expr, json.dumps(counts))


def _echo(query: "zenlake.Query") -> None:
    with query:
        query.reply(query.key_expr, b"" if query.payload is None else query.payload)


@contextmanager
def serve_far_end(session: "zenlake.Session", key: str) -> Iterator[None]:
    """Be the far end on `session` for the `with` block."""
    counter = SampleCounter()
    with ExitStack() as declared:
        pong = declared.enter_context(session.declare_publisher(f"{key}/pong", express=True))
        for entity in (
            session.declare_subscriber(f"{key}/data", counter.on_sample),
            session.declare_subscriber(f"{key}/ping", lambda sample: pong.put(sample.payload)),
            session.declare_queryable(f"{key}/count", counter.on_query),
            session.declare_queryable(f"{key}/echo", _echo),
        ):
            declared.callback(entity.undeclare)
        yield


@contextmanager
def start_far_end(key: str) -> Iterator[str]:
    """Start a far end in a process of its own; yield the endpoint where it listens."""
    endpoint = f"tcp/{LOOPBACK}:{_free_port()}"
    command = [sys.executable, "-c", f"from {__name__} import main; main()", endpoint, key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise ZError(f"the far end did not start at {endpoint}. Run it again.")
            yield endpoint
        finally:
            process.stdin.close()  # The process ends with its standard input.
            try:
                process.wait(EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    """Run the far end's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one.
    endpoint, key = sys.argv[1:]
    at = session_options.SessionOptions(
        listen=[endpoint], mode=ModeChoice.PEER, no_multicast_scouting=True
    )
    with session_options.open_session(at) as session, serve_far_end(session, key):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
