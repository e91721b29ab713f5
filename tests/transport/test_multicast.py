"""A group's core: who is admitted, whose frames pass, who is gone, and what no datagram can do."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zenlake.errors import SessionEnded
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.fragments import MAX_PROCESS_BYTES, ByteBudget
from zenlake.transport.multicast import Address, GroupOffer, Member, Multicast
from zenlake.transport.offer import SN_MASKS
from zenlake.transport.sequence import REORDER_WINDOW
from zenlake.wire.batch import read_batch, write_batch
from zenlake.wire.close import Close
from zenlake.wire.cursor import ByteReader
from zenlake.wire.enums import (
    PRIORITIES,
    CloseReason,
    WireCongestionControl,
    WirePriority,
    WireWhatAmI,
)
from zenlake.wire.extensions import Unknown
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.framing import compress, uncompress
from zenlake.wire.init import VERSION, Init
from zenlake.wire.join import DEFAULT_BATCH_SIZE, Join
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.network import NETWORK, is_network
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

A, B, C = WireZenohId(b"\xa1"), WireZenohId(b"\xb1"), WireZenohId(b"\xc1")
AT_A, AT_B, AT_C = ("192.0.2.1", 1001), ("192.0.2.2", 1002), ("192.0.2.3", 1003)
RESOLUTIONS = {8: 0x08, 16: 0x09, 32: 0x0A, 64: 0x0B}


class Ear:
    """Keeps what a group tells its handler."""

    def __init__(self) -> None:
        self.joined_ids: list[WireZenohId] = []
        self.heard: list[tuple[WireZenohId, WirePriority, bool, bytes]] = []
        self.gone: list[tuple[WireZenohId, SessionEnded]] = []
        self.announcements = 0

    def joined(self, member: Member) -> None:
        self.joined_ids.append(member.zid)

    def on_frame(
        self,
        member: Member,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        r = ByteReader(data, pos, end)
        while r.pos < end and is_network(data[r.pos]):
            message = NETWORK.read(r)
            assert isinstance(message, Push)
            assert isinstance(message.body, Put)
            payload = message.body.payload
            assert isinstance(payload, bytes)
            self.heard.append((member.zid, priority, reliable, payload))
        return r.pos

    def announced(self) -> None:
        self.announcements += 1

    def left(self, member: Member, why: SessionEnded) -> None:
        self.gone.append((member.zid, why))

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, _, _, payload in self.heard]


def entropy(first: int = 0) -> Any:
    """Four bytes that differ each time, so that a lane taken for another is seen."""
    numbers = count(first)
    return lambda size: next(numbers).to_bytes(size, "little")


class Seat:
    """One node in a group, with its handler."""

    def __init__(self, zid: WireZenohId, at: Address, now: float = 0.0, **offer: Any) -> None:
        self.at = at
        self.ear = Ear()
        self.memory = ByteBudget(MAX_PROCESS_BYTES)
        whatami = offer.pop("whatami", WireWhatAmI.PEER)
        first = offer.pop("first_sn", 5)
        self.core = Multicast(
            GroupOffer(zid=zid, whatami=whatami, **offer),
            self.ear,
            entropy(first),
            now,
            process=self.memory,
        )

    def pull_all(self, now: float = 0.0) -> list[bytes]:
        return list(map(bytes, self._pull(now)))

    def _pull(self, now: float) -> Iterator[bytes | bytearray | memoryview]:
        while (data := self.core.pull(now)) is not None:
            yield data

    def say(self, payload: bytes, qos: QoS | None = None, reliable: bool = True) -> None:
        message = Push(WireExpr(0, "k"), Put(payload))
        message.qos = message.qos if qos is None else qos
        self.core.outbox.push(message, reliable)

    def hear(self, datagrams: list[bytes], sender: "Seat | Address", now: float = 0.0) -> None:
        at = sender.at if isinstance(sender, Seat) else sender
        for data in datagrams:
            self.core.receive(data, at, now)

    @property
    def dropped(self) -> dict[DropReason, int]:
        return self.core.counters.receive_dropped

    @property
    def members(self) -> list[WireZenohId]:
        return [member.zid for member in self.core.members.values()]


def join_of(datagram: bytes) -> Join:
    (join,) = read_batch(datagram)
    assert isinstance(join, Join)
    return join


def pair(**offer: Any) -> tuple[Seat, Seat]:
    """Two nodes that know each other."""
    a, b = Seat(A, AT_A, **offer), Seat(B, AT_B, first_sn=70, **offer)
    a.hear(b.pull_all(), b)
    b.hear(a.pull_all(), a)
    assert (a.members, b.members) == ([B], [A])
    return a, b


JOIN_B = Join(B, WireWhatAmI.PEER, 10_000, 3, 4, patch=1)


# ---- JOIN


def test_join_without_lanes_says_two_numbers() -> None:
    (datagram,) = Seat(A, AT_A).pull_all()
    assert join_of(datagram) == Join(
        A,
        WireWhatAmI.PEER,
        10_000,
        reliable_sn=6,
        best_effort_sn=5,
        version=VERSION,
        resolution=0x0A,
        batch_size=8192,
        lane_sns=None,
        patch=1,
    )


def test_join_with_lanes_says_sixteen() -> None:
    (datagram,) = Seat(A, AT_A, qos=True, whatami=WireWhatAmI.ROUTER, lease_ms=1500).pull_all()
    join = join_of(datagram)
    assert (join.whatami, join.lease_ms) == (WireWhatAmI.ROUTER, 1500)
    assert (join.reliable_sn, join.best_effort_sn) == (0, 0)
    assert join.lane_sns == tuple((5 + 2 * lane + 1, 5 + 2 * lane) for lane in range(8))


def test_join_is_said_at_once_and_again_and_again() -> None:
    a = Seat(A, AT_A, now=100.0, join_seconds=2.5)
    assert len(a.pull_all()) == 1
    times = []
    for _ in range(3):
        now = a.core.deadline()
        a.core.on_time(now - 0.001)
        assert a.pull_all() == []
        before = a.core.waiting
        a.core.on_time(now)
        assert (before, a.core.waiting) == (False, True)
        (datagram,) = a.pull_all()
        assert join_of(datagram).zid == A
        times.append(now)
    assert times == [102.5, 105.0, 107.5]


def test_the_first_join_goes_before_what_was_said_earlier() -> None:
    a, b = Seat(A, AT_A), Seat(B, AT_B)
    a.say(b"early")
    b.hear(a.pull_all(), a)
    assert b.ear.payloads == [b"early"]


@pytest.mark.parametrize("qos", [False, True])
@pytest.mark.parametrize("size", [1, 20_000])
def test_the_number_in_join_is_the_next_on_the_wire(qos: bool, size: int) -> None:
    """A late joiner hears everything after the JOIN that it heard, also if messages waited then."""
    a = Seat(A, AT_A, qos=qos)
    a.pull_all()
    for index in range(5):
        a.say(b"%d" % index)
        a.pull_all()
    late = Seat(B, AT_B, qos=qos)
    a.say(b"x" * size)  # waits while JOIN becomes due
    a.core.on_time(a.core.deadline())
    sent = a.pull_all()
    for datagram in sent:
        late.hear([datagram], a)
    assert late.members == [A]
    a.say(b"after")
    late.hear(a.pull_all(), a)
    assert late.ear.payloads[-1:] == [b"after"]
    (member,) = late.core.members.values()
    assert [(s.stale, s.gaps) for s in member.lanes.gaps().values()] == [(0, 0)]


def test_join_does_not_wait_for_ever_behind_messages() -> None:
    """After one more interval it leaves at once, with the numbers that come next."""
    a = Seat(A, AT_A, join_seconds=2.5)
    a.pull_all()
    a.core.on_time(2.5)
    for now in (2.5, 4.9):
        a.say(b"x" * 20_000)
        while a.core.outbox.waiting:
            message = read_batch(bytes(a.core.pull(now) or b""))[0]
            assert not isinstance(message, Join)
    assert a.ear.announcements == 0
    a.say(b"waits")
    join = a.core.pull(5.0, True)
    assert join is not None
    assert a.ear.announcements == 1
    assert join_of(bytes(join)).reliable_sn == a.core.outbox.next_sns()[0][0]
    late = Seat(B, AT_B)
    late.hear([bytes(join)], a)
    a.say(b"x" * 20_000)
    late.hear(a.pull_all(5.0), a)
    assert late.ear.payloads == [b"x" * 20_000]
    assert a.ear.announcements == 1


def test_a_client_does_not_join() -> None:
    with pytest.raises(ValueError, match="be a peer or a router"):
        GroupOffer(zid=A, whatami=WireWhatAmI.CLIENT)


@pytest.mark.parametrize("size", [31, 65_536])
def test_batch_sizes_that_no_datagram_has_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        GroupOffer(zid=A, whatami=WireWhatAmI.PEER, batch_size=size)


@pytest.mark.parametrize("value", [-1, 0, 1 << 40])
def test_a_member_that_never_or_always_speaks_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="lease_ms"):
        GroupOffer(zid=A, whatami=WireWhatAmI.PEER, lease_ms=value)
    with pytest.raises(ValueError, match="join_seconds"):
        GroupOffer(zid=A, whatami=WireWhatAmI.PEER, join_seconds=value)


# ---- admission

LANES = tuple((1, 2) for _ in PRIORITIES)
DIFFERENT = [
    ({"version": 8}, "join_mismatch_version"),
    ({"version": 10}, "join_mismatch_version"),
    ({"resolution": 0x09}, "join_mismatch_resolution"),
    ({"resolution": 0x0B}, "join_mismatch_resolution"),
    ({"resolution": 0x02}, "join_mismatch_resolution"),
    ({"batch_size": 8191}, "join_mismatch_batch_size"),
    ({"batch_size": 65_535}, "join_mismatch_batch_size"),
    ({"lane_sns": LANES}, "join_mismatch_lanes"),
    ({"reliable_sn": 1 << 28}, "join_mismatch_sn"),
    ({"best_effort_sn": 1 << 28}, "join_mismatch_sn"),
    ({"zid": A}, "join_own_id"),
]


@pytest.mark.parametrize(("change", "counted"), DIFFERENT)
def test_each_parameter_that_differs_keeps_a_node_out(change: dict[str, Any], counted: str) -> None:
    a = Seat(A, AT_A)
    a.hear([write_batch([replace(JOIN_B, **change)])], AT_B)
    assert (a.members, a.ear.joined_ids) == ([], [])
    assert a.dropped == {counted: 1}
    a.hear([write_batch([JOIN_B])], AT_B)
    assert a.members == [B]


def test_without_lanes_a_node_is_kept_out_of_a_group_with_lanes() -> None:
    a = Seat(A, AT_A, qos=True)
    a.hear([write_batch([JOIN_B])], AT_B)
    a.hear([write_batch([replace(JOIN_B, lane_sns=(*LANES[:7], (1 << 28, 0)))])], AT_B)
    assert a.members == []
    assert a.dropped == {
        "join_mismatch_lanes": 1,
        "join_mismatch_sn": 1,
    }
    a.hear([write_batch([replace(JOIN_B, lane_sns=LANES)])], AT_B)
    assert a.members == [B]


@pytest.mark.parametrize(
    "change",
    [
        {"lease_ms": 1},
        {"lease_ms": 1 << 60},
        {"patch": 0},
        {"patch": 7},
        {"whatami": WireWhatAmI.ROUTER},
        {"extensions": (Unknown(0x0F, None),)},
    ],
)
def test_what_need_not_be_the_same_keeps_nobody_out(change: dict[str, Any]) -> None:
    a = Seat(A, AT_A)
    a.hear([write_batch([replace(JOIN_B, **change)])], AT_B)
    assert a.members == [B]
    (member,) = a.core.members.values()
    assert 0.1 <= member.lease <= 600


def test_members_have_a_limit() -> None:
    a = Seat(A, AT_A, max_members=3)
    for port in range(5):
        a.hear([write_batch([replace(JOIN_B, zid=WireZenohId(bytes([port + 1])))])], ("h", port))
    assert len(a.members) == 3
    assert a.dropped == {"join_member_limit": 2}
    a.hear([write_batch([Close()])], ("h", 0))
    a.hear([write_batch([JOIN_B])], AT_B)
    assert B in a.members


# ---- what members say


def test_frames_of_strangers_are_dropped_and_counted() -> None:
    a, b = Seat(A, AT_A), Seat(B, AT_B)
    join = b.pull_all()
    b.say(b"x")
    frame = b.pull_all()
    b.say(b"y" * 20_000)
    fragments = b.pull_all()
    a.hear([*frame, *fragments, write_batch([KeepAlive()]), write_batch([Close()])], b)
    assert a.ear.heard == []
    assert a.dropped == {
        "frame_not_joined": 1,
        "message_not_joined": len(fragments) + 2,
    }
    a.hear(join, b)
    b.say(b"z")
    a.hear(b.pull_all(), b)
    assert a.ear.payloads == [b"z"]


def test_a_member_is_its_address_not_its_id() -> None:
    """Equal bytes from another address are those of a stranger."""
    a, b = pair()
    b.say(b"x")
    a.hear(b.pull_all(), AT_C)
    assert a.ear.heard == []
    assert a.dropped == {"frame_not_joined": 1}


@pytest.mark.parametrize("priority", PRIORITIES)
@pytest.mark.parametrize("reliable", [True, False])
@pytest.mark.parametrize("size", [1, 20_000])
def test_every_lane_carries_messages(priority: WirePriority, reliable: bool, size: int) -> None:
    a, b = pair(qos=True)
    for index in range(3):
        b.say(bytes([index]) * size, QoS(priority, WireCongestionControl.BLOCK), reliable)
        sent = b.pull_all()
        assert all(len(datagram) <= DEFAULT_BATCH_SIZE for datagram in sent)
        a.hear(sent, b)
    assert a.ear.heard == [(B, priority, reliable, bytes([index]) * size) for index in range(3)]
    (member,) = a.core.members.values()
    gaps = member.lanes.gaps()[priority, reliable]
    assert (gaps.gaps, gaps.stale) == (0, 0)


def test_without_lanes_priorities_share_one() -> None:
    a, b = pair()
    for priority in PRIORITIES:
        b.say(bytes([priority]), QoS(priority, WireCongestionControl.BLOCK))
    a.hear(b.pull_all(), b)
    assert a.ear.heard == [(B, WirePriority.DATA, True, bytes([p])) for p in PRIORITIES]


def test_a_lane_where_there_are_none_ends_the_membership() -> None:
    a, b = pair()
    frame = Frame(70, True, WirePriority.REAL_TIME, [Push(WireExpr(0, "k"), Put(b"x"))])
    a.hear([write_batch([frame])], b)
    assert (a.members, a.ear.heard) == ([], [])
    ((zid, why),) = a.ear.gone
    assert (zid, why.reason) == (B, CloseReason.INVALID)


@pytest.mark.parametrize("bits", RESOLUTIONS)
def test_numbers_wrap_at_the_resolution(bits: int) -> None:
    resolution = RESOLUTIONS[bits]
    mask = SN_MASKS[resolution & 3]
    a = Seat(A, AT_A, resolution=resolution)
    b = Seat(B, AT_B, resolution=resolution, first_sn=mask - 3)
    a.hear(b.pull_all(), b)
    assert a.members == [B]
    sent = [b"%d" % index for index in range(10)]
    numbers = []
    for payload in sent:
        b.say(payload)
        datagrams = b.pull_all()
        (frame,) = read_batch(datagrams[0])
        assert isinstance(frame, Frame)
        numbers.append(frame.sn)
        a.hear(datagrams, b)
    assert a.ear.payloads == sent
    assert numbers == [mask - 2 + index & mask for index in range(10)]


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_number_beyond_the_resolution_is_not_decoded(bits: int) -> None:
    resolution = RESOLUTIONS[bits]
    a, b = pair(resolution=resolution)
    too_large = SN_MASKS[resolution & 3] + 1
    message = Push(WireExpr(0, "k"), Put(b"x"))
    a.hear([write_batch([Frame(too_large, True, messages=[message])])], b)
    a.hear([write_batch([Fragment(too_large, payload=b"x")])], b)
    assert (a.ear.heard, a.members) == ([], [B])
    assert a.dropped == {"datagram_invalid": 2}


def test_gaps_and_repetitions_are_counted_for_each_member() -> None:
    a, b = pair()
    c = Seat(C, AT_C)
    a.hear(c.pull_all(), c)
    sent: dict[Seat, list[bytes]] = {b: [], c: []}
    for seat, datagrams in sent.items():
        for index in range(6):
            seat.say(b"%d" % index)
            datagrams += seat.pull_all()
    a.hear(sent[b][:2] + sent[b][4:], b)
    a.hear([*sent[c][:3], sent[c][1], *sent[c][3:]], c)
    lanes = {m.zid: m.lanes.gaps()[WirePriority.DATA, True] for m in a.core.members.values()}
    counted = {zid: (s.gaps, s.missing, s.stale) for zid, s in lanes.items()}
    assert counted == {B: (1, 2, 0), C: (0, 0, 1)}
    heard = [(zid, payload) for zid, _, _, payload in a.ear.heard]
    assert heard == [(B, b"%d" % i) for i in (0, 1, 4, 5)] + [(C, b"%d" % i) for i in range(6)]


def test_a_lost_fragment_costs_its_message_alone() -> None:
    a, b = pair()
    b.say(b"x" * 50_000)
    pieces = b.pull_all()
    assert len(pieces) > 3
    a.hear(pieces[:2] + pieces[3:], b)
    b.say(b"y" * 50_000)
    a.hear(b.pull_all(), b)
    assert a.ear.payloads == [b"y" * 50_000]
    (member,) = a.core.members.values()
    assert sum(member.counters.receive_dropped.values()) >= 1
    assert a.memory.held == 0


def test_unfinished_messages_are_let_go_of_with_their_sender() -> None:
    a, b = pair()
    b.say(b"x" * 50_000)
    a.hear(b.pull_all()[:3], b)
    assert a.memory.held > 0
    a.hear([write_batch([Close()])], b)
    assert (a.members, a.memory.held) == ([], 0)


@pytest.mark.parametrize("reliable", [True, False])
def test_an_unfinished_message_outlives_one_lease_but_not_two(reliable: bool) -> None:
    a, b = pair()
    b.say(b"x" * 50_000, reliable=reliable)
    pieces = b.pull_all()
    a.hear(pieces[:3], b)
    (member,) = a.core.members.values()

    def pass_time(start: float, stop: float) -> None:
        for now in range(int(start * 10), int(stop * 10) + 1):
            a.hear([write_batch([KeepAlive()])], b, now / 10)
            a.core.on_time(now / 10)
            a.core.join_by(now / 10)  # Others join all the time.

    pass_time(0.0, 10.0)
    assert a.memory.held > 0
    for now in range(100, 300):
        a.core.renew_leases(now / 10)  # This node does not read.
        a.core.on_time(now / 10)
    assert a.memory.held > 0
    pass_time(30.0, 50.0)
    assert (a.members, a.memory.held) == ([B], 0)
    assert member.counters.receive_dropped == {DropReason.FRAGMENT_STALLED: 1}


def test_fragments_of_two_members_do_not_mix() -> None:
    a, b = pair()
    c = Seat(C, AT_C, first_sn=70)
    a.hear(c.pull_all(), c)
    b.say(b"b" * 20_000)
    c.say(b"c" * 20_000)
    for from_b, from_c in zip(b.pull_all(), c.pull_all(), strict=True):
        a.hear([from_b], b)
        a.hear([from_c], c)
    assert a.ear.payloads == [b"b" * 20_000, b"c" * 20_000]


# ---- compression


def test_compression_puts_a_header_before_every_datagram() -> None:
    a, b = Seat(A, AT_A, compression=True), Seat(B, AT_B, compression=True)
    joins = b.pull_all()
    b.say(b"x" * 4000)
    b.say(b"y" * 20_000)
    messages = b.pull_all()
    b.core.close()
    close = b.pull_all()
    for datagram in joins + messages + close:
        assert datagram[0] in (0, 1)
        assert read_batch(uncompress(datagram))
    assert min(map(len, messages)) < 100  # it does compress
    a.hear(joins + messages, b)
    assert a.ear.payloads == [b"x" * 4000, b"y" * 20_000]
    a.hear(close, b)
    assert a.members == []


@pytest.mark.parametrize("compressing", [True, False])
def test_who_compresses_and_who_does_not_stay_apart(compressing: bool) -> None:
    a = Seat(A, AT_A, compression=compressing)
    b = Seat(B, AT_B, compression=not compressing)
    for _ in range(3):
        b.core.on_time(b.core.deadline())
        b.say(b"x")
        a.hear(b.pull_all(), b)
    assert (a.members, a.ear.heard) == ([], [])
    assert sum(a.dropped.values()) >= 3


def test_a_bomb_is_not_unpacked() -> None:
    a = Seat(A, AT_A, compression=True)
    a.hear([bytes(compress(bytes(10_000_000)))], AT_B)
    assert a.dropped == {"datagram_invalid": 1}


# ---- leaving


def test_who_is_silent_for_its_lease_is_gone() -> None:
    a = Seat(A, AT_A)
    a.hear([write_batch([replace(JOIN_B, lease_ms=2000)])], AT_B, now=100.0)
    a.core.on_time(101.999)
    assert a.members == [B]
    assert a.core.deadline() <= 102.0
    a.core.on_time(102.0)
    ((zid, why),) = a.ear.gone
    assert (zid, why.reason, why.by_peer) == (B, CloseReason.EXPIRED, False)
    assert "nothing came for 2 s" in str(why)


@pytest.mark.parametrize(
    "sign",
    [
        write_batch([replace(JOIN_B, lease_ms=2000)]),
        write_batch([KeepAlive()]),
        write_batch([Frame(3, True, messages=[Push(WireExpr(0, "k"), Put(b"x"))])]),
        write_batch([Fragment(3, more=True, first=True, payload=b"x")]),
    ],
    ids=["JOIN", "KEEP_ALIVE", "FRAME", "FRAGMENT"],
)
def test_every_sign_of_life_renews_the_lease(sign: bytes) -> None:
    a = Seat(A, AT_A)
    a.hear([write_batch([replace(JOIN_B, lease_ms=2000)])], AT_B, now=100.0)
    a.hear([sign], AT_B, now=101.5)
    a.core.on_time(103.4)
    assert a.members == [B]
    a.core.on_time(103.5)
    assert a.members == []


def test_close_says_why_a_member_left_and_it_may_come_back() -> None:
    a, b = pair()
    b.core.close(CloseReason.UNRESPONSIVE)
    (farewell,) = b.pull_all()
    assert read_batch(farewell) == [Close(CloseReason.UNRESPONSIVE)]
    a.hear([farewell], b)
    ((zid, why),) = a.ear.gone
    assert (zid, why.reason, why.by_peer) == (B, CloseReason.UNRESPONSIVE, True)
    again = Seat(B, AT_B, first_sn=900)
    a.hear(again.pull_all(), again)
    again.say(b"back")
    a.hear(again.pull_all(), again)
    assert (a.members, a.ear.payloads) == ([B], [b"back"])


@pytest.mark.parametrize("bits", RESOLUTIONS)
@pytest.mark.parametrize("qos", [False, True])
def test_a_member_that_started_again_behind_its_numbers_is_heard(bits: int, qos: bool) -> None:
    offer = {"resolution": RESOLUTIONS[bits], "qos": qos}
    half = SN_MASKS[RESOLUTIONS[bits] & 3] >> 1
    a, b = Seat(A, AT_A, **offer), Seat(B, AT_B, first_sn=half - 2, **offer)
    a.hear(b.pull_all(), b)
    b.say(b"1")
    b.say(b"2" * 20_000)
    first = b.pull_all()
    a.hear(first[:-1], b)
    again = Seat(B, AT_B, first_sn=2, **offer)
    a.hear(again.pull_all(), again)
    assert (a.members, a.ear.joined_ids, a.memory.held) == ([B], [B, B], 0)
    again.say(b"3")
    a.hear(again.pull_all(), again)
    assert a.ear.payloads == [b"1", b"3"]
    ((zid, why),) = a.ear.gone
    assert (zid, why.reason, why.by_peer) == (B, CloseReason.GENERIC, False)


def test_a_join_that_is_late_brings_nothing_twice() -> None:
    a, b = pair()
    b.core.on_time(b.core.deadline())
    late_join = b.pull_all()
    for index in range(40):
        b.say(b"%d" % index)
        sent = b.pull_all()
        a.hear([*sent, *late_join, *sent], b)
    assert a.ear.payloads == [b"%d" % index for index in range(40)]
    assert a.ear.joined_ids == [B]


@pytest.mark.parametrize("bits", RESOLUTIONS)
@pytest.mark.parametrize("qos", [False, True])
def test_a_join_that_leaves_out_fragments_is_not_that_of_a_restart(bits: int, qos: bool) -> None:
    """Rust announces the number after its last FRAME, however many FRAGMENTs it sent since."""
    offer = {"resolution": RESOLUTIONS[bits], "qos": qos}
    a, b = pair(**offer)
    b.say(b"1")
    a.hear(b.pull_all(), b)
    b.core.on_time(b.core.deadline())
    (lagging_join,) = b.pull_all()
    b.say(b"2" * 500_000)
    fragments = b.pull_all()
    b.say(b"3" * 500_000)
    fragments += b.pull_all()
    assert len(fragments) > REORDER_WINDOW
    for index, data in enumerate(fragments):
        a.hear([data, *[lagging_join] * (index % 10 == 0)], b)
    a.hear([lagging_join], b)
    assert [payload[:1] for payload in a.ear.payloads] == [b"1", b"2", b"3"]
    b.say(b"4")
    a.hear(b.pull_all(), b)
    assert a.ear.payloads[-1] == b"4"
    assert (a.ear.joined_ids, a.ear.gone) == ([B], [])


def test_after_close_nothing_is_said_or_heard() -> None:
    a, b = pair()
    a.say(b"too late")
    a.core.close()
    assert [read_batch(d) for d in a.pull_all()] == [[Close()]]
    assert [(zid, why.by_peer) for zid, why in a.ear.gone] == [(B, False)]
    a.core.on_time(1000.0)
    b.core.on_time(1000.0)
    a.hear(b.pull_all(), b)
    assert (a.pull_all(), a.members) == ([], [])


@pytest.mark.parametrize(
    "change",
    [
        {"zid": C},
        {"whatami": WireWhatAmI.ROUTER},
        {"patch": 0},
        {"resolution": 0x09},
        {"batch_size": 4000},
        {"version": 10},
        {"lane_sns": LANES},
    ],
)
def test_a_join_that_changes_ends_the_membership(change: dict[str, Any]) -> None:
    a = Seat(A, AT_A)
    a.hear([write_batch([JOIN_B])], AT_B)
    a.hear([write_batch([replace(JOIN_B, **change)])], AT_B)
    ((zid, why),) = a.ear.gone
    assert (zid, why.reason, a.members) == (B, CloseReason.INVALID, [])
    assert a.dropped == {"join_changed": 1}


def test_a_join_repeated_with_other_numbers_changes_nothing_but_the_lease() -> None:
    a, b = pair()
    b.say(b"1")
    first = b.pull_all()
    b.say(b"2")
    second = b.pull_all()
    a.hear(first, b)
    a.hear([write_batch([replace(JOIN_B, lease_ms=4000, reliable_sn=9999)])], b)
    a.hear(second, b)
    assert a.ear.payloads == [b"1", b"2"]
    (member,) = a.core.members.values()
    assert member.lease == 4.0


# ---- hostile

someone = st.sampled_from([AT_A, AT_B, AT_C])
joins = st.builds(
    Join,
    st.sampled_from([A, B, C]),
    st.sampled_from([WireWhatAmI.ROUTER, WireWhatAmI.PEER, WireWhatAmI.CLIENT]),
    st.integers(0, 1 << 63),
    st.integers(0, 0xFFFF_FFFF),
    st.integers(0, 0xFFFF_FFFF),
    st.sampled_from([VERSION, 0, 255]),
    st.sampled_from([0x0A, 0x08, 0x0B]),
    st.sampled_from([8192, 0, 65_535]),
    st.sampled_from([None, LANES]),
    patch=st.integers(0, 255),
)
fragments = st.builds(
    Fragment,
    st.integers(0, 0xFFFF_FFFF),
    reliable=st.booleans(),
    more=st.booleans(),
    priority=st.sampled_from(PRIORITIES),
    first=st.booleans(),
    drop=st.booleans(),
    payload=st.binary(max_size=20),
)
frames = st.builds(
    Frame,
    st.integers(0, 0xFFFF_FFFF),
    st.booleans(),
    st.sampled_from(PRIORITIES),
    st.just([Push(WireExpr(0, "k"), Put(b"x"))]),
)
others = st.sampled_from([KeepAlive(), Close(), Close(99), Init(B, WireWhatAmI.PEER)])
one_message: st.SearchStrategy[Any] = joins | fragments | frames | others
batches = st.lists(one_message.map(lambda message: write_batch([message])), max_size=4).map(
    b"".join
)
datagrams = st.lists(st.tuples(batches | st.binary(max_size=60), someone), max_size=20)


@given(said=datagrams, qos=st.booleans(), compression=st.booleans(), cut=st.integers(0, 50))
def test_no_datagram_raises_or_harms_another_member(
    said: list[tuple[bytes, Address]], qos: bool, compression: bool, cut: int
) -> None:
    a = Seat(A, AT_A, qos=qos, compression=compression)
    honest = Seat(WireZenohId(b"\xd1"), ("192.0.2.4", 1004), qos=qos, compression=compression)
    a.hear(honest.pull_all(), honest)
    for number, (data, sender) in enumerate(said):
        data = bytes(compress(data)) if compression and number % 2 else data
        a.hear([data, data[:cut]], sender, now=number / 10)
    honest.say(b"h" * 10_000)
    a.hear(honest.pull_all(), honest, now=3.0)
    assert a.ear.heard[-1][0] == honest.core.offer.zid
    assert a.ear.payloads[-1] == b"h" * 10_000
    a.core.on_time(1e6)
    assert (a.members, a.memory.held) == ([], 0)
