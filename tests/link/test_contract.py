"""The promises of base.py for every link and listener, on every kind."""

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.link_contract import KINDS, Kind, Stage
from zenlake import link as links
from zenlake.errors import LinkError
from zenlake.link.base import READ_BYTES, Progress, TransportLink
from zenlake.link.sockets import split_host
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint, Locator

STREAM_SIZES = [1, 2, 1000, 65_535, 65_536, 1 << 20]
DATAGRAM_SIZES = [1, 2, 1000, 1500, 8192, 65_487]
FULL = 64 << 20  # Upper bound on the bytes that a link accepts while its peer does not read.
ECHOED = 1 << 20
WINDOW = 16  # Datagrams under way at one time: loopback loses none of so few.
HELLO = b"hello from the good one"


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(KINDS[request.param], tmp_path)
    yield stage
    stage.close()


def some_bytes(size: int) -> bytes:
    return Random(size).randbytes(size)


def on(which: Callable[[Kind], bool] = lambda kind: True) -> pytest.MarkDecorator:
    """The kinds that a test is about."""
    names = [name for name, kind in KINDS.items() if which(kind)]
    return pytest.mark.parametrize("stage", names, indirect=True)


# --- what it says of itself


@on()
def test_a_link_says_what_it_is(stage: Stage) -> None:
    kind = stage.kind
    _, connected, accepted = stage.triple()
    assert connected.address == kind.address
    assert accepted.address == ("connector" if stage.network else kind.address)
    for link in (connected, accepted):
        assert link.protocol == kind.protocol
        assert link.framing is kind.framing
        assert link.reliable is kind.reliable
        assert link.mtu == kind.mtu
        assert (link.fileno() >= 0) is (stage.network is None)
        assert isinstance(link.local, Locator)
        assert isinstance(link.remote, Locator)
        assert str(link.remote) in repr(link)
        assert link.handshake() is Progress.DONE


@on()
def test_locators_lead_to_the_listener(stage: Stage) -> None:
    listener, connected, accepted = stage.triple()
    assert listener.locators
    for locator in listener.locators:
        assert isinstance(locator, Locator)
        assert locator.protocol == stage.kind.protocol
        assert not locator.address.endswith(":0")
    if stage.line:  # Each end has a device of its own, and knows that one alone.
        assert connected.remote == connected.local
        assert accepted.remote == accepted.local == listener.locators[0]
        return
    assert connected.remote == accepted.local == listener.locators[0]
    if stage.kind.protocol not in ("unixsock-stream", "vsock"):  # One end alone has its address.
        assert connected.local == accepted.remote


# --- bytes


@on()
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_bytes_of_every_size_arrive_unchanged(stage: Stage, back: bool) -> None:
    _, connected, accepted = stage.triple()
    sender, receiver = (accepted, connected) if back else (connected, accepted)
    sizes = STREAM_SIZES if stage.kind.framing is Framing.STREAM else DATAGRAM_SIZES
    for size in (size for size in sizes if size <= connected.mtu or sizes is STREAM_SIZES):
        data = some_bytes(size)
        assert stage.carry(sender, receiver, data) == data


@on()
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_is_taken_and_copied(stage: Stage, wrap: type) -> None:
    _, connected, accepted = stage.triple()
    buffer = bytearray(b"0123456789")
    assert connected.send(wrap(buffer)) == 10
    buffer[:] = b"overwritte"
    got = stage.until(accepted.receive)
    while len(got) < 10:
        got += stage.until(accepted.receive)
    assert isinstance(got, bytes)
    assert got == b"0123456789"


