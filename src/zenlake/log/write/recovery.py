"""Recovery of a partition when a writer opens it: finds the end of the log, cuts torn tails.

Knows segments as they are on the disk. Changes nothing that is damaged, and writes no block.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from zenlake.log.files import (
    MARK,
    MAX_OFFSET,
    TORN,
    Files,
    LogRefused,
    segment_name,
    segments,
    size_of,
    unfinished_segments,
    write_new,
)
from zenlake.log.format import (
    BLOCK_MAGIC,
    SEGMENT_BYTES,
    SEGMENT_MAGIC,
    VERSION,
    WRITING,
    Block,
    BlockHeader,
    DamagedLog,
    Mark,
    SegmentHeader,
    crc32,
    offsets_text,
)
from zenlake.log.read.durable_mark import read_mark
from zenlake.quantities import counted

_NO_MARK = Mark(0, 0, -1, SEGMENT_BYTES, 0, 0, WRITING)
MAX_SEARCH_BYTES = 4 << 30  # Bytes of bad candidates that one walk checks CRCs of.
MAX_SAME_NAMES = 10_000  # Upper bound on kept torn tails with the same segment and position.


class DamagedBytes(NamedTuple):
    """Bytes of a segment that are not a valid block, and the offsets missing with them."""

    segment: Path
    position: int
    length: int
    first: int
    end: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.segment} at byte {self.position}, {counted(self.length, 'byte')}: "
            f"{offsets_text(self.first, self.end)}: {self.reason}"
        )


class Torn(NamedTuple):
    """Bytes that were never acknowledged and were cut off, and the file that keeps them."""

    segment: Path
    position: int
    length: int
    kept: Path


@dataclass
class Recovery:
    """The report of opening a partition."""

    mark: Mark | None
    "The mark before the recovery; None if there was no valid one."
    torn: list[Torn] = field(default_factory=list)
    damage: list[DamagedBytes] = field(default_factory=list)
    blocks: int = 0
    "Number of good blocks after the mark."
    samples: int = 0
    "Number of samples in those blocks."
    walked: int = 0
    "Bytes that were read after the mark."

    def add(self, walk: "SegmentWalk") -> None:
        self.damage += walk.damage
        self.blocks += walk.blocks
        self.samples += walk.samples
        self.walked += max(walk.size - walk.start, 0)


class ResumePoint(NamedTuple):
    """The place where a writer continues."""

    segment: int | None
    "Base offset of the segment to append to; None if a new segment is needed."
    position: int
    "Byte position in that segment."
    offset: int
    "Offset of the next sample."
    time: int
    "Latest time of reception so far."
    last: int
    "CRC of the last block, which the next block refers to."


class SegmentWalk:
    """Iterator over the good blocks of a segment. Bad bytes between them go to `damage`.

    At the end `position` and `offset` are those after the last good block.
    """

    def __init__(
        self,
        path: Path,
        log_id: bytes,
        partition: int,
        position: int,
        offset: int,
        last: int | None = None,
    ) -> None:
        self.start = self.position = position
        self.offset = offset
        self.last = last
        "CRC of the block before `position`; None if it is unknown."
        self.time = 0
        self.blocks = 0
        self.samples = 0
        self.damage: list[DamagedBytes] = []
        self.reason = ""
        "Why no good block starts at `position`."
        self.searched_all = True
        "False if MAX_SEARCH_BYTES ended the search: good blocks may follow `position`."
        self._path = path
        self._owner = (log_id, partition)
        self._left = MAX_SEARCH_BYTES
        with path.open("rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            self._map: mmap.mmap | bytes = (
                mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ) if self.size else b""
            )
        self._data = memoryview(self._map)

    def head(self) -> bytes:
        """Return the bytes at the place of the segment's header."""
        return bytes(self._data[:SEGMENT_BYTES])

    def tail(self) -> memoryview:
        """Return the bytes after the last good block."""
        return self._data[self.position :]

    def __iter__(self) -> Iterator[Block]:
        while self.position < self.size:
            at, block = self.position, self._good(self.position)
            if block is None:
                reason = self.reason
                at, block = self._search(at + 1)
                self.reason = reason
                if block is None:
                    return
                self._add_damage(at - self.position, block, reason)
            elif block.header.base > self.offset:
                self._add_damage(0, block, "blocks are missing here")
            elif self.last not in (block.header.previous, None):
                self._add_damage(0, block, "this block does not follow the one before it")
            head, self.position = block.header, at
            yield block
            self.position, self.offset, self.last = at + head.length, head.end, head.crc
            self.time = max(self.time, head.last_time)
            self.blocks += 1
            self.samples += head.samples

    def _add_damage(self, length: int, block: Block, reason: str) -> None:
        self.damage.append(
            DamagedBytes(self._path, self.position, length, self.offset, block.header.base, reason)
        )

    def _good(self, at: int) -> Block | None:
        """Return the block at a position; None if it is not good, and `reason` says why."""
        try:
            head = BlockHeader.decode(self._data, at)
            if (head.log_id, head.partition) != self._owner:
                raise DamagedLog("a block of another log or partition")
            if not self.offset <= head.base < MAX_OFFSET:
                raise DamagedLog(f"a block with offset {head.base} has no place here")
            self._left -= head.length
            block = Block.decode(self._data, at)
        except DamagedLog as error:
            self.reason = str(error)
            return None
        self._left += head.length
        return block

    def _search(self, at: int) -> tuple[int, Block | None]:
        """Find the next good block, within a limit: payloads may contain imitated blocks."""
        while (at := self._map.find(BLOCK_MAGIC, at)) >= 0:
            if self._left < 0:
                self.searched_all = False
                break
            block = self._good(at)
            if block is not None:
                return at, block
            at += 1
        return self.size, None


