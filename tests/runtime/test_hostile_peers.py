"""A node that listens, peers that lie, and an honest session beside them that loses nothing."""

import random
import threading
import time
import tracemalloc
from contextlib import ExitStack

import pytest

from tests.support.attacked_node import AttackedNode, HonestSession, attacked
from tests.support.hostile import (
    DEADLINE,
    FIRST_SN,
    HTTP_GET,
    TLS_CLIENT_HELLO,
    HostilePeer,
    HostileServer,
    batch,
)
from tests.support.runtime_nodes import BLOCK, DROP, Record, make_node, new_zid, payload_of, put
from tests.support.waiting import until
from zenlake.errors import SessionClosed, ZError
from zenlake.runtime import sending as session_module
from zenlake.transport.admission import AdmissionLimits
from zenlake.transport.fragments import ByteBudget
from zenlake.transport.outbox import BLOCK_SECONDS
from zenlake.transport.retry import RetryPolicy
from zenlake.wire.batch import TransportMessage
from zenlake.wire.close import Close
from zenlake.wire.enums import PRIORITIES, CloseReason, WirePriority, WireWhatAmI
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.init import Init
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.oam import TransportOam
from zenlake.wire.open import Open

pytestmark = pytest.mark.slow

Log = pytest.LogCaptureFixture
SOON = AdmissionLimits(seconds=0.5)
LONG_MS = 600_000
MIB = 1 << 20


# --- before the session ---------------------------------------------------------------------


def random_bytes(seed: int) -> bytes:
    return random.Random(seed).randbytes(400)


GARBAGE = {
    "http": HTTP_GET,
    "tls": TLS_CLIENT_HELLO,
    "text": b"hello\n",
    "nothing": b"",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    **{f"random {seed}": random_bytes(seed) for seed in range(8)},
}


def test_garbage_is_refused_by_name(caplog: Log) -> None:
    with attacked(caplog, limits=SOON) as target, ExitStack() as stack:
        peers = [stack.enter_context(target.peer()) for _ in GARBAGE]
        for peer, data in zip(peers, GARBAGE.values(), strict=True):
            peer.say(data)
        for peer in peers:
            assert peer.hear_close() in (CloseReason.INVALID, CloseReason.GENERIC, None)
        until(lambda: sum(target.node.refused.values()) == len(GARBAGE))
        assert set(target.node.refused) <= {"INVALID", "GENERIC"}
        assert any(
            peer.address in record.getMessage() for peer in peers for record in caplog.records
        )
        assert not target.strange


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x05\x00\xff\xff\xff\xff\xff", CloseReason.INVALID),
        (batch(KeepAlive()), CloseReason.INVALID),
        (batch(Init(new_zid(), WireWhatAmI.PEER, version=8)), CloseReason.INVALID),
        (batch(Init(new_zid(), WireWhatAmI.PEER, batch_size=0)), CloseReason.INVALID),
        (batch(Open(1000, 0, b"cookie")), CloseReason.INVALID),
        (batch(Frame(0, messages=[put(b"early")])), CloseReason.INVALID),
        (batch(Fragment(0, b"early")), CloseReason.INVALID),
        (batch(Init(new_zid(), WireWhatAmI.PEER, cookie=b"c")), CloseReason.INVALID),
    ],
)
def test_wrong_first_message(caplog: Log, data: bytes, reason: CloseReason) -> None:
    with attacked(caplog) as target, target.peer() as peer:
        peer.say(data)
        assert peer.hear_close() == reason
        target.logged(peer, "no session")
        until(lambda: target.node.refused == {reason.name: 1})
        assert not target.strange


def test_silence_and_an_endless_dribble_end_with_the_handshakes_time(caplog: Log) -> None:
    with attacked(caplog, limits=SOON) as target, target.peer() as silent, target.peer() as slow:
        began = time.monotonic()
        while slow.say(b"\x00\x00"):  # batches of nothing, which would renew a lease
            assert time.monotonic() < began + DEADLINE
            time.sleep(0.01)
        assert silent.hear_close() == CloseReason.GENERIC
        target.logged(silent, "took too long")
        until(lambda: target.node.refused == {"GENERIC": 2})


