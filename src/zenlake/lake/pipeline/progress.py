"""Progress of the flows of a lake, and trimming of the log behind them.

Knows Spark's checkpoints on disk, the log's marks and the tables. Does not know Spark itself.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.tables.definitions import TABLES, TableDefinition
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.record import FILE as RECORD
from zenlake.lake.tables.record import TableRecord
from zenlake.log.read.log import Log, Trimmed
from zenlake.quantities import NANOS

CHECKPOINTS = "_checkpoints"
TABLES_FLOW = "tables"  # Name of the flow that fills the built-in tables.
OLD_FLOWS = {
    "samples": ("samples", "latest", "health"),
    "loss": ("loss",),
    "messages": ("messages", "messages_failed"),
}
"Flows of a lake that was made before the built-in tables had one query, and their tables."
MAX_LINES = 64  # Upper bound on the lines read of an offsets file, which has one line per source.
LOOKBACK = 1.25  # Factor on `duplicates_within`, whose numbers are stored by quarters of it.

PerPartition = Mapping[int, int]


class CommittedOffsets(NamedTuple):
    """Progress of a flow."""

    offsets: PerPartition
    "Next offset of each partition that the flow has not taken."
    at: float
    "End of the last micro-batch, in seconds since 1970."


def durable_offsets(project: Project) -> dict[int, int]:
    """Return the next offset of each log partition that is not durable; {} without a log."""
    try:
        log = Log(project.log)
    except ZError:
        return {}
    return {number: log.mark(number).offset for number in log.partitions()}


def log_id(project: Project) -> str:
    """Return the id of the log of a lake; "" without a log."""
    try:
        return Log(project.log).id
    except ZError:
        return ""


def committed_offsets(state: Path, log_id: str) -> dict[str, CommittedOffsets]:
    """Return by flow the offsets after its last completed micro-batch."""
    found: dict[str, tuple[int, CommittedOffsets]] = {}
    for commits in sorted((state / CHECKPOINTS).glob("**/commits")):
        version, flow = commits.parent.name, commits.parent.parent.name
        if not version.isdecimal() or (flow in found and found[flow][0] > int(version)):
            continue  # Checkpoint from before a full refresh.
        offsets = read_checkpoint(commits.parent, log_id)
        if offsets is not None:
            found[flow] = int(version), offsets
    return {flow: offsets for flow, (_, offsets) in found.items()}


def read_checkpoint(checkpoint: Path, log_id: str) -> CommittedOffsets | None:
    """Return the offsets after the last completed micro-batch of a checkpoint; None without one."""
    commits = checkpoint / "commits"
    with suppress(OSError):  # There is no checkpoint, or Spark has just removed the file.
        batch = max(_batch_numbers(commits), default=None)
        if batch is not None:
            text = (checkpoint / "offsets" / str(batch)).read_text()
            return CommittedOffsets(
                parse_offsets(text, log_id), (commits / str(batch)).stat().st_mtime
            )
    return None


def _batch_numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]


class FlowProgress(NamedTuple):
    """A flow by what it has left on the disk."""

    flow: str
    into: tuple[str, ...]
    "Tables that it has filled."
    taken: CommittedOffsets | None
    "None if it has not completed a micro-batch."


def flow_progress(project: Project) -> list[FlowProgress]:
    """Return all flows of a lake that have run, without Spark."""
    done = committed_offsets(project.state, log_id(project))
    filled = {flow: frozenset(into) for flow, into in OLD_FLOWS.items() if flow in done}
    filled |= recorded_tables(project)
    return [
        FlowProgress(flow, tuple(sorted(filled.get(flow, ()))), done.get(flow))
        for flow in sorted({*done, *(flow for flow, into in filled.items() if into)})
    ]


def recorded_tables(project: Project) -> dict[str, frozenset[str]]:
    """Return by flow the tables that it has filled, by its own record."""
    found = {
        path.parent.name: TableRecord(path.parent).names()
        for path in (project.state / CHECKPOINTS).glob(f"*/{RECORD}")
    }
    return {**found, TABLES_FLOW: TableRecord(project.state).names()}


def is_replaced(flow: FlowProgress, flows: Sequence[FlowProgress]) -> bool:
    """Tell whether another flow fills the tables of a flow now: that of the built-in tables."""
    others = {table for other in flows if other.flow == TABLES_FLOW for table in other.into}
    return flow.flow != TABLES_FLOW and bool(flow.into) and others.issuperset(flow.into)


def table_offsets(project: Project) -> dict[str, PerPartition]:
    """Return by table the offsets that the flow which fills it has taken."""
    found: dict[str, PerPartition] = {}
    for flow in flow_progress(project):
        for table in flow.into if flow.taken is not None else ():
            assert flow.taken is not None
            found[table] = highest_offsets(found.get(table, {}), flow.taken.offsets)
    return found


def highest_offsets(first: PerPartition, other: PerPartition) -> dict[int, int]:
    """Return the higher offset of each partition.

    >>> highest_offsets({0: 7, 1: 2}, {0: 5, 2: 3})
    {0: 7, 1: 2, 2: 3}
    """
    numbers = sorted({*first, *other})
    return {number: max(first.get(number, 0), other.get(number, 0)) for number in numbers}


def parse_offsets(text: str, log_id: str) -> dict[int, int]:
    """Return the offsets in log `log_id` from a file of Spark's offset log, the lowest of several.

    >>> parse_offsets('v1\\n{}\\n{"log": "ab", "partitions": {"0": 7}}\\n-\\n', "ab")
    {0: 7}
    """
    lowest: dict[int, int] = {}
    for line in text.splitlines()[2:MAX_LINES]:
        try:
            value = json.loads(line)
            if not isinstance(value, dict) or value["log"] != log_id:
                continue
            offsets = {int(number): int(at) for number, at in value["partitions"].items()}
        except (KeyError, TypeError, ValueError):
            continue  # The line of another kind of source.
        for number, at in offsets.items():
            lowest[number] = min(at, lowest.get(number, at))
    return lowest


def count_behind(durable: PerPartition, done: PerPartition) -> int:
    """Count the durable samples that are not taken.

    >>> count_behind({0: 10, 1: 5}, {0: 7})
    8
    """
    return sum(max(0, mark - done.get(number, 0)) for number, mark in durable.items())


# ---- tables


class RowCounts(NamedTuple):
    """Rows of the tables of a lake, by table."""

    total: dict[str, int]
    appended: dict[str, int]
    "Rows added since the last count, of tables that rows are appended to, not folded into."


class RowCounter:
    """Counter of the rows of all tables, which reads only what has changed since the last count."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._stores: dict[str, DeltaStore] = {}
        self._last: dict[str, int] = {}
        self.count()

    def count(self) -> RowCounts:
        """Count the rows of all tables, and the rows that were appended since the last call."""
        names = [path.parent.name for path in self._project.tables.glob("*/_delta_log")]
        total = {}
        for name in names:
            with suppress(ZError, OSError):  # Its flow reports a table that cannot be read.
                total[name] = self._store(name).snapshot().rows
        appended = {
            name: max(0, count - self._last.get(name, 0))
            for name, count in total.items()
            if self._store(name).table.fold is None
        }
        self._last = total
        return RowCounts(total, appended)

    def _store(self, name: str) -> DeltaStore:
        if name not in self._stores:
            table = TABLES.get(name) or TableDefinition(name, pa.schema([]))
            self._stores[name] = DeltaStore(self._project.table(name), table)
        return self._stores[name]


