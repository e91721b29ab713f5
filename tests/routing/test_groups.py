"""Multicast groups in the routing: what goes to a group, and what members and groups declare.

Rust: `zenoh/src/net/routing/hat/peer/pubsub.rs` and `dispatcher/tables.rs`, `egress_filter`. The
tests with eclipse-zenoh are in `tests/interop/test_groups_live.py`.
"""

from typing import Any

import pytest

from tests.support.routing_recording import (
    BOTH,
    CLIENT,
    PEER,
    ROUTER,
    A,
    Q,
    S,
    T,
    bodies,
    declare,
    interest,
    push,
    request,
    to,
    undeclare,
    zid,
)
from zenlake.routing import Face, Routing
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.push import Push

NOW = 0.0


class Hub:
    """A node in two groups, each with a member, and with a session to a node of each other role."""

    def __init__(self, whatami: WireWhatAmI) -> None:
        self.routing = Routing(zid("a0"), whatami)
        self.group, _ = self.routing.open_group(NOW)
        self.member = self.routing.open_member(zid("b1"), PEER, self.group)
        self.other_group, _ = self.routing.open_group(NOW)
        self.other_member = self.routing.open_member(zid("b2"), PEER, self.other_group)
        self.local = self.routing.local
        self.client, _ = self.routing.open(zid("c1"), CLIENT, NOW)
        self.peer, _ = self.routing.open(zid("d1"), PEER, NOW)
        self.router, _ = self.routing.open(zid("e1"), ROUTER, NOW)
        for face in (self.local, self.client, self.peer):
            self.hear(face, interest(1, BOTH, S | Q | T))

    def hear(self, face: Face, message: Any) -> Any:
        return self.routing.on_message(face, message, NOW)

    def reached(self, source: Face) -> set[str]:
        """Return which faces a put of `source` is sent to, by name."""
        found = self.hear(source, push("k/a"))
        assert all(isinstance(message, Push) for _, message in found)
        names = {face: name for name, face in vars(self).items() if isinstance(face, Face)}
        assert len({id(face) for face, _ in found}) == len(found)
        return {names[face] for face, _ in found}

    def dropped(self) -> dict[DropReason, int]:
        return dict(self.routing.counters)


GROUPS = {"group", "other_group"}
REACHED = {
    PEER: {
        "local": {"client", "peer", "router", *GROUPS},
        "client": {"local", "peer", "router", *GROUPS},
        "peer": {"local", "client", *GROUPS},
        "router": {"local", "client", *GROUPS},
        "member": {"local", "client"},
        "other_member": {"local", "client"},
    },
    ROUTER: {
        "local": {"client", "peer", "router", *GROUPS},
        "client": {"local", "peer", "router", *GROUPS},
        "peer": {"local", "client", "router", *GROUPS},
        "router": {"local", "client", "peer", *GROUPS},
        "member": {"local", "client", "router"},
        "other_member": {"local", "client", "router"},
    },
}


@pytest.mark.parametrize("whatami", [PEER, ROUTER])
def test_where_a_put_goes(whatami: WireWhatAmI) -> None:
    """All want the key, and groups get it unasked; a member's subscriber adds no copy."""
    hub = Hub(whatami)
    faces = (hub.local, hub.client, hub.peer, hub.router, hub.member, hub.other_member)
    for face in faces:
        hub.hear(face, declare(S, 7, "k/**"))
    for name, there in REACHED[whatami].items():
        assert hub.reached(getattr(hub, name)) == there, name


@pytest.mark.parametrize("whatami", [PEER, ROUTER])
def test_what_a_member_sends_over_a_link_too_does_not_go_to_its_group_again(
    whatami: WireWhatAmI,
) -> None:
    hub = Hub(whatami)
    assert hub.reached(hub.peer) >= GROUPS
    member = hub.routing.open_member(hub.peer.zid, PEER, hub.group)
    assert hub.reached(hub.peer) & GROUPS == {"other_group"}
    hub.routing.close(member, NOW)
    assert hub.reached(hub.peer) >= GROUPS


def test_a_group_that_was_left_gets_nothing() -> None:
    hub = Hub(PEER)
    assert hub.reached(hub.local) >= GROUPS
    before = hub.routing.version
    hub.routing.close(hub.group, NOW)
    assert hub.routing.version != before
    assert hub.reached(hub.local) & GROUPS == {"other_group"}


@pytest.mark.parametrize("whatami", [PEER, ROUTER])
def test_members_change_no_routes(whatami: WireWhatAmI) -> None:
    """Data goes to their groups; yet other faces are told at once what members declare."""
    hub = Hub(whatami)
    for face in (hub.local, hub.client, hub.peer, hub.router):
        hub.hear(face, declare(S, 7, "k/**"))
    reached, before = hub.reached(hub.local), hub.routing.version
    member = hub.routing.open_member(zid("b3"), PEER, hub.group)
    told = hub.hear(member, declare(S, 1, "k/new"))
    assert [body[0] for body in bodies(to(told, hub.local))] == ["DeclareSubscriber"]
    told = hub.hear(member, undeclare(S, 1))
    assert [body[0] for body in bodies(to(told, hub.local))] == ["UndeclareSubscriber"]
    hub.hear(member, declare(S, 2, "k/new"))
    told = hub.routing.close(member, NOW)
    assert [body[0] for body in bodies(to(told, hub.local))] == ["UndeclareSubscriber"]
    assert hub.routing.version == before
    assert hub.reached(hub.local) == reached
    hub.hear(hub.client, declare(S, 8, "k/new"))
    assert hub.routing.version != before


