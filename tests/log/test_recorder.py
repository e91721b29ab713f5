"""The recorder on real sessions: what it hears, durable(), disks that fail, and its end."""

import errno
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import zenlake
from tests.support.log_recording import (
    DEADLINE,
    Disk,
    Lanes,
    disk,
    lost,
    payloads,
    put,
    recording,
    rows,
    walked,
)
from tests.support.session_pairs import configured, dialling, listening, opened, publisher_for
from tests.support.waiting import until
from zenlake.log.files import LogLocked
from zenlake.log.format import SETTLED
from zenlake.log.read.log import Log
from zenlake.log.write import recorder as recorders
from zenlake.log.write import recording_sink as tapes
from zenlake.log.write.recorder import Recorder
from zenlake.log.write.writer import Writer
from zenlake.wire.declare import Declare, DeclareKeyExpr, UndeclareKeyExpr
from zenlake.wire.enums import Mapping
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.slow

__all__ = ["disk"]
BLOCK = zenlake.CongestionControl.BLOCK
ADMIN = "@/*/*/recorder/**"


def asked(session: zenlake.Session, parameters: str = "") -> dict[str, Any]:
    """Return the only recorder's answer in the admin space."""
    selector = f"{ADMIN}?{parameters}" if parameters else ADMIN
    (reply,) = session.get(selector, timeout=DEADLINE)
    assert reply.ok is not None, reply.err
    assert str(reply.ok.encoding) == "application/json"
    found: dict[str, Any] = json.loads(reply.ok.payload.to_string())
    return found


def settled(path: Path, partition: int = 0) -> None:
    """Assert that the log is settled and its lock is free."""
    assert Log(path).mark(partition).state == SETTLED
    with Writer(path, partition) as writer:
        recovery = writer.recovery
    assert recovery.mark is not None
    assert recovery.mark.state == SETTLED
    assert not recovery.torn
    assert not recovery.damage


# ---- what is recorded


def test_puts_deletes_and_own_ones_are_recorded(tmp_path: Path) -> None:
    with recording(tmp_path / "log") as (recorder, port), dialling(port) as session:
        publisher = publisher_for(session, "rec/a", congestion_control=BLOCK)
        for number in range(2000):
            publisher.put(b"%d" % number)
        session.put("rec/b", "text", encoding="text/plain;x", attachment=b"with", express=True)
        session.put("other/b", "not recorded")
        publisher.delete()
        asked(session, "durable")
        recorder.session.put("rec/own", b"own")
        recorder.session.delete("rec/own")
        stats = recorder.stats()
        assert recorder.durable(DEADLINE).offset == 2004
        assert (stats.samples, stats.received, stats.gaps, stats.dropped) == (2004, 2004, 0, 0)
        zid = session._core.exchange.zid.raw
    found = rows(tmp_path / "log")
    assert [row["payload"] for row in found[:2000]] == [b"%d" % n for n in range(2000)]
    assert {row["key"] for row in found[:2000]} == {"rec/a"}
    b, gone, own, own_gone = found[2000:]
    assert (b["key"], b["payload"], b["attachment"]) == ("rec/b", b"text", b"with")
    assert (b["encoding"], b["schema"], b["express"]) == ("text/plain", "x", True)
    assert (gone["key"], gone["kind"], gone["payload"]) == ("rec/a", "delete", None)
    assert (own["key"], own["payload"]) == ("rec/own", b"own")
    assert (own_gone["key"], own_gone["kind"]) == ("rec/own", "delete")
    assert [row["offset"] for row in found] == list(range(2004))
    links = [each.link for each in walked(tmp_path / "log")]
    assert links == [zid] * 2002 + [b""] * 2
    assert max(each.together for each in walked(tmp_path / "log")) > 1
    settled(tmp_path / "log")


