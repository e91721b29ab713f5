"""Establishment: what is agreed, every refusal with its CLOSE reason, and recorded handshakes."""

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from tests.golden.vectors import Vector, load, load_all
from tests.support.transport_pair import (
    DIALLER,
    LISTENER,
    START,
    Hand,
    Pair,
    Side,
    chance,
    offer,
    put,
    read_sent,
)
from zenlake.errors import AuthError, InvalidLocator, SessionClosed, SessionRefused
from zenlake.transport.auth import Entropy
from zenlake.transport.establishment import (
    COOKIE_BYTES,
    MAX_COOKIE_BYTES,
    Acceptor,
    HandshakeState,
    Opener,
    reason_text,
)
from zenlake.transport.link_qos import LinkQos
from zenlake.transport.offer import MAX_LEASE, MIN_BATCH_SIZE, MIN_LEASE, SN_MASKS, Offer
from zenlake.transport.usrpwd import UserPassword
from zenlake.wire.batch import TransportMessage, read_batch, walk, write_batch
from zenlake.wire.close import Close
from zenlake.wire.cursor import ByteReader
from zenlake.wire.enums import CloseReason, WireWhatAmI
from zenlake.wire.extensions import Unknown
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing, to_stream, uncompress
from zenlake.wire.init import Init
from zenlake.wire.join import Join
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.locator import EndPoint
from zenlake.wire.network import NETWORK
from zenlake.wire.oam import TransportOam
from zenlake.wire.open import Open
from zenlake.wire.zenohid import WireZenohId

GENERIC, INVALID = CloseReason.GENERIC, CloseReason.INVALID
MTU = 0xFFFF

MODES: list[dict[str, Any]] = [
    {"qos": qos, "low_latency": low_latency, "compression": compression, "patch": patch}
    for (qos, low_latency), compression, patch in product(
        [(True, False), (False, False), (False, True)], (False, True), (0, 1)
    )
]


def opener(**options: Any) -> Side:
    side = Side(Opener(offer(DIALLER, **options), chance(), mtu=MTU))
    side.pull_all()
    return side


def acceptor(**options: Any) -> Side:
    return Side(Acceptor(offer(**options), chance(1), mtu=MTU))


def say(side: Side, message: TransportMessage) -> None:
    side.take(to_stream([write_batch([message])], Framing.STREAM))


def hear(side: Side) -> list[TransportMessage]:
    return [m for data in side.pull_all() for m in read_sent(data, Framing.STREAM)]


def init_syn(**fields: Any) -> Init:
    return Init(DIALLER, WireWhatAmI.PEER, **fields)


def init_ack(**fields: Any) -> Init:
    fields.setdefault("cookie", b"cookie")
    return Init(LISTENER, WireWhatAmI.PEER, **fields)


def half_open(**options: Any) -> tuple[Side, bytes]:
    """An acceptor that has answered INIT, and its cookie."""
    side = acceptor(**options)
    say(side, init_syn())
    (ack,) = hear(side)
    assert isinstance(ack, Init)
    assert ack.cookie is not None
    return side, ack.cookie


# What is agreed


@pytest.mark.parametrize("dials", MODES, ids=str)
def test_an_option_holds_if_both_offer_it(dials: dict[str, Any]) -> None:
    for accepts in MODES:
        pair = Pair(offer(DIALLER, **dials), offer(**accepts))
        assert pair.a.end is None
        assert pair.b.end is None
        low_latency = bool(dials["low_latency"] and accepts["low_latency"])
        compression = bool(dials["compression"] and accepts["compression"])
        for agreed in (pair.a.agreed, pair.b.agreed):
            assert agreed.qos == (dials["qos"] and accepts["qos"])
            assert agreed.low_latency == low_latency
            assert agreed.compression == (compression and not low_latency)
            assert agreed.patch == min(dials["patch"], accepts["patch"])
        for source, target in ((pair.a, pair.b), (pair.b, pair.a)):
            pair.push(source, put(b"it works"))
            pair.carry()
            assert target.heard.messages == [put(b"it works")]


def test_the_opener_says_what_it_offers_and_the_acceptor_what_both_do() -> None:
    ours = offer(DIALLER, low_latency=True, compression=True, region_name="north")
    (init,) = read_sent(Side(Opener(ours, chance(), mtu=2048)).pull_all()[0], Framing.STREAM)
    assert init == Init(
        DIALLER,
        WireWhatAmI.PEER,
        batch_size=2048,
        low_latency=True,
        compression=True,
        patch=1,
        region_name="north",
    )
    side = acceptor()
    say(side, init_syn(low_latency=True, compression=True, qos=True, patch=5, batch_size=3000))
    (ack,) = hear(side)
    assert isinstance(ack, Init)
    assert (ack.low_latency, ack.compression, ack.qos, ack.patch) == (False, False, True, 1)
    assert ack.batch_size == 3000


