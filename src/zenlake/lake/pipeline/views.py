"""Tables of a lake as Spark DataFrames of their current version.

Knows Delta's list of files and Spark's Parquet reader. Does not write.
"""

import json
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyspark.sql.types import BinaryType, DataType, StructField, StructType, VariantType

from zenlake.errors import ZError
from zenlake.lake.project import Project
from zenlake.lake.tables.definitions import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LITERAL_PATHS = {
    "__globPaths__": "false"
}  # Keeps Spark from reading '[' in the name of a folder as a pattern.


def names(project: Project) -> list[str]:
    """Return the names of existing tables: built-in ones in their order, then the user's."""
    present = {path.parent.name for path in project.tables.glob("*/_delta_log")}
    return [*(name for name in TABLES if name in present), *sorted(present - TABLES.keys())]


def read(spark: "SparkSession", project: Project, name: str) -> "DataFrame":
    """Return a table as it is now; later commits do not change the DataFrame.

    A built-in table without rows is empty. ZError: there is no such table.
    """
    folder = project.table(name)
    if not DeltaTable.is_deltatable(str(folder)):
        if name in TABLES:
            return _empty(spark, _known_columns(name))
        known = ", ".join(names(project)) or "none yet: `zenlake lake run` makes them"
        raise ZError(f"{project.tables} has no table {name!r}; there are {known}")
    table = DeltaTable(folder)
    columns = with_variants(StructType.fromJson(json.loads(table.schema().to_json())))
    paths = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    files = [str(folder / unquote(path)) for path in paths]
    if not files:
        return _empty(spark, columns)
    reader = spark.read.schema(columns).option("basePath", str(folder)).options(**LITERAL_PATHS)
    return reader.parquet(*files)


def register(spark: "SparkSession", project: Project) -> list[str]:
    """Register a temporary view for every table, by its name; return the names.

    Built-in tables that do not exist yet are empty views: a lake that lost nothing has no `loss`.
    """
    known = list(dict.fromkeys([*TABLES, *names(project)]))
    for name in known:
        read(spark, project, name).createOrReplaceTempView(name)
    return known


def with_variants(columns: StructType) -> StructType:
    """Return the columns with VARIANT in place of a struct of its two stored parts.

    >>> parts = [StructField("value", BinaryType()), StructField("metadata", BinaryType())]
    >>> with_variants(StructType([StructField("v", StructType(parts))])).simpleString()
    'struct<v:variant>'
    """
    return StructType(
        [
            StructField(
                field.name, VariantType() if _is_variant(field.dataType) else field.dataType
            )
            for field in columns.fields
        ]
    )


def _is_variant(kind: DataType) -> bool:
    return isinstance(kind, StructType) and {
        (field.name, field.dataType) for field in kind.fields
    } == {("value", BinaryType()), ("metadata", BinaryType())}


def _known_columns(name: str) -> StructType:
    columns = Schema.from_arrow(TABLES[name].schema).to_json()
    return with_variants(StructType.fromJson(json.loads(columns)))


def _empty(spark: "SparkSession", columns: StructType) -> "DataFrame":
    nothing = [
        f"CAST(NULL AS {field.dataType.simpleString()}) AS `{field.name}`"
        for field in columns.fields
    ]
    return spark.range(0).selectExpr(*nothing)
