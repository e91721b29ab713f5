"""Ctrl-C is never lost, and never waits for a lock that the interrupted thread holds."""

import gc
import signal
import subprocess
import sys
import threading
from types import FunctionType
from typing import Any

import pytest

from tests.support.waiting import until
from zenlake.api import gc_finalize
from zenlake.cli.signals import STOP_SIGNALS, stop_on_signals

SUBPROCESS_SECONDS = 60.0

# The interruption comes while an object ends, where nothing can be raised. The wait that it has to
# end is far longer than SUBPROCESS_SECONDS.
LOST = """
import signal, sys, time
from zenlake.cli.signals import raise_interrupt_again

class Ends:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

sys.unraisablehook = raise_interrupt_again
try:
    one = Ends()
    del one
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_waits_for_no_lock_of_the_thread_it_comes_to(number: signal.Signals) -> None:
    lock = threading.Lock()
    told: list[int] = []

    def stop(which: int) -> None:
        with lock:
            told.append(which)

    before = signal.getsignal(number)
    with stop_on_signals(stop):
        with lock:
            signal.raise_signal(number)
            assert signal.getsignal(number) == before  # the next has its usual effect
        until(lambda: told, lambda found: found == [number])
    assert signal.getsignal(number) == before


def test_an_ignored_signal_stays_ignored_and_the_other_stops() -> None:
    """As under `nohup`: SIGINT is ignored when the command starts."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    told: list[int] = []
    try:
        with stop_on_signals(told.append):
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGTERM)
            until(lambda: list(told), lambda found: found == [signal.SIGTERM])
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# Signals that arrive before the main thread waits do not end its wait: here the first two.
MISSED = LOST.replace(
    "try:",
    """
send, sent = signal.pthread_kill, []

def missed(thread, number):
    sent.append(number)
    if len(sent) > 2:
        send(thread, number)

signal.pthread_kill = missed
try:""",
)

# The first signal arrives before the hook has returned.
EARLY = LOST.replace(
    "try:",
    """
import _thread
start = _thread.start_new_thread

def start_and_wait(function, arguments):
    start(function, arguments)
    time.sleep(0.2)

_thread.start_new_thread = start_and_wait
try:""",
)

# What is sent again arrives while another object ends.
TWICE = LOST.replace(
    "try:",
    """
class Waits:
    def __del__(self):
        time.sleep(600)

try:
    two = Waits()""",
).replace("del one", "del one, two")

# Windows sends no signal to a thread; there a wait does not end by one either.
WINDOWS = LOST.replace("try:", "del signal.pthread_kill\ntry:").replace(
    "time.sleep(600)", "while True: time.sleep(0.01)"
)

PROGRAMS = {"lost": LOST, "missed": MISSED, "early": EARLY, "twice": TWICE, "windows": WINDOWS}


@pytest.mark.process
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_lost_while_an_object_ends_comes_again(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=SUBPROCESS_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_no_python_of_ours_runs_in_the_cycle_collector() -> None:
    """A signal during it would be lost for the user of a session."""
    there: list[Any] = gc.callbacks
    assert gc_finalize._phases.move_to_end in there
    python = [callback for callback in there if isinstance(callback, FunctionType)]
    assert not [function for function in python if function.__module__.startswith("zenlake")]
