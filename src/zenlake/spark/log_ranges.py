"""A log as a Spark stream of ranges: each row is a task, not a sample.

Spark plans, checkpoints and repeats ranges of offsets as for `format("zenoh")`; code of the task
reads the samples itself, so that none of them passes through the JVM.
"""

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import BinaryType, StructField, StructType

from zenlake.spark.log_source import LogRange, LogStreamReader
from zenlake.spark.offsets import Offsets, PerPartition
from zenlake.spark.options import Options, Purpose

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "zenlake-log-ranges"
COLUMN = "range"
STOPS = "stops"  # Option: a JSON list of offsets by partition that no batch goes beyond at once.
MIN_TASK_ROWS = 25_000  # Rows for which a task of their own is worth its cost.
MAX_TASKS = 64  # Tasks that one batch is cut into for the sake of parallel work.


def stop_before(
    begin: PerPartition, end: PerPartition, stops: Sequence[PerPartition]
) -> PerPartition:
    """Return the end of a batch, cut at the first of `stops` that lies behind its begin.

    >>> stop_before({0: 10, 1: 10}, {0: 50, 1: 60}, [{0: 10, 1: 5}, {0: 30, 1: 20}])
    {0: 30, 1: 20}
    >>> stop_before({0: 30, 1: 20}, {0: 50, 1: 60}, [{0: 30, 1: 20}])
    {0: 50, 1: 60}
    """
    ahead = [stop for stop in stops if any(at > begin.get(n, 0) for n, at in stop.items())]
    if not ahead:
        return end
    stop = min(ahead, key=lambda stop: sum(stop.values()))
    return {n: max(begin.get(n, 0), min(at, stop.get(n, 0))) for n, at in end.items()}


class LogRangeSource(DataSource):
    """Data source with the options of a `zenoh` stream and one column: a pickled LogRange."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType([StructField(COLUMN, BinaryType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given = {name: self.options[name] for name in self.options if name.lower() != STOPS}
        stops = json.loads(self.options.get(STOPS, "[]"))
        return RangeStreamReader(Options.parse(given, Purpose.LOG_STREAM), schema, stops)


class RangeStreamReader(LogStreamReader):
    """Reader that hands ranges on unread; few samples make one task, many up to `minPartitions`.

    No batch goes beyond one of `stops` that it begins before: which of two copies of a sample is
    the repeat depends on where batches end, and a table that has offsets up to there took the rows
    of a batch that ended there.
    """

    def __init__(
        self, options: Options, schema: StructType, stops: Sequence[Mapping[str, int]] = ()
    ) -> None:
        super().__init__(options, schema)
        self._stops = [{int(n): at for n, at in stop.items()} for stop in stops]

    def __reduce__(self) -> tuple[Any, ...]:
        stops = [{str(n): at for n, at in stop.items()} for stop in self._stops]
        return RangeStreamReader, (self._options, self._schema, stops)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        reached = super().latestOffset(start, limit)
        log = self._open_log()
        at, end = Offsets.from_json(start, log), Offsets.from_json(reached, log)
        limited = stop_before(at.partitions, end.partitions, self._stops)
        return reached if limited == end.partitions else at.advance_to(limited).to_json()

    def _wanted_tasks(self, ranges: dict[int, tuple[int, int]]) -> int:
        rows = sum(end - begin for begin, end in ranges.values())
        most = min(super()._wanted_tasks(ranges), MAX_TASKS)
        return max(1, min(most, -(-rows // MIN_TASK_ROWS)))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        if isinstance(partition, LogRange):
            yield pa.record_batch({COLUMN: pa.array([pickle.dumps(partition)], pa.binary())})
