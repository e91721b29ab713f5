"""Report of the traffic in a lake: one self-contained HTML page, or a JSON summary.

Knows tables and HTML. Does not know Spark.
"""

import json
import os
import tempfile
from datetime import datetime
from pathlib import Path
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
    text = _summary_json(data, path) if path.suffix.lower() == ".json" else render_page(data)
    _write_atomically(path, text)
    return _summarize(data, path, len(text.encode()))


def _summary_json(data: Data, path: Path) -> str:
    found = _summarize(data, path, 0)._asdict()
    return json.dumps({name: found[name] for name in found if name not in ("path", "size")}) + "\n"


def _summarize(data: Data, path: Path, size: int) -> ReportSummary:
    if data["range"] is None:
        return ReportSummary(path, size, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    total, kinds = data["total"], data["loss"]["kinds"]
    return ReportSummary(
        path,
        size,
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


def _write_atomically(path: Path, text: str) -> None:
    """Write to a temporary file and rename it, so that readers never see a partial page."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        name = Path(file.name)
        try:
            file.write(text)
            file.close()
            name.chmod(0o666 & ~_umask())
            name.replace(path)
        except BaseException:
            name.unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
