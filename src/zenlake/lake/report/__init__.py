"""Report of the traffic in a lake: one self-contained HTML page, or a JSON summary.

Knows tables and HTML. Does not know Spark.
"""

import json
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.report.figures import Data
from zenlake.lake.report.page import render_page
from zenlake.lake.report.reading import gather

__all__ = ["ReportSummary", "gather", "render_page", "report"]


class ReportSummary(NamedTuple):
    """Totals of a report."""

    path: Path
    size: int
    "Bytes of the written file."
    samples: int
    bytes: int
    keys: int
    sources: int
    lost: int
    "Samples known to be missing: gaps in source numbers, and samples dropped by the recorder."
    unknown: int
    "Loss records with an unknown number of samples."
    duplicates: int
    stopped: int
    "Keys that have stopped sending."
    failed: int
    "Payloads that could not be decoded."


def report(
    project: Project,
    out: Path | str,
    start: datetime | None = None,
    end: datetime | None = None,
) -> ReportSummary:
    """Write the report of a lake to `out`, for whole minutes from `start` to before `end`.

    A file name that ends in .json gets the totals as JSON instead of the page.
    """
    path = Path(out)
    if not path.parent.is_dir():
        raise ZError(f"there is no folder {path.parent} for the page: make it, or name another")
    data = gather(project, start, end)
    summary = _summarize(data, path)
    if path.suffix.lower() == ".json":
        totals = summary._asdict()
        del totals["path"], totals["size"]
        raw = f"{json.dumps(totals)}\n".encode()
    else:
        raw = render_page(data).encode()
    _write_atomically(path, raw)
    return summary._replace(size=len(raw))


def _summarize(data: Data, path: Path) -> ReportSummary:
    if data["range"] is None:
        return ReportSummary(path, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    total, kinds = data["total"], data["loss"]["kinds"]
    return ReportSummary(
        path,
        0,
        total["samples"],
        total["bytes"],
        total["keys"],
        total["sources"],
        sum(kinds[kind]["count"] for kind in ("source", "dropped") if kind in kinds),
        sum(kind["unknown"] for kind in kinds.values()),
        total["duplicates"],
        data["stopped"]["all"],
        data["failed"]["count"],
    )


def _write_atomically(path: Path, raw: bytes) -> None:
    """Write to a temporary file and rename it, so that readers never see a partial page."""
    draft = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        with draft.open("xb") as file:
            file.write(raw)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
