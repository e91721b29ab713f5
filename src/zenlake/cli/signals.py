"""How a long-running command is stopped: the first SIGTERM or Ctrl-C ends it in order, the second
has its usual effect. Knows signals. Does not know what is stopped.
"""

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
REPEAT_SECONDS = 0.05  # Time between two signals to a thread that may have missed the first.


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
        _RepeatedInterrupt()
    else:
        sys.__unraisablehook__(lost)


class _RepeatedInterrupt:
    """SIGINT, sent to the main thread by another one until its handler has run.

    Once is not enough: a signal that arrives just before a system call does not end its wait, and
    what the handler raises before the hook has returned is lost.
    """

    def __init__(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        repeating = getattr(before, "__self__", None)
        if isinstance(repeating, _RepeatedInterrupt):
            before = repeating._before
        self._before: Callable[[int, FrameType | None], object] | int | None = before
        self._is_handled = False
        self._is_sending = True
        signal.signal(signal.SIGINT, self._on_signal)
        _thread.start_new_thread(self._send, ())

    def _send(self) -> None:
        while not self._is_handled:
            _interrupt_main_thread()
            time.sleep(REPEAT_SECONDS)
        self._is_sending = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_handled and self._is_sending:
            return  # Sent while the first one was being handled.
        if _is_in_hook(frame):
            return  # The next one comes after the hook.
        self._is_handled = True
        if not self._is_sending:
            signal.signal(signal.SIGINT, self._before)
        if callable(self._before):
            self._before(number, frame)


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)
    else:  # On Windows, where it ends no wait: the handler runs when the thread runs again.
        _thread.interrupt_main()


def _is_in_hook(frame: FrameType | None) -> bool:
    """Return whether `frame` is that of `raise_interrupt_again`, or of a function it called."""
    while frame is not None:
        if frame.f_code is raise_interrupt_again.__code__:
            return True
        frame = frame.f_back
    return False
