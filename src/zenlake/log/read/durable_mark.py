"""The mark of a partition as readers see it: how far the partition is durable.

Knows the mark file and the writer's lock. Where a writer has ended without settling its mark, it
syncs the segments and settles the mark in the writer's place. Returns no blocks.
"""

import os
from contextlib import suppress
from pathlib import Path

from zenlake import filelock
from zenlake.log.files import (
    FILES,
    LOCK,
    MARK,
    MAX_OFFSET,
    READ_ONLY,
    read_at,
    segment_name,
    segments,
    size_of,
    sync_data,
)
from zenlake.log.format import SEGMENT_BYTES, SETTLED, SLOT_BYTES, WRITING, Block, DamagedLog, Mark
from zenlake.log.read.index import BlockTable, Index


def read_mark(folder: Path) -> Mark | None:
    """Return the mark in a partition's mark file; None if there is no valid one."""
    try:
        with (folder / MARK).open("rb") as file:
            mark = Mark.decode(file.read(2 * SLOT_BYTES))
    except FileNotFoundError:
        return None
    if mark is None or not mark.segment <= mark.offset < MAX_OFFSET or mark.sequence >= MAX_OFFSET:
        return None
    return mark


class MarkReader:
    """Reader of one partition's mark, which it settles if the partition has no writer."""

    def __init__(self, folder: Path, number: int, log_id: bytes) -> None:
        self._folder, self._number, self._log_id = folder, number, log_id
        self._unsettled: tuple[Mark | None, int, int, Mark] | None = None
        """In a read-only folder: the stored mark, the last segment and its size, and the mark
        that was found for them."""

    def read(self) -> Mark:
        stored = read_mark(self._folder)
        if stored is not None and stored.state == SETTLED:
            return stored
        stored = self._settle_if_free() or read_mark(self._folder)
        return stored or self._mark_of_nothing(WRITING)

    def _mark_of_nothing(self, state: int) -> Mark:
        bases = segments(self._folder)
        first = bases[0] if bases else 0
        return Mark(0, first, first, SEGMENT_BYTES, 0, 0, state)

    def _settle_if_free(self) -> Mark | None:
        """Settle the mark under the writer's lock; None if a writer holds that, or may hold it."""
        lock = self._open_lock()
        if lock is None:
            return self._settle(read_mark(self._folder))
        try:
            return self._settle(read_mark(self._folder)) if _lock(lock) else None
        finally:
            os.close(lock)

    def _open_lock(self) -> int | None:
        """Open the lock file; None if it cannot be created: then the folder has no writer."""
        for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
            with suppress(OSError):
                return os.open(self._folder / LOCK, flags, 0o644)
        return None

    def _settle(self, stored: Mark | None) -> Mark:
        """Sync the segments, and write the mark after the last good block."""
        if stored is not None and stored.state == SETTLED:
            return stored  # Another process has settled it meanwhile.
        bases = segments(self._folder)
        if not bases:
            return stored or self._mark_of_nothing(SETTLED)
        size = size_of(self._folder / segment_name(bases[-1]))
        if self._unsettled is not None and self._unsettled[:3] == (stored, bases[-1], size):
            return self._unsettled[3]
        mark, unsynced = self._find_end(stored)
        try:
            for path in unsynced:
                _sync(path)
            FILES.fsync_folder(self._folder)
        except OSError:  # Blocks that may not be on the disk are not shown.
            return stored or self._mark_of_nothing(WRITING)
        try:
            marks = os.open(self._folder / MARK, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                os.lseek(marks, mark.place, os.SEEK_SET)
                os.write(marks, mark.encode())
            finally:
                os.close(marks)
        except OSError:  # The folder is read-only.
            self._unsettled = (stored, bases[-1], size, mark)
        return mark

    def _find_end(self, stored: Mark | None) -> tuple[Mark, list[Path]]:
        """Return the mark after the last good block, and the files that may not be synced yet."""
        mark = stored or self._mark_of_nothing(SETTLED)
        indexes = [
            Index(self._folder / segment_name(base), base, self._log_id, self._number)
            for base in segments(self._folder)
            if stored is None or base >= stored.segment
        ]
        indexes = [
            index for index in indexes if not index.refused
        ]  # Incomplete, or of another log.
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
            mark = _after_last_good(index.path, index.rows, mark)
        paths = [index.path for index in indexes]
        return mark._replace(sequence=mark.sequence + 1, state=SETTLED), paths


def _after_last_good(path: Path, rows: BlockTable, mark: Mark) -> Mark:
    """Move the mark behind the last block after it that has a correct CRC."""
    rows = rows[rows["position"] >= mark.position]
    if not len(rows):
        return mark
    time = max(mark.time, int(rows["last_time"].max()))
    with path.open("rb", buffering=0) as file:
        for row in rows[::-1]:
            data = read_at(file.fileno(), int(row["length"]), int(row["position"]))
            with suppress(DamagedLog):
                header = Block.decode(data).header
                return mark._replace(
                    offset=max(mark.offset, header.end),
                    position=int(row["position"]) + header.length,
                    time=time,
                    last=header.crc,
                )
    return mark


def _lock(file: int) -> bool:
    """Take the writer's lock; False: a writer has it, or nothing can be locked here."""
    try:
        return filelock.lock(file)
    except OSError:
        return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, READ_ONLY)
    try:
        sync_data(descriptor)
    finally:
        os.close(descriptor)
