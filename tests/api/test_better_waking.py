"""A waiting call returns when its event can no longer happen; unreferenced entities are freed."""

import gc
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

import zenlake
from tests.support.session_pairs import DEADLINE, dialling, listening, opened, pair, publisher_for
from tests.support.waiting import until
from zenlake.handlers import Callback, FifoChannel, RingChannel

pytestmark = pytest.mark.slow

WAITERS = 4


class Waiters:
    """Threads in one call, and how each of them came out of it."""

    def __init__(self, *calls: Callable[[], object]) -> None:
        self.ends: list[str] = []
        self._inside = 0
        self._threads = [threading.Thread(target=self._wait, args=(call,)) for call in calls]
        for thread in self._threads:
            thread.start()
        until(lambda: self._inside == len(calls))

    def _wait(self, call: Callable[[], object]) -> None:
        self._inside += 1
        try:
            self.ends.append(f"got {call()}")
        except zenlake.ZError as error:
            self.ends.append(str(error))

    def join(self) -> list[str]:
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        return self.ends


@pytest.mark.parametrize("handler", [None, FifoChannel(3), RingChannel(3)], ids=repr)
def test_undeclare_wakes_all_who_wait(handler: Any) -> None:
    with opened() as session:
        sub = session.declare_subscriber("a/**", handler)
        waiters = Waiters(*[sub.recv] * WAITERS)
        sub.undeclare()
        ends = waiters.join()
        assert len(ends) == WAITERS
        closed = ("channel is empty and closed", "The ringbuffer has been deleted.")
        assert all(end in (*closed, "Undeclared subscriber") for end in ends)


def test_each_waiter_gets_one() -> None:
    with opened() as session:
        sub = session.declare_subscriber("a/**")
        waiters = Waiters(*[lambda: str(sub.recv().payload)] * WAITERS)
        for number in range(WAITERS):
            session.put("a/b", str(number))
        assert sorted(waiters.join()) == [f"got {number}" for number in range(WAITERS)]


def test_close_wakes_all_who_wait() -> None:
    with pair() as (listener, dialler):
        queryable = listener.declare_queryable("q")
        until(lambda: dialler.declare_querier("q").matching_status.matching)
        alive = dialler.liveliness()
        publisher = dialler.declare_publisher("nobody")
        info = dialler.info
        entities: list[Any] = [
            dialler.declare_subscriber("a"),
            dialler.declare_subscriber("a", RingChannel(1)),
            dialler.declare_queryable("b"),
            dialler.get("q", timeout=10 * DEADLINE),
            alive.declare_subscriber("c"),
            publisher.declare_matching_listener(),
            info.declare_transport_events_listener(),
            info.declare_link_events_listener(),
        ]
        query = queryable.recv()
        waiters = Waiters(*(entity.recv for entity in entities))
        dialler.close()
        ends = waiters.join()
        assert len(ends) == len(entities)
        query.drop()
        for entity in entities:
            with pytest.raises(zenlake.ZError):
                entity.recv()
            assert list(entity) == []


def test_close_wakes_a_loop() -> None:
    session = opened()
    sub = session.declare_subscriber("a")
    waiters = Waiters(lambda: len(list(sub)))
    session.close()
    assert waiters.join() == ["got 0"]


def test_close_wakes_one_who_waits_to_put() -> None:
    session = opened()
    session_sub = session.declare_subscriber("a", FifoChannel(1))

    def put_three() -> None:
        for _ in range(3):
            session.put("a", "x")

    waiters = Waiters(put_three)
    session.close()
    waiters.join()
    with pytest.raises(zenlake.ZError):
        session.put("a", "x")
    assert [str(sample.payload) for sample in session_sub][:1] == ["x"]


def test_a_session_that_nobody_holds_closes() -> None:
    listener, port = listening()
    with listener:
        session = dialling(port)
        sub = session.declare_subscriber("a")
        until(lambda: listener.info.peers_zid())
        waiters = Waiters(sub.recv)
        del session
        gc.collect()
        until(lambda: not listener.info.peers_zid())
        assert waiters.join() == ["channel is empty and closed"]
        until(lambda: not any(t.name == "zenlake close" for t in threading.enumerate()))


def test_a_session_in_a_cycle_closes() -> None:
    listener, port = listening()
    with listener:
        cycle: dict[str, Any] = {"session": dialling(port)}
        cycle["self"] = cycle
        cycle["sub"] = cycle["session"].declare_subscriber("a")
        until(lambda: listener.info.peers_zid())
        del cycle
        gc.collect()
        until(lambda: not listener.info.peers_zid())
        until(lambda: not any(t.name.startswith("zenlake close") for t in threading.enumerate()))


def test_what_nobody_holds_is_undeclared_unless_a_callback_gets_it() -> None:
    with pair() as (listener, dialler):
        got: list[zenlake.Sample] = []
        held = dialler.declare_subscriber("held", (got.append, None))
        publisher = publisher_for(listener, "held")
        del held
        gc.collect()
        until(lambda: not publisher.matching_status.matching)
        dropped: list[int] = []
        dialler.declare_subscriber("back", Callback(got.append, lambda: dropped.append(1)))
        gc.collect()
        publisher = publisher_for(listener, "back")
        publisher.put("x")
        until(lambda: len(got) == 1)
        assert not dropped
        dialler.close()
        until(lambda: dropped == [1])


def test_a_publisher_queryable_and_token_that_nobody_holds_are_undeclared() -> None:
    with pair() as (listener, dialler):
        queryable = dialler.declare_queryable("q")
        querier = listener.declare_querier("q")
        until(lambda: querier.matching_status.matching)
        del queryable
        gc.collect()
        until(lambda: not querier.matching_status.matching)
        watch = listener.liveliness().declare_subscriber("t")
        token = dialler.liveliness().declare_token("t")
        assert watch.recv().kind is zenlake.SampleKind.PUT
        del token
        gc.collect()
        assert watch.recv().kind is zenlake.SampleKind.DELETE


def test_a_callback_may_undeclare_and_close() -> None:
    session = opened()
    done = threading.Event()

    def once(sample: zenlake.Sample) -> None:
        sub.undeclare()
        session.close()
        done.set()

    sub = session.declare_subscriber("a", once)
    session.put("a", "x")
    assert done.wait(DEADLINE)
    assert session.is_closed()
    until(lambda: not any(t.name.startswith("zenlake subscriber") for t in threading.enumerate()))


def test_errors_of_callbacks_are_logged_and_hurt_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as session:
        got: list[str] = []

        def fails(sample: zenlake.Sample) -> None:
            got.append(str(sample.payload))
            raise RuntimeError("on purpose")

        session.declare_subscriber("a", fails)
        session.put("a", "1")
        session.put("a", "2")
        until(lambda: got == ["1", "2"])
        until(lambda: len(caplog.records) == 2)
    assert {record.name for record in caplog.records} == {"zenlake.handlers"}
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert all(record.exc_info is not None for record in caplog.records)


def test_logs_go_to_python_s_logging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "zenlake")
    with pair():
        pass
    assert any(record.name.startswith("zenlake.runtime") for record in caplog.records)
    assert all(record.name.startswith("zenlake") for record in caplog.records)
