"""A router in a program: `zenlake.router.run`."""

import threading
import time
from typing import Any

import pytest

import zenlake
import zenlake.router
from tests.support.interop_pair import OURS, THEIRS, Side, open_session
from tests.support.waiting import until
from zenlake.errors import ZError
from zenlake.router import Event, Router
from zenlake.runtime import kernel_loader

pytestmark = pytest.mark.slow

STALL_LIMIT = 60.0


@pytest.fixture(autouse=True)
def _kernels() -> None:
    kernel_loader.load()


def test_run_listens_where_it_is_told() -> None:
    with zenlake.router.run(listen=["tcp/127.0.0.1:0", "tcp/127.0.0.1:0"]) as router:
        assert len(set(router.locators)) == 2
        assert all(at.startswith("tcp/127.0.0.1:") for at in router.locators)
        assert str(router.zid) in repr(router)
        assert router.zid == router.session.zid()
    assert router.session.is_closed()
    router.close()


def test_run_keeps_to_a_configuration_and_leaves_it_alone() -> None:
    config = zenlake.Config()
    config.insert_json5("id", '"c0de"')
    config.insert_json5("mode", '"client"')
    config.insert_json5("scouting/multicast/enabled", "false")
    with zenlake.router.run(config=config) as router:
        assert str(router.zid) == "c0de"
    assert config.get_json("mode") == '"client"'


def test_a_router_has_mode_router() -> None:
    with pytest.raises(ZError, match="router"):
        Router(zenlake.Config())


def test_what_cannot_be_listened_at() -> None:
    with zenlake.router.run() as router, pytest.raises(ZError, match=r"127\.0\.0\.1"):
        zenlake.router.run(listen=router.locators)


def test_who_comes_and_goes() -> None:
    events: list[Event] = []
    with zenlake.router.run(watch=events.append) as router:
        empty = router.tables()
        session = open_session(OURS, "client", connect=tuple(router.locators))
        until(lambda: len(events), lambda found: found == 1)
        (transport,) = router.stats().transports
        assert (events[0].opened, events[0].zid) == (True, session.zid())
        assert (transport.zid, transport.whatami) == (session.zid(), zenlake.WhatAmI.CLIENT)
        session.close()
        until(lambda: len(events), lambda found: found == 2)
        assert (events[1].opened, events[1].zid, events[1].by_peer) == (False, session.zid(), True)
        assert events[1].reason == "GENERIC"
        until(router.tables, lambda now: now == empty)


def test_its_own_session_is_as_good_as_any() -> None:
    with zenlake.router.run() as router:
        session = open_session(OURS, "client", connect=tuple(router.locators))
        with session, router.session.declare_subscriber("a") as subscriber:
            with session.declare_publisher("a") as publisher:
                until(lambda: publisher.matching_status.matching, bool)
                publisher.put("there")
                assert subscriber.recv().payload.to_string() == "there"
            with session.declare_subscriber("b") as back:
                with router.session.declare_publisher("b") as publisher:
                    until(lambda: publisher.matching_status.matching, bool)
                    publisher.put("back")
                assert back.recv().payload.to_string() == "back"


def test_closing_waits_while_something_comes() -> None:
    with zenlake.router.run() as router:
        session = open_session(OURS, "client", connect=tuple(router.locators))
        with session:
            until(lambda: router.stats().transports, bool)
            assert router.drain(seconds=0.0) is False
            assert router.drain() is True


@pytest.mark.interop
def test_closing_waits_while_a_receiver_stalls() -> None:
    """Bytes that back-pressure keeps from being read are not drained."""
    heard: list[bytes] = []
    sent: list[bytes] = []
    go_on = threading.Event()
    router = zenlake.router.run()
    at = tuple(router.locators)
    receiver, sender = (open_session(THEIRS, "client", connect=at) for _ in range(2))

    def on_sample(sample: Any) -> None:
        go_on.wait(STALL_LIMIT)
        heard.append(bytes(sample.payload))

    subscriber = receiver.declare_subscriber("a", on_sample)
    Side(THEIRS, sender).matching("a")
    publisher = sender.declare_publisher("a", congestion_control=THEIRS.CongestionControl.BLOCK)

    def put_until_it_stalls() -> None:
        while not go_on.is_set():
            payload = len(sent).to_bytes(4, "big") + bytes(20_000)
            publisher.put(payload)
            sent.append(payload)

    putting = threading.Thread(target=put_until_it_stalls)
    putting.start()
    until(lambda: any(session._paused for session in router._core.node.sessions.values()))
    closing = threading.Thread(target=router.close)
    closing.start()
    time.sleep(5 * zenlake.router.QUIET_SECONDS)
    assert closing.is_alive()
    before = list(sent)
    go_on.set()
    putting.join(STALL_LIMIT)
    closing.join(STALL_LIMIT)
    until(lambda: len(heard), lambda found: found >= len(before))
    assert heard[: len(before)] == before
    subscriber.undeclare()
    sender.close()
    receiver.close()
