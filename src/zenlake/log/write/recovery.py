"""What opening a partition finds: good blocks behind the mark, torn tails, damage.

Knows segments as they lie on the disk, and cuts torn tails. Does not know who writes on.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from zenlake.log.files import (
    MAX_OFFSET,
    Files,
    LogRefused,
    segment_name,
    segments,
    size_of,
    unfinished,
    write_new,
)
from zenlake.log.format import (
    BLOCK_MAGIC,
    SEGMENT_BYTES,
    SEGMENT_MAGIC,
    SLOT_BYTES,
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
from zenlake.quantities import counted

MARK, TORN = "mark", "torn"
_NO_MARK = Mark(0, 0, -1, SEGMENT_BYTES, 0, 0, WRITING)
MAX_SEARCH_BYTES = 4 << 30  # that one walk takes CRCs of while it looks for a good block
MAX_SAME_NAMES = 10_000  # torn tails of one place


class Damage(NamedTuple):
    """Bytes that are no good block, and the offsets that are missing with them."""

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
    """Bytes that were never acknowledged, and the file where they are kept."""

    segment: Path
    position: int
    length: int
    kept: Path


@dataclass
class Recovery:
    """What opening a partition found."""

    mark: Mark | None
    "As it was; None if there was none that is whole."
    torn: list[Torn] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    blocks: int = 0
    "Good ones behind the mark."
    samples: int = 0
    walked: int = 0
    "Bytes that were looked at."

    def add(self, walk: "SegmentWalk") -> None:
        self.damage += walk.damage
        self.blocks += walk.blocks
        self.samples += walk.samples
        self.walked += max(walk.size - walk.start, 0)


class ResumePoint(NamedTuple):
    """Where writing goes on; `segment` is None if that takes a new segment."""

    segment: int | None
    position: int
    offset: int
    time: int
    last: int


class SegmentWalk:
    """The good blocks of a segment, one after another; what is none is noted in `damage`.

    In the end `position` and `offset` are behind the last good block.
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
        "CRC of the block before; None if nobody knows it."
        self.time = 0
        self.blocks = 0
        self.samples = 0
        self.damage: list[Damage] = []
        self.reason = ""
        "Why no good block starts at `position`."
        self.sure = True
        "Whether there is certainly none behind it."
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
        """What should be the segment's header."""
        return bytes(self._data[:SEGMENT_BYTES])

    def tail(self) -> memoryview:
        """What stands behind the last good block."""
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
                self._missing(at - self.position, block, reason)
            elif block.header.base > self.offset:
                self._missing(0, block, "blocks are missing here")
            elif self.last not in (block.header.previous, None):
                self._missing(0, block, "this block does not follow the one before it")
            head, self.position = block.header, at
            yield block
            self.position, self.offset, self.last = at + head.length, head.end, head.crc
            self.time = max(self.time, head.last_time)
            self.blocks += 1
            self.samples += head.samples

    def _missing(self, length: int, block: Block, reason: str) -> None:
        self.damage.append(
            Damage(self._path, self.position, length, self.offset, block.header.base, reason)
        )

    def _good(self, at: int) -> Block | None:
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
        """The next good block. What was recorded may look like blocks, hence the limit."""
        while (at := self._map.find(BLOCK_MAGIC, at)) >= 0:
            if self._left < 0:
                self.sure = False
                break
            block = self._good(at)
            if block is not None:
                return at, block
            at += 1
        return self.size, None


def read_mark(folder: Path) -> Mark | None:
    """How far the partition is durable; None if no slot is whole."""
    path = folder / MARK
    try:
        size_of(path)
    except FileNotFoundError:
        return None
    with path.open("rb") as file:
        mark = Mark.decode(file.read(2 * SLOT_BYTES))
    if mark is None or not mark.segment <= mark.offset < MAX_OFFSET or mark.sequence >= MAX_OFFSET:
        return None
    return mark


