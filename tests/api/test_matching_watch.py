"""Matching status: what is declared elsewhere and here, and who is told of changes."""

import copy
import pickle
import threading
from typing import Any

import pytest

from tests.support.in_memory_sessions import Side
from zenlake.api.discovery import matching
from zenlake.api.discovery.matching import MatchingListener, MatchingStatus, MatchWatch
from zenlake.api.handlers import Callback
from zenlake.api.query.options import QueryOptions
from zenlake.api.query.querier import Querier
from zenlake.api.values.enums import Locality, QueryTarget
from zenlake.api.values.wrapped import make
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.wire.declare import (
    Declaration,
    Declare,
    DeclareFinal,
    DeclareKeyExpr,
    DeclareQueryable,
    DeclareSubscriber,
    UndeclareQueryable,
    UndeclareSubscriber,
)
from zenlake.wire.enums import InterestMode, InterestOptions, Mapping
from zenlake.wire.extensions import QueryableInfo
from zenlake.wire.interest import Interest
from zenlake.wire.request import Request
from zenlake.wire.wireexpr import WireExpr


def key(text: str) -> WireExpr:
    return WireExpr(0, text, Mapping.SENDER)


def tell(side: Side, *bodies: Declaration) -> None:
    for body in bodies:
        side.interests.on_declare(Declare(body))


def interests(side: Side) -> list[tuple[int, str, str | None]]:
    return [
        (sent.id, sent.mode.name, None if sent.key is None else sent.key.suffix)
        for sent in side.exchange.sent_of(Interest)
    ]


def watched(side: Side, text: str = "a/*", **more: Any) -> tuple[MatchWatch, list[bool]]:
    watch = side.interests.watch("subscribers", KeyExpr(text), **more)
    told: list[bool] = []
    watch.listen(told.append)
    return watch, told


def test_declared_and_undeclared() -> None:
    side = Side()
    watch, told = watched(side)
    (sent,) = side.exchange.sent_of(Interest)
    assert sent.mode is InterestMode.CURRENT_FUTURE
    assert sent.options == InterestOptions.KEYEXPRS | InterestOptions.SUBSCRIBERS
    assert not watch.matching
    tell(side, DeclareSubscriber(1, key("b")))
    assert (watch.matching, told) == (False, [])
    tell(side, DeclareSubscriber(2, key("a/b")), DeclareSubscriber(3, key("**")))
    assert (watch.matching, told) == (True, [True])
    tell(side, UndeclareSubscriber(2), UndeclareSubscriber(1), UndeclareSubscriber(99))
    assert (watch.matching, told) == (True, [True])
    tell(side, UndeclareSubscriber(3))
    assert (watch.matching, told) == (False, [True, False])
    watch.close()
    assert [mode for _, mode, _ in interests(side)] == ["CURRENT_FUTURE", "FINAL"]
    watch.close()
    assert len(interests(side)) == 2


def test_a_declaration_again_with_another_key_takes_the_first_back() -> None:
    side = Side()
    watch, told = watched(side)
    tell(side, DeclareSubscriber(1, key("a/b")), DeclareSubscriber(1, key("z")))
    assert told == [True, False]
    watch.close()


def test_watches_of_one_key_share_an_interest() -> None:
    side = Side()
    first, second = watched(side)[0], watched(side)[0]
    tell(side, DeclareSubscriber(1, key("a/b")))
    first.close()
    seen = [second.matching]
    tell(side, UndeclareSubscriber(1))
    assert [*seen, second.matching] == [True, False]
    second.close()
    assert [mode for _, mode, _ in interests(side)] == ["CURRENT_FUTURE", "FINAL"]


def test_what_nobody_wants_to_know_is_forgotten() -> None:
    """No message would say when it ends."""
    side = Side()
    first, second = watched(side, "a/*")[0], watched(side, "b")[0]
    tell(side, DeclareSubscriber(1, key("a/1")), DeclareSubscriber(2, key("*/**")))
    first.close()
    again, told = watched(side, "a/*")
    assert (again.matching, told) == (True, [True])  # by */**, which the second still watches
    second.close()
    again.close()
    last, told = watched(side, "a/*")
    assert (last.matching, told) == (False, [])
    last.close()


