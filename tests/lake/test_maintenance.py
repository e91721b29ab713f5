"""Compaction, retention and vacuum of a lake's tables, without Spark."""

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.tables import compaction, maintenance, vacuum
from zenlake.lake.tables.compaction import compact, merge_sorted, plan_merges
from zenlake.lake.tables.definitions import (
    HEALTH,
    LATEST,
    LOSS,
    MESSAGES,
    MESSAGES_FAILED,
    SAMPLES,
    TOMBSTONES,
    TableDefinition,
)
from zenlake.lake.tables.delta import DataFile, DeltaStore
from zenlake.lake.tables.retention import MAX_SPAN, expire, trusted_now
from zenlake.lake.tables.schema import TIME, VARIANT
from zenlake.lake.tables.table_stats import lake_stats

pytestmark = pytest.mark.slow

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
DAY = timedelta(days=1)
MEBIBYTE = 1 << 20


def lake(folder: Path, more: str = "") -> Project:
    (folder / "lake.toml").write_text(f'[lake]\nname = "fleet"\n{more}')
    project = Project.load(folder)
    project.tables.mkdir(exist_ok=True)
    return project


def rows(table: TableDefinition, count: int, when: datetime = NOON, first: int = 0) -> pa.Table:
    """Rows of a table, one a millisecond, of seven keys; what is not said is null."""
    numbers = np.arange(first, first + count)
    micros = int(when.timestamp() * 1e6)
    said = {
        "key": pa.array([f"robot/{n % 7}" for n in numbers]),
        "kind": pa.array(["put"] * count),
        "payload": pa.array([b"%d" % n for n in numbers]),
        "hlc": pa.array(numbers),
        "offset": pa.array(numbers),
        "partition": pa.array(np.zeros(count, np.int32)),
        "day": pa.array([when.date()] * count),
        "value": pa.array([{"value": b"\0", "metadata": b"\1\0\0"}] * count, VARIANT),
    }
    times = pa.array(micros + 1000 * np.arange(count), pa.int64()).cast(TIME)
    said |= dict.fromkeys(("received_at", "at", "minute"), times)
    columns = [
        said[field.name] if field.name in said else pa.nulls(count, field.type)
        for field in table.schema
    ]
    return pa.table(columns, schema=table.schema)


def filled(
    project: Project, table: TableDefinition, files: int, count: int = 10, when: datetime = NOON
) -> DeltaStore:
    """Small files, a commit each."""
    store = DeltaStore(project.table(table.name), table)
    for number in range(files):
        store.commit([store.write_file(rows(table, count, when, number * count))])
    return store


def offsets(store: DeltaStore) -> list[int]:
    return sorted(store.read(columns=["offset"])["offset"].to_pylist())


def on_disk(store: DeltaStore) -> set[str]:
    return {str(path.relative_to(store.path)) for path in store.path.rglob("*.parquet")} - {
        str(path.relative_to(store.path)) for path in (store.path / "_delta_log").iterdir()
    }


def named(store: DeltaStore) -> set[str]:
    return {file.path for file in store.snapshot().files}


# ---- merging


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.tuples(st.none() | st.integers(0, 5), st.integers(0, 9)), max_size=20)),
    st.integers(1, 7),
)
def test_merged_rows_are_all_there_and_in_order(
    inputs: list[list[tuple[int | None, int]]], size: int
) -> None:
    def rank(row: tuple[int | None, int]) -> tuple[bool, int, int]:
        return (row[0] is not None, row[0] or 0, row[1])

    def tables(of: list[tuple[int | None, int]]) -> Iterator[pa.Table]:
        whole = pa.table(
            {"a": pa.array([a for a, _ in of], pa.int64()), "b": [b for _, b in of]},
            schema=pa.schema([("a", pa.int64()), ("b", pa.int64())]),
        )
        yield from (whole.slice(at, size) for at in range(0, len(of), size))

    ordered = [sorted(part, key=rank) for part in inputs]
    found = [
        (row["a"], row["b"])
        for table in merge_sorted([tables(part) for part in ordered], ("a", "b"))
        for row in table.to_pylist()
    ]
    assert found == sorted((row for part in inputs for row in part), key=rank)


