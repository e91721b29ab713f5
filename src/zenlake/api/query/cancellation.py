"""CancellationToken: ends queries in flight.

Knows what can be cancelled, and waits for running callbacks. Does not know queries.
"""

import threading
from typing import Any, Protocol, final

from zenlake.api.sinks import Sink
from zenlake.errors import ZError

TIDY_FROM = 64  # Least number of entries before ended ones are removed.


class Cancellable(Protocol):
    """Query in flight, as a token sees it."""

    @property
    def sink(self) -> Sink[Any]: ...
    @property
    def ended(self) -> bool: ...
    def cancel(self) -> None: ...


@final
class CancellationToken:
    """Token passed to `get` that can end the query before its last reply.

    >>> token = CancellationToken()
    >>> token.cancel()
    >>> token.is_cancelled
    True
    """

    __slots__ = ("__weakref__", "_cancelled", "_entries", "_lock", "_tidy_at")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._entries: list[Cancellable] = []
        self._tidy_at = TIDY_FROM

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self, /) -> None:
        """End every query with this token, present and future.

        Returns when none of their callbacks is running or will run. Called from such a callback, it
        does not wait for that one.
        """
        with self._lock:
            self._cancelled = True
            entries = self._entries[:]
        for entry in entries:
            entry.cancel()
        for entry in entries:
            entry.sink.join(None)
        with self._lock:
            self._entries = [entry for entry in self._entries if not _has_ended(entry)]

    def add(self, entry: Cancellable) -> None:
        """Cancel `entry` together with this token. ZError: the token is cancelled already."""
        with self._lock:
            if self._cancelled:
                raise ZError("Query was cancelled")
            if len(self._entries) >= self._tidy_at:
                self._entries = [entry for entry in self._entries if not _has_ended(entry)]
                self._tidy_at = max(TIDY_FROM, 2 * len(self._entries))
            self._entries.append(entry)

    def __repr__(self) -> str:
        return f"CancellationToken(is_cancelled={self._cancelled})"


def _has_ended(entry: Cancellable) -> bool:
    """Return whether neither replies nor callbacks of `entry` are outstanding."""
    return entry.ended and entry.sink.join(0)
