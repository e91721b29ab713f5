"""Common code of the lake examples: a small fleet with recorded telemetry, and a local Spark."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import zenlake
from zenlake.log import Recorder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROBOTS = 3
BLOCK = zenlake.CongestionControl.BLOCK
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # Starts faster.
}
"Settings of a small Spark; use your own on a cluster."


def client(endpoint: str) -> zenlake.Config:
    """Return the configuration of a client of `endpoint` that adds timestamps."""
    config = zenlake.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", json.dumps([endpoint]))
    config.insert_json5("timestamping/enabled", "true")
    return config


@contextmanager
def recording(log: Path, endpoint: str, key: str = "robot/**") -> Iterator[zenlake.Session]:
    """Open a session whose puts are recorded, and make them durable at the end."""
    with (
        Recorder(log, key, config=client(endpoint)) as recorder,
        zenlake.open(client(endpoint)) as robots,
        robots.declare_publisher("robot/0/hello") as publisher,
    ):
        while not publisher.matching_status.matching:
            time.sleep(0.01)  # Until the router announces the recorder's subscription.
        yield robots
        for reply in robots.get(
            f"{recorder.admin_key}?durable"
        ):  # This query follows the last put.
            assert reply.ok is not None, reply.err


def drive(robots: zenlake.Session, steps: int = 50) -> None:
    """Put the position and the battery level of every robot, step by step."""
    for step in range(steps):
        for number in range(1, ROBOTS + 1):
            pose = {"x": step / 10, "y": number}
            battery = {"level": round(1 - step * number / 200, 3)}
            for name, value in (("pose", pose), ("battery", battery)):
                robots.put(
                    f"robot/{number}/{name}",
                    json.dumps(value),
                    encoding="application/json",
                    congestion_control=BLOCK,
                )


def local_spark() -> "SparkSession":
    """Start a local Spark with little output; use your own on a cluster."""
    import zenlake.spark

    return zenlake.spark.session("example", "local[2]", **SETTINGS)
