"""Repeated samples: which samples of a log range repeat a sequence number that their source used.

Knows sources, their numbers and reception times, as sets of intervals; reads them from a log and
stores the history in a file beside it. Does not know Spark.
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

GENERATIONS = 4  # Generations per `within`; the history forgets one generation at a time.
MAX_SOURCES = 1 << 18  # Sources in a history; beyond it the oldest generation is forgotten.
MAX_INTERVALS = 1 << 22  # Intervals in a history; beyond it the oldest generation is forgotten.
MAX_SAVED_INTERVALS = 1 << 18  # A history with more is not saved, but read from the log again.
MAX_FILE_BYTES = 64 << 20  # A larger history file is not read.
MAX_FILES = 16  # History files per log; beyond it the oldest is deleted.
KEPT_RANGES = 2  # Last ranges whose repeats are kept.
PIECE_ROWS = 1 << 18  # Samples that are looked up at once.

DUPLICATE = "duplicate"  # Name of the column that marks repeats.

_SHIFT = 33  # Sequence numbers have 32 bits; one more keeps intervals of two sources apart.
_NAME_BYTES = 20  # 16 bytes of Zenoh id and 4 of entity id.
_DIGEST = hashlib.sha256
_DIGITS = 32

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Ranges = Mapping[int, tuple[int, int]]

_log = logging.getLogger(__name__)


# ---- sets of numbers


class Intervals(NamedTuple):
    """A set of numbers as ordered intervals that do not touch; ends are exclusive."""

    starts: Numbers
    ends: Numbers

    @classmethod
    def of(cls, ordered: Numbers) -> "Intervals":
        """Make the set of some ordered numbers, which may repeat.

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

    def contains(self, numbers: Numbers) -> Mask:
        """Return for each of `numbers` whether it is in this set."""
        if not len(self.starts):
            return np.zeros(len(numbers), np.bool_)
        place = np.searchsorted(self.starts, numbers, "right") - 1
        found: Mask = (place >= 0) & (numbers < self.ends[place])
        return found

    def intersects(self, other: "Intervals") -> bool:
        """Return whether any number is in both sets."""
        place = np.searchsorted(self.ends, other.starts, "right")
        inside = place < len(self.ends)
        return bool((self.starts[place[inside]] < other.ends[inside]).any())

    def union(self, other: "Intervals") -> "Intervals":
        """Return the set of all numbers that are in either set."""
        starts = np.concatenate((self.starts, other.starts))
        ends = np.concatenate((self.ends, other.ends))
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        first = np.concatenate(([True], starts[1:] > ends[:-1])) if len(starts) else order > 0
        last = np.append(first[1:], True) if len(starts) else first
        return Intervals(starts[first], ends[last])


EMPTY = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


# ---- the history


