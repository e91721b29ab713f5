"""Samples that came before are recognised: the same ones however often a range is planned."""

import pickle
import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.support import spark_numbered
from tests.support.spark_numbered import SECOND, START, Sample
from zenlake.errors import ZError
from zenlake.log.block import Loss
from zenlake.log.format import SOURCE
from zenlake.log.read.log import Log
from zenlake.log.read.reader import Reader
from zenlake.log.write.writer import Writer
from zenlake.spark import duplicates
from zenlake.spark.duplicates import (
    GENERATIONS,
    DuplicateFinder,
    Intervals,
    SequenceHistory,
    pack_offsets,
    unpack_mask,
)
from zenlake.spark.log_source import LogReader, LogStreamReader
from zenlake.spark.options import Options, Purpose
from zenlake.spark.schema import SAMPLE_COLUMNS, select_columns, with_duplicate, with_loss
from zenlake.spark.source import ZenohDataSource

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHIN = 40  # Seconds: generations of ten.
WAIT_SECONDS = 120
LAST = (1 << 32) - 1


# ---- sets

few = st.sets(st.integers(0, 30))


@given(few, few)
def test_intervals_are_sets(members: set[int], other: set[int]) -> None:
    a, b = (Intervals.of(np.array(sorted(numbers), np.int64)) for numbers in (members, other))
    every = np.arange(-1, 32)
    assert every[a.contains(every)].tolist() == sorted(members)
    assert a.intersects(b) == bool(members & other)
    both = a.union(b)
    assert every[both.contains(every)].tolist() == sorted(members | other)
    assert (both.starts < both.ends).all()
    assert (both.ends[:-1] < both.starts[1:]).all()


@given(st.sets(st.integers(10, 40)))
def test_a_task_is_told_its_offsets(offsets: set[int]) -> None:
    told = np.array(sorted(offsets), np.int64)
    mask = unpack_mask(pack_offsets(told, 15, 33), 18)
    assert (np.flatnonzero(mask) + 15).tolist() == [offset for offset in told if 15 <= offset < 33]


NAMES = [bytes([n]) * 16 + bytes(4) for n in range(3)] + [bytes(16) + bytes([0, 0, 0, 1])]
numbers = st.integers(0, 12) | st.integers(LAST - 3, LAST)
seconds = st.integers(0, 160)
parts = st.lists(st.lists(st.tuples(st.integers(0, 3), numbers, seconds), max_size=30), max_size=5)


@settings(deadline=None)
@given(parts, st.booleans())
def test_what_was_seen_is_a_list_that_is_searched(
    parts: list[list[tuple[int, int, int]]], written: bool
) -> None:
    """The model: every sample, and the generation it was received in."""
    seen, model = SequenceHistory(WITHIN), list[tuple[int, int, int]]()
    for part in parts:
        codes, sns, times = np.array(part, np.int64).reshape(-1, 3).T
        expected = []
        for code, sn, time in part:
            generation = time // (WITHIN // GENERATIONS)
            expected.append(
                any((code, sn) == entry[:2] and abs(entry[2] - generation) <= 4 for entry in model)
            )
            model.append((code, sn, generation))
        assert seen.find(NAMES, codes, sns, times * SECOND).tolist() == expected
        if written:
            again = SequenceHistory.from_bytes(seen.to_bytes("here"), "here", WITHIN)
            assert again is not None
            seen = again
    assert seen.forgotten == 0


def looked_up(seen: SequenceHistory, code: int, sns: Sequence[int], at: int = 0) -> list[bool]:
    n = len(sns)
    found = seen.find(NAMES, np.full(n, code), np.array(sns), np.full(n, at * SECOND))
    return [bool(repeated) for repeated in found]


def test_numbers_wrap_around_to_other_numbers() -> None:
    seen = SequenceHistory(WITHIN)
    assert not any(looked_up(seen, 0, [LAST - 1, LAST, 0, 1]))
    assert not any(looked_up(seen, 1, [LAST, 0]))
    assert all(looked_up(seen, 0, [0, LAST]))
    assert looked_up(seen, 2, [0, LAST]) == [False, False]