# ---- the log


def trim(project: Project, done: Sequence[PerPartition], now: float | None = None) -> Trimmed:
    """Remove segments that are older than lake.toml allows and that every flow has processed.

    `done` has the offsets of every flow; one that has not begun keeps everything.
    """
    age, none = project.retention.get("log"), Trimmed(0, 0)
    if age is None or not all(done) or not (project.log / "log.json").is_file():
        return none
    log = Log(project.log)
    removed = none
    for number in log.partitions():
        below = min((offsets.get(number, 0) for offsets in done), default=0)
        end = log.mark(number).offset
        if not end:
            continue
        # The newest sample bounds a clock that jumped ahead.
        newest = int(log.blocks(number, end - 1, end)["last_time"].max())
        wall = int((time.time() if now is None else now) * NANOS)
        old = log.offset_at(number, max(0, min(newest, wall) - int(age * NANOS)))
        needed = _first_offset_needed(log, number, below, project.duplicates_within)
        trimmed = log.trim(before_offset=min(below, old, needed), partition=number)
        removed = Trimmed(removed.segments + trimmed.segments, removed.bytes + trimmed.bytes)
    return removed


def _first_offset_needed(log: Log, partition: int, at: int, within: float) -> int:
    """Return the first offset that a flow continuing at `at` reads to find duplicates."""
    near = log.blocks(partition, max(0, at - 1), at + 1)
    if not len(near):
        return 0
    back = int(within * LOOKBACK * NANOS)
    return log.offset_at(partition, max(0, int(near["first_time"].min()) - back))