@pytest.mark.parametrize("whatami", [PEER, ROUTER])
def test_a_group_learns_of_subscribers_alone(whatami: WireWhatAmI) -> None:
    hub = Hub(whatami)
    out = [
        *hub.hear(hub.client, declare(S, 1, "k/a")),
        *hub.hear(hub.client, declare(Q, 2, "k/a")),
        *hub.hear(hub.client, declare(T, 3, "k/a")),
        *hub.hear(hub.local, declare(S, 4, "k/a")),
        *hub.hear(hub.peer, declare(S, 5, "k/peer")),
        *hub.hear(hub.member, declare(S, 6, "k/member")),
    ]
    told = bodies(to(out, hub.group))
    assert [(name, key) for name, _, key, _ in told] == [("DeclareSubscriber", "k/a")]
    ((_, number, _, _),) = told
    slots = list(hub.group.sent_declarations)
    assert bodies(to(hub.routing.declare_again(hub.group, slots), hub.group)) == told
    assert to(hub.hear(hub.local, undeclare(S, 4)), hub.group) == []
    gone = to(hub.hear(hub.client, undeclare(S, 1)), hub.group)
    assert bodies(gone) == [("UndeclareSubscriber", number, None, None)]
    assert hub.routing.declare_again(hub.group, slots) == []


def test_a_group_joined_late_learns_of_the_subscribers_that_there_are() -> None:
    routing = Routing(zid("a0"), PEER)
    routing.on_message(routing.local, declare(S, 1, "k/a"), NOW)
    routing.on_message(routing.local, declare(Q, 2, "k/a"), NOW)
    group, out = routing.open_group(NOW)
    assert len(out) == 1
    assert [name for name, *_ in bodies(to(out, group))] == ["DeclareSubscriber"]


def test_subscribers_of_members_are_known_until_they_leave() -> None:
    """Rust declares each of them with id 0."""
    hub = Hub(PEER)
    out = [
        *hub.hear(hub.member, declare(S, 0, "k/a")),
        *hub.hear(hub.member, declare(S, 0, "k/b")),
        *hub.hear(hub.member, declare(S, 0, "k/b")),
        *hub.hear(hub.other_member, declare(S, 9, "k/c")),
    ]
    for face in (hub.local, hub.client):
        keys = [key for _, _, key, _ in bodies(to(out, face))]
        assert keys == ["k/a", "k/b", "k/c"]
    assert to(out, hub.peer) == to(out, hub.group) == to(out, hub.other_group) == []
    gone = hub.hear(hub.other_member, undeclare(S, 9))
    assert len(to(gone, hub.local)) == 1
    gone = hub.routing.close(hub.member, NOW)
    assert len(to(gone, hub.local)) == 2
    assert hub.dropped() == {}


def test_a_client_of_a_router_is_answered_for_members() -> None:
    hub = Hub(ROUTER)
    hub.hear(hub.member, declare(S, 0, "k/**"))
    out = hub.hear(hub.client, interest(9, BOTH, S | A, "k/a"))
    assert [name for name, *_ in bodies(to(out, hub.client))] == [
        "DeclareSubscriber",
        "DeclareFinal",
    ]


def test_what_members_may_not_say() -> None:
    hub = Hub(PEER)
    hub.hear(hub.local, declare(Q, 1, "k/**"))
    said = [
        declare(Q, 1, "k/a"),
        declare(T, 2, "k/a"),
        interest(3, BOTH, S),
        request(4, "k/a"),
    ]
    assert [out for message in said for out in hub.hear(hub.member, message)] == []
    assert hub.dropped() == {
        DropReason.DECLARATION_IN_GROUP: 2,
        DropReason.UNEXPECTED_MESSAGE: 2,
    }
    size = hub.routing.size()
    assert (size["QUERYABLES keys"], size["TOKENS keys"], size["queries"]) == (1, 0, 0)


def test_nothing_is_left_of_groups_and_members() -> None:
    hub = Hub(ROUTER)
    before = Routing(zid("a0"), ROUTER).size()
    hub.hear(hub.local, declare(S, 1, "k/a"))
    hub.hear(hub.member, declare(S, 0, "k/a"))
    for face in (hub.client, hub.peer, hub.router, hub.member, hub.other_member):
        hub.routing.close(face, NOW)
    for face in (hub.group, hub.other_group):
        hub.routing.close(face, NOW)
    hub.hear(hub.local, undeclare(S, 1))
    left = {name: count for name, count in hub.routing.size().items() if count}
    assert left.pop("interests") == 1
    assert set(left) == {"faces", *(name for name in left if name.endswith("interests"))}
    assert left["faces"] == before["faces"]
