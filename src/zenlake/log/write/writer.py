"""The writer of one partition: a block is durable when `write` returns.

Knows the order of a commit, rotation and failed writes. Not thread-safe: one thread calls it.
"""

import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from zenlake import filelock
from zenlake.errors import ZError
from zenlake.log import MAX_PARTITION
from zenlake.log.block import OpenBlock
from zenlake.log.files import (
    FILES,
    LOCK,
    MARK,
    MAX_OFFSET,
    NEW_SUFFIX,
    Files,
    Lock,
    LogRefused,
    Trimmed,
    open_log,
    release,
    segment_name,
    write_all,
    write_new,
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
from zenlake.log.read.retention import Retention
from zenlake.log.write.recovery import ResumePoint, recover

ROTATE_BYTES = 256 << 20  # Size from which the next blocks go to a new segment.
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
    """A failed write to a partition.

    `path` is the file or folder, `reason` the error of the operating system.
    """

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
    """Writer that appends blocks to one partition of a log.

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
        """Create the log if it is missing, take the partition's lock, and recover.

        Raise LogLocked if another writer has the lock, LogRefused if the folder is not a log or
        has an unknown format, LogWriteError if the disk refuses.
        """
        if codec not in CODECS:
            raise ZError(f"codec {codec!r} is unknown: take one of {', '.join(CODECS)}")
        if not 0 <= partition <= MAX_PARTITION:
            raise ZError(f"partition {partition} is not between 0 and {MAX_PARTITION}")
        self.path = Path(path)
        self.partition = partition
        self.folder = self.path / str(partition)
        self.failure: LogWriteError | None = None
        "The last write's error; None while writing works."
        self.retention_failure: LogWriteError | None = None
        "The error that ended the last run of retention; None if there was none."
        self._keep = (retain_bytes, retain_seconds)
        self._codec = CODECS.index(codec)
        self._rotate_bytes = rotate_bytes
        self._files = files
        self._clock = clock
        self._lock: Lock | None = None
        self._segment: int | None = None
        "Descriptor of the current segment; None after a failure."
        self._uncut: tuple[Path, int] | None = None
        "A segment that may have bytes that are not durable, and where they start."
        self._marks: int | None = None
        "Descriptor of the mark file; None once closed."
        self._pid = os.getpid()
        try:
            self._open()
        except OSError as error:
            self._release()
            raise LogWriteError(self.folder, error) from error
        except BaseException:
            self._release()
            raise

    def _open(self) -> None:
        """Open the files, recover, and make the state that was found durable."""
        files = self._files
        if not filelock.HAS_FLOCK:
            raise LogRefused(
                f"{self.path}: a writer locks its partition by flock(), which this system lacks: "
                "record on Linux or macOS; logs can be read here"
            )
        self.log_id = open_log(files, self.path, self._clock)
        self._retention = Retention(self.folder, self.log_id, self.partition, *self._keep)
        with suppress(FileExistsError):
            files.mkdir(self.folder)
        files.fsync_folder(self.path)
        self._lock = Lock(files, self.folder / LOCK)
        place, self.recovery = recover(files, self.folder, self.log_id, self.partition)
        self.mark = self._mark_at(place)
        if place.segment is None:
            self._start_segment()
        else:
            self._segment = files.open(self._segment_path, os.O_RDWR)
            files.fdatasync(self._segment)
            files.fsync_folder(self.folder)
        self._marks = files.open(self.folder / MARK, os.O_RDWR | os.O_CREAT)
        if self.recovery.mark is None:
            files.truncate(self._marks, 0)
        self._write_mark(self.mark)
        files.fdatasync(self._marks)  # After a power loss an older SETTLED mark must not be valid.
        files.fsync_folder(self.folder)

    def _mark_at(self, place: ResumePoint) -> Mark:
        """Return the mark to write when the writer continues at `place`."""
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
        """Return the offset of the next sample."""
        return self.mark.offset

    def write(self, blocks: Sequence[OpenBlock]) -> Mark:
        """Write a group of blocks and make it durable.

        After a LogWriteError nothing of the group is acknowledged. The caller may pass the same
        blocks again; they then go to a new segment.
        """
        if self._marks is None or os.getpid() != self._pid:
            raise ZError(f"the writer of {self.folder} is closed, or of another process: open one")
        buffers, heads = self._encode(blocks)
        if not heads:
            return self.mark
        length = sum(head.length for head in heads)
        try:
            descriptor = self._segment_for(length)
            mark = self.mark
            self._uncut = (self._segment_path, mark.position)
            write_all(self._files, descriptor, buffers, mark.position)
            self._files.fdatasync(descriptor)
            self._write_mark(
                mark._replace(
                    offset=heads[-1].end,
                    position=mark.position + length,
                    time=max(mark.time, *(head.last_time for head in heads)),
                    last=heads[-1].crc,
                )
            )
        except BaseException as error:
            self._abandon_segment()
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

    def _segment_for(self, length: int) -> int:
        """Return the descriptor of the segment that the next `length` bytes go to."""
        mark = self.mark
        if self._segment is None:
            return self._resume()
        if mark.offset > mark.segment and mark.position + length > self._rotate_bytes:
            self._rotate()
        return self._segment

    def _rotate(self) -> None:
        """Start a new segment. Everything in the current one is durable already."""
        self._retention.segment_ended(self.mark.segment, min(self.mark.time, self._clock()))
        self._close_segment()
        try:
            self._start_segment()
        finally:
            self.trim()

    def _start_segment(self) -> int:
        """Create a segment at the mark's offset, durably; never over a segment with samples."""
        files, mark = self._files, self.mark
        path = self.folder / segment_name(mark.offset)
        draft = path.with_name(path.name + NEW_SUFFIX)
        head = SegmentHeader(
            self.partition, self.log_id, mark.offset, self._clock(), mark.last
        ).encode()
        write_new(files, draft, path, [head])
        self._segment = files.open(path, os.O_RDWR)
        self.mark = mark._replace(segment=mark.offset, position=SEGMENT_BYTES)
        return self._segment

    def _resume(self) -> int:
        """Continue after a failure: in a new segment, or in this one if it has only losses."""
        mark = self.mark
        if mark.offset > mark.segment or mark.position <= SEGMENT_BYTES:
            with suppress(OSError):
                self._cut_undurable()
            return self._start_segment()
        self._uncut = (self._segment_path, mark.position)
        self._cut_undurable()
        self._segment = self._files.open(self._segment_path, os.O_RDWR)
        return self._segment

    def _abandon_segment(self) -> None:
        """Close the segment after a failure, and cut off what is not durable if possible."""
        self._close_segment()
        with suppress(OSError):
            self._cut_undurable()

    def _cut_undurable(self) -> None:
        """Cut off the bytes of a failed write."""
        if self._uncut is not None:
            path, position = self._uncut
            descriptor = self._files.open(path, os.O_RDWR)
            try:
                self._files.truncate(descriptor, position)
                self._files.fdatasync(descriptor)
            finally:
                self._files.close(descriptor)
            self._uncut = None

    def _write_mark(self, mark: Mark) -> None:
        assert self._marks is not None
        mark = mark._replace(sequence=mark.sequence + 1)
        write_all(self._files, self._marks, [mark.encode()], mark.place)
        self.mark = mark

    @property
    def _segment_path(self) -> Path:
        return self.folder / segment_name(self.mark.segment)

    def trim(self) -> Trimmed:
        """Remove the segments that retention does not keep. `retention_failure` has its error.

        A segment must be too old by the samples' times and by the clock, so that one wrong clock
        alone removes nothing.
        """
        before = self.removed
        try:
            now = min(self.mark.time, self._clock())
            self._retention.run(self._files, self.mark.segment, now)
            self.retention_failure = None
        except OSError as error:
            self.retention_failure = LogWriteError(self.folder, error)
        after = self.removed
        return Trimmed(after.segments - before.segments, after.bytes - before.bytes)

    @property
    def removed(self) -> Trimmed:
        """Return what retention has removed since the writer was opened."""
        return self._retention.removed

    def disk_left(self) -> int:
        """Return the free bytes of the file system; 0 if they are unknown."""
        try:
            found = os.statvfs(self.folder)
        except OSError:  # The folder is gone: the next write reports it.
            return 0
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        """Settle the mark and release the lock.

        In the child of a fork it closes descriptors only: the log belongs to the parent.
        """
        if self._marks is not None and os.getpid() == self._pid:
            with suppress(OSError):  # The next reader or writer settles the mark then.
                self._cut_undurable()
                self._write_mark(self.mark._replace(state=SETTLED))
                self._files.fdatasync(self._marks)
        self._release()

    def _release(self) -> None:
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

    def __exit__(self, *_: object) -> None:
        self.close()
