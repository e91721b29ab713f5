"""Integers and lengths on the wire."""

import pytest
from hypothesis import given

from tests.support import strategies as s
from zenlake.errors import DecodeError, EncodeError, Reason
from zenlake.wire.cursor import U8, U16, U32, U64, ByteReader, ByteWriter

ZINTS = [
    (0, "00"),
    (127, "7f"),
    (128, "8001"),
    (10000, "904e"),
    (16383, "ff7f"),
    (16384, "808001"),
    (2**32 - 1, "ffffffff0f"),
    (2**56 - 1, "ffffffffffffff7f"),
    (2**56, "808080808080808001"),
    (2**63, "808080808080808080"),
    (2**64 - 1, "ff" * 9),
]


@pytest.mark.parametrize(("value", "text"), ZINTS)
def test_a_zint_is_written_and_read_and_a_cut_one_refused(value: int, text: str) -> None:
    w = ByteWriter()
    w.zint("n", value)
    assert w.out.hex() == text
    r = ByteReader(bytes.fromhex(text) + b"tail")
    assert r.zint("n") == value
    assert r.remaining() == 4
    for cut in range(len(text) // 2):
        with pytest.raises(DecodeError) as caught:
            ByteReader(bytes.fromhex(text), 0, cut).zint("n")
        assert caught.value.reason is Reason.CUT_SHORT


@given(s.u64)
def test_zints_there_and_back(value: int) -> None:
    w = ByteWriter()
    w.zint("n", value)
    assert len(w.out) <= 9
    assert ByteReader(bytes(w.out)).zint("n") == value


def test_padded_zints_are_read() -> None:
    assert ByteReader(b"\x85\x80\x00").zint("n") == 5
    assert ByteReader(b"\x85\x80\x80\x80\x80\x80\x80\x80\x00").zint("n", U8) == 5


@pytest.mark.parametrize("bound", [U8, U16, U32])
def test_a_zint_above_its_bound_is_refused(bound: int) -> None:
    w = ByteWriter()
    w.zint("n", bound, bound)
    assert ByteReader(bytes(w.out)).zint("n", bound) == bound
    with pytest.raises(EncodeError):
        w.zint("n", bound + 1, bound)
    w = ByteWriter()
    w.zint("n", bound + 1)
    with pytest.raises(DecodeError) as caught:
        ByteReader(bytes(w.out)).zint("n", bound)
    assert caught.value.reason is Reason.TOO_LARGE


def test_numbers_that_no_zint_holds() -> None:
    for value in (-1, U64 + 1):
        with pytest.raises(EncodeError):
            ByteWriter().zint("n", value)


def test_a_failed_read_leaves_the_cursor() -> None:
    r = ByteReader(b"\x05abc")
    with pytest.raises(DecodeError):
        r.take("n", 5)
    assert r.pos == 0


def test_a_part_ends_where_its_length_says() -> None:
    r = ByteReader(b"\x02ab!")
    part = r.part("x")
    assert part.rest() == b"ab"
    assert r.pos == 3
    part = ByteReader(b"\x02ab!").part("x")
    part.u8("y")
    with pytest.raises(DecodeError) as caught:
        part.finish("x")
    assert (caught.value.reason, caught.value.offset) == (Reason.TRAILING_BYTES, 2)


def test_blocks_longer_than_their_bound_are_refused() -> None:
    with pytest.raises(EncodeError):
        ByteWriter().block("b", bytes(256), U8)
