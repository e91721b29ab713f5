"""`python -m demo.fleet`: robots that publish, query a planner and finish tasks.

Each robot has its own session. Writes a ledger of everything sent. Does not know the recorder.
"""

import argparse
import heapq
import json
import math
import random
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import zenlake as zenoh
from demo.lossy import LossyLink
from zenlake.cli.signals import stop_on_signals

POSE_HZ, CAMERA_HZ, BATTERY_HZ, DIAGNOSTICS_HZ = 20.0, 2.0, 1.0, 0.5
FRAME_BYTES = 100 << 10
TASK_SECONDS = 4.0  # Duration of a task.
ASK_SECONDS = 3.0  # Time between two queries to the planner.
LOST_SHARE = 0.2  # Share of datagrams lost by the robot with the bad link, half of the time.
REPEAT_EVERY = 10  # Poses between two repeats of the robot that repeats samples.
LATE = timedelta(seconds=1.5)  # Lag of the late clock.
SILENT_FROM = 0.4  # Share of the drive after which a robot is silent.
BEHIND_SECONDS = 1.0  # Delay beyond which a robot skips instead of catching up.
LISTENER_SECONDS = 60.0  # Longest wait for a subscriber.
ANSWER_SECONDS = 20.0  # Longest wait for the last answers of the planner.

LOSSY, SILENT, REPEATING, LATE_CLOCK = 2, 3, 4, 5  # Numbers of the robots with a fault.
LEAST = LATE_CLOCK
JSON, TEXT, JPEG = "application/json", "text/plain", "image/jpeg"


class NumberedPublisher:
    """Publisher of a robot with numbered samples, and the record of what it has sent."""

    def __init__(self, robot: "Robot", name: str, encoding: str) -> None:
        self.key = f"robot/{robot.number}/{name}"
        self._robot = robot
        self._publisher = zenoh.ext.declare_advanced_publisher(
            robot.session,
            self.key,
            encoding=encoding,
            reliability=robot.reliability,
            congestion_control=zenoh.CongestionControl.BLOCK,
            sample_miss_detection=zenoh.ext.MissDetectionConfig(),
        )
        self._again: zenoh.Publisher | None = None
        self.sent: list[tuple[int, int]] = []
        "CRC-32 of the payload and time in nanoseconds of each sample, by its number."
        self.repeated = 0
        self.broken = 0
        self.last = b""
        self._stamp = robot.stamp()

    def put(self, payload: bytes) -> None:
        self._stamp = self._robot.stamp()
        self._publisher.put(payload, timestamp=self._stamp)
        self.sent.append((zlib.crc32(payload), nanos(self._stamp)))
        self.last = payload

    def repeat(self) -> None:
        """Send the last sample again, as after a missed acknowledgement."""
        if self._again is None:
            self._again = self._robot.session.declare_publisher(
                self.key,
                encoding=self._publisher.encoding,
                congestion_control=zenoh.CongestionControl.BLOCK,
            )
        number = zenoh.SourceInfo(self._publisher.id, len(self.sent) - 1)
        self._again.put(self.last, timestamp=self._stamp, source_info=number)
        self.repeated += 1

    def account(self) -> dict[str, Any]:
        source = self._publisher.id
        return {
            "source": str(source.zid),
            "entity": source.eid,
            "encoding": str(self._publisher.encoding),
            "sent": self.sent,
            "repeated": self.repeated,
            "broken": self.broken,
            "last": self.last.decode() if len(self.last) < FRAME_BYTES else None,
        }


