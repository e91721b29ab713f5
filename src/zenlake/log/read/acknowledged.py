"""The acknowledged blocks of a walked segment, and the damage among its acknowledged offsets.

Knows block tables, holes and where a segment must end: at the next segment, or at the mark. Does
not know files.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable

import numpy as np

from zenlake.log.files import segment_name
from zenlake.log.format import Mark, SegmentHeader
from zenlake.log.read.index import MISSING, BlockTable, Damage, Index

HeaderOf = Callable[[int], SegmentHeader | None]


def acknowledged_part(
    index: Index, partition: int, following: int | None, mark: Mark, header_of: HeaderOf
) -> tuple[BlockTable, list[Damage]]:
    """Return the acknowledged blocks of a segment, and its damage.

    `following` is the base offset of the next segment, None for the last one. `header_of` returns
    the header of a segment by its base offset.
    """
    base, name = index.base, index.path.name
    bound = mark.offset if following is None else following
    rows = _up_to(index.rows, bound)
    if following is not None:
        rows = _without_retried(rows, following, header_of)
    if index.refused:
        refused = Damage(partition, base, bound, name, 0, index.refused)
        return rows[:0], [refused] if bound > base else []
    damage = [
        Damage(
            partition,
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
    reached = max([base, *last, *(each.end for each in damage)])
    if reached < bound:
        place, reason = (name, index.position), "the segment ends before the mark"
        if len(rows) < len(index.rows):
            position = int(index.rows[len(rows)]["position"])
            place, reason = (name, position), "a block has more samples than were acknowledged"
        elif following is not None:
            place, reason = (segment_name(reached), 0), MISSING
        damage.append(Damage(partition, reached, bound, *place, reason))
    return rows, damage


def _without_retried(rows: BlockTable, following: int, header_of: HeaderOf) -> BlockTable:
    """Exclude blocks left by a failed write that was retried in the next segment."""
    tail = bisect_left(rows["base"], following)
    if tail == len(rows):
        return rows
    # Blocks of nothing but losses at the very end: the next header names the last one that counts.
    header = header_of(following)
    if header is not None:
        last = np.flatnonzero(rows["crc"][max(tail - 1, 0) :] == header.previous)
        if len(last):
            return rows[: max(tail - 1, 0) + int(last[-1]) + 1]
    return rows


def overlapping_blocks(rows: BlockTable, start: int, end: int | None) -> BlockTable:
    """Return the blocks with samples in [start, end), and the loss records just before `start`."""
    if end is not None:
        rows = rows[: bisect_left(rows["base"], end)]
    low = bisect_right(rows["base"], start)
    if low and _end(rows, low - 1) > start:
        low -= 1
    before = low
    while before and _end(rows, before - 1) == start:
        before -= 1
    keep = rows["losses"][before:low] > 0
    if not keep.any():
        return rows[low:]
    return np.concatenate((rows[before:low][keep], rows[low:]))


def _end(rows: BlockTable, at: int) -> int:
    return int(rows["base"][at]) + int(rows["samples"][at])


def _up_to(rows: BlockTable, bound: int) -> BlockTable:
    """Drop the blocks at the end that go beyond the offset `bound`.

    Uses `bisect`, not NumPy, which would copy the column: most calls want a few blocks of many.
    """
    high = bisect_right(rows["base"], bound)
    while high and _end(rows, high - 1) > bound:
        high -= 1
    return rows[:high]
