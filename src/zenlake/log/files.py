"""The files of a log: every call that changes a disk, the folder with log.json, the lock.

Knows names, descriptors and who may write. Does not know blocks.
"""

import errno
import json
import os
import re
import secrets
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from zenlake import filelock
from zenlake.errors import ZError
from zenlake.log.format import VERSION, Buffer

LOCK_SECONDS = 2.0  # how long a lock is waited for: readers hold it for moments
MAX_JSON_BYTES = 64 << 10  # of log.json and of what stands in a lock
MAX_BUFFERS = min(os.sysconf("SC_IOV_MAX"), 1024)  # of one pwritev
MAX_OFFSET = 1 << 62  # no offset reaches it
JSON, JSON_NEW = "log.json", "log.json.new"
SEGMENT_SUFFIX, INDEX_SUFFIX, NEW_SUFFIX = ".zlog", ".zidx", ".new"

_SEGMENT_NAME = re.compile(r"\d{20}" + re.escape(SEGMENT_SUFFIX))
_NEW_NAME = re.compile(_SEGMENT_NAME.pattern + re.escape(NEW_SUFFIX))
_NOT_FOREIGN = {JSON_NEW, "lost+found"}


class LogRefused(ZError):
    """A folder or file that is no log, or not one that can be written; the message says why."""


class LogLocked(ZError):
    """Another writer has the partition; the message says who."""


class Files:
    """Every system call of a writer that changes a disk, so that a test can replace them."""

    def open(self, path: Path, flags: int) -> int:
        """A descriptor; a symbolic link is refused."""
        return os.open(path, flags | os.O_NOFOLLOW, 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def pwritev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(descriptor, buffers, position)

    def fdatasync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def mkdir(self, path: Path) -> None:
        path.mkdir()

    def fsync_folder(self, path: Path) -> None:
        """What was created, renamed and removed in a folder is on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


FILES = Files()


def write_all(files: Files, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
    """All bytes of the buffers, however many calls that takes."""
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
    """Lets the memory go that views look at, even while an error remembers them."""
    for buffer in buffers:
        if isinstance(buffer, memoryview):
            buffer.release()


def segment_name(base: int) -> str:
    """
    >>> segment_name(42)
    '00000000000000000042.zlog'
    """
    return f"{base:020}{SEGMENT_SUFFIX}"


def segments(folder: Path) -> list[int]:
    """The base offsets of a partition's segments, in order."""
    return sorted(int(name[:20]) for name in _names(folder) if _SEGMENT_NAME.fullmatch(name))


def unfinished(folder: Path) -> list[Path]:
    """Segments whose creation did not come to its end."""
    return [folder / name for name in _names(folder) if _NEW_NAME.fullmatch(name)]


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def size_of(path: Path) -> int:
    """The bytes of a file; LogRefused if it is a link, a folder or anything else."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise LogRefused(f"{path} is no regular file: put the file itself there, or move it away")
    return found.st_size


def log_id(files: Files, path: Path, clock: Callable[[], int]) -> bytes:
    """The id of the log in a folder; a new log if the folder is missing or empty."""
    with suppress(FileNotFoundError):
        return read_id(path)
    _make_folder(files, path)
    files.fsync_folder(path.parent)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system that cannot lock a folder
            filelock.lock(folder, LOCK_SECONDS)  # another partition may be creating the log as well
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
    """A file that is there as a whole or not at all, and durable."""
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
    """What log.json says; FileNotFoundError if there is none."""
    file = path / JSON
    size = size_of(file)
    try:
        if size > MAX_JSON_BYTES:
            raise ValueError
        said = json.loads(file.read_bytes())
        found, text = said["format"], said["id"]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise LogRefused(f"{file} does not say which log this is: restore the file") from None
    if found != VERSION:
        raise LogRefused(
            f"{file}: format {found!r:.40} is unknown, only {VERSION} is known here: "
            "use a newer zenlake"
        )
    if not isinstance(text, str) or not re.fullmatch("[0-9a-f]{32}", text):
        raise LogRefused(f"{file}: the id is not 32 hex digits: restore the file")
    return bytes.fromhex(text)


class Lock:
    """A partition's only writer. It ends with its process, however that ends."""

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
            with suppress(OSError):  # a full disk: who it is stays unsaid
                files.truncate(self._descriptor, 0)
                who = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
                write_all(files, self._descriptor, [who.encode()], 0)
        except BaseException:
            _locks.discard(self)
            files.close(self._descriptor)
            raise

    def _holder(self) -> str:
        try:
            who = json.loads(os.pread(self._descriptor, MAX_JSON_BYTES, 0))
            return f"process {int(who['pid'])} on {str(who['host'])[:255]!r}"
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return "a process that did not say who it is"

    def release(self) -> None:
        if os.getpid() != self._pid:  # of a fork, which has let go already
            return
        with suppress(OSError):
            filelock.unlock(self._descriptor)
        self._files.close(self._descriptor)
        _locks.discard(self)

    def _in_child(self) -> None:
        """Without unlocking: the lock is the parent's, and must end with it."""
        with suppress(OSError):
            os.close(self._descriptor)


_locks: "WeakSet[Lock]" = WeakSet()


def _close_in_child() -> None:
    for lock in list(_locks):
        lock._in_child()
    _locks.clear()


os.register_at_fork(after_in_child=_close_in_child)
