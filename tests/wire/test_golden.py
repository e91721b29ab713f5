"""Recorded bytes of eclipse-zenoh 1.10.2: to objects and back, whole, cut, and with a tail."""

import pytest

from tests.support.plain_batches import PlainBatch, plain_batches
from zenlake.errors import DecodeError, Reason
from zenlake.wire.batch import (
    TRANSPORT,
    LocatedMessage,
    read_batch,
    read_scouting,
    walk,
    write_batch,
    write_scouting,
)
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.network import NETWORK

BATCHES = list(plain_batches())

# Written by hand to be refused; B's CLOSE in the same vector says that Rust refuses them too.
REFUSED = {
    "close_mandatory/A/0": Reason.MANDATORY_EXTENSION,
    "close_role/A/0": Reason.BAD_VALUE,
}
ACCEPTED = [batch for batch in BATCHES if batch.name not in REFUSED]
VECTORS: dict[str, list[PlainBatch]] = {}
for _batch in ACCEPTED:
    VECTORS.setdefault(_batch.name.partition("/")[0], []).append(_batch)
every_vector = pytest.mark.parametrize("vector", VECTORS)


def walked(batch: PlainBatch, data: bytes) -> list[LocatedMessage]:
    return list(walk(ByteReader(data), low_latency=batch.low_latency))


def written(messages: list[LocatedMessage]) -> bytes:
    w = ByteWriter()
    for located in messages:
        table = NETWORK if type(located.message) in NETWORK.by_type else TRANSPORT
        table.write(w, located.message)
    return bytes(w.out)


def test_the_vectors_are_there() -> None:
    assert len(BATCHES) > 2000
    assert len({batch.name.partition("/")[0] for batch in BATCHES}) >= 60


@every_vector
def test_bytes_to_objects_to_the_same_bytes(vector: str) -> None:
    for batch in VECTORS[vector]:
        if batch.scouting:
            assert write_scouting(read_scouting(batch.data)) == batch.data
            continue
        assert written(walked(batch, batch.data)) == batch.data, batch.name
        if not batch.low_latency:
            assert write_batch(read_batch(batch.data)) == batch.data, batch.name


@every_vector
def test_every_byte_belongs_to_one_message(vector: str) -> None:
    for batch in VECTORS[vector]:
        if batch.scouting:
            continue
        at = 0
        for located in walked(batch, batch.data):
            assert located.start == at
            at = located.end
        assert at == len(batch.data)


@every_vector
def test_truncated_at_every_offset(vector: str) -> None:
    """Cut anywhere, a batch gives a prefix of its messages and a DecodeError at the cut's field.

    Where the cut falls between two messages there is no error; a FRAGMENT, whose payload runs to
    the end of the batch, is the named exception: it gives a shorter payload.
    """
    for batch in VECTORS[vector]:
        data = batch.data
        if batch.scouting:
            for cut in range(len(data)):
                with pytest.raises(DecodeError):
                    read_scouting(data[:cut])
            continue
        whole = walked(batch, data)
        ends = {0, *(located.end for located in whole)}
        # The messages that end before the cut are not read again for each cut: they are the same
        # bytes. Reading starts at the message that the cut is in (or at its FRAME).
        for located in whole:
            fragmented = isinstance(located.message, Fragment)
            for cut in range(located.start, located.end):
                r = ByteReader(data, located.start, cut)
                low_latency = batch.low_latency or located.frame is not None
                try:
                    got = list(walk(r, low_latency=low_latency))
                except DecodeError as error:
                    assert located.start <= error.offset <= cut
                    assert error.field
                else:
                    assert cut in ends or fragmented, batch.name
                    assert not got or isinstance(got[0].message, Fragment)


def test_with_trailing_bytes_the_message_is_the_same() -> None:
    for batch in ACCEPTED:
        if batch.scouting or batch.low_latency:
            continue
        whole = walked(batch, batch.data)
        if whole and isinstance(whole[-1].message, Fragment):
            continue
        tail = walked(batch, batch.data + b"\x04")
        assert [t.message for t in tail[:-1]] == [w.message for w in whole]


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_what_rust_refuses_is_refused(name: str, reason: Reason) -> None:
    (batch,) = [batch for batch in BATCHES if batch.name == name]
    with pytest.raises(DecodeError) as caught:
        read_batch(batch.data)
    assert caught.value.reason is reason


def test_all_kinds_of_message_were_recorded() -> None:
    """So that a recording that lost a scenario is noticed."""
    seen = set()
    for batch in ACCEPTED:
        if batch.scouting:
            seen.add(type(read_scouting(batch.data)).__name__)
            continue
        for located in walked(batch, batch.data):
            message = located.message
            seen.add(type(message).__name__)
            if not isinstance(message, Frame) and hasattr(message, "body"):
                seen.add(type(message.body).__name__)
    assert seen >= {
        *[
            "WireScout",
            "WireHello",
            "Init",
            "Open",
            "Close",
            "KeepAlive",
            "Frame",
            "Fragment",
            "Join",
        ],
        *["Push", "Request", "Response", "ResponseFinal", "Declare", "Interest", "NetworkOam"],
        *["Put", "Del", "WireQuery", "WireReply", "Err"],
        *["DeclareKeyExpr", "DeclareSubscriber", "UndeclareSubscriber", "DeclareQueryable"],
        *["UndeclareQueryable", "DeclareToken", "UndeclareToken", "DeclareFinal"],
    }
