"""The compiled walk and the compiled columns, held to plain Python readings of the same bytes."""

import random
import struct
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.capture_files import (
    ENDS,
    ENDS6,
    LINKS,
    PLAIN,
    Form,
    Segment,
    pcap,
    pcapng,
    segments,
    talk,
    tcp,
    tcp_segments,
    udp,
)
from zenlake.capture.kernels import packets as packets_kernel
from zenlake.capture.kernels import rows as rows_kernel
from zenlake.capture.kernels.packets import join_pieces, split_batches
from zenlake.capture.packets import CaptureFile
from zenlake.capture.reading import Reading
from zenlake.errors import DecodeError
from zenlake.wire.framing import Framing, split

pytestmark = pytest.mark.kernel


class Sent(NamedTuple):
    """A packet and what is to be found in it."""

    packet: bytes
    seq: int
    data: bytes


@st.composite
def sent(draw: st.DrawFn) -> Sent:
    data = draw(st.binary(max_size=40))
    ends = draw(st.sampled_from([ENDS, ENDS6]))
    side = draw(st.integers(0, 1))
    if draw(st.booleans()):
        return Sent(udp(side, data, ends), 0, data)
    seq = draw(st.integers(0, 2**32 - 1))
    return Sent(tcp(Segment(side, seq, data, 0x18), ends), seq, data)


FILES: list[Any] = [pcap, pcapng]


@settings(max_examples=30)
@given(
    st.lists(sent(), max_size=6),
    st.sampled_from([*LINKS]),
    st.sampled_from(FILES),
    st.sampled_from("<>"),
)
def test_the_walk_finds_what_was_written(
    packets: list[Sent], link: str, make: Any, order: str
) -> None:
    file = CaptureFile("made", make([packet.packet for packet in packets], link, order=order))
    rows = [row for window in file.windows() for row in window.copy()]
    expected = [
        (number, packet.seq, packet.data)
        for number, packet in enumerate(packets, 1)
        if packet.data or packet.packet[9 if packet.packet[0] >> 4 == 4 else 40] == 17
    ]
    found = [
        (int(r["number"]), int(r["seq"]), file.data[r["at"] : r["at"] + r["size"]].tobytes())
        for r in rows
    ]
    assert found == expected
    assert not file._counts.any()


@settings(max_examples=30)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_the_walk_over_anything(noise: bytes, at: int) -> None:
    """Bounds are the kernel's own to check: this is run with Numba's check on, too."""
    for data in (SMALL, SMALL_NG):
        cut = min(at, len(data))
        broken = data[:cut] + noise + data[cut + len(noise) // 2 :]
        if broken[:4] == data[:4] and len(broken) >= 24:
            for window in CaptureFile("broken", broken).windows():
                assert (window["at"] + window["size"] <= len(broken)).all()
                assert (window["size"] >= 0).all()
                assert (window["cut"] >= 0).all()


SMALL = pcap([tcp(segment) for segment in tcp_segments(talk(rounds=1))][:6], "ethernet")
SMALL_NG = pcapng([tcp(segment, ENDS6) for segment in tcp_segments(talk(rounds=1))][:6], "vlan")


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=9), max_size=5), st.binary(max_size=5), st.sampled_from((2, 4)))
def test_batches_are_split_as_the_codec_does(
    batches: list[bytes], rest: bytes, framing: int
) -> None:
    data = b"".join(len(batch).to_bytes(framing, "little") + batch for batch in batches) + rest
    expected, bad = [], False
    try:
        for _, end in split(data, Framing(framing), limit=1000):
            expected.append(end)
    except DecodeError:
        bad = True
    ends = np.zeros(100, np.int64)
    buf = np.frombuffer(data, np.uint8)
    count, pos, too_long = split_batches(buf, 0, framing, 1000, ends)
    assert ends[:count].tolist() == expected
    assert pos == (expected[-1] if expected else 0)
    assert bool(too_long) == bad


