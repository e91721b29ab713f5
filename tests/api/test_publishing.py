"""Puts by several threads, in every way at once: all arrive, each publisher's in order."""

import threading
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

import zenlake
from tests.golden.proxy import free_port
from tests.support.interop_pair import open_session
from tests.support.session_pairs import opened
from tests.support.waiting import until
from zenlake.runtime import kernel_loader

pytestmark = pytest.mark.slow

PUTS = 3000
PATIENCE = 60.0


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    kernel_loader.load()


def _count(heard: dict[str, list[int]]) -> int:
    return sum(map(len, heard.values()))


@pytest.mark.parametrize("receivers", [1, 3])
def test_threads_that_put_small_large_and_with_attachments(receivers: int) -> None:
    at = f"tcp/127.0.0.1:{free_port()}"
    got: list[dict[str, list[int]]] = []
    sessions: list[Any] = [open_session(zenlake, "peer", listen=at)]
    for _ in range(receivers):
        session = open_session(zenlake, "peer", connect=(at,))
        sessions.append(session)
        heard: dict[str, list[int]] = defaultdict(list)
        got.append(heard)

        def note(sample: zenlake.Sample, heard: dict[str, list[int]] = heard) -> None:
            heard[str(sample.key_expr)].append(int(bytes(sample.payload)[:8]))

        session.declare_subscriber("p/**", note)
    sender = sessions[0]

    def put(thread: int) -> None:
        publisher = sender.declare_publisher(
            f"p/{thread}", congestion_control=zenlake.CongestionControl.BLOCK
        )
        for i in range(PUTS):
            payload = b"%08d" % i
            if thread == 0 and i % 50 == 0:
                payload += bytes(100_000)  # in fragments
            if thread == 1 and i % 7 == 0:
                publisher.put(payload, attachment=b"a")
            elif thread == 2 and i % 5 == 0:
                publisher.put(zenlake.ZBytes(payload))
            else:
                publisher.put(payload)
        publisher.undeclare()

    try:
        with sender.declare_publisher("p/x") as probe:
            until(lambda: probe.matching_status.matching, bool, PATIENCE)
        # A peer gets everything until it has said what it declares at first, then what it wants.
        ways = partial(sender._core.exchange.outbound_faces, "p/x")
        until(
            lambda: sum(port.face.initial_done for port, _ in ways()),
            lambda n: n == receivers,
            PATIENCE,
        )
        threads = [threading.Thread(target=put, args=(thread,)) for thread in range(4)]
        for worker in threads:
            worker.start()
        for worker in threads:
            worker.join(PATIENCE)
            assert not worker.is_alive()
        expected = {f"p/{thread}": list(range(PUTS)) for thread in range(4)}
        for heard in got:
            count = partial(_count, heard)
            until(count, lambda n: n >= 4 * PUTS, PATIENCE)
            assert heard == expected
        assert sender.stats().dropped == {}
    finally:
        for session in reversed(sessions):
            session.close()


def test_a_put_that_was_taken_before_others_came_goes_to_them_afterwards() -> None:
    """A method that was looked up once is good for ever."""
    at = f"tcp/127.0.0.1:{free_port()}"
    with open_session(zenlake, "peer", listen=at) as one:
        publisher = one.declare_publisher("k", congestion_control=zenlake.CongestionControl.BLOCK)
        put = publisher.put
        put(b"nobody hears")
        own = one.declare_subscriber("k")
        put(b"one")
        assert bytes(own.recv().payload) == b"one"
        with open_session(zenlake, "peer", connect=(at,)) as other:
            theirs = other.declare_subscriber("k")
            own.undeclare()
            until(lambda: publisher.matching_status.matching, bool, PATIENCE)
            for payload in (b"two", b"three", b"four"):
                put(payload)
            assert [bytes(theirs.recv().payload) for _ in range(3)] == [b"two", b"three", b"four"]
            theirs.undeclare()
        publisher.undeclare()
        with pytest.raises(zenlake.ZError, match="Undeclared publisher"):
            publisher.put(b"x")


def test_a_put_after_the_session_closed_says_so() -> None:
    session = open_session(zenlake, "peer")
    publisher = session.declare_publisher("k")
    put = publisher.put
    session.close()
    for call in (put, publisher.put):
        with pytest.raises(zenlake.ZError, match="session closed"):
            call(b"x")


def test_a_publisher_that_nobody_holds_is_undeclared() -> None:
    with open_session(zenlake, "peer") as session:
        publisher = session.declare_publisher("k")
        publisher.put(b"x")
        interests = session._core.interests
        (declared,) = interests._kinds["subscribers"].watches
        assert declared[0] == "k"
        del publisher
        assert not list(interests._kinds["subscribers"].watches)


def test_a_put_loses_nothing_while_another_thread_looks_for_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened() as session:
        heard: list[bytes] = []
        publisher = session.declare_publisher("t/x")
        assert publisher._route.plain == (), "there is no subscriber, here or elsewhere"
        subscriber = session.declare_subscriber("t/x", lambda s: heard.append(bytes(s.payload)))
        way = publisher._route
        way.refresh()  # as another thread does, after this one has seen the way for plain puts
        assert way.plain is None
        way.put_plain(b"1")
        during = []
        outbound_faces = way.exchange.outbound_faces

        def looking(key: str, declare: bool) -> Any:
            during.append((way.ports, way.local))
            return outbound_faces(key, declare)

        before = (way.ports, way.local)
        monkeypatch.setattr(way.exchange, "outbound_faces", looking)
        way.refresh()
        assert during == [before], "who wants it is known all the time"
        assert before[1]
        publisher.put(b"2")
        until(lambda: heard, lambda found: len(found) == 2)
        assert heard == [b"1", b"2"]
        subscriber.undeclare()
