"""`zenlake serve`: answer queries from the tables of a lake and the tail of its log.

Knows options, signals and what is printed. Does not know tables: lake/serve does.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer

from zenlake.cli import session_options
from zenlake.cli.display import live_line, print_event
from zenlake.cli.printing import print_text
from zenlake.cli.render.text import escape
from zenlake.cli.signals import stop_on_signals
from zenlake.quantities import counted

if TYPE_CHECKING:
    from zenlake.lake.serve.server import ServeStats

TICK_SECONDS = 1.0
LINE_SECONDS = 10.0  # Time between two lines where there is no terminal.
POLL_SECONDS = 0.2  # Longest time until a signal that arrives just before a wait is noticed.

ShowStats = Callable[["ServeStats"], None]


@session_options.expand_options
def serve(
    at: session_options.SessionOptions,
    lake: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the lake, or its lake.toml.")
    ],
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
        bool, typer.Option("--json", help="Print one JSON object per second, and one at the end.")
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
    signalled: SimpleQueue[int] = SimpleQueue()
    with stop_on_signals(signalled.put):
        from zenlake.lake.project import Project
        from zenlake.lake.serve.server import Server

        project = Project.load(lake)
        with (
            session_options.open_session(at) as session,
            Server(session, project, checked, complete=complete) as server,
            _display(f"answering {' '.join(checked)} from {project.name}", as_json=json) as show,
        ):
            _run(server.stats, signalled, show)
    if json:
        print_event("stopped", server.stats()._asdict())
    else:
        print_text(f"stopped: {format_stats(server.stats())}")


def _run(stats: Callable[[], "ServeStats"], signalled: "SimpleQueue[int]", show: ShowStats) -> None:
    """Wait for a signal, and call `show` once per second."""
    due = time.monotonic()
    while True:
        if time.monotonic() >= due:
            show(stats())
            due += TICK_SECONDS
        try:
            signalled.get(timeout=POLL_SECONDS)
            return
        except Empty:
            continue


@contextmanager
def _display(title: str, *, as_json: bool) -> Iterator[ShowStats]:
    if as_json:
        yield lambda stats: print_event("serving", stats._asdict())
        return
    with live_line(escape(title), LINE_SECONDS) as write:
        yield lambda stats: write(format_stats(stats), "")


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
    if stats.waiting:
        parts.append(f"{stats.waiting:,} waiting")
    return ", ".join(parts)
