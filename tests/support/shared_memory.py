"""What tests of shared memory look at: segments that a process maps, and the words of a header."""

import os
import re
from pathlib import Path

from zenlake.shm import native
from zenlake.shm.arena import Arena, SharedBuffer
from zenlake.shm.headers import OwnHeaders
from zenlake.shm.segment import FOLDER, Segment

COUNTED, BITS = 0, 8  # Offsets of the words that `change` changes.
_MAPPED = re.compile(rf"{FOLDER}/(\d+)\.zenoh(?: \(deleted\))?$")


def mapped_segments(pid: int | None = None) -> set[int]:
    """Return the numbers of the segments that a process maps, removed or not."""
    lines = Path(f"/proc/{pid or os.getpid()}/maps").read_text().splitlines()
    return {int(found[1]) for line in lines if (found := _MAPPED.search(line))}


def remaining(numbers: set[int]) -> set[int]:
    """Return those of the segments whose file is still there."""
    return {number for number in numbers if (FOLDER / f"{number}.zenoh").exists()}


def small_arena(size: int) -> Arena:
    """Make an arena with headers of its own, which no other test takes."""
    return Arena(size, OwnHeaders())


def filled(arena: Arena, data: bytes) -> SharedBuffer:
    """Return a buffer with `data`."""
    buffer = arena.take(len(data))
    assert buffer is not None
    buffer.fill(data)
    return buffer


def read(buffer: SharedBuffer, size: int) -> bytes:
    """Return the first bytes of a buffer."""
    return bytes(buffer.arena.segment.map[buffer.offset : buffer.offset + size])


def give_back(buffer: SharedBuffer) -> None:
    """Drop one reference, as a reader does."""
    buffer.arena.native.add(buffer.header_address, -1)


def change(number: int, which: int, rounds: int) -> None:
    """Add `rounds` to the word at COUNTED of a segment; set and clear bit `which` at BITS as often,
    and leave it set. Nobody else changes that bit."""
    segment = Segment.open(number)
    functions = native.load()
    for turn in range(rounds):
        functions.add(segment.address + COUNTED, 2)
        functions.add(segment.address + COUNTED, -1)
        assert not functions.set_bits(segment.address + BITS, 1 << which) >> which & 1
        if turn < rounds - 1:
            assert functions.clear_bits(segment.address + BITS, 1 << which) >> which & 1
    segment.close()
