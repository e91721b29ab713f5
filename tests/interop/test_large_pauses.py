"""Messages in fragments that stop for longer than a lease behind a full handler, or behind messages
of a higher priority, and go on."""

import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest

from tests.golden.proxy import free_port
from tests.support.interop_pair import OURS, THEIRS, open_session, unique
from tests.support.routed_sessions import routed
from tests.support.waiting import until
from zenlake.transport import fragments

pytestmark = pytest.mark.interop

LEASE_MS = (
    2000  # Lease of the receiver; the reference ends a session whose sender's lease it blocks.
)
PAUSE = 1.5 * LEASE_MS / 1000  # Seconds, below the 5 s after which a blocked sender closes.
LARGE = 16 << 20  # Bytes: more than the buffers of both sockets hold.
PATIENCE = 30.0
RECEIVER = {"transport/link/tx/lease": LEASE_MS}
SENDER = {
    "transport/link/tx/queue/congestion_control/block/wait_before_close": 60_000_000,
}
STARVING_LEASE_MS = 2000  # Lease of the receiver, and of a router, behind a flood.
STARVED_LEASES = 2
FLOODS = 2  # Threads, so that a message always waits for room.
URGENT = bytes(30_000)


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


@pytest.mark.parametrize("through", ["one link", "our router"])
@pytest.mark.parametrize(
    ("sends", "receives"),
    [(THEIRS, OURS), (OURS, THEIRS), (OURS, OURS)],
    ids=["theirs to ours", "ours to theirs", "ours to ours"],
)
def test_a_message_that_urgent_ones_starve_for_longer_than_a_lease_arrives(
    sends: Any, receives: Any, through: str
) -> None:
    key, lease = unique("starved"), {"transport/link/tx/lease": STARVING_LEASE_MS}
    payload = bytes(range(256)) * (LARGE // 256)
    block = sends.CongestionControl.BLOCK
    with ExitStack() as stack:
        if through == "our router":
            lease_of_router = {"transport__link__tx__lease": str(STARVING_LEASE_MS)}
            router = stack.enter_context(routed(**lease_of_router)).router
            (at,) = router.locators
            receiver = open_session(receives, "client", connect=(at,), settings=lease)
        else:
            at = f"tcp/127.0.0.1:{free_port()}"
            receiver = open_session(receives, "peer", listen=at, settings=lease)
        stack.callback(receiver.close)
        sender = stack.enter_context(open_session(sends, "client", connect=(at,), settings=SENDER))
        subscriber = receiver.declare_subscriber(f"{key}/*", receives.handlers.FifoChannel(1))
        large = sender.declare_publisher(
            f"{key}/large", congestion_control=block, priority=sends.Priority.BACKGROUND
        )
        urgent = sender.declare_publisher(
            f"{key}/urgent", congestion_control=block, priority=sends.Priority.REAL_TIME
        )
        until(lambda: large.matching_status.matching and urgent.matching_status.matching)
        sizes: list[int] = []
        over = threading.Event()
        sent = [0] * FLOODS

        def flood(number: int) -> None:
            while not over.is_set():
                urgent.put(URGENT)
                sent[number] += 1

        def take() -> int:
            sample = subscriber.try_recv()
            if sample is not None:
                sizes.append(len(sample.payload))
            return len(sizes)

        threads = [threading.Thread(target=flood, args=(number,)) for number in range(FLOODS)]
        for thread in threads:
            thread.start()
        try:
            until(take, lambda count: count >= 50, PATIENCE)
            threads.append(threading.Thread(target=large.put, args=(payload,)))
            threads[-1].start()
            end = time.monotonic() + STARVED_LEASES * STARVING_LEASE_MS / 1000
            until(lambda: take() and time.monotonic() > end, within=PATIENCE)
            # Threads of ours that wait for room are woken too late to leave no gap between them.
            assert sends is OURS or LARGE not in sizes, "nothing starved it"
        finally:
            over.set()
        until(lambda: take() and not any(thread.is_alive() for thread in threads), within=PATIENCE)
        until(take, lambda count: count >= sum(sent) + 1, PATIENCE)
        assert sorted(sizes) == [len(URGENT)] * sum(sent) + [LARGE]
