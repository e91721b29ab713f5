"""A lake's history equals a plain fold of all events, however they are stored.

ZENLAKE_FULL=1 tries many more pasts.
"""

import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.support.known_histories import MICROS, Event, KnownHistory, by_key
from zenlake.errors import ZError
from zenlake.keyexpr import intersects
from zenlake.lake.serve import footers
from zenlake.lake.serve import history as histories
from zenlake.lake.serve import tail as tails
from zenlake.lake.serve.history import ROWS, History, chain_files
from zenlake.lake.serve.newest import NewestPerKey
from zenlake.lake.serve.row_filter import RowFilter, literal_prefix
from zenlake.lake.serve.time_range import HIGHEST, LOWEST, HlcRange

pytestmark = pytest.mark.slow

FULL = bool(os.environ.get("ZENLAKE_FULL"))
KEYS = ("a", "a/b", "a/c", "ab", "b/x/y", "b/z", "@v/a")
ASKED = ("**", "a", "a/*", "a/**", "b/**", "a$*", "b/*/y", "@v/*", "none")
FIRST = 1_700_000_000


@st.composite
def events(draw: st.DrawFn, at_most: int = 25) -> list[Event]:
    """Late, repeated, out of order, of the same time, without timestamps, put and deleted."""
    found: list[Event] = []
    received = FIRST * MICROS
    for number in range(draw(st.integers(1, at_most))):
        received += draw(st.sampled_from([0, 1, 700_000, 90 * 60 * MICROS]))
        if found and draw(st.integers(0, 9)) == 0:
            found.append(draw(st.sampled_from(found))._replace(received=received))
            continue
        deleted = draw(st.integers(0, 4)) == 0
        stamped = draw(st.booleans())
        found.append(
            Event(
                draw(st.sampled_from(KEYS)),
                None if deleted else bytes([number]) * draw(st.integers(0, 2)),
                received,
                (FIRST + draw(st.integers(0, 6))) << 32 | draw(st.integers(0, 1))
                if stamped
                else None,
                draw(st.sampled_from("abc")) if stamped else "a",
                draw(st.none() | st.tuples(st.just("5"), st.just(1), st.integers(0, 2))),
                "zenoh/bytes" if deleted else draw(st.sampled_from(ENCODINGS)),
                draw(st.sampled_from([None, b"", b"more"])),
            )
        )
    return found


ENCODINGS = ("zenoh/bytes", "application/json;fleet.Pose", "text/plain")


def check(
    history: History, past: KnownHistory, asked: str, low: int, high: int, count: int | None
) -> None:
    found = by_key(history.between(asked, low, high, count))
    assert found == past.between(asked, low, high, count), (asked, low, high, count)


def check_latest(history: History, past: KnownHistory, asked: str) -> None:
    found = by_key(history.latest(asked))
    assert found == {key: [event] for key, event in past.latest_values(asked).items()}, asked


