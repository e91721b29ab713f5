"""More than two, large values, many keys, and nodes that go and come back."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest
import zenoh.ext

import zenlake.ext
from tests.golden.proxy import free_port
from tests.support.interop_pair import (
    OURS,
    PATIENCE,
    QUERY_SECONDS,
    SOME_WAYS,
    THEIRS,
    Nets,
    Side,
    Way,
    hearing,
    open_session,
    replies,
    seen,
    settling,
    unique,
)
from tests.support.reference_peer import ReferenceProcess
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

MEBIBYTE = 1 << 20
SOON = {"connect/retry": {"period_init_ms": 100, "period_max_ms": 200}}
BOTH = [pytest.param(OURS, THEIRS, id="ours"), pytest.param(THEIRS, OURS, id="theirs")]
EXT: dict[Any, Any] = {OURS: zenlake.ext, THEIRS: zenoh.ext}


@pytest.fixture(scope="module")
def nets() -> Iterator[Nets]:
    opened = Nets()
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=SOME_WAYS)
def way(request: pytest.FixtureRequest, nets: Nets) -> Way:
    return nets.way(request.param)


@pytest.fixture(autouse=True)
def sessions() -> Iterator[ExitStack]:
    """Close the sessions that a test opens for itself."""
    with settling(), ExitStack() as stack:
        yield stack


def opened(stack: ExitStack, api: Any, mode: str, **arguments: Any) -> Side:
    session = open_session(api, mode, **arguments)
    stack.callback(session.close)
    return Side(api, session)


def endpoint() -> str:
    return f"tcp/127.0.0.1:{free_port()}"


def neighbours(side: Side) -> list[str]:
    info = side.session.info
    return sorted(str(zid) for zid in (*info.peers_zid(), *info.routers_zid()))


def blocking(side: Side) -> dict[str, Any]:
    return {"congestion_control": side.api.CongestionControl.BLOCK}


# ---- large and many


def test_values_of_16_mebibytes(way: Way) -> None:
    key = unique("large")
    value = os.urandom(MEBIBYTE) * 16
    wanted = hashlib.sha256(value).digest()
    heard: list[bytes] = []
    with way.receiver.session.declare_subscriber(
        key, lambda sample: heard.append(hashlib.sha256(bytes(sample.payload)).digest())
    ):
        way.sender.matching(key)
        for _ in range(2):
            way.sender.session.put(key, value, **blocking(way.sender))
        until(lambda: len(heard), lambda found: found == 2, PATIENCE)
    assert heard == [wanted] * 2


def test_a_thousand_keys(way: Way) -> None:
    """Each with its own publisher; then each with its own subscriber."""
    many = 1000
    key = unique("keys")
    keys = [f"{key}/{number}/x" for number in range(many)]
    session = way.sender.session
    with hearing(way, f"{key}/*/x", keys[0]) as ear:
        publishers = [session.declare_publisher(each, **blocking(way.sender)) for each in keys]
        for number, publisher in enumerate(publishers):
            publisher.put(str(number))
        heard = ear.wait(many)
        assert [(each.key, int(each.payload)) for each in heard] == list(
            zip(keys, range(many), strict=True)
        )
        for publisher in publishers:
            publisher.undeclare()
    # Other keys: the sender may still match the subscriber of the first half for a while.
    keys = [f"{key}/{number}/y" for number in range(many)]
    counted: Counter[str] = Counter()
    subscribers = [
        way.receiver.session.declare_subscriber(
            each,
            way.receiver.api.handlers.Callback(
                lambda sample: counted.update([str(sample.key_expr)]), indirect=False
            ),
        )
        for each in keys
    ]
    way.sender.matching(keys[-1])
    for each in keys:
        session.put(each, b"x", **blocking(way.sender))
    until(counted.total, lambda found: found >= many, PATIENCE)
    assert counted == Counter(keys)
    for subscriber in subscribers:
        subscriber.undeclare()


# ---- going and coming back


@pytest.mark.parametrize(("stays", "goes"), BOTH)
@pytest.mark.parametrize(("mode", "listener"), [("peer", "peer"), ("client", "router")])
def test_what_was_declared_comes_back(
    sessions: ExitStack, stays: Any, goes: Any, mode: str, listener: str
) -> None:
    """One listens, goes, and another comes at the same place; the one that dialled had a
    subscriber, a queryable, a token, a publisher and a querier, and they work again."""
    at = endpoint()
    key = unique("back")
    first = open_session(goes, listener, listen=at)
    one = opened(sessions, stays, mode, connect=(at,), settings=SOON)
    heard: list[str] = []

    def answer(query: Any) -> None:
        with query:
            query.reply(f"{key}/query", "answer")

    session = one.session
    subscriber = session.declare_subscriber(
        f"{key}/sub", lambda sample: heard.append(sample.payload.to_string())
    )
    queryable = session.declare_queryable(f"{key}/query", answer)
    token = session.liveliness().declare_token(f"{key}/token")
    publisher = session.declare_publisher(f"{key}/pub", **blocking(one))
    querier = session.declare_querier(f"{key}/asked", timeout=QUERY_SECONDS)

    def works(other: Side, name: str) -> None:
        other.matching(f"{key}/sub")
        other.session.put(f"{key}/sub", name, **blocking(other))
        until(lambda: heard, [name].__eq__, PATIENCE)
        heard.clear()
        other.answered(f"{key}/query")
        (reply,) = replies(other.session.get(f"{key}/query", timeout=QUERY_SECONDS))
        assert reply.payload == b"answer"
        (alive,) = replies(other.session.liveliness().get(f"{key}/*", timeout=QUERY_SECONDS))
        assert alive.key == f"{key}/token"
        got: list[str] = []

        def also_answer(query: Any) -> None:
            with query:
                query.reply(f"{key}/asked", name)

        with (
            other.session.declare_subscriber(
                f"{key}/pub", lambda sample: got.append(sample.payload.to_string())
            ),
            other.session.declare_queryable(f"{key}/asked", also_answer),
        ):
            until(lambda: publisher.matching_status.matching, bool, PATIENCE)
            publisher.put(name)
            until(lambda: got, [name].__eq__, PATIENCE)
            until(lambda: querier.matching_status.matching, bool, PATIENCE)
            (reply,) = replies(querier.get())
            assert reply.payload.decode() == name

    with closing(first):
        works(Side(goes, first), "first")
    until(lambda: neighbours(one), lambda found: not found, PATIENCE)
    assert not publisher.matching_status.matching
    for name in ("second", "third"):
        with closing(open_session(goes, listener, listen=at)) as again:
            works(Side(goes, again), name)
        until(lambda: neighbours(one), lambda found: not found, PATIENCE)
    for each in (subscriber, queryable, token, publisher, querier):
        each.undeclare()


@pytest.mark.parametrize(("stays", "goes"), BOTH)
@pytest.mark.parametrize("router", [None, OURS, THEIRS], ids=["direct", "ours", "theirs"])
def test_what_a_session_had_ends_with_it(
    sessions: ExitStack, stays: Any, goes: Any, router: Any
) -> None:
    """Its token, its subscriber, its queryable, and the query that it was to answer."""
    at = endpoint()
    key = unique("ends")
    if router is None:
        one = opened(sessions, stays, "peer", listen=at)
        mode = "peer"
    else:
        opened(sessions, router, "router", listen=at)
        one = opened(sessions, stays, "client", connect=(at,))
        mode = "client"
    changes: list[tuple[str, str]] = []
    held: list[Any] = []
    watcher = one.session.liveliness().declare_subscriber(
        f"{key}/*", lambda sample: changes.append(seen(sample)[1::-1])
    )
    publisher = one.session.declare_publisher(f"{key}/sub")
    # A router that has answered this knows of the subscriber, who hears of later tokens only.
    assert replies(one.session.liveliness().get(unique("nothing"), timeout=QUERY_SECONDS)) == []
    with closing(open_session(goes, mode, connect=(at,))) as session:
        token = session.liveliness().declare_token(f"{key}/token")
        subscriber = session.declare_subscriber(f"{key}/sub")
        queryable = session.declare_queryable(f"{key}/query", held.append)
        until(lambda: changes, [("SampleKind.PUT", f"{key}/token")].__eq__, PATIENCE)
        until(lambda: publisher.matching_status.matching, bool, PATIENCE)
        one.answered(f"{key}/query")
        answers = one.session.get(f"{key}/query", timeout=QUERY_SECONDS)
        until(lambda: held, bool, PATIENCE)
    held.clear()
    assert [each for each in replies(answers) if each != "err Timeout"] == []
    until(lambda: changes[1:], [("SampleKind.DELETE", f"{key}/token")].__eq__, PATIENCE)
    until(lambda: publisher.matching_status.matching, lambda found: not found, PATIENCE)
    assert replies(one.session.get(f"{key}/query", timeout=QUERY_SECONDS)) == []
    watcher.undeclare()
    publisher.undeclare()
    del token, subscriber, queryable


def test_what_a_killed_process_had_ends_with_it(sessions: ExitStack) -> None:
    at = endpoint()
    one = opened(sessions, OURS, "peer", listen=at)
    with one.session.declare_publisher("theirs/x") as publisher, ReferenceProcess() as process:
        them = process.open("peer", {"connect/endpoints": [at]})
        them.subscribe("theirs/**")
        until(lambda: publisher.matching_status.matching, bool, PATIENCE)
        process.kill()
        until(lambda: publisher.matching_status.matching, lambda found: not found, PATIENCE)
    assert neighbours(one) == []


# ---- more than two


def everybody_hears_everybody(sides: list[Side]) -> None:
    """Every put arrives once at every subscriber."""
    key = unique("mesh")
    many = 20
    heard: list[Counter[str]] = [Counter() for _ in sides]
    subscribers = [
        side.session.declare_subscriber(
            f"{key}/*", lambda sample, count=count: count.update([sample.payload.to_string()])
        )
        for side, count in zip(sides, heard, strict=True)
    ]
    hearers = [  # each side's own, so that all are known when all are matched
        side.session.declare_subscriber(f"{key}/known/{number}")
        for number, side in enumerate(sides)
    ]
    for side in sides:
        for number, _ in enumerate(sides):
            side.matching(f"{key}/known/{number}")
    for number, side in enumerate(sides):
        for turn in range(many):
            side.session.put(f"{key}/{number}", f"{number} {turn}", **blocking(side))
    wanted = Counter(f"{number} {turn}" for number in range(len(sides)) for turn in range(many))
    for count in heard:
        until(count.total, lambda found: found >= wanted.total(), PATIENCE)
    assert heard == [wanted] * len(sides)
    for subscriber in (*subscribers, *hearers):
        subscriber.undeclare()


@pytest.mark.parametrize("kinds", ["oto", "tot", "oot", *["tto"] * 10])
def test_gossip_makes_a_triangle_of_a_chain(sessions: ExitStack, kinds: str) -> None:
    """Each knows only the one before it; o is ours, t theirs. In the last the two ends often dial
    each other at the same time: one of the two links must stay, and the same one on both sides."""
    sides: list[Side] = []
    before: tuple[str, ...] = ()
    for kind in kinds:
        at = endpoint()
        api = OURS if kind == "o" else THEIRS
        sides.append(opened(sessions, api, "peer", listen=at, connect=before))
        before = (at,)
    ids = {str(side.session.zid()) for side in sides}
    for side in sides:
        wanted = sorted(ids - {str(side.session.zid())})
        until(partial(neighbours, side), wanted.__eq__, PATIENCE)
    everybody_hears_everybody(sides)


def test_a_mesh_of_four(sessions: ExitStack) -> None:
    """Two and two, each linked with each by hand."""
    sides: list[Side] = []
    known: tuple[str, ...] = ()
    for api in (OURS, THEIRS, OURS, THEIRS):
        at = endpoint()
        sides.append(opened(sessions, api, "peer", listen=at, connect=known))
        known = (*known, at)
    for side in sides:
        until(partial(neighbours, side), lambda found: len(found) == 3, PATIENCE)
    everybody_hears_everybody(sides)


@pytest.mark.parametrize("router", [OURS, THEIRS], ids=["ours", "theirs"])
def test_four_clients_of_a_router(sessions: ExitStack, router: Any) -> None:
    at = endpoint()
    opened(sessions, router, "router", listen=at)
    sides = [opened(sessions, api, "client", connect=(at,)) for api in (OURS, THEIRS, OURS, THEIRS)]
    everybody_hears_everybody(sides)


def test_clients_of_two_routers(sessions: ExitStack) -> None:
    first, second = endpoint(), endpoint()
    opened(sessions, OURS, "router", listen=first)
    opened(sessions, OURS, "router", listen=second, connect=(first,))
    sides = [
        opened(sessions, api, "client", connect=(at,))
        for api, at in ((OURS, first), (THEIRS, first), (OURS, second), (THEIRS, second))
    ]
    everybody_hears_everybody(sides)


@pytest.mark.parametrize(("asks", "other"), BOTH)
def test_queryables_of_several_sessions(sessions: ExitStack, asks: Any, other: Any) -> None:
    """ALL reaches all of them, ALL_COMPLETE the complete ones, BEST_MATCHING one complete one."""
    at = endpoint()
    key = unique("several")
    one = opened(sessions, asks, "peer", listen=at)
    kinds = [(asks, True), (other, True), (other, False)]
    kept = []
    for number, (api, complete) in enumerate(kinds):
        side = opened(sessions, api, "peer", connect=(at,))

        def answer(query: Any, number: int = number) -> None:
            with query:
                query.reply(f"{key}/{number}", str(number))

        kept.append(side.session.declare_queryable(f"{key}/*", answer, complete=complete))
        kept.append(side.session.declare_queryable(f"{key}/known/{number}", answer))
        one.answered(f"{key}/known/{number}")
    found: dict[str, list[str]] = {}
    for target in ("ALL", "ALL_COMPLETE", "BEST_MATCHING"):
        answers = one.session.get(
            f"{key}/*", target=getattr(asks.QueryTarget, target), timeout=QUERY_SECONDS
        )
        found[target] = sorted(each.payload.decode() for each in replies(answers))
    assert found["ALL"] == ["0", "1", "2"]
    assert found["ALL_COMPLETE"] == ["0", "1"]
    assert found["BEST_MATCHING"] in (["0"], ["1"])
    for queryable in kept:
        queryable.undeclare()


# ---- what a session says of its neighbours


@pytest.mark.parametrize(("dials", "listens"), BOTH)
@pytest.mark.parametrize(
    ("mode", "listener"), [("peer", "peer"), ("client", "peer"), ("client", "router")]
)
def test_session_info(
    sessions: ExitStack, dials: Any, listens: Any, mode: str, listener: str
) -> None:
    """Both describe the same session, each from its end."""
    at = endpoint()
    one = opened(sessions, listens, listener, listen=at)
    other = opened(sessions, dials, mode, connect=(at,))
    own, far = str(one.session.zid()), str(other.session.zid())
    until(lambda: len(one.session.info.links()), lambda found: found == 1, PATIENCE)
    routers = [str(zid) for zid in other.session.info.routers_zid()]
    peers = [str(zid) for zid in other.session.info.peers_zid()]
    assert (routers, peers) == (([own], []) if listener == "router" else ([], [own]))
    assert [str(zid) for zid in one.session.info.routers_zid()] == []
    assert [str(zid) for zid in one.session.info.peers_zid()] == ([far] if mode == "peer" else [])
    for side, zid, whatami in ((one, far, mode), (other, own, listener)):
        assert str(side.session.info.zid()) == str(side.session.zid())
        (transport,) = side.session.info.transports()
        assert (str(transport.zid), str(transport.whatami)) == (zid, whatami)
        assert transport.is_qos
        assert not transport.is_multicast
    (here,), (there,) = one.session.info.links(), other.session.info.links()
    assert (str(here.zid), str(there.zid)) == (far, own)
    assert (str(here.src), str(here.dst)) == (str(there.dst), str(there.src))
    assert str(there.dst) == at
    assert here.is_streamed
    assert there.is_streamed
    assert list(here.interfaces) == list(there.interfaces) == ["lo"]
    assert {len(str(link.group or "")) for link in (here, there)} == {0}


@pytest.mark.parametrize(("api", "other"), BOTH)
def test_transport_and_link_events(sessions: ExitStack, api: Any, other: Any) -> None:
    at = endpoint()
    one = opened(sessions, api, "peer", listen=at)
    events: list[tuple[str, str]] = []
    with (
        one.session.info.declare_transport_events_listener(
            lambda event: events.append((str(event.kind), str(event.transport.zid)))
        ),
        one.session.info.declare_link_events_listener(
            lambda event: events.append((str(event.kind), str(event.link.zid)))
        ),
    ):
        with closing(open_session(other, "peer", connect=(at,))) as session:
            zid = str(session.zid())
            until(lambda: events, lambda found: len(found) >= 2, PATIENCE)
        until(lambda: events, lambda found: len(found) >= 4, PATIENCE)
    assert events == [("SampleKind.PUT", zid)] * 2 + [("SampleKind.DELETE", zid)] * 2


# ---- advanced


@pytest.mark.parametrize(("publishes", "subscribes"), BOTH)
def test_an_advanced_subscriber_gets_what_was_before(
    sessions: ExitStack, publishes: Any, subscribes: Any
) -> None:
    at = endpoint()
    key = unique("advanced")
    stamping = {"timestamping/enabled": True}
    one = opened(sessions, publishes, "peer", listen=at, settings=stamping)
    theirs, ours = EXT[publishes], EXT[subscribes]
    publisher = theirs.declare_advanced_publisher(
        one.session,
        key,
        cache=theirs.CacheConfig(max_samples=3),
        sample_miss_detection=theirs.MissDetectionConfig(heartbeat=0.2),
        publisher_detection=True,
        **blocking(one),
    )
    for number in range(5):
        publisher.put(str(number))
    other = opened(sessions, subscribes, "peer", connect=(at,), settings=stamping)
    heard: list[tuple[str, int]] = []
    subscriber = ours.declare_advanced_subscriber(
        other.session,
        key,
        lambda sample: heard.append((sample.payload.to_string(), sample.source_info.source_sn)),
        history=ours.HistoryConfig(detect_late_publishers=True),
        recovery=ours.RecoveryConfig(heartbeat=True),
        subscriber_detection=True,
    )
    until(lambda: heard, [("2", 2), ("3", 3), ("4", 4)].__eq__, PATIENCE)
    one.matching(key)
    publisher.put("5")
    until(lambda: heard[3:], [("5", 5)].__eq__, PATIENCE)
    subscriber.undeclare()
    publisher.undeclare()
