"""Known losses: one row per gap that the recorder saw."""

from pyspark.sql import DataFrame, SparkSession

from zenlake import lake

spark = SparkSession.active()


@lake.flow(into="loss")
def loss() -> DataFrame:
    return lake.stream(spark, includeLoss="only")
