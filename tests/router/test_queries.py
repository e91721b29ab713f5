"""Queries through a router of ours: queryables they reach, their replies, and their ends."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.support.interop_pair import OURS, Side, replies
from tests.support.routed_sessions import PATIENCE, SIDES, Net, Wire, routed, unique
from tests.support.waiting import until
from zenlake.wire.declare import Declare, DeclareQueryable
from zenlake.wire.enums import WireQueryTarget
from zenlake.wire.err import Err
from zenlake.wire.put import Put
from zenlake.wire.query import WireQuery
from zenlake.wire.reply import WireReply
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.wireexpr import WireExpr

pytestmark = pytest.mark.interop

TIMEOUT_SECONDS = 1.0
SILENT_SECONDS = 5.0  # Timeout of the silent queryable; the other one answers before it.
TARGETS = ("BEST_MATCHING", "ALL", "ALL_COMPLETE")


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    with routed() as net:
        for name in SIDES:
            net.side(name)
            net.side(name + " 2")
        yield net


@contextmanager
def answering(
    net: Net, side: Side, key: str, answer: Callable[[Any], object], *, complete: bool = False
) -> Iterator[list[str]]:
    """A queryable the router knows of; the parameters of the queries that it got."""
    asked: list[str] = []

    def on_query(query: Any) -> None:
        asked.append(str(query.parameters))
        with query:
            answer(query)

    before = net.router.tables()["declared"]
    with side.session.declare_queryable(key, on_query, complete=complete):
        until(net.router.tables, lambda now: now["declared"] > before, PATIENCE)
        yield asked
    until(net.router.tables, lambda now: now["declared"] == before, PATIENCE)


def says(text: str) -> Callable[[Any], object]:
    return lambda query: query.reply(query.key_expr, text)


def values(side: Side, selector: str, target: str) -> list[bytes]:
    found = side.session.get(
        selector,
        target=getattr(side.api.QueryTarget, target),
        consolidation=side.api.ConsolidationMode.NONE,
        timeout=PATIENCE,
    )
    return sorted(reply.payload for reply in replies(found))


@pytest.mark.parametrize("asking", SIDES)
def test_who_is_asked(net: Net, asking: str) -> None:
    """Best matching: the complete one, else all; all; all complete ones."""
    side = net.side(asking)
    others = [net.side(name + " 2") for name in SIDES]
    key = unique("target")
    with ExitStack() as stack:
        for number, other in enumerate(others):
            stack.enter_context(answering(net, other, key, says(f"part {number}")))
        parts = [b"part %d" % number for number in range(len(others))]
        assert values(side, key, "BEST_MATCHING") == parts
        assert values(side, key, "ALL") == parts
        assert values(side, key, "ALL_COMPLETE") == []
        with answering(net, others[0], f"{key}/**", says("whole"), complete=True):
            assert values(side, key, "BEST_MATCHING") == [b"part 0", b"whole"]
            assert values(side, key, "ALL") == [*parts, b"whole"]
            assert values(side, key, "ALL_COMPLETE") == [b"whole"]
        with answering(net, others[0], f"{key}/x", says("elsewhere"), complete=True):
            # Complete for less than what is asked: it counts as incomplete.
            assert values(side, f"{key}/*", "ALL_COMPLETE") == []


def test_the_nearest_complete_one_is_asked(net: Net) -> None:
    key = unique("near")
    side = net.side("their client")
    local = Side(OURS, net.router.session)
    with answering(net, net.side("their client 2"), key, says("far"), complete=True) as far:
        with answering(net, local, key, says("near"), complete=True):
            for _ in range(3):
                assert values(side, key, "BEST_MATCHING") == [b"near"]
            assert far == []
            assert values(side, key, "ALL_COMPLETE") == [b"far", b"near"]
        assert values(side, key, "BEST_MATCHING") == [b"far"]


@pytest.mark.parametrize("asking", SIDES)
@pytest.mark.parametrize("answers", SIDES)
def test_replies_deletes_and_errors(net: Net, asking: str, answers: str) -> None:
    side, other = net.side(asking), net.side(answers + " 2")
    key = unique("reply")

    def answer(query: Any) -> None:
        query.reply(f"{key}/a", b"v", encoding="text/plain", attachment=b"beside")
        query.reply_del(f"{key}/b")
        query.reply_err(b"no", encoding="text/plain")

    with answering(net, other, f"{key}/*", answer) as asked:
        found = replies(side.session.get(f"{key}/*?x=1;y", payload=b"p", timeout=PATIENCE))
    assert asked == ["x=1;y"]
    ok = {reply.key: reply for reply in found if not isinstance(reply, str)}
    assert [reply for reply in found if isinstance(reply, str)] == ["err no"]
    value, gone = ok[f"{key}/a"], ok[f"{key}/b"]
    assert (value.payload, value.encoding, value.attachment) == (b"v", "text/plain", b"beside")
    assert gone.kind.endswith("DELETE")


def test_a_query_without_queryables_ends_empty(net: Net) -> None:
    for name in SIDES:
        assert values(net.side(name), unique("nobody"), "ALL") == []


def test_a_queryable_that_dies(net: Net) -> None:
    """The others' replies come, and one RESPONSE_FINAL as soon as it is gone."""
    key = unique("dies")
    before = net.router.tables()
    (endpoint,) = net.router.locators
    with (
        answering(net, net.side("their client"), key, says("alive")),
        net.holding(key) as holding,
        Wire(endpoint) as wire,
    ):
        wire.session.send(request(7, key, WireQueryTarget.ALL, timeout_ms=60_000))
        holding.says("asked")
        (reply,) = wire.wait(Response)
        assert reply.body.body.payload == b"alive"
        assert wire.of(ResponseFinal) == []
        holding.kill()
        (final,) = wire.wait(ResponseFinal)
        assert (reply.request_id, final.request_id) == (7, 7)
    net.settled(before)


