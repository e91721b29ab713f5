"""Queries that a lake answers, through sessions over loopback.

ZENLAKE_FULL=1 tries many more pasts.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import zenlake
from tests.golden.proxy import free_port
from tests.lake.test_history import FIRST, events, sampled
from tests.support.known_histories import Event, KnownHistory
from tests.support.session_pairs import DEADLINE, dialling, listening, opened, pair
from tests.support.waiting import until
from zenlake.api.session_core import core_of
from zenlake.cli.commands.serve import serve
from zenlake.lake.serve import server as serving
from zenlake.lake.serve.history import History
from zenlake.lake.serve.server import Server
from zenlake.lake.serve.time_range import HIGHEST, LOWEST
from zenlake.runtime import kernel_loader
from zenlake.wire.enums import Consolidation
from zenlake.wire.query import WireQuery
from zenlake.wire.request import Request
from zenlake.wire.wireexpr import WireExpr

pytestmark = pytest.mark.slow

FULL = bool(os.environ.get("ZENLAKE_FULL"))
COUNT = 2000
NONE = zenlake.ConsolidationMode.NONE
LOW = zenlake.Priority.DATA_LOW


@pytest.fixture(scope="module")
def sessions() -> Iterator[tuple[zenlake.Session, zenlake.Session]]:
    with pair() as both:
        yield both


@pytest.fixture
def past(tmp_path: Path) -> KnownHistory:
    return KnownHistory(tmp_path)


def known(session: zenlake.Session, key: str = "**") -> None:
    """Returns once a queryable is known there."""
    with session.declare_querier(key) as querier:
        until(lambda: querier.matching_status.matching)


def shown(time: int) -> str:
    return zenlake.NTP64.of(time).to_string_rfc3339_lossy()


def said(sample: zenlake.Sample) -> tuple[Any, ...]:
    """Return the fields of a sample that can be compared with an event."""
    stamp = sample.timestamp
    put = sample.kind is zenlake.SampleKind.PUT
    return (
        str(sample.key_expr),
        bytes(sample.payload) if put else None,
        None if stamp is None else (stamp.get_time_as_ntp64().wire, str(stamp.get_id())),
        str(sample.encoding) if put else None,
        None if sample.attachment is None else bytes(sample.attachment),
    )


def told(event: Event) -> tuple[Any, ...]:
    stamp = None if event.ntp64 is None else (event.ntp64, event.clock)
    kind = None if event.payload is None else event.encoding
    return event.key, event.payload, stamp, kind, event.attachment


def asked(session: zenlake.Session, selector: str, **options: Any) -> dict[str, list[Any]]:
    """The replies, by key, in the order they came."""
    found: dict[str, list[Any]] = {}
    for reply in session.get(selector, timeout=DEADLINE, **options):
        assert reply.ok is not None, bytes(reply.err.payload) if reply.err else None
        found.setdefault(str(reply.ok.key_expr), []).append(said(reply.ok))
    return found


def refused(session: zenlake.Session, selector: str) -> str:
    (reply,) = session.get(selector, timeout=DEADLINE)
    assert reply.err is not None
    return bytes(reply.err.payload).decode()


@settings(max_examples=100 if FULL else 5)
@given(events(), st.data())
def test_any_history_is_answered_as_it_was_recorded(
    sessions: tuple[zenlake.Session, zenlake.Session], recorded: list[Event], data: st.DataObject
) -> None:
    session, asker = sessions
    with TemporaryDirectory() as folder:
        past = KnownHistory(Path(folder))
        past.record(recorded)
        with Server(session, past.project):
            known(asker)
            for _ in range(data.draw(st.integers(1, 2), label="batches")):
                past.table({0: data.draw(st.integers(0, len(recorded)), label="upto")})
                if data.draw(st.booleans(), label="compacted"):
                    past.compact(vacuum=True)
                key = data.draw(st.sampled_from(["**", "a/**", "b/z"]), label="asked")
                latest = past.latest_values(key)
                assert asked(asker, key) == {name: [told(e)] for name, e in latest.items()}
                time = (FIRST + data.draw(st.integers(-1, 6), label="time")) << 32
                state = past.between(key, LOWEST, time, 1)
                found = asked(asker, f"{key}?_time=[..{shown(time)}];_max=1")
                assert found == {name: [*map(told, some)] for name, some in state.items()}
                every = past.between(key, time, HIGHEST)
                found = asked(asker, f"{key}?_time=[{shown(time)}..]")
                assert found == {name: [*map(told, some)] for name, some in every.items()}


def test_query_parameters_select_the_range(
    sessions: tuple[zenlake.Session, zenlake.Session], past: KnownHistory
) -> None:
    session, asker = sessions
    past.record(sampled(30))
    past.table({0: 17})
    with Server(session, past.project) as server:
        known(asker)
        begin, end = shown(FIRST << 32), shown((FIRST + 20) << 32)
        every = {key: len(some) for key, some in asked(asker, "k/*?_time=[..]").items()}
        assert every == {f"k/{number}": 6 for number in range(5)}
        assert len(asked(asker, f"k/3?_time=[{begin}..{end}[")["k/3"]) == 4
        assert len(asked(asker, f"k/0?_time=]{begin}..{end}]")["k/0"]) == 4
        assert len(asked(asker, f"k/0?_time=[{begin};10s]")["k/0"]) == 3
        assert len(asked(asker, f"k/0?_time=[{begin};10s];_max=2")["k/0"]) == 2
        assert len(asked(asker, "k/0?_max=4", consolidation=NONE)["k/0"]) == 4
        assert len(asked(asker, "k/*?other=1;_anyke")) == 5
        assert asked(asker, "k/0?_time=[now(-1h)..]") == {}
        assert asked(asker, "k/0?_time=[now()..now(-1h)]") == {}
        assert asked(asker, "none/**") == {}
        assert "'[yesterday..]' is not a range of time" in refused(asker, "k?_time=[yesterday..]")
        assert "_time='' is not" in refused(asker, "k?_time")
        for text in ("0", "-1", "x", "9" * 30, "²"):
            assert "write a whole number" in refused(asker, f"k?_max={text}")
        stats = server.stats()
        assert (stats.errors, stats.refused, stats.left, stats.waiting) == (7, 0, 0, 0)
        assert stats.queries == stats.answered + stats.errors


def test_several_key_expressions_answer_each_key_once(
    sessions: tuple[zenlake.Session, zenlake.Session], past: KnownHistory
) -> None:
    session, asker = sessions
    past.record(sampled(10))
    with Server(session, past.project, ("k/1", "k/*", "other/**"), complete=False):
        known(asker, "k/2")
        found = asked(asker, "**?_time=[..]", target=zenlake.QueryTarget.ALL, consolidation=NONE)
        assert {key: len(some) for key, some in found.items()} == {
            f"k/{number}": 2 for number in range(5)
        }


def test_queries_beyond_the_limit_are_refused(
    sessions: tuple[zenlake.Session, zenlake.Session],
    past: KnownHistory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, asker = sessions
    monkeypatch.setattr(serving, "MAX_QUERIES", 1)
    monkeypatch.setattr(serving, "MAX_WAITING", 2)
    past.record(sampled(5))
    go, history = threading.Event(), History(past.project)
    real = history.latest

    def latest(*arguments: Any, **options: Any) -> Any:
        go.wait(DEADLINE)
        return real(*arguments, **options)

    monkeypatch.setattr(history, "latest", latest)
    with Server(session, history) as server:
        known(asker)
        first = asker.get("k/0", timeout=DEADLINE)
        until(lambda: server.stats().queries == 1 and server.stats().waiting == 0)
        replies = [first, *(asker.get(f"k/{number}", timeout=DEADLINE) for number in range(4))]
        until(lambda: server.stats().refused == 2)
        go.set()
        answers = [list(some) for some in replies]
        assert [len(some) for some in answers] == [1] * 5
        busy = [bytes(reply.err.payload) for (reply,) in answers if reply.err is not None]
        assert len(busy) == 2
        assert b"ask again later" in busy[0]


def test_an_answer_ends_when_the_querier_is_gone(
    past: KnownHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is more read for it than it took."""
    past.record([Event("k", bytes(20_000), number, number << 32) for number in range(COUNT)])
    session, port = listening()
    read = 0
    history = History(past.project)
    real = history.between

    def between(*arguments: Any, **options: Any) -> Any:
        nonlocal read
        with closing(real(*arguments, **options)) as batches:
            for batch in batches:
                for at in range(0, batch.num_rows, 50):
                    read += 50
                    yield batch.slice(at, 50)

    monkeypatch.setattr(history, "between", between)
    with session, Server(session, history) as server:
        asker = dialling(port)
        known(asker)
        stuck = threading.Event()

        def stop(_: Any) -> None:
            stuck.set()
            threading.Event().wait(0.01)

        asker.get("k?_time=[..]", stop, timeout=DEADLINE)
        assert stuck.wait(DEADLINE)
        asker.close()
        until(lambda: server.stats().left == 1)
        assert server.stats().replies < COUNT
        assert read <= server.stats().replies + 50


