"""A log read as a stream: each row once, whatever is asked again, and clear words otherwise."""

import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import zenlake
from tests.support import spark_log
from tests.support.spark_log import START, STEP
from tests.support.waiting import until
from zenlake.errors import ZError
from zenlake.log.read.log import Log
from zenlake.log.write.writer import Writer
from zenlake.spark.log_source import LogStreamReader
from zenlake.spark.offsets import FOLDER, Offsets
from zenlake.spark.options import Options, Purpose
from zenlake.spark.progress import Lag, behind, skipped
from zenlake.spark.schema import SAMPLE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark_peer import SparkPeer

WAIT_SECONDS = 120.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def reader(path: Path, **options: Any) -> LogStreamReader:
    raw = {"path": str(path)} | {name.lower(): str(value) for name, value in options.items()}
    return LogStreamReader(Options.parse(raw, Purpose.LOG_STREAM), SAMPLE_COLUMNS)


def taken(reading: LogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    """Return the rows of a batch, read by a copy as executors have it."""
    copy = pickle.loads(pickle.dumps(reading))
    return [
        (row["partition"], row["offset"])
        for task in reading.partitions(start, end)
        for batch in copy.read(task)
        for row in batch.to_pylist()
    ]


class Query:
    """A stream of a log into Parquet, run until it has caught up."""

    def __init__(self, spark: "SparkSession", path: Path) -> None:
        self.spark, self.path = spark, path
        self.out, self.checkpoint = path.parent / "out", path.parent / "checkpoint"

    def begin(self, now: bool = False, **options: Any) -> Any:
        stream = self.spark.readStream.format("zenoh").options(path=str(self.path), **options)
        writing = stream.load().writeStream.format("parquet").option("path", str(self.out))
        writing = writing.option("checkpointLocation", str(self.checkpoint))
        return (writing.trigger(availableNow=True) if now else writing).start()

    def run(self, **options: Any) -> list[dict[str, Any]]:
        """The progress of each batch."""
        query = self.begin(now=True, **options)
        try:
            assert query.awaitTermination(int(WAIT_SECONDS))
        finally:
            query.stop()
        return [json.loads(progress.json) for progress in query.recentProgress]

    def rows(self) -> list[tuple[int, int]]:
        frame = self.spark.read.schema(SAMPLE_COLUMNS).parquet(str(self.out))
        found = frame.select("partition", "offset", "payload").collect()
        for row in found:
            assert bytes(row.payload) == spark_log.payload(row.partition, row.offset)
        return sorted((row.partition, row.offset) for row in found)

    def uncommit(self, batch: int) -> None:
        """As if the driver had died after it planned the batch and before its rows were kept."""
        for folder in (self.checkpoint / "commits", self.out / "_spark_metadata"):
            (folder / str(batch)).unlink()
            (folder / f".{batch}.crc").unlink(missing_ok=True)


def expected(**ranges: tuple[int, int]) -> list[tuple[int, int]]:
    return [(int(p[1:]), n) for p, bounds in ranges.items() for n in range(*bounds)]


# ---- through Spark


@pytest.mark.spark
def test_each_row_once_in_limited_batches_and_again_when_there_is_more(
    spark: "SparkSession", path: Path
) -> None:
    spark_log.append(path, 300)
    query = Query(spark, path)
    batches = [
        progress for progress in query.run(maxRowsPerTrigger=120) if progress["numInputRows"]
    ]
    assert [progress["numInputRows"] for progress in batches] == [120, 120, 60]
    assert [behind(progress) for progress in batches] == [{0: 180}, {0: 60}, {0: 0}]
    assert query.rows() == expected(p0=(0, 300))
    spark_log.append(path, 50)
    spark_log.append(path, 40, partition=1)  # one that was not there before
    query.run(minPartitions=3)
    assert query.rows() == expected(p0=(0, 350), p1=(0, 40))


@pytest.mark.spark
def test_a_batch_that_was_planned_and_not_committed_is_read_again_as_it_was(
    spark: "SparkSession", path: Path
) -> None:
    spark_log.append(path, 200)
    query = Query(spark, path)
    query.run(maxRowsPerTrigger=100)
    query.uncommit(1)
    assert query.rows() == expected(p0=(0, 100))
    spark_log.append(path, 100)
    first = query.run(maxRowsPerTrigger=7000, minPartitions=4)[0]
    assert (first["batchId"], first["numInputRows"]) == (1, 100)
    assert query.rows() == expected(p0=(0, 300))


@pytest.mark.spark
def test_latest_is_where_the_query_started_though_the_first_batch_failed(
    spark: "SparkSession", path: Path
) -> None:
    """Spark asks for the start again and does not keep it. Until it has planned a batch a file
    beside the log does, and then the batch itself."""
    spark_log.append(path, 100)
    reader(path, startingOffsets="latest").initialOffset()  # a driver that died right after
    spark_log.append(path, 50)
    query = Query(spark, path)
    query.run(startingOffsets="latest")
    assert query.rows() == expected(p0=(100, 150))
    query.uncommit(0)
    shutil.rmtree(path / FOLDER)
    spark_log.append(path, 30)
    first = query.run(startingOffsets="latest", minPartitions=2)[0]
    assert (first["batchId"], first["numInputRows"]) == (0, 50)
    assert query.rows() == expected(p0=(100, 180))


def fails(query: Query, **options: Any) -> str:
    with pytest.raises(Exception, match="log") as raised:
        query.run(**options)
    return str(raised.value)


@pytest.mark.spark
def test_a_log_recreated_trimmed_or_older_than_the_checkpoint_is_refused(
    spark: "SparkSession", path: Path
) -> None:
    spark_log.append(path, 200, rotate=2048)
    older = path.parent / "older"
    shutil.copytree(path, older)
    query = Query(spark, path)
    query.run()
    spark_log.append(path, 200, rotate=2048)
    newer = path.rename(path.parent / "newer")

    spark_log.append(path, 500)
    assert "was recreated" in fails(query)
    shutil.rmtree(path)

    shutil.copytree(newer, path)
    Log(path).trim(before_offset=350)
    first = Log(path).first(0)
    assert first > 200
    assert f"offsets 200 to {first - 1} are gone" in fails(query)
    batches = query.run(failOnDataLoss="false")
    assert skipped(batches[-1]) == {0: first - 200}
    assert query.rows() == expected(p0=(0, 200)) + expected(p0=(first, 400))
    shutil.rmtree(path)

    older.rename(path)
    said = fails(query, failOnDataLoss="false")
    assert "ends at offset 200, before 400" in said
    assert query.rows() == expected(p0=(0, 200)) + expected(p0=(first, 400))


def until_query(holds: Callable[[], bool], query: Any) -> None:
    """Wait until `holds()`; raise the query's own error if it ends with one before."""

    def look() -> bool:
        if query.exception() is not None:
            raise query.exception()
        return holds()

    until(look, within=WAIT_SECONDS)


@pytest.mark.spark
def test_one_line_records_a_live_system_and_goes_on_where_it_was(
    spark: "SparkSession", path: Path, peer: "SparkPeer"
) -> None:
    """The query's own recorder: it starts with the query and seals the log when that ends."""
    query = Query(spark, path)
    config = zenlake.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", json.dumps([peer.at]))
    put = 0
    with zenlake.open(config) as session:
        publisher = session.declare_publisher("live/pose")
        for total in (40, 100):
            running = query.begin(connect=peer.at, key="live/**", sync="1ms")
            try:
                until_query(lambda: publisher.matching_status.matching, running)
                for number in range(put, total):
                    publisher.put(spark_log.payload(0, number))
                put = total
                until_query(partial(_reached, running, total), running)
            finally:
                running.stop()
            until_query(lambda: not publisher.matching_status.matching, running)
            with Writer(path) as writer:  # no process holds the log any more
                assert writer.next == total
    assert query.rows() == expected(p0=(0, 100))


def _reached(query: Any, offset: int) -> bool:
    """Whether a batch that ends there is behind it."""
    last = query.lastProgress
    end = last and json.loads(last.json)["sources"][0]["endOffset"]
    reached = json.loads(end) if isinstance(end, str) else end
    return bool(reached) and reached["partitions"].get("0") == offset


# ---- without Spark


def test_nothing_new_is_the_same_text(path: Path) -> None:
    spark_log.append(path, 100)
    reading = reader(path)
    start = reading.initialOffset()
    end = reading.latestOffset(start, ReadAllAvailable())
    again = json.loads(json.dumps(end))
    assert json.dumps(reading.latestOffset(again, ReadAllAvailable())) == json.dumps(end)
    assert reading.partitions(end, end) == []
    assert reading.reportLatestOffset() == Offsets(Log(path).id, {0: 100}).to_json()
    assert json.dumps(reading.initialOffset()) == json.dumps(start)


def test_an_empty_log_has_nothing_and_then_something(path: Path) -> None:
    with Writer(path) as writer:
        reading = reader(path)
        start = reading.initialOffset()
        assert reading.latestOffset(start, ReadAllAvailable()) == start
        writer.write([spark_log.block(0, 0, 10)])
        end = reading.latestOffset(start, ReadAllAvailable())
        assert taken(reading, start, end) == expected(p0=(0, 10))


def test_rows_and_bytes_limit_a_batch_together(path: Path) -> None:
    spark_log.append(path, 1000, per_block=100)
    size, second = Log(path).blocks(0)["length"][:2].tolist()
    start = reader(path).initialOffset()

    def end(limit: Any, **options: Any) -> int:
        reached = reader(path, **options).latestOffset(start, limit)
        return int(reached["partitions"]["0"])

    assert end(ReadMaxRows(30)) == 30
    both = {"maxRowsPerTrigger": 900, "maxBytesPerTrigger": size + second}
    assert end(ReadMaxRows(30), **both) == 30
    assert end(ReadMaxRows(900), **both) == 200
    assert end(ReadMaxBytes(size // 2)) == pytest.approx(50, abs=1)
    assert end(ReadMaxBytes(1)) == 1
    assert end(ReadAllAvailable(), maxRowsPerTrigger=30) == 1000  # Trigger.Once
    assert reader(path, maxRowsPerTrigger=30).getDefaultReadLimit() == ReadMaxRows(30)
    assert reader(path, maxBytesPerTrigger="1KiB").getDefaultReadLimit() == ReadMaxBytes(1024)
    assert reader(path).getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_where_the_log_ended_then(path: Path) -> None:
    spark_log.append(path, 100)
    reading = reader(path, maxRowsPerTrigger=60)
    reading.prepareForTriggerAvailableNow()
    at, ends = reading.initialOffset(), []
    spark_log.append(path, 100)
    spark_log.append(path, 100, partition=1)
    while True:
        end = reading.latestOffset(at, reading.getDefaultReadLimit())
        if end == at:
            break
        ends.append(end["partitions"]["0"])
        at = end
    assert ends == [60, 100]


def test_latest_is_kept_until_a_batch_is_behind_it(path: Path) -> None:
    spark_log.append(path, 100)
    first = reader(path, startingOffsets="latest").initialOffset()
    assert first["partitions"] == {"0": 100}
    spark_log.append(path, 50)
    again = reader(path, startingOffsets="latest", maxRowsPerTrigger=10)  # a limit may change
    assert again.initialOffset() == first
    other = reader(path, startingOffsets="latest", keyExpr="robot/1/**")
    assert other.initialOffset()["partitions"] == {"0": 150}
    named = reader(path, startingOffsets="latest", startName="mine")
    assert named.initialOffset()["partitions"] == {"0": 150}
    end = again.latestOffset(first, ReadAllAvailable())
    assert taken(again, first, end) == expected(p0=(100, 150))
    again.commit(end)
    assert reader(path, startingOffsets="latest").initialOffset()["partitions"] == {"0": 150}
    assert again.partitions(first, end) != []  # though Spark may ask once more


def test_a_time_is_where_the_first_sample_came_at_or_after_it(path: Path) -> None:
    spark_log.append(path, 100)
    early = reader(path, startingTimestamp=(START + 30 * STEP) // 1_000_000).initialOffset()
    assert early["partitions"] == {"0": 30}
    late = reader(path, startingTimestamp=(START + 500 * STEP) // 1_000_000)
    assert late.initialOffset()["partitions"] == {"0": 100}
    spark_log.append(path, 10)
    assert late.initialOffset()["partitions"] == {"0": 100}


def test_a_start_that_retention_passed_is_told(path: Path) -> None:
    spark_log.append(path, 300, rotate=2048)
    reading = reader(path)
    start = reading.initialOffset()
    end = reading.latestOffset(start, ReadMaxRows(200))
    Log(path).trim(before_offset=100)
    first = Log(path).first(0)
    assert 0 < first <= 100
    for asked in (
        lambda: reading.latestOffset(start, ReadMaxRows(9)),
        lambda: taken(reading, start, end),
    ):
        with pytest.raises(ZError, match=f"offsets 0 to {first - 1} are gone"):
            asked()
    lenient = reader(path, failOnDataLoss="false")
    assert taken(lenient, start, end) == expected(p0=(first, 200))
    assert lenient.reportLatestOffset()["skipped"] == {"0": first}


def test_copies_start_no_recorder(path: Path) -> None:
    """Only the process that Spark asks for offsets records; others read what is there."""
    spark_log.append(path, 10)
    reading = reader(path, connect="tcp/127.0.0.1:1", key="a/**")
    copy = pickle.loads(pickle.dumps(reading))
    task = reader(path).partitions(*_whole(path))[0]
    assert sum(len(batch) for batch in copy.read(task)) == 10
    assert copy._recorder is None


def _whole(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    reading = reader(path)
    start = reading.initialOffset()
    return start, reading.latestOffset(start, ReadAllAvailable())


def test_secrets_are_not_shown(path: Path) -> None:
    secret = '{transport: {auth: {usrpwd: {password: "hush"}}}}'
    shown = repr(reader(path, config=secret, connect="tcp/a:1#password=hush"))
    assert "hush" not in shown
    assert "tcp/a:1" in shown


def test_the_listener_says_how_far_behind() -> None:
    source = {
        "numInputRows": 5,
        "endOffset": {"log": "ab", "partitions": {"0": 5}},
        "latestOffset": {"log": "ab", "partitions": {"0": 12, "1": 3}, "skipped": {"0": 2}},
    }
    report = {"id": "x", "name": None, "batchId": 4, "sources": [source, {"latestOffset": "9"}]}
    said: list[str] = []
    event = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(report)))
    Lag(said.append).onQueryProgress(event)  # type: ignore[arg-type]
    assert said == ["x: batch 4: 5 rows, 10 behind, 2 skipped"]
    assert behind(None) == {}
