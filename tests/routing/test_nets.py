"""Small networks of nodes that are routing alone: who hears whom, and once."""

import pytest

from tests.support.routing_recording import (
    BOTH,
    CLIENT,
    CURRENT,
    FINAL,
    FUTURE,
    PEER,
    ROUTER,
    K,
    Net,
    Node,
    Q,
    S,
    T,
    bodies,
    declare,
    final,
    interest,
    links,
    push,
    reply,
    request,
    undeclare,
)
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.declare import Declare, DeclareToken, UndeclareToken
from zenlake.wire.interest import Interest
from zenlake.wire.push import Push
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal


def star(middle: tuple[str, object], *outer: tuple[str, object]) -> tuple[Net, list[Node]]:
    net = Net()
    nodes = [Node(name, role) for name, role in (middle, *outer)]  # type: ignore[arg-type]
    for node in nodes[1:]:
        net.link(node, nodes[0])
    return net, nodes


@pytest.mark.parametrize("middle", [ROUTER, PEER])
def test_clients_reach_each_other(middle: object) -> None:
    net, (_, a, b, c) = star(("1", middle), ("a", CLIENT), ("b", CLIENT), ("c", CLIENT))
    net.local(b, declare(S, 1, "t/*"))
    net.local(c, declare(S, 1, "u/*"))
    net.local(a, push("t/1"))
    assert b.data() == [("t/1", b"x")]
    assert a.data() == c.data() == []
    net.local(b, push("t/1"))
    assert a.data() == b.data() == c.data() == []  # never back, and no other node wants it


def test_the_node_in_the_middle_takes_part() -> None:
    net, (router, a, _) = star(("1", ROUTER), ("a", CLIENT), ("b", CLIENT))
    net.local(router, declare(S, 1, "**"))
    net.local(a, declare(S, 1, "t"))
    net.local(a, push("t", b"from a"))
    net.local(router, push("t", b"from the router"))
    assert router.data() == [("t", b"from a")]
    assert a.data() == [("t", b"from the router")]


def test_peers_get_only_what_they_want_after_they_said_all() -> None:
    net = Net()
    a, b = Node("a", PEER), Node("b", PEER)
    net.local(b, declare(S, 1, "t"))
    net.link(a, b)
    net.log.clear()
    net.local(a, push("t"))
    net.local(a, push("u"))
    assert b.data() == [("t", b"x")]
    assert len(net.log) == 1


def test_a_peer_that_has_not_said_all_gets_everything() -> None:
    a = Node("a", PEER)
    face, out = a.routing.open(Node("b", PEER).routing.local.zid, PEER, 0.0)
    assert bodies([m for _, m in out]) == [("DeclareFinal", None, None, 0)]
    assert a.routing.destinations(a.routing.local, "any") == (face,)


def test_a_peer_passes_between_its_clients_and_everybody_but_not_between_peers() -> None:
    net, (middle, peer, other, client) = star(("1", PEER), ("a", PEER), ("b", PEER), ("c", CLIENT))
    for node in (middle, peer, other, client):
        net.local(node, declare(S, 1, "**"))
    net.local(client, push("from/client"))
    assert [len(node.data()) for node in (middle, peer, other, client)] == [1, 1, 1, 0]
    net.local(peer, push("from/peer"))
    assert [len(node.data()) for node in (middle, peer, other, client)] == [1, 0, 0, 1]


def test_peers_behind_a_router_reach_each_other_unless_they_are_linked() -> None:
    net = Net()
    router, a, b = Node("1", ROUTER), Node("a", PEER), Node("b", PEER)
    zid_a, zid_b, zid_r = (n.routing.local.zid for n in (a, b, router))
    a_side, router_a = net.link(a, router)
    _, router_b = net.link(b, router)
    net.local(a, declare(S, 1, "**"))
    net.local(b, declare(S, 1, "**"))
    net.local(a, push("t"))
    assert b.data() == []  # neither told of its links: they may have one
    net.say(a, [(a_side, links(zid_a, zid_r))])
    net.local(a, push("t"))
    net.local(b, push("u"))
    assert (a.data(), b.data()) == ([("u", b"x")], [("t", b"x")])
    net.link(a, b)
    net.say(a, [(a_side, links(zid_a, zid_r, zid_b, sn=2))])
    net.local(a, push("t"))
    net.local(b, push("u"))
    assert (a.data(), b.data()) == ([("u", b"x")], [("t", b"x")])  # once
    assert router.routing.destinations(router_a, "t") == ()
    net.say(a, [(a_side, links(zid_a, zid_r, sn=1))])  # old news
    assert router.routing.destinations(router_b, "t") == ()


