"""What a lake holds, from the metadata of its tables: rows, files, bytes, how new, how far behind.

Knows what is counted. Reads no data file; does not know how it is shown.
"""

from contextlib import suppress
from typing import Any

from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.tables.delta import DeltaStore
from zenlake.lake.tables.maintenance import stores
from zenlake.lake.tables.retention import newest
from zenlake.log.read.log import Log

WHOLE = frozenset({"samples", "latest", "health"})
"Tables that take every sample: of others nobody can tell from their rows how far they are."

Facts = dict[str, Any]


def lake_stats(project: Project) -> Facts:
    """By the names that --json has; `behind` is in offsets of the log, None where nobody knows."""
    ends = log_ends(project)
    tables = [_table(name, store, ends) for name, store in stores(project).items()]
    return {
        "lake": project.name,
        "home": str(project.home),
        "log": {str(partition): end for partition, (_, end) in ends.items()},
        "tables": tables,
    }


def log_ends(project: Project) -> dict[int, tuple[int, int]]:
    """The first and the next durable offset of each partition of the log; {}: there is no log."""
    with suppress(ZError, FileNotFoundError):
        log = Log(project.log)
        return {number: (log.first(number), log.mark(number).offset) for number in log.partitions()}
    return {}


def _table(name: str, store: DeltaStore, ends: dict[int, tuple[int, int]]) -> Facts:
    snapshot = store.snapshot()
    latest = newest([store])
    return {
        "table": name,
        "version": snapshot.version,
        "rows": sum(file.rows for file in snapshot.files),
        "files": len(snapshot.files),
        "bytes": sum(file.size for file in snapshot.files),
        "newest": None if latest is None else latest.isoformat(),
        "behind": _behind(store.offsets(), ends) if name in WHOLE else None,
    }


def _behind(offsets: dict[int, int], ends: dict[int, tuple[int, int]]) -> int | None:
    """
    >>> _behind({0: 70}, {0: (0, 100), 1: (10, 15)}), _behind({}, {0: (0, 100)})
    (35, None)
    """
    if not offsets or not ends:
        return None
    return sum(max(0, end - offsets.get(number, first)) for number, (first, end) in ends.items())
