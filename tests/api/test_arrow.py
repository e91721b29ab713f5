"""Record batches out of a subscriber and into a session: beside eclipse-zenoh, and our own."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import zenoh

import zenlake
from tests.golden.proxy import free_port
from tests.support.interop_pair import open_session
from tests.support.waiting import until, until_found
from zenlake.api.pubsub.arrow import ArrowBatches
from zenlake.columnar.schema import SAMPLE
from zenlake.runtime import kernel_loader

pytestmark = [pytest.mark.slow, pytest.mark.kernel]

ROWS = 3000
PATIENCE = 30.0
LOW = zenoh.Priority.DATA_LOW


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    kernel_loader.load()


Pair = Callable[..., tuple[Any, Any]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two sessions: (who listens, who has connected to it), each of the module that is given."""
    opened: list[Any] = []

    def make(listener: Any, other: Any, **settings: Any) -> tuple[Any, Any]:
        at = f"tcp/127.0.0.1:{free_port()}"
        opened.append(open_session(listener, "peer", listen=at, settings=settings))
        opened.append(open_session(other, "peer", connect=(at,), settings=settings))
        return opened[-2], opened[-1]

    yield make
    for session in reversed(opened):
        session.close()


def known(session: Any, key: str) -> None:
    """Returns when `session` knows of a subscriber to `key`."""
    with session.declare_publisher(key) as publisher:
        until(lambda: publisher.matching_status.matching, bool, PATIENCE)


def rows_of(subscriber: Any, count: int) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < count:
        batch = subscriber.recv()
        assert batch.schema == SAMPLE
        batches.append(batch)
    return pa.Table.from_batches(batches)


def numbers(count: int = ROWS, keys: int = 7, **columns: Any) -> pa.RecordBatch:
    """Make numbered rows that are not dropped, however slowly they are taken."""
    return pa.record_batch(
        {
            "congestion_control": ["block"] * count,
            "key": [f"t/{i % keys}" for i in range(count)],
            "payload": [b"%d" % i for i in range(count)],
            **columns,
        }
    )


def test_what_the_reference_puts_comes_as_record_batches(pair: Pair) -> None:
    ours, theirs = pair(zenlake, zenoh)
    with ours.declare_subscriber("t/**", ArrowBatches(max_rows=1000)) as subscriber:
        known(theirs, "t/1")
        for i in range(ROWS):
            theirs.put(
                f"t/{i % 7}",
                b"%d" % i,
                encoding="text/plain;utf-8",
                attachment=b"a",
                congestion_control=zenoh.CongestionControl.BLOCK,
            )
        theirs.delete("t/1", congestion_control=zenoh.CongestionControl.BLOCK)
        table = rows_of(subscriber, ROWS + 1)
    assert table.num_rows == ROWS + 1
    last = table.slice(ROWS).to_pylist()[0]
    assert (last["key"], last["kind"], last["payload"]) == ("t/1", "delete", None)
    table = table.slice(0, ROWS)
    assert table["payload"].to_pylist() == [b"%d" % i for i in range(ROWS)]
    assert table["key"].to_pylist() == [f"t/{i % 7}" for i in range(ROWS)]
    assert set(table["encoding"].to_pylist()) == {"text/plain"}
    assert set(table["schema"].to_pylist()) == {"utf-8"}
    assert set(table["attachment"].to_pylist()) == {b"a"}
    assert set(table["congestion_control"].to_pylist()) == {"block"}


def test_large_values_of_the_reference_among_small_ones(pair: Pair) -> None:
    """In order, though they take different ways: alone, by the run and in fragments."""
    ours, theirs = pair(zenlake, zenoh)
    sizes = [10, 70_000, 3, 20_000, 20_000, 1, 1 << 20, 40_000] * 20
    with ours.declare_subscriber("t/**", ArrowBatches(max_bytes=1 << 20, batches=64)) as subscriber:
        known(theirs, "t/1")
        publisher = theirs.declare_publisher(
            "t/declared", congestion_control=zenoh.CongestionControl.BLOCK
        )
        for i, size in enumerate(sizes):
            payload = b"%d " % i + b"x" * size
            if i % 2:
                publisher.put(payload, attachment=b"%d" % i)
            else:
                theirs.put(
                    f"t/{i}",
                    payload,
                    congestion_control=zenoh.CongestionControl.BLOCK,
                    priority=LOW,
                )
        table = rows_of(subscriber, len(sizes))
    found = {_number(row["payload"]): row for row in table.to_pylist()}
    assert sorted(found) == list(range(len(sizes)))
    for i, row in found.items():
        assert row["payload"] == b"%d " % i + b"x" * sizes[i]
        assert row["key"] == ("t/declared" if i % 2 else f"t/{i}")
        assert row["attachment"] == (b"%d" % i if i % 2 else None)
        assert row["reliable"] is True
    for odd in (0, 1):
        order = [i for i in map(_number, table["payload"].to_pylist()) if i % 2 == odd]
        assert order == sorted(order)  # of each lane


def _number(payload: bytes) -> int:
    return int(payload.split(b" ")[0])


