"""`zenlake lake compact`, `retain`, `info` and `sql`: a lake looked after, and looked into.

Knows options and what is shown. Does not know tables: storage/ does, and lake/ for SQL.
"""

import csv
import json as jsonlib
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zenlake.cli import session_options
from zenlake.cli.quantities import counted, size_shown
from zenlake.cli.render.sample import console, print_object, print_text
from zenlake.cli.render.text import escape
from zenlake.errors import ZError

if TYPE_CHECKING:
    from zenlake.lake.tables.compaction import CompactionResult
    from zenlake.lake.tables.retention import RetentionResult
    from zenlake.lake.tables.vacuum import VacuumResult

SHOWN_ROWS = 100  # of an answer, for people
MAX_CELL = 200  # characters of a value, for people

LakeArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of the lake, or its lake.toml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
TableOption = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", metavar="NAME", help="Only this one; may be repeated."),
]


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """What goes wrong is said in one line, and is status 1."""

    @wraps(function)
    def run(*args: Any, **given: Any) -> None:
        try:
            function(*args, **given)
        except ZError as error:
            session_options.fail(f"lake {function.__name__}", error)
        except ModuleNotFoundError as error:
            session_options.fail(
                f"lake {function.__name__}",
                f"{error.name} is not installed: pip install 'zenlake[lake]'",
            )
        except OSError as error:
            if error.filename is None:
                raise  # not about a file: standard output is closed
            session_options.fail(f"lake {function.__name__}", f"{error.filename}: {error.strerror}")

    return run


# ---- compact


@_command
def compact(lake: LakeArgument, table: TableOption = None, json: JsonOption = False) -> None:
    """Merge small files into large ones, and clear the disk of files that no table names.

    It may run beside `zenlake lake run`, which does the same by itself (see [upkeep] in lake.toml).
    Files that have left a table stay on the disk for readers as long as vacuum_after says.

    Exit status: 0 done (or nothing to do), 1 there is no lake, or another upkeep is under way, 2
    wrong usage.

    \b
    Examples:
      zenlake lake compact fleet
      zenlake lake compact fleet --table samples --json
    """
    from zenlake.lake.project import Project
    from zenlake.lake.tables import maintenance

    project = Project.load(lake)
    merged = maintenance.compact(project, table)
    cleared = maintenance.vacuum(project, table)
    for name, done in merged.items():
        if json:
            gone = cleared[name]
            facts = {"removed_files": gone.files, "removed_bytes": gone.bytes}
            print_object({"table": name, **done._asdict(), **facts})
        else:
            print_text(f"{escape(name)}: {_merged_text(done)}; {_cleared_text(cleared[name])}")


def _merged_text(done: "CompactionResult") -> str:
    given_up = f", {counted(done.conflicts, 'merge')} given up to others" if done.conflicts else ""
    if not done.files:
        return f"nothing to merge{given_up}"
    return (
        f"{counted(done.files, 'file')} into {done.into:,}, "
        f"{size_shown(done.bytes_before)} into {size_shown(done.bytes_after)}{given_up}"
    )


def _cleared_text(gone: "VacuumResult") -> str:
    return f"{counted(gone.files, 'old file')} removed, {size_shown(gone.bytes)}"


# ---- retain


