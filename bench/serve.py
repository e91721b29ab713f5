"""A lake of ten million rows that answers queries: how soon the first reply comes, how many follow.

The server has a process of its own, and this file is its module: `python -m bench.serve server`.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import zenlake
from bench.api import process
from bench.api_peer import free_port
from bench.figures import Figure, Figures
from bench.session_peer import say
from bench.session_peer import serve as until_closed
from zenlake.lake.project import FILE, Project
from zenlake.lake.serve.server import Server
from zenlake.lake.tables.commit import TableBatch, append_files, fold_latest
from zenlake.lake.tables.definitions import LATEST, SAMPLES, TOMBSTONES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.projections import RowChunk
from zenlake.lake.tables.reduce import conform, keep_newest
from zenlake.lake.tables.schema import SAMPLE

ROWS = 10_000_000
KEYS = 400
HOURS = 10
BATCH_ROWS = 1_000_000  # of one micro-batch, and so of one file
PAYLOAD_BYTES = 64
FIRST = 1_800_000_000  # seconds
ROUNDS = 7
FIRST_REPLY_MS = 100.0
PATIENCE = 60.0
MODULE = "bench.serve"


def figures() -> Figures:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        began = time.perf_counter()
        make(Path(folder))
        yield Figure("rows into tables, without Spark", ROWS / (time.perf_counter() - began), "/s")
        yield from asked(folder)


def asked(folder: str) -> Figures:
    """The figures of a lake that is there."""
    hour = f"_time=[{_text(HOURS - 1)}..]"
    with (
        process("server", MODULE, folder=folder) as server,
        closing(_session(server.facts["endpoint"])) as session,
    ):
        _answers(session, f"robot/{KEYS - 1}/imu")
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
        yield Figure("replies, one key's last hour", median(rates), "/s")
        for name, selector in (
            ("one key's latest value", f"robot/{next(keys)}/imu"),
            ("one key's value at a time", f"robot/7/imu?_time=[..{_text(5)}];_max=1"),
            ("every key's latest value", "robot/*/imu"),
            ("every key's value at a time", f"robot/*/imu?_time=[..{_text(5)}];_max=1"),
        ):
            taken = [list(_replies(session, selector))[-1] * 1000 for _ in range(ROUNDS)]
            yield Figure(name, median(taken), "ms")


def make(folder: Path) -> None:
    """A lake with ROWS samples, all keys in turn, micro-batch by micro-batch."""
    (folder / FILE).write_text('[lake]\nname = "bench"\n')
    project = Project.load(folder)
    samples = DeltaStore(project.table(SAMPLES.name), SAMPLES)
    latest = DeltaStore(project.table(LATEST.name), LATEST)
    tombstones = DeltaStore(project.table(TOMBSTONES.name), TOMBSTONES)
    for number, rows in enumerate(_batches()):
        first = number * BATCH_ROWS
        batch = TableBatch("samples", "bench", number, {0: (first, first + rows.num_rows - 1)})
        table = RowChunk(conform(rows, SAMPLE).to_batches()).unique_samples
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


def _replies(session: zenlake.Session, selector: str) -> Iterator[float]:
    """When each reply came, in seconds from the question on."""
    began = time.perf_counter()
    for reply in session.get(selector, timeout=PATIENCE):
        assert reply.ok is not None, reply.err
        yield time.perf_counter() - began


def _answers(session: zenlake.Session, selector: str) -> None:
    """Returns once there is an answer at all."""
    until = time.monotonic() + PATIENCE
    while not list(_replies(session, selector)):
        assert time.monotonic() < until, "nobody answers"
        time.sleep(0.05)


def _session(endpoint: str) -> zenlake.Session:
    config = zenlake.Config()
    config.insert_json5("connect/endpoints", json.dumps([endpoint]))
    config.insert_json5("mode", '"client"')
    config.insert_json5("scouting/multicast/enabled", "false")
    return zenlake.open(config)


def server(folder: str) -> None:
    """Answers for the lake in a folder, until it is told to end."""
    endpoint = f"tcp/127.0.0.1:{free_port()}"
    config = zenlake.Config()
    config.insert_json5("listen/endpoints", json.dumps([endpoint]))
    config.insert_json5("scouting/multicast/enabled", "false")
    with zenlake.open(config) as session, Server(session, Project.load(folder), ("robot/**",)):
        say(endpoint=endpoint)
        until_closed({})


if __name__ == "__main__":
    {"server": server}[sys.argv[1]](**json.loads(sys.argv[2]))
