"""`zenlake lake report`: an HTML page about the samples of a lake.

Knows options and what is printed. Does not know tables: lake/report does.
"""

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zenlake.cli import quantities
from zenlake.cli.failure import reports_errors
from zenlake.cli.options import LakeArgument, json_option
from zenlake.cli.printing import print_line
from zenlake.cli.quantities import format_size
from zenlake.cli.render.text import escape
from zenlake.quantities import EPOCH, counted

if TYPE_CHECKING:
    from zenlake.lake.report import ReportSummary

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="Begin at this time: 2026-11-15T10:00:00Z, or -6h (six hours ago).",
    ),
]
ToOption = Annotated[
    str | None, typer.Option("--to", "--until", metavar="TIME", help="End before this time.")
]


@reports_errors("lake")
def report(
    lake: LakeArgument,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Page to write; a name that ends in .json gets the JSON object instead.",
        ),
    ] = Path("report.html"),
    start: FromOption = None,
    end: ToOption = None,
    json: Annotated[bool, json_option("Print the summary as a JSON object.")] = False,
) -> None:
    """Write an HTML page about the samples.

    It shows keys, rates, losses, latencies and sources, in one HTML file that loads nothing from
    the network. Times are rounded to whole minutes. Payloads are not read, so it takes seconds.

    Exit status: 0 the page is written, 1 there is no lake or it cannot be read or written, 2 wrong
    usage.

    \b
    Examples:
      zenlake lake report fleet
      zenlake lake report fleet -o today.html --from -24h
      zenlake lake report fleet -o today.json --from -24h
    """
    from zenlake.lake.project import Project
    from zenlake.lake.report import report as write_report

    times = _parse_moment(start, "--from"), _parse_moment(end, "--to")
    summary = write_report(Project.load(lake), out, *times)
    fields = summary._asdict() | {"path": str(summary.path)}
    print_line(fields if json else format_summary(summary))


def _parse_moment(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    return EPOCH + timedelta(microseconds=quantities.moment(text, option) // 1000)


def format_summary(summary: "ReportSummary") -> str:
    """Return one line: the path of the page, and its totals."""
    totals = (
        f"{counted(summary.samples, 'sample')} of {counted(summary.keys, 'key')}, "
        f"{format_size(summary.bytes)}"
    )
    lost = (
        f"{summary.lost:,} missing"
        if not summary.unknown
        else f"{summary.lost:,} missing and {counted(summary.unknown, 'loss')} of unknown size"
    )
    failed = counted(summary.failed, "payload")
    rest = f"{counted(summary.stopped, 'key')} stopped, {failed} not decoded"
    return f"{escape(str(summary.path))}: {totals}; {lost}; {rest} ({format_size(summary.size)})"