@_command
def retain(
    lake: LakeArgument,
    trust_clock: Annotated[
        bool,
        typer.Option(
            "--trust-clock",
            help="Believe this computer's clock even if it is days ahead of the newest row.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove rows that are older than [retention] in lake.toml keeps them.

    One run takes the two oldest days of a table at most, and says if there is more. A clock that is
    more than a day ahead of the newest row is not believed: then the rows decide what time it is.

    Exit status: 0 done (or nothing to do), 1 there is no lake, or another upkeep is under way, 2
    wrong usage.

    \b
    Example:
      zenlake lake retain fleet
    """
    from zenlake.lake.project import Project
    from zenlake.lake.tables import maintenance

    project = Project.load(lake)
    done = maintenance.retain(project, trust_clock=trust_clock)
    for name, one in done.items():
        if json:
            print_object({"table": name, **one._asdict()})
        else:
            print_text(f"{escape(name)}: {_expired_text(one)}")
    if not done and not json:
        print_text("everything is kept for ever: [retention] in lake.toml names no table there is")


def _expired_text(one: "RetentionResult") -> str:
    if one.conflicts:
        return "somebody else changed the same files: the next run tries again"
    before = "" if one.before is None else f" from before {_time_text(one.before)} UTC"
    more = "; there is more, for the next run" if one.more else ""
    return f"{counted(one.rows, 'row')}{before} removed, {size_shown(one.bytes)}{more}"


# ---- info


@_command
def info(lake: LakeArgument, json: JsonOption = False) -> None:
    """Show what a lake holds: the tables, how large and how new they are, how far behind the log.

    Exit status: 0 shown, 1 there is no lake, 2 wrong usage.

    \b
    Examples:
      zenlake lake info fleet
      zenlake lake info fleet --json | jq '.tables[] | select(.table == "samples").behind'
    """
    from rich.table import Table

    from zenlake.lake.project import Project
    from zenlake.lake.tables.table_stats import lake_stats

    facts = lake_stats(Project.load(lake))
    if json:
        print_object(facts)
        return
    shown = Table(title=f"{escape(facts['lake'])}  {escape(facts['home'])}", title_justify="left")
    for name in ("table", "rows", "files", "size", "newest", "behind"):
        shown.add_column(name, justify="left" if name in ("table", "newest") else "right")
    for one in facts["tables"]:
        shown.add_row(
            escape(one["table"]),
            f"{one['rows']:,}",
            f"{one['files']:,}",
            size_shown(one["bytes"]),
            "-" if one["newest"] is None else _time_text(one["newest"]),
            "-" if one["behind"] is None else f"{one['behind']:,}",
        )
    console().print(shown)
    if not facts["tables"]:
        print_text("no tables yet: `zenlake lake run` makes them")


def _time_text(iso: str) -> str:
    return f"{datetime.fromisoformat(iso).astimezone(UTC):%Y-%m-%d %H:%M:%S}"


# ---- sql


@_command
def sql(
    lake: LakeArgument,
    query: Annotated[str, typer.Argument(metavar="SQL", help="One query, in Spark's SQL.")],
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            help=f"Rows at most. Default: {SHOWN_ROWS} for people, else all.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated, with a header.")] = False,
    master: Annotated[str, typer.Option("--master", help="Which Spark runs it.")] = "local[*]",
) -> None:
    """Ask the tables something in SQL. Each is a view by its name: samples, latest, messages ...

    A Spark of its own is started for it, which takes some seconds. Payloads are shown as text if
    they are, else as hexadecimal; in --json and --csv they are base64.

    Exit status: 0 answered, 1 there is no lake, or Spark refuses the query, 2 wrong usage.

    \b
    Examples:
      zenlake lake sql fleet "select key, count(*) from samples group by key"
      zenlake lake sql fleet "select key, value:battery.level::double from messages" --csv
    """
    if json and as_csv:
        raise typer.BadParameter("--json or --csv: not both")
    from zenlake.lake.pipeline import sql as asking
    from zenlake.lake.project import Project

    project = Project.load(lake)
    typer.echo("starting Spark ...", err=True)
    form = "json" if json else "csv" if as_csv else "text"
    people = form == "text" and limit is None
    spark = asking.start_spark(master)
    answer = asking.run_query(
        spark, project, query, limit=SHOWN_ROWS + 1 if people else limit, form=form
    )
    if json:
        for row in answer.rows:
            print_object(jsonlib.loads(row[0] or "{}"))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows(answer.rows)
    else:
        _print_answer(answer.columns, answer.rows, people)


def _print_answer(columns: list[str], rows: Iterator[list[str | None]], cut: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    null = Text("null", "dim")
    shown = Table(*(escape(name) for name in columns))
    count = 0
    for row in islice(rows, SHOWN_ROWS) if cut else rows:
        shown.add_row(*(null if value is None else _cell(value) for value in row))
        count += 1
    console().print(shown)
    more = cut and next(rows, None) is not None
    print_text(counted(count, "row") + (", and there are more: --limit" if more else ""))


def _cell(value: str) -> str:
    return escape(value if len(value) <= MAX_CELL else value[:MAX_CELL] + "...")
