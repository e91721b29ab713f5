"""Cache of Parquet footers: row groups, their bounds of key and time, and a good batch size.

Knows Parquet metadata. Does not know queries or tables.
"""

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

from pyarrow import parquet

from zenlake.lake.tables.delta import uncompressed_bytes

MAX_ROW_GROUPS = 16_384  # Upper bound on the row groups whose statistics are cached.
BATCH_ROWS = 8_192  # Upper bound on the rows of a batch.
BATCH_BYTES = 8 << 20  # Upper bound on the bytes of a batch, estimated from the mean row size.
BOUNDED = ("key", "hlc")
"Columns whose bounds are read."


class Footer(NamedTuple):
    """Footer of a Parquet file."""

    metadata: parquet.FileMetaData
    low: list[dict[str, Any]]
    "Lowest values of the bounded columns, per row group."
    high: list[dict[str, Any]]
    "Highest values of the bounded columns, per row group."
    batch_rows: int
    "Number of rows to read at once."


class Footers:
    """Cache of the footers that were read last, for any number of threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Footer] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: str) -> Footer:
        """Return the footer of a file, which never changes."""
        with self._lock:
            found = self._known.get(path)
            if found is not None:
                self._known.move_to_end(path)
                return found
        found = _parse_footer(parquet.read_metadata(path))
        with self._lock:
            self._known[path] = found
            groups = sum(len(footer.low) for footer in self._known.values())
            while groups > MAX_ROW_GROUPS and len(self._known) > 1:
                groups -= len(self._known.popitem(last=False)[1].low)
        return found


def _parse_footer(metadata: parquet.FileMetaData) -> Footer:
    low, high = [], []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = map(group.column, range(group.num_columns))
        stats = {
            column.path_in_schema: found
            for column in columns
            if column.path_in_schema in BOUNDED
            and (found := column.statistics) is not None
            and found.has_min_max
        }
        low.append({name: found.min for name, found in stats.items()})
        high.append({name: found.max for name, found in stats.items()})
    row = max(1, uncompressed_bytes(metadata) // max(1, metadata.num_rows))
    return Footer(metadata, low, high, min(BATCH_ROWS, max(1, BATCH_BYTES // row)))
