"""The limits on handshakes and sessions hold, free themselves, and say which one was reached."""

import pytest

from zenlake.transport.admission import Admission, AdmissionLimits, Refusal
from zenlake.wire.enums import CloseReason
from zenlake.wire.zenohid import WireZenohId

OWN = WireZenohId(b"\xa1")


def ids(count: int) -> list[WireZenohId]:
    return [WireZenohId((0x10000 + i).to_bytes(4, "little")) for i in range(count)]


def test_default_limits_of_admission() -> None:
    assert Admission(OWN).limits == AdmissionLimits(10_000, 10.0, 10_000)


def test_sessions_are_limited() -> None:
    door = Admission(OWN, AdmissionLimits(sessions=1000))
    first, *others, last = ids(1001)
    assert all(door.open_session(zid) is None for zid in (first, *others))
    refusal = door.open_session(last)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is CloseReason.MAX_SESSIONS
    assert "transport/unicast/max_sessions" in refusal.why
    assert str(last) in refusal.why
    door.close_session(first)
    assert door.open_session(last) is None


@pytest.mark.parametrize(
    ("zid", "reason"),
    [(ids(1)[0], CloseReason.MAX_LINKS), (OWN, CloseReason.CONNECTION_TO_SELF)],
)
def test_one_session_for_a_node_and_none_with_oneself(
    zid: WireZenohId, reason: CloseReason
) -> None:
    door = Admission(OWN, AdmissionLimits(sessions=1))
    assert door.open_session(ids(1)[0]) is None
    refusal = door.open_session(zid)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is reason
    assert str(zid) in refusal.why


def test_a_node_may_come_back() -> None:
    door, (zid,) = Admission(OWN), ids(1)
    assert door.open_session(zid) is None
    door.close_session(zid)
    door.close_session(zid)
    assert door.open_session(zid) is None
