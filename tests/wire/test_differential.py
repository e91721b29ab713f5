"""Equal damaged bytes before our codec and before a live eclipse-zenoh router.

It keeps the link when it can read a batch and drops it when it cannot; our codec must agree, apart
from the differences that docs/differences.md lists.
"""

from random import Random

import pytest

from tests.support.message_corpus import FRAME_HEADER, recorded_shapes
from tests.support.raw_link import RawLink
from tests.support.reference_node import ReferenceNode
from zenlake.errors import DecodeError, Reason
from zenlake.wire.batch import read_batch
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import Mapping
from zenlake.wire.frame import FLAG_RELIABLE, Frame
from zenlake.wire.frame import ID as FRAME_ID
from zenlake.wire.framing import Framing, to_stream
from zenlake.wire.push import Push
from zenlake.wire.query import WireQuery
from zenlake.wire.request import Request
from zenlake.wire.response_final import ResponseFinal
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

pytestmark = pytest.mark.interop

SEED = 20_240_701
CASES = 300

# The length before a typed extension's content, which Rust does not compare with the content.
LENGTHS_RUST_IGNORES = {"source_info", "ts_stack", "timestamp"}
IGNORED_REASONS = {Reason.CUT_SHORT, Reason.TRAILING_BYTES}


def damaged() -> list[bytes]:
    """PUSH messages with one byte changed, keys aside: what a bad key does is not the codec's."""
    found: list[bytes] = []
    for batch in recorded_shapes():
        if not batch.startswith(FRAME_HEADER):
            continue
        (frame,) = read_batch(batch)
        assert isinstance(frame, Frame)
        (message,) = frame.messages
        if not isinstance(message, Push):
            continue
        suffix = range(4, 5 + len(message.key.suffix.encode())) if message.key.suffix else ()
        for at in range(len(FRAME_HEADER), len(batch)):
            if at in suffix:
                continue
            old = batch[at]
            for new in {0, 1, 0x7F, 0x80, 0xFF, *(old ^ 1 << bit for bit in range(8))} - {old}:
                found.append(batch[:at] + bytes((new,)) + batch[at + 1 :])
    return found


def refusal(batch: bytes) -> DecodeError | None:
    try:
        read_batch(batch)
    except DecodeError as error:
        return error
    return None


def only_pushes(batch: bytes) -> bool:
    """Whether a readable batch is nothing but PUSHes: another message may close a link rightly."""
    return all(
        isinstance(frame, Frame) and all(isinstance(m, Push) for m in frame.messages)
        for frame in read_batch(batch)
    )


def link_survives(link: RawLink, message: bytes, request_id: int) -> bool:
    """Send a damaged message, then ask something: is there an answer?"""
    w = ByteWriter(bytearray((FRAME_ID | FLAG_RELIABLE,)))
    w.zint("sn", link.next_sn)
    link.next_sn += 1
    try:
        link.send_stream(to_stream([bytes(w.out) + message], Framing.STREAM))
        link.send(Request(request_id, WireExpr(0, "nobody/there", Mapping.SENDER), WireQuery()))
        for answer in link.network_messages():
            if isinstance(answer, ResponseFinal) and answer.request_id == request_id:
                return True
    except (ConnectionError, EOFError):
        pass
    return False


def test_we_refuse_what_the_reference_refuses() -> None:
    cases = damaged()
    Random(SEED).shuffle(cases)
    agreed = {True: 0, False: 0}
    listed, other = [], []
    with ReferenceNode() as node:
        link: RawLink | None = None
        number = 0
        for batch in cases:
            error = refusal(batch)
            if error is None and not only_pushes(batch):
                continue
            number += 1
            if number > CASES:
                break
            link = link or RawLink(node.port, WireZenohId((0x1000 + number).to_bytes(4, "little")))
            survived = link_survives(link, batch[len(FRAME_HEADER) :], number)
            if not survived:
                link.abandon()
                link = None
            if survived == (error is None):
                agreed[survived] += 1
            elif error and error.field in LENGTHS_RUST_IGNORES and error.reason in IGNORED_REASONS:
                listed.append(f"{batch.hex()}: {error}")
            else:
                other.append(f"{batch.hex()}: {error or 'accepted here, refused there'}")
        if link is not None:
            link.close()
    assert other == []
    assert agreed[True] > CASES // 4
    assert agreed[False] > CASES // 8
    assert len(listed) < CASES // 20
