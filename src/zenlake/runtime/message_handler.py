"""Node handler that decodes received messages into objects and calls back.

Knows the object codec. Does not know what messages mean.
"""

from collections.abc import Callable

from zenlake.errors import SessionEnded
from zenlake.runtime.reactor import guard
from zenlake.runtime.transport_session import TransportSession
from zenlake.wire.cursor import ByteReader
from zenlake.wire.enums import WirePriority
from zenlake.wire.network import NETWORK, NetworkMessage, is_network
from zenlake.wire.oam import LINK_STATE, NetworkOam

Received = tuple[NetworkMessage, WirePriority, bool]
OnMessage = Callable[[TransportSession, NetworkMessage, WirePriority, bool], None]
"Called with (session, message, priority, reliable)."


def read_messages(
    session: TransportSession,
    priority: WirePriority,
    reliable: bool,
    data: bytes,
    pos: int,
    end: int,
    found: list[Received],
) -> int:
    """Append the network messages from `pos` on to `found`; return where they end.

    Link states go to the session's node too. DecodeError: the messages before the invalid one have
    been appended.
    """
    r = ByteReader(data, pos, end)
    while r.pos < end and is_network(data[r.pos]):
        message = NETWORK.read(r)
        if type(message) is NetworkOam and message.id == LINK_STATE:
            session.link_states(message.body)
        found.append((message, priority, reliable))
    return r.pos


class MessageHandler:
    """Handler that calls back on the I/O thread, for callbacks that never wait.

    A callback that raises is logged, and later messages are still delivered.
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
