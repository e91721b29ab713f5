"""`zenlake lake init` and `run`: what they write, say and refuse, with a stand-in for Spark."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from rich.console import Console

import zenlake as api
from tests.support import spark_log
from tests.support.cli_in_process import zenlake
from tests.support.cli_process import matching, peer
from tests.support.delta_runtime import start_delta_runtime
from zenlake.cli.commands.lake_run import RunTable, format_event
from zenlake.errors import ZError
from zenlake.lake.pipeline import flows, runner
from zenlake.lake.pipeline.spark_connect import FlowEvent
from zenlake.lake.project import Project
from zenlake.lake.tables.definitions import TABLES, TableDefinition
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.reduce import conform
from zenlake.log.read.reader import Reader

pytestmark = pytest.mark.slow

MANY = 600  # Cycles after which the awaited event must have happened.


@pytest.fixture(scope="module", autouse=True)
def _delta_runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    start_delta_runtime(tmp_path_factory.mktemp("delta"))


# ---- init


def test_a_new_lake_and_what_to_do_next(tmp_path: Path) -> None:
    home = tmp_path / "my fleet"
    done = zenlake("lake", "init", str(home), "-e", "tcp/127.0.0.1:7447", "-k", "robot/**")
    assert done.exit_code == 0, done.output
    assert "a lake named my_fleet" in done.output
    assert f"zenlake lake run {home}" in done.output
    assert "zenlake record" not in done.output
    record = Project.load(home).record
    assert record is not None
    assert (record.connect, record.keys) == (("tcp/127.0.0.1:7447",), ("robot/**",))
    again = zenlake("lake", "init", str(home))
    assert again.exit_code == 1
    assert "lake.toml is there already" in again.output


def test_a_lake_that_others_feed(tmp_path: Path) -> None:
    done = zenlake("lake", "init", str(tmp_path / "x"), "--name", "fleet")
    assert done.exit_code == 0
    assert "zenlake record -e ENDPOINT" in done.output
    project = Project.load(tmp_path / "x")
    assert (project.name, project.record) == ("fleet", None)


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["-e", "nowhere"], 2, "is not an endpoint"),
        (["-e", "tcp/[::1]:1", "-k", "a//b"], 2, "a//b"),
        (["-k", "a/**"], 2, "--connect ENDPOINT"),
        (["--name", "a/b"], 1, "is not a name of letters"),
    ],
)
def test_what_init_refuses(tmp_path: Path, args: list[str], status: int, said: str) -> None:
    done = zenlake("lake", "init", str(tmp_path / "new"), *args)
    assert done.exit_code == status
    assert said in done.output
    assert not (tmp_path / "new").exists()


# ---- run


class StandInSession:
    """In place of Spark: what each run does is in `script`, one for each; then they go well."""

    script: ClassVar[list[Callable[["StandInSession"], bool]]] = []
    started = 0
    runs = 0

    def __init__(self, project: Project, master: str, conf: dict[str, str]) -> None:
        type(self).started += 1
        self.state, self.alive = project.home / "state", True
        self.flows: dict[str, flows.Flow] = {}
        self.complete = True
        self.tell: Callable[[FlowEvent], None] = lambda event: None

    def run(self, tell: Callable[[FlowEvent], None]) -> bool:
        number, type(self).runs = self.runs, self.runs + 1
        self.flows = {"samples": flows.Flow("samples", ("samples", "latest"))}
        self.tell = tell
        tell(FlowEvent("samples", "RUNNING"))
        if number < len(self.script):
            return self.script[number](self)
        tell(FlowEvent("samples", "COMPLETED"))
        return True

    def close(self) -> None: ...
    def kill(self) -> None: ...


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake with ten samples, on no Spark."""
    monkeypatch.setattr(runner, "PipelineSession", StandInSession)
    monkeypatch.setattr(StandInSession, "script", [])
    monkeypatch.setattr(StandInSession, "started", 0)
    monkeypatch.setattr(StandInSession, "runs", 0)
    assert zenlake("lake", "init", str(tmp_path / "fleet")).exit_code == 0
    spark_log.append(tmp_path / "fleet" / "log", 10)
    return tmp_path / "fleet"


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def stopped(_: StandInSession) -> bool:
    os.kill(os.getpid(), signal.SIGTERM)
    return True


