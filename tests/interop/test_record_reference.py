"""Samples that eclipse-zenoh publishes in another process are in the log as they were put: all of
them, once, in order, with any fields and over any kind of session.
"""

# mypy: allow-untyped-calls
# zenoh's stubs leave close() and put() without a return type.

import hashlib
import json
import os
import select
import subprocess
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zenoh

from tests.support.log_recording import (
    DEADLINE,
    Disk,
    Numbered,
    by_hand,
    disk,
    lost,
    recording,
    rows,
    walked,
)
from tests.support.processes import call_command, python_environment
from tests.support.waiting import until
from zenlake.wire.enums import WirePriority
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.interop

__all__ = ["disk"]
LET_GO_SECONDS = 0.005
DROPPED_SECONDS = 5.0  # A message that has not come by then was dropped.
ANSWER_SECONDS = 60.0
BURST = 3000
SIZES = (0, 1, 100, 1000, 20_000)
FRAGMENTED = (300_000, 5 << 20)
ADMIN = "@/*/*/recorder/**"
BLOCK, DROP = zenoh.CongestionControl.BLOCK, zenoh.CongestionControl.DROP

LINKS: dict[str, dict[str, Any]] = {
    "lanes": {},
    "compressed": {"transport/unicast/compression/enabled": True},
    "no lanes": {"transport/unicast/qos/enabled": False},
    "low latency": {
        "transport/unicast/qos/enabled": False,
        "transport/unicast/lowlatency": True,
    },
}
AGREED = {
    "lanes": (True, False, False),
    "compressed": (True, False, True),
    "no lanes": (False, False, False),
    "low latency": (False, True, False),
}
"Whether there are lanes, low latency, compression."
Entry = dict[str, Any]


# ---- in the process of eclipse-zenoh


def print_of(data: bytes) -> list[Any]:
    return [len(data), hashlib.sha256(data).hexdigest()]


