"""The time that a report covers, cut into bins of equal length.

Knows microseconds and minutes. Does not know what is counted in a bin.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MAX_BINS = 600  # points of a line
MICROS = 1_000_000
MINUTE = 60 * MICROS
DAY = 1440  # minutes
WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, DAY)  # minutes: lengths that people think in

Ints = npt.NDArray[np.int64]


class TimeSpan(NamedTuple):
    """From `start`, in microseconds since 1970, `bins` times `width` microseconds."""

    start: int
    width: int
    bins: int

    @property
    def end(self) -> int:
        return self.start + self.width * self.bins

    def bin_of(self, times: Ints) -> Ints:
        """The bin of each time; what is outside goes to the nearest."""
        return np.clip((times - self.start) // self.width, 0, max(0, self.bins - 1))


def choose_span(first: int, last: int, most: int = MAX_BINS) -> TimeSpan:
    """Bins of whole minutes that hold both times.

    >>> choose_span(90 * MICROS, 150 * MICROS)
    TimeSpan(start=60000000, width=60000000, bins=2)
    >>> choose_span(0, 86_400 * MICROS).bins
    289
    """
    minutes = last // MINUTE - first // MINUTE + 1
    width = next((one for one in WIDTHS if minutes <= one * (most - 1)), 0)
    if not width:
        width = -(-minutes // (most - 1) // DAY) * DAY
    length = width * MINUTE
    start = first // length * length
    return TimeSpan(start, length, (last - start) // length + 1)


def micros(column: pa.ChunkedArray) -> Ints:
    """Times as microseconds since 1970; none may be null."""
    found: Ints = column.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
    return found


def extent(*columns: pa.ChunkedArray) -> tuple[int, int] | None:
    """The first and the last of all times; None: there are none."""
    ends = [pc.min_max(column.cast(pa.timestamp("us")).cast(pa.int64())) for column in columns]
    there = [(one["min"].as_py(), one["max"].as_py()) for one in ends if one["min"].is_valid]
    if not there:
        return None
    return min(low for low, _ in there), max(high for _, high in there)
