"""`zenlake router` as a process: what it says, and how it ends."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_process import DEADLINE, ENV, tool
from tests.support.cli_terminal import SCRIPT
from tests.support.interop_pair import OURS, THEIRS, Side, open_session
from tests.support.routed_sessions import PATIENCE
from tests.support.waiting import until

pytestmark = pytest.mark.interop

AT = ("-l", "tcp/127.0.0.1:0", "--no-multicast-scouting")
SIZE = 10_000
MESSAGES = 2000


class Command:
    """The router at work."""

    def __init__(self, *args: str) -> None:
        self._process = subprocess.Popen(
            [SCRIPT, "router", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV
        )
        self.first = self.line()

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode()

    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.line())
        return found

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, list[str], str]:
        """Its status, what it still said, and what was wrong."""
        out, err = self._process.communicate(timeout=DEADLINE)
        return self._process.returncode, out.decode().splitlines(), err.decode()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextmanager
def command(*args: str) -> Iterator[Command]:
    process = Command(*args)
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_sessions_that_open_and_leave(number: int) -> None:
    with command(*AT, "--id", "abc") as router:
        locator = router.first.split()[-1]
        assert router.first.split()[1:5] == ["router", "abc", "listens", "at"]
        session = open_session(THEIRS, "client", connect=(locator,))
        zid = str(session.zid())
        opened = router.line().split()
        assert opened[1:4] == ["opened", "client", zid]
        session.close()
        closed = router.line()
        assert closed.split()[1:4] == ["left", "client", zid]
        assert "GENERIC" not in closed
        router.signal(number)
        status, out, err = router.end()
        assert (status, err) == (0, "")
        assert len(out) == 1
        assert "stopped" in out[0]


def test_it_says_the_same_as_json() -> None:
    with command(*AT, "--json") as router:
        first = json.loads(router.first)
        assert first["event"] == "listening"
        (locator,) = first["locators"]
        session = open_session(OURS, "peer", connect=(locator,))
        opened = router.event()
        assert (opened["event"], opened["zid"]) == ("opened", str(session.zid()))
        assert (opened["whatami"], opened["remote"][:14]) == ("peer", "tcp/127.0.0.1:")
        router.signal(signal.SIGTERM)
        status, out, err = router.end()
        assert (status, err) == (0, "")
        closed, stopped = map(json.loads, out)
        assert (closed["event"], closed["zid"]) == ("closed", opened["zid"])
        assert (closed["reason"], closed["by_peer"]) == ("GENERIC", False)
        assert stopped["event"] == "stopped"
        assert stopped["dropped"] == {}
        session.close()


@pytest.mark.parametrize("level", [None, "error"])
@pytest.mark.parametrize("form", ["option", "file"])
def test_it_says_which_keys_have_no_effect(
    form: str, level: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if level is not None:
        monkeypatch.setenv("RUST_LOG", level)
    file = tmp_path / "router.json5"
    file.write_text("{adminspace: {enabled: true}, transport: {link: {tx: {keep_alive: 7}}}}")
    option = ("--cfg", "adminspace/enabled:true", "--cfg", "transport/link/tx/keep_alive:7")
    with command(*AT, *(option if form == "option" else ("-c", str(file)))) as router:
        assert "listens at" in router.first
        router.signal(signal.SIGTERM)
        status, _, err = router.end()
    assert status == 0
    first, second = err.splitlines()
    assert first.endswith("configuration: transport/link/tx/keep_alive has no effect here")
    assert second.endswith("configuration: adminspace/enabled has no effect here")


def test_it_says_what_it_opens_without() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"tcp/127.0.0.1:{taken.getsockname()[1]}"
        lenient = ("--cfg", "listen/exit_on_failure:false")
        with command(*AT, "-l", at, *lenient) as router:
            assert at not in router.first
            router.signal(signal.SIGTERM)
            status, _, err = router.end()
        assert status == 0
        (line,) = err.splitlines()
        assert "WARNING" in line
        assert at in line
        assert "Address already in use" in line
        done = tool("router", *AT, "-l", at)
        assert done.status == 1
        (line,) = done.err.splitlines()
        assert line.startswith("zenlake router: Can not create a new TCP listener")


def test_a_key_that_is_not_implemented_ends_it() -> None:
    done = tool("router", *AT, "--cfg", 'namespace:"fleet/7"')
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("zenlake router: namespace is not implemented yet: keys would have")
    assert done.err.endswith("Remove namespace to open without\n")


def test_options_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "router.json5"
    file.write_text('{mode: "peer", scouting: {multicast: {enabled: false}}}')
    with (
        command(*AT, "--json") as first,
        command(
            "-c", str(file), *AT, "--cfg", 'id="d1"', "--json",
            "-e", json.loads(first.first)["locators"][0],
        ) as second,
    ):  # fmt: skip
        assert json.loads(second.first)["zid"] == "d1"
        assert first.event()["zid"] == "d1"


@pytest.mark.parametrize(
    ("args", "status", "word"),
    [
        (("-l", "tcp/127.0.0.1"), 1, "tcp/127.0.0.1"),
        (("-l", "carrier-pigeon/here:1"), 1, "carrier-pigeon"),
        (("-l", "nothing"), 2, "nothing"),
        (("-e", "nothing"), 2, "nothing"),
        (("-l", "tcp/192.0.2.1:7447"), 1, "tcp/192.0.2.1:7447"),
        (("--id", "not hexadecimal"), 2, "not hexadecimal"),
        (("--cfg", "nothing"), 2, "KEY:VALUE"),
        (("-c", "/no/such/file.json5"), 2, "/no/such/file.json5"),
    ],
)
def test_what_it_cannot_do_is_one_line(args: tuple[str, ...], status: int, word: str) -> None:
    done = tool("router", *args, *(() if "-l" in args else AT), "--no-multicast-scouting")
    assert (done.status, done.out) == (status, "")
    assert done.err.startswith("zenlake router: ")
    assert done.err.count("\n") == 1
    assert word in done.err


def test_a_port_that_is_taken() -> None:
    with command(*AT) as router:
        locator = router.first.split()[-1]
        done = tool("router", "-l", locator, "--no-multicast-scouting")
        assert done.status == 1
        assert done.err.count("\n") == 1
        assert locator in done.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("api", [THEIRS, OURS], ids=["theirs", "ours"])
def test_what_was_put_before_the_signal_arrives(api: Any, number: int) -> None:
    """Also of senders that close at once, and to receivers that are slow."""
    heard: list[bytes] = []
    with command(*AT) as router:
        locator = router.first.split()[-1]
        receiver = open_session(api, "client", connect=(locator,))
        sender = open_session(api, "client", connect=(locator,))
        try:
            receiver.declare_subscriber("a", lambda sample: heard.append(bytes(sample.payload)))
            Side(api, sender).matching("a")
            publisher = sender.declare_publisher(
                "a", congestion_control=api.CongestionControl.BLOCK
            )
            values = [b"%d " % number + bytes(SIZE) for number in range(MESSAGES)]
            for value in values:
                publisher.put(value)
            router.signal(number)
            status, _, err = router.end()
            assert (status, err) == (0, "")
            until(lambda: len(heard), lambda found: found >= MESSAGES, PATIENCE)
            assert heard == values
        finally:
            sender.close()
            receiver.close()
