"""The I/O thread: waits for links and timers, and calls back. The only place where a node waits.

Knows the poller (polling.py) and the clock. Does not know what a link or a timer is for. The
simulator has an event loop with the same methods and a virtual clock (sim/).
"""

import heapq
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from zenlake.runtime.polling import (
    BROKEN,
    READ,
    WRITE,
    PollSource,
    SelectorPoller,
    make_poller,
    make_waker,
)

log = logging.getLogger("zenlake.runtime")

MAX_WAIT = 3600.0  # Longest sleep in seconds: a poller takes no infinite float.
EVENTS_AT_ONCE = 256  # Events taken from the poller per call.
LOOK_SECONDS = 150e-6  # Time to poll for the next event before going to sleep.
EAGER_WITHIN = 400e-6  # An event this soon after the last one makes polling worth it.
MAX_VAIN_LOOKS = 3  # Polls without an event in a row; after them the thread sleeps at once.
STOP_SECONDS = 10.0  # Time that stop() gives the thread.
RESOLVER_SECONDS = 1.0  # Time that stop() gives names that are being resolved.
TIDY_FROM = 1024  # Timers from which on cancelled ones are removed, once they are the majority.

READABLE, WRITABLE = READ | BROKEN, WRITE | BROKEN

Ready = Callable[[bool, bool], None]
"Called with (readable, writable)."


class Timer:
    """A call that is due at `when`."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Do not make the call."""
        self.call = None


class EventLoop(Protocol):
    """The event loop of a node: the `Reactor`, or that of the simulator."""

    @property
    def inside(self) -> bool: ...
    def now(self) -> float: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def abandon(self) -> None: ...
    def call_at(self, when: float, call: Callable[[], None]) -> Timer: ...
    def call_soon(self, call: Callable[[], None]) -> None: ...
    def off_thread(self, work: Callable[[], Callable[[], None]]) -> None: ...
    def watch(self, source: PollSource, ready: Ready, *, read: bool, write: bool) -> None: ...
    def change(self, source: PollSource, *, read: bool, write: bool) -> None: ...
    def forget(self, source: PollSource) -> None: ...


