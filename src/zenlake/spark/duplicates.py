"""Samples that came before: which of a range of a log repeat the number that a source gave.

Knows sources, their numbers and times of reception, as sets of intervals; reads them from a log and
keeps what was seen in a file beside it. Does not know Spark.
"""

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zenlake.log.read.log import Log, OffsetOutOfRange
from zenlake.log.read.reader import Reader
from zenlake.log.read.source_numbers import NumberedSamples
from zenlake.spark.offsets import FOLDER, PerPartition

GENERATIONS = 4  # that `within` is cut into: what is older is forgotten by the generation
MAX_SOURCES = 1 << 18  # remembered, and
MAX_INTERVALS = 1 << 22  # of their numbers: then the oldest generation is forgotten
MAX_KEPT_INTERVALS = 1 << 18  # in a file: more are read from the log again
MAX_KEPT_BYTES = 64 << 20  # of a file that is read
KEPT = 16  # files; then the oldest goes
PIECE_ROWS = 1 << 18  # that are looked up at once

DUPLICATE = "duplicate"  # the column

_SHIFT = 33  # a source's numbers are apart from the next one's by one bit
_NAME_BYTES = 20  # id and entity
_DIGEST = hashlib.sha256
_DIGITS = 32

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Ranges = Mapping[int, tuple[int, int]]

_log = logging.getLogger(__name__)


# ---- sets of numbers


class Intervals(NamedTuple):
    """Numbers, as intervals in order that do not touch; ends are not included."""

    starts: Numbers
    ends: Numbers

    @classmethod
    def of(cls, ordered: Numbers) -> "Intervals":
        """Of numbers in order; some may be there twice.

        >>> Intervals.of(np.array([3, 4, 4, 5, 9]))
        Intervals(starts=array([3, 9]), ends=array([ 6, 10]))
        """
        if not len(ordered):
            return cls(ordered, ordered)
        gaps = np.flatnonzero(np.diff(ordered) > 1)
        return cls(
            ordered[np.concatenate(([0], gaps + 1))],
            ordered[np.append(gaps, len(ordered) - 1)] + 1,
        )

    def have(self, numbers: Numbers) -> Mask:
        """Which of some numbers are among these."""
        if not len(self.starts):
            return np.zeros(len(numbers), np.bool_)
        place = np.searchsorted(self.starts, numbers, "right") - 1
        found: Mask = (place >= 0) & (numbers < self.ends[place])
        return found

    def meet(self, other: "Intervals") -> bool:
        """Whether any number is in both."""
        place = np.searchsorted(self.ends, other.starts, "right")
        inside = place < len(self.ends)
        return bool((self.starts[place[inside]] < other.ends[inside]).any())

    def and_also(self, other: "Intervals") -> "Intervals":
        """All that are in one of them."""
        starts = np.concatenate((self.starts, other.starts))
        ends = np.concatenate((self.ends, other.ends))
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        first = np.concatenate(([True], starts[1:] > ends[:-1])) if len(starts) else order > 0
        last = np.append(first[1:], True) if len(starts) else first
        return Intervals(starts[first], ends[last])


NOTHING = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


# ---- what was seen


