"""Row filter of a query: keys by a key expression, times by a range of HLC time.

Knows Arrow columns and file statistics. Matches each distinct key once, not each row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr, intersects
from zenlake.lake.serve.time_range import EVERYTHING, HlcRange

MAX_KEYS = 1 << 20  # Upper bound on distinct keys per query.

_Numbers = npt.NDArray[np.int64]


def literal_prefix(key_expr: str) -> str:
    """Return the text that every key matched by a key expression starts with.

    >>> [literal_prefix(text) for text in ("robot/*/imu", "robot/**", "robot/7$*", "a")]
    ['robot/', 'robot', 'robot/7', 'a']
    """
    literal, star, rest = key_expr.partition("*")
    if not star:
        return literal
    if rest == "*":  # A final ** may match no chunk, and then the slash before it is missing.
        literal = literal.removesuffix("/")
    return literal.removesuffix("$")


class RowFilter:
    """Filter for rows with matching keys and with `hlc` in a range; for one query and thread.

    >>> row_filter = RowFilter("robot/*", HlcRange(2, 9))
    >>> keys = pa.array(["robot/1", "cat", "robot/1", "robot/2"]).dictionary_encode()
    >>> row_filter.select(pa.table({"key": keys, "hlc": [1, 2, 3, 4]})).column("hlc").to_pylist()
    [3, 4]
    """

    def __init__(
        self,
        key_expr: str,
        times: HlcRange = EVERYTHING,
        key_filter: Callable[[str], bool] | None = None,
    ) -> None:
        self.key_expr = KeyExpr(key_expr)
        self.times = times
        self.prefix = literal_prefix(key_expr)
        self.single_key = None if self.key_expr.is_wild else str(self.key_expr)
        "The key itself if the expression has no wildcards, else None."
        self._key_filter = key_filter
        self._numbers: dict[str, int] = {}
        self.keys: list[str] = []
        "Matching keys met so far, by their numbers."

    def clip_times(self, times: HlcRange) -> HlcRange:
        """Return the part of `times` that lies in the range of this filter."""
        return HlcRange(max(times.low, self.times.low), min(times.high, self.times.high))

    def may_contain(self, low: dict[str, Any], high: dict[str, Any], times: HlcRange) -> bool:
        """Tell whether rows within these bounds may match; a missing bound excludes nothing."""
        first, last = low.get("hlc"), high.get("hlc")
        if (first is not None and first > times.high) or (last is not None and last < times.low):
            return False
        lowest, highest = low.get("key"), high.get("key")
        if self.single_key is None and lowest is not None:
            lowest = lowest[: len(self.prefix)]
        return (lowest is None or lowest <= self.prefix) and (
            highest is None or highest >= self.prefix
        )

    def number_keys(self, keys: Sequence[str | None]) -> _Numbers:
        """Return the number of each key; -1 for keys that do not match."""
        known = self._numbers
        return np.fromiter(
            (known[key] if key in known else self._number(key) for key in keys),
            np.int64,
            len(keys),
        )

    def _number(self, key: str | None) -> int:
        wanted = key is not None and (
            key == self.single_key
            if self.single_key is not None
            else key.startswith(self.prefix) and intersects(self.key_expr, key)
        )
        if key is None or not wanted or not (self._key_filter is None or self._key_filter(key)):
            if key is not None and len(self._numbers) < MAX_KEYS:
                self._numbers[key] = -1
            return -1
        if len(self.keys) >= MAX_KEYS:
            raise ZError(
                f"{self.key_expr} matches more than {MAX_KEYS} keys: ask for fewer at a time"
            )
        self._numbers[key] = len(self.keys)
        self.keys.append(key)
        return self._numbers[key]

    def key_numbers(self, keys: pa.ChunkedArray) -> _Numbers:
        """Return the key number of each row of a dictionary-encoded column."""
        found = [
            np.append(self.number_keys(chunk.dictionary.to_pylist()), -1)[
                chunk.indices.fill_null(len(chunk.dictionary)).to_numpy()
            ]
            for chunk in keys.chunks
        ]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def select(self, table: pa.Table, times: HlcRange | None = None) -> pa.Table:
        """Return the matching rows in their order, with keys as plain text."""
        low, high = self.times if times is None else times
        hlc = table.column("hlc").to_numpy()
        keep = (self.key_numbers(table.column("key")) >= 0) & (hlc >= low) & (hlc <= high)
        rows, place = select_rows(table, keep), table.schema.get_field_index("key")
        return rows.set_column(place, "key", rows.column(place).cast(pa.string()))


def select_rows(table: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the marked rows; copies nothing if they are adjacent."""
    rows = np.flatnonzero(keep)
    if len(rows) == table.num_rows:
        return table
    if not len(rows) or rows[-1] - rows[0] + 1 == len(rows):
        return table.slice(int(rows[0]) if len(rows) else 0, len(rows))
    return table.take(pa.array(rows))


def count_following(same: npt.NDArray[np.bool_]) -> _Numbers:
    """Return how many rows of its group follow each row; `same` tells if the next is of its group.

    >>> count_following(np.array([True, True, False]))
    array([2, 1, 0, 0])
    """
    ends = np.flatnonzero(np.append(~same, True))
    rows = np.arange(len(same) + 1)
    found: _Numbers = ends[np.searchsorted(ends, rows)] - rows
    return found
