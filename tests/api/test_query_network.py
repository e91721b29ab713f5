"""Queries, liveliness and matching over TCP: ours with ours, and with eclipse-zenoh both ways.

Each test is written once, against the API that both have.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import zenoh

import zenlake
from tests.golden.proxy import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.interop

PATIENCE = 20.0  # Seconds, on a busy machine.
APIS: dict[str, Any] = {"ours": zenlake, "theirs": zenoh}
PAIRS = [("ours", "ours"), ("ours", "theirs"), ("theirs", "ours")]
OPENS = 3  # Attempts: another process may take the port that was free.


class Pair(NamedTuple):
    """Who asks and who answers."""

    api: Any
    asking: Any
    other_api: Any
    answering: Any


def open_session(api: Any, listen: str | None, connect: str | None) -> Any:
    config = api.Config()
    for key, value in {
        "mode": "peer",
        "listen/endpoints": [listen] if listen else [],
        "connect/endpoints": [connect] if connect else [],
        "scouting/multicast/enabled": False,
    }.items():
        config.insert_json5(key, json.dumps(value))
    return api.open(config)


def open_pair(stack: ExitStack, asks: str, answers: str) -> Pair:
    api, other = APIS[asks], APIS[answers]
    for attempt in range(OPENS):
        at = f"tcp/127.0.0.1:{free_port()}"
        try:
            answering = open_session(other, at, None)
            break
        except (zenoh.ZError, zenlake.ZError):
            if attempt == OPENS - 1:
                raise
    stack.callback(answering.close)
    asking = open_session(api, None, at)
    stack.callback(asking.close)
    until(
        lambda: (
            answering.info.zid() in asking.info.peers_zid()
            or str(answering.zid()) in map(str, asking.info.peers_zid())
        )
    )
    return Pair(api, asking, other, answering)


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: " asks ".join(pair))
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield open_pair(stack, *request.param)


def reachable(pair: Pair, key: str) -> None:
    """The asking side knows of a queryable for `key`."""
    with pair.asking.declare_querier(key) as querier:
        until(lambda: querier.matching_status.matching)


def payloads(replies: Any) -> list[str]:
    return [str(reply.result.payload) for reply in replies]


def test_a_query_and_its_replies_arrive_with_all_fields(pair: Pair) -> None:
    with pair.answering.declare_queryable("net/all/**") as served:
        reachable(pair, "net/all/**")
        replies = pair.asking.get(
            "net/all/*?arg=1",
            payload=b"pl",
            encoding="text/plain",
            attachment=b"A",
            consolidation=pair.api.ConsolidationMode.NONE,
        )
        with served.recv() as query:
            assert (str(query.selector), str(query.parameters)) == ("net/all/*?arg=1", "arg=1")
            assert (bytes(query.payload), str(query.encoding)) == (b"pl", "text/plain")
            assert bytes(query.attachment) == b"A"
            query.reply("net/all/a", b"x", encoding="text/plain", attachment=b"att")
            query.reply_err(b"bad", encoding="text/plain")
            query.reply_del("net/all/b")
        value, problem, gone = replies
        assert (str(value.ok.key_expr), bytes(value.ok.payload)) == ("net/all/a", b"x")
        assert (str(value.ok.encoding), bytes(value.ok.attachment)) == ("text/plain", b"att")
        assert str(value.ok.congestion_control) == "CongestionControl.BLOCK"
        assert (str(value.replier_id.zid), value.replier_id.eid) == (
            str(served.id.zid),
            served.id.eid,
        )
        assert (bytes(problem.err.payload), str(problem.err.encoding)) == (b"bad", "text/plain")
        assert str(gone.ok.kind) == "SampleKind.DELETE"


def test_a_query_without_a_queryable_ends_without_replies(pair: Pair) -> None:
    assert list(pair.asking.get("net/nobody")) == []


def test_no_answer_in_time(pair: Pair) -> None:
    with pair.answering.declare_queryable("net/slow") as served:
        reachable(pair, "net/slow")
        replies = pair.asking.get("net/slow", timeout=0.3)
        query = served.recv()
        query.reply("net/slow", b"early")
        found = payloads(replies)
        if pair.api is zenlake:
            assert found == ["early", "Timeout"]
        else:  # It may report its own timeout and that of the other node, and before the reply.
            assert found.count("early") == 1
            assert set(found) == {"early", "Timeout"}
        query.reply("net/slow", b"late")
        query.drop()


def test_a_forgotten_query_ends(pair: Pair) -> None:
    with pair.answering.declare_queryable("net/forgotten") as served:
        reachable(pair, "net/forgotten")
        replies = pair.asking.get("net/forgotten", timeout=PATIENCE)
        query = served.recv()
        query.reply("net/forgotten", b"x")
        del query
        assert payloads(replies) == ["x"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("AUTO", 1), ("LATEST", 1), ("MONOTONIC", 3), ("NONE", 3)],
)
def test_consolidation_keeps_as_many_replies_as_the_mode_says(
    pair: Pair, mode: str, expected: int
) -> None:
    key = f"net/consolidation/{mode}"

    def serve(query: Any) -> None:
        for number in range(3):
            query.reply(key, str(number))

    with pair.answering.declare_queryable(key, serve):
        reachable(pair, key)
        found = payloads(
            pair.asking.get(key, consolidation=getattr(pair.api.ConsolidationMode, mode))
        )
        assert found == ["0", "1", "2"][-expected:]


def test_a_reply_on_another_key_is_accepted_if_asked_for(pair: Pair) -> None:
    with pair.answering.declare_queryable("net/any", lambda query: query.reply("else", b"x")):
        reachable(pair, "net/any")
        replies = pair.asking.get("net/any", accept_replies=pair.api.ReplyKeyExpr.ANY)
        assert [str(reply.ok.key_expr) for reply in replies] == ["else"]


def test_many_large_replies(pair: Pair) -> None:
    data = bytes(range(256)) * 1_000

    def serve(query: Any) -> None:
        for number in range(40):
            query.reply(f"net/large/{number}", data)

    with pair.answering.declare_queryable("net/large/*", serve):
        reachable(pair, "net/large/*")
        found = {str(reply.ok.key_expr): reply for reply in pair.asking.get("net/large/*")}
        assert found.keys() == {f"net/large/{number}" for number in range(40)}
        assert all(bytes(reply.ok.payload) == data for reply in found.values())


def test_gets_from_many_threads(pair: Pair) -> None:
    def serve(query: Any) -> None:
        query.reply(query.key_expr, str(query.key_expr))

    found: list[tuple[str, list[str]]] = []

    def ask(thread: int) -> None:
        for number in range(25):
            key = f"net/threads/{thread}/{number}"
            found.append((key, payloads(pair.asking.get(key, timeout=PATIENCE))))

    with pair.answering.declare_queryable("net/threads/**", serve):
        reachable(pair, "net/threads/**")
        threads = [threading.Thread(target=ask, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 100
    assert [(key, answers) for key, answers in found if answers != [key]] == []


def test_callbacks_and_their_end(pair: Pair) -> None:
    with pair.answering.declare_queryable(
        "net/callback", lambda query: query.reply("net/callback", b"x")
    ):
        reachable(pair, "net/callback")
        seen: list[str] = []
        ended = threading.Event()
        returned = pair.asking.get(
            "net/callback",
            pair.api.handlers.Callback(lambda reply: seen.append(str(reply.ok.payload)), ended.set),
        )
        assert returned is None
        assert ended.wait(PATIENCE)
        assert seen == ["x"]


def test_a_cancelled_query_ends_without_replies(pair: Pair) -> None:
    with pair.answering.declare_queryable("net/cancel") as served:
        reachable(pair, "net/cancel")
        token = pair.api.CancellationToken()
        replies = pair.asking.get("net/cancel", cancellation_token=token, timeout=PATIENCE)
        query = served.recv()
        token.cancel()
        assert list(replies) == []
        query.reply("net/cancel", b"late")
        query.drop()


def test_querier_and_matching(pair: Pair) -> None:
    with pair.asking.declare_querier("net/match") as querier:
        assert not querier.matching_status.matching
        listener = querier.declare_matching_listener()
        served = pair.answering.declare_queryable(
            "net/match", lambda query: query.reply("net/match", str(query.parameters))
        )
        assert listener.recv().matching
        assert payloads(querier.get(parameters={"a": "b"})) == ["a=b"]
        served.undeclare()
        assert not listener.recv().matching
        assert payloads(querier.get()) == []


def test_matching_of_a_publisher(pair: Pair) -> None:
    with pair.asking.declare_publisher("net/publisher") as publisher:
        listener = publisher.declare_matching_listener()
        with pair.answering.declare_subscriber("net/*"):
            assert listener.recv().matching
            assert publisher.matching_status.matching
        assert not listener.recv().matching


def test_tokens_are_heard_listed_and_gone(pair: Pair) -> None:
    watching = pair.asking.liveliness().declare_subscriber("net/alive/*")
    token = pair.answering.liveliness().declare_token("net/alive/a")
    born = watching.recv()
    assert (str(born.kind), str(born.key_expr)) == ("SampleKind.PUT", "net/alive/a")
    assert bytes(born.payload) == b""
    (found,) = pair.asking.liveliness().get("net/alive/**")
    assert (str(found.ok.key_expr), found.replier_id) == ("net/alive/a", None)
    late = pair.asking.liveliness().declare_subscriber("net/alive/*", history=True)
    assert str(late.recv().key_expr) == "net/alive/a"
    token.undeclare()
    kinds = [str(subscriber.recv().kind) for subscriber in (watching, late)]
    assert kinds == ["SampleKind.DELETE"] * 2
    assert list(pair.asking.liveliness().get("net/alive/**")) == []
    watching.undeclare()
    late.undeclare()


def test_own_tokens_are_seen_once(pair: Pair) -> None:
    with (
        pair.asking.liveliness().declare_token("net/own/a"),
        pair.asking.liveliness().declare_token("net/own/a"),
    ):
        replies = pair.asking.liveliness().get("net/own/*")
        assert [str(reply.ok.key_expr) for reply in replies] == ["net/own/a"]
        with pair.asking.liveliness().declare_subscriber("net/own/*", history=True) as watching:
            assert str(watching.recv().key_expr) == "net/own/a"
            assert watching.try_recv() is None


def test_query_and_reply_are_stamped_at_both_ends(pair: Pair) -> None:
    points = pair.api.TimestampInstrumentationBuilder().set_send(True).set_receive(True).build()
    with pair.answering.declare_queryable(
        "net/stack", lambda query: query.reply("net/stack", b"x")
    ):
        reachable(pair, "net/stack")
        (reply,) = pair.asking.get("net/stack", timestamp_instrumentation=points)
        found = [
            str(record.point).rpartition(".")[2] for record in reply.ok.timestamp_stack.records
        ]
        assert found == ["SEND", "RECEIVE", "SEND", "RECEIVE"]


@pytest.mark.parametrize("names", PAIRS, ids=" asks ".join)
def test_one_who_leaves_with_a_query(names: tuple[str, str]) -> None:
    """The get ends at once, and its token is gone."""
    with ExitStack() as stack:
        pair = open_pair(stack, *names)
        served = pair.answering.declare_queryable("net/leaves")
        token = pair.answering.liveliness().declare_token("net/leaves")
        reachable(pair, "net/leaves")
        watching = pair.asking.liveliness().declare_subscriber("net/leaves", history=True)
        assert str(watching.recv().kind) == "SampleKind.PUT"
        began = time.monotonic()
        replies = pair.asking.get("net/leaves", timeout=10 * PATIENCE)
        query = served.recv()
        query.reply("net/leaves", b"before")
        pair.answering.close()
        assert payloads(replies)[:1] in ([], ["before"])
        assert time.monotonic() - began < 5 * PATIENCE
        assert str(watching.recv().kind) == "SampleKind.DELETE"
        del query, token


@pytest.mark.parametrize("names", PAIRS, ids=" asks ".join)
def test_one_who_leaves_with_a_get(names: tuple[str, str]) -> None:
    with ExitStack() as stack:
        pair = open_pair(stack, *names)
        served = pair.answering.declare_queryable("net/left")
        reachable(pair, "net/left")
        replies = pair.asking.get("net/left", timeout=PATIENCE)
        query = served.recv()
        pair.asking.close()
        assert list(replies) == []
        query.reply("net/left", b"nobody hears it")
        query.drop()
        assert pair.answering.is_closed() is False
