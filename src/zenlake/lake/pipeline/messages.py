"""Samples as messages: payloads decoded on executors, batch by batch, then parsed by Spark.

Knows Spark's side of it: the columns in and out, VARIANT. Which decoder reads what is known to
decoders/.
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
from zenlake.lake.project import Project
from zenlake.lake.tables import schema
from zenlake.lake.tables.reduce import compute_day, compute_hlc, conform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_PIECE_BYTES = 16 << 20  # of payloads decoded at once: as JSON they may grow a lot

INPUT = pa.schema(
    [
        field
        for field in schema.SAMPLE
        if field.name in {*schema.MESSAGES.names, "payload", "received_at"}
    ]
)
"What of a sample is needed."
OUTPUT = pa.schema(
    [
        *(field for field in schema.MESSAGES if field.name != "value"),
        pa.field("json", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("reason", pa.string()),
    ]
)
"What executors make of it; `payload` only where it may be needed."
UNUSED = [field.name for field in schema.SAMPLE if field.name not in INPUT.names]
REFUSED = "not JSON that a VARIANT takes: malformed, a name twice in an object, or nested too deep"


def decode_samples(df: "DataFrame", project: Project) -> "DataFrame":
    """The columns of `messages`, and `payload` and `reason` of what could not be decoded.

    Takes rows of samples; repeats that `duplicate` marks, deletes, and what no decoder is for are
    left out. ZError: a rule in lake.toml cannot work.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    Decoders(project.decoders, project.home).check()
    rules = json.dumps([dict(rule) for rule in project.decoders], default=str)
    decode = partial(decode_batches, rules=rules, home=str(project.home))
    samples = df.where(F.col("kind") == "put").drop("kind", *UNUSED)
    with warnings.catch_warnings():  # of Spark about a pandas that is not used here
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
        if hasattr(samples, "_cached_schema"):
            # Of Connect: it asks for the names of the columns, which a pipeline does not allow.
            vars(samples)["_cached_schema"] = from_arrow_schema(INPUT)
        made = samples.mapInArrow(decode, from_arrow_schema(OUTPUT))
    made = made.withColumn("value", F.try_parse_json("json"))
    refused = F.col("value").isNull() & F.col("reason").isNull()
    text = F.col("json").cast("binary")  # of JSON: the very payload
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
    """Rows with the columns TAKEN, as rows with the columns MADE; those of no decoder are gone."""
    decoders = _decoders(rules, home)
    for batch in batches:
        for piece in _split_by_bytes(_select_input(batch)):
            made = decode_piece(piece, decoders)
            if made.num_rows:
                yield made


def decode_piece(rows: pa.RecordBatch, decoders: Decoders) -> pa.RecordBatch:
    """The columns MADE of rows with the columns TAKEN."""
    at, texts, names, reasons = decoders.decode(rows)
    kept = rows if len(at) == rows.num_rows else rows.take(pa.array(at))
    columns = {name: kept.column(name) for name in kept.schema.names}
    doubtful = pc.or_(reasons.is_valid(), pc.match_substring(names, ":"))  # of users: any text
    columns |= {
        "hlc": compute_hlc(kept),
        "day": compute_day(kept),
        "decoder": names,
        "json": texts,
        "payload": pc.if_else(doubtful, columns["payload"], pa.scalar(None, pa.binary())),
        "reason": reasons,
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in OUTPUT.names], schema=OUTPUT)


@lru_cache(maxsize=8)
def _decoders(rules: str, home: str) -> Decoders:
    """Kept for the batches that follow: a worker of Spark serves many."""
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
    """Of bounded size, in payloads; one that is larger is alone."""
    lengths = pc.binary_length(rows.column("payload")).fill_null(0).cast(pa.int64())
    ends = np.cumsum(lengths.to_numpy(zero_copy_only=False))
    at, before = 0, 0
    while at < rows.num_rows:
        end = max(at + 1, int(np.searchsorted(ends, before + MAX_PIECE_BYTES, "right")))
        yield rows.slice(at, end - at)
        before = int(ends[end - 1])
        at = end
