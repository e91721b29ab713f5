"""A node: its listeners, its connections and its open sessions, all on one I/O thread.

Knows limits, retries and duplicates. Does not know messages: a `NodeHandler` gets them.
"""

import errno
import logging
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from zenlake import link as links
from zenlake.errors import (
    AuthError,
    LinkError,
    NeighbourLimit,
    SessionEnded,
    SessionRefused,
    ZError,
)
from zenlake.link.base import Listener, TransportLink
from zenlake.link.multicast import MulticastLink
from zenlake.link.options import LinkOptions
from zenlake.routing.policy import policy_for
from zenlake.runtime.connector import Connector, Done, GroupConnector
from zenlake.runtime.discovery import Discovery, DiscoveryConfig
from zenlake.runtime.group import Group
from zenlake.runtime.multilink_session import MultiLinkSession
from zenlake.runtime.reactor import EventLoop, Reactor, Timer, guard
from zenlake.runtime.sending import SendingSession
from zenlake.runtime.transport_session import TransportSession
from zenlake.shm.handshake import ShmSteps
from zenlake.shm.node import NodeShm, ShmConfig
from zenlake.shm.session import ShmSession
from zenlake.transport import establishment
from zenlake.transport.admission import Admission, AdmissionLimits
from zenlake.transport.auth import Authenticator, Entropy
from zenlake.transport.counters import Counters
from zenlake.transport.establishment import Acceptor, HandshakeState, Opener
from zenlake.transport.fragments import MAX_MESSAGE_BYTES, PROCESS, ByteBudget
from zenlake.transport.link_qos import LinkQos
from zenlake.transport.multicast import GroupOffer
from zenlake.transport.multilink import MultiLinkKey
from zenlake.transport.offer import Agreement, Offer
from zenlake.transport.retry import Retry, RetryPolicy
from zenlake.transport.throttle import Throttle
from zenlake.wire.enums import CloseReason, WirePriority, WireWhatAmI
from zenlake.wire.locator import EndPoint, Locator
from zenlake.wire.zenohid import WireZenohId

log = logging.getLogger("zenlake.runtime")

ACCEPTS_PER_TURN = 32  # Links accepted from one listener before other links have their turn.
ACCEPT_PAUSE = 0.1  # Seconds without accepting, when no file descriptors are left.
GRACE_SECONDS = 2.0  # Silence of a peer that ends its handshake, if another waits for the place.
CLOSE_SECONDS = 5.0  # Time for all sessions together to end, when a node closes.
LOG_SECONDS = 1.0  # Interval between two log lines about one kind of refusal.
ENDED_LINES = 100  # Lines about sessions that a fault or a limit ended, in that interval.
CLOSE_REASONS = frozenset(CloseReason)


class NodeHandler(Protocol):
    """Receiver of the events of a node's sessions. Called on the I/O thread: it must never wait."""

    def opened(self, session: TransportSession) -> None: ...

    def on_frame(
        self,
        session: TransportSession,
        priority: WirePriority,
        reliable: bool,
        data: bytes,
        pos: int,
        end: int,
    ) -> int:
        """Take the network messages from `pos` on; return the position after the last of them.

        They end at `end`, or before a byte that does not start a network message. An error that is
        raised here (DecodeError, SessionEnded) ends the session.
        """

    def closed(self, session: TransportSession, why: SessionEnded) -> None: ...


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """Identity, limits and options of a node."""

    offer: Offer
    authenticators: Sequence[Authenticator] = ()
    options: LinkOptions = field(default_factory=LinkOptions)
    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    open_seconds: float | None = None
    "Time for a handshake that this node began; None: that of an accepted one."
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_message: int = MAX_MESSAGE_BYTES
    memory: ByteBudget = PROCESS
    entropy: Entropy = secrets.token_bytes
    discovery: DiscoveryConfig | None = None
    "None: this node neither scouts nor answers, and sends no gossip."
    max_links: int = 1
    "Links that a peer may open for one session."
    shm: ShmConfig | None = None
    "None: this node does not offer shared memory."
    group: GroupOffer | None = None
    "Parameters of the multicast groups that this node listens in; None: it joins none."

    @property
    def patience(self) -> float:
        """Seconds for a handshake that this node began."""
        return self.limits.seconds if self.open_seconds is None else self.open_seconds


