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
    same = hlc[1:] == hlc[:-1]
    if same.any():
        same &= pc.equal(key[1:], key[: len(key) - 1]).to_numpy()
    if not same.any():
        return rows
    ties = np.flatnonzero(np.append(same, False) | np.append(False, same))
    some = rows.select(["key", "hlc", "timestamp", "source", "partition", "offset"]).take(ties)
    stamp, source = some.column("timestamp"), some.column("source")
    anonymous = pc.and_(stamp.is_null(), source.is_null())
    named = pa.table(
        {
            "key": some.column("key"),
            "hlc": some.column("hlc"),
            "clock": pc.struct_field(stamp, "id").fill_null(""),
            **{name: pc.struct_field(source, name) for name in ("id", "entity", "sn")},
            "if_partition": pc.if_else(anonymous, some.column("partition"), None),
            "if_offset": pc.if_else(anonymous, some.column("offset"), None),
        }
    )
    identity = named.column_names
    for name in ("partition", "offset"):
        named = named.append_column(name, some.column(name))
    named = reduce.sort_rows(
        named.append_column("row", pa.array(ties)), ("key", "hlc", "clock", "partition", "offset")
    ).append_column("place", pa.array(ties))
    last = named.group_by(identity).aggregate([("place", "max")]).column("place_max")
    order, keep = np.arange(len(key)), np.ones(len(key), np.bool_)
    order[ties], keep[ties] = named.column("row").to_numpy(), False
    keep[last.to_numpy()] = True
    return rows.take(order[keep])


def take_last_per_key(rows: pa.Table, count: int) -> pa.Table:
    """Return the last `count` rows of each key of rows sorted by key."""
    if not rows.num_rows:
        return rows
    key = rows.column("key")
    same = pc.equal(key.slice(1), key.slice(0, len(key) - 1)).to_numpy()
    return select_rows(rows, count_following(same) < count)
