"""`zenlake put`, `delete` and `pub` before a session of ours."""

import json
import re
from pathlib import Path

import pytest

import zenlake
from tests.golden.proxy import free_port
from tests.support.cli_in_process import tool
from tests.support.cli_process import Peer, peer, running
from tests.support.waiting import DEADLINE_SECONDS, until
from zenlake.cli import publish_options

pytestmark = pytest.mark.process

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _patient(monkeypatch: Patch) -> None:
    """Wait for a subscriber as long as a busy machine may take."""
    monkeypatch.setattr(publish_options, "SUBSCRIBER_SECONDS", DEADLINE_SECONDS)


def said(sample: zenlake.Sample) -> tuple[str, str, bytes, str]:
    kind = str(sample.kind).rpartition(".")[2]
    return kind, str(sample.key_expr), bytes(sample.payload), str(sample.encoding)


def arrived(met: Peer, count: int) -> list[tuple[str, str, bytes, str]]:
    until(lambda: len(met.samples) >= count)
    assert len(met.samples) == count
    return [said(sample) for sample in met.samples]


def test_a_value_arrives() -> None:
    with peer() as met:
        met.watch("demo/**")
        done = tool("put", "-e", met.endpoint, "demo/a", "héllo")
        assert arrived(met, 1) == [("PUT", "demo/a", "héllo".encode(), "zenoh/string")]
    assert done == (0, "PUT  demo/a  (zenoh/string, 6 bytes)\n", "")


def test_how_it_travels_is_as_asked() -> None:
    with peer() as met:
        met.watch("demo/**")
        options = ["--encoding", "application/json;pose", "--attachment", "more"]
        options += ["--priority", "interactive-high", "--congestion-control", "drop", "--express"]
        options += ["--reliability", "best-effort"]
        done = tool("put", "-e", met.endpoint, "demo/a", "{}", *options, "--json")
        assert arrived(met, 1) == [("PUT", "demo/a", b"{}", "application/json;pose")]
        (sample,) = met.samples
    assert sample.attachment is not None
    assert bytes(sample.attachment) == b"more"
    assert sample.priority == zenlake.Priority.INTERACTIVE_HIGH
    assert sample.congestion_control == zenlake.CongestionControl.DROP
    assert sample.express
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out) == {"key": "demo/a", "size": 2, "encoding": "application/json;pose"}


def test_nothing_is_dropped_unless_asked_for() -> None:
    with peer() as met:
        met.watch("demo/**")
        assert tool("put", "-e", met.endpoint, "demo/a", "x").status == 0
        arrived(met, 1)
        assert met.samples[0].congestion_control == zenlake.CongestionControl.BLOCK


@pytest.mark.parametrize(
    ("name", "encoding"), [("pose.json", "application/json"), ("what", "zenoh/bytes")]
)
def test_a_file_has_the_encoding_of_its_name(tmp_path: Path, name: str, encoding: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"\x00\xff" * 100_000)
    with peer() as met:
        met.watch("demo/**")
        assert tool("put", "-e", met.endpoint, "demo/f", "--file", str(file)).status == 0
        assert arrived(met, 1) == [("PUT", "demo/f", file.read_bytes(), encoding)]