def test_publishers_at_once_keep_their_order(tmp_path: Path) -> None:
    """Three on links of their own, and two threads of the recorder's own session."""
    total = 1000
    with (
        recording(tmp_path / "log") as (recorder, port),
        dialling(port) as one,
        dialling(port) as two,
        dialling(port, mode="client") as three,
    ):
        own = recorder.session
        publishers = [
            publisher_for(each, f"rec/{each.zid()}", congestion_control=BLOCK)
            for each in (one, two, three)
        ]
        publishers += [own.declare_publisher(f"rec/own/{number}") for number in range(2)]

        def publish(publisher: zenlake.Publisher) -> None:
            for number in range(total):
                info = zenlake.SourceInfo(publisher.id, number)
                publisher.put(b"%d" % number, source_info=info if number % 2 else None)

        threads = [threading.Thread(target=publish, args=(each,)) for each in publishers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        until(lambda: recorder.stats().received == 5 * total)
        keys = [str(publisher.key_expr) for publisher in publishers]
    found: dict[str, list[bytes]] = {key: [] for key in keys}
    for row in rows(tmp_path / "log"):
        found[row["key"]].append(row["payload"])
    for of_one in found.values():
        assert of_one == [b"%d" % number for number in range(total)]
    gaps = lost(tmp_path / "log")
    assert {(gap.kind, gap.missing) for gap in gaps} == {("source", 1)}
    assert len(gaps) == 5 * (total // 2 - 1), "every second number was not given"


def test_overlapping_keys_record_a_sample_once(tmp_path: Path) -> None:
    keys = ["rec/**", "rec/a/*", "**/b", "rec/a/*", "solo"]
    with recording(tmp_path / "log", keys) as (_, port), dialling(port) as session:
        until(lambda: publisher_for(session, "solo"))
        for key in ("rec/a/b", "solo", "x/b", "rec", "nobody", "rec/a/c"):
            session.put(key, key, congestion_control=BLOCK)
        until(lambda: asked(session, "durable")["received"] >= 5)  # Two links have no order.
        with Lanes(port, WireZenohId(b"\x09")) as link:
            many = [put(key, b"x" * 100) for key in ("rec/a/b", "nobody", "x/b", "solo") * 10]
            link.frame(0, *many)
            until(lambda: asked(session, "durable")["received"] >= 35)
    found = [row["key"] for row in rows(tmp_path / "log")]
    assert sorted(found[:5]) == ["rec", "rec/a/b", "rec/a/c", "solo", "x/b"]
    assert found[5:] == ["rec/a/b", "x/b", "solo"] * 10


def test_ids_that_mean_something_else_within_a_frame(tmp_path: Path) -> None:
    def declare(text: str) -> list[Declare]:
        return [
            Declare(UndeclareKeyExpr(7)),
            Declare(DeclareKeyExpr(7, WireExpr(0, text))),
        ]

    def puts(text: str) -> list[Any]:
        some = [put("", f"{text} {number}".encode() * 20) for number in range(10)]
        for each in some:
            each.key = WireExpr(7, "/x", Mapping.SENDER)
        return some

    with recording(tmp_path / "log") as (recorder, port), Lanes(port, WireZenohId(b"\x09")) as link:
        link.frame(0, *declare("rec/a")[1:], *puts("a"), *declare("rec/b"), *puts("b"))
        link.frame(1, *declare("rec/a"), *puts("a"))
        until(lambda: recorder.stats().received == 30)
    found = walked(tmp_path / "log")
    assert [each.key for each in found] == ["rec/a/x"] * 10 + ["rec/b/x"] * 10 + ["rec/a/x"] * 10
    assert [row["key"] for row in rows(tmp_path / "log")] == [each.key for each in found]
    assert [each.payload[:1].decode() for each in found] == [each.key[4] for each in found]


def test_a_batch_that_its_session_puts_is_recorded(tmp_path: Path) -> None:
    keys = [f"rec/{number % 7}" if number % 3 else "other" for number in range(1000)]
    payload = [b"%d" % number for number in range(1000)]
    with Recorder(tmp_path / "log", "rec/**", config=configured()) as recorder:
        recorder.session.put_batch(pa.RecordBatch.from_pydict({"key": keys, "payload": payload}))
        assert recorder.stats().received == sum(key != "other" for key in keys)
    found = rows(tmp_path / "log")
    expected = [pair for pair in zip(keys, payload, strict=True) if pair[0] != "other"]
    assert [(row["key"], row["payload"]) for row in found] == expected
    assert {each.link for each in walked(tmp_path / "log")} == {b""}


def test_what_a_timestamp_stack_says_is_recorded(tmp_path: Path) -> None:
    asks = zenlake.TimestampInstrumentationBuilder().set_send(True).build()
    with recording(tmp_path / "log") as (recorder, port), dialling(port) as session:
        publisher = publisher_for(session, "rec/a", congestion_control=BLOCK)
        publisher.put(b"with", timestamp_instrumentation=asks)
        until(lambda: recorder.stats().received == 1)
        recorder.session.put("rec/own", b"own", timestamp_instrumentation=asks)
    found = walked(tmp_path / "log")
    assert [each.payload for each in found] == [b"with", b"own"]
    for each in found:
        assert each.push.ts_stack is not None
        assert each.push.ts_stack.entries
    assert payloads(tmp_path / "log") == [b"with", b"own"]


def test_a_key_is_needed(tmp_path: Path) -> None:
    with pytest.raises(zenlake.ZError):
        Recorder(tmp_path / "log", [])
    with pytest.raises(zenlake.ZError):
        Recorder(tmp_path / "log", "a//b")
    assert not (tmp_path / "log").exists()


def test_what_fails_at_the_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as session:
        with pytest.raises(zenlake.ZError, match="overflow"):
            Recorder(tmp_path / "log", "rec/**", session=session, overflow="never")
        with monkeypatch.context() as patched:
            patched.setattr(session.__class__, "declare_queryable", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                Recorder(tmp_path / "log", "rec/**", session=session)
        assert session._core.watchers == ()
        assert session._core.subscribers.matching("rec/a") == ()
        session.put("rec/a", b"still open")
    nowhere = configured(connect__endpoints=["tcp/127.0.0.1:1"], connect__exit_on_failure=True)
    nowhere.insert_json5("connect/timeout_ms", "100")
    nowhere.insert_json5("mode", '"client"')
    with pytest.raises(zenlake.ZError):
        Recorder(tmp_path / "log", "rec/**", config=nowhere)
    settled(tmp_path / "log")


# ---- durable


def test_durable_is_after_the_sync(tmp_path: Path, disk: Disk) -> None:
    with recording(tmp_path / "log") as (recorder, port), dialling(port) as session:
        publisher = publisher_for(session, "rec/a", congestion_control=BLOCK)
        for number in range(1, 6):
            publisher.put(b"x" * 100)
            said = asked(session, "durable")
            assert said["durable"] >= number
            assert disk.calls[-1] == ("fdatasync", recorder.mark.position)


def test_who_asks_waits_for_what_it_put(tmp_path: Path, disk: Disk) -> None:
    with recording(tmp_path / "log") as (recorder, port), dialling(port) as session:
        publisher = publisher_for(session, "rec/a", congestion_control=BLOCK)
        disk.moving.clear()
        for _ in range(10):
            publisher.put(b"x")
        answers = session.get(f"{ADMIN}?durable", timeout=DEADLINE)
        assert disk.waits.wait(DEADLINE)
        until(lambda: recorder.stats().received == 10)
        assert asked(session)["durable"] == 0, "without the parameter it is told at once"
        assert answers.try_recv() is None
        disk.moving.set()
        (reply,) = list(answers)
        assert reply.ok is not None
        assert json.loads(reply.ok.payload.to_string())["durable"] == 10


def test_who_asks_in_vain_is_told_why(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "ASK_SECONDS", 0.1)
    with recording(tmp_path / "log") as (recorder, port), dialling(port) as session:
        publisher = publisher_for(session, "rec/a", congestion_control=BLOCK)
        disk.fault = errno.ENOSPC
        publisher.put(b"x")
        until(lambda: recorder.stats().failure)
        (reply,) = session.get(f"{ADMIN}?durable", timeout=DEADLINE)
        assert reply.err is not None
        assert "ENOSPC" in reply.err.payload.to_string()
        assert "ENOSPC" in asked(session)["failure"]
        disk.fault = None
        recorder.durable(DEADLINE)
        assert asked(session, "durable")["failure"] is None


def test_not_everybody_may_wait(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "MAX_ASKING", 2)
    with recording(tmp_path / "log") as (recorder, port), dialling(port) as session:
        publisher = publisher_for(session, "rec/a", congestion_control=BLOCK)
        disk.moving.clear()
        publisher.put(b"x")
        until(lambda: recorder.stats().received)
        waiting = [session.get(f"{ADMIN}?durable", timeout=DEADLINE)]
        asked(session)  # is answered after that one was taken note of
        until(lambda: recorder._asked.qsize() == 0)
        waiting += [session.get(f"{ADMIN}?durable", timeout=DEADLINE) for _ in range(2)]
        until(lambda: recorder._asked.qsize() == 2)
        (refused,) = session.get(f"{ADMIN}?durable", timeout=DEADLINE)
        assert refused.err is not None
        assert "2 others wait" in refused.err.payload.to_string()
        disk.moving.set()
        for answers in waiting:
            (reply,) = answers
            assert reply.ok is not None


# ---- a disk that fails, or cannot follow


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_loses_nothing_and_stops_nobody(
    tmp_path: Path, disk: Disk, number: int
) -> None:
    heard: list[bytes] = []
    session, port = listening()
    with (
        session,
        dialling(port) as other,
        Recorder(tmp_path / "log", "rec/**", session=session) as recorder,
        session.declare_subscriber("**", lambda sample: heard.append(bytes(sample.payload))),
    ):
        publisher = publisher_for(other, "rec/a", congestion_control=BLOCK)
        publisher.put(b"before")
        until(lambda: recorder.stats().durable == 1)
        disk.fault = number
        for each in range(100):
            publisher.put(b"during %d" % each)
        other.put("live", b"not recorded", congestion_control=BLOCK)
        until(lambda: len(heard) == 102)
        failure = until(lambda: recorder.stats().failure)
        assert errno.errorcode[number] in str(failure)
        with pytest.raises(zenlake.ZError, match=f"only 1 is.*{errno.errorcode[number]}"):
            recorder.durable(0.05)
        assert recorder.mark.offset == 1
        disk.fault = None
        assert recorder.durable(DEADLINE).offset == 101
        assert recorder.stats().failure is None
        publisher.put(b"after")
        until(lambda: recorder.stats().received == 102)
    assert payloads(tmp_path / "log") == [*heard[:101], b"after"]
    assert heard[101] == b"not recorded"
    assert lost(tmp_path / "log") == []
    settled(tmp_path / "log")


def test_a_log_that_is_moved_away_is_written_where_it_is(tmp_path: Path) -> None:
    with recording(tmp_path / "log") as (recorder, port), dialling(port) as session:
        publisher = publisher_for(session, "rec/a", congestion_control=BLOCK)
        publisher.put(b"one")
        assert asked(session, "durable")["disk_left"] > 0
        (tmp_path / "log").rename(tmp_path / "elsewhere")
        publisher.put(b"two")
        said = asked(session, "durable")
        assert (said["durable"], said["disk_left"], said["failure"]) == (2, 0, None)
        assert recorder.stats().durable == 2
    assert payloads(tmp_path / "elsewhere") == [b"one", b"two"]


def test_block_makes_the_publisher_wait_and_bounds_what_waits(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tapes, "WAITING_BYTES", 1 << 20)
    total, size = 400, 60_000
    with recording(tmp_path / "log") as (recorder, port), dialling(port) as session:
        publisher = publisher_for(session, "rec/a", congestion_control=BLOCK)
        disk.moving.clear()
        sent: list[int] = []

        def publish() -> None:
            for number in range(total):
                publisher.put(b"%d " % number + b"x" * size)
                sent.append(number)

        thread = threading.Thread(target=publish)
        thread.start()
        until(lambda: recorder.stats().waiting_bytes >= 1 << 20)
        before = recorder.stats()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            assert recorder.stats().received == before.received, "it reads on"
            assert len(sent) < total
        assert before.waiting_bytes <= (1 << 20) + 65_535
        disk.moving.set()
        thread.join(DEADLINE)
        assert sent == list(range(total))
        assert asked(session, "durable")["durable"] == total
        assert recorder.stats().waiting_bytes == 0
    numbers = [int(each.split(b" ", 1)[0]) for each in payloads(tmp_path / "log")]
    assert numbers == list(range(total))
    assert lost(tmp_path / "log") == []


def test_block_makes_an_own_put_wait(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tapes, "WAITING_BYTES", 10_000)
    with recording(tmp_path / "log") as (recorder, _):
        disk.moving.clear()

        def publish() -> None:
            for _ in range(30):
                recorder.session.put("rec/a", b"x" * 1000)

        thread = threading.Thread(target=publish)
        thread.start()
        until(lambda: recorder.stats().waiting_bytes >= 10_000)
        assert thread.is_alive()
        assert recorder.stats().received < 15
        disk.moving.set()
        thread.join(DEADLINE)
        assert recorder.durable(DEADLINE).offset == 30


def test_drop_says_exactly_what_is_missing(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tapes, "WAITING_BYTES", 100_000)
    total = 300
    with recording(tmp_path / "log", overflow="drop") as (recorder, port):
        with dialling(port) as session:
            publisher = publisher_for(session, "rec/a", congestion_control=BLOCK)
            disk.moving.clear()
            for number in range(total):
                publisher.put(b"%d " % number + b"x" * 1000)
            until(lambda: recorder.stats().received + recorder.stats().dropped == total)
            dropped = recorder.stats().dropped
            assert 120 < dropped < 210
            disk.moving.set()
            until(lambda: recorder.stats().waiting_bytes == 0)
            publisher.put(b"300 ")
            assert asked(session, "durable")["dropped"] == dropped
        stats = recorder.stats()
        assert (stats.gaps, stats.lost, stats.dropped) == (1, dropped, dropped)
    numbers = [int(each.split(b" ", 1)[0]) for each in payloads(tmp_path / "log")]
    assert numbers == [*range(total - dropped), total]
    (found,) = lost(tmp_path / "log")
    assert (found.kind, found.offset, found.missing) == ("dropped", total - dropped, dropped)


# ---- the end


def test_close_makes_all_durable_and_the_log_free(tmp_path: Path) -> None:
    with (
        recording(tmp_path / "log", sync_seconds=86_400.0) as (recorder, port),
        dialling(port) as session,
    ):
        publisher = publisher_for(session, "rec/a", congestion_control=BLOCK)
        for number in range(500):
            publisher.put(b"%d" % number)
        until(lambda: recorder.stats().received == 500)
        assert recorder.stats().durable == 0
        recorder.close()
        recorder.close()
        assert recorder.stats().durable == 500
        names = [thread.name for thread in threading.enumerate()]
        assert "zenlake log" not in names
        settled(tmp_path / "log")
        assert payloads(tmp_path / "log") == [b"%d" % number for number in range(500)]
    with Recorder(tmp_path / "log", "rec/**", config=configured()) as again:
        assert again.mark.offset == 500
        assert again.stats()[:3] == (0, 0, 500)
        again.session.put("rec/a", b"more")
        assert again.durable(DEADLINE).offset == 501


def test_close_on_a_disk_that_fails_says_how_many(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tapes, "CLOSE_SECONDS", 0.2)
    recorder = Recorder(tmp_path / "log", "rec/**", config=configured())
    recorder.session.put("rec/a", b"0")
    recorder.durable(DEADLINE)
    disk.fault = errno.EIO
    for _ in range(3):
        recorder.session.put("rec/a", b"lost")
    with pytest.raises(zenlake.ZError, match=r"3 samples not durable: .*EIO"):
        recorder.close()
    recorder.close()
    assert recorder.stats().dropped == 3
    disk.fault = None
    assert payloads(tmp_path / "log") == [b"0"]
    with Recorder(tmp_path / "log", "rec/**", config=configured()) as again:
        assert again.mark.offset == 1


def test_close_waits_for_a_disk_that_works_again(tmp_path: Path, disk: Disk) -> None:
    recorder = Recorder(tmp_path / "log", "rec/**", config=configured())
    disk.fault = errno.ENOSPC
    recorder.session.put("rec/a", b"late")
    until(lambda: recorder.stats().failure)
    timer = threading.Timer(0.2, setattr, (disk, "fault", None))
    timer.start()
    recorder.close()
    timer.join()
    assert payloads(tmp_path / "log") == [b"late"]
    settled(tmp_path / "log")


def test_a_signal_during_close_leaves_it_to_be_closed_again(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "log", "rec/**", config=configured())
    disk.moving.clear()
    recorder.session.put("rec/a", b"x")
    assert disk.waits.wait(DEADLINE)
    with monkeypatch.context() as patched:
        patched.setattr(recorder.sink, "join", lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            recorder.close()
    with pytest.raises(LogLocked):
        Writer(tmp_path / "log")
    disk.moving.set()
    recorder.close()
    assert payloads(tmp_path / "log") == [b"x"]
    settled(tmp_path / "log")


def test_a_signal_while_recording_seals_the_log(tmp_path: Path) -> None:
    def record() -> None:
        with Recorder(tmp_path / "log", "rec/**", config=configured()) as recorder:
            recorder.session.put("rec/a", b"x")
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        record()
    assert payloads(tmp_path / "log") == [b"x"]
    settled(tmp_path / "log")


def test_the_session_of_its_user_stays_open(tmp_path: Path) -> None:
    heard: list[bytes] = []
    with opened() as session:
        with Recorder(tmp_path / "log", "rec/**", session=session) as recorder:
            assert recorder.session is session
            session.put("rec/a", b"one")
        assert session._core.watchers == ()
        with session.declare_subscriber("rec/**", lambda s: heard.append(bytes(s.payload))):
            session.put("rec/a", b"two")
            until(lambda: heard == [b"two"])
        assert list(session.get(ADMIN, timeout=DEADLINE)) == []
    assert payloads(tmp_path / "log") == [b"one"]


def test_the_session_of_its_user_may_close_first(tmp_path: Path) -> None:
    with opened() as session:
        recorder = Recorder(tmp_path / "log", "rec/**", session=session)
        session.put("rec/a", b"one")
    recorder.close()
    assert payloads(tmp_path / "log") == [b"one"]
    assert lost(tmp_path / "log") == []
    settled(tmp_path / "log")


def test_two_partitions_at_once_and_none_twice(tmp_path: Path) -> None:
    with opened() as session:
        zero = Recorder(tmp_path / "log", "rec/a/**", session=session)
        one = Recorder(tmp_path / "log", ["rec/b/**", "rec/a/x"], session=session, partition=1)
        with zero, one:
            with pytest.raises(LogLocked, match=f"process {os.getpid()}"):
                Recorder(tmp_path / "log", "rec/**", session=session, partition=1)
            for number in range(50):
                session.put(f"rec/{'ab'[number % 2]}/x", b"%d" % number)
            found = {
                key.rpartition("/")[2]: json.loads(text)["received"]
                for key, text in (
                    (str(reply.ok.key_expr), reply.ok.payload.to_string())
                    for reply in session.get(ADMIN, timeout=DEADLINE)
                    if reply.ok
                )
            }
            assert found == {"0": 25, "1": 50}
            assert zero.writer.log_id == one.writer.log_id
    assert Log(tmp_path / "log").partitions() == [0, 1]
    assert payloads(tmp_path / "log", 0) == [b"%d" % number for number in range(0, 50, 2)]
    assert payloads(tmp_path / "log", 1) == [b"%d" % number for number in range(50)]
    settled(tmp_path / "log", 0)
    settled(tmp_path / "log", 1)


@pytest.mark.process
def test_the_child_of_a_fork_leaves_the_log_alone(tmp_path: Path) -> None:
    with Recorder(tmp_path / "log", "rec/**", config=configured()) as recorder:
        recorder.session.put("rec/a", b"one")
        recorder.durable(DEADLINE)
        pid = os.fork()
        if not pid:
            try:
                recorder.close()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        with pytest.raises(LogLocked):
            Writer(tmp_path / "log")
        assert recorder.mark.state != SETTLED
        recorder.session.put("rec/a", b"two")
    assert payloads(tmp_path / "log") == [b"one", b"two"]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_and_in_several_segments(tmp_path: Path, codec: str) -> None:
    options: dict[str, Any] = {"codec": codec, "rotate_bytes": 4096, "sync_samples": 50}
    with Recorder(tmp_path / "log", "rec/**", config=configured(), **options) as recorder:
        for number in range(500):
            recorder.session.put(f"rec/{number % 7}", b"%d " % number * 20)
            if number % 100 == 0:
                recorder.durable(DEADLINE)
    assert payloads(tmp_path / "log") == [b"%d " % number * 20 for number in range(500)]
    assert len(list((tmp_path / "log" / "0").glob("*.zlog"))) > 1
