"""`zenlake info`: who this session is, and with whom it is connected, over what."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

import zenlake
from zenlake.cli import session_options
from zenlake.cli.render.sample import console, print_object, print_table, word

if TYPE_CHECKING:
    from rich.table import Table

YES_NO = {True: "yes", False: "no"}
TRANSPORT = ("zid", "whatami", "qos", "shm", "multicast")
LINK = ("src", "dst", "mtu", "reliability", "interfaces", "group", "auth", "zid")


@session_options.connected
def info(
    at: session_options.SessionOptions,
    json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object.")] = False,
) -> None:
    """Open a session and show its id, the nodes it is connected with, and the links.

    Exit status: 0 somebody is connected, 1 nobody is, 2 wrong usage.

    \b
    Examples:
      zenlake info -e tcp/127.0.0.1:7447
      zenlake info --json | jq -r '.links[].dst'
    """
    with session_options.opened(at) as session:
        there = session_options.met(session)
        facts = _facts(session)
    if json:
        print_object(facts)
    else:
        _print(facts)
    if not there:
        session_options.fail(
            "info",
            "nobody is connected. Name a node with --connect ENDPOINT; zenlake scout shows who is "
            "there.",
        )


def _facts(session: "zenlake.Session") -> dict[str, Any]:
    about = session.info
    return {
        "zid": str(about.zid()),
        "routers": [str(zid) for zid in about.routers_zid()],
        "peers": [str(zid) for zid in about.peers_zid()],
        "transports": [_transport(found) for found in about.transports()],
        "links": [_link(found) for found in about.links()],
    }


def _transport(transport: "zenlake.Transport") -> dict[str, Any]:
    return {
        "zid": str(transport.zid),
        "whatami": str(transport.whatami),
        "qos": transport.is_qos,
        "shm": transport.is_shm,
        "multicast": transport.is_multicast,
    }


def _link(link: "zenlake.Link") -> dict[str, Any]:
    return {
        "zid": str(link.zid),
        "src": str(link.src),
        "dst": str(link.dst),
        "group": None if link.group is None else str(link.group),
        "mtu": link.mtu,
        "streamed": link.is_streamed,
        "reliability": None if link.reliability is None else word(link.reliability),
        "priorities": None if link.priorities is None else list(link.priorities),
        "interfaces": list(link.interfaces),
        "auth": link.auth_identifier,
    }


def _print(facts: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    own = Table(show_header=False, box=None, pad_edge=False)
    own.add_column(no_wrap=True, style="cyan")
    own.add_column(overflow="fold")
    own.add_row("id", facts["zid"])
    own.add_row("routers", "\n".join(facts["routers"]) or "none")
    own.add_row("peers", "\n".join(facts["peers"]) or "none")
    console().print(own)
    for title, columns in (("transports", TRANSPORT), ("links", LINK)):
        if facts[title]:
            table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
            _fill(table, columns, facts[title])
            print_table(table)


def _fill(table: "Table", columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    from rich.text import Text

    used = [name for name in columns if any(row[name] is not None for row in rows)]
    for name in used:
        table.add_column(name, overflow="fold", style="cyan" if name == "zid" else None)
    for row in rows:
        table.add_row(*(Text(_cell(row[name])) for name in used))


def _cell(value: Any) -> str:
    from zenlake.cli.render.text import escape

    if isinstance(value, bool):
        return YES_NO[value]
    if isinstance(value, list):
        return escape(" ".join(map(str, value)))
    return "" if value is None else escape(str(value))
