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
from zenlake.shm.holds import Holds, ReceivedBuffer
from zenlake.shm.segment import Segment, ShmError


class ReceivedLease:
    """A reference to a buffer of another process; without one, what is left of it."""

    __slots__ = (
        "_buffer",
        "_finish",
        "_generation",
        "_header",
        "_holds",
        "_index",
        "_pid",
        "_table",
    )

    def __init__(
        self,
        holds: Holds,
        table: HeaderTable,
        index: int,
        generation: int,
        segment: Segment,
        offset: int,
        *,
        referred: bool = True,
    ) -> None:
        self._holds = holds
        self._table = table
        self._index = index
        self._generation = generation
        self._header = table.header(index)
        self._buffer = ReceivedBuffer(table, index, generation, segment, offset)
        self._finish = native.load().finish
        self._pid = os.getpid() if referred else None
        if referred:
            holds.add(table, index, generation)

    @property
    def is_valid(self) -> bool:
        """Whether the memory has the bytes that were sent."""
        return self._buffer.is_intact

    @property
    def is_own(self) -> bool:
        """Whether this process has the reference; the child of a fork has none."""
        return self._pid == os.getpid()

    def check(self) -> None:
        """Raise ShmError if the owner has taken the memory back."""
        self._buffer.check()

    def end(self) -> None:
        if self._pid is None or self._holds.over:
            return
        if self._pid == os.getpid():  # In the child of a fork the reference is the parent's.
            self._finish(self._header, self._generation)
            self._holds.remove(self._table, self._index)


class OwnLease:
    """A reference to a buffer of this process, or of the process that it was forked from."""

    __slots__ = ("_generation", "_pid", "buffer")

    def __init__(self, buffer: SharedBuffer, generation: int) -> None:
        self.buffer = buffer
        self._generation = generation
        self._pid = os.getpid()

    @property
    def is_valid(self) -> bool:
        """Whether the memory was not deallocated."""
        if self.is_own:
            return self.buffer.generation == self._generation
        return self.buffer.header.generation == self._generation

    @property
    def is_own(self) -> bool:
        """Whether this process made the buffer; a child of a fork did not."""
        return self._pid == os.getpid()

    def check(self) -> None:
        """Raise ShmError if the memory was deallocated."""
        if not self.is_valid:
            raise ShmError(
                "this payload is gone: the process that made it has deallocated its shared memory. "
                "A child of a fork keeps a payload as bytes: copy it before the fork"
            )

    def end(self) -> None:
        if self._pid == os.getpid():  # The header is this buffer's until its last reference.
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


def lease_of(payload: object) -> Lease | None:
    """Return the lease of a view that was made here and not sliced; None: it is other memory."""
    if type(payload) is not memoryview:
        return None
    array: object = payload.obj
    if not isinstance(array, SharedArray) or len(array) != len(payload):
        return None
    return array.lease
