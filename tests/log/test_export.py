"""Exported samples are what readers of Parquet, Arrow and MCAP find in the file."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mcap.reader import make_reader
from pyarrow import parquet

from zenlake.errors import ZError
from zenlake.log import export as exporting
from zenlake.log.export import DELETES, LOSSES, SCHEMA, Exported, export
from zenlake.quantities import ntp64_from_nanos

MOMENT = 1_794_736_800_000_000  # Microseconds since the epoch.
LOSS = pa.struct(
    [
        pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
        pa.field("id", pa.dictionary(pa.int32(), pa.string())),
        pa.field("entity", pa.uint32()),
        pa.field("priority", pa.int8()),
        pa.field("reliable", pa.bool_()),
        pa.field("first", pa.uint64()),
        pa.field("last", pa.uint64()),
        pa.field("count", pa.int64()),
    ]
)
FILES = ("x.parquet", "x.arrow", "x.mcap")


def row(offset: int, **fields: Any) -> dict[str, Any]:
    return {
        "key": "demo/a",
        "kind": "put",
        "payload": b"%d" % offset,
        "encoding": "zenoh/bytes",
        "schema": None,
        "timestamp": None,
        "source": None,
        "attachment": None,
        "priority": 5,
        "congestion_control": "drop",
        "express": False,
        "reliable": True,
        "received_at": datetime.fromtimestamp((MOMENT + offset) / 1e6, UTC),
        "partition": 0,
        "offset": offset,
    } | fields


def batch(*rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


STAMP = {"time": ntp64_from_nanos(MOMENT * 1000 - 12_345), "id": "ab"}
SOURCE = {"id": "cd", "entity": 3, "sn": 77}
BATCHES = [
    batch(row(0), row(1, key="demo/b", timestamp=STAMP, source=SOURCE)),
    batch(
        row(2, key="demo/b", kind="delete", payload=None),
        row(3, encoding="application/json", schema="fleet.Pose", payload=b'{"x":1}'),
        row(4, encoding="application/json", payload=b"2", attachment=b"tag"),
    ),
    batch(
        row(5, encoding="application/protobuf", schema="fleet.Pose", partition=1),
        row(6, encoding="application/cdr", schema="std_msgs/msg/String"),
        row(7, encoding="my/own", schema="x"),
        row(8, key="demo/b", payload=b""),
    ),
]
ROWS = [row for batch in BATCHES for row in batch.to_pylist()]


# ---- Parquet and Arrow


def test_parquet_has_every_row_and_column(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    done = export(BATCHES, file)
    assert done == Exported(9, file.stat().st_size, 0)
    table = parquet.read_table(file)
    assert table.to_pylist() == ROWS
    assert table.schema.field("key").type == pa.string()
    column = parquet.ParquetFile(file).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"


def test_arrow_has_every_row_and_column(tmp_path: Path) -> None:
    file = tmp_path / "x.arrow"
    assert export(BATCHES, file).rows == 9
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
        assert reader.num_record_batches == 3
        assert reader.read_all().to_pylist() == ROWS


def test_parts_of_batches_are_exported(tmp_path: Path) -> None:
    sliced = [batch.slice(1) for batch in BATCHES]
    wanted = [row for batch in sliced for row in batch.to_pylist()]
    export(sliced, tmp_path / "x.parquet")
    assert parquet.read_table(tmp_path / "x.parquet").to_pylist() == wanted


def test_small_batches_share_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "ROW_GROUP_ROWS", 5)
    export([*BATCHES, *BATCHES], tmp_path / "x.parquet")
    metadata = parquet.ParquetFile(tmp_path / "x.parquet").metadata
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert groups == [5, 6, 7]


def test_losses_are_rows_of_their_own(tmp_path: Path) -> None:
    found = parquet_with_losses(tmp_path)
    assert [(row["kind"], row["key"]) for row in found] == [("loss", None), ("put", "demo/a")]
    assert found[0]["loss"]["kind"] == "lane"
    assert found[1]["loss"] is None


def with_losses() -> pa.RecordBatch:
    nullable = [pa.field(f.name, f.type) for f in SCHEMA]
    loss = {
        "kind": "lane",
        "id": "ab",
        "entity": 0,
        "priority": 5,
        "reliable": True,
        "first": 4,
        "last": 6,
        "count": 3,
    }
    empty = {name: None for name in SCHEMA.names if name not in ("received_at", "partition")}
    return batch(
        row(0) | empty | {"kind": "loss", "offset": 0, "loss": loss},
        row(0) | {"loss": None},
        schema=pa.schema([*nullable, pa.field("loss", LOSS)]),
    )


def parquet_with_losses(tmp_path: Path) -> list[dict[str, Any]]:
    export([with_losses()], tmp_path / "x.parquet")
    found: list[dict[str, Any]] = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    return found


# ---- MCAP


def messages(file: Path) -> list[tuple[Any, Any, Any]]:
    with file.open("rb") as stream:
        return list(make_reader(stream, validate_crcs=True).iter_messages())


def test_mcap_has_every_put_under_its_key(tmp_path: Path) -> None:
    file = tmp_path / "x.mcap"
    assert export(BATCHES, file) == Exported(9, file.stat().st_size, 1)
    found = messages(file)
    assert [(channel.topic, message.data) for _, channel, message in found] == [
        ("demo/a", b"0"),
        ("demo/b", b"1"),
        (DELETES, b'{"key": "demo/b", "partition": 0, "offset": 2}'),
        ("demo/a", b'{"x":1}'),
        ("demo/a", b"2"),
        ("demo/a", b"5"),
        ("demo/a", b"6"),
        ("demo/a", b"7"),
        ("demo/b", b""),
    ]
    assert [message.log_time for _, _, message in found] == [
        (MOMENT + offset) * 1000 for offset in range(9)
    ]


def test_mcap_names_encodings_and_schemas(tmp_path: Path) -> None:
    export(BATCHES, tmp_path / "x.mcap")
    named = [
        (channel.message_encoding, schema and (schema.name, schema.encoding, schema.data))
        for schema, channel, _ in messages(tmp_path / "x.mcap")
    ]
    assert named[:2] == [("zenoh/bytes", None)] * 2
    assert named[3:8] == [
        ("json", ("fleet.Pose", "jsonschema", b'{"type": "object"}')),
        ("json", None),
        ("protobuf", ("fleet.Pose", "protobuf", b"")),
        ("cdr", ("std_msgs/msg/String", "ros2msg", b"")),
        ("my/own", ("x", "", b"")),
    ]
    _, channel, _ = messages(tmp_path / "x.mcap")[7]
    assert channel.metadata == {"zenoh_encoding": "my/own;x"}


def test_mcap_knows_when_and_as_which_it_was_put(tmp_path: Path) -> None:
    export(BATCHES, tmp_path / "x.mcap")
    found = [message for _, _, message in messages(tmp_path / "x.mcap")]
    assert (found[0].publish_time, found[0].sequence) == (MOMENT * 1000, 0)
    assert (found[1].publish_time, found[1].sequence) == (MOMENT * 1000 - 12_345, 77)
    assert found[8].sequence == 8


def test_mcap_has_losses_as_a_topic(tmp_path: Path) -> None:
    export([with_losses()], tmp_path / "x.mcap")
    (_, lost, message), (_, data, _) = messages(tmp_path / "x.mcap")
    assert (lost.topic, lost.message_encoding, data.topic) == (LOSSES, "json", "demo/a")
    said = json.loads(message.data)
    assert (said["offset"], said["kind"], said["first"], said["count"]) == (0, "lane", 4, 3)


def test_mcap_is_indexed_and_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "MCAP_CHUNK_BYTES", 100)
    export(BATCHES, tmp_path / "x.mcap")
    with (tmp_path / "x.mcap").open("rb") as stream:
        summary = make_reader(stream).get_summary()
    assert summary is not None
    assert summary.statistics is not None
    assert summary.statistics.message_count == 9
    assert len(summary.chunk_indexes) > 1
    assert {index.compression for index in summary.chunk_indexes} == {"zstd"}


def test_mcap_has_so_many_channels_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "MAX_CHANNELS", 2)
    with pytest.raises(ZError, match="more than 2 keys"):
        export([batch(*(row(i, key=f"k/{i}") for i in range(3)))], tmp_path / "x.mcap")
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcap.writer", None)
    with pytest.raises(ZError, match=r"pip install 'zenlake\[log\]'"):
        export(BATCHES, tmp_path / "x.mcap")
    assert list(tmp_path.iterdir()) == []


# ---- the file


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_a_file_too(tmp_path: Path, name: str) -> None:
    assert export([], tmp_path / name).rows == 0
    assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_overwritten_only_when_asked(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(ZError, match="exists already"):
        export(BATCHES, tmp_path / name)
    assert (tmp_path / name).read_bytes() == b"mine"
    export(BATCHES, tmp_path / name, overwrite=True)
    assert (tmp_path / name).stat().st_size > 100


@pytest.mark.parametrize("name", FILES)
def test_a_failure_leaves_what_was_there(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"mine")

    def failing() -> Iterator[pa.RecordBatch]:
        yield BATCHES[0]
        raise ZError("damaged")

    with pytest.raises(ZError, match="damaged"):
        export(failing(), tmp_path / name, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"mine"


@pytest.mark.parametrize("name", FILES)
def test_a_full_disk_is_said(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ZError, match=rf"{name} cannot be written: No space left"):
        export(BATCHES, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_name_says_the_format(tmp_path: Path) -> None:
    with pytest.raises(ZError, match=r"ends with \.parquet, \.arrow, \.mcap"):
        export(BATCHES, tmp_path / "x.csv")


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[int] = []
    export(BATCHES, tmp_path / "x.parquet", on_rows=told.append)
    assert told == [2, 3, 4]
