"""Sinks: queues and callback threads that an entity's items are pushed to.

Knows queues, limits, callbacks and their threads. Does not know what an item is, nor the handlers
that users pass.
"""

import logging
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import repeat, starmap
from queue import SimpleQueue
from typing import Any, ClassVar, Generic, TypeVar, cast
from weakref import WeakSet

from zenlake.errors import ZError
from zenlake.runtime.reactor import rest

log = logging.getLogger("zenlake.handlers")

# Items that may wait for one callback; one frame may hold thousands of small samples.
CALLBACK_ITEMS = 65_536
CALLBACK_BYTES = 256 << 20  # Bytes that may wait for one callback; of large items fewer may wait.
# Upper bound where the producer cannot be made to wait (tokens, replies); further ones are dropped.
MOST_ITEMS = 1 << 20

T = TypeVar("T")

_EMPTY: Any = object()
_NOTHING: Iterator[Any] = iter(())


class Sink(Generic[T]):
    """Destination of an entity's items. `push` never waits.

    This base class is never full; subclasses with a capacity are.
    """

    dropped: int
    "Number of dropped items: overwritten in a ring, pushed after close, or left without a reader."
    elastic: ClassVar[bool] = False
    "Whether the capacity depends on the size of the items (see `fit`)."
    of_samples: ClassVar[bool] = False
    "Whether it takes samples only."

    def __init__(self) -> None:
        self.dropped = 0
        _SINKS.add(self)

    def push(self, items: Iterable[T], count: int) -> bool:
        """Take all `count` items, in order, even above the capacity.

        `items` may be a lazy iterator, consumed later on another thread. Returns False at or above
        the capacity: push no more until `when_room` calls back.
        """
        raise NotImplementedError

    def fit(self, size: int) -> None:
        """Set the capacity of an elastic sink for items of `size` bytes."""

    def when_room(self, call: Callable[[], None]) -> None:
        """Call `call` once when below half the capacity, or closed; at once if it is so already."""
        call()

    def wait_room(self) -> None:
        """Wait until below capacity or closed. Returns at once on this sink's callback thread."""

    def close(self) -> None:
        """Refuse further items. Queued ones are still delivered, except by a ring."""

    def join(self, timeout: float | None) -> bool:
        """Return whether the callback thread has ended; True on that thread, and without one."""
        return True

    def _after_fork(self) -> None:
        """Reset locks and threads in the child of a fork, where only the calling thread exists."""


_SINKS: "WeakSet[Sink[Any]]" = WeakSet()


