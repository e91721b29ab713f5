"""A bounded queue from a session's callbacks to the main thread, in order.

Knows two threads and a clock. Does not know the items.
"""

import time
from collections import deque
from collections.abc import Iterator
from threading import Condition
from types import TracebackType
from typing import Generic, Self, TypeVar

CAPACITY = 10_000  # Items the queue holds; a callback waits while it is full.

T = TypeVar("T")


class CallbackQueue(Generic[T]):
    """Bounded queue; leave `with` before the session closes, so that no callback waits for room.

    >>> with CallbackQueue() as inbox:
    ...     for word in ("a", "b", "c"):
    ...         inbox.put(word)
    ...     list(inbox.items(count=2))
    ['a', 'b']
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._items: deque[T] = deque()
        self._capacity = capacity
        self._changed = Condition()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def put(self, item: T) -> None:
        """Append an item, waiting for room; drop it if the queue is closed."""
        with self._changed:
            while len(self._items) >= self._capacity and not self._closed:
                self._changed.wait()
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()

    def take(self, seconds: float | None = None) -> T | None:
        """Return the next item; None if none arrives within `seconds`."""
        until = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while not self._items:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
            item = self._items.popleft()
            self._changed.notify_all()
            return item

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
