"""Where an entity's items wait for an event loop.

Knows the way from any thread to one loop: chunks in, items out, one wake-up for all that came
meanwhile, and back-pressure both ways. Does not know what the items are.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Final, TypeVar

from zenlake.api.handlers import Sink, _one_by_one, callback_capacity
from zenlake.errors import ZError

log = logging.getLogger("zenlake.aio")

T = TypeVar("T")

ITEMS_PER_TURN = 64  # taken without a pause; then the loop's other tasks have their turn
LOOP_CHECK_SECONDS = 0.5  # between two looks whether the loop that should make room is still open
DRAIN_SECONDS = 10.0  # for callbacks to take what waits, when their entity is undeclared

EMPTY: Final = object()

_caller = threading.local()  # .owed: sinks that a caller on a loop has overfilled and must wait for


class AsyncSink(Sink[T]):
    """A bounded queue between the network and the tasks of the running loop.

    `push`, `when_room`, `wait_room` and `close` come from any thread; what takes items runs on the
    loop. Nothing is taken before the taker runs, so a cancelled one loses nothing.
    """

    def __init__(self, capacity: int, wrap: Callable[[Any], T] | None = None) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.capacity = max(1, capacity)
        self.wakeups = 0
        "How often the loop was told that items had come."
        self.closed = False
        self._wrap = wrap
        # Reentrant: a collection that closes this sink may start while its lock is held.
        self._lock = threading.RLock()
        self._chunks: deque[tuple[Iterable[T], int]] = deque()
        self._current: Iterator[T] = iter(())
        self._pushed = 0
        self._taken = 0
        self._chunk_end = 0
        "What `_taken` will be when the current chunk is."
        self._turn = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._waking = False
        self._room: list[Callable[[], None]] = []
        self._delivery: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many items wait."""
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
        """Under the lock: a task waits, and the loop has not been told yet."""
        if self._waking or not self._waiters:
            return False
        self._waking = True
        self.wakeups += 1
        return True

    def _wake_loop(self) -> None:
        try:
            if _running_loop() is self.loop:
                self.loop.call_soon(self._wake)  # it is awake
            else:
                self.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop is closed: nobody will ever take anything
            self.abandon()

    def when_room(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._room.append(call)  # first: whoever takes items from now on sees it
        self._make_room()

    def _make_room(self) -> None:
        """Tell those who wait for room, if there is some."""
        if 2 * self.waiting < self.capacity or self.closed or self.loop.is_closed():
            with self._lock:
                calls, self._room = self._room, []
            for call in calls:
                call()

    def wait_room(self) -> None:
        """Wait, but never on a loop's thread: there the caller is left to await `room`."""
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
        """No more comes. What waits can still be taken."""
        with self._lock:
            self.closed = True
            wake = self._must_wake()
        if wake:
            self._wake_loop()
        self._make_room()

    def abandon(self) -> None:
        """Nobody takes any more: what waits, and all that comes, is dropped and counted."""
        with self._lock:
            self.closed = True
            unread = (self._chunks, self._current)
            self._chunks, self._current = deque(), iter(())
            self.dropped += self._pushed - self._taken
            self._taken = self._pushed
            wake = self._must_wake()
        if wake:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._wake)
        del unread  # what its items do when they end is done without the lock
        self._make_room()

    def join(self, timeout: float | None) -> bool:
        """There is no thread to wait for; whoever undeclares on a loop awaits `delivered`."""
        return True

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self.closed = True
        self._chunks, self._current = deque(), iter(())
        self._waiters.clear()
        self._room.clear()

    # ---- the loop

    def take(self) -> T | object:
        """The next item, or EMPTY."""
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
            self._current = _one_by_one(items)

    def take_in_turn(self) -> T | object:
        """The same, and EMPTY also when it is the other tasks' turn."""
        if self._turn >= ITEMS_PER_TURN:
            return EMPTY
        self._turn += 1
        return self.take()

    async def recv(self) -> T:
        """The next item. ZError: there is none and no more comes."""
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
        """Until items have come. ZError: no more comes."""
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
                self._wake()  # what woke this one is for the next
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
        """Until there is room; from any loop."""
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not room.done():
                room.set_result(None)

        def tell_loop() -> None:
            with suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(tell)

        self.when_room(tell_loop)
        await room

    # ---- callbacks

    def deliver_to(
        self, callback: Callable[[T], object], drop: Callable[[], object] | None
    ) -> None:
        """From now on items are taken by `callback`, one after another, on the loop."""
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
                    result = None  # nothing here keeps an item alive
        finally:
            self.abandon()
            if drop is not None:
                await self._drop(drop)

    async def _more(self) -> bool:
        """Until there are items, and the loop's other tasks have had their turn; False: the end."""
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
        except Exception as error:  # noqa: BLE001 - delivery goes on whatever a callback raises
            self._report("callback", error)
            return None

    async def _drop(self, drop: Callable[[], object]) -> None:
        try:
            result = drop()
        except Exception as error:  # noqa: BLE001 - as for callbacks
            self._report("drop callback", error)
        else:
            if isawaitable(result):
                await self._guard("drop callback", result)

    async def _guard(self, what: str, result: Awaitable[object]) -> None:
        try:
            await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # it is the delivery that is cancelled
                raise
            self._report(what, error)
        except Exception as error:  # noqa: BLE001 - as for callbacks
            self._report(what, error)

    def _report(self, what: str, error: BaseException) -> None:
        self.loop.call_exception_handler({"message": f"zenlake: {what} error", "exception": error})

    def when_delivered(self, call: Callable[[], object]) -> None:
        """Call on the loop when the callbacks have ended."""
        if self._delivery is not None:
            self._delivery.add_done_callback(lambda _: call())

    async def delivered(self) -> bool:
        """Until the callbacks have taken all and have ended; True at once inside of one.

        False: they take longer than DRAIN_SECONDS, and go on.
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
    """For callbacks: many small items may wait, of large ones fewer."""

    elastic = True

    def __init__(self, wrap: Callable[[Any], T] | None = None) -> None:
        super().__init__(callback_capacity(0), wrap)

    def fit(self, size: int) -> None:
        self.capacity = callback_capacity(size)


class RingSink(AsyncSink[T]):
    """Keeps the newest `capacity` items; older ones are dropped and counted. Never full."""

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
        """False: one could not be made; there may be more."""
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
        """There is room."""


class Owing:
    """What is called inside may overfill sinks; afterwards `settle` waits for their room."""

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
    """The loop that runs on this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
