"""The measuring side of a benchmark with several processes: starts one, and asks it to act.

A process runs a module of the benchmark (see `bench.peer`) and speaks JSON, one object per line.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 60.0  # Seconds that an answer may take, unless a process is given more.


class Process:
    """A process of the benchmark. It ends with its input, and is killed when an answer is late."""

    def __init__(
        self,
        role: str,
        module: str,
        arguments: dict[str, Any],
        *,
        python: str = sys.executable,
        patience: float = PATIENCE,
        **options: Any,
    ) -> None:
        """Start `python` with a module; `options` are those of `subprocess.Popen`."""
        self.name = f"{role} {arguments}"
        self._patience = patience
        self._process = subprocess.Popen(
            [python, "-m", module, role, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        self.facts = self.answer()
        "The first line of the process: where it listens."

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        self.begin(do, **arguments)
        return self.answer()

    def begin(self, do: str, **arguments: Any) -> None:
        """Send a command whose answer is read later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self, patience: float | None = None) -> dict[str, Any]:
        """Read the next answer, which may take `patience` seconds."""
        assert self._process.stdout is not None
        too_late = threading.Timer(patience or self._patience, self._process.kill)
        too_late.start()
        line = self._process.stdout.readline()
        too_late.cancel()
        too_late.join()
        if not line:
            self.close()
            raise RuntimeError(f"{self.name} ended without an answer; its error stands above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def count(self) -> int:
        """The messages that a receiving process has counted."""
        return int(self.ask("counted")["count"])

    def close(self) -> None:
        """End the input of the process and wait for its end."""
        try:
            self._process.communicate(timeout=self._patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@contextmanager
def process(role: str, module: str = "bench.api_peer", **arguments: Any) -> Iterator[Process]:
    """Start a process and close it at the end."""
    started = Process(role, module, arguments)
    try:
        yield started
    finally:
        started.close()