def test_inputs_that_are_not_sorted_lose_no_row() -> None:
    def tables(*values: list[int]) -> Iterator[pa.Table]:
        return (pa.table({"n": column}) for column in values)

    inputs = [tables([9, 1], [5, 0]), tables([3], [2, 8], [7])]
    found = [n for table in merge_sorted(inputs, ("n",)) for n in table["n"].to_pylist()]
    assert sorted(found) == [0, 1, 2, 3, 5, 7, 8, 9]


def a_file(size: int, day: str = "2026-11-15", name: str = "") -> DataFile:
    return DataFile(name or f"{day}/{size}", 1, size, {"day": day}, {}, {})


def test_only_small_files_of_one_day_are_merged() -> None:
    files = [a_file(100), a_file(120), a_file(900), a_file(130, "2026-11-16")]
    assert [[file.size for file in group] for group in plan_merges(files, 1000)] == [[100, 120]]


def test_a_large_file_is_not_rewritten_for_a_few_small_ones() -> None:
    assert [
        [f.size for f in g] for g in plan_merges([a_file(5), a_file(6), a_file(400)], 1000)
    ] == [[5, 6]]
    assert [
        [f.size for f in g] for g in plan_merges([a_file(60), a_file(61), a_file(400)], 1000)
    ] == [[60, 61, 400]]
    assert list(plan_merges([a_file(5), a_file(400)], 1000)) == []


def test_one_merge_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MAX_INPUTS", 3)
    files = [a_file(10, name=str(number)) for number in range(8)]
    assert [len(group) for group in plan_merges(files, 1000)] == [3, 3, 2]


# ---- compaction


def test_small_files_become_one_that_is_sorted(tmp_path: Path) -> None:
    store = filled(lake(tmp_path), SAMPLES, 12)
    before = store.read().sort_by("offset")
    done = compact(store, MEBIBYTE)
    assert (done.files, done.into, done.rows, done.conflicts) == (12, 1, 120, 0)
    (file,) = store.snapshot().files
    assert (file.rows, file.partition) == (120, {"day": "2026-11-15"})
    assert (file.low["key"], file.high["key"], file.high["hlc"]) == ("robot/0", "robot/6", 119)
    after = store.read()
    order = list(zip(after["key"].to_pylist(), after["hlc"].to_pylist(), strict=True))
    assert order == sorted(order)
    assert after.sort_by("offset").equals(before)
    assert compact(store, MEBIBYTE) == compaction.CompactionResult()  # nothing more to do


def test_days_stay_apart(tmp_path: Path) -> None:
    store = filled(lake(tmp_path), SAMPLES, 2)
    for number in (2, 3):
        store.commit([store.write_file(rows(SAMPLES, 10, NOON + DAY, 10 * number))])
    assert compact(store, MEBIBYTE).into == 2
    assert sorted((f.partition["day"], f.rows) for f in store.snapshot().files) == [
        ("2026-11-15", 20),
        ("2026-11-16", 20),
    ]


