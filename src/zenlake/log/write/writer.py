"""The writer of one partition: blocks go in, and are durable when `write` returns.

Knows the order of a commit, rotation and what a failed write means. One thread calls it.
"""

import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from zenlake.errors import ZError
from zenlake.log import MAX_PARTITION
from zenlake.log.block import OpenBlock
from zenlake.log.files import (
    FILES,
    MAX_OFFSET,
    NEW_SUFFIX,
    Files,
    Lock,
    LogLocked,
    LogRefused,
    log_id,
    release,
    segment_name,
    write_all,
)
from zenlake.log.format import (
    CODECS,
    SEGMENT_BYTES,
    SETTLED,
    WRITING,
    BlockHeader,
    Buffer,
    Mark,
    SegmentHeader,
)
from zenlake.log.read.retention import Removed, Retention
from zenlake.log.write.recovery import MARK, Damage, Recovery, ResumePoint, Torn, recover

__all__ = [
    "Damage",
    "LogLocked",
    "LogRefused",
    "LogWriteError",
    "Recovery",
    "Removed",
    "Torn",
    "Writer",
]

LOCK = "lock"
ROTATE_BYTES = 256 << 20
_REMEDY = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there, or raise the quota",
    errno.EROFS: "make the file system writable",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EMFILE: "raise the limit of open files",
    errno.ENFILE: "raise the limit of open files",
    errno.ENOENT: "put the folder back",
}


class LogWriteError(ZError):
    """A partition that cannot be written now: `path`, and `reason`, what the disk said."""

    def __init__(self, path: Path, reason: OSError) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        number = self.reason.errno or 0
        remedy = _REMEDY.get(number, "check the disk")
        return (
            f"{self.path}: {self.reason.strerror or self.reason} "
            f"({errno.errorcode.get(number, number)}): "
            f"nothing is acknowledged until a write works: {remedy}"
        )