def request(number: int, key: str, target: WireQueryTarget, **options: Any) -> Request:
    return Request(number, WireExpr(0, key), WireQuery(), target=target, **options)


def test_a_queryable_that_never_answers(net: Net) -> None:
    """An ERR that says who was silent, and one RESPONSE_FINAL."""
    key = unique("silent")
    before = net.router.tables()
    (endpoint,) = net.router.locators
    millis = round(SILENT_SECONDS * 1000)
    held: list[Any] = []
    side = net.side("their client")
    with (
        answering(net, net.side("our client"), key, says("alive")),
        side.session.declare_queryable(key, held.append),
        Wire(endpoint) as wire,
    ):
        net_knows_queryables(net, 2, before)
        wire.session.send(request(1, key, WireQueryTarget.ALL, timeout_ms=millis))
        (final,) = wire.wait(ResponseFinal)
        alive, silent = wire.wait(Response, 2)
        assert final.request_id == alive.request_id == silent.request_id == 1
        assert alive.body.body.payload == b"alive"
        assert silent.body.payload == b"Timeout"
        assert str(silent.responder.zid) == str(side.session.zid())
        held.clear()
    net.settled(before)


def test_an_answer_that_comes_too_late(net: Net) -> None:
    """After the ERR and the RESPONSE_FINAL for it, it is dropped, and counted."""
    key = unique("late")
    before = net.router.tables()
    (endpoint,) = net.router.locators
    late = "reply_unknown_query"
    dropped = net.router.stats().dropped.get(late, 0)
    with Wire(endpoint) as silent, Wire(endpoint) as wire:
        silent.session.send(Declare(DeclareQueryable(1, WireExpr(0, key))))
        net_knows_queryables(net, 1, before)
        wire.session.send(request(1, key, WireQueryTarget.ALL, timeout_ms=100))
        (final,) = wire.wait(ResponseFinal)
        (error,) = wire.wait(Response)
        assert final.request_id == error.request_id == 1
        assert error.responder.zid == silent.zid
        (asked,) = silent.wait(Request)
        silent.session.send(Response(asked.id, WireExpr(0, key), WireReply(Put(b"late"))))
        until(
            lambda: net.router.stats().dropped.get(late, 0),
            lambda found: found == dropped + 1,
            PATIENCE,
        )
        wire.session.send(request(2, unique("nobody"), WireQueryTarget.ALL))
        assert [message.request_id for message in wire.wait(ResponseFinal, 2)] == [1, 2]
        assert len(wire.of(Response)) == 1
    net.settled(before)


