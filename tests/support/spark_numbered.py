"""Logs of samples that their sources numbered: (source, number), or None for one without."""

from collections.abc import Sequence
from pathlib import Path

from zenlake.log.block import Loss, OpenBlock, SourceLink
from zenlake.log.write.writer import Writer
from zenlake.wire.cursor import ByteWriter as Bytes
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.push import Push, write_push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

LINK = SourceLink(1, 1, bytes(range(1, 17)))
SECOND = 10**9
START = 1_790_000_000 * SECOND

Sample = tuple[int, int] | None


def block(samples: Sequence[Sample], time: int, loss: Loss | None = None) -> OpenBlock:
    """All received at once; source `n` has the id n + 1 and the entity n % 3."""
    made = OpenBlock()
    link = made.link(LINK)
    assert link is not None
    if loss is not None:
        made.add_loss(loss)
    assert made.key(link, 0, b"a/b", b"")
    for sample in samples:
        source = None
        if sample is not None:
            who, number = sample
            zid = WireZenohId((who + 1).to_bytes(2, "little").rstrip(b"\0"))
            source = WireSourceInfo(WireEntityId(zid, who % 3), number)
        message = Bytes()
        write_push(message, Push(WireExpr(0, "a/b"), Put(b"x", source_info=source)))
        made.add(link, True, time, 1, bytes(message.out))
    return made


def append(
    path: Path,
    samples: Sequence[Sample],
    partition: int = 0,
    *,
    per_block: int = 7,
    at: float = 0,
    step: float = 1,
    rotate: int = 1 << 20,
) -> None:
    """Blocks `step` seconds apart, from `at` seconds after START on."""
    with Writer(path, partition, rotate_bytes=rotate) as writer:
        for place in range(0, len(samples), per_block):
            time = START + int((at + step * (place // per_block)) * SECOND)
            writer.write([block(samples[place : place + per_block], time)])
