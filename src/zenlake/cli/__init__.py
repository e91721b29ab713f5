"""The `zenlake` command: one module per subcommand, in `commands`.

Knows options, files and the terminal. Does not know the protocol: subcommands call the layers.
"""

import io
import sys
from typing import Annotated

import typer

from zenlake import __version__
from zenlake.cli.commands.decode import decode
from zenlake.cli.commands.delete import delete
from zenlake.cli.commands.get import get
from zenlake.cli.commands.info import info
from zenlake.cli.commands.lake import lake
from zenlake.cli.commands.liveliness import liveliness
from zenlake.cli.commands.log import log
from zenlake.cli.commands.ping import ping
from zenlake.cli.commands.pub import pub
from zenlake.cli.commands.put import put
from zenlake.cli.commands.queryable import queryable
from zenlake.cli.commands.record import record
from zenlake.cli.commands.replay import replay
from zenlake.cli.commands.router import router
from zenlake.cli.commands.scout import scout
from zenlake.cli.commands.serve import serve
from zenlake.cli.commands.sub import sub
from zenlake.cli.options import command_group
from zenlake.cli.signals import raise_interrupt_again

app = command_group("Zenoh in Python, from the wire to the lakehouse.")
COMMANDS = (
    *(put, delete, get, sub, pub, queryable),
    *(record, replay, router, serve),
    *(info, scout, ping, decode),
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
    """Take the options before the command."""


def main() -> None:
    """Run the `zenlake` script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # A character that it cannot encode is escaped.
            stream.reconfigure(errors="backslashreplace")
    sys.unraisablehook = raise_interrupt_again
    app(prog_name="zenlake")
