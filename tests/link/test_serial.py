"""Links over a serial port: frames, the handshake, noise on the line, and sessions over it."""

import operator
import select
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.support.link_contract import Kind, Stage
from tests.support.runtime_nodes import Record, make_node, numbered
from tests.support.serial_line import SerialLine
from tests.support.waiting import until
from zenlake import link as links
from zenlake.errors import InvalidLocator, LinkError, ZError
from zenlake.link.base import Progress, TransportLink
from zenlake.link.options import LinkOptions
from zenlake.link.serial import (
    INIT,
    MAX_FRAME_BYTES,
    MTU,
    PENDING_FRAMES,
    RESET,
    SerialLink,
    crc32,
    decode_frame,
    encode_frame,
)
from zenlake.runtime.polling import POLLERS, SELECTOR_VARIABLE, PollSource
from zenlake.runtime.reactor import Reactor, Ready
from zenlake.transport.retry import RetryPolicy
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint

SIZES = [0, 1, 2, 246, 247, 248, 253, 254, 255, 508, 509, 1000, 1499, MTU]
# Bytes of z-serial 0.3.1: flags and data, and the frame that it writes for them.
FRAMES = [
    (0, "00 11 00", "01 02 03 01 02 11 05 73 ec 75 f9 00"),
    (0, "11 22 00 33", "01 02 04 03 11 22 06 33 8d 03 6d fb 00"),
]


@pytest.fixture
def line() -> Iterator[SerialLine]:
    with SerialLine() as line:
        yield line


@pytest.fixture
def stage(line: SerialLine, tmp_path: object) -> Iterator[Stage]:
    kind = Kind("serial", f"serial/{line.ends[0]}", Framing.DATAGRAM, False)
    stage = Stage(kind, tmp_path)  # type: ignore[arg-type]
    yield stage
    stage.close()


def other(line: SerialLine) -> EndPoint:
    return EndPoint(f"serial/{line.ends[1]}")


def linked(stage: Stage, line: SerialLine) -> tuple[TransportLink, TransportLink]:
    listener = stage.listen()
    connected = stage.connect(other(line))
    assert connected.handshake() is Progress.WANT_READ
    accepted = stage.accept(listener)
    stage.until(
        lambda: {link.handshake() for link in (connected, accepted)} == {Progress.DONE} or None
    )
    return connected, accepted


@pytest.mark.parametrize(("flags", "data", "frame"), FRAMES)
def test_frames_are_those_of_z_serial(flags: int, data: str, frame: str) -> None:
    assert encode_frame(flags, bytes.fromhex(data)).hex(" ") == frame
    assert decode_frame(bytes.fromhex(frame)[:-1]) == (flags, bytes.fromhex(data))


@pytest.mark.parametrize("fill", [None, 0, 1, 255])
@pytest.mark.parametrize("size", SIZES)
def test_a_frame_of_any_size_is_read_back(size: int, fill: int | None) -> None:
    data = Random(size).randbytes(size) if fill is None else bytes([fill]) * size
    frame = encode_frame(INIT, data)
    assert len(frame) <= MAX_FRAME_BYTES
    assert frame.count(0) == 1
    assert decode_frame(frame[:-1]) == (INIT, data)


def test_damaged_frames_are_refused() -> None:
    frame, random = encode_frame(0, bytes(range(100)))[:-1], Random(4)
    for number in range(2000):
        damaged = bytearray(frame)
        damaged[random.randrange(len(damaged))] ^= random.randrange(1, 256)
        if number % 3 == 0:
            del damaged[random.randrange(len(damaged)) :]
        with pytest.raises(ValueError, match="it"):
            decode_frame(bytes(damaged))
    assert crc32(b"") == 0


def test_batches_go_both_ways(stage: Stage, line: SerialLine) -> None:
    connected, accepted = linked(stage, line)
    assert (connected.mtu, connected.reliable, connected.address) == (MTU, False, "serial")
    for size in SIZES[1:]:
        data = Random(size).randbytes(size)
        assert stage.carry(connected, accepted, data) == data
        assert stage.carry(accepted, connected, data) == data
    with pytest.raises(LinkError, match=str(MTU)):
        connected.send(bytes(MTU + 1))