@pytest.fixture
def endless(past: KnownHistory, monkeypatch: pytest.MonkeyPatch) -> History:
    """A past that never ends."""
    past.record(sampled(5))
    history = History(past.project)
    real = history.between

    def between(*arguments: Any, **options: Any) -> Any:
        (batch,) = [*real(*arguments, **options)][:1]
        while True:
            yield batch

    monkeypatch.setattr(history, "between", between)
    return history


def test_a_stopped_server_sends_an_error(endless: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_QUERIES", 1)
    with pair() as (session, asker):
        server = Server(session, endless)
        known(asker)
        ends: list[list[zenlake.Reply]] = [[], []]
        over = [threading.Event(), threading.Event()]
        for mine, done in zip(ends, over, strict=True):
            handler = zenlake.handlers.Callback(mine.append, done.set)
            asker.get("k/*?_time=[..]", handler, timeout=DEADLINE)
            until(lambda: ends[0])
        until(lambda: server.stats().waiting == 1)
        server.close()
        assert all(done.wait(DEADLINE) for done in over)
        for mine in ends:
            err = mine[-1].err
            assert err is not None
            assert b"stopped before the end" in bytes(err.payload)
        assert (len(ends[1]), server.stats().errors) == (1, 2)


def test_a_query_ends_when_its_time_is_over(endless: History) -> None:
    with pair() as (session, asker), Server(session, endless) as server:
        known(asker)
        asker.get("k/*?_time=[..]", lambda _: None, timeout=0.5)
        until(lambda: server.stats().left == 1)
        assert server.stats().replies > 0


LINKS: dict[str, dict[str, Any]] = {
    "lanes": {},
    "compressed": {"transport__unicast__compression__enabled": True},
    "no lanes": {"transport__unicast__qos__enabled": False},
    "low latency": {
        "transport__unicast__qos__enabled": False,
        "transport__unicast__lowlatency": True,
    },
}


def long_past(count: int = COUNT) -> list[Event]:
    """Events of every form, in more frames than one."""
    return [
        Event(
            f"k/{number % 3}",
            None if number % 7 == 6 else b"%d" % number * (number % 40),
            FIRST * 1_000_000 + number,
            (FIRST << 32) + number if number % 5 else None,
            encoding="zenoh/bytes" if number % 7 == 6 else ("text/plain;u", "my/own")[number % 2],
            attachment=b"at %d" % number if number % 4 == 0 else None,
        )
        for number in range(count)
    ]


def expected(past: KnownHistory, key: str) -> dict[str, list[Any]]:
    every = past.between(key, LOWEST, HIGHEST)
    return {name: [*map(told, some)] for name, some in every.items()}


@pytest.mark.parametrize("kind", LINKS)
def test_a_long_answer_over_any_link(past: KnownHistory, kind: str) -> None:
    past.record(long_past(), block=100)
    session, port = listening(**LINKS[kind])
    with session, Server(session, past.project) as server, dialling(port, **LINKS[kind]) as asker:
        known(asker)
        assert asked(asker, "k/*?_time=[..]") == expected(past, "k/*")
        assert asked(asker, "k/1?_time=[..]") == expected(past, "k/1")
        latest = {name: [told(event)] for name, event in past.latest_values("k/*").items()}
        for mode in (zenlake.ConsolidationMode.LATEST, zenlake.ConsolidationMode.MONOTONIC):
            found = asked(asker, "k/*", consolidation=mode)
            assert found == latest
        with dialling(port, **LINKS[kind]) as other:  # its request ids are not the server's
            known(other)
            assert asked(other, "k/*?_time=[..]") == expected(past, "k/*")
        stats = server.stats()
        assert (stats.answered, stats.left, stats.errors) == (5, 0, 0)


def test_a_long_answer_with_values_in_fragments(past: KnownHistory) -> None:
    large = [
        event._replace(payload=bytes([number]) * 200_000) if number % 10 == 3 else event
        for number, event in enumerate(long_past(60))
    ]
    past.record(large)
    with pair() as (session, asker), Server(session, past.project):
        known(asker)
        assert asked(asker, "k/*?_time=[..]") == expected(past, "k/*")


def test_an_error_stands_for_a_value_that_a_link_cannot_carry(past: KnownHistory) -> None:
    past.record([Event("k/0", bytes(size), size) for size in (1, 100_000, 2)])
    session, port = listening(**LINKS["low latency"])
    with (
        session,
        Server(session, past.project) as server,
        dialling(port, **LINKS["low latency"]) as asker,
    ):
        known(asker)
        found = list(asker.get("k/0?_time=[..]", timeout=DEADLINE))
        assert [len(reply.ok.payload) for reply in found if reply.ok] == [1, 2]
        errors = [bytes(reply.err.payload) for reply in found if reply.err]
        assert errors == [b"The message is too large for a link on the way"]
        until(server.stats, lambda stats: (stats.replies, stats.too_large) == (2, 1))


@pytest.mark.parametrize("scans", [True, False], ids=["scanned", "one by one"])
def test_a_long_answer_through_a_router(
    past: KnownHistory, scans: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_loader.load()
    if not scans:
        monkeypatch.setattr(kernel_loader, "make", lambda: None)
    past.record(long_past(), block=100)
    at = f"tcp/127.0.0.1:{free_port()}"
    client = {"mode": "client", "connect__endpoints": [at]}
    with (
        opened(mode="router", listen__endpoints=[at]),
        opened(**client) as session,
        opened(**client) as asker,
        Server(session, past.project),
    ):
        known(asker)
        found: dict[str, list[Any]] = {}
        for reply in asker.get("k/*?_time=[..]", timeout=DEADLINE, priority=LOW):
            assert reply.ok is not None
            assert reply.replier_id is not None
            assert reply.replier_id.zid == session.zid()
            assert reply.ok.priority is LOW
            found.setdefault(str(reply.ok.key_expr), []).append(said(reply.ok))
        assert found == expected(past, "k/*")


def test_a_query_gets_as_many_replies_as_its_budget_has(past: KnownHistory) -> None:
    past.record(long_past(50))
    with pair() as (session, asker), Server(session, past.project) as server:
        known(asker)
        exchange = core_of(asker).exchange
        query = WireQuery(Consolidation.NONE, "_time=[..]")
        exchange.send(Request(exchange.next_id(), WireExpr(0, "k/*"), query, budget=7))
        until(lambda: server.stats().left == 1)
        assert server.stats().replies == 7


def test_failures_are_sent_as_errors(
    sessions: tuple[zenlake.Session, zenlake.Session], past: KnownHistory
) -> None:
    session, asker = sessions
    past.record(sampled(5))
    past.table({0: 5})
    for file in past.samples.snapshot().files:
        (past.samples.path / file.path).unlink()
    with Server(session, past.project) as server:
        known(asker)
        assert "parquet" in refused(asker, "k/0?_time=[..]")
        assert server.stats().errors == 1
        assert len(asked(asker, "k/*")) == 5


def test_closing_a_server_whose_session_is_closed_ends_it_and_frees_its_threads(
    past: KnownHistory,
) -> None:
    session, _ = listening()
    server = Server(session, past.project)
    assert answering_threads()
    session.close()
    server.close()
    assert not answering_threads()
    server.close()  # a second close has nothing to do
    assert (server.stats().replies, server.stats().errors) == (0, 0)


def answering_threads() -> list[str]:
    """Return the names of the threads that answer."""
    return [t.name for t in threading.enumerate() if t.name.startswith("zenlake serve")]


def test_the_session_of_the_server_may_query(past: KnownHistory) -> None:
    past.record(sampled(5))
    session, _ = listening()
    with session, Server(session, past.project):
        assert len(asked(session, "k/*?_time=[..]")) == 5


COMMAND = """
import typer
from zenlake.cli.commands.serve import serve
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(serve)
app()
"""


@pytest.mark.process
def test_the_serve_command(past: KnownHistory, tmp_path: Path) -> None:
    past.record(sampled(10))
    past.table({0: 6})
    (tmp_path / "lake.toml").write_text('[lake]\nname = "past"\n')
    session, port = listening()
    at = f"tcp/127.0.0.1:{port}"
    command = [sys.executable, "-c", COMMAND, str(tmp_path), "-e", at, "-k", "k/**", "--json"]
    with session:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            known(session, "k/1")
            assert len(asked(session, "k/*")) == 5
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
            process.wait()
    lines = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 0
    assert lines[0]["event"] == "serving"
    assert (lines[-1]["event"], lines[-1]["answered"], lines[-1]["replies"]) == ("stopped", 1, 5)


def test_the_command_names_what_is_missing(tmp_path: Path) -> None:
    app = typer.Typer(add_completion=False)
    app.command()(serve)
    found = CliRunner().invoke(app, [str(tmp_path), "-e", "tcp/127.0.0.1:1"])
    assert found.exit_code == 1
    assert "there is no lake" in found.output
