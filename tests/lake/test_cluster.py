"""A lake on a cluster: a master, a worker and its executors, each a process of its own.

What a local Spark makes of a log is what they have to make, by the commands of docs/cluster.md.
ZENLAKE_FULL=1: also through a Spark Connect server, by Spark's own command, and in the cluster
that Spark plays within one machine; without it those are left out.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
import pytest

from bench.lake_rows import FIRST, block_of, rows_of
from tests.golden.proxy import LOOPBACK, free_port
from tests.support.cli_process import ENV
from tests.support.cli_terminal import SCRIPT
from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.scaffold import create_project
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.log import format as layout
from zenlake.log.block import Loss
from zenlake.log.write.writer import Writer

pytestmark = pytest.mark.campaign

ROWS = 2_000  # Rows per partition; two partitions have half of them in common.
PIECE = 500
DEADLINE = 420.0  # Seconds per command, on a busy machine.
END_SECONDS = 60.0
ATTEMPTS = 3  # Runs of a command: Spark gives a Python ten seconds to start.
SLOW = "Python worker failed to connect back"
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK = {
    "spark.driver.memory": "1g",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.extraJavaOptions": JVM,
    "spark.executor.extraJavaOptions": JVM,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
}
DAEMONS = {
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_DAEMON_JAVA_OPTS": JVM,
    "SPARK_LOCAL_IP": LOOPBACK,
}
BIN = Path(pyspark.__file__).parent / "bin"


# ---- a lake


def new_lake(home: Path) -> Project:
    project = create_project(home, "fleet")
    for partition in (0, 1):
        with Writer(project.log, partition) as writer:
            for first in range(partition * ROWS // 2, partition * ROWS // 2 + ROWS, PIECE):
                block = block_of(some(first), (FIRST + partition) * 1_000_000_000)
                if first == ROWS // 2:
                    lost = Loss(layout.SOURCE, FIRST * 1_000_000_000, b"\x5a" * 16, 7, 9, 3, 1)
                    block.add_loss(lost)
                writer.write([block])
    return project


def some(first: int) -> pa.RecordBatch:
    """Samples of the benchmark; some are deletes, some no JSON."""
    rows = rows_of(first, PIECE)
    number = pa.array(range(first, first + PIECE))
    deleted = pc.equal(pc.bit_wise_and(number, 63), 32)
    broken = pc.and_(pc.equal(pc.bit_wise_and(number, 31), 8), pc.invert(deleted))
    payload = pc.if_else(broken, pa.scalar(b"{"), rows.column("payload"))
    kinds = pc.if_else(deleted, pa.scalar("delete"), pa.scalar("put"))
    rows = rows.set_column(rows.schema.get_field_index("payload"), "payload", payload)
    return rows.append_column("kind", kinds)


def tables_of(project: Project) -> dict[str, list[str]]:
    """The rows of every table, in an order of their own."""
    return {
        name: sorted(map(repr, DeltaStore(project.table(name), table).read().to_pylist()))
        for name, table in TABLES.items()
    }


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the tables that a local Spark makes of the log."""
    project = new_lake(tmp_path_factory.mktemp("local") / "fleet")
    lake_run(project, "local[2]")
    found = tables_of(project)
    assert all(found.values()), {name: len(rows) for name, rows in found.items()}
    return found


# ---- commands


def lake_run(project: Project, master: str, **settings: str) -> None:
    told = [f"--conf={name}={value}" for name, value in {**SPARK, **settings}.items()]
    ran([SCRIPT, "lake", "run", project.home, "--once", f"--master={master}", *told])


def ran(command: list[Any], cwd: Path | None = None, **env: str) -> None:
    """It ends well; flows that Spark gave no time to start are done by the next attempt."""
    said = ""
    for _ in range(ATTEMPTS):
        done = subprocess.run(
            command,
            cwd=cwd,
            env=ENV | DAEMONS | env,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        if done.returncode == 0:
            return
        said = done.stdout[-3000:] + done.stderr[-3000:]
        if SLOW not in said:
            break
    pytest.fail(said)


@contextmanager
def daemon(
    folder: Path, name: str, *arguments: str, started: str, memory: str = "256m"
) -> Iterator[None]:
    """A part of a cluster, until the end; it has started when its log says so."""
    log = folder / f"{name.rpartition('.')[2]}.txt"
    with log.open("w") as out:
        running = subprocess.Popen(
            [BIN / "spark-class", name, *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=ENV | DAEMONS | {"SPARK_DAEMON_MEMORY": memory},
        )
    try:
        end = time.monotonic() + DEADLINE
        while started not in log.read_text():
            assert running.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.05)
        yield
    finally:
        running.terminate()
        try:
            running.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a master that has one worker, with room for two executors."""
    folder = tmp_path_factory.mktemp("cluster")
    at = f"spark://{LOOPBACK}:{(port := free_port())}"
    master = ("--host", LOOPBACK, "--port", str(port), "--webui-port", "0")
    worker = ("--host", LOOPBACK, "--webui-port", "0", "--work-dir", str(folder / "work"))
    room = ("--cores", "2", "--memory", "1g")
    deploy = "org.apache.spark.deploy"
    with (
        daemon(folder, f"{deploy}.master.Master", *master, started="I have been elected leader"),
        daemon(
            folder, f"{deploy}.worker.Worker", *worker, *room, at, started="Successfully registered"
        ),
    ):
        yield at


# ---- the tests


@pytest.mark.parametrize("name", ["log", "tables"])
def test_an_object_store_is_refused(name: str) -> None:
    with pytest.raises(
        ZError, match=rf"\[lake\] {name}: 's3://fleet/x' is not the path of a folder"
    ):
        Project.parse(f'[lake]\nname = "fleet"\n{name} = "s3://fleet/x"\n')


# ---- how a project runs on a cluster


def by_lake_run(project: Project, cluster: str) -> None:
    lake_run(project, cluster)


def by_the_command_of_spark(project: Project, cluster: str) -> None:
    settings = [f"--conf={name}={value}" for name, value in SPARK.items()]
    command = Path(sys.executable).with_name("spark-pipelines")
    ran([command, "run", "--remote", cluster, *settings], project.home, SPARK_API_MODE="connect")


def by_a_server_of_spark_connect(project: Project, cluster: str) -> None:
    port = free_port()
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    settings = SPARK | {"spark.connect.grpc.binding.port": str(port)}
    told = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    submit = ("--class", server, "--master", cluster, *told, "spark-internal")
    program = "org.apache.spark.deploy.SparkSubmit"
    with daemon(project.home.parent, program, *submit, started="server started at", memory="1g"):
        ran([SCRIPT, "lake", "run", project.home, "--once", f"--master=sc://{LOOPBACK}:{port}"])


def within_one_machine(project: Project, cluster: str) -> None:
    lake_run(project, "local-cluster[2,1,1024]")


MORE = (by_the_command_of_spark, by_a_server_of_spark_connect, within_one_machine)
WAYS = (by_lake_run, *(MORE if os.environ.get("ZENLAKE_FULL") else ()))


@pytest.mark.spark
@pytest.mark.parametrize("way", WAYS)
def test_a_cluster_makes_the_same_tables(
    wanted: dict[str, list[str]], cluster: str, tmp_path: Path, way: Callable[[Project, str], None]
) -> None:
    project = new_lake(tmp_path / "fleet")
    way(project, cluster)
    assert tables_of(project) == wanted
