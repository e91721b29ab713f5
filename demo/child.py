"""A process that the demo starts: what it says, line by line as JSON, and its certain end.

Knows processes and signals. Does not know what they are for.
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

END_SECONDS = 60.0  # that a process may take to end in order
HURRY_SECONDS = 5.0  # and after Ctrl-C: by then a recorder has sealed its log
MAX_EVENTS = 10_000  # that are kept
MAX_SHOWN = 2_000  # characters of what one said before it failed


class ChildFailed(Exception):
    """A process that ended by itself, and what it said last."""


@contextmanager
def unbroken() -> Iterator[None]:
    """Signals that end the demo wait meanwhile: what was started is known, or was not started."""
    came: list[tuple[int, object]] = []
    before = {one: signal.getsignal(one) for one in STOP_SIGNALS}
    for one in STOP_SIGNALS:
        signal.signal(one, lambda *told: came.append(told))
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        for number, _ in came[:1]:
            signal.raise_signal(number)


class Child:
    """Runs in a session of its own: Ctrl-C of the terminal reaches the demo alone, which ends it.

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
        """The last event of that name."""
        found = (one for one in reversed(list(self.events)) if one.get("event") == event)
        return next(found, None)

    def running(self) -> bool:
        """Whether it is. ChildFailed: it has failed."""
        status = self._process.poll()
        if status:
            raise ChildFailed(f"{self.name} ended with status {status}:\n{self.said()}")
        return status is None

    def said(self) -> str:
        """The end of what it said on its standard error."""
        return self._said.read_text(errors="replace")[-MAX_SHOWN:].strip()

    def stop(self, seconds: float = END_SECONDS) -> int:
        """Tell it to end, in order; then end it, and whatever it started. Gives its status."""
        try:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(seconds)
        finally:  # though Ctrl-C ends the waiting
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
    """How a script of this Python's, or a module, is started."""
    if "." in program:
        return [sys.executable, "-m", program]
    return [str(Path(sys.executable).with_name(program))]


def answer_of(program: str, *args: str) -> str:
    """What a program prints that ends by itself soon. ChildFailed: it did not go well."""
    done = subprocess.run(
        [*command(program), *args], capture_output=True, text=True, timeout=END_SECONDS * 2
    )
    if done.returncode:
        said = done.stderr[-MAX_SHOWN:].strip()
        raise ChildFailed(f"{program} {args[0]} ended with status {done.returncode}:\n{said}")
    return done.stdout
