"""A Spark driver that fills the built-in tables of a lake, and may be killed at any moment.

It says "ready" when Spark is up, then waits for a line; it says "done" once everything that was
durable by then is in the tables.
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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from tests.support.processes import call_command, python_environment
from tests.support.spark_driver import JVM, READY_SECONDS, SETTINGS, Driver, Fast
from zenlake.errors import ZError
from zenlake.lake.pipeline.flows import BUILT_IN, Flow
from zenlake.lake.pipeline.progress import TABLES_FLOW
from zenlake.lake.project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zenlake.lake.pipeline.queries import TableQuery

MAX_STARTS = 20  # Starts of one query whose workers are killed.
POLL_SECONDS = 0.02
SETTINGS_FILE = """[lake]
name = "{name}"
log = "../log"
tables = "../{name}"
[samples]
max_rows = {max_rows}
duplicates_within = "1d"  # However long publishers, kills and drivers take.
"""


# ---- in the process, or wherever a Spark is


def fill(spark: "SparkSession", home: Path, name: str, max_rows: int = 1_000_000) -> None:
    """Fill the tables in `home/name` from where the last fill was broken off.

    A query that fails is started again, as `zenlake lake run` does.
    """
    from zenlake.lake.pipeline.queries import TableQuery
    from zenlake.lake.pipeline.runner import prepare_session

    prepare_session(spark)
    project = lake_of(home, name, max_rows)
    query = TableQuery(project, spark, Flow(TABLES_FLOW, BUILT_IN))
    for _ in range(MAX_STARTS):
        reason = _run(query)
        if reason is None:
            return
    raise RuntimeError(f"{MAX_STARTS} starts: {reason}")


def _run(query: "TableQuery") -> str | None:
    """Let the query take all there is; return why it failed."""
    try:
        query.start({"availableNow": True})
        while query.active:
            time.sleep(POLL_SECONDS)
        return query.failure()
    except ZError as error:
        return str(error)
    finally:
        with suppress(ZError):
            query.stop()


def lake_of(home: Path, name: str, max_rows: int = 1_000_000) -> Project:
    """Return the lake whose tables are in `home/name`; it has a state of its own."""
    folder = home / f"lake-{name}"
    folder.mkdir(exist_ok=True)
    (folder / "lake.toml").write_text(SETTINGS_FILE.format(name=name, max_rows=max_rows))
    return Project.load(folder)


def batches(home: Path, name: str) -> int:
    """Count the batches that `samples` has."""
    return len([*(home / name / "samples" / "_delta_log").glob("*.json")])


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
        """Fill the tables `name`, as the function `fill` does."""
        self.expect("ready")
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()

    def until_more(self, name: str, count: int) -> None:
        """Wait for so many more batches, or until all that there was is done."""
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
