"""Reactor of a simulation: the methods of runtime's Reactor under the network's virtual clock.

Knows timers, and which ends of memory links are ready. Does not use threads or a wall clock. A
callback that raises ends the run instead of being logged.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from zenlake.runtime.polling import PollSource
from zenlake.runtime.reactor import Ready, Timer
from zenlake.sim.memory_link import MemoryLink, MemoryListener, Network
from zenlake.sim.trace import Trace

TURNS_AT_ONE_TIME = 100_000  # Above this callbacks must be calling each other endlessly.

End = MemoryLink | MemoryListener


class _Watch:
    """Registration of one end, with its callback."""

    __slots__ = ("end", "queued", "read", "ready", "write")

    def __init__(self, end: End, ready: Ready, read: bool, write: bool) -> None:
        self.end = end
        self.ready: Ready | None = ready
        self.read = read
        self.write = write
        self.queued = False


class SimReactor:
    """Reactor of all nodes of one network. Time passes only in run()."""

    inside = True
    "Always on the I/O thread, so that no call may wait."

    def __init__(self, network: Network, trace: Trace) -> None:
        self._network = network
        self._trace = trace
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = 0
        self._soon: deque[Callable[[], None]] = deque()
        self._watches: dict[End, _Watch] = {}
        self._roused: deque[_Watch] = deque()

    def now(self) -> float:
        return self._network.now

    def start(self) -> None:
        """Do nothing: run() takes the place of the I/O thread."""

    def stop(self) -> None:
        """Do nothing: the other nodes go on."""

    def abandon(self) -> None:
        """Do nothing: no descriptor is shared with another process."""

    @property
    def watched(self) -> list[End]:
        """The watched ends, in the order of their registration."""
        return list(self._watches)

    @property
    def timers(self) -> int:
        """Number of calls that are still due."""
        return sum(timer.call is not None for _, _, timer in self._timers)

    # ---- timers

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        timer = Timer(when, call)
        self._order += 1
        heappush(self._timers, (when, self._order, timer))
        return timer

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def off_thread(self, work: Callable[[], Callable[[], None]]) -> None:
        self.call_soon(work())

    # ---- sources

    def watch(self, source: PollSource, ready: Ready, *, read: bool, write: bool) -> None:
        end = _end(source)
        watch = self._watches[end] = _Watch(end, ready, read, write)
        end.on_ready = lambda: self._rouse(watch)
        self._rouse(watch)

    def change(self, source: PollSource, *, read: bool, write: bool) -> None:
        watch = self._watches[_end(source)]
        watch.read, watch.write = read, write
        self._rouse(watch)

    def forget(self, source: PollSource) -> None:
        watch = self._watches.pop(_end(source), None)
        if watch is not None:
            watch.ready = watch.end.on_ready = None

    def _rouse(self, watch: _Watch) -> None:
        if not watch.queued:
            watch.queued = True
            self._roused.append(watch)

    # ---- time

    def run(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Run all events up to `until`, or until `done()`; return whether `done()` held."""
        network, turns = self._network, 0
        while True:
            self._turn()
            turns += 1
            if turns > TURNS_AT_ONE_TIME:
                raise RuntimeError(
                    f"more than {TURNS_AT_ONE_TIME} turns at {network.now} s: "
                    "a callback calls itself again without waiting"
                )
            if self._roused or self._soon:
                continue
            if done is not None and done():
                return True
            when = self._next()
            if when > until:
                network.advance(until)
                return False
            if when > network.now:
                turns = 0
            network.advance(max(when, network.now))

    def _next(self) -> float:
        timers = self._timers
        while timers and timers[0][2].call is None:
            heappop(timers)
        event = self._network.next_event()
        return min(timers[0][0] if timers else inf, inf if event is None else event)

    def _turn(self) -> None:
        """Run one turn in the order of the Reactor: links, queued calls, timers."""
        for _ in range(len(self._roused)):
            self._check(self._roused.popleft())
        for _ in range(len(self._soon)):  # Calls that these add wait for the next turn.
            self._soon.popleft()()
        timers, now, due = self._timers, self._network.now, []
        while timers and timers[0][0] <= now:
            due.append(heappop(timers)[2])
        for timer in due:
            if timer.call is not None:  # An earlier call may have cancelled it.
                self._trace.add(f"{now!r} due {getattr(timer.call, '__qualname__', 'call')}")
                timer.call()

    def _check(self, watch: _Watch) -> None:
        """Call back if the end is ready, and check it again in the next turn."""
        watch.queued = False
        ready, end = watch.ready, watch.end
        readable, writable = watch.read and end.readable, watch.write and end.writable
        if ready is None or not (readable or writable):
            return
        self._trace.add(f"{self._network.now!r} ready {end.route} {readable:d}{writable:d}")
        ready(readable, writable)
        if watch.ready is not None and (
            (watch.read and end.readable) or (watch.write and end.writable)
        ):
            self._rouse(watch)


def _end(source: PollSource) -> End:
    assert isinstance(source, End), f"{source} is not of a simulated network"
    return source
