"""Received puts with pointers into shared memory: one, or many that are held together, then viewed
or copied.

Knows how to check all pointers of a FRAME together. The compiled part is kernels/shared_push.py.
Importing this module loads NumPy and Numba.
"""

import ctypes
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.shm import native
from zenlake.shm.foreign import MAX_COPIED_PAYLOAD, ForeignMemory, Pointer
from zenlake.shm.headers import DESCRIPTION_AT, HEADER, POSIX, WATCHDOGS_AT, HeaderTable
from zenlake.shm.holds import Holds, ReceivedBuffer
from zenlake.shm.kernels.shared_push import LENGTH_BYTES, SHARED, find_kernel, write_kernel
from zenlake.shm.native import VALID
from zenlake.shm.segment import Segment, ShmError
from zenlake.shm.views import ReceivedLease, view_of
from zenlake.wire.extensions import FLAG_EXTENSIONS
from zenlake.wire.qos import PRIORITY_BITS
from zenlake.wire.scan import CHUNK_ROWS, read_only_array

MAX_MESSAGES = CHUNK_ROWS  # Messages that are held together: one scan reads them.
MAX_COPIED_BYTES = 512 << 10  # Bytes of messages that are copied together, unless one is larger.
PROTOCOL, SEGMENT, OFFSET, CAPACITY = range(DESCRIPTION_AT // 4, DESCRIPTION_AT // 4 + 4)

_bytes_of_size = ctypes.pythonapi.PyBytes_FromStringAndSize
_bytes_of_size.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_bytes_of_size.restype = ctypes.py_object
_BYTES_AT = bytes.__basicsize__ - 1  # Where the content of a bytes object starts.

POINTER = np.dtype(
    [
        ("header", "i8"),
        ("generation", "i8"),
        ("watchdog", "i8"),
        ("bit", "u8"),
        ("source", "i8"),
        ("size", "i8"),
        ("verdict", "i8"),
    ]
)
"One pointer, as `hold_all` and `finish_all` in native.py read it."

Records = npt.NDArray[np.void]


class Copied(NamedTuple):
    """Messages with their payloads."""

    data: bytes
    lost: int
    "Messages that were left out: their memory was taken back."


class Held:
    """Received payloads in memory of one process, to each of which this one has a reference."""

    __slots__ = ("_holds", "_pid", "_segment", "_table")

    def __init__(self, holds: Holds, table: HeaderTable, segment: Segment) -> None:
        self._holds = holds
        self._table = table
        self._segment = segment
        self._pid = os.getpid()

    def _view(self, index: int, generation: int, offset: int, size: int) -> memoryview:
        """Return a view of a payload, with a reference of its own to the buffer, unless that was
        taken back: its lease tells."""
        header, (word, bit) = self._table.header(index), self._table.watchdog(index)
        functions = native.load()
        referred = self._pid == os.getpid()  # The child of a fork has no references.
        if referred and functions.hold(header, generation, word, bit) == VALID:
            functions.add(header, 1)
        else:
            referred = False
        lease = ReceivedLease(
            self._holds, self._table, index, generation, self._segment, offset, referred=referred
        )
        return view_of(self._segment, offset, size, lease, writable=False)

    @property
    def _is_over(self) -> bool:
        """Whether there is nothing to give back: the interpreter ends, and modules may be gone, or
        this is the child of a fork, and the references are its parent's."""
        return self._holds.over or self._pid != os.getpid()


class HeldPayload(Held):
    """The payload of one message; held as long as this object, and as long as a view of it."""

    __slots__ = ("_finish", "_generation", "_header", "_index", "_offset", "mean_size")

    def __init__(
        self,
        holds: Holds,
        table: HeaderTable,
        segment: Segment,
        offset: int,
        pointer: Pointer,
    ) -> None:
        super().__init__(holds, table, segment)
        self.mean_size, _, self._index, self._generation = pointer
        self._offset = offset
        self._header = table.header(self._index)
        self._finish = native.load().finish
        holds.add(table, self._index, self._generation)

    def payload(self, number: int) -> memoryview:
        """Return a view of the payload; `number` is 0."""
        return self._view(self._index, self._generation, self._offset, self.mean_size)

    def __del__(self) -> None:
        if not self._is_over:
            self._finish(self._header, self._generation)
            self._holds.remove(self._table, self._index)


class HeldPayloads(Held):
    """The payloads of several messages; held as long as this object, and each of them as long as a
    view of it."""

    __slots__ = ("_address", "_finish_all", "_indices", "_records")

    def __init__(
        self,
        holds: Holds,
        table: HeaderTable,
        segment: Segment,
        indices: npt.NDArray[np.int64],
        records: Records,
    ) -> None:
        super().__init__(holds, table, segment)
        self._indices = indices
        self._records = records
        self._address = records.ctypes.data
        self._finish_all = native.load().finish_all
        holds.add_many(table, indices, records["generation"])

    def payload(self, number: int) -> memoryview:
        """Return a view of a payload."""
        _, generation, _, _, source, size, _ = self._records[number].tolist()
        offset = source - self._segment.address
        return self._view(int(self._indices[number]), generation, offset, size)

    @property
    def mean_size(self) -> int:
        """Bytes of a payload, on average."""
        return int(self._records["size"].mean())

    def __del__(self) -> None:
        if not self._is_over:
            self._finish_all(self._address, 0, len(self._records))
            self._holds.remove_many(self._table, self._indices)


class SharedPut(NamedTuple):
    """A put with a pointer into the memory of another process."""

    head: bytes
    "The message with an empty payload."
    end: int
    "Position after the message."
    pointer: Pointer
    holds: Holds
    table: HeaderTable
    segment: Segment
    offset: int
    counter: int
    """Address of the sender's counter, which falls by one once the payload is confirmed here; 0:
    there is none."""

    def hold(self) -> HeldPayload | None:
        """Keep the payload where it is; None: its memory was taken back."""
        _, _, index, generation = self.pointer
        functions, held = native.load(), None
        header, (word, bit) = self.table.header(index), self.table.watchdog(index)
        if functions.hold(header, generation, word, bit) == VALID:
            held = HeldPayload(self.holds, self.table, self.segment, self.offset, self.pointer)
        else:
            functions.finish(header, generation)
        if self.counter:
            functions.add(self.counter, -1)
        return held


class SharedPuts(NamedTuple):
    """Puts with pointers into the memory of one process, to each of which this one has a reference:
    `hold` or `copy` takes them over."""

    data: bytes
    "The FRAME."
    end: int
    "Position after the last message that was read."
    lost: int
    "Messages that were left out: their memory was taken back."
    rows: npt.NDArray[np.void]
    records: Records
    holds: Holds
    table: HeaderTable
    segment: Segment
    taken: tuple[tuple[int, int], ...]
    """Addresses of the sender's counters, and by how much each falls once the payloads are copied
    or confirmed here. Until then the sender confirms them: this thread may lose its processor."""
    limit: int = MAX_COPIED_PAYLOAD
    "Bytes of the largest payload that is copied."

    def heads(self) -> bytes:
        """Return the messages with empty payloads."""
        sizes = np.zeros(len(self.rows), np.int64)
        out = np.empty(_bytes_of(self.rows, sizes), np.uint8)
        return out[: write_kernel(read_only_array(self.data), self.rows, sizes, out)].tobytes()

    def hold(self) -> HeldPayloads:
        """Keep the payloads where they are."""
        indices = self.rows["index"].copy()
        held = HeldPayloads(self.holds, self.table, self.segment, indices, self.records.copy())
        self._count_taken()
        return held

    def copy(self) -> Iterator[Copied]:
        """Yield the messages with copies of their payloads, several at a time; payloads above the
        limit are lost."""
        rows, records = self.rows, self.records
        large = rows["size"] > self.limit
        try:
            if large.any():
                yield self._dropped(records[large])
                rows, records = rows[~large], records[~large]
            start, ends = 0, np.cumsum(rows["size"])
            while start < len(ends):
                limit = (ends[start - 1] if start else 0) + MAX_COPIED_BYTES
                stop = max(start + 1, int(np.searchsorted(ends, limit, "right")))
                yield self._copied(rows[start:stop], records[start:stop])
                start = stop
        finally:
            self._count_taken()

    def _count_taken(self) -> None:
        add = native.load().add
        for address, count in self.taken:
            add(address, -count)

    def _copied(self, rows: npt.NDArray[np.void], records: Records) -> Copied:
        sizes = rows["size"]
        try:
            out: bytes = _bytes_of_size(None, _bytes_of(rows, sizes))
        except MemoryError:
            return self._dropped(records)
        address = id(out) + _BYTES_AT
        target = np.ctypeslib.as_array((ctypes.c_uint8 * len(out)).from_address(address))
        used = int(write_kernel(read_only_array(self.data), rows, sizes, target))
        targets = rows["payload"] + address
        native.load().finish_all(records.ctypes.data, targets.ctypes.data, len(records))
        lost = np.flatnonzero(records["verdict"])
        if len(lost):
            lost = lost[[not self._is_intact(rows[i], records[i]) for i in lost.tolist()]]
        if len(lost):
            return Copied(_without(out, rows, lost), len(lost))
        return Copied(out if used == len(out) else out[:used], 0)

    def _is_intact(self, row: np.void, record: np.void) -> bool:
        """Whether a payload that was just copied is right, though its owner gave the memory up."""
        index, generation = int(row["index"]), int(row["generation"])
        offset = int(record["source"]) - self.segment.address
        return ReceivedBuffer(self.table, index, generation, self.segment, offset).is_intact

    def _dropped(self, records: Records) -> Copied:
        """Give references back without copying the payloads."""
        native.load().finish_all(records.ctypes.data, 0, len(records))
        return Copied(b"", len(records))


class PointerReader:
    """Reader of puts with pointers, for one thread."""

    def __init__(self, foreign: ForeignMemory) -> None:
        self._foreign = foreign
        self._row = np.zeros(1, SHARED)
        self._rows = np.zeros(MAX_MESSAGES, SHARED)
        self._records = np.zeros(MAX_MESSAGES, POINTER)

    def read_one(
        self, data: bytes, pos: int, end: int, counters: tuple[int, ...]
    ) -> SharedPut | None:
        """Read one message; None: it has another form, or points to nothing that can be read."""
        found, stop = find_kernel(read_only_array(data), pos, end, self._row)
        if not found:
            return None
        _, body, mark, qos, size, table, index, generation, _ = self._row.item(0)
        pointer = Pointer(size, table, index, generation)
        try:
            place = self._foreign.locate(pointer)
        except ShmError:
            return None
        plain = bytes((data[body] & ~FLAG_EXTENSIONS,))
        head = b"".join((data[pos:body], plain, data[body + 1 : mark], b"\0"))
        counter = counters[qos & PRIORITY_BITS] if counters else 0
        return SharedPut(head, stop, pointer, self._foreign.holds, *place, counter)

    def read(self, data: bytes, pos: int, end: int, counters: tuple[int, ...]) -> SharedPuts | None:
        """Read messages from `pos` on, and hold what they point to; None: they have to be read one
        at a time. The next call overwrites the result."""
        found, stop = find_kernel(read_only_array(data), pos, end, self._rows)
        if not found:
            return None
        rows = self._rows[:found]
        number = int(rows["table"][0])
        rows = rows[: _equal(rows["table"], number)]
        try:
            table = self._foreign.table(number)
            words = table.words[rows["index"]]
            segment = self._foreign.segment(int(words[0, SEGMENT]))
        except ShmError:
            return None
        count = _equal(words[:, SEGMENT], segment.number)
        if count < found:
            stop, rows, words = self._rows[count]["start"], rows[:count], words[:count]
        records = self._records[:count]
        if not _locate(rows, words, table, segment, records):
            return None
        native.load().hold_all(records.ctypes.data, count)
        taken: tuple[tuple[int, int], ...] = ()
        if counters:
            priorities = np.bincount(rows["qos"] & PRIORITY_BITS).tolist()
            taken = tuple((counters[n], count) for n, count in enumerate(priorities) if count)
        valid = records["verdict"] == VALID
        lost = count - int(np.count_nonzero(valid))
        if lost:
            rows, records = rows[valid], records[valid]
        holds = self._foreign.holds
        return SharedPuts(data, int(stop), lost, rows, records, holds, table, segment, taken)


def _locate(
    rows: npt.NDArray[np.void],
    words: npt.NDArray[np.uint32],
    table: HeaderTable,
    segment: Segment,
    records: Records,
) -> bool:
    """Fill in the records; False: a pointer is not valid."""
    offset, size = words[:, OFFSET].astype(np.int64), rows["size"]
    capacity = words[:, CAPACITY].astype(np.int64) | words[:, CAPACITY + 1].astype(np.int64) << 32
    outside = (size > capacity) | (offset + size > segment.size) | (words[:, PROTOCOL] != POSIX)
    if outside.any():
        return False
    index = rows["index"]
    records["header"] = table.address + index * HEADER.size
    records["generation"] = rows["generation"]
    records["watchdog"] = table.address + WATCHDOGS_AT + (index >> 6 << 3)
    records["bit"] = np.uint64(1) << (index & 63).astype(np.uint64)
    records["source"] = segment.address + offset
    records["size"] = size
    return True


def _equal(values: npt.NDArray[Any], value: int) -> int:
    """Return how many values from the first on are `value`."""
    others = np.flatnonzero(values != value)
    return int(others[0]) if len(others) else len(values)


def load_kernels() -> None:
    """Compile the kernels, or load them from the cache, by reading one message."""
    rows = np.zeros(1, SHARED)
    data = read_only_array(bytes.fromhex("5d02811201010401000000"))
    count, _ = find_kernel(data, 0, len(data), rows)
    sizes = np.zeros(count, np.int64)
    write_kernel(data, rows[:count], sizes, np.empty(_bytes_of(rows[:count], sizes), np.uint8))


def _bytes_of(rows: npt.NDArray[np.void], sizes: npt.NDArray[np.int64]) -> int:
    """Return an upper bound on the bytes of messages with payloads of such sizes."""
    return int((rows["mark"] - rows["start"]).sum() + sizes.sum() + LENGTH_BYTES * len(rows))


def _without(out: bytes, rows: npt.NDArray[np.void], lost: npt.NDArray[np.int64]) -> bytes:
    """Return the written messages without the lost ones."""
    ends = rows["payload"] + rows["size"]
    starts = np.concatenate([[0], ends[:-1]])
    left_out = set(lost.tolist())
    pieces = zip(starts.tolist(), ends.tolist(), strict=True)
    return b"".join(out[a:b] for i, (a, b) in enumerate(pieces) if i not in left_out)
