"""`zenlake liveliness` and `info`; what all commands share; and eclipse-zenoh opposite."""

import json
import subprocess
import sys

import pytest

from tests.support.cli_in_process import tool
from tests.support.cli_in_process import zenlake as zenlake_here
from tests.support.cli_process import peer, running
from tests.support.cli_process import tool as tool_process
from tests.support.reference_router import ReferenceRouter
from tests.support.waiting import until

COMMANDS = [
    ["put"],
    ["delete"],
    ["get"],
    ["sub"],
    ["pub"],
    ["queryable"],
    ["info"],
    ["liveliness", "token"],
    ["liveliness", "sub"],
    ["liveliness", "get"],
]


# ---- configuration


@pytest.mark.process
def test_a_command_says_which_keys_have_no_effect() -> None:
    with peer() as met:
        done = tool_process("info", "-e", met.endpoint, "--cfg", "adminspace/enabled:true")
    assert done.status == 0
    assert "configuration: adminspace/enabled has no effect here" in done.err


@pytest.mark.process
def test_a_command_refuses_a_key_that_is_not_implemented() -> None:
    done = tool_process("put", "--cfg", "namespace:fleet", "a", "1")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        "zenlake put: namespace is not implemented yet: keys would have no prefix, so the session "
        "would read and write keys of others. Remove namespace to open without\n"
    )


# ---- liveliness


@pytest.mark.process
def test_a_token_is_alive_until_ctrl_c() -> None:
    with peer() as met:
        seen: list[tuple[str, str]] = []
        watcher = met.session.liveliness().declare_subscriber(
            "fleet/**", lambda s: seen.append((str(s.key_expr), str(s.kind).rpartition(".")[2]))
        )
        with running("liveliness", "token", "-e", met.endpoint, "fleet/1", "fleet/2") as token:
            assert (token.line(), token.line()) == ("alive  fleet/1\n", "alive  fleet/2\n")
            until(lambda: len(seen) == 2)
            assert token.interrupt() == (0, "", "")
        until(lambda: len(seen) == 4)
        watcher.undeclare()
    assert sorted(seen[:2]) == [("fleet/1", "PUT"), ("fleet/2", "PUT")]
    assert sorted(seen[2:]) == [("fleet/1", "DELETE"), ("fleet/2", "DELETE")]


@pytest.mark.process
def test_a_token_for_a_time() -> None:
    with peer() as met:
        done = tool("liveliness", "token", "-e", met.endpoint, "a", "--seconds", "0.2", "--json")
    assert (done.status, json.loads(done.out), done.err) == (0, {"key": "a", "alive": True}, "")


@pytest.mark.process
@pytest.mark.parametrize("as_json", [True, False])
def test_who_comes_and_who_goes(as_json: bool) -> None:
    with peer() as met:
        first = met.session.liveliness().declare_token("fleet/1")
        options = ["fleet/**", "-n", "3", *(["--json"] if as_json else [])]
        with running("liveliness", "sub", "-e", met.endpoint, *options) as sub:
            lines = [sub.line()]
            second = met.session.liveliness().declare_token("fleet/2")
            lines.append(sub.line())
            first.undeclare()
            done = sub.end()
        second.undeclare()
    assert (done.status, done.err) == (0, "")
    lines += done.out.splitlines(keepends=True)
    expected = [("fleet/1", True), ("fleet/2", True), ("fleet/1", False)]
    if as_json:
        assert [json.loads(line) for line in lines] == [
            {"key": key, "alive": alive} for key, alive in expected
        ]
    else:
        assert lines == [f"{'alive' if alive else 'gone '}  {key}\n" for key, alive in expected]


@pytest.mark.process
def test_without_history_only_what_changes() -> None:
    with peer() as met, met.session.liveliness().declare_token("fleet/1"):
        options = ["fleet/**", "--no-history", "--seconds", "1"]
        assert tool("liveliness", "sub", "-e", met.endpoint, *options) == (0, "", "")
        done = tool("liveliness", "sub", "-e", met.endpoint, *options, "-n", "1")
    assert (done.status, done.out) == (1, "")
    assert "only 0 of 1 change in" in done.err


@pytest.mark.process
def test_who_is_alive_now() -> None:
    with peer() as met:
        get = ["liveliness", "get", "-e", met.endpoint, "fleet/**"]
        done = tool(*get)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith("zenlake liveliness get: no token is alive on fleet/**")
        tokens = [met.session.liveliness().declare_token(f"fleet/{i}") for i in range(2)]
        done = tool(*get)
        assert (done.status, sorted(done.out.splitlines())) == (
            0,
            ["alive  fleet/0", "alive  fleet/1"],
        )
        assert len(tool(*get, "-n", "1", "--json").out.splitlines()) == 1
        for token in tokens:
            token.undeclare()


# ---- info


