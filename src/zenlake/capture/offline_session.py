"""The messages that one side of a session sent, with what they need from earlier ones.

Keeps the keys that the sender declared and the fragments that are not complete yet. Does not
know the other direction, so keys that the receiver declared stay numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from zenlake.capture.message_fields import key_of
from zenlake.capture.offline_batches import OfflineBatch
from zenlake.capture.offline_buffer import BadBytes, Buffer
from zenlake.errors import DecodeError
from zenlake.keytable import KeyTable
from zenlake.wire.batch import SCOUTING, LocatedMessage, Message, walk
from zenlake.wire.declare import Declare, DeclareKeyExpr, UndeclareKeyExpr
from zenlake.wire.enums import Mapping, WirePriority
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.init import Init
from zenlake.wire.network import NETWORK
from zenlake.wire.wireexpr import WireExpr

HIGHEST_SNS = (0x7F, 0x3FFF, 0x0FFF_FFFF, 0xFFFF_FFFF)  # by resolution; 0 comes after them


class Entry(NamedTuple):
    """One message, and where it was found."""

    batch: OfflineBatch
    buffer: Buffer
    start: int
    end: int
    "Positions in `buffer`."
    message: Message
    frame: Frame | None = None
    "The FRAME that holds a network message."
    key: str | None = None
    "The key expression, as text if the sender declared what it is made of."
    fragments: int = 0
    "From how many FRAGMENTs it was joined."


class Direction:
    def __init__(self) -> None:
        self._keys = KeyTable()
        self._fragments = Fragments()

    def read(self, batch: OfflineBatch) -> Iterator[Entry]:
        """Every message of `batch`; one that its last FRAGMENT completes comes after that."""
        for located in _located(batch):
            message = located.message
            yield self._entry(batch, batch.buffer, located)
            if isinstance(message, Init):
                self._fragments.from_start = True
            elif isinstance(message, Fragment):
                pieces = self._fragments.add(message)
                if pieces is not None:
                    yield self._joined(batch, located, pieces)

    def _entry(
        self, batch: OfflineBatch, buffer: Buffer, located: LocatedMessage, fragments: int = 0
    ) -> Entry:
        start, end, message, frame = located
        self._learn(message)
        key = key_of(message)
        text = None if key is None else self._keys.text(key) or str(key)
        return Entry(batch, buffer, start, end, message, frame, text, fragments)

    def _learn(self, message: Message) -> None:
        """Remember which key an id stands for."""
        if not isinstance(message, Declare):
            return
        body = message.body
        if isinstance(body, DeclareKeyExpr):
            # Always scope 0 and the full text. A scope, if there is one, stays a number: texts
            # that build on each other could grow without bound.
            text = str(WireExpr(body.key.scope, body.key.suffix, Mapping.SENDER))
            self._keys.declare(Mapping.SENDER, body.id, text)
        elif isinstance(body, UndeclareKeyExpr):
            self._keys.undeclare(Mapping.SENDER, body.id)

    def _joined(self, batch: OfflineBatch, last: LocatedMessage, pieces: "Pieces") -> Entry:
        data = bytes(pieces.data)
        origin = batch.buffer.input_span(last.start, last.end)
        buffer = Buffer(data, 0, len(data), "joined", origin)
        r = buffer.reader()
        try:
            message = NETWORK.read(r)
            r.finish("joined message")
        except DecodeError as error:
            raise BadBytes(error.within("FRAGMENT"), buffer) from None
        return self._entry(batch, buffer, LocatedMessage(0, len(data), message), pieces.count)


def _located(batch: OfflineBatch) -> Iterator[LocatedMessage]:
    try:
        yield from walk(batch.buffer.reader(), low_latency=batch.low_latency)
    except DecodeError as error:
        raise BadBytes(error, batch.buffer) from None


def read_scouting(datagram: OfflineBatch) -> Iterator[Entry]:
    """The one message of a scouting datagram."""
    buffer = datagram.buffer
    r = buffer.reader()
    try:
        message = SCOUTING.read(r)
        yield Entry(datagram, buffer, buffer.start, r.pos, message)
        r.finish("datagram")
    except DecodeError as error:
        raise BadBytes(error, buffer) from None


@dataclass(slots=True)
class Pieces:
    """The fragments of one message so far."""

    sn: int
    incomplete: bool
    "A piece is missing: the message cannot be joined."
    count: int = 0
    data: bytearray = field(default_factory=bytearray)


class Fragments:
    """Joins fragments, lane by lane, as far as the input has them all."""

    def __init__(self) -> None:
        self.from_start = False
        "The input starts with the session, so that a piece without First can begin a message."
        self._lanes: dict[tuple[WirePriority, bool], Pieces] = {}

    def add(self, fragment: Fragment) -> Pieces | None:
        """All pieces, if `fragment` is the last of a message of which none is missing."""
        lane = fragment.priority, fragment.reliable
        pieces = self._lanes.get(lane)
        if fragment.first or pieces is None:
            begins = fragment.first or self.from_start
            pieces = self._lanes[lane] = Pieces(fragment.sn, incomplete=not begins)
        elif fragment.sn != pieces.sn + 1 and (fragment.sn or pieces.sn not in HIGHEST_SNS):
            pieces.incomplete = True
        pieces.sn = fragment.sn
        pieces.count += 1
        pieces.data += fragment.payload
        if fragment.more and not fragment.drop:
            return None
        del self._lanes[lane]
        return None if pieces.incomplete or fragment.drop else pieces
