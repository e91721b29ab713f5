"""One SQL query over the tables of a lake: in a Spark of its own, as rows of texts.

Knows how values are told in text and how Spark's errors are told shortly. Does not know terminals.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StructType,
    VariantType,
)

import zenlake.spark
from zenlake.errors import ZError
from zenlake.lake.pipeline.views import register
from zenlake.lake.project import Project

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_REASON = 600  # characters of what Spark says
MAX_SAID = 64 << 10  # bytes of its standard error that are looked at
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "4",
}
STDERR = 2  # its descriptor
NESTED = (StructType, ArrayType, MapType, VariantType)


class SqlResult(NamedTuple):
    """The names of the columns, and rows: of texts, or each one JSON object."""

    columns: list[str]
    rows: Iterator[list[str | None]]


def start_spark(master: str = "local[*]") -> "SparkSession":
    """A local Spark for queries; about ten seconds. What it says meanwhile is not shown.

    ZError: it does not start, and the last that it said.
    """
    with tempfile.TemporaryFile() as said, _stderr_to(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return zenlake.spark.session("zenlake lake sql", master, **SETTINGS)
        except PySparkException as error:
            raise ZError(
                f"Spark does not start: {describe_spark_error(error)} {_last_line(said)}"
            ) from None


def _last_line(said: IO[bytes]) -> str:
    """The last line that is not a trace."""
    said.seek(max(0, said.seek(0, os.SEEK_END) - MAX_SAID))
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("at ")), "")


@contextmanager
def _stderr_to(file: IO[bytes]) -> Iterator[None]:
    """Of this process and of those that it starts meanwhile."""
    sys.stderr.flush()
    before = os.dup(STDERR)
    os.dup2(file.fileno(), STDERR)
    try:
        yield
    finally:
        os.dup2(before, STDERR)
        os.close(before)


def run_query(
    spark: "SparkSession", project: Project, query: str, *, limit: int | None, form: str = "text"
) -> SqlResult:
    """Answers a query; `form` is text (for people), csv, or json (one object a row).

    ZError: Spark refuses it, and why.
    """
    register(spark, project)
    try:
        found = spark.sql(query)
        found = found if limit is None else found.limit(limit)
        told = _select_json(found) if form == "json" else _select_texts(found, form)
        return SqlResult(found.columns, _iterate_rows(told))
    except PySparkException as error:
        raise ZError(describe_spark_error(error)) from None


def _iterate_rows(told: "DataFrame") -> Iterator[list[str | None]]:
    try:
        for row in told.toLocalIterator():
            yield list(row)
    except PySparkException as error:
        raise ZError(describe_spark_error(error)) from None


def _select_json(found: "DataFrame") -> "DataFrame":
    return found.selectExpr("to_json(struct(*), map('ignoreNullFields', 'false'))")


def _select_texts(found: "DataFrame", form: str) -> "DataFrame":
    """Every column as text, by its place: two may have the same name."""
    places = [f"c{place}" for place in range(len(found.columns))]
    kinds = [field.dataType for field in found.schema.fields]
    return found.toDF(*places).selectExpr(
        *(_text_expression(place, kind, form) for place, kind in zip(places, kinds, strict=True))
    )


def _text_expression(column: str, kind: DataType, form: str) -> str:
    if isinstance(kind, NESTED):
        return f"to_json({column})"
    if isinstance(kind, BinaryType):
        shown = f"if(is_valid_utf8({column}), string({column}), concat('0x', hex({column})))"
        return f"base64({column})" if form == "csv" else shown
    return f"string({column})"


def describe_spark_error(error: PySparkException) -> str:
    """What Spark says, without the query it repeats and without a trace.

    >>> describe_spark_error(PySparkException("[NO_TABLE] There is\\n  no table. SQLSTATE: 42P01; line 1"))
    '[NO_TABLE] There is no table. SQLSTATE: 42P01; line 1'
    """
    said = str(error).split("\n== SQL", 1)[0].split("\n\nJVM stacktrace", 1)[0]
    said = said.split(";\n'", 1)[0]  # the plan
    text = " ".join(said.split())
    return text if len(text) <= MAX_REASON else text[:MAX_REASON] + " ..."
