"""SampleBatcher as recordings use it: chosen columns, plain texts, chosen keys, offsets."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import strategies as s
from zenlake.columnar import conform as columns
from zenlake.columnar import read
from zenlake.columnar.conform import conform, plain_schema, split_texts
from zenlake.columnar.read import SampleBatcher, record_batches
from zenlake.columnar.schema import SAMPLE
from zenlake.errors import ZError
from zenlake.keyexpr import intersects
from zenlake.keytable import KeyTable
from zenlake.wire.batch import write_batch
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.enums import Mapping
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.scan import scan
from zenlake.wire.wireexpr import WireExpr

pytestmark = pytest.mark.kernel

KEYS = KeyTable()
KEYS.declare(Mapping.SENDER, 1, "sender/one")
keys = st.sampled_from(
    [WireExpr(0, "a"), WireExpr(0, "a/b"), WireExpr(0, "//"), WireExpr(9, "x")]
    + [WireExpr(1, suffix, Mapping.SENDER) for suffix in ("", "/x", "/y")]
)
pushes = st.lists(st.builds(Push, keys, s.push_bodies, qos=s.qos), max_size=12)


def framed(sent: list[Any]) -> bytes:
    return write_batch([Frame(1, messages=sent)])


def table(data: bytes, batcher: SampleBatcher, **options: Any) -> pa.Table:
    found = list(record_batches(data, KEYS, Framing.DATAGRAM, batcher=batcher, **options))
    for batch in found:
        batch.validate(full=True)
    return pa.Table.from_batches(found, batcher.schema)


@settings(max_examples=50)
@given(pushes, st.permutations(SAMPLE.names), st.integers(1, 13), st.integers(1, 9))
def test_chosen_columns_say_what_they_say_among_all(
    sent: list[Push], order: list[str], count: int, most: int
) -> None:
    data, names = framed(sent), order[:count]
    everything = table(data, SampleBatcher()).to_pylist()
    found = table(data, SampleBatcher(most, columns=names))
    assert found.schema == pa.schema([SAMPLE.field(name) for name in names])
    wanted = [{name: row[name] for name in names} for row in everything]
    assert found.to_pylist() == wanted
    plain = [conform(batch, plain_schema(found.schema)) for batch in found.to_batches()]
    assert [row for batch in plain for row in batch.to_pylist()] == wanted


@settings(max_examples=50)
@given(pushes, st.sampled_from(["a", "a/**", "**", "sender/*/x", "nothing"]), st.integers(1, 5))
def test_chosen_keys_and_offsets(sent: list[Push], wanted: str, most: int) -> None:
    """Who is left out takes no offset of others, be it by its key or because it has none."""
    data = framed(sent)
    rows = scan(data, Framing.DATAGRAM).rows
    asked: list[str] = []

    def choose(key: str) -> bool:
        asked.append(key)
        return intersects(wanted, key)

    batcher = SampleBatcher(most, columns=["key", "offset"], wanted=choose)
    numbers = np.arange(100, 100 + len(rows)) * 7
    found: list[dict[str, Any]] = []
    first = 0
    while True:
        first = batcher.append(rows, data, KEYS, None, first, offsets=numbers)
        found += batcher.finish().to_pylist()
        if first == len(rows):
            break
    texts = [KEYS.text(push.key) for push in sent]
    good = [(n, text) for n, text in enumerate(texts) if text not in (None, "//")]
    assert found == [
        {"key": text, "offset": (100 + n) * 7} for n, text in good if intersects(wanted, text or "")
    ]
    assert len(asked) == len(set(asked))  # once for a key, however many batches
    assert batcher.unresolved + batcher.invalid == len(sent) - len(good)


def test_the_dictionary_has_no_key_that_is_not_wanted() -> None:
    sent = [Push(WireExpr(0, f"k/{n % 5}"), Put(b"")) for n in range(50)]
    batcher = SampleBatcher(wanted=lambda key: key in ("k/2", "k/4"))
    (column,) = table(framed(sent), batcher)["key"].chunks
    assert sorted(column.dictionary.to_pylist()) == ["k/2", "k/4"]


def test_keys_that_nobody_wants_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_TEXT_BYTES", 1000)
    sent = [Push(WireExpr(0, f"{n}/" + "x" * 300), Put(b"")) for n in range(20)]
    batcher = SampleBatcher(max_bytes=5_000, wanted=lambda key: key == "last")
    for _ in range(3):
        assert table(framed(sent), batcher).num_rows == 0
        assert 0 < batcher._texts.used[1] <= 5_000
    assert table(framed([*sent, Push(WireExpr(0, "last"), Put(b"1"))]), batcher).num_rows == 1


def test_a_payload_that_nobody_wants_takes_no_room() -> None:
    big = Push(WireExpr(0, "big"), Put(bytes(60_000)))
    small = Push(WireExpr(0, "small"), Put(b"1"))
    batcher = SampleBatcher(max_bytes=100, wanted=lambda key: key == "small")
    assert table(framed([small, big, small]), batcher)["payload"].to_pylist() == [b"1", b"1"]
    batcher = SampleBatcher(max_bytes=100, columns=["key"])
    assert batcher.append(scan(framed([big]), Framing.DATAGRAM).rows, framed([big]), KEYS) == 1
    assert len(batcher._columns.payload) <= 100


def test_long_keys_are_split_before_arrow_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_TEXT_BYTES", 20_000)
    sent = [Push(WireExpr(0, "k" * 1000 + str(n % 3)), Put(b"%d" % n)) for n in range(60)]
    (whole,) = table(framed(sent), SampleBatcher()).to_batches()
    found = [conform(part, plain_schema(SAMPLE)) for part in split_texts(whole, 50)]
    assert [len(batch) for batch in found] == [12, 13, 12, 13, 10]
    payloads = [int(payload) for batch in found for payload in batch["payload"].to_pylist()]
    assert payloads == list(range(60))


def test_nothing_gives_an_empty_batch() -> None:
    batch = SampleBatcher(columns=["key", "schema", "offset"]).finish()
    batch.validate(full=True)
    assert (batch.num_rows, batch.schema.names) == (0, ["key", "schema", "offset"])


def test_rows_of_no_columns_are_counted() -> None:
    data = framed([Push(WireExpr(0, "a"), Put(b"")), Push(WireExpr(0, "//"), Put(b""))])
    (batch,) = record_batches(data, KEYS, Framing.DATAGRAM, batcher=SampleBatcher(columns=[]))
    assert (batch.num_rows, batch.num_columns) == (1, 0)


def test_a_whole_byte_of_mapping_tells_links_apart() -> None:
    class ByLink:
        version, longest = KeyTable().version, 8

        def prefix(self, number: int, /) -> bytes | None:
            return b"link%d" % (number >> 17) if number & 0xFFFF else b""

    data = framed([Push(WireExpr(1, "/x", Mapping.SENDER), Put(b""))] * 4)
    rows = scan(data, Framing.DATAGRAM).rows
    rows["mapping"] |= np.array([0, 1, 127, 0], np.uint8) << 1
    batcher = SampleBatcher(columns=["key"])
    batcher.append(rows, data, ByLink())
    assert batcher.finish()["key"].to_pylist() == ["link0/x", "link1/x", "link127/x", "link0/x"]


def test_offsets_must_be_one_for_each_row() -> None:
    data = framed([Push(WireExpr(0, "a"), Put(b""))] * 2)
    with pytest.raises(ValueError, match="1 offsets are not one for each of 2 rows"):
        SampleBatcher().append(
            scan(data, Framing.DATAGRAM).rows, data, KEYS, offsets=np.zeros(1, np.int64)
        )


@pytest.mark.parametrize("names", [["nope"], ["key", "key"]])
def test_columns_that_are_not_there(names: list[str]) -> None:
    with pytest.raises(ZError, match="column"):
        SampleBatcher(columns=names)


def test_plain_texts_of_everything_that_repeats() -> None:
    sent = [
        Push(WireExpr(0, "k"), Put(b"", encoding=WireEncoding.parse(text)))
        for text in ("text/plain;utf-8", "application/json", "mine;x")
    ]
    (batch,) = table(framed(sent), SampleBatcher()).to_batches()
    found = conform(batch, plain_schema(SAMPLE))
    assert found.schema.field("key").type == pa.string()
    assert found["encoding"].to_pylist() == ["text/plain", "application/json", "mine"]
    assert found["schema"].to_pylist() == ["utf-8", None, "x"]
    assert found["congestion_control"].to_pylist() == ["drop"] * 3
