"""Replay: the same samples at the same times, other keys, and a second recording like the first."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import zenoh
from hypothesis import given
from hypothesis import strategies as st

import zenlake
from tests.golden.proxy import free_port
from tests.support.interop_pair import open_session
from tests.support.session_pairs import dialling, opened
from tests.support.waiting import until
from zenlake.api.pubsub.arrow import ArrowBatches
from zenlake.errors import InvalidKeyExpr, ZError
from zenlake.keytable import KeyTable
from zenlake.log.block import OpenBlock, SourceLink
from zenlake.log.format import BATCH_ENTRY, Entries
from zenlake.log.read.log import Log
from zenlake.log.read.reader import Reader
from zenlake.log.read.spans import SampleSpan
from zenlake.log.replay.encoded_sender import SendOutcome
from zenlake.log.replay.replayer import (
    LONGEST_SLEEP,
    Remap,
    Replayer,
    ReplayPiece,
    ReplayStats,
    due_times,
    merge,
    pieces,
)
from zenlake.log.write.recorder import Recorder
from zenlake.log.write.writer import Writer
from zenlake.runtime import kernel_loader
from zenlake.wire.cursor import ByteReader as Cursor
from zenlake.wire.cursor import ByteWriter as Bytes
from zenlake.wire.enums import Mapping
from zenlake.wire.network import NETWORK
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.slow

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
NOON = 1_800_000_000 * SECOND
AS_RECORDED = [
    "key",
    "kind",
    "payload",
    "encoding",
    "schema",
    "timestamp",
    "source",
    "attachment",
    "priority",
    "congestion_control",
    "express",
    "reliable",
]
ZID = WireZenohId.parse("5a1ad")


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    kernel_loader.load()


class Batch(NamedTuple):
    """Messages that were received together."""

    time: int
    payloads: Sequence[bytes]
    key: str = "t/a"
    link: int = 0
    reliable: bool = True
    timestamp: WireTimestamp | None = None


def record(path: Path, *blocks: Sequence[Batch], partition: int = 0) -> Path:
    """A log of these blocks; every key is declared as the id 7 of its link."""
    with Writer(path, partition) as writer:
        for batches in blocks:
            block = OpenBlock()
            for batch in batches:
                link = block.link(SourceLink(batch.link, 2, ZID.raw))
                assert link is not None
                assert block.key(link, Mapping.SENDER << 16 | 7, b"", batch.key.encode())
                w = Bytes()
                for payload in batch.payloads:
                    body = Put(payload, batch.timestamp)
                    NETWORK.write(w, Push(WireExpr(7, "", Mapping.SENDER), body))
                block.add(link, batch.reliable, batch.time, len(batch.payloads), bytes(w.out))
            writer.write([block])
    return path


class Clock:
    """A virtual one: sleeping takes as long as it is asked for, and `slow` more."""

    def __init__(self, slow: float = 0.0) -> None:
        self.now = 1000.0
        self.slow = slow
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.sleeps.append(seconds)
        self.now += seconds + self.slow


class Out:
    """In place of the session: when which payloads left."""

    def __init__(self, clock: Clock, takes: float = 0.0) -> None:
        self.clock = clock
        self.takes = takes
        self.left: list[tuple[float, bytes]] = []

    def put(self, data: memoryview, keys: Any, batches: Entries) -> SendOutcome:
        r = Cursor(bytes(data))
        count = 0
        self.clock.now += self.takes
        while r.remaining():
            push = NETWORK.read(r)
            assert isinstance(push, Push)
            assert isinstance(push.body, Put)
            self.left.append((self.clock.now, bytes(push.body.payload)))  # type: ignore[arg-type]
            count += 1
        assert count == int(batches["count"].sum())
        return SendOutcome(count, 0, count)

    def flush(self) -> None: ...


@pytest.fixture
def session() -> Iterator[zenlake.Session]:
    with opened() as found:
        yield found


def timed(
    log: Path, session: zenlake.Session, slow: float = 0.0, takes: float = 0.0, **options: Any
) -> tuple[list[tuple[float, bytes]], Replayer, Clock]:
    """Replay a log; return the messages and their times since the beginning."""
    clock = Clock(slow)
    replayer = Replayer(log, session, clock=clock, sleep=clock.sleep, **options)
    out = Out(clock, takes)
    replayer._out = out  # type: ignore[assignment]
    began = clock.now
    replayer.run()
    return [(when - began, payload) for when, payload in out.left], replayer, clock


# ---- time

STEPS = [0, 1, 1, 7, 250, 251, 251, 1000, 1003, 4500]  # Milliseconds between samples.


def steps(path: Path) -> Path:
    batches = [
        Batch(NOON + step * MILLISECOND, [b"%d" % number]) for number, step in enumerate(STEPS)
    ]
    return record(path, batches[:4], batches[4:5], batches[5:])


@pytest.mark.parametrize("speed", [1.0, 2.0, 0.5, 37.5])
def test_the_time_between_samples_is_kept(
    tmp_path: Path, session: zenlake.Session, speed: float
) -> None:
    left, replayer, _ = timed(steps(tmp_path / "log"), session, speed=speed)
    assert [payload for _, payload in left] == [b"%d" % i for i in range(len(STEPS))]
    assert [when for when, _ in left] == pytest.approx(
        [step / 1000 / speed for step in STEPS], abs=1e-6
    )
    assert replayer.stats.lateness < 1e-6
    assert replayer.stats.samples == len(STEPS)


def test_at_full_speed_nobody_sleeps(tmp_path: Path, session: zenlake.Session) -> None:
    left, replayer, clock = timed(steps(tmp_path / "log"), session, speed=None)
    assert [when for when, _ in left] == [0.0] * len(STEPS)
    assert not clock.sleeps
    assert replayer.stats.lateness == 0


def test_lateness_does_not_add_up(tmp_path: Path, session: zenlake.Session) -> None:
    """A sleep that is too long by 0.3 ms and a put that takes 0.2 ms delay what is due by no more
    than that, from the first to the last."""
    count = 2000
    batches = [Batch(NOON + i * 3 * MILLISECOND, [b"%d" % i]) for i in range(count)]
    left, replayer, _ = timed(
        record(tmp_path / "log", batches[:500], batches[500:]), session, slow=3e-4, takes=2e-4
    )
    late = [when - i * 3e-3 for i, (when, _) in enumerate(left)]
    assert len(late) == count
    assert max(late) < 1e-3
    assert min(late) >= 0
    assert late[-1] == pytest.approx(late[1], abs=1e-6)
    assert replayer.stats.lateness == pytest.approx(max(late), abs=1e-6)


def test_what_is_late_is_put_together(tmp_path: Path, session: zenlake.Session) -> None:
    batches = [Batch(NOON + i * MILLISECOND, [b"%d" % i]) for i in range(100)]
    left, replayer, _ = timed(record(tmp_path / "log", batches), session, takes=0.02)
    assert [payload for _, payload in left] == [b"%d" % i for i in range(100)]
    assert len({when for when, _ in left}) < 10
    assert 0.02 <= replayer.stats.lateness < 0.05


def test_a_clock_that_was_set_back_holds_up_nothing(
    tmp_path: Path, session: zenlake.Session
) -> None:
    times = [0, 100, -5000, -4000, 200]
    batches = [Batch(NOON + t * MILLISECOND, [b"%d" % i]) for i, t in enumerate(times)]
    left, _, _ = timed(record(tmp_path / "log", batches[:3], batches[3:]), session)
    assert [when for when, _ in left] == pytest.approx([0, 0.1, 0.1, 0.1, 0.2], abs=1e-6)


def test_long_waits_are_cut_so_that_progress_is_told(
    tmp_path: Path, session: zenlake.Session
) -> None:
    log = record(tmp_path / "log", [Batch(NOON, [b"a"]), Batch(NOON + 10 * SECOND, [b"b"])])
    told: list[ReplayStats] = []
    left, _, clock = timed(log, session, on_progress=told.append)
    assert [when for when, _ in left] == pytest.approx([0, 10], abs=1e-6)
    assert max(clock.sleeps) <= LONGEST_SLEEP
    assert len(told) >= 10
    assert [stats.done for stats in told] == sorted(stats.done for stats in told)
    assert (told[-1].done, told[-1].total, told[-1].rounds) == (2, 2, 1)
    assert told[-1].time == NOON + 10 * SECOND


def test_a_million_seconds_are_exact_to_the_microsecond() -> None:
    times = NOON + np.arange(0, 10**6, 1000, dtype=np.int64) * SECOND + 1000
    due = due_times(times, NOON, 5e5, 1.0)
    assert np.abs(due - (5e5 + np.arange(0, 10**6, 1000) + 1e-6)).max() < 1e-7


# ---- partitions


def piece_of(times: list[int], number: int, base: int = 0) -> SampleSpan:
    batches = np.zeros(len(times), BATCH_ENTRY)
    batches["time"], batches["count"], batches["length"] = times, 1, 1
    keys: Any = KeyTable()
    return SampleSpan(base, batches, memoryview(bytes([number]) * len(times)), keys)


@given(
    st.lists(st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=4), min_size=1, max_size=4)
)
def test_partitions_are_merged_by_time(partitions: list[list[list[int]]]) -> None:
    def stream(number: int) -> Iterator[ReplayPiece]:
        return pieces((piece_of(times, number) for times in partitions[number]), number)

    wanted = sorted(
        (int(time), number)
        for number in range(len(partitions))
        for piece in stream(number)
        for time in piece.times
    )
    found: list[tuple[int, int]] = []
    for piece in merge([stream(number) for number in range(len(partitions))]):
        assert len(piece.times) == len(piece.data) == len(piece.batches)
        assert set(bytes(piece.data)) == {piece.partition}
        found += [(int(time), piece.partition) for time in piece.times]
    assert found == wanted


def test_two_partitions_are_one_recording(tmp_path: Path, session: zenlake.Session) -> None:
    log = tmp_path / "log"
    record(log, [Batch(NOON, [b"a"]), Batch(NOON + 2 * SECOND, [b"c"])], partition=0)
    record(log, [Batch(NOON + SECOND, [b"b"]), Batch(NOON + 3 * SECOND, [b"d"])], partition=1)
    left, replayer, _ = timed(log, session)
    found = [(round(when, 6), payload) for when, payload in left]
    assert found == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert (replayer.stats.done, replayer.stats.total) == (4, 4)
    left, _, _ = timed(log, session, partition=1)
    assert [payload for _, payload in left] == [b"b", b"d"]


# ---- what is replayed


def received(subscriber: Any, count: int) -> list[dict[str, Any]]:
    found: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in found) < count:
        found.append(subscriber.recv())
    return [row for batch in found for row in batch.select(AS_RECORDED).to_pylist()]


def replayed(log: Path, **options: Any) -> tuple[list[tuple[str, bytes]], ReplayStats]:
    """Keys and payloads that a subscriber of the session gets, at full speed."""
    with opened() as session, session.declare_subscriber("**", ArrowBatches()) as got:
        stats = Replayer(log, session, speed=None, **options).run()
        found = received(got, stats.samples)
        assert got.try_recv() is None
    return [(row["key"], row["payload"]) for row in found], stats


def hundred(path: Path) -> Path:
    """Ten batches of ten, a second apart, on two keys in turns; in three blocks."""
    batches = [
        Batch(NOON + i * SECOND, [b"%d" % (i * 10 + j) for j in range(10)], f"t/{i % 2}", i % 2)
        for i in range(10)
    ]
    return record(path, batches[:4], batches[4:5], batches[5:])


def numbers(first: int, stop: int) -> list[tuple[str, bytes]]:
    return [(f"t/{i // 10 % 2}", b"%d" % i) for i in range(first, stop)]


def test_everything_in_order(tmp_path: Path) -> None:
    found, stats = replayed(hundred(tmp_path / "log"))
    assert found == numbers(0, 100)
    assert stats.bytes == sum(len(payload) for _, payload in found)
    assert (stats.samples, stats.heard, stats.dropped, stats.bad_keys) == (100, 100, 0, 0)


@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 1), (13, 57), (40, 50), (99, 100)])
def test_a_range_of_offsets(tmp_path: Path, start: int, end: int) -> None:
    found, stats = replayed(hundred(tmp_path / "log"), start=start, end=end)
    assert found == numbers(start, end)
    assert (stats.done, stats.total) == (end - start, end - start)


@pytest.mark.parametrize(("start", "end"), [(0, 10), (2, 3), (3, 8), (-5, 50)])
def test_a_range_of_time(tmp_path: Path, start: int, end: int) -> None:
    times = {"start_time": NOON + start * SECOND, "end_time": NOON + end * SECOND}
    found, _ = replayed(hundred(tmp_path / "log"), **times)
    assert found == numbers(max(0, start) * 10, min(10, end) * 10)


def test_between_two_samples_there_is_nothing(tmp_path: Path) -> None:
    times = {"start_time": NOON + 1, "end_time": NOON + 2}
    assert replayed(hundred(tmp_path / "log"), **times)[0] == []
    assert replayed(hundred(tmp_path / "again"), **times, loop=True)[0] == []


def test_only_some_keys(tmp_path: Path) -> None:
    found, stats = replayed(hundred(tmp_path / "log"), key_expr="*/1")
    assert found == [sample for sample in numbers(0, 100) if sample[0] == "t/1"]
    assert (stats.samples, stats.done, stats.total) == (50, 100, 100)
    assert replayed(hundred(tmp_path / "other"), key_expr="u/**")[0] == []


def test_remapped_keys_take_the_first_rule_that_fits(tmp_path: Path) -> None:
    found, _ = replayed(
        hundred(tmp_path / "log"), key_expr="t/**", remap=[("t/1", "one"), ("t", "sim/t")]
    )
    names = {"t/0": "sim/t/0", "t/1": "one"}
    assert found == [(names[key], payload) for key, payload in numbers(0, 100)]


def test_links_that_use_one_id_for_two_keys_and_best_effort(tmp_path: Path) -> None:
    log = record(
        tmp_path / "log",
        [
            Batch(NOON, [b"0", b"1"], "t/a", link=0, reliable=False),
            Batch(NOON, [b"2"], "t/b", link=1),
            Batch(NOON, [b"3"], "t/a", link=0),
        ],
        [Batch(NOON, [b"4"], "t/c", link=2), Batch(NOON, [b"5"], "t/a", link=0, reliable=False)],
    )
    with opened() as session, session.declare_subscriber("**", ArrowBatches()) as got:
        Replayer(log, session, speed=None).run()
        found = [(row["key"], row["payload"], row["reliable"]) for row in received(got, 6)]
    assert found == [
        ("t/a", b"0", False),
        ("t/a", b"1", False),
        ("t/b", b"2", True),
        ("t/a", b"3", True),
        ("t/c", b"4", True),
        ("t/a", b"5", False),
    ]


@pytest.mark.parametrize("which", ["original", "new"])
def test_timestamps_are_the_recorded_ones_or_new(tmp_path: Path, which: str) -> None:
    stamp = WireTimestamp(1_700_000_000 << 32, ZID)
    log = record(
        tmp_path / "log", [Batch(NOON, [b"a"], timestamp=stamp), Batch(NOON, [b"b"], "t/b", link=1)]
    )
    with opened() as session, session.declare_subscriber("**", ArrowBatches()) as got:
        before = session.new_timestamp().wire.time
        Replayer(log, session, speed=None, timestamps=which).run()
        first, second = received(got, 2)
        own = str(session.zid())
    assert second["timestamp"] is None
    if which == "original":
        assert first["timestamp"] == {"time": stamp.time, "id": str(stamp.id)}
    else:
        assert first["timestamp"]["id"] == own
        assert first["timestamp"]["time"] > before


# ---- again, and the end


def test_it_loops_until_it_is_stopped(tmp_path: Path, session: zenlake.Session) -> None:
    log = record(tmp_path / "log", [Batch(NOON, [b"a"]), Batch(NOON + SECOND, [b"b"])])
    clock = Clock()
    replayer = Replayer(log, session, loop=True, clock=clock, sleep=clock.sleep)
    out = Out(clock)
    replayer._out = out  # type: ignore[assignment]
    original = out.put

    def put(data: memoryview, keys: Any, batches: Entries) -> SendOutcome:
        if len(out.left) == 5:
            replayer.stop()
        return original(data, keys, batches)

    out.put = put  # type: ignore[method-assign]
    stats = replayer.run()
    assert [(when - 1000.0, payload) for when, payload in out.left] == [
        (0, b"a"),
        (1, b"b"),
        (1, b"a"),
        (2, b"b"),
        (2, b"a"),
        (3, b"b"),
    ]
    assert (stats.samples, stats.rounds) == (6, 3)


def test_stop_ends_a_long_wait_at_once(tmp_path: Path, session: zenlake.Session) -> None:
    log = record(tmp_path / "log", [Batch(NOON, [b"a"]), Batch(NOON + 10**6 * SECOND, [b"b"])])
    replayer = Replayer(log, session)
    thread = threading.Thread(target=replayer.run)
    thread.start()
    until(lambda: replayer.stats.samples == 1)
    replayer.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert replayer.stats.samples == 1
    assert replayer.stats.rounds == 0


def test_what_comes_meanwhile_is_not_replayed(tmp_path: Path) -> None:
    log = record(tmp_path / "log", [Batch(NOON, [b"a"])])
    with opened() as session, session.declare_subscriber("**") as got:
        replayer = Replayer(log, session, speed=None, end_time=NOON + SECOND)
        record(log, [Batch(NOON + SECOND, [b"b"])])
        assert replayer.run().samples == 1
        assert bytes(got.recv().payload) == b"a"
        assert got.try_recv() is None


def test_an_empty_log(tmp_path: Path) -> None:
    Writer(tmp_path / "log").close()
    found, stats = replayed(tmp_path / "log", loop=True)
    assert found == []
    assert (stats.samples, stats.total, stats.rounds) == (0, 0, 0)


def test_wrong_arguments_and_a_second_run_are_refused(
    tmp_path: Path, session: zenlake.Session
) -> None:
    log = record(tmp_path / "log", [Batch(NOON, [b"a"])])
    record(log, [Batch(NOON, [b"b"])], partition=1)
    with pytest.raises(ZError, match="is not a log"):
        Replayer(tmp_path, session)
    for speed in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ZError, match="speed"):
            Replayer(log, session, speed=speed)
    with pytest.raises(ZError, match="timestamps"):
        Replayer(log, session, timestamps="none")
    with pytest.raises(ZError, match=r"one of \[0, 1\]"):
        Replayer(log, session, start=0)
    with pytest.raises(InvalidKeyExpr):
        Replayer(log, session, key_expr="a//b")
    replayer = Replayer(log, session, speed=None)
    replayer.run()
    with pytest.raises(ZError, match="once"):
        replayer.run()


# ---- keys


@pytest.mark.parametrize(
    ("start", "to", "key", "wanted"),
    [
        ("a", "b", "a", "b"),
        ("a", "b", "a/x/y", "b/x/y"),
        ("a", "b", "ab", "ab"),
        ("a/b", "c", "a", "a"),
        ("a/*", "c", "a/b/d", "c/d"),
        ("a/x$*", "c", "a/xyz/d", "c/d"),
        ("a/x$*", "c", "a/yz/d", "a/yz/d"),
        ("", "replay", "a/b", "replay/a/b"),
        ("a", "", "a/b", "b"),
        ("*", "c/d", "a", "c/d"),
    ],
)
def test_a_rule_takes_whole_chunks(start: str, to: str, key: str, wanted: str) -> None:
    assert Remap([(start, to)])(key) == wanted


def test_the_first_rule_that_fits_holds() -> None:
    remap = Remap([("a/b", "first"), ("a", "second"), ("first", "third")])
    assert [remap(key) for key in ("a/b/c", "a/c", "x")] == ["first/c", "second/c", "x"]


@pytest.mark.parametrize(("start", "to"), [("a/**", "b"), ("a", "b/*"), ("a//b", "c"), ("a", "b/")])
def test_rules_that_mean_nothing_are_refused(start: str, to: str) -> None:
    with pytest.raises(InvalidKeyExpr):
        Remap([(start, to)])


def test_a_rule_that_leaves_no_key_leaves_the_sample_out(tmp_path: Path) -> None:
    log = record(tmp_path / "log", [Batch(NOON, [b"a"], "t"), Batch(NOON, [b"b"], "t/x", link=1)])
    found, stats = replayed(log, remap=[("t", "")])
    assert found == [("x", b"b")]
    assert stats.bad_keys == 1


# ---- a recording of a replay


def contents(log: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in Reader(log).batches(columns=AS_RECORDED):
        found += batch.to_pylist()
    return found


def publish(session: Any, api: Any, count: int) -> None:
    """All that a sample can have."""
    block = api.CongestionControl.BLOCK
    for i in range(count):
        session.put(
            f"t/{i % 7}",
            b"%d" % i,
            encoding="text/plain;utf-8" if i % 2 else "zenoh/bytes",
            attachment=b"a%d" % i if i % 3 == 0 else None,
            timestamp=session.new_timestamp() if i % 4 == 0 else None,
            source_info=api.SourceInfo(session.id, i) if i % 6 == 0 else None,
            congestion_control=block,
            express=i % 5 == 0,
        )
    session.put("t/large", bytes(300_000), congestion_control=block)
    session.delete("t/1", congestion_control=block)


def recorded(path: Path, key: str, at: int, count: int, feed: Any) -> list[dict[str, Any]]:
    """Record with a listening recorder until `count` samples are durable; return them."""
    config = zenlake.Config()
    config.insert_json5("listen/endpoints", f'["tcp/127.0.0.1:{at}"]')
    config.insert_json5("scouting/multicast/enabled", "false")
    with Recorder(path, key, config=config) as recorder:
        feed()
        until(lambda: recorder.stats().durable >= count)
    return contents(path)


@pytest.mark.parametrize("api", [zenlake, zenoh], ids=["ours", "reference"])
def test_a_recording_of_a_replay_is_the_recording(tmp_path: Path, api: Any) -> None:
    count, port = 400, free_port()
    at = f"tcp/127.0.0.1:{port}"

    def live() -> None:
        session = open_session(api, "client", connect=(at,))
        try:
            publish(session, api, count)
        finally:
            session.close()

    first = recorded(tmp_path / "first", "t/**", port, count + 2, live)

    def again() -> None:
        with dialling(port, mode="client") as session:
            stats = Replayer(tmp_path / "first", session, speed=None).run()
            assert (stats.samples, stats.dropped) == (count + 2, 0)

    second = recorded(tmp_path / "second", "t/**", port, count + 2, again)
    assert len(first) == count + 2
    assert all(any(row[name] is not None for row in first) for name in AS_RECORDED)
    assert second == first


def test_a_recording_of_a_replay_in_two_partitions_with_all_lanes(tmp_path: Path) -> None:
    """Lanes overtake each other: of each the order is kept."""
    port = free_port()
    levels = [zenlake.Priority.REAL_TIME, zenlake.Priority.DATA, zenlake.Priority.BACKGROUND]

    def live() -> None:
        with (
            dialling(port, mode="client") as one,
            one.declare_publisher("t/x", reliability=zenlake.Reliability.BEST_EFFORT) as loose,
        ):
            for i in range(300):
                one.put(f"t/{i % 3}", b"%d" % i, priority=levels[i % 3])
                if i % 10 == 0:
                    loose.put(b"loose %d" % i)

    first = recorded(tmp_path / "first", "t/**", port, 330, live)

    def again() -> None:
        with dialling(port, mode="client") as session:
            Replayer(tmp_path / "first", session, speed=None).run()

    second = recorded(tmp_path / "second", "t/**", port, 330, again)
    assert {row["reliable"] for row in first} == {True, False}
    for priority in {row["priority"] for row in first}:
        for reliable in (True, False):

            def of_lane(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
                return [
                    row
                    for row in rows
                    if (row["priority"], row["reliable"]) == (priority, reliable)  # noqa: B023
                ]

            assert of_lane(second) == of_lane(first)


def test_a_damaged_log_is_not_replayed_as_if_it_were_whole(tmp_path: Path) -> None:
    log = hundred(tmp_path / "log")
    (segment,) = (log / "0").glob("*.zlog")
    data = bytearray(segment.read_bytes())
    data[-10] ^= 1
    segment.write_bytes(data)
    with opened() as session, pytest.raises(ZError, match="damaged"):
        Replayer(log, session, speed=None).run()


def test_the_log_may_be_open_already(tmp_path: Path) -> None:
    log = Log(hundred(tmp_path / "log"))
    with opened() as session:
        assert Replayer(log, session, speed=None).run().samples == 100
