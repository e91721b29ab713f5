"""Trace of a simulation: a running hash of every event, and the last events as text.

Knows lines of text. Two runs are equal if their digests are.
"""

from collections import deque
from hashlib import blake2b

KEPT_LINES = 1000  # Lines kept as text; older ones are in the digest only.
DIGEST_BYTES = 16


class Trace:
    """Log of events, one per line."""

    def __init__(self, kept: int = KEPT_LINES) -> None:
        self.count = 0
        self.last: deque[str] = deque(maxlen=kept)
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def add(self, line: str) -> None:
        self.count += 1
        self.last.append(line)
        self._hash.update(f"{line}\n".encode())

    @property
    def digest(self) -> str:
        """Hash of all lines so far."""
        return self._hash.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return (self.count, self.digest) == (other.count, other.digest)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Trace of {self.count} events, {self.digest}>"
