"""Random lives of a node: against a model that looks at everything, and against nonsense."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Net,
    Node,
    Q,
    S,
    T,
    declare,
    final,
    interest,
    links,
    push,
    reply,
    request,
    undeclare,
    zid,
)
from tests.support.strategies import network_messages
from zenlake.keyexpr import intersects
from zenlake.routing import Face, Routing
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.declare import Declare, DeclareFinal
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.interest import Interest
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.response_final import ResponseFinal

pytestmark = pytest.mark.slow

KEYS = ["a", "b", "a/b", "a/*", "*/b", "**", "a/**", "@x/a", "@x/**", "a/$*b"]
keys = st.sampled_from(KEYS)
roles = st.sampled_from([ROUTER, PEER, CLIENT])
small = st.integers(1, 3)

# What role stands where, and which neighbours of one kind hear each other; None: they do not talk.
NORTH = {
    (CLIENT, ROUTER): True,
    (CLIENT, PEER): True,
    (CLIENT, CLIENT): None,
    (PEER, ROUTER): True,
    (PEER, PEER): True,
    (PEER, CLIENT): False,
    (ROUTER, ROUTER): True,
    (ROUTER, PEER): False,
    (ROUTER, CLIENT): False,
}


@dataclass(eq=False)
class Neighbour:
    """The model's knowledge of one face."""

    role: WireWhatAmI | None
    face: Face
    subscribers: dict[int, str] = field(default_factory=dict)
    links: set[int] | None = None
    initial: bool = False


class Model:
    """One node, and beside it plain lists: a put is held against every subscriber of everybody."""

    def __init__(self, own: WireWhatAmI) -> None:
        self.own = own
        self.routing = Routing(zid("1"), own)
        self.all: list[Neighbour] = [Neighbour(None, self.routing.local)]
        self.opened = 0
        self.interests: dict[int, str] = {}

    def open(self, role: WireWhatAmI) -> None:
        if NORTH[self.own, role] is None or len(self.all) > 6:
            return
        self.opened += 1
        face, _ = self.routing.open(zid(f"{0x10 + self.opened:x}"), role, 0.0)
        new = Neighbour(role, face, initial=(self.own, role) == (PEER, PEER))
        self.all.append(new)
        self.answer_all(new)

    def close(self, which: int) -> None:
        if len(self.all) > 1:
            self.routing.close(self.all.pop(1 + which % (len(self.all) - 1)).face, 0.0)

    def pick(self, which: int) -> Neighbour:
        return self.all[which % len(self.all)]

    def subscribe(self, which: int, number: int, key: str) -> None:
        who = self.pick(which)
        if self.keyed(who):
            number = -KEYS.index(key)
            self.routing.on_message(who.face, declare(S, 0, key), 0.0)
        else:
            self.routing.on_message(who.face, declare(S, number, key), 0.0)
        who.subscribers.setdefault(number, key)

    def unsubscribe(self, which: int, number: int) -> None:
        who = self.pick(which)
        if not self.keyed(who):
            self.routing.on_message(who.face, undeclare(S, number), 0.0)
            who.subscribers.pop(number, None)

    def keyed(self, who: Neighbour) -> bool:
        return (self.own, who.role) == (ROUTER, ROUTER)

    def say_final(self, which: int) -> None:
        who = self.pick(which)
        self.routing.on_message(who.face, final(0), 0.0)
        who.initial = False

    def publisher(self, number: int, key: str) -> None:
        """The local session declares a publisher; upstream says at once that that is all."""
        self.end_publisher(number)
        self.interests[number] = key
        self.routing.on_message(self.routing.local, interest(number, BOTH, K | S, key), 0.0)
        for who in self.all:
            self.answer_all(who)

    def end_publisher(self, number: int) -> None:
        self.routing.on_message(self.routing.local, interest(number, FINAL, K), 0.0)
        self.interests.pop(number, None)

    def answer_all(self, who: Neighbour) -> None:
        for number in [*who.face.sent_interests]:
            self.routing.on_message(who.face, final(number), 0.0)

    def tell_links(self, which: int, others: list[int]) -> None:
        who = self.pick(which)
        if (self.own, who.role) != (ROUTER, PEER):
            return
        named = [self.pick(other) for other in others]
        who.links = {id(other) for other in named}
        sn = who.face.links_sn + 1
        oam = links(who.face.zid, *[other.face.zid for other in named], sn=sn)
        self.routing.on_message(who.face, oam, 0.0)

    def passes(self, source: Neighbour, target: Neighbour) -> bool:
        if source is target:
            return False
        if source.role is None or target.role is None:
            return True
        sides = [NORTH[self.own, who.role] for who in (source, target) if who.role is not None]
        if sides[0] != sides[1]:
            return True
        if sides[0]:
            return False
        if source.role != target.role or source.role == CLIENT:
            return True
        told = [who.links for who in (source, target)]
        return told != [None, None] and not (
            id(target) in (source.links or ()) or id(source) in (target.links or ())
        )

    def wants(self, who: Neighbour, key: str) -> bool:
        if any(intersects(key, own) for own in who.subscribers.values()) or who.initial:
            return True
        upstream = self.own == CLIENT or (self.own, who.role) == (PEER, ROUTER)
        return who.role is not None and upstream and key not in self.interests.values()

    def check(self, key: str) -> None:
        for source in self.all:
            found = self.routing.destinations(source.face, key)
            expected = {
                who.face for who in self.all if self.passes(source, who) and self.wants(who, key)
            }
            assert len(found) == len(set(found))
            assert set(found) == expected
            sent = self.routing.on_message(source.face, push(key), 0.0)
            assert [face for face, _ in sent] == [*found]


