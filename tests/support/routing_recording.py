"""Nodes that consist of routing alone, and links between them that carry real bytes, in order."""

from collections import deque
from typing import Any

from zenlake.routing import Face, Out, Routing
from zenlake.wire.cursor import ByteReader, ByteWriter
from zenlake.wire.declare import (
    Declare,
    DeclareFinal,
    DeclareKeyExpr,
    DeclareQueryable,
    DeclareSubscriber,
    DeclareToken,
    UndeclareQueryable,
    UndeclareSubscriber,
    UndeclareToken,
)
from zenlake.wire.enums import InterestMode, InterestOptions, WireQueryTarget, WireWhatAmI
from zenlake.wire.extensions import QueryableInfo
from zenlake.wire.interest import Interest
from zenlake.wire.linkstate import LinkState, write_link_states
from zenlake.wire.network import NETWORK, NetworkMessage
from zenlake.wire.oam import LINK_STATE, NetworkOam
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.reply import WireReply
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

ROUTER, PEER, CLIENT = WireWhatAmI.ROUTER, WireWhatAmI.PEER, WireWhatAmI.CLIENT
CURRENT, FUTURE, BOTH, FINAL = (
    InterestMode.CURRENT,
    InterestMode.FUTURE,
    InterestMode.CURRENT_FUTURE,
    InterestMode.FINAL,
)
K, S, Q, T, A = (
    InterestOptions.KEYEXPRS,
    InterestOptions.SUBSCRIBERS,
    InterestOptions.QUERYABLES,
    InterestOptions.TOKENS,
    InterestOptions.AGGREGATE,
)
DECLARE: dict[InterestOptions, Any] = {S: DeclareSubscriber, Q: DeclareQueryable, T: DeclareToken}
UNDECLARE: dict[InterestOptions, Any] = {
    S: UndeclareSubscriber,
    Q: UndeclareQueryable,
    T: UndeclareToken,
}


def zid(text: str) -> WireZenohId:
    return WireZenohId.parse(text)


def full(key: str) -> WireExpr:
    return WireExpr(0, key)


def declare(kind: InterestOptions, number: int, key: str, **info: Any) -> Declare:
    if kind is Q:
        return Declare(DeclareQueryable(number, full(key), QueryableInfo(**info)))
    return Declare(DECLARE[kind](number, full(key)))


def undeclare(kind: InterestOptions, number: int) -> Declare:
    return Declare(UNDECLARE[kind](number))


def interest(
    number: int, mode: InterestMode, options: InterestOptions, key: str | None = None
) -> Interest:
    return Interest(number, mode, options, None if key is None else full(key))


def push(key: str, payload: bytes = b"x") -> Push:
    return Push(full(key), Put(payload))


def request(number: int, key: str, **fields: Any) -> Request:
    return Request(number, full(key), **fields)


def reply(number: int, key: str, payload: bytes = b"r") -> Response:
    return Response(number, full(key), WireReply(Put(payload)))


def final(interest_id: int | None) -> Declare:
    return Declare(DeclareFinal(), interest_id)


def links(
    own: WireZenohId, *others: WireZenohId, sn: int = 1, gateways: tuple[WireZenohId, ...] = ()
) -> NetworkOam:
    """Return the message with which a peer tells a router of its links."""
    states = [LinkState(0, sn, own, PEER, links=tuple(range(1, len(others) + 1)))]
    for psid, other in enumerate(others, 1):
        states.append(LinkState(psid, 0, other, PEER, gateway=other in gateways))
    return NetworkOam(LINK_STATE, write_link_states(states))


def to(out: Out, face: Face) -> list[NetworkMessage]:
    return [message for target, message in out if target is face]


def bodies(messages: list[Any]) -> list[tuple[Any, ...]]:
    """Declarations in short: name, id, key, interest id."""
    found: list[tuple[Any, ...]] = []
    for message in messages:
        assert isinstance(message, Declare), message
        body = message.body
        key = getattr(body, "key", None)
        name = type(body).__name__
        found.append(
            (
                name,
                getattr(body, "id", None),
                None if key is None else str(key),
                message.interest_id,
            )
        )
    return found


class Node:
    """One routing, and all that its local session was sent."""

    def __init__(self, name: str, whatami: WireWhatAmI, **options: Any) -> None:
        self.routing = Routing(zid(name), whatami, **options)
        self.inbox: list[NetworkMessage] = []

    def take(self) -> list[Any]:
        taken, self.inbox = self.inbox, []
        return taken

    def data(self) -> list[tuple[str, bytes]]:
        """Take the PUTs among the received messages."""
        pushes: list[Any] = [message for message in self.take() if type(message) is Push]
        return [(message.key.suffix, message.body.payload) for message in pushes]


class Net:
    """Nodes and their links. Everything that is said is carried before a call returns."""

    def __init__(self) -> None:
        self.now = 0.0
        self._wires: deque[tuple[Node, Face, bytes]] = deque()
        self._ends: dict[Face, tuple[Node, Face]] = {}
        self.log: list[tuple[Face, NetworkMessage]] = []

    def link(self, a: Node, b: Node) -> tuple[Face, Face]:
        """A session between two nodes; the faces that a and b see."""
        at_a, first_a = a.routing.open(b.routing.local.zid, b.routing.local.whatami, self.now)
        at_b, first_b = b.routing.open(a.routing.local.zid, a.routing.local.whatami, self.now)
        self._ends[at_a] = (b, at_b)
        self._ends[at_b] = (a, at_a)
        self.say(a, first_a)
        self.say(b, first_b)
        return at_a, at_b

    def unlink(self, faces: tuple[Face, Face]) -> None:
        for face in faces:
            node = self._ends[self._ends[face][1]][0]
            self.say(node, node.routing.close(face, self.now), carry=False)
        self.carry()

    def local(self, node: Node, message: NetworkMessage) -> None:
        """The local session of `node` says something."""
        self.say(node, node.routing.on_message(node.routing.local, message, self.now))

    def say(self, node: Node, out: Out, *, carry: bool = True) -> None:
        for face, message in out:
            if face.is_local:
                node.inbox.append(message)
            else:
                w = ByteWriter()
                NETWORK.write(w, message)
                self.log.append((face, message))
                self._wires.append((*self._ends[face], bytes(w.out)))
        if carry:
            self.carry()

    def carry(self) -> None:
        while self._wires:
            node, face, data = self._wires.popleft()
            message = NETWORK.read(ByteReader(data))
            self.say(node, node.routing.on_message(face, message, self.now), carry=False)

    def wait(self, seconds: float, *nodes: Node) -> None:
        self.now += seconds
        for node in nodes:
            self.say(node, node.routing.on_time(self.now))


__all__ = [
    "BOTH",
    "CLIENT",
    "CURRENT",
    "FINAL",
    "FUTURE",
    "PEER",
    "ROUTER",
    "A",
    "DeclareKeyExpr",
    "K",
    "Net",
    "Node",
    "Q",
    "S",
    "T",
    "WireQueryTarget",
    "bodies",
    "declare",
    "final",
    "full",
    "interest",
    "links",
    "push",
    "reply",
    "request",
    "to",
    "undeclare",
    "zid",
]
