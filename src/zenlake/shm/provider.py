"""Providers of shared memory, and buffers of it: the names of `zenoh.shm`.

Knows the policies and who may write. A buffer that is put becomes a pointer for each peer on this
host, and bytes for all others.
"""

import os
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Self, SupportsIndex, final, overload

from zenlake.errors import ZError
from zenlake.shm.arena import Arena, SharedBuffer
from zenlake.shm.layout import (
    JUST_ALLOC,
    AllocPolicy,
    BlockOn,
    Deallocate,
    Defragment,
    GarbageCollect,
    IntoMemoryLayout,
    JustAlloc,
    MemoryLayout,
    layout_of,
)
from zenlake.shm.node import process_memory
from zenlake.shm.segment import ShmError, unavailable
from zenlake.shm.views import Lease, OwnLease, lease_of, view_of

BLOCK_STEP = 0.001  # Seconds between two attempts of BlockOn.
OUT_OF_MEMORY = "out of memory"
CONSUMED = "ZShmMut has been consumed by ZBytes conversion"
NOT_BYTES = "expected bytes like argument"


class _Unique:
    """Object that cannot be copied or pickled: each stands for memory that is given back once."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot copy or pickle '{type(self).__name__}' object")


@final
class ZShm(_Unique):
    """Buffer in shared memory that can be read: part of a received payload, or about to be sent.

    `view` reads it in place; `bytes()` and `str()` copy.
    """

    __slots__ = ("_view",)

    _view: memoryview

    if not TYPE_CHECKING:

        def __init__(self, *_args: object, **_kwargs: object) -> None:
            raise TypeError("No constructor defined for ZShm")

    @classmethod
    def of(cls, view: memoryview) -> Self:
        """Wrap a view that views.py made."""
        self = object.__new__(cls)
        self._view = view
        return self

    def is_valid(self, /) -> bool:
        """Return whether the owner of the memory has not taken it back."""
        lease: Lease | None = lease_of(self._view)
        return lease is not None and lease.is_valid

    @property
    def view(self) -> memoryview:
        """The bytes, without a copy."""
        return self._view

    def into_payload(self) -> memoryview:
        return self._view

    def __len__(self) -> int:
        return len(self._view)

    def __bytes__(self) -> bytes:
        data = bytes(self._view)
        lease: Lease | None = lease_of(self._view)
        if lease is not None:
            lease.check()
        return data

    def __str__(self) -> str:
        return _text(bytes(self))

    def __buffer__(self, flags: int, /) -> memoryview:
        return self._view


@final
class ZShmMut(_Unique):
    """Buffer in shared memory that can be written, until it is put or becomes a ZBytes."""

    __slots__ = ("_view",)

    _view: memoryview | None

    if not TYPE_CHECKING:

        def __init__(self, *_args: object, **_kwargs: object) -> None:
            raise TypeError("No constructor defined for ZShmMut")

    @classmethod
    def of(cls, view: memoryview) -> Self:
        """Wrap a writable view that views.py made."""
        self = object.__new__(cls)
        self._view = view
        return self

    @property
    def view(self) -> memoryview:
        """The bytes, to be read and written in place. ZError: they were given away, or taken."""
        if self._view is None:
            raise ZError(CONSUMED)
        lease: Lease | None = lease_of(self._view)
        if lease is not None:
            lease.check()
        return self._view

    def into_payload(self) -> memoryview:
        """Give the buffer away: return its bytes, which no longer change."""
        view, self._view = self.view, None
        return view.toreadonly()

    def __len__(self) -> int:
        return len(self.view)

    @overload
    def __setitem__(self, item: SupportsIndex, value: SupportsIndex) -> None: ...
    @overload
    def __setitem__(self, item: slice, value: bytes | bytearray) -> None: ...
    def __setitem__(
        self, item: SupportsIndex | slice, value: SupportsIndex | bytes | bytearray
    ) -> None:
        view = self.view
        if isinstance(item, slice) and isinstance(value, bytes | bytearray):
            view[item] = value
            return
        if isinstance(item, SupportsIndex) and isinstance(value, SupportsIndex):
            at, number = item.__index__(), value.__index__()
            if 0 <= at < len(view) and 0 <= number <= 0xFF:
                view[at] = number
                return
        raise TypeError(NOT_BYTES)

    def __bytes__(self) -> bytes:
        return bytes(self.view)

    def __str__(self) -> str:
        return _text(self.view)

    def __buffer__(self, flags: int, /) -> memoryview:
        return self.view


@final
class ShmProvider(_Unique):
    """Memory of a fixed size that is shared with other processes of this host."""

    _arena: Arena
    _pid: int

    if not TYPE_CHECKING:

        def __init__(self, *_args: object, **_kwargs: object) -> None:
            raise TypeError("No constructor defined for ShmProvider")

    @classmethod
    def default_backend(cls, layout: IntoMemoryLayout) -> Self:
        """Return a provider of that many bytes in /dev/shm. ZError: the system has not as many.

        >>> provider = ShmProvider.default_backend(65536)
        >>> buffer = provider.alloc(5)
        >>> buffer[:] = b"hello"
        >>> str(buffer)
        'hello'
        """
        wanted = layout_of(layout)
        if (why := unavailable()) is not None:
            raise ShmError(why)
        self = object.__new__(cls)
        memory = process_memory()
        memory.close_ended()
        self._arena = memory.new_arena(wanted.size)
        self._pid = os.getpid()
        weakref.finalize(self, memory.end, self._arena).atexit = False
        return self

    def _usable_arena(self) -> Arena:
        """Return the memory. ShmError: it is the parent process's."""
        if self._pid != os.getpid():
            raise ShmError(
                "a child process cannot use its parent's provider: make one in the child"
            )
        return self._arena

    def alloc(self, /, layout: IntoMemoryLayout, policy: AllocPolicy = JUST_ALLOC) -> ZShmMut:
        """Return a buffer; `policy` says what to do when memory is short. ZError: there is none."""
        wanted = layout_of(layout)
        if policy is not None and not isinstance(policy, AllocPolicy):
            raise TypeError("argument 'policy': expected policy type")
        arena = self._usable_arena()
        if wanted.size > arena.size:
            raise ShmError(f"{OUT_OF_MEMORY}: {wanted.size} bytes of {arena.size}")
        buffer = _allocate(arena, wanted, policy)
        if buffer is None:
            raise ShmError(
                f"{OUT_OF_MEMORY}: {wanted.size} bytes; {arena.available} of "
                f"{arena.size} are free: collect garbage, or wait (BlockOn)"
            )
        lease = OwnLease(buffer, buffer.generation)
        buffer.fill(b"", owned=True)  # From here on, Deallocate on another thread may take it.
        view = view_of(arena.segment, buffer.offset, wanted.size, lease, writable=True)
        return ZShmMut.of(view)

    def defragment(self, /) -> None:
        """Join free pieces of memory that are next to each other."""
        self._usable_arena().defragment()

    def garbage_collect(self, /) -> int:
        """Free the buffers that no reader refers to; return the size of the largest."""
        return self._usable_arena().collect()

    def garbage_collect_unsafe(self, /) -> int:
        """Free also the buffers whose readers have crashed; return the size of the largest."""
        arena = self._usable_arena()
        return max(arena.collect(), arena.reclaim())

    @property
    def available(self) -> int:
        """Bytes that are free."""
        return self._arena.available