def test_dribbled_handshake_and_data_are_served(caplog: Log) -> None:
    with attacked(caplog) as target, target.peer() as peer:
        peer.dribble(batch(Init(peer.zid, WireWhatAmI.CLIENT, qos=True, patch=1)))
        ack = peer.hear()
        assert isinstance(ack, Init)
        peer.dribble(batch(peer.open_syn(ack)))
        assert isinstance(peer.hear(), Open)
        peer.dribble(batch(Frame(FIRST_SN, messages=[put(b"slowly")])))
        until(lambda: [payload_of(m) for m in target.strange] == [b"slowly"])


def test_flood_of_inits_ends_oldest_first(caplog: Log) -> None:
    """A thousand connections say INIT and no more: 50 at a time have a place, the others wait."""
    limits = AdmissionLimits(pending=50, seconds=2.0)
    with attacked(caplog, limits=limits) as target, ExitStack() as stack:
        most = 0
        for number in range(300):
            peer = stack.enter_context(target.peer(source=f"127.0.1.{number // 50 + 1}"))
            peer.send(Init(peer.zid, WireWhatAmI.CLIENT))
            most = max(most, target.node.pending)
        assert 0 < most <= limits.pending
        until(lambda: "handshakes are under way, further ones wait" in caplog.text)
        until(lambda: sum(target.node.refused.values()) >= 300)
        assert set(target.node.refused) <= {"UNRESPONSIVE", "GENERIC"}
        lines = [r for r in caplog.records if "further ones wait" in r.getMessage()]
        assert len(lines) < 60, "a flood of peers is not a flood of lines"


def test_silent_peers_hold_nobody_up(caplog: Log) -> None:
    """While silent peers hold every place, a newcomer gets the place of the oldest."""
    limits = AdmissionLimits(pending=20, seconds=60.0)
    with attacked(caplog, limits=limits) as target, ExitStack() as stack:
        silent = [stack.enter_context(target.peer()) for _ in range(20)]
        until(lambda: target.node.pending == 20)
        with target.peer() as honest:
            honest.establish()
            assert target.session_of(honest).is_open
        assert target.node.refused == {"UNRESPONSIVE": 1}
        assert silent[0].hear_close() == CloseReason.UNRESPONSIVE
        target.logged(silent[0], "others wait for a place")
        stack.close()


def test_replayed_open(caplog: Log) -> None:
    with attacked(caplog) as target:
        with target.peer() as victim:
            captured = batch(victim.open_syn(victim.init()))
            victim.say(captured)
            assert isinstance(victim.hear(), Open)
            with target.peer() as first:
                first.say(captured)
                assert first.hear_close() == CloseReason.INVALID
                target.logged(first, "OPEN syn came where INIT syn was expected")
            for zid in (victim.zid, new_zid()):
                with target.peer(zid) as bare:
                    bare.say(captured)
                    assert bare.hear_close() == CloseReason.INVALID
                with target.peer(zid) as replay:
                    replay.init()
                    replay.say(captured)
                    assert replay.hear_close() == CloseReason.INVALID
            assert victim.zid in target.node.sessions
            assert victim.send(Close())
        until(lambda: victim.zid not in target.node.sessions)
        with target.peer(victim.zid) as after:
            after.init()
            after.say(captured)
            assert after.hear_close() == CloseReason.INVALID
        until(lambda: target.node.refused == {"INVALID": 6})


def test_nothing_is_routed_before_open(caplog: Log) -> None:
    early = batch(Frame(FIRST_SN, messages=[put(b"early")]))
    with attacked(caplog) as target:
        with target.peer() as after_init:
            after_init.init()
            after_init.say(early)
            assert after_init.hear_close() == CloseReason.INVALID
            target.logged(after_init, "no session")
        with target.peer() as at_once:
            at_once.say(batch(Init(at_once.zid, WireWhatAmI.CLIENT)) + early)
            assert at_once.hear_close() == CloseReason.INVALID
        with target.peer() as wrong_cookie:
            wrong_cookie.init()
            wrong_cookie.say(batch(Open(1000, FIRST_SN, b"mine")) + early)
            assert wrong_cookie.hear_close() == CloseReason.INVALID
        until(lambda: target.node.refused == {"INVALID": 3})
        assert not target.strange


def test_the_zid_of_a_live_session(caplog: Log) -> None:
    with attacked(caplog) as target, target.peer(target.honest_zid) as intruder:
        intruder.send(intruder.open_syn(intruder.init()))
        assert intruder.hear_close() == CloseReason.MAX_LINKS
        target.logged(intruder, "has a session here already")
        until(lambda: target.node.refused == {"MAX_LINKS": 1})
        assert target.honest_session.session.is_open


