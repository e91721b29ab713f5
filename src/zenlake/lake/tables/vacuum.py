"""Vacuum: deletes data files that no table version needs, once no reader can still use them.

Knows a table's folder and the removals in its Delta log. Never deletes files of the newest
snapshot, recent files, symbolic links or anything outside the folder.
"""

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from zenlake.lake.tables.delta import LOG, STAGED, DeltaStore, StoreError

ORPHAN_SECONDS = 86_400.0  # Longest time from writing a file to the commit that names it.
SUFFIX = ".parquet"
LOG_RETENTION_PROPERTY = (
    "delta.logRetentionDuration"  # Table property with the time that commits are kept.
)


class VacuumResult(NamedTuple):
    """Files and bytes that vacuum deleted."""

    files: int = 0
    bytes: int = 0


def vacuum(store: DeltaStore, after: float, now: float | None = None) -> VacuumResult:
    """Delete files removed from the table at least `after` seconds ago, and uncommitted files.

    A file that no commit has named may belong to a running batch, so it is kept for a day.
    """
    now = time.time() if now is None else now
    root = store.path
    orphaned = now - max(after, ORPHAN_SECONDS)
    # List files first: a file committed after the listing is in the snapshot, and a file removed
    # after the snapshot is still in it.
    there = list(_list_files(root))
    named = {file.path for file in store.snapshot().files}
    removed = _removal_times(root, orphaned)
    deleted = []
    for path, found in there:
        name = path.relative_to(root).as_posix()
        if name in named:
            continue
        left = removed.get(name)
        if (found.st_mtime < orphaned) if left is None else (left < now - after):
            with suppress(FileNotFoundError):  # Another process deleted it.
                path.unlink()
                deleted.append(found.st_size)
    _clear_staged(root / STAGED, orphaned)
    return VacuumResult(len(deleted), sum(deleted))


def tidy_log(store: DeltaStore, after: float) -> None:
    """Write a checkpoint of the Delta log and delete older commits that no reader needs.

    Commits are kept longer than the files they removed: vacuum reads removal times from them.
    """
    table = DeltaTable(store.path)
    hours = math.ceil(max(ORPHAN_SECONDS, 2 * after) / 3600)
    interval = f"interval {hours} hours"
    try:
        if table.metadata().configuration.get(LOG_RETENTION_PROPERTY) != interval:
            table.alter.set_table_properties({LOG_RETENTION_PROPERTY: interval})
        table.create_checkpoint()
        table.cleanup_metadata()
    except CommitFailedError:
        return  # A concurrent commit came first: the next run tries again.
    except DeltaError as error:
        raise StoreError(f"{store.path}: the log of commits cannot be tidied: {error}") from error


def _list_files(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the data and staged files of a table; follows no links and enters no other folders."""
    for folder, folders, names in os.walk(root, followlinks=False):
        here = Path(folder)
        staged = here != root and here.relative_to(root).parts[0] == STAGED
        if here == root:
            folders[:] = [name for name in folders if name == STAGED or name[0] not in "_."]
        for name in names:
            path = here / name
            if (staged or name.endswith(SUFFIX)) and not path.is_symlink():
                with suppress(FileNotFoundError):
                    yield path, path.lstat()


def _removal_times(root: Path, since: float) -> dict[str, float]:
    """Return when each file was removed from the table, in seconds, from commits after `since`."""
    removed: dict[str, float] = {}
    for path in sorted((root / LOG).glob("*.json")):
        with suppress(FileNotFoundError), path.open("rb") as commit:
            written = os.fstat(commit.fileno()).st_mtime
            for line in commit if written >= since else ():
                action = json.loads(line).get("remove") if b'"remove"' in line else None
                if action is not None:
                    # Use the later time, so that a clock set back cannot delete a file early.
                    when = max(action.get("deletionTimestamp", 0) / 1000, written)
                    removed[unquote(action["path"])] = when
    return removed


def _clear_staged(folder: Path, before: float) -> None:
    """Delete empty staging folders older than `before`."""
    for place, _, _ in os.walk(folder, topdown=False, followlinks=False):
        with suppress(OSError):  # The folder is not empty, or is gone.
            if Path(place).stat().st_mtime < before:
                Path(place).rmdir()
