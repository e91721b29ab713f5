"""Recorded samples in three tables: `samples` has every sample, `latest` the newest of each key,
`health` the rates, sizes, gaps and latencies per minute, key and source.

The three are filled in one pass over the log. Remove a name from the list to leave out its table.
Remove `duplicates="mark"` to store samples that arrived twice twice.

For a table of your own, declare a flow here or in a file beside this one. Its rows are appended,
each exactly once:

    @lake.flow(into="batteries", partition_by="day")
    def batteries() -> DataFrame:
        rows = lake.stream(spark, keyExpr="robot/*/battery", duplicates="drop")
        return rows.where("kind = 'put'").selectExpr(
            "split(key, '/')[1] as robot",
            "from_json(cast(payload as string), 'level double').level as level",
            "received_at",
            "to_date(received_at) as day",
        )
"""

from pyspark.sql import DataFrame, SparkSession

from zenlake import lake

spark = SparkSession.active()


@lake.flow(into=["samples", "latest", "health"])
def samples() -> DataFrame:
    return lake.stream(spark, duplicates="mark")
