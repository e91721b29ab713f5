"""Reading a log: what was put is what is read, in any range, by any key, with any columns.

With ZENLAKE_FULL=1 every bit of a segment is flipped instead of some, and 500 random logs are made.
"""

import os
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import strategies as s
from tests.support.handmade_logs import (
    LINK,
    TIME,
    Made,
    block_of,
    loss_block,
    loss_row,
    message,
    numbered_log,
    put,
    row_of,
)
from zenlake.errors import ZError
from zenlake.keyexpr import intersects, is_canonical
from zenlake.log.block import Loss, OpenBlock, SourceLink
from zenlake.log.format import CODECS, DamagedLog, unpack_body
from zenlake.log.read import blocks as block_reading
from zenlake.log.read import log_keys
from zenlake.log.read.batches import batch_schema
from zenlake.log.read.log import Log, OffsetOutOfRange
from zenlake.log.read.log_keys import LogKeys
from zenlake.log.read.reader import Reader
from zenlake.wire.batch import write_batch
from zenlake.wire.enums import Mapping
from zenlake.wire.frame import Frame
from zenlake.wire.framing import Framing
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.scan import Scanner, scan
from zenlake.wire.wireexpr import WireExpr

pytestmark = [pytest.mark.slow, pytest.mark.kernel]

FULL = bool(os.environ.get("ZENLAKE_FULL"))
EXAMPLES = 500 if FULL else 15 if os.environ.get("NUMBA_DISABLE_JIT") else 40


def rows(reader: Reader | Path, *args: Any, **options: Any) -> list[dict[str, Any]]:
    """The rows that a reader gives; times of reception in microseconds, to be compared exactly."""
    if not isinstance(reader, Reader):
        reader = Reader(reader)
    found = []
    for batch in reader.batches(*args, **options):
        batch.validate(full=True)
        assert batch.num_rows
        place = batch.schema.get_field_index("received_at")
        if place >= 0:
            micros = batch.column(place).view(pa.int64())
            batch = batch.set_column(place, "received_at", micros)
        found += batch.to_pylist()
    return found


def payloads(reader: Reader | Path, *args: Any, **options: Any) -> list[int]:
    return [int(row["payload"]) for row in rows(reader, *args, columns=["payload"], **options)]


# ---- anything that may be put


class Step(NamedTuple):
    """Messages that came together, after what happened before them."""

    link: int
    reliable: bool
    seconds: int
    declares: tuple[int, str] | None
    cut: bool
    lost: Loss | None
    pushes: list[Push]


PREFIXES = ["a", "a/b", "ä/c"]
SUFFIXES = ["", "/x", "/y/z", "x", "/*"]
LINKS = [SourceLink(1, 2, b"\x01"), SourceLink(2, 4, b"\x01"), SourceLink(0, 0, b"")]
some_keys = st.one_of(
    st.builds(
        WireExpr, st.integers(1, 3), st.sampled_from(SUFFIXES), st.sampled_from(list(Mapping))
    ),
    st.builds(WireExpr, st.just(0), st.sampled_from(["k/1", "k/2", "a/b/x", "//"])),
)
pushes = st.builds(Push, some_keys, s.push_bodies, qos=s.qos)
losses = st.builds(
    Loss,
    st.integers(1, 4),
    st.integers(TIME, TIME + 10**12),
    st.binary(max_size=16).filter(lambda raw: not raw or any(raw)),
    s.u64,
    s.u64,
    st.integers(-1, 1000),
    s.u32,
    st.integers(0, 15),
)
steps = st.builds(
    Step,
    st.integers(0, 2),
    st.booleans(),
    st.integers(-5, 100),
    st.none() | st.tuples(st.integers(1, 3), st.sampled_from(PREFIXES)),
    st.booleans(),
    st.none() | losses,
    st.lists(pushes, min_size=1, max_size=4),
)


