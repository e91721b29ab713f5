"""User and password, shown by us and by eclipse-zenoh, right and wrong."""

from pathlib import Path

import pytest

from tests.golden.scenarios import DICTIONARY, PASSWORD, USER
from tests.support.interop_conversation import (
    COMMON_PAIRS,
    Ours,
    Pair,
    both_send,
    conversation,
    dialling,
    listening,
)
from tests.support.reference_peer import ReferenceFailed, ReferenceProcess, Settings
from tests.support.waiting import until
from zenlake.errors import SessionRefused
from zenlake.transport.usrpwd import UserPassword
from zenlake.wire.enums import CloseReason

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

KNOWN = {"user": b"password"}
RIGHT = UserPassword("user", "password")
WE_DIAL = [pair for pair in COMMON_PAIRS if pair.we_dial]
THEY_DIAL = [pair for pair in COMMON_PAIRS if not pair.we_dial]


@pytest.fixture
def their_dictionary(tmp_path: Path) -> Settings:
    users = tmp_path / "users"
    users.write_text("user:password\n", encoding="ascii")
    return {USER: "them", PASSWORD: "theirs", DICTIONARY: str(users)}


@pytest.mark.parametrize("pair", WE_DIAL, ids=str)
def test_they_accept_our_password(
    reference: ReferenceProcess, pair: Pair, their_dictionary: Settings
) -> None:
    ours = Ours(pair.ours, authenticators=[RIGHT])
    with conversation(reference, pair, ours, their_dictionary) as (session, them):
        both_send(ours, session, them, [10] * 10)


@pytest.mark.parametrize(
    "shown",
    [UserPassword("user", "passw0rd"), UserPassword("nobody", "password"), None],
    ids=["wrong password", "unknown user", "nothing"],
)
@pytest.mark.parametrize("pair", WE_DIAL, ids=str)
def test_they_refuse_us(
    reference: ReferenceProcess,
    pair: Pair,
    shown: UserPassword | None,
    their_dictionary: Settings,
) -> None:
    them, at = listening(reference, pair.theirs, their_dictionary)
    try:
        with Ours(pair.ours, authenticators=[shown] if shown else []) as ours:
            with pytest.raises(SessionRefused) as refusal:
                ours.node.connect(at)
            assert (refusal.value.reason, refusal.value.by_peer) == (CloseReason.GENERIC, True)
            assert ours.opened == []
            assert them.transports() == {}
    finally:
        them.close()


@pytest.mark.parametrize("pair", THEY_DIAL, ids=str)
def test_we_accept_their_password(reference: ReferenceProcess, pair: Pair) -> None:
    ours = Ours(pair.ours, authenticators=[UserPassword(dictionary=KNOWN)])
    shown: Settings = {USER: "user", PASSWORD: "password"}
    with conversation(reference, pair, ours, shown) as (session, them):
        assert session.agreement.identities == {"user-password": "user"}
        both_send(ours, session, them, [10] * 10)


@pytest.mark.parametrize(
    "shown",
    [{USER: "user", PASSWORD: "passw0rd"}, {USER: "nobody", PASSWORD: "password"}, {}],
    ids=["wrong password", "unknown user", "nothing"],
)
@pytest.mark.parametrize("pair", THEY_DIAL, ids=str)
def test_we_refuse_them(reference: ReferenceProcess, pair: Pair, shown: Settings) -> None:
    with Ours(pair.ours, authenticators=[UserPassword(dictionary=KNOWN)]) as ours:
        (at, *_) = ours.node.listen("tcp/127.0.0.1:0")
        with pytest.raises(ReferenceFailed):
            dialling(reference, pair.theirs, str(at), {**shown, "connect/timeout_ms": 0})
        until(lambda: ours.node.refused["GENERIC"], lambda times: times >= 1)
        assert ours.opened == []


@pytest.mark.parametrize("pair", WE_DIAL, ids=str)
def test_we_leave_if_nobody_asks_for_our_password(reference: ReferenceProcess, pair: Pair) -> None:
    them, at = listening(reference, pair.theirs, {})
    try:
        with Ours(pair.ours, authenticators=[RIGHT]) as ours:
            with pytest.raises(SessionRefused, match="does not answer user-password") as refusal:
                ours.node.connect(at)
            assert not refusal.value.by_peer
            assert them.transports() == {}
    finally:
        them.close()


@pytest.mark.parametrize("pair", THEY_DIAL, ids=str)
def test_they_leave_if_we_do_not_ask_for_their_password(
    reference: ReferenceProcess, pair: Pair
) -> None:
    shown: Settings = {USER: "user", PASSWORD: "password", "connect/timeout_ms": 0}
    with Ours(pair.ours) as ours:
        (at, *_) = ours.node.listen("tcp/127.0.0.1:0")
        with pytest.raises(ReferenceFailed):
            dialling(reference, pair.theirs, str(at), shown)
        until(lambda: ours.node.refused["GENERIC"], lambda times: times >= 1)
        assert ours.opened == []
