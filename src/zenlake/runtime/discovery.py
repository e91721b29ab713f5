"""Discovery: finding other nodes by scouting and gossip, and connecting to the wanted ones.

Knows the scouting group's sockets and a node's sessions. The rules (which nodes answer, which are
connected to, what is passed on) are in transport/: scouting.py, autoconnect.py, gossip.py.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from zenlake.errors import (
    DecodeError,
    LinkError,
    MessageTooLarge,
    SessionEnded,
    SessionRefused,
    ZError,
)
from zenlake.link import multicast
from zenlake.link.options import LinkOptions
from zenlake.runtime.polling import wait_readable
from zenlake.runtime.reactor import Timer
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.autoconnect import ANY_ROLE, DEFAULTS, NO_ROLE, Autoconnect
from zenlake.transport.drop_reason import DropReason
from zenlake.transport.gossip import Bodies, Gossip
from zenlake.transport.scouting import Responder, Scouter
from zenlake.wire.enums import CloseReason, WireWhatAmI
from zenlake.wire.hello import WireHello
from zenlake.wire.locator import EndPoint, Locator
from zenlake.wire.oam import LINK_STATE, NetworkOam
from zenlake.wire.qos import DECLARE
from zenlake.wire.zenohid import WireZenohId

if TYPE_CHECKING:
    from zenlake.runtime.node import Node

log = logging.getLogger("zenlake.runtime")

DEFAULT_GROUP = "udp/224.0.0.224:7446"
READS_PER_TURN = 32  # Datagrams read before the other links have their turn.
MAX_CONNECTING = 16  # Nodes that are being connected to at the same time.
MAX_ATTEMPTS = 100  # Locators tried per WINDOW, however many the peers name.
WINDOW = 1.0  # Seconds in which attempts are counted.
MAX_ANSWERS = 10_000  # Nodes that one scout() returns at most.
AGAIN_SECONDS = 1.0  # Pause before the next attempt to connect to a node that failed.
MAX_REMEMBERED = 4096  # Nodes whose failure is remembered.


@dataclass(frozen=True, kw_only=True)
class DiscoveryConfig:
    """How a node finds other nodes."""

    group: str | None = DEFAULT_GROUP
    "Group in which to scout and to answer; None: do neither. `#iface=` chooses the interface."
    must: bool = True
    "Whether a group that cannot be joined is an error; if not, it is logged."
    answer: bool = True
    "Whether to answer SCOUT messages."
    gossip: bool = True
    multihop: bool = False
    target: WireWhatAmI | None = None
    "Roles to send gossip to; None: those of the node's own role."
    scouted: Autoconnect = DEFAULTS["multicast"]
    "Which nodes that answered a SCOUT to connect to."
    told: Autoconnect = DEFAULTS["gossip"]
    "Which nodes that gossip named to connect to."


class Discovery:
    """Discovery of one node. All methods but start() are called on its I/O thread."""

    def __init__(self, node: "Node", config: DiscoveryConfig) -> None:
        self.config = config
        self._node = node
        self._reactor = node.reactor
        offer = node.config.offer
        self._whatami = offer.whatami
        self._wanted = config.scouted.roles.get(offer.whatami, NO_ROLE)
        self._scouter = Scouter(self._wanted, self._reactor.now())
        self._responder = Responder(offer.zid, offer.whatami, lambda: node.locators)
        self._gossip = Gossip(
            offer.zid,
            offer.whatami,
            lambda: node.locators,
            multihop=config.multihop,
            target=config.target,
        )
        self._connecting: set[WireZenohId] = set()
        self._failed: OrderedDict[WireZenohId, float] = OrderedDict()
        self._window = self._reactor.now()
        self._attempts = 0
        self._link: multicast.MulticastLink | None = None
        self._timer: Timer | None = None

    @property
    def connecting(self) -> int:
        """Number of discovered nodes that are being connected to."""
        return len(self._connecting)

    def start(self) -> None:
        """Join the scouting group, on any thread. LinkError: that is not possible here."""
        if self.config.group is None:
            return
        try:
            self._link = multicast.join(EndPoint(self.config.group), self._node.config.options)
        except LinkError as error:
            if self.config.must:
                raise
            log.warning("no node is found by scouting: %s", error)
            return
        self._reactor.call_soon(self._begin)

    def _begin(self) -> None:
        if self._link is None:
            return
        if self.config.answer:
            self._reactor.watch(self._link, self._on_group, read=True, write=False)
        self._reactor.watch(self._link.unicast, self._on_answer, read=True, write=False)
        if self._wanted:
            self._scout()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._reactor.forget(self._link)
            self._reactor.forget(self._link.unicast)
            self._link.close()
            self._link = None

    # ---- scouting

    def _scout(self) -> None:
        if self._link is None:
            return
        datagram = self._scouter.datagram(self._reactor.now())
        if datagram is not None and not self._has_enough():
            self._try_send(lambda link: link.send(datagram))
        self._timer = self._reactor.call_at(self._scouter.deadline, self._scout)

    def _has_enough(self) -> bool:
        """Whether the node looks no further: a client has one session."""
        return self._whatami is WireWhatAmI.CLIENT and bool(self._node.sessions)

    def _on_group(self, readable: bool, writable: bool) -> None:
        for data, (host, port) in self._read(lambda link: link.receive()):
            answer = self._responder.answer(data, host, self._reactor.now())
            if answer is not None:
                self._answer(answer, host, port)

    def _answer(self, answer: bytes, host: str, port: int) -> None:
        self._try_send(lambda link: link.send_to(answer, (host, port)))

    def _on_answer(self, readable: bool, writable: bool) -> None:
        for data, _ in self._read(lambda link: link.receive_unicast()):
            hello = self._scouter.read_hello(data)
            if hello is not None:
                self._found(hello.zid, hello.whatami, hello.locators, self.config.scouted)

    def _read(
        self, receive: Callable[[multicast.MulticastLink], multicast.Received | None]
    ) -> Iterator[multicast.Received]:
        for _ in range(READS_PER_TURN):
            if self._link is None:
                return
            try:
                received = receive(self._link)
            except LinkError as error:
                log.error("scouting ends: %s", error)
                self.stop()
                return
            if received is None:
                return
            yield received

    def _try_send(self, send: Callable[[multicast.MulticastLink], object]) -> None:
        try:
            if self._link is not None:
                send(self._link)
        except LinkError as error:  # No route now; a later datagram may leave.
            log.debug("scouting: %s", error)

    # ---- gossip

    def opened(self, session: TransportSession) -> None:
        self._failed.pop(session.zid, None)
        if self.config.gossip:
            agreed = session.agreement
            self._send_gossip(self._gossip.opened(session, agreed.zid, agreed.whatami))

    def closed(self, session: TransportSession) -> None:
        self._send_gossip(self._gossip.closed(session))

    def link_states(self, session: TransportSession, body: bytes) -> None:
        """Take a peer's link states; a body that does not decode is counted and ignored."""
        if not self.config.gossip:
            return
        try:
            bodies, found = self._gossip.received(session, body)
        except DecodeError as error:
            session.drop_received(DropReason.LINK_STATE_INVALID)
            log.debug("link states from %s: %s", session.zid, error)
            return
        self._send_gossip(bodies)
        for node in found:
            self._found(node.zid, node.whatami, node.locators, self.config.told)

    def _send_gossip(self, bodies: Bodies) -> None:
        """Send link states to their sessions; count a failure, so that the others get theirs."""
        for session, body in bodies:
            try:
                session.send(NetworkOam(LINK_STATE, body, qos=DECLARE))
            except SessionEnded:  # It is being closed.
                session.drop_sent(DropReason.SESSION_CLOSED)
            except MessageTooLarge:
                session.drop_sent(DropReason.MESSAGE_TOO_LARGE)

    # ---- connecting

    def _found(
        self,
        zid: WireZenohId,
        whatami: WireWhatAmI,
        locators: tuple[Locator, ...],
        rule: Autoconnect,
    ) -> None:
        node = self._node
        if not locators or zid in node.sessions or zid in self._connecting or self._has_enough():
            return
        if not rule.wants(node.zid, self._whatami, zid, whatami):
            return
        now = self._reactor.now()
        at_once = 1 if self._whatami is WireWhatAmI.CLIENT else MAX_CONNECTING
        if len(self._connecting) >= at_once or now - self._failed.get(zid, -inf) < AGAIN_SECONDS:
            return
        if self._may_attempt():
            self._connecting.add(zid)
            self._connect(zid, locators)

    def _may_attempt(self) -> bool:
        """Whether one more locator may be tried now: many names must not cause many links."""
        now = self._reactor.now()
        if now - self._window >= WINDOW:
            self._window, self._attempts = now, 0
        if self._attempts >= MAX_ATTEMPTS:
            return False
        self._attempts += 1
        return True

    def _connect(self, zid: WireZenohId, locators: tuple[Locator, ...]) -> None:
        """Try one locator after another, until there is a session."""

        def done(found: TransportSession | ZError) -> None:
            if isinstance(found, TransportSession) or zid in self._node.sessions:
                self._connecting.discard(zid)
            elif len(locators) > 1 and self._may_attempt():
                self._connect(zid, locators[1:])
            else:
                log.info("%s was found at %s, but: %s", zid, locators[0], found)
                self._connecting.discard(zid)
                self._remember_failure(zid)
                if isinstance(found, SessionRefused) and found.reason == CloseReason.MAX_LINKS:
                    # Both nodes connected at once and both were refused; try again later.
                    again = self._reactor.now() + AGAIN_SECONDS
                    self._reactor.call_at(again, lambda: self._connect_again(zid, locators[:1]))

        self._node.connect_soon(locators[0], done, expect=zid)

    def _connect_again(self, zid: WireZenohId, locators: tuple[Locator, ...]) -> None:
        free = zid not in self._node.sessions and zid not in self._connecting
        if free and not self._node.closing and self._may_attempt():
            self._connecting.add(zid)
            self._connect(zid, locators)

    def _remember_failure(self, zid: WireZenohId) -> None:
        self._failed.pop(zid, None)
        self._failed[zid] = self._reactor.now()
        if len(self._failed) > MAX_REMEMBERED:
            self._failed.popitem(last=False)


