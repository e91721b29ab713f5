"""The Spark job from a Kafka topic to Delta tables: `python -m bench.kafka.job spark ARGUMENTS`.

A streaming query writes each micro-batch to `samples`, `latest`, `health` and `messages`, exactly
once. It does less than a lake: it keeps repeats, and has no losses, tombstones and latencies. Runs
in the installation's own Python: imports no zenlake.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from bench.peer import report, run_role, serve

TRANSACTION = "spark.databricks.delta.write.txn"  # Prefix of settings that make writes idempotent.
POLL_SECONDS = 0.05  # Pause between two looks at the progress, which Spark has to serialise.
SETTINGS = {
    "spark.log.level": "OFF",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
    # As `zenlake.spark.session()` has it: saves a third of a micro-batch's time.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    f"{TRANSACTION}AppId": "bench",
}

SAMPLE = (
    "key STRING, payload BINARY, encoding STRING, entity INT, sn BIGINT, received_at TIMESTAMP,"
    " hlc BIGINT, partition INT, offset BIGINT"
)
TABLES = {
    "samples": f"({SAMPLE}, day DATE) USING DELTA PARTITIONED BY (day)",
    "latest": f"({SAMPLE}) USING DELTA",
    "health": (
        "(minute TIMESTAMP, key STRING, entity INT, count BIGINT, bytes BIGINT, min_bytes INT,"
        " max_bytes INT, first_sn BIGINT, last_sn BIGINT, first_seen TIMESTAMP,"
        " last_seen TIMESTAMP) USING DELTA"
    ),
    "messages": (
        "(key STRING, hlc BIGINT, entity INT, sn BIGINT, received_at TIMESTAMP, partition INT,"
        " offset BIGINT, encoding STRING, value VARIANT, day DATE) USING DELTA PARTITIONED BY (day)"
    ),
}


class Job:
    """A Spark that drains topics, and follows one at a time."""

    def __init__(self, session: SparkSession, address: str) -> None:
        self._session = session
        self._address = address
        self._live: StreamingQuery | None = None

    def drain(self, topic: str, folder: str) -> None:
        """Write a topic into empty tables."""
        create_tables(self._session, folder)
        before = time.perf_counter()
        query = start_query(self._read(topic), folder, availableNow=True)
        query.awaitTermination()
        seconds = time.perf_counter() - before
        rows = sum(progress["numInputRows"] for progress in query.recentProgress)
        report(seconds=seconds, rows=rows)

    def count(self, folder: str) -> None:
        """Count the rows of each table."""
        report(
            **{
                name: self._session.read.format("delta").load(f"{folder}/{name}").count()
                for name in TABLES
            }
        )

    def follow(self, topic: str, folder: str, trigger: str) -> None:
        """Write a topic into empty tables while it grows."""
        create_tables(self._session, folder)
        self._live = start_query(self._read(topic), folder, processingTime=trigger)
        report(topic=topic)

    def wait(self, rows: int) -> None:
        """Wait until as many rows of the topic are in all tables."""
        assert self._live is not None
        while rows_written(self._live) < rows:
            time.sleep(POLL_SECONDS)
        report(time=time.time())

    def batches(self) -> None:
        """Report the rows and seconds of the last micro-batches that had any rows."""
        assert self._live is not None
        some = [progress for progress in self._live.recentProgress if progress["numInputRows"]]
        rows = [progress["numInputRows"] for progress in some]
        seconds = [progress["durationMs"]["triggerExecution"] / 1000 for progress in some]
        report(rows=rows, seconds=seconds)

    def stop(self) -> None:
        """Follow no longer."""
        assert self._live is not None
        self._live.stop()
        report(stopped=True)

    def _read(self, topic: str) -> DataFrame:
        return read_topic(self._session, self._address, topic)


def spark(address: str, cores: int, memory: str) -> None:
    """Run a Spark with the job, which acts on command."""
    folder = Path.cwd()
    settings = SETTINGS | {
        "spark.driver.memory": memory,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.local.dir": str(folder),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}",
    }
    builder = SparkSession.builder.appName("bench").master(f"local[{cores}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    report(spark=session.version)
    job = Job(session, address)
    try:
        serve({name: getattr(job, name) for name in COMMANDS})
    finally:
        session.stop()


COMMANDS = ("drain", "count", "follow", "wait", "batches", "stop")


# ---- the query


def create_tables(session: SparkSession, folder: str) -> None:
    for name, definition in TABLES.items():
        session.sql(f"CREATE TABLE {table(folder, name)} {definition}")


def table(folder: str, name: str) -> str:
    """Return how SQL names a table of `folder`."""
    return f"delta.`{folder}/{name}`"


def read_topic(session: SparkSession, address: str, topic: str) -> DataFrame:
    """Return the samples of a topic as a stream."""
    records = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )

    def header(place: int) -> Column:
        return F.col("headers")[place]["value"].cast("string")

    return records.select(
        F.col("key").cast("string").alias("key"),
        F.col("value").alias("payload"),
        header(0).alias("encoding"),
        header(1).cast("int").alias("entity"),
        header(2).cast("bigint").alias("sn"),
        F.col("timestamp").alias("received_at"),
        F.unix_micros("timestamp").alias("hlc"),
        "partition",
        "offset",
        F.to_date("timestamp").alias("day"),
    )


def start_query(stream: DataFrame, folder: str, **trigger: Any) -> StreamingQuery:
    def write(batch: DataFrame, number: int) -> None:
        """Write a micro-batch to all tables at once; a repeated one writes nothing."""
        batch.sparkSession.conf.set(f"{TRANSACTION}Version", number)
        batch.persist()
        try:
            with ThreadPoolExecutor(len(WRITES)) as pool:
                for written in [pool.submit(write, batch, folder) for write in WRITES]:
                    written.result()
        finally:
            batch.unpersist()

    writer = stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    return writer.trigger(**trigger).foreachBatch(write).start()


def rows_written(query: StreamingQuery) -> int:
    """Return the number of records that are in all tables. Raises the error of a failed query."""
    failure = query.exception()
    if failure is not None:
        raise failure
    progress = query.lastProgress
    if not progress:
        return 0
    # The offsets `{topic: {partition: offset}}` behind the last micro-batch that has ended.
    topics: dict[str, dict[str, int]] = json.loads(progress["sources"][0]["endOffset"]) or {}
    return sum(offset for partitions in topics.values() for offset in partitions.values())


# ---- a micro-batch


def append_samples(batch: DataFrame, folder: str) -> None:
    _append(batch, folder, "samples")


def append_messages(batch: DataFrame, folder: str) -> None:
    texts = batch.where("encoding = 'application/json'")
    value = F.try_parse_json(F.col("payload").cast("string"))
    _append(texts.withColumn("value", value).drop("payload"), folder, "messages")


def _append(rows: DataFrame, folder: str, name: str) -> None:
    rows.write.format("delta").mode("append").save(f"{folder}/{name}")


def merge_latest(batch: DataFrame, folder: str) -> None:
    row = F.struct(*[name for name in batch.columns if name not in ("key", "day")])
    newest = batch.groupBy("key").agg(
        F.max_by(row, F.struct("hlc", "partition", "offset")).alias("row")
    )
    newest.select("key", "row.*").createOrReplaceTempView("newest")
    batch.sparkSession.sql(
        f"""
        MERGE INTO {table(folder, "latest")} old USING newest new ON old.key = new.key
        WHEN MATCHED AND (new.hlc, new.partition, new.offset) > (old.hlc, old.partition, old.offset)
        THEN UPDATE SET *
        WHEN NOT MATCHED THEN INSERT *
        """
    )


def merge_health(batch: DataFrame, folder: str) -> None:
    size = F.length("payload")
    minute = F.date_trunc("minute", "received_at").alias("minute")
    sums = batch.groupBy(minute, "key", "entity").agg(
        F.count("*").alias("count"),
        F.sum(size).alias("bytes"),
        F.min(size).alias("min_bytes"),
        F.max(size).alias("max_bytes"),
        F.min("sn").alias("first_sn"),
        F.max("sn").alias("last_sn"),
        F.min("received_at").alias("first_seen"),
        F.max("received_at").alias("last_seen"),
    )
    sums.createOrReplaceTempView("sums")
    batch.sparkSession.sql(
        f"""
        MERGE INTO {table(folder, "health")} old USING sums new
        ON old.minute = new.minute AND old.key = new.key AND old.entity = new.entity
        WHEN MATCHED THEN UPDATE SET
            count = old.count + new.count,
            bytes = old.bytes + new.bytes,
            min_bytes = least(old.min_bytes, new.min_bytes),
            max_bytes = greatest(old.max_bytes, new.max_bytes),
            first_sn = least(old.first_sn, new.first_sn),
            last_sn = greatest(old.last_sn, new.last_sn),
            first_seen = least(old.first_seen, new.first_seen),
            last_seen = greatest(old.last_seen, new.last_seen)
        WHEN NOT MATCHED THEN INSERT *
        """
    )


WRITES: tuple[Callable[[DataFrame, str], None], ...] = (
    append_samples,
    merge_latest,
    merge_health,
    append_messages,
)


if __name__ == "__main__":
    run_role({"spark": spark})
