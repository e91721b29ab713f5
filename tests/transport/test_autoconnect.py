"""Which node connects to which: the tables of defaults, the masks and the strategies."""

from itertools import product

import pytest

from zenlake.transport.autoconnect import (
    ANY_ROLE,
    DEFAULTS,
    NO_ROLE,
    Autoconnect,
    FoundBy,
    Strategy,
    strategy_for_all,
)
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.zenohid import WireZenohId

ROUTER, PEER, CLIENT = WireWhatAmI.ROUTER, WireWhatAmI.PEER, WireWhatAmI.CLIENT
ROLES = (ROUTER, PEER, CLIENT)
# As a number 0x0200 is greater than 0x01; as bytes, little-endian, b"\x00\x02" is the smaller.
LOW, HIGH = WireZenohId(b"\x00\x02"), WireZenohId(b"\x01")


@pytest.mark.parametrize("found_by", ["multicast", "gossip"])
@pytest.mark.parametrize(
    ("role", "expected"), [(ROUTER, NO_ROLE), (PEER, ANY_ROLE), (CLIENT, ANY_ROLE)]
)
def test_default_roles_to_connect_to(
    role: WireWhatAmI, expected: WireWhatAmI, found_by: FoundBy
) -> None:
    assert DEFAULTS[found_by].roles[role] == expected
    for peer_role in ROLES:
        wanted = DEFAULTS[found_by].wants(LOW, role, HIGH, peer_role)
        assert wanted == bool(expected & peer_role)


@pytest.mark.parametrize("mask", range(8))
@pytest.mark.parametrize("role", ROLES)
def test_the_mask_of_the_own_role_decides(mask: int, role: WireWhatAmI) -> None:
    rule = Autoconnect({PEER: WireWhatAmI(mask)})
    assert rule.wants(LOW, PEER, HIGH, role) == bool(mask & role)
    assert not rule.wants(LOW, ROUTER, HIGH, role)


@pytest.mark.parametrize("strategy", Strategy)
def test_a_node_does_not_connect_to_itself(strategy: Strategy) -> None:
    rule = Autoconnect({PEER: ANY_ROLE}, strategy_for_all(strategy))
    assert not rule.wants(LOW, PEER, WireZenohId(b"\x00\x02"), PEER)


@pytest.mark.parametrize(
    ("strategy", "low_dials", "high_dials"),
    [(Strategy.ALWAYS, True, True), (Strategy.GREATER_ZID, False, True)],
)
def test_the_strategy_decides_which_of_two_connects(
    strategy: Strategy, low_dials: bool, high_dials: bool
) -> None:
    rule = Autoconnect({PEER: PEER}, strategy_for_all(strategy))
    assert rule.wants(LOW, PEER, HIGH, PEER) is low_dials
    assert rule.wants(HIGH, PEER, LOW, PEER) is high_dials


def test_a_strategy_may_hold_for_one_role_only() -> None:
    rule = Autoconnect({PEER: ANY_ROLE}, {PEER: Strategy.GREATER_ZID})
    assert not rule.wants(LOW, PEER, HIGH, PEER)
    assert rule.wants(LOW, PEER, HIGH, ROUTER)
    assert rule.wants(HIGH, PEER, LOW, PEER)


def test_exactly_one_of_two_dials_by_greater_zid() -> None:
    rule = Autoconnect({PEER: PEER}, strategy_for_all(Strategy.GREATER_ZID))
    ids = [WireZenohId(raw) for raw in (b"\x01", b"\x01\x01", b"\x02", b"\x00\x01", b"\xff" * 16)]
    for own, other in product(ids, ids):
        if own != other:
            assert rule.wants(own, PEER, other, PEER) != rule.wants(other, PEER, own, PEER)


def test_the_names_are_those_of_the_configuration() -> None:
    assert Strategy("always") is Strategy.ALWAYS
    assert Strategy("greater-zid") is Strategy.GREATER_ZID
