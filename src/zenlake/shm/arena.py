"""Arena: one data segment of this process, and the buffers that are allocated in it.

Knows free and used memory, and when the readers of a buffer are done with it. Does not know
messages: sending.py and provider.py ask for buffers. Nothing runs in the background: an allocation
that finds no free memory first collects what its readers have given back.
"""

import ctypes
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from zenlake.caching import BoundedCache
from zenlake.shm import native
from zenlake.shm.headers import OwnHeader, OwnHeaders
from zenlake.shm.segment import Segment, ShmError
from zenlake.wire.cursor import ByteWriter, encode

GRAIN = 64  # Bytes that offsets and sizes are multiples of: a cache line.
STEPS = 8  # Sizes between two powers of two, so that at most an eighth of a buffer is unused.
SEGMENT_BITS = 32  # Data segments have numbers of 32 bits.
MAX_BYTES = 1 << 32  # Offsets have 32 bits.
MAX_CAPACITIES = 1024  # Sizes whose capacity is remembered.
COLLECT_AT_ONCE = 64  # Buffers that an allocation looks at before it takes unused memory.
MAX_GENERATIONS = 1024  # Encoded numbers that are remembered.
LARGE_BYTES = 128 << 10  # Payloads from which on other threads run while one is copied.
FULL_SECONDS = 1e-3  # Least time in which a full arena is not searched again.
PAUSE_FACTOR = 20  # The same time, as a multiple of what the last search took.
STALE_SECONDS = 1.0
"""Time without a confirmation after which a delivered buffer is taken from its reader, which has
crashed: readers confirm every 50 ms."""


class Delivery(Protocol):
    """One way on which a buffer was sent, such as a priority of a session."""

    def delivered(self, number: int) -> bool:
        """Whether the receiver has taken message `number`, or never will."""


class SharedBuffer:
    """A piece of an arena, with its header. It keeps both while it is used again and again."""

    __slots__ = (
        "_pointed",
        "_pointer",
        "address",
        "arena",
        "capacity",
        "generation",
        "header",
        "header_address",
        "offset",
        "owned",
        "sent",
        "suspected_at",
    )

    def __init__(self, arena: "Arena", offset: int, capacity: int, header: OwnHeader) -> None:
        self.arena = arena
        self.offset = offset
        self.capacity = capacity
        self.address = arena.segment.address + offset
        self.header = header
        self.header_address = header.address
        self.generation = header.generation
        self.owned = False
        "Whether a view of this process refers to it, or a thread is about to fill it."
        self.sent: dict[Delivery, int] = {}
        "Where it was sent, and as which message last."
        self.suspected_at: float | None = None
        "When its watchdog bit was cleared."
        self._pointed = -1
        self._pointer = b""

    def fill(self, payload: bytes | memoryview, counter: int = 0, *, owned: bool = False) -> None:
        """Copy `payload` into the buffer, which has one reference then; count it at the address
        `counter`, if any, as a message on its way."""
        arena, size = self.arena, len(payload)
        if size >= LARGE_BYTES and type(payload) is bytes:
            arena.native.copy(self.address, payload, size)
        else:
            arena.segment.map[self.offset : self.offset + size] = payload
        self.header.begin()
        if counter:
            arena.native.add(counter, 1)
        self.owned = owned

    def forget(self) -> None:
        """Make every pointer to the buffer invalid that was sent."""
        self.generation = self.header.next_generation()
        self.sent.clear()
        self.suspected_at = None

    @property
    def is_being_filled(self) -> bool:
        """Whether it was taken and has no payload yet."""
        return self.owned and not self.header.references

    def pointer(self, size: int) -> bytes:
        """Return a pointer to the first `size` bytes, as messages carry it."""
        if self._pointed != size:  # All but the generation is the same for payloads of one size.
            numbers = size, self.header.table.number, self.header.index
            self._pointer = b"".join(encode(ByteWriter.zint, "pointer", n) for n in numbers)
            self._pointed = size  # Last: other threads may put the same buffer.
        return self._pointer + _generations[self.generation]