def recover(
    files: Files, folder: Path, log_id: bytes, partition: int
) -> tuple[ResumePoint, Recovery]:
    """Find the place where a writer continues. Torn tails are cut off, and kept in a file."""
    with suppress(FileNotFoundError):
        size_of(folder / MARK)  # Refuses a link or a folder in its place.
    mark = read_mark(folder)
    found = Recovery(mark)
    for draft in unfinished_segments(folder):
        files.unlink(draft)
    for base in reversed(segments(folder)):
        place = _recover_segment(files, folder, base, log_id, partition, found)
        if place is not None:
            return place, found
    if mark is None:
        return ResumePoint(None, 0, 0, 0, 0), found
    if mark.offset:
        path = folder / segment_name(mark.segment)
        found.damage.append(
            DamagedBytes(path, 0, 0, mark.segment, mark.offset, "no segment is there")
        )
    return ResumePoint(None, 0, mark.offset, mark.time, mark.last), found


def _recover_segment(
    files: Files, folder: Path, base: int, log_id: bytes, partition: int, found: Recovery
) -> ResumePoint | None:
    """Return the place to continue after the newest segment; None to try the one before it.

    The first row that applies decides. "Acknowledged" is everything up to the mark; a "tail" is
    the bytes after the last good block.

    | header  | acknowledged samples | the file is                    | the writer continues     |
    |---------|----------------------|--------------------------------|--------------------------|
    | damaged | none, nor good ones  | moved to torn/                 | in the segment before it |
    | intact  | all readable, and no | cut after the last good block; | in this segment          |
    |         | block can follow     | the tail is kept in torn/      |                          |
    | any     | any                  | left as it is, with its damage | in a new segment; if it  |
    |         |                      | reported                       | has no sample, at its end|

    A segment without a sample is continued even if it is damaged: a new one would have its name.
    """
    path, mark = folder / segment_name(base), found.mark or _NO_MARK
    if base >= MAX_OFFSET:
        raise LogRefused(f"{path}: no segment has such an offset: move it away")
    size = size_of(path)
    durable = mark.position if mark.segment == base else SEGMENT_BYTES
    start: tuple[int, int, int | None] = (SEGMENT_BYTES, base, None)
    if mark.segment == base and SEGMENT_BYTES <= durable <= size:
        start = (durable, mark.offset, mark.last)
    walk = SegmentWalk(path, log_id, partition, *start)
    header_intact = _check_header(walk, path, base, log_id, partition, found)
    for _ in walk:
        pass
    found.add(walk)
    acknowledged = max(base, mark.offset)
    offset = max(walk.offset, acknowledged)
    has_no_sample = offset == base
    if not header_intact and has_no_sample:
        found.torn.append(Torn(path, 0, size, _put_aside(files, path)))
        return None
    lost_acknowledged = walk.offset < acknowledged or walk.position < durable
    has_tail = walk.position < size
    time = max(walk.time, mark.time)
    if header_intact and walk.searched_all and not lost_acknowledged:
        if has_tail:
            found.torn.append(_cut_tail(files, walk, path))
        return ResumePoint(base, walk.position, offset, time, walk.last or 0)
    if lost_acknowledged or has_tail:
        reason = walk.reason or "the segment ends before what is durable"
        length = max(size - walk.position, 0)
        found.damage.append(DamagedBytes(path, walk.position, length, walk.offset, offset, reason))
    last = mark.last if lost_acknowledged else walk.last or 0
    return ResumePoint(base if has_no_sample else None, size, offset, time, last)


