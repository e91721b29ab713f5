"""Foreign memory: a pointer in a message becomes the bytes that it points to, or a view of them.

Knows the segments of other processes, mapped on first use. Every bound is checked against what is
mapped: a pointer that leads outside is refused. Does not know messages.
"""

import threading
from typing import NamedTuple

from zenlake.errors import DecodeError
from zenlake.shm import native
from zenlake.shm.headers import HEADERS, POSIX, SEGMENT_BYTES, HeaderTable
from zenlake.shm.holds import MAX_TABLES, Holds, ReceivedBuffer
from zenlake.shm.native import INVALIDATED, VALID
from zenlake.shm.segment import Segment, ShmError
from zenlake.transport.fragments import MAX_MESSAGE_BYTES
from zenlake.wire.cursor import U16, U32, ByteReader

MAX_DATA_SEGMENTS = 4096  # Data segments of other processes that are mapped at once.
MAX_COPIED_PAYLOAD = MAX_MESSAGE_BYTES  # Bytes of a payload that is copied: as over the network.


class Pointer(NamedTuple):
    """Where a payload is: a header, its generation, and how many bytes are the payload."""

    size: int
    table: int
    "Number of the metadata segment."
    header: int
    "Number of the header there."
    generation: int


def read_pointer(data: bytes) -> Pointer:
    """Read a pointer. ShmError: it is not one."""
    try:
        r = ByteReader(data)
        pointer = Pointer(
            r.zint("size"),
            r.zint("metadata", U16),
            r.zint("header", U16),
            r.zint("generation", U32),
        )
        r.finish("generation")
    except DecodeError as error:
        raise ShmError(f"a pointer into shared memory does not decode: {error}") from None
    if not pointer.size or pointer.header >= HEADERS:
        raise ShmError(f"a pointer into shared memory is not valid: {pointer}")
    return pointer


class ForeignMemory:
    """The mapped segments of other processes."""

    def __init__(self) -> None:
        self.holds = Holds()
        self._tables: dict[int, HeaderTable] = {}
        self._segments: dict[int, Segment] = {}
        self._lock = threading.Lock()

    def table(self, number: int) -> HeaderTable:
        """Return a metadata segment, mapped if it is not yet."""
        found = self._tables.get(number)
        if found is None:
            with self._lock:
                self._drop_ended()
                if len(self._tables) + self.holds.leaving >= MAX_TABLES:
                    raise ShmError(f"shared memory of {MAX_TABLES} processes is in use here")
                found = self._tables.get(number) or HeaderTable(
                    Segment.open(number, size=SEGMENT_BYTES)
                )
                self._tables[number] = found
        return found

    def segment(self, number: int) -> Segment:
        """Return a data segment, mapped if it is not yet."""
        found = self._segments.get(number)
        if found is None:
            with self._lock:
                self._drop_ended()
                if len(self._segments) >= MAX_DATA_SEGMENTS:
                    raise ShmError(f"{MAX_DATA_SEGMENTS} shared memory segments are in use here")
                found = self._segments.get(number) or Segment.open(number)
                self._segments[number] = found
        return found

    def drop_ended(self) -> None:
        """Unmap the segments whose owners have ended them, as another session begins: their numbers
        may be used again."""
        with self._lock:
            self._drop_ended()

    def drop_unheld(self) -> None:
        """Unmap all segments without held buffers, as a session has ended; others map theirs again.

        Files of processes that have crashed are removed by that.
        """
        with self._lock:
            for number, table in list(self._tables.items()):
                if self.holds.retire(table):
                    del self._tables[number]
            self._drop_ended()
            self._segments.clear()  # Views keep theirs, and close it at last.

    def _drop_ended(self) -> None:
        """Unmap the segments whose owners have ended them; views keep the memory that they read."""
        for number, table in list(self._tables.items()):
            if table.segment.is_ended():
                self.holds.retire(self._tables.pop(number), when_free=True)
        for number, segment in list(self._segments.items()):
            if segment.is_ended():
                self._segments.pop(number).close()

    def locate(self, pointer: Pointer) -> tuple[HeaderTable, Segment, int]:
        """Return the header's table, the data segment and the offset of a payload there."""
        table = self.table(pointer.table)
        protocol, number, offset, capacity = table.description(pointer.header)
        if protocol != POSIX:
            raise ShmError(f"shared memory of protocol {protocol} cannot be read here")
        segment = self.segment(number)
        if pointer.size > capacity or offset + pointer.size > segment.size:
            raise ShmError(
                f"a pointer leads outside of its shared memory: {pointer.size} bytes at {offset} "
                f"of {segment.size}"
            )
        return table, segment, offset

    def copy(self, pointer: Pointer, limit: int = MAX_COPIED_PAYLOAD) -> bytes:
        """Return the payload, and give the reference to it back at once. ShmError: it is gone, or
        has more than `limit` bytes."""
        table, segment, offset = self.locate(pointer)
        header, (word, bit) = table.header(pointer.header), table.watchdog(pointer.header)
        functions = native.load()
        if pointer.size > limit:
            functions.finish(header, pointer.generation)
            raise too_large(pointer.size, limit)
        found = functions.hold(header, pointer.generation, word, bit)
        data, after = b"", found
        try:
            if found == VALID:
                data = segment.map[offset : offset + pointer.size]
        except MemoryError:
            raise too_large(pointer.size, limit) from None
        finally:
            after = functions.finish(header, pointer.generation)
        if found:
            raise stale(found)
        if after:
            buffer = ReceivedBuffer(table, pointer.header, pointer.generation, segment, offset)
            if not buffer.is_intact:
                raise stale(after)
        return data

    def view(self, pointer: Pointer) -> memoryview:
        """Return a view of the payload, which keeps the reference as long as it is used."""
        from zenlake.shm.views import ReceivedLease, view_of

        table, segment, offset = self.locate(pointer)
        header, (word, bit) = table.header(pointer.header), table.watchdog(pointer.header)
        functions = native.load()
        found = functions.hold(header, pointer.generation, word, bit)
        if found != VALID:
            functions.finish(header, pointer.generation)
            raise stale(found)
        index, generation = pointer.header, pointer.generation
        lease = ReceivedLease(self.holds, table, index, generation, segment, offset)
        return view_of(segment, offset, pointer.size, lease, writable=False)


def stale(verdict: int) -> ShmError:
    what = "was taken back by its owner" if verdict == INVALIDATED else "has been used again"
    return ShmError(f"a buffer in shared memory {what} before it was read")


def too_large(size: int, limit: int) -> ShmError:
    return ShmError(
        f"a payload of {size} bytes in shared memory is not copied: the limit is {limit}, or less "
        "if memory is short"
    )
