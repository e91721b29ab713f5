"""Samples that wait for a slow callback are bounded in bytes; then reading goes on."""

import threading

import pytest

import zenlake
from tests.support.session_pairs import pair, publisher_for
from tests.support.waiting import until
from zenlake.api import sinks
from zenlake.api.discovery.liveliness import Liveliness
from zenlake.wire.declare import Declare, DeclareToken, UndeclareToken
from zenlake.wire.wireexpr import WireExpr

LARGE = 1 << 20


def test_large_samples_for_a_callback_that_waits_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CALLBACK_BYTES", 8 * LARGE)
    go = threading.Event()
    got: list[int] = []

    def slow(sample: zenlake.Sample) -> None:
        go.wait()
        got.append(len(sample.payload))

    with pair() as (listener, dialler):
        subscriber = listener.declare_subscriber("a", slow)
        sink = subscriber._sink
        publisher = publisher_for(dialler, "a")
        for _ in range(100):
            publisher.put(bytes(LARGE))
        try:
            until(lambda: dialler.stats().dropped)
            most = sink._waiting  # type: ignore[attr-defined]
        finally:
            go.set()
        assert most <= 2 * 8
        until(lambda: len(got) >= most)
        until(lambda: sink._waiting == 0)  # type: ignore[attr-defined]

        def small() -> bool:
            publisher.put(b"small")  # some go the way of the large ones
            return 5 in got

        until(small)
        assert sink.capacity == sinks.CALLBACK_ITEMS  # type: ignore[attr-defined]


def test_a_late_answer_to_a_liveliness_get_is_no_token_of_a_subscriber() -> None:
    """Such answers have no id: taken for tokens, the end of the real one would go unnoticed."""
    with pair() as (listener, _):
        interests = listener._core.interests
        liveliness: Liveliness = listener.liveliness()
        watching = liveliness.declare_subscriber("t/*", history=True)
        key = WireExpr(0, "t/1")
        interests.on_declare(Declare(DeclareToken(7, key)))
        assert str(watching.recv().kind) == "SampleKind.PUT"
        interests.on_declare(Declare(DeclareToken(0, key), interest_id=999))
        interests.on_declare(Declare(UndeclareToken(7)))
        assert str(watching.recv().kind) == "SampleKind.DELETE"
