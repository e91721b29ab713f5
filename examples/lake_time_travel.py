"""Time travel over Zenoh: the present state, a past state, and the history in between."""

import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import zenlake
import zenlake.router
from common import say
from robots import BLOCK, client, recording
from zenlake.lake.scaffold import create_project
from zenlake.lake.serve.server import Server


def now() -> str:
    time.sleep(0.01)  # Longer than the resolution of any clock: later samples get later times.
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def query(session: zenlake.Session, selector: str) -> None:
    say(f"? {selector}")
    for reply in session.get(selector):
        sample = reply.result
        assert isinstance(sample, zenlake.Sample), sample.payload.to_string()
        deleted = sample.kind == zenlake.SampleKind.DELETE
        say(f"  {sample.key_expr} =", "gone" if deleted else sample.payload.to_string())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, zenlake.router.run() as router:
        lake = create_project(Path(folder) / "fleet", "fleet")
        with recording(lake.log, router.locators[0]) as robots:
            for x in range(3):
                robots.put("robot/1/pose", json.dumps({"x": x}), congestion_control=BLOCK)
            robots.put("robot/1/task", "fetch shelf 7", congestion_control=BLOCK)
            before = now()
            robots.delete("robot/1/task", congestion_control=BLOCK)
            robots.put("robot/1/pose", json.dumps({"x": 99}), congestion_control=BLOCK)
        with (
            zenlake.open(client(router.locators[0])) as client_session,
            Server(router.session, lake, ["robot/**"]),
        ):
            # `zenlake serve` gives these answers to any Zenoh client.
            query(client_session, "robot/1/*")
            query(client_session, f"robot/1/*?_time=[..{before}];_max=1")
            query(client_session, "robot/1/pose?_time=[now(-1m)..]")


main()
