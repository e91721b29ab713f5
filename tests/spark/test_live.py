"""A live system read as a table: replies of eclipse-zenoh become rows."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.spark_peer import REPLIES, SparkPeer

pytestmark = pytest.mark.spark

EPOCH, ONE = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def live(spark: SparkSession, peer: SparkPeer, selector: str, **options: str) -> DataFrame:
    given = {"connect": peer.at, "timeout": "30s", "selector": selector, **options}
    return spark.read.format("zenoh").options(**given).load()


def test_each_reply_is_a_row(spark: SparkSession, peer: SparkPeer) -> None:
    table = live(spark, peer, "in/many", consolidation="none").toArrow()
    assert table.num_rows == REPLIES
    rows = table.to_pylist()
    assert sorted(int(row["payload"]) for row in rows) == list(range(REPLIES))
    for row in rows:
        number = int(row["payload"])
        assert (row["key"], row["kind"]) == ("in/many", "put")
        assert (row["encoding"], row["schema"]) == ("application/json", "v1")
        assert row["attachment"] == b"note %d" % number
        stamp = row["timestamp"]
        assert stamp["id"] == f"{number + 1:x}"
        meant = datetime(2026, 1, 2, 3, 4, 5, 1000 * number, tzinfo=UTC)
        assert meant - stamp["time"] in (timedelta(0), ONE)  # NTP64 is binary; both cut it off
        assert EPOCH + (stamp["ntp64"] * 10**6 >> 32) * ONE == stamp["time"]
        assert row["received_at"] is not None
        assert (row["partition"], row["offset"], row["source"]) == (None, None, None)


def test_the_newest_of_a_key_is_kept(spark: SparkSession, peer: SparkPeer) -> None:
    (row,) = live(spark, peer, "in/many").collect()
    assert int(row["payload"]) == REPLIES - 1


def test_parameters_and_columns(spark: SparkSession, peer: SparkPeer) -> None:
    frame = live(spark, peer, "in/one?a=1;b=2", columns="payload, key")
    assert frame.columns == ["payload", "key"]
    assert frame.collect() == [(b"a=1;b=2", "in/one")]


def test_a_narrower_schema(spark: SparkSession, peer: SparkPeer) -> None:
    reader = spark.read.format("zenoh").schema("kind string, key string")
    frame = reader.options(connect=peer.at, selector="in/gone").load()
    assert frame.collect() == [("delete", "in/gone")]


def test_sql_and_a_second_action(spark: SparkSession, peer: SparkPeer) -> None:
    spark.sql(
        f"CREATE TEMPORARY VIEW live USING zenoh OPTIONS(connect '{peer.at}', selector 'in/one')"
    )
    try:
        for _ in range(2):
            assert spark.sql("SELECT key FROM live").collect() == [("in/one",)]
    finally:
        spark.catalog.dropTempView("live")


def test_nobody_answers_no_rows(spark: SparkSession, peer: SparkPeer) -> None:
    assert live(spark, peer, "elsewhere/**").count() == 0


def test_an_error_is_an_error(spark: SparkSession, peer: SparkPeer) -> None:
    with pytest.raises(Exception, match=r"in/err at tcp/.* says 'the shelf is empty'"):
        live(spark, peer, "in/err").collect()


def test_a_timeout_says_so(spark: SparkSession, peer: SparkPeer) -> None:
    with pytest.raises(Exception, match=r"not all have answered within 0.5 s; raise the option"):
        live(spark, peer, "in/never", timeout="500ms").collect()


def test_no_secret_in_plans_and_errors(
    spark: SparkSession, peer: SparkPeer, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "hunter2"
    config = f"{{transport: {{auth: {{usrpwd: {{user: 'me', password: '{secret}'}}}}}}}}"
    frame = live(spark, peer, "in/one", config=config)
    frame.explain(mode="extended")
    assert "zenoh" in (plan := capsys.readouterr().out)
    assert secret not in plan
    wrong = live(spark, peer, "in/one", config=f"{{transport: {{auth: '{secret}'}}}}")
    with pytest.raises(Exception, match="option 'config' is not a Zenoh configuration") as refused:
        wrong.collect()
    assert secret not in str(refused.value)
    with pytest.raises(Exception, match="option 'config': what it holds is not JSON5") as refused:
        live(spark, peer, "in/one", config=secret)
    assert secret not in str(refused.value)
