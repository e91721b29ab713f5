"""`zenlake lake`: the group of commands, and `init`; the others are in modules of their own.

Knows options and what is printed. Does not know how a lake is created: lake/ does.
"""

import re
from pathlib import Path
from typing import Annotated

import typer

from zenlake.cli import session_options
from zenlake.cli.commands.lake_maintenance import compact, info, retain, sql
from zenlake.cli.commands.lake_repair import check, reset
from zenlake.cli.commands.lake_report import report
from zenlake.cli.commands.lake_reprocess import reprocess
from zenlake.cli.commands.lake_run import run
from zenlake.cli.failure import reports_errors
from zenlake.cli.options import command_group
from zenlake.cli.printing import print_text
from zenlake.cli.render.text import escape

MAX_NAME = 64  # Longest name of a lake, in characters.

lake = command_group("Create, run, query and maintain Delta tables of samples.")


@lake.command()
@reports_errors("lake")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the lake; created if missing.")
    ],
    connect: Annotated[
        list[str] | None,
        typer.Option(
            "--connect",
            "-e",
            metavar="ENDPOINT",
            help="Endpoint to record from, such as tcp/127.0.0.1:7447; may be repeated. Without "
            "it the lake records nothing itself.",
        ),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key", "-k", metavar="KEYEXPR", help="Keys to record; may be repeated. Default: **"
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the lake (default: the folder's name).")
    ] = None,
) -> None:
    """Create a folder with settings and transformations.

    Exit status: 0 created, 1 there is one already, or it cannot be written, 2 wrong usage.

    \b
    Examples:
      zenlake lake init fleet -e tcp/127.0.0.1:7447 -k 'robot/**'
      zenlake lake run fleet
    """
    from zenlake.lake.scaffold import create_project

    if keys and not connect:
        raise typer.BadParameter("--key: name whom to record from, too: --connect ENDPOINT")
    endpoints = [session_options.check_endpoint(text) for text in connect or []]
    checked = [session_options.check_key_expr(key) for key in keys or ["**"]]
    project = create_project(folder, name or suggest_name(folder), endpoints, checked)
    path = escape(str(folder))
    print_text(f"a lake named {project.name} is in {path}:")
    print_text("  lake.toml            the keys to record, their decoders, how long rows are kept")
    print_text("  transformations/     the tables, and the flows that fill your own")
    print_text("  spark-pipeline.yml   the same flows for spark-pipelines")
    if not connect:
        print_text(f"to feed it:    zenlake record -e ENDPOINT -k '**' -o {path}/log")
    print_text(f"to run it:     zenlake lake run {path}")
    print_text(f"to look at it: zenlake lake sql {path} 'select * from latest'")


def suggest_name(folder: Path) -> str:
    """Return a name for the lake in a folder.

    >>> suggest_name(Path("/data/my fleet")), suggest_name(Path("/"))
    ('my_fleet', 'lake')
    """
    found = re.sub(r"[^A-Za-z0-9._-]", "_", folder.absolute().name)
    return found.lstrip("._-")[:MAX_NAME] or "lake"


for command in (run, check, sql, info, report, reset, reprocess, compact, retain):
    lake.command()(command)
