"""Rows to record batches: the same samples as the object codec gives."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies as s
from tests.support.plain_batches import plain_batches
from tests.support.sample_rows import sample_row
from zenlake.columnar.read import SampleBatcher, record_batches
from zenlake.columnar.schema import SAMPLE
from zenlake.errors import DecodeError
from zenlake.keyexpr import is_canonical
from zenlake.keytable import KeyTable
from zenlake.wire.batch import read_batch, write_batch
from zenlake.wire.declare import Declare, DeclareKeyExpr
from zenlake.wire.delete import Del
from zenlake.wire.encoding import CUSTOM_ID, WireEncoding
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.enums import Mapping, WireCongestionControl, WirePriority
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing, to_stream
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.reply import WireReply
from zenlake.wire.response import Response
from zenlake.wire.scan import scan
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

pytestmark = [pytest.mark.slow, pytest.mark.kernel]

KEYS = KeyTable()
KEYS.declare(Mapping.SENDER, 1, "sender/one")
KEYS.declare(Mapping.RECEIVER, 1, "receiver/one")
KEYS.declare(Mapping.SENDER, 2, "sender")

ZID = WireZenohId.parse("a1a2")


def table(data: bytes, keys: KeyTable = KEYS, **options: Any) -> pa.Table:
    return pa.Table.from_batches(record_batches(data, keys, **options), SAMPLE)


def stream(*frames: Frame) -> bytes:
    return to_stream([write_batch([frame]) for frame in frames], Framing.STREAM)


def sample(push: Push, frame: Frame, keys: KeyTable) -> dict[str, Any]:
    """Return the row that a reader must produce for a message."""
    return sample_row(push, keys.text(push.key), reliable=frame.reliable)


def samples(frames: list[Frame], keys: KeyTable) -> list[dict[str, Any]]:
    return [
        sample(message, frame, keys)
        for frame in frames
        for message in frame.messages
        if isinstance(message, Push)
    ]


@given(st.lists(s.frames, max_size=3))
def test_columns_equal_objects(frames: list[Frame]) -> None:
    found = table(stream(*frames))
    found.validate(full=True)
    assert found.schema == SAMPLE
    good = [row for row in samples(frames, KEYS) if is_canonical(row["key"] or "")]
    assert found.to_pylist() == good


def test_columns_equal_objects_on_everything_recorded() -> None:
    rows = 0
    for batch in plain_batches():
        if batch.scouting or batch.low_latency or batch.name.startswith("close_"):
            continue
        keys = KeyTable()
        frames = [m for m in read_batch(batch.data) if isinstance(m, Frame)]
        for frame in frames:  # ids that other batches declared: any text will do
            for message in frame.messages:
                if isinstance(message, Declare) and isinstance(message.body, DeclareKeyExpr):
                    continue
                if isinstance(message, Push) and message.key.scope:
                    keys.declare(message.key.mapping, message.key.scope, "declared")
        found = table(batch.data, keys, framing=Framing.DATAGRAM)
        want = samples(frames, keys)
        assert found.to_pylist() == want, batch.name
        rows += len(want)
    assert rows > 500


def test_a_small_batcher_gives_the_same_rows() -> None:
    pushes: list[Any] = [
        Push(
            WireExpr(0, f"k/{n % 7}"),
            Put(bytes([n % 256]) * (n % 50), attachment=b"a" * (n % 5) if n % 3 else None),
        )
        for n in range(2000)
    ]
    data = stream(Frame(1, messages=pushes[:1000]), Frame(2, messages=pushes[1000:]))
    want = table(data).to_pylist()
    for rows, size in ((1, 10), (7, 100), (1000, 1 << 20), (65536, 64)):
        batcher = SampleBatcher(rows, size)
        batches = list(record_batches(data, KEYS, batcher=batcher))
        assert all(0 < batch.num_rows <= rows for batch in batches)
        assert all(
            batch.num_rows == 1 or sum(map(len, batch.column("payload").to_pylist())) <= size
            for batch in batches
        )
        assert pa.Table.from_batches(batches).to_pylist() == want


def test_a_payload_larger_than_a_batch_may_be_is_taken_all_the_same() -> None:
    data = stream(Frame(1, messages=[Push(WireExpr(0, "k"), Put(bytes(50_000)))]))
    (batch,) = record_batches(data, KEYS, batcher=SampleBatcher(10, 100))
    assert batch.column("payload")[0].as_py() == bytes(50_000)


def test_what_repeats_is_said_once() -> None:
    push = Push(
        WireExpr(2, "/one", Mapping.SENDER),
        Put(b"x", WireTimestamp(1 << 32, ZID), WireEncoding.parse("text/json;s")),
    )
    same_key = Push(WireExpr(1, "", Mapping.SENDER), Put(b"y"))
    data = stream(Frame(1, messages=[push, same_key] * 100))
    (batch,) = record_batches(data, KEYS)
    assert batch.column("key").dictionary.to_pylist() == ["sender/one"]
    assert batch.column("encoding").dictionary.to_pylist() == ["text/json", "zenoh/bytes"]
    assert batch.column("schema").dictionary.to_pylist() == ["s"]
    assert batch.column("timestamp").field("id").dictionary.to_pylist() == ["a1a2"]


def test_many_distinct_keys() -> None:
    pushes: list[Any] = [Push(WireExpr(0, f"key/{n}")) for n in range(3000)]
    found = table(stream(Frame(1, messages=pushes)))
    assert found["key"].to_pylist() == [f"key/{n}" for n in range(3000)]


def test_unknown_ids_are_left_out_and_counted() -> None:
    pushes: list[Any] = [Push(WireExpr(0, "a")), Push(WireExpr(9, "/b")), Push(WireExpr(1, "/c"))]
    batcher = SampleBatcher()
    (batch,) = record_batches(stream(Frame(1, messages=pushes)), KEYS, batcher=batcher)
    assert batch.column("key").to_pylist() == ["a", "receiver/one/c"]
    assert batcher.unresolved == 1


def test_an_id_that_changes_its_meaning_within_a_batch() -> None:
    keys = KeyTable()
    data = stream(Frame(1, messages=[Push(WireExpr(5, "/x", Mapping.SENDER))]))
    rows = scan(data).rows
    batcher = SampleBatcher()
    keys.declare(Mapping.SENDER, 5, "old")
    batcher.append(rows, data, keys)
    keys.undeclare(Mapping.SENDER, 5)
    batcher.append(rows, data, keys)
    keys.declare(Mapping.SENDER, 5, "new")
    batcher.append(rows, data, keys)
    keys.undeclare(Mapping.SENDER, 5)
    keys.declare(Mapping.SENDER, 5, "newer")
    batcher.append(rows, data, keys)
    assert batcher.finish().column("key").to_pylist() == ["old/x", "new/x", "newer/x"]
    assert batcher.unresolved == 1


def test_tables_of_several_links_in_one_batch() -> None:
    data = stream(Frame(1, messages=[Push(WireExpr(1, "", Mapping.SENDER))]))
    rows = scan(data).rows
    batcher = SampleBatcher()
    for name in ("a", "b"):
        keys = KeyTable()
        keys.declare(Mapping.SENDER, 1, name)
        batcher.append(rows, data, keys)
    assert batcher.finish().column("key").to_pylist() == ["a", "b"]


def test_replies_are_no_samples() -> None:
    response = Response(1, WireExpr(0, "k"), WireReply(Put(b"v")))
    deleted = Response(1, WireExpr(0, "k"), WireReply(Del()))
    data = stream(Frame(1, messages=[response, deleted]))
    assert table(data).num_rows == 0


def test_received_at() -> None:
    frames = [Frame(n, messages=[Push(WireExpr(0, "k"))] * 2) for n in range(3)]
    data = stream(*frames)
    when = datetime(2024, 7, 1, 12, 0, 0, 123456, UTC)
    nanos = int(when.timestamp()) * 10**9 + 123_456_789
    assert table(data, received_at=nanos)["received_at"].to_pylist() == [when] * 6
    batcher = SampleBatcher()
    each = np.array([nanos, nanos + 10**9, nanos + 2 * 10**9])
    batcher.append(scan(data).rows, data, KEYS, each)
    seconds = [t.second for t in batcher.finish().column("received_at").to_pylist()]
    assert seconds == [0, 0, 1, 1, 2, 2]


def test_qos_and_source() -> None:
    push = Push(
        WireExpr(0, "k"),
        Put(b"", source_info=WireSourceInfo(WireEntityId(ZID, 7), 9)),
        QoS(WirePriority.REAL_TIME, WireCongestionControl.BLOCK, express=True),
    )
    (row,) = table(stream(Frame(1, reliable=False, messages=[push]))).to_pylist()
    assert (row["priority"], row["congestion_control"], row["express"]) == (1, "block", True)
    assert row["source"] == {"id": "a1a2", "entity": 7, "sn": 9}
    assert row["reliable"] is False


def test_bad_bytes_raise_after_what_came_before() -> None:
    data = stream(Frame(1, messages=[Push(WireExpr(0, "k"))])) + b"\x01\x00\x08"
    batches = record_batches(data, KEYS)
    assert next(batches).num_rows == 1
    with pytest.raises(DecodeError) as caught:
        next(batches)
    assert caught.value.offset == len(data) - 1


def test_nothing_gives_an_empty_batch() -> None:
    batch = SampleBatcher().finish()
    assert (batch.num_rows, batch.schema) == (0, SAMPLE)
    batch.validate(full=True)


def test_rows_of_another_buffer_are_refused() -> None:
    data = stream(Frame(1, messages=[Push(WireExpr(0, "k"), Put(bytes(100)))]))
    with pytest.raises(ValueError, match="another, longer buffer"):
        SampleBatcher().append(scan(data).rows, data[:-1], KEYS)


def test_many_long_keys_end_a_batch() -> None:
    """Texts count too: a batch does not grow without bound by keys alone."""
    keys = [f"{n}/" + "x" * 10_000 for n in range(30)]
    data = stream(*(Frame(n, messages=[Push(WireExpr(0, key))]) for n, key in enumerate(keys)))
    batches = list(record_batches(data, KEYS, batcher=SampleBatcher(1000, 50_000)))
    assert len(batches) > 1
    assert [key for batch in batches for key in batch["key"].to_pylist()] == keys


@pytest.mark.parametrize(("rows", "size"), [(0, 1), (1, 0), (2**31, 1), (1, 2**31)])
def test_limits_that_arrow_cannot_hold_are_refused(rows: int, size: int) -> None:
    with pytest.raises(ValueError, match="a batch holds"):
        SampleBatcher(rows, size)


def test_a_long_prefix_does_not_make_a_batch_of_gigabytes() -> None:
    """A declared id of 64 KiB and many short suffixes: 20 KB of input, 130 MB of keys in full."""
    keys = KeyTable()
    keys.declare(Mapping.SENDER, 1, "p" * 65_000)
    suffixes = [f"/{n}" for n in range(2000)]
    pushes: list[Any] = [Push(WireExpr(1, suffix, Mapping.SENDER)) for suffix in suffixes]
    batcher = SampleBatcher(max_bytes=1 << 20)
    found = 0
    for batch in record_batches(stream(Frame(1, messages=pushes)), keys, batcher=batcher):
        texts = batch["key"].dictionary
        assert sum(len(text) for text in texts.to_pylist()) < 10 << 20
        assert [text[65_000:] for text in batch["key"].to_pylist()] == suffixes[
            found : found + batch.num_rows
        ]
        found += batch.num_rows
    assert found == 2000


def test_a_sample_whose_texts_fill_a_batch_is_taken_all_the_same() -> None:
    key = "a" * 65_535
    put = Put(b"", encoding=WireEncoding(CUSTOM_ID, b"s" * 255))
    data = write_batch([Frame(1, messages=[Push(WireExpr(0, key), put)])])
    (batch,) = record_batches(
        data, KeyTable(), Framing.DATAGRAM, batcher=SampleBatcher(max_bytes=1000)
    )
    assert batch["key"].to_pylist() == [key]
    assert batch["encoding"].to_pylist() == ["s" * 255]


def test_bad_keys_are_left_out_and_counted() -> None:
    keys = ["a", "//", "", "a/*", "a*", "a/**/*", "a#b", "b"]
    pushes: list[Any] = [Push(WireExpr(0, key)) for key in keys]
    batcher = SampleBatcher()
    (batch,) = record_batches(stream(Frame(1, messages=pushes)), KeyTable(), batcher=batcher)
    assert batch["key"].to_pylist() == ["a", "a/*", "b"]
    assert (batcher.invalid, batcher.unresolved) == (5, 0)


def test_times_must_be_one_or_one_for_each_batch() -> None:
    data = stream(*(Frame(n, messages=[Push(WireExpr(0, "k"))]) for n in range(3)))
    for times in (np.array([], np.int64), np.array([1, 2])):
        with pytest.raises(ValueError, match="not one for each batch"):
            SampleBatcher().append(scan(data).rows, data, KEYS, times)
