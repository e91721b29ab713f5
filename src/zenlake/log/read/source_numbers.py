"""Source numbers: the sources of a log's samples, and the numbers that they gave them.

Knows rows of the scan, through a kernel. Reads no payload.
"""

import secrets
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.log.kernels.sources import SourceTable, rehash, source_table, sources_kernel
from zenlake.log.read.spans import PartitionRange, ScannedRows, asked_rows
from zenlake.wire.scan import read_only_array

FIRST_SOURCES = 64  # Initial room for sources, which doubles as needed.


class NumberedSamples(NamedTuple):
    """Numbered samples, in the order of their offsets."""

    partition: int
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    "Times of reception, in nanoseconds since 1970."
    codes: npt.NDArray[np.int64]
    "Index of the sample's source in `names`."
    numbers: npt.NDArray[np.int64]
    "Number that the source gave the sample."
    names: list[bytes]
    "Id (16 bytes, little-endian) and entity (4) of each source so far. Later results extend it."


class SourceNumbers:
    """Table of the sources that one reading has met."""

    def __init__(self) -> None:
        self._seed = np.uint64(secrets.randbits(64))
        self._table = source_table(FIRST_SOURCES)
        self._names: list[bytes] = []

    def select(self, found: ScannedRows, asked: PartitionRange) -> NumberedSamples:
        """Return the samples among the rows that are asked for and have a source."""
        rows, offsets = asked_rows(found, asked)
        data = read_only_array(found.span.data)
        places, codes, numbers = np.empty((3, len(rows)), np.int64)
        at = count = 0
        while True:
            rest = places[count:], codes[count:], numbers[count:]
            at, more = sources_kernel(rows, at, data, self._seed, self._table, *rest)
            count += more
            if at == len(rows):
                break
            self._table = self._double_table()
        self._note_names()
        places = places[:count]
        times = found.span.batches["time"][rows["batch"][places]]
        return NumberedSamples(
            asked.partition,
            offsets[places],
            times.astype(np.int64),
            codes[:count],
            numbers[:count],
            self._names,
        )

    def _note_names(self) -> None:
        table = self._table
        for code in range(len(self._names), int(table.used[0])):
            name = table.low[code].tobytes() + table.high[code].tobytes()
            self._names.append(name + table.entity[code].tobytes())

    def _double_table(self) -> SourceTable:
        old, count = self._table, int(self._table.used[0])
        new = source_table(2 * len(old.low))
        new.low[:count], new.high[:count] = old.low[:count], old.high[:count]
        new.entity[:count] = old.entity[:count]
        new.used[:] = count
        rehash(new, self._seed)
        return new
