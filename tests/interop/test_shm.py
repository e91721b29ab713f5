"""Shared memory with eclipse-zenoh: who sends pointers to whom; every payload arrives whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.golden.proxy import free_port
from tests.support.interop_pair import (
    OURS,
    PATIENCE,
    THEIRS,
    Side,
    Way,
    answering,
    open_session,
    settling,
    unique,
)
from tests.support.waiting import until
from zenlake.shm.layout import BlockOn, GarbageCollect

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

SHM = "transport/shared_memory"
POOL = f"{SHM}/transport_optimization"
ON = {f"{SHM}/enabled": True, f"{SHM}/mode": "init"}
OFF = {f"{SHM}/enabled": False}
THRESHOLD = 3072
MIB = 1 << 20
SIZES = (0, 1, 2000, 3071, 3072, 3073, 20_000, 100_000, 300_000, MIB, 17 * MIB)


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    with settling():
        yield


def content(number: int, size: int) -> bytes:
    word = b"%d/%d;" % (number, size)
    return (word * (size // len(word) + 1))[:size]


def is_shared(side: Side) -> list[bool]:
    return [transport.is_shm for transport in side.session.info.transports()]


def blocking(api: Any) -> dict[str, Any]:
    return {"congestion_control": api.CongestionControl.BLOCK}


class Heard(list[Any]):
    """Samples of a subscriber, or replies."""


@contextmanager
def direct(
    dials: Any, listens: Any, here: dict[str, Any], there: dict[str, Any], mode: str = "peer"
) -> Iterator[tuple[Side, Side]]:
    """Two sessions: the one that connects, and the one that listens."""
    at = f"tcp/127.0.0.1:{free_port()}"
    with (
        open_session(listens, "peer", listen=at, settings=there) as listener,
        open_session(dials, mode, connect=(at,), settings=here) as dialler,
    ):
        sides = Side(dials, dialler), Side(listens, listener)
        until(lambda: all(len(is_shared(side)) == 1 for side in sides))
        yield sides


@contextmanager
def routed(
    first: Any, router: Any, other: Any, *settings: dict[str, Any]
) -> Iterator[tuple[Side, Side]]:
    """Two clients of a router; the settings of the first, the router and the other."""
    at = f"tcp/127.0.0.1:{free_port()}"
    with (
        open_session(router, "router", listen=at, settings=settings[1]),
        open_session(first, "client", connect=(at,), settings=settings[0]) as one,
        open_session(other, "client", connect=(at,), settings=settings[2]) as two,
    ):
        yield Side(first, one), Side(other, two)


# ---- everything arrives whole


class Net(NamedTuple):
    """Two sessions, and whether the last hop of a put uses shared memory, in either direction.

    A router of ours passes payloads on over the network.
    """

    opened: Callable[[], Any]
    shared_there: bool
    shared_back: bool | None
    "None: their router decides, by the state of its pool."


NETS = {
    "our peer, their peer": Net(lambda: direct(OURS, THEIRS, ON, ON), True, True),
    "their peer, our peer": Net(lambda: direct(THEIRS, OURS, ON, ON), True, True),
    "our client, their peer": Net(lambda: direct(OURS, THEIRS, ON, ON, "client"), True, True),
    "ours": Net(lambda: direct(OURS, OURS, ON, ON), True, True),
    "theirs has none": Net(lambda: direct(OURS, THEIRS, ON, OFF), False, False),
    "ours has none": Net(lambda: direct(THEIRS, OURS, ON, OFF), False, False),
    "our router": Net(lambda: routed(THEIRS, OURS, OURS, ON, ON, ON), False, False),
    "their router": Net(lambda: routed(OURS, THEIRS, OURS, ON, ON, ON), True, True),
    "our router, their clients": Net(
        lambda: routed(THEIRS, OURS, THEIRS, ON, ON, ON), False, False
    ),
    "our router, theirs has none": Net(
        lambda: routed(THEIRS, OURS, THEIRS, ON, ON, OFF), False, False
    ),
    "our router has none": Net(lambda: routed(THEIRS, OURS, OURS, ON, OFF, ON), False, False),
    "their router, ours has none": Net(
        lambda: routed(THEIRS, THEIRS, OURS, ON, ON, OFF), False, None
    ),
    "their router has none": Net(lambda: routed(OURS, THEIRS, OURS, ON, OFF, ON), False, False),
}


@pytest.mark.parametrize("name", NETS)
def test_puts_queries_and_replies_of_every_size(name: str) -> None:
    opened, there, back = NETS[name]
    with opened() as (first, other):
        check(Way(first, other, 0), shared=there)
        check(Way(other, first, 0), shared=back)


def check(way: Way, *, shared: bool | None) -> None:
    puts_arrive(way, shared)
    queries_arrive(way)


def puts_arrive(way: Way, shared: bool | None) -> None:
    api, session = way.sender
    key, heard = unique("shm"), Heard()
    with way.receiver.session.declare_subscriber(key, heard.append):
        way.sender.matching(key)
        with session.declare_publisher(key, **blocking(api)) as publisher:
            for number, size in enumerate(SIZES):
                publisher.put(content(number, size))
                session.put(
                    key, content(number, size), attachment=b"a" * min(size, 9000), **blocking(api)
                )
                until(lambda: len(heard), lambda found: found >= 2 * number + 2)  # noqa: B023
                for sample in heard[-2:]:
                    assert bytes(sample.payload) == content(number, size)
                if size < THRESHOLD or shared is False:
                    assert heard[-2].payload.as_shm() is None
                assert bytes(heard[-1].attachment) == b"a" * min(size, 9000)
                heard[-2:] = [None, None]
        assert len(heard) == 2 * len(SIZES)
    if shared:
        until(lambda: arrives_shared(way, MIB))


def queries_arrive(way: Way) -> None:
    api, session = way.sender
    key = unique("shm")
    asked: list[bytes] = []

    def answer(query: Any) -> None:
        asked.append(bytes(query.payload))
        query.reply(key, asked[-1], attachment=b"with")
        query.reply_err(asked[-1], encoding="text/plain")

    with answering(way, key, answer):
        for number, size in enumerate(SIZES):
            sent = content(number, size)
            replies = list(
                session.get(
                    key,
                    payload=sent,
                    attachment=b"x",
                    consolidation=api.ConsolidationMode.NONE,
                    timeout=PATIENCE,
                )
            )
            assert asked[-1] == sent
            found = [bytes((reply.ok or reply.err).payload) for reply in replies]
            assert found == [sent, sent]


# ---- thresholds and keys


def arrives_shared(way: Way, size: int, send: str = "put") -> bool:
    """Send one payload of `size` bytes; return whether the receiver got it in shared memory."""
    api, session = way.sender
    key, sent = unique("shm"), content(size, size)
    found: list[tuple[bytes, bool]] = []

    def keep(message: Any) -> None:
        found.append((bytes(message.payload), message.payload.as_shm() is not None))

    if send == "put":
        with way.receiver.session.declare_subscriber(key, keep):
            way.sender.matching(key)
            session.put(key, sent, **blocking(api))
            until(lambda: found)
    elif send == "query":
        with answering(way, key, keep):
            list(session.get(key, payload=sent, timeout=PATIENCE))
    else:
        back = Way(way.receiver, way.sender, 0)
        with answering(back, key, lambda query: query.reply(key, sent)):
            for reply in way.receiver.session.get(key, timeout=PATIENCE):
                keep(reply.ok)
    ((payload, shared),) = found
    assert payload == sent
    return shared


KEYS: dict[str, tuple[dict[str, Any], dict[int, bool]]] = {
    "by default": ({}, {3071: False, 3072: True, 3073: True, MIB: True}),
    "enabled": ({f"{SHM}/enabled": False}, {MIB: False}),
    "optimization off": ({f"{POOL}/enabled": False}, {MIB: False}),
    "threshold": (
        {f"{POOL}/message_size_threshold": 50_000},
        {49_999: False, 50_000: True},
    ),
    "pool size": ({f"{POOL}/pool_size": 4 * MIB}, {MIB: True, 5 * MIB: False}),
    "messages": ({f"{POOL}/messages": ["reply"]}, {MIB: False}),
}


@pytest.mark.parametrize("sender", ["ours", "theirs"])
@pytest.mark.parametrize("name", KEYS)
def test_each_key_has_its_effect_on_the_sender(name: str, sender: str) -> None:
    settings, expected = KEYS[name]
    ours = sender == "ours"
    with direct(OURS if ours else THEIRS, THEIRS if ours else OURS, ON | settings, ON) as sides:
        way = Way(*sides, 0)
        for size in (size for size in expected if expected[size]):
            until(lambda: arrives_shared(way, size))  # noqa: B023
        assert {size: arrives_shared(way, size) for size in expected if not expected[size]} == {
            size: False for size in expected if not expected[size]
        }


@pytest.mark.parametrize("kind", ["put", "query", "reply"])
@pytest.mark.parametrize("sender", ["ours", "theirs"])
def test_each_kind_of_message_can_be_chosen(kind: str, sender: str) -> None:
    ours = sender == "ours"
    settings = ON | {f"{POOL}/messages": [kind]}
    with direct(OURS if ours else THEIRS, THEIRS if ours else OURS, settings, ON) as sides:
        way = Way(*sides, 0)
        # The payload of a query that we receive is a copy: nothing to see.
        seen = {"put", "reply"} if not ours else {"put", "query", "reply"}
        if kind in seen:
            until(lambda: arrives_shared(way, MIB, kind))
        assert not any(arrives_shared(way, MIB, other) for other in seen - {kind})


def test_a_pool_that_is_made_lazily() -> None:
    """Theirs sends the first large payloads over the network meanwhile; ours does not have to."""
    lazy = {f"{SHM}/enabled": True}
    with direct(OURS, THEIRS, lazy, lazy) as sides:
        assert arrives_shared(Way(*sides, 0), MIB)
        until(lambda: arrives_shared(Way(sides[1], sides[0], 0), MIB))


def test_a_receiver_without_a_pool_gets_pointers() -> None:
    with direct(OURS, THEIRS, ON, ON | {f"{POOL}/enabled": False}) as (ours, theirs):
        assert arrives_shared(Way(ours, theirs, 0), MIB)
        assert not arrives_shared(Way(theirs, ours, 0), MIB)


# ---- a full pool


@pytest.mark.parametrize("receiver", ["ours", "theirs"])
def test_a_full_pool_uses_the_network_until_there_is_room(receiver: str) -> None:
    listens = OURS if receiver == "ours" else THEIRS
    with direct(OURS, listens, ON | {f"{POOL}/pool_size": 4 * MIB}, ON) as (sender, other):
        key, heard = unique("shm"), Heard()
        with other.session.declare_subscriber(key, heard.append):
            sender.matching(key)
            for number in range(20):
                sender.session.put(key, content(number, MIB), **blocking(OURS))
            until(lambda: len(heard) == 20)
            shared = [sample.payload.as_shm() is not None for sample in heard]
            assert shared == [True] * 4 + [False] * 16
            for number, sample in enumerate(heard):
                assert bytes(sample.payload) == content(number, MIB)
            del sample
            heard.clear()

            def put_is_shared() -> bool:
                sender.session.put(key, content(0, MIB), **blocking(OURS))
                until(lambda: heard)
                return heard.pop().payload.as_shm() is not None

            until(put_is_shared)


# ---- providers


@pytest.mark.parametrize("sender", ["ours", "theirs"])
@pytest.mark.parametrize("size", [1, 100, 5000, MIB])
def test_buffers_of_a_provider_in_every_message(sender: str, size: int) -> None:
    ours, own = sender == "ours", ON | {f"{POOL}/enabled": False, "timestamping/enabled": True}
    with direct(OURS if ours else THEIRS, THEIRS if ours else OURS, own, own) as sides:
        way = Way(*sides, 0)
        api, session = way.sender
        provider = api.shm.ShmProvider.default_backend(8 * MIB + 4096)

        def buffer(number: int) -> Any:
            made = provider.alloc(size, api.shm.BlockOn())
            made[:] = content(number, size)
            return made

        key, heard = unique("shm"), Heard()
        with way.receiver.session.declare_subscriber(key, heard.append):
            way.sender.matching(key)
            session.put(key, buffer(1), attachment=buffer(2), **blocking(api))
            session.put(key, api.ZBytes(buffer(3)), **blocking(api))
            cache = api.ext.CacheConfig()
            publisher = api.ext.declare_advanced_publisher(session, key, cache=cache)
            publisher.put(buffer(8))
            until(lambda: len(heard) == 3)
            publisher.undeclare()
        assert [bytes(sample.payload) for sample in heard] == [
            content(1, size),
            content(3, size),
            content(8, size),
        ]
        assert bytes(heard[0].attachment) == content(2, size)
        assert all(sample.payload.as_shm() is not None for sample in heard)
        key = unique("shm")
        asked: list[tuple[bytes, bool]] = []

        def ask(query: Any) -> None:
            asked.append((bytes(query.payload), query.payload.as_shm() is not None))

        with answering(way, key, ask):
            list(session.get(key, payload=buffer(4), timeout=PATIENCE))
            with session.declare_querier(key, timeout=PATIENCE) as querier:
                list(querier.get(payload=api.ZBytes(buffer(7))))
        assert asked == [(content(4, size), True), (content(7, size), True)]

        def answer(query: Any) -> None:
            query.reply(key, buffer(5))
            query.reply_err(buffer(6))

        with answering(Way(way.receiver, way.sender, 0), key, answer):
            replies = list(way.receiver.session.get(key, timeout=PATIENCE))
        assert {
            bytes((reply.ok or reply.err).payload): (reply.ok or reply.err).payload.as_shm() is None
            for reply in replies
        } == {content(5, size): False, content(6, size): True}


def test_a_buffer_goes_to_all_kinds_of_receivers_at_once() -> None:
    """A subscriber of its own session, sessions with shared memory, and one without."""
    at = f"tcp/127.0.0.1:{free_port()}"
    with (
        open_session(OURS, "peer", listen=at, settings=ON) as sender,
        open_session(THEIRS, "peer", connect=(at,), settings=ON) as theirs,
        open_session(OURS, "peer", connect=(at,), settings=ON) as ours,
        open_session(THEIRS, "peer", connect=(at,), settings=OFF) as without,
    ):
        key = unique("shm")
        heard: dict[str, list[Any]] = {name: [] for name in ("self", "theirs", "ours", "without")}
        sessions = (sender, theirs, ours, without)
        for session, found in zip(sessions, heard.values(), strict=True):
            session.declare_subscriber(key, found.append)
        until(lambda: len(sender.info.transports()) == 3)
        provider = OURS.shm.ShmProvider.default_backend(MIB)
        buffer = provider.alloc(50_000)
        buffer[:] = content(1, 50_000)
        payload = OURS.ZBytes(buffer)

        def all_hear() -> bool:
            sender.put(key, payload, **blocking(OURS))
            return all(heard.values())

        until(all_hear)
        for _ in range(5):
            sender.put(key, payload, attachment=b"count me", **blocking(OURS))

        def counted(found: list[Any]) -> list[Any]:
            return [sample for sample in found if sample.attachment is not None]

        until(lambda: [len(counted(found)) for found in heard.values()], lambda n: n == [5] * 4)
        for name, found in heard.items():
            for sample in found:
                assert bytes(sample.payload) == content(1, 50_000)
                if name != "ours":  # That one may copy: several puts in one batch.
                    assert (sample.payload.as_shm() is not None) == (name != "without")
            found.clear()
        del sample
        payload = OURS.ZBytes(b"")
        whole = provider.alloc(MIB - 4096, BlockOn(GarbageCollect()))
        assert len(whole) == MIB - 4096


def test_a_received_buffer_is_passed_on() -> None:
    """Each side puts again the payload that it received from the other."""
    with direct(OURS, THEIRS, ON, ON) as (ours, theirs):
        key, heard = unique("shm"), Heard()
        echo = f"{key}/echo"
        with (
            theirs.session.declare_subscriber(echo, heard.append),
            ours.session.declare_subscriber(key, lambda s: ours.session.put(echo, s.payload)),
        ):
            theirs.matching(key)
            ours.matching(echo)
            theirs.session.put(key, content(3, MIB), **blocking(THEIRS))
            until(lambda: heard)
        assert bytes(heard[0].payload) == content(3, MIB)


def test_info_says_who_shares_memory() -> None:
    with direct(OURS, THEIRS, ON, ON) as (ours, theirs):
        assert is_shared(ours) == is_shared(theirs) == [True]
        assert ours.session.info.transports()[0].shm_declined is None
    with direct(OURS, THEIRS, ON, OFF) as (ours, theirs):
        assert is_shared(ours) == is_shared(theirs) == [False]
        assert "does not offer it" in ours.session.info.transports()[0].shm_declined
    with direct(OURS, THEIRS, OFF, ON) as (ours, theirs):
        assert is_shared(ours) == is_shared(theirs) == [False]
        assert "this node does not offer" in ours.session.info.transports()[0].shm_declined


def test_sessions_over_several_links_go_without() -> None:
    several = ON | {"transport/unicast/max_links": 2}
    with direct(OURS, THEIRS, several, ON) as (ours, theirs):
        assert is_shared(ours) == is_shared(theirs) == [False]
        assert "several links" in ours.session.info.transports()[0].shm_declined
        assert not arrives_shared(Way(ours, theirs, 0), MIB)
        assert not arrives_shared(Way(theirs, ours, 0), MIB)


@pytest.mark.parametrize("several", [False, True])
def test_a_router_passes_on_what_a_low_latency_link_cannot_carry(several: bool) -> None:
    """Such links have no fragments."""
    low = ON | {"transport/unicast/lowlatency": True, "transport/unicast/qos/enabled": False}
    with routed(OURS, OURS, OURS, low, low, low) as (sender, receiver):
        key, heard = unique("shm"), Heard()
        with receiver.session.declare_subscriber(key, heard.append):
            sender.matching(key)
            publisher = sender.session.declare_publisher(key, **blocking(OURS))
            for number in range(20):
                publisher.put(content(number, 100_000))
                if not several:
                    until(lambda: len(heard), lambda found: found == number + 1)  # noqa: B023
            until(lambda: len(heard) == 20)
        assert [bytes(sample.payload) for sample in heard] == [
            content(number, 100_000) for number in range(20)
        ]
