"""serial/DEVICE: batches over a serial port, one per frame, as the crate z-serial 0.3.1 has them.

Knows the frames, the handshake of INIT and ACK, and the port, which `pyserial` opens. A serial line
has two ends: a listener has one link at a time.

    frame = COBS( flags u8 | length u16 | data | crc32 u32 ) 00      integers little-endian
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from collections import deque
from contextlib import suppress

import serial  # type: ignore[import-untyped]

from zenlake.errors import InvalidLocator, LinkError
from zenlake.link.base import Listener, Progress, TransportLink
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address, failed, parse_size
from zenlake.wire.framing import Framing
from zenlake.wire.locator import EndPoint

PROTOCOL = "serial"
MTU = 1500  # Largest batch of a frame.
MAX_FRAME_BYTES = 1517  # Largest frame on the wire, its zero included.
INIT, ACK, RESET = 1, 2, 4  # Bits of the flags.
HEAD, CRC = struct.Struct("<BH"), struct.Struct("<I")
POLYNOMIAL = 0x04C11DB7  # As z-serial has it: not reflected, so the result is not zlib's CRC.
BAUD_RATE, MAX_BAUD_RATE = 9600, 10_000_000
RESET_MICROSECONDS, MAX_RESET_MICROSECONDS = 50_000, 60_000_000
PENDING_FRAMES = 64  # Received frames that may wait in a link; more bytes wait in the kernel.
READ_AT_ONCE = 4096  # Bytes of one read.
TRUTH = {"true": True, "false": False}


def _crc_table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (POLYNOMIAL if number & 1 else 0)
        table.append(number)
    return tuple(table)


_TABLE = _crc_table()


def crc32(data: bytes) -> int:
    """Return z-serial's checksum of `data`.

    >>> hex(crc32(bytes.fromhex("001100")))
    '0xf975ec73'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def encode_frame(flags: int, data: bytes = b"") -> bytes:
    """Return a frame with its final zero.

    >>> encode_frame(0, bytes.fromhex("001100")).hex(" ")
    '01 02 03 01 02 11 05 73 ec 75 f9 00'
    """
    content = HEAD.pack(flags, len(data)) + data + CRC.pack(crc32(data))
    frame = bytearray()
    for part in content.split(b"\0"):
        for start in range(0, len(part), 254):
            piece = part[start : start + 254]
            frame += bytes([len(piece) + 1]) + piece
        if not part or len(part) % 254 == 0:
            frame.append(1)
    return bytes(frame) + b"\0"


def decode_frame(frame: bytes) -> tuple[int, bytes]:
    """Return flags and data of a frame without its zero. ValueError: it is damaged."""
    content, pos = bytearray(), 0
    while pos < len(frame):
        end = pos + frame[pos]
        if end > len(frame):
            raise ValueError("it ends within a COBS block")
        content += frame[pos + 1 : end]
        if frame[pos] < 255 and end < len(frame):
            content.append(0)
        pos = end
    if len(content) < HEAD.size + CRC.size:
        raise ValueError("it is shorter than a head and a checksum")
    flags, length = HEAD.unpack_from(content)
    data = bytes(content[HEAD.size : -CRC.size])
    if length != len(data) or length > MTU:
        raise ValueError(f"its length is {length}, and it has {len(data)} bytes")
    if CRC.unpack(content[-CRC.size :])[0] != crc32(data):
        raise ValueError("its checksum is wrong")
    return flags, data


