"""SQL queries over the tables of a lake in a local Spark, with results as rows of texts.

Knows the text form of values and how to shorten Spark's errors. Does not know terminals.
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

MAX_REASON = 600  # Upper bound on the characters of an error message.
MAX_SAID = 64 << 10  # Bytes read from the end of Spark's standard error.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "4",
}
STDERR = 2  # Descriptor of the standard error.
NESTED = (StructType, ArrayType, MapType, VariantType)


class SqlResult(NamedTuple):
    """Names of the columns, and rows of texts, or rows with one JSON object each."""

    columns: list[str]
    rows: Iterator[list[str | None]]


def start_spark(master: str = "local[*]") -> "SparkSession":
    """Start a local Spark for queries, which takes about ten seconds; hide its output.

    ZError: it does not start; the message has its last line of output.
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
    """Return the last line of output that is not part of a stack trace."""
    said.seek(max(0, said.seek(0, os.SEEK_END) - MAX_SAID))
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("at ")), "")


@contextmanager
def _stderr_to(file: IO[bytes]) -> Iterator[None]:
    """Redirect the standard error of this process and of processes it starts to a file."""
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
    """Run a query; `form` is text (for people), csv, or json (one object per row).

    ZError: Spark refuses the query.
    """
    register(spark, project)
    try:
        found = spark.sql(query)
        found = found if limit is None else found.limit(limit)
        texts = _select_json(found) if form == "json" else _select_texts(found, form)
        return SqlResult(found.columns, _iterate_rows(texts))
    except PySparkException as error:
        raise ZError(describe_spark_error(error)) from None


def _iterate_rows(texts: "DataFrame") -> Iterator[list[str | None]]:
    try:
        for row in texts.toLocalIterator():
            yield list(row)
    except PySparkException as error:
        raise ZError(describe_spark_error(error)) from None


def _select_json(found: "DataFrame") -> "DataFrame":
    return found.selectExpr("to_json(struct(*), map('ignoreNullFields', 'false'))")


def _select_texts(found: "DataFrame", form: str) -> "DataFrame":
    """Select every column as text, by its position because two may have the same name."""
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
    """Return the message of a Spark error without the query, the plan and the stack trace.

    >>> describe_spark_error(PySparkException("[NO_TABLE] There is\\n  no table. SQLSTATE: 42P01"))
    '[NO_TABLE] There is no table. SQLSTATE: 42P01'
    """
    message = str(error).split("\n== SQL", 1)[0].split("\n\nJVM stacktrace", 1)[0]
    message = message.split(";\n'", 1)[0]  # The plan follows.
    text = " ".join(message.split())
    return text if len(text) <= MAX_REASON else text[:MAX_REASON] + " ..."
