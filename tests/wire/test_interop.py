"""Our bytes before a live eclipse-zenoh 1.10.2 router, and its bytes before us."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support import strategies as s
from tests.support.raw_link import RawLink
from tests.support.reference_node import ReferenceNode
from tests.support.waiting import until
from zenlake.columnar.read import record_batches
from zenlake.columnar.write import push_columns
from zenlake.keytable import KeyTable
from zenlake.wire import declare as d
from zenlake.wire.batch import write_batch
from zenlake.wire.delete import Del
from zenlake.wire.emit import emit
from zenlake.wire.encoding import PREDEFINED, WireEncoding
from zenlake.wire.enums import Consolidation, Mapping, WirePriority
from zenlake.wire.err import Err
from zenlake.wire.frame import Frame, LaneSettings
from zenlake.wire.framing import Framing, to_stream
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.query import WireQuery
from zenlake.wire.querybody import QueryBody
from zenlake.wire.reply import WireReply
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.scan import scan
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.interop

ZID = WireZenohId.parse("a1a2a3a4a5")
DEADLINE = 20.0


@pytest.fixture(scope="module")
def node() -> Iterator[ReferenceNode]:
    with ReferenceNode() as node:
        yield node


@pytest.fixture(scope="module")
def link(node: ReferenceNode) -> Iterator[RawLink]:
    with RawLink(node.port, ZID) as link:
        yield link


def key(text: str) -> WireExpr:
    return WireExpr(0, text, Mapping.SENDER)


def received(node: ReferenceNode, count: int) -> list[dict[str, Any]]:
    until(lambda: node.ask("count"), lambda got: got >= count)
    samples: list[dict[str, Any]] = node.ask("samples")
    return samples


def expected(push: Push) -> dict[str, Any]:
    body = push.body
    source = body.source_info
    is_put = isinstance(body, Put)
    return {
        "key": push.key.suffix,
        "kind": "put" if is_put else "delete",
        "payload": body.payload.hex() if is_put else "",  # type: ignore[union-attr]
        "encoding": str(body.encoding) if isinstance(body, Put) else "zenoh/bytes",
        "attachment": None if body.attachment is None else body.attachment.hex(),
        "timestamp": None if body.timestamp is None else str(body.timestamp),
        "priority": push.qos.priority.name,
        "congestion_control": push.qos.congestion_control.name,
        "express": push.qos.express,
        "source": None if source is None else [str(source.id.zid), source.id.eid, source.sn],
    }


# What the reference's API can show: text schemas, user priorities, clocks not in the future.
shown_encodings = st.one_of(
    st.sampled_from(PREDEFINED).map(WireEncoding.parse),
    st.sampled_from(PREDEFINED).map(lambda text: WireEncoding.parse(f"{text};schema")),
    st.just(WireEncoding.parse("my/own;v1")),
)
shown_qos = st.builds(
    QoS, st.sampled_from([p for p in WirePriority if p]), express=st.booleans()
) | st.builds(QoS.from_byte, st.sampled_from([0x0D, 0x09, 0x1F]))
shown_bodies = st.one_of(
    st.builds(
        Put,
        s.some_bytes,
        timestamp=st.none() | s.timestamps,
        encoding=shown_encodings,
        source_info=st.none() | s.sources,
        attachment=st.none() | st.binary(min_size=1, max_size=20),
        extensions=s.unknown_extensions,
    ),
    st.builds(
        Del,
        timestamp=st.none() | s.timestamps,
        source_info=st.none() | s.sources,
        attachment=st.none() | st.binary(min_size=1, max_size=20),
    ),
)
shown_pushes = st.builds(
    Push,
    st.sampled_from(["sub/a", "sub/b/c", "sub/é"]).map(key),
    shown_bodies,
    shown_qos,
    extensions=s.unknown_extensions,
)


@settings(
    max_examples=25,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(shown_pushes, min_size=1, max_size=20))
def test_the_reference_reads_our_samples(
    node: ReferenceNode, link: RawLink, pushes: list[Push]
) -> None:
    link.send(*pushes)
    assert received(node, len(pushes)) == [expected(push) for push in pushes]


def test_the_reference_reads_declared_ids(node: ReferenceNode, link: RawLink) -> None:
    link.send(
        d.Declare(d.DeclareKeyExpr(3, WireExpr(0, "sub/declared"))),
        Push(WireExpr(3, "", Mapping.SENDER), Put(b"1")),
        Push(WireExpr(3, "/more", Mapping.SENDER), Put(b"2")),
        d.Declare(d.UndeclareKeyExpr(3)),
    )
    keys = [sample["key"] for sample in received(node, 2)]
    assert keys == ["sub/declared", "sub/declared/more"]


@pytest.mark.kernel
def test_the_reference_reads_what_columns_emit(node: ReferenceNode, link: RawLink) -> None:
    """Thousands of rows from Arrow columns, one of them larger than a batch."""
    count = 5000
    payloads = [f"payload {n}".encode() for n in range(count)]
    payloads[1234] = bytes(200_000)
    rows = pa.RecordBatch.from_pydict(
        {
            "key": [f"sub/row/{n % 10}" for n in range(count)],
            "payload": payloads,
            "encoding": [["text/plain", "application/json"][n % 2] for n in range(count)],
            "attachment": [b"a" if n % 3 == 0 else None for n in range(count)],
            "congestion_control": ["block"] * count,
        }
    )
    lane = LaneSettings(batch_size=link.batch_size)
    for part in emit(push_columns(rows), lane, link.next_sn):
        link.send_stream(part.data)
        link.next_sn = part.next_sn
    samples = received(node, count)
    assert [bytes.fromhex(sample["payload"]) for sample in samples] == payloads
    assert [sample["key"] for sample in samples] == rows["key"].to_pylist()
    assert [sample["encoding"] for sample in samples] == rows["encoding"].to_pylist()
    attached = [sample["attachment"] is not None for sample in samples]
    assert attached == [n % 3 == 0 for n in range(count)]


def test_the_reference_answers_our_queries(node: ReferenceNode, link: RawLink) -> None:
    link.send(
        Request(
            77,
            key("query/a"),
            WireQuery(
                Consolidation.NONE,
                "x=1;y",
                body=QueryBody(b"body", WireEncoding.parse("text/json;s")),
                attachment=b"ours",
            ),
            qos=QoS.from_byte(0x0D),
            timeout_ms=5000,
        )
    )
    answers: list[Response] = []
    for message in link.network_messages():
        if isinstance(message, Response):
            answers.append(message)
        if isinstance(message, ResponseFinal):
            assert message.request_id == 77
            break
    (asked,) = node.ask("queries")
    assert asked == {
        "selector": "query/a?x=1;y",
        "payload": b"body".hex(),
        "encoding": "text/json;s",
        "attachment": b"ours".hex(),
    }
    value, error = answers
    assert isinstance(value.body, WireReply)
    assert isinstance(value.body.body, Put)
    assert value.body.body.payload == b"reply"
    assert value.body.body.encoding == WireEncoding.parse("text/plain")
    assert value.body.body.attachment == b"att"
    assert isinstance(error.body, Err)
    assert (error.body.payload, str(error.body.encoding)) == (b"error", "text/html")


@pytest.mark.kernel
def test_we_read_the_reference_s_samples(node: ReferenceNode, link: RawLink) -> None:
    """Through the scan and as a record batch, as they come off the wire."""
    link.send(d.Declare(d.DeclareSubscriber(1, key("mine/**"))))
    wanted = [(f"mine/{n}", bytes([n]) * n, "text/plain") for n in range(5)]

    def put_all() -> None:
        for where, payload, encoding in wanted:
            assert node.ask("put", key=where, payload=payload.hex(), encoding=encoding) == "done"

    link.send(
        Request(78, key("query/sync"), WireQuery())
    )  # answered after the declaration was seen
    found: list[Push] = []
    frames: list[Frame] = []
    synced = False
    while len(found) < len(wanted):
        for message in link.receive():
            if not isinstance(message, Frame):
                continue
            pushes = [m for m in message.messages if isinstance(m, Push)]
            if pushes:
                frames.append(message)
                found += pushes
            if not synced and any(isinstance(m, ResponseFinal) for m in message.messages):
                synced = True
                put_all()
    data = to_stream([write_batch([frame]) for frame in frames], Framing.STREAM)
    assert (scan(data).rows["kind"] == 0x1D).sum() == len(wanted)
    table = pa.Table.from_batches(record_batches(data, KeyTable()))
    assert table["key"].to_pylist() == [where for where, _, _ in wanted]
    assert table["payload"].to_pylist() == [payload for _, payload, _ in wanted]
    assert set(table["encoding"].to_pylist()) == {"text/plain"}
    assert set(table["attachment"].to_pylist()) == {b"theirs"}
    node.ask("queries")
