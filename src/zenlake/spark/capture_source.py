"""`format("zenoh-capture")`: packet captures, a row for each message.

Knows files, and how they and their streams are shared out among tasks. Decoding is capture/'s,
and loads on executors only, where it is also looked which streams there are.
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

MAX_ROWS = 50_000  # of one record batch
MAX_FILES = 10_000
PART_BYTES = 128 << 20  # of a file for one task, about
MAX_PARTS = 64  # of one file: each task walks over all of its packets


class CaptureDataSource(DataSource):
    """Captures of Zenoh traffic, pcap and pcapng."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check(options, (Purpose.CAPTURE,))

    @classmethod
    def name(cls) -> str:
        return "zenoh-capture"

    def schema(self) -> StructType:
        from zenlake.spark.schema import narrowed

        options = Options.parse(self.options, Purpose.CAPTURE)
        return narrowed(columns(), options["columns"])

    def reader(self, schema: StructType) -> "CaptureReader":
        from zenlake.spark.schema import checked

        options = Options.parse(self.options, Purpose.CAPTURE)
        return CaptureReader(options, checked(schema, columns()))


def columns() -> StructType:
    """Those of a capture, as Spark has them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from zenlake.capture.schema import CAPTURE

    return StructType([StructField(one.name, one.dataType) for one in from_arrow_schema(CAPTURE)])


@dataclass
class StreamShare(InputPartition):
    """Some of the streams of one file: the `number`th of `parts` shares."""

    path: str
    number: int
    parts: int


class CaptureReader(DataSourceReader):
    """Files, and the streams of large ones, in tasks of their own."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require("path", "paths")
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[StreamShare]:
        patterns = (*(self._options["path"] or ()), *(self._options["paths"] or ()))
        parts: list[StreamShare] = []
        for path in files(patterns):
            count = min(-(-Path(path).stat().st_size // PART_BYTES) or 1, MAX_PARTS)
            parts += [StreamShare(path, number, count) for number in range(count)]
        return parts

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        assert isinstance(partition, StreamShare)
        from zenlake import capture
        from zenlake.spark.schema import to_spark

        ports, streams = self._options["ports"], None
        if partition.parts > 1:
            sizes = {
                one.number: one.bytes for one in capture.streams(partition.path, ports) if one.zenoh
            }
            streams = shares(sizes, partition.parts)[partition.number]
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


def files(patterns: Sequence[str]) -> list[str]:
    """The files that `patterns` name, each once; of a folder all that are in it."""
    found: dict[str, None] = {}
    for pattern in patterns:
        path = Path(pattern.removeprefix("file://"))
        if path.is_file():
            names = [path]
        elif path.is_dir():
            names = sorted(one for one in path.iterdir() if one.is_file())
        else:
            names = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        if not names:
            raise ZError(f"option 'path': no file is {pattern!r}, as seen from the driver")
        found.update(dict.fromkeys(str(one.absolute()) for one in names))
    if len(found) > MAX_FILES:
        raise ZError(f"option 'path': {len(found)} files, more than {MAX_FILES}: read some at once")
    return list(found)


def shares(sizes: dict[int, int], count: int) -> list[list[int]]:
    """The numbers in `count` groups of similar size, the same for whoever asks.

    >>> shares({0: 70, 1: 5, 2: 60, 3: 30}, 2)
    [[0, 1], [2, 3]]
    """
    groups: list[list[int]] = [[] for _ in range(count)]
    filled = [0] * count
    for number, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        least = filled.index(min(filled))
        groups[least].append(number)
        filled[least] += size
    return [sorted(group) for group in groups]
