"""Recovery when a partition is opened: torn tails are cut and kept, damage stays and is named.

ZENLAKE_FULL=1: 100,000 mutations of the files of a log instead of 3,000.
"""

import random
import shutil
import struct
import tracemalloc
from pathlib import Path

import pytest

from tests.support.numbered_samples import FULL, QUICK, Sample, held, losses, numbered, samples_of
from zenlake.errors import ZError
from zenlake.log.files import read_id, segment_name, segments
from zenlake.log.format import HEADER_BYTES, SEGMENT_BYTES, Block, Buffer, Mark
from zenlake.log.write import recovery
from zenlake.log.write.recovery import SegmentWalk
from zenlake.log.write.writer import Writer

pytestmark = pytest.mark.slow

MUTATIONS = 100_000 if FULL else 3_000
MEASURED = 20  # Memory is measured for one of so many mutations.
MAX_MEMORY = 4 << 20
SEED = 7
BLOCKS = 4  # Each has three samples.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make(tmp_path / "log")


def make(path: Path) -> Path:
    with Writer(path, files=QUICK) as log:
        for number in range(BLOCKS):
            log.write([numbered(0, 3 * number, 3)])
    return path


def segment_of(path: Path, base: int = 0) -> Path:
    return path / "0" / segment_name(base)


def positions(path: Path) -> list[int]:
    """Where the blocks of the first segment start, and the end."""
    walk = SegmentWalk(segment_of(path), read_id(path), 0, SEGMENT_BYTES, 0)
    return [*(walk.position for _ in walk), walk.position]


