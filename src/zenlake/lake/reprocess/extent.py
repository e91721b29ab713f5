"""Extent of a reprocessing: which samples are decoded again, and from where each of them is read.

Knows the recorded offsets of tables, Spark's checkpoints on disk and the ends of the log. Decodes
nothing and reads no payload.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.errors import ZError
from zenlake.lake.pipeline.progress import CHECKPOINTS, TABLES_FLOW, parse_offsets
from zenlake.lake.project import Project
from zenlake.lake.tables.commit import TableBatch
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.record import TableRecord
from zenlake.lake.tables.reduce import as_ints
from zenlake.lake.tables.retention import STATS_PRECISION, newest_time, trusted_now
from zenlake.log.read.log import Log
from zenlake.spark.duplicates import GENERATIONS, generation_width

MESSAGES = "messages"  # Name of the decoded table, and of a flow of the user that fills it.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SourceName = Literal["samples", "log"]
Offsets = Mapping[int, int]
Mask = npt.NDArray[np.bool_]


class Extent(NamedTuple):
    """Samples that are decoded again.

    Offsets below `cuts` are read from the table `samples`, offsets from there to `ends` from the
    log. Offsets from `ends` on belong to the flow, which may append them at the same time.
    """

    source: SourceName
    "Source of most of the rows."
    since: int | None
    "Earliest time of reception in `samples`, in microseconds; None if it is not read."
    cuts: dict[int, int]
    ends: dict[int, int]
    begin: int
    "Earliest time of reception of all, in microseconds."
    tail: int | None
    "Earliest time of reception at `cuts`, in microseconds; None if the log is not read."

    def stored(self, rows: pa.Table) -> Mask:
        """Return which rows of `samples` are decoded again."""
        if self.since is None:
            return np.zeros(rows.num_rows, np.bool_)
        return self._below(rows, self.cuts) & (as_ints(rows["received_at"]) >= self.since)

    def covers(self, rows: pa.Table) -> Mask:
        """Return which rows of a decoded table are replaced."""
        logged: Mask = self._below(rows, self.ends) & ~self._below(rows, self.cuts)
        return logged | self.stored(rows)

    def is_older(self, rows: pa.Table) -> Mask:
        """Return which rows the flow wrote before `ends`."""
        return self._below(rows, self.ends)

    @staticmethod
    def _below(rows: pa.Table, limits: Offsets) -> Mask:
        partitions, offsets = as_ints(rows["partition"], -1), as_ints(rows["offset"])
        below = np.zeros(rows.num_rows, np.bool_)
        for partition, limit in limits.items():
            below |= (partitions == partition) & (offsets < limit)
        return below


# ---- the position of the flow


def find_checkpoint(project: Project) -> "Checkpoint | None":
    """Return the newest checkpoint of the flow that fills `messages`; None without one here."""
    name = TABLES_FLOW if MESSAGES in TableRecord(project.state).names() else MESSAGES
    found: list[tuple[int, Path]] = []
    for commits in (project.state / CHECKPOINTS).glob("**/commits"):
        version, flow = commits.parent.name, commits.parent.parent.name
        if flow == name and version.isdecimal():
            found.append((int(version), commits.parent))
    if not found:
        return None
    folder = max(found)[1]
    numbers = [int(path.name) for path in (folder / "commits").iterdir() if path.name.isdecimal()]
    with suppress(OSError, ValueError, KeyError, TypeError):
        query = str(json.loads((folder / "metadata").read_text().splitlines()[0])["id"])
        return Checkpoint(folder, name, query, max(numbers, default=-1))
    return None


class Checkpoint(NamedTuple):
    """Checkpoint of the flow."""

    folder: Path
    flow: str
    query: str
    "Id that Spark gave the query."
    batch: int
    "Number of the last completed micro-batch; -1 if there is none."

    def is_of(self, log: Log) -> bool:
        """Tell whether the flow has read this log; True also if that is unknown."""
        with suppress(OSError):
            return log.id in (self.folder / "offsets" / str(self.batch)).read_text()
        return True

    def end(self, store: DeltaStore, log_id: str) -> dict[int, int]:
        """Return the end of the last micro-batch whose rows are all in a table; {} if unknown."""
        committed = store.transaction(TableBatch(self.flow, self.query, 0).app)
        number = self.batch if committed is None else max(committed, self.batch)
        with suppress(OSError):
            return parse_offsets((self.folder / "offsets" / str(number)).read_text(), log_id)
        return {}


def flow_ends(
    checkpoint: Checkpoint | None, stores: Sequence[DeltaStore], log: Log | None
) -> dict[int, int]:
    """Return by log partition the first offset that the flow may still write to the tables.

    `checkpoint` was read before the snapshots of `stores` were taken: so a batch that it calls
    complete is in them. The offsets that a table records end at its last decoded row; only the
    checkpoint tells of samples behind that row that had no decoder.
    """
    recorded = _lowest(store.offsets() for store in stores)
    planned: dict[int, int] = {}
    if checkpoint is not None and log is not None:
        planned = _lowest(checkpoint.end(store, log.id) for store in stores)
    return {
        partition: max(recorded.get(partition, 0), planned.get(partition, 0))
        for partition in sorted(recorded.keys() | planned.keys())
    }


def _lowest(several: Iterable[Offsets]) -> dict[int, int]:
    """Return the lowest offset of each partition that all have.

    >>> _lowest([{0: 5, 1: 7}, {0: 4}])
    {0: 4}
    """
    first, *rest = several
    return {
        partition: min(offset, *(other[partition] for other in rest)) if rest else offset
        for partition, offset in first.items()
        if all(partition in other for other in rest)
    }


# ---- the sources


class Candidates(NamedTuple):
    """Sources that a lake has, and the time of the oldest row of each, in microseconds."""

    samples: DeltaStore | None
    samples_since: int | None
    log: Log | None
    log_since: int | None

    def choose(self) -> SourceName:
        """Return the source that goes back further; `samples` if both go back equally far."""
        if self.samples_since is None and self.log_since is None:
            raise ZError("neither `samples` nor the log has a row: nothing can be decoded again")
        if self.samples_since is None:
            return "log"
        if self.log_since is not None and self.log_since < self.samples_since:
            return "log"
        return "samples"


def find_candidates(
    project: Project, samples: DeltaStore, checkpoint: Checkpoint | None
) -> Candidates:
    """Look at the table `samples` and at the log. Neither needs to exist."""
    log: Log | None = None
    with suppress(ZError, FileNotFoundError):
        log = Log(project.log)
        if checkpoint is not None and not checkpoint.is_of(log):
            log = None
    numbers = [] if log is None else log.partitions()
    times = [_time_at(log, number, log.first(number)) for number in numbers if log is not None]
    return Candidates(
        samples if samples.exists() else None,
        _earliest_row(samples),
        log,
        min((time for time in times if time is not None), default=None),
    )


def _earliest_row(samples: DeltaStore) -> int | None:
    """Return the earliest time of reception in `samples`, in microseconds; None without rows."""
    files = [
        (low, file)
        for file in samples.snapshot().files
        if isinstance(low := file.low.get("received_at"), datetime)
    ]
    if not files:
        return None
    limit = min(low for low, _ in files) + STATS_PRECISION
    first = [file for low, file in files if low < limit]
    earliest = pc.min(samples.read(first, ["received_at"])["received_at"])
    return int(earliest.cast(pa.int64()).as_py())


def _time_at(log: Log, partition: int, offset: int) -> int | None:
    """Return when the block with an offset was received, in microseconds; None: there is none."""
    if offset >= log.mark(partition).offset:
        return None
    blocks = log.blocks(partition, offset, offset + 1)
    times = blocks["first_time"][blocks["samples"] > 0]
    return int(times.min()) // 1000 if len(times) else None


def to_micros(time: datetime) -> int:
    """Return a time as microseconds since 1970.

    >>> to_micros(datetime(1970, 1, 2, tzinfo=UTC))
    86400000000
    """
    return (time - EPOCH) // timedelta(microseconds=1)


def lookback_micros(within: float) -> int:
    """Return for how long a repeat of a sample is recognised at most, in microseconds."""
    return generation_width(within) * (GENERATIONS + 1) // 1000


# ---- the extent


def plan_extent(
    project: Project, found: Candidates, source: SourceName, ends: dict[int, int], oldest: int
) -> Extent:
    """Return the extent of reprocessing from `source`; rows received before `oldest` stay.

    ZError: the source does not exist, or the log lacks rows that only it has.
    """
    if source == "log":
        return _plan_log(project, found, ends, oldest)
    if found.samples is None or found.samples_since is None:
        raise ZError(f"{project.table('samples')} has no rows: use --from log")
    since = max(found.samples_since, oldest)
    cuts = _cut_samples(project, found, ends)
    read = [p for p in ends if cuts[p] < ends[p]]
    if not read:
        return Extent("samples", since, cuts, ends, since, None)
    assert found.log is not None
    times = [_time_at(found.log, p, cuts[p]) for p in read]
    tail = min(time for time in times if time is not None)
    return Extent("samples", since, cuts, ends, min(since, tail), tail)


def _plan_log(project: Project, found: Candidates, ends: dict[int, int], oldest: int) -> Extent:
    log = found.log
    if log is None:
        raise ZError(
            f"{project.log} is not the log that `messages` was made from: use --from samples"
        )
    cuts = dict(ends)
    for partition in ends.keys() & set(log.partitions()):
        first = max(log.first(partition), log.offset_at(partition, oldest * 1000))
        cuts[partition] = min(first, ends[partition])
    times = [_time_at(log, p, cut) for p, cut in cuts.items() if cut < ends[p]]
    known = [time for time in times if time is not None]
    if not known:
        raise ZError(f"{project.log} has none of the samples of `messages`: use --from samples")
    return Extent("log", None, cuts, ends, min(known), min(known))


def _cut_samples(project: Project, found: Candidates, ends: dict[int, int]) -> dict[int, int]:
    """Return the offsets from which on the log is read although `samples` is the source.

    Those are the samples that the table does not have yet. With several recorders a sample is in
    several partitions, and of its copies the two flows may keep different ones: one flow took a
    partition further than the other. Then the log is read from so early on that no sample has a
    copy before the cuts and another one that belongs to the flow.
    """
    assert found.samples is not None
    taken = found.samples.offsets()
    log = found.log
    first = {p: log.first(p) for p in log.partitions()} if log is not None else {}
    cuts = {p: min(end, taken.get(p, first.get(p, end))) for p, end in ends.items()}
    if len(ends) > 1 and log is not None and any(taken.get(p) != end for p, end in ends.items()):
        times = [_time_at(log, p, end) for p, end in ends.items() if p in first]
        known = [time for time in times if time is not None]
        if known:
            early = (min(known) - lookback_micros(project.duplicates_within)) * 1000
            cuts |= {p: min(cuts[p], log.offset_at(p, early)) for p in ends if p in first}
    for p, cut in cuts.items():
        if cut == ends[p]:
            continue
        if log is None or p not in first or not first[p] <= cut < ends[p] <= log.mark(p).offset:
            raise ZError(
                f"`samples` ends at offset {cut} of partition {p}, `messages` at {ends[p]}, and "
                f"{project.log} does not have the offsets between them: let `zenlake lake run` "
                "bring `samples` up to date first"
            )
    return cuts


def oldest_kept(project: Project, stores: Iterable[DeltaStore], now: datetime | None = None) -> int:
    """Return the start of the first day of `messages` that [retention] keeps, in microseconds."""
    keep = project.retention.get(MESSAGES)
    if keep is None:
        return 0
    clock = datetime.now(UTC) if now is None else now
    before = trusted_now(clock, newest_time(stores)) - timedelta(seconds=keep)
    return to_micros(before.replace(hour=0, minute=0, second=0, microsecond=0))
