"""Reading a log: blocks by the run, as record batches or as bytes to be sent again.

Knows ranges, times, keys, losses and what to do about damage. Python runs for each run of blocks
and for each distinct key, not for each block or sample.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.columnar.read import MAX_BYTES, MAX_ROWS, OFFSET, SampleBatcher, sample_schema
from zenlake.columnar.schema import KINDS
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr, intersects, is_canonical
from zenlake.keytable import KeyTable
from zenlake.log import format as layout
from zenlake.log.files import segment_name
from zenlake.log.format import (
    ALL_KEYS,
    BATCH_ENTRY,
    HEADER_BYTES,
    LOSS_ENTRY,
    LOSS_KINDS,
    RELIABLE,
    UNKNOWN,
    Block,
    BlockHeader,
    DamagedLog,
    Entries,
    _unpack,
    crc32,
)
from zenlake.log.kernels import blocks as kernel
from zenlake.log.kernels.blocks import LinkTables
from zenlake.log.kernels.sources import (
    SourceTable,
    rehash,
    source_table,
    sources_kernel,
)
from zenlake.log.read.index import MISSING, BlockTable, Damage, headers
from zenlake.log.read.log import Log, OffsetOutOfRange
from zenlake.wire.kernels.row import LANE_RELIABLE
from zenlake.wire.push import ID as PUSH
from zenlake.wire.scan import Rows, Scanner, readable

SPAN_BYTES = 2 << 20  # of blocks that are read and scanned together, unpacked
PASS_BYTES = 64 << 10  # a block is passed over by its keys from that size on, or if compressed
FIRST_PREFIXES, FIRST_PREFIX_BYTES = 1 << 10, 64 << 10  # room for what ids stand for, to double
LITTLE_BYTES = 2 << 10  # a block whose CRC is taken by a kernel
MAX_PREFIX_BYTES = 64 << 20  # of one table; then the next begins
FIRST_SOURCES = 64  # room for sources, to double
MAX_SKIPPED = 10_000  # places that are noted one by one
KIND_TEXTS = (*KINDS, "loss")
ON_DAMAGE = ("raise", "skip")

PARTITION = pa.field("partition", pa.int32(), nullable=False)
LOSS = pa.struct(
    [
        pa.field("kind", pa.string()),  # "lane", "source", "link" or "dropped"
        pa.field("id", pa.string()),  # of the node or source, if it is known
        pa.field("entity", pa.uint32()),
        pa.field("priority", pa.int8()),
        pa.field("reliable", pa.bool_()),
        pa.field("first", pa.uint64()),
        pa.field("last", pa.uint64()),
        pa.field("count", pa.int64()),  # null: nobody can know
    ]
)

Wanted = Callable[[str], bool]
Losses = Literal[False, True, "only"]
_Places = npt.NDArray[np.int64]


class LogKeys:
    """What the ids in messages of a log stand for, by link << 17 | mapping << 16 | scope.

    The same for many blocks: `version` is another only if a number may mean something else.
    """

    def __init__(self) -> None:
        self.version = KeyTable().version  # no table has the same
        self.longest = 0
        self.incomplete = False
        "Somebody asked for a number that stands for nothing (so far)."
        self._links = LinkTables(
            np.zeros(kernel.MAX_LINKS * kernel.LINK_BYTES, np.uint8),
            np.zeros(kernel.NUMBERS, np.int32),
            np.zeros(FIRST_PREFIXES + 1, np.int64),
            np.zeros(FIRST_PREFIX_BYTES, np.uint8),
            np.zeros(3, np.int64),
        )
        self._prefixes: list[bytes] = []

    def prefix(self, number: int, /) -> bytes | None:
        """The UTF-8 text that a number stands for; None if it stands for nothing."""
        if not number & 0xFFFF:
            return b""
        place = int(self._links.prefix_of[number])
        if not place:
            self.incomplete = True
            return None
        return self._prefixes[place - 1]

    @property
    def is_fresh(self) -> bool:
        return not self._links.used[0]

    def _note(self) -> None:
        """Take over the prefixes that a kernel added."""
        ends, data = self._links.ends, self._links.prefixes
        for place in range(len(self._prefixes), int(self._links.used[1])):
            prefix = data[int(ends[place]) : int(ends[place + 1])].tobytes()
            self._prefixes.append(prefix)
            self.longest = max(self.longest, len(prefix))

    def _enlarge(self, text: int, must: bool) -> bool:
        """Room for prefixes of so many bytes; False if this table is large enough."""
        links, size = self._links, len(self._links.prefixes)
        if size + text > MAX_PREFIX_BYTES and not must:
            return False
        ends = np.zeros(2 * len(links.ends), np.int64)
        prefixes = np.zeros(2 * size + text, np.uint8)
        ends[: len(links.ends)] = links.ends
        prefixes[:size] = links.prefixes
        self._links = links._replace(ends=ends, prefixes=prefixes)
        return True


class SampleSpan(NamedTuple):
    """Samples one after another, as they came."""

    base: int
    "The offset of the first."
    batches: Entries
    "Of format.BATCH_ENTRY; their links are numbered as in `keys`."
    data: memoryview
    "PUSH messages one after another."
    keys: LogKeys


class NumberedSamples(NamedTuple):
    """Samples that their sources numbered, in the order of their offsets."""

    partition: int
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    "When they were received, in nanoseconds."
    codes: npt.NDArray[np.int64]
    "The place of the source in `names`,"
    numbers: npt.NDArray[np.int64]
    "and the number that it gave."
    names: list[bytes]
    "Id (16 bytes, little-endian) and entity (4) of each source so far; the next go on with it."


class _SpanPiece(NamedTuple):
    """A span, and where in it each block ends: batches and bytes, from (0, 0) on."""

    span: SampleSpan
    partition: int
    blocks: BlockTable
    ends: npt.NDArray[np.int64]

    def behind(self, block: int) -> "_SpanPiece":
        """What comes after a block."""
        batch, byte = self.ends[block + 1].tolist()
        span, gone = self.span, self.blocks[: block + 1]["samples"].sum(dtype=np.int64)
        rest = SampleSpan(span.base + int(gone), span.batches[batch:], span.data[byte:], span.keys)
        return _SpanPiece(
            rest,
            self.partition,
            self.blocks[block + 1 :],
            self.ends[block + 1 :] - self.ends[block + 1],
        )


class _PartitionRange(NamedTuple):
    """What of a partition is asked for."""

    partition: int
    start: int
    end: int
    open_end: bool
    "Records of loss behind the last sample are asked for too."
    start_time: int | None
    end_time: int | None

    def times(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
        """Which of some times are asked for; None if all are."""
        keep = np.ones(len(times), np.bool_)
        if self.start_time is not None:
            keep &= times >= self.start_time
        if self.end_time is not None:
            keep &= times < self.end_time
        return None if keep.all() else keep


class Reader:
    """Reads a partition of a log, or all of them one after another.

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
        "What was passed over; also places where nothing but unreadable bytes stand."
        self.unresolved = 0
        "Samples left out because nothing says what the id in their key stands for."
        self.invalid = 0
        "Samples left out because their key is no key expression."
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
    ) -> Iterator[pa.RecordBatch]:
        """The samples with offsets in [start, end), received in [start_time, end_time), whose key
        intersects `key_expr`, as record batches.

        The columns are those of SAMPLE, then `partition` and `offset`; `columns` picks and orders.
        `losses`: records of loss are rows too, each before the sample that it stands before, with
        kind "loss", and what was lost in one more column `loss`; without an `end` those behind the
        last sample come as well. They are not chosen by `key_expr`. "only": they alone are rows,
        and blocks without any are not read. `plain`: texts are strings, not dictionaries.
        OffsetOutOfRange if the log has not what is asked for; DamagedLog if it cannot be read,
        unless `on_damage` is "skip": then `skipped` says what is missing.
        """
        _check_on_damage(on_damage)
        schema = batch_schema(columns, losses=bool(losses), plain=plain)
        wanted = _chooser(key_expr)
        inner = [name for name in schema.names if name not in ("partition", "loss")]
        if "offset" not in inner:
            inner.append("offset")
        if losses:
            inner += [name for name in ("kind", "received_at") if name not in inner]
        for asked in self._ranges(start, end, start_time, end_time):
            batcher = SampleBatcher(max_rows, max_bytes, columns=inner, plain=plain, wanted=wanted)
            maker = _BatchMaker(batcher, schema, asked.partition)
            yield from self._batches(asked, maker, wanted, losses, on_damage)
            self.unresolved += batcher.unresolved
            self.invalid += batcher.invalid

    def _batches(
        self,
        asked: _PartitionRange,
        maker: "_BatchMaker",
        wanted: Wanted | None,
        losses: Losses,
        on_damage: str,
    ) -> Iterator[pa.RecordBatch]:
        batcher = maker.batcher
        for part in self._parts(asked, wanted, losses):
            if isinstance(part, Damage):
                yield from maker.flush(part.first)
                self._damaged(part, on_damage)
                continue
            if not isinstance(part, _SpanPiece):
                maker.losses.append(_losses_in(part, asked))
                if losses == "only" and sum(map(len, maker.losses)) >= batcher.max_rows:
                    yield from maker.flush(None)
                continue
            for found in self._rows(part):
                if isinstance(found, Damage):
                    yield from maker.flush(found.first)
                    self._damaged(found, on_damage)
                    continue
                span, times = found.span, found.span.batches["time"]
                rows, offsets = _asked_rows(found, asked)
                at = 0
                while True:
                    at = batcher.append(
                        rows, span.data, span.keys, times, at, checked=True, offsets=offsets
                    )
                    if at == len(rows):
                        break
                    yield from maker.flush(int(offsets[at]))
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
        """The samples that have a source, and nothing else of them, some thousand at a time."""
        _check_on_damage(on_damage)
        sources = _SourceNumbers()
        for asked in self._ranges(start, end, start_time, end_time):
            for part in self._parts(asked, None, losses=False):
                if isinstance(part, Damage):
                    self._damaged(part, on_damage)
                    continue
                assert isinstance(part, _SpanPiece)
                for found in self._rows(part):
                    if isinstance(found, Damage):
                        self._damaged(found, on_damage)
                    elif found.rows["source"].any():
                        yield sources.numbered(found, asked)

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
        """The same samples as bytes, without gaps within a span.

        By `key_expr` whole blocks are passed over; what is left may have other keys too.
        """
        _check_on_damage(on_damage)
        for asked in self._ranges(start, end, start_time, end_time):
            for part in self._parts(asked, _chooser(key_expr), losses=False):
                if isinstance(part, Damage):
                    self._damaged(part, on_damage)
                elif isinstance(part, _SpanPiece):
                    yield from self._cut(part, asked, on_damage)

    def _cut(
        self, piece: _SpanPiece, asked: _PartitionRange, on_damage: str
    ) -> Iterator[SampleSpan]:
        """What of a piece is asked for."""
        span = piece.span
        count = int(span.batches["count"].sum(dtype=np.int64))
        if span.base < asked.start or span.base + count > asked.end:
            span = self._trimmed(piece, asked, on_damage)
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

    def _trimmed(self, piece: _SpanPiece, asked: _PartitionRange, on_damage: str) -> SampleSpan:
        """The span without messages before or behind what is asked for."""
        span = piece.span
        counts = span.batches["count"].astype(np.int64)
        lengths = span.batches["length"].astype(np.int64)
        low = max(asked.start - span.base, 0)
        high = min(asked.end - span.base, int(counts.sum()))
        begin, stop = 0, 0
        for found in self._rows(piece):
            if isinstance(found, Damage):
                self._damaged(found, on_damage)
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

    # ---- what is asked for, and what is there

    def _ranges(
        self, start: int | None, end: int | None, start_time: int | None, end_time: int | None
    ) -> Iterator[_PartitionRange]:
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
            yield _PartitionRange(partition, low, high, end is None, start_time, end_time)

    def _parts(
        self, asked: _PartitionRange, wanted: Wanted | None, losses: Losses
    ) -> Iterator["_SpanPiece | Damage | Entries"]:
        """Pieces, records of loss and damage, each before what comes after it."""
        source = _BlockSource(self.log, asked.partition, wanted, losses)
        end = None if asked.open_end else asked.end
        for table, damage in self.log.parts(asked.partition, asked.start, end, whole=True):
            keep = table["losses"] > 0 if losses == "only" else (table["samples"] > 0) | losses
            if asked.start_time is not None:
                keep &= table["last_time"] >= asked.start_time
            if asked.end_time is not None:
                keep &= table["first_time"] < asked.end_time
            table, at = table if keep.all() else table[keep], 0
            for one in damage:
                stop = _blocks_before(table, one)
                yield from source.parts(table[at:stop])
                yield one
                at = stop
            yield from source.parts(table[at:])

    def _damaged(self, damage: Damage, on_damage: str) -> None:
        """What is unreadable and has no sample is only noted."""
        if on_damage == "raise" and damage.first < damage.end:
            if damage.reason == MISSING:
                raise OffsetOutOfRange(
                    f"{damage}: partition {damage.partition} of {self.log.path} lacks a file. Put "
                    "it back, start behind it, or read with on_damage='skip'"
                )
            raise DamagedLog(f"{self.log.path}: {damage}. Read around it, or with on_damage='skip'")
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(damage)

    # ---- from bytes to rows

    def _rows(self, piece: _SpanPiece) -> "Iterator[_ScannedRows | Damage]":
        """The scan's rows of a piece, some thousand at a time.

        Where a block's messages are not what its batches say, the rest of the block is damage.
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
        for part in self._scanner.bare(span.data) if total else ():
            rows = part.rows[: total - first]
            good = rows[: _good_rows(rows, first, after, ends)]
            here = batch_of[first : first + len(good)]
            good["batch"] = here
            if has_links:
                good["mapping"] |= links[here]
            if has_lanes:
                good["lane"] ^= lanes[here]
            yield _ScannedRows(good, first, span)
            first += len(good)
            if len(good) < len(rows) or first == total:
                break
        if first < total:
            block = int(np.searchsorted(piece.ends[1:, 0], batch_of[first], "right"))
            row = piece.blocks[block]
            yield _damage_of(piece.partition, row, _BAD_MESSAGES, first=span.base + first)
            yield from self._rows(piece.behind(block))


class _ScannedRows(NamedTuple):
    """Rows of a span, and the number of the first; overwritten by the next scan."""

    rows: Rows
    first: int
    span: SampleSpan


class _SourceNumbers:
    """Numbers the sources of one reading."""

    def __init__(self) -> None:
        self._seed = np.uint64(secrets.randbits(64))
        self._table = source_table(FIRST_SOURCES)
        self._names: list[bytes] = []

    def numbered(self, found: _ScannedRows, asked: _PartitionRange) -> NumberedSamples:
        """Those rows that are asked for and have a source."""
        rows, offsets = _asked_rows(found, asked)
        data = readable(found.span.data)
        places, codes, numbers = np.empty((3, len(rows)), np.int64)
        at = count = 0
        while True:
            rest = places[count:], codes[count:], numbers[count:]
            at, more = sources_kernel(rows, at, data, self._seed, self._table, *rest)
            count += more
            if at == len(rows):
                break
            self._table = self._enlarged()
        self._note()
        places = places[:count]
        times = found.span.batches["time"][rows["batch"][places]]
        return NumberedSamples(
            asked.partition,
            offsets[places],
            times.astype(np.int64),
            codes[:count],
            numbers[:count],
            self._names,
        )

    def _note(self) -> None:
        table = self._table
        for code in range(len(self._names), int(table.used[0])):
            name = table.low[code].tobytes() + table.high[code].tobytes()
            self._names.append(name + table.entity[code].tobytes())

    def _enlarged(self) -> SourceTable:
        old, count = self._table, int(self._table.used[0])
        new = source_table(2 * len(old.low))
        new.low[:count], new.high[:count] = old.low[:count], old.high[:count]
        new.entity[:count] = old.entity[:count]
        new.used[:] = count
        rehash(new, self._seed)
        return new


_BAD_MESSAGES = "a block's messages are not what its batches say"
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
_BAD_META = "a block contradicts itself"


def _damage_of(partition: int, row: Any, reason: str, first: int | None = None) -> Damage:
    base = int(row["base"])
    end = base + int(row["samples"])
    name = segment_name(int(row["segment"]))
    place = name, int(row["position"])
    return Damage(partition, base if first is None else first, end, *place, reason)


def _blocks_before(table: BlockTable, damage: Damage) -> int:
    """How many blocks of its segment stand before a damage: by offset, then by place."""
    low, high = (int(np.searchsorted(table["base"], damage.first, side)) for side in _SIDES)
    return low + int((table["position"][low:high] < damage.position).sum())


def _good_rows(
    rows: Rows, first: int, after: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> int:
    """How many rows there are before one that is no PUSH, or does not end where its batch does."""
    bad = rows["kind"] != PUSH
    low, high = np.searchsorted(after, (first, first + len(rows)), "right").tolist()
    lasts = after[low:high] - 1 - first
    bad[lasts] |= rows["end"][lasts] != ends[low:high]
    return int(np.argmax(bad)) if bad.any() else len(rows)


def _asked_rows(found: _ScannedRows, asked: _PartitionRange) -> tuple[Rows, npt.NDArray[np.int64]]:
    """The rows that are asked for, and their offsets."""
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


def _check_on_damage(on_damage: str) -> None:
    if on_damage not in ON_DAMAGE:
        raise ZError(f"on_damage is 'raise' or 'skip', not {on_damage!r}")


def _chooser(key_expr: str | None) -> Wanted | None:
    if key_expr is None:
        return None
    wanted = KeyExpr(key_expr)
    return lambda key: intersects(wanted, key)


# ---- blocks


class _BlockSource:
    """Reads blocks by the run and makes pieces of them."""

    def __init__(self, log: Log, partition: int, wanted: Wanted | None, losses: Losses) -> None:
        self._log, self._partition = log, partition
        self._only_losses = losses == "only"
        self._wanted, self._losses = None if self._only_losses else wanted, losses
        self._keys = LogKeys()

    def parts(self, table: BlockTable) -> Iterator["_SpanPiece | Damage | Entries"]:
        for run in _runs(table):
            yield from self._run(run)

    def _run(self, run: BlockTable) -> Iterator["_SpanPiece | Damage | Entries"]:
        """Blocks that stand one after another in a file."""
        data = self._read(run)
        starts = run["position"] - run["position"][0]
        there = int(np.searchsorted(starts + run["length"], len(data), "right"))
        good, passed = np.zeros(len(run), np.bool_), np.zeros(len(run), np.bool_)
        heads = headers(data, starts[:there])
        good[:there] = _good_blocks(run[:there], heads, data, starts[:there])
        if self._wanted is not None:
            large = (heads["codec"] > 0) | (heads["raw"] >= PASS_BYTES)
            listed = (heads["flags"] & ALL_KEYS > 0) & (heads["samples"] > 0)
            for at in np.flatnonzero(good[:there] & large & listed).tolist():
                passed[at] = self._is_passed(data, int(starts[at]))
        bodies: dict[int, memoryview] = {}
        packed = good[:there] & ~passed[:there] & (heads["codec"] > 0)
        for at in () if self._only_losses else np.flatnonzero(packed).tolist():
            try:
                bodies[at] = _unpacked(heads[at], data, int(starts[at]))
            except DamagedLog:
                good[at] = False
        low = 0
        for at in [*np.flatnonzero(~good | passed).tolist(), len(run)]:
            if low < at:
                found = _GatheredBlocks(run, heads, data, starts, bodies).part(low, at)
                if self._losses and found.heads["losses"].any():
                    yield found.losses()
                if not self._only_losses:
                    yield from self._pieces(found)
            low = at + 1
            if at == len(run):
                break
            if not good[at]:
                yield _damage_of(self._partition, run[at], _reason(data, int(starts[at])))
            elif self._losses and heads[at]["losses"]:
                yield _GatheredBlocks(run, heads, data, starts, bodies).part(at, low).losses()

    def _read(self, run: BlockTable) -> npt.NDArray[np.uint8]:
        path = self._log.segment(self._partition, int(run["segment"][0]))
        size = int(run["length"].sum(dtype=np.int64))
        try:
            with path.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), size, int(run["position"][0]))
        except FileNotFoundError:
            first, end = int(run["base"][0]), int(run["base"][-1]) + int(run["samples"][-1])
            raise OffsetOutOfRange(
                f"offsets {first} to {end} of partition {self._partition} were removed while they "
                f"were read: {self._log.path} starts at {self._log.first(self._partition)} now"
            ) from None
        return np.frombuffer(data, np.uint8)

    def _is_passed(self, data: npt.NDArray[np.uint8], start: int) -> bool:
        """Whether the block says that it has no key that is wanted."""
        assert self._wanted is not None
        try:
            block = _block(data, start)
            texts = [key.text.decode() for key in block.keys()]  # noqa: SIM118 (it is no dict)
        except (DamagedLog, UnicodeDecodeError):
            return False
        return not any(not is_canonical(text) or self._wanted(text) for text in texts)

    def _pieces(self, found: "_GatheredBlocks") -> Iterator["_SpanPiece | Damage"]:
        """All of them in one piece, mostly."""
        blocks, heads = found.blocks, found.heads
        data, starts, bodies, body_ends = found.plain()
        counts = np.stack([heads[name].astype(np.int64) for name in _COUNTS], axis=1)
        while len(blocks):
            if self._keys.incomplete:
                self._keys = LogKeys()
            keys, fresh, many = self._keys, self._keys.is_fresh, len(blocks) > 1
            entries = np.empty(int(counts[:, kernel.BATCHES].sum()), BATCH_ENTRY)
            out = np.empty(int((body_ends - bodies).sum()) if many else 0, np.uint8)
            ends = np.zeros((len(blocks) + 1, 2), np.int64)
            done, why = 0, kernel.PREFIXES_FULL
            while why == kernel.PREFIXES_FULL:
                done, why = kernel.blocks_kernel(
                    data,
                    starts,
                    bodies,
                    body_ends,
                    counts,
                    done,
                    keys._links,
                    many,
                    entries.view(np.uint8),
                    out,
                    ends,
                )
                keys._note()
                if why == kernel.PREFIXES_FULL and not keys._enlarge(
                    int(counts[done, kernel.META]), must=fresh and not done
                ):
                    break
            if done:
                batches, size = ends[done].tolist()
                whole = (
                    out.data if many else data.data[int(body_ends[0]) - size : int(body_ends[0])]
                )
                span = SampleSpan(int(blocks["base"][0]), entries[:batches], whole[:size], keys)
                yield _SpanPiece(span, self._partition, blocks[:done], ends[: done + 1])
            if why == kernel.DAMAGED or (why != kernel.DONE and not done and fresh):
                yield _damage_of(self._partition, blocks[done], _BAD_META)
                done += 1
            elif why != kernel.DONE:
                self._keys = LogKeys()
            blocks, starts, counts = blocks[done:], starts[done:], counts[done:]
            bodies, body_ends = bodies[done:], body_ends[done:]


class _GatheredBlocks(NamedTuple):
    """Good blocks one after another in a buffer, and the bodies of those that were compressed."""

    blocks: BlockTable
    heads: npt.NDArray[np.void]
    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    bodies: dict[int, memoryview]

    def part(self, low: int, high: int) -> "_GatheredBlocks":
        some = slice(low, high)
        bodies = {at - low: body for at, body in self.bodies.items() if low <= at < high}
        return _GatheredBlocks(
            self.blocks[some], self.heads[some], self.data, self.starts[some], bodies
        )

    def losses(self) -> Entries:
        """The records of loss of all blocks."""
        found = []
        ends = self.starts + HEADER_BYTES + self.heads["meta"]
        for at in np.flatnonzero(self.heads["losses"]).tolist():
            size = int(self.heads[at]["losses"]) * LOSS_ENTRY.itemsize
            end = int(ends[at])
            found.append(np.frombuffer(self.data[end - size : end], LOSS_ENTRY))
        return np.concatenate(found)

    def plain(self) -> tuple[npt.NDArray[np.uint8], _Places, _Places, _Places]:
        """A buffer of blocks that are not compressed: starts, and where the bodies start, end."""
        metas = self.heads["meta"].astype(np.int64) + HEADER_BYTES
        if not self.bodies:
            bodies = self.starts + metas
            return self.data, self.starts, bodies, self.starts + self.heads["length"]
        view, parts = self.data.data, list[Any]()
        for at, (start, meta, length) in enumerate(
            zip(self.starts.tolist(), metas.tolist(), self.heads["length"].tolist(), strict=True)
        ):
            parts.append(view[start : start + meta])
            body = self.bodies.get(at)
            parts.append(view[start + meta : start + length] if body is None else body)
        ends = np.cumsum(metas + self.heads["raw"])
        starts = ends - metas - self.heads["raw"]
        return np.frombuffer(b"".join(parts), np.uint8), starts, starts + metas, ends


_COUNTS = ("links", "keys", "losses", "batches", "samples", "meta")  # as the kernel has them
_MAGIC = int.from_bytes(layout.BLOCK_MAGIC, "little")


def _block(data: npt.NDArray[np.uint8], start: int) -> Block:
    """A block whose CRC is known to fit."""
    return Block(BlockHeader.decode(data.data, start), data.data, start)


def _unpacked(head: Any, data: npt.NDArray[np.uint8], start: int) -> memoryview:
    body = data.data[start + HEADER_BYTES + int(head["meta"]) : start + int(head["length"])]
    return _unpack(int(head["codec"]), body, int(head["raw"]))


def _reason(data: npt.NDArray[np.uint8], start: int) -> str:
    """Why there is no good block."""
    try:
        Block.decode(data.data, start).body()
    except DamagedLog as error:
        return str(error)
    return "a block is not the one that was here"


def _good_blocks(
    run: BlockTable,
    heads: npt.NDArray[np.void],
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Which blocks are those that the index says, as they were written."""
    crcs = _crcs(data, starts, starts + run["length"])
    links, keys, losses, batches, samples, meta = (heads[one].astype(np.int64) for one in _COUNTS)
    body = heads["length"].astype(np.int64) - HEADER_BYTES - meta
    entries = links * kernel.LINK_BYTES + keys * kernel.KEY_BYTES + losses * kernel.LOSS_BYTES
    good: npt.NDArray[np.bool_] = (
        (crcs == heads["crc"])
        & (heads["length"] == run["length"])
        & (heads["base"] == run["base"].astype(np.uint64))
        & (samples == run["samples"])
        & (heads["magic"] == _MAGIC)
        & (heads["version"] == layout.VERSION)
        & (heads["codec"] < len(layout.CODECS))
        & (links <= layout.MAX_LINKS)
        & (body >= 0)
        & ((heads["codec"] > 0) | (body == heads["raw"]))
        & (heads["raw"] <= layout.MAX_BLOCK_BYTES)
        & (entries <= meta)
        & (batches * kernel.BATCH_BYTES <= heads["raw"])
    )
    return good


