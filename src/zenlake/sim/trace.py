"""What happened in a simulation: a running hash of every event, and the last ones as text.

Knows lines of text. Two runs are the same if their digests are.
"""

from collections import deque
from hashlib import blake2b

KEPT = 1000  # lines; older ones live on in the digest only
DIGEST_BYTES = 16


class Trace:
    """Every event is one line."""

    def __init__(self, kept: int = KEPT) -> None:
        self.count = 0
        self.last: deque[str] = deque(maxlen=kept)
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def add(self, line: str) -> None:
        self.count += 1
        self.last.append(line)
        self._hash.update(f"{line}\n".encode())

    @property
    def digest(self) -> str:
        """Of all lines so far."""
        return self._hash.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return (self.count, self.digest) == (other.count, other.digest)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Trace of {self.count} events, {self.digest}>"
