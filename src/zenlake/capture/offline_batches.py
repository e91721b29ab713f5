"""Cut the recorded bytes of one direction of a connection into batches, for display.

Knows how the handshake changes the framing of batches. Does not know the messages after it.
conversation.py reads packet captures: both directions, with gaps, as columns of the scan. Here is
one direction without packets, read by the object codec, so that every message and every error has
its position in the input.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple, TypeVar

from zenlake.capture.batch_framing import LOW_LATENCY, PLAIN, BatchFraming, is_repeated_close
from zenlake.capture.offline_buffer import BadBytes, Buffer
from zenlake.capture.offline_input import InputSource
from zenlake.errors import DecodeError, Reason
from zenlake.wire.batch import TRANSPORT, walk
from zenlake.wire.framing import FLAG_COMPRESSED, MAX_BATCH_BYTES, Framing, split, uncompress
from zenlake.wire.init import Init
from zenlake.wire.open import Open

MAX_LOW_LATENCY_BYTES = 1 << 30  # Zenoh's default transport.link.rx.max_message_size.


class FramingChoice(StrEnum):
    """Framing that the user names."""

    AUTO = "auto"
    STREAM = "stream"
    LOW_LATENCY = "low-latency"
    DATAGRAM = "datagram"


class CompressionChoice(StrEnum):
    """Compression that the user names."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"


class OfflineBatch(NamedTuple):
    """A batch and its place in the input."""

    number: int
    "Ordinal of the batch, from 1."
    offset: int
    "Position of the length prefix in the input."
    start: int
    end: int
    "The batch as it was sent is [start, end) of the input."
    buffer: Buffer
    "Bytes of the batch, uncompressed."
    low_latency: bool
    "Network messages stand in it without a FRAME."


_Kind = TypeVar("_Kind", Init, Open)
_FRAMINGS = {
    FramingChoice.STREAM: Framing.STREAM,
    FramingChoice.LOW_LATENCY: Framing.LOW_LATENCY,
    FramingChoice.DATAGRAM: Framing.DATAGRAM,
}


def cut(
    source: InputSource,
    framing: FramingChoice = FramingChoice.AUTO,
    compression: CompressionChoice = CompressionChoice.AUTO,
) -> Iterator[OfflineBatch]:
    """Yield the batches of `source`, in order; BadBytes where it ends inside one or is invalid.

    If the first batch is an INIT, it and the OPEN after it are plain; the batches after them have
    the framing that the choices name or, for `auto`, that `guess_link` finds. Without an INIT
    `auto` means plain.
    """
    handshake = BatchFraming(
        Framing.DATAGRAM if framing is FramingChoice.DATAGRAM else Framing.STREAM
    )
    init = _read_one(source, 0, handshake, Init)
    link = handshake if init else _apply_choices(handshake, framing, compression)
    pos, number = 0, 1
    while pos < len(source.data):
        opens = init and number == 2 and _read_one(source, pos, handshake, Open)
        batch = _batch_at(source, pos, _link_here(source, pos, link), number)
        yield batch
        pos, number = batch.end, number + 1
        if init and opens:
            link = _apply_choices(guess_link(source, pos, handshake, init), framing, compression)


def guess_link(source: InputSource, pos: int, handshake: BatchFraming, init: Init) -> BatchFraming:
    """Return the framing of the batches from `pos` on, where the first one after OPEN starts.

    Low latency and compression apply when both sides offered them in INIT. One direction shows one
    side's offer only, so the bytes decide: the first offered form in which the next batch decodes.
    The forms differ: a batch with a 2-byte length starts with 3 or more, which as the third byte of
    a 4-byte length would mean a batch of at least 196608 bytes; and no plain batch after OPEN
    starts with 0 or 1, which are the compression headers.
    """
    if init.low_latency and handshake.framing is Framing.STREAM:
        low_latency = LOW_LATENCY[True]
        if _reads_as(source, pos, low_latency):
            return low_latency
    if init.compression:
        compressed = BatchFraming(handshake.framing, compression=True)
        if _reads_as(source, pos, compressed):
            return compressed
    return handshake


def _reads_as(source: InputSource, pos: int, link: BatchFraming) -> bool:
    """Return whether the first batch from `pos` on that is not empty decodes in this framing."""
    try:
        while pos < len(source.data):
            batch = _batch_at(source, pos, link)
            pos = batch.end
            if batch.start == batch.end:
                continue
            if link.compression and source.data[batch.start] > FLAG_COMPRESSED:
                return False
            return bool(list(walk(batch.buffer.reader(), low_latency=batch.low_latency)))
    except (BadBytes, DecodeError):
        return False
    return False


def _apply_choices(
    link: BatchFraming, framing: FramingChoice, compression: CompressionChoice
) -> BatchFraming:
    """Return `link` with the framing and compression that the user named."""
    chosen = _FRAMINGS.get(framing, link.framing)
    return BatchFraming(
        chosen,
        link.compression
        if compression is CompressionChoice.AUTO
        else compression is CompressionChoice.YES,
        low_latency=chosen is Framing.LOW_LATENCY,
    )


def _read_one(source: InputSource, pos: int, link: BatchFraming, kind: type[_Kind]) -> _Kind | None:
    """Return the first message of the batch at `pos`, if it is a `kind`."""
    try:
        message = TRANSPORT.read(_batch_at(source, pos, link).buffer.reader())
    except (BadBytes, DecodeError):
        return None
    return message if isinstance(message, kind) else None


def _link_here(source: InputSource, pos: int, link: BatchFraming) -> BatchFraming:
    """Return the framing of the batch at `pos`: `link`, or PLAIN for a repeated CLOSE."""
    at_end = link.framing is Framing.LOW_LATENCY and is_repeated_close(source.data[pos : pos + 5])
    return PLAIN if at_end else link


def _batch_at(source: InputSource, pos: int, link: BatchFraming, number: int = 0) -> OfflineBatch:
    """Return the batch whose prefix starts at `pos`."""
    whole = Buffer(source.data, 0, len(source.data))
    try:
        start, end = _span(source, pos, link.framing)
        buffer = _plain(source.data, start, end) if link.compression else None
    except DecodeError as error:
        raise BadBytes(error, whole) from None
    return OfflineBatch(
        number,
        pos,
        start,
        end,
        buffer or Buffer(source.data, start, end),
        link.low_latency,
    )


def _span(source: InputSource, pos: int, framing: Framing) -> tuple[int, int]:
    if framing is Framing.DATAGRAM and pos in source.datagram_ends:
        return pos, source.datagram_ends[pos]
    limit = MAX_LOW_LATENCY_BYTES if framing is Framing.LOW_LATENCY else MAX_BATCH_BYTES
    for span in split(source.data, framing, pos, limit=limit):
        return span
    raise DecodeError(Reason.BATCH_CUT_SHORT, "batch", pos)


def _plain(data: bytes, start: int, end: int) -> Buffer:
    """Return the batch after its compression header; a copy only if it is compressed."""
    if start == end:
        return Buffer(data, start, end)
    if not data[start] & FLAG_COMPRESSED:
        return Buffer(data, start + 1, end)
    plain = uncompress(data[start:end], start)
    return Buffer(plain, 0, len(plain), "uncompressed", (start, end))
