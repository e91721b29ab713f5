"""Maintenance of a lake: retention, compaction and vacuum of all its tables, and when it is due.

Knows which tables a lake has and the order of the steps. Runs once at a time per lake.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TextIO

import pyarrow as pa
from deltalake import DeltaTable

from zenlake import filelock
from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.tables.compaction import CompactionResult
from zenlake.lake.tables.compaction import compact as compact_table
from zenlake.lake.tables.definitions import TABLES, TableDefinition
from zenlake.lake.tables.delta import LOG, DeltaStore
from zenlake.lake.tables.retention import RetentionResult, expire, newest_time, trusted_now
from zenlake.lake.tables.schema import RECEIVED_AT
from zenlake.lake.tables.vacuum import VacuumResult, tidy_log
from zenlake.lake.tables.vacuum import vacuum as vacuum_table

MARK = ".upkeep"  # File locked during maintenance; its modification time is the end of the last.
RETAINED_LIKE = {"messages_failed": "messages"}
"Tables that follow the retention of another table."


class MaintenanceReport(NamedTuple):
    """Results of maintenance by table."""

    compacted: dict[str, CompactionResult]
    expired: dict[str, RetentionResult]
    vacuumed: dict[str, VacuumResult]


class MaintenanceBusy(ZError):
    """Another process maintains the lake now."""


def open_stores(project: Project, names: Sequence[str] | None = None) -> dict[str, DeltaStore]:
    """Open all tables of a lake, built-in and user-defined, or only those in `names`.

    ZError: a table in `names` does not exist.
    """
    folders = (path.parent for path in project.tables.glob(f"*/{LOG}"))
    present = sorted(folder.name for folder in folders if DeltaTable.is_deltatable(str(folder)))
    for name in names or ():
        if name not in present:
            known = ", ".join(present) or "none yet: `zenlake lake run` makes them"
            raise ZError(f"{project.tables} has no table {name!r}; there are {known}")
    return {
        name: DeltaStore(path, TABLES.get(name) or describe_table(path))
        for name in names or present
        for path in [project.table(name)]
    }


def describe_table(path: Path) -> TableDefinition:
    """Return the definition of a user's table from its Delta metadata."""
    delta = DeltaTable(path)
    columns = pa.schema(delta.schema().to_arrow())
    timed = RECEIVED_AT.name in columns.names and columns.field(RECEIVED_AT.name) == RECEIVED_AT
    return TableDefinition(
        path.name,
        columns,
        next(iter(delta.metadata().partition_columns), None),
        time_column=RECEIVED_AT.name if timed else None,
    )


def compact(project: Project, tables: Sequence[str] | None = None) -> dict[str, CompactionResult]:
    """Merge small files into files near `upkeep.target`; safe beside a running pipeline."""
    with _maintaining(project):
        return _compact(project, tables)


def _compact(project: Project, tables: Sequence[str] | None = None) -> dict[str, CompactionResult]:
    return {
        name: compact_table(store, project.upkeep.target)
        for name, store in open_stores(project, tables).items()
    }


def retain(
    project: Project, now: datetime | None = None, *, trust_clock: bool = False
) -> dict[str, RetentionResult]:
    """Remove rows that are older than [retention] in lake.toml allows.

    Without `trust_clock` the clock counts as at most a day ahead of the newest row. One run
    removes at most two days of each table, which bounds the harm of a clock that jumped.
    """
    with _maintaining(project):
        return _retain(project, now, trust_clock)


def _retain(
    project: Project, now: datetime | None, trust_clock: bool
) -> dict[str, RetentionResult]:
    opened = open_stores(project)
    clock = datetime.now(UTC) if now is None else now
    moment = clock if trust_clock else trusted_now(clock, newest_time(opened.values()))
    limits = {name: project.retention.get(RETAINED_LIKE.get(name, name)) for name in opened}
    return {
        name: expire(store, seconds, moment)
        for name, store in opened.items()
        if (seconds := limits[name]) is not None
    }


def vacuum(project: Project, tables: Sequence[str] | None = None) -> dict[str, VacuumResult]:
    """Delete files that no table has named for longer than `upkeep.vacuum_after`."""
    with _maintaining(project):
        return _vacuum(project, tables)


def _vacuum(project: Project, tables: Sequence[str] | None = None) -> dict[str, VacuumResult]:
    done = {}
    for name, store in open_stores(project, tables).items():
        tidy_log(store, project.upkeep.vacuum_after)
        done[name] = vacuum_table(store, project.upkeep.vacuum_after)
    return done


def run_maintenance(project: Project) -> MaintenanceReport:
    """Run retention, then compaction, then vacuum; compacting expired rows would be wasted."""
    with _maintaining(project):
        expired = _retain(project, None, trust_clock=False)
        return MaintenanceReport(_compact(project), expired, _vacuum(project))


def is_due(project: Project, now: float | None = None) -> bool:
    """Tell whether `upkeep.every` has passed since the last maintenance.

    `now` is in seconds since 1970. A lake that was never maintained is due; a lake without tables,
    or with every = "never", is not.
    """
    every = project.upkeep.every
    if every is None or not project.tables.is_dir():
        return False
    mark = project.tables / MARK
    last = mark.stat().st_mtime if mark.exists() else 0.0
    now = time.time() if now is None else now
    return not last <= now < last + every  # Also due if the clock was set back.


@contextmanager
def maintaining_alone(project: Project, wait: float = 0.0) -> Iterator[TextIO]:
    """Keep maintenance by other processes away from a lake; yields the locked file.

    MaintenanceBusy: another process holds the lock for longer than `wait` seconds.
    """
    if not project.tables.is_dir():
        raise ZError(f"{project.tables} has no tables yet: `zenlake lake run` makes them")
    with (project.tables / MARK).open("a") as mark:
        if not filelock.lock(mark, wait):
            raise MaintenanceBusy(
                f"another upkeep of {project.home} is under way: try again when it has ended"
            )
        yield mark


@contextmanager
def _maintaining(project: Project) -> Iterator[None]:
    """Hold the lock during maintenance, and record its end."""
    with maintaining_alone(project) as mark:
        yield
        mark.truncate(0)
        mark.write(f"{time.time():.0f}\n")
