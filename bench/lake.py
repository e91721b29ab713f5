"""A lake: from the log to all tables, beside a Spark job written by hand; the cost of an update of
`latest`; the time from a `put` to its table; the samples per second that two cores keep up with.

ZENLAKE_FULL=1 measures with ten times the rows.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import zenlake.spark
from bench import lake_plain
from bench.figures import Figure, Figures, median_seconds
from bench.lake_rows import write_log
from bench.peer import open_session
from bench.process import Process, process
from zenlake.lake.pipeline import flows
from zenlake.lake.pipeline.spark_connect import spark_home
from zenlake.lake.project import Project
from zenlake.lake.scaffold import create_project
from zenlake.lake.tables import schema
from zenlake.lake.tables.commit import TableBatch, fold_latest
from zenlake.lake.tables.definitions import LATEST, TABLES, TOMBSTONES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.projections import RowChunk
from zenlake.lake.tables.reduce import conform, keep_newest

FULL = bool(os.environ.get("ZENLAKE_FULL"))
ROWS = 10_000_000 if FULL else 1_000_000
ROUNDS = 3
CORES = 2
MEMORY = "4g"
ALL_TABLES_AIM = 0.7
ROOT = Path(__file__).parents[1]

CHANGED = 1_000  # Keys per update.
LIVE = 10_000  # Keys in the table.
UPDATES = 5  # Updates in the shortest history.
TIMES = (1, 10, 100)
REPEATS = 9  # Updates that are measured.
UPDATE_AIM = 2.0  # Most that a history of a hundred times the length may cost in comparison.

EVERY = "1s"
PUTS = 10
RATE = 100_000  # Samples per second that are sent.
SECONDS = 30.0  # Duration of sending.
PATIENCE = 300.0
ROWS_MODULE = "bench.lake_rows"


def figures() -> Figures:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        yield from updates(folder / "updates")
        yield from all_tables(folder / "all")
        yield from running(folder / "running")


# ---- from the log to all tables


def all_tables(folder: Path) -> Figures:
    project = create_project(folder / "lake", "bench")
    write_log(project.log, ROWS)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )
    settings = {"spark.ui.enabled": "false", "spark.driver.memory": MEMORY}
    settings |= {
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(CORES),
    }
    home = folder / "home"
    home.mkdir()
    with spark_home(home, "local"):  # As `zenlake lake run` does.
        spark = zenlake.spark.session("bench", f"local[{CORES}]", **settings)
    try:
        yield from beside_plain(spark, project, folder)
    finally:
        spark.stop()


def beside_plain(spark: SparkSession, project: Project, folder: Path) -> Figures:
    """Measure both ways from start to end, with the start of queries and the commits."""
    rows, plain = folder / "rows", folder / "plain"
    logged = spark.read.format("zenoh").option("minPartitions", CORES).load(str(project.log))
    logged.write.mode("overwrite").parquet(str(rows))
    took = median_seconds(
        {
            "lake": lambda: fill(spark, project, folder / "checkpoints"),
            "plain": lambda: lake_plain.make(spark, rows, plain),
        },
        ROUNDS,
    )
    compare(spark, project, plain)
    million = ROWS / 1e6
    yield Figure("log to all tables", million / took["lake"], "M samples/s")
    yield Figure("Parquet to such tables, by hand", million / took["plain"], "M samples/s")
    ratio = took["plain"] / took["lake"]
    yield Figure("log to all tables, beside by hand", ratio, "x", ALL_TABLES_AIM)


FLOWS: dict[str, tuple[str, Callable[[SparkSession], DataFrame]]] = {
    "samples": ("samples,latest,health", lambda spark: flows.stream(spark, duplicates="mark")),
    "loss": ("loss", lambda spark: flows.stream(spark, includeLoss="only")),
    "messages": (
        "messages,messages_failed",
        lambda spark: flows.decoded(flows.stream(spark, duplicates="drop")),
    ),
}
"The flows that a new lake declares, as queries of one session: target tables, and rows."


def fill(spark: SparkSession, project: Project, checkpoints: Path, *names: str) -> None:
    """Write the whole log into empty tables, by all flows at once."""
    shutil.rmtree(project.tables, ignore_errors=True)
    shutil.rmtree(checkpoints, ignore_errors=True)
    shutil.rmtree(project.log / "spark", ignore_errors=True)
    with chdir(project.home):
        queries = [
            FLOWS[name][1](spark)
            .writeStream.format("zenoh-lake")
            .options(path=str(project.tables), into=FLOWS[name][0], flow=name)
            .option("checkpointLocation", str(checkpoints / name))
            .trigger(availableNow=True)
            .start()
            for name in names or FLOWS
        ]
    for query in queries:
        query.awaitTermination()


def compare(spark: SparkSession, project: Project, plain: Path) -> None:
    """Assert that both ways have made equally many rows of each table."""
    for name in ("samples", "latest", "health", "messages"):
        ours = DeltaStore(project.table(name), TABLES[name]).snapshot().rows
        theirs = spark.read.parquet(str(plain / name)).count()
        assert ours == theirs > 0, f"{name}: {ours} rows, and by hand {theirs}"


# ---- an update of `latest`


def updates(folder: Path) -> Figures:
    """Measure updates of CHANGED keys, by length of the history and by number of keys."""
    took = {}
    for times in TIMES:
        tables = LatestTable(folder / f"history{times}", LIVE)
        for _ in range(UPDATES * times):
            tables.update()
        took[times] = tables.milliseconds()
        yield Figure(f"update of latest, history x{times}", took[times], "ms")
    ratio = took[TIMES[-1]] / took[TIMES[0]]
    name = f"update of latest, history x{TIMES[-1]} beside x1"
    yield Figure(name, ratio, "x", at_most=UPDATE_AIM)
    for times in TIMES:
        tables = LatestTable(folder / f"keys{times}", LIVE * times)
        took[times] = tables.milliseconds()
        yield Figure(f"update of latest, {LIVE * times:,} keys, all over", took[times], "ms")
        near = tables.milliseconds(near=True)
        yield Figure(f"update of latest, {LIVE * times:,} keys, neighbours", near, "ms")


class LatestTable:
    """A table `latest` with `keys` keys, and updates of CHANGED of them."""

    def __init__(self, folder: Path, keys: int) -> None:
        self._latest = DeltaStore(folder / LATEST.name, LATEST)
        self._tombstones = DeltaStore(folder / TOMBSTONES.name, TOMBSTONES)
        self._random = np.random.default_rng(1)
        self._keys = keys
        self._next = 0
        self._number = 0
        self._fold(np.arange(keys))

    def update(self, near: bool = False) -> float:
        """Update CHANGED keys, neighbours if `near`, and return the milliseconds."""
        if near:
            first = int(self._random.integers(0, self._keys - CHANGED + 1))
            keys = np.arange(first, first + CHANGED)
        else:
            keys = self._random.choice(self._keys, CHANGED, replace=False)
        return self._fold(keys)

    def milliseconds(self, near: bool = False) -> float:
        return median(self.update(near) for _ in range(REPEATS))

    def _fold(self, keys: "np.ndarray[Any, np.dtype[np.int64]]") -> float:
        n = len(keys)
        offsets = np.arange(self._next, self._next + n)
        rows = pa.table(
            {
                "key": pa.array([f"fleet/robot/{key:07}/pose" for key in keys.tolist()]),
                "kind": ["put"] * n,
                "payload": pa.array([b"%064d" % offset for offset in offsets.tolist()]),
                "encoding": ["zenoh/bytes"] * n,
                "received_at": pa.array(1_800_000_000_000_000 + offsets, schema.TIME),
                "partition": pa.array(np.zeros(n, np.int32)),
                "offset": pa.array(offsets),
            }
        )
        batch = TableBatch("bench", "bench", self._number, {0: (self._next, self._next + n - 1)})
        self._next += n
        self._number += 1
        reduced = keep_newest(RowChunk(conform(rows, schema.SAMPLE).to_batches()).unique_samples)
        before = time.perf_counter()
        assert fold_latest(self._latest, self._tombstones, reduced, batch)
        return (time.perf_counter() - before) * 1000


# ---- a lake that runs


def running(folder: Path) -> Figures:
    """Measure `zenlake lake run` with a recorder, and another process that sends."""
    with process("feed", ROWS_MODULE) as feed:
        project = create_project(folder, "bench", [feed.facts["endpoint"]])
        text = (folder / "lake.toml").read_text().replace('mode = "client"', 'mode = "peer"')
        (folder / "lake.toml").write_text(text)
        with (
            lake_run(folder) as events,
            process("server", "bench.serve", folder=str(folder)) as server,
        ):
            _wait_for_event(events, "cycle", lambda _: _has_latest(project, feed))
            yield from latency(project, feed, server.facts["endpoint"])
            yield from throughput(feed, events)


def latency(project: Project, feed: Process, endpoint: str) -> Figures:
    """Measure the time from a `put` until it is served, and until it is in `latest`."""
    latest = DeltaStore(project.table(LATEST.name), LATEST)
    table, served = [], []
    with closing(open_session(zenlake, "client", endpoint)) as session:
        for number in range(PUTS):
            sent = feed.ask("put", key="robot/seen", value=str(number))["time"]
            value = str(number).encode()
            served.append(_time_found(value, partial(_served_values, session)) - sent)
            table.append(_time_found(value, partial(_table_values, latest, set())) - sent)
            time.sleep(0.1 * number)  # Out of step with the cycles.
    yield Figure("from put to served", median(served) * 1000, "ms")
    yield Figure(f"from put to latest, a cycle every {EVERY}", median(table) * 1000, "ms")


def throughput(feed: Process, events: Iterator[dict[str, Any]]) -> Figures:
    """Send at RATE for SECONDS; measure until all samples are in all tables."""
    start = time.time()
    feed.begin("send", rate=RATE, seconds=SECONDS)
    sent = feed.answer()["sent"]
    ended = time.time()
    cycles = 0
    for event in events:
        assert event["event"] != "failed", event
        if event["event"] == "cycle" and event["time"] > start:
            cycles += 1
            if event["time"] > ended and not any(flow["behind"] for flow in event["flows"]):
                break
    yield Figure(f"sent at {RATE:,}/s, recorded, in all tables", sent / (time.time() - start), "/s")
    yield Figure("cycles that it took", cycles, "")
    yield Figure("the last of them in tables after", time.time() - ended, "s")


@contextmanager
def lake_run(folder: Path) -> Iterator[Iterator[dict[str, Any]]]:
    """Run `zenlake lake run` and yield its events."""
    command = [str(Path(sys.executable).with_name("zenlake")), "lake", "run", str(folder)]
    command += ["--json", "--every", EVERY, "--master", f"local[{CORES}]"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    try:
        yield (json.loads(line) for line in run.stdout)
    finally:
        run.terminate()
        run.communicate(timeout=PATIENCE)


def _has_latest(project: Project, feed: Process) -> bool:
    """Put one more value, and return whether the table `latest` exists."""
    feed.ask("put", key="robot/seen", value="first")
    return project.table(LATEST.name).exists()


def _wait_for_event(
    events: Iterator[dict[str, Any]], name: str, enough: Callable[[dict[str, Any]], bool]
) -> None:
    for event in events:
        assert event["event"] != "failed", event
        if event["event"] == name and enough(event):
            return
    raise RuntimeError("the lake has ended")


def _served_values(session: zenlake.Session) -> list[bytes]:
    return [
        reply.ok.payload.to_bytes()
        for reply in session.get("robot/seen", timeout=PATIENCE)
        if reply.ok is not None
    ]


def _table_values(latest: DeltaStore, seen: set[int]) -> list[bytes]:
    """Return the payloads if the table has changed; else nothing, so that polling costs little."""
    version = latest.snapshot().version
    if version in seen:
        return []
    seen.add(version)
    found: list[bytes] = latest.read(None, ["payload"])["payload"].to_pylist()
    return found


def _time_found(value: bytes, look: Callable[[], list[bytes]]) -> float:
    until = time.monotonic() + PATIENCE
    while value not in look():
        assert time.monotonic() < until, f"{value!r} was not found"
        time.sleep(0.01)
    return time.time()
