"""The API's values and the wire's: conversions both ways, and what payloads may be."""

import array
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zenlake.api.values import enums
from zenlake.api.values.encoding import Encoding
from zenlake.api.values.ids import EntityGlobalId, SourceInfo, ZenohId
from zenlake.api.values.instrumentation import (
    TimestampContext,
    TimestampInstrumentationBuilder,
    TimestampStack,
    record_stamp,
)
from zenlake.api.values.timestamps import NTP64, Timestamp
from zenlake.api.values.zbytes import ZBytes, payload_bytes
from zenlake.errors import ZError
from zenlake.wire import encoding, entity, timestamp, tsstack, zenohid
from zenlake.wire import enums as wire
from zenlake.wire.qos import QoS

A = zenohid.WireZenohId(b"\xb2\xa1")


@pytest.mark.parametrize(
    ("table", "numbers"),
    [
        (enums.CONGESTION_CONTROL_OF, wire.WireCongestionControl),
        (tuple(enums.ConsolidationMode), wire.Consolidation),
        (tuple(enums.QueryTarget), wire.WireQueryTarget),
        (enums.WHATAMI_OF, wire.WireWhatAmI),
    ],
)
def test_members_and_wire_numbers(table: Any, numbers: Any) -> None:
    for number in numbers:
        member = table[number]
        assert member.name == number.name
        assert member.wire is number


def test_priorities() -> None:
    for number in wire.WirePriority:
        if number is wire.WirePriority.CONTROL:
            assert enums.PRIORITY_OF[number] is enums.Priority.DATA
        else:
            assert enums.PRIORITY_OF[number].wire is number
            assert enums.PRIORITY_OF[number].name == number.name


def test_interception_points() -> None:
    bits = {"SEND": tsstack.SEND, "ROUTE": tsstack.ROUTE, "RECEIVE": tsstack.RECEIVE}
    for point in enums.InterceptionPoint:
        assert point.wire == bits[point.name]
        assert enums.INTERCEPTION_POINT_OF[point.wire] is point


def test_qos_tables() -> None:
    for byte in range(256):
        qos = QoS.from_byte(byte)
        assert enums.QOS_PRIORITY[byte] is enums.PRIORITY_OF[qos.priority]
        assert enums.QOS_CONGESTION_CONTROL[byte].name == qos.congestion_control.name
        assert enums.QOS_EXPRESS[byte] is qos.express


def test_every_encoding_both_ways() -> None:
    for number, text in enumerate(encoding.PREDEFINED):
        assert Encoding(text).wire == encoding.WireEncoding(number)
        assert Encoding.of(encoding.WireEncoding(number)) is Encoding(text)
    for strange in (
        encoding.WireEncoding(60),
        encoding.WireEncoding(60, b"x"),
        encoding.WireEncoding(4, b"\xff"),
        encoding.WireEncoding(encoding.CUSTOM_ID),
        encoding.WireEncoding(4, b""),
    ):
        shown = Encoding.of(strange)
        assert shown.wire is strange
        assert isinstance(str(shown), str)


def test_encoding_too_long_for_the_wire() -> None:
    with pytest.raises(ZError, match="at most 255 bytes"):
        Encoding.TEXT_PLAIN.with_schema("é" * 128)
    assert Encoding.TEXT_PLAIN != "a" * 300


def test_ids() -> None:
    zid = ZenohId.of(A)
    assert (str(zid), repr(zid), bytes(zid)) == ("a1b2", "a1b2", b"\xb2\xa1")
    assert ZenohId.parse("a1b2") == zid
    for wrong in ("", "0a", "A1", "x", "a" * 33):
        with pytest.raises(ZError):
            ZenohId.parse(wrong)
    publisher = EntityGlobalId.of(entity.WireEntityId(A, 7))
    assert (publisher.zid, publisher.eid) == (zid, 7)
    source = SourceInfo(source_id=publisher, source_sn=9)
    assert (source.source_id, source.source_sn) == (publisher, 9)
    assert source.wire == entity.WireSourceInfo(entity.WireEntityId(A, 7), 9)
    assert repr(source) == "SourceInfo(a1b2/7#9)"


@pytest.mark.parametrize(
    ("sn", "error"), [(-1, OverflowError), (2**32, OverflowError), ("1", TypeError)]
)
def test_source_sn_is_a_u32(sn: Any, error: type[Exception]) -> None:
    publisher = EntityGlobalId.of(entity.WireEntityId(A, 7))
    with pytest.raises(error):
        SourceInfo(publisher, sn)


def test_timestamp() -> None:
    stamp = timestamp.WireTimestamp(NTP64(5, 0).wire, A)
    assert Timestamp.of(stamp).wire is stamp
    assert Timestamp(NTP64(5, 0), b"\xb2\xa1").wire == stamp
    assert str(Timestamp.of(stamp)) == str(stamp) == "21474836480/a1b2"


