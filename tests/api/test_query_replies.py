"""A query from get to its last reply: two sessions whose messages are handed over directly."""

import gc
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.in_memory_sessions import Side, linked
from zenlake.api.handlers import Callback, FifoChannel, RingChannel
from zenlake.api.query import get, queryable
from zenlake.api.query.options import QueryConsolidation
from zenlake.api.query.query import Query
from zenlake.api.values.enums import (
    CongestionControl,
    ConsolidationMode,
    Locality,
    Priority,
    QueryTarget,
    ReplyKeyExpr,
    SampleKind,
)
from zenlake.api.values.ids import EntityGlobalId, SourceInfo
from zenlake.api.values.instrumentation import TimestampInstrumentationBuilder
from zenlake.api.values.selector import Selector
from zenlake.api.values.timestamps import NTP64, Timestamp
from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr
from zenlake.wire import entity
from zenlake.wire import enums as wire
from zenlake.wire.declare import Declare, DeclareQueryable, UndeclareQueryable
from zenlake.wire.enums import Mapping
from zenlake.wire.err import Err
from zenlake.wire.put import Put
from zenlake.wire.reply import WireReply
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.wireexpr import WireExpr

pytestmark = pytest.mark.slow

NONE = ConsolidationMode.NONE


def payloads(handler: Any) -> list[str]:
    return [str(reply.result.payload) for reply in handler]


def finals(side: Side) -> list[int]:
    return [final.request_id for final in side.exchange.sent_of(ResponseFinal)]


def request_of(side: Side) -> Request:
    request: Request = side.exchange.sent_of(Request)[-1]
    return request


def stamp(seconds: int) -> Timestamp:
    return Timestamp(NTP64(seconds, 0), b"\x01")


# ---- the whole way