def test_a_record_batch_comes_to_the_reference_as_samples(pair: Pair) -> None:
    theirs, ours = pair(zenoh, zenlake)
    got: list[Any] = []
    subscriber = theirs.declare_subscriber("t/**", got.append)
    known(ours, "t/1")
    kinds = ["delete" if i % 10 == 9 else "put" for i in range(ROWS)]
    batch = numbers(kind=kinds, encoding=["application/json"] * ROWS)
    assert ours.put_batch(batch) == ROWS
    until(lambda: len(got), lambda n: n >= ROWS, PATIENCE)
    assert [str(s.key_expr) for s in got] == batch["key"].to_pylist()
    assert [s.kind == zenoh.SampleKind.DELETE for s in got] == [k == "delete" for k in kinds]
    puts = [(i, s) for i, s in enumerate(got) if kinds[i] == "put"]
    assert all(s.payload.to_bytes() == b"%d" % i for i, s in puts)
    assert {str(s.encoding) for _, s in puts} == {"application/json"}
    subscriber.undeclare()


def test_a_publisher_gives_its_key_encoding_and_qos(pair: Pair) -> None:
    theirs, ours = pair(zenoh, zenlake)
    subscriber = theirs.declare_subscriber("t/**")
    known(ours, "t/x")
    publisher = ours.declare_publisher(
        "t/x",
        encoding="text/csv",
        priority=zenlake.Priority.DATA_HIGH,
        congestion_control=zenlake.CongestionControl.BLOCK,
        express=True,
    )
    assert publisher.put_batch(pa.record_batch({"payload": [b"1", b"2"]})) == 2
    for payload in (b"1", b"2"):
        sample = subscriber.recv()
        assert (str(sample.key_expr), sample.payload.to_bytes()) == ("t/x", payload)
        assert (str(sample.encoding), sample.priority) == ("text/csv", zenoh.Priority.DATA_HIGH)
        assert sample.congestion_control == zenoh.CongestionControl.BLOCK
        assert sample.express


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"transport/unicast/compression/enabled": True},
        {"transport/unicast/lowlatency": True, "transport/unicast/qos/enabled": False},
        {"transport/unicast/qos/enabled": False},
        {"transport/link/tx/batch_size": 1500},
    ],
    ids=["default", "compression", "low latency", "without lanes", "small batches"],
)
def test_rows_arrive_in_order_with_any_negotiated_options(
    pair: Pair, settings: dict[str, Any]
) -> None:
    one, other = pair(zenlake, zenlake, **settings)
    subscriber = one.declare_subscriber("t/**", ArrowBatches(max_rows=500))
    known(other, "t/1")
    large = b"x" * 5000  # which fits no small batch
    batch = numbers(payload=[large if i % 100 == 0 else b"%d" % i for i in range(ROWS)])
    before = other.stats().sent_messages
    other.put("t/0", b"before")
    other.put_batch(batch)
    other.put("t/0", b"after", congestion_control=zenlake.CongestionControl.BLOCK)
    table = rows_of(subscriber, ROWS + 2)
    assert table["payload"].to_pylist() == [b"before", *batch["payload"].to_pylist(), b"after"]
    assert other.stats().sent_messages - before == ROWS + 2, "keys without a publisher have no id"


def test_rows_go_where_their_keys_are_wanted_and_nowhere_else(pair: Pair) -> None:
    one, other = pair(zenlake, zenlake)
    some = one.declare_subscriber("t/1", ArrowBatches())
    samples: list[zenlake.Sample] = []
    ring = one.declare_subscriber("t/2", samples.append)
    known(other, "t/2")
    known(other, "t/1")
    own = other.declare_subscriber("t/*", ArrowBatches(max_rows=ROWS))
    batch = numbers()
    other.put_batch(batch)
    expected = [b"%d" % i for i in range(ROWS)]
    assert rows_of(some, len(expected[1::7]))["payload"].to_pylist() == expected[1::7]
    until(lambda: len(samples), lambda n: n >= len(expected[2::7]), PATIENCE)
    assert [bytes(s.payload) for s in samples] == expected[2::7]
    assert rows_of(own, ROWS)["payload"].to_pylist() == expected
    ring.undeclare()


def test_lanes_of_one_batch_go_apart(pair: Pair) -> None:
    one, other = pair(zenlake, zenlake)
    subscriber = one.declare_subscriber("t/**", ArrowBatches(max_rows=ROWS))
    known(other, "t/1")
    other.put_batch(numbers(priority=pa.array([2 + i % 3 for i in range(ROWS)], pa.int8())))
    table = rows_of(subscriber, ROWS)
    payloads, priorities = table["payload"].to_pylist(), table["priority"].to_pylist()
    assert all(priorities[k] == 2 + int(payloads[k]) % 3 for k in range(ROWS))
    for lane in (2, 3, 4):
        mine = [int(p) for p, q in zip(payloads, priorities, strict=True) if q == lane]
        assert mine == [i for i in range(ROWS) if 2 + i % 3 == lane]


