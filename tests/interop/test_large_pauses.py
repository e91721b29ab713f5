"""Messages in fragments that stop for longer than a lease behind a full handler, and go on."""

import threading
import time
from typing import Any

import pytest

from tests.golden.proxy import free_port
from tests.support.interop_pair import OURS, THEIRS, open_session, unique
from tests.support.waiting import until
from zenlake.transport import fragments

pytestmark = pytest.mark.interop

LEASE_MS = (
    500  # Lease of the receiver; the reference ends a session whose sender's lease it blocks.
)
PAUSE = 4 * LEASE_MS / 1000  # Seconds, below the 5 s after which a blocked sender closes.
LARGE = 16 << 20  # Bytes: more than the buffers of both sockets hold.
PATIENCE = 30.0
RECEIVER = {"transport/link/tx/lease": LEASE_MS}
SENDER = {
    "transport/link/tx/queue/congestion_control/block/wait_before_close": 60_000_000,
}


@pytest.mark.parametrize(
    ("sends", "receives"),
    [(THEIRS, OURS), (OURS, THEIRS)],
    ids=["theirs to ours", "ours to theirs"],
)
def test_a_full_handler_for_longer_than_a_lease_loses_no_fragment(
    sends: Any, receives: Any
) -> None:
    """Urgent messages fill the handler while a large one is under way on a lower lane."""
    at, key = f"tcp/127.0.0.1:{free_port()}", unique("large")
    payload = bytes(range(256)) * (LARGE // 256)
    block = sends.CongestionControl.BLOCK
    with (
        open_session(receives, "peer", listen=at, settings=RECEIVER) as receiver,
        open_session(sends, "peer", connect=(at,), settings=SENDER) as sender,
    ):
        subscriber = receiver.declare_subscriber(f"{key}/*", receives.handlers.FifoChannel(1))
        large = sender.declare_publisher(f"{key}/large", congestion_control=block)
        urgent = sender.declare_publisher(
            f"{key}/urgent", congestion_control=block, priority=sends.Priority.REAL_TIME
        )
        until(lambda: large.matching_status.matching and urgent.matching_status.matching)
        for _ in range(4):
            urgent.put(b"fills the handler")
        putting = threading.Thread(target=large.put, args=(payload,))
        putting.start()
        time.sleep(0.2)  # Most of the message waits for room by now; if not, it is tested less.
        for _ in range(4):
            urgent.put(b"between fragments")
        taken: list[bytes] = []

        def take() -> int:
            sample = subscriber.try_recv()
            if sample is not None:
                taken.append(sample.payload.to_bytes())
            return len(taken)

        if receives is OURS:  # Until the handler is full again, and the message unfinished.
            until(lambda: fragments.PROCESS.held or take() < 0, within=PATIENCE)
        time.sleep(PAUSE)
        until(take, lambda count: count == 9, PATIENCE)
        putting.join(PATIENCE)
        assert sorted(map(len, taken)) == [17] * 8 + [LARGE]
        assert payload in taken
        assert not subscriber.try_recv()