def test_resolutions_are_lowered_field_by_field_and_never_raised() -> None:
    for mine, theirs in product(range(16), repeat=2):
        pair = Pair(offer(DIALLER, resolution=mine), offer(resolution=theirs))
        expected = min(mine & 3, theirs & 3) | min(mine >> 2, theirs >> 2) << 2
        assert pair.a.agreed.resolution == pair.b.agreed.resolution == expected
        for agreed in (pair.a.agreed, pair.b.agreed):
            assert agreed.sn_mask == SN_MASKS[expected & 3]
            assert 0 <= agreed.initial_sn <= agreed.sn_mask
        assert pair.a.agreed.initial_sn == pair.b.agreed.peer_initial_sn
        assert pair.b.agreed.initial_sn == pair.a.agreed.peer_initial_sn


@pytest.mark.parametrize(
    ("dials", "accepts", "mtu", "agreed"),
    [
        (65535, 65535, 65535, 65535),
        (100, 65535, 65535, 100),
        (65535, 100, 65535, 100),
        (65535, 65535, 1400, 1400),
        (1000, 2000, 1400, 1000),
        (MIN_BATCH_SIZE, 65535, 65535, MIN_BATCH_SIZE),
    ],
)
def test_the_least_batch_size_holds(dials: int, accepts: int, mtu: int, agreed: int) -> None:
    pair = Pair(offer(DIALLER, batch_size=dials), offer(batch_size=accepts), mtu=mtu)
    assert pair.a.agreed.batch_size == pair.b.agreed.batch_size == agreed


def test_leases_hold_one_way_each() -> None:
    pair = Pair(offer(DIALLER, lease_ms=1000), offer(lease_ms=60_000))
    assert (pair.a.agreed.lease, pair.a.agreed.peer_lease) == (1.0, 60.0)
    assert (pair.b.agreed.lease, pair.b.agreed.peer_lease) == (60.0, 1.0)


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (0, MIN_LEASE),
        (1, MIN_LEASE),
        (100, 0.1),
        (10_000, 10.0),
        (600_000, MAX_LEASE),
        (600_001, MAX_LEASE),
        (1 << 63, MAX_LEASE),
        ((1 << 63) * 1000, MAX_LEASE),
    ],
)
def test_a_lease_beyond_the_range_is_brought_into_it(said: int, taken: float) -> None:
    assert Hand(lease_ms=said).side.agreed.peer_lease == taken
    side = opener()
    say(side, init_ack())
    say(side, Open(said, 0))
    assert side.agreed.peer_lease == taken


def test_names_and_bounds_are_passed_on() -> None:
    pair = Pair(
        offer(DIALLER, region_name="a", remote_bound=1), offer(region_name="b" * 32, remote_bound=0)
    )
    assert (pair.a.agreed.region_name, pair.a.agreed.remote_bound) == ("b" * 32, 0)
    assert (pair.b.agreed.region_name, pair.b.agreed.remote_bound) == ("a", 1)
    assert pair.a.agreed.zid == LISTENER
    assert pair.b.agreed.zid == DIALLER
    plain = Pair(offer(DIALLER), offer())
    assert (plain.a.agreed.region_name, plain.a.agreed.remote_bound) == (None, None)


@pytest.mark.parametrize(
    ("qos_link", "lanes", "link_qos"),
    [
        (0, False, LinkQos()),
        (1, True, LinkQos()),
        (0b010, True, LinkQos((0, 0))),
        (0x380A, True, LinkQos((1, 7))),
        (0b100, True, LinkQos(reliable=False)),
        (0x8_0004, True, LinkQos(reliable=True)),
        (0x8_3016, True, LinkQos((2, 6), True)),
        (0x8_3017, True, LinkQos((2, 6), True)),
    ],
)
def test_lanes_can_be_asked_for_with_the_link_s_data(
    qos_link: int, lanes: bool, link_qos: LinkQos
) -> None:
    """The low three bits are a tag: priorities or a reliability given mean lanes, bit 0 or not."""
    agreed = Hand(qos=False, qos_link=qos_link).side.agreed
    assert (agreed.qos, agreed.link_qos) == (lanes, link_qos)


QOS_OF_LINKS = [
    # opener, acceptor, agreed; None: refused
    ("", "", ""),
    ("prio=1-3", "", "prio=1-3"),
    ("", "prio=1-3", "prio=1-3"),
    ("prio=1-3", "prio=1-3", "prio=1-3"),
    ("prio=1-3", "prio=0-4", "prio=1-3"),
    ("prio=1-3", "prio=2-3", None),
    ("prio=4", "prio=4-5;rel=1", "prio=4-4;rel=1"),
    ("rel=0", "", "rel=0"),
    ("", "rel=0", "rel=0"),
    ("rel=1", "rel=1", "rel=1"),
    ("rel=1", "rel=0", None),
    ("rel=0", "rel=1", None),
    ("prio=1-3;rel=0", "prio=1-4;rel=0", "prio=1-3;rel=0"),
]


def qos_of(metadata: str) -> LinkQos:
    return LinkQos.from_metadata(EndPoint(f"tcp/h:1{'?' * bool(metadata)}{metadata}").metadata)


