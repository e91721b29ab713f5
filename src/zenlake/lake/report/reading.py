"""Data of a report, read from the tables of a lake.

Knows which rows and columns of each table are needed; most come from `health`, and payloads are
never read. Does not know how the data is shown.
"""

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from zenlake import __version__
from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.report.figures import Data, Health, failure_figures, loss_figures
from zenlake.lake.report.span import MINUTE, choose_span, extent
from zenlake.lake.tables.definitions import TABLES
from zenlake.lake.tables.delta import DataFile, DeltaStore
from zenlake.lake.tables.schema import TIME
from zenlake.lake.tables.table_stats import lake_stats

MAX_HEALTH_ROWS = 2_000_000  # Rows of `health` read, newest first; the page says what is left out.
MAX_LOSS_ROWS = 1_000_000  # Rows read of `loss`, and of `messages_failed`.
LATEST = datetime.max.replace(tzinfo=UTC)
ATTEMPTS = 5  # Attempts to read tables whose files may be vacuumed meanwhile.
DERIVED = {
    "rate",
    "latency_median",
    "latency_p99",
}  # Columns that follow from others and are not read.
HEALTH_COLUMNS = tuple(name for name in TABLES["health"].schema.names if name not in DERIVED)
LOSS_COLUMNS = ("at", "kind", "id", "entity", "priority", "reliable", "count")
FAILED_COLUMNS = ("key", "decoder", "reason", "received_at")


class Period:
    """Whole minutes of a report; a bound of None is open."""

    def __init__(self, start: datetime | None, end: datetime | None) -> None:
        self.start = None if start is None else _floor_to_minute(start)
        self.end = (
            None if end is None else _floor_to_minute(end + timedelta(minutes=1, microseconds=-1))
        )
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ZError(f"nothing lies between {start} and {end}: the start comes first")

    def filter(self, column: str) -> pc.Expression | None:
        found = None
        if self.start is not None:
            found = pc.field(column) >= pa.scalar(self.start, TIME)
        if self.end is not None:
            before = pc.field(column) < pa.scalar(self.end, TIME)
            found = before if found is None else found & before
        return found

    def may_contain(self, file: DataFile, column: str) -> bool:
        """Tell whether a file may contain rows of this period."""
        low, high = file.low.get(column), file.high.get(column)
        if low is None or high is None:
            return True
        return (self.end is None or low < self.end) and (self.start is None or high >= self.start)

    def last(self, file: DataFile, column: str) -> datetime:
        """Return an upper bound on the times of a file in this period."""
        most = LATEST if self.end is None else self.end - timedelta(microseconds=1)
        high: datetime = file.high.get(column, most)
        return min(most, high)


def gather(project: Project, start: datetime | None = None, end: datetime | None = None) -> Data:
    """Return the data of a page for the minutes from `start` to before `end`."""
    for _ in range(ATTEMPTS - 1):
        with suppress(FileNotFoundError):  # A file was vacuumed after the listing: list again.
            return _gather(project, Period(start, end))
    return _gather(project, Period(start, end))


def _gather(project: Project, period: Period) -> Data:
    cuts: dict[str, datetime | None] = {}
    health, cuts["health"] = _read_newest(
        project, "health", HEALTH_COLUMNS, period, MAX_HEALTH_ROWS
    )
    if cuts["health"] is not None:
        period.start = cuts["health"]
    loss, cuts["loss"] = _read_newest(project, "loss", LOSS_COLUMNS, period, MAX_LOSS_ROWS)
    failed, cuts["messages_failed"] = _read_newest(
        project, "messages_failed", FAILED_COLUMNS, period, MAX_LOSS_ROWS
    )
    tables = lake_stats(project)["tables"]
    data: Data = {
        "lake": project.name,
        "zenlake": __version__,
        "made": time.time_ns() // 1_000_000,
        "left_out": {name: int(at.timestamp() * 1000) for name, at in cuts.items() if at},
        "tables": [
            [table[name] for name in ("table", "rows", "bytes", "files", "version")]
            for table in tables
            if table["version"] >= 0
        ],
    }
    ends = extent(health["minute"], health["first_seen"], health["last_seen"], loss["at"])
    if ends is None:
        return data | {"range": None}
    span = choose_span(*ends)
    found = Health(health, span)
    seen = extent(health["first_seen"], health["last_seen"]) or ends
    rows = {table["table"]: table["rows"] for table in tables}
    shown = found.names(found.shown.tolist())
    return data | {
        "range": {
            "from": span.start // 1000,
            "width": span.width // 1_000_000,
            "bins": span.bins,
            "first": seen[0] // 1000,
            "last": seen[1] // 1000,
        },
        "total": found.totals()
        | {"live": rows.get("latest", 0), "deleted": rows.get("tombstones", 0)},
        "series": found.series(),
        "keys": found.keys_shown(_read_encodings(project, shown)),
        "rest": found.rest(),
        "latency": found.latency(),
        "loss": loss_figures(loss, span),
        "stopped": found.stopped(lambda names: _find_deleted(project, names)),
        "failed": failure_figures(failed) | {"decoded": _count_rows(project, "messages", period)},
        "sources": found.sources(),
    }


def _store(project: Project, name: str) -> DeltaStore:
    return DeltaStore(project.table(name), TABLES[name])


def _read_newest(
    project: Project, name: str, columns: tuple[str, ...], period: Period, most: int
) -> tuple[pa.Table, datetime | None]:
    """Read about `most` newest rows of a period; return also their start if some were left out."""
    store = _store(project, name)
    column = store.table.time_column
    assert column is not None
    files = [file for file in store.snapshot().files if period.may_contain(file, column)]
    newest = {file.path: period.last(file, column) for file in files}
    files.sort(key=lambda file: newest[file.path], reverse=True)
    chosen: list[DataFile] = []
    rows = 0
    for file in files:
        whole = not chosen or newest[file.path] >= _floor_to_minute(newest[chosen[0].path])
        if not whole and rows + file.rows > most:
            break
        chosen.append(file)
        rows += file.rows
    cut = None
    if len(chosen) < len(files):
        cut = _floor_to_minute(newest[files[len(chosen)].path]) + timedelta(minutes=1)
        period = Period(cut, period.end)
    return store.read(chosen, columns, period.filter(column)), cut


def _count_rows(project: Project, name: str, period: Period) -> int:
    store = _store(project, name)
    files = [file for file in store.snapshot().files if period.may_contain(file, "received_at")]
    wanted = period.filter("received_at")
    if wanted is None:
        return sum(file.rows for file in files)
    return int(store.dataset(files).count_rows(filter=wanted))


def _read_encodings(project: Project, keys: list[str]) -> dict[str, str]:
    """Return the encoding of the latest value of each key."""
    rows = _read_keys(project, "latest", keys, ["key", "encoding"])
    found = zip(rows["key"].to_pylist(), rows["encoding"].to_pylist(), strict=True)
    return {key: encoding for key, encoding in found if encoding}


def _find_deleted(project: Project, keys: list[str]) -> set[str]:
    return set(_read_keys(project, "tombstones", keys, ["key"])["key"].to_pylist())


def _read_keys(project: Project, name: str, keys: list[str], columns: list[str]) -> pa.Table:
    wanted = pc.field("key").isin(pa.array(keys, pa.string()))
    return _store(project, name).read(None, columns, wanted)


def _floor_to_minute(when: datetime) -> datetime:
    micros = (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros // MINUTE * MINUTE)
