"""The rules of one node: what each face is told, sent and answered."""

import gc
import tracemalloc
from dataclasses import replace

import pytest

from tests.support.routing_recording import (
    BOTH,
    CLIENT,
    CURRENT,
    FINAL,
    FUTURE,
    PEER,
    ROUTER,
    A,
    K,
    Q,
    S,
    T,
    bodies,
    declare,
    final,
    full,
    interest,
    links,
    push,
    reply,
    request,
    to,
    undeclare,
    zid,
)
from zenlake.errors import ZError
from zenlake.hlc import HybridLogicalClock
from zenlake.routing import Face, Out, Routing, declarations, face, queries
from zenlake.routing.face import Kind
from zenlake.transport.drop_reason import DropReason
from zenlake.wire import qos
from zenlake.wire.declare import (
    Declare,
    DeclareKeyExpr,
    DeclareQueryable,
    DeclareToken,
    UndeclareKeyExpr,
    UndeclareToken,
)
from zenlake.wire.delete import Del
from zenlake.wire.entity import WireEntityId
from zenlake.wire.enums import CloseReason, Mapping, WireQueryTarget, WireWhatAmI
from zenlake.wire.err import Err
from zenlake.wire.extensions import QueryableInfo
from zenlake.wire.interest import Interest
from zenlake.wire.oam import LINK_STATE, NetworkOam
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr

SECOND = 1 << 32  # One second in NTP64.


def opened(routing: Routing, *roles: WireWhatAmI) -> list[Face]:
    return [
        routing.open(zid(f"{0xF0 + number:x}"), role, 0.0)[0] for number, role in enumerate(roles)
    ]


def router(*roles: WireWhatAmI) -> tuple[Routing, list[Face]]:
    routing = Routing(zid("1"), ROUTER)
    return routing, opened(routing, *roles)


# ---- faces


def test_clients_do_not_talk_to_clients() -> None:
    with pytest.raises(ZError, match="a CLIENT does not talk to a CLIENT"):
        Routing(zid("1"), CLIENT).open(zid("2"), CLIENT, 0.0)


@pytest.mark.parametrize(
    ("own", "other", "first"),
    [
        (CLIENT, ROUTER, ["DeclareKeyExpr", "DeclareSubscriber"]),
        (CLIENT, PEER, ["DeclareKeyExpr", "DeclareSubscriber"]),
        (PEER, ROUTER, ["DeclareKeyExpr", "DeclareSubscriber"]),
        (PEER, PEER, ["DeclareKeyExpr", "DeclareSubscriber", "DeclareFinal"]),
        (PEER, CLIENT, []),
        (ROUTER, PEER, []),
        (ROUTER, CLIENT, []),
    ],
)
def test_what_a_new_face_hears_first(
    own: WireWhatAmI, other: WireWhatAmI, first: list[str]
) -> None:
    routing = Routing(zid("1"), own)
    routing.on_message(routing.local, declare(S, 1, "a/b/**"), 0.0)
    _, out = routing.open(zid("2"), other, 0.0)
    assert [name for name, *_ in bodies([m for _, m in out])] == first
    assert all(isinstance(m, Declare) and m.qos == qos.DECLARE for _, m in out)


def test_interests_go_up_before_declarations() -> None:
    routing = Routing(zid("1"), CLIENT)
    routing.on_message(routing.local, declare(S, 1, "*"), 0.0)
    routing.on_message(routing.local, interest(2, FUTURE, K | T, "**"), 0.0)
    _, out = routing.open(zid("2"), ROUTER, 0.0)
    assert [type(message) for _, message in out] == [Interest, Declare]


def test_a_closed_face_says_nothing_and_hears_nothing() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(b, declare(S, 1, "t"), 0.0)
    routing.close(b, 0.0)
    assert routing.close(b, 0.0) == []
    assert routing.on_message(b, push("t"), 0.0) == []
    assert routing.on_message(a, push("t"), 0.0) == []
    assert routing.faces == (a,)
    assert routing.counters[DropReason.FACE_CLOSED] == 1


def test_the_version_changes_with_the_answers() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    seen = {routing.version}

    def changed() -> bool:
        fresh = routing.version not in seen
        seen.add(routing.version)
        return fresh

    routing.on_message(b, declare(S, 1, "t"), 0.0)
    assert changed()
    routing.on_message(a, push("t"), 0.0)
    routing.on_message(b, declare(Q, 1, "t"), 0.0)
    assert not changed()
    routing.on_message(b, undeclare(S, 1), 0.0)
    assert changed()
    opened(routing, CLIENT)
    assert changed()


# ---- keys