def test_the_nodes_own_zid(caplog: Log) -> None:
    with attacked(caplog) as target, target.peer(target.node.zid) as mirror:
        mirror.send(mirror.open_syn(mirror.init()))
        assert mirror.hear_close() == CloseReason.CONNECTION_TO_SELF
        target.logged(mirror, "own id")
        until(lambda: target.node.refused == {"CONNECTION_TO_SELF": 1})


def random_message(choose: random.Random) -> TransportMessage:
    messages: list[TransportMessage] = [
        Init(new_zid(), WireWhatAmI.CLIENT),
        Init(new_zid(), WireWhatAmI.CLIENT, cookie=b"c"),
        Init(new_zid(), WireWhatAmI.PEER, resolution=choose.randrange(16)),
        Init(new_zid(), WireWhatAmI.PEER, batch_size=choose.choice([0, 1, 31, 32, 65535])),
        Open(choose.choice([0, 1, 1000]), choose.getrandbits(32), b"cookie"),
        Open(1000, 5),
        KeepAlive(),
        Close(choose.randrange(9)),
        Frame(choose.getrandbits(28), messages=[put(b"no")]),
        Fragment(choose.getrandbits(28), b"no", first=True, more=True),
        TransportOam(1, None),
    ]
    return choose.choice(messages)


def test_any_message_in_any_state(caplog: Log) -> None:
    choose = random.Random(2718)
    with attacked(caplog, limits=AdmissionLimits(seconds=3.0)) as target:
        for _ in range(150):
            with target.peer() as peer:
                if choose.random() < 0.5:
                    peer.init()
                for _ in range(choose.randrange(1, 4)):
                    peer.send(random_message(choose))
                if choose.random() < 0.3:
                    peer.hear_close()
        until(lambda: target.node.pending == 0)
        assert not target.strange
        assert list(target.node.sessions) == [target.honest_zid]


# --- inside the session ---------------------------------------------------------------------


def bad_frame(tail: bytes) -> bytes:
    """A FRAME with one good message, then `tail`."""
    good = batch(Frame(FIRST_SN, messages=[put(b"good")]))[2:]
    return (len(good) + len(tail)).to_bytes(2, "little") + good + tail


