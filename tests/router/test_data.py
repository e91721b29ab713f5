"""Samples through a router of ours, between clients and peers of eclipse-zenoh and of ours."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from tests.support.interop_pair import THEIRS, Side
from tests.support.routed_sessions import PATIENCE, SIDES, Heard, Net, routed, unique
from tests.support.waiting import until
from zenlake.runtime.forwarding import Forwarder
from zenlake.wire.push_run import PushRun

pytestmark = [pytest.mark.interop, pytest.mark.kernel]

LARGE = 16 << 20
KEYS = 1000
ROWS = 12_000
WAYS = [pair for pair in product(SIDES, SIDES) if any("their" in name for name in pair)]
SOME_WAYS = [
    ("their client", "their client"),
    ("their peer", "our client"),
    ("our client", "their peer"),
    ("our peer", "their client"),
]
"Where the way makes little difference."
PRIORITIES = (
    "REAL_TIME",
    "INTERACTIVE_HIGH",
    "INTERACTIVE_LOW",
    "DATA_HIGH",
    "DATA",
    "DATA_LOW",
    "BACKGROUND",
)


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    with routed() as net:
        for sender, receiver in WAYS:
            net.side(sender)
            net.side(receiver + " 2" * (sender == receiver))
        yield net


def _name(way: tuple[str, str]) -> str:
    return f"{way[0]} to {way[1]}"


@pytest.fixture(params=WAYS, ids=_name)
def way(request: pytest.FixtureRequest, net: Net) -> tuple[Side, Side]:
    sender, receiver = request.param
    return net.side(sender), net.side(receiver + " 2" * (sender == receiver))


some_ways = pytest.mark.parametrize("way", SOME_WAYS, ids=_name, indirect=True)


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the runs that were passed on as bytes."""
    lengths: list[int] = []
    forward = Forwarder.forward_run

    def spy(self: Forwarder, *arguments: Any) -> None:
        lengths.extend(len(run) for run in arguments if isinstance(run, PushRun))
        forward(self, *arguments)

    monkeypatch.setattr(Forwarder, "forward_run", spy)
    return lengths


def test_everything_beside_the_payload_is_kept(net: Net, way: tuple[Side, Side]) -> None:
    sender, receiver = way
    api, session = way[0]
    key = unique("kept")
    stamp = session.new_timestamp()
    source = api.SourceInfo(session.id, 7)
    with Heard(receiver, key) as heard:
        sender.matching(key)
        session.put(key, b"plain")
        session.put(
            key,
            b"{}",
            encoding="application/json;v1",
            attachment=b"beside",
            timestamp=stamp,
            source_info=source,
            priority=api.Priority.REAL_TIME,
            congestion_control=api.CongestionControl.BLOCK,
            express=True,
        )
        until(lambda: len(heard.samples), lambda found: found >= 2, PATIENCE)
        session.delete(key, attachment=b"gone", congestion_control=api.CongestionControl.BLOCK)
        samples = {sample.payload or sample.attachment: sample for sample in heard.wait(3)}
    plain, full, gone = samples[b"plain"], samples[b"{}"], samples[b"gone"]
    assert {sample.key for sample in samples.values()} == {key}
    assert plain.kind == "SampleKind.PUT"
    assert plain.timestamp is not None
    assert plain.timestamp.endswith(f"/{net.router.zid}")
    assert (plain.priority, plain.express) == ("Priority.DATA", False)
    assert plain.congestion_control == "CongestionControl.DROP"
    assert (plain.encoding, plain.attachment, plain.source) == ("zenoh/bytes", None, None)
    assert full.encoding == "application/json;v1"
    assert full.attachment == b"beside"
    assert full.timestamp == str(stamp)
    assert full.source == (str(session.zid()), source.source_id.eid, 7)
    assert (full.priority, full.express) == ("Priority.REAL_TIME", True)
    assert full.congestion_control == "CongestionControl.BLOCK"
    assert (gone.kind, gone.timestamp) == ("SampleKind.DELETE", None)


