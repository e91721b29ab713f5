"""SerialExecutor: runs queued calls one at a time on the threads that come by.

Knows order and mutual exclusion. Does not know what it calls, and starts no thread.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("zenlake.serial")


class SerialExecutor:
    """Serial executor: runs queued calls in order on a calling thread, never two at a time.

    A call runs without a lock: it may submit and run further ones, which follow it, and may wait
    for another thread that does. `name` appears in the log when a call fails.
    """

    __slots__ = ("_busy", "_calls", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: deque[Callable[[], object]] = deque()
        self._busy = threading.Lock()

    def __len__(self) -> int:
        """Return the number of calls that wait."""
        return len(self._calls)

    def submit(self, call: Callable[[], object]) -> None:
        """Queue a call; the caller may hold locks, and calls `run` once it has released them."""
        self._calls.append(call)

    def run(self) -> None:
        """Run the queued calls, unless another thread, or a call of this one, is at it."""
        # Checked again after the release: a thread that could not acquire relies on this one.
        while self._calls and self._busy.acquire(blocking=False):
            try:
                while self._calls:
                    self._run_next()
            finally:
                self._busy.release()

    def _run_next(self) -> None:
        call = self._calls.popleft()
        try:
            call()
        except Exception:
            log.exception("%s: a call failed; the next one follows", self._name)
