"""The tables, as data: columns that Spark and Delta know, names that exist."""

import pyarrow as pa
import pytest
from deltalake import Schema

from zenlake.lake.tables import schema
from zenlake.lake.tables.definitions import TABLES, TableDefinition
from zenlake.spark.schema import LOSS, SAMPLE_COLUMNS, arrow_schema

EACH = pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)


def test_samples_begin_with_what_spark_reads_from_the_log() -> None:
    assert arrow_schema(SAMPLE_COLUMNS).equals(schema.SAMPLE)
    assert schema.SAMPLES.names == [*SAMPLE_COLUMNS.names, "hlc", "day"]
    assert schema.LATEST.names == schema.SAMPLES.names[:-1]


def test_loss_has_the_fields_of_sparks_loss() -> None:
    spark = arrow_schema(LOSS)
    assert [schema.LOSS.field(name) for name in spark.names] == list(spark)


@EACH
def test_delta_keeps_the_types(table: TableDefinition) -> None:
    back = pa.schema(Schema.from_arrow(table.schema).to_arrow())
    assert back.names == table.schema.names
    for mine, theirs in zip(table.schema, back, strict=True):
        if not pa.types.is_nested(mine.type):
            assert mine.type == theirs.type, mine.name


@EACH
def test_what_a_table_names_are_its_columns(table: TableDefinition) -> None:
    names = {*table.order, table.partition_by, table.leaf_column, table.time_column} - {None}
    assert names <= set(table.schema.names)
    assert (table.leaf_column is None) == (table.fold is None)
    assert table.leaf_column is None or table.order[0] == table.leaf_column
