"""Recording beside a plain loop that writes and syncs, and beside eclipse-zenoh that only counts.

The recorder, eclipse-zenoh and their feeds have processes of their own; both feeds are equal and
faster than the measured process. The speed of reading a log is measured here, too.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.api import Receiving, wait_for_all
from bench.figures import Figure, Figures, medians
from bench.process import Process, process

SIZES = (8, 64, 1024)
SECONDS = 1.0
BYTES_AIM, SAMPLES_AIM = 0.7, 5.0
READ_SAMPLES = 2_000_000
MODULE = "bench.log_peer"


class Recording:
    """A recorder, and the process that feeds it."""

    def __init__(self, recorder: Process, feed: Process) -> None:
        self.recorder = recorder
        self.feed = feed
        self.last_bytes = 0.0
        "Durable bytes per second of the last `bytes_beside_plain`."

    def samples(self, size: int) -> float:
        """Return durable samples per second."""
        count, seconds = self._run(size)
        return count / seconds

    def bytes_beside_plain(self, size: int) -> float:
        """Return the speed of recording relative to a plain loop that writes as many bytes."""
        before = self.recorder.ask("arrived", expected=0, stall=0.0)["bytes"]
        _, seconds = self._run(size)
        recorded = self.recorder.ask("arrived", expected=0, stall=0.0)["bytes"] - before
        plain = self.recorder.ask("plain", size=recorded)["seconds"]
        self.last_bytes = recorded / seconds
        return float(plain / seconds)

    def _run(self, size: int) -> tuple[int, float]:
        before = self.recorder.count
        sent = self.feed.ask("feed", size=size, seconds=SECONDS)
        end = wait_for_all(self.recorder, before + sent["sent"])
        return sent["sent"], end - sent["time"]


def figures() -> Figures:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        yield from recording(folder)
        yield from reading(Path(folder))


def recording(folder: str) -> Figures:
    with (
        process("recorder", MODULE, folder=folder) as recorder,
        process("feed", MODULE, endpoint=recorder.facts["endpoint"]) as feed,
        process("session", library="zenoh") as reference,
        process("feed", MODULE, endpoint=reference.facts["endpoint"]) as other_feed,
    ):
        ours, theirs = Recording(recorder, feed), Receiving(reference, other_feed)
        for size in SIZES:
            jobs: dict[str, Callable[[], float]] = {
                "ours": partial(ours.samples, size),
                "theirs": partial(theirs.rate, "callback", size),
                "plain": partial(ours.bytes_beside_plain, size),
            }
            found = medians(jobs)
            yield Figure(f"recording, {size} B", found["ours"], "samples/s")
            yield Figure(f"callback that counts, {size} B, eclipse-zenoh", found["theirs"], "/s")
            ratio = found["ours"] / found["theirs"]
            yield Figure(f"recording, {size} B, beside that", ratio, "x", SAMPLES_AIM)
            yield Figure(f"recording, {size} B, durable", ours.last_bytes / 1e6, "MB/s")
            aim = BYTES_AIM if size != SIZES[0] else None
            yield Figure(
                f"recording, {size} B, bytes beside a plain loop", found["plain"], "x", aim
            )


def reading(folder: Path) -> Figures:
    """Measure reading as record batches, with blocks of a busy and of an idle recorder."""
    from zenlake.log.block import OpenBlock, SourceLink
    from zenlake.log.read.reader import Reader
    from zenlake.log.write.writer import Writer
    from zenlake.wire.cursor import ByteWriter
    from zenlake.wire.enums import Mapping
    from zenlake.wire.network import NETWORK
    from zenlake.wire.push import Push
    from zenlake.wire.put import Put
    from zenlake.wire.wireexpr import WireExpr

    w = ByteWriter()
    NETWORK.write(w, Push(WireExpr(1, mapping=Mapping.SENDER), Put(bytes(64))))
    for per_block, samples in ((10_000, READ_SAMPLES), (5, READ_SAMPLES // 20)):
        path = folder / str(per_block)
        with Writer(path) as writer:
            blocks = []
            for _ in range(samples // per_block):
                block = OpenBlock()
                place = block.link(SourceLink(1, 1, b"\x01"))
                assert place is not None
                block.key(place, 1 << 16 | 1, b"", b"bench/flow")
                block.add(place, True, time.time_ns(), per_block, bytes(w.out) * per_block)
                blocks.append(block)
            writer.write(blocks)

        def read(where: Path = path) -> float:
            start = time.perf_counter()
            rows: int = sum(batch.num_rows for batch in Reader(where, 0).batches())
            return rows / (time.perf_counter() - start)

        rate = medians({"read": read})["read"]
        yield Figure(f"reading, 64 B, blocks of {per_block}", rate, "samples/s")
