"""A log as a Spark stream of ranges: each row is a task, not a sample.

Spark plans, checkpoints and repeats ranges of offsets as for `format("zenoh")`; code of the task
reads the samples itself, so that none of them passes through the JVM.
"""

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from zenlake.spark.log_source import LogRange, LogStreamReader
from zenlake.spark.options import Options, Purpose

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "zenlake-log-ranges"
COLUMN = "range"
MIN_TASK_ROWS = 25_000  # Rows for which a task of their own is worth its cost.
MAX_TASKS = 64  # Tasks that one batch is cut into for the sake of parallel work.


class LogRangeSource(DataSource):
    """Data source with the options of a `zenoh` stream and one column: a pickled LogRange."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType([StructField(COLUMN, BinaryType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return RangeStreamReader(Options.parse(self.options, Purpose.LOG_STREAM), schema)


class RangeStreamReader(LogStreamReader):
    """Reader that hands ranges on unread; few samples make one task, many up to `minPartitions`."""

    def _wanted_tasks(self, ranges: dict[int, tuple[int, int]]) -> int:
        rows = sum(end - begin for begin, end in ranges.values())
        most = min(super()._wanted_tasks(ranges), MAX_TASKS)
        return max(1, min(most, -(-rows // MIN_TASK_ROWS)))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        if isinstance(partition, LogRange):
            yield pa.record_batch({COLUMN: pa.array([pickle.dumps(partition)], pa.binary())})
