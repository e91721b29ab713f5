"""Scouting with eclipse-zenoh: who is found, who connects, and what a hostile group can do."""

import json
import random
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.golden.proxy import LOOPBACK as HOST
from tests.golden.proxy import free_port, group_sender, group_socket
from tests.support.discovery import (
    DIALS_NOBODY,
    LOOPBACK,
    THEY_DIAL_NOBODY,
    Finder,
    new_group,
    on_lo,
    reference_session,
    scouting,
    stays,
)
from tests.support.interop_conversation import CLIENT, PEER, ROUTER, both_send, they_send
from tests.support.namespaces import need_tools
from tests.support.reference_peer import ReferenceFailed, ReferenceProcess
from tests.support.waiting import until
from zenlake.runtime import discovery
from zenlake.runtime.discovery import DiscoveryConfig, scout
from zenlake.transport.autoconnect import DEFAULTS, Autoconnect, Strategy, strategy_for_all
from zenlake.transport.establishment import Opener
from zenlake.transport.scouting import MAX_LOCATORS
from zenlake.wire.batch import write_batch, write_scouting
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.hello import WireHello
from zenlake.wire.join import Join
from zenlake.wire.locator import Locator
from zenlake.wire.scout import WireScout
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.interop

SCOUT_SECONDS = 30.0  # Deadline: a test stops listening when it has heard enough.
ROUNDS = 5  # Repetitions of what two nodes do at the same time: each differs a little.


def config(group: str, **settings: Any) -> DiscoveryConfig:
    return DiscoveryConfig(group=on_lo(group), **settings)


# ---- asking, without connecting


def test_our_scout_finds_whom_it_asks_for(reference: ReferenceProcess) -> None:
    group = new_group()
    settings = scouting(group, **THEY_DIAL_NOBODY)
    with (
        reference_session(reference, "peer", settings) as peer,
        reference_session(reference, "router", settings) as router,
    ):
        expected = {(peer.zid, PEER), (router.zid, ROUTER)}
        found = set()
        for hello, source in scout(SCOUT_SECONDS, group=on_lo(group)):
            assert source == HOST
            assert [locator.partition(":")[0] for locator in hello.locators] == [f"tcp/{HOST}"]
            found.add((str(hello.zid), hello.whatami))
            if found == expected:
                break
        assert found == expected
        for what, zid in ((PEER, peer.zid), (ROUTER, router.zid)):
            assert [str(a.hello.zid) for a in scout(1.5, what, group=on_lo(group))] == [zid]
        assert list(scout(1.0, CLIENT, group=on_lo(group))) == []


THEIR_SCOUT = """
import json, sys, time, zenoh
group, what, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
config = zenoh.Config()
for key, value in {"address": group, "interface": "lo"}.items():
    config.insert_json5(f"scouting/multicast/{key}", json.dumps(value))
matcher = zenoh.WhatAmIMatcher.empty()
for bit, name in ((1, "router"), (2, "peer"), (4, "client")):
    if what & bit:
        matcher = getattr(matcher, name)()
scout = zenoh.scout(what=matcher, config=config)
end = time.monotonic() + seconds
while time.monotonic() < end:
    hello = scout.try_recv()
    if hello is None:
        time.sleep(0.01)
        continue
    found = {"zid": str(hello.zid), "whatami": str(hello.whatami), "locators": hello.locators}
    sys.stdout.write(json.dumps(found) + "\\n")
    break
scout.stop()
"""