class _Port:
    """Open serial port, which a listener and its link share; the last holder closes it."""

    def __init__(self, endpoint: EndPoint) -> None:
        self.endpoint = endpoint
        if os.name == "nt":
            raise LinkError(
                f"{endpoint}: serial links need devices with descriptors, which Windows does not "
                "have: use tcp"
            )
        config = endpoint.config
        exclusive, release = (
            _switch(endpoint, key, config.get(key, "true"))
            for key in ("exclusive", "release_on_close")
        )
        del release  # A listener keeps its port either way.
        text = config.get("baudrate", str(BAUD_RATE))
        baud = parse_size(endpoint, "baudrate", text, MAX_BAUD_RATE)
        if not baud:  # It would hang up.
            raise InvalidLocator(f"{endpoint}: baudrate={text} is not a speed")
        wait = config.get("tout", str(RESET_MICROSECONDS))
        self.reset_seconds = parse_size(endpoint, "tout", wait, MAX_RESET_MICROSECONDS) / 1e6
        try:
            self._serial = serial.Serial(
                endpoint.address,
                baudrate=baud,
                timeout=0,
                inter_byte_timeout=0,  # A read of no bytes is then the end, not a pause.
                write_timeout=0,
                exclusive=exclusive or None,
            )
            self._serial.reset_input_buffer()
        except (OSError, ValueError) as error:  # SerialException is an OSError.
            raise LinkError(
                f"{endpoint}: the serial port cannot be opened: {error} (is the path right, is the "
                "device connected, does another process have it?)"
            ) from None
        self._holders = 1
        self._lock = threading.Lock()
        self._received = bytearray()
        self._skipping = False

    def fileno(self) -> int:
        return int(self._serial.fileno()) if self._holders else -1

    def hold(self) -> None:
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if not self._holders:
                with suppress(OSError):
                    self._serial.close()

    def read_frames(self) -> list[tuple[int, bytes]]:
        """Return the undamaged frames of one read. LinkError: the device is gone."""
        with self._lock:
            if not self._holders:
                raise failed(self.endpoint, "receive", OSError(errno.EBADF, "closed"))
            try:
                data = os.read(self._serial.fileno(), READ_AT_ONCE)
            except BlockingIOError:
                return []
            except OSError as error:
                raise failed(self.endpoint, "receive", error) from None
            if not data:
                raise failed(self.endpoint, "receive", OSError(errno.EIO, "the device is gone"))
            frames = []
            *whole, rest = data.split(b"\0")
            for part in whole:
                self._received += part
                if self._received and not self._skipping and len(self._received) < MAX_FRAME_BYTES:
                    with suppress(ValueError):
                        frames.append(decode_frame(bytes(self._received)))
                self._received.clear()
                self._skipping = False
            self._received += rest
            if len(self._received) >= MAX_FRAME_BYTES:  # Noise: skip to the next zero.
                self._received.clear()
                self._skipping = True
            return frames

    def write(self, data: bytes | bytearray) -> int:
        with self._lock:
            if not self._holders:
                raise failed(self.endpoint, "send", OSError(errno.EBADF, "closed"))
            try:
                return os.write(self._serial.fileno(), data)
            except BlockingIOError:
                return 0
            except OSError as error:
                raise failed(self.endpoint, "send", error) from None