def _in_child() -> None:
    for sink in list(_SINKS):
        sink._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class BoundedSink(Sink[T]):
    """Sink with a capacity, which reports when there is room again.

    The capacity limits the queued items; a subclass that counts something else says when there is
    room.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = max(1, capacity)
        self._closed = False
        self._waiting = 0
        self._blocked = 0
        self._room_calls: dict[Callable[[], None], None] = {}
        # Reentrant: the garbage collector may close this sink on a thread that holds its lock.
        self._lock = threading.RLock()

    @cached_property
    def _room(self) -> threading.Condition:
        return threading.Condition(self._lock)

    def _has_room(self) -> bool:
        return self._waiting < self.capacity

    def _is_half_empty(self) -> bool:
        return 2 * self._waiting < self.capacity

    def when_room(self, call: Callable[[], None]) -> None:
        with self._lock:
            if not (self._closed or self._is_half_empty()):
                self._room_calls[call] = None
                return
        call()

    def wait_room(self) -> None:
        with self._lock:
            while not (self._closed or self._has_room()):
                self._blocked += 1
                try:
                    self._room.wait()
                finally:
                    self._blocked -= 1

    def _check_open(self) -> None:
        if self._closed:
            raise ZError("channel is empty and closed")

    def _notify_room(self) -> Iterable[Callable[[], None]]:
        """Wake threads that wait for room; return the calls to make once the lock is released."""
        if self._blocked and (self._closed or self._has_room()):
            self._room.notify_all()
        if self._room_calls and (self._closed or self._is_half_empty()):
            calls, self._room_calls = self._room_calls, {}
            return calls
        return ()

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self.__dict__.pop("_room", None)
        self._closed = True
        self._blocked = 0
        self._room_calls = {}


class Channel(Sink[T]):
    """Sink that a Handler reads."""

    def recv(self) -> T:
        raise NotImplementedError

    def try_recv(self) -> T | None:
        raise NotImplementedError

    def abandon(self) -> None:
        """Drop the queued items: no reader is left."""
        raise NotImplementedError


class Fifo(BoundedSink[T], Channel[T]):
    """Queue of chunks in the order of arrival; an item is made when it is read."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._chunks: deque[tuple[Iterable[T], int]] = deque()
        self._current: Iterator[T] = _NOTHING
        self._left = 0
        self._readers = 0

    @cached_property
    def _ready(self) -> threading.Condition:
        return threading.Condition(self._lock)

    def push(self, items: Iterable[T], count: int) -> bool:
        with self._lock:
            if self._closed or not count or self._waiting >= MOST_ITEMS:
                self.dropped += count
                return self._closed or not count
            self._chunks.append((items, count))
            self._waiting += count
            if self._readers:
                self._ready.notify(count)
                rest()
            return self._waiting < self.capacity

    def recv(self) -> T:
        with self._lock:
            while (item := self._take()) is _EMPTY:
                self._check_open()
                self._readers += 1
                try:
                    self._ready.wait()
                finally:
                    self._readers -= 1
            calls = self._notify_room() if self._blocked or self._room_calls else ()
        if calls:
            call_each(calls)
        return item

    def try_recv(self) -> T | None:
        with self._lock:
            item = self._take()
            if item is _EMPTY:
                self._check_open()
                return None
            calls = self._notify_room() if self._blocked or self._room_calls else ()
        if calls:
            call_each(calls)
        return item

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._readers:
                self._ready.notify_all()
            calls = self._notify_room()
        call_each(calls)

    def abandon(self) -> None:
        with self._lock:
            unread = (self._chunks, self._current)
            self.dropped += self._waiting
            self._chunks, self._current = deque(), _NOTHING
            self._waiting = self._left = 0
        del unread  # The items' destructors run without the lock.
        self.close()

    def _take(self) -> T:
        """Return the next item, or _EMPTY. The caller holds the lock."""
        while self._waiting:
            if not self._left:
                items, self._left = self._chunks.popleft()
                self._current = release_each(items)
            try:
                item = next(self._current)
            except StopIteration:  # The chunk had fewer items than announced.
                self._waiting -= self._left
                self._left = 0
                continue
            except Exception:
                log.exception("an item could not be made")
                self.dropped += 1
                item = cast(T, _EMPTY)
            self._waiting -= 1
            self._left -= 1
            if not self._left:
                self._current = _NOTHING
            if item is not _EMPTY:
                return item
        return cast(T, _EMPTY)

    def _after_fork(self) -> None:
        super()._after_fork()
        self.__dict__.pop("_ready", None)
        self._readers = 0


