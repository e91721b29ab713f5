"""Input that `zenlake decode` reads, and its errors about input that it cannot read."""

from pathlib import Path

import pytest

from tests.support.cli_in_process import decode, decode_json, zenlake
from tests.support.decode_vectors import DIRECTIONS

RECORDED = DIRECTIONS["client_router/A"]
KEEP_ALIVE = bytes.fromhex("010004")


def test_file_and_standard_input_give_the_same(tmp_path: Path) -> None:
    file = tmp_path / "sent.bin"
    file.write_bytes(RECORDED.data)
    output = zenlake("decode", str(file)).stdout
    assert output == decode(RECORDED.data).stdout == decode(RECORDED.data, "-").stdout
    assert "PUSH/PUT  demo/a/x" in output


def test_hex_on_standard_input_is_recognised(tmp_path: Path) -> None:
    text = "# recorded\n" + RECORDED.data.hex(" ", 8).upper().replace(" ", "\n") + "\n  # end\n"
    assert decode(text.encode()).stdout == decode(RECORDED.data).stdout
    file = tmp_path / "sent.hex"
    file.write_text(text)
    assert zenlake("decode", "--hex", str(file)).stdout == decode(RECORDED.data).stdout


def test_raw_stream_that_starts_like_a_comment_is_not_taken_for_text() -> None:
    batch = b"\x04" * 0x23  # 35 bytes long: the stream starts with the byte "#"
    assert decode(b"\x23\x00" + batch).stdout.count("KEEP_ALIVE") == 0x23


@pytest.mark.parametrize("text", ["01 00 0", "0g"])
def test_hex_that_is_not_whole_bytes_names_the_line(text: str) -> None:
    result = decode(f"# hex\n010004\n{text}\n".encode(), "--hex")
    assert result.exit_code == 2
    assert result.stderr == ("zenlake: standard input: line 3 is not whole bytes in hexadecimal\n")


def test_scouting_datagrams_one_a_line() -> None:
    hello = DIRECTIONS["scouting_multicast/hello"]
    output = decode(hello.data, "--scouting").stdout
    assert output.startswith(
        "batch 1  offset 0  25 bytes\n"
        "└─ HELLO  zid=b1  whatami=ROUTER  locators=[tcp/127.0.0.1:45295]  @0\n"
    )


def test_scouting_datagram_raw() -> None:
    (scout,) = decode_json(bytes.fromhex("01093f01020304"), "--scouting")
    assert scout["message"] == "SCOUT"
    assert scout["fields"]["what"] == ["ROUTER", "PEER", "CLIENT"]
    assert scout["fields"]["zid"] == "4030201"


def test_scouting_datagram_with_more_behind_it_is_an_error() -> None:
    result = decode(bytes.fromhex("010901ff"), "--scouting")
    assert result.exit_code == 1
    assert "SCOUT" in result.stdout
    assert "bad bytes at offset 3: datagram: bytes are left over" in result.stderr


def test_empty_input_holds_nothing() -> None:
    for options in ([], ["--scouting"], ["--framing", "datagram"]):
        result = decode(b"", *options)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("client_router/A", []),
        ("compression/A", ["--compression", "yes"]),
        ("low_latency/A", ["--framing", "low-latency"]),
    ],
)
def test_stream_from_the_middle_of_a_session_needs_to_be_told_only_what_is_special(
    name: str, options: list[str]
) -> None:
    data = DIRECTIONS[name].data
    whole = decode_json(data)
    behind_open = whole[1]["end"]
    middle = decode_json(data[behind_open:], *options)
    assert [line["message"] for line in middle] == [line["message"] for line in whole[2:]]


def test_bad_bytes_are_shown_where_they_are_after_all_that_came_before() -> None:
    bad = RECORDED.data + bytes.fromhex("0100040700" + "25017d007f6162") + KEEP_ALIVE
    at = len(RECORDED.data) + 3 + 2 + 4
    result = decode(bad)
    assert result.exit_code == 1
    assert result.stdout.startswith(decode(RECORDED.data).stdout)
    assert result.stdout.splitlines()[-1].startswith("└─ FRAME  sn=1")
    said, *dump = result.stderr.splitlines()
    assert said == (
        f"zenlake: standard input: bad bytes at offset {at}: FRAME/PUSH: key suffix: "
        "the bytes end before the field does"
    )
    (marker,) = [number for number, line in enumerate(dump) if line.strip() == "^^"]
    column = dump[marker].index("^^")
    assert dump[marker - 1].startswith(f"{at // 16 * 16:08x}  ")
    assert dump[marker - 1][column : column + 2] == "7f"


def test_bad_bytes_are_an_object_in_json_too() -> None:
    *before, last = decode_json(KEEP_ALIVE + bytes.fromhex("0200041d"))
    assert [line["message"] for line in before] == ["KEEP_ALIVE", "KEEP_ALIVE"]
    assert last == {
        "error": {
            "offset": 6,
            "end": 6,
            "message": "",
            "field": "header",
            "reason": "UNKNOWN_ID",
            "text": "no message has this id here",
        }
    }


def test_bad_bytes_in_a_compressed_batch_tell_both_positions() -> None:
    data = bytearray(DIRECTIONS["compression/B"].data)
    handshake = decode_json(bytes(data))[1]["end"]
    lz4 = bytes.fromhex("01 20 04 1d")  # two literals: KEEP_ALIVE, then no transport message
    result = decode(bytes(data[:handshake]) + b"\x04\x00" + lz4, "--compression", "yes")
    assert result.exit_code == 1
    assert "KEEP_ALIVE" in result.stdout
    assert f"bad bytes at offset {handshake + 2} uncompressed +1: header" in result.stderr


def test_batch_that_is_not_lz4_is_an_error() -> None:
    result = decode(bytes.fromhex("0300 01ffff"), "--compression", "yes")
    assert result.exit_code == 1
    assert "bad bytes at offset 2: batch: the batch is not the LZ4 block" in result.stderr


@pytest.mark.parametrize("missing", range(1, 4))
def test_stream_that_ends_inside_a_batch_is_an_error(missing: int) -> None:
    cut = (KEEP_ALIVE + bytes.fromhex("02000404"))[:-missing]
    result = decode(cut)
    assert result.exit_code == 1
    assert result.stdout.count("KEEP_ALIVE") == 1
    assert "bad bytes at offset 3: batch: the stream ends inside a batch" in result.stderr


@pytest.mark.parametrize("mode", ["--json", "--summary", "--verify"])
def test_every_mode_tells_bad_bytes_and_what_came_before(mode: str) -> None:
    result = decode(KEEP_ALIVE + b"\x09", mode)
    assert result.exit_code == 1
    assert "KEEP_ALIVE" in result.stdout or "1 message re-encoded" in result.stdout
    assert "the stream ends inside a batch" in result.stderr


def test_missing_file_is_named(tmp_path: Path) -> None:
    result = zenlake("decode", str(tmp_path / "nothing.bin"))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"zenlake: {tmp_path}/nothing.bin: cannot be read: No such file or directory\n"
    )


def test_folder_is_not_a_file(tmp_path: Path) -> None:
    result = zenlake("decode", str(tmp_path))
    assert result.exit_code == 2
    assert "cannot be read: Is a directory" in result.stderr


@pytest.mark.parametrize(
    "options", [["--json", "--summary"], ["--framing", "pigeon"], ["--top", "0"], ["--nonsense"]]
)
def test_wrong_usage_is_status_2(options: list[str]) -> None:
    result = decode(KEEP_ALIVE, *options)
    assert result.exit_code == 2
    assert "Error" in result.stderr
