"""Delivery: received messages as objects, given to a callback on a thread of its own.

Knows decoding and back-pressure: a callback that is slow makes its own peers wait, nobody else.
Does not know what messages mean.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from zenlake.errors import SessionEnded
from zenlake.runtime.reactor import guard
from zenlake.runtime.transport_session import TransportSession
from zenlake.wire.cursor import ByteReader
from zenlake.wire.enums import WirePriority
from zenlake.wire.network import NETWORK, NetworkMessage, is_network
from zenlake.wire.oam import LINK_STATE, NetworkOam

log = logging.getLogger("zenlake.runtime")

MAX_CALLS = 256  # that wait for the thread; then their session is not read any more
MAX_BYTES = 64 << 20  # the same, for the bytes that they came in and what they take as objects
MESSAGE_BYTES = 128  # what the smallest message takes as an object
STOP_SECONDS = 5.0

Received = tuple[NetworkMessage, WirePriority, bool]
OnMessage = Callable[[TransportSession, NetworkMessage, WirePriority, bool], None]
"(session, message, priority, reliable)"


def read_messages(
    session: TransportSession,
    priority: WirePriority,
    reliable: bool,
    data: bytes,
    pos: int,
    end: int,
    found: list[Received],
) -> int:
    """Add the network messages from `pos` on to `found`; gives where they end.

    DecodeError: what stands before the bad one has been added. The node hears of link states.
    """
    r = ByteReader(data, pos, end)
    while r.pos < end and is_network(data[r.pos]):
        message = NETWORK.read(r)
        if type(message) is NetworkOam and message.id == LINK_STATE:
            session.link_states(message.body)
        found.append((message, priority, reliable))
    return r.pos


class Inline:
    """Calls back on the I/O thread itself: the shortest way, for callbacks that never wait.

    A callback that raises is logged; what comes after is delivered all the same.
    """

    def __init__(
        self,
        on_message: OnMessage,
        on_open: Callable[[TransportSession], None] | None = None,
        on_close: Callable[[TransportSession, SessionEnded], None] | None = None,
    ) -> None:
        self._on_message = on_message
        self._on_open = on_open
        self._on_close = on_close

    def opened(self, session: TransportSession) -> None:
        if self._on_open is not None:
            self._on_open(session)

    def on_frame(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        found: list[Received] = []
        try:
            return read_messages(session, priority, reliable, data, pos, end, found)
        finally:
            self._deliver(session, found)

    def closed(self, session: TransportSession, why: SessionEnded) -> None:
        if self._on_close is not None:
            self._on_close(session, why)

    def _deliver(self, session: TransportSession, messages: list[Received]) -> None:
        for message in messages:
            guard(self._on_message, session, *message)


class Delivery(Inline):
    """Calls back on its own thread, in the order in which things came."""

    def __init__(
        self,
        on_message: OnMessage,
        on_open: Callable[[TransportSession], None] | None = None,
        on_close: Callable[[TransportSession, SessionEnded], None] | None = None,
        *,
        name: str = "zenlake delivery",
    ) -> None:
        super().__init__(on_message, on_open, on_close)
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._paused: dict[TransportSession, None] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def opened(self, session: TransportSession) -> None:
        self._put(0, lambda: super(Delivery, self).opened(session))

    def on_frame(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        found: list[Received] = []
        try:
            return read_messages(session, priority, reliable, data, pos, end, found)
        finally:
            size = end - pos + len(found) * MESSAGE_BYTES
            self._put(size, lambda: self._deliver(session, found))
            self._limit(session)

    def closed(self, session: TransportSession, why: SessionEnded) -> None:
        self._put(0, lambda: super(Delivery, self).closed(session, why))

    def stop(self) -> None:
        """Deliver what waits, then end the thread. From a callback: without waiting for that."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                log.error("%s: a callback did not end in %g s", self._thread.name, STOP_SECONDS)

    def _put(self, size: int, call: Callable[[], None]) -> None:
        with self._changed:
            self._queue.append((size, call))
            self._waiting_bytes += size
            self._changed.notify()

    def _limit(self, session: TransportSession) -> None:
        """Read no more from `session` while too much waits."""
        with self._changed:
            if len(self._queue) >= MAX_CALLS or self._waiting_bytes >= MAX_BYTES:
                self._paused[session] = None
                session.pause()

    def _take(self) -> Callable[[], None] | None:
        """What to call next; None: no more will come."""
        with self._changed:
            while not self._queue:
                if self._stopping:
                    return None
                self._changed.wait()
            size, call = self._queue.popleft()
            self._waiting_bytes -= size
            if self._waiting_bytes <= MAX_BYTES // 2 and len(self._queue) <= MAX_CALLS // 2:
                for waiting in self._paused:
                    waiting.resume()
                self._paused.clear()
            return call

    def _run(self) -> None:
        while (call := self._take()) is not None:
            guard(call)