def _crcs(data: npt.NDArray[np.uint8], starts: _Places, ends: _Places) -> npt.NDArray[np.uint32]:
    """The CRCs that blocks should have: a call of crc32 costs more than a small one takes."""
    found = np.zeros(len(starts), np.uint32)
    kernel.crc_kernel(data, starts, ends, LITTLE_BYTES, kernel.CRC_TABLES, found)
    view = data.data
    for at in np.flatnonzero(ends - starts > LITTLE_BYTES).tolist():
        start, end = int(starts[at]), int(ends[at])
        crc = crc32(view[start : start + HEADER_BYTES - 4])
        found[at] = crc32(view[start + HEADER_BYTES : end], crc)
    return found


def _runs(table: BlockTable) -> Iterator[BlockTable]:
    """Blocks that can be read together: without gaps, and not too many bytes."""
    if not len(table):
        return
    before, after = table[:-1], table[1:]
    apart = (
        (before["segment"] != after["segment"])
        | (before["position"] + before["length"] != after["position"])
        | (before["base"] + before["samples"] != after["base"])
    )
    sizes = np.cumsum(np.maximum(table["raw"], table["length"]), dtype=np.int64)
    low = 0
    for stop in [*(np.flatnonzero(apart) + 1).tolist(), len(table)]:
        while low < stop:
            start = int(sizes[low - 1]) if low else 0
            high = int(np.searchsorted(sizes, start + SPAN_BYTES, "right"))
            high = min(max(high, low + 1), stop)
            yield table[low:high]
            low = high