class SequenceHistory:
    """The sequence numbers seen from each source, by generations of reception time.

    A sample repeats an earlier one if both have the same source and number and were received within
    `within` seconds of each other. Generations make that bound up to a quarter longer.

    >>> history = SequenceHistory(within=60)
    >>> names, times = [bytes(20)], np.zeros(4, np.int64)
    >>> history.find(names, np.zeros(4, np.int64), np.array([7, 8, 7, 9]), times).tolist()
    [False, False, True, False]
    >>> history.find(names, np.zeros(1, np.int64), np.array([9]), times[:1]).tolist()
    [True]
    """

    def __init__(self, within: float, floor: int | None = None) -> None:
        self.width = generation_width(within)
        "Length of a generation in nanoseconds."
        self.floor = floor
        "The first generation that is complete; None if all are."
        self.forgotten = 0
        "Count of numbers that had to be forgotten too early."
        self._sources: dict[bytes, int] = {}
        self._generations: dict[int, Intervals] = {}

    def __len__(self) -> int:
        """Return the number of intervals."""
        return sum(len(numbers.starts) for numbers in self._generations.values())

    @property
    def sources(self) -> int:
        return len(self._sources)

    def find(
        self, names: Sequence[bytes], codes: Numbers, numbers: Numbers, times: Numbers
    ) -> Mask:
        """Return which samples, in their order, repeat an earlier one; add all to the history.

        `names[code]` is a sample's source: 16 bytes of the id, 4 of the entity.
        """
        repeats = np.zeros(len(codes), np.bool_)
        if not len(codes):
            return repeats
        keys = self._number_sources(names, codes)[codes] << _SHIFT | numbers
        generations = times // self.width
        edges = np.flatnonzero(np.diff(generations)) + 1
        for low, high in pairwise([0, *edges.tolist(), len(codes)]):
            self._find_in(int(generations[low]), keys[low:high], repeats[low:high])
        self._forget_beyond_limits()
        return repeats

    def _number_sources(self, names: Sequence[bytes], codes: Numbers) -> Numbers:
        """Return the source number of each name that `codes` use."""
        places = np.zeros(len(names), np.int64)
        for code in np.flatnonzero(np.bincount(codes)).tolist():
            places[code] = self._sources.setdefault(names[code], len(self._sources))
        return places

    def _find_in(self, generation: int, keys: Numbers, repeats: Mask) -> None:
        """Set `repeats` for the samples of one generation, and add them."""
        ordered = np.sort(keys)
        new = Intervals.of(ordered)
        for other, seen in self._generations.items():
            if abs(generation - other) <= GENERATIONS and seen.intersects(new):
                repeats |= seen.contains(keys)
        if (ordered[1:] == ordered[:-1]).any():
            order = np.argsort(keys, kind="stable")
            repeats[order[1:]] |= keys[order[1:]] == keys[order[:-1]]
        self._generations[generation] = self._generations.get(generation, EMPTY).union(new)

    # ---- forgetting

    def forget_before(self, generation: int) -> None:
        """Drop the generations before `generation`, which no later range needs."""
        if self.floor is None or self.floor < generation:
            self.floor = generation
        old = [number for number in self._generations if number < generation]
        for number in old:
            del self._generations[number]
        if old:
            self._renumber()

    def _forget_beyond_limits(self) -> None:
        if len(self._sources) > MAX_SOURCES:
            self._renumber()
        while len(self._sources) > MAX_SOURCES or len(self) > MAX_INTERVALS:
            oldest = self._generations.pop(min(self._generations))
            self.forgotten += int((oldest.ends - oldest.starts).sum())
            self._renumber()

    def _renumber(self) -> None:
        """Drop sources without numbers. The others keep their order."""
        starts = [numbers.starts >> _SHIFT for numbers in self._generations.values()]
        left = np.unique(np.concatenate([*starts, EMPTY.starts]))
        if len(left) == len(self._sources):
            return
        names = list(self._sources)
        self._sources = {names[old]: new for new, old in enumerate(left.tolist())}
        for generation, numbers in self._generations.items():
            old = numbers.starts >> _SHIFT
            lower = old - np.searchsorted(left, old) << _SHIFT
            self._generations[generation] = Intervals(numbers.starts - lower, numbers.ends - lower)

    # ---- as bytes

    def to_bytes(self, key: str) -> bytes:
        """Encode the history: a digest, then an Arrow stream of one row.

        `key` says after which offsets of which log it holds; `from_bytes` compares it.
        """
        numbers = self._generations.values()
        columns = {
            "sources": pa.array(list(self._sources), pa.binary(_NAME_BYTES)),
            "generations": pa.array(list(self._generations), pa.int64()),
            "counts": pa.array([len(part.starts) for part in numbers], pa.int64()),
            "starts": pa.array(np.concatenate([EMPTY.starts, *(part.starts for part in numbers)])),
            "ends": pa.array(np.concatenate([EMPTY.ends, *(part.ends for part in numbers)])),
        }
        metadata = {"what": key, "width": str(self.width), "floor": json.dumps(self.floor)}
        lists = [pa.ListArray.from_arrays([0, len(column)], column) for column in columns.values()]
        batch = pa.RecordBatch.from_arrays(lists, list(columns)).replace_schema_metadata(metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        body: bytes = sink.getvalue().to_pybytes()
        return _DIGEST(body).digest() + body

    @classmethod
    def from_bytes(cls, data: bytes, key: str, within: float) -> "SequenceHistory | None":
        """Decode a history; None if it has another key or width, or is damaged."""
        size = _DIGEST().digest_size
        if _DIGEST(data[size:]).digest() != data[:size]:
            return None
        try:
            with pa.ipc.open_stream(data[size:]) as reader:
                batch = reader.read_next_batch()
            batch.validate(full=True)
            metadata = batch.schema.metadata
            history = cls(within, json.loads(metadata[b"floor"]))
            if (metadata[b"what"].decode(), int(metadata[b"width"])) != (key, history.width):
                return None
            history._load({name: batch.column(name)[0].values for name in batch.schema.names})
        except (pa.ArrowException, KeyError, ValueError, TypeError, IndexError):
            return None
        return history

    def _load(self, columns: dict[str, pa.Array]) -> None:
        """Take the columns that `to_bytes` wrote. ValueError: they are inconsistent."""
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
            numbers = Intervals(starts[low:high], ends[low:high])
            if not (numbers.starts < numbers.ends).all():
                raise ValueError
            if not (numbers.ends[:-1] < numbers.starts[1:]).all():
                raise ValueError
            self._generations[generation] = numbers


def generation_width(within: float) -> int:
    """Return the length of a generation in nanoseconds.

    >>> generation_width(600) // 10**9
    150
    """
    return max(1, -(-int(within * 1e9) // GENERATIONS))


# ---- ranges of a log


class DuplicateFinder:
    """Finder of the repeats in one range of a log after another.

    The result depends on the log and the range alone. The history before the range is in memory,
    or in a file beside the log (see `save`), or read from the log again. Within a range the order
    is that of partitions, then offsets.
    """

    def __init__(self, within: float) -> None:
        self._within = within
        self._width = generation_width(within)
        self._history: SequenceHistory | None = None
        self._history_end: dict[int, int] = {}
        "Offsets up to which `_history` has every sample."
        self._unsaved: Log | None = None
        "Log of a history that is not in a file yet."
        self._found: dict[Any, dict[int, Numbers]] = {}
        "Repeats of the last ranges: Spark may plan a batch more than once, after the next one."

    def resume(self, history: SequenceHistory, at: PerPartition) -> None:
        """Let the range that starts at the offsets `at` follow the samples of `history`."""
        self._history, self._found = history, {}
        self._history_end = _nonzero(at)

    def find(self, log: Log, ranges: Ranges, fail: bool = True) -> dict[int, Numbers]:
        """Return the ordered offsets of the repeats in `ranges`, for partitions that have any.

        An unreadable block is an error if `fail`, else it is skipped.
        """
        key = log.id, tuple(sorted(ranges.items()))
        if key not in self._found:
            found = self._find(log, ranges, fail)
            self._found = dict([*self._found.items(), (key, found)][-KEPT_RANGES:])
        return self._found[key]

    def _find(self, log: Log, ranges: Ranges, fail: bool) -> dict[int, Numbers]:
        tables = {
            partition: log.blocks(partition, *span)
            for partition, span in ranges.items()
            if span[0] < span[1]
        }
        tables = {partition: table[table["samples"] > 0] for partition, table in tables.items()}
        tables = {partition: table for partition, table in tables.items() if len(table)}
        if not tables:
            return {}
        first = min(int(table["first_time"].min()) for table in tables.values())
        needed = first // self._width - GENERATIONS
        history = self._history_before(log, _range_edges(ranges, 0), needed)
        self._history = None  # Not valid again before the whole range was added.
        forgotten = history.forgotten
        found = {
            partition: _find_in_partition(history, log, partition, ranges[partition], fail)
            for partition in sorted(tables)
        }
        if history.forgotten > forgotten:
            _log.warning(
                "%s: %d source numbers were forgotten early, repeats of them are not recognised: "
                "there are too many sources, or gaps in their numbers. Lower duplicatesWithin",
                log.path,
                history.forgotten - forgotten,
            )
        last = min(int(table["first_time"][-1]) for table in tables.values())
        history.forget_before(last // self._width - GENERATIONS - 1)
        self._history, self._history_end = history, _range_edges(ranges, 1)
        self._unsaved = log
        return {partition: offsets for partition, offsets in found.items() if len(offsets)}

    def save(self) -> None:
        """Write the history after the last range to a file beside the log, for a later process."""
        log, self._unsaved = self._unsaved, None
        history = self._history
        if log is not None and history is not None and len(history) <= MAX_SAVED_INTERVALS:
            _save_history(log, self._history_end, self._within, history)

    def _history_before(self, log: Log, at: dict[int, int], needed: int) -> SequenceHistory:
        """Return the history before the offsets `at`, complete from generation `needed` on."""
        history = self._history if self._history_end == at else None
        if history is None:
            history = _load_history(log, at, self._within)
        if history is not None and (history.floor is None or history.floor <= needed):
            return history
        history = SequenceHistory(self._within, needed)
        for partition in sorted(at.keys() & set(log.partitions())):
            # Samples that retention removed, or that are damaged, cannot be added any more.
            begin = log.first(partition)
            for part in _numbered_samples(
                log, partition, begin, at[partition], needed * self._width
            ):
                history.find(part.names, part.codes, part.numbers, part.times)
        return history


def _find_in_partition(
    history: SequenceHistory, log: Log, partition: int, span: tuple[int, int], fail: bool
) -> Numbers:
    """Return the offsets of the repeats in one partition's range, and add it to `history`."""
    found = [np.zeros(0, np.int64)]
    for part in _numbered_samples(log, partition, *span, None, fail):
        mask = history.find(part.names, part.codes, part.numbers, part.times)
        if mask.any():
            found.append(part.offsets[mask])
    return np.concatenate(found)


def _range_edges(ranges: Ranges, edge: int) -> dict[int, int]:
    """Return the starts (`edge` 0) or ends (1) of ranges, without partitions at offset 0.

    A partition that was not read yet and a partition that was not there yet are the same history.
    """
    return _nonzero({partition: ranges[partition][edge] for partition in sorted(ranges)})


def _nonzero(offsets: PerPartition) -> dict[int, int]:
    return {partition: offset for partition, offset in offsets.items() if offset}


def _numbered_samples(
    log: Log, partition: int, begin: int, end: int, time: int | None, fail: bool = False
) -> Iterator[NumberedSamples]:
    """Yield the samples with a source that were received at `time` or later, in pieces.

    Unless `fail`, samples that the log does not have (any more) are skipped.
    """
    if not fail:
        begin, end = max(begin, log.first(partition)), min(end, log.mark(partition).offset)
    while begin < end:
        try:
            for part in _read_pieces(Reader(log, partition), begin, end, time, fail):
                begin = int(part.offsets[-1]) + 1
                yield part
                if len(part.names) > MAX_SOURCES:
                    break  # A new reader starts with no source names.
            else:
                return
        except OffsetOutOfRange:
            if fail or log.first(partition) <= begin:
                raise
            begin = log.first(partition)


def _read_pieces(
    reader: Reader, begin: int, end: int, time: int | None, fail: bool
) -> Iterator[NumberedSamples]:
    """Yield the samples in pieces of about PIECE_ROWS."""
    waiting: list[NumberedSamples] = []
    count = 0
    for part in reader.numbered(begin, end, start_time=time, on_damage="raise" if fail else "skip"):
        waiting.append(part)
        count += len(part.codes)
        if count and (count >= PIECE_ROWS or len(part.names) > MAX_SOURCES):
            yield _concatenate(waiting)
            waiting, count = [], 0
    if count:
        yield _concatenate(waiting)


def _concatenate(parts: list[NumberedSamples]) -> NumberedSamples:
    if len(parts) == 1:
        return parts[0]
    offsets, times, codes, numbers = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("offsets", "times", "codes", "numbers")
    )
    return NumberedSamples(parts[0].partition, offsets, times, codes, numbers, parts[-1].names)


# ---- history files beside the log


def _history_path(log: Log, at: PerPartition, within: float) -> Path:
    digest = _DIGEST(_history_key(log, at, within).encode()).hexdigest()
    return log.path / FOLDER / f"seen-{digest[:_DIGITS]}.arrow"


def _history_key(log: Log, at: PerPartition, within: float) -> str:
    return json.dumps([log.id, sorted(at.items()), generation_width(within)])


def _load_history(log: Log, at: PerPartition, within: float) -> SequenceHistory | None:
    path = _history_path(log, at, within)
    with suppress(OSError):
        if path.stat().st_size <= MAX_FILE_BYTES:
            key = _history_key(log, at, within)
            return SequenceHistory.from_bytes(path.read_bytes(), key, within)
    return None


def _save_history(log: Log, at: PerPartition, within: float, history: SequenceHistory) -> None:
    """Write a history file. A failure costs time only: the log has every sample."""
    path = _history_path(log, at, within)
    draft = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        try:
            draft.write_bytes(history.to_bytes(_history_key(log, at, within)))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        files = sorted(path.parent.glob("seen-*.arrow"), key=lambda file: file.stat().st_mtime_ns)
        for old in files[:-MAX_FILES]:
            old.unlink(missing_ok=True)


# ---- the repeats of a task


def pack_offsets(offsets: Numbers, start: int, end: int) -> bytes:
    """Encode which offsets of a range are in `offsets` (ordered): compressed, one bit per offset.

    >>> unpack_mask(pack_offsets(np.array([3, 12, 14]), 10, 15), 5).tolist()
    [False, False, True, False, True]
    """
    low, high = np.searchsorted(offsets, (start, end)).tolist()
    if low == high:
        return b""
    bits = np.zeros(end - start, np.bool_)
    bits[offsets[low:high] - start] = True
    return zlib.compress(np.packbits(bits).tobytes(), 1)


def unpack_mask(data: bytes, count: int) -> Mask:
    """Decode `pack_offsets`: for each of the `count` offsets of the range whether it was there."""
    if not data:
        return np.zeros(count, np.bool_)
    bits = np.frombuffer(zlib.decompress(data, bufsize=-(-count // 8)), np.uint8)
    return np.unpackbits(bits, count=count).view(np.bool_)


class DuplicateMarker:
    """Treatment of the repeats among one task's rows: marked, dropped or left alone.

    `how` is the option `duplicates`; with `losses` there may be loss rows among the samples.
    """

    def __init__(self, how: str, repeats: bytes, start: int, end: int, *, losses: bool) -> None:
        self._how, self._start = how, start
        self._extra = ("offset", *["loss"] * losses) if repeats else ()
        self._repeats = unpack_mask(repeats, end - start) if repeats else None

    def columns_to_read(self, names: Sequence[str]) -> list[str]:
        """Return the columns to read from the log so that `apply` can give the columns `names`."""
        columns = [name for name in names if name != DUPLICATE]
        return columns + [name for name in self._extra if name not in columns]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return `batch` with its repeats marked or dropped."""
        if self._how == "mark":
            return batch.append_column(DUPLICATE, pa.array(self._mask(batch)))
        if self._how == "drop" and self._repeats is not None:
            return batch.filter(pa.array(~self._mask(batch)))
        return batch

    def _mask(self, batch: pa.RecordBatch) -> Mask:
        """Return which rows of `batch` are repeats."""
        if self._repeats is None:
            return np.zeros(batch.num_rows, np.bool_)
        mask: Mask = self._repeats[batch.column("offset").to_numpy() - self._start]
        if "loss" in self._extra:  # A loss row has the offset of the sample behind it.
            mask &= batch.column("loss").is_null().to_numpy(zero_copy_only=False)
        return mask
