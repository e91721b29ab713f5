"""The built-in tables, filled range by range: each row once, whatever breaks off or is missing."""

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from bench.lake_rows import FIRST, block_of, rows_of
from tests.support.crash_steps import Place, Steps, breaks_off
from tests.support.lake_account import same_rows, table
from tests.support.lake_ranges import fill, open_tables, planned, write_batch
from zenlake.errors import ZError
from zenlake.lake.pipeline import flows, range_task
from zenlake.lake.pipeline.flows import BUILT_IN, Flow, batch_ends
from zenlake.lake.pipeline.progress import TABLES_FLOW
from zenlake.lake.pipeline.queries import TableQuery
from zenlake.lake.project import Project
from zenlake.lake.tables import projections, table_set
from zenlake.lake.tables.commit import OffsetsPresent, log_number
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DeltaStore, FileWriter
from zenlake.lake.tables.projections import TableWriter, TaskOutput, commit_resumed
from zenlake.lake.tables.record import TableRecord, TableRemoved
from zenlake.lake.tables.table_set import MissingRange
from zenlake.log import format as layout
from zenlake.log.block import Loss
from zenlake.log.read.log import Log
from zenlake.log.read.reader import Reader
from zenlake.log.write.writer import Writer
from zenlake.spark.log_source import LogStreamReader
from zenlake.spark.options import Options, Purpose
from zenlake.spark.schema import with_duplicate

pytestmark = pytest.mark.slow

ROWS = 600  # Samples of the log, of which every hundredth is a repeat.
BATCH = 150
FULL = bool(os.environ.get("ZENLAKE_FULL"))
FAULTS = 12  # Steps at which a commit breaks off; ZENLAKE_FULL=1: all of them.


def add_rows(project: Project, first: int, count: int) -> None:
    with Writer(project.log) as writer:
        for start in range(first, first + count, 100):
            block = block_of(rows_of(start, min(100, first + count - start)), FIRST * 10**9)
            if start == 200:
                block.add_loss(Loss(layout.SOURCE, FIRST * 10**9, b"\x5a" * 16, 7, 9, 3, 1))
            writer.write([block])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project.parse('[lake]\nname = "fleet"\n', tmp_path / "lake" / "lake.toml")
    made.home.mkdir()
    add_rows(made, 0, ROWS)
    return made


def copy_of(project: Project, name: str) -> Project:
    """Another lake with the same log."""
    text = f'[lake]\nname = "{name}"\nlog = "{project.log}"\n'
    made = Project.parse(text, project.home.parent / name / "lake.toml")
    made.home.mkdir()
    return made


@pytest.fixture
def whole(project: Project) -> Project:
    """A lake whose tables were filled in one batch."""
    made = copy_of(project, "whole")
    fill(made)
    return made


def assert_same(first: Project, other: Project, names: tuple[str, ...] = BUILT_IN) -> None:
    for name in names:
        same_rows(first.table(name), other.table(name))


def rows_in(project: Project, name: str) -> int:
    return DeltaStore(project.table(name), TABLES[name]).snapshot().rows


def test_many_small_batches_make_the_tables_of_one(project: Project, whole: Project) -> None:
    fill(project, BATCH)
    assert_same(project, whole)
    assert rows_in(whole, "samples") == ROWS - ROWS // 100
    assert rows_in(whole, "messages") == ROWS // 2
    assert rows_in(whole, "loss") == 1
    assert all(rows_in(whole, name) for name in ("latest", "health"))
    for name in BUILT_IN:
        assert DeltaStore(project.table(name), TABLES[name]).offsets() == {0: ROWS}


def test_nothing_new_changes_nothing(project: Project) -> None:
    fill(project, BATCH)
    before = {
        name: DeltaStore(project.table(name), TABLES[name]).current.version for name in BUILT_IN
    }
    fill(project, BATCH)
    tables = open_tables(project)
    for batch in planned(project.log, BATCH):  # As a checkpoint that is older than the tables.
        tables.commit(write_batch(project, tables, batch))
    tables.close()
    after = {
        name: DeltaStore(project.table(name), TABLES[name]).current.version for name in BUILT_IN
    }
    assert after == before


