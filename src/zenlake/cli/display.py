"""One line about work that goes on: live on a terminal, now and then elsewhere.

Knows terminals. Does not know what the line says.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Write = Callable[[str, str], None]
"Shows a line in a style."


@contextmanager
def live_line(title: str, pause: float) -> Iterator[Write]:
    """Show `title` on standard error, and below it a line; without a terminal every `pause` s."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    stderr = Console(stderr=True, highlight=False, markup=False)
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
