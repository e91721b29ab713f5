"""Groups between network namespaces: members on other machines, killed, silent and back."""

import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest

from tests.support.discovery import THEY_WAIT_FOR_ROOM
from tests.support.namespaces import INTERFACE, BridgedNetwork
from tests.support.reference_peer import ReferencePeer, ReferenceProcess, fingerprint, payload
from tests.support.waiting import until

pytestmark = pytest.mark.interop

GROUP, OTHER_GROUP, SIX = "224.0.0.224:7446", "224.0.0.225:7447", "[ff02::224]:7446"
ZENOH, ZENLAKE = "zenoh", "zenlake"
QUICK = {
    "transport/multicast/join_interval": 100,
    "transport/link/tx/lease": 1000,
    **THEY_WAIT_FOR_ROOM,
}
SIZES = [100, 20_000]
NUMBERS = 100  # Different messages of a size.
SAY_SECONDS = 0.01  # Time between two of them: the room of a receiver fills otherwise.
mixed = pytest.mark.parametrize("apis", [(ZENLAKE, ZENOH), (ZENOH, ZENLAKE), (ZENLAKE, ZENLAKE)])


@pytest.fixture
def network() -> Iterator[BridgedNetwork]:
    with BridgedNetwork() as made:
        yield made


def member(process: ReferenceProcess, *groups: str, **settings: Any) -> ReferencePeer:
    at = [f"udp/{group}#iface={INTERFACE}" for group in groups or (GROUP,)]
    return process.open("peer", {"listen/endpoints": at, **QUICK, **settings})


def know_each_other(*peers: ReferencePeer) -> None:
    for peer in peers:
        others = {other.zid for other in peers if other is not peer}
        until(lambda: set(peer.transports()), lambda ids: ids >= others)  # noqa: B023


def are_heard(speaker: ReferencePeer, *hearers: ReferencePeer, size: int = 100) -> None:
    """Put until every hearer has had a message, whole."""
    key = f"from/{speaker.zid}/{size}"
    said = [fingerprint(payload(number, size)) for number in range(NUMBERS)]
    left = set(hearers)
    numbers = cycle(range(NUMBERS))

    def say() -> None:
        speaker.put(key, [size], first=next(numbers))
        time.sleep(SAY_SECONDS)

    def heard() -> bool:
        for hearer in list(left):
            found = [s["payload"] for s in hearer.samples() if s["key"] == key]
            assert all(sample in said for sample in found)
            if found:
                left.discard(hearer)
        return not left

    until(heard, bool, pause=say)


@mixed
@pytest.mark.parametrize("group", [GROUP, SIX], ids=["IPv4", "IPv6"])
def test_members_of_three_machines(
    network: BridgedNetwork, apis: tuple[str, str], group: str
) -> None:
    peers = [member(network.process(api), group) for api in (*apis, ZENOH)]
    for peer in peers:
        peer.subscribe("from/**")
    know_each_other(*peers)
    for size in SIZES:
        for speaker in peers:
            are_heard(speaker, *(peer for peer in peers if peer is not speaker), size=size)


@mixed
def test_two_groups(network: BridgedNetwork, apis: tuple[str, str]) -> None:
    left = member(network.process(apis[0]), GROUP)
    middle = member(network.process(apis[1]), GROUP, OTHER_GROUP)
    right = member(network.process(apis[0]), OTHER_GROUP)
    for peer in (left, middle, right):
        peer.subscribe("from/**")
    know_each_other(left, middle)
    know_each_other(middle, right)
    are_heard(left, middle)
    are_heard(right, middle)
    are_heard(middle, left, right)
    assert set(left.transports()) == set(right.transports()) == {middle.zid}
    for outer, other in ((left, right), (right, left)):
        keys = {sample["key"] for sample in outer.samples()}
        assert not any(other.zid in key for key in keys)


@mixed
@pytest.mark.parametrize("same", [True, False], ids=["same id", "another id"])
def test_a_member_that_is_killed_and_comes_back(
    network: BridgedNetwork, apis: tuple[str, str], same: bool
) -> None:
    own = {"id": "abcd0123"} if same else {}
    stays = member(network.process(apis[0]))
    stays.subscribe("from/**")
    for _ in range(2):
        process = network.process(apis[1])
        dies = member(process, **own)
        dies.subscribe("from/**")
        know_each_other(stays, dies)
        for size in SIZES:
            are_heard(dies, stays, size=size)
            are_heard(stays, dies, size=size)
        closed = stays.closed(dies.zid)
        process.kill()
        until(lambda: stays.closed(dies.zid), lambda count: count > closed)  # noqa: B023
        until(lambda: set(stays.transports()), lambda ids: dies.zid not in ids)  # noqa: B023


@mixed
def test_a_member_that_is_silent_and_speaks_again(
    network: BridgedNetwork, apis: tuple[str, str]
) -> None:
    stays, process = member(network.process(apis[0])), network.process(apis[1])
    sleeps = member(process)
    for peer in (stays, sleeps):
        peer.subscribe("from/**")
    know_each_other(stays, sleeps)
    process.stop()
    until(lambda: stays.closed(sleeps.zid), bool)
    process.resume()
    know_each_other(stays, sleeps)
    are_heard(sleeps, stays)
    are_heard(stays, sleeps)


@pytest.mark.parametrize("api", [ZENOH, ZENLAKE])
def test_a_member_whose_address_is_replaced(network: BridgedNetwork, api: str) -> None:
    stays, process = member(network.process(api)), network.process(ZENLAKE)
    moves = member(process)
    for peer in (stays, moves):
        peer.subscribe("from/**")
    know_each_other(stays, moves)
    network.move(process, old=2, new=99)
    are_heard(moves, stays)
    are_heard(stays, moves)
