"""SerialExecutor: in order, one at a time, and nothing is left behind."""

import logging
import threading

import pytest

from tests.support.waiting import until
from zenlake.serial import SerialExecutor


def test_calls_run_in_the_order_of_submission() -> None:
    executor, seen = SerialExecutor("test"), list[int]()
    for number in range(5):
        executor.submit(lambda number=number: seen.append(number))  # type: ignore[misc]
    assert len(executor) == 5
    executor.run()
    assert (seen, len(executor)) == ([0, 1, 2, 3, 4], 0)


def test_a_call_that_submits_and_runs_is_followed_by_its_own() -> None:
    executor, seen = SerialExecutor("test"), list[str]()

    def outer() -> None:
        executor.submit(lambda: seen.append("inner"))
        executor.run()
        seen.append("outer")

    executor.submit(outer)
    executor.run()
    assert seen == ["outer", "inner"]


def test_a_call_of_another_thread_waits_for_the_running_one_without_blocking() -> None:
    executor, seen = SerialExecutor("test"), list[str]()
    started, release = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        assert release.wait(30)
        seen.append(threading.current_thread().name)

    executor.submit(slow)
    worker = threading.Thread(target=executor.run, name="worker")
    worker.start()
    assert started.wait(30)
    executor.submit(lambda: seen.append(threading.current_thread().name))
    executor.run()
    assert seen == []
    release.set()
    worker.join(30)
    assert seen == ["worker", "worker"]


def test_an_error_is_logged_and_the_next_call_runs(caplog: pytest.LogCaptureFixture) -> None:
    executor, seen = SerialExecutor("matching"), list[int]()
    executor.submit(lambda: 1 // 0)
    executor.submit(lambda: seen.append(1))
    with caplog.at_level(logging.ERROR):
        executor.run()
    assert seen == [1]
    assert "matching: a call failed" in caplog.text


def test_ctrl_c_in_a_call_leaves_the_rest_for_the_next_run() -> None:
    executor, seen = SerialExecutor("test"), list[int]()

    def interrupt() -> None:
        raise KeyboardInterrupt

    executor.submit(interrupt)
    executor.submit(lambda: seen.append(1))
    with pytest.raises(KeyboardInterrupt):
        executor.run()
    executor.run()
    assert seen == [1]


def test_no_call_is_lost_between_threads() -> None:
    executor, seen = SerialExecutor("test"), list[int]()
    running = threading.Lock()

    def call(number: int) -> None:
        assert running.acquire(blocking=False), "two calls at a time"
        seen.append(number)
        running.release()

    def work(first: int) -> None:
        for number in range(first, first + 2000):
            executor.submit(lambda number=number: call(number))  # type: ignore[misc]
            executor.run()

    workers = [threading.Thread(target=work, args=(10_000 * n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    until(lambda: len(seen) == 8000)
    assert not len(executor)
    for n in range(4):
        own = [number for number in seen if number // 10_000 == n]
        assert own == sorted(own)
