"""The files of a log: system calls that change a disk, log.json, the lock, removal of segments.

Knows file names, descriptors and the exclusive writer. Does not know blocks.
"""

import errno
import json
import logging
import os
import re
import secrets
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from zenlake import filelock
from zenlake.errors import ZError
from zenlake.log.format import VERSION, Buffer

log = logging.getLogger("zenlake.log")

LOCK_SECONDS = 2.0  # Seconds to wait for a lock: readers hold it for moments only.
MAX_JSON_BYTES = 64 << 10  # Upper bound on the size of log.json and of a lock file.
MAX_BUFFERS = min(getattr(os, "sysconf", lambda _: 16)("SC_IOV_MAX"), 1024)
"Upper bound on the buffers of one pwritev."
MAX_OFFSET = 1 << 62  # Every offset is below it.
JSON, JSON_NEW = "log.json", "log.json.new"
LOCK, MARK, TORN = "lock", "mark", "torn"  # Names in the folder of a partition.
SEGMENT_SUFFIX, INDEX_SUFFIX, NEW_SUFFIX = ".zlog", ".zidx", ".new"

_SEGMENT_NAME = re.compile(r"\d{20}" + re.escape(SEGMENT_SUFFIX))
_NEW_NAME = re.compile(_SEGMENT_NAME.pattern + re.escape(NEW_SUFFIX))
_NOT_FOREIGN = {JSON_NEW, "lost+found"}


class LogRefused(ZError):
    """A folder or file that is not a log, or cannot be written; the message says why."""


class LogLocked(ZError):
    """A partition that another writer has locked; the message names its process."""


def sync_data(descriptor: int) -> None:
    """Write a file's data to the disk: fdatasync() of Linux, F_FULLFSYNC of macOS, else fsync()."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    elif FULL_SYNC is not None:
        FULL_SYNC(descriptor)
    else:
        os.fsync(descriptor)


def _find_full_sync() -> Callable[[int], object] | None:
    """Return the call of macOS that also empties a disk's cache; None on other systems."""
    try:
        import fcntl
    except ImportError:  # Not a POSIX system.
        return None
    command = getattr(fcntl, "F_FULLFSYNC", None)
    return None if command is None else lambda descriptor: fcntl.fcntl(descriptor, command)


FULL_SYNC = _find_full_sync()


def _seek_and_read(descriptor: int, size: int, position: int) -> bytes:
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, size)


# Not on Windows: pread(). Only there: O_BINARY, without which line ends are changed.
read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_and_read)
READ_ONLY: int = os.O_RDONLY | getattr(os, "O_BINARY", 0)


def warn_of_weak_sync() -> None:
    """Log a warning where a disk may keep synced data in its cache only."""
    if not hasattr(os, "fdatasync") and FULL_SYNC is None:
        log.warning(
            "this system has neither fdatasync() nor F_FULLFSYNC: samples reported as durable "
            "survive a kill, but may be lost in a power failure"
        )


