"""What is older than it is kept leaves the tables: whole days, whole leaves, old tombstones.

Knows ages and how far a clock is trusted. Files leave the disk later: see vacuum.py.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from zenlake.lake.tables.compaction import discard
from zenlake.lake.tables.delta import Conflict, DeltaStore, File

TRUSTED = timedelta(days=1)  # a clock further ahead of the newest row than this is not believed
MAX_SPAN = timedelta(days=2)  # of the oldest rows, in one run: a wrong clock costs no more
DAY = timedelta(days=1)
STATISTICS = timedelta(milliseconds=1)  # as exact as writers of Delta have to be


class Expired(NamedTuple):
    """What retention took out of a table."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    before: str | None = None
    "Rows from before then are too old: a time, as ISO 8601 has it."
    more: bool = False
    "There is more that is too old, for the next run."
    conflicts: int = 0
    "1: somebody else changed the same files; nothing was done, and the next run tries again."


class _Aged(NamedTuple):
    file: File
    first: datetime
    "No row is from before."
    end: datetime
    "All rows are from before."


def newest(stores: Iterable[DeltaStore]) -> datetime | None:
    """The latest time that any table has seen; None if they are all empty."""
    times = (_time(store, file.high) for store in stores for file in store.snapshot().files)
    return max((time for time in times if time is not None), default=None)


def trusted_now(clock: datetime, newest: datetime | None) -> datetime:
    """What time it is, for whoever is about to remove things: the clock's, within limits.

    >>> seen = datetime(2026, 11, 15, tzinfo=UTC)
    >>> believed(seen.replace(year=2036), seen).isoformat()
    '2026-11-16T00:00:00+00:00'
    """
    return clock if newest is None else min(clock, newest + TRUSTED)


def expire(store: DeltaStore, keep: float, now: datetime) -> Expired:
    """Takes what is older than `keep` seconds out of a table, in one commit."""
    before = now - timedelta(seconds=keep)
    ages = _ages(store)
    oldest = min((aged.first for aged in ages), default=before)
    if oldest >= before:
        return Expired(before=before.isoformat())
    limit = min(before, oldest + MAX_SPAN)
    starting = [aged for aged in ages if aged.first < limit]
    whole = store.table.place in (None, store.table.time)
    try:
        if whole:
            done = _remove([aged.file for aged in starting if aged.end <= before], store)
        else:
            done = _rewrite([aged.file for aged in starting], store, limit)
    except Conflict:
        return Expired(before=before.isoformat(), more=True, conflicts=1)
    more = any((aged.end <= before) if whole else (aged.first < before) for aged in _ages(store))
    return done._replace(before=before.isoformat(), more=more)


def _remove(files: list[File], store: DeltaStore) -> Expired:
    """Metadata only: what the files hold is not read."""
    if files:
        store.commit((), files)
    return Expired(sum(file.rows for file in files), len(files), sum(file.size for file in files))


def _rewrite(files: list[File], store: DeltaStore, limit: datetime) -> Expired:
    """Leaves that are placed by something else: written again without their old rows."""
    moment = pa.scalar(limit, pa.timestamp("us", "UTC"))
    added, rows = [], 0
    try:
        for file in files:
            table = store.read([file])
            kept = table.filter(pc.greater_equal(table.column(store.table.time), moment))
            rows += table.num_rows - kept.num_rows
            if kept.num_rows:
                added.append(store.write_file(kept))
        store.commit(added, files)
    except BaseException:
        discard(store, added)
        raise
    size = sum(file.size for file in files) - sum(one.size for one in added)
    return Expired(rows, len(files) - len(added), size)


def _ages(store: DeltaStore) -> list[_Aged]:
    found = (_aged(store, file) for file in store.snapshot().files)
    return [aged for aged in found if aged is not None]


def _aged(store: DeltaStore, file: File) -> _Aged | None:
    """How old the rows of a file are; None: nobody knows, and they stay."""
    day = file.partition.get("day")
    if day is not None:
        start = datetime.fromisoformat(day).replace(tzinfo=UTC)
        return _Aged(file, start, start + DAY)
    first, last = _time(store, file.low), _time(store, file.high)
    if first is None or last is None:
        return None
    return _Aged(file, first, last + STATISTICS)


def _time(store: DeltaStore, bounds: dict[str, Any]) -> datetime | None:
    found = bounds.get(store.table.time or "")
    return found if isinstance(found, datetime) else None
