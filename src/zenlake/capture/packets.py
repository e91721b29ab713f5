"""A capture file as windows of packets, and the streams that they belong to.

Knows the file's header and where everything stands. Does not know Zenoh but for how one of its
conversations begins. The compiled part is kernels/packets.py.
"""

import mmap
import secrets
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zenlake.capture.batch_framing import is_session_start
from zenlake.capture.kernels import packets as kernel
from zenlake.capture.kernels.packets import PACKET
from zenlake.capture.report import (
    MAGIC,
    MAGIC_BYTES,
    MICROS,
    NANOS,
    NG,
    CaptureError,
    Report,
    Stream,
)
from zenlake.errors import DecodeError
from zenlake.wire.batch import read_scouting
from zenlake.wire.init import VERSION
from zenlake.wire.scan import read_only_array

MAX_STREAMS = 65_536
MAX_INTERFACES = 256  # Interfaces of a section that are kept.
WINDOW_PACKETS = 16_384
WINDOW_BYTES = 1 << 20  # Bytes of a window, whose rows then stay in the processor's cache.
FIRST_BYTES = 2048  # Bytes of a stream that are checked for a Zenoh handshake.

Packets = npt.NDArray[np.void]

_FORMATS = {
    MICROS: kernel.FORMAT_MICROS,
    NANOS: kernel.FORMAT_NANOS,
    NG: kernel.FORMAT_NG,
}
_PCAP_HEADER = 24
_LINK_BITS = 0xFFFF  # Bits of the link type; the length of a frame check sequence is above.

_REASONS = {
    kernel.C_TRUNCATED: "bytes after which the file was cut off",
    kernel.C_DAMAGED: "bytes that are not packet records",
    kernel.C_BAD_BLOCKS: "damaged blocks",
    kernel.C_UNKNOWN_LINK: "packets of an unknown link type",
    kernel.C_UNKNOWN_INTERFACE: "packets of an interface that was not described",
    kernel.C_SHORT: "packets with headers that are cut or wrong",
    kernel.C_CUT: "packets cut by the capture's length limit",
    kernel.C_NO_ROOM: f"packets of streams beyond the first {MAX_STREAMS}",
}
_PASSED_OVER = {
    kernel.C_NOT_IP: "packets that are not IP",
    kernel.C_NOT_TCP_OR_UDP: "packets that are neither TCP nor UDP",
    kernel.C_FRAGMENTS: "IP fragments",
}


