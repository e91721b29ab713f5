"""The plain PUSH by hand, held to the object codec."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.strategies import encodings, keys, pushes
from tests.support.strategies import qos as qos_values
from zenlake.errors import DecodeError
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.enums import Mapping
from zenlake.wire.network import NETWORK
from zenlake.wire.plain_push import read_plain_push, write_plain_head
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr, flags_of, write_wireexpr

SHORT = 0x80


def encoded(push: Push) -> bytes:
    w = ByteWriter()
    NETWORK.write(w, push)
    return bytes(w.out)


def is_plain(push: Push) -> bool:
    """Whether the hand reader is to take it, by the object codec's fields alone."""
    body = push.body
    return (
        type(body) is Put
        and push == Push(push.key, Put(body.payload), push.qos)
        and push.key.scope < SHORT
        and len(push.key.suffix.encode()) < SHORT
    )


def plain(key: WireExpr, size: int, qos: QoS) -> Push:
    return Push(key, Put(bytes(size)), qos)


plain_pushes = st.builds(
    plain,
    keys,
    st.sampled_from([0, 1, 127, 128, 300, 16_383, 16_384, 70_000, 1 << 21, (1 << 21) + 5]),
    qos_values,
)


def assert_equals_objects(data: bytes, pos: int) -> bool:
    """Compare both readers from `pos` on; whether the hand reader took the message."""
    found = read_plain_push(data, pos, len(data))
    if found is None:
        return False
    name, after_key, body, qos, start, end = found
    r = ByteReader(data, pos)
    push = NETWORK.read(r)
    assert r.pos == end
    assert is_plain(push)
    number, suffix = name if isinstance(name, tuple) else (name, b"")
    assert (number, suffix) == (
        push.key.mapping << 16 | push.key.scope,
        push.key.suffix.encode(),
    )
    assert QoS.from_byte(qos) == push.qos
    assert data[start:end] == push.body.payload
    rewritten = replace(push, key=WireExpr(0, "another/key"))
    w = ByteWriter()
    write_wireexpr(w, rewritten.key)
    flags = data[pos] & ~0x60 | flags_of(rewritten.key)
    assert bytes((flags,)) + bytes(w.out) + data[after_key:end] == encoded(rewritten)
    assert data[body:end] == encoded(Push(WireExpr(1), push.body))[2:]
    return True


@given(pushes | plain_pushes, st.binary(max_size=3), st.binary(max_size=3))
def test_a_plain_push_is_read_as_the_codec_reads_it(
    push: Push, before: bytes, after: bytes
) -> None:
    data = before + encoded(push) + after
    pos = len(before)
    if type(push.body) is Put and push.body.shm:
        assert read_plain_push(data, pos, len(data)) is None
        return
    assert assert_equals_objects(data, pos) == is_plain(push)


@given(plain_pushes.filter(is_plain), st.data())
@example(plain(WireExpr(1, "a", Mapping.SENDER), 300, QoS()), None)
def test_a_push_that_is_cut_off_is_left_to_the_codec(
    push: Push, choice: st.DataObject | None
) -> None:
    data = encoded(push)
    end = len(data) - 1 if choice is None else choice.draw(st.integers(1, len(data) - 1))
    assert read_plain_push(data[:end], 0, end) is None
    assert read_plain_push(data, 0, end) is None  # and never beyond `end`


@given(plain_pushes, st.data())
def test_other_bytes_are_read_as_the_codec_reads_them(push: Push, choice: st.DataObject) -> None:
    data = bytearray(encoded(push))
    for _ in range(choice.draw(st.integers(1, 3))):
        at = choice.draw(st.integers(0, min(len(data), 40) - 1))
        data[at] = choice.draw(st.integers(0, 255))
    found = read_plain_push(bytes(data), 0, len(data))
    if found is None:
        return
    try:
        message = NETWORK.read(ByteReader(bytes(data)))
    except DecodeError as error:
        assert error.field == "key suffix"  # the caller decodes a suffix it has not seen before
        return
    assert isinstance(message, Push)
    assert bytes(data[found[4] : found[5]]) == message.body.payload  # type: ignore[union-attr]
    assert QoS.from_byte(found[3]) == message.qos


def test_a_length_of_five_bytes_is_left_to_the_codec() -> None:
    data = bytes((0x1D, 1, 0x01, 0x80, 0x80, 0x80, 0x80, 0x00))
    assert read_plain_push(data, 0, len(data)) is None
    assert read_plain_push(data[:-2] + b"\0", 0, len(data) - 1) == (1, 2, 2, 5, 7, 7)


@given(keys, encodings, qos_values, st.binary(max_size=300))
def test_a_head_with_length_and_payload_is_the_message(
    key: WireExpr, encoding: WireEncoding, qos: QoS, payload: bytes
) -> None:
    w = ByteWriter(bytearray(write_plain_head(key, encoding, qos)))
    w.block("payload", payload)
    assert bytes(w.out) == encoded(Push(key, Put(payload, encoding=encoding), qos))
