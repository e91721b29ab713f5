"""`zenlake lake init` and `run`: what they write, say and refuse, with a stand-in for Spark."""

import json
import os
import shutil
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
from zenlake.lake.pipeline import runner
from zenlake.lake.pipeline.progress import durable_offsets
from zenlake.lake.pipeline.queries import ResidentQuery
from zenlake.lake.project import Project
from zenlake.lake.tables import maintenance
from zenlake.lake.tables.definitions import TABLES
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


class StandInDriver:
    """In place of Spark: a JVM that has started at once."""

    started = 0
    session = ui = None
    alive = True

    def __init__(self, app: str, master: str, conf: dict[str, str], log: Path) -> None:
        type(self).started += 1

    def ends_within(self, seconds: float) -> bool:
        return not self.alive

    def truncate_log(self) -> None: ...
    def close(self) -> None: ...
    def kill(self) -> None: ...


class StandInQuery(ResidentQuery):
    """In place of a streaming query: takes all there is, if `script` does not say otherwise."""

    script: ClassVar[list[Callable[["StandInQuery"], None]]] = []
    starts = 0
    why: str | None = None
    runs = False
    resident = False
    just_started = False

    def start(self, trigger: Any) -> None:
        number, type(self).starts = self.starts, self.starts + 1
        self.why, self.resident = None, "processingTime" in trigger
        self.just_started = number == 0
        self.runs = self.resident
        if number < len(self.script):
            self.script[number](self)

    def _begin(self, trigger: Any) -> None: ...

    def offsets(self) -> dict[int, int]:
        """Return all offsets, but where it started if it has just done so."""
        if self.just_started or not self.starts:
            self.just_started = False
            return {}
        return durable_offsets(self._project)

    @property
    def active(self) -> bool:
        return self.runs

    has_run = True
    busy = False
    batch_seconds = 0.125

    def failure(self) -> str | None:
        return self.why

    def fail(self, reason: str) -> None:
        self.why, self.runs = reason, False

    def stop(self) -> None:
        self.runs = False


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake with ten samples, on no Spark."""
    monkeypatch.setattr(runner, "SparkDriver", StandInDriver)
    monkeypatch.setattr(runner, "prepare_session", lambda spark: None)
    monkeypatch.setattr(runner, "FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(runner, "RELOAD_SECONDS", 0.05)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    for name in ("TableQuery", "FlowQuery"):
        monkeypatch.setattr(runner, name, StandInQuery)
    monkeypatch.setattr(StandInQuery, "script", [])
    monkeypatch.setattr(StandInQuery, "starts", 0)
    monkeypatch.setattr(StandInDriver, "started", 0)
    monkeypatch.setattr(StandInDriver, "alive", True)
    assert zenlake("lake", "init", str(tmp_path / "fleet")).exit_code == 0
    spark_log.append(tmp_path / "fleet" / "log", 10)
    return tmp_path / "fleet"


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def named(found: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [fact for fact in found if fact["event"] == event]


def stopped(_: StandInQuery) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def failed(query: StandInQuery) -> None:
    query.fail("no such column")


def test_once_takes_what_is_there(lake: Path) -> None:
    done = zenlake("lake", "run", str(lake), "--once", "--json")
    assert done.exit_code == 0, done.output
    found = events(done.stdout)
    assert [event["event"] for event in found if event["event"] != "flow"] == [
        *("starting", "ready", "cycle", "stopped")
    ]
    (cycle,) = named(found, "cycle")
    assert (cycle["number"], cycle["ok"]) == (1, True)
    (flow,) = cycle["flows"]
    assert flow.pop("at") is not None
    assert flow == {
        "flow": "tables",
        "into": ["samples", "latest", "health", "loss", "messages", "messages_failed"],
        "state": "COMPLETED",
        "taken": 10,
        "behind": 0,
        "rows": {},
        "wrote": {},
        "reason": None,
    }


def test_once_that_fails_is_status_1_and_says_why(lake: Path) -> None:
    StandInQuery.script = [failed]
    done = zenlake("lake", "run", str(lake), "--once")
    assert done.exit_code == 1
    assert "flow tables failed: no such column" in done.output
    assert "tables: 10 read (failed)" in done.output


def test_a_cycle_says_what_was_read_and_what_was_written(lake: Path) -> None:
    project = Project.load(lake)

    def writes(_: StandInQuery) -> None:
        for name, count in (("samples", 3), ("latest", 1)):
            rows = conform(pa.table({"key": ["a"] * count}), TABLES[name].schema)
            store = DeltaStore(project.table(name), TABLES[name])
            store.commit(store.write(rows))

    StandInQuery.script = [writes, writes]
    done = zenlake("lake", "run", str(lake), "--once", "--json")
    assert done.exit_code == 0, done.output
    (flow,) = named(events(done.stdout), "cycle")[0]["flows"]
    assert (flow["rows"], flow["wrote"]) == ({"samples": 3, "latest": 1}, {"samples": 3})
    done = zenlake("lake", "run", str(lake), "--once")
    assert "tables: 0 read, 3 rows" in done.output
    done = zenlake("lake", "run", str(lake), "--once")
    assert "tables: 0 read, 0 rows" in done.output
    two = {"flow": "m", "taken": 4, "wrote": {"a": 3, "b": 1}, "behind": 0, "state": "COMPLETED"}
    said = format_event("cycle", {"number": 1, "seconds": 1.0, "flows": [two]})
    assert said is not None
    assert said.endswith(": m: 4 read, 3 rows in a, 1 row in b")


def test_a_run_that_cannot_begin_says_why(lake: Path) -> None:
    (lake / "spark-pipeline.yml").write_text("name: fleet\n")
    done = zenlake("lake", "run", str(lake), "--once")
    assert done.exit_code == 1
    assert "spark-pipeline.yml: " in done.output
    assert "storage" in done.output


def test_a_flow_that_failed_is_tried_again_until_told_to_stop(lake: Path) -> None:
    StandInQuery.script = [failed, failed, stopped]
    done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    assert done.exit_code == 0, done.output
    found = events(done.stdout)
    states = [event["state"] for event in named(found, "flow")]
    assert states == ["RUNNING", "FAILED", "RUNNING", "FAILED", "RUNNING"]
    assert [cycle["ok"] for cycle in named(found, "cycle")][:1] in ([True], [False])
    assert StandInDriver.started == 1


def test_pauses_become_longer_up_to_a_limit() -> None:
    backoff = runner.Backoff()
    pauses = []
    for _ in range(9):
        backoff.fail(100.0)
        pauses.append(backoff.retry_at - 100.0)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    backoff.succeed()
    backoff.fail(100.0)
    assert backoff.retry_at == 101.0


def test_without_news_there_is_no_cycle(lake: Path) -> None:
    def more(_: StandInQuery) -> None:
        threading.Timer(0.3, lambda: spark_log.append(lake / "log", 1)).start()
        threading.Timer(1.0, lambda: stopped(_)).start()

    StandInQuery.script = [more]
    done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    cycles = named(events(done.stdout), "cycle")
    assert [cycle["flows"][0]["taken"] for cycle in cycles] == [0, 10, 1]  # The first: it runs.


def test_a_spark_that_is_gone_is_started_again(lake: Path) -> None:
    def gone(_: StandInQuery) -> None:
        StandInDriver.alive = False
        raise ZError("the connection is refused")

    def back(query: StandInQuery) -> None:
        stopped(query)

    StandInQuery.script = [gone, back]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StandInDriver, "close", lambda _: setattr(StandInDriver, "alive", True))
        done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    assert done.exit_code == 0, done.output
    assert StandInDriver.started == 2
    assert "is started again" in named(events(done.stdout), "failed")[0]["reason"]


def test_a_batch_that_does_not_end_is_broken_off(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STOP_SECONDS", 0.2)
    killed = threading.Event()
    monkeypatch.setattr(StandInDriver, "kill", lambda _: killed.set())

    def endless(_: StandInQuery) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert killed.wait(60.0)
        StandInDriver.alive = False
        raise ZError("the connection is refused")

    StandInQuery.script = [endless]
    done = zenlake("lake", "run", str(lake), "--json")
    assert done.exit_code == 0, done.output
    assert killed.is_set()
    assert named(events(done.stdout), "failed") == []


OWN = """
from zenlake import lake

