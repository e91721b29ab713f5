"""Queries of one implementation are answered by the other, in either role and any topology."""

import threading
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.support.interop_pair import (
    PATIENCE,
    QUERY_SECONDS,
    SOME_WAYS,
    THEIRS,
    WAYS,
    Nets,
    Seen,
    Way,
    answering,
    instrumentation,
    passage,
    points,
    replies,
    settling,
    unique,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

SHORT = 0.5  # Seconds until a query without an answer times out.
ENOUGH = 3.0  # Seconds in which a reply arrives on a busy machine.
PROMPT = 5.0  # Seconds within which a query ends that need not wait for its timeout.
TARGETS = ("BEST_MATCHING", "ALL", "ALL_COMPLETE")
MODES = ("AUTO", "NONE", "MONOTONIC", "LATEST")
ACCEPTED = ("MATCHING_QUERY", "ANY")


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    with settling():
        yield


@pytest.fixture(scope="module")
def nets() -> Iterator[Nets]:
    opened = Nets()
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, nets: Nets) -> Way:
    return nets.way(request.param)


@pytest.fixture(scope="module", params=SOME_WAYS)
def some_way(request: pytest.FixtureRequest, nets: Nets) -> Way:
    return nets.way(request.param)


def ask(way: Way, selector: str, **options: Any) -> list[Any]:
    options.setdefault("timeout", QUERY_SECONDS)
    return replies(way.sender.session.get(selector, **options))


def payloads(found: list[Any]) -> list[str]:
    return [each if isinstance(each, str) else each.payload.decode() for each in found]


# ---- who is asked, and what of the answers is kept


def test_every_target_consolidation_and_kind_of_reply(way: Way) -> None:
    """A complete queryable answers twice on one key, the newer first, and once elsewhere if it may;
    another, which is not complete, on another key."""
    api, receiver = way.sender.api, way.receiver
    key = unique("target")
    elsewhere = unique("elsewhere")
    older, newer = receiver.session.new_timestamp(), receiver.session.new_timestamp()

    def complete(query: Any) -> None:
        query.reply(f"{key}/a", "newer", timestamp=newer)
        query.reply(f"{key}/a", "older", timestamp=older)
        if str(query.accepts_replies()) == "ReplyKeyExpr.ANY":
            query.reply(elsewhere, "elsewhere")

    def partial(query: Any) -> None:
        query.reply(f"{key}/b", "partial")

    with (
        answering(way, f"{key}/b", partial),
        answering(way, f"{key}/*", complete, complete=True),
    ):
        for target, mode, accepted in product(TARGETS, MODES, ACCEPTED):
            found = ask(
                way,
                f"{key}/*",
                target=getattr(api.QueryTarget, target),
                consolidation=getattr(api.ConsolidationMode, mode),
                accept_replies=getattr(api.ReplyKeyExpr, accepted),
            )
            wanted = {"newer"}
            if mode == "NONE":
                wanted.add("older")
            if accepted == "ANY":
                wanted.add("elsewhere")
            if target != "ALL_COMPLETE":
                wanted.add("partial")
            assert sorted(payloads(found)) == sorted(wanted), (target, mode, accepted)


def test_only_the_partial_one_is_there(way: Way) -> None:
    """ALL_COMPLETE asks no queryable then."""
    api = way.sender.api
    key = unique("partial")
    with answering(way, f"{key}/a", lambda query: query.reply(f"{key}/a", "x")):
        assert payloads(ask(way, f"{key}/*", target=api.QueryTarget.BEST_MATCHING)) == ["x"]
        assert payloads(ask(way, f"{key}/*", target=api.QueryTarget.ALL)) == ["x"]
        begin = time.monotonic()
        assert ask(way, f"{key}/*", target=api.QueryTarget.ALL_COMPLETE) == []
        assert time.monotonic() - begin < PROMPT


def test_replies_without_timestamps_are_consolidated_too(way: Way) -> None:
    api = way.sender.api
    key = unique("same")

    def answer(query: Any) -> None:
        for number in range(3):
            query.reply(key, str(number))

    wanted = {"AUTO": ["2"], "NONE": ["0", "1", "2"], "MONOTONIC": ["0", "1", "2"], "LATEST": ["2"]}
    with answering(way, key, answer):
        for mode, expected in wanted.items():
            found = ask(way, key, consolidation=getattr(api.ConsolidationMode, mode))
            assert payloads(found) == expected, mode
        assert payloads(ask(way, f"{key}?_time=[now(-1h)..]")) == ["0", "1", "2"]


# ---- what is asked


