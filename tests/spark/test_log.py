"""A log read as a table."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import spark_log
from tests.support.spark_log import START, STEP
from zenlake.errors import ZError
from zenlake.log.block import Loss
from zenlake.log.format import SOURCE
from zenlake.log.read.log import Log
from zenlake.log.write.writer import Writer
from zenlake.spark.log_source import LogRange, LogReader
from zenlake.spark.options import Options, Purpose
from zenlake.spark.schema import SAMPLE_COLUMNS, select_columns, with_loss

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = {0: 1000, 1: 300}
PER_BLOCK = 50


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of two partitions, of several segments."""
    path = tmp_path_factory.mktemp("log") / "log"
    for partition, count in ROWS.items():
        spark_log.append(path, count, partition, PER_BLOCK, rotate=4096)
    return path


def reader(path: Path, **options: Any) -> LogReader:
    raw = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    columns = with_loss() if "includeLoss" in options else SAMPLE_COLUMNS
    names = options["columns"].split(",") if "columns" in options else None
    return LogReader(Options.parse(_lower(raw), Purpose.LOG_BATCH), select_columns(columns, names))


def _lower(raw: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in raw.items()}


def rows(reading: LogReader) -> Iterator[dict[str, Any]]:
    for task in reading.partitions():
        for batch in reading.read(task):
            yield from batch.to_pylist()


def found(reading: LogReader) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows(reading)]


def expected(**ranges: tuple[int, int]) -> list[tuple[int, int]]:
    return [(int(p[1:]), n) for p, bounds in ranges.items() for n in range(*bounds)]


ALL = expected(p0=(0, 1000), p1=(0, 300))


# ---- through Spark


@pytest.mark.spark
def test_every_row_is_there_once_with_all_its_columns(spark: "SparkSession", path: Path) -> None:
    frame = spark.read.format("zenoh").load(str(path))
    assert frame.schema == SAMPLE_COLUMNS
    got = frame.orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset) for row in got] == ALL
    assert [bytes(row.payload) for row in got] == [spark_log.payload(*place) for place in ALL]
    assert [row.key for row in got] == [spark_log.key(offset) for _, offset in ALL]
    seventh = got[7]
    assert seventh.kind == "put"
    assert seventh.reliable
    moment = datetime.fromtimestamp((START + 7 * STEP) / 1e9, UTC)
    assert seventh.received_at.astimezone(UTC) == moment


@pytest.mark.spark
def test_ranges_keys_and_columns(spark: "SparkSession", path: Path) -> None:
    frame = (
        spark.read.format("zenoh")
        .option("startingOffsets", '{"0": 990, "1": 100}')
        .option("endingOffsets", '{"1": 110}')
        .option("keyExpr", "robot/1/**")
        .option("columns", "offset,key")
        .option("minPartitions", 3)
        .load(str(path))
    )
    assert frame.columns == ["offset", "key"]
    assert sorted(row.offset for row in frame.collect()) == [101, 105, 109, 993, 997]
    assert {row.key for row in frame.collect()} == {"robot/1/pose"}


@pytest.mark.spark
def test_a_narrower_schema_is_taken(spark: "SparkSession", path: Path) -> None:
    frame = spark.read.format("zenoh").schema("offset bigint, payload binary").load(str(path))
    assert frame.columns == ["offset", "payload"]
    assert frame.count() == len(ALL)


@pytest.mark.spark
def test_a_view_of_sql(spark: "SparkSession", path: Path) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW logged USING zenoh OPTIONS (path '{path}')")
    got = spark.sql("SELECT key, count(*) AS n FROM logged GROUP BY key ORDER BY key").collect()
    assert [(row.key, row.n) for row in got] == [(spark_log.key(n), 325) for n in range(4)]


@pytest.mark.spark
def test_where_there_is_no_log_the_error_says_so(spark: "SparkSession", tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing")
    with pytest.raises(Exception, match="not a log") as raised:
        spark.read.format("zenoh").load(nothing).count()
    assert nothing in str(raised.value)


# ---- without Spark


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 64])
def test_the_same_rows_in_the_same_order_however_many_tasks(path: Path, tasks: int) -> None:
    reading = reader(path, minPartitions=tasks)
    planned = reading.partitions()
    assert len(planned) >= tasks
    assert found(reading) == ALL


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 9), st.integers(1, 9))
def test_any_range_is_the_same_twice_with_other_tasks(
    path: Path, bound: int, other: int, tasks: int, again: int
) -> None:
    start, end = min(bound, other), max(bound, other)
    options = {
        "startingOffsets": json.dumps({"0": start, "1": 0}),
        "endingOffsets": json.dumps({"0": end, "1": 0}),
        "columns": "partition,offset,payload",
    }
    first = list(rows(reader(path, minPartitions=tasks, **options)))
    assert [row["offset"] for row in first] == list(range(start, end))
    assert list(rows(reader(path, minPartitions=again, **options))) == first


def test_a_range_twice_after_the_index_is_gone_and_other_tasks(path: Path) -> None:
    options = {"startingOffsets": '{"0": 123}', "endingOffsets": '{"0": 777, "1": 33}'}
    first = list(rows(reader(path, **options)))
    for cache in path.rglob("*.zidx"):
        cache.unlink()
    assert list(rows(reader(path, minPartitions=5, **options))) == first
    assert [row["offset"] for row in first] == [*range(123, 777), *range(33)]


def test_tasks_read_no_block_twice_where_blocks_are_enough(path: Path) -> None:
    planned = reader(path, minPartitions=4).partitions()
    assert all(isinstance(part, LogRange) and part.start % PER_BLOCK == 0 for part in planned)


