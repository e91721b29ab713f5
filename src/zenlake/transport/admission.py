"""Admission: who may come in, and how many at a time.

Knows the limits on handshakes under way and on sessions. Does not know links: whoever accepts one
asks here before the first byte is read, so that TLS and WebSocket handshakes count too.
"""

from collections import Counter
from dataclasses import dataclass

from zenlake.wire.enums import CloseReason
from zenlake.wire.zenohid import WireZenohId


@dataclass(frozen=True)
class AdmissionLimits:
    pending: int = 100
    "Handshakes under way."
    pending_per_address: int = 20
    "Of these, from one address."
    seconds: float = 10.0
    "How long a handshake may take, from accept to the open session."
    sessions: int = 1000


@dataclass(frozen=True, eq=False, slots=True)
class Ticket:
    """One handshake under way."""

    address: str
    limited: bool


@dataclass(frozen=True)
class Refusal:
    """Why there is no session: what CLOSE says, and in words."""

    reason: CloseReason
    why: str


class Admission:
    """The door of one node."""

    def __init__(self, zid: WireZenohId, limits: AdmissionLimits | None = None) -> None:
        self.limits = limits or AdmissionLimits()
        self.refused: Counter[str] = Counter()
        "How often, by the limit's name, or `max_links`, or `self`."
        self._zid = zid
        self._pending: set[Ticket] = set()
        self._by_address: Counter[str] = Counter()
        self._sessions: set[WireZenohId] = set()

    def enter(self, address: str, limited: bool = True) -> Ticket | str:
        """A ticket for a handshake that begins, or the refusal in words.

        `limited`: False where `address` is not one peer's but a name that all share, as that of
        unix sockets: the limit for one address says nothing there.
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
        """The handshake is over, whichever way. May be called again."""
        if ticket not in self._pending:
            return
        self._pending.remove(ticket)
        if ticket.limited:
            self._by_address[ticket.address] -= 1
            if not self._by_address[ticket.address]:
                del self._by_address[ticket.address]

    def open_session(self, zid: WireZenohId) -> Refusal | None:
        """Take a place for a session with node `zid`; the refusal if there is none."""
        if zid == self._zid:
            return self._refuse(
                "self",
                CloseReason.CONNECTION_TO_SELF,
                f"{zid} is this node's own id; remove its own locator from what it dials, "
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
        """Give back the place that `open_session` took; not after a refusal. May be repeated."""
        self._sessions.discard(zid)

    def _refuse(self, name: str, reason: CloseReason, why: str) -> Refusal:
        self.refused[name] += 1
        return Refusal(reason, why)
