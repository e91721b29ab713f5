"""Captures made by hand: Zenoh sessions as TCP or UDP packets, in every format and link type."""

import struct
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from zenlake.capture import Report, read
from zenlake.wire.batch import write_batch
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.declare import Declare, DeclareKeyExpr, UndeclareKeyExpr
from zenlake.wire.enums import Mapping, WireWhatAmI
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing, compress, to_stream
from zenlake.wire.init import Init
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.open import Open
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

OPENER, ACCEPTOR = WireZenohId(b"\x01\x02\x03"), WireZenohId(b"\x0a\x0b\x0c")
ENDS = (("10.0.0.1", 40_000), ("10.0.0.2", 7447))
ENDS6 = (("fd00::1", 40_000), ("fd00::2", 7447))
START = 1_700_000_000 * 1_000_000_000  # Time of the first packet of every capture, in nanoseconds.
STEP = 1_000_000  # Nanoseconds between two packets.
FIN, SYN, PSH, ACK = 0x01, 0x02, 0x08, 0x10

Write = tuple[int, bytes]
"Who writes (0: the opener) and what."


class Form(NamedTuple):
    """Parameters that both sides agreed on."""

    low_latency: bool = False
    compression: bool = False

    def stream(self, *batches: bytes) -> bytes:
        if self.low_latency:
            return to_stream([*batches], Framing.LOW_LATENCY)
        if self.compression:
            batches = tuple(compress(batch) for batch in batches)
        return to_stream([*batches], Framing.STREAM)


PLAIN = Form()


def handshake(form: Form = PLAIN) -> list[Write]:
    offer: dict[str, Any] = {
        "low_latency": form.low_latency,
        "compression": form.compression,
        "patch": 1,
    }
    return [
        (0, plain(write_batch([Init(OPENER, WireWhatAmI.PEER, **offer)]))),
        (1, plain(write_batch([Init(ACCEPTOR, WireWhatAmI.ROUTER, cookie=b"cookie", **offer)]))),
        (0, plain(write_batch([Open(10_000, 7, cookie=b"cookie")]))),
        (1, plain(write_batch([Open(10_000, 9)]))),
    ]


def plain(*batches: bytes) -> bytes:
    return to_stream([*batches], Framing.STREAM)


def encoded(*messages: NetworkMessage) -> bytes:
    w = ByteWriter()
    for message in messages:
        NETWORK.write(w, message)
    return bytes(w.out)


def frame(sn: int, *messages: NetworkMessage, form: Form = PLAIN) -> bytes:
    if form.low_latency:
        return form.stream(*(encoded(message) for message in messages))
    return form.stream(write_batch([Frame(sn, messages=[*messages])]))


def declare(number: int, key: str) -> Declare:
    return Declare(DeclareKeyExpr(number, WireExpr(0, key)))


def undeclare(number: int) -> Declare:
    return Declare(UndeclareKeyExpr(number))


def push(scope: int, suffix: str, payload: bytes, mapping: Mapping = Mapping.SENDER) -> Push:
    return Push(WireExpr(scope, suffix, mapping), Put(payload))


def fragments(sn: int, message: NetworkMessage, size: int) -> list[bytes]:
    """Batches that hold the pieces of one message."""
    data = encoded(message)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return [
        write_batch([Fragment(sn + i, piece, first=i == 0, more=i + 1 < len(pieces))])
        for i, piece in enumerate(pieces)
    ]


def talk(form: Form = PLAIN, rounds: int = 12) -> list[Write]:
    """A session in which each side declares a key and both put, with keys of either side."""
    writes = handshake(form)
    writes.append((0, frame(7, declare(1, "from/opener"), form=form)))
    writes.append((1, frame(9, declare(1, "from/acceptor"), form=form)))
    for i in range(rounds):
        text = b"number %d " % i * (1 + i % 7)
        there = push(1, f"/{i}", text), push(1, "/answer", text, Mapping.RECEIVER)
        writes.append((0, frame(8 + i, *there, form=form)))
        writes.append((1, frame(10 + i, push(0, f"in/full/{i}", text), form=form)))
    return writes


