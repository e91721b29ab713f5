"""Payloads as values: `messages` has what could be decoded, `messages_failed` the rest, and why.

Which payload is decoded how is in lake.toml, [[decoders]]; common encodings need no rule.
"""

from pyspark.sql import DataFrame, SparkSession

from zenlake import lake

spark = SparkSession.active()


@lake.flow(into=["messages", "messages_failed"])
def messages() -> DataFrame:
    return lake.decoded(lake.stream(spark, duplicates="drop"))
