"""The limits on handshakes and sessions hold, free themselves, and say which one was reached."""

import random

import pytest

from zenlake.transport.admission import Admission, AdmissionLimits, Refusal, Ticket
from zenlake.wire.enums import CloseReason
from zenlake.wire.zenohid import WireZenohId

OWN = WireZenohId(b"\xa1")


def ids(count: int) -> list[WireZenohId]:
    return [WireZenohId((0x10000 + i).to_bytes(4, "little")) for i in range(count)]


def let_in(door: Admission, address: str, limited: bool = True) -> Ticket:
    ticket = door.enter(address, limited)
    assert isinstance(ticket, Ticket)
    return ticket


def test_default_limits_of_admission() -> None:
    assert Admission(OWN).limits == AdmissionLimits(100, 20, 10.0, 1000)


def test_handshakes_under_way_are_limited() -> None:
    door = Admission(OWN)
    tickets = [let_in(door, f"192.0.2.{i}") for i in range(100)]
    refusal = door.enter("198.51.100.1")
    assert isinstance(refusal, str)
    assert "198.51.100.1" in refusal
    assert "`pending`" in refusal
    assert door.refused == {"pending": 1}
    door.leave(tickets[50])
    let_in(door, "198.51.100.1")


def test_one_address_cannot_take_all() -> None:
    door = Admission(OWN)
    tickets = [let_in(door, "192.0.2.1") for _ in range(20)]
    refusal = door.enter("192.0.2.1")
    assert isinstance(refusal, str)
    assert "`pending_per_address`" in refusal
    assert door.refused == {"pending_per_address": 1}
    let_in(door, "192.0.2.2")
    door.leave(tickets[0])
    let_in(door, "192.0.2.1")


def test_a_name_that_all_share_has_only_the_limit_of_all() -> None:
    door = Admission(OWN)
    for _ in range(100):
        let_in(door, "unixsock-stream", limited=False)
    assert isinstance(door.enter("unixsock-stream", limited=False), str)
    assert door.refused == {"pending": 1}


def test_who_is_not_limited_neither_counts_nor_is_counted() -> None:
    door = Admission(OWN, AdmissionLimits(pending_per_address=1))
    free = let_in(door, "192.0.2.1", limited=False)
    let_in(door, "192.0.2.1")
    let_in(door, "192.0.2.1", limited=False)
    door.leave(free)
    assert isinstance(door.enter("192.0.2.1"), str)


def test_leaving_twice_frees_one_place() -> None:
    door = Admission(OWN, AdmissionLimits(pending=2, pending_per_address=2))
    first = let_in(door, "192.0.2.1")
    let_in(door, "192.0.2.1")
    door.leave(first)
    door.leave(first)
    let_in(door, "192.0.2.1")
    assert isinstance(door.enter("192.0.2.1"), str)


def test_tickets_of_the_same_address_are_two() -> None:
    door = Admission(OWN, AdmissionLimits(pending=2))
    one, _ = let_in(door, "192.0.2.1"), let_in(door, "192.0.2.1")
    door.leave(one)
    let_in(door, "192.0.2.1")
    assert isinstance(door.enter("192.0.2.1"), str)


def test_any_order_of_coming_and_going_keeps_the_count() -> None:
    chance = random.Random(100)
    limits = AdmissionLimits(pending=10, pending_per_address=4)
    door, inside = Admission(OWN, limits), list[Ticket]()
    for _ in range(5000):
        address = f"192.0.2.{chance.randrange(5)}"
        own = sum(ticket.address == address for ticket in inside)
        ticket = door.enter(address)
        assert isinstance(ticket, Ticket) == (len(inside) < 10 and own < 4)
        if isinstance(ticket, Ticket):
            inside.append(ticket)
        if inside and chance.random() < 0.6:
            door.leave(inside.pop(chance.randrange(len(inside))))


def test_sessions_are_limited() -> None:
    door = Admission(OWN)
    first, *others, last = ids(1001)
    assert all(door.open_session(zid) is None for zid in (first, *others))
    refusal = door.open_session(last)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is CloseReason.INVALID
    assert "`sessions`" in refusal.why
    assert str(last) in refusal.why
    door.close_session(first)
    assert door.open_session(last) is None


@pytest.mark.parametrize(
    ("zid", "reason", "name"),
    [
        (ids(1)[0], CloseReason.MAX_LINKS, "max_links"),
        (OWN, CloseReason.CONNECTION_TO_SELF, "self"),
    ],
)
def test_one_session_for_a_node_and_none_with_oneself(
    zid: WireZenohId, reason: CloseReason, name: str
) -> None:
    door = Admission(OWN, AdmissionLimits(sessions=1))
    assert door.open_session(ids(1)[0]) is None
    refusal = door.open_session(zid)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is reason
    assert str(zid) in refusal.why
    assert door.refused == {name: 1}


def test_a_node_may_come_back() -> None:
    door, (zid,) = Admission(OWN), ids(1)
    assert door.open_session(zid) is None
    door.close_session(zid)
    door.close_session(zid)
    assert door.open_session(zid) is None
