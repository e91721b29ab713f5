"""Decoding of samples in Spark: executors turn payloads into JSON, Spark parses it to VARIANT.

Knows the columns in and out. Does not know which decoder reads a payload; decoders/ does.
"""

import json
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zenlake.errors import ZError
from zenlake.lake.decoders import Decoders
from zenlake.lake.pipeline import pyspark_internals
from zenlake.lake.project import Project
from zenlake.lake.tables import schema
from zenlake.lake.tables.reduce import compute_day, compute_hlc, conform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    [
        *(field for field in schema.MESSAGES if field.name != "value"),
        pa.field("json", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("reason", pa.string()),
    ]
)
"Columns that executors return; `payload` is null where it is not needed any more."
UNUSED = [field.name for field in schema.SAMPLE if field.name not in INPUT.names]
REFUSED = "not JSON that a VARIANT takes: malformed, a name twice in an object, or nested too deep"


def decode_samples(df: "DataFrame", project: Project) -> "DataFrame":
    """Return samples with the columns of `messages`, and `payload` and `reason` of failures.

    Leaves out rows marked as `duplicate`, deletes, and samples without a decoder. ZError: a rule in
    lake.toml cannot work.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    Decoders(project.decoders, project.home).check()
    rules = json.dumps([dict(rule) for rule in project.decoders], default=str)
    decode = partial(decode_batches, rules=rules, home=str(project.home))
    samples = df.where(F.col("kind") == "put").drop("kind", *UNUSED)
    with warnings.catch_warnings():  # Spark warns of a pandas that is not used here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
        # mapInArrow would ask Spark for the columns, which a pipeline does not allow.
        pyspark_internals.preset_schema(samples, from_arrow_schema(INPUT))
        made = samples.mapInArrow(decode, from_arrow_schema(OUTPUT))
    made = made.withColumn("value", F.try_parse_json("json"))
    refused = F.col("value").isNull() & F.col("reason").isNull()
    text = F.col("json").cast("binary")  # For JSON payloads the text is the payload.
    return made.select(
        *schema.MESSAGES.names,
        F.when(F.col("reason").isNotNull(), F.col("payload"))
        .when(refused, F.coalesce("payload", text))
        .alias("payload"),
        F.when(refused, F.lit(REFUSED)).otherwise(F.col("reason")).alias("reason"),
    )


def decode_batches(
    batches: Iterable[pa.RecordBatch], rules: str = "[]", home: str = "."
) -> Iterator[pa.RecordBatch]:
    """Decode rows with the columns INPUT to rows with OUTPUT; drops rows without a decoder."""
    decoders = _decoders(rules, home)
    for batch in batches:
        for piece in _split_by_bytes(_select_input(batch)):
            made = decode_piece(piece, decoders)
            if made.num_rows:
                yield made


def decode_piece(rows: pa.RecordBatch, decoders: Decoders) -> pa.RecordBatch:
    """Decode one piece of rows with the columns INPUT to rows with OUTPUT."""
    at, texts, names, reasons = decoders.decode(rows)
    decoded = rows if len(at) == rows.num_rows else rows.take(pa.array(at))
    columns = {name: decoded.column(name) for name in decoded.schema.names}
    # Spark may refuse the text of a user-defined decoder, and then needs the payload.
    doubtful = pc.or_(reasons.is_valid(), pc.match_substring(names, ":"))
    columns |= {
        "hlc": compute_hlc(decoded),
        "day": compute_day(decoded),
        "decoder": names,
        "json": texts,
        "payload": pc.if_else(doubtful, columns["payload"], pa.scalar(None, pa.binary())),
        "reason": reasons,
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in OUTPUT.names], schema=OUTPUT)


@lru_cache(maxsize=8)
def _decoders(rules: str, home: str) -> Decoders:
    """Return the decoders of some rules, cached because a Spark worker serves many batches."""
    return Decoders(json.loads(rules), home)


def _select_input(batch: pa.RecordBatch) -> pa.RecordBatch:
    missing = [name for name in INPUT.names if name not in batch.schema.names]
    if missing:
        raise ZError(f"to decode payloads the columns {', '.join(missing)} are needed, too")
    if "duplicate" in batch.schema.names:
        batch = batch.filter(pc.invert(batch.column("duplicate").fill_null(False)))
    table = conform(batch, INPUT).combine_chunks()
    columns = [
        column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT)


def _split_by_bytes(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield pieces of at most MAX_PIECE_BYTES of payloads; a larger payload is alone."""
    lengths = pc.binary_length(rows.column("payload")).fill_null(0).cast(pa.int64())
    ends = np.cumsum(lengths.to_numpy(zero_copy_only=False))
    at, before = 0, 0
    while at < rows.num_rows:
        end = max(at + 1, int(np.searchsorted(ends, before + MAX_PIECE_BYTES, "right")))
        yield rows.slice(at, end - at)
        before = int(ends[end - 1])
        at = end
