"""Faults between tables, log, maintenance and readers, each provoked on purpose."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support import spark_log
from tests.support.known_histories import MICROS, Event, KnownHistory, by_key
from tests.support.lake_rows import T0, Row, as_rows, as_samples
from zenlake.errors import ZError
from zenlake.lake.pipeline import progress
from zenlake.lake.pipeline.sink import SinkOptions
from zenlake.lake.project import Project
from zenlake.lake.serve import history as histories
from zenlake.lake.serve.history import History
from zenlake.lake.tables import commit as write
from zenlake.lake.tables import delta, projections
from zenlake.lake.tables.commit import OffsetsPresent, TableBatch
from zenlake.lake.tables.compaction import compact
from zenlake.lake.tables.definitions import LATEST, SAMPLES, TABLES, TOMBSTONES, TableDefinition
from zenlake.lake.tables.delta import CommitConflict, DeltaStore, StoreError
from zenlake.lake.tables.maintenance import run_maintenance
from zenlake.lake.tables.retention import expire
from zenlake.lake.tables.table_stats import lake_stats
from zenlake.lake.tables.vacuum import tidy_log, vacuum
from zenlake.log.read.log import Log

pytestmark = pytest.mark.slow

FIRST = 1_700_000_000
DAY = 86_400


def samples(*rows: Row) -> pa.Table:
    return as_samples(as_rows(rows))


def stamped(key: str, second: int, payload: bytes | None, received: int) -> Event:
    return Event(key, payload, (FIRST + received) * MICROS, (FIRST + second) << 32)


@pytest.fixture
def past(tmp_path: Path) -> KnownHistory:
    return KnownHistory(tmp_path)


# ---- commits


def test_two_drivers_that_make_the_table_append_a_batch_once(tmp_path: Path) -> None:
    """The second looked before there was a table, and the first made it and committed."""
    one, two = (DeltaStore(tmp_path / "samples", SAMPLES) for _ in range(2))
    batch = TableBatch("f", "q", 0, {0: (0, 0)})
    assert not batch.is_in(two)
    write.append_files(one, one.write(samples(Row("a", 0))), batch)
    added = two.write(samples(Row("a", 0)))
    with pytest.raises(CommitConflict):
        two.commit(added, (), batch.transactions)
    assert not write.append_files(two, added, batch)
    assert one.snapshot().rows == 1


def test_files_that_are_gone_are_not_committed(tmp_path: Path) -> None:
    """A clock that jumped lets vacuum take the files of a batch that is under way."""
    store = DeltaStore(tmp_path / "samples", SAMPLES)
    write.append_files(store, store.write(samples(Row("a", 0))), TableBatch("f", "q", 0))
    added = store.write(samples(Row("b", 1)))
    assert vacuum(store, 3600, now=time.time() + 2 * DAY).files == 1
    with pytest.raises(StoreError, match=r"is gone.*again"):
        write.append_files(store, added, TableBatch("f", "q", 1))
    assert store.read()["offset"].to_pylist() == [0]
    write.append_files(store, store.write(samples(Row("b", 1))), TableBatch("f", "q", 1))
    assert sorted(store.read()["offset"].to_pylist()) == [0, 1]


def test_all_that_a_commit_stands_on_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    really = delta.sync

    def noted(path: Path) -> None:
        synced.add(path)
        really(path)

    monkeypatch.setattr(delta, "sync", noted)
    root = tmp_path / "samples"
    store = DeltaStore(root, SAMPLES)
    write.append_files(store, store.write(samples(Row("a", 0))), TableBatch("f", "q", 0))
    for path in [root, *root.rglob("*")]:
        if path.suffix != ".crc":
            assert path in synced, path
    assert tmp_path in synced


def test_a_reader_that_slept_over_a_tidied_log_goes_on(tmp_path: Path) -> None:
    writer, sleeper = (DeltaStore(tmp_path / "samples", SAMPLES) for _ in range(2))
    write.append_files(
        writer, writer.write(samples(Row("a", 0))), TableBatch("f", "q", 0, {0: (0, 0)})
    )
    assert sleeper.snapshot().rows == 1
    for number in range(1, 6):
        added = writer.write(samples(Row("a", number)))
        write.append_files(writer, added, TableBatch("f", "q", number, {0: (number, number)}))
    old = time.time() - 30 * DAY
    for path in (writer.path / delta.LOG).glob("*.json"):
        os.utime(path, (old, old))
    tidy_log(writer, 3600)
    assert not (writer.path / delta.LOG / f"{3:020}.json").exists()
    added = writer.write(samples(Row("a", 6)))
    write.append_files(writer, added, TableBatch("f", "q", 6, {0: (6, 6)}))
    for store in (sleeper, DeltaStore(tmp_path / "samples", SAMPLES)):
        assert store.snapshot().rows == 7
        assert store.transaction("zenlake/f/q") == 6
        assert store.offsets() == {0: 7}
        assert {file.low["key"] for file in store.snapshot().files} == {"a"}
        assert min(file.low["hlc"] for file in store.snapshot().files) == Row("a", 0).hlc


def test_a_writer_that_slept_over_a_tidied_log_goes_on(tmp_path: Path) -> None:
    writer, sleeper = (DeltaStore(tmp_path / "samples", SAMPLES) for _ in range(2))
    write.append_files(writer, writer.write(samples(Row("a", 0))), TableBatch("f", "q", 0))
    sleeper.snapshot()
    for number in range(1, 4):
        write.append_files(
            writer, writer.write(samples(Row("a", number))), TableBatch("f", "q", number)
        )
    old = time.time() - 30 * DAY
    for path in (writer.path / delta.LOG).glob("*.json"):
        os.utime(path, (old, old))
    tidy_log(writer, 3600)
    assert not write.append_files(sleeper, [], TableBatch("f", "q", 3))
    sleeper.commit(sleeper.write(samples(Row("a", 4))))
    assert writer.snapshot().rows == 5


# ---- odd names


@pytest.mark.parametrize("value", ["a%2Fb/%", "ä #?&=:+", "..", "'\"\\"])
def test_live_files_of_any_partition_are_not_vacuumed(tmp_path: Path, value: str) -> None:
    columns = pa.schema([("zone", pa.string()), ("n", pa.int64())])
    store = DeltaStore(tmp_path / "own", TableDefinition("own", columns, "zone"))
    rows = pa.table({"zone": [value], "n": [1]}, columns)
    store.commit(store.write(rows))
    again = DeltaStore(tmp_path / "own", TableDefinition("own", columns, "zone"))
    vacuum(again, 0, now=time.time() + 9 * DAY)
    assert again.read().to_pylist() == rows.to_pylist()
    tidy_log(again, 0)
    again = DeltaStore(tmp_path / "own", TableDefinition("own", columns, "zone"))
    vacuum(again, 0, now=time.time() + 9 * DAY)
    assert again.read().to_pylist() == rows.to_pylist()
    again.commit(again.write(rows), again.snapshot().files)
    assert again.snapshot().rows == 1
    vacuum(again, 0, now=time.time() + 9 * DAY)
    assert again.read().to_pylist() == rows.to_pylist()
    assert DeltaTable(tmp_path / "own").to_pyarrow_table().num_rows == 1


def test_columns_of_a_users_table_may_be_called_partition_and_offset(tmp_path: Path) -> None:
    columns = pa.schema([("partition", pa.string()), ("offset", pa.float64())])
    store = DeltaStore(tmp_path / "own", projections.define_table("own", columns, None))
    for number in range(2):
        taking = projections.TableWriter({"own": store}, f"q/{number}")
        taking.add(pa.record_batch({"partition": ["north", None], "offset": [0.5, None]}, columns))
        projections.commit_numbered(store, [taking.finish()], TableBatch("f", "q", number))
    assert store.snapshot().rows == 4
    columns = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
    store = DeltaStore(tmp_path / "joined", projections.define_table("joined", columns, None))
    taking = projections.TableWriter({"joined": store}, "q/0")
    taking.add(pa.record_batch({"partition": [0, None], "offset": [4, None]}, columns))
    projections.commit_numbered(store, [taking.finish()], TableBatch("f", "q", 0))
    assert store.offsets() == {0: 5}


# ---- leaves of large values


@pytest.mark.parametrize("packed", [False, True])
def test_leaves_of_large_values_are_not_rewritten_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(write, "LEAF_BYTES", 1 << 18)
    random = np.random.default_rng(5)
    latest = DeltaStore(tmp_path / "latest", LATEST)
    tombstones = DeltaStore(tmp_path / "tombstones", TOMBSTONES)
    payload = bytes if packed else random.bytes
    rows = [Row(f"k/{n:03}", n, payload=payload(1 << 15)) for n in range(64)]
    write.fold_latest(latest, tombstones, samples(*rows), TableBatch("l", "q", 0))
    files = {file.path for file in latest.snapshot().files}
    assert len(files) >= 8
    late = samples(Row("k/000", 64, received=1))
    assert write.fold_latest(latest, tombstones, late, TableBatch("l", "q", 1))
    assert len(files - {file.path for file in latest.snapshot().files}) <= 2
    assert latest.snapshot().rows == 64


def test_no_leaf_is_large_since_its_neighbours_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "LEAF_BYTES", 1 << 18)
    latest = DeltaStore(tmp_path / "latest", LATEST)
    tombstones = DeltaStore(tmp_path / "tombstones", TOMBSTONES)
    sizes = [8] * 400 + [1 << 15] * 64 + [8] * 400
    for number in range(2):
        rows = [
            Row(f"k/{n:03}", n, received=number, payload=bytes(size))
            for n, size in enumerate(sizes)
        ]
        write.fold_latest(latest, tombstones, samples(*rows), TableBatch("l", "q", number))
        for file in latest.snapshot().files:
            assert latest.read([file]).nbytes <= 1 << 18
        assert latest.read()["payload"].to_pylist() == [row.payload for row in rows]


# ---- days and zones


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_a_day_is_that_of_utc_whatever_zone_spark_is_in(zone: str) -> None:
    times = [datetime(2026, 11, 15, hour, tzinfo=UTC) for hour in (0, 3, 20, 23)]
    rows = as_rows([Row("a", n) for n in range(4)])
    kind = pa.timestamp("us", zone)
    at = rows.schema.get_field_index("received_at")
    rows = rows.set_column(at, "received_at", pa.array(times).cast(kind))
    (batch,) = rows.combine_chunks().to_batches()
    chunk = projections.RowChunk(pa.Table.from_batches([batch]))
    assert {str(day) for day in chunk.unique_samples["day"].to_pylist()} == {"2026-11-15"}
    assert chunk.unique_samples["hlc"].to_pylist() == [
        int(moment.timestamp()) << 32 for moment in times
    ]


# ---- what is served


def test_a_late_put_is_not_served_as_alive_while_its_key_is_born_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K was deleted at 5, a put of 4 comes late, then a put of 6, folded during a query."""
    past = KnownHistory(tmp_path)
    past.record([stamped("k", 5, None, 10)])
    past.table({0: 1})
    past.record([stamped("k", 4, b"late", 11)])
    history = History(past.project)
    assert by_key(history.latest("**")) == {}
    current = history._tombstones.current

    def meanwhile(**options: Any) -> Any:
        if len(past.events[0]) == 2:
            past.record([stamped("k", 6, b"again", 12)])
            past.table({0: 3})
        return current(**options)

    monkeypatch.setattr(history._tombstones, "current", meanwhile)
    found = by_key(history.latest("**"))
    assert [event.payload for event in found.get("k", [])] in ([], [b"again"])


