"""Sessions over several links, between both implementations: which link carries which messages,
and that a session outlives one of its links."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from time import sleep
from typing import Any

import pytest

from tests.golden.proxy import free_port
from tests.support.fault_proxy import FaultProxy
from tests.support.interop_pair import OURS, PATIENCE, THEIRS, open_session, settling, unique
from tests.support.waiting import until
from zenlake.errors import LinkError
from zenlake.runtime.transport_session import TransportSession
from zenlake.wire.enums import WirePriority

pytestmark = pytest.mark.interop

COUNT = 20
SIZE = 2000
PUT_SECONDS = 0.005  # Between two messages: a lane that pauses for long may move by itself.
SETTINGS = {"transport/unicast/max_links": 2, "scouting/gossip/enabled": False}
WAYS = [(OURS, OURS), (OURS, THEIRS), (THEIRS, OURS)]
IDS = ["ours connects to ours", "ours connects to theirs", "theirs connects to ours"]


@contextmanager
def two_links(connects: Any, listens: Any, kinds: tuple[str, str]) -> Iterator[tuple[Any, Any]]:
    """Open two peers with two links between them, one for each of `kinds`."""
    endpoints = [f"tcp/127.0.0.1:{free_port()}?{kind}" for kind in kinds]
    with settling(), ExitStack() as stack:
        listener = open_session(
            listens, "peer", settings={**SETTINGS, "listen/endpoints": endpoints}
        )
        stack.callback(listener.close)
        connector = open_session(connects, "peer", connect=tuple(endpoints), settings=SETTINGS)
        stack.callback(connector.close)
        for session in (listener, connector):
            until(session.info.links, lambda links: len(links) == 2, PATIENCE)
            assert len(session.info.transports()) == 1
        yield connector, listener


def links_of(session: Any) -> dict[str, TransportSession]:
    """Return the links of our session, by the metadata of their QoS."""
    (whole,) = session.info._node.sessions.values()
    return {link.agreement.link_qos.metadata(): link for link in whole.links}


def send(api: Any, sender: Any, receiver: Any, qos: dict[str, Any]) -> list[bytes]:
    """Have COUNT messages sent and received; return them as received."""
    key = unique("multilink")
    with (
        receiver.declare_subscriber(key) as subscriber,
        sender.declare_publisher(
            key, congestion_control=api.CongestionControl.BLOCK, **qos
        ) as publisher,
    ):
        until(lambda: publisher.matching_status.matching, bool, PATIENCE)
        for number in range(COUNT):
            publisher.put(number.to_bytes(4, "little") * (SIZE // 4))
        found: list[bytes] = []

        def received() -> int:
            while (sample := subscriber.try_recv()) is not None:
                found.append(sample.payload.to_bytes())
            return len(found)

        until(received, lambda n: n >= COUNT, PATIENCE)
    return found


EXPECTED = [number.to_bytes(4, "little") * (SIZE // 4) for number in range(COUNT)]


def by_priority(api: Any) -> dict[str, dict[str, Any]]:
    return {
        "?prio=1-3": {"priority": api.Priority.INTERACTIVE_HIGH},
        "?prio=4-7": {"priority": api.Priority.BACKGROUND},
    }


def by_reliability(api: Any) -> dict[str, dict[str, Any]]:
    return {
        "?rel=1": {"reliability": api.Reliability.RELIABLE},
        "?rel=0": {"reliability": api.Reliability.BEST_EFFORT},
    }


@pytest.mark.parametrize(("connects", "listens"), WAYS, ids=IDS)
@pytest.mark.parametrize("kinds", [by_priority, by_reliability])
def test_each_link_carries_the_messages_that_it_is_meant_for(
    connects: Any, listens: Any, kinds: Any
) -> None:
    first, second = (kind[1:] for kind in kinds(OURS))
    with two_links(connects, listens, (first, second)) as (connector, listener):
        for api, sender, receiver in (
            (connects, connector, listener),
            (listens, listener, connector),
        ):
            ours = sender if api is OURS else receiver
            for kind, qos in kinds(api).items():
                links = links_of(ours)
                assert set(links) == set(kinds(OURS))
                (other,) = set(links) - {kind}

                def carried(
                    name: str, links: dict[str, TransportSession] = links, sends: bool = api is OURS
                ) -> int:
                    counters = links[name].counters
                    return counters.sent_bytes if sends else counters.received_bytes

                before = carried(kind), carried(other)
                assert send(api, sender, receiver, qos) == EXPECTED
                assert carried(kind) - before[0] >= COUNT * SIZE
                assert carried(other) - before[1] < SIZE


@pytest.mark.parametrize(("connects", "listens"), WAYS, ids=IDS)
def test_a_session_outlives_one_of_its_links(connects: Any, listens: Any) -> None:
    with two_links(connects, listens, ("prio=1-3", "prio=4-7")) as (connector, listener):
        ours = connector if connects is OURS else listener
        (whole,) = ours.info._node.sessions.values()
        lost = links_of(ours)["?prio=1-3"]
        error = LinkError("cut by the test")
        ours.info._node.reactor.call_soon(lambda: lost._on_broken_link(error))
        until(lambda: lost in whole.links, lambda there: not there, PATIENCE)
        for api, sender, receiver in (
            (connects, connector, listener),
            (listens, listener, connector),
        ):
            for qos in by_priority(api).values():
                assert send(api, sender, receiver, qos) == EXPECTED
        assert list(ours.info._node.sessions.values()) == [whole]
        assert whole.over is None


@pytest.mark.parametrize(("connects", "listens"), WAYS, ids=IDS)
@pytest.mark.parametrize("kind", ["?prio=1-3", "?prio=4-7"])
def test_a_lane_without_a_pause_comes_back_to_the_link_that_is_meant_for_it(
    connects: Any, listens: Any, kind: str
) -> None:
    kinds = by_priority(OURS)
    with two_links(connects, listens, ("prio=1-3", "prio=4-7")) as (connector, listener):
        api, sender, receiver = OURS, connector, listener
        if connects is THEIRS:
            sender, receiver = listener, connector
        (whole,) = sender.info._node.sessions.values()
        key, got = unique("back"), []
        with (
            receiver.declare_subscriber(key, lambda sample: got.append(int(str(sample.payload)))),
            sender.declare_publisher(
                key, congestion_control=api.CongestionControl.BLOCK, **kinds[kind]
            ) as publisher,
        ):
            numbers = count()

            def is_used() -> bool:
                """Whether more than KEEP_ALIVE leaves on the link, while the lane is busy."""
                links = links_of(sender)
                before = links[kind].counters.sent_bytes if kind in links else 0
                for _ in range(20):
                    publisher.put(f"{next(numbers):0500}")
                    sleep(PUT_SECONDS)
                return kind in links and links[kind].counters.sent_bytes - before > 5000

            until(lambda: publisher.matching_status.matching, bool, PATIENCE)
            until(is_used, bool, PATIENCE)
            lost = links_of(sender)[kind]
            error = LinkError("cut by the test")
            sender.info._node.reactor.call_soon(lambda: lost._on_broken_link(error))
            until(lambda: lost in whole.links, lambda there: not there, PATIENCE)
            last = next(numbers)
            publisher.put(str(last))
            until(is_used, bool, PATIENCE)
            end = next(numbers)
            publisher.put(str(end))
            until(lambda: got and got[-1] == end, bool, PATIENCE)
            assert got[got.index(last) :] == list(range(last, end + 1))
            assert whole.over is None


@pytest.mark.parametrize(("connects", "listens"), [*WAYS, (THEIRS, THEIRS)])
def test_a_spare_endpoint_takes_the_place_of_a_lost_link(connects: Any, listens: Any) -> None:
    """With more endpoints than links."""
    ports = [free_port() for _ in range(3)]
    at = [f"tcp/127.0.0.1:{port}" for port in ports]
    with settling(), ExitStack() as stack:
        listener = open_session(listens, "peer", settings={**SETTINGS, "listen/endpoints": at})
        stack.callback(listener.close)
        proxies = {}
        for port in ports:
            proxy = FaultProxy(port)
            proxies[proxy.locator] = stack.enter_context(ExitStack())
            proxies[proxy.locator].enter_context(proxy)
        quick = {"connect/retry": {"period_init_ms": 100, "period_max_ms": 200}}
        connector = open_session(
            connects, "peer", connect=tuple(proxies), settings={**SETTINGS, **quick}
        )
        stack.callback(connector.close)

        def used() -> set[str]:
            return {str(link.dst) for link in connector.info.links()}

        before = until(used, lambda found: len(found) == 2, PATIENCE)
        (spare,) = set(proxies) - before
        proxies[min(before)].close()
        until(used, lambda found: found == {spare, max(before)}, PATIENCE)


@pytest.mark.parametrize("other", [OURS, THEIRS], ids=["with ours", "with theirs"])
@pytest.mark.parametrize("connects", [True, False], ids=["connecting", "listening"])
def test_declarations_on_their_way_over_a_link_that_is_lost_arrive(
    other: Any, connects: bool
) -> None:
    kinds = ("?prio=1-3", "?prio=4-7")
    ports = [free_port() for _ in kinds]
    with settling(), ExitStack() as stack:
        proxies = {
            kind: stack.enter_context(FaultProxy(port))
            for kind, port in zip(kinds, ports, strict=True)
        }
        near, far = (OURS, other) if connects else (other, OURS)
        at = [f"tcp/127.0.0.1:{port}" for port in ports]
        listener = open_session(far, "peer", settings={**SETTINGS, "listen/endpoints": at})
        stack.callback(listener.close)
        through = tuple(proxy.locator + kind for kind, proxy in proxies.items())
        connector = open_session(near, "peer", connect=through, settings=SETTINGS)
        stack.callback(connector.close)
        declares, hears = (connector, listener) if connects else (listener, connector)
        until(declares.info.links, lambda links: len(links) == 2, PATIENCE)
        (whole,) = declares.info._node.sessions.values()
        key = unique("lost")
        kept, gone = (declares.liveliness().declare_token(f"{key}/{name}") for name in "ab")

        def tokens() -> set[str]:
            found = hears.liveliness().get(f"{key}/*")
            return {str(reply.ok.key_expr) for reply in found}

        until(tokens, lambda found: found == {f"{key}/a", f"{key}/b"}, PATIENCE)
        publisher = hears.declare_publisher(key)
        carrier = whole.link_for(WirePriority.CONTROL, True)
        proxy = proxies[carrier.agreement.link_qos.metadata()]
        proxy.half_open()
        subscriber = declares.declare_subscriber(key)
        gone.undeclare()
        proxy.reset(restore=True)
        until(lambda: publisher.matching_status.matching, bool, PATIENCE)
        until(tokens, lambda found: found == {f"{key}/a"}, PATIENCE)
        publisher.put(b"arrives")
        assert subscriber.recv().payload.to_bytes() == b"arrives"
        assert list(declares.info._node.sessions.values()) == [whole]
        kept.undeclare()
