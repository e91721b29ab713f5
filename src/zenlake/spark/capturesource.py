"""`format("zenoh-capture")`: packet captures, a row for each message.

Knows files, and how their streams are shared out among tasks. Decoding is capture/'s, and loads
on executors only.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from zenlake.errors import ZError
from zenlake.spark.options import Options, Purpose, check

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS = 50_000  # of one record batch
MAX_FILES = 10_000
PARTITION_BYTES = 64 << 20  # of packets in one task, about


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

        return CaptureReader(
            Options.parse(self.options, Purpose.CAPTURE), checked(schema, columns())
        )


def columns() -> StructType:
    """Those of a capture, as Spark has them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from zenlake.capture import CAPTURE

    return from_arrow_schema(CAPTURE)


@dataclass
class Part(InputPartition):
    """Streams of one file."""

    path: str
    streams: tuple[int, ...]


class CaptureReader(DataSourceReader):
    """One task for each group of streams."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require("path", "paths")
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[Part]:
        from zenlake import capture

        patterns = (*(self._options["path"] or ()), *(self._options["paths"] or ()))
        parts: list[Part] = []
        for path in files(patterns):
            sizes = {one.number: one.bytes for one in capture.streams(path)}
            parts += [Part(path, group) for group in grouped(sizes, PARTITION_BYTES)]
        return parts

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if not isinstance(partition, Part):
            return  # Spark's, where there are no streams at all
        from zenlake import capture
        from zenlake.spark.schema import to_spark

        yield from (
            to_spark(batch, self._schema)
            for batch in capture.read(
                partition.path,
                streams=partition.streams,
                columns=self._schema.names,
                ports=self._options["ports"],
                max_rows=MAX_ROWS,
            )
        )


def files(patterns: Sequence[str]) -> list[str]:
    """The files that `patterns` name, each once; those of a folder if one is named."""
    found: dict[str, None] = {}
    for pattern in patterns:
        path = Path(pattern.removeprefix("file://"))
        if path.is_file():
            names = [str(path)]
        elif path.is_dir():
            names = sorted(str(one) for one in path.iterdir() if one.is_file())
        else:
            names = sorted(map(str, Path(path.anchor).glob(str(path.relative_to(path.anchor)))))
        if not names:
            raise ZError(f"option 'path': no file is {pattern!r}, as seen from the driver")
        found.update(dict.fromkeys(names))
    if len(found) > MAX_FILES:
        raise ZError(
            f"option 'path': {len(found)} files, more than {MAX_FILES}: read them in parts"
        )
    return list(found)


def grouped(sizes: dict[int, int], limit: int) -> list[tuple[int, ...]]:
    """Numbers in groups whose sizes come to about `limit`; what is larger stands alone.

    >>> grouped({0: 70, 1: 5, 2: 60, 3: 30}, 100)
    [(0, 1), (2, 3)]
    """
    groups: list[tuple[int, list[int]]] = []
    for number, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        for place, (filled, group) in enumerate(groups):
            if filled + size <= limit:
                group.append(number)
                groups[place] = (filled + size, group)
                break
        else:
            groups.append((size, [number]))
    return [tuple(sorted(group)) for _, group in groups]
