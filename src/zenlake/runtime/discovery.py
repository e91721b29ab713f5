"""Discovery: finding other nodes by scouting and by gossip, and dialling those that are wanted.

Knows the scouting group's sockets and a node's sessions. The rules (who answers, who is dialled,
what is passed on) are in transport/: scouting.py, autoconnect.py, gossip.py.
"""

import logging
import select
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from zenlake.errors import DecodeError, EncodeError, LinkError, SessionEnded, SessionRefused, ZError
from zenlake.link import multicast
from zenlake.link.options import LinkOptions
from zenlake.runtime.group import SendingSocket
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
READS_PER_TURN = 32  # datagrams; then the other links have their turn
MAX_DIALS = 16  # nodes that are being dialled at the same time
MAX_ATTEMPTS = 100  # locators that are dialled within one WINDOW, whoever names how many
WINDOW = 1.0  # seconds
MAX_ANSWERS = 10_000  # that one scout() gives
AGAIN_SECONDS = 1.0  # before a node that could not be reached is dialled again
MAX_REMEMBERED = 4096  # nodes that could not be reached


@dataclass(frozen=True, kw_only=True)
class DiscoveryConfig:
    """How a node finds others."""

    group: str | None = DEFAULT_GROUP
    "Where to scout and to answer; None: do neither. `#iface=` chooses the interface."
    must: bool = True
    "Whether a group that cannot be joined is an error; if not it is logged."
    answer: bool = True
    "Answer those who scout."
    gossip: bool = True
    multihop: bool = False
    target: WireWhatAmI | None = None
    "Whom to tell of others by gossip; None: whom the own role tells."
    scouted: Autoconnect = DEFAULTS["multicast"]
    "Whom to dial of those that answered."
    told: Autoconnect = DEFAULTS["gossip"]
    "Whom to dial of those that others told of."