@lake.flow(into="own")
def own():
    raise AssertionError("not called here")
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import nosuchmodule", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def x(:", "SyntaxError"),
    ],
)
def test_a_file_that_does_not_load_stops_only_its_own_flows(
    lake: Path, line: str, said: str
) -> None:
    broken = lake / "transformations" / "broken.py"
    broken.write_text(f"{line}\n{OWN}")
    done = zenlake("lake", "run", str(lake), "--once", "--json")
    assert done.exit_code == 1
    found = events(done.stdout)
    told = {event["flow"]: (event["state"], event["reason"]) for event in named(found, "flow")}
    state, reason = told["transformations/broken.py"]
    assert state == "FAILED"
    assert said in reason
    assert "broken.py, line 1" in reason
    assert told["tables"] == ("COMPLETED", None)
    flows = {flow["flow"]: flow for flow in named(found, "cycle")[0]["flows"]}
    assert flows["tables"]["taken"] == 10
    assert flows["transformations/broken.py"]["state"] == "FAILED"
    assert "own" not in flows


def test_a_changed_file_is_loaded_while_the_lake_runs(lake: Path) -> None:
    broken = lake / "transformations" / "broken.py"
    broken.write_text("import nosuchmodule\n" + OWN)

    def mend(_: StandInQuery) -> None:
        threading.Timer(0.3, lambda: broken.write_text(OWN)).start()

    StandInQuery.script = [mend, stopped]
    done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    assert done.exit_code == 0, done.output
    running = [e["flow"] for e in named(events(done.stdout), "flow") if e["state"] == "RUNNING"]
    assert running == ["tables", "own"]


