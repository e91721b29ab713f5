"""`format("zenoh-capture")`: packet captures, one row per message.

Knows files, and how files and their streams are divided among tasks. The decoder is in capture/;
it loads on executors only, and so do the streams of a file.
"""

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from zenlake.errors import ZError
from zenlake.spark.options import Options, Purpose, check

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("zenlake.spark")

MAX_ROWS = 50_000  # Rows per record batch.
MAX_FILES = 10_000  # Files per query.
PART_BYTES = 128 << 20  # File bytes per task, about.
MAX_PARTS = 64  # Tasks per file; each of them walks over all packets of the file.


class CaptureDataSource(DataSource):
    """Data source `zenoh-capture`: pcap and pcapng files of Zenoh traffic."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check(options, (Purpose.CAPTURE,))

    @classmethod
    def name(cls) -> str:
        return "zenoh-capture"

    def schema(self) -> StructType:
        from zenlake.spark.schema import select_columns

        options = Options.parse(self.options, Purpose.CAPTURE)
        return select_columns(capture_columns(), options["columns"])

    def reader(self, schema: StructType) -> "CaptureReader":
        from zenlake.spark.schema import check_schema

        options = Options.parse(self.options, Purpose.CAPTURE)
        return CaptureReader(options, check_schema(schema, capture_columns()))


def capture_columns() -> StructType:
    """Return the columns of a capture with Spark's types."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from zenlake.capture.schema import CAPTURE

    fields = from_arrow_schema(CAPTURE)
    return StructType([StructField(field.name, field.dataType) for field in fields])


@dataclass
class StreamShare(InputPartition):
    """A share of the streams of one file: share `number` of `parts`."""

    path: str
    number: int
    parts: int


class CaptureReader(DataSourceReader):
    """Reader with one task per file, or several for the streams of a large file."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require("path", "paths")
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[StreamShare]:
        patterns = (*(self._options["path"] or ()), *(self._options["paths"] or ()))
        parts: list[StreamShare] = []
        for path in find_files(patterns):
            count = min(-(-Path(path).stat().st_size // PART_BYTES) or 1, MAX_PARTS)
            parts += [StreamShare(path, number, count) for number in range(count)]
        return parts

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        assert isinstance(partition, StreamShare)
        from zenlake import capture
        from zenlake.spark.schema import to_spark

        ports, streams = self._options["ports"], None
        if partition.parts > 1:
            found = capture.streams(partition.path, ports)
            sizes = {stream.number: stream.bytes for stream in found if stream.zenoh}
            streams = group_by_size(sizes, partition.parts)[partition.number]
        reading = capture.read(
            partition.path,
            streams=streams,
            columns=self._schema.names,
            ports=ports,
            max_rows=MAX_ROWS,
        )
        for batch in reading:
            yield to_spark(batch, self._schema)
        if reading.report.unread and not partition.number:
            log.warning("%s: not read: %s", partition.path, dict(reading.report.unread))


def find_files(patterns: Sequence[str]) -> list[str]:
    """Return the files that `patterns` match, each once; a folder stands for all its files."""
    found: dict[str, None] = {}
    for pattern in patterns:
        path = Path(pattern.removeprefix("file://"))
        if path.is_file():
            matches = [path]
        elif path.is_dir():
            matches = sorted(file for file in path.iterdir() if file.is_file())
        else:
            matches = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        if not matches:
            raise ZError(f"option 'path': no file matches {pattern!r} on the driver")
        found.update(dict.fromkeys(str(match.absolute()) for match in matches))
    if len(found) > MAX_FILES:
        raise ZError(
            f"option 'path': {len(found)} files, more than {MAX_FILES}: read fewer at once"
        )
    return list(found)


def group_by_size(sizes: dict[int, int], count: int) -> list[list[int]]:
    """Divide numbers into `count` groups of similar total size; every task gets the same result.

    >>> group_by_size({0: 70, 1: 5, 2: 60, 3: 30}, 2)
    [[0, 1], [2, 3]]
    """
    groups: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for number, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        least = filled.index(min(filled))
        groups[least].append(number)
        filled[least] += size
    return [sorted(group) for group in groups]
