"""Rows of the log reduced: samples with their one time, the newest of each key, health by minute.

Knows columns and arithmetic, whole batches at a time. Does not know files, tables or Spark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.lake.tables import schema
from zenlake.lake.tables.dictionary import is_text

MAX_CODE = 1 << 62  # of names of a group in one number
DENSE = 8  # numbers are looked up in a table if that is at most so many times their count
GAMMA = 1.04  # width of a latency bucket: 2 % relative error
FINEST = 1.0  # microsecond: the smallest latency that has a bucket
LAST_BUCKET = 900  # 1.04 ** 900 microseconds are 2.2e9 seconds; all above is counted there
MAX_SN_SPAN = 1 << 31  # source numbers further apart than that have wrapped around
MINUTE = 60_000_000  # microseconds
_DAY = 24 * 60 * MINUTE
_LOWEST = np.iinfo(np.int64).min

Rows: TypeAlias = pa.RecordBatch | pa.Table
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


# ---- the time and the day of a sample


def hlc_of(rows: Rows) -> pa.Array:
    """The one time that everything orders by: NTP64 of the timestamp, else of `received_at`.

    >>> hlc_of(pa.table({"received_at": pa.array([1_500_000], pa.timestamp("us", "UTC"))}))[0]
    <pyarrow.Int64Scalar: 6442450944>
    """
    table = _table(rows)
    received = _received(table)
    times = (received // 1_000_000 << 32) + -(-(received % 1_000_000 << 32) // 1_000_000)
    stamped, stamps = _stamps(table)
    return pa.array(np.where(stamped, stamps, times), pa.int64())


def day_of(rows: Rows) -> pa.Array:
    """Return the day in UTC of `received_at`, or of the timestamp where that is null.

    >>> day_of(pa.table({"received_at": pa.array([86_400_000_000], pa.timestamp("us", "UTC"))}))[0]
    <pyarrow.Date32Scalar: datetime.date(1970, 1, 2)>
    """
    return pa.array((_received(_table(rows)) // _DAY).astype(np.int32), pa.date32())


def conform(rows: Rows, wanted: pa.Schema) -> pa.Table:
    """The columns of `wanted` from rows in Spark's or in columnar's form; what lacks is null."""
    table = _table(rows)
    columns = [
        _plain(table[field.name], field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in wanted
    ]
    return pa.table(columns, schema=wanted)


def _plain(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    return pa.chunked_array([_plain_array(chunk, kind) for chunk in column.chunks], kind)


def _plain_array(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_struct(kind):
        children = [_plain_array(_child(column, field), field.type) for field in kind.fields]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=kind.fields, mask=mask)
    if pa.types.is_uint64(column.type) and pa.types.is_int64(kind):
        return column.view(kind)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == kind else column.cast(kind)


def _child(column: pa.Array, field: pa.Field) -> pa.Array:
    """A field of a struct; columnar's timestamps have NTP64 alone, called `time`."""
    names = {one.name for one in column.type.fields}
    if field.name not in {"time", "ntp64"} or "ntp64" in names:
        return pc.struct_field(column, field.name)
    ntp64 = pc.struct_field(column, "time")
    return _microseconds(ntp64) if field.name == "time" else ntp64


def _microseconds(ntp64: pa.Array) -> pa.Array:
    bits = ntp64.fill_null(0).to_numpy(zero_copy_only=False)
    fraction = (bits & np.uint64(0xFFFF_FFFF)) * np.uint64(1_000_000) >> np.uint64(32)
    times = (bits >> np.uint64(32)) * np.uint64(1_000_000) + fraction
    mask = ntp64.is_null().to_numpy(zero_copy_only=False) if ntp64.null_count else None
    return pa.array(times.view(np.int64), schema.TIME, mask=mask)


# ---- the newest of each key


def newest(rows: Rows) -> pa.Table:
    """One row a key, sorted by key: the highest of (hlc, clock id, partition, offset).

    Whether it is a put or a delete: who wins is kept. The newest of newest ones is the newest.

    >>> stamp = pa.nulls(3, schema.TIMESTAMP)
    >>> columns = {"key": ["a", "b", "a"], "hlc": [7, 5, 8], "timestamp": stamp}
    >>> newest(pa.table(columns | {"partition": [0] * 3, "offset": [0, 1, 2]}))["hlc"].to_pylist()
    [8, 5]
    """
    table = _table(rows)
    return take_rows(table, newest_row_indices(table))


