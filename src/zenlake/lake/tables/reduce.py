"""Reductions of log rows: the time of each sample, the newest row per key, health per minute.

Knows columns and arithmetic on whole batches. Does not know files, tables or Spark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.columnar.conform import conform_column
from zenlake.lake.tables import schema
from zenlake.lake.tables.dictionary import is_text

MAX_CODE = 1 << 62  # Upper bound on the number that encodes all names of a group.
DENSE = 8  # Values are numbered by a lookup table of up to this many entries per value.
GAMMA = 1.04  # Ratio of neighbouring latency buckets, for a relative error of 2 %.
FINEST = 1.0  # Smallest latency with a bucket, in microseconds.
LAST_BUCKET = 900  # Bucket of all latencies from 1.04 ** 900 microseconds (2.2e9 seconds) on.
MAX_SN_SPAN = 1 << 31  # Source numbers further apart than this have wrapped around.
MINUTE = 60_000_000  # One minute in microseconds.
_DAY = 24 * 60 * MINUTE
_LOWEST = np.iinfo(np.int64).min

Rows: TypeAlias = pa.RecordBatch | pa.Table
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Entries: TypeAlias = tuple[Ints, Ints, Ints]
"Row or group, bucket and number of samples of each entry of latency histograms."


# ---- the time and the day of a sample


def compute_hlc(rows: Rows) -> pa.Array:
    """Return the time that orders samples: NTP64 of the timestamp, else of `received_at`.

    >>> compute_hlc(pa.table({"received_at": pa.array([1_500_000], pa.timestamp("us", "UTC"))}))[0]
    <pyarrow.Int64Scalar: 6442450944>
    """
    table = _as_table(rows)
    received = _received_micros(table)
    times = (received // 1_000_000 << 32) + -(-(received % 1_000_000 << 32) // 1_000_000)
    stamped, stamps = _timestamp_ntp64(table)
    return pa.array(np.where(stamped, stamps, times), pa.int64())


def compute_day(rows: Rows) -> pa.Array:
    """Return the day in UTC of `received_at`, or of the timestamp where that is null.

    >>> received = pa.array([86_400_000_000], pa.timestamp("us", "UTC"))
    >>> compute_day(pa.table({"received_at": received}))[0]
    <pyarrow.Date32Scalar: datetime.date(1970, 1, 2)>
    """
    return pa.array((_received_micros(_as_table(rows)) // _DAY).astype(np.int32), pa.date32())


def conform(rows: Rows, wanted: pa.Schema) -> pa.Table:
    """Return rows of Spark's or columnar's form with the columns of `wanted`, null if missing."""
    table = _as_table(rows)
    columns = [
        _conform_column(table[field.name], field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in wanted
    ]
    return pa.table(columns, schema=wanted)


def _conform_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    return pa.chunked_array([conform_column(chunk, kind) for chunk in column.chunks], kind)


# ---- the newest of each key


def keep_newest(rows: Rows) -> pa.Table:
    """Keep one row per key, put or delete: the highest (hlc, clock id, partition, offset).

    The result is sorted by key. Applying it to concatenated results gives the newest of all rows.

    >>> stamp = pa.nulls(3, schema.TIMESTAMP)
    >>> columns = {"key": ["a", "b", "a"], "hlc": [7, 5, 8], "timestamp": stamp}
    >>> rows = pa.table(columns | {"partition": [0] * 3, "offset": [0, 1, 2]})
    >>> keep_newest(rows)["hlc"].to_pylist()
    [8, 5]
    """
    table = _as_table(rows)
    return take_rows(table, newest_row_indices(table))


def newest_row_indices(table: pa.Table) -> Ints:
    """Return the indices of the rows that `keep_newest` keeps, in the order of their keys."""
    if _is_increasing(table["key"]):
        return np.arange(table.num_rows)
    keys, distinct = dense_ranks(table["key"])
    hlc = as_ints(table["hlc"])
    best = np.full(distinct, _LOWEST, np.int64)
    np.maximum.at(best, keys, hlc)
    rows = np.flatnonzero(hlc == best[keys])
    keys = keys[rows]
    if not len(rows) or len(rows) == np.count_nonzero(np.bincount(keys)):
        return np.asarray(rows[np.argsort(keys, kind="stable")])
    ties = table.select(["timestamp", "partition", "offset"]).take(pa.array(rows))
    clocks, _ = dense_ranks(
        pc.struct_field(ties["timestamp"], "id").cast(pa.string()).fill_null("")
    )
    order = np.lexsort((as_ints(ties["offset"]), as_ints(ties["partition"]), clocks, keys))
    last = np.append(keys[order][1:] != keys[order][:-1], True)
    return np.asarray(rows[order[last]])


def sort_rows(table: pa.Table, order: Sequence[str]) -> pa.Table:
    """Sort rows by these columns; texts by their bytes, null first."""
    if not order or _is_increasing(table[order[0]]):
        return table
    columns = [_sort_key(table[name]) for name in order]
    if len(columns) == 2 and np.all(columns[1][1:] >= columns[1][:-1]):
        columns.pop()  # Already sorted, and the sort by the other column is stable.
    rows = np.argsort(_narrow(columns.pop()), kind="stable")
    for column in reversed(columns):
        rows = rows[np.argsort(_narrow(column[rows]), kind="stable")]
    return take_rows(table, rows)


def take_rows(table: pa.Table, rows: Ints) -> pa.Table:
    """Return rows by index; copies nothing if the indices are all rows in order."""
    if len(rows) == table.num_rows and np.all(rows[1:] > rows[:-1]):
        return table
    return table.take(pa.array(rows))


def dense_ranks(column: pa.ChunkedArray) -> tuple[Ints, int]:
    """Return each text as its rank, null as 0, and an upper bound on the ranks.

    >>> dense_ranks(pa.chunked_array([["b", None, "a", "b"]]))
    (array([2, 0, 1, 2]), 3)
    """
    texts = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_encode()
    order = pc.sort_indices(texts.dictionary).to_numpy()
    places = np.empty(len(order) + 1, np.int64)
    places[order] = np.arange(1, len(order) + 1)
    places[-1] = 0
    codes = texts.indices.fill_null(len(order)) if texts.null_count else texts.indices
    return places[codes.to_numpy(zero_copy_only=False)], len(order) + 1


def _is_increasing(column: pa.ChunkedArray) -> bool:
    """Tell whether values strictly increase and none is null."""
    if column.null_count or len(column) < 2:
        return len(column) < 2
    if pa.types.is_dictionary(column.type):
        return bool(np.all(np.diff(dense_ranks(column)[0]) > 0))
    values = column.combine_chunks()
    return bool(pc.all(pc.greater(values[1:], values[:-1])).as_py())


def _narrow(values: Ints) -> npt.NDArray[Any]:
    """Return small numbers as 16-bit ones, which NumPy sorts by counting."""
    if len(values) and values.min() >= 0 and values.max() < 1 << 16:
        return values.astype(np.uint16)
    return values


def _sort_key(column: pa.ChunkedArray) -> Ints:
    if is_text(column.type):
        return dense_ranks(column)[0]
    return as_ints(column, null=_LOWEST)


# ---- health


@dataclass(frozen=True)
class _HealthRows:
    """Columns to sum up: one row per sample or per earlier sum. Times are in microseconds."""

    live: Bools
    "False for rows that only count duplicates; their other columns mean nothing."
    sourced: Bools
    count: Ints
    bytes: Ints
    min_bytes: Ints
    max_bytes: Ints
    first_sn: Ints
    last_sn: Ints
    duplicates: Ints
    first_seen: Ints
    last_seen: Ints
    silence: Ints


def compute_health(rows: Rows) -> pa.Table:
    """Return the health per minute, key and source of log rows in Spark's form.

    Merge the result with others by `merge_health`. Rows marked in a column `duplicate` count only
    in `duplicates`.
    """
    table = _as_table(rows)
    if table["key"].null_count:
        table = table.filter(pc.is_valid(table["key"]))
    n = table.num_rows
    seen = _received_micros(table)
    sn = pc.struct_field(table["source"], "sn")
    repeat = np.zeros(n, np.bool_)
    if "duplicate" in table.column_names:
        repeat = table["duplicate"].fill_null(False).to_numpy()
    size = as_ints(pc.binary_length(table["payload"]))
    number = as_ints(sn)
    zeros, ones = np.zeros(n, np.int64), np.ones(n, np.int64)
    parts = _HealthRows(
        ~repeat, _is_valid(sn), ones, size, size, size, number, number, repeat.astype(np.int64),
        seen, seen, zeros,
    )  # fmt: skip
    names = pa.table(
        {
            "minute": pa.array(seen // MINUTE * MINUTE, schema.TIME),
            "key": table["key"],
            "source_id": pc.struct_field(table["source"], "id"),
            "entity": pc.struct_field(table["source"], "entity"),
        }
    )
    sent = pc.struct_field(table["timestamp"], "time")
    timed = np.flatnonzero(_is_valid(sent) & _is_valid(table["received_at"]) & ~repeat)
    latency = (seen - as_ints(sent))[timed]
    return _build_health(names, parts, (timed, _find_buckets(latency), ones[timed]))


def merge_health(rows: Rows) -> pa.Table:
    """Sum up health rows of the same minute, key and source; the result is sorted.

    It equals the health of all samples at once, unless rows interleave in time: then `silence` is
    an upper bound.
    """
    table = _as_table(rows)
    present = [name for name in _HealthRows.__annotations__ if name in table.column_names]
    columns = {name: as_ints(table[name]) for name in present if name != "silence"}
    columns["silence"] = np.rint(table["silence"].fill_null(0).to_numpy() * 1e6).astype(np.int64)
    parts = _HealthRows(columns["count"] > 0, _is_valid(table["first_sn"]), **columns)
    entries = flatten_histograms(table["latency_histogram"])
    return _build_health(table.select(["minute", "key", "source_id", "entity"]), parts, entries)


def _build_health(names: pa.Table, parts: _HealthRows, entries: Entries) -> pa.Table:
    group, groups = _number_groups(names)
    member = np.empty(groups, np.int64)  # A row of each group.
    member[group] = np.arange(len(group))
    names = names.take(pa.array(member))
    sums = _sum_groups(group, parts, groups, as_ints(names["minute"]))
    names = conform(names, pa.schema([schema.HEALTH.field(name) for name in names.column_names]))
    columns = {name: names[name] for name in names.column_names} | sums
    row, bucket, count = entries
    columns |= _latency_columns(group[row], bucket, count, groups)
    return pa.table([columns[name] for name in schema.HEALTH.names], schema=schema.HEALTH)


def _number_groups(names: pa.Table) -> tuple[Ints, int]:
    """Return the group of each row and the number of groups, numbered in the order of names."""
    group = np.zeros(names.num_rows, np.int64)
    span = 1
    for name in names.column_names:
        column = names[name]
        if is_text(column.type):
            values, width = dense_ranks(column)
        elif column.null_count == len(column):
            continue
        else:
            values = as_ints(column, null=-1)
            lowest = int(values.min())
            values, width = values - lowest, int(values.max()) - lowest + 1
        if name == "minute":
            values, width = values // MINUTE, width // MINUTE + 1
        if span * width > MAX_CODE:
            distinct, group = number_values(group, span)
            others, values = number_values(values, width)
            span, width = len(distinct), len(others)
        group = group * width + values
        span *= width
    distinct, group = number_values(group, span)
    return group, len(distinct)


def number_values(values: Ints, span: int) -> tuple[Ints, Ints]:
    """Return the sorted distinct values and the rank of each value; all are below `span`."""
    if span <= DENSE * len(values):
        places = np.zeros(span, np.int64)
        places[values] = 1
        distinct = np.flatnonzero(places)
        places[distinct] = np.arange(len(distinct))
        return distinct, places[values]
    coded = pa.array(values).dictionary_encode()
    distinct = coded.dictionary.to_numpy()
    order = np.argsort(distinct)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return distinct[order], places[coded.indices.to_numpy()]


def _sum_groups(group: Ints, parts: _HealthRows, groups: int, minute: Ints) -> dict[str, pa.Array]:
    """Return the summed columns, one value per group; null for groups without live rows."""
    duplicates = np.bincount(group, parts.duplicates, groups).astype(np.int64)
    rows = np.flatnonzero(parts.live)
    rows = rows[_order_rows(group[rows], parts.first_seen[rows])]
    group = group[rows]
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
    where = group[starts]  # Groups that have live rows.
    live = np.zeros(groups, np.bool_)
    live[where] = True
    ordered: dict[int, Ints] = {}  # Cache: samples use one array for several columns.

    def take_live(values: Ints) -> Ints:
        if id(values) not in ordered:
            ordered[id(values)] = values[rows]
        return ordered[id(values)]

    def reduce_column(how: np.ufunc, values: Ints) -> Ints:
        return reduce_live(how, take_live(values))

    def reduce_live(how: np.ufunc, values: Ints) -> Ints:
        result = np.zeros(groups, np.int64)
        if len(starts):
            result[where] = how.reduceat(values, starts)
        return result

    count = reduce_column(np.add, parts.count)
    first_sn, last_sn = (
        reduce_column(np.minimum, parts.first_sn),
        reduce_column(np.maximum, parts.last_sn),
    )
    span = last_sn - first_sn + 1
    sourced = live & (reduce_live(np.maximum, parts.sourced[rows].astype(np.int64)) > 0)
    moved = (np.arange(groups) * MINUTE - minute)[group]
    pauses = _measure_pauses(
        take_live(parts.first_seen) + moved, take_live(parts.last_seen) + moved, starts
    )
    silence = reduce_live(np.maximum, np.maximum(take_live(parts.silence), pauses))

    def column(values: npt.NDArray[Any], kind: pa.DataType, valid: Bools = live) -> pa.Array:
        return pa.array(values, kind, mask=~valid)

    return {
        "count": pa.array(count),
        "bytes": pa.array(reduce_column(np.add, parts.bytes)),
        "min_bytes": column(reduce_column(np.minimum, parts.min_bytes), pa.int64()),
        "max_bytes": column(reduce_column(np.maximum, parts.max_bytes), pa.int64()),
        "rate": pa.array(count / 60),
        "gaps": column(np.maximum(span - count, 0), pa.int64(), sourced & (span < MAX_SN_SPAN)),
        "first_sn": column(first_sn, pa.int64(), sourced),
        "last_sn": column(last_sn, pa.int64(), sourced),
        "duplicates": pa.array(duplicates),
        "first_seen": column(reduce_column(np.minimum, parts.first_seen), schema.TIME),
        "last_seen": column(reduce_column(np.maximum, parts.last_seen), schema.TIME),
        "silence": column(silence / 1e6, pa.float64()),
    }


def _order_rows(group: Ints, seen: Ints) -> Ints:
    """Return the row order by group, then by time."""
    if len(group) < 2 or np.all(seen[1:] >= seen[:-1]):
        return np.argsort(_narrow(group), kind="stable")
    return np.lexsort((seen, group))


def _measure_pauses(first: Ints, last: Ints, starts: Ints) -> Ints:
    """Return the time from the latest earlier row of a group to each row; 0 for the first row.

    The times of groups lie in consecutive minutes, so one running maximum serves all groups.
    """
    pauses = np.zeros(len(first), np.int64)
    if len(first):
        pauses[1:] = first[1:] - np.maximum.accumulate(last)[:-1]
        pauses[starts] = 0
    return np.maximum(pauses, 0)


def _find_buckets(latency: Ints) -> Ints:
    """Return the bucket of each latency in microseconds: 0 for no latency, else with its sign.

    >>> _find_buckets(np.array([0, 1, -1, 1_000, 1_000_000]))
    array([  0,   1,  -1, 178, 354])
    """
    size = np.maximum(np.abs(latency), FINEST)
    number = np.ceil(np.log(size) / np.log(GAMMA) - 1e-9).astype(np.int64) + 1
    return np.asarray(np.sign(latency) * np.minimum(number, LAST_BUCKET))


def bucket_seconds(bucket: Ints) -> npt.NDArray[np.float64]:
    """Return the latency of each bucket in seconds, within 2 % of every latency in it."""
    size = FINEST * 2 * GAMMA ** (np.abs(bucket) - 1.0) / (GAMMA + 1) / 1e6
    return np.where(bucket == 0, 0.0, np.sign(bucket) * size)


def flatten_histograms(histograms: pa.ChunkedArray) -> Entries:
    """Return the row, the bucket and the count of each entry of all histograms."""
    lists = histograms.combine_chunks()
    bucket, count = (as_ints(column) for column in pc.list_flatten(lists).flatten())
    return pc.list_parent_indices(lists).to_numpy(), bucket, count


def sum_entries(group: Ints, bucket: Ints, count: Ints, groups: int) -> Entries:
    """Sum up entries to one per group and bucket, in that order.

    >>> sum_entries(np.array([1, 0, 1]), np.array([-7, 3, -7]), np.array([1, 2, 3]), 2)
    (array([0, 1]), array([ 3, -7]), array([2, 4]))
    """
    if not len(group):
        return group, bucket, count
    low = int(bucket.min())
    width = int(bucket.max()) - low + 1
    cells, places = number_values(group * width + (bucket - low), groups * width)
    sums = np.bincount(places, count, len(cells)).astype(np.int64)
    return cells // width, cells % width + low, sums


def find_quantiles(group: Ints, count: Ints, groups: int, share: float) -> Ints:
    """Return the place of the entry with a quantile of each group; any place for an empty group.

    Entries are sorted by group and value.
    """
    totals = np.bincount(group, count, groups)
    rank = np.cumsum(totals) - totals + np.maximum(np.ceil(share * totals), 1)
    places = np.searchsorted(np.cumsum(count), rank)
    return np.asarray(np.minimum(places, max(len(group) - 1, 0)))


def _latency_columns(group: Ints, bucket: Ints, count: Ints, groups: int) -> dict[str, pa.Array]:
    """Return latency histograms and their quantiles, one per group."""
    group, bucket, count = sum_entries(group, bucket, count, groups)
    offsets = np.append(0, np.searchsorted(group, np.arange(groups), "right"))
    empty = offsets[1:] == offsets[:-1]

    def quantile(share: float) -> pa.Array:
        places = find_quantiles(group, count, groups, share)
        values = bucket_seconds(bucket[places]) if len(bucket) else np.zeros(groups)
        return pa.array(values, pa.float64(), mask=empty)

    fields = list(schema.HISTOGRAM.value_type.fields)
    values = pa.StructArray.from_arrays(
        [pa.array(bucket, pa.int32()), pa.array(count, pa.int64())], fields=fields
    )
    return {
        "latency_median": quantile(0.5),
        "latency_p99": quantile(0.99),
        "latency_histogram": pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), values, type=schema.HISTOGRAM
        ),
    }


# ---- columns as numbers


def _as_table(rows: Rows) -> pa.Table:
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


def as_ints(column: pa.Array | pa.ChunkedArray, null: int = 0) -> Ints:
    """Return integers or times as int64, with `null` in place of null."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if column.type != pa.int64():
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(null)
    values: Ints = column.to_numpy(zero_copy_only=False)
    return values


def _is_valid(column: pa.ChunkedArray) -> Bools:
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    valid: Bools = column.is_valid().to_numpy()
    return valid


def _received_micros(table: pa.Table) -> Ints:
    """Return `received_at` in microseconds, or the time of the timestamp where it is null."""
    received = table["received_at"]
    if received.null_count and "timestamp" in table.column_names:
        stamped = conform(table.select(["timestamp"]), pa.schema([("timestamp", schema.TIMESTAMP)]))
        received = pc.coalesce(received, pc.struct_field(stamped["timestamp"], "time"))
    return as_ints(received)


def _timestamp_ntp64(table: pa.Table) -> tuple[Bools, Ints]:
    """Return which rows have a timestamp, and its NTP64."""
    if "timestamp" not in table.column_names:
        return np.zeros(table.num_rows, np.bool_), np.zeros(table.num_rows, np.int64)
    column = table["timestamp"]
    names = {field.name for field in column.type.fields}
    ntp64 = pc.struct_field(column, "ntp64" if "ntp64" in names else "time")
    return _is_valid(ntp64), as_ints(_conform_column(ntp64, pa.int64()))