def test_a_reply_carries_all_that_was_said() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q/**")
    replies = asking.get(
        "q/*?arg=1", payload="pl", encoding="text/plain", attachment=b"A", consolidation=NONE
    )
    with served.recv() as query:
        assert (query.key_expr, str(query.parameters)) == ("q/*", "arg=1")
        assert query.selector == Selector("q/*?arg=1")
        assert (query.payload, query.encoding, query.attachment) == (b"pl", "text/plain", b"A")
        assert query.accepts_replies() is ReplyKeyExpr.MATCHING_QUERY
        assert query.source_info is query.timestamp_stack is None
        query.reply("q/a", "x", encoding="text/plain", attachment="att", timestamp=stamp(5))
        query.reply_err("bad", encoding="text/plain")
        query.reply_del("q/b", attachment="gone")
    value, problem, gone = replies
    sample = value.ok
    assert (sample.key_expr, sample.payload, sample.encoding) == ("q/a", b"x", "text/plain")
    assert (sample.timestamp, sample.attachment) == (stamp(5), b"att")
    assert sample.congestion_control is CongestionControl.BLOCK
    assert (sample.priority, sample.express) == (Priority.DATA, False)
    assert value.err is None
    assert value.replier_id == served.id
    assert (problem.err.payload, problem.err.encoding) == (b"bad", "text/plain")
    assert problem.ok is None
    assert problem.result == problem.err
    assert (gone.ok.kind, gone.ok.attachment) == (SampleKind.DELETE, b"gone")
    assert finals(answering) == [request_of(asking).id]


def test_what_a_request_says() -> None:
    asking, _ = linked()
    source = SourceInfo(EntityGlobalId.of(entity.WireEntityId(asking.exchange.zid, 3)), 7)
    asking.get(
        "a/b?x=1",
        target=QueryTarget.ALL,
        timeout=1.5,
        priority=Priority.REAL_TIME,
        congestion_control=CongestionControl.DROP,
        express=True,
        source_info=source,
        accept_replies=ReplyKeyExpr.ANY,
        allowed_destination=Locality.REMOTE,
    )
    request = request_of(asking)
    assert (request.key, request.timeout_ms) == (WireExpr(0, "a/b", Mapping.SENDER), 1500)
    assert request.target is wire.WireQueryTarget.ALL
    assert (request.qos.priority, request.qos.express) == (wire.WirePriority.REAL_TIME, True)
    assert request.body.parameters == "x=1;_anyke"
    assert request.body.consolidation is wire.Consolidation.LATEST
    assert request.body.source_info == source.wire
    asking.get(KeyExpr("a/b"), timeout=0)
    assert request_of(asking).qos == 0x0D
    asking.get(Selector("a/b?_anyke;x=1"), accept_replies=ReplyKeyExpr.ANY)
    assert request_of(asking).body.parameters == "x=1;_anyke"
    asking.get("a/b", encoding="text/plain")
    assert request_of(asking).body.body is not None
    asking.get("a/b?_time=[now(-1h)..]")
    assert request_of(asking).body.consolidation is wire.Consolidation.NONE
    asking.close()


def test_no_queryable_ends_at_once() -> None:
    asking, answering = linked()
    answering.declare_queryable("other")
    assert list(asking.get("nothing/here")) == []
    assert len(finals(answering)) == 1
    assert asking.queries._gets == {}
    assert answering.queryables.counters["unmatched"] == 1


def test_replies_have_the_qos_of_the_query() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    replies = asking.get("q", priority=Priority.BACKGROUND, consolidation=NONE)
    with served.recv() as query:
        query.reply("q", "1")
        query.reply("q", "2", express=True)
        with pytest.warns(DeprecationWarning, match="congestion_control in Query.reply is dep"):
            query.reply("q", "3", congestion_control=CongestionControl.DROP)
        with pytest.warns(DeprecationWarning, match="priority in Query.reply_del is deprecated"):
            query.reply_del("q", priority=Priority.DATA)
    seen = [(r.ok.priority, r.ok.congestion_control, r.ok.express) for r in replies]
    usual = (Priority.BACKGROUND, CongestionControl.BLOCK, False)
    assert seen == [usual, (*usual[:2], True), usual, usual]


def test_the_key_of_a_reply_must_match_the_query() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q/**")
    replies = asking.get("q/a")
    with served.recv() as query:
        with pytest.raises(ZError, match=r"Attempted to reply on `z`, which does not intersect"):
            query.reply("z", "x")
        with pytest.raises(ZError, match="does not intersect"):
            query.reply_del("q/b")
        with pytest.raises(ZError, match="Invalid Key Expr"):
            query.reply("q//a", "x")
        with pytest.raises(TypeError, match="expected bytes/str type, found 'int'"):
            query.reply("q/a", 5)
        query.reply("q/**", "wild")
    assert payloads(replies) == ["wild"]


@pytest.mark.parametrize("selector", ["q/z", "q/z?_anyke"])
def test_a_reply_on_another_key_is_accepted_if_asked_for(selector: str) -> None:
    asking, answering = linked()
    answering.declare_queryable(
        "q/**", lambda query: query.reply("other/k", query.accepts_replies().name)
    )
    accept = None if "?" in selector else ReplyKeyExpr.ANY
    replies = asking.get(selector, accept_replies=accept)
    assert [(reply.ok.key_expr, str(reply.ok.payload)) for reply in replies] == [("other/k", "ANY")]
    answering.close()


def test_a_reply_on_another_key_is_not_let_in() -> None:
    """Of a queryable that does not check."""
    asking = Side()
    replies = asking.get("q/a", allowed_destination=Locality.REMOTE)
    number = request_of(asking).id
    for key in ("q/b", "q//a", "", "q/*"):
        asking.queries.on_response(response(number, key, b"x"))
    asking.queries.on_final(number)
    assert [reply.ok.key_expr for reply in replies] == ["q/*"]
    assert asking.queries.counters["disjoint"] == 3


def response(number: int, key: str, payload: bytes = b"", time: int | None = None) -> Response:
    put = Put(payload, None if time is None else stamp(time).wire)
    return Response(number, WireExpr(0, key, Mapping.SENDER), WireReply(put))


# ---- the end of a query


def test_a_query_ends_when_it_is_dropped() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    asking.get("q")
    query = served.recv()
    assert finals(answering) == []
    query.drop()
    query.drop()
    assert len(finals(answering)) == 1
    uses: list[Callable[[Query], object]] = [
        lambda query: query.key_expr,
        lambda query: query.reply("q", "x"),
        lambda query: query.reply_err("x"),
        Query.accepts_replies,
        Query.__enter__,
        str,
    ]
    for use in uses:
        with pytest.raises(ZError, match="Dropped query"):
            use(query)
    del query
    assert len(finals(answering)) == 1


def test_a_query_ends_with_its_last_reference() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    replies = asking.get("q")
    query = served.recv()
    query.reply("q", "x")
    del query
    assert payloads(replies) == ["x"]


def test_a_query_in_a_cycle_ends_when_the_cycle_does() -> None:
    """Then from the I/O thread: the collector may come while any lock is held."""
    asking, answering = linked()
    served = answering.declare_queryable("q")
    asking.get("q")
    cycle: list[Any] = [served.recv()]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert finals(answering) == []
    answering.exchange.advance(0)
    assert len(finals(answering)) == 1
    served.undeclare()


def test_an_error_that_is_kept_does_not_keep_the_query() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    asking.get("q")
    kept = None
    try:
        with served.recv() as query:
            query.reply("other", "x")
    except ZError as error:
        kept = error
    assert kept is not None
    assert len(finals(answering)) == 1


def test_a_callback_that_returned_ends_the_query() -> None:
    asking, answering = linked()
    answering.declare_queryable("q", lambda query: query.reply("q", "x"))
    assert payloads(asking.get("q")) == ["x"]
    answering.close()


def test_a_callback_that_raised_ends_the_query(caplog: pytest.LogCaptureFixture) -> None:
    def fails(query: Query) -> None:
        raise RuntimeError("not today")

    asking, answering = linked()
    answering.declare_queryable("q", fails)
    assert list(asking.get("q")) == []
    assert [record.getMessage() for record in caplog.records] == ["callback error"]
    answering.close()


def test_a_query_that_a_callback_keeps_goes_on() -> None:
    asking, answering = linked()
    kept: list[Query] = []
    arrived = threading.Event()

    def keep(query: Query) -> None:
        kept.append(query)
        arrived.set()

    answering.declare_queryable("q", keep)
    replies = asking.get("q")
    assert arrived.wait(10)
    assert replies.try_recv() is None
    with kept.pop() as query:
        query.reply("q", "later")
    assert payloads(replies) == ["later"]
    answering.close()


def test_one_end_for_all_queryables_of_a_session() -> None:
    asking, answering = linked()
    first, second = (answering.declare_queryable(key) for key in ("q/*", "q/a"))
    replies = asking.get("q/a", consolidation=NONE)
    one, other = first.recv(), second.recv()
    one.reply("q/a", "1")
    one.drop()
    assert finals(answering) == []
    other.reply("q/a", "2")
    other.drop()
    assert len(finals(answering)) == 1
    assert [(str(r.ok.payload), r.replier_id) for r in replies] == [
        ("1", first.id),
        ("2", second.id),
    ]


def test_shares_given_back_by_many_threads_end_once() -> None:
    asking, answering = linked()
    served = [answering.declare_queryable("q") for _ in range(8)]
    for _ in range(50):
        asking.get("q")
        shares = [server.recv() for server in served]
        start = threading.Barrier(8)

        def drop(query: Query, start: threading.Barrier = start) -> None:
            start.wait()
            query.drop()

        threads = [threading.Thread(target=drop, args=(query,)) for query in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(finals(answering)) == 50
    assert answering.queryables._open == {}


def test_a_ring_lets_go_of_queries() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q/*", RingChannel(1))
    first, second = asking.get("q/1"), asking.get("q/2")
    assert list(first) == []
    with served.recv() as query:
        query.reply("q/2", "x")
    assert payloads(second) == ["x"]


def test_unread_queries_of_a_queryable_that_is_gone_end() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    replies = asking.get("q")
    del served
    assert list(replies) == []
    assert answering.queryables._open == {}


def test_queries_can_be_answered_after_undeclare() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    replies, unread = asking.get("q"), asking.get("q")
    query, handler = served.recv(), served.handler
    served.undeclare()
    query.reply("q", "after")
    query.drop()
    with handler.recv() as second:
        second.reply("q", "waited")
    assert payloads(replies) + payloads(unread) == ["after", "waited"]
    for use in (served.recv, served.undeclare, lambda: served.key_expr, lambda: repr(served)):
        with pytest.raises(ZError, match="Undeclared queryable"):
            use()


def test_closing_the_session_ends_its_queries() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    replies = asking.get("q")
    query = served.recv()
    answering.close()
    assert list(replies) == []
    with pytest.raises(ZError, match="Dropped query"):
        query.reply("q", "x")
    assert query.key_expr == "q"
    query.drop()
    assert len(finals(answering)) == 1
    with pytest.raises(ZError, match="channel is empty and closed"):
        served.recv()
    served.undeclare()


def test_too_many_open_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queryable, "MAX_OPEN_QUERIES", 2)
    asking, answering = linked()
    served = answering.declare_queryable("q")
    waiting = [asking.get("q") for _ in range(2)]
    (refusal,) = asking.get("q")
    assert "too many queries" in str(refusal.err.payload)
    assert answering.queryables.counters["refused"] == 1
    for _ in waiting:
        served.recv().drop()
    assert [list(handler) for handler in waiting] == [[], []]


# ---- declarations


def test_only_queryables_for_others_are_declared() -> None:
    side = Side()
    served = side.declare_queryable("q/**", complete=True)
    side.declare_queryable("local", allowed_origin=Locality.SESSION_LOCAL).undeclare()
    served.undeclare()
    declared, undeclared = (message.body for message in side.exchange.sent_of(Declare))
    assert isinstance(declared, DeclareQueryable)
    assert (declared.key.suffix, declared.info.complete) == ("q/**", True)
    assert undeclared == UndeclareQueryable(declared.id)


def test_a_queryable_that_nobody_holds_is_undeclared_unless_a_callback_serves_it() -> None:
    asking, answering = linked()
    answering.declare_queryable("q")
    assert list(asking.get("q")) == []
    answering.declare_queryable("q", lambda query: query.reply("q", "x"))
    assert payloads(asking.get("q")) == ["x"]
    answering.declare_queryable("q2", (lambda query: query.reply("q2", "x"), "mine"))
    assert list(asking.get("q2")) == []
    answering.close()


def test_a_closed_session_declares_and_asks_nothing() -> None:
    side = Side()
    side.close()
    with pytest.raises(ZError, match="session closed"):
        side.declare_queryable("q")
    with pytest.raises(ZError, match="session closed"):
        side.get("q")


@pytest.mark.parametrize(
    ("target", "served"),
    [(None, "ab"), (QueryTarget.ALL, "ab"), (QueryTarget.ALL_COMPLETE, "b")],
)
def test_the_target_decides_which_queryables_answer(
    target: QueryTarget | None, served: str
) -> None:
    asking, answering = linked()
    answering.declare_queryable("q", Callback(lambda query: query.reply("q", "a"), indirect=False))
    answering.declare_queryable(
        "q", Callback(lambda query: query.reply("q", "b"), indirect=False), complete=True
    )
    assert "".join(payloads(asking.get("q", target=target, consolidation=NONE))) == served
    answering.close()


# ---- the session's own queryables


def answer_with(text: str) -> Callback[Query]:
    return Callback(lambda query: query.reply(query.key_expr, text), indirect=False)


def test_own_queryables_answer_too() -> None:
    asking, answering = linked()
    asking.declare_queryable("q", answer_with("own"))
    answering.declare_queryable("q", answer_with("other"))
    own = {"q": Locality.SESSION_LOCAL, "r": Locality.REMOTE, "a": Locality.ANY}
    found = {
        name: sorted(payloads(asking.get("q", allowed_destination=where, consolidation=NONE)))
        for name, where in own.items()
    }
    assert found == {"q": ["own"], "r": ["other"], "a": ["other", "own"]}
    assert len(asking.exchange.sent_of(Request)) == 2
    assert asking.exchange.sent_of(ResponseFinal) == []
    asking.close()
    answering.close()


def test_the_allowed_origin_decides_whose_queries_are_answered() -> None:
    asking, answering = linked()
    for where in Locality:
        answering.declare_queryable("q", answer_with(where.name), allowed_origin=where)
    assert sorted(payloads(asking.get("q", consolidation=NONE))) == ["ANY", "REMOTE"]
    own = payloads(
        answering.get("q", consolidation=NONE, allowed_destination=Locality.SESSION_LOCAL)
    )
    assert sorted(own) == ["ANY", "SESSION_LOCAL"]
    answering.close()


def test_a_get_waits_for_both_sides() -> None:
    asking, answering = linked()
    own, other = asking.declare_queryable("q"), answering.declare_queryable("q")
    replies = asking.get("q", consolidation=NONE)
    with own.recv() as query:
        query.reply("q", "own")
    assert replies.recv().replier_id == own.id
    assert replies.try_recv() is None
    other.recv().drop()
    assert list(replies) == []


def test_a_second_end_of_the_others_does_not_cut_off_the_own() -> None:
    asking, _ = linked()
    own = asking.declare_queryable("q")
    replies = asking.get("q")
    number = request_of(asking).id
    for _ in range(3):
        asking.queries.on_final(number)
    with own.recv() as query:
        query.reply("q", "own")
    assert payloads(replies) == ["own"]
    asking.queries.on_final(number)
    assert asking.queries.counters["late"] == 1


# ---- consolidation


def same(query: Query) -> None:
    for number in range(3):
        query.reply("q/same", str(number))


def stamped(query: Query) -> None:
    query.reply("q/same", "new", timestamp=stamp(2))
    query.reply("q/same", "old", timestamp=stamp(1))
    query.reply("q/same", "none")
    query.reply("q/other", "other")


@pytest.mark.parametrize(
    ("mode", "unstamped", "with_stamps"),
    [
        (None, ["2"], ["new", "other"]),
        (ConsolidationMode.AUTO, ["2"], ["new", "other"]),
        (ConsolidationMode.LATEST, ["2"], ["new", "other"]),
        (QueryConsolidation.AUTO, ["2"], ["new", "other"]),
        (ConsolidationMode.NONE, ["0", "1", "2"], ["new", "old", "none", "other"]),
        (QueryConsolidation(NONE), ["0", "1", "2"], ["new", "old", "none", "other"]),
        (ConsolidationMode.MONOTONIC, ["0", "1", "2"], ["new", "other"]),
    ],
)
def test_each_mode_of_consolidation_keeps_its_replies(
    mode: Any, unstamped: list[str], with_stamps: list[str]
) -> None:
    asking, answering = linked()
    for serve, expected in ((same, unstamped), (stamped, with_stamps)):
        served = answering.declare_queryable("q/**", Callback(serve, indirect=False))
        assert payloads(asking.get("q/*", consolidation=mode)) == expected
        served.undeclare()


def test_a_range_of_time_is_not_consolidated() -> None:
    asking, answering = linked()
    answering.declare_queryable("q/**", Callback(same, indirect=False))
    assert payloads(asking.get("q/*?_time=[now(-1h)..]")) == ["0", "1", "2"]
    assert payloads(asking.get("q/*?x=_time")) == ["2"]
    answering.close()


@pytest.mark.parametrize(("limit", "value"), [("MAX_KEPT_REPLIES", 3), ("MAX_KEPT_BYTES", 30)])
def test_what_consolidation_keeps_is_bounded(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(get, limit, value)
    asking = Side()
    replies = asking.get("k/*", FifoChannel(100), allowed_destination=Locality.REMOTE)
    number = request_of(asking).id
    for at in range(10):
        asking.queries.on_response(response(number, f"k/{at}", b"0123456789"))
    early = []
    while (reply := replies.try_recv()) is not None:
        early.append(reply.ok.key_expr)
    assert early == [f"k/{at}" for at in range(8)]
    asking.queries.on_final(number)
    assert [reply.ok.key_expr for reply in replies] == ["k/8", "k/9"]
    assert asking.queries.counters["early"] == 8


def test_replies_that_nobody_takes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get, "MAX_WAITING_REPLIES", 5)
    asking = Side()
    replies = asking.get(
        "k/*", FifoChannel(2), consolidation=NONE, allowed_destination=Locality.REMOTE
    )
    number = request_of(asking).id

    def answer(count: int) -> None:
        for at in range(count):
            asking.queries.on_response(response(number, f"k/{at}"))

    answer(20)
    dropped = asking.queries.counters["dropped"]
    assert dropped == 20 - 6
    taken = [replies.recv() for _ in range(6)]
    assert len(taken) == 6
    answer(2)
    asking.queries.on_final(number)
    assert len(list(replies)) == 2
    assert asking.queries.counters["dropped"] == dropped


# ---- time


def test_a_timeout_is_the_last_reply() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    replies = asking.get("q", timeout=2)
    query = served.recv()
    query.reply("q", "early")
    asking.exchange.advance(1.9)
    assert replies.try_recv() is None
    asking.exchange.advance(0.2)
    value, end = replies
    assert str(value.ok.payload) == "early"
    assert (end.err.payload, end.err.encoding, end.replier_id) == ("Timeout", "zenoh/string", None)
    assert asking.exchange.forgotten == [request_of(asking).id]
    query.reply("q", "late")
    query.drop()
    assert asking.queries.counters["late"] == 2
    assert asking.queries.counters["timeouts"] == 1


def live_timers(side: Side) -> int:
    return sum(timer.call is not None for _, _, timer in side.exchange.timers)


def test_deadlines_in_any_order() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    order: list[int] = []

    def note(timeout: int, reply: Any) -> None:
        order.append(timeout)

    for timeout in (5, 3, 8, 0, 4):
        asking.get("q", Callback(partial(note, timeout), indirect=False), timeout=timeout)
    held = [served.recv() for _ in range(5)]
    assert live_timers(asking) == 5
    asking.exchange.advance(4.5)
    assert order == [0, 3, 4]
    held[0].drop()  # the one with 5 s ends in time
    assert live_timers(asking) == 1
    asking.exchange.advance(10)
    assert order == [0, 3, 4, 8]
    assert live_timers(asking) == 0


def test_deadlines_of_gets_that_are_over_are_let_go() -> None:
    asking, _ = linked()
    for _ in range(3):
        assert list(asking.get("nobody")) == []
    assert live_timers(asking) == 0


@pytest.mark.parametrize(
    ("timeout", "error", "text"),
    [
        (-1, ValueError, "negative timeout"),
        ("1", TypeError, "must be real number, not str"),
        (float("inf"), ValueError, "timeout is inf"),
        (float("nan"), ValueError, "timeout is nan"),
    ],
)
def test_bad_timeouts(timeout: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Side().get("q", timeout=timeout)


# ---- other ends


def test_too_many_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get, "MAX_GETS", 1)
    asking = Side()
    asking.get("q")
    ended: list[int] = []
    with pytest.raises(ZError, match="1 queries wait for replies"):
        asking.get("q", Callback(print, lambda: ended.append(1), indirect=False))
    assert ended == [1]
    assert asking.queries.counters["refused"] == 1


def test_closing_ends_gets_without_a_reply() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    seen: list[str] = []
    asking.get(
        "q",
        Callback(lambda reply: seen.append("reply"), lambda: seen.append("end"), indirect=False),
    )
    replies = asking.get("q")
    held = [served.recv(), served.recv()]
    held[0].reply("q", "kept")
    asking.close()
    assert list(replies) == []
    assert seen == ["end"]


def test_a_send_that_fails_leaves_nothing() -> None:
    side = Side()

    def fail(message: Any) -> None:
        raise ZError("too large")

    side.exchange.deliver = fail
    ended: list[int] = []
    with pytest.raises(ZError, match="too large"):
        side.get("q", Callback(print, lambda: ended.append(1), indirect=False))
    assert ended == [1]
    assert side.queries._gets == {}


def test_get_returns_the_handler_that_the_caller_gave() -> None:
    asking, _ = linked()
    assert asking.get("q", lambda reply: None) is None
    assert asking.get("q", (lambda reply: None, "mine")) == "mine"
    assert list(asking.get("q", RingChannel(3))) == []


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"selector": "m//a"}, ZError, "Invalid Key Expr `m//a`"),
        ({"selector": 5}, TypeError, "'int' object cannot be converted"),
        ({"target": 1}, TypeError, "argument 'target': 'int' object cannot be converted to"),
        ({"consolidation": 1}, TypeError, "cannot be converted to 'ConsolidationMode'"),
        ({"handler": 5}, ValueError, "Invalid handler type int"),
        ({"cancellation_token": 5}, TypeError, "cannot be converted to 'CancellationToken'"),
        ({"payload": 5}, TypeError, "expected bytes/str type, found 'int'"),
        ({"source_info": 5}, TypeError, "cannot be converted to 'SourceInfo'"),
        ({"timestamp_instrumentation": 5}, TypeError, "TimestampInstrumentation"),
        ({"priority": 5}, TypeError, "cannot be converted to 'Priority'"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    side = Side()
    with pytest.raises(error, match=text):
        side.get(**{"selector": "q", **arguments})
    assert side.exchange.sent == []
    assert side.queries._gets == {}


def test_consolidations_compare_and_refuse_other_types() -> None:
    assert QueryConsolidation(NONE) == QueryConsolidation(NONE) != QueryConsolidation.AUTO
    assert QueryConsolidation.DEFAULT.mode() is ConsolidationMode.AUTO
    with pytest.raises(TypeError, match="cannot be converted to 'ConsolidationMode'"):
        QueryConsolidation(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="No constructor"):
        Query()


def test_queries_and_replies_are_stamped_at_both_ends() -> None:
    def record(stack: Any, point: Any) -> Any:
        entry = (point.wire | 0x80, bytes([len(stack.entries)]))
        return type(stack)(stack.conf, (*stack.entries, entry))

    everything = TimestampInstrumentationBuilder().set_send(True).set_receive(True).build()
    alone = Side("c3", record)
    for asking, answering in (linked(record), (alone, alone)):
        served = answering.declare_queryable("q")
        where = Locality.SESSION_LOCAL if asking is answering else Locality.ANY
        replies = asking.get(
            "q", timestamp_instrumentation=everything, consolidation=NONE, allowed_destination=where
        )
        with served.recv() as query:
            points = [entry.point.name for entry in query.timestamp_stack.records]
            assert points == ["SEND", "RECEIVE"]
            query.reply("q", "x")
            query.reply_err("y")
        for reply in replies:
            points = [entry.point.name for entry in reply.result.timestamp_stack.records]
            assert points == ["SEND", "RECEIVE", "SEND", "RECEIVE"]


def test_timeouts_of_nodes_on_the_way_come_last_and_once() -> None:
    asking = Side()
    replies = asking.get("q", allowed_destination=Locality.REMOTE)
    number = request_of(asking).id
    for _ in range(2):  # of two nodes on the way
        asking.queries.on_response(Response(number, WireExpr(), Err(b"Timeout")))
    asking.queries.on_response(Response(number, WireExpr(), Err(b"no key")))
    asking.queries.on_response(response(number, "q", b"x"))
    asking.queries.on_final(number)
    assert payloads(replies) == ["no key", "x", "Timeout"]


def test_no_warning_without_cause() -> None:
    asking, answering = linked()
    served = answering.declare_queryable("q")
    asking.get("q")
    with warnings.catch_warnings(), served.recv() as query:
        warnings.simplefilter("error")
        query.reply("q", "x", express=False)
