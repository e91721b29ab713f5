"""Logs made by hand: segments of open blocks, without a writer, and the rows that must be read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.sample_rows import sample_row
from zenlake.log.block import Loss, OpenBlock, SourceLink
from zenlake.log.files import segment_name
from zenlake.log.format import (
    CODECS,
    LOSS_KINDS,
    SEGMENT_BYTES,
    SETTLED,
    BlockHeader,
    Mark,
    SegmentHeader,
)
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import Mapping
from zenlake.wire.push import Push, write_push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

LOG_ID = bytes(range(16))
LINK = SourceLink(1, 2, b"\x0a\x0b")
TIME = 1_700_000_000_000_000_000  # Reception time of the first sample, in nanoseconds.


class Made:
    """A partition on the disk."""

    def __init__(self, path: Path, partition: int = 0) -> None:
        self.path, self.partition = path, partition
        self.folder = path / str(partition)
        self.headers: list[list[BlockHeader]] = []
        self.bases: list[int] = []
        self.offset = self.last = self.time = 0
        self.sequence = 0
        self.folder.mkdir(parents=True)
        (path / "log.json").write_text(
            json.dumps({"format": 1, "id": LOG_ID.hex(), "created": TIME})
        )

    def segment(self, blocks: Sequence[OpenBlock], codec: str = "none") -> Path:
        """One more segment."""
        head = SegmentHeader(self.partition, LOG_ID, self.offset, TIME, self.last)
        self.bases.append(self.offset)
        self.headers.append([])
        self.file.write_bytes(head.encode())
        self.append(blocks, codec)
        return self.file

    def append(self, blocks: Sequence[OpenBlock], codec: str = "none") -> None:
        """More blocks to the last segment."""
        with self.file.open("ab") as file:
            for block in blocks:
                number = CODECS.index(codec)
                parts, head = block.encode(LOG_ID, self.partition, self.offset, self.last, number)
                file.write(b"".join(parts))
                self.offset, self.last = head.end, head.crc
                self.time = max(self.time, head.last_time)
                self.headers[-1].append(head)

    @property
    def file(self) -> Path:
        return self.folder / segment_name(self.bases[-1])

    def mark(self, state: int = SETTLED) -> Mark:
        """The mark behind all that is there."""
        self.sequence += 1
        position = SEGMENT_BYTES + sum(head.length for head in self.headers[-1])
        mark = Mark(
            self.sequence, self.offset, self.bases[-1], position, self.time, self.last, state
        )
        file = self.folder / "mark"
        data = bytearray(file.read_bytes() if file.exists() else bytes(128))
        data[mark.place : mark.place + 64] = mark.encode()
        file.write_bytes(data)
        return mark

    def position(self, segment: int, block: int) -> int:
        """Where a block starts in its segment."""
        return SEGMENT_BYTES + sum(head.length for head in self.headers[segment][:block])


def message(push: Push) -> bytes:
    writer = ByteWriter()
    write_push(writer, push)
    return bytes(writer.out)


def put(number: int, key: str = "a/b") -> Push:
    return Push(WireExpr(0, key), Put(b"%d" % number))


def block_of(
    first: int, count: int, *, keys: Sequence[str] = ("a/b",), time: int = TIME, each: int = 1
) -> OpenBlock:
    """Numbered samples; the time of a batch of `each` is that of its first number, in seconds."""
    block = OpenBlock()
    place = block.link(LINK)
    assert place is not None
    for at in range(first, first + count, each):
        numbers = range(at, min(at + each, first + count))
        for number in numbers:
            block.key(place, Mapping.RECEIVER << 16, keys[number % len(keys)].encode(), b"")
        data = b"".join(message(put(number, keys[number % len(keys)])) for number in numbers)
        block.add(place, True, time + at * 10**9, len(numbers), data)
    return block


def loss_block(time: int = TIME, **fields: Any) -> OpenBlock:
    block = OpenBlock()
    block.add_loss(Loss(1, time, b"\x01", **fields))
    return block


def numbered_log(path: Path, *segments: Sequence[int], codec: str = "none") -> Made:
    """Segments of blocks with so many samples each, numbered as their offsets; settled."""
    made = Made(path)
    for sizes in segments:
        blocks, first = [], made.offset
        for size in sizes:
            blocks.append(block_of(first, size))
            first += size
        made.segment(blocks, codec)
    made.mark()
    return made


def row_of(push: Push, key: str, offset: int, *, reliable: bool, time: int) -> dict[str, Any]:
    """Return the row that a reader must produce for a sample."""
    place = {"received_at": time // 1000, "partition": 0, "offset": offset}
    return sample_row(push, key, reliable=reliable) | place


def loss_row(loss: Loss, offset: int, names: Sequence[str]) -> dict[str, Any]:
    said: dict[str, Any] = dict.fromkeys(names)
    said |= {"kind": "loss", "partition": 0, "offset": offset, "received_at": loss.time // 1000}
    said["loss"] = {
        "kind": LOSS_KINDS[loss.kind],
        "id": f"{int.from_bytes(loss.id, 'little'):x}" if loss.id else None,
        "entity": loss.entity,
        "priority": loss.lane & 7,
        "reliable": bool(loss.lane & 8),
        "first": loss.first,
        "last": loss.last,
        "count": None if loss.missing < 0 else loss.missing,
    }
    return said