def test_a_lake_without_a_log(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(lake / "log")
    done = zenlake("lake", "run", str(lake), "--once")
    assert done.exit_code == 1
    assert "has no log yet: record first" in done.output

    def appears(*_: object, **__: object) -> None:
        spark_log.append(lake / "log", 5)

    StandInQuery.script = [stopped]
    threading.Timer(0.3, appears).start()
    done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    assert done.exit_code == 0, done.output
    states = [event["state"] for event in named(events(done.stdout), "flow")]
    assert states == ["WAITING", "RUNNING"]


def test_many_cycles_are_one_line(lake: Path) -> None:
    def more(query: StandInQuery) -> None:
        for delay in (0.2, 0.4, 0.6):
            threading.Timer(delay, lambda: spark_log.append(lake / "log", 1)).start()
        threading.Timer(1.0, lambda: stopped(query)).start()

    StandInQuery.script = [more]
    done = zenlake("lake", "run", str(lake), "--every", "10ms")
    lines = [line for line in done.output.splitlines() if line.startswith("cycle ")]
    assert len(lines) == 2
    assert "tables: 0 read, 10 behind" in lines[0]
    assert "tables: 13 read" in lines[1]


def test_a_flow_reads_changed_tables_again(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RENEW_SECONDS", 0.2)
    monkeypatch.setattr(StandInQuery, "is_stale", lambda query: query.starts == 1)
    StandInQuery.script = [lambda query: None, stopped]
    done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    assert done.exit_code == 0, done.output
    states = [event["state"] for event in named(events(done.stdout), "flow")]
    assert states == ["RUNNING", "RUNNING"]


def test_workers_of_a_flow_that_rests_are_kept(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def keep(query: StandInQuery) -> None:
        kept.append(query)
        if len(kept) == 2:
            stopped(query)

    monkeypatch.setattr(runner, "WARM_SECONDS", 0.1)
    monkeypatch.setattr(StandInQuery, "keep_warm", keep)
    done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    assert done.exit_code == 0, done.output
    assert len(kept) >= 2


def test_a_warm_up_that_fails_ends_nothing(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def keep(query: StandInQuery) -> None:
        tried.append(query)
        if len(tried) == 2:
            stopped(query)
        raise RuntimeError("no worker could be started")

    monkeypatch.setattr(runner, "WARM_SECONDS", 0.05)
    monkeypatch.setattr(StandInQuery, "keep_warm", keep)
    done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    assert done.exit_code == 0, done.output
    assert [event["state"] for event in named(events(done.stdout), "flow")] == ["RUNNING"]


def test_maintenance_that_fails_is_told_and_tried_again(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises: it reads tables of other tools, too."""
    tried = []

    def fail(_: Project) -> None:
        tried.append(threading.current_thread().name)
        if len(tried) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("no such file of a table")

    (lake / "tables").mkdir()
    monkeypatch.setattr(maintenance, "is_due", lambda _: True)
    monkeypatch.setattr(maintenance, "run_maintenance", fail)
    done = zenlake("lake", "run", str(lake), "--every", "10ms", "--json")
    assert done.exit_code == 0, done.output
    told = named(events(done.stdout), "failed")
    assert [(event["what"], event["reason"]) for event in told][:2] == [
        ("upkeep", "no such file of a table")
    ] * 2
    assert set(tried) == {"zenlake upkeep"}


def test_a_table_that_cannot_be_read_is_not_counted(lake: Path) -> None:
    damaged = lake / "tables" / "own" / "_delta_log"
    damaged.mkdir(parents=True)
    (damaged / f"{0:020}.json").write_text("not JSON")
    done = zenlake("lake", "run", str(lake), "--once", "--json")
    assert done.exit_code == 0, done.output
    assert named(events(done.stdout), "cycle")[0]["flows"][0]["taken"] == 10


def test_the_log_is_trimmed_behind_all_flows_while_files_are_loaded(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance runs on a thread of its own: at no moment may a flow be missing."""
    own = lake / "transformations" / "own.py"
    own.write_text(OWN)
    seen: list[int] = []
    driver: Any = StandInDriver("", "", {}, lake)
    flows = runner.RunningFlows(Project.load(lake), driver, None, lambda event, **facts: None)
    flows.supervise({"processingTime": "1 second"})

    class Watched(StandInQuery):
        """Trims the log as it is made."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            flows.trim_log()

    monkeypatch.setattr(runner, "FlowQuery", Watched)
    monkeypatch.setattr(StandInQuery, "stop", lambda query: flows.trim_log())
    monkeypatch.setattr(runner, "trim", lambda _, needed: seen.append(len(needed)))
    monkeypatch.setattr(runner, "RELOAD_SECONDS", 0.0)
    flows._reload_at = 0.0
    own.write_text(OWN + "\n# Changed.\n")
    flows.supervise({"processingTime": "1 second"})
    assert seen == [2, 2]  # When the new query is made, and when the old one is ended.


def test_two_flows_into_one_table_are_refused(lake: Path) -> None:
    (lake / "transformations" / "own.py").write_text(OWN.replace('"own"', '"samples"'))
    done = zenlake("lake", "run", str(lake), "--once")
    assert done.exit_code == 1
    assert "'samples' is filled by flow 'tables' and by flow 'own'" in done.output


def test_it_records_while_it_runs(tmp_path: Path, lake: Path) -> None:
    with peer() as publisher:
        home = tmp_path / "recorded"
        zenlake("lake", "init", str(home), "-e", publisher.endpoint, "-k", "robot/**")

        def put(query: StandInQuery) -> None:
            matching(publisher.session, "robot/1")
            block = api.CongestionControl.BLOCK
            publisher.session.put("robot/1", "hello", congestion_control=block)
            query.fail("so that there is a next start")

        def until_durable(query: StandInQuery) -> None:
            if _recorded(home / "log"):
                stopped(query)
            else:
                query.fail("not yet")

        StandInQuery.script = [put, *[until_durable] * MANY]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "LAST_RETRY_SECONDS", 0.05)
            done = zenlake("lake", "run", str(home), "--every", "50ms", "--json")
        assert done.exit_code == 0, done.output
        assert _recorded(home / "log") == [("robot/1", b"hello")]

        StandInQuery.starts, StandInQuery.script = 0, [stopped]
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
    connect = zenlake("lake", "run", str(lake), "--master", "sc://127.0.0.1:1")
    assert connect.exit_code == 1
    assert "add --once" in connect.output
    with runner.running_alone(Project.load(lake)):
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
