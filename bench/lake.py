"""A lake: from the log to all tables, beside Kafka + Spark + Delta and a Spark job written by hand;
the cost of an update of `latest`; a lake that runs: latency, rate, memory and processes.

The Kafka side is measured where ZENLAKE_KAFKA names its folder (docs/speed.md).
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from bench import lake_live, lake_plain, lake_updates
from bench.figures import Figure, Figures, run_in_turns
from bench.kafka.installation import Installation, NotInstalledError
from bench.kafka.lake import KafkaLake
from bench.lake_live import CORES, MEMORY, peak_memory
from bench.lake_rows import write_log
from zenlake.lake.pipeline.flows import BUILT_IN, Flow
from zenlake.lake.pipeline.progress import TABLES_FLOW
from zenlake.lake.pipeline.queries import TableQuery
from zenlake.lake.pipeline.runner import prepare_session
from zenlake.lake.pipeline.spark_session import SparkDriver
from zenlake.lake.project import Project
from zenlake.lake.scaffold import create_project
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DeltaStore

ROWS = 1_000_000
MANY = 10_000_000
TURNS = 5
TASKS = (1, 2, 4)  # Executors of a local cluster, with one core each.
EXECUTOR_MEMORY = 1024  # Mebibytes.
KAFKA_AIM = 3.0
ROWS_AIM = 250_000.0
MANY_AIM = 300_000.0
PLAIN_AIM = 0.7
ROOT = Path(__file__).parents[1]


def figures() -> Figures:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name, ExitStack() as stack:
        folder = Path(name)
        kafka = open_kafka(folder / "kafka", stack)
        yield from lake_updates.updates(folder / "updates")
        yield from all_tables(folder / "all", kafka)
        yield from many_rows(folder / "many")
        yield from tasks(folder / "tasks")
        yield from lake_live.running(folder / "running", kafka)


def open_kafka(folder: Path, stack: ExitStack) -> KafkaLake | None:
    """Start the Kafka side; None, with a line that says how to get it, if it is not installed."""
    try:
        return stack.enter_context(KafkaLake.open(Installation.find(), folder))
    except NotInstalledError as error:
        sys.stdout.write(f"# without Kafka + Spark + Delta: {error}\n")
        return None


# ---- from the log to all tables


def all_tables(folder: Path, kafka: KafkaLake | None) -> Figures:
    """Measure all ways from start to end, with the start of queries and the commits, in turns."""
    project = create_project(folder / "lake", "bench")
    write_log(project.log, ROWS)
    rows, plain = folder / "rows", folder / "plain"
    with spark_driver(folder, f"local[{CORES}]") as spark:
        logged = spark.read.format("zenoh").option("minPartitions", CORES).load(str(project.log))
        logged.write.mode("overwrite").parquet(str(rows))
        jobs = {
            "lake": lambda: fill(spark, project),
            "plain": lambda: timed_plain(spark, rows, plain),
        }
        if kafka is not None:
            kafka.fill(ROWS)
            jobs["kafka"] = kafka.drain
        took = run_in_turns(jobs, TURNS)
        compare(spark, project, plain)
    best = {name: min(seconds) for name, seconds in took.items()}
    middle = {name: median(seconds) for name, seconds in took.items()}
    yield Figure("log to all tables, 1 M rows, best", ROWS / best["lake"], "rows/s", ROWS_AIM)
    yield Figure("log to all tables, 1 M rows, median", ROWS / middle["lake"], "rows/s")
    yield Figure("Parquet to such tables, by hand", ROWS / middle["plain"], "rows/s")
    ratio = middle["plain"] / middle["lake"]
    yield Figure("log to all tables, beside by hand", ratio, "x", PLAIN_AIM)
    if kafka is not None:
        yield Figure("Kafka to such tables, median", ROWS / middle["kafka"], "rows/s")
        yield Figure("Kafka to such tables, best", ROWS / best["kafka"], "rows/s")
        ratio = middle["kafka"] / middle["lake"]
        yield Figure("log to all tables, beside Kafka", ratio, "x", KAFKA_AIM)


def many_rows(folder: Path) -> Figures:
    """Measure a long catch-up, and the memory that it takes."""
    project = create_project(folder / "lake", "bench")
    write_log(project.log, MANY)
    with spark_driver(folder, f"local[{CORES}]") as spark:
        fill(spark, project, 1)
        seconds = fill(spark, project)
        name = f"log to all tables, {MANY // 1_000_000} M rows"
        yield Figure(name, MANY / seconds, "rows/s", MANY_AIM)
        for kind, size in peak_memory(os.getpid()).items():
            yield Figure(f"{name}, peak memory of {kind}", size / (1 << 20), "MiB")


def tasks(folder: Path) -> Figures:
    """Measure the same log on local clusters of one, two and four executors."""
    project = create_project(folder / "lake", "bench")
    write_log(project.log, ROWS)
    for count in TASKS:
        with spark_driver(folder, f"local-cluster[{count},1,{EXECUTOR_MEMORY}]") as spark:
            fill(spark, project)
            seconds = min(fill(spark, project) for _ in range(TURNS))
            yield Figure(f"log to all tables, executors: {count}", ROWS / seconds, "rows/s")


@contextmanager
def spark_driver(folder: Path, master: str) -> Iterator[SparkSession]:
    """Start a Spark as `zenlake lake run` does, whose executors find this folder's modules."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )
    settings = {
        "spark.driver.memory": MEMORY,
        "spark.executor.memory": f"{EXECUTOR_MEMORY}m",
        "spark.sql.shuffle.partitions": str(CORES),
    }
    with closing(SparkDriver("bench", master, settings, folder / "spark.log")) as driver:
        prepare_session(driver.session)
        yield driver.session


def fill(spark: SparkSession, project: Project, most: int | None = None) -> float:
    """Write the log into empty tables, at most `most` micro-batches; return the seconds."""
    for place in (project.tables, project.state, project.log / "spark"):
        shutil.rmtree(place, ignore_errors=True)
    project.state.mkdir()
    query = TableQuery(project, spark, Flow(TABLES_FLOW, BUILT_IN))
    query.keep_warm()  # As `lake run` does: Spark may have ended its workers since the last turn.
    before = time.perf_counter()
    query.start({"once": True} if most == 1 else {"availableNow": True})
    try:
        while query.active:
            time.sleep(0.005)
        assert query.failure() is None, query.failure()
    finally:
        query.stop()
    return time.perf_counter() - before


def timed_plain(spark: SparkSession, rows: Path, plain: Path) -> float:
    before = time.perf_counter()
    lake_plain.make(spark, rows, plain)
    return time.perf_counter() - before


def compare(spark: SparkSession, project: Project, plain: Path) -> None:
    """Assert that both ways have made equally many rows of each table."""
    for name in ("samples", "latest", "health", "messages"):
        ours = DeltaStore(project.table(name), TABLES[name]).snapshot().rows
        theirs = spark.read.parquet(str(plain / name)).count()
        assert ours == theirs > 0, f"{name}: {ours} rows, and by hand {theirs}"
