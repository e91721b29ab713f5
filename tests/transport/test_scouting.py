"""SCOUT is sent when due, HELLO only to whom it is of use, and no datagram can do harm."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.vectors import load
from zenlake.errors import DecodeError
from zenlake.transport import scouting
from zenlake.transport.scouting import (
    MAX_ANSWERS,
    MAX_LOCATORS,
    MAX_SOURCES,
    WINDOW,
    Responder,
    Scouter,
    is_local,
    is_loopback,
)
from zenlake.wire.batch import read_scouting, write_scouting
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.hello import WireHello
from zenlake.wire.locator import Locator
from zenlake.wire.scout import WireScout
from zenlake.wire.zenohid import WireZenohId

A, B = WireZenohId(b"\xa1"), WireZenohId(b"\xb1")
ROUTER, PEER, CLIENT = WireWhatAmI.ROUTER, WireWhatAmI.PEER, WireWhatAmI.CLIENT
FAR = Locator("tcp/192.0.2.1:7447")
NEAR = Locator("tcp/127.0.0.1:7447")
ANY = write_scouting(WireScout(ROUTER | PEER | CLIENT))


def responder(*locators: Locator, zid: WireZenohId = A, whatami: WireWhatAmI = PEER) -> Responder:
    return Responder(zid, whatami, lambda: locators)


def offered(answer: bytes | None) -> tuple[Locator, ...] | None:
    if answer is None:
        return None
    hello = read_scouting(answer)
    assert isinstance(hello, WireHello)
    return hello.locators


def test_scouts_are_due_at_once_then_ever_later() -> None:
    scouter = Scouter(PEER, 100.0)
    due = []
    for _ in range(7):
        due.append(scouter.deadline)
        assert scouter.datagram(scouter.deadline - 0.001) is None
        assert scouter.datagram(scouter.deadline) is not None
    assert due == [100, 101, 103, 107, 115, 123, 131]


def test_a_late_caller_does_not_catch_up() -> None:
    scouter = Scouter(PEER, 0.0)
    assert scouter.datagram(50.0) is not None
    assert scouter.datagram(50.0) is None
    assert scouter.deadline == 51.0


@pytest.mark.parametrize(
    ("what", "expected"), [(7, "010907"), (3, "010903"), (1, "010901"), (2, "010902")]
)
def test_scout_is_what_rust_sends(what: int, expected: str) -> None:
    datagram = Scouter(WireWhatAmI(what), 0.0).datagram(0.0)
    assert datagram is not None
    assert datagram.hex() == expected
    assert datagram in load("scouting_multicast").of("scout")


def test_recorded_hellos_are_heard() -> None:
    scouter = Scouter(ROUTER | PEER | CLIENT, 0.0)
    hellos = load("scouting_multicast").of("hello")
    heard = [scouter.read_hello(data) for data in hellos]
    assert hellos
    assert all(hello is not None and hello.locators for hello in heard)
    assert scouter.bad == 0


@pytest.mark.parametrize(
    ("message", "heard"),
    [
        (WireHello(B, PEER, (FAR,)), True),
        (WireHello(B, ROUTER, (FAR,)), True),
        (WireHello(B, CLIENT, (FAR,)), False),
        (WireHello(B, PEER), True),
        (WireHello(B, PEER, (FAR,), version=8), True),
        (WireScout(PEER), False),
    ],
)
def test_only_hellos_of_the_roles_asked_for_are_heard(
    message: WireScout | WireHello, heard: bool
) -> None:
    scouter = Scouter(ROUTER | PEER, 0.0)
    assert scouter.read_hello(write_scouting(message)) == (message if heard else None)
    assert scouter.bad == 0


def test_locators_beyond_the_limit_are_not_heard() -> None:
    many = tuple(Locator(f"tcp/192.0.2.1:{port}") for port in range(1, MAX_LOCATORS + 5))
    hello = Scouter(PEER, 0.0).read_hello(write_scouting(WireHello(B, PEER, many)))
    assert hello is not None
    assert hello.locators == many[:MAX_LOCATORS]


def test_the_answer_is_what_rust_says() -> None:
    for recorded in load("scouting_multicast").of("hello"):
        hello = read_scouting(recorded)
        assert isinstance(hello, WireHello)
        ours = responder(*hello.locators, zid=hello.zid, whatami=hello.whatami)
        assert ours.answer(ANY, "127.0.0.1", 0.0) == recorded


@pytest.mark.parametrize("role", [ROUTER, PEER, CLIENT])
@pytest.mark.parametrize("what", range(8))
def test_only_roles_in_the_mask_of_a_scout_answer(role: WireWhatAmI, what: int) -> None:
    answer = responder(FAR, whatami=role).answer(
        write_scouting(WireScout(WireWhatAmI(what))), "192.0.2.9", 0.0
    )
    assert (answer is not None) == bool(what & role)


def test_a_node_does_not_answer_itself() -> None:
    own, other = (write_scouting(WireScout(PEER, zid)) for zid in (A, B))
    assert responder(FAR).answer(own, "192.0.2.9", 0.0) is None
    assert responder(FAR).answer(other, "192.0.2.9", 0.0) is not None


def test_an_older_version_is_answered() -> None:
    scout = write_scouting(WireScout(PEER, version=8))
    assert responder(FAR).answer(scout, "192.0.2.9", 0.0) is not None


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("128.0.0.1", False),
        ("192.0.2.1", False),
        ("::", False),
        ("::ffff:192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("node.example", False),
        ("", False),
    ],
)
def test_loopback_hosts(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    text = f"[{host}]" if ":" in host else host
    assert is_local(Locator(f"tcp/{text}:7447")) is loopback


@pytest.mark.parametrize(
    ("source", "listens", "expected"),
    [
        ("127.0.0.1", (NEAR, FAR), (NEAR, FAR)),
        ("::1", (NEAR, FAR), (NEAR, FAR)),
        ("192.0.2.9", (NEAR, FAR), (FAR,)),
        ("192.0.2.9", (Locator("tcp/[::1]:7447"), FAR), (FAR,)),
        ("192.0.2.9", (Locator("unixsock-stream//tmp/z.sock"), FAR), (FAR,)),
        ("127.0.0.1", (Locator("unixsock-stream//tmp/z"),), ("unixsock-stream//tmp/z",)),
        ("192.0.2.9", (NEAR,), None),
        ("192.0.2.9", (), None),
        ("127.0.0.1", (), None),
    ],
)
def test_local_locators_stay_on_the_machine(
    source: str, listens: tuple[Locator, ...], expected: tuple[str, ...] | None
) -> None:
    assert offered(responder(*listens).answer(ANY, source, 0.0)) == expected


def test_locators_are_asked_for_each_time() -> None:
    listens: list[Locator] = []
    node = Responder(A, PEER, lambda: listens)
    assert node.answer(ANY, "192.0.2.9", 0.0) is None
    listens.append(FAR)
    assert offered(node.answer(ANY, "192.0.2.9", 0.0)) == (FAR,)


def test_locators_beyond_the_limit_are_not_said() -> None:
    many = tuple(Locator(f"tcp/192.0.2.1:{port}") for port in range(1, MAX_LOCATORS + 5))
    assert offered(responder(*many).answer(ANY, "192.0.2.9", 0.0)) == many[:MAX_LOCATORS]


def test_one_source_is_answered_so_often_and_no_more() -> None:
    node = responder(FAR)
    answers = [node.answer(ANY, "192.0.2.9", 0.5) for _ in range(MAX_ANSWERS + 3)]
    assert [answer is not None for answer in answers] == [True] * MAX_ANSWERS + [False] * 3
    assert node.dropped == 3
    assert node.answer(ANY, "192.0.2.10", 0.5) is not None
    assert node.answer(ANY, "192.0.2.9", 0.5 + WINDOW - 0.01) is None
    assert node.answer(ANY, "192.0.2.9", 0.5 + WINDOW) is not None


def test_only_so_many_sources_are_answered_at_a_time() -> None:
    node = responder(FAR)
    sources = [f"192.0.{i // 250}.{i % 250}" for i in range(MAX_SOURCES)]
    assert all(node.answer(ANY, source, 0.0) for source in sources)
    assert node.answer(ANY, "198.51.100.1", 0.1) is None
    assert node.answer(ANY, sources[0], 0.1) is not None
    assert node.dropped == 1
    assert node.answer(ANY, "198.51.100.1", WINDOW) is not None


def test_what_is_not_for_us_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scouting, "MAX_ANSWERS", 1)
    node = responder(FAR)
    for _ in range(5):
        assert node.answer(write_scouting(WireScout(ROUTER)), "192.0.2.9", 0.0) is None
    assert node.answer(ANY, "192.0.2.9", 0.0) is not None
    assert node.dropped == 0


def test_a_hello_is_not_answered() -> None:
    node = responder(FAR)
    assert node.answer(write_scouting(WireHello(B, PEER, (FAR,))), "192.0.2.9", 0.0) is None
    assert (node.bad, node.dropped) == (0, 0)


@given(st.binary(max_size=64))
def test_any_bytes_are_counted_or_understood(data: bytes) -> None:
    scouter, node = Scouter(ROUTER | PEER | CLIENT, 0.0), responder(FAR)
    scouter.read_hello(data)
    node.answer(data, "192.0.2.9", 0.0)
    try:
        read_scouting(data)
        assert (scouter.bad, node.bad) == (0, 0)
    except DecodeError:
        assert (scouter.bad, node.bad) == (1, 1)


def test_damaged_datagrams_are_counted_or_understood() -> None:
    chance = random.Random(7446)
    good = write_scouting(WireHello(B, PEER, (FAR, NEAR)))
    scouter = Scouter(ROUTER | PEER | CLIENT, 0.0)
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        hello = scouter.read_hello(bytes(data[: chance.randint(0, len(data))]))
        assert hello is None or isinstance(hello, WireHello)
    assert scouter.bad > 1000
