"""Decoded payloads: `messages` has the values, `messages_failed` the failures with their reasons.

[[decoders]] in lake.toml selects the decoder of a payload; common encodings need no rule.
"""

from pyspark.sql import DataFrame, SparkSession

from zenlake import lake

spark = SparkSession.active()


@lake.flow(into=["messages", "messages_failed"])
def messages() -> DataFrame:
    return lake.decoded(lake.stream(spark, duplicates="drop"))
