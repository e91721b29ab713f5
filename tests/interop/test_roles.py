"""Every role of ours with every mode of eclipse-zenoh, from either side, with the defaults.

Left out: a client that others connect to. Ours serves only a test of the refusal;
eclipse-zenoh's listens only if it has another node to connect to as well.
"""

import pytest

import zenlake
from tests.golden.proxy import free_port
from tests.support import session_pairs
from tests.support.interop_conversation import (
    CLIENT,
    MODES,
    PEER,
    ROUTER,
    THEY_SAID_CLOSE,
    Ours,
    Pair,
    both_send,
    conversation,
    dialling,
)
from tests.support.reference_peer import ReferenceFailed, ReferencePeer, ReferenceProcess
from tests.support.waiting import until
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.offer import Offer
from zenlake.wire.enums import CloseReason

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

MESSAGES = [64] * 100
PAIRS = [
    *(Pair(ours, theirs, True) for ours in (CLIENT, PEER, ROUTER) for theirs in ("peer", "router")),
    *(Pair(ours, theirs, False) for ours in (PEER, ROUTER) for theirs in MODES),
]


def check_agreement(pair: Pair, ours: Ours, session: TransportSession, them: ReferencePeer) -> None:
    """Both sides say the same of each other."""
    defaults = Offer(zid=ours.zid, whatami=ours.whatami)
    agreed = session.agreement
    assert str(agreed.zid) == str(session.zid) == them.zid
    assert agreed.whatami is MODES[pair.theirs]
    assert agreed.resolution == defaults.resolution
    assert (agreed.qos, agreed.low_latency, agreed.compression) == (True, False, False)
    assert agreed.patch == 1
    assert agreed.lease == agreed.peer_lease == 10.0
    assert them.transports()[str(ours.zid)] == {"whatami": pair.ours.name, "qos": True}
    (link,) = [link for link in them.links() if link["zid"] == str(ours.zid)]
    assert agreed.batch_size == link["mtu"]
    assert (link["dst"], link["src"]) == (str(session.link.local), str(session.link.remote))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_session_carries_messages_until_we_close_it(
    reference: ReferenceProcess, pair: Pair
) -> None:
    ours = Ours(pair.ours)
    with conversation(reference, pair, ours) as (session, them):
        check_agreement(pair, ours, session, them)
        both_send(ours, session, them, MESSAGES)
        session.close()
        end = ours.end_of(session)
        assert (end.reason, end.by_peer) == (CloseReason.GENERIC, False)
        until(lambda: them.closed(str(ours.zid)), lambda times: times == 1)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_session_ends_when_they_close_it(reference: ReferenceProcess, pair: Pair) -> None:
    ours = Ours(pair.ours)
    with conversation(reference, pair, ours) as (session, them):
        them.close()
        end = ours.end_of(session)
        assert (end.reason, end.by_peer) == (CloseReason.GENERIC, True)
        assert THEY_SAID_CLOSE in end.why
        assert not ours.node.sessions


def test_a_client_does_not_serve_a_client(reference: ReferenceProcess) -> None:
    with Ours(CLIENT) as ours:
        (at, *_) = ours.node.listen("tcp/127.0.0.1:0")
        with pytest.raises(ReferenceFailed):
            dialling(reference, "client", str(at), {"connect/timeout_ms": 0})
        until(lambda: ours.node.refused, lambda refused: refused["GENERIC"] >= 1)
        assert ours.opened == []


def test_a_client_that_reached_only_a_client_does_not_open(reference: ReferenceProcess) -> None:
    """Neither of ours nor of theirs: their client listens, as it has a router as well."""
    router, client = free_port(), free_port()
    reference.open("router", {"listen/endpoints": [f"tcp/127.0.0.1:{router}"]})
    there = {"listen/endpoints": [f"tcp/127.0.0.1:{client}"]}
    reference.open("client", {"connect/endpoints": [f"tcp/127.0.0.1:{router}"], **there})
    with pytest.raises(ReferenceFailed, match="Unable to connect"):
        reference.open("client", {"connect/endpoints": [f"tcp/127.0.0.1:{client}"]})
    with pytest.raises(zenlake.ZError, match=r"Unable to connect.* does not talk to a CLIENT"):
        session_pairs.dialling(client, mode="client")


def test_a_client_of_ours_does_not_open_a_session_with_another() -> None:
    peer, port = session_pairs.listening()
    at = free_port()
    listen = [f"tcp/127.0.0.1:{at}"]
    with (
        peer,
        session_pairs.dialling(port, mode="client", listen__endpoints=listen),
        pytest.raises(zenlake.ZError, match=r"Unable to connect.* does not talk to a CLIENT"),
    ):
        session_pairs.dialling(at, mode="client")