def test_a_time_range_skips_blocks_and_is_exact(path: Path) -> None:
    low, high = (START + 120 * STEP) // 1_000_000, (START + 290 * STEP) // 1_000_000
    reading = reader(path, startingTimestamp=low, endingTimestamp=high)
    assert found(reading) == expected(p0=(120, 290), p1=(120, 290))
    for task in reading.partitions():
        assert isinstance(task, LogRange)
        assert (task.start, task.end) == (100, 300)
    later = datetime.fromtimestamp(START / 1e9, UTC) + timedelta(days=1)
    assert reader(path, startingTimestamp=later.isoformat()).partitions() == []
    middle = datetime.fromtimestamp((START + 500 * STEP) / 1e9, UTC).isoformat()
    assert found(reader(path, startingTimestamp=middle)) == expected(p0=(500, 1000))


def test_a_plan_without_tasks_reads_nothing(path: Path) -> None:
    from pyspark.sql.datasource import InputPartition

    reading = reader(path, startingOffsets="latest")
    assert reading.partitions() == []
    assert list(reading.read(InputPartition(None))) == []


def test_a_range_that_ends_before_it_starts_or_beyond_the_log_is_refused(path: Path) -> None:
    with pytest.raises(ZError, match=r"starts at offset 9 and ends at 5"):
        reader(path, startingOffsets='{"0": 9}', endingOffsets='{"0": 5}').partitions()
    with pytest.raises(ZError, match=r"ends at offset 1000, before 2000"):
        reader(path, endingOffsets='{"0": 2000}').partitions()
    with pytest.raises(ZError, match=r"no partition 7"):
        reader(path, endingOffsets='{"7": 1}').partitions()


def test_losses_are_rows_if_they_are_wanted(tmp_path: Path) -> None:
    loss = Loss(SOURCE, START, b"\1\2", 5, 8, 4, 3)
    with Writer(tmp_path) as writer:
        writer.write([spark_log.block(0, 0, 10)])
        writer.write([spark_log.block(0, 10, 10, loss)])
    assert found(reader(tmp_path)) == expected(p0=(0, 20))
    got = list(rows(reader(tmp_path, includeLoss="true", columns="offset,kind,loss")))
    assert len(got) == 21
    (gap,) = [row for row in got if row["kind"] == "loss"]
    assert gap["offset"] == 10
    assert got.index(gap) == 10
    assert gap["loss"]["kind"] == "source"
    told = (gap["loss"][name] for name in ("first", "last", "count", "entity"))
    assert tuple(told) == (5, 8, 4, 3)
    assert [row["loss"] for row in got if row["kind"] != "loss"] == [None] * 20


def test_what_retention_removed_fails_or_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spark_log.append(tmp_path, 500, rotate=4096)
    Log(tmp_path).trim(before_offset=120)
    first = Log(tmp_path).first(0)
    assert 0 < first <= 120
    assert found(reader(tmp_path)) == expected(p0=(first, 500))  # "earliest" is what there is
    with pytest.raises(ZError, match=rf"offsets 10 to {first - 1} are gone"):
        reader(tmp_path, startingOffsets='{"0": 10}').partitions()
    lenient = reader(tmp_path, startingOffsets='{"0": 10}', failOnDataLoss="false")
    assert found(lenient) == expected(p0=(first, 500))
    assert f"{first - 10} rows of partition 0 are gone" in caplog.text


@pytest.mark.parametrize("duplicates", ["keep", "drop"])
def test_a_range_that_retention_removed_completely_has_no_tasks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, duplicates: str
) -> None:
    spark_log.append(tmp_path, 500, rotate=4096)
    Log(tmp_path).trim(before_offset=120)
    lenient = reader(
        tmp_path,
        startingOffsets='{"0": 5}',
        endingOffsets='{"0": 10}',
        failOnDataLoss="false",
        duplicates=duplicates,
    )
    assert lenient.partitions() == []
    assert "5 rows of partition 0 are gone" in caplog.text


def test_damage_fails_or_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spark_log.append(tmp_path, 200)
    (segment,) = (tmp_path / "0").glob("*.zlog")
    blocks = Log(tmp_path).blocks(0)
    with segment.open("r+b") as file:
        file.seek(int(blocks["position"][1]) + 200)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(ZError, match="50"):
        found(reader(tmp_path))
    lenient = reader(tmp_path, failOnDataLoss="false")
    assert found(lenient) == expected(p0=(0, 50)) + expected(p0=(100, 200))
    assert "skipped" in caplog.text


def test_a_log_recreated_between_plan_and_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    spark_log.append(path, 10)
    reading = reader(path)
    planned = reading.partitions()
    path.rename(tmp_path / "old")
    spark_log.append(path, 10)
    with pytest.raises(ZError, match="was recreated"):
        list(reading.read(planned[0]))


PLANS = """
import json, sys
from zenlake.spark.source import ZenohDataSource
source = ZenohDataSource({"path": sys.argv[1], "minpartitions": "4"})
batch = source.reader(source.schema())
stream = source.streamReader(source.schema())
start = stream.initialOffset()
end = stream.latestOffset(start, stream.getDefaultReadLimit())
stream.reportLatestOffset()
tasks = len(batch.partitions()), len(stream.partitions(start, end))
print(json.dumps([tasks, sorted(sys.modules)]))
"""


@pytest.mark.process
def test_planning_loads_neither_numba_nor_the_network(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLANS, str(path)], capture_output=True, text=True, check=True
    )
    tasks, modules = json.loads(done.stdout)
    assert min(tasks) >= 4
    heavy = ("numba", "llvmlite", "zenlake.api", "zenlake.link", "zenlake.runtime", "pandas")
    assert [name for name in modules if name.startswith(heavy)] == []