def test_peers_that_become_linked_are_told_so_by_undeclarations() -> None:
    net = Net()
    router, a, b = Node("1", ROUTER), Node("a", PEER), Node("b", PEER)
    zid_a, zid_b, zid_r = (n.routing.local.zid for n in (a, b, router))
    a_side, _ = net.link(a, router)
    net.link(b, router)
    net.say(a, [(a_side, links(zid_a, zid_r))])
    net.local(a, interest(7, BOTH, K | S | T, "**"))
    net.local(b, declare(S, 1, "t"))
    net.local(b, declare(T, 2, "alive"))
    assert [name for name, *_ in bodies(a.take())] == [
        "DeclareFinal",
        "DeclareSubscriber",
        "DeclareToken",
    ]
    net.say(a, [(a_side, links(zid_a, zid_r, zid_b, sn=2))])
    assert [name for name, *_ in bodies(a.take())] == ["UndeclareSubscriber", "UndeclareToken"]


def test_two_routers_pass_on_one_hop_and_undeclare_by_key() -> None:
    net = Net()
    one, two = Node("1", ROUTER), Node("2", ROUTER)
    a, b = Node("a", CLIENT), Node("b", CLIENT)
    net.link(one, two)
    net.link(a, one)
    net.link(b, two)
    net.local(b, declare(S, 1, "t"))
    net.local(a, push("t"))
    assert b.data() == [("t", b"x")]
    net.local(b, undeclare(S, 1))
    net.log.clear()
    net.local(a, push("t"))
    assert len(net.log) == 1  # to its router only
    assert b.data() == []


def test_only_the_first_gateway_of_a_peer_speaks_for_it() -> None:
    net = Net()
    one, two = Node("1", ROUTER), Node("2", ROUTER)
    peer, client = Node("a", PEER), Node("c", CLIENT)
    zids = [n.routing.local.zid for n in (peer, one, two)]
    net.link(one, two)
    sides = [net.link(peer, one)[0], net.link(peer, two)[0]]
    net.link(client, one)
    net.local(client, declare(S, 1, "t"))
    for side in sides:
        net.say(peer, [(side, links(*zids, gateways=(zids[1], zids[2])))])
    net.local(peer, push("t"))
    assert client.data() == [("t", b"x")]


def test_the_local_declarations_come_again_after_a_reconnect() -> None:
    net = Net()
    router, a, b = Node("1", ROUTER), Node("a", CLIENT), Node("b", CLIENT)
    session = net.link(a, router)
    net.link(b, router)
    net.local(a, declare(S, 1, "t"))
    net.local(a, declare(Q, 2, "q", complete=True))
    net.local(a, declare(T, 3, "alive"))
    net.local(a, interest(4, BOTH, K | S, "p"))
    net.local(b, declare(S, 1, "p"))
    before = router.routing.size()
    net.unlink(session)
    a.take()
    net.local(b, push("t"))
    assert a.data() == []
    net.link(a, router)
    assert router.routing.size() == before
    assert [name for name, *_ in bodies(a.take())] == ["DeclareSubscriber"]
    net.local(b, push("t"))
    assert a.data() == [("t", b"x")]


# ---- write-side filtering


def sent(net: Net, kind: type) -> int:
    count = sum(type(message) is kind for _, message in net.log)
    net.log.clear()
    return count


def test_a_declared_publisher_sends_only_when_somebody_listens() -> None:
    net, (_, a, b) = star(("1", ROUTER), ("a", CLIENT), ("b", CLIENT))
    net.log.clear()
    net.local(a, push("t"))
    assert sent(net, Push) == 1  # undeclared: always
    net.local(a, interest(1, BOTH, K | S, "t"))
    assert bodies(a.take()) == [("DeclareFinal", None, None, 1)]
    net.local(a, push("t"))
    assert sent(net, Push) == 0
    net.local(a, push("t/other"))
    assert sent(net, Push) == 1  # that key exactly, no other
    net.local(b, declare(S, 1, "*"))
    assert [name for name, *_ in bodies(a.take())] == ["DeclareSubscriber"]
    net.log.clear()
    net.local(a, push("t"))
    assert sent(net, Push) == 2
    net.local(b, undeclare(S, 1))
    net.log.clear()
    net.local(a, push("t"))
    assert sent(net, Push) == 0
    net.local(a, interest(1, FINAL, K))
    net.log.clear()
    net.local(a, push("t"))
    assert sent(net, Push) == 1  # undeclared again


