"""The byte layouts of a log: segment header, block, mark (docs/log-format.md).

Encodes, decodes and checks them without I/O. Does not know files and decodes no message.
"""

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32 as crc32  # Same values as zlib.crc32, four times as fast.

from zenlake.errors import ZError

Buffer = bytes | bytearray | memoryview

VERSION = 1
SEGMENT_MAGIC, BLOCK_MAGIC = b"ZENLOG\r\n", b"ZBLK"
MAX_BLOCK_BYTES = 256 << 20  # Upper bound on a block's length, on disk and decompressed.
MAX_LINKS = 128  # Upper bound on the links of a block: a link's number has 7 bits.
MAX_KEYS = 1 << 20  # Upper bound on the key entries of a block.
CODECS = ("none", "lz4", "zstd")
ALL_KEYS = 0x0001  # Block flag: the block lists all of its keys.
RELIABLE = 0x01  # Batch flag: the batch was received on a reliable lane.
LANE, SOURCE, LINK, DROPPED = 1, 2, 3, 4  # Kinds of loss.
LOSS_KINDS = {LANE: "lane", SOURCE: "source", LINK: "link", DROPPED: "dropped"}
UNKNOWN = -1  # Value of `missing` when the number of missing samples is unknown.
WRITING, SETTLED = 1, 2  # States of a mark.

_CRC = struct.Struct("<I")
_SEGMENT = struct.Struct("<8sHHI16sQqI")
_BLOCK = struct.Struct("<4sBBHII16sQqqIIIIIIII")
_MARK = struct.Struct("<QQQQqIB15x")
SEGMENT_BYTES = _SEGMENT.size + _CRC.size
HEADER_BYTES = _BLOCK.size + _CRC.size
SLOT_BYTES = _MARK.size + _CRC.size
assert (SEGMENT_BYTES, HEADER_BYTES, SLOT_BYTES) == (56, 92, 64)

LINK_ENTRY = np.dtype(
    [("serial", "<u4"), ("whatami", "u1"), ("id_len", "u1"), ("spare", "<u2"), ("id", "V16")]
)
KEY_ENTRY = np.dtype(
    [
        ("link", "u1"),
        ("mapping", "u1"),
        ("scope", "<u2"),
        ("suffix_len", "<u4"),
        ("text_len", "<u4"),
    ]
)
LOSS_ENTRY = np.dtype(
    [
        ("offset", "<u8"),
        ("time", "<i8"),
        ("first", "<u8"),
        ("last", "<u8"),
        ("missing", "<i8"),
        ("entity", "<u4"),
        ("kind", "u1"),
        ("lane", "u1"),
        ("id_len", "u1"),
        ("spare", "u1"),
        ("id", "V16"),
    ]
)
BATCH_ENTRY = np.dtype(
    [
        ("time", "<i8"),
        ("link", "u1"),
        ("flags", "u1"),
        ("spare", "<u2"),
        ("count", "<u4"),
        ("length", "<u4"),
        ("spare2", "<u4"),
    ]
)
assert (LINK_ENTRY.itemsize, KEY_ENTRY.itemsize) == (24, 12)
assert (LOSS_ENTRY.itemsize, BATCH_ENTRY.itemsize) == (64, 24)
Entries = npt.NDArray[np.void]


class DamagedLog(ZError):
    """Bytes of a log that differ from what was written; the message says where."""


def offsets_text(first: int, end: int) -> str:
    """Return the offsets from `first` to before `end`, in words.

    >>> offsets_text(514, 517), offsets_text(514, 515), offsets_text(514, 514)
    ('offsets 514 to 516', 'offset 514', 'no offset')
    """
    if end <= first:
        return "no offset"
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"


class SegmentHeader(NamedTuple):
    """The header at the start of a segment file."""

    partition: int
    log_id: bytes
    base: int
    created: int
    "Time of creation, in nanoseconds since 1970."
    previous: int
    "CRC of the last block of the segment before."

    def encode(self) -> bytes:
        head = _SEGMENT.pack(
            SEGMENT_MAGIC,
            VERSION,
            0,
            self.partition,
            self.log_id,
            self.base,
            self.created,
            self.previous,
        )
        return head + _CRC.pack(crc32(head))

    @classmethod
    def decode(cls, data: Buffer) -> "SegmentHeader":
        if len(data) < SEGMENT_BYTES:
            raise DamagedLog(f"the segment's header has {len(data)} of {SEGMENT_BYTES} bytes")
        magic, version, _, *fields = _SEGMENT.unpack_from(data)
        if magic != SEGMENT_MAGIC:
            raise DamagedLog("this is not a segment of a log")
        _check_version(version)
        if _CRC.unpack_from(data, _SEGMENT.size)[0] != crc32(data[: _SEGMENT.size]):
            raise DamagedLog("the segment's header is damaged: its CRC does not fit")
        return cls(*fields)


