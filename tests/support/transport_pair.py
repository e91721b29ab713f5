"""Unicast cores without links: two joined in memory, or one whose peer's bytes are written by hand.

Time is a number here, and so is chance.
"""

import random
from collections.abc import Callable, Iterable, Sequence

from zenlake.errors import SessionEnded
from zenlake.transport.auth import Authenticator, Entropy
from zenlake.transport.establishment import Acceptor, Opener
from zenlake.transport.fragments import MAX_MESSAGE_BYTES, ByteBudget
from zenlake.transport.offer import Agreement, Offer
from zenlake.transport.outbox import Outbox, PushResult
from zenlake.transport.unicast import Unicast
from zenlake.wire.batch import TransportMessage, read_batch, write_batch
from zenlake.wire.cursor import ByteReader
from zenlake.wire.enums import WireCongestionControl, WirePriority, WireWhatAmI
from zenlake.wire.framing import Framing, split, to_stream, uncompress
from zenlake.wire.init import Init
from zenlake.wire.network import NETWORK, NetworkMessage, is_network
from zenlake.wire.open import Open
from zenlake.wire.push import Push
from zenlake.wire.put import Put
from zenlake.wire.qos import QoS
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

START = 1000.0
KEY = WireExpr(0, "k")
DIALLER, LISTENER = WireZenohId(b"dialler"), WireZenohId(b"listener")

Received = tuple[WirePriority, bool, NetworkMessage]
Cut = Callable[[bytes], Iterable[bytes]]


def offer(
    zid: WireZenohId = LISTENER, whatami: WireWhatAmI = WireWhatAmI.PEER, **options: object
) -> Offer:
    """An offer of low latency is one without lanes."""
    options.setdefault("qos", not options.get("low_latency", False))
    return Offer(zid=zid, whatami=whatami, **options)  # type: ignore[arg-type]


def chance(seed: int = 0) -> Entropy:
    return random.Random(seed).randbytes


def put(
    payload: bytes = b"",
    priority: WirePriority = WirePriority.DATA,
    congestion: WireCongestionControl = WireCongestionControl.DROP,
    *,
    express: bool = False,
) -> Push:
    return Push(KEY, Put(payload), QoS(priority, congestion, express=express))


class Recorder:
    """Reads what a core hands over with the wire's own reader, and keeps it."""

    def __init__(self) -> None:
        self.opens = 0
        self.received: list[Received] = []
        self.on_open: Callable[[], None] | None = None
        self.on_message: Callable[[], None] | None = None

    @property
    def messages(self) -> list[NetworkMessage]:
        return [message for _, _, message in self.received]

    def opened(self) -> None:
        self.opens += 1
        if self.on_open is not None:
            self.on_open()

    def on_frame(
        self, priority: WirePriority, reliable: bool, data: bytes, pos: int, end: int
    ) -> int:
        r = ByteReader(data, pos, end)
        while r.pos < end and is_network(data[r.pos]):
            self.received.append((priority, reliable, NETWORK.read(r)))
            if self.on_message is not None:
                self.on_message()
        return r.pos


class Side:
    """A core, what it handed over, and how it ended."""

    def __init__(
        self,
        handshake: Opener | Acceptor,
        framing: Framing = Framing.STREAM,
        *,
        max_message: int = MAX_MESSAGE_BYTES,
        process: ByteBudget | None = None,
    ) -> None:
        self.heard = Recorder()
        self.memory = process or ByteBudget(1 << 30)
        self.core = Unicast(
            handshake, self.heard, framing, START, max_message=max_message, process=self.memory
        )
        self.end: SessionEnded | None = None

    @property
    def outbox(self) -> Outbox:
        assert self.core.outbox is not None
        return self.core.outbox

    @property
    def agreed(self) -> Agreement:
        assert self.core.agreement is not None
        return self.core.agreement

    def take(self, data: bytes, now: float = START) -> None:
        try:
            self.core.receive(data, now)
        except SessionEnded as end:
            assert self.end is None, "a session ends once"
            self.end = end

    def pull_all(self, now: float = START) -> list[bytes]:
        batches = []
        while (data := self.core.pull(now)) is not None:
            assert data, "nothing is sent as such"
            batches.append(bytes(data))
        return batches


