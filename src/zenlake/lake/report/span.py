"""Time span of a report, divided into bins of equal length.

Knows microseconds and minutes. Does not know what is counted in a bin.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.lake.tables.reduce import Ints

MAX_BINS = 600  # Upper bound on the points of a line.
MICROS = 1_000_000  # Microseconds per second.
MINUTE = 60 * MICROS  # Microseconds per minute.
DAY = 1440  # Minutes per day.
WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, DAY)  # Round bin lengths in minutes.


class TimeSpan(NamedTuple):
    """Consecutive bins of equal width."""

    start: int
    "Start of the first bin, in microseconds since 1970."
    width: int
    "Width of a bin in microseconds."
    bins: int
    "Number of bins."

    @property
    def end(self) -> int:
        return self.start + self.width * self.bins

    def bin_of(self, times: Ints) -> Ints:
        """Return the bin of each time; times outside the span get the nearest bin."""
        return np.clip((times - self.start) // self.width, 0, max(0, self.bins - 1))


def choose_span(first: int, last: int, most: int = MAX_BINS) -> TimeSpan:
    """Return a span of whole minutes that contains both times.

    >>> choose_span(90 * MICROS, 150 * MICROS)
    TimeSpan(start=60000000, width=60000000, bins=2)
    >>> choose_span(0, 86_400 * MICROS).bins
    289
    """
    minutes = last // MINUTE - first // MINUTE + 1
    width = next((minute for minute in WIDTHS if minutes <= minute * (most - 1)), 0)
    if not width:
        width = -(-minutes // (most - 1) // DAY) * DAY
    length = width * MINUTE
    start = first // length * length
    return TimeSpan(start, length, (last - start) // length + 1)


def extent(*columns: pa.ChunkedArray) -> tuple[int, int] | None:
    """Return the first and the last of all times; None if there are none."""
    ends = [pc.min_max(column.cast(pa.int64())) for column in columns]
    bounds = [(end["min"].as_py(), end["max"].as_py()) for end in ends if end["min"].is_valid]
    if not bounds:
        return None
    return min(low for low, _ in bounds), max(high for _, high in bounds)
