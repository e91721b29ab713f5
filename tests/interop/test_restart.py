"""One side goes, with or without CLOSE, and comes back: the connecting side connects again."""

from functools import partial
from operator import eq

import pytest

from tests.golden.proxy import free_port
from tests.support.interop_conversation import (
    CLIENT,
    PEER,
    ROUTER,
    SAMPLES_FOR_THEM,
    Ours,
    both_send,
    dialling,
)
from tests.support.reference_peer import ReferencePeer, ReferenceProcess, Settings
from tests.support.waiting import until
from zenlake.transport.retry import RetryPolicy
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.zenohid import WireZenohId

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

SOON = RetryPolicy(first=0.1, longest=0.2)
THEY_RETRY: Settings = {"connect/retry": {"period_init_ms": 100, "period_max_ms": 200}}
MESSAGES = [64] * 20


def listener(reference: ReferenceProcess, mode: str, at: str) -> ReferencePeer:
    them = reference.open(mode, {"listen/endpoints": [at], "id": "a1a2a3a4"})
    them.subscribe(SAMPLES_FOR_THEM)
    return them


@pytest.mark.parametrize(
    ("whatami", "mode"), [(CLIENT, "router"), (PEER, "peer")], ids=["router", "peer"]
)
def test_we_come_back_to_a_reference_that_was_killed(whatami: WireWhatAmI, mode: str) -> None:
    at = f"tcp/127.0.0.1:{free_port()}"
    with Ours(whatami, retry=SOON) as ours:
        connector = ours.node.keep_connected(at)
        for number in (1, 2, 3):
            with ReferenceProcess() as reference:
                them = listener(reference, mode, at)
                session = ours.session(number)
                assert connector.session is session
                both_send(ours, session, them, MESSAGES)
                reference.kill()
                assert ours.end_of(session).by_peer
        assert len(ours.opened) == len(ours.closed) == 3


@pytest.mark.parametrize(
    ("whatami", "mode"), [(ROUTER, "client"), (PEER, "peer")], ids=["client", "peer"]
)
def test_they_come_back_to_us(reference: ReferenceProcess, whatami: WireWhatAmI, mode: str) -> None:
    """To a node with the same id at the same place, and all their subscribers are told again."""
    zid = WireZenohId.parse("b1b2b3b4")
    at = f"tcp/127.0.0.1:{free_port()}"
    first = Ours(whatami, zid=zid)
    with first:
        first.node.listen(at)
        them = dialling(reference, mode, at, THEY_RETRY)
        them.subscribe(SAMPLES_FOR_THEM)
        talk(first, them)
    try:
        for lost in (1, 2):
            until(partial(them.closed, str(zid)), partial(eq, lost))
            with Ours(whatami, zid=zid) as ours:
                ours.node.listen(at)
                talk(ours, them)
    finally:
        them.close()


def talk(ours: Ours, them: ReferencePeer, first: int = 0) -> None:
    """Send both ways in a session from the one with index `first` on, in which they have declared
    their subscriber.

    A node of Rust connects again before it has removed its old transport to this id, and may give
    the new link up for that (`delete` in unicast/universal/transport.rs): it then connects again.
    """
    session, *_ = until(
        lambda: [s for s in ours.opened[first:] if SAMPLES_FOR_THEM in ours.subscribers[s]]
    )
    both_send(ours, session, them, MESSAGES)


def test_they_come_back_after_we_closed_the_session(reference: ReferenceProcess) -> None:
    with Ours(ROUTER) as ours:
        (at, *_) = ours.node.listen("tcp/127.0.0.1:0")
        them = dialling(reference, "client", str(at), THEY_RETRY)
        try:
            them.subscribe(SAMPLES_FOR_THEM)
            ours.session().close()
            talk(ours, them, first=1)
        finally:
            them.close()
