"""Leases: a session that is kept up lives on in silence; one whose other side is stopped ends."""

import threading
import time

import pytest

from tests.support.interop_conversation import COMMON_PAIRS, Ours, Pair, both_send, conversation
from tests.support.reference_peer import ReferenceProcess, Settings
from tests.support.waiting import until
from zenlake.wire.enums import CloseReason

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

SHORT: Settings = {"transport/link/tx/lease": 1000}
KEPT_UP: Settings = {"transport/link/tx/lease": 3000}  # A busy machine pauses no process that long.
SILENCE = 7.0
NOT_SO_LATE = 5.0  # Seconds: a lease of 1 s has ended long before, one of 10 s has not.


@pytest.mark.parametrize("pair", COMMON_PAIRS[:2], ids=str)
def test_a_silent_session_stays_open(reference: ReferenceProcess, pair: Pair) -> None:
    with conversation(reference, pair, ours := Ours(pair.ours, lease_ms=3000), KEPT_UP) as (
        session,
        them,
    ):
        assert session.agreement.lease == session.agreement.peer_lease == 3.0
        time.sleep(SILENCE)  # what is tested is that nothing happens meanwhile
        assert session.over is None
        assert ours.closed == []
        assert them.closed(str(ours.zid)) == 0
        both_send(ours, session, them, [10])


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_a_stopped_reference_expires(pair: Pair) -> None:
    """By its lease, not by ours."""
    with (
        ReferenceProcess() as reference,
        conversation(reference, pair, ours := Ours(pair.ours), SHORT) as (session, them),
    ):
        assert (session.agreement.lease, session.agreement.peer_lease) == (10.0, 1.0)
        both_send(ours, session, them, [10])
        stopped = time.monotonic()
        reference.stop()
        try:
            end = ours.end_of(session, NOT_SO_LATE)
        finally:
            reference.resume()
        assert time.monotonic() - stopped >= 0.7  # the last word came a quarter before
        assert (end.reason, end.by_peer) == (CloseReason.EXPIRED, False)


def test_they_expire_us_by_our_lease(reference: ReferenceProcess) -> None:
    """We fall silent: our I/O thread is held up until they have given us up."""
    pair = COMMON_PAIRS[0]
    with conversation(reference, pair, ours := Ours(pair.ours, lease_ms=1000)) as (session, them):
        gone = threading.Event()

        def hold_up() -> None:
            gone.wait(NOT_SO_LATE)

        ours.node.reactor.call_soon(hold_up)
        try:
            until(lambda: them.closed(str(ours.zid)), lambda times: times == 1, NOT_SO_LATE)
        finally:
            gone.set()
        assert ours.end_of(session).by_peer