class Recorded:
    """A log made of steps, and the rows it must give."""

    def __init__(self, path: Path, taken: list[Step], codec: str, rotate: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self.with_losses: list[dict[str, Any]] = []
        self.messages: list[bytes] = []
        self.names = batch_schema(losses=True).names
        self._made = Made(path)
        self._codec, self._rotate = codec, rotate
        self._tables: dict[tuple[int, int], str] = {}
        self._block = OpenBlock()
        self._blocks: list[OpenBlock] = []
        for step in taken:
            self._take(step)
        self._close()
        self._made.segment(self._blocks, codec)
        self._made.mark()

    def _take(self, step: Step) -> None:
        if step.cut:
            self._close()
        if step.declares is not None:
            scope, prefix = step.declares
            self._tables[step.link, scope] = prefix
        if step.lost is not None:
            self._block.add_loss(step.lost)
            self.with_losses.append(loss_row(step.lost, len(self.messages), self.names))
        time = TIME + step.seconds * 10**9
        data, count = b"", 0
        for push in step.pushes:
            scope = push.key.scope
            prefix = self._tables.get((step.link, scope), "p") if scope else ""
            suffix, number = push.key.suffix.encode(), push.key.mapping << 16 | scope
            place = self._block.link(LINKS[step.link])
            assert place is not None
            if not self._block.key(place, number, suffix, prefix.encode()):
                if count:
                    self._block.add(place, step.reliable, time, count, data)
                self._close()
                data, count = b"", 0
                place = self._block.link(LINKS[step.link])
                assert place is not None
                assert self._block.key(place, number, suffix, prefix.encode())
            data += message(push)
            count += 1
            key = prefix + push.key.suffix
            row = row_of(push, key, len(self.messages), reliable=step.reliable, time=time)
            if is_canonical(key):
                self.rows.append(row)
                self.with_losses.append(row | {"loss": None})
            self.messages.append(message(push))
        assert place is not None
        self._block.add(place, step.reliable, time, count, data)

    def _close(self) -> None:
        if self._block:
            self._blocks.append(self._block)
            self._block = OpenBlock()
        if len(self._blocks) >= self._rotate:
            self._made.segment(self._blocks, self._codec)
            self._blocks = []


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.data_too_large])
@given(st.lists(steps, max_size=10), st.sampled_from(CODECS), st.integers(1, 6), st.data())
def test_what_was_put_is_what_is_read(
    taken: list[Step], codec: str, rotate: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        made = Recorded(Path(folder) / "log", taken, codec, rotate)
        log, total = Log(Path(folder) / "log"), len(made.messages)
        reader = Reader(log, 0)
        assert rows(reader) == made.rows
        assert (reader.invalid, reader.skipped) == (total - len(made.rows), [])
        assert rows(reader, losses=True) == made.with_losses
        assert rows(reader, plain=True, max_rows=data.draw(st.integers(1, 5))) == made.rows
        assert log.verify().ok

        start, end = sorted(data.draw(st.tuples(*[st.integers(0, total)] * 2)))
        part = [row for row in made.with_losses if start <= row["offset"] < end]
        middle = data.draw(st.integers(start, end))
        both = rows(reader, start, middle, losses=True) + rows(reader, middle, end, losses=True)
        assert rows(reader, start, end, losses=True) == both == part

        key = data.draw(st.sampled_from(["a/**", "**/x", "k/1", "nothing", "**", "ä/*"]))
        low, high = sorted(data.draw(st.tuples(*[st.integers(-6, 101)] * 2)))
        columns = data.draw(st.permutations(batch_schema().names))[:3]
        found = rows(
            reader,
            start,
            end,
            start_time=TIME + low * 10**9,
            end_time=TIME + high * 10**9,
            key_expr=key,
            columns=columns,
            plain=data.draw(st.booleans()),
        )
        assert found == [
            {name: row[name] for name in columns}
            for row in made.rows
            if start <= row["offset"] < end
            and low <= (row["received_at"] - TIME // 1000) // 10**6 < high
            and intersects(key, row["key"])
        ]
        check_spans(reader, made, start, end)


def check_spans(reader: Reader, made: Recorded, start: int, end: int) -> None:
    """Spans hold the messages of a range as they came, and say what their ids stand for."""
    by_offset = {row["offset"]: row for row in made.rows}
    at, scanner = start, Scanner()
    for span in reader.spans(start, end):
        assert span.base == at
        count = int(span.batches["count"].sum())
        assert bytes(span.data) == b"".join(made.messages[at : at + count])
        number = 0
        for batch in span.batches:
            size = int(batch["count"])
            times = {
                by_offset[at + number + i]["received_at"]
                for i in range(size)
                if at + number + i in by_offset
            }
            assert times <= {int(batch["time"]) // 1000}
            number += size
        links = np.repeat(span.batches["link"], span.batches["count"])
        offset = at
        for part in scanner.bare(span.data):
            for row in part.rows:
                number = int(links[offset - at]) << 17 | int(row["mapping"]) << 16
                prefix = span.keys.prefix(number | int(row["scope"]))
                assert prefix is not None
                suffix = bytes(span.data[row["suffix"] : row["suffix"] + row["suffix_len"]])
                if offset in by_offset:
                    assert (prefix + suffix).decode() == by_offset[offset]["key"]
                offset += 1
        at += count
    assert at == end


def test_the_messages_of_a_frame_are_recorded_as_they_stand(tmp_path: Path) -> None:
    sent: list[Any] = [put(number, f"k/{number % 3}") for number in range(50)]
    frame = write_batch([Frame(1, messages=sent)])
    scanned = scan(frame, Framing.DATAGRAM).rows
    data = frame[int(scanned["start"][0]) : int(scanned["end"][-1])]
    block = OpenBlock()
    place = block.link(LINK)
    assert place is not None
    for number in range(3):
        block.key(place, 0, f"k/{number}".encode(), b"")
    block.add(place, True, TIME, len(sent), data)
    made = Made(tmp_path / "log")
    made.segment([block])
    made.mark()
    assert [row["key"] for row in rows(made.path)] == [push.key.suffix for push in sent]


# ---- ranges


def test_offsets_that_are_not_there_are_named(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [3, 3], [4])
    reader = Reader(made.path, 0)
    assert payloads(reader, 2, 7) == [2, 3, 4, 5, 6]
    assert payloads(reader, 4, 4) == []
    with pytest.raises(OffsetOutOfRange, match="0 to 10, not 5 to 11: later ones are not durable"):
        payloads(reader, 5, 11)
    made.folder.joinpath(f"{0:020}.zlog").unlink()
    with pytest.raises(OffsetOutOfRange, match="6 to 10, not 2 to 10: older ones were removed"):
        payloads(reader, 2)
    assert payloads(reader) == [6, 7, 8, 9]


def test_a_missing_segment_is_no_silent_gap(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [3], [3], [3])
    made.folder.joinpath(f"{3:020}.zlog").unlink()
    reader = Reader(made.path, 0)
    with pytest.raises(
        OffsetOutOfRange, match=r"offsets 3 to 5: a segment is missing.*lacks a file"
    ):
        payloads(reader)
    assert payloads(reader, 0, 3) == [0, 1, 2]
    assert payloads(reader, 6) == [6, 7, 8]
    assert payloads(reader, on_damage="skip") == [0, 1, 2, 6, 7, 8]
    assert [(each.first, each.end) for each in reader.skipped] == [(3, 6)]


def test_what_is_beyond_the_mark_is_not_read(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [3, 3])
    made.append([block_of(6, 3)])
    assert payloads(made.path) == [0, 1, 2, 3, 4, 5]
    made.mark()
    assert payloads(made.path) == list(range(9))


def test_a_segment_that_vanishes_while_it_is_read(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [5], [5])
    reader = Reader(made.path, 0)
    reader.log.blocks(0)
    batches = reader.batches(columns=["payload"], max_rows=2)
    assert len(next(batches)) == 2
    for base in (0, 5):
        made.folder.joinpath(f"{base:020}.zlog").unlink()
    with pytest.raises(OffsetOutOfRange, match="removed while"):
        list(batches)


def test_partitions_one_after_another(tmp_path: Path) -> None:
    numbered_log(tmp_path / "log", [3])
    second = Made.__new__(Made)
    (tmp_path / "log" / "log.json").rename(tmp_path / "kept")
    second.__init__(tmp_path / "log", 10)  # type: ignore[misc]
    second.segment([block_of(0, 2)])
    second.mark()
    reader = Reader(tmp_path / "log")
    found = rows(reader, columns=["partition", "offset"])
    assert [tuple(row.values()) for row in found] == [(0, 0), (0, 1), (0, 2), (10, 0), (10, 1)]
    with pytest.raises(ZError, match="choose one of"):
        rows(reader, 0, 1)
    with pytest.raises(ZError, match="has no partition 7"):
        rows(Reader(tmp_path / "log", 7))


def test_arguments_that_make_no_sense(tmp_path: Path) -> None:
    path = numbered_log(tmp_path / "log", [3]).path
    with pytest.raises(ZError, match="no column 'nope'"):
        rows(path, columns=["nope"])
    with pytest.raises(ZError, match="more than once"):
        rows(path, columns=["key", "key"])
    with pytest.raises(ZError, match="on_damage is"):
        rows(path, on_damage="ignore")
    with pytest.raises(ZError, match="Invalid Key Expr"):
        rows(path, key_expr="a//b")
    with pytest.raises(ZError, match="no column 'loss'"):
        rows(path, columns=["loss"])


def test_rows_without_columns_can_still_be_counted(tmp_path: Path) -> None:
    path = numbered_log(tmp_path / "log", [3, 4]).path
    assert sum(batch.num_rows for batch in Reader(path).batches(columns=[])) == 7


# ---- times and losses


def test_times_are_exact_for_each_batch(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 10, each=2), block_of(10, 10, each=5)])
    made.mark()
    second = 10**9
    for low, high in ((0, 20), (2, 4), (3, 11), (15, 16), (30, 40)):
        found = payloads(made.path, start_time=TIME + low * second, end_time=TIME + high * second)
        times = [n // 2 * 2 if n < 10 else n // 5 * 5 for n in range(20)]
        assert found == [n for n in range(20) if low <= times[n] < high]


def test_losses_stand_before_their_sample_and_are_split_like_it(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    behind = block_of(0, 2)
    behind.add_loss(Loss(3, TIME, b"\x02"))
    made.segment([behind, loss_block(missing=5), block_of(2, 2), loss_block(first=9)])
    made.segment([loss_block(first=10), block_of(4, 1), loss_block(first=11)])
    made.mark()
    reader = Reader(made.path, 0)
    columns = ["kind", "offset", "loss"]
    found = rows(reader, columns=columns, losses=True)
    assert [(row["kind"], row["offset"]) for row in found] == [
        ("put", 0),
        ("put", 1),
        ("loss", 2),
        ("loss", 2),
        ("put", 2),
        ("put", 3),
        ("loss", 4),
        ("loss", 4),
        ("put", 4),
        ("loss", 5),
    ]
    assert [row["loss"]["kind"] for row in found if row["loss"]] == [
        "link",
        "lane",
        "lane",
        "lane",
        "lane",
    ]
    assert [row["loss"]["count"] for row in found if row["loss"]] == [None, 5, None, None, None]
    for cut in range(6):
        parts = rows(reader, 0, cut, columns=columns, losses=True)
        assert parts + rows(reader, cut, columns=columns, losses=True) == found
    assert rows(reader, 0, 5, columns=columns, losses=True) == found[:-1]
    assert [row["offset"] for row in rows(reader, key_expr="other", losses=True)] == [2, 2, 4, 4, 5]


# ---- keys


def test_blocks_are_passed_over_by_their_keys_without_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(tmp_path / "log")
    blocks = [block_of(n * 50, 50, keys=[f"robot/{n}/pose"]) for n in range(4)]
    blocks[1].add_loss(Loss(3, TIME, b""))
    made.segment(blocks, "zstd")
    made.mark()
    unpacked = []

    def counted(codec: int, body: memoryview, raw: int) -> memoryview:
        unpacked.append(raw)
        return unpack_body(codec, body, raw)

    monkeypatch.setattr(block_reading, "unpack_body", counted)
    assert payloads(made.path, key_expr="robot/2/*") == list(range(100, 150))
    assert len(unpacked) == 1
    found = rows(made.path, key_expr="robot/2/*", losses=True, columns=["offset", "kind"])
    assert found[0] == {"offset": 100, "kind": "loss"}
    assert len(found) == 51


def test_a_block_that_does_not_list_all_its_keys_is_read(tmp_path: Path) -> None:
    block = block_of(0, 5, keys=["wanted"])
    block._suffixes = {(0, 0): {b"other"}}
    block.all_keys = False
    made = Made(tmp_path / "log")
    made.segment([block], "lz4")
    made.mark()
    assert payloads(made.path, key_expr="wanted") == list(range(5))


def test_more_links_than_a_span_can_number(tmp_path: Path) -> None:
    made, blocks, expected = Made(tmp_path / "log"), [], []
    for number in range(300):
        block = OpenBlock()
        place = block.link(SourceLink(number, 2, b"\x01"))
        assert place is not None
        prefix = f"link/{number}"
        block.key(place, 1 << 16 | 7, b"/x", prefix.encode())
        block.add(place, True, TIME, 1, message(Push(WireExpr(7, "/x", Mapping.SENDER), Put(b"0"))))
        blocks.append(block)
        expected.append(f"{prefix}/x")
    made.segment(blocks)
    made.mark()
    reader = Reader(made.path, 0)
    assert [row["key"] for row in rows(reader)] == expected
    spans = list(reader.spans())
    assert len(spans) == 3
    assert len({span.keys.version for span in spans}) == 3


def test_an_id_that_changes_its_meaning_from_block_to_block(tmp_path: Path) -> None:
    made, blocks, expected = Made(tmp_path / "log"), [], []
    for number in range(200):
        block = OpenBlock()
        place = block.link(LINK)
        assert place is not None
        prefix = f"p{number % 7}"
        block.key(place, 1 << 16 | 7, b"", prefix.encode())
        block.add(place, True, TIME, 1, message(Push(WireExpr(7, "", Mapping.SENDER), Put(b"0"))))
        blocks.append(block)
        expected.append(prefix)
    made.segment(blocks)
    made.mark()
    assert [row["key"] for row in rows(made.path)] == expected


def test_an_id_that_no_key_explains_is_left_out_and_counted(tmp_path: Path) -> None:
    odd = OpenBlock()
    place = odd.link(LINK)
    assert place is not None
    nameless = message(Push(WireExpr(9, "/x", Mapping.SENDER), Put(b"1")))
    odd.add(place, True, TIME, 1, nameless)
    named = OpenBlock()
    named.link(LINK)
    named.key(place, 1 << 16 | 9, b"/x", b"later")
    named.add(place, True, TIME, 1, nameless)
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 1), odd, block_of(2, 1)])
    made.segment([named])
    made.mark()
    reader = Reader(made.path, 0)
    found = rows(reader, columns=["key", "offset"])
    assert [tuple(row.values()) for row in found] == [("a/b", 0), ("a/b", 2), ("later/x", 3)]
    assert reader.unresolved == 1


