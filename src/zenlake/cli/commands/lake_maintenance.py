"""`zenlake lake compact`, `retain`, `info` and `sql`.

Knows options and what is printed. Does not know tables: lake/tables and lake/pipeline do.
"""

import csv
import json as jsonlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from zenlake.cli.failure import reports_errors
from zenlake.cli.options import LakeArgument, json_option
from zenlake.cli.printing import print_line, print_object, print_table, print_text
from zenlake.cli.quantities import format_size
from zenlake.cli.render.text import escape
from zenlake.quantities import counted

if TYPE_CHECKING:
    from zenlake.lake.tables.compaction import CompactionResult
    from zenlake.lake.tables.retention import RetentionResult

PRINTED_ROWS = 100  # Rows of a result that people are shown.
MAX_CELL = 200  # Characters of a value that people are shown.

JsonOption = Annotated[bool, json_option("Print one JSON object per line.")]
TableOption = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", metavar="NAME", help="Only this table; may be repeated."),
]


# ---- compact


@reports_errors("lake")
def compact(lake: LakeArgument, table: TableOption = None, json: JsonOption = False) -> None:
    """Merge small files of the tables, and delete old files.

    It may run beside `zenlake lake run`, which does this by itself (see [upkeep] in lake.toml).
    Files that were merged stay on the disk for readers for the time of vacuum_after.

    Exit status: 0 done (or nothing to do), 1 there is no lake, or another maintenance run is
    active, 2 wrong usage.

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
        gone = cleared[name]
        removed = {"removed_files": gone.files, "removed_bytes": gone.bytes}
        old = f"{counted(gone.files, 'old file')} removed, {format_size(gone.bytes)}"
        text = f"{escape(name)}: {_format_merged(done)}; {old}"
        print_line({"table": name, **done._asdict(), **removed} if json else text)


def _format_merged(done: "CompactionResult") -> str:
    given_up = (
        f", {counted(done.conflicts, 'merge')} left out: another writer changed the files"
        if done.conflicts
        else ""
    )
    if not done.files:
        return f"nothing to merge{given_up}"
    return (
        f"{counted(done.files, 'file')} into {done.into:,}, "
        f"{format_size(done.bytes_before)} into {format_size(done.bytes_after)}{given_up}"
    )


# ---- retain


@reports_errors("lake")
def retain(
    lake: LakeArgument,
    trust_clock: Annotated[
        bool,
        typer.Option(
            "--trust-clock",
            help="Trust this computer's clock even if it is days ahead of the newest row.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove rows that are older than [retention] allows.

    One run removes at most the two oldest days of a table, and says if there are more. If the clock
    is more than a day ahead of the newest row, the time of that row is used instead.

    Exit status: 0 done (or nothing to do), 1 there is no lake, or another maintenance run is
    active, 2 wrong usage.

    \b
    Example:
      zenlake lake retain fleet
    """
    from zenlake.lake.project import Project
    from zenlake.lake.tables import maintenance

    project = Project.load(lake)
    done = maintenance.retain(project, trust_clock=trust_clock)
    for name, expired in done.items():
        text = f"{escape(name)}: {_format_expired(expired)}"
        print_line({"table": name, **expired._asdict()} if json else text)
    if not done and not json:
        print_text("nothing to remove: [retention] in lake.toml names no table of this lake")


def _format_expired(expired: "RetentionResult") -> str:
    if expired.conflicts:
        return "another writer changed these files: the next run tries again"
    before = "" if expired.before is None else f" from before {_format_time(expired.before)} UTC"
    more = "; there is more, for the next run" if expired.more else ""
    return f"{counted(expired.rows, 'row')}{before} removed, {format_size(expired.bytes)}{more}"


# ---- info


