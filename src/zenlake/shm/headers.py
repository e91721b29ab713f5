"""Headers of shared buffers: a metadata segment has 32,768 of them, and a watchdog bit for each.

Knows the layout (`zenoh-shm/src/metadata`, `header`), which both implementations read and write.
Does not know the bytes of the buffers: a header says in which segment, and where, they are.

    0                                 1,048,576                  1,310,720
    | header 0 | header 1 | ... 32,767 | watchdog words, 64 bits each |

    0            4             8            12         16        20       24
    | references | invalidated | generation | protocol | segment | offset | capacity (8) |
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from zenlake.shm.segment import Segment, ShmError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

HEADERS = 32_768
HEADER = Struct("<IB3xIIIIQ")
DESCRIPTION = Struct("<IIIQ")
"Protocol, segment, offset and capacity: what does not change while a buffer is in use."
INVALIDATED_AT, GENERATION_AT, DESCRIPTION_AT = 4, 8, 12
WATCHDOGS_AT = HEADERS * HEADER.size
WATCHDOG_WORDS = HEADERS // 64  # Words of the watchdog array that are used.
SEGMENT_BYTES = WATCHDOGS_AT + HEADERS * 8
SEGMENT_BITS = 16  # Metadata segments have numbers of 16 bits.
POSIX = 0  # Protocol number of segments in /dev/shm.
MAX_RETIRED = 8192  # Headers that are kept from use because crashed readers may refer to them.
MAX_SEGMENTS = 8  # Metadata segments of this process: some 260,000 buffers in use at once.

assert HEADER.size == 32
assert SEGMENT_BYTES == 1_310_720


class HeaderState(NamedTuple):
    """The fields of a header that change when the owner takes the buffer back."""

    invalidated: bool
    generation: int
    segment: int
    offset: int


class HeaderTable:
    """The headers of one metadata segment, of this process or of another."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.number = segment.number
        self.address = segment.address
        self.watchdogs = segment.address + WATCHDOGS_AT

    @cached_property
    def words(self) -> "npt.NDArray[np.uint32]":
        """The headers as an array of 32-bit words, one row each."""
        import numpy as np

        count = HEADERS * HEADER.size // 4
        return np.frombuffer(self.segment.map, np.uint32, count).reshape(HEADERS, -1)

    def header(self, index: int) -> int:
        """Return the address of a header."""
        return self.address + index * HEADER.size

    def watchdog(self, index: int) -> tuple[int, int]:
        """Return the address of the word with a buffer's watchdog bit, and that bit."""
        return self.watchdogs + index // 64 * 8, 1 << index % 64

    def description(self, index: int) -> tuple[int, int, int, int]:
        """Return protocol, segment, offset and capacity of a buffer."""
        found: tuple[int, int, int, int] = DESCRIPTION.unpack_from(
            self.segment.map, index * HEADER.size + DESCRIPTION_AT
        )
        return found

    def state(self, index: int) -> "HeaderState":
        """Return what the owner says of a buffer now."""
        at = index * HEADER.size
        _, invalidated, generation, _, segment, offset, _ = HEADER.unpack_from(self.segment.map, at)
        return HeaderState(bool(invalidated), generation, segment, offset)

    def close(self) -> None:
        self.segment.close()


class OwnTable(HeaderTable):
    """The headers of a metadata segment of this process, as words to read and write."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self.cells = memoryview(segment.map).cast("I")
        "All 32-bit words. Reading and writing one is atomic; only the owner writes most of them."


class OwnHeader:
    """A header that this process uses for a buffer."""

    __slots__ = ("address", "cell", "cells", "index", "table")

    def __init__(self, table: OwnTable, index: int) -> None:
        self.table = table
        self.index = index
        self.address = table.header(index)
        self.cells = table.cells
        self.cell = index * HEADER.size // 4
        "Position of the header's first word, the references, in `cells`."

    def describe(self, segment: int, offset: int, capacity: int) -> None:
        """Write where the buffer's bytes are."""
        at = self.index * HEADER.size + DESCRIPTION_AT
        DESCRIPTION.pack_into(self.table.segment.map, at, POSIX, segment, offset, capacity)

    def begin(self) -> None:
        """Begin a use of the buffer, with one reference."""
        self.cells[self.cell + INVALIDATED_AT // 4] = 0
        self.cells[self.cell] = 1

    @property
    def references(self) -> int:
        """Number of references that readers, and this process, have."""
        return self.cells[self.cell]

    @references.setter
    def references(self, number: int) -> None:
        self.cells[self.cell] = number

    @property
    def generation(self) -> int:
        """Number of times that the header was used before."""
        return self.cells[self.cell + GENERATION_AT // 4]

    def next_generation(self) -> int:
        """Invalidate every pointer to the buffer that was sent; return the new generation."""
        at = self.cell + GENERATION_AT // 4
        generation = self.cells[at] = (self.cells[at] + 1) & 0xFFFF_FFFF
        return generation

    def take_back(self) -> None:
        """Say that the buffer's memory will be used for something else, though it has readers.

        A reader whose buffer is just one generation old knows that this has not happened.
        """
        self.invalidate()
        self.next_generation()

    def invalidate(self) -> None:
        """Mark the buffer as taken back."""
        self.cells[self.cell + INVALIDATED_AT // 4] = 1


class DescribedBuffer(Protocol):
    """A buffer, as far as its header's next user has to know it."""

    header: OwnHeader
    owned: bool
    generation: int


class OwnHeaders:
    """The headers of this process that are not in use."""

    def __init__(self) -> None:
        self._free: deque[OwnHeader] = deque()
        self._retired: deque[tuple[OwnHeader, DescribedBuffer | None]] = deque()
        "Headers of closed arenas that readers use; with the buffer if this process has a view."
        self._tables: list[OwnTable] = []
        self._lock = threading.Lock()

    def take(self) -> OwnHeader:
        """Return a free header. ShmError: there are too many buffers, or no memory."""
        with self._lock:
            if not self._free:
                self._free.extend(self._unused(forced=len(self._tables) == MAX_SEGMENTS))
            if not self._free:
                if len(self._tables) == MAX_SEGMENTS:
                    raise ShmError(f"{MAX_SEGMENTS * HEADERS} shared buffers are in use")
                table = OwnTable(Segment.create(SEGMENT_BYTES, SEGMENT_BITS))
                self._tables.append(table)
                self._free.extend(OwnHeader(table, index) for index in range(HEADERS))
            return self._free.popleft()

    def may_be_passed_on(self) -> bool:
        """Whether another process may send pointers to buffers of this one to others."""
        with self._lock:
            return any(table.segment.may_be_passed_on() for table in self._tables)

    def give_back(self, headers: list[OwnHeader]) -> None:
        with self._lock:
            self._free.extend(headers)

    def retire(self, buffers: Iterable[DescribedBuffer]) -> None:
        """Take back the headers of buffers as soon as these have no readers."""
        with self._lock:
            for buffer in buffers:
                self._retired.append((buffer.header, buffer if buffer.owned else None))
            self._free.extend(self._unused(forced=len(self._retired) - MAX_RETIRED))

    def _unused(self, *, forced: int) -> Iterator[OwnHeader]:
        """Yield the retired headers without readers, and the oldest with readers, which have most
        likely crashed: so many that `forced` of them are yielded in all."""
        for _ in range(len(self._retired)):
            header, buffer = self._retired.popleft()
            if (buffer is not None and buffer.owned) or (header.references and forced <= 0):
                self._retired.append((header, buffer))
                continue
            forced -= 1
            header.references = 0
            generation = header.next_generation()
            if buffer is not None:
                buffer.generation = generation
            yield header