class SequenceHistory:
    """Which numbers of which sources were seen, and when: by generations of equal length.

    A sample repeats one before it if they have source and number in common and were received
    within `within` seconds of each other. (By the generation: at most a quarter longer.)

    >>> seen = SequenceHistory(within=60)
    >>> names, times = [bytes(20)], np.zeros(4, np.int64)
    >>> seen.find(names, np.zeros(4, np.int64), np.array([7, 8, 7, 9]), times).tolist()
    [False, False, True, False]
    >>> seen.find(names, np.zeros(1, np.int64), np.array([9]), times[:1]).tolist()
    [True]
    """

    def __init__(self, within: float, floor: int | None = None) -> None:
        self.width = width_of(within)
        "Of a generation, in nanoseconds."
        self.floor = floor
        "The first generation of which all is known; None: all are."
        self.forgotten = 0
        "Numbers that had to be forgotten too early."
        self._sources: dict[bytes, int] = {}
        self._generations: dict[int, Intervals] = {}

    def __len__(self) -> int:
        """How many intervals there are."""
        return sum(len(one.starts) for one in self._generations.values())

    @property
    def sources(self) -> int:
        return len(self._sources)

    def find(
        self, names: Sequence[bytes], codes: Numbers, numbers: Numbers, times: Numbers
    ) -> Mask:
        """Which of some samples, in their order, repeat one before them; all are seen by now.

        `names[code]` is a sample's source: 16 bytes of the id, 4 of the entity.
        """
        repeats = np.zeros(len(codes), np.bool_)
        if not len(codes):
            return repeats
        keys = self._places(names, codes)[codes] << _SHIFT | numbers
        generations = times // self.width
        edges = np.flatnonzero(np.diff(generations)) + 1
        for low, high in pairwise([0, *edges.tolist(), len(codes)]):
            self._find(int(generations[low]), keys[low:high], repeats[low:high])
        self._limit()
        return repeats

    def _places(self, names: Sequence[bytes], codes: Numbers) -> Numbers:
        """The number of each name that is used."""
        places = np.zeros(len(names), np.int64)
        for code in np.flatnonzero(np.bincount(codes)).tolist():
            places[code] = self._sources.setdefault(names[code], len(self._sources))
        return places

    def _find(self, generation: int, keys: Numbers, repeats: Mask) -> None:
        ordered = np.sort(keys)
        new = Intervals.of(ordered)
        for other, seen in self._generations.items():
            if abs(generation - other) <= GENERATIONS and seen.meet(new):
                repeats |= seen.have(keys)
        if (ordered[1:] == ordered[:-1]).any():
            order = np.argsort(keys, kind="stable")
            repeats[order[1:]] |= keys[order[1:]] == keys[order[:-1]]
        self._generations[generation] = self._generations.get(generation, NOTHING).and_also(new)

    # ---- and forgotten

    def forget_before(self, generation: int) -> None:
        """Nobody will ask for generations before this one."""
        if self.floor is None or self.floor < generation:
            self.floor = generation
        old = [one for one in self._generations if one < generation]
        for one in old:
            del self._generations[one]
        if old:
            self._renumber()

    def _limit(self) -> None:
        if len(self._sources) > MAX_SOURCES:
            self._renumber()
        while len(self._sources) > MAX_SOURCES or len(self) > MAX_INTERVALS:
            gone = self._generations.pop(min(self._generations))
            self.forgotten += int((gone.ends - gone.starts).sum())
            self._renumber()

    def _renumber(self) -> None:
        """Leave out sources of which nothing is left. The order of the others stays."""
        starts = [one.starts >> _SHIFT for one in self._generations.values()]
        left = np.unique(np.concatenate([*starts, NOTHING.starts]))
        if len(left) == len(self._sources):
            return
        names = list(self._sources)
        self._sources = {names[old]: new for new, old in enumerate(left.tolist())}
        for generation, one in self._generations.items():
            old = one.starts >> _SHIFT
            lower = old - np.searchsorted(left, old) << _SHIFT
            self._generations[generation] = Intervals(one.starts - lower, one.ends - lower)

    # ---- as bytes

    def to_bytes(self, what: str) -> bytes:
        """A digest, and a record batch of one row; `what` says of which moment it is."""
        generations = self._generations.items()
        columns = {
            "sources": pa.array(list(self._sources), pa.binary(_NAME_BYTES)),
            "generations": pa.array([one for one, _ in generations], pa.int64()),
            "counts": pa.array([len(of.starts) for _, of in generations], pa.int64()),
            "starts": pa.array(
                np.concatenate([NOTHING.starts, *(of.starts for _, of in generations)])
            ),
            "ends": pa.array(np.concatenate([NOTHING.ends, *(of.ends for _, of in generations)])),
        }
        told = {"what": what, "width": str(self.width), "floor": json.dumps(self.floor)}
        lists = [pa.ListArray.from_arrays([0, len(one)], one) for one in columns.values()]
        batch = pa.RecordBatch.from_arrays(lists, list(columns)).replace_schema_metadata(told)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        body: bytes = sink.getvalue().to_pybytes()
        return _DIGEST(body).digest() + body

    @classmethod
    def from_bytes(cls, data: bytes, what: str, within: float) -> "SequenceHistory | None":
        """None: it is of another moment, or not whole."""
        size = _DIGEST().digest_size
        if _DIGEST(data[size:]).digest() != data[:size]:
            return None
        try:
            with pa.ipc.open_stream(data[size:]) as reader:
                batch = reader.read_next_batch()
            batch.validate(full=True)
            told = batch.schema.metadata
            seen = cls(within, json.loads(told[b"floor"]))
            if (told[b"what"].decode(), int(told[b"width"])) != (what, seen.width):
                return None
            read = {name: batch.column(name)[0].values for name in batch.schema.names}
            seen._take(read)
        except (pa.ArrowException, KeyError, ValueError, TypeError, IndexError):
            return None
        return seen

    def _take(self, columns: dict[str, pa.Array]) -> None:
        """ValueError: these are not what was written."""
        names = columns["sources"].to_pylist()
        self._sources = {name: number for number, name in enumerate(names)}
        starts, ends = (columns[name].to_numpy() for name in ("starts", "ends"))
        at = np.append(0, np.cumsum(columns["counts"].to_numpy()))
        if not len(starts) == len(ends) == at[-1] or len(self._sources) != len(names):
            raise ValueError
        if len(starts) and not 0 <= starts.min() <= starts.max() < len(names) << _SHIFT:
            raise ValueError
        generations = columns["generations"].to_pylist()
        for generation, (low, high) in zip(generations, pairwise(at.tolist()), strict=True):
            found = Intervals(starts[low:high], ends[low:high])
            if not (found.starts < found.ends).all():
                raise ValueError
            if not (found.ends[:-1] < found.starts[1:]).all():
                raise ValueError
            self._generations[generation] = found


