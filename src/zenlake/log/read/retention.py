"""Which segments of a partition go: the oldest first, by size and by age.

Knows files and the times in block headers. Never touches the segment that is being written.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from zenlake.log.files import INDEX_SUFFIX, Files, segment_name, segments
from zenlake.log.read.index import Index

MAX_REMOVED = 8  # segments of one run: a clock that jumped costs no more before somebody looks


class Removed(NamedTuple):
    """What retention took away."""

    segments: int
    bytes: int

    def plus(self, segments: int, size: int) -> "Removed":
        return Removed(self.segments + segments, self.bytes + size)


def remove_oldest(
    files: Files,
    folder: Path,
    bases: Sequence[int],
    sizes: Sequence[int],
    goes: Callable[[int, int], bool],
) -> Iterator[int]:
    """Remove segments, the oldest first, and yield the size of each once it is gone for good.

    `goes` decides from the number of a segment among `bases` and from the bytes that are still
    there; the first that stays ends it. The last segment always stays.
    """
    left = sum(sizes)
    for number, base in enumerate(bases[:-1]):
        if not goes(number, left):
            return
        path = folder / segment_name(base)
        for name in (path, path.with_suffix(INDEX_SUFFIX)):
            with suppress(FileNotFoundError):  # another process was faster, or it has no index
                files.unlink(name)
        files.fsync_folder(folder)
        left -= sizes[number]
        yield sizes[number]


def is_before(bases: Sequence[int], time: int, latest: Callable[[int], int | None]) -> bool:
    """Return whether everything in the first segment was received before `time`.

    `latest` gives the latest time of reception in a segment; one that does not tell goes with the
    next one that does.
    """
    for base in bases[:-1]:
        found = latest(base)
        if found is not None:
            return found < time
    return False


class Retention:
    """How much of a partition stays; None means all of it."""

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
        self.removed = Removed(0, 0)
        self._folder = folder
        self._owner = (log_id, partition)
        self._times: dict[int, int] = {}

    def ended(self, base: int, time: int) -> None:
        """A segment gets no more blocks; `time` is the latest of reception until its end."""
        if self.max_age is not None:
            self._times[base] = time

    def run(self, files: Files, current: int, now: int) -> None:
        """Removes what is too old or too much, each for good before the next."""
        if self.max_bytes is None and self.max_age is None:
            return
        bases = [base for base in segments(self._folder) if base <= current]
        sizes = [self._size(base) for base in bases]

        def goes(number: int, left: int) -> bool:
            too_much = self.max_bytes is not None and left > self.max_bytes
            return number < MAX_REMOVED and (too_much or self._too_old(bases[number:], now))

        for number, size in enumerate(remove_oldest(files, self._folder, bases, sizes, goes)):
            self._times.pop(bases[number], None)
            self.removed = self.removed.plus(1, size)

    def _size(self, base: int) -> int:
        with suppress(FileNotFoundError):  # somebody else removed it
            return (self._folder / segment_name(base)).lstat().st_size
        return 0

    def _too_old(self, bases: list[int], now: int) -> bool:
        """Return whether the first of the segments is older than `max_age`."""

        def latest(base: int) -> int | None:
            time = self._times.get(base)
            if time is None:
                time = self._latest(base)
            if time is not None:
                self._times[base] = time = min(time, now)  # A time to come is a mistaken clock's.
            return time

        return self.max_age is not None and is_before(bases, now - self.max_age, latest)

    def _latest(self, base: int) -> int | None:
        """The latest time in a segment; None if it cannot be read throughout."""
        try:
            index = Index(self._folder / segment_name(base), base, *self._owner)
            if not index.load():
                index.walk()
        except OSError:
            return None
        if index.refused or index.holes or not len(index.rows):
            return None
        return int(index.rows["last_time"].max())
