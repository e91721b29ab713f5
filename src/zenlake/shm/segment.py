"""Segments of shared memory: files of /dev/shm that several processes map.

Knows names, locks and removal as Rust nodes have them (`zenoh-shm/src/shm/unix.rs`): each process
that maps a segment holds a shared lock of its file; a file without a lock is an orphan, which the
next process removes. Does not know what a segment holds.
"""

import atexit
import ctypes
import importlib.util
import logging
import mmap
import os
import secrets
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Self

from zenlake.errors import ZError

with suppress(ImportError):  # Missing on systems that are not POSIX: `unavailable` says so.
    import fcntl

log = logging.getLogger("zenlake.shm")

FOLDER = Path("/dev/shm")
SUFFIX = ".zenoh"
MODE = 0o600  # Processes of the same user only.
TRIES = 100  # Random numbers tried for a new segment before giving up.
NEW_SECONDS = 10.0  # Age below which an empty file is one that another process is making.
MAX_SWEPT = 10_000  # Files looked at for orphans.
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0)


class ShmError(ZError):
    """Shared memory cannot be used; messages travel over the network instead."""


def unavailable() -> str | None:
    """Return why this system has no shared memory for Zenoh; None: it has."""
    if not sys.platform.startswith("linux") or not hasattr(os, "posix_fallocate"):
        return f"shared memory needs Linux, and this is {sys.platform}"
    if not os.access(FOLDER, os.R_OK | os.W_OK | os.X_OK):
        return f"{FOLDER} cannot be written: in a container, mount one (docker run --shm-size)"
    if not _has_compiler():
        return "llvmlite cannot be imported, which compiles the atomic operations: install numba"
    return None


def _has_compiler() -> bool:
    try:
        return importlib.util.find_spec("llvmlite") is not None
    except ValueError:  # Something that is not a package has taken its name.
        return False


class Segment:
    """A mapped segment. Its number is the name of its file."""

    def __init__(self, number: int, fd: int, *, own: bool) -> None:
        self._fd = -1
        self.number = number
        self.own = own
        "Whether this process made it."
        self.size = os.fstat(fd).st_size
        self._pid = os.getpid()
        flags = mmap.MAP_SHARED | NO_RESERVE
        try:
            self.map = mmap.mmap(fd, self.size, flags)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise ShmError(f"shared memory segment {number}: cannot be mapped: {error}") from None
        self._fd = fd
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        if own:
            _keep_until_exit(self)

    @classmethod
    def create(cls, size: int, bits: int) -> Self:
        """Create a segment of `size` bytes with a random number of `bits` bits.

        Its memory is reserved here: a write to memory that the system has not would kill the
        process.
        """
        _sweep_once()
        for _ in range(TRIES):
            number = secrets.randbits(bits)
            fd = _create_file(number)
            if fd is None:
                continue
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError as error:
                _path(number).unlink(missing_ok=True)
                os.close(fd)
                raise ShmError(
                    f"no shared memory of {size} bytes: {error.strerror}; enlarge {FOLDER}, or "
                    "ask for less"
                ) from None
            return cls(number, fd, own=True)
        raise ShmError(f"no free number for a shared memory segment after {TRIES} tries")

    @classmethod
    def open(cls, number: int, *, size: int | None = None) -> Self:
        """Map the segment of another process. ShmError: it is gone, or has another size."""
        _sweep_once()
        try:
            fd = os.open(_path(number), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ShmError(f"shared memory segment {number}: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            status = os.fstat(fd)
            if status.st_uid != os.geteuid():  # Root could open it, and the owner shrink it.
                raise ShmError(f"shared memory segment {number}: belongs to another user")
            found = status.st_size
            if not found or (size is not None and found != size):
                raise ShmError(
                    f"shared memory segment {number}: has {found} bytes instead of {size}: the "
                    "other node is of another Zenoh version"
                )
        except OSError as error:
            os.close(fd)
            raise ShmError(f"shared memory segment {number}: {error.strerror}") from None
        except ShmError:
            os.close(fd)
            raise
        return cls(number, fd, own=False)

    def close(self) -> None:
        """Remove the segment's file if no other process needs it. May be called again.

        The memory stays mapped as long as an object refers to the segment: other threads, and
        views, may still use its addresses.
        """
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self._pid == os.getpid():  # A child of a fork leaves it to its parent.
            if self.own or _is_unused(fd):
                with suppress(OSError):
                    _path(self.number).unlink()
            _made.discard(self)
        os.close(fd)

    def is_abandoned(self) -> bool:
        """Whether the segment is of another process, and this is the last one that maps it."""
        abandoned = not self.own and _is_unused(self._fd)
        with suppress(OSError):  # The question has cost the lock, whatever the answer.
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return abandoned

    def __del__(self) -> None:
        if self._fd >= 0 and not sys.is_finalizing():
            self.close()

    def __repr__(self) -> str:
        return f"<Segment {self.number} of {self.size} bytes>"


def sweep_orphans() -> int:
    """Remove the segments that no process uses any more, of any Zenoh node; return how many."""
    removed = 0
    with suppress(OSError):
        for entry in list(os.scandir(FOLDER))[:MAX_SWEPT]:
            name, dot, suffix = entry.name.partition(".")
            if name.isdecimal() and dot + suffix == SUFFIX:
                removed += _remove_orphan(Path(entry.path))
    return removed


def _remove_orphan(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # Gone, or of another user.
        return False
    try:
        found = os.fstat(fd)
        is_new = not found.st_size and time.time() - found.st_mtime < NEW_SECONDS
        if is_new or not _is_unused(fd):
            return False
        path.unlink()
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def _path(number: int) -> Path:
    return FOLDER / f"{number}{SUFFIX}"


def _create_file(number: int) -> int | None:
    """Create and lock the file of a new segment; None: another process has it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(_path(number), flags, MODE)
    except FileExistsError:
        return None
    except OSError as error:
        raise ShmError(f"{FOLDER} takes no new file: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # A sweep of another process may have removed it before it was locked.
        if _path(number).stat().st_ino == os.fstat(fd).st_ino:
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _is_unused(fd: int) -> bool:
    """Whether no other process has mapped the segment."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# ---- the life of this process

_lock = threading.Lock()
_swept = False
_made: weakref.WeakSet[Segment] = weakref.WeakSet()


def _sweep_once() -> None:
    global _swept
    with _lock:
        if _swept:
            return
        _swept = True
    sweep_orphans()


def _keep_until_exit(segment: Segment) -> None:
    with _lock:
        _made.add(segment)


@atexit.register  # When imported, so that it runs after sessions have ended and sent the rest.
def _on_exit() -> None:
    """Remove the segments of this process; the memory goes with it."""
    if _swept:  # It has used shared memory.
        for segment in list(_made):
            segment.close()
        sweep_orphans()


def _after_fork() -> None:
    global _lock, _made
    _lock = threading.Lock()
    _made = weakref.WeakSet()  # They belong to the parent.


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
