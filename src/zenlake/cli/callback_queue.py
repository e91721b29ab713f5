"""A bounded queue from the threads of callbacks to the main thread, in order.

Knows threads and a clock. Does not know the items.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

CAPACITY = 10_000  # Items the queue holds.
POLL_SECONDS = 0.01  # Time between two looks of a thread that waits for room.

T = TypeVar("T")


class CallbackQueue(Generic[T]):
    """Bounded queue; close it before the session, so that no callback waits for room.

    >>> inbox = CallbackQueue()
    >>> for word in ("a", "b", "c"):
    ...     inbox.put(word)
    >>> list(inbox.items(count=2))
    ['a', 'b']
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._capacity = capacity
        self.dropped = 0
        "Items that `offer` had no room for."
        self.closed = False
        "Whether `close` was called."

    def put(self, item: T) -> None:
        """Append an item, waiting for room; drop it if the queue is closed."""
        while self._queue.qsize() >= self._capacity and not self.closed:
            time.sleep(POLL_SECONDS)
        if not self.closed:
            self._queue.put(item)

    def offer(self, item: T) -> None:
        """Append an item; drop and count it if there is no room."""
        if self._queue.qsize() < self._capacity:
            self._queue.put(item)
        else:
            self.dropped += 1

    def close(self) -> None:
        """Set `closed`, and wake the threads that wait."""
        self.closed = True
        self._queue.put(None)

    def take(self, seconds: float | None = None) -> T | None:
        """Return the next item; None if there is none within `seconds`, or on `close`."""
        with suppress(Empty):
            return self._queue.get(timeout=seconds)
        return None

    def items(self, count: int | None = None, seconds: float | None = None) -> Iterator[T]:
        """Yield the next `count` items; end early once `seconds` have passed."""
        until = None if seconds is None else time.monotonic() + seconds
        taken = 0
        while count is None or taken < count:
            item = self.take(None if until is None else max(0.0, until - time.monotonic()))
            if item is None:
                return
            taken += 1
            yield item

    def drain(self) -> Iterator[T]:
        """Yield the items that wait now."""
        while not self._queue.empty():
            if (item := self._queue.get()) is not None:
                yield item
