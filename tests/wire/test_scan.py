"""The kernel reads what the object codec reads, and refuses what it refuses."""

import os

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.golden.vectors import load_all
from tests.support import strategies as s
from tests.support.plain_batches import plain_batches
from tests.support.scan_check import assert_scan_equals_objects
from zenlake.errors import Reason
from zenlake.wire.batch import TransportMessage, write_batch
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import Mapping
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing, to_stream, uncompress_stream
from zenlake.wire.kernels import scan as scan_kernel
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.scan import Scanner, scan
from zenlake.wire.wireexpr import WireExpr

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


@given(st.lists(s.batches, max_size=3))
def test_scan_equals_objects_on_random_batches(batches: list[list[TransportMessage]]) -> None:
    data = to_stream([write_batch(batch) for batch in batches], Framing.STREAM)
    assert assert_scan_equals_objects(data) is None


@given(st.lists(s.data_messages, max_size=5))
def test_scan_equals_objects_on_low_latency_streams(messages: list[NetworkMessage]) -> None:
    batches = []
    for message in messages:
        w = ByteWriter()
        NETWORK.write(w, message)
        batches.append(bytes(w.out))
    data = to_stream([*batches, b"\x04"], Framing.LOW_LATENCY)
    assert assert_scan_equals_objects(data, Framing.LOW_LATENCY) is None


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(write_batch(draw(s.batches)))
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                data[at] = draw(st.integers(0, 255))
            case 1:
                del data[at : at + draw(st.integers(1, 4))]
            case 2:
                data[at:at] = draw(st.binary(min_size=1, max_size=4))
            case _:
                data[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


@given(mutated())
@example(bytes.fromhex("2501dd0001"))
@example(bytes.fromhex("2501 1d 00 a1 ff 00 00"))
def test_scan_equals_objects_on_mutated_batches(data: bytes) -> None:
    assert_scan_equals_objects(data, Framing.DATAGRAM)
    assert_scan_equals_objects(data, Framing.DATAGRAM, low_latency=True)


@given(st.binary(max_size=60))
def test_scan_equals_objects_on_any_bytes(data: bytes) -> None:
    for framing in Framing:
        assert_scan_equals_objects(data, framing)


def test_scan_equals_objects_on_every_recorded_batch() -> None:
    scanner = Scanner()
    for batch in plain_batches():
        if not batch.scouting:
            assert_scan_equals_objects(
                batch.data, Framing.DATAGRAM, low_latency=batch.low_latency, scanner=scanner
            )


def test_scan_equals_objects_on_every_recorded_stream() -> None:
    for vector in load_all():
        if vector.framing != "stream16":
            continue
        for sender in vector.senders():
            data = vector.stream(sender)
            if vector.compression:
                head, tail = to_stream(vector.of(sender)[:2], Framing.STREAM), data
                plain, consumed = uncompress_stream(tail[len(head) :])
                assert consumed == len(tail) - len(head)
                data = head + plain
            assert_scan_equals_objects(data)


def test_rows_of_an_unfinished_batch_wait() -> None:
    batch = write_batch([Frame(5, messages=[Push(WireExpr(2), Put(b"abc"))] * 3)])
    data = to_stream([batch, batch], Framing.STREAM)
    for cut in range(len(data)):
        found = scan(data[:cut])
        whole = cut // (len(batch) + 2)
        assert found.error is None
        assert len(found.rows) == 3 * whole
        assert found.consumed == whole * (len(batch) + 2)


def test_zero_length_batches_are_passed_over() -> None:
    data = to_stream([b"", b"\x04", b"", b"\x04"], Framing.STREAM)
    found = scan(data)
    assert found.rows["batch"].tolist() == [1, 3]
    assert found.consumed == len(data)


def test_a_batch_longer_than_agreed_is_refused() -> None:
    data = to_stream([b"\x04" * 100], Framing.STREAM)
    found = scan(data, limit=99)
    assert found.error is not None
    assert (found.error.reason, found.error.offset) == (Reason.TOO_LARGE, 0)
    assert (found.error.field, len(found.rows)) == ("batch length", 0)


def test_what_came_before_bad_bytes_is_kept() -> None:
    good = write_batch([Frame(5, messages=[Push(WireExpr(0, "a"), Put(b"abc"))])])
    data = to_stream([good, good + b"\x1d\x00\x09"], Framing.STREAM)
    found = scan(data)
    assert len(found.rows) == 2
    assert found.error is not None
    assert found.error.message == "FRAME.PUSH"
    assert found.consumed == len(data) - 3
    assert data[found.error.offset] == 0x09


def test_any_buffer_will_do() -> None:
    data = to_stream([write_batch([Frame(5, messages=[Push(WireExpr(2))])])], Framing.STREAM)
    want = scan(data).rows
    for other in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert np.array_equal(scan(other).rows, want)  # type: ignore[arg-type]


def test_the_compiled_kernel_is_what_runs() -> None:
    if os.environ.get("NUMBA_DISABLE_JIT"):
        assert not hasattr(scan_kernel.scan_kernel, "signatures")
        return
    for data in (b"", bytearray(b"\1\0\4"), memoryview(b"\1\0\4")):
        scan(data)  # type: ignore[arg-type]
    assert len(scan_kernel.scan_kernel.signatures) == 1, "one compiled form for all buffers"
    assert scan_kernel.scan_kernel.targetoptions["nogil"]


def test_many_more_rows_than_a_chunk_holds() -> None:
    push = Push(WireExpr(3, "/x", Mapping.SENDER), Put(b"y"))
    data = to_stream(
        [write_batch([Frame(n, messages=[push] * 500)]) for n in range(40)], Framing.STREAM
    )
    found = scan(data)
    assert len(found.rows) == 20_000
    assert found.rows["sn"].tolist() == [n for n in range(40) for _ in range(500)]
    assert found.rows["batch"].tolist() == found.rows["sn"].tolist()


def test_bare_messages_have_no_lane_of_others() -> None:
    """Whatever stood before them, and wherever the scan stopped in between."""
    oam, frame, push = bytes.fromhex("80013101"), b"\x05\x07", bytes.fromhex("7d00036162630100")
    data = to_stream([oam, push, frame, push, b"\4", push], Framing.LOW_LATENCY)
    for capacity in (1, 2, 3, 100):
        scanner = Scanner(capacity)
        assert_scan_equals_objects(data, Framing.LOW_LATENCY, scanner=scanner)


def test_a_scanner_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="one row at least"):
        Scanner(0)
