"""A transport session as a face of the routing, and its cached routes.

Knows which route each key takes that its peer uses. Does not compute routes: exchange.py does.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from zenlake.caching import BoundedCache
from zenlake.keyexpr import KeyExpr
from zenlake.routing import Face
from zenlake.wire.wireexpr import WireExpr

if TYPE_CHECKING:
    from zenlake.runtime.transport_session import TransportSession

MAX_ROUTES = 8192  # Cached routes per session; when there are more, the cache is emptied.

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


class SessionFace:
    """One transport session as a face of the routing."""

    __slots__ = ("face", "pauses", "routes", "session", "throttled_by")

    def __init__(self, session: "TransportSession", face: Face) -> None:
        self.session = session
        self.face = face
        self.pauses = 0
        "Number of receivers that keep this session paused."
        self.throttled_by: set[SessionFace] = set()
        "Sessions among those receivers: they drain more slowly than this session sends."
        self.routes: BoundedCache[ReceivedKey, InboundRoute] = BoundedCache(MAX_ROUTES)
        "Routes of the current version, by the key as received."