class Publishing:
    """One session, and the account of what it put."""

    def __init__(
        self,
        name: str,
        mode: str,
        at: str,
        settings: dict[str, Any],
        account: list[Entry] | None = None,
    ) -> None:
        config = zenoh.Config()
        values = {
            "mode": mode,
            "listen/endpoints": [],
            "connect/endpoints": [at],
            "scouting/multicast/enabled": False,
            "transport/shared_memory/enabled": False,
            **settings,
        }
        for key, value in values.items():
            config.insert_json5(key, json.dumps(value))
        self.session = zenoh.open(config)
        self.name = name
        self.asks = "transport/unicast/lowlatency" not in settings
        "Not on a link of low latency: get() panics there in 1.10.2."
        self.zid = str(self.session.zid())
        self.ledger: list[Entry] = []
        self.account = [] if account is None else account
        "The ledgers of all sessions that put something at the same recorder, as one."
        self._kept: list[Any] = []
        probe = self.publisher("probe", {})
        until(lambda: bool(probe.matching_status.matching))

    def key(self, key: str) -> str:
        return f"rec/{self.name}/{key}"

    def publisher(self, key: str, qos: dict[str, Any]) -> Any:
        made = self.session.declare_publisher(self.key(key), congestion_control=BLOCK, **qos)
        self._kept.append(made)
        return made

    def note(self, key: str, payload: bytes | None, qos: dict[str, Any], **more: Any) -> None:
        """`more`: as of put()."""
        source, timestamp, encoding = (
            more.get(n) for n in ("source_info", "timestamp", "encoding")
        )
        entry = {
            "key": key,
            "kind": "delete" if payload is None else "put",
            "payload": None if payload is None else print_of(payload),
            "encoding": "zenoh/bytes" if encoding is None else str(encoding),
            "attachment": more["attachment"].hex() if "attachment" in more else None,
            "timestamp": None if timestamp is None else str(timestamp),
            "source": source
            and [str(source.source_id.zid), source.source_id.eid, source.source_sn],
            "priority": _name(qos.get("priority", zenoh.Priority.DATA)),
            "congestion_control": _name(qos.get("congestion_control", BLOCK)).lower(),
            "express": qos.get("express", False),
        }
        self.ledger.append(entry)
        self.account.append(entry)

    def put(self, key: str, payload: bytes, qos: dict[str, Any] | None = None, **more: Any) -> None:
        """By the session: the key in full, or one that it declared."""
        qos = {"congestion_control": BLOCK, **(qos or {})}
        self.session.put(self.key(key), payload, **qos, **more)
        self.note(self.key(key), payload, qos, **more)

    def burst(self) -> None:
        """So many that frames have many; by a publisher, so by the id of its key."""
        one, two = self.publisher("burst", {}), self.publisher("burst/two", {})
        for number in range(BURST):
            payload = b"%d " % number * (number % 9)
            publisher = two if number % 5 == 0 else one
            publisher.put(payload)
            self.note(str(publisher.key_expr), payload, {})

    def singly(self) -> None:
        for number, size in enumerate(SIZES):
            self.put(f"single/{number}", os.urandom(size), {"express": number % 2 == 0})
            if self.asks:
                self.durable()

    def declared(self) -> None:
        key = self.session.declare_keyexpr(self.key("declared"))
        for number in range(10):
            self.session.put(key, b"%d" % number, congestion_control=BLOCK)
            self.note(str(key), b"%d" % number, {})
            longer = key.join(f"and/{number}")
            self.session.put(longer, b"longer", congestion_control=BLOCK)
            self.note(str(longer), b"longer", {})

    def carrying(self) -> None:
        """Everything that a sample can have beside its payload."""
        publisher = self.publisher("carrying", {"priority": zenoh.Priority.DATA_HIGH})
        qos = {"priority": zenoh.Priority.DATA_HIGH}
        names = [name for name in vars(zenoh.Encoding) if name.isupper()]
        assert len(names) > 40
        encodings = [getattr(zenoh.Encoding, name) for name in names]
        encodings += [encoding.with_schema("a schema; of it") for encoding in encodings]
        encodings += [zenoh.Encoding("our/own"), zenoh.Encoding("our/own;with schema")]
        for number, encoding in enumerate(encodings):
            more: dict[str, Any] = {"encoding": encoding}
            if number % 2:
                more["attachment"] = bytes(range(number))
            if number % 3:
                more["timestamp"] = self.session.new_timestamp()
            if number % 5:
                more["source_info"] = zenoh.SourceInfo(publisher.id, number)
            publisher.put(b"carried", **more)
            self.note(str(publisher.key_expr), b"carried", qos, **more)
        publisher.delete()
        self.note(str(publisher.key_expr), None, qos)
        stamp = self.session.new_timestamp()
        publisher.delete(attachment=b"why", timestamp=stamp)
        self.note(str(publisher.key_expr), None, qos, attachment=b"why", timestamp=stamp)
        self.session.delete(self.key("gone"), congestion_control=BLOCK)
        self.note(self.key("gone"), None, {})

    def ways(self) -> None:
        for name in (
            priority.name for priority in WirePriority if priority is not WirePriority.CONTROL
        ):
            for control in (BLOCK, DROP):
                for express in (False, True):
                    qos = {
                        "priority": getattr(zenoh.Priority, name),
                        "congestion_control": control,
                        "express": express,
                    }
                    for number in range(3):
                        if control is DROP:
                            self.put_unless_dropped(f"way/{name}/{number}", name.encode() * 20, qos)
                        else:
                            self.put(f"way/{name}/{number}", name.encode() * 20, qos)

    def fragmented(self) -> None:
        for size in FRAGMENTED:
            self.put("large", os.urandom(size), attachment=b"large")

    def best_effort(self, count: int) -> None:
        publisher = self.publisher("best", {"reliability": zenoh.Reliability.BEST_EFFORT})
        for number in range(count):
            publisher.put(b"%d" % number)
            self.note(str(publisher.key_expr), b"%d" % number, {})

    def put_unless_dropped(self, key: str, payload: bytes, qos: dict[str, Any]) -> None:
        """Put with congestion control DROP, and note it if it came.

        A busy machine drops it when the two batches of its lane are on their way, so everything
        before it has to come first.
        """
        if not self.asks:
            self.put(key, payload, qos)
            time.sleep(LET_GO_SECONDS)
            return
        until(lambda: self.received() == len(self.account))
        self.session.put(self.key(key), payload, **qos)
        end = time.monotonic() + DROPPED_SECONDS
        while self.received() == len(self.account):
            if time.monotonic() > end:
                return
        self.note(self.key(key), payload, qos)

    def received(self) -> int:
        """Return how many samples the recorder has received."""
        return int(self.durable("")["received"])

    def durable(self, parameters: str = "?durable") -> Any:
        """Return the recorder's answer."""
        (reply,) = list(self.session.get(ADMIN + parameters, timeout=ANSWER_SECONDS))
        assert reply.ok is not None, reply.err
        assert str(reply.ok.encoding) == "application/json"
        return json.loads(reply.ok.payload.to_string())


