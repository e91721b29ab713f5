"""`format("zenoh")`: options decide what is read or written, and by whom.

Knows which options mean what. Loads nothing but Spark's own class until something is asked for:
Spark imports this in processes that only plan.
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

LOG = (Purpose.LOG_STREAM, Purpose.LOG_BATCH)
ALL = (*LOG, Purpose.LIVE, Purpose.WRITE)


class ZenohDataSource(DataSource):
    """A log, a live system, or a sink."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check(options, ALL)

    @classmethod
    def name(cls) -> str:
        return "zenoh"

    @property
    def _is_live(self) -> bool:
        return "selector" in self.options

    def _columns(self) -> "StructType":
        """All that there are."""
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
        from zenlake.spark.schema import narrowed

        check(self.options, (Purpose.LIVE,) if self._is_live else LOG)
        wanted = self.options.get("columns")
        return narrowed(self._columns(), NAMES.read(wanted) if wanted else None)

    def reader(self, schema: "StructType") -> DataSourceReader:
        from zenlake.spark.schema import checked

        wanted = checked(schema, self._columns())
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
        from zenlake.spark.schema import checked

        wanted = checked(schema, self._columns())
        if self._is_live:
            raise ZError(
                "option 'selector': a query is answered once, it is no stream. "
                "Use spark.read, or leave it out and give 'path'"
            )
        from zenlake.spark.log_source import LogStreamReader

        return LogStreamReader(Options.parse(self.options, Purpose.LOG_STREAM), wanted)

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        from zenlake.spark.sink import BatchWriter

        if overwrite:
            raise ZError("mode('overwrite'): nothing can be replaced here; use mode('append')")
        return BatchWriter(Options.parse(self.options, Purpose.WRITE), schema)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:
        from zenlake.spark.sink import StreamWriter

        return StreamWriter(Options.parse(self.options, Purpose.WRITE), schema)


class RefusedStream(DataSourceStreamReader):
    """A stream that cannot be read, and why: Spark hides what `streamReader` itself raises."""

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
