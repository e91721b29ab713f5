"""One router of eclipse-zenoh for all tests with Spark."""

from collections.abc import Iterator

import pytest

from tests.support.spark_peer import SparkPeer


@pytest.fixture(scope="session")
def peer() -> Iterator[SparkPeer]:
    with SparkPeer() as peer:
        yield peer
