"""Links over QUIC: limits of what a peer can make this side keep, hostile datagrams, and advice."""

import builtins
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.link_contract import KINDS, Stage
from zenlake import link as links
from zenlake.errors import LinkError, ZError
from zenlake.link import quic as quic_module
from zenlake.link.base import Progress, TransportLink
from zenlake.link.quic import (
    IDLE_SECONDS,
    SOCKET_BYTES,
    STREAM,
    UNSENT_BYTES,
    WINDOW_BYTES,
    QuicLink,
)
from zenlake.link.sockets import split_host
from zenlake.wire.locator import EndPoint

MUTATIONS = 60  # Datagrams made from each one that a client begins with.
UNLIMITED = 1 << 40


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(KINDS["quic"], tmp_path)
    yield stage
    stage.close()


def quic(link: TransportLink) -> QuicLink:
    assert isinstance(link, QuicLink)
    return link


def first_datagram(stage: Stage) -> bytes:
    """The datagram with which a client of ours begins."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(30)
        stage.connect(EndPoint(f"quic/127.0.0.1:{server.getsockname()[1]}"))
        return server.recv(0xFFFF)


def test_a_peer_that_does_not_keep_to_the_window_loses_its_link(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    connection = quic(connected)._connection
    connection._remote_max_data = UNLIMITED
    connection._streams[STREAM].max_stream_data_remote = UNLIMITED
    most = 0

    def flood() -> bool | None:
        nonlocal most
        try:
            connected.send(bytes(64 << 10))
        except LinkError:
            return True
        quic(accepted).drive()
        most = max(most, len(quic(accepted)._received))
        return None

    stage.until(flood)
    assert 0 < most <= WINDOW_BYTES
    while accepted.more:
        try:
            if not accepted.receive():
                break
        except LinkError as error:
            assert "QUIC connection lost" in str(error)
            break
    else:
        pytest.fail("the link goes on")


def test_a_peer_that_is_not_read_waits_and_goes_on(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    sent = stage.fill(connected, bytes(64 << 10), 64 << 20)
    assert len(quic(accepted)._received) <= WINDOW_BYTES
    arrived = bytearray()

    def drain() -> bool | None:
        arrived.extend(stage.receive_flushing(connected, accepted) or b"")
        return len(arrived) >= len(sent) or None

    stage.until(drain)
    assert bytes(arrived) == sent


def test_mutated_first_datagrams_harm_only_their_own_link(stage: Stage) -> None:
    first, random = first_datagram(stage), Random(1)
    listener = stage.listen()
    where = split_host(listener.locators[0], listener.locators[0].address)
    for number in range(MUTATIONS):
        data = bytearray(first)
        for _ in range(1 + number % 8):
            data[random.randrange(len(data))] = random.randrange(256)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.sendto(data[: random.choice([len(data), 1200, 30, 1])], where)
        while (link := listener.accept()) is not None:
            quic(link).drive()
            link.close()
    connected, accepted = stage.pair(listener)
    assert stage.carry(accepted, connected, b"unharmed") == b"unharmed"


def test_garbage_of_the_peer_itself_is_ignored(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    random = Random(2)
    for size in [1, 2, 20, 21, 50, 1199, 1200, 1500, 9000] * 5:
        quic(connected)._datagrams.send(random.randbytes(size))
        quic(accepted).drive()
    assert stage.carry(connected, accepted, b"unharmed") == b"unharmed"
    assert stage.carry(accepted, connected, b"and back") == b"and back"


def test_only_a_whole_first_datagram_opens_a_link(stage: Stage) -> None:
    first = first_datagram(stage)
    listener = stage.listen()
    where = split_host(listener.locators[0], listener.locators[0].address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        for data in (b"\0", first[:1199], bytes(1200), bytes([first[0]]) + bytes(1199)):
            peer.sendto(data, where)
            stage.tick()
            assert listener.accept() is None
        peer.sendto(first, where)
        stage.keep(stage.until(listener.accept))


@pytest.mark.parametrize("setting", ["multistream=1", "mixed_rel=1", "rel=0"])
def test_what_is_not_offered_is_refused_by_name(stage: Stage, setting: str) -> None:
    endpoint = EndPoint(f"quic/127.0.0.1:0?{setting}")
    for act in (lambda: stage.listen(endpoint), lambda: stage.connect(endpoint)):
        with pytest.raises(ZError, match=f"{setting} is not supported"):
            act()


def test_without_a_common_name_both_sides_say_what_to_leave_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Rust node whose endpoint has multistream=1 takes one stream from none."""
    listener = stage.listen()
    monkeypatch.setattr(quic_module, "PROTOCOL_NAMES", ["zenoh-ms"])
    connected = stage.connect(listener.locators[0])
    accepted = stage.accept(listener)
    for link in (accepted, connected):
        assert "leave multistream=1 and mixed_rel=1 out" in str(stage.error_of(link.handshake))


