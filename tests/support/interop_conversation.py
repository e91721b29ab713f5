"""Our side of a conversation with eclipse-zenoh: a node that keeps what it hears and asks for
samples as its role has to, and the steps that all conversations share. Every wait has a deadline.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.golden.proxy import free_port
from tests.support.reference_peer import (
    ReferenceFailed,
    ReferencePeer,
    ReferenceProcess,
    Settings,
    fingerprint,
    payload,
)
from tests.support.waiting import until
from zenlake.errors import SessionEnded
from zenlake.keytable import KeyTable
from zenlake.link.options import LinkOptions
from zenlake.runtime.message_handler import MessageHandler
from zenlake.runtime.node import Node, NodeConfig
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.auth import Authenticator, Entropy
from zenlake.transport.offer import Offer
from zenlake.transport.retry import RetryPolicy
from zenlake.wire import qos as q
from zenlake.wire.declare import Declare, DeclareFinal, DeclareKeyExpr, DeclareSubscriber
from zenlake.wire.enums import (
    InterestOptions,
    Mapping,
    WireCongestionControl,
    WirePriority,
    WireWhatAmI,
)
from zenlake.wire.interest import Interest
from zenlake.wire.linkstate import LinkState, write_link_states
from zenlake.wire.network import NetworkMessage
from zenlake.wire.oam import LINK_STATE, NetworkOam
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

DEADLINE = 30.0
POLL_SECONDS = 0.01
BEST_EFFORTS, BEST_EFFORT_SECONDS = 20, 3.0
LISTENS = 3  # Attempts: another process may take the port that was free.

CLIENT, PEER, ROUTER = WireWhatAmI.CLIENT, WireWhatAmI.PEER, WireWhatAmI.ROUTER
MODES = {"client": CLIENT, "peer": PEER, "router": ROUTER}
SAMPLES_FOR_US, SAMPLES_FOR_THEM = "ours/**", "theirs/**"
TO_US, TO_THEM = "ours/x", "theirs/x"
RELIABLY: Settings = {"congestion_control": "BLOCK"}
BLOCK = QoS(WirePriority.DATA, WireCongestionControl.BLOCK)
THEY_SAID_CLOSE = "the peer closed with reason 0"
EXPRESS = QoS(WirePriority.DATA, WireCongestionControl.BLOCK, express=True)

Offered = dict[str, Any]
"Fields of our Offer."


class Ours:
    """A node that wants all samples under `ours/`. What it hears is in its lists."""

    def __init__(
        self,
        whatami: WireWhatAmI,
        *,
        zid: WireZenohId | None = None,
        authenticators: Sequence[Authenticator] = (),
        options: LinkOptions | None = None,
        entropy: Entropy = secrets.token_bytes,
        retry: RetryPolicy | None = None,
        **offer: Any,
    ) -> None:
        self.zid = zid or WireZenohId(secrets.token_bytes(16))
        self.whatami = whatami
        self.opened: list[TransportSession] = []
        self.closed: list[tuple[TransportSession, SessionEnded]] = []
        self.pushes: list[tuple[str | None, Push]] = []
        self.subscribers: dict[TransportSession, list[str | None]] = {}
        "Keys that the other side declared subscribers for."
        self._keys: dict[TransportSession, KeyTable] = {}
        config = NodeConfig(
            offer=Offer(zid=self.zid, whatami=whatami, **offer),
            authenticators=authenticators,
            options=options or LinkOptions(),
            entropy=entropy,
            retry=retry or RetryPolicy(),
        )
        self.node = Node(config, MessageHandler(self._on_message, self._on_open, self._on_close))

    def __enter__(self) -> Self:
        self.node.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.node.close()

    # ---- on the I/O thread

    def _on_open(self, session: TransportSession) -> None:
        self._keys[session] = KeyTable()
        self.subscribers[session] = []
        self._declare(session)
        self.opened.append(session)

    def _declare(self, session: TransportSession) -> None:
        """Send the declarations that a node of our role sends to one of theirs, unasked."""
        ours, theirs = self.whatami, session.agreement.whatami
        if theirs is CLIENT or (ours is ROUTER and theirs is PEER):
            return  # they say what they are interested in
        id_ = 1
        if ours is ROUTER:
            states = [
                LinkState(0, len(self.opened) + 1, zid=self.zid, whatami=ROUTER, links=(1,)),
                LinkState(1, 0, zid=session.zid, whatami=ROUTER),
            ]
            session.send(NetworkOam(LINK_STATE, write_link_states(states), qos=q.DECLARE))
            id_ = 0
        self._say(session, DeclareSubscriber(id_, WireExpr(0, SAMPLES_FOR_US)))
        if ours is PEER and theirs is PEER:
            self._say(session, DeclareFinal(), 0)

    def _say(
        self,
        session: TransportSession,
        body: DeclareSubscriber | DeclareFinal,
        interest: int | None = None,
    ) -> None:
        session.send(Declare(body, interest_id=interest, qos=q.DECLARE))

    def _on_message(
        self,
        session: TransportSession,
        message: NetworkMessage,
        priority: WirePriority,
        reliable: bool,
    ) -> None:
        keys = self._keys[session]
        if isinstance(message, Push):
            self.pushes.append((keys.text(message.key), message))
        elif isinstance(message, Interest):
            if message.mode and message.options & InterestOptions.SUBSCRIBERS:
                body = DeclareSubscriber(1, WireExpr(0, SAMPLES_FOR_US))
                self._say(session, body, message.id)
                self._say(session, DeclareFinal(), message.id)
        elif isinstance(message, Declare):
            body_ = message.body
            if isinstance(body_, DeclareKeyExpr):
                keys.declare(Mapping.SENDER, body_.id, body_.key.suffix)
            elif isinstance(body_, DeclareSubscriber):
                self.subscribers[session].append(keys.text(body_.key))

    def _on_close(self, session: TransportSession, why: SessionEnded) -> None:
        self.closed.append((session, why))

    # ---- for tests

    def session(self, number: int = 1) -> TransportSession:
        """The `number`th that was opened, as soon as it is."""
        return until(lambda: self.opened, lambda found: len(found) >= number)[number - 1]

    def wait_for_way(self, session: TransportSession) -> None:
        """Routers agree on the way between them before they tell of subscribers and send."""
        if self.whatami is session.agreement.whatami is ROUTER:
            until(lambda: self.subscribers[session], lambda keys: SAMPLES_FOR_THEM in keys)

    def end_of(self, session: TransportSession, within: float = DEADLINE) -> SessionEnded:
        """Why `session` ended, as soon as it has."""
        ends = until(lambda: [why for which, why in self.closed if which is session], bool, within)
        assert len(ends) == 1
        return ends[0]

    def received(self, count: int) -> list[tuple[str | None, Push]]:
        """The next `count` samples; nothing else may have come."""
        until(lambda: len(self.pushes), lambda found: found >= count)
        taken, self.pushes[:] = self.pushes[:], []
        assert len(taken) == count
        return taken


@dataclass(frozen=True)
class Pair:
    """Roles of a conversation, and which side connects."""

    ours: WireWhatAmI
    theirs: str
    we_dial: bool

    def __str__(self) -> str:
        ours = f"our-{str(self.ours.name).lower()}"
        return f"{ours}-dials-{self.theirs}" if self.we_dial else f"{self.theirs}-dials-{ours}"


COMMON_PAIRS = (
    Pair(CLIENT, "router", True),
    Pair(ROUTER, "client", False),
    Pair(PEER, "peer", True),
    Pair(PEER, "peer", False),
)
"Where each option is tried."


def listening(
    reference: ReferenceProcess, mode: str, settings: Settings, endpoint: str = "tcp/127.0.0.1:{}"
) -> tuple[ReferencePeer, str]:
    """A session of theirs that listens, and where."""
    for attempt in range(LISTENS):
        at = endpoint.format(free_port())
        try:
            return reference.open(mode, {"listen/endpoints": [at], **settings}), at
        except ReferenceFailed:
            if attempt == LISTENS - 1:
                raise
    raise AssertionError


def dialling(reference: ReferenceProcess, mode: str, at: str, settings: Settings) -> ReferencePeer:
    return reference.open(mode, {"connect/endpoints": [at], **settings})


@contextmanager
def conversation(
    reference: ReferenceProcess,
    pair: Pair,
    ours: Ours,
    settings: Settings | None = None,
    *,
    endpoint: str = "tcp/127.0.0.1:{}",
) -> Iterator[tuple[TransportSession, ReferencePeer]]:
    """An open session between `ours` and one of theirs, which has a subscriber."""
    with ours:
        if pair.we_dial:
            them, at = listening(reference, pair.theirs, settings or {}, endpoint)
        else:
            (where, *_) = ours.node.listen(endpoint.format(0))
            them = dialling(reference, pair.theirs, str(where), settings or {})
        try:
            session = ours.node.connect(at) if pair.we_dial else ours.session()
            them.subscribe(SAMPLES_FOR_THEM)
            ours.wait_for_way(session)
            yield session, them
        finally:
            them.close()


def they_send(
    ours: Ours,
    them: ReferencePeer,
    sizes: list[int],
    *,
    first: int = 0,
    noise: bool = False,
    **qos: Any,
) -> None:
    """They put messages; all come here, in order, byte for byte."""
    qos = {**RELIABLY, **qos}
    until(lambda: them.matching(TO_US, **qos), bool)
    them.put(TO_US, sizes, first=first, noise=noise, **qos)
    got = ours.received(len(sizes))
    assert {key for key, _ in got} <= {TO_US}
    for index, (size, (_, push)) in enumerate(zip(sizes, got, strict=True), first):
        assert isinstance(push.body, Put)
        assert push.body.payload == payload(index, size, noise), f"message {index}, {size} bytes"


class BestEffortLost(AssertionError):
    """None of the best-effort messages of one session arrived."""


def they_send_best_effort(
    ours: Ours, them: ReferencePeer, size: int, *, tries: int = BEST_EFFORTS, **qos: Any
) -> None:
    """They put a message that they may drop, in whole or in part, when the machine is busy: again
    and again until one arrives. A message that arrives is whole."""
    qos = {**RELIABLY, **qos, "reliability": "BEST_EFFORT"}
    until(lambda: them.matching(TO_US, **qos), bool)
    for index in range(tries):
        them.put(TO_US, [size], first=index, **qos)
        end = time.monotonic() + BEST_EFFORT_SECONDS
        while not ours.pushes and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        heard, ours.pushes[:] = ours.pushes[:], []
        for _, push in heard:
            assert isinstance(push.body, Put)
            assert push.body.payload in [payload(i, size) for i in range(index + 1)]
        if heard:
            return
    raise BestEffortLost(f"none of {tries} messages of {size} bytes came")


def we_send(
    session: TransportSession,
    them: ReferencePeer,
    sizes: list[int],
    *,
    first: int = 0,
    noise: bool = False,
    qos: QoS = BLOCK,
    reliable: bool = True,
) -> None:
    """We put messages; all come there, in order, byte for byte."""
    sent = [payload(index, size, noise) for index, size in enumerate(sizes, first)]
    for each in sent:
        assert session.send(Push(WireExpr(0, TO_THEM), Put(each), qos), reliable)
    until(them.count, lambda found: found >= len(sizes))
    samples = them.samples()
    assert [sample["payload"] for sample in samples] == [fingerprint(each) for each in sent]
    assert {sample["key"] for sample in samples} <= {TO_THEM}
    assert {sample["priority"] for sample in samples} <= {qos.priority.name}


def both_send(
    ours: Ours,
    session: TransportSession,
    them: ReferencePeer,
    sizes: list[int],
    *,
    noise: bool = False,
) -> None:
    they_send(ours, them, sizes, noise=noise)
    we_send(session, them, sizes, noise=noise)
