"""The local Spark of tests/spark, for these tests too: one JVM for a whole run of pytest."""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from spark import conftest as of_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def _delta(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What delta-rs opens once and keeps is opened here."""
    from deltalake import DeltaTable

    DeltaTable.is_deltatable(str(tmp_path_factory.mktemp("delta")))


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """The one that runs, or a new one, which the tests of tests/spark take up and may end."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        yield SparkSession.builder.getOrCreate()
        return
    starting = of_spark.spark.__wrapped__()  # type: ignore[attr-defined]  # the plain generator
    yield next(starting)
    ended = SparkContext._active_spark_context is None
    with suppress(*((Exception,) if ended else ())):  # a second end has nothing to talk to
        next(starting, None)
