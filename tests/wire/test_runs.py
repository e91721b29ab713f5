"""Runs of PUSH messages and of replies: grouped by key as the object codec would, written again
equal, and read as objects.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.strategies import errs, keys, pushes, qos, replies, responses, u32
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.enums import Mapping
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.push import ID as PUSH
from zenlake.wire.push import Push
from zenlake.wire.push_run import KeyGrouper, PushRun, rewrite
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.reply import WireReply
from zenlake.wire.reply_run import ReplyRun
from zenlake.wire.response import ID as RESPONSE
from zenlake.wire.response import Response
from zenlake.wire.scan import Scanner
from zenlake.wire.timestamp import WireTimestamp
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId, write_zid

pytestmark = [pytest.mark.slow, pytest.mark.kernel]

CLOCK = WireZenohId.parse("c10c")


def encoded(messages: Sequence[NetworkMessage]) -> bytes:
    w = ByteWriter()
    for message in messages:
        NETWORK.write(w, message)
    return bytes(w.out)


def decoded(data: bytes | memoryview) -> list[NetworkMessage]:
    r = ByteReader(bytes(data))
    found = []
    while r.remaining():
        found.append(NETWORK.read(r))
    return found


def first_run(data: bytes, base: int = 0, kind: int = PUSH) -> tuple[PushRun, int]:
    """The run at the start, and how many messages there are."""
    (found,) = Scanner().bare(data)
    assert found.error is None
    return KeyGrouper(7).run(memoryview(data), base, found.rows, 0, kind), len(found.rows)


def is_shared_memory(push: Push) -> bool:
    return type(push.body) is Put and push.body.shm


plain_pushes = pushes.filter(lambda push: not is_shared_memory(push) and push.ts_stack is None)
few_keys = st.lists(keys, min_size=1, max_size=4)


@st.composite
def repeating(draw: st.DrawFn) -> list[Push]:
    """Pushes on a few keys."""
    names = draw(few_keys)
    found = draw(st.lists(plain_pushes, min_size=1, max_size=12))
    return [replace(push, key=draw(st.sampled_from(names))) for push in found]


@given(repeating(), st.integers(0, 100))
def test_messages_are_grouped_by_their_key(messages: list[Push], base: int) -> None:
    data = encoded(messages)
    run, _ = first_run(data, base)
    assert len(run) == len(messages)
    numbers: dict[tuple[int, bytes], int] = {}
    buffer = bytes(base) + data
    for i, push in enumerate(messages):
        name = (push.key.mapping << 16 | push.key.scope, push.key.suffix.encode())
        assert run.codes[i] == numbers.setdefault(name, len(numbers))
        payload = push.body.payload if type(push.body) is Put else b""
        start, end = int(run.starts[i]), int(run.ends[i])
        assert buffer[start:end] == payload
    assert run.keys == list(numbers)
    assert run.plain == all(push == Push(push.key, Put(_payload(push))) for push in messages)
    stampless = any(type(p.body) is Put and p.body.timestamp is None for p in messages)
    assert run.stampless == stampless


def _payload(push: Push) -> bytes:
    payload = push.body.payload if type(push.body) is Put else b""
    assert isinstance(payload, bytes)
    return payload


@given(repeating(), st.data())
def test_rewritten_messages_are_the_same_but_for_their_key(
    messages: list[Push], data: st.DataObject
) -> None:
    run, _ = first_run(encoded(messages))
    new = [data.draw(st.none() | keys) for _ in range(run.groups)]
    written = rewrite(run, new)
    wanted = [
        replace(push, key=key, node_id=0)
        for push, code in zip(messages, run.codes.tolist(), strict=True)
        if (key := new[code]) is not None
    ]
    assert decoded(written.data) == wanted
    ends = written.ends.tolist()
    starts = [0, *ends][:-1]
    assert [decoded(written.data[a:b]) for a, b in zip(starts, ends, strict=True)] == [
        [push] for push in wanted
    ]


@given(repeating(), st.integers(1, 1 << 60))
def test_puts_without_a_timestamp_are_given_one_in_order(messages: list[Push], time: int) -> None:
    run, _ = first_run(encoded(messages))
    w = ByteWriter()
    write_zid(w, "clock", CLOCK)
    written = rewrite(run, [WireExpr(0, "k")] * run.groups, time, bytes(w.out))
    wanted = []
    for place, push in enumerate(messages, 1):
        body = push.body
        if type(body) is Put and body.timestamp is None:
            body = replace(body, timestamp=WireTimestamp(time + place, CLOCK))
        wanted.append(replace(push, key=WireExpr(0, "k"), body=body, node_id=0))
    assert decoded(written.data) == wanted


stacked = pushes.filter(lambda push: not is_shared_memory(push) and push.ts_stack is not None)


@given(repeating(), responses | stacked)
def test_a_run_ends_before_anything_else(messages: list[Push], other: NetworkMessage) -> None:
    run, count = first_run(encoded([*messages, other, *messages]))
    assert (len(run), count) == (len(messages), 2 * len(messages) + 1)


def test_a_scan_of_bare_messages_ends_before_a_transport_message() -> None:
    data = encoded([Push(WireExpr(1)), Push(WireExpr(2))])
    (found,) = Scanner().bare(data + b"\x04" + data)  # KEEP_ALIVE
    assert (len(found.rows), found.consumed, found.error) == (2, len(data), None)


def test_many_keys_collide_in_no_way() -> None:
    messages = [Push(WireExpr(i % 5, f"k{i % 1500}")) for i in range(4000)]
    run, _ = first_run(encoded(messages))
    assert run.groups == 1500
    names = run.keys
    for i, code in enumerate(run.codes.tolist()):
        assert names[code] == (i % 5, f"k{i % 1500}".encode())


@st.composite
def answers(draw: st.DrawFn) -> list[Response]:
    """Replies to one request, on a few keys."""
    names, number = draw(few_keys), draw(u32)
    plain = responses.map(lambda response: replace(response, request_id=number, ts_stack=None))
    found = draw(st.lists(plain, min_size=1, max_size=12))
    return [
        replace(response, key=draw(st.sampled_from(names)), body=draw(replies))
        for response in found
    ]


def known(response: Response, **changed: Any) -> Response:
    """A reply without what no table of extensions has, and without the time of the RESPONSE."""
    reply = response.body
    assert isinstance(reply, WireReply)
    body = replace(reply.body, extensions=())
    return replace(
        response,
        body=replace(reply, body=body, extensions=()),
        timestamp=None,
        extensions=(),
        **changed,
    )


@given(answers(), qos, u32, st.integers(0, 9))
def test_replies_are_read_from_their_rows(
    messages: list[Response], level: QoS, number: int, base: int
) -> None:
    data = encoded(messages)
    run, _ = first_run(data, base, RESPONSE)
    assert len(run) == len(messages)
    names = [f"k{code}" for code in range(run.groups)]
    rows = run.rows[run.first : run.stop]
    found = ReplyRun(number, level, names, run.codes, bytes(base) + data, base, rows)
    wanted = []
    for response, code in zip(messages, run.codes.tolist(), strict=True):
        scope, suffix = run.keys[code]
        assert WireExpr(scope & 0xFFFF, suffix.decode(), Mapping(scope >> 16)) == response.key
        key = WireExpr(0, names[code], Mapping.SENDER)
        wanted.append(known(response, request_id=number, key=key, qos=level))
    assert list(found.responses()) == wanted
    chosen = [code % 2 == 0 for code in range(run.groups)]
    some = found.select(chosen)
    assert len(some) == sum(code % 2 == 0 for code in run.codes.tolist())
    assert list(some.responses()) == [
        response for response in wanted if chosen[names.index(response.key.suffix)]
    ]


@given(answers(), u32, st.data())
def test_replies_are_written_for_another_request(
    messages: list[Response], number: int, data: st.DataObject
) -> None:
    run, _ = first_run(encoded(messages), 0, RESPONSE)
    new = [data.draw(keys) for _ in range(run.groups)]
    written = rewrite(run, new, request_id=number)
    assert decoded(written.data) == [
        replace(response, request_id=number, key=new[code])
        for response, code in zip(messages, run.codes.tolist(), strict=True)
    ]
    assert written.ends[-1] == len(written.data)


others = st.one_of(
    pushes.filter(lambda push: not is_shared_memory(push)),
    errs.map(lambda err: Response(7, WireExpr(0, "k"), err)),
    responses.filter(lambda response: response.ts_stack is not None),
    replies.map(lambda reply: Response(8, WireExpr(0, "k"), reply)),
)


@given(st.lists(replies, min_size=1, max_size=5), others)
def test_a_run_of_replies_ends_before_anything_else(
    bodies: list[WireReply], other: NetworkMessage
) -> None:
    messages = [Response(7, WireExpr(0, "k"), body) for body in bodies]
    run, count = first_run(encoded([*messages, other, *messages]), 0, RESPONSE)
    assert (len(run), count) == (len(messages), 2 * len(messages) + 1)
    assert len(first_run(encoded([other, *messages]), 0, RESPONSE)[0]) in (
        (1,) if isinstance(other, Response) and other.request_id == 8 else (0,)
    )
