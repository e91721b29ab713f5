"""The reader of a log: record batches, source numbers, or bytes to be sent again.

Knows ranges of offsets and times, and what to do about damage. blocks.py reads the files, spans.py
scans messages, batches.py and source_numbers.py make the results.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from zenlake.columnar.conform import conform, plain_schema, split_texts
from zenlake.columnar.read import MAX_BYTES, MAX_ROWS, SampleBatcher
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr, intersects
from zenlake.log.format import DamagedLog, Entries
from zenlake.log.read.batches import BatchMaker, batch_schema, losses_in
from zenlake.log.read.blocks import BlockReader, KeyFilter, Losses, Part
from zenlake.log.read.index import MISSING, BlockTable, Damage
from zenlake.log.read.log import Log, OffsetOutOfRange
from zenlake.log.read.source_numbers import NumberedSamples, SourceNumbers
from zenlake.log.read.spans import (
    PartitionRange,
    SampleSpan,
    ScannedRows,
    SpanPiece,
    asked_rows,
    scan_piece,
)
from zenlake.wire.scan import Scanner

if TYPE_CHECKING:
    from zenlake.columnar.record_batch import RecordBatch

SKIP = "on_damage='skip'"  # How errors name the way to pass over damage.
MAX_SKIPPED = 10_000  # Upper bound on the damaged places that a reader lists.
ON_DAMAGE = ("raise", "skip")

_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


class Reader:
    """Reader of one partition of a log, or of all partitions one after another.

    >>> import tempfile
    >>> from zenlake.log.block import SourceLink, OpenBlock
    >>> from zenlake.log.write.writer import Writer
    >>> folder = tempfile.TemporaryDirectory()
    >>> block = OpenBlock()
    >>> link = block.link(SourceLink(0, 0, b""))
    >>> block.key(link, 0, b"a/b", b"")
    True
    >>> block.add(link, True, 10**9, 1, bytes.fromhex("3d 00 03 612f62 01 05 68656c6c6f"))
    >>> with Writer(folder.name) as writer:
    ...     _ = writer.write([block])
    >>> (batch,) = Reader(folder.name).batches(columns=["key", "payload", "offset"])
    >>> batch.to_pylist()
    [{'key': 'a/b', 'payload': b'hello', 'offset': 0}]
    >>> folder.cleanup()
    """

    def __init__(self, log: Log | Path | str, partition: int | None = None) -> None:
        self.log = log if isinstance(log, Log) else Log(log)
        self.partition = partition
        self.skipped: list[Damage] = []
        "Damage that was skipped, also such that holds no sample."
        self.unresolved = 0
        "Number of samples left out because the id in their key is not declared."
        self.invalid = 0
        "Number of samples left out because their key is not a valid key expression."
        self._scanner = Scanner()

    # ---- record batches

    def batches(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        key_expr: str | None = None,
        columns: Sequence[str] | None = None,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        losses: Losses = False,
        on_damage: Literal["raise", "skip"] = "raise",
        plain: bool = False,
    ) -> "Iterator[RecordBatch]":
        """Yield samples as record batches: those with offsets in [start, end), received in
        [start_time, end_time), whose key intersects `key_expr`.

        The columns are those of SAMPLE, then `partition` and `offset`; `columns` selects and
        orders them. With `losses`, loss records are rows too, of kind "loss" and with their
        details in one more column `loss`, each before the sample that it precedes; without an
        `end` also those after the last sample. `key_expr` does not filter them. With `losses`
        "only" they are the only rows, and blocks without any are not read. With `plain`, texts
        are strings, not dictionaries.

        Raise OffsetOutOfRange if the log does not have these offsets, and DamagedLog if they are
        unreadable, unless `on_damage` is "skip": then `skipped` lists what is missing.
        """
        _check_on_damage(on_damage)
        schema = batch_schema(columns, losses=bool(losses))
        wanted = _key_filter(key_expr)
        inner = [name for name in schema.names if name not in ("partition", "loss")]
        if "offset" not in inner:
            inner.append("offset")
        if losses:
            inner += [name for name in ("kind", "received_at") if name not in inner]
        for asked in self._ranges(start, end, start_time, end_time):
            batcher = SampleBatcher(max_rows, max_bytes, columns=inner, wanted=wanted)
            maker = BatchMaker(batcher, schema, asked.partition)
            for batch in self._batches(asked, maker, wanted, losses, on_damage):
                if plain:
                    for part in split_texts(batch, max_rows):
                        yield conform(part, plain_schema(schema))
                else:
                    yield batch
            self.unresolved += batcher.unresolved
            self.invalid += batcher.invalid

    def _batches(
        self,
        asked: PartitionRange,
        maker: BatchMaker,
        wanted: KeyFilter | None,
        losses: Losses,
        on_damage: str,
    ) -> Iterator[pa.RecordBatch]:
        batcher = maker.batcher
        for found in self._scanned(asked, wanted, losses):
            if isinstance(found, Damage):
                yield from maker.flush(found.first)
                self._on_damage(found, on_damage)
            elif isinstance(found, ScannedRows):
                span, times = found.span, found.span.batches["time"]
                rows, offsets = asked_rows(found, asked)
                at = 0
                while True:
                    at = batcher.append(
                        rows, span.data, span.keys, times, at, checked=True, offsets=offsets
                    )
                    if at == len(rows):
                        break
                    yield from maker.flush(int(offsets[at]))
            else:
                maker.losses.append(losses_in(found, asked))
                if losses == "only" and sum(map(len, maker.losses)) >= batcher.max_rows:
                    yield from maker.flush(None)
        yield from maker.flush(None)

    # ---- source numbers

    def numbered(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        on_damage: Literal["raise", "skip"] = "raise",
    ) -> Iterator[NumberedSamples]:
        """Yield the source numbers of the samples that have one, some thousand at a time."""
        _check_on_damage(on_damage)
        sources = SourceNumbers()
        for asked in self._ranges(start, end, start_time, end_time):
            for found in self._scanned(asked, None, losses=False):
                if isinstance(found, Damage):
                    self._on_damage(found, on_damage)
                elif isinstance(found, ScannedRows) and found.rows["source"].any():
                    yield sources.select(found, asked)

    # ---- bytes

    def spans(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        start_time: int | None = None,
        end_time: int | None = None,
        key_expr: str | None = None,
        on_damage: Literal["raise", "skip"] = "raise",
    ) -> Iterator[SampleSpan]:
        """Yield samples as spans of encoded messages, without gaps within a span.

        `key_expr` only skips whole blocks: the spans may contain other keys too.
        """
        _check_on_damage(on_damage)
        for asked in self._ranges(start, end, start_time, end_time):
            for part in self._parts(asked, _key_filter(key_expr), losses=False):
                if isinstance(part, Damage):
                    self._on_damage(part, on_damage)
                elif isinstance(part, SpanPiece):
                    yield from self._cut_piece(part, asked, on_damage)

    def _cut_piece(
        self, piece: SpanPiece, asked: PartitionRange, on_damage: str
    ) -> Iterator[SampleSpan]:
        """Yield the spans of a piece that are asked for."""
        span = piece.span
        count = int(span.batches["count"].sum(dtype=np.int64))
        if span.base < asked.start or span.base + count > asked.end:
            span = self._trim_span(piece, asked, on_damage)
        keep = asked.times(span.batches["time"])
        if keep is None:
            if len(span.batches):
                yield span
            return
        counts = np.append(0, np.cumsum(span.batches["count"], dtype=np.int64))
        ends = np.append(0, np.cumsum(span.batches["length"], dtype=np.int64))
        edges = np.flatnonzero(np.diff(np.concatenate(([False], keep, [False])))).reshape(-1, 2)
        for low, high in edges.tolist():
            yield SampleSpan(
                span.base + int(counts[low]),
                span.batches[low:high],
                span.data[int(ends[low]) : int(ends[high])],
                span.keys,
            )

    def _trim_span(self, piece: SpanPiece, asked: PartitionRange, on_damage: str) -> SampleSpan:
        """Return the span without the messages outside of the asked offsets."""
        span = piece.span
        counts = span.batches["count"].astype(np.int64)
        lengths = span.batches["length"].astype(np.int64)
        low = max(asked.start - span.base, 0)
        high = min(asked.end - span.base, int(counts.sum()))
        begin, stop = 0, 0
        for found in scan_piece(self._scanner, piece):
            if isinstance(found, Damage):
                self._on_damage(found, on_damage)
                break
            rows, first, _ = found
            if first <= low < first + len(rows):
                begin = int(rows["start"][low - first])
            if first < high <= first + len(rows):
                stop = int(rows["end"][high - 1 - first])
        if stop <= begin:
            return span._replace(batches=span.batches[:0], data=span.data[:0])
        after, ends = np.cumsum(counts), np.cumsum(lengths)
        batches = span.batches.copy()
        kept = np.clip(after, low, high) - np.clip(after - counts, low, high)
        size = np.clip(ends, begin, stop) - np.clip(ends - lengths, begin, stop)
        batches["count"], batches["length"] = kept, size
        return SampleSpan(span.base + low, batches[kept > 0], span.data[begin:stop], span.keys)

    # ---- ranges, blocks and damage

    def _ranges(
        self, start: int | None, end: int | None, start_time: int | None, end_time: int | None
    ) -> Iterator[PartitionRange]:
        partitions = self.log.partitions() if self.partition is None else [self.partition]
        if len(partitions) > 1 and (start is not None or end is not None):
            raise ZError(
                f"offsets are those of one partition: choose one of {partitions}, or give times"
            )
        for partition in partitions:
            mark = self.log.mark(partition).offset
            first = self.log.first(partition)
            low = first if start is None else start
            high = mark if end is None else end
            if low < first or max(low, high) > mark:
                raise OffsetOutOfRange(
                    f"partition {partition} of {self.log.path} has offsets {first} to {mark}, not "
                    f"{low} to {high}: "
                    + (
                        "older ones were removed: start at the first that is there"
                        if low < first
                        else "later ones are not durable yet: end where the mark is"
                    )
                )
            yield PartitionRange(partition, low, high, end is None, start_time, end_time)

    def _parts(
        self, asked: PartitionRange, wanted: KeyFilter | None, losses: Losses
    ) -> Iterator[Part]:
        """Yield the samples, loss records and damage of a range, in the order of offsets."""
        source = BlockReader(self.log, asked.partition, wanted, losses)
        end = None if asked.open_end else asked.end
        for table, damage in self.log.parts(asked.partition, asked.start, end):
            keep = table["losses"] > 0 if losses == "only" else (table["samples"] > 0) | losses
            if asked.start_time is not None:
                keep &= table["last_time"] >= asked.start_time
            if asked.end_time is not None:
                keep &= table["first_time"] < asked.end_time
            table, at = table if keep.all() else table[keep], 0
            for each in damage:
                stop = _blocks_before(table, each)
                yield from source.parts(table[at:stop])
                yield each
                at = stop
            yield from source.parts(table[at:])

    def _scanned(
        self, asked: PartitionRange, wanted: KeyFilter | None, losses: Losses
    ) -> Iterator[ScannedRows | Damage | Entries]:
        """Yield the parts of a range, with the samples as rows of the scan."""
        for part in self._parts(asked, wanted, losses):
            if isinstance(part, SpanPiece):
                yield from scan_piece(self._scanner, part)
            else:
                yield part

    def _on_damage(self, damage: Damage, on_damage: str) -> None:
        """Raise an error or skip, as the caller chose. Damage without a sample never raises."""
        if on_damage == "raise" and damage.first < damage.end:
            if damage.reason == MISSING:
                raise OffsetOutOfRange(
                    f"{damage}: partition {damage.partition} of {self.log.path} lacks a file. Put "
                    f"it back, start behind it, or read with {SKIP}"
                )
            raise DamagedLog(f"{self.log.path}: {damage}. Read around it, or with {SKIP}")
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(damage)


def _blocks_before(table: BlockTable, damage: Damage) -> int:
    """Return how many blocks of its segment are before a damage: by offset, then by position."""
    low, high = (int(np.searchsorted(table["base"], damage.first, side)) for side in _SIDES)
    return low + int((table["position"][low:high] < damage.position).sum())


def _check_on_damage(on_damage: str) -> None:
    if on_damage not in ON_DAMAGE:
        raise ZError(f"on_damage is 'raise' or 'skip', not {on_damage!r}")


def _key_filter(key_expr: str | None) -> KeyFilter | None:
    if key_expr is None:
        return None
    wanted = KeyExpr(key_expr)
    return lambda key: intersects(wanted, key)
