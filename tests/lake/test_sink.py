"""Rows through the sink `zenoh-lake`: files, one commit per table, each batch once."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, StructField, StructType, VariantType

from tests.support import spark_log
from zenlake.errors import ZError
from zenlake.lake.pipeline.sink import LakeDataSource, LakeWriter, SinkOptions, WrittenFiles
from zenlake.lake.tables import projections, schema
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.spark.schema import SAMPLE_COLUMNS, with_loss

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = 120
DAY = 86_400_000_000  # Microseconds.
START = 20_000 * DAY + 1_000_000
ALL = "samples,latest,health"


def rows(
    offsets: Sequence[int], keys: int = 3, partition: int = 0, step: int = 1_000, kind: str = "put"
) -> pa.RecordBatch:
    """Sample `n` is on robot/<n % keys>, came at START + n * step and says "p:n"."""
    values: dict[str, list[Any]] = {name: [None] * len(offsets) for name in schema.SAMPLE.names}
    values |= {
        "key": [f"robot/{n % keys}" for n in offsets],
        "kind": [kind] * len(offsets),
        "payload": [spark_log.payload(partition, n) for n in offsets],
        "received_at": [START + n * step for n in offsets],
        "partition": [partition] * len(offsets),
        "offset": list(offsets),
    }
    columns = [pa.array(values[field.name], field.type) for field in schema.SAMPLE]
    return pa.RecordBatch.from_arrays(columns, schema=schema.SAMPLE)


def table(path: Path, name: str) -> pa.Table:
    """All rows of a table, as any other reader of Delta sees them."""
    from deltalake import DeltaTable

    return pa.table(DeltaTable(path / name).to_pyarrow_table())


def version(path: Path, name: str) -> int:
    from deltalake import DeltaTable

    return int(DeltaTable(path / name).version())


class Flow:
    """Calls a writer as Spark does, a new one for each call."""

    def __init__(
        self, path: Path, into: str = ALL, columns: StructType = SAMPLE_COLUMNS, **options: str
    ) -> None:
        raw = {"path": str(path), "into": into} | {k.lower(): v for k, v in options.items()}
        self._raw, self._columns = raw, columns
        self.query = "f81d4fae"

    @property
    def writer(self) -> LakeWriter:
        made = LakeDataSource(self._raw).streamWriter(self._columns, False)
        assert isinstance(made, LakeWriter)
        return made

    def tasks(self, batch: int, *tasks: Sequence[pa.RecordBatch]) -> list[Any]:
        found = {"sql.streaming.queryId": self.query, "streaming.sql.batchId": str(batch)}
        with pytest.MonkeyPatch.context() as patch:
            context = SimpleNamespace(getLocalProperty=found.get)
            patch.setattr("pyspark.TaskContext.get", lambda: context)
            return [self.writer.write(iter(task)) for task in tasks]

    def run(self, batch: int, *tasks: Sequence[pa.RecordBatch]) -> list[Any]:
        messages = self.tasks(batch, *tasks)
        self.writer.commit(messages, batch)
        return messages


# ---- options and columns


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"into": "samples"}, "'path' is missing: the folder"),
        ({"path": "/t"}, "'into' is missing: names"),
        ({"path": "/t", "intoo": "samples"}, "no option 'intoo'; did you mean 'into'"),
        ({"path": "/t", "into": "a/../b"}, "'a/../b' is not a valid table name"),
        ({"path": "/t", "into": "_delta_log"}, "is not a valid table name"),
        ({"path": "/t", "into": "samples,samples"}, "more than once"),
        ({"path": "/t", "into": "tombstones"}, "written with `latest`"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, str], said: str) -> None:
    with pytest.raises(ZError, match=said):
        SinkOptions.parse(options)


def test_options_as_spark_hands_them_over() -> None:
    raw = {"path": "file:///t", "into": "mine", "partitionby": "day", "checkpointlocation": "/c"}
    assert SinkOptions.parse(raw) == SinkOptions(
        Path("/t"), ("mine",), "mine", "day", state=Path("/c")
    )
    assert SinkOptions.parse(raw | {"flow": "f"}).flow == "f"


@pytest.mark.parametrize(
    ("into", "columns", "said"),
    [
        ("samples", ["key"], "'samples' needs a column 'kind', and the rows have key"),
        ("messages", SAMPLE_COLUMNS, "'messages' needs a column 'decoder'"),
        ("loss", SAMPLE_COLUMNS, "'loss' needs a column 'loss'"),
        ("loss", ["received_at"], "'received_at' as timestamp.*, and it is string: cast it"),
    ],
)
def test_rows_that_a_table_cannot_take(
    into: str, columns: StructType | list[str], said: str, tmp_path: Path
) -> None:
    if isinstance(columns, list):
        columns = from_arrow_schema(pa.schema([(name, pa.string()) for name in columns]))
    with pytest.raises(ZError, match=said):
        _ = Flow(tmp_path, into, columns).writer


def test_the_sink_takes_streams_only(tmp_path: Path) -> None:
    source = LakeDataSource({"path": str(tmp_path), "into": "samples"})
    with pytest.raises(ZError, match="only writes"):
        source.schema()
    with pytest.raises(ZError, match="takes streams only"):
        source.writer(SAMPLE_COLUMNS, False)
    with pytest.raises(ZError, match="is for a table of your own only"):
        _ = Flow(tmp_path, "samples", partitionBy="key").writer


# ---- tasks


def test_a_task_leaves_sorted_files_a_day(tmp_path: Path) -> None:
    flow = Flow(tmp_path, "samples")
    (message,) = flow.tasks(0, [rows(range(10), step=DAY // 5), rows([]), rows(range(10, 15))])
    files = message.output.added["samples"]
    assert [file.rows for file in files] == [5 + 5, 5]
    assert message.output.ranges == {"samples": {0: (0, 14)}}
    for file in files:
        part = parquet.read_table(tmp_path / "samples" / file.path, partitioning=None)
        assert part["key"].to_pylist() == sorted(part["key"].to_pylist())
    flow.writer.commit([message], 0)
    found = table(tmp_path, "samples")
    assert sorted(found["offset"].to_pylist()) == list(range(15))
    assert {str(day) for day in found["day"].to_pylist()} == {"2024-10-04", "2024-10-05"}


def test_no_rows_leave_no_file(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    assert flow.run(0, [rows([])], []) == [WrittenFiles("f81d4fae", projections.TaskOutput())] * 2
    assert not list(tmp_path.rglob("*.*"))
    flow.writer.commit([], 1)


def test_no_more_is_held_than_the_bounds_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projections, "MAX_BUFFER_ROWS", 10)
    monkeypatch.setattr(projections, "MAX_REDUCED_ROWS", 8)
    flow = Flow(tmp_path)
    monkeypatch.setattr(projections, "MAX_FOLD_BYTES", 1)
    small = [rows(range(at, at + 4), keys=1000) for at in range(0, 40, 4)]
    tasks = small, [rows(range(40, 65), keys=1000)]
    first, second = flow.run(0, *tasks)
    assert [file.rows for file in first.output.added["samples"]] == [8] * 5
    assert max(file.rows for file in second.output.added["samples"]) <= 10
    assert len(first.output.staged["latest"]) > 1
    assert table(tmp_path, "samples").num_rows == 65
    assert table(tmp_path, "latest").num_rows == 65
    assert sum(table(tmp_path, "health")["count"].to_pylist()) == 65
    flow.run(0, *tasks)
    flow.run(1, [rows(range(65, 70), keys=1000)])
    assert table(tmp_path, "latest").num_rows == 70


def test_a_batch_that_is_too_large_is_cut() -> None:
    whole = rows(range(100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projections, "MAX_BUFFER_BYTES", whole.nbytes // 3)
        parts = list(projections.split_batch(whole))
    assert [len(part) for part in parts] == [25] * 4
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([whole]))


def test_a_task_outside_of_a_stream(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.query = None  # type: ignore[assignment]
    with pytest.raises(ZError, match="belongs to no streaming query"):
        flow.tasks(0, [rows([1])])


# ---- commits


def test_three_tables_of_one_flow(tmp_path: Path) -> None:
    flow = Flow(
        tmp_path, columns=StructType([*SAMPLE_COLUMNS, StructField("duplicate", BooleanType())])
    )
    marked = rows(range(6)).append_column("duplicate", pa.array([False] * 5 + [True]))
    flow.run(0, [marked])
    gone = rows([6], kind="delete").append_column("duplicate", pa.array([False]))
    flow.run(1, [gone], [rows([7]).append_column("duplicate", pa.array([None], pa.bool_()))])
    assert sorted(table(tmp_path, "samples")["offset"].to_pylist()) == [0, 1, 2, 3, 4, 6, 7]
    latest = table(tmp_path, "latest")
    assert dict(zip(latest["key"].to_pylist(), latest["offset"].to_pylist(), strict=True)) == {
        "robot/1": 7,
        "robot/2": 2,
    }
    assert table(tmp_path, "tombstones")["key"].to_pylist() == ["robot/0"]
    health = table(tmp_path, "health")
    assert sum(health["count"].to_pylist()) == 7
    assert sum(health["duplicates"].to_pylist()) == 1
    for name in ALL.split(","):
        assert DeltaStore(tmp_path / name, TABLES[name]).offsets() == {0: 8}
    assert not list(tmp_path.glob("*/_staged/*"))


def test_a_batch_counts_once(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(0, [rows(range(10))])
    before = {name: version(tmp_path, name) for name in ALL.split(",")}
    flow.run(0, [rows(range(10))])  # as after a crash before Spark noted the commit
    assert {name: version(tmp_path, name) for name in ALL.split(",")} == before
    assert table(tmp_path, "samples").num_rows == 10
    flow.run(1, [rows(range(10, 12))])
    assert sum(table(tmp_path, "health")["count"].to_pylist()) == 12


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_commit_that_breaks_off_is_finished_by_the_next(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(tmp_path)
    flow.run(0, [rows(range(10))])
    commit = DeltaStore.commit
    calls = 0

    def broken(self: DeltaStore, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError("the disk is gone")
        return commit(self, *args, **kwargs)

    messages = flow.tasks(1, [rows(range(10, 20)), rows([20], kind="delete")])
    with monkeypatch.context() as patch:
        patch.setattr(DeltaStore, "commit", broken)
        try:
            flow.writer.commit(messages, 1)
        except OSError:
            flow.writer.abort(messages, 1)
        else:
            assert calls < at
    flow.run(1, [rows(range(10, 20)), rows([20], kind="delete")])
    assert sorted(table(tmp_path, "samples")["offset"].to_pylist()) == list(range(21))
    assert sorted(table(tmp_path, "latest")["offset"].to_pylist()) == [18, 19]
    assert sum(table(tmp_path, "health")["count"].to_pylist()) == 21


def test_a_lost_checkpoint_is_refused(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.run(0, [rows(range(10))])
    flow.query = "another"
    messages = flow.tasks(0, [rows(range(10))])
    with pytest.raises(ZError, match="offset"):
        flow.writer.commit(messages, 0)
    flow.writer.abort(messages, 0)
    assert table(tmp_path, "samples").num_rows == 10
    flow.run(0, [rows(range(10, 20))])  # goes on where the tables end
    assert table(tmp_path, "samples").num_rows == 20


def test_abort_takes_back_what_is_staged_and_no_file_that_may_be_named(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    messages = [*flow.tasks(0, [rows(range(10))]), None]
    staged = [Path(path) for paths in messages[0].output.staged.values() for path in paths]
    assert len(staged) == 2
    assert all(path.exists() for path in staged)
    flow.writer.abort(messages, 0)
    assert not any(path.exists() for path in staged)
    assert all(
        (tmp_path / "samples" / file.path).exists() for file in messages[0].output.added["samples"]
    )


# ---- other rows


def test_losses_go_into_loss_and_samples_into_samples(tmp_path: Path) -> None:
    flow = Flow(tmp_path, "samples,loss", with_loss())
    kind = pa.struct([field for field in schema.LOSS if field.name not in ("at", *PLACE, "day")])
    lost = {"kind": "lane", "id": "ab", "priority": 5, "reliable": True, "first": 3, "last": 4}
    given = rows(range(4)).append_column("loss", pa.array([None, None, lost, None], kind))
    given = given.set_column(0, "key", pa.array(["a", "b", None, "c"]))
    (message,) = flow.run(0, [given])
    assert message.output.ranges == {"samples": {0: (0, 3)}, "loss": {0: (2, 2)}}
    assert sorted(table(tmp_path, "samples")["offset"].to_pylist()) == [0, 1, 3]
    (found,) = table(tmp_path, "loss").to_pylist()
    assert {name: found[name] for name in lost} == lost
    assert (found["partition"], found["offset"], found["count"]) == (0, 2, None)


PLACE = ("partition", "offset")


def test_messages_go_where_their_reason_says(tmp_path: Path) -> None:
    plain = [field for field in schema.MESSAGES_FAILED if field.name not in ("hlc", "day")]
    columns = from_arrow_schema(pa.schema(plain)).add("value", VariantType())
    flow = Flow(tmp_path, "messages,messages_failed", columns)
    n = 4
    made = {field.name: pa.nulls(n, field.type) for field in schema.MESSAGES if field.name != "day"}
    given = rows(range(n))
    for name in ("key", "received_at", *PLACE):
        made[name] = given[name]
    value = {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}
    made |= {
        "value": pa.array([value, None, value, None], schema.VARIANT),
        "payload": pa.array([None, b"{", None, b"["]),
        "reason": pa.array([None, "cut short", None, "cut short"]),
    }
    del made["hlc"]
    flow.run(0, [pa.record_batch(made)])
    good, bad = table(tmp_path, "messages"), table(tmp_path, "messages_failed")
    assert sorted(good["offset"].to_pylist()) == [0, 2]
    assert good["value"].to_pylist() == [value] * 2
    assert all(good["hlc"].to_pylist())
    assert sorted(bad["payload"].to_pylist()) == [b"[", b"{"]


def test_a_table_of_the_users(tmp_path: Path) -> None:
    kinds = [("name", pa.string()), ("level", pa.float64()), ("zone", pa.string())]
    columns = from_arrow_schema(pa.schema(kinds))
    flow = Flow(tmp_path, "levels", columns, partitionBy="zone", flow="mine")
    given = {"name": ["a", "b", "c"], "level": [0.5, None, 2.0], "zone": ["x/1", None, "x/1"]}
    flow.run(0, [pa.record_batch(given)])
    flow.run(0, [pa.record_batch(given)])
    flow.run(1, [pa.record_batch(given).slice(0, 1)])
    found = table(tmp_path, "levels").to_pylist()
    by_name = sorted((row["name"], row["level"], row["zone"]) for row in found)
    assert by_name == [("a", 0.5, "x/1"), ("a", 0.5, "x/1"), ("b", None, None), ("c", 2.0, "x/1")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projections, "MAX_PARTITION_VALUES", 1)
        with pytest.raises(ZError, match="2 values among 3 rows, more than 1: partition by one"):
            flow.run(2, [pa.record_batch(given)])


# ---- Spark


class Query:
    """A stream of a log into tables, run until it has caught up."""

    def __init__(self, spark: "SparkSession", home: Path, into: str = ALL) -> None:
        self.spark, self.home, self.into = spark, home, into
        self.log, self.tables = home / "log", home / "tables"
        self.checkpoint = home / "state" / into

    def run(self, *columns: str, sink: dict[str, str] | None = None, **options: str) -> list[int]:
        """The rows of each batch."""
        stream = self.spark.readStream.format("zenoh").options(path=str(self.log), **options)
        query = (
            stream.load()
            .selectExpr(*(columns or ["*"]))
            .writeStream.format("zenoh-lake")
            .options(path=str(self.tables), into=self.into, flow="test", **(sink or {}))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(WAIT_SECONDS)
        finally:
            query.stop()
        return [progress.numInputRows for progress in query.recentProgress]

    def places(self, name: str = "samples") -> list[tuple[int, int]]:
        found = table(self.tables, name)
        return sorted(zip(*(found[name].to_pylist() for name in PLACE), strict=True))

    def versions(self) -> dict[str, int]:
        return {name: version(self.tables, name) for name in self.into.split(",")}

    def forget_last_commit(self) -> None:
        """As after a crash before Spark noted that the batch was done."""
        done = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdecimal()]
        max(done, key=lambda path: int(path.name)).unlink()


@pytest.mark.spark
def test_a_stream_is_taken_once_whatever_is_lost(spark: "SparkSession", tmp_path: Path) -> None:
    query = Query(spark, tmp_path)
    spark_log.append(query.log, 1000)
    spark_log.append(query.log, 500, partition=1)
    everything = [*((0, n) for n in range(1000)), *((1, n) for n in range(500))]
    assert sum(query.run(maxRowsPerTrigger="800")) == 1500
    assert query.places() == everything
    found = table(query.tables, "samples").sort_by([(name, "ascending") for name in PLACE])
    assert found["payload"].to_pylist() == [spark_log.payload(*place) for place in everything]
    assert table(query.tables, "latest").num_rows == spark_log.KEYS
    assert sum(table(query.tables, "health")["count"].to_pylist()) == 1500
    assert DeltaStore(query.tables / "latest", TABLES["latest"]).offsets() == {0: 1000, 1: 500}

    versions = query.versions()
    assert sum(query.run()) == 0
    query.forget_last_commit()
    assert sum(query.run()) > 0  # the batch was run again
    assert (query.versions(), query.places()) == (versions, everything)  # and added nothing

    shutil.rmtree(query.checkpoint)
    with pytest.raises(Exception, match="start the query at offset 1000"):
        query.run()
    assert (query.versions(), query.places()) == (versions, everything)
    assert not list(query.tables.glob("*/_staged/*"))


@pytest.mark.spark
def test_values_and_rows_of_the_users_own_from_spark(spark: "SparkSession", tmp_path: Path) -> None:
    query = Query(spark, tmp_path, "messages,messages_failed")
    spark_log.append(query.log, 40)
    value = "try_parse_json(if(offset % 4 = 0, '{', format_string('{\"n\": %d}', offset)))"
    query.run(
        *("key", "timestamp", "source", "received_at", *PLACE, "encoding", "schema"),
        "'json' as decoder",
        f"{value} as value",
        f"if({value} is null, payload, null) as payload",
        f"if({value} is null, 'not JSON', null) as reason",
    )
    good, bad = table(query.tables, "messages"), table(query.tables, "messages_failed")
    assert sorted(bad["offset"].to_pylist()) == list(range(0, 40, 4))
    assert sorted(bad["payload"].to_pylist()) == sorted(spark_log.payloads(0, range(0, 40, 4)))
    assert sorted(good["offset"].to_pylist()) == [n for n in range(40) if n % 4]
    assert all(value["value"] and value["metadata"] for value in good["value"].to_pylist())

    own = Query(spark, tmp_path, "counts")
    columns = ("key", "offset * 0.5D as half", "map('n', offset) as more")
    own.run(*columns, sink={"partitionBy": "key"})
    own.forget_last_commit()
    own.run(*columns, sink={"partitionBy": "key"})
    found = table(query.tables, "counts").to_pylist()
    assert sorted((row["half"], row["key"], dict(row["more"])) for row in found) == [
        (n / 2, spark_log.key(n), {"n": n}) for n in range(40)
    ]
