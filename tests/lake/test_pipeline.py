"""The queries of a lake on a real Spark: both ways to fill a table, old lakes, copies, resets."""

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from bench.lake_live import descendants
from bench.lake_rows import FIRST, block_of, rows_of
from tests.support.cli_in_process import zenlake
from tests.support.lake_account import same_rows, table
from tests.support.waiting import until
from zenlake.lake.pipeline.flows import BUILT_IN, Flow
from zenlake.lake.pipeline.progress import TABLES_FLOW, RowCounter, table_offsets
from zenlake.lake.pipeline.queries import FlowQuery, TableQuery
from zenlake.lake.pipeline.runner import FlowReport, RunningFlows, prepare_session
from zenlake.lake.pipeline.transformations import Transformations
from zenlake.lake.project import Project
from zenlake.lake.scaffold import create_project
from zenlake.log import format as layout
from zenlake.log.block import Loss
from zenlake.log.write.writer import Writer
from zenlake.spark.log_ranges import MIN_TASK_ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE = 300.0
pytestmark = [pytest.mark.spark, pytest.mark.timeout(2 * DEADLINE)]

PIECE = 200  # Samples that are recorded at once; every hundredth is a repeat.
BATCHES = 12  # Micro-batches in which processes are counted.
WARM_BATCHES = 3
OLD_TEMPLATE = {
    "samples": """
@lake.flow(into=["samples", "latest", "health"])
def samples():
    return lake.stream(spark, duplicates="mark")
""",
    "loss": """
@lake.flow(into="loss")
def loss():
    return lake.stream(spark, includeLoss="only")
""",
    "messages": """
@lake.flow(into=["messages", "messages_failed"])
def messages():
    return lake.decoded(lake.stream(spark, duplicates="drop"))
""",
}
"The flows of a lake that was made before the built-in tables had one query."
HEAD = """from pyspark.sql import SparkSession
from zenlake import lake
spark = SparkSession.active()
"""
SQL_FLOW = """
@lake.flow(into="keys")
def keys():
    rows = lake.stream(spark, keyExpr="fleet/robot/*/pose", duplicates="drop")
    return spark.sql("select key, length(payload) as size, offset from {rows}", rows=rows)
"""


def record(project: Project, pieces: int = 1, samples: int = PIECE) -> None:
    """Add samples to the log, and a loss before them."""
    with Writer(project.log) as writer:
        for _ in range(pieces):
            block = block_of(rows_of(writer.next, samples), FIRST * 10**9 + writer.next)
            number = writer.next
            block.add_loss(
                Loss(layout.SOURCE, FIRST * 10**9, b"\x5a" * 16, number, number + 1, 2, 1)
            )
            writer.write([block])


def declare(project: Project, **files: str) -> None:
    """Replace the transformations."""
    folder = project.home / "transformations"
    shutil.rmtree(folder)
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(HEAD + text)


def tables(*names: str) -> str:
    return "".join(f'lake.table("{name}")\n' for name in names or BUILT_IN)


def run_once(project: Project, spark: "SparkSession") -> dict[str, FlowReport]:
    """Do what `zenlake lake run --once` does, on a Spark that is there."""
    driver: Any = SimpleNamespace(
        session=spark, alive=True, ends_within=lambda _: False, truncate_log=lambda: None
    )
    project.state.mkdir(exist_ok=True)
    told: list[tuple[str, Any]] = []
    flows = RunningFlows(project, driver, None, lambda event, **facts: told.append((event, facts)))
    rows = RowCounter(project)
    try:
        flows.run_once(threading.Event())
        assert "failed" not in dict(told), told
        return {report.flow: report for report in flows.reports(rows.count())}
    finally:
        flows.stop()


def assert_completed(reports: dict[str, FlowReport]) -> None:
    assert reports
    for report in reports.values():
        assert (report.state, report.reason) == ("COMPLETED", None)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = create_project(tmp_path / "fleet", "fleet")
    record(made, 2)
    return made


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> dict[int, Path]:
    """Tables of two, and of four, pieces of the log, made in one run of the new template."""
    found = {}
    for pieces in (2, 4):
        made = create_project(tmp_path_factory.mktemp(f"expected{pieces}") / "fleet", "fleet")
        record(made, pieces)
        assert_completed(run_once(made, spark))
        found[pieces] = made.tables
    return found


def assert_tables(project: Project, expected: Path, names: tuple[str, ...] = BUILT_IN) -> None:
    for name in names:
        same_rows(project.table(name), expected / name)


def test_a_table_is_the_same_by_code_and_by_its_line(
    project: Project, spark: "SparkSession", expected: dict[int, Path]
) -> None:
    """Here `messages` and `loss` are flows of DataFrame code, and the others built in."""
    own = OLD_TEMPLATE["messages"] + OLD_TEMPLATE["loss"] + SQL_FLOW
    declare(project, mine=own, tables=tables("samples", "latest", "health"))
    reports = run_once(project, spark)
    assert_completed(reports)
    assert_tables(project, expected[2])
    keys = table(project.table("keys"))
    assert keys.num_rows == reports["keys"].wrote["keys"] > 0
    assert set(keys.column_names) == {"key", "size", "offset"}
    assert reports["tables"].taken == 2 * PIECE
    assert reports["tables"].behind == 0
    for name in (*BUILT_IN, "keys"):
        assert table_offsets(project)[name] == {0: 2 * PIECE}


@pytest.mark.campaign
def test_a_lake_of_the_old_template_goes_on(
    project: Project, spark: "SparkSession", expected: dict[int, Path]
) -> None:
    declare(project, **OLD_TEMPLATE)
    assert_completed(run_once(project, spark))
    assert_tables(project, expected[2])
    record(project)
    assert_completed(run_once(project, spark))  # By its own flows again,
    declare(project, tables=tables())
    record(project)
    reports = run_once(project, spark)  # and by the built-in query from where they ended.
    assert_completed(reports)
    assert_tables(project, expected[4])


