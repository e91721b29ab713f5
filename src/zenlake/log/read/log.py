"""A log as readers see it: how far it is durable, which blocks it has, whether it is whole.

Knows partitions, marks and segments. Decodes no message: planning needs neither Numba nor Arrow.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from zenlake import filelock
from zenlake.errors import ZError
from zenlake.log.files import (
    FILES,
    MAX_OFFSET,
    read_id,
    segment_name,
    segments,
    size_of,
)
from zenlake.log.format import (
    SEGMENT_BYTES,
    SETTLED,
    SLOT_BYTES,
    WRITING,
    Block,
    DamagedLog,
    Mark,
)
from zenlake.log.read.index import BLOCK, MISSING, OUT_OF_CHAIN, BlockTable, Damage, Index
from zenlake.log.read.retention import is_before, remove_oldest

MAX_INDEX_BYTES = 256 << 20  # of one partition's tables that are kept
T = TypeVar("T")

MAX_TRIES = 8  # when segments vanish while somebody looks
LOCK, MARK, TORN = "lock", "mark", "torn"

Progress = Callable[[int, int], object]


class OffsetOutOfRange(ZError):
    """Offsets that are not there: removed, or not durable yet; says what is there."""


class Trimmed(NamedTuple):
    """What `trim` removed."""

    segments: int
    bytes: int


@dataclass
class PartitionReport:
    """What `verify` found in one partition."""

    partition: int
    first: int
    end: int
    segments: int = 0
    blocks: int = 0
    samples: int = 0
    losses: int = 0
    bytes: int = 0
    damage: list[Damage] = field(default_factory=list)
    torn: list[Path] = field(default_factory=list)
    "Torn tails that recoveries cut off; nothing of them was ever acknowledged."


@dataclass
class VerifyReport:
    """What `verify` found."""

    partitions: list[PartitionReport]

    @property
    def damage(self) -> list[Damage]:
        return [damage for one in self.partitions for damage in one.damage]

    @property
    def ok(self) -> bool:
        return not self.damage


class Log:
    """A recorded log, to be read; somebody may be writing it meanwhile.

    >>> import tempfile
    >>> from zenlake.log.write.writer import Writer
    >>> folder = tempfile.TemporaryDirectory()
    >>> Writer(folder.name).close()
    >>> log = Log(folder.name)
    >>> log.partitions(), log.first(0), log.mark(0).offset, log.verify().ok
    ([0], 0, 0, True)
    >>> folder.cleanup()
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self._id = read_id(self.path)
        except (FileNotFoundError, NotADirectoryError):
            raise ZError(
                f"{self.path} is no log: it has no log.json. Name the folder that was recorded to"
            ) from None
        self._partitions: dict[int, _Partition] = {}

    @property
    def id(self) -> str:
        """32 hex digits; a log that is made anew has another."""
        return self._id.hex()

    def partitions(self) -> list[int]:
        """The numbers of the partitions that are there."""
        with os.scandir(self.path) as entries:
            names = [one.name for one in entries if one.name.isascii() and one.name.isdigit()]
        return sorted(int(name) for name in names if str(int(name)) == name)

    def mark(self, partition: int) -> Mark:
        """How far the partition is durable. If its writer is gone without a word, what is there
        is made durable, and the mark says so from then on."""
        return self._of(partition).mark()

    def first(self, partition: int) -> int:
        """The first offset that is still there."""
        found = self._of(partition)
        return found.first(found.mark())

    def blocks(self, partition: int, start: int = 0, end: int | None = None) -> BlockTable:
        """The durable blocks that have something of [start, end), in order: rows of index.BLOCK.

        A record of loss counts as its offset says, so the block before `start` may be among them.
        """
        return self._of(partition).blocks(start, end)

    def damage(self, partition: int, start: int = 0, end: int | None = None) -> list[Damage]:
        """What of [start, end) is known to be unreadable without reading the blocks."""
        return self._of(partition).damage(start, end)

    def parts(
        self, partition: int, start: int = 0, end: int | None = None, *, whole: bool = False
    ) -> Iterator[tuple[BlockTable, list[Damage]]]:
        """Blocks and damage of [start, end), segment by segment: a log may have more blocks than
        there is memory for a table of them all. `whole`: OffsetOutOfRange if the first are gone."""
        return self._of(partition).parts(start, end, whole=whole)

    def offset_at(self, partition: int, time: int) -> int:
        """The offset of the first sample that was received at or after `time` (nanoseconds since
        1970); the one after the last if there is none yet."""
        return self._of(partition).offset_at(time)

    def segment(self, partition: int, base: int) -> Path:
        """The file of a segment."""
        return self._of(partition).folder / segment_name(base)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Read everything: every CRC, and that each block follows the one before.

        `progress` is called with the bytes that are done and those there are.
        """
        found = [self._of(number) for number in self.partitions()]
        total = sum(one.size() for one in found)
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            if progress is not None:
                progress(min(done, total), total)

        return VerifyReport([one.verify(advance) for one in found])

    def trim(
        self,
        *,
        before_offset: int | None = None,
        before_time: int | None = None,
        keep_bytes: int | None = None,
        partition: int | None = None,
    ) -> Trimmed:
        """Remove whole segments, the oldest first: those with nothing at or behind
        `before_offset`, those with nothing received at or after `before_time`, and those without
        which `keep_bytes` are still there. Each of them is enough. The one that is written stays.

        Works beside a writer. Offsets are those of one partition, so one must be named if there
        are more.
        """
        numbers = self.partitions() if partition is None else [partition]
        if before_offset is not None and len(numbers) > 1:
            raise ZError(f"an offset is that of one partition: name one of {numbers}")
        removed = [self._of(n).trim(before_offset, before_time, keep_bytes) for n in numbers]
        return Trimmed(sum(one.segments for one in removed), sum(one.bytes for one in removed))

    def _of(self, number: int) -> "_Partition":
        found = self._partitions.get(number)
        if found is None:
            folder = self.path / str(number)
            if number < 0 or not folder.is_dir():
                raise ZError(
                    f"{self.path} has no partition {number}: there are {self.partitions()}"
                )
            found = self._partitions[number] = _Partition(folder, number, self._id)
        return found


class _Partition:
    """One partition: its mark, and the indexes of its segments as far as somebody asked."""

    def __init__(self, folder: Path, number: int, log_id: bytes) -> None:
        self.folder, self.number, self.log_id = folder, number, log_id
        self._changed = -1
        "When the folder was last changed, as of the last look."
        self._bases: list[int] = []
        self._indexes: dict[int, Index] = {}
        self._whole: set[int] = set()
        "Of those, the ones that get no more blocks and are walked to their end."
        self._unsettled: tuple[Mark | None, int, int, Mark] | None = None
        "Where nothing can be written: the mark that was found there, for which files."

    # ---- the mark

    def mark(self) -> Mark:
        found = self._stored()
        if found is not None and found.state == SETTLED:
            return found
        return self._settle() or self._stored() or self._nothing(WRITING)

    def _stored(self) -> Mark | None:
        try:
            with (self.folder / MARK).open("rb", buffering=0) as file:
                mark = Mark.decode(file.read(2 * SLOT_BYTES) or b"")
        except FileNotFoundError:
            return None
        if mark is None or not mark.segment <= mark.offset < MAX_OFFSET:
            return None
        return mark

    def _nothing(self, state: int) -> Mark:
        bases = segments(self.folder)
        first = bases[0] if bases else 0
        return Mark(0, first, first, SEGMENT_BYTES, 0, 0, state)

    def _settle(self) -> Mark | None:
        """The mark behind all that is there, if nobody writes; None if somebody does."""
        lock = self._open_lock()
        if lock is None:
            return self._settled(self._stored())
        try:
            return self._settled(self._stored()) if filelock.lock(lock) else None
        finally:
            os.close(lock)

    def _open_lock(self) -> int | None:
        """None where there is no lock and none can be made: nobody writes there."""
        for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
            with suppress(OSError):
                return os.open(self.folder / LOCK, flags | os.O_CLOEXEC, 0o644)
        return None

    def _settled(self, stored: Mark | None) -> Mark:
        if stored is not None and stored.state == SETTLED:
            return stored  # somebody was faster
        bases = segments(self.folder)
        if not bases:
            return stored or self._nothing(SETTLED)
        size = size_of(self.folder / segment_name(bases[-1]))
        if self._unsettled is not None and self._unsettled[:3] == (stored, bases[-1], size):
            return self._unsettled[3]
        mark, synced = self._end_of(stored)
        try:
            for path in synced:
                _sync(path)
            FILES.fsync_folder(self.folder)
        except OSError:  # what is not known to be on the disk is not shown
            return stored or self._nothing(WRITING)
        try:
            marks = os.open(self.folder / MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(marks, mark.encode(), mark.place)
            finally:
                os.close(marks)
        except OSError:  # a folder that is only to be read
            self._unsettled = (stored, bases[-1], size, mark)
        return mark

    def _end_of(self, stored: Mark | None) -> tuple[Mark, list[Path]]:
        """The mark behind the last good block, and the files that may not be on the disk yet."""
        mark = stored or self._nothing(SETTLED)
        indexes = [
            Index(self.folder / segment_name(base), base, self.log_id, self.number)
            for base in segments(self.folder)
            if stored is None or base >= stored.segment
        ]
        indexes = [index for index in indexes if not index.refused]  # half made, or foreign
        if stored is None:
            indexes = indexes[-1:]
        for index in indexes:
            if stored is None or index.base > mark.segment:
                mark = mark._replace(
                    offset=max(mark.offset, index.base),
                    segment=index.base,
                    position=SEGMENT_BYTES,
                    last=mark.last if index.header is None else index.header.previous,
                )
            index.walk()
            mark = self._behind_last_good(index.path, index.rows, mark)
        paths = [index.path for index in indexes]
        return mark._replace(sequence=mark.sequence + 1, state=SETTLED), paths

    def _behind_last_good(self, path: Path, rows: BlockTable, mark: Mark) -> Mark:
        rows = rows[rows["position"] >= mark.position]
        if not len(rows):
            return mark
        time = max(mark.time, int(rows["last_time"].max()))
        with path.open("rb", buffering=0) as file:
            for row in rows[::-1]:
                data = os.pread(file.fileno(), int(row["length"]), int(row["position"]))
                with suppress(DamagedLog):
                    header = Block.decode(data).header
                    return mark._replace(
                        offset=max(mark.offset, header.end),
                        position=int(row["position"]) + header.length,
                        time=time,
                        last=header.crc,
                    )
        return mark

    # ---- segments

    def first(self, mark: Mark) -> int:
        bases = self._listed(mark)
        return bases[0] if bases else mark.offset

    def _listed(self, mark: Mark) -> list[int]:
        """The segments up to the mark. A segment that is new is noticed by the mark that names
        it, whatever the folder's time says."""
        changed = self.folder.stat().st_mtime_ns
        bases = self._bases
        at = bisect_left(bases, mark.segment)
        if changed != self._changed or at == len(bases) or bases[at] != mark.segment:
            self._changed, self._bases = changed, segments(self.folder)
            for base in set(self._indexes) - set(self._bases):
                del self._indexes[base]
                self._whole.discard(base)
            bases = self._bases
            at = bisect_left(bases, mark.segment)
        return bases[: at + 1]

    def _index(self, base: int, mark: Mark) -> Index:
        index = self._indexes.get(base)
        if base in self._whole and index is not None:
            return index
        if index is None:
            path = self.folder / segment_name(base)
            index = Index(path, base, self.log_id, self.number)
            self._forget_some()
            self._indexes[base] = index
        if base == mark.segment:
            index.walk(mark.position)
            return index
        if index.position > SEGMENT_BYTES or not index.load():
            index.walk()
            index.save()
        self._whole.add(base)
        return index

    def _forget_some(self) -> None:
        while sum(index.nbytes for index in self._indexes.values()) > MAX_INDEX_BYTES:
            base = next(iter(self._indexes))
            del self._indexes[base]
            self._whole.discard(base)

    def _segments(
        self, start: int, end: int | None, mark: Mark
    ) -> Iterator[tuple[BlockTable, list[Damage]]]:
        """Blocks and damage of each segment that may have something of [start, end)."""
        bases = self._listed(mark)
        for at in range(max(bisect_left(bases, start) - 1, 0), len(bases)):
            if end is not None and bases[at] > end:
                break
            following = bases[at + 1] if at + 1 < len(bases) else None
            yield self._segment(bases[at], following, mark)

    def _segment(
        self, base: int, following: int | None, mark: Mark
    ) -> tuple[BlockTable, list[Damage]]:
        """What of a segment counts: up to where the next begins, or to the mark."""
        index = self._index(base, mark)
        bound = mark.offset if following is None else following
        rows = index.rows
        if following is not None:
            rows = self._acknowledged(rows, following, mark)
        else:
            rows = _up_to(rows, bound)
        name = index.path.name
        if index.refused:
            refused = Damage(self.number, base, bound, name, 0, index.refused)
            return rows[:0], [refused] if bound > base else []
        damage = [
            Damage(
                self.number,
                hole.first,
                bound if hole.end is None else min(hole.end, bound),
                name,
                hole.position,
                hole.reason,
            )
            for hole in index.holes
            if hole.first < bound or (hole.end is not None and hole.end <= bound)
        ]
        last = [_end(rows, -1)] if len(rows) else []
        reached = max([base, *last, *(one.end for one in damage)])
        if reached < bound:
            place, reason = (name, index.position), "the segment ends before the mark"
            if len(rows) < len(index.rows):
                position = int(index.rows[len(rows)]["position"])
                place, reason = (name, position), "a block has more samples than were acknowledged"
            elif following is not None:
                place, reason = (segment_name(reached), 0), MISSING
            damage.append(Damage(self.number, reached, bound, *place, reason))
        return rows, damage

    def _acknowledged(self, rows: BlockTable, following: int, mark: Mark) -> BlockTable:
        """Without what a write left behind that failed, and was written again to the next."""
        rows = _up_to(rows, following)
        tail = bisect_left(rows["base"], following)
        if tail == len(rows):
            return rows
        # Blocks of nothing but losses at the very end: the next segment says which was the last.
        header = self._index(following, mark).header
        if header is not None:
            last = np.flatnonzero(rows["crc"][max(tail - 1, 0) :] == header.previous)
            if len(last):
                return rows[: max(tail - 1, 0) + int(last[-1]) + 1]
        return rows

    def parts(
        self, start: int, end: int | None, *, whole: bool = False
    ) -> Iterator[tuple[BlockTable, list[Damage]]]:
        try:
            mark = self.mark()
            first = self.first(mark)
            if whole and start < first:
                raise OffsetOutOfRange(
                    f"{self.folder} starts at offset {first} now, not at {start}: older ones were "
                    "removed: start at the first that is there"
                )
            for rows, damage in self._segments(start, end, mark):
                here = [one for one in damage if one.overlaps(start, end)]
                yield _overlapping(rows, start, end), here
        except FileNotFoundError as error:
            self._changed = -1
            raise OffsetOutOfRange(
                f"{error.filename} was removed while it was read: partition {self.number} starts "
                f"at offset {self.first(self.mark())} now"
            ) from None

    def _retried(self, start: int, end: int | None) -> list[tuple[BlockTable, list[Damage]]]:
        """Segments may vanish meanwhile: then what is left is looked at again."""
        for _ in range(MAX_TRIES):
            with suppress(OffsetOutOfRange):
                return list(self.parts(start, end))
        raise ZError(f"{self.folder}: segments vanish faster than they can be read")

    def blocks(self, start: int, end: int | None) -> BlockTable:
        found = [rows for rows, _ in self._retried(start, end) if len(rows)]
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros(0, BLOCK)

    def damage(self, start: int, end: int | None) -> list[Damage]:
        return [damage for _, found in self._retried(start, end) for damage in found]

    def offset_at(self, time: int) -> int:
        return self._again(partial(self._offset_at, time))

    def _again(self, look: Callable[[], T]) -> T:
        """Segments may vanish meanwhile: then what is left is looked at again."""
        for _ in range(MAX_TRIES):
            with suppress(FileNotFoundError):
                return look()
            self._changed = -1
        raise ZError(f"{self.folder}: segments vanish faster than they can be read")

    def _offset_at(self, time: int) -> int:
        mark = self.mark()
        for rows, _ in self._segments(0, None, mark):
            for row in rows[(rows["last_time"] >= time) & (rows["samples"] > 0)]:
                path = self.folder / segment_name(int(row["segment"]))
                with path.open("rb", buffering=0) as file:
                    data = os.pread(file.fileno(), int(row["length"]), int(row["position"]))
                try:
                    batches, _ = Block.decode(data).body()
                except DamagedLog:  # whoever reads it is told
                    return int(row["base"])
                later = np.flatnonzero((batches["time"] >= time) & (batches["count"] > 0))
                if len(later):
                    before = batches["count"][: later[0]].sum(dtype=np.int64)
                    return int(row["base"]) + int(before)
        return mark.offset

    # ---- the whole of it

    def size(self) -> int:
        return sum(self._size(base) for base in segments(self.folder))

    def _size(self, base: int) -> int:
        with suppress(FileNotFoundError):
            return (self.folder / segment_name(base)).stat().st_size
        return 0

    def verify(self, advance: Callable[[int], None]) -> PartitionReport:
        return self._again(partial(self._verify, advance))

    def _verify(self, advance: Callable[[int], None]) -> PartitionReport:
        fresh = _Partition(self.folder, self.number, self.log_id)  # whatever is remembered
        mark = fresh.mark()
        bases = fresh._listed(mark)
        report = PartitionReport(self.number, bases[0] if bases else mark.offset, mark.offset)
        with suppress(FileNotFoundError):
            report.torn = sorted((self.folder / TORN).iterdir())
        last: int | None = None
        for at, base in enumerate(bases):
            following = bases[at + 1] if at + 1 < len(bases) else None
            index = Index(self.folder / segment_name(base), base, self.log_id, self.number)
            fresh._indexes[base] = index
            fresh._whole.add(base)
            index.walk(mark.position if base == mark.segment else None)
            rows, damage = fresh._segment(base, following, mark)
            bad = self._bad_blocks(index.path, rows, advance)
            if index.header is None and not index.refused:
                reason = "the segment's header is damaged"
                damage.insert(0, Damage(self.number, base, base, index.path.name, 0, reason))
            elif (
                index.header is not None
                and last not in (None, index.header.previous)
                and (not report.damage or report.damage[-1].end != base)
            ):
                place = index.path.name, 0
                damage.insert(0, Damage(self.number, base, base, *place, OUT_OF_CHAIN))
            report.damage += sorted([*damage, *bad], key=lambda one: (one.first, one.position))
            last = int(rows[-1]["crc"]) if len(rows) else index.header and index.header.previous
            report.segments += 1
            report.blocks += len(rows) - len(bad)
            report.samples += int(rows["samples"].sum(dtype=np.int64))
            report.samples -= sum(one.end - one.first for one in bad)
            report.losses += int(rows["losses"].sum(dtype=np.int64))
            report.bytes += self._size(base)
            del fresh._indexes[base]
            fresh._whole.discard(base)
        return report

    def _bad_blocks(
        self, path: Path, rows: BlockTable, advance: Callable[[int], None]
    ) -> list[Damage]:
        """Those of the blocks whose CRC does not fit."""
        bad = []
        with path.open("rb", buffering=0) as file:
            for row in rows:
                position, length = int(row["position"]), int(row["length"])
                data = os.pread(file.fileno(), length, position)
                try:
                    block = Block.decode(data)
                    block.keys()
                    block.body()
                except DamagedLog as error:
                    first, end = int(row["base"]), int(row["base"]) + int(row["samples"])
                    bad.append(Damage(self.number, first, end, path.name, position, str(error)))
                advance(length)
        return bad

    def trim(
        self, before_offset: int | None, before_time: int | None, keep_bytes: int | None
    ) -> Trimmed:
        return self._again(partial(self._trim, before_offset, before_time, keep_bytes))

    def _trim(
        self, before_offset: int | None, before_time: int | None, keep_bytes: int | None
    ) -> Trimmed:
        mark = self.mark()
        bases = self._listed(mark)
        sizes = [self._size(base) for base in bases]

        def latest(base: int) -> int | None:
            rows = self._index(base, mark).rows
            return int(rows["last_time"].max()) if len(rows) else None

        def goes(at: int, left: int) -> bool:
            return bases[at] < mark.segment and (
                (before_offset is not None and bases[at + 1] <= before_offset)
                or (before_time is not None and is_before(bases[at:], before_time, latest))
                or (keep_bytes is not None and left - sizes[at] >= keep_bytes)
            )

        removed = [*remove_oldest(FILES, self.folder, bases, sizes, goes)]
        self._changed = -1
        return Trimmed(len(removed), sum(removed))


def _end(rows: BlockTable, at: int) -> int:
    return int(rows["base"][at]) + int(rows["samples"][at])


def _up_to(rows: BlockTable, bound: int) -> BlockTable:
    """Without the blocks at the end that go beyond an offset. (No NumPy: it would copy the column
    to search in it, and most looks are for a few blocks among many.)"""
    high = bisect_right(rows["base"], bound)
    while high and _end(rows, high - 1) > bound:
        high -= 1
    return rows[:high]


def _overlapping(rows: BlockTable, start: int, end: int | None) -> BlockTable:
    if end is not None:
        rows = rows[: bisect_left(rows["base"], end)]
    low = bisect_right(rows["base"], start)
    if low and _end(rows, low - 1) > start:
        low -= 1
    before = low
    while before and _end(rows, before - 1) == start:
        before -= 1
    keep = rows["losses"][before:low] > 0  # records of loss that stand before `start`
    if not keep.any():
        return rows[low:]
    return np.concatenate((rows[before:low][keep], rows[low:]))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
