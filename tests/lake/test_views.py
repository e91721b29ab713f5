"""Tables as DataFrames of Spark, and SQL over them: one lake and one Spark for all tests."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.cli_in_process import zenlake
from zenlake.errors import ZError
from zenlake.lake.pipeline import sql, views
from zenlake.lake.project import Project
from zenlake.lake.tables.definitions import HEALTH, MESSAGES, SAMPLES, TABLES, TableDefinition
from zenlake.lake.tables.delta import DeltaStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
# {"battery":{"level":0.5}}, as Spark encodes it.
METADATA = b"\x01\x02\x00\x07\x0cbatterylevel"
VALUE = b"\x02\x01\x00\x00\x0b\x02\x01\x01\x00\x06 \x01\x05\x00\x00\x00"


def rows(table: TableDefinition, *said: dict[str, Any]) -> pa.Table:
    columns = [
        pa.array([row.get(field.name) for row in said], field.type) for field in table.schema
    ]
    return pa.table(columns, schema=table.schema)


def sample(number: int, days: int = 0) -> dict[str, Any]:
    when = NOON + timedelta(days=days)
    return {
        "key": f"robot/{number}",
        "kind": "put",
        "payload": b"hi" if number else b"\xff\x00",
        "timestamp": {"time": when, "ntp64": 1 << 32, "id": "ab"},
        "priority": 5,
        "express": False,
        "received_at": when,
        "offset": number,
        "hlc": number,
        "day": when.date(),
    }


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Its folder has a name that a careless reader takes for a pattern."""
    folder = tmp_path_factory.mktemp("lake") / "fleet [1] {a,b}"
    folder.mkdir()
    (folder / "lake.toml").write_text('[lake]\nname = "fleet"\n')
    project = Project.load(folder)
    samples = DeltaStore(project.table("samples"), SAMPLES)
    added = samples.write(rows(SAMPLES, sample(0), sample(1), sample(2, days=1)))
    gone = samples.write_file(rows(SAMPLES, sample(7)))
    samples.commit([*added, gone])
    samples.commit(removed=[f for f in samples.snapshot().files if f.path == gone.path])
    messages = DeltaStore(project.table("messages"), MESSAGES)
    value = {"value": VALUE, "metadata": METADATA}
    messages.commit(messages.write(rows(MESSAGES, {**sample(0), "value": value})))
    health = DeltaStore(project.table("health"), HEALTH)
    health.commit()  # there is no row yet
    columns = rows(SAMPLES, sample(3)).select(["key", "offset", "day"])
    own = DeltaStore(project.table("own"), TableDefinition("own", columns.schema, "day"))
    own.commit(own.write(columns))
    return project


@pytest.mark.spark
def test_tables_are_read_as_they_are(spark: "SparkSession", lake: Project) -> None:
    assert views.names(lake) == ["samples", "messages", "health", "own"]
    samples = views.read(spark, lake, "samples").orderBy("offset")
    assert samples.columns == SAMPLES.schema.names
    found = samples.select("key", "payload", "timestamp.id", "received_at", "hlc", "day").collect()
    assert [row["key"] for row in found] == ["robot/0", "robot/1", "robot/2"]  # 7 was removed
    assert [row["day"] for row in found] == [date(2026, 11, 15)] * 2 + [date(2026, 11, 16)]
    assert bytes(found[0]["payload"]) == b"\xff\x00"
    assert (found[2]["id"], found[2]["hlc"]) == ("ab", 2)
    assert dict(samples.dtypes)["received_at"] == "timestamp"


@pytest.mark.spark
def test_an_empty_table_has_its_columns(spark: "SparkSession", lake: Project) -> None:
    for name in ("health", "messages_failed"):  # made without rows, and not made yet
        empty = views.read(spark, lake, name)
        assert empty.columns == TABLES[name].schema.names
        assert empty.count() == 0
    with pytest.raises(ZError, match="no table 'sampels'; there are samples, messages"):
        views.read(spark, lake, "sampels")


