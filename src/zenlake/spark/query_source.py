"""A live system as a table: one query, each reply a row, an error an error.

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

if TYPE_CHECKING:
    import pyarrow as pa

    from zenlake.api import Reply

MAX_ROWS = 50_000  # of one record batch
MAX_BYTES = 8 << 20
MAX_ERROR_BYTES = 4096  # of what a replier says
BEYOND_LIMIT = "replies beyond the limit"  # the session's counter
NEVER = 1e9  # seconds: only a full batch, or the end, is given out


class QueryReader(DataSourceReader):
    """`spark.read.format("zenoh")` with `selector`. Every action asks anew, in one task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require("selector")
        options.require("connect", "config")
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from zenlake.spark import schema as spark_schema

        for batch in _replies(self._options):
            yield from spark_schema.batches(batch, self._schema)

    def __repr__(self) -> str:
        return f"LiveReader({self._options!r})"


def _replies(options: Options) -> "Iterator[pa.RecordBatch]":
    """What is answered, in columnar's schema. ZError: an answer was an error, or was lost."""
    import zenlake.api as zenoh
    from zenlake.spark.connection import connection

    _compile()
    to = connection(options)
    dropped = to.session.stats().dropped.get(BEYOND_LIMIT, 0)
    collected = zenoh.ArrowBatches(max_rows=MAX_ROWS, max_bytes=MAX_BYTES, max_age=NEVER)
    for reply in to.session.get(
        options["selector"],
        timeout=options["timeout"],
        target=zenoh.QueryTarget[options["target"].upper()],
        consolidation=zenoh.ConsolidationMode[options["consolidation"].upper()],
    ):
        if reply.ok is None:
            raise _refused(options, to.where, reply)
        collected.push_one(reply.ok)
        while (batch := collected.try_recv()) is not None:
            yield batch
    to.check()
    dropped = to.session.stats().dropped.get(BEYOND_LIMIT, 0) - dropped
    if dropped:
        many = counted(dropped, "reply")
        raise ZError(f"{options['selector']}: {many} too many: ask for less at once")
    collected.close()
    while (batch := _last(collected)) is not None:
        yield batch


def _compile() -> None:
    """Load what makes columns, before there is a session that would be silent meanwhile."""
    from zenlake.api import ArrowBatches, Sample
    from zenlake.wire.put import Put
    from zenlake.wire.qos import DEFAULT

    one = ArrowBatches(max_age=0.0)
    one.push_one(Sample.of("zenlake", Put(b""), DEFAULT, True, None))
    one.recv()


def _last(collected: Any) -> "pa.RecordBatch | None":
    try:
        return collected.try_recv()
    except ZError:  # closed, and empty
        return None


def _refused(options: Options, where: str, reply: "Reply") -> ZError:
    assert reply.err is not None
    raw = reply.err.payload.to_bytes()[:MAX_ERROR_BYTES]
    asked = f"{options['selector']} at {where}"
    if raw == TIMEOUT:
        return ZError(
            f"{asked}: not all have answered within {options['timeout']:g} s; raise the option "
            "'timeout', or look at which queryable does not end its queries"
        )
    return ZError(
        f"{asked}: {reply.replier_id or 'a queryable'} says {raw.decode(errors='replace')!r}"
    )
