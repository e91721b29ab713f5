"""Child processes of the demo: reads their JSON lines, and ends them in any case.

Knows processes and signals. Does not know what the processes do.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from zenlake.cli.signals import STOP_SIGNALS

END_SECONDS = 60.0  # Longest wait for a process to end after SIGINT.
HURRY_SECONDS = 5.0  # Longest wait after Ctrl-C, enough for a recorder to seal its log.
MAX_EVENTS = 10_000  # Upper bound on the stored events of a process.
MAX_SHOWN = 2_000  # Characters shown of the output of a failed process.


class ChildFailed(Exception):
    """Process that ended by itself; the message has its last output."""


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer stop signals to the end of the block, so that each started process is known."""
    deferred: list[tuple[int, object]] = []
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *received: deferred.append(received))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for first, _ in deferred[:1]:
            signal.raise_signal(first)


class Child:
    """Process in its own session, so that Ctrl-C reaches only the demo, which then ends it.

    `program` names a script beside this Python (`zenlake`), or a module (`demo.fleet`).
    """

    def __init__(self, program: str, *args: str, folder: Path) -> None:
        self.name = " ".join([program, *args[:2]])
        self.events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._said = folder / f"{program}-{args[0].strip('-')}.log"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [*command(program), *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=self.name, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    self.events.append(event)

    def last(self, event: str) -> dict[str, Any] | None:
        """Return the last event of that name."""
        found = (entry for entry in reversed(list(self.events)) if entry.get("event") == event)
        return next(found, None)

    def running(self) -> bool:
        """Tell whether the process runs. ChildFailed: it ended with an error."""
        status = self._process.poll()
        if status:
            raise ChildFailed(f"{self.name} ended with status {status}:\n{self.said()}")
        return status is None

    def said(self) -> str:
        """Return the end of its standard error."""
        return self._said.read_text(errors="replace")[-MAX_SHOWN:].strip()

    def stop(self, seconds: float = END_SECONDS) -> int:
        """Interrupt the process, then kill it and all it started; return its exit status."""
        try:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(seconds)
        finally:  # Also if Ctrl-C ends the wait.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        self._reader.join(END_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(END_SECONDS if kind is None else HURRY_SECONDS)


def command(program: str) -> list[str]:
    """Return the command line of a script beside this Python, or of a module."""
    if "." in program:
        return [sys.executable, "-m", program]
    return [str(Path(sys.executable).with_name(program))]


def run_program(program: str, *args: str) -> str:
    """Run a program to its end; return its output. ChildFailed: it ended with an error."""
    done = subprocess.run(
        [*command(program), *args], capture_output=True, text=True, timeout=END_SECONDS * 2
    )
    if done.returncode:
        said = done.stderr[-MAX_SHOWN:].strip()
        raise ChildFailed(f"{program} {args[0]} ended with status {done.returncode}:\n{said}")
    return done.stdout