class Node:
    """Listens, connects and keeps sessions. Use as a context manager, or start() and close()."""

    def __init__(
        self,
        config: NodeConfig,
        handler: NodeHandler,
        *,
        reactor: EventLoop | None = None,
        network: links.LinkProvider = links,
    ) -> None:
        self.config = config
        self.handler = handler
        self.on_gap: Callable[[TransportSession, WirePriority, bool, int, int], None] | None = None
        "Called with sequence numbers that were never received: priority, reliable, first, count."
        self.on_link: Callable[[TransportSession, bool], None] | None = None
        "Called with a link that joined an open session (True), or that such a session lost."
        self.on_group: Callable[[Group, bool], None] | None = None
        "Called with a multicast group that this node joined (True), or left."
        self.on_newcomers: Callable[[Group], Iterator[None]] | None = None
        """Called with a multicast group once its newest members know this node: repeats what they
        have missed, some of it at each step."""
        self.reactor: EventLoop = reactor or Reactor(f"zenlake {config.offer.zid}")
        self.refused: Counter[str] = Counter()
        "Failed handshakes of accepted links, by CLOSE reason."
        self._network = network
        self._admission = Admission(config.offer.zid, config.limits)
        self._throttle = Throttle()
        several = config.max_links > 1 and not config.offer.low_latency
        self._multilink = MultiLinkKey(config.entropy) if several else None
        self.shm: NodeShm | None = None
        "Shared memory of this node; sessions over several links go without."
        if config.shm is not None and not several:
            self.shm = NodeShm(config.shm, config.entropy)
        self._listeners: dict[Listener, str] = {}
        "Listeners, and the endpoint of each."
        self._by_zid: dict[WireZenohId, TransportSession] = {}
        self._accepted: dict[TransportSession, None] = {}
        "Handshakes of accepted links; first the one whose peer has been silent longest."
        self._opening: set[TransportSession] = set()
        "Handshakes that this node began."
        self._next_in_line: dict[Listener, TransportLink] = {}
        "Links for whose handshake there is no room yet; their listeners accept nothing else."
        self._busy_listeners: set[Listener] = set()
        "Listeners that are not watched until their link is closed."
        self._room_timer: Timer | None = None
        self._connectors: dict[tuple[EndPoint, ...], Connector] = {}
        self._to_flush: list[SendingSession] = []
        self._groups: list[Group] = []
        self.groups_left = Counters()
        "Sums of the multicast groups that this node has left, without their members."
        self._discovery: Discovery | None = None
        if config.discovery is not None:
            self._discovery = Discovery(self, config.discovery)
        self._started = False
        self._stopped = False
        self._closing = False
        self._logged: dict[str, tuple[float, int]] = {}

    # ---- on any thread

    def start(self) -> None:
        """Start the I/O thread. LinkError: the scouting group cannot be joined."""
        self.reactor.start()
        self._started = True
        if self._discovery is not None:
            try:
                self._discovery.start()
            except LinkError:
                self.close()
                raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def zid(self) -> WireZenohId:
        return self.config.offer.zid

    @property
    def sessions(self) -> dict[WireZenohId, TransportSession]:
        """Open sessions, by the peer's id."""
        return {zid: session for zid, session in dict(self._by_zid).items() if session.is_open}

    @property
    def groups(self) -> tuple[Group, ...]:
        """The multicast groups that this node has joined."""
        return tuple(self._groups)

    @property
    def transports(self) -> tuple[TransportSession, ...]:
        """The open sessions, and those with the members of all groups."""
        members = (member for group in self.groups for member in group.members)
        return (*self.sessions.values(), *members)

    @property
    def pending(self) -> int:
        """Number of handshakes under way."""
        return len(self._accepted) + len(self._opening)

    @property
    def closing(self) -> bool:
        """Whether close() or shut() was called."""
        return self._closing

    @property
    def found(self) -> int:
        """Number of discovered nodes that are being connected to."""
        return 0 if self._discovery is None else self._discovery.connecting

    @property
    def locators(self) -> tuple[Locator, ...]:
        """Locators at which this node accepts sessions."""
        listeners = tuple(self._listeners)  # Another thread may add one.
        return tuple(locator for listener in listeners for locator in listener.locators)

    def listen(self, endpoint: str) -> tuple[Locator, ...]:
        """Accept sessions at `endpoint`; return its locators. LinkError: that is not possible.

        A multicast group is joined, and has no locators: no node can connect to one.
        """
        self._check_not_closed(endpoint)
        at = EndPoint(endpoint)
        LinkQos.from_metadata(at.metadata)  # It must be valid, and an accepted link has none of it.
        listener = self._network.listen(at, self.config.options)
        if isinstance(listener, MulticastLink):
            self._join_configured(listener)
            return ()
        self._listeners[listener] = endpoint
        listener.on_idle = lambda: self.reactor.call_soon(lambda: self._on_idle(listener))
        self.reactor.call_soon(lambda: self._watch_listener(listener))
        return listener.locators

    def _watch_listener(self, listener: Listener) -> None:
        if self._closing:
            listener.close()
            return
        if listener.busy:
            self._busy_listeners.add(listener)
            return
        try:
            self.reactor.watch(
                listener, lambda readable, writable: self._accept(listener), read=True, write=False
            )
        except LinkError as error:
            where = ", ".join(listener.locators)
            self._drop_listener(listener, LinkError(f"{where}: {error}"))

    def _check_not_closed(self, endpoint: str) -> None:
        if self._closing:
            at = EndPoint(endpoint).locator  # The part after '#' may hold a private key.
            raise LinkError(f"{at}: this node is closed; make another one")

    def keep_listening(
        self, endpoint: str, policy: RetryPolicy | None = None, lost: LinkError | None = None
    ) -> None:
        """Listen at `endpoint` as soon as that is possible; retries until then, by `policy` or as
        connecting does. After it was `lost` there is a pause first, and no limit of time."""
        at = EndPoint(endpoint)
        own = RetryPolicy.from_config(at.config, policy or self.config.retry)
        retry = Retry(own, self.reactor.now())
        if lost is not None:
            retry.succeeded(self.reactor.now())

        def attempt() -> None:
            if not self._closing:
                self.reactor.off_thread(listen)

        def listen() -> Callable[[], None]:  # It may wait for DNS.
            try:
                self.listen(endpoint)
            except ZError as error:
                failure = error
                return lambda: failed(failure)
            return lambda: None

        def failed(error: ZError) -> None:
            again = retry.failed(self.reactor.now())
            if again is None:
                log.warning("cannot listen, given up: %s", error)
                return
            self.log_limited("listen", "cannot listen yet: %s", error)
            self.reactor.call_at(again, attempt)

        self.reactor.call_soon(attempt if lost is None else lambda: failed(lost))

    def connect(self, endpoint: str, *, expect: WireZenohId | None = None) -> TransportSession:
        """Open a session with the node at `endpoint`, or return the one that exists; waits.

        SessionRefused, LinkError: the reason why there is none.
        """
        if self.reactor.inside:
            raise RuntimeError("connect() waits: not on the I/O thread; use connect_soon()")
        self._check_not_closed(endpoint)
        done = threading.Event()
        result: list[TransportSession | ZError] = []

        def on_done(found: TransportSession | ZError) -> None:
            result.append(found)
            done.set()

        at = EndPoint(endpoint)
        self.reactor.call_soon(self._resolve(at, on_done, expect))
        wait = self.config.patience * 3
        if not done.wait(wait):
            why = f"{at.locator}: no session within {wait:g} s"
            raise SessionRefused(why, CloseReason.GENERIC)
        found = result[0]
        if isinstance(found, TransportSession):
            return found.whole
        raise found

    def connect_soon(self, endpoint: str, done: Done, *, expect: WireZenohId | None = None) -> None:
        """Connect without waiting: `done` is called on the I/O thread."""
        at = EndPoint(endpoint)
        self.reactor.off_thread(lambda: self._resolve(at, done, expect))

    def _resolve(self, at: EndPoint, done: Done, expect: WireZenohId | None) -> Callable[[], None]:
        """Resolve the endpoint's addresses, which may take long; return the call that connects."""
        try:
            addresses = self._network.resolve(at)
        except ZError as error:
            failure = error
            return lambda: done(failure)
        return lambda: self._connect(at, addresses, done, expect)

    def keep_connected(
        self,
        *endpoints: str,
        expect: WireZenohId | None = None,
        policy: RetryPolicy | None = None,
        done: Done | None = None,
    ) -> Connector:
        """Keep a session with the first of `endpoints` that answers; connect again when it ends.

        `done` is called once, on the I/O thread: with the first session, or with the last error
        if the policy gives up before. The retry settings of an endpoint apply if it is the only
        one.
        """
        at = tuple(EndPoint(endpoint) for endpoint in endpoints)
        connector = self._connectors.get(at)
        if connector is None or connector.stopped:
            connector = Connector(self, at, policy or self.config.retry, expect, done)
            self._connectors[at] = connector
            self.reactor.call_soon(connector.attempt)
        return connector

    def keep_linked(
        self, groups: Sequence[Sequence[EndPoint]], policy: RetryPolicy, done: Done
    ) -> GroupConnector:
        """Keep a session with one node: the first that an endpoint leads to. The other endpoints
        of its group lead to that node too, and become further links of the session.

        `done` is called once, on the I/O thread: with the session, once the whole group is linked
        (with a policy of one attempt: tried), or with the error why it is not.
        """
        connector = GroupConnector(self, groups, policy, done)
        self._connectors[connector.endpoints] = connector
        self.reactor.call_soon(connector.attempt)
        return connector

    def join(self, link: MulticastLink, offer: GroupOffer, handler: NodeHandler) -> Group:
        """Join the multicast group of `link`."""
        try:
            self._check_not_closed(link.name)
        except LinkError:
            link.close()
            raise
        group = Group(self, link, offer, handler)
        group.on_end.append(lambda end: self._group_left(group, end))
        self._groups.append(group)
        if self.on_group is not None:
            self.on_group(group, True)
        group.start()
        return group

    def _join_configured(self, link: MulticastLink) -> None:
        """Join a group with the configured parameters, for the node's handler."""
        if self.config.group is None:
            link.close()
            raise LinkError(f"{link.remote}: a client does not join groups: be a peer or a router")
        self.join(link, self.config.group, self.handler)

    def _group_left(self, group: Group, end: SessionEnded) -> None:
        self._groups.remove(group)
        self.groups_left.add(group.counters)
        if self.on_group is not None:
            self.on_group(group, False)
        lost = end.__cause__
        if isinstance(lost, LinkError) and group.core.offer is self.config.group:
            self.keep_listening(group.link.name, lost=lost)

    def link_states(self, session: TransportSession, body: bytes) -> None:
        """Pass a peer's link states to discovery (called by the handler, on the I/O thread)."""
        if self._discovery is not None:
            self._discovery.link_states(session, body)

    def close(self) -> None:
        """Close every session after its last messages, every link, and the I/O thread.

        May be called again.
        """
        if self.reactor.inside:
            raise RuntimeError("close() waits: not on the I/O thread; use shut()")
        over = threading.Event()
        if self._started and not self._stopped:
            self.shut(over.set)
            over.wait(CLOSE_SECONDS)
        self._closing = self._stopped = True
        self.reactor.stop()
        for listener in tuple(self._listeners):
            listener.close()
        for group in self._groups:
            group.link.close()
        if self.shm is not None:
            self.shm.close()

    def shut(self, done: Callable[[], None]) -> None:
        """Close all but the I/O thread without waiting: `done` is called on that thread."""
        self.reactor.call_soon(lambda: self._close(done))

    # ---- on the I/O thread

    def flush_later(self, session: SendingSession) -> None:
        """Write the messages of `session` at the end of this turn, in one go."""
        if not self._to_flush:
            self.reactor.call_soon(self._flush)
        self._to_flush.append(session)

    def _flush(self) -> None:
        sessions, self._to_flush = self._to_flush, []
        for session in dict.fromkeys(sessions):
            session.flush()

    def _accept(self, listener: Listener) -> None:
        for turn in range(ACCEPTS_PER_TURN):
            try:
                link = listener.accept()
            except LinkError as error:
                self.keep_listening(self._drop_listener(listener, error), lost=error)
                return
            if link is None:
                if not turn and _no_descriptors(listener):
                    self._pause(listener)
                break
            if not self._make_room():
                self._wait_for_room(listener, link)
                break
            self._admit_link(listener, link)
        else:  # Links may wait inside the listener (UDP), where the reactor cannot see them.
            self.reactor.call_soon(lambda: self._accept_more(listener))
        if listener.busy and listener not in self._next_in_line:
            self.reactor.forget(listener)
            self._busy_listeners.add(listener)
        for session in self._accepted:  # Datagrams may have arrived before their link.
            if session.link.more:
                session.read_more()

    def _on_idle(self, listener: Listener) -> None:
        """Watch a listener again whose link is closed."""
        if listener in self._busy_listeners and not listener.busy:
            self._busy_listeners.discard(listener)
            self._watch_listener(listener)

    def _drop_listener(self, listener: Listener, error: LinkError) -> str:
        """Close a listener that broke; return its endpoint."""
        log.error("a listener broke: %s", error)
        self.reactor.forget(listener)
        endpoint = self._listeners.pop(listener)
        self._busy_listeners.discard(listener)
        listener.close()
        link = self._next_in_line.pop(listener, None)
        if link is not None:
            link.close()
        return endpoint

    def _make_room(self) -> bool:
        """Return whether one more handshake may begin, after ending an overdue one if need be."""
        most = self.config.limits.pending
        return len(self._accepted) < most or self._end_overdue() or len(self._accepted) < most

    def _end_overdue(self) -> bool:
        """End the accepted handshake whose peer has been silent longest, if that is for
        GRACE_SECONDS; return whether."""
        for session in list(self._accepted):
            if self.reactor.now() < session.moved_on_at + GRACE_SECONDS:
                break
            session.read_now()  # This thread may have been busy when the peer went on.
            if session in self._accepted and session is next(iter(self._accepted)):
                why = f"silent for {GRACE_SECONDS:g} s, and others wait for a place"
                session.refuse(why, CloseReason.UNRESPONSIVE)
                return True
        return False

    def handshake_moved_on(self, session: TransportSession) -> None:
        """Note that the peer's turn has come (called by the session)."""
        if session in self._accepted:
            del self._accepted[session]
            self._accepted[session] = None

    def _wait_for_room(self, listener: Listener, link: TransportLink) -> None:
        """Keep `link` until a handshake ends or is overdue; further links wait in the kernel."""
        self.log_limited(
            "room",
            "%s: %d handshakes are under way, further ones wait; raise "
            "transport/unicast/accept_pending if that takes too long",
            ", ".join(listener.locators),
            len(self._accepted),
        )
        self._next_in_line[listener] = link
        self.reactor.forget(listener)
        self._await_overdue()

    def _await_overdue(self) -> None:
        """Look again when the oldest handshake will be overdue."""
        oldest = next(iter(self._accepted), None)
        if self._room_timer is None and oldest is not None:
            when = oldest.moved_on_at + GRACE_SECONDS
            self._room_timer = self.reactor.call_at(when, self._on_overdue)

    def _on_overdue(self) -> None:
        self._room_timer = None
        self._admit_next()

    def _admit_next(self) -> None:
        """Begin the handshakes of waiting links while there is room, and accept more."""
        for listener in list(self._next_in_line):
            if not self._make_room():
                self._await_overdue()
                return
            self._admit_link(listener, self._next_in_line.pop(listener))
            self._watch_listener(listener)
            self.reactor.call_soon(partial(self._accept_more, listener))

    def _accept_more(self, listener: Listener) -> None:
        if listener in self._listeners and listener not in self._next_in_line:
            self._accept(listener)

    def _pause(self, listener: Listener) -> None:
        """Stop accepting for a while: connections keep waiting, and cannot be accepted now."""
        where = ", ".join(listener.locators)
        self.log_limited(
            "accept",
            "%s: no file descriptors left of %d, so that connections wait; raise `ulimit -n`",
            where,
            os.sysconf("SC_OPEN_MAX"),
        )
        for _ in range(ACCEPTS_PER_TURN):
            if not self._end_overdue():
                break
        self.reactor.forget(listener)
        again = self.reactor.now() + ACCEPT_PAUSE
        self.reactor.call_at(again, lambda: self._watch_listener(listener))

    def _admit_link(self, listener: Listener, link: TransportLink) -> None:
        config = self.config
        acceptor = Acceptor(
            config.offer,
            config.entropy,
            mtu=link.mtu,
            authenticators=config.authenticators,
            admit=lambda zid, whatami: self._admit_peer(acceptor, whatami),
            multilink=self._multilink,
            shm=self._shm_steps(link),
        )
        session = TransportSession(
            self, link, acceptor, config.limits.seconds, self._accepted_ended
        )
        self._accepted[session] = None

    def _shm_steps(self, link: TransportLink) -> ShmSteps | None:
        if self.shm is None or not link.same_host:
            return None
        return self.shm.steps(reliable=link.reliable)

    @property
    def shm_declined(self) -> str:
        """Why this node offered no shared memory to a peer."""
        if self.config.shm is None:
            return "this node does not offer it (transport/shared_memory/enabled)"
        if self.shm is None:
            return "sessions over several links go without (transport/unicast/max_links)"
        return self.shm.declined or "the other node has another host's address"

    def share_memory(self, steps: establishment.ShmSteps) -> ShmSession:
        """Return the shared memory of a session whose handshake agreed on it."""
        assert self.shm is not None
        assert isinstance(steps, ShmSteps)
        return ShmSession(self.shm, steps)

    def _admit_peer(self, handshake: Acceptor, whatami: WireWhatAmI) -> None:
        """Admit or refuse a session with a peer that has connected to this node, or a further link
        of one.

        When two nodes connect to each other at once, the link that the greater id opened stays;
        both stay if a session may have several links.
        """
        self._check_role(whatami)
        agreed = handshake.agreement
        assert agreed is not None
        zid = agreed.zid
        session = self._by_zid.get(zid)
        if isinstance(session, MultiLinkSession):
            self._admit_further(session, agreed)
            if session.accepted >= self.config.max_links:
                raise SessionRefused(
                    f"{zid} has {session.accepted} links here already; raise "
                    "transport/unicast/max_links if more are wanted",
                    CloseReason.MAX_LINKS,
                )
            return
        if agreed.multilink is None and self._is_connecting_to(zid):
            raise SessionRefused(f"this node is connecting to {zid} itself", CloseReason.MAX_LINKS)
        self._claim(zid)

    def _admit_further(self, session: MultiLinkSession, agreed: Agreement) -> None:
        """Refuse a further link that is not of the session's peer, or agreed on something else."""
        other = session.agreement.differs(agreed)
        if other is not None:
            raise SessionRefused(
                f"{agreed.zid} has a session here with another {other}: a further link has to "
                "agree with the first; if they are two nodes, give each its own id",
                CloseReason.INVALID,
            )

    def must_wait(self, session: TransportSession) -> bool:
        """Whether an accepted link of a greater id has to wait with its OPEN syn.

        That node may have acknowledged this node's own link already, and then it refuses the
        accepted one. If both were acknowledged, neither would be left. So the accepted link waits
        until this node's own handshake has ended.
        """
        peer = session.peer
        if peer is None or not isinstance(session.handshake, Acceptor) or self.zid > peer:
            return False
        if session.handshake.takes_more_links:
            return False
        return self._is_connecting_to(peer)

    def _is_connecting_to(self, zid: WireZenohId) -> bool:
        """Whether a link that this node opened waits for the OPEN ack of `zid`."""
        return any(
            session.handshake.state is HandshakeState.OPEN_ACK and session.peer == zid
            for session in self._opening
        )

    def _resume_accepted(self, session: TransportSession) -> None:
        """Resume accepted links that waited for the handshake of `session` to end."""
        for other in self._accepted:
            if other.peer == session.peer:
                other.resume()

    def _claim(self, zid: WireZenohId) -> None:
        refusal = self._admission.open_session(zid)
        if refusal is not None:
            raise SessionRefused(refusal.why, refusal.reason)

    def _connect(
        self, at: EndPoint, addresses: Sequence[Any], done: Done, expect: WireZenohId | None
    ) -> None:
        """Connect to the addresses one after another, until one of them answers."""
        if self._closing:
            done(LinkError(f"{at.locator}: this node is closing"))
            return
        address, others = addresses[0], addresses[1:]
        try:
            link_qos = LinkQos.from_metadata(at.metadata)
            link = self._network.connect(at, address, self.config.options)
        except ZError as error:
            if others:
                self._connect(at, others, done, expect)
            else:
                done(error)
            return
        config = self.config
        opener = Opener(
            config.offer,
            config.entropy,
            mtu=link.mtu,
            authenticators=config.authenticators,
            expect=expect,
            admit=lambda zid, whatami: self._check_peer(opener, zid, whatami),
            link_qos=link_qos,
            multilink=self._multilink,
            shm=self._shm_steps(link),
        )

        def ended(session: TransportSession, end: SessionEnded) -> None:
            if session.is_open:
                self._open_ended(session, end)
                return
            self._forget(session)
            if session.linked:
                done(self._other_session(session, end) or end)
            elif not others:
                done(end.__cause__ if isinstance(end.__cause__, LinkError) else end)
            else:
                self._connect(at, others, done, expect)

        session = TransportSession(self, link, opener, config.patience, ended, done)
        self._opening.add(session)

    def _other_session(
        self, session: TransportSession, end: SessionEnded
    ) -> TransportSession | None:
        """Return the open session because of which `session` was refused: a peer has one."""
        if end.reason != CloseReason.MAX_LINKS or session.peer is None:
            return None
        return self.sessions.get(session.peer)

    def _check_peer(self, handshake: Opener, zid: WireZenohId, whatami: WireWhatAmI) -> None:
        """Refuse a second session with a peer, and a role without a policy, before OPEN syn."""
        self._check_role(whatami)
        session = self._by_zid.get(zid)
        if session is None:
            return
        if not (isinstance(session, MultiLinkSession) and handshake.takes_more_links):
            raise SessionRefused(
                f"{zid} has a session here already, and a session has one link",
                CloseReason.MAX_LINKS,
            )

    def _check_role(self, whatami: WireWhatAmI) -> None:
        """Refuse a peer of a role with which no messages are exchanged."""
        try:
            policy_for(self.config.offer.whatami, whatami)
        except ZError as error:
            raise SessionRefused(str(error), CloseReason.GENERIC) from None

    def session_opened(self, session: TransportSession) -> None:
        """Register a session whose handshake is over (called by the session)."""
        accepted = self._end_accepted(session)
        if not accepted:
            self._opening.remove(session)
            self._resume_accepted(session)
        whole = self._by_zid.get(session.zid)
        if isinstance(whole, MultiLinkSession):
            self._add_link(whole, session)
            return
        if not accepted:
            self._claim(session.zid)
        session.is_open = True
        link = session
        if session.agreement.multilink is not None:
            session = MultiLinkSession(link)
            session.is_open = True
        self._by_zid[session.zid] = session
        if self._discovery is not None:
            self._discovery.opened(session)
        guard(self.handler.opened, session)
        if link.on_open is not None:
            link.on_open(link)

    def _add_link(self, session: MultiLinkSession, link: TransportSession) -> None:
        self._admit_further(session, link.agreement)
        link.is_open = True
        session.add(link)
        log.info("%s joined the session with %s", link.link.remote, session.zid)
        if self.on_link is not None:
            self.on_link(link, True)
        if link.on_open is not None:
            link.on_open(link)

    def penalty(self, session: TransportSession, end: SessionEnded) -> float:
        """Return the seconds before a refusal is sent: a peer that guesses passwords is slowed."""
        if isinstance(end.__cause__, AuthError) and isinstance(session.handshake, Acceptor):
            return self._throttle.failed(session.link.address, self.reactor.now())
        return 0.0

    def _accepted_ended(self, session: TransportSession, end: SessionEnded) -> None:
        if session.is_open:
            self._open_ended(session, end)
            return
        self._forget(session)
        named = end.reason in CLOSE_REASONS
        self.refused[CloseReason(end.reason).name if named else str(end.reason)] += 1
        if (
            end.reason == CloseReason.MAX_LINKS and end.by_peer
        ):  # It has another session with this node.
            log.debug("no second session with %s: %s", session.link.remote, end)
        else:
            self.log_limited("handshake", "no session with %s: %s", session.link.remote, end)

    def _open_ended(self, link: TransportSession, end: SessionEnded) -> None:
        """Remove an open session that ended, or one link of a session that goes on."""
        session = link.whole
        if isinstance(session, MultiLinkSession):
            if session.lose(link, end):
                if session.over is None:
                    log.info("session with %s lost %s: %s", session.zid, link.link.remote, end)
                if self.on_link is not None:
                    self.on_link(link, False)
                return
            end = session.over or end
        del self._by_zid[session.zid]
        self._admission.close_session(session.zid)
        self._report_closed(session, end)
        if session is not link:
            for call in session.on_end:
                call(end)

    def _forget(self, session: TransportSession) -> None:
        """Remove a handshake that ended without a session."""
        if not self._end_accepted(session) and isinstance(session.handshake, Opener):
            self._opening.discard(session)
            self._resume_accepted(session)
        agreed = session.handshake.agreement
        if agreed is None or not isinstance(session.handshake, Acceptor):
            return
        if agreed.zid not in self._by_zid:
            self._admission.close_session(agreed.zid)  # Claimed, and ended before it was open.

    def _end_accepted(self, session: TransportSession) -> bool:
        """Remove the handshake of an accepted link; return whether it was under way.

        A link that waits for room gets its place.
        """
        if session not in self._accepted:
            return False
        del self._accepted[session]
        if self._next_in_line:
            self.reactor.call_soon(self._admit_next)
        return True

    def _report_closed(self, session: TransportSession, end: SessionEnded) -> None:
        who = session.zid, session.link.remote
        text = "session with %s (%s) ended: %s"
        if isinstance(end, NeighbourLimit):
            text = "closed the session with %s (%s): %s"
        if end.reason == CloseReason.GENERIC:
            log.info(text, *who, end)
        else:
            self.log_limited("ended", text, *who, end, lines=ENDED_LINES)
        if self._discovery is not None:
            self._discovery.closed(session)
        guard(self.handler.closed, session, end)

    def log_limited(self, kind: str, text: str, *values: object, lines: int = 1) -> None:
        """Log at most `lines` per LOG_SECONDS and kind: many peers must not fill the log."""
        now = self.reactor.now()
        began, logged = self._logged.get(kind, (now, 0))
        if now - began >= LOG_SECONDS:
            began, logged = now, 0
        self._logged[kind] = began, logged + 1
        if logged < lines:
            log.warning(text, *values)

    def _close(self, over: Callable[[], None]) -> None:
        self._closing = True
        for connector in self._connectors.values():
            connector.stop()
        if self._discovery is not None:
            self._discovery.stop()
        for listener in tuple(self._listeners):
            self.reactor.forget(listener)
            listener.close()
        self._listeners.clear()
        self._busy_listeners.clear()
        for link in self._next_in_line.values():
            link.close()
        self._next_in_line.clear()
        if self._room_timer is not None:
            self._room_timer.cancel()
        sessions: list[TransportSession | Group] = [
            *self._accepted,
            *self._opening,
            *self._by_zid.values(),
            *self._groups,
        ]
        left = len(sessions)

        def ended(end: SessionEnded | None = None) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                over()

        for session in sessions:
            session.on_end.append(ended)
            session.close()
        if not sessions:
            over()


def _no_descriptors(listener: Listener) -> bool:
    try:
        os.close(os.dup(listener.fileno()))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False
