"""`zenlake serve`: answer queries from the tables of a lake and the tail of its log.

Knows options, signals and what is printed. Does not know tables: lake/serve does.
"""

from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from zenlake.cli import session_options
from zenlake.cli.display import print_event, state_display, ticks
from zenlake.cli.options import LakeArgument, json_option
from zenlake.cli.printing import print_text
from zenlake.cli.render.text import escape
from zenlake.cli.signals import stop_on_signals
from zenlake.quantities import counted

if TYPE_CHECKING:
    from zenlake.lake.serve.server import ServeStats


@session_options.expand_options
def serve(
    at: session_options.SessionOptions,
    lake: LakeArgument,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            "-k",
            metavar="KEYEXPR",
            help="Keys to answer for; may be repeated. Default: **",
        ),
    ] = None,
    complete: Annotated[
        bool,
        typer.Option("--complete/--no-complete", help="Declare the queryable complete."),
    ] = True,
    json: Annotated[
        bool, json_option("Print one JSON object per second, and one at the end.")
    ] = False,
) -> None:
    """Answer queries from a lake until Ctrl-C or SIGTERM.

    Without parameters a query gets the latest value of each key; with _time=RANGE every sample in
    that range; with _max=N the newest N samples of each key.

    Exit status: 0 it was told to stop, 1 there is no session or no lake, 2 wrong usage.

    \b
    Examples:
      zenlake serve fleet -e tcp/router:7447
      zenlake serve fleet -e tcp/router:7447 -k 'robot/**' --no-complete
      zenlake get -e tcp/router:7447 'robot/7/pose?_time=[now(-1h)..]'
      zenlake get -e tcp/router:7447 'robot/**?_time=[..2026-11-15T10:00:00Z];_max=1'
    """
    checked = [session_options.check_key_expr(key) for key in keys or ["**"]]
    stopped = Event()
    with stop_on_signals(lambda _: stopped.set()):
        from zenlake.lake.project import Project
        from zenlake.lake.serve.server import Server

        project = Project.load(lake)
        title = escape(f"answering {' '.join(checked)} from {project.name}")
        with (
            session_options.open_session(at) as session,
            Server(session, project, checked, complete=complete) as server,
            state_display("serving", title, as_json=json) as show,
        ):
            for _ in ticks(stopped):
                stats = server.stats()
                show(stats._asdict(), format_stats(stats), "")
    if json:
        print_event("stopped", server.stats()._asdict())
    else:
        print_text(f"stopped: {format_stats(server.stats())}")


def format_stats(stats: "ServeStats") -> str:
    """Return the live line."""
    parts = [
        counted(stats.queries, "query"),
        f"{stats.answered:,} answered",
        counted(stats.replies, "reply"),
        counted(stats.errors, "error"),
        f"{stats.refused:,} refused",
        f"{stats.left:,} gave up",
    ]
    if stats.too_large:
        parts.append(f"{stats.too_large:,} too large")
    if stats.waiting:
        parts.append(f"{stats.waiting:,} waiting")
    return ", ".join(parts)
