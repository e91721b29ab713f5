"""Nothing is lost without being counted: what a session sent, received and let go, and why."""

import threading
from typing import Any

import pytest

import zenlake
from tests.support.raw_link import RawLink
from tests.support.session_pairs import listening, opened, pair, publisher_for
from tests.support.waiting import until
from zenlake.handlers import FifoChannel, RingChannel
from zenlake.runtime import kernel_loader
from zenlake.wire.frame import Frame
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

RAW = WireZenohId(b"\x77" * 8)


@pytest.fixture(autouse=True)
def _kernels() -> None:
    kernel_loader.load()  # many messages at once make a session load them, on a thread


def push(key: str = "a/b", payload: bytes = b"x") -> Push:
    return Push(WireExpr(0, key), Put(payload))


def test_what_was_sent_and_received_is_counted() -> None:
    with pair() as (listener, dialler):
        sub = dialler.declare_subscriber("a/**")
        publisher = publisher_for(listener, "a/b")
        before = listener.stats(), dialler.stats()
        for _ in range(10):
            publisher.put(bytes(100))
        for _ in range(10):
            sub.recv()
        until(lambda: listener.stats().sent_messages >= before[0].sent_messages + 10)
        sent, received = listener.stats(), dialler.stats()
        assert sent.sent_bytes >= before[0].sent_bytes + 1000
        assert received.received_bytes >= before[1].received_bytes + 1000
        assert received.received_frames > before[1].received_frames
        assert sent.dropped == received.dropped == {}
        assert sent.missing == received.missing == 0
        (transport,) = sent.transports
        assert transport.zid == dialler.zid()
        assert transport.whatami is zenlake.WhatAmI.PEER
        assert transport.sent_bytes == sent.sent_bytes
        assert (transport.dropped, [gap.missing for gap in transport.gaps if gap.missing]) == (
            {},
            [],
        )


def test_the_sums_stay_when_a_transport_ends() -> None:
    with pair() as (listener, dialler):
        sub = dialler.declare_subscriber("a/**")
        publisher_for(listener, "a/b").put(bytes(1000))
        sub.recv()
        dialler.close()
        until(lambda: not listener.info.peers_zid())
        until(lambda: listener.stats().sent_bytes > 1000)
        assert listener.stats().transports == ()
        assert dialler.stats().received_bytes > 1000


def test_what_a_slow_reader_makes_others_drop_is_counted_by_the_sender() -> None:
    with pair() as (listener, dialler):
        sub = dialler.declare_subscriber("a/**", FifoChannel(1))
        publisher = publisher_for(listener, "a/b")
        count = 0
        while not listener.stats().dropped:
            publisher.put(bytes(50_000))
            count += 1
            assert count < 100_000
        (reason,) = listener.stats().dropped
        assert reason.startswith("congestion_")
        got = [sub.recv() for _ in range(2)]
        assert len(got) == 2
        received = len(got)
        end = publisher_for(listener, "a/end", congestion_control=zenlake.CongestionControl.BLOCK)
        stop = threading.Thread(target=end.put, args=("end",))
        stop.start()
        while str((sample := sub.recv()).key_expr) != "a/end":
            received += 1
        stop.join()
        assert len(sample.payload) == 3
        dropped = sum(listener.stats().dropped.values())
        assert received + dropped == count  # every one of them is accounted for


def test_what_a_ring_pushes_out_is_counted() -> None:
    with opened() as session:
        sub = session.declare_subscriber("a", RingChannel(2))
        for _ in range(5):
            session.put("a", "x")
        assert session.stats().dropped == {"handler_full": 3}
        sub.undeclare()


def test_what_was_let_go_stays_counted_when_its_subscriber_goes() -> None:
    with opened() as session:
        sub = session.declare_subscriber("a", RingChannel(2))
        for _ in range(5):
            session.put("a", "x")
        sub.undeclare()
        assert session.stats().dropped["handler_full"] >= 3


def raw_session() -> tuple[zenlake.Session, RawLink]:
    session, port = listening()
    return session, RawLink(port, RAW)


def test_gaps_are_counted_by_lane() -> None:
    session, link = raw_session()
    with session, link:
        sub = session.declare_subscriber("a/**")
        link.send(push())
        sub.recv()
        link.next_sn += 3
        link.send(push())
        sub.recv()
        link.next_sn += 2
        link.send(push())
        sub.recv()
        stats = session.stats()
        assert stats.missing == 5
        (transport,) = stats.transports
        (gap,) = [gap for gap in transport.gaps if gap.gaps]
        assert (gap.lane, gap.gaps, gap.missing, gap.stale) == ("DATA RELIABLE", 2, 5, 0)


def test_what_comes_twice_is_counted_and_not_delivered() -> None:
    session, link = raw_session()
    with session, link:
        sub = session.declare_subscriber("a/**")
        link.send(push(payload=b"1"))
        link.next_sn -= 1
        link.send(push(payload=b"again"))
        link.send(push(payload=b"2"))
        assert [str(sub.recv().payload) for _ in range(2)] == ["1", "2"]
        (transport,) = session.stats().transports
        assert sum(gap.stale for gap in transport.gaps) == 1
        assert session.stats().missing == 0


def test_the_best_effort_lane_has_its_own_numbers() -> None:
    session, link = raw_session()
    with session, link:
        sub = session.declare_subscriber("a/**")
        link.send(push())
        link.send_batch([Frame(4, reliable=False, messages=[push()])])
        for _ in range(2):
            sub.recv()
        (transport,) = session.stats().transports
        lanes = {gap.lane: gap.missing for gap in transport.gaps}
        assert lanes == {"DATA RELIABLE": 0, "DATA BEST_EFFORT": 4}


def test_a_key_that_was_never_declared_is_counted() -> None:
    session, link = raw_session()
    with session, link:
        sub = session.declare_subscriber("**")
        link.send(Push(WireExpr(99), Put(b"x")))
        link.send(push())
        sub.recv()
        assert session.stats().dropped == {"unknown_key": 1}


def test_a_timestamp_of_the_future_is_counted() -> None:
    """Where the node stamps what passes, and was told to refuse what it cannot believe."""
    settings: dict[str, Any] = {
        "timestamping__enabled": True,
        "timestamping__drop_future_timestamp": True,
    }
    session, port = listening(mode="router", **settings)
    address = [f"tcp/127.0.0.1:{port}"]
    with (
        session,
        opened(mode="client", connect__endpoints=address) as far,
        opened(mode="client", connect__endpoints=address) as near,
    ):
        sub = near.declare_subscriber("a/**")
        publisher = publisher_for(far, "a/b")
        moment = zenlake.Timestamp.parse_rfc3339("2100-01-01T00:00:00Z/33")
        publisher.put("x", timestamp=moment)
        publisher.put("y")
        assert str(sub.recv().payload) == "y"
        (reason,) = session.stats().dropped
        assert "future" in reason


def test_replies_that_come_too_late_are_counted() -> None:
    with pair() as (listener, dialler):
        queryable = listener.declare_queryable("q")
        until(lambda: dialler.declare_querier("q").matching_status.matching)
        token = zenlake.CancellationToken()
        replies = dialler.get("q", cancellation_token=token)
        query = queryable.recv()
        token.cancel()
        assert list(replies) == []
        query.reply("q", "late")
        query.drop()
        until(lambda: dialler.stats().dropped)
        assert all("repl" in reason for reason in dialler.stats().dropped)
