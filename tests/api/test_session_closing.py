"""Closing a session from wherever a user may do it: no deadlock, nothing left behind."""

import threading
from typing import Any

import zenlake
from tests.support.session_pairs import listening, opened, pair, publisher_for
from tests.support.waiting import until

DEADLINE = 20.0


def ended(thread: threading.Thread) -> bool:
    thread.join(DEADLINE)
    return not thread.is_alive()


def io_threads() -> int:
    return sum(thread.name.endswith("I/O") for thread in threading.enumerate())


def test_a_direct_callback_may_close_its_session() -> None:
    before = io_threads()
    with pair() as (listener, dialler):
        events = listener.info.declare_transport_events_listener()
        heard = threading.Thread(target=lambda: [*events], daemon=True)
        heard.start()
        done = threading.Event()

        def close(_: zenlake.Sample) -> None:
            listener.close()
            done.set()

        listener.declare_subscriber("a", zenlake.handlers.Callback(close, indirect=False))
        publisher_for(dialler, "a").put(b"")
        assert done.wait(DEADLINE)
        assert ended(heard)
        assert listener.is_closed()
        until(lambda: io_threads() == before + 1)
    until(lambda: io_threads() == before)


def test_a_drop_callback_may_close_the_session_that_is_closing() -> None:
    session = opened()
    calls: list[str] = []

    def drop() -> None:
        calls.append("drop")
        session.close()

    session.declare_subscriber("a", zenlake.handlers.Callback(print, drop, indirect=False))
    session.declare_queryable("a", zenlake.handlers.Callback(print, drop, indirect=False))
    closing = threading.Thread(target=session.close, daemon=True)
    closing.start()
    assert ended(closing)
    assert calls == ["drop", "drop"]


def test_two_threads_close_and_one_of_them_is_the_io_thread() -> None:
    with pair() as (listener, dialler):
        inside, go, done = threading.Event(), threading.Event(), threading.Event()

        def close(_: zenlake.Sample) -> None:
            inside.set()
            go.wait(DEADLINE)
            listener.close()
            done.set()

        listener.declare_subscriber("a", zenlake.handlers.Callback(close, indirect=False))
        publisher_for(dialler, "a").put(b"")
        assert inside.wait(DEADLINE)
        closing = threading.Thread(target=listener.close, daemon=True)
        closing.start()
        until(listener.is_closed)
        go.set()
        assert done.wait(5.0), "the I/O thread waits for whom waits for it"
        assert ended(closing)


def test_a_subscriber_that_is_undeclared_while_its_session_closes_is_closed(
    monkeypatch: Any,
) -> None:
    session = opened()
    subscriber = session.declare_subscriber("a")
    handler = subscriber.handler
    exchange = session._core.exchange
    send = exchange.send

    def closed_meanwhile(message: Any) -> None:
        exchange.closed = True
        send(message)

    monkeypatch.setattr(exchange, "send", closed_meanwhile)
    subscriber.undeclare()
    monkeypatch.undo()
    exchange.closed = False
    session.close()
    reading = threading.Thread(target=lambda: [*handler], daemon=True)
    reading.start()
    assert ended(reading)


def test_put_batch_on_a_closed_session_says_so() -> None:
    import pyarrow as pa
    import pytest

    session, _ = listening()
    publisher = session.declare_publisher("a")
    session.close()
    batch = pa.RecordBatch.from_pydict({"payload": [b"x"]})
    with pytest.raises(zenlake.ZError, match="session closed"):
        publisher.put_batch(batch)
    with pytest.raises(zenlake.ZError, match="session closed"):
        session.put_batch(pa.RecordBatch.from_pydict({"key": ["a"], "payload": [b"x"]}))
