"""Segments of shared memory: files of /dev/shm that several processes map.

Knows names, locks and removal as Rust nodes have them (`zenoh-shm/src/shm/unix.rs`): each process
that maps a segment holds a shared lock of its file; a file without a lock is an orphan, which the
next process removes. A reader also marks the file, which tells it from the owner. Does not know
what a segment holds.
"""

import atexit
import ctypes
import importlib.util
import logging
import mmap
import os
import secrets
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
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
LOCKS = Path("/proc/locks")  # All locks of files, one per line.
LOCK_KIND, LOCK_FILE = 1, 5  # Words of a line of LOCKS: the kind of lock, and the file.
FLOCK_FORMAT = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, process.
CHILD_PRIORITY = -10
"""Priority of the clean-up among the finalizers of a multiprocessing child: the last of them."""


class ShmError(ZError):
    """Shared memory cannot be used; messages travel over the network instead."""


def unavailable() -> str | None:
    """Return why this system has no shared memory for Zenoh; None: it has."""
    if not sys.platform.startswith("linux") or not hasattr(os, "posix_fallocate"):
        return f"shared memory needs Linux, and this is {sys.platform}"
    if not os.access(FOLDER, os.R_OK | os.W_OK | os.X_OK):
        return f"{FOLDER} cannot be written: in a container, mount one (docker run --shm-size)"
    for package in ("numba", "llvmlite"):
        if not _is_installed(package):
            return f"{package} cannot be imported, which the atomic operations need: install numba"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "NUMBA_DISABLE_JIT is set, and the atomic operations have to be compiled"
    return None


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # It is blocked, or not a package.
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
        self._left = False
        self._lock = threading.RLock()
        "Guards the descriptor, which another thread may close."
        flags = mmap.MAP_SHARED | NO_RESERVE
        try:
            self.map = mmap.mmap(fd, self.size, flags)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise ShmError(f"shared memory segment {number}: cannot be mapped: {error}") from None
        self._fd = fd
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
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
            _mark_reader(fd)
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
        if self._pid != os.getpid():  # A child of a fork leaves the file, and the lock, to others.
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
            return
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd < 0:
                return
            if self.own or _is_unused(fd):
                self._left = not self.own
                with suppress(OSError):
                    if os.fstat(fd).st_nlink:  # Otherwise another segment may have the name.
                        _path(self.number).unlink()
            _mapped.discard(self)
            os.close(fd)

    def is_abandoned(self) -> bool:
        """Whether the segment is of another process, and this is the last one that maps it."""
        with self._lock:
            if self._fd < 0:
                return self._left
            abandoned = not self.own and _is_unused(self._fd)
            with suppress(OSError):  # The question has cost the lock, whatever the answer.
                fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._left = self._left or abandoned
        return abandoned

    def is_ended(self) -> bool:
        """Whether the segment is of another process, which has removed it, or has left it to this
        one: no further pointer leads there."""
        with self._lock:
            if self._fd >= 0 and not self.own and not os.fstat(self._fd).st_nlink:
                return True
        return self.is_abandoned()

    def is_left(self) -> bool:
        """Whether the segment is of another process, which has unmapped it: its bytes no longer
        change.

        False in doubt: in the child of a fork, and where a reader of eclipse-zenoh maps it, too.
        """
        if self.own or self._left or self._pid != os.getpid():
            return self._left
        with self._lock:
            if self._fd < 0:
                self._left = self._left or not _path(self.number).exists()
            elif not self.is_abandoned():
                flocks, marks = _locks(self._fd)
                self._left = not os.fstat(self._fd).st_nlink or 1 < flocks <= marks
        return self._left

    def may_be_passed_on(self) -> bool:
        """Whether a process maps this own segment that may send pointers of it to others.

        Nodes of eclipse-zenoh do, and have no marks; nodes of this package do not.
        """
        with self._lock:
            if self._fd < 0:
                return False
            flocks, marks = _locks(self._fd)
        return flocks - 1 > marks

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


def _mark_reader(fd: int) -> None:
    """Mark the file as read by this process, with a lock that only readers have.

    It belongs to the open file as the other lock does, and conflicts with none.
    """
    with suppress(OSError, AttributeError):  # Without marks the owner may be any process.
        record = struct.pack(FLOCK_FORMAT, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, record)


def _locks(fd: int) -> tuple[int, int]:
    """Return how many processes have mapped a segment, and how many of them are marked readers;
    (0, 0): the system does not tell."""
    status = os.fstat(fd)
    device = status.st_dev
    file = f"{os.major(device):02x}:{os.minor(device):02x}:{status.st_ino}"
    kinds: list[str] = []
    try:
        with LOCKS.open() as lines:
            for line in lines:
                words = line.split()
                if len(words) > LOCK_FILE and words[LOCK_FILE] == file:
                    kinds.append(words[LOCK_KIND])
    except OSError:
        return 0, 0
    return kinds.count("FLOCK"), kinds.count("OFDLCK")


# ---- the life of this process

_lock = threading.Lock()
_swept = False
_mapped: weakref.WeakSet[Segment] = weakref.WeakSet()
_endings: list[Callable[[], None]] = []


def _sweep_once() -> None:
    global _swept
    with _lock:
        if _swept:
            return
        _swept = True
    sweep_orphans()
    _clean_up_child()


def _clean_up_child() -> None:
    """Clean up at the end of a child of multiprocessing, which runs no `atexit`."""
    processes, finalizers = map(
        sys.modules.get, ("multiprocessing.process", "multiprocessing.util")
    )
    if processes is None or finalizers is None or processes.parent_process() is None:
        return
    finalizers.Finalize(None, _on_exit, exitpriority=CHILD_PRIORITY)


def _keep_until_exit(segment: Segment) -> None:
    with _lock:
        _mapped.add(segment)


def before_exit(call: Callable[[], None]) -> None:
    """Call `call` when this process ends, before its segments are removed."""
    _endings.append(call)


@atexit.register  # When imported, so that it runs after sessions have ended and sent the rest.
def _on_exit() -> None:
    """Remove the segments of this process, and segments that killed processes have left to it; the
    memory goes with the process."""
    if _swept:  # It has used shared memory.
        for call in _endings:
            call()
        for segment in list(_mapped):
            segment.close()
        sweep_orphans()


def _after_fork() -> None:
    global _lock, _mapped, _swept
    _lock = threading.Lock()
    _mapped = weakref.WeakSet()  # They belong to the parent.
    _swept = False  # Children that ended by os._exit have left segments to this one.
    _endings.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
