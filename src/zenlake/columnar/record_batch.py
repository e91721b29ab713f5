"""Record batches by names that type checkers know: Arrow itself has no types.

An unknown type in a signature would make every call of it partly unknown to programs that are
checked strictly. Knows no data, and is not imported at run time.
"""

from typing import Protocol

import pyarrow as pa


class RecordBatch(pa.RecordBatch):  # type: ignore[misc]  # pyarrow has no types.
    """Record batch that zenlake makes: a `pyarrow.RecordBatch`."""


class IntoRecordBatch(Protocol):
    """Record batch that zenlake is given: a `pyarrow.RecordBatch`, with types or without."""

    @property
    def num_rows(self) -> int: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...
