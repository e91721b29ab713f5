"""A lake that runs: time from a put to its table, a rate that it keeps up with, its processes.

`zenlake lake run` records and fills all tables while another process sends, on the same cores.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import zenlake
from bench.figures import Figure, Figures
from bench.kafka.lake import KafkaLake
from bench.peer import open_session
from bench.process import Process, process
from zenlake.lake.pipeline.flows import BUILT_IN
from zenlake.lake.project import Project
from zenlake.lake.scaffold import create_project
from zenlake.lake.tables.definitions import LATEST
from zenlake.lake.tables.delta import LOG, OFFSET_APP, DeltaStore
from zenlake.log.read.log import Log

CORES = 2
MEMORY = "4g"
EVERY = "1s"
PUTS = 50
KAFKA_PUTS = 10
RATE = 40_000  # Samples per second that are sent.
SECONDS = 60.0  # Duration of sending.
BATCHES = 100  # Micro-batches in which processes are counted.
WARM_BATCHES = 3
PATIENCE = 300.0
POLL_SECONDS = 0.02
LATENCY_AIM, WORST_AIM, KAFKA_AIM = 1.0, 2.0, 0.2
BATCH_AIM = 0.4
LAG_AIM = 3.0
ROWS_MODULE = "bench.lake_rows"


def running(folder: Path, kafka: KafkaLake | None) -> Figures:
    """Measure `zenlake lake run` with a recorder, and another process that sends."""
    with process("feed", ROWS_MODULE) as feed:
        project = create_project(folder, "bench", [feed.facts["endpoint"]])
        text = (folder / "lake.toml").read_text().replace('mode = "client"', 'mode = "peer"')
        (folder / "lake.toml").write_text(text)
        with (
            lake_run(folder) as lake,
            process("server", "bench.serve", folder=str(folder)) as server,
        ):
            lake.wait_for_batches(WARM_BATCHES, partial(put_one, feed))
            took = yield from latency(project, feed, server.facts["endpoint"])
            yield from processes(lake, feed)
            yield from sustained(project, feed, lake)
    if kafka is not None:
        yield from beside_kafka(kafka, took)


def put_one(feed: Process) -> None:
    feed.ask("put", key="robot/seen", value="first")


def latency(project: Project, feed: Process, endpoint: str) -> Generator[Figure, None, float]:
    """Measure the time from a `put` until it is served, and until it is in `latest`.

    Returns the median of the latter in seconds.
    """
    latest = DeltaStore(project.table(LATEST.name), LATEST)
    table, served = [], []
    with closing(open_session(zenlake, "client", endpoint)) as session:
        for number in range(PUTS):
            sent = feed.ask("put", key="robot/seen", value=str(number))["time"]
            value = str(number).encode()
            served.append(_time_found(value, partial(_served_values, session)) - sent)
            table.append(_time_found(value, partial(_table_values, latest, set())) - sent)
            time.sleep(0.13 * (number % 8))  # Out of step with the micro-batches.
    yield Figure("from put to served", median(served) * 1000, "ms")
    middle: float = median(table)
    name = f"from put to latest on disk, trigger {EVERY}"
    yield Figure(f"{name}, median", middle, "s", at_most=LATENCY_AIM)
    yield Figure(f"{name}, worst of {PUTS}", max(table), "s", at_most=WORST_AIM)
    return middle


def processes(lake: "LakeRun", feed: Process) -> Figures:
    """Count the Python processes that small micro-batches start, and measure the batches."""
    before = lake.started_pythons()
    seen = set(before)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            seen.update(lake.started_pythons())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        seconds = lake.wait_for_batches(BATCHES, partial(put_one, feed))
    finally:
        done.set()
        watcher.join()
    yield Figure("micro-batch of a few rows, median", median(seconds), "s", at_most=BATCH_AIM)
    name = f"Python processes started in {BATCHES} micro-batches"
    yield Figure(name, len(seen - before), "", at_most=0.0)


def sustained(project: Project, feed: Process, lake: "LakeRun") -> Figures:
    """Send at RATE for SECONDS; measure how old a sample is at most when a table has it."""
    first = Log(project.log).mark(0).offset
    feed.begin("send", rate=RATE, seconds=SECONDS)
    sent = feed.answer(SECONDS + PATIENCE)["sent"]
    lake.wait_until_behind_is_zero()
    yield Figure(f"sent at {RATE:,}/s for {SECONDS:.0f} s", sent / SECONDS, "/s")
    oldest = {name: longest_lag(project, name, first) for name in BUILT_IN}
    for name, seconds in oldest.items():
        if seconds is not None:
            name = f"oldest sample when {name} has it"
            yield Figure(name, seconds, "s", at_most=LAG_AIM)
    for kind, size in peak_memory(lake.pid).items():
        yield Figure(f"lake run, peak memory of {kind}", size / (1 << 20), "MiB")


def longest_lag(project: Project, name: str, first: int) -> float | None:
    """Return the longest time from reception to commit of a sample from offset `first` on.

    None for a table that has no rows of them: it records its offsets once per minute.
    """
    log, before, longest = Log(project.log), 0, None
    for path in sorted((project.table(name) / LOG).glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        ends = [a["txn"]["version"] for a in actions if a.get("txn", {}).get("appId") == APP]
        if not ends:
            continue
        if before >= first and any("add" in action for action in actions) and ends[0] > before:
            blocks = log.blocks(0, before, ends[0])
            lag = path.stat().st_mtime - int(blocks["first_time"][0]) / 1e9
            longest = max(lag, longest or 0.0)
        before = ends[0]
    return longest


APP = f"{OFFSET_APP}0"


def beside_kafka(kafka: KafkaLake, took: float) -> Figures:
    """Measure the time from a produce to `latest` by Kafka + Spark + Delta."""
    found = []
    with kafka.live() as query:
        for number in range(KAFKA_PUTS):
            sent = query.put("robot/seen", str(number))
            found.append(_time_found(str(number).encode(), query.latest_values) - sent)
            time.sleep(0.13 * (number % 8))
    middle = median(found)
    yield Figure("from produce to latest, Kafka + Spark + Delta", middle, "s")
    yield Figure("from put to latest, beside Kafka", took / middle, "x", at_most=KAFKA_AIM)


# ---- the process


class LakeRun:
    """`zenlake lake run` as a process, and its events."""

    def __init__(self, run: "subprocess.Popen[str]") -> None:
        self.pid = run.pid
        assert run.stdout is not None
        self._events = (json.loads(line) for line in run.stdout)

    def wait_for_batches(self, count: int, act: Callable[[], object]) -> list[float]:
        """Call `act` before each of `count` micro-batches; return the seconds of each."""
        seconds: list[float] = []
        while len(seconds) < count:
            act()
            event = self._next_cycle()
            if any(flow["taken"] for flow in event["flows"]):
                seconds.append(event["seconds"])
        return seconds

    def wait_until_behind_is_zero(self) -> None:
        while any(flow["behind"] for flow in self._next_cycle()["flows"]):
            pass

    def _next_cycle(self) -> dict[str, Any]:
        for event in self._events:
            assert event["event"] != "failed", event
            if event["event"] == "cycle":
                assert event["ok"], event
                found: dict[str, Any] = event
                return found
        raise RuntimeError("the lake has ended")

    def started_pythons(self) -> set[tuple[int, str]]:
        """Return the Python processes below this one, each with its time of start."""
        return {
            (pid, start) for pid, start, command in descendants(self.pid) if "python" in command
        }


@contextmanager
def lake_run(folder: Path) -> Iterator[LakeRun]:
    """Run `zenlake lake run` until the end of the block."""
    command = [str(Path(sys.executable).with_name("zenlake")), "lake", "run", str(folder)]
    command += ["--json", "--every", EVERY, "--master", f"local[{CORES}]"]
    command += ["--conf", f"spark.driver.memory={MEMORY}"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield LakeRun(run)
    finally:
        run.terminate()
        run.communicate(timeout=PATIENCE)


def descendants(root: int) -> Iterator[tuple[int, str, str]]:
    """Yield id, time of start and command of the processes below `root`."""
    parents: dict[int, list[tuple[int, str, str]]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            stat = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_text().partition("\0")[0]
            parents.setdefault(int(stat[1]), []).append((int(path.name), stat[19], command))
    waiting = [root]
    while waiting:
        for child in parents.get(waiting.pop(), ()):
            waiting.append(child[0])
            yield child


def peak_memory(root: int) -> dict[str, int]:
    """Return the highest resident memory in bytes of driver, JVM and the largest worker."""
    found = {"driver": _peak(root), "JVM": 0, "the largest worker": 0}
    for pid, _, command in descendants(root):
        kind = "JVM" if command.endswith("java") else "the largest worker"
        if kind == "JVM" or "python" in command:
            found[kind] = max(found[kind], _peak(pid))
    return found


def _peak(pid: int) -> int:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return 0


# ---- values


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
