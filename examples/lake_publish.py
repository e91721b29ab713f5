"""Results of Spark go back to the robots: a robot with a low battery is told to charge."""

import tempfile
from pathlib import Path

import zenlake
import zenlake.router
from common import say
from robots import client, drive, local_spark, recording

ADVICE = """
    SELECT concat('fleet/', split(key, '/')[1], '/advice') AS key,
           concat('{"charge": true, "level": ', lowest, '}') AS payload,
           'application/json' AS encoding
    FROM (SELECT key, min(double(get_json_object(string(payload), '$.level'))) AS lowest
          FROM samples GROUP BY key)
    WHERE lowest < 0.6
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, zenlake.router.run() as router:
        endpoint, log = router.locators[0], Path(folder) / "log"
        with recording(log, endpoint) as robots:
            drive(robots)
        with (
            local_spark() as spark,
            zenlake.open(client(endpoint)) as robot,
            robot.declare_subscriber("fleet/*/advice") as advice,
        ):
            recorded = spark.read.format("zenoh").option("path", str(log))
            batteries = recorded.option("keyExpr", "robot/*/battery").load()
            batteries.createOrReplaceTempView("samples")
            found = spark.sql(ADVICE)
            found.write.format("zenoh").option("connect", endpoint).mode("append").save()
            for _ in range(found.count()):
                sample = advice.recv()
                say(sample.key_expr, "is", sample.payload.to_string())


main()