# ---- record batches


def batch_schema(
    columns: Sequence[str] | None = None, *, losses: bool = False, plain: bool = False
) -> pa.Schema:
    """What Reader.batches gives.

    >>> batch_schema().names[-3:], batch_schema(["key", "loss"], losses=True).names
    (['received_at', 'partition', 'offset'], ['key', 'loss'])
    """
    fields = [*sample_schema(plain=plain), PARTITION, OFFSET]
    if losses:
        fields = [field.with_nullable(True) for field in fields] + [pa.field("loss", LOSS)]
    known = {field.name: field for field in fields}
    names = list(known) if columns is None else list(columns)
    for name in names:
        if name not in known:
            raise ZError(f"no column {name!r}: there are {', '.join(known)}")
    if len(set(names)) < len(names):
        raise ZError(f"columns are named more than once: {', '.join(names)}")
    return pa.schema([known[name] for name in names])


class _BatchMaker:
    """Record batches in the wanted schema, from a batcher's and from records of loss."""

    def __init__(self, batcher: SampleBatcher, schema: pa.Schema, partition: int) -> None:
        self.batcher, self.schema, self.partition = batcher, schema, partition
        self.losses: list[Entries] = []
        "Not yet given out."

    def flush(self, offset: int | None) -> Iterator[pa.RecordBatch]:
        """All that comes before the sample with that offset; None: all there is."""
        samples = self.batcher.finish() if len(self.batcher) else None
        losses = self._losses_before(offset)
        if samples is None and losses is not None:
            samples = self.batcher.finish()
        if samples is None:
            return
        columns = {name: samples.column(name) for name in samples.schema.names}
        if losses is not None:
            columns = _with_losses(samples, losses, self.batcher.plain)
        n = len(columns["offset"])
        if not n:
            return
        columns["partition"] = pa.array(np.full(n, self.partition, np.int32))
        if "loss" not in columns:
            columns["loss"] = pa.nulls(n, LOSS) if "loss" in self.schema.names else None
        made = _record_batch([columns[name] for name in self.schema.names], self.schema, n)
        for at in range(0, n, self.batcher.max_rows):
            yield made.slice(at, self.batcher.max_rows)

    def _losses_before(self, offset: int | None) -> Entries | None:
        if not self.losses:
            return None
        waiting = np.concatenate(self.losses)
        waiting = waiting[np.argsort(waiting["offset"], kind="stable")]
        cut = len(waiting)
        if offset is not None:
            cut = int(np.searchsorted(waiting["offset"], np.uint64(offset)))
        self.losses = [waiting[cut:]] if cut < len(waiting) else []
        return waiting[:cut] if cut else None