def test_old_generations_and_their_sources_are_forgotten() -> None:
    seen = SequenceHistory(WITHIN)
    for number, name in enumerate((3, 0, 2, 1)):
        looked_up(seen, name, [5, 6, 9], at=10 * number)
    assert (seen.sources, len(seen)) == (4, 8)
    seen.forget_before(2)
    assert (seen.sources, len(seen), seen.floor) == (2, 4, 2)
    assert looked_up(seen, 2, [5, 7, 9], at=30) == [True, False, True]
    assert looked_up(seen, 1, [5, 6, 8, 9], at=30) == [True, True, False, True]
    assert not any(looked_up(seen, 0, [5, 6, 9], at=30))


def test_there_are_limits_and_what_they_cost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "MAX_INTERVALS", 10)
    seen = SequenceHistory(WITHIN)
    looked_up(seen, 0, range(0, 16, 2), at=0)
    looked_up(seen, 1, range(0, 10, 2), at=10)
    assert (len(seen), seen.sources, seen.forgotten) == (5, 1, 8)
    assert all(looked_up(seen, 1, range(0, 10, 2), at=11))
    monkeypatch.setattr(duplicates, "MAX_SOURCES", 2)
    for name in range(3):
        looked_up(seen, name, [1], at=20 + name)
    assert seen.sources <= 2
    assert seen.forgotten > 8


