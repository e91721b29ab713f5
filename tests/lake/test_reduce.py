"""Folds against the same rules in plain Python, row by row.

ZENLAKE_FULL=1 tries ten times as many examples.
"""

import math
import os
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lake_rows import T0, Row, as_rows, as_samples
from zenlake.columnar import schema as columnar
from zenlake.lake.tables import reduce, schema
from zenlake.spark.schema import SAMPLE_COLUMNS, to_spark

pytestmark = pytest.mark.slow

EXAMPLES = settings(max_examples=400 if os.environ.get("ZENLAKE_FULL") else 40)
TIMES = st.integers(0, 150_000_000)
ROWS = st.lists(
    st.builds(
        Row,
        key=st.sampled_from(["a", "a/b", "b", "ü", "z/1"]),
        offset=st.integers(0, 20),
        partition=st.integers(0, 1),
        received=st.sampled_from([0, 1, 59_999_999, 60_000_000]) | TIMES,
        stamp=st.none() | st.sampled_from([0, 1, 2]) | st.integers(-10_000_000, 150_000_000),
        clock=st.sampled_from(["a1", "b2", "0"]),
        delete=st.booleans(),
        payload=st.binary(max_size=3),
        source=st.none()
        | st.tuples(st.sampled_from(["s1", "s2"]), st.integers(0, 2), st.integers(0, 9)),
        duplicate=st.booleans(),
    ),
    max_size=30,
)


def newest_by_hand(rows: Iterable[Row]) -> dict[str, Row]:
    best: dict[str, Row] = {}
    for row in rows:
        if row.key not in best or row.version > best[row.key].version:
            best[row.key] = row
    return best


# ---- samples


def test_repeats_and_losses_are_not_samples() -> None:
    rows = [Row("a", 0), Row("b", 1, duplicate=True), Row("c", 2)]
    assert as_samples(as_rows(rows, marked=True))["key"].to_pylist() == ["a", "c"]
    assert as_samples(as_rows(rows))["key"].to_pylist() == ["a", "b", "c"]
    lost = as_rows(rows).set_column(0, "key", pa.array(["a", None, "c"]))
    assert as_samples(lost)["offset"].to_pylist() == [0, 2]


def test_day_is_of_received_at_in_utc() -> None:
    midnight = (24 * 3600 - T0 % (24 * 3600)) * 1_000_000
    rows = [Row("a", 0, received=midnight - 1), Row("a", 1, received=midnight)]
    days = as_samples(as_rows(rows))["day"].to_pylist()
    assert days == [date(2026, 9, 21), date(2026, 9, 22)]


@EXAMPLES
@given(ROWS)
def test_hlc_is_the_timestamp_or_the_receive_time(rows: list[Row]) -> None:
    table = as_rows(rows)
    assert reduce.compute_hlc(table).to_pylist() == [row.hlc for row in rows]
    assert as_samples(table)["hlc"].to_pylist() == [row.hlc for row in rows]


def test_rows_of_columnar_are_taken_as_they_are() -> None:
    stamp = {"time": (T0 << 32) + 12345, "id": "a1"}
    row = {"key": "a/b", "kind": "put", "payload": b"x", "encoding": "text/plain", "priority": 5}
    row |= {"congestion_control": "drop", "express": True, "reliable": False}
    received = datetime.fromtimestamp(T0, UTC)
    source = {"id": "c3", "entity": 2**32 - 1, "sn": 2**31 + 1}
    rows: list[dict[str, Any]] = [
        row | {"timestamp": stamp, "source": source, "received_at": received},
        row | {"kind": "delete", "payload": None, "schema": "s", "received_at": received},
    ]
    batch = pa.RecordBatch.from_pylist(rows, columnar.SAMPLE)
    found = reduce.conform(batch, schema.SAMPLE)
    expected = pa.Table.from_batches([to_spark(batch, SAMPLE_COLUMNS)])
    assert found.to_pylist() == expected.to_pylist()
    assert reduce.compute_hlc(batch).to_pylist() == [stamp["time"], T0 << 32]
    written = as_samples(expected).select(schema.SAMPLES.names)
    assert reduce.conform(written, schema.SAMPLE).to_pylist() == expected.to_pylist()
    assert written["hlc"].to_pylist() == [stamp["time"], T0 << 32]