@pytest.mark.parametrize("name", SIDES)
def test_once_to_each_session_and_never_back(net: Net, name: str) -> None:
    sender = net.side(name)
    first, second, third = (net.side(other) for other in SIDES if other != name)
    key = unique("once")
    block = sender.api.CongestionControl.BLOCK
    with (
        Heard(sender, f"{key}/**", allowed_origin=sender.api.Locality.REMOTE) as back,
        Heard(first, f"{key}/**") as all_,
        Heard(second, f"{key}/*") as some,
        Heard(second, f"{key}/x") as again,
        Heard(third, f"{key}/y") as other,
    ):
        net.wanted(f"{key}/x", 3)
        net.wanted(f"{key}/y", 4)
        sender.matching(f"{key}/x")
        sender.session.put(f"{key}/x", b"", congestion_control=block)
        sender.session.put(f"{key}/y", b"", congestion_control=block)
        assert [sample.key for sample in all_.wait(2)] == [f"{key}/x", f"{key}/y"]
        assert [sample.key for sample in some.wait(2)] == [f"{key}/x", f"{key}/y"]
        assert [sample.key for sample in again.wait(1)] == [f"{key}/x"]
        assert [sample.key for sample in other.wait(1)] == [f"{key}/y"]
        assert back.samples == []


