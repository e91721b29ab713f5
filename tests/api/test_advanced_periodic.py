"""Periodic calls: one thread while there are any, none afterwards."""

import threading
from threading import Event

import pytest

from zenlake.ext.periodic import Scheduler

SOON = 30.0


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "zenlake-periodic"]


def test_it_is_called_again_and_again_until_cancelled() -> None:
    scheduler = Scheduler()
    calls, enough = [], Event()

    def call() -> None:
        calls.append(threading.current_thread())
        if len(calls) >= 3:
            enough.set()

    periodic = scheduler.every(0.001, call)
    assert enough.wait(SOON)
    periodic.cancel()
    seen = len(calls)
    assert threads() == []
    assert len(calls) == seen
    assert all(thread.daemon for thread in calls)


def test_one_thread_serves_all_and_goes_with_the_last() -> None:
    scheduler = Scheduler()
    many = [scheduler.every(1000.0, lambda: None) for _ in range(5)]
    assert len(threads()) == 1
    for periodic in many[:-1]:
        periodic.cancel()
    assert len(threads()) == 1
    many[-1].cancel()
    assert threads() == []
    many[-1].cancel()


def test_a_new_one_starts_a_new_thread() -> None:
    scheduler = Scheduler()
    for _ in range(3):
        called = Event()
        periodic = scheduler.every(0.001, called.set)
        assert called.wait(SOON)
        periodic.cancel()
        assert threads() == []


def test_the_shorter_period_is_not_held_up_by_the_longer() -> None:
    scheduler = Scheduler()
    called = Event()
    longer = scheduler.every(1000.0, lambda: None)
    shorter = scheduler.every(0.001, called.set)
    assert called.wait(SOON)
    shorter.cancel()
    longer.cancel()


def test_a_call_that_returns_false_is_not_repeated() -> None:
    scheduler = Scheduler()
    called = Event()

    def call() -> bool:
        called.set()
        return False

    scheduler.every(0.001, call)
    assert called.wait(SOON)
    for thread in threads():
        thread.join(SOON)
    assert threads() == []


def test_an_error_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = Scheduler()
    calls, twice = [], Event()

    def call() -> None:
        calls.append(1)
        if len(calls) > 1:
            twice.set()
        raise ValueError("no luck")

    periodic = scheduler.every(0.001, call)
    assert twice.wait(SOON)
    periodic.cancel()
    assert "no luck" in caplog.text


def test_it_can_cancel_itself() -> None:
    scheduler = Scheduler()
    ready, done = Event(), Event()

    def call() -> None:
        ready.wait(SOON)
        periodic.cancel()
        done.set()

    periodic = scheduler.every(0.001, call)
    ready.set()
    assert done.wait(SOON)
    for thread in threads():
        thread.join(SOON)
    assert threads() == []
