"""Decoding of samples in a DataFrame: executors turn payloads into VARIANT.

Knows Spark's form of the columns. Does not know how a payload is decoded; decoders/ does.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from zenlake.columnar.conform import conform
from zenlake.lake.decoders import Decoders
from zenlake.lake.decoders.messages import INPUT, OUTPUT, MessageDecoder, encode_rules
from zenlake.lake.pipeline import pyspark_internals
from zenlake.lake.project import Project
from zenlake.lake.tables import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

UNUSED = [field.name for field in schema.SAMPLE if field.name not in INPUT.names]


def decode_samples(df: "DataFrame", project: Project) -> "DataFrame":
    """Return samples with the columns of `messages`, and `payload` and `reason` of failures.

    Leaves out rows marked as `duplicate`, deletes, and samples without a decoder. ZError: a rule in
    lake.toml cannot work.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    Decoders(project.decoders, project.home).check()
    decode = partial(decode_batches, rules=encode_rules(project.decoders), home=str(project.home))
    samples = df.where(F.col("kind") == "put").drop("kind", *UNUSED)
    with pyspark_internals.no_pandas_warning():
        # mapInArrow would ask Spark for the columns, which a pipeline does not allow.
        pyspark_internals.preset_schema(samples, from_arrow_schema(INPUT))
        return samples.mapInArrow(decode, _spark_columns())


def decode_batches(
    batches: Iterable[pa.RecordBatch], rules: str = "[]", home: str = "."
) -> Iterator[pa.RecordBatch]:
    """Decode rows in Spark's form; drops repeats, and rows without a decoder."""
    from zenlake.spark.schema import arrow_schema

    decoder = MessageDecoder.load(rules, home)
    columns = arrow_schema(_spark_columns())
    for batch in batches:
        if "duplicate" in batch.schema.names:
            batch = batch.filter(pc.invert(batch.column("duplicate").fill_null(False)))
        decoded = decoder.decode(pa.Table.from_batches([batch]))
        for piece in decoded.to_batches():
            if piece.num_rows:
                yield conform(piece, columns)


def _spark_columns() -> "StructType":
    from pyspark.sql.pandas.types import from_arrow_schema

    from zenlake.lake.pipeline.views import with_variants

    return with_variants(from_arrow_schema(OUTPUT))
