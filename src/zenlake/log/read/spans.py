"""Spans: consecutive samples of a log as bytes, and their rows in the scan.

Knows batches, blocks and the range of offsets and times that a reader asks for. Does not know
files.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.log.files import segment_name
from zenlake.log.format import RELIABLE, Entries
from zenlake.log.read.index import BlockTable, Damage
from zenlake.log.read.log_keys import LogKeys
from zenlake.wire.kernels.row import LANE_RELIABLE
from zenlake.wire.push import ID as PUSH
from zenlake.wire.scan import Rows, Scanner

_BAD_MESSAGES = "a block's messages are not what its batches say"


class PartitionRange(NamedTuple):
    """The part of a partition that a reader asks for."""

    partition: int
    start: int
    end: int
    "The first offset that is not asked for."
    open_end: bool
    "Whether loss records after the last sample are asked for too."
    start_time: int | None
    end_time: int | None

    def times(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        """Return which of the `times` are asked for; None if all are."""
        keep = np.ones(len(times), np.bool_)
        if self.start_time is not None:
            keep &= times >= self.start_time
        if self.end_time is not None:
            keep &= times < self.end_time
        return None if keep.all() else keep


class SampleSpan(NamedTuple):
    """Consecutive samples as they were received."""

    base: int
    "The offset of the first sample."
    batches: Entries
    "Batch entries (format.BATCH_ENTRY), with links numbered as in `keys`."
    data: memoryview
    "The PUSH messages, one after another."
    keys: LogKeys


class SpanPiece(NamedTuple):
    """A span, with the blocks that it was gathered from."""

    span: SampleSpan
    partition: int
    blocks: BlockTable
    ends: npt.NDArray[np.int64]
    "Batches and bytes before each block; a last row has the totals."

    def after_block(self, block: int) -> "SpanPiece":
        """Return the rest of the piece after a block."""
        batch, byte = self.ends[block + 1].tolist()
        span, gone = self.span, self.blocks[: block + 1]["samples"].sum(dtype=np.int64)
        rest = SampleSpan(span.base + int(gone), span.batches[batch:], span.data[byte:], span.keys)
        return SpanPiece(
            rest,
            self.partition,
            self.blocks[block + 1 :],
            self.ends[block + 1 :] - self.ends[block + 1],
        )


class ScannedRows(NamedTuple):
    """Some rows of a span. The next scan overwrites them."""

    rows: Rows
    first: int
    "Number of the first row in the span."
    span: SampleSpan


def scan_piece(scanner: Scanner, piece: SpanPiece) -> Iterator[ScannedRows | Damage]:
    """Scan the messages of a piece, and yield their rows some thousand at a time.

    Where a block's messages contradict its batch entries, yield the rest of the block as damage.
    """
    span = piece.span
    batches = span.batches
    after = np.cumsum(batches["count"], dtype=np.int64)
    ends = np.cumsum(batches["length"], dtype=np.int64)
    links = batches["link"] << 1
    lanes = np.where(batches["flags"] & RELIABLE, 0, LANE_RELIABLE).astype(np.uint8)
    has_links, has_lanes = bool(links.any()), bool(lanes.any())
    batch_of = np.repeat(np.arange(len(batches), dtype=np.int32), batches["count"])
    first, total = 0, len(batch_of)
    for part in scanner.bare(span.data) if total else ():
        rows = part.rows[: total - first]
        good = rows[: _good_rows(rows, first, after, ends)]
        here = batch_of[first : first + len(good)]
        good["batch"] = here
        if has_links:
            good["mapping"] |= links[here]
        if has_lanes:
            good["lane"] ^= lanes[here]
        yield ScannedRows(good, first, span)
        first += len(good)
        if len(good) < len(rows) or first == total:
            break
    if first < total:
        block = int(np.searchsorted(piece.ends[1:, 0], batch_of[first], "right"))
        row = piece.blocks[block]
        yield damage_of(piece.partition, row, _BAD_MESSAGES, first=span.base + first)
        yield from scan_piece(scanner, piece.after_block(block))


def _good_rows(
    rows: Rows, first: int, after: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> int:
    """Return the number of rows before the first that is not a PUSH or overruns its batch."""
    bad = rows["kind"] != PUSH
    low, high = np.searchsorted(after, (first, first + len(rows)), "right").tolist()
    lasts = after[low:high] - 1 - first
    bad[lasts] |= rows["end"][lasts] != ends[low:high]
    return int(np.argmax(bad)) if bad.any() else len(rows)


def asked_rows(found: ScannedRows, asked: PartitionRange) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Return the rows that are asked for, and their offsets."""
    offset = found.span.base + found.first
    low = max(asked.start - offset, 0)
    rows = found.rows[low : max(asked.end - offset, 0)]
    offsets = np.arange(offset + low, offset + low + len(rows))
    if asked.start_time is not None or asked.end_time is not None:
        keep = asked.times(found.span.batches["time"])
        if keep is not None:
            chosen = keep[rows["batch"]]
            rows, offsets = rows[chosen], offsets[chosen]
    return rows, offsets


def damage_of(partition: int, row: Any, reason: str, first: int | None = None) -> Damage:
    """Return the damage of a block, from the offset `first` on if that is given."""
    base = int(row["base"])
    end = base + int(row["samples"])
    name = segment_name(int(row["segment"]))
    place = name, int(row["position"])
    return Damage(partition, base if first is None else first, end, *place, reason)
