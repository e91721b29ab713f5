"""`zenlake lake check` and `reset`, and `info` of flows, on lakes filled here and without Spark."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from bench.lake_rows import FIRST, block_of, rows_of
from tests.support import lake_ranges
from tests.support.cli_in_process import zenlake
from tests.support.delta_runtime import start_delta_runtime
from zenlake.lake.pipeline import reset
from zenlake.lake.pipeline.flows import BUILT_IN
from zenlake.lake.pipeline.runner import running_alone
from zenlake.lake.project import Project
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.record import TableRecord
from zenlake.log.read.log import Log
from zenlake.log.write.writer import Writer

pytestmark = pytest.mark.slow

ROWS = 400


@pytest.fixture(scope="module", autouse=True)
def _delta_runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    start_delta_runtime(tmp_path_factory.mktemp("delta"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    assert zenlake("lake", "init", str(tmp_path / "fleet")).exit_code == 0
    made = Project.load(tmp_path / "fleet")
    with Writer(made.log, rotate_bytes=1) as writer:  # A segment per block.
        for first in range(0, ROWS, 100):
            writer.write([block_of(rows_of(first, 100), FIRST * 10**9 + first)])
    return made


def rows_in(project: Project, name: str) -> int:
    return DeltaStore(project.table(name), TABLES[name]).snapshot().rows


def leave_checkpoint(project: Project, flow: str, end: int, *into: str) -> None:
    """Leave what a flow that took offsets up to `end` leaves on the disk."""
    folder = project.state / "_checkpoints" / flow
    for name in ("offsets", "commits"):
        (folder / flow / "0" / name).mkdir(parents=True)
    told = json.dumps({"log": Log(project.log).id, "partitions": {"0": end}})
    (folder / flow / "0" / "offsets" / "0").write_text(f"v1\n{{}}\n{told}\n")
    (folder / flow / "0" / "commits" / "0").write_text("v1\n{}")
    if into:
        TableRecord(folder).replace(into)


# ---- reset


def test_reset_removes_a_table_and_the_next_run_fills_it(project: Project) -> None:
    lake_ranges.fill(project)
    before = {name: rows_in(project, name) for name in BUILT_IN}
    done = zenlake("lake", "reset", str(project.home), "latest", "messages", "--json")
    assert done.exit_code == 0, done.output
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"table": "latest", "lost": 0},
        {"table": "messages", "lost": 0},
        {"table": "messages_failed", "lost": 0},  # Which has samples that messages lacks.
    ]
    removed = {"latest", "messages", "messages_failed"}
    for name in (*removed, "tombstones"):
        assert not project.table(name).exists()
    assert TableRecord(project.state).names() == {*BUILT_IN} - removed
    lake_ranges.fill(project)
    assert {name: rows_in(project, name) for name in BUILT_IN} == before


def test_reset_after_a_reset_that_was_killed(project: Project) -> None:
    """The table is gone, and the record says that it was filled."""
    lake_ranges.fill(project)
    shutil.rmtree(project.table("health"))
    assert zenlake("lake", "reset", str(project.home), "health").exit_code == 0
    lake_ranges.fill(project)
    assert rows_in(project, "health") > 0


def test_rows_that_the_log_no_longer_has_are_lost_only_by_force(project: Project) -> None:
    lake_ranges.fill(project)
    Log(project.log).trim(before_offset=200, partition=0)
    refused = zenlake("lake", "reset", str(project.home), "samples")
    assert refused.exit_code == 1
    assert "samples: up to" in refused.output
    assert "--force" in refused.output
    assert rows_in(project, "samples") > 0
    done = zenlake("lake", "reset", str(project.home), "samples", "--force")
    assert done.exit_code == 0
    assert "may be lost" in done.output
    lake_ranges.fill(project)
    assert 0 < rows_in(project, "samples") <= ROWS - Log(project.log).first(0)


def test_rows_of_another_log_are_lost_only_by_force(project: Project, tmp_path: Path) -> None:
    """The log is not mounted, is an older copy, lacks a recorder's folder, or is a new one."""
    shutil.copytree(project.log, tmp_path / "older")
    with Writer(project.log) as writer:
        writer.write([block_of(rows_of(ROWS, 100), FIRST * 10**9 + ROWS)])
    with Writer(project.log, 1) as writer:
        writer.write([block_of(rows_of(0, 100), FIRST * 10**9)])
    lake_ranges.fill(project)
    rows = rows_in(project, "samples")
    newest = shutil.move(project.log, tmp_path / "newest")

    def is_refused() -> None:
        refused = zenlake("lake", "reset", str(project.home), "samples")
        assert refused.exit_code == 1
        assert f"samples: up to {rows} rows would be lost" in refused.output

    is_refused()
    shutil.copytree(tmp_path / "older", project.log)
    is_refused()
    shutil.rmtree(project.log)
    shutil.copytree(newest, project.log)
    shutil.rmtree(project.log / "1")
    is_refused()
    shutil.rmtree(project.log)
    with Writer(project.log) as writer:
        writer.write([block_of(rows_of(0, 900), FIRST * 10**9)])
    is_refused()
    assert rows_in(project, "samples") == rows
    shutil.rmtree(project.log)
    shutil.copytree(newest, project.log)
    assert zenlake("lake", "reset", str(project.home), "samples").exit_code == 0


