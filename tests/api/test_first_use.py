"""Kernels that have to be compiled first: a session goes on meanwhile.

Compiling takes seconds, on a small board a minute. A peer closes a session that is silent for its
lease, so that neither an I/O thread nor a session's lock may wait for a kernel.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from tests.support.session_pairs import DEADLINE, pair, publisher_for
from tests.support.waiting import until
from zenlake.api.pubsub.arrow import ArrowBatches
from zenlake.api.query.reply_batch import reply_batch
from zenlake.columnar import read
from zenlake.columnar.kernels import gather
from zenlake.runtime import kernel_loader
from zenlake.wire.kernels import emit, push_run

pytestmark = [pytest.mark.slow, pytest.mark.kernel]

ROWS = 100


def watched(patch: pytest.MonkeyPatch, owner: Any, name: str, first: Callable[[], None]) -> None:
    """Call `first` when the kernel `name` is called for the first time, as if it was compiled."""
    kernel, calls = getattr(owner, name), []

    def call(*args: Any) -> Any:
        calls.append(name)
        if len(calls) == 1:
            first()
        return kernel(*args)

    patch.setattr(owner, name, call)


@contextmanager
def sending_while_compiling(patch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """Yield two sessions; assert that the second could put while it compiled its encoder."""
    sent: list[bool] = []
    with (
        pair() as (listener, ours),
        listener.declare_subscriber("t/**", lambda sample: None),
        publisher_for(ours, "t/1"),
    ):

        def compiling() -> None:
            other = threading.Thread(target=ours.put, args=("t/1", b"alive"), daemon=True)
            other.start()
            other.join(DEADLINE)
            sent.append(not other.is_alive())

        watched(patch, emit, "emit_kernel", compiling)
        yield listener, ours
        assert sent == [True]


def rows_on(key: str) -> pa.RecordBatch:
    return pa.record_batch({"key": [key] * ROWS, "payload": [b"x"] * ROWS})


def test_a_session_sends_while_put_batch_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    with sending_while_compiling(monkeypatch) as (_, ours):
        assert ours.put_batch(rows_on("t/1")) == ROWS


def test_a_session_sends_while_replies_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        sending_while_compiling(monkeypatch) as (listener, ours),
        ours.declare_queryable("q/**") as queryable,
    ):
        with listener.declare_querier("q/1") as querier:
            until(lambda: querier.matching_status.matching)
        replies = listener.get("q/1?_time=[..]", timeout=DEADLINE)
        with queryable.recv() as query:
            assert reply_batch(query, rows_on("q/1"), lambda: True) == (ROWS, 0)
        assert len([*replies]) == ROWS


def test_a_subscriber_compiles_before_it_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(read, "_loaded", False)
    watched(
        monkeypatch, gather, "append_kernel", lambda: threads.append(threading.current_thread())
    )
    handler = ArrowBatches(max_rows=ROWS, max_age=0.01)
    assert threads == [threading.current_thread()]
    with pair() as (listener, ours):
        subscriber = listener.declare_subscriber("t/**", handler)
        with publisher_for(ours, "t/1") as publisher:
            publisher.put(b"x")
            assert subscriber.recv()["payload"].to_pylist() == [b"x"]
        subscriber.undeclare()


@pytest.mark.parametrize("name", ["group_kernel", "rewrite_kernel", "copy_kernel"])
def test_the_loader_compiles_what_an_io_thread_calls(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    watched(monkeypatch, push_run, name, lambda: threads.append(threading.current_thread().name))
    monkeypatch.setattr(kernel_loader, "_ready", False)
    monkeypatch.setattr(kernel_loader, "_loading", None)
    kernel_loader.load()
    assert threads == [kernel_loader.THREAD_NAME]


def test_zero_rows_are_a_batch() -> None:
    with pair() as (_, ours):
        assert ours.put_batch(pa.record_batch({"key": pa.array([], pa.string())})) == 0
