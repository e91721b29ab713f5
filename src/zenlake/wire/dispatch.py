"""Tables of messages: from an id to its reader, from a class to its writer.

Knows how a header byte selects a row and how an error gets the names of the messages around it.
Does not know the messages.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from zenlake.errors import DecodeError, EncodeError, Reason
from zenlake.wire.cursor import ByteReader, ByteWriter

ID_MASK = 0x1F


class MessageRow(NamedTuple):
    id: int
    name: str
    type: type[Any]
    read: Callable[[ByteReader, int], Any]
    "Reads what follows the header byte, which it is given."
    write: Callable[[ByteWriter, Any], None]
    "Writes all of the message, header byte included."


class MessageTable:
    """Messages that may stand in one place (a batch, a FRAME, a PUSH ...)."""

    __slots__ = ("by_id", "by_type", "place")

    def __init__(self, place: str, *rows: MessageRow) -> None:
        self.place = place
        self.by_id = {row.id: row for row in rows}
        self.by_type = {row.type: row for row in rows}

    def read(self, r: ByteReader) -> Any:
        start = r.pos
        if start >= r.end:
            raise DecodeError(Reason.CUT_SHORT, "header", start)
        header = r.data[start]
        row = self.by_id.get(header & ID_MASK)
        if row is None:
            raise DecodeError(Reason.UNKNOWN_ID, "header", start)
        r.pos = start + 1
        try:
            return row.read(r, header)
        except DecodeError as error:
            error.within(row.name)
            raise

    def write(self, w: ByteWriter, message: object) -> None:
        """Append `message`; if it cannot be written, nothing is appended."""
        row = self.by_type.get(type(message))
        if row is None:
            raise EncodeError(f"cannot be a {type(message).__name__}", self.place)
        mark = len(w.out)
        try:
            row.write(w, message)
        except EncodeError as error:
            del w.out[mark:]
            error.within(row.name)
            raise
