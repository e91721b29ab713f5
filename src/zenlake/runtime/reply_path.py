"""Way back of the replies to one request, for replies that are encoded many at a time.

Knows the query that the replies belong to, and the session that sent it. Does not send:
exchange.py does, under its lock.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from zenlake.routing.queries import PendingQuery
from zenlake.wire.response import Response

if TYPE_CHECKING:
    from zenlake.runtime.transport_session import TransportSession
    from zenlake.wire.emit import Emitter
    from zenlake.wire.kernels.emit import PushColumns


class ReplyPath:
    """Open query of another session, as its replies need it."""

    like: Response
    "Reply that all others are like, but for key and body: see `emitter`."

    def __init__(
        self, requests: dict[int, PendingQuery], request_id: int, query: PendingQuery
    ) -> None:
        self.query = query
        self.session: TransportSession = query.face.link.session
        self.broken = False
        "Whether the session has ended, though routing may not know yet."
        self.refused = 0
        "Number of replies that were too large."
        self._requests, self._request_id = requests, request_id

    @property
    def is_open(self) -> bool:
        """Whether the query may still have replies: it has not ended, nor timed out."""
        return not self.broken and self._requests.get(self._request_id) is self.query

    def emitter(self, columns: "PushColumns", like: Response) -> "Emitter":
        """Return an encoder of `columns` as replies; all but keys and bodies is that of `like`.
        SessionEnded: the session has ended."""
        from zenlake.wire.emit import response_envelope

        query = self.query
        self.like = replace(like, request_id=query.id, qos=query.qos)
        envelope = response_envelope(self.like)
        return self.session.reply_emitter(columns, envelope, query.qos.priority)

    def wait_for_room(self, seconds: float) -> None:
        """Return as soon as the link may have room, and after `seconds` at the latest."""
        self.session.wait_for_room(self.query.qos, seconds)