def net_knows_queryables(net: Net, number: int, before: dict[str, int]) -> None:
    until(
        net.router.tables,
        lambda now: now["declared"] == before["declared"] + number,
        PATIENCE,
    )


@pytest.mark.parametrize("asking", SIDES)
def test_a_get_times_out(net: Net, asking: str) -> None:
    """As users see it: the error, from every hop whose time was out first, then the end."""
    key = unique("timeout")
    before = net.router.tables()
    held: list[Any] = []
    side = net.side(asking)
    with net.side("their client 2").session.declare_queryable(key, held.append):
        net_knows_queryables(net, 1, before)
        found = replies(side.session.get(key, timeout=TIMEOUT_SECONDS))
        assert set(found) == {"err Timeout"}  # by every hop that noticed
        assert len(held) == 1
        held.clear()
    net.settled(before)


def test_a_budget_limits_the_replies_of_a_query(net: Net) -> None:
    key = unique("budget")
    before = net.router.tables()
    (endpoint,) = net.router.locators

    def answer(query: Any) -> None:
        for number in range(5):
            query.reply(f"{key}/{number}", b"")

    with answering(net, net.side("their peer"), f"{key}/*", answer), Wire(endpoint) as wire:
        wire.session.send(request(1, f"{key}/*", WireQueryTarget.ALL, budget=2))
        wire.wait(ResponseFinal)
        assert [type(message.body) for message in wire.wait(Response, 2)] == [WireReply, WireReply]
        wire.session.send(request(2, f"{key}/*", WireQueryTarget.ALL))
        wire.wait(ResponseFinal, 2)
        wire.wait(Response, 7)
    net.settled(before)


def test_a_budget_limits_errors_too(net: Net) -> None:
    key = unique("budget_errors")
    before = net.router.tables()
    (endpoint,) = net.router.locators

    def answer(query: Any) -> None:
        for number in range(5):
            query.reply_err(f"no {number}")

    with answering(net, net.side("their peer"), key, answer), Wire(endpoint) as wire:
        wire.session.send(request(1, key, WireQueryTarget.ALL, budget=2))
        wire.wait(ResponseFinal)
        wire.session.send(request(2, unique("nobody"), WireQueryTarget.ALL))
        wire.wait(ResponseFinal, 2)  # Nothing of the first query follows its end.
        assert [type(message.body) for message in wire.of(Response)] == [Err, Err]
    net.settled(before)


def test_a_request_with_an_id_in_use_is_ended(net: Net) -> None:
    key = unique("in_use")
    before = net.router.tables()
    (endpoint,) = net.router.locators
    held: list[Any] = []
    queryable = net.side("their peer").session.declare_queryable(key, held.append)
    with queryable, Wire(endpoint) as wire:
        net_knows_queryables(net, 1, before)
        wire.session.send(request(1, key, WireQueryTarget.ALL))
        until(lambda: len(held), lambda count: count == 1, PATIENCE)
        wire.session.send(request(1, key, WireQueryTarget.ALL))
        wire.wait(ResponseFinal)
        with held.pop() as query:
            query.reply(key, b"first")
        del query
        assert len(wire.wait(Response)) == 1
        wire.wait(ResponseFinal, 2)
        assert not held  # The second request reached no queryable.
    net.settled(before)


def test_many_queries_at_once(net: Net) -> None:
    """Ids of several askers are told apart."""
    key = unique("many")
    before = net.router.tables()
    with answering(
        net, net.side("their peer 2"), f"{key}/*", lambda query: query.reply(query.key_expr, b"")
    ):
        sides = [net.side(name) for name in SIDES]
        open_ = [
            (f"{key}/{number}", side.session.get(f"{key}/{number}", timeout=PATIENCE))
            for number in range(50)
            for side in sides
        ]
        for asked, found in open_:
            assert [reply.key for reply in replies(found)] == [asked]
    net.settled(before)
