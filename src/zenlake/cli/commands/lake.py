"""`zenlake lake`: tables made of what Zenoh says. One command here, `init`; the others beside it.

Knows options and what is shown. Does not know how a lake is made: lake/ does.
"""

from pathlib import Path
from typing import Annotated

import typer

from zenlake.cli import session_options
from zenlake.cli.commands.lake_maintenance import compact, info, retain, sql
from zenlake.cli.commands.lake_report import report
from zenlake.cli.commands.lake_run import run
from zenlake.cli.render.sample import print_text
from zenlake.cli.render.text import escape
from zenlake.errors import InvalidLocator, ZError
from zenlake.wire.locator import EndPoint

MAX_NAME = 64  # characters, of a folder whose name becomes that of the lake

lake = typer.Typer(
    no_args_is_help=True, help="Tables made of what Zenoh says, and answers from them."
)


@lake.command()
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
    """Make a lake: its settings and transformations, for you to change.

    Exit status: 0 made, 1 there is one already, or it cannot be written, 2 wrong usage.

    \b
    Examples:
      zenlake lake init fleet -e tcp/127.0.0.1:7447 -k 'robot/**'
      zenlake lake run fleet
    """
    from zenlake.lake.scaffold import create_project

    if keys and not connect:
        raise typer.BadParameter("--key: name whom to record from, too: --connect ENDPOINT")
    endpoints = [_endpoint(one) for one in connect or []]
    checked = [session_options.key_expr(key) for key in keys or ["**"]]
    try:
        project = create_project(folder, name or name_of(folder), endpoints, checked)
    except ZError as error:
        session_options.fail("lake init", error)
    shown = escape(str(folder))
    print_text(f"a lake named {project.name} is in {shown}:")
    print_text("  lake.toml            what is recorded, decoded, and kept how long")
    print_text("  transformations/     what becomes of it")
    print_text("  spark-pipeline.yml   what Spark has to know")
    if not connect:
        print_text(f"to feed it:    zenlake record -e ENDPOINT -k '**' -o {shown}/log")
    print_text(f"to run it:     zenlake lake run {shown}")
    print_text(f"to look at it: zenlake lake sql {shown} 'select * from latest'")


def _endpoint(text: str) -> str:
    try:
        return str(EndPoint(text))
    except InvalidLocator as error:
        raise typer.BadParameter(str(error)) from None


def name_of(folder: Path) -> str:
    """A name for the lake in a folder.

    >>> name_of(Path("/data/my fleet")), name_of(Path("/"))
    ('my_fleet', 'lake')
    """
    found = "".join(
        one if one.isascii() and (one.isalnum() or one in "._-") else "_"
        for one in folder.absolute().name
    )
    return found.lstrip("._-")[:MAX_NAME] or "lake"


for command in (run, sql, info, report, compact, retain):
    lake.command()(command)
