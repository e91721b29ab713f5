"""The `zenlake` command: one subcommand a file.

Knows options, files and the terminal. Does not know the protocol: subcommands call the layers.
"""

import io
import sys
from typing import Annotated

import typer

from zenlake import __version__
from zenlake.cli.bench import bench
from zenlake.cli.decode import decode
from zenlake.cli.delete import delete
from zenlake.cli.get import get
from zenlake.cli.info import info
from zenlake.cli.lake import lake
from zenlake.cli.liveliness import liveliness
from zenlake.cli.log import log
from zenlake.cli.ping import ping
from zenlake.cli.pub import pub
from zenlake.cli.put import put
from zenlake.cli.queryable import queryable
from zenlake.cli.record import record
from zenlake.cli.replay import replay
from zenlake.cli.router import router
from zenlake.cli.scout import scout
from zenlake.cli.serve import serve
from zenlake.cli.stopping import interrupted_again
from zenlake.cli.sub import sub

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help and errors as plain text: no boxes, more room for the words
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    *(put, delete, get, sub, pub, queryable),
    *(record, replay, router, serve),
    *(info, scout, ping, bench, decode),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(liveliness, name="liveliness")
app.add_typer(log, name="log")
app.add_typer(lake, name="lake")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"zenlake {__version__}")
        raise typer.Exit


@app.callback()
def zenlake(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Zenoh in Python, from the wire to the lakehouse."""


def main() -> None:
    """The entry point of the `zenlake` script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character
            stream.reconfigure(errors="backslashreplace")
    sys.unraisablehook = interrupted_again
    app(prog_name="zenlake")
