"""Replay at full speed beside an eclipse-zenoh publisher, on the same payloads.

Both sessions listen, and send to the same kind of sink, which only counts.
`python -m bench.replay` prints these figures alone.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import zenlake
from bench.api import BLOCK, OURS, THEIRS, publishing, wait_for_all
from bench.api_peer import FLOW
from bench.figures import Figure, Figures, medians
from bench.peer import open_listening, wait_for_subscriber
from bench.process import Process, process
from zenlake.log.block import OpenBlock, SourceLink
from zenlake.log.read.reader import Reader
from zenlake.log.replay.replayer import Replayer
from zenlake.log.write.writer import Writer
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import Mapping
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

SIZES = (8, 64)
SAMPLES = 2_000_000
FRAME_BYTES = 65_000  # Message bytes per recorded frame.
BLOCK_BYTES = 1 << 20
AIM = 10
ID = 7  # Key id that the recorded publisher declared.


def record(path: Path, size: int) -> int:
    """Write a log as a recorder does: whole frames on a declared key. Return the sample count."""
    w = ByteWriter()
    NETWORK.write(w, Push(WireExpr(ID, "", Mapping.SENDER), Put(bytes(size))))
    each = FRAME_BYTES // len(w.out)
    frame = bytes(w.out) * each
    frames = SAMPLES // each
    with Writer(path) as writer:
        block = OpenBlock()
        for number in range(frames):
            link = block.link(SourceLink(1, 2, b"\x01"))
            assert link is not None
            block.key(link, Mapping.SENDER << 16 | ID, b"", FLOW.encode())
            block.add(link, True, number, each, frame)
            if block.size >= BLOCK_BYTES or number == frames - 1:
                writer.write([block])
                block = OpenBlock()
    return frames * each


@contextmanager
def replaying() -> Iterator[tuple["zenlake.Session", Process]]:
    """Open a session of this process, and a sink that receives its puts."""
    endpoint, session = open_listening(zenlake, "peer")
    with session, process("sink", endpoint=endpoint) as sink:
        with session.declare_publisher(FLOW) as publisher:
            wait_for_subscriber(publisher)
        yield session, sink


def replay_rate(log: Path, session: "zenlake.Session", sink: Process) -> float:
    """Replay a log until all samples have arrived; return samples per second."""
    before = sink.count
    stats = Replayer(log, session, speed=None).run()
    wait_for_all(sink, before + stats.samples)
    return stats.samples / stats.seconds


def read_rate(log: Path) -> float:
    """Read a log without sending; return samples per second."""
    start = time.perf_counter()
    count = sum(int(span.batches["count"].sum()) for span in Reader(log).spans())
    return count / (time.perf_counter() - start)


def figures() -> Figures:
    with (
        tempfile.TemporaryDirectory() as folder,
        replaying() as (session, sink),
        publishing("zenoh") as theirs,
    ):
        for size in SIZES:
            log = Path(folder) / str(size)
            record(log, size)
            rates = medians(
                {
                    OURS: partial(replay_rate, log, session, sink),
                    THEIRS: partial(theirs.rate, "put", size=size, congestion_control=BLOCK),
                    "read": partial(read_rate, log),
                }
            )
            yield Figure(f"spans read, {size} B", rates["read"], "samples/s")
            yield Figure(f"replay, {size} B, {OURS}", rates[OURS], "samples/s")
            yield Figure(f"put, {size} B, {BLOCK}, {THEIRS}", rates[THEIRS], "calls/s")
            ratio = rates[OURS] / rates[THEIRS]
            yield Figure(f"replay, {size} B, beside {THEIRS}'s put", ratio, "x", AIM)


def main() -> int:
    for figure in figures():
        sys.stdout.write(figure.line() + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
