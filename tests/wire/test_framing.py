"""Streams cut into batches: byte by byte, with lies about lengths, compressed."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.vectors import HANDSHAKE_BATCHES, load_all
from zenlake.errors import DecodeError, EncodeError, Reason
from zenlake.wire.batch import read_batch, walk
from zenlake.wire.cursor import ByteReader
from zenlake.wire.frame import Frame
from zenlake.wire.framing import (
    MAX_BATCH_BYTES,
    Framing,
    compress,
    split,
    to_stream,
    uncompress,
    uncompress_stream,
)
from zenlake.wire.keepalive import KeepAlive

STREAMS = [framing for framing in Framing if framing]


def fed_in_pieces(data: bytes, framing: Framing, sizes: list[int]) -> list[bytes]:
    """The batches as a receiver gets them, whose reads end anywhere."""
    buffer, batches = b"", []
    at = 0
    for size in sizes:
        buffer += data[at : at + size]
        at += size
        done = 0
        for start, end in split(buffer, framing):
            batches.append(buffer[start:end])
            done = end
        buffer = buffer[done:]
    assert buffer == b""
    return batches


@pytest.mark.parametrize("framing", STREAMS)
@given(st.lists(st.binary(max_size=300), max_size=5), st.data())
def test_any_split_of_a_stream_gives_the_same_batches(
    framing: Framing, batches: list[bytes], data: st.DataObject
) -> None:
    stream = to_stream(batches, framing)
    sizes = data.draw(st.lists(st.integers(1, 50), max_size=10))
    sizes.append(len(stream))
    assert fed_in_pieces(stream, framing, sizes) == batches


def test_recorded_streams_byte_by_byte() -> None:
    """All of them, low latency after its handshake too; those with long payloads in tens."""
    streams = 0
    for vector in load_all():
        if vector.framing == "datagram":
            continue
        for sender in vector.senders():
            batches, stream = vector.of(sender), vector.stream(sender)
            parts = [(stream, Framing.STREAM, batches)]
            if vector.framing == "stream32":
                handshake = to_stream(batches[:HANDSHAKE_BATCHES], Framing.STREAM)
                parts = [
                    (handshake, Framing.STREAM, batches[:HANDSHAKE_BATCHES]),
                    (stream[len(handshake) :], Framing.LOW_LATENCY, batches[HANDSHAKE_BATCHES:]),
                ]
            for data, framing, want in parts:
                step = 1 if len(data) < 20_000 else 10
                assert fed_in_pieces(data, framing, [step] * (len(data) // step + 1)) == want
            streams += 1
    assert streams > 100


def test_a_datagram_is_one_batch() -> None:
    assert list(split(b"abc", Framing.DATAGRAM)) == [(0, 3)]
    assert list(split(b"", Framing.DATAGRAM)) == []


def test_zero_length_batches_are_batches() -> None:
    assert list(split(b"\0\0\1\0\4\0\0", Framing.STREAM)) == [(2, 2), (4, 5), (7, 7)]


@pytest.mark.parametrize("framing", STREAMS)
def test_a_length_above_the_limit_is_refused_at_once(framing: Framing) -> None:
    data = to_stream([b"ok"], framing) + (1000).to_bytes(framing, "little")
    batches = split(data, framing, limit=999)
    assert next(batches) == (framing, framing + 2)
    with pytest.raises(DecodeError) as caught:
        next(batches)
    assert (caught.value.reason, caught.value.offset) == (Reason.TOO_LARGE, framing + 2)


def test_the_largest_low_latency_length_waits_for_nothing() -> None:
    with pytest.raises(DecodeError):
        list(split(b"\xff\xff\xff\xff", Framing.LOW_LATENCY))


def test_a_batch_that_a_prefix_cannot_say_is_refused() -> None:
    with pytest.raises(EncodeError):
        to_stream([bytes(MAX_BATCH_BYTES + 1)], Framing.STREAM)


def test_several_transport_messages_in_one_batch() -> None:
    alive, frame, *rest = read_batch(bytes.fromhex("04 2501 5d020100 04 0501"))
    assert alive == KeepAlive()
    assert isinstance(frame, Frame)
    assert len(frame.messages) == 1
    assert rest == [KeepAlive(), Frame(1, reliable=False)]


def test_network_messages_without_a_frame_are_refused_unless_low_latency() -> None:
    data = bytes.fromhex("5d020100")
    assert len(list(walk(ByteReader(data), low_latency=True))) == 1
    with pytest.raises(DecodeError) as caught:
        read_batch(data)
    assert (caught.value.reason, caught.value.offset) == (Reason.UNKNOWN_ID, 0)


def test_zero_length_batch_has_no_messages() -> None:
    assert read_batch(b"") == []


# --- compression


@given(st.binary(max_size=2000))
def test_compression_there_and_back(batch: bytes) -> None:
    assert uncompress(compress(batch)) == batch


def test_what_does_not_shrink_goes_plain() -> None:
    noise = Random(1).randbytes(1000)
    assert compress(noise) == b"\0" + noise
    assert compress(bytes(1000))[0] == 1
    assert len(compress(bytes(1000))) < 100


def test_recorded_compressed_batches() -> None:
    """Whatever Rust compressed, we read; what we compress of the same, we read too."""
    compressed = 0
    for vector in load_all():
        if not vector.compression or vector.framing != "stream16":
            continue
        for sender in vector.senders():
            for batch in vector.of(sender)[2:]:
                plain = uncompress(batch)
                assert read_batch(plain)
                assert uncompress(compress(plain)) == plain
                compressed += batch[0] & 1
    assert compressed > 10


def test_a_bomb_is_refused() -> None:
    import lz4.block

    bomb = b"\1" + lz4.block.compress(bytes(10 << 20), store_size=False)
    assert len(bomb) < 50_000
    with pytest.raises(DecodeError) as caught:
        uncompress(bomb, 77)
    assert (caught.value.reason, caught.value.offset) == (Reason.BAD_COMPRESSION, 77)


@given(st.binary(max_size=100))
def test_any_bytes_uncompress_or_are_refused(data: bytes) -> None:
    try:
        plain = uncompress(b"\1" + data)
    except DecodeError as error:
        assert error.reason is Reason.BAD_COMPRESSION
    else:
        assert len(plain) <= MAX_BATCH_BYTES


def test_compressed_streams() -> None:
    batches = [b"\4", b"", bytes(500)]
    data = to_stream([compress(batch) for batch in batches], Framing.STREAM)
    plain, consumed = uncompress_stream(data + b"\5\0\0")
    assert plain == to_stream(batches, Framing.STREAM)
    assert consumed == len(data)