def recover(
    files: Files, folder: Path, log_id: bytes, partition: int
) -> tuple[ResumePoint, Recovery]:
    """Where to write on. Torn tails are cut off, and what is cut is kept."""
    mark = read_mark(folder)
    found = Recovery(mark)
    for draft in unfinished(folder):
        files.unlink(draft)
    for base in reversed(segments(folder)):
        place = _recover_segment(files, folder, base, log_id, partition, found)
        if place is not None:
            return place, found
    if mark is None:
        return ResumePoint(None, 0, 0, 0, 0), found
    if mark.offset:
        path = folder / segment_name(mark.segment)
        found.damage.append(Damage(path, 0, 0, mark.segment, mark.offset, "no segment is there"))
    return ResumePoint(None, 0, mark.offset, mark.time, mark.last), found


def _recover_segment(
    files: Files, folder: Path, base: int, log_id: bytes, partition: int, found: Recovery
) -> ResumePoint | None:
    """Where to write on; None if this was no segment yet, and was put aside."""
    path, mark = folder / segment_name(base), found.mark or _NO_MARK
    if base >= MAX_OFFSET:
        raise LogRefused(f"{path}: no segment has such an offset: move it away")
    size = size_of(path)
    durable = mark.position if mark.segment == base else SEGMENT_BYTES
    if mark.segment == base and SEGMENT_BYTES <= durable <= size:
        walk = SegmentWalk(path, log_id, partition, durable, mark.offset, mark.last)
    else:
        walk = SegmentWalk(path, log_id, partition, SEGMENT_BYTES, base)
    whole = _check_header(walk, path, base, log_id, partition, found)
    for _ in walk:
        pass
    found.add(walk)
    acknowledged = max(base, mark.offset)
    offset = max(walk.offset, acknowledged)
    if not whole and offset == base:
        found.torn.append(Torn(path, 0, size, _put_aside(files, path)))
        return None
    lost = walk.offset < acknowledged or walk.position < durable
    if whole and walk.sure and not lost:
        if walk.position < size:
            found.torn.append(_cut(files, walk, path))
        return ResumePoint(base, walk.position, offset, max(walk.time, mark.time), walk.last or 0)
    if lost or walk.position < size:
        reason = walk.reason or "the segment ends before what is durable"
        length = max(size - walk.position, 0)
        found.damage.append(Damage(path, walk.position, length, walk.offset, offset, reason))
    # What is damaged stays as it is. Without a sample in it no other segment can have its name.
    segment = base if offset == base else None
    last = mark.last if lost else walk.last or 0
    return ResumePoint(segment, size, offset, max(walk.time, mark.time), last)


def _check_header(
    walk: SegmentWalk, path: Path, base: int, log_id: bytes, partition: int, found: Recovery
) -> bool:
    """Whether the segment's header is whole; a segment from elsewhere is refused."""
    try:
        head = SegmentHeader.decode(walk.head())
    except DamagedLog as error:
        _refuse_newer(walk.head(), path)
        found.damage.append(Damage(path, 0, min(walk.size, SEGMENT_BYTES), base, base, str(error)))
        return False
    if (head.log_id, head.partition, head.base) != (log_id, partition, base):
        raise LogRefused(f"{path} is a segment of another log, or was renamed: move it away")
    if walk.last is None:
        walk.last = head.previous
    return True


def _refuse_newer(head: bytes, path: Path) -> None:
    """A version that is not known is not damage, if the header is otherwise whole."""
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


def _cut(files: Files, walk: SegmentWalk, path: Path) -> Torn:
    """The torn tail is kept, durably, before it is cut off."""
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
    kept = _free_name(files, path, "")
    files.rename(path, kept)
    files.fsync_folder(kept.parent)
    files.fsync_folder(path.parent)
    return kept


def _free_name(files: Files, path: Path, mark: str) -> Path:
    folder = path.parent / TORN
    with suppress(FileExistsError):
        files.mkdir(folder)
    files.fsync_folder(path.parent)
    for number in range(MAX_SAME_NAMES):
        kept = folder / f"{path.stem}{mark}{f'-{number}' if number else ''}{path.suffix}"
        if not os.path.lexists(kept):
            return kept
    raise LogRefused(f"{folder} has {MAX_SAME_NAMES} files of one place: move them away")