def failed(stand: StandInSession) -> bool:
    stand.tell(FlowEvent("samples", "FAILED", "no such column"))
    return False


def test_once_takes_what_is_there(lake: Path) -> None:
    done = zenlake("lake", "run", str(lake), "--once", "--json")
    assert done.exit_code == 0, done.output
    found = events(done.stdout)
    assert [event["event"] for event in found if event["event"] != "flow"] == [
        *("starting", "ready", "cycle", "stopped")
    ]
    (cycle,) = (event for event in found if event["event"] == "cycle")
    assert (cycle["number"], cycle["ok"]) == (1, True)
    assert cycle["flows"] == [
        {
            "flow": "samples",
            "into": ["samples", "latest"],
            "state": "COMPLETED",
            "taken": 0,
            "behind": 10,
            "at": None,
            "rows": {},
            "wrote": {},
            "reason": None,
        }
    ]


def test_once_that_fails_is_status_1_and_says_why(lake: Path) -> None:
    StandInSession.script = [failed]
    done = zenlake("lake", "run", str(lake), "--once")
    assert done.exit_code == 1
    assert "flow samples failed: no such column" in done.output
    assert "samples: 0 read, 10 behind (failed)" in done.output


def test_a_cycle_says_what_was_read_and_what_was_written(lake: Path) -> None:
    project = Project.load(lake)

    def writes(stand: StandInSession) -> bool:
        stand.flows["own"] = flows.Flow("own", ("own",))
        for name, count in (("samples", 3), ("latest", 1), ("own", 1)):
            rows = pa.table({"key": ["a"] * count})
            wanted = TABLES[name].schema if name in TABLES else rows.schema
            store = DeltaStore(
                project.table(name), TABLES.get(name) or TableDefinition(name, wanted)
            )
            store.commit(store.write(conform(rows, wanted)))
        return True

    StandInSession.script = [writes, writes]
    done = zenlake("lake", "run", str(lake), "--once", "--json")
    assert done.exit_code == 0, done.output
    first = next(event for event in events(done.stdout) if event["event"] == "cycle")["flows"]
    assert [(flow["rows"], flow["wrote"]) for flow in first] == [
        ({"samples": 3, "latest": 1}, {"samples": 3}),
        ({"own": 1}, {"own": 1}),
    ]
    done = zenlake("lake", "run", str(lake), "--once")
    assert "samples: 0 read, 3 rows, 10 behind; own: 0 read, 1 row, 10 behind" in done.output
    done = zenlake("lake", "run", str(lake), "--once")
    assert "samples: 0 read, 0 rows, 10 behind" in done.output
    two = {"flow": "m", "taken": 4, "wrote": {"a": 3, "b": 1}, "behind": 0, "state": "COMPLETED"}
    said = format_event("cycle", {"number": 1, "seconds": 1.0, "flows": [two]})
    assert said is not None
    assert said.endswith(": m: 4 read, 3 rows in a, 1 row in b")


def test_a_run_that_cannot_begin_says_why(lake: Path) -> None:
    def refused(_: StandInSession) -> bool:
        raise ZError("transformations/own.py, line 3: NameError: spork")

    StandInSession.script = [refused]
    done = zenlake("lake", "run", str(lake), "--once")
    assert done.exit_code == 1
    assert "own.py, line 3: NameError: spork" in done.output


def test_a_cycle_that_failed_is_tried_again_until_told_to_stop(lake: Path) -> None:
    StandInSession.script = [failed, failed, stopped]
    done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    assert done.exit_code == 0, done.output
    cycles = [event["ok"] for event in events(done.stdout) if event["event"] == "cycle"]
    assert cycles == [False, False, True]
    assert StandInSession.started == 1


def test_without_news_there_is_no_cycle(lake: Path) -> None:
    def more(_: StandInSession) -> bool:
        threading.Timer(0.5, lambda: spark_log.append(lake / "log", 1)).start()
        return True

    StandInSession.script = [more, stopped]
    done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    cycles = [event for event in events(done.stdout) if event["event"] == "cycle"]
    assert [cycle["flows"][0]["behind"] for cycle in cycles] == [10, 11]


