"""Encoded messages that a session puts by the run: they arrive as they were, with other ids."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zenoh
from hypothesis import given
from hypothesis import strategies as st

import zenlake
from tests.golden.proxy import free_port
from tests.support.interop_pair import open_session
from tests.support.row_sender import RowSender, batches
from tests.support.session_pairs import dialling, listening, opened, publisher_for
from tests.support.strategies import pushes
from tests.support.waiting import until
from zenlake.api.pubsub.arrow import ArrowBatches
from zenlake.columnar.read import SampleBatcher
from zenlake.errors import DecodeError, ZError
from zenlake.keytable import KeyTable
from zenlake.log.replay.encoded_sender import EncodedSender, SendOutcome
from zenlake.runtime import kernel_loader
from zenlake.transport.drop_reason import DropReason
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.delete import Del
from zenlake.wire.encoding import WireEncoding
from zenlake.wire.entity import WireEntityId, WireSourceInfo
from zenlake.wire.enums import Mapping, WireCongestionControl, WirePriority
from zenlake.wire.extensions import Unknown
from zenlake.wire.frame import LaneSettings
from zenlake.wire.framing import Framing, split
from zenlake.wire.interest import Interest
from zenlake.wire.kernels import plain
from zenlake.wire.kernels.restamp import restamp_kernel
from zenlake.wire.network import NETWORK
from zenlake.wire.packed import PackedMessages
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.scan import Scanner, read_only_array, scan
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.tsstack import SEND, WireTimestampStack
from zenlake.wire.wireexpr import WireExpr, flags_of, write_wireexpr
from zenlake.wire.zenohid import WireZenohId, write_zid

pytestmark = pytest.mark.slow

ZID = WireZenohId.parse("5a1ad")
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
unshared = pushes.filter(lambda push: not getattr(push.body, "shm", False))
LARGE = 200_000  # Bytes: more than a batch holds.
Pair = tuple[zenlake.Session, zenlake.Session]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    kernel_loader.load()


@contextmanager
def connected(**settings: Any) -> Iterator[Pair]:
    """Who puts, and who listens to it."""
    receiver, port = listening(**settings)
    with receiver, dialling(port, **settings) as sender:
        yield sender, receiver


def encoded(messages: Sequence[Any]) -> memoryview:
    w = ByteWriter()
    for message in messages:
        NETWORK.write(w, message)
    return memoryview(bytes(w.out))


def table_of(**keys: str) -> KeyTable:
    """Ids as keywords: s7="a" is the sender's 7, r7="a" the receiver's."""
    table = KeyTable()
    for name, key in keys.items():
        mapping = Mapping.SENDER if name[0] == "s" else Mapping.RECEIVER
        assert table.declare(mapping, int(name[1:]), key)
    return table


def expected(data: memoryview, keys: KeyTable, reliable: bool = True) -> pa.Table:
    """Return the samples of encoded messages, by the reader of samples."""
    batcher = SampleBatcher()
    for part in Scanner().bare(data, reliable=reliable):
        batcher.append(part.rows, bytes(data), keys)
    return pa.Table.from_batches([batcher.finish()]).select(AS_RECORDED)


def received(subscriber: Any, count: int) -> pa.Table:
    found: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in found) < count:
        found.append(subscriber.recv())
    return pa.Table.from_batches(found).select(AS_RECORDED)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pylist()
    return found


DEFAULT = QoS()


def varied(count: int, qos: QoS = DEFAULT) -> list[Push]:
    """All that a sample can have, in turns; on ids of both sides, with suffixes and without."""
    names = [
        WireExpr(7, "", Mapping.SENDER),
        WireExpr(7, "/x", Mapping.SENDER),
        WireExpr(9, "", Mapping.RECEIVER),
        WireExpr(0, "t/in/full", Mapping.SENDER),
    ]
    found = []
    for i in range(count):
        stamp = WireTimestamp((1_700_000_000 << 32) + i, ZID) if i % 3 else None
        source = WireSourceInfo(WireEntityId(ZID, 4), i) if i % 4 == 1 else None
        attachment = b"a%d" % i if i % 5 == 2 else None
        body: Put | Del = Put(b"%d" % i, stamp, WireEncoding.parse("text/plain;utf-8"))
        if i % 7 == 3:
            body = Del(stamp)
        elif i % 7 == 4:
            body = Put(bytes(i % 50))
        body.source_info = source
        body.attachment = attachment
        found.append(Push(names[i % len(names)], body, qos))
    return found


KEYS = {"s7": "t/seven", "r9": "t/nine"}
LEVELS = [
    QoS(),
    QoS(WirePriority.REAL_TIME, WireCongestionControl.BLOCK, express=True),
    QoS(WirePriority.BACKGROUND, WireCongestionControl.BLOCK_FIRST),
]


@pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "best effort"])
@pytest.mark.parametrize("qos", LEVELS, ids=str)
def test_what_arrives_is_what_was_put(qos: QoS, reliable: bool) -> None:
    data, keys = encoded(varied(300, qos)), table_of(**KEYS)
    with (
        connected() as (sender, receiver),
        receiver.declare_subscriber("t/**", ArrowBatches()) as got,
        publisher_for(sender, "t/seven"),
    ):
        sent = EncodedSender(sender._core).put(data, keys, batches([100, 200], 0, reliable))
        found = received(got, 300)
    wanted = expected(data, keys, reliable)
    assert rows(found) == rows(wanted)
    sizes = [len(row["payload"] or b"") for row in rows(wanted)]
    assert sent == SendOutcome(samples=300, bytes=sum(sizes), heard=300)


LINKS = {
    "low latency": {
        "transport__unicast__lowlatency": True,
        "transport__unicast__qos__enabled": False,
    },
    "compression": {"transport__unicast__compression__enabled": True},
}


@pytest.mark.parametrize("settings", LINKS.values(), ids=list(LINKS))
def test_it_goes_over_links_that_take_no_whole_batches(settings: dict[str, Any]) -> None:
    data, keys = encoded(varied(5000)), table_of(**KEYS)
    with (
        connected(**settings) as (sender, receiver),
        receiver.declare_subscriber("t/**", ArrowBatches(max_rows=1000, batches=1)) as got,
        publisher_for(sender, "t/seven"),
    ):
        port = sender._core.exchange.outbound_faces("t/seven")[0][0]
        assert port.session.emit_lane(WirePriority.DATA, True) is None
        assert RowSender(sender._core).put_one_batch(data, keys).heard == 5000
        assert rows(received(got, 5000)) == rows(expected(data, keys))


def test_large_messages_keep_their_place() -> None:
    messages = varied(60)
    for i in (0, 20, 21, 59):
        messages[i] = Push(messages[i].key, Put(bytes([i]) * LARGE))
    data, keys = encoded(messages), table_of(**KEYS)
    with (
        connected() as (sender, receiver),
        receiver.declare_subscriber("t/**", ArrowBatches()) as got,
        publisher_for(sender, "t/seven"),
    ):
        assert RowSender(sender._core).put_one_batch(data, keys).dropped == 0
        assert rows(received(got, 60)) == rows(expected(data, keys))


def test_a_message_that_no_session_carries_is_counted_and_the_others_arrive() -> None:
    messages = varied(20)
    messages[5] = Push(messages[5].key, Put(bytes(LARGE)))
    data, keys = encoded(messages), table_of(**KEYS)
    with (
        connected(**LINKS["low latency"]) as (sender, receiver),
        receiver.declare_subscriber("t/**", ArrowBatches()) as got,
        publisher_for(sender, "t/seven"),
    ):
        sent = RowSender(sender._core).put_one_batch(data, keys)
        found = received(got, 19)
        assert sender._core.exchange.dropped[DropReason.MESSAGE_TOO_LARGE] == 1
    assert (sent.samples, sent.dropped) == (20, 1)
    wanted = rows(expected(data, keys))
    assert rows(found) == wanted[:5] + wanted[6:]


def test_lanes_that_take_turns_each_keep_their_order() -> None:
    first, second = (varied(200, qos) for qos in LEVELS[:2])
    messages = [message for both in zip(first, second, strict=True) for message in both]
    data, keys = encoded(messages), table_of(**KEYS)
    with (
        connected() as (sender, receiver),
        receiver.declare_subscriber("t/**", ArrowBatches()) as got,
        publisher_for(sender, "t/seven"),
    ):
        RowSender(sender._core).put_one_batch(data, keys)
        found = rows(received(got, 400))
    wanted = rows(expected(data, keys))
    for priority in (1, 5):
        of_lane = [row for row in found if row["priority"] == priority]
        assert of_lane == [row for row in wanted if row["priority"] == priority]


def test_nothing_is_dropped_for_a_receiver_that_is_slow() -> None:
    """Although every message says that it may be."""
    count = 60_000
    data = encoded([Push(WireExpr(7, "", Mapping.SENDER), Put(bytes(100)))] * count)
    gate = threading.Event()
    seen = 0

    def slow(sample: zenlake.Sample) -> None:
        nonlocal seen
        gate.wait(30)
        seen += 1

    with (
        connected() as (sender, receiver),
        receiver.declare_subscriber("t/**", slow),
        publisher_for(sender, "t/seven"),
    ):
        out = RowSender(sender._core)
        threading.Timer(0.3, gate.set).start()
        for _ in range(4):
            assert out.put_one_batch(data, table_of(**KEYS)).heard == count
        assert gate.is_set()  # there was no room for all of it before
        until(lambda: seen == 4 * count)
        assert not sender._core.exchange.dropped


def test_own_subscribers_get_it_too() -> None:
    data, keys = encoded(varied(300)), table_of(**KEYS)
    samples: list[zenlake.Sample] = []
    with opened() as session:
        callback = session.declare_subscriber("t/seven/**", samples.append)
        with session.declare_subscriber("t/**", ArrowBatches()) as got:
            parts = batches([100, 50, 150], 0, [True, False, True])
            sent = EncodedSender(session._core).put(data, keys, parts)
            found = rows(received(got, 300))
        wanted = rows(expected(data, keys))
        for row in wanted[100:150]:
            row["reliable"] = False
        assert found == wanted
        assert sent.heard == 300
        mine = [row for row in wanted if row["key"].startswith("t/seven")]
        until(lambda: len(samples) == len(mine))
        assert [bytes(s.payload) for s in samples] == [row["payload"] or b"" for row in mine]
        callback.undeclare()


def test_links_that_give_one_id_two_meanings() -> None:
    class Links:
        """Link 0 and link 1, each with a table of its own."""

        version, longest = -7, 3

        def prefix(self, number: int, /) -> bytes | None:
            return {1 << 16 | 7: b"t/a", 1 << 17 | 1 << 16 | 7: b"t/b"}.get(number)

    messages = [Push(WireExpr(7, "", Mapping.SENDER), Put(b"%d" % i)) for i in range(50)]
    with opened() as session, session.declare_subscriber("t/**") as got:
        parts = batches([20, 10, 20], [0, 1, 0])
        EncodedSender(session._core).put(encoded(messages), Links(), parts)
        found = [(str(s.key_expr), bytes(s.payload)) for s in (got.recv() for _ in range(50))]
    assert found == [("t/b" if 20 <= i < 30 else "t/a", b"%d" % i) for i in range(50)]


def test_keys_may_be_others_or_left_out_or_bad() -> None:
    def rename(key: str) -> str | None:
        return None if key == "t/nine" else "u/" + key

    messages = varied(40)
    messages[0] = Push(WireExpr(77, "", Mapping.SENDER), Put(b"nobody declared it"))
    messages[1] = Push(WireExpr(7, "//", Mapping.SENDER), Put(b"no key"))
    data, keys = encoded(messages), table_of(**KEYS)
    with opened() as session, session.declare_subscriber("u/**", ArrowBatches()) as got:
        sent = RowSender(session._core, rename=rename).put_one_batch(data, keys)
        wanted = [row for row in rows(expected(data, keys)) if row["key"] != "t/nine"]
        assert (sent.samples, sent.bad_keys) == (len(wanted), 2)
        for row in wanted:
            row["key"] = "u/" + row["key"]
        assert rows(received(got, len(wanted))) == wanted


def test_a_run_without_subscribers_is_sent_to_none() -> None:
    with opened() as session:
        sent = RowSender(session._core).put_one_batch(encoded(varied(10)), table_of(**KEYS))
    assert (sent.samples, sent.heard) == (10, 0)


def test_timestamps_of_the_session_instead() -> None:
    data, keys = encoded(varied(100)), table_of(**KEYS)
    with opened() as session, session.declare_subscriber("t/**", ArrowBatches()) as got:
        before = session.new_timestamp()
        RowSender(session._core, restamp=True).put_one_batch(data, keys)
        found, after = rows(received(got, 100)), session.new_timestamp()
        own = str(session.zid())
    wanted = rows(expected(data, keys))
    stamps = [row.pop("timestamp") for row in found]
    recorded = [row.pop("timestamp") for row in wanted]
    assert found == wanted
    assert [stamp is None for stamp in stamps] == [stamp is None for stamp in recorded]
    given = [stamp for stamp in stamps if stamp is not None]
    assert {stamp["id"] for stamp in given} == {own}
    times = [stamp["time"] for stamp in given]
    assert times == sorted(set(times))
    assert before.wire.time < times[0]
    assert times[-1] < after.wire.time


def test_a_session_that_stamps_gives_what_has_none_a_timestamp() -> None:
    data, keys = encoded(varied(100)), table_of(**KEYS)
    settings = {"timestamping__enabled": True}
    with (
        opened(**settings) as session,
        session.declare_subscriber("t/**", ArrowBatches()) as got,
    ):
        RowSender(session._core).put_one_batch(data, keys)
        found, own = rows(received(got, 100)), str(session.zid())
    for row, was in zip(found, rows(expected(data, keys)), strict=True):
        if was["timestamp"] is not None:
            assert row["timestamp"] == was["timestamp"]
        elif row["kind"] == "put":
            assert row["timestamp"]["id"] == own


def test_a_timestamp_stack_stays_as_it_was_recorded() -> None:
    messages = varied(30)
    stack = WireTimestampStack(SEND, ((SEND, b"\x01\x02"),))
    messages[10] = replace(messages[10], ts_stack=stack)
    data, keys = encoded(messages), table_of(**KEYS)
    with (
        connected() as (sender, receiver),
        receiver.declare_subscriber("t/**") as got,
        publisher_for(sender, "t/seven"),
        sender.declare_subscriber("t/**") as own,
    ):
        sent = RowSender(sender._core).put_one_batch(data, keys)
        far, near = ([subscriber.recv() for _ in range(30)] for subscriber in (got, own))
    assert (sent.samples, sent.heard) == (30, 30)
    for found in (far, near):
        assert [bytes(s.payload) for s in found] == [
            row["payload"] or b"" for row in rows(expected(data, keys))
        ]
        assert found[10]._push().ts_stack == stack


def test_the_reference_gets_it() -> None:
    at = f"tcp/127.0.0.1:{free_port()}"
    theirs = open_session(zenoh, "peer", listen=at)
    ours = open_session(zenlake, "peer", connect=(at,))
    data, keys = encoded(varied(500)), table_of(**KEYS)
    got: list[Any] = []
    try:
        subscriber = theirs.declare_subscriber("t/**", got.append)
        with publisher_for(ours, "t/seven"):
            RowSender(ours._core).put_one_batch(data, keys)
            until(lambda: len(got) == 500)
        subscriber.undeclare()
    finally:
        ours.close()
        theirs.close()
    wanted = rows(expected(data, keys))
    assert [str(s.key_expr) for s in got] == [row["key"] for row in wanted]
    assert [s.payload.to_bytes() for s in got] == [row["payload"] or b"" for row in wanted]
    stamped = [row["timestamp"] is not None for row in wanted]
    assert [s.timestamp is not None for s in got] == stamped


def refused(change: Callable[[bytes], bytes], error: type[Exception], count: int = 10) -> Exception:
    with opened() as session:
        out = EncodedSender(session._core)
        data = memoryview(change(bytes(encoded(varied(10)))))
        with pytest.raises(error) as caught:
            out.put(data, table_of(**KEYS), batches([count]))
    return caught.value


def test_bytes_that_are_no_messages_are_refused() -> None:
    interest = bytes(encoded([Interest(1)]))
    assert "is not a PUSH" in str(refused(lambda data: data + interest, ZError, 11))
    assert "bytes" in str(refused(lambda data: data + b"\x00", ZError))
    refused(lambda data: data[:-1], DecodeError)
    assert "of 11" in str(refused(lambda data: data, ZError, 11))
    assert "of 9" in str(refused(lambda data: data, ZError, 9))


def test_not_on_the_thread_that_must_not_wait_and_not_when_closed() -> None:
    failed: list[Exception] = []
    with opened() as session:
        out = RowSender(session._core)

        def put() -> None:
            try:
                out.put_one_batch(encoded(varied(1)), table_of(**KEYS))
            except RuntimeError as error:
                failed.append(error)

        session._core.node.reactor.call_soon(put)
        until(lambda: failed)
    with pytest.raises(ZError, match="session closed"):
        out.put_one_batch(encoded(varied(1)), table_of(**KEYS))


def test_a_session_that_ends_meanwhile_is_counted() -> None:
    with connected() as (sender, receiver):
        subscriber = receiver.declare_subscriber("t/**", lambda sample: None)
        publisher = publisher_for(sender, "t/seven")
        out = RowSender(sender._core)
        ways = sender._core.exchange.outbound_faces("t/seven")
        receiver.close()
        until(lambda: ways[0][0].session.over)
        out._way = lambda key: _gone(key, ways)  # type: ignore[method-assign]
        sent = out.put_one_batch(encoded(varied(10)), table_of(**KEYS))
        assert sent.dropped == 10
        assert sender._core.exchange.dropped[DropReason.SESSION_CLOSED] >= 10
        publisher.undeclare()
        del subscriber


def _gone(key: Any, ways: Any) -> Any:
    from zenlake.log.replay.encoded_sender import _ReplayRoute

    return _ReplayRoute(key, (), ways)


# ---- puts of the usual kind


def plain_and_others(count: int) -> list[Push]:
    """Stretches of plain puts on several ids, of two lanes, and now and then something else."""
    found = varied(count)
    for i in range(count):
        if i % 97 != 96:
            scope = (7, 300, 70)[i // 10 % 3]
            qos = LEVELS[1] if i // 500 % 2 else DEFAULT
            found[i] = Push(WireExpr(scope, "", Mapping.SENDER), Put(b"%d" % i * (i % 60)), qos)
    return found


MORE_KEYS = KEYS | {"s300": "t/three", "s70": "u/seventy"}


@pytest.mark.parametrize("others", [True, False], ids=["mixed", "plain"])
def test_puts_of_the_usual_kind_arrive_as_all_do(others: bool) -> None:
    messages = plain_and_others(3000)
    if not others:
        messages = [push for i, push in enumerate(messages) if i % 97 != 96]
    data, keys = encoded(messages), table_of(**MORE_KEYS)
    counts = np.full(len(messages) // 10 + 1, 10)
    counts[-1] = len(messages) % 10
    with (
        connected() as (sender, receiver),
        receiver.declare_subscriber("t/**", ArrowBatches()) as got,
        publisher_for(sender, "t/seven"),
    ):
        out = EncodedSender(sender._core)
        sent = [out.put(data, keys, batches(counts)) for _ in range(3)]
        wanted = rows(expected(data, keys))
        heard = [row for row in wanted if row["key"].startswith("t/")]
        found = rows(received(got, 3 * len(heard)))
    sizes = sum(len(row["payload"] or b"") for row in wanted)
    assert sent == [SendOutcome(len(messages), sizes, len(heard))] * 3
    for priority in (1, 5):
        of_lane = [row for row in found if row["priority"] == priority]
        assert of_lane == 3 * [row for row in heard if row["priority"] == priority]


def test_they_go_to_several_sessions_and_to_own_subscribers() -> None:
    messages = [Push(WireExpr(7, "", Mapping.SENDER), Put(b"%d" % i)) for i in range(1000)]
    data, keys, counts = encoded(messages), table_of(**KEYS), [400, 600]
    sender, port = listening()
    with sender, dialling(port) as first, dialling(port) as second:
        subscribers = [first.declare_subscriber("t/**", ArrowBatches())]
        with publisher_for(sender, "t/seven"):
            out = EncodedSender(sender._core)
            assert out.put(data, keys, batches(counts)).heard == 1000
            subscribers.append(second.declare_subscriber("t/**", ArrowBatches()))
            until(lambda: len(sender._core.exchange.outbound_faces("t/seven")) == 2)
            assert out.put(data, keys, batches(counts)).heard == 1000
            subscribers.append(sender.declare_subscriber("t/**", ArrowBatches()))
            assert out.put(data, keys, batches(counts)).heard == 1000
        for times, subscriber in zip((3, 2, 1), subscribers, strict=True):
            assert rows(received(subscriber, times * 1000)) == times * rows(expected(data, keys))
            subscriber.undeclare()


def test_more_keys_than_one_pass_knows() -> None:
    count = 1500
    table = KeyTable()
    for i in range(count):
        assert table.declare(Mapping.SENDER, i + 1, f"t/{i}")
    messages = [Push(WireExpr(i + 1, "", Mapping.SENDER), Put(b"%d" % i)) for i in range(count)]
    data = encoded(messages)
    with (
        connected() as (sender, receiver),
        receiver.declare_subscriber("t/**", ArrowBatches()) as got,
        publisher_for(sender, "t/7"),
    ):
        sent = EncodedSender(sender._core).put(data, table, batches([count]))
        assert rows(received(got, count)) == rows(expected(data, table))
    assert (sent.samples, sent.heard) == (count, count)


usual = st.builds(
    Push,
    st.builds(
        WireExpr, st.integers(0, 40) | st.integers(0, 65535), st.just(""), st.sampled_from(Mapping)
    ),
    st.builds(Put, st.binary(max_size=200)),
    st.sampled_from([DEFAULT, DEFAULT, DEFAULT, *LEVELS]),
)


def is_usual(push: Push) -> bool:
    payload = push.body.payload if type(push.body) is Put else bytes(1 << 14)
    plainly = push == Push(push.key, Put(payload), push.qos)
    return plainly and not push.key.suffix and len(payload) < 1 << 14


def copied(
    data: bytes, counts: list[int], links: list[int], codes: np.ndarray[Any, Any], room: int
) -> tuple[int, bytes, list[int], list[int]]:
    """Copy by the kernel, with key 1 (id 300 and a suffix) and key 2, which is left out."""
    w = ByteWriter()
    write_wireexpr(w, WireExpr(300, "/x"))
    keys = np.frombuffer(bytes(w.out), np.uint8)
    state = np.zeros(plain.STATE_SIZE, np.int64)
    state[plain.BATCH] = -1
    out, ends, seen = np.zeros(room, np.uint8), np.zeros(100, np.int64), np.zeros(2, np.int64)
    why = plain.plain_kernel(
        read_only_array(data),
        np.array(counts, np.int64),
        np.array(links, np.uint8),
        np.ones(len(counts), np.uint8),
        codes,
        np.array([0, len(keys), len(keys)]),
        keys,
        np.array([flags_of(WireExpr(300, "/x")), -1], np.int16),
        seen,
        np.zeros(2, np.int64),
        out,
        ends,
        state,
    )
    count = int(state[plain.COUNT])
    assert 0 <= state[plain.POS] <= len(data)
    return why, out[: int(ends[count - 1]) if count else 0].tobytes(), state.tolist(), seen.tolist()


@pytest.mark.kernel
@given(st.lists(usual | unshared, max_size=12), st.data())
def test_the_one_pass_copies_as_the_codec_would(messages: list[Push], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(messages)))
    links = data.draw(st.tuples(st.integers(0, 127), st.integers(0, 127)))
    codes = np.zeros(plain.NUMBERS, np.int32)
    numbers = [
        links[i >= cut] << 17 | push.key.mapping << 16 | push.key.scope
        for i, push in enumerate(messages)
    ]
    for number in numbers:
        codes[number] = data.draw(st.sampled_from([1, 1, 1, 2, 0]))
    raw = bytes(encoded(messages))
    why, out, state, seen = copied(raw, [cut, len(messages) - cut], list(links), codes, 5000)
    wanted, lanes, stop, left_out = [], set[int](), plain.ALL, 0
    for push, number in zip(messages, numbers, strict=True):
        code = int(codes[number])
        if not is_usual(push):
            stop = plain.OTHER
        elif not code:
            stop = plain.UNKNOWN
        elif code == 1 and lanes and push.qos.priority not in lanes:
            stop = plain.LANE
        if stop != plain.ALL:
            break
        if code == 1:
            lanes.add(push.qos.priority)
            wanted.append(replace(push, key=WireExpr(300, "/x")))
        else:
            left_out += 1
    assert why == stop
    assert out == bytes(encoded(wanted))
    assert seen == [len(wanted), left_out]
    taken = len(wanted) + left_out
    assert state[plain.POS] == len(bytes(encoded(messages[:taken])))


@pytest.mark.kernel
@given(st.lists(usual, min_size=1, max_size=6), st.data())
def test_the_one_pass_stays_within_its_buffers(messages: list[Push], data: st.DataObject) -> None:
    raw = bytearray(encoded(messages))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    codes = np.ones(data.draw(st.sampled_from([1, 1 << 16, 1 << 17])), np.int32)
    codes[0] = data.draw(st.integers(-5, 5))
    room = data.draw(st.integers(0, 300))
    counts = [len(messages) + data.draw(st.integers(0, 3))]
    why, out, _, seen = copied(bytes(raw), counts, [0], codes, room)
    assert len(out) <= room
    assert why in (plain.ALL, plain.OTHER, plain.UNKNOWN, plain.LANE, plain.FULL)
    assert (why == plain.ALL) is (sum(seen) == counts[0]), "it ends early unless all were read"


# ---- packed


@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=60),
    st.sampled_from([None, WirePriority.DATA, WirePriority.REAL_TIME]),
    st.booleans(),
    st.integers(100, 400),
    st.integers(1, 600),
    st.data(),
)
def test_packed_batches_hold_every_message_once(
    sizes: list[int],
    priority: WirePriority | None,
    reliable: bool,
    batch_size: int,
    chunk: int,
    data: st.DataObject,
) -> None:
    key = WireExpr(0, "k")
    messages = [encoded([Push(key, Put(bytes(max(0, size - 6))))]) for size in sizes]
    ends = np.cumsum([len(message) for message in messages])
    first = data.draw(st.integers(0, len(sizes) - 1))
    mask, sn = 0x7F, data.draw(st.integers(0, 0x7F))
    joined = memoryview(b"".join(messages))
    settings = LaneSettings(reliable, priority, batch_size, mask)
    packed = PackedMessages(joined, ends, first, len(sizes), settings)
    stream, count, number = b"", 0, sn
    while not packed.done:
        part, some, number = packed.next(number, chunk)
        stream += part
        count += some
    assert count == len(sizes) - first
    batches = list(split(stream, Framing.STREAM))
    assert all(end - start + Framing.STREAM <= batch_size for start, end in batches)
    found = scan(stream)
    pushed = found.rows[found.rows["kind"] == 0x1D]
    assert found.error is None
    assert len(pushed) == count
    assert b"".join(
        stream[start:end] for start, end in zip(pushed["start"], pushed["end"], strict=True)
    ) == b"".join(messages[first:])
    numbers = [(sn + i) & mask for i in range(len(batches))]
    assert sorted(set(pushed["sn"].tolist())) == sorted(set(numbers))
    assert number == (sn + len(batches)) & mask
    lane = (WirePriority.DATA if priority is None else priority) | (8 if reliable else 0)
    assert set(pushed["lane"].tolist()) == {lane}


# ---- other timestamps


@pytest.mark.kernel
@given(st.lists(unshared, min_size=1, max_size=8), st.integers(1, (1 << 63) - 100))
def test_restamped_messages_differ_in_their_timestamps_only(
    messages: list[Push], time: int
) -> None:
    clock = WireZenohId.parse("c10c")
    w = ByteWriter()
    write_zid(w, "zid", clock)
    data = encoded(messages)
    (found,) = Scanner().bare(data)
    out = np.zeros(len(data) + len(messages) * 26, np.uint8)
    used = restamp_kernel(
        read_only_array(data),
        found.rows,
        np.uint64(time),
        np.frombuffer(bytearray(w.out), np.uint8),
        out,
    )
    r = ByteReader(out[:used].tobytes())
    for i, message in enumerate(messages):
        if message.body.timestamp is not None:
            message.body.timestamp = WireTimestamp(time + i + 1, clock)
        assert NETWORK.read(r) == message
    assert not r.remaining()


@pytest.mark.kernel
def test_restamping_writes_nothing_beyond_its_buffer() -> None:
    data = encoded([Push(WireExpr(0, "k"), Put(b"x", WireTimestamp(1, ZID)))])
    (found,) = Scanner().bare(data)
    clock = np.zeros(17, np.uint8)
    for size in range(len(data) + 26):
        out = np.zeros(size, np.uint8)
        assert restamp_kernel(read_only_array(data), found.rows, np.uint64(1), clock, out) == -1


def test_unknown_extensions_travel_along() -> None:
    message = Push(WireExpr(7, "", Mapping.SENDER), Put(b"x"))
    message.body.extensions = (Unknown(0x4E, b"new"),)
    with opened() as session, session.declare_subscriber("t/**") as got:
        RowSender(session._core).put_one_batch(encoded([message] * 3), table_of(**KEYS))
        found = [got.recv() for _ in range(3)]
    assert all(sample._push().body.extensions == message.body.extensions for sample in found)
