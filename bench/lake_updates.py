"""The cost of an update of `latest`, by length of the history and by number of keys. No Spark."""

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from bench.figures import Figure, Figures
from zenlake.lake.tables import schema
from zenlake.lake.tables.commit import TableBatch, fold_latest
from zenlake.lake.tables.definitions import LATEST, TOMBSTONES
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.projections import RowChunk
from zenlake.lake.tables.reduce import conform, keep_newest

CHANGED = 1_000  # Keys per update.
LIVE = 10_000  # Keys in the table.
UPDATES = 5  # Updates in the shortest history.
TIMES = (1, 10, 100)
REPEATS = 9  # Updates that are measured.
UPDATE_AIM = 2.0  # Most that a history of a hundred times the length may cost in comparison.


def updates(folder: Path) -> Figures:
    """Measure updates of CHANGED keys, by length of the history and by number of keys."""
    took = {}
    for times in TIMES:
        tables = LatestTable(folder / f"history{times}", LIVE)
        for _ in range(UPDATES * times):
            tables.update()
        took[times] = tables.milliseconds()
        yield Figure(f"update of latest, history x{times}", took[times], "ms")
    ratio = took[TIMES[-1]] / took[TIMES[0]]
    name = f"update of latest, history x{TIMES[-1]} beside x1"
    yield Figure(name, ratio, "x", at_most=UPDATE_AIM)
    for times in TIMES:
        tables = LatestTable(folder / f"keys{times}", LIVE * times)
        took[times] = tables.milliseconds()
        yield Figure(f"update of latest, {LIVE * times:,} keys, all over", took[times], "ms")
        near = tables.milliseconds(near=True)
        yield Figure(f"update of latest, {LIVE * times:,} keys, neighbours", near, "ms")


class LatestTable:
    """A table `latest` with `keys` keys, and updates of CHANGED of them."""

    def __init__(self, folder: Path, keys: int) -> None:
        self._latest = DeltaStore(folder / LATEST.name, LATEST)
        self._tombstones = DeltaStore(folder / TOMBSTONES.name, TOMBSTONES)
        self._random = np.random.default_rng(1)
        self._keys = keys
        self._next = 0
        self._number = 0
        self._fold(np.arange(keys))

    def update(self, near: bool = False) -> float:
        """Update CHANGED keys, neighbours if `near`, and return the milliseconds."""
        if near:
            first = int(self._random.integers(0, self._keys - CHANGED + 1))
            keys = np.arange(first, first + CHANGED)
        else:
            keys = self._random.choice(self._keys, CHANGED, replace=False)
        return self._fold(keys)

    def milliseconds(self, near: bool = False) -> float:
        return median(self.update(near) for _ in range(REPEATS))

    def _fold(self, keys: "np.ndarray[Any, np.dtype[np.int64]]") -> float:
        n = len(keys)
        offsets = np.arange(self._next, self._next + n)
        rows = pa.table(
            {
                "key": pa.array([f"fleet/robot/{key:07}/pose" for key in keys.tolist()]),
                "kind": ["put"] * n,
                "payload": pa.array([b"%064d" % offset for offset in offsets.tolist()]),
                "encoding": ["zenoh/bytes"] * n,
                "received_at": pa.array(1_800_000_000_000_000 + offsets, schema.TIME),
                "partition": pa.array(np.zeros(n, np.int32)),
                "offset": pa.array(offsets),
            }
        )
        batch = TableBatch("bench", "bench", self._number, {0: (self._next, self._next + n - 1)})
        self._next += n
        self._number += 1
        reduced = keep_newest(RowChunk(conform(rows, schema.SAMPLE)).unique_samples)
        before = time.perf_counter()
        assert fold_latest(self._latest, self._tombstones, reduced, batch)
        return (time.perf_counter() - before) * 1000
