"""`zenlake router`: pass on what clients and peers say to each other, until told to stop."""

import json as jsonlib
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer

import zenlake
from zenlake.cli import session_options
from zenlake.cli.commands.ping import Mode
from zenlake.cli.quantities import counted
from zenlake.cli.render.sample import print_object, print_text
from zenlake.cli.render.text import escape
from zenlake.cli.signals import stopped_by_signals
from zenlake.errors import ZError
from zenlake.transport.drop_reason import DropReason

if TYPE_CHECKING:
    from zenlake.router import Event, Router

SIGNAL_SECONDS = 0.5  # until a signal is noticed at the latest
GENERIC = "GENERIC"  # The reason, number 0, of a session that ends normally.
MAX_EVENTS = 10_000  # that may wait to be shown; those beyond are counted


def router(
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen",
            "-l",
            metavar="ENDPOINT",
            help="Where to be dialled; may be repeated. Default: tcp/[::]:7447.",
        ),
    ] = None,
    connect: Annotated[
        list[str] | None,
        typer.Option(
            "--connect", "-e", metavar="ENDPOINT", help="Whom to dial as well; may be repeated."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            envvar="ZENOH_CONFIG",
            help=session_options.CONFIG_HELP,
        ),
    ] = None,
    zid: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Its id, up to 32 hexadecimal digits."),
    ] = None,
    cfg: Annotated[
        list[str] | None,
        typer.Option(
            "--cfg",
            metavar="KEY:VALUE",
            help=session_options.CFG_HELP,
        ),
    ] = None,
    no_multicast_scouting: Annotated[
        bool,
        typer.Option("--no-multicast-scouting", help="Do not answer who asks by multicast."),
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a line: listening, opened, closed, stopped."),
    ] = False,
) -> None:
    """Be a router: say where it listens, then who comes and goes.

    SIGTERM or Ctrl-C ends it: it passes on what was sent to it before, and closes every session.
    Again: it ends at once.

    Exit status: 0 it was told to stop, 1 it cannot listen or connect, 2 wrong usage.

    \b
    Examples:
      zenlake router
      zenlake router -l tcp/0.0.0.0:7447 -l ws/0.0.0.0:8000 --no-multicast-scouting
      zenlake router -c router.json5 --json | jq 'select(.event == "closed")'
    """
    from zenlake.router import Router

    settings = [*(cfg or [])]
    if zid is not None:
        settings.insert(0, f"id={jsonlib.dumps(zid)}")
    try:
        made = session_options.config_of(
            session_options.SessionOptions(
                connect, listen, Mode.ROUTER, config, settings, no_multicast_scouting
            )
        )
    except typer.BadParameter as error:
        session_options.fail("router", error, session_options.USAGE)
    show = _print_json if json else _print_line
    news: SimpleQueue[Event | None] = SimpleQueue()
    unshown = 0

    def watch(event: "Event") -> None:
        nonlocal unshown
        if news.qsize() < MAX_EVENTS:
            news.put(event)
        else:
            unshown += 1

    with stopped_by_signals(lambda number: news.put(None)):
        zenlake.init_log_from_env_or("error")  # what goes wrong at first is said once, below
        try:
            running = Router(made, watch)
        except ZError as error:
            session_options.fail("router", error)
        zenlake.init_log_from_env_or("warn")
        with running:
            show({"event": "listening", "zid": str(running.zid), "locators": running.locators})
            while (event := _next(news)) is not None:
                show(_fields(event))
        while not news.empty():
            if (event := news.get()) is not None:
                show(_fields(event))
        show({"event": "stopped", **_counts(running), "unshown": unshown})


def _next(news: "SimpleQueue[Event | None]") -> "Event | None":
    """Waits in pieces: a signal that comes just before a wait is looked at only after it."""
    while True:
        with suppress(Empty):
            return news.get(timeout=SIGNAL_SECONDS)


def _fields(event: "Event") -> dict[str, Any]:
    found = asdict(event)
    opened = found.pop("opened")
    found |= {"zid": str(event.zid), "whatami": str(event.whatami)}
    if opened:
        for name in ("why", "reason", "by_peer"):
            del found[name]
    return {"event": "opened" if opened else "closed", **found}


def _counts(running: "Router") -> dict[str, Any]:
    found = asdict(running.stats())
    del found["transports"]
    return found


def _print_json(fields: dict[str, Any]) -> None:
    print_object({"time": time.time(), **fields})


LINES = {
    "listening": "router {zid} listens at {locators}",
    "opened": "opened  {whatami} {zid} from {remote}",
    "left": "left    {whatami} {zid} from {remote}",
    "closed": "closed  {whatami} {zid} from {remote}: {why}",
    "stopped": "stopped; passed on {messages} ({bytes}), dropped: {dropped}",
}


def _print_line(fields: dict[str, Any]) -> None:
    shown = {
        name: escape(value) if isinstance(value, str) else value for name, value in fields.items()
    }
    if "locators" in fields:
        shown["locators"] = " ".join(fields["locators"]) or "no address"
    if "dropped" in fields:
        reasons = (
            f"{count:,} ({DropReason(reason).description})"
            for reason, count in fields["dropped"].items()
        )
        shown["dropped"] = ", ".join(reasons) or "none"
    if "sent_messages" in fields:
        shown["messages"] = counted(fields["sent_messages"], "message")
        shown["bytes"] = counted(fields["sent_bytes"], "byte")
    line = fields["event"]
    if line == "closed" and fields["reason"] == GENERIC:
        line = "left" if fields["by_peer"] else line
    elif line == "closed":
        shown["why"] = f"{shown['reason']}, {shown['why']}"
    now = time.strftime("%H:%M:%S")
    print_text(f"{now} {LINES[line].format(**shown)}")