@some_ways
def test_a_value_of_16_mib(net: Net, way: tuple[Side, Side]) -> None:
    sender, receiver = way
    key = unique("large")
    value = bytes(range(256)) * (LARGE // 256)
    with Heard(receiver, key) as heard:
        sender.matching(key)
        block = sender.api.CongestionControl.BLOCK
        sender.session.put(key, value, congestion_control=block)
        sender.session.put(key, b"after", congestion_control=block)
        large, after = heard.wait(2)
    assert large.payload == value
    assert after.payload == b"after"


@some_ways
@pytest.mark.parametrize("declared", [True, False])
def test_a_thousand_keys(net: Net, way: tuple[Side, Side], declared: bool) -> None:
    """With a publisher for each most have ids, on both sides others."""
    sender, receiver = way
    key = unique("keys")
    names = [f"{key}/{number}" for number in range(KEYS)]
    block = sender.api.CongestionControl.BLOCK
    with Heard(receiver, f"{key}/*") as heard, ExitStack() as stack:
        sender.matching(names[0])
        puts = [partial(sender.session.put, name, congestion_control=block) for name in names]
        if declared:
            publishers = [
                stack.enter_context(
                    sender.session.declare_publisher(name, congestion_control=block)
                )
                for name in names
            ]
            until(partial(_matching, publishers[-1]), bool, PATIENCE)
            puts = [publisher.put for publisher in publishers]
        for value in (b"1", b"2"):
            for put in puts:
                put(payload=value)
        samples = heard.wait(2 * KEYS)
    assert [sample.key for sample in samples] == names * 2
    assert [sample.payload for sample in samples] == [b"1"] * KEYS + [b"2"] * KEYS


def _matching(publisher: Any) -> bool:
    return bool(publisher.matching_status.matching)


@some_ways
@pytest.mark.parametrize("reliable", [True, False])
def test_reliability_and_every_priority(net: Net, way: tuple[Side, Side], reliable: bool) -> None:
    sender, receiver = way
    api = sender.api
    key = unique("lanes")
    wanted = api.Reliability.RELIABLE if reliable else api.Reliability.BEST_EFFORT
    with Heard(receiver, key) as heard:
        sender.matching(key)
        for number, name in enumerate(PRIORITIES):
            with sender.session.declare_publisher(
                key,
                reliability=wanted,
                priority=getattr(api.Priority, name),
                congestion_control=api.CongestionControl.BLOCK,
            ) as publisher:
                until(partial(_matching, publisher), bool, PATIENCE)
                publisher.put(name.encode())
            heard.wait(number + 1)
    assert [sample.payload.decode() for sample in heard.samples] == [*PRIORITIES]
    assert [sample.priority for sample in heard.samples] == [
        f"Priority.{name}" for name in PRIORITIES
    ]


def test_runs_of_mixed_messages(net: Net, way: tuple[Side, Side], forwarded: list[int]) -> None:
    """Frames full of small messages go on as bytes: keys, flags, stamps, and some are unwanted."""
    sender, receiver = way
    api = sender.api
    key = unique("runs")
    block = api.CongestionControl.BLOCK
    expected: list[tuple[str, str, bytes, str, bytes | None]] = []
    session = sender.session
    with Heard(receiver, f"{key}/wanted/**") as heard, Heard(receiver, f"{key}/end"):
        net.wanted(f"{key}/wanted/0", 1)
        net.wanted(f"{key}/end", 1)
        sender.matching(f"{key}/wanted/0")
        sender.matching(f"{key}/end")
        publisher = session.declare_publisher(f"{key}/wanted/p/**", congestion_control=block)
        other = session.declare_publisher(f"{key}/wanted/0", congestion_control=block)
        until(partial(_matching, publisher), bool, PATIENCE)
        until(partial(_matching, other), bool, PATIENCE)
        for number in range(4000):
            value = b"%d" % number
            kind = number % 5
            if kind == 0:
                publisher.put(value)
                expected.append((f"{key}/wanted/p/**", "PUT", value, "zenoh/bytes", None))
            elif kind == 1:
                name = f"{key}/wanted/{number % 7}"
                session.put(name, value, encoding="text/plain", congestion_control=block)
                expected.append((name, "PUT", value, "text/plain", None))
            elif kind == 2:
                session.put(f"{key}/unwanted/{number}", value, congestion_control=block)
            elif kind == 3:
                other.put(value, attachment=value, timestamp=session.new_timestamp())
                expected.append((f"{key}/wanted/0", "PUT", value, "zenoh/bytes", value))
            else:
                session.delete(f"{key}/wanted/1", attachment=value, congestion_control=block)
                expected.append((f"{key}/wanted/1", "DELETE", b"", "zenoh/bytes", value))
        samples = heard.wait(len(expected))
        publisher.undeclare()
        other.undeclare()
    got = [(s.key, s.kind.rpartition(".")[2], s.payload, s.encoding, s.attachment) for s in samples]
    assert got == expected
    for sample in samples:
        own = sample.attachment is not None
        deleted = sample.kind.endswith("DELETE")
        assert (sample.timestamp is None) is deleted
        if not deleted:
            assert sample.timestamp is not None
            assert sample.timestamp.endswith(f"/{session.zid() if own else net.router.zid}")
    stamps = [s.timestamp for s in samples if s.timestamp and s.attachment is None]
    assert len(set(stamps)) == len(stamps)
    if sender.api is THEIRS:  # ours writes what a slow caller puts at once: frames are short
        assert sum(forwarded) > len(expected) // 2


@pytest.mark.parametrize("name", ["our client", "our peer"])
def test_record_batches(net: Net, name: str, forwarded: list[int]) -> None:
    """The longest runs there are, to several, each of which wants other rows."""
    sender = net.side(name)
    key = unique("batch")
    keys = [f"{key}/{number % 3}" for number in range(ROWS)]
    payloads = [b"%d" % number for number in range(ROWS)]
    batch = pa.RecordBatch.from_pydict(
        {"key": pa.array(keys), "payload": pa.array(payloads, pa.binary())}
    )
    expected = [[*zip(keys, payloads, strict=True)][number::3] for number in range(3)]
    with ExitStack() as stack:
        heard = [
            stack.enter_context(Heard(net.side(f"their {role}"), f"{key}/{number}"))
            for number, role in enumerate(("client", "peer", "client 2"))
        ]
        all_ = stack.enter_context(Heard(net.side("their peer 2"), f"{key}/*"))
        for number in range(3):
            net.wanted(f"{key}/{number}", 2)
            sender.matching(f"{key}/{number}")
        assert sender.session.put_batch(batch) == ROWS
        for subscriber, wanted in zip(heard, expected, strict=True):
            assert [(s.key, s.payload) for s in subscriber.wait(len(wanted))] == wanted
        assert [(s.key, s.payload) for s in all_.wait(ROWS)] == [*zip(keys, payloads, strict=True)]
        stamps = [sample.timestamp for sample in all_.samples]
    assert len(set(stamps)) == ROWS
    assert sum(forwarded) >= ROWS // 2