def test_keys_are_written_with_the_ids_of_either_side() -> None:
    routing, (a,) = router(CLIENT)
    assert routing.wire_key(a, "robot/7/pose", True) == (
        WireExpr(0, "robot/7/pose", Mapping.SENDER),
        None,
    )  # a client that has not asked for ids gets none
    routing.on_message(a, Declare(DeclareKeyExpr(1, full("robot/7"))), 0.0)
    assert routing.wire_key(a, "robot/7/pose") == (WireExpr(1, "/pose", Mapping.RECEIVER), None)
    assert routing.received_key(a, WireExpr(1, "/*", Mapping.SENDER)) == "robot/7/*"
    routing.on_message(a, interest(1, FUTURE, K, "arm/**"), 0.0)
    written, first = routing.wire_key(a, "arm/1/**", True)
    assert written == WireExpr(2, "/**", Mapping.SENDER)
    assert first == Declare(DeclareKeyExpr(2, full("arm/1")), qos=qos.DECLARE)
    assert routing.wire_key(a, "arm/1", True) == (WireExpr(2, "", Mapping.SENDER), None)
    assert routing.received_key(a, WireExpr(2, "/x", Mapping.RECEIVER)) == "arm/1/x"
    routing.on_message(a, Declare(UndeclareKeyExpr(1)), 0.0)
    assert routing.wire_key(a, "robot/7/pose")[0].scope == 0
    assert routing.received_key(a, WireExpr(1, "/*", Mapping.SENDER)) is None
    assert routing.received_key(a, WireExpr(0, "no//key")) is None
    assert routing.counters[DropReason.UNKNOWN_KEY] == 2


def test_a_prefix_ends_where_a_chunk_does() -> None:
    routing, (a,) = router(CLIENT)
    routing.on_message(a, Declare(DeclareKeyExpr(1, full("robot/7"))), 0.0)
    assert routing.wire_key(a, "robot/77") == (WireExpr(0, "robot/77", Mapping.SENDER), None)


def test_key_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face, "MAX_KEY_IDS", 2)
    routing = Routing(zid("1"), CLIENT)
    (up,) = opened(routing, ROUTER)
    made = [routing.wire_key(up, f"k/{n}", True)[1] for n in range(4)]
    assert [declare is not None for declare in made] == [True, True, False, False]
    assert routing.wire_key(up, "k/3")[0] == WireExpr(0, "k/3", Mapping.SENDER)


def test_most_ids_are_left_to_the_neighbour() -> None:
    """A Rust node takes none that the other side uses, and hangs when there is none."""
    routing = Routing(zid("1"), CLIENT)
    (up,) = opened(routing, ROUTER)
    made = [routing.wire_key(up, f"k/{n}", True)[1] for n in range(face.MAX_OWN_KEY_IDS + 1)]
    assert [number for number, declare in enumerate(made) if declare is None] == [
        face.MAX_OWN_KEY_IDS
    ]
    assert face.MAX_KEY_IDS - face.MAX_OWN_KEY_IDS > 60_000


def test_every_id_of_16_bits_may_be_declared_and_used_again() -> None:
    routing, (a,) = router(CLIENT)
    for turn in range(2):
        for n in range(1, face.MAX_KEY_IDS + 1):
            routing.on_message(a, Declare(DeclareKeyExpr(n, full(f"k{turn}/{n}"))), 0.0)
        for n in (1, 8193, face.MAX_KEY_IDS):
            assert routing.received_key(a, WireExpr(n, "", Mapping.SENDER)) == f"k{turn}/{n}"
        assert routing.wire_key(a, "other", True) == (WireExpr(0, "other", Mapping.SENDER), None)
        for n in range(1, face.MAX_KEY_IDS + 1):
            routing.on_message(a, Declare(UndeclareKeyExpr(n)), 0.0)
    assert not routing.counters
    assert a.exceeded is None


def exceeded(of: Face) -> str:
    """The limit that a face exceeded, as its session's end says it; the CLOSE reason is 1."""
    assert of.exceeded is not None
    assert of.exceeded.reason == CloseReason.UNSUPPORTED
    return of.exceeded.why


def test_a_neighbour_that_used_up_its_key_ids_is_to_be_closed() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(a, Declare(DeclareKeyExpr(0, full("one/too/many"))), 0.0)
    assert "65,535 key ids" in exceeded(a)
    assert "open another session" in exceeded(a)
    assert routing.counters[DropReason.KEY_ID_REFUSED] == 1
    assert b.exceeded is None


def test_a_neighbour_that_gives_a_key_id_to_another_key_is_to_be_closed() -> None:
    """Otherwise what it sends with the id would be delivered on the first key."""
    routing, (a, _) = router(CLIENT, CLIENT)
    for key in ("first", "first", "second"):
        assert a.exceeded is None
        routing.on_message(a, Declare(DeclareKeyExpr(7, full(key))), 0.0)
    assert "declares id 7 for second, which stands for first" in exceeded(a)
    assert routing.counters[DropReason.KEY_ID_REFUSED] == 1


def test_keys_of_ids_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face, "MAX_KEY_ID_BYTES", 10)
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(a, Declare(DeclareKeyExpr(1, full("k/2345"))), 0.0)
    routing.on_message(a, Declare(DeclareKeyExpr(1, full("k/2345"))), 0.0)
    routing.on_message(a, Declare(UndeclareKeyExpr(1)), 0.0)
    routing.on_message(a, Declare(DeclareKeyExpr(2, full("k/23456789"))), 0.0)
    assert a.exceeded is None
    routing.on_message(a, Declare(DeclareKeyExpr(3, full("k"))), 0.0)
    assert "10 bytes of keys with an id" in exceeded(a)
    assert b.exceeded is None