def _check_version(version: int) -> None:
    if version != VERSION:
        raise DamagedLog(
            f"format version {version} is unknown, only {VERSION} is known here: "
            "read it with a newer zenlake"
        )


class BlockHeader(NamedTuple):
    """The header of a block (docs/log-format.md lists the fields)."""

    codec: int
    flags: int
    length: int
    partition: int
    log_id: bytes
    base: int
    first_time: int
    last_time: int
    samples: int
    losses: int
    links: int
    keys: int
    batches: int
    meta: int
    raw: int
    previous: int
    crc: int

    @property
    def end(self) -> int:
        """Return the first offset after the block."""
        return self.base + self.samples

    @classmethod
    def decode(cls, data: Buffer, pos: int = 0) -> "BlockHeader":
        """Decode the header at `pos` and check its bounds, but not its CRC."""
        if len(data) - pos < HEADER_BYTES:
            raise DamagedLog(f"a block's header has {len(data) - pos} of {HEADER_BYTES} bytes")
        magic, version, *fields = _BLOCK.unpack_from(data, pos)
        if magic != BLOCK_MAGIC:
            raise DamagedLog("no block starts here")
        _check_version(version)
        header = cls._make((*fields, *_CRC.unpack_from(data, pos + _BLOCK.size)))
        if (
            not HEADER_BYTES + header.meta <= header.length <= MAX_BLOCK_BYTES
            or header.codec >= len(CODECS)
            or header.raw > MAX_BLOCK_BYTES
            or header.links > MAX_LINKS
            or header.keys > MAX_KEYS
            or header.meta < _least_meta_bytes(header)
            or header.raw < header.batches * BATCH_ENTRY.itemsize
            or header.samples > header.raw
        ):
            raise DamagedLog("a block's header contradicts itself")
        return header


def _least_meta_bytes(header: BlockHeader) -> int:
    """Return the size of the fixed entries between header and body; key texts come on top."""
    return (
        header.links * LINK_ENTRY.itemsize
        + header.keys * KEY_ENTRY.itemsize
        + header.losses * LOSS_ENTRY.itemsize
    )


class KeyText(NamedTuple):
    """A key entry of a block: (link, mapping, scope), and the full key with its suffix."""

    link: int
    mapping: int
    scope: int
    suffix_len: int
    text: bytes

    @property
    def prefix(self) -> bytes:
        return self.text[: len(self.text) - self.suffix_len]


class Block:
    """A block with a correct CRC. Its contents are decoded on request."""

    __slots__ = ("_data", "_pos", "header")

    def __init__(self, header: BlockHeader, data: Buffer, pos: int) -> None:
        self.header = header
        self._data = memoryview(data)
        self._pos = pos

    @classmethod
    def decode(cls, data: Buffer, pos: int = 0) -> "Block":
        """Decode the block at `pos`. Raise DamagedLog if none starts there or its CRC is wrong."""
        header = BlockHeader.decode(data, pos)
        if header.length > len(data) - pos:
            raise DamagedLog(f"a block has {len(data) - pos} of {header.length} bytes")
        view = memoryview(data)[pos : pos + header.length]
        crc = crc32(view[HEADER_BYTES:], crc32(view[: _BLOCK.size]))
        if crc != header.crc:
            raise DamagedLog("a block is damaged: its CRC does not fit")
        return cls(header, data, pos)

    def links(self) -> Entries:
        return self._entries(0, self.header.links, LINK_ENTRY)

    def keys(self) -> list[KeyText]:
        h = self.header
        first = h.links * LINK_ENTRY.itemsize
        entries = self._entries(first, h.keys, KEY_ENTRY)
        texts = first + entries.nbytes
        losses = h.meta - h.losses * LOSS_ENTRY.itemsize
        ends = np.cumsum(entries["text_len"], dtype=np.int64)
        if (len(ends) and texts + int(ends[-1]) != losses) or (
            entries["suffix_len"] > entries["text_len"]
        ).any():
            raise DamagedLog("a block's keys contradict themselves")
        at = self._pos + HEADER_BYTES + texts
        found, start = [], 0
        for (link, mapping, scope, suffix_len, _), end in zip(
            entries.tolist(), ends.tolist(), strict=True
        ):
            text = bytes(self._data[at + start : at + end])
            found.append(KeyText(link, mapping, scope, suffix_len, text))
            start = end
        return found

    def losses(self) -> Entries:
        h = self.header
        return self._entries(h.meta - h.losses * LOSS_ENTRY.itemsize, h.losses, LOSS_ENTRY)

    def body(self) -> tuple[Entries, memoryview]:
        """Return the batch entries, and the concatenated data of all batches."""
        h = self.header
        start, end = self._pos + HEADER_BYTES + h.meta, self._pos + h.length
        body = unpack_body(h.codec, self._data[start:end], h.raw)
        size = h.batches * BATCH_ENTRY.itemsize
        batches = np.frombuffer(body[:size], BATCH_ENTRY)
        data = body[size:]
        if (
            int(batches["length"].sum(dtype=np.int64)) != len(data)
            or int(batches["count"].sum(dtype=np.int64)) != h.samples
            or (batches["link"] >= h.links).any()
        ):
            raise DamagedLog("a block's batches contradict themselves")
        return batches, data

    def _entries(self, offset: int, count: int, kind: np.dtype[Any]) -> Entries:
        start = self._pos + HEADER_BYTES + offset
        return np.frombuffer(self._data[start : start + count * kind.itemsize], kind)