@pytest.mark.campaign
def test_a_copy_and_its_original_go_their_own_ways(
    project: Project, spark: "SparkSession", expected: dict[int, Path], tmp_path: Path
) -> None:
    own = project.home / "transformations" / "own.py"
    own.write_text(HEAD + SQL_FLOW)
    assert_completed(run_once(project, spark))
    copy = Project.load(shutil.copytree(project.home, tmp_path / "copy"))
    for lake in (copy, project, copy, project):
        record(lake)
        assert_completed(run_once(lake, spark))
    moved = Project.load(shutil.move(project.home, tmp_path / "moved"))
    assert_completed(run_once(moved, spark))
    for lake in (copy, moved):
        assert_tables(lake, expected[4])
    same_rows(copy.table("keys"), moved.table("keys"))
    offsets = table(copy.table("keys"))["offset"].to_pylist()
    assert len(offsets) == len(set(offsets)) > 0


def test_a_removed_table_is_refused_and_reset_fills_it(
    project: Project, spark: "SparkSession", expected: dict[int, Path]
) -> None:
    (project.home / "transformations" / "own.py").write_text(HEAD + SQL_FLOW)
    assert_completed(run_once(project, spark))
    before = table(project.table("keys")).num_rows
    for name in ("messages", "keys"):
        shutil.rmtree(project.table(name))
    record(project, 2)
    reports = run_once(project, spark)
    for flow, name in (("tables", "messages"), ("keys", "keys")):
        assert reports[flow].state == "FAILED"
        assert f"zenlake lake reset LAKE {name}" in (reports[flow].reason or "")
    assert not project.table("messages").exists()

    done = zenlake("lake", "reset", str(project.home), "messages", "keys", "latest")
    assert done.exit_code == 0, done.output
    assert "messages is removed, and filled from the log by the next run" in done.output
    assert_completed(run_once(project, spark))
    assert_tables(project, expected[4])
    keys = table(project.table("keys"))["offset"].to_pylist()
    assert len(keys) == len(set(keys)) > before


def test_a_flow_whose_checkpoint_is_lost_is_refused(
    project: Project, spark: "SparkSession"
) -> None:
    """Also if its rows have no offsets by which they could be recognised."""
    flow = SQL_FLOW.replace(", offset", "")
    declare(project, own=flow)
    assert_completed(run_once(project, spark))
    rows = table(project.table("keys")).num_rows
    shutil.rmtree(project.state)
    reports = run_once(project, spark)
    assert reports["keys"].state == "FAILED"
    assert "another query of flow 'keys' has filled it" in (reports["keys"].reason or "")
    assert table(project.table("keys")).num_rows == rows


READING = """
@lake.flow(into="joined")
def joined():
    latest = lake.read(spark, "latest").selectExpr("key", "offset as newest")
    return lake.stream(spark, duplicates="drop").join(latest, "key").select("offset", "newest")
"""


def test_a_flow_may_read_the_tables(project: Project, spark: "SparkSession") -> None:
    (project.home / "transformations" / "own.py").write_text(HEAD + READING)
    assert_completed(run_once(project, spark))  # In the order of names, after the built-in ones.
    rows = table(project.table("joined")).to_pylist()
    assert rows
    assert all(row["offset"] <= row["newest"] for row in rows)
    (flow,) = [f for f in declared(project, spark) if f.name == "joined"]
    query = FlowQuery(project, spark, flow)
    query.start({"availableNow": True})
    try:
        assert not query.is_stale()
        record(project)
        assert run_once(project, spark)["tables"].state == "COMPLETED"
        assert query.is_stale()
    finally:
        query.stop()


def declared(project: Project, spark: "SparkSession") -> list[Flow]:
    loaded = Transformations(project, spark)
    loaded.reload()
    return list(loaded.flows().values())


def test_built_in_tables_go_on_without_their_state(
    project: Project, spark: "SparkSession", expected: dict[int, Path]
) -> None:
    assert_completed(run_once(project, spark))
    shutil.rmtree(project.state)
    record(project, 2)
    assert_completed(run_once(project, spark))
    assert_tables(project, expected[4])


def test_micro_batches_start_no_python_process(project: Project, spark: "SparkSession") -> None:
    prepare_session(spark)
    project.state.mkdir()
    jvm = cast(Any, spark.sparkContext)._gateway.proc.pid
    query = TableQuery(project, spark, Flow(TABLES_FLOW, BUILT_IN))
    query.start({"processingTime": "0 seconds"})

    def advance(samples: int = PIECE) -> None:
        record(project, 1, samples)
        end = record_end(project)
        until(
            lambda: (query.failure(), dict(query.offsets())),
            lambda seen: seen[0] is not None or seen[1] == {0: end},
            DEADLINE,
        )
        assert query.failure() is None

    def pythons() -> set[tuple[int, str]]:
        return {(pid, start) for pid, start, command in descendants(jvm) if "python" in command}

    try:
        for _ in range(WARM_BATCHES):
            advance()
        before, seen = pythons(), set()
        for _ in range(BATCHES):
            advance()
            seen |= pythons()
        assert seen - before == set()
        query.keep_warm()
        before = pythons()
        advance(3 * MIN_TASK_ROWS)  # As many tasks as there are cores, instead of one.
        assert pythons() - before == set()
    finally:
        query.stop()


def record_end(project: Project) -> int:
    from zenlake.log.read.log import Log

    return int(Log(project.log).mark(0).offset)