def segments(writes: Iterable[Write], size: int | None = None) -> list[Write]:
    """Each write cut into packets of at most `size` bytes."""
    found: list[Write] = []
    for side, data in writes:
        step = size or max(1, len(data))
        found += [(side, data[at : at + step]) for at in range(0, len(data), step)]
    return found


Ends = tuple[tuple[str, int], tuple[str, int]]


class Segment(NamedTuple):
    """A TCP packet that is still to be made."""

    side: int
    seq: int
    data: bytes
    flags: int = PSH | ACK


def tcp_segments(
    writes: Iterable[Write], isn: tuple[int, int] = (1000, 2000), *, syn: bool = True
) -> list[Segment]:
    nexts = [number + 1 for number in isn]
    found = []
    if syn:
        found += [Segment(0, isn[0], b"", SYN), Segment(1, isn[1], b"", SYN | ACK)]
    for side, data in writes:
        found.append(Segment(side, nexts[side], data))
        nexts[side] += len(data)
    return found


def tcp(segment: Segment, ends: Ends = ENDS) -> bytes:
    """As an IP packet."""
    source, target = (ends[segment.side], ends[1 - segment.side])
    header = struct.pack(
        ">HHIIBBHHH",
        source[1],
        target[1],
        segment.seq & 0xFFFF_FFFF,
        0,
        0x80,
        segment.flags,
        65535,
        0,
        0,
    )
    options = b"\x01" * 12
    return ip(6, header + options + segment.data, source[0], target[0])


def udp(side: int, data: bytes, ends: Ends = ENDS) -> bytes:
    source, target = ends[side], ends[1 - side]
    header = struct.pack(">HHHH", source[1], target[1], 8 + len(data), 0)
    return ip(17, header + data, source[0], target[0])


def ip(
    protocol: int, content: bytes, source: str, target: str, *, flags: int = 0, number: int = 1
) -> bytes:
    """`flags` are IPv4's: the fragment's offset and whether more follow."""
    ends = ip_address(source).packed + ip_address(target).packed
    if len(ends) == 8:
        options = b"\x01" * 4
        size = 24 + len(content)
        return (
            struct.pack(">BBHHHBBH", 0x46, 0, size, number, flags, 64, protocol, 0)
            + ends
            + options
            + content
        )
    extension = bytes([protocol, 0]) + bytes(6)  # hop by hop
    return struct.pack(">IHBB", 6 << 28, 8 + len(content), 0, 64) + ends + extension + content


def _ether(packet: bytes) -> bytes:
    return b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\x00"


MACS = b"\x02" * 12
LINKS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "ethernet": (1, lambda p: MACS + _ether(p) + p),
    "ethernet with padding": (1, lambda p: MACS + _ether(p) + p + bytes(9)),
    "vlan": (1, lambda p: MACS + b"\x81\x00\x00\x05" + _ether(p) + p),
    "stacked vlan": (1, lambda p: MACS + b"\x88\xa8\x00\x05\x81\x00\x00\x07" + _ether(p) + p),
    "linux cooked": (113, lambda p: bytes(14) + _ether(p) + p),
    "linux cooked 2": (276, lambda p: _ether(p) + bytes(18) + p),
    "null": (0, lambda p: struct.pack("<I", 30 if p[0] >> 4 == 6 else 2) + p),
    "loop": (108, lambda p: struct.pack(">I", 24 if p[0] >> 4 == 6 else 2) + p),
    "raw": (101, lambda p: p),
    "raw of BSD": (12, lambda p: p),
    "IPv4 or IPv6": (228, lambda p: p),
}


