"""A log as readers see it: the mark and who settles it, what is there, verify and trim."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.handmade_logs import LOG_ID, TIME, Made, block_of, loss_block, numbered_log
from zenlake.errors import ZError
from zenlake.log.format import SEGMENT_BYTES, SETTLED, WRITING, Mark, SegmentHeader
from zenlake.log.read.log import Log

SECOND = 10**9


@contextmanager
def locked(made: Made) -> Iterator[None]:
    """As a writer has it."""
    lock = os.open(made.folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def stored(made: Made) -> Mark | None:
    file = made.folder / "mark"
    return Mark.decode(file.read_bytes()) if file.exists() else None


def damage(log: Log, *args: Any) -> list[tuple[int, int]]:
    return [(each.first, each.end) for each in log.damage(0, *args)]


# ---- what is a log


def test_a_folder_that_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(ZError, match=r"is not a log: log\.json is missing"):
        Log(tmp_path)
    with pytest.raises(ZError, match="is not a log"):
        Log(tmp_path / "nowhere")
    made = Made(tmp_path / "log")
    for text, problem in (
        ('{"format": 2, "id": "00"}', "format 2 is unknown"),
        ("{}", "does not say which log"),
        ('{"format": 1, "id": "xyz"}', "32 hex digits"),
    ):
        (made.path / "log.json").write_text(text)
        with pytest.raises(ZError, match=problem):
            Log(made.path)


def test_id_and_partitions(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [1])
    for name in ("12", "7", "07", "spark", "³", "-1"):
        (made.path / name).mkdir()
    log = Log(str(made.path))
    assert (log.id, log.partitions()) == (LOG_ID.hex(), [0, 7, 12])
    with pytest.raises(ZError, match=r"no partition 3: there are \[0, 7, 12\]"):
        log.mark(3)
    assert (log.mark(7).offset, log.first(7), len(log.blocks(7)), log.offset_at(7, 0)) == (
        *(0, 0, 0, 0),
    )


# ---- the mark


def test_a_settled_mark_is_taken_as_it_is(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2, 3])
    mark = stored(made)
    assert Log(made.path).mark(0) == mark
    assert not (made.folder / "lock").exists()


def test_a_mark_is_not_touched_while_somebody_writes(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2)])
    mark = made.mark(WRITING)
    made.append([block_of(2, 2)])
    log = Log(made.path)
    with locked(made):
        assert log.mark(0) == mark == stored(made)
        assert log.blocks(0)["base"].tolist() == [0]
    settled = log.mark(0)
    assert (settled.offset, settled.state, settled.sequence) == (4, SETTLED, mark.sequence + 1)
    assert settled == stored(made)
    assert log.blocks(0)["base"].tolist() == [0, 2]


def test_before_there_is_a_mark_nothing_is_durable(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2)])
    log = Log(made.path)
    with locked(made):
        assert (log.mark(0).offset, log.mark(0).state) == (0, WRITING)
    assert log.mark(0).offset == 2


@pytest.mark.parametrize("tail", [b"", b"\0" * 200, b"garbage", b"ZBLK" + b"\1" * 300])
@pytest.mark.parametrize("marked", [True, False])
def test_settling_ends_behind_the_last_good_block(
    tmp_path: Path, tail: bytes, marked: bool
) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2)])
    made.segment([block_of(2, 3)])
    if marked:
        made.mark(WRITING)
    made.append([block_of(5, 4), loss_block(TIME + 10**12)])
    end = made.file.stat().st_size
    with made.file.open("ab") as file:
        file.write(tail)
    mark = Log(made.path).mark(0)
    assert (mark.offset, mark.segment, mark.position, mark.last) == (9, 2, end, made.last)
    assert mark.time == TIME + 10**12
    assert stored(made) == mark
    log = Log(made.path)
    assert log.blocks(0)["base"].tolist() == [0, 2, 5, 9]
    assert damage(log) == []
    assert made.file.stat().st_size == end + len(tail)  # Only a writer cuts tails.


def test_settling_goes_on_to_segments_that_no_mark_names(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2)])
    made.mark(WRITING)
    made.append([block_of(2, 1)])
    made.segment([block_of(3, 3)])
    (made.folder / f"{6:020}.zlog").write_bytes(b"ZENLOG")  # half made
    mark = Log(made.path).mark(0)
    assert (mark.offset, mark.segment, mark.position) == (6, 3, made.file.stat().st_size)
    assert Log(made.path).blocks(0)["base"].tolist() == [0, 2, 3]


def test_settling_an_empty_segment(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2)])
    made.mark(WRITING)
    made.segment([])
    mark = Log(made.path).mark(0)
    assert (mark.offset, mark.segment, mark.position) == (2, 2, SEGMENT_BYTES)
    assert mark.last == made.last


def test_a_mark_beyond_what_is_there_stays_and_the_rest_is_damage(tmp_path: Path) -> None:
    for state in (WRITING, SETTLED):
        made = Made(tmp_path / f"log{state}")
        made.segment([block_of(0, 2), block_of(2, 3)])
        made.mark(state)
        os.truncate(made.file, made.position(0, 1) + 20)
        log = Log(made.path)
        assert log.mark(0).offset == 5
        assert log.blocks(0)["base"].tolist() == [0]
        assert damage(log) == [(2, 5)]
        assert [(each.first, each.end) for each in log.verify().damage] == [(2, 5)]


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2), block_of(2, 3)])
    opened, looks = os.open, []

    def only_reading(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "only to be read", str(path))
        if str(path).endswith(".zlog"):
            looks.append(path)
        return opened(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", only_reading)
    log = Log(made.path)
    assert (log.mark(0).offset, log.mark(0).state) == (5, SETTLED)
    assert log.blocks(0)["base"].tolist() == [0, 2]
    assert stored(made) is None
    count = len(looks)
    log.mark(0)
    log.blocks(0)
    assert len(looks) == count  # the blocks are not walked again


def test_a_mark_whose_slots_are_damaged(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2], [3])
    (made.folder / "mark").write_bytes(b"\xff" * 128)
    assert Log(made.path).mark(0).offset == 5
    (made.folder / "mark").write_bytes(b"")
    assert Log(made.path).mark(0).offset == 5


# ---- blocks


def test_blocks_of_a_range(tmp_path: Path) -> None:
    log = Log(numbered_log(tmp_path / "log", [2, 3], [4, 1], [5]).path)
    ends = {0: 2, 2: 5, 5: 9, 9: 10, 10: 15}
    for start in range(16):
        for end in range(start, 16):
            wanted = [b for b, e in ends.items() if b < end and e > start]
            assert log.blocks(0, start, end)["base"].tolist() == wanted
    assert log.blocks(0)["segment"].tolist() == [0, 0, 5, 5, 10]


def test_the_block_before_comes_too_if_it_ends_with_a_loss(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2), loss_block()])
    made.segment([loss_block(), block_of(2, 2)])
    made.mark()
    log = Log(made.path)
    assert log.blocks(0, 2, 4)["samples"].tolist() == [0, 0, 2]
    assert log.blocks(0, 0, 2)["samples"].tolist() == [2]
    assert log.blocks(0, 3, 4)["samples"].tolist() == [2]


def test_what_a_failed_write_left_behind_does_not_count(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2)])
    kept, last = made.offset, made.last
    made.append([loss_block(), block_of(2, 5), loss_block()])  # never acknowledged
    with made.file.open("ab") as file:
        file.write(b"and half a block")
    made.offset, made.last = kept, last
    made.segment([loss_block(), block_of(2, 3)])  # again
    made.mark()
    log = Log(made.path)
    table = log.blocks(0)
    assert [(int(row["segment"]), int(row["base"])) for row in table] == [(0, 0), (2, 2), (2, 2)]
    assert table["samples"].tolist() == [2, 0, 3]
    assert damage(log) == []
    assert log.verify().ok


def test_segments_that_are_missing_foreign_or_empty(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2], [3], [4])
    middle = made.folder / f"{2:020}.zlog"
    whole = middle.read_bytes()
    foreign = SegmentHeader(0, bytes(16), 2, TIME, 0).encode() + whole[SEGMENT_BYTES:]
    other = numbered_log(tmp_path / "other", [2], [3])
    for data in (None, b"", whole[:30], foreign, other.file.read_bytes()[:-1]):
        if data is None:
            middle.unlink()
        else:
            middle.write_bytes(data)
        log = Log(made.path)
        assert damage(log) == [(2, 5)], data
        assert log.blocks(0)["base"].tolist() == [0, 5]
        assert not log.verify().ok
        assert damage(log, 0, 2) == damage(log, 5) == []
    middle.write_bytes(whole)
    assert damage(Log(made.path)) == []


def test_a_last_block_that_says_another_number_of_samples(tmp_path: Path) -> None:
    for more in (1, -1):
        made = numbered_log(tmp_path / f"log{more}", [2, 3])
        with made.file.open("r+b") as file:
            os.pwrite(file.fileno(), bytes([3 + more]), made.position(0, 1) + 56)
        log = Log(made.path)
        assert damage(log) == [(2, 5) if more > 0 else (4, 5)]
        assert [(each.first, each.end) for each in log.verify().damage][-1][1] == 5


def test_looking_again_finds_what_is_new_and_what_is_gone(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2])
    log = Log(made.path)
    for number in range(1, 30):
        assert log.blocks(0)["base"].tolist() == list(range(0, 2 * number, 2))[-5:]
        made.segment([block_of(made.offset, 2)])
        made.mark()
        if number >= 5:
            (made.folder / f"{2 * (number - 5):020}.zlog").unlink()
    assert log.first(0) == 50


@pytest.mark.process
def test_planning_needs_neither_numba_nor_arrow_nor_the_network(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2], [3])
    code = (
        "import sys\nfrom zenlake.log.read.log import Log\n"
        f"log = Log({str(made.path)!r})\n"
        "log.mark(0), log.first(0), log.blocks(0), log.offset_at(0, 0), log.partitions()\n"
        "heavy = {'numba', 'llvmlite', 'pyarrow', 'zenlake.runtime', 'zenlake.link', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


# ---- times


def test_the_first_sample_at_or_after_a_time(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 10, each=2), loss_block(TIME + 15 * SECOND)])
    made.segment([block_of(10, 10, each=5)], "zstd")
    made.mark()
    log = Log(made.path)
    for time, offset in ((-5, 0), (0, 0), (1, 2), (2, 2), (8, 8), (9, 10), (11, 15), (16, 20)):
        assert log.offset_at(0, TIME + time * SECOND) == offset, time
    assert log.offset_at(0, TIME + 2 * SECOND + 1) == 4


def test_a_clock_that_went_back(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 3), block_of(3, 3, time=TIME - 100 * SECOND), block_of(6, 3)])
    made.mark()
    log = Log(made.path)
    assert log.offset_at(0, TIME + SECOND) == 1
    assert log.offset_at(0, TIME + 5 * SECOND) == 6


def test_a_time_that_leads_to_a_damaged_block(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [3, 3])
    with made.file.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff", made.position(0, 1) - 1)
    assert Log(made.path).offset_at(0, TIME) == 0  # A reader from there reports it.
    assert Log(made.path).offset_at(0, TIME + 4 * SECOND) == 4


# ---- verify


def test_verify_counts_and_tells_how_far_it_is(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2, 3], [4])
    made.append([loss_block()])
    made.mark()
    (made.folder / "torn").mkdir()
    (made.folder / "torn" / "some").write_bytes(b"x")
    told: list[tuple[int, int]] = []
    report = Log(made.path).verify(lambda done, total: told.append((done, total)))
    (partition,) = report.partitions
    assert report.ok
    assert (partition.first, partition.end, partition.segments, partition.blocks) == (0, 9, 2, 4)
    assert (partition.samples, partition.losses) == (9, 1)
    assert [path.name for path in partition.torn] == ["some"]
    assert partition.bytes == sum(path.stat().st_size for path in made.folder.glob("*.zlog"))
    assert told == sorted(told)
    assert told[-1][0] == partition.bytes - 2 * SEGMENT_BYTES


def test_verify_sees_what_reading_headers_does_not(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2, 3], [4], [1])
    Log(made.path).blocks(0)  # caches are there, and not believed
    first = made.folder / f"{0:020}.zlog"
    with first.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff", made.position(0, 1) - 1)
        os.pwrite(file.fileno(), b"\xff", 20)
    report = Log(made.path).verify()
    assert [(each.first, each.end) for each in report.damage] == [(0, 0), (0, 2)]
    assert (report.partitions[0].samples, report.partitions[0].blocks) == (8, 3)


def test_verify_sees_that_a_block_of_losses_is_missing_at_a_segments_end(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    first = made.segment([block_of(0, 2), loss_block()])
    end = made.position(0, 1)
    made.segment([block_of(2, 2)])
    made.mark()
    assert Log(made.path).verify().ok
    os.truncate(first, end)
    (span,) = Log(made.path).verify().damage
    assert (span.first, span.end) == (2, 2)
    assert span.reason == "a block does not follow the one before it"


# ---- trim


def bases(made: Made) -> list[int]:
    return sorted(int(path.stem) for path in made.folder.glob("*.zlog"))


@pytest.mark.parametrize(
    ("offset", "left"), [(0, 0), (1, 0), (2, 2), (4, 2), (8, 5), (9, 9), (10**6, 9)]
)
def test_trim_by_offset(tmp_path: Path, offset: int, left: int) -> None:
    made = numbered_log(tmp_path / "log", [2], [3], [4], [1])
    log = Log(made.path)
    log.blocks(0)
    removed = log.trim(before_offset=offset)
    assert bases(made)[0] == log.first(0) == left
    assert removed.segments == 4 - len(bases(made))
    assert {path.stem for path in made.folder.glob("*.zidx")} <= {f"{b:020}" for b in bases(made)}
    assert log.blocks(0)["base"].tolist() == bases(made)
    assert log.verify().ok


def test_trim_by_time_and_by_size(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2], [3], [4], [1])
    log = Log(made.path)
    assert log.trim(before_time=TIME + 4 * SECOND).segments == 1  # offset 4 is at that time
    assert bases(made) == [2, 5, 9]
    sizes = [(made.folder / f"{base:020}.zlog").stat().st_size for base in bases(made)]
    assert log.trim(keep_bytes=sum(sizes)).segments == 0
    assert log.trim(keep_bytes=sum(sizes[1:])) == (1, sizes[0])
    assert log.trim(keep_bytes=0).segments == 1
    assert bases(made) == [9]
    assert log.trim(before_time=TIME * 2, before_offset=10, keep_bytes=0).segments == 0


def test_trim_beside_a_writer_leaves_the_open_segment(tmp_path: Path) -> None:
    made = Made(tmp_path / "log")
    made.segment([block_of(0, 2)])
    made.segment([block_of(2, 2)])
    made.mark(WRITING)
    made.segment([block_of(4, 2)])  # not acknowledged yet
    log = Log(made.path)
    with locked(made):
        assert log.trim(before_offset=100).segments == 1
        assert (bases(made), log.first(0), log.mark(0).offset) == ([2, 4], 2, 4)


def test_trim_needs_a_partition_for_an_offset(tmp_path: Path) -> None:
    made = numbered_log(tmp_path / "log", [2], [3])
    (made.path / "1").mkdir()
    log = Log(made.path)
    with pytest.raises(ZError, match="name one of"):
        log.trim(before_offset=2)
    assert log.trim(before_offset=2, partition=0).segments == 1
