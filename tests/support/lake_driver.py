"""A Spark driver that fills the tables of a lake by three flows, and may be killed at any moment.

It says "ready" when Spark is up, then waits for a line; it says "done" once everything that was
durable by then is in the tables. A query that fails is started again: so does `zenlake lake run`.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from tests.support.processes import call_command, python_environment
from tests.support.spark_driver import JVM, READY_SECONDS, SETTINGS, Driver, Fast
from zenlake.lake.pipeline import messages
from zenlake.lake.project import Project

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_STARTS = 20  # Starts of one query whose workers are killed.
FLOWS = {
    "samples": ("samples,latest,health", {"duplicates": "mark"}),
    "loss": ("loss", {"includeLoss": "only"}),
    "messages": ("messages,messages_failed", {"duplicates": "drop"}),
}
"By name: into which tables, and how the log is read."


# ---- in the process, or wherever a Spark is


def fill(spark: "SparkSession", home: Path, name: str, **options: Any) -> None:
    """The tables in `home/name`, by all flows at once, from where the last fill was broken off."""
    waiting = {flow: (_started(spark, home, name, flow, options), 1) for flow in FLOWS}
    try:
        while waiting:
            for flow, (query, starts) in list(waiting.items()):
                if query.isActive:
                    continue
                error = query.exception()
                if error is None:
                    del waiting[flow]
                elif starts == MAX_STARTS:
                    raise error
                else:
                    waiting[flow] = _started(spark, home, name, flow, options), starts + 1
            time.sleep(0.02)
    finally:
        for query, _ in waiting.values():
            query.stop()


def _started(
    spark: "SparkSession", home: Path, name: str, flow: str, options: dict[str, Any]
) -> Any:
    into, reading = FLOWS[flow]
    given = {"path": home / "log", **reading, **options}
    texts = {option: str(value) for option, value in given.items()}
    rows: DataFrame = spark.readStream.format("zenoh").options(**texts).load()
    if flow == "messages":
        rows = messages.decode_samples(rows, Project.load(home))
    sink = rows.writeStream.format("zenoh-lake").option("path", str(home / name))
    sink = sink.option("into", into).option("flow", flow)
    sink = sink.option("checkpointLocation", str(_state(home, name) / flow))
    return sink.trigger(availableNow=True).start()


def _state(home: Path, name: str) -> Path:
    return home / f"state-{name}"


def batches(home: Path, name: str) -> int:
    """How many were planned so far, by all flows."""
    return sum(
        max((int(file.name) + 1 for file in offsets.glob("[0-9]*")), default=0)
        for offsets in _state(home, name).glob("*/offsets")
    )


def main(home: str, master: str, settings: dict[str, str]) -> None:
    import zenlake.spark

    spark = zenlake.spark.session("lake", master, **settings)
    _say("ready")
    told = json.loads(sys.stdin.readline())
    fill(spark, Path(home), **told)
    _say("done")
    sys.stdin.readline()  # until it is killed: Spark's own way to end takes longer


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


# ---- seen from the test


class Quick(Fast):
    """Cheap starts, from what the first of all drivers leaves when it ends: see `learn`."""

    def __init__(self, folder: Path) -> None:
        self.home, self._classes = folder / "home", folder / "classes.jsa"
        self.home.mkdir(parents=True)
        for name in ("bin", "jars", "sbin"):
            (self.home / name).symlink_to(Path(pyspark.__file__).parent / name)
        self.jvm = f"{JVM} -XX:ArchiveClassesAtExit={self._classes}"

    def learn(self, home: Path, **options: Any) -> None:
        """Fill tables once, and end in order."""
        first = LakeDriver(home, self)
        try:
            first.go(**options)
            first.expect("done")
            first.finish(self._classes)
        finally:
            first.close()
        self.jvm = f"{JVM} -XX:SharedArchiveFile={self._classes}"


class LakeDriver(Driver):
    """The process, with its JVM and its workers. `local[2,4]`: a task is tried four times."""

    def __init__(self, home: Path, fast: Fast, master: str = "local[2,4]", **settings: str) -> None:
        self._folder = home
        own = {"spark.driver.extraJavaOptions": fast.jvm}
        told = [str(home), master, SETTINGS | own | settings]
        self._said = (home / f"driver-{time.monotonic_ns()}.txt").open("w+")
        self._process = subprocess.Popen(
            call_command("tests.support.lake_driver", "main", *told),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=python_environment(SPARK_HOME=str(fast.home)),
        )

    def go(self, **options: Any) -> None:
        """Fill the tables `name`; the rest is for the source."""
        self.expect("ready")
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()

    def until_more(self, name: str, count: int) -> None:
        """Until so many more batches were planned, or all that there was is done."""
        count += batches(self._folder, name)
        end = time.monotonic() + READY_SECONDS
        while batches(self._folder, name) < count and not self.is_done():
            assert self._process.poll() is None, f"the driver ended: {self._errors()}"
            assert time.monotonic() < end, f"no batch {count} in time: {self._errors()}"
            time.sleep(0.01)

    def is_done(self) -> bool:
        """Whether it has said so, or anything."""
        out = self._process.stdout
        assert out is not None
        return bool(select.select([out], [], [], 0)[0])

    def kill_worker(self, chance: random.Random) -> bool:
        """One of the processes in which Python runs for Spark, whatever it does; False: none."""
        found = [*self._workers()]
        if not found:
            return False
        os.kill(chance.choice(found), signal.SIGKILL)
        return True

    def _workers(self) -> Iterator[int]:
        for part in ("pyspark.daemon", "pyspark/daemon", "pyspark.sql", "pyspark.worker"):
            yield from self.descendants(part)
