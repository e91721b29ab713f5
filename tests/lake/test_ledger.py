"""The tables of a lake against the publishers' own accounts, though everything is killed.

Recorders, drivers and Python workers die by SIGKILL at random moments, and commits break off at
any step. Few kills by default, since each driver is a JVM: ZENLAKE_FULL=1 has 25 of drivers.
"""

import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.crash_steps import Place, Steps, breaks_off
from tests.support.lake_account import Account, same_rows
from tests.support.lake_driver import LakeDriver, Quick, fill
from tests.support.lake_publishers import (
    ExpectedSample,
    LedgerPublisher,
    RemoteSession,
    Session,
    World,
)
from tests.support.log_recording import DEADLINE
from tests.support.session_pairs import opened
from zenlake.errors import ZError
from zenlake.lake.pipeline.sink import LakeDataSource
from zenlake.lake.project import Project
from zenlake.lake.tables import maintenance, projections
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DeltaStore, FileWriter
from zenlake.log.write.recorder import Recorder
from zenlake.spark.log_source import LogStreamReader
from zenlake.spark.options import Options, Purpose
from zenlake.spark.schema import with_duplicate

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.campaign

FULL = bool(os.environ.get("ZENLAKE_FULL"))
DRIVER_KILLS = 25 if FULL else 3
AT_FIRST = 1500 if FULL else 300  # Samples per publisher before the first driver starts.
PER_KILL = 90  # Samples per publisher while one driver works.
PER_BATCH = 40
MOMENTS = 0.8  # Seconds: longer than a micro-batch, so that a kill hits any part of one.
STANDBY = 2  # Drivers that are up or coming up.
PLAIN = 200  # Samples without number and timestamp.
FAULTS = 200 if FULL else 8  # Steps at which commits break off.
CLUSTER = {
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Lake(NamedTuple):
    """A log that is complete, its account, and tables that drivers were killed over."""

    home: Path
    account: Account
    fast: Quick
    late: int
    "Kills that came when a driver was done."


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    home = tmp_path_factory.mktemp("lake")
    (home / "lake.toml").write_text('[lake]\nname = "ledger"\ntables = "killed"\n')
    fast = Quick(home / "fast")
    plain = record_unnumbered(home / "log")
    publishers = [
        LedgerPublisher("ours", "a1", -3.0, Session("zenlake")),
        LedgerPublisher("theirs", "b2", 4.0, RemoteSession()),
    ]
    with World(home / "log", publishers) as world:
        world.go_on(AT_FIRST, kills=1)
        fast.learn(home, name="first", max_rows=400)
        late = killed(home, fast, world)
        world.go_on(PER_KILL)
        assert world.kills == DRIVER_KILLS + 1
    return Lake(home, Account(home / "log", publishers, plain), fast, late)


def record_unnumbered(log: Path) -> list[ExpectedSample]:
    """Put samples without a number, recorded into partition 1 by a recorder that is not killed."""
    chance = random.Random(3)
    said = [
        ExpectedSample(
            f"plain/{chance.randrange(20)}",
            b"%d" % number if chance.random() < 0.9 else None,
            "zenoh/bytes",
        )
        for number in range(PLAIN)
    ]
    with opened() as session, Recorder(log, "plain/**", session=session, partition=1) as recorder:
        for sample in said:
            if sample.payload is None:
                session.delete(sample.key)
            else:
                session.put(sample.key, sample.payload)
        recorder.durable(DEADLINE)
    return said


def killed(home: Path, fast: Quick, world: World) -> int:
    """Kill drivers one after another while recorders die and tables are compacted.

    Returns how many drivers had finished before they were killed.
    """
    chance, project = random.Random(11), Project.load(home)
    late = 0
    drivers = [LakeDriver(home, fast) for _ in range(STANDBY)]
    try:
        for kill in range(DRIVER_KILLS):
            drivers[0].go(name="killed", max_rows=PER_BATCH)
            if kill < DRIVER_KILLS - STANDBY:
                drivers.append(LakeDriver(home, fast))
            with ThreadPoolExecutor(1) as aside:
                speaking = aside.submit(world.go_on, PER_KILL, kills=1)
                drivers[0].until_more("killed", chance.randint(1, 6))
                if kill % 2:
                    drivers[0].kill_worker(chance)
                    drivers[0].until_more("killed", 2)
                if project.tables.is_dir():
                    maintenance.compact(project)  # beside it
                time.sleep(chance.uniform(0, MOMENTS))
                late += drivers[0].is_done()
                drivers.pop(0).kill()
                speaking.result()
    finally:
        for driver in drivers:
            driver.close()
    return late


@pytest.mark.spark
@pytest.mark.timeout(7200 if FULL else 900)
@pytest.mark.interop
def test_every_table_is_the_ledger(spark: "SparkSession", lake: Lake) -> None:
    assert lake.late <= DRIVER_KILLS // 2, "the kills came too late"
    fill(spark, lake.home, "killed", 1000)
    lake.account.check(lake.home / "killed")


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.interop
def test_another_run_from_scratch_makes_the_same_tables(spark: "SparkSession", lake: Lake) -> None:
    """In one batch, and after those of a driver that ended in order."""
    fill(spark, lake.home, "again")
    lake.account.check(lake.home / "again")
    fill(spark, lake.home, "first")
    for name in TABLES:
        same_rows(lake.home / "again" / name, lake.home / "killed" / name)
        same_rows(lake.home / "again" / name, lake.home / "first" / name)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.interop
def test_a_cluster_makes_the_same_tables(lake: Lake) -> None:
    driver = LakeDriver(lake.home, lake.fast, "local-cluster[2,1,1024]", **CLUSTER)
    try:
        driver.go(name="cluster", max_rows=400)
        driver.expect("done")
    finally:
        driver.close()
    lake.account.check(lake.home / "cluster")
    for name in TABLES:
        same_rows(lake.home / "cluster" / name, lake.home / "again" / name)


# ---- steps at which commits break off


PLACES: Sequence[Place] = (
    (DeltaStore, "_commit_once"),
    (DeltaStore, "_sync_log"),
    (FileWriter, "close"),
    (projections.TableWriter, "_stage"),
    (projections, "unstage"),
)


def batches(log: Path, size: int, count: int) -> "Iterator[list[pa.RecordBatch]]":
    """Of the log, as Spark's tasks read them."""
    raw = {"path": str(log), "duplicates": "mark", "maxrowspertrigger": str(size)}
    reader = LogStreamReader(Options.parse(raw, Purpose.LOG_STREAM), with_duplicate())
    start = reader.initialOffset()
    for _ in range(count):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        yield [rows for task in reader.partitions(start, end) for rows in reader.read(task)]
        start = end


def writer_of(tables: Path) -> Any:
    raw = {"path": str(tables), "into": "samples,latest,health", "flow": "samples"}
    return LakeDataSource(raw).streamWriter(with_duplicate(), False)


def written(tables: Path, number: int, rows: "list[pa.RecordBatch]") -> list[Any]:
    """By two tasks."""
    found = {"sql.streaming.queryId": "f81d4fae", "streaming.sql.batchId": str(number)}
    half = len(rows) // 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pyspark.TaskContext.get", partial(SimpleNamespace, getLocalProperty=found.get)
        )
        return [writer_of(tables).write(iter(part)) for part in (rows[:half], rows[half:])]


