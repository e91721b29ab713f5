"""A Spark driver to be killed: streams a log into Parquet until it has all that it was told to.

It says "ready" when Spark is up, then waits for a line; it says "done" at the end. `Driver` starts
it, with as little start-up as Spark can do with, and kills it.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyspark

from tests.support import spark_log
from tests.support.processes import module_command, python_environment

READY_SECONDS = 180.0
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.minBatchesToRetain": "1000",
}


class Fast:
    """Settings that make a start cheap: 11 instead of 23 seconds of processor time.

    Classes come from an archive that a first run left; workers import PySpark as it is installed,
    compiled, and not from the archive of sources that Spark prefers.
    """

    def __init__(self, folder: Path) -> None:
        self.home, self._classes = folder / "home", folder / "classes.jsa"
        self.home.mkdir(parents=True)
        for name in ("bin", "jars", "sbin"):
            (self.home / name).symlink_to(Path(pyspark.__file__).parent / name)
        self.jvm = f"{JVM} -XX:ArchiveClassesAtExit={self._classes}"
        spark_log.append(folder / "log", 20)
        first = Driver(folder, self)
        try:
            first.go(maxRowsPerTrigger=10)
            first.expect("done")
            first.finish(self._classes)
        finally:
            first.close()
        self.jvm = f"{JVM} -XX:SharedArchiveFile={self._classes}"


class Driver:
    """The process, with its JVM and its workers."""

    def __init__(self, folder: Path, fast: Fast, master: str = "local[1]", **settings: str) -> None:
        self._folder = folder
        own = {"spark.driver.extraJavaOptions": fast.jvm}
        told = json.dumps([str(folder), master, SETTINGS | own | settings])
        self._said = (folder / f"driver-{time.monotonic_ns()}.txt").open("w+")
        self._process = subprocess.Popen(
            module_command("tests.support.spark_driver", told),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=python_environment(SPARK_HOME=str(fast.home)),
        )

    def go(self, **options: Any) -> None:
        """Start the query, once Spark is up."""
        self.expect("ready")
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({k: str(v) for k, v in options.items()}) + "\n")
        self._process.stdin.flush()

    def expect(self, word: str) -> None:
        out = self._process.stdout
        assert out is not None
        readable, _, _ = select.select([out], [], [], READY_SECONDS)
        said = out.readline().strip() if readable else "nothing"
        assert said == word, f"the driver said {said!r}, not {word!r}: {self._errors()}"

    def until_planned(self, count: int) -> None:
        """Until so many batches were planned."""
        end = time.monotonic() + READY_SECONDS
        while batches(self._folder) < count:
            assert self._process.poll() is None, f"the driver ended: {self._errors()}"
            assert time.monotonic() < end, f"no batch {count} in time: {self._errors()}"
            time.sleep(0.01)

    def _errors(self) -> str:
        self._said.seek(0)
        return self._said.read()[-5000:]

    def finish(self, left: Path) -> None:
        """End in order; `left` is what the JVM leaves."""
        jvms = self.descendants("org.apache.spark.deploy.SparkSubmit")
        self._process.communicate(timeout=READY_SECONDS)
        end = time.monotonic() + READY_SECONDS
        while any(Path(f"/proc/{pid}/cmdline").exists() for pid in jvms):
            assert time.monotonic() < end, "the JVM does not end"
            time.sleep(0.05)
        assert left.exists()

    def descendants(self, name: str) -> list[int]:
        """Processes below it whose command line has `name`."""
        found, waiting = [], [self._process.pid]
        while waiting:
            pid = waiting.pop()
            try:
                tasks = list(Path(f"/proc/{pid}/task").iterdir())
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                for task in tasks:
                    waiting += map(int, (task / "children").read_text().split())
            except OSError:  # it ended meanwhile
                continue
            if name in line:
                found.append(pid)
        return found

    def kill(self) -> None:
        """The JVM and the Python that drives it, at once. Workers see that and end."""
        for pid in [*self.descendants("org.apache.spark"), self._process.pid]:
            os.kill(pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        for pid in self.descendants("org.apache.spark"):
            os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            if pipe is not None:
                pipe.close()


def batches(folder: Path) -> int:
    """How many were planned so far."""
    planned = folder / "checkpoint" / "offsets"
    return max((int(file.name) + 1 for file in planned.glob("[0-9]*")), default=0)


def main(folder: str, master: str, settings: dict[str, str]) -> None:
    import zenlake.spark

    spark = zenlake.spark.session("killed", master, **settings)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    options = json.loads(sys.stdin.readline())
    stream = spark.readStream.format("zenoh").options(path=f"{folder}/log", **options).load()
    writing = stream.writeStream.format("parquet").option("path", f"{folder}/out")
    writing = writing.option("checkpointLocation", f"{folder}/checkpoint")
    writing.trigger(availableNow=True).start().awaitTermination()
    sys.stdout.write("done\n")
    sys.stdout.flush()
    sys.stdin.readline()  # until it is killed: Spark's own way to end takes longer


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
