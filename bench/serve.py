"""A lake of ten million rows that answers queries: time to the first reply, and replies per second.

This file is also the server's process: `python -m bench.serve server ARGUMENTS`, as JSON.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import zenoh

import zenlake
from bench.figures import Figure, Figures
from bench.peer import open_listening, open_session, report, run_role, wait_until
from bench.peer import serve as serve_commands
from bench.process import PATIENCE, process
from zenlake.lake.project import FILE, Project
from zenlake.lake.serve.server import Server
from zenlake.lake.tables.commit import TableBatch, append_files, fold_latest
from zenlake.lake.tables.definitions import LATEST, SAMPLES, TOMBSTONES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.projections import RowChunk
from zenlake.lake.tables.reduce import conform, keep_newest
from zenlake.lake.tables.schema import SAMPLE
from zenlake.runtime import kernel_loader

ROWS = 10_000_000
KEYS = 400
HOURS = 10
BATCH_ROWS = 1_000_000  # Rows per micro-batch, and so per file.
PAYLOAD_BYTES = 64
FIRST = 1_800_000_000  # Unix time of the first sample.
ROUNDS = 7
LONG_ROUNDS = 3
FIRST_REPLY_MS = 100.0
REPLIES = 50_000  # Replies per second to reach.
MODULE = "bench.serve"


def figures() -> Figures:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        began = time.perf_counter()
        fill(Path(folder))
        yield Figure("rows into tables, without Spark", ROWS / (time.perf_counter() - began), "/s")
        yield from ask(folder)


def ask(folder: str) -> Figures:
    """Measure the replies of the lake in `folder`."""
    hour = f"_time=[{_text(HOURS - 1)}..]"
    with (
        process("server", MODULE, folder=folder) as server,
        closing(open_session(zenlake, "client", server.facts["endpoint"])) as session,
    ):
        last_key = f"robot/{KEYS - 1}/imu"
        wait_until(lambda: bool(list(_replies(session, last_key))), "an answer", PATIENCE)
        kernel_loader.load()  # As the first long answer does, in the background.
        keys = iter(range(KEYS))
        first, rates = [], []
        for _ in range(ROUNDS):
            selector = f"robot/{next(keys)}/imu?{hour}"
            times = list(_replies(session, selector))
            assert len(times) == ROWS // KEYS // HOURS, len(times)
            first.append(times[0] * 1000)
            rates.append(len(times) / times[-1])
        name = "first reply, one key's last hour"
        yield Figure(name, median(first), "ms", at_most=FIRST_REPLY_MS)
        yield Figure("replies, one key's last hour", median(rates), "/s", at_least=REPLIES)
        for name, selector in (
            ("one key's latest value", f"robot/{next(keys)}/imu"),
            ("one key's value at a time", f"robot/7/imu?_time=[..{_text(5)}];_max=1"),
            ("every key's latest value", "robot/*/imu"),
            ("every key's value at a time", f"robot/*/imu?_time=[..{_text(5)}];_max=1"),
        ):
            taken = [list(_replies(session, selector))[-1] * 1000 for _ in range(ROUNDS)]
            yield Figure(name, median(taken), "ms")
        yield Figure("replies, all of one key", _long_rate(session, keys), "/s")
        with closing(open_session(zenoh, "client", server.facts["endpoint"])) as other:
            rate = _long_rate(other, keys)
            yield Figure("replies, all of one key, to eclipse-zenoh", rate, "/s")


def _long_rate(session: Any, keys: Iterator[int]) -> float:
    """Return the replies per second of answers with all samples of a key."""
    rates = []
    for _ in range(LONG_ROUNDS):
        times = list(_replies(session, f"robot/{next(keys)}/imu?_time=[..]"))
        assert len(times) == ROWS // KEYS, len(times)
        rates.append(len(times) / times[-1])
    return median(rates)


def fill(folder: Path) -> None:
    """Make a lake with ROWS samples, all keys in turn, in micro-batches."""
    (folder / FILE).write_text('[lake]\nname = "bench"\n')
    project = Project.load(folder)
    samples = DeltaStore(project.table(SAMPLES.name), SAMPLES)
    latest = DeltaStore(project.table(LATEST.name), LATEST)
    tombstones = DeltaStore(project.table(TOMBSTONES.name), TOMBSTONES)
    for number, rows in enumerate(_batches()):
        first = number * BATCH_ROWS
        batch = TableBatch("samples", "bench", number, {0: (first, first + rows.num_rows - 1)})
        table = RowChunk(conform(rows, SAMPLE)).unique_samples
        append_files(samples, samples.write(table), batch)
        fold_latest(latest, tombstones, keep_newest(table), batch)


def _batches() -> Iterator[pa.Table]:
    keys = pa.array([f"robot/{number}/imu" for number in range(KEYS)])
    for first in range(0, ROWS, BATCH_ROWS):
        offsets = np.arange(first, min(first + BATCH_ROWS, ROWS), dtype=np.int64)
        n = len(offsets)
        micros = FIRST * 1_000_000 + offsets * (HOURS * 3_600_000_000) // ROWS
        ntp64 = (micros // 1_000_000 << 32) + ((micros % 1_000_000 << 32) // 1_000_000)
        bodies = np.random.default_rng(first).integers(0, 255, n * PAYLOAD_BYTES, np.uint8)
        ends = np.arange(0, (n + 1) * PAYLOAD_BYTES, PAYLOAD_BYTES, dtype=np.int32)
        payload = pa.Array.from_buffers(
            pa.binary(), n, [None, pa.py_buffer(ends), pa.py_buffer(bodies)]
        )
        stamp = pa.StructArray.from_arrays(
            [pa.array(ntp64.astype(np.uint64)), pa.array(["5a"]).take(pa.array(np.zeros(n, int)))],
            ["time", "id"],
        )
        yield pa.table(
            {
                "key": pa.DictionaryArray.from_arrays((offsets % KEYS).astype(np.int32), keys),
                "kind": pa.array(["put"]).take(pa.array(np.zeros(n, int))),
                "payload": payload,
                "encoding": pa.array(["zenoh/bytes"]).take(pa.array(np.zeros(n, int))),
                "timestamp": stamp,
                "received_at": pa.array(micros, pa.timestamp("us", "UTC")),
                "partition": pa.array(np.zeros(n, np.int32)),
                "offset": pa.array(offsets),
            }
        )


def _text(hours: float) -> str:
    when = time.gmtime(FIRST + hours * 3600)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", when)


def _replies(session: Any, selector: str) -> Iterator[float]:
    """Yield for each reply the seconds since the query was sent."""
    began = time.perf_counter()
    for reply in session.get(selector, timeout=PATIENCE):
        assert reply.ok is not None, reply.err
        yield time.perf_counter() - began


def server(folder: str) -> None:
    """Answer for the lake in `folder` until the input ends."""
    endpoint, session = open_listening(zenlake, "peer")
    with session, Server(session, Project.load(folder), ("robot/**",)):
        report(endpoint=endpoint)
        serve_commands({})


if __name__ == "__main__":
    run_role({"server": server})