def test_many_long_prefixes_take_the_next_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_keys, "MAX_PREFIX_BYTES", 100_000)
    made, blocks, expected = Made(tmp_path / "log"), [], []
    for number in range(12):
        block = OpenBlock()
        place = block.link(LINK)
        assert place is not None
        prefix = f"{number}/" + "x" * 30_000
        block.key(place, 1 << 16 | number + 1, b"", prefix.encode())
        push = Push(WireExpr(number + 1, "", Mapping.SENDER), Put(b"0"))
        block.add(place, True, TIME, 1, message(push))
        blocks.append(block)
        expected.append(prefix)
    made.segment(blocks)
    made.mark()
    reader = Reader(made.path, 0)
    assert [row["key"] for row in rows(reader)] == expected
    assert len({span.keys.version for span in reader.spans()}) > 2


def test_keys_of_a_log_say_what_is_unknown() -> None:
    keys = LogKeys()
    assert (keys.prefix(5 << 17), keys.incomplete) == (b"", False)
    assert (keys.prefix(5 << 17 | 3), keys.incomplete) == (None, True)


# ---- damage


def flipped(file: Path, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_block_is_named_and_the_others_are_read(tmp_path: Path, codec: str) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(n * 20, 20, keys=["some/key"]) for n in range(5)], codec)
    made.mark()
    flipped(made.file, 8 * (made.position(0, 3) - 3))  # the body of the third block
    reader = Reader(made.path, 0)
    found: list[int] = []
    reading_on = reader.batches(columns=["offset"])
    with pytest.raises(DamagedLog, match=r"partition 0, offsets 40 to 59: .*CRC.*on_damage='skip'"):
        found.extend(n for batch in reading_on for n in batch.column("offset").to_pylist())
    assert found == list(range(40))
    assert payloads(reader, 60) == list(range(60, 100))
    assert payloads(reader, on_damage="skip") == [*range(40), *range(60, 100)]
    (skipped,) = reader.skipped
    assert (skipped.first, skipped.end, skipped.segment) == (40, 60, made.file.name)
    assert skipped.position == made.position(0, 2)
    report = made_report(made)
    assert [(each.first, each.end) for each in report] == [(40, 60)]


