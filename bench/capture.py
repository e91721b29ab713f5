"""Captures to rows, beside `tshark` reading the same file.

The files hold a session on Ethernet, in segments of 1448 bytes. `tshark` does not decode Zenoh, and
its time depends on the number of packets: with larger segments its figure grows, ours does not.
"""

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure, Figures, median_seconds
from zenlake.capture import read
from zenlake.wire.batch import TransportMessage, write_batch
from zenlake.wire.declare import Declare, DeclareKeyExpr
from zenlake.wire.enums import Mapping, WireWhatAmI
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing, to_stream
from zenlake.wire.init import Init
from zenlake.wire.open import Open
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

FILE_BYTES = 16 << 20
SEGMENT_BYTES = 1448  # Payload of a TCP segment on Ethernet.
BATCH_BYTES = 16_000
KEYS = 10
TSHARK_ROUNDS = 3
SIZES = {"64 B payloads": 64, "1 KiB payloads": 1024, "8 KiB payloads": 8192}


def figures() -> Figures:
    tshark = shutil.which("tshark")
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SIZES.items():
            path = Path(folder) / f"{size}.pcap"
            write_capture(path, size)
            yield from _file_figures(name, path, tshark)


def _file_figures(name: str, path: Path, tshark: str | None) -> Figures:
    megabytes = path.stat().st_size / 1e6
    some = ("packet_time", "key", "payload")
    took = median_seconds(
        {
            "all": lambda: sum(batch.num_rows for batch in read(path)),
            "some": lambda: sum(batch.num_rows for batch in read(path, columns=some)),
        }
    )
    rate = megabytes / took["all"]
    missing = "" if tshark else " (no ratio: tshark is not installed)"
    yield Figure(f"capture, every column, {name}{missing}", rate, "MB/s")
    yield Figure(f"capture, three columns, {name}", megabytes / took["some"], "MB/s")
    if tshark is not None:
        command = [tshark, "-n", "-r", str(path)]
        theirs = (
            megabytes / median_seconds({"tshark": lambda: _run(command)}, TSHARK_ROUNDS)["tshark"]
        )
        yield Figure(f"tshark, one line a packet, {name}", theirs, "MB/s")
        yield Figure(f"capture beside tshark, {name}", rate / theirs, "x", 5)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def write_capture(path: Path, size: int) -> None:
    """Write one session that puts payloads of `size` bytes, in the form of tcpdump."""
    opener, acceptor = WireZenohId(b"\x01" * 16), WireZenohId(b"\x02" * 16)
    there = [
        write_batch([Init(opener, WireWhatAmI.PEER)]),
        write_batch([Open(10_000, 0, cookie=b"cookie")]),
        write_batch([_declarations()]),
    ]
    back = [
        write_batch([Init(acceptor, WireWhatAmI.PEER, cookie=b"cookie")]),
        write_batch([Open(10_000, 0)]),
    ]
    per_batch = max(1, BATCH_BYTES // (size + 8))
    number = total = 0
    while total < FILE_BYTES:
        keys = (WireExpr(1 + (number + i) % KEYS, "", Mapping.SENDER) for i in range(per_batch))
        messages = [Push(key, Put(bytes(size))) for key in keys]
        batch: list[TransportMessage] = [Frame(1 + number // per_batch, messages=[*messages])]
        there.append(write_batch(batch))
        number += per_batch
        total += len(there[-1])
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))
        streams = [to_stream(batches, Framing.STREAM) for batches in (there, back)]
        for turn, packet in enumerate(_packets(*streams)):
            size = len(packet)
            file.write(struct.pack("<IIII", 1_700_000_000, turn % 1_000_000, size, size) + packet)


def _declarations() -> Frame:
    keys = (DeclareKeyExpr(1 + i, WireExpr(0, f"robot/{i}/pose")) for i in range(KEYS))
    return Frame(0, messages=[Declare(key) for key in keys])


def _packets(there: bytes, back: bytes) -> Iterator[bytes]:
    """Yield the SYNs, the short direction in one packet, then the segments of the long one."""
    ports, ends = (40_000, 7447), (bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
    yield _packet(ports, ends, 0, 0, 0x02, b"")
    yield _packet(ports[::-1], ends[::-1], 0, 1, 0x12, b"")
    yield _packet(ports[::-1], ends[::-1], 1, 1, 0x18, back)
    for at in range(0, len(there), SEGMENT_BYTES):
        yield _packet(ports, ends, 1 + at, 1 + len(back), 0x10, there[at : at + SEGMENT_BYTES])


def _packet(
    ports: tuple[int, ...], ends: tuple[bytes, ...], seq: int, ack: int, flags: int, data: bytes
) -> bytes:
    tcp = struct.pack(">HHIIBBHHH", *ports, seq, ack, 0x50, flags, 65535, 0, 0)
    size = 20 + len(tcp) + len(data)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, size, 0, 0x4000, 64, 6, 0) + b"".join(ends)
    return b"\x02" * 12 + b"\x08\x00" + ip + tcp + data
