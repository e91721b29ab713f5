"""A group on real sockets: pauses, bursts, failing sends, and what still leaves at the end."""

import inspect
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.discovery import new_group, on_lo
from tests.support.runtime_nodes import Record, make_node, new_zid, numbered, put
from tests.support.waiting import until
from zenlake.api.config.config import Config
from zenlake.api.discovery.info import link_of, transport_of
from zenlake.api.session import open as zenlake_open
from zenlake.errors import LinkError, NeighbourLimit, SessionClosed
from zenlake.link import multicast
from zenlake.link.options import LinkOptions
from zenlake.router import _event
from zenlake.runtime import group as runtime_group
from zenlake.runtime.exchange import DECLARED_AT_ONCE
from zenlake.runtime.group import BURST_DATAGRAMS, Group
from zenlake.runtime.node import Node
from zenlake.runtime.sending import BatchSource
from zenlake.runtime.session_face import MAX_REPEATED, MAX_REPEATED_BYTES
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.multicast import GroupOffer
from zenlake.transport.retry import RetryPolicy
from zenlake.wire.batch import write_batch
from zenlake.wire.declare import Declare, DeclareSubscriber, UndeclareSubscriber
from zenlake.wire.enums import CloseReason, WireWhatAmI
from zenlake.wire.frame import Frame
from zenlake.wire.join import Join
from zenlake.wire.locator import EndPoint
from zenlake.wire.network import NetworkMessage
from zenlake.wire.wireexpr import WireExpr

pytestmark = pytest.mark.slow

LEASE_SECONDS = 0.3
NO_INTERFACE = (1 << 31) - 1  # Index that no interface has: it was removed.
SIZE = 5000  # One message of that size per datagram.


def join(node: Node, group: str, handler: Any) -> Group:
    offer = GroupOffer(
        zid=node.zid,
        whatami=WireWhatAmI.PEER,
        join_seconds=0.1,
        lease_ms=int(LEASE_SECONDS * 1000),
    )
    at = EndPoint(f"{on_lo(group)};so_rcvbuf=4194304")
    return node.join(multicast.join(at, LinkOptions()), offer, handler)


def members(group: Group) -> int:
    return len(group.members)


def test_a_member_is_described_as_every_session() -> None:
    at = new_group()
    with make_node() as node, make_node() as other:
        group, speaker = join(node, at, Record()), join(other, at, Record())
        until(lambda: (members(group), members(speaker)), lambda n: n == (1, 1))
        (member,) = group.members
        for name, _ in inspect.getmembers(TransportSession, lambda v: isinstance(v, property)):
            getattr(member, name)
        assert member.peer == member.zid == other.zid
        assert member.began_at == member.linked_at == member.opened_at > 0
        transport = transport_of(member)
        assert (transport.is_multicast, transport.is_shm) == (True, False)
        assert transport.shm_declined == "members of multicast groups share none"
        assert link_of(member).group == str(group.link.remote)
        assert _event(member, None).remote == str(member.remote) != str(group.link.remote)


def test_members_are_not_silent_while_nothing_is_read() -> None:
    heard, at = Record(), new_group()
    with make_node() as node, make_node() as other:
        group, speaker = join(node, at, heard), join(other, at, Record())
        until(lambda: (members(group), members(speaker)), lambda n: n == (1, 1))
        (member,) = group.members
        paused = threading.Event()
        node.reactor.call_soon(member.pause)
        node.reactor.call_soon(paused.set)
        assert paused.wait(20)
        for number in range(10):
            assert speaker.send(numbered(number))
        time.sleep(3 * LEASE_SECONDS)  # Several leases without reading.
        assert group.members == (member,)
        assert heard.messages == []
        member.resume()
        until(lambda: len(heard.messages), lambda count: count == 10)
        assert group.members == (member,)


def test_a_paused_member_that_leaves_does_not_stop_the_others() -> None:
    heard, at = Record(), new_group()
    with make_node() as node, make_node() as other:
        group, speaker = join(node, at, heard), join(other, at, Record())
        until(lambda: members(group), bool)
        (member,) = group.members
        why = SessionClosed("on purpose", 0)
        node.reactor.call_soon(member.pause)
        node.reactor.call_soon(lambda: group.core._leave(member.member, why))
        until(lambda: group.members, lambda now: now and now != (member,))
        until(lambda: speaker.send(numbered(1)) and heard.messages, bool)


class Limited(Record):
    """Takes nothing: each member has exceeded a limit."""

    def on_frame(self, *_: object) -> int:
        raise NeighbourLimit("the limit is 0 messages", CloseReason.UNSUPPORTED)


def test_a_member_beyond_a_limit_is_left_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    at = new_group()
    with make_node() as node, make_node() as other:
        group, speaker = join(node, at, Limited()), join(other, at, Record())
        until(lambda: (members(group), members(speaker)), lambda n: n == (1, 1))
        assert speaker.send(numbered(0))
        until(lambda: "the limit is 0 messages" in caplog.text)
        (line,) = (r for r in caplog.records if "the limit is 0" in r.getMessage())
        assert line.levelname == "WARNING"
        assert f"{other.zid}" in line.getMessage()
        assert f"no longer a member of {group.link.remote}" in line.getMessage()
        until(lambda: members(group) == 1)  # Its next JOIN is that of a new member.


