"""Output of `zenlake decode` for the messages."""

import json
import re
from collections import Counter

import pytest

from tests.support.cli_in_process import decode, decode_json
from tests.support.decode_vectors import DIRECTIONS, READABLE
from zenlake.wire.batch import write_batch
from zenlake.wire.close import Close
from zenlake.wire.extensions import Unknown
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing, to_stream
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.network import NetworkMessage
from zenlake.wire.oam import NetworkOam
from zenlake.wire.push import Push
from zenlake.wire.put import SHM_SLICE, Put, Slice
from zenlake.wire.wireexpr import SENDER, WireExpr

pytestmark = pytest.mark.slow

HOSTILE = "\x1b[2Jx\r\n\x07\x9b\u202e"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def stream(*messages: NetworkMessage) -> bytes:
    return to_stream([write_batch([Frame(1, messages=list(messages))])], Framing.STREAM)


def line_with(output: str, text: str) -> str:
    (line,) = [line for line in output.splitlines() if text in line]
    return line


def test_tree_shows_batches_frames_and_messages_below_each_other() -> None:
    lines = decode(DIRECTIONS["client_router/A"].data).stdout.splitlines()
    assert lines[0] == "batch 1  offset 0  13 bytes"
    assert lines[1].startswith("└─ INIT  zid=a1a2a3a4  whatami=CLIENT  batch_size=65480  qos")
    assert lines[4:9] == [
        "batch 3  offset 57  23 bytes",
        "└─ FRAME  sn=45810700  @59",
        '   └─ PUSH/PUT  demo/a/x  "hello" (5 bytes)  @64',
        "batch 4  offset 82  30 bytes",
        "└─ FRAME  sn=45810700  priority=CONTROL  @84",
    ]
    assert lines[9].startswith("   ├─ DECLARE/D_KEYEXPR  demo/a/pub  qos=CONTROL,BLOCK  id=1")
    assert lines[10].startswith("   └─ INTEREST  demo/a/pub  id=1  mode=CURRENT_FUTURE")


def test_keys_that_this_side_declared_are_shown_in_full() -> None:
    output = decode(DIRECTIONS["client_router/A"].data).stdout
    assert "PUSH/PUT  demo/a/pub  " in line_with(output, "from a publisher")
    assert "INTEREST  demo/a/**  " in output


def test_keys_that_were_declared_elsewhere_stay_numbers() -> None:
    data = stream(Push(WireExpr(3, "/x", SENDER)), Push(WireExpr(4, "/y")))
    output = decode(data).stdout
    assert "PUSH/PUT  sender#3/x" in output
    assert "PUSH/PUT  receiver#4/y" in output


def test_json_has_the_key_as_text_and_as_it_travelled() -> None:
    lines = decode_json(DIRECTIONS["client_router/A"].data)
    put = [line for line in lines if line["message"] == "PUSH/PUT"][1]
    assert put["key"] == "demo/a/pub"
    assert put["fields"]["key"] == {"scope": 1, "suffix": "", "mapping": "SENDER"}
    assert bytes.fromhex(put["fields"]["body"]["payload"]) == b"from a publisher"
    assert put["fields"]["body"]["encoding"]["text"] == "text/plain"
    assert put["frame"]["sn"] == 45810702
    assert put["frame"]["priority"] == "DATA"


@pytest.mark.parametrize("name", ["low_latency/A", "low_latency/B", "low_latency_peers/B"])
def test_low_latency_is_recognised_without_being_told(name: str) -> None:
    direction = DIRECTIONS[name]
    output = decode(direction.data).stdout
    assert "FRAME" not in output
    assert output == decode(direction.data, "--framing", "low-latency").stdout


def test_low_latency_stream_may_end_with_a_close_behind_a_short_length() -> None:
    direction = DIRECTIONS["low_latency/A"]
    left_over = bytes.fromhex("02000300")  # as recorded: see the vector's comments
    result = decode(direction.data + left_over)
    assert result.exit_code == 0
    assert result.stdout.count("CLOSE  reason=GENERIC") == 2


@pytest.mark.parametrize("name", ["compression/A", "compression/B", "compression_fragments/A"])
def test_compression_is_recognised_without_being_told(name: str) -> None:
    direction = DIRECTIONS[name]
    assert decode(direction.data).stdout == decode(direction.data, "--compression", "yes").stdout
    assert re.search(r"@\d+ uncompressed \+0", decode(direction.data).stdout)
    assert any("uncompressed" in line for line in decode_json(direction.data))


def test_an_offer_that_the_other_side_did_not_take_changes_nothing() -> None:
    direction = DIRECTIONS["compression_one_side/A"]
    output = decode(direction.data).stdout
    assert "INIT" in line_with(output, "compression")
    assert output == decode(direction.data, "--compression", "no").stdout
    assert "uncompressed" not in output


