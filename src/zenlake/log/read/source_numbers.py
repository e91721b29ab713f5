"""Source numbers: the sources of a log's samples, and the numbers that they gave them.

Knows rows of the scan. Reads no payload.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zenlake.log.read.spans import PartitionRange, ScannedRows, asked_rows
from zenlake.wire.scan import Rows, read_only_array
from zenlake.wire.zenohid import MAX_BYTES


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
        self._codes: dict[bytes, int] = {}
        self._names: list[bytes] = []

    def select(self, found: ScannedRows, asked: PartitionRange) -> NumberedSamples:
        """Return the samples among the rows that are asked for and have a source."""
        rows, offsets = asked_rows(found, asked)
        numbered = np.flatnonzero(rows["source"])
        rows = rows[numbered]
        names = source_names(rows, found.span.data).tolist()
        for name in dict.fromkeys(names):
            if name not in self._codes:
                self._codes[name] = len(self._names)
                self._names.append(name)
        return NumberedSamples(
            asked.partition,
            offsets[numbered],
            found.span.batches["time"][rows["batch"]].astype(np.int64),
            np.fromiter(map(self._codes.__getitem__, names), np.int64, len(names)),
            rows["source_sn"].astype(np.int64),
            self._names,
        )


def source_names(rows: Rows, data: memoryview) -> npt.NDArray[np.void]:
    """Return the source of each row as one value: id, padded with zeros, and entity."""
    buf = read_only_array(data)
    places = rows["source"][:, None] + np.arange(MAX_BYTES)
    names = np.zeros((len(rows), MAX_BYTES + 4), np.uint8)
    inside = np.arange(MAX_BYTES) < rows["source_len"][:, None]
    names[:, :MAX_BYTES] = np.where(inside, buf[np.minimum(places, len(buf) - 1)], 0)
    names[:, MAX_BYTES:] = rows["source_eid"].astype("<u4").view(np.uint8).reshape(-1, 4)
    return names.view(f"V{MAX_BYTES + 4}").ravel()
