"""Links over a serial port: frames, the handshake, noise on the line, and sessions over it."""

import sys
from collections.abc import Iterator
from random import Random

import pytest

from tests.support.link_contract import Kind, Stage
from tests.support.runtime_nodes import Record, make_node, numbered
from tests.support.serial_line import SerialLine
from tests.support.waiting import until
from zenlake import link as links
from zenlake.errors import LinkError, ZError
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


@pytest.mark.parametrize(
    "setting", ["baudrate=fast", "exclusive=yes", "tout=-1", "release_on_close=1"]
)
def test_a_wrong_setting_is_refused_by_name(line: SerialLine, setting: str) -> None:
    with pytest.raises(ZError, match=setting.partition("=")[0]):
        links.listen(EndPoint(f"{other(line)}#{setting}"), LinkOptions())


def test_a_missing_device_and_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = EndPoint("serial//dev/not-there")
    with pytest.raises(LinkError, match=r"not-there.*is the path right"):
        links.connect(endpoint, links.resolve(endpoint)[0], LinkOptions())
    monkeypatch.delitem(sys.modules, "zenlake.link.serial")
    monkeypatch.setitem(sys.modules, "serial", None)
    with pytest.raises(LinkError, match=r"pip install 'zenlake\[serial\]'"):
        links.listen(endpoint, LinkOptions())
