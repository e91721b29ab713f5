"""A log read by Spark, beside the same rows read from Parquet, and from a source of tuples."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import zenlake.spark
from bench.figures import Figure, Figures, median_seconds
from zenlake.columnar.write import push_columns
from zenlake.log.block import OpenBlock, SourceLink
from zenlake.log.read.log import Log
from zenlake.log.read.reader import Reader
from zenlake.log.write.writer import Writer
from zenlake.spark.log_source import LogRange, LogReader
from zenlake.spark.options import Options, Purpose
from zenlake.spark.schema import SAMPLE_COLUMNS, to_spark
from zenlake.wire.emit import Emitter
from zenlake.wire.enums import Mapping
from zenlake.wire.wireexpr import WireExpr

ROWS = 2_000_000
TUPLE_ROWS = 200_000  # Tuples are slow: they get fewer rows.
PAYLOAD = 64
KEYS = 400
BATCH_BYTES = 60_000  # Bytes per batch, as links carry them.
BLOCK_BYTES = 1 << 20
ROUNDS = 5
CORES = 2
MEMORY = "4g"
ROOT = Path(__file__).parents[1]


def figures() -> Figures:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder / "log", ROWS)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        )
        settings = {"spark.ui.enabled": "false", "spark.driver.memory": MEMORY}
        settings["spark.log.level"] = "OFF"
        spark = zenlake.spark.session("bench", f"local[{CORES}]", **settings)
        try:
            spark.dataSource.register(Tuples)
            yield from measure(spark, folder)
        finally:
            spark.stop()


def measure(spark: SparkSession, folder: Path) -> Figures:
    logged = spark.read.format("zenoh").option("minPartitions", CORES).load(str(folder / "log"))
    logged.write.parquet(str(folder / "rows"))
    copied = spark.read.parquet(str(folder / "rows"))
    assert copied.count() == ROWS
    some = {"path": str(folder / "log"), "endingOffsets": f'{{"0": {TUPLE_ROWS}}}'}
    tuples = spark.read.format("zenoh-tuples").options(**some).load()
    few = spark.read.format("zenoh").options(**some, minPartitions=CORES).load()
    took = median_seconds(
        {
            "copy": lambda: _to_parquet(copied, folder),
            "batch": lambda: _to_parquet(logged, folder),
            "stream": lambda: _stream(spark, folder),
            "parquet noop": lambda: _to_nothing(copied),
            "log noop": lambda: _to_nothing(logged),
            "tuples noop": lambda: _to_nothing(tuples),
            "few noop": lambda: _to_nothing(few),
        },
        ROUNDS,
    )
    million = ROWS / 1e6
    yield Figure("log to Parquet, Spark batch", million / took["batch"], "M rows/s")
    yield Figure("Parquet to Parquet, Spark", million / took["copy"], "M rows/s")
    beside = "beside Parquet"
    yield Figure(f"log to Parquet, batch, {beside}", took["copy"] / took["batch"], "x", 0.8)
    yield Figure(f"log to Parquet, stream, {beside}", took["copy"] / took["stream"], "x", 0.65)
    yield Figure("log to noop, Spark batch", million / took["log noop"], "M rows/s")
    yield Figure(f"log to noop, {beside}", took["parquet noop"] / took["log noop"], "x", 0.4)
    each = took["tuples noop"] / took["few noop"]
    yield Figure("log to noop, beside a source of tuples", each, "x", 3)


def _to_parquet(frame: DataFrame, folder: Path) -> None:
    frame.write.mode("overwrite").parquet(str(folder / "copy"))


def _to_nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _stream(spark: SparkSession, folder: Path) -> None:
    """Copy the log to Parquet by a stream, with the start of the query."""
    out, checkpoint = folder / "streamed", folder / "checkpoint"
    for old in (out, checkpoint):
        shutil.rmtree(old, ignore_errors=True)
    stream = spark.readStream.format("zenoh").option("minPartitions", CORES)
    writing = stream.load(str(folder / "log")).writeStream.format("parquet")
    writing = writing.option("checkpointLocation", str(checkpoint))
    query = writing.trigger(availableNow=True).start(str(out))
    query.awaitTermination()


# ---- the log


def write_log(path: Path, rows: int) -> None:
    """Write a log as a recorder would: keys by id, batches as large as links carry them."""
    link = SourceLink(1, 1, bytes(range(1, 17)))
    texts = [f"fleet/robot/{number:03}/sensor/pose" for number in range(KEYS)]
    numbers = {text: 1 + number for number, text in enumerate(texts)}

    def key_of(text: str) -> WireExpr:
        return WireExpr(numbers[text], "", Mapping.SENDER)

    per_block = BLOCK_BYTES // (PAYLOAD + 10)
    random = np.random.default_rng(1)
    with Writer(path) as writer:
        while writer.next < rows:
            count = min(per_block, rows - writer.next)
            codes = random.integers(0, KEYS, count, dtype=np.int32)
            offsets = np.arange(0, (count + 1) * PAYLOAD, PAYLOAD, dtype=np.int32)
            batch = pa.RecordBatch.from_arrays(
                [
                    pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(texts)),
                    pa.Array.from_buffers(
                        pa.binary(),
                        count,
                        [None, pa.py_buffer(offsets), pa.py_buffer(random.bytes(count * PAYLOAD))],
                    ),
                ],
                ["key", "payload"],
            )
            writer.write([_block(link, numbers, batch, key_of)])


def _block(
    link: SourceLink,
    numbers: dict[str, int],
    batch: pa.RecordBatch,
    key_of: Callable[[str], WireExpr],
) -> OpenBlock:
    block = OpenBlock()
    place = block.link(link)
    assert place is not None
    for text, number in numbers.items():
        block.key(place, 1 << 16 | number, b"", text.encode())
    emitter = Emitter(push_columns(batch, key_of), None)
    while not emitter.done:
        sent = emitter.next(chunk_bytes=BATCH_BYTES)
        block.add(place, True, time.time_ns(), sent.rows, sent.data)
    return block


# ---- a source without Arrow


class Tuples(DataSource):
    """Data source of the same rows as tuples, as a source without Arrow would give them."""

    @classmethod
    def name(cls) -> str:
        return "zenoh-tuples"

    def schema(self) -> StructType:
        return SAMPLE_COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        raw = {**dict(self.options), "minpartitions": str(CORES)}
        return TupleReader(Options.parse(raw, Purpose.LOG_BATCH), schema)


class TupleReader(LogReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, LogRange)
        reader = Reader(Log(self._options["path"]), partition.partition)
        for batch in reader.batches(partition.start, partition.end, columns=self._schema.names):
            columns = [column.to_pylist() for column in to_spark(batch, self._schema).columns]
            yield from zip(*columns, strict=True)
