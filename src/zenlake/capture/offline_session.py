"""Messages that one side of a session sent, with keys in full and fragments joined.

Keeps the keys that the sender declared and the incomplete fragments. Does not know the other
direction, so keys that the receiver declared stay numbers, and the resolution of sequence numbers
is not known: hence fragments are joined here, not by transport/fragments.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from zenlake.capture.message_fields import key_of
from zenlake.capture.offline_batches import OfflineBatch
from zenlake.capture.offline_buffer import BadBytes, Buffer
from zenlake.errors import DecodeError
from zenlake.keytable import KeyTable
from zenlake.transport.offer import SN_MASKS
from zenlake.wire.batch import SCOUTING, LocatedMessage, Message, walk
from zenlake.wire.declare import Declare, DeclareKeyExpr, UndeclareKeyExpr
from zenlake.wire.enums import Mapping, WirePriority
from zenlake.wire.fragment import Fragment
from zenlake.wire.frame import Frame
from zenlake.wire.init import Init
from zenlake.wire.network import NETWORK
from zenlake.wire.wireexpr import WireExpr


class Entry(NamedTuple):
    """A message and its place in the input."""

    batch: OfflineBatch
    buffer: Buffer
    start: int
    end: int
    "The message is [start, end) of `buffer`."
    message: Message
    frame: Frame | None = None
    "The FRAME around a network message."
    key: str | None = None
    "The key expression, in full if the sender declared its id."
    fragments: int = 0
    "How many FRAGMENTs it was joined from; 0 for a message that was not cut."


class Direction:
    """Reader of the messages of one direction, batch by batch."""

    def __init__(self) -> None:
        self._keys = KeyTable()
        self._fragments = Fragments()

    def read(self, batch: OfflineBatch) -> Iterator[Entry]:
        """Yield every message of `batch`; a joined message follows its last FRAGMENT."""
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
        """Note the key that an id is declared for."""
        if not isinstance(message, Declare):
            return
        body = message.body
        if isinstance(body, DeclareKeyExpr):
            # A declaration has scope 0 and the full text. Any other scope stays a number: texts
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
    """Yield the only message of a scouting datagram."""
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
    """Fragments of one message so far."""

    sn: int
    incomplete: bool
    "True if a piece is missing, so that the message cannot be joined."
    count: int = 0
    data: bytearray = field(default_factory=bytearray)


class Fragments:
    """Fragments by lane, joined when the input has all of a message."""

    def __init__(self) -> None:
        self.from_start = False
        "True if the input starts with the session: a piece without First may begin a message."
        self._lanes: dict[tuple[WirePriority, bool], Pieces] = {}

    def add(self, fragment: Fragment) -> Pieces | None:
        """Return all pieces if `fragment` is the last of a complete message, else None."""
        lane = fragment.priority, fragment.reliable
        pieces = self._lanes.get(lane)
        if fragment.first or pieces is None:
            begins = fragment.first or self.from_start
            pieces = self._lanes[lane] = Pieces(fragment.sn, incomplete=not begins)
        elif fragment.sn != pieces.sn + 1 and (fragment.sn or pieces.sn not in SN_MASKS):
            pieces.incomplete = True
        pieces.sn = fragment.sn
        pieces.count += 1
        pieces.data += fragment.payload
        if fragment.more and not fragment.drop:
            return None
        del self._lanes[lane]
        return None if pieces.incomplete or fragment.drop else pieces
