"""Record batches to the wire: what the object codec reads back is what the columns said."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies as s
from zenlake.columnar.read import SampleBatcher, record_batches
from zenlake.columnar.schema import SAMPLE
from zenlake.columnar.write import push_columns, split_lanes
from zenlake.errors import EncodeError, InvalidKeyExpr
from zenlake.keytable import KeyTable
from zenlake.wire.batch import TransportMessage, read_batch
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.emit import emit
from zenlake.wire.enums import Mapping, WirePriority
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame, LaneSettings
from zenlake.wire.framing import Framing, split
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.wireexpr import WireExpr

pytestmark = pytest.mark.kernel


def sent(columns: Any, lane: LaneSettings, first_sn: int = 0, **options: Any) -> bytes:
    return b"".join(bytes(part.data) for part in emit(columns, lane, first_sn, **options))


def messages(data: bytes, lane: LaneSettings) -> list[TransportMessage]:
    found: list[TransportMessage] = []
    for start, end in split(data, Framing.STREAM):
        assert end - start <= lane.max_batch
        found.extend(read_batch(data[start:end]))
    return found


def pushes(data: bytes, lane: LaneSettings = LaneSettings()) -> list[Push]:  # noqa: B008 (immutable)
    """Every PUSH in order, fragments joined."""
    found: list[Any] = []
    pieces: list[bytes] = []
    for message in messages(data, lane):
        if isinstance(message, Frame):
            found.extend(message.messages)
        elif isinstance(message, Fragment):
            assert message.first == (not pieces)
            pieces.append(message.payload)
            if not message.more:
                found.append(NETWORK.read(ByteReader(b"".join(pieces))))
                pieces = []
    assert not pieces
    return found


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, SAMPLE)


sample_keys = st.sampled_from(["a", "a/b", "robot/1/pose", "é/ü", "x" * 200])
optional_id = st.none() | s.zids.map(str)
sample_rows = st.fixed_dictionaries(
    {
        "key": sample_keys,
        "kind": st.sampled_from(["put", "delete"]),
        "payload": s.some_bytes,
        "encoding": st.sampled_from(
            ["zenoh/bytes", "application/json", "my/own", "unknown(999)", "video/vp9"]
        ),
        "schema": st.none() | st.sampled_from(["", "s", "a.b.C"]),
        "timestamp": st.none() | st.fixed_dictionaries({"time": s.u64, "id": s.zids.map(str)}),
        "source": st.none()
        | st.fixed_dictionaries({"id": s.zids.map(str), "entity": s.u32, "sn": s.u32}),
        "attachment": st.none() | s.some_bytes,
        "priority": st.integers(0, 7),
        "congestion_control": st.sampled_from(["drop", "block", "block_first"]),
        "express": st.booleans(),
        "reliable": st.booleans(),
    }
)


def normalised(row: dict[str, Any]) -> dict[str, Any]:
    """Drop the distinctions that the wire has not: a delete has neither payload nor encoding."""
    row = row | {"received_at": None}
    if row["kind"] == "delete":
        row |= {"payload": None, "encoding": "zenoh/bytes", "schema": None}
    return row


@given(st.lists(sample_rows, max_size=8))
def test_columns_to_the_wire_and_back(rows: list[dict[str, Any]]) -> None:
    found: list[dict[str, Any]] = []
    want: list[dict[str, Any]] = []
    for priority, reliable, part in split_lanes(batch_of(rows)):
        lane = LaneSettings(reliable, priority, batch_size=120)
        data = sent(push_columns(part), lane)
        want.extend(normalised(row) for row in part.to_pylist())
        joined = [Frame(0, reliable, messages=[push]) for push in pushes(data, lane)]
        again = pa.Table.from_batches(
            record_batches(_stream(joined), KeyTable(), batcher=SampleBatcher()), SAMPLE
        )
        found.extend(again.to_pylist())
    assert found == want
    assert len(found) == len(rows)


def _stream(frames: list[Frame]) -> bytes:
    out = bytearray()
    for frame in frames:
        w = ByteWriter()
        for message in frame.messages:
            NETWORK.write(w, message)
        batch = (b"\x25\x00" if frame.reliable else b"\x05\x00") + bytes(w.out)
        out += len(batch).to_bytes(2, "little") + batch
    return bytes(out)


@given(st.lists(sample_rows, min_size=1, max_size=8))
def test_each_message_is_written_as_the_object_codec_writes_it(rows: list[dict[str, Any]]) -> None:
    lane = LaneSettings()
    data = sent(push_columns(batch_of(rows)), lane)
    (batch,) = [data[start:end] for start, end in split(data, Framing.STREAM)]
    (frame,) = read_batch(batch)
    assert isinstance(frame, Frame)
    w = ByteWriter(bytearray(b"\x25\x00"))
    for push in frame.messages:
        NETWORK.write(w, push)
    assert bytes(w.out) == batch


def numbered(count: int, size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"key": ["k"] * count, "payload": [bytes([n % 256]) * size for n in range(count)]}
    )


@pytest.mark.parametrize("batch_size", [64, 100, 1000, 65535])
@pytest.mark.parametrize("size", [0, 1, 30, 56, 57, 58, 59, 60, 200, 5000])
def test_batches_keep_to_the_size(batch_size: int, size: int) -> None:
    """Around the size at which a message stops fitting a batch, and far beyond."""
    lane = LaneSettings(batch_size=batch_size, sn_mask=0x7F)
    rows = numbered(20, size)
    data = sent(push_columns(rows), lane, first_sn=120, chunk_bytes=300)
    want = [Push(WireExpr(0, "k", Mapping.SENDER), Put(p)) for p in rows["payload"].to_pylist()]
    assert pushes(data, lane) == want


def test_sequence_numbers_wrap_and_skip_one_after_fragments() -> None:
    lane = LaneSettings(batch_size=64, sn_mask=0x7F)
    payloads = [b"a", b"b" * 200, b"c"]
    rows = pa.RecordBatch.from_pydict({"key": ["k"] * 3, "payload": payloads})
    parts = [
        (bytes(part.data), part.rows, part.next_sn)
        for part in emit(push_columns(rows), lane, first_sn=126)
    ]
    assert sum(count for _, count, _ in parts) == 3
    sns = [message.sn for message in messages(b"".join(d for d, _, _ in parts), lane)]  # type: ignore[union-attr]
    pieces = len(sns) - 2
    assert sns[: pieces + 1] == [(126 + n) % 128 for n in range(pieces + 1)]
    assert sns[-1] == (sns[-2] + 2) % 128
    assert parts[-1][2] == (sns[-1] + 1) % 128


def test_the_lane_is_named_only_where_lanes_were_negotiated() -> None:
    rows = push_columns(numbered(1, 1))
    for priority, header in (
        (None, "2500"),
        (WirePriority.DATA, "2500"),
        (WirePriority.CONTROL, "a5003100"),
    ):
        assert sent(rows, LaneSettings(priority=priority))[2:].hex().startswith(header)
    assert sent(rows, LaneSettings(reliable=False))[2] == 0x05


def test_keys_may_be_shortened_to_declared_ids() -> None:
    rows = pa.RecordBatch.from_pydict({"key": ["a/b", "c"], "payload": [b"1", b"2"]})
    ids = {"a/b": WireExpr(3, "", Mapping.SENDER), "c": WireExpr(0, "c", Mapping.SENDER)}
    data = sent(push_columns(rows, ids.__getitem__), LaneSettings())
    assert [push.key for push in pushes(data)] == list(ids.values())


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary(), pa.string_view()]
)
def test_payloads_of_any_arrow_text_or_bytes(kind: pa.DataType) -> None:
    payload = pa.array(["x", "yy", None, "zzz"]).cast(kind)
    rows = pa.RecordBatch.from_arrays([pa.array(["k"] * 4), payload], ["key", "payload"])
    got = [push.body.payload for push in pushes(sent(push_columns(rows.slice(1)), LaneSettings()))]  # type: ignore[union-attr]
    assert got == [b"yy", b"", b"zzz"]


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"payload": [b""]}, "column 'key'", "missing"),
    ({"key": pa.array([None], pa.string())}, "column 'key'", "null"),
    ({"key": ["k"], "kind": ["patch"]}, "column 'kind'", "'patch'"),
    ({"key": ["k"], "priority": [8]}, "column 'priority'", "outside 0 to 7"),
    ({"key": ["k"], "congestion_control": ["hope"]}, "column 'congestion_control'", "'hope'"),
    ({"key": ["k"], "payload": [1.5]}, "column 'payload'", "does not read as"),
    ({"key": ["k"], "schema": ["x" * 300]}, "column 'encoding'", "255"),
    ({"key": ["k"], "encoding": ["unknown(70000)"]}, "column 'encoding'", "70000"),
    ({"key": ["k"], "timestamp": [{"time": 1, "id": "XY"}]}, "column 'timestamp'", "XY"),
    ({"key": ["k"], "timestamp": [{"time": 1, "id": None}]}, "column 'timestamp'", "null id"),
    ({"key": ["k"], "timestamp": [5]}, "column 'timestamp'", "not a struct"),
    ({"key": ["k"], "source": [{"id": "a"}]}, "column 'source'", "'entity'"),
]


@pytest.mark.parametrize(("columns", "field", "problem"), BAD)
def test_bad_columns_are_named(columns: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(EncodeError) as caught:
        push_columns(pa.RecordBatch.from_pydict(columns))
    assert caught.value.field == field
    assert problem in str(caught.value)


def test_bad_keys_are_refused() -> None:
    with pytest.raises(InvalidKeyExpr, match="a//b"):
        push_columns(pa.RecordBatch.from_pydict({"key": ["a", "a//b"], "payload": [b"", b""]}))


def test_a_batch_size_that_holds_no_fragment_is_refused() -> None:
    with pytest.raises(EncodeError, match="batch size"):
        sent(push_columns(numbered(1, 100)), LaneSettings(batch_size=5))


BROKEN: list[tuple[str, Any]] = [
    ("key", np.array([1], np.int32)),
    ("key", np.array([-1], np.int32)),
    ("key", np.array([], np.int32)),
    ("encoding", np.array([7], np.int32)),
    ("clock", np.array([0], np.int32)),
    ("source", np.array([0], np.int32)),
    ("time", np.array([], np.uint64)),
    ("qos", np.array([], np.uint8)),
    ("key_flags", np.array([], np.uint8)),
    ("payload_offsets", np.array([0, 99], np.int64)),
    ("payload_offsets", np.array([2, 0], np.int64)),
    ("payload_offsets", np.array([-1, 0], np.int64)),
    ("payload_offsets", np.array([0], np.int64)),
    ("attachment_offsets", np.array([0, 1], np.int64)),
]


@pytest.mark.parametrize(("field", "value"), BROKEN)
def test_columns_that_point_outside_are_refused(field: str, value: Any) -> None:
    columns = push_columns(numbered(1, 3))._replace(**{field: value})
    with pytest.raises(EncodeError):
        sent(columns, LaneSettings())


@pytest.mark.parametrize("batch_size", [-1, 0, 2, 65_536])
def test_batch_sizes_that_no_prefix_can_say_are_refused(batch_size: int) -> None:
    with pytest.raises(EncodeError, match="batch size"):
        LaneSettings(batch_size=batch_size)


def test_a_first_sequence_number_beyond_the_mask_is_refused() -> None:
    with pytest.raises(EncodeError, match="sequence number"):
        sent(push_columns(numbered(1, 1)), LaneSettings(sn_mask=0x7F), first_sn=0x80)


def test_bytes_under_a_null_are_not_sent() -> None:
    bits, offsets = pa.py_buffer(b"\2"), pa.py_buffer(np.array([0, 3, 6], np.int32))
    payload = pa.Array.from_buffers(pa.binary(), 2, [bits, offsets, pa.py_buffer(b"secret")])
    rows = pa.RecordBatch.from_arrays([pa.array(["k", "k"]), payload], ["key", "payload"])
    got = [push.body.payload for push in pushes(sent(push_columns(rows), LaneSettings()))]  # type: ignore[union-attr]
    assert got == [b"", b"ret"]


def test_what_a_dictionary_holds_but_no_row_names_does_not_matter() -> None:
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array(["k", "//", None]))
    rows = pa.RecordBatch.from_arrays([keys], ["key"])
    assert [push.key.suffix for push in pushes(sent(push_columns(rows), LaneSettings()))] == [
        "k",
        "k",
    ]


def test_a_column_that_is_there_twice_is_refused() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(["k"])] * 2, ["key", "key"])
    with pytest.raises(EncodeError, match="more than once"):
        push_columns(rows)


@pytest.mark.parametrize("text", ["unknown(abc)", "unknown(5)", "unknown(999999)"])
def test_encodings_that_only_look_like_numbers_stay_texts(text: str) -> None:
    rows = pa.RecordBatch.from_pydict({"key": ["k"], "encoding": [text]})
    (push,) = pushes(sent(push_columns(rows), LaneSettings()))
    assert str(push.body.encoding) == text  # type: ignore[union-attr]