def test_what_is_asked_for_at_once_is_bounded_in_bytes(
    past: KnownHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "MAX_HELD_BYTES", 1 << 16)
    past.record([stamped("k", n, bytes(1 << 10), n) for n in range(200)])
    past.table({0: 150})
    history = History(past.project)
    assert len(by_key(history.between("k", newest=20))["k"]) == 20
    assert len(by_key(history.between("k"))["k"]) == 200
    with pytest.raises(ZError, match=r"_max=190 of k.*ask for fewer"):
        by_key(history.between("k", newest=190))


# ---- batches and their numbers


def test_a_batch_of_the_same_number_that_has_more_is_not_passed_over(tmp_path: Path) -> None:
    """A checkpoint lost its offsets and kept its id: batches are counted from 0 again."""
    store = DeltaStore(tmp_path / "samples", SAMPLES)
    for number in range(3):
        rows = store.write(samples(Row("a", number)))
        write.append_files(store, rows, TableBatch("f", "q", number, {0: (number, number)}))
    assert not write.append_files(store, [], TableBatch("f", "q", 1, {0: (0, 2)}))
    with pytest.raises(OffsetsPresent, match=r"batch 0 .* up to offset 2.*goes to 9.*checkpoint"):
        write.append_files(store, [], TableBatch("f", "q", 0, {0: (0, 9)}))
    assert store.offsets() == {0: 3}