def _record_batch(arrays: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    nothing = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(nothing)


def _losses_in(losses: Entries, asked: _PartitionRange) -> Entries:
    """Those of some records of loss that are asked for."""
    end = asked.end + asked.open_end  # more may have come since the end was looked up
    keep = (losses["offset"] >= asked.start) & (losses["offset"] < end)
    times = asked.times(losses["time"])
    return losses[keep if times is None else keep & times]


def _with_losses(samples: pa.RecordBatch, losses: Entries, plain: bool) -> dict[str, pa.Array]:
    """The columns with a row for each loss before the sample that it stands before."""
    offsets = samples.column("offset").to_numpy()
    lost = losses["offset"].astype(np.int64)
    places = np.searchsorted(offsets, lost)
    numbers = np.insert(np.arange(len(offsets)), places, -1)
    taken = samples.take(pa.array(numbers, mask=numbers < 0))
    columns = {name: taken.column(name) for name in taken.schema.names}
    columns["offset"] = pa.array(np.insert(offsets, places, lost))
    kinds = samples.column("kind")
    texts = kinds if plain else kinds.dictionary_decode()
    codes = pc.index_in(texts, pa.array(KINDS)).to_numpy(zero_copy_only=False)
    kind = pa.DictionaryArray.from_arrays(
        pa.array(np.insert(codes, places, len(KINDS)).astype(np.int8)), pa.array(KIND_TEXTS)
    )
    columns["kind"] = kind.dictionary_decode() if plain else kind
    received = samples.column("received_at")
    micros = received.view(pa.int64()).to_numpy(zero_copy_only=False)
    times = np.insert(micros, places, losses["time"] // 1000)
    columns["received_at"] = pa.array(times).view(received.type)
    which = np.insert(np.full(len(offsets), -1), places, np.arange(len(lost)))
    columns["loss"] = _loss_column(losses).take(pa.array(which, mask=which < 0))
    return columns


def _loss_column(losses: Entries) -> pa.Array:
    ids = [
        f"{int.from_bytes(bytes(raw)[:length], 'little'):x}" if length else None
        for raw, length in zip(losses["id"], losses["id_len"].tolist(), strict=True)
    ]
    missing = losses["missing"].astype(np.int64)
    columns = {
        "kind": pa.array([LOSS_KINDS.get(kind, "unknown") for kind in losses["kind"].tolist()]),
        "id": pa.array(ids, pa.string()),
        "entity": pa.array(losses["entity"].astype(np.uint32)),
        "priority": pa.array((losses["lane"] & 0x07).astype(np.int8)),
        "reliable": pa.array(losses["lane"] & LANE_RELIABLE > 0),
        "first": pa.array(losses["first"].astype(np.uint64)),
        "last": pa.array(losses["last"].astype(np.uint64)),
        "count": pa.array(missing, mask=missing == UNKNOWN),
    }
    return pa.StructArray.from_arrays([columns[field.name] for field in LOSS], fields=list(LOSS))
