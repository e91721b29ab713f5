"""The bytes of a log: what is written is read, and no bit can change unseen."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.numbered_samples import Sample, losses, numbered, samples_of
from zenlake.errors import ZError
from zenlake.log import format as layout
from zenlake.log.block import MAX_NAMED_KEYS, Loss, OpenBlock, SourceLink
from zenlake.log.format import (
    CODECS,
    HEADER_BYTES,
    MAX_LINKS,
    SEGMENT_BYTES,
    SLOT_BYTES,
    UNKNOWN,
    WRITING,
    Block,
    BlockHeader,
    DamagedLog,
    Mark,
    SegmentHeader,
)

ID = bytes(range(16))
U64 = st.integers(0, (1 << 64) - 1)
TIME = st.integers(-(1 << 63), (1 << 63) - 1)
ZENOH_ID = st.binary(min_size=1, max_size=16)
CODEC = st.sampled_from(range(len(CODECS)))


def encoded(block: OpenBlock, base: int = 0, previous: int = 0, codec: int = 0) -> bytes:
    return b"".join(block.encode(ID, 3, base, previous, codec)[0])


links = st.builds(
    SourceLink, st.integers(0, (1 << 32) - 1), st.sampled_from([0, 1, 2, 4]), ZENOH_ID
)
lost = st.builds(
    Loss,
    st.sampled_from(sorted(layout.LOSS_KINDS)),
    TIME,
    ZENOH_ID,
    U64,
    U64,
    st.integers(UNKNOWN, (1 << 63) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, 15),
)
batches = st.tuples(links, st.booleans(), TIME, st.integers(0, 40), st.binary(max_size=200))
keys = st.tuples(links, st.integers(0, (1 << 17) - 1), st.binary(max_size=9), st.binary(max_size=9))


@settings(max_examples=100)
@given(st.lists(st.one_of(batches, keys, lost), max_size=12), U64, CODEC, st.integers(0, 99))
def test_what_is_written_is_read(things: list[Any], base: int, codec: int, before: int) -> None:
    block = OpenBlock()
    said_keys: dict[tuple[int, int], bytes] = {}
    named: set[tuple[int, int, bytes]] = set()
    said: list[tuple[int, int, bool, int, bytes]] = []
    said_losses: list[tuple[int, Loss]] = []
    base >>= 8
    for thing in things:
        match thing:
            case Loss():
                block.add_loss(thing)
                said_losses.append((base + block.count, thing))
            case (link, bool(reliable), time, count, data):
                place = block.link(link)
                assert place is not None
                count = min(count, len(data))
                block.add(place, reliable, time, count, data)
                said.append((time, place, reliable, count, data))
            case (link, number, suffix, prefix):
                place = block.link(link)
                assert place is not None
                fits = said_keys.setdefault((place, number), prefix) == prefix
                assert block.key(place, number, suffix, prefix) is fits
                if fits:
                    named.add((place, number, suffix))
    data = b"x" * before + encoded(block, base, 77, codec)
    read = Block.decode(data, before)
    head = read.header
    assert head.length == len(data) - before
    assert (head.log_id, head.partition, head.base, head.previous) == (ID, 3, base, 77)
    assert head.end == base + block.count
    assert head.flags == layout.ALL_KEYS
    found, content = read.body()
    assert bytes(content) == b"".join(batch[-1] for batch in said)
    assert [
        (entry["time"], entry["link"], bool(entry["flags"] & layout.RELIABLE), entry["count"])
        for entry in found
    ] == [batch[:4] for batch in said]
    times = [batch[0] for batch in said] + [loss.time for _, loss in said_losses]
    assert (head.first_time, head.last_time) == (min(times, default=0), max(times, default=0))
    texts = read.keys()
    assert {
        (key.link, key.mapping << 16 | key.scope, key.text[len(key.prefix) :]) for key in texts
    } == named
    for key in texts:
        assert key.prefix == said_keys[key.link, key.mapping << 16 | key.scope]
    for entry, (offset, loss) in zip(read.losses(), said_losses, strict=True):
        assert entry["offset"] == offset
        assert bytes(entry["id"])[: entry["id_len"]] == loss.id
        fields = ("kind", "time", "first", "last", "missing", "entity", "lane")
        assert [entry[name] for name in fields] == [getattr(loss, name) for name in fields]
    assert [bytes(e["id"])[: e["id_len"]] for e in read.links()] == [
        link.id for link in block._links
    ]


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_every_flipped_bit_of_a_block_is_seen(codec: int) -> None:
    block = numbered(1, 0, 20, pad=40)
    block.add_loss(Loss(layout.LANE, 1, b"\x01", 5, 6))
    good = encoded(block, 5, 9, codec)
    assert samples_of(Block.decode(good)) == [Sample(1, number) for number in range(20)]
    bad = bytearray(good)
    for bit in range(8 * len(good)):
        bad[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(DamagedLog):
            Block.decode(bad)
        bad[bit >> 3] ^= 1 << (bit & 7)
    assert bad == good


def test_a_block_cut_short_anywhere_is_seen() -> None:
    good = encoded(numbered(1, 0, 3))
    for length in range(len(good)):
        with pytest.raises(DamagedLog):
            Block.decode(good[:length])
    assert Block.decode(good + b"more").header.samples == 3


def test_a_header_promises_no_more_than_is_there() -> None:
    """Counts are checked before anything is made of them."""
    good = encoded(numbered(1, 0, 3))
    chance = random.Random(4)
    for _ in range(5000):
        bad = bytearray(good)
        at = chance.randrange(HEADER_BYTES - 4)
        for place in range(at, min(at + chance.choice((1, 2, 4, 8)), HEADER_BYTES - 4)):
            bad[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        try:
            head = BlockHeader.decode(bad)
        except DamagedLog:
            continue
        assert head.length <= layout.MAX_BLOCK_BYTES
        assert head.raw <= layout.MAX_BLOCK_BYTES
        assert head.meta <= head.length
        assert head.samples <= head.raw


def test_a_body_that_lies_about_its_size() -> None:
    """A correct CRC and a wrong length: the block was forged."""
    head, parts = numbered(1, 0, 50).encode(ID, 0, 0, 0, 1)[1], encoded(numbered(1, 0, 50), codec=1)
    assert head.codec == 1
    for raw in (head.raw - 1, head.raw + 1, layout.MAX_BLOCK_BYTES):
        block = Block(head._replace(raw=raw), parts, 0)
        with pytest.raises(DamagedLog):
            block.body()


def test_links_and_keys_are_bounded() -> None:
    block = OpenBlock()
    for serial in range(MAX_LINKS):
        assert block.link(SourceLink(serial, 1, b"\x01")) == serial
    assert block.link(SourceLink(MAX_LINKS, 1, b"\x01")) is None
    assert block.link(SourceLink(5, 1, b"\x01")) == 5
    for number in range(MAX_NAMED_KEYS + 1):
        assert block.key(0, 0, b"%d" % number, b"")
    read = Block.decode(encoded(block))
    assert not read.header.flags & layout.ALL_KEYS
    assert len(read.keys()) == MAX_NAMED_KEYS


def test_a_block_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MAX_BLOCK_BYTES", 1000)
    with pytest.raises(ZError, match="longer than 1000"):
        encoded(numbered(1, 0, 3, pad=1000))


def test_an_open_block_knows_whether_it_holds_something() -> None:
    assert not OpenBlock()
    assert losses()
    assert numbered(0, 0, 1)


@given(st.integers(0, (1 << 32) - 1), st.binary(min_size=16, max_size=16), U64, TIME)
def test_segment_header(partition: int, log_id: bytes, base: int, created: int) -> None:
    head = SegmentHeader(partition, log_id, base, created, partition)
    assert SegmentHeader.decode(head.encode() + b"more") == head
    assert len(head.encode()) == SEGMENT_BYTES


def test_every_flipped_bit_of_a_segment_header_is_seen() -> None:
    good = SegmentHeader(1, ID, 2, 3, 4).encode()
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(DamagedLog):
            SegmentHeader.decode(bad)
    for length in range(SEGMENT_BYTES):
        with pytest.raises(DamagedLog, match="bytes"):
            SegmentHeader.decode(good[:length])


@given(st.builds(Mark, U64, U64, U64, U64, TIME, st.integers(0, (1 << 32) - 1), st.just(WRITING)))
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    file = bytearray(2 * SLOT_BYTES)
    file[mark.place : mark.place + SLOT_BYTES] = mark.encode()
    assert Mark.decode(file) == mark


def test_the_newer_slot_holds_and_the_older_one_when_it_is_torn() -> None:
    old, new = Mark(8, 1, 0, 56, 1, 0, WRITING), Mark(9, 2, 0, 99, 1, 0, WRITING)
    assert {old.place, new.place} == {0, SLOT_BYTES}
    good = old.encode() + new.encode()
    assert Mark.decode(good) == new
    for bit in range(8 * SLOT_BYTES, 16 * SLOT_BYTES):
        bad = bytearray(good)
        bad[bit >> 3] ^= 1 << (bit & 7)
        assert Mark.decode(bad) == old
    for length in range(SLOT_BYTES, 2 * SLOT_BYTES):
        assert Mark.decode(good[:length]) == old
    for data in (b"", good[: SLOT_BYTES - 1], bytes(2 * SLOT_BYTES)):
        assert Mark.decode(data) is None
