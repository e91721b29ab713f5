"""Which rows a question is about: keys by a key expression, times by a range of HLC time.

Knows Arrow columns and statistics of files. Looks at each distinct key once, not at each row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zenlake.errors import ZError
from zenlake.keyexpr import KeyExpr, intersects
from zenlake.lake.serve.time_range import EVERYTHING, HlcRange

MAX_KEYS = 1 << 20  # distinct keys that one question may look at

_Numbers = npt.NDArray[np.int64]


def literal_prefix(key_expr: str) -> str:
    """What every key that a key expression matches starts with.

    >>> [literal_prefix(text) for text in ("robot/*/imu", "robot/**", "robot/7$*", "a")]
    ['robot/', 'robot', 'robot/7', 'a']
    """
    literal, star, rest = key_expr.partition("*")
    if not star:
        return literal
    if rest == "*":  # a last ** may stand for nothing at all, and its slash goes with it
        literal = literal.removesuffix("/")
    return literal.removesuffix("$")


class RowFilter:
    """The rows whose key is wanted and whose `hlc` lies in a range; for one question, one thread.

    >>> picking = RowFilter("robot/*", HlcRange(2, 9))
    >>> keys = pa.array(["robot/1", "cat", "robot/1", "robot/2"]).dictionary_encode()
    >>> picking.pick(pa.table({"key": keys, "hlc": [1, 2, 3, 4]})).column("hlc").to_pylist()
    [3, 4]
    """

    def __init__(
        self, key_expr: str, times: HlcRange = EVERYTHING, also: Callable[[str], bool] | None = None
    ) -> None:
        self.key_expr = KeyExpr(key_expr)
        self.times = times
        self.prefix = literal_prefix(key_expr)
        self.one_key = None if self.key_expr.is_wild else str(self.key_expr)
        "The only key, if there are no wildcards: it is looked for as it is."
        self._also = also
        self._numbers: dict[str, int] = {}
        self.keys: list[str] = []
        "Those wanted that were met so far, by their numbers."

    def within(self, times: HlcRange) -> HlcRange:
        """What of `times` is asked for."""
        return HlcRange(max(times.low, self.times.low), min(times.high, self.times.high))

    def may_hold(self, low: dict[str, Any], high: dict[str, Any], times: HlcRange) -> bool:
        """Whether there may be a row between these bounds; what has no bound may be anything."""
        first, last = low.get("hlc"), high.get("hlc")
        if (first is not None and first > times.high) or (last is not None and last < times.low):
            return False
        lowest, highest = low.get("key"), high.get("key")
        if self.one_key is None and lowest is not None:
            lowest = lowest[: len(self.prefix)]
        return (lowest is None or lowest <= self.prefix) and (
            highest is None or highest >= self.prefix
        )

    def numbers(self, keys: Sequence[str | None]) -> _Numbers:
        """The number of each key; -1: not wanted."""
        known = self._numbers
        return np.fromiter(
            (known[key] if key in known else self._number(key) for key in keys),
            np.int64,
            len(keys),
        )

    def _number(self, key: str | None) -> int:
        wanted = key is not None and (
            key == self.one_key
            if self.one_key is not None
            else key.startswith(self.prefix) and intersects(self.key_expr, key)
        )
        if key is None or not wanted or not (self._also is None or self._also(key)):
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
        """The number of each row's key; they are dictionaries."""
        found = [
            np.append(self.numbers(chunk.dictionary.to_pylist()), -1)[
                chunk.indices.fill_null(len(chunk.dictionary)).to_numpy()
            ]
            for chunk in keys.chunks
        ]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def pick(self, table: pa.Table, times: HlcRange | None = None) -> pa.Table:
        """The rows that are wanted, in their order, keys as plain text."""
        low, high = self.times if times is None else times
        hlc = table.column("hlc").to_numpy()
        keep = (self.key_numbers(table.column("key")) >= 0) & (hlc >= low) & (hlc <= high)
        return decode_key_column(select_rows(table, keep))


def select_rows(table: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows that are marked; not copied if they stand together."""
    rows = np.flatnonzero(keep)
    if len(rows) == table.num_rows:
        return table
    if not len(rows) or rows[-1] - rows[0] + 1 == len(rows):
        return table.slice(int(rows[0]) if len(rows) else 0, len(rows))
    return table.take(pa.array(rows))


def decode_key_column(table: pa.Table) -> pa.Table:
    place = table.schema.get_field_index("key")
    return table.set_column(place, "key", table.column(place).cast(pa.string()))
