"""One small local Spark for all tests here, and one router of eclipse-zenoh."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark.spark_peer import SparkPeer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END_SECONDS = 60.0


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    import zenlake.spark

    session = zenlake.spark.session(
        "tests",
        "local[2]",
        **{
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "OFF",
        },
    )
    gateway = session.sparkContext._gateway
    assert gateway is not None
    # What is opened once and stays is opened here: the first Python task connects back.
    session.createDataFrame([(1,)], "one int").count()
    try:
        yield session
    finally:
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # which ends the JVM
        gateway.proc.wait(END_SECONDS)


@pytest.fixture(scope="session")
def peer() -> Iterator[SparkPeer]:
    with SparkPeer() as peer:
        yield peer
