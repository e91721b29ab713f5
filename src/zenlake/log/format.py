"""The bytes of a log: segment header, block, mark (docs/log-format.md).

Pure: knows layouts and checks them. Does not know files, and decodes no message.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32 as crc32  # zlib's, four times as fast

from zenlake.errors import ZError

Buffer = bytes | bytearray | memoryview

VERSION = 1
SEGMENT_MAGIC, BLOCK_MAGIC = b"ZENLOG\r\n", b"ZBLK"
MAX_BLOCK_BYTES = 256 << 20  # no block is longer, on the disk or unpacked
MAX_LINKS = 128  # of one block: the number of a link has 7 bits
MAX_KEYS = 1 << 20  # of one block
CODECS = ("none", "lz4", "zstd")
ALL_KEYS = 0x0001  # the block's flag: its keys are listed completely
RELIABLE = 0x01  # a batch's flag
LANE, SOURCE, LINK, DROPPED = 1, 2, 3, 4  # kinds of loss
LOSS_KINDS = {LANE: "lane", SOURCE: "source", LINK: "link", DROPPED: "dropped"}
UNKNOWN = -1  # how many are missing
WRITING, SETTLED = 1, 2  # states of a mark

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
    """Bytes of a log that are not what was written; says where and which offsets."""


def offsets_text(first: int, end: int) -> str:
    """Return the offsets from `first` to before `end`, in words.

    >>> offsets_text(514, 517), offsets_text(514, 515), offsets_text(514, 514)
    ('offsets 514 to 516', 'offset 514', 'no offset')
    """
    if end <= first:
        return "no offset"
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"


class SegmentHeader(NamedTuple):
    partition: int
    log_id: bytes
    base: int
    created: int
    previous: int

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
            raise DamagedLog("this is no segment of a log")
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
        """The first offset after the block."""
        return self.base + self.samples

    @classmethod
    def decode(cls, data: Buffer, pos: int = 0) -> "BlockHeader":
        """The header at `pos`, with its bounds checked, but nothing of its CRC."""
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
            or header.meta < _meta_bytes(header)
            or header.raw < header.batches * BATCH_ENTRY.itemsize
            or header.samples > header.raw
        ):
            raise DamagedLog("a block's header contradicts itself")
        return header


def _meta_bytes(header: BlockHeader) -> int:
    """At least so many."""
    return (
        header.links * LINK_ENTRY.itemsize
        + header.keys * KEY_ENTRY.itemsize
        + header.losses * LOSS_ENTRY.itemsize
    )


class KeyText(NamedTuple):
    """A key of a block: what (link, mapping, scope) and the suffix stand for."""

    link: int
    mapping: int
    scope: int
    suffix_len: int
    text: bytes

    @property
    def prefix(self) -> bytes:
        return self.text[: len(self.text) - self.suffix_len]


class Block:
    """A block whose CRC fits. What it holds is read when it is asked for."""

    __slots__ = ("_data", "_pos", "header")

    def __init__(self, header: BlockHeader, data: Buffer, pos: int) -> None:
        self.header = header
        self._data = memoryview(data)
        self._pos = pos

    @classmethod
    def decode(cls, data: Buffer, pos: int = 0) -> "Block":
        """The block that starts at `pos`; DamagedLog if there is none, or not the one written."""
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
        """The batches, and the data of all of them."""
        h = self.header
        start, end = self._pos + HEADER_BYTES + h.meta, self._pos + h.length
        body = _unpack(h.codec, self._data[start:end], h.raw)
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
    log_id: bytes,
    partition: int,
    base: int,
    previous: int,
    *,
    codec: int,
    all_keys: bool,
    times: tuple[int, int],
    samples: int,
    links: Buffer,
    keys: Sequence[KeyText],
    losses: Buffer,
    batches: Buffer,
    data: Buffer,
) -> tuple[list[Buffer], BlockHeader]:
    """The buffers of a block, to be written one after another, and its header.

    `links`, `losses` and `batches` are entries as they stand in the block.
    """
    entries = np.array(
        [(k.link, k.mapping, k.scope, k.suffix_len, len(k.text)) for k in keys], KEY_ENTRY
    )
    meta = b"".join((links, entries.tobytes(), *(key.text for key in keys), losses))
    raw = len(batches) + len(data)
    codec, body = _pack(codec, batches, data)
    length = HEADER_BYTES + len(meta) + sum(len(part) for part in body)
    if max(length, raw) > MAX_BLOCK_BYTES:
        raise ZError(f"a block of {length} bytes is longer than {MAX_BLOCK_BYTES}")
    fields = (
        codec,
        ALL_KEYS if all_keys else 0,
        length,
        partition,
        log_id,
        base,
        *times,
        samples,
        len(losses) // LOSS_ENTRY.itemsize,
        len(links) // LINK_ENTRY.itemsize,
        len(keys),
        len(batches) // BATCH_ENTRY.itemsize,
        len(meta),
        raw,
        previous,
    )
    head = _BLOCK.pack(BLOCK_MAGIC, VERSION, *fields)
    crc = crc32(meta, crc32(head))
    for part in body:
        crc = crc32(part, crc)
    return [head + _CRC.pack(crc) + meta, *body], BlockHeader._make((*fields, crc))


_ARROW_CODECS = {1: "lz4_raw", 2: "zstd"}


def _pack(codec: int, batches: Buffer, data: Buffer) -> tuple[int, list[Buffer]]:
    """What stands in the block; as it is if that is not longer."""
    if codec:
        import pyarrow as pa

        plain = b"".join((batches, data))
        packed = pa.compress(plain, codec=_ARROW_CODECS[codec], asbytes=True)
        if len(packed) < len(plain):
            return codec, [packed]
    return 0, [batches, data]


def _unpack(codec: int, body: memoryview, raw: int) -> memoryview:
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
    """How far a partition is durable."""

    sequence: int
    offset: int
    "The first that is not durable."
    segment: int
    position: int
    time: int
    "The latest time of reception so far, in nanoseconds."
    last: int
    "CRC of the last durable block."
    state: int

    def encode(self) -> bytes:
        head = _MARK.pack(*self)
        return head + _CRC.pack(crc32(head))

    @property
    def place(self) -> int:
        """Where its slot stands in the file."""
        return self.sequence % 2 * SLOT_BYTES

    @classmethod
    def decode(cls, data: Buffer) -> "Mark | None":
        """The mark in a file's bytes; None if no slot is whole."""
        found = []
        for pos in range(0, min(len(data), 2 * SLOT_BYTES) - SLOT_BYTES + 1, SLOT_BYTES):
            head = bytes(data[pos : pos + _MARK.size])
            if crc32(head) == _CRC.unpack_from(data, pos + _MARK.size)[0]:
                found.append(cls(*_MARK.unpack(head)))
        return max(found, default=None)