@pytest.mark.parametrize(("dials", "accepts", "agreed"), QOS_OF_LINKS)
def test_both_ends_of_a_link_agree_on_what_it_is_for(
    dials: str, accepts: str, agreed: str | None
) -> None:
    a = Side(Opener(offer(DIALLER), chance(), mtu=MTU, link_qos=qos_of(dials)))
    b = Side(Acceptor(offer(), chance(1), mtu=MTU, link_qos=qos_of(accepts)))
    for _ in range(2):
        for source, target in ((a, b), (b, a)):
            for data in source.pull_all():
                target.take(data)
    if agreed is None:
        assert b.end is not None
        assert (b.end.reason, b.end.by_peer) == (GENERIC, False)
        assert "the opener's endpoint has" in str(b.end)
        assert a.end is not None
        assert (a.end.reason, a.end.by_peer) == (GENERIC, True)
    else:
        assert a.agreed.link_qos == b.agreed.link_qos == qos_of(agreed)
        assert a.agreed.qos
        assert b.agreed.qos


@pytest.mark.parametrize(("theirs", "ours", "agreed"), QOS_OF_LINKS)
def test_an_opener_refuses_an_acceptor_that_contradicts_it(
    theirs: str, ours: str, agreed: str | None
) -> None:
    """An acceptor that only says what it has, without a check of its own."""
    side = Side(Opener(offer(DIALLER), chance(), mtu=MTU, link_qos=qos_of(theirs)))
    side.pull_all()
    value = qos_of(ours).encode()
    say(side, init_ack(qos=value is None, qos_link=value))
    if agreed is None:
        assert_refused(side, GENERIC, "the opener's endpoint has")
    else:
        say(side, Open(1000, 0))
        assert side.agreed.link_qos == qos_of(agreed)


def test_a_link_has_no_qos_if_one_side_wants_no_lanes() -> None:
    side = Side(Opener(offer(DIALLER), chance(), mtu=MTU, link_qos=qos_of("prio=1-3")))
    assert [m.qos_link for m in hear(side) if isinstance(m, Init)] == [0b010 | 1 << 3 | 3 << 11]
    say(side, init_ack())
    say(side, Open(1000, 0))
    assert (side.agreed.qos, side.agreed.link_qos) == (False, LinkQos())
    side = Side(Opener(offer(DIALLER, qos=False), chance(), mtu=MTU, link_qos=qos_of("rel=1")))
    assert [(m.qos, m.qos_link) for m in hear(side) if isinstance(m, Init)] == [(False, None)]


@pytest.mark.parametrize(
    "metadata",
    ["prio=", "prio=8", "prio=1-8", "prio=3-1", "prio=1-2-3", "prio=a", "prio=-1", "rel=2", "rel="],
)
def test_an_endpoint_with_a_qos_that_does_not_exist_is_refused(metadata: str) -> None:
    with pytest.raises(InvalidLocator, match=r"write"):
        qos_of(metadata)


@pytest.mark.parametrize("metadata", ["prio=+2-06;rel=01", "rel=+1;prio=02-6", ";prio=2-6;rel=1;"])
def test_the_numbers_of_a_qos_may_be_written_as_rust_reads_them(metadata: str) -> None:
    assert qos_of(metadata) == LinkQos((2, 6), True)


@pytest.mark.parametrize("metadata", ["prio=1-7", "prio=2-6;rel=1", "rel=0", ""])
def test_a_qos_is_written_as_it_is_read(metadata: str) -> None:
    link_qos = qos_of(metadata)
    assert link_qos.metadata() == "?" * bool(metadata) + metadata
    value = link_qos.encode()
    assert LinkQos.decode(1 if value is None else value) == link_qos


def test_the_least_that_can_be_said_is_enough() -> None:
    side = opener(qos=False, patch=0)
    say(side, Init(WireZenohId(b"\x01"), WireWhatAmI.ROUTER, cookie=b""))
    (opening,) = hear(side)
    assert isinstance(opening, Open)
    assert opening.cookie == b""
    say(side, Open(10_000, 0))
    assert side.heard.opens == 1
    assert side.agreed.whatami is WireWhatAmI.ROUTER


def test_the_opener_does_not_look_at_the_version_of_the_answer() -> None:
    side = opener()
    say(side, init_ack(version=0x42))
    assert side.end is None
    assert isinstance(hear(side)[0], Open)


def test_what_an_acceptor_raises_by_the_ack_s_options_does_not_hold() -> None:
    side = opener(qos=False)
    say(side, init_ack(qos=True, low_latency=True, compression=True, batch_size=65535))
    say(side, Open(1000, 0))
    agreed = side.agreed
    assert (agreed.qos, agreed.low_latency, agreed.compression) == (False, False, False)


def test_extensions_that_nobody_knows_change_nothing() -> None:
    side = acceptor()
    say(side, init_syn(extensions=(Unknown(0x4D, b"?"),), shm=b"\x01", multilink=b"\x02"))
    (ack,) = hear(side)
    assert isinstance(ack, Init)
    assert (ack.shm, ack.multilink, ack.extensions) == (None, None, ())


