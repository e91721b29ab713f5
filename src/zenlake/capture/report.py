"""What a capture is said to hold: its streams, and what in it could not be read. Plain values."""

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
    """Whether a file that begins so is pcap or pcapng."""
    return head[:MAGIC_BYTES] in MAGIC


class CaptureError(ZError):
    """A file that is no packet capture, or cannot be read at all; the message names it."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One conversation of a capture: a TCP connection, or UDP between two ends."""

    number: int
    "From 0, in the order in which the file shows them; the same for every reading of the file."
    protocol: str
    "tcp, udp or multicast."
    src: str
    src_port: int
    "Who sent the first packet that the file has of it."
    dst: str
    dst_port: int
    packets: int
    bytes: int
    "Of payload, as it was on the wire."
    zenoh: bool
    "By its port, or by how it starts."


@dataclass(slots=True)
class Report:
    """What was read and what was not. Complete when the reading has ended.

    >>> report = Report()
    >>> report.count("missing bytes", 5)
    >>> report.unread
    Counter({'missing bytes': 5})
    """

    packets: int = 0
    streams: int = 0
    rows: int = 0
    unread: Counter[str] = field(default_factory=Counter)
    "By reason, in the unit that the reason names; what is zero is left out."
    passed_over: Counter[str] = field(default_factory=Counter)
    "What is no loss: packets that are not IP, streams that are not Zenoh, bytes that came twice."

    def count(self, reason: str, number: int = 1) -> None:
        if number:
            self.unread[reason] += number

    def pass_over(self, reason: str, number: int = 1) -> None:
        if number:
            self.passed_over[reason] += number