def _text(data: bytes | memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ZError(f"not UTF-8: {error}") from None


Attempt = Callable[[], SharedBuffer | None]


def _allocate(
    arena: Arena, layout: MemoryLayout, policy: AllocPolicy | None
) -> SharedBuffer | None:
    """Allocate as a policy says, which may contain others."""
    match policy:
        case None | JustAlloc():
            return _take(arena, layout)
        case BlockOn(inner):
            while (buffer := _allocate(arena, layout, inner)) is None:
                time.sleep(BLOCK_STEP)
            return buffer
        case Defragment(inner, other):
            return _allocate(arena, layout, inner) or _after(
                arena.defragment() >= layout.size, arena, layout, other
            )
        case GarbageCollect(inner, other, safe):
            found = _allocate(arena, layout, inner)
            if found is None:
                freed = arena.collect()
                if not safe:
                    freed = max(freed, arena.reclaim())
                found = _after(freed >= layout.size, arena, layout, other)
            return found
        case Deallocate(limit, inner, other):
            for _ in range(limit):
                if (found := _allocate(arena, layout, inner)) is not None:
                    return found
                if not arena.reclaim(limit=1):
                    return None
            return _allocate(arena, layout, other)
    raise TypeError("expected policy type")


def _take(arena: Arena, layout: MemoryLayout) -> SharedBuffer | None:
    """Allocate, from joined free pieces if need be; eclipse-zenoh joins them at once."""
    alignment = layout.alignment.get_alignment_value()
    buffer = arena.take(layout.size, alignment)
    if buffer is None and arena.defragment() >= layout.size:
        buffer = arena.take(layout.size, alignment)
    return buffer


def _after(
    worth: bool, arena: Arena, layout: MemoryLayout, policy: AllocPolicy | None
) -> SharedBuffer | None:
    """Allocate again if the step before has freed enough."""
    return _allocate(arena, layout, policy) if worth else None
