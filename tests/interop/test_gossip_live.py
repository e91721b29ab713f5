"""Gossip with eclipse-zenoh: nodes that know only one other node find each other through it."""

from contextlib import closing

import pytest

from tests.support.discovery import (
    DIALS_NOBODY,
    LOOPBACK,
    THEY_DIAL_NOBODY,
    AskedRule,
    Finder,
    reference_session,
    stays,
)
from tests.support.interop_conversation import PEER, ROUTER, both_send, listening, they_send
from tests.support.reference_peer import ReferencePeer, ReferenceProcess, Settings
from tests.support.waiting import until
from zenlake.runtime.discovery import DiscoveryConfig
from zenlake.wire.enums import WireWhatAmI

pytestmark = pytest.mark.interop

QUIET = DiscoveryConfig(group=None, told=DIALS_NOBODY)


def dials(*endpoints: str) -> Settings:
    return {"connect/endpoints": list(endpoints), "listen/endpoints": [LOOPBACK]}


def neighbours(them: ReferencePeer) -> set[str]:
    return set(them.transports())


@pytest.mark.parametrize("whatami", [PEER, ROUTER])
def test_their_peers_find_each_other_through_us(
    reference: ReferenceProcess, whatami: WireWhatAmI
) -> None:
    with Finder(whatami, QUIET) as ours:
        (at,) = ours.node.listen(LOOPBACK)
        with (
            reference_session(reference, "peer", dials(at)) as a,
            reference_session(reference, "peer", dials(at)) as c,
        ):
            until(lambda: neighbours(a), lambda ids: ids == {str(ours.zid), c.zid})
            until(lambda: neighbours(c), lambda ids: ids == {str(ours.zid), a.zid})
            for them in (a, c):
                them.subscribe("theirs/**")
                both_send(ours, ours.session_with(them.zid), them, [64] * 20)
            assert ours.found() == {a.zid, c.zid}


def test_without_our_gossip_they_do_not(reference: ReferenceProcess) -> None:
    with Finder(PEER, DiscoveryConfig(group=None, gossip=False)) as ours:
        (at,) = ours.node.listen(LOOPBACK)
        with (
            reference_session(reference, "peer", dials(at)) as a,
            reference_session(reference, "peer", dials(at)) as c,
        ):
            until(ours.found, lambda ids: ids == {a.zid, c.zid})
            stays(lambda: (neighbours(a), neighbours(c)), ({str(ours.zid)}, {str(ours.zid)}))


@pytest.mark.parametrize("middle", ["peer", "router"])
def test_we_find_a_node_through_one_of_theirs(reference: ReferenceProcess, middle: str) -> None:
    b, at = listening(reference, middle, {})
    with closing(b):
        settings = {**dials(at), **THEY_DIAL_NOBODY}
        with (
            reference_session(reference, "peer", settings) as a,
            Finder(PEER, DiscoveryConfig(group=None)) as ours,
        ):
            ours.node.connect(at)
            until(ours.found, lambda ids: ids == {a.zid, b.zid})
            a.subscribe("theirs/**")
            both_send(ours, ours.session_with(a.zid), a, [64] * 20)
            assert ours.found() == {a.zid, b.zid}


def test_we_do_not_dial_whom_we_do_not_want(reference: ReferenceProcess) -> None:
    b, at = listening(reference, "peer", {})
    with closing(b):
        settings = {**dials(at), **THEY_DIAL_NOBODY}
        rule = AskedRule()
        with (
            reference_session(reference, "peer", settings) as a,
            Finder(PEER, DiscoveryConfig(group=None, told=rule)) as ours,
        ):
            ours.node.connect(at)
            until(lambda: rule.asked, lambda ids: a.zid in ids)
            they_send(ours, b, [64] * 20)
            assert (ours.found(), ours.links.dialled) == ({b.zid}, [at])