def made_report(made: Made) -> list[Any]:
    return list(Log(made.path).verify().damage)


def test_no_flipped_bit_gives_wrong_rows(tmp_path: Path) -> None:
    """Whatever bit of a segment: rows are right or missing, and what is missing is named."""
    made = numbered_log(tmp_path / "log", [2, 3], [1])
    file = made.folder / f"{0:020}.zlog"
    whole = file.read_bytes()
    size = 8 * len(whole)
    for bit in range(0, size, 1 if FULL else 41):
        flipped(file, bit)
        for cached in (False, True):
            reader = Reader(Log(made.path), 0)
            found = rows(reader, on_damage="skip", columns=["payload", "offset"])
            lost = {n for each in reader.skipped for n in range(each.first, each.end)}
            assert all(int(row["payload"]) == row["offset"] for row in found), (bit, cached)
            offsets = [row["offset"] for row in found]
            assert offsets == sorted(set(range(6)) - lost), (bit, cached)
            assert lost < {0, 1} or lost < {2, 3, 4} or len(lost) in (0, 2, 3, 5), bit
            if bit >= 8 * 56:
                assert lost, (bit, cached)
        assert not Log(made.path).verify().ok, bit
        file.write_bytes(whole)


def test_messages_that_are_not_what_their_batch_says(tmp_path: Path) -> None:
    bad = block_of(5, 3)
    place = bad.link(LINK)
    assert place is not None
    bad.add(place, True, TIME, 2, b"\xff" * 20)
    long = block_of(10, 1)
    long.add(place, True, TIME, 2, message(put(11)) * 3)  # more messages than it says
    other = block_of(13, 1)
    other.add(place, True, TIME, 1, bytes.fromhex("1b 05 00"))  # no PUSH
    blocks = [block_of(0, 5), bad, long, other, block_of(15, 5)]
    made = Made(tmp_path / "log")
    made.segment(blocks)
    made.mark()
    reader = Reader(made.path, 0)
    with pytest.raises(DamagedLog, match="offsets 8 to 9: a block's messages are not"):
        rows(reader)
    found = rows(reader, on_damage="skip", columns=["offset"])
    assert [row["offset"] for row in found] == [*range(8), 10, 11, 13, *range(15, 20)]
    assert [(each.first, each.end) for each in reader.skipped] == [(8, 10), (12, 13), (14, 15)]
    for start in range(20):  # the same, wherever a range starts
        again = rows(reader, start, on_damage="skip", columns=["offset"])
        assert again == [row for row in found if row["offset"] >= start]


