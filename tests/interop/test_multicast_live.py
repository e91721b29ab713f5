"""Multicast groups with eclipse-zenoh: both hear each other, in every setting that both have.

A datagram that is lost is lost: what is said is repeated until it was heard once, and whatever
is heard has to be whole.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.golden.proxy import group_sender
from tests.support.discovery import LOOPBACK, new_group, on_lo, reference_session
from tests.support.interop_conversation import PEER, Ours, both_send
from tests.support.interop_pair import THEIRS, open_session, settling
from tests.support.reference_peer import (
    ReferencePeer,
    ReferenceProcess,
    Settings,
    fingerprint,
    payload,
)
from tests.support.waiting import until
from zenlake.errors import SessionEnded
from zenlake.keytable import KeyTable
from zenlake.link import multicast as multicast_link
from zenlake.link.options import LinkOptions
from zenlake.runtime.group import Group
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.multicast import GroupOffer
from zenlake.wire.batch import write_batch
from zenlake.wire.cursor import ByteReader
from zenlake.wire.declare import Declare, DeclareKeyExpr
from zenlake.wire.enums import CloseReason, Mapping, WirePriority
from zenlake.wire.join import Join
from zenlake.wire.locator import EndPoint
from zenlake.wire.network import NETWORK, is_network
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.interop

TRIES = 20
HEARD_SECONDS = 3.0  # A sample that has not arrived by then counts as lost.
RECEIVE_BYTES = 4 << 20
SIZES = {"one datagram": 100, "three fragments": 20_000, "many fragments": 150_000}
"A burst of more than a socket buffer is lost where the receiver has to wait for a processor."


class Ear:
    """Keeps what a group says."""

    def __init__(self) -> None:
        self.came: list[TransportSession] = []
        self.gone: list[tuple[TransportSession, SessionEnded]] = []
        self.puts: list[tuple[str | None, bytes]] = []
        self._keys: dict[TransportSession, KeyTable] = {}

    def opened(self, member: TransportSession) -> None:
        self._keys[member] = KeyTable()
        self.came.append(member)

    def on_frame(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        r = ByteReader(data, pos, end)
        keys = self._keys[session]
        while r.pos < end and is_network(data[r.pos]):
            message = NETWORK.read(r)
            if isinstance(message, Declare) and isinstance(message.body, DeclareKeyExpr):
                keys.declare(Mapping.SENDER, message.body.id, message.body.key.suffix)
            elif isinstance(message, Push) and isinstance(message.body, Put):
                assert isinstance(message.body.payload, bytes)
                self.puts.append((keys.text(message.key), message.body.payload))
        return r.pos

    def closed(self, member: TransportSession, why: SessionEnded) -> None:
        self.gone.append((member, why))

    def closed_by(self, zid: str) -> list[TransportSession]:
        """Return the members with this id that left with a CLOSE of their own."""
        return [member for member, why in self.gone if str(member.zid) == zid and why.by_peer]


def in_group(group: str, **settings: Any) -> Settings:
    """A peer of theirs that is a member."""
    return {"listen/endpoints": [on_lo(group)], **settings}


def multicast(*, qos: bool = False, compression: bool = False) -> Settings:
    return {
        "transport/multicast/qos/enabled": qos,
        "transport/multicast/compression/enabled": compression,
    }


@contextmanager
def member(group: str, ours: Ours, **offer: Any) -> Iterator[tuple[Group, Ear]]:
    """Our node `ours`, started, as a member."""
    ear = Ear()
    parameters = GroupOffer(zid=ours.zid, whatami=ours.whatami, **offer)
    at = EndPoint(f"{on_lo(group)};so_rcvbuf={RECEIVE_BYTES}")
    joined = ours.node.join(multicast_link.join(at, LinkOptions()), parameters, ear)
    yield joined, ear
    joined.close()


def know_each_other(ours: Ours, ear: Ear, them: ReferencePeer) -> None:
    until(lambda: [str(m.zid) for m in ear.came], lambda ids: them.zid in ids)
    until(them.transports, lambda found: str(ours.zid) in found)


def they_are_heard(ear: Ear, them: ReferencePeer, size: int, noise: bool = False) -> None:
    for number in range(TRIES):
        ear.puts.clear()
        them.put("m/theirs", [size], first=number, noise=noise, congestion_control="BLOCK")
        end = time.monotonic() + HEARD_SECONDS
        while not ear.puts and time.monotonic() < end:
            time.sleep(0.01)
        if ear.puts:
            assert ear.puts == [("m/theirs", payload(number, size, noise))]
            return
    pytest.fail(f"none of {TRIES} messages of {size} bytes came here")


def we_are_heard(
    group: Group,
    them: ReferencePeer,
    size: int,
    noise: bool = False,
    priority: WirePriority = WirePriority.DATA,
) -> None:
    for number in range(TRIES):
        them.samples()
        said = payload(number, size, noise)
        assert group.send(Push(WireExpr(0, "m/ours"), Put(said), QoS(priority)))
        end = time.monotonic() + HEARD_SECONDS
        while not them.count() and time.monotonic() < end:
            time.sleep(0.01)
        samples = them.samples()
        if samples:
            assert [(s["key"], s["payload"]) for s in samples] == [("m/ours", fingerprint(said))]
            assert samples[0]["priority"] == priority.name
            return
    pytest.fail(f"none of {TRIES} messages of {size} bytes came there")


@pytest.mark.parametrize("compression", [False, True], ids=["plain", "compressed"])
@pytest.mark.parametrize("qos", [False, True], ids=["one lane", "lanes"])
def test_both_hear_each_other(reference: ReferenceProcess, qos: bool, compression: bool) -> None:
    group = new_group()
    settings = in_group(group, **multicast(qos=qos, compression=compression))
    with Ours(PEER) as ours, reference_session(reference, "peer", settings) as them:
        them.subscribe("m/ours")
        with member(group, ours, qos=qos, compression=compression) as (joined, ear):
            know_each_other(ours, ear, them)
            assert them.transports()[str(ours.zid)] == {"whatami": "PEER", "qos": qos}
            for size in SIZES.values():
                they_are_heard(ear, them, size)
                we_are_heard(joined, them, size)
                they_are_heard(ear, them, size, noise=True)
                we_are_heard(joined, them, size, noise=True)
            # Theirs is a member before ours is, and says something before it says JOIN again.
            dropped = joined.core.counters.receive_dropped
            assert set(dropped) <= {"frame_not_joined"}
            assert ear.gone == []


def test_every_priority_is_heard(reference: ReferenceProcess) -> None:
    group = new_group()
    with (
        Ours(PEER) as ours,
        reference_session(reference, "peer", in_group(group, **multicast(qos=True))) as t,
    ):
        t.subscribe("m/ours")
        with member(group, ours, qos=True) as (joined, ear):
            know_each_other(ours, ear, t)
            for priority in WirePriority:
                if priority is not WirePriority.CONTROL:
                    we_are_heard(joined, t, 100, priority=priority)
                    we_are_heard(joined, t, 20_000, priority=priority)


def test_they_leave_and_come_back(reference: ReferenceProcess) -> None:
    group = new_group()
    with Ours(PEER) as ours, member(group, ours) as (joined, ear):
        for _ in range(3):
            with reference_session(reference, "peer", in_group(group)) as them:
                them.subscribe("m/ours")
                know_each_other(ours, ear, them)
                they_are_heard(ear, them, 100)
                we_are_heard(joined, them, 100)
            # Their JOIN timer is a task of its own: a JOIN that follows their CLOSE admits them
            # again, as another member, until its lease expires.
            (left,) = until(lambda: ear.closed_by(them.zid), bool)
            assert left not in joined.members


def test_we_leave_and_come_back(reference: ReferenceProcess) -> None:
    group = new_group()
    with Ours(PEER) as ours, reference_session(reference, "peer", in_group(group)) as them:
        them.subscribe("m/ours")
        for number in range(1, 4):
            with member(group, ours) as (joined, ear):
                know_each_other(ours, ear, them)
                they_are_heard(ear, them, 100)
                we_are_heard(joined, them, 100)
            until(them.transports, lambda found: not found)
            until(lambda: them.closed(str(ours.zid)), lambda closed: closed == number)  # noqa: B023
            ((_, why),) = ear.gone
            assert (why.by_peer, why.reason) == (False, CloseReason.GENERIC)


def test_who_falls_silent_is_gone(reference: ReferenceProcess) -> None:
    group = new_group()
    lease = {"transport/link/tx/lease": 1000, "transport/multicast/join_interval": 200}
    with (
        ReferenceProcess() as other,
        Ours(PEER) as ours,
        member(group, ours, join_seconds=0.2) as (joined, ear),
    ):
        them = other.open("peer", in_group(group, **lease))
        know_each_other(ours, ear, them)
        other.stop()
        ((_, why),) = until(lambda: ear.gone, bool)
        assert (why.reason, why.by_peer) == (CloseReason.EXPIRED, False)
        other.resume()
        until(lambda: joined.members, bool)
        them.close()


def test_three_members(reference: ReferenceProcess) -> None:
    group = new_group()
    settings = in_group(group)
    with (
        Ours(PEER) as ours,
        Ours(PEER) as also_ours,
        reference_session(reference, "peer", settings) as them,
        member(group, ours) as (first, ear),
        member(group, also_ours) as (second, other_ear),
    ):
        them.subscribe("m/ours")
        know_each_other(ours, ear, them)
        know_each_other(also_ours, other_ear, them)
        until(lambda: (len(first.members), len(second.members)), lambda n: n == (2, 2))
        we_are_heard(first, them, 20_000)
        they_are_heard(other_ear, them, 20_000)
        we_are_heard(second, them, 20_000)
        until(lambda: [key for key, _ in ear.puts], lambda keys: "m/ours" in keys)


@pytest.mark.parametrize(
    ("offer", "settings", "counted"),
    [
        ({"batch_size": 4096}, {}, "join_mismatch_batch_size"),
        ({}, {"transport/link/tx/batch_size": 4096}, "join_mismatch_batch_size"),
        ({"resolution": 0x09}, {}, "join_mismatch_resolution"),
        ({"qos": True}, multicast(qos=False), "join_mismatch_lanes"),
    ],
    ids=["our batch size", "their batch size", "resolution", "lanes"],
)
def test_who_has_other_parameters_is_ignored(
    reference: ReferenceProcess, offer: dict[str, Any], settings: Settings, counted: str
) -> None:
    group = new_group()
    with (
        Ours(PEER) as ours,
        reference_session(reference, "peer", in_group(group, **settings)) as them,
        member(group, ours, **offer, join_seconds=0.2) as (joined, ear),
    ):
        dropped = joined.core.counters.receive_dropped
        until(lambda: dropped.get(DropReason(counted), 0), lambda count: count >= 2)
        assert set(dropped) == {counted}
        sent = joined.core.counters.sent_batches
        until(lambda: joined.core.counters.sent_batches, lambda now: now >= sent + 5)
        assert (ear.came, them.transports()) == ([], {})


def test_a_flood_at_a_group(reference: ReferenceProcess) -> None:
    """A session beside it loses nothing, members stay within their limit, the group works on.

    Both members are ours: one datagram that does not decode ends eclipse-zenoh's membership.
    """
    group, chance = new_group(), random.Random(14)
    host, port = group.split(":")
    joins = [
        write_batch([Join(WireZenohId(chance.randbytes(15) + b"\x01"), PEER, 100, 1, 1, patch=1)])
        for _ in range(1000)
    ]
    datagrams = joins + [chance.randbytes(chance.randrange(1, 1400)) for _ in range(1000)]
    datagrams += [data[: chance.randrange(1, len(data))] for data in joins]
    chance.shuffle(datagrams)
    with (
        Ours(PEER) as ours,
        Ours(PEER) as also_ours,
        member(group, ours, join_seconds=0.2) as (first, ear),
        member(group, also_ours, join_seconds=0.2) as (second, other_ear),
        group_sender() as sender,
    ):
        (at,) = ours.node.listen(LOOPBACK)
        with reference_session(reference, "peer", {"connect/endpoints": [str(at)]}) as them:
            session = ours.session()
            them.subscribe("theirs/**")
            for number in range(10):
                for data in datagrams[number::3]:
                    sender.sendto(data, (host, int(port)))
                both_send(ours, session, them, [100] * 50)
            assert ours.closed == []
        wanted = {str(also_ours.zid)}
        until(lambda: {str(m.zid) for m in first.members}, lambda ids: ids == wanted)
        until(lambda: [str(m.zid) for m in second.members], lambda ids: str(ours.zid) in ids)
        for number in range(TRIES):
            second.send(Push(WireExpr(0, "m/still"), Put(b"%d" % number)))
        until(lambda: ear.puts, bool)
        assert first.core.counters.receive_dropped[DropReason.DATAGRAM_INVALID] > 0
        assert all(key == "m/still" for key, _ in ear.puts)
        assert other_ear.puts == []


def test_theirs_send_puts_alone_to_a_group() -> None:
    """Neither queries nor tokens pass, and a publisher knows no subscriber of another member."""
    at, heard = on_lo(new_group()), list[str]()
    with (
        settling(),
        open_session(THEIRS, "peer", listen=at) as one,
        open_session(THEIRS, "peer", listen=at) as other,
    ):
        other.declare_subscriber("m/put", lambda sample: heard.append(str(sample.key_expr)))
        other.declare_queryable("m/query", lambda query: query.reply("m/query", b"answer"))
        token = other.liveliness().declare_token("m/token")
        publisher = one.declare_publisher("m/put")

        def say_again() -> None:
            publisher.put(b"said")
            time.sleep(0.1)

        until(lambda: heard, bool, pause=say_again)
        assert not publisher.matching_status.matching
        assert list(one.get("m/query", timeout=1.0)) == []
        assert list(one.liveliness().get("m/token", timeout=1.0)) == []
        token.undeclare()
