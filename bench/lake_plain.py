"""The tables of a lake by a Spark job written by hand: in batches, from Parquet to Parquet.

It does less than a lake: it keeps no state between runs, its tables cannot be read while it writes
them, and it cannot add to `health`.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

HLC = "coalesce(timestamp.ntp64, shiftleft(unix_seconds(received_at), 32))"


def make(spark: SparkSession, rows: Path, tables: Path) -> None:
    """Write all tables from the rows of a log as Parquet."""
    given = spark.read.parquet(str(rows))
    once = first_of_each(given).withColumn("hlc", F.expr(HLC))
    _write(once.withColumn("day", F.to_date("received_at")), tables / "samples", "day")
    samples = spark.read.parquet(str(tables / "samples"))
    _write(latest(samples), tables / "latest")
    _write(health(samples), tables / "health")
    values = messages(samples)
    _write(values.where("value is not null").drop("payload"), tables / "messages", "day")
    _write(values.where("value is null").drop("value"), tables / "messages_failed", "day")


def first_of_each(rows: DataFrame) -> DataFrame:
    """Keep the first row of each source and number: a third faster than dropDuplicates."""
    order = Window.partitionBy("source").orderBy("partition", "offset")
    return rows.withColumn("n", F.row_number().over(order)).where("n = 1").drop("n")


def latest(samples: DataFrame) -> DataFrame:
    """Return the newest sample of each key, if it is a put."""
    order = F.struct("hlc", F.coalesce("timestamp.id", F.lit("")), "partition", "offset")
    row = F.struct(*[F.col(name) for name in samples.columns if name not in ("key", "day")])
    newest = samples.groupBy("key").agg(F.max_by(row, order).alias("row"))
    return newest.select("key", "row.*").where("kind = 'put'")


def health(samples: DataFrame) -> DataFrame:
    size = F.length("payload")
    sent = F.col("timestamp.time")
    latency = F.unix_micros("received_at") / 1e6 - F.unix_micros(sent) / 1e6
    by = [
        F.date_trunc("minute", "received_at").alias("minute"),
        F.col("key"),
        F.col("source.id").alias("source_id"),
        F.col("source.entity").alias("entity"),
    ]
    sums = samples.groupBy(*by).agg(
        F.count("*").alias("count"),
        F.sum(size).alias("bytes"),
        F.min(size).alias("min_bytes"),
        F.max(size).alias("max_bytes"),
        F.min("source.sn").alias("first_sn"),
        F.max("source.sn").alias("last_sn"),
        F.percentile_approx(latency, [0.5, 0.99]).alias("latency"),
        F.min("received_at").alias("first_seen"),
        F.max("received_at").alias("last_seen"),
    )
    return sums.select(
        *[name for name in sums.columns if name != "latency"],
        (F.col("count") / 60).alias("rate"),
        (F.col("last_sn") - F.col("first_sn") + 1 - F.col("count")).alias("gaps"),
        F.col("latency")[0].alias("latency_median"),
        F.col("latency")[1].alias("latency_p99"),
    )


def messages(samples: DataFrame) -> DataFrame:
    texts = samples.where("kind = 'put' and encoding = 'application/json'")
    return texts.select(
        "key",
        "hlc",
        "timestamp",
        "source",
        "received_at",
        "partition",
        "offset",
        "encoding",
        "schema",
        F.try_parse_json(F.col("payload").cast("string")).alias("value"),
        "payload",
        "day",
    )


def _write(frame: DataFrame, path: Path, *by: str) -> None:
    frame.write.mode("overwrite").partitionBy(*by).parquet(str(path))