def _name(value: object) -> str:
    return str(value).rpartition(".")[2].upper()


def scenario(at: str, settings: dict[str, Any], large: bool) -> dict[str, Any]:
    """Two sessions, in turn."""
    account: list[Entry] = []
    both = [Publishing(name, name, at, settings, account) for name in ("client", "peer")]
    for step in ("burst", "singly", "declared", "carrying", "ways", "burst"):
        for publishing in both:
            getattr(publishing, step)()
    if large:
        for publishing in both:
            publishing.fragmented()
    said = [publishing.durable() for publishing in both if publishing.asks]
    found = {publishing.zid: publishing.ledger for publishing in both}
    for publishing in both:
        publishing.session.close()
    return {"ledgers": found, "said": said}


def best_effort(at: str, count: int) -> dict[str, Any]:
    publishing = Publishing("client", "client", at, {})
    publishing.best_effort(count)
    publishing.durable()
    publishing.session.close()
    return {"ledger": publishing.ledger}


def ask_for_all(at: str, count: int) -> dict[str, Any]:
    """How things stand, and what is said to who asks for what it put."""
    publishing = Publishing("client", "client", at, {})
    publisher = publishing.publisher("asked", {})
    for _ in range(count):
        publisher.put(b"x" * 100)
    said = {"before": publishing.durable(""), "after": publishing.durable()}
    publishing.session.close()
    return said


TASKS: dict[str, Callable[..., Any]] = {
    "scenario": scenario,
    "best_effort": best_effort,
    "ask_for_all": ask_for_all,
}


def serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = TASKS[asked.pop("do")](**asked)
        except Exception:  # noqa: BLE001 - whatever it is, the test has to hear of it
            found = {"failed": traceback.format_exc()}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


class Reference:
    """That process, seen from the test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            call_command("tests.interop.test_record_reference", "serve"),
            env=python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def tell(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self._process.stdin.flush()

    def answers(self, within: float) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], within)[0])

    def answer(self) -> Any:
        assert self._process.stdout is not None
        assert self.answers(ANSWER_SECONDS), "eclipse-zenoh has not come to its end"
        line = self._process.stdout.readline()
        assert line, "the process of eclipse-zenoh has ended"
        found = json.loads(line)
        assert "failed" not in found, found["failed"]
        return found

    def close(self) -> None:
        self._process.communicate(timeout=ANSWER_SECONDS)


@pytest.fixture(scope="module")
def other() -> Iterator[Reference]:
    made = Reference()
    yield made
    made.close()


# ---- what was recorded


def entry(row: dict[str, Any]) -> Entry:
    """A row as the publisher's account has it."""
    schema, stamp, source = row["schema"], row["timestamp"], row["source"]
    return {
        "key": row["key"],
        "kind": row["kind"],
        "payload": None if row["payload"] is None else print_of(row["payload"]),
        "encoding": row["encoding"] if schema is None else f"{row['encoding']};{schema}",
        "attachment": None if row["attachment"] is None else row["attachment"].hex(),
        "timestamp": stamp and f"{stamp['time']}/{stamp['id']}",
        "source": source and [source["id"], source["entity"], source["sn"]],
        "priority": WirePriority(row["priority"]).name,
        "congestion_control": row["congestion_control"],
        "express": row["express"],
    }


