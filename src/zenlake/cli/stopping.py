"""How a command that runs for long is told to stop: the first SIGTERM or Ctrl-C ends it in order,
the second has its usual effect. Knows signals, and nothing of what is to be stopped.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[int], object]) -> Iterator[None]:
    """`stop` is called with the number of the first signal."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def told(number: int, _: object) -> None:
        restore()
        stop(number)

    for number in STOP_SIGNALS:
        signal.signal(number, told)
    try:
        yield
    finally:
        restore()
