"""Rows that Spark writes, seen by a subscriber of eclipse-zenoh.

ZENLAKE_FULL=1 writes a million rows instead of some thousands: minutes, most of them the
subscriber's, whom nobody may outrun.
"""

import hashlib
import os
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, concat, lit, when
from pyspark.sql.types import StructType

from tests.golden.proxy import free_port
from tests.support.spark_peer import SparkPeer
from tests.support.waiting import until
from zenlake.errors import ZError
from zenlake.spark.connection import MAX_SESSIONS, close_all, get_connection
from zenlake.spark.options import Options, Purpose
from zenlake.spark.rows import RowConverter, compile_sender
from zenlake.spark.sink import BatchWriter, check_columns, source_id

PATIENCE = 60
ROWS = 1_000_000 if os.environ.get("ZENLAKE_FULL") else 20_000


def received(peer: SparkPeer, count: int) -> list[dict[str, Any]]:
    """Exactly `count` samples: the router has read them, its subscriber may be a moment late."""
    until(peer.count, lambda n: n >= count, PATIENCE)
    found = peer.take()
    assert len(found) == count
    return found


def options(**given: str) -> Options:
    raw = {"connect": "tcp/127.0.0.1:7447", **given}
    return Options.parse({name.lower(): text for name, text in raw.items()}, Purpose.WRITE)


# ---- batches


@pytest.mark.spark
def test_every_row_arrives_once_and_in_order(spark: SparkSession, peer: SparkPeer) -> None:
    rows = spark.range(0, ROWS, 1, 2).select(
        concat(lit("out/row/"), (col("id") % 7).cast("string")).alias("key"),
        col("id").cast("string").alias("payload"),
    )
    rows.write.format("zenoh").option("connect", peer.at).mode("append").save()
    found = received(peer, ROWS)
    values = [int(bytes.fromhex(sample["payload"])) for sample in found]
    assert sorted(values) == list(range(ROWS))
    assert all(sample["key"] == f"out/row/{v % 7}" for sample, v in zip(found, values, strict=True))
    # What a row is known by: one id for the write, the partition, the row in it.
    assert len({sample["source"][0] for sample in found}) == 1
    for part in (0, 1):
        numbers = [sample["source"][2] for sample in found if sample["source"][1] == part]
        own = [v for sample, v in zip(found, values, strict=True) if sample["source"][1] == part]
        assert numbers == list(range(len(own)))
        assert own == sorted(own)
    assert {sample["congestion_control"] for sample in found} == {"block"}


@pytest.mark.spark
def test_every_column_is_sent(spark: SparkSession, peer: SparkPeer) -> None:
    ntp64 = (1_790_000_000 << 32) + 5
    spark.sql(
        f"""SELECT * FROM VALUES
          ('out/a', 'put', binary('one'), 'application/json', 'v2', binary('note'), 2Y, 'drop',
           true, false, named_struct('time', current_timestamp(), 'ntp64', {ntp64}L, 'id', 'ab'),
           named_struct('id', 'c0ffee', 'entity', 9L, 'sn', 77L)),
          ('out/b', 'delete', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
        AS t(key, kind, payload, encoding, schema, attachment, priority, congestion_control,
             express, reliable, timestamp, source)"""
    ).coalesce(1).write.format("zenoh").options(connect=peer.at, priority="data_high").mode(
        "append"
    ).save()
    by_key = {sample["key"]: sample for sample in received(peer, 2)}
    assert by_key["out/a"] == {
        "key": "out/a",
        "kind": "put",
        "payload": b"one".hex(),
        "encoding": "application/json;v2",
        "attachment": b"note".hex(),
        "priority": 2,
        "congestion_control": "drop",
        "express": True,
        "stamped_by": "ab",
        "source": ["c0ffee", 9, 77],
    }
    deleted = by_key["out/b"]
    assert deleted["kind"] == "delete"
    assert deleted["priority"] == 4
    assert deleted["congestion_control"] == "block"
    assert deleted["source"][1:] == [0, 1]


