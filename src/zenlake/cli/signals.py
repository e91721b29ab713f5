"""How a command that runs for long is told to stop: the first SIGTERM or Ctrl-C ends it in order,
the second has its usual effect. Knows signals, and nothing of what is to be stopped.
"""

import _thread
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[int], object]) -> Iterator[None]:
    """`stop` is called with the number of the first signal, on a thread of its own: this one may
    hold any lock when a signal comes. A signal that was ignored before stays ignored."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def told(number: int, _: object) -> None:
        restore()
        _thread.start_new_thread(stop, (number,))

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under `nohup`, or as a shell's background job
            signal.signal(number, told)
    try:
        yield
    finally:
        restore()


def interrupted_again(lost: "sys.UnraisableHookArgs") -> None:
    """As `sys.unraisablehook`: Ctrl-C that came where nothing can be raised, as while an object
    ends, comes once more."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _thread.start_new_thread(_thread.interrupt_main, ())
    else:
        sys.__unraisablehook__(lost)