which = st.integers(0, 6)
steps = st.one_of(
    st.tuples(st.just("open"), roles),
    st.tuples(st.just("open"), roles),
    st.tuples(st.just("close"), which),
    st.tuples(st.just("subscribe"), which, small, keys),
    st.tuples(st.just("subscribe"), which, small, keys),
    st.tuples(st.just("unsubscribe"), which, small),
    st.tuples(st.just("say_final"), which),
    st.tuples(st.just("tell_links"), which, st.lists(which, max_size=2)),
    st.tuples(st.just("check"), keys),
)


@given(roles, st.lists(steps, max_size=30))
def test_a_put_reaches_exactly_those_that_a_look_at_everything_finds(
    own: WireWhatAmI, life: list[tuple[object, ...]]
) -> None:
    model = Model(own)
    for name, *arguments in life:
        getattr(model, str(name))(*arguments)
    for key in KEYS:
        model.check(key)


@given(
    st.sampled_from([PEER, CLIENT]),
    st.lists(
        st.one_of(
            st.tuples(st.just("open"), st.sampled_from([ROUTER, PEER])),
            st.tuples(st.just("close"), which),
            st.tuples(st.just("publisher"), small, keys),
            st.tuples(st.just("end_publisher"), small),
            st.tuples(st.just("say_final"), which),
        ),
        max_size=20,
    ),
)
def test_write_side_filtering_as_the_model_has_it(
    own: WireWhatAmI, life: list[tuple[object, ...]]
) -> None:
    model = Model(own)
    for name, *arguments in life:
        getattr(model, str(name))(*arguments)
    for key in KEYS:
        model.check(key)


# ---- nothing stays

kinds = st.sampled_from([S, Q, T])
options = st.builds(
    lambda *some: K | some[0] | some[1] | some[2],
    st.sampled_from([S, Q, T, S | Q, T | S | Q]),
    st.sampled_from([K, A]),
    st.just(K),
)
said: st.SearchStrategy[NetworkMessage] = st.one_of(
    st.builds(declare, kinds, small, keys),
    st.builds(undeclare, kinds, small),
    st.builds(
        interest, small, st.sampled_from([CURRENT, FUTURE, BOTH, FINAL]), options, st.none() | keys
    ),
    st.builds(request, small, keys),
    st.builds(reply, small, keys),
    st.builds(ResponseFinal, small),
    st.builds(push, keys),
    st.builds(final, st.none() | st.integers(0, 3)),
)


@given(
    roles,
    st.lists(roles, max_size=5),
    st.lists(st.tuples(which, said), max_size=40),
    st.randoms(use_true_random=False),
)
def test_when_all_are_closed_nothing_is_left(
    own: WireWhatAmI,
    others: list[WireWhatAmI],
    life: list[tuple[int, NetworkMessage]],
    chance: object,
) -> None:
    routing = Routing(zid("1"), own)
    empty = routing.size()
    faces = [routing.local]
    for number, role in enumerate(others):
        if NORTH[own, role] is not None:
            faces.append(routing.open(zid(f"{0x10 + number:x}"), role, 0.0)[0])
    for who, message in life:
        for face, sent in routing.on_message(faces[who % len(faces)], message, 0.0):
            assert face.is_open
            NETWORK.write(ByteWriter(), sent)  # whatever is sent can be written
    chance.shuffle(faces)  # type: ignore[attr-defined]
    for face in faces:
        for target, _ in routing.close(face, 0.0):
            assert target.is_open
    assert routing.size() == {**empty, "faces": 0}
    assert routing.deadline is None


