"""Periodic calls: one daemon thread for all of them, which exists only while there are any.

Knows periods and the monotonic clock. Does not know what it calls.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

log = logging.getLogger("zenlake.ext")

LAST_CALL = 1.0  # Seconds that cancel() waits for a running call.


class Periodic:
    """Call that is repeated every `period` seconds until it is cancelled or returns False."""

    def __init__(
        self, scheduler: "Scheduler", period: float, call: Callable[[], bool | None]
    ) -> None:
        self.period = period
        self.call = call
        self._scheduler = scheduler

    def cancel(self) -> None:
        """Stop the calls. Waits for a running one, but not from within it."""
        self._scheduler.remove(self)


class Scheduler:
    """Makes the calls one after another; a late call is made once, not once per missed period."""

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Periodic]] = []
        self._order = count()
        self._running: Periodic | None = None
        self._thread: threading.Thread | None = None

    def every(self, period: float, call: Callable[[], bool | None]) -> Periodic:
        periodic = Periodic(self, period, call)
        with self._changed:
            self._push(periodic, time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="zenlake-periodic", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
        return periodic

    def remove(self, periodic: Periodic) -> None:
        with self._changed:
            self._due = [entry for entry in self._due if entry[2] is not periodic]
            heapify(self._due)
            self._changed.notify_all()
            thread = self._thread
            if thread is None or thread is threading.current_thread():
                return
            if not self._changed.wait_for(lambda: self._running is not periodic, LAST_CALL):
                log.warning(
                    "a periodic call takes longer than %s s; it is not waited for", LAST_CALL
                )
                return
            idle = not self._due and self._running is None
        if idle:
            thread.join(LAST_CALL)

    def _push(self, periodic: Periodic, now: float) -> None:
        heappush(self._due, (now + periodic.period, next(self._order), periodic))

    def _run(self) -> None:
        while (periodic := self._next()) is not None:
            try:
                if periodic.call() is False:
                    self.remove(periodic)
            except Exception:
                log.exception("a periodic call failed; it goes on")

    def _next(self) -> Periodic | None:
        """Wait for the next call that is due; None when none is left, which ends the thread."""
        with self._changed:
            self._running = None
            self._changed.notify_all()
            while self._due:
                wait = self._due[0][0] - time.monotonic()
                if wait <= 0:
                    periodic = heappop(self._due)[2]
                    self._push(periodic, time.monotonic())
                    self._running = periodic
                    return periodic
                self._changed.wait(wait)
            self._thread = None
            return None


SCHEDULER = Scheduler()