@pytest.mark.spark
def test_options_stand_in_for_columns(spark: SparkSession, peer: SparkPeer) -> None:
    spark.sql("SELECT 'x' AS payload").write.format("zenoh").options(
        connect=peer.at,
        key="out/fixed",
        encoding="text/plain;utf8",
        priority="7",
        congestionControl="drop",
        express="true",
    ).mode("append").save()
    (sample,) = received(peer, 1)
    assert (sample["key"], sample["encoding"], sample["priority"]) == (
        "out/fixed",
        "text/plain;utf8",
        7,
    )
    assert (sample["congestion_control"], sample["express"]) == ("drop", True)


@pytest.mark.spark
def test_a_peer_says_everything_before_it_leaves(spark: SparkSession) -> None:
    with SparkPeer("peer") as peer:
        spark.range(0, 3000, 1, 1).select(
            lit("out/p").alias("key"), col("id").cast("string").alias("payload")
        ).write.format("zenoh").options(connect=peer.at, mode="peer").mode("append").save()
        found = received(peer, 3000)
    assert [int(bytes.fromhex(sample["payload"])) for sample in found] == list(range(3000))


# ---- streams


@pytest.mark.spark
def test_a_replayed_micro_batch_is_recognised(
    spark: SparkSession, peer: SparkPeer, tmp_path: Path
) -> None:
    source, checkpoint = str(tmp_path / "in"), tmp_path / "checkpoint"
    schema = "key string, payload string"

    def run() -> str:
        query = (
            spark.readStream.schema(schema)
            .json(source)
            .writeStream.format("zenoh")
            .option("connect", peer.at)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.processAllAvailable()
            assert query.awaitTermination(PATIENCE)
            return str(query.id)
        finally:
            query.stop()

    def add(*names: str) -> None:
        rows = [(f"out/{name}", name) for name in names]
        spark.createDataFrame(rows, schema).coalesce(1).write.mode("append").json(source)

    add("a", "b")
    query_id = run()
    first = received(peer, 2)
    add("c")
    assert run() == query_id
    second = received(peer, 1)
    # As after a crash between the last row and the commit: the micro-batch runs again.
    for file in (checkpoint / "commits").glob("*1*"):
        file.unlink()
    assert run() == query_id
    again = received(peer, 1)
    assert again == second
    ids = {sample["source"][0] for sample in first}, {sample["source"][0] for sample in second}
    assert ids == ({source_id(f"{query_id}/0")}, {source_id(f"{query_id}/1")})


# ---- the session


@pytest.mark.process
def test_a_session_is_kept_and_replaced_when_it_breaks() -> None:
    with SparkPeer() as peer:
        given = options(connect=peer.at)
        try:
            first = get_connection(given)
            assert get_connection(given) is first
            assert get_connection(options(connect=peer.at, config="{mode: 'client'}")) is not first
            first.flush(PATIENCE)
            first.session.close()
            with pytest.raises(
                ZError, match=r"link to tcp/127\.0\.0\.1:\d+ was lost .* run it again"
            ):
                first.check_links()
            again = get_connection(given)
            assert again is not first
            again.flush(PATIENCE)
        finally:
            close_all()


@pytest.mark.process
def test_a_router_that_goes_away_fails_the_task() -> None:
    with SparkPeer() as peer:
        try:
            to = get_connection(options(connect=peer.at))
            batch = RowConverter(options(), "ab", 0).to_samples(
                pa.record_batch({"key": ["out/a"] * 10})
            )
            compile_sender(batch)
            to.session.put_batch(batch)
            to.flush(PATIENCE)
            peer.stop()
            with pytest.raises(ZError, match="was lost while this task used it"):
                until(lambda: to.flush(PATIENCE), lambda _: False, PATIENCE)
        finally:
            close_all()


@pytest.mark.process
def test_too_many_sessions_are_not_kept() -> None:
    with SparkPeer() as peer:
        try:
            names = [f"{{metadata: {{name: 'n{i}'}}}}" for i in range(MAX_SESSIONS + 1)]
            opened = [get_connection(options(connect=peer.at, config=name)) for name in names]
            closed = [entry.session.is_closed() for entry in opened]
            assert closed == [True] + [False] * MAX_SESSIONS
        finally:
            close_all()


# ---- what is refused


@pytest.mark.spark
def test_a_router_that_is_not_there(spark: SparkSession) -> None:
    at = f"tcp/127.0.0.1:{free_port()}#iface=secret"
    frame = spark.sql("SELECT 'a' AS key")
    with pytest.raises(Exception, match=r"no session with tcp/127\.0\.0\.1") as refused:
        frame.write.format("zenoh").option("connect", at).mode("append").save()
    assert "secret" not in str(refused.value)


@pytest.mark.spark
def test_a_null_key_fails_the_write(spark: SparkSession, peer: SparkPeer) -> None:
    frame = spark.range(2).select(when(col("id") < 0, lit("out/x")).alias("key"))
    with pytest.raises(Exception, match="column 'key' has a null"):
        frame.write.format("zenoh").option("connect", peer.at).mode("append").save()
    assert peer.take() == []


@pytest.mark.spark
@pytest.mark.parametrize(
    ("ddl", "given", "says"),
    [
        ("key string, value binary", {}, "column 'value' is not a column of a sample"),
        ("payload binary", {}, "no column 'key': add one, or give the option 'key'"),
        ("key string, payload int", {}, "column 'payload' is int: cast it to binary or string"),
        ("key string, timestamp timestamp", {}, "column 'timestamp' is timestamp: cast it"),
        ("key string, source struct<id string>", {}, "struct of id, entity, sn: no entity"),
        ("payload binary", {"key": "a/*"}, "a key to write to has no"),
    ],
)
def test_a_schema_that_cannot_be_sent(
    spark: SparkSession, ddl: str, given: dict[str, str], says: str
) -> None:
    with pytest.raises(ZError, match=says):
        check_columns(cast(StructType, StructType.fromDDL(ddl)), options(**given))


def test_what_was_read_can_be_written_back() -> None:
    from zenlake.spark.schema import SAMPLE_COLUMNS

    check_columns(SAMPLE_COLUMNS, options())


def test_no_secret_is_shown() -> None:
    made = options(config="{transport: {auth: {usrpwd: {password: 'hunter2'}}}}")
    writer = BatchWriter(made, StructType().add("key", "string"))
    assert "hunter2" not in repr(writer) + str(writer)


# ---- rows


def test_rows_are_numbered_over_batches() -> None:
    rows = RowConverter(options(), "ab", 3)
    batch = pa.record_batch({"key": ["a", "b"]})
    numbers = [rows.to_samples(batch).column("source").to_pylist() for _ in range(2)]
    assert [source["sn"] for part in numbers for source in part] == [0, 1, 2, 3]
    writers = Counter((source["id"], source["entity"]) for part in numbers for source in part)
    assert writers == {("ab", 3): 4}
    assert rows.count == 4


def test_more_rows_than_numbers_are_refused() -> None:
    rows = RowConverter(options(), "ab", 3)
    rows.count = (1 << 32) - 1
    rows.to_samples(pa.record_batch({"key": ["a"]}))
    with pytest.raises(ZError, match="repartition"):
        rows.to_samples(pa.record_batch({"key": ["a"]}))


def test_the_id_of_a_write_is_a_zenoh_id() -> None:
    text = source_id("query/7")
    digest = hashlib.sha256(b"query/7").digest()[:16]
    assert text == f"{int.from_bytes(digest, 'little'):x}"
    assert text != source_id("query/8")
