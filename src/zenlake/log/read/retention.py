"""Retention: removes the oldest segments of a partition, by size and by age.

Knows files and the times in block headers. Never touches the segment that is being written.
"""

from contextlib import suppress
from pathlib import Path

from zenlake.log.files import Files, Trimmed, is_before, remove_oldest, segment_name, segments
from zenlake.log.read.index import Index

# Segments removed per pass, so that a clock jump cannot delete more before an operator notices.
MAX_REMOVED = 8


class Retention:
    """The limits of a partition in bytes and in seconds; None means no limit."""

    def __init__(
        self,
        folder: Path,
        log_id: bytes,
        partition: int,
        max_bytes: int | None,
        max_seconds: float | None,
    ) -> None:
        self.max_bytes = max_bytes
        self.max_age = None if max_seconds is None else int(max_seconds * 1e9)
        self.removed = Trimmed(0, 0)
        "Segments removed so far."
        self._folder = folder
        self._owner = (log_id, partition)
        self._times: dict[int, int] = {}
        "Latest time of reception in a segment, by its base offset."

    def segment_ended(self, base: int, time: int) -> None:
        """Note the latest time of reception in a segment that gets no more blocks."""
        if self.max_age is not None:
            self._times[base] = time

    def run(self, files: Files, current: int, now: int) -> None:
        """Remove segments that are too old or too many. `current` is the one being written."""
        if self.max_bytes is None and self.max_age is None:
            return
        bases = [base for base in segments(self._folder) if base <= current]
        sizes = [self._size(base) for base in bases]

        def is_expired(number: int, left: int) -> bool:
            too_much = self.max_bytes is not None and left > self.max_bytes
            return number < MAX_REMOVED and (too_much or self._too_old(bases[number:], now))

        for number, size in enumerate(remove_oldest(files, self._folder, bases, sizes, is_expired)):
            self._times.pop(bases[number], None)
            self.removed = Trimmed(self.removed.segments + 1, self.removed.bytes + size)

    def _size(self, base: int) -> int:
        with suppress(FileNotFoundError):  # Another process removed it.
            return (self._folder / segment_name(base)).lstat().st_size
        return 0

    def _too_old(self, bases: list[int], now: int) -> bool:
        """Return whether the first of the segments is older than `max_age`."""

        def latest(base: int) -> int | None:
            time = self._times.get(base)
            if time is None:
                time = self._latest(base)
            if time is not None:
                self._times[base] = time = min(time, now)  # A time in the future is a clock error.
            return time

        return self.max_age is not None and is_before(bases, now - self.max_age, latest)

    def _latest(self, base: int) -> int | None:
        """Return the latest time in a segment; None if parts of it are unreadable."""
        try:
            index = Index(self._folder / segment_name(base), base, *self._owner)
            if not index.load():
                index.walk()
        except OSError:
            return None
        if index.refused or index.holes or not len(index.rows):
            return None
        return int(index.rows["last_time"].max())
