"""CancellationToken: ends queries that wait for replies.

Knows what can be cancelled, and waits for its last callback. Does not know queries.
"""

import threading
from typing import Any, Protocol

from zenlake.api.handlers import Sink
from zenlake.errors import ZError

TIDY_FROM = 64  # entries, before those that have ended are looked for


class Cancellable(Protocol):
    """A query in flight."""

    @property
    def sink(self) -> Sink[Any]: ...
    @property
    def ended(self) -> bool: ...
    def cancel(self) -> None: ...


class CancellationToken:
    """Given to `get`, it can end that query before its last reply has come.

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
        """Was `cancel` called?"""
        return self._cancelled

    def cancel(self, /) -> None:
        """End every query that was given this token, and all that will be.

        Returns when no callback of theirs is running, nor will run; called by such a callback, it
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
            self._entries = [entry for entry in self._entries if not _over(entry)]

    def add(self, entry: Cancellable) -> None:
        """Cancel `entry` when this is cancelled; a ZError when it is already."""
        with self._lock:
            if self._cancelled:
                raise ZError("Query was cancelled")
            if len(self._entries) >= self._tidy_at:
                self._entries = [entry for entry in self._entries if not _over(entry)]
                self._tidy_at = max(TIDY_FROM, 2 * len(self._entries))
            self._entries.append(entry)

    def __repr__(self) -> str:
        return f"CancellationToken(is_cancelled={self._cancelled})"


def _over(entry: Cancellable) -> bool:
    """Whether neither replies nor callbacks of it are to come."""
    return entry.ended and entry.sink.join(0)