def test_without_receive_time_the_timestamp_is_used() -> None:
    table = as_rows([Row("a", 0, stamp=5), Row("a", 1)])
    table = table.set_column(12, "received_at", pa.nulls(2, schema.TIME))
    found = as_samples(table)
    assert found["day"].to_pylist() == [date(2026, 9, 21), date(1970, 1, 1)]
    assert found["hlc"].to_pylist() == [Row("a", 0, stamp=5).hlc, 0]


def test_given_hlc_and_day_columns_are_recomputed() -> None:
    rows = [Row("a", 0), Row("b", 1, stamp=7)]
    table = as_rows(rows).append_column("hlc", pa.array([None, 5], pa.int64()))
    table = table.append_column("day", pa.array([date(2020, 1, 1)] * 2))
    found = as_samples(table)
    assert found["hlc"].to_pylist() == [row.hlc for row in rows]
    assert found["day"].to_pylist() == [date(2026, 9, 21)] * 2


# ---- the newest


@EXAMPLES
@given(ROWS, st.integers(0, 30))
def test_newest_is_the_highest_version_of_each_key(rows: list[Row], cut: int) -> None:
    table = as_samples(as_rows(rows))
    best = newest_by_hand(rows)
    keys = sorted(best, key=str.encode)
    found = reduce.keep_newest(table)
    assert found["key"].to_pylist() == keys
    versions = found.select(["hlc", "partition", "offset"]).to_pylist()
    assert [tuple(version.values()) for version in versions] == [
        (best[key].hlc, best[key].partition, best[key].offset) for key in keys
    ]
    parts = [reduce.keep_newest(table.slice(0, cut)), reduce.keep_newest(table.slice(cut))]
    again = reduce.keep_newest(pa.concat_tables(parts)).select(
        ["key", "hlc", "partition", "offset"]
    )
    assert again.to_pylist() == found.select(again.column_names).to_pylist()


@EXAMPLES
@given(ROWS)
def test_sort_rows_is_stable(rows: list[Row]) -> None:
    table = as_samples(as_rows(rows))
    for order in (("key", "hlc"), ("partition", "offset"), ("key",), ("hlc", "key", "offset")):

        def place(row: dict[str, Any], names: tuple[str, ...] = order) -> list[Any]:
            return [v.encode() if isinstance(v := row[name], str) else v for name in names]

        expected = sorted(table.to_pylist(), key=place)
        assert reduce.sort_rows(table, order).to_pylist() == expected


def test_nulls_sort_first() -> None:
    table = pa.table({"a": ["b", None, "a"], "b": [1, 2, None]})
    assert reduce.sort_rows(table, ("a",))["a"].to_pylist() == [None, "a", "b"]
    assert reduce.sort_rows(table, ("b",))["b"].to_pylist() == [None, 1, 2]


# ---- health


