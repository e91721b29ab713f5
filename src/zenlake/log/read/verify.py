"""Verification of a partition: every CRC, and that each block follows the one before it.

Reads everything from the disk, whatever the partition's indexes remember. Changes nothing.
"""

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from zenlake.log.files import TORN, read_at, segments
from zenlake.log.format import Block, DamagedLog, Mark, SegmentHeader
from zenlake.log.read.acknowledged import acknowledged_part
from zenlake.log.read.durable_mark import MarkReader
from zenlake.log.read.index import OUT_OF_CHAIN, BlockTable, Damage, Index
from zenlake.log.read.partition import Partition


@dataclass
class PartitionReport:
    """The result of verifying one partition."""

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
    "Files of torn tails that recoveries cut off; none of their bytes was ever acknowledged."


@dataclass
class VerifyReport:
    """The result of verifying a log."""

    partitions: list[PartitionReport]

    @property
    def damage(self) -> list[Damage]:
        return [damage for report in self.partitions for damage in report.damage]

    @property
    def ok(self) -> bool:
        return not self.damage


def verify_partition(partition: Partition, advance: Callable[[int], None]) -> PartitionReport:
    """Read all of a partition. `advance` is called with the bytes of each block.

    Raise FileNotFoundError if a segment is removed meanwhile.
    """
    mark = MarkReader(partition.folder, partition.number, partition.log_id).read()
    bases = segments(partition.folder)
    bases = bases[: bisect_left(bases, mark.segment) + 1]
    report = PartitionReport(partition.number, bases[0] if bases else mark.offset, mark.offset)
    with suppress(FileNotFoundError):
        report.torn = sorted((partition.folder / TORN).iterdir())
    last: int | None = None
    for base, following in pairwise([*bases, None]):
        assert base is not None
        last = _verify_segment(partition, base, following, mark, last, report, advance)
    return report


def _verify_segment(
    partition: Partition,
    base: int,
    following: int | None,
    mark: Mark,
    last: int | None,
    report: PartitionReport,
    advance: Callable[[int], None],
) -> int | None:
    """Add a segment to the report. `last`, and the result, is the CRC of the last block so far."""

    def header_of(other: int) -> SegmentHeader | None:
        return partition.new_index(other).header

    index = partition.new_index(base)
    index.walk(mark.position if base == mark.segment else None)
    rows, damage = acknowledged_part(index, partition.number, following, mark, header_of)
    bad = _bad_blocks(index, partition.number, rows, advance)
    follows_damage = bool(report.damage) and report.damage[-1].end == base
    reason = _header_reason(index, last, follows_damage)
    if reason:
        damage.insert(0, Damage(partition.number, base, base, index.path.name, 0, reason))
    report.damage += sorted([*damage, *bad], key=lambda each: (each.first, each.position))
    report.segments += 1
    report.blocks += len(rows) - len(bad)
    report.samples += int(rows["samples"].sum(dtype=np.int64))
    report.samples -= sum(each.end - each.first for each in bad)
    report.losses += int(rows["losses"].sum(dtype=np.int64))
    report.bytes += partition.segment_size(base)
    if len(rows):
        return int(rows[-1]["crc"])
    return None if index.header is None else index.header.previous


def _header_reason(index: Index, last: int | None, follows_damage: bool) -> str:
    """Return what is wrong with a segment's header; empty if nothing is."""
    if index.header is None:
        return "" if index.refused else "the segment's header is damaged"
    in_chain = last in (None, index.header.previous)
    return "" if in_chain or follows_damage else OUT_OF_CHAIN


def _bad_blocks(
    index: Index, partition: int, rows: BlockTable, advance: Callable[[int], None]
) -> list[Damage]:
    """Read every block, and return the damaged ones."""
    bad, path = [], index.path
    with path.open("rb", buffering=0) as file:
        for row in rows:
            position, length = int(row["position"]), int(row["length"])
            data = read_at(file.fileno(), length, position)
            try:
                block = Block.decode(data)
                block.keys()
                block.body()
            except DamagedLog as error:
                first, end = int(row["base"]), int(row["base"]) + int(row["samples"])
                bad.append(Damage(partition, first, end, path.name, position, str(error)))
            advance(length)
    return bad
