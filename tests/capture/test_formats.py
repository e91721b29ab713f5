"""Equal packets give equal rows, in any file format and on any kind of link."""

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.capture_files import (
    ENDS,
    ENDS6,
    LINKS,
    START,
    STEP,
    SYN,
    Segment,
    block,
    capture,
    enhanced,
    interface,
    ip,
    pcap,
    pcapng,
    rows_of,
    section,
    talk,
    tcp,
    tcp_segments,
    udp,
)
from zenlake.capture import CAPTURE, CaptureError, read, streams

PACKETS = [tcp(segment) for segment in tcp_segments(talk())]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    found = rows_of(tmp_path_factory.mktemp("plain"), pcap(PACKETS))
    assert not found.report.unread
    assert len(found.rows) == 4 + 2 + 3 * 12
    return found.rows


def test_every_column_of_a_put(expected: list[dict[str, object]]) -> None:
    row = next(row for row in expected if row["key"] == "from/opener/0")
    assert {name: value for name, value in row.items() if value is not None} == {
        "packet_time": pa.scalar(
            (START + 8 * STEP) // 1000, CAPTURE.field("packet_time").type
        ).as_py(),
        "packet": 9,
        "stream": 0,
        "src": "10.0.0.1",
        "src_port": 40_000,
        "dst": "10.0.0.2",
        "dst_port": 7447,
        "protocol": "tcp",
        "direction": "opener",
        "src_zid": "30201",
        "dst_zid": "c0b0a",
        "message": "PUSH",
        "body": "put",
        "lane": 5,
        "reliable": True,
        "sn": 8,
        "scope": 1,
        "mapping": "sender",
        "suffix": "/0",
        "key": "from/opener/0",
        "payload": b"number 0 ",
        "encoding": "zenoh/bytes",
        "priority": 5,
        "congestion_control": "drop",
        "express": False,
        "wire_bytes": 16,
    }


def test_handshake_and_declarations_are_rows(expected: list[dict[str, object]]) -> None:
    names = [row["message"] for row in expected]
    assert names[:6] == ["INIT_SYN", "INIT_ACK", "OPEN_SYN", "OPEN_ACK", "DECLARE", "DECLARE"]
    assert "zid=30201 whatami=PEER" in str(expected[0]["detail"])
    assert [row["direction"] for row in expected[:2]] == ["opener", "acceptor"]
    assert expected[4]["body"] == "d_keyexpr"
    assert expected[4]["detail"] == "D_KEYEXPR id=1 key=from/opener"


def test_a_key_of_the_other_side(expected: list[dict[str, object]]) -> None:
    answers = [row for row in expected if row["suffix"] == "/answer"]
    assert {row["key"] for row in answers} == {"from/acceptor/answer"}
    assert {row["mapping"] for row in answers} == {"receiver"}


@pytest.mark.parametrize("link", LINKS)
def test_link_types(tmp_path: Path, link: str, expected: list[dict[str, object]]) -> None:
    for order, nanos in (("<", False), (">", True)):
        found = rows_of(tmp_path, pcap(PACKETS, link, order=order, nanos=nanos))
        assert found.rows == expected
        assert not found.report.unread


@pytest.mark.parametrize("link", LINKS)
def test_ipv6(tmp_path: Path, link: str, expected: list[dict[str, object]]) -> None:
    packets = [tcp(segment, ENDS6) for segment in tcp_segments(talk())]
    found = rows_of(tmp_path, pcapng(packets, link))
    ends = {"src", "dst"}
    assert [{**row, "src": 0, "dst": 0} for row in found.rows] == [
        {**row, "src": 0, "dst": 0} for row in expected
    ]
    assert {row[end] for row in found.rows for end in ends} == {"fd00::1", "fd00::2"}


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("resolution", [None, 3, 6, 9, 10, 0x80 | 20, 0x80 | 32])
def test_pcapng_times(
    tmp_path: Path, order: str, resolution: int | None, expected: list[dict[str, object]]
) -> None:
    found = rows_of(tmp_path, pcapng(PACKETS, order=order, resolution=resolution))
    if resolution == 0x80 | 20:  # a microsecond is less than one of its units
        assert all(
            abs((row["packet_time"] - other["packet_time"]).total_seconds()) < 2e-6
            for row, other in zip(found.rows, expected, strict=True)
        )
        found = found._replace(
            rows=[
                {**row, "packet_time": other["packet_time"]}
                for row, other in zip(found.rows, expected, strict=True)
            ]
        )
    assert found.rows == expected
    assert not found.report.unread


@pytest.mark.parametrize("kind", ["enhanced", "simple", "old"])
def test_pcapng_blocks(tmp_path: Path, kind: str, expected: list[dict[str, object]]) -> None:
    found = rows_of(tmp_path, pcapng(PACKETS, kind=kind))
    plain = rows_of(tmp_path, pcap(PACKETS))
    assert found.messages() == plain.messages()
    if kind != "simple":  # which has no times
        assert found.rows == expected


def test_pcapng_of_two_sections_in_two_orders(
    tmp_path: Path, expected: list[dict[str, object]]
) -> None:
    half = len(PACKETS) // 2
    data = bytearray(section("<") + interface(101) + interface(1, "<", 9))
    for i, packet in enumerate(PACKETS[:half]):
        wire = LINKS["ethernet"][1](packet) if i % 2 else packet
        data += enhanced(wire, START + i * STEP, number=i % 2, resolution=9 if i % 2 else 6)
    data += section(">") + interface(113, ">")
    for i, packet in enumerate(PACKETS[half:], half):
        wire = LINKS["linux cooked"][1](packet)
        data += enhanced(wire, START + i * STEP, order=">")
    found = rows_of(tmp_path, bytes(data))
    assert found.rows == expected
    assert not found.report.unread