@settings(max_examples=30)
@given(st.binary(max_size=80), st.data())
def test_pieces_are_joined(data: bytes, draw: st.DataObject) -> None:
    places = st.integers(-2, len(data) + 2)
    pieces = draw.draw(st.lists(st.tuples(places, st.integers(-1, 20), st.booleans()), max_size=6))
    at = np.array([piece[0] for piece in pieces], np.int64)
    size = np.array([piece[1] for piece in pieces], np.int32)
    prefix = np.array([piece[1] if piece[2] else -1 for piece in pieces], np.int32)
    good = all(a >= 0 and s >= 0 and a + s <= len(data) for a, s, _ in pieces)
    expected = b"".join(
        (struct.pack("<H", s) if named else b"") + data[a : a + s]
        for a, s, named in pieces
        if s >= 0
    )
    out = np.zeros(len(expected) if good else 50, np.uint8)
    assert join_pieces(np.frombuffer(data, np.uint8), at, size, prefix, out) == good
    if good:
        assert out.tobytes() == expected


@settings(max_examples=40)
@given(st.binary(min_size=1, max_size=60), st.data())
def test_columns_of_bytes(data: bytes, draw: st.DataObject) -> None:
    spans = st.tuples(st.integers(0, len(data)), st.integers(0, 16), st.integers(-1, 1))
    rows = draw.draw(st.lists(spans, min_size=1, max_size=8))
    words = np.array([(start, size) for start, size, _ in rows], np.int32)
    base = np.zeros(len(rows), np.int64)
    buf = np.frombuffer(data, np.uint8)
    good = all(start + size <= len(data) for start, size, _ in rows)
    offsets = np.zeros(len(rows) + 1, np.int32)

    plain, ends, joined = np.zeros(len(rows), np.int32), np.zeros(2, np.int64), buf[:0]
    out = np.zeros(rows_kernel.measure(words, 0, plain, ends, offsets), np.uint8)
    done = rows_kernel.gather(words, 0, base, plain, ends, joined, buf, offsets, out)
    assert done == all(start + size <= len(data) for start, size, _ in rows if size)
    if done:
        assert out.tobytes() == b"".join(data[start : start + size] for start, size, _ in rows)

    prefixes = [b"", b"pre/fix"]
    prefix_of = np.array([which for *_, which in rows], np.int32)
    ends, joined = np.array([0, 0, 7], np.int64), np.frombuffer(b"".join(prefixes), np.uint8)
    out = np.zeros(rows_kernel.measure(words, 0, prefix_of, ends, offsets), np.uint8)
    done = rows_kernel.gather(words, 0, base, prefix_of, ends, joined, buf, offsets, out)
    if good:
        assert done
        assert out.tobytes() == b"".join(
            prefixes[which] + data[start : start + size]
            for start, size, which in rows
            if which >= 0
        )


@pytest.mark.parametrize("form", [PLAIN, Form(compression=True), Form(low_latency=True)])
def test_a_whole_session(form: Form) -> None:
    packets = [tcp(segment) for segment in tcp_segments(segments(talk(form, 3), 9))]
    head, rest = packets[:2], packets[2:]
    random.Random(4).shuffle(rest)
    reading = Reading(CaptureFile("made", pcap([*head, *rest])))
    rows = [row for batch in reading for row in batch.to_pylist()]
    assert len(rows) == 4 + 2 + 9
    assert not reading.report.unread


def test_times_of_every_resolution() -> None:
    chance = random.Random(3)
    for _ in range(200):
        resolution = chance.choice((0x80, 0)) | chance.randrange(1, 19)
        ticks = chance.getrandbits(chance.randrange(1, 65))
        unit = 1 << (resolution & 0x7F) if resolution & 0x80 else 10 ** (resolution & 0x7F)
        expected = ticks * 10**9 // unit
        if ticks // unit > 9_000_000_000:
            expected = 0
        found = packets_kernel._nanos(
            np.int64(ticks >> 32), np.int64(ticks & 0xFFFF_FFFF), np.int64(resolution), np.int64(0)
        )
        assert int(found) == expected, (resolution, ticks)
