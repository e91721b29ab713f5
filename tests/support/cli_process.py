"""The installed `zenlake` as a process, and a session of ours for it to meet."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import zenlake
from tests.golden.proxy import free_port
from tests.support.cli_terminal import SCRIPT
from tests.support.waiting import until

DEADLINE = 60.0
STARTS = 3
ENV = {k: v for k, v in os.environ.items() if k not in ("ZENOH_CONFIG", "FORCE_COLOR")} | {
    "COLUMNS": "200",
    "NO_COLOR": "1",
}


class Done(NamedTuple):
    status: int
    out: str
    err: str


def tool(*args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Done:
    """Run it to its end."""
    done = subprocess.run(
        [SCRIPT, *args],
        input=stdin,
        capture_output=True,
        env=ENV | (env or {}),
        timeout=DEADLINE,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


class Running:
    """One that is at work."""

    def __init__(self, *args: str, ignore: str | None = None) -> None:
        """Start it; `ignore` names a signal that it ignores from the start, as under `nohup`."""
        command = [str(SCRIPT), *args]
        if ignore is not None:
            command = ["sh", "-c", f"trap '' {ignore}; exec \"$@\"", "sh", *command]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, text=True
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close_output(self) -> None:
        """As `| head -1` does."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    def interrupt(self) -> Done:
        """Ctrl-C, and what it says after that."""
        self._process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> Done:
        out, err = self._process.communicate(timeout=DEADLINE)
        return Done(self._process.returncode, out or "", err)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def running(*args: str, ignore: str | None = None) -> Iterator[Running]:
    process = Running(*args, ignore=ignore)
    try:
        yield process
    finally:
        process.kill()


def config(**settings: str) -> zenlake.Config:
    """Keys with `__` for `/`."""
    made = zenlake.Config()
    made.insert_json5("scouting/multicast/enabled", "false")
    for key, value in settings.items():
        made.insert_json5(key.replace("__", "/"), value)
    return made


class Peer(NamedTuple):
    session: zenlake.Session
    endpoint: str
    "Where it listens."
    samples: list[zenlake.Sample]
    "Samples on the keys that it watches."

    def watch(self, key: str) -> None:
        self.session.declare_subscriber(key, self.samples.append)

    def answer(self, key: str, on_query: Callable[[zenlake.Query], None], **options: Any) -> None:
        def answered(query: zenlake.Query) -> None:
            with query:
                on_query(query)

        self.session.declare_queryable(key, answered, **options)


@contextmanager
def peer(**settings: str) -> Iterator[Peer]:
    for attempt in range(STARTS):  # another process may take the port that was free just now
        endpoint = f"tcp/127.0.0.1:{free_port()}"
        try:
            session = zenlake.open(config(listen__endpoints=f'["{endpoint}"]', **settings))
            break
        except zenlake.ZError:
            if attempt == STARTS - 1:
                raise
    with session:
        yield Peer(session, endpoint, [])


def matching(session: zenlake.Session, key: str) -> None:
    """Wait for a subscriber."""
    with session.declare_publisher(key) as publisher:
        until(lambda: publisher.matching_status.matching)


def answered(session: zenlake.Session, key: str) -> None:
    """Wait for a queryable."""
    with session.declare_querier(key) as querier:
        until(lambda: querier.matching_status.matching)