def newest_row_indices(table: pa.Table) -> Ints:
    """The numbers of the rows that `newest` keeps, in the order of their keys."""
    if _increasing(table["key"]):
        return np.arange(table.num_rows)
    keys, distinct = dense_ranks(table["key"])
    hlc = _ints(table["hlc"])
    best = np.full(distinct, _LOWEST, np.int64)
    np.maximum.at(best, keys, hlc)
    rows = np.flatnonzero(hlc == best[keys])
    keys = keys[rows]
    if not len(rows) or len(rows) == np.count_nonzero(np.bincount(keys)):
        return np.asarray(rows[np.argsort(keys, kind="stable")])
    ties = table.select(["timestamp", "partition", "offset"]).take(pa.array(rows))
    clocks, _ = dense_ranks(_field(ties["timestamp"], "id").cast(pa.string()).fill_null(""))
    order = np.lexsort((_ints(ties["offset"]), _ints(ties["partition"]), clocks, keys))
    last = np.append(keys[order][1:] != keys[order][:-1], True)
    return np.asarray(rows[order[last]])


def sorted_by(table: pa.Table, order: Sequence[str]) -> pa.Table:
    """The rows in the order of these columns; texts by their bytes, null first."""
    if not order or _increasing(table[order[0]]):
        return table
    columns = [_sortable(table[name]) for name in order]
    if len(columns) == 2 and np.all(columns[1][1:] >= columns[1][:-1]):
        columns.pop()  # a stable sort keeps what is sorted
    rows = np.argsort(_narrow(columns.pop()), kind="stable")
    for column in reversed(columns):
        rows = rows[np.argsort(_narrow(column[rows]), kind="stable")]
    return take_rows(table, rows)


def take_rows(table: pa.Table, rows: Ints) -> pa.Table:
    """Those rows in that order; nothing is copied if they are all, as they stand."""
    if len(rows) == table.num_rows and np.all(rows[1:] > rows[:-1]):
        return table
    return table.take(pa.array(rows))


