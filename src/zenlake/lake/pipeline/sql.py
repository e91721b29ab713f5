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


def start(master: str = "local[*]") -> "SparkSession":
    """A local Spark for queries; about ten seconds. What it says meanwhile is not shown.

    ZError: it does not start, and the last that it said.
    """
    with tempfile.TemporaryFile() as said, _stderr_to(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return zenlake.spark.session("zenlake lake sql", master, **SETTINGS)
        except PySparkException as error:
            raise ZError(f"Spark does not start: {reason_of(error)} {_last(said)}") from None


def _last(said: IO[bytes]) -> str:
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


def ask(
    spark: "SparkSession", project: Project, query: str, *, limit: int | None, form: str = "text"
) -> SqlResult:
    """Answers a query; `form` is text (for people), csv, or json (one object a row).

    ZError: Spark refuses it, and why.
    """
    register(spark, project)
    try:
        found = spark.sql(query)
        found = found if limit is None else found.limit(limit)
        told = _objects(found) if form == "json" else _texts(found, form)
        return SqlResult(found.columns, _rows(told))
    except PySparkException as error:
        raise ZError(reason_of(error)) from None


def _rows(told: "DataFrame") -> Iterator[list[str | None]]:
    try:
        for row in told.toLocalIterator():
            yield list(row)
    except PySparkException as error:
        raise ZError(reason_of(error)) from None


def _objects(found: "DataFrame") -> "DataFrame":
    return found.selectExpr("to_json(struct(*), map('ignoreNullFields', 'false'))")


def _texts(found: "DataFrame", form: str) -> "DataFrame":
    """Every column as text, by its place: two may have the same name."""
    places = [f"c{place}" for place in range(len(found.columns))]
    kinds = [field.dataType for field in found.schema.fields]
    return found.toDF(*places).selectExpr(
        *(_told(place, kind, form) for place, kind in zip(places, kinds, strict=True))
    )


def _told(column: str, kind: DataType, form: str) -> str:
    if isinstance(kind, NESTED):
        return f"to_json({column})"
    if isinstance(kind, BinaryType):
        shown = f"if(is_valid_utf8({column}), string({column}), concat('0x', hex({column})))"
        return f"base64({column})" if form == "csv" else shown
    return f"string({column})"


def reason_of(error: PySparkException) -> str:
    """What Spark says, without the query it repeats and without a trace.

    >>> reason_of(PySparkException("[NO_TABLE] There is\\n  no table. SQLSTATE: 42P01; line 1"))
    '[NO_TABLE] There is no table. SQLSTATE: 42P01; line 1'
    """
    said = str(error).split("\n== SQL", 1)[0].split("\n\nJVM stacktrace", 1)[0]
    said = said.split(";\n'", 1)[0]  # the plan
    text = " ".join(said.split())
    return text if len(text) <= MAX_REASON else text[:MAX_REASON] + " ..."