def test_the_local_session_sees_full_text() -> None:
    routing, (a,) = router(CLIENT)
    routing.on_message(a, Declare(DeclareKeyExpr(1, full("robot/7"))), 0.0)
    routing.on_message(routing.local, declare(S, 1, "**"), 0.0)
    (message,) = to(
        routing.on_message(a, Push(WireExpr(1, "/pose", Mapping.SENDER)), 0.0), routing.local
    )
    assert isinstance(message, Push)
    assert message.key == WireExpr(0, "robot/7/pose", Mapping.SENDER)


# ---- push


def test_the_outer_timestamp_is_kept_for_every_destination() -> None:
    routing, (a, b, c) = router(CLIENT, CLIENT, CLIENT)
    stamp = WireTimestamp(5, zid("f0"))
    routing.on_message(b, declare(S, 1, "**"), 0.0)
    message = Push(full("t"), timestamp=stamp, node_id=3)
    assert [(m.timestamp, m.node_id) for _, m in routing.on_message(a, message, 0.0)] == [  # type: ignore[union-attr]
        (stamp, 0)
    ]
    routing.on_message(c, declare(S, 1, "**"), 0.0)
    assert [m.timestamp for _, m in routing.on_message(a, message, 0.0)] == [stamp, stamp]


def stamping(**options: bool) -> tuple[Routing, Face]:
    clock = HybridLogicalClock(zid("1"))
    routing = Routing(zid("1"), ROUTER, hlc=clock, wall=lambda: 100 * SECOND, **options)
    a, b = opened(routing, CLIENT, CLIENT)
    routing.on_message(b, declare(S, 1, "t"), 0.0)
    return routing, a


def test_a_router_stamps_puts_that_have_no_timestamp() -> None:
    routing, a = stamping()
    bare, deleted, old = Put(b"x"), Del(), Put(b"x", WireTimestamp(7, zid("f0")))
    ahead = Put(b"x", WireTimestamp(200 * SECOND, zid("f0")))
    out = [
        routing.on_message(a, Push(full("t"), body), 0.0)[0][1].body.timestamp  # type: ignore[union-attr]
        for body in (bare, deleted, old, ahead)
    ]
    assert out[0] == WireTimestamp(100 * SECOND, zid("1"))
    assert bare.timestamp is None  # the message that came is not written to
    assert out[1] is None
    assert out[2] == WireTimestamp(7, zid("f0"))
    assert out[3] is not None
    assert out[3].id == zid("1")
    assert routing.counters[DropReason.TIMESTAMP_REPLACED] == 1


def test_the_future_can_be_dropped_instead() -> None:
    routing, a = stamping(drop_future_timestamp=True)
    ahead = Push(full("t"), Put(b"x", WireTimestamp(200 * SECOND, zid("f0"))))
    assert routing.on_message(a, ahead, 0.0) == []
    assert routing.counters[DropReason.TIMESTAMP_FUTURE] == 1


def test_without_a_clock_nothing_is_stamped() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    assert routing.stamp() is None
    routing.on_message(b, declare(S, 1, "t"), 0.0)
    ((_, message),) = routing.on_message(a, push("t"), 0.0)
    assert message.body.timestamp is None  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="wall="):
        Routing(zid("1"), ROUTER, hlc=HybridLogicalClock(zid("1")))


def test_the_work_does_not_grow_with_what_does_not_match() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(b, declare(S, 1, "t/1"), 0.0)
    tree = routing._declarations.resources[S]._tree
    before = tree.visited("t/1")
    for number in range(2, 2000):
        routing.on_message(b, declare(S, number, f"t/{number}"), 0.0)
        routing.on_message(b, declare(S, number + 2000, f"{number}/*/x"), 0.0)
    assert tree.visited("t/1") == before
    assert routing.destinations(a, "t/1") == (b,)


# ---- declarations and interests


def test_declarations_go_to_clients_as_their_interests_ask() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    assert routing.on_message(a, declare(S, 1, "t/1"), 0.0) == []
    assert bodies(to(routing.on_message(b, interest(9, BOTH, S, "t/*"), 0.0), b)) == [
        ("DeclareSubscriber", 1, "t/1", 9),
        ("DeclareFinal", None, None, 9),
    ]
    assert bodies(to(routing.on_message(a, declare(S, 2, "t/2"), 0.0), b)) == [
        ("DeclareSubscriber", 2, "t/2", None)
    ]
    assert routing.on_message(a, declare(S, 3, "u"), 0.0) == []
    assert routing.on_message(a, declare(S, 4, "t/1"), 0.0) == []  # the same key again
    assert routing.on_message(a, undeclare(S, 1), 0.0) == []  # id 4 still has it
    assert bodies(to(routing.on_message(a, undeclare(S, 4), 0.0), b)) == [
        ("UndeclareSubscriber", 1, None, None)
    ]
    assert bodies(to(routing.on_message(b, interest(9, FINAL, K), 0.0), b)) == [
        ("UndeclareSubscriber", 2, None, None)
    ]
    assert routing.on_message(a, declare(S, 5, "t/5"), 0.0) == []


