"""Numbered samples: blocks of them, and what a partition on the disk holds of them."""

import os
import struct
from pathlib import Path
from typing import NamedTuple

from zenlake.log.block import Loss, OpenBlock, SourceLink
from zenlake.log.files import Files, read_id, segment_name, segments
from zenlake.log.format import LANE, SEGMENT_BYTES, Block
from zenlake.log.write.recovery import DamagedBytes, SegmentWalk

FULL = bool(os.environ.get("ZENLAKE_FULL"))
LINK = SourceLink(7, 2, b"\x11" * 8)
_SAMPLE = struct.Struct("<IQ")


class Sample(NamedTuple):
    """Who wrote it, and its number there."""

    writer: int
    number: int


def numbered(writer: int, first: int, count: int, *, time: int = 1, pad: int = 0) -> OpenBlock:
    """A block of `count` samples and `pad` bytes more."""
    block = OpenBlock()
    place = block.link(LINK)
    assert place is not None
    assert block.key(place, 0, b"a/b", b"")
    data = b"".join(_SAMPLE.pack(writer, first + number) for number in range(count))
    block.add(place, True, time, count, data + b"\xa5" * pad)
    return block


def losses(count: int = 1, *, time: int = 1) -> OpenBlock:
    """A block of nothing but losses."""
    block = OpenBlock()
    for number in range(count):
        block.add_loss(Loss(LANE, time, b"\x01", number, number))
    return block


def samples_of(block: Block) -> list[Sample]:
    data = block.body()[1][: block.header.samples * _SAMPLE.size]
    return [Sample(*fields) for fields in _SAMPLE.iter_unpack(data)]


class Held(NamedTuple):
    """The contents of the good blocks of a partition, in their order."""

    samples: list[tuple[int, Sample]]
    damage: list[DamagedBytes]
    losses: int
    repeated: int
    "Blocks that stand in the next segment again."

    def by_offset(self) -> dict[int, Sample]:
        """Offsets are never used twice, and only grow."""
        offsets = [offset for offset, _ in self.samples]
        assert offsets == sorted(set(offsets))
        return dict(self.samples)


def held(path: Path, partition: int = 0) -> Held:
    """The partition as a reader finds it, without any index."""
    folder, log_id = path / str(partition), read_id(path)
    samples: list[tuple[int, Sample]] = []
    damage: list[DamagedBytes] = []
    lost = repeated = 0
    bases = segments(folder)
    for base, end in zip(bases, [*bases[1:], 1 << 62], strict=True):
        file = folder / segment_name(base)
        walk = SegmentWalk(file, log_id, partition, SEGMENT_BYTES, base)
        for block in walk:
            if block.header.end > end:
                repeated += 1  # of a group that failed, in a segment that could not be cut back
                break
            samples += enumerate(samples_of(block), block.header.base)
            lost += block.header.losses
        else:
            left = walk.size - walk.position
            if left > 0:
                damage.append(
                    DamagedBytes(file, walk.position, left, walk.offset, walk.offset, walk.reason)
                )
        damage += walk.damage
    return Held(samples, damage, lost, repeated)


class Quick(Files):
    """Syncs nothing: for tests in which the machine goes on."""

    def fdatasync(self, descriptor: int) -> None:
        pass

    def fsync_folder(self, path: Path) -> None:
        pass


QUICK = Quick()