def test_standard_input_as_a_whole_and_by_lines() -> None:
    with peer() as met:
        met.watch("demo/**")
        text = b"one\r\ntwo\n\nlast"
        assert tool("put", "-e", met.endpoint, "demo/i", "-", stdin=text).status == 0
        assert arrived(met, 1) == [("PUT", "demo/i", text, "zenoh/bytes")]
        met.samples.clear()
        done = tool("put", "-e", met.endpoint, "demo/i", "-", "--lines", stdin=text)
        assert [payload for _, _, payload, _ in arrived(met, 4)] == [b"one", b"two", b"", b"last"]
        assert done.out == "PUT  demo/i  (4 times, zenoh/string, 10 bytes)\n"
        met.samples.clear()
        done = tool("put", "-e", met.endpoint, "demo/i", "--lines", "-n2", "--json", stdin=text)
        assert [payload for _, _, payload, _ in arrived(met, 2)] == [b"one", b"two"]
        assert [json.loads(line)["size"] for line in done.out.splitlines()] == [3, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["demo/a"], "what to put?"),
        (["demo/a", "x", "--file", "y"], "not both"),
        (["demo/a", "x", "--lines"], "--lines reads standard input"),
        (["demo/a", "x", "--count", "3"], "--count goes with --lines"),
        (["demo//a", "x"], "write one `/` between chunks"),
        (["demo/a", "--file", "no-such-file"], "no-such-file: No such file"),
        (["demo/a", "x", "--priority", "urgent"], "urgent"),
        (["demo/a", "x", "-e", "nonsense"], "is not an endpoint"),
        (["demo/a", "x", "--cfg", "mode"], "write KEY:VALUE, such as --cfg 'connect/endpoints:["),
        (
            ["demo/a", "x", "--cfg", "connect/endpoints:[c]"],
            "JSON5: line 1, column 2: unexpected c. A shell takes quotes away: write --cfg '",
        ),
        (["demo/a", "x", "--cfg", ":{mode: 1}"], "--cfg :{mode: 1}: mode: is 1"),
        (["demo/a", "x", "--cfg", "mode:boss"], '--cfg mode:boss: mode: is "boss", but one of'),
        (["demo/a", "x", "--cfg", "no/such/key=1"], "--cfg no/such/key=1"),
        (["demo/a", "x", "--config", "no-such.json5"], "--config no-such.json5"),
    ],
)
def test_wrong_usage_is_status_2(options: list[str], words: str) -> None:
    done = tool("put", *options)
    assert (done.status, done.out) == (2, "")
    assert words in " ".join(done.err.split())


def test_nobody_there_is_one_line_and_status_1() -> None:
    nowhere = f"tcp/127.0.0.1:{free_port()}"
    done = tool("put", "-e", nowhere, "demo/a", "x")
    assert (done.status, done.out) == (1, "")
    assert done.err.count("\n") == 1
    assert done.err.startswith(f"zenlake put: no session with {nowhere}: ")
    assert "or correct the address). Is a node listening there? Try: zenlake ping" in done.err
    assert f"zenlake ping {nowhere}" in done.err
    done = tool("put", "--no-multicast-scouting", "demo/a", "x")
    assert (done.status, done.out) == (1, "")
    assert "no node is connected" in done.err
    assert "zenlake scout" in done.err


