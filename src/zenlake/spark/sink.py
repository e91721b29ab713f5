"""The sink: every executor sends its rows as PUT and DEL messages on a session of its own.

Knows the columns of a sample and the identity of a row. Numba, NumPy and the network load in
`write` only, on executors. docs/spark.md states the guarantees.
"""

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from zenlake.errors import ZError
from zenlake.spark.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS = 1 << 32  # Rows per task: a sequence number of the protocol has 32 bits.

BYTES = (BinaryType, StringType)
TEXT = (StringType,)
WHOLE = (ByteType, ShortType, IntegerType, LongType)
TRUTH = (BooleanType,)
COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "key": TEXT,
    "kind": TEXT,
    "payload": BYTES,
    "encoding": TEXT,
    "schema": TEXT,
    "timestamp": (StructType,),
    "source": (StructType,),
    "attachment": BYTES,
    "priority": WHOLE,
    "congestion_control": TEXT,
    "express": TRUTH,
    "reliable": TRUTH,
}
"The columns that a row may have, and their accepted types."
STRUCT_FIELDS = {"timestamp": ("ntp64", "id"), "source": ("id", "entity", "sn")}
IGNORED_COLUMNS = ("received_at", "partition", "offset")  # Columns of rows read before; not sent.
DEFAULT_OPTIONS = {
    "key": "key",
    "encoding": "encoding",
    "priority": "priority",
    "congestion_control": "congestionControl",
    "express": "express",
    "reliable": "reliable",
}
"Columns, and the option that gives the value where a row has none."


@dataclass
class SentRows(WriterCommitMessage):
    """Count of the rows that one task has sent."""

    rows: int


def check_columns(schema: StructType, options: Options) -> None:
    """Raise ZError, with a remedy, if rows of this schema cannot be sent."""
    names = [name for name in schema.names if name not in IGNORED_COLUMNS]
    for name in names:
        if name not in COLUMNS:
            raise ZError(
                f"column {name!r} is not a column of a sample: drop or rename it. "
                f"A sample has {', '.join(COLUMNS)}"
            )
        kind = schema[name].dataType
        if not isinstance(kind, COLUMNS[name]):
            wanted = " or ".join(accepted.typeName() for accepted in COLUMNS[name])
            raise ZError(f"column {name!r} is {kind.simpleString()}: cast it to {wanted}")
        for part in STRUCT_FIELDS.get(name, ()):
            if part not in kind.names:  # type: ignore[attr-defined]  # a struct
                raise ZError(
                    f"column {name!r} is a struct of {', '.join(STRUCT_FIELDS[name])}: no {part}"
                )
    if len(set(names)) < len(names):
        raise ZError(f"columns are there more than once: {', '.join(names)}")
    if "key" not in names and options["key"] is None:
        raise ZError("there is no column 'key': add one, or give the option 'key'")
    if "*" in (options["key"] or ""):
        raise ZError("option 'key': a key to write to has no '*'")


class _RowWriter:
    """Common part of the batch writer and the stream writer."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options)
        options.require("connect", "config")
        self._options = options
        self._write_id = str(uuid.uuid4())
        "Identity of a batch write: equal for every attempt of every task."

    def _epoch(self) -> str:
        """Return the identity of the batch that a task writes; see `source_id`."""
        return self._write_id

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> SentRows:
        """Send every row of one task in order, and wait until the other end has read them."""
        from pyspark import TaskContext

        from zenlake.spark.connection import get_connection
        from zenlake.spark.rows import RowConverter, compile_sender

        context = TaskContext.get()
        assert context is not None
        converter = RowConverter(self._options, source_id(self._epoch()), context.partitionId())
        connection = None
        for batch in iterator:
            if batch.num_rows:
                samples = converter.to_samples(batch)
                compile_sender(samples)
                connection = connection or get_connection(self._options)
                connection.session.put_batch(samples)
                connection.check_links()
        if connection is not None:
            connection.flush(self._options["timeout"])
        return SentRows(converter.count)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options!r})"


class BatchWriter(_RowWriter, DataSourceArrowWriter):
    """Writer of `df.write.format("zenoh")`."""


class StreamWriter(_RowWriter, DataSourceStreamArrowWriter):
    """Writer of `df.writeStream.format("zenoh")`."""

    def _epoch(self) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return f"{query}/{batch}"

    def commit(self, messages: list[Any], batchId: int) -> None:  # Spark's name
        """Do nothing: the tasks have sent the rows."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Do nothing: messages that were sent cannot be taken back."""


def source_id(epoch: str) -> str:
    """Return the Zenoh id in the source info of the rows of one write or one micro-batch.

    `epoch` is the write's uuid, or "<query id>/<batch id>".

    >>> source_id("f81d4fae-7dec-11d0-a765-00a0c91e6bf6/7")
    'e324f7b6ba7cb27b2a9210c740252af8'
    """
    number = int.from_bytes(hashlib.sha256(epoch.encode()).digest()[:16], "little")
    return f"{number or 1:x}"
