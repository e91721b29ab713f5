"""Messages of every critical size, whole or in fragments, each way, from either side."""

import pytest

from tests.support.interop_conversation import (
    COMMON_PAIRS,
    Offered,
    Ours,
    Pair,
    both_send,
    conversation,
)
from tests.support.reference_peer import ReferenceProcess

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

OVERHEAD = 48  # More bytes than prefix, FRAME, PUSH and PUT take around a payload.
KIB, MIB = 1 << 10, 1 << 20
SIZES = [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB, 16 * MIB, 1, 0]


@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_messages_of_every_size_arrive_both_ways(reference: ReferenceProcess, pair: Pair) -> None:
    with conversation(reference, pair, ours := Ours(pair.ours)) as (session, them):
        both_send(ours, session, them, SIZES, noise=True)
        assert not session.counters.receive_dropped


@pytest.mark.parametrize("batch_size", [None, 2048, 100], ids=["default", "2048", "100"])
@pytest.mark.parametrize("pair", COMMON_PAIRS, ids=str)
def test_sizes_about_one_batch(
    reference: ReferenceProcess, pair: Pair, batch_size: int | None
) -> None:
    """The payload, and with it the whole message and its frame, pass the batch size one by one."""
    offer: Offered = {} if batch_size is None else {"batch_size": batch_size}
    with conversation(reference, pair, ours := Ours(pair.ours, **offer)) as (session, them):
        agreed = session.agreement.batch_size
        assert batch_size in (None, agreed)
        both_send(ours, session, them, list(range(agreed - OVERHEAD, agreed + 2)), noise=True)
        assert not session.counters.receive_dropped
