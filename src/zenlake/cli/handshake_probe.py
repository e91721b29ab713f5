"""One session, opened, timed and closed on the calling thread: for `zenlake ping`.

Knows the steps of a handshake and the remedy when one fails. Does not know the terminal.
"""

import secrets
import select
import time
from collections.abc import Sequence
from typing import NamedTuple

from zenlake import link as links
from zenlake.errors import LinkError, SessionRefused, ZError
from zenlake.link.base import Progress, TransportLink
from zenlake.link.options import LinkOptions
from zenlake.link.sockets import Address
from zenlake.transport.auth import Authenticator
from zenlake.transport.establishment import Opener
from zenlake.transport.offer import Agreement, Offer
from zenlake.transport.unicast import Unicast
from zenlake.wire.enums import CloseReason, WirePriority
from zenlake.wire.init import Init
from zenlake.wire.locator import EndPoint, Locator

CLOSE_SECONDS = 1.0  # Longest time that sending the CLOSE may take.
EVENTS = {Progress.WANT_READ: select.POLLIN, Progress.WANT_WRITE: select.POLLOUT}


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


class _Listener:
    """Listener that ignores every frame of the session."""

    def opened(self) -> None:
        """Do nothing: the loop looks at the agreement."""

    def on_frame(
        self, priority: WirePriority, reliable: bool, data: bytes, pos: int, end: int
    ) -> int:
        """Skip the frame."""
        return end


def probe(
    endpoint: EndPoint,
    offer: Offer,
    options: LinkOptions,
    authenticators: Sequence[Authenticator],
    seconds: float,
) -> ProbeResult:
    """Connect, open a session and close it. LinkError, SessionRefused: the step that failed."""
    addresses = links.resolve(endpoint)
    began = time.monotonic()
    until = began + seconds
    link = _connect(endpoint, addresses, options, until)
    try:
        linked = time.monotonic()
        opener = Opener(offer, secrets.token_bytes, mtu=link.mtu, authenticators=authenticators)
        core = Unicast(opener, _Listener(), link.framing, linked, until=until)
        _agree(link, core, until)
        opened = time.monotonic()
        assert opener.peer is not None
        assert opener.agreement is not None
        core.close()
        _write(link, core, opened + CLOSE_SECONDS)
    finally:
        link.close()
    return ProbeResult(
        link.protocol,
        link.local,
        link.remote,
        opener.peer,
        opener.agreement,
        linked - began,
        opened - linked,
    )


def _connect(
    endpoint: EndPoint, addresses: Sequence[Address], options: LinkOptions, until: float
) -> TransportLink:
    """Return a link to the first address that answers; raise the last error if none does."""
    for address in addresses[:-1]:
        try:
            return _connect_to(endpoint, address, options, until)
        except LinkError:
            continue
    return _connect_to(endpoint, addresses[-1], options, until)


def _connect_to(
    endpoint: EndPoint, address: Address, options: LinkOptions, until: float
) -> TransportLink:
    link = links.connect(endpoint, address, options)
    try:
        while (progress := link.handshake()) is not Progress.DONE:
            if not _wait(link, EVENTS[progress], until):
                raise LinkError(f"{link.remote}: no link in time")
    except BaseException:
        link.close()
        raise
    return link


def _agree(link: TransportLink, core: Unicast, until: float) -> None:
    """Exchange INIT and OPEN."""
    while core.agreement is None:
        _write(link, core, until)
        if not link.more and not _wait(link, select.POLLIN, until):
            raise SessionRefused("no answer in time", CloseReason.GENERIC)
        data = link.receive()
        if data == b"":
            raise SessionRefused("it closed the link without a word", CloseReason.GENERIC)
        if data:
            try:
                core.receive(data, time.monotonic())
            except SessionRefused:
                _write(link, core, time.monotonic() + CLOSE_SECONDS)
                raise


def _write(link: TransportLink, core: Unicast, until: float) -> None:
    """Send every batch that the core has."""
    while (data := core.pull(time.monotonic())) is not None:
        rest = memoryview(data)
        while rest:
            rest = rest[link.send(rest) :]
            if rest and not _wait(link, select.POLLOUT, until):
                return
    while link.unsent and _wait(link, select.POLLOUT, until):
        link.flush()


def _wait(link: TransportLink, event: int, until: float) -> bool:
    poll = select.poll()
    poll.register(link.fileno(), event)
    return bool(poll.poll(max(0.0, until - time.monotonic()) * 1000))


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
