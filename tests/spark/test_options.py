"""Options, as Spark hands them over, and record batches in the form that Spark takes."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from zenlake.columnar import conform
from zenlake.columnar.schema import SAMPLE
from zenlake.errors import ZError
from zenlake.quantities import Limit
from zenlake.spark import schema as spark_schema
from zenlake.spark.options import OPTIONS, Options, Purpose, check, table
from zenlake.spark.schema import (
    SAMPLE_COLUMNS,
    arrow_schema,
    check_schema,
    select_columns,
    with_loss,
)
from zenlake.spark.source import RefusedStream, ZenohDataSource

# ---- options


def value(name: str, text: str, purpose: Purpose = Purpose.LOG_STREAM) -> Any:
    return Options.parse({name.lower(): text}, purpose)[name]


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("keyExpr", "a/**/*", "a/*/**"),
        ("startingOffsets", "Latest", "latest"),
        ("startingOffsets", '{"1": 20, "0": 3}', {0: 3, 1: 20}),
        ("startingTimestamp", "1500", 1_500_000),
        ("startingTimestamp", "1970-01-01T00:00:01.5Z", 1_500_000),
        ("startingTimestamp", "1970-01-01T01:00:01+01:00", 1_000_000),
        ("startingTimestamp", "1970-01-01T00:00:02", 2_000_000),
        ("maxRowsPerTrigger", "10", 10),
        ("maxBytesPerTrigger", "64MiB", 64 << 20),
        ("failOnDataLoss", "FALSE", False),
        ("columns", "key, payload", ("key", "payload")),
        ("connect", "tcp/a:1, tls/b:2", ("tcp/a:1", "tls/b:2")),
        ("connect", '["tcp/a:1"]', ("tcp/a:1",)),
        ("retain", "7d", Limit(seconds=604800.0)),
        ("retain", "100GiB, 1h", Limit(3600.0, 100 << 30)),
        ("rotate", "256MiB", 256 << 20),
        ("sync", "50ms", 0.05),
        ("recorderPartition", "0", 0),
        ("config", " {mode: 'peer'} ", "{mode: 'peer'}"),
        ("config", "/etc/zenoh.json5", "/etc/zenoh.json5"),
    ],
)
def test_option_texts_are_read_as_values(name: str, text: str, wanted: Any) -> None:
    assert value(name, text) == wanted


def test_values_of_other_purposes() -> None:
    assert value("priority", "data-high", Purpose.WRITE) == 4
    assert value("priority", "7", Purpose.WRITE) == 7
    assert value("target", "ALL", Purpose.LIVE) == "all"
    assert value("selector", "a/**/*?x=1", Purpose.LIVE) == "a/*/**?x=1"
    assert value("path", "/x/*.pcap", Purpose.CAPTURE) == ("/x/*.pcap",)
    assert value("paths", '["/a", "/b"]', Purpose.CAPTURE) == ("/a", "/b")
    assert value("ports", "7447,7000", Purpose.CAPTURE) == (7447, 7000)
    assert value("endingOffsets", '{"0": 3}', Purpose.LOG_BATCH) == {0: 3}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keyExpr", "a//b"),
        ("startingOffsets", "yesterday"),
        ("startingOffsets", '{"0": -1}'),
        ("startingOffsets", '{"0": true}'),
        ("startingOffsets", "{}"),
        ("startingOffsets", "[1]"),
        ("startingTimestamp", "noon"),
        ("maxRowsPerTrigger", "0"),
        ("maxRowsPerTrigger", "many"),
        ("maxBytesPerTrigger", "1x"),
        ("maxBytesPerTrigger", "99999999999999999TB"),
        ("failOnDataLoss", "yes"),
        ("columns", "key,,payload"),
        ("codec", "gzip"),
        ("mode", "boss"),
        ("retain", "7d,8d"),
        ("rotate", "5min"),
        ("retain", ""),
        ("sync", "-1"),
        ("recorderPartition", "-1"),
        ("path", " "),
    ],
)
def test_a_bad_value_is_named_with_its_remedy(name: str, text: str) -> None:
    what = table(Purpose.LOG_STREAM)[name.lower()].kind.what
    with pytest.raises(ZError) as refused:
        value(name, text)
    assert str(refused.value) == f"option {name!r}: {text!r} is not {what}"


@pytest.mark.parametrize("text", ["tcp", "", "[1]", "[", "tcp/a#secret;=x"])
def test_a_bad_endpoint_is_not_repeated(text: str) -> None:
    with pytest.raises(ZError, match="option 'connect': what it holds is not endpoints") as refused:
        value("connect", text)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


def test_names_that_are_not_known() -> None:
    with pytest.raises(ZError, match="no option 'keyexp'; did you mean 'keyExpr'"):
        Options.parse({"keyexp": "a"}, Purpose.LOG_BATCH)
    with pytest.raises(ZError, match="no option 'zzz'; there are 'columns', 'config', 'connect"):
        Options.parse({"zzz": "a"}, Purpose.LIVE)
    with pytest.raises(ZError, match="option 'endingOffsets' is of log-batch, not of log-stream"):
        Options.parse({"endingoffsets": "latest"}, Purpose.LOG_STREAM)
    with pytest.raises(ZError, match=r"option 'path' is of .*, not of write: leave it out"):
        Options.parse({"path": "/x"}, Purpose.WRITE)


def test_what_spark_adds_is_no_option() -> None:
    assert not Options.parse({"checkpointlocation": "/x"}, Purpose.WRITE).given


def test_defaults_and_what_was_given() -> None:
    options = Options.parse({"path": "/x"}, Purpose.LOG_BATCH)
    assert options.given == {"path"}
    assert (options["startingOffsets"], options["endingOffsets"]) == ("earliest", "latest")
    assert options["failOnDataLoss"] is True
    with pytest.raises(KeyError):
        options["selector"]


def test_a_missing_option_is_named_with_its_purpose() -> None:
    options = Options.parse({}, Purpose.LIVE)
    with pytest.raises(ZError, match=r"option 'connect' \(or 'config'\) is missing: endpoints of"):
        options.require("connect", "config")


def test_secrets_are_not_shown() -> None:
    raw = {"config": "{x: 'hunter2'}", "connect": "tls/a:1#key=hunter2", "selector": "a"}
    options = Options.parse(raw, Purpose.LIVE)
    assert repr(options) == "Options(live, config=***, connect=('tls/a:1',), selector='a')"
    assert "hunter2" not in str(options)


def test_the_table_has_one_option_of_a_name_for_each_purpose() -> None:
    for purpose in Purpose:
        names = [option.name.lower() for option in OPTIONS if purpose in option.purposes]
        assert len(names) == len(set(names))


def test_any_of_several_purposes_will_do() -> None:
    check({"key": "a/*", "timeout": "5"}, (Purpose.LOG_STREAM, Purpose.WRITE))
    with pytest.raises(ZError, match="option 'key'"):
        check({"key": "//"}, (Purpose.LOG_STREAM, Purpose.WRITE))


PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
SECTIONS = {
    Purpose.LOG_STREAM: "Reading a log",
    Purpose.LOG_BATCH: "Reading a log",
    Purpose.LIVE: "Asking a live system",
    Purpose.WRITE: "Writing",
    Purpose.CAPTURE: "Reading captures",
}
COLUMN = {Purpose.LOG_STREAM: 2, Purpose.LOG_BATCH: 3}


@pytest.mark.parametrize("purpose", Purpose)
def test_the_guide_lists_every_option(purpose: Purpose) -> None:
    text = PAGE.read_text().partition(f"## {SECTIONS[purpose]}\n")[2].partition("\n## ")[0]
    text = text.partition("| option |")[2].partition("\n\n")[0]
    listed: set[str] = set()
    for row in text.splitlines()[2:]:
        cells = [cell.strip() for cell in row.split("|")]
        if purpose not in COLUMN or cells[COLUMN[purpose]] == "yes":
            listed.update(re.findall(r"`(\w+)`", cells[1]))
    assert listed == {option.name for option in table(purpose).values()} - {"paths"}


# ---- the data source


def test_the_source_checks_before_anything_is_read() -> None:
    with pytest.raises(ZError, match="did you mean 'selector'"):
        ZenohDataSource({"selektor": "a"})
    with pytest.raises(ZError, match="option 'maxRowsPerTrigger' is of log-stream"):
        ZenohDataSource({"selector": "a", "maxrowspertrigger": "5"}).schema()
    with pytest.raises(ZError, match="no column 'nope'"):
        ZenohDataSource({"path": "/x", "columns": "nope"}).schema()


def test_loss_is_the_last_column_if_asked_for() -> None:
    assert ZenohDataSource({"path": "/x", "includeloss": "TRUE"}).schema() == with_loss()
    assert ZenohDataSource({"path": "/x"}).schema() == SAMPLE_COLUMNS
    given = {"path": "/x", "includeloss": "true", "columns": "loss,key"}
    assert ZenohDataSource(given).schema().names == ["loss", "key"]


def test_a_stream_that_cannot_be_says_why_when_it_starts() -> None:
    """Spark would hide an error that streamReader() raises."""
    reader = ZenohDataSource({"selector": "a"}).streamReader(SAMPLE_COLUMNS)
    assert isinstance(reader, RefusedStream)
    with pytest.raises(ZError, match="a query is answered once, it is not a stream"):
        reader.initialOffset()


def test_overwriting_is_refused() -> None:
    source = ZenohDataSource({"connect": "tcp/a:1"})
    with pytest.raises(ZError, match=r"use mode\('append'\)"):
        source.writer(StructType([StructField("key", StringType())]), overwrite=True)


# ---- columns


def test_a_schema_that_a_user_gives() -> None:
    few = select_columns(SAMPLE_COLUMNS, ["offset", "timestamp"])
    assert check_schema(few, SAMPLE_COLUMNS) == few
    with pytest.raises(ZError, match="column 'key' is string, not bigint: read it as it is"):
        check_schema(StructType([StructField("key", LongType())]), SAMPLE_COLUMNS)
    with pytest.raises(ZError, match="column 'key' may be null"):
        check_schema(StructType([StructField("key", StringType(), False)]), SAMPLE_COLUMNS)
    with pytest.raises(ZError, match="more than once"):
        select_columns(SAMPLE_COLUMNS, ["key", "key"])


def sample_batch() -> pa.RecordBatch:
    rows = [
        {
            "key": "a/b",
            "kind": "put",
            "payload": b"one",
            "encoding": "text/plain",
            "schema": "v1",
            "timestamp": {"time": (1 << 63) + (1 << 31), "id": "ab"},
            "source": {"id": "cd", "entity": (1 << 32) - 1, "sn": 7},
            "attachment": b"x",
            "priority": 5,
            "congestion_control": "block",
            "express": True,
            "reliable": False,
            "received_at": datetime(2026, 1, 2, tzinfo=UTC),
        },
        {
            "key": "a/c",
            "kind": "delete",
            "payload": None,
            "encoding": "zenoh/bytes",
            "schema": None,
            "timestamp": None,
            "source": None,
            "attachment": None,
            "priority": 1,
            "congestion_control": "drop",
            "express": False,
            "reliable": True,
            "received_at": None,
        },
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SAMPLE)


def test_a_batch_for_spark() -> None:
    made = spark_schema.to_spark(sample_batch(), SAMPLE_COLUMNS)
    assert made.schema == arrow_schema(SAMPLE_COLUMNS)
    made.validate(full=True)
    one, other = made.to_pylist()
    assert one["timestamp"] == {
        "time": datetime(2038, 1, 19, 3, 14, 8, 500_000, tzinfo=UTC),
        "ntp64": (1 << 31) - (1 << 63),  # all 64 bits, signed
        "id": "ab",
    }
    assert one["source"] == {"id": "cd", "entity": (1 << 32) - 1, "sn": 7}
    assert (one["key"], one["kind"], one["payload"]) == ("a/b", "put", b"one")
    assert (other["timestamp"], other["source"], other["payload"]) == (None, None, None)
    assert (one["partition"], one["offset"]) == (None, None)


def test_only_the_wanted_columns_and_those_of_a_log() -> None:
    batch = sample_batch()
    extra = batch.append_column("offset", pa.array([7, 8], pa.int64()))
    loss = pa.array(
        [None, {"kind": "lane", "count": 3}], arrow_schema(with_loss()).field("loss").type
    )
    wanted = select_columns(with_loss(), ["loss", "offset", "key"])
    made = spark_schema.to_spark(extra.append_column("loss", loss), wanted)
    assert made.schema == arrow_schema(wanted)
    assert [list(row.values())[1:] for row in made.to_pylist()] == [[7, "a/b"], [8, "a/c"]]
    assert made.column("loss")[1].as_py()["count"] == 3


def test_slices_keep_their_rows() -> None:
    made = spark_schema.to_spark(sample_batch().slice(1), SAMPLE_COLUMNS)
    assert made.to_pylist() == spark_schema.to_spark(sample_batch(), SAMPLE_COLUMNS).to_pylist()[1:]


def test_a_batch_whose_texts_are_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conform, "MAX_TEXT_BYTES", 1000)
    keys = pa.array(["k" * 300, "short"] * 10).dictionary_encode()
    wanted = select_columns(SAMPLE_COLUMNS, ["key"])
    parts = list(spark_schema.to_spark_batches(pa.record_batch({"key": keys}), wanted))
    assert len(parts) > 1
    assert all(part.column("key").nbytes < 1200 for part in parts)
    assert [key for part in parts for key in part.column("key").to_pylist()] == keys.to_pylist()


def test_a_time_among_the_offsets_is_a_time() -> None:
    raw = {"path": "log", "startingoffsets": "2026-08-22T10:00:00Z", "endingoffsets": "1500"}
    options = Options.parse(raw, Purpose.LOG_BATCH)
    said = {"path": "log", "startingtimestamp": "2026-08-22T10:00:00Z", "endingtimestamp": "1500"}
    same = Options.parse(said, Purpose.LOG_BATCH)
    assert options.values == same.values
    assert (options["startingOffsets"], options["endingTimestamp"]) == ("earliest", 1_500_000)