def test_an_interest_hears_of_current_or_future_declarations_by_mode() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(a, declare(S, 1, "t/1"), 0.0)
    assert routing.on_message(b, interest(1, FUTURE, S, "t/*"), 0.0) == []
    assert bodies(to(routing.on_message(b, interest(2, CURRENT, S), 0.0), b)) == [
        ("DeclareSubscriber", 0, "t/1", 2),
        ("DeclareFinal", None, None, 2),
    ]
    assert bodies(to(routing.on_message(b, interest(3, BOTH, K), 0.0), b)) == [
        ("DeclareFinal", None, None, 3)
    ]
    out = to(routing.on_message(a, declare(S, 2, "t/2"), 0.0), b)  # for interest 1, ids by 3
    assert [name for name, *_ in bodies(out)] == ["DeclareKeyExpr", "DeclareSubscriber"]


def test_own_subscribers_are_not_echoed() -> None:
    routing, (a,) = router(CLIENT)
    routing.on_message(a, declare(S, 1, "t"), 0.0)
    assert bodies(to(routing.on_message(a, interest(1, BOTH, S | Q, "**"), 0.0), a)) == [
        ("DeclareFinal", None, None, 1)
    ]


def test_aggregated_answers() -> None:
    routing, (a, b, peer) = router(CLIENT, CLIENT, PEER)
    routing.on_message(a, declare(S, 1, "t/1"), 0.0)
    out = routing.on_message(b, interest(1, BOTH, S | Q | A, "t/*"), 0.0)
    assert bodies(to(out, b)) == [
        ("DeclareSubscriber", 1, "t/*", 1),
        ("DeclareFinal", None, None, 1),
    ]
    assert routing.on_message(a, declare(S, 2, "t/2"), 0.0) == []  # nothing new
    assert routing.on_message(a, undeclare(S, 1), 0.0) == []
    assert bodies(to(routing.on_message(a, undeclare(S, 2), 0.0), b)) == [
        ("UndeclareSubscriber", 1, None, None)
    ]
    (message,) = to(routing.on_message(a, declare(Q, 3, "t/**", complete=True), 0.0), b)
    assert isinstance(message, Declare)
    assert isinstance(message.body, DeclareQueryable)
    assert (str(message.body.key), message.body.info) == ("t/*", QueryableInfo(True, 1))
    routing.on_message(a, declare(S, 4, "t/4"), 0.0)
    out = routing.on_message(peer, interest(1, BOTH, S | A, "t/*"), 0.0)
    assert bodies(to(out, peer))[0] == ("DeclareSubscriber", 1, "t/4", 1)  # not for peers


def test_queryables_are_told_with_the_best_that_is_known() -> None:
    routing, (a, b, c) = router(CLIENT, CLIENT, CLIENT)
    routing.on_message(c, interest(1, FUTURE, Q, "**"), 0.0)

    def told(message: Declare, source: Face) -> list[object]:
        out = to(routing.on_message(source, message, 0.0), c)
        return [getattr(m.body, "info", None) for m in out]  # type: ignore[union-attr]

    assert told(declare(Q, 1, "q", distance=4), a) == [QueryableInfo(False, 5)]
    assert told(declare(Q, 1, "q", complete=True, distance=7), b) == [QueryableInfo(True, 8)]
    assert told(declare(Q, 1, "q", complete=True, distance=2), b) == [QueryableInfo(True, 3)]
    assert told(declare(Q, 2, "q"), a) == []
    assert told(undeclare(Q, 1), b) == [QueryableInfo(False, 1)]
    assert told(undeclare(Q, 2), a) == [QueryableInfo(False, 5)]
    assert told(undeclare(Q, 1), a) == [None]
    assert told(declare(Q, 9, "q", distance=0xFFFF), a) == [QueryableInfo(False, 0xFFFF)]


def test_an_interest_id_that_is_used_again_is_a_new_interest() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(b, interest(1, FUTURE, S, "t"), 0.0)
    routing.on_message(b, interest(1, FUTURE, S, "u"), 0.0)
    assert routing.on_message(a, declare(S, 1, "t"), 0.0) == []
    assert len(routing.on_message(a, declare(S, 2, "u"), 0.0)) == 1
    assert routing.size()["interests"] == 1


def test_who_has_no_interests_is_not_answered() -> None:
    routing = Routing(zid("1"), CLIENT)
    (up,) = opened(routing, ROUTER)
    assert routing.on_message(up, interest(1, BOTH, S), 0.0) == []
    assert routing.counters[DropReason.INTEREST_REFUSED] == 1


def test_a_peer_answers_interests_of_peers() -> None:
    routing = Routing(zid("1"), PEER)
    (peer,) = opened(routing, PEER)
    routing.on_message(routing.local, declare(S, 1, "t"), 0.0)
    assert bodies(to(routing.on_message(peer, interest(4, BOTH, S), 0.0), peer)) == [
        ("DeclareSubscriber", 1, "sender#1", 4),
        ("DeclareFinal", None, None, 4),
    ]


