"""A transport session as a face of the routing, and its cached routes.

Knows which route each key takes that its peer uses. Does not compute routes: exchange.py does.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from zenlake.caching import BoundedCache
from zenlake.keyexpr import KeyExpr
from zenlake.routing import Face
from zenlake.wire.declare import Declare, DeclareSubscriber
from zenlake.wire.network import NetworkMessage
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    from zenlake.runtime.transport_session import TransportSession

MAX_ROUTES = 8192  # Cached routes per session; when there are more, the cache is emptied.
MAX_REPEATED = 1024  # Declarations of a group member that are known by their bytes.
MAX_REPEATED_BYTES = 256  # Longest of them.

ReceivedKey = int | tuple[int, bytes]
"""A key as the peer wrote it: mapping and scope as one number (`keytable.number_of`), with the
suffix if there is one."""

LocalSubscribers = tuple[Any, ...]
"""Subscriber objects of the local session. The runtime compares them and hands them back; it never
looks inside. Equal sets are the identical tuple."""


class ForwardingFace(NamedTuple):
    """Another session that wants a key, with the key as that session knows it."""

    session_face: "SessionFace"
    wire: WireExpr
    flags: int
    "Header flags of a message with this key."
    encoded: bytes
    "The key's bytes."


@dataclass(slots=True, eq=False)
class InboundRoute:
    """Cached routing decision for one inbound key: local subscribers, sessions to forward to."""

    key: KeyExpr
    local: LocalSubscribers
    out: tuple[ForwardingFace, ...]


class RepeatedDeclarations:
    """Subscribers that a member of a group has declared, as the bytes of those messages.

    Rust members with a subscriber of the same key declare it to each other without end
    (hat/peer/pubsub.rs, `propagate_subscriber`): thousands of messages per datagram.
    """

    __slots__ = ("_by_size", "_count")

    def __init__(self) -> None:
        self._by_size: dict[int, set[bytes]] = {}
        self._count = 0

    def skip(self, data: bytes, pos: int, end: int) -> int:
        """Return where the known declarations from `pos` on end."""
        sizes = self._by_size.items()
        found = True
        while found:
            found = False
            for size, known in sizes:
                if data[pos : pos + size] in known and pos + size <= end:
                    pos += size
                    found = True
                    break
        return pos

    def note(self, message: NetworkMessage, data: bytes) -> None:
        """Remember `message`, which `data` is, if it declares a subscriber; forget what an
        undeclaration or a key id may change."""
        if type(message) is not Declare:
            return
        is_subscriber = type(message.body) is DeclareSubscriber
        if not is_subscriber or self._count >= MAX_REPEATED:
            self._by_size.clear()
            self._count = 0
        if is_subscriber and len(data) <= MAX_REPEATED_BYTES:
            self._by_size.setdefault(len(data), set()).add(data)
            self._count += 1


class SessionFace:
    """One transport session as a face of the routing."""

    __slots__ = ("face", "pauses", "repeated", "routes", "session", "throttled_by")

    def __init__(self, session: "TransportSession", face: Face) -> None:
        self.session = session
        self.face = face
        self.pauses = 0
        "Number of receivers that keep this session paused."
        self.throttled_by: set[SessionFace] = set()
        "Sessions among those receivers: they drain more slowly than this session sends."
        self.routes: BoundedCache[ReceivedKey, InboundRoute] = BoundedCache(MAX_ROUTES)
        "Routes of the current version, by the key as received."
        self.repeated: RepeatedDeclarations | None = None
        "Of a member of a group."
