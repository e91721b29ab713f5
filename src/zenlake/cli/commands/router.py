"""`zenlake router`: run a router until it is told to stop.

Knows options, signals and the lines that are printed. Does not route: zenlake.router does.
"""

import json as jsonlib
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

import zenlake
from zenlake.cli import session_options
from zenlake.cli.callback_queue import CallbackQueue
from zenlake.cli.display import print_event
from zenlake.cli.failure import USAGE, fail
from zenlake.cli.options import json_option
from zenlake.cli.printing import print_text
from zenlake.cli.render.text import escape
from zenlake.cli.signals import stop_on_signals
from zenlake.errors import ZError
from zenlake.quantities import counted
from zenlake.transport.drop_reason import DropReason

if TYPE_CHECKING:
    from zenlake.router import Event

WAIT_SECONDS = 0.5  # Longest time until a signal that arrives just before a wait is noticed.
GENERIC = "GENERIC"  # Reason 0, of a session that ends normally.


def router(
    listen: session_options.ListenOption = None,
    connect: session_options.ConnectOption = None,
    config: session_options.ConfigOption = None,
    zid: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Id of the router, up to 32 hexadecimal digits."),
    ] = None,
    cfg: session_options.CfgOption = None,
    no_multicast_scouting: session_options.ScoutingOption = False,
    json: Annotated[
        bool,
        json_option("Print one JSON object per line: listening, opened, closed, stopped."),
    ] = False,
) -> None:
    """Run a router until Ctrl-C or SIGTERM.

    It shows where it listens, and which nodes connect and leave. Without --listen it listens on
    tcp/[::]:7447. When it is told to stop it passes on the messages that it has received, and
    closes every session. A second signal ends it at once.

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
    options = session_options.SessionOptions(
        connect, listen, "router", config, settings, no_multicast_scouting
    )
    try:
        built = session_options.build_config(options)
    except typer.BadParameter as error:
        fail("router", error, USAGE)
    show = print_event if json else _print_line
    events: CallbackQueue[Event] = CallbackQueue()
    with stop_on_signals(lambda _: events.close()):
        _allow_many_sessions()
        zenlake.init_log_from_env_or("warn")
        try:
            running = Router(built, events.offer)
        except ZError as error:
            fail("router", error)
        with running:
            show("listening", {"zid": str(running.zid), "locators": running.locators})
            while not events.closed:
                if (event := events.take(WAIT_SECONDS)) is not None:
                    show(*_describe(event))
        for event in events.drain():
            show(*_describe(event))
        counts = asdict(running.stats())
        del counts["transports"]
        show("stopped", {**counts, "unshown": events.dropped})


def _allow_many_sessions() -> None:
    """Raise the limit of file descriptors, one per session, to what the system allows."""
    try:
        import resource
    except ImportError:  # Not a POSIX system, which has no such limit.
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _describe(event: "Event") -> tuple[str, dict[str, Any]]:
    """Return the name and the facts of a session that opened or closed."""
    facts = asdict(event)
    opened = facts.pop("opened")
    facts |= {"zid": str(event.zid), "whatami": str(event.whatami)}
    if opened:
        for name in ("why", "reason", "by_peer"):
            del facts[name]
    return "opened" if opened else "closed", facts


LINES = {
    "listening": "router {zid} listens at {locators}",
    "opened": "opened  {whatami} {zid} from {remote}",
    "left": "left    {whatami} {zid} from {remote}",
    "closed": "closed  {whatami} {zid} from {remote}: {why}",
    "stopped": "stopped; passed on {messages} ({bytes}), dropped: {dropped}",
}


def _print_line(event: str, facts: dict[str, Any]) -> None:
    texts = {
        name: escape(value) if isinstance(value, str) else value for name, value in facts.items()
    }
    line = LINES[event]
    if event == "listening":
        texts["locators"] = " ".join(facts["locators"]) or "no address"
    elif event == "stopped":
        reasons = (
            f"{count:,} ({DropReason(reason).description})"
            for reason, count in facts["dropped"].items()
        )
        texts["dropped"] = ", ".join(reasons) or "none"
        texts["messages"] = counted(facts["sent_messages"], "message")
        texts["bytes"] = counted(facts["sent_bytes"], "byte")
    elif event == "closed" and facts["reason"] != GENERIC:
        texts["why"] = f"{texts['reason']}, {texts['why']}"
    elif event == "closed" and facts["by_peer"]:
        line = LINES["left"]
    print_text(f"{time.strftime('%H:%M:%S')} {line.format(**texts)}")
