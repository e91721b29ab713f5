"""One side of a TCP connection, its packets put in order.

Knows sequence numbers modulo 2^32: early segments are held, repeated bytes are dropped (the first
copy counts), missing bytes are gaps. Works on positions in the file, not on bytes.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from zenlake.capture.kernels.packets import PACKET, SYN
from zenlake.capture.packets import Packets
from zenlake.capture.report import Report

MAX_HELD_BYTES = 1 << 20  # Bytes held after a gap of a side; with more, the gap is skipped.
MAX_HELD_PIECES = 1024

NOTHING: Packets = np.zeros(0, PACKET)


class HeldSegment(NamedTuple):
    """A segment that was captured before its turn."""

    pos: int
    end: int
    "Positions in the stream; the file may have fewer bytes of it."
    packet: Packets
    "One row, cut to these bytes."


class Reassembly:
    """Orders the packets of one side: yields (bytes missing before, pieces) in stream order."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._origin: int | None = None
        "Sequence number at position 0."
        self._next = 0
        self._held: list[HeldSegment] = []
        self._held_bytes = 0
        self.from_start = False
        "True if position 0 is the connection's first byte: its SYN was captured."

    def add(self, packets: Packets) -> Iterator[tuple[int, Packets]]:
        """Add packets of this side, in the order of the file."""
        if self._origin is None:
            self._find_origin(packets)
        data = packets[(packets["size"] > 0) | (packets["cut"] > 0)]
        if not len(data) or self._origin is None:
            return
        # A packet with SYN and data: its number is that of the SYN.
        seq = data["seq"] + ((data["flags"] & SYN) != 0).astype(np.uint32)
        expected = np.uint32((self._origin + self._next) & 0xFFFF_FFFF)
        pos = self._next + (seq - expected).astype(np.int32).astype(np.int64)
        end = pos + data["size"] + data["cut"]
        linked = (pos[1:] == end[:-1]) & (data["cut"][:-1] == 0)
        breaks = np.append(np.flatnonzero(~linked), len(data) - 1)
        i = 0
        while i < len(data):
            if pos[i] == self._next and not self._held:
                last = int(breaks[np.searchsorted(breaks, i)])
                yield from self._deliver(int(end[last]), data[i : last + 1])
                i = last + 1
            else:
                yield from self._odd(int(pos[i]), int(end[i]), data[i : i + 1])
                i += 1

    def finish(self) -> Iterator[tuple[int, Packets]]:
        """Yield the held segments, with the gaps before them."""
        while self._held:
            yield from self._jump()

    def _find_origin(self, packets: Packets) -> None:
        """Set position 0 by the SYN, else by the lowest number among the first packets."""
        opening = packets[(packets["flags"] & SYN) != 0]
        if len(opening):
            self._origin = (int(opening["seq"][0]) + 1) & 0xFFFF_FFFF
            self.from_start = True
            return
        data = packets[packets["size"] > 0]
        if len(data):
            ahead = (data["seq"] - data["seq"][0]).astype(np.int32)
            near = data["seq"][ahead > -MAX_HELD_BYTES]
            self._origin = int(near[np.argmin(ahead[ahead > -MAX_HELD_BYTES])])

    def _deliver(self, end: int, pieces: Packets) -> Iterator[tuple[int, Packets]]:
        """Yield pieces that follow each other; only the last may be cut off, which leaves a gap."""
        self._next = end
        cut = int(pieces["cut"][-1])
        yield 0, pieces
        if cut:
            yield cut, NOTHING

    def _odd(self, pos: int, end: int, packet: Packets) -> Iterator[tuple[int, Packets]]:
        if pos > self._next:
            self._hold(pos, end, packet)
            while len(self._held) > MAX_HELD_PIECES or self._held_bytes > MAX_HELD_BYTES:
                yield from self._jump()
            return
        if end <= self._next:
            self._again(end - pos)
            return
        self._again(self._next - pos)
        yield from self._up_to_held(self._next, end, _without(packet, self._next - pos))
        yield from self._drain()

    def _up_to_held(self, pos: int, end: int, packet: Packets) -> Iterator[tuple[int, Packets]]:
        """Deliver a piece without the bytes that are held already: the first copy counts."""
        while pos < end:
            stop = min(end, self._held[0].pos) if self._held else end
            if stop > pos:
                yield from self._deliver(stop, _only(packet, stop - pos))
            yield from self._drain()
            if self._next > stop:
                self._again(min(end, self._next) - stop)
            packet, pos = _without(packet, self._next - pos), self._next

    def _hold(self, pos: int, end: int, packet: Packets) -> None:
        """Hold the bytes of a piece that are not held yet."""
        at = max(bisect_right(self._held, pos, key=lambda held: held.pos) - 1, 0)
        while pos < end:
            while at < len(self._held) and self._held[at].end <= pos:
                at += 1
            stop = min(end, self._held[at].pos) if at < len(self._held) else end
            if stop > pos:
                self._held.insert(at, HeldSegment(pos, stop, _only(packet, stop - pos)))
                self._held_bytes += stop - pos
                after = stop
            else:
                after = min(end, self._held[at].end)
                self._again(after - pos)
            packet, pos = _without(packet, after - pos), after

    def _drain(self) -> Iterator[tuple[int, Packets]]:
        """Yield held segments that are next."""
        while self._held and self._held[0].pos <= self._next:
            held = self._held.pop(0)
            self._held_bytes -= held.end - held.pos
            yield from self._deliver(held.end, held.packet)

    def _jump(self) -> Iterator[tuple[int, Packets]]:
        """Skip the gap before the first held segment."""
        gap = self._held[0].pos - self._next
        self._next = self._held[0].pos
        yield gap, NOTHING
        yield from self._drain()

    def _again(self, size: int) -> None:
        self._report.pass_over("bytes that TCP sent again", size)


def _only(packet: Packets, size: int) -> Packets:
    """Return a packet cut to the first `size` bytes of its payload."""
    packet = packet.copy()
    had = packet["size"][0]
    packet["size"] = min(had, size)
    packet["cut"] = max(0, size - had)
    return packet


def _without(packet: Packets, size: int) -> Packets:
    """Return a packet without the first `size` bytes of its payload."""
    packet = packet.copy()
    had = int(packet["size"][0])
    packet["at"] += min(had, size)
    packet["size"] = max(0, had - size)
    packet["cut"] -= max(0, size - had)
    return packet