def pcap(
    packets: Sequence[bytes],
    link: str = "raw",
    *,
    order: str = "<",
    nanos: bool = False,
    most: int = 262_144,
) -> bytes:
    """`most`: the length after which packets are cut."""
    number, wrap = LINKS[link]
    magic = 0xA1B23C4D if nanos else 0xA1B2C3D4
    out = bytearray(struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, most, number))
    for i, packet in enumerate(packets):
        wire = wrap(packet)
        seconds, rest = divmod(START + i * STEP, 1_000_000_000)
        fraction = rest if nanos else rest // 1000
        out += struct.pack(f"{order}IIII", seconds, fraction, len(wire[:most]), len(wire))
        out += wire[:most]
    return bytes(out)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    size = 12 + len(body)
    return struct.pack(f"{order}II", kind, size) + body + struct.pack(f"{order}I", size)


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(link: int, order: str = "<", resolution: int | None = None) -> bytes:
    options = b""
    if resolution is not None:
        options = option(9, bytes([resolution]), order) + option(0, b"", order)
    return block(1, struct.pack(f"{order}HHI", link, 0, 0) + options, order)


def ticks(nanos: int, resolution: int) -> int:
    """A time in pcapng's units."""
    if resolution & 0x80:
        return -(-(nanos << (resolution & 0x7F)) // 1_000_000_000)
    return nanos * int(10**resolution) // 10**9


def enhanced(
    packet: bytes, when: int, *, order: str = "<", resolution: int = 6, number: int = 0
) -> bytes:
    time = ticks(when, resolution)
    head = struct.pack(
        f"{order}IIIII", number, time >> 32, time & 0xFFFF_FFFF, len(packet), len(packet)
    )
    return block(6, head + packet + bytes(-len(packet) % 4) + option(1, b"a comment", order), order)


def pcapng(
    packets: Sequence[bytes],
    link: str = "raw",
    *,
    order: str = "<",
    resolution: int | None = None,
    kind: str = "enhanced",
) -> bytes:
    """Packets in blocks of one kind, between blocks of unknown kinds."""
    number, wrap = LINKS[link]
    out = bytearray(section(order) + interface(number, order, resolution))
    for i, packet in enumerate(packets):
        wire, when = wrap(packet), START + i * STEP
        if kind == "enhanced":
            out += enhanced(wire, when, order=order, resolution=resolution or 6)
        elif kind == "simple":
            out += block(3, struct.pack(f"{order}I", len(wire)) + wire, order)
        else:
            time = ticks(when, resolution or 6)
            head = struct.pack(
                f"{order}HHIIII", 0, 0, time >> 32, time & 0xFFFF_FFFF, len(wire), len(wire)
            )
            out += block(2, head + wire, order)
        out += block(0x0BAD, b"who knows", order)
    return bytes(out)


def capture(writes: Iterable[Write], link: str = "raw", **arguments: Any) -> bytes:
    """A plain pcap of a TCP connection in which nothing went wrong."""
    return pcap([tcp(segment) for segment in tcp_segments(writes)], link, **arguments)


NOT_OF_THE_MESSAGE = {"packet", "packet_time"}
_files = count()


class Found(NamedTuple):
    rows: list[dict[str, Any]]
    report: Report

    def messages(self) -> list[dict[str, Any]]:
        """Rows without what depends on the packets that carried them."""
        return [
            {name: value for name, value in row.items() if name not in NOT_OF_THE_MESSAGE}
            for row in self.rows
        ]

    def payloads(self, side: str | None = None) -> list[tuple[str | None, bytes]]:
        """Key and payload of every put, of one side's if that is named."""
        return [
            (row["key"], row["payload"])
            for row in self.rows
            if row["body"] == "put" and side in (None, row["direction"])
        ]


def rows_of(folder: Path, data: bytes, **arguments: Any) -> Found:
    path = folder / f"{next(_files)}.pcap"
    path.write_bytes(data)
    try:
        reading = read(path, **arguments)
        rows: list[dict[str, Any]] = []
        for batch in reading:
            batch.validate(full=True)
            rows += batch.to_pylist()
        return Found(rows, reading.report)
    finally:
        path.unlink()


def by_side(found: Found) -> list[list[dict[str, Any]]]:
    """The messages of each side: between sides, the order is that of packets."""
    return [
        [row for row in found.messages() if row["src_port"] == port]
        for _, port in (ENDS[0], ENDS[1])
    ]