def altered(block: OpenBlock, how: Literal["link", "scope", "utf8"]) -> OpenBlock:
    """A block whose CRC fits and that contradicts itself."""
    if how == "link":
        block._prefixes = {(3, 0): b""}
        block._suffixes = {(3, 0): {b"a/b"}}
    elif how == "scope":
        block._prefixes = {(0, 0): b"pre"}
    else:
        block._prefixes[0, 5] = b"\xff\xfe"
        block._suffixes[0, 5] = {b""}
    return block


@pytest.mark.parametrize("how", ["link", "scope", "utf8"])
def test_blocks_that_contradict_themselves_are_damage(
    tmp_path: Path, how: Literal["link", "scope", "utf8"]
) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2), altered(block_of(2, 2), how), block_of(4, 2)])
    made.mark()
    reader = Reader(made.path, 0)
    assert payloads(reader, on_damage="skip") == [0, 1, 4, 5]
    assert [(each.first, each.end) for each in reader.skipped] == [(2, 4)]


def test_large_and_small_blocks_alternate(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    blocks = []
    for number in range(6):
        block = block_of(number * 3, 3, keys=[f"k/{number}"])
        place = block.link(LINK)
        assert place is not None
        if number % 2:
            block.key(place, 0, b"big", b"")
        blocks.append(block)
    made.segment(blocks)
    made.mark()
    small = block_reading.SPAN_BYTES
    try:
        block_reading.SPAN_BYTES = 300
        assert payloads(made.path) == list(range(18))
    finally:
        block_reading.SPAN_BYTES = small


@pytest.mark.parametrize("size", [0, 87, 88, 91, 92, 93, 99, 100, 107, 1000])
def test_the_compiled_crc_is_that_of_zlib(size: int) -> None:
    data = np.frombuffer(bytes(range(256)) * 8, np.uint8)
    starts, ends = np.array([3]), np.array([3 + size])
    (found,) = block_reading._crcs(data, starts, ends)
    if size >= 92:
        view = bytes(data)
        assert found == zlib.crc32(view[95 : 3 + size], zlib.crc32(view[3:91]))
    else:
        assert found == 0