def test_a_declared_querier_asks_only_when_somebody_answers() -> None:
    net, (_, a, _) = star(("1", ROUTER), ("a", CLIENT), ("b", CLIENT))
    net.local(a, interest(1, BOTH, K | Q, "t"))
    net.log.clear()
    a.take()
    net.local(a, request(5, "t"))
    assert sent(net, Request) == 0
    assert a.take() == [ResponseFinal(5)]


def test_an_interest_without_upstream_is_answered_at_once() -> None:
    a = Node("a", CLIENT)
    net = Net()
    net.local(a, interest(1, BOTH, K | S, "t"))
    assert bodies(a.take()) == [("DeclareFinal", None, None, 1)]


# ---- interests across hops


def test_a_peer_in_the_middle_asks_upstream_before_it_says_that_is_all() -> None:
    net = Net()
    router, peer, client, far = (
        Node("1", ROUTER),
        Node("a", PEER),
        Node("c", CLIENT),
        Node("d", CLIENT),
    )
    net.link(peer, router)
    net.link(client, peer)
    net.link(far, router)
    net.local(far, declare(S, 1, "t/far"))
    net.local(client, interest(3, BOTH, K | S, "t/**"))
    assert bodies(client.take()) == [
        ("DeclareSubscriber", 1, "t/far", 3),
        ("DeclareFinal", None, None, 3),
    ]
    net.local(client, interest(3, FINAL, K))
    assert [name for name, *_ in bodies(client.take())] == ["UndeclareSubscriber"]
    assert router.routing.size()["interests"] == peer.routing.size()["interests"] == 0
    assert peer.routing.size()["declared"] == 0


def test_upstream_that_is_silent_or_gone_counts_as_answered() -> None:
    peer, now = Node("a", PEER), 0.0
    up, _ = peer.routing.open(Node("1", ROUTER).routing.local.zid, ROUTER, now)
    local = peer.routing.local
    out = peer.routing.on_message(local, interest(1, BOTH, K | S, "t"), now)
    assert [type(m) for _, m in out] == [Declare, Interest]  # D_KEYEXPR, INTEREST; no D_FINAL
    assert peer.routing.on_time(9.9) == []
    assert bodies([m for _, m in peer.routing.on_time(10.0)]) == [("DeclareFinal", None, None, 1)]
    assert peer.routing.deadline is None
    peer.routing.on_message(local, interest(2, CURRENT, K | T, "t"), now)
    assert bodies([m for _, m in peer.routing.close(up, now)]) == [("DeclareFinal", None, None, 2)]


# ---- tokens


@pytest.mark.parametrize("middle", [ROUTER, PEER])
def test_tokens_come_and_go_and_own_ones_are_seen_once(middle: object) -> None:
    net, (_, a, b) = star(("1", middle), ("a", CLIENT), ("b", CLIENT))
    net.local(a, interest(1, FUTURE, K | T, "alive/**"))
    net.local(a, declare(T, 2, "alive/a"))
    net.local(b, declare(T, 2, "alive/b"))
    assert [(type(m.body), str(m.body.key)) for m in a.take()] == [
        (DeclareToken, "alive/a"),
        (DeclareToken, "alive/b"),
    ]
    net.local(a, interest(3, CURRENT, K | T, "alive/**"))
    found = bodies(a.take())
    assert sorted(found[:-1]) == [
        ("DeclareToken", 0, "alive/a", 3),
        ("DeclareToken", 0, "alive/b", 3),
    ]
    assert found[-1] == ("DeclareFinal", None, None, 3)
    net.local(a, undeclare(T, 2))
    net.local(b, undeclare(T, 2))
    assert [(type(m.body), str(m.body.key)) for m in a.take()] == [
        (UndeclareToken, "alive/a"),
        (UndeclareToken, "alive/b"),
    ]


def test_history_is_told_once_by_those_who_know_already() -> None:
    net, (_, a, b) = star(("1", ROUTER), ("a", CLIENT), ("b", CLIENT))
    net.local(b, declare(T, 1, "alive/b"))
    net.local(a, interest(1, BOTH, K | T, "alive/**"))
    assert [(name, i) for name, _, _, i in bodies(a.take())] == [
        ("DeclareToken", 1),
        ("DeclareFinal", 1),
    ]
    net.local(a, interest(2, BOTH, K | T, "alive/*"))  # answered here, and upstream answers again
    assert [(name, i) for name, _, _, i in bodies(a.take())] == [
        ("DeclareToken", 2),
        ("DeclareFinal", 2),
    ]


