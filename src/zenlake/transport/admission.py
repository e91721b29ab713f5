"""Admission: limits on the handshakes under way and on the open sessions of one node.

The node asks here for every accepted link before its first byte is read, so that TLS and WebSocket
handshakes count too. Does not know links.
"""

from collections import Counter
from dataclasses import dataclass

from zenlake.wire.enums import CloseReason
from zenlake.wire.zenohid import WireZenohId


@dataclass(frozen=True)
class AdmissionLimits:
    """Upper bounds on handshakes and sessions."""

    pending: int = 100
    "Handshakes under way at the same time."
    pending_per_address: int = 20
    "Handshakes under way from one address."
    seconds: float = 10.0
    "Duration of a handshake, from accept to the open session."
    sessions: int = 1000
    "Open sessions."


@dataclass(frozen=True, eq=False, slots=True)
class Ticket:
    """One handshake under way."""

    address: str
    limited: bool


@dataclass(frozen=True)
class Refusal:
    """Refusal of a session: the reason for CLOSE, and a text with cause and remedy."""

    reason: CloseReason
    why: str


class Admission:
    """Handshakes under way and sessions of one node, counted against its limits."""

    def __init__(self, zid: WireZenohId, limits: AdmissionLimits | None = None) -> None:
        self.limits = limits or AdmissionLimits()
        self.refused: Counter[str] = Counter()
        "Number of refusals, by the name of the limit, or `max_links`, or `self`."
        self._zid = zid
        self._pending: set[Ticket] = set()
        self._by_address: Counter[str] = Counter()
        self._sessions: set[WireZenohId] = set()

    def enter(self, address: str, limited: bool = True) -> Ticket | str:
        """Return a ticket for a new handshake, or the text of its refusal.

        `limited`: whether the limit per address applies; it does not where all peers share one
        address, as with Unix sockets.
        """
        limits = self.limits
        if len(self._pending) >= limits.pending:
            self.refused["pending"] += 1
            return (
                f"{address}: {limits.pending} handshakes are under way; "
                "raise the limit `pending` if they are wanted"
            )
        if limited and self._by_address[address] >= limits.pending_per_address:
            self.refused["pending_per_address"] += 1
            return (
                f"{address}: {limits.pending_per_address} handshakes from this address are under "
                "way; raise the limit `pending_per_address` if they are wanted"
            )
        ticket = Ticket(address, limited)
        self._pending.add(ticket)
        if limited:
            self._by_address[address] += 1
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """End a handshake, successful or not. May be called again."""
        if ticket not in self._pending:
            return
        self._pending.remove(ticket)
        if ticket.limited:
            self._by_address[ticket.address] -= 1
            if not self._by_address[ticket.address]:
                del self._by_address[ticket.address]

    def open_session(self, zid: WireZenohId) -> Refusal | None:
        """Reserve a session with node `zid`; return the refusal if it is not admitted."""
        if zid == self._zid:
            return self._refuse(
                "self",
                CloseReason.CONNECTION_TO_SELF,
                f"{zid} is this node's own id; remove its own locator from its connect endpoints, "
                "or give the other node another id",
            )
        if zid in self._sessions:
            return self._refuse(
                "max_links",
                CloseReason.MAX_LINKS,
                f"{zid} has a session here already, and a session has one link; "
                "if they are two nodes, give each its own id",
            )
        if len(self._sessions) >= self.limits.sessions:
            return self._refuse(
                "sessions",
                CloseReason.INVALID,
                f"{zid}: {self.limits.sessions} sessions are open; raise the limit `sessions`",
            )
        self._sessions.add(zid)
        return None

    def close_session(self, zid: WireZenohId) -> None:
        """Release the reservation of `open_session`; not after a refusal. May be called again."""
        self._sessions.discard(zid)

    def _refuse(self, name: str, reason: CloseReason, why: str) -> Refusal:
        self.refused[name] += 1
        return Refusal(reason, why)
