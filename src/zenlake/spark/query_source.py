"""A live system as a table: one Zenoh query, one row per reply; an error reply fails the task.

Knows the query's options. The network and Numba load in `read` only, on an executor.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from zenlake.errors import ZError
from zenlake.quantities import counted
from zenlake.routing.queries import TIMEOUT
from zenlake.spark.options import Options
from zenlake.transport.drop_reason import DropReason

if TYPE_CHECKING:
    import pyarrow as pa

    from zenlake.api import Reply

MAX_ROWS = 50_000  # Rows per record batch.
MAX_BYTES = 8 << 20  # Bytes per record batch.
MAX_ERROR_BYTES = 4096  # Bytes of an error reply that are shown.
NEVER = 1e9  # Maximum batch age in seconds: a batch ends when full or when the query ends.


class QueryReader(DataSourceReader):
    """Reader of `spark.read.format("zenoh")` with `selector`: every action queries, in one task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require("selector")
        options.require("connect", "config")
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from zenlake.spark import schema as spark_schema

        for batch in _read_replies(self._options):
            yield from spark_schema.to_spark_batches(batch, self._schema)

    def __repr__(self) -> str:
        return f"QueryReader({self._options!r})"


def _read_replies(options: Options) -> "Iterator[pa.RecordBatch]":
    """Yield the replies in columnar's schema. ZError: a reply was an error or was lost."""
    import zenlake.api as zenoh
    from zenlake.spark.connection import get_connection

    _compile_columns()
    connection = get_connection(options)
    session = connection.session
    dropped = session.stats().dropped.get(DropReason.REPLY_LIMIT, 0)
    collected = zenoh.ArrowBatches(max_rows=MAX_ROWS, max_bytes=MAX_BYTES, max_age=NEVER)
    for reply in session.get(
        options["selector"],
        timeout=options["timeout"],
        target=zenoh.QueryTarget[options["target"].upper()],
        consolidation=zenoh.ConsolidationMode[options["consolidation"].upper()],
    ):
        if reply.ok is None:
            raise _reply_error(options, connection.where, reply)
        collected.push_one(reply.ok)
        while (batch := collected.try_recv()) is not None:
            yield batch
    connection.check_links()
    dropped = session.stats().dropped.get(DropReason.REPLY_LIMIT, 0) - dropped
    if dropped:
        many = counted(dropped, "reply")
        raise ZError(f"{options['selector']}: {many} too many: narrow the selector")
    collected.close()
    while (batch := _next_remaining(collected)) is not None:
        yield batch


def _compile_columns() -> None:
    """Load the kernels that build columns before a session is open, which would be silent then."""
    from zenlake.api import ArrowBatches, Sample
    from zenlake.wire.put import Put
    from zenlake.wire.qos import DEFAULT

    batches = ArrowBatches(max_age=0.0)
    batches.push_one(Sample.of("zenlake", Put(b""), DEFAULT, True, None))
    batches.recv()


def _next_remaining(collected: Any) -> "pa.RecordBatch | None":
    try:
        return collected.try_recv()
    except ZError:  # Closed and empty.
        return None


def _reply_error(options: Options, where: str, reply: "Reply") -> ZError:
    assert reply.err is not None
    raw = reply.err.payload.to_bytes()[:MAX_ERROR_BYTES]
    query = f"{options['selector']} at {where}"
    if raw == TIMEOUT:
        return ZError(
            f"{query}: not all have answered within {options['timeout']:g} s; raise the option "
            "'timeout', or look at which queryable does not end its queries"
        )
    return ZError(
        f"{query}: {reply.replier_id or 'a queryable'} says {raw.decode(errors='replace')!r}"
    )
