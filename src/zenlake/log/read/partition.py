"""One partition of a log: its segments, their indexes, and the blocks of a range of offsets.

Knows which segments exist, and that old ones may be removed at any time. Decodes no message.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from zenlake.errors import ZError
from zenlake.log.files import (
    FILES,
    Trimmed,
    is_before,
    read_at,
    remove_oldest,
    segment_name,
    segments,
)
from zenlake.log.format import SEGMENT_BYTES, Block, DamagedLog, Mark, SegmentHeader
from zenlake.log.read.acknowledged import acknowledged_part, overlapping_blocks
from zenlake.log.read.durable_mark import MarkReader
from zenlake.log.read.index import BLOCK, BlockTable, Damage, Index

MAX_INDEX_BYTES = 256 << 20  # Upper bound on the index tables that a partition keeps in memory.
MAX_TRIES = 8  # Attempts to read while another process removes segments.
T = TypeVar("T")


class OffsetOutOfRange(ZError):
    """Offsets that were removed or are not durable yet; the message says which exist."""


class Partition:
    """One partition: its mark, and the indexes of the segments that were asked for."""

    def __init__(self, folder: Path, number: int, log_id: bytes) -> None:
        self.folder, self.number, self.log_id = folder, number, log_id
        self._mark = MarkReader(folder, number, log_id)
        self._changed = -1
        "Modification time of the folder when it was last listed."
        self._bases: list[int] = []
        self._indexes: dict[int, Index] = {}

    # ---- segments

    def mark(self) -> Mark:
        return self._mark.read()

    def first(self, mark: Mark) -> int:
        bases = self._segments_up_to(mark)
        return bases[0] if bases else mark.offset

    def size(self) -> int:
        return sum(self.segment_size(base) for base in segments(self.folder))

    def segment_size(self, base: int) -> int:
        with suppress(FileNotFoundError):
            return (self.folder / segment_name(base)).stat().st_size
        return 0

    def new_index(self, base: int) -> Index:
        """Return an index of a segment that has not been walked yet."""
        return Index(self.folder / segment_name(base), base, self.log_id, self.number)

    def _segments_up_to(self, mark: Mark) -> list[int]:
        """Return the base offsets of the segments up to the mark.

        The folder is listed again if it has changed, or if the mark names an unknown segment.
        """
        changed = self.folder.stat().st_mtime_ns
        bases = self._bases
        at = bisect_left(bases, mark.segment)
        if changed != self._changed or at == len(bases) or bases[at] != mark.segment:
            self._changed, self._bases = changed, segments(self.folder)
            for base in set(self._indexes) - set(self._bases):
                del self._indexes[base]
            bases = self._bases
            at = bisect_left(bases, mark.segment)
        return bases[: at + 1]

    def _index(self, base: int, mark: Mark) -> Index:
        """Return the index of a segment, walked to its end or to the mark."""
        index = self._indexes.get(base)
        if index is None:
            index = self.new_index(base)
            self._forget_some()
            self._indexes[base] = index
        elif index.complete:
            return index
        if base == mark.segment:
            index.walk(mark.position)
            return index
        if index.position > SEGMENT_BYTES or not index.load():
            index.walk()
            index.save()
        index.complete = True
        return index

    def _forget_some(self) -> None:
        while sum(index.nbytes for index in self._indexes.values()) > MAX_INDEX_BYTES:
            del self._indexes[next(iter(self._indexes))]

    # ---- blocks

    def parts(self, start: int, end: int | None) -> Iterator[tuple[BlockTable, list[Damage]]]:
        try:
            mark = self.mark()
            first = self.first(mark)
            if start < first:
                raise OffsetOutOfRange(
                    f"{self.folder} starts at offset {first} now, not at {start}: older ones were "
                    "removed: start at the first that is there"
                )
            yield from self._parts(start, end, mark)
        except FileNotFoundError as error:
            self._changed = -1
            raise OffsetOutOfRange(
                f"{error.filename} was removed while it was read: partition {self.number} starts "
                f"at offset {self.first(self.mark())} now"
            ) from None

    def blocks(self, start: int, end: int | None) -> BlockTable:
        found = [rows for rows, _ in self._all_parts(start, end) if len(rows)]
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros(0, BLOCK)

    def damage(self, start: int, end: int | None) -> list[Damage]:
        return [damage for _, found in self._all_parts(start, end) for damage in found]

    def _all_parts(self, start: int, end: int | None) -> list[tuple[BlockTable, list[Damage]]]:
        return self.retry(lambda: list(self._parts(start, end, self.mark())))

    def _parts(
        self, start: int, end: int | None, mark: Mark
    ) -> Iterator[tuple[BlockTable, list[Damage]]]:
        """Yield the blocks and damage of [start, end) by segment."""
        for rows, damage in self._segment_parts(start, end, mark):
            here = [each for each in damage if each.overlaps(start, end)]
            yield overlapping_blocks(rows, start, end), here

    def _segment_parts(
        self, start: int, end: int | None, mark: Mark
    ) -> Iterator[tuple[BlockTable, list[Damage]]]:
        """Yield all blocks and damage of each segment that may overlap [start, end)."""
        bases = self._segments_up_to(mark)

        def header_of(base: int) -> SegmentHeader | None:
            return self._index(base, mark).header

        for at in range(max(bisect_left(bases, start) - 1, 0), len(bases)):
            if end is not None and bases[at] > end:
                break
            following = bases[at + 1] if at + 1 < len(bases) else None
            index = self._index(bases[at], mark)
            yield acknowledged_part(index, self.number, following, mark, header_of)

    def retry(self, look: Callable[[], T]) -> T:
        """Return the result of `look`, called again if it met a segment that was removed."""
        for _ in range(MAX_TRIES):
            with suppress(FileNotFoundError):
                return look()
            self._changed = -1
        raise ZError(f"{self.folder}: segments vanish faster than they can be read")

    # ---- times

    def offset_at(self, time: int) -> int:
        return self.retry(partial(self._offset_at, time))

    def _offset_at(self, time: int) -> int:
        mark = self.mark()
        for rows, _ in self._segment_parts(0, None, mark):
            for row in rows[(rows["last_time"] >= time) & (rows["samples"] > 0)]:
                path = self.folder / segment_name(int(row["segment"]))
                with path.open("rb", buffering=0) as file:
                    data = read_at(file.fileno(), int(row["length"]), int(row["position"]))
                try:
                    batches, _ = Block.decode(data).body()
                except DamagedLog:  # A reader that starts here reports it.
                    return int(row["base"])
                later = np.flatnonzero((batches["time"] >= time) & (batches["count"] > 0))
                if len(later):
                    before = batches["count"][: later[0]].sum(dtype=np.int64)
                    return int(row["base"]) + int(before)
        return mark.offset

    # ---- removal

    def trim(
        self, before_offset: int | None, before_time: int | None, keep_bytes: int | None
    ) -> Trimmed:
        return self.retry(partial(self._trim, before_offset, before_time, keep_bytes))

    def _trim(
        self, before_offset: int | None, before_time: int | None, keep_bytes: int | None
    ) -> Trimmed:
        mark = self.mark()
        bases = self._segments_up_to(mark)
        sizes = [self.segment_size(base) for base in bases]

        def latest(base: int) -> int | None:
            rows = self._index(base, mark).rows
            return int(rows["last_time"].max()) if len(rows) else None

        def is_expired(at: int, left: int) -> bool:
            return bases[at] < mark.segment and (
                (before_offset is not None and bases[at + 1] <= before_offset)
                or (before_time is not None and is_before(bases[at:], before_time, latest))
                or (keep_bytes is not None and left - sizes[at] >= keep_bytes)
            )

        removed = [*remove_oldest(FILES, self.folder, bases, sizes, is_expired)]
        self._changed = -1
        return Trimmed(len(removed), sum(removed))