def test_without_the_library_the_error_names_the_extra(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    normal = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "aioquic":
            raise ModuleNotFoundError("No module named 'aioquic'", name="aioquic")
        return normal(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "zenlake.link.quic")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(LinkError, match=r"quic/127\.0\.0\.1:0: .*pip install 'zenlake\[quic\]'"):
        links.listen(stage.endpoint, stage.options)


def test_a_client_that_goes_away_during_the_handshake(stage: Stage) -> None:
    listener = stage.listen()
    stage.connect(listener.locators[0]).close()
    accepted = stage.accept(listener)
    error = stage.error_of(accepted.handshake)
    assert "QUIC" in str(error)


def test_the_window_moves_with_what_is_read(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    data = Random(3).randbytes(4 * WINDOW_BYTES)
    assert stage.carry(connected, accepted, data) == data
    assert connected.handshake() is Progress.DONE


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of links, which is `ahead` of the machine's by as much as a test says."""
    clock = SimpleNamespace(ahead=0.0)
    clock.monotonic = lambda: time.monotonic() + clock.ahead
    monkeypatch.setattr(quic_module, "time", clock)
    return clock


def test_a_link_outlives_any_silence(clock: SimpleNamespace, stage: Stage) -> None:
    """Leases may be longer than the time after which QUIC takes a connection as lost."""
    _, connected, accepted = stage.triple()
    while clock.ahead < 10 * IDLE_SECONDS:
        clock.ahead += 1
        for link in (connected, accepted):
            quic(link).drive()
            assert link.receive() is None
    assert stage.carry(accepted, connected, b"still there") == b"still there"


def test_a_silent_peer_is_lost_after_the_idle_time(clock: SimpleNamespace, stage: Stage) -> None:
    _, connected, _ = stage.triple()
    probes = 0
    while not connected.more:
        clock.ahead += 1
        quic(connected).drive()
        probes = max(probes, quic(connected)._connection._loss._pto_count)
        assert clock.ahead < 2 * IDLE_SECONDS
    with pytest.raises(LinkError, match="QUIC connection lost: Idle timeout"):
        connected.receive()
    assert clock.ahead >= IDLE_SECONDS
    assert 0 < probes < 20


def test_a_link_takes_few_bytes_that_it_cannot_send_yet(stage: Stage) -> None:
    """What it takes is progress to a session, which gives up a link that makes none."""
    _, connected, _ = stage.triple()
    while connected.send(bytes(8 << 10)):
        stream = quic(connected)._connection._streams[STREAM].sender
        assert stream._buffer_stop - stream.highest_offset <= UNSENT_BYTES
    assert stream._buffer_stop >= UNSENT_BYTES


def test_a_peer_hears_of_a_part_of_the_window(stage: Stage) -> None:
    """On a slow path, the whole window takes longer than a session waits for progress."""
    _, connected, accepted = stage.triple()
    data = bytes(WINDOW_BYTES // 4)
    assert stage.carry(connected, accepted, data) == data
    stage.until(lambda: quic(connected)._connection._remote_max_data > WINDOW_BYTES or None)


def test_the_kernel_keeps_a_window_of_datagrams(stage: Stage) -> None:
    """A datagram that finds no room is lost, and each loss halves what the peer sends."""
    _, connected, accepted = stage.triple()
    most = int(Path("/proc/sys/net/core/rmem_max").read_text())
    for link in (connected, accepted):
        kept = quic(link)._datagrams._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert kept >= 2 * min(SOCKET_BYTES, most)  # Linux counts its own overhead, too.
