"""Fleet telemetry to tables: recorded, written by Spark exactly once, then queried by SQL."""

import tempfile
from pathlib import Path

import zenlake.router
from robots import drive, local_spark, recording
from zenlake.lake import views
from zenlake.lake.scaffold import create_project

QUERY = """
    SELECT split(key, '/')[1] AS robot, count(*) AS samples,
           min(get_json_object(string(payload), '$.level')) AS lowest_battery
    FROM samples GROUP BY robot ORDER BY robot
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, zenlake.router.run() as router:
        lake = create_project(Path(folder) / "fleet", "fleet")
        with recording(lake.log, router.locators[0]) as robots:
            drive(robots)
        with local_spark() as spark:
            samples = spark.readStream.format("zenoh").option("path", str(lake.log)).load()
            query = (
                samples.writeStream.format("zenoh-lake")
                .option("path", str(lake.tables))
                .option("into", "samples,latest,health")
                .option("checkpointLocation", f"{folder}/state")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            views.register(spark, lake)
            spark.sql(QUERY).show()
            spark.table("latest").selectExpr("key", "string(payload)").orderBy("key").show(
                20, False
            )
            spark.table("health").select("key", "count", "rate", "latency_median").show()


main()
