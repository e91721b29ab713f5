"""Batches into tables: exactly once, whatever dies in between, and at a cost that follows them.

ZENLAKE_FULL=1 folds a hundred batches over 100,000 keys and tries ten times as many histories.
"""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.lake_rows import Row, as_rows, as_samples
from zenlake.lake.tables import commit as write
from zenlake.lake.tables import reduce, schema
from zenlake.lake.tables.commit import OffsetsPresent, TableBatch
from zenlake.lake.tables.definitions import HEALTH, LATEST, SAMPLES, TOMBSTONES
from zenlake.lake.tables.delta import DeltaStore

pytestmark = pytest.mark.slow

FULL = bool(os.environ.get("ZENLAKE_FULL"))
LEAF = 4  # Rows: many leaves of few keys.
MINUTE = 60_000_000


class Killed(BaseException):
    """The process died here."""


def samples(rows: Iterable[Row]) -> pa.Table:
    return as_samples(as_rows(rows))


def reduced(rows: Iterable[Row]) -> pa.Table:
    return reduce.keep_newest(samples(rows))


def leaves_of(rows: int) -> AbstractContextManager[int]:
    return patch.object(write, "LEAF_ROWS", rows)


def paths(store: DeltaStore) -> set[str]:
    return {file.path for file in store.snapshot().files}


class Lake:
    """`latest` and `tombstones` in a folder, and what they should hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open()

    def open(self) -> None:
        self.latest = DeltaStore(self.folder / "latest", LATEST)
        self.tombstones = DeltaStore(self.folder / "tombstones", TOMBSTONES)

    def fold(self, rows: Iterable[Row], number: int, leaf: int = LEAF) -> bool:
        batch = TableBatch("latest", "q", number)
        with leaves_of(leaf):
            return write.fold_latest(self.latest, self.tombstones, reduced(rows), batch)

    def found(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The live keys, and the deleted ones, each with its version."""
        tables = self.latest.read(), self.tombstones.read()
        for table in tables:
            assert len(set(table["key"].to_pylist())) == table.num_rows
        live, dead = ({row["key"]: version(row) for row in table.to_pylist()} for table in tables)
        return live, dead

    def check_leaves(self) -> None:
        """Leaves do not overlap, are sorted, and none is too large."""
        for store in (self.latest, self.tombstones):
            files = sorted(store.snapshot().files, key=lambda file: file.low["key"])
            for leaf, following in pairwise(files):
                assert leaf.high["key"] < following.low["key"]
            for file in files:
                keys = store.read([file])["key"].to_pylist()
                assert keys == sorted(keys)
                assert (keys[0], keys[-1]) == (file.low["key"], file.high["key"])
                assert 0 < len(keys) <= LEAF


def version(row: dict[str, Any]) -> tuple[int, str, int, int]:
    stamp = row["timestamp"]
    return row["hlc"], stamp["id"] if stamp else "", row["partition"], row["offset"]