@on()
def test_batches_arrive_in_order_and_one_by_one(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    batches = [bytes([number]) * (number + 1) for number in range(WINDOW)]
    for batch in batches:
        assert connected.send(batch) == len(batch)
    if stage.kind.framing is Framing.DATAGRAM:
        assert [stage.until(accepted.receive) for _ in batches] == batches
    else:
        got = b""
        while len(got) < sum(map(len, batches)):
            got += stage.until(accepted.receive)
        assert got == b"".join(batches)


@on()
def test_nothing_there_is_none(stage: Stage) -> None:
    listener, connected, accepted = stage.triple()
    for _ in range(10):
        assert connected.receive() is None
        assert accepted.receive() is None
        assert listener.accept() is None
        stage.tick()
    assert not connected.more
    assert not accepted.more


@on(lambda kind: kind.framing is Framing.STREAM)
def test_one_receive_of_a_stream_is_bounded(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    sent = stage.fill(connected, bytes(READ_BYTES), FULL)
    got = 0
    while got < len(sent):
        data = stage.until(lambda: stage.receive_flushing(connected, accepted))
        assert 0 < len(data) <= READ_BYTES
        got += len(data)


@on(lambda kind: kind.framing is Framing.DATAGRAM)
def test_a_batch_above_the_mtu_is_refused(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    with pytest.raises(LinkError, match=str(connected.mtu)):
        connected.send(bytes(connected.mtu + 1))
    assert stage.carry(connected, accepted, b"still there") == b"still there"


@on(lambda kind: kind.reliable)
def test_back_pressure_and_going_on(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    sent = stage.fill(connected, some_bytes(32_000), FULL)
    got = bytearray()

    def drain() -> bool | None:
        got.extend(stage.receive_flushing(connected, accepted) or b"")
        return True if len(got) >= len(sent) else None

    stage.until(drain)
    assert bytes(got) == sent
    assert stage.carry(connected, accepted, b"and on") == b"and on"


# --- the end


@on(lambda kind: kind.ends)
def test_the_end_comes_after_the_last_bytes(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    assert connected.send(b"last words") == 10
    connected.close()
    got = b""
    while data := stage.until(accepted.receive):
        got += data
    assert got == b"last words"
    assert accepted.receive() == b""


@on()
def test_close_is_at_once_and_once(stage: Stage) -> None:
    listener, connected, accepted = stage.triple()
    for link in (connected, accepted):
        link.close()
        link.close()
        assert link.fileno() == -1
        with pytest.raises(LinkError, match=stage.kind.protocol):
            link.send(b"late")
        with pytest.raises(LinkError, match=stage.kind.protocol):
            link.receive()
    listener.close()
    listener.close()
    assert listener.fileno() == -1
    with pytest.raises(LinkError, match=stage.kind.protocol):
        listener.accept()


@on()
def test_links_outlive_their_listener(stage: Stage) -> None:
    listener, connected, accepted = stage.triple()
    listener.close()
    assert stage.carry(connected, accepted, b"there") == b"there"
    assert stage.carry(accepted, connected, b"back") == b"back"


@on()
def test_what_was_closed_can_be_opened_again(stage: Stage) -> None:
    listener, connected, accepted = stage.triple()
    where = EndPoint(listener.locators[0])
    connected.close()
    accepted.close()
    listener.close()
    again = stage.listen(where)
    assert again.locators == (where,)
    connected, accepted = stage.pair(again)
    assert stage.carry(connected, accepted, b"again") == b"again"


# --- what goes wrong


@on(lambda kind: not kind.line)  # On a line, no answer is all that there is.
def test_connect_to_nobody_names_the_endpoint(stage: Stage) -> None:
    listener = stage.listen()
    where = EndPoint(listener.locators[0])
    listener.close()
    opened: list[TransportLink] = []

    def attempt() -> None:
        if not opened:
            opened.append(stage.connect(where))
        if opened[0].handshake() is Progress.DONE:
            opened[0].send(b"anybody?")
            opened[0].receive()

    error = stage.error_of(attempt)
    assert str(where) in str(error)
    assert "no node listens there" in str(error)


@on()
def test_a_place_in_use_is_refused_by_name(stage: Stage) -> None:
    listener = stage.listen()
    where = EndPoint(listener.locators[0])
    with pytest.raises(LinkError) as refused:
        stage.listen(where)
    assert str(where) in str(refused.value)
    connected, accepted = stage.pair(listener)
    assert stage.carry(connected, accepted, b"unharmed") == b"unharmed"


def bad_peers(stage: Stage, where: Locator, sockets: ExitStack) -> None:
    """Peers that say nothing, that speak another language, that go away at once."""
    if stage.line:
        for bad in (b"\xde", some_bytes(1001), bytes(3), some_bytes(4000), b"\0"):
            stage.line.noise(0, bad)
        return
    if where.protocol == "unixpipe":
        requests = os.open(f"{where.address}_uplink", os.O_WRONLY | os.O_NONBLOCK)
        sockets.callback(os.close, requests)
        for bad in (b"\xde", some_bytes(1001), bytes.fromhex("deadbeef") + bytes(4)):
            os.write(requests, bad)
        return
    family: int
    sockaddr: Any
    if where.protocol == "unixsock-stream":
        family, sockaddr = socket.AF_UNIX, where.address
    elif where.protocol == "vsock":
        ((family, sockaddr),) = links.resolve(where)
    else:
        family = socket.AF_INET6 if "[" in where else socket.AF_INET
        sockaddr = split_host(where, where.address)
    kind = socket.SOCK_DGRAM if where.protocol in ("udp", "quic") else socket.SOCK_STREAM
    for number in range(12):
        peer = sockets.enter_context(socket.socket(family, kind))
        peer.connect(sockaddr)
        if number % 4 == 1:
            peer.send(some_bytes(1000))
        if number % 4 == 2:
            peer.close()
        if number % 4 == 3:
            if where.protocol != "vsock":  # Whose options Python takes as numbers only.
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()


@on(lambda kind: kind.faults is None)
def test_bad_peers_do_no_harm_to_the_listener(stage: Stage) -> None:
    listener = stage.listen()
    with ExitStack() as sockets:
        bad_peers(stage, listener.locators[0], sockets)
        good = stage.connect(listener.locators[0])
        peers: list[TransportLink] = []
        said = False

        def heard() -> TransportLink | None:
            nonlocal said
            while (peer := listener.accept()) is not None:
                peers.append(stage.keep(peer))
            if good.handshake() is Progress.DONE and not said:
                said = good.send(HELLO) == len(HELLO)
            for peer in list(peers):
                try:
                    if peer.handshake() is Progress.DONE and peer.receive() == HELLO:
                        return peer
                except LinkError:
                    peer.close()
                    peers.remove(peer)
            return None

        accepted = stage.until(heard)
        assert stage.carry(accepted, good, b"welcome") == b"welcome"


# --- threads


@on(lambda kind: kind.threads)
def test_one_thread_sends_while_another_receives(stage: Stage) -> None:
    _, connected, accepted = stage.triple()
    size = 512 if stage.kind.framing is Framing.DATAGRAM else 32 * 1024
    data = some_bytes(ECHOED)
    arrived = bytearray()

    def send_all() -> None:
        sent = 0
        while sent < len(data):
            if sent - len(arrived) < WINDOW * size:
                sent += connected.send(data[sent : sent + size])
            else:
                stage.tick()
            if connected.unsent:
                connected.flush()

    def receive_all() -> None:
        while len(arrived) < len(data):
            arrived.extend(stage.until(connected.receive))

    def echo_all() -> None:
        echoed = 0
        while echoed < len(data):
            left = stage.until(accepted.receive)
            echoed += len(left)
            while left:
                left = left[accepted.send(left) :]
                accepted.flush()
        while accepted.unsent:
            accepted.flush()

    with ThreadPoolExecutor(3) as pool:
        for work in [pool.submit(each) for each in (send_all, receive_all, echo_all)]:
            work.result(timeout=120)
    assert bytes(arrived) == data


@on(lambda kind: kind.threads)
def test_close_from_another_thread_ends_both(stage: Stage) -> None:
    _, connected, _ = stage.triple()
    busy = threading.Barrier(3)

    def work(act: str) -> LinkError:
        busy.wait()
        return stage.error_of(
            connected.receive if act == "receive" else lambda: connected.send(b"x")
        )

    with ThreadPoolExecutor(2) as pool:
        works = [pool.submit(work, act) for act in ("receive", "send")]
        busy.wait()
        connected.close()
        for each in works:
            assert stage.kind.protocol in str(each.result(timeout=120))
    assert connected.fileno() == -1