class Writer:
    """Appends blocks to one partition of a log.

    >>> import tempfile
    >>> from zenlake.log.block import SourceLink
    >>> folder = tempfile.TemporaryDirectory()
    >>> block = OpenBlock()
    >>> block.add(block.link(SourceLink(0, 0, b"")), True, 1, 2, b"two messages")
    >>> with Writer(folder.name) as writer:
    ...     writer.write([block]).offset
    2
    >>> with Writer(folder.name) as writer:
    ...     writer.next
    2
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: Path | str,
        partition: int = 0,
        *,
        codec: str = "none",
        rotate_bytes: int = ROTATE_BYTES,
        retain_bytes: int | None = None,
        retain_seconds: float | None = None,
        files: Files = FILES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Makes the log if it is missing, takes the lock, recovers.

        LogLocked if another writer is there, LogRefused if this is no log or one that is not
        known here, LogWriteError if the disk does not let it.
        """
        if codec not in CODECS:
            raise ZError(f"codec {codec!r} is unknown: take one of {', '.join(CODECS)}")
        if not 0 <= partition <= MAX_PARTITION:
            raise ZError(f"partition {partition} is not between 0 and {MAX_PARTITION}")
        self.path = Path(path)
        self.partition = partition
        self.folder = self.path / str(partition)
        self.failure: LogWriteError | None = None
        "Why nothing is acknowledged now."
        self.retention_failure: LogWriteError | None = None
        "Why the last run of retention did not come to its end."
        self._keep = (retain_bytes, retain_seconds)
        self._codec = CODECS.index(codec)
        self._rotate_bytes = rotate_bytes
        self._files = files
        self._clock = clock
        self._lock: Lock | None = None
        self._segment: int | None = None
        "Its descriptor; None after a failure."
        self._uncut: tuple[Path, int] | None = None
        "A segment that has more than what is durable, and where that starts."
        self._marks: int | None = None
        self._pid = os.getpid()
        try:
            self._open()
        except OSError as error:
            self._let_go()
            raise LogWriteError(self.folder, error) from error
        except BaseException:
            self._let_go()
            raise

    def _open(self) -> None:
        files = self._files
        self.log_id = log_id(files, self.path, self._clock)
        self._retention = Retention(self.folder, self.log_id, self.partition, *self._keep)
        with suppress(FileExistsError):
            files.mkdir(self.folder)
        files.fsync_folder(self.path)
        self._lock = Lock(files, self.folder / LOCK)
        place, self.recovery = recover(files, self.folder, self.log_id, self.partition)
        self.mark = self._after(place)
        if place.segment is None:
            self._start()
        else:
            self._segment = files.open(self._segment_path, os.O_RDWR)
            files.fdatasync(self._segment)
            files.fsync_folder(self.folder)
        self._marks = files.open(self.folder / MARK, os.O_RDWR | os.O_CREAT)
        if self.recovery.mark is None:
            files.truncate(self._marks, 0)
        self._move(self.mark)
        files.fdatasync(self._marks)  # an older one, SETTLED, must not come back
        files.fsync_folder(self.folder)

    def _after(self, place: ResumePoint) -> Mark:
        found = self.recovery.mark
        return Mark(
            0 if found is None else found.sequence,
            place.offset,
            place.offset if place.segment is None else place.segment,
            place.position,
            place.time,
            place.last,
            WRITING,
        )

    @property
    def next(self) -> int:
        """The offset of the next sample."""
        return self.mark.offset

    def write(self, blocks: Sequence[OpenBlock]) -> Mark:
        """Writes a group of blocks; it is durable when this returns.

        LogWriteError if it is not: nothing of the group is acknowledged, and the same blocks can
        be given again. They then go to a new segment.
        """
        if self._marks is None or os.getpid() != self._pid:
            raise ZError(f"the writer of {self.folder} is closed, or of another process: open one")
        buffers, heads = self._encode(blocks)
        if not heads:
            return self.mark
        length = sum(head.length for head in heads)
        try:
            descriptor = self._descriptor(length)
            mark = self.mark
            self._uncut = (self._segment_path, mark.position)
            write_all(self._files, descriptor, buffers, mark.position)
            self._files.fdatasync(descriptor)
            self._move(
                mark._replace(
                    offset=heads[-1].end,
                    position=mark.position + length,
                    time=max(mark.time, *(head.last_time for head in heads)),
                    last=heads[-1].crc,
                )
            )
        except BaseException as error:
            self._abandon()
            if not isinstance(error, OSError):
                raise
            self.failure = LogWriteError(self._segment_path, error)
            raise self.failure from error
        finally:
            release(buffers)
        self._uncut = self.failure = None
        return self.mark

    def _encode(self, blocks: Sequence[OpenBlock]) -> tuple[list[Buffer], list[BlockHeader]]:
        buffers: list[Buffer] = []
        heads: list[BlockHeader] = []
        base, previous = self.mark.offset, self.mark.last
        for block in blocks:
            if block:
                parts, head = block.encode(self.log_id, self.partition, base, previous, self._codec)
                buffers += parts
                heads.append(head)
                base, previous = head.end, head.crc
        if base >= MAX_OFFSET:
            raise ZError(f"{self.folder} has no more offsets: record to another partition")
        return buffers, heads

    def _descriptor(self, length: int) -> int:
        """Of the segment that the next `length` bytes go to."""
        mark = self.mark
        if self._segment is None:
            return self._resume()
        if mark.offset > mark.segment and mark.position + length > self._rotate_bytes:
            self._rotate()
        return self._segment

    def _rotate(self) -> None:
        """All that the segment holds is durable: nothing is left to do for it."""
        self._retention.ended(self.mark.segment, min(self.mark.time, self._clock()))
        self._close_segment()
        try:
            self._start()
        finally:
            self.trim()

    def _start(self) -> int:
        """A new segment, durable before a block of it is; never over one that has blocks."""
        files, mark = self._files, self.mark
        path = self.folder / segment_name(mark.offset)
        draft = path.with_name(path.name + NEW_SUFFIX)
        head = SegmentHeader(
            self.partition, self.log_id, mark.offset, self._clock(), mark.last
        ).encode()
        descriptor = files.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(files, descriptor, [head], 0)
            files.fdatasync(descriptor)
            files.rename(draft, path)
            files.fsync_folder(self.folder)
        except BaseException:
            with suppress(OSError):
                files.close(descriptor)
            raise
        self._segment = descriptor
        self.mark = mark._replace(segment=mark.offset, position=SEGMENT_BYTES)
        return descriptor

    def _resume(self) -> int:
        """After a failure: a new segment, or the same one if it has losses but no sample."""
        mark = self.mark
        if mark.offset > mark.segment or mark.position <= SEGMENT_BYTES:
            with suppress(OSError):
                self._cut()
            return self._start()
        self._uncut = (self._segment_path, mark.position)
        self._cut()
        self._segment = self._files.open(self._segment_path, os.O_RDWR)
        return self._segment

    def _abandon(self) -> None:
        """The descriptor is not used again, and what is not durable goes if it can."""
        self._close_segment()
        with suppress(OSError):
            self._cut()

    def _cut(self) -> None:
        if self._uncut is not None:
            path, position = self._uncut
            descriptor = self._files.open(path, os.O_RDWR)
            try:
                self._files.truncate(descriptor, position)
                self._files.fdatasync(descriptor)
            finally:
                self._files.close(descriptor)
            self._uncut = None

    def _move(self, mark: Mark) -> None:
        assert self._marks is not None
        mark = mark._replace(sequence=mark.sequence + 1)
        write_all(self._files, self._marks, [mark.encode()], mark.place)
        self.mark = mark

    @property
    def _segment_path(self) -> Path:
        return self.folder / segment_name(self.mark.segment)

    def trim(self) -> Removed:
        """Removes what retention does not keep; a failure is told by `retention_failure`.

        What is too old is so by the samples' times and by the clock, so that neither alone, gone
        wrong, removes anything.
        """
        before = self.removed
        try:
            now = min(self.mark.time, self._clock())
            self._retention.run(self._files, self.mark.segment, now)
            self.retention_failure = None
        except OSError as error:
            self.retention_failure = LogWriteError(self.folder, error)
        return self.removed.plus(-before.segments, -before.bytes)

    @property
    def removed(self) -> Removed:
        """By retention, since the writer was opened."""
        return self._retention.removed

    def disk_left(self) -> int:
        """Bytes that the file system still takes; 0 if it does not say."""
        try:
            found = os.statvfs(self.folder)
        except OSError:  # the folder is gone: the next write says so
            return 0
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        """Says that nobody writes any more, and gives the lock back. In the child of a fork it
        only lets go: the log is the parent's."""
        if self._marks is not None and os.getpid() == self._pid:
            with suppress(OSError):  # whoever finds the lock free settles it then
                self._cut()
                self._move(self.mark._replace(state=SETTLED))
                self._files.fdatasync(self._marks)
        self._let_go()

    def _let_go(self) -> None:
        self._close_segment()
        if self._marks is not None:
            with suppress(OSError):
                self._files.close(self._marks)
            self._marks = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _close_segment(self) -> None:
        if self._segment is not None:
            with suppress(OSError):
                self._files.close(self._segment)
            self._segment = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