def dense_ranks(column: pa.ChunkedArray) -> tuple[Ints, int]:
    """Texts as numbers in the same order, null as 0, and how many numbers there may be.

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


def _increasing(column: pa.ChunkedArray) -> bool:
    """Whether each value is above the one before, and none null."""
    if column.null_count or len(column) < 2:
        return len(column) < 2
    if pa.types.is_dictionary(column.type):
        return bool(np.all(np.diff(dense_ranks(column)[0]) > 0))
    values = column.combine_chunks()
    return bool(pc.all(pc.greater(values[1:], values[:-1])).as_py())


def _narrow(values: Ints) -> npt.NDArray[Any]:
    """Small numbers in two bytes: NumPy sorts those by counting."""
    if len(values) and values.min() >= 0 and values.max() < 1 << 16:
        return values.astype(np.uint16)
    return values


def _sortable(column: pa.ChunkedArray) -> Ints:
    if is_text(column.type):
        return dense_ranks(column)[0]
    return _ints(column, null=_LOWEST)


# ---- health


@dataclass(frozen=True)
class _Parts:
    """What is added up: one row a sample, or one row an earlier sum. Times in microseconds."""

    live: Bools  # False: only duplicates in it, the other columns mean nothing
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


@dataclass(frozen=True)
class _Buckets:
    """Latencies: which row each belongs to, in which bucket, how many."""

    row: Ints
    bucket: Ints
    count: Ints


def health_of(rows: Rows) -> pa.Table:
    """Health of the minutes, keys and sources in rows of the log: to be merged with others.

    `count` is without repeats, which `duplicates` counts; only a column `duplicate` says which
    they are. Takes Spark's form of rows.
    """
    table = _table(rows)
    if table["key"].null_count:
        table = table.filter(pc.is_valid(table["key"]))
    n = table.num_rows
    seen = _received(table)
    sn = _field(table["source"], "sn")
    repeat = np.zeros(n, np.bool_)
    if "duplicate" in table.column_names:
        repeat = table["duplicate"].fill_null(False).to_numpy()
    size = _ints(pc.binary_length(table["payload"]))
    number = _ints(sn)
    zeros, ones = np.zeros(n, np.int64), np.ones(n, np.int64)
    parts = _Parts(
        ~repeat, _valid(sn), ones, size, size, size, number, number, repeat.astype(np.int64),
        seen, seen, zeros,
    )  # fmt: skip
    names = pa.table(
        {
            "minute": pa.array(seen // MINUTE * MINUTE, schema.TIME),
            "key": table["key"],
            "source_id": _field(table["source"], "id"),
            "entity": _field(table["source"], "entity"),
        }
    )
    sent = _field(table["timestamp"], "time")
    timed = np.flatnonzero(_valid(sent) & _valid(table["received_at"]) & ~repeat)
    latency = (seen - _ints(sent))[timed]
    return _health(names, parts, _Buckets(timed, _bucket(latency), ones[timed]))


def merged_health(rows: Rows) -> pa.Table:
    """Health of the same minute, key and source added up; one row each, sorted.

    The result is that of all samples at once, if no two rows interleave in time; if they do,
    `silence` is an upper bound.
    """
    table = _table(rows)
    there = [name for name in _Parts.__annotations__ if name in table.column_names]
    columns = {name: _ints(table[name]) for name in there if name != "silence"}
    columns["silence"] = np.rint(table["silence"].fill_null(0).to_numpy() * 1e6).astype(np.int64)
    parts = _Parts(columns["count"] > 0, _valid(table["first_sn"]), **columns)
    histograms = table["latency_histogram"].combine_chunks()
    buckets = _Buckets(
        pc.list_parent_indices(histograms).to_numpy(),
        _ints(pc.struct_field(pc.list_flatten(histograms), "bucket")),
        _ints(pc.struct_field(pc.list_flatten(histograms), "count")),
    )
    return _health(table.select(["minute", "key", "source_id", "entity"]), parts, buckets)


def _health(names: pa.Table, parts: _Parts, buckets: _Buckets) -> pa.Table:
    group, groups = _groups(names)
    one = np.empty(groups, np.int64)
    one[group] = np.arange(len(group))
    names = names.take(pa.array(one))
    sums = _summed(group, parts, groups, _ints(names["minute"]))
    names = conform(names, pa.schema([schema.HEALTH.field(name) for name in names.column_names]))
    columns = {name: names[name] for name in names.column_names} | sums
    columns |= _latency(group[buckets.row], buckets, groups)
    return pa.table([columns[name] for name in schema.HEALTH.names], schema=schema.HEALTH)


def _groups(names: pa.Table) -> tuple[Ints, int]:
    """The group of each row; groups are numbered in the order of their names."""
    group = np.zeros(names.num_rows, np.int64)
    span = 1
    for name in names.column_names:
        column = names[name]
        if is_text(column.type):
            values, width = dense_ranks(column)
        elif column.null_count == len(column):
            continue
        else:
            values = _ints(column, null=-1)
            lowest = int(values.min())
            values, width = values - lowest, int(values.max()) - lowest + 1
        if name == "minute":
            values, width = values // MINUTE, width // MINUTE + 1
        if span * width > MAX_CODE:
            distinct, group = _numbered(group, span)
            others, values = _numbered(values, width)
            span, width = len(distinct), len(others)
        group = group * width + values
        span *= width
    distinct, group = _numbered(group, span)
    return group, len(distinct)


def _numbered(values: Ints, span: int) -> tuple[Ints, Ints]:
    """The distinct values in order, and the place of each among them; all are below `span`."""
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


def _summed(group: Ints, parts: _Parts, groups: int, minute: Ints) -> dict[str, pa.Array]:
    """The columns that are added up, a value for each group; null where none is live."""
    duplicates = np.bincount(group, parts.duplicates, groups).astype(np.int64)
    rows = np.flatnonzero(parts.live)
    rows = rows[_order(group[rows], parts.first_seen[rows])]
    group = group[rows]
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
    where = group[starts]  # the groups that have something live
    live = np.zeros(groups, np.bool_)
    live[where] = True
    ordered: dict[int, Ints] = {}  # samples have one array in several places

    def sorted_(values: Ints) -> Ints:
        if id(values) not in ordered:
            ordered[id(values)] = values[rows]
        return ordered[id(values)]

    def reduced(how: np.ufunc, values: Ints) -> Ints:
        return placed(how, sorted_(values))

    def placed(how: np.ufunc, values: Ints) -> Ints:
        result = np.zeros(groups, np.int64)
        if len(starts):
            result[where] = how.reduceat(values, starts)
        return result

    count = reduced(np.add, parts.count)
    first_sn, last_sn = reduced(np.minimum, parts.first_sn), reduced(np.maximum, parts.last_sn)
    span = last_sn - first_sn + 1
    sourced = live & (placed(np.maximum, parts.sourced[rows].astype(np.int64)) > 0)
    moved = (np.arange(groups) * MINUTE - minute)[group]
    pauses = _pauses(sorted_(parts.first_seen) + moved, sorted_(parts.last_seen) + moved, starts)
    silence = placed(np.maximum, np.maximum(sorted_(parts.silence), pauses))

    def column(values: npt.NDArray[Any], kind: pa.DataType, valid: Bools = live) -> pa.Array:
        return pa.array(values, kind, mask=~valid)

    return {
        "count": pa.array(count),
        "bytes": pa.array(reduced(np.add, parts.bytes)),
        "min_bytes": column(reduced(np.minimum, parts.min_bytes), pa.int64()),
        "max_bytes": column(reduced(np.maximum, parts.max_bytes), pa.int64()),
        "rate": pa.array(count / 60),
        "gaps": column(np.maximum(span - count, 0), pa.int64(), sourced & (span < MAX_SN_SPAN)),
        "first_sn": column(first_sn, pa.int64(), sourced),
        "last_sn": column(last_sn, pa.int64(), sourced),
        "duplicates": pa.array(duplicates),
        "first_seen": column(reduced(np.minimum, parts.first_seen), schema.TIME),
        "last_seen": column(reduced(np.maximum, parts.last_seen), schema.TIME),
        "silence": column(silence / 1e6, pa.float64()),
    }


def _order(group: Ints, seen: Ints) -> Ints:
    """By group, then by time."""
    if len(group) < 2 or np.all(seen[1:] >= seen[:-1]):
        return np.argsort(_narrow(group), kind="stable")
    return np.lexsort((seen, group))


def _pauses(first: Ints, last: Ints, starts: Ints) -> Ints:
    """The time from all that was before in a group to each row; 0 for the first of a group.

    Each group has a minute of its own, after the one before: one running maximum serves all.
    """
    pauses = np.zeros(len(first), np.int64)
    if len(first):
        pauses[1:] = first[1:] - np.maximum.accumulate(last)[:-1]
        pauses[starts] = 0
    return np.maximum(pauses, 0)


def _bucket(latency: Ints) -> Ints:
    """The bucket of latencies in microseconds: 0 is none, the sign is kept.

    >>> _bucket(np.array([0, 1, -1, 1_000, 1_000_000]))
    array([  0,   1,  -1, 178, 354])
    """
    size = np.maximum(np.abs(latency), FINEST)
    number = np.ceil(np.log(size) / np.log(GAMMA) - 1e-9).astype(np.int64) + 1
    return np.asarray(np.sign(latency) * np.minimum(number, LAST_BUCKET))


def bucket_seconds(bucket: Ints) -> npt.NDArray[np.float64]:
    """The latency that stands for a bucket: within 2 % of all in it."""
    size = FINEST * 2 * GAMMA ** (np.abs(bucket) - 1.0) / (GAMMA + 1) / 1e6
    return np.where(bucket == 0, 0.0, np.sign(bucket) * size)


def _latency(group: Ints, buckets: _Buckets, groups: int) -> dict[str, pa.Array]:
    """Histograms and the quantiles read from them, one a group."""
    width = 2 * LAST_BUCKET + 1
    cells, places = _numbered(group * width + buckets.bucket + LAST_BUCKET, groups * width)
    counts = np.bincount(places, buckets.count, len(cells)).astype(np.int64)
    bucket = cells % width - LAST_BUCKET
    ends = np.searchsorted(cells, np.arange(1, groups + 1) * width).astype(np.int64)
    offsets = np.append(0, ends)
    running = np.append(0, np.cumsum(counts))
    below, total = running[offsets[:-1]], running[offsets[1:]] - running[offsets[:-1]]
    none = total == 0

    def quantile(share: float) -> pa.Array:
        rank = below + np.maximum(np.ceil(total * share).astype(np.int64), 1)
        cell = np.minimum(np.searchsorted(running[1:], rank), max(len(cells) - 1, 0))
        values = bucket_seconds(bucket[cell]) if len(cells) else np.zeros(groups)
        return pa.array(values, pa.float64(), mask=none)

    fields = list(schema.HISTOGRAM.value_type.fields)
    values = pa.StructArray.from_arrays(
        [pa.array(bucket, pa.int32()), pa.array(counts, pa.int64())], fields=fields
    )
    return {
        "latency_median": quantile(0.5),
        "latency_p99": quantile(0.99),
        "latency_histogram": pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), values, type=schema.HISTOGRAM
        ),
    }


# ---- columns as numbers


def _table(rows: Rows) -> pa.Table:
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


def _ints(column: pa.Array | pa.ChunkedArray, null: int = 0) -> Ints:
    """Integers and times as int64, null as `null`."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if column.type != pa.int64():
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(null)
    values: Ints = column.to_numpy(zero_copy_only=False)
    return values


def _valid(column: pa.ChunkedArray) -> Bools:
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    valid: Bools = column.is_valid().to_numpy()
    return valid


def _field(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    return pc.struct_field(column, name)


def _received(table: pa.Table) -> Ints:
    """When each row came, in microseconds; the timestamp's time if nobody looked at a clock."""
    received = table["received_at"]
    if received.null_count and "timestamp" in table.column_names:
        stamped = conform(table.select(["timestamp"]), pa.schema([("timestamp", schema.TIMESTAMP)]))
        received = pc.coalesce(received, _field(stamped["timestamp"], "time"))
    return _ints(received)


def _stamps(table: pa.Table) -> tuple[Bools, Ints]:
    """NTP64 of the timestamps, and where there are any."""
    if "timestamp" not in table.column_names:
        return np.zeros(table.num_rows, np.bool_), np.zeros(table.num_rows, np.int64)
    column = table["timestamp"]
    names = {field.name for field in column.type.fields}
    ntp64 = _field(column, "ntp64" if "ntp64" in names else "time")
    return _valid(ntp64), _ints(_plain(ntp64, pa.int64()))
