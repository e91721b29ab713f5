"""`zenlake lake run` from Zenoh to every table: late samples, repeats, deletes, gaps, failures.

One run of it, with the recorder in it, then `spark-pipelines run` of Spark itself in the same
folder. ZENLAKE_FULL=1: that twice.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import zenlake
from tests.support.cli_process import ENV, config, matching, peer
from tests.support.cli_terminal import SCRIPT
from tests.support.waiting import until
from zenlake.lake import scaffold
from zenlake.lake.pipeline.runner import running_alone
from zenlake.lake.project import Project
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.log import Recorder

DEADLINE = 420.0  # Seconds for a JVM and its cycles, on a busy machine.

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2 * DEADLINE)]

POSES = 200
SKIPPED = 3
SPARK = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
OWN = '''"""A table of the user's own, and a flow that fails where there are poses of robot 9."""

from pyspark.sql import DataFrame, SparkSession

from zenlake import lake

spark = SparkSession.active()


@lake.flow(into="poses", partition_by="day")
def poses() -> DataFrame:
    rows = lake.stream(spark, keyExpr="robot/*/pose", duplicates="drop").where("kind = 'put'")
    return rows.selectExpr(
        "key", "from_json(cast(payload as string), 'n int').n as n", "to_date(received_at) as day"
    )


@lake.flow(into="broken")
def broken() -> DataFrame:
    rows = lake.stream(spark, keyExpr="robot/9/**")
    return rows.selectExpr("raise_error('robot 9 is not ours') as x")