def test_two_handshakes_have_two_cookies_and_first_numbers() -> None:
    cookies = set()
    draw = chance()
    for _ in range(100):
        side = Side(Acceptor(offer(), draw, mtu=MTU))
        say(side, init_syn())
        (ack,) = hear(side)
        assert isinstance(ack, Init)
        assert ack.cookie is not None
        assert len(ack.cookie) == COOKIE_BYTES
        cookies.add(ack.cookie)
    assert len(cookies) == 100


@pytest.mark.parametrize(
    "options",
    [
        {"qos": True, "low_latency": True},
        {"resolution": 16},
        {"resolution": -1},
        {"batch_size": MIN_BATCH_SIZE - 1},
        {"batch_size": 65536},
        {"lease_ms": 99},
        {"lease_ms": 600_001},
        {"patch": 2},
        {"remote_bound": 2},
        {"region_name": ""},
        {"region_name": "\ud800"},
        {"region_name": "é" * 17},
        {"whatami": WireWhatAmI.PEER | WireWhatAmI.ROUTER},
    ],
    ids=str,
)
def test_an_offer_that_cannot_be_made_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"low latency|resolution|_|patch|whatami|surrogates"):
        offer(**options)


# Refusals


def assert_refused(side: Side, reason: int, match: str = "") -> None:
    assert isinstance(side.end, SessionRefused)
    assert not side.end.by_peer
    assert side.end.reason == reason
    assert match in str(side.end)
    assert hear(side) == [Close(reason)]
    assert side.heard.opens == 0
    assert side.core.ended
    assert side.core.agreement is None
    side.core.on_time(START + 3600)
    say(side, KeepAlive())
    assert side.pull_all() == [], "nothing comes after CLOSE"


ACCEPTOR_REFUSALS: list[tuple[str, Init, int]] = [
    ("version", init_syn(version=8), INVALID),
    ("batches of 0", init_syn(batch_size=0), INVALID),
    ("batches of 1", init_syn(batch_size=1), INVALID),
    ("batches of 31", init_syn(batch_size=MIN_BATCH_SIZE - 1), INVALID),
    ("QoSLink", init_syn(qos=True, qos_link=1), GENERIC),
    ("QoSLink", init_syn(qos_link=0b1001), GENERIC),
    ("priorities 8 to 7", init_syn(qos_link=0b010 | 8 << 3 | 7 << 11), GENERIC),
    ("priorities 1 to 8", init_syn(qos_link=0b010 | 1 << 3 | 8 << 11), GENERIC),
]


@pytest.mark.parametrize(("why", "message", "reason"), ACCEPTOR_REFUSALS)
def test_the_acceptor_refuses_an_init(why: str, message: Init, reason: int) -> None:
    side = acceptor()
    say(side, message)
    assert_refused(side, reason, why)


OPENER_REFUSALS: list[tuple[str, Init, int]] = [
    ("resolution", init_ack(resolution=0x0B), INVALID),
    ("resolution", init_ack(resolution=0x0E), INVALID),
    ("patch", init_ack(patch=2), GENERIC),
    ("batches of 0", init_ack(batch_size=0), INVALID),
    ("batches of 1", init_ack(batch_size=1), INVALID),
    ("QoSLink", init_ack(qos=True, qos_link=0), GENERIC),
    ("itself", Init(DIALLER, WireWhatAmI.PEER, cookie=b"c"), CloseReason.CONNECTION_TO_SELF),
    ("cookie", init_ack(cookie=b"x" * (MAX_COOKIE_BYTES + 1)), INVALID),
    ("cookie", init_ack(cookie=b"x" * 65_500), INVALID),
]


@pytest.mark.parametrize(("why", "message", "reason"), OPENER_REFUSALS)
def test_the_opener_refuses_an_init(why: str, message: Init, reason: int) -> None:
    side = opener()
    say(side, message)
    assert_refused(side, reason, why)


def test_the_longest_cookie_goes_back() -> None:
    side = opener()
    say(side, init_ack(cookie=b"x" * MAX_COOKIE_BYTES))
    (opening,) = hear(side)
    assert isinstance(opening, Open)
    assert opening.cookie == b"x" * MAX_COOKIE_BYTES


def test_the_opener_refuses_another_peer_than_was_said() -> None:
    handshake = Opener(offer(DIALLER), chance(), mtu=MTU, expect=WireZenohId(b"somebody"))
    side = Side(handshake)
    side.pull_all()
    say(side, init_ack())
    assert_refused(side, INVALID, str(LISTENER))


@pytest.mark.parametrize("bits", range(3))  # of 32 bits no number is beyond
def test_a_first_number_beyond_the_resolution_is_refused(bits: int) -> None:
    mask = SN_MASKS[bits]
    side, cookie = half_open(resolution=bits)
    say(side, Open(1000, mask + 1, cookie))
    assert_refused(side, INVALID, str(mask + 1))
    dialler = opener(resolution=bits)
    say(dialler, init_ack(resolution=bits))
    hear(dialler)
    say(dialler, Open(1000, mask + 1))
    assert_refused(dialler, INVALID, str(mask + 1))


