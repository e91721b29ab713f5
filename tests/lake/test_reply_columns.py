"""Rows of a history as replies: the column encoder writes what the object codec writes."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import strategies as s
from zenlake.columnar.write import push_columns
from zenlake.errors import EncodeError
from zenlake.lake.serve.history import ROWS
from zenlake.lake.serve.server import as_samples
from zenlake.wire.batch import read_batch
from zenlake.wire.cursor import ByteReader, encode
from zenlake.wire.delete import Del
from zenlake.wire.emit import Emitter, emit, response_envelope
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.entity import WireEntityId
from zenlake.wire.enums import Mapping, WirePriority
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame, LaneSettings
from zenlake.wire.framing import Framing, split
from zenlake.wire.network import NETWORK
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.reply import WireReply
from zenlake.wire.response import Response
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.kernel

Row = dict[str, Any]
REPLIER = WireEntityId(WireZenohId.parse("5e"), 7)
SMALL = LaneSettings(True, WirePriority.DATA, batch_size=120)
"A lane on which many rows fit no batch."

rows = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["a", "a/b", "robot/1/pose", "é/ü", "k/**", "x" * 200]),
        "kind": st.sampled_from(["put", "put", "delete"]),
        "payload": st.none() | s.some_bytes | st.integers(0, 400).map(bytes),
        "encoding": st.sampled_from(
            ["zenoh/bytes", "application/json", "my/own", "video/vp9", "text/plain"]
        ),
        "schema": st.none() | st.sampled_from(["s", "a.b.C", "ü"]),
        "timestamp": st.none()
        | st.fixed_dictionaries({"ntp64": st.integers(-(2**63), 2**63 - 1), "id": s.zids.map(str)}),
        "source": st.none()
        | st.fixed_dictionaries({"id": s.zids.map(str), "entity": s.u16, "sn": s.u16}),
        "attachment": st.none() | s.some_bytes,
    }
)
heads = st.builds(
    Response,
    s.u32,
    st.just(WireExpr()),
    qos=s.qos,
    responder=s.entities,
    ts_stack=st.none() | s.ts_stacks,
)


def objects(found: list[Row], head: Response) -> list[Response]:
    """The replies as objects, made of one row at a time."""
    return [
        Response(
            head.request_id,
            WireExpr(0, row["key"], Mapping.SENDER),
            WireReply(_body(row)),
            head.qos,
            None,
            head.responder,
            head.ts_stack,
        )
        for row in found
    ]


def _body(row: Row) -> Put | Del:
    stamp, kind = row["timestamp"], row["encoding"]
    when = stamp and WireTimestamp(stamp["ntp64"] % 2**64, WireZenohId.parse(stamp["id"]))
    if row["kind"] == "delete":
        return Del(when, None, row["attachment"])
    text = kind if row["schema"] is None else f"{kind};{row['schema']}"
    return Put(row["payload"] or b"", when, WireEncoding.parse(text), None, row["attachment"])


def columns(found: list[Row]) -> Any:
    return push_columns(as_samples(pa.RecordBatch.from_pylist(found, ROWS)))


def received(data: bytes, lane: LaneSettings) -> list[Any]:
    """The messages of framed batches, fragments joined."""
    found: list[Any] = []
    pieces: list[bytes] = []
    for start, end in split(data, Framing.STREAM):
        assert end - start <= lane.max_batch
        for message in read_batch(data[start:end]):
            if isinstance(message, Frame):
                assert not pieces
                found += message.messages
            else:
                assert isinstance(message, Fragment)
                pieces.append(message.payload)
                if not message.more:
                    found.append(NETWORK.read(ByteReader(b"".join(pieces))))
                    pieces = []
    assert not pieces
    return found


PLAIN: Row = {
    "key": "a",
    "kind": "put",
    "payload": b"x",
    "encoding": "zenoh/bytes",
    "schema": None,
    "timestamp": None,
    "source": None,
    "attachment": None,
}
HEAD = Response(9, WireExpr(), qos=QoS(WirePriority.DATA), responder=REPLIER)


@given(st.lists(rows, min_size=1, max_size=8), heads)
@example([PLAIN | {"payload": bytes(1 << 20), "attachment": bytes(70_000)}, PLAIN], HEAD)
@example([PLAIN | {"payload": None}, PLAIN | {"payload": b""}], HEAD)
def test_rows_are_written_as_the_object_codec_writes_them(found: list[Row], head: Response) -> None:
    wanted = objects(found, head)
    envelope = response_envelope(head)
    bare = Emitter(columns(found), None, envelope)
    assert list(bare.messages()) == [encode(NETWORK.write, message) for message in wanted]
    together, data = Emitter(columns(found), None, envelope), b""
    while not together.done:
        data += bytes(together.next(chunk_bytes=1000).data)
    assert data == b"".join(encode(NETWORK.write, message) for message in wanted)
    for lane in (SMALL, LaneSettings()):
        framed = b"".join(
            bytes(part.data)
            for part in emit(columns(found), lane, 5, chunk_bytes=300, envelope=envelope)
        )
        assert received(framed, lane) == wanted


@given(st.lists(rows, min_size=1, max_size=8), st.integers(1, 9))
def test_not_more_rows_are_written_than_asked_for(found: list[Row], most: int) -> None:
    emitter = Emitter(columns(found), SMALL, response_envelope(HEAD))
    wanted, sn = objects(found, HEAD), 0
    while not emitter.done:
        first = emitter.row
        data, count, sn = emitter.next(sn, 1 << 16, most)
        assert 0 < count <= most
        assert received(bytes(data), SMALL) == wanted[first : first + count]


def test_a_slice_of_rows_is_written_alone() -> None:
    found = [PLAIN | {"key": f"k/{number}", "payload": b"%d" % number} for number in range(9)]
    batch = pa.RecordBatch.from_pylist(found, ROWS).slice(3, 4)
    emitter = Emitter(push_columns(as_samples(batch)), None, response_envelope(HEAD))
    wanted = objects(found[3:7], HEAD)
    assert list(emitter.messages()) == [encode(NETWORK.write, message) for message in wanted]


def test_a_request_id_beyond_32_bits_is_refused() -> None:
    with pytest.raises(EncodeError, match="request id"):
        response_envelope(Response(1 << 32, WireExpr()))
