"""`zenlake decode` of packet captures."""

import json
from pathlib import Path

import pytest

from tests.support.capture_files import (
    Form,
    capture,
    frame,
    handshake,
    pcap,
    pcapng,
    push,
    talk,
    tcp,
    tcp_segments,
)
from tests.support.cli_in_process import decode, zenlake

PACKETS = [tcp(segment) for segment in tcp_segments(talk(rounds=2))]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "traffic.pcapng"
    path.write_bytes(pcapng(PACKETS, "ethernet"))
    return str(path)


def test_every_message_is_a_line(file: str) -> None:
    result = zenlake("decode", file)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 12
    assert "[0] 10.0.0.1:40000 > 10.0.0.2:7447  INIT_SYN  zid=30201 whatami=PEER" in lines[0]
    assert lines[4].startswith("7 2023-11-14T22:13:20.006000Z  [0] 10.0.0.1:40000")
    assert "DECLARE/d_keyexpr  from/opener  " in lines[4]
    assert 'PUSH/put  from/opener/0  "number 0 " (9 bytes)  lane=5  sn=8' in lines[6]
    assert "PUSH/put  from/acceptor/answer" in lines[7]


def test_a_key_that_was_not_declared_is_scope_and_suffix(tmp_path: Path) -> None:
    path = tmp_path / "late.pcap"
    path.write_bytes(pcap(PACKETS[8:]))
    lines = zenlake("decode", str(path)).stdout.splitlines()
    assert "PUSH/put  sender#1/0  " in lines[0]
    assert "PUSH/put  receiver#1/answer  " in lines[1]


def test_from_standard_input(file: str) -> None:
    result = decode(Path(file).read_bytes())
    assert result.exit_code == 0
    assert result.stdout == zenlake("decode", file).stdout


def test_json(file: str) -> None:
    result = zenlake("decode", "--json", file)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == 12
    assert rows[6]["key"] == "from/opener/0"
    assert bytes.fromhex(rows[6]["payload"]) == b"number 0 "
    assert rows[6]["packet_time"] == "2023-11-14T22:13:20.008000Z"
    assert rows[6]["src_zid"] == "30201"
    assert "encoding" not in rows[0]


def test_summary(file: str) -> None:
    result = zenlake("decode", "--summary", file)
    assert result.exit_code == 0
    assert "12 messages in 1 stream, 12 packets" in result.stdout
    assert "DECLARE/d_keyexpr" in result.stdout
    assert "from/acceptor/answer" in result.stdout


def test_what_cannot_be_read_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "damaged.pcap"
    path.write_bytes(pcap([*PACKETS[:8], *PACKETS[9:]])[:-5])
    result = zenlake("decode", str(path))
    assert result.exit_code == 1
    assert "INIT_SYN" in result.stdout
    assert f"zenlake: {path}: not read: " in result.stderr
    assert "bytes missing in streams" in result.stderr
    assert "bytes after which the file was cut off" in result.stderr


def test_another_port(tmp_path: Path) -> None:
    ends = (("10.0.0.1", 40_000), ("10.0.0.2", 9999))
    path = tmp_path / "late.pcap"
    path.write_bytes(pcap([tcp(segment, ends) for segment in tcp_segments(talk())][9:]))
    assert zenlake("decode", str(path)).stdout == ""
    assert len(zenlake("decode", "--port", "9999", str(path)).stdout.splitlines()) > 20


def test_a_peers_text_cannot_change_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "hostile.pcap"
    evil = push(0, "a/\x1b[2J\u202eb", b"\x1b[31m")
    path.write_bytes(capture([*handshake(Form()), (0, frame(1, evil))]))
    result = zenlake("decode", str(path))
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout
    assert "a/\\x1b[2J\\u202eb" in result.stdout


@pytest.mark.parametrize("option", ["--verify", "--scouting"])
def test_options_that_are_not_for_captures(file: str, option: str) -> None:
    result = zenlake("decode", option, file)
    assert result.exit_code == 2
    assert "not for captures" in result.stderr


def test_a_capture_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "short.pcap"
    path.write_bytes(pcap([])[:10])
    result = zenlake("decode", str(path))
    assert result.exit_code == 2
    assert "cut off in its first 24 bytes" in result.stderr
