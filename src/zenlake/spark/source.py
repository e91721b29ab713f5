"""`format("zenoh")`: chooses the reader or writer that the options ask for.

Knows which options select a log, a live query or the sink. Imports the readers and writers late:
Spark loads this module in processes that only plan.
"""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from zenlake.errors import ZError
from zenlake.spark.options import DUPLICATES, INCLUDE_LOSS, Options, Purpose, check

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LOG_PURPOSES = (Purpose.LOG_STREAM, Purpose.LOG_BATCH)
ALL_PURPOSES = (*LOG_PURPOSES, Purpose.LIVE, Purpose.WRITE)


class ZenohDataSource(DataSource):
    """Data source `zenoh`: a log, a live query, or the sink."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check(options, ALL_PURPOSES)

    @classmethod
    def name(cls) -> str:
        return "zenoh"

    @property
    def _is_live(self) -> bool:
        return "selector" in self.options

    def _columns(self) -> "StructType":
        """Return all columns that these options offer."""
        from zenlake.spark.schema import SAMPLE_COLUMNS, with_duplicate, with_loss

        columns = SAMPLE_COLUMNS
        if self._is_live:
            return columns
        if INCLUDE_LOSS.read(self.options.get("includeloss", "false")) != "false":
            columns = with_loss(columns)
        if DUPLICATES.read(self.options.get("duplicates", "keep")) == "mark":
            columns = with_duplicate(columns)
        return columns

    def schema(self) -> "StructType":
        from zenlake.spark.options import NAMES
        from zenlake.spark.schema import select_columns

        check(self.options, (Purpose.LIVE,) if self._is_live else LOG_PURPOSES)
        wanted = self.options.get("columns")
        return select_columns(self._columns(), NAMES.read(wanted) if wanted else None)

    def reader(self, schema: "StructType") -> DataSourceReader:
        from zenlake.spark.schema import check_schema

        wanted = check_schema(schema, self._columns())
        if self._is_live:
            from zenlake.spark.query_source import QueryReader

            return QueryReader(Options.parse(self.options, Purpose.LIVE), wanted)
        from zenlake.spark.log_source import LogReader

        return LogReader(Options.parse(self.options, Purpose.LOG_BATCH), wanted)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        try:
            return self._stream_reader(schema)
        except ZError as error:
            return RefusedStream(error)

    def _stream_reader(self, schema: "StructType") -> DataSourceStreamReader:
        from zenlake.spark.schema import check_schema

        wanted = check_schema(schema, self._columns())
        if self._is_live:
            raise ZError(
                "option 'selector': a query is answered once, it is not a stream. "
                "Use spark.read, or leave it out and give 'path'"
            )
        from zenlake.spark.log_source import LogStreamReader

        return LogStreamReader(Options.parse(self.options, Purpose.LOG_STREAM), wanted)

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        from zenlake.spark.sink import BatchWriter

        if overwrite:
            raise ZError("mode('overwrite'): the sink cannot replace anything; use mode('append')")
        return BatchWriter(Options.parse(self.options, Purpose.WRITE), schema)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:
        from zenlake.spark.sink import StreamWriter

        return StreamWriter(Options.parse(self.options, Purpose.WRITE), schema)


class RefusedStream(DataSourceStreamReader):
    """A stream whose every call raises the reason why it cannot be read.

    Spark hides an error that `streamReader` itself raises.
    """

    def __init__(self, error: ZError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, int]:
        raise self._error

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        raise self._error

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[object]:  # type: ignore[override]
        raise self._error

    def read(self, partition: object) -> None:  # type: ignore[override]
        raise self._error
