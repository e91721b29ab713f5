"""`zenlake sub`, `get` and `queryable` before a session of ours."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import zenlake
from tests.support.cli_in_process import tool
from tests.support.cli_process import ENV, answered, matching, peer, running
from tests.support.cli_terminal import SCRIPT, on_terminal
from tests.support.waiting import until

pytestmark = pytest.mark.process

HOSTILE = b"\x1b[31mred\x07\xc2\x9b"


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# ---- sub


def test_samples_are_shown_by_their_encoding() -> None:
    with peer() as met, running("sub", "-e", met.endpoint, "demo/**", "other", "-n", "7") as sub:
        matching(met.session, "demo/a")
        matching(met.session, "other")
        put = met.session.put
        put("demo/a", "hello", encoding="zenoh/string")
        put("demo/b", '{"x":1}', encoding="application/json", attachment="tag")
        put("demo/c", json.dumps({"long": "x" * 80}), encoding="text/json")
        put("demo/d", b"\x01\x02\xff", encoding="zenoh/bytes")
        put("demo/e", "two\nlines", encoding="text/plain")
        put("other", "plain", encoding="image/png")
        met.session.delete("demo/a")
        done = sub.end()
    assert (done.status, done.err) == (0, "")
    seen = done.out.splitlines()
    assert sorted(line for line in seen if not line.startswith(" ")) == [
        "DELETE  demo/a",
        "PUT  demo/a  hello  (zenoh/string, 5 bytes)",
        'PUT  demo/b  {"x": 1}  (application/json, 7 bytes, attachment tag)',
        "PUT  demo/c  (text/json, 92 bytes)",
        "PUT  demo/d  0x0102ff  (zenoh/bytes, 3 bytes)",
        "PUT  demo/e  (text/plain, 9 bytes)",
        "PUT  other  0x706c61696e  (image/png, 5 bytes)",
    ]
    assert [line for line in seen if line.startswith(" ")] == [
        "  {",
        f'    "long": "{"x" * 80}"',
        "  }",
        "  two",
        "  lines",
    ]


def test_samples_for_programs() -> None:
    with peer() as met, running("sub", "-e", met.endpoint, "demo/**", "-n3", "--json") as sub:
        matching(met.session, "demo/a")
        stamp = met.session.new_timestamp()
        met.session.put(
            "demo/a",
            '{"x":[1,null]}',
            encoding="application/json",
            attachment=b"\xff",
            timestamp=stamp,
            priority=zenlake.Priority.DATA_HIGH,
            express=True,
        )
        met.session.put("demo/b", HOSTILE)
        met.session.delete("demo/a")
        done = sub.end()
    first, second, third = objects(done.out)
    assert (done.status, done.err) == (0, "")
    assert first == {
        "key": "demo/a",
        "kind": "PUT",
        "value": {"x": [1, None]},
        "form": "json",
        "size": 14,
        "encoding": "application/json",
        "timestamp": stamp.to_string_rfc3339_lossy(),
        "priority": "DATA_HIGH",
        "congestion_control": "DROP",
        "express": True,
        "attachment": {"value": "ff", "form": "hex", "size": 1},
        "source": None,
        "source_sn": None,
    }
    assert (second["form"], bytes.fromhex(second["value"])) == ("hex", HOSTILE)
    assert (third["kind"], third["value"], third["size"]) == ("DELETE", "", 0)


def test_nothing_that_was_sent_reaches_the_terminal_raw() -> None:
    with peer() as met:
        met.answer("demo/x", lambda query: query.reply("demo/x", HOSTILE, encoding="a/\x1b[1m"))
        status, seen = on_terminal("get", "-e", met.endpoint, "demo/x")
    assert status == 0
    assert "\x07" not in seen
    assert "\x1b[31mred" not in seen
    assert "a/\\x1b[1m" in seen
    assert HOSTILE.hex() in seen


def test_nothing_that_was_sent_reaches_a_file_raw() -> None:
    bad = "x\x1b[1m\x07"
    with peer() as met:
        with running("sub", "-e", met.endpoint, "demo/**", "-n", "2") as sub:
            matching(met.session, "demo/a")
            met.session.put("demo/a", "x", encoding=bad, attachment=bad)
            met.session.put(f"demo/{bad}", bad)
            done = sub.end()
        with running("queryable", "-e", met.endpoint, "demo/**", "-n", "1") as queryable:
            ask(met.session, f"demo/a?{bad}", payload=bad, encoding=bad, attachment=bad)
            asked = queryable.end()
    assert (done.status, asked.status) == (0, 0)
    for text in (done.out, asked.out):
        assert "\\x1b" in text
        assert all(line.isprintable() for line in text.splitlines())


def test_too_few_samples_are_status_1() -> None:
    with peer() as met:
        done = tool("sub", "-e", met.endpoint, "demo/**", "--seconds", "0.2")
        assert (done.status, done.out) == (1, "")
        assert "no samples on demo/** in 0.2 s" in done.err
        with running("sub", "-e", met.endpoint, "demo/**", "--seconds", "3", "-n", "2") as sub:
            matching(met.session, "demo/a")
            met.session.put("demo/a", "x")
            done = sub.end()
    assert (done.status, done.out) == (1, "PUT  demo/a  x  (zenoh/bytes, 1 byte)\n")
    assert "only 1 of 2 samples" in done.err


def test_ctrl_c_ends_sub() -> None:
    with peer() as met:
        with running("sub", "-e", met.endpoint, "demo/**") as sub:
            matching(met.session, "demo/a")
            met.session.put("demo/a", "x")
            assert sub.line() == "PUT  demo/a  x  (zenoh/bytes, 1 byte)\n"
            assert sub.interrupt() == (0, "", "")
        with running("sub", "-e", met.endpoint, "demo/**", "-n", "5") as sub:
            matching(met.session, "demo/a")
            met.session.put("demo/a", "x")
            assert sub.line()
            assert sub.interrupt() == (130, "", "")


def test_a_reader_that_goes_away_ends_sub_quietly() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with peer() as met:
        try:
            process = subprocess.Popen(
                [SCRIPT, "sub", "-e", met.endpoint, "demo/**", "--json"],
                stdout=write_end,
                stderr=subprocess.PIPE,
                env=ENV,
            )
        finally:
            os.close(write_end)
        with process:
            matching(met.session, "demo/a")
            met.session.put("demo/a", "x")
            _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, b"")


def test_a_listening_sub_is_met_by_a_put() -> None:
    with peer() as met:
        endpoint = met.endpoint
    common = ["-l", endpoint, "--no-multicast-scouting", "demo/**", "-n", "1"]
    with running("sub", *common) as sub:
        until(lambda: tool("put", "-e", endpoint, "demo/a", "x").status == 0)
        assert sub.end() == (0, "PUT  demo/a  x  (zenoh/string, 1 byte)\n", "")


@pytest.mark.parametrize("as_json", [True, False])
def test_only_the_rate(as_json: bool) -> None:
    options = ["--rate", "-n", "100", *(["--json"] if as_json else [])]
    with peer() as met, running("sub", "-e", met.endpoint, "demo/**", *options) as sub:
        matching(met.session, "demo/a")
        for _ in range(100):
            met.session.put("demo/a", b"12", congestion_control=zenlake.CongestionControl.BLOCK)
        done = sub.end()
    assert (done.status, done.err) == (0, "")
    if as_json:
        assert sum(line["samples"] for line in objects(done.out)) == 100
        assert sum(line["bytes"] for line in objects(done.out)) == 200
        assert objects(done.out)[-1]["total"] == 100
    else:
        assert done.out.splitlines()[-1].endswith("100 in all")


# ---- get


def test_replies_in_a_table() -> None:
    with peer() as met:
        met.answer("demo/a", lambda q: q.reply("demo/a", '{"x":1}', encoding="application/json"))
        met.answer("demo/b", lambda q: q.reply_del("demo/b"))
        met.answer("demo/c", lambda q: q.reply_err("broken", encoding="zenoh/string"))
        done = tool("get", "-e", met.endpoint, "demo/*", "--target", "all")
        zid = str(met.session.zid())
    assert (done.status, done.err) == (0, "")
    rows = {tuple(line.split()) for line in done.out.splitlines() if zid in line}
    assert rows == {
        ("demo/a", "PUT", '{"x":', "1}", "application/json", zid),
        ("demo/b", "DELETE", "zenoh/bytes", zid),
        ("ERR", "broken", "zenoh/string", zid),
    }


def test_what_does_not_fit_is_a_block_per_reply() -> None:
    narrow = {"COLUMNS": "80"}
    value = '{"offset": 12345678, "durable": true}'
    with peer() as met:
        met.answer("demo/a", lambda q: q.reply("demo/a", value, encoding="application/json"))
        met.answer("demo/b", lambda q: q.reply_del("demo/b"))
        done = tool("get", "-e", met.endpoint, "demo/*", "--target", "all", env=narrow)
        zid = str(met.session.zid())
        info = tool("info", "-e", met.endpoint, env=narrow)
    assert (done.status, done.err) == (0, "")
    blocks = {tuple(block.splitlines()) for block in done.out.strip().split("\n\n")}
    assert blocks == {
        (
            *("key: demo/a", "kind: PUT", f"value: {value}"),
            *("encoding: application/json", f"replier: {zid}"),
        ),
        ("key: demo/b", "kind: DELETE", "encoding: zenoh/bytes", f"replier: {zid}"),
    }
    assert f"dst: {met.endpoint}" in info.out.splitlines()
    assert f"zid: {zid}" in info.out.splitlines()


def test_replies_for_programs() -> None:
    with peer() as met:
        stamp = met.session.new_timestamp()
        met.answer("demo/a", lambda q: q.reply("demo/a", "one", timestamp=stamp))
        met.answer("demo/c", lambda q: q.reply_err("broken"))
        done = tool("get", "-e", met.endpoint, "demo/*", "--target", "all", "--json")
        zid = str(met.session.zid())
    assert (done.status, done.err) == (0, "")
    found = {line["kind"]: line for line in objects(done.out)}
    assert set(found) == {"PUT", "ERR"}
    assert (found["PUT"]["key"], found["PUT"]["value"]) == ("demo/a", "one")
    assert found["PUT"]["timestamp"] == stamp.to_string_rfc3339_lossy()
    assert found["PUT"]["replier"].startswith(f"{zid}/")
    assert (found["ERR"]["key"], found["ERR"]["value"]) == (None, "broken")


def test_what_is_asked_arrives(tmp_path: Path) -> None:
    asked: list[tuple[str, bytes, str, bytes]] = []

    def on_query(query: zenlake.Query) -> None:
        payload, attachment = bytes(query.payload or b""), bytes(query.attachment or b"")
        asked.append((str(query.selector), payload, str(query.encoding), attachment))
        query.reply("demo/a", "ok")

    file = tmp_path / "ask.json"
    file.write_text("[]")
    with peer() as met:
        met.answer("demo/a", on_query)
        get = ["get", "-e", met.endpoint, "demo/a?x=1;y"]
        assert tool(*get, "--value", "v", "--attachment", "more").status == 0
        assert tool(*get, "--file", str(file)).status == 0
        assert tool(*get, "--value", "v", "--encoding", "text/csv").status == 0
    assert asked == [
        ("demo/a?x=1;y", b"v", "zenoh/string", b"more"),
        ("demo/a?x=1;y", b"[]", "application/json", b""),
        ("demo/a?x=1;y", b"v", "text/csv", b""),
    ]


def test_target_consolidation_and_count() -> None:
    with peer() as met:
        for value in ("one", "two"):
            met.answer("demo/a", lambda q, value=value: q.reply("demo/a", value))  # type: ignore[misc]
        get = ["get", "-e", met.endpoint, "demo/a", "--json", "--target", "all"]
        both = tool(*get, "--consolidation", "none")
        assert sorted(line["value"] for line in objects(both.out)) == ["one", "two"]
        assert len(objects(tool(*get, "--consolidation", "latest").out)) == 1
        assert len(objects(tool(*get, "--consolidation", "none", "-n", "1").out)) == 1


def test_no_reply_is_status_1() -> None:
    with peer() as met:
        done = tool("get", "-e", met.endpoint, "demo/a")
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith("zenlake get: demo/a: no reply.")
        assert done.err.count("\n") == 1
        met.answer("demo/a", lambda q: q.reply_err("broken"))
        done = tool("get", "-e", met.endpoint, "demo/a")
        assert (done.status, "broken" in done.out) == (1, True)
        assert "every reply is an error" in done.err


def test_a_query_that_nobody_ends_is_over_in_time() -> None:
    held: list[zenlake.Query] = []
    with peer() as met:
        met.session.declare_queryable("demo/a", held.append)
        done = tool("get", "-e", met.endpoint, "demo/a", "--timeout", "0.3", "--json")
        assert len(held) == 1
        for query in held:
            query.drop()
    assert done.status == 1
    assert [line["value"] for line in objects(done.out)] == ["Timeout"]


def test_ctrl_c_interrupts_a_get() -> None:
    held: list[zenlake.Query] = []
    with peer() as met:
        met.session.declare_queryable("demo/a", held.append)
        with running("get", "-e", met.endpoint, "demo/a", "--timeout", "600") as get:
            until(lambda: held)
            assert get.interrupt() == (130, "", "")
        held.pop().drop()


def test_wrong_selectors_are_status_2() -> None:
    done = tool("get", "demo//a?x=1")
    assert (done.status, done.out) == (2, "")
    assert "write one `/` between chunks" in done.err


# ---- queryable


def ask(session: zenlake.Session, selector: str, **options: Any) -> list[tuple[str, bytes, str]]:
    answered(session, selector.partition("?")[0])
    found = []
    for reply in session.get(selector, timeout=30, **options):
        result = reply.result
        key = str(result.key_expr) if isinstance(result, zenlake.Sample) else "error"
        found.append((key, bytes(result.payload), str(result.encoding)))
    return found


def test_a_queryable_answers_with_a_value() -> None:
    with peer() as met:
        common = ["queryable", "-e", met.endpoint, "demo/a", "hello", "-n", "1"]
        with running(*common, "--encoding", "text/plain") as at_work:
            assert ask(met.session, "demo/*?x=1") == [("demo/a", b"hello", "text/plain")]
            assert at_work.end() == (0, "QUERY  demo/*?x=1\n", "")
        with running(*common, "--error") as at_work:
            assert ask(met.session, "demo/a") == [("error", b"hello", "zenoh/string")]
            assert at_work.end().status == 0


def test_a_queryable_answers_with_a_file(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    file.write_text('{"a": 1}')
    with (
        peer() as met,
        running("queryable", "-e", met.endpoint, "demo/a", "-f", str(file), "-n", "1") as at_work,
    ):
        assert ask(met.session, "demo/a") == [("demo/a", b'{"a": 1}', "application/json")]
        assert at_work.end().status == 0


def test_a_queryable_says_what_it_was_asked() -> None:
    with (
        peer() as met,
        running("queryable", "-e", met.endpoint, "echo/**", "-n", "2", "--json") as at_work,
    ):
        assert ask(met.session, "echo/a?x=1") == [("echo/a", b"echo/a?x=1", "zenoh/string")]
        assert ask(met.session, "echo/b", payload="[1]", encoding="application/json") == [
            ("echo/b", b"[1]", "application/json")
        ]
        done = at_work.end()
    assert (done.status, done.err) == (0, "")
    first, second = objects(done.out)
    assert (first["key"], first["parameters"], first["value"]) == ("echo/a", "x=1", None)
    assert (second["key"], second["value"], second["form"]) == ("echo/b", [1], "json")


def test_only_a_complete_queryable_is_asked_by_all_complete() -> None:
    target = zenlake.QueryTarget.ALL_COMPLETE
    with peer() as met:
        for complete in ([], ["--complete"]):
            with running("queryable", "-e", met.endpoint, "demo/**", "x", *complete) as at_work:
                found = ask(met.session, "demo/a", target=target)
                assert found == ([("demo/a", b"x", "zenoh/string")] if complete else [])
                assert at_work.interrupt().status == 0


def test_a_queryable_that_nobody_asks() -> None:
    with peer() as met:
        common = ["queryable", "-e", met.endpoint, "demo/a"]
        assert tool(*common, "--seconds", "0.2") == (0, "", "")
        done = tool(*common, "--seconds", "0.2", "-n", "1")
    assert (done.status, done.out) == (1, "")
    assert "only 0 of 1 query on demo/a in 0.2 s" in done.err