class _Generations(BoundedCache[int, bytes]):
    """Generations as messages carry them: those of a node's buffers are close to each other."""

    __slots__ = ()

    def __missing__(self, number: int) -> bytes:
        return self.keep(number, encode(ByteWriter.zint, "generation", number))


_generations = _Generations(MAX_GENERATIONS)


class Arena:
    """Memory for shared buffers. Its methods may be called on any thread."""

    def __init__(self, size: int, headers: OwnHeaders) -> None:
        if size > MAX_BYTES - GRAIN:
            raise ShmError(f"shared memory of {size} bytes: the most is {MAX_BYTES - GRAIN}")
        self.size = -(-size // GRAIN) * GRAIN
        self.native = native.load()
        self.segment = Segment.create(self.size, SEGMENT_BITS)
        self._headers = headers
        self._lock = threading.Lock()
        self._top = 0
        "Offset from which on no buffer was made yet."
        self._free: defaultdict[int, list[SharedBuffer]] = defaultdict(list)
        "Free buffers by capacity."
        self._capacities = Capacities(MAX_CAPACITIES)
        self._full_until = 0.0
        self._busy: deque[SharedBuffer] = deque()
        "Buffers in use, those first that were not looked at for longest."
        if not _lock_memory(self.segment):
            self.segment.close()
            raise ShmError(
                f"{size} bytes of shared memory cannot be locked in memory, which Rust nodes "
                "require to read them: raise `ulimit -l`"
            )
        try:  # There is no use for memory without a header.
            headers.give_back([headers.take()])
        except ShmError:
            self.segment.close()
            raise

    @property
    def available(self) -> int:
        """Bytes that are not in use."""
        with self._lock:
            free = sum(size * len(buffers) for size, buffers in self._free.items())
            return self.size - self._top + free

    def take(self, size: int, alignment: int = 1) -> SharedBuffer | None:
        """Return a free buffer of at least `size` bytes; None: there is none now."""
        if alignment <= GRAIN and (buffer := self.take_recent(size)) is not None:
            return buffer
        capacity, exact = self._capacities[size], -(-size // GRAIN) * GRAIN
        with self._lock:
            return (
                self._take_aligned(capacity, alignment)
                or self._carve(capacity, alignment)
                or self._carve(exact, alignment)
            )

    def take_recent(self, size: int) -> SharedBuffer | None:
        """Return a free buffer that was used for that size before; None: there is none."""
        free = self._free.get(self._capacities[size])
        if not free:
            return None
        try:
            buffer = free.pop()  # Atomic, as the append is: no lock.
        except IndexError:
            return None
        buffer.owned = True  # As `_use`, without a further call.
        self._busy.append(buffer)
        return buffer

    def _use(self, buffer: SharedBuffer) -> SharedBuffer:
        buffer.owned = True  # First: a buffer in use without a reference would be collected.
        self._busy.append(buffer)
        return buffer

    def _pop_free(self, capacity: int) -> SharedBuffer | None:
        """Return a free buffer of that capacity; None: `take_recent` was faster."""
        try:
            return self._free[capacity].pop()
        except (KeyError, IndexError):
            return None

    def _take_aligned(self, capacity: int, alignment: int) -> SharedBuffer | None:
        free = self._free.get(capacity, [])
        for buffer in list(free):
            if not buffer.address % alignment:
                with suppress(ValueError):  # `take_recent` was faster.
                    free.remove(buffer)
                    return self._use(buffer)
        return None

    def take_or_collect(self, size: int) -> SharedBuffer | None:
        """Return a free buffer, after collecting what readers gave back if need be.

        When even that finds none, further calls give up at once for FULL_SECONDS, and for longer
        after a search that took long.
        """
        if self.collect(some=True) and (buffer := self.take_recent(size)) is not None:
            return buffer
        if (buffer := self.take(size)) is not None:
            return buffer
        now = time.monotonic()
        if now < self._full_until:
            return None
        self.collect()
        self.reclaim(now)
        if self.defragment() >= size and (buffer := self.take(size)) is not None:
            return buffer
        found_full = time.monotonic()
        self._full_until = found_full + max(FULL_SECONDS, PAUSE_FACTOR * (found_full - now))
        return None

    def collect(self, *, some: bool = False) -> int:
        """Free buffers that no reader refers to; return the size of the largest.

        With `some`, stop at the first that is in use, or after COLLECT_AT_ONCE: buffers are given
        back in the order in which they were sent.
        """
        largest, busy = 0, self._busy
        with self._lock:
            for _ in range(min(len(busy), COLLECT_AT_ONCE) if some else len(busy)):
                buffer = busy.popleft()
                header = buffer.header
                if buffer.owned or header.cells[header.cell]:
                    busy.append(buffer)
                    if some:
                        break
                    continue
                buffer.forget()
                self._free[buffer.capacity].append(buffer)
                if buffer.capacity > largest:
                    largest = buffer.capacity
        return largest

    def reclaim(self, now: float | None = None, limit: int | None = None) -> int:
        """Free buffers whose readers have crashed: delivered, and not confirmed for STALE_SECONDS.

        Return the size of the largest. With `limit`, free that many buffers, whether or not they
        are in use, those first that were made last (as zenoh-shm does).
        """
        now = time.monotonic() if now is None else now
        largest, left, busy = 0, limit or 0, self._busy
        take, keep = (busy.pop, busy.appendleft) if limit else (busy.popleft, busy.append)
        taken: list[SharedBuffer] = []
        with self._lock:
            for _ in range(len(busy)):
                buffer = take()
                forced = left > 0 and not buffer.is_being_filled
                free = None
                if forced or self._is_stale(buffer, now):
                    free = self._without_users(buffer)
                if free is None:
                    keep(buffer)
                    continue
                if free is not buffer:
                    taken.append(buffer)
                self._keep_free(free)
                largest = max(largest, free.capacity)
                left -= forced
            self._headers.retire(taken)
        return largest

    def _without_users(self, buffer: SharedBuffer) -> SharedBuffer | None:
        """Take a buffer from its users; return one with the same memory and another header.

        Rust nodes give a reference back whatever the header says by then: a reader that was only
        stopped must not drop one to the next payload. Without another header, the buffer is used
        again as it is, or None is returned if this process refers to it.
        """
        try:
            free = self._new_buffer(buffer.offset, buffer.capacity)
        except ShmError:
            if buffer.owned:
                return None
            buffer.header.take_back()
            buffer.forget()
            return buffer
        buffer.header.take_back()
        buffer.generation = buffer.header.generation
        return free

    def defragment(self) -> int:
        """Join free pieces that are next to each other; return the size of the largest."""
        with self._lock:
            free = self._take_all_free()
            free.sort(key=lambda buffer: buffer.offset)
            largest = 0
            for offset, size, parts in _joined(free):
                self._headers.give_back([part.header for part in parts])
                if offset + size == self._top:
                    self._top = offset
                    size = self.size - offset
                else:
                    self._keep_free(self._new_buffer(offset, size))
                largest = max(largest, size)
            return largest

    @property
    def is_delivered(self) -> bool:
        """Whether all receivers have mapped the memory, and no view of this process is left."""
        with self._lock:
            return all(
                not buffer.owned
                and all(way.delivered(number) for way, number in buffer.sent.items())
                for buffer in self._busy
            )

    @property
    def is_read(self) -> bool:
        """Whether no other process refers to a buffer, or is sent one."""
        with self._lock:
            return all(
                buffer.header.references <= buffer.owned for buffer in self._busy if buffer.sent
            )

    def close(self) -> None:
        """Remove the segment, and give its headers to other arenas. May be called again."""
        with self._lock:
            self._top, self.size = 0, 0
            self._headers.give_back([buffer.header for buffer in self._take_all_free()])
            self._headers.retire(list(self._busy))
            self._busy.clear()
        self.segment.close()

    def _take_all_free(self) -> list[SharedBuffer]:
        free: list[SharedBuffer] = []
        for capacity in list(self._free):
            while (buffer := self._pop_free(capacity)) is not None:
                free.append(buffer)
        self._free.clear()
        return free

    def _carve(self, capacity: int, alignment: int) -> SharedBuffer | None:
        """Return a new buffer from unused memory, or from the smallest larger free one."""
        start = self.segment.address + self._top
        offset = self._top + -start % max(alignment, GRAIN)
        if offset + capacity <= self.size:
            buffer = self._new_buffer(offset, capacity)
            if offset > self._top:
                self._keep_free(self._new_buffer(self._top, offset - self._top))
            self._top = offset + capacity
            return self._use(buffer)
        if alignment > GRAIN:
            return None
        for size in sorted(size for size in self._free if size >= capacity):
            if (whole := self._pop_free(size)) is not None:
                return self._use(self._cut(whole, capacity))
        return None

    def _cut(self, whole: SharedBuffer, capacity: int) -> SharedBuffer:
        """Cut a free buffer in two; the second part stays free."""
        rest = whole.capacity - capacity
        if not rest:
            return whole
        try:
            self._keep_free(self._new_buffer(whole.offset + capacity, rest))
        except ShmError:
            self._keep_free(whole)
            raise
        whole.header.describe(self.segment.number, whole.offset, capacity)
        return SharedBuffer(self, whole.offset, capacity, whole.header)

    def _new_buffer(self, offset: int, capacity: int) -> SharedBuffer:
        header = self._headers.take()
        header.describe(self.segment.number, offset, capacity)
        return SharedBuffer(self, offset, capacity, header)

    def _keep_free(self, buffer: SharedBuffer) -> None:
        self._free[buffer.capacity].append(buffer)

    def _is_stale(self, buffer: SharedBuffer, now: float) -> bool:
        """Whether a buffer has no reader that confirms it, although it was delivered."""
        if buffer.owned or not all(way.delivered(number) for way, number in buffer.sent.items()):
            return False
        word, bit = buffer.header.table.watchdog(buffer.header.index)
        if buffer.suspected_at is None:
            self.native.clear_bits(word, bit)
            buffer.suspected_at = now
        elif now - buffer.suspected_at >= STALE_SECONDS:
            confirmed = self.native.clear_bits(word, bit) & bit
            buffer.suspected_at = now
            return not confirmed
        return False


class Capacities(BoundedCache[int, int]):
    """Capacities of buffers by the size that is asked for."""

    __slots__ = ()

    def __missing__(self, size: int) -> int:
        return self.keep(size, round_size(max(size, 1)))


def round_size(size: int) -> int:
    """Return the capacity of a buffer for `size` bytes: one of STEPS sizes per power of two.

    >>> round_size(1), round_size(3072), round_size(100_000)
    (64, 3072, 106496)
    """
    step = max(GRAIN, (1 << (size - 1).bit_length()) // (2 * STEPS))
    return -(-size // step) * step


def _joined(free: list[SharedBuffer]) -> Iterator[tuple[int, int, list[SharedBuffer]]]:
    """Yield offset, size and parts of each run of adjacent free buffers."""
    parts: list[SharedBuffer] = []
    for buffer in free:
        if parts and parts[-1].offset + parts[-1].capacity != buffer.offset:
            yield parts[0].offset, _end(parts) - parts[0].offset, parts
            parts = []
        parts.append(buffer)
    if parts:
        yield parts[0].offset, _end(parts) - parts[0].offset, parts


def _end(parts: list[SharedBuffer]) -> int:
    return parts[-1].offset + parts[-1].capacity


def _lock_memory(segment: Segment) -> bool:
    """Lock a segment in memory, as a Rust node does that maps it; return whether that worked."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed: int = libc.mlock(ctypes.c_void_p(segment.address), ctypes.c_size_t(segment.size))
    return not failed
