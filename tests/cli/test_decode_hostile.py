"""Whatever the bytes are, the answer is messages or an error that tells where; never a crash."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cli_in_process import decode
from tests.support.decode_vectors import DIRECTIONS, STREAMS

pytestmark = pytest.mark.slow

MODES = ["--json", "--summary", "--verify", "--framing=auto"]
OPTIONS = [
    [],
    ["--scouting"],
    ["--compression=yes"],
    ["--framing=low-latency"],
    ["--framing=datagram"],
]
streams = st.sampled_from(STREAMS).map(lambda name: DIRECTIONS[name].data)
changes = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4)


def changed(data: bytes, where: list[tuple[int, int]]) -> bytes:
    out = bytearray(data)
    for position, difference in where:
        out[position % len(out)] ^= difference
    return bytes(out)


@pytest.mark.parametrize("mode", MODES)
@given(data=streams, where=changes, options=st.sampled_from(OPTIONS))
def test_changed_streams_give_messages_or_an_error(
    mode: str, data: bytes, where: list[tuple[int, int]], options: list[str]
) -> None:
    result = decode(changed(data, where), mode, *options)
    assert result.exit_code in (0, 1)
    assert "\x1b" not in result.stdout + result.stderr
    if mode == "--json":
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert ("error" in (lines[-1] if lines else {})) == bool(result.exit_code)


@given(data=st.binary(max_size=200), options=st.sampled_from(OPTIONS))
def test_any_bytes_give_messages_or_an_error(data: bytes, options: list[str]) -> None:
    result = decode(data, *options)
    half_a_byte = "is not whole bytes" in result.stderr  # of what looked like hexadecimal text
    assert result.exit_code in (0, 1) or half_a_byte
    assert bool(result.stderr) == bool(result.exit_code)