class Discovery:
    """Of one node. All methods but start() on its I/O thread."""

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
        self._numbers: dict[int, TransportSession] = {}
        self._number_of: dict[TransportSession, int] = {}
        self._next_number = 0
        self._dialling: set[WireZenohId] = set()
        self._failed: OrderedDict[WireZenohId, float] = OrderedDict()
        self._window = self._reactor.now()
        self._attempts = 0
        self._link: multicast.MulticastLink | None = None
        self._sending: SendingSocket | None = None
        self._timer: Timer | None = None

    @property
    def dialling(self) -> int:
        """How many nodes that were found are being dialled."""
        return len(self._dialling)

    def start(self) -> None:
        """Join the scouting group, from any thread. LinkError: that is not possible here."""
        if self.config.group is None:
            return
        try:
            self._link = multicast.join(EndPoint(self.config.group), self._node.config.options)
        except LinkError as error:
            if self.config.must:
                raise
            log.warning("nobody is found by scouting: %s", error)
            return
        self._sending = SendingSocket(self._link)
        self._reactor.call_soon(self._begin)

    def _begin(self) -> None:
        if self._link is None or self._sending is None:
            return
        if self.config.answer:
            self._reactor.watch(self._link, self._on_group, read=True, write=False)
        self._reactor.watch(self._sending, self._on_answer, read=True, write=False)
        if self._wanted:
            self._scout()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None and self._sending is not None:
            self._reactor.forget(self._link)
            self._reactor.forget(self._sending)
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
        """A client has one session, and looks no further."""
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
        except LinkError as error:  # no route now: the next one may go
            log.debug("scouting: %s", error)

    # ---- gossip

    def opened(self, session: TransportSession) -> None:
        number = self._next_number
        self._next_number += 1
        self._numbers[number] = session
        self._number_of[session] = number
        self._failed.pop(session.zid, None)
        if self.config.gossip:
            agreed = session.agreement
            self._tell(self._gossip.opened(number, agreed.zid, agreed.whatami))

    def closed(self, session: TransportSession) -> None:
        number = self._number_of.pop(session)
        del self._numbers[number]
        self._tell(self._gossip.closed(number))

    def link_states(self, session: TransportSession, body: bytes) -> None:
        """A peer says whom it knows. What does not decode is counted and left."""
        if not self.config.gossip:
            return
        try:
            bodies, found = self._gossip.received(self._number_of[session], body)
        except DecodeError as error:
            session.counters.drop_received(DropReason.LINK_STATE_INVALID)
            log.debug("link states from %s: %s", session.zid, error)
            return
        self._tell(bodies)
        for node in found:
            self._found(node.zid, node.whatami, node.locators, self.config.told)

    def _tell(self, bodies: Bodies) -> None:
        for number, body in bodies:
            session = self._numbers.get(number)
            if session is not None:
                self._tell_one(session, body)

    def _tell_one(self, session: TransportSession, body: bytes) -> None:
        """What hinders one session concerns none of the others."""
        try:
            session.send(NetworkOam(LINK_STATE, body, qos=DECLARE))
        except SessionEnded:  # it is on its way out
            session.counters.drop_sent(DropReason.SESSION_CLOSED)
        except EncodeError:
            session.counters.drop_sent(DropReason.MESSAGE_TOO_LARGE)

    # ---- dialling

    def _found(
        self,
        zid: WireZenohId,
        whatami: WireWhatAmI,
        locators: tuple[Locator, ...],
        rule: Autoconnect,
    ) -> None:
        node = self._node
        if not locators or zid in node.sessions or zid in self._dialling or self._has_enough():
            return
        if not rule.wants(node.zid, self._whatami, zid, whatami):
            return
        now = self._reactor.now()
        at_once = 1 if self._whatami is WireWhatAmI.CLIENT else MAX_DIALS
        if len(self._dialling) >= at_once or now - self._failed.get(zid, -inf) < AGAIN_SECONDS:
            return
        if self._may_attempt():
            self._dialling.add(zid)
            self._dial(zid, locators)

    def _may_attempt(self) -> bool:
        """Whether one more locator may be dialled now; a flood of names is not one of links."""
        now = self._reactor.now()
        if now - self._window >= WINDOW:
            self._window, self._attempts = now, 0
        if self._attempts >= MAX_ATTEMPTS:
            return False
        self._attempts += 1
        return True

    def _dial(self, zid: WireZenohId, locators: tuple[Locator, ...]) -> None:
        """One locator after another, until there is a session."""

        def done(found: TransportSession | ZError) -> None:
            if isinstance(found, TransportSession) or zid in self._node.sessions:
                self._dialling.discard(zid)
            elif len(locators) > 1 and self._may_attempt():
                self._dial(zid, locators[1:])
            else:
                log.info("%s was found at %s, but: %s", zid, locators[0], found)
                self._dialling.discard(zid)
                self._remember_failure(zid)
                if isinstance(found, SessionRefused) and found.reason == CloseReason.MAX_LINKS:
                    # Both dialled at once, and neither was let in: the next that comes may be late.
                    again = self._reactor.now() + AGAIN_SECONDS
                    self._reactor.call_at(again, lambda: self._dial_again(zid, locators[:1]))

        self._node.dial(locators[0], done, expect=zid)

    def _dial_again(self, zid: WireZenohId, locators: tuple[Locator, ...]) -> None:
        free = zid not in self._node.sessions and zid not in self._dialling
        if free and not self._node.closing and self._may_attempt():
            self._dialling.add(zid)
            self._dial(zid, locators)

    def _remember_failure(self, zid: WireZenohId) -> None:
        self._failed.pop(zid, None)
        self._failed[zid] = self._reactor.now()
        if len(self._failed) > MAX_REMEMBERED:
            self._failed.popitem(last=False)


class ScoutAnswer(NamedTuple):
    """Who answered, and from where."""

    hello: WireHello
    source: str


def scout(
    seconds: float,
    what: WireWhatAmI = ANY_ROLE,
    *,
    group: str = DEFAULT_GROUP,
    options: LinkOptions | None = None,
) -> Iterator[ScoutAnswer]:
    """Ask who is there, and give each node once, as it answers, for `seconds`."""
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
            select.select([link.unicast_fileno()], [], [], wait)
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
