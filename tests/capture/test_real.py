"""Captures that tcpdump takes of eclipse-zenoh talking to eclipse-zenoh, and what that had sent."""

import json
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.golden.proxy import free_port
from tests.support import reference_talk
from tests.support.processes import module_command, python_environment
from zenlake.capture import read, streams

pytestmark = pytest.mark.interop

TCPDUMP = shutil.which("tcpdump")
PATIENCE = 30.0
TALK_SECONDS = 120.0
ATTEMPTS = 3
BUFFER_KB = "32768"
LOW_LATENCY = {"transport/unicast/lowlatency": True, "transport/unicast/qos/enabled": False}
COMPRESSION = {"transport/unicast/compression/enabled": True}
SCENARIOS = {
    "lanes": ("tcp", {}, {}),
    "lowlatency": ("tcp", LOW_LATENCY, {"big": 40_000}),
    "compression": ("tcp", COMPRESSION, {}),
    "udp": ("udp", {}, {}),
}


class Taken:
    """A capture and what was said during it."""

    def __init__(self, path: Path, said: list[dict[str, Any]], ports: dict[str, int]) -> None:
        self.path = path
        self.said = {talk["name"]: talk for talk in said}
        self.ports = ports
        self.reading = read(path)
        self.rows = [row for batch in self.reading for row in batch.to_pylist()]

    def of(self, name: str) -> list[dict[str, Any]]:
        port = self.ports[name]
        return [row for row in self.rows if port in (row["src_port"], row["dst_port"])]


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Taken:
    if TCPDUMP is None:
        pytest.skip("needs tcpdump: apt-get install tcpdump")
    folder = tmp_path_factory.mktemp("real")
    for attempt in range(ATTEMPTS):
        path = folder / f"{attempt}.pcap"
        ports = {name: free_port(_kind(settings[0])) for name, settings in SCENARIOS.items()}
        said, dropped = _take(TCPDUMP, path, ports)
        if not dropped:
            return Taken(path, said, ports)
    pytest.skip(f"this machine is too busy: tcpdump lost packets {ATTEMPTS} times")


def _take(tcpdump: str, path: Path, ports: dict[str, int]) -> tuple[list[dict[str, Any]], bool]:
    """A capture of all scenarios: what was said, and whether tcpdump lost some of it."""
    group_port = free_port(socket.SOCK_DGRAM)
    scenarios: list[dict[str, Any]] = [
        {"name": name, "at": f"{link}/127.0.0.1:{ports[name]}", "settings": settings, **more}
        for name, (link, settings, more) in SCENARIOS.items()
    ]
    scenarios.append({"group": f"224.0.1.199:{group_port}"})
    wanted = " or ".join([*(f"port {port}" for port in ports.values()), "udp"])
    with path.open("wb") as file:
        dump = subprocess.Popen(
            [tcpdump, "-i", "lo", "-n", "-B", BUFFER_KB, "-U", "-w", "-", wanted],
            stdout=file,
            stderr=subprocess.PIPE,
        )
    try:
        assert dump.stderr is not None
        heard = b""
        while b"listening on" not in heard:
            line = dump.stderr.readline()
            if not line:
                pytest.skip(f"tcpdump may not listen here: {heard.decode().strip()}")
            heard += line
        talk = module_command("tests.support.reference_talk", json.dumps(scenarios))
        told = subprocess.run(
            talk,
            env=python_environment(),
            check=True,
            stdout=subprocess.PIPE,
            timeout=TALK_SECONDS,
        )
        _wait_for_the_end(path, group_port)
    finally:
        dump.terminate()
        _, summary = dump.communicate()
    return json.loads(told.stdout), b"\n0 packets dropped by kernel" not in summary


def _wait_for_the_end(path: Path, port: int) -> None:
    """A datagram of our own is the last packet."""
    mark = secrets.token_bytes(32)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(mark, ("127.0.0.1", port))
    end = time.monotonic() + PATIENCE
    while mark not in path.read_bytes():
        assert time.monotonic() < end, "tcpdump does not write"
        time.sleep(0.05)


def _kind(link: str) -> socket.SocketKind:
    return socket.SOCK_STREAM if link == "tcp" else socket.SOCK_DGRAM