def test_noise_is_skipped_and_bounded(stage: Stage, line: SerialLine) -> None:
    connected, accepted = linked(stage, line)
    assert isinstance(accepted, SerialLink)
    random = Random(5)
    for _ in range(40):
        noise = random.randbytes(200).replace(b"\0", b"\1")
        line.noise(0, noise)
        stage.tick()
        assert accepted.receive() is None
        assert len(accepted._port._received) < MAX_FRAME_BYTES
    line.noise(0, b"\0" + random.randbytes(50) + b"\0")
    assert stage.carry(connected, accepted, b"after noise") == b"after noise"


def test_frames_that_are_not_read_wait_in_the_kernel(stage: Stage, line: SerialLine) -> None:
    connected, accepted = linked(stage, line)
    assert isinstance(accepted, SerialLink)
    taken = 0
    for number in range(2000):
        taken += bool(connected.send(b"%04d" % number))
        accepted.flush()
        if not number % 100:
            stage.tick()
    assert len(accepted._frames) <= PENDING_FRAMES + 4096
    got = [stage.until(lambda: stage.receive_flushing(connected, accepted)) for _ in range(taken)]
    assert got == sorted(got)


def test_a_peer_that_begins_again_gets_reset_and_then_its_link(
    stage: Stage, line: SerialLine
) -> None:
    listener = stage.listen()
    first = stage.connect(other(line))
    first.handshake()
    accepted = stage.accept(listener)
    stage.until(lambda: first.handshake() is Progress.DONE or None)
    first.close()
    again = stage.connect(other(line))
    again.handshake()
    assert "began a new link" in str(stage.error_of(accepted.receive))
    assert bytes(line.carried[0]).endswith(encode_frame(RESET)) or stage.until(
        lambda: bytes(line.carried[0]).endswith(encode_frame(RESET)) or None
    )
    accepted.close()
    opened: list[TransportLink] = []

    def reopened() -> bool | None:
        done = again.handshake() is Progress.DONE
        if not opened and (link := listener.accept()) is not None:
            opened.append(stage.keep(link))
            link.handshake()
        return True if done and opened else None

    stage.until(reopened)
    assert stage.carry(again, opened[0], b"again") == b"again"


def test_two_nodes_talk_over_a_line(line: SerialLine) -> None:
    there, back = Record(), Record()
    with make_node(there) as one, make_node(back) as two:
        one.listen(f"serial/{line.ends[0]}")
        session = two.connect(f"serial/{line.ends[1]}")
        for number in range(50):
            session.send(numbered(number, size=number * 100))
        until(lambda: there.numbers, lambda numbers: numbers == list(range(50)))
        there.sessions[0].send(numbered(7))
        until(lambda: back.numbers, lambda numbers: numbers == [7])


@pytest.mark.parametrize("selector", POLLERS)
def test_a_listener_takes_each_peer_that_begins_again_without_goodbye(
    line: SerialLine, selector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SELECTOR_VARIABLE, selector)
    there = Record()
    with make_node(there) as listening:
        listening.listen(f"serial/{line.ends[0]}")
        for number in range(3):
            with make_node(Record()) as board:
                board.connect(f"serial/{line.ends[1]}").send(numbered(number))
                until(lambda: there.numbers[-1:], partial(operator.eq, [number]))
                line.noise(0, encode_frame(INIT))  # As a board that is reset.
                until(lambda: listening.sessions, lambda sessions: not sessions)
                assert not listening.pending
        until(lambda: there.numbers, lambda numbers: numbers == [0, 1, 2])
    why = f"serial/{line.ends[0]}: the peer began a new link"
    assert [str(end) for _, end in there.ends] == [why] * 3


@pytest.mark.parametrize("selector", POLLERS)
def test_a_connecting_node_comes_back_over_a_line_that_broke(
    line: SerialLine, selector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SELECTOR_VARIABLE, selector)
    there = Record()
    with make_node(there) as listening, make_node(Record()) as board:
        listening.listen(f"serial/{line.ends[0]}")
        for number in range(3):
            session = board.connect(f"serial/{line.ends[1]}")
            session.send(numbered(number))
            until(lambda: there.numbers[-1:], partial(operator.eq, [number]))
            line.noise(1, encode_frame(INIT))
            until(lambda: board.sessions, lambda sessions: not sessions)


