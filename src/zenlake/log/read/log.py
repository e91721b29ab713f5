"""A log as readers see it: its partitions, how far they are durable, which blocks they have.

Knows partitions by number. Decodes no message: planning what to read needs neither Numba nor Arrow.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from zenlake.errors import ZError
from zenlake.log.files import Trimmed, read_id, segment_name
from zenlake.log.format import Mark
from zenlake.log.read.index import BlockTable, Damage
from zenlake.log.read.partition import OffsetOutOfRange, Partition
from zenlake.log.read.verify import PartitionReport, VerifyReport, verify_partition

__all__ = ["Log", "OffsetOutOfRange", "PartitionReport", "Trimmed", "VerifyReport"]

Progress = Callable[[int, int], object]


class Log:
    """A recorded log, for reading. A writer may append to it at the same time.

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
                f"{self.path} is not a log: log.json is missing. Name the folder of a recording"
            ) from None
        self._partitions: dict[int, Partition] = {}

    @property
    def id(self) -> str:
        """Return the log's id, 32 hex digits. A log that is created again has another id."""
        return self._id.hex()

    def partitions(self) -> list[int]:
        """Return the numbers of the existing partitions."""
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries]
        names = [name for name in names if name.isascii() and name.isdigit()]
        return sorted(int(name) for name in names if str(int(name)) == name)

    def mark(self, partition: int) -> Mark:
        """Return how far the partition is durable.

        If its writer was killed, its blocks are made durable and the mark is moved behind them.
        """
        return self._partition(partition).mark()

    def first(self, partition: int) -> int:
        """Return the first offset that has not been removed."""
        found = self._partition(partition)
        return found.first(found.mark())

    def blocks(self, partition: int, start: int = 0, end: int | None = None) -> BlockTable:
        """Return the durable blocks that overlap [start, end), in order: rows of index.BLOCK.

        A loss record belongs to its offset, so the block before `start` may be among them.
        """
        return self._partition(partition).blocks(start, end)

    def damage(self, partition: int, start: int = 0, end: int | None = None) -> list[Damage]:
        """Return the damage in [start, end) that is visible without reading the blocks."""
        return self._partition(partition).damage(start, end)

    def parts(
        self, partition: int, start: int, end: int | None
    ) -> Iterator[tuple[BlockTable, list[Damage]]]:
        """Yield the blocks and damage of [start, end) by segment.

        A table of all blocks might not fit into memory. Raise OffsetOutOfRange if the first
        offsets were removed.
        """
        return self._partition(partition).parts(start, end)

    def offset_at(self, partition: int, time: int) -> int:
        """Return the offset of the first sample received at or after `time` (nanoseconds since
        1970), or the offset after the last sample if there is none yet."""
        return self._partition(partition).offset_at(time)

    def segment(self, partition: int, base: int) -> Path:
        """Return the file of a segment."""
        return self._partition(partition).folder / segment_name(base)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Read everything, and check every CRC and that each block follows the one before it.

        `progress` is called with the bytes read so far and the total.
        """
        found = [self._partition(number) for number in self.partitions()]
        total = sum(partition.size() for partition in found)
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            if progress is not None:
                progress(min(done, total), total)

        return VerifyReport(
            [each.retry(partial(verify_partition, each, advance)) for each in found]
        )

    def trim(
        self,
        *,
        before_offset: int | None = None,
        before_time: int | None = None,
        keep_bytes: int | None = None,
        partition: int | None = None,
    ) -> Trimmed:
        """Remove whole segments, the oldest first. A segment is removed if any of these is true:
        all its offsets are below `before_offset`; all its samples were received before
        `before_time`; `keep_bytes` are left without it. The last segment always stays.

        Works beside a writer. `before_offset` needs a `partition` if the log has several.
        """
        numbers = self.partitions() if partition is None else [partition]
        if before_offset is not None and len(numbers) > 1:
            raise ZError(f"an offset is that of one partition: name one of {numbers}")
        removed = [self._partition(n).trim(before_offset, before_time, keep_bytes) for n in numbers]
        return Trimmed(sum(each.segments for each in removed), sum(each.bytes for each in removed))

    def _partition(self, number: int) -> Partition:
        found = self._partitions.get(number)
        if found is None:
            folder = self.path / str(number)
            if number < 0 or not folder.is_dir():
                raise ZError(
                    f"{self.path} has no partition {number}: there are {self.partitions()}"
                )
            found = self._partitions[number] = Partition(folder, number, self._id)
        return found