def _check_header(
    walk: SegmentWalk, path: Path, base: int, log_id: bytes, partition: int, found: Recovery
) -> bool:
    """Return whether the segment's header is intact. Refuse a segment of another log."""
    try:
        head = SegmentHeader.decode(walk.head())
    except DamagedLog as error:
        _refuse_newer(walk.head(), path)
        length = min(walk.size, SEGMENT_BYTES)
        found.damage.append(DamagedBytes(path, 0, length, base, base, str(error)))
        return False
    if (head.log_id, head.partition, head.base) != (log_id, partition, base):
        raise LogRefused(f"{path} is a segment of another log, or was renamed: move it away")
    if walk.last is None:
        walk.last = head.previous
    return True


def _refuse_newer(head: bytes, path: Path) -> None:
    """Raise LogRefused if the header is intact but of an unknown version: that is not damage."""
    version = int.from_bytes(head[8:10], "little")
    if (
        len(head) == SEGMENT_BYTES
        and head.startswith(SEGMENT_MAGIC)
        and version != VERSION
        and crc32(head[:-4]) == int.from_bytes(head[-4:], "little")
    ):
        raise LogRefused(
            f"{path}: format version {version} is unknown, only {VERSION} is known here: "
            "use a newer zenlake"
        )


def _cut_tail(files: Files, walk: SegmentWalk, path: Path) -> Torn:
    """Copy the torn tail to a file durably, then cut it off."""
    kept = _free_name(files, path, f"-{walk.position}")
    write_new(files, kept.with_name("draft"), kept, [walk.tail()])
    descriptor = files.open(path, os.O_RDWR)
    try:
        files.truncate(descriptor, walk.position)
        files.fdatasync(descriptor)
    finally:
        files.close(descriptor)
    return Torn(path, walk.position, walk.size - walk.position, kept)


def _put_aside(files: Files, path: Path) -> Path:
    """Move a file into the folder of torn tails."""
    kept = _free_name(files, path, "")
    files.rename(path, kept)
    files.fsync_folder(kept.parent)
    files.fsync_folder(path.parent)
    return kept


def _free_name(files: Files, path: Path, mark: str) -> Path:
    """Return an unused name in the folder of torn tails, which is created if needed."""
    folder = path.parent / TORN
    with suppress(FileExistsError):
        files.mkdir(folder)
    files.fsync_folder(path.parent)
    for number in range(MAX_SAME_NAMES):
        kept = folder / f"{path.stem}{mark}{f'-{number}' if number else ''}{path.suffix}"
        if not os.path.lexists(kept):
            return kept
    raise LogRefused(f"{folder} has {MAX_SAME_NAMES} files of one place: move them away")
