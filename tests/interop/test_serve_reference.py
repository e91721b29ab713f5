"""eclipse-zenoh asks for its own past: what it published through a router was recorded, is in part
in tables, and comes back as it was, however it asks.
"""

# mypy: allow-untyped-calls
# zenoh's stubs leave close() and put() without a return type.

import json
import select
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zenoh

import zenlake
from tests.golden.proxy import free_port
from tests.support.delta_runtime import start_delta_runtime
from tests.support.interop_pair import OURS, open_session
from tests.support.known_histories import Event, KnownHistory
from tests.support.processes import call_command, python_environment
from tests.support.reference_router import ReferenceRouter
from tests.support.session_pairs import configured
from tests.support.waiting import until
from zenlake.lake.serve.server import Server
from zenlake.lake.serve.time_range import HIGHEST, LOWEST
from zenlake.log.write.recorder import Recorder
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.interop

ANSWER_SECONDS = 60.0
BLOCK = zenoh.CongestionControl.BLOCK
ROUNDS = 12
FIRST = 1_700_000_000
KEYS = ("past/pose", "past/battery", "past/deep/er/state", "past/gone", "past/plain")
Said = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _delta_runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    start_delta_runtime(tmp_path_factory.mktemp("delta"))


# ---- in the process of eclipse-zenoh


def opened(at: str) -> Any:
    config = zenoh.Config()
    values = {
        "mode": "client",
        "listen/endpoints": [],
        "connect/endpoints": [at],
        "scouting/multicast/enabled": False,
        "transport/shared_memory/enabled": False,
    }
    for key, value in values.items():
        config.insert_json5(key, json.dumps(value))
    return zenoh.open(config)


def said(sample: Any) -> Said:
    put = sample.kind == zenoh.SampleKind.PUT
    return {
        "key": str(sample.key_expr),
        "payload": bytes(sample.payload).hex() if put else None,
        "encoding": str(sample.encoding) if put else None,
        "attachment": None if sample.attachment is None else bytes(sample.attachment).hex(),
        "timestamp": None if sample.timestamp is None else str(sample.timestamp),
        "shown": None
        if sample.timestamp is None
        else sample.timestamp.to_string_rfc3339_lossy().partition("/")[0],
    }


class Puts:
    """Samples that one session puts, and samples that another one hears."""

    def __init__(self, at: str) -> None:
        self.session, self.other = opened(at), opened(at)
        self.heard: list[Said] = []
        self.subscriber = self.other.declare_subscriber(
            "past/**", lambda sample: self.heard.append(said(sample))
        )
        self.count = 0
        probe = self.session.declare_publisher("past/pose")
        until(lambda: bool(probe.matching_status.matching))
        probe.undeclare()

    def put(self, key: str, payload: bytes | None, **more: Any) -> None:
        if payload is None:
            self.session.delete(key, congestion_control=BLOCK, **more)
        else:
            self.session.put(key, payload, congestion_control=BLOCK, **more)
        self.count += 1

    def close(self) -> None:
        until(lambda: len(self.heard) >= self.count)
        self.subscriber.undeclare()
        self.session.close()
        self.other.close()


def publish(at: str) -> list[Said]:
    puts = Puts(at)
    clock = puts.session.new_timestamp
    for number in range(ROUNDS):
        pose = json.dumps({"x": number}).encode()
        puts.put(KEYS[0], pose, encoding=zenoh.Encoding("application/json;fleet.Pose"))
        puts.put(KEYS[1], b"%d" % number, timestamp=clock(), attachment=b"at %d" % number)
        if number % 3 == 2:
            puts.put(KEYS[1], None, timestamp=clock(), attachment=b"why")
        puts.put(KEYS[2], bytes(number), encoding=zenoh.Encoding.APPLICATION_CBOR)
        puts.put(KEYS[4], b"plain")
    puts.put(KEYS[3], b"soon gone", timestamp=clock())
    puts.put(KEYS[3], None, timestamp=clock())
    puts.close()
    return puts.heard


def ask(at: str, selector: str, target: str = "", consolidation: str = "") -> list[Said]:
    session = opened(at)
    options: dict[str, Any] = {}
    if target:
        options["target"] = getattr(zenoh.QueryTarget, target)
    if consolidation:
        options["consolidation"] = getattr(zenoh.ConsolidationMode, consolidation)
    with session.declare_querier("past/pose") as querier:
        until(lambda: bool(querier.matching_status.matching))
    replies = [*session.get(selector, timeout=ANSWER_SECONDS, **options)]
    session.close()
    return [
        {"error": reply.err.payload.to_string()} if reply.ok is None else said(reply.ok)
        for reply in replies
    ]


