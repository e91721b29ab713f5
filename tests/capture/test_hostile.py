"""Damaged captures: what can be read is, what cannot is counted, and nothing else happens.

ZENLAKE_FULL=1 tries 200,000 mutations instead of a few hundred.
"""

import os
import random
import resource
from pathlib import Path

import pytest

from tests.support.capture_files import (
    PLAIN,
    Form,
    capture,
    declare,
    fragments,
    frame,
    handshake,
    pcap,
    pcapng,
    plain,
    push,
    rows_of,
    talk,
    tcp,
    tcp_segments,
    udp,
)
from zenlake.capture import CaptureError
from zenlake.capture.packets import CaptureFile
from zenlake.capture.reading import Reading
from zenlake.wire.batch import write_batch
from zenlake.wire.keepalive import KeepAlive

pytestmark = pytest.mark.slow

FULL = bool(os.environ.get("ZENLAKE_FULL"))
MUTATIONS = 200_000 if FULL else 600
SECONDS = 4 * 3600 if FULL else 300
MAX_GROWTH_KB = 600 << 10  # Upper bound on the growth of the process.
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF)

TCP = [tcp(segment) for segment in tcp_segments(talk(rounds=4))]
BIG = [(0, plain(piece)) for piece in fragments(5, push(0, "big", bytes(3000)), 900)]
SEEDS = [
    pcap(TCP, "ethernet"),
    pcapng(TCP, "stacked vlan", order=">", resolution=9),
    capture(talk(Form(compression=True), 4), "linux cooked"),
    capture(talk(Form(low_latency=True), 4), "null"),
    capture([*handshake(PLAIN), *BIG]),
    pcap([udp(side, data[2:]) for side, data in talk(rounds=4)], "linux cooked 2"),
    pcapng([udp(side, data[2:]) for side, data in talk(Form(compression=True), 4)], kind="simple"),
]


def mutated(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(out))
        how = chance.randrange(6)
        if how == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            out[at] = chance.choice(EXTREMES)
        elif how == 2:
            out[at : at + 4] = chance.randbytes(4)
        elif how == 3:
            del out[at : at + chance.randrange(1, 40)]
        elif how == 4:
            out[at:at] = chance.randbytes(chance.randrange(1, 40))
        else:
            other = chance.randrange(len(out))
            out[at : at + 64] = out[other : other + 64]
        if len(out) < 40:
            break
    if chance.randrange(20) == 0:
        del out[chance.randrange(len(out) + 1) :]
    return bytes(out)


def rows_in(data: bytes) -> int:
    """How many rows there are; every batch is sound."""
    reading = Reading(CaptureFile("mutated", data))
    rows = 0
    for batch in reading:
        batch.validate(full=True)
        rows += batch.num_rows
    assert reading.report.rows == rows
    assert all(count > 0 for count in reading.report.unread.values())
    return rows


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_mutated_captures_are_read_or_refused_in_bounded_memory() -> None:
    chance = random.Random(20_240_701)
    for seed in SEEDS:
        assert rows_in(seed) > 5
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = rows = 0
    for number in range(MUTATIONS):
        data = mutated(SEEDS[number % len(SEEDS)], chance)
        try:
            rows += rows_in(data)
        except CaptureError:
            refused += 1
    assert refused < MUTATIONS // 4
    assert rows > 3 * MUTATIONS
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert growth < MAX_GROWTH_KB


@pytest.mark.parametrize("data", [SEEDS[0], SEEDS[1]], ids=["pcap", "pcapng"])
def test_a_capture_that_was_cut_off_anywhere(tmp_path: Path, data: bytes) -> None:
    whole = rows_of(tmp_path, data).messages()
    for size in range(40, len(data), 29):
        found = rows_of(tmp_path, data[:size])
        count = len(found.rows)
        names = [row["message"] for row in found.rows]
        assert names == [row["message"] for row in whole[:count]]
    assert found.report.unread


def test_damage_in_the_middle_costs_few_packets(tmp_path: Path) -> None:
    """Records after a length that lies are found again."""
    packets = [udp(side, data[2:]) for side, data in talk()]
    for make in (pcap, pcapng):
        data = bytearray(make(packets, "ethernet"))
        whole = rows_of(tmp_path, bytes(data))
        at = data.index(b"in/full/3") - 90
        data[at : at + 40] = b"\xff" * 40
        found = rows_of(tmp_path, bytes(data))
        assert len(whole.rows) - len(found.rows) in range(1, 6)
        assert found.report.unread
        assert found.rows[-1]["payload"] == whole.rows[-1]["payload"]


def test_lengths_that_lie_allocate_nothing(tmp_path: Path) -> None:
    """A batch that says 1 GB, a record of 4 GB, a key table that multiplies."""
    form = Form(low_latency=True)
    huge = (0, (1 << 30).to_bytes(4, "little") + bytes(20))
    found = rows_of(tmp_path, capture([*talk(form, 1), huge, huge]))
    assert len(found.rows) == 9
    assert sum(found.report.unread.values()) >= 48
    data = bytearray(pcap(TCP))
    data[24 + 8 : 24 + 12] = b"\xff\xff\xff\xff"
    assert rows_of(tmp_path, bytes(data)).rows


def test_keys_that_multiply_come_in_small_batches(tmp_path: Path) -> None:
    long = "k" * 60_000
    few = [(0, frame(2 + i, *(push(1, "", b"") for _ in range(400)))) for i in range(10)]
    data = capture([*handshake(), (0, frame(1, declare(1, long))), *few])
    path = tmp_path / "keys.pcap"
    path.write_bytes(data)
    rows = 0
    for batch in Reading(CaptureFile(path), columns=["key"]):
        assert batch.nbytes < 80 << 20
        rows += batch.num_rows
    assert rows == 4000 + 5


def test_a_batch_that_unpacks_to_very_much_is_read_in_steps() -> None:
    """2 KB of LZ4 that stand for half a million messages."""
    form = Form(compression=True)
    bomb = form.stream(*[write_batch([KeepAlive()] * 65_000)] * 8)
    assert len(bomb) < 3000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    file = CaptureFile("bomb", capture([*handshake(form), (0, bomb)]))
    rows = sum(batch.num_rows for batch in Reading(file, columns=["message"]))
    assert rows == 4 + 8 * 65_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KB