def test_a_member_is_not_silent_while_its_messages_wait() -> None:
    """The I/O thread was busy for longer than a lease, and reads before it judges."""
    heard, at = Record(), new_group()
    with make_node() as node, make_node() as other:
        group, speaker = join(node, at, heard), join(other, at, Record())
        until(lambda: members(group), bool)
        (member,) = group.members
        results: list[bool] = []

        def busy() -> None:
            assert speaker.send(numbered(1))
            assert select.select([group.link], [], [], 20)[0]
            member.member.last_received -= 1000
            group._on_time()
            results.append(group.members == (member,))

        node.reactor.call_soon(busy)
        until(lambda: results, bool)
        assert results == [True]
        until(lambda: len(heard.messages), lambda count: count == 1)


def test_declarations_are_repeated_one_at_a_time_and_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime_group, "WELCOME_PAUSE", 0.0)
    monkeypatch.setattr(runtime_group, "WELCOME_SHARE", 3)
    at, go_on = new_group(), threading.Event()
    began: list[float] = []
    ended: list[float] = []
    with make_node() as node, make_node() as other:

        def repeat(group: Group) -> Iterator[None]:
            began.append(node.reactor.now())
            while not go_on.is_set():
                time.sleep(0.01)
                yield
            ended.append(node.reactor.now())

        node.on_newcomers = repeat
        group, speaker = join(node, at, Record()), join(other, at, Record())
        until(lambda: len(began), lambda count: count == 1)
        speaker.close()
        until(lambda: members(group), lambda count: count == 0)
        join(other, at, Record())
        until(lambda: members(group), lambda count: count == 1)
        joins = group.counters.sent_batches
        until(lambda: group.counters.sent_batches, lambda count: count >= joins + 3)
        assert len(began) == 1
        go_on.set()
        until(lambda: len(began), lambda count: count == 2)
        assert began[1] - ended[0] >= 3 * (ended[0] - began[0])


def test_declarations_are_repeated_in_slices() -> None:
    config = Config()
    config.insert_json5("listen/endpoints", f'["{on_lo(new_group())}"]')
    config.insert_json5("scouting/multicast/enabled", "false")
    count = 2 * DECLARED_AT_ONCE + 1
    with zenlake_open(config) as session:
        keys = [
            session.declare_subscriber(f"k/{number}", lambda sample: None)
            for number in range(count)
        ]
        core = session._core
        (group,) = core.node.groups
        sent: list[NetworkMessage] = []
        group.post = sent.append  # type: ignore[method-assign, assignment]
        steps = core.exchange._declare_again(group)
        sizes = [len(sent) for _ in steps]
        assert sizes == [DECLARED_AT_ONCE, 2 * DECLARED_AT_ONCE, count]
        sent.clear()
        steps = core.exchange._declare_again(group)
        next(steps)
        keys[-1].undeclare()
        assert len(list(steps)) == 2
        assert len([m for m in sent if type(m.body) is DeclareSubscriber]) == count - 1  # type: ignore[union-attr]


REPEATED = 4000  # In one datagram of Rust, when two of its members have the same key.


