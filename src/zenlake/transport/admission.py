"""Admission: limits on the handshakes under way and on the open sessions of one node.

Counts sessions, and refuses those beyond the limit, a second one with the same node, and one with
the node itself. Does not know links: the node itself counts the handshakes that it accepted.
"""

from dataclasses import dataclass

from zenlake.wire.enums import CloseReason
from zenlake.wire.zenohid import WireZenohId

MAX_PENDING = 10_000  # As in the configuration of rmw_zenohd.
MAX_SESSIONS = 10_000  # As in the configuration of rmw_zenohd.
ACCEPT_SECONDS = 10.0  # As in the configuration of zenohd.


@dataclass(frozen=True)
class AdmissionLimits:
    """Upper bounds on handshakes and sessions."""

    pending: int = MAX_PENDING
    "Accepted handshakes under way at the same time; further links wait to be accepted."
    seconds: float = ACCEPT_SECONDS
    "Duration of a handshake, from accept to the open session."
    sessions: int = MAX_SESSIONS
    "Open sessions."


@dataclass(frozen=True)
class Refusal:
    """Refusal of a session: the reason for CLOSE, and a text with cause and remedy."""

    reason: CloseReason
    why: str


class Admission:
    """Sessions of one node, counted against its limit."""

    def __init__(self, zid: WireZenohId, limits: AdmissionLimits | None = None) -> None:
        self.limits = limits or AdmissionLimits()
        self._zid = zid
        self._sessions: set[WireZenohId] = set()

    def open_session(self, zid: WireZenohId) -> Refusal | None:
        """Reserve a session with node `zid`; return the refusal if it is not admitted."""
        if zid == self._zid:
            return Refusal(
                CloseReason.CONNECTION_TO_SELF,
                f"{zid} is this node's own id; remove its own locator from its connect endpoints, "
                "or give the other node another id",
            )
        if zid in self._sessions:
            return Refusal(
                CloseReason.MAX_LINKS,
                f"{zid} has a session here already, and a session has one link; "
                "if they are two nodes, give each its own id",
            )
        if len(self._sessions) >= self.limits.sessions:
            return Refusal(
                CloseReason.MAX_SESSIONS,
                f"{zid}: {self.limits.sessions} sessions are open; close some, or raise "
                "transport/unicast/max_sessions",
            )
        self._sessions.add(zid)
        return None

    def close_session(self, zid: WireZenohId) -> None:
        """Release the reservation of `open_session`; not after a refusal. May be called again."""
        self._sessions.discard(zid)
