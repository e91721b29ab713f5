"""`zenlake lake report`: one page of what flowed through a lake.

Knows options and what is shown. Does not know tables: storage/report does.
"""

import json as jsonlib
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zenlake.cli import quantities, session_options
from zenlake.cli.quantities import counted, size_shown
from zenlake.cli.render.text import escape
from zenlake.errors import ZError
from zenlake.quantities import EPOCH

if TYPE_CHECKING:
    from zenlake.lake.report import ReportSummary

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TIME", help="From when on: 2026-11-15T10:00:00Z, or -6h (before now)."
    ),
]
ToOption = Annotated[
    str | None, typer.Option("--to", "--until", metavar="TIME", help="Until when, before it.")
]


def report(
    lake: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of the lake, or its lake.toml.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The page to write; a name that ends in .json gets the JSON object instead.",
        ),
    ] = Path("report.html"),
    start: FromOption = None,
    end: ToOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print what was found as a JSON object.")
    ] = False,
) -> None:
    """Write a page of what flowed: which keys, when, how well, from whom.

    The page is one HTML file that loads nothing: open it anywhere, send it, keep it. Times are
    rounded to whole minutes. Payloads are not read, so it takes seconds.

    Exit status: 0 written, 1 there is no lake or it cannot be read or written, 2 wrong usage.

    \b
    Examples:
      zenlake lake report fleet
      zenlake lake report fleet -o today.html --from -24h
      zenlake lake report fleet -o today.json --from -24h
    """
    times = _moment(start, "--from"), _moment(end, "--to")
    try:
        summary = _written(lake, out, *times)
    except ZError as error:
        session_options.fail("lake report", error)
    except ModuleNotFoundError as error:
        session_options.fail(
            "lake report", f"{error.name} is not installed: pip install 'zenlake[lake]'"
        )
    except OSError as error:
        if error.filename is None:
            raise  # not about a file: standard output is closed
        session_options.fail("lake report", f"{error.filename}: {error.strerror}")
    typer.echo(
        jsonlib.dumps(summary._asdict() | {"path": str(summary.path)}) if json else shown(summary)
    )


def _written(
    lake: Path, out: Path, start: datetime | None, end: datetime | None
) -> "ReportSummary":
    from zenlake.lake.project import Project
    from zenlake.lake.report import report as write

    return write(Project.load(lake), out, start, end)


def _moment(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    return EPOCH + timedelta(microseconds=quantities.moment(text, option) // 1000)


def shown(summary: "ReportSummary") -> str:
    """One line: where the page is, and what it says."""
    flow = (
        f"{counted(summary.samples, 'sample')} of {counted(summary.keys, 'key')}, "
        f"{size_shown(summary.bytes)}"
    )
    lost = (
        f"{summary.lost:,} missing"
        if not summary.unknown
        else f"{summary.lost:,} missing and {counted(summary.unknown, 'loss')} of unknown size"
    )
    failed = counted(summary.failed, "payload")
    rest = f"{counted(summary.stopped, 'key')} stopped, {failed} not decoded"
    return f"{escape(str(summary.path))}: {flow}; {lost}; {rest} ({size_shown(summary.size)})"
