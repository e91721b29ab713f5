"""Removal of tables so that their flows fill them again from the beginning of the log.

Knows which checkpoints go with which tables, and an order that a crash does not harm. Does not
know Spark; the lake must not run meanwhile.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zenlake.checked import suggest
from zenlake.errors import ZError
from zenlake.lake.pipeline.decoder_rules import USED
from zenlake.lake.pipeline.progress import CHECKPOINTS, TABLES_FLOW, flow_progress
from zenlake.lake.project import Project
from zenlake.lake.tables.definitions import LATEST, MESSAGES, MESSAGES_FAILED, TOMBSTONES
from zenlake.lake.tables.delta import LOG, DataFile
from zenlake.lake.tables.maintenance import open_stores
from zenlake.lake.tables.record import TableRecord
from zenlake.lake.tables.table_stats import log_ends

REMOVED = "_removed_log"  # Name of Delta's log while its table is removed: it is not a table then.


@dataclass
class ResetPlan:
    """Tables to remove, the flows whose checkpoints go with them, and rows that are lost."""

    tables: list[str]
    flows: list[str] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)
    "By table the rows, at most, that the log no longer has."


def plan_reset(project: Project, names: Sequence[str]) -> ResetPlan:
    """Find what goes with the tables `names`.

    ZError: there is no such table, or a flow fills others, too, which are not in `names`.
    """
    if TOMBSTONES.name in names:
        raise ZError("`tombstones` go with `latest`: name that instead")
    flows = _flows_by_table(project)
    present = open_stores(project) if project.tables.is_dir() else {}
    known = sorted({*flows, *present} - {TOMBSTONES.name})
    plan = ResetPlan(list(dict.fromkeys(names)))
    for name in plan.tables:
        if name not in known:
            hint = suggest(name, known) if known else "there are none yet"
            raise ZError(f"{project.home} has no table {name!r}; {hint}")
        flow, into = flows.get(name, (TABLES_FLOW, (name,)))
        missing = [table for table in into if table not in names]
        if flow != TABLES_FLOW:
            if missing:
                raise ZError(
                    f"flow {flow!r} fills {name!r} together with {', '.join(missing)}: name them "
                    f"all: zenlake lake reset {project.home} {' '.join(into)}"
                )
            plan.flows += [flow] if flow not in plan.flows else []
    firsts = {number: first for number, (first, _) in log_ends(project).items()}
    plan.lost = {
        name: lost
        for name in plan.tables
        if name in present and (lost := _count_lost(present[name].snapshot().files, firsts))
    }
    return plan


def reset(project: Project, plan: ResetPlan) -> None:
    """Remove the tables, then what says that they were filled: in this order a crash is safe."""
    for name in plan.tables:
        _remove_table(project.table(name))
        if name == LATEST.name:
            _remove_table(project.table(TOMBSTONES.name))
    record = TableRecord(project.state)
    record.replace(record.names() - set(plan.tables))
    if {MESSAGES.name, MESSAGES_FAILED.name} & set(plan.tables):  # Decoded by the present rules.
        (project.state / USED).unlink(missing_ok=True)
    for flow in plan.flows:
        shutil.rmtree(project.state / CHECKPOINTS / flow, ignore_errors=True)


def _flows_by_table(project: Project) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return by table its flow, and all tables of that flow."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for flow in flow_progress(project):
        into = flow.into or (() if flow.flow == TABLES_FLOW else (flow.flow,))
        for table in into:
            if found.get(table, ("",))[0] != TABLES_FLOW:
                found[table] = flow.flow, into
    return found


def _count_lost(files: Sequence[DataFile], firsts: dict[int, int]) -> int:
    """Count the rows of files that begin below the first offset that the log still has.

    Rows without an offset count if the log lacks any.
    """
    first = max(firsts.values(), default=0)
    return sum(file.rows for file in files if file.low.get("offset", 0) < first)


def _remove_table(path: Path) -> None:
    removed = path / REMOVED
    if (path / LOG).is_dir():
        shutil.rmtree(removed, ignore_errors=True)
        (path / LOG).rename(removed)  # From here on it is not a table.
    if removed.is_dir():
        shutil.rmtree(path, ignore_errors=True)
