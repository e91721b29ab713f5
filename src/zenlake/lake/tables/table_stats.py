"""Statistics of a lake from table metadata: rows, files, bytes, newest time, lag behind the log.

Knows what is counted. Reads no data file and does not know how the numbers are shown.
"""

from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.maintenance import open_stores
from zenlake.lake.tables.retention import newest_time
from zenlake.log.read.log import Log

Facts = dict[str, Any]
Offsets = Mapping[int, int]


def lake_stats(project: Project, taken: Mapping[str, Offsets] = MappingProxyType({})) -> Facts:
    """Return the statistics under the names that --json prints.

    `taken` has by table the offsets that its flow has taken, where that is known. `behind` counts
    offsets of the log; None if it is not known how far a table is.
    """
    ends = log_ends(project)
    tables = [
        _table_stats(name, store, ends, taken.get(name, {}))
        for name, store in open_stores(project).items()
    ]
    return {
        "lake": project.name,
        "home": str(project.home),
        "log": {str(partition): end for partition, (_, end) in ends.items()},
        "tables": tables,
    }


def log_ends(project: Project) -> dict[int, tuple[int, int]]:
    """Return the first and the next durable offset of each log partition; {} without a log."""
    with suppress(ZError, FileNotFoundError):
        log = Log(project.log)
        return {number: (log.first(number), log.mark(number).offset) for number in log.partitions()}
    return {}


def _table_stats(
    name: str, store: DeltaStore, ends: dict[int, tuple[int, int]], taken: Offsets
) -> Facts:
    snapshot = store.snapshot()
    latest = newest_time([store])
    offsets = store.offsets()
    reached = {n: max(offsets.get(n, 0), taken.get(n, 0)) for n in {*offsets, *taken}}
    return {
        "table": name,
        "version": snapshot.version,
        "rows": sum(file.rows for file in snapshot.files),
        "files": len(snapshot.files),
        "bytes": sum(file.size for file in snapshot.files),
        "newest": None if latest is None else latest.isoformat(),
        "behind": _count_behind(reached, ends),
    }


def _count_behind(offsets: dict[int, int], ends: dict[int, tuple[int, int]]) -> int | None:
    """Count the durable offsets that a table has not taken; None if that cannot be known.

    >>> _count_behind({0: 70}, {0: (0, 100), 1: (10, 15)}), _count_behind({}, {0: (0, 100)})
    (35, None)
    """
    if not offsets or not ends:
        return None
    return sum(max(0, end - offsets.get(number, first)) for number, (first, end) in ends.items())
