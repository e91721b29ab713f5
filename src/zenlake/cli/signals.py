"""How a long-running command is stopped: the first SIGTERM or Ctrl-C ends it in order, the second
has its usual effect. Knows signals. Does not know what is stopped.
"""

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals(stop: Callable[[int], object]) -> Iterator[None]:
    """Call `stop` with the number of the first signal, on a new thread.

    The thread that the signal interrupts may hold any lock, so `stop` does not run on it. A signal
    that was ignored before stays ignored.
    """
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, _: object) -> None:
        restore()
        _thread.start_new_thread(stop, (number,))

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # Ignored under `nohup`, or as a shell's background job.
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()


def raise_interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Serve as `sys.unraisablehook`: raise a KeyboardInterrupt again that a finalizer swallowed."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        # A real signal also ends a wait; sent from a thread, it arrives after the finalizer.
        _thread.start_new_thread(_interrupt_main_thread, ())
    else:
        sys.__unraisablehook__(lost)


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)
