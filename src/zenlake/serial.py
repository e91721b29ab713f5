"""Serial executor: calls that run in order, one at a time, on the threads that drain the queue.

Knows nothing of the calls but that one of them may fail. Has no thread of its own.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("zenlake")

QueuedCall = tuple[Callable[..., object], tuple[object, ...]]


class SerialExecutor:
    """Queue of calls. The first thread that drains it runs them all; other threads return at once.

    No lock is held while a call runs: it may queue further calls, and may wait for a thread that
    does. A call that raises an Exception is logged, and the next one runs.

    >>> calls = SerialExecutor()
    >>> calls.add(print, "first")
    >>> calls.run(print, "second")
    first
    second
    """

    __slots__ = ("_busy", "_calls")

    def __init__(self) -> None:
        self._calls: deque[QueuedCall] = deque()
        self._busy = threading.Lock()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Callable[..., object], *arguments: object) -> None:
        """Queue a call; `drain` runs it."""
        self._calls.append((call, arguments))

    def run(self, call: Callable[..., object], *arguments: object) -> None:
        """Queue a call and drain the queue."""
        self._calls.append((call, arguments))
        self.drain()

    def drain(self) -> None:
        """Run queued calls until none is left, unless another thread is doing so."""
        while self._calls and self._busy.acquire(blocking=False):
            try:
                while self._calls:
                    call, arguments = self._calls.popleft()
                    try:
                        call(*arguments)
                    except Exception:
                        log.exception("a queued call failed: %r%r", call, arguments)
            finally:
                self._busy.release()