PLACES: tuple[Place, ...] = (
    (DeltaStore, "_commit_once"),
    (DeltaStore, "_sync_log"),
    (FileWriter, "close"),
    (projections.TableWriter, "_stage"),
    (table_set, "unstage"),
    (TableRecord, "replace"),
)


def test_a_batch_may_break_off_at_any_step(
    project: Project, whole: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then another process goes on from what the tables have, with other batches."""
    monkeypatch.setattr(table_set, "COMMIT_THREADS", 1)  # So that steps have numbers.
    alone = Steps(PLACES)
    with pytest.MonkeyPatch.context() as patch:
        alone.patch(patch)
        fill(copy_of(project, "alone"), BATCH)
    chance = random.Random(5)
    every = [(step, after) for step in range(alone.count) for after in (False, True)]
    assert len(every) > 100
    for step, after in every if FULL else chance.sample(every, FAULTS):
        broken = copy_of(project, f"broken-{step}-{after}")
        with pytest.MonkeyPatch.context() as patch:
            Steps(PLACES, step, after, breaks_off).patch(patch)
            with pytest.raises(OSError, match="disk"):
                fill(broken, BATCH)
        fill(broken, chance.randint(50, 400))
        assert_same(broken, whole)
        shutil.rmtree(broken.home)


def test_a_process_that_is_thought_to_be_dead_may_go_on(
    project: Project, whole: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two steps of its commit another process fills all tables."""
    monkeypatch.setattr(table_set, "COMMIT_THREADS", 1)

    def commit_second_batch(lake: Project, steps: Steps) -> None:
        tables = open_tables(lake)
        batches = planned(lake.log, BATCH)
        tables.commit(write_batch(lake, tables, next(batches)))
        written = write_batch(lake, tables, next(batches))
        batches.close()
        with pytest.MonkeyPatch.context() as patch:
            steps.patch(patch)
            tables.commit(written)

    alone = Steps(PLACES)
    commit_second_batch(copy_of(project, "alone"), alone)
    for step in range(alone.count):
        lake = copy_of(project, f"zombie-{step}")

        def others(lake: Project = lake) -> None:
            fill(lake)

        with suppress(ZError, OSError):  # No one reads the error of a dead process.
            commit_second_batch(lake, Steps(PLACES, step, False, others))
        fill(lake)
        assert_same(lake, whole)
        shutil.rmtree(lake.home)


@pytest.fixture
def two_recorders(tmp_path: Path) -> Project:
    """A lake of two recorders that got the same samples; the second is ahead of the first."""
    made = Project.parse('[lake]\nname = "two"\n', tmp_path / "two" / "lake.toml")
    made.home.mkdir()
    for partition, shift in ((0, 0), (1, 200)):
        with Writer(made.log, partition) as writer:
            for first in range(0, ROWS, 100):
                number = (first + shift) % ROWS
                writer.write([block_of(rows_of(number, 100), FIRST * 10**9 + first)])
    return made


def assert_each_sample_once(lake: Project) -> None:
    sources = table(lake.table("samples"))["source"].to_pylist()
    seen = [(source["id"], source["entity"], source["sn"]) for source in sources]
    assert len(seen) == len(set(seen)) == ROWS - ROWS // 100


def test_rows_through_spark_go_on_from_where_the_query_of_the_tables_was(
    two_recorders: Project,
) -> None:
    """By `spark-pipelines run`, whose flow has a checkpoint of its own and begins at offset 0."""
    lake = two_recorders
    fill(lake, 400, ("samples",), batches=1)
    store = DeltaStore(lake.table("samples"), TABLES["samples"])
    raw = {"path": str(lake.log), "duplicates": "mark", "batchends": batch_ends([store.offsets()])}
    reader = LogStreamReader(Options.parse(raw, Purpose.LOG_STREAM), with_duplicate())
    at = reader.initialOffset()
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        present = store.offsets()
        writer = TableWriter({"samples": store}, "spark", present={"samples": present})
        for part in reader.partitions(at, end):
            for rows in reader.read(part):
                writer.add(rows)
        commit_resumed(store, [writer.finish()], [present], Log(lake.log).id)
        at = end
    reader.stop()
    assert_each_sample_once(lake)
    with pytest.raises(ZError, match="filled from another log"):
        commit_resumed(store, [TaskOutput(ranges={"samples": {0: (900, 999)}})], [{}], "other")


def test_a_pipeline_of_spark_ends_a_batch_where_its_table_is(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(project.log, tmp_path / "older")
    add_rows(project, ROWS, 100)
    fill(project)
    spark = MagicMock()
    monkeypatch.setattr("pyspark.sql.SparkSession.active", lambda: spark)
    with flows.collect(project, in_pipeline=True):
        flows._built_in_rows("samples")
        options = spark.readStream.format.return_value.options.call_args.kwargs
        assert options["batchEnds"] == f'[{{"0": {ROWS + 100}}}]'
        shutil.rmtree(project.log)
        shutil.copytree(tmp_path / "older", project.log)
        with pytest.raises(ZError, match="it is an older copy"):
            flows._built_in_rows("samples")


def test_offsets_of_rows_through_spark_are_no_account_of_the_log(project: Project) -> None:
    """They end at the last row; the flow's checkpoint tells that it went on."""
    store = DeltaStore(project.table("loss"), TABLES["loss"])
    output = TaskOutput(ranges={"loss": {0: (200, 200)}})
    commit_resumed(store, [output], [{}], Log(project.log).id)
    with Writer(project.log, rotate_bytes=1) as writer:
        writer.write([block_of(rows_of(ROWS, 100), FIRST * 10**9)])
        writer.write([block_of(rows_of(ROWS + 100, 100), FIRST * 10**9)])
    Log(project.log).trim(before_offset=ROWS, partition=0)
    tables = open_tables(project, ("loss",), taken={"loss": {0: ROWS + 50}})
    assert tables.start() == {0: ROWS}
    tables.close(records=False)


def test_a_worker_loads_its_kernels_from_few_bytes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = []
    monkeypatch.setattr(range_task, "_warmed", set())
    monkeypatch.setattr(range_task, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(range_task, "write_range", lambda part, job: parts.append(part))
    for limit, rows in ((1 << 20, range_task.WARM_UP_ROWS), (1, 1)):
        monkeypatch.setattr(range_task, "WARM_UP_BYTES", limit)
        range_task._warmed.clear()
        for _ in range(2):  # Once per worker and log.
            assert [*range_task.warm_up([], str(project.log))] == []
        assert [part.end - part.start for part in parts] == [rows]
        parts.clear()
    empty = project.home / "empty"
    Writer(empty).close()
    assert [*range_task.warm_up([], str(empty))] == []
    assert str(empty) not in range_task._warmed
    assert [*range_task.warm_up([], "/no/such/log")] == []
    assert parts == []


def test_two_recorders_and_tables_that_are_not_equally_far(two_recorders: Project) -> None:
    """Which copy of a sample is the repeat depends on the ends of batches: none may move."""
    made = two_recorders
    chance = random.Random(7)
    for turn in range(4):
        lake = copy_of(made, f"turn-{turn}")
        fill(lake, 200, ("loss", "samples"), batches=chance.randint(1, 2))
        fill(lake, 130, ("samples", "messages"), batches=chance.randint(1, 3))
        fill(lake, chance.randint(90, 700))
        assert_each_sample_once(lake)
        messages = table(lake.table("messages"))["source"].to_pylist()
        assert len(messages) == len({(one["entity"], one["sn"]) for one in messages})


def test_positions_move_only_with_a_commit_that_succeeded(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = open_tables(project)
    batches = planned(project.log, BATCH)
    tables.commit(write_batch(project, tables, next(batches)))
    written = write_batch(project, tables, next(batches))
    batches.close()
    monkeypatch.setattr(DeltaStore, "_commit_once", lambda *_: breaks_off())
    with pytest.raises(OSError, match="disk"):
        tables.commit(written)
    assert tables.positions() == {name: {0: BATCH} for name in BUILT_IN}
    tables.close()
    with pytest.raises(ZError, match="the query has ended"):
        tables.commit(written)


def test_a_commit_on_old_positions_is_refused(project: Project) -> None:
    sleeper = open_tables(project)
    batch = next(planned(project.log, BATCH))
    written = write_batch(project, sleeper, batch)
    fill(project)
    with pytest.raises(OffsetsPresent, match="another process writes this table"):
        sleeper.commit(written)
    sleeper.close()


# ---- tables that join, leave and go missing


def test_a_table_that_joins_later_has_all_rows(project: Project, whole: Project) -> None:
    fill(project, BATCH, ("samples", "latest"), batches=2)
    fill(project, BATCH, ("samples", "health", "loss"), batches=2)
    fill(project, BATCH)
    assert_same(project, whole)


def test_a_table_that_is_removed_is_missed(project: Project) -> None:
    fill(project, BATCH, batches=2)
    shutil.rmtree(project.table("messages"))
    with pytest.raises(TableRemoved, match="zenlake lake reset LAKE messages"):
        open_tables(project)
    fill(project, BATCH, ("samples", "latest"))  # It may be left out.
    fill(project, BATCH)  # And made again later, from the beginning.
    assert rows_in(project, "messages") == ROWS // 2


def test_a_table_that_is_removed_while_the_lake_runs_is_missed(project: Project) -> None:
    tables = open_tables(project)
    batches = planned(project.log, BATCH)
    tables.commit(write_batch(project, tables, next(batches)))
    shutil.rmtree(project.table("health"))
    with pytest.raises(TableRemoved, match="health"):
        tables.commit(write_batch(project, tables, next(batches)))
    batches.close()
    tables.close()
    assert not DeltaStore(project.table("health"), TABLES["health"]).exists()


def test_a_batch_that_would_leave_rows_out_is_refused(project: Project) -> None:
    tables = open_tables(project)
    batches = planned(project.log, BATCH)
    next(batches)
    with pytest.raises(MissingRange, match=r"starts at offset 150 .* up to -1"):
        tables.commit(write_batch(project, tables, next(batches)))
    batches.close()
    tables.close()
    assert not project.tables.exists() or not list(project.tables.glob("*/_delta_log"))


def test_an_older_table_is_filled_from_the_log(
    project: Project, whole: Project, tmp_path: Path
) -> None:
    fill(project, BATCH, batches=1)
    shutil.copytree(project.table("messages"), tmp_path / "backup")
    fill(project, BATCH)
    shutil.rmtree(project.table("messages"))
    shutil.copytree(tmp_path / "backup", project.table("messages"))
    fill(project, BATCH)
    assert_same(project, whole)


def test_rows_that_the_log_no_longer_has_are_missed(project: Project, tmp_path: Path) -> None:
    fill(project, BATCH, batches=1)
    with Writer(project.log, rotate_bytes=1) as writer:  # A segment per block from here on.
        writer.write([block_of(rows_of(ROWS, 100), FIRST * 10**9)])
        writer.write([block_of(rows_of(ROWS + 100, 100), FIRST * 10**9)])
    log = Log(project.log)
    log.trim(before_offset=ROWS + 100, partition=0)
    assert Log(project.log).first(0) > BATCH
    with pytest.raises(ZError, match=r"rows between them are gone.*zenlake lake reset LAKE"):
        open_tables(project).start()


def test_an_older_log_is_refused_though_a_table_is_behind(project: Project, tmp_path: Path) -> None:
    """New samples would get offsets that the other tables count as theirs."""
    shutil.copytree(project.log, tmp_path / "older")
    add_rows(project, ROWS, 100)
    fill(project)
    shutil.rmtree(project.table("loss"))
    TableRecord(project.state).replace({*BUILT_IN} - {"loss"})
    shutil.rmtree(project.log)
    shutil.copytree(tmp_path / "older", project.log)
    with pytest.raises(ZError, match=r"ends at 599: it is an older copy.*reset LAKE samples"):
        open_tables(project).start()


def test_the_partition_of_a_recorder_that_is_gone_holds_nothing_up(project: Project) -> None:
    with Writer(project.log, 5) as writer:
        writer.write([block_of(rows_of(0, 100), FIRST * 10**9)])
    fill(project)
    shutil.move(project.log / "5", project.home / "retired")
    add_rows(project, ROWS, 100)
    fill(project)
    store = DeltaStore(project.table("samples"), TABLES["samples"])
    assert store.offsets() == {0: ROWS + 100, 5: 100}
    shutil.move(project.home / "retired", project.log / "5")  # It comes back.
    with Writer(project.log, 5) as writer:
        writer.write([block_of(rows_of(5_000, 100), FIRST * 10**9)])
    before = store.snapshot().rows
    fill(project)
    assert store.snapshot().rows == before + 99  # One of a hundred is a repeat.


def test_the_log_is_needed_from_where_a_query_ended(project: Project) -> None:
    """`lake run --once` trims the log when its query has ended."""
    query = TableQuery(project, cast(Any, None), Flow(TABLES_FLOW, BUILT_IN))
    query._tables = open_tables(project)
    query._query = SimpleNamespace(isActive=False)
    for batch in planned(project.log, ROWS):
        query._tables.commit(write_batch(project, query._tables, batch))
    query.stop()
    assert query.needed() == {0: ROWS}


def test_rows_of_an_old_flow_behind_which_the_log_was_trimmed(project: Project) -> None:
    """It recorded the offset of the last row of `loss`; its checkpoint tells that it went on."""
    fill(project, ROWS)
    store = DeltaStore(project.table("loss"), TABLES["loss"])
    shutil.rmtree(project.table("loss"))
    store = DeltaStore(project.table("loss"), TABLES["loss"])
    store.commit(transactions={"zenlake/offset/0": 200})
    with Writer(project.log, rotate_bytes=1) as writer:
        writer.write([block_of(rows_of(ROWS, 100), FIRST * 10**9)])
        writer.write([block_of(rows_of(ROWS + 100, 100), FIRST * 10**9)])
    Log(project.log).trim(before_offset=ROWS, partition=0)
    assert Log(project.log).first(0) == ROWS
    with pytest.raises(ZError, match="rows between them are gone"):
        open_tables(project).start()
    with pytest.raises(ZError, match="rows between them are gone"):
        open_tables(project, taken={"loss": {0: ROWS - 1}}).start()
    tables = open_tables(project, taken={"loss": {0: ROWS + 50}})
    assert tables.start() == {0: ROWS}
    store.commit(transactions={"zenlake/log": log_number(Log(project.log).id)})
    with pytest.raises(ZError, match="rows between them are gone"):  # An older copy of its own.
        open_tables(project, taken={"loss": {0: ROWS + 50}}).start()
    for batch in planned(project.log, BATCH, tables.start()):
        tables.commit(write_batch(project, tables, batch))
    tables.close()
    assert store.snapshot().version > 0
    assert store.offsets() == {0: ROWS + 200}


def test_tables_of_another_log_are_refused(project: Project, tmp_path: Path) -> None:
    fill(project, BATCH, batches=2)
    shutil.rmtree(project.log)
    add_rows(project, 0, 2 * ROWS)
    with pytest.raises(ZError, match=r"filled from another log .* zenlake lake reset LAKE samples"):
        open_tables(project)


def test_a_table_without_rows_records_its_offsets_now_and_then(project: Project) -> None:
    now = 0.0
    tables = open_tables(project, ("samples", "messages_failed"), clock=lambda: now)
    failed = DeltaStore(project.table("messages_failed"), TABLES["messages_failed"])
    seen = []
    for batch in planned(project.log, BATCH):
        tables.commit(write_batch(project, tables, batch))
        seen.append(failed.snapshot().version >= 0 and failed.offsets().get(0))
        now += table_set.SETTLE_SECONDS / 2
    assert seen == [150, 150, 450, 450]
    assert tables.positions() == {name: {0: ROWS} for name in ("samples", "messages_failed")}
    assert tables.recorded() == {"samples": {0: ROWS}, "messages_failed": {0: 450}}
    assert tables.stores["samples"].offsets() == {0: ROWS}
    tables.close()
    assert failed.snapshot().version >= 0
    assert failed.offsets() == {0: ROWS}


def test_only_loss_reads_only_blocks_with_losses(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    batches = Reader.batches

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        asked.append(options["losses"])
        return batches(self, *args, **options)

    monkeypatch.setattr(Reader, "batches", noted)
    fill(project, ROWS, ("samples",))
    fill(project, ROWS, ("samples", "loss"))
    assert asked == [False] * (len(asked) - asked.count("only")) + ["only"] * asked.count("only")
    assert asked.count("only") > 0
    assert rows_in(project, "loss") == 1


def test_a_damaged_record_says_what_to_do(tmp_path: Path) -> None:
    record = TableRecord(tmp_path)
    record.replace(["samples"])
    assert record.names() == {"samples"}
    (tmp_path / "tables.json").write_text("{")
    with pytest.raises(ZError, match="remove it if all tables are in place"):
        record.names()
