"""Views of shared buffers: memory that Python code reads in place, given back with the last view.

Knows whose memory it is: of another process (a lease that this process confirms), or of this one.
A view is an array: all slices and memoryviews of it keep it alive, and so keep the memory.
"""

import os
from typing import Any

import numpy as np

from zenlake.shm import native
from zenlake.shm.arena import SharedBuffer
from zenlake.shm.headers import HeaderTable
from zenlake.shm.holds import Holds
from zenlake.shm.native import VALID
from zenlake.shm.segment import Segment, ShmError


class ReceivedLease:
    """A reference to a buffer of another process."""

    __slots__ = ("_generation", "_holds", "_index", "_pid", "_segment", "_table")

    def __init__(
        self, holds: Holds, table: HeaderTable, index: int, generation: int, segment: Segment
    ) -> None:
        self._holds = holds
        self._table = table
        self._index = index
        self._generation = generation
        self._segment = segment  # Kept: its mapping is the view's memory.
        self._pid = os.getpid()
        holds.add(table, index)

    @property
    def is_valid(self) -> bool:
        """Whether the owner has not taken the memory back."""
        word, bit = self._table.watchdog(self._index)
        header = self._table.header(self._index)
        return bool(native.load().hold(header, self._generation, word, bit) == VALID)

    def end(self) -> None:
        if self._pid == os.getpid():  # In the child of a fork the reference is the parent's.
            native.load().finish(self._table.header(self._index), self._generation)
            self._holds.remove(self._table, self._index)


class OwnLease:
    """A reference to a buffer of this process."""

    __slots__ = ("_generation", "_pid", "buffer")

    def __init__(self, buffer: SharedBuffer) -> None:
        buffer.owned = True
        self.buffer = buffer
        self._generation = buffer.generation
        self._pid = os.getpid()

    @property
    def is_valid(self) -> bool:
        """Whether the memory was not deallocated."""
        return self.buffer.generation == self._generation

    def end(self) -> None:
        if self._pid == os.getpid() and self.is_valid:
            native.load().add(self.buffer.header_address, -1)
            self.buffer.owned = False


Lease = ReceivedLease | OwnLease


class SharedArray(np.ndarray[Any, Any]):
    """Bytes of a shared buffer. The lease ends with the array that it was given to."""

    lease: Lease | None = None

    def __del__(self) -> None:
        if self.lease is not None:
            self.lease.end()


def view_of(
    segment: Segment, offset: int, size: int, lease: Lease, *, writable: bool
) -> memoryview:
    """Return a view of memory that `lease` refers to, and which ends it."""
    array = SharedArray((size,), np.uint8, segment.map, offset)
    array.lease = lease
    array.flags.writeable = writable
    return memoryview(array)  # type: ignore[arg-type]


def gone() -> ShmError:
    """Return the error for a payload whose memory was taken back."""
    return ShmError(
        "this payload is gone: its shared memory was taken back by the sender, because this "
        "process was stopped for longer than 0.1 s. Set ZENLAKE_SHM_COPY=1 to have payloads "
        "copied when they arrive"
    )


def lease_of(payload: object) -> Lease | None:
    """Return the lease of a view that was made here and not sliced; None: it is other memory."""
    if type(payload) is not memoryview:
        return None
    array: object = payload.obj
    if not isinstance(array, SharedArray) or len(array) != len(payload):
        return None
    return array.lease
