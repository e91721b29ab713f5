"""TCP as captures have it: reordered, sent again, with holes, from the middle on."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.capture_files import (
    PLAIN,
    Form,
    Found,
    Segment,
    by_side,
    frame,
    pcap,
    push,
    rows_of,
    segments,
    talk,
    tcp,
    tcp_segments,
)

pytestmark = pytest.mark.slow

FORMS = {
    "plain": PLAIN,
    "compressed": Form(compression=True),
    "low latency": Form(low_latency=True),
}
WRAP = (0xFFFF_FF00, 0xFFFF_FFF0)  # First sequence numbers of both sides: both pass zero.


def found_in(folder: Path, packets: list[Segment], **arguments: Any) -> Found:
    return rows_of(folder, pcap([tcp(packet) for packet in packets], **arguments))


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captures")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("size", [None, 1, 7, 1000])
def test_segments_of_any_size(folder: Path, form: Form, size: int | None) -> None:
    plain = found_in(folder, tcp_segments(talk()))
    found = found_in(folder, tcp_segments(segments(talk(form), size)))
    assert not found.report.unread
    assert found.payloads() == plain.payloads()
    assert [row["message"] for row in found.rows] == [row["message"] for row in plain.rows]
    if form.low_latency:
        assert all(row["sn"] is None and row["lane"] is None for row in found.rows)


def test_sequence_numbers_pass_zero(folder: Path) -> None:
    plain = found_in(folder, tcp_segments(segments(talk(), 20)))
    found = found_in(folder, tcp_segments(segments(talk(), 20), WRAP))
    assert found.rows == plain.rows


@st.composite
def disturbances(draw: st.DrawFn) -> tuple[Form, int, int, float]:
    form = draw(st.sampled_from([*FORMS.values()]))
    return form, draw(st.integers(1, 60)), draw(st.integers(0, 2**32)), draw(st.floats(0, 0.5))


@given(disturbances())
def test_shuffled_and_repeated_segments_give_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, how: tuple[Form, int, int, float]
) -> None:
    form, size, seed, repeated = how
    chance = random.Random(seed)
    folder = tmp_path_factory.getbasetemp()
    syns, data = _split(tcp_segments(segments(talk(form, 4), size), WRAP))
    expected = found_in(folder, [*syns, *data])
    extra = [_part(segment, chance) for segment in data if chance.random() < repeated]
    packets = data + extra
    near = chance.randint(1, 40)
    order = sorted(range(len(packets)), key=lambda i: i % len(data) + chance.random() * near)
    found = found_in(folder, [*syns, *(packets[i] for i in order)])
    assert not found.report.unread
    # Between the two sides, order is that of the packets, which is another one now. So are keys
    # that one side uses before the packet with the other side's declaration.
    for wanted, other in zip(by_side(expected), by_side(found), strict=True):
        assert [_without_key(row) for row in wanted] == [_without_key(row) for row in other]
        for row, again in zip(wanted, other, strict=True):
            assert again["key"] in (row["key"], None)
            assert again["key"] == row["key"] or row["mapping"] == "receiver"


def _split(packets: list[Segment]) -> tuple[list[Segment], list[Segment]]:
    return packets[:2], packets[2:]


def _part(segment: Segment, chance: random.Random) -> Segment:
    """Some of its bytes once more."""
    start = chance.randint(0, len(segment.data) - 1)
    stop = chance.randint(start + 1, len(segment.data))
    return segment._replace(seq=segment.seq + start, data=segment.data[start:stop])


def _without_key(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("key", "dst_zid", "src_zid")}


def test_the_first_copy_wins(folder: Path) -> None:
    packets = tcp_segments(talk())
    expected = found_in(folder, packets)
    other = [packet._replace(data=bytes(len(packet.data))) for packet in packets if packet.data]
    found = found_in(folder, [*packets, *other])
    assert found.messages() == expected.messages()
    sent = sum(len(packet.data) for packet in packets)
    assert found.report.passed_over["bytes that TCP sent again"] == sent
    # A copy that overlaps what is held already, from both sides.
    early, late = packets[:-3], packets[-3:]
    last = late[-1]
    front = late[0].data[-2:]
    around = last._replace(seq=last.seq - 2, data=front + bytes(len(last.data) + 3))
    found = found_in(folder, [*early, last, around, *late[:-1]])
    assert sorted(found.payloads()) == sorted(expected.payloads())
    assert found.report.passed_over["bytes that TCP sent again"] == len(last.data) + 2


def test_a_hole_inside_of_a_batch_costs_that_batch_only(folder: Path) -> None:
    writes = [
        *talk(rounds=2),
        (0, frame(30, *(push(1, f"/long/{i}", bytes(400)) for i in range(9)))),
    ]
    writes += talk(rounds=4)[-8:]
    packets = tcp_segments(segments(writes, 500))
    whole = found_in(folder, packets)
    hit = [i for i, packet in enumerate(packets) if len(packet.data) == 500]
    for missing in hit[1:-1]:
        found = found_in(folder, packets[:missing] + packets[missing + 1 :])
        lost = [row for row in whole.messages() if row not in found.messages()]
        assert {row["sn"] for row in lost} == {30}
        assert len(lost) == 9
        assert found.report.unread["bytes missing in streams"] == 500
        assert found.report.unread["bytes that could not be decoded"] > 0


def test_after_a_hole_at_a_batchs_start_the_next_packet_goes_on(folder: Path) -> None:
    packets = tcp_segments(talk())
    whole = found_in(folder, packets)
    for missing in range(6, len(packets)):
        side, lost = packets[missing].side, packets[missing]
        found = found_in(folder, packets[:missing] + packets[missing + 1 :])
        before = by_side(whole)[side]
        after = by_side(found)[side]
        assert len(before) - len(after) in (1, 2)
        assert found.report.unread.get("bytes missing in streams", len(lost.data)) == len(lost.data)
        # What needed the lost declaration is shown as scope and suffix.
        for row in found.rows:
            if row["key"] is None and row["scope"]:
                assert missing in (6, 7)
                assert row["suffix"]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_capture_that_starts_in_the_middle(folder: Path, form: Form) -> None:
    packets = tcp_segments(talk(form))
    whole = found_in(folder, packets)
    found = found_in(folder, packets[10:])
    puts = [row for row in whole.rows if row["message"] == "PUSH" and row["packet"] > 10]
    assert len(found.rows) == len(puts) > 20
    for row, known in zip(found.rows, puts, strict=True):
        assert row["payload"] == known["payload"]
        assert (row["scope"], row["suffix"]) == (known["scope"], known["suffix"])
        assert row["key"] == (None if known["scope"] else known["key"])
        assert row["direction"] is None
        assert row["src_zid"] is None


def test_a_start_in_the_middle_of_a_batch_waits_for_the_next(folder: Path) -> None:
    packets = tcp_segments(talk())
    cut = packets[8]._replace(seq=packets[8].seq + 3, data=packets[8].data[3:])
    found = found_in(folder, [cut, *packets[9:]])
    lost = len(packets[8].data) - 3
    assert found.report.unread == {"bytes that could not be decoded": lost}
    whole = found_in(folder, packets[9:])
    assert [row["payload"] for row in found.rows] == [row["payload"] for row in whole.rows]


def test_packets_that_the_capture_cut_short(folder: Path) -> None:
    packets = tcp_segments(talk())
    most = 44 + 12 + 60
    found = found_in(folder, packets, most=most)
    assert found.report.unread["packets cut by the capture's length limit"] > 3
    assert found.report.unread["bytes missing in streams"] > 0
    whole = found_in(folder, packets).messages()
    assert 20 < len(found.rows) < len(whole)
    for row in found.messages():
        assert row in whole


def test_a_wild_sequence_number_does_no_harm(folder: Path) -> None:
    packets = tcp_segments(talk())
    wild = [packets[9]._replace(seq=packets[9].seq + jump) for jump in (1 << 30, -(1 << 30))]
    found = found_in(folder, [*packets[:12], *wild, *packets[12:]])
    expected = found_in(folder, packets).payloads()
    assert found.payloads()[: len(expected)] == expected
    assert found.report.unread["bytes missing in streams"] < 1 << 30


def test_a_long_wait_for_a_lost_packet_ends(folder: Path) -> None:
    """More is held behind a gap than the limit allows, in many windows of the file."""
    big = [(0, frame(8 + i, push(0, "big", bytes(60_000)))) for i in range(60)]
    packets = tcp_segments([*talk(rounds=1), *big])
    found = found_in(folder, packets[:12] + packets[13:])
    sizes = [len(row["payload"]) for row in found.rows if row["key"] == "big"]
    assert sizes == [60_000] * 59