def test_nothing_of_these_captures_is_unreadable(taken: Taken) -> None:
    assert not taken.reading.report.unread


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_put_is_a_row(taken: Taken, name: str) -> None:
    said, rows = taken.said[name], taken.of(name)
    puts = [row for row in rows if row["body"] == "put" and "/lane/" in row["key"]]
    found = [[row["key"], row["payload"].decode(), row["priority"], row["express"]] for row in puts]
    assert sorted(found) == sorted(said["puts"])
    for row in puts:
        assert row["direction"] == "opener"
        assert (row["src_zid"], row["dst_zid"]) == (said["opener"], said["acceptor"])
        assert row["dst_port"] == taken.ports[name]
        assert (row["encoding"], row["schema"]) == ("text/plain", "utf8")
        assert row["attachment"] == b"attached %d" % int(row["payload"].split()[1])
        assert row["congestion_control"] == "block"
        if name == "lowlatency":
            assert (row["lane"], row["sn"]) == (None, None)
        else:
            assert row["lane"] == row["priority"]
            assert row["sn"] is not None
    # In one lane, nothing overtakes.
    for priority in range(1, 8):
        of_lane = [row["payload"] for row in puts if row["priority"] == priority]
        assert of_lane == [b"%d %d" % (priority, i) for i in range(3)]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_big_put_and_its_delete(taken: Taken, name: str) -> None:
    said, rows = taken.said[name], taken.of(name)
    put, delete = (row for row in rows if row["key"] == f"{name}/big" and row["message"] == "PUSH")
    assert put["payload"] == b"x" * said["big"]
    assert (delete["body"], delete["payload"]) == ("delete", None)
    pieces = [row for row in rows if row["message"] == "FRAGMENT"]
    if name == "lowlatency":
        assert not pieces
        assert put["fragments"] is None
    else:
        assert put["fragments"] == len(pieces) > 1
        assert put["sn"] == pieces[0]["sn"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_queries_and_replies(taken: Taken, name: str) -> None:
    said, rows = taken.said[name], taken.of(name)
    (query,) = (row for row in rows if row["body"] == "query" and row["key"] == "ask/**")
    assert (query["parameters"], query["payload"]) == ("wanted=1", b"question")
    assert query["timeout_ms"] == int(reference_talk.PATIENCE * 1000)
    replies = [
        row
        for row in rows
        if row["message"] == "RESPONSE" and row["request_id"] == query["request_id"]
    ]
    assert {row["direction"] for row in replies} == {"acceptor"}
    kinds = {"reply": "SampleKind.PUT", "reply_delete": "SampleKind.DELETE", "err": "err"}
    found = sorted([kinds[row["body"]], (row["payload"] or b"").decode()] for row in replies)
    assert found == said["replies"]
    finals = [row["request_id"] for row in rows if row["message"] == "RESPONSE_FINAL"]
    assert query["request_id"] in finals


@pytest.mark.parametrize("name", SCENARIOS)
def test_handshakes_declarations_and_tokens(taken: Taken, name: str) -> None:
    rows = taken.of(name)
    names = [row["message"] for row in rows]
    assert names[:4] == ["INIT_SYN", "INIT_ACK", "OPEN_SYN", "OPEN_ACK"]
    declared = [(row["body"], row["key"]) for row in rows if row["message"] == "DECLARE"]
    assert ("d_subscriber", f"{name}/**") in declared
    assert ("d_queryable", "ask/**") in declared
    assert ("d_token", f"alive/{name}") in declared
    assert "u_token" in {body for body, _ in declared}
    closes = [row["detail"] for row in rows if row["message"] == "CLOSE"]
    assert closes
    assert all(detail.startswith("reason=") for detail in closes)


def test_scouting_and_its_answers(taken: Taken) -> None:
    said = taken.said["scouting"]
    assert said["found"]
    scouts = [row for row in taken.rows if row["message"] == "SCOUT"]
    hellos = [row for row in taken.rows if row["message"] == "HELLO"]
    assert {row["protocol"] for row in scouts} == {"multicast"}
    assert "224.0.1.199" in {row["dst"] for row in scouts}
    assert said["zid"] in {row["src_zid"] for row in hellos}


def test_the_streams_of_the_capture(taken: Taken) -> None:
    found = {stream.dst_port: stream for stream in streams(taken.path) if stream.zenoh}
    for name, (link, *_) in SCENARIOS.items():
        assert found[taken.ports[name]].protocol == link
    number = found[taken.ports["lanes"]].number
    only = [row for batch in read(taken.path, streams=[number]) for row in batch.to_pylist()]
    assert only == [row for row in taken.rows if row["stream"] == number]
