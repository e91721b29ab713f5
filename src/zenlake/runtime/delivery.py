"""Delivery: received messages as objects, given to a callback on a thread of its own.

Knows decoding and back-pressure: a callback that is slow makes its own peers wait, nobody else.
Does not know what messages mean.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from zenlake.errors import SessionEnded
from zenlake.runtime.session import Session
from zenlake.wire.cursor import Reader
from zenlake.wire.enums import Priority
from zenlake.wire.network import NETWORK, NetworkMessage, is_network
from zenlake.wire.oam import LINK_STATE, NetworkOam

log = logging.getLogger("zenlake.runtime")

MAX_BATCHES = 256  # that wait for the callback; then their session is not read any more
RESUME_BATCHES = MAX_BATCHES // 2
STOP_SECONDS = 5.0

Received = tuple[NetworkMessage, Priority, bool]
OnMessage = Callable[[Session, NetworkMessage, Priority, bool], None]
"(session, message, priority, reliable)"


def read_messages(
    session: Session, priority: Priority, reliable: bool, data: bytes, pos: int, end: int
) -> tuple[list[Received], int]:
    """The network messages from `pos` on, and where they end. The node hears of link states."""
    r = Reader(data, pos, end)
    found: list[Received] = []
    while r.pos < end and is_network(data[r.pos]):
        message = NETWORK.read(r)
        if type(message) is NetworkOam and message.id == LINK_STATE:
            session.link_states(message.body)
        found.append((message, priority, reliable))
    return found, r.pos


class Inline:
    """Calls back on the I/O thread itself: the shortest way, for callbacks that never wait."""

    def __init__(
        self,
        on_message: OnMessage,
        on_open: Callable[[Session], None] | None = None,
        on_close: Callable[[Session, SessionEnded], None] | None = None,
    ) -> None:
        self._on_message = on_message
        self._on_open = on_open
        self._on_close = on_close

    def opened(self, session: Session) -> None:
        if self._on_open is not None:
            self._on_open(session)

    def frame(
        self, session: Session, priority: Priority, reliable: bool, data: bytes, pos: int, end: int
    ) -> int:
        messages, pos = read_messages(session, priority, reliable, data, pos, end)
        for message in messages:
            self._on_message(session, *message)
        return pos

    def closed(self, session: Session, why: SessionEnded) -> None:
        if self._on_close is not None:
            self._on_close(session, why)


class Delivery(Inline):
    """Calls back on its own thread, in the order in which things came."""

    def __init__(
        self,
        on_message: OnMessage,
        on_open: Callable[[Session], None] | None = None,
        on_close: Callable[[Session, SessionEnded], None] | None = None,
        *,
        name: str = "zenlake delivery",
    ) -> None:
        super().__init__(on_message, on_open, on_close)
        self._queue: deque[tuple[Session, list[Received]]] = deque()
        self._changed = threading.Condition()
        self._paused: dict[Session, None] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def frame(
        self, session: Session, priority: Priority, reliable: bool, data: bytes, pos: int, end: int
    ) -> int:
        messages, pos = read_messages(session, priority, reliable, data, pos, end)
        with self._changed:
            self._queue.append((session, messages))
            if len(self._queue) >= MAX_BATCHES:
                self._paused[session] = None
                session.pause()
            self._changed.notify()
        return pos

    def stop(self) -> None:
        """Deliver what waits, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopping:
                    self._changed.wait()
                if not self._queue:
                    return
                session, messages = self._queue.popleft()
                if self._paused and len(self._queue) <= RESUME_BATCHES:
                    for waiting in self._paused:
                        waiting.resume()
                    self._paused.clear()
            for message in messages:
                try:
                    self._on_message(session, *message)
                except Exception:
                    log.exception("a callback failed")
