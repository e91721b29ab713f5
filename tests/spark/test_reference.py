"""A recording of what eclipse-zenoh put, read by Spark, equals the publisher's own account."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.interop.test_record_reference import Reference, by_lane, entry
from tests.support.log_recording import DEADLINE, recording
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def other() -> Iterator[Reference]:
    made = Reference()
    yield made
    made.close()


def row_of(row: dict[str, Any]) -> dict[str, Any]:
    """As a Reader gives it: Spark has the time twice."""
    stamp = row["timestamp"]
    exact = stamp and {"time": stamp["ntp64"], "id": stamp["id"]}
    return {**row, "timestamp": exact}


@pytest.mark.interop
def test_what_they_put_is_what_spark_reads(
    spark: "SparkSession", tmp_path: Path, other: Reference
) -> None:
    path = tmp_path / "log"
    with recording(path, ["rec/**"], settings={}) as (recorder, port):
        other.tell("scenario", at=f"tcp/127.0.0.1:{port}", settings={}, large=True)
        ledgers = other.answer()["ledgers"].values()
        total = sum(map(len, ledgers))
        until(lambda: recorder.stats().received == total)
        recorder.durable(DEADLINE)
    frame = spark.read.format("zenoh").option("minPartitions", 3).load(str(path))
    rows = sorted(
        (row.asDict(recursive=True) for row in frame.collect()), key=lambda r: r["offset"]
    )
    assert [row["offset"] for row in rows] == list(range(total))
    read: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        read[row["key"].split("/")[1]].append(entry(row_of(row)))
    assert len(read) == len(ledgers) == 2
    for ledger in ledgers:
        name = ledger[0]["key"].split("/")[1]
        assert by_lane(read[name]) == by_lane(ledger)
        assert {None} < {each["attachment"] for each in ledger}
        assert {each["kind"] for each in ledger} == {"put", "delete"}
        assert max(each["payload"][0] for each in ledger if each["payload"]) > 1 << 20
        assert len({each["encoding"] for each in ledger}) > 50
