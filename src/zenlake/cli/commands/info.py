"""`zenlake info`: the id of a session, and its transports and links.

Knows options and tables. Does not know sessions: session_options does.
"""

from typing import Annotated, Any

import zenlake
from zenlake.cli import session_options
from zenlake.cli.failure import fail
from zenlake.cli.options import json_option
from zenlake.cli.printing import print_object, print_table, properties_table
from zenlake.cli.render.sample import member_name

YES_NO = {True: "yes", False: "no"}
TRANSPORT = ("zid", "whatami", "qos", "shm", "shm_declined", "multicast")
LINK = ("src", "dst", "mtu", "reliability", "interfaces", "group", "auth", "zid")


@session_options.expand_options
def info(
    at: session_options.SessionOptions,
    json: Annotated[bool, json_option("Print one JSON object.")] = False,
) -> None:
    """Open a session and show its id, nodes and links.

    Exit status: 0 a node is connected, 1 none is, 2 wrong usage.

    \b
    Examples:
      zenlake info -e tcp/127.0.0.1:7447
      zenlake info --json | jq -r '.links[].dst'
    """
    with session_options.open_session(at) as session:
        connected = session_options.wait_for_node(session)
        facts = _collect_facts(session)
    if json:
        print_object(facts)
    else:
        _print(facts)
    if not connected:
        fail(
            "info",
            "no node is connected. Name a node with --connect ENDPOINT; zenlake scout lists nodes.",
        )


def _collect_facts(session: "zenlake.Session") -> dict[str, Any]:
    about = session.info
    return {
        "zid": str(about.zid()),
        "routers": [str(zid) for zid in about.routers_zid()],
        "peers": [str(zid) for zid in about.peers_zid()],
        "transports": [_describe_transport(transport) for transport in about.transports()],
        "links": [_describe_link(link) for link in about.links()],
    }


def _describe_transport(transport: "zenlake.Transport") -> dict[str, Any]:
    return {
        "zid": str(transport.zid),
        "whatami": str(transport.whatami),
        "qos": transport.is_qos,
        "shm": transport.is_shm,
        "shm_declined": transport.shm_declined,
        "multicast": transport.is_multicast,
    }


def _describe_link(link: "zenlake.Link") -> dict[str, Any]:
    return {
        "zid": str(link.zid),
        "src": str(link.src),
        "dst": str(link.dst),
        "group": None if link.group is None else str(link.group),
        "mtu": link.mtu,
        "streamed": link.is_streamed,
        "reliability": None if link.reliability is None else member_name(link.reliability),
        "priorities": None if link.priorities is None else list(link.priorities),
        "interfaces": list(link.interfaces),
        "auth": link.auth_identifier,
    }


def _print(facts: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    own = properties_table(
        [
            ("id", facts["zid"]),
            ("routers", "\n".join(facts["routers"]) or "none"),
            ("peers", "\n".join(facts["peers"]) or "none"),
        ]
    )
    own.box, own.pad_edge = None, False
    print_table(own)
    for title, columns in (("transports", TRANSPORT), ("links", LINK)):
        if rows := facts[title]:
            table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
            used = [name for name in columns if any(row[name] is not None for row in rows)]
            for name in used:
                table.add_column(name, overflow="fold", style="cyan" if name == "zid" else None)
            for row in rows:
                table.add_row(*(Text(_format_cell(row[name])) for name in used))
            print_table(table)


def _format_cell(value: Any) -> str:
    from zenlake.cli.render.text import escape

    if isinstance(value, bool):
        return YES_NO[value]
    if isinstance(value, list):
        return escape(" ".join(map(str, value)))
    return "" if value is None else escape(str(value))
