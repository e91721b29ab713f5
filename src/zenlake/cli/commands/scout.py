"""`zenlake scout`: find nodes by multicast.

Knows options and the table of nodes. Does not know sockets: runtime/discovery.py does.
"""

from contextlib import nullcontext, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zenlake.cli.failure import FAILURE, USAGE
from zenlake.cli.options import duration_option, json_option
from zenlake.cli.printing import console, print_object, print_table
from zenlake.cli.render.text import escape
from zenlake.errors import ZError

if TYPE_CHECKING:
    from rich.table import Table

    from zenlake.runtime.discovery import ScoutAnswer

DEFAULT_GROUP = "udp/224.0.0.224:7446"
MAX_SECONDS = 3600.0


class RoleChoice(StrEnum):
    ROUTER = "router"
    PEER = "peer"
    CLIENT = "client"


def scout(
    what: Annotated[
        list[RoleChoice] | None,
        typer.Option(help="Ask for nodes of this role only; may be repeated. Default: all."),
    ] = None,
    seconds: Annotated[
        float,
        duration_option(
            "--seconds", most=MAX_SECONDS, help="How long to wait for answers. Default: 3s."
        ),
    ] = 3.0,
    group: Annotated[
        str, typer.Option(metavar="ENDPOINT", help="Multicast group to ask.")
    ] = DEFAULT_GROUP,
    iface: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Network interface to ask on, by name or address. Default: the first that "
            "supports multicast; lo finds nodes of this machine that scout on lo.",
        ),
    ] = None,
    json: Annotated[
        bool,
        json_option("Print one JSON object per node, one per line, as nodes answer."),
    ] = False,
) -> None:
    """Find nodes by multicast and list them.

    Ctrl-C ends it early and shows the nodes found so far.

    Exit status: 0 a node answered, 1 none did, 2 wrong usage.

    \b
    Examples:
      zenlake scout
      zenlake scout --what router --seconds 10s --iface eth0
      zenlake scout --json | jq -r '.locators[]'
    """
    from rich.live import Live
    from rich.spinner import Spinner

    from zenlake.runtime import discovery
    from zenlake.wire.enums import WireWhatAmI

    endpoint = group if iface is None else f"{group}{';' if '#' in group else '#'}iface={iface}"
    roles = WireWhatAmI(0)
    for role in what or RoleChoice:
        roles |= WireWhatAmI[role.name]
    found: list[ScoutAnswer] = []
    live = Live(Spinner("dots", "asking ..."), console=console(), transient=True)
    shown = console().is_terminal and not json
    try:
        with suppress(KeyboardInterrupt), live if shown else nullcontext():
            for answer in discovery.scout(seconds, roles, group=endpoint):
                found.append(answer)
                if json:
                    print_object(_describe_answer(answer))
                elif shown:
                    live.update(_table(found), refresh=True)
    except ZError as error:
        typer.echo(f"zenlake: {error}", err=True)
        raise typer.Exit(USAGE) from None
    if not found:
        typer.echo(_explain_nothing(what, group, iface), err=True)
        raise typer.Exit(FAILURE)
    if not json:
        print_table(_table(found))


def _describe_answer(answer: "ScoutAnswer") -> dict[str, Any]:
    hello, source = answer
    return {
        "zid": str(hello.zid),
        "whatami": hello.whatami.name,
        "locators": list(hello.locators),
        "source": source,
    }


def _table(found: list["ScoutAnswer"]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)  # A row with an IPv4 locator fits 80 columns.
    table.add_column("id", no_wrap=True, style="cyan")
    table.add_column("role", no_wrap=True)
    table.add_column("locators", overflow="fold", style="green")
    table.add_column("source", no_wrap=True)
    for hello, source in found:
        locators = Text("\n".join(escape(locator) for locator in hello.locators) or "none")
        table.add_row(str(hello.zid), (hello.whatami.name or "").lower(), locators, source)
    return table


def _explain_nothing(what: list[RoleChoice] | None, group: str, iface: str | None) -> str:
    asked = " or ".join(role.value for role in what or []) or "node"
    where = f"on {iface}" if iface else "on the first interface that does multicast (see --iface)"
    return (
        f"zenlake: no {asked} answered at {group} {where}. Check that\n"
        "  - a node runs, listens somewhere, and has multicast scouting enabled;\n"
        "  - it is in the same network: multicast does not pass most routers, clouds and VPNs;\n"
        "  - no firewall drops UDP to the group, or answers back to this machine;\n"
        "  - --iface names the interface towards it (--iface lo: nodes that scout on lo).\n"
        "Where there is no multicast, connect to a known address: zenlake ping tcp/HOST:7447"
    )