@settings(max_examples=150 if FULL else 8)
@given(st.lists(events(), min_size=1, max_size=2), st.data())
def test_any_history_is_read_as_it_was_recorded(
    recorded: list[list[Event]], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        past = KnownHistory(Path(folder))
        for partition, some in enumerate(recorded):
            past.record(some, partition)
        history = History(past.project)
        for _ in range(data.draw(st.integers(0, 3), label="batches")):
            past.table(
                {
                    partition: data.draw(
                        st.integers(past.samples.offsets().get(partition, 0), len(some))
                    )
                    for partition, some in past.events.items()
                }
            )
            if data.draw(st.booleans(), label="compacted"):
                past.compact(vacuum=True)
            asked = data.draw(st.sampled_from(ASKED), label="asked")
            check_latest(history, past, asked)
            low = (FIRST + data.draw(st.integers(-1, 6))) << 32
            high = low + (data.draw(st.integers(0, 6)) << 32)
            for bounds in ((LOWEST, HIGHEST), (low, high), (LOWEST, high)):
                for count in (None, 1, 2):
                    check(history, past, asked, *bounds, count)
        check_latest(history, past, "**")


def sampled(count: int, keys: int = 5, first: int = 0) -> list[Event]:
    """Events in order, a second apart, the keys in turn."""
    return [
        Event(
            f"k/{number % keys}",
            b"%d" % number,
            (FIRST + number) * MICROS,
            (FIRST + number) << 32,
        )
        for number in range(first, first + count)
    ]


@pytest.fixture
def past(tmp_path: Path) -> KnownHistory:
    return KnownHistory(tmp_path)


def test_a_lake_without_data_answers_nothing(past: KnownHistory) -> None:
    history = History(past.project)
    assert list(history.latest("**")) == []
    assert list(history.between("**")) == []
    past.record(sampled(3))
    check_latest(history, past, "**")
    assert all(batch.schema == ROWS for batch in history.latest("**"))


def test_durable_samples_are_read_at_once(past: KnownHistory) -> None:
    history = History(past.project)
    for round_ in range(3):
        past.record(sampled(4, first=4 * round_))
        check_latest(history, past, "**")
        check(history, past, "k/*", LOWEST, HIGHEST, None)
        past.table({0: 4 * round_ + 2})
    assert history.counters["tails read for one question"] == 0


def test_a_late_put_does_not_bring_back_what_was_deleted(past: KnownHistory) -> None:
    past.record([Event("k", b"1", 1, 10 << 32), Event("k", None, 2, 30 << 32)])
    past.table({0: 2})
    past.record([Event("k", b"late", 3, 20 << 32)])
    history = History(past.project)
    assert by_key(history.latest("k")) == {}
    assert [e.payload for e in by_key(history.between("k"))["k"]] == [b"1", b"late", None]


def test_a_tail_that_is_too_long_to_keep_is_read_for_each_question(
    past: KnownHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "MAX_ROWS", 3)
    past.record(sampled(40))
    past.table({0: 10})
    history = History(past.project)
    for asked in ("k/1", "k/*"):
        check_latest(history, past, asked)
        check(history, past, asked, LOWEST, HIGHEST, None)
        check(history, past, asked, LOWEST, (FIRST + 20) << 32, 1)
    assert history.counters["tails read for one question"] == 6
    past.table({0: 40})
    for table in (history._samples, history._latest, history._tombstones):
        table.current(within=0.0)  # A snapshot is reused for a while: the tables are newer.
    check(history, past, "k/*", LOWEST, HIGHEST, None)
    check_latest(history, past, "k/*")
    assert history.counters["tails read for one question"] == 6


def test_a_tail_that_memory_has_no_room_for_waits_in_files(
    past: KnownHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "RUN_BYTES", 1)
    monkeypatch.setattr(tails, "MAX_ROWS", 3)
    monkeypatch.setattr(histories, "BATCH_ROWS", 2)
    monkeypatch.setattr(footers, "BATCH_ROWS", 2)
    past.record(sampled(40), block=3)
    past.table({0: 7})
    history = History(past.project)
    check(history, past, "**", LOWEST, HIGHEST, None)
    check(history, past, "**", LOWEST, HIGHEST, 2)
    check_latest(history, past, "**")


def test_the_folded_tail_is_folded_again_and_again(
    past: KnownHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "FOLD_ROWS", 4)
    history = History(past.project)
    for round_ in range(4):
        past.record(sampled(9, first=9 * round_), block=2)
        check_latest(history, past, "**")


def test_many_small_files_are_read_slice_by_slice(
    past: KnownHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "MAX_STREAMS", 2)
    past.record(sampled(60))
    for end in range(5, 61, 5):
        past.table({0: end}, ("samples",))
    history = History(past.project)
    times = HlcRange(LOWEST, HIGHEST)
    assert len(list(histories._slice_times(history._samples.current().files, times))) == 6
    for low, high in ((LOWEST, HIGHEST), ((FIRST + 7) << 32, (FIRST + 33) << 32)):
        check(history, past, "**", low, high, None)
        check(history, past, "k/3", low, high, None)


@pytest.mark.parametrize("count", [None, 1, 3])
def test_files_that_go_meanwhile_lose_and_repeat_nothing(
    past: KnownHistory, monkeypatch: pytest.MonkeyPatch, count: int | None
) -> None:
    monkeypatch.setattr(histories, "MAX_STREAMS", 2)
    monkeypatch.setattr(histories, "BATCH_ROWS", 2)
    monkeypatch.setattr(footers, "BATCH_ROWS", 2)
    past.record(sampled(40))
    for end in range(4, 33, 4):
        past.table({0: end}, ("samples",))
    history = History(past.project)
    found: dict[str, list[Event]] = {}
    batches = history.between("**", newest=count)
    for turn, batch in enumerate(batches):
        if turn == 1:
            past.compact(vacuum=True)
            history._footers = footers.Footers()
        for key, some in by_key([batch]).items():
            found.setdefault(key, []).extend(some)
    assert found == past.between("**", LOWEST, HIGHEST, count)


def test_files_removed_before_the_first_read(past: KnownHistory) -> None:
    past.record(sampled(20))
    for end in (5, 10, 15):
        past.table({0: end})
    history = History(past.project)
    check(history, past, "**", LOWEST, HIGHEST, None)
    past.compact(vacuum=True)
    check(history, past, "**", LOWEST, HIGHEST, None)
    assert history.counters[histories.RESTARTS] <= 1


def test_files_that_are_gone_for_good_are_an_error(past: KnownHistory) -> None:
    past.record(sampled(10))
    past.table({0: 10})
    for file in past.samples.snapshot().files:
        (past.samples.path / file.path).unlink()
    history = History(past.project)
    with pytest.raises(FileNotFoundError):
        list(history.between("**"))
    assert history.counters[histories.RESTARTS] == histories.MAX_RESTARTS


def test_one_key_is_found_by_statistics(
    past: KnownHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zenlake.lake.tables.delta.ROW_GROUP_ROWS", 10)
    past.record(sampled(200, keys=20), block=100)
    past.table({0: 200})
    read: list[int] = []
    real = parquet.ParquetFile.iter_batches

    def iter_batches(self: Any, rows: int, groups: list[int], **options: Any) -> Any:
        read.extend(groups)
        return real(self, rows, groups, **options)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", iter_batches)
    history = History(past.project)
    check(history, past, "k/7", LOWEST, HIGHEST, None)
    assert len(read) == 1
    check(history, past, "k/7", LOWEST, FIRST << 32, None)
    check(history, past, "none", LOWEST, HIGHEST, None)
    assert len(read) == 1


def test_the_newest_of_one_key_stops_at_the_newest_file(past: KnownHistory) -> None:
    past.record(sampled(30))
    for end in (10, 20, 30):
        past.table({0: end})
    history = History(past.project)
    check(history, past, "k/2", LOWEST, HIGHEST, 2)
    assert len(history._footers._known) == 1


def test_footers_are_forgotten_beyond_a_limit(
    past: KnownHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footers, "MAX_ROW_GROUPS", 2)
    past.record(sampled(30))
    for end in range(5, 31, 5):
        past.table({0: end})
    history = History(past.project)
    check(history, past, "**", LOWEST, HIGHEST, None)
    assert len(history._footers._known) == 2


def test_a_log_that_begins_later_than_the_tables_end(past: KnownHistory) -> None:
    """Retention removed what no table has: what is left is told."""
    past.record(sampled(10))
    history = History(past.project)
    tail = history._tail
    assert next(tail.rows({0: 4}, "**")).column("offset").to_pylist()[0] == 4
    assert sum(len(rows) for rows in tail.rows({0: 9}, "**")) == 1
    assert sum(len(rows) for rows in tail.rows({0: 2}, "**")) == 8  # the table is another


def test_damage_in_the_log_is_passed_over_and_counted(past: KnownHistory) -> None:
    past.record(sampled(30), block=10)
    (segment,) = sorted((past.project.log / "0").glob("*.zlog")) or sorted(
        file for file in (past.project.log / "0").iterdir() if file.stat().st_size > 500
    )
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    history = History(past.project)
    found = sum(batch.num_rows for batch in history.between("**"))
    assert 0 < found < 30
    assert history.counters["damaged places passed over"] > 0


def test_many_threads_ask_at_once(past: KnownHistory) -> None:
    past.record(sampled(60))
    history = History(past.project)
    found: list[int] = []

    def ask() -> None:
        for _ in range(5):
            found.append(sum(batch.num_rows for batch in history.between("**")))
            found.append(sum(batch.num_rows for batch in history.latest("**")))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for end in (20, 40, 60):
        past.table({0: end})
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [5] * 20 + [60] * 20


# ---- parts


@given(st.sampled_from(ASKED), st.lists(st.sampled_from(KEYS), min_size=1))
def test_bounds_never_exclude_a_key_that_is_wanted(asked: str, keys: list[str]) -> None:
    row_filter = RowFilter(asked)
    held = any(intersects(asked, key) for key in keys)
    low, high = {"key": min(keys)}, {"key": max(keys)}
    assert row_filter.may_contain(low, high, row_filter.times) or not held
    assert row_filter.may_contain({}, {}, row_filter.times)
    for key in keys:
        if intersects(asked, key):
            assert key.startswith(literal_prefix(asked))


def test_too_many_keys_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zenlake.lake.serve.row_filter.MAX_KEYS", 3)
    with pytest.raises(ZError, match="more than 3 keys"):
        RowFilter("**").number_keys(["a", "b", "c", "d"])
    assert RowFilter("a").number_keys(["a", "b", "c", "d", None]).tolist() == [0, -1, -1, -1, -1]


@given(
    st.integers(1, 3),
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=12), max_size=5),
)
def test_newest_finds_the_places_of_the_newest(
    count: int, places: list[list[tuple[int, int]]]
) -> None:
    newest = NewestPerKey(count)
    for place, rows in enumerate(places):
        keys, times = (np.array([row[i] for row in sorted(rows)], np.int64) for i in (0, 1))
        newest.add(keys, times, place)
    times_of: dict[int, set[int]] = {}
    for key, when in (row for rows in places for row in rows):
        times_of.setdefault(key, set()).add(when)
    best = {(key, when) for key, some in times_of.items() for when in sorted(some)[-count:]}
    assert newest.places() == [at for at, rows in enumerate(places) if best & set(rows)]


def test_newest_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zenlake.lake.serve.newest.MAX_NEWEST", 3)
    newest = NewestPerKey(10)
    newest.add(np.zeros(4, np.int64), np.arange(4), 0)
    with pytest.raises(ZError, match="ask for fewer"):
        newest.places()


def test_files_with_disjoint_keys_share_a_stream(past: KnownHistory) -> None:
    past.record([Event(key, b"", 1) for key in ("a", "b", "c", "b", "d")], block=1)
    for end in (1, 2, 3, 4, 5):
        past.table({0: end}, ("samples",))
    found = [
        [file.low["key"] for file in chain] for chain in chain_files(past.samples.snapshot().files)
    ]
    assert len(found) == 2
    assert all(keys == sorted(set(keys)) for keys in found)
