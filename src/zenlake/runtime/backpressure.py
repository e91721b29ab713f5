"""Back-pressure: pausing the sessions whose receivers cannot follow.

Knows how much may wait for a receiver and when a receiver counts as stuck. Does not know messages.
"""

from typing import TYPE_CHECKING

from zenlake.runtime.local_delivery import Backpressured
from zenlake.runtime.session_face import SessionFace
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.outbox import BLOCK_SECONDS, STUCK_SECONDS

if TYPE_CHECKING:
    from zenlake.runtime.exchange import Exchange

MAX_LAG_BYTES = 8 << 20  # Backlog per receiver above which the sessions that send to it are paused.
RECHECK_SECONDS = 0.01  # Interval at which a lagging receiver is looked at.


class Backpressure:
    """Pauses and resumes the reading of an exchange's sessions."""

    def __init__(self, exchange: "Exchange") -> None:
        self._exchange = exchange

    def pause_until_room(self, session_face: SessionFace, full: Backpressured) -> None:
        """Pause `session_face` until `full`, a local sink that it filled, has room."""
        self._pause(session_face)
        full.when_room(lambda: self._resume(session_face))

    def throttle(self, session_face: SessionFace, other: SessionFace) -> None:
        """Pause `session_face` while `other`, which it sends to, is draining slowly."""
        if other.session.lag[1] is None:
            return  # It has no backlog: the usual case, for every forwarded message.
        if other not in session_face.throttled_by and self._is_lagging(other.session):
            session_face.throttled_by.add(other)
            self._pause(session_face)
            self._recheck(session_face, other)

    def _recheck(self, session_face: SessionFace, other: SessionFace) -> None:
        if self._is_lagging(other.session):
            self._exchange.call_later(RECHECK_SECONDS, lambda: self._recheck(session_face, other))
        else:
            session_face.throttled_by.discard(other)
            self._resume(session_face)

    def holds_senders(self, other: SessionFace) -> bool:
        """Return whether senders of this process wait for `other`: as long as one that blocks."""
        return self._is_lagging(other.session, BLOCK_SECONDS)

    def _is_lagging(self, session: TransportSession, patience: float = STUCK_SECONDS) -> bool:
        """Whether `session` has a large backlog of messages that must not be dropped, and makes
        progress with it: one that is stuck pauses no session."""
        waiting, since = session.lag
        if since is None or waiting <= MAX_LAG_BYTES:
            return False
        return self._exchange.now() - since < patience

    def _pause(self, session_face: SessionFace) -> None:
        with self._exchange.lock:
            session_face.pauses += 1
        session_face.session.pause()

    def _resume(self, session_face: SessionFace) -> None:
        """Remove one cause of a pause; read on if it was the last. Called on any thread."""
        with self._exchange.lock:
            session_face.pauses -= 1
            if session_face.pauses:
                return
        session_face.session.resume()