@pytest.mark.parametrize("case", ["other", "older"])
def test_rows_of_a_flow_on_another_log_are_lost_only_by_force(project: Project, case: str) -> None:
    """A table of a flow may have no offsets: its checkpoint names the log."""
    table = TABLES["loss"]._replace(name="own")
    store = DeltaStore(project.table("own"), table)
    lost = pa.Table.from_pylist([{"partition": 0}], table.schema)
    store.commit(store.write(lost))
    leave_checkpoint(project, "own", ROWS if case == "other" else ROWS + 1, "own")
    if case == "other":
        shutil.rmtree(project.log)
        with Writer(project.log) as writer:
            writer.write([block_of(rows_of(0, 900), FIRST * 10**9)])
    refused = zenlake("lake", "reset", str(project.home), "own")
    assert refused.exit_code == 1
    assert "own: up to 1 rows would be lost" in refused.output
    assert zenlake("lake", "reset", str(project.home), "own", "--force").exit_code == 0


def test_checkpoints_of_pipelines_go_with_their_tables(project: Project) -> None:
    """`spark-pipelines run` has a flow per built-in table; a checkpoint left would skip rows."""
    lake_ranges.fill(project)
    for name in ("messages", "messages_failed", "samples"):
        leave_checkpoint(project, name, 100, name)
    assert zenlake("lake", "reset", str(project.home), "messages").exit_code == 0
    left = {path.name for path in (project.state / "_checkpoints").iterdir()}
    assert left == {"samples"}
    assert zenlake("lake", "check", str(project.home), "--no-spark").exit_code == 0


def test_checkpoints_in_another_place_are_not_forgotten(project: Project) -> None:
    """A table that starts again while its checkpoint stays would lack its first rows."""
    DeltaStore(project.table("own"), TABLES["loss"]._replace(name="own")).commit()
    leave_checkpoint(project, "own", 100, "own")
    spec = project.home / "spark-pipeline.yml"
    text = spec.read_text()
    spec.write_text(text.replace("file:///proc/self/cwd/state", "s3a://bucket/state"))
    refused = zenlake("lake", "reset", str(project.home), "own")
    assert refused.exit_code == 1
    assert "remove s3a://bucket/state/_checkpoints/own" in refused.output
    assert project.table("own").exists()


