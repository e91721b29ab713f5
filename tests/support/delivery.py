"""Delivery: a node's handler that decodes received messages and calls back on its own thread.

Knows back-pressure: it pauses the sessions whose messages wait for a slow callback.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from zenlake.errors import SessionEnded
from zenlake.runtime.message_handler import MessageHandler, OnMessage, Received, read_messages
from zenlake.runtime.reactor import guard
from zenlake.runtime.transport_session import TransportSession
from zenlake.wire.enums import WirePriority

log = logging.getLogger("zenlake.runtime")

MAX_CALLS = 256  # Calls that wait for the thread above which their session is paused.
MAX_BYTES = 64 << 20  # Bytes of waiting messages, as received and as objects, with that effect.
MESSAGE_BYTES = 128  # Memory of the smallest message as an object.
STOP_SECONDS = 5.0  # Time that stop() gives the callback.


class Delivery(MessageHandler):
    """Handler that calls back on its own thread, in the order of the events.

    A slow callback pauses the sessions that send to it, and no other.
    """

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
        """Deliver the queued calls, then end the thread; from a callback without waiting for it."""
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
        """Pause `session` while too many calls or bytes wait."""
        with self._changed:
            if len(self._queue) >= MAX_CALLS or self._waiting_bytes >= MAX_BYTES:
                self._paused[session] = None
                session.pause()

    def _take(self) -> Callable[[], None] | None:
        """Return the next call; None: the thread is to end."""
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
