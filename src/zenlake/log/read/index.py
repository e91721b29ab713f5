"""The index of a segment: the positions of its blocks, from their headers or from a cache file.

Knows headers, their sequence, and how to go on where it is broken. Does not look into blocks, and
checks a CRC only where the sequence is broken.
"""

import contextlib
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.log import format as layout
from zenlake.log.files import INDEX_SUFFIX, READ_ONLY, read_at
from zenlake.log.format import (
    BLOCK_MAGIC,
    HEADER_BYTES,
    MAX_BLOCK_BYTES,
    SEGMENT_BYTES,
    Block,
    BlockHeader,
    DamagedLog,
    SegmentHeader,
    crc32,
    offsets_text,
)

FEWEST_BYTES = 4 << 10  # Bytes per read where blocks are long.
MOST_BYTES = 1 << 20  # Bytes per read where blocks are short.
FIRST_ROWS = 256  # Initial rows of a table, which doubles as needed.
MISSING = "a segment is missing"
OUT_OF_CHAIN = "a block does not follow the one before it"

HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "u1"),
        ("codec", "u1"),
        ("flags", "<u2"),
        ("length", "<u4"),
        ("partition", "<u4"),
        ("id", "V16"),
        ("base", "<u8"),
        ("first_time", "<i8"),
        ("last_time", "<i8"),
        ("samples", "<u4"),
        ("losses", "<u4"),
        ("links", "<u4"),
        ("keys", "<u4"),
        ("batches", "<u4"),
        ("meta", "<u4"),
        ("raw", "<u4"),
        ("previous", "<u4"),
        ("crc", "<u4"),
    ]
)
assert HEADER.itemsize == HEADER_BYTES

BLOCK = np.dtype(
    [
        ("segment", "<i8"),  # Base offset of the segment.
        ("position", "<i8"),  # Byte position in the segment's file.
        ("base", "<i8"),  # Offset of the first sample.
        ("first_time", "<i8"),
        ("last_time", "<i8"),
        ("length", "<u4"),
        ("raw", "<u4"),
        ("samples", "<u4"),
        ("losses", "<u4"),
        ("crc", "<u4"),
        ("flags", "<u2"),
        ("codec", "u1"),
        ("spare", "u1"),
    ]
)
"Row of a table of blocks."
_COPIED = [
    *("base", "first_time", "last_time", "length", "raw", "samples", "losses", "crc", "flags"),
    "codec",
]
BlockTable = npt.NDArray[np.void]

_HOP = struct.Struct("<4s4xI")
_CACHE = struct.Struct("<8sIIQQ")  # Magic, version, CRC of the segment's header, its size, rows.
_CACHE_MAGIC, _CACHE_VERSION = b"ZENIDX\r\n", 1
_CRC = struct.Struct("<I")


class Damage(NamedTuple):
    """Missing samples, or unreadable bytes."""

    partition: int
    first: int
    end: int
    "The offsets from `first` to before `end` are missing; none if they are equal."
    segment: str
    "Name of the segment's file."
    position: int
    "Byte position in that file."
    reason: str

    def __str__(self) -> str:
        return (
            f"partition {self.partition}, {offsets_text(self.first, self.end)}: {self.reason} "
            f"({self.segment} at byte {self.position})"
        )

    def overlaps(self, start: int, end: int | None) -> bool:
        """Return whether a reader of [start, end) meets this damage."""
        return max(self.end, self.first + 1) > start and (end is None or self.first < end)


class Hole(NamedTuple):
    """Bytes of a segment that are not blocks in sequence."""

    position: int
    first: int
    "The first offset that is missing."
    end: int | None
    "The offset of the next good block; None if none has been found."
    reason: str