def test_declarations_that_a_member_repeats_are_routed_once() -> None:
    """Two members of Rust with subscribers of one key declare them to each other without end."""
    config = Config()
    config.insert_json5("listen/endpoints", f'["{on_lo(new_group())}"]')
    config.insert_json5("scouting/multicast/enabled", "false")
    heard: list[bytes] = []
    with zenlake_open(config) as session:
        session.declare_subscriber("h/**", lambda sample: heard.append(sample.payload.to_bytes()))
        publisher = session.declare_publisher("k/there")
        core = session._core
        (group,) = core.node.groups
        routed: list[NetworkMessage] = []
        route = core.exchange.routing.on_message

        def counted(face: Any, message: NetworkMessage, now: float) -> Any:
            routed.append(message)
            return route(face, message, now)

        core.exchange.routing.on_message = counted  # type: ignore[method-assign]
        join = Join(new_zid(), WireWhatAmI.PEER, 10_000, 0, 0, patch=1)
        numbers = iter(range(100))

        def said(*messages: NetworkMessage) -> int:
            """Receive a FRAME of a member; return how many of its messages were routed."""
            frame = Frame(next(numbers), messages=list(messages))
            done = threading.Event()
            routed.clear()

            def receive() -> None:
                for message in (join, frame):
                    data = write_batch([message])
                    group.core.receive(data, ("127.0.0.1", 1), core.node.reactor.now())
                done.set()

            core.node.reactor.call_soon(receive)
            assert done.wait(20)
            return len(routed)

        def matches() -> bool:
            return publisher.matching_status.matching

        there = Declare(DeclareSubscriber(0, WireExpr(0, "k/there")))
        other = Declare(DeclareSubscriber(0, WireExpr(0, "k/other")))
        gone = Declare(UndeclareSubscriber(0, WireExpr(0, "k/there")))
        both = [there, other] * (REPEATED // 2)
        assert said(there) == 1
        assert matches()
        assert said(there) == said(there, there, there) == 0
        assert said(*both) == 1
        assert said(*both, put(b"1", key="h/a"), *both, gone, put(b"2", key="h/a")) == 1
        until(lambda: heard[:], lambda payloads: payloads == [b"1", b"2"])
        assert not matches()
        assert said(*both) == 2
        assert matches()
        many = [
            Declare(DeclareSubscriber(0, WireExpr(0, f"m/{number}" + size * "x")))
            for size in (0, MAX_REPEATED_BYTES)
            for number in range(MAX_REPEATED)
        ]
        assert said(*many) == len(many)
        assert said(*many[MAX_REPEATED:], there) == MAX_REPEATED + 1  # Too long to be kept.


def test_bursts_have_pauses_between_them() -> None:
    heard, at = Record(), new_group()
    with make_node() as node, make_node() as other:
        group, speaker = join(node, at, heard), join(other, at, Record())
        until(lambda: members(group), bool)
        bursts: list[int] = []
        write, send = speaker._write_batches, speaker.link.send

        def counted_write(core: BatchSource, now: float, full_only: bool) -> None:
            bursts.append(0)
            write(core, now, full_only)

        def counted_send(data: Any) -> int:
            bursts[-1] += 1
            return send(data)

        speaker._write_batches = counted_write  # type: ignore[method-assign]
        speaker.link.send = counted_send  # type: ignore[method-assign]
        for number in range(100):
            assert speaker.send(numbered(number, SIZE))
        until(lambda: sum(bursts), lambda count: count >= 100)
        assert max(bursts) <= BURST_DATAGRAMS
        assert len(bursts) >= 100 / BURST_DATAGRAMS


def test_a_group_outlives_a_network_that_is_down(caplog: pytest.LogCaptureFixture) -> None:
    heard, at = Record(), new_group()
    with make_node() as node, make_node() as other:
        group, speaker = join(node, at, heard), join(other, at, Record())
        until(lambda: members(group), bool)
        send = speaker.link.send

        def fails(data: Any) -> int:
            raise LinkError("the network is down, on purpose")

        speaker.link.send = fails  # type: ignore[method-assign]
        for number in range(100):
            assert speaker.send(numbered(number, SIZE))
        counters = speaker.core.counters
        failed = DropReason.GROUP_LINK_FAILED
        until(lambda: counters.send_dropped.get(failed, 0), lambda count: count >= 100)
        speaker.link.send = send  # type: ignore[method-assign]
        until(lambda: speaker.send(numbered(7)) and heard.messages, bool)
        lines = [r for r in caplog.records if "cannot send to a group" in r.getMessage()]
        assert 1 <= len(lines) < 20


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_group_whose_socket_failed_is_joined_again(way: str) -> None:
    heard, at = Record(), new_group()
    zid = new_zid()
    offer = GroupOffer(zid=zid, whatami=WireWhatAmI.PEER, join_seconds=0.1)
    retry = RetryPolicy(first=0.1)
    with make_node(heard, zid=zid, group=offer, retry=retry) as node, make_node() as other:
        assert node.listen(on_lo(at)) == ()
        speaker = other.join(
            multicast.join(EndPoint(on_lo(at)), LinkOptions()),
            GroupOffer(zid=other.zid, whatami=WireWhatAmI.PEER, join_seconds=0.1),
            Record(),
        )
        (group,) = node.groups
        until(lambda: members(group), bool)

        def fails(*arguments: Any) -> Any:
            raise LinkError("the socket failed, on purpose")

        if way == "in":
            group.link._receive = fails  # type: ignore[method-assign, assignment]
        else:
            group.link.send = fails  # type: ignore[method-assign, assignment]
            time.sleep(LEASE_SECONDS)
            assert node.groups == (group,)
            group.link._index = NO_INTERFACE
        until(lambda: node.groups, lambda groups: groups not in ((), (group,)))
        (again,) = node.groups
        until(lambda: members(again), bool)
        until(lambda: speaker.send(numbered(1)) and heard.messages, bool)
    assert node.groups == ()


def test_what_waits_leaves_before_a_group_is_closed() -> None:
    heard, at = Record(), new_group()
    with make_node() as node:
        group = join(node, at, heard)
        with make_node() as other:
            speaker = join(other, at, Record())
            until(lambda: members(group), bool)
            for number in range(30):
                assert speaker.send(numbered(number, SIZE))
            speaker.close()
            with pytest.raises(SessionClosed):
                speaker.send(numbered(30))
        assert speaker.core.counters.sent_messages == 30
        assert not speaker.core.outbox.waiting
        until(lambda: members(group), lambda count: count == 0)
        assert heard.ends
