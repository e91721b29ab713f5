"""Offsets as JSON, where a query starts, how far a batch goes, and how it is cut into tasks."""

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zenlake.errors import ZError
from zenlake.log.read.log import Log
from zenlake.spark import offsets as plan
from zenlake.spark.offsets import AnotherLog, DataLoss, Offsets

ENTRY = np.dtype([("base", "<u8"), ("samples", "<u4"), ("length", "<u4")])


def blocks_of(*entries: tuple[int, int, int]) -> Any:
    return np.array(list(entries), ENTRY)


class FakeLog(Log):
    """Partitions of blocks of 10 samples and 1000 bytes, as planning sees them."""

    id = "ab" * 16

    def __init__(self, path: Path, **ends: tuple[int, int]) -> None:
        self.path = path
        self.ends = {int(name[1:]): bounds for name, bounds in ends.items()}

    def partitions(self) -> list[int]:
        return sorted(self.ends)

    def mark(self, partition: int) -> Any:
        return SimpleNamespace(offset=self.ends[partition][1])

    def first(self, partition: int) -> int:
        return self.ends[partition][0]

    def damage(self, partition: int, start: int = 0, end: int | None = None) -> Any:
        return [SimpleNamespace(first=40, end=50), SimpleNamespace(first=80, end=90)]

    def blocks(self, partition: int, start: int = 0, end: int | None = None) -> Any:
        stop = self.ends[partition][1] if end is None else end
        return blocks_of(*((base, 10, 1000) for base in range(start // 10 * 10, stop, 10)))


@pytest.fixture
def log(tmp_path: Path) -> FakeLog:
    return FakeLog(tmp_path, p0=(20, 100), p2=(0, 50))


# ---- the JSON


def test_the_text_is_the_same_however_the_offsets_were_made(log: FakeLog) -> None:
    one, other = Offsets(log.id, {2: 1, 0: 7, 10: 3}), Offsets(log.id, {10: 3, 0: 7, 2: 1})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert list(one.to_json()["partitions"]) == ["0", "2", "10"]
    assert Offsets.from_json(json.loads(json.dumps(one.to_json())), log) == one
    numpy = Offsets(log.id, {0: np.int64(7)})  # type: ignore[dict-item]
    assert json.dumps(numpy.to_json()) == json.dumps(Offsets(log.id, {0: 7}).to_json())


def test_another_log_is_refused(log: FakeLog) -> None:
    old = Offsets("cd" * 16, {0: 7}).to_json()
    with pytest.raises(AnotherLog, match=f"{'cd' * 16}.*{log.id}.*checkpoint"):
        Offsets.from_json(old, log)


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        {},
        {"log": "ab" * 16},
        {"log": "ab" * 16, "partitions": {"x": 1}},
        {"log": "ab" * 16, "partitions": {"0": -1}},
        {"log": "ab" * 16, "partitions": {"0": "1"}},
        {"log": "ab" * 16, "partitions": {"0": True}},
        {"log": "ab" * 16, "partitions": {}, "start": 3},
    ],
)
def test_what_are_no_offsets_is_refused(log: FakeLog, value: Any) -> None:
    with pytest.raises(ZError, match="not offsets of a log"):
        Offsets.from_json(value, log)


def test_the_end_of_the_first_batch_says_where_it_started(log: FakeLog) -> None:
    start = Offsets(log.id, {0: 20}, {0: 20})
    first = Offsets.from_json(start.advance_to({0: 30, 2: 5}).to_json(), log)
    asked_again = Offsets(log.id, {0: 90}, {0: 90})  # "latest" is elsewhere after a crash
    assert asked_again.batch_start(first) == {0: 20}
    second = Offsets.from_json(first.advance_to({0: 40, 2: 6}).to_json(), log)
    assert first.batch_start(second) == {0: 30, 2: 5}
    assert second.start is None


# ---- what there is


def test_where_a_range_starts_and_ends(log: FakeLog) -> None:
    assert plan.durable_ends(log) == {0: 100, 2: 50}
    assert plan.resolve_offsets(log, "earliest", "latest") == {0: 20, 2: 0}
    assert plan.resolve_offsets(log, "latest", "earliest") == {0: 100, 2: 50}
    assert plan.resolve_offsets(log, {0: 33}, "earliest") == {0: 33, 2: 0}
    assert plan.resolve_offsets(log, {0: 33}, "latest") == {0: 33, 2: 50}
    with pytest.raises(ZError, match="no partition 7: it has 0, 2"):
        plan.resolve_offsets(log, {7: 1}, "earliest")


def test_rows_that_are_gone_are_named_or_passed_over(log: FakeLog) -> None:
    assert plan.require_available(log, 0, 20, 100, True) == 20
    assert plan.require_available(log, 0, 5, 5, True) == 5
    with pytest.raises(DataLoss, match=r"partition 0 .*offsets 5 to 19 are gone.*failOnDataLoss"):
        plan.require_available(log, 0, 5, 100, True)
    assert plan.require_available(log, 0, 5, 100, False) == 20
    assert plan.require_available(log, 0, 5, 12, False) == 12


@pytest.mark.parametrize("fail", [True, False])
def test_a_log_that_ends_too_early_or_lacks_a_partition_is_refused(
    log: FakeLog, fail: bool
) -> None:
    with pytest.raises(DataLoss, match="ends at offset 100, before 101"):
        plan.require_available(log, 0, 50, 101, fail)
    with pytest.raises(DataLoss, match=r"partition 1 .* is gone"):
        plan.require_available(log, 1, 0, 1, fail)


def test_rows_that_are_gone_are_counted(log: FakeLog) -> None:
    assert plan.missing_rows(log, 0, 20, 100) == 20  # two blocks are damaged
    assert plan.missing_rows(log, 0, 45, 85) == 10
    assert plan.missing_rows(log, 0, 55, 60) == 0
    assert plan.missing_rows(log, 0, 5, 45) == 15 + 5
    assert plan.missing_rows(log, 0, 5, 12) == 7


# ---- how far


def test_rows_are_shared_by_what_waits(log: FakeLog) -> None:
    begin, end = {0: 20, 2: 0}, {0: 100, 2: 50}
    assert plan.batch_end(log, begin, end, None, None) == end
    assert plan.batch_end(log, begin, end, 13, None) == {0: 28, 2: 5}
    assert plan.batch_end(log, begin, end, 1, None) == {0: 21, 2: 1}
    assert plan.batch_end(log, begin, end, 1000, None) == end
    assert plan.batch_end(log, end, end, 10, 10) == end


def test_bytes_last_for_whole_and_for_broken_blocks(log: FakeLog) -> None:
    only = FakeLog(log.path, p0=(0, 100))
    ends = [plan.batch_end(only, {0: 0}, {0: 100}, None, size)[0] for size in (1, 300, 1000, 2550)]
    assert ends == [1, 3, 10, 25]
    assert plan.batch_end(only, {0: 95}, {0: 100}, None, 10**9) == {0: 100}
    assert plan.batch_end(only, {0: 0}, {0: 100}, 7, 2000) == {0: 7}
    assert plan.batch_end(only, {0: 0}, {0: 100}, 50, 2000) == {0: 20}


tables = st.lists(st.tuples(st.integers(0, 30), st.integers(92, 5000), st.booleans()), max_size=20)


@given(tables, st.integers(0, 100), st.integers(1, 100), st.integers(1, 9), st.integers(1, 20_000))
def test_every_batch_moves_and_every_row_is_in_one_task(
    shapes: list[tuple[int, int, bool]], begin: int, length: int, tasks: int, size: int
) -> None:
    """Whatever the blocks are like, and with holes between them."""
    base, entries = 0, []
    for samples, nbytes, hole in shapes:
        if not hole:
            entries.append((base, samples, nbytes))
        base += samples
    blocks, end = blocks_of(*entries), begin + length
    overlapping = blocks[(blocks["base"] < end) & (blocks["base"] + blocks["samples"] > begin)]
    assert begin < plan.offset_within_bytes(overlapping, begin, end, size) <= end
    pieces = plan.split_range(overlapping, begin, end, tasks)
    assert pieces[0][0] == begin
    assert pieces[-1][1] == end
    assert all(low < high for low, high in pieces)
    assert all(piece[1] == other[0] for piece, other in pairwise(pieces))
    assert len(pieces) <= tasks


def test_tasks_are_as_many_as_asked_for_and_end_with_blocks() -> None:
    log = FakeLog(Path(), p0=(0, 1000))
    pieces = plan.split_range(log.blocks(0), 0, 1000, 4)
    assert len(pieces) == 4
    assert all(low % 10 == 0 for low, _ in pieces)
    one_block = blocks_of((0, 1000, 1000))
    assert plan.split_range(one_block, 0, 1000, 4) == [
        (0, 250),
        (250, 500),
        (500, 750),
        (750, 1000),
    ]
    large = blocks_of(*((base, 10, plan.TASK_BYTES) for base in range(0, 50, 10)))
    assert len(plan.split_range(large, 0, 50, 1)) == 5
    assert plan.split_range(one_block, 5, 5, 4) == []


# ---- a start that is kept


def test_a_start_is_found_once(log: FakeLog) -> None:
    assert plan.remembered_start(log, "q", lambda: {0: 50, 2: 9}) == {0: 50, 2: 9}
    assert plan.remembered_start(log, "q", lambda: {0: 99}) == {0: 50, 2: 9}
    assert plan.remembered_start(log, "other", lambda: {0: 99}) == {0: 99}
    assert sorted(path.name for path in (log.path / plan.FOLDER).iterdir()) == [
        "other.json",
        "q.json",
    ]
    plan.forget_start(log, "q")
    plan.forget_start(log, "q")
    assert plan.remembered_start(log, "q", lambda: {0: 60}) == {0: 60}


def test_the_first_of_two_that_find_a_start_wins(log: FakeLog) -> None:
    def slower() -> dict[int, int]:
        assert plan.remembered_start(log, "q", lambda: {0: 1}) == {0: 1}
        return {0: 2}

    assert plan.remembered_start(log, "q", slower) == {0: 1}


def test_a_start_of_another_log_or_one_that_is_cut_short_is_not_used(log: FakeLog) -> None:
    plan.remembered_start(log, "q", lambda: {0: 50})
    path = log.path / plan.FOLDER / "q.json"
    path.write_text(path.read_text().replace("ab", "cd"))
    assert plan.remembered_start(log, "q", lambda: {0: 60}) == {0: 60}
    path.write_text(path.read_text()[:9])
    assert plan.remembered_start(log, "q", lambda: {0: 70}) == {0: 70}


def test_a_start_that_cannot_be_kept_says_what_to_do(log: FakeLog) -> None:
    (log.path / plan.FOLDER).write_text("a file where the folder should be")
    with pytest.raises(ZError, match=r"cannot be kept.*startingOffsets"):
        plan.remembered_start(log, "q", lambda: {0: 50})
