"""The newest times of each key, collected from many files without reading payloads.

Knows key numbers, times and places. Does not know files or tables.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zenlake.errors import ZError
from zenlake.lake.serve.row_filter import RowFilter, count_following, select_rows
from zenlake.lake.serve.time_range import LOWEST

MAX_NEWEST = 1 << 22  # Upper bound on the rows that one query may select.
FOLD_ROWS = 65_536  # Rows added between two folds, beyond twice those of the last fold.

_Ints = npt.NDArray[np.int64]


class NewestPerKey:
    """The `count` highest times of each key, and the places of the rows that have them.

    A place is any number that identifies a row group; a negative one stands for the tail.

    >>> newest = NewestPerKey(2)
    >>> newest.add(np.array([0, 0, 0, 1]), np.array([5, 7, 7, 1]), 10)
    >>> newest.add(np.array([0, 1]), np.array([6, 2]), 11)
    >>> newest.places(), newest.floor().tolist()
    ([10, 11], [6, 1])
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows: list[tuple[_Ints, _Ints, _Ints]] = []
        self._size = self._folded = 0
        self._floor: _Ints = np.empty(0, np.int64)
        "Lowest of the highest times of each key at the last fold; LOWEST if a key has fewer."

    def add(self, keys: _Ints, times: _Ints, place: int) -> None:
        """Add rows of a place by their key numbers and times."""
        if not len(keys):
            return
        if len(self._floor) <= (most := int(keys.max())):
            more = np.full(most + 1 - len(self._floor), LOWEST, np.int64)
            self._floor = np.concatenate((self._floor, more))
        keep = times >= self._floor[keys]
        if len(keys) > 1 and self._count < len(keys):
            keep &= _mark_last(keys, times, self._count)
        keys, times = keys[keep], times[keep]
        if not len(keys):
            return
        self._rows.append((keys, times, np.full(len(keys), place, np.int64)))
        self._size += len(keys)
        if self._size > 2 * self._folded + FOLD_ROWS:
            self._fold()

    def _fold(self) -> None:
        if not self._rows:
            return
        keys, times, places = (
            np.concatenate([rows[part] for rows in self._rows]) for part in range(3)
        )
        order = np.lexsort((places, -times, keys))
        keys, times, places = keys[order], times[order], places[order]
        first = np.append(True, keys[1:] != keys[:-1])
        other = first | np.append(True, times[1:] != times[:-1])
        rank = np.cumsum(other)
        rank -= rank[np.flatnonzero(first)][np.cumsum(first) - 1]
        keep = rank < self._count
        once = other | np.append(True, places[1:] != places[:-1])
        full = keys[rank == self._count - 1]
        self._floor[full] = times[rank == self._count - 1]
        keep &= once
        self._rows = [(keys[keep], times[keep], places[keep])]
        self._size = self._folded = int(np.count_nonzero(keep))
        if self._size > MAX_NEWEST:
            raise ZError(
                f"_max={self._count} of {len(self._floor)} keys is more than {MAX_NEWEST} samples: "
                "ask for fewer keys, for fewer of each, or for all of a range of time"
            )

    def floor(self) -> _Ints:
        """Return for each key the lowest time of its newest rows."""
        self._fold()
        return self._floor

    def lowest(self) -> int:
        """Return the lowest time of all newest rows."""
        self._fold()
        return min((int(times.min()) for _, times, _ in self._rows if len(times)), default=LOWEST)

    def excludes(self, end: int) -> bool:
        """Tell whether no row up to `end` can be among the newest of the first key."""
        return len(self.floor()) > 0 and int(self._floor[0]) > end

    def places(self) -> list[int]:
        """Return the places of the newest rows, without negative ones."""
        self._fold()
        found = {int(place) for _, _, places in self._rows for place in np.unique(places)}
        return sorted(place for place in found if place >= 0)

    def select(self, rows: pa.Table, row_filter: RowFilter) -> pa.Table:
        """Return the rows that are among the newest of their key."""
        if not rows.num_rows:
            return rows
        keys = row_filter.key_numbers(rows.column("key").dictionary_encode())
        floor = np.append(self.floor(), LOWEST)[np.minimum(keys, len(self._floor))]
        return select_rows(rows, rows.column("hlc").to_numpy() >= floor)


def _mark_last(keys: _Ints, times: _Ints, count: int) -> npt.NDArray[np.bool_]:
    """Mark the last `count` rows of each key; all rows if they are not sorted without ties."""
    ahead = keys[1:] == keys[:-1]
    if (ahead & (times[1:] <= times[:-1])).any():
        return np.ones(len(keys), np.bool_)
    return count_following(ahead) < count