def test_a_spark_that_is_gone_is_started_again(lake: Path) -> None:
    def gone(stand: StandInSession) -> bool:
        stand.alive = False
        raise ZError("the connection is refused")

    StandInSession.script = [gone, stopped]
    done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    assert done.exit_code == 0, done.output
    assert StandInSession.started == 2


def test_a_cycle_that_does_not_end_is_broken_off(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STOP_SECONDS", 0.2)
    killed = threading.Event()
    monkeypatch.setattr(StandInSession, "kill", lambda _: killed.set())

    def endless(_: StandInSession) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        assert killed.wait(60.0)
        raise ZError("the connection is refused")

    StandInSession.script = [endless]
    done = zenlake("lake", "run", str(lake), "--json")
    assert done.exit_code == 0, done.output
    assert killed.is_set()
    assert "failed" not in [event["event"] for event in events(done.stdout)]


def test_it_records_while_it_runs(tmp_path: Path, lake: Path) -> None:
    with peer() as publisher:
        home = tmp_path / "recorded"
        zenlake("lake", "init", str(home), "-e", publisher.endpoint, "-k", "robot/**")

        def put(_: StandInSession) -> bool:
            matching(publisher.session, "robot/1")
            block = api.CongestionControl.BLOCK
            publisher.session.put("robot/1", "hello", congestion_control=block)
            return False  # so that there is a next cycle

        def until_durable(_: StandInSession) -> bool:
            if _recorded(home / "log"):
                os.kill(os.getpid(), signal.SIGTERM)
                return True
            return False

        StandInSession.script = [put, *[until_durable] * MANY, stopped]
        done = zenlake("lake", "run", str(home), "--every", "50ms", "--json")
        assert done.exit_code == 0, done.output
        assert _recorded(home / "log") == [("robot/1", b"hello")]

        StandInSession.runs, StandInSession.script = 0, [stopped]
        quiet = zenlake("lake", "run", str(home), "--no-record", "--json")
        assert quiet.exit_code == 0


def _recorded(log: Path) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for batch in Reader(log).batches():
        columns = (batch.column(name).to_pylist() for name in ("key", "payload"))
        found += zip(*columns, strict=True)
    return found


def test_what_run_refuses(lake: Path, tmp_path: Path) -> None:
    missing = zenlake("lake", "run", str(tmp_path / "none"))
    assert missing.exit_code == 1
    assert "zenlake lake init" in missing.output
    assert zenlake("lake", "run", str(lake), "--conf", "x").exit_code == 2
    assert zenlake("lake", "run", str(lake), "--every", "soon").exit_code == 2
    with runner.exclusive(Project.load(lake)):
        busy = zenlake("lake", "run", str(lake), "--once")
    assert busy.exit_code == 1
    assert "another process runs" in busy.output


# ---- shown


def test_the_live_table_shows_flows(tmp_path: Path) -> None:
    project = Project.parse('[lake]\nname = "fleet"', tmp_path / "lake.toml")
    console = Console(width=120, record=True, file=(tmp_path / "shown").open("w"))
    shown = RunTable(project, console)
    shown.show("starting", {"master": "local[2]"})
    shown.show("flow", {"flow": "samples", "state": "RUNNING", "reason": None})
    flow = {
        "flow": "samples",
        "into": ("samples", "latest"),
        "state": "COMPLETED",
        "taken": 1234,
        "behind": 5,
        "at": 1_790_000_000.0,
        "rows": {"samples": 9876, "latest": 4},
        "wrote": {"samples": 1234},
        "reason": None,
    }
    shown.show("cycle", {"number": 3, "ok": True, "seconds": 1.5, "flows": [flow]})
    shown.show("flow", {"flow": "loss\x1b", "state": "FAILED", "reason": "bad\x1b[2J"})
    console.print(shown)
    text = console.export_text()
    for part in ("cycle 3 took", "1,234", "9,876", "14:13:20Z", "completed", "failed: bad"):
        assert part in text
    assert "\x1b" not in text
    console.file.close()


@pytest.mark.parametrize("event", ["flow", "unheard"])
def test_what_nobody_needs_to_know_is_no_line(event: str) -> None:
    assert format_event(event, {"state": "RUNNING"}) is None
