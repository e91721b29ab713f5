"""Framing of batches in a recorded session: length prefix, compression header, low latency.

Shared by the two readers of recorded sessions: conversation.py, which reads both sides of a packet
capture as columns, and offline.py, which reads one side for display. Loads no NumPy.
"""

from collections.abc import Collection
from typing import NamedTuple

from zenlake.errors import DecodeError
from zenlake.transport.fragments import MAX_MESSAGE_BYTES
from zenlake.wire import close, fragment, frame, join, keepalive
from zenlake.wire.batch import TRANSPORT, TransportMessage, walk
from zenlake.wire.cursor import ByteReader
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.framing import FLAG_COMPRESSED, MAX_BATCH_BYTES, Framing, uncompress
from zenlake.wire.init import VERSION, Init
from zenlake.wire.join import Join
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

    def reads(self, batch: bytes) -> bool:
        """Return whether the bytes after a length are a batch in the middle of a session.

        No bytes are one in two framings: no plain batch after OPEN starts with 0 or 1, which are
        the compression headers; and as the third byte of a 4-byte length, the 3 or more that it
        starts with would mean a batch of at least 196608 bytes.
        """
        try:
            if self.compression:
                if batch[0] > FLAG_COMPRESSED:
                    return False
                batch = uncompress(batch)
            if not batch or not self.may_start(batch[0]):
                return False
            for _ in walk(ByteReader(batch, shm=True), low_latency=self.low_latency):
                pass
        except DecodeError:
            return False
        return True


PLAIN = BatchFraming()
COMPRESSED = BatchFraming(compression=True)
LOW_LATENCY = {
    True: BatchFraming(Framing.LOW_LATENCY, low_latency=True),
    False: BatchFraming(low_latency=True),
}
"Low latency on a stream, and in datagrams, to which conversation.py adds a length of two bytes."


def possible_forms(inits: Collection[Init], *, is_stream: bool) -> tuple[BatchFraming, ...]:
    """Return the framings that a batch after a handshake with these INITs may have.

    Low latency and compression apply when both sides offered them; a side whose INIT is missing
    may have.
    """
    low_latency = all(offer.low_latency for offer in inits)
    compression = all(offer.compression for offer in inits)
    if len(inits) == 2:
        if low_latency:
            return (LOW_LATENCY[is_stream],)
        return (COMPRESSED if compression else PLAIN,)
    maybe = (COMPRESSED,) if compression else ()
    return (PLAIN, *maybe, LOW_LATENCY[is_stream]) if low_latency else (PLAIN, *maybe)


def first_message(batch: bytes) -> TransportMessage | None:
    """Return the first message of a plain batch; None if it does not decode."""
    try:
        message: TransportMessage = TRANSPORT.read(ByteReader(batch))
    except DecodeError:
        return None
    return message


def is_session_start(batch: bytes) -> bool:
    """Return whether a batch begins with the INIT or JOIN of this version of the protocol."""
    message = first_message(batch)
    return isinstance(message, Init | Join) and message.version == VERSION


def is_repeated_close(rest: bytes) -> bool:
    """Return whether `rest`, the end of a low-latency stream, is a CLOSE with a 2-byte length.

    The Rust implementation sends CLOSE once more in that form.
    """
    return (
        len(rest) == REPEATED_CLOSE_BYTES and rest[:2] == b"\2\0" and rest[2] & ID_MASK == close.ID
    )
