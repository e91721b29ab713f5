"""The index of a segment is a cache: without it, or with a wrong one, the answers are the same."""

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.support.handmade_logs import LINK, LOG_ID, TIME, Made, block_of, loss_block, numbered_log
from zenlake.log.block import OpenBlock
from zenlake.log.format import SEGMENT_BYTES, WRITING
from zenlake.log.read import index as indexing
from zenlake.log.read.index import Index
from zenlake.log.read.log import Log


def walked(made: Made, base: int = 0, end: int | None = None) -> Index:
    index = Index(made.folder / f"{base:020}.zlog", base, LOG_ID, made.partition)
    index.walk(end)
    return index


def ranges(index: Index) -> list[tuple[int, int | None]]:
    return [(hole.first, hole.end) for hole in index.holes]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return numbered_log(tmp_path / "log", [2, 3], [4, 1, 1], [5])


# ---- walking


def test_rows_are_the_headers(made: Made) -> None:
    index = walked(made, 5)
    assert index.rows["base"].tolist() == [5, 9, 10]
    assert index.rows["samples"].tolist() == [4, 1, 1]
    assert index.rows["position"].tolist() == [made.position(1, n) for n in range(3)]
    heads = made.headers[1]
    for name in ("length", "raw", "crc", "flags", "codec", "losses", "first_time", "last_time"):
        assert index.rows[name].tolist() == [getattr(head, name) for head in heads]
    assert (index.holes, index.end, set(index.rows["segment"])) == ([], 11, {5})


@pytest.mark.parametrize("most", [4096, 1 << 20])
def test_long_and_short_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(indexing, "MOST_BYTES", most)
    sizes = [1] * 100 + [500] * 3 + [1] * 100 + [60]
    made = numbered_log(tmp_path / "log", sizes)
    index = walked(made)
    assert index.rows["samples"].tolist() == sizes
    assert index.position == made.file.stat().st_size


def test_a_segment_that_grows_is_walked_from_where_the_last_look_ended(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2)])
    log = Log(made.path)
    for number in range(40):
        made.mark(WRITING if number < 39 else 2)
        with made.file.open("rb") as file:
            before = file.read()
        assert log.blocks(0)["base"].tolist() == list(range(0, made.offset, 2))
        held = log.blocks(0)
        made.append([block_of(made.offset, 2)])
        assert held["base"].tolist() == list(range(0, made.offset - 2, 2))
        assert made.file.read_bytes().startswith(before)


# ---- the cache


def test_closed_segments_are_cached_and_the_open_one_is_not(made: Made) -> None:
    table = Log(made.path).blocks(0)
    names = sorted(path.name for path in made.folder.glob("*.zidx*"))
    assert names == [f"{base:020}.zidx" for base in (0, 5)]
    walk = Index.walk

    def refused(self: Index, end: int | None = None) -> None:
        assert end is not None, "a closed segment was walked again"
        walk(self, end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Index, "walk", refused)
        assert (Log(made.path).blocks(0) == table).all()


def test_a_cache_that_is_gone_or_wrong_changes_nothing(made: Made) -> None:
    table = Log(made.path).blocks(0)
    first, second = (made.folder / f"{base:020}.zidx" for base in (0, 5))
    good, other = first.read_bytes(), second.read_bytes()
    wrong = [b"", good[:-1], good[: len(good) // 2], good + b"x", other, bytes(len(good))]
    wrong += [good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :] for at in range(len(good))]
    for data in wrong:
        first.write_bytes(data)
        second.write_bytes(good)
        log = Log(made.path)
        assert (log.blocks(0) == table).all()
        assert log.damage(0) == []
        assert (first.read_bytes(), second.read_bytes()) == (good, other)  # Written again.
    first.unlink()
    assert (Log(made.path).blocks(0) == table).all()


def test_a_cache_of_an_older_state_is_not_taken(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2], [3])
    Log(made.path).blocks(0)
    again = numbered_log(tmp_path / "longer", [2, 4], [3])
    cache = f"{0:020}.zidx"
    (again.folder / cache).write_bytes((made.folder / cache).read_bytes())
    assert Log(again.path).blocks(0)["samples"].tolist() == [2, 4, 3]


def test_a_cache_with_a_fitting_crc_and_nonsense_in_it(made: Made) -> None:
    table = Log(made.path).blocks(0)
    index = walked(made)
    for name, value in (("length", 1 << 31), ("position", 3), ("base", 9), ("segment", 1)):
        rows = index.rows.copy()
        rows[name][1] = value
        index._rows, kept = rows, index._rows
        index.save()
        index._rows = kept
        assert (Log(made.path).blocks(0) == table).all(), name


def test_a_folder_that_takes_no_cache(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path, data: bytes) -> int:
        raise PermissionError(13, "only to be read")

    monkeypatch.setattr(Path, "write_bytes", refused)
    assert Log(made.path).blocks(0)["base"].tolist() == [0, 2, 5, 9, 10, 11]
    assert list(made.folder.glob("*.zidx*")) == []


# ---- damage


def overwrite(file: Path, position: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        os.pwrite(opened.fileno(), data, position)


def test_a_damaged_header_is_a_hole_up_to_the_next_good_block(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2, 3, 4, 5])
    overwrite(made.file, made.position(0, 1), b"\0\0\0\0")
    index = walked(made)
    assert index.rows["base"].tolist() == [0, 5, 9]
    assert ranges(index) == [(2, 5)]
    assert index.holes[0].position == made.position(0, 1)


