"""Operations on rows sorted by key and time: restrict, regroup, drop repeats.

Knows the columns of samples. Does not know files or queries.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.lake.serve.row_filter import count_following, select_rows
from zenlake.lake.serve.time_range import HlcRange
from zenlake.lake.tables import reduce

MAX_TIES = 262_144  # Upper bound on rows of one key and time that are compared with each other.


def restrict_times(rows: pa.Table, times: HlcRange) -> pa.Table:
    """Return the rows whose `hlc` lies in `times`."""
    hlc = rows.column("hlc").to_numpy()
    return select_rows(rows, (hlc >= times.low) & (hlc <= times.high))


def regroup(tables: Iterable[pa.Table], columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """Regroup sorted rows into tables that break only where one of these columns changes."""
    held: pa.Table | None = None
    for table in tables:
        if not table.num_rows:
            continue
        rows = table if held is None else pa.concat_tables([held, table])
        same = np.ones(rows.num_rows, np.bool_)
        for name in columns:
            column = rows.column(name)
            same &= pc.equal(column, column[-1]).to_numpy()
        others = np.flatnonzero(~same)
        cut = int(others[-1]) + 1 if len(others) else 0
        if not cut and rows.num_rows > MAX_TIES and "hlc" in columns:
            cut = rows.num_rows
        if cut:
            yield rows.slice(0, cut)
        held = rows.slice(cut) if cut < rows.num_rows else None
    if held is not None:
        yield held


def drop_repeats(rows: pa.Table) -> pa.Table:
    """Drop repeats from rows sorted by key and time; order ties by clock and log position.

    Repeats have equal key, time, clock and source. Rows with neither clock nor source are repeats
    if they have the same position in the log. The last of the repeats stays.
    """
    key, hlc = rows.column("key"), rows.column("hlc").to_numpy()
    count = rows.num_rows
    if count < 2 or not (hlc[1:] == hlc[:-1]).any():
        return rows
    same = (hlc[1:] == hlc[:-1]) & pc.equal(key.slice(1), key.slice(0, count - 1)).to_numpy()
    if not same.any():
        return rows
    ties = np.append(same, False) | np.append(False, same)
    stamp, source = rows.column("timestamp"), rows.column("source")
    clock = pc.struct_field(stamp, "id").fill_null("")
    anonymous = pc.and_(stamp.is_null(), source.is_null())
    named = pa.table(
        {
            "key": key,
            "hlc": hlc,
            "clock": clock,
            "id": pc.struct_field(source, "id"),
            "entity": pc.struct_field(source, "entity"),
            "sn": pc.struct_field(source, "sn"),
            "partition": rows.column("partition"),
            "offset": rows.column("offset"),
        }
    )
    order = reduce.sort_rows(
        named.select(["key", "hlc", "clock", "partition", "offset"]).append_column(
            "row", pa.array(np.arange(count))
        ),
        ("key", "hlc", "clock", "partition", "offset"),
    )["row"].to_numpy()
    places = ("partition", "offset")
    for name in places:
        column = pc.if_else(anonymous, named.column(name), None)
        named = named.set_column(named.schema.get_field_index(name), name, column)
    named = named.take(pa.array(order)).append_column("row", pa.array(np.arange(count)))
    some = named.filter(pa.array(ties[order]))
    last = some.group_by([name for name in some.column_names if name != "row"]).aggregate(
        [("row", "max")]
    )
    keep = ~ties[order]
    keep[last.column("row_max").to_numpy()] = True
    return rows.take(pa.array(order[keep]))


def take_last_per_key(rows: pa.Table, count: int) -> pa.Table:
    """Return the last `count` rows of each key of rows sorted by key."""
    if not rows.num_rows:
        return rows
    key = rows.column("key")
    same = pc.equal(key.slice(1), key.slice(0, len(key) - 1)).to_numpy()
    return select_rows(rows, count_following(same) < count)