def test_what_upstream_says_of_an_ended_interest_is_not_kept() -> None:
    routing = Routing(zid("1"), CLIENT)
    (up,) = opened(routing, ROUTER)
    local = routing.local
    asked = to(routing.on_message(local, interest(1, BOTH, K | S, "*"), 0.0), up)[-1]
    assert isinstance(asked, Interest)
    routing.on_message(local, interest(1, FINAL, K), 0.0)
    late = declare(S, 5, "t")
    late.interest_id = asked.id
    assert routing.on_message(up, late, 0.0) == []
    assert routing.on_message(up, final(asked.id), 0.0) == []
    assert routing.counters[DropReason.DECLARATION_LATE] == 1
    assert routing.counters[DropReason.DECLARE_FINAL_UNEXPECTED] == 1
    assert routing.size()["declared"] == 0


def test_what_upstream_declared_for_an_ended_interest_is_forgotten() -> None:
    routing = Routing(zid("1"), CLIENT)
    (up,) = opened(routing, ROUTER)
    local = routing.local
    for number, key in ((1, "t/*"), (2, "t/2")):
        sent = to(routing.on_message(local, interest(number, BOTH, K | S, key), 0.0), up)[-1]
        assert isinstance(sent, Interest)
        answer = declare(S, number, f"t/{number}")
        answer.interest_id = sent.id
        routing.on_message(up, answer, 0.0)
        routing.on_message(up, final(sent.id), 0.0)
    assert routing.size()["declared"] == 2
    routing.on_message(local, interest(1, FINAL, K), 0.0)
    assert routing.size()["declared"] == 1  # what the other interest covers stays
    assert routing.destinations(local, "t/2") == (up,)
    routing.on_message(local, interest(2, FINAL, K), 0.0)
    assert routing.size()["declared"] == 0


def test_mistakes_are_counted() -> None:
    routing, (a,) = router(CLIENT)
    for message in (
        undeclare(S, 1),
        Declare(UndeclareKeyExpr(5)),
        declare(S, 1, "no//key"),
        final(None),
        final(3),
        interest(1, BOTH, S, "no//key"),
        Push(WireExpr(7, "/x")),
    ):
        assert routing.on_message(a, message, 0.0) == []
    routing.on_message(a, declare(S, 1, "t"), 0.0)
    assert routing.on_message(a, declare(S, 1, "u"), 0.0) == []
    assert routing.on_message(a, "nonsense", 0.0) == []  # type: ignore[arg-type]
    assert dict(routing.counters) == {
        "declaration_unknown": 1,
        "key_id_unknown": 1,
        "declaration_unknown_key": 1,
        "declare_final_unexpected": 2,
        "interest_unknown_key": 1,
        "unknown_key": 1,
        "declaration_id_in_use": 1,
        "unexpected_message": 1,
    }


def test_link_states_that_do_not_decode_are_counted() -> None:
    routing, (peer,) = router(PEER)
    assert routing.on_message(peer, NetworkOam(LINK_STATE, b"\xff\xff"), 0.0) == []
    assert routing.on_message(peer, NetworkOam(LINK_STATE, 3), 0.0) == []
    assert routing.on_message(peer, NetworkOam(9, b""), 0.0) == []
    assert routing.counters[DropReason.LINK_STATE_INVALID] == 1
    assert routing.counters[DropReason.LINK_STATE_REFUSED] == 1


@pytest.mark.parametrize(
    ("kind", "name"), [(S, "subscriber"), (Q, "queryable"), (T, "token")], ids="SQT"
)
def test_a_neighbour_that_declares_two_keys_with_one_id_is_to_be_closed(
    kind: Kind, name: str
) -> None:
    """The second one would never be served, and its undeclaration would end the first one."""
    routing, (a, b) = router(CLIENT, CLIENT)
    for key in ("first", "first", "second"):
        assert a.exceeded is None
        routing.on_message(a, declare(kind, 7, key), 0.0)
    assert f"declares {name} 7 on second, which it has on first" in exceeded(a)
    assert routing.counters[DropReason.DECLARATION_ID_IN_USE] == 1
    for key in ("first", "second"):  # As late answers of Rust do.
        routing.on_message(b, declare(kind, 0, key), 0.0)
    assert routing.counters[DropReason.DECLARATION_ID_IN_USE] == 2
    assert b.exceeded is None


