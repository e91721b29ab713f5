"""`zenlake serve`: answer queries from the tables of a lake and the tail of its log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer

from zenlake.cli import session_options
from zenlake.cli.display import live_line
from zenlake.cli.quantities import counted
from zenlake.cli.render.sample import print_object, print_text
from zenlake.cli.render.text import escape
from zenlake.cli.signals import stopped_by_signals

if TYPE_CHECKING:
    from zenlake.lake.serve.server import ServeStats

TICK_SECONDS = 1.0
LINE_SECONDS = 10.0  # between two lines where there is no terminal
POLL_SECONDS = 0.2  # a signal that comes just before a wait is seen after that

Show = Callable[["ServeStats"], None]


@session_options.connected
def serve(
    at: session_options.SessionOptions,
    lake: Annotated[
        Path, typer.Argument(metavar="DIR", help="The lake: its folder, or its lake.toml.")
    ],
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            "-k",
            metavar="KEYEXPR",
            help="What to answer for; may be repeated. Default: **",
        ),
    ] = None,
    complete: Annotated[
        bool,
        typer.Option("--complete/--no-complete", help="Declare the queryable complete."),
    ] = True,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a second, and one at the end.")
    ] = False,
) -> None:
    """Answer queries from a lake until Ctrl-C or SIGTERM.

    Without parameters a query gets the latest value of each key; with _time=RANGE every sample of
    that time, with _max=N the newest N of each key.

    Exit status: 0 it was stopped, 1 there is no session or no lake, 2 wrong usage.

    \b
    Examples:
      zenlake serve fleet -e tcp/router:7447
      zenlake serve fleet -e tcp/router:7447 -k 'robot/**' --no-complete
      zenlake get -e tcp/router:7447 'robot/7/pose?_time=[now(-1h)..]'
      zenlake get -e tcp/router:7447 'robot/**?_time=[..2026-11-15T10:00:00Z];_max=1'
    """
    checked = [session_options.key_expr(key) for key in keys or ["**"]]
    told: SimpleQueue[int] = SimpleQueue()
    with stopped_by_signals(told.put):
        from zenlake.lake.project import Project
        from zenlake.lake.serve.server import Server

        project = Project.load(lake)
        with (
            session_options.opened(at) as session,
            Server(session, project, checked, complete=complete) as server,
            _display(f"answering {' '.join(checked)} from {project.name}", as_json=json) as show,
        ):
            _run(server.stats, told, show)
    if json:
        print_object({"event": "stopped", "time": time.time(), **server.stats()._asdict()})
    else:
        print_text(f"stopped: {line_shown(server.stats())}")


def _run(stats: Callable[[], "ServeStats"], told: "SimpleQueue[int]", show: Show) -> None:
    """Until a signal; meanwhile `show` is called once a second."""
    due = time.monotonic()
    while True:
        if time.monotonic() >= due:
            show(stats())
            due += TICK_SECONDS
        try:
            told.get(timeout=POLL_SECONDS)
            return
        except Empty:
            continue


@contextmanager
def _display(what: str, *, as_json: bool) -> Iterator[Show]:
    if as_json:
        yield lambda stats: print_object(
            {"event": "serving", "time": time.time(), **stats._asdict()}
        )
        return
    with live_line(escape(what), LINE_SECONDS) as write:
        yield lambda stats: write(line_shown(stats), "")


def line_shown(stats: "ServeStats") -> str:
    """The live line."""
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