def their_scout(group: str, what: WireWhatAmI, seconds: float) -> list[dict[str, Any]]:
    """The first answer that eclipse-zenoh's scout gets, if any."""
    command = [sys.executable, "-c", THEIR_SCOUT, group, str(int(what)), str(seconds)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("whatami", [PEER, ROUTER])
def test_their_scout_finds_us(whatami: WireWhatAmI) -> None:
    group = new_group()
    with Finder(whatami, config(group)) as ours:
        (locator,) = ours.node.listen(LOOPBACK)
        (hello,) = their_scout(group, ROUTER | PEER, SCOUT_SECONDS)
        assert hello == {
            "zid": str(ours.zid),
            "whatami": str(whatami.name).lower(),
            "locators": [str(locator)],
        }
        other = ROUTER if whatami is PEER else PEER
        assert their_scout(group, other, 2.0) == []


def test_who_does_not_answer_is_not_found() -> None:
    group = new_group()
    with Finder(PEER, config(group, answer=False)) as ours:
        ours.node.listen(LOOPBACK)
        assert list(scout(1.0, group=on_lo(group))) == []


# ---- connecting to discovered nodes


@pytest.mark.parametrize("who_dials", ["we", "they", *["both"] * ROUNDS])
def test_peers_that_scout_have_one_session(reference: ReferenceProcess, who_dials: str) -> None:
    group = new_group()
    rule = DIALS_NOBODY if who_dials == "they" else DEFAULTS["multicast"]
    settings = scouting(group, **(THEY_DIAL_NOBODY if who_dials == "we" else {}))
    with Finder(PEER, config(group, scouted=rule, told=rule)) as ours:
        ours.node.listen(LOOPBACK)
        with reference_session(reference, "peer", settings) as them:
            until(ours.found, lambda found: found == {them.zid})
            until(them.transports, lambda found: set(found) == {str(ours.zid)})
            until(lambda: (ours.node.pending, ours.node.found), lambda counts: counts == (0, 0))
            (session,) = ours.node.sessions.values()
            if who_dials != "both":
                assert isinstance(session.handshake, Opener) == (who_dials == "we")
            them.subscribe("theirs/**")
            both_send(ours, session, them, [64] * 20)
            assert (ours.found(), set(them.transports())) == ({them.zid}, {str(ours.zid)})
        assert ours.end_of(session).by_peer


def test_who_starts_later_is_found_too(reference: ReferenceProcess) -> None:
    group = new_group()
    settings = scouting(group, **THEY_DIAL_NOBODY)
    with (
        reference_session(reference, "peer", settings) as first,
        Finder(PEER, config(group)) as ours,
    ):
        ours.node.listen(LOOPBACK)
        until(ours.found, lambda found: found == {first.zid})
        with reference_session(reference, "peer", settings) as second:
            until(ours.found, lambda found: found == {first.zid, second.zid})
        until(ours.found, lambda found: found == {first.zid})


@pytest.mark.parametrize("we_are_greater", [True, False])
def test_the_greater_id_dials(reference: ReferenceProcess, we_are_greater: bool) -> None:
    group = new_group()
    zid = WireZenohId(b"\xff" * 16 if we_are_greater else b"\x00" * 15 + b"\x01")
    rule = Autoconnect(DEFAULTS["multicast"].roles, strategy_for_all(Strategy.GREATER_ZID))
    strategy = {"peer": {"to_router": "greater-zid", "to_peer": "greater-zid"}}
    settings = scouting(
        group,
        **{
            "scouting/multicast/autoconnect_strategy": strategy,
            "scouting/gossip/autoconnect_strategy": strategy,
        },
    )
    ours = Finder(PEER, config(group, scouted=rule, told=rule), zid=zid)
    with ours, reference_session(reference, "peer", settings) as them:
        ours.node.listen(LOOPBACK)
        until(ours.found, lambda found: found == {them.zid})
        (session,) = ours.node.sessions.values()
        assert isinstance(session.handshake, Opener) == we_are_greater
        they_send(ours, them, [64] * 20)
        assert ours.found() == {them.zid}
        assert bool(ours.links.dialled) == we_are_greater


def test_our_client_finds_one_router(reference: ReferenceProcess) -> None:
    group = new_group()
    settings = scouting(group)
    with (
        reference_session(reference, "router", settings) as first,
        reference_session(reference, "router", settings) as second,
        Finder(CLIENT, config(group)) as ours,
    ):
        until(ours.found, bool)
        (session,) = ours.node.sessions.values()
        assert str(session.zid) in {first.zid, second.zid}
        stays(lambda: len(ours.opened), 1)
        them = first if str(session.zid) == first.zid else second
        them.subscribe("theirs/**")
        both_send(ours, session, them, [64] * 20)
        them.close()
        other = second if them is first else first
        until(ours.found, lambda found: found == {other.zid})


@pytest.mark.parametrize("whatami", [ROUTER, PEER])
def test_their_client_finds_us(reference: ReferenceProcess, whatami: WireWhatAmI) -> None:
    group = new_group()
    with Finder(whatami, config(group)) as ours:
        ours.node.listen(LOOPBACK)
        settings = scouting(group, **{"listen/endpoints": []})
        with reference_session(reference, "client", settings) as them:
            session = ours.session()
            assert (str(session.zid), session.agreement.whatami) == (them.zid, CLIENT)
            them.subscribe("theirs/**")
            both_send(ours, session, them, [64] * 20)


def test_their_client_does_not_find_who_does_not_answer(reference: ReferenceProcess) -> None:
    group = new_group()
    with Finder(ROUTER, config(group, answer=False)) as ours:
        ours.node.listen(LOOPBACK)
        settings = scouting(group, **{"listen/endpoints": [], "scouting/timeout": 1000})
        with pytest.raises(ReferenceFailed):
            reference.open("client", settings)
        assert ours.opened == []


@pytest.mark.parametrize("mode", ["peer", "router"])
def test_our_router_dials_nobody(reference: ReferenceProcess, mode: str) -> None:
    group = new_group()
    settings = scouting(group, **THEY_DIAL_NOBODY)
    with Finder(ROUTER, config(group)) as ours, reference_session(reference, mode, settings):
        ours.node.listen(LOOPBACK)
        stays(ours.found, set())


# ---- a hostile group


def our_port(group: str, listening: socket.socket) -> int:
    """Where a node asks from, as its SCOUT tells everybody."""
    listening.settimeout(60)
    _, (_, port) = listening.recvfrom(65_535)
    return int(port)


def hello(zid: WireZenohId, locators: int, port: int) -> bytes:
    closed = tuple(Locator(f"tcp/{HOST}:{port}?n={number}") for number in range(locators))
    return write_scouting(WireHello(zid, PEER, closed))


def hostile(chance: random.Random, closed: int) -> bytes:
    """A datagram that no honest node sends."""
    zid = WireZenohId(chance.randbytes(15) + b"\x01")
    good = [
        write_scouting(WireScout(WireWhatAmI(7))),
        write_batch([Join(zid, PEER, 10_000, lane_sns=None)]),
        hello(zid, chance.choice((1, 3, 40, 255)), closed),
        chance.randbytes(chance.randrange(1, 1500)),
    ]
    data = bytearray(chance.choice(good))
    if chance.random() < 0.5:
        data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        del data[chance.randrange(1, len(data) + 1) :]
    return bytes(data)


class Flood:
    """Sends what `hostile` makes, to the group and to one node, until stopped."""

    def __init__(self, targets: list[tuple[str, int]], closed: int) -> None:
        self.sent = 0
        self._targets = targets
        self._closed = closed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Flood":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        chance = random.Random(13)
        datagrams = [hostile(chance, self._closed) for _ in range(2000)]
        with group_sender() as sender:
            while not self._stop.is_set():
                sender.sendto(datagrams[self.sent % len(datagrams)], chance.choice(self._targets))
                self.sent += 1


FLOOD_DATAGRAMS = 30_000


def test_a_session_lives_through_a_flood(
    reference: ReferenceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MAX_ATTEMPTS", 10)  # far below what this flood asks for
    group, closed = new_group(), free_port()
    host, port = group.split(":")
    with group_socket(host, int(port)) as listening, Finder(PEER, config(group)) as ours:
        ours.node.listen(LOOPBACK)
        victim = (HOST, our_port(group, listening))
        (at,) = ours.node.locators
        with reference_session(reference, "peer", {"connect/endpoints": [str(at)]}) as them:
            session = ours.session()
            them.subscribe("theirs/**")
            began = time.monotonic()
            sent = 0
            with Flood([(host, int(port)), victim], closed) as flood:
                while flood.sent < FLOOD_DATAGRAMS or sent < 500:
                    both_send(ours, session, them, [100] * 50)
                    sent += 50
            lasted = time.monotonic() - began
            both_send(ours, session, them, [100] * 50)
            assert (ours.closed, list(ours.node.sessions.values())) == ([], [session])
            dialled = len(ours.links.dialled)
            assert 0 < dialled <= discovery.MAX_ATTEMPTS * (lasted / discovery.WINDOW + 2)
            threads = [t.name for t in threading.enumerate() if "resolver" in t.name]
            assert len(threads) <= discovery.MAX_CONNECTING
            # It has not become deaf: who comes now is found.
            settings = scouting(group, **THEY_DIAL_NOBODY)
            with reference_session(reference, "peer", settings) as late:
                until(ours.found, lambda found: late.zid in found)


def test_a_hello_with_255_locators_that_lead_nowhere(reference: ReferenceProcess) -> None:
    group, closed = new_group(), free_port()
    host, port = group.split(":")
    with group_socket(host, int(port)) as listening, Finder(PEER, config(group)) as ours:
        ours.node.listen(LOOPBACK)
        victim = (HOST, our_port(group, listening))
        (at,) = ours.node.locators
        with (
            reference_session(reference, "peer", {"connect/endpoints": [str(at)]}) as them,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            ours.session()
            zid = WireZenohId(b"\xd1")
            for _ in range(10):
                sender.sendto(hello(zid, 255, closed), victim)
            until(lambda: len(ours.links.dialled), lambda dialled: dialled == MAX_LOCATORS)
            until(lambda: ours.node.found, lambda count: count == 0)
            they_send(ours, them, [100] * 50)
            assert len(ours.links.dialled) == MAX_LOCATORS
            assert ours.closed == []


WITHOUT_A_NETWORK = """
set -e
ip link set lo up multicast on
exec "$0" -c "$1"
"""
BOTH_BY_DEFAULT = """
import time
import zenlake
import zenoh

with (
    zenoh.open(zenoh.Config()) as theirs,
    zenlake.open(zenlake.Config()) as ours,
    zenlake.open(zenlake.Config()) as another,
):
    expected = {str(session.info.zid()) for session in (theirs, another)}
    end = time.monotonic() + 60
    while {str(zid) for zid in ours.info.peers_zid()} != expected:
        assert time.monotonic() < end, list(ours.info.peers_zid())
        time.sleep(0.01)
    print("found")
"""


def test_peers_of_a_host_without_a_network_find_each_other() -> None:
    """Rust scouts on loopback, too, if that does multicast."""
    need_tools("interfaces", "unshare", "ip")
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", WITHOUT_A_NETWORK, sys.executable, BOTH_BY_DEFAULT],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "found\n", done