def encode_block(
    header: BlockHeader, meta: bytes, batches: Buffer, data: Buffer
) -> tuple[list[Buffer], BlockHeader]:
    """Encode a block: the buffers to write one after another, and its header.

    `meta` is everything between header and body. Sets the fields of `header` that depend on the
    sizes; its codec is the one to try.
    """
    raw = len(batches) + len(data)
    codec, body = _pack(header.codec, batches, data)
    length = HEADER_BYTES + len(meta) + sum(len(part) for part in body)
    if max(length, raw) > MAX_BLOCK_BYTES:
        raise ZError(f"a block of {length} bytes is longer than {MAX_BLOCK_BYTES}")
    header = header._replace(codec=codec, length=length, meta=len(meta), raw=raw)
    head = _BLOCK.pack(BLOCK_MAGIC, VERSION, *header[:-1])
    crc = crc32(meta, crc32(head))
    for part in body:
        crc = crc32(part, crc)
    return [head + _CRC.pack(crc) + meta, *body], header._replace(crc=crc)


_ARROW_CODECS = {1: "lz4_raw", 2: "zstd"}


def _pack(codec: int, batches: Buffer, data: Buffer) -> tuple[int, list[Buffer]]:
    """Compress the body, unless that makes it longer. Return the codec used, and the buffers."""
    if codec:
        import pyarrow as pa

        plain = b"".join((batches, data))
        packed = pa.compress(plain, codec=_ARROW_CODECS[codec], asbytes=True)
        if len(packed) < len(plain):
            return codec, [packed]
    return 0, [batches, data]


def unpack_body(codec: int, body: memoryview, raw: int) -> memoryview:
    """Decompress a block's body, which has `raw` bytes then. Raise DamagedLog if it has not."""
    if not codec:
        if len(body) != raw:
            raise DamagedLog("a block's body has another length than its header says")
        return body
    import pyarrow as pa

    try:
        plain = pa.decompress(body, decompressed_size=raw, codec=_ARROW_CODECS[codec])
    except (pa.ArrowException, OSError) as error:
        raise DamagedLog(f"a block's body does not unpack: {error}") from None
    if len(plain) != raw:
        raise DamagedLog("a block's body unpacks to another length than its header says")
    return memoryview(plain)


class Mark(NamedTuple):
    """The end of the durable part of a partition, as its mark file states it."""

    sequence: int
    offset: int
    "The first offset that is not durable."
    segment: int
    "Base offset of the segment that is being written."
    position: int
    "Number of durable bytes in that segment."
    time: int
    "The latest time of reception so far, in nanoseconds since 1970."
    last: int
    "CRC of the last durable block."
    state: int
    "WRITING or SETTLED."

    def encode(self) -> bytes:
        head = _MARK.pack(*self)
        return head + _CRC.pack(crc32(head))

    @property
    def place(self) -> int:
        """Return the position of its slot in the mark file."""
        return self.sequence % 2 * SLOT_BYTES

    @classmethod
    def decode(cls, data: Buffer) -> "Mark | None":
        """Return the newest mark in the bytes of a mark file; None if no slot has a correct CRC."""
        found = []
        for pos in range(0, min(len(data), 2 * SLOT_BYTES) - SLOT_BYTES + 1, SLOT_BYTES):
            head = bytes(data[pos : pos + _MARK.size])
            if crc32(head) == _CRC.unpack_from(data, pos + _MARK.size)[0]:
                found.append(cls(*_MARK.unpack(head)))
        return max(found, default=None)
