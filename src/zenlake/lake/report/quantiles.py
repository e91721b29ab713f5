"""Medians, percentiles and bars from merged histograms of latency.

Knows the buckets of `health`. Does not know keys or time: the caller numbers the groups.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from zenlake.lake.tables.reduce import Ints, find_quantiles

MAX_BARS = 60  # Upper bound on the bars of a chart.
PER_DECADE = (20, 10, 5, 4, 2, 1)  # Bars per factor of ten; the finest that fits is used.
SMALLEST = 1e-6  # Resolution of latencies in seconds; anything smaller counts as 0.

Floats = npt.NDArray[np.float64]


def quantiles(
    group: Ints, values: Floats, count: Ints, groups: int, wanted: tuple[float, ...]
) -> list[list[float | None]]:
    """Return for each wanted share the quantile of each group; None for an empty group.

    Entries are sorted by group and value.

    >>> group, values = np.array([0, 0, 2]), np.array([0.001, 0.5, 3.0])
    >>> quantiles(group, values, np.array([98, 2, 1]), 3, (0.5, 0.99))
    [[0.001, None, 3.0], [0.5, None, 3.0]]
    """
    totals = np.bincount(group, count, groups).tolist()
    return [
        [
            float(f"{values[place]:.4g}") if total else None
            for place, total in zip(
                find_quantiles(group, count, groups, share).tolist(), totals, strict=True
            )
        ]
        for share in wanted
    ]


def bars(values: Floats, count: Ints) -> list[list[float]]:
    """Return adjacent bars as [from, to, count], equally wide on a logarithmic scale around 0.

    >>> bars(np.array([0.0012, 0.0013, 0.0031]), np.array([5, 1, 2]))[0]
    [0.001122, 0.001259, 5]
    """
    if not len(values):
        return []
    power = np.log10(np.maximum(np.abs(values), SMALLEST) / SMALLEST)
    sign = np.where(np.abs(values) < SMALLEST, 0, np.sign(values)).astype(np.int64)
    for per in PER_DECADE:
        place = sign * (np.floor(power * per).astype(np.int64) + 1)
        low, high = int(place.min()), int(place.max())
        if high - low < MAX_BARS:
            break
    held = np.bincount(place - low, count, high - low + 1)
    return [[*_edges(low + i, per), int(n)] for i, n in enumerate(held.tolist())]


def _edges(place: int, per: int) -> tuple[float, float]:
    """Return the edges of a bar: around zero for place 0, negative for negative places."""
    if place == 0:
        return -SMALLEST, SMALLEST
    inner, outer = (SMALLEST * math.pow(10, (abs(place) - 1 + i) / per) for i in (0, 1))
    low, high = (inner, outer) if place > 0 else (-outer, -inner)
    return float(f"{low:.4g}"), float(f"{high:.4g}")


def latency(values: Floats, count: Ints) -> dict[str, Any]:
    """Return count, median, p99 and bars of a distribution whose entries are sorted by value."""
    group = np.zeros(len(values), np.int64)
    median, high = quantiles(group, values, count, 1, (0.5, 0.99))
    return {
        "count": int(count.sum()),
        "median": median[0],
        "p99": high[0],
        "bars": bars(values, count),
    }
