"""The writer of a partition when nothing goes wrong: offsets, rotation, retention, marks."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.numbered_samples import QUICK, Sample, held, losses, numbered
from zenlake.errors import ZError
from zenlake.log.files import MAX_OFFSET, read_id, segment_name, segments
from zenlake.log.format import (
    CODECS,
    SEGMENT_BYTES,
    SETTLED,
    WRITING,
    Block,
    Mark,
    SegmentHeader,
)
from zenlake.log.read.durable_mark import read_mark
from zenlake.log.read.retention import MAX_REMOVED
from zenlake.log.write.writer import Writer

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
NOW = 20_000 * DAY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some" / "where" / "log"


def sizes(path: Path) -> list[int]:
    folder = path / "0"
    return [(folder / segment_name(base)).stat().st_size for base in segments(folder)]


def test_a_new_log(path: Path) -> None:
    with Writer(path, clock=lambda: NOW) as log:
        assert log.next == 0
        assert log.path == path
        assert log.log_id == read_id(path)
        assert read_mark(path / "0") == log.mark
        assert log.mark.state == WRITING
        assert log.recovery.mark is None
        assert not log.recovery.torn
        assert log.disk_left() > 0
        head = SegmentHeader.decode((path / "0" / segment_name(0)).read_bytes())
        assert head == SegmentHeader(0, log.log_id, 0, NOW, 0)
    names = {str(file.relative_to(path)) for file in path.rglob("*")}
    assert names == {"log.json", "0", "0/lock", "0/mark", f"0/{segment_name(0)}"}


def test_offsets_go_on_over_writers_and_segments(path: Path) -> None:
    number = 0
    for _ in range(4):
        with Writer(path, rotate_bytes=1000, files=QUICK) as log:
            assert log.next == number
            assert not log.recovery.damage
            assert not log.recovery.torn
            assert log.recovery.walked == 0
            for group in range(5):
                mark = log.write([numbered(0, number, group), numbered(0, number + group, 1)])
                number += group + 1
                assert mark.offset == log.next == number
                assert mark == read_mark(path / "0")
    assert held(path).by_offset() == {offset: Sample(0, offset) for offset in range(number)}
    assert len(segments(path / "0")) > 4
    assert max(sizes(path)) <= 1000


def test_blocks_and_segments_are_a_chain(path: Path) -> None:
    with Writer(path, rotate_bytes=900, files=QUICK) as log:
        for number in range(12):
            log.write([losses(), numbered(0, number, 1)])
    last = 0
    for base in segments(path / "0"):
        data = (path / "0" / segment_name(base)).read_bytes()
        assert SegmentHeader.decode(data).previous == last
        position = SEGMENT_BYTES
        while position < len(data):
            head = Block.decode(data, position).header
            assert head.previous == last
            position, last = position + head.length, head.crc
    mark = read_mark(path / "0")
    assert mark is not None
    assert mark.last == last
    assert mark.position == position
    assert mark.state == SETTLED


def test_a_group_longer_than_a_segment(path: Path) -> None:
    with Writer(path, rotate_bytes=500, files=QUICK) as log:
        for number in range(3):
            log.write([numbered(0, number, 1, pad=2000)])
    assert segments(path / "0") == [0, 1, 2]
    assert len(held(path).by_offset()) == 3


def test_losses_alone_start_no_segment(path: Path) -> None:
    """A segment has the name of its first offset: two cannot begin at the same."""
    with Writer(path, rotate_bytes=300, files=QUICK) as log:
        for _ in range(8):
            log.write([losses()])
        assert segments(path / "0") == [0]
        log.write([numbered(0, 0, 1)])
        log.write([losses()])
        assert segments(path / "0") == [0, 1]
    found = held(path)
    assert found.losses == 9
    assert not found.damage


def test_writing_nothing_changes_nothing(path: Path) -> None:
    with Writer(path, files=QUICK) as log:
        before = log.mark
        assert log.write([]) == before
        assert log.write([numbered(0, 0, 0)]) == before
        assert sizes(path) == [SEGMENT_BYTES]


@pytest.mark.parametrize("codec", CODECS)
def test_blocks_of_each_codec_are_read_as_they_were_written(path: Path, codec: str) -> None:
    with Writer(path, codec=codec, files=QUICK) as log:
        log.write([numbered(0, 0, 1000)])
    assert list(held(path).by_offset().values()) == [Sample(0, n) for n in range(1000)]
    assert (sizes(path)[0] < 12_000) == (codec != "none")


def test_a_closed_writer(path: Path) -> None:
    log = Writer(path, files=QUICK)
    log.write([numbered(0, 0, 1)])
    log.close()
    log.close()
    with pytest.raises(ZError, match="is closed"):
        log.write([numbered(0, 1, 1)])


def test_the_time_of_the_mark_never_goes_back(path: Path) -> None:
    with Writer(path, files=QUICK) as log:
        for time, expected in ((50, 50), (40, 50), (60, 60)):
            assert log.write([numbered(0, log.next, 1, time=time)]).time == expected
    with Writer(path, files=QUICK) as log:
        assert log.write([numbered(0, log.next, 1, time=10)]).time == 60


def test_marks_take_turns(path: Path) -> None:
    with Writer(path, files=QUICK) as log:
        marks = [log.write([numbered(0, number, 1)]) for number in range(3)]
        assert [mark.sequence for mark in marks] == list(
            range(marks[0].sequence, marks[0].sequence + 3)
        )
        data = (path / "0" / "mark").read_bytes()
        assert Mark.decode(data[marks[1].place :][:64]) == marks[1]
        assert Mark.decode(data) == marks[2]


def test_partitions_that_create_a_log_together(path: Path) -> None:
    ids: list[bytes] = []

    def write(partition: int) -> None:
        with Writer(path, partition) as log:
            log.write([numbered(partition, 0, 2)])
            ids.append(log.log_id)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids == [read_id(path)] * 6
    for partition in range(6):
        assert list(held(path, partition).by_offset().values()) == [
            Sample(partition, 0),
            Sample(partition, 1),
        ]


def test_a_write_beyond_the_last_offset_is_refused(path: Path) -> None:
    with Writer(path, files=QUICK) as log:
        log.mark = log.mark._replace(offset=MAX_OFFSET - 2)
        with pytest.raises(ZError, match="no more offsets"):
            log.write([numbered(0, 0, 3)])


# Retention


def fill(log: Writer, times: list[int]) -> None:
    """One segment a time."""
    for time in times:
        log.write([numbered(0, log.next, 1, time=time, pad=1000)])


def open_at(path: Path, clock: Callable[[], int] = lambda: NOW, **options: object) -> Writer:
    return Writer(path, rotate_bytes=1200, files=QUICK, clock=clock, **options)  # type: ignore[arg-type]


def test_retention_by_size(path: Path) -> None:
    with open_at(path, retain_bytes=4000) as log:
        fill(log, [NOW] * 10)
        (path / "0" / "00000000000000000007.zidx").touch()
        assert segments(path / "0") == [6, 7, 8, 9]  # the open one comes on top
        assert log.removed.segments == 6
        fill(log, [NOW] * 2)
        assert not (path / "0" / "00000000000000000007.zidx").exists()
    assert sorted(held(path).by_offset()) == [8, 9, 10, 11]


def test_the_open_segment_always_stays(path: Path) -> None:
    with open_at(path, retain_bytes=0, retain_seconds=0.0) as log:
        fill(log, [NOW] * 5)
        assert segments(path / "0") == [4]
        assert log.trim() == (0, 0)
        assert log.next == 5


def test_retention_by_age(path: Path) -> None:
    with open_at(path, retain_seconds=10.0) as log:
        fill(log, [NOW - age * SECOND for age in (40, 30, 20, 0, 0)])
        assert segments(path / "0") == [3, 4]


def test_retention_by_age_of_what_others_wrote(path: Path) -> None:
    with open_at(path) as log:
        fill(log, [NOW - age * SECOND for age in (40, 30, 20, 9, 8, 7, 0)])
    for seconds, left in ((10.0, [3, 4, 5, 6]), (7.5, [5, 6])):
        with open_at(path, retain_seconds=seconds) as log:
            log.trim()
            assert segments(path / "0") == left


@pytest.mark.parametrize("jump", [-10 * 365 * DAY, -DAY, -3600 * SECOND, 0])
def test_a_clock_that_jumps_back_or_stands_removes_nothing(path: Path, jump: int) -> None:
    now = NOW
    with open_at(path, clock=lambda: now, retain_seconds=3600.0) as log:
        fill(log, [NOW + n for n in range(4)])
        now = NOW + jump
        fill(log, [now + n for n in range(4)])
        assert log.trim() == (0, 0)
    assert len(held(path).by_offset()) == 8


@pytest.mark.parametrize("wrong", ["samples", "clock"])
def test_one_clock_alone_that_jumps_ahead_removes_nothing(path: Path, wrong: str) -> None:
    """A stray time of reception, or a machine whose clock is wrong at the moment of removal."""
    now = NOW
    with open_at(path, clock=lambda: now, retain_seconds=3600.0) as log:
        fill(log, [NOW] * 4)
        if wrong == "samples":
            fill(log, [NOW + 3650 * DAY])
        else:
            now += 3650 * DAY
        fill(log, [NOW])
        assert log.trim() == (0, 0)
    assert len(held(path).by_offset()) == log.next


def test_one_run_removes_so_much_and_no_more(path: Path) -> None:
    now = NOW
    with open_at(path, clock=lambda: now, retain_seconds=3600.0) as log:
        fill(log, [NOW] * (2 * MAX_REMOVED))
        now += 3650 * DAY
        log.write([numbered(0, log.next, 1, time=now)])
        assert log.trim().segments == MAX_REMOVED
        assert log.trim().segments == MAX_REMOVED
        assert log.trim().segments == 0


def test_a_damaged_segment_goes_with_the_next_one(path: Path) -> None:
    with open_at(path) as log:
        fill(log, [NOW - 30 * SECOND, NOW - 20 * SECOND, NOW])
    with (path / "0" / segment_name(0)).open("r+b") as file:
        file.seek(SEGMENT_BYTES)
        file.write(bytes(10))
    with open_at(path, retain_seconds=25.0) as log:
        assert log.trim().segments == 0
    with open_at(path, retain_seconds=15.0) as log:
        assert log.trim().segments == 2
