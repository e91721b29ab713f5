"""Sinks between any thread and the tasks of one event loop.

Knows chunks in, items out, one wake-up for all items received meanwhile, and back-pressure both
ways. Does not know what the items are.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Final, TypeVar

from zenlake.api.sinks import Sink, callback_capacity, release_each
from zenlake.errors import ZError

log = logging.getLogger("zenlake.aio")

T = TypeVar("T")

ITEMS_PER_TURN = 64  # Items taken in a row before the loop's other tasks get their turn.
LOOP_CHECK_SECONDS = 0.5  # Interval of checks whether the loop that should make room is still open.
# Upper bound on waiting for callbacks to work off the queue after an undeclare.
DRAIN_SECONDS = 10.0

EMPTY: Final = object()

_caller = threading.local()  # .owed: overfilled sinks that a caller on a loop must still wait for.


class AsyncSink(Sink[T]):
    """Bounded queue between the network and the tasks of the running loop.

    `push`, `when_room`, `wait_room` and `close` may be called from any thread; items are taken on
    the loop. Nothing is taken before the taker runs, so a cancelled one loses nothing.
    """

    def __init__(self, capacity: int, wrap: Callable[[Any], T] | None = None) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.capacity = max(1, capacity)
        self.wakeups = 0
        "Number of wake-ups of the loop."
        self.closed = False
        self._wrap = wrap
        # Reentrant: the garbage collector may close this sink on a thread that holds its lock.
        self._lock = threading.RLock()
        self._chunks: deque[tuple[Iterable[T], int]] = deque()
        self._current: Iterator[T] = iter(())
        self._pushed = 0
        self._taken = 0
        self._chunk_end = 0
        "Value of `_taken` at the end of the current chunk."
        self._turn = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._waking = False
        self._room: list[Callable[[], None]] = []
        self._delivery: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of items that wait."""
        return self._pushed - self._taken

    # ---- any thread

    def push(self, items: Iterable[T], count: int) -> bool:
        if self._wrap is not None:
            items = map(self._wrap, items)
        with self._lock:
            if self.closed:
                self.dropped += count
                return True
            self._keep(items, count)
            wake = self._must_wake()
        if wake:
            self._wake_loop()
        if self.waiting < self.capacity:
            return True
        if self.loop.is_closed():
            self.abandon()
        return self.closed

    def _keep(self, items: Iterable[T], count: int) -> None:
        self._pushed += count
        self._chunks.append((items, count))

    def _must_wake(self) -> bool:
        """Return whether a task waits and the loop has not been told yet. The caller holds the
        lock.
        """
        if self._waking or not self._waiters:
            return False
        self._waking = True
        self.wakeups += 1
        return True

    def _wake_loop(self) -> None:
        try:
            if _running_loop() is self.loop:
                self.loop.call_soon(self._wake)  # On the loop's own thread, which is awake.
            else:
                self.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # The loop is closed: no task will take items.
            self.abandon()

    def when_room(self, call: Callable[[], None]) -> None:
        with self._lock:
            # Before the check: a task that takes items from now on sees the call.
            self._room.append(call)
        self._make_room()

    def _make_room(self) -> None:
        """Make the calls of threads that wait for room, if there is room."""
        if 2 * self.waiting < self.capacity or self.closed or self.loop.is_closed():
            with self._lock:
                calls, self._room = self._room, []
            for call in calls:
                call()

    def wait_room(self) -> None:
        """Wait for room, but never on a loop's thread: there the caller awaits `room` later."""
        if self.waiting < self.capacity or self.closed:
            return
        if _running_loop() is None:
            room = threading.Event()
            self.when_room(room.set)
            while not room.wait(LOOP_CHECK_SECONDS):
                if self.loop.is_closed():
                    self.abandon()
        elif self._delivery is None or asyncio.current_task() is not self._delivery:
            owed: list[AsyncSink[Any]] | None = getattr(_caller, "owed", None)
            if owed is not None:
                owed.append(self)

    def close(self) -> None:
        """Refuse further items. Waiting ones can still be taken."""
        with self._lock:
            self.closed = True
            wake = self._must_wake()
        if wake:
            self._wake_loop()
        self._make_room()

    def abandon(self) -> None:
        """Drop waiting and further items, and count them: no task will take them."""
        with self._lock:
            self.closed = True
            unread = (self._chunks, self._current)
            self._chunks, self._current = deque(), iter(())
            self.dropped += self._pushed - self._taken
            self._taken = self._pushed
            wake = self._must_wake()
        if wake:
            with suppress(RuntimeError):  # The loop is closed.
                self.loop.call_soon_threadsafe(self._wake)
        del unread  # The items' destructors run without the lock.
        self._make_room()

    def join(self, timeout: float | None) -> bool:
        """Return True: there is no thread to wait for; on a loop, undeclare awaits `delivered`."""
        return True

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self.closed = True
        self._chunks, self._current = deque(), iter(())
        self._waiters.clear()
        self._room.clear()

    # ---- the loop

    def take(self) -> T | object:
        """Return the next item, or EMPTY."""
        while True:
            try:
                for item in self._current:
                    self._taken += 1
                    if self._room:
                        self._make_room()
                    return item
            except Exception:
                log.exception("an item could not be made")
                self._taken += 1
                self.dropped += 1
                continue
            self._taken = max(self._taken, self._chunk_end)
            chunks = self._chunks
            if not chunks:
                return EMPTY
            items, count = chunks.popleft()
            self._chunk_end = self._taken + count
            self._current = release_each(items)

    def take_in_turn(self) -> T | object:
        """Return the next item, or EMPTY also when it is the other tasks' turn."""
        if self._turn >= ITEMS_PER_TURN:
            return EMPTY
        self._turn += 1
        return self.take()

    async def recv(self) -> T:
        """Return the next item; wait for it. ZError: there is none and none will follow."""
        while True:
            item = self.take_in_turn()
            if item is not EMPTY:
                return item  # type: ignore[return-value]
            if self._turn >= ITEMS_PER_TURN:
                self._turn = 0
                await asyncio.sleep(0)
            else:
                await self.arrival()
                self._turn = 0

    async def arrival(self) -> None:
        """Wait until items are received. ZError: none will follow."""
        if asyncio.get_running_loop() is not self.loop:
            raise ZError("this belongs to another event loop: declare one in the loop that reads")
        waiter: asyncio.Future[None] = self.loop.create_future()
        with self._lock:
            if self._chunks:
                return
            if self.closed:
                raise ZError("channel is empty and closed")
            self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with self._lock, suppress(ValueError):
                self._waiters.remove(waiter)
            if self._chunks or self.closed:
                self._wake()  # This task was woken for items that the next one can take.
            raise

    def _wake(self) -> None:
        with self._lock:
            self._waking = False
            count = len(self._waiters) if self.closed else min(self.waiting, len(self._waiters))
            woken = [self._waiters.popleft() for _ in range(count)]
        for waiter in woken:
            if not waiter.done():
                waiter.set_result(None)

    async def room(self) -> None:
        """Wait until there is room; from any loop."""
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not room.done():
                room.set_result(None)

        def tell_loop() -> None:
            with suppress(RuntimeError):  # The waiting loop is closed.
                loop.call_soon_threadsafe(tell)

        self.when_room(tell_loop)
        await room

    # ---- callbacks

    def deliver_to(
        self, callback: Callable[[T], object], drop: Callable[[], object] | None
    ) -> None:
        """Start to pass items to `callback`, one after another, on the loop."""
        self._delivery = self.loop.create_task(self._deliver(callback, drop))

    async def _deliver(
        self, callback: Callable[[T], object], drop: Callable[[], object] | None
    ) -> None:
        try:
            while await self._more():
                for _ in range(ITEMS_PER_TURN):
                    result = self._call_next(callback)
                    if result is EMPTY:
                        break
                    if result is not None and isawaitable(result):
                        await self._guard("callback", result)
                    result = None  # Nothing here keeps an item alive.
        finally:
            self.abandon()
            if drop is not None:
                await self._drop(drop)

    async def _more(self) -> bool:
        """Wait for items, after the loop's other tasks had their turn; return False at the end."""
        await asyncio.sleep(0)
        while not self.waiting:
            try:
                await self.arrival()
            except ZError:
                return False
        return True

    def _call_next(self, callback: Callable[[T], object]) -> object:
        item = self.take()
        if item is EMPTY:
            return EMPTY
        try:
            return callback(item)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001  # Delivery goes on whatever a callback raises.
            self._report("callback", error)
            return None

    async def _drop(self, drop: Callable[[], object]) -> None:
        try:
            result = drop()
        except Exception as error:  # noqa: BLE001  # As for callbacks.
            self._report("drop callback", error)
        else:
            if isawaitable(result):
                await self._guard("drop callback", result)

    async def _guard(self, what: str, result: Awaitable[object]) -> None:
        try:
            await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # The delivery task itself was cancelled.
                raise
            self._report(what, error)
        except Exception as error:  # noqa: BLE001  # As for callbacks.
            self._report(what, error)

    def _report(self, what: str, error: BaseException) -> None:
        self.loop.call_exception_handler({"message": f"zenlake: {what} error", "exception": error})

    def when_delivered(self, call: Callable[[], object]) -> None:
        """Call on the loop when the callbacks have ended."""
        if self._delivery is not None:
            self._delivery.add_done_callback(lambda _: call())

    async def delivered(self) -> bool:
        """Wait until the callbacks have worked off the queue; return True at once inside of one.

        Returns False if they take longer than DRAIN_SECONDS; they go on.
        """
        task = self._delivery
        if task is None or task is asyncio.current_task():
            return True
        if asyncio.get_running_loop() is self.loop:
            done, _ = await asyncio.wait([task], timeout=DRAIN_SECONDS)
        elif self.loop.is_running():
            ended = asyncio.wait([task], timeout=DRAIN_SECONDS)
            there = asyncio.run_coroutine_threadsafe(ended, self.loop)
            done, _ = await asyncio.wrap_future(there)
        else:
            return False
        return bool(done)