@pytest.mark.parametrize("bound", [2, 255, 1 << 40])
def test_a_bound_without_meaning_is_refused(bound: int) -> None:
    side, cookie = half_open()
    say(side, Open(1000, 0, cookie, remote_bound=bound))
    assert_refused(side, GENERIC, "bound")
    dialler = opener()
    say(dialler, init_ack())
    hear(dialler)
    say(dialler, Open(1000, 0, remote_bound=bound))
    assert_refused(dialler, GENERIC, "bound")


def test_an_own_id_is_refused_after_open() -> None:
    side = acceptor()
    say(side, Init(LISTENER, WireWhatAmI.PEER))
    (ack,) = hear(side)
    assert isinstance(ack, Init)
    say(side, Open(1000, 0, ack.cookie))
    assert_refused(side, CloseReason.CONNECTION_TO_SELF)


def test_a_client_does_not_serve_a_client() -> None:
    pair = Pair(
        offer(DIALLER, whatami=WireWhatAmI.CLIENT),
        offer(whatami=WireWhatAmI.CLIENT),
    )
    assert isinstance(pair.b.end, SessionRefused)
    assert pair.b.end.reason == GENERIC
    assert isinstance(pair.a.end, SessionRefused)
    assert (pair.a.end.reason, pair.a.end.by_peer) == (GENERIC, True)


@pytest.mark.parametrize("reason", [0, 2, 3, 4, 7, 8, 200])
def test_a_close_of_the_peer_ends_the_handshake_without_an_answer(reason: int) -> None:
    starts: list[Callable[[], Side]] = [opener, acceptor, lambda: half_open()[0]]
    for start in starts:
        side = start()
        say(side, Close(reason))
        assert isinstance(side.end, SessionRefused)
        assert (side.end.reason, side.end.by_peer) == (reason, True)
        assert str(reason) in str(side.end)
        assert side.pull_all() == []


def test_who_does_not_admit_a_peer_says_why() -> None:
    def admit(zid: WireZenohId, whatami: WireWhatAmI) -> None:
        raise SessionRefused(f"{zid} has a session", CloseReason.MAX_LINKS)

    side = Side(Acceptor(offer(), chance(), mtu=MTU, admit=admit))
    say(side, init_syn())
    (ack,) = hear(side)
    assert isinstance(ack, Init)
    say(side, Open(1000, 0, ack.cookie))
    assert_refused(side, CloseReason.MAX_LINKS)
    dialler = Side(Opener(offer(DIALLER), chance(), mtu=MTU, admit=admit))
    dialler.pull_all()
    say(dialler, init_ack())
    assert_refused(dialler, CloseReason.MAX_LINKS)


def test_a_handler_that_refuses_at_the_last_moment_closes() -> None:
    side, cookie = half_open()

    def refuse() -> None:
        raise SessionRefused("full", CloseReason.MAX_SESSIONS)

    side.heard.on_open = refuse
    say(side, Open(1000, 0, cookie))
    assert isinstance(side.end, SessionRefused)
    assert side.core.ended
    assert isinstance(hear(side)[-1], Close)


USERS = UserPassword(dictionary={"user": b"password"})


@pytest.mark.parametrize(
    "shown", [(), (UserPassword("user", "wrong"),), (UserPassword("nobody", "password"),)], ids=str
)
def test_authentication_that_fails_is_refused_alike(shown: tuple[UserPassword, ...]) -> None:
    pair = Pair(offer(DIALLER), offer(), auth=(shown, (USERS,)))
    assert isinstance(pair.b.end, SessionRefused)
    assert pair.b.end.reason == GENERIC
    assert isinstance(pair.b.end.__cause__, AuthError)
    assert pair.a.end is not None
    assert (pair.a.end.reason, pair.a.end.by_peer) == (GENERIC, True)
    assert pair.a.heard.opens == pair.b.heard.opens == 0


def test_authentication_that_passes_names_the_peer() -> None:
    pair = Pair(offer(DIALLER), offer(), auth=((UserPassword("user", "password"),), (USERS,)))
    assert pair.b.agreed.identities == {USERS.name: "user"}
    assert pair.a.agreed.identities == {}


def test_an_opener_with_credentials_wants_them_looked_at() -> None:
    pair = Pair(offer(DIALLER), offer(), auth=((UserPassword("user", "password"),), ()))
    assert isinstance(pair.a.end, SessionRefused)
    assert (pair.a.end.reason, pair.a.end.by_peer) == (GENERIC, False)
    assert pair.b.end is not None
    assert pair.b.end.by_peer


# The cookie


def test_a_cookie_is_compared_byte_by_byte() -> None:
    for i in range(COOKIE_BYTES):
        side, cookie = half_open()
        wrong = bytearray(cookie)
        wrong[i] ^= 1
        say(side, Open(1000, 0, bytes(wrong)))
        assert_refused(side, INVALID, "cookie")


