"""Conversion of Spark's rows to samples in columnar's schema, for the sink.

Knows both schemas, and the source and number that identify a row. Does not send.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.columnar.write import push_columns
from zenlake.errors import ZError
from zenlake.spark.options import Options
from zenlake.spark.sink import COLUMNS, DEFAULT_OPTIONS, MAX_ROWS
from zenlake.wire.emit import Emitter
from zenlake.wire.frame import LaneSettings


class RowConverter:
    """Converter of the rows of one task, which it numbers from 0."""

    def __init__(self, options: Options, source_id: str, partition: int) -> None:
        self._defaults = {name: options[option] for name, option in DEFAULT_OPTIONS.items()}
        kind, _, schema = (options["encoding"] or "").partition(";")
        self._defaults |= {"encoding": kind or None, "schema": schema or None}
        self._source_id = source_id
        self._partition = partition
        self.count = 0

    def to_samples(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert the next rows to the form that `put_batch` accepts."""
        columns = {name: batch.column(name) for name in batch.schema.names if name in COLUMNS}
        given = set(columns)
        for name, value in self._defaults.items():
            if value is None or (name == "schema" and "encoding" in given):
                continue
            columns[name] = _with_default(columns.get(name), value, batch.num_rows)
        if "timestamp" in columns:
            columns["timestamp"] = _to_timestamp(columns["timestamp"])
        columns["source"] = self._sources(columns.get("source"), batch.num_rows)
        return pa.RecordBatch.from_pydict(columns)

    def _sources(self, given: pa.Array | None, rows: int) -> pa.Array:
        """Return the source of each row: its own, else (id, partition, row number)."""
        first, self.count = self.count, self.count + rows
        if self.count > MAX_ROWS:
            raise ZError(f"more than {MAX_ROWS} rows in one task: repartition() them first")
        own = pa.StructArray.from_arrays(
            [
                pa.DictionaryArray.from_arrays(
                    pa.array(np.zeros(rows, np.int32)), pa.array([self._source_id])
                ),
                pa.array(np.full(rows, self._partition, np.uint32)),
                pa.array(np.arange(first, self.count, dtype=np.int64).astype(np.uint32)),
            ],
            ["id", "entity", "sn"],
        )
        if given is None or given.null_count == rows:
            return own
        parts = [
            pc.if_else(given.is_valid(), pc.struct_field(given, name).cast(kind), default)
            for name, kind, default in (
                ("id", pa.string(), pc.struct_field(own, "id").cast(pa.string())),
                ("entity", pa.uint32(), pc.struct_field(own, "entity")),
                ("sn", pa.uint32(), pc.struct_field(own, "sn")),
            )
        ]
        return pa.StructArray.from_arrays(parts, ["id", "entity", "sn"])


def _with_default(column: pa.Array | None, value: Any, rows: int) -> pa.Array:
    if column is None:
        return pa.repeat(value, rows)
    return column.fill_null(value) if column.null_count else column


def _to_timestamp(column: pa.Array) -> pa.Array:
    """Build columnar's timestamp from `ntp64` and `id`; the truncated `time` is ignored."""
    parts = [pc.struct_field(column, "ntp64").cast(pa.int64()).view(pa.uint64())]
    parts.append(pc.struct_field(column, "id"))
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(parts, ["time", "id"], mask=mask)


def compile_sender(samples: pa.RecordBatch) -> None:
    """Compile the kernels that send rows like `samples`, or load them from their cache.

    Call it before a session is open: compiling may take half a minute, in which the session would
    be silent and the other side would close it.
    """
    Emitter(push_columns(samples.slice(0, 1)), LaneSettings()).next(chunk_bytes=0)