class CallbackSink(AsyncSink[T]):
    """Sink for callbacks: many small items may wait, of large ones fewer."""

    elastic = True

    def __init__(self, wrap: Callable[[Any], T] | None = None) -> None:
        super().__init__(callback_capacity(0), wrap)

    def fit(self, size: int) -> None:
        self.capacity = callback_capacity(size)


class RingSink(AsyncSink[T]):
    """Sink that keeps the newest `capacity` items, and drops and counts older ones. Never full."""

    def push(self, items: Iterable[T], count: int) -> bool:
        super().push(items, count)
        return True

    def _keep(self, items: Iterable[T], count: int) -> None:
        self._pushed += count
        made = iter(items)
        while not self._keep_each(made):
            self._taken += 1
            self.dropped += 1
        while len(self._chunks) > self.capacity:
            self._chunks.popleft()
            self._taken += 1
            self.dropped += 1

    def _keep_each(self, made: Iterator[T]) -> bool:
        """Append items; return False when one could not be made and there may be more."""
        try:
            self._chunks.extend(((item,), 1) for item in made)
        except Exception:
            log.exception("an item could not be made")
            return False
        return True

    def take(self) -> T | object:
        with self._lock:
            return super().take()

    def when_room(self, call: Callable[[], None]) -> None:
        call()

    def wait_room(self) -> None:
        """Return at once: a ring always has room."""


class Owing:
    """Context in which calls may overfill sinks; `settle` afterwards waits for their room."""

    def __enter__(self) -> "Owing":
        self._sinks: list[AsyncSink[Any]] = []
        _caller.owed = self._sinks
        return self

    def __exit__(self, *_: object) -> None:
        _caller.owed = None

    async def settle(self) -> None:
        for sink in self._sinks:
            await sink.room()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs on this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
