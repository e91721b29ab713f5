"""One Delta table: files, statistics, snapshots, commits that race and commits that must not."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.lake_rows import T0, Row, as_rows, as_samples
from zenlake.lake.tables import delta
from zenlake.lake.tables.definitions import (
    LATEST,
    SAMPLES,
    SCHEMA_PROPERTY,
    TABLES,
    TableDefinition,
)
from zenlake.lake.tables.delta import CommitConflict, DeltaStore, StoreError

NIGHT = 12 * 3600 * 1_000_000


def samples(*offsets: int, received: int = 0, key: str = "a") -> pa.Table:
    return as_samples(as_rows(Row(key, offset, received=received) for offset in offsets))


@pytest.fixture
def store(tmp_path: Path) -> DeltaStore:
    return DeltaStore(tmp_path / "tables" / "samples", SAMPLES)


def offsets_in(store: DeltaStore) -> list[int]:
    return sorted(store.read(columns=["offset"])["offset"].to_pylist())


# ---- files


def test_a_table_that_is_not_there_is_empty(store: DeltaStore) -> None:
    assert store.snapshot().version == -1
    assert store.snapshot().files == ()
    assert store.snapshot().rows == 0
    assert store.offsets() == {}
    assert store.transaction("anyone") is None
    assert store.read().num_rows == 0
    assert not store.exists()
    assert not store.path.exists()


def test_a_file_is_sorted_and_says_what_is_in_it(store: DeltaStore) -> None:
    rows = [Row("b", 1, received=7), Row("a", 2, received=9), Row("a", 0, received=8)]
    (added,) = store.write(as_samples(as_rows(rows)))
    assert added.partition == {"day": "2026-09-21"}
    assert added.path.startswith("day=2026-09-21/part-")
    file = pq.ParquetFile(store.path / added.path)
    assert file.read()["offset"].to_pylist() == [0, 2, 1]
    assert "day" not in file.schema_arrow.names
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert added.size == (store.path / added.path).stat().st_size
    stats = json.loads(added.stats)
    assert stats["numRecords"] == added.rows == 3
    assert (stats["minValues"]["key"], stats["maxValues"]["key"]) == ("a", "b")
    assert stats["maxValues"]["received_at"] == "2026-09-21T14:13:20.000009Z"
    assert stats["nullCount"]["key"] == 0
    store.commit([added])
    (found,) = store.snapshot().files
    assert found.path == added.path
    assert (found.rows, found.size, found.partition) == (3, added.size, added.partition)
    assert (found.low["hlc"], found.high["hlc"]) == (rows[0].hlc, rows[1].hlc)
    assert (found.low["offset"], found.high["offset"]) == (0, 2)
    assert found.low["received_at"] == datetime.fromtimestamp(T0, UTC).replace(microsecond=7)


def test_row_groups_are_bounded(store: DeltaStore) -> None:
    rows = np.zeros(delta.ROW_GROUP_ROWS + 1, np.int64)
    added = store.write_file(samples(0).take(rows))
    file = pq.ParquetFile(store.path / added.path)
    assert file.metadata.num_row_groups == 2
    assert file.metadata.row_group(0).num_rows == delta.ROW_GROUP_ROWS


def test_rows_are_split_by_day(store: DeltaStore) -> None:
    both = pa.concat_tables([samples(0, 1), samples(2, received=NIGHT)])
    added = store.write(both)
    assert [file.partition["day"] for file in added] == ["2026-09-21", "2026-09-22"]
    store.commit(added)
    assert sorted(store.read()["day"].to_pylist()) == [date(2026, 9, 21)] * 2 + [date(2026, 9, 22)]
    one_day = store.read(filter=pc.field("day") == date(2026, 9, 22))
    assert one_day["offset"].to_pylist() == [2]
    assert one_day.schema == SAMPLES.schema
    assert store.write(both.slice(0, 0)) == []
    with pytest.raises(StoreError, match=r"one day, not 2.*write\(\)"):
        store.write_file(both)


def test_any_lakehouse_tool_reads_it(store: DeltaStore) -> None:
    store.commit(store.write(samples(0, 1)))
    table = DeltaTable(store.path)
    assert table.metadata().configuration[SCHEMA_PROPERTY] == "1"
    assert table.to_pyarrow_table()["offset"].to_pylist() == [0, 1]


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_every_table_can_be_written(tmp_path: Path, table: TableDefinition) -> None:
    store = DeltaStore(tmp_path / table.name, table)
    empty: dict[pa.DataType, Any] = {pa.date32(): date(2026, 1, 2), pa.string(): "a"}
    columns = [pa.array([empty.get(field.type)], field.type) for field in table.schema]
    store.commit(store.write(pa.table(columns, schema=table.schema)))
    assert store.read().schema == table.schema
    assert store.snapshot().rows == 1


@pytest.mark.parametrize("value", ["plain", "a/b c", "50%", "ü", None])
def test_a_partition_may_have_any_name(tmp_path: Path, value: str | None) -> None:
    schema = pa.schema([("fleet", pa.string()), ("n", pa.int64())])
    store = DeltaStore(tmp_path / "mine", TableDefinition("mine", schema, "fleet"))
    store.commit(store.write(pa.table({"fleet": [value], "n": [1]}, schema=schema)))
    assert store.read().to_pylist() == [{"fleet": value, "n": 1}]
    (file,) = store.snapshot().files
    assert file.partition == {"fleet": value}
    store.commit((), [file])
    assert store.snapshot().files == ()


def test_a_file_that_fails_is_not_left(store: DeltaStore) -> None:
    def broken() -> None:
        with store.writer("2026-09-21") as file:
            file.write(samples(0))
            raise KeyError("stop")

    with pytest.raises(KeyError):
        broken()
    assert list(store.path.rglob("*.parquet")) == []


# ---- commits


def test_one_commit_adds_removes_and_remembers(store: DeltaStore) -> None:
    store.commit(store.write(samples(0, 1)), transactions={"q": 0, "zenlake/offset/3": 2})
    old = store.snapshot().files
    version = store.commit(store.write(samples(0, 1, 2)), old, {"q": 1, "zenlake/offset/3": 3})
    other = DeltaStore(store.path, SAMPLES)
    assert other.snapshot().version == version
    assert offsets_in(other) == [0, 1, 2]
    assert other.transaction("q") == 1
    assert other.offsets() == {3: 3}
    assert (store.path / old[0].path).exists()  # readers of the old version need it


def test_a_commit_of_transactions_alone(store: DeltaStore) -> None:
    store.commit(transactions={"q": 7})
    assert DeltaStore(store.path, SAMPLES).transaction("q") == 7


def test_offsets_never_go_back_and_know_every_partition(store: DeltaStore) -> None:
    for partition, following in ((5, 10), (0, 4), (5, 8), (2**31 - 1, 1)):
        store.commit(transactions={f"zenlake/offset/{partition}": following})
    assert DeltaStore(store.path, SAMPLES).offsets() == {5: 10, 0: 4, 2**31 - 1: 1}


def test_a_snapshot_sees_what_others_commit(store: DeltaStore) -> None:
    store.commit(store.write(samples(0)))
    reader = DeltaStore(store.path, SAMPLES)
    before = reader.snapshot()
    assert reader.snapshot() is before
    store.commit(store.write(samples(1)))
    assert reader.current is before
    assert len(reader.snapshot().files) == 2
    assert len(before.files) == 1


def test_appends_do_not_hinder_each_other(store: DeltaStore) -> None:
    store.commit(store.write(samples(0)))
    writers = [DeltaStore(store.path, SAMPLES) for _ in range(3)]
    for writer in writers:
        writer.snapshot()
    for number, writer in enumerate(writers, 1):
        writer.commit(writer.write(samples(number)), transactions={f"q{number}": 0})
    assert offsets_in(store) == [0, 1, 2, 3]


@pytest.mark.parametrize("data_change", [False, True])
def test_an_append_survives_one_that_replaced_files(store: DeltaStore, data_change: bool) -> None:
    store.commit(store.write(samples(0)))
    other = DeltaStore(store.path, SAMPLES)
    other.commit(other.write(samples(0)), other.snapshot().files, data_change=data_change)
    store.commit(store.write(samples(1)), transactions={"q": 1})
    assert store.conflicts == 1
    assert offsets_in(store) == [0, 1]


def test_a_compaction_survives_an_append_and_another_compaction(store: DeltaStore) -> None:
    store.commit([*store.write(samples(0)), *store.write(samples(1))])
    first, second = store.snapshot().files
    other = DeltaStore(store.path, SAMPLES)
    other.commit(other.write(samples(2)), [], {"q": 1})
    other.commit(other.write(other.read([first])), [first])
    store.commit(store.write(store.read([second])), [second], data_change=False)
    assert offsets_in(store) == [0, 1, 2]


def _gone(store: DeltaStore, other: DeltaStore) -> Callable[[], object]:
    files = store.snapshot().files
    other.commit((), other.snapshot().files)
    return lambda: store.commit(store.write(samples(9)), files)


def _gone_and_seen(store: DeltaStore, other: DeltaStore) -> Callable[[], object]:
    attempt = _gone(store, other)
    store.snapshot()
    return attempt


def _same_batch(store: DeltaStore, other: DeltaStore) -> Callable[[], object]:
    store.snapshot()
    other.commit(other.write(samples(5)), [], {"q": 1})
    return lambda: store.commit(store.write(samples(5)), [], {"q": 1})


@pytest.mark.parametrize("race", [_gone, _gone_and_seen, _same_batch])
def test_a_commit_made_from_what_has_changed_is_refused(
    store: DeltaStore, race: Callable[[DeltaStore, DeltaStore], Callable[[], object]]
) -> None:
    store.commit(store.write(samples(0)))
    attempt = race(store, DeltaStore(store.path, SAMPLES))
    version = DeltaTable(store.path).version()
    with pytest.raises(CommitConflict):
        attempt()
    assert DeltaTable(store.path).version() == version


def test_transactions_outlive_checkpoints_and_old_logs(store: DeltaStore) -> None:
    store.commit(store.write(samples(0)), [], {"zenlake/offset/0": 1, "q": 4})
    for _ in range(3):
        store.commit(transactions={"other": 1})
    DeltaTable(store.path).create_checkpoint()
    for version in range(4):
        (store.path / delta.LOG / f"{version:020}.json").unlink()
    fresh = DeltaStore(store.path, SAMPLES)
    assert (fresh.offsets(), fresh.transaction("q")) == ({0: 1}, 4)
    assert store.snapshot().rows == fresh.snapshot().rows == 1
    store.commit(store.write(samples(1)))
    assert offsets_in(fresh) == [0, 1]


def test_a_folder_without_a_table_is_named(tmp_path: Path) -> None:
    log = tmp_path / "latest" / delta.LOG
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("not json\n")
    with pytest.raises(StoreError, match=r"latest: .*_delta_log"):
        DeltaStore(tmp_path / "latest", LATEST).snapshot()


def test_a_file_that_was_vacuumed_is_missed_by_name(store: DeltaStore) -> None:
    (added,) = store.write(samples(0))
    store.commit([added])
    (store.path / added.path).unlink()
    with pytest.raises(FileNotFoundError, match=added.path):
        store.read()


def test_a_recreated_table_is_read_again(store: DeltaStore, tmp_path: Path) -> None:
    for offset in range(3):
        store.commit(store.write(samples(offset)), transactions={"q": 5})
    reader = DeltaStore(store.path, SAMPLES)
    assert reader.snapshot().rows == 3
    store.path.rename(tmp_path / "old")
    assert (reader.snapshot().version, reader.transaction("q")) == (-1, None)
    DeltaStore(store.path, SAMPLES).commit(store.write(samples(7)))
    assert offsets_in(reader) == [7]
    assert reader.transaction("q") is None
