"""A node of eclipse-zenoh in a process of its own: started, asked by lines of JSON, ended."""

import json
import socket
import subprocess
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.support.processes import module_command, python_environment

STARTS = 3  # Attempts to find a free port.
EXIT_SECONDS = 20.0  # Longest wait for the process to end.


class ReferenceChild:
    """Process of `module`, which listens on `endpoint` and says "ready"."""

    module: ClassVar[str]

    def __init__(self) -> None:
        for attempt in range(STARTS):  # Another process may take the port that was free just now.
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port: int = probe.getsockname()[1]
            self.endpoint = f"tcp/127.0.0.1:{self.port}"
            self._process = subprocess.Popen(
                module_command(self.module, self.endpoint),
                env=python_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert self.answer() == "ready"
                return
            except AssertionError:
                self.__exit__(None, None, None)
                if attempt == STARTS - 1:
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._process.communicate(timeout=EXIT_SECONDS)  # Closing its input ends it.
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    def ask(self, what: str, **arguments: Any) -> Any:
        """Send a command; return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        """Return the next line that the process prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the reference node ended"
        return json.loads(line)
