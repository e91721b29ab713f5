"""Framing of batches in a recorded session: length prefix, compression header, low latency.

Shared by the two readers of recorded sessions: conversation.py, which reads both sides of a packet
capture as columns, and offline_batches.py, which reads one side for display. Loads no NumPy.
"""

from typing import NamedTuple

from zenlake.transport.fragments import MAX_MESSAGE_BYTES
from zenlake.wire import close, fragment, frame, join, keepalive
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.framing import MAX_BATCH_BYTES, Framing
from zenlake.wire.network import FIRST_ID

_MAY_START = (close.ID, keepalive.ID, frame.ID, fragment.ID, join.ID)
REPEATED_CLOSE_BYTES = 4


class BatchFraming(NamedTuple):
    """Framing of a batch."""

    framing: Framing = Framing.STREAM
    compression: bool = False
    low_latency: bool = False
    "Network messages stand in it without a FRAME."

    @property
    def limit(self) -> int:
        """Upper bound of a batch's length."""
        return MAX_MESSAGE_BYTES if self.framing is Framing.LOW_LATENCY else MAX_BATCH_BYTES

    def may_start(self, first: int) -> bool:
        """Return whether a batch in the middle of a session may start with this byte."""
        kind = first & ID_MASK
        if self.low_latency:
            return kind >= FIRST_ID or kind in (close.ID, keepalive.ID)
        return kind in _MAY_START


PLAIN = BatchFraming()
COMPRESSED = BatchFraming(compression=True)
LOW_LATENCY = {
    True: BatchFraming(Framing.LOW_LATENCY, low_latency=True),
    False: BatchFraming(low_latency=True),
}
"Low latency on a stream, and in datagrams, to which conversation.py adds a length of two bytes."


def is_repeated_close(rest: bytes) -> bool:
    """Return whether `rest`, the end of a low-latency stream, is a CLOSE with a 2-byte length.

    The Rust implementation sends CLOSE once more in that form.
    """
    return (
        len(rest) == REPEATED_CLOSE_BYTES and rest[:2] == b"\2\0" and rest[2] & ID_MASK == close.ID
    )