@pytest.mark.parametrize("field", range(0, 92, 4))
@pytest.mark.parametrize("block", [0, 1, 3])
def test_whatever_of_a_header_is_damaged(tmp_path: Path, field: int, block: int) -> None:
    """The walk finds it, or the block's CRC will; what other blocks say is never lost."""
    made = numbered_log(tmp_path / "log", [2, 3, 4, 5])
    position = made.position(0, block) + field
    overwrite(made.file, position, bytes(b ^ 0x15 for b in made.file.read_bytes()[position:][:4]))
    index = walked(made)
    assert set(index.rows["base"].tolist()) >= {0, 2, 5, 9} - {[0, 2, 5, 9][block]}
    covered = {base for first, end in ranges(index) for base in range(first, end or 14)}
    for row in index.rows:
        end = int(row["base"]) + int(row["samples"])
        covered |= set(range(int(row["base"]), min(end, 100)))
    if (field, block) != (56, 3):  # how many samples the last has, only the mark can say
        assert covered == set(range(14))


def test_a_block_that_was_taken_out(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2, 3, 4])
    data = made.file.read_bytes()
    made.file.write_bytes(data[: made.position(0, 1)] + data[made.position(0, 2) :])
    index = walked(made)
    assert index.rows["base"].tolist() == [0, 5]
    assert ranges(index) == [(2, 5)]


def test_a_block_of_losses_that_was_taken_out(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2), loss_block(), block_of(2, 2)])
    data = made.file.read_bytes()
    made.file.write_bytes(data[: made.position(0, 1)] + data[made.position(0, 2) :])
    assert ranges(walked(made)) == [(2, 2)]


def test_blocks_that_changed_places_or_came_twice(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2, 3, 4])
    data = made.file.read_bytes()
    one, two, three = (made.position(0, n) for n in range(3))
    made.file.write_bytes(data[:one] + data[two:three] + data[one:two] + data[three:])
    swapped = walked(made)
    assert swapped.rows["base"].tolist() == [2, 5]
    assert ranges(swapped) == [(0, 2), (5, 5)]
    made.file.write_bytes(data[:three] + data[two:three] + data[three:])
    twice = walked(made)
    assert twice.rows["base"].tolist() == [0, 2, 5]
    assert ranges(twice) == [(5, 5)]


def test_a_block_inside_a_payload_is_not_taken_for_one(tmp_path: Path) -> None:
    """A recording may contain the log's own blocks, as payloads."""
    made = numbered_log(tmp_path / "log", [2, 3])
    inner = made.file.read_bytes()[SEGMENT_BYTES:]
    block = OpenBlock()
    place = block.link(LINK)
    assert place is not None
    block.add(place, True, TIME, 1, inner)
    made.append([block, block_of(6, 1)])
    overwrite(made.file, made.position(0, 2), b"\0")
    index = walked(made)
    assert index.rows["base"].tolist() == [0, 2, 6]
    assert ranges(index) == [(5, 6)]


def test_damage_at_the_end_stays_open_until_a_good_block_follows(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2, 3])
    overwrite(made.file, made.position(0, 1), b"\0")
    index = walked(made)
    assert ranges(index) == [(2, None)]
    made.append([block_of(5, 4)])
    index.walk()
    assert ranges(index) == [(2, 5)]
    assert index.rows["base"].tolist() == [0, 5]
    made.append([block_of(9, 1)])
    index.walk()
    assert (index.end, len(index.holes)) == (10, 1)


def test_files_that_are_no_segments(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2])
    whole = made.file.read_bytes()
    head = bytearray(whole[:SEGMENT_BYTES])
    head[8] = 9
    newer = bytes(head[:-4]) + zlib.crc32(head[:-4]).to_bytes(4, "little")
    for data, reason in (
        (b"", "0 of 56 bytes"),
        (whole[:20], "20 of 56 bytes"),
        (newer + whole[SEGMENT_BYTES:], "format version 9 is unknown"),
    ):
        made.file.write_bytes(data)
        index = walked(made)
        assert reason in index.refused
        assert not len(index.rows)
    made.file.write_bytes(whole)
    assert Index(made.file, 0, bytes(16), 0).refused == (
        "the segment belongs to another log or partition"
    )
    assert "not where its name says" in Index(made.file, 7, LOG_ID, 0).refused


def test_a_damaged_segment_header_does_not_hide_the_blocks(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2, 3])
    overwrite(made.file, 20, b"\xff")
    index = walked(made)
    assert index.header is None
    assert index.rows["base"].tolist() == [0, 2]
    assert index.holes == []


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_can_be_walked(tmp_path: Path, seed: int) -> None:
    """Blocks with pieces overwritten, taken out, doubled: rows in order, and no error."""
    chance = np.random.default_rng(seed)
    made = numbered_log(tmp_path / "log", [int(n) for n in chance.integers(1, 6, 12)])
    data = bytearray(made.file.read_bytes())
    for _ in range(int(chance.integers(1, 5))):
        at, size = int(chance.integers(SEGMENT_BYTES, len(data))), int(chance.integers(1, 300))
        piece = bytes(data[at : at + size])
        what = int(chance.integers(4))
        if what == 0:
            data[at : at + size] = chance.bytes(len(piece))
        elif what == 1:
            del data[at : at + size]
        elif what == 2:
            data[at:at] = piece
        else:
            data[at : at + 4] = b"ZBLK"
    made.file.write_bytes(data)
    index = walked(made)
    ends = index.rows["base"] + index.rows["samples"]
    assert (index.rows["base"][1:] >= ends[:-1]).all()
    assert (index.rows["position"] + index.rows["length"] <= len(data)).all()
    assert index.position == len(data)
    for hole in index.holes:
        assert hole.end is None or hole.first <= hole.end