@reports_errors("lake")
def info(lake: LakeArgument, json: JsonOption = False) -> None:
    """Show the tables: rows, size, newest row, the flow that fills it, samples behind.

    `behind` counts the samples of the log that the flow of a table has not taken yet.

    Exit status: 0 done, 1 there is no lake, 2 wrong usage.

    \b
    Examples:
      zenlake lake info fleet
      zenlake lake info fleet --json | jq '.tables[] | select(.table == "samples").behind'
    """
    from rich.table import Table

    from zenlake.lake.pipeline.progress import (
        count_behind,
        durable_offsets,
        flow_progress,
        is_replaced,
        table_offsets,
    )
    from zenlake.lake.project import Project
    from zenlake.lake.tables.table_stats import lake_stats

    project = Project.load(lake)
    facts = lake_stats(project, table_offsets(project))
    durable, found = durable_offsets(project), flow_progress(project)
    facts["flows"] = [
        {
            "flow": flow.flow,
            "into": list(flow.into),
            "behind": count_behind(durable, {} if flow.taken is None else flow.taken.offsets),
            "at": None if flow.taken is None else flow.taken.at,
        }
        for flow in found
        if not is_replaced(flow, found)
    ]
    flows = {table: flow["flow"] for flow in facts["flows"] for table in flow["into"]}
    if json:
        print_object(facts)
        return
    table = Table(title=f"{escape(facts['lake'])}  {escape(facts['home'])}", title_justify="left")
    for name in ("table", "rows", "files", "size", "newest", "flow", "behind"):
        left = name in ("table", "newest", "flow")
        table.add_column(name, justify="left" if left else "right")
    for row in facts["tables"]:
        table.add_row(
            escape(row["table"]),
            f"{row['rows']:,}",
            f"{row['files']:,}",
            format_size(row["bytes"]),
            "-" if row["newest"] is None else _format_time(row["newest"]),
            escape(flows.get(row["table"], "-")),
            "-" if row["behind"] is None else f"{row['behind']:,}",
        )
    print_table(table)
    for flow in facts["flows"]:
        if not flow["into"]:
            print_text(f"flow {escape(flow['flow'])}: {flow['behind']:,} behind, no rows yet")
    if not facts["tables"]:
        print_text("no tables yet: `zenlake lake run` creates them")


def _format_time(iso: str) -> str:
    return f"{datetime.fromisoformat(iso).astimezone(UTC):%Y-%m-%d %H:%M:%S}"


# ---- sql


@reports_errors("lake")
def sql(
    lake: LakeArgument,
    query: Annotated[str, typer.Argument(metavar="SQL", help="One statement of Spark SQL.")],
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            help=f"Largest number of rows. Default: {PRINTED_ROWS} in a table, else all.",
        ),
    ] = None,
    json: Annotated[bool, json_option("Print one JSON object per row, one per line.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print comma-separated values with a header.")
    ] = False,
    master: Annotated[
        str, typer.Option("--master", metavar="URL", help="Spark master that runs the query.")
    ] = "local[*]",
) -> None:
    """Query the tables in SQL.

    Each table is a view: samples, latest, messages ... The command starts Spark, which takes some
    seconds. Payloads are printed as text if possible, else as hexadecimal; in --json and --csv
    they are base64.

    Exit status: 0 done, 1 there is no lake, or Spark rejects the query, 2 wrong usage.

    \b
    Examples:
      zenlake lake sql fleet "select key, count(*) from samples group by key"
      zenlake lake sql fleet "select key, value:battery.level::double from messages" --csv
    """
    if json and as_csv:
        raise typer.BadParameter("--json or --csv: not both")
    from zenlake.lake.pipeline import sql as spark_sql
    from zenlake.lake.project import Project

    project = Project.load(lake)
    typer.echo("starting Spark ...", err=True)
    form = "json" if json else "csv" if as_csv else "text"
    people = form == "text" and limit is None
    spark = spark_sql.start_spark(master)
    answer = spark_sql.run_query(
        spark, project, query, limit=PRINTED_ROWS + 1 if people else limit, form=form
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
    table = Table(*(escape(name) for name in columns))
    count = 0
    for row in islice(rows, PRINTED_ROWS) if cut else rows:
        table.add_row(*(null if value is None else _shorten(value) for value in row))
        count += 1
    print_table(table)
    more = cut and next(rows, None) is not None
    print_text(counted(count, "row") + (", and there are more: --limit" if more else ""))


def _shorten(value: str) -> str:
    return escape(value if len(value) <= MAX_CELL else value[:MAX_CELL] + "...")
