"""Progress of the flows of a lake, and trimming of the log behind them.

Knows Spark's checkpoints on disk, the log's marks and the tables. Does not know Spark itself.
"""

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.log.read.log import Log, Trimmed
from zenlake.quantities import NANOS

CHECKPOINTS = "_checkpoints"
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


def committed_offsets(state: Path, log_id: str) -> dict[str, CommittedOffsets]:
    """Return by flow the offsets after its last completed micro-batch."""
    found: dict[str, tuple[int, CommittedOffsets]] = {}
    for commits in sorted((state / CHECKPOINTS).glob("**/commits")):
        version, flow = commits.parent.name, commits.parent.parent.name
        batch = max(_batch_numbers(commits), default=None)
        if not version.isdecimal() or batch is None:
            continue
        if flow in found and found[flow][0] > int(version):
            continue  # Checkpoint from before a full refresh.
        with suppress(OSError):  # Spark has just removed the file.
            text = (commits.parent / "offsets" / str(batch)).read_text()
            at = (commits / str(batch)).stat().st_mtime
            found[flow] = int(version), CommittedOffsets(parse_offsets(text, log_id), at)
    return {flow: offsets for flow, (_, offsets) in found.items()}


def _batch_numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]


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


def count_rows(project: Project, name: str) -> int | None:
    """Return the number of rows of a table; None if it does not exist yet."""
    import pyarrow as pa

    from zenlake.lake.tables.definitions import TABLES, TableDefinition
    from zenlake.lake.tables.delta import DeltaStore

    store = DeltaStore(
        project.table(name), TABLES.get(name) or TableDefinition(name, pa.schema([]))
    )
    return store.snapshot().rows if store.exists() else None


def appended_rows(project: Project) -> dict[str, int]:
    """Return the number of rows of each table that rows are appended to, not folded into."""
    from zenlake.lake.tables.definitions import TABLES

    names = [path.parent.name for path in project.tables.glob("*/_delta_log")]
    appended = [name for name in names if name not in TABLES or TABLES[name].fold is None]
    return {name: count for name in appended if (count := count_rows(project, name)) is not None}


# ---- the log


def trim(project: Project, state: Path, flows: Iterable[str], now: float | None = None) -> Trimmed:
    """Remove segments that all `flows` have processed and that are older than lake.toml allows.

    A flow that has not begun keeps everything.
    """
    age, none = project.retention.get("log"), Trimmed(0, 0)
    flows = list(flows)
    if age is None or not flows or not (project.log / "log.json").is_file():
        return none
    log = Log(project.log)
    done = committed_offsets(state, log.id)
    if any(flow not in done for flow in flows):
        return none
    removed = none
    for number in log.partitions():
        below = min(done[flow].offsets.get(number, 0) for flow in flows)
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