def by_lane(entries: list[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for each in entries:
        found[each["priority"]].append(each)
    return found


def numbered(each: Entry) -> Numbered:
    if each["source"] is None:
        return None
    zid, entity, number = each["source"]
    return (zid.encode(), entity), number


@pytest.mark.parametrize("link", LINKS)
def test_all_that_they_put_is_recorded(tmp_path: Path, other: Reference, link: str) -> None:
    path, settings = tmp_path / "log", LINKS[link]
    keys = ["rec/**", "rec/client/burst", "*/peer/**", "**/carrying"]
    ours = {name.replace("/", "__"): value for name, value in settings.items()}
    with recording(path, keys, settings=ours) as (recorder, port):
        at = f"tcp/127.0.0.1:{port}"
        other.tell("scenario", at=at, settings=settings, large=link in ("lanes", "compressed"))
        sessions = until(lambda: list(recorder.session._core.node.sessions.values()))
        agreed = sessions[0].agreement
        assert (agreed.qos, agreed.low_latency, agreed.compression) == AGREED[link]
        told = other.answer()
        ledgers = told["ledgers"]
        total = sum(map(len, ledgers.values()))
        assert total > 4 * BURST
        controls = Counter(
            entry["congestion_control"] for ledger in ledgers.values() for entry in ledger
        )
        assert controls["drop"] > 10
        # Some lanes are behind the question.
        until(lambda: recorder.stats().received, lambda received: received == total)
        assert recorder.durable(DEADLINE).offset == total
        assert all(said["failure"] is None for said in told["said"])
    found, there = rows(path), walked(path)
    assert [row["key"] for row in found] == [each.key for each in there]
    assert [row["offset"] for row in found] == list(range(total))
    recorded: dict[str, list[Entry]] = defaultdict(list)
    for row, each in zip(found, there, strict=True):
        assert row["reliable"] is each.reliable is True
        recorded[str(WireZenohId(each.link))].append(entry(row))
    assert recorded.keys() == ledgers.keys()
    for zid, ledger in ledgers.items():
        expected, lanes = by_lane(ledger), by_lane(recorded[zid])
        assert lanes.keys() == expected.keys()
        for name, lane in lanes.items():
            assert lane == expected[name], f"{name} of {zid}"
        skipped = by_hand({}, [numbered(each) for each in ledger])
        assert len(skipped) > 10
        gaps = [each for each in lost(path) if str(WireZenohId(each.id)) == zid]
        assert {each.kind for each in gaps} == {"source"}
        assert [(each.entity, each.first, each.missing) for each in gaps] == [
            (gap.entity, gap.first, gap.missing) for gap in skipped
        ]
    together = max(each.together for each in there)
    assert together > 10 or link == "low latency", "hardly a frame had many"
    assert {each.push.key.scope > 0 for each in there} == {True, False}


def test_best_effort_is_recorded_as_that(tmp_path: Path, other: Reference) -> None:
    """Messages that they drop have no number; all others are in the log, in order."""
    path = tmp_path / "log"
    with recording(path) as (recorder, port):
        other.tell("best_effort", at=f"tcp/127.0.0.1:{port}", count=200)
        ledger = other.answer()["ledger"]
        until(lambda: recorder.stats().received)
    found = rows(path)
    assert 0 < len(found) <= len(ledger)
    assert not any(row["reliable"] for row in found)
    left = iter(ledger)
    assert all(entry(row) in left for row in found), "not in order"
    assert {each.kind for each in lost(path)} <= {"lane"}


def test_they_are_told_when_it_is_durable(tmp_path: Path, other: Reference, disk: Disk) -> None:
    with recording(tmp_path / "log") as (recorder, port):
        disk.moving.clear()
        other.tell("ask_for_all", at=f"tcp/127.0.0.1:{port}", count=500)
        until(lambda: recorder.stats().received == 500)
        assert disk.waits.wait(DEADLINE)
        assert not other.answers(0.3), "nothing is durable yet"
        disk.moving.set()
        told = other.answer()
        assert told["before"]["durable"] == 0
        assert told["after"]["durable"] == told["after"]["received"] == 500
        assert told["after"]["samples"] == 500
    assert len(rows(tmp_path / "log")) == 500