def test_a_listener_is_told_the_state_if_it_is_a_match() -> None:
    side = Side()
    watch, _ = watched(side)
    tell(side, DeclareSubscriber(1, key("a/b")))
    told: list[bool] = []
    stop = watch.listen(told.append)
    assert told == [True]
    stop()
    tell(side, UndeclareSubscriber(1))
    assert told == [True]
    watch.close()


@pytest.mark.parametrize(
    ("destination", "here", "elsewhere"),
    [
        (Locality.ANY, True, True),
        (Locality.SESSION_LOCAL, True, False),
        (Locality.REMOTE, False, True),
    ],
)
def test_the_destination_decides_which_subscribers_match(
    destination: Locality, here: bool, elsewhere: bool
) -> None:
    side = Side()
    local: list[int] = []
    watch, told = watched(side, local=lambda: bool(local), destination=destination)
    local.append(1)
    side.interests.local_changed("subscribers")
    assert (watch.matching, told) == (here, [True] if here else [])
    local.clear()
    side.interests.local_changed("subscribers")
    tell(side, DeclareSubscriber(1, key("a/b")))
    assert watch.matching is elsewhere
    watch.close()
    assert len(interests(side)) == (2 if elsewhere else 0)


def test_declarations_beyond_the_limit_are_counted_and_ignored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(matching, "MAX_DECLARED", 1)
    side = Side()
    watch, told = watched(side, "**")
    tell(side, DeclareSubscriber(1, key("a")), DeclareSubscriber(2, key("b")))
    tell(side, DeclareSubscriber(1, key("c")), UndeclareSubscriber(1))
    assert side.interests.counters["subscribers"] == 1
    assert "other nodes have more than 1 subscribers" in caplog.text
    assert told == [True, False]
    watch.close()