class SerialLink(TransportLink):
    """One end of a serial line. Like UDP it has no end: only silence, or an INIT of a new peer."""

    protocol = address = PROTOCOL
    framing = Framing.DATAGRAM
    reliable = False
    mtu = MTU

    def __init__(self, port: _Port, listener: SerialListener | None = None) -> None:
        self.local = self.remote = port.endpoint.locator
        self.name: str = port.endpoint
        self._port, self._listener = port, listener
        self._lock = threading.RLock()
        self._frames: deque[bytes] = deque()
        self._unsent = bytearray()
        self._open = listener is not None
        self._init_at: float | None = time.monotonic()
        "When to send INIT; None: the peer's answer is awaited."
        self._broken: LinkError | None = None
        self._closed = False
        if self._open:
            self._queue(INIT | ACK)
            self._carry()

    def fileno(self) -> int:
        return -1 if self._closed else self._port.fileno()

    def handshake(self) -> Progress:
        with self._lock:
            if not self._open and self._init_at is not None and self._init_at <= time.monotonic():
                self._init_at = None
                self._queue(INIT)
            self._carry()
            self._take()
            if self._broken is not None:
                raise self._broken
            if self._unsent:
                return Progress.WANT_WRITE
            return Progress.DONE if self._open else Progress.WANT_READ

    def _take(self) -> None:
        """Read frames, unless enough of them wait."""
        if self._broken is not None or len(self._frames) >= PENDING_FRAMES:
            return
        try:
            frames = self._port.read_frames()
        except LinkError as error:
            self._fail(error)
            return
        for flags, data in frames:
            if self._open and flags & INIT:
                self._queue(RESET)
                self._carry()
                self._fail(LinkError(f"{self.name}: the peer began a new link"))
            elif self._open and data:
                self._frames.append(data)
            elif flags & INIT and flags & ACK:
                self._open = True
            elif flags & RESET and not self._open:
                self._init_at = time.monotonic() + self._port.reset_seconds
                if self.schedule is not None:
                    self.schedule(self._init_at)

    def _fail(self, error: LinkError) -> None:
        if self._broken is None:
            self._broken = error

    def receive(self) -> bytes | None:
        with self._lock:
            if not self._frames:
                self._take()
            if self._frames:
                return self._frames.popleft()
            if self._broken is not None:
                raise self._broken
            return None

    @property
    def more(self) -> bool:
        return bool(self._frames) or self._broken is not None

    def send(self, data: bytes | bytearray | memoryview) -> int:
        if len(data) > MTU:
            raise LinkError(f"{self.name}: a batch of {len(data)} bytes is above {MTU}")
        with self._lock:
            if self._broken is not None:
                raise self._broken
            self._carry()
            if self._unsent:
                return 0
            self._queue(0, bytes(data))
            self._carry()
            return len(data)

    def _queue(self, flags: int, data: bytes = b"") -> None:
        self._unsent += encode_frame(flags, data)

    def _carry(self) -> None:
        if self._unsent and self._broken is None:
            try:
                del self._unsent[: self._port.write(self._unsent)]
            except LinkError as error:
                self._fail(error)

    @property
    def unsent(self) -> bool:
        return bool(self._unsent) and self._broken is None

    def flush(self) -> None:
        with self._lock:
            self._carry()

    def close(self) -> None:
        with self._lock:
            self._frames.clear()
            already, self._closed = self._closed, True
            self._broken = LinkError(f"{self.name}: it is closed on this side")
        if not already:
            if self._listener is not None:
                self._listener.hear()
            self._port.release()


class SerialListener(Listener):
    """Listener on a serial port. While its link is open it hears nothing.

    Its descriptor is a second one of the port, because the first belongs to the link.
    """

    def __init__(self, endpoint: EndPoint) -> None:
        self.locators = (endpoint.locator,)
        self._port = _Port(endpoint)
        self._lock = threading.RLock()
        self._busy = self._closed = False
        try:
            self._fd = os.dup(self._port.fileno())
        except OSError as error:
            self._port.release()
            raise failed(endpoint, "listen", error) from None

    def fileno(self) -> int:
        return -1 if self._closed else self._fd

    @property
    def busy(self) -> bool:
        return self._busy

    def accept(self) -> TransportLink | None:
        with self._lock:
            if self._closed:
                raise LinkError(f"{self.locators[0]}: it is closed on this side")
            if self._busy:
                return None
            if not any(flags & INIT for flags, _ in self._port.read_frames()):
                return None
            self._busy = True
            self._port.hold()
            return SerialLink(self._port, self)

    def hear(self) -> None:
        """Accept again: the link is closed."""
        with self._lock:
            self._busy = False
            tell = None if self._closed else self.on_idle
        if tell is not None:
            tell()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._fd)
                self._port.release()


def _switch(endpoint: EndPoint, key: str, text: str) -> bool:
    if text not in TRUTH:
        raise InvalidLocator(f"{endpoint}: {key} is {text!r}: write true or false")
    return TRUTH[text]


def resolve(endpoint: EndPoint) -> list[Address]:
    return [Address(0, endpoint.address)]


def connect(endpoint: EndPoint, address: Address, options: LinkOptions) -> SerialLink:
    return SerialLink(_Port(endpoint))


def listen(endpoint: EndPoint, options: LinkOptions) -> SerialListener:
    return SerialListener(endpoint)