class Ring(Channel[T]):
    """Queue of the last items; never full."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._items: deque[T] = deque(maxlen=min(max(1, capacity), sys.maxsize))
        self._closed = False
        self._ready = threading.Condition()

    def push(self, items: Iterable[T], count: int) -> bool:
        size = cast(int, self._items.maxlen)
        made: deque[T] = deque(maxlen=size)
        iterator = iter(items)
        while not _run_user_code(made.extend, iterator):
            pass
        with self._ready:
            if self._closed:
                self.dropped += count
                return True
            over = max(0, len(self._items) + len(made) - size)
            oldest = [self._items.popleft() for _ in range(over)]
            self._items.extend(made)
            self.dropped += over + count - len(made)
            self._ready.notify(count)
        del oldest  # The items' destructors run without the lock.
        return True

    def recv(self) -> T:
        with self._ready:
            while not self._items:
                self._check_open()
                self._ready.wait()
            return self._items.popleft()

    def try_recv(self) -> T | None:
        with self._ready:
            self._check_open()
            return self._items.popleft() if self._items else None

    def close(self) -> None:
        with self._ready:
            self._closed = True
            unread = self._items
            self.dropped += len(unread)
            self._items = deque(maxlen=unread.maxlen)
            self._ready.notify_all()
        del unread  # The items' destructors run without the lock.

    def abandon(self) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ZError("The ringbuffer has been deleted.")

    def _after_fork(self) -> None:
        self._ready = threading.Condition()
        self.close()


def callback_capacity(size: int) -> int:
    """Return how many items of `size` bytes may wait for a callback.

    >>> callback_capacity(100), callback_capacity(1 << 20), callback_capacity(1 << 30)
    (65536, 256, 1)
    """
    return max(1, min(CALLBACK_ITEMS, CALLBACK_BYTES // max(1, size)))


class Threaded(BoundedSink[T]):
    """Sink that calls back on its own daemon thread, which starts with the first item."""

    elastic = True

    def __init__(
        self, callback: Callable[[T], Any], drop: Callable[[], Any] | None, name: str
    ) -> None:
        super().__init__(CALLBACK_ITEMS)
        self._callback = callback
        self._drop = drop
        self._name = name
        self._queue: SimpleQueue[tuple[Iterable[T], int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def push(self, items: Iterable[T], count: int) -> bool:
        with self._lock:
            if self._closed or not (self._thread or self._start()):
                self.dropped += count
                return True
            if self._waiting >= MOST_ITEMS:
                self.dropped += count
                return False
            self._queue.put((items, count))
            rest()
            self._waiting += count
            return self._waiting < self.capacity

    def fit(self, size: int) -> None:
        self.capacity = callback_capacity(size)

    def wait_room(self) -> None:
        if self._thread is not threading.current_thread():
            super().wait_room()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            running = self._thread or (self._drop is not None and self._start())
            self._queue.put(None)
            calls = self._notify_room()
        call_each(calls)
        if not running:
            self._finish()

    def join(self, timeout: float | None) -> bool:
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _start(self) -> bool:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # Too many threads, or the interpreter is shutting down.
            log.exception("%s: its callback thread cannot be started", self._name)
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while (chunk := self._queue.get()) is not None:
            items, count = release_each(chunk[0]), chunk[1]
            del chunk  # The chunk must not keep delivered items alive.
            _call_with_each(self._callback, items)
            del items
            with self._lock:
                self._waiting -= count
                calls = self._notify_room()
            call_each(calls)
        self._finish()

    def _finish(self) -> None:
        drop, self._drop = self._drop, None
        if drop is not None:
            _run_user_code(drop)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._drop = None
        self._thread = None
        self._queue = SimpleQueue()
        self._waiting = 0


class Direct(Sink[T]):
    """Sink that calls back on the pushing thread."""

    def __init__(self, callback: Callable[[T], Any], drop: Callable[[], Any] | None) -> None:
        super().__init__()
        self._callback = callback
        self._drop = drop
        self._closed = False
        self._running = 0
        self._lock = threading.RLock()

    def push(self, items: Iterable[T], count: int) -> bool:
        with self._lock:
            if self._closed:
                self.dropped += count
                return True
            self._running += 1
        try:
            _call_with_each(self._callback, iter(items))
        finally:
            self._finish(-1)
        return True

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._finish(0)

    def _finish(self, running: int) -> None:
        """Call `drop` once, after the last call."""
        with self._lock:
            self._running += running
            if self._running or not self._closed:
                return
            drop, self._drop = self._drop, None
        if drop is not None:
            _run_user_code(drop)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._closed = True
        self._drop = None


def release_each(items: Iterable[T]) -> Iterator[T]:
    """Iterate over a list so that each item is released when taken, not with the last one."""
    if type(items) in (list, tuple) and len(items) > 1:  # type: ignore[arg-type]
        waiting = deque(items)
        return starmap(waiting.popleft, repeat((), len(waiting)))
    return iter(items)


def _call_with_each(callback: Callable[[T], Any], items: Iterator[T]) -> None:
    """Call `callback` with each item at C speed; map continues after an item whose call raised."""
    calls = map(callback, items)
    while not _run_user_code(_consume, calls):
        pass


def _consume(items: Iterator[object]) -> None:
    deque(items, maxlen=0)


def _run_user_code(call: Callable[..., object], *arguments: object) -> bool:
    """Call user code; log what it raises. Return whether it ran to its end."""
    try:
        call(*arguments)
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt) and _on_main_thread():
            raise  # Ctrl-C, not raised by the callback itself.
        log.exception("callback error")
        # A handler that keeps the record would keep the query of this call, too: it would not end.
        traceback.clear_frames(problem.__traceback__)
        return False
    return True


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def call_each(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        _run_user_code(call)
