"""Each row once, though driver or executor are killed in mid-stream.

Few kills by default, since each driver is a JVM: ZENLAKE_FULL=1 has 100 of drivers.
"""

import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import spark_log
from tests.support.spark_driver import Driver, Fast, batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

DRIVER_KILLS = 100 if os.environ.get("ZENLAKE_FULL") else 5
EXECUTOR_KILLS = 3
PER_BATCH = 20
MOMENTS = 0.4  # Seconds: longer than a micro-batch, so that a kill hits any part of one.
WAIT_SECONDS = 120.0
STANDBY = 2  # Drivers that are up or coming up.
CLUSTER = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.task.maxFailures": "100",
    "spark.deploy.maxExecutorRetries": "-1",
}


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Fast:
    return Fast(tmp_path_factory.mktemp("fast") / "first")


def rows(spark: "SparkSession", out: Path) -> list[tuple[int, int]]:
    """Return the rows that the sink has committed: in files that its own log names."""
    frame = spark.read.schema("partition int, offset bigint, payload binary").parquet(str(out))
    found = frame.collect()
    for row in found:
        assert bytes(row.payload) == spark_log.payload(row.partition, row.offset)
    return sorted((row.partition, row.offset) for row in found)


def finish(spark: "SparkSession", folder: Path) -> None:
    """Process the rest in a Spark that is not killed, with another limit and other tasks."""
    stream = spark.readStream.format("zenoh").options(path=str(folder / "log"), minPartitions="2")
    writing = stream.load().writeStream.format("parquet").option("path", str(folder / "out"))
    writing = writing.option("checkpointLocation", str(folder / "checkpoint"))
    query = writing.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(WAIT_SECONDS))
    finally:
        query.stop()


@pytest.mark.timeout(7200 if DRIVER_KILLS > 5 else 600)
def test_a_driver_killed_in_mid_stream(spark: "SparkSession", fast: Fast, tmp_path: Path) -> None:
    """The next driver starts its JVM while the last one still works: only that makes ten cheap."""
    chance = random.Random(20)
    count = DRIVER_KILLS * PER_BATCH * 20
    spark_log.append(tmp_path / "log", count, rotate=1 << 16)
    drivers = [Driver(tmp_path, fast) for _ in range(STANDBY)]
    try:
        for kill in range(DRIVER_KILLS):
            before = batches(tmp_path)
            drivers[0].go(maxRowsPerTrigger=PER_BATCH)
            if kill < DRIVER_KILLS - STANDBY:
                drivers.append(Driver(tmp_path, fast))
            drivers[0].until_planned(before + 2)
            time.sleep(chance.uniform(0, MOMENTS))
            drivers.pop(0).kill()
    finally:
        for driver in drivers:
            driver.close()
    assert batches(tmp_path) < count // PER_BATCH, "the kills came too late"
    finish(spark, tmp_path)
    assert rows(spark, tmp_path / "out") == [(0, offset) for offset in range(count)]


@pytest.mark.timeout(600)
def test_an_executor_killed_in_mid_stream(
    spark: "SparkSession", fast: Fast, tmp_path: Path
) -> None:
    """Its tasks run again elsewhere; what they had written is not counted twice."""
    chance = random.Random(5)
    count = 10_000
    spark_log.append(tmp_path / "log", count, rotate=1 << 16)
    driver = Driver(tmp_path, fast, "local-cluster[2,1,512]", **CLUSTER)
    killed: set[int] = set()
    try:
        driver.go(maxRowsPerTrigger=PER_BATCH, minPartitions=2)
        driver.until_planned(1)
        for _ in range(EXECUTOR_KILLS):
            victim = _executor(driver, killed)
            time.sleep(chance.uniform(0, MOMENTS))
            killed.add(victim)
            os.kill(victim, signal.SIGKILL)
            driver.until_planned(batches(tmp_path) + 2)
        driver.kill()
    finally:
        driver.close()
    assert batches(tmp_path) < count // PER_BATCH, "the kills came too late"
    finish(spark, tmp_path)
    assert rows(spark, tmp_path / "out") == [(0, offset) for offset in range(count)]


def _executor(driver: Driver, killed: set[int]) -> int:
    """One that lives; where there is none, one that is coming."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        found = set(driver.descendants("CoarseGrainedExecutorBackend")) - killed
        if found:
            return min(found)
        time.sleep(0.1)
    raise AssertionError("no executor in time")