def test_bytes_that_are_not_whole_or_of_something_else_are_nothing() -> None:
    seen = SequenceHistory(WITHIN, floor=3)
    looked_up(seen, 0, [1, 2, 4], at=30)
    data = seen.to_bytes("here")
    again = SequenceHistory.from_bytes(data, "here", WITHIN)
    assert again is not None
    assert (again.floor, len(again), again.sources) == (3, 2, 1)
    assert SequenceHistory.from_bytes(data, "there", WITHIN) is None
    assert SequenceHistory.from_bytes(data, "here", WITHIN + 1) is None
    for cut in (0, 20, 32, len(data) // 2, len(data) - 1):
        assert SequenceHistory.from_bytes(data[:cut], "here", WITHIN) is None
    for place in range(0, len(data), 97):
        torn = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        assert SequenceHistory.from_bytes(torn, "here", WITHIN) is None


# ---- source numbers in a log


def sent(rows: int, sources: int = 5, seed: int = 1, repeats: float = 0.2) -> list[Sample]:
    """As from a network: some come again, soon after; some have no source."""
    chance = random.Random(seed)
    found: list[Sample] = []
    last = [LAST - 20] * sources
    while len(found) < rows:
        if found and chance.random() < repeats:
            found.append(chance.choice(found[-25:]))
        elif chance.random() < 0.1:
            found.append(None)
        else:
            who = chance.randrange(sources)
            last[who] = (last[who] + chance.choice((1, 1, 1, 2))) % (LAST + 1)
            found.append((who, last[who]))
    return found


def expected_repeats(*partitions: Sequence[Sample]) -> list[list[int]]:
    """Of samples that are all received within the time, partition after partition."""
    seen = set[Sample]()
    found = []
    for samples in partitions:
        here = []
        for offset, sample in enumerate(samples):
            if sample is not None and sample in seen:
                here.append(offset)
            seen.add(sample)
        found.append(here)
    return found


def test_the_reader_gives_the_numbers_alone(tmp_path: Path) -> None:
    samples = sent(200, sources=80)  # more than there is room for at first
    spark_numbered.append(tmp_path, samples)
    for start, end, since in ((0, 200, 0), (3, 61, 0), (50, 200, 10)):
        got = []
        for part in Reader(tmp_path, 0).numbered(start, end, start_time=START + since * SECOND):
            for offset, time, code, number in zip(
                part.offsets.tolist(),
                part.times.tolist(),
                part.codes.tolist(),
                part.numbers.tolist(),
                strict=True,
            ):
                name = part.names[code]
                who = int.from_bytes(name[:16], "little") - 1
                assert int.from_bytes(name[16:], "little") == who % 3
                assert time == START + offset // 7 * SECOND
                got.append((offset, (who, number)))
        assert got == [
            (offset, sample)
            for offset, sample in enumerate(samples)
            if sample is not None and start <= offset < end and offset // 7 >= since
        ]


# ---- ranges of a log


def whole(repeats: dict[int, Any]) -> dict[int, list[int]]:
    return {partition: offsets.tolist() for partition, offsets in repeats.items()}


def batches(size: int, *rows: int) -> list[dict[int, tuple[int, int]]]:
    """Ranges one after another, of all partitions."""
    return [
        {p: (min(at, n), min(at + size, n)) for p, n in enumerate(rows)}
        for at in range(0, max(rows), size)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def found_and_saved(finder: DuplicateFinder, log: Log, ranges: Any) -> dict[int, list[int]]:
    found = whole(finder.find(log, ranges))
    finder.save()
    return found


def test_a_range_planned_again_has_the_same_repeats(path: Path) -> None:
    """From memory, from the file, from the log; in any process, however often."""
    samples = sent(300)
    spark_numbered.append(path, samples)
    (expected,) = expected_repeats(samples)
    log, ranges = Log(path), batches(37, 300)
    finder = DuplicateFinder(600)
    in_memory = [found_and_saved(finder, log, part) for part in ranges]
    assert sorted(offset for part in in_memory for offset in part.get(0, [])) == expected
    assert whole(finder.find(log, ranges[-1])) == in_memory[-1]  # the last one, once more
    kept = list((path / "spark").glob("seen-*.arrow"))
    assert len(kept) == len(ranges)
    from_files = [whole(DuplicateFinder(600).find(Log(path), part)) for part in ranges]
    assert from_files == in_memory
    shutil.rmtree(path / "spark")
    from_log = [whole(DuplicateFinder(600).find(Log(path), part)) for part in ranges]
    assert from_log == in_memory
    assert not (path / "spark").exists()  # who does not keep anything writes nothing
    backwards = [whole(finder.find(log, part)) for part in reversed(ranges)]
    assert backwards == in_memory[::-1]


def test_the_file_is_what_is_used_and_a_bad_one_is_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = sent(100)
    spark_numbered.append(path, samples)
    first, second = batches(50, 100)
    expected = found_and_saved(DuplicateFinder(600), Log(path), second)
    found_and_saved(DuplicateFinder(600), Log(path), first)
    asked = list[tuple[int, int]]()
    numbered = Reader.numbered

    def counted(self: Reader, start: int, end: int, **more: Any) -> Any:
        asked.append((start, end))
        return numbered(self, start, end, **more)

    monkeypatch.setattr(Reader, "numbered", counted)
    assert whole(DuplicateFinder(600).find(Log(path), second)) == expected
    assert asked == [(50, 100)]
    for kept in (path / "spark").glob("seen-*.arrow"):
        kept.write_bytes(kept.read_bytes()[:-3])
    asked.clear()
    assert whole(DuplicateFinder(600).find(Log(path), second)) == expected
    assert asked == [(0, 50), (50, 100)]
    asked.clear()
    DuplicateFinder(500).find(Log(path), second)  # another time: another file
    assert asked == [(0, 50), (50, 100)]


def test_only_the_newest_files_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "MAX_FILES", 3)
    spark_numbered.append(path, sent(60))
    finder = DuplicateFinder(600)
    for part in batches(10, 60):
        found_and_saved(finder, Log(path), part)
    assert len(list((path / "spark").iterdir())) == 3
    monkeypatch.setattr(duplicates, "MAX_SAVED_INTERVALS", 0)
    spark_numbered.append(path, sent(10, seed=2))
    found_and_saved(finder, Log(path), {0: (60, 70)})
    assert len(list((path / "spark").iterdir())) == 3


def test_two_recorders_of_the_same_traffic(path: Path) -> None:
    """All that both have is once in the order of partitions, then offsets, batch after batch."""
    samples = sent(140, repeats=0)
    other = samples[10:] + sent(20, seed=7, sources=9)
    spark_numbered.append(path, samples)
    spark_numbered.append(path, other, partition=1)
    log, ranges = Log(path), batches(33, 140, 150)
    finder = DuplicateFinder(600)
    seen, expected = set[Sample](), []
    for part in ranges:
        here: dict[int, list[int]] = {}
        for partition, rows in ((0, samples), (1, other)):
            for offset in range(*part[partition]):
                if rows[offset] is not None and rows[offset] in seen:
                    here.setdefault(partition, []).append(offset)
                seen.add(rows[offset])
        expected.append(here)
    got = [found_and_saved(finder, log, part) for part in ranges]
    assert got == expected
    assert sum(len(part.get(1, [])) for part in got) > 90
    shutil.rmtree(path / "spark")
    assert [whole(DuplicateFinder(600).find(log, part)) for part in ranges] == expected


def test_a_number_is_recognised_as_long_as_is_said_and_then_no_more(path: Path) -> None:
    """Also across a range that has nothing else, and the same from memory and from the log."""
    spark_numbered.append(path, [(0, 5)])
    for at in (40, 79, 200):
        spark_numbered.append(path, [(0, 5)], at=at)
    log, finder = Log(path), DuplicateFinder(WITHIN)
    for offset, repeats in ((0, {}), (1, {0: [1]}), (2, {0: [2]}), (3, {})):
        part = {0: (offset, offset + 1)}
        assert whole(finder.find(log, part)) == repeats
        assert whole(DuplicateFinder(WITHIN).find(log, part)) == repeats
    assert whole(DuplicateFinder(WITHIN).find(log, {0: (0, 4)})) == {0: [1, 2]}
    assert whole(DuplicateFinder(300).find(log, {0: (0, 4)})) == {0: [1, 2, 3]}


def test_a_clock_that_is_set_back_is_looked_up_again(path: Path) -> None:
    spark_numbered.append(path, [(0, 1), (0, 2)], at=0)
    spark_numbered.append(path, [(0, 3)], at=500)
    spark_numbered.append(path, [(0, 2), (0, 3)], at=5)
    log, finder = Log(path), DuplicateFinder(WITHIN)
    assert whole(finder.find(log, {0: (0, 3)})) == {}
    assert whole(finder.find(log, {0: (3, 5)})) == {0: [3]}
    assert whole(DuplicateFinder(WITHIN).find(log, {0: (3, 5)})) == {0: [3]}


def test_what_retention_removed_is_not_looked_for(path: Path) -> None:
    samples = [*sent(400, repeats=0), (0, LAST - 19)]
    spark_numbered.append(path, samples, rotate=2000)
    Log(path).trim(before_offset=200)
    first = Log(path).first(0)
    assert 0 < first <= 200
    assert whole(DuplicateFinder(600).find(Log(path), {0: (300, 401)})) == {}
    assert whole(DuplicateFinder(600).find(Log(path), {0: (0, 401)}, fail=False)) == {}


def test_damage_before_the_range_is_passed_over_and_in_it_is_told(path: Path) -> None:
    samples = sent(60, repeats=0)
    spark_numbered.append(path, samples + samples, per_block=30)
    (segment,) = (path / "0").glob("*.zlog")
    blocks = Log(path).blocks(0)
    with segment.open("r+b") as file:
        file.seek(int(blocks["position"][1]) + 200)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    known = [60 + n for n in range(30) if samples[n] is not None]
    assert whole(DuplicateFinder(600).find(Log(path), {0: (60, 120)})) == {0: known}
    assert whole(DuplicateFinder(600).find(Log(path), {0: (0, 120)}, fail=False)) == {0: known}
    with pytest.raises(ZError, match="offsets 30 to 59"):
        DuplicateFinder(600).find(Log(path), {0: (0, 120)})


def test_more_sources_than_a_reading_may_number(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    samples = [(n, 7) for n in range(100)]
    spark_numbered.append(path, samples + samples)
    monkeypatch.setattr(duplicates, "PIECE_ROWS", 9)
    assert whole(DuplicateFinder(600).find(Log(path), {0: (0, 200)})) == {0: list(range(100, 200))}
    monkeypatch.setattr(duplicates, "MAX_SOURCES", 30)
    found = DuplicateFinder(600)
    assert [found.find(Log(path), {0: span}) for span in ((0, 100), (100, 200))] == [{}, {}]
    assert "forgotten early" in caplog.text
    assert "duplicatesWithin" in caplog.text


# ---- the source


def columns_of(options: dict[str, Any]) -> Any:
    raw = {name.lower(): str(value) for name, value in options.items()}
    return ZenohDataSource({"path": "/nowhere", **raw}).schema()


def batch_reader(path: Path, **options: Any) -> LogReader:
    raw = {"path": str(path)} | {name.lower(): str(value) for name, value in options.items()}
    return LogReader(Options.parse(raw, Purpose.LOG_BATCH), columns_of(options))


def stream_reader(path: Path, **options: Any) -> LogStreamReader:
    raw = {"path": str(path)} | {name.lower(): str(value) for name, value in options.items()}
    return LogStreamReader(Options.parse(raw, Purpose.LOG_STREAM), columns_of(options))


def rows_of(reading: Any, *ends: dict[str, Any]) -> list[dict[str, Any]]:
    copy = pickle.loads(pickle.dumps(reading))
    return [
        row
        for task in reading.partitions(*ends)
        for batch in copy.read(pickle.loads(pickle.dumps(task)))
        for row in batch.to_pylist()
    ]


def test_the_columns_are_those_that_the_options_say() -> None:
    assert columns_of({"duplicates": "mark"}) == with_duplicate()
    assert columns_of({"duplicates": "MARK", "includeLoss": "True"}) == with_duplicate(with_loss())
    assert columns_of({"duplicates": "drop"}) == SAMPLE_COLUMNS
    assert columns_of({"includeLoss": "only"}) == with_loss()
    assert columns_of({"duplicates": "mark", "columns": "duplicate,key"}) == select_columns(
        with_duplicate(), ["duplicate", "key"]
    )
    with pytest.raises(ZError, match="no column 'duplicate'"):
        columns_of({"columns": "duplicate"})
    with pytest.raises(ZError, match="one of keep, drop, mark"):
        columns_of({"duplicates": "delete"})
    with pytest.raises(ZError, match="one of false, true, only"):
        columns_of({"includeLoss": "yes"})


def test_a_batch_marks_or_drops_in_any_number_of_tasks(path: Path) -> None:
    samples = sent(200)
    spark_numbered.append(path, samples)
    (expected,) = expected_repeats(samples)
    for tasks in (1, 5):
        marked = rows_of(batch_reader(path, duplicates="mark", minPartitions=tasks))
        assert [row["offset"] for row in marked] == list(range(200))
        assert [row["offset"] for row in marked if row["duplicate"]] == expected
        dropped = rows_of(batch_reader(path, duplicates="drop", minPartitions=tasks))
        assert [row["offset"] for row in dropped] == sorted(set(range(200)) - set(expected))
    narrow = rows_of(batch_reader(path, duplicates="mark", columns="duplicate"))
    assert narrow == [{"duplicate": offset in expected} for offset in range(200)]
    narrow = rows_of(batch_reader(path, duplicates="drop", columns="kind"))
    assert narrow == [{"kind": "put"}] * (200 - len(expected))
    some = {"startingOffsets": '{"0": 100}', "endingOffsets": '{"0": 170}', "columns": "offset"}
    later = rows_of(batch_reader(path, duplicates="drop", **some))
    assert [row["offset"] for row in later] == [n for n in range(100, 170) if n not in expected]
    since = {"startingTimestamp": (START + 15 * SECOND) // 10**6, "columns": "offset"}
    later = rows_of(batch_reader(path, duplicates="drop", **since))
    assert [row["offset"] for row in later] == [n for n in range(105, 200) if n not in expected]


def test_rows_of_loss_are_no_duplicates(path: Path) -> None:
    loss = Loss(SOURCE, START, b"\1\2", 5, 8, 4, 3)
    with Writer(path) as writer:
        for _ in range(2):
            writer.write([spark_numbered.block([(0, 1), (0, 2)], START, loss)])
    columns = "offset,kind,duplicate"
    got = rows_of(batch_reader(path, includeLoss="true", duplicates="mark", columns=columns))
    assert [tuple(row.values()) for row in got] == [
        (0, "loss", False),
        (0, "put", False),
        (1, "put", False),
        (2, "loss", False),
        (2, "put", True),
        (3, "put", True),
    ]
    got = rows_of(batch_reader(path, includeLoss="true", duplicates="drop", columns="offset,kind"))
    assert [row["kind"] for row in got] == ["loss", "put", "put", "loss"]
    (only,) = rows_of(
        batch_reader(path, includeLoss="only", duplicates="mark", startingOffsets='{"0": 1}')
    )
    assert (only["offset"], only["kind"], only["duplicate"]) == (2, "loss", False)


def test_losses_alone_do_not_decode_what_has_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Writer(path, codec="zstd") as writer:
        for number in range(6):
            loss = Loss(SOURCE, START + number, b"\1", number) if number % 3 == 1 else None
            writer.write([spark_numbered.block([(0, number)] * 50, START, loss)])

    def never(*_: Any) -> Any:
        raise AssertionError("nothing is to be unpack_mask or scanned")

    monkeypatch.setattr("zenlake.log.read.blocks.unpack_body", never)
    monkeypatch.setattr("zenlake.wire.scan.Scanner.bare", never)
    for more in ({}, {"minPartitions": 3}, {"keyExpr": "other"}):
        got = rows_of(batch_reader(path, includeLoss="only", **more))
        assert [(row["offset"], row["loss"]["first"]) for row in got] == [(50, 1), (200, 4)]
        assert {row["kind"] for row in got} == {"loss"}
        assert {row["key"] for row in got} == {None}
    none = batch_reader(path, includeLoss="only", startingOffsets='{"0": 251}')
    assert none.partitions() == []
    lone = Reader(path, 0).batches(losses="only", max_rows=1, columns=["offset"])
    assert [batch.to_pydict() for batch in lone] == [{"offset": [50]}, {"offset": [200]}]


def test_a_stream_that_starts_again_has_the_same_marks(path: Path) -> None:
    samples = sent(240)
    spark_numbered.append(path, samples)
    (expected,) = expected_repeats(samples)
    options = {"duplicates": "mark", "columns": "offset,duplicate"}
    reading = stream_reader(path, **options)
    at, got, plans = reading.initialOffset(), [], []
    while (end := reading.latestOffset(at, ReadMaxRows(50))) != at:
        got.append(rows_of(reading, at, end))
        plans.append((at, end))
        at = end
    assert [row["offset"] for part in got for row in part if row["duplicate"]] == expected
    assert sum(map(len, got)) == 240
    reading.stop()
    for place in (4, 2):  # another driver, with the files and without them
        other = stream_reader(path, **options)
        assert rows_of(other, *plans[place]) == got[place]
        other.stop()
        shutil.rmtree(path / "spark")


def test_repeats_of_a_full_batch_are_found_while_the_one_before_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = sent(250)
    spark_numbered.append(path, samples)
    (expected,) = expected_repeats(samples)
    calls: list[str] = []
    logs: dict[str, list[Log]] = {}
    find = DuplicateFinder._find

    def noted(self: DuplicateFinder, log: Log, *args: Any) -> Any:
        calls.append(threading.current_thread().name)
        logs.setdefault(calls[-1], []).append(log)
        return find(self, log, *args)

    monkeypatch.setattr(DuplicateFinder, "_find", noted)
    options = {"duplicates": "mark", "columns": "offset,duplicate", "maxRowsPerTrigger": "50"}
    reading = stream_reader(path, **options)
    at, got, places = reading.initialOffset(), [], []
    while (end := reading.latestOffset(at, reading.getDefaultReadLimit())) != at:
        tasks = reading.partitions(at, end)
        assert reading.partitions(at, end) == tasks  # Spark may plan a batch again.
        got += [row for task in tasks for part in reading.read(task) for row in part.to_pylist()]
        places.append(at)
        at = end
    reading.stop()
    assert [row["offset"] for row in got if row["duplicate"]] == expected
    assert len(got) == 250
    assert calls[0] == "MainThread"
    # The last batch is not planned ahead: its end moves while samples become durable.
    assert calls == ["MainThread", *["zenlake plan"] * 3, "MainThread"]
    # A Log is used by one thread: Spark's thread reads on with its own meanwhile.
    assert not {*map(id, logs["zenlake plan"])} & {*map(id, logs["MainThread"])}


def test_without_duplicates_nothing_is_read_while_planning(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_numbered.append(path, sent(50))
    monkeypatch.setattr(Reader, "numbered", None)
    monkeypatch.setattr(Reader, "batches", None)
    (task,) = batch_reader(path).partitions()
    assert task.repeats == b""  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        batch_reader(path, duplicates="drop").partitions()


# ---- through Spark


@pytest.mark.spark
def test_spark_has_every_numbered_sample_once(spark: "SparkSession", path: Path) -> None:
    """Two recorders, a stream, and another that goes on where it was."""
    samples = sent(150)
    spark_numbered.append(path, samples)
    spark_numbered.append(path, samples[20:], partition=1)
    out, checkpoint = str(path.parent / "out"), str(path.parent / "checkpoint")
    for _ in range(2):
        stream = spark.readStream.format("zenoh").options(path=str(path), duplicates="mark")
        writing = stream.load().writeStream.format("parquet").trigger(availableNow=True)
        query = writing.option("checkpointLocation", checkpoint).start(out)
        assert query.awaitTermination(WAIT_SECONDS)
        spark_numbered.append(path, samples[-30:])
    rows = spark.read.schema(with_duplicate()).parquet(out).collect()
    assert len(rows) == 150 + 130 + 30
    once = [row.source for row in rows if row.source and not row.duplicate]
    found = [(int(source.id, 16) - 1, source.sn) for source in once]
    assert sorted(found) == sorted({sample for sample in samples if sample is not None})
