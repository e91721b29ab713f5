"""Batches on a link: length prefixes, and the header byte of a compressed batch.

Knows how a stream is cut into batches and back. Does not know what is in a batch, nor when a
link changes from one form to another (establishment decides; see `Framing`).
"""

from collections.abc import Iterator
from enum import IntEnum

from zenlake.errors import DecodeError, EncodeError, Reason

MAX_BATCH_BYTES = 0xFFFF  # Upper bound of a u16 prefix, and of the size that a node may propose.
FLAG_COMPRESSED = 0x01


class Framing(IntEnum):
    """Prefix of a batch on a link; the number is its length in bytes.

    DATAGRAM: nothing, a datagram or WebSocket message is one batch. STREAM: u16 little-endian, not
    counting itself. LOW_LATENCY: u32, on stream links after a low-latency handshake, whose four
    messages are still framed as STREAM.
    """

    DATAGRAM = 0
    STREAM = 2
    LOW_LATENCY = 4


def split(
    data: bytes, framing: Framing, pos: int = 0, *, limit: int = MAX_BATCH_BYTES
) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each whole batch; an unfinished one at the end is left for later.

    Zero-length batches are yielded too: they carry nothing, yet they renew a lease.
    """
    size = len(data)
    if framing is Framing.DATAGRAM:
        if pos < size:
            yield pos, size
        return
    while pos + framing <= size:
        length = int.from_bytes(data[pos : pos + framing], "little")
        if length > limit:
            raise DecodeError(Reason.TOO_LARGE, "batch length", pos)
        start = pos + framing
        if start + length > size:
            return
        yield start, start + length
        pos = start + length


def to_stream(batches: list[bytes], framing: Framing) -> bytes:
    """Return the stream in which `batches` follow each other."""
    out = bytearray()
    for batch in batches:
        if framing is Framing.STREAM and len(batch) > MAX_BATCH_BYTES:
            raise EncodeError(f"has {len(batch)} bytes, more than {MAX_BATCH_BYTES}", "batch")
        out += len(batch).to_bytes(framing, "little")
        out += batch
    return bytes(out)


def compress(batch: bytes) -> bytes:
    """Header byte and LZ4 block, or header byte and the plain batch if LZ4 would not shrink it."""
    import lz4.block

    packed: bytes = lz4.block.compress(batch, store_size=False)
    if len(packed) < len(batch):
        return b"\x01" + packed
    return b"\x00" + batch


def uncompress(batch: bytes, offset: int = 0, *, limit: int = MAX_BATCH_BYTES) -> bytes:
    """Return the plain batch, of at most `limit` bytes. `offset` is the position of `batch`."""
    if not batch or not batch[0] & FLAG_COMPRESSED:
        return batch[1:]
    import lz4.block

    try:
        plain: bytes = lz4.block.decompress(batch[1:], uncompressed_size=limit)
    except lz4.block.LZ4BlockError:
        raise DecodeError(Reason.BAD_COMPRESSION, "batch", offset) from None
    return plain


def uncompress_stream(data: bytes) -> tuple[bytes, int]:
    """Uncompress a stream: return one of plain batches, and how many bytes were read."""
    plain, consumed = [], 0
    for start, end in split(data, Framing.STREAM):
        plain.append(uncompress(data[start:end], start))
        consumed = end
    return to_stream(plain, Framing.STREAM), consumed
