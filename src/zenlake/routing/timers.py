"""Timers: a heap of pending items by deadline. Does not read a clock: the time is an argument."""

import heapq
import itertools
from typing import Generic, Protocol, TypeVar

SLACK = 64  # Finished entries that may stay in the heap before it is rebuilt.


class ArmedTimer(Protocol):
    """Item with a deadline."""

    when: float
    done: bool


W = TypeVar("W", bound=ArmedTimer)


class Timers(Generic[W]):
    """Items that wait until their deadline `when`, or until they are `done`."""

    __slots__ = ("_heap", "_live", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, W]] = []
        self._numbers = itertools.count()
        self._live = 0

    def add(self, waiting: W) -> None:
        heapq.heappush(self._heap, (waiting.when, next(self._numbers), waiting))
        self._live += 1

    def finish(self, waiting: W) -> None:
        """Mark an item as done, so that it never becomes due."""
        if waiting.done:
            return
        waiting.done = True
        self._live -= 1
        if len(self._heap) > 2 * self._live + SLACK:
            self._heap = [entry for entry in self._heap if not entry[2].done]
            heapq.heapify(self._heap)

    @property
    def deadline(self) -> float | None:
        """The earliest deadline; None: no item waits."""
        while self._heap and self._heap[0][2].done:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[W]:
        """Return the items whose deadline has passed, earliest first; the caller finishes each."""
        found = []
        while (deadline := self.deadline) is not None and deadline <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found
