"""Exclusive locks on open files: one holder at a time, freed by the kernel when that one ends.

Knows flock(2) alone. Does not know which file stands for what, or what to tell about its holder.
"""

import errno
import time
from typing import Protocol

try:
    import fcntl
except ImportError:  # Not a POSIX system.
    HAS_FLOCK = False
else:
    HAS_FLOCK = True

POLL_SECONDS = 0.01  # Pause between two attempts to take a lock that another process holds.


class HasDescriptor(Protocol):
    """Open file with a descriptor."""

    def fileno(self) -> int: ...


def lock(file: int | HasDescriptor, seconds: float = 0.0) -> bool:
    """Lock an open file; return False if another holder does not let go within `seconds`.

    The lock belongs to the open file: closing its last descriptor frees it. OSError: the file
    system refuses locks.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as first, open(first.name) as second:
    ...     lock(first), lock(second), lock(first)
    (True, False, True)
    """
    if not HAS_FLOCK:
        raise OSError(errno.ENOTSUP, "this system has no flock(): files cannot be locked")
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(POLL_SECONDS)
        else:
            return True


def unlock(file: int | HasDescriptor) -> None:
    """Free a lock at once, also for descriptors that other processes inherited."""
    fcntl.flock(file, fcntl.LOCK_UN)
