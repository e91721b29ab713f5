"""Everything that was recorded, once: `samples` has every sample, `latest` the newest of each key,
`health` the rates, sizes, gaps and latencies of each minute, key and source.

The three are made in one pass over the log. Take a name out of the list, and that table is not
made; take `duplicates="mark"` out, and a sample that came twice is there twice.

A table of your own is a flow with any name into any name, here or in a file beside this one. Its
rows are appended, each exactly once:

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
