"""Run the installed `zenlake` on a terminal of its own, and see what a person would."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(sys.executable).parent / "zenlake"
DEADLINE = 60.0
ENV = os.environ | {"TERM": "xterm", "COLUMNS": "120"}


def on_terminal(*args: str, answer: bytes = b"", after: bytes = b"") -> tuple[int, str]:
    """Its status, and everything it wrote; `answer` is typed once `after` was read."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [SCRIPT, *args], stdin=theirs, stdout=theirs, stderr=theirs, env=ENV, start_new_session=True
    )
    os.close(theirs)
    seen = b""
    end = time.monotonic() + DEADLINE
    try:
        while time.monotonic() < end:
            ready, _, _ = select.select([ours], [], [], end - time.monotonic())
            data = _read(ours) if ready else b""
            if not data:
                break
            seen += data
            if answer and after in seen:
                os.write(ours, answer)
                answer = b""
        return process.wait(max(1.0, end - time.monotonic())), seen.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except OSError:  # the other end is closed
        return b""