@pytest.mark.parametrize("change", ["none", "short", "long", "doubled", "64 KiB", "another"])
def test_no_other_cookie_opens(change: str) -> None:
    side, cookie = half_open()
    draw = Side(Acceptor(offer(), chance(99), mtu=MTU))
    say(draw, init_syn())
    (other,) = hear(draw)
    assert isinstance(other, Init)
    assert other.cookie is not None
    assert other.cookie != cookie
    wrong = {
        "none": b"",
        "short": cookie[:-1],
        "long": cookie + b"\0",
        "doubled": cookie * 2,
        "64 KiB": b"x" * 65_500,
        "another": other.cookie,
    }[change]
    say(side, Open(1000, 0, wrong))
    assert_refused(side, INVALID, "cookie")


def test_a_cookie_opens_once() -> None:
    side, cookie = half_open()
    say(side, Open(1000, 0, cookie))
    assert side.heard.opens == 1
    say(side, Open(1000, 5, cookie))
    assert side.heard.opens == 1
    assert side.agreed.peer_initial_sn == 0
    assert side.core.counters.ignored == 1


# Every message in every state

MESSAGES: dict[str, TransportMessage] = {
    "INIT syn": init_syn(),
    "INIT ack": init_ack(),
    "OPEN syn": Open(1000, 0, b"wrong"),
    "OPEN ack": Open(1000, 0),
    "CLOSE": Close(),
    "KEEP_ALIVE": KeepAlive(),
    "FRAME": Frame(0, messages=[put(b"early")]),
    "empty FRAME": Frame(0),
    "FRAGMENT": Fragment(0, b"early", first=True),
    "JOIN": Join(DIALLER, WireWhatAmI.PEER, 1000),
    "OAM": TransportOam(1, b"x"),
}
KINDS = {name: write_batch([message]) for name, message in MESSAGES.items()} | {
    "nothing": b"",
    "no id": b"\x0f",
    "cut short": write_batch([init_syn()])[:3],
    "two messages": write_batch([init_syn(), init_syn()]),
    "no zid": bytes.fromhex("0109"),
    "a zid of zero": bytes.fromhex("01090200"),
    "role 3": bytes.fromhex("010933a4a3a2a1"),
    "mandatory": bytes.fromhex("810932a4a3a2a11e"),
    "bare PUSH": b"\x1d\x00\x00",
}


def at(state: str) -> Side:
    if state == "INIT syn":
        return acceptor()
    if state == "OPEN syn":
        return half_open()[0]
    side = opener()
    if state == "OPEN ack":
        say(side, init_ack())
        hear(side)
    return side


