"""Bounded cache: a dictionary that is emptied when it is full, or when its version is outdated.

Knows how many entries it may hold and how long a key may be. Does not know what it caches.
"""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

LONG_KEY = 1024  # Longest key whose entry is kept: hostile keys must not fill memory.


class BoundedCache(dict[K, V], Generic[K, V]):
    """Dictionary of at most `limit` entries; look-ups cost what those of a dict cost.

    >>> cache = BoundedCache[str, int](2)
    >>> for key in ("a", "b", "c"):
    ...     _ = cache.keep(key, ord(key), len(key))
    >>> cache
    {'c': 99}
    >>> cache.renew(1)
    >>> cache
    {}
    """

    __slots__ = ("limit", "version")

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.version = -1
        "Version of the data that the entries were computed from."

    def keep(self, key: K, value: V, length: int = 0) -> V:
        """Add an entry unless its key, of `length` bytes, is too long; return `value`."""
        if length <= LONG_KEY:
            if len(self) >= self.limit:
                self.clear()
            self[key] = value
        return value

    def renew(self, version: int) -> None:
        """Drop all entries unless they were computed from `version`."""
        if self.version != version:
            self.version = version
            self.clear()