def test_what_is_not_ip_is_passed_over(tmp_path: Path, expected: list[dict[str, object]]) -> None:
    arp = b"\x08\x06" + bytes(28)
    number, wrap = LINKS["ethernet"]
    data = bytearray(section() + interface(number) + interface(147))
    for i, packet in enumerate(PACKETS):
        data += enhanced(wrap(packet), START + i * STEP)
    data += enhanced(bytes(12) + arp, START) + enhanced(
        wrap(ip(1, b"ping", "1.2.3.4", "1.2.3.5")), 0
    )
    data += enhanced(b"??", START, number=1) + enhanced(b"??", START, number=2)
    data += enhanced(wrap(PACKETS[5][:22]), START)
    found = rows_of(tmp_path, bytes(data))
    assert found.rows == expected
    assert found.report.passed_over["packets that are not IP"] == 1
    assert found.report.passed_over["packets that are neither TCP nor UDP"] == 1
    assert found.report.unread == {
        "packets of an unknown link type": 1,
        "packets of an interface that was not described": 1,
        "packets with headers that are cut or wrong": 1,
    }


def test_streams_are_listed_without_decoding(tmp_path: Path) -> None:
    path = tmp_path / "two.pcap"
    other = (("10.0.0.9", 5), ("10.0.0.8", 6))
    path.write_bytes(pcap([*PACKETS, udp(0, b"no zenoh", other)]))
    first, second = found = streams(path)
    assert pickle.loads(pickle.dumps(found)) == found
    assert (first.number, first.protocol, first.zenoh) == (0, "tcp", True)
    assert ((first.src, first.src_port), (first.dst, first.dst_port)) == ENDS
    assert first.packets == len(PACKETS)
    assert first.bytes == sum(len(data) for _, data in talk())
    assert (second.protocol, second.zenoh, second.packets, second.bytes) == ("udp", False, 1, 8)


def test_only_some_streams_columns_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "two.pcap"
    later = (("10.0.0.7", 4), ("10.0.0.2", 7447))
    more = [tcp(segment, later) for segment in tcp_segments(talk())]
    path.write_bytes(pcap([*PACKETS, *more]))
    everything = [row for batch in read(path) for row in batch.to_pylist()]
    assert {row["stream"] for row in everything} == {0, 1}
    batches = list(read(path, streams=[1], columns=["key", "stream", "payload"], max_rows=7))
    assert {batch.num_rows for batch in batches[:-1]} == {7}
    assert batches[0].schema.names == ["key", "stream", "payload"]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert rows == [
        {name: row[name] for name in ("key", "stream", "payload")}
        for row in everything
        if row["stream"] == 1
    ]
    counted = list(read(path, columns=[]))
    assert sum(batch.num_rows for batch in counted) == len(everything)


def test_a_port_that_is_used_again_is_another_stream(tmp_path: Path) -> None:
    again = [tcp(segment) for segment in tcp_segments(talk(), (777_777, 888_888))]
    found = rows_of(tmp_path, pcap([*PACKETS, *again]))
    assert [row["stream"] for row in found.rows] == sorted(row["stream"] for row in found.rows)
    half = len(found.rows) // 2
    assert [{**row, "stream": 0} for row in found.messages()[half:]] == found.messages()[:half]


def test_a_syn_that_is_sent_again_is_the_same_stream(tmp_path: Path) -> None:
    syn = tcp(Segment(0, 1000, b"", SYN))
    found = rows_of(tmp_path, pcap([PACKETS[0], syn, *PACKETS[1:]]))
    assert found.report.streams == 1
    assert found.messages() == rows_of(tmp_path, pcap(PACKETS)).messages()


def test_zenoh_is_found_by_its_handshake_and_else_by_port(tmp_path: Path) -> None:
    ends = (("10.0.0.1", 40_000), ("10.0.0.2", 9999))
    whole = [tcp(segment, ends) for segment in tcp_segments(talk())]
    found = rows_of(tmp_path, pcap(whole))
    assert len(found.rows) == 42
    late = whole[9:]
    nothing = rows_of(tmp_path, pcap(late))
    assert not nothing.rows
    assert nothing.report.passed_over["streams that are not Zenoh"] == 1
    assert len(rows_of(tmp_path, pcap(late), ports=[9999]).rows) > 20


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b"\x25\x05", "it starts with 2505"),
        (b"plain text", "pcap and pcapng files can be read"),
        (pcap([])[:20], "cut off in its first 24 bytes"),
    ],
)
def test_what_is_no_capture(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(CaptureError, match=says):
        read(path)
    with pytest.raises(CaptureError, match="No such file"):
        streams(tmp_path / "nowhere")


def test_wrong_arguments(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(capture(talk()))
    with pytest.raises(ValueError, match="no column keys"):
        read(path, columns=["keys"])
    with pytest.raises(ValueError, match="one row at least"):
        read(path, max_rows=0)


def test_a_capture_without_packets(tmp_path: Path) -> None:
    for data in (pcap([]), section(), section() + interface(1) + block(5, bytes(8))):
        found = rows_of(tmp_path, data)
        assert not found.rows
        assert not found.report.unread


@pytest.mark.process
def test_importing_loads_neither_arrow_nor_numba() -> None:
    code = (
        "import sys, zenlake.capture; "
        "assert not {'numpy', 'numba', 'pyarrow'} & set(sys.modules); "
        "assert zenlake.capture.CAPTURE.names[0] == 'packet_time'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_schema_has_words_for_every_column_and_no_dictionaries() -> None:
    for field in CAPTURE:
        assert field.metadata[b"description"]
        assert not pa.types.is_dictionary(field.type)
