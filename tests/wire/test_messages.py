"""Every message on its own: there and back, cut short, out of range."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies as s
from zenlake.errors import DecodeError, EncodeError, Reason
from zenlake.wire import declare as d
from zenlake.wire.batch import (
    TRANSPORT,
    TransportMessage,
    read_batch,
    read_scouting,
    write_batch,
    write_scouting,
)
from zenlake.wire.close import Close
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.entity import WireEntityId
from zenlake.wire.enums import Consolidation, InterestMode, InterestOptions, Mapping, WireWhatAmI
from zenlake.wire.extensions import QueryableInfo, Unknown
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.init import Init
from zenlake.wire.interest import Interest
from zenlake.wire.join import Join
from zenlake.wire.keepalive import KeepAlive
from zenlake.wire.linkstate import LinkState, read_link_states, write_link_states
from zenlake.wire.network import NETWORK
from zenlake.wire.oam import NetworkOam
from zenlake.wire.open import Open
from zenlake.wire.push import Push
from zenlake.wire.put import Put, Slice
from zenlake.wire.qos import QoS
from zenlake.wire.query import WireQuery
from zenlake.wire.querybody import QueryBody
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.scout import WireScout
from zenlake.wire.tsstack import WireTimestampStack
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

ZID = WireZenohId.parse("a1a2a3a4")
KEY = WireExpr(0, "a/b", Mapping.SENDER)


def encode(message: object) -> bytes:
    w = ByteWriter()
    NETWORK.write(w, message)
    return bytes(w.out)


def decode(data: bytes, *, shm: bool = False) -> Any:
    r = ByteReader(data, shm=shm)
    message = NETWORK.read(r)
    assert r.pos == len(data)
    return message


@given(s.network_messages)
def test_network_message_there_and_back_and_cut(message: object) -> None:
    data = encode(message)
    assert decode(data) == message
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            NETWORK.read(ByteReader(data, 0, cut))


@given(s.unfragmented)
def test_transport_message_there_and_back(message: TransportMessage) -> None:
    data = write_batch([message])
    assert read_batch(data) == [message]
    if not isinstance(message, Frame):
        for cut in range(len(data)):
            with pytest.raises(DecodeError):
                TRANSPORT.read(ByteReader(data, 0, cut))


@given(s.batches)
def test_batch_there_and_back(messages: list[TransportMessage]) -> None:
    assert read_batch(write_batch(messages)) == messages


@given(s.scouts | s.hellos)
def test_scouting_there_and_back_and_cut(message: Any) -> None:
    data = write_scouting(message)
    assert read_scouting(data) == message
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            read_scouting(data[:cut])
    with pytest.raises(DecodeError) as caught:
        read_scouting(data + b"\0")
    assert caught.value.reason is Reason.TRAILING_BYTES


@given(st.lists(s.link_states, max_size=4))
def test_link_states_there_and_back(states: list[LinkState]) -> None:
    data = write_link_states(states)
    assert read_link_states(data) == states
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            read_link_states(data[:cut])


@given(st.builds(Push, s.keys, s.shm_puts) | st.builds(Request, s.u32, s.keys, s.shm_queries))
def test_shared_memory_is_refused_unless_negotiated(message: object) -> None:
    data = encode(message)
    assert decode(data, shm=True) == message
    with pytest.raises(DecodeError) as caught:
        decode(data)
    assert caught.value.reason is Reason.SHARED_MEMORY


@given(st.builds(Response, s.u32, s.keys, s.shm_errs))
def test_shared_memory_error_replies_are_refused_unless_negotiated(message: object) -> None:
    data = encode(message)
    assert decode(data, shm=True) == message
    with pytest.raises(DecodeError) as caught:
        decode(data)
    assert caught.value.reason is Reason.SHARED_MEMORY


# Accepted or sent by eclipse-zenoh 1.10.2, one for each shape; see golden/ for whole conversations.
KNOWN = [
    ("7d 00 03 6b2f61 01 01 76", Push(WireExpr(0, "k/a", Mapping.SENDER), Put(b"v"))),
    ("5d 02 01 01 32", Push(WireExpr(2, "", Mapping.SENDER), Put(b"2"))),
    ("3d 01 02 2f78 01 00", Push(WireExpr(1, "/x"), Put(b""))),
    (
        "1e 22 07 00 06 666f6f2f2a2a",
        d.Declare(d.DeclareSubscriber(7, WireExpr(0, "foo/**"))),
    ),
    (
        "9e 21 08 c4 03 03 21 01",
        d.Declare(
            d.DeclareQueryable(3, WireExpr(3, "", Mapping.SENDER), QueryableInfo(True)),
            qos=QoS.from_byte(8),
        ),
    ),
    (
        "9e 21 08 85 03 5f 02 00 00",
        d.Declare(d.UndeclareQueryable(3, WireExpr()), qos=QoS.from_byte(8)),
    ),
    ("3e 00 1a", d.Declare(d.DeclareFinal(), 0)),
    ("99 02 21 08", Interest(2, qos=QoS.from_byte(8))),
    (
        "f9 02 53 02 21 08",
        Interest(
            2,
            InterestMode.CURRENT_FUTURE,
            InterestOptions.KEYEXPRS | InterestOptions.SUBSCRIBERS,
            WireExpr(2, "", Mapping.SENDER),
            qos=QoS.from_byte(8),
        ),
    ),
    (
        "fc 01 00 09 64656d6f2f6e6f6e65 a1 0d 26 90 4e 23 03",
        Request(
            1,
            WireExpr(0, "demo/none", Mapping.SENDER),
            WireQuery(Consolidation.LATEST),
            qos=QoS.from_byte(0x0D),
            timeout_ms=10000,
        ),
    ),
    ("9a 01 21 0d", ResponseFinal(1, qos=QoS.from_byte(0x0D))),
    ("df 01 21 08 01 00", NetworkOam(1, b"\0", qos=QoS.from_byte(8))),
]


@pytest.mark.parametrize(("text", "message"), KNOWN)
def test_known_bytes(text: str, message: object) -> None:
    data = bytes.fromhex(text)
    assert decode(data) == message
    assert encode(message) == data


def test_the_body_of_a_query_has_no_length_of_its_own() -> None:
    data = bytes.fromhex("1c 01 01 83 43 03 08 70 6c")
    assert decode(data).body.body == QueryBody(b"pl", WireEncoding.parse("text/plain"))


def test_an_unknown_consolidation_counts_as_auto() -> None:
    assert decode(bytes.fromhex("1c 01 01 23 09")).body.consolidation is Consolidation.AUTO


def test_a_budget_of_zero_counts_as_none() -> None:
    assert decode(bytes.fromhex("9c 01 01 25 00 03")).budget is None


BAD = [
    # bytes, reason, message path, field, offset
    ("7d 00 05 6162", Reason.CUT_SHORT, "PUSH", "key suffix", 2),
    ("7d 00 02 c328 01 00", Reason.BAD_UTF8, "PUSH", "key suffix", 2),
    ("1d ffff04 01 00", Reason.TOO_LARGE, "PUSH", "key scope", 1),
    ("1d 01 09", Reason.UNKNOWN_ID, "PUSH", "header", 2),
    ("1d 01 81 12 00", Reason.SHARED_MEMORY, "PUSH.PUT", "shm", 3),
    ("1d 01 81 1e 00", Reason.MANDATORY_EXTENSION, "PUSH.PUT", "extension", 3),
    ("1d 01 81 61 00", Reason.EXTENSION_ENCODING, "PUSH.PUT", "extension", 3),
    ("1d 01 21 05 00", Reason.BAD_ZENOH_ID, "PUSH.PUT", "timestamp", 4),
    ("1d 01 21 05 01 00 00", Reason.BAD_ZENOH_ID, "PUSH.PUT", "timestamp", 4),
    ("1d 01 81 41 05 00 a1 06 02 00 00", Reason.TRAILING_BYTES, "PUSH.PUT", "source_info", 9),
    ("9c 01 01 34 03 03", Reason.BAD_VALUE, "REQUEST", "target", 4),
    ("9d 01 47 02 00 00 01 00", Reason.BAD_VALUE, "PUSH", "ts_stack", 4),
    ("1c ffffffff1f 01 03", Reason.TOO_LARGE, "REQUEST", "request id", 1),
    ("1e 08 00", Reason.UNKNOWN_ID, "DECLARE", "header", 1),
    ("7f 01 00", Reason.EXTENSION_ENCODING, "OAM", "body", 2),
    ("1d 01 01 ffffffff1f", Reason.TOO_LARGE, "PUSH.PUT", "payload", 3),
]


def assert_says(error: DecodeError, reason: Reason, message: str, field: str, offset: int) -> None:
    """The parts of an error, and the sentence that people read."""
    said = (error.reason, error.message, error.field, error.offset)
    assert said == (reason, message, field, offset)
    where = f"{message}: {field}" if message else field
    assert str(error).startswith(f"{where} at byte {offset}: ")


@pytest.mark.parametrize(("text", "reason", "message", "field", "offset"), BAD)
def test_errors_name_message_field_and_offset(
    text: str, reason: Reason, message: str, field: str, offset: int
) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(bytes.fromhex(text))
    assert_says(caught.value, reason, message, field, offset)


BAD_TRANSPORT = [
    ("08", Reason.UNKNOWN_ID, "", "header", 0),
    ("01 09 33 a4a3a2a1", Reason.BAD_VALUE, "INIT", "whatami", 2),
    ("01 09 02 00", Reason.BAD_ZENOH_ID, "INIT", "zid", 2),
    ("25 01 7d 00 05 61", Reason.CUT_SHORT, "FRAME.PUSH", "key suffix", 4),
    ("a5 01 35 00", Reason.MANDATORY_EXTENSION, "FRAME", "extension", 2),
    ("81 09 02 a1 48 00", Reason.BAD_VALUE, "INIT", "region_name", 6),
    ("25 ffffffff1f", Reason.TOO_LARGE, "FRAME", "sn", 1),
]


@pytest.mark.parametrize(("text", "reason", "message", "field", "offset"), BAD_TRANSPORT)
def test_transport_errors_name_message_field_and_offset(
    text: str, reason: Reason, message: str, field: str, offset: int
) -> None:
    with pytest.raises(DecodeError) as caught:
        read_batch(bytes.fromhex(text))
    assert_says(caught.value, reason, message, field, offset)


UNWRITABLE: list[tuple[object, str]] = [
    (Push(WireExpr(70000)), "key scope"),
    (Push(WireExpr(-1)), "key scope"),
    (Push(WireExpr(0, "\ud800")), "key suffix"),
    (Push(WireExpr(0, "x" * 70000)), "key suffix"),
    (Push(KEY, node_id=70000), "node_id"),
    (Push(KEY, Put(b"", shm=True)), "payload"),
    (Push(KEY, Put((Slice(0, b""),))), "payload"),
    (Push(KEY, ts_stack=WireTimestampStack(0)), "ts_stack"),
    (Push(KEY, extensions=(Unknown(0x09, None),) * 33), "extensions"),
    (Push(KEY, WireQuery()), "body"),  # type: ignore[arg-type]
    (Push(KEY, extensions=(Unknown(0x2E, None),)), "extension"),
    (Push(KEY, extensions=(Unknown(0x4E, 5),)), "extension"),
    (Push(KEY, extensions=(Unknown(0x0E, b"abc"),)), "extension"),
    (Push(KEY, extensions=(Unknown(0x1E, None),)), "extension"),
    (Push(KEY, extensions=(Unknown(0x6E, 1),)), "extension"),
    (Request(1, KEY, target=7), "target"),  # type: ignore[arg-type]
    (Request(2**32, KEY), "request id"),
    (Request(1, KEY, budget=0), "budget"),
    (Response(1, KEY, responder=WireEntityId(ZID, -1)), "responder"),
    (d.Declare(d.DeclareQueryable(1, KEY, QueryableInfo(False, 70000))), "info"),
    (d.Declare(d.DeclareKeyExpr(70000, KEY)), "expr id"),
    (d.Declare(d.UndeclareToken(1, WireExpr(0, "\ud800"))), "key"),
    (NetworkOam(70000), "oam id"),
]


@pytest.mark.parametrize(("message", "field"), UNWRITABLE)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(message: object, field: str) -> None:
    w = ByteWriter(bytearray(b"before"))
    with pytest.raises(EncodeError) as caught:
        NETWORK.write(w, message)
    assert caught.value.field == field
    assert bytes(w.out) == b"before"


UNWRITABLE_TRANSPORT: list[tuple[Any, str]] = [
    (Close(reason=256), "reason"),
    (Open(-1, 0), "lease"),
    (Open(1000, 2**32), "initial sn"),
    (Init(ZID, WireWhatAmI.PEER | WireWhatAmI.CLIENT), "whatami"),
    (Init(ZID, WireWhatAmI.PEER, batch_size=70000), "batch size"),
    (Init(ZID, WireWhatAmI.PEER, resolution=16), "resolution"),
    (Init(ZID, WireWhatAmI.PEER, region_name="x" * 33), "region_name"),
    (Init(ZID, WireWhatAmI.PEER, region_name="a\ud800b"), "region_name"),
    (Frame(1, priority=9), "priority"),  # type: ignore[arg-type]
    (Join(ZID, WireWhatAmI.PEER, 1000, lane_sns=((1, 1),)), "lane_sns"),
]


@pytest.mark.parametrize(("message", "field"), UNWRITABLE_TRANSPORT)
def test_transport_messages_out_of_range_are_refused(message: Any, field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        write_batch([message])
    assert caught.value.field == field


def test_nothing_can_follow_a_fragment_in_its_batch() -> None:
    assert write_batch([KeepAlive(), Fragment(1, b"abc")])
    with pytest.raises(EncodeError, match="nothing can follow"):
        write_batch([Fragment(1, b"abc"), KeepAlive()])


def test_scouting_out_of_range_is_refused() -> None:
    with pytest.raises(EncodeError, match="what"):
        write_scouting(WireScout(WireWhatAmI(8)))


def test_link_state_weights_must_match_links() -> None:
    with pytest.raises(EncodeError, match="weights"):
        write_link_states([LinkState(1, 1, links=(2, 3), weights=(100,))])