def width_of(within: float) -> int:
    """Of a generation, in nanoseconds.

    >>> width_of(600) // 10**9
    150
    """
    return max(1, -(-int(within * 1e9) // GENERATIONS))


# ---- ranges of a log


class Duplicates:
    """Finds the repeats of one range of a log after another.

    What they are depends on the log and the range alone: what was seen before it is remembered,
    or kept beside the log (if `keeps`), or read again. Within a range the order is that of
    partitions, then offsets.
    """

    def __init__(self, within: float, keeps: bool = False) -> None:
        self._within, self._keeps = within, keeps
        self._width = width_of(within)
        self._seen: SequenceHistory | None = None
        self._at: dict[int, int] = {}
        "All before these offsets was seen."
        self._last: tuple[Any, dict[int, Numbers]] | None = None
        "Ranges may be planned more than once."

    def repeats(self, log: Log, ranges: Ranges, fail: bool = True) -> dict[int, Numbers]:
        """Offsets of the repeats in some ranges, in order, of partitions that have any.

        `fail`: unreadable blocks are an error.
        """
        name = log.id, dict(ranges)
        if self._last is None or self._last[0] != name:
            self._last = name, self._repeats(log, ranges, fail)
        return self._last[1]

    def _repeats(self, log: Log, ranges: Ranges, fail: bool) -> dict[int, Numbers]:
        blocks = {one: log.blocks(one, *span) for one, span in ranges.items() if span[0] < span[1]}
        blocks = {one: table[table["samples"] > 0] for one, table in blocks.items()}
        blocks = {one: table for one, table in blocks.items() if len(table)}
        if not blocks:
            return {}
        first = min(int(table["first_time"].min()) for table in blocks.values())
        needed = first // self._width - GENERATIONS
        seen = self._before(log, _offsets(ranges, 0), needed)
        self._seen = None  # until it is known to be right
        forgotten = seen.forgotten
        found = {one: self._of(seen, log, one, *ranges[one], fail) for one in sorted(blocks)}
        if seen.forgotten > forgotten:
            _log.warning(
                "%s: %d source numbers were forgotten early, repeats of them are not recognised: "
                "there are too many sources, or gaps in their numbers. Lower duplicatesWithin",
                log.path,
                seen.forgotten - forgotten,
            )
        last = min(int(table["first_time"][-1]) for table in blocks.values())
        seen.forget_before(last // self._width - GENERATIONS - 1)
        self._seen, self._at = seen, _offsets(ranges, 1)
        if self._keeps and len(seen) <= MAX_KEPT_INTERVALS:
            _keep(log, self._at, self._within, seen)
        return {one: offsets for one, offsets in found.items() if len(offsets)}

    def _of(
        self, seen: SequenceHistory, log: Log, partition: int, begin: int, end: int, fail: bool
    ) -> Numbers:
        found = [np.zeros(0, np.int64)]
        for some in _numbered(log, partition, begin, end, None, fail):
            mask = seen.find(some.names, some.codes, some.numbers, some.times)
            if mask.any():
                found.append(some.offsets[mask])
        return np.concatenate(found)

    def _before(self, log: Log, at: dict[int, int], needed: int) -> SequenceHistory:
        """What was seen before some offsets, in that generation and later."""
        seen = self._seen if self._at == at else None
        if seen is None:
            seen = _kept(log, at, self._within)
        if seen is not None and (seen.floor is None or seen.floor <= needed):
            return seen
        seen = SequenceHistory(self._within, needed)
        for partition in sorted(at.keys() & set(log.partitions())):
            # What retention removed, or is damaged, cannot be known any more.
            begin = log.first(partition)
            for some in _numbered(log, partition, begin, at[partition], needed * self._width):
                seen.find(some.names, some.codes, some.numbers, some.times)
        return seen


def _offsets(ranges: Ranges, edge: int) -> dict[int, int]:
    """The starts or the ends; a partition of which nothing was read may as well not be there."""
    return {one: ranges[one][edge] for one in sorted(ranges) if ranges[one][edge]}


def _numbered(
    log: Log, partition: int, begin: int, end: int, time: int | None, fail: bool = False
) -> Iterator[NumberedSamples]:
    """The samples with a source, received at `time` or later, by the piece.

    Unless it has to `fail`, what is not there (any more) is passed over.
    """
    if not fail:
        begin, end = max(begin, log.first(partition)), min(end, log.mark(partition).offset)
    while begin < end:
        try:
            for some in _pieces(Reader(log, partition), begin, end, time, fail):
                begin = int(some.offsets[-1]) + 1
                yield some
                if len(some.names) > MAX_SOURCES:
                    break  # the reader starts anew, without names
            else:
                return
        except OffsetOutOfRange:
            if fail or log.first(partition) <= begin:
                raise
            begin = log.first(partition)


def _pieces(
    reader: Reader, begin: int, end: int, time: int | None, fail: bool
) -> Iterator[NumberedSamples]:
    waiting: list[NumberedSamples] = []
    count = 0
    for some in reader.numbered(begin, end, start_time=time, on_damage="raise" if fail else "skip"):
        waiting.append(some)
        count += len(some.codes)
        if count and (count >= PIECE_ROWS or len(some.names) > MAX_SOURCES):
            yield _joined(waiting)
            waiting, count = [], 0
    if count:
        yield _joined(waiting)


def _joined(parts: list[NumberedSamples]) -> NumberedSamples:
    if len(parts) == 1:
        return parts[0]
    offsets, times, codes, numbers = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("offsets", "times", "codes", "numbers")
    )
    return NumberedSamples(parts[0].partition, offsets, times, codes, numbers, parts[-1].names)


# ---- kept beside the log


def _path(log: Log, at: PerPartition, within: float) -> Path:
    digest = _DIGEST(_what(log, at, within).encode()).hexdigest()
    return log.path / FOLDER / f"seen-{digest[:_DIGITS]}.arrow"


def _what(log: Log, at: PerPartition, within: float) -> str:
    return json.dumps([log.id, sorted(at.items()), width_of(within)])


def _kept(log: Log, at: PerPartition, within: float) -> SequenceHistory | None:
    path = _path(log, at, within)
    with suppress(OSError):
        if path.stat().st_size <= MAX_KEPT_BYTES:
            return SequenceHistory.from_bytes(path.read_bytes(), _what(log, at, within), within)
    return None


def _keep(log: Log, at: PerPartition, within: float, seen: SequenceHistory) -> None:
    """Nothing is lost if it cannot be kept, or is not whole after a crash: the log has it all."""
    path = _path(log, at, within)
    draft = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        try:
            draft.write_bytes(seen.to_bytes(_what(log, at, within)))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        kept = sorted(path.parent.glob("seen-*.arrow"), key=lambda one: one.stat().st_mtime_ns)
        for old in kept[:-KEPT]:
            old.unlink(missing_ok=True)


# ---- what a task is told


def packed(offsets: Numbers, start: int, end: int) -> bytes:
    """Those of some offsets in order that are in a range: a bit for each of the range.

    >>> unpacked(packed(np.array([3, 12, 14]), 10, 15), 5).tolist()
    [False, False, True, False, True]
    """
    low, high = np.searchsorted(offsets, (start, end)).tolist()
    if low == high:
        return b""
    bits = np.zeros(end - start, np.bool_)
    bits[offsets[low:high] - start] = True
    return zlib.compress(np.packbits(bits).tobytes(), 1)


def unpacked(data: bytes, count: int) -> Mask:
    """For each of `count` offsets, whether it is there."""
    if not data:
        return np.zeros(count, np.bool_)
    bits = np.frombuffer(zlib.decompress(data, bufsize=-(-count // 8)), np.uint8)
    return np.unpackbits(bits, count=count).view(np.bool_)


class DuplicateMarker:
    """What becomes of the rows of one task that came before: marked, dropped, or nothing.

    `how` is the option `duplicates`; `losses`: there may be rows of loss among them.
    """

    def __init__(self, how: str, repeats: bytes, start: int, end: int, *, losses: bool) -> None:
        self._how, self._start = how, start
        self._extra = ("offset", *["loss"] * losses) if repeats else ()
        self._repeats = unpacked(repeats, end - start) if repeats else None

    def needed(self, names: Sequence[str]) -> list[str]:
        """The columns to read for those that are wanted."""
        found = [name for name in names if name != DUPLICATE]
        return found + [name for name in self._extra if name not in found]

    def on(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._how == "mark":
            return batch.append_column(DUPLICATE, pa.array(self._of(batch)))
        if self._how == "drop" and self._repeats is not None:
            return batch.filter(pa.array(~self._of(batch)))
        return batch

    def _of(self, batch: pa.RecordBatch) -> Mask:
        if self._repeats is None:
            return np.zeros(batch.num_rows, np.bool_)
        marks: Mask = self._repeats[batch.column("offset").to_numpy() - self._start]
        if "loss" in self._extra:  # a loss has the offset of the sample behind it
            marks &= batch.column("loss").is_null().to_numpy(zero_copy_only=False)
        return marks
