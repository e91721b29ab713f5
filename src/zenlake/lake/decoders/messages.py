"""Samples to the rows of `messages` and `messages_failed`: payloads decoded, as VARIANT.

Knows the columns in and out. Does not know which decoder reads a payload, or Spark.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.errors import ZError
from zenlake.lake.decoders import Decoders
from zenlake.lake.decoders.jsontext import explain
from zenlake.lake.decoders.values import spread
from zenlake.lake.decoders.variant import to_variants
from zenlake.lake.kernels.variant import TAKEN
from zenlake.lake.tables import schema
from zenlake.lake.tables.reduce import compute_day, compute_hlc

MAX_PIECE_BYTES = (
    16 << 20
)  # Upper bound on payload bytes decoded at once; as JSON they may be much larger.

INPUT = pa.schema(
    [
        field
        for field in schema.SAMPLE
        if field.name in {*schema.MESSAGES.names, "payload", "received_at"}
    ]
)
"Columns of a sample that decoding needs."
OUTPUT = pa.schema(
    [*schema.MESSAGES, pa.field("payload", pa.binary()), pa.field("reason", pa.string())]
)
"Columns of a decoded sample; `payload` and `reason` are null unless decoding failed."
REFUSED = "not JSON that a VARIANT takes: malformed, a name twice in an object, or nested too deep"


class MessageDecoder:
    """Decoder of samples by the rules of a lake."""

    def __init__(self, decoders: Decoders) -> None:
        self._decoders = decoders

    @staticmethod
    @lru_cache(maxsize=8)
    def load(rules: str, home: str) -> "MessageDecoder":
        """Return the decoder of some rules in JSON; cached, as a worker serves many batches."""
        return MessageDecoder(Decoders(decode_rules(rules), home))

    def decode(self, samples: pa.Table) -> pa.Table:
        """Return the rows of samples (puts, with the columns INPUT) that have a decoder."""
        missing = [name for name in INPUT.names if name not in samples.column_names]
        if missing:
            raise ZError(f"to decode payloads the columns {', '.join(missing)} are needed, too")
        pieces = [self._decode_piece(piece) for piece in _split_by_bytes(samples)]
        return pa.concat_tables(pieces) if pieces else OUTPUT.empty_table()

    def _decode_piece(self, samples: pa.Table) -> pa.Table:
        rows = _one_batch(samples)
        at, texts, names, reasons = self._decoders.decode(rows)
        decoded = rows if len(at) == rows.num_rows else rows.take(pa.array(at))
        values, verdicts = to_variants(texts)
        refused = (verdicts != TAKEN) & reasons.is_null().to_numpy(zero_copy_only=False)
        if refused.any():
            why = [explain(text) or REFUSED for text in texts.filter(pa.array(refused)).to_pylist()]
            reasons = pc.coalesce(reasons, spread(pa.array(why, pa.string()), refused))
        columns = {name: decoded.column(name) for name in decoded.schema.names}
        nothing = pa.scalar(None, pa.binary())
        columns |= {
            "decoder": names.dictionary_encode(),
            "value": values,
            "payload": pc.if_else(reasons.is_valid(), columns["payload"], nothing),
            "reason": reasons.dictionary_encode(),
        }
        if "hlc" not in columns:
            columns["hlc"] = compute_hlc(decoded)
        if "day" not in columns:
            columns["day"] = compute_day(decoded)
        return pa.table({name: columns[name] for name in OUTPUT.names})


def encode_rules(rules: Iterable[Mapping[str, Any]]) -> str:
    """Return the rules of a lake as `MessageDecoder.load` takes them."""
    return json.dumps([dict(rule) for rule in rules], default=str)


def decode_rules(text: str) -> list[dict[str, Any]]:
    """Return the rules that `encode_rules` wrote."""
    return [dict(rule) for rule in json.loads(text)]


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    columns = [
        column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.column_names)


def _split_by_bytes(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield pieces of at most MAX_PIECE_BYTES of payloads; a larger payload is alone."""
    lengths = pc.binary_length(rows["payload"]).fill_null(0).cast(pa.int64())
    ends = np.cumsum(lengths.to_numpy())
    at, before = 0, 0
    while at < rows.num_rows:
        end = max(at + 1, int(np.searchsorted(ends, before + MAX_PIECE_BYTES, "right")))
        yield rows.slice(at, end - at)
        before = int(ends[end - 1])
        at = end
