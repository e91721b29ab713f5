"""Cut one direction of a connection into batches.

Knows the handshake's effect on what stands around a batch: a length of 2 or 4 bytes, a compression
header or none. Does not know the messages after it, and keeps nothing between batches but that.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple, TypeVar

from zenlake.capture.offline_buffer import BadBytes, Buffer
from zenlake.capture.offline_input import InputSource
from zenlake.errors import DecodeError, Reason
from zenlake.wire import close
from zenlake.wire.batch import TRANSPORT, walk
from zenlake.wire.dispatch import ID_MASK
from zenlake.wire.framing import FLAG_COMPRESSED, MAX_BATCH_BYTES, Framing, split, uncompress
from zenlake.wire.init import Init
from zenlake.wire.open import Open

# A low-latency sender does not fragment; this is Zenoh's default for the longest message
# (transport.link.rx.max_message_size).
MAX_LOW_LATENCY_BYTES = 1 << 30


class FramingChoice(StrEnum):
    AUTO = "auto"
    STREAM = "stream"
    LOW_LATENCY = "low-latency"
    DATAGRAM = "datagram"


class CompressionChoice(StrEnum):
    AUTO = "auto"
    YES = "yes"
    NO = "no"


class OfflineFraming(NamedTuple):
    """What stands around each batch."""

    framing: Framing = Framing.STREAM
    compression: bool = False


class OfflineBatch(NamedTuple):
    number: int
    "From 1."
    offset: int
    "In the input, of the length prefix."
    start: int
    end: int
    "In the input, of the batch as it was sent."
    buffer: Buffer
    "The plain batch."
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
    """The batches of `source`, in order; BadBytes where it ends inside one or makes no sense.

    If the first batch is an INIT, it and the OPEN behind it are plain; then comes what the choices
    say or, for `auto`, what `guess_link` finds. Without an INIT `auto` means plain all through.
    """
    handshake = OfflineFraming(
        Framing.DATAGRAM if framing is FramingChoice.DATAGRAM else Framing.STREAM
    )
    init = _read_one(source, 0, handshake, Init)
    link = handshake if init else _told(handshake, framing, compression)
    pos, number = 0, 1
    while pos < len(source.data):
        opens = init and number == 2 and _read_one(source, pos, handshake, Open)
        batch = _batch_at(source, pos, _link_here(source, pos, link), number)
        yield batch
        pos, number = batch.end, number + 1
        if init and opens:
            link = _told(guess_link(source, pos, handshake, init), framing, compression)


def guess_link(
    source: InputSource, pos: int, handshake: OfflineFraming, init: Init
) -> OfflineFraming:
    """What stands around the batches from `pos` on, where the first one after OPEN starts.

    Low latency and compression apply when both sides offered them in INIT. One direction shows
    one side's offer only, so the bytes decide: the first form that was offered, and in which the
    next batch reads, is it. The forms do not look alike. A batch behind a 2-byte length starts
    with 3 or more, which as the third byte of a 4-byte length means 196608 bytes at least, and
    those would have to be one batch. No plain batch after OPEN starts with 0 or 1, which are the
    compression headers.
    """
    if init.low_latency and handshake.framing is Framing.STREAM:
        low_latency = OfflineFraming(Framing.LOW_LATENCY)
        if _reads_as(source, pos, low_latency):
            return low_latency
    if init.compression:
        compressed = OfflineFraming(handshake.framing, compression=True)
        if _reads_as(source, pos, compressed):
            return compressed
    return handshake


def _reads_as(source: InputSource, pos: int, link: OfflineFraming) -> bool:
    """Whether the first batch from `pos` on that is not empty is one of `link`."""
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


def _told(
    link: OfflineFraming, framing: FramingChoice, compression: CompressionChoice
) -> OfflineFraming:
    """`link`, changed to what the user said."""
    return OfflineFraming(
        _FRAMINGS.get(framing, link.framing),
        link.compression
        if compression is CompressionChoice.AUTO
        else compression is CompressionChoice.YES,
    )


def _read_one(
    source: InputSource, pos: int, link: OfflineFraming, kind: type[_Kind]
) -> _Kind | None:
    """The message at the start of the batch at `pos`, if it is a `kind`."""
    try:
        message = TRANSPORT.read(_batch_at(source, pos, link).buffer.reader())
    except (BadBytes, DecodeError):
        return None
    return message if isinstance(message, kind) else None


def _link_here(source: InputSource, pos: int, link: OfflineFraming) -> OfflineFraming:
    """`link`, but for the end of a low-latency stream: Rust sends CLOSE once more there, behind a
    2-byte length."""
    rest = source.data[pos : pos + 5]
    if link.framing is not Framing.LOW_LATENCY or len(rest) != 4 or rest[:2] != b"\2\0":
        return link
    return OfflineFraming() if rest[2] & ID_MASK == close.ID else link


def _batch_at(source: InputSource, pos: int, link: OfflineFraming, number: int = 0) -> OfflineBatch:
    """The batch whose prefix starts at `pos`."""
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
        link.framing is Framing.LOW_LATENCY,
    )


def _span(source: InputSource, pos: int, framing: Framing) -> tuple[int, int]:
    if framing is Framing.DATAGRAM and pos in source.datagram_ends:
        return pos, source.datagram_ends[pos]
    limit = MAX_LOW_LATENCY_BYTES if framing is Framing.LOW_LATENCY else MAX_BATCH_BYTES
    for span in split(source.data, framing, pos, limit=limit):
        return span
    raise DecodeError(Reason.BATCH_CUT_SHORT, "batch", pos)


def _plain(data: bytes, start: int, end: int) -> Buffer:
    """The batch behind a compression header; a copy only where it is compressed."""
    if start == end:
        return Buffer(data, start, end)
    if not data[start] & FLAG_COMPRESSED:
        return Buffer(data, start + 1, end)
    plain = uncompress(data[start:end], start)
    return Buffer(plain, 0, len(plain), "uncompressed", (start, end))
