"""CancellationToken: gets that end before their last reply."""

import threading
from typing import Any

import pytest

from tests.support.in_memory_sessions import linked
from zenlake.api.handlers import Callback
from zenlake.api.query import cancellation
from zenlake.api.query.cancellation import CancellationToken
from zenlake.api.values.enums import ConsolidationMode
from zenlake.errors import ZError

NONE = ConsolidationMode.NONE


def test_it_ends_what_waits() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    token = CancellationToken()
    replies = [asking.get("q", cancellation_token=token) for _ in range(3)]
    held = [served.recv() for _ in range(3)]
    held[0].reply("q", "kept")
    token.cancel()
    assert token.is_cancelled
    assert [list(handler) for handler in replies] == [[], [], []]
    assert len(asking.exchange.forgotten) == 3
    held[1].reply("q", "late")
    assert asking.queries.counters["late"] == 1
    token.cancel()


def test_what_was_received_is_still_there() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    token = CancellationToken()
    replies = asking.get("q", cancellation_token=token, consolidation=NONE)
    query = served.recv()
    query.reply("q", "x")
    token.cancel()
    assert [str(reply.ok.payload) for reply in replies] == ["x"]


def test_a_cancelled_token_lets_nothing_begin() -> None:
    asking, _ = linked()
    token = CancellationToken()
    token.cancel()
    ended: list[int] = []
    with pytest.raises(ZError, match="Query was cancelled"):
        asking.get(
            "q",
            Callback(print, lambda: ended.append(1), indirect=False),
            cancellation_token=token,
        )
    assert ended == [1]
    assert asking.exchange.sent == []
    assert asking.queries._gets == {}


def test_it_waits_for_the_callback() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    token = CancellationToken()
    inside, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def on_reply(reply: Any) -> None:
        inside.set()
        assert go_on.wait(10)
        seen.append("reply")

    asking.get(
        "q",
        Callback(on_reply, lambda: seen.append("end")),
        cancellation_token=token,
        consolidation=NONE,
    )
    query = served.recv()
    query.reply("q", "x")
    assert inside.wait(10)
    cancelling = threading.Thread(target=token.cancel)
    cancelling.start()
    assert seen == []
    go_on.set()
    cancelling.join(10)
    assert not cancelling.is_alive()
    assert seen == ["reply", "end"]


def test_it_waits_for_a_callback_whose_get_is_over() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    token = CancellationToken()
    inside, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def on_reply(reply: Any) -> None:
        inside.set()
        assert go_on.wait(10)
        seen.append("reply")

    asking.get("q", on_reply, cancellation_token=token)
    with served.recv() as query:
        query.reply("q", "x")
    assert asking.queries._gets == {}
    assert inside.wait(10)
    threading.Timer(0.05, go_on.set).start()
    token.cancel()
    assert seen == ["reply"]


def test_a_callback_may_cancel_its_own_get() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    token = CancellationToken()
    done = threading.Event()

    def on_reply(reply: Any) -> None:
        token.cancel()
        done.set()

    asking.get("q", on_reply, cancellation_token=token, consolidation=NONE)
    served.recv().reply("q", "x")
    assert done.wait(10)
    token.cancel()


def test_a_token_forgets_what_is_over() -> None:
    asking, _ = linked()
    token = CancellationToken()
    for _ in range(10 * cancellation.TIDY_FROM):
        assert list(asking.get("nobody", cancellation_token=token)) == []
    assert len(token._entries) <= cancellation.TIDY_FROM


def test_repr_shows_whether_it_is_cancelled() -> None:
    assert repr(CancellationToken()) == "CancellationToken(is_cancelled=False)"