def test_properties_that_change_meanwhile_hinder_no_commit(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path / "samples", SAMPLES)
    write.append_files(store, store.write(samples(Row("a", 0))), TableBatch("f", "q", 0))
    added = store.write(samples(Row("a", 1)))
    assert not TableBatch("f", "q", 1).is_in(store)
    tidy_log(DeltaStore(tmp_path / "samples", SAMPLES), 9 * DAY)
    store.commit(added, (), TableBatch("f", "q", 1).transactions)
    assert store.snapshot().rows == 2


@pytest.mark.parametrize("path", ["file:/t/x y", "file:///t/x y", "/t/x y"])
def test_a_folder_may_be_named_as_hadoop_does(path: str) -> None:
    assert SinkOptions.parse({"path": path, "into": "samples"}).path == Path("/t/x y")


@pytest.mark.parametrize("path", ["s3://bucket/tables", "hdfs:/tables", "file://host/tables"])
def test_a_path_that_is_not_a_folder_is_refused(path: str) -> None:
    with pytest.raises(ZError, match="folder"):
        SinkOptions.parse({"path": path, "into": "samples"})


def test_the_log_is_kept_as_far_back_as_repeats_of_the_slowest_flow_are_looked_for(
    tmp_path: Path,
) -> None:
    spark_log.append(tmp_path / "log", 1000, per_block=10, rotate=1 << 10)  # a millisecond each
    text = '[lake]\nname = "x"\n[samples]\nduplicates_within = "100ms"\n[retention]\nlog = "10ms"'
    project = Project.parse(text, tmp_path / "lake.toml")
    assert progress.trim(project, [{0: 400}]).segments > 0
    assert 200 < Log(project.log).first(0) <= 275