def test_a_first_batch_that_is_only_a_keep_alive_is_not_taken_for_a_compression_header() -> None:
    one_side = DIRECTIONS["compression_one_side/A"]
    handshake = to_stream(one_side.vector.of("A")[:2], Framing.STREAM)
    result = decode(handshake + to_stream([write_batch([KeepAlive()])], Framing.STREAM))
    assert result.stdout.count("KEEP_ALIVE") == 1


def test_a_message_in_fragments_is_shown_when_its_last_piece_arrives() -> None:
    direction = DIRECTIONS["fragments/A"]
    lines = decode(direction.data).stdout.splitlines()
    joined = [number for number, line in enumerate(lines) if "joined from" in line]
    assert joined
    for number in joined:
        assert "└─ FRAGMENT" in lines[number - 1]
        assert " more" not in lines[number - 1]
    sizes = Counter(line["fragments"] for line in decode_json(direction.data) if "joined" in line)
    assert sum(sizes.values()) == len(joined)
    fragments = sum(type(located.message) is Fragment for located in direction.located())
    assert sum(size * count for size, count in sizes.items()) == fragments


@pytest.mark.parametrize(
    "name", ["fragments_8bit/A", "fragments_no_qos/A", "multicast_compression/A"]
)
def test_fragments_join_whatever_the_resolution_and_the_lanes(name: str) -> None:
    direction = DIRECTIONS[name]
    lines = decode_json(direction.data, *direction.options)
    last = [line for line in lines if line["message"] == "FRAGMENT" and not line["fields"]["more"]]
    assert sum("joined" in line for line in lines) == len(last) > 0


def pieces_of(message: NetworkMessage) -> tuple[bytes, bytes]:
    whole = write_batch([Frame(1, messages=[message])])[2:]
    return whole[:4], whole[4:]


def fragments(*messages: Fragment) -> bytes:
    return to_stream([write_batch([message]) for message in messages], Framing.STREAM)


def test_fragments_with_a_gap_or_given_up_or_without_their_start_are_not_joined() -> None:
    head, tail = pieces_of(Push(WireExpr(0, "k", SENDER), Put(b"value")))
    first = Fragment(5, head, more=True, first=True)
    whole = decode(fragments(first, Fragment(6, tail)))
    assert '"value" (5 bytes)' in whole.stdout
    for others in (
        [first, Fragment(7, tail)],
        [first, Fragment(6, more=True, drop=True), Fragment(7, tail)],
        [Fragment(6, tail)],
    ):
        result = decode(fragments(*others))
        assert result.exit_code == 0
        assert "PUSH" not in result.stdout


def test_a_joined_message_that_does_not_decode_is_an_error() -> None:
    result = decode(fragments(Fragment(5, b"\x7d\x00", more=True, first=True), Fragment(6, b"\7")))
    assert result.exit_code == 1
    assert "bad bytes at offset 9 joined +2: FRAGMENT/PUSH: key suffix" in result.stderr


def test_link_states_are_shown_as_such() -> None:
    direction = DIRECTIONS["router_weights/A"]
    output = decode(direction.data).stdout
    assert re.search(r"node  psid=0  sn=\d+  zid=a1a2a3a4  whatami=ROUTER", output)
    assert re.search(r"weights=\[\d+", output)
    states = [line["link_states"] for line in decode_json(direction.data) if "link_states" in line]
    assert states[0][0]["zid"] == "a1a2a3a4"


def test_an_oam_that_only_looks_like_link_states_is_shown_as_bytes() -> None:
    result = decode(stream(NetworkOam(1, b"\xff\xff")))
    assert result.exit_code == 0
    assert "not link states" in result.stdout
    assert "0xffff (2 bytes)" in result.stdout


def test_unknown_extensions_are_shown_and_written_back() -> None:
    data = stream(Push(WireExpr(0, "k", SENDER), Put(b"v"), extensions=(Unknown(0x4B, b"\x01"),)))
    assert "unknown extension 0x4b=0x01 (1 byte)" in decode(data).stdout
    assert decode(data, "--verify").exit_code == 0


def test_payloads_in_shared_memory_are_shown() -> None:
    data = stream(Push(WireExpr(0, "k", SENDER), Put((Slice(SHM_SLICE, b"\xfe"),), shm=True)))
    assert "[shared memory 0xfe (1 byte)]" in decode(data).stdout
    (_, line) = decode_json(data)
    assert line["fields"]["body"]["payload"] == [{"kind": SHM_SLICE, "data": "fe"}]


