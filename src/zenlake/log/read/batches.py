"""Record batches of a log: samples and loss records as Arrow columns.

Knows the schema and the order of rows. Does not know blocks or files.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from zenlake.columnar.conform import conform
from zenlake.columnar.read import OFFSET, SampleBatcher
from zenlake.columnar.schema import KINDS, SAMPLE, select_fields
from zenlake.log.format import LOSS_KINDS, UNKNOWN, Entries
from zenlake.log.read.spans import PartitionRange
from zenlake.wire.kernels.row import LANE_RELIABLE

KIND_TEXTS = (*KINDS, "loss")
PARTITION = pa.field("partition", pa.int32(), nullable=False)
LOSS = pa.struct(
    [
        pa.field("kind", pa.string()),  # "lane", "source", "link" or "dropped".
        pa.field("id", pa.string()),  # Id of the node or source, if it is known.
        pa.field("entity", pa.uint32()),
        pa.field("priority", pa.int8()),
        pa.field("reliable", pa.bool_()),
        pa.field("first", pa.uint64()),
        pa.field("last", pa.uint64()),
        pa.field("count", pa.int64()),  # Null if the number is unknown.
    ]
)


def batch_schema(columns: Sequence[str] | None = None, *, losses: bool = False) -> pa.Schema:
    """Return the schema of the batches that Reader.batches yields.

    >>> batch_schema().names[-3:], batch_schema(["key", "loss"], losses=True).names
    (['received_at', 'partition', 'offset'], ['key', 'loss'])
    """
    fields = [*SAMPLE, PARTITION, OFFSET]
    if losses:
        fields = [field.with_nullable(True) for field in fields] + [pa.field("loss", LOSS)]
    return pa.schema(fields if columns is None else select_fields(fields, columns))


class BatchMaker:
    """Maker of record batches from a batcher's samples and from loss records."""

    def __init__(self, batcher: SampleBatcher, schema: pa.Schema, partition: int) -> None:
        self.batcher, self.schema, self.partition = batcher, schema, partition
        self.losses: list[Entries] = []
        "Loss records that no batch has yet."

    def flush(self, offset: int | None) -> Iterator[pa.RecordBatch]:
        """Yield batches of everything before the sample with this offset; None means everything."""
        samples = self.batcher.finish() if len(self.batcher) else None
        losses = self._losses_before(offset)
        if samples is None and losses is not None:
            samples = self.batcher.finish()
        if samples is None:
            return
        columns = {name: samples.column(name) for name in samples.schema.names}
        if losses is not None:
            columns = _insert_losses(samples, losses)
        n = len(columns["offset"])
        if not n:
            return
        columns["partition"] = pa.array(np.full(n, self.partition, np.int32))
        made = conform(pa.record_batch(columns), self.schema)
        for at in range(0, n, self.batcher.max_rows):
            yield made.slice(at, self.batcher.max_rows)

    def _losses_before(self, offset: int | None) -> Entries | None:
        if not self.losses:
            return None
        waiting = np.concatenate(self.losses)
        waiting = waiting[np.argsort(waiting["offset"], kind="stable")]
        cut = len(waiting)
        if offset is not None:
            cut = int(np.searchsorted(waiting["offset"], np.uint64(offset)))
        self.losses = [waiting[cut:]] if cut < len(waiting) else []
        return waiting[:cut] if cut else None


def losses_in(losses: Entries, asked: PartitionRange) -> Entries:
    """Return the loss records that are asked for."""
    end = asked.end + asked.open_end  # Later ones may have been written meanwhile.
    keep = (losses["offset"] >= asked.start) & (losses["offset"] < end)
    times = asked.times(losses["time"])
    return losses[keep if times is None else keep & times]


def _insert_losses(samples: pa.RecordBatch, losses: Entries) -> dict[str, pa.Array]:
    """Return the columns with a row for each loss, before the sample that it precedes."""
    offsets = samples.column("offset").to_numpy()
    lost = losses["offset"].astype(np.int64)
    places = np.searchsorted(offsets, lost)
    numbers = np.insert(np.arange(len(offsets)), places, -1)
    taken = samples.take(pa.array(numbers, mask=numbers < 0))
    columns = {name: taken.column(name) for name in taken.schema.names}
    columns["offset"] = pa.array(np.insert(offsets, places, lost))
    codes = samples.column("kind").indices.to_numpy()
    columns["kind"] = pa.DictionaryArray.from_arrays(
        pa.array(np.insert(codes, places, len(KINDS)).astype(np.int8)), pa.array(KIND_TEXTS)
    )
    received = samples.column("received_at")
    micros = received.view(pa.int64()).to_numpy(zero_copy_only=False)
    times = np.insert(micros, places, losses["time"] // 1000)
    columns["received_at"] = pa.array(times).view(received.type)
    which = np.insert(np.full(len(offsets), -1), places, np.arange(len(lost)))
    columns["loss"] = _loss_column(losses).take(pa.array(which, mask=which < 0))
    return columns


def _loss_column(losses: Entries) -> pa.Array:
    ids = [
        f"{int.from_bytes(bytes(raw)[:length], 'little'):x}" if length else None
        for raw, length in zip(losses["id"], losses["id_len"].tolist(), strict=True)
    ]
    missing = losses["missing"].astype(np.int64)
    columns = {
        "kind": pa.array([LOSS_KINDS.get(kind, "unknown") for kind in losses["kind"].tolist()]),
        "id": pa.array(ids, pa.string()),
        "entity": pa.array(losses["entity"].astype(np.uint32)),
        "priority": pa.array((losses["lane"] & 0x07).astype(np.int8)),
        "reliable": pa.array(losses["lane"] & LANE_RELIABLE > 0),
        "first": pa.array(losses["first"].astype(np.uint64)),
        "last": pa.array(losses["last"].astype(np.uint64)),
        "count": pa.array(missing, mask=missing == UNKNOWN),
    }
    return pa.StructArray.from_arrays([columns[field.name] for field in LOSS], fields=list(LOSS))
