"""Bytes that messages are read from, and their origin in the input.

Positions of messages and errors are positions in a buffer. A buffer is the input itself, or was
made from a part of it (an uncompressed batch, joined fragments); `where` names a position in both.
"""

from typing import NamedTuple

from zenlake.errors import DecodeError
from zenlake.wire.cursor import ByteReader


class Buffer(NamedTuple):
    """Bytes [start, end) of `data`."""

    data: bytes
    start: int
    end: int
    made: str = ""
    "How it was made: `uncompressed` or `joined`; empty for the input itself."
    origin: tuple[int, int] = (0, 0)
    "Range of the input that it was made from."

    def reader(self) -> ByteReader:
        """Return a reader that accepts payloads in shared memory, since it only displays them."""
        return ByteReader(self.data, self.start, self.end, shm=True)

    def input_span(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of the input that holds the bytes from `start` to `end`."""
        return self.origin if self.made else (start, end)

    def where(self, pos: int) -> str:
        """Return a position as text."""
        return f"{self.origin[0]} {self.made} +{pos}" if self.made else str(pos)


class BadBytes(Exception):
    """A DecodeError, with the buffer that its offset refers to."""

    def __init__(self, error: DecodeError, buffer: Buffer) -> None:
        super().__init__(error, buffer)
        self.error = error
        self.buffer = buffer