@pytest.mark.parametrize("state", ["INIT syn", "OPEN syn", "INIT ack", "OPEN ack"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_out_of_turn_is_refused(state: str, kind: str) -> None:
    side = at(state)
    side.take(to_stream([KINDS[kind]], Framing.STREAM))
    assert side.heard.received == []
    if kind == "nothing":
        assert side.end is None
        assert side.pull_all() == []
    elif kind == "CLOSE":
        assert side.end is not None
        assert side.end.by_peer
        assert side.pull_all() == []
    elif kind == state and kind != "OPEN syn":  # that one has a wrong cookie
        assert side.end is None
        assert side.heard.opens == (state == "OPEN ack")
    else:
        assert_refused(side, INVALID)


IGNORED = ("INIT syn", "INIT ack", "OPEN syn", "OPEN ack", "JOIN", "OAM")


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_in_an_open_session(kind: str) -> None:
    hand = Hand()
    hand.say_bytes(KINDS[kind])
    if kind == "CLOSE":
        assert isinstance(hand.side.end, SessionClosed)
        assert hand.side.end.by_peer
    elif kind in (
        "no id",
        "cut short",
        "no zid",
        "a zid of zero",
        "role 3",
        "mandatory",
        "bare PUSH",
    ):
        assert isinstance(hand.side.end, SessionClosed)
        assert hand.side.end.reason == INVALID
        assert hand.hear() == [Close(INVALID)]
    else:
        assert hand.side.end is None
        assert hand.core.counters.ignored == (kind in IGNORED) + 2 * (kind == "two messages")
        assert len(hand.received) == (kind == "FRAME")
    assert hand.side.agreed.zid == DIALLER
    assert hand.side.heard.opens == 1


def test_nothing_is_delivered_by_a_half_open_session() -> None:
    """Data in the same bytes as INIT, as OPEN with a wrong cookie, or before OPEN ack."""
    data = to_stream([KINDS["FRAME"]], Framing.STREAM)
    for before in (b"", to_stream([KINDS["INIT syn"]], Framing.STREAM)):
        side = acceptor()
        side.take(before + data + data)
        assert side.heard.received == []
        assert isinstance(side.end, SessionRefused)
    side, _ = half_open()
    side.take(to_stream([KINDS["OPEN syn"]], Framing.STREAM) + data)
    assert side.heard.received == []
    assert isinstance(side.end, SessionRefused)
    dialler = opener()
    dialler.take(to_stream([KINDS["INIT ack"]], Framing.STREAM) + data)
    assert dialler.heard.received == []
    assert isinstance(dialler.end, SessionRefused)


def test_data_right_behind_open_is_delivered() -> None:
    data = to_stream([KINDS["FRAME"]], Framing.STREAM)
    side, cookie = half_open()
    side.take(to_stream([write_batch([Open(1000, 0, cookie)])], Framing.STREAM) + data)
    assert side.heard.messages == [put(b"early")]
    dialler = opener()
    say(dialler, init_ack())
    dialler.take(to_stream([KINDS["OPEN ack"]], Framing.STREAM) + data)
    assert dialler.heard.messages == [put(b"early")]


def test_open_ack_leaves_before_what_the_handler_says_at_once() -> None:
    side, cookie = half_open()
    side.heard.on_open = lambda: side.outbox.push(put(b"hello"), now=START)  # type: ignore
    say(side, Open(1000, 0, cookie))
    first, second = hear(side)
    assert isinstance(first, Open)
    assert isinstance(second, Frame)


@pytest.mark.parametrize("seed", range(10))
def test_random_sessions_end_in_a_refusal_or_go_on(seed: int) -> None:
    """Any kinds in any order, some of their bytes changed: never another exception."""
    rng = random.Random(seed)
    kinds = list(KINDS.values())
    starts: list[Callable[[], Side]]
    starts = [opener, acceptor, lambda: half_open()[0], lambda: Hand().side]
    for _ in range(300):
        side = rng.choice(starts)()
        opens = side.heard.opens
        for _ in range(rng.randrange(1, 8)):
            batch = bytearray(rng.choice(kinds))
            for _ in range(rng.choice((0, 0, 1, 3))):
                if batch:
                    batch[rng.randrange(len(batch))] = rng.randrange(256)
            side.take(to_stream([bytes(batch)], Framing.STREAM))
            if not side.heard.opens:
                assert side.heard.received == []
        ended = side.end is not None
        assert side.core.ended is ended
        if ended:
            said = hear(side)
            assert (Close(side.end.reason) in said) is not side.end.by_peer  # type: ignore
            assert side.memory.held == 0
            assert side.core.handshake.state is HandshakeState.NOTHING or not opens
        side.core.end(0)
        assert side.memory.held == 0


@pytest.mark.parametrize("size", [0, 1, 17])
def test_an_id_is_one_to_sixteen_bytes(size: int) -> None:
    side = acceptor()
    packed = ((size - 1) & 0x0F) << 4 | 1
    batch = bytes((1, 9, packed)) + b"\x00" * size
    side.take(to_stream([batch], Framing.STREAM))
    assert_refused(side, INVALID)


def test_a_handshake_that_takes_too_long_is_refused() -> None:
    for side in (opener(), acceptor(), half_open()[0]):
        deadline = side.core.deadline()
        assert deadline == START + 10
        side.core.on_time(deadline - 0.001)
        side.take(to_stream([b""], Framing.STREAM), deadline - 0.001)
        with pytest.raises(SessionRefused, match="too long"):
            side.core.on_time(deadline)
        assert hear(side) == [Close(GENERIC)]


def test_a_handshake_that_is_given_up_says_close() -> None:
    side, _ = half_open()
    side.core.close()
    assert hear(side) == [Close(GENERIC)]
    side.core.close()
    assert side.pull_all() == []


def test_reasons_have_names() -> None:
    assert reason_text(2) == "2 (INVALID)"
    assert reason_text(99) == "99"


# Recorded handshakes


def script(**by_size: bytes) -> Entropy:
    """Chance that draws what was recorded: the cookie, or the first number."""
    return lambda size: by_size["sn"] if size == 4 else by_size["cookie"]


def handshake_of(vector: Vector) -> tuple[Init, Init, Open, Open] | None:
    """The four messages of a recorded session, if our core can take part in it."""
    if vector.senders()[:2] != ["A", "B"] or vector.name.startswith(("close_", "multicast")):
        return None
    first = [read_batch(batch)[0] for _, batch in vector.batches[:4]]
    match first:
        case [Init() as syn, Init() as ack, Open() as open_syn, Open() as open_ack]:
            if syn.auth is None and ack.auth is None:
                return syn, ack, open_syn, open_ack
    return None


def offer_of(init: Init, opening: Open, **changed: Any) -> Offer:
    fields: dict[str, Any] = {
        "resolution": init.resolution,
        "batch_size": init.batch_size,
        "lease_ms": opening.lease_ms,
        "qos": init.qos or init.qos_link is not None,
        "low_latency": init.low_latency,
        "compression": init.compression,
        "patch": init.patch,
        "region_name": init.region_name,
        "remote_bound": opening.remote_bound,
    }
    return offer(init.zid, init.whatami, **(fields | changed))


RECORDED = {v.name: v for v in load_all() if handshake_of(v) is not None}


def test_most_recordings_have_a_handshake_to_replay() -> None:
    assert len(RECORDED) > 40
    assert {"low_latency", "compression", "udp", "resolution_8bit", "qos_off"} <= set(RECORDED)


def link_bytes(vector: Vector, sender: str) -> list[bytes]:
    """Return the bytes off the link: one piece per stream, one piece per datagram."""
    return vector.of(sender) if vector.framing == "datagram" else [vector.stream(sender)]


def count_messages(vector: Vector, sender: str, low_latency: bool, compression: bool) -> int:
    """Network messages that the wire's reader finds after the handshake; whole ones only."""
    found = 0
    for batch in vector.of(sender)[2:]:
        plain = uncompress(batch) if compression else batch
        for located in walk(ByteReader(plain), low_latency=low_latency):
            found += type(located.message) in NETWORK.by_type
            found += isinstance(located.message, Fragment) and not located.message.more
    return found


RECORDED_DROPS = {("fragments_dropped", "A"): {"fragment_missing": 1}}
"Drops to count at the reader of a recording and of its sender; nothing is dropped in the others."


def assert_replayed(side: Side, vector: Vector, sender: str) -> None:
    assert side.end is None or side.end.by_peer, str(side.end)
    agreed = side.agreed
    assert len(side.heard.received) == count_messages(
        vector, sender, agreed.low_latency, agreed.compression
    )
    assert all(sequence.stale == 0 for sequence in side.core.sequences().values())
    dropped = side.core.counters.receive_dropped
    assert dropped == RECORDED_DROPS.get((vector.name, sender), {})
    if not dropped:
        gaps = {lane: sequence.missing for lane, sequence in side.core.sequences().items()}
        assert not any(gaps.values())


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_recorded_opener_is_accepted(name: str) -> None:
    """Chance gives the recorded cookie: our answers are the recorded ones, byte for byte."""
    vector = RECORDED[name]
    messages = handshake_of(vector)
    assert messages is not None
    syn, ack, open_syn, open_ack = messages
    assert ack.cookie is not None
    draw = script(cookie=ack.cookie, sn=open_ack.initial_sn.to_bytes(4, "little"))
    framing = Framing.DATAGRAM if vector.framing == "datagram" else Framing.STREAM
    ours = offer_of(ack, open_ack)
    side = Side(Acceptor(ours, draw, mtu=MTU), framing)
    for piece in link_bytes(vector, "A"):
        side.take(piece)
    agreed = side.agreed
    assert (agreed.zid, agreed.whatami) == (syn.zid, syn.whatami)
    assert agreed.peer_initial_sn == open_syn.initial_sn
    answers = [side.core.pull(START), side.core.pull(START)]
    plain = [bytes(answer)[framing:] for answer in answers if answer is not None]
    expected = vector.of("B")[:2]
    if ack.multilink is None:
        assert plain[0] == expected[0]
    if not open_ack.multilink_ack:
        assert plain[1] == expected[1]
    assert_replayed(side, vector, "A")


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_recorded_acceptor_is_opened(name: str) -> None:
    vector = RECORDED[name]
    messages = handshake_of(vector)
    assert messages is not None
    syn, _, open_syn, open_ack = messages
    draw = script(sn=open_syn.initial_sn.to_bytes(4, "little"))
    framing = Framing.DATAGRAM if vector.framing == "datagram" else Framing.STREAM
    link_qos = LinkQos.decode(syn.qos_link or 1)
    side = Side(Opener(offer_of(syn, open_syn), draw, mtu=MTU, link_qos=link_qos), framing)
    sent = [bytes(side.core.pull(START) or b"")[framing:]]
    pieces = link_bytes(vector, "B")
    for piece in pieces:
        side.take(piece)
    sent.append(bytes(side.core.pull(START) or b"")[framing:])
    expected = vector.of("A")[:2]
    if syn.multilink is None:
        assert sent[0] == expected[0]
    if open_syn.multilink is None:
        assert sent[1] == expected[1]
    assert side.agreed.peer_initial_sn == open_ack.initial_sn
    assert_replayed(side, vector, "B")


@pytest.mark.parametrize(
    "name", ["close_self", "close_cookie", "close_version", "close_mandatory", "close_role"]
)
def test_a_recorded_refusal_is_ours_too(name: str) -> None:
    vector = load(name)
    answers = vector.of("B")
    cookie = b"no answer was recorded"
    zid = LISTENER
    if len(answers) > 1:
        (ack,) = read_batch(answers[0])
        assert isinstance(ack, Init)
        assert ack.cookie is not None
        cookie, zid = ack.cookie, ack.zid
    draw = script(cookie=cookie, sn=bytes(4))
    side = Side(Acceptor(offer(zid, WireWhatAmI.ROUTER), draw, mtu=MTU))
    side.take(vector.stream("A"))
    assert isinstance(side.end, SessionRefused)
    assert side.pull_all()[-1][2:] == answers[-1]


def test_recorded_credentials_that_are_missing_are_refused_alike() -> None:
    vector = load("auth_missing")
    side = Side(Acceptor(offer(), chance(), mtu=MTU, authenticators=(USERS,)))
    side.take(vector.stream("A"))
    assert [data[2:] for data in side.pull_all()] == vector.of("B")


def test_a_recorded_close_of_the_acceptor_is_understood() -> None:
    vector = load("close_max_links")
    (init,) = read_batch(vector.of("A")[0])
    assert isinstance(init, Init)
    side = Side(Opener(offer(init.zid, init.whatami), chance(), mtu=MTU))
    side.take(vector.stream("B"))
    assert isinstance(side.end, SessionRefused)
    assert (side.end.reason, side.end.by_peer) == (CloseReason.MAX_LINKS, True)