def health_by_hand(rows: Iterable[Row]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        sid, entity, _ = row.source or (None, None, 0)
        minute = row.received_at // reduce.MINUTE * reduce.MINUTE
        groups[minute, row.key, sid, entity].append(row)
    found = []
    for (minute, key, sid, entity), all_rows in groups.items():
        live = sorted((r for r in all_rows if not r.duplicate), key=lambda row: row.received)
        sizes = [0 if row.delete else len(row.payload) for row in live]
        numbers = [row.source[2] for row in live if row.source]
        times = [row.received_at for row in live]
        pauses = [b - a for a, b in pairwise(times)]
        found.append(
            {
                "minute": at(minute),
                "key": key,
                "source_id": sid,
                "entity": entity,
                "count": len(live),
                "bytes": sum(sizes),
                "min_bytes": min(sizes, default=None),
                "max_bytes": max(sizes, default=None),
                "rate": len(live) / 60,
                "gaps": max(max(numbers) - min(numbers) + 1 - len(live), 0) if numbers else None,
                "first_sn": min(numbers, default=None),
                "last_sn": max(numbers, default=None),
                "duplicates": len(all_rows) - len(live),
                "first_seen": at(times[0]) if times else None,
                "last_seen": at(times[-1]) if times else None,
                "silence": max(pauses, default=0) / 1e6 if times else None,
            }
        )
    return sorted(found, key=pointer_to)


def pointer_to(row: dict[str, Any]) -> Any:
    source = row["source_id"] or ""
    entity = -1 if row["entity"] is None else row["entity"]
    return row["minute"], row["key"].encode(), source, entity


def at(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // 10**6, UTC).replace(
        microsecond=microseconds % 10**6
    )


def without_latency(table: pa.Table) -> list[dict[str, Any]]:
    assert table.schema == schema.HEALTH
    names = [name for name in schema.HEALTH.names if not name.startswith("latency")]
    return table.select(names).to_pylist()  # type: ignore[no-any-return]


@EXAMPLES
@given(ROWS)
def test_health_equals_a_count_by_hand(rows: list[Row]) -> None:
    assert without_latency(reduce.compute_health(as_rows(rows, marked=True))) == health_by_hand(
        rows
    )


@EXAMPLES
@given(ROWS, st.lists(st.integers(0, 30), max_size=4))
def test_health_merged_in_any_split_is_that_of_all(rows: list[Row], cuts: list[int]) -> None:
    rows = sorted(rows, key=lambda row: row.received)
    table = as_rows(rows, marked=True)
    whole = reduce.compute_health(table)
    places = [0, *sorted(cuts), len(rows)]
    parts = [
        reduce.compute_health(table.slice(start, stop - start))
        for start, stop in pairwise(places)
        if stop >= start
    ]
    merged = reduce.merge_health(pa.concat_tables(parts))
    assert merged.to_pylist() == whole.to_pylist()
    assert reduce.merge_health(merged).to_pylist() == whole.to_pylist()


@EXAMPLES
@given(ROWS)
def test_parts_that_interleave_differ_in_silence_only(rows: list[Row]) -> None:
    table = as_rows(rows, marked=True)
    parts = [table.take(np.arange(start, len(rows), 2)) for start in (0, 1)]
    merged = reduce.merge_health(pa.concat_tables([reduce.compute_health(part) for part in parts]))
    whole = reduce.compute_health(table)
    for mine, theirs in zip(merged.to_pylist(), whole.to_pylist(), strict=True):
        silence = mine.pop("silence"), theirs.pop("silence")
        assert mine == theirs
        assert silence[0] is silence[1] is None or silence[0] >= silence[1]


@pytest.mark.parametrize("shift", [0, -3_000_000])
def test_quantiles_are_within_the_error_of_a_bucket(shift: int) -> None:
    random = np.random.default_rng(7)
    latency = random.lognormal(8, 2, 5_000).astype(np.int64) + shift
    rows = [
        Row(f"k{n % 2}", n, received=50_000_000, stamp=50_000_000 - int(micros))
        for n, micros in enumerate(latency)
    ]
    parts = [
        reduce.compute_health(as_rows(rows[start : start + 700])) for start in range(0, 5000, 700)
    ]
    found = reduce.merge_health(pa.concat_tables(parts))
    for n, row in enumerate(found.to_pylist()):
        exact = np.quantile(latency[n::2] / 1e6, [0.5, 0.99], method="inverted_cdf")
        assert row["latency_median"] == pytest.approx(exact[0], rel=0.02)
        assert row["latency_p99"] == pytest.approx(exact[1], rel=0.02)
        assert sum(bucket["count"] for bucket in row["latency_histogram"]) == 2500


@EXAMPLES
@given(st.lists(st.integers(-(10**16), 10**16), min_size=1))
def test_a_bucket_stands_for_all_in_it(latency: list[int]) -> None:
    values = np.array(latency)
    seconds = reduce.bucket_seconds(reduce._find_buckets(values))
    for mine, exact in zip(seconds, values / 1e6, strict=True):
        if abs(exact) < 2e9:
            assert math.isclose(mine, exact, rel_tol=0.02)
        assert np.sign(mine) == np.sign(exact)


def test_source_numbers_that_wrapped_say_nothing_of_gaps() -> None:
    rows = [Row("a", 0, source=("s", 1, 2**32 - 1)), Row("a", 1, source=("s", 1, 0))]
    assert reduce.compute_health(as_rows(rows))["gaps"].to_pylist() == [None]


def test_empty_rows_fold_to_empty_rows() -> None:
    nothing = as_rows([])
    assert reduce.keep_newest(as_samples(nothing)).num_rows == 0
    assert reduce.compute_health(nothing).schema == schema.HEALTH
    assert reduce.merge_health(reduce.compute_health(nothing)).num_rows == 0