def test_all_that_a_query_may_carry(way: Way) -> None:
    api, session = way.sender
    key = unique("carry")
    got: list[Any] = []

    def answer(query: Any) -> None:
        source = query.source_info
        got.append(
            (
                str(query.key_expr),
                str(query.parameters),
                str(query.selector),
                None if query.payload is None else bytes(query.payload),
                None if query.encoding is None else str(query.encoding),
                None if query.attachment is None else bytes(query.attachment),
                source and (str(source.source_id.zid), source.source_sn),
                str(query.accepts_replies()),
                query.timestamp_stack,
            )
        )

    with answering(way, f"{key}/**", answer):
        assert ask(way, f"{key}/a") == []
        assert (
            ask(
                way,
                f"{key}/*?a=1;b=2|3;flag",
                payload=b"value",
                encoding="text/plain;utf-8",
                attachment=b"beside",
                source_info=api.SourceInfo(session.id, 77),
                accept_replies=api.ReplyKeyExpr.ANY,
            )
            == []
        )
        assert ask(way, f"{key}/a", payload=b"") == []
        assert ask(way, api.Selector(f"{key}/a", {"x": "y"})) == []
    matching, anything = "ReplyKeyExpr.MATCHING_QUERY", "ReplyKeyExpr.ANY"
    first, second, third, fourth = got
    assert first == (f"{key}/a", "", f"{key}/a", None, None, None, None, matching, None)
    assert second[:2] == (f"{key}/*", second[1])
    assert second[1] in ("a=1;b=2|3;flag;_anyke", "_anyke;a=1;b=2|3;flag")
    assert second[3:] == (
        b"value",
        "text/plain;utf-8",
        b"beside",
        (str(session.zid()), 77),
        anything,
        None,
    )
    assert third[3:5] == (b"", "zenoh/bytes")
    assert fourth[1:3] == ("x=y", f"{key}/a?x=y")


def test_any_key_by_parameter(way: Way) -> None:
    key, other = unique("any"), unique("other")
    got: list[str] = []

    def answer(query: Any) -> None:
        got.append(str(query.accepts_replies()))
        query.reply(other, "v")

    with answering(way, key, answer):
        (found,) = ask(way, f"{key}?_anyke")
    assert found.key == other
    assert got == ["ReplyKeyExpr.ANY"]


def test_a_reply_elsewhere_is_refused(way: Way) -> None:
    key, other = unique("strict"), unique("other")
    refused: list[str] = []

    def answer(query: Any) -> None:
        try:
            query.reply(other, "v")
        except way.receiver.api.ZError as error:
            refused.append(str(error))
        query.reply(key, "right")

    with answering(way, key, answer):
        assert payloads(ask(way, key)) == ["right"]
    assert len(refused) == 1


# ---- what is answered


def test_every_kind_of_reply(way: Way) -> None:
    api = way.sender.api
    key = unique("kinds")
    stamp = way.receiver.session.new_timestamp()

    def answer(query: Any) -> None:
        query.reply(f"{key}/a", b"plain")
        query.reply(
            f"{key}/b", b"full", encoding="text/plain;x", attachment=b"beside", timestamp=stamp
        )
        query.reply(f"{key}/c", b"")
        query.reply_del(f"{key}/d", attachment=b"gone", timestamp=stamp)
        query.reply_del(f"{key}/e")
        query.reply_err("wrong", encoding="text/plain")

    with answering(way, f"{key}/*", answer):
        found = list(
            way.sender.session.get(
                f"{key}/*", timeout=QUERY_SECONDS, consolidation=api.ConsolidationMode.NONE
            )
        )
        responder = str(way.receiver.session.zid())
    qos = ("Priority.DATA", "CongestionControl.BLOCK", False)
    put, deleted, plain = "SampleKind.PUT", "SampleKind.DELETE", "zenoh/bytes"
    assert replies(found) == [
        Seen(f"{key}/a", put, b"plain", plain, *qos, None, None, None, None),
        Seen(f"{key}/b", put, b"full", "text/plain;x", *qos, b"beside", str(stamp), None, None),
        Seen(f"{key}/c", put, b"", plain, *qos, None, None, None, None),
        Seen(f"{key}/d", deleted, b"", plain, *qos, b"gone", str(stamp), None, None),
        Seen(f"{key}/e", deleted, b"", plain, *qos, None, None, None, None),
        "err wrong",
    ]
    assert str(found[-1].err.encoding) == "text/plain"
    assert {str(reply.replier_id.zid) for reply in found} == {responder}
    assert len({reply.replier_id.eid for reply in found}) == 1


