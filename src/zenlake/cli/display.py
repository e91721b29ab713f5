"""How a command that takes long shows its progress: JSON lines, text lines, or live on a terminal.

Knows terminals, standard error and the clock. Does not know what is shown.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from zenlake.cli.printing import print_object

if TYPE_CHECKING:
    from rich.console import Console

TICK_SECONDS = 1.0  # Time between two states.
LINE_SECONDS = 10.0  # Time between two lines where there is no terminal.
POLL_SECONDS = 0.05  # Longest time until a signal that arrives just before a wait is noticed.

ShowState = Callable[[dict[str, Any], str, str], None]
"Shows a state: its facts as an object, or its line in a style."


def error_console() -> "Console":
    """Return a console of standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def print_event(event: str, facts: dict[str, Any]) -> None:
    """Print an event, its time and its facts as a line of JSON on standard output."""
    print_object({"event": event, "time": time.time(), **facts})


# ---- a state, every second


def ticks(
    stopped: Event, seconds: float | None = None, done: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Yield every second until `stopped` is set, `seconds` have passed, or `done` returns True."""
    due = time.monotonic()
    end = float("inf") if seconds is None else due + seconds
    while True:
        now = time.monotonic()
        if now >= due:
            yield
            due = now + TICK_SECONDS
        wait = min(POLL_SECONDS, max(0.0, min(due, end) - now))
        if now >= end or done() or stopped.wait(wait):
            return


@contextmanager
def state_display(event: str, title: str, *, as_json: bool) -> Iterator[ShowState]:
    """Show states as JSON events, as one line below `title`, or as a line every LINE_SECONDS."""
    if as_json:
        yield lambda facts, line, style: print_event(event, facts)
        return
    from rich.live import Live
    from rich.text import Text

    stderr = error_console()
    stderr.print(title, soft_wrap=True)
    if stderr.is_terminal:
        with Live(console=stderr, auto_refresh=False, transient=True) as live:
            yield lambda facts, line, style: live.update(Text(line, style), refresh=True)
        return
    last = time.monotonic()

    def write(facts: dict[str, Any], line: str, style: str) -> None:
        nonlocal last
        if time.monotonic() >= last + LINE_SECONDS:
            last = time.monotonic()
            stderr.print(line, soft_wrap=True)

    yield write


# ---- a progress bar


class AdvanceBar(Protocol):
    def __call__(self, done: int, total: int | None = None, text: str = "") -> None: ...


@contextmanager
def progress_bar(text: str, *, hide: bool = False) -> Iterator[AdvanceBar]:
    """Show a progress bar on standard error, on a terminal and without `hide`."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    stderr = error_console()
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False))
    bar = Progress(*columns, console=stderr, transient=True)
    task = bar.add_task(text, total=None)

    def advance(done: int, total: int | None = None, text: str = "") -> None:
        bar.update(task, completed=done, total=total, description=text or None)

    with bar if stderr.is_terminal and not hide else nullcontext():
        yield advance