def headers(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    """Return the headers at the positions `starts`, each of which lies completely in `data`."""
    if not len(starts):
        return np.zeros(0, HEADER)
    windows = np.lib.stride_tricks.sliding_window_view(data, HEADER_BYTES)
    return np.ascontiguousarray(windows[starts]).view(HEADER)[:, 0]


class Index:
    """The blocks of one segment, as far as `walk` has read it."""

    def __init__(self, path: Path, base: int, log_id: bytes, partition: int) -> None:
        self.path, self.base = path, base
        self.header: SegmentHeader | None = None
        "The segment's header; None if it is damaged (the blocks are readable all the same)."
        self.refused = ""
        "Why the file is not read at all; empty if it is."
        self.holes: list[Hole] = []
        self.position = SEGMENT_BYTES
        "End of the bytes that have been walked."
        self.complete = False
        "Set by the owner once the segment gets no more blocks and is walked to its end."
        self._log_id, self._partition = log_id, partition
        self._rows = np.zeros(FIRST_ROWS, BLOCK)
        self._count = 0
        self._checked = -1
        "The last row whose CRC was checked and correct; -1 if none had to be checked."
        self._read_header()

    # ---- contents

    @property
    def rows(self) -> BlockTable:
        return self._rows[: self._count]

    @property
    def end(self) -> int:
        """Return the first offset after the walked blocks."""
        if not self._count:
            return self.base
        last = self._rows[self._count - 1]
        return int(last["base"]) + int(last["samples"])

    @property
    def is_open(self) -> bool:
        """Return whether the last hole has no end yet."""
        return bool(self.holes) and self.holes[-1].end is None

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    # ---- walking

    def _read_header(self) -> None:
        """Set `header`, or `refused` if the file is not to be read."""
        with self.path.open("rb") as file:
            head = file.read(SEGMENT_BYTES)
        try:
            header = SegmentHeader.decode(head)
        except DamagedLog as error:
            whole = len(head) == SEGMENT_BYTES
            if not whole or _CRC.unpack_from(head, SEGMENT_BYTES - 4)[0] == crc32(head[:-4]):
                self.refused = str(error)  # Too short, of another version, or not a segment.
            return
        if (header.log_id, header.partition) != (self._log_id, self._partition):
            self.refused = "the segment belongs to another log or partition"
        elif header.base != self.base:
            self.refused = f"the segment starts at offset {header.base}, not where its name says"
        else:
            self.header = header

    def walk(self, end: int | None = None) -> None:
        """Read on to the position `end`, or to the end of the file."""
        if self.refused or (end is not None and end <= self.position):
            return
        fd = os.open(self.path, READ_ONLY)
        try:
            size = os.fstat(fd).st_size
            _HeaderWalk(self, fd, size if end is None else min(end, size)).run()
            if end is not None and size < end:
                if not self.is_open:
                    self.holes.append(Hole(size, self.end, None, "the file ends before the mark"))
                self.position = end
        finally:
            os.close(fd)

    def append(self, rows: BlockTable) -> None:
        needed = self._count + len(rows)
        if needed > len(self._rows):
            bigger = np.zeros(max(needed, 2 * len(self._rows)), BLOCK)
            bigger[: self._count] = self.rows
            self._rows = bigger
        self._rows[self._count : needed] = rows
        self._count = needed

    def pop(self) -> None:
        self._count -= 1
        self._rows = self._rows.copy()  # A caller may hold a view of the old table.

    # ---- the cache

    @property
    def _cache(self) -> Path:
        return self.path.with_suffix(INDEX_SUFFIX)

    def load(self) -> bool:
        """Load the cache file instead of walking. Return False if it does not fit the segment."""
        if self.header is None:
            return False
        try:
            data = self._cache.read_bytes()
            size = self.path.stat().st_size
        except OSError:
            return False
        if len(data) < _CACHE.size + _CRC.size:
            return False
        *head, count = _CACHE.unpack_from(data)
        end = len(data) - _CRC.size
        if (
            tuple(head) != (_CACHE_MAGIC, _CACHE_VERSION, self._header_crc(), size)
            or end - _CACHE.size != count * BLOCK.itemsize
            or crc32(memoryview(data)[:end]) != _CRC.unpack_from(data, end)[0]
        ):
            return False
        rows = np.frombuffer(data, BLOCK, count, _CACHE.size)
        if not self._are_complete(rows, size):
            return False
        self._rows, self._count, self.position = rows, count, size
        return True

    def _are_complete(self, rows: BlockTable, size: int) -> bool:
        """Return whether the rows are consecutive blocks that fill the whole segment."""
        positions = np.append(rows["position"], size)
        bases = np.append(self.base, rows["base"] + rows["samples"])
        return bool(
            positions[0] == SEGMENT_BYTES
            and (np.diff(positions) == rows["length"]).all()
            and (bases[:-1] == rows["base"]).all()
            and (rows["length"] <= MAX_BLOCK_BYTES).all()
            and (rows["segment"] == self.base).all()
        )

    def save(self) -> None:
        """Write the cache file, if the segment has no damage and the folder is writable."""
        if self.header is None or self.holes:
            return
        data = _CACHE.pack(
            _CACHE_MAGIC, _CACHE_VERSION, self._header_crc(), self.position, self._count
        )
        data += self.rows.tobytes()
        temporary = self._cache.with_suffix(f"{INDEX_SUFFIX}.{os.getpid()}")
        try:
            temporary.write_bytes(data + _CRC.pack(crc32(data)))
            temporary.replace(self._cache)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _header_crc(self) -> int:
        assert self.header is not None
        crc: int = _CRC.unpack_from(self.header.encode(), SEGMENT_BYTES - _CRC.size)[0]
        return crc


class _HeaderWalk:
    """One walk over the headers of a segment, from the index's position to `end`."""

    def __init__(self, index: Index, fd: int, end: int) -> None:
        self._index, self._fd, self._end = index, fd, end
        self._id = np.frombuffer(index._log_id, "V16")[0]
        self._read = FEWEST_BYTES
        self._begun = index.position if index.is_open else 0  # An earlier walk searched up to here.

    def run(self) -> None:
        while self._index.position < self._end:
            rows, heads = self._read_headers()
            good = self._count_in_sequence(heads)
            self._index.append(rows[:good])
            if good:
                last = rows[good - 1]
                self._index.position = int(last["position"]) + int(last["length"])
            if good < len(rows) or not len(rows):
                self._resolve_mismatch()

    # ---- headers in sequence

    def _read_headers(self) -> tuple[BlockTable, npt.NDArray[np.void]]:
        """Read a window, and return its apparent blocks as table rows and as headers."""
        at, end = self._index.position, self._end
        window = read_at(self._fd, self._read, at)
        starts, pos, stop = [], 0, len(window) - HEADER_BYTES
        while pos <= stop:
            magic, length = _HOP.unpack_from(window, pos)
            if magic != BLOCK_MAGIC or not HEADER_BYTES <= length <= end - at - pos:
                break
            starts.append(pos)
            pos += length
        # Read more at once where blocks are short; where they are long, skip their contents.
        self._read = min(2 * self._read, MOST_BYTES) if len(starts) > 1 else FEWEST_BYTES
        places = np.array(starts, np.int64)
        heads = headers(np.frombuffer(window, np.uint8), places)
        return _rows_of(heads, places + at, self._index.base), heads

    def _count_in_sequence(self, heads: npt.NDArray[np.void]) -> int:
        """Return how many of the headers continue the sequence of blocks."""
        n = len(heads)
        if not n or self._index.is_open:
            return 0
        base, previous = self._expected()
        bases = np.empty(n, np.uint64)
        bases[0] = base
        np.add(heads["base"][:-1], heads["samples"][:-1], out=bases[1:])
        chain = np.empty(n, np.uint32)
        chain[0] = heads["previous"][0] if previous is None else previous
        chain[1:] = heads["crc"][:-1]
        fits = (
            (heads["version"] == layout.VERSION)
            & (heads["partition"] == self._index._partition)
            & (heads["id"] == self._id)
            & (heads["length"] <= MAX_BLOCK_BYTES)
            & (heads["base"] == bases)
            & (heads["base"] < 1 << 62)
            & (heads["previous"] == chain)
        )
        return n if fits.all() else int(np.argmin(fits))

    def _expected(self) -> tuple[int, int | None]:
        """Return the offset of the next block, and its `previous` field; None if unknown."""
        index = self._index
        if index._count:
            return index.end, int(index.rows[-1]["crc"])
        return index.base, None if index.header is None else index.header.previous

    # ---- where the sequence is broken

    def _resolve_mismatch(self) -> None:
        """Add the next good block, and a hole for the damage before it.

        Called where the next header does not continue the sequence: that block, or the one
        before it, is damaged.
        """
        index = self._index
        start, reason = index.position, ""
        if index.is_open:
            start, _, _, reason = index.holes.pop()
        elif index._count and index._checked < index._count - 1:
            before = index.rows[-1]
            if self._read_good(int(before["position"])) is None:
                start, reason = int(before["position"]), "a block is damaged"
                index.pop()
            else:
                index._checked = index._count - 1
        expected, previous = self._expected()
        found = self._read_good(index.position)
        position = index.position
        if found is None or found.base < expected:
            reason = reason or self._reason(index.position)
            position, found = self._find_good(max(start + 1, self._begun), expected)
        if found is None:
            index.holes.append(Hole(start, expected, None, reason))
            index.position = self._end
            return
        if reason or found.base > expected or previous not in (None, found.previous):
            reason = reason or "blocks are missing"
            index.holes.append(Hole(start, expected, found.base, reason))
        head = np.frombuffer(read_at(self._fd, HEADER_BYTES, position), HEADER)
        index.append(_rows_of(head, np.array([position]), index.base))
        index._checked = index._count - 1
        index.position = position + found.length

    def _header(self, position: int) -> BlockHeader:
        header = BlockHeader.decode(read_at(self._fd, HEADER_BYTES, position))
        index = self._index
        if (header.log_id, header.partition) != (index._log_id, index._partition):
            raise DamagedLog("a block belongs to another log or partition")
        if header.length > self._end - position:
            raise DamagedLog(f"a block has {self._end - position} of {header.length} bytes")
        return header

    def _read_good(self, position: int) -> BlockHeader | None:
        """Return the header of the block at `position`; None if its CRC is wrong."""
        try:
            header = self._header(position)
            return Block.decode(read_at(self._fd, header.length, position)).header
        except DamagedLog:
            return None

    def _reason(self, position: int) -> str:
        """Return why no expected block starts at `position`."""
        try:
            header = self._header(position)
            Block.decode(read_at(self._fd, header.length, position))
        except DamagedLog as error:
            return str(error)
        return "a block is out of place"

    def _find_good(self, start: int, least: int) -> tuple[int, BlockHeader | None]:
        """Search the next good block whose offset is at least `least`; return its position too."""
        while start < self._end:
            window = read_at(self._fd, min(MOST_BYTES, self._end - start), start)
            at = window.find(BLOCK_MAGIC)
            while at >= 0:
                with contextlib.suppress(DamagedLog):
                    if self._header(start + at).base >= least:
                        found = self._read_good(start + at)
                        if found is not None:
                            return start + at, found
                at = window.find(BLOCK_MAGIC, at + 1)
            start += max(len(window) - len(BLOCK_MAGIC) + 1, 1)
        return self._end, None


def _rows_of(
    heads: npt.NDArray[np.void], positions: npt.NDArray[np.int64], segment: int
) -> BlockTable:
    rows: npt.NDArray[Any] = np.zeros(len(heads), BLOCK)
    rows["segment"], rows["position"] = segment, positions
    for name in _COPIED:
        rows[name] = heads[name]
    return rows