def test_changes_from_many_threads_are_told_in_turn() -> None:
    side = Side()
    _, told = watched(side, "a")

    def flap(number: int) -> None:
        for _ in range(200):
            tell(side, DeclareSubscriber(number, key("a")), UndeclareSubscriber(number))

    threads = [threading.Thread(target=flap, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [bool(at % 2 == 0) for at in range(len(told))]
    assert told[-1] is False


def test_declarations_of_no_interest_here_do_nothing() -> None:
    side = Side()
    _, told = watched(side)
    sent = interests(side)
    tell(side, DeclareKeyExpr(1, key("a")), DeclareFinal())
    side.interests.on_declare(Declare(DeclareFinal(), interest_id=77))
    assert (told, interests(side)) == ([], sent)
    tell(side, DeclareSubscriber(2, key("a/b")))  # it still listens
    assert told == [True]
    side.close()


# ---- what users hold


def test_a_listener_hears_changes_until_it_is_undeclared() -> None:
    side = Side()
    watch, _ = watched(side)
    listener: MatchingListener[Any] = make(MatchingListener, watch)
    tell(side, DeclareSubscriber(1, key("a/b")))
    assert listener.recv().matching
    assert listener.try_recv() is None
    handler = listener.handler
    listener.undeclare()
    assert list(handler) == []
    for use in (listener.recv, listener.undeclare, lambda: repr(listener)):
        with pytest.raises(ZError, match="Undeclared matching listener"):
            use()


def test_listeners_end_with_what_they_listen_to() -> None:
    side = Side()
    watch, _ = watched(side)
    tell(side, DeclareSubscriber(1, key("a/b")))
    ended: list[str] = []
    make(
        MatchingListener,
        watch,
        Callback(lambda _: ended.append("told"), lambda: ended.append("end")),
    )
    listener: MatchingListener[Any] = make(MatchingListener, watch)
    watch.close()
    assert [status.matching for status in listener] == [True]
    listener.undeclare()
    with pytest.raises(ZError, match="closed"):
        make(MatchingListener, watch)


def test_a_listener_that_nobody_holds() -> None:
    side = Side()
    watch, _ = watched(side)
    told: list[bool] = []
    make(MatchingListener, watch)
    make(
        MatchingListener,
        watch,
        Callback(lambda status: told.append(status.matching), indirect=False),
    )
    assert len(watch._listeners) == 2  # the test's own, and the callback's
    tell(side, DeclareSubscriber(1, key("a/b")))
    assert told == [True]
    side.close()


def test_a_listener_ends_with_the_session() -> None:
    side = Side()
    watch, _ = watched(side, destination=Locality.SESSION_LOCAL)
    listener: MatchingListener[Any] = make(MatchingListener, watch)
    side.close()
    with pytest.raises(ZError, match="channel is empty and closed"):
        listener.recv()
    with pytest.raises(ZError, match="session closed"):
        side.interests.watch("subscribers", KeyExpr("a"))
    watch.close()


def test_status_is_a_value() -> None:
    yes = make(MatchingStatus, True)
    assert yes == make(MatchingStatus, True) != make(MatchingStatus, False)
    assert len({yes, make(MatchingStatus, True)}) == 1
    assert pickle.loads(pickle.dumps(yes)) == copy.copy(yes) == yes
    assert yes.matching is True


# ---- queriers


def querier(side: Side, text: str = "q", **more: Any) -> Querier:
    asking = QueryOptions(side.exchange.query_timeout, **more)
    return make(Querier, side.interests, side.queries, text, asking)


def test_a_querier_knows_its_queryables() -> None:
    side = Side()
    any_one, whole = querier(side), querier(side, target=QueryTarget.ALL_COMPLETE)
    (sent,) = side.exchange.sent_of(Interest)
    assert sent.options == InterestOptions.KEYEXPRS | InterestOptions.QUERYABLES

    def seen() -> tuple[bool, bool]:
        return any_one.matching_status.matching, whole.matching_status.matching

    listener = whole.declare_matching_listener()
    tell(side, DeclareQueryable(1, key("q")))
    assert seen() == (True, False)
    tell(side, DeclareQueryable(2, key("*"), QueryableInfo(complete=True)))
    assert seen() == (True, True)
    tell(side, DeclareQueryable(2, key("*")))  # an update: complete no more
    assert seen() == (True, False)
    tell(side, UndeclareQueryable(1), UndeclareQueryable(2))
    assert seen() == (False, False)
    whole.undeclare()
    assert [status.matching for status in listener] == [True, False]
    any_one.undeclare()


@pytest.mark.parametrize(
    ("origin", "counts"),
    [(Locality.ANY, True), (Locality.SESSION_LOCAL, True), (Locality.REMOTE, False)],
)
def test_own_queryables_count(origin: Locality, counts: bool) -> None:
    side = Side()
    with querier(side) as asking:
        listener = asking.declare_matching_listener()
        with side.declare_queryable("q", allowed_origin=origin):
            assert asking.matching_status.matching is counts
        assert not asking.matching_status.matching
    assert [status.matching for status in listener] == ([True, False] if counts else [])


def test_gets_of_a_querier() -> None:
    side = Side()
    own = side.declare_queryable("q/**")
    with querier(side, "q/*", timeout=3, allowed_destination=Locality.SESSION_LOCAL) as asking:
        replies = asking.get(parameters={"a": "b"}, payload="x")
        with own.recv() as query:
            assert str(query.selector) == "q/*?a=b"
            query.reply("q/1", query.payload)
        assert [str(reply.ok.payload) for reply in replies if reply.ok] == ["x"]
        late = asking.get()
        side.exchange.advance(3)
        assert [str(reply.err.payload) for reply in late if reply.err] == ["Timeout"]
        assert asking.key_expr == "q/*"
        assert asking.id.zid.wire == side.exchange.zid
    with pytest.raises(ZError, match="Undeclared querier"):
        asking.get()


def test_gets_end_with_their_querier() -> None:
    side = Side()
    first, second = querier(side), querier(side)
    of_first, of_second, plain = first.get(), second.get(), side.get("q")
    first.undeclare()
    assert list(of_first) == []
    assert of_second.try_recv() is None
    del second
    with pytest.raises(ZError, match="channel is empty and closed"):
        of_second.try_recv()
    assert plain.try_recv() is None
    assert len(side.exchange.forgotten) == 2
    assert [mode for _, mode, _ in interests(side)] == ["CURRENT_FUTURE", "FINAL"]
    side.close()


def test_what_a_querier_asks() -> None:
    side = Side()
    asking = querier(side, "k", target=QueryTarget.ALL, timeout=2)
    asking.get(parameters="x=1")
    (request,) = side.exchange.sent_of(Request)
    assert (request.timeout_ms, request.target.name) == (2000, "ALL")
    assert (request.key.suffix, request.body.parameters) == ("k", "x=1")
    with pytest.raises(TypeError, match="not text"):
        asking.get(parameters=5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="negative timeout"):
        querier(side, timeout=-1)
    side.close()