@given(roles, st.lists(roles, max_size=4), st.lists(st.tuples(which, said), max_size=30))
def test_undeclaring_everything_restores_the_tables(
    own: WireWhatAmI, others: list[WireWhatAmI], life: list[tuple[int, NetworkMessage]]
) -> None:
    routing = Routing(zid("1"), own)
    faces = [routing.local]
    for number, role in enumerate(others):
        if NORTH[own, role] is not None:
            faces.append(routing.open(zid(f"{0x10 + number:x}"), role, 0.0)[0])
    empty = routing.size()
    for who, message in life:
        routing.on_message(faces[who % len(faces)], message, 0.0)
    for face in faces:
        for number in range(4):
            routing.on_message(face, Interest(number), 0.0)
            for kind in (S, Q, T):
                routing.on_message(face, undeclare(kind, number), 0.0)
                for key in KEYS:  # routers name the key
                    gone = undeclare(kind, number)
                    gone.body.key = declare(kind, number, key).body.key  # type: ignore[union-attr]
                    routing.on_message(face, gone, 0.0)
    routing.on_time(100.0)
    assert routing.size() == empty
    assert routing.deadline is None


# ---- answers


@given(
    st.lists(roles, min_size=1, max_size=4),
    st.lists(st.tuples(which, said), max_size=25),
    which,
    st.sampled_from([BOTH, CURRENT]),
    options,
    st.none() | keys,
)
def test_every_request_has_one_final_and_every_interest_too(
    others: list[WireWhatAmI],
    life: list[tuple[int, NetworkMessage]],
    who: int,
    mode: object,
    wanted: object,
    key: str | None,
) -> None:
    routing = Routing(zid("1"), PEER)
    faces = [routing.local]
    for number, role in enumerate(others):
        faces.append(routing.open(zid(f"{0x10 + number:x}"), role, 0.0)[0])
    for source, message in life:
        routing.on_message(faces[source % len(faces)], message, 0.0)
    face = faces[who % len(faces)]
    out = routing.on_message(face, request(77, "a/b"), 0.0)
    out += routing.on_message(face, interest(78, mode, wanted, key), 0.0)  # type: ignore[arg-type]
    out += routing.on_time(100.0)
    mine = [message for target, message in out if target is face]
    assert [m.request_id for m in mine if isinstance(m, ResponseFinal)].count(77) == 1
    finals = [m.interest_id for m in mine if isinstance(m, Declare) and m.body == DeclareFinal()]
    assert finals.count(78) == int(face.policy.answers)


# ---- nonsense


@settings(max_examples=200)
@given(
    roles,
    st.lists(roles, max_size=3),
    st.lists(st.tuples(which, st.one_of(said, network_messages)), max_size=25),
)
def test_no_message_in_no_state_raises(
    own: WireWhatAmI, others: list[WireWhatAmI], life: list[tuple[int, NetworkMessage]]
) -> None:
    routing = Routing(zid("1"), own)
    faces = [routing.local]
    for number, role in enumerate(others):
        if NORTH[own, role] is not None:
            faces.append(routing.open(zid(f"{0x10 + number:x}"), role, 0.0)[0])
    for time, (who, message) in enumerate(life):
        routing.on_message(faces[who % len(faces)], message, float(time))
        routing.on_time(float(time))
    for face in faces:
        routing.close(face, 50.0)
    assert routing.deadline is None


# ---- whole networks


@given(
    st.lists(st.tuples(st.sampled_from([PEER, CLIENT]), keys, keys), min_size=2, max_size=5),
    st.sampled_from([ROUTER, PEER]),
)
def test_in_a_star_everybody_who_subscribed_gets_a_put_once(
    outer: list[tuple[WireWhatAmI, str, str]], middle: WireWhatAmI
) -> None:
    net = Net()
    centre = Node("1", middle)
    nodes = []
    for number, (role, subscribed, _) in enumerate(outer):
        node = Node(f"{0x10 + number:x}", role)
        side, _ = net.link(node, centre)
        if (middle, role) == (ROUTER, PEER):
            told = links(node.routing.local.zid, centre.routing.local.zid)
            net.say(node, [(side, told)])
        net.local(node, declare(S, 1, subscribed))
        nodes.append(node)
    for sender, (role, _, key) in zip(nodes, outer, strict=True):
        net.local(sender, push(key))
        for receiver, (other, subscribed, _) in zip(nodes, outer, strict=True):
            apart = (middle, role, other) == (PEER, PEER, PEER)  # they have links of their own
            expected = receiver is not sender and not apart and intersects(key, subscribed)
            assert len(receiver.data()) == expected