class CaptureFile:
    """One walk over one file, from its start to its end."""

    def __init__(self, path: str | Path, data: bytes | None = None) -> None:
        """Map the file; `data` is its content if that is in memory already."""
        content = _map(path) if data is None else data
        self.name = str(path)
        self._state = np.zeros(kernel.STATE_WORDS, np.int64)
        self._state[kernel.S_POS] = self._header(bytes(content[:_PCAP_HEADER]))
        self.data = read_only_array(content)  # type: ignore[arg-type]
        "The whole file, mapped: only pages that were read are in memory."
        self._counts = np.zeros(kernel.COUNT_WORDS, np.int64)
        self._interfaces = np.zeros((MAX_INTERFACES, kernel.INTERFACE_WORDS), np.int64)
        self._keys = np.zeros((MAX_STREAMS, kernel.KEY_WORDS), np.uint64)
        self._streams = np.zeros((MAX_STREAMS, kernel.STREAM_WORDS), np.int64)
        self._slots = np.full(2 * MAX_STREAMS, -1, np.int32)
        self._key = np.zeros(kernel.KEY_BYTES, np.uint8)
        self._packets = np.zeros(WINDOW_PACKETS, PACKET)
        self._seed = np.uint64(secrets.randbits(63))

    def _header(self, head: bytes) -> int:
        """Return the position of the first record."""
        found = MAGIC.get(head[:MAGIC_BYTES])
        if found is None:
            start = f"it starts with {head[:MAGIC_BYTES].hex()}" if head else "it is empty"
            raise CaptureError(
                f"{self.name}: not a packet capture: {start}; pcap and pcapng files can be read"
            )
        form, order = found
        self._state[kernel.S_FORMAT] = _FORMATS[form]
        if form == NG:
            return 0
        if len(head) < _PCAP_HEADER:
            raise CaptureError(f"{self.name}: cut off in its first {_PCAP_HEADER} bytes")
        self._state[kernel.S_BIG] = order == "big"
        link = int.from_bytes(head[20:24], "big" if order == "big" else "little")
        self._state[kernel.S_LINK] = link & _LINK_BITS
        return _PCAP_HEADER

    def windows(self) -> Iterator[Packets]:
        """Yield rows of dtype PACKET in the file's order; each window overwrites the one before."""
        while not self._state[kernel.S_DONE]:
            count = kernel.walk(
                self.data,
                self._state,
                self._interfaces,
                self._counts,
                self._keys,
                self._streams,
                self._slots,
                self._key,
                self._key.view(np.uint64),
                self._packets,
                WINDOW_BYTES,
                self._seed,
            )
            if count:
                yield self._packets[:count]

    @property
    def stream_count(self) -> int:
        """Number of streams seen so far."""
        return int(self._state[kernel.S_STREAMS])

    def tell(self, report: Report) -> None:
        """Add to `report` what the walk could not read."""
        report.packets = int(self._state[kernel.S_PACKETS])
        report.streams = self.stream_count
        for which, reason in _REASONS.items():
            report.count(reason, int(self._counts[which]))
        for which, reason in _PASSED_OVER.items():
            report.pass_over(reason, int(self._counts[which]))

    def ends(self, number: int) -> tuple[tuple[str, int], tuple[str, int]]:
        """Return address and port of side 0 and side 1 of a stream."""
        key = self._keys[number].tobytes()
        size = kernel.END_BYTES
        low, high = (_end(key[i : i + size], key[2 * size + 1]) for i in (0, size))
        return (high, low) if self._streams[number, kernel.F_FLIP] else (low, high)

    def protocol(self, number: int) -> str:
        if self._keys[number].tobytes()[2 * kernel.END_BYTES] == kernel.TCP:
            return "tcp"
        return "multicast" if any(_is_group(end[0]) for end in self.ends(number)) else "udp"

    def first_bytes(self, number: int, side: int) -> bytes | None:
        """Return the start of a side's payload, as far as one packet has it; None if unseen."""
        base = kernel.F_SIDE + side * kernel.SIDE_WORDS
        at, size = self._streams[number, base + kernel.D_AT : base + kernel.D_SIZE + 1].tolist()
        return None if at < 0 else self.data[at : at + min(size, FIRST_BYTES)].tobytes()

    def is_zenoh(self, number: int, ports: Collection[int]) -> bool | None:
        """Judge by port, else by the stream's start; None if that has not been seen yet."""
        ends = self.ends(number)
        if any(port in ports for _, port in ends):
            return True
        starts = _STARTS[self.protocol(number)]
        heads = [head for side in (0, 1) if (head := self.first_bytes(number, side)) is not None]
        return any(starts(head) for head in heads) if heads else None

    def stream(self, number: int, ports: Collection[int]) -> Stream:
        (src, src_port), (dst, dst_port) = self.ends(number)
        packets, size = self._streams[number, kernel.F_PACKETS : kernel.F_BYTES + 1].tolist()
        return Stream(
            number,
            self.protocol(number),
            src,
            src_port,
            dst,
            dst_port,
            packets,
            size,
            bool(self.is_zenoh(number, ports)),
        )


def _map(path: str | Path) -> bytes | mmap.mmap:
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, 2)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CaptureError(f"{path}: cannot be read: {reason}") from None


def _end(raw: bytes, version: int) -> tuple[str, int]:
    address = IPv4Address(raw[:4]) if version == 4 else IPv6Address(raw[:16])
    return str(address), int.from_bytes(raw[16:], "big")


def _is_group(address: str) -> bool:
    return (IPv6Address(address) if ":" in address else IPv4Address(address)).is_multicast


def _is_tcp_start(head: bytes) -> bool:
    """Return whether a TCP stream starts with a length and an INIT."""
    length = int.from_bytes(head[:2], "little")
    return 2 + length <= len(head) and is_session_start(head[2 : 2 + length])


def _is_datagram_start(head: bytes) -> bool:
    """Return whether a datagram is INIT, JOIN, SCOUT or HELLO."""
    if is_session_start(head):
        return True
    try:
        return read_scouting(head).version == VERSION
    except DecodeError:
        return False


_STARTS = {"tcp": _is_tcp_start, "udp": _is_datagram_start, "multicast": _is_datagram_start}