def test_all_tables_take_rows_in_the_zone_of_a_session(tmp_path: Path) -> None:
    names = ("samples", "latest", "health")
    found = []
    for zone in ("UTC", "America/New_York"):
        batch = as_rows(
            [Row(f"k/{n % 2}", n, received=n * 7_200_000_000, stamp=n) for n in range(12)]
        )
        kind = pa.timestamp("us", zone)
        stamp = pa.struct([("time", kind), ("ntp64", pa.int64()), ("id", pa.string())])
        batch = batch.set_column(5, "timestamp", batch["timestamp"].cast(stamp))
        batch = batch.set_column(12, "received_at", batch["received_at"].cast(kind))
        stores = {name: DeltaStore(tmp_path / zone / name, TABLES[name]) for name in names}
        taking = projections.TableWriter(stores, "q/0")
        for part in batch.to_batches():
            taking.add(part)
        taken = taking.finish()
        for store in stores.values():
            projections.commit_numbered(store, [taken], TableBatch("f", "q", 0))
        found.append(
            [store.read().sort_by(store.table.order[0]).to_pylist() for store in stores.values()]
        )
    assert found[0] == found[1]


# ---- upkeep beside others


def broken_behind_the_commit(self: DeltaStore) -> int:
    raise OSError("the disk is gone")


def test_a_merge_whose_commit_happened_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DeltaStore(tmp_path / "samples", SAMPLES)
    for number in range(4):
        write.append_files(
            store, store.write(samples(Row("a", number))), TableBatch("f", "q", number)
        )
    with monkeypatch.context() as patch:
        patch.setattr(DeltaStore, "_sync_log", broken_behind_the_commit)
        with pytest.raises(OSError, match="the disk is gone"):
            compact(store, 1 << 20)
    assert len(store.snapshot().files) == 1
    assert sorted(store.read()["offset"].to_pylist()) == [0, 1, 2, 3]