def test_payloads_that_are_copied_when_they_can_change() -> None:
    data = bytearray(b"abc")
    kept = payload_bytes(data)
    data[0] = 0
    assert kept == b"abc"


@pytest.mark.parametrize(
    "buffer",
    [
        memoryview(b"\x01\x00\x02\x00"),
        array.array("H", [1, 2]),
        np.array([1, 2], "<u2"),
        np.array([[1], [2]], "<u2"),
        pa.py_buffer(b"\x01\x00\x02\x00"),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_buffers_are_taken_without_a_copy(buffer: Any) -> None:
    view = payload_bytes(buffer)
    assert isinstance(view, memoryview)
    assert (view.format, view.ndim) == ("B", 1)
    assert bytes(view) == b"\x01\x00\x02\x00"
    assert np.shares_memory(np.frombuffer(view, "u1"), np.frombuffer(buffer, "u1"))
    assert ZBytes(buffer) == b"\x01\x00\x02\x00"
    assert len(ZBytes(buffer)) == 4


@pytest.mark.parametrize("wrong", [1, 1.5, [1], {}, object(), None])
def test_what_is_no_payload(wrong: object) -> None:
    with pytest.raises(TypeError, match=f"expected bytes/str type, found '{type(wrong).__name__}'"):
        payload_bytes(wrong)


def test_a_buffer_with_gaps_is_refused() -> None:
    with pytest.raises(TypeError, match="C-contiguous"):
        payload_bytes(np.zeros((4, 4))[:, 0])
    with pytest.raises(TypeError, match="C-contiguous"):
        payload_bytes(memoryview(b"abcd")[::2])


def test_empty_buffers() -> None:
    for empty in (b"", "", bytearray(), memoryview(b""), np.zeros(0), np.zeros((0, 3))):
        assert payload_bytes(empty) == b""


def test_zbytes_of_bytes_is_those_bytes() -> None:
    data = b"abc"
    assert ZBytes(data).to_bytes() is data
    assert ZBytes.of(data).to_bytes() is data
    assert payload_bytes(ZBytes(data)) is data
    assert ZBytes(data).view.obj is data
    assert ZBytes(np.zeros(2, "u1")).view.readonly
    assert repr(ZBytes(data)) == "ZBytes(b'abc')"
    assert len(repr(ZBytes(bytes(10_000)))) < 300


def test_zbytes_gives_its_buffer() -> None:
    """From Python 3.12 on, `memoryview(zbytes)` calls this."""
    assert bytes(ZBytes(b"abc").__buffer__(0)) == b"abc"


def test_instrumentation() -> None:
    chosen = TimestampInstrumentationBuilder().set_send(True).set_receive(True).build()
    assert chosen.wire == tsstack.SEND | tsstack.RECEIVE
    stack = chosen.stack()
    stamp = timestamp.WireTimestamp(NTP64(5, 0).wire, A)
    stack = record_stamp(stack, enums.InterceptionPoint.SEND, stamp)
    assert record_stamp(stack, enums.InterceptionPoint.ROUTE, stamp) is stack
    assert record_stamp(stack, enums.InterceptionPoint.RECEIVE, b"") is stack
    stack = record_stamp(stack, enums.InterceptionPoint.RECEIVE, b"own")
    shown = TimestampStack.of(stack)
    assert shown.instrumentation == chosen
    sent, received = shown.records
    assert (sent.point, sent.is_custom) == (enums.InterceptionPoint.SEND, False)
    assert sent.timestamp() == Timestamp.of(stamp)
    assert (received.point, received.is_custom) == (enums.InterceptionPoint.RECEIVE, True)
    assert received.timestamp() == b"own"
    assert "SEND" in repr(shown)


def test_builders_are_not_changed() -> None:
    first = TimestampInstrumentationBuilder().set_send(True)
    first.set_route(True)
    assert not first.build().is_instrumented(enums.InterceptionPoint.ROUTE)
    with pytest.raises(ZError, match="no interception point"):
        first.set_send(False).build()


def test_records_that_cannot_be_read_are_left_out() -> None:
    entries = ((tsstack.SEND, b""), (3, b"x"), (0x40, b"x"), (tsstack.SEND | 0x80, b"x"))
    records = TimestampStack.of(tsstack.WireTimestampStack(7, entries)).records
    assert [record.timestamp() for record in records] == [b"x"]


def test_a_full_stack_takes_no_more() -> None:
    full = tsstack.WireTimestampStack(7, ((tsstack.SEND | 0x80, b"x"),) * tsstack.MAX_ENTRIES)
    assert record_stamp(full, enums.InterceptionPoint.SEND, b"y") is full


def test_context() -> None:
    context = TimestampContext.of((A, enums.WhatAmI.PEER))
    assert (context.zid, context.whatami) == (ZenohId.of(A), enums.WhatAmI.PEER)
    assert repr(context) == "TimestampContext(zid=a1b2, whatami=peer)"