def pour(tables: Path, number: int, rows: "list[pa.RecordBatch]") -> None:
    writer_of(tables).commit(written(tables, number, rows), number)


def pour_all(tables: Path, some: "list[list[pa.RecordBatch]]", chance: random.Random) -> int:
    """As Spark does it: a batch that fails is done again; how many did."""
    failures = 0
    for number, rows in enumerate(some):
        while True:
            messages: list[Any] = []
            try:
                messages = written(tables, number, rows)
                writer_of(tables).commit(messages, number)
                break
            except OSError:
                failures += 1
                if chance.random() < 0.5:  # a driver that lives calls this; a dead one not
                    writer_of(tables).abort(messages, number)
    return failures


def same_tables(first: Path, other: Path) -> None:
    for name in ("samples", "latest", "tombstones", "health"):
        same_rows(first / name, other / name)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.interop
def test_a_commit_may_break_off_at_any_step(lake: Lake, tmp_path: Path) -> None:
    chance = random.Random(5)
    some = [*batches(lake.home / "log", 120, 3)]
    whole = Steps(PLACES)
    with pytest.MonkeyPatch.context() as patch:
        whole.patch(patch)
        assert not pour_all(tmp_path / "whole", some, chance)
    every = [(step, after) for step in range(whole.count) for after in (False, True)]
    assert len(every) > 40
    for step, after in chance.sample(every, min(FAULTS, len(every))):
        tables = tmp_path / f"{step}-{after}"
        with pytest.MonkeyPatch.context() as patch:
            Steps(PLACES, step, after, breaks_off).patch(patch)
            assert pour_all(tables, some, chance) == 1
        same_tables(tables, tmp_path / "whole")


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.interop
def test_a_driver_that_is_thought_to_be_dead_may_go_on(lake: Lake, tmp_path: Path) -> None:
    """Between two steps of its commit another driver does that batch and the next ones."""
    chance = random.Random(6)
    some = [*batches(lake.home / "log", 120, 4)]
    assert not pour_all(tmp_path / "whole", some, chance)

    def commit(tables: Path, steps: Steps) -> None:
        pour(tables, 0, some[0])
        messages = written(tables, 1, some[1])
        with pytest.MonkeyPatch.context() as patch:
            steps.patch(patch)
            writer_of(tables).commit(messages, 1)

    alone = Steps(PLACES)
    commit(tmp_path / "alone", alone)
    every = [(step, after) for step in range(alone.count) for after in (False, True)]
    assert len(every) > 10
    for step, after in chance.sample(every, min(FAULTS, len(every))):
        tables = tmp_path / f"{step}-{after}"

        def others(tables: Path = tables) -> None:
            for number in range(1, len(some)):
                pour(tables, number, some[number])

        with suppress(ZError, OSError):  # the error of a dead driver has no reader
            commit(tables, Steps(PLACES, step, after, others))
        same_tables(tables, tmp_path / "whole")