class Reactor:
    """Event loop on a thread of its own. Callbacks run there, one after another; `call_at`,
    `call_soon` and `watch` may be called on any thread. `selector` names a poller of polling.py."""

    def __init__(self, name: str = "zenlake", selector: str | None = None) -> None:
        self._name = name
        self._poller = make_poller(selector)
        self._must_wake = isinstance(self._poller, SelectorPoller)
        "Whether a wait has to end for the poller to see what is watched now."
        self._waker = make_waker()
        self._wake_fd = self._waker.fileno()
        self._poller.register(self._wake_fd, READ)
        self._ready: dict[int, Ready] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._tidy_at = TIDY_FROM
        self._lock = threading.RLock()
        self._soon: deque[Callable[[], None]] = deque()
        self._order = itertools.count()
        self._asleep = False
        self.eager = 0
        "Number of further polls before the thread sleeps."
        self._last = -1
        "File descriptor of the last event."
        self._stopping = False
        self._released = False
        self._thread: threading.Thread | None = None
        self._resolvers: set[threading.Thread] = set()
        self.ident: int | None = None
        "Identifier of the thread, once it runs."

    now = staticmethod(time.monotonic)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"{self._name} I/O", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current callback; waits for that on any other thread."""
        if not self.inside:
            end = self.now() + RESOLVER_SECONDS
            for resolver in list(self._resolvers):
                resolver.join(max(0.0, end - self.now()))
        self._stopping = True
        self._rouse()
        if self._thread is None:
            self._release()
        elif not self.inside:
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():  # A callback hangs; the thread is a daemon.
                log.error("the I/O thread did not end within %g s", STOP_SECONDS)

    def abandon(self) -> None:
        """Let go of the parent's descriptors in the child of a fork, where the thread is gone.

        The descriptor numbers stay valid, so that a later close() of their owners closes nothing
        else, but they refer to /dev/null. If the sockets stayed open here, the parent could not
        close its connections.
        """
        self._lock = threading.RLock()
        if not self._released:
            self._stopping = self._released = True
            nothing = os.open(os.devnull, os.O_RDWR)
            for fd in (*self._ready, *self._waker.descriptors(), self._poller.fileno()):
                if fd >= 0:
                    os.dup2(nothing, fd, inheritable=False)
            os.close(nothing)
        self._ready.clear()
        self._thread = None

    def _release(self) -> None:
        with self._lock:
            if not self._released:
                self._released = True
                self._poller.close()
                self._waker.close()

    @property
    def inside(self) -> bool:
        """Whether the caller is on the I/O thread."""
        return threading.get_ident() == self.ident

    # ---- timers

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        timer = Timer(when, call)
        with self._lock:
            if len(self._timers) >= self._tidy_at:
                self._tidy()
            first = not self._timers or when < self._timers[0][0]
            heapq.heappush(self._timers, (when, next(self._order), timer))
        if first and not self.inside:
            self._rouse()
        return timer

    def _tidy(self) -> None:
        """Remove cancelled timers, some of which would be due in months (certificates)."""
        self._timers[:] = [entry for entry in self._timers if entry[2].call is not None]
        heapq.heapify(self._timers)
        self._tidy_at = max(TIDY_FROM, 2 * len(self._timers))

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)
        if not self.inside:
            self._rouse()

    def off_thread(self, work: Callable[[], Callable[[], None]]) -> None:
        """Run `work`, which may block (resolving a name), on another thread; the call that it
        returns runs here."""

        def job() -> None:
            try:
                self.call_soon(work())
            finally:
                self._resolvers.discard(threading.current_thread())

        resolver = threading.Thread(target=job, name=f"{self._name} resolver", daemon=True)
        self._resolvers.add(resolver)
        resolver.start()

    # ---- sources

    def watch(self, source: PollSource, ready: Ready, *, read: bool, write: bool) -> None:
        """Call `ready` whenever `source` is ready. LinkError: the poller watches no more."""
        fd = source.fileno()
        self._ready[fd] = ready
        try:
            self._poller.register(fd, _mask(read, write))
        except BaseException:
            del self._ready[fd]
            raise
        if self._must_wake and not self.inside:
            self._rouse()

    def change(self, source: PollSource, *, read: bool, write: bool) -> None:
        self._poller.modify(source.fileno(), _mask(read, write))
        if self._must_wake and not self.inside:
            self._rouse()

    def forget(self, source: PollSource) -> None:
        """Stop watching `source`; to be called before it is closed."""
        fd = source.fileno()
        if self._ready.pop(fd, None) is not None:
            self._poller.unregister(fd)

    # ---- the thread

    def _rouse(self) -> None:
        if self._asleep:
            with self._lock:  # Its number may belong to another file once it is closed.
                if not self._released:
                    self._asleep = False
                    self._waker.wake()

    def _run(self) -> None:
        self.ident = threading.get_ident()
        _here.reactor = self
        while not self._stopping:
            for fd, mask in self._wait():
                if fd == self._wake_fd:
                    self._waker.drain()
                    continue
                ready = self._ready.get(fd)
                if ready is not None:  # An earlier callback may have closed it.
                    guard(ready, mask & READABLE != 0, mask & WRITABLE != 0)
            if self._soon:
                self._run_soon()
            self._run_timers()
        self._run_soon()  # Callers that wait for an answer get one.
        self._release()

    def _wait(self) -> list[tuple[int, int]]:
        """Return the next events; wait until a source is ready or a timer is due.

        Sleeping and waking costs more time than most peers need to answer. So if one source was
        ready twice in short order, the thread polls for a little while before it sleeps.
        """
        if self.eager:
            events = self._look()
            if events or self._soon:
                return events
        began = self.now()
        self._asleep = True
        events = self._poller.poll(self._patience(), EVENTS_AT_ONCE)
        self._asleep = False
        if events:
            source, self._last = self._last, events[0][0]
            if source == self._last and self.now() - began < EAGER_WITHIN:
                self.eager = MAX_VAIN_LOOKS
        return events

    def _look(self) -> list[tuple[int, int]]:
        poll, now = self._poller.poll, self.now
        end = now() + LOOK_SECONDS
        while not self._soon:
            events = poll(0, EVENTS_AT_ONCE)
            if events:
                self.eager = MAX_VAIN_LOOKS
                return events
            if now() > end:
                break
        self.eager -= 1
        return []

    def _patience(self) -> float:
        if self._soon or self._stopping:
            return 0.0
        with self._lock:
            if not self._timers:
                return MAX_WAIT
            return min(max(self._timers[0][0] - self.now(), 0.0), MAX_WAIT)

    def _run_soon(self) -> None:
        for _ in range(len(self._soon)):  # Calls that they add wait for the next turn.
            guard(self._soon.popleft())

    def _run_timers(self) -> None:
        now = self.now()
        if not self._timers or self._timers[0][0] > now:
            return
        due: list[Timer] = []  # Timers that they add wait for the next turn, even if due.
        with self._lock:
            while self._timers and self._timers[0][0] <= now:
                due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            if timer.call is not None:
                guard(timer.call)


_here = threading.local()


def rest() -> None:
    """Let the calling I/O thread sleep instead of polling: another thread has been woken, and is to
    get the interpreter at once."""
    reactor: Reactor | None = getattr(_here, "reactor", None)
    if reactor is not None:
        reactor.eager = 0


def guard(call: Callable[..., None], *arguments: object) -> None:
    """Make a call of user code; an error, or an attempt to exit, is logged and goes no further."""
    try:
        call(*arguments)
    except (Exception, SystemExit):
        log.exception("a callback failed: %r", call)


def _mask(read: bool, write: bool) -> int:
    return (READ if read else 0) | (WRITE if write else 0)
