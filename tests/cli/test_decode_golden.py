"""Everything that eclipse-zenoh was recorded to send is decoded, and written again as it was."""

import pytest

from tests.support.cli_in_process import decode, decode_json
from tests.support.decode_vectors import DIRECTIONS, NAMES, READABLE, STREAMS, UNREADABLE

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", READABLE)
def test_every_direction_decodes_to_its_end(name: str) -> None:
    direction = DIRECTIONS[name]
    result = decode(direction.data, *direction.options)
    assert (result.exit_code, result.stderr) == (0, "")
    batches = [line for line in result.stdout.splitlines() if line.startswith("batch ")]
    assert len(batches) == len(direction.batches)


@pytest.mark.parametrize("name", READABLE)
def test_json_has_the_messages_that_the_codec_reads(name: str) -> None:
    direction = DIRECTIONS[name]
    lines = decode_json(direction.data, *direction.options)
    on_the_wire = [line["message"].split("/")[0] for line in lines if "fragments" not in line]
    assert on_the_wire == [NAMES[type(located.message)] for located in direction.located()]


@pytest.mark.parametrize("name", READABLE)
def test_every_message_is_written_again_byte_for_byte(name: str) -> None:
    direction = DIRECTIONS[name]
    result = decode(direction.data, *direction.options, "--verify")
    assert result.exit_code == 0
    lines = decode_json(direction.data, *direction.options)
    messages = "message" if len(lines) == 1 else "messages"
    assert result.stdout == f"{len(lines)} {messages} re-encoded byte for byte\n"


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_was_written_by_hand_to_be_refused_is_refused(name: str) -> None:
    direction = DIRECTIONS[name]
    assert decode(direction.data).exit_code == 1
    (line,) = decode_json(direction.data)
    assert line["error"]["reason"] == UNREADABLE[name]


@pytest.mark.parametrize("name", STREAMS)
def test_json_offsets_are_positions_in_the_input(name: str) -> None:
    """Each message starts where the one before it ended, or behind a prefix and a header byte."""
    direction = DIRECTIONS[name]
    end = 0
    for line in decode_json(direction.data, *direction.options):
        if "joined" in line or "uncompressed" in line:
            end = max(end, line["end"])
            continue
        between = direction.data[end : line["offset"]]
        assert len(between) <= 5 or not any(between)
        end = line["end"]
    assert end == len(direction.data)
