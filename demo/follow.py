"""Delay of the tables behind the fleet: from a put until its row can be read.

Knows the tables on disk and the marks of the log. Does not know Spark or the processes.
"""

import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.lake.pipeline.progress import count_behind, durable_offsets
from zenlake.lake.project import Project
from zenlake.lake.tables.definitions import LATEST, SAMPLES
from zenlake.lake.tables.delta import DeltaStore

LOOK_SECONDS = 0.05  # Time between two looks at the tables, which is an error of the delays.
START_BATCHES = 2  # Batches of the start: a slow one, and one with the samples gathered meanwhile.
PARTITION = 0  # Partition of the log that the only recorder of the demo writes.


class Commit(NamedTuple):
    """Moment at which a reader saw that the tables had grown."""

    seen: float
    "Time in seconds since 1970."
    end: int
    "First offset of the log that is not in every followed table."
    newest: float
    "Time at which the newest row of `samples` was received, in seconds since 1970."
    rows: int
    "Number of rows of `samples`."


class Delays(NamedTuple):
    """Times from a put to its row, of the samples that were put after START_BATCHES."""

    samples: int
    median: float
    worst: float


class Follower:
    """Reader of `samples` and `latest` that looks on a thread of its own until `stop`."""

    def __init__(self, project: Project) -> None:
        self.commits: list[Commit] = []
        self._project = project
        self._samples, self._latest = (
            DeltaStore(project.table(table.name), table) for table in (SAMPLES, LATEST)
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the thread after one more look at the tables."""
        self._stopped.set()
        self._thread.join()

    def describe(self) -> str | None:
        """Return how far the tables are behind the fleet; None before the first rows."""
        if not self.commits:
            return None
        last = self.commits[-1]
        behind = count_behind(durable_offsets(self._project), {PARTITION: last.end})
        return (
            f"samples: {last.rows:,} rows, {behind:,} behind, "
            f"newest {max(0.0, time.time() - last.newest):.1f} s old"
        )

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            self.look()
        self.look()

    def look(self) -> None:
        """Notice rows that have become readable since the last look."""
        snapshot = self._samples.snapshot()
        self._latest.snapshot()
        seen = time.time()
        end = min(store.offsets().get(PARTITION, 0) for store in (self._samples, self._latest))
        newest = max((_seconds(file.high["received_at"]) for file in snapshot.files), default=0.0)
        if newest and end > (self.commits[-1].end if self.commits else 0):
            self.commits.append(Commit(seen, end, newest, snapshot.rows))


def measure_delays(
    samples: pa.Table, commits: Sequence[Commit], late: tuple[int, float]
) -> Delays | None:
    """Return the delays of the rows that were put after START_BATCHES; None without such rows.

    `late` is the number of the robot whose clock lags, and by how many seconds.
    """
    if len(commits) < START_BATCHES:
        return None
    robot, lag = late
    put = pc.struct_field(samples["timestamp"], "time").cast(pa.int64()).to_numpy() / 1e6
    put = put + lag * pc.starts_with(samples["key"], f"robot/{robot}/").to_numpy()
    ends = np.array([commit.end for commit in commits])
    seen = np.array([commit.seen for commit in commits])
    first = np.searchsorted(ends, samples["offset"].to_numpy(), side="right")
    measured = (put > seen[START_BATCHES - 1]) & (first < len(ends))
    delays = seen[first[measured]] - put[measured]
    if not len(delays):
        return None
    return Delays(len(delays), float(np.median(delays)), float(delays.max()))


def _seconds(time_of_row: datetime) -> float:
    return time_of_row.timestamp()