def test_a_token_of_two_faces_dies_with_the_second() -> None:
    net, (_, a, b, c) = star(("1", ROUTER), ("a", CLIENT), ("b", CLIENT), ("c", CLIENT))
    net.local(a, interest(1, FUTURE, K | T, "**"))
    net.local(b, declare(T, 1, "alive"))
    net.local(c, declare(T, 1, "alive"))
    assert len(a.take()) == 1
    net.local(b, undeclare(T, 1))
    assert a.take() == []
    net.local(c, undeclare(T, 1))
    assert [type(m.body) for m in a.take()] == [UndeclareToken]


def test_who_asked_for_the_future_hears_of_the_end_of_older_tokens() -> None:
    net, (_, a, b) = star(("1", ROUTER), ("a", CLIENT), ("b", CLIENT))
    net.local(b, declare(T, 1, "alive"))
    net.local(a, interest(1, FUTURE, K | T, "**"))
    assert a.take() == []
    net.local(b, undeclare(T, 1))
    assert [(type(m.body), str(m.body.key)) for m in a.take()] == [(UndeclareToken, "alive")]


def test_link_loss_ends_tokens() -> None:
    net = Net()
    router, a, b = Node("1", ROUTER), Node("a", CLIENT), Node("b", CLIENT)
    net.link(a, router)
    session = net.link(b, router)
    net.local(a, interest(1, FUTURE, K | T, "**"))
    net.local(b, declare(T, 1, "alive"))
    a.take()
    net.unlink(session)
    assert [type(m.body) for m in a.take()] == [UndeclareToken]


def test_what_waits_for_a_peers_first_declarations_is_answered_with_them() -> None:
    a = Node("a", PEER)
    local = a.routing.local
    face, _ = a.routing.open(Node("b", PEER).routing.local.zid, PEER, 0.0)
    assert a.routing.on_message(local, interest(1, CURRENT, K | T, "**"), 0.0) == []
    out = a.routing.on_message(face, declare(T, 1, "alive"), 0.0)
    out += a.routing.on_message(face, final(0), 0.0)
    assert bodies([m for f, m in out if f is local]) == [
        ("DeclareToken", 0, "alive", 1),
        ("DeclareFinal", None, None, 1),
    ]


# ---- queries


def test_a_query_goes_to_the_queryable_and_its_replies_come_back() -> None:
    net, (_, a, b) = star(("1", ROUTER), ("a", CLIENT), ("b", CLIENT))
    net.local(b, declare(Q, 1, "q/**"))
    net.local(a, request(77, "q/1"))
    (asked,) = b.take()
    assert isinstance(asked, Request)
    assert str(asked.key) == "q/1"
    net.local(b, reply(asked.id, "q/1", b"one"))
    net.local(b, reply(asked.id, "q/1", b"two"))
    net.local(b, ResponseFinal(asked.id))
    net.local(b, ResponseFinal(asked.id))  # once more is once too often
    net.local(b, reply(asked.id, "q/1", b"late"))
    replies = a.take()
    assert [type(m) for m in replies] == [Response, Response, ResponseFinal]
    assert [m.request_id for m in replies] == [77, 77, 77]
    assert b.routing.counters[DropReason.REPLY_UNKNOWN_QUERY] == 1
    assert b.routing.counters[DropReason.REPLY_FINAL_UNKNOWN_QUERY] == 1


def test_the_final_reply_waits_for_every_hop_and_comes_once() -> None:
    net, (_, a, b, c) = star(("1", ROUTER), ("a", CLIENT), ("b", CLIENT), ("c", CLIENT))
    for node in (b, c):
        net.local(node, declare(Q, 1, "q"))
        net.local(node, declare(Q, 2, "*"))
    net.local(a, request(5, "q"))
    (at_b,), (at_c,) = b.take(), c.take()  # one REQUEST a hop, though two queryables match
    net.local(b, ResponseFinal(at_b.id))
    assert a.take() == []
    net.local(c, ResponseFinal(at_c.id))
    assert a.take() == [ResponseFinal(5)]


def test_a_hop_that_leaves_counts_as_final() -> None:
    net = Net()
    router, a, b = Node("1", ROUTER), Node("a", CLIENT), Node("b", CLIENT)
    net.link(a, router)
    session = net.link(b, router)
    net.local(b, declare(Q, 1, "q"))
    net.local(a, request(5, "q"))
    net.unlink(session)
    assert a.take() == [ResponseFinal(5)]


def test_nobody_to_ask_is_final_at_once() -> None:
    net, (_, a) = star(("1", ROUTER), ("a", CLIENT))
    net.local(a, request(5, "q"))
    assert a.take() == [ResponseFinal(5)]
