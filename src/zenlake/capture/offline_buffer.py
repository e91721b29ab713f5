"""Bytes that messages are read from, and where in the input they come from.

Positions of messages and of errors are positions in a buffer. A buffer is the input itself, or was
made from a part of it (a batch uncompressed, fragments joined): `where` tells both apart.
"""

from typing import NamedTuple

from zenlake.errors import DecodeError
from zenlake.wire.cursor import ByteReader


class Buffer(NamedTuple):
    data: bytes
    start: int
    end: int
    made: str = ""
    "How it was made: `uncompressed` or `joined`; empty = it is the input."
    origin: tuple[int, int] = (0, 0)
    "The part of the input that it was made from."

    def reader(self) -> ByteReader:
        """Payloads in shared memory are accepted: this only looks at them."""
        return ByteReader(self.data, self.start, self.end, shm=True)

    def input_span(self, start: int, end: int) -> tuple[int, int]:
        """Where the bytes from `start` to `end` stand in the input, as closely as can be said."""
        return self.origin if self.made else (start, end)

    def where(self, pos: int) -> str:
        return f"{self.origin[0]} {self.made} +{pos}" if self.made else str(pos)


class BadBytes(Exception):
    """A DecodeError, with the buffer that its offset counts in."""

    def __init__(self, error: DecodeError, buffer: Buffer) -> None:
        super().__init__(error, buffer)
        self.error = error
        self.buffer = buffer
