"""Sessions in multicast groups: the same tests between each two implementations, and both ways.

Two sessions of eclipse-zenoh show that a test asks for what the reference does. A datagram that is
lost is lost: what is put is put again until it was heard, and whatever is heard has to be whole.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pyarrow as pa
import pytest

from tests.golden.proxy import free_port
from tests.support.discovery import THEY_WAIT_FOR_ROOM, new_group, on_lo, stays
from tests.support.interop_pair import OURS, THEIRS, Ear, Seen, open_session, settling
from tests.support.reference_peer import ReferenceFailed, ReferenceProcess
from tests.support.waiting import until
from zenlake.log import Reader, Recorder
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.sequence import REORDER_WINDOW
from zenlake.wire.enums import CloseReason

pytestmark = pytest.mark.interop

AGAIN_SECONDS = 0.3  # Pause before something that may have been lost is put again.
FAST = {"transport/multicast/join_interval": 200, **THEY_WAIT_FOR_ROOM}
BUFFER = ";so_rcvbuf=4194304"  # A burst is lost where the receiver waits for a processor.
PAIRS = {
    "their peers": (THEIRS, THEIRS),
    "ours to theirs": (OURS, THEIRS),
    "theirs to ours": (THEIRS, OURS),
    "our peers": (OURS, OURS),
}
both_ways = pytest.mark.parametrize(("sender", "receiver"), PAIRS.values(), ids=PAIRS.keys())
each = pytest.mark.parametrize("api", [THEIRS, OURS], ids=["theirs", "ours"])
SIZES = {"one datagram": 100, "fragments": 20_000}


def loopback() -> str:
    return f"tcp/127.0.0.1:{free_port()}"


@contextmanager
def sessions(*nodes: tuple[Any, str, dict[str, Any]]) -> Iterator[list[Any]]:
    """Open sessions of (api, mode, settings), one after the other; close them all."""
    with settling(), ExitStack() as stack:
        opened = []
        for api, mode, settings in nodes:
            opened.append(open_session(api, mode, settings=settings))
            stack.callback(opened[-1].close)
        yield opened


def in_group(api: Any, group: str, /, *, mode: str = "peer", **settings: Any) -> Any:
    endpoint = on_lo(group) + (BUFFER if api is OURS else "")
    return api, mode, {"listen/endpoints": [endpoint], **FAST, **settings}


@contextmanager
def members(*apis: Any, **settings: Any) -> Iterator[list[Any]]:
    """Open a peer of each api in one group, and wait until all know each other."""
    group = new_group()
    with sessions(*(in_group(api, group, **settings) for api in apis)) as opened:
        know_each_other(*opened)
        yield opened


def know_each_other(*peers: Any) -> None:
    for peer in peers:
        until(lambda: members_of(peer), lambda ids: ids >= zids(*peers) - zids(peer))  # noqa: B023


def members_of(session: Any) -> set[str]:
    return {str(t.zid) for t in session.info.transports() if t.is_multicast}


def zids(*opened: Any) -> set[str]:
    return {str(session.info.zid()) for session in opened}


def listen(session: Any, key: str) -> Ear:
    ear = Ear()
    session.declare_subscriber(key, ear.hear)
    return ear


def repeat(say: Callable[[], object], heard: Callable[[], object]) -> None:
    """Say something until it was heard."""

    def again() -> None:
        say()
        end = time.monotonic() + AGAIN_SECONDS
        while not heard() and time.monotonic() < end:
            time.sleep(0.01)

    until(heard, bool, pause=again)


def payloads(ear: Ear) -> set[bytes]:
    return {sample.payload for sample in ear.heard}


# ---- messages


@both_ways
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("compression", [False, True], ids=["plain", "compressed"])
@pytest.mark.parametrize("lanes", [False, True], ids=["one lane", "lanes"])
def test_puts(sender: Any, receiver: Any, size: int, compression: bool, lanes: bool) -> None:
    settings = {
        "transport/multicast/qos/enabled": lanes,
        "transport/multicast/compression/enabled": compression,
    }
    with members(sender, receiver, **settings) as (one, other):
        assert [t.is_qos for t in one.info.transports()] == [lanes]
        ear = listen(other, "puts/**")
        body = bytes(range(256)) * (size // 256 + 1)
        for priority in ("REAL_TIME", "DATA", "BACKGROUND"):
            for express in (False, True):
                ear.heard.clear()
                stamp = one.new_timestamp()
                repeat(
                    lambda: one.put(
                        "puts/a",
                        body,
                        encoding=sender.Encoding.TEXT_PLAIN,
                        attachment=b"more",
                        timestamp=stamp,  # noqa: B023
                        priority=getattr(sender.Priority, priority),  # noqa: B023
                        express=express,  # noqa: B023
                    ),
                    lambda: ear.heard,
                )
                expected = Seen(
                    key="puts/a",
                    kind="SampleKind.PUT",
                    payload=body,
                    encoding="text/plain",
                    priority=f"Priority.{priority}",
                    congestion_control="CongestionControl.DROP",
                    express=express,
                    attachment=b"more",
                    timestamp=str(stamp),
                    source=None,
                    stack=None,
                )
                assert set(ear.heard) == {expected}


@both_ways
def test_deletes_and_best_effort(sender: Any, receiver: Any) -> None:
    with members(sender, receiver) as (one, other):
        ear = listen(other, "puts/**")
        repeat(lambda: one.delete("puts/a", attachment=b"why"), lambda: ear.heard)
        gone = ear.heard[0]
        assert (gone.kind, gone.attachment) == ("SampleKind.DELETE", b"why")
        publisher = one.declare_publisher(
            "puts/b", reliability=sender.Reliability.BEST_EFFORT, encoding="text/json"
        )
        repeat(lambda: publisher.put(b"{}"), lambda: b"{}" in payloads(ear))
        assert ear.heard[-1].encoding == "text/json"


@both_ways
def test_many_puts_keep_their_order(sender: Any, receiver: Any) -> None:
    with members(sender, receiver) as (one, other):
        ear = listen(other, "puts/**")
        publisher = one.declare_publisher(
            "puts/a", congestion_control=sender.CongestionControl.BLOCK
        )
        repeat(lambda: publisher.put(b"0"), lambda: ear.heard)
        for number in range(1, 3000):
            publisher.put(str(number).encode())
        repeat(lambda: publisher.put(b"3000"), lambda: b"3000" in payloads(ear))
        numbers = [int(sample.payload) for sample in ear.heard]
        assert numbers == sorted(numbers)
        assert len(set(numbers)) > 100


@pytest.mark.parametrize("receiver", [THEIRS, OURS], ids=["theirs", "ours"])
def test_rows_of_a_batch(receiver: Any) -> None:
    with members(OURS, receiver) as (one, other):
        ear = listen(other, "rows/**")
        keys = [f"rows/{number % 3}" for number in range(100)]
        rows = [f"row {number}".encode() for number in range(100)]
        batch = pa.record_batch({"key": keys, "payload": pa.array(rows, pa.binary())})
        repeat(lambda: one.put_batch(batch), lambda: payloads(ear) == set(rows))
        assert {(s.key, s.payload) for s in ear.heard} == set(zip(keys, rows, strict=True))


@each
def test_arrow_and_a_recorder_hear_a_group(api: Any, tmp_path: Any) -> None:
    with members(api, OURS) as (one, other):
        batches = other.declare_subscriber("rows/**", OURS.ArrowBatches(max_age=0.05))
        with Recorder(tmp_path / "log", "rows/**", session=other):
            numbers = iter(range(1000))
            table: list[str] = []

            def heard() -> bool:
                while (batch := batches.try_recv()) is not None:
                    table.extend(str(key) for key in batch.column("key").to_pylist())
                return len(table) >= 20

            repeat(lambda: one.put(f"rows/{next(numbers)}", b"row"), heard)
        recorded = [
            str(key)
            for batch in Reader(tmp_path / "log").batches()
            for key in batch.column("key").to_pylist()
        ]
        assert len(recorded) >= 20
        assert {*recorded, *table} <= {f"rows/{number}" for number in range(1000)}


@both_ways
@pytest.mark.parametrize("mode", ["peer", "router"])
def test_neither_queries_nor_tokens_pass(sender: Any, receiver: Any, mode: str) -> None:
    """Rust declares nothing but subscribers to a group, and sends it nothing but puts."""
    group, at = new_group(), loopback()
    both: dict[str, Any] = {"listen/endpoints": [on_lo(group), at]}
    with sessions(
        in_group(sender, group, **both),
        in_group(receiver, group, mode=mode),
        (THEIRS, "client", {"connect/endpoints": [at]}),
    ) as (one, other, client):
        know_each_other(one, other)
        until(lambda: len(one.info.transports()), lambda count: count == 2)
        ear, client_ear = listen(other, "puts/**"), listen(client, "puts/**")
        sides = {"here": (one, client), "there": (other, other)}
        tokens = []
        for side, (_, session) in sides.items():
            for complete in (False, True):
                session.declare_queryable(
                    f"{side}/**" if complete else "*/a",
                    lambda query, side=side: query.reply(f"{side}/a", b"answer"),
                    complete=complete,
                )
            tokens.append(session.liveliness().declare_token(f"token/{side}"))
        heard = [Ear(), Ear()]
        for session, watcher in ((one, heard[0]), (other, heard[1])):
            session.liveliness().declare_subscriber("token/**", watcher.hear, history=True)
        repeat(lambda: client.put("puts/a", b"out"), lambda: b"out" in payloads(ear))
        repeat(lambda: other.put("puts/a", b"in"), lambda: b"in" in payloads(client_ear))
        for side, sessions_there in sides.items():
            for asking in sessions_there:
                assert keys(asking.get("*/a", timeout=1.0)) == {f"{side}/a"}
                assert keys(asking.liveliness().get("token/**", timeout=1.0)) == {f"token/{side}"}
        for token in tokens:
            token.undeclare()
        for side, watcher in zip(sides, heard, strict=True):
            until(lambda: len(watcher.heard), lambda count: count == 2)  # noqa: B023
            assert {sample.key for sample in watcher.heard} == {f"token/{side}"}


def keys(replies: Any) -> set[str]:
    return {str(reply.ok.key_expr) for reply in replies}


def test_a_publisher_of_ours_knows_subscribers_of_a_group() -> None:
    """A publisher of eclipse-zenoh does not know them, and its puts arrive without that."""
    with members(OURS, OURS) as (one, other):
        publisher = one.declare_publisher("puts/a")
        assert not publisher.matching_status.matching
        subscriber = other.declare_subscriber("puts/*")
        until(lambda: publisher.matching_status.matching, bool)
        subscriber.undeclare()
        until(lambda: publisher.matching_status.matching, lambda matching: not matching)


@each
def test_a_subscriber_that_was_there_first_is_known(api: Any) -> None:
    """Ours repeats its declarations for a member that joins later; theirs declares them once."""
    group = new_group()
    with sessions(in_group(api, group), in_group(OURS, group)) as (first, witness):
        know_each_other(first, witness)
        subscriber = first.declare_subscriber("puts/*")
        heard = witness.declare_publisher("puts/a")
        until(lambda: heard.matching_status.matching, bool)  # The declaration has left.
        with sessions(in_group(OURS, group)) as (late,):
            know_each_other(first, late)
            publisher = late.declare_publisher("puts/a")
            if api is OURS:
                until(lambda: publisher.matching_status.matching, bool)
            else:
                stays(lambda: publisher.matching_status.matching, False)
        subscriber.undeclare()


# ---- members


@each
def test_what_a_session_tells_of_members(api: Any) -> None:
    group = new_group()
    with sessions(in_group(api, group), in_group(THEIRS, group)) as (one, other):
        events = one.info.declare_transport_events_listener(history=True)
        know_each_other(one, other)
        (transport,), (link,) = one.info.transports(), one.info.links()
        assert str(transport.zid) == str(link.zid) == str(other.info.zid())
        assert (transport.is_multicast, transport.is_qos, transport.is_shm) == (True, False, False)
        assert str(transport.whatami) == "peer"
        assert str(link.group) == f"udp/{group}"
        assert str(link.src).startswith("udp/127.0.0.1:")
        assert str(link.dst).startswith("udp/127.0.0.1:")
        assert (link.mtu, link.is_streamed, link.auth_identifier) == (65487, False, None)
        assert (link.priorities, link.reliability) == (None, None)
        assert list(one.info.peers_zid()) == []
        event = events.recv()
        assert str(event.transport.zid) == str(other.info.zid())
        other.close()
        gone = events.recv()
        assert str(gone.kind) == "SampleKind.DELETE"
        assert gone.transport.is_multicast


def test_stats_of_a_group() -> None:
    with members(OURS, THEIRS) as (ours, theirs):
        ear, other_ear = listen(ours, "there/**"), listen(theirs, "back/**")
        repeat(lambda: theirs.put("there/a", b"x" * 1000), lambda: ear.heard)
        repeat(lambda: ours.put("back/a", b"y" * 1000), lambda: other_ear.heard)
        stats = ours.stats()
        (member,) = stats.transports
        assert str(member.zid) in zids(theirs)
        assert member.received_frames == stats.received_frames > 0
        assert 1000 < member.received_bytes <= stats.received_bytes
        assert (member.sent_messages, member.sent_bytes) == (0, 0)
        assert stats.sent_messages >= 1
        assert stats.sent_bytes > 1000
        theirs.close()
        until(lambda: ours.stats().transports, lambda left: not left)
        assert ours.stats().received_bytes >= stats.received_bytes


@both_ways
def test_who_is_in_two_groups_hears_both_and_passes_nothing_on(sender: Any, receiver: Any) -> None:
    first, second = new_group(), new_group()
    both = {"listen/endpoints": [on_lo(first), on_lo(second)], **FAST}
    with sessions((receiver, "peer", both), in_group(sender, first), in_group(sender, second)) as (
        middle,
        left,
        right,
    ):
        know_each_other(left, middle)
        know_each_other(right, middle)
        until(lambda: members_of(middle), lambda ids: ids == zids(left, right))
        heard = {
            name: listen(s, "puts/**") for name, s in zip("lmr", (left, middle, right), strict=True)
        }
        repeat(lambda: left.put("puts/a", b"left"), lambda: b"left" in payloads(heard["m"]))
        repeat(lambda: right.put("puts/a", b"right"), lambda: b"right" in payloads(heard["m"]))
        for ear in heard.values():
            repeat(lambda: middle.put("puts/a", b"mid"), lambda: b"mid" in payloads(ear))  # noqa: B023
        assert payloads(heard["l"]) == {b"left", b"mid"}
        assert payloads(heard["r"]) == {b"right", b"mid"}


@both_ways
def test_a_peer_with_a_link_and_a_group_hears_twice(sender: Any, receiver: Any) -> None:
    """As in Rust: a link and a group are two ways to a node."""
    group, at = new_group(), loopback()
    connecting: dict[str, Any] = {"connect/endpoints": [at]}
    with sessions(
        (sender, "peer", {"listen/endpoints": [at, on_lo(group)], **FAST}),
        in_group(receiver, group, **connecting),
    ) as (one, other):
        know_each_other(one, other)
        until(lambda: len(one.info.transports()), lambda count: count == 2)
        assert {str(zid) for zid in one.info.peers_zid()} == zids(other)
        ear = listen(other, "puts/**")
        numbers = iter(range(100_000))

        def twice() -> bool:
            bodies = [sample.payload for sample in ear.heard]
            return any(bodies.count(body) == 2 for body in bodies)

        repeat(lambda: one.put("puts/a", b"%d" % next(numbers)), twice)
        bodies = [sample.payload for sample in ear.heard]
        assert max(map(bodies.count, bodies)) == 2


@both_ways
def test_a_session_that_is_closed_and_opened_again(sender: Any, receiver: Any) -> None:
    group = new_group()
    with sessions(in_group(sender, group)) as (one,):
        own = listen(one, "back/**")
        for number in range(3):
            body = b"%d" % number
            api, mode, settings = in_group(receiver, group)
            with closing(open_session(api, mode, settings=settings)) as other:
                know_each_other(one, other)
                ear = listen(other, "there/**")
                repeat(lambda: one.put("there/a", body), lambda: ear.heard)  # noqa: B023
                repeat(lambda: other.put("back/a", body), lambda: body in payloads(own))  # noqa: B023
                assert payloads(ear) == {body}
            if sender is OURS:
                until(lambda: members_of(one), lambda ids: not ids)


# ---- routers


@each
def test_what_a_router_forwards(api: Any) -> None:
    """From its clients and unicast peers to a group, and from a group to its clients alone."""
    group, at = new_group(), loopback()
    listening = {"listen/endpoints": [at, on_lo(group)], **FAST}
    outside = {"connect/endpoints": [at], "scouting/gossip/enabled": False}
    with sessions(
        (api, "router", listening),
        (THEIRS, "client", outside),
        (THEIRS, "peer", outside),
        in_group(THEIRS, group),
    ) as (router, client, peer, member):
        know_each_other(router, member)
        until(lambda: len(router.info.transports()), lambda count: count == 3)
        nodes = {"router": router, "client": client, "peer": peer, "member": member}
        ears = {name: listen(session, "puts/**") for name, session in nodes.items()}
        reached = {
            "client": {"router", "client", "peer", "member"},
            "peer": {"router", "client", "peer", "member"},
            "router": {"router", "client", "peer", "member"},
            "member": {"router", "client", "member"},
        }
        for name, there in reached.items():
            body = name.encode()
            repeat(
                lambda: nodes[name].put("puts/a", body),  # noqa: B023
                lambda: {n for n, ear in ears.items() if body in payloads(ear)} >= there,  # noqa: B023
            )
        assert b"member" not in payloads(ears["peer"])


def test_a_client_of_our_router_learns_of_subscribers_in_a_group() -> None:
    group, at = new_group(), loopback()
    with sessions(
        (OURS, "router", {"listen/endpoints": [at, on_lo(group)], **FAST}),
        (THEIRS, "client", {"connect/endpoints": [at]}),
        in_group(OURS, group),
    ) as (router, client, member):
        know_each_other(router, member)
        publisher = client.declare_publisher("puts/a")
        ear = listen(member, "puts/**")
        until(lambda: publisher.matching_status.matching, bool)
        repeat(lambda: publisher.put(b"from the client"), lambda: ear.heard)


# ---- settings


@pytest.mark.parametrize("mode", ["peer", "router", "client"])
@each
def test_a_group_is_not_connected_to(api: Any, mode: str) -> None:
    text = "Unable to connect to any of" if mode == "client" else "Forbidden multicast endpoint"
    with pytest.raises(api.ZError, match=text):
        open_session(api, mode, connect=(on_lo(new_group()),))


@each
def test_a_client_joins_no_group(api: Any) -> None:
    at = loopback()
    settings = {"listen/endpoints": [on_lo(new_group())], "connect/endpoints": [at]}
    with sessions((THEIRS, "router", {"listen/endpoints": [at]})):
        if api is THEIRS:  # It leaves its sockets open.
            with ReferenceProcess() as process, pytest.raises(ReferenceFailed, match="Multicast"):
                process.open("client", settings)
        else:
            with pytest.raises(api.ZError, match="a client does not join groups"):
                open_session(api, "client", settings=settings)


@each
@pytest.mark.parametrize("options", ["iface=lo,eth0", "iface=none-such"])
def test_an_interface_that_is_not_there(api: Any, options: str) -> None:
    with pytest.raises(api.ZError, match=r"[Ii]nterface"):
        open_session(api, "peer", listen=f"udp/{new_group()}#{options}")


def test_an_interface_that_need_not_be_there() -> None:
    """The session opens, and tries to join again later."""
    endpoint = f"udp/{new_group()}#iface=none-such;exit_on_failure=false"
    settings = {"listen/timeout_ms": 1000}
    with settling():
        session = open_session(OURS, "peer", listen=endpoint, settings=settings)
        assert members_of(session) == set()
        session.close()


SHORT_NUMBERS = {"transport/link/tx/sequence_number_resolution": "16bit"}


@pytest.mark.parametrize(
    ("api", "settings", "reason"),
    [
        (OURS, {"transport/link/tx/batch_size": 4096}, DropReason.JOIN_MISMATCH_BATCH_SIZE),
        (THEIRS, {"transport/link/tx/batch_size": 4096}, DropReason.JOIN_MISMATCH_BATCH_SIZE),
        (OURS, {"transport/multicast/qos/enabled": True}, DropReason.JOIN_MISMATCH_LANES),
        (THEIRS, {"transport/multicast/qos/enabled": True}, DropReason.JOIN_MISMATCH_LANES),
        # A JOIN of 1.10.2 says 32bit, whatever its node uses.
        (OURS, SHORT_NUMBERS, DropReason.JOIN_MISMATCH_RESOLUTION),
    ],
    ids=["batch size", "their batch size", "lanes", "their lanes", "resolution"],
)
def test_other_parameters_keep_a_member_out(
    api: Any, settings: dict[str, Any], reason: DropReason
) -> None:
    group = new_group()
    with sessions(in_group(OURS, group), in_group(api, group, **settings)) as (one, other):
        until(lambda: one.stats().dropped.get(reason, 0), lambda count: count >= 2)
        assert members_of(one) == set()
        if reason is not DropReason.JOIN_MISMATCH_LANES or api is OURS:  # Theirs takes fewer lanes.
            assert members_of(other) == set()


@each
def test_lease_and_interval(api: Any) -> None:
    """The JOIN of one has its lease, and comes at its interval."""
    group = new_group()
    settings: dict[str, Any] = {"transport/link/tx/lease": 1000}
    with sessions(in_group(OURS, group), in_group(api, group, **settings)) as (one, other):
        until(lambda: members_of(one), lambda ids: ids == zids(other))
        (member,) = one._core.node.transports
        assert member.member.lease == 1.0
        heard = member.counters.received_batches
        until(lambda: member.counters.received_batches, lambda count: count >= heard + 10)


@each
def test_fragments_do_not_end_a_membership(api: Any) -> None:
    """A JOIN of Rust leaves out the numbers of fragments."""
    with members(api, OURS) as (one, other):
        (member,) = other._core.node.transports
        ear = listen(other, "puts/**")
        repeat(lambda: one.put("puts/a", b"one datagram"), lambda: ear.heard)

        (sequence,) = member.sequences.values()
        first = sequence.last
        repeat(
            lambda: one.put("puts/a", bytes(1 << 20)),
            lambda: sequence.last - first & sequence.mask > 2 * REORDER_WINDOW,
        )
        heard = member.counters.received_batches
        until(lambda: member.counters.received_batches, lambda count: count >= heard + 3)
        assert other._core.node.transports == (member,)


def test_members_have_a_limit() -> None:
    group = new_group()
    settings: dict[str, Any] = {"transport/multicast/max_sessions": 1}
    others = [in_group(THEIRS, group)] * 2
    with sessions(in_group(OURS, group, **settings), *others) as (one, *_):
        limit = DropReason.JOIN_MEMBER_LIMIT
        until(lambda: one.stats().dropped.get(limit, 0), lambda count: count >= 1)
        assert len(members_of(one)) == 1


def test_two_routers_in_a_group_ignore_each_other() -> None:
    """Rust leaves the group when a router meets another one there."""
    group = new_group()
    one, other = (in_group(OURS, group, mode="router") for _ in range(2))
    with sessions(one, other) as (first, second):
        for router in (first, second):
            role = DropReason.JOIN_MISMATCH_ROLE
            until(lambda: router.stats().dropped.get(role, 0), lambda count: count >= 2)  # noqa: B023
            assert members_of(router) == set()


def test_leaving_says_why() -> None:
    with members(OURS, THEIRS) as (ours, theirs):
        gone: list[Any] = []

        class Watcher:
            def lost(self, *gap: Any) -> None: ...
            def closed(self, session: Any, why: Any) -> None:
                gone.append(why)

        ours._core.watchers = (Watcher(),)
        theirs.close()
        (why,) = until(lambda: gone, bool)
        assert (why.by_peer, why.reason) == (True, CloseReason.GENERIC)
