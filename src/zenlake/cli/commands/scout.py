"""`zenlake scout`: who is there, and where."""

import json as jsonlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from zenlake.runtime.discovery import ScoutAnswer

NOBODY, USAGE = 1, 2
DEFAULT_GROUP = "udp/224.0.0.224:7446"
MAX_SECONDS = 3600.0


class Role(StrEnum):
    ROUTER = "router"
    PEER = "peer"
    CLIENT = "client"


def scout(
    what: Annotated[
        list[Role] | None,
        typer.Option(help="Ask for nodes of this role only; may be repeated. Default: all."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=MAX_SECONDS, help="How long to listen for answers.")
    ] = 3.0,
    group: Annotated[
        str, typer.Option(metavar="ENDPOINT", help="The multicast group to ask in.")
    ] = DEFAULT_GROUP,
    iface: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The network interface to ask on, by name or address. Default: the first that "
            "does multicast; lo finds nodes of this machine that scout on lo.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a node, one a line, as they answer.")
    ] = False,
) -> None:
    """Ask the network who is there, and show who answers.

    Ctrl-C ends it early and shows what was found so far.

    Exit status: 0 somebody answered, 1 nobody did, 2 wrong usage.

    \b
    Examples:
      zenlake scout
      zenlake scout --what router --seconds 10 --iface eth0
      zenlake scout --json | jq -r '.locators[]'
    """
    endpoint = group if iface is None else f"{group}{';' if '#' in group else '#'}iface={iface}"
    if not _show(_answers(what, seconds, endpoint), as_json=json):
        typer.echo(_nobody(what, group, iface), err=True)
        raise typer.Exit(NOBODY)


def _answers(what: list[Role] | None, seconds: float, endpoint: str) -> Iterator["ScoutAnswer"]:
    """Each node once."""
    from zenlake.errors import ZError
    from zenlake.runtime import discovery
    from zenlake.wire.enums import WireWhatAmI

    roles = WireWhatAmI(0)
    for role in what or Role:
        roles |= WireWhatAmI[role.name]
    try:
        yield from discovery.scout(seconds, roles, group=endpoint)
    except ZError as error:
        typer.echo(f"zenlake: {error}", err=True)
        raise typer.Exit(USAGE) from None


def _show(answers: Iterator["ScoutAnswer"], *, as_json: bool) -> bool:
    """Show them as they come; whether there were any."""
    from rich.console import Console

    console = Console(highlight=False)
    found: list[ScoutAnswer] = []
    with suppress(KeyboardInterrupt):
        if as_json:
            _print_lines(answers, found)
        elif console.is_terminal:
            _fill_table(console, answers, found)
        else:
            found.extend(answers)
    if found and not as_json and not console.is_terminal:
        console.print(_table(found))
    return bool(found)


def _print_lines(answers: Iterator["ScoutAnswer"], found: list["ScoutAnswer"]) -> None:
    for answer in answers:
        found.append(answer)
        sys.stdout.write(_line(answer))
        sys.stdout.flush()


def _fill_table(
    console: "Console", answers: Iterator["ScoutAnswer"], found: list["ScoutAnswer"]
) -> None:
    from rich.live import Live
    from rich.spinner import Spinner

    with Live(Spinner("dots", "asking who is there ..."), console=console) as live:
        for answer in answers:
            found.append(answer)
            live.update(_table(found), refresh=True)
        if not found:
            live.update("")


def _line(answer: "ScoutAnswer") -> str:
    hello, source = answer
    fields = {
        "zid": str(hello.zid),
        "whatami": hello.whatami.name,
        "locators": list(hello.locators),
        "source": source,
    }
    return jsonlib.dumps(fields) + "\n"


def _table(found: list["ScoutAnswer"]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from zenlake.cli.render.text import escape

    table = Table(box=SIMPLE_HEAD, pad_edge=False)  # an IPv4 locator fits 80 characters
    table.add_column("id", no_wrap=True, style="cyan")
    table.add_column("role", no_wrap=True)
    table.add_column("locators", overflow="fold", style="green")
    table.add_column("source", no_wrap=True)
    for hello, source in found:
        locators = Text("\n".join(escape(locator) for locator in hello.locators) or "none")
        table.add_row(str(hello.zid), (hello.whatami.name or "").lower(), locators, source)
    return table


def _nobody(what: list[Role] | None, group: str, iface: str | None) -> str:
    asked = " or ".join(role.value for role in what or []) or "node"
    where = f"on {iface}" if iface else "on the first interface that does multicast (see --iface)"
    return (
        f"zenlake: no {asked} answered at {group} {where}. Check that\n"
        "  - a node runs, listens somewhere, and has multicast scouting enabled;\n"
        "  - it is in the same network: multicast does not pass most routers, clouds and VPNs;\n"
        "  - no firewall drops UDP to the group, or answers back to this machine;\n"
        "  - --iface names the interface towards it (--iface lo: nodes that scout on lo).\n"
        "Where there is no multicast, dial a known address: zenlake ping tcp/HOST:7447"
    )