@pytest.mark.spark
def test_values_are_variants(spark: "SparkSession", lake: Project) -> None:
    assert views.register(spark, lake) == [*TABLES, "own"]
    (row,) = spark.sql("select key, value:battery.level::double as level from messages").collect()
    assert (row["key"], row["level"]) == ("robot/0", 0.5)


@pytest.mark.spark
def test_built_in_tables_that_do_not_exist_are_empty(spark: "SparkSession", lake: Project) -> None:
    assert not lake.table("loss").exists()
    for name in set(TABLES) - set(views.names(lake)):
        answer = sql.run_query(spark, lake, f"select * from {name}", limit=None)
        assert answer.columns == TABLES[name].schema.names
        assert list(answer.rows) == []
    with pytest.raises(ZError, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql.run_query(spark, lake, "select * from sampels", limit=None)


@pytest.mark.spark
def test_query_results_are_texts(spark: "SparkSession", lake: Project) -> None:
    query = (
        "select key, key, payload, timestamp, null as n from samples where offset < 2 order by 1"
    )
    answer = sql.run_query(spark, lake, query, limit=None)
    assert answer.columns == ["key", "key", "payload", "timestamp", "n"]
    stamp = '{"time":"2026-11-15T12:00:00.000Z","ntp64":4294967296,"id":"ab"}'
    assert list(answer.rows) == [
        ["robot/0", "robot/0", "0xFF00", stamp, None],
        ["robot/1", "robot/1", "hi", stamp, None],
    ]
    (row,) = sql.run_query(spark, lake, "select payload from samples", limit=1, form="csv").rows
    assert row in (["/wA="], ["aGk="])
    (row,) = sql.run_query(
        spark, lake, "select key, value from messages", limit=1, form="json"
    ).rows
    assert json.loads(row[0] or "") == {"key": "robot/0", "value": {"battery": {"level": 0.5}}}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select nothing from samples", "UNRESOLVED_COLUMN"),
        ("selekt 1", "PARSE_SYNTAX_ERROR"),
        ("select 1/0", "DIVIDE_BY_ZERO"),
    ],
)
def test_spark_errors_are_short(
    spark: "SparkSession", lake: Project, query: str, reason: str
) -> None:
    with pytest.raises(ZError, match=reason) as caught:
        list(sql.run_query(spark, lake, query, limit=None).rows)
    said = str(caught.value)
    assert "\n" not in said
    assert "== SQL" not in said
    assert len(said) <= sql.MAX_REASON + 4


@pytest.mark.spark
def test_the_sql_command_prints_rows_as_table_json_and_csv(
    spark: "SparkSession", lake: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "start_spark", lambda _: spark)
    home, query = str(lake.home), "select key, hlc from samples order by key"
    shown = zenlake("lake", "sql", home, query)
    assert (shown.exit_code, shown.stderr) == (0, "starting Spark ...\n")
    assert "│ robot/2 │ 2" in shown.stdout
    assert shown.stdout.endswith("3 rows\n")
    lines = zenlake("lake", "sql", home, query, "--json", "--limit", "2").stdout.splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["robot/0", "robot/1"]
    assert zenlake("lake", "sql", home, query, "--csv").stdout.splitlines()[:2] == [
        "key,hlc",
        "robot/0,0",
    ]
    refused = zenlake("lake", "sql", home, "select nothing from samples")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "zenlake lake sql: [UNRESOLVED_COLUMN" in refused.stderr


def test_a_folder_without_a_lake_is_told_before_spark_starts(tmp_path: Path) -> None:
    done = zenlake("lake", "sql", str(tmp_path), "select 1")
    assert done.exit_code == 1
    assert "there is no lake" in done.stderr
    assert "starting Spark" not in done.stderr
    assert zenlake("lake", "sql", str(tmp_path), "select 1", "--json", "--csv").exit_code == 2