@pytest.mark.parametrize("kind", [S, Q, T])
def test_a_neighbour_that_declares_too_much_is_to_be_closed(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr(declarations, "MAX_DECLARATIONS", 3)
    routing, (a, b) = router(CLIENT, CLIENT)
    for number in range(1, 4):
        routing.on_message(a, declare(kind, number, "q"), 0.0)
    routing.on_message(a, declare(kind, 3, "q"), 0.0)  # one that is there may be said again
    assert a.exceeded is None
    routing.on_message(a, declare(kind, 4, "q"), 0.0)
    assert "3 subscribers, queryables and tokens" in exceeded(a)
    assert "undeclare what is not needed" in exceeded(a)
    assert routing.counters[DropReason.DECLARATION_LIMIT] == 1
    assert b.exceeded is None
    routing.on_message(routing.local, declare(kind, 4, "q"), 0.0)
    assert routing.local.exceeded is None


def test_a_neighbour_with_too_many_interests_is_to_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(declarations, "MAX_INTERESTS", 3)
    routing = Routing(zid("1"), PEER)
    up, a, b = opened(routing, ROUTER, CLIENT, CLIENT)
    for number in range(1, 4):
        routing.on_message(a, interest(number, FUTURE, S, "t"), 0.0)
    routing.on_message(a, interest(3, FUTURE, S, "u"), 0.0)  # replaces one
    assert a.exceeded is None
    routing.on_message(a, interest(4, FUTURE, S, "t"), 0.0)
    assert "3 interests" in exceeded(a)
    assert routing.counters[DropReason.INTEREST_LIMIT] == 1
    assert up.exceeded is None is b.exceeded


def test_a_neighbour_may_have_as_many_publishers_and_tokens_as_it_has_key_ids() -> None:
    """A node of Rust has one interest per publisher."""
    routing, (a, b) = router(CLIENT, CLIENT)
    for number in range(1, face.MAX_KEY_IDS + 1):
        routing.on_message(a, Declare(DeclareKeyExpr(number, full(f"robot/{number}/pose"))), 0.0)
        key = WireExpr(number, "", Mapping.SENDER)
        routing.on_message(a, Interest(number, BOTH, S, key), 0.0)
        routing.on_message(a, Declare(DeclareToken(number, key)), 0.0)
    assert a.exceeded is None
    assert not routing.counters
    declared = routing.on_message(b, declare(S, 1, "robot/**"), 0.0)
    assert len(to(declared, a)) == 1  # One subscriber is enough for all of them.
    assert routing.size()["interests"] == routing.size()["TOKENS keys"] == face.MAX_KEY_IDS


def test_the_weight_of_a_neighbours_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations, "MAX_WEIGHT", 2 * face.weight_of("some/key"))
    routing, (a,) = router(CLIENT)
    routing.on_message(a, declare(T, 1, "some/key"), 0.0)
    routing.on_message(a, interest(1, FUTURE, S, "some/key"), 0.0)
    assert a.exceeded is None
    routing.on_message(a, declare(T, 2, "some/key"), 0.0)
    assert "bytes of declarations and interests" in exceeded(a)


@pytest.mark.parametrize("letter", ["x", "\u20ac", "\U0001f600"])
@pytest.mark.parametrize("chunks", [1, 8])
@pytest.mark.parametrize("kind", ["token", "subscriber", "publisher", "all", "pending"])
def test_the_weight_of_a_neighbour_is_its_memory_at_most(
    kind: str, chunks: int, letter: str
) -> None:
    """Keys without a common chunk: no others take as much."""
    routing = Routing(zid("1"), PEER)
    (a,) = opened(routing, CLIENT)
    if kind == "pending":
        routing.open(zid("2"), ROUTER, 0.0, keys_in_full=True)
    options = S | Q | T | K if kind == "all" else T if kind == "pending" else S | K

    def message(number: int) -> Declare | Interest:
        key = "/".join(f"{number}c{chunk}{40 * letter}" for chunk in range(chunks))
        if kind in ("token", "subscriber"):
            return declare(T if kind == "token" else S, number, key)
        return interest(number, CURRENT if kind == "pending" else FUTURE, options, key)

    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 701):
            routing.on_message(a, message(number), 0.0)
        a._texts.clear()  # It is limited on its own.
        gc.collect()
        memory = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert a.exceeded is None
    assert a.weight / 2 < memory <= a.weight


def test_a_pending_interest_weighs_until_it_is_answered() -> None:
    routing = Routing(zid("1"), PEER)
    up, a = opened(routing, ROUTER, CLIENT)
    out = routing.on_message(a, interest(1, CURRENT, T, "some/key"), 0.0)
    pending, kept = a.weight, face.weight_of("some/key", trees=2)
    assert pending > face.weight_of("some/key", trees=0)
    (asked,) = [message for _, message in out if isinstance(message, Interest)]
    routing.on_message(up, final(asked.id), 0.0)
    assert a.weight == 0
    out = routing.on_message(a, interest(2, BOTH, S | K, "some/key"), 0.0)
    assert a.weight == pending + kept
    routing.on_message(a, interest(2, FINAL, S | K, "some/key"), 0.0)
    assert a.weight == 0


def test_a_neighbour_that_answers_an_interest_with_too_many_keys_is_to_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(declarations, "MAX_ANSWERS", 3)
    routing = Routing(zid("1"), CLIENT)
    (up,) = opened(routing, ROUTER)
    out = routing.on_message(routing.local, interest(1, CURRENT, T, "**"), 0.0)
    (asked,) = [message for _, message in out if isinstance(message, Interest)]
    for number in range(1, 5):
        assert up.exceeded is None
        answer = Declare(DeclareToken(number, full(f"alive/{number}")), asked.id)
        assert len(routing.on_message(up, answer, 0.0)) == (number <= 3)
    assert "3 answers to one interest" in exceeded(up)
    assert routing.counters[DropReason.INTEREST_ANSWER_LIMIT] == 1


