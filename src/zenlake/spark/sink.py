"""The sink: rows become PUT and DEL, on a session of each executor.

Knows the columns of a sample and what a row is known by. Numba, NumPy and the network load in
`write` only, on executors. docs/spark.md says what is promised.
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

MAX_ROWS = 1 << 32  # of one task: a sequence number of the protocol has 32 bits

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
"What a row may say, and as what."
PARTS = {"timestamp": ("ntp64", "id"), "source": ("id", "entity", "sn")}
OF_READING = ("received_at", "partition", "offset")  # of rows that were read: not sent
DEFAULTS = {
    "key": "key",
    "encoding": "encoding",
    "priority": "priority",
    "congestion_control": "congestionControl",
    "express": "express",
    "reliable": "reliable",
}
"Columns, and the options that stand in for them."


@dataclass
class SentRows(WriterCommitMessage):
    """What one task has sent."""

    rows: int


def check(schema: StructType, options: Options) -> None:
    """ZError: rows of this schema cannot be sent, and what to do about it."""
    names = [name for name in schema.names if name not in OF_READING]
    for name in names:
        if name not in COLUMNS:
            raise ZError(
                f"column {name!r} is none of a sample: drop or rename it. "
                f"There are {', '.join(COLUMNS)}"
            )
        kind = schema[name].dataType
        if not isinstance(kind, COLUMNS[name]):
            wanted = " or ".join(one.typeName() for one in COLUMNS[name])
            raise ZError(f"column {name!r} is {kind.simpleString()}: cast it to {wanted}")
        for part in PARTS.get(name, ()):
            if part not in kind.names:  # type: ignore[attr-defined]  # it is a struct
                raise ZError(f"column {name!r} is a struct of {', '.join(PARTS[name])}: no {part}")
    if len(set(names)) < len(names):
        raise ZError(f"columns are there more than once: {', '.join(names)}")
    if "key" not in names and options["key"] is None:
        raise ZError("there is no column 'key': add one, or give the option 'key'")
    if "*" in (options["key"] or ""):
        raise ZError("option 'key': a key to write to has no '*'")


class _Sending:
    """What both writers are."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check(schema, options)
        options.require("connect", "config")
        self._options = options
        self._write_id = str(uuid.uuid4())
        "Of a batch write, the same for every attempt of every task."

    def _epoch(self) -> str:
        return self._write_id

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> SentRows:
        """Every row of one task, in order; returns when the other end has read them."""
        from pyspark import TaskContext

        from zenlake.spark.connection import connection
        from zenlake.spark.rows import Rows, compiled

        context = TaskContext.get()
        assert context is not None
        rows = Rows(self._options, source_id(self._epoch()), context.partitionId())
        to = None
        for batch in iterator:
            if batch.num_rows:
                samples = compiled(rows.samples(batch))
                to = to or connection(self._options)
                to.session.put_batch(samples)
                to.check()
        if to is not None:
            to.settle(self._options["timeout"])
        return SentRows(rows.count)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options!r})"


class BatchWriter(_Sending, DataSourceArrowWriter):
    """`df.write.format("zenoh")`."""


class StreamWriter(_Sending, DataSourceStreamArrowWriter):
    """`df.writeStream.format("zenoh")`."""

    def _epoch(self) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return f"{query}/{batch}"

    def commit(self, messages: list[Any], batchId: int) -> None:  # Spark's name
        """Nothing is left to do: rows were sent by the tasks."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Nothing can be taken back."""


def source_id(epoch: str) -> str:
    """The Zenoh id in the source info of the rows of one write, or one micro-batch of a query.

    `epoch` is the write's uuid, or "<query id>/<batch id>".

    >>> source_id("f81d4fae-7dec-11d0-a765-00a0c91e6bf6/7")
    'e324f7b6ba7cb27b2a9210c740252af8'
    """
    number = int.from_bytes(hashlib.sha256(epoch.encode()).digest()[:16], "little")
    return f"{number or 1:x}"
