"""Sequence numbers of every resolution, across the wrap, each way, from either side."""

import secrets

import pytest

from tests.golden.nodes import B_ID
from tests.golden.scenarios import WRAPS_32BIT
from tests.support.interop_conversation import (
    COMMON_PAIRS,
    EXPRESS,
    Offered,
    Ours,
    Pair,
    both_send,
    conversation,
    they_send,
    we_send,
)
from tests.support.reference_peer import ReferencePeer, ReferenceProcess, Settings
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.offer import SN_MASKS
from zenlake.wire.zenohid import WireZenohId

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

RESOLUTION = "transport/link/tx/sequence_number_resolution"
REQUEST_IDS = 0x08  # 32 bits; the low bits are the sequence numbers'
BITS = ("8bit", "16bit", "32bit")
SMALL = 16  # Bytes per message.
MAX_ROUNDS = 10
NEAR = 40  # Largest distance between the start of a session and the wrap.


def resolution(bits: str) -> int:
    return REQUEST_IDS | BITS.index(bits)


def cross(session: TransportSession, ours: Ours, them: ReferencePeer, frames: int) -> None:
    """Express messages both ways until more than `frames` frames went each way.

    Express is a wish: what waits for a busy link may still share a frame.
    """
    sent, got = session.counters.sent_batches, session.counters.received_frames
    for _ in range(MAX_ROUNDS):
        we_send(session, them, [SMALL] * (frames // 2), qos=EXPRESS)
        if session.counters.sent_batches - sent > frames:
            break
    for _ in range(MAX_ROUNDS):
        they_send(ours, them, [SMALL] * (frames // 2), express=True)
        if session.counters.received_frames - got > frames:
            break
    assert session.counters.sent_batches - sent > frames
    assert session.counters.received_frames - got > frames
    assert not any(lane.missing or lane.stale for lane in session.sequences.values())


@pytest.mark.parametrize("whose", ["both", "ours", "theirs"])
@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_8_bits_wrap(reference: ReferenceProcess, pair: Pair, whose: str) -> None:
    """Three times around, with the lower resolution offered by either side or both."""
    offer: Offered = {} if whose == "theirs" else {"resolution": resolution("8bit")}
    settings: Settings = {} if whose == "ours" else {RESOLUTION: "8bit"}
    with conversation(reference, pair, ours := Ours(pair.ours, **offer), settings) as (
        session,
        them,
    ):
        assert session.agreement.sn_mask == 0x7F
        cross(session, ours, them, 3 * 128)
        both_send(ours, session, them, [5_000_000, 1, 9_000_000, 1])  # over 64 and over 128 pieces


@pytest.mark.parametrize("pair", COMMON_PAIRS[:2], ids=str)
def test_16_bits_wrap(reference: ReferenceProcess, pair: Pair) -> None:
    ours = Ours(pair.ours, resolution=resolution("16bit"))
    with conversation(reference, pair, ours, {RESOLUTION: "16bit"}) as (session, them):
        assert session.agreement.sn_mask == 0x3FFF
        cross(session, ours, them, 0x4000)


def near_the_wrap(size: int) -> bytes:
    """Entropy, but for the four bytes that a first sequence number is made of."""
    if size != 4:
        return secrets.token_bytes(size)
    return (SN_MASKS[2] - NEAR // 2).to_bytes(4, "little")


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_28_bits_wrap(reference: ReferenceProcess, pair: Pair) -> None:
    """Theirs starts at a hash of both ids, which are chosen so that it starts near the wrap."""
    ours = Ours(pair.ours, zid=WireZenohId.parse(B_ID), entropy=near_the_wrap)
    with conversation(reference, pair, ours, {"id": WRAPS_32BIT}) as (session, them):
        assert session.agreement.sn_mask == 0x0FFF_FFFF
        for first in (session.agreement.initial_sn, session.agreement.peer_initial_sn):
            assert SN_MASKS[2] - NEAR < first <= SN_MASKS[2]
        cross(session, ours, them, 4 * NEAR)
        both_send(ours, session, them, [1_000_000, 1])


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_a_large_message_across_the_wrap(reference: ReferenceProcess, pair: Pair) -> None:
    """The number after its last piece is skipped; the pieces themselves pass the wrap."""
    ours = Ours(pair.ours, zid=WireZenohId.parse(B_ID), entropy=near_the_wrap)
    with conversation(reference, pair, ours, {"id": WRAPS_32BIT}) as (session, them):
        both_send(ours, session, them, [5_000_000, 1, 5_000_000, 1], noise=True)
        assert not session.counters.receive_dropped


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_64_bits_are_lowered_to_32(reference: ReferenceProcess, pair: Pair) -> None:
    """Their configuration cannot say 64 bits: their 32 are what remains of our offer."""
    with conversation(reference, pair, ours := Ours(pair.ours, resolution=0x0F)) as (session, them):
        assert session.agreement.resolution & 0x03 == 2
        assert session.agreement.sn_mask == 0x0FFF_FFFF
        both_send(ours, session, them, [SMALL] * 100)