def test_replies_inherit_the_quality_of_service(way: Way) -> None:
    api = way.sender.api
    key = unique("qos")
    with answering(way, key, lambda query: query.reply(key, "v")):
        (found,) = ask(
            way,
            key,
            priority=api.Priority.INTERACTIVE_HIGH,
            congestion_control=api.CongestionControl.BLOCK,
            express=True,
        )
    assert found.priority == "Priority.INTERACTIVE_HIGH"
    assert found.congestion_control == "CongestionControl.BLOCK"


def test_no_replies_and_nobody_to_ask(way: Way) -> None:
    """Both end at once, without an error."""
    key = unique("none")
    begin = time.monotonic()
    assert ask(way, f"{key}/nobody") == []
    with answering(way, key, lambda query: None):
        assert ask(way, key) == []
    assert time.monotonic() - begin < PROMPT


def test_large_replies_and_questions(some_way: Way) -> None:
    key = unique("large")
    large = bytes(range(256)) * 4096
    with answering(some_way, key, lambda query: query.reply(key, bytes(query.payload)[::-1])):
        (found,) = ask(some_way, key, payload=large)
    assert found.payload == large[::-1]


def test_many_replies_keep_their_order(some_way: Way) -> None:
    api = some_way.sender.api
    key = unique("many")
    many = 500

    def answer(query: Any) -> None:
        for number in range(many):
            query.reply(key, str(number))

    with answering(some_way, key, answer):
        found = ask(some_way, key, consolidation=api.ConsolidationMode.NONE)
    assert payloads(found) == [str(number) for number in range(many)]


def test_many_queries_at_once(way: Way) -> None:
    key = unique("many")
    session = way.sender.session
    with answering(
        way, f"{key}/*", lambda query: query.reply(query.key_expr, query.parameters["n"])
    ):
        open_ = [session.get(f"{key}/{n}?n={n}", timeout=QUERY_SECONDS) for n in range(100)]
        for number, answers in enumerate(open_):
            (found,) = replies(answers)
            assert (found.key, found.payload) == (f"{key}/{number}", str(number).encode())


def test_timestamp_stacks_of_queries_and_replies(way: Way) -> None:
    api, session = way.sender
    key = unique("stack")
    asked: list[Any] = []

    def answer(query: Any) -> None:
        asked.append(points(query.timestamp_stack))
        query.reply(key, "v")
        query.reply_err("e")

    with answering(way, key, answer):
        found = list(
            session.get(
                key,
                timeout=QUERY_SECONDS,
                timestamp_instrumentation=instrumentation(api, "send", "route", "receive"),
            )
        )
    one_way = passage(way)
    assert asked == [tuple(one_way)]
    stacks = {
        points((reply.ok if reply.ok is not None else reply.err).timestamp_stack) for reply in found
    }
    assert stacks == {tuple(one_way * 2)}


# ---- answers that do not come


def test_a_queryable_that_never_answers(way: Way) -> None:
    key = unique("never")
    held: list[Any] = []
    with way.receiver.session.declare_queryable(key, held.append):
        way.sender.answered(key)
        begin = time.monotonic()
        assert set(ask(way, key, timeout=SHORT)) == {"err Timeout"}  # by every hop that noticed
        assert SHORT <= time.monotonic() - begin < PROMPT
        with held.pop() as query:
            query.reply(key, "late")  # no get waits for it, and there is no error
        held.clear()


def test_what_came_before_the_timeout_is_given(way: Way) -> None:
    key = unique("half")
    held: list[Any] = []

    def answer(query: Any) -> None:
        query.reply(key, "half")
        held.append(query)

    with way.receiver.session.declare_queryable(key, answer):
        way.sender.answered(key)
        found = payloads(ask(way, key, timeout=ENOUGH))
        assert (found.count("half"), set(found)) == (1, {"err Timeout", "half"})
        held.pop().drop()


def test_answers_after_the_end(way: Way) -> None:
    """A query that was dropped cannot be answered, however often one tries."""
    key = unique("dropped")
    held: list[Any] = []

    def answer(query: Any) -> None:
        query.reply(key, "in time")
        query.drop()
        held.append(query)

    with way.receiver.session.declare_queryable(key, answer):
        way.sender.answered(key)
        assert payloads(ask(way, key)) == ["in time"]
        (query,) = until(lambda: held, bool, PATIENCE)
        for _ in range(2):
            with pytest.raises(way.receiver.api.ZError):
                query.reply(key, "too late")
        held.clear()
        assert payloads(ask(way, key)) == ["in time"]


def test_an_undeclared_queryable_still_answers_what_it_has(way: Way) -> None:
    key = unique("undeclared")
    held: list[Any] = []
    with way.receiver.session.declare_queryable(key, held.append):
        way.sender.answered(key)
        answers = way.sender.session.get(key, timeout=QUERY_SECONDS)
        until(lambda: held, bool, PATIENCE)
    with held.pop() as query:
        query.reply(key, "still")
    assert payloads(replies(answers)) == ["still"]


