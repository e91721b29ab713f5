"""Logs of known rows: sample `n` of partition `p` is on robot/<n % 4>/pose and says "p:n"."""

from collections.abc import Iterable
from pathlib import Path

from zenlake.log.block import Loss, OpenBlock, SourceLink
from zenlake.log.write.writer import Writer
from zenlake.wire.cursor import ByteWriter as Bytes
from zenlake.wire.enums import Mapping
from zenlake.wire.push import Push, write_push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

LINK = SourceLink(1, 1, bytes(range(1, 17)))
KEYS = 4
START = 1_790_000_000_000_000_000  # Time at which sample 0 was received, in nanoseconds.
STEP = 1_000_000  # Nanoseconds between two samples.


def payload(partition: int, offset: int) -> bytes:
    return b"%d:%d" % (partition, offset)


def key(offset: int) -> str:
    return f"robot/{offset % KEYS}/pose"


def block(partition: int, base: int, count: int, loss: Loss | None = None) -> OpenBlock:
    """Samples `base` on, each in a batch of its own; `loss` stands before the first."""
    made = OpenBlock()
    link = made.link(LINK)
    assert link is not None
    if loss is not None:
        made.add_loss(loss)
    for offset in range(base, base + count):
        number = offset % KEYS + 1
        assert made.key(link, 1 << 16 | number, b"", key(offset).encode())
        message = Bytes()
        write_push(
            message,
            Push(WireExpr(number, "", Mapping.SENDER), Put(payload(partition, offset))),
        )
        made.add(link, True, START + offset * STEP, 1, bytes(message.out))
    return made


def append(
    path: Path, count: int, partition: int = 0, per_block: int = 50, rotate: int = 1 << 20
) -> None:
    """`count` samples more."""
    with Writer(path, partition, rotate_bytes=rotate) as writer:
        end = writer.next + count
        while writer.next < end:
            writer.write([block(partition, writer.next, min(per_block, end - writer.next))])


def payloads(partition: int, offsets: Iterable[int]) -> list[bytes]:
    return [payload(partition, offset) for offset in offsets]