def test_queries_beyond_the_limit_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_QUERIES", 3)
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(a, declare(Q, 1, "q"), 0.0)
    for number in range(1, 6):
        out = routing.on_message(b, request(number, "q"), 0.0)
        if number <= 3:
            assert [type(m) for _, m in out] == [Request]
        else:
            assert refused(out, b, number) == queries.TOO_MANY
    assert routing.counters[DropReason.REQUEST_LIMIT] == 2


def refused(out: Out, asking: Face, number: int) -> bytes | tuple[object, ...]:
    """The payload of the ERR that ends a query in place of a reply."""
    (to, error), end = out
    assert to is asking
    assert end == (asking, ResponseFinal(number))
    assert isinstance(error, Response)
    assert isinstance(error.body, Err)
    assert error.request_id == number
    return error.body.payload


def test_a_query_on_an_unknown_key_is_answered_by_an_error() -> None:
    routing, (a,) = router(CLIENT)
    asking = replace(request(1, "q"), key=WireExpr(9, "/q", Mapping.SENDER))
    assert refused(routing.on_message(a, asking, 0.0), a, 1) == queries.UNKNOWN_KEY
    assert routing.counters[DropReason.REQUEST_UNKNOWN_KEY] == 1


def test_tokens_are_not_echoed_to_peers() -> None:
    routing, (peer,) = router(PEER)
    routing.on_message(peer, links(peer.zid, zid("1")), 0.0)
    routing.on_message(peer, interest(1, FUTURE, T, "**"), 0.0)
    assert routing.on_message(peer, declare(T, 1, "alive"), 0.0) == []
    assert routing.on_message(peer, undeclare(T, 1), 0.0) == []


def test_the_end_of_a_token_that_only_upstream_knew_is_passed_on() -> None:
    routing = Routing(zid("1"), CLIENT)
    (up,) = opened(routing, ROUTER)
    routing.on_message(routing.local, interest(1, FUTURE, T, "**"), 0.0)
    gone = Declare(UndeclareToken(0, full("alive")))
    ((target, message),) = routing.on_message(up, gone, 0.0)
    assert target is routing.local
    assert isinstance(message, Declare)
    assert isinstance(message.body, UndeclareToken)
    assert str(message.body.key) == "alive"


# ---- queries


def hops(routing: Routing, source: Face, key: str, target: WireQueryTarget) -> list[Face]:
    out = routing.on_message(source, request(99, key, target=target), 0.0)
    found = [face for face, message in out if isinstance(message, Request)]
    routing.forget_query(source, 99)
    return found


def test_the_target_decides_which_queryables_are_asked() -> None:
    routing, (asker, near, far, part, other) = router(CLIENT, CLIENT, CLIENT, CLIENT, CLIENT)
    best, everybody, complete = WireQueryTarget
    routing.on_message(part, declare(Q, 1, "q/**"), 0.0)
    assert hops(routing, asker, "q/1", best) == [part]
    assert hops(routing, asker, "q/1", complete) == []
    routing.on_message(far, declare(Q, 1, "q/**", complete=True, distance=2), 0.0)
    routing.on_message(near, declare(Q, 1, "q/*", complete=True), 0.0)
    routing.on_message(other, declare(Q, 1, "q/1/x", complete=True), 0.0)
    assert hops(routing, asker, "q/1", best) == [near]
    assert set(hops(routing, asker, "q/1", everybody)) == {near, far, part}
    assert set(hops(routing, asker, "q/1", complete)) == {near, far}
    assert hops(routing, asker, "q/**", best) == [far]  # the others do not include it
    assert set(hops(routing, asker, "**", best)) == {near, far, part, other}
    assert hops(routing, near, "q/1", best) == [far]  # never back
    routing.on_message(routing.local, declare(Q, 1, "q/1", complete=True), 0.0)
    assert hops(routing, asker, "q/1", best) == [routing.local]


def test_a_request_goes_on_as_it_came_under_an_id_of_that_link() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(b, declare(Q, 1, "q"), 0.0)
    came = request(7, "q", budget=3, timeout_ms=500, qos=qos.REQUEST, node_id=2)
    ((hop, sent),) = routing.on_message(a, came, 0.0)
    assert hop is b
    assert isinstance(sent, Request)
    assert (sent.budget, sent.timeout_ms, sent.qos, sent.node_id) == (3, 500, qos.REQUEST, 0)
    assert routing.deadline == 0.5
    ((back, answer),) = routing.on_message(b, reply(sent.id, "q"), 0.0)
    assert back is a
    assert isinstance(answer, Response)
    assert (answer.request_id, answer.qos) == (7, qos.REQUEST)
    assert routing.on_message(b, ResponseFinal(sent.id), 0.0) == [
        (a, ResponseFinal(7, qos.REQUEST))
    ]
    assert routing.deadline is None


def asked(out: Out) -> dict[Face, int]:
    return {face: message.id for face, message in out if isinstance(message, Request)}