class Pair:
    """A session between two cores, open if they agree."""

    def __init__(
        self,
        dials: Offer,
        accepts: Offer,
        *,
        framing: Framing = Framing.STREAM,
        mtu: int = 0xFFFF,
        auth: tuple[Sequence[Authenticator], Sequence[Authenticator]] = ((), ()),
        entropies: Sequence[Entropy] | None = None,
    ) -> None:
        self.now = START
        self.framing = framing
        draw = entropies or (chance(0), chance(1))
        opener = Opener(dials, draw[0], mtu=mtu, authenticators=auth[0])
        acceptor = Acceptor(accepts, draw[1], mtu=mtu, authenticators=auth[1])
        self.a, self.b = Side(opener, framing), Side(acceptor, framing)
        self.sent: dict[Side, list[bytes]] = {self.a: [], self.b: []}
        self.carry()

    def carry(self, cut: Cut | None = None) -> None:
        """Pass bytes both ways, until neither side has any more."""
        while self._carry(self.a, self.b, cut) or self._carry(self.b, self.a, cut):
            pass

    def _carry(self, source: Side, target: Side, cut: Cut | None) -> bool:
        moved = False
        while (data := source.core.pull(self.now)) is not None:
            assert data, "nothing is sent as such"
            moved = True
            data = bytes(data)
            self.sent[source].append(data)
            for piece in cut(data) if cut is not None and self.framing else (data,):
                target.take(piece, self.now)
        return moved

    def push(self, side: Side, message: NetworkMessage, reliable: bool = True) -> None:
        """Until it is taken."""
        while side.outbox.push(message, reliable, now=self.now) is PushResult.FULL:
            before = len(self.sent[side])
            self.carry()
            assert len(self.sent[side]) > before, "a full lane has something to send"


class Hand:
    """An open core whose peer is written by hand. The peer connected, and its first number is 0."""

    def __init__(
        self,
        ours: Offer | None = None,
        *,
        framing: Framing = Framing.STREAM,
        lease_ms: int = 10_000,
        process: ByteBudget | None = None,
        max_message: int = MAX_MESSAGE_BYTES,
        **theirs: object,
    ) -> None:
        ours = ours or offer()
        self.framing = framing
        self.compressed = False
        self.now = START
        self.side = Side(
            Acceptor(ours, chance(), mtu=0xFFFF),
            framing,
            process=process,
            max_message=max_message,
        )
        options: dict[str, object] = {
            "qos": ours.qos,
            "low_latency": ours.low_latency,
            "compression": ours.compression,
            "patch": ours.patch,
            "resolution": ours.resolution,
        }
        self.say(Init(DIALLER, WireWhatAmI.PEER, **(options | theirs)))  # type: ignore[arg-type]
        (ack,) = self.hear()
        assert isinstance(ack, Init)
        self.say(Open(lease_ms, 0, ack.cookie))
        (opened,) = self.hear()
        assert isinstance(opened, Open)
        self.compressed = self.side.agreed.compression
        if self.side.agreed.low_latency and framing:
            self.framing = Framing.LOW_LATENCY

    @property
    def core(self) -> Unicast:
        return self.side.core

    @property
    def received(self) -> list[Received]:
        return self.side.heard.received

    def batch(self, *messages: TransportMessage) -> bytes:
        return self.framed(write_batch(list(messages)))

    def framed(self, batch: bytes) -> bytes:
        if self.compressed:
            batch = b"\0" + batch
        return to_stream([batch], self.framing) if self.framing else batch

    def say(self, *messages: TransportMessage) -> None:
        self.side.take(self.batch(*messages), self.now)

    def say_bytes(self, batch: bytes) -> None:
        """A batch as it is, compression header and all; its length is put before it."""
        framed = to_stream([batch], self.framing) if self.framing else batch
        self.side.take(framed, self.now)

    def hear(self) -> list[TransportMessage]:
        """Return the messages that our core has to send, read by the wire's own reader."""
        return [
            message
            for data in self.side.pull_all(self.now)
            for message in read_sent(data, self.framing, self.compressed)
        ]


def batches_of(data: bytes, framing: Framing, compressed: bool = False) -> list[bytes]:
    """The plain batches in what one pull() gave."""
    cut = [data[start:end] for start, end in split(data, framing)]
    consumed = sum(len(batch) for batch in cut) + framing * len(cut)
    assert consumed == len(data), "what is sent are whole batches"
    return [uncompress(batch) for batch in cut] if compressed else cut


def read_sent(data: bytes, framing: Framing, compressed: bool = False) -> list[TransportMessage]:
    return [m for batch in batches_of(data, framing, compressed) for m in read_batch(batch)]