def overwrite(file: Path, position: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(data)


def replace(file: Path, data: bytes) -> None:
    """A new file: one that is only cut and written again some file systems flush, which is slow."""
    file.unlink(missing_ok=True)
    file.write_bytes(data)


class Copy:
    """A copy of a log that is made good again after each trial; only what changed is written."""

    def __init__(self, template: Path, path: Path) -> None:
        shutil.copytree(template, path)
        self.path = path
        files = sorted(file for file in template.rglob("*") if file.is_file())
        self.content = {file.relative_to(template): file.read_bytes() for file in files}
        self._times = {name: self._time(name) for name in self.content}

    def _time(self, name: Path) -> int:
        file = self.path / name
        return file.stat().st_mtime_ns if file.exists() else 0

    def restore(self) -> None:
        for file in self.path.rglob("*"):
            if file.is_file() and file.relative_to(self.path) not in self.content:
                file.unlink()
        for name, time in self._times.items():
            if self._time(name) != time:
                replace(self.path / name, self.content[name])
                self._times[name] = self._time(name)


def goes_on(path: Path, expected: set[int], first: int) -> None:
    """Another writer finds nothing more to do, and writes at `first`."""
    with Writer(path, files=QUICK) as log:
        assert log.next == first
        assert not log.recovery.torn
        log.write([numbered(1, 0, 2)])
    found = held(path).by_offset()
    assert found.pop(first) == Sample(1, 0)
    assert found.pop(first + 1) == Sample(1, 1)
    assert found == {offset: Sample(0, offset) for offset in expected}


# Torn tails


def test_a_last_block_cut_at_every_byte_without_a_mark(path: Path) -> None:
    """As after a loss of power: what is left of the block is kept aside."""
    data, (*_, last, end) = segment_of(path).read_bytes(), positions(path)
    (path / "0" / "mark").unlink()
    for size in range(last, end):
        replace(segment_of(path), data[:size])
        with Writer(path, files=QUICK) as log:
            assert log.next == 9
            assert not log.recovery.damage
            assert log.recovery.samples == 9
            if size == last:
                assert not log.recovery.torn
            else:
                (torn,) = log.recovery.torn
                assert (torn.position, torn.length) == (last, size - last)
                assert torn.kept.parent == path / "0" / "torn"
                assert torn.kept.read_bytes() == data[last:size]
        assert segment_of(path).stat().st_size == last
        (path / "0" / "mark").unlink()
    goes_on(path, set(range(9)), 9)


def test_a_last_block_cut_at_every_byte_below_the_mark(path: Path, tmp_path: Path) -> None:
    """It was acknowledged: its offsets are not used again, and its bytes stay where they are."""
    data, (*_, last, end) = segment_of(path).read_bytes(), positions(path)
    trial = Copy(path, tmp_path / "copy")
    for size in range(last, end):
        copy = trial.path
        replace(segment_of(copy), data[:size])
        with Writer(copy, files=QUICK) as log:
            assert log.next == 12
            assert not log.recovery.torn
            (damage,) = log.recovery.damage
            assert (damage.first, damage.end) == (9, 12)
            assert (damage.position, damage.length) == (last, size - last)
            assert "offsets 9 to 11:" in str(damage)
        assert segment_of(copy).read_bytes() == data[:size]
        assert segments(copy / "0") == [0, 12]
        goes_on(copy, set(range(9)), 12)
        trial.restore()


@pytest.mark.parametrize(
    "tail",
    [
        b"garbage",
        bytes(5000),
        b"ZBLK",
        b"ZBLK" * 50,
        random.Random(1).randbytes(300),
        b"half",
        b"old",
    ],
    ids=["garbage", "zeros", "magic", "magics", "noise", "half a block", "an old block"],
)
@pytest.mark.parametrize("marked", [True, False])
def test_what_follows_the_last_block(path: Path, tail: bytes, marked: bool) -> None:
    file, (first, second, *_, end) = segment_of(path), positions(path)
    block = file.read_bytes()[first:second]
    tail = {b"half": block[: len(block) // 2], b"old": b"x" + block}.get(tail, tail)
    with file.open("ab") as opened:
        opened.write(tail)
    if not marked:
        (path / "0" / "mark").unlink()
    with Writer(path, files=QUICK) as log:
        (torn,) = log.recovery.torn
        assert torn.kept.read_bytes() == tail
        assert (torn.position, torn.length) == (end, len(tail))
        assert log.recovery.walked == len(tail) + (0 if marked else end - SEGMENT_BYTES)
    goes_on(path, set(range(12)), 12)


def test_torn_tails_of_one_place_are_all_kept(path: Path) -> None:
    for number in range(3):
        with segment_of(path).open("ab") as file:
            file.write(b"tail %d" % number)
        Writer(path, files=QUICK).close()
    kept = sorted(file.read_bytes() for file in (path / "0" / "torn").iterdir())
    assert kept == [b"tail 0", b"tail 1", b"tail 2"]


def test_drafts_are_removed(path: Path) -> None:
    draft = path / "0" / (segment_name(12) + ".new")
    draft.write_bytes(b"ZENLOG")
    with Writer(path, files=QUICK):
        assert not draft.exists()


def test_good_blocks_behind_the_mark_are_taken(path: Path) -> None:
    """They were written but not acknowledged: they may stay."""
    old = (path / "0" / "mark").read_bytes()
    with Writer(path, files=QUICK) as log:
        log.write([numbered(0, 12, 1), losses()])
    (path / "0" / "mark").write_bytes(old)
    with Writer(path, files=QUICK) as log:
        assert (log.recovery.blocks, log.recovery.samples) == (2, 1)
        assert log.next == 13
    goes_on(path, set(range(13)), 13)


# Damage


@pytest.mark.parametrize("marked", [True, False])
def test_damage_in_the_middle_stays_and_is_named(path: Path, marked: bool) -> None:
    _, second, *_ = positions(path)
    overwrite(segment_of(path), second + HEADER_BYTES, b"\xff")
    before = segment_of(path).read_bytes()
    if not marked:
        (path / "0" / "mark").unlink()
    with Writer(path, files=QUICK) as log:
        assert not log.recovery.torn
        assert [(d.first, d.end) for d in log.recovery.damage] == [] if marked else [(3, 6)]
        assert log.next == 12
    assert segment_of(path).read_bytes() == before
    (damage,) = held(path).damage
    assert (damage.first, damage.end, damage.position) == (3, 6, second)
    assert "CRC" in damage.reason
    goes_on(path, {*range(3), *range(6, 12)}, 12)


def test_a_block_that_was_taken_out(path: Path) -> None:
    data, (_, second, third, *_) = segment_of(path).read_bytes(), positions(path)
    segment_of(path).write_bytes(data[:second] + data[third:])
    (damage,) = held(path).damage
    assert (damage.first, damage.end, damage.length) == (3, 6, 0)
    with Writer(path, files=QUICK) as log:
        assert log.next == 12  # the mark is behind the end: all is looked at
        assert log.recovery.damage[0] == damage
    assert segments(path / "0") == [0, 12]


def test_losses_that_were_taken_out_break_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Writer(path, files=QUICK) as log:
        log.write([numbered(0, 0, 1), losses(), numbered(0, 1, 1)])
    data, (_, second, third, _) = segment_of(path).read_bytes(), positions(path)
    segment_of(path).write_bytes(data[:second] + data[third:])
    (path / "0" / "mark").unlink()
    with Writer(path, files=QUICK) as log:
        (damage,) = log.recovery.damage
        assert (damage.first, damage.end, damage.position) == (1, 1, second)
        assert "does not follow" in damage.reason


def test_blocks_that_changed_places(path: Path) -> None:
    data, (_, second, third, fourth, _) = segment_of(path).read_bytes(), positions(path)
    swapped = data[:second] + data[third:fourth] + data[second:third] + data[fourth:]
    segment_of(path).write_bytes(swapped)
    found = held(path)
    assert found.by_offset() == {n: Sample(0, n) for n in (*range(3), *range(6, 12))}
    assert {(d.first, d.end) for d in found.damage} == {(3, 6), (9, 9)}


def test_the_last_segment_is_gone(path: Path) -> None:
    segment_of(path).unlink()
    with Writer(path, files=QUICK) as log:
        assert log.next == 12
        assert [(d.first, d.end) for d in log.recovery.damage] == [(0, 12)]
    goes_on(path, set(), 12)


def test_losses_that_are_gone_do_not_stop_a_writer(tmp_path: Path) -> None:
    """No sample is there, so no new segment can have another name."""
    path = tmp_path / "log"
    with Writer(path, files=QUICK) as log:
        log.write([losses()])
        log.write([losses()])
    data, (_, second, _) = segment_of(path).read_bytes(), positions(path)
    segment_of(path).write_bytes(data[: second + 5])
    with Writer(path, files=QUICK) as log:
        assert log.next == 0
        (damage,) = log.recovery.damage
        assert (damage.position, damage.length, damage.first, damage.end) == (second, 5, 0, 0)
    assert segment_of(path).read_bytes() == data[: second + 5]
    goes_on(path, set(), 0)
    assert held(path).losses == 1


@pytest.mark.parametrize("marked", [True, False])
def test_a_damaged_segment_header(path: Path, marked: bool) -> None:
    overwrite(segment_of(path), 20, b"????")
    if not marked:
        (path / "0" / "mark").unlink()
    before = segment_of(path).read_bytes()
    with Writer(path, files=QUICK) as log:
        assert log.next == 12
        assert "header is damaged" in log.recovery.damage[0].reason
    assert segments(path / "0") == [0, 12]
    assert segment_of(path).read_bytes() == before
    goes_on(path, set(range(12)), 12)


def test_a_mark_that_cannot_be_is_none(path: Path) -> None:
    mark = Mark(1 << 63, 5, 0, 60, 0, 0, 1)
    for bad in (mark, mark._replace(sequence=9, offset=1 << 63), mark._replace(segment=6)):
        (path / "0" / "mark").write_bytes(bad.encode() * 2)
        with Writer(path, files=QUICK) as log:
            assert log.recovery.mark is None
            assert log.next == 12
            assert Mark.decode((path / "0" / "mark").read_bytes()) == log.mark
    goes_on(path, set(range(12)), 12)


def fake_block(path: Path, base: int) -> bytes:
    """A header that promises a good block, 92 bytes of many."""
    data = bytearray(segment_of(path).read_bytes()[SEGMENT_BYTES:][:HEADER_BYTES])
    struct.pack_into("<I", data, 8, 1 << 20)
    struct.pack_into("<Q", data, 32, base)
    return bytes(data)


def test_a_search_has_an_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks may follow where the search ends: the tail stays, and another segment begins."""
    monkeypatch.setattr(recovery, "MAX_SEARCH_BYTES", 50 << 20)
    decoded = 0
    check = Block.decode

    def count(data: Buffer, pos: int) -> Block:
        nonlocal decoded
        decoded += 1
        return check(data, pos)

    monkeypatch.setattr(Block, "decode", count)
    with segment_of(path).open("ab") as file:
        file.write(fake_block(path, 50) * 20_000)
    before = segment_of(path).stat().st_size
    with Writer(path, files=QUICK) as log:
        assert not log.recovery.torn
        assert len(log.recovery.damage) == 1
        assert log.next == 12
    assert decoded < 100
    assert segment_of(path).stat().st_size == before
    assert segments(path / "0") == [0, 12]


def test_every_flipped_bit_of_a_segment(tmp_path: Path) -> None:
    """Never a wrong sample; what is missing is named exactly; the blocks around it are read."""
    path = tmp_path / "log"
    with Writer(path, files=QUICK) as log:
        log.write([numbered(0, 0, 2), losses(), numbered(0, 2, 2), numbered(0, 4, 2)])
    file, log_id, places = segment_of(path), read_id(path), positions(path)
    good = file.read_bytes()
    spans = [(0, 2), (2, 2), (2, 4), (4, 6)]
    for bit in range(8 * SEGMENT_BYTES, 8 * len(good)):
        place = bit >> 3
        overwrite(file, place, bytes([good[place] ^ 1 << (bit & 7)]))
        walk = SegmentWalk(file, log_id, 0, SEGMENT_BYTES, 0)
        found = {
            offset: sample
            for block in walk
            for offset, sample in enumerate(samples_of(block), block.header.base)
        }
        overwrite(file, place, good[place : place + 1])
        hit = sum(position <= place for position in places) - 1
        first, end = spans[hit]
        assert found == {n: Sample(0, n) for n in range(6) if not first <= n < end}
        if hit == 3:
            assert not walk.damage
            assert (walk.position, walk.offset) == (places[3], 4)
            assert walk.reason
        else:
            (damage,) = walk.damage
            assert (damage.position, damage.first, damage.end) == (places[hit], first, end)


def test_a_flipped_bit_of_every_byte_when_opened(path: Path, tmp_path: Path) -> None:
    """With a mark no offset is used again; without one, none that a good block names."""
    good = segment_of(path).read_bytes()
    *_, last, _ = positions(path)
    chance = random.Random(SEED)
    trial = Copy(path, tmp_path / "copy")
    for place in range(len(good)):
        copy = trial.path
        overwrite(segment_of(copy), place, bytes([good[place] ^ 1 << chance.randrange(8)]))
        marked = place % 2 == 0
        if not marked:
            (copy / "0" / "mark").unlink()
        with Writer(copy, files=QUICK) as log:
            first = log.next
            assert first == (9 if place >= last and not marked else 12)
            log.write([numbered(1, 0, 1)])
        found = held(copy).by_offset()
        assert found.pop(first) == Sample(1, 0)
        assert len(found) >= 9
        assert all(sample == Sample(0, offset) for offset, sample in found.items())
        trial.restore()


# Files that were changed


def mutate(data: bytes, chance: random.Random) -> bytes:
    """One or more changes, of the kinds that disks and people make."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(changed) + 1)
        end = min(len(changed), at + chance.choice((1, 2, 4, 8, 60, 300)))
        match chance.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                del changed[at:end]
            case 3:
                changed[at:at] = chance.randbytes(chance.choice((1, 3, 90)))
            case 4:
                changed[at:end] = bytes(end - at)
            case 5:
                changed[at:end] = b"\xff" * (end - at)
            case _:
                piece = changed[at:end]
                to = chance.randrange(len(changed) + 1)
                changed[to:to] = piece
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 300)
def test_files_that_somebody_changed(tmp_path: Path) -> None:
    """A clear error or a log that goes on, never a wrong sample, never memory without measure."""
    template = tmp_path / "template"
    with Writer(template, rotate_bytes=900, files=QUICK) as log:
        for number in range(8):
            log.write([numbered(0, 2 * number, 2), losses()])
    trial = Copy(template, tmp_path / "copy")
    # The last segment and the mark are what opening reads; the others are read by a walk.
    often = [f"0/{segment_name(segments(template / '0')[-1])}", "0/mark"]
    names = [*trial.content, *(Path(name) for name in often * 3)]
    chance = random.Random(SEED)
    opened = 0
    for number in range(MUTATIONS):
        name = chance.choice(names)
        replace(trial.path / name, mutate(trial.content[name], chance))
        measured = number % MEASURED == 0
        if measured:
            tracemalloc.start()
        try:
            opened += open_and_read(trial.path)
            assert not measured or tracemalloc.get_traced_memory()[1] < MAX_MEMORY
        except BaseException as error:
            error.add_note(f"mutation {number} of {name}")
            raise
        finally:
            if measured:
                tracemalloc.stop()
        trial.restore()
    assert opened > MUTATIONS / 4


def open_and_read(path: Path) -> bool:
    try:
        with Writer(path, files=QUICK) as log:
            first = log.next
            log.write([numbered(1, 0, 1)])
        found = held(path).by_offset()
    except ZError as error:
        assert str(path) in str(error)
        return False
    assert found.pop(first) == Sample(1, 0)
    assert all(sample == Sample(0, offset) for offset, sample in found.items())
    return True