def test_cancellation(way: Way) -> None:
    api, session = way.sender
    key = unique("cancel")
    held: list[Any] = []
    with way.receiver.session.declare_queryable(key, held.append):
        way.sender.answered(key)
        token = api.CancellationToken()
        answers = session.get(key, timeout=QUERY_SECONDS, cancellation_token=token)
        until(lambda: held, bool, PATIENCE)
        begin = time.monotonic()
        token.cancel()
        assert replies(answers) == []
        assert time.monotonic() - begin < PROMPT
        with held.pop() as query:
            query.reply(key, "nobody listens")
        with pytest.raises(api.ZError):
            session.get(key, cancellation_token=token)


# ---- queriers


def test_a_querier(way: Way) -> None:
    api, session = way.sender
    key = unique("querier")
    got: list[str] = []

    def answer(query: Any) -> None:
        got.append(str(query.selector))
        query.reply(key, "v" if query.payload is None else bytes(query.payload))

    with session.declare_querier(key, target=api.QueryTarget.ALL, timeout=QUERY_SECONDS) as querier:
        changes: list[bool] = []
        with querier.declare_matching_listener(lambda status: changes.append(status.matching)):
            assert not querier.matching_status.matching
            with answering(way, key, answer):
                until(lambda: querier.matching_status.matching, bool, PATIENCE)
                assert payloads(replies(querier.get())) == ["v"]
                found = querier.get(parameters="a=1", payload=b"p", encoding="text/plain")
                assert payloads(replies(found)) == ["p"]
                # A late listener of eclipse-zenoh sees no change if the queryable is gone again.
                until(lambda: list(changes), lambda seen: seen == [True], PATIENCE)
            until(lambda: querier.matching_status.matching, lambda found: not found, PATIENCE)
            assert replies(querier.get()) == []
            assert until(lambda: changes, lambda seen: len(seen) >= 2, PATIENCE) == [
                True,
                False,
            ]
    assert got == [key, f"{key}?a=1"]


@pytest.mark.parametrize(
    ("target", "complete", "queryable", "matches"),
    [
        ("BEST_MATCHING", False, "{}/a", True),
        ("ALL", False, "{}/a", True),
        ("ALL_COMPLETE", False, "{}/*", False),
        ("ALL_COMPLETE", True, "{}/a", False),
        ("ALL_COMPLETE", True, "{}/*", True),
    ],
)
def test_whom_a_querier_matches(
    way: Way, target: str, complete: bool, queryable: str, matches: bool
) -> None:
    """ALL_COMPLETE: only a complete queryable that covers the whole key.

    The reference wants the key covered for every target, though it asks those that cover a part.
    """
    api, session = way.sender
    key = unique("matches")
    if api is THEIRS and queryable == "{}/a":
        matches = False
    with (
        session.declare_querier(f"{key}/*", target=getattr(api.QueryTarget, target)) as querier,
        answering(way, queryable.format(key), lambda query: None, complete=complete),
    ):
        if matches:
            until(lambda: querier.matching_status.matching, bool, PATIENCE)
        else:  # that there is a queryable is known: `answering` waited for that
            assert not querier.matching_status.matching


# ---- several


def test_two_queryables_of_one_session(way: Way) -> None:
    api = way.sender.api
    key = unique("two")
    barrier = threading.Barrier(2, timeout=PATIENCE)

    def one(query: Any) -> None:
        barrier.wait()  # both are asked at once
        query.reply(f"{key}/1", "one")

    def two(query: Any) -> None:
        barrier.wait()
        query.reply(f"{key}/2", "two")

    with answering(way, f"{key}/**", one), answering(way, f"{key}/*", two):
        found = ask(way, f"{key}/*", target=api.QueryTarget.ALL)
    assert sorted(payloads(found)) == ["one", "two"]


def test_own_and_foreign_queryables(way: Way) -> None:
    """A session's own queryable answers too, unless the query may not stay."""
    api, session = way.sender
    key = unique("own")

    def own(query: Any) -> None:
        with query:
            query.reply(f"{key}/own", "own")

    with (
        session.declare_queryable(f"{key}/own", own),
        answering(way, f"{key}/far", lambda query: query.reply(f"{key}/far", "far")),
    ):
        for where, wanted in {
            "ANY": ["far", "own"],
            "REMOTE": ["far"],
            "SESSION_LOCAL": ["own"],
        }.items():
            found = ask(
                way,
                f"{key}/*",
                target=api.QueryTarget.ALL,
                allowed_destination=getattr(api.Locality, where),
            )
            assert sorted(payloads(found)) == wanted, where
