"""Find the cause of a stall in a packet capture: which message delayed a robot's poses?"""

import tempfile
import time
from pathlib import Path

import zenlake
import zenlake.router
from robots import BLOCK, client, local_spark
from tap import Tap

MAP_BYTES = 2_000_000
GAP = """
    SELECT before, packet_time AS after, int(1000 * (double(packet_time) - double(before))) AS ms
    FROM (SELECT packet_time, lag(packet_time) OVER (ORDER BY packet_time) AS before
          FROM messages WHERE key = 'robot/1/pose') ORDER BY ms DESC NULLS LAST LIMIT 1
"""
CAUSE = """
    SELECT key, message, body, lane, congestion_control, fragments, wire_bytes
    FROM messages JOIN gap ON packet_time > before AND packet_time <= after
    WHERE key <> 'robot/1/pose' ORDER BY wire_bytes DESC LIMIT 1
"""


def drive(session: zenlake.Session) -> None:
    """Put poses at 50 Hz, and in the middle a map on the same lane."""
    for step in range(50):
        session.put("robot/1/pose", f'{{"x": {step}}}', congestion_control=BLOCK)
        if step == 25:
            session.put("robot/1/map", bytes(MAP_BYTES), congestion_control=BLOCK)
        time.sleep(0.02)


def remote_client(endpoint: str) -> zenlake.Config:
    """Return the configuration of a client on another machine: all of its bytes take the link."""
    config = client(endpoint)
    config.insert_json5("transport/shared_memory/enabled", "false")
    return config


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "robot.pcap"
        with zenlake.router.run() as router:
            port = int(router.locators[0].rpartition(":")[2])
            with (
                router.session.declare_subscriber("robot/**", lambda _: None),
                Tap(capture, port, bytes_per_second=2e6) as tap,
                zenlake.open(remote_client(tap.endpoint)) as robot,
            ):
                drive(robot)
        with local_spark() as spark:
            messages = spark.read.format("zenoh-capture").option("ports", str(tap.port))
            messages.load(str(capture)).cache().createOrReplaceTempView("messages")
            spark.sql(GAP).createOrReplaceTempView("gap")
            spark.table("gap").show(truncate=False)
            spark.sql(CAUSE).show(truncate=False)


main()
