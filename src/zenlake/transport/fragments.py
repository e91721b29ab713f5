"""Fragments: reassembly of a message that its sender cut because it fits no batch.

Knows the markers First and Drop and the limits of memory. Does not know the content of a message.
Rust: `io/zenoh-transport/src/common/defragmentation.rs`.
"""

from collections.abc import Callable

from zenlake.transport.drop_reason import DropReason
from zenlake.wire.fragment import Fragment

MAX_MESSAGE_BYTES = 64 << 20
MAX_SESSION_BYTES = 128 << 20
MAX_PROCESS_BYTES = 512 << 20
MAX_FRAGMENTS = 65_535  # Fragments of one message.
MAX_IDLE_TICKS = 4  # Keep-alive intervals without a fragment that a best-effort message outlives.
PIECE_BYTES = 64  # Memory that a fragment takes beside its payload.

OnDrop = Callable[[DropReason], None]
"Called once for each fragmented message that is given up."


class ByteBudget:
    """Budget of bytes, which may be part of a larger one."""

    __slots__ = ("held", "limit", "within")

    def __init__(self, limit: int, within: "ByteBudget | None" = None) -> None:
        self.limit = limit
        self.held = 0
        self.within = within

    def take(self, size: int) -> bool:
        """Reserve `size` bytes; return False if this budget or the larger one has no room."""
        if self.held + size > self.limit:
            return False
        if self.within is not None and not self.within.take(size):
            return False
        self.held += size
        return True

    def give(self, size: int) -> None:
        """Return `size` bytes to this budget and to the larger one."""
        self.held -= size
        if self.within is not None:
            self.within.give(size)


PROCESS = ByteBudget(MAX_PROCESS_BYTES)
"Memory for the unfinished messages of all sessions of this process."


class FragmentAssembly:
    """Reassembly of the fragmented messages of one lane, one at a time."""

    __slots__ = (
        "_idle_ticks",
        "_last_sn",
        "_pieces",
        "_size",
        "is_unfinished",
        "limit",
        "mask",
        "memory",
        "on_drop",
    )

    def __init__(
        self, mask: int, memory: ByteBudget, on_drop: OnDrop, limit: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.mask = mask
        self.memory = memory
        self.on_drop = on_drop
        self.limit = limit
        self._pieces: list[bytes] = []
        self._size = 0
        self._last_sn = 0
        self.is_unfinished = False
        "Whether fragments wait for further fragments."
        self._idle_ticks = 0

    def add(self, fragment: Fragment, patch: int) -> bytes | None:
        """Add a fragment; return the whole message if this is its last fragment."""
        if fragment.drop:
            self.abandon(DropReason.FRAGMENT_ABANDONED)
            return None
        if fragment.first or (patch == 0 and not self.is_unfinished):
            self.abandon(DropReason.FRAGMENT_RESTARTED)
            self.is_unfinished = True
        elif not self.is_unfinished:
            self.on_drop(DropReason.FRAGMENT_FIRST_MISSING)
            return None
        elif fragment.sn != self._last_sn + 1 & self.mask:
            self.abandon(DropReason.FRAGMENT_MISSING)
            return None
        size = len(fragment.payload)
        if self._size + size > self.limit or len(self._pieces) >= MAX_FRAGMENTS:
            self.abandon(DropReason.FRAGMENT_TOO_LARGE)
            return None
        if not self.memory.take(size + PIECE_BYTES):
            self.abandon(DropReason.FRAGMENT_NO_MEMORY)
            return None
        self._idle_ticks = 0
        self._pieces.append(fragment.payload)
        self._size += size
        self._last_sn = fragment.sn
        if fragment.more:
            return None
        whole = b"".join(self._pieces)
        self._clear()
        return whole

    def tick(self) -> None:
        """Count a keep-alive interval; give up a message without a fragment for too many.

        For lanes where the last fragments may be lost: those of best effort, and all of a group. A
        reliable message of a link may pause for as long as its session lasts: its sender may have
        to empty lanes of higher priorities first, or this node does not read.
        """
        self._idle_ticks += 1
        if self._idle_ticks > MAX_IDLE_TICKS:
            self.abandon(DropReason.FRAGMENT_STALLED)

    def abandon(self, reason: DropReason) -> None:
        """Give up the unfinished message, if there is one."""
        if self.is_unfinished:
            self.on_drop(reason)
            self._clear()

    def _clear(self) -> None:
        self.memory.give(self._size + PIECE_BYTES * len(self._pieces))
        self._pieces = []
        self._size = 0
        self.is_unfinished = False
