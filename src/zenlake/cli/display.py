"""How a command that takes long shows its progress: JSON lines, text lines, or live on a terminal.

Knows terminals and standard error. Does not know what is shown.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from zenlake.cli.printing import print_object

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

MAX_EVENTS = 10_000  # Events that may wait to be shown.

Item = TypeVar("Item")
State = TypeVar("State")
ShownState = TypeVar("ShownState", contravariant=True)

WriteLine = Callable[[str, str], None]
"Shows a line in a style."


def error_console() -> "Console":
    """Return a console of standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def print_event(event: str, facts: dict[str, Any]) -> None:
    """Print an event, its time and its facts as a line of JSON on standard output."""
    print_object({"event": event, "time": time.time(), **facts})


# ---- one line


@contextmanager
def live_line(title: str, pause: float) -> Iterator[WriteLine]:
    """Show `title` and below it one line; without a terminal, print the line every `pause` s."""
    from rich.live import Live
    from rich.text import Text

    stderr = error_console()
    stderr.print(title, soft_wrap=True)
    if stderr.is_terminal:
        with Live(console=stderr, auto_refresh=False, transient=True) as live:
            yield lambda line, style: live.update(Text(line, style), refresh=True)
        return
    last = time.monotonic()

    def write(line: str, style: str) -> None:
        nonlocal last
        if time.monotonic() >= last + pause:
            last = time.monotonic()
            stderr.print(line, soft_wrap=True)

    yield write


# ---- a progress bar


class AdvanceBar(Protocol):
    def __call__(self, done: int, total: int | None = None, text: str = "") -> None: ...


@contextmanager
def progress_bar(text: str, *, hide: bool = False) -> Iterator[AdvanceBar | None]:
    """Show a progress bar on standard error; None without a terminal, or with `hide`."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    stderr = error_console()
    if hide or not stderr.is_terminal:
        yield None
        return
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(text, total=None)

        def advance(done: int, total: int | None = None, text: str = "") -> None:
            bar.update(task, completed=done, total=total, description=text or None)

        yield advance


# ---- events and a state


class EventDisplay(Protocol[ShownState]):
    def show(self, event: str, facts: dict[str, Any]) -> None:
        """Show an event."""

    def update(self, state: ShownState) -> None:
        """Show the state that the command is in now."""


class JsonEvents:
    """Events as lines of JSON; states are not printed."""

    def show(self, event: str, facts: dict[str, Any]) -> None:
        print_event(event, facts)

    def update(self, state: object) -> None:
        pass


class LineEvents(Generic[State]):
    """Events and changes of the state as lines of text."""

    def __init__(
        self,
        console: "Console",
        format_event: Callable[[str, dict[str, Any]], str | None],
        format_change: Callable[[State | None, State], str | None],
    ) -> None:
        self._console = console
        self._format_event = format_event
        self._format_change = format_change
        self._state: State | None = None

    def show(self, event: str, facts: dict[str, Any]) -> None:
        self._print(self._format_event(event, facts))

    def update(self, state: State) -> None:
        self._print(self._format_change(self._state, state))
        self._state = state

    def _print(self, line: str | None) -> None:
        if line:
            self._console.print(line, soft_wrap=True)


class LiveEvents(EventDisplay[ShownState], Protocol[ShownState]):
    """An event display that Rich can draw."""

    def __rich__(self) -> "RenderableType": ...


@contextmanager
def event_display(
    *,
    as_json: bool,
    lines: Callable[["Console"], EventDisplay[State]],
    live: Callable[["Console"], LiveEvents[State]],
) -> Iterator[EventDisplay[State]]:
    """Choose the display: JSON, `live` on a terminal, else `lines`."""
    from rich.live import Live

    stderr = error_console()
    if as_json:
        yield JsonEvents()
    elif not stderr.is_terminal:
        yield lines(stderr)
    else:
        table = live(stderr)
        with Live(table, console=stderr, refresh_per_second=2):
            yield table


class EventQueue(Generic[Item]):
    """Events on their way to the display; above `capacity` they are counted and dropped."""

    def __init__(self, capacity: int = MAX_EVENTS) -> None:
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._capacity = capacity
        self.dropped = 0
        self.stopped = False
        "Whether `stop` was called."

    def put(self, event: Item) -> None:
        """Append an event; from any thread."""
        if self._queue.qsize() < self._capacity:
            self._queue.put(event)
        else:
            self.dropped += 1

    def stop(self) -> None:
        """Set `stopped`, and wake the thread that waits in `take`."""
        self.stopped = True
        self._queue.put(None)

    def take(self, seconds: float) -> Item | None:
        """Return the next event; None if there is none within `seconds`, or on `stop`."""
        with suppress(Empty):
            return self._queue.get(timeout=seconds)
        return None

    def drain(self) -> Iterator[Item]:
        """Yield the events that wait now."""
        while not self._queue.empty():
            if (event := self._queue.get()) is not None:
                yield event
