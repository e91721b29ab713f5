"""Clients with several links to one router (strategy allOf), between both implementations."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.golden.proxy import free_port
from tests.support.interop_pair import OURS, PATIENCE, THEIRS, open_session, settling, unique
from tests.support.waiting import until

pytestmark = pytest.mark.interop

COUNT = 20
SIZE = 2000
EXPECTED = [number.to_bytes(4, "little") * (SIZE // 4) for number in range(COUNT)]
SETTINGS = {"transport/unicast/max_links": 2}
IN_TIME = {"connect/timeout_ms": 1500}
WAYS = [(OURS, OURS), (OURS, THEIRS), (THEIRS, OURS), (THEIRS, THEIRS)]
IDS = ["ours at ours", "ours at theirs", "theirs at ours", "theirs at theirs"]


@contextmanager
def routers(api: Any, *listens: list[str], **settings: Any) -> Iterator[list[Any]]:
    with settling(), ExitStack() as stack:
        opened = []
        for endpoints in listens:
            told = {**SETTINGS, **settings, "listen/endpoints": endpoints}
            opened.append(open_session(api, "router", settings=told))
            stack.callback(opened[-1].close)
        yield opened


@contextmanager
def client(api: Any, endpoints: list[Any], **settings: Any) -> Iterator[Any]:
    told = {**SETTINGS, **settings, "connect/endpoints": endpoints}
    session = open_session(api, "client", settings=told)
    try:
        yield session
    finally:
        session.close()


def addresses(count: int) -> list[str]:
    return [f"tcp/127.0.0.1:{free_port()}" for _ in range(count)]


def all_of(*endpoints: str) -> dict[str, Any]:
    return {"strategy": "allOf", "locators": list(endpoints)}


def send(api: Any, sender: Any, receiver: Any, priority: Any) -> list[bytes]:
    """Have COUNT messages sent and received; return them as received."""
    key = unique("links")
    found: list[bytes] = []
    block = api.CongestionControl.BLOCK
    with (
        receiver.declare_subscriber(key, lambda sample: found.append(sample.payload.to_bytes())),
        sender.declare_publisher(key, congestion_control=block, priority=priority) as publisher,
    ):
        until(lambda: publisher.matching_status.matching, bool, PATIENCE)
        for payload in EXPECTED:
            publisher.put(payload)
        until(lambda: len(found), lambda n: n >= COUNT, PATIENCE)
    return found


@pytest.mark.parametrize("patience", [{}, IN_TIME], ids=["one attempt", "in time"])
@pytest.mark.parametrize(("connects", "listens"), WAYS, ids=IDS)
def test_a_client_has_a_link_over_each_locator_of_its_group(
    connects: Any, listens: Any, patience: dict[str, Any]
) -> None:
    one, other = addresses(2)
    group = all_of(f"{one}?prio=1-3", f"{other}?prio=4-7")
    with (
        routers(listens, [one, other]) as (router,),
        client(connects, [group], **patience) as session,
    ):
        assert len(session.info.links()) == 2
        until(lambda: router.info.links(), lambda links: len(links) == 2, PATIENCE)
        for api, sender, receiver in (
            (connects, session, router),
            (listens, router, session),
        ):
            for priority in (api.Priority.INTERACTIVE_HIGH, api.Priority.BACKGROUND):
                assert send(api, sender, receiver, priority) == EXPECTED


@pytest.mark.parametrize("api", [OURS, THEIRS], ids=["ours", "theirs"])
@pytest.mark.parametrize(
    ("case", "links"),
    [
        ("a list", 1),
        ("a group with a dead locator", 1),
        ("a dead group before a live one", 2),
        ("two routers", 1),
        ("max_links 1", 1),
    ],
)
def test_a_client_that_tries_once_opens_with_what_it_gets(api: Any, case: str, links: int) -> None:
    one, other, dead, third = addresses(4)
    cases: dict[str, list[Any]] = {
        "a list": [one, other],
        "a group with a dead locator": [all_of(dead, one)],
        "a dead group before a live one": [all_of(dead), all_of(one, other)],
        "two routers": [all_of(one, third)],
        "max_links 1": [all_of(one, other)],
    }
    most = {"transport/unicast/max_links": 1} if case == "max_links 1" else {}
    with (
        routers(THEIRS, [one, other], [third]) as (router, _),
        client(api, cases[case], **most) as session,
    ):
        assert len(session.info.links()) == links
        assert list(map(str, session.info.routers_zid())) == [str(router.zid())]


@pytest.mark.parametrize("api", [OURS, THEIRS], ids=["ours", "theirs"])
@pytest.mark.parametrize("case", ["a dead locator", "two routers", "max_links 1"])
def test_a_client_that_waits_needs_a_link_over_each_locator(api: Any, case: str) -> None:
    one, other, dead, third = addresses(4)
    group = {
        "a dead locator": all_of(one, dead),
        "two routers": all_of(one, third),
        "max_links 1": all_of(one, other),
    }[case]
    most = {"transport/unicast/max_links": 1} if case == "max_links 1" else {}
    with (
        routers(THEIRS, [one, other], [third]),
        pytest.raises(api.ZError, match="Unable to connect to any of"),
        client(api, [group], **most, **IN_TIME),
    ):
        pass