@pytest.mark.process
def test_info_shows_who_is_connected() -> None:
    with peer() as met:
        zid = str(met.session.zid())
        done = tool("info", "-e", met.endpoint, "--json")
        facts = json.loads(done.out)
        assert (done.status, done.err) == (0, "")
        assert (facts["peers"], facts["routers"]) == ([zid], [])
        assert [(t["zid"], t["whatami"]) for t in facts["transports"]] == [(zid, "peer")]
        assert [(link["zid"], link["dst"]) for link in facts["links"]] == [(zid, met.endpoint)]
        assert facts["zid"] != zid
        done = tool("info", "-e", met.endpoint)
        assert (done.status, done.err) == (0, "")
        assert [line.split() for line in done.out.splitlines()][:2] == [
            ["id", done.out.split()[1]],
            ["routers", "none"],
        ]
        (row,) = [line for line in done.out.splitlines() if met.endpoint in line]
        assert zid in row


@pytest.mark.process
def test_info_of_somebody_alone_is_status_1() -> None:
    done = tool("info", "--no-multicast-scouting", "-l", "tcp/127.0.0.1:0", "--json")
    assert done.status == 1
    assert json.loads(done.out)["links"] == []
    assert "no node is connected" in done.err


# ---- all of them


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_the_status(command: list[str]) -> None:
    text = zenlake_here(*command, "--help").stdout
    assert f"zenlake {' '.join(command)}" in text
    assert "Exit status: 0" in text
    options = ("--connect", "--listen", "--mode", "--config", "--cfg", "--no-multicast-scouting")
    for option in ("--json", *options):
        assert option in text


def test_every_command_is_in_the_help() -> None:
    text = zenlake_here("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command[0]} " in text


@pytest.mark.process
def test_starting_loads_no_session() -> None:
    code = (
        "import sys\n"
        "from zenlake.cli import app\n"
        "app(['put', '--help'], standalone_mode=False)\n"
        "heavy = {'numpy', 'numba', 'pyarrow', 'asyncio', 'rich', 'zenlake.api'}\n"
        "sys.stderr.write(' '.join(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == b""


# ---- eclipse-zenoh opposite


@pytest.mark.process
@pytest.mark.interop
def test_a_router_of_eclipse_zenoh_opposite() -> None:
    with ReferenceRouter() as theirs:
        at = ["-e", theirs.endpoint]
        facts = json.loads(tool("info", *at, "--json").out)
        assert [t["whatami"] for t in facts["transports"]] == ["router"]
        assert facts["routers"] == [facts["transports"][0]["zid"]]

        assert tool("put", *at, "sub/a", "hello").status == 0
        assert tool("delete", *at, "sub/a").status == 0
        until(lambda: theirs.ask("count") == 2)
        assert theirs.ask("samples") == [["put", "sub/a", "hello"], ["delete", "sub/a", ""]]

        found = tool("get", *at, "query/*?n=2", "--json")
        replies = [json.loads(line) for line in found.out.splitlines()]
        assert sorted((r["kind"], r["key"], r["value"]) for r in replies if r["key"]) == [
            ("PUT", "query/0", "0"),
            ("PUT", "query/1", "1"),
        ]
        assert [r["value"] for r in replies if r["kind"] == "ERR"] == ["that was all"]

        with running("sub", *at, "to/**", "-n", "3", "--json") as sub:
            until(lambda: theirs.ask("matching", key="to/us"))
            theirs.ask("put", key="to/us", count=3)
            done = sub.end()
        assert [json.loads(line)["value"] for line in done.out.splitlines()] == ["0", "1", "2"]

        with running("queryable", *at, "ours/a", "answer", "-n", "1") as queryable:
            until(lambda: theirs.ask("answered", key="ours/a"))
            assert theirs.ask("get", selector="ours/a") == ["answer"]
            assert queryable.end().status == 0

        theirs.ask("token", key="alive/theirs")
        done = tool("liveliness", "get", *at, "alive/**", "--json")
        assert json.loads(done.out) == {"key": "alive/theirs", "alive": True}
        with running("liveliness", "token", *at, "alive/ours") as token:
            until(lambda: "alive/ours" in theirs.ask("alive", key="alive/**"))
            assert token.interrupt().status == 0
        until(lambda: theirs.ask("alive", key="alive/**") == ["alive/theirs"])


@pytest.mark.process
@pytest.mark.interop
def test_two_of_our_commands_meet_at_a_router_of_eclipse_zenoh() -> None:
    with (
        ReferenceRouter() as theirs,
        running("sub", "-e", theirs.endpoint, "demo/**", "-n1") as sub,
    ):
        until(lambda: theirs.ask("matching", key="demo/a"))
        assert tool("put", "-e", theirs.endpoint, "demo/a", "x").status == 0
        done = sub.end()
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("PUT  demo/a  x  (zenoh/string, 1 byte, 20")  # the router's time