def test_a_reset_that_is_killed_leaves_no_checkpoint_without_its_record(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeltaStore(project.table("own"), TABLES["loss"]._replace(name="own")).commit()
    leave_checkpoint(project, "own", 100, "own")
    remove = shutil.rmtree

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if "own" in Path(path).name and not ignore_errors:
            raise KeyboardInterrupt
        remove(path, ignore_errors)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            reset.reset(project, reset.plan_reset(project, ["own"]))
    assert not (project.state / "_checkpoints" / "own").exists()


def test_tables_of_one_flow_are_reset_together(project: Project) -> None:
    for name in ("left", "right"):
        store = DeltaStore(project.table(name), TABLES["loss"]._replace(name=name))
        store.commit()
    leave_checkpoint(project, "own", 100, "left", "right")
    refused = zenlake("lake", "reset", str(project.home), "left")
    assert refused.exit_code == 1
    assert "fills 'left' together with right" in refused.output
    assert project.table("left").exists()
    assert zenlake("lake", "reset", str(project.home), "left", "right").exit_code == 0
    assert not project.table("left").exists()
    assert not (project.state / "_checkpoints" / "own").exists()


def test_a_flow_of_an_old_lake_is_reset_with_its_checkpoint(project: Project) -> None:
    for name in ("messages", "messages_failed"):
        DeltaStore(project.table(name), TABLES[name]).commit()
    leave_checkpoint(project, "messages", 100)
    refused = zenlake("lake", "reset", str(project.home), "messages")
    assert "together with messages_failed" in refused.output
    done = zenlake("lake", "reset", str(project.home), "messages", "messages_failed")
    assert done.exit_code == 0, done.output
    assert not (project.state / "_checkpoints" / "messages").exists()


@pytest.mark.parametrize(
    ("table", "said"),
    [("sampels", "did you mean 'samples'"), ("tombstones", "go with `latest`")],
)
def test_what_reset_refuses(project: Project, table: str, said: str) -> None:
    lake_ranges.fill(project)
    refused = zenlake("lake", "reset", str(project.home), table)
    assert refused.exit_code == 1
    assert said in refused.output


def test_a_lake_that_runs_is_not_reset(project: Project) -> None:
    lake_ranges.fill(project)
    with running_alone(project):
        refused = zenlake("lake", "reset", str(project.home), "samples")
    assert refused.exit_code == 1
    assert "another process runs" in refused.output
    assert rows_in(project, "samples") > 0


# ---- info


def test_info_tells_how_far_every_flow_is(project: Project) -> None:
    lake_ranges.fill(project, batches=1, rows=300)
    leave_checkpoint(project, "tables", 300)
    leave_checkpoint(project, "own", 100, "left")
    leave_checkpoint(project, "quiet", 250)
    DeltaStore(project.table("left"), TABLES["loss"]._replace(name="left")).commit()
    facts = json.loads(zenlake("lake", "info", str(project.home), "--json").stdout)
    behind = {table["table"]: table["behind"] for table in facts["tables"]}
    assert behind == {**dict.fromkeys(BUILT_IN, 100), "left": 300}
    flows = {flow["flow"]: (flow["into"], flow["behind"]) for flow in facts["flows"]}
    assert flows == {
        "tables": (sorted(BUILT_IN), 100),
        "own": (["left"], 300),
        "quiet": ([], 150),
    }
    shown = zenlake("lake", "info", str(project.home)).stdout
    assert "flow quiet: 150 behind, no rows yet" in shown
    (line,) = [line for line in shown.splitlines() if "messages_failed" in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[-2:] == ["tables", "100"]


# ---- check


def test_check_finds_what_needs_no_spark(project: Project) -> None:
    lake_ranges.fill(project)
    good = zenlake("lake", "check", str(project.home), "--no-spark")
    assert good.exit_code == 0, good.output
    assert "ok      lake.toml: 0 rules for decoders" in good.output

    text = (project.home / "lake.toml").read_text()
    (project.home / "lake.toml").write_text(text + '\n[[decoders]]\nkey = "a"\nuse = "protobufs"\n')
    (project.home / "spark-pipeline.yml").write_text("name: [")
    shutil.rmtree(project.table("loss"))
    bad = zenlake("lake", "check", str(project.home), "--no-spark", "--json")
    assert bad.exit_code == 1
    problems = {
        found["what"]: found["problem"] for found in map(json.loads, bad.stdout.splitlines())
    }
    assert "protobufs" in problems["lake.toml"]
    assert "spark-pipeline.yml" in problems["spark-pipeline.yml"]
    assert "zenlake lake reset LAKE loss" in problems["tables"]


def test_check_finds_a_log_that_does_not_fit_the_tables(project: Project, tmp_path: Path) -> None:
    shutil.copytree(project.log, tmp_path / "older")
    with Writer(project.log) as writer:
        writer.write([block_of(rows_of(ROWS, 100), FIRST * 10**9 + ROWS)])
    lake_ranges.fill(project)
    before = DeltaStore(project.table("samples"), TABLES["samples"]).snapshot().version
    assert zenlake("lake", "check", str(project.home), "--no-spark").exit_code == 0
    shutil.rmtree(project.log)
    shutil.copytree(tmp_path / "older", project.log)
    bad = zenlake("lake", "check", str(project.home), "--no-spark")
    assert bad.exit_code == 1
    assert "it is an older copy" in bad.output
    assert DeltaStore(project.table("samples"), TABLES["samples"]).snapshot().version == before


def test_check_misses_a_removed_table_of_a_flow(project: Project) -> None:
    leave_checkpoint(project, "own", 100, "own")
    bad = zenlake("lake", "check", str(project.home), "--no-spark")
    assert bad.exit_code == 1
    assert "zenlake lake reset LAKE own" in bad.output


OWN = """
from pyspark.sql import SparkSession
from zenlake import lake
spark = SparkSession.active()

@lake.flow(into="good")
def good():
    return lake.stream(spark, keyExpr="robot/**").select("key", "offset")

@lake.flow(into="loss")
def wrong_columns():
    return lake.stream(spark).select("key")

@lake.flow(into="still")
def not_a_stream():
    return spark.range(3)

@lake.flow(into="raises")
def raises():
    return lake.stream(spark, keyExp="robot/**")
"""


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_check_analyses_every_flow(project: Project) -> None:
    folder = project.home / "transformations"
    (folder / "tables.py").write_text('from zenlake import lake\nlake.table("samples")\n')
    (folder / "own.py").write_text(OWN)
    (folder / "broken.py").write_text("import nosuchmodule\n")
    bad = zenlake("lake", "check", str(project.home), "--json")
    assert bad.exit_code == 1
    found = {
        fact["what"]: fact["problem"]
        for line in bad.stdout.splitlines()
        if (fact := json.loads(line))
    }
    assert found["flow tables"] is None
    assert found["flow good"] is None
    assert "needs a column" in found["flow wrong_columns"]
    assert "not a stream" in found["flow not_a_stream"]
    assert "own.py, line " in found["flow raises"]
    assert "did you mean 'keyExpr'" in found["flow raises"]
    assert "No module named 'nosuchmodule'" in found["transformations/broken.py"]
    assert not project.tables.exists()
