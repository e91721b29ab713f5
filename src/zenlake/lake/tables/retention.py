"""Retention: rows older than the limit leave the tables, by whole files or by rewriting leaves.

Knows ages and how far a clock is trusted. Files are deleted later, by vacuum.py.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from zenlake.lake.tables.compaction import discard_files
from zenlake.lake.tables.delta import CommitConflict, DataFile, DeltaStore

MAX_CLOCK_LEAD = timedelta(days=1)  # Largest believed lead of the clock over the newest row.
MAX_SPAN = timedelta(days=2)  # Time span removed per run, which bounds the harm of a wrong clock.
DAY = timedelta(days=1)
STATS_PRECISION = timedelta(milliseconds=1)  # Precision of the times in Delta statistics.


class RetentionResult(NamedTuple):
    """Rows and files that retention removed from a table."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    before: str | None = None
    "Rows older than this ISO 8601 time are too old."
    more: bool = False
    "Whether rows that are too old remain for the next run."
    conflicts: int = 0
    "1 if a concurrent commit changed the same files: nothing was removed, the next run retries."


class _FileAge(NamedTuple):
    file: DataFile
    first: datetime
    "Lower bound on the times of the rows."
    end: datetime
    "Exclusive upper bound on the times of the rows."


def newest_time(stores: Iterable[DeltaStore]) -> datetime | None:
    """Return the latest time in any of the tables; None if all of them are empty."""
    times = (_bound_time(store, file.high) for store in stores for file in store.snapshot().files)
    return max((time for time in times if time is not None), default=None)


def trusted_now(clock: datetime, newest: datetime | None) -> datetime:
    """Return the time that retention uses: the clock, at most MAX_CLOCK_LEAD after `newest`.

    >>> seen = datetime(2026, 11, 15, tzinfo=UTC)
    >>> trusted_now(seen.replace(year=2036), seen).isoformat()
    '2026-11-16T00:00:00+00:00'
    """
    return clock if newest is None else min(clock, newest + MAX_CLOCK_LEAD)


def expire(store: DeltaStore, keep: float, now: datetime) -> RetentionResult:
    """Remove rows older than `keep` seconds from a table in one commit."""
    before = now - timedelta(seconds=keep)
    ages = _file_ages(store)
    oldest = min((age.first for age in ages), default=before)
    if oldest >= before:
        return RetentionResult(before=before.isoformat())
    limit = min(before, oldest + MAX_SPAN)
    starting = [age for age in ages if age.first < limit]
    whole_files = store.table.leaf_column in (None, store.table.time_column)
    try:
        if whole_files:
            done = _remove_files([age.file for age in starting if age.end <= before], store)
        else:
            done = _rewrite_files([age.file for age in starting], store, limit)
    except CommitConflict:
        return RetentionResult(before=before.isoformat(), more=True, conflicts=1)
    more = any(
        (age.end <= before) if whole_files else (age.first < before) for age in _file_ages(store)
    )
    return done._replace(before=before.isoformat(), more=more)


def _remove_files(files: list[DataFile], store: DeltaStore) -> RetentionResult:
    """Remove whole files from the table without reading them."""
    if files:
        store.commit((), files)
    return RetentionResult(
        sum(file.rows for file in files), len(files), sum(file.size for file in files)
    )


def _rewrite_files(files: list[DataFile], store: DeltaStore, limit: datetime) -> RetentionResult:
    """Write leaves that are not ordered by time again without their old rows."""
    moment = pa.scalar(limit, pa.timestamp("us", "UTC"))
    added, rows = [], 0
    try:
        for file in files:
            table = store.read([file])
            kept = table.filter(pc.greater_equal(table.column(store.table.time_column), moment))
            rows += table.num_rows - kept.num_rows
            if kept.num_rows:
                added.append(store.write_file(kept))
        store.commit(added, files)
    except BaseException:
        discard_files(store, added)
        raise
    size = sum(file.size for file in files) - sum(written.size for written in added)
    return RetentionResult(rows, len(files) - len(added), size)


def _file_ages(store: DeltaStore) -> list[_FileAge]:
    ages = (_file_age(store, file) for file in store.snapshot().files)
    return [age for age in ages if age is not None]


def _file_age(store: DeltaStore, file: DataFile) -> _FileAge | None:
    """Return the age of a file; None if its times are unknown, so that it stays."""
    day = file.partition.get("day")
    if day is not None:
        start = datetime.fromisoformat(day).replace(tzinfo=UTC)
        return _FileAge(file, start, start + DAY)
    first, last = _bound_time(store, file.low), _bound_time(store, file.high)
    if first is None or last is None:
        return None
    return _FileAge(file, first, last + STATS_PRECISION)


def _bound_time(store: DeltaStore, bounds: dict[str, Any]) -> datetime | None:
    found = bounds.get(store.table.time_column or "")
    return found if isinstance(found, datetime) else None