@pytest.mark.parametrize("mode", [[], ["--json"], ["--summary"], ["--verify"]])
def test_control_characters_from_the_wire_never_reach_the_terminal(mode: list[str]) -> None:
    put = Put(HOSTILE.encode() + b"readable text", attachment=HOSTILE.encode())
    output = decode(stream(Push(WireExpr(0, f"k/{HOSTILE}\x7f", SENDER), put)), *mode).stdout
    assert not CONTROL.search(output)


def test_payload_with_escape_characters_is_escaped() -> None:
    data = stream(Push(WireExpr(0, "k", SENDER), Put(b"\x1b[31mred\\\n")))
    assert r'"\x1b[31mred\\\n" (10 bytes)' in decode(data).stdout


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"", '"" (0 bytes)'),
        (b"x" * 65, '"' + "x" * 64 + '"... (65 bytes)'),
        ("é".encode() * 1000, '"' + "é" * 64 + '"... (2,000 bytes)'),
        (b"\x00\x01\x02", "0x000102 (3 bytes)"),
        (b"\xff" * 25, "0x" + "ff" * 24 + "... (25 bytes)"),
    ],
)
def test_payload_is_shown_as_text_or_hex_cut_with_its_length(payload: bytes, shown: str) -> None:
    assert f"  k  {shown}  @" in decode(stream(Push(WireExpr(0, "k", SENDER), Put(payload)))).stdout


def test_empty_batch_is_shown() -> None:
    assert decode(DIRECTIONS["fragments_dropped/A"].data).stdout.count("0 bytes  empty") == 1


def test_close_reason_has_its_name_or_its_number() -> None:
    batches = [write_batch([Close(5)]), write_batch([Close(99)])]
    output = decode(to_stream(batches, Framing.STREAM)).stdout
    assert "CLOSE  reason=EXPIRED" in output
    assert "CLOSE  reason=99" in output


def cells(output: str, columns: int) -> list[list[str]]:
    rows = [re.split("[│┃]", line)[1:-1] for line in output.splitlines()]
    return [[cell.strip() for cell in row] for row in rows if len(row) == columns]


@pytest.mark.parametrize("name", READABLE)
def test_summary_counts_what_the_codec_reads(name: str) -> None:
    direction = DIRECTIONS[name]
    output = decode(direction.data, *direction.options, "--summary").stdout
    _, *rows, total = cells(output, 3)
    counted = {row[0]: int(row[1]) for row in rows if "(joined)" not in row[0]}
    assert counted == direction.kinds()
    located = list(direction.located())
    wire_bytes = sum(found.end - found.start for found in located)
    assert total == ["total", str(len(located)), str(wire_bytes)]


def test_summary_by_key_shows_the_first_few() -> None:
    keys = [Push(WireExpr(0, f"k/{n}", SENDER), Put(b"xyz")) for n in (1, 2, 2, 3, 3, 3)]
    output = decode(stream(*keys), "--summary", "--top", "2").stdout
    assert "2 of 3 keys" in output
    size = len(write_batch([Frame(1, messages=[keys[0]])])) - 2
    assert cells(output, 4) == [
        ["key", "count", "bytes", "payload bytes"],
        ["k/3", "3", str(3 * size), "9"],
        ["k/2", "2", str(2 * size), "6"],
    ]


def test_verify_shows_what_is_written_differently() -> None:
    keep_alive_with_reserved_bit = bytes.fromhex("0100240100 04")
    result = decode(keep_alive_with_reserved_bit, "--verify")
    assert result.exit_code == 1
    assert result.stdout == (
        "KEEP_ALIVE at 2 differs\n  read    24\n  written 04\n"
        "1 message re-encoded byte for byte\n1 message re-encoded differently\n"
    )


def test_verify_goes_with_json() -> None:
    lines = decode_json(DIRECTIONS["client_router/A"].data, "--verify")
    assert lines
    assert all(line["verified"] is True and "written" not in line for line in lines)
    result = decode(bytes.fromhex("0100240100 04"), "--verify", "--json")
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["verified"], first["written"], second["verified"]) == (False, "04", True)
    assert result.exit_code == 1
    assert decode(b"", "--summary", "--json").exit_code == 2
    assert decode(b"", "--summary", "--verify").exit_code == 2


def test_one_message_is_no_plural() -> None:
    assert decode(bytes.fromhex("010004"), "--summary").stdout.startswith("1 message in 1 batch\n")


def test_json_timestamp_has_its_number_and_its_text() -> None:
    lines = decode_json(DIRECTIONS["sample_fields/A"].data)
    stamps = [
        line["fields"]["body"]["timestamp"] for line in lines if line["message"] == "PUSH/PUT"
    ]
    assert {"time": 0, "id": "1", "text": "1970-01-01T00:00:00.000000000Z/1"} in stamps
