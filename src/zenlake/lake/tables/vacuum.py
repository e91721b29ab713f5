"""Files that no table names any more leave the disk, once no reader can still want them.

Knows a table's folder and the removals in its Delta log. Touches nothing that the newest snapshot
names, nothing that is young, nothing behind a link, and nothing outside of the folder.
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

ORPHAN_SECONDS = 86_400.0  # between a file and the commit that names it: no batch takes as long
SUFFIX = ".parquet"
LOG_KEPT = "delta.logRetentionDuration"  # the table property that says how long commits stay


class Vacuumed(NamedTuple):
    """What left the disk."""

    files: int = 0
    bytes: int = 0

    def plus(self, other: "Vacuumed") -> "Vacuumed":
        return Vacuumed(self.files + other.files, self.bytes + other.bytes)


def vacuum(store: DeltaStore, after: float, now: float | None = None) -> Vacuumed:
    """Removes files that left the table `after` seconds ago, and those that never came into it.

    A file that no commit ever named may belong to a batch that is under way: it goes after a day.
    """
    now = time.time() if now is None else now
    root = store.path
    orphaned = now - max(after, ORPHAN_SECONDS)
    # In this order: what is committed behind the list is named by the snapshot, and what is removed
    # behind the snapshot is still named by it.
    there = [(path, *_facts(path)) for path in _files(root)]
    named = {file.path for file in store.snapshot().files}
    removed = _removals(root, orphaned)
    done = Vacuumed()
    for path, size, written in there:
        name = path.relative_to(root).as_posix()
        if name in named or size is None or written is None:
            continue
        left = removed.get(name)
        if (written < orphaned) if left is None else (left < now - after):
            with suppress(FileNotFoundError):  # somebody else was faster
                path.unlink()
                done = done.plus(Vacuumed(1, size))
    _clear_staged(root / STAGED, orphaned)
    return done


def tidy_log(store: DeltaStore, after: float) -> None:
    """A checkpoint of the Delta log; commits before it that nobody needs any more go.

    They are kept longer than the files that they removed, as those are told by them.
    """
    table = DeltaTable(store.path)
    hours = math.ceil(max(ORPHAN_SECONDS, 2 * after) / 3600)
    kept = f"interval {hours} hours"
    try:
        if table.metadata().configuration.get(LOG_KEPT) != kept:
            table.alter.set_table_properties({LOG_KEPT: kept})
        table.create_checkpoint()
        table.cleanup_metadata()
    except CommitFailedError:
        return  # others committed meanwhile: the next run does it
    except DeltaError as error:
        raise StoreError(f"{store.path}: the log of commits cannot be tidied: {error}") from error


def _files(root: Path) -> Iterator[Path]:
    """Data files below a table's folder: links are not followed, other folders not entered."""
    for folder, folders, names in os.walk(root, followlinks=False):
        here = Path(folder)
        staged = here != root and here.relative_to(root).parts[0] == STAGED
        if here == root:
            folders[:] = [name for name in folders if name == STAGED or name[0] not in "_."]
        for name in names:
            path = here / name
            if (staged or name.endswith(SUFFIX)) and not path.is_symlink():
                yield path


def _facts(path: Path) -> tuple[int, float] | tuple[None, None]:
    with suppress(FileNotFoundError):
        found = path.lstat()
        return found.st_size, found.st_mtime
    return None, None


def _removals(root: Path, since: float) -> dict[str, float]:
    """When each file was removed from the table, by the commits since then; seconds."""
    removed: dict[str, float] = {}
    for path in sorted((root / LOG).glob("*.json")):
        with suppress(FileNotFoundError), path.open("rb") as commit:
            written = os.fstat(commit.fileno()).st_mtime
            for line in commit if written >= since else ():
                action = json.loads(line).get("remove") if b'"remove"' in line else None
                if action is not None:
                    # The later of two: a clock that was set back must not let a file go early.
                    when = max(action.get("deletionTimestamp", 0) / 1000, written)
                    removed[unquote(action["path"])] = when
    return removed


def _clear_staged(folder: Path, before: float) -> None:
    """Folders in which nothing is staged any more."""
    for place, _, _ in os.walk(folder, topdown=False, followlinks=False):
        with suppress(OSError):  # something is in it, or it has gone
            if Path(place).stat().st_mtime < before:
                Path(place).rmdir()
