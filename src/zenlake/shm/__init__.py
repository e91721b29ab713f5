"""Shared memory: the names of `zenoh.shm`, and what sessions use to pass payloads by pointer.

`docs/shared-memory.md` says when it is used. The layouts are those of Zenoh 1.10 (segment version
2): nodes of other versions are reached over the network.
"""

from typing import TYPE_CHECKING

from zenlake.shm.layout import (
    AllocAlignment,
    BlockOn,
    Deallocate,
    Defragment,
    GarbageCollect,
    JustAlloc,
    MemoryLayout,
)

if TYPE_CHECKING:
    from zenlake.shm.provider import ShmProvider, ZShm, ZShmMut

__all__ = [
    "AllocAlignment",
    "BlockOn",
    "Deallocate",
    "Defragment",
    "GarbageCollect",
    "JustAlloc",
    "MemoryLayout",
    "ShmProvider",
    "ZShm",
    "ZShmMut",
]


if not TYPE_CHECKING:  # Checkers know the names from above, and that there are no others.

    def __getattr__(name: str) -> object:
        """Load what needs NumPy on first use."""
        if name in ("ShmProvider", "ZShm", "ZShmMut"):
            from zenlake.shm import provider

            return getattr(provider, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return all names, also of what is not loaded yet."""
        return sorted({*globals(), *__all__})