def expected(rows: Iterable[Row]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rule, row by row."""
    best: dict[str, Row] = {}
    for row in rows:
        if row.key not in best or row.version > best[row.key].version:
            best[row.key] = row
    live = {key: row.version for key, row in best.items() if not row.delete}
    return live, {key: row.version for key, row in best.items() if row.delete}


KEYS = [f"k/{number:02}" for number in range(16)]
ROW = st.builds(
    Row,
    key=st.sampled_from(KEYS),
    offset=st.just(0),
    partition=st.integers(0, 1),
    received=st.integers(0, 20),
    stamp=st.none() | st.integers(-20, 20),  # late, ahead, equal to others
    clock=st.sampled_from(["a1", "b2"]),
    delete=st.booleans(),
)
BATCHES = st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=5)


# ---- appending


def test_a_batch_is_appended_once(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path / "samples", SAMPLES)
    for attempt in range(2):
        files = store.write(samples([Row("a", 0), Row("b", 1)]))
        done = write.append_files(store, files, TableBatch("samples", "q", 0, {0: (0, 1)}))
        assert done == (attempt == 0)
    before = paths(store)
    added = store.write(samples([Row("c", 2)]))
    assert write.append_files(store, added, TableBatch("samples", "q", 1))
    assert paths(store) == before | {added[0].path}
    assert sorted(store.read()["offset"].to_pylist()) == [0, 1, 2]
    assert store.offsets() == {0: 2}


def test_offsets_of_another_query_are_refused(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path / "samples", SAMPLES)
    write.append_files(
        store, store.write(samples([Row("a", 9)])), TableBatch("f", "old", 3, {0: (0, 9)})
    )
    again = store.write(samples([Row("a", 9)]))
    with pytest.raises(OffsetsPresent, match=r"partition 0 are there up to 9.*offset 10, or fill"):
        write.append_files(store, again, TableBatch("f", "new", 0, {0: (9, 9)}))
    write.append_files(
        store, store.write(samples([Row("a", 10)])), TableBatch("f", "new", 0, {0: (10, 10)})
    )
    write.append_files(
        store, store.write(samples([Row("a", 0)])), TableBatch("g", "other", 0, {1: (0, 0)})
    )
    assert store.offsets() == {0: 11, 1: 1}
    assert store.snapshot().rows == 3


def test_two_drivers_with_the_same_batch_append_it_once(tmp_path: Path) -> None:
    """The second saw the table before the first committed."""
    one, two = (DeltaStore(tmp_path / "samples", SAMPLES) for _ in range(2))
    write.append_files(one, [], TableBatch("f", "q", 0))
    added = two.write(samples([Row("a", 0)]))
    commit = two.commit

    def late(*args: Any, **options: Any) -> int:
        write.append_files(one, one.write(samples([Row("a", 0)])), TableBatch("f", "q", 1))
        return commit(*args, **options)

    two.commit = late  # type: ignore[method-assign]
    assert not write.append_files(two, added, TableBatch("f", "q", 1))
    assert one.snapshot().rows == 1


# ---- latest


@settings(max_examples=100 if FULL else 12)
@given(BATCHES)
@example([[Row("a", 0, stamp=5)], [Row("a", 1, stamp=4, delete=True)]])
@example([[Row("a", 0, stamp=5, delete=True)], [Row("a", 1, stamp=4)], [Row("a", 2, stamp=6)]])
@example([[Row("a", 0, stamp=5)], [Row("a", 0, stamp=5, delete=True, clock="a2")]])
@example([[Row(key, 0) for key in KEYS], [Row(key, 1, received=1, delete=True) for key in KEYS]])
def test_latest_is_the_fold_of_all_batches(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Row]]
) -> None:
    places = count()  # two rows with one offset are one row
    batches = [[replace(row, offset=next(places) * 37 % 101) for row in rows] for rows in batches]
    lake = Lake(tmp_path_factory.mktemp("lake"))
    seen: list[Row] = []
    for number, rows in enumerate(batches):
        lake.fold(rows, number)
        seen += rows
        assert lake.found() == expected(seen)
        lake.check_leaves()
    assert not lake.fold(batches[-1], len(batches) - 1)
    lake.fold(seen, len(batches))  # everything once more changes nothing
    assert lake.found() == expected(seen)


def test_the_whole_row_is_kept(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = [Row("a", 1, payload=b"new", stamp=2, source=("s", 1, 2)), Row("b", 2, delete=True)]
    lake.fold(rows, 0)
    assert lake.latest.read().to_pylist() == reduced(rows[:1]).drop(["day"]).to_pylist()
    buried = reduced(rows[1:]).select(schema.TOMBSTONES.names)
    assert lake.tombstones.read().to_pylist() == buried.to_pylist()


def test_older_rows_rewrite_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.fold([Row(key, 5, stamp=10) for key in KEYS], 0)
    before = paths(lake.latest)
    assert lake.fold([Row(key, 6, stamp=9, delete=key > "k/07") for key in KEYS], 1)
    assert paths(lake.latest) == before
    assert lake.latest.transaction("zenlake/latest/q") == 1
    assert lake.tombstones.snapshot().version == -1


FIRST = [Row(key, 0, stamp=10) for key in KEYS[:8]]
FIRST += [Row(key, 1, stamp=10, delete=True) for key in KEYS[8:]]
SECOND = [Row(key, 2, stamp=n % 2 * 20, delete=n % 4 > 1) for n, key in enumerate(KEYS)]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kill", range(3))
def test_a_kill_at_any_commit_and_a_replay_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: int, after: bool
) -> None:
    """SECOND buries, changes `latest` and drops tombstones: three commits, killed around each."""
    lake = Lake(tmp_path)
    lake.fold(FIRST, 0)
    before = lake.found()
    commits: list[str] = []
    commit = DeltaStore.commit

    def mortal(self: DeltaStore, *args: Any, **options: Any) -> int:
        commits.append(self.table.name)
        dies = len(commits) == kill + 1
        if dies and not after:
            raise Killed
        result = commit(self, *args, **options)
        if dies:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(DeltaStore, "commit", mortal)
        with pytest.raises(Killed):
            lake.fold(SECOND, 1)
    assert commits == ["tombstones", "latest", "tombstones"][: kill + 1]
    lake.open()
    wanted = expected(FIRST + SECOND)
    live, dead = lake.found()
    done = commits[1:] and (kill, after) != (1, False)
    assert live == (wanted[0] if done else before[0])  # `latest` is never half done
    for key in KEYS:  # and the winner of both tables is what it was, or what it becomes
        both = [side[key] for side in (live, dead) if key in side]
        assert max(both) in (
            (before[0] | before[1])[key],
            (wanted[0] | wanted[1])[key],
        )
    lake.fold(SECOND, 1)
    assert lake.found() == wanted
    lake.check_leaves()


def test_a_leaf_that_vanishes_meanwhile_is_folded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, other = Lake(tmp_path), Lake(tmp_path)
    lake.fold([Row(key, 0) for key in KEYS], 0)
    commit = DeltaStore.commit

    def disturbed(self: DeltaStore, *args: Any, **options: Any) -> int:
        monkeypatch.setattr(DeltaStore, "commit", commit)
        file = next(file for file in other.latest.snapshot().files if file.low["key"] == "k/00")
        rows = other.latest.read([file])
        commit(other.latest, [other.latest.write_file(rows)], [file])
        return commit(self, *args, **options)

    monkeypatch.setattr(DeltaStore, "commit", disturbed)
    assert lake.fold([Row("k/00", 1, received=1)], 1)
    assert lake.latest.snapshot().rows == len(KEYS)
    assert lake.found()[0]["k/00"] == Row("k/00", 1, received=1).version


def test_the_cost_follows_the_change(tmp_path: Path) -> None:
    keys, batches, leaf = (100_000, 100, 1_000) if FULL else (10_000, 10, 250)
    lake = Lake(tmp_path)
    random = np.random.default_rng(3)
    names = np.array([f"robot/{number:06}/pose" for number in range(keys)])

    def rows(chosen: Any, number: int) -> pa.Table:
        table = samples([Row("a", number, received=number)]).take(np.zeros(len(chosen), np.int64))
        return table.set_column(0, "key", pa.array(names[np.sort(chosen)]))

    for number, block in enumerate(random.permutation(batches)):
        chosen = np.arange(block * keys // batches, (block + 1) * keys // batches)
        batch = TableBatch("latest", "q", number)
        with leaves_of(leaf):
            write.fold_latest(lake.latest, lake.tombstones, rows(chosen, number), batch)
    files = paths(lake.latest)
    assert lake.latest.snapshot().rows == keys
    assert keys / leaf <= len(files) <= 4 * keys / leaf
    few = random.choice(keys, 10, replace=False)
    batch = TableBatch("latest", "q", batches)
    with leaves_of(leaf):
        assert write.fold_latest(lake.latest, lake.tombstones, rows(few, batches), batch)
    assert 1 <= len(files - paths(lake.latest)) <= 10
    assert len(paths(lake.latest)) == len(files)


def test_small_neighbours_become_one(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    keys = [f"k/{number:03}" for number in range(200)]
    lake.fold([Row(key, 0) for key in keys], 0, leaf=20)
    assert len(lake.latest.snapshot().files) == 10
    lake.fold([Row(key, 1, received=1, delete=True) for key in keys[:-2]], 1, leaf=20)
    lake.fold([Row(keys[0], 2, received=2)], 2, leaf=20)
    assert len(lake.latest.snapshot().files) <= 2
    assert lake.latest.snapshot().rows == 3


# ---- health


def seconds(table: pa.Table) -> list[dict[str, Any]]:
    return table.sort_by([(name, "ascending") for name in HEALTH.order]).to_pylist()  # type: ignore[no-any-return]


@settings(max_examples=50 if FULL else 8)
@given(st.lists(st.integers(0, 6 * MINUTE), min_size=1, max_size=40), st.integers(1, 5))
def test_health_of_batches_is_health_of_all(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], batches: int
) -> None:
    store = DeltaStore(tmp_path_factory.mktemp("lake") / "health", HEALTH)
    rows = [
        Row(f"k{n % 3}", n, received=time, stamp=time - n, source=("s", n % 3, n))
        for n, time in enumerate(sorted(times))
    ]
    for number in range(batches):
        part = rows[len(rows) * number // batches : len(rows) * (number + 1) // batches]
        for _ in range(2):
            batch = TableBatch("health", "q", number)
            with leaves_of(LEAF):
                done = write.fold_health(store, reduce.compute_health(as_rows(part)), batch)
        assert not done
    assert seconds(store.read()) == seconds(reduce.compute_health(as_rows(rows)))
    files = sorted(store.snapshot().files, key=lambda file: file.low["minute"])
    for file, following in pairwise(files):
        assert file.high["minute"] < following.low["minute"]  # a minute is in one leaf


def test_only_leaves_of_those_minutes_are_rewritten(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path / "health", HEALTH)
    rows = [Row("k", n, received=n * MINUTE) for n in range(20)]
    with leaves_of(LEAF):
        write.fold_health(store, reduce.compute_health(as_rows(rows)), TableBatch("h", "q", 0))
    assert len(store.snapshot().files) == 5
    late = reduce.compute_health(as_rows([Row("k", 20, received=7 * MINUTE + 5)]))
    before = paths(store)
    with leaves_of(LEAF):
        assert write.fold_health(store, late, TableBatch("h", "q", 1))
    assert (len(before - paths(store)), len(paths(store) - before)) == (1, 1)
    assert sum(store.read()["count"].to_pylist()) == 21


def test_a_minute_larger_than_a_leaf_stays_in_one(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path / "health", HEALTH)
    rows = [Row(f"k{n}", n, received=n % 2 * MINUTE) for n in range(30)]
    with leaves_of(LEAF):
        write.fold_health(store, reduce.compute_health(as_rows(rows)), TableBatch("h", "q", 0))
    assert sorted(file.rows for file in store.snapshot().files) == [15, 15]