def test_a_node_that_wants_a_password_is_not_said_to_be_absent(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("u:p\n")
    wanted = json.dumps({"user": "r", "password": "r", "dictionary_file": str(users)})
    with peer(transport__auth__usrpwd=wanted) as node:
        done = tool("put", "-e", node.endpoint, "demo/a", "x")
    assert (done.status, done.out) == (1, "")
    assert done.err.endswith(
        "was expected. The node refused: it may want user and password (transport/auth).\n"
    )
    assert "Is a node listening" not in done.err


def test_the_configuration_can_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "node.json5"
    with peer() as met:
        met.watch("demo/**")
        file.write_text(f"{{mode: 'client', connect: {{endpoints: ['{met.endpoint}']}}}}")
        assert tool("put", "-c", str(file), "demo/a", "1").status == 0
        arrived(met, 1)
        assert tool("put", "demo/a", "2", env={"ZENOH_CONFIG": str(file)}).status == 0
        arrived(met, 2)
        endpoint = f'connect/endpoints=["{met.endpoint}"]'
        assert tool("put", "--cfg", endpoint, "--cfg", 'mode="client"', "demo/a", "3").status == 0
        arrived(met, 3)
        for number, words in enumerate(
            [
                [f'connect/endpoints:["{met.endpoint}"]', 'mode:"client"'],
                [f'connect/endpoints:["{met.endpoint}"]', "mode=client"],
                [f":{{mode: 'client', connect: {{endpoints: ['{met.endpoint}']}}}}"],
                [f":{{connect: {{endpoints: ['{met.endpoint}']}}}}", "mode:client"],
            ],
            4,
        ):
            options = [part for word in words for part in ("--cfg", word)]
            assert tool("put", *options, "demo/a", str(number)).status == 0
            arrived(met, number)


def test_a_key_without_subscriber_is_said(monkeypatch: Patch) -> None:
    with peer() as met:
        met.watch("demo/**")
        assert tool("put", "-e", met.endpoint, "demo/a", "x").err == ""
    monkeypatch.setattr(publish_options, "SUBSCRIBER_SECONDS", 1.0)
    with peer() as met:
        done = tool("put", "-e", met.endpoint, "demo/a", "x")
        assert (done.status, done.err) == (0, "no subscriber for demo/a (waited 1 s for one)\n")
        assert tool("put", "-e", met.endpoint, "other", "x", "--json").err.startswith("no subscr")


@pytest.mark.parametrize("mode", ["peer", "client", "router"])
def test_any_mode_can_put(mode: str) -> None:
    with peer() as met:
        met.watch("demo/**")
        common = ["-e", met.endpoint, "-m", mode, "--no-multicast-scouting"]
        listen = [] if mode == "client" else ["-l", "tcp/127.0.0.1:0"]
        assert tool("put", *common, *listen, "demo/a", "x") == (
            0,
            "PUT  demo/a  (zenoh/string, 1 byte)\n",
            "",
        )
        arrived(met, 1)


def test_keys_are_deleted() -> None:
    with peer() as met:
        met.watch("demo/**")
        done = tool("delete", "-e", met.endpoint, "demo/a", "demo/b", "--attachment", "why")
        assert [sample[:2] for sample in arrived(met, 2)] == [
            ("DELETE", "demo/a"),
            ("DELETE", "demo/b"),
        ]
        assert [bytes(sample.attachment or b"") for sample in met.samples] == [b"why", b"why"]
        assert done == (0, "DELETE  demo/a\nDELETE  demo/b\n", "")
        done = tool("delete", "-e", met.endpoint, "demo/c", "--json")
        assert (done.status, json.loads(done.out)) == (0, {"key": "demo/c"})


def test_pub_counts() -> None:
    with peer() as met:
        met.watch("demo/**")
        done = tool("pub", "-e", met.endpoint, "demo/p", "{i}: {x}", "-n", "3", "--rate", "100")
        assert [payload for _, _, payload, _ in arrived(met, 3)] == [
            b"0: {x}",
            b"1: {x}",
            b"2: {x}",
        ]
    lines = done.out.splitlines()
    assert (done.status, done.err) == (0, "")
    assert lines[:3] == [f"PUT  demo/p  {i}: {{x}}" for i in range(3)]
    assert lines[3].startswith("3 puts, 18 bytes in ")


def test_pub_for_programs() -> None:
    with peer() as met:
        met.watch("demo/**")
        options = ["-n", "50", "--interval", "0", "--json"]
        done = tool("pub", "-e", met.endpoint, "demo/p", "x", *options)
        quiet = tool("pub", "-e", met.endpoint, "demo/p", "x", *options, "--quiet")
        arrived(met, 100)
    *puts, last = [json.loads(line) for line in done.out.splitlines()]
    assert [put["index"] for put in puts] == list(range(50))
    assert (last["puts"], last["bytes"]) == (50, 50)
    assert len(quiet.out.splitlines()) == 1


def test_ctrl_c_ends_pub() -> None:
    with peer() as met:
        met.watch("demo/**")
        common = ["pub", "-e", met.endpoint, "demo/p", "x", "--interval", "0.05"]
        with running(*common) as at_work:
            assert at_work.line() == "PUT  demo/p  x\n"
            done = at_work.interrupt()
        assert (done.status, done.err) == (0, "")
        assert re.match(r"(1 put|\d+ puts), ", done.out.splitlines()[-1])
        with running(*common, "--count", "100000") as at_work:
            at_work.line()
            done = at_work.interrupt()
        assert (done.status, done.err) == (130, "")


def test_pub_takes_one_pace() -> None:
    done = tool("pub", "demo/p", "x", "--rate", "1", "--interval", "1")
    assert done.status == 2
    assert "not both" in done.err