LIES = {
    "batch beyond the agreed": (65_534).to_bytes(2, "little") + bytes(10),
    "payload beyond the batch": bad_frame(b"\x3d\x00\x01k\x01\xff\xff\xff\xff\x0fabc"),
    "key beyond the batch": bad_frame(b"\x3d\x00\xff\xff\x03k"),
    "unknown message": bad_frame(b"\x18"),
    "mandatory extension": bad_frame(b"\xbd\x00\x01k\x1f\x01\x01x"),
    "sequence number beyond the mask": b"\x07\x00\x25\xff\xff\xff\xff\x0f\x04",
    "cut short": b"\x02\x00\x25\xff",
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_about_lengths_end_the_session_only(caplog: Log, lie: str) -> None:
    with attacked(caplog) as target, target.peer() as peer:
        peer.establish()
        peer.say(LIES[lie])
        assert peer.hear_close() == CloseReason.INVALID
        end = target.end_of(peer)
        assert end.reason == CloseReason.INVALID
        assert not end.by_peer
        target.logged(peer, "ended", end.why)
        good = [b"good"] if b"good" in LIES[lie] else []
        assert [payload_of(m) for m in target.strange] == good, "earlier messages are delivered"


def test_second_init_changes_nothing(caplog: Log) -> None:
    with attacked(caplog) as target, target.peer() as peer:
        peer.establish()
        session = target.session_of(peer)
        other = new_zid()
        peer.send(Init(other, WireWhatAmI.ROUTER))
        peer.send(Open(1, 0, b"cookie"))
        peer.send(Frame(FIRST_SN, messages=[put(b"as before")]))
        until(lambda: [payload_of(m) for m in target.strange] == [b"as before"])
        assert session.zid == peer.zid
        assert session.counters.ignored == 2
        assert other not in target.node.sessions


@pytest.mark.parametrize("flood", [b"\x00\x00", batch(KeepAlive())], ids=["empty", "keep-alive"])
def test_flood_of_batches_with_nothing_in_them(caplog: Log, flood: bytes) -> None:
    with attacked(caplog) as target, target.peer() as peer:
        peer.establish()
        session = target.session_of(peer)
        for _ in range(20):
            assert peer.say(flood * 10_000)
        peer.send(Frame(FIRST_SN, messages=[put(b"after the flood")]))
        until(lambda: [payload_of(m) for m in target.strange] == [b"after the flood"])
        assert session.counters.received_batches >= 200_000
        assert session.over is None


def pieces(scenario: str) -> list[Fragment]:
    """8 MiB and more of fragments that never make a message."""
    data = bytes(32_000)
    count = 300
    sns = range(FIRST_SN, FIRST_SN + count)
    if scenario == "endless":
        return [Fragment(sn, data, more=True, first=sn == FIRST_SN) for sn in sns]
    if scenario == "always first":
        return [Fragment(sn, data, more=True, first=True) for sn in sns]
    if scenario == "never first":
        return [Fragment(sn, data, more=True) for sn in sns]
    if scenario == "wrong sn":
        return [Fragment(FIRST_SN + 2 * n, data, more=True, first=n % 3 == 0) for n in range(count)]
    assert scenario == "16 lanes"
    return [
        Fragment(
            FIRST_SN + n // 16,
            data,
            reliable=bool(n & 1),
            priority=PRIORITIES[n // 2 % 8],
            more=True,
            first=n < 16,
        )
        for n in range(count)
    ]


@pytest.mark.parametrize(
    "scenario", ["endless", "always first", "never first", "wrong sn", "16 lanes"]
)
def test_flood_of_fragments_stays_within_its_memory(caplog: Log, scenario: str) -> None:
    memory = ByteBudget(MIB)
    with attacked(caplog, memory=memory, max_message=MIB // 4) as target:
        with target.peer() as peer:
            peer.establish()
            session = target.session_of(peer)
            flood = b"".join(batch(piece) for piece in pieces(scenario))
            assert len(flood) > 8 * MIB
            tracemalloc.start()
            try:
                most = 0
                for start in range(0, len(flood), MIB // 2):
                    assert peer.say(flood[start : start + MIB // 2])
                    most = max(most, memory.held)
                until(lambda: session.counters.received_bytes >= len(flood))
                most = max(most, memory.held)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert most <= memory.limit
            assert peak < 8 * MIB
            assert sum(session.counters.receive_dropped.values()) > 0
            assert session.over is None, "the message is dropped, the link stays"
            assert not target.strange
        target.end_of(peer)
        assert memory.held == 0


def test_a_hundred_thousand_pieces_of_one_byte(caplog: Log) -> None:
    memory = ByteBudget(MIB)
    with attacked(caplog, memory=memory) as target, target.peer() as peer:
        peer.establish()
        session = target.session_of(peer)
        parts = [
            batch(Fragment(FIRST_SN + n, b"x", more=True, first=n == 0)) for n in range(100_000)
        ]
        assert peer.say(b"".join(parts))
        until(lambda: session.counters.received_batches >= 100_000)
        dropped = session.counters.receive_dropped
        assert dropped.keys() & {"fragment_too_large", "fragment_no_memory"}
        assert memory.held <= memory.limit
        assert session.over is None


@pytest.mark.parametrize(
    ("lease_ms", "taken"), [(0, 0.1), (1, 0.1), (2**63, 600.0), (2**63 - 1, 600.0)]
)
def test_odd_leases_are_clamped(caplog: Log, lease_ms: int, taken: float) -> None:
    with attacked(caplog) as target, target.peer() as peer:
        target.honest_session.finish()  # an idle node: its time is to be measured
        peer.establish(lease_ms=lease_ms)
        busy, began = time.process_time(), time.monotonic()
        until(lambda: target.sessions)
        if taken < 1:
            end = target.end_of(peer)
            assert end.reason == CloseReason.EXPIRED
            assert "0.1 s" in end.why
            assert time.monotonic() - began > taken / 2
            target.logged(peer, "nothing came")
        else:
            assert target.session_of(peer).agreement.peer_lease == taken
            time.sleep(0.3)  # a time to be idle in, not to wait for something
            assert target.session_of(peer).over is None
        took = time.monotonic() - began
        assert time.process_time() - busy < max(0.2 * took, 0.1)
        _another_honest_session(target)


def _another_honest_session(target: AttackedNode) -> None:
    """The first one has been stopped: close it, and have another for the check at the end."""
    target.honest_session.close()
    until(lambda: target.honest_zid not in target.node.sessions)
    target.honest_session = HonestSession(f"tcp/127.0.0.1:{target.port}#bind=127.0.0.99:0")
    target.honest_zid = target.honest_session.node.zid
    target.honest_session.start()


def test_peer_that_stops_reading_is_dropped_for_and_then_closed(
    caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BLOCK_SECONDS == 5.0
    monkeypatch.setattr(session_module, "BLOCK_SECONDS", 1.0)
    with attacked(caplog) as target, target.peer(receive_bytes=4096) as peer:
        peer.establish(lease_ms=LONG_MS)
        session = target.session_of(peer)
        chunk = bytes(60_000)
        end = time.monotonic() + DEADLINE
        while session.send(put(chunk, DROP)):
            assert time.monotonic() < end
        assert sum(session.counters.send_dropped.values()) == 1
        target.honest_session.moves()

        ended: list[SessionClosed] = []

        def block() -> None:
            try:
                for _ in range(100):
                    session.send(put(chunk, BLOCK))
            except SessionClosed as error:
                ended.append(error)

        began = time.monotonic()
        blocked = threading.Thread(target=block)
        blocked.start()
        target.honest_session.moves()
        assert blocked.is_alive(), "only the sender to the stuck peer waits"
        blocked.join(DEADLINE)
        assert time.monotonic() - began >= 0.9
        assert [error.reason for error in ended] == [CloseReason.UNRESPONSIVE]
        assert peer.address in ended[0].why
        assert target.end_of(peer).reason == CloseReason.UNRESPONSIVE
        target.logged(peer, "takes nothing")
        with pytest.raises(SessionClosed, match="takes nothing"):
            session.send(put(chunk, BLOCK))


# --- against nodes that connect -----------------------------------------------------------------


def test_server_that_closes_at_once_is_not_dialled_in_a_loop() -> None:
    rounds = 6
    policy = RetryPolicy(first=0.05, factor=2.0, longest=0.2)
    handler = Record()
    with HostileServer(new_zid()) as server, make_node(handler) as node:
        began, busy = time.monotonic(), time.process_time()
        connector = node.keep_connected(server.locator, policy=policy)
        for _ in range(rounds):
            server.serve_once([Close(CloseReason.GENERIC)])
        took, busy = time.monotonic() - began, time.process_time() - busy
        until(lambda: len(handler.ends) == rounds)
        connector.stop()
        assert took >= 0.05 + 0.1 + 3 * 0.2
        assert connector.attempts <= rounds + 1
        assert busy < max(0.5 * took, 0.5)
        assert all(end.by_peer and end.reason == 0 for _, end in handler.ends)
        assert isinstance(connector.last_error, SessionClosed)


@pytest.mark.parametrize("answer", [b"", HTTP_GET, b"\x01\x00\x03", batch(Open(1000, 0))])
def test_server_that_speaks_something_else_is_an_error_with_its_name(answer: bytes) -> None:
    with HostileServer(new_zid()) as server:
        limits = AdmissionLimits(seconds=0.5)
        with make_node(limits=limits) as node:
            found: list[BaseException] = []

            def dial() -> None:
                try:
                    node.connect(server.locator)
                except ZError as error:
                    found.append(error)

            thread = threading.Thread(target=dial)
            thread.start()
            sock, _ = server.listener.accept()
            with sock:
                sock.sendall(answer)
                thread.join(DEADLINE)
            assert len(found) == 1
            assert node.pending == 0


def test_lane_that_was_not_agreed_ends_the_session(caplog: Log) -> None:
    with attacked(caplog, qos=False) as target, target.peer() as peer:
        peer.establish()
        peer.send(Frame(FIRST_SN, priority=WirePriority.REAL_TIME, messages=[put(b"no")]))
        assert peer.hear_close() == CloseReason.INVALID
        target.logged(peer, "REAL_TIME")
        assert not target.strange


def test_peers_that_vanish(caplog: Log) -> None:
    """Open a session, say half of something, go: forty times."""
    with attacked(caplog) as target:
        peers: list[HostilePeer] = []
        for number in range(40):
            with target.peer() as peer:
                peer.establish()
                peer.say(batch(Frame(FIRST_SN, messages=[put(b"x" * 500)]))[: 1 + number * 7])
                peers.append(peer)
        for peer in peers:
            assert target.end_of(peer).by_peer
            target.logged(peer, "ended")
        until(lambda: list(target.node.sessions) == [target.honest_zid])
