"""The built-in tables of this lake. Remove a line to leave out its table.

All of them are filled in one pass over the log. Any of them can be filled by a flow of your own
instead: remove its line, and declare a flow into the table of that name.

A flow is Spark code. Declare it here or in a file beside this one; its rows are appended to a
table, each exactly once:

    from pyspark.sql import DataFrame, SparkSession

    spark = SparkSession.active()

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

from zenlake import lake

lake.table("samples")  # every sample once
lake.table("latest")  # the newest sample of each key
lake.table("health")  # rates, sizes, gaps and latencies per minute, key and source
lake.table("loss")  # samples that were not received
lake.table("messages")  # decoded payloads; [[decoders]] in lake.toml selects the decoder
lake.table("messages_failed")  # payloads that did not decode, with the reason