class Files:
    """The system calls that change a disk, in one class so that tests can replace them."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file and return its descriptor. A symbolic link is refused."""
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        if hasattr(os, "pwritev"):
            return os.pwritev(descriptor, buffers, position)
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.write(descriptor, buffers[0])

    def fdatasync(self, descriptor: int) -> None:
        sync_data(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def mkdir(self, path: Path) -> None:
        path.mkdir()

    def fsync_folder(self, path: Path) -> None:
        """Make creations, renames and removals in a folder durable; Windows has no call for it."""
        if not hasattr(os, "O_DIRECTORY"):
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


FILES = Files()


def write_all(files: Files, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
    """Write all bytes of the buffers, in as many calls as it takes."""
    views = [memoryview(buffer) for buffer in buffers if len(buffer)]
    try:
        while views:
            done = files.pwritev(descriptor, views[:MAX_BUFFERS], position)
            if done <= 0:
                raise OSError(errno.EIO, "the disk takes no bytes")
            position += done
            whole = 0
            while whole < len(views) and done >= len(views[whole]):
                done -= len(views[whole])
                whole += 1
            views = views[whole:]
            if done:
                views[0] = views[0][done:]
    finally:
        release(views)


def release(buffers: Sequence[Buffer]) -> None:
    """Release memoryviews, so that a traceback that refers to them keeps no memory alive."""
    for buffer in buffers:
        if isinstance(buffer, memoryview):
            buffer.release()


def segment_name(base: int) -> str:
    """Return the file name of the segment that starts at offset `base`.

    >>> segment_name(42)
    '00000000000000000042.zlog'
    """
    return f"{base:020}{SEGMENT_SUFFIX}"


def segments(folder: Path) -> list[int]:
    """Return the base offsets of a partition's segments, in order."""
    return sorted(int(name[:20]) for name in _names(folder) if _SEGMENT_NAME.fullmatch(name))


def unfinished_segments(folder: Path) -> list[Path]:
    """Return the files of segments whose creation was interrupted."""
    return [folder / name for name in _names(folder) if _NEW_NAME.fullmatch(name)]


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Trimmed(NamedTuple):
    """Number and bytes of segments that were removed."""

    segments: int
    bytes: int


def remove_oldest(
    files: Files,
    folder: Path,
    bases: Sequence[int],
    sizes: Sequence[int],
    is_expired: Callable[[int, int], bool],
) -> Iterator[int]:
    """Remove segments, the oldest first, and yield the size of each once its removal is durable.

    `is_expired(number, left)` decides by a segment's position in `bases` and by the bytes that
    are left. The first segment that is not expired ends the removal; the last one always stays.
    """
    left = sum(sizes)
    for number, base in enumerate(bases[:-1]):
        if not is_expired(number, left):
            return
        path = folder / segment_name(base)
        for name in (path, path.with_suffix(INDEX_SUFFIX)):
            with suppress(FileNotFoundError):  # Another process removed it, or it has no index.
                files.unlink(name)
        files.fsync_folder(folder)
        left -= sizes[number]
        yield sizes[number]


def is_before(bases: Sequence[int], time: int, latest: Callable[[int], int | None]) -> bool:
    """Return whether everything in the first segment was received before `time`.

    `latest` returns the latest time of reception in a segment. A segment without one (None) is
    judged by the next segment that has one.
    """
    for base in bases[:-1]:
        found = latest(base)
        if found is not None:
            return found < time
    return False


def size_of(path: Path) -> int:
    """Return the size of a file. Raise LogRefused if it is a link, a folder or anything else."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise LogRefused(
            f"{path} is not a regular file: put the file itself there, or move it away"
        )
    return found.st_size


def open_log(files: Files, path: Path, clock: Callable[[], int]) -> bytes:
    """Return the id of the log in a folder. Create the log if the folder is missing or empty."""
    warn_of_weak_sync()
    with suppress(FileNotFoundError):
        return read_id(path)
    _make_folder(files, path)
    files.fsync_folder(path.parent)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # Some file systems cannot lock a folder.
            filelock.lock(folder, LOCK_SECONDS)  # Another partition may be creating the log too.
        with suppress(FileNotFoundError):
            return read_id(path)
        foreign = sorted(_names(path) - _NOT_FOREIGN)
        if foreign:
            raise LogRefused(
                f"{path} has no {JSON} but other files ({foreign[0]!r}): "
                "a new log needs a folder of its own"
            )
        return _create(files, path, clock())
    finally:
        os.close(folder)


def _create(files: Files, path: Path, now: int) -> bytes:
    new = secrets.token_bytes(16)
    text = json.dumps({"format": VERSION, "id": new.hex(), "created": now})
    write_new(files, path / JSON_NEW, path / JSON, [text.encode()])
    return new


def write_new(files: Files, draft: Path, path: Path, buffers: Sequence[Buffer]) -> None:
    """Write a file durably, under another name first: `path` exists complete or not at all."""
    descriptor = files.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(files, descriptor, buffers, 0)
        files.fdatasync(descriptor)
    finally:
        files.close(descriptor)
    files.rename(draft, path)
    files.fsync_folder(path.parent)


def _make_folder(files: Files, path: Path) -> None:
    if not path.exists():
        _make_folder(files, path.parent)
        with suppress(FileExistsError):
            files.mkdir(path)
        files.fsync_folder(path.parent)


def read_id(path: Path) -> bytes:
    """Return the log's id from log.json. Raise FileNotFoundError if that is missing."""
    file = path / JSON
    size = size_of(file)
    try:
        if size > MAX_JSON_BYTES:
            raise ValueError
        content = json.loads(file.read_bytes())
        version, text = content["format"], content["id"]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise LogRefused(f"{file} does not say which log this is: restore the file") from None
    if version != VERSION:
        raise LogRefused(
            f"{file}: format {version!r:.40} is unknown, only {VERSION} is known here: "
            "use a newer zenlake"
        )
    if not isinstance(text, str) or not re.fullmatch("[0-9a-f]{32}", text):
        raise LogRefused(f"{file}: the id is not 32 hex digits: restore the file")
    return bytes.fromhex(text)


class Lock:
    """The exclusive lock of a partition's writer. The kernel frees it with its process."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._pid = os.getpid()
        self._descriptor = files.open(path, os.O_RDWR | os.O_CREAT)
        _locks.add(self)
        try:
            if not filelock.lock(self._descriptor, LOCK_SECONDS):
                raise LogLocked(
                    f"{path.parent} is being written by {self._holder()}: "
                    "stop that one first, or record to another partition"
                )
            with suppress(OSError):  # On a full disk the lock holds without the name of its holder.
                files.truncate(self._descriptor, 0)
                holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
                write_all(files, self._descriptor, [holder.encode()], 0)
        except BaseException:
            _locks.discard(self)
            files.close(self._descriptor)
            raise

    def _holder(self) -> str:
        try:
            holder = json.loads(read_at(self._descriptor, MAX_JSON_BYTES, 0))
            return f"process {int(holder['pid'])} on {str(holder['host'])[:255]!r}"
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return "a process that did not say who it is"

    def release(self) -> None:
        if os.getpid() != self._pid:  # In the child of a fork `close_in_child` has closed it.
            return
        with suppress(OSError):
            filelock.unlock(self._descriptor)
        self._files.close(self._descriptor)
        _locks.discard(self)

    def close_in_child(self) -> None:
        """Close the descriptor after a fork, without unlocking: the lock belongs to the parent."""
        with suppress(OSError):
            os.close(self._descriptor)


_locks: "WeakSet[Lock]" = WeakSet()


def _close_in_child() -> None:
    for lock in list(_locks):
        lock.close_in_child()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
