"""Removal of tables so that their flows fill them again from the beginning of the log.

Knows which checkpoints go with which tables, and an order that a crash does not harm. Does not
know Spark; the lake must not run meanwhile.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from zenlake.checked import suggest
from zenlake.errors import ZError
from zenlake.lake.pipeline.decoder_rules import USED
from zenlake.lake.pipeline.progress import (
    CHECKPOINTS,
    TABLES_FLOW,
    FlowProgress,
    flow_progress,
    log_id,
)
from zenlake.lake.pipeline.queries import remote_storage
from zenlake.lake.pipeline.transformations import load_spec
from zenlake.lake.project import Project
from zenlake.lake.tables.commit import LOG_APP, log_number
from zenlake.lake.tables.definitions import DECODED, LATEST, TABLES, TOMBSTONES
from zenlake.lake.tables.delta import LOG, DeltaStore
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
    plan = ResetPlan(_with_pair(names, {name for name in known if _is_built_in(name, flows)}))
    for name in plan.tables:
        if name not in known:
            hint = suggest(name, known) if known else "there are none yet"
            raise ZError(f"{project.home} has no table {name!r}; {hint}")
        flow, into = flows.get(name, (TABLES_FLOW, (name,)))
        missing = [table for table in into if table not in plan.tables]
        if flow != TABLES_FLOW and missing:
            raise ZError(
                f"flow {flow!r} fills {name!r} together with {', '.join(missing)}: name them all: "
                f"zenlake lake reset {project.home} {' '.join(into)}"
            )
    progress = flow_progress(project)
    plan.flows = [flow.flow for flow in progress if _goes_with(flow, plan.tables)]
    _check_storage(project, plan)
    ends, log = log_ends(project), log_id(project)
    for name in plan.tables:
        taken = [flow.taken.offsets for flow in progress if flow.taken and name in _into(flow)]
        if name in present and (lost := _count_lost(present[name], ends, log, taken)):
            plan.lost[name] = lost
    return plan


def _goes_with(flow: FlowProgress, tables: Sequence[str]) -> bool:
    """Tell whether the checkpoint of a flow says nothing but that these tables were filled."""
    return flow.flow != TABLES_FLOW and set(_into(flow)) <= set(tables)


def _into(flow: FlowProgress) -> tuple[str, ...]:
    """Return the tables of a flow. Without a record it is the table of its own name."""
    return flow.into or (() if flow.flow == TABLES_FLOW else (flow.flow,))


def _is_built_in(name: str, flows: Mapping[str, tuple[str, tuple[str, ...]]]) -> bool:
    """Tell whether a table is filled by its line, in `lake run` or in a pipeline of Spark."""
    return name in TABLES and flows.get(name, (TABLES_FLOW,))[0] in (TABLES_FLOW, name)


def _with_pair(names: Sequence[str], built_in: set[str]) -> list[str]:
    """Return the names, with both decoded tables if one of them is named.

    The decoders, which may have changed, decide into which of the two each sample goes.
    """
    pair = [name for name in DECODED if name in built_in]
    return list(dict.fromkeys([*names, *(pair if set(pair) & set(names) else ())]))


def _check_storage(project: Project, plan: ResetPlan) -> None:
    """Raise ZError if checkpoints that go with the tables are not in the state folder."""
    storage = remote_storage(load_spec(project).storage) if plan.flows else None
    if storage is not None:
        places = ", ".join(f"{storage}/{CHECKPOINTS}/{flow}" for flow in plan.flows)
        raise ZError(
            f"the checkpoints of these tables are not in {project.state}: remove {places} and the "
            f"folders of the tables {', '.join(plan.tables)} while the lake does not run"
        )


def reset(project: Project, plan: ResetPlan) -> None:
    """Remove the tables, then what says that they were filled.

    In this order a crash leaves a lake that refuses to run until it is reset again.
    """
    for name in plan.tables:
        _remove_table(project.table(name))
        if name == LATEST.name:
            _remove_table(project.table(TOMBSTONES.name))
    record = TableRecord(project.state)
    record.replace(record.names() - set(plan.tables))
    if set(DECODED) & set(plan.tables):  # They are decoded by the present rules.
        (project.state / USED).unlink(missing_ok=True)
    for flow in plan.flows:
        _remove_checkpoint(project.state, flow)


def _flows_by_table(project: Project) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return by table its flow, and all tables of that flow."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for flow in flow_progress(project):
        into = _into(flow)
        for table in into:
            if found.get(table, ("",))[0] != TABLES_FLOW:
                found[table] = flow.flow, into
    return found


def _count_lost(
    store: DeltaStore,
    ends: Mapping[int, tuple[int, int]],
    log: str,
    taken: Sequence[Mapping[int, int]],
) -> int:
    """Count the rows that the log can not give again, at most.

    These are the rows of files that begin below its first offset; rows without an offset count if
    it lacks any. If it is another log, ends before the table does, lacks one of its partitions, or
    is not there, all rows count. `taken` has the offsets in this log of flows that fill the table.
    """
    files = store.snapshot().files
    is_other = store.transaction(LOG_APP) not in (None, log_number(log)) or not all(taken)
    reached = [(n, at) for offsets in (store.offsets(), *taken) for n, at in offsets.items()]
    if not ends or is_other or any(at > ends.get(n, (0, 0))[1] for n, at in reached):
        return sum(file.rows for file in files)
    first = max(first for first, _ in ends.values())
    return sum(file.rows for file in files if file.low.get("offset", 0) < first)


def _remove_checkpoint(state: Path, flow: str) -> None:
    """Remove the folder of a flow's checkpoint and its record of tables, at once."""
    removed = state / f"_removed_{flow}"
    shutil.rmtree(removed, ignore_errors=True)
    with suppress(FileNotFoundError):
        (state / CHECKPOINTS / flow).rename(removed)
        shutil.rmtree(removed)


def _remove_table(path: Path) -> None:
    removed = path / REMOVED
    if (path / LOG).is_dir():
        shutil.rmtree(removed, ignore_errors=True)
        (path / LOG).rename(removed)  # From here on it is not a table.
    if removed.is_dir():
        shutil.rmtree(path, ignore_errors=True)
