"""Tables of an older version get what they lack; those of a newer one are refused."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.support.lake_rows import as_samples
from zenlake.lake.tables import migrate
from zenlake.lake.tables.compaction import compact
from zenlake.lake.tables.definitions import SAMPLES, SCHEMA_PROPERTY, SCHEMA_VERSION
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.reduce import conform
from zenlake.lake.tables.schema import SAMPLE

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def samples(count: int, first: int = 0) -> pa.Table:
    said = {
        "key": pa.array([f"robot/{number}" for number in range(first, first + count)]),
        "received_at": pa.array([NOON] * count, pa.timestamp("us", "UTC")),
        "offset": pa.array(range(first, first + count), pa.int64()),
    }
    columns = [
        said[field.name] if field.name in said else pa.nulls(count, field.type) for field in SAMPLE
    ]
    return as_samples(pa.table(columns, schema=SAMPLE))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """As a version before the first would have made it: two files, without `hlc`."""
    path = tmp_path / "samples"
    for first in (0, 2):
        rows = samples(2, first).drop_columns(["hlc"])
        write_deltalake(path, rows, mode="append", partition_by=["day"])
    return path


def version(path: Path) -> str | None:
    return DeltaTable(path).metadata().configuration.get(SCHEMA_PROPERTY)


def test_a_new_table_needs_nothing(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path / "samples", SAMPLES)
    store.commit([store.write_file(samples(2))])
    assert version(store.path) == str(SCHEMA_VERSION)
    assert not migrate.prepare(store)
    assert store.snapshot().version == DeltaTable(store.path).version()


def test_missing_columns_are_added_and_no_file_is_touched(old: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in old.rglob("*.parquet")}
    store = DeltaStore(old, SAMPLES)
    assert migrate.prepare(store)
    assert version(old) == str(SCHEMA_VERSION)
    assert DeltaTable(old).schema().fields[-1].name == "hlc"
    assert {path: path.stat().st_mtime_ns for path in old.rglob("*.parquet")} == files
    assert not migrate.prepare(DeltaStore(old, SAMPLES))


def test_an_old_table_is_appended_to_and_read(old: Path) -> None:
    store = DeltaStore(old, SAMPLES)
    store.commit([store.write_file(samples(2, 4))])
    assert version(old) == str(SCHEMA_VERSION)
    found = DeltaStore(old, SAMPLES).read().sort_by("offset")
    assert found["key"].to_pylist() == [f"robot/{number}" for number in range(6)]
    assert found["hlc"].null_count == 4  # what was not known stays unknown


def test_an_old_table_is_compacted(old: Path) -> None:
    store = DeltaStore(old, SAMPLES)
    store.commit([store.write_file(samples(2, 4))])
    assert compact(store, 1 << 20).files == 3
    found = DeltaStore(old, SAMPLES).read().sort_by("offset")
    assert found["offset"].to_pylist() == list(range(6))
    assert found["hlc"].null_count == 4


def with_hlc(store: DeltaStore) -> None:
    """A step of the kind that a real change of meaning needs: every file is written again."""
    old = [file for file in store.snapshot().files if "hlc" not in file.low]
    rows = [as_samples(store.read([file]).select(SAMPLE.names)) for file in old]
    store.commit([store.write_file(table) for table in rows], old, data_change=False)


def test_a_step_does_more_than_columns(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(migrate.STEPS, ("samples", 0), with_hlc)
    assert migrate.prepare(DeltaStore(old, SAMPLES))
    assert version(old) == str(SCHEMA_VERSION)
    found = DeltaStore(old, SAMPLES).read().sort_by("offset")
    assert found.equals(conform(samples(4), found.schema))


def test_a_step_that_was_cut_short_is_done_again(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def first_fails(store: DeltaStore) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("no space left")
        with_hlc(store)

    monkeypatch.setitem(migrate.STEPS, ("samples", 0), first_fails)
    with pytest.raises(OSError, match="no space"):
        migrate.prepare(DeltaStore(old, SAMPLES))
    assert version(old) is None
    assert migrate.prepare(DeltaStore(old, SAMPLES))
    assert DeltaStore(old, SAMPLES).read()["hlc"].null_count == 0


def test_a_newer_table_is_refused_before_anything_is_written(old: Path) -> None:
    DeltaTable(old).alter.set_table_properties({SCHEMA_PROPERTY: "9"}, raise_if_not_exists=False)
    before = sorted(path.name for path in (old / "_delta_log").iterdir())
    store = DeltaStore(old, SAMPLES)
    added = store.write_file(samples(2, 4))
    with pytest.raises(migrate.NewerTable, match=r"version 9 .* install the newer zenlake"):
        store.commit([added])
    assert sorted(path.name for path in (old / "_delta_log").iterdir()) == before
    assert store.read(columns=["offset"]).num_rows == 4  # reading is not refused


def test_another_table_in_its_place_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "samples", pa.table({"key": [1, 2]}))
    store = DeltaStore(tmp_path / "samples", SAMPLES)
    with pytest.raises(migrate.WrongTable, match=r"column 'key' is .*long.*, not .*string"):
        migrate.prepare(store)


def test_columns_that_others_added_stay(old: Path) -> None:
    DeltaTable(old).alter.add_columns([Field("site", PrimitiveType("string"))])
    store = DeltaStore(old, SAMPLES)
    store.commit([store.write_file(samples(2, 4))])
    said = json.loads(DeltaTable(old).schema().to_json())
    assert [field["name"] for field in said["fields"]][-2:] == ["site", "hlc"]
    assert DeltaTable(old).to_pyarrow_table().num_rows == 6