class ScoutAnswer(NamedTuple):
    """A HELLO and the address it was sent from."""

    hello: WireHello
    source: str


def scout(
    seconds: float,
    what: WireWhatAmI = ANY_ROLE,
    *,
    group: str = DEFAULT_GROUP,
    options: LinkOptions | None = None,
) -> Iterator[ScoutAnswer]:
    """Scout for `seconds`; yield each node once, as it answers."""
    link = multicast.join(EndPoint(group), options or LinkOptions())
    try:
        end = time.monotonic() + seconds
        scouter = Scouter(what, time.monotonic())
        seen: set[tuple[WireZenohId, tuple[Locator, ...]]] = set()
        while (now := time.monotonic()) < end:
            datagram = scouter.datagram(now)
            if datagram is not None:
                link.send(datagram)
            wait = max(0.0, min(end, scouter.deadline) - now)
            wait_readable([link.unicast], wait)
            for _ in range(READS_PER_TURN):
                received = link.receive_unicast()
                if received is None:
                    break
                data, (host, _) = received
                hello = scouter.read_hello(data)
                if hello is not None and (hello.zid, hello.locators) not in seen:
                    seen.add((hello.zid, hello.locators))
                    yield ScoutAnswer(hello, host)
                if len(seen) >= MAX_ANSWERS:
                    return
    finally:
        link.close()