def ask_everything(at: str) -> list[Said]:
    """Ask for all of a long past, and return with each reply its replier."""
    session = opened(at)
    with session.declare_querier("long/0") as querier:
        until(lambda: bool(querier.matching_status.matching))
    found = []
    for reply in session.get("long/*?_time=[..]", timeout=ANSWER_SECONDS):
        replier = reply.replier_id
        found.append({**said(reply.ok), "replier": [str(replier.zid), replier.eid]})
    session.close()
    return found


TASKS: dict[str, Callable[..., Any]] = {
    "publish": publish,
    "ask": ask,
    "ask_everything": ask_everything,
}


def serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = {"found": TASKS[asked.pop("do")](**asked)}
        except Exception:  # noqa: BLE001 - whatever it is, the test has to hear of it
            found = {"failed": traceback.format_exc()}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


class Reference:
    """That process, seen from the test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            call_command("tests.interop.test_serve_reference", "serve"),
            env=python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, do: str, **arguments: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        stdin.flush()
        assert select.select([stdout], [], [], ANSWER_SECONDS)[0], "eclipse-zenoh is stuck"
        found = json.loads(stdout.readline())
        assert "failed" not in found, found["failed"]
        return found["found"]

    def close(self) -> None:
        self._process.communicate(timeout=ANSWER_SECONDS)


# ---- a lake of what it published


class Lake:
    """The past as eclipse-zenoh heard it, and how to ask for it."""

    def __init__(self, reference: Reference, at: str, heard: list[Said]) -> None:
        self.heard = heard
        self._reference, self._at = reference, at

    def ask(self, selector: str, **options: str) -> list[Said]:
        found: list[Said] = self._reference.ask("ask", at=self._at, selector=selector, **options)
        return found

    def of(self, key: str) -> list[Said]:
        return [sample for sample in self.heard if sample["key"] == key]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    past = KnownHistory(tmp_path_factory.mktemp("lake"))
    at = f"tcp/127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        stack.enter_context(open_session(OURS, "router", listen=at))
        reference = Reference()
        stack.callback(reference.close)
        client = configured(mode="client", connect__endpoints=[at])
        with Recorder(past.project.log, "past/**", config=client) as recorder:
            heard = reference.ask("publish", at=at)
            until(lambda: recorder.stats().received == len(heard))
            recorder.durable(ANSWER_SECONDS)
        past.table({0: 11})
        past.table({0: len(heard) - 5})
        past.compact()
        session = stack.enter_context(open_session(OURS, "client", connect=(at,)))
        stack.enter_context(Server(session, past.project, ("past/**",)))
        made = Lake(reference, at, heard)
        made.ask("past/none")  # so that no single test is to be blamed for the first thread
        yield made


def by_key(replies: list[Said]) -> dict[str, list[Said]]:
    found: dict[str, list[Said]] = {}
    for reply in replies:
        found.setdefault(reply["key"], []).append(reply)
    return found


def test_the_latest_values(lake: Lake) -> None:
    latest = {key: lake.of(key)[-1:] for key in KEYS}
    living = {key: some for key, some in latest.items() if some[0]["payload"] is not None}
    assert living.keys() == set(KEYS) - {"past/gone", "past/battery"}
    assert by_key(lake.ask("past/**")) == living
    assert lake.ask("past/pose") == living["past/pose"]
    assert lake.ask("past/gone") == []


def test_all_of_the_past(lake: Lake) -> None:
    assert by_key(lake.ask("past/**?_time=[..]")) == {key: lake.of(key) for key in KEYS}
    battery = lake.of("past/battery")
    assert any(sample["payload"] is None for sample in battery)
    assert all(sample["attachment"] is not None for sample in battery)
    assert lake.ask("past/battery?_time=[..]") == battery
    middle = battery[5:9]
    first, last = middle[0]["shown"], middle[-1]["shown"]
    assert lake.ask(f"past/battery?_time=[{first}..{last}]") == middle
    assert lake.ask(f"past/battery?_time=]{first}..{last}[") == middle[1:-1]
    assert lake.ask("past/battery?_time=[now(-1h)..];_max=3") == battery[-3:]
    assert lake.ask("past/battery?_time=[..now(-1h)]") == []


def test_the_state_at_a_time(lake: Lake) -> None:
    for sample in (lake.heard[7], lake.heard[-3]):
        until_then = [each for each in lake.heard if each["shown"] <= sample["shown"]]
        state = {key: some[-1:] for key, some in by_key(until_then).items()}
        assert by_key(lake.ask(f"past/**?_time=[..{sample['shown']}];_max=1")) == state


@pytest.mark.parametrize("target", ["ALL", "BEST_MATCHING", "ALL_COMPLETE"])
def test_any_target_reaches_it(lake: Lake, target: str) -> None:
    assert lake.ask("past/pose?_time=[..]", target=target) == lake.of("past/pose")
    assert lake.ask("past/deep/**", target=target) == lake.of("past/deep/er/state")[-1:]


def test_what_it_asks_to_be_left_out_is(lake: Lake) -> None:
    battery = lake.of("past/battery")
    for mode in ("NONE", "MONOTONIC"):
        assert lake.ask("past/battery?_time=[..]", consolidation=mode) == battery
    assert lake.ask("past/battery?_time=[..]", consolidation="LATEST") == battery[-1:]


def test_what_is_wrong_is_told(lake: Lake) -> None:
    (reply,) = lake.ask("past/**?_time=[soon..]")
    assert "is not a range of time" in reply["error"]
    (reply,) = lake.ask("past/**?_max=none")
    assert "write a whole number from 1 on" in reply["error"]


# ---- a long past, over any way


LONG = 3_000


def long_past() -> list[Event]:
    """Events of every form, in many frames, some in fragments."""
    found = []
    for number in range(LONG):
        deleted = number % 7 == 6
        payload = bytes([number % 251]) * (150_000 if number % 500 == 3 else number % 50)
        found.append(
            Event(
                f"long/{number % 3}",
                None if deleted else payload,
                FIRST * 1_000_000 + number,
                (FIRST << 32) + number if number % 5 else None,
                encoding="zenoh/bytes"
                if deleted
                else ("text/plain", "application/json;fleet.Pose", "my/own")[number % 3],
                attachment=b"at %d" % number if number % 4 == 0 else None,
            )
        )
    return found


def told(event: Event, replier: list[Any]) -> Said:
    put = event.payload is not None
    stamp = (
        None
        if event.ntp64 is None
        else zenlake.Timestamp.of(WireTimestamp(event.ntp64, WireZenohId.parse(event.clock)))
    )
    return {
        "key": event.key,
        "payload": None if event.payload is None else event.payload.hex(),
        "encoding": event.encoding if put else None,
        "attachment": None if event.attachment is None else event.attachment.hex(),
        "timestamp": None if stamp is None else str(stamp),
        "shown": None if stamp is None else stamp.to_string_rfc3339_lossy().partition("/")[0],
        "replier": replier,
    }


@contextmanager
def reached(way: str) -> Iterator[tuple[Any, str]]:
    """Yield the session of a server, and where a client of it connects to."""
    at = f"tcp/127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        if way == "direct":
            yield stack.enter_context(open_session(OURS, "peer", listen=at)), at
            return
        if way == "our router":
            stack.enter_context(open_session(OURS, "router", listen=at))
        else:
            at = stack.enter_context(ReferenceRouter()).endpoint
        yield stack.enter_context(open_session(OURS, "client", connect=(at,))), at


@pytest.mark.parametrize("way", ["direct", "our router", "their router"])
def test_a_long_past(way: str, tmp_path: Path) -> None:
    past = KnownHistory(tmp_path)
    past.record(long_past(), block=200)
    past.table({0: LONG // 2})
    with ExitStack() as stack:
        reference = Reference()
        stack.callback(reference.close)
        session, at = stack.enter_context(reached(way))
        stack.enter_context(Server(session, past.project, ("long/**",)))
        found = by_key(reference.ask("ask_everything", at=at))
        eid = found["long/0"][0]["replier"][1]
        replier = [str(session.zid()), eid]
        every = past.between("long/*", LOWEST, HIGHEST)
        assert found == {
            key: [told(event, replier) for event in some] for key, some in every.items()
        }
        with open_session(OURS, "client", connect=(at,)) as ours:
            until(lambda: len([*ours.get("long/0", timeout=ANSWER_SECONDS)]) == 1)
            replies = [*ours.get("long/*?_time=[..]", timeout=ANSWER_SECONDS)]
            assert len(replies) == LONG
            assert {reply.replier_id.eid for reply in replies} == {eid}
