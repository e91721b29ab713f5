"""Statistics of a lake from table metadata: rows, files, bytes, newest time, lag behind the log.

Knows what is counted. Reads no data file and does not know how the numbers are shown.
"""

from contextlib import suppress
from typing import Any

from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.maintenance import open_stores
from zenlake.lake.tables.retention import newest_time
from zenlake.log.read.log import Log

COMPLETE_TABLES = frozenset({"samples", "latest", "health"})
"Tables that take every sample. The rows of other tables do not tell how far a flow has come."

Facts = dict[str, Any]


def lake_stats(project: Project) -> Facts:
    """Return the statistics under the names that --json prints.

    `behind` counts offsets of the log, and is None for tables that do not take every sample.
    """
    ends = log_ends(project)
    tables = [_table_stats(name, store, ends) for name, store in open_stores(project).items()]
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


def _table_stats(name: str, store: DeltaStore, ends: dict[int, tuple[int, int]]) -> Facts:
    snapshot = store.snapshot()
    latest = newest_time([store])
    return {
        "table": name,
        "version": snapshot.version,
        "rows": sum(file.rows for file in snapshot.files),
        "files": len(snapshot.files),
        "bytes": sum(file.size for file in snapshot.files),
        "newest": None if latest is None else latest.isoformat(),
        "behind": _count_behind(store.offsets(), ends) if name in COMPLETE_TABLES else None,
    }


def _count_behind(offsets: dict[int, int], ends: dict[int, tuple[int, int]]) -> int | None:
    """Count the durable offsets that a table has not taken; None if that cannot be known.

    >>> _count_behind({0: 70}, {0: (0, 100), 1: (10, 15)}), _count_behind({}, {0: (0, 100)})
    (35, None)
    """
    if not offsets or not ends:
        return None
    return sum(max(0, end - offsets.get(number, first)) for number, (first, end) in ends.items())
