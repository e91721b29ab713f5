"""One session, opened, timed and closed: for `zenlake ping`.

Knows what a user is told, and the remedy when no session opens. A node does the work.
"""

from collections.abc import Sequence
from typing import NamedTuple

from zenlake.errors import LinkError, SessionRefused, ZError
from zenlake.link.options import LinkOptions
from zenlake.runtime.node import Node, NodeConfig
from zenlake.sim.delivery import Inline
from zenlake.transport.auth import Authenticator
from zenlake.transport.offer import Agreement, Offer
from zenlake.wire.enums import CloseReason
from zenlake.wire.init import Init
from zenlake.wire.locator import EndPoint, Locator

RESTATED = {
    "no link within": "no link in time",
    "the handshake took too long": "no answer in time",
    "the peer closed the link": "it closed the link without a word",
}
"The words of a node, and what they mean to a user who asked for one session."


class ProbeResult(NamedTuple):
    """A session that was opened, and the time of each step in seconds."""

    protocol: str
    local: Locator
    remote: Locator
    peer: Init
    agreed: Agreement
    connect: float
    "Time until the link was established."
    open: float
    "Time from then until the session was open."


def probe(
    endpoint: EndPoint,
    offer: Offer,
    options: LinkOptions,
    authenticators: Sequence[Authenticator],
    seconds: float,
) -> ProbeResult:
    """Connect, open a session and close it. LinkError, SessionRefused: the step that failed."""
    config = NodeConfig(
        offer=offer, options=options, authenticators=authenticators, open_seconds=seconds
    )
    with Node(config, Inline(lambda *_: None)) as node:
        try:
            session = node.connect(endpoint)
        except SessionRefused as error:
            raise _restate(error) from None
        link, peer = session.link, session.handshake.peer
        assert peer is not None
        return ProbeResult(
            link.protocol,
            link.local,
            link.remote,
            peer,
            session.agreement,
            session.linked_at - session.began_at,
            session.opened_at - session.linked_at,
        )


def _restate(error: SessionRefused) -> ZError:
    for words, meaning in RESTATED.items():
        if words in str(error):
            return SessionRefused(meaning, CloseReason.GENERIC)
    return error.__cause__ if isinstance(error.__cause__, LinkError) else error


# ---- remedies

BY_REASON: dict[int, str] = {
    CloseReason.GENERIC: "It gives no reason. Its own log says more.",
    CloseReason.UNSUPPORTED: "It does not support what was asked for. Offer less: --no-qos.",
    CloseReason.INVALID: "It cannot use what was said. Does it demand authentication (--user), or "
    "speak another version of the protocol? Its own log says more.",
    CloseReason.MAX_SESSIONS: "It has as many sessions as it takes: close some, or raise its "
    "limit (transport/unicast/max_sessions).",
    CloseReason.MAX_LINKS: "It has a session with this id already.",
    CloseReason.EXPIRED: "It waited too long for this node: is the network slow?",
    CloseReason.UNRESPONSIVE: "It waited too long for this node: is the network slow?",
    CloseReason.CONNECTION_TO_SELF: "This is the node itself.",
}
BY_WORDS = {
    "Hostname mismatch": "The certificate is for another name: connect to the name that it has, "
    "or leave the name unchecked with --no-verify-name.",
    "IP address mismatch": "The certificate is for another address: connect to the name that it "
    "has, or leave the name unchecked with --no-verify-name.",
    "self-signed certificate": "No authority that is trusted here has signed it: give the "
    "authority's certificate with --ca FILE.",
    "unable to get local issuer": "No authority that is trusted here has signed it: give the "
    "authority's certificate with --ca FILE.",
    "certificate required": "It demands a client certificate: give --cert FILE and --key FILE.",
    "(GENERIC) while INIT ack": "It gives no reason. Does it demand authentication (--user)? Its "
    "own log says more.",
    "(GENERIC) while OPEN ack": "It gives no reason. Is the user or the password wrong? Its own "
    "log says more.",
    "(INVALID) while OPEN ack": "Has it as many sessions as it takes? Its own log says more.",
    "does not answer user-password": "It does not ask for a password: leave out --user.",
    "no link in time": "Is the host up, does a firewall drop what is sent to this port, and does "
    "it speak this protocol (tcp, tls, ws)? Wait longer with --timeout.",
    "no answer in time": "Something is there and says nothing: is it a Zenoh node, and does it "
    "speak this protocol (tcp, tls, ws)? Wait longer with --timeout.",
    "without a word": "Is it a Zenoh node, and does it speak this protocol (tcp, tls, ws)?",
}


def suggest_remedy(error: ZError) -> str | None:
    """Return what a user can do next, where the error does not say it itself."""
    text = str(error)
    for words, remedy in BY_WORDS.items():
        if words in text:
            return remedy
    if isinstance(error, SessionRefused) and error.by_peer:
        return BY_REASON.get(error.reason)
    return None
