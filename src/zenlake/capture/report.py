"""Streams of a capture, and the report of what could not be read. Plain values."""

from collections import Counter
from dataclasses import dataclass, field

from zenlake.errors import ZError

MICROS, NANOS, NG = "pcap, microseconds", "pcap, nanoseconds", "pcapng"
MAGIC = {
    bytes.fromhex("d4c3b2a1"): (MICROS, "little"),
    bytes.fromhex("a1b2c3d4"): (MICROS, "big"),
    bytes.fromhex("4d3cb2a1"): (NANOS, "little"),
    bytes.fromhex("a1b23c4d"): (NANOS, "big"),
    bytes.fromhex("0a0d0d0a"): (NG, "either"),
}
MAGIC_BYTES = 4


def is_capture(head: bytes) -> bool:
    """Return whether a file that begins with `head` is pcap or pcapng."""
    return head[:MAGIC_BYTES] in MAGIC


class CaptureError(ZError):
    """A file that is not a packet capture, or cannot be read; the message names it."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One conversation of a capture: a TCP connection, or UDP between two ends."""

    number: int
    "Ordinal from 0, by appearance in the file."
    protocol: str
    "One of tcp, udp and multicast."
    src: str
    src_port: int
    "Sender of the first packet in the file."
    dst: str
    dst_port: int
    packets: int
    bytes: int
    "Bytes of payload, as on the wire."
    zenoh: bool
    "True if its port or its start is Zenoh's."


@dataclass(slots=True)
class Report:
    """Counts of what was read and what was not; complete when the reading has ended.

    >>> report = Report()
    >>> report.count("missing bytes", 5)
    >>> report.unread
    Counter({'missing bytes': 5})
    """

    packets: int = 0
    streams: int = 0
    rows: int = 0
    unread: Counter[str] = field(default_factory=Counter)
    "Losses by reason, in the unit that the reason names, without zeros."
    passed_over: Counter[str] = field(default_factory=Counter)
    "Skipped without loss: packets that are not IP, streams that are not Zenoh, repeated bytes."

    def count(self, reason: str, number: int = 1) -> None:
        if number:
            self.unread[reason] += number

    def pass_over(self, reason: str, number: int = 1) -> None:
        if number:
            self.passed_over[reason] += number