@pytest.mark.parametrize("selector", POLLERS)
@pytest.mark.parametrize("end", [0, 1], ids=["listening", "connecting"])
def test_a_line_that_is_unplugged_works_again_once_it_is_plugged_in(
    line: SerialLine, end: int, selector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SELECTOR_VARIABLE, selector)
    devices = [tmp_path / "listens", tmp_path / "connects"]
    for device, path in zip(devices, line.ends, strict=True):
        device.symlink_to(path)
    there, quick = Record(), RetryPolicy(first=0.05, longest=0.1)
    with make_node(there, retry=quick) as listening, make_node(Record(), retry=quick) as board:
        listening.listen(f"serial/{devices[0]}")
        connector = board.keep_connected(f"serial/{devices[1]}#tout=1000")
        session = until(lambda: connector.session)
        assert session is not None
        session.send(numbered(1))
        until(lambda: there.numbers, lambda numbers: numbers == [1])
        unplugged = (listening, board)[end].sessions.popitem()[1]
        devices[end].unlink()
        line.plug_again(end)
        until(lambda: unplugged.over)
        assert "the device is gone" in str(unplugged.over)
        devices[end].symlink_to(line.ends[end])
        if end == 0:
            line.noise(1, encode_frame(INIT))  # Else the board notices after the lease.

        def sent_again() -> bool:
            with suppress(ZError):
                if (session := connector.session) is not None:
                    session.send(numbered(2))
            return there.numbers[-1] == 2

        until(sent_again)


def test_a_device_that_is_gone_keeps_no_thread_busy(line: SerialLine, stage: Stage) -> None:
    listener = stage.listen()
    line.plug_again(0)
    with pytest.raises(LinkError, match="the device is gone"):
        stage.until(listener.accept)


def test_a_listener_rests_while_its_link_is_open(line: SerialLine, stage: Stage) -> None:
    listener = stage.listen()
    calls: list[bool] = []
    listener.on_idle = lambda: calls.append(listener.busy)
    first = stage.connect(other(line))
    first.handshake()
    accepted = stage.accept(listener)
    assert (listener.busy, calls) == (True, [])
    assert listener.fileno() not in (-1, accepted.fileno())
    accepted.close()
    assert accepted.fileno() == -1
    assert calls == [False]


def test_a_listener_needs_no_epoll(line: SerialLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")
    monkeypatch.setenv(SELECTOR_VARIABLE, "poll")
    there = Record()
    with make_node(there) as one, make_node(Record()) as two:
        one.listen(f"serial/{line.ends[0]}")
        two.connect(f"serial/{line.ends[1]}").send(numbered(1))
        until(lambda: there.numbers, lambda numbers: numbers == [1])


def test_a_link_that_cannot_be_watched_is_closed(
    line: SerialLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[object] = []
    watch = Reactor.watch

    def watch_after_one_refusal(
        self: Reactor, source: PollSource, ready: Ready, **events: bool
    ) -> None:
        if isinstance(source, SerialLink) and source._listener is not None and not refused:
            refused.append(source)
            raise FileExistsError(17, "File exists")
        watch(self, source, ready, **events)

    monkeypatch.setattr(Reactor, "watch", watch_after_one_refusal)
    there = Record()
    with make_node(there) as one, make_node(Record()) as two:
        one.listen(f"serial/{line.ends[0]}")
        two.keep_connected(f"serial/{line.ends[1]}#tout=1000")
        until(lambda: refused)
        line.noise(0, encode_frame(INIT))
        until(lambda: one.sessions)


@pytest.mark.parametrize(
    "setting", ["baudrate=fast", "baudrate=0", "exclusive=yes", "tout=-1", "release_on_close=1"]
)
def test_a_wrong_setting_is_refused_by_name(line: SerialLine, setting: str) -> None:
    with pytest.raises(InvalidLocator, match=setting.partition("=")[0]) as refused:
        links.listen(EndPoint(f"{other(line)}#{setting}"), LinkOptions())
    assert "is the path right" not in str(refused.value)


def test_a_missing_device_and_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = EndPoint("serial//dev/not-there")
    with pytest.raises(LinkError, match=r"not-there.*is the path right"):
        links.connect(endpoint, links.resolve(endpoint)[0], LinkOptions())
    monkeypatch.delitem(sys.modules, "zenlake.link.serial")
    monkeypatch.setitem(sys.modules, "serial", None)
    with pytest.raises(LinkError, match=r"pip install 'zenlake\[serial\]'"):
        links.listen(endpoint, LinkOptions())
