"""`zenlake lake check` and `reset`.

Knows options and what is printed. Does not know flows or tables: lake/pipeline does.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from zenlake.cli.failure import FAILURE, reports_errors
from zenlake.cli.options import LakeArgument, json_option
from zenlake.cli.printing import print_line, print_text
from zenlake.cli.render.text import escape
from zenlake.errors import ZError
from zenlake.quantities import counted

if TYPE_CHECKING:
    from zenlake.lake.pipeline.check import Finding
    from zenlake.lake.project import Project

JsonOption = Annotated[bool, json_option("Print one JSON object per line.")]


# ---- check


@reports_errors("lake")
def check(
    lake: LakeArgument,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark/--no-spark",
            help="Start Spark and load the transformations, or check only what needs no Spark.",
        ),
    ] = True,
    json: JsonOption = False,
) -> None:
    """Load everything without running it.

    Reads lake.toml, the decoders and the tables, starts Spark, loads every file of
    transformations/ and analyses every flow: its columns, and the tables they go into. Writes
    nothing. A lake that runs is not disturbed.

    Exit status: 0 all is well, 1 something would fail, 2 wrong usage.

    \b
    Examples:
      zenlake lake check fleet
      zenlake lake check fleet --json | jq 'select(.problem)'
    """
    from zenlake.lake.pipeline.check import check_files
    from zenlake.lake.project import Project

    project = Project.load(lake)
    good = True
    for finding in check_files(project):
        good &= _show(finding, json)
    if spark:
        typer.echo("starting Spark ...", err=True)
        with ThreadPoolExecutor(1) as aside:  # On the main thread PySpark would handle SIGINT.
            found = aside.submit(_check_flows, project).result()
        for finding in found:
            good &= _show(finding, json)
    if not good:
        raise typer.Exit(FAILURE)


def _check_flows(project: "Project") -> "list[Finding]":
    import tempfile
    from pathlib import Path

    from zenlake.lake.pipeline.check import check_flows
    from zenlake.lake.pipeline.spark_session import SparkDriver
    from zenlake.lake.pipeline.transformations import load_spec

    conf = load_spec(project).configuration
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(SparkDriver(project.name, "local[1]", conf, Path(folder, "spark.log"))) as driver,
    ):
        return list(check_flows(project, driver.session))


def _show(finding: "Finding", json: bool) -> bool:
    """Print a finding; return whether all is well with it."""
    if json:
        print_line(finding._asdict())
    elif finding.problem is None:
        print_text(f"ok      {escape(finding.what)}: {escape(finding.detail)}")
    else:
        print_text(f"FAILS   {escape(finding.what)}: {escape(finding.problem)}")
    return finding.problem is None


# ---- reset


@reports_errors("lake")
def reset(
    lake: LakeArgument,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="Tables to fill again.")],
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if the log no longer has all rows of these tables."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove tables so that they are filled again from the beginning of the log.

    Removes the tables and what the lake remembers of them; the next `zenlake lake run` fills them.
    Stop the lake first. Tables that one flow fills together are reset together, and so are
    `messages` and `messages_failed`. They can be decoded again from `samples`, which is kept longer
    than the log: zenlake lake reprocess.

    Exit status: 0 done, 1 the lake runs, there is no such table, or rows would be lost, 2 wrong
    usage.

    \b
    Examples:
      zenlake lake reset fleet messages messages_failed
      zenlake lake reset fleet batteries
    """
    from zenlake.lake.pipeline.reset import plan_reset
    from zenlake.lake.pipeline.reset import reset as reset_tables
    from zenlake.lake.pipeline.runner import running_alone
    from zenlake.lake.project import Project

    project = Project.load(lake)
    with running_alone(project):
        plan = plan_reset(project, tables)
        if plan.lost and not force:
            lost = ", ".join(f"{name}: up to {count:,}" for name, count in plan.lost.items())
            raise ZError(
                f"the log no longer has all rows of these tables ({lost} rows would be lost): add "
                "--force to lose them, or decode messages again from samples: "
                "zenlake lake reprocess"
            )
        reset_tables(project, plan)
    for name in plan.tables:
        lost_rows = plan.lost.get(name, 0)
        note = f"; {counted(lost_rows, 'row')} older than the log may be lost" if lost_rows else ""
        text = f"{escape(name)} is removed, and filled from the log by the next run{note}"
        print_line({"table": name, "lost": lost_rows} if json else text)
