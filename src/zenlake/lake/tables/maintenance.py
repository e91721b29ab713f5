"""A lake kept in shape: files compacted, what is too old removed, the disk cleared; and due when.

Knows which tables a lake has and the order of things. One upkeep of a lake runs at a time.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from zenlake import filelock
from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.tables.compaction import Compacted
from zenlake.lake.tables.compaction import compact as compact_table
from zenlake.lake.tables.definitions import TABLES, TableDefinition
from zenlake.lake.tables.delta import LOG, DeltaStore
from zenlake.lake.tables.retention import Expired, expire, newest, trusted_now
from zenlake.lake.tables.vacuum import Vacuumed, tidy_log
from zenlake.lake.tables.vacuum import vacuum as vacuum_table

MARK = ".upkeep"  # locked while upkeep runs; its time is when the last one ended
KEPT_AS = {"messages_failed": "messages"}
"Tables that are kept as long as another."


class MaintenanceReport(NamedTuple):
    """What upkeep did, by table."""

    compacted: dict[str, Compacted]
    expired: dict[str, Expired]
    vacuumed: dict[str, Vacuumed]


class MaintenanceBusy(ZError):
    """Another upkeep of the same lake is under way."""


def stores(project: Project, names: Sequence[str] | None = None) -> dict[str, DeltaStore]:
    """The tables that there are, or those of `names`: the lake's own and its user's.

    ZError: one of `names` is not there.
    """
    folders = (path.parent for path in project.tables.glob(f"*/{LOG}"))
    there = sorted(one.name for one in folders if DeltaTable.is_deltatable(str(one)))
    for name in names or ():
        if name not in there:
            known = ", ".join(there) or "none yet: `zenlake lake run` makes them"
            raise ZError(f"{project.tables} has no table {name!r}; there are {known}")
    return {
        name: DeltaStore(path, TABLES.get(name) or described(path))
        for name in names or there
        for path in [project.table(name)]
    }


def described(path: Path) -> TableDefinition:
    """A table that its user made, as Delta describes it."""
    delta = DeltaTable(path)
    return TableDefinition(
        path.name,
        pa.schema(delta.schema().to_arrow()),
        next(iter(delta.metadata().partition_columns), None),
    )


def compact(project: Project, tables: Sequence[str] | None = None) -> dict[str, Compacted]:
    """Small files into files near `upkeep.target`; safe beside a running pipeline."""
    with _alone(project):
        return _compact(project, tables)


def _compact(project: Project, tables: Sequence[str] | None = None) -> dict[str, Compacted]:
    return {
        name: compact_table(store, project.upkeep.target)
        for name, store in stores(project, tables).items()
    }


def retain(
    project: Project, now: datetime | None = None, *, trust_clock: bool = False
) -> dict[str, Expired]:
    """What [retention] says: rows that are too old leave the tables.

    A clock that is more than a day ahead of the newest row is not believed, unless `trust_clock`,
    and one run takes two days of each table at most: so a clock that jumped costs little.
    """
    with _alone(project):
        return _retain(project, now, trust_clock)


def _retain(project: Project, now: datetime | None, trust_clock: bool) -> dict[str, Expired]:
    opened = stores(project)
    clock = datetime.now(UTC) if now is None else now
    moment = clock if trust_clock else trusted_now(clock, newest(opened.values()))
    kept = {name: project.retention.get(KEPT_AS.get(name, name)) for name in opened}
    return {
        name: expire(store, seconds, moment)
        for name, store in opened.items()
        if (seconds := kept[name]) is not None
    }


def vacuum(
    project: Project, tables: Sequence[str] | None = None, now: float | None = None
) -> dict[str, Vacuumed]:
    """Files that no table names any more, older than `upkeep.vacuum_after`, leave the disk."""
    with _alone(project):
        return _vacuum(project, tables, now)


def _vacuum(
    project: Project, tables: Sequence[str] | None = None, now: float | None = None
) -> dict[str, Vacuumed]:
    done = {}
    for name, store in stores(project, tables).items():
        tidy_log(store, project.upkeep.vacuum_after)
        done[name] = vacuum_table(store, project.upkeep.vacuum_after, now)
    return done


def run_maintenance(project: Project) -> MaintenanceReport:
    """All of it: retention first, so that nothing is compacted that goes anyway."""
    with _alone(project):
        expired = _retain(project, None, trust_clock=False)
        return MaintenanceReport(_compact(project), expired, _vacuum(project))


def due(project: Project, last: float | None = None, now: float | None = None) -> bool:
    """Whether `upkeep.every` has passed since `last`; None: since the last one of anybody.

    Times are seconds since 1970. A lake that never had an upkeep is due; one without tables, or
    with every = "never", is not.
    """
    every = project.upkeep.every
    if every is None or not project.tables.is_dir():
        return False
    if last is None:
        mark = project.tables / MARK
        last = mark.stat().st_mtime if mark.exists() else 0.0
    now = time.time() if now is None else now
    return not last <= now < last + every  # a clock that was set back makes it due


@contextmanager
def _alone(project: Project) -> Iterator[None]:
    """Busy: somebody else does the same."""
    if not project.tables.is_dir():
        raise ZError(f"{project.tables} has no tables yet: `zenlake lake run` makes them")
    with (project.tables / MARK).open("a") as mark:
        if not filelock.lock(mark):
            raise MaintenanceBusy(f"another upkeep of {project.home} is under way: let it end")
        yield
        mark.truncate(0)
        mark.write(f"{time.time():.0f}\n")