class Robot:
    """Robot that drives in circles."""

    def __init__(self, number: int, session: zenoh.Session) -> None:
        self.number = number
        self.session = session
        lossy = number == LOSSY
        self.reliability = zenoh.Reliability.BEST_EFFORT if lossy else zenoh.Reliability.RELIABLE
        self._random = random.Random(number)
        self.pose = NumberedPublisher(self, "pose", JSON)
        self.battery = NumberedPublisher(self, "battery", JSON)
        self.publishers = [self.pose, self.battery]
        if not lossy:  # The bad link carries no large samples.
            self.camera = NumberedPublisher(self, "camera", JPEG)
            self.diagnostics = NumberedPublisher(self, "diagnostics", TEXT)
            self.publishers += [self.camera, self.diagnostics]
        self.tasks: list[dict[str, Any]] = []
        self.asked = 0
        self.answered = 0

    def stamp(self) -> zenoh.Timestamp:
        now = self.session.new_timestamp()
        if self.number != LATE_CLOCK:
            return now
        return zenoh.Timestamp(now.get_time() - LATE, now.get_id())

    def drive(self) -> None:
        angle = len(self.pose.sent) / POSE_HZ / 5
        x, y = (self.number * 4 + math.cos(angle), math.sin(angle))
        self.pose.put(_json(x=round(x, 4), y=round(y, 4), heading=round(angle % math.tau, 4)))
        if self.number == REPEATING and len(self.pose.sent) % REPEAT_EVERY == 0:
            self.pose.repeat()

    def measure(self) -> None:
        level = 1 - len(self.battery.sent) / 600
        self.battery.put(_json(level=round(level, 4), volts=round(22 + 3 * level, 3)))

    def send_broken_battery(self) -> None:
        """Send a payload that is not valid JSON."""
        self.battery.put(b'{"level": 0.9, "volts": ')
        self.battery.broken += 1

    def look(self) -> None:
        self.camera.put(b"\xff\xd8\xff" + self._random.randbytes(FRAME_BYTES - 3))

    def diagnose(self) -> None:
        self.diagnostics.put(f"all well after {len(self.pose.sent)} poses".encode())

    def work(self) -> None:
        """Finish a task, and begin the next."""
        if self.tasks:
            self.finish()
        key = f"robot/{self.number}/task/{len(self.tasks) + 1}"
        payload, stamp = _json(goto=f"shelf {self._random.randrange(100)}"), self.stamp()
        self.session.put(
            key,
            payload,
            encoding=JSON,
            timestamp=stamp,
            congestion_control=zenoh.CongestionControl.BLOCK,
        )
        began = {"key": key, "payload": payload.decode(), "began": nanos(stamp)}
        self.tasks.append({**began, "finished": None})

    def finish(self) -> None:
        stamp = self.stamp()
        self.session.delete(
            self.tasks[-1]["key"],
            timestamp=stamp,
            congestion_control=zenoh.CongestionControl.BLOCK,
        )
        self.tasks[-1]["finished"] = nanos(stamp)

    def ask(self) -> None:
        self.asked += 1
        self.session.get(f"planner/route?robot={self.number}", self._answered, timeout=15.0)

    def _answered(self, reply: zenoh.Reply) -> None:
        self.answered += reply.ok is not None

    def habits(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield the period in seconds of each action, and the action."""
        yield 1 / POSE_HZ, self.drive
        yield 1 / BATTERY_HZ, self.measure
        if self.number != LOSSY:
            yield 1 / CAMERA_HZ, self.look
            yield 1 / DIAGNOSTICS_HZ, self.diagnose
            yield TASK_SECONDS, self.work
            yield ASK_SECONDS, self.ask


class Drive:
    """Scheduler that runs the actions of all robots in one thread."""

    def __init__(self, robots: list[Robot], seconds: float, lossy_link: LossyLink) -> None:
        self._robots = robots
        self._seconds = seconds
        self._lossy_link = lossy_link
        self._order = count()
        self._due: list[tuple[float, int, float, Robot, Callable[[], None]]] = []
        self.stopped = threading.Event()

    def run(self, tell: Callable[[int], None]) -> None:
        began = time.monotonic()
        end = began + self._seconds
        for robot in self._robots:
            for period, habit in robot.habits():
                self._at(began + robot.number * 0.007, period, robot, habit)
        self._at(
            began + self._seconds / 2,
            math.inf,
            self._robots[0],
            self._robots[0].send_broken_battery,
        )
        told = began
        while self._due and not self.stopped.is_set():
            due, _, period, robot, habit = heapq.heappop(self._due)
            if due >= end:
                break
            self.stopped.wait(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            part = (now - began) / self._seconds
            self._lossy_link.losing = 0.25 < part < 0.75
            if robot.number == SILENT and part >= SILENT_FROM:
                continue  # Not scheduled again.
            habit()
            if period < math.inf:
                late = now - due > BEHIND_SECONDS
                self._at(now if late else due + period, period, robot, habit)
            if now - told >= 1.0:
                told = now
                tell(
                    sum(
                        len(publisher.sent)
                        for robot in self._robots
                        for publisher in robot.publishers
                    )
                )

    def _at(self, when: float, period: float, robot: Robot, habit: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), period, robot, habit))


def _json(**values: Any) -> bytes:
    return json.dumps(values).encode()


def nanos(stamp: zenoh.Timestamp) -> int:
    return stamp.get_time_as_ntp64().as_nanos()


def open_session(endpoint: str) -> zenoh.Session:
    config = zenoh.Config()
    for key, value in (
        ("mode", "client"),
        ("connect/endpoints", [endpoint]),
        ("scouting/multicast/enabled", False),
    ):
        config.insert_json5(key, json.dumps(value))
    return zenoh.open(config)


def wait_for(what: str, seconds: float, true: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.02)


def has_listener(session: zenoh.Session) -> bool:
    """Tell whether a subscriber for robots exists."""
    with session.declare_publisher("robot/0/hello") as publisher:
        end = time.monotonic() + 1.0
        while not (matching := publisher.matching_status.matching) and time.monotonic() < end:
            time.sleep(0.02)
        return matching


def answer(query: zenoh.Query) -> None:
    """Answer a query to the planner."""
    with query:
        route = [[0, 0], [3, 1], [4, 4]]
        query.reply("planner/route", json.dumps({"route": route}), encoding=JSON)


def emit(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connect", required=True, help="TCP endpoint of the router")
    parser.add_argument("--udp-port", type=int, required=True, help="UDP port of the router")
    parser.add_argument("--robots", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--ledger", type=Path, required=True, help="file written at the end")
    args = parser.parse_args()
    with ExitStack() as stack:
        lossy_link = stack.enter_context(LossyLink(args.udp_port, LOST_SHARE, seed=7))
        planner = stack.enter_context(open_session(args.connect))
        stack.enter_context(planner.declare_queryable("planner/route", answer))
        robots = []
        for number in range(1, args.robots + 1):
            there = lossy_link.endpoint if number == LOSSY else args.connect
            robots.append(Robot(number, stack.enter_context(open_session(there))))
        drive = Drive(robots, args.seconds, lossy_link)
        stack.enter_context(stop_on_signals(lambda _: drive.stopped.set()))
        for robot in robots:
            wait_for("a listener", LISTENER_SECONDS, partial(has_listener, robot.session))
        emit(event="driving")
        drive.run(lambda sent: emit(event="sent", samples=sent))
        if drive.stopped.is_set():
            return 130
        wait_for(
            "the planner's answers",
            ANSWER_SECONDS,
            lambda: all(robot.asked == robot.answered for robot in robots),
        )
        ledger = {
            "publishers": {
                publisher.key: publisher.account()
                for robot in robots
                for publisher in robot.publishers
            },
            "tasks": [task for robot in robots for task in robot.tasks],
            "asked": sum(robot.asked for robot in robots),
            "answered": sum(robot.answered for robot in robots),
            "datagrams_lost": lossy_link.lost,
            "lossy": LOSSY,
            "silent": SILENT,
            "repeating": REPEATING,
            "late": [LATE_CLOCK, LATE.total_seconds()],
        }
        args.ledger.write_text(json.dumps(ledger))
    emit(event="parked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