'''


class Ran(NamedTuple):
    """A lake that ran, and what was put meanwhile."""

    project: Project
    events: list[dict[str, Any]]
    status: int
    said: str
    late: str
    "The payload that was older than what there was."


class Running:
    """The command, whose output is a file."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [SCRIPT, "lake", "run", *args], stdout=out, stderr=err, env=ENV
            )

    def events(self) -> list[dict[str, Any]]:
        whole = self.out.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def until(self, holds: Callable[[dict[str, Any]], object], since: int = 0) -> int:
        """Wait for a cycle that `holds` accepts; return the number of events up to it."""

        def look() -> int | str:
            ended = self.process.poll() is not None
            events = self.events()
            for number, event in enumerate(events[since:], since + 1):
                if event["event"] == "cycle" and holds(event):
                    return number
            assert not ended, f"it ended: {self.out.read_text()} {self.err.read_text()}"
            return self.out.read_text()[-5000:]

        found = until(look, lambda seen: isinstance(seen, int), DEADLINE)
        assert isinstance(found, int)
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def flow_of(cycle: dict[str, Any], name: str) -> dict[str, Any]:
    found = [flow for flow in cycle["flows"] if flow["flow"] == name]
    assert len(found) == 1, cycle
    return dict(found[0])


def has_rows(table: str, flow: str, rows: int) -> Callable[[dict[str, Any]], bool]:
    def holds(cycle: dict[str, Any]) -> bool:
        behind = [flow["behind"] for flow in cycle["flows"] if flow["flow"] != "broken"]
        return flow_of(cycle, flow)["rows"].get(table) == rows and not any(behind)

    return holds


def failures(events: list[dict[str, Any]]) -> list[str]:
    """Return the reasons for which the flow `broken` has failed so far."""
    return [
        event["reason"]
        for event in events
        if event["event"] == "flow" and event["flow"] == "broken" and event["state"] == "FAILED"
    ]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("run")
    with peer() as publisher:
        session = publisher.session
        project = scaffold.create_project(
            folder / "fleet", "fleet", [publisher.endpoint], ["robot/**"]
        )
        (project.home / "transformations" / "own.py").write_text(OWN)
        settings = [f"--conf={name}={value}" for name, value in SPARK.items()]
        running = Running(
            folder, str(project.home), "--every=1s", "--json", "--master=local[2]", *settings
        )
        try:
            matching(session, "robot/0/pose")
            old = session.new_timestamp()
            with session.declare_publisher("robot/0/pose") as numbered:
                source = numbered.id

                def pose(n: int, key: str, **given: Any) -> None:
                    info = zenlake.SourceInfo(source, n)
                    stamp = given.pop("timestamp", None) or session.new_timestamp()
                    session.put(
                        key,
                        given.pop("payload", json.dumps({"n": n})),
                        encoding="application/json",
                        timestamp=stamp,
                        source_info=info,
                        congestion_control=zenlake.CongestionControl.BLOCK,
                    )

                for n in range(POSES):
                    pose(n, f"robot/{n % 4}/pose")
                session.put("robot/0/name", "Ada", encoding="text/plain")
                session.put("robot/0/raw", b"\x00\xff")
                session.put("robot/0/bad", b"{", encoding="application/json")
                seen = running.until(has_rows("samples", "tables", POSES + 3))

                pose(POSES - 1, f"robot/{(POSES - 1) % 4}/pose")  # came before
                late = json.dumps({"n": POSES, "late": True})
                pose(POSES, "robot/1/pose", timestamp=old, payload=late)
                session.delete("robot/2/pose")
                pose(POSES + 1 + SKIPPED, "robot/9/pose")
                running.until(has_rows("samples", "tables", POSES + 6), seen)
                until(lambda: failures(running.events()), lambda found: len(found) >= 2, DEADLINE)
            running.process.send_signal(signal.SIGTERM)
            status = running.process.wait(DEADLINE)
            yield Ran(project, running.events(), status, running.err.read_text(), late)
        finally:
            running.close()


def table_of(project: Project, name: str) -> pa.Table:
    store = DeltaStore(project.table(name), TABLES[name])
    return store.read()


def test_a_run_ends_with_success(ran: Ran) -> None:
    assert ran.status == 0, ran.said
    names = [event["event"] for event in ran.events]
    assert names[:2] == ["starting", "ready"]
    assert "failed" not in names
    assert names[-1] == "stopped"
    assert names.count("ready") == 1  # one session for all cycles
    assert ran.events[-1]["cycles"] >= 2
    assert "Traceback" not in ran.said
    with running_alone(ran.project), Recorder(ran.project.log, "x", config=config()):
        pass  # no process holds the lake or its log any more


def test_samples_are_there_once(ran: Ran) -> None:
    rows = table_of(ran.project, "samples").select(["key", "kind", "offset", "source"]).to_pylist()
    assert len({row["offset"] for row in rows}) == len(rows) == POSES + 6
    numbers = sorted(row["source"]["sn"] for row in rows if row["source"] is not None)
    assert numbers == [*range(POSES + 1), POSES + 1 + SKIPPED]
    assert [row["key"] for row in rows if row["kind"] == "delete"] == ["robot/2/pose"]


def test_latest_is_what_was_put_last(ran: Ran) -> None:
    table = table_of(ran.project, "latest")
    found = dict(zip(table["key"].to_pylist(), table["payload"].to_pylist(), strict=True))
    assert found == {
        **{f"robot/{n % 4}/pose": json.dumps({"n": n}).encode() for n in (196, 197, 199)},
        "robot/9/pose": json.dumps({"n": POSES + 1 + SKIPPED}).encode(),
        "robot/0/name": b"Ada",
        "robot/0/raw": b"\x00\xff",
        "robot/0/bad": b"{",
    }
    assert table_of(ran.project, "tombstones")["key"].to_pylist() == ["robot/2/pose"]
    assert ran.late.encode() in table_of(ran.project, "samples")["payload"].to_pylist()


def test_loss_and_health_account_for_the_rest(ran: Ran) -> None:
    losses = table_of(ran.project, "loss").to_pylist()
    skipped = [(loss["first"], loss["last"]) for loss in losses if loss["kind"] == "source"]
    assert (POSES + 1, POSES + SKIPPED) in skipped
    health = table_of(ran.project, "health")
    assert sum(health["duplicates"].to_pylist()) == 1
    assert sum(health["count"].to_pylist()) in (POSES + 6, POSES + 7)


def test_payloads_are_values_or_say_why_not(ran: Ran) -> None:
    messages = table_of(ran.project, "messages")
    assert messages.num_rows == POSES + 3
    assert set(messages["decoder"].to_pylist()) == {"json", "text"}
    failed = table_of(ran.project, "messages_failed").to_pylist()
    assert [(row["key"], row["payload"]) for row in failed] == [("robot/0/bad", b"{")]
    assert failed[0]["reason"]


def test_a_table_of_the_user(ran: Ran) -> None:
    files = list(ran.project.table("poses").glob("day=*/*.parquet"))
    assert files
    last = [event for event in ran.events if event["event"] == "cycle"][-1]
    assert flow_of(last, "poses")["rows"] == {"poses": POSES + 2}


def test_a_flow_that_fails_stops_no_other(ran: Ran) -> None:
    failed = [
        event for event in ran.events if event["event"] == "flow" and event["state"] == "FAILED"
    ]
    broken = failures(ran.events)
    assert sum("robot 9 is not ours" in reason for reason in broken) >= 2  # it was tried again
    slow = "Python worker failed to connect back"  # within ten seconds: the next cycle mends it
    others = [
        event for event in failed if event["flow"] != "broken" and slow not in event["reason"]
    ]
    assert others == []


@pytest.mark.campaign
def test_spark_itself_runs_the_same_folder(ran: Ran, tmp_path: Path) -> None:
    (ran.project.home / "transformations" / "own.py").unlink()
    rows = POSES + 6
    for _ in range(2 if os.environ.get("ZENLAKE_FULL") else 1):
        with (
            zenlake.open(config()) as session,
            Recorder(ran.project.log, "robot/**", session=session) as recorder,
        ):
            session.put("robot/0/name", "Bea", encoding="text/plain")
            recorder.durable(60.0)
        rows += 1
        command = Path(sys.executable).with_name("spark-pipelines")
        done = subprocess.run(
            [command, "run", *(f"--conf={name}={value}" for name, value in SPARK.items())],
            cwd=ran.project.home,
            env=ENV | {"PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert table_of(ran.project, "samples").num_rows == rows
    latest = table_of(ran.project, "latest").to_pylist()
    assert [row["payload"] for row in latest if row["key"] == "robot/0/name"] == [b"Bea"]
