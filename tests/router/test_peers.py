"""Peers and routers around a router of ours: peers that know only it reach each other, and peers
that are linked otherwise as well hear everything once.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import Any

import pytest
import zenoh

import zenlake
from tests.golden.proxy import free_port
from tests.support.interop_pair import OPENS, OURS, THEIRS, Side, open_session, replies
from tests.support.routed_sessions import PATIENCE, Heard, Net, routed, unique
from tests.support.waiting import until

pytestmark = pytest.mark.interop

APIS = {"their": THEIRS, "our": OURS}
TURNS, WARM = 10, b"warm"
PAIRS = [pair for pair in product(APIS, APIS) if pair != ("our", "our")]


@pytest.fixture
def net() -> Iterator[Net]:
    with routed() as net:
        yield net


def listening(net: Net, api: Any, mode: str = "peer") -> tuple[Side, str]:
    """Open a peer that listens, and return it and its endpoint."""
    for attempt in range(OPENS):  # another process may take the port that was free just now
        at = f"tcp/127.0.0.1:{free_port()}"
        try:
            return net.open(api, mode, listen=at), at
        except (zenoh.ZError, zenlake.ZError):
            if attempt == OPENS - 1:
                raise
    raise AssertionError


def linked(net: Net, *sides: Side) -> None:
    """Returns as soon as the router was told that they have links to each other."""
    routing = net.router._core.exchange.routing
    wanted = {str(side.session.zid()) for side in sides}

    def told() -> set[str]:
        return {
            str(face.zid)
            for face in routing.faces
            if str(face.zid) in wanted
            and wanted - {str(face.zid)} <= {str(zid) for zid in face.links or ()}
        }

    until(told, lambda found: found == wanted, PATIENCE)


def _of(heard: Heard, key: str) -> list[bytes]:
    return [sample.payload for sample in list(heard.samples) if sample.key == key]


def everybody_hears_everybody_once(sides: list[Side]) -> None:
    key = unique("all")
    numbers = range(len(sides))
    values = [b"%d" % turn for turn in range(TURNS)]

    with ExitStack() as stack:
        heard = [stack.enter_context(Heard(side, f"{key}/*")) for side in sides]
        publishers = [
            stack.enter_context(
                side.session.declare_publisher(
                    f"{key}/{number}", congestion_control=side.api.CongestionControl.BLOCK
                )
            )
            for number, side in enumerate(sides)
        ]

        def found() -> list[list[bytes]]:
            return [
                _of(subscriber, f"{key}/{number}") for subscriber in heard for number in numbers
            ]

        def said() -> list[int]:
            for publisher in publishers:
                publisher.put(WARM)
            return [len(payloads) for payloads in found()]

        until(said, all, PATIENCE)  # from now on each knows the others
        for value in values:
            for publisher in publishers:
                publisher.put(value)
        until(found, lambda got: all(values[-1] in payloads for payloads in got), PATIENCE)
        heard_values = [[value for value in payloads if value != WARM] for payloads in found()]
        assert heard_values == [values] * (len(sides) ** 2)


def everybody_answers_everybody_once(sides: list[Side]) -> None:
    key = unique("ask")
    every = [f"{key}/{number}" for number in range(len(sides))]

    def ask(side: Side) -> list[str]:
        found = side.session.get(
            f"{key}/*",
            target=side.api.QueryTarget.ALL,
            consolidation=side.api.ConsolidationMode.NONE,
            timeout=PATIENCE,
        )
        return sorted(reply.key for reply in replies(found))

    with ExitStack() as stack:
        for name, side in zip(every, sides, strict=True):
            stack.enter_context(side.session.declare_queryable(name, partial(_answer, name)))
        for side in sides:
            until(partial(ask, side), lambda found: found == every, PATIENCE)
            assert ask(side) == every


def _answer(name: str, query: Any) -> None:
    with query:
        query.reply(name, b"")


def check(sides: list[Side]) -> None:
    everybody_hears_everybody_once(sides)
    everybody_answers_everybody_once(sides)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_peers_that_know_only_the_router(net: Net, pair: tuple[str, str]) -> None:
    one, two = (net.open(APIS[name], "peer") for name in pair)
    assert not one.session.info.peers_zid()
    check([one, two, net.open(THEIRS), net.open(OURS)])


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_peers_that_are_linked_as_well(net: Net, pair: tuple[str, str]) -> None:
    first, second = (APIS[name] for name in pair)
    one, at = listening(net, first)
    two = net.open(second, "peer", connect=(at,))
    linked(net, one, two)
    check([one, two, net.open(THEIRS), net.open(OURS)])


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_peers_that_find_each_other_by_the_router(net: Net, pair: tuple[str, str]) -> None:
    """It tells of the peers that listen; they connect to each other."""
    first, second = (APIS[name] for name in pair)
    one, _ = listening(net, first)
    two, _ = listening(net, second)
    linked(net, one, two)
    check([one, two, net.open(THEIRS)])


def test_a_peer_that_leaves(net: Net) -> None:
    """The peers that it linked to are as before, and so are the tables."""
    one, at = listening(net, THEIRS)
    three = net.open(THEIRS)
    before = net.router.tables()
    two = net.open(OURS, "peer", connect=(at,))
    linked(net, one, two)
    check([one, two, three])
    two.session.close()
    net.settled(before)
    check([one, three])


def test_clients_of_ours_around_a_router_of_theirs() -> None:
    with ExitStack() as stack:
        at = f"tcp/127.0.0.1:{free_port()}"
        stack.callback(open_session(THEIRS, "router", listen=at).close)
        sides = []
        for api in (OURS, OURS, THEIRS):
            session = open_session(api, "client", connect=(at,))
            stack.callback(session.close)
            sides.append(Side(api, session))
        check(sides)


def test_two_routers_of_ours(net: Net) -> None:
    """Clients of one reach those of the other."""
    before = net.router.tables()
    with routed(connect=net.router.locators) as other:
        net.meets(other.router.session)
        sides = [where.open(api) for where in (net, other) for api in (THEIRS, OURS)]
        check(sides)
        for side in sides:
            side.session.close()
    net.settled(before)
