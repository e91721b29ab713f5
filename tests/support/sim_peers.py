"""Who takes part: a handler that remembers, and a stranger that speaks in bytes."""

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from zenlake.errors import LinkError, SessionEnded
from zenlake.runtime.message_handler import MessageHandler
from zenlake.runtime.node import Node
from zenlake.runtime.transport_session import TransportSession
from zenlake.sim import World
from zenlake.sim.memory_link import MemoryLink
from zenlake.transport.fragments import PROCESS
from zenlake.wire.batch import TransportMessage, read_batch, write_batch
from zenlake.wire.close import Close
from zenlake.wire.enums import WirePriority
from zenlake.wire.framing import Framing, to_stream
from zenlake.wire.init import Init
from zenlake.wire.network import NetworkMessage
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import DEFAULT, QoS
from zenlake.wire.wireexpr import WireExpr

Step = bytes | Callable[["Stranger"], bytes]


class Heard(MessageHandler):
    """A handler that keeps all it is told. Each message holds its number in 4 bytes."""

    def __init__(self) -> None:
        super().__init__(self._on, self._note_open, self._note_end)
        self.opened_sessions: list[TransportSession] = []
        self.ends: list[tuple[TransportSession, SessionEnded]] = []
        self.numbers: list[int] = []

    def _on(
        self,
        session: TransportSession,
        message: NetworkMessage,
        priority: WirePriority,
        reliable: bool,
    ) -> None:
        if isinstance(message, Push) and isinstance(message.body, Put):
            payload = message.body.payload
            assert isinstance(payload, bytes)
            self.numbers.append(int.from_bytes(payload[:4], "little"))

    def _note_open(self, session: TransportSession) -> None:
        self.opened_sessions.append(session)

    def _note_end(self, session: TransportSession, why: SessionEnded) -> None:
        self.ends.append((session, why))


def numbered(number: int, size: int = 4, qos: QoS = DEFAULT) -> Push:
    payload = number.to_bytes(4, "little").ljust(size, b".")
    return Push(WireExpr(0, "sim/x"), Put(payload), qos)


def pair(
    world: World, endpoint: str = "memory/b", **settings: Any
) -> tuple[TransportSession, TransportSession]:
    """Nodes `a` and `b`, and both ends of their session, which `a` opened."""
    a = world.node("a", Heard(), **settings)
    b = world.node("b", Heard(), **settings)
    a.connect_soon(endpoint, lambda found: None)
    world.run_until(lambda: b.zid in a.sessions and a.zid in b.sessions, within=5)
    return a.sessions[b.zid], b.sessions[a.zid]


def heard(node: Node) -> Heard:
    assert isinstance(node.handler, Heard)
    return node.handler


def assert_nothing_left(world: World, *nodes: Node) -> None:
    """No handshake, session, claim, timer, link or fragment: only the nodes and their listeners."""
    for node in nodes:
        assert node.pending == 0
        assert node.sessions == {}
        assert node._by_zid == {}
        assert not node._next_in_line
        assert not node._admission._sessions
        known = heard(node)
        assert len(known.opened_sessions) == len(known.ends) == len({s for s, _ in known.ends})
    assert world.reactor.timers == 0
    assert [end for end in world.reactor.watched if hasattr(end, "receive")] == []
    assert PROCESS.held == 0


class Stranger:
    """Says at its end of `link` what its steps are, whatever is answered; then waits.

    Each step is a pause and the words after it.
    """

    def __init__(
        self,
        world: World,
        link: MemoryLink,
        steps: Iterable[tuple[float, Step]] = (),
        *,
        hang_up: bool = False,
    ) -> None:
        self.ended = False
        self.close_reason: int | None = None
        self.init_ack: Init | None = None
        self.link = link
        self._steps = iter(steps)
        self._hang_up = hang_up
        self._reactor = world.reactor
        self._datagram = not link.reliable
        self._received = b""
        self._reactor.watch(self.link, self._ready, read=True, write=True)

    def framed(self, *batches: bytes) -> bytes:
        return b"".join(batches) if self._datagram else to_stream(list(batches), Framing.STREAM)

    def leave(self) -> None:
        if not self.ended:
            self.ended = True
            self._reactor.forget(self.link)
            self.link.close()

    def _ready(self, readable: bool, writable: bool) -> None:
        if writable:
            self._reactor.change(self.link, read=True, write=False)
            self._next()
        try:
            while (data := self.link.receive()) is not None:
                if not data:
                    self.leave()
                    return
                self._read(data)
        except LinkError:
            self.leave()

    def _read(self, data: bytes) -> None:
        self._received += data
        while self._received:
            size = len(self._received) if self._datagram else 2
            if not self._datagram:
                size = 2 + int.from_bytes(self._received[:2], "little")
            batch, self._received = self._received[:size], self._received[size:]
            for message in read_batch(batch if self._datagram else batch[2:]):
                self._note(message)

    def _note(self, message: TransportMessage) -> None:
        if isinstance(message, Close) and self.close_reason is None:
            self.close_reason = message.reason
        elif isinstance(message, Init):
            self.init_ack = message

    def _next(self) -> None:
        if self.ended:
            return
        step = next(self._steps, None)
        if step is None:
            if self._hang_up:
                self.leave()
            return
        pause, words = step
        self._reactor.call_at(self._reactor.now() + pause, lambda: self._say(words))

    def _say(self, words: Step) -> None:
        if self.ended:
            return
        try:
            data = words if isinstance(words, bytes) else words(self)
            self.link.send(data)
        except LinkError:
            self.leave()
        self._next()


def batch(message: TransportMessage) -> bytes:
    return write_batch([message])


def damage(data: bytes, random: Random) -> bytes:
    """One of: a bit, a byte more, a byte less, the end missing, a piece twice."""
    if not data:
        return b"\0"
    at = random.randrange(len(data))
    return random.choice(
        (
            data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :],
            data[:at] + random.randbytes(1) + data[at:],
            data[:at] + data[at + 1 :],
            data[:at],
            data + data[at:],
        )
    )


def tally(strangers: Iterable[tuple[str, Stranger]]) -> Counter[tuple[str, int | None]]:
    """By play: the CLOSE reasons that were heard."""
    return Counter((play, stranger.close_reason) for play, stranger in strangers)