def test_retention_whose_commit_happened_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = DeltaStore(tmp_path / "latest", LATEST)
    tombstones = DeltaStore(tmp_path / "tombstones", TOMBSTONES)
    dead = [Row("a", 0, delete=True), Row("b", 1, received=3_600_000_000, delete=True)]
    write.fold_latest(latest, tombstones, samples(*dead), TableBatch("l", "q", 0))
    now = datetime.fromtimestamp(T0 + 5400, UTC)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaStore, "_sync_log", broken_behind_the_commit)
        with pytest.raises(OSError, match="the disk is gone"):
            expire(tombstones, 3600, now)
    assert tombstones.read()["key"].to_pylist() == ["b"]


def test_a_table_that_was_only_begun_stops_no_upkeep(tmp_path: Path) -> None:
    project = Project.parse(
        '[lake]\nname = "x"\n[retention]\nsamples = "1d"', tmp_path / "lake.toml"
    )
    for name in ("samples", "mine"):
        (project.table(name) / delta.LOG).mkdir(parents=True)
    loss = DeltaStore(project.table("loss"), TABLES["loss"])
    loss.commit()
    assert set(run_maintenance(project).vacuumed) == {"loss"}
    assert [table["table"] for table in lake_stats(project)["tables"]] == ["loss"]


@pytest.mark.parametrize("disturbed", range(3))
def test_tombstones_that_expire_while_a_batch_is_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disturbed: int
) -> None:
    """Before each of its three commits the old tombstones go; `latest` is what it would be."""
    latest = DeltaStore(tmp_path / "latest", LATEST)
    tombstones = DeltaStore(tmp_path / "tombstones", TOMBSTONES)
    hour = 3_600_000_000
    first = [
        Row("a", 0, stamp=10, delete=True),
        Row("b", 1, received=hour, stamp=10, delete=True),
        Row("c", 2, stamp=10),
        Row("d", 3, received=hour, stamp=10, delete=True),
    ]
    write.fold_latest(latest, tombstones, samples(*first), TableBatch("l", "q", 0))
    commits = 0
    commit = DeltaStore.commit

    def late(self: DeltaStore, *args: Any, **options: Any) -> int:
        nonlocal commits
        commits += 1
        if commits == disturbed + 1:
            other = DeltaStore(tombstones.path, TOMBSTONES)
            assert expire(other, 3600, datetime.fromtimestamp(T0 + 5400, UTC)).rows == 1
        return commit(self, *args, **options)

    second = [
        Row("b", 4, received=hour, stamp=11),
        Row("c", 5, received=hour, stamp=11, delete=True),
        Row("d", 6, received=hour, stamp=9),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(DeltaStore, "commit", late)
        write.fold_latest(latest, tombstones, samples(*second), TableBatch("l", "q", 1))
    assert latest.read()["key"].to_pylist() == ["b"]
    assert latest.read()["offset"].to_pylist() == [4]
    assert tombstones.read()["key"].to_pylist() == ["c", "d"]
    assert latest.transaction("zenlake/l/q") == 1


# ---- what others send


@pytest.mark.parametrize("odd", ["a//b", "a/$*$*", "a#?b", "k/*"])
def test_an_invalid_key_does_not_break_an_answer(past: KnownHistory, odd: str) -> None:
    past.record([stamped("k/1", 1, b"one", 1), stamped(odd, 2, b"two", 2)])
    history = History(past.project)
    for _ in range(2):
        for asked in ("**", "k/*", "k/1"):
            assert by_key(history.latest(asked))["k/1"][0].payload == b"one"
            assert by_key(history.between(asked))["k/1"][0].payload == b"one"
            assert by_key(history.between(asked, newest=1))["k/1"][0].payload == b"one"
        past.table({0: 2})


def test_rows_without_a_key_are_not_samples(tmp_path: Path) -> None:
    """Of a stream with losses from which the column of the loss was dropped."""
    rows = as_rows([Row("a", 0), Row("b", 1), Row("b", 2)])
    rows = rows.set_column(0, "key", pa.array(["a", None, "b"]))
    names = ("samples", "latest", "health")
    stores = {name: DeltaStore(tmp_path / name, TABLES[name]) for name in names}
    taking = projections.TableWriter(stores, "q/0")
    for batch in rows.to_batches():
        taking.add(batch)
    taken = taking.finish()
    for store in stores.values():
        projections.commit_numbered(store, [taken], TableBatch("f", "q", 0))
        assert sorted(store.read()["key"].to_pylist()) == ["a", "b"]