def test_silence_is_an_error_for_each_hop_and_then_the_end() -> None:
    routing, (a, b, c) = router(CLIENT, CLIENT, CLIENT)
    for hop in (b, c):
        routing.on_message(hop, declare(Q, 1, "q"), 0.0)
    ids = asked(routing.on_message(a, request(7, "q"), 1.0))
    routing.on_message(b, ResponseFinal(ids[b]), 2.0)
    assert routing.on_time(10.9) == []
    assert routing.on_time(11.0) == [
        (a, Response(7, WireExpr(), Err(b"Timeout"), responder=WireEntityId(c.zid, 0))),
        (a, ResponseFinal(7)),
    ]
    assert routing.on_message(c, reply(ids[c], "q"), 12.0) == []
    assert routing.on_message(c, ResponseFinal(ids[c]), 12.0) == []
    assert routing.counters[DropReason.REPLY_UNKNOWN_QUERY] == 1
    assert routing.counters[DropReason.REPLY_FINAL_UNKNOWN_QUERY] == 1


def test_the_budget_ends_a_query() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(b, declare(Q, 1, "q"), 0.0)
    number = asked(routing.on_message(a, request(7, "q", budget=2), 0.0))[b]
    error = Response(number, WireExpr(), Err(b"no"))
    assert len(routing.on_message(b, error, 0.0)) == 1
    out = routing.on_message(b, reply(number, "q"), 0.0)
    assert [type(m) for _, m in out] == [Response, ResponseFinal]
    assert routing.on_message(b, reply(number, "q"), 0.0) == []
    assert routing.on_message(b, ResponseFinal(number), 0.0) == []


def test_the_budget_counts_the_errors_of_silent_hops() -> None:
    routing, (a, b, c) = router(CLIENT, CLIENT, CLIENT)
    for hop in (b, c):
        routing.on_message(hop, declare(Q, 1, "q"), 0.0)
    routing.on_message(a, request(7, "q", budget=1), 0.0)
    assert [type(m) for _, m in routing.on_time(11.0)] == [Response, ResponseFinal]
    assert routing.counters[DropReason.QUERY_TIMEOUT] == 2


def test_a_request_whose_id_is_in_use_is_ended_and_the_first_one_goes_on() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(b, declare(Q, 1, "q"), 0.0)
    number = asked(routing.on_message(a, request(7, "q"), 0.0))[b]
    assert routing.on_message(a, request(7, "q"), 0.0) == [(a, ResponseFinal(7))]
    assert routing.counters[DropReason.REQUEST_ID_IN_USE] == 1
    assert len(routing.on_message(b, reply(number, "q"), 0.0)) == 1
    assert routing.on_message(b, ResponseFinal(number), 0.0) == [(a, ResponseFinal(7))]


def test_a_forgotten_query_is_not_answered() -> None:
    routing, (b,) = router(CLIENT)
    routing.on_message(b, declare(Q, 1, "q"), 0.0)
    number = asked(routing.on_message(routing.local, request(7, "q"), 0.0))[b]
    routing.forget_query(routing.local, 7)
    routing.forget_query(routing.local, 8)
    assert routing.on_message(b, reply(number, "q"), 0.0) == []
    assert routing.on_message(b, ResponseFinal(number), 0.0) == []
    assert routing.deadline is None


def test_nobody_answers_for_another() -> None:
    routing, (a, b, c) = router(CLIENT, CLIENT, CLIENT)
    routing.on_message(b, declare(Q, 1, "q"), 0.0)
    number = asked(routing.on_message(a, request(7, "q"), 0.0))[b]
    assert routing.on_message(c, reply(number, "q"), 0.0) == []
    assert routing.on_message(c, ResponseFinal(number), 0.0) == []
    assert routing.size()["queries"] == 1


def test_replies_carry_the_key_in_full() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(b, Declare(DeclareKeyExpr(1, full("robot/7"))), 0.0)
    routing.on_message(b, declare(Q, 1, "robot/**"), 0.0)
    number = asked(routing.on_message(a, request(7, "robot/*"), 0.0))[b]
    answer = Response(number, WireExpr(1, "", Mapping.SENDER))
    ((_, back),) = routing.on_message(b, answer, 0.0)
    assert isinstance(back, Response)
    assert str(back.key) == "robot/7"
    assert routing.on_message(b, Response(number, WireExpr(9, "/x")), 0.0) == []
    assert routing.counters[DropReason.REPLY_UNKNOWN_KEY] == 1


def test_who_asks_and_leaves_is_forgotten() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(b, declare(Q, 1, "q"), 0.0)
    number = asked(routing.on_message(a, request(7, "q"), 0.0))[b]
    assert routing.close(a, 0.0) == []
    assert routing.on_message(b, reply(number, "q"), 0.0) == []
    assert routing.size()["queries"] == routing.size()["requests"] == 0


def test_many_ended_queries_leave_no_timers() -> None:
    routing, (a, b) = router(CLIENT, CLIENT)
    routing.on_message(b, declare(Q, 1, "q"), 0.0)
    for number in range(1, 2000):
        hop = asked(routing.on_message(a, request(number, "q"), 0.0))[b]
        routing.on_message(b, ResponseFinal(hop), 0.0)
    assert len(routing._queries.timers._heap) < 200