def test_a_session_that_stamps_stamps_rows_too(pair: Pair) -> None:
    one, other = pair(zenlake, zenlake, **{"timestamping/enabled": True})
    subscriber = one.declare_subscriber("t/**", ArrowBatches())
    known(other, "t/1")
    other.put_batch(numbers())
    table = rows_of(subscriber, ROWS)
    stamps = table["timestamp"].to_pylist()
    times = [stamp["time"] for stamp in stamps]
    assert {stamp["id"] for stamp in stamps} == {str(other.zid())}
    assert times == sorted(set(times))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"payload": [b"x"]}, "column 'key'"),
        ({"key": [None]}, "column 'key'"),
        ({"key": ["a//b"]}, "'a//b': empty chunk"),
        ({"key": ["a"], "kind": ["post"]}, "column 'kind'"),
    ],
)
def test_a_batch_that_cannot_be_sent_is_refused(
    pair: Pair, columns: dict[str, Any], words: str
) -> None:
    one, _ = pair(zenlake, zenlake)
    with pytest.raises(zenlake.ZError, match=words):
        one.put_batch(pa.record_batch(columns))


# ---- the handler alone


def local() -> Any:
    return open_session(zenlake, "peer")


def test_a_batch_is_given_out_when_its_first_sample_is_old_enough() -> None:
    with local() as session:
        subscriber = session.declare_subscriber("t", ArrowBatches(max_age=0.05))
        session.put("t", b"1")
        session.put("t", b"2")
        assert subscriber.recv()["payload"].to_pylist() == [b"1", b"2"]
        assert subscriber.try_recv() is None


def test_undeclare_gives_out_what_is_there_and_wakes_who_waits() -> None:
    with local() as session:
        subscriber = session.declare_subscriber("t", ArrowBatches(max_age=3600))
        handler = subscriber.handler
        found: list[pa.RecordBatch] = []
        reader = threading.Thread(target=lambda: found.extend(handler))
        reader.start()
        session.put("t", b"1")
        subscriber.undeclare()
        reader.join(PATIENCE)
        assert not reader.is_alive()
        assert [batch["payload"].to_pylist() for batch in found] == [[b"1"]]


def test_what_nobody_reads_makes_who_puts_wait() -> None:
    with local() as session:
        sink = ArrowBatches(max_rows=10, batches=2)
        subscriber = session.declare_subscriber("t", sink)
        done = threading.Event()

        def put() -> None:
            for i in range(100):
                session.put("t", b"%d" % i)
            done.set()

        threading.Thread(target=put).start()
        assert not done.wait(0.3)
        assert rows_of(subscriber, 100)["payload"].to_pylist() == [b"%d" % i for i in range(100)]
        assert done.wait(PATIENCE)
        assert sink.dropped == 0


def test_or_is_dropped_and_counted() -> None:
    with local() as session:
        sink = ArrowBatches(max_rows=10, batches=2, overflow="drop", max_age=0)
        subscriber = session.declare_subscriber("t", sink)
        session.put_batch(pa.record_batch({"key": ["t"] * 100, "payload": [b"x"] * 100}))
        assert rows_of(subscriber, 20).num_rows == 20
        assert sink.dropped == 80
        assert session.stats().dropped == {"handler_full": 80}


@pytest.mark.parametrize(
    "wrong", [{"max_rows": 0}, {"max_bytes": 0}, {"batches": 0}, {"max_age": -1}]
)
def test_limits_that_are_too_small_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        ArrowBatches(**wrong)


def test_overflow_is_one_of_two_words() -> None:
    with pytest.raises(ValueError, match="'block' or 'drop', not 'spill'"):
        ArrowBatches(overflow="spill")  # type: ignore[arg-type]


def test_only_samples_become_record_batches() -> None:
    config = zenlake.Config()
    config.insert_json5("listen/endpoints", "[]")
    config.insert_json5("scouting/multicast/enabled", "false")
    refused = pytest.raises(ValueError, match=r"type ArrowBatches: .* samples only")
    with zenlake.open(config) as session:
        publisher = session.declare_publisher("a")
        info, alive = session.info, session.liveliness()
        takers: tuple[Callable[[Any], object], ...] = (
            partial(session.declare_queryable, "a"),
            partial(session.get, "a"),
            partial(alive.get, "a"),
            session.declare_querier("a").get,
            publisher.declare_matching_listener,
            info.declare_link_events_listener,
            info.declare_transport_events_listener,
            zenlake.ext.declare_advanced_subscriber(session, "a").sample_miss_listener,
            zenlake.scout,
        )
        for take in takers:
            with refused:
                take(ArrowBatches())
        with alive.declare_token("alive"):
            tokens = alive.declare_subscriber("alive", ArrowBatches(max_age=0.0), history=True)
            assert until_found(tokens.try_recv).column("key").to_pylist() == ["alive"]
        advanced = zenlake.ext.declare_advanced_subscriber(session, "b", ArrowBatches(max_age=0.0))
        session.put("b", b"1")
        assert until_found(advanced.try_recv).column("payload").to_pylist() == [b"1"]