def test_the_commit_says_that_no_data_changed(tmp_path: Path) -> None:
    store = filled(lake(tmp_path), SAMPLES, 2)
    compact(store, MEBIBYTE)
    newest = max((store.path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    changes = [
        body["dataChange"] for action in actions for body in action.values() if "path" in body
    ]
    assert changes == [False, False, False]


def test_files_are_cut_at_the_target_and_memory_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full size: ZENLAKE_FULL=1, with 2 million rows."""
    each = 500_000 if os.environ.get("ZENLAKE_FULL") else 4_000
    monkeypatch.setattr(compaction, "MERGE_BYTES", each * 4)
    monkeypatch.setattr(compaction, "ROW_GROUP_ROWS", each // 10)
    store = filled(lake(tmp_path), SAMPLES, 4, each)
    size = sum(file.size for file in store.snapshot().files)
    done = compact(store, size * 3 // 5)
    assert done.files == 4
    assert 2 <= done.into <= 4
    found = sorted((file.low["key"], file.high["key"]) for file in store.snapshot().files)
    assert all(high <= low for (_, high), (low, _) in pairwise(found))
    assert offsets(store) == list(range(4 * each))


def test_leaves_of_folded_tables_are_left_alone(tmp_path: Path) -> None:
    store = filled(lake(tmp_path), LATEST, 3)
    assert compact(store, MEBIBYTE) == compaction.CompactionResult()
    assert len(store.snapshot().files) == 3


def test_what_is_appended_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(lake(tmp_path), SAMPLES, 3)
    other = DeltaStore(store.path, SAMPLES)
    commit = DeltaStore.commit

    def late(self: DeltaStore, *args: object, **named: object) -> int:
        monkeypatch.setattr(DeltaStore, "commit", commit)
        other.commit([other.write_file(rows(SAMPLES, 5, first=30))], transactions={"q": 7})
        return commit(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaStore, "commit", late)
    assert compact(store, MEBIBYTE).files == 3
    assert offsets(store) == list(range(35))
    assert DeltaStore(store.path, SAMPLES).transaction("q") == 7


def test_files_removed_by_another_commit_are_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(lake(tmp_path), SAMPLES, 3)
    other = DeltaStore(store.path, SAMPLES)
    other.snapshot()
    commit = DeltaStore.commit

    def late(self: DeltaStore, *args: object, **named: object) -> int:
        monkeypatch.setattr(DeltaStore, "commit", commit)
        compact(other, MEBIBYTE)
        return commit(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaStore, "commit", late)
    assert compact(store, MEBIBYTE) == compaction.CompactionResult(conflicts=1)
    assert offsets(DeltaStore(store.path, SAMPLES)) == list(range(30))
    assert len(on_disk(store)) == 4  # three old ones, one of the other: ours was discarded


@pytest.mark.parametrize("at", ["merged", "commit"])
def test_a_merge_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    store = filled(lake(tmp_path), SAMPLES, 3)
    before = on_disk(store)

    def broken(*_: object, **__: object) -> Iterator[pa.Table]:
        if at == "merged":
            yield rows(SAMPLES, 5).drop_columns(["day"])
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        if at == "merged":
            patch.setattr(compaction, "merge_sorted", broken)
        else:
            patch.setattr(DeltaStore, "commit", lambda *_, **__: next(broken()))
        with pytest.raises(OSError, match="no space"):
            compact(store, MEBIBYTE)
    assert on_disk(store) == before
    assert offsets(store) == list(range(30))
    assert compact(store, MEBIBYTE).files == 3


def test_beside_a_writer_no_row_is_lost_or_doubled(tmp_path: Path) -> None:
    store = filled(lake(tmp_path), SAMPLES, 4)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            writer = DeltaStore(store.path, SAMPLES)
            for number in range(4, 24):
                added = writer.write_file(rows(SAMPLES, 10, first=10 * number))
                writer.commit([added], transactions={"q": number})
        except BaseException as error:  # noqa: BLE001 (told below)
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    merges = 0
    while thread.is_alive():
        merges += compact(store, MEBIBYTE).files > 0
    thread.join()
    assert not errors
    compact(store, MEBIBYTE)
    assert merges
    assert offsets(DeltaStore(store.path, SAMPLES)) == list(range(240))


# ---- vacuum


def test_a_removed_file_leaves_the_disk_when_no_reader_can_want_it(tmp_path: Path) -> None:
    store = filled(lake(tmp_path), SAMPLES, 3)
    compact(store, MEBIBYTE)
    now = datetime.now(UTC).timestamp()
    assert vacuum.vacuum(store, 3600, now + 3000).files == 0
    assert len(on_disk(store)) == 4
    done = vacuum.vacuum(store, 3600, now + 3700)
    assert done.files == 3
    assert done.bytes > 0
    assert on_disk(store) == named(store)
    assert offsets(store) == list(range(30))


def test_an_old_file_that_was_removed_just_now_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if that happens while vacuum is at work."""
    store = filled(lake(tmp_path), SAMPLES, 3)
    for name in on_disk(store):
        os.utime(store.path / name, (1, 1))
    removals = vacuum._removal_times

    def meanwhile(root: Path, since: float) -> dict[str, float]:
        before = removals(root, since)
        assert compact(DeltaStore(root, SAMPLES), MEBIBYTE).files == 3
        return before

    monkeypatch.setattr(vacuum, "_removal_times", meanwhile)
    assert vacuum.vacuum(store, 3600).files == 0
    monkeypatch.undo()
    assert vacuum.vacuum(store, 3600).files == 0
    assert len(on_disk(store)) == 4


def test_what_was_never_committed_goes_after_a_day(tmp_path: Path) -> None:
    store = filled(lake(tmp_path), SAMPLES, 1)
    orphan = store.write_file(rows(SAMPLES, 5))
    staged = store.path / "_staged" / "query" / "3" / "0.arrow"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"reduced")
    now = datetime.now(UTC).timestamp()
    assert vacuum.vacuum(store, 60, now + 3600).files == 0  # its batch may be under way
    assert vacuum.vacuum(store, 60, now + 86_500) == (2, orphan.size + 7)
    assert on_disk(store) == named(store)
    assert not staged.exists()


def test_vacuum_stays_in_the_folder_and_takes_data_files_only(tmp_path: Path) -> None:
    store = filled(lake(tmp_path), SAMPLES, 1)
    outside = tmp_path / "outside"
    outside.mkdir()
    strangers = [
        outside / "other.parquet",
        store.path / "notes.txt",
        store.path / "_mine" / "x.parquet",
        store.path / ".hidden" / "x.parquet",
    ]
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    (store.path / "day=2026-11-15" / "link.parquet").symlink_to(strangers[0])
    (store.path / "day=1999-01-01").symlink_to(outside)
    log = sorted((store.path / "_delta_log").iterdir())
    done = vacuum.vacuum(store, 60, datetime.now(UTC).timestamp() + 10 * 86_400)
    assert done == (0, 0)
    assert all(path.exists() for path in strangers)
    assert sorted((store.path / "_delta_log").iterdir()) == log


def test_the_log_of_commits_is_tidied(tmp_path: Path) -> None:
    store = filled(lake(tmp_path), SAMPLES, 3)
    store.commit(transactions={"q": 7})
    log = store.path / "_delta_log"
    for commit in log.glob("*.json"):
        os.utime(commit, (1, 1))
    vacuum.tidy_log(store, 3600)
    assert len(list(log.glob("*.checkpoint.parquet"))) == 1
    assert [path.name for path in log.glob("*.json")] == ["00000000000000000005.json"]
    again = DeltaStore(store.path, SAMPLES)
    assert offsets(again) == list(range(30))
    assert again.transaction("q") == 7
    assert kept_commits(again) == "interval 24 hours"
    assert again.commit([again.write_file(rows(SAMPLES, 5, first=30))]) == 6


def kept_commits(store: DeltaStore) -> str | None:
    return DeltaTable(store.path).metadata().configuration["delta.logRetentionDuration"]


def test_commits_are_kept_longer_than_what_they_removed(tmp_path: Path) -> None:
    """Else a file that was removed yesterday would look as if it had never been committed."""
    store = filled(lake(tmp_path), SAMPLES, 2)
    vacuum.tidy_log(store, 7 * 86_400)
    assert kept_commits(store) == "interval 336 hours"


# ---- retention


def test_whole_days_leave_and_the_rest_stays(tmp_path: Path) -> None:
    store = filled(lake(tmp_path), SAMPLES, 1, when=NOON - 3 * DAY)
    for days in (2, 1, 0):
        store.commit([store.write_file(rows(SAMPLES, 10, NOON - days * DAY, 100 * (4 - days)))])
    done = expire(store, 2 * 86_400, NOON)  # from 2026-11-13T12:00 on: that day stays
    assert (done.rows, done.files, done.more) == (10, 1, False)
    assert done.before == (NOON - 2 * DAY).isoformat()
    assert {file.partition["day"] for file in store.snapshot().files} == {
        "2026-11-13",
        "2026-11-14",
        "2026-11-15",
    }
    assert expire(store, 2 * 86_400, NOON).rows == 0


def test_one_run_takes_two_days_at_most(tmp_path: Path) -> None:
    store = filled(lake(tmp_path), LOSS, 1, when=NOON - 9 * DAY)
    for days in range(8):
        store.commit([store.write_file(rows(LOSS, 10, NOON - days * DAY))])
    left = []
    while (done := expire(store, 86_400, NOON)).more:
        left.append(len(store.snapshot().files))
    assert left == [8, 6, 4]  # the oldest stood alone: a gap of a day behind it
    assert done.rows == 20
    assert len(store.snapshot().files) == 2


@pytest.mark.parametrize(
    ("clock", "newest", "believed_time"),
    [
        (NOON, NOON, NOON),
        (NOON + DAY / 2, NOON, NOON + DAY / 2),
        (NOON.replace(year=2036), NOON, NOON + DAY),  # it jumped ahead
        (NOON - DAY, NOON, NOON - DAY),  # it was set back, or the rows are from the future
        (NOON, None, NOON),
    ],
)
def test_a_clock_is_trusted_within_limits(
    clock: datetime, newest: datetime | None, believed_time: datetime
) -> None:
    assert trusted_now(clock, newest) == believed_time


def test_a_clock_that_jumped_removes_nothing(tmp_path: Path) -> None:
    project = lake(tmp_path, '[retention]\nsamples = "7d"\n')
    store = filled(project, SAMPLES, 2)
    far = NOON.replace(year=2036)
    assert maintenance.retain(project, far)["samples"].rows == 0
    assert maintenance.retain(project, far, trust_clock=True)["samples"].rows == 20
    assert DeltaStore(store.path, SAMPLES).snapshot().files == ()


def test_health_leaves_by_whole_leaves(tmp_path: Path) -> None:
    project = lake(tmp_path)
    store = filled(project, HEALTH, 1, when=NOON - 9 * DAY)
    long_leaf = pa.concat_tables([rows(HEALTH, 1, NOON - 8 * DAY), rows(HEALTH, 1, NOON - 3 * DAY)])
    store.commit([store.write_file(long_leaf), store.write_file(rows(HEALTH, 5))])
    assert expire(store, 5 * 86_400, NOON).rows == 10  # the long leaf is not all old
    assert expire(store, 2 * 86_400, NOON).rows == 2  # and now it is, though longer than MAX_SPAN
    assert sum(file.rows for file in store.snapshot().files) == 5


def test_tombstones_leave_by_row(tmp_path: Path) -> None:
    store = DeltaStore(lake(tmp_path).table("tombstones"), TOMBSTONES)
    old, new = rows(TOMBSTONES, 4, NOON - 40 * DAY), rows(TOMBSTONES, 3, first=4)
    store.commit(
        [store.write_file(pa.concat_tables([old, new])), store.write_file(rows(TOMBSTONES, 2))]
    )
    kept = max(store.snapshot().files, key=lambda file: file.low["received_at"]).path
    done = expire(store, 30 * 86_400, NOON)
    assert (done.rows, done.more) == (4, False)
    assert offsets(store) == [0, 1, 4, 5, 6]
    assert kept in named(store)  # a leaf without old rows is not written again


def test_a_span_is_taken_from_the_oldest_row_on(tmp_path: Path) -> None:
    store = DeltaStore(lake(tmp_path).table("tombstones"), TOMBSTONES)
    ages = [rows(TOMBSTONES, 1, NOON - days * DAY, days) for days in (60, 59, 50, 1)]
    store.commit([store.write_file(pa.concat_tables(ages))])
    assert MAX_SPAN == 2 * DAY
    first = expire(store, 30 * 86_400, NOON)
    assert (first.rows, first.more) == (2, True)
    second = expire(store, 30 * 86_400, NOON)
    assert (second.rows, offsets(store)) == (1, [1])


def test_retention_gives_way_to_a_concurrent_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(lake(tmp_path), SAMPLES, 2, when=NOON - 9 * DAY)
    other = DeltaStore(store.path, SAMPLES)
    commit = DeltaStore.commit

    def late(self: DeltaStore, *args: object, **named: object) -> int:
        monkeypatch.setattr(DeltaStore, "commit", commit)
        compact(other, MEBIBYTE)
        return commit(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaStore, "commit", late)
    assert expire(store, 86_400, NOON).conflicts == 1
    assert offsets(DeltaStore(store.path, SAMPLES)) == list(range(20))
    assert expire(DeltaStore(store.path, SAMPLES), 86_400, NOON).rows == 20


# ---- all of it


def test_run_maintenance_runs_all_steps(tmp_path: Path) -> None:
    project = lake(tmp_path, '[retention]\nmessages = "7d"\nsamples = "7d"\n')
    now = datetime.now(UTC).replace(hour=12)
    store = filled(project, SAMPLES, 3, when=now)
    store.commit([store.write_file(rows(SAMPLES, 10, now - 30 * DAY, 30))])
    filled(project, LATEST, 2, when=now)
    kept = maintenance.run_maintenance(project)
    assert kept.expired.keys() == {"samples"}
    assert kept.expired["samples"].rows == 10
    assert kept.compacted["samples"].files == 3
    assert kept.compacted["latest"].files == 0
    assert kept.vacuumed["samples"].files == 0  # readers may still have them open
    assert offsets(DeltaStore(store.path, SAMPLES)) == list(range(30))


def test_failed_messages_are_kept_as_long_as_messages(tmp_path: Path) -> None:
    project = lake(tmp_path, '[retention]\nmessages = "7d"\n')
    for table in (MESSAGES, MESSAGES_FAILED):
        filled(project, table, 1, when=NOON - 20 * DAY)
    filled(project, SAMPLES, 1)  # shows that the clock is right
    assert {name: removed.rows for name, removed in maintenance.retain(project, NOON).items()} == {
        "messages": 10,
        "messages_failed": 10,
    }


def test_a_users_own_table_is_compacted_too(tmp_path: Path) -> None:
    project = lake(tmp_path)
    own = TableDefinition("speeds", pa.schema([("key", pa.string()), ("speed", pa.float64())]))
    store = DeltaStore(project.table("speeds"), own)
    for number in range(3):
        store.commit([store.write_file(pa.table({"key": ["a"], "speed": [float(number)]}))])
    assert maintenance.compact(project)["speeds"].files == 3
    assert sorted(DeltaTable(store.path).to_pyarrow_table()["speed"].to_pylist()) == [0, 1, 2]


def test_one_maintenance_at_a_time(tmp_path: Path) -> None:
    project = lake(tmp_path)
    filled(project, SAMPLES, 1)
    with (project.tables / maintenance.MARK).open("a") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        with pytest.raises(maintenance.MaintenanceBusy, match="under way"):
            maintenance.run_maintenance(project)
    maintenance.run_maintenance(project)


def test_maintenance_is_due_when_its_time_has_passed(tmp_path: Path) -> None:
    project = lake(tmp_path, '[upkeep]\nevery = "10m"\n')
    assert maintenance.is_due(project)  # it never ran
    maintenance.run_maintenance(project)
    os.utime(project.tables / maintenance.MARK, (1000.0, 1000.0))
    assert not maintenance.is_due(project, 1599.0)
    assert maintenance.is_due(project, 1600.0)
    assert maintenance.is_due(project, 900.0)  # the clock was set back
    maintenance.run_maintenance(project)
    assert not maintenance.is_due(project)
    os.utime(project.tables / maintenance.MARK, (0, 0))
    assert maintenance.is_due(project)
    assert not maintenance.is_due(lake(tmp_path, '[upkeep]\nevery = "never"\n'))
    project.tables.rename(tmp_path / "away")
    assert not maintenance.is_due(project)  # there is nothing to look after


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    project = lake(tmp_path)
    filled(project, SAMPLES, 1)
    with pytest.raises(ZError, match="no table 'sampels'; there are samples"):
        maintenance.compact(project, ["sampels"])
    project.tables.rename(tmp_path / "away")
    with pytest.raises(ZError, match="no tables yet"):
        maintenance.run_maintenance(project)


def test_lake_stats_count_rows_and_lag(tmp_path: Path) -> None:
    project = lake(tmp_path)
    store = filled(project, SAMPLES, 2)
    store.commit(transactions={"zenlake/offset/0": 20})
    (table,) = lake_stats(project)["tables"]
    assert table.pop("bytes") == sum(file.size for file in store.snapshot().files)
    assert table == {
        "table": "samples",
        "version": 3,
        "rows": 20,
        "files": 2,
        "newest": "2026-11-15T12:00:00.009000+00:00",
        "behind": None,  # there is no log
    }
